// Waits for a word of the host's before the rows of a layer's last admission are gathered, if there are any: for rows
// that the engine reads in when it sees what is missing. One block, so that there is one decision: a gather of which
// some blocks waited longer than others would copy some bytes and not others.
//
// If the host does not raise the word in time, the admission's slots are freed and nothing is left to copy: a plan is
// applied whole or forgotten. Barrier 0: without it a thread could free slots, or go home, before the word was looked
// at.
#include "common.h"

namespace ftcache {

struct AwaitShared {
    Cell<u32> is_raised;
    Cell<u32> last;
};

FTC_KERNEL(ftcache_await, Await) {
    FTC_SHARED(AwaitShared, shared);
    const Place at = here();
    const Tables& tables = args.tables;
    if (!is_current(tables.header, args.generation, args.layer, at.thread == 0)) {
        return;
    }
    const u32 first_expert = args.layer * tables.expert_count;
    const Pointer<PlanHead> plan = tables.plans + args.layer;
    const u32 count = FTC_FIELD(plan, copy_count);
    if (count == 0) {
        return;
    }
    if (at.thread == 0) {
        const Pointer<const u32> word = args.word;
        u32 now = load_fresh(word);
        FTC_ROLL
        for (u64 look = 0; static_cast<i32>(now - args.word_value) < 0 && look < args.patience; ++look) {
            pause();
            now = load_fresh(word);
        }
        // Without this the rows could be older than the word.
        fence_for_host();
        shared.is_raised = static_cast<i32>(now - args.word_value) >= 0 ? 1 : 0;
        shared.last = now;
    }
    barrier<0>();
    if (shared.is_raised != 0) {
        return;
    }
    FTC_ROLL
    for (u32 index = at.thread; index < count; index += at.threads) {
        const Entry copy = tables.copies[u64(first_expert) + index];
        // What another step has taken since is no longer this one's to free.
        if (u32(tables.owner[u64(args.pool.first) + copy.target]) == first_expert + copy.source) {
            free_slot(tables, args.pool, copy.target, FREED);
        }
    }
    if (at.thread == 0) {
        FTC_FIELD(plan, copy_count) = 0;
        report(tables.header, Trouble{WORD_TIMEOUT, args.layer, FTC_FIELD(tables.header, step), 0, 0, args.word_value,
                                      shared.last});
    }
}

}  // namespace ftcache
