// What tests of planner mode share: steps by their ids, and answers and copies as they should be.

#ifndef FFI_TESTS_PLANNING_H
#define FFI_TESTS_PLANNING_H

#include "check.h"

// The slots of the last step; -1 is absent, -2 the CPU's.
static int32_t answer[128];

#define ANSWER(...) (memcmp(answer, (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__})) == 0)

static inline ftcache_status admit(ftcache *cache, const ftcache_step *step, ftcache_routes routes) {
    ftcache_slots slots = slots_of(answer);
    slots.cpu_slot = -2;
    return ftcache_admit(cache, step, &routes, &slots);
}

// A decode step that goes well.
static inline void decode(ftcache *cache, uint32_t layer, ftcache_routes routes) {
    const ftcache_step step = step_of(layer);
    OK(admit(cache, &step, routes));
    OK(ftcache_commit(cache));
}

static inline int copies_are(ftcache *cache, const ftcache_copy *copies, uint64_t count) {
    const ftcache_plan plan = plan_of(cache);
    return plan.copy_count == count && memcmp(plan.copies, copies, count * sizeof *copies) == 0;
}

#define COPIES(cache, ...)                                                                                             \
    copies_are(cache, (const ftcache_copy[]){__VA_ARGS__}, COUNT(ftcache_copy, __VA_ARGS__))

#endif
