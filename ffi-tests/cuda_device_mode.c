// Device mode: admission and gather as launches, in captured graphs and outside, decide what loads decide, to the slot
// and to the digest; and what a launch is refused for is told at the next look.

#include "cuda_model.h"

enum { WIDTH = 4, SLOTS = 12 };

static emulator emulated;
static cuda driver;
// The rule by which every cache here chooses victims.
static ftcache_eviction eviction;

static ftcache_settings device_settings(uint64_t slot_count) {
    ftcache_settings settings = settings_of(slot_count);
    settings.request_count = 2;
    settings.admission = FTCACHE_ADMISSION_DEVICE;
    settings.eviction = eviction;
    return settings;
}

// In host mode, every row pinned and attached.
static ftcache *new_device_cache(void) {
    const ftcache_settings settings = device_settings(SLOTS);
    const ftcache_config config = cuda_config(0);
    ftcache *cache = cache_of(configuration_of(&settings), &config);
    OK(ftcache_register(cache, host_rows, sizeof host_rows, 0, 0));
    attach_all(cache);
    return cache;
}

// The same configuration in ordinary memory.
static ftcache *new_twin(void) {
    const ftcache_settings settings = device_settings(SLOTS);
    ftcache *cache = cache_of(configuration_of(&settings), NULL);
    attach_all(cache);
    return cache;
}

// Of few threads, which the emulated device runs one by one; 0 blocks are the default.
static void enter(ftcache *cache, uint32_t gather_blocks) {
    SIZED(ftcache_device_options, options);
    options.gather_blocks = gather_blocks;
    options.admission_threads = gather_blocks == 0 ? 0 : 64;
    OK(ftcache_device_enter(cache, &options));
}

// What the device's residency comes to, once the stream is there.
static ftcache_device_reading reading_of(ftcache *cache, void *stream) {
    SIZED(ftcache_device_reading, reading);
    OK(ftcache_device_reading_request(cache, stream));
    cuda_synchronize(&driver, stream);
    OK(ftcache_device_reading_get(cache, &reading));
    CHECK(reading.is_there == 1);
    return reading;
}

// One row of WIDTH ids of 32 bits, in place of which slots are written.
static ftcache_device_step device_step_of(const ftcache_step *what, void *ids) {
    SIZED(ftcache_device_step, step);
    step.step = what;
    step.ids.address = ids;
    step.row_count = 1;
    step.row_width = WIDTH;
    step.absent_slot = step.cpu_slot = step.cpu_none = -1;
    return step;
}

static void enqueue(ftcache *cache, void *stream, uint32_t layer, void *ids) {
    const ftcache_step what = step_of(layer);
    const ftcache_device_step step = device_step_of(&what, ids);
    OK(ftcache_device_admit(cache, stream, &step));
    OK(ftcache_device_gather(cache, stream, layer));
}

// A token walks all layers: WIDTH ids for each.
typedef struct token {
    int32_t ids[LAYERS][WIDTH];
} token;

static token random_token(dice *random) {
    token made;
    uint32_t layer, i;
    for (layer = 0; layer < LAYERS; layer++) {
        for (i = 0; i < WIDTH; i++) {
            const uint32_t first = dice_below(random, EXPERTS), second = dice_below(random, EXPERTS);
            made.ids[layer][i] = (int32_t)(first < second ? first : second);
        }
    }
    return made;
}

static token load_token(ftcache *cache, const token *routed, const ftcache_streams *streams) {
    token answer;
    uint32_t layer;
    for (layer = 0; layer < LAYERS; layer++) {
        const ftcache_step what = step_of(layer);
        const ftcache_routes routes = routes_of(routed->ids[layer], WIDTH);
        const ftcache_slots slots = slots_of(answer.ids[layer]);
        OK(ftcache_load(cache, &what, &routes, streams, &slots));
    }
    return answer;
}

// Layer 2 may have taken slots of layer 0, which is of the same pool.
static void check_token(ftcache *cache, const token *routed, const token *slots) {
    uint32_t layer, i;
    for (layer = 1; layer < LAYERS; layer++) {
        for (i = 0; i < WIDTH; i++) {
            check_slot(&driver, cache, layer, slots->ids[layer][i], (uint32_t)routed->ids[layer][i]);
        }
    }
}

static void *capture_token(ftcache *cache, void *stream, token *there) {
    uint32_t layer;
    cuda_begin_capture(&driver, stream);
    for (layer = 0; layer < LAYERS; layer++) enqueue(cache, stream, layer, there->ids[layer]);
    return cuda_end_capture(&driver, stream);
}

// The answer of a graph's replay, or of the same launches outside of one.
static token run_token(ftcache *cache, void *stream, void *graph, token *there, const token *routed) {
    token slots;
    cuda_write(&driver, stream, there, routed, sizeof *routed);
    if (graph != NULL) {
        cuda_launch(&driver, graph, stream);
    } else {
        uint32_t layer;
        for (layer = 0; layer < LAYERS; layer++) enqueue(cache, stream, layer, there->ids[layer]);
    }
    cuda_synchronize(&driver, stream);
    cuda_read(&driver, &slots, there, sizeof slots);
    return slots;
}

static void check_stats_equal(ftcache *cache, ftcache *twin) {
    const ftcache_stats stats = stats_of(cache), wanted = stats_of(twin);
    CHECK(memcmp(&stats, &wanted, sizeof stats) == 0);
}

// One graph for all tokens, launched with new routes in the same buffer; the twin loads the same ones. Every so often
// the residency comes to the host and goes back, and the graph stays good.
static void replays_equal_loads(void) {
    const ftcache_settings draft = device_settings(8);
    const ftcache_config config = cuda_config(0);
    uint64_t seed;
    for (seed = 1; seed <= 3; seed++) {
        void *stream = cuda_stream(&driver), *graph;
        const ftcache_streams streams = {sizeof streams, 0, stream, NULL};
        token *there = cuda_allocate(&driver, sizeof(token));
        ftcache *cache = new_device_cache(), *twin = new_twin();
        const uint32_t blocks = seed == 1 ? 0 : (uint32_t)seed;
        const uint32_t rounds = seed == 1 ? 1 : 5;
        dice random = {seed};
        uint32_t round, replay;
        emulated.set_seed(0, seed);
        enter(cache, blocks);
        graph = capture_token(cache, stream, there);
        for (round = 0; round < rounds; round++) {
            for (replay = 0; replay < 20; replay++) {
                const token routed = random_token(&random), wanted = load_token(twin, &routed, NULL);
                const token slots = run_token(cache, stream, replay % 7 == 3 ? NULL : graph, there, &routed);
                CHECK(memcmp(&slots, &wanted, sizeof slots) == 0);
                check_token(cache, &routed, &slots);
                OK(ftcache_check(cache));
            }
            {
                const ftcache_device_reading reading = reading_of(cache, stream);
                SIZED(ftcache_report, report);
                OK(ftcache_report_get(twin, &report));
                CHECK(reading.digest == digest_of(twin) && reading.resident_count == report.resident_count);
                CHECK(reading.step == report.step);
                OK(ftcache_report_get(cache, &report));
                CHECK(report.is_in_device_mode == 1);
            }
            // Another handle on the device comes and goes, and with it its kernels.
            {
                ftcache *other = cache_of(configuration_of(&draft), &config);
                attach_all(other);
                enter(other, 2);
                ftcache_free(other);
            }
            OK(ftcache_device_leave(cache));
            CHECK(digest_of(cache) == digest_of(twin));
            check_stats_equal(cache, twin);
            for (replay = 0; replay < 4; replay++) {
                const token routed = random_token(&random), wanted = load_token(twin, &routed, NULL);
                const token slots = load_token(cache, &routed, &streams);
                CHECK(memcmp(&slots, &wanted, sizeof slots) == 0);
                cuda_synchronize(&driver, stream);
                check_token(cache, &routed, &slots);
            }
            check_stats_equal(cache, twin);
            enter(cache, blocks);
        }
        OK(ftcache_device_leave(cache));
        CHECK(digest_of(cache) == digest_of(twin));
        cuda_destroy_graph(&driver, graph);
        ftcache_free(cache);
        ftcache_free(twin);
        CUDA(driver.free_memory((cuda_address)(uintptr_t)there));
        CUDA(driver.stream_destroy(stream));
        emulator_check_empty(&emulated, 0, 1);
    }
}

// Inside the capture the gather forks to a second stream and joins before the layer's kernels.
static void a_fork_and_a_join(void) {
    int (*event_create)(void **, unsigned), (*event_destroy)(void *), (*record)(void *, void *);
    int (*wait)(void *, void *, unsigned);
    void *stream = cuda_stream(&driver), *side = cuda_stream(&driver), *graph, *admitted[LAYERS], *gathered[LAYERS];
    token *there = cuda_allocate(&driver, sizeof(token));
    ftcache *cache = new_device_cache(), *twin = new_twin();
    dice random = {31};
    uint32_t layer, replay;
    cuda_symbol(&driver, "cuEventCreate", &event_create);
    cuda_symbol(&driver, "cuEventDestroy_v2", &event_destroy);
    cuda_symbol(&driver, "cuEventRecord", &record);
    cuda_symbol(&driver, "cuStreamWaitEvent", &wait);
    for (layer = 0; layer < LAYERS; layer++) {
        CUDA(event_create(&admitted[layer], 2));
        CUDA(event_create(&gathered[layer], 2));
    }
    enter(cache, 2);
    cuda_begin_capture(&driver, stream);
    for (layer = 0; layer < LAYERS; layer++) {
        const ftcache_step what = step_of(layer);
        const ftcache_device_step step = device_step_of(&what, there->ids[layer]);
        OK(ftcache_device_admit(cache, stream, &step));
        CUDA(record(admitted[layer], stream));
        CUDA(wait(side, admitted[layer], 0));
        OK(ftcache_device_gather(cache, side, layer));
        CUDA(record(gathered[layer], side));
        // What else the engine does for the layer would lie here.
        CUDA(wait(stream, gathered[layer], 0));
    }
    graph = cuda_end_capture(&driver, stream);
    for (replay = 0; replay < 40; replay++) {
        const token routed = random_token(&random), wanted = load_token(twin, &routed, NULL);
        token slots;
        emulated.set_seed(0, replay);
        slots = run_token(cache, stream, graph, there, &routed);
        CHECK(memcmp(&slots, &wanted, sizeof slots) == 0);
        check_token(cache, &routed, &slots);
    }
    OK(ftcache_check(cache));
    OK(ftcache_device_leave(cache));
    CHECK(digest_of(cache) == digest_of(twin));
    cuda_destroy_graph(&driver, graph);
    for (layer = 0; layer < LAYERS; layer++) {
        CUDA(event_destroy(admitted[layer]));
        CUDA(event_destroy(gathered[layer]));
    }
    ftcache_free(cache);
    ftcache_free(twin);
    CUDA(driver.free_memory((cuda_address)(uintptr_t)there));
    CUDA(driver.stream_destroy(stream));
    CUDA(driver.stream_destroy(side));
    emulator_check_empty(&emulated, 0, 1);
}

static void check_nobody(const int32_t *slots, uint32_t count) {
    uint32_t i;
    for (i = 0; i < count; i++) CHECK(slots[i] == -1);
}

// A step that cannot be admitted: -1 for every route, the residency as it was, and one telling.
static void what_a_launch_is_refused_for(void) {
    void *stream = cuda_stream(&driver), *graph, *second_graph, *wide_graph;
    token *there = cuda_allocate(&driver, sizeof(token));
    int32_t *wide = cuda_allocate(&driver, EXPERTS * sizeof(int32_t));
    const ftcache_settings other = device_settings(10);
    ftcache_configuration *smaller = configuration_of(&other);
    ftcache *cache = new_device_cache(), *twin = new_twin();
    dice random = {41};
    token routed = random_token(&random), slots, wanted;
    ftcache_device_reading before, after;
    SIZED(ftcache_rebuild_report, report);
    OK(ftcache_device_enter(cache, NULL));
    graph = capture_token(cache, stream, there);
    {
        const ftcache_step what = step_of(1);
        ftcache_device_step step = device_step_of(&what, wide);
        step.row_count = 2;
        cuda_begin_capture(&driver, stream);
        OK(ftcache_device_admit(cache, stream, &step));
        OK(ftcache_device_gather(cache, stream, 1));
        wide_graph = cuda_end_capture(&driver, stream);
    }
    slots = run_token(cache, stream, graph, there, &routed);
    wanted = load_token(twin, &routed, NULL);
    CHECK(memcmp(&slots, &wanted, sizeof slots) == 0);
    OK(ftcache_check(cache));
    before = reading_of(cache, stream);
    CHECK(before.step == 3 && before.digest == digest_of(twin));

    // An id past the end, and one below 0: each is told with its layer, its route and itself.
    routed.ids[0][3] = EXPERTS;
    routed.ids[1][2] = -7;
    routed.ids[2][0] = INT32_MAX;
    slots = run_token(cache, stream, graph, there, &routed);
    check_nobody(slots.ids[0], LAYERS * WIDTH);
    after = reading_of(cache, stream);
    CHECK(after.step == 3 && after.digest == before.digest && after.resident_count == before.resident_count);
    REFUSED(ftcache_check(cache), LAUNCH_REFUSED,
            "after step 3: layer 0, route 3: 8 is none of its 8 experts; 2 more launches were refused");
    OK(ftcache_check(cache));

    // The other layers of a token are admitted all the same.
    routed = random_token(&random);
    routed.ids[1][1] = -1;
    slots = run_token(cache, stream, graph, there, &routed);
    check_nobody(slots.ids[1], WIDTH);
    {
        token others = routed;
        uint32_t layer;
        for (layer = 0; layer < LAYERS; layer += 2) {
            const ftcache_routes routes = routes_of(routed.ids[layer], WIDTH);
            const ftcache_slots places = slots_of(others.ids[layer]);
            OK(load(twin, layer, &routes, &places));
            CHECK(memcmp(slots.ids[layer], others.ids[layer], sizeof others.ids[layer]) == 0);
        }
    }
    before = reading_of(cache, stream);
    CHECK(before.step == 5 && before.digest == digest_of(twin));
    REFUSED(ftcache_check(cache), LAUNCH_REFUSED, "after step 4: layer 1, route 1: -1 is none of its 8 experts");
    OK(ftcache_check(cache));

    // Wider than its pool.
    {
        const int32_t all[EXPERTS] = {0, 1, 2, 3, 4, 5, 6, 7};
        int32_t answer[EXPERTS];
        CHECK(span_of(cache, 0, 0).slot_count == 4);
        cuda_write(&driver, stream, wide, all, sizeof all);
        cuda_launch(&driver, wide_graph, stream);
        cuda_synchronize(&driver, stream);
        cuda_read(&driver, answer, wide, sizeof answer);
        check_nobody(answer, EXPERTS);
        REFUSED(ftcache_check(cache), LAUNCH_REFUSED,
                "after step 5: layer 1: a step of 8 distinct experts; 4 slots are there for it");
        after = reading_of(cache, stream);
        CHECK(after.step == 5 && after.digest == before.digest);
    }

    // With the host, then with the device again.
    OK(ftcache_device_leave(cache));
    routed = random_token(&random);
    slots = run_token(cache, stream, graph, there, &routed);
    check_nobody(slots.ids[0], LAYERS * WIDTH);
    // Gathers are refused too, which have nothing of an admission to go by.
    REFUSED(ftcache_check(cache), LAUNCH_REFUSED,
            "after step 5: layer 0: the residency is with the host; 5 more launches were refused");
    CHECK(digest_of(cache) == digest_of(twin));
    OK(ftcache_device_enter(cache, NULL));
    slots = run_token(cache, stream, graph, there, &routed);
    wanted = load_token(twin, &routed, NULL);
    CHECK(memcmp(&slots, &wanted, sizeof slots) == 0);
    OK(ftcache_check(cache));

    // After a rebuild the slots are others.
    REFUSED(ftcache_rebuild(cache, smaller, 1, 1 << 20, &report), OUT_OF_ORDER,
            "the residency is on the device: leave device mode first");
    OK(ftcache_device_leave(cache));
    OK(ftcache_rebuild(cache, smaller, 1, 1 << 20, &report));
    OK(ftcache_rebuild(twin, smaller, 1, 1 << 20, &report));
    OK(ftcache_device_enter(cache, NULL));
    slots = run_token(cache, stream, graph, there, &routed);
    check_nobody(slots.ids[0], LAYERS * WIDTH);
    // Generations of launches, which staging counts up too.
    REFUSED(ftcache_check(cache), LAUNCH_REFUSED,
            "after step 8: layer 0: captured in generation 1; the slots are of generation 2; "
            "5 more launches were refused");
    after = reading_of(cache, stream);
    CHECK(after.digest == digest_of(twin) && after.generation == before.generation + 1);
    second_graph = capture_token(cache, stream, there);
    slots = run_token(cache, stream, second_graph, there, &routed);
    wanted = load_token(twin, &routed, NULL);
    CHECK(memcmp(&slots, &wanted, sizeof slots) == 0);
    check_token(cache, &routed, &slots);
    OK(ftcache_check(cache));
    OK(ftcache_device_leave(cache));
    CHECK(digest_of(cache) == digest_of(twin));
    cuda_destroy_graph(&driver, graph);
    cuda_destroy_graph(&driver, second_graph);
    cuda_destroy_graph(&driver, wide_graph);
    ftcache_configuration_free(smaller);
    ftcache_free(cache);
    ftcache_free(twin);
    CUDA(driver.free_memory((cuda_address)(uintptr_t)there));
    CUDA(driver.free_memory((cuda_address)(uintptr_t)wide));
    CUDA(driver.stream_destroy(stream));
    emulator_check_empty(&emulated, 0, 1);
}

// Calls of the other mode, of no mode, and of a thread whose stream is being captured.
static void calls_out_of_order(void) {
    void *stream = cuda_stream(&driver), *graph;
    const ftcache_streams streams = {sizeof streams, 0, stream, NULL};
    token *there = cuda_allocate(&driver, sizeof(token));
    ftcache *cache = new_device_cache(), *host = new_twin();
    const ftcache_step what = step_of(1);
    const ftcache_device_step step = device_step_of(&what, there->ids[1]);
    const int32_t ids[WIDTH] = {1, 2, 1, 0};
    const uint32_t layer = 1, expert = 2;
    int32_t slot[WIDTH] = {-7, -7, -7, -7};
    const ftcache_routes routes = routes_of(ids, WIDTH);
    const ftcache_slots slots = slots_of(slot);
    const char *with_host = "the residency is with the host: enter device mode first";
    const char *on_device = "the residency is on the device: leave device mode first";
    SIZED(ftcache_device_options, options);
    SIZED(ftcache_device_reading, reading);
    uint64_t landed = 7;
    REFUSED(ftcache_device_admit(cache, stream, &step), OUT_OF_ORDER, with_host);
    REFUSED(ftcache_device_gather(cache, stream, 1), OUT_OF_ORDER, with_host);
    REFUSED(ftcache_device_reset(cache, stream), OUT_OF_ORDER, with_host);
    REFUSED(ftcache_device_leave(cache), OUT_OF_ORDER, with_host);
    REFUSED(ftcache_device_enter(host, NULL), UNSUPPORTED, "no kernels on host memory: it only copies");
    options.admission_threads = 48;
    REFUSED(ftcache_device_enter(cache, &options), INVALID_ARGUMENT,
            "48 threads a block; a multiple of 32 up to 1024 is needed");
    options.admission_threads = 0;
    options.gather_blocks = 1u << 31;
    REFUSED(ftcache_device_enter(cache, &options), INVALID_ARGUMENT,
            "a gather of 2147483648 blocks; a launch has 1 to 2147483647");
    REFUSED(ftcache_device_reading_get(cache, &reading), OUT_OF_ORDER, with_host);
    OK(ftcache_load(cache, &what, &routes, &streams, &slots));
    OK(ftcache_device_enter(cache, NULL));
    REFUSED(ftcache_device_enter(cache, NULL), OUT_OF_ORDER, on_device);
    slot[0] = -7;
    REFUSED(ftcache_load(cache, &what, &routes, &streams, &slots), OUT_OF_ORDER, on_device);
    CHECK(slot[0] == -7);
    REFUSED(ftcache_forget(cache, 0, 0), OUT_OF_ORDER, on_device);
    REFUSED(ftcache_forget_layer(cache, 1), OUT_OF_ORDER, on_device);
    REFUSED(ftcache_reset(cache), OUT_OF_ORDER, on_device);
    REFUSED(ftcache_pin(cache, &layer, &expert, 1), OUT_OF_ORDER, on_device);
    OK(ftcache_land(cache, &landed));
    CHECK(landed == 0);
    REFUSED(ftcache_chunk_begin(cache, &streams), OUT_OF_ORDER, on_device);
    OK(ftcache_device_leave(cache));
    CHECK(stats_of(cache).steps == 1);

    // A load inside a capture is refused, and the capture is as good as before.
    cuda_begin_capture(&driver, stream);
    {
        char message[64];
        snprintf(message, sizeof message, "stream %p is being captured", stream);
        REFUSED(ftcache_load(cache, &what, &routes, &streams, &slots), OUT_OF_ORDER, message);
    }
    graph = cuda_end_capture(&driver, stream);
    CHECK(slot[0] == -7 && stats_of(cache).steps == 1);
    OK(ftcache_load(cache, &what, &routes, &streams, &slots));
    CHECK(stats_of(cache).hits == 3);
    cuda_destroy_graph(&driver, graph);
    ftcache_free(cache);
    ftcache_free(host);
    CUDA(driver.free_memory((cuda_address)(uintptr_t)there));
    CUDA(driver.stream_destroy(stream));
    emulator_check_empty(&emulated, 0, 1);
}

// Which layer keeps the residency from the device, and why.
static void layers_that_kernels_cannot_read(void) {
    const ftcache_settings settings = device_settings(SLOTS);
    ftcache_config config = cuda_config(0);
    ftcache *cache = cache_of(configuration_of(&settings), &config);
    SIZED(ftcache_report, report);
    OK(ftcache_register(cache, host_rows, sizeof host_rows, 0, 0));
    attach_rows(cache, 0, 0);
    attach_rows(cache, 0, 1);
    attach_rows(cache, 1, 1);
    REFUSED(ftcache_device_enter(cache, NULL), NOT_ATTACHED, "layer 1 bank 0 is not attached");
    attach_rows(cache, 1, 0);
    REFUSED(ftcache_device_enter(cache, NULL), NOT_ATTACHED, "layer 2 bank 0 is not attached");
    ftcache_free(cache);
    config.bounce_entry_count = 2;
    cache = cache_of(configuration_of(&settings), &config);
    OK(ftcache_register(cache, host_rows[0], sizeof host_rows[0] + sizeof host_rows[1], 0, 0));
    attach_all(cache);
    REFUSED(ftcache_device_enter(cache, NULL), UNSUPPORTED,
            "layer 2 bank 0: kernels read pinned rows alone, and these go through the bounce buffer");
    OK(ftcache_report_get(cache, &report));
    CHECK(report.is_in_device_mode == 0);
    ftcache_free(cache);
    emulator_check_empty(&emulated, 0, 1);
}

// Ids of 64 bits in rows that lie apart, absent ones among them; slots elsewhere, and as a map.
static void forms_of_a_step(void) {
    enum { ROWS = 2, ROW_WIDTH = 3, ID_STRIDE = 5, SLOT_STRIDE = 4, SKIPPED = 555 };
    typedef struct memory {
        int64_t ids[ROWS][ID_STRIDE], slots[ROWS][SLOT_STRIDE];
        int32_t map[EXPERTS];
    } memory;
    void *stream = cuda_stream(&driver);
    memory *there = cuda_allocate(&driver, sizeof(memory));
    ftcache *cache = new_device_cache(), *twin = new_twin();
    dice random = {51};
    uint32_t turn;
    enter(cache, 2);
    for (turn = 0; turn < 60; turn++) {
        const uint32_t layer = dice_below(&random, LAYERS);
        const ftcache_step what = step_of(layer);
        ftcache_device_step step = device_step_of(&what, there->ids);
        ftcache_routes routes;
        memory here, answer;
        int64_t wanted[ROWS][ROW_WIDTH];
        int32_t map[EXPERTS];
        SIZED(ftcache_slots, slots);
        uint32_t row, i;
        memset(&here, 0x77, sizeof here);
        for (row = 0; row < ROWS; row++) {
            for (i = 0; i < ROW_WIDTH; i++) here.ids[row][i] = (int64_t)dice_below(&random, 4) + turn % 5;
        }
        here.ids[turn % ROWS][turn % ROW_WIDTH] = -99;
        step.id_bytes = 8;
        step.ids.stride = ID_STRIDE * sizeof(int64_t);
        step.row_count = ROWS;
        step.row_width = ROW_WIDTH;
        step.has_absent = 1;
        step.absent_id = -99;
        step.absent_slot = SKIPPED;
        step.slots.address = there->slots;
        step.slots.stride = SLOT_STRIDE * sizeof(int64_t);
        step.map = there->map;
        cuda_write(&driver, stream, there, &here, sizeof here);
        OK(ftcache_device_admit(cache, stream, &step));
        OK(ftcache_device_gather(cache, stream, layer));
        cuda_synchronize(&driver, stream);
        OK(ftcache_check(cache));
        cuda_read(&driver, &answer, there, sizeof answer);
        routes = routes_of(NULL, ROW_WIDTH);
        routes.ids = here.ids;
        routes.id_bytes = 8;
        routes.row_count = ROWS;
        routes.row_stride_bytes = ID_STRIDE * sizeof(int64_t);
        routes.has_absent = 1;
        routes.absent_id = -99;
        slots.slots = wanted;
        slots.slot_bytes = 8;
        slots.absent_slot = SKIPPED;
        slots.cpu_slot = -1;
        OK(ftcache_load(twin, &what, &routes, NULL, &slots));
        OK(ftcache_plan_map(twin, map, EXPERTS, -1));
        CHECK(memcmp(answer.ids, here.ids, sizeof here.ids) == 0);
        // The map of a launch has residents that the step does not route to.
        for (i = 0; i < EXPERTS; i++) CHECK(map[i] < 0 || answer.map[i] == map[i]);
        for (row = 0; row < ROWS; row++) {
            CHECK(memcmp(answer.slots[row], wanted[row], sizeof wanted[row]) == 0);
            CHECK(answer.slots[row][ROW_WIDTH] == here.slots[row][ROW_WIDTH]);
            for (i = 0; i < ROW_WIDTH; i++) {
                if (here.ids[row][i] == -99) continue;
                check_slot(&driver, cache, layer, (int32_t)answer.slots[row][i], (uint32_t)here.ids[row][i]);
            }
        }
    }
    OK(ftcache_device_leave(cache));
    CHECK(digest_of(cache) == digest_of(twin));
    check_stats_equal(cache, twin);
    ftcache_free(cache);
    ftcache_free(twin);
    CUDA(driver.free_memory((cuda_address)(uintptr_t)there));
    CUDA(driver.stream_destroy(stream));
    emulator_check_empty(&emulated, 0, 1);
}

// Rows that the engine reads in late: nothing is gathered before the word is raised.
static void rows_that_come_late(void) {
    void *stream = cuda_stream(&driver);
    int32_t *there = cuda_allocate(&driver, WIDTH * sizeof(int32_t));
    uint32_t *word = aligned_alloc(4096, 4096);
    ftcache *cache = new_device_cache();
    const int32_t ids[WIDTH] = {6, 1, 6, 3};
    int32_t slots[WIDTH];
    uint32_t bank, i;
    const ftcache_step what = step_of(1);
    const ftcache_device_step step = device_step_of(&what, there);
    CHECK(word != NULL);
    *word = UINT32_MAX - 1;
    cuda_pin(&driver, word, 4096);
    OK(ftcache_device_enter(cache, NULL));
    memset(host_rows[1], 0xEE, sizeof host_rows[1]);
    cuda_write(&driver, stream, there, ids, sizeof ids);
    OK(ftcache_device_admit(cache, stream, &step));
    // Counted around the end of 32 bits.
    OK(ftcache_device_gather_after(cache, stream, 1, word, 1));
    for (bank = 0; bank < BANKS; bank++) fill_rows(1, bank);
    __atomic_store_n(word, 2, __ATOMIC_RELEASE);
    cuda_synchronize(&driver, stream);
    OK(ftcache_check(cache));
    cuda_read(&driver, slots, there, sizeof slots);
    for (i = 0; i < WIDTH; i++) check_slot(&driver, cache, 1, slots[i], (uint32_t)ids[i]);
    OK(ftcache_device_leave(cache));
    ftcache_free(cache);
    cuda_unpin(&driver, word);
    free(word);

    // A word that nobody raises: told, and the slots are free.
    word = aligned_alloc(4096, 4096);
    CHECK(word != NULL);
    *word = 5;
    cuda_pin(&driver, word, 4096);
    cache = new_device_cache();
    {
        SIZED(ftcache_device_options, options);
        ftcache_device_reading reading;
        options.word_looks = 20;
        OK(ftcache_device_enter(cache, &options));
        cuda_write(&driver, stream, there, ids, sizeof ids);
        OK(ftcache_device_admit(cache, stream, &step));
        OK(ftcache_device_gather_after(cache, stream, 1, word, 6));
        cuda_synchronize(&driver, stream);
        REFUSED(ftcache_check(cache), LAUNCH_REFUSED,
                "after step 1: layer 1: waited for the host's word to be 6; it is 5");
        reading = reading_of(cache, stream);
        CHECK(reading.resident_count == 0);
        OK(ftcache_device_leave(cache));
    }
    ftcache_free(cache);
    cuda_unpin(&driver, word);
    free(word);
    CUDA(driver.free_memory((cuda_address)(uintptr_t)there));
    CUDA(driver.stream_destroy(stream));
    emulator_check_empty(&emulated, 0, 1);
}

// What is left to the CPU: slots, experts and weights as the host parts them, by every rule.
static void hybrid_steps_equal_loads(void) {
    enum { ON_CPU = -5, NONE = -3 };
    typedef struct memory {
        int32_t ids[WIDTH], cpu_ids[WIDTH];
        float weights[WIDTH], device_weights[WIDTH], cpu_weights[WIDTH];
    } memory;
    const uint32_t rules[] = {FTCACHE_FETCH_RULE_UP_TO, FTCACHE_FETCH_RULE_MIN_WAIT, FTCACHE_FETCH_RULE_PREFER_FETCH,
                              FTCACHE_FETCH_RULE_CARRY};
    void *stream = cuda_stream(&driver);
    memory *there = cuda_allocate(&driver, sizeof(memory));
    uint32_t rule;
    for (rule = 0; rule < sizeof rules / sizeof rules[0]; rule++) {
        ftcache *cache = new_device_cache(), *twin = new_twin();
        dice random = {61 + rule};
        uint32_t turn;
        enter(cache, 2);
        for (turn = 0; turn < 60; turn++) {
            const uint32_t layer = dice_below(&random, LAYERS);
            const token routed = random_token(&random);
            ftcache_step what = step_of(layer);
            ftcache_device_step step;
            memory here, answer, wanted;
            ftcache_routes routes;
            ftcache_slots slots;
            uint32_t i;
            what.misses = FTCACHE_MISSES_HYBRID;
            what.fetch_rule = rules[rule];
            what.fetch_most = rule == 0 ? 1 : 0;
            what.fetch_q16 = rule == 0 ? 0 : 22000;
            what.fetch_order = turn % 2 == 0 ? FTCACHE_FETCH_ORDER_RECENCY : FTCACHE_FETCH_ORDER_LOWEST;
            memset(&here, 0, sizeof here);
            memset(&wanted, 0, sizeof wanted);
            memcpy(here.ids, routed.ids[layer], sizeof here.ids);
            for (i = 0; i < WIDTH; i++) here.weights[i] = 0.25f * (float)(i + 1) + (float)turn;
            step = device_step_of(&what, there->ids);
            step.cpu_slot = ON_CPU;
            step.cpu_ids.address = there->cpu_ids;
            step.cpu_none = NONE;
            step.weights.address = there->weights;
            step.device_weights.address = there->device_weights;
            step.cpu_weights.address = there->cpu_weights;
            step.weight_bytes = 4;
            cuda_write(&driver, stream, there, &here, sizeof here);
            OK(ftcache_device_admit(cache, stream, &step));
            OK(ftcache_device_gather(cache, stream, layer));
            cuda_synchronize(&driver, stream);
            OK(ftcache_check(cache));
            cuda_read(&driver, &answer, there, sizeof answer);
            routes = routes_of(here.ids, WIDTH);
            slots = slots_of(wanted.ids);
            slots.cpu_slot = ON_CPU;
            memcpy(wanted.weights, here.weights, sizeof here.weights);
            OK(ftcache_load(twin, &what, &routes, NULL, &slots));
            OK(ftcache_plan_cpu_experts(twin, wanted.cpu_ids, WIDTH, NONE));
            OK(ftcache_plan_split_weights(twin, here.weights, wanted.device_weights, wanted.cpu_weights, WIDTH));
            CHECK(memcmp(&answer, &wanted, sizeof answer) == 0);
            for (i = 0; i < WIDTH; i++) {
                if (answer.ids[i] == ON_CPU) {
                    CHECK(answer.cpu_ids[i] == here.ids[i] && answer.cpu_weights[i] == here.weights[i]);
                } else {
                    check_slot(&driver, cache, layer, answer.ids[i], (uint32_t)here.ids[i]);
                }
            }
        }
        OK(ftcache_device_leave(cache));
        CHECK(digest_of(cache) == digest_of(twin) && stats_of(cache).left > 0 && stats_of(cache).fetched > 0);
        check_stats_equal(cache, twin);
        ftcache_free(cache);
        ftcache_free(twin);
    }
    CUDA(driver.free_memory((cuda_address)(uintptr_t)there));
    CUDA(driver.stream_destroy(stream));
    emulator_check_empty(&emulated, 0, 1);
}

static void check_staged(ftcache *cache, uint32_t layer, uint32_t buffer) {
    uint32_t bank, expert;
    for (bank = 0; bank < BANKS; bank++) {
        SIZED(ftcache_slot_span, span);
        OK(ftcache_staged_span_get(cache, layer, bank, buffer, &span));
        CHECK(span.slot_count == EXPERTS && span.row_bytes == row_bytes_of(layer, bank));
        for (expert = 0; expert < EXPERTS; expert++) {
            unsigned char row[64];
            uint64_t at;
            cuda_read(&driver, row, (unsigned char *)span.address + expert * span.stride, span.row_bytes);
            for (at = 0; at < span.row_bytes; at++) CHECK(row[at] == byte_of(layer, bank, expert, at));
        }
    }
}

// A chunk of captured launches between tokens; a buffer that lies on slots is not filled without one.
static void chunks_between_tokens(void) {
    ftcache_settings settings = device_settings(24);
    void *stream = cuda_stream(&driver), *begin, *end, *token_graph, *stage[LAYERS];
    token *there = cuda_allocate(&driver, sizeof(token));
    const ftcache_config config = cuda_config(0);
    ftcache *cache;
    dice random = {71};
    uint32_t layer, turn;
    settings.staging = FTCACHE_STAGING_BORROWED;
    cache = cache_of(configuration_of(&settings), &config);
    OK(ftcache_register(cache, host_rows, sizeof host_rows, 0, 0));
    attach_all(cache);
    enter(cache, 2);
    token_graph = capture_token(cache, stream, there);
    cuda_begin_capture(&driver, stream);
    OK(ftcache_device_chunk_begin(cache, stream));
    begin = cuda_end_capture(&driver, stream);
    for (layer = 0; layer < LAYERS; layer++) {
        cuda_begin_capture(&driver, stream);
        if (layer == 1) {
            OK(ftcache_device_chunk_materialize(cache, stream, layer, 0));
        } else {
            OK(ftcache_device_chunk_stage(cache, stream, layer, 0));
        }
        stage[layer] = cuda_end_capture(&driver, stream);
    }
    cuda_begin_capture(&driver, stream);
    OK(ftcache_device_chunk_end(cache, stream));
    end = cuda_end_capture(&driver, stream);
    for (turn = 0; turn < 4; turn++) {
        uint32_t replay;
        for (replay = 0; replay < 5; replay++) {
            const token routed = random_token(&random);
            const token slots = run_token(cache, stream, token_graph, there, &routed);
            check_token(cache, &routed, &slots);
        }
        cuda_launch(&driver, begin, stream);
        for (layer = 0; layer < LAYERS; layer++) {
            cuda_launch(&driver, stage[layer], stream);
            cuda_synchronize(&driver, stream);
            check_staged(cache, layer, 0);
        }
        cuda_launch(&driver, end, stream);
        cuda_synchronize(&driver, stream);
        OK(ftcache_check(cache));
    }
    cuda_launch(&driver, stage[2], stream);
    cuda_synchronize(&driver, stream);
    REFUSED(ftcache_check(cache), LAUNCH_REFUSED,
            "after step 60: layer 2: staged without a chunk; 15 slots lie under buffers, 0 are withheld; "
            "1 more launch was refused");
    {
        const token routed = random_token(&random);
        const token slots = run_token(cache, stream, token_graph, there, &routed);
        check_token(cache, &routed, &slots);
    }
    OK(ftcache_device_leave(cache));
    {
        SIZED(ftcache_chunk_report, report);
        OK(ftcache_chunk_total_get(cache, &report));
        CHECK(report.chunks == 0 && report.layers == 0);
    }
    cuda_destroy_graph(&driver, token_graph);
    cuda_destroy_graph(&driver, begin);
    cuda_destroy_graph(&driver, end);
    for (layer = 0; layer < LAYERS; layer++) cuda_destroy_graph(&driver, stage[layer]);
    ftcache_free(cache);
    CUDA(driver.free_memory((cuda_address)(uintptr_t)there));
    CUDA(driver.stream_destroy(stream));
    emulator_check_empty(&emulated, 0, 1);
}

// The same tokens under every rule, from the same graph: other victims, other misses, another digest. A rebuild by a
// configuration of another rule makes what was captured stale, and what was counted is forgotten.
static void rules_are_told_apart(void) {
    uint64_t misses[FTCACHE_EVICTION_LEARNED + 1], digests[FTCACHE_EVICTION_LEARNED + 1];
    void *stream = cuda_stream(&driver);
    token *there = cuda_allocate(&driver, sizeof(token));
    for (eviction = FTCACHE_EVICTION_LRU; eviction <= FTCACHE_EVICTION_LEARNED; eviction++) {
        ftcache *cache = new_device_cache(), *twin = new_twin();
        const uint32_t mine = eviction;
        dice random = {71};
        void *graph;
        token routed, slots, wanted;
        ftcache_configuration *other;
        uint32_t turn;
        SIZED(ftcache_rebuild_report, report);
        enter(cache, 2);
        graph = capture_token(cache, stream, there);
        for (turn = 0; turn < 60; turn++) {
            routed = random_token(&random);
            slots = run_token(cache, stream, graph, there, &routed);
            wanted = load_token(twin, &routed, NULL);
            CHECK(memcmp(&slots, &wanted, sizeof slots) == 0);
        }
        digests[mine] = reading_of(cache, stream).digest;
        CHECK(digests[mine] == digest_of(twin));
        OK(ftcache_device_leave(cache));
        check_stats_equal(cache, twin);
        misses[mine] = stats_of(cache).misses;

        eviction = (mine + 1) % (FTCACHE_EVICTION_LEARNED + 1);
        {
            const ftcache_settings settings = device_settings(SLOTS);
            other = configuration_of(&settings);
        }
        eviction = mine;
        OK(ftcache_rebuild(cache, other, 1, 1 << 20, &report));
        OK(ftcache_rebuild(twin, other, 1, 1 << 20, &report));
        enter(cache, 2);
        slots = run_token(cache, stream, graph, there, &routed);
        check_nobody(slots.ids[0], LAYERS * WIDTH);
        CHECK(ftcache_check(cache) == FTCACHE_STATUS_LAUNCH_REFUSED);
        slots = run_token(cache, stream, NULL, there, &routed);
        wanted = load_token(twin, &routed, NULL);
        CHECK(memcmp(&slots, &wanted, sizeof slots) == 0);
        CHECK(reading_of(cache, stream).digest == digest_of(twin));
        OK(ftcache_device_leave(cache));
        cuda_destroy_graph(&driver, graph);
        ftcache_configuration_free(other);
        ftcache_free(cache);
        ftcache_free(twin);
    }
    for (eviction = FTCACHE_EVICTION_LFU; eviction <= FTCACHE_EVICTION_LEARNED; eviction++) {
        CHECK(misses[eviction] != misses[eviction - 1] && digests[eviction] != digests[eviction - 1]);
    }
    CUDA(driver.free_memory((cuda_address)(uintptr_t)there));
    CUDA(driver.stream_destroy(stream));
    emulator_check_empty(&emulated, 0, 1);
}

int main(void) {
    emulated = emulator_open();
    driver = cuda_open();
    // The one rule without scores, and the one with all of them.
    for (eviction = FTCACHE_EVICTION_LRU; eviction <= FTCACHE_EVICTION_LEARNED; eviction += FTCACHE_EVICTION_LEARNED) {
        replays_equal_loads();
        hybrid_steps_equal_loads();
        chunks_between_tokens();
    }
    rules_are_told_apart();
    eviction = FTCACHE_EVICTION_LRU;
    a_fork_and_a_join();
    what_a_launch_is_refused_for();
    calls_out_of_order();
    layers_that_kernels_cannot_read();
    forms_of_a_step();
    rows_that_come_late();
    cuda_close(&driver, NULL, NULL);
    return 0;
}
