// The counters and the digest of the residency, where the host can read them, without stopping the stream.
//
// One block over S slots, and under a rule with scores over all their numbers. The digest is a sum over the slots in
// use and one over numbers at their places, so it has no order (`residency`, digest.rs; `policy`, scores/numbers.rs).
// Barrier 0: without it a warp could add before the sums are cleared; 1: without it the sums could be told before all
// have added.
#include "common.h"

namespace ftcache {

struct StatisticsShared {
    Cell<u64> digest;
    Cell<u64> residents;
    Cell<u64> counted;
};

// SplitMix64, as residency has it.
FTC_DEVICE u64 mix(u64 z) {
    z += 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

// A number of scores at its place among those of its kind.
FTC_DEVICE u64 mix_at(u64 kind, u64 index, u64 number) { return mix(mix(kind << 40 | index) + number); }

template <class T>
FTC_DEVICE u64 mix_all(u64 kind, Pointer<T> numbers, u64 count, const Place& at) {
    u64 sum = 0;
    FTC_ROLL
    for (u64 index = at.thread; index < count; index += at.threads) {
        sum += mix_at(kind, index, T(numbers[index]));
    }
    return sum;
}

// What a thread has of the sum over all numbers of scores: `policy::Scores::each_number`.
FTC_DEVICE u64 mix_scores(const Scores& scores, const Tables& tables, const Place& at) {
    const u64 layers = tables.layer_count, experts = layers * tables.expert_count;
    u64 sum = at.thread == 0 ? mix_at(0, 0, scores.rule) : 0;
    sum += mix_all(1, scores.weights, COMPONENTS, at);
    sum += mix_all(2, scores.turns, layers, at);
    sum += mix_all(3, scores.counts, experts * HALVES, at);
    sum += mix_all(4, scores.totals, layers * COMPONENTS, at);
    sum += mix_all(5, scores.gains, layers * COMPONENTS, at);
    if (scores.learns == 0) {
        return sum;
    }
    FTC_ROLL
    for (u64 place = at.thread; place < layers * RING_WIDTH; place += at.threads) {
        if (place % RING_WIDTH < u8(scores.latest_widths[place / RING_WIDTH])) {
            sum += mix_at(6, place, u16(scores.latest[place]));
        }
    }
    sum += mix_all(7, scores.latest_widths, layers, at);
    FTC_ROLL
    for (u64 step = at.thread; step < experts * RING_STEPS; step += at.threads) {
        // Steps are counted from the oldest of a ring, wherever that lies.
        const u64 ring = step / RING_STEPS * RING_STEPS;
        const u64 from = ring + (u8(scores.ring_next[step / RING_STEPS]) + step % RING_STEPS) % RING_STEPS;
        const u32 width = u8(scores.ring_widths[from]);
        FTC_ROLL
        for (u32 place = 0; place < width; ++place) {
            sum += mix_at(8, step * RING_WIDTH + place, u16(scores.ring_experts[from * RING_WIDTH + place]));
        }
        sum += mix_at(9, step, width);
    }
    return sum;
}

FTC_KERNEL(ftcache_statistics, Statistics) {
    FTC_SHARED(StatisticsShared, shared);
    const Place at = here();
    const Tables& tables = args.tables;
    if (!is_current(tables.header, args.generation, 0, at.thread == 0)) {
        return;
    }
    u64 number = 0;
    if (at.thread == 0) {
        shared.digest = u64(0);
        shared.residents = u64(0);
        shared.counted = u64(0);
        number = load_for_host(&FTC_FIELD(args.reading, ended)) + 1;
        store_for_host(&FTC_FIELD(args.reading, begun), number);
        // Without this the host could take numbers of this reading for the last one's.
        fence_for_host();
    }
    barrier<0>();
    u64 sum = 0, residents = 0;
    FTC_ROLL
    for (u32 slot = at.thread; slot < tables.slot_count; slot += at.threads) {
        const u32 owner = tables.owner[slot];
        if (owner != NOBODY) {
            sum += mix(mix(u64(slot) << 32 | owner) + u64(tables.stamp[slot]));
            residents += 1;
        }
    }
    if (residents > 0) {
        atomic_add(&shared.digest, sum);
        atomic_add(&shared.residents, residents);
    }
    if (args.scores.rule != 0) {
        atomic_add(&shared.counted, mix_scores(args.scores, tables, at));
    }
    const u32 counters = tables.layer_count * PHASE_COUNT * COUNTER_COUNT;
    FTC_ROLL
    for (u32 counter = at.thread; counter < counters; counter += at.threads) {
        args.stats[counter] = u64(tables.stats[counter]);
    }
    barrier<1>();
    if (at.thread == 0) {
        const u64 step = FTC_FIELD(tables.header, step);
        FTC_FIELD(args.reading, generation) = args.generation;
        FTC_FIELD(args.reading, step) = step;
        const u64 counted = args.scores.rule != 0 ? mix(shared.counted) : 0;
        FTC_FIELD(args.reading, digest) = mix(mix(~u64(0)) + step) + shared.digest + counted;
        FTC_FIELD(args.reading, resident_count) = u64(shared.residents);
        // Without this it could be taken for whole before it has arrived; barrier 1 has put others' writes before it.
        fence_for_host();
        store_for_host(&FTC_FIELD(args.reading, ended), number);
    }
}

}  // namespace ftcache
