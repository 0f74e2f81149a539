// Every kernel by its name and arguments. `ftcache_NAME` is in `kernels/NAME.cu`; the build script reads this list
// too, so each stands on a line of its own.
#pragma once

#define FTC_KERNELS(X)                                    \
    X(ftcache_admit, Admission)                           \
    X(ftcache_admit_hybrid, HybridAdmission)              \
    X(ftcache_admit_scored, ScoredAdmission)              \
    X(ftcache_admit_hybrid_scored, ScoredHybridAdmission) \
    X(ftcache_await, Await)                               \
    X(ftcache_gather_rows, Gather)                        \
    X(ftcache_gather_slots, Gather)                       \
    X(ftcache_compact_hits, CompactHits)                  \
    X(ftcache_invalidate, Invalidate)                     \
    X(ftcache_materialize, Materialize)                   \
    X(ftcache_zero, Zero)                                 \
    X(ftcache_reset, Reset)                               \
    X(ftcache_statistics, Statistics)

// Kernels that test what runs kernels, in self_test.cu.
#define FTC_SELF_TESTS(X)                 \
    X(emu_test_sum, emu_test::Numbers)    \
    X(emu_test_touch, emu_test::OneTouch) \
    X(emu_test_meet, emu_test::Meeting)   \
    X(emu_test_warp, emu_test::Numbers)   \
    X(emu_test_race, emu_test::Meeting)   \
    X(emu_test_poison, emu_test::Numbers) \
    X(emu_test_order, emu_test::Numbers)  \
    X(emu_test_wait, emu_test::Numbers)   \
    X(emu_test_speed, emu_test::Numbers)
