// Device mode, as include/ftcache.h shows it: admission and gather inside a captured graph.

#include "examples.h"
#include "cuda_driver.h"

// example: device
// Enqueues one layer's step on a stream that may be being captured. ids is device memory: token_count rows of
// top_k ids, which become slots.
ftcache_status captured_step(ftcache *cache, void *stream, uint32_t layer, int32_t *ids, uint64_t token_count,
                             uint32_t top_k) {
    ftcache_step what = {0};
    ftcache_device_step step = {0};
    ftcache_status status;
    what.struct_size = sizeof what;
    what.layer = layer;
    step.struct_size = sizeof step;
    step.step = &what;
    step.ids.address = ids;
    step.row_count = token_count;
    step.row_width = top_k;
    step.absent_slot = step.cpu_slot = -1;
    step.cpu_none = -1;
    status = ftcache_device_admit(cache, stream, &step);
    if (status != FTCACHE_STATUS_OK) return status;
    return ftcache_device_gather(cache, stream, layer);
}
// end

int main(void) {
    cuda driver = cuda_open();
    void *stream = cuda_stream(&driver), *graph;
    ftcache *cache = example_cuda_cache(16);
    int32_t *ids = cuda_allocate(&driver, 4 * sizeof(int32_t));
    int32_t replay;
    OK(ftcache_device_enter(cache, NULL));
    cuda_begin_capture(&driver, stream);
    OK(captured_step(cache, stream, 1, ids, 2, 2));
    graph = cuda_end_capture(&driver, stream);
    for (replay = 0; replay < 3; replay++) {
        const int32_t routes[] = {(3 + replay) % EXAMPLE_EXPERTS, 1, replay, 0};
        int32_t slots[4], i;
        cuda_write(&driver, stream, ids, routes, sizeof routes);
        cuda_launch(&driver, graph, stream);
        cuda_synchronize(&driver, stream);
        OK(ftcache_check(cache));
        cuda_read(&driver, slots, ids, sizeof slots);
        for (i = 0; i < 4; i++) {
            unsigned char row[EXAMPLE_ROW];
            cuda_read(&driver, row, example_slot(cache, 1, slots[i]), sizeof row);
            CHECK(memcmp(row, example_row(1, (uint32_t)routes[i]), sizeof row) == 0);
        }
    }
    OK(ftcache_device_leave(cache));
    {
        ftcache_stats stats = {0};
        stats.struct_size = sizeof stats;
        OK(ftcache_stats_get(cache, &stats));
        CHECK(stats.steps == 3 && stats.misses == 6 && stats.bytes == 6 * EXAMPLE_ROW);
    }
    cuda_destroy_graph(&driver, graph);
    ftcache_free(cache);
    cuda_close(&driver, stream, ids);
    return 0;
}
