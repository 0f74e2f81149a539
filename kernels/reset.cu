// Frees every slot of every pool. The step counter, statistics and what is known of the routing go on. A thread a slot,
// no barrier.
#include "common.h"

namespace ftcache {

FTC_KERNEL(ftcache_reset, Reset) {
    const Place at = here();
    const Tables& tables = args.tables;
    const u64 first = u64(block_index()) * at.threads + at.thread;
    if (!is_current(tables.header, args.generation, 0, first == 0)) {
        return;
    }
    const u64 threads = u64(at.threads) * block_count();
    FTC_ROLL
    for (u64 slot = first; slot < tables.slot_count; slot += threads) {
        const u32 owner = tables.owner[slot];
        if (owner != NOBODY) {
            tables.place[owner] = ABSENT_FIRST + FREED;
            tables.owner[slot] = NOBODY;
            tables.stamp[slot] = u64(0);
            tables.pinned[slot] = u8(0);
        }
    }
    FTC_ROLL
    for (u64 pool = first; pool < tables.pool_count; pool += threads) {
        FTC_FIELD(tables.pools + pool, pinned_count) = 0;
    }
}

}  // namespace ftcache
