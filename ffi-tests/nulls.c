// NULL for every pointer of the header that may not be one: the message names the parameter, and nothing has changed.
// nulls.py checks that no function is left out.

#include "check.h"

#define NAMED(call, parameter) REFUSED(call, INVALID_ARGUMENT, parameter " is NULL")
// An array that may be NULL if it has no values, and `more` says how many it has.
#define COUNTED(call, parameter, more) REFUSED(call, INVALID_ARGUMENT, parameter " is NULL, with " more)

// What a failed _new must overwrite.
static char stale;
#define STALE(type) ((type *)(void *)&stale)

static void of_models(void) {
    const ftcache_model_config config = {sizeof config, 1, 4, 2, 0, 0};
    ftcache_layer layer = {sizeof layer, 0, NULL, NULL, 0};
    ftcache_model *out = STALE(ftcache_model), *model = new_model();
    NAMED(ftcache_model_new(&config, NULL), "out");
    NAMED(ftcache_model_new(NULL, &out), "config");
    CHECK(out == NULL);
    NAMED(ftcache_model_layer_set(NULL, 0, &layer), "model");
    NAMED(ftcache_model_layer_set(model, 0, NULL), "layer_config");
    layer.bank_count = 3;
    COUNTED(ftcache_model_layer_set(model, 0, &layer), "layer_config->row_bytes", "a count of 3");
    ftcache_model_free(model);
    ftcache_model_free(NULL);
}

static void of_configurations(void) {
    ftcache_settings settings = settings_of(8);
    ftcache_model *model = new_model();
    ftcache_configuration *configuration = new_configuration(8), *staged = NULL, *out = STALE(ftcache_configuration);
    SIZED(ftcache_configuration_report, report);
    SIZED(ftcache_pool_report, pool_report);
    SIZED(ftcache_layer_fetch, fetch);
    SIZED(ftcache_slot_range, range);
    SIZED(ftcache_slot_run, run);
    uint32_t number = 7;
    size_t needed = 7;
    char text[8] = "as was";

    NAMED(ftcache_configuration_new(model, &settings, NULL), "out");
    NAMED(ftcache_configuration_new(NULL, &settings, &out), "model");
    CHECK(out == NULL);
    out = STALE(ftcache_configuration);
    NAMED(ftcache_configuration_new(model, NULL, &out), "settings");
    CHECK(out == NULL);

    NAMED(ftcache_configuration_with_budget(configuration, "8KiB", NULL), "out");
    out = STALE(ftcache_configuration);
    NAMED(ftcache_configuration_with_budget(NULL, "8KiB", &out), "configuration");
    CHECK(out == NULL);
    out = STALE(ftcache_configuration);
    NAMED(ftcache_configuration_with_budget(configuration, NULL, &out), "budget");
    CHECK(out == NULL);

    settings.staging = FTCACHE_STAGING_DEDICATED;
    OK(ftcache_configuration_new(model, &settings, &staged));
    NAMED(ftcache_configuration_get(NULL, &report), "configuration");
    NAMED(ftcache_configuration_get(configuration, NULL), "report");
    NAMED(ftcache_configuration_text(NULL, text, sizeof text, &needed), "configuration");
    COUNTED(ftcache_configuration_text(configuration, NULL, sizeof text, &needed), "buffer", "a capacity of 8");
    NAMED(ftcache_configuration_layer_state(NULL, 0, &number), "configuration");
    NAMED(ftcache_configuration_layer_state(configuration, 0, NULL), "state");
    NAMED(ftcache_configuration_layer_fetch_get(NULL, 0, &fetch), "configuration");
    NAMED(ftcache_configuration_layer_fetch_get(configuration, 0, NULL), "fetch");
    NAMED(ftcache_configuration_pool_get(NULL, 0, &pool_report), "configuration");
    NAMED(ftcache_configuration_pool_get(configuration, 0, NULL), "report");
    NAMED(ftcache_configuration_layer_pool(NULL, 0, &number), "configuration");
    NAMED(ftcache_configuration_layer_pool(configuration, 0, NULL), "pool");
    NAMED(ftcache_configuration_slot_range_get(NULL, 0, 0, &range), "configuration");
    NAMED(ftcache_configuration_slot_range_get(configuration, 0, 0, NULL), "range");
    NAMED(ftcache_configuration_buffer_run_get(NULL, 0, 0, &run), "configuration");
    NAMED(ftcache_configuration_buffer_run_get(staged, 0, 0, NULL), "run");
    CHECK(number == 7 && strcmp(text, "as was") == 0 && report.pool_count == 0 && range.stride == 0 && run.count == 0);
    // These may be NULL.
    OK(ftcache_configuration_text(configuration, NULL, 0, &needed));
    OK(ftcache_configuration_text(configuration, text, sizeof text, NULL));
    CHECK(needed > sizeof text && strlen(text) == sizeof text - 1);
    ftcache_configuration_free(staged);
    ftcache_configuration_free(configuration);
    ftcache_configuration_free(NULL);
    ftcache_model_free(model);
}

// A count without its values.
static void of_settings(void) {
    ftcache_model *model = new_model();
    ftcache_configuration *out = NULL;
    ftcache_reserve reserve = {NULL, 1};
    ftcache_tag_limit limit = {NULL, 1, 4};
    ftcache_settings settings = settings_of(8);
    settings.reserve_count = 1;
    COUNTED(ftcache_configuration_new(model, &settings, &out), "settings->reserves", "a count of 1");
    settings.reserves = &reserve;
    NAMED(ftcache_configuration_new(model, &settings, &out), "settings->reserves[0].name");
    settings = settings_of(8);
    settings.batch_size_count = 1;
    COUNTED(ftcache_configuration_new(model, &settings, &out), "settings->batch_sizes", "a count of 1");
    settings = settings_of(8);
    settings.tag_limit_count = 1;
    COUNTED(ftcache_configuration_new(model, &settings, &out), "settings->tag_limits", "a count of 1");
    settings.tag_limits = &limit;
    COUNTED(ftcache_configuration_new(model, &settings, &out), "settings->tag_limits->tag", "a count of 1");
    settings = settings_of(8);
    settings.slotless_layer_count = 1;
    COUNTED(ftcache_configuration_new(model, &settings, &out), "settings->slotless_layers", "a count of 1");
    settings = settings_of(8);
    settings.resident_layer_count = 1;
    COUNTED(ftcache_configuration_new(model, &settings, &out), "settings->resident_layers", "a count of 1");
    settings = settings_of(8);
    settings.use_count_count = 24;
    COUNTED(ftcache_configuration_new(model, &settings, &out), "settings->use_counts", "a count of 24");
    settings = settings_of(8);
    settings.miss_count_count = 27;
    COUNTED(ftcache_configuration_new(model, &settings, &out), "settings->miss_counts", "a count of 27");
    ftcache_model_free(model);
}

static void of_making(ftcache *cache) {
    ftcache_configuration *configuration = new_configuration(8), *of = STALE(ftcache_configuration);
    SIZED(ftcache_config, config);
    SIZED(ftcache_host_rows, rows);
    SIZED(ftcache_report, report);
    SIZED(ftcache_layer_report, layer_report);
    SIZED(ftcache_slot_span, span);
    SIZED(ftcache_slot_owner, owner);
    ftcache *out = STALE(ftcache);
    NAMED(ftcache_new(configuration, NULL, NULL), "out");
    NAMED(ftcache_new(NULL, NULL, &out), "configuration");
    CHECK(out == NULL);
    out = STALE(ftcache);
    config.arena_count = BANKS;
    COUNTED(ftcache_new(configuration, &config, &out), "config->arenas", "a count of 2");
    CHECK(out == NULL);
    config.arena_count = 0;
    config.log_level = FTCACHE_LOG_LEVEL_INFO;
    COUNTED(ftcache_new(configuration, &config, &out), "config->log", "a log_level of 3");

    rows.bytes = 1;
    NAMED(ftcache_attach(NULL, 0, 0, &rows), "cache");
    NAMED(ftcache_attach(cache, 0, 0, NULL), "rows");
    NAMED(ftcache_attach(cache, 0, 0, &rows), "rows->base");
    NAMED(ftcache_register(NULL, host_rows, 64, 0, 0), "cache");
    NAMED(ftcache_register(cache, NULL, 64, 0, 0), "base");
    NAMED(ftcache_unregister(NULL, host_rows), "cache");
    NAMED(ftcache_unregister(cache, NULL), "base");
    NAMED(ftcache_report_get(NULL, &report), "cache");
    NAMED(ftcache_report_get(cache, NULL), "report");
    NAMED(ftcache_layer_get(NULL, 0, &layer_report), "cache");
    NAMED(ftcache_layer_get(cache, 0, NULL), "report");
    NAMED(ftcache_configuration_of(cache, NULL), "out");
    NAMED(ftcache_configuration_of(NULL, &of), "cache");
    CHECK(of == NULL);
    NAMED(ftcache_slot_span_get(NULL, 0, 0, &span), "cache");
    NAMED(ftcache_slot_span_get(cache, 0, 0, NULL), "span");
    NAMED(ftcache_slot_owner_get(NULL, 0, 0, &owner), "cache");
    NAMED(ftcache_slot_owner_get(cache, 0, 0, NULL), "owner");
    ftcache_configuration_free(configuration);
    ftcache_free(NULL);
}

static void of_upkeep(ftcache *cache) {
    const uint32_t zero = 0;
    const char *path = "a", *no_path = NULL;
    const ftcache_file_bank bank = {0, 0, {0, 0}, NULL};
    SIZED(ftcache_file_options, options);
    uint32_t residence = 7;
    NAMED(ftcache_forget(NULL, 0, 0), "cache");
    NAMED(ftcache_forget_layer(NULL, 0), "cache");
    NAMED(ftcache_reset(NULL), "cache");
    NAMED(ftcache_pin(NULL, &zero, &zero, 1), "cache");
    COUNTED(ftcache_pin(cache, NULL, &zero, 1), "layers", "a count of 1");
    COUNTED(ftcache_pin(cache, &zero, NULL, 1), "experts", "a count of 1");
    OK(ftcache_pin(cache, NULL, NULL, 0));
    NAMED(ftcache_unpin(NULL, &zero, &zero, 1), "cache");
    COUNTED(ftcache_unpin(cache, NULL, &zero, 1), "layers", "a count of 1");
    COUNTED(ftcache_unpin(cache, &zero, NULL, 1), "experts", "a count of 1");
    OK(ftcache_unpin(cache, NULL, NULL, 0));
    NAMED(ftcache_check(NULL), "cache");
    NAMED(ftcache_synchronize(NULL), "cache");
    NAMED(ftcache_load_files(NULL, &path, 1, &bank, 1, NULL, NULL), "cache");
    COUNTED(ftcache_load_files(cache, NULL, 1, &bank, 1, NULL, NULL), "paths", "a count of 1");
    NAMED(ftcache_load_files(cache, &no_path, 1, &bank, 1, NULL, NULL), "paths[0]");
    COUNTED(ftcache_load_files(cache, &path, 1, NULL, 1, NULL, NULL), "banks", "a count of 1");
    options.cpu_layer_count = 1;
    COUNTED(ftcache_load_files(cache, &path, 1, &bank, 1, &options, NULL), "options->cpu_layers", "a count of 1");
    NAMED(ftcache_layer_residence(NULL, 0, &residence, NULL, 0), "cache");
    NAMED(ftcache_layer_residence(cache, 0, NULL, NULL, 0), "residence");
    CHECK(residence == 7);
}

static void of_layers_from_files(void) {
    static const char path[] = "nulls_rows.bin", *const paths[] = {path};
    const ftcache_file_bank banks[] = {{0, 0, {0, 0}, NULL}, {0, 1, {0, 0}, NULL}};
    ftcache *cache = cache_of(new_configuration(8), NULL);
    FILE *file = fopen(path, "wb");
    uint32_t residence = 7;
    CHECK(file != NULL && fwrite(host_rows, sizeof host_rows[0][0], 1, file) == 1 && fclose(file) == 0);
    OK(ftcache_load_files(cache, paths, 1, banks, 2, NULL, NULL));
    CHECK(remove(path) == 0);
    NAMED(ftcache_layer_residence(cache, 0, NULL, NULL, 0), "residence");
    COUNTED(ftcache_layer_residence(cache, 0, &residence, NULL, 8), "buffer", "a capacity of 8");
    CHECK(residence == 7);
    OK(ftcache_layer_residence(cache, 0, &residence, NULL, 0));
    ftcache_free(cache);
}

static void of_steps(ftcache *cache, ftcache *planner) {
    const int32_t id = 0;
    const ftcache_step step = step_of(0);
    const uint32_t expert = 0;
    int32_t slot = -7, map[EXPERTS] = {-7};
    ftcache_routes routes = routes_of(&id, 1), no_ids = routes_of(NULL, 1);
    ftcache_slots slots = slots_of(&slot), no_slots = slots_of(NULL);
    SIZED(ftcache_plan, plan);
    SIZED(ftcache_hint_report, hint);
    SIZED(ftcache_hint_stats, hint_stats);
    uint32_t parts = 7;
    uint64_t number = 7;
    size_t needed = 7;
    char text[8] = "as was";

    NAMED(ftcache_load(NULL, &step, &routes, NULL, &slots), "cache");
    NAMED(ftcache_load(cache, NULL, &routes, NULL, &slots), "step");
    NAMED(ftcache_load(cache, &step, NULL, NULL, &slots), "routes");
    COUNTED(ftcache_load(cache, &step, &no_ids, NULL, &slots), "routes->ids", "1 rows of 1");
    COUNTED(ftcache_load(cache, &step, &routes, NULL, &no_slots), "slots->slots", "1 rows of 1");
    NAMED(ftcache_admit(NULL, &step, &routes, &slots), "cache");
    NAMED(ftcache_admit(planner, NULL, &routes, &slots), "step");
    NAMED(ftcache_admit(planner, &step, NULL, &slots), "routes");
    COUNTED(ftcache_admit(planner, &step, &no_ids, &slots), "routes->ids", "1 rows of 1");
    COUNTED(ftcache_admit(planner, &step, &routes, &no_slots), "slots->slots", "1 rows of 1");
    NAMED(ftcache_partition(NULL, &step, &routes, &parts), "cache");
    NAMED(ftcache_partition(cache, NULL, &routes, &parts), "step");
    NAMED(ftcache_partition(cache, &step, NULL, &parts), "routes");
    COUNTED(ftcache_partition(cache, &step, &no_ids, &parts), "routes->ids", "1 rows of 1");
    NAMED(ftcache_partition(cache, &step, &routes, NULL), "part_count");
    CHECK(parts == 7);
    OK(ftcache_partition(cache, &step, &routes, &parts));
    OK(ftcache_partition(planner, &step, &routes, &parts));
    NAMED(ftcache_load_part(NULL, 0, NULL, &slots), "cache");
    COUNTED(ftcache_load_part(cache, 0, NULL, &no_slots), "slots->slots", "1 rows of 1");
    NAMED(ftcache_admit_part(NULL, 0, &slots), "cache");
    COUNTED(ftcache_admit_part(planner, 0, &no_slots), "slots->slots", "1 rows of 1");
    NAMED(ftcache_accept(NULL, 0, &expert, 1), "cache");
    COUNTED(ftcache_accept(cache, 0, NULL, 1), "experts", "a count of 1");
    CHECK(slot == -7 && stats_of(cache).steps == 0 && stats_of(planner).steps == 0);
    COUNTED(ftcache_hint(cache, 0, &no_ids, 0, &hint), "routes->ids", "1 rows of 1");
    // No routes need no memory.
    no_ids.row_count = 0;
    OK(ftcache_load(cache, &step, &no_ids, NULL, &no_slots));

    NAMED(ftcache_land(NULL, &number), "cache");
    NAMED(ftcache_plan_get(NULL, &plan), "cache");
    NAMED(ftcache_plan_get(cache, NULL), "plan");
    NAMED(ftcache_plan_text(NULL, text, sizeof text, &needed), "cache");
    COUNTED(ftcache_plan_text(cache, NULL, sizeof text, &needed), "buffer", "a capacity of 8");
    NAMED(ftcache_plan_map(NULL, map, EXPERTS, -1), "cache");
    COUNTED(ftcache_plan_map(cache, NULL, EXPERTS, -1), "map", "a count of 8");
    NAMED(ftcache_commit(NULL), "cache");
    NAMED(ftcache_abort(NULL), "cache");
    NAMED(ftcache_admit_later(NULL, 1, &number), "cache");
    NAMED(ftcache_admit_later(planner, 1, NULL), "flight");
    NAMED(ftcache_land_flight(NULL, 0, &number), "cache");
    NAMED(ftcache_hint(NULL, 0, &routes, 0, &hint), "cache");
    NAMED(ftcache_hint(cache, 0, NULL, 0, &hint), "routes");
    NAMED(ftcache_admit_hint(NULL, 0, &routes, 0, &hint), "cache");
    NAMED(ftcache_admit_hint(planner, 0, NULL, 0, &hint), "routes");
    NAMED(ftcache_cancel_hint(NULL, 0, &number), "cache");
    NAMED(ftcache_hint_stats_get(NULL, &hint_stats), "cache");
    NAMED(ftcache_hint_stats_get(cache, NULL), "stats");
    NAMED(ftcache_layer_hint_stats_get(NULL, 0, &hint_stats), "cache");
    NAMED(ftcache_layer_hint_stats_get(cache, 0, NULL), "stats");
    CHECK(hint.hint == 0 && hint_stats.started == 0);
    CHECK(number == 7 && map[0] == -7 && strcmp(text, "as was") == 0);
    // After a step of one route, since with none these arrays may be NULL.
    OK(ftcache_load(cache, &step, &routes, NULL, NULL));
    {
        const float weight = 1;
        float device = 7, cpu = 7;
        NAMED(ftcache_plan_cpu_experts(NULL, &slot, 1, -1), "cache");
        COUNTED(ftcache_plan_cpu_experts(cache, NULL, 1, -1), "experts", "a count of 1");
        NAMED(ftcache_plan_split_weights(NULL, &weight, &device, &cpu, 1), "cache");
        COUNTED(ftcache_plan_split_weights(cache, NULL, &device, &cpu, 1), "weights", "a count of 1");
        COUNTED(ftcache_plan_split_weights(cache, &weight, NULL, &cpu, 1), "device_weights", "a count of 1");
        COUNTED(ftcache_plan_split_weights(cache, &weight, &device, NULL, 1), "cpu_weights", "a count of 1");
        CHECK(slot == -7 && device == 7 && cpu == 7);
    }
}

// In device mode, where all but the NULL is right.
static void of_device_mode(void) {
    const ftcache_step step = step_of(0);
    SIZED(ftcache_config, config);
    SIZED(ftcache_device_options, options);
    SIZED(ftcache_device_step, device_step);
    SIZED(ftcache_device_reading, reading);
    SIZED(ftcache_stats, stats);
    SIZED(ftcache_plan, plan);
    int32_t route = 0;
    const uint32_t word = 0;
    uint32_t is_there = 7;
    ftcache_settings settings = settings_of(8);
    ftcache *cache;
    config.device = FTCACHE_DEVICE_CUDA;
    config.cuda_driver = getenv("FTCACHE_TEST_CUDA_DRIVER");
    CHECK(config.cuda_driver != NULL);
    settings.admission = FTCACHE_ADMISSION_DEVICE;
    cache = cache_of(configuration_of(&settings), &config);
    OK(ftcache_register(cache, host_rows, sizeof host_rows, 0, 0));
    attach_all(cache);
    NAMED(ftcache_device_enter(NULL, &options), "cache");
    OK(ftcache_device_enter(cache, NULL));
    device_step.step = &step;
    device_step.row_count = device_step.row_width = 1;
    device_step.ids.address = &route;
    NAMED(ftcache_device_admit(NULL, NULL, &device_step), "cache");
    NAMED(ftcache_device_admit(cache, NULL, NULL), "step");
    device_step.step = NULL;
    NAMED(ftcache_device_admit(cache, NULL, &device_step), "step->step");
    device_step.step = &step;
    device_step.ids.address = NULL;
    NAMED(ftcache_device_admit(cache, NULL, &device_step), "step->ids.address");
    NAMED(ftcache_device_gather(NULL, NULL, 0), "cache");
    NAMED(ftcache_device_gather_after(NULL, NULL, 0, &word, 1), "cache");
    REFUSED(ftcache_device_gather_after(cache, NULL, 0, NULL, 1), INVALID_ARGUMENT,
            "word is 0x0, not an aligned address");
    NAMED(ftcache_device_reset(NULL, NULL), "cache");
    NAMED(ftcache_device_chunk_begin(NULL, NULL), "cache");
    NAMED(ftcache_device_chunk_stage(NULL, NULL, 0, 0), "cache");
    NAMED(ftcache_device_chunk_materialize(NULL, NULL, 0, 0), "cache");
    NAMED(ftcache_device_chunk_end(NULL, NULL), "cache");
    NAMED(ftcache_device_reading_request(NULL, NULL), "cache");
    NAMED(ftcache_device_reading_get(NULL, &reading), "cache");
    NAMED(ftcache_device_reading_get(cache, NULL), "reading");
    NAMED(ftcache_device_phase_stats_get(NULL, 0, 0, &is_there, &stats), "cache");
    NAMED(ftcache_device_phase_stats_get(cache, 0, 0, NULL, &stats), "is_there");
    NAMED(ftcache_device_phase_stats_get(cache, 0, 0, &is_there, NULL), "stats");
    NAMED(ftcache_device_plan_get(NULL, 0, &plan), "cache");
    NAMED(ftcache_device_plan_get(cache, 0, NULL), "plan");
    CHECK(is_there == 7);
    NAMED(ftcache_device_leave(NULL), "cache");
    OK(ftcache_device_leave(cache));
    ftcache_free(cache);
}

static ftcache *new_planner(void) {
    ftcache_settings settings = settings_of(24);
    settings.staging = FTCACHE_STAGING_DEDICATED;
    return planner_of(configuration_of(&settings));
}

static void of_chunks(ftcache *cache) {
    ftcache *planner = new_planner();
    SIZED(ftcache_stage_plan, plan);
    SIZED(ftcache_chunk_report, report);
    SIZED(ftcache_slot_span, span);
    uint32_t buffer = 7;
    NAMED(ftcache_chunk_begin(NULL, NULL), "cache");
    NAMED(ftcache_chunk_prefetch(NULL, 0), "cache");
    NAMED(ftcache_chunk_materialize(NULL, 0), "cache");
    OK(ftcache_chunk_begin(planner, NULL));
    OK(ftcache_chunk_prefetch(planner, 0));
    NAMED(ftcache_stage_plan_get(NULL, 0, &plan), "cache");
    NAMED(ftcache_stage_plan_get(planner, 0, NULL), "plan");
    ftcache_free(planner);
    NAMED(ftcache_chunk_wait(NULL, 0, &buffer), "cache");
    NAMED(ftcache_chunk_wait(cache, 0, NULL), "buffer");
    CHECK(buffer == 7);
    NAMED(ftcache_chunk_release(NULL, 0), "cache");
    NAMED(ftcache_chunk_end(NULL, &report), "cache");
    NAMED(ftcache_chunk_abandon(NULL, &report), "cache");
    NAMED(ftcache_chunk_total_get(NULL, &report), "cache");
    NAMED(ftcache_chunk_total_get(cache, NULL), "report");
    NAMED(ftcache_staged_span_get(NULL, 0, 0, 0, &span), "cache");
    NAMED(ftcache_staged_span_get(cache, 0, 0, 0, NULL), "span");
}

static void of_reports(ftcache *cache) {
    ftcache_configuration *configuration = new_configuration(8);
    SIZED(ftcache_stats, stats);
    SIZED(ftcache_rebuild_report, report);
    SIZED(ftcache_device_facts, facts);
    const ftcache_placement *placements = NULL;
    uint64_t number = 7;
    uint32_t spilled = 7;
    size_t needed = 7;
    char text[8] = "as was";
    NAMED(ftcache_stats_get(NULL, &stats), "cache");
    NAMED(ftcache_stats_get(cache, NULL), "stats");
    NAMED(ftcache_layer_stats_get(NULL, 0, &stats), "cache");
    NAMED(ftcache_layer_stats_get(cache, 0, NULL), "stats");
    NAMED(ftcache_phase_stats_get(NULL, 0, 0, &stats), "cache");
    NAMED(ftcache_phase_stats_get(cache, 0, 0, NULL), "stats");
    NAMED(ftcache_pool_stats_get(NULL, 0, &stats), "cache");
    NAMED(ftcache_pool_stats_get(cache, 0, NULL), "stats");
    NAMED(ftcache_stats_json(NULL, text, sizeof text, &needed), "cache");
    COUNTED(ftcache_stats_json(cache, NULL, sizeof text, &needed), "buffer", "a capacity of 8");
    NAMED(ftcache_stats_reset(NULL), "cache");
    NAMED(ftcache_digest(NULL, &number), "cache");
    NAMED(ftcache_digest(cache, NULL), "digest");
    NAMED(ftcache_generation(NULL, &number), "cache");
    NAMED(ftcache_generation(cache, NULL), "generation");
    NAMED(ftcache_rebuild(NULL, configuration, 1, 0, &report), "cache");
    NAMED(ftcache_rebuild(cache, NULL, 1, 0, &report), "configuration");
    NAMED(ftcache_residents_get(NULL, 1, text, sizeof text, &needed), "cache");
    COUNTED(ftcache_residents_get(cache, 1, NULL, sizeof text, &needed), "buffer", "a count of 8");
    NAMED(ftcache_residents_get(cache, 1, text, sizeof text, NULL), "needed");
    NAMED(ftcache_bring_back(NULL, NULL, text, sizeof text, 1, &number), "cache");
    COUNTED(ftcache_bring_back(cache, NULL, NULL, sizeof text, 1, &number), "bytes", "a count of 8");
    NAMED(ftcache_placements_get(NULL, &placements, &number), "cache");
    NAMED(ftcache_placements_get(cache, NULL, &number), "placements");
    NAMED(ftcache_placements_get(cache, &placements, NULL), "count");
    NAMED(ftcache_device_facts_get(NULL, &facts), "cache");
    NAMED(ftcache_device_facts_get(cache, NULL), "facts");
    NAMED(ftcache_device_text(NULL, text, sizeof text, &needed), "cache");
    COUNTED(ftcache_device_text(cache, NULL, sizeof text, &needed), "buffer", "a capacity of 8");
    NAMED(ftcache_arenas_measure(NULL, &spilled, text, sizeof text), "cache");
    NAMED(ftcache_arenas_measure(cache, NULL, text, sizeof text), "spilled");
    COUNTED(ftcache_arenas_measure(cache, &spilled, NULL, sizeof text), "buffer", "a capacity of 8");
    CHECK(number == 7 && spilled == 7 && strcmp(text, "as was") == 0 && placements == NULL);
    ftcache_configuration_free(configuration);
}

// Each pointer of which the header says that it may be NULL, and that is nowhere above.
static void of_recorders(void) {
    ftcache_recorder_config config = {sizeof config, 0, 2, 8, 2, 0, 4096, NULL};
    ftcache_recorder *out = STALE(ftcache_recorder), *recorder = NULL;
    const int32_t ids[] = {1, 2};
    ftcache_routes routes = routes_of(ids, 2);
    SIZED(ftcache_recorder_report, report);
    NAMED(ftcache_recorder_new(&config, NULL), "out");
    NAMED(ftcache_recorder_new(NULL, &out), "config");
    CHECK(out == NULL);
    OK(ftcache_recorder_new(&config, &recorder));
    NAMED(ftcache_recorder_begin(NULL, 0, 0), "recorder");
    NAMED(ftcache_recorder_record(NULL, 0, &routes), "recorder");
    NAMED(ftcache_recorder_record(recorder, 0, NULL), "routes");
    NAMED(ftcache_recorder_get(NULL, &report), "recorder");
    NAMED(ftcache_recorder_get(recorder, NULL), "report");
    NAMED(ftcache_recorder_write(NULL, "nulls_trace.ftr"), "recorder");
    NAMED(ftcache_recorder_write(recorder, NULL), "path");
    ftcache_recorder_free(recorder);
    ftcache_recorder_free(NULL);
}

static void of_miss_counts(void) {
    ftcache_model *model = new_model();
    uint64_t counts[LAYERS * (EXPERTS + 1)] = {7};
    const uint64_t count = LAYERS * (EXPERTS + 1);
    size_t needed = 7;
    char text[8] = "as was";
    NAMED(ftcache_model_miss_counts(NULL, "nulls.ftr", counts, count, text, sizeof text, &needed), "model");
    NAMED(ftcache_model_miss_counts(model, NULL, counts, count, text, sizeof text, &needed), "path");
    COUNTED(ftcache_model_miss_counts(model, "nulls.ftr", NULL, count, text, sizeof text, &needed), "miss_counts",
            "a count of 27");
    {
        // A token of layer 2 alone, which uses two experts.
        const ftcache_recorder_config config = {sizeof config, 0, LAYERS, EXPERTS, 2, 0, 4096, "nulls"};
        const int32_t ids[] = {1, 2};
        const ftcache_routes routes = routes_of(ids, 2);
        ftcache_recorder *recorder = NULL;
        OK(ftcache_recorder_new(&config, &recorder));
        OK(ftcache_recorder_record(recorder, 2, &routes));
        OK(ftcache_recorder_write(recorder, "nulls_miss_counts.ftr"));
        ftcache_recorder_free(recorder);
    }
    COUNTED(ftcache_model_miss_counts(model, "nulls_miss_counts.ftr", counts, count, NULL, sizeof text, &needed),
            "buffer", "a capacity of 8");
    CHECK(counts[0] == 7 && needed == 7 && strcmp(text, "as was") == 0);
    // These may be NULL.
    OK(ftcache_model_miss_counts(model, "nulls_miss_counts.ftr", counts, count, NULL, 0, &needed));
    OK(ftcache_model_miss_counts(model, "nulls_miss_counts.ftr", counts, count, text, sizeof text, NULL));
    CHECK(counts[0] == 0 && counts[count - 1] == 2 && needed == sizeof "nulls" && strcmp(text, "nulls") == 0);
    CHECK(remove("nulls_miss_counts.ftr") == 0);
    ftcache_model_free(model);
}

static void that_are_accepted(void) {
    const int32_t id = 0;
    const ftcache_routes routes = routes_of(&id, 1);
    ftcache_configuration *configuration = new_configuration(8);
    ftcache *cache = new_cache(8), *planner = new_planner(), *hinting;
    SIZED(ftcache_config, config);
    ftcache_step step = step_of(0);
    char text[8];
    unsigned char saved[256];
    uint64_t flight;
    uint32_t parts;
    size_t count;
    OK(ftcache_admit(planner, &step, &routes, NULL));
    OK(ftcache_abort(planner));
    OK(ftcache_partition(planner, &step, &routes, &parts));
    OK(ftcache_admit_part(planner, 0, NULL));
    OK(ftcache_abort(planner));
    step.misses = FTCACHE_MISSES_HYBRID;
    step.fetch_rule = FTCACHE_FETCH_RULE_UP_TO;
    OK(ftcache_admit(planner, &step, &routes, NULL));
    OK(ftcache_commit(planner));
    OK(ftcache_admit_later(planner, 1, &flight));
    OK(ftcache_commit(planner));
    OK(ftcache_land_flight(planner, flight, NULL));
    OK(ftcache_admit_hint(planner, 1, &routes, 26, NULL));
    OK(ftcache_abort(planner));
    OK(ftcache_cancel_hint(planner, 0, NULL));
    config.hint_flight_count = 1;
    hinting = cache_of(new_configuration(8), &config);
    attach_all(hinting);
    OK(ftcache_hint(hinting, 0, &routes, 26, NULL));
    ftcache_free(hinting);
    OK(ftcache_chunk_begin(planner, NULL));
    OK(ftcache_chunk_end(planner, NULL));
    OK(ftcache_chunk_begin(planner, NULL));
    OK(ftcache_chunk_abandon(planner, NULL));

    step = step_of(0);
    OK(ftcache_partition(cache, &step, &routes, &parts));
    OK(ftcache_load_part(cache, 0, NULL, NULL));
    OK(ftcache_land(cache, NULL));
    OK(ftcache_plan_text(cache, text, sizeof text, NULL));
    OK(ftcache_stats_json(cache, text, sizeof text, NULL));
    OK(ftcache_device_text(cache, text, sizeof text, NULL));
    OK(ftcache_residents_get(cache, 1, saved, sizeof saved, &count));
    OK(ftcache_rebuild(cache, configuration, 0, 0, NULL));
    OK(ftcache_bring_back(cache, NULL, saved, count, 1, NULL));
    CHECK(stats_of(cache).steps == 0 && stats_of(planner).steps == 1);
    ftcache_free(planner);
    ftcache_free(cache);
    ftcache_configuration_free(configuration);
}

int main(void) {
    ftcache *cache = new_cache(8), *planner = new_planner();
    of_models();
    of_configurations();
    of_settings();
    of_making(cache);
    of_upkeep(cache);
    of_layers_from_files();
    of_steps(cache, planner);
    of_device_mode();
    of_chunks(cache);
    of_reports(cache);
    of_recorders();
    of_miss_counts();
    that_are_accepted();
    NAMED(ftcache_reset(NULL), "cache");
    CHECK(ftcache_last_error_copy(NULL, 0) == sizeof "cache is NULL");
    ftcache_free(planner);
    ftcache_free(cache);
    return 0;
}
