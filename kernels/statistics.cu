// The counters and the digest of the residency, where the host can read them, without stopping the stream.
//
// One block over S slots. The digest is a sum over the slots in use and so has no order (`residency`, digest.rs).
// Barrier 0: without it a warp could add before the sums are cleared; 1: without it the sums could be told before all
// have added.
#include "common.h"

namespace ftcache {

struct StatisticsShared {
    Cell<u64> digest;
    Cell<u64> residents;
};

// SplitMix64, as residency has it.
FTC_DEVICE u64 mix(u64 z) {
    z += 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
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
        FTC_FIELD(args.reading, digest) = mix(mix(~u64(0)) + step) + shared.digest;
        FTC_FIELD(args.reading, resident_count) = u64(shared.residents);
        // Without this it could be taken for whole before it has arrived; barrier 1 has put others' writes before it.
        fence_for_host();
        store_for_host(&FTC_FIELD(args.reading, ended), number);
    }
}

}  // namespace ftcache
