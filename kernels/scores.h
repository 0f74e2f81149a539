// Scores: who goes first where stamps do not say so, equal to `policy::Scores` to the bit.
//
// What is counted, and why, stands there. Integers only, and sums that have no order, so that threads may add as they
// come. An admission of a decode step counts its experts between its other phases:
//
//   phase      what                                                                      work a thread
//   load       the layer's last experts are taken over into shared memory                1
//   note       credits for what was foreseen; counts of the used grow, and all counts    E / T, for the used 7 numbers
//              of the layer are brought down now and then; what followed is cleared
//   settle     weights, totals and gains; the step goes into its forerunners' rings      1, at most 16 for the rings
//   follow     what follows the step's experts is counted from their rings               4 for each of at most 16
//   select     a key for each slot, out of the counts of its owner                       S / T times 7 numbers
//
// Tried and dropped: a chance for each expert kept in memory (every step would write its whole layer's, and steps
// without misses need none).
#pragma once

#include "common.h"

namespace ftcache {

// What a use counts at first, of a component's eight halves.
constexpr u32 FIRST_USE = 1 << 13;
constexpr i64 LEAST_WEIGHT = 1 << 7;
constexpr i64 INERTIA = 8;
// Bits of a key: a chance is below 2^32, a nearness at most 2^24, and two keys come before all others.
constexpr u32 KEY_BITS = 56;

struct ScoringShared {
    // By component: of each use its parts of the chance that was given.
    Array<u64, COMPONENTS> credits;
    // Uses that had a chance.
    Cell<u32> foreseen;
    // The experts of the layer's last step, and of this one, if they are not too many.
    Array<u32, RING_WIDTH> before;
    Cell<u32> before_width;
    Array<u32, RING_WIDTH> used;
    WarpCounts warp_used;
};

// What a component gives to the chance of an expert of a layer, in 2^-60.
FTC_DEVICE u64 part_of(const Scores& scores, u64 layer, u64 flat, u32 component) {
    const u32 count = component < HALVES ? u32(scores.counts[flat * HALVES + component]) : u32(scores.followed[flat]);
    return count * u64(scores.gains[layer * COMPONENTS + component]);
}

// The components that a rule has, one for each half and one for what followed.
FTC_DEVICE bool has_component(const Scores& scores, u32 component) {
    return component < HALVES ? component < scores.half_count : scores.learns != 0;
}

// An expert's chance of a use, in 2^-60.
FTC_DEVICE u64 sum_of_parts(const Scores& scores, u64 layer, u64 flat) {
    u64 sum = 0;
    FTC_UNROLL
    for (u32 component = 0; component < COMPONENTS; ++component) {
        sum += has_component(scores, component) ? part_of(scores, layer, flat, component) : 0;
    }
    return sum;
}

// The key of a slot in a step of layer `now`: the lowest goes. Free ones first, then those of stamp COLD, then by
// score.
FTC_DEVICE u64 key_of(const Scores& scores, const Tables& tables, u32 now, u64 stamp, u32 owner) {
    if (stamp <= COLD) {
        return stamp;
    }
    const u32 layer = owner / tables.expert_count;
    const u32 ahead = layer > now ? layer - now : layer + tables.layer_count - now;
    const u32 nearness = scores.looks_at_distance != 0 ? (1u << 24) / ahead : 1;
    return COLD + 1 + (sum_of_parts(scores, layer, owner) >> 29) * nearness;
}

// What a use counts at a layer's step `turn`: doubled every half, a straight line between.
FTC_DEVICE u32 use_at(u32 turn, u32 log_half) {
    const u32 within = turn & ((8u << log_half) - 1);
    const u32 octave = FIRST_USE << (within >> log_half);
    return octave + static_cast<u32>((u64(octave) * (within & ((1u << log_half) - 1))) >> log_half);
}

// Whether counts are brought down before the uses of step `turn`.
FTC_DEVICE bool is_brought_down(u32 turn, u32 log_half) { return (turn & ((8u << log_half) - 1)) == 0; }

FTC_DEVICE u64 gain_of(u32 weight, u64 total) { return total == 0 ? 0 : (u64(weight) << 40) / total; }

// What a decode step is counted with.
struct Scoring {
    const Scores& scores;
    ScoringShared& shared;
    u32 layer;
    // The flat number of the layer's expert 0.
    u64 first;
    // The number of this step among those of the layer.
    u32 turn;

    FTC_DEVICE void load(const Place& at) const {
        if (at.thread == 0) {
            shared.foreseen = 0;
        }
        if (at.thread < COMPONENTS) {
            shared.credits[at.thread] = u64(0);
        }
        if (scores.learns == 0) {
            return;
        }
        if (at.thread == 0) {
            shared.before_width = u32(u8(scores.latest_widths[layer]));
        }
        if (at.thread < RING_WIDTH) {
            shared.before[at.thread] = u32(u16(scores.latest[u64(layer) * RING_WIDTH + at.thread]));
        }
    }

    // Of a use, its parts of the chance that was given to each component. Parts are worked out twice: seven of them are
    // more than there are registers for.
    FTC_DEVICE void credit(u64 flat) const {
        const u64 chance = sum_of_parts(scores, layer, flat) >> 28;
        if (chance == 0) {
            return;
        }
        const u64 one = (u64(1) << 48) / chance;
        atomic_add(&shared.foreseen, 1);
        FTC_ROLL
        for (u32 component = 0; component < COMPONENTS; ++component) {
            atomic_add(&shared.credits[component], ((part_of(scores, layer, flat, component) >> 28) * one) >> 28);
        }
    }

    // For every expert of the layer, by the one thread that it has; `rank`: how many before it are used.
    FTC_DEVICE void note(u32 expert, bool is_used, u32 rank) const {
        const u64 flat = first + expert;
        if (is_used && scores.learns != 0) {
            credit(flat);
        }
        FTC_ROLL
        for (u32 half = 0; half < scores.half_count; ++half) {
            const bool is_down = is_brought_down(turn, scores.log_halves[half]);
            if (!is_down && !is_used) {
                continue;
            }
            u32 count = scores.counts[flat * HALVES + half];
            count >>= is_down ? 8 : 0;
            if (is_used) {
                const u32 sum = count + use_at(turn, scores.log_halves[half]);
                count = sum < count ? ~0u : sum;
            }
            scores.counts[flat * HALVES + half] = count;
        }
        if (scores.learns != 0) {
            scores.followed[flat] = 0u;
            if (is_used && rank < RING_WIDTH) {
                shared.used[rank] = expert;
            }
        }
    }

    // How many experts of a step are followed and follow: none if there are too many.
    FTC_DEVICE static u32 width_of(u32 distinct) { return distinct <= RING_WIDTH ? distinct : 0; }

    FTC_DEVICE void settle(u32 distinct, const Place& at) const {
        const u64 shares = u64(layer) * COMPONENTS;
        if (at.thread < COMPONENTS && has_component(scores, at.thread)) {
            const u32 component = at.thread;
            u32 weight = scores.weights[component];
            if (scores.learns != 0) {
                const i64 credit = static_cast<i64>(u64(shared.credits[component]));
                const i64 change = credit - i64(u32(shared.foreseen)) * weight;
                const i64 moved = weight + change / (INERTIA * distinct);
                weight = static_cast<u32>(moved < LEAST_WEIGHT ? LEAST_WEIGHT : moved);
                scores.weights[component] = weight;
            }
            if (component < HALVES) {
                const u32 log_half = scores.log_halves[component];
                u64 total = scores.totals[shares + component];
                total >>= is_brought_down(turn, log_half) ? 8 : 0;
                total += u64(use_at(turn, log_half)) * distinct;
                scores.totals[shares + component] = total;
                scores.gains[shares + component] = gain_of(weight, total);
            }
        }
        if (at.thread == 0) {
            scores.turns[layer] = turn;
        }
        if (scores.learns == 0) {
            return;
        }
        const u32 width = width_of(distinct);
        if (width > 0) {
            FTC_ROLL
            for (u32 index = at.warp; index < shared.before_width; index += at.warps) {
                push(first + u32(shared.before[index]), width, at.lane);
            }
        }
        if (at.thread < width) {
            scores.latest[u64(layer) * RING_WIDTH + at.thread] = static_cast<u16>(u32(shared.used[at.thread]));
        }
        if (at.thread == 0) {
            scores.latest_widths[layer] = static_cast<u8>(width);
        }
    }

    // Writes the step over the oldest in an expert's ring. For a whole warp.
    FTC_DEVICE void push(u64 flat, u32 width, u32 lane) const {
        const u32 oldest = warp_from(lane == 0 ? u32(u8(scores.ring_next[flat])) : 0, 0);
        const u64 step = flat * RING_STEPS + oldest;
        if (lane < width) {
            scores.ring_experts[step * RING_WIDTH + lane] = static_cast<u16>(u32(shared.used[lane]));
        }
        if (lane == 0) {
            scores.ring_widths[step] = static_cast<u8>(width);
            scores.ring_next[flat] = static_cast<u8>((oldest + 1) % RING_STEPS);
        }
    }

    FTC_DEVICE void follow(u32 distinct, const Place& at) const {
        const u32 width = width_of(distinct);
        FTC_ROLL
        for (u32 index = at.warp; index < width; index += at.warps) {
            const u64 flat = first + u32(shared.used[index]);
            FTC_ROLL
            for (u32 entry = at.lane; entry < RING_STEPS * RING_WIDTH; entry += WARP) {
                if (entry % RING_WIDTH < u8(scores.ring_widths[flat * RING_STEPS + entry / RING_WIDTH])) {
                    const u32 follower = u16(scores.ring_experts[flat * RING_STEPS * RING_WIDTH + entry]);
                    atomic_add(&scores.followed[first + follower], 1);
                }
            }
        }
        if (at.warp != 0) {
            return;
        }
        u32 total = 0;
        FTC_ROLL
        for (u32 step = at.lane; step < width * RING_STEPS; step += WARP) {
            const u64 flat = first + u32(shared.used[step / RING_STEPS]);
            total += u8(scores.ring_widths[flat * RING_STEPS + step % RING_STEPS]);
        }
        total = warp_sum(total);
        if (at.lane == 0) {
            const u64 share = u64(layer) * COMPONENTS + HALVES;
            scores.totals[share] = u64(total);
            scores.gains[share] = gain_of(scores.weights[HALVES], total);
        }
    }
};

}  // namespace ftcache
