// Victims of one step: the slots of a pool as candidates, by stamp or by key, and the one that parts the first so many
// from the rest. See admission.h for why so.
#pragma once

#include "scores.h"

namespace ftcache {

// 256 counters a digit: eight for each lane, so each warp finds the digit for itself and no further barrier is needed.
constexpr u32 DIGIT_BITS = 8;
constexpr u32 DIGITS = 1 << DIGIT_BITS;
constexpr u32 ROUNDS_MAX = 64 / DIGIT_BITS;
constexpr u32 BINS_OF_LANE = DIGITS / WARP;
// Stamps that a thread keeps.
constexpr u32 KEPT = 4;
// No stamp: the slot is no candidate.
constexpr u64 NO_CANDIDATE = ~u64(0);

// Stamps or keys of this warp's slots, NO_CANDIDATE of those that are pinned, withheld, or kept by a step that does not
// stamp them.
template <bool SCORED>
struct Candidates {
    const Admission& args;
    const Scores* scores;
    // [expert of the layer]: routes to it.
    Pointer<u32> counts;
    u32 withheld;
    bool has_pins;
    Range range;
    u32 lane;
    u64 kept[KEPT];

    FTC_DEVICE u64 key_at(u32 slot) const {
        const Tables& tables = args.tables;
        if (slot < withheld || slot >= args.pool.slot_count) {
            return NO_CANDIDATE;
        }
        const u64 place = u64(args.pool.first) + slot;
        if (has_pins && tables.pinned[place] != 0) {
            return NO_CANDIDATE;
        }
        const u64 stamp = tables.stamp[place];
        // Hits of decode have the highest stamp there is, that of the step, and there are enough others.
        if (!SCORED && args.phase == DECODE) {
            return stamp;
        }
        // Other hits are told by who they are.
        const u32 owner = tables.owner[place];
        const u32 local = owner - args.layer * tables.expert_count;
        if (stamp != 0 && local < tables.expert_count && counts[local] != 0) {
            return NO_CANDIDATE;
        }
        if constexpr (SCORED) {
            return key_of(*scores, tables, args.layer, stamp, owner);
        } else {
            return stamp;
        }
    }

    FTC_DEVICE void load() {
        if constexpr (SCORED) {
            load_scored();
        } else {
            FTC_UNROLL
            for (u32 tile = 0; tile < KEPT; ++tile) {
                kept[tile] = tile < range.tiles ? key_at(range.first + tile * WARP + lane) : NO_CANDIDATE;
            }
        }
    }

    // A key costs much more than a stamp: it is worked out in one place, and once, also of those that are not kept.
    FTC_DEVICE void load_scored() {
        FTC_ROLL
        for (u32 tile = 0; tile < range.tiles; ++tile) {
            const u32 slot = range.first + tile * WARP + lane;
            const u64 key = key_at(slot);
            FTC_UNROLL
            for (u32 index = 0; index < KEPT; ++index) {
                kept[index] = tile == index ? key : kept[index];
            }
            if (tile >= KEPT && slot < args.pool.slot_count) {
                scores->keys[u64(args.pool.first) + slot] = key;
            }
        }
    }

    // Picked and not indexed, so that what is kept stays in registers and a loop over it need not be unrolled.
    FTC_DEVICE u64 of_tile(u32 tile) const {
        if (tile >= KEPT) {
            const u32 slot = range.first + tile * WARP + lane;
            if constexpr (SCORED) {
                return slot < args.pool.slot_count ? u64(scores->keys[u64(args.pool.first) + slot]) : NO_CANDIDATE;
            } else {
                return key_at(slot);
            }
        }
        u64 key = kept[0];
        FTC_UNROLL
        for (u32 other = 1; other < KEPT; ++other) {
            key = tile == other ? kept[other] : key;
        }
        return key;
    }

    // Calls `visit(slot, key)`, slots ascending over lanes and calls; all lanes together.
    template <class Visit>
    FTC_DEVICE void each(Visit visit) const {
        FTC_ROLL
        for (u32 tile = 0; tile < range.tiles; ++tile) {
            visit(range.first + tile * WARP + lane, of_tile(tile));
        }
    }
};

// The last victim: those whose key, shifted, is below `prefix`, and the first `within` by slot of those that have it.
struct Threshold {
    u64 prefix;
    u32 shift;
    u32 within;
};

// Counters of every digit: one set a round, so that none has to be cleared between rounds.
using Bins = Array<u32, ROUNDS_MAX * DIGITS>;

// The stamp or key that parts `wanted` victims from the rest, found digit by digit from the highest of `highest`, which
// none is above.
template <bool SCORED>
FTC_DEVICE Threshold select(const Candidates<SCORED>& candidates, Bins& all_bins, u64 highest, u32 wanted) {
    const u32 lane = candidates.lane;
    Threshold threshold{0, (63 - leading_zeros(highest)) / DIGIT_BITS * DIGIT_BITS, wanted};
    FTC_ROLL
    for (u32 round = 0;; ++round) {
        const u32 base = round * DIGITS;
        const u32 shift = threshold.shift;
        const u64 prefix = threshold.prefix;
        candidates.each([&](u32, u64 key) {
            const bool counts = key != NO_CANDIDATE && ((key >> shift) >> DIGIT_BITS) == prefix;
            const u32 digit = static_cast<u32>(key >> shift) % DIGITS;
            // High digits are nearly all alike, and adding to one counter 32 times would take 32 turns.
            const u32 counting = warp_ballot(counts);
            if (counting == 0) {
                return;
            }
            const u32 leader = lowest_one(counting);
            const u32 usual = warp_from(digit, leader);
            const u32 alike = warp_ballot(counts && digit == usual);
            if (lane == leader) {
                atomic_add(&all_bins[base + usual], count_ones(alike));
            } else if (counts && digit != usual) {
                atomic_add(&all_bins[base + digit], 1);
            }
        });
        // Without this a warp could look for the digit before all slots are counted.
        barrier<4>();
        u32 bins[BINS_OF_LANE];
        u32 sum = 0;
        FTC_UNROLL
        for (u32 bin = 0; bin < BINS_OF_LANE; ++bin) {
            bins[bin] = all_bins[base + lane * BINS_OF_LANE + bin];
            sum += bins[bin];
        }
        const u32 up_to = warp_scan(sum, lane);
        u32 before = up_to - sum;
        const u32 reached = warp_ballot(before < threshold.within && threshold.within <= up_to);
        const u32 finder = lowest_one(reached);
        u32 digit = 0, inside = 0;
        FTC_UNROLL
        for (u32 bin = 0; bin < BINS_OF_LANE; ++bin) {
            if (inside == 0) {
                if (before + bins[bin] >= threshold.within) {
                    digit = lane * BINS_OF_LANE + bin;
                    inside = bins[bin];
                } else {
                    before += bins[bin];
                }
            }
        }
        threshold.prefix = threshold.prefix << DIGIT_BITS | warp_from(digit, finder);
        threshold.within -= warp_from(before, finder);
        // All that begin with these digits are victims, or there are no more digits.
        if (warp_from(inside, finder) == threshold.within || threshold.shift == 0) {
            return threshold;
        }
        threshold.shift -= DIGIT_BITS;
    }
}

}  // namespace ftcache
