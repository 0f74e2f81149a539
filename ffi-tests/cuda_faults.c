// Calls of the driver that fail: the status, the message that names layer, bank and slots, that the answer and the
// current context stay as they were, and that the step may be tried again.

#include "cuda_model.h"

// CUDA_ERROR_LAUNCH_FAILED, as any call may give.
enum { FAILURE = 719 };

static emulator emulated;
static cuda driver;

// What the library may call while steps run.
static const char *const CALLS[] = {
    "cuMemcpyHtoDAsync_v2", "cuMemcpy2DAsync_v2", "cuMemcpyBatchAsync", "cuMemcpyBatchAsync_v2", "cuMemcpyDtoDAsync_v2",
    "cuMemsetD8Async", "cuMemsetD2D8Async", "cuEventRecord", "cuStreamWaitEvent", "cuEventQuery", "cuStreamGetCtx",
    "cuStreamIsCapturing", "cuStreamGetFlags", "cuStreamQuery", "cuPointerGetAttribute", "cuLaunchKernel",
    "cuCtxPushCurrent_v2", "cuCtxSetCurrent"};

enum { CALL_COUNT = sizeof CALLS / sizeof CALLS[0] };

typedef struct call_counts {
    uint64_t of[CALL_COUNT];
} call_counts;

static call_counts calls_now(void) {
    call_counts now;
    uint32_t i;
    for (i = 0; i < CALL_COUNT; i++) now.of[i] = emulated.calls(0, CALLS[i]);
    return now;
}

static void *current_context(void) {
    void *context = NULL;
    CUDA(driver.context_get_current(&context));
    return context;
}

static uint64_t resident_count(ftcache *cache) {
    SIZED(ftcache_report, report);
    OK(ftcache_report_get(cache, &report));
    return report.resident_count;
}

static void load_two(ftcache *cache, const ftcache_streams *streams, int32_t first, int32_t second) {
    const ftcache_step what = step_of(1);
    const int32_t ids[] = {first, second};
    const ftcache_routes routes = routes_of(ids, 2);
    OK(ftcache_load(cache, &what, &routes, streams, NULL));
}

// Layer 1's pool of four slots is full, of experts 0, 1, 3 and 4; the step takes the slots of the first two.
static void one_failing_load(ftcache *cache, const ftcache_streams *streams, uint32_t call, uint64_t after) {
    const ftcache_step what = step_of(1);
    const int32_t ids[] = {3, 5, 2};
    int32_t slot[3] = {-7, -7, -7};
    const ftcache_routes routes = routes_of(ids, 3);
    const ftcache_slots slots = slots_of(slot);
    ftcache_stats before, now;
    ftcache_status status;
    uint64_t digest;
    uint32_t i;
    OK(ftcache_reset(cache));
    load_two(cache, streams, 0, 1);
    load_two(cache, streams, 3, 4);
    OK(ftcache_synchronize(cache));
    before = stats_of(cache);
    digest = digest_of(cache);
    CHECK(resident_count(cache) == 4);
    emulated.fail_call(0, CALLS[call], after, FAILURE);
    status = ftcache_load(cache, &what, &routes, streams, &slots);
    CHECK(status == FTCACHE_STATUS_DEVICE && current_context() == driver.context);
    CHECK(slot[0] == -7 && slot[1] == -7 && slot[2] == -7);
    now = stats_of(cache);
    CHECK(now.steps == before.steps && now.bytes == before.bytes);
    if (strncmp(CALLS[call], "cuMemcpy", 8) == 0) {
        char message[160];
        const int in_batch = strstr(CALLS[call], "Batch") != NULL;
        // Two rows of 40 bytes, then two of 2.
        snprintf(message, sizeof message,
                 "layer 1 bank %d: %s of %d bytes: CUDA_ERROR_LAUNCH_FAILED (719): unspecified launch failure; "
                 "slots 0, 1 are forgotten", after < 2 ? 0 : 1, in_batch ? "batch" : "row copy",
                 in_batch ? 84 : after < 2 ? 40 : 2);
        CHECK(strcmp(ftcache_last_error(), message) == 0);
    }
    if (strstr(ftcache_last_error(), "forgotten") != NULL) {
        CHECK(strncmp(ftcache_last_error(), "layer 1", 7) == 0);
        CHECK(strstr(ftcache_last_error(), "; slots 0, 1 are forgotten") != NULL);
        CHECK(resident_count(cache) == 2);
    } else {
        CHECK(resident_count(cache) == 4 && digest_of(cache) == digest);
    }
    OK(ftcache_load(cache, &what, &routes, streams, &slots));
    OK(ftcache_synchronize(cache));
    CHECK(slot[0] == 2 && slot[1] == 1 && slot[2] == 0);
    for (i = 0; i < 3; i++) check_slot(&driver, cache, 1, slot[i], (uint32_t)ids[i]);
    now = stats_of(cache);
    CHECK(now.steps == before.steps + 1 && now.hits == before.hits + 1 && now.misses == before.misses + 2);
    load_two(cache, streams, 3, 4);
    CHECK(stats_of(cache).hits == now.hits + 2);
    OK(ftcache_check(cache));
}

// Every call of the driver that a step makes fails once.
static void every_call_of_a_load_may_fail(void) {
    uint32_t in_batches;
    for (in_batches = 0; in_batches < 2; in_batches++) {
        const ftcache_settings settings = settings_of(12);
        ftcache_config config = cuda_config(0);
        const ftcache_streams streams = cuda_streams(&driver, 1);
        ftcache *cache;
        call_counts before, after;
        uint32_t call, failed = 0;
        uint64_t i;
        // Where small entries of a batch are known not to wait, rows go in one.
        if (in_batches) config.probe_bytes = 1 << 20;
        cache = cache_of(configuration_of(&settings), &config);
        OK(ftcache_register(cache, host_rows, sizeof host_rows, 0, 0));
        attach_all(cache);
        load_two(cache, &streams, 0, 1);
        load_two(cache, &streams, 3, 4);
        OK(ftcache_synchronize(cache));
        before = calls_now();
        {
            const ftcache_step what = step_of(1);
            const int32_t ids[] = {3, 5, 2};
            const ftcache_routes routes = routes_of(ids, 3);
            OK(ftcache_load(cache, &what, &routes, &streams, NULL));
        }
        after = calls_now();
        for (call = 0; call < CALL_COUNT; call++) {
            for (i = 0; i < after.of[call] - before.of[call]; i++) {
                one_failing_load(cache, &streams, call, i);
                failed++;
            }
        }
        CHECK(after.of[0] - before.of[0] == (in_batches ? 0 : 4) && after.of[3] - before.of[3] == in_batches);
        CHECK(failed > 10);
        ftcache_free(cache);
        cuda_destroy_streams(&driver, &streams);
        emulator_check_empty(&emulated, 0, 1);
    }
}

// What may be called while a cache is made, but for what gives something back: nothing could make up for that.
static const char *const MAKING[] = {
    "cuDeviceGet", "cuDeviceGetAttribute", "cuDeviceGetName", "cuDeviceTotalMem_v2", "cuDevicePrimaryCtxRetain",
    "cuCtxPushCurrent_v2", "cuCtxSetCurrent", "cuCtxGetDevice", "cuMemGetInfo_v2", "cuMemAlloc_v2", "cuMemHostAlloc",
    "cuMemHostRegister_v2", "cuMemHostGetDevicePointer_v2", "cuPointerGetAttribute", "cuMemsetD8_v2", "cuMemsetD8Async",
    "cuMemsetD2D8Async", "cuMemcpyHtoD_v2", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoH_v2", "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoDAsync_v2", "cuMemcpy2DAsync_v2", "cuMemcpyBatchAsync_v2", "cuStreamCreate",
    "cuStreamCreateWithPriority", "cuStreamSynchronize", "cuStreamQuery", "cuStreamWaitEvent", "cuStreamGetCtx",
    "cuStreamWaitValue32_v2", "cuStreamWriteValue32_v2", "cuEventCreate", "cuEventRecord", "cuEventSynchronize",
    "cuEventQuery", "cuEventElapsedTime", "cuEventElapsedTime_v2", "cuModuleLoadData", "cuModuleGetFunction",
    "cuLaunchKernel", "cuThreadExchangeStreamCaptureMode", "cuCtxSynchronize"};

enum { MAKING_COUNT = sizeof MAKING / sizeof MAKING[0] };

// A cache that cannot be made leaves nothing behind; where one is made all the same, it works.
static void every_call_of_new_may_fail(void) {
    const ftcache_settings settings = settings_of(12);
    ftcache_configuration *configuration = configuration_of(&settings);
    ftcache_config config = cuda_config(0);
    uint64_t counts[MAKING_COUNT], i;
    uint32_t call, refusals = 0, made = 0;
    ftcache *cache = NULL;
    config.bounce_entry_count = BOUNCES ? 2 : 0;
    config.probe_bytes = 1 << 20;
    for (call = 0; call < MAKING_COUNT; call++) counts[call] = emulated.calls(0, MAKING[call]);
    OK(ftcache_new(configuration, &config, &cache));
    for (call = 0; call < MAKING_COUNT; call++) counts[call] = emulated.calls(0, MAKING[call]) - counts[call];
    ftcache_free(cache);
    for (call = 0; call < MAKING_COUNT; call++) {
        for (i = 0; i < counts[call]; i++) {
            ftcache_status status;
            cache = (ftcache *)&cache;
            emulated.fail_call(0, MAKING[call], i, FAILURE);
            status = ftcache_new(configuration, &config, &cache);
            CHECK(current_context() == driver.context);
            if (status == FTCACHE_STATUS_OK) {
                made++;
                if (!BOUNCES) OK(ftcache_register(cache, host_rows, sizeof host_rows, 0, 0));
                attach_all(cache);
                load_two(cache, NULL, 0, 1);
                OK(ftcache_synchronize(cache));
                check_slot(&driver, cache, 1, 0, 0);
                check_slot(&driver, cache, 1, 1, 1);
                ftcache_free(cache);
            } else {
                CHECK(status == FTCACHE_STATUS_DEVICE && cache == NULL);
                CHECK(strstr(ftcache_last_error(), "CUDA_ERROR_LAUNCH_FAILED (719)") != NULL);
                refusals++;
            }
            emulator_check_empty(&emulated, 0, 1);
        }
    }
    // What probes a batch may fail: copies go one by one then.
    CHECK(refusals > 10 && made > 10);
    ftcache_configuration_free(configuration);
}

static void take_warnings(void *user, uint32_t level, const char *message) {
    char *text = user;
    if (level != FTCACHE_LOG_LEVEL_WARNING) return;
    CHECK(text[0] == 0);
    snprintf(text, 512, "%s", message);
}

// Batches that do not work: rows go one by one, the reason is told once and can be read back.
static void batches_that_do_not_work(void) {
    const struct { uint32_t batch; uint64_t value; const char *reason; } cases[] = {
        {BATCH_RIGHT, 0, NULL},
        {BATCH_WRONG_BYTES, 1, "cuMemcpyBatchAsync_v2: wrong bytes at entry 1, offset "},
        {BATCH_TOUCHES_NEIGHBOURS, 0, "cuMemcpyBatchAsync_v2: bytes after entry 0 were touched"},
        {BATCH_FAILS, FAILURE,
         "cuMemcpyBatchAsync_v2: CUDA_ERROR_LAUNCH_FAILED (719): unspecified launch failure"}};
    uint32_t i;
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const ftcache_settings settings = settings_of(12);
        ftcache_config config = cuda_config(0);
        const ftcache_streams streams = cuda_streams(&driver, 1);
        char warning[512] = "", text[4096];
        ftcache *cache;
        const int32_t ids[] = {6, 2, 7};
        int32_t slot[3];
        const ftcache_routes routes = routes_of(ids, 3);
        const ftcache_slots slots = slots_of(slot);
        const ftcache_step what = step_of(1);
        SIZED(ftcache_device_facts, facts);
        uint32_t each;
        config.probe_bytes = 1 << 20;
        config.log_level = FTCACHE_LOG_LEVEL_INFO;
        config.log = take_warnings;
        config.log_user = warning;
        emulated.set_batch(0, cases[i].batch, cases[i].value);
        cache = cache_of(configuration_of(&settings), &config);
        OK(ftcache_device_facts_get(cache, &facts));
        CHECK(facts.copies_in_batches == (cases[i].reason == NULL));
        OK(ftcache_device_text(cache, text, sizeof text, NULL));
        if (cases[i].reason == NULL) {
            CHECK(warning[0] == 0 && strstr(text, "\ncopies in batches by cuMemcpyBatchAsync_v2, ") != NULL);
        } else {
            char line[256];
            snprintf(line, sizeof line, "copies go one by one; reason: %s", cases[i].reason);
            CHECK(strncmp(warning, line, strlen(line)) == 0);
            snprintf(line, sizeof line, "\ncopies one by one (%s", cases[i].reason);
            CHECK(strstr(text, line) != NULL);
        }
        OK(ftcache_register(cache, host_rows, sizeof host_rows, 0, 0));
        attach_all(cache);
        OK(ftcache_load(cache, &what, &routes, &streams, &slots));
        OK(ftcache_synchronize(cache));
        for (each = 0; each < 3; each++) check_slot(&driver, cache, 1, slot[each], (uint32_t)ids[each]);
        ftcache_free(cache);
        cuda_destroy_streams(&driver, &streams);
        emulated.set_batch(0, BATCH_RIGHT, 0);
        emulator_check_empty(&emulated, 0, 1);
    }
}

enum chunk_call { CHUNK_BEGIN, CHUNK_PREFETCH, CHUNK_WAIT, CHUNK_RELEASE, CHUNK_END, CHUNK_CALLS };

static ftcache_status chunk_call(ftcache *cache, uint32_t which, const ftcache_streams *streams, uint32_t *buffer) {
    switch (which) {
    case CHUNK_BEGIN: return ftcache_chunk_begin(cache, streams);
    case CHUNK_PREFETCH: return ftcache_chunk_prefetch(cache, 1);
    case CHUNK_WAIT: return ftcache_chunk_wait(cache, 1, buffer);
    case CHUNK_RELEASE: return ftcache_chunk_release(cache, 1);
    default: return ftcache_chunk_end(cache, NULL);
    }
}

static void check_staged(ftcache *cache, uint32_t buffer) {
    uint32_t bank, expert;
    for (bank = 0; bank < BANKS; bank++) {
        SIZED(ftcache_slot_span, span);
        OK(ftcache_staged_span_get(cache, 1, bank, buffer, &span));
        for (expert = 0; expert < EXPERTS; expert++) {
            unsigned char row[64];
            uint64_t at;
            cuda_read(&driver, row, (unsigned char *)span.address + expert * span.stride, span.row_bytes);
            for (at = 0; at < span.row_bytes; at++) CHECK(row[at] == byte_of(1, bank, expert, at));
        }
    }
}

// A chunk of one layer of which one call fails at one of its calls of the driver, or none does if there is no such
// call. Beginning and staging are tried again; else the chunk is abandoned. Whether one failed.
static int one_failing_chunk(ftcache *cache, const ftcache_streams *streams, uint32_t fails, uint32_t call,
                             uint64_t after) {
    uint32_t which, buffer = 9;
    int has_failed = 0;
    OK(ftcache_reset(cache));
    load_two(cache, streams, 3, 4);
    for (which = CHUNK_BEGIN; which < CHUNK_CALLS; which++) {
        ftcache_status status;
        if (which == fails) emulated.fail_call(0, CALLS[call], after, FAILURE);
        status = chunk_call(cache, which, streams, &buffer);
        CHECK(current_context() == driver.context);
        if (status != FTCACHE_STATUS_OK) {
            CHECK(status == FTCACHE_STATUS_DEVICE && which == fails && !has_failed);
            CHECK(strstr(ftcache_last_error(), "CUDA_ERROR_LAUNCH_FAILED (719)") != NULL);
            has_failed = 1;
            if (which > CHUNK_PREFETCH) {
                // A wait or a release that failed is not made again.
                OK(ftcache_chunk_abandon(cache, NULL));
                break;
            }
            OK(chunk_call(cache, which, streams, &buffer));
        }
        if (which != CHUNK_WAIT) continue;
        cuda_synchronize(&driver, streams->compute);
        check_staged(cache, buffer);
    }
    OK(ftcache_synchronize(cache));
    return has_failed;
}

static void every_call_of_a_chunk_may_fail(void) {
    const ftcache_config config = cuda_config(0);
    const ftcache_streams streams = cuda_streams(&driver, 1);
    ftcache_settings settings = settings_of(24);
    ftcache *cache;
    uint32_t fails, call, failed = 0;
    settings.staging = FTCACHE_STAGING_BORROWED;
    cache = cache_of(configuration_of(&settings), &config);
    OK(ftcache_register(cache, host_rows, sizeof host_rows, 0, 0));
    attach_all(cache);
    for (fails = CHUNK_BEGIN; fails < CHUNK_CALLS; fails++) {
        for (call = 0; call < CALL_COUNT; call++) {
            uint64_t before, count = 0, i;
            uint32_t which, buffer = 9;
            OK(ftcache_reset(cache));
            load_two(cache, &streams, 3, 4);
            for (which = CHUNK_BEGIN; which < CHUNK_CALLS; which++) {
                before = emulated.calls(0, CALLS[call]);
                OK(chunk_call(cache, which, &streams, &buffer));
                if (which == fails) count = emulated.calls(0, CALLS[call]) - before;
            }
            for (i = 0; i < count; i++) failed += (uint32_t)one_failing_chunk(cache, &streams, fails, call, i);
            // Nothing of it stays: the next chunk is as good as the first.
            CHECK(!one_failing_chunk(cache, &streams, CHUNK_CALLS, call, 0));
        }
    }
    CHECK(failed > 20);
    ftcache_free(cache);
    cuda_destroy_streams(&driver, &streams);
    emulator_check_empty(&emulated, 0, 1);
}

// A launch that the driver refuses is launched again; the residency is what it would have been.
static void launches_may_fail(void) {
    const ftcache_settings settings = settings_of(12);
    const ftcache_config config = cuda_config(0);
    void *stream = cuda_stream(&driver);
    ftcache *cache = cache_of(configuration_of(&settings), &config);
    ftcache *twin = cache_of(configuration_of(&settings), NULL);
    int32_t *there = cuda_allocate(&driver, 3 * sizeof(int32_t));
    const ftcache_step what = step_of(1);
    uint32_t turn, call, i;
    SIZED(ftcache_device_step, step);
    OK(ftcache_register(cache, host_rows, sizeof host_rows, 0, 0));
    attach_all(cache);
    attach_all(twin);
    OK(ftcache_device_enter(cache, NULL));
    step.step = &what;
    step.ids.address = there;
    step.row_count = 1;
    step.row_width = 3;
    step.absent_slot = step.cpu_slot = step.cpu_none = -1;
    for (turn = 0; turn < 12; turn++) {
        const int32_t ids[] = {(int32_t)(turn % EXPERTS), (int32_t)(turn * 3 % EXPERTS), (int32_t)(turn / 2 % EXPERTS)};
        int32_t slot[3], wanted[3];
        const ftcache_routes routes = routes_of(ids, 3);
        const ftcache_slots slots = slots_of(wanted);
        OK(load(twin, 1, &routes, &slots));
        cuda_write(&driver, stream, there, ids, sizeof ids);
        for (call = 0; call < 2; call++) {
            ftcache_status status;
            emulated.fail_call(0, turn % 3 == 2 ? "cuCtxPushCurrent_v2" : "cuLaunchKernel", 0, FAILURE);
            status = call == 0 ? ftcache_device_admit(cache, stream, &step) : ftcache_device_gather(cache, stream, 1);
            CHECK(status == FTCACHE_STATUS_DEVICE && current_context() == driver.context);
            CHECK(strstr(ftcache_last_error(), "CUDA_ERROR_LAUNCH_FAILED (719)") != NULL);
            OK(call == 0 ? ftcache_device_admit(cache, stream, &step) : ftcache_device_gather(cache, stream, 1));
        }
        cuda_synchronize(&driver, stream);
        OK(ftcache_check(cache));
        cuda_read(&driver, slot, there, sizeof slot);
        CHECK(memcmp(slot, wanted, sizeof slot) == 0);
        for (i = 0; i < 3; i++) check_slot(&driver, cache, 1, slot[i], (uint32_t)ids[i]);
    }
    OK(ftcache_device_leave(cache));
    CHECK(digest_of(cache) == digest_of(twin));
    ftcache_free(cache);
    ftcache_free(twin);
    CUDA(driver.free_memory((cuda_address)(uintptr_t)there));
    CUDA(driver.stream_destroy(stream));
    emulator_check_empty(&emulated, 0, 1);
}

// More slots than the device has the memory for: no resident is kept, the old slots come back, or there are none until
// a rebuild brings some.
static void rebuilds_without_memory(void) {
    enum { OUT_OF_MEMORY = 2 };
    // Of the allocations of bank 0 and bank 1, the first that is refused, and how many after it.
    const struct {
        uint32_t keep, first, count;
        ftcache_status status;
        uint32_t rebuilt;
        const char *message;
    } cases[] = {
        {0, 0, 1, FTCACHE_STATUS_OUT_OF_MEMORY, 0, "656 bytes of device memory wanted; 1073741824 are free; "
         "the old slots are back, and empty"},
        {0, 1, 1, FTCACHE_STATUS_OUT_OF_MEMORY, 0, "44 bytes of device memory wanted; 1073741168 are free; "
         "the old slots are back, and empty"},
        {0, 0, 2, FTCACHE_STATUS_OUT_OF_MEMORY, 0, "656 bytes of device memory wanted; 1073741824 are free; "
         "the old slots could not be had again: there are none"},
        {0, 0, 0, FTCACHE_STATUS_OK, FTCACHE_REBUILT_COLD_AS_ASKED, NULL},
        {1, 0, 1, FTCACHE_STATUS_OK, FTCACHE_REBUILT_COLD_OUT_OF_MEMORY, NULL},
        {1, 1, 1, FTCACHE_STATUS_OK, FTCACHE_REBUILT_COLD_OUT_OF_MEMORY, NULL},
        {1, 0, 3, FTCACHE_STATUS_OUT_OF_MEMORY, 0, "656 bytes of device memory wanted; 1073741824 are free; "
         "the old slots could not be had again: there are none"},
        {1, 0, 0, FTCACHE_STATUS_OK, FTCACHE_REBUILT_BESIDE, NULL}};
    const ftcache_settings settings = settings_of(12), more = settings_of(20);
    const ftcache_config config = cuda_config(0);
    ftcache_configuration *larger = configuration_of(&more);
    uint32_t i, each;
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ftcache *cache = cache_of(configuration_of(&settings), &config);
        const int32_t ids[] = {3, 5, 2};
        int32_t slot[3];
        const ftcache_routes routes = routes_of(ids, 3);
        const ftcache_slots slots = slots_of(slot);
        ftcache_status status;
        uint64_t generation = 0;
        SIZED(ftcache_rebuild_report, report);
        SIZED(ftcache_report, now);
        OK(ftcache_register(cache, host_rows, sizeof host_rows, 0, 0));
        attach_all(cache);
        OK(load(cache, 1, &routes, &slots));
        for (each = 0; each < cases[i].count; each++) {
            emulated.fail_call(0, "cuMemAlloc_v2", cases[i].first + each, OUT_OF_MEMORY);
        }
        status = ftcache_rebuild(cache, larger, cases[i].keep, 1 << 20, &report);
        CHECK(status == cases[i].status && current_context() == driver.context);
        OK(ftcache_report_get(cache, &now));
        OK(ftcache_generation(cache, &generation));
        CHECK(generation == 1);
        if (status == FTCACHE_STATUS_OK) {
            CHECK(report.rebuilt == cases[i].rebuilt && now.slot_count == 20);
            CHECK(report.kept == (report.rebuilt == FTCACHE_REBUILT_BESIDE ? 3 : 0));
            CHECK(now.resident_count == report.kept);
        } else {
            CHECK(strcmp(ftcache_last_error(), cases[i].message) == 0);
            CHECK(now.resident_count == 0);
        }
        if (cases[i].count > 1) {
            CHECK(now.slot_count == 0 && !now.is_engaged);
            slot[0] = -7;
            CHECK(load(cache, 1, &routes, &slots) == FTCACHE_STATUS_UNAVAILABLE && slot[0] == -7);
            CHECK(strcmp(ftcache_last_error(), "the cache has no slots: 656 bytes of device memory wanted; "
                                               "1073741824 are free") == 0);
            OK(ftcache_rebuild(cache, larger, cases[i].keep, 1 << 20, &report));
        }
        OK(load(cache, 1, &routes, &slots));
        OK(ftcache_synchronize(cache));
        for (each = 0; each < 3; each++) check_slot(&driver, cache, 1, slot[each], (uint32_t)ids[each]);
        ftcache_free(cache);
        emulator_check_empty(&emulated, 0, 1);
    }
    ftcache_configuration_free(larger);
}

static void lost(ftcache_status status, const char *operation) {
    char message[128];
    snprintf(message, sizeof message, "%s: CUDA_ERROR_LAUNCH_FAILED (719): unspecified launch failure", operation);
    CHECK(status == FTCACHE_STATUS_DEVICE && strcmp(ftcache_last_error(), message) == 0);
}

// A copy fails while it runs, and takes its context with it: told at the next look and by every call that needs the
// device. What needs none goes on, and so does a handle on the other device.
static void take_error(void *user, uint32_t level, const char *message) {
    if (level == FTCACHE_LOG_LEVEL_ERROR) snprintf(user, 256, "%s", message);
}

static void a_device_that_is_lost(void) {
    const ftcache_settings settings = settings_of(12);
    const ftcache_config other_config = cuda_config(0);
    ftcache_config config = cuda_config(1);
    char error[256] = "";
    const ftcache_streams streams = cuda_streams(&driver, 1);
    cuda second = cuda_open_at(1);
    ftcache *cache, *other;
    const int32_t ids[] = {3, 5, 2};
    int32_t slot[3] = {-7, -7, -7};
    const ftcache_routes routes = routes_of(ids, 3);
    const ftcache_slots slots = slots_of(slot);
    SIZED(ftcache_streams, second_streams);
    const ftcache_step what = step_of(1);
    uint32_t i;
    config.log = take_error;
    config.log_user = error;
    config.log_level = FTCACHE_LOG_LEVEL_ERROR;
    cache = cache_of(configuration_of(&settings), &config);
    second_streams.compute = cuda_stream(&second);
    CUDA(driver.context_set_current(driver.context));
    other = cache_of(configuration_of(&settings), &other_config);
    // Each device pins its own.
    OK(ftcache_register(other, host_rows, sizeof host_rows, 0, 0));
    attach_all(other);
    OK(ftcache_register(cache, host_rows, sizeof host_rows, 0, 0));
    attach_all(cache);
    OK(ftcache_load(cache, &what, &routes, &second_streams, &slots));
    OK(ftcache_synchronize(cache));
    OK(ftcache_reset(cache));
    emulated.fail_late(1, 1, FAILURE);
    OK(ftcache_load(cache, &what, &routes, &second_streams, &slots));
    for (i = 0; i < 2; i++) lost(ftcache_synchronize(cache), "synchronisation");
    lost(ftcache_check(cache), "earlier operation");
    slot[0] = -7;
    // Also where every row is thought to be there.
    CHECK(resident_count(cache) == 3);
    lost(ftcache_load(cache, &what, &routes, &second_streams, &slots), "stream");
    OK(ftcache_reset(cache));
    CHECK(resident_count(cache) == 0);
    lost(ftcache_load(cache, &what, &routes, &second_streams, &slots), "stream");
    CHECK(slot[0] == -7);
    CHECK(current_context() == driver.context);
    CHECK(error[0] == 0);
    ftcache_free(cache);
    CHECK(strncmp(error, "registered memory is not given back: ", 37) == 0);
    CHECK(current_context() == driver.context);
    OK(ftcache_load(other, &what, &routes, &streams, &slots));
    OK(ftcache_synchronize(other));
    for (i = 0; i < 3; i++) check_slot(&driver, other, 1, slot[i], (uint32_t)ids[i]);
    ftcache_free(other);
    cuda_destroy_streams(&driver, &streams);
    emulator_check_empty(&emulated, 0, 1);
    emulator_check(&emulated, 1);
}

int main(void) {
    emulated = emulator_open();
    driver = cuda_open();
    every_call_of_a_load_may_fail();
    every_call_of_new_may_fail();
    batches_that_do_not_work();
    every_call_of_a_chunk_may_fail();
    launches_may_fail();
    rebuilds_without_memory();
    // No call works on its device afterwards.
    a_device_that_is_lost();
    cuda_close(&driver, NULL, NULL);
    return 0;
}
