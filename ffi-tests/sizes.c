// Structs of programs that were compiled with an earlier or a later header. Every struct that says its size is
// here: a test of xtask names the one that is not.

#include "check.h"
#include "cuda_driver.h"

enum { LARGEST = 4096, TAIL = 16 };

static cuda driver;
static void *stream;
static ftcache_model *model;
static ftcache_configuration *configuration;
// In ordinary memory; one whose plans are the test's to carry out; on a device.
static ftcache *cache, *planner, *on_device;
static int32_t *device_ids;

static const uint64_t row_bytes[] = {24, 2};
static const int32_t ids[] = {5, 2};
static int32_t slot[2];

// INPUTS

// Calls with bytes of exactly this number, which are the value's and then the tail; memory that is watched ends there.
// Then with more behind them, which must not be read.
static ftcache_status give(ftcache_status (*call)(const void *), const void *value, size_t known, size_t size,
                           unsigned char last) {
    ftcache_status status[2];
    int i;
    for (i = 0; i < 2; i++) {
        const size_t more = i == 0 ? 0 : 64;
        unsigned char *bytes = malloc(size + more);
        const uint32_t struct_size = (uint32_t)size;
        CHECK(bytes != NULL);
        memset(bytes, 0, size);
        memcpy(bytes, value, size < known ? size : known);
        if (size > known) bytes[size - 1] = last;
        memset(bytes + size, 0xA5, more);
        memcpy(bytes, &struct_size, size < sizeof struct_size ? size : sizeof struct_size);
        status[i] = call(bytes);
        free(bytes);
    }
    CHECK(status[0] == status[1]);
    return status[1];
}

static void served(ftcache_status status, const char *name, size_t size) {
    if (status == FTCACHE_STATUS_OK) return;
    fprintf(stderr, "%s of %zu bytes: status %d, \"%s\"\n", name, size, (int)status, ftcache_last_error());
    exit(1);
}

static void refused_argument(ftcache_status status, const char *wanted) {
    refused(status, FTCACHE_STATUS_INVALID_ARGUMENT, wanted, __FILE__, __LINE__);
}

static void size_is_none(ftcache_status status, const char *name, size_t size, size_t known) {
    char wanted[128];
    snprintf(wanted, sizeof wanted, "%s->struct_size is %zu; this library's struct has %zu", name, size, known);
    refused_argument(status, wanted);
}

// `least` is the end of the last field that the call cannot do without: a header whose struct ended there, or at any
// later field, is served.
static void input(const char *name, const void *value, size_t known, size_t least,
                  ftcache_status (*call)(const void *)) {
    static const size_t tails[] = {1, TAIL, 0};
    const size_t sizes[] = {0, 3, LARGEST + 1};
    char wanted[128];
    size_t size, i;
    for (size = least; size <= known; size += 4) served(give(call, value, known, size, 0), name, size);
    for (i = 0; i < 3; i++) {
        size = tails[i] == 0 ? LARGEST : known + tails[i];
        served(give(call, value, known, size, 0), name, size);
        snprintf(wanted, sizeof wanted, "%s has %zu bytes, and byte %zu is set; this library knows %zu bytes of it",
                 name, size, size - 1, known);
        refused_argument(give(call, value, known, size, 1), wanted);
    }
    for (i = 0; i < 3; i++) {
        // As many bytes as can be read, whatever the struct says.
        unsigned char bytes[LARGEST + 8];
        const uint32_t struct_size = (uint32_t)sizes[i];
        memset(bytes, 0, sizeof bytes);
        memcpy(bytes, value, known);
        memcpy(bytes, &struct_size, sizeof struct_size);
        size_is_none(call(bytes), name, sizes[i], known);
    }
}

#define END(type, field) (offsetof(type, field) + sizeof((type *)0)->field)
#define INPUT(type, name, value, least, call) input(name, &value, sizeof(type), least, call)

static ftcache_status new_model_of(const void *at) {
    ftcache_model *made = NULL;
    const ftcache_status status = ftcache_model_new(at, &made);
    ftcache_model_free(made);
    return status;
}

static ftcache_status set_layer(const void *at) { return ftcache_model_layer_set(model, 0, at); }

static ftcache_status new_configuration_of(const void *at) {
    ftcache_configuration *made = NULL;
    const ftcache_status status = ftcache_configuration_new(model, at, &made);
    ftcache_configuration_free(made);
    return status;
}

static ftcache_status new_cache_of(const void *at) {
    ftcache *made = NULL;
    const ftcache_status status = ftcache_new(configuration, at, &made);
    ftcache_free(made);
    return status;
}

static ftcache_status attach(const void *at) { return ftcache_attach(cache, 0, 0, at); }

// The side tensor of layer 0, out of a file.
static ftcache_status load_file(const void *options, void *report) {
    static const char *const path = "sizes.rows";
    const ftcache_file_bank bank = {0, 1, {0, 0}, NULL};
    ftcache *made = NULL;
    ftcache_status status;
    FILE *file = fopen(path, "wb");
    CHECK(file != NULL && fwrite(host_rows, 1, 2 * EXPERTS, file) == 2 * EXPERTS && fclose(file) == 0);
    OK(ftcache_new(configuration, NULL, &made));
    status = ftcache_load_files(made, &path, 1, &bank, 1, options, report);
    ftcache_free(made);
    CHECK(remove(path) == 0);
    return status;
}

static ftcache_status load_options(const void *at) { return load_file(at, NULL); }

// A load by the struct that is tried and others as they are; both slots hold what they should afterwards.
static ftcache_status load_of(const void *step, const void *routes, const void *streams, const void *slots) {
    const ftcache_step usual_step = step_of(0);
    const ftcache_routes usual_routes = routes_of(ids, 2);
    const ftcache_slots usual_slots = slots_of(slot);
    ftcache_status status;
    slot[0] = slot[1] = -7;
    status = ftcache_load(cache, step ? step : &usual_step, routes ? routes : &usual_routes, streams,
                          slots ? slots : &usual_slots);
    if (status == FTCACHE_STATUS_OK) CHECK(slot_holds(cache, 0, slot[0], 5) && slot_holds(cache, 0, slot[1], 2));
    return status;
}

static ftcache_status load_step(const void *at) { return load_of(at, NULL, NULL, NULL); }
static ftcache_status load_routes(const void *at) { return load_of(NULL, at, NULL, NULL); }
static ftcache_status load_streams(const void *at) { return load_of(NULL, NULL, at, NULL); }
static ftcache_status load_slots(const void *at) { return load_of(NULL, NULL, NULL, at); }

static ftcache_status enter_device(const void *at) {
    const ftcache_status status = ftcache_device_enter(on_device, at);
    if (status == FTCACHE_STATUS_OK) OK(ftcache_device_leave(on_device));
    return status;
}

// As load_of, on the device.
static ftcache_status admit_on_device(const void *at) {
    ftcache_status status;
    int32_t answer[2];
    int i;
    cuda_write(&driver, stream, device_ids, ids, sizeof ids);
    status = ftcache_device_admit(on_device, stream, at);
    if (status != FTCACHE_STATUS_OK) return status;
    OK(ftcache_device_gather(on_device, stream, 0));
    cuda_synchronize(&driver, stream);
    OK(ftcache_check(on_device));
    cuda_read(&driver, answer, device_ids, sizeof answer);
    for (i = 0; i < 2; i++) {
        SIZED(ftcache_slot_span, span);
        unsigned char row[24];
        OK(ftcache_slot_span_get(on_device, 1, 0, &span));
        CHECK(answer[i] >= 0 && (uint32_t)answer[i] < span.slot_count && span.row_bytes == sizeof row);
        cuda_read(&driver, row, (unsigned char *)span.address + (uint64_t)answer[i] * span.stride, sizeof row);
        CHECK(row[0] == byte_of(0, 0, (uint32_t)ids[i], 0) && row[23] == byte_of(0, 0, (uint32_t)ids[i], 23));
    }
    return status;
}

static ftcache_device_step device_step;

static ftcache_status admit_step_on_device(const void *at) {
    ftcache_device_step step = device_step;
    step.step = at;
    return admit_on_device(&step);
}

static void inputs(void) {
    const ftcache_model_config model_config = {sizeof model_config, LAYERS, EXPERTS, TOP_K, 0, 0};
    const ftcache_layer layer = {sizeof layer, BANKS, row_bytes, NULL, 0};
    const ftcache_host_rows rows = {sizeof rows, 0, host_rows[0][0], sizeof host_rows[0][0], HOST_STRIDE};
    // Without a stride, rows without gaps.
    const ftcache_host_rows close_rows = {sizeof rows, 0, host_rows[0][0], sizeof host_rows[0][0], 0};
    const ftcache_step step = *device_step.step;
    const ftcache_routes routes = routes_of(ids, 2);
    const ftcache_slots slots = slots_of(slot);
    const ftcache_streams streams = {sizeof streams, 0, NULL, NULL};
    SIZED(ftcache_settings, settings);
    SIZED(ftcache_config, config);
    SIZED(ftcache_file_options, file_options);
    SIZED(ftcache_device_options, device_options);
    settings.slot_count = LAYERS * EXPERTS;

    INPUT(ftcache_model_config, "config", model_config, END(ftcache_model_config, top_k), new_model_of);
    INPUT(ftcache_layer, "layer_config", layer, END(ftcache_layer, row_bytes), set_layer);
    INPUT(ftcache_settings, "settings", settings, END(ftcache_settings, slot_count), new_configuration_of);
    INPUT(ftcache_config, "config", config, END(ftcache_config, struct_size), new_cache_of);
    INPUT(ftcache_host_rows, "rows", close_rows, END(ftcache_host_rows, bytes), attach);
    INPUT(ftcache_host_rows, "rows", rows, sizeof rows, attach);
    INPUT(ftcache_file_options, "options", file_options, END(ftcache_file_options, struct_size), load_options);
    INPUT(ftcache_step, "step", step, END(ftcache_step, layer), load_step);
    INPUT(ftcache_routes, "routes", routes, END(ftcache_routes, row_width), load_routes);
    INPUT(ftcache_streams, "streams", streams, END(ftcache_streams, struct_size), load_streams);
    INPUT(ftcache_slots, "slots", slots, END(ftcache_slots, slots), load_slots);
    INPUT(ftcache_device_options, "options", device_options, END(ftcache_device_options, struct_size), enter_device);

    OK(ftcache_device_enter(on_device, NULL));
    INPUT(ftcache_device_step, "step", device_step, END(ftcache_device_step, row_width), admit_on_device);
    INPUT(ftcache_step, "step->step", step, END(ftcache_step, layer), admit_step_on_device);
    OK(ftcache_device_leave(on_device));
}

static ftcache_status new_recorder_of(const void *at) {
    ftcache_recorder *made = NULL;
    const ftcache_status status = ftcache_recorder_new(at, &made);
    ftcache_recorder_free(made);
    return status;
}

static const ftcache_recorder_config recorder_config = {sizeof recorder_config, 0, 2, 8, 2, 0, 4096, NULL};

static void recorders(void) {
    INPUT(ftcache_recorder_config, "config", recorder_config, END(ftcache_recorder_config, capacity_bytes),
          new_recorder_of);
}

// OUTPUTS

// Whether two fillings of a struct are to be equal: microseconds are not.
typedef enum same { ALWAYS_SAME, NOT_SAME } same;

// A struct that is shorter gets what it has room for, and one that is longer gets zeros behind it; nothing is written
// past either, and the size is left as it stands.
static void output(const char *name, size_t known, same same, ftcache_status (*call)(void *)) {
    static const size_t sizes[] = {0, 3, LARGEST + 1};
    unsigned char whole[LARGEST + 8], bytes[LARGEST + 8];
    uint32_t struct_size = (uint32_t)known;
    size_t size, at, i;
    memset(whole, 7, sizeof whole);
    memcpy(whole, &struct_size, sizeof struct_size);
    served(call(whole), name, known);
    for (size = 4; size <= known + TAIL; size += 4) {
        struct_size = (uint32_t)size;
        memset(bytes, 7, sizeof bytes);
        memcpy(bytes, &struct_size, sizeof struct_size);
        served(call(bytes), name, size);
        CHECK(memcmp(bytes, &struct_size, sizeof struct_size) == 0);
        if (same == ALWAYS_SAME) CHECK(memcmp(bytes + 4, whole + 4, (size < known ? size : known) - 4) == 0);
        for (at = known; at < size; at++) CHECK(bytes[at] == 0);
        for (at = size; at < sizeof bytes; at++) CHECK(bytes[at] == 7);
    }
    for (i = 0; i < 3; i++) {
        struct_size = (uint32_t)sizes[i];
        memset(bytes, 7, sizeof bytes);
        memcpy(bytes, &struct_size, sizeof struct_size);
        size_is_none(call(bytes), name, sizes[i], known);
        for (at = 4; at < sizeof bytes; at++) CHECK(bytes[at] == 7);
    }
}

#define OUTPUT(type, name, same, call) output(name, sizeof(type), same, call)

static ftcache_status get_configuration(void *at) { return ftcache_configuration_get(configuration, at); }
static ftcache_status get_pool(void *at) { return ftcache_configuration_pool_get(configuration, 1, at); }
static ftcache_status get_range(void *at) { return ftcache_configuration_slot_range_get(configuration, 1, 0, at); }
static ftcache_status get_run(void *at) { return ftcache_configuration_buffer_run_get(configuration, 0, 0, at); }
static ftcache_status get_report(void *at) { return ftcache_report_get(cache, at); }
static ftcache_status get_layer(void *at) { return ftcache_layer_get(cache, 1, at); }
static ftcache_status get_span(void *at) { return ftcache_slot_span_get(cache, 1, 0, at); }
static ftcache_status get_owner(void *at) { return ftcache_slot_owner_get(cache, 1, 0, at); }
static ftcache_status get_fetch(void *at) { return ftcache_configuration_layer_fetch_get(configuration, 1, at); }
static ftcache_recorder *recorder;
static ftcache_status get_recorder(void *at) { return ftcache_recorder_get(recorder, at); }
static ftcache_status get_plan(void *at) { return ftcache_plan_get(cache, at); }
static ftcache_status get_hint(void *at) {
    const ftcache_routes routes = routes_of(ids, 2);
    const ftcache_status status = ftcache_admit_hint(planner, 0, &routes, 26, at);
    if (status == FTCACHE_STATUS_OK) OK(ftcache_abort(planner));
    return status;
}
static ftcache_status get_hint_stats(void *at) { return ftcache_hint_stats_get(cache, at); }
static ftcache_status get_stats(void *at) { return ftcache_stats_get(cache, at); }
static ftcache_status get_total(void *at) { return ftcache_chunk_total_get(cache, at); }
static ftcache_status get_facts(void *at) { return ftcache_device_facts_get(cache, at); }
static ftcache_status get_files(void *at) { return load_file(NULL, at); }
static ftcache_status get_stage_plan(void *at) { return ftcache_stage_plan_get(planner, 0, at); }
static ftcache_status get_reading(void *at) { return ftcache_device_reading_get(on_device, at); }
static ftcache_status get_device_plan(void *at) { return ftcache_device_plan_get(on_device, 0, at); }

// Whoever cannot be told has not rebuilt.
static ftcache_status rebuild(void *at) {
    uint64_t before = 0, after = 0;
    ftcache_status status;
    OK(ftcache_generation(cache, &before));
    status = ftcache_rebuild(cache, configuration, 0, 0, at);
    OK(ftcache_generation(cache, &after));
    CHECK(after == before + (status == FTCACHE_STATUS_OK));
    return status;
}

static void outputs(void) {
    OUTPUT(ftcache_configuration_report, "report", ALWAYS_SAME, get_configuration);
    OUTPUT(ftcache_pool_report, "report", ALWAYS_SAME, get_pool);
    OUTPUT(ftcache_slot_range, "range", ALWAYS_SAME, get_range);
    OUTPUT(ftcache_slot_run, "run", ALWAYS_SAME, get_run);
    OUTPUT(ftcache_report, "report", ALWAYS_SAME, get_report);
    OUTPUT(ftcache_layer_report, "report", ALWAYS_SAME, get_layer);
    OUTPUT(ftcache_slot_span, "span", ALWAYS_SAME, get_span);
    OUTPUT(ftcache_slot_owner, "owner", ALWAYS_SAME, get_owner);
    OK(ftcache_recorder_new(&recorder_config, &recorder));
    OUTPUT(ftcache_recorder_report, "report", ALWAYS_SAME, get_recorder);
    ftcache_recorder_free(recorder);
    OUTPUT(ftcache_layer_fetch, "fetch", ALWAYS_SAME, get_fetch);
    OUTPUT(ftcache_plan, "plan", ALWAYS_SAME, get_plan);
    OUTPUT(ftcache_stats, "stats", ALWAYS_SAME, get_stats);
    OUTPUT(ftcache_hint_stats, "stats", ALWAYS_SAME, get_hint_stats);
    // The number of a hint never comes again.
    OUTPUT(ftcache_hint_report, "report", NOT_SAME, get_hint);
    OUTPUT(ftcache_chunk_report, "report", ALWAYS_SAME, get_total);
    OUTPUT(ftcache_device_facts, "facts", ALWAYS_SAME, get_facts);
    OUTPUT(ftcache_file_report, "report", NOT_SAME, get_files);
    OUTPUT(ftcache_rebuild_report, "report", ALWAYS_SAME, rebuild);

    OK(ftcache_chunk_begin(planner, NULL));
    OK(ftcache_chunk_prefetch(planner, 0));
    OUTPUT(ftcache_stage_plan, "plan", ALWAYS_SAME, get_stage_plan);

    OK(ftcache_device_enter(on_device, NULL));
    OK(admit_on_device(&device_step));
    OK(ftcache_device_reading_request(on_device, stream));
    cuda_synchronize(&driver, stream);
    OUTPUT(ftcache_device_reading, "reading", ALWAYS_SAME, get_reading);
    OUTPUT(ftcache_plan, "plan", ALWAYS_SAME, get_device_plan);
    OK(ftcache_device_leave(on_device));
}

int main(void) {
    const ftcache_step step = step_of(0);
    SIZED(ftcache_settings, settings);
    SIZED(ftcache_config, config);
    driver = cuda_open();
    stream = cuda_stream(&driver);
    device_ids = cuda_allocate(&driver, sizeof ids);
    model = new_model();
    settings.slot_count = LAYERS * EXPERTS;
    OK(ftcache_configuration_new(model, &settings, &configuration));
    OK(ftcache_new(configuration, NULL, &cache));
    attach_all(cache);
    config.device = FTCACHE_DEVICE_NONE;
    OK(ftcache_new(configuration, &config, &planner));
    config.device = FTCACHE_DEVICE_CUDA;
    config.cuda_driver = cuda_path();
    OK(ftcache_new(configuration, &config, &on_device));
    OK(ftcache_register(on_device, host_rows, sizeof host_rows, 0, 0));
    attach_all(on_device);
    device_step.struct_size = sizeof device_step;
    device_step.step = &step;
    device_step.ids.address = device_ids;
    device_step.row_count = 1;
    device_step.row_width = 2;

    inputs();
    recorders();
    outputs();

    ftcache_free(on_device);
    ftcache_free(planner);
    ftcache_free(cache);
    ftcache_configuration_free(configuration);
    ftcache_model_free(model);
    cuda_close(&driver, stream, device_ids);
    return 0;
}
