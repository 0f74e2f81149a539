// Frees neighbouring slots of a pool, such as those under a staging buffer, whatever they hold: a thread a slot, no
// host read, no barrier. A slot that is free stays so, so twice is as good as once. Pinned slots are freed too; their
// experts stay marked.
#include "common.h"

namespace ftcache {

FTC_KERNEL(ftcache_invalidate, Invalidate) {
    const Place at = here();
    const Tables& tables = args.tables;
    const bool is_first = at.thread == 0 && block_index() == 0;
    if (!is_current(tables.header, args.generation, 0, is_first)) {
        return;
    }
    const u64 threads = u64(at.threads) * block_count();
    FTC_ROLL
    for (u64 index = u64(block_index()) * at.threads + at.thread; index < args.count; index += threads) {
        free_slot(tables, args.pool, args.from + static_cast<u32>(index), args.absence);
    }
    if (is_first) {
        FTC_FIELD(tables.pools + args.pool.pool, withheld) = args.withheld;
    }
}

}  // namespace ftcache
