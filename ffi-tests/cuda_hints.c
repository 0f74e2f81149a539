// Hints on CUDA: their copies go beside the kernels of the step before, whatever the order in which streams go on, and
// every kernel reads the rows that its step was promised.

#include "cuda_model.h"

enum { TURNS = 60, SEEDS = 24, SEEN_ROW = 64, SEEN_STEP = 2 * BANKS * SEEN_ROW };

static emulator emulated;
static cuda driver;
static int (*to_host_later)(void *, cuda_address, size_t, void *);

// Pinned memory to which the engine's kernels bring what they read, a place for each step of a run.
static unsigned char *seen;
enum { SEEN_BYTES = TURNS * SEEN_STEP };

// In the place of a kernel: reads two slots on the compute stream, whenever that comes to it.
static void read_later(ftcache *cache, uint32_t layer, const int32_t *slot, void *stream, unsigned char *target) {
    uint32_t i, bank;
    for (i = 0; i < 2; i++) {
        for (bank = 0; bank < BANKS; bank++, target += SEEN_ROW) {
            const ftcache_slot_span span = span_of(cache, pool_of(layer), bank);
            const unsigned char *row = (unsigned char *)span.address + (uint64_t)slot[i] * span.stride;
            CUDA(to_host_later(target, (cuda_address)(uintptr_t)row, span.row_bytes, stream));
        }
    }
}

static void check_seen(uint32_t layer, const int32_t *ids, const unsigned char *row) {
    uint32_t i, bank;
    uint64_t at;
    for (i = 0; i < 2; i++) {
        for (bank = 0; bank < BANKS; bank++, row += SEEN_ROW) {
            for (at = 0; at < row_bytes_of(layer, bank); at++) {
                CHECK(row[at] == byte_of(layer, bank, (uint32_t)ids[i], at));
            }
        }
    }
}

static ftcache_hint_stats hints_of(ftcache *cache) {
    SIZED(ftcache_hint_stats, stats);
    OK(ftcache_hint_stats_get(cache, &stats));
    return stats;
}

static ftcache *hinting(uint64_t slot_count, uint32_t flight_count) {
    ftcache_settings settings = settings_of(slot_count);
    ftcache_config config = cuda_config(0);
    ftcache *cache;
    config.hint_flight_count = flight_count;
    settings.admission = FTCACHE_ADMISSION_DEVICE;
    cache = cache_of(configuration_of(&settings), &config);
    OK(ftcache_register(cache, host_rows, sizeof host_rows, 0, 0));
    attach_all(cache);
    return cache;
}

// Steps of two experts with hints between them and their kernels; what is hinted comes true two times in three.
static ftcache_hint_stats kernels_read_what_was_promised(uint64_t seed) {
    const ftcache_streams streams = cuda_streams(&driver, (int)(seed % 2));
    ftcache *cache = hinting(8, 3);
    ftcache_hint_stats stats;
    dice random = {seed + 17};
    uint32_t layers[TURNS], turn, next = 0;
    int32_t ids[TURNS][2], wanted[2] = {0, 1};
    emulated.set_seed(0, seed);
    memset(seen, 0, SEEN_BYTES);
    for (turn = 0; turn < TURNS; turn++) {
        const ftcache_step what = step_of(next);
        ftcache_routes routes;
        int32_t slot[2], predicted[2];
        const ftcache_slots slots = slots_of(slot);
        SIZED(ftcache_hint_report, report);
        layers[turn] = next;
        memcpy(ids[turn], wanted, sizeof wanted);
        routes = routes_of(ids[turn], 2);
        OK(ftcache_load(cache, &what, &routes, &streams, &slots));
        next = dice_below(&random, LAYERS);
        predicted[0] = (int32_t)dice_below(&random, EXPERTS);
        predicted[1] = (int32_t)dice_below(&random, EXPERTS);
        routes = routes_of(predicted, 2);
        OK(ftcache_hint(cache, next, &routes, dice_below(&random, 3) * 42, &report));
        CHECK(report.present + report.started + report.over_budget + report.no_slot + report.held_back == 2);
        if (dice_below(&random, 8) == 0) OK(ftcache_cancel_hint(cache, report.hint, NULL));
        wanted[0] = predicted[0];
        wanted[1] = dice_below(&random, 3) ? predicted[1] : (int32_t)dice_below(&random, EXPERTS);
        if (dice_below(&random, 4) == 0) next = dice_below(&random, LAYERS);
        read_later(cache, layers[turn], slot, streams.compute, seen + turn * SEEN_STEP);
        if (dice_below(&random, 6) == 0) cuda_synchronize(&driver, streams.compute);
    }
    OK(ftcache_synchronize(cache));
    for (turn = 0; turn < TURNS; turn++) check_seen(layers[turn], ids[turn], seen + turn * SEEN_STEP);
    stats = hints_of(cache);
    CHECK(stats.started == stats.useful + stats.late + stats.wasted + stats.open);
    CHECK(stats_of(cache).hits + stats_of(cache).misses == stats_of(cache).distinct);
    ftcache_free(cache);
    cuda_destroy_streams(&driver, &streams);
    cuda_unpin(&driver, seen);
    emulator_check_empty(&emulated, 0, 1);
    cuda_pin(&driver, seen, SEEN_BYTES);
    return stats;
}

// No more than so many on their way, which is said.
static void flights_are_counted(void) {
    const int32_t ids[] = {4, 5, 6};
    const ftcache_routes routes = routes_of(ids, 3);
    ftcache *cache = hinting(24, 1);
    SIZED(ftcache_hint_report, report);
    emulated.set_seed(0, 3);
    OK(ftcache_hint(cache, 0, &routes, 26, &report));
    CHECK(report.started == 1 && report.over_budget == 2 && report.held_back == 0);
    OK(ftcache_hint(cache, 0, &routes, 26, &report));
    CHECK(report.started == 0 && report.present == 1 && report.held_back == 1 && report.over_budget == 1);
    OK(ftcache_synchronize(cache));
    OK(ftcache_hint(cache, 0, &routes, 26, &report));
    CHECK(report.started == 1 && report.present == 1 && report.over_budget == 1);
    ftcache_free(cache);
}

// Where kernels decide there are no hints, and those that are open end; a capture is not joined.
static void hints_stay_out_of_graphs(void) {
    static const char *const on_device = "the residency is on the device: leave device mode first";
    const int32_t ids[] = {4, 5};
    const ftcache_routes routes = routes_of(ids, 2);
    const ftcache_step step = step_of(0);
    const ftcache_streams streams = cuda_streams(&driver, 0);
    ftcache *cache = hinting(24, 2);
    SIZED(ftcache_hint_report, report);
    int32_t slot[2];
    const ftcache_slots slots = slots_of(slot);
    void *graph;
    OK(ftcache_load(cache, &step, &routes, &streams, &slots));
    cuda_begin_capture(&driver, streams.compute);
    CHECK(ftcache_hint(cache, 1, &routes, 1000, &report) == FTCACHE_STATUS_OUT_OF_ORDER);
    graph = cuda_end_capture(&driver, streams.compute);
    cuda_destroy_graph(&driver, graph);
    CHECK(hints_of(cache).started == 0);
    OK(ftcache_hint(cache, 1, &routes, 42, &report));
    CHECK(report.started == 1 && hints_of(cache).open == 1);
    OK(ftcache_device_enter(cache, NULL));
    CHECK(hints_of(cache).open == 0 && hints_of(cache).wasted == 1);
    REFUSED(ftcache_hint(cache, 1, &routes, 1000, &report), OUT_OF_ORDER, on_device);
    REFUSED(ftcache_cancel_hint(cache, 0, NULL), OUT_OF_ORDER, on_device);
    OK(ftcache_device_leave(cache));
    OK(ftcache_hint(cache, 1, &routes, 1000, &report));
    CHECK(report.present == 1 && report.started == 1);
    ftcache_free(cache);
    cuda_destroy_streams(&driver, &streams);
}

int main(void) {
    ftcache_hint_stats all, one;
    uint64_t seed;
    emulated = emulator_open();
    driver = cuda_open();
    cuda_symbol(&driver, "cuMemcpyDtoHAsync_v2", &to_host_later);
    seen = aligned_alloc(4096, (SEEN_BYTES + 4095) / 4096 * 4096);
    CHECK(seen != NULL);
    cuda_pin(&driver, seen, SEEN_BYTES);
    memset(&all, 0, sizeof all);
    for (seed = 0; seed < SEEDS; seed++) {
        one = kernels_read_what_was_promised(seed);
        all.useful += one.useful;
        all.late += one.late;
        all.wasted += one.wasted;
    }
    CHECK(all.useful > 0 && all.late > 0 && all.wasted > 0);
    flights_are_counted();
    hints_stay_out_of_graphs();
    cuda_unpin(&driver, seen);
    free(seen);
    emulator_check_empty(&emulated, 0, 1);
    cuda_close(&driver, NULL, NULL);
    return 0;
}
