// One handle takes one thread at a time and turns a second one away; errors are each thread's.

#include <atomic>
#include <thread>

#include "check.h"

namespace {

// Outlives the message of the main thread; a call from here must come back.
struct LastCall {
    ~LastCall() {
        if (ftcache_stats_reset(nullptr) != FTCACHE_STATUS_INVALID_ARGUMENT) abort();
        char text[8] = "unset";
        if (ftcache_last_error() == nullptr || ftcache_last_error_copy(text, sizeof text) == 0) abort();
    }
} last_call;

void drive(ftcache *cache, uint32_t seed, std::atomic<uint64_t> &busy) {
    for (uint32_t step = 0; step < 3000; step++) {
        const uint32_t layer = step % LAYERS;
        const int32_t ids[] = {int32_t((seed + step * 3) % EXPERTS), int32_t((seed + step * 5 + 1) % EXPERTS)};
        int32_t slot[2] = {-7, -7};
        const ftcache_routes routes = routes_of(ids, 2);
        const ftcache_slots slots = slots_of(slot);
        const ftcache_status status = load(cache, layer, &routes, &slots);
        if (status == FTCACHE_STATUS_BUSY) {
            CHECK(slot[0] == -7);
            CHECK(strcmp(ftcache_last_error(), "another call is inside this handle") == 0);
            busy++;
            continue;
        }
        CHECK(status == FTCACHE_STATUS_OK);
    }
}

}  // namespace

int main() {
    // One handle, two threads: every step is done or turned away, none is lost.
    {
        ftcache *cache = new_cache(8);
        std::atomic<uint64_t> busy{0};
        std::thread first([&] { drive(cache, 1, busy); });
        std::thread second([&] { drive(cache, 2, busy); });
        first.join();
        second.join();
        CHECK(stats_of(cache).steps + busy == 6000);
        ftcache_free(cache);
    }
    // An error is seen by the thread that made it alone.
    CHECK(ftcache_stats_reset(nullptr) == FTCACHE_STATUS_INVALID_ARGUMENT);
    std::thread([] { CHECK(strcmp(ftcache_last_error(), "") == 0); }).join();
    CHECK(strcmp(ftcache_last_error(), "cache is NULL") == 0);
    return 0;
}
