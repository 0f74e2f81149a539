// Handles are independent: two threads with a handle each, as if either were alone. It also runs under helgrind and DRD,
// which see any state that the two would share.

#include <thread>
#include <vector>

#include "check.h"

int main() {
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        for (uint32_t bank = 0; bank < BANKS; bank++) fill_rows(layer, bank);
    }
    std::vector<std::thread> threads;
    for (uint32_t thread = 0; thread < 2; thread++) {
        threads.emplace_back([thread] {
            ftcache *cache = cache_of(new_configuration(8), nullptr);
            for (uint32_t layer = 0; layer < LAYERS; layer++) {
                for (uint32_t bank = 0; bank < BANKS; bank++) {
                    SIZED(ftcache_host_rows, rows);
                    rows.base = host_rows[layer][bank];
                    rows.bytes = sizeof host_rows[layer][bank];
                    rows.stride = HOST_STRIDE;
                    OK(ftcache_attach(cache, layer, bank, &rows));
                }
            }
            for (uint32_t step = 0; step < 1000; step++) {
                const uint32_t layer = step % LAYERS;
                const int32_t ids[] = {int32_t((thread + step * 3) % EXPERTS), int32_t((thread + step * 5 + 1) % EXPERTS)};
                int32_t slot[2] = {-7, -7};
                const ftcache_routes routes = routes_of(ids, 2);
                const ftcache_slots slots = slots_of(slot);
                OK(load(cache, layer, &routes, &slots));
                CHECK(slot_holds(cache, layer, slot[0], uint32_t(ids[0])) && slot_holds(cache, layer, slot[1], uint32_t(ids[1])));
                // What is refused has its message on this thread alone.
                CHECK(ftcache_forget(cache, 7, 0) == FTCACHE_STATUS_OUT_OF_RANGE);
                CHECK(strcmp(ftcache_last_error(), "no pool 7: the cache has 2 pools") == 0);
            }
            CHECK(stats_of(cache).steps == 1000);
            ftcache_free(cache);
        });
    }
    for (std::thread &thread : threads) thread.join();
    return 0;
}
