// What calls cost: those of every step allocate nothing, wait for nothing, and ask the driver for copies, launches and
// events that are there already; those that only look ask it for nothing.
//
// malloc and its kin are this program's, and count who calls them; what the emulated driver allocates for itself is not
// counted. They stand on names of glibc.

#define _GNU_SOURCE 1

#include <link.h>

#include "cuda_model.h"

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void *memory);

static uintptr_t driver_begin, driver_end;
static uint64_t allocations, frees;

static void count(uint64_t *counter, void *caller) {
    const uintptr_t at = (uintptr_t)caller;
    if (at < driver_begin || at >= driver_end) ++*counter;
}

void *malloc(size_t bytes) {
    count(&allocations, __builtin_return_address(0));
    return __libc_malloc(bytes);
}

void *calloc(size_t number, size_t bytes) {
    count(&allocations, __builtin_return_address(0));
    return __libc_calloc(number, bytes);
}

void *realloc(void *memory, size_t bytes) {
    count(&allocations, __builtin_return_address(0));
    return __libc_realloc(memory, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes) {
    count(&allocations, __builtin_return_address(0));
    return __libc_memalign(alignment, bytes);
}

int posix_memalign(void **memory, size_t alignment, size_t bytes) {
    count(&allocations, __builtin_return_address(0));
    *memory = __libc_memalign(alignment, bytes);
    return *memory == NULL ? 12 : 0;
}

void free(void *memory) {
    if (memory != NULL) count(&frees, __builtin_return_address(0));
    __libc_free(memory);
}

static int find_driver(struct dl_phdr_info *info, size_t bytes, void *path) {
    int i;
    (void)bytes;
    if (strcmp(info->dlpi_name, path) != 0) return 0;
    for (i = 0; i < info->dlpi_phnum; i++) {
        const uintptr_t begin = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
        if (info->dlpi_phdr[i].p_type != PT_LOAD) continue;
        if (driver_begin == 0) driver_begin = begin;
        driver_end = begin + info->dlpi_phdr[i].p_memsz;
    }
    return 1;
}

static emulator emulated;
static cuda driver;

// Calls of the driver that make something, end something or wait.
static const char *const DEAR[] = {
    "cuMemAlloc_v2", "cuMemFree_v2", "cuMemHostAlloc", "cuMemFreeHost", "cuMemHostRegister_v2", "cuMemHostUnregister",
    "cuModuleLoadData", "cuModuleUnload", "cuModuleGetFunction", "cuStreamCreate", "cuStreamCreateWithPriority",
    "cuStreamDestroy_v2", "cuEventCreate", "cuEventDestroy_v2", "cuStreamSynchronize", "cuEventSynchronize",
    "cuCtxSynchronize", "cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2", "cuMemsetD8_v2", "cuMemGetInfo_v2"};

enum { DEAR_COUNT = sizeof DEAR / sizeof DEAR[0] };

typedef struct cost {
    uint64_t allocations, frees, blocking, driver_calls, dear[DEAR_COUNT];
} cost;

static cost cost_now(void) {
    cost now;
    uint32_t i;
    memset(&now, 0, sizeof now);
    now.allocations = allocations;
    now.frees = frees;
    now.blocking = emulated.blocking_calls(0);
    now.driver_calls = emulated.calls(0, NULL);
    for (i = 0; i < DEAR_COUNT; i++) now.dear[i] = emulated.calls(0, DEAR[i]);
    return now;
}

// What a call may do.
enum { NOTHING = 0, ASK_THE_DRIVER = 1, ALLOCATE = 2 };

static void check_cheap(const cost *before, uint32_t may, const char *text, int line) {
    const cost after = cost_now();
    int is_cheap = 1;
    uint32_t i;
    if (!(may & ALLOCATE) && (after.allocations != before->allocations || after.frees != before->frees)) {
        fprintf(stderr, "cuda_calls.c:%d: %s\n  %d allocations, %d frees\n", line, text,
                (int)(after.allocations - before->allocations), (int)(after.frees - before->frees));
        is_cheap = 0;
    }
    if (after.blocking != before->blocking) {
        fprintf(stderr, "cuda_calls.c:%d: %s\n  waited\n", line, text);
        is_cheap = 0;
    }
    if (!(may & ASK_THE_DRIVER) && after.driver_calls != before->driver_calls) {
        fprintf(stderr, "cuda_calls.c:%d: %s\n  %d calls of the driver\n", line, text,
                (int)(after.driver_calls - before->driver_calls));
        is_cheap = 0;
    }
    for (i = 0; i < DEAR_COUNT; i++) {
        if (after.dear[i] == before->dear[i]) continue;
        fprintf(stderr, "cuda_calls.c:%d: %s\n  %s\n", line, text, DEAR[i]);
        is_cheap = 0;
    }
    if (!is_cheap) exit(1);
}

#define CHEAP_BY(call, may)                                                                                            \
    do {                                                                                                               \
        const cost before_it = cost_now();                                                                             \
        OK(call);                                                                                                      \
        check_cheap(&before_it, may, #call, __LINE__);                                                                 \
    } while (0)

// Of every step; only looks; is pure, and may allocate.
#define STEPS(call) CHEAP_BY(call, ASK_THE_DRIVER)
#define LOOKS(call) CHEAP_BY(call, NOTHING)
// As a call of every step that is the first to need some memory.
#define MAKES_ROOM(call) CHEAP_BY(call, ASK_THE_DRIVER | ALLOCATE)

// The counters count: what is known to allocate, to wait and to make something is seen.
static void the_counters_count(void) {
    const ftcache_settings settings = settings_of(12);
    const ftcache_config config = cuda_config(0);
    ftcache_configuration *configuration;
    ftcache *cache;
    cost before = cost_now(), after;
    configuration = configuration_of(&settings);
    after = cost_now();
    CHECK(after.allocations > before.allocations && after.frees > before.frees);
    CHECK(after.driver_calls == before.driver_calls);
    cache = cache_of(configuration, &config);
    before = cost_now();
    CHECK(before.driver_calls > after.driver_calls);
    OK(ftcache_register(cache, host_rows, sizeof host_rows, 0, 0));
    attach_all(cache);
    {
        const int32_t id = 3;
        int32_t slot = -7;
        const ftcache_routes routes = routes_of(&id, 1);
        const ftcache_slots slots = slots_of(&slot);
        OK(load(cache, 1, &routes, &slots));
        before = cost_now();
        OK(ftcache_synchronize(cache));
        after = cost_now();
        CHECK(after.blocking > before.blocking);
    }
    ftcache_free(cache);
    emulator_check_empty(&emulated, 0, 1);
}

// Routes of a step that requests of the configuration can have.
enum { WIDTH = 4 };

// Looks at everything that may be looked at during steps.
static void look_at_all(ftcache *cache, const ftcache_configuration *configuration) {
    SIZED(ftcache_configuration_report, configured);
    SIZED(ftcache_pool_report, pool);
    SIZED(ftcache_slot_range, range);
    SIZED(ftcache_slot_run, run);
    SIZED(ftcache_report, report);
    SIZED(ftcache_layer_report, layer);
    SIZED(ftcache_slot_span, span);
    SIZED(ftcache_stats, stats);
    SIZED(ftcache_hint_stats, hints);
    SIZED(ftcache_chunk_report, chunks);
    uint32_t number = 0;
    uint64_t wide = 0;
    LOOKS(ftcache_configuration_get(configuration, &configured));
    LOOKS(ftcache_configuration_pool_get(configuration, 0, &pool));
    LOOKS(ftcache_configuration_slot_range_get(configuration, 0, 0, &range));
    LOOKS(ftcache_configuration_buffer_run_get(configuration, 0, 0, &run));
    LOOKS(ftcache_configuration_layer_state(configuration, 0, &number));
    LOOKS(ftcache_configuration_layer_pool(configuration, 0, &number));
    LOOKS(ftcache_report_get(cache, &report));
    LOOKS(ftcache_layer_get(cache, 0, &layer));
    if (report.device == FTCACHE_DEVICE_CUDA) {
        LOOKS(ftcache_slot_span_get(cache, 0, 0, &span));
        LOOKS(ftcache_staged_span_get(cache, 0, 0, 0, &span));
    }
    LOOKS(ftcache_hint_stats_get(cache, &hints));
    LOOKS(ftcache_layer_hint_stats_get(cache, 0, &hints));
    LOOKS(ftcache_stats_get(cache, &stats));
    LOOKS(ftcache_layer_stats_get(cache, 0, &stats));
    LOOKS(ftcache_phase_stats_get(cache, 0, FTCACHE_PHASE_DECODE, &stats));
    LOOKS(ftcache_pool_stats_get(cache, 0, &stats));
    LOOKS(ftcache_chunk_total_get(cache, &chunks));
    LOOKS(ftcache_digest(cache, &wide));
    LOOKS(ftcache_generation(cache, &wide));
}

static void plan_looks(ftcache *cache, uint32_t route_count) {
    SIZED(ftcache_plan, plan);
    int32_t map[EXPERTS], experts[EXPERTS];
    float weights[EXPERTS] = {1, 2, 3, 4, 5, 6, 7, 8}, ours[EXPERTS], theirs[EXPERTS];
    LOOKS(ftcache_plan_get(cache, &plan));
    LOOKS(ftcache_plan_map(cache, map, EXPERTS, -1));
    LOOKS(ftcache_plan_cpu_experts(cache, experts, route_count, -1));
    LOOKS(ftcache_plan_split_weights(cache, weights, ours, theirs, route_count));
}

static ftcache_settings staged_settings(void) {
    ftcache_settings settings = settings_of(24);
    settings.request_count = 2;
    settings.staging = FTCACHE_STAGING_BORROWED;
    settings.admission = FTCACHE_ADMISSION_DEVICE;
    return settings;
}

// Plans are told, drafts accepted and steps parted without allocating once there was one as wide.
static void warm_up(ftcache *cache, const ftcache_streams *streams) {
    const int32_t all[EXPERTS] = {0, 1, 2, 3, 4, 5, 6, 7}, apart[] = {0, 2, 4, 6};
    const uint32_t accepted = 3;
    ftcache_routes routes = routes_of(all, EXPERTS);
    ftcache_step what = step_of(1);
    SIZED(ftcache_plan, plan);
    uint32_t parts = 0;
    OK(ftcache_load(cache, &what, &routes, streams, NULL));
    OK(ftcache_plan_get(cache, &plan));
    OK(ftcache_partition(cache, &what, &routes, &parts));
    what.phase = FTCACHE_PHASE_VERIFY;
    OK(ftcache_load(cache, &what, &routes, streams, NULL));
    OK(ftcache_accept(cache, 1, &accepted, 1));
    what.phase = FTCACHE_PHASE_DECODE;
    what.misses = FTCACHE_MISSES_HYBRID;
    what.fetch_rule = FTCACHE_FETCH_RULE_UP_TO;
    OK(ftcache_reset(cache));
    OK(ftcache_load(cache, &what, &routes, streams, NULL));
    OK(ftcache_plan_get(cache, &plan));
    CHECK(plan.left_count == EXPERTS);
    routes = routes_of(apart, 4);
    what.misses = FTCACHE_MISSES_FETCHED;
    what.fetch_rule = FTCACHE_FETCH_RULE_DEFAULT;
    OK(ftcache_load(cache, &what, &routes, streams, NULL));
    OK(ftcache_plan_get(cache, &plan));
    CHECK(plan.run_count == 4);
}

// Loads of decode, of verify with their ending, of prefill, and of hybrid steps, from the first step on; what frees
// slots.
static void steps_of_the_host(void) {
    const ftcache_settings settings = staged_settings();
    ftcache_config config = cuda_config(0);
    const ftcache_streams streams = cuda_streams(&driver, 1);
    ftcache_configuration *configuration = configuration_of(&settings);
    ftcache *cache = NULL;
    dice random = {81};
    uint32_t turn;
    // Verify steps are remembered until they are accepted.
    config.remembered_routes = 2 * WIDTH;
    config.hint_flight_count = 3;
    OK(ftcache_new(configuration, &config, &cache));
    OK(ftcache_register(cache, host_rows, sizeof host_rows, 0, 0));
    attach_all(cache);
    for (turn = 0; turn < 200; turn++) {
        const uint32_t layer = dice_below(&random, LAYERS);
        ftcache_step what = step_of(layer);
        int32_t ids[2 * WIDTH], slot[2 * WIDTH];
        const uint32_t id_count = random_ids(&random, 2, ids);
        const ftcache_routes routes = routes_of(ids, id_count);
        const ftcache_slots slots = slots_of(slot);
        uint32_t parts = 0;
        uint64_t landed = 0;
        if (turn % 4 == 3) what.phase = FTCACHE_PHASE_VERIFY;
        if (turn % 8 == 2) what.phase = FTCACHE_PHASE_PREFILL;
        if (turn % 8 == 6) {
            what.misses = FTCACHE_MISSES_HYBRID;
            what.fetch_rule = FTCACHE_FETCH_RULE_CARRY;
            what.fetch_q16 = 30000;
        }
        if (turn == 40) warm_up(cache, &streams);
        STEPS(ftcache_load(cache, &what, &routes, &streams, &slots));
        if (turn >= 40) plan_looks(cache, id_count);
        if (what.phase == FTCACHE_PHASE_VERIFY && turn >= 40) {
            const uint32_t accepted = (uint32_t)ids[0];
            LOOKS(ftcache_accept(cache, layer, &accepted, 1));
        }
        if (turn % 3 == 1 && turn >= 40) {
            SIZED(ftcache_hint_report, hint);
            STEPS(ftcache_hint(cache, (layer + 1) % LAYERS, &routes, 2 * 42, &hint));
            if (turn % 4 == 1) LOOKS(ftcache_cancel_hint(cache, hint.hint, NULL));
        }
        if (turn % 16 == 9) LOOKS(ftcache_forget(cache, 0, dice_below(&random, 8)));
        if (turn % 64 == 33) LOOKS(ftcache_forget_layer(cache, layer));
        if (turn == 150) LOOKS(ftcache_reset(cache));
        if (turn % 16 == 10 && turn >= 40) {
            what.misses = FTCACHE_MISSES_DEFAULT;
            LOOKS(ftcache_partition(cache, &what, &routes, &parts));
            STEPS(ftcache_load_part(cache, 0, &streams, &slots));
        }
        STEPS(ftcache_land(cache, &landed));
        STEPS(ftcache_check(cache));
        if (turn % 20 == 0) look_at_all(cache, configuration);
        if (turn % 10 == 0) OK(ftcache_synchronize(cache));
    }
    OK(ftcache_synchronize(cache));
    ftcache_free(cache);
    ftcache_configuration_free(configuration);
    cuda_destroy_streams(&driver, &streams);
    emulator_check_empty(&emulated, 0, 1);
}

// Where the engine copies by itself no driver is asked for anything.
static void steps_of_a_planner(void) {
    const ftcache_settings settings = staged_settings();
    ftcache_configuration *configuration = configuration_of(&settings);
    ftcache *cache = NULL;
    dice random = {91};
    uint32_t turn;
    SIZED(ftcache_config, config);
    config.device = FTCACHE_DEVICE_NONE;
    config.remembered_routes = 2 * WIDTH;
    config.hint_flight_count = 3;
    OK(ftcache_new(configuration, &config, &cache));
    for (turn = 0; turn < 200; turn++) {
        const uint32_t layer = dice_below(&random, LAYERS);
        ftcache_step what = step_of(layer);
        int32_t ids[2 * WIDTH], slot[2 * WIDTH];
        const uint32_t id_count = random_ids(&random, 2, ids);
        const ftcache_routes routes = routes_of(ids, id_count);
        const ftcache_slots slots = slots_of(slot);
        if (turn == 40) {
            const int32_t apart[] = {0, 2, 4, 6};
            const ftcache_routes wide = routes_of(apart, 4);
            SIZED(ftcache_plan, plan);
            OK(ftcache_reset(cache));
            OK(ftcache_admit(cache, &what, &wide, NULL));
            OK(ftcache_plan_get(cache, &plan));
            OK(ftcache_commit(cache));
        }
        LOOKS(ftcache_admit(cache, &what, &routes, &slots));
        if (turn >= 40) plan_looks(cache, id_count);
        if (turn % 7 == 0) {
            LOOKS(ftcache_abort(cache));
        } else {
            LOOKS(ftcache_commit(cache));
        }
        if (turn % 3 == 1 && turn >= 40) {
            SIZED(ftcache_hint_report, hint);
            LOOKS(ftcache_admit_hint(cache, (layer + 1) % LAYERS, &routes, 2 * 42, &hint));
            LOOKS(ftcache_commit(cache));
            if (turn % 4 != 0) LOOKS(ftcache_land_flight(cache, hint.hint, NULL));
        }
        if (turn % 50 == 0) look_at_all(cache, configuration);
    }
    ftcache_free(cache);
    ftcache_configuration_free(configuration);
}

// Whole layers, staged one after the other: from the first chunk on.
static void chunks_of_the_host(void) {
    const ftcache_settings settings = staged_settings();
    const ftcache_config config = cuda_config(0);
    const ftcache_streams streams = cuda_streams(&driver, 1);
    ftcache_configuration *configuration = configuration_of(&settings);
    ftcache *cache = NULL;
    uint32_t turn, layer;
    SIZED(ftcache_chunk_report, report);
    OK(ftcache_new(configuration, &config, &cache));
    OK(ftcache_register(cache, host_rows, sizeof host_rows, 0, 0));
    attach_all(cache);
    for (turn = 0; turn < 6; turn++) {
        STEPS(ftcache_chunk_begin(cache, &streams));
        for (layer = 0; layer < LAYERS; layer++) {
            uint32_t buffer = 9;
            if (turn % 2 == 0) {
                STEPS(ftcache_chunk_prefetch(cache, layer));
            } else {
                STEPS(ftcache_chunk_materialize(cache, layer));
            }
            STEPS(ftcache_chunk_wait(cache, layer, &buffer));
            look_at_all(cache, configuration);
            STEPS(ftcache_chunk_release(cache, layer));
            if (turn == 5) break;
        }
        if (turn == 5) {
            STEPS(ftcache_chunk_abandon(cache, &report));
        } else {
            STEPS(ftcache_chunk_end(cache, &report));
        }
        OK(ftcache_synchronize(cache));
    }
    ftcache_free(cache);
    ftcache_configuration_free(configuration);
    cuda_destroy_streams(&driver, &streams);
    emulator_check_empty(&emulated, 0, 1);
}

typedef struct buffers {
    int32_t ids[LAYERS][WIDTH];
} buffers;

// Everything that device mode enqueues, and all that may be looked at meanwhile, inside a capture or outside of one.
static void enqueue_all(ftcache *cache, const ftcache_configuration *configuration, void *stream, buffers *there,
                        const uint32_t *word) {
    uint32_t layer;
    for (layer = 0; layer < LAYERS; layer++) {
        const ftcache_step what = step_of(layer);
        SIZED(ftcache_device_step, step);
        step.step = &what;
        step.ids.address = there->ids[layer];
        step.row_count = 1;
        step.row_width = WIDTH;
        step.absent_slot = step.cpu_slot = step.cpu_none = -1;
        STEPS(ftcache_device_admit(cache, stream, &step));
        if (layer == 1) {
            STEPS(ftcache_device_gather_after(cache, stream, layer, word, 1));
        } else {
            STEPS(ftcache_device_gather(cache, stream, layer));
        }
    }
    STEPS(ftcache_device_chunk_begin(cache, stream));
    STEPS(ftcache_device_chunk_stage(cache, stream, 0, 0));
    STEPS(ftcache_device_chunk_materialize(cache, stream, 1, 0));
    STEPS(ftcache_device_chunk_end(cache, stream));
    STEPS(ftcache_device_reset(cache, stream));
    STEPS(ftcache_device_reading_request(cache, stream));
    look_at_all(cache, configuration);
}

static void steps_of_the_device(void) {
    const ftcache_settings settings = staged_settings();
    const ftcache_config config = cuda_config(0);
    void *stream = cuda_stream(&driver), *graph;
    buffers *there = cuda_allocate(&driver, sizeof(buffers));
    uint32_t *word = aligned_alloc(4096, 4096);
    ftcache_configuration *configuration = configuration_of(&settings);
    ftcache *cache = NULL;
    dice random = {95};
    uint32_t turn, layer, i, is_there = 0;
    SIZED(ftcache_device_reading, reading);
    SIZED(ftcache_stats, stats);
    CHECK(word != NULL);
    *word = 1;
    cuda_pin(&driver, word, 4096);
    OK(ftcache_new(configuration, &config, &cache));
    OK(ftcache_register(cache, host_rows, sizeof host_rows, 0, 0));
    attach_all(cache);
    OK(ftcache_device_enter(cache, NULL));
    // Also at the first time: entering has loaded the kernels.
    cuda_begin_capture(&driver, stream);
    enqueue_all(cache, configuration, stream, there, word);
    graph = cuda_end_capture(&driver, stream);
    for (turn = 0; turn < 10; turn++) {
        buffers here;
        for (layer = 0; layer < LAYERS; layer++) {
            for (i = 0; i < WIDTH; i++) here.ids[layer][i] = (int32_t)dice_below(&random, EXPERTS);
        }
        cuda_write(&driver, stream, there, &here, sizeof here);
        if (turn % 2 == 0) {
            cuda_launch(&driver, graph, stream);
        } else {
            enqueue_all(cache, configuration, stream, there, word);
        }
        // Before the stream is there, and once it is.
        STEPS(ftcache_check(cache));
        if (turn == 0) MAKES_ROOM(ftcache_device_reading_get(cache, &reading));
        else STEPS(ftcache_device_reading_get(cache, &reading));
        cuda_synchronize(&driver, stream);
        STEPS(ftcache_check(cache));
        STEPS(ftcache_device_reading_get(cache, &reading));
        STEPS(ftcache_device_phase_stats_get(cache, 1, FTCACHE_PHASE_DECODE, &is_there, &stats));
        CHECK(reading.is_there == 1 && reading.step == 3 * (turn + 1) && is_there == 1 && stats.steps == turn + 1);
    }
    OK(ftcache_device_leave(cache));
    cuda_destroy_graph(&driver, graph);
    ftcache_free(cache);
    ftcache_configuration_free(configuration);
    cuda_unpin(&driver, word);
    free(word);
    CUDA(driver.free_memory((cuda_address)(uintptr_t)there));
    CUDA(driver.stream_destroy(stream));
    emulator_check_empty(&emulated, 0, 1);
}

// Names that the driver does not count would be 0 for ever.
static void dear_calls_were_made(void) {
    const char *const made[] = {"cuMemAlloc_v2", "cuMemFree_v2", "cuMemHostRegister_v2", "cuMemHostUnregister",
                                "cuModuleLoadData", "cuModuleUnload", "cuModuleGetFunction", "cuStreamCreate",
                                "cuEventCreate", "cuEventDestroy_v2", "cuStreamSynchronize"};
    uint32_t i;
    for (i = 0; i < sizeof made / sizeof made[0]; i++) CHECK(emulated.calls(0, made[i]) > 0);
}

int main(void) {
    emulated = emulator_open();
    CHECK(dl_iterate_phdr(find_driver, (void *)(uintptr_t)cuda_path()) == 1);
    driver = cuda_open();
    the_counters_count();
    steps_of_the_host();
    steps_of_a_planner();
    chunks_of_the_host();
    steps_of_the_device();
    dear_calls_were_made();
    cuda_close(&driver, NULL, NULL);
    return 0;
}
