// Ways to call it wrong that a status can answer: the status, the message, and that nothing has changed. Those of NULL
// are in nulls.c.

#include "check.h"

static void sizes_are_read(void) {
    // A struct as a later header might have it: longer, with a tail that this library does not know.
    struct { ftcache_model_config known; uint64_t later; } longer = {{sizeof longer, 1, 4, 2, 0, 0}, 0};
    ftcache_model_config config = {0, 1, 4, 2, 0, 0};
    ftcache_model *model = NULL;
    REFUSED(ftcache_model_new(&config, &model), INVALID_ARGUMENT,
            "config->struct_size is 0; this library's struct has 24");
    config.struct_size = 3;
    REFUSED(ftcache_model_new(&config, &model), INVALID_ARGUMENT,
            "config->struct_size is 3; this library's struct has 24");
    // An earlier header ended before one_quantisation; what stands there is not read.
    config.struct_size = 16;
    config.one_quantisation = 77;
    OK(ftcache_model_new(&config, &model));
    ftcache_model_free(model);
    config.struct_size = sizeof config;
    REFUSED(ftcache_model_new(&config, &model), INVALID_ARGUMENT, "config->one_quantisation is 77, not 0 or 1");
    CHECK(model == NULL);
    OK(ftcache_model_new(&longer.known, &model));
    ftcache_model_free(model);
    longer.later = 1;
    REFUSED(ftcache_model_new(&longer.known, &model), INVALID_ARGUMENT,
            "config has 32 bytes, and byte 24 is set; this library knows 24 bytes of it");
    config.one_quantisation = 0;
    config.reserved = 5;
    REFUSED(ftcache_model_new(&config, &model), INVALID_ARGUMENT, "config->reserved is 5; it must be 0");
    {
        // Of a report that is shorter, only what it has room for is written.
        ftcache_configuration *configuration = new_configuration(8);
        ftcache_configuration_report report;
        memset(&report, 7, sizeof report);
        report.struct_size = 8;
        OK(ftcache_configuration_get(configuration, &report));
        CHECK(report.struct_size == 8 && report.pool_count == 2 && report.bank_count == 0x07070707);
        report.struct_size = 0;
        REFUSED(ftcache_configuration_get(configuration, &report), INVALID_ARGUMENT,
                "report->struct_size is 0; this library's struct has 136");
        ftcache_configuration_free(configuration);
    }
}

static void configurations_that_cannot_be_had(void) {
    ftcache_model *model = new_model();
    ftcache_configuration *configuration = NULL;
    ftcache_settings settings = settings_of(0);
    REFUSED(ftcache_configuration_new(model, &settings, &configuration), INVALID_ARGUMENT,
            "settings have none of budget, budget_bytes and slot_count");
    settings.budget_bytes = 100;
    settings.slot_count = 8;
    REFUSED(ftcache_configuration_new(model, &settings, &configuration), INVALID_ARGUMENT,
            "settings have budget NULL, budget_bytes 100 and slot_count 8; one of them is to be set");
    settings.slot_count = 0;
    // Two slots in each pool, 42 and 26 bytes each, and a pad of one row after each pool.
    REFUSED(ftcache_configuration_new(model, &settings, &configuration), UNSATISFIABLE,
            "the pools need at least 204 bytes; 100 are given");
    settings.budget_bytes = 204;
    OK(ftcache_configuration_new(model, &settings, &configuration));
    ftcache_configuration_free(configuration);
    settings.budget_bytes = 0;
    settings.slot_count = 25;
    REFUSED(ftcache_configuration_new(model, &settings, &configuration), UNSATISFIABLE,
            "the pools can use 24 slots; 25 are given");
    settings.slot_count = 8;
    settings.request_count = 3;
    REFUSED(ftcache_configuration_new(model, &settings, &configuration), UNSATISFIABLE,
            "the pools need at least 12 slots; 8 are given");
    settings.request_count = 0;
    settings.scope = 2;
    REFUSED(ftcache_configuration_new(model, &settings, &configuration), INVALID_ARGUMENT,
            "settings->scope is 2, not an ftcache_scope");
    settings.scope = FTCACHE_SCOPE_PER_LAYER;
    settings.tail_pad_bytes = 16;
    REFUSED(ftcache_configuration_new(model, &settings, &configuration), INVALID_ARGUMENT,
            "settings->tail_pad_bytes is 16, which counts only if tail_pad is FTCACHE_TAIL_PAD_BYTES");
    settings.tail_pad = 2;
    REFUSED(ftcache_configuration_new(model, &settings, &configuration), INVALID_ARGUMENT,
            "settings->tail_pad is 2, not an ftcache_tail_pad");
    settings.tail_pad = FTCACHE_TAIL_PAD_BYTES;
    settings.alignment = 12;
    REFUSED(ftcache_configuration_new(model, &settings, &configuration), UNSATISFIABLE,
            "an alignment of 12 bytes is not a power of two");
    CHECK(configuration == NULL);
    {
        ftcache_model_config two_layers = {sizeof two_layers, 2, 4, 2, 0, 0};
        const uint64_t row_bytes = 16;
        ftcache_layer key = {sizeof key, 1, &row_bytes, NULL, 0};
        ftcache_model *untagged = NULL;
        OK(ftcache_model_new(&two_layers, &untagged));
        OK(ftcache_model_layer_set(untagged, 0, &key));
        REFUSED(ftcache_model_layer_set(untagged, 2, &key), OUT_OF_RANGE, "no layer 2: the model has 2 layers");
        settings.alignment = 0;
        REFUSED(ftcache_configuration_new(untagged, &settings, &configuration), INVALID_ARGUMENT, 
                "layer 1 of 2 is not set: ftcache_model_layer_set");
        OK(ftcache_model_layer_set(untagged, 1, &key));
        REFUSED(ftcache_configuration_new(untagged, &settings, &configuration), UNSATISFIABLE,
                "layers 0 and 1 both have 16 bytes an expert and no quantisation tag; tag them, or declare one "
                "quantisation for all layers");
        ftcache_model_free(untagged);
    }
    {
        SIZED(ftcache_config, small);
        ftcache *cache = NULL;
        small.device_bytes = 150;
        configuration = new_configuration(8);
        REFUSED(ftcache_new(configuration, &small, &cache), OUT_OF_MEMORY,
                "304 bytes of device memory wanted; 150 are free");
        CHECK(cache == NULL);
        small.device_bytes = 0;
        small.device = 3;
        REFUSED(ftcache_new(configuration, &small, &cache), INVALID_ARGUMENT,
                "config->device is 3, not an ftcache_device");
        ftcache_configuration_free(configuration);
    }
    ftcache_model_free(model);
}

static void steps_that_cannot_be_taken(void) {
    ftcache *cache = new_cache(8);
    const int32_t seen[] = {0, 1};
    int32_t slot[EXPERTS] = {-7, -7, -7, -7, -7, -7, -7, -7};
    int32_t ids[EXPERTS] = {0, 1, 2, 3, 4, 5, 6, 7};
    ftcache_routes routes = routes_of(seen, 2);
    ftcache_slots slots = slots_of(slot);
    ftcache_stats before;
    OK(load(cache, 1, &routes, &slots));
    before = stats_of(cache);

    routes = routes_of(ids, 4);
    slot[0] = -7;
    REFUSED(load(cache, 1, &routes, &slots), STEP_TOO_WIDE,
            "layer 1 routes to 4 distinct experts; pool 0 has 3 slots");
    CHECK(slot[0] == -7);
    ids[2] = EXPERTS;
    REFUSED(load(cache, 1, &routes, &slots), OUT_OF_RANGE,
            "layer 1: route 2 is 8, which is no expert of 0..8");
    ids[2] = -1;
    REFUSED(load(cache, 1, &routes, &slots), OUT_OF_RANGE,
            "layer 1: route 2 is -1, which is no expert of 0..8");
    REFUSED(load(cache, LAYERS, &routes, &slots), OUT_OF_RANGE, "no layer 3: the cache has 3 layers");
    routes.has_absent = 1;
    routes.absent_id = -1;
    slots.absent_slot = 2;
    REFUSED(load(cache, 1, &routes, &slots), INVALID_ARGUMENT,
            "slots->absent_slot is 2, a slot of pool 0");
    slots.absent_slot = (int64_t)1 << 32;
    REFUSED(load(cache, 1, &routes, &slots), INVALID_ARGUMENT,
            "slots->absent_slot is 4294967296, too much for 4 bytes");
    slots.absent_slot = -1;
    routes.absent_id = 0;
    REFUSED(load(cache, 1, &routes, &slots), INVALID_ARGUMENT,
            "the id of an absent route is 0, an expert of 0..8");
    routes.has_absent = 2;
    REFUSED(load(cache, 1, &routes, &slots), INVALID_ARGUMENT, "routes->has_absent is 2, not 0 or 1");
    routes.has_absent = 0;
    routes.id_bytes = 2;
    REFUSED(load(cache, 1, &routes, &slots), INVALID_ARGUMENT, "routes->id_bytes is 2, not 4 or 8");
    routes.id_bytes = 4;
    slots.slot_bytes = 16;
    REFUSED(load(cache, 1, &routes, &slots), INVALID_ARGUMENT, "slots->slot_bytes is 16, not 4 or 8");
    slots.slot_bytes = 0;
    routes.row_count = 2;
    routes.row_stride_bytes = 12;
    REFUSED(load(cache, 1, &routes, &slots), INVALID_ARGUMENT,
            "routes->ids: a row stride of 12 bytes is less than the row's 16");
    routes.row_count = UINT64_MAX;
    routes.row_stride_bytes = 0;
    REFUSED(load(cache, 1, &routes, &slots), INVALID_ARGUMENT,
            "routes->ids: 18446744073709551615 rows of 4 do not fit in memory");
    // In place of ids, slots lie as these do.
    {
        int32_t view[2][EXPERTS] = {{0, 1, 90, 91}, {1, 0, 92, 93}};
        ftcache_slots in_place = slots_of(&view[0][0]);
        REFUSED(ftcache_load_part(cache, 0, NULL, &in_place), OUT_OF_ORDER, "no step is partitioned");
        routes = routes_of(&view[0][0], 2);
        routes.row_count = 2;
        routes.row_stride_bytes = sizeof view[0];
        REFUSED(load(cache, 1, &routes, &in_place), INVALID_ARGUMENT,
                "slots->slots is routes->ids, with rows 8 bytes apart in place of rows 32 bytes apart");
        in_place.row_stride_bytes = sizeof view[0];
        in_place.slot_bytes = 8;
        REFUSED(load(cache, 1, &routes, &in_place), INVALID_ARGUMENT,
                "slots->slots is routes->ids, with slots of 8 bytes in place of ids of 4");
        CHECK(view[0][0] == 0 && view[1][0] == 1 && view[1][2] == 92);
    }
    // Rows of nothing are nothing, however many.
    routes.row_width = 0;
    OK(load(cache, 1, &routes, &slots));
    before = stats_of(cache);
    {
        // Two misses, of which one would take a slot from an expert.
        ftcache_streams streams = {sizeof streams, 0, (void *)(uintptr_t)77, NULL};
        const int32_t misses[] = {6, 7};
        const ftcache_step step = step_of(1);
        routes = routes_of(misses, 2);
        REFUSED(ftcache_load(cache, &step, &routes, &streams, &slots), INVALID_ARGUMENT,
                "stream 77 is not of this device");
        streams.compute = NULL;
        streams.copy = (void *)(uintptr_t)78;
        REFUSED(ftcache_load(cache, &step, &routes, &streams, &slots), INVALID_ARGUMENT,
                "stream 78 is not of this device");
    }

    // Nothing of all this was counted, and both experts are still where they were.
    CHECK(memcmp(&before, (ftcache_stats[]){stats_of(cache)}, sizeof before) == 0);
    routes = routes_of(seen, 2);
    slots = slots_of(slot);
    OK(load(cache, 1, &routes, &slots));
    CHECK(stats_of(cache).hits == 2 && slot_holds(cache, 1, slot[0], 0) && slot_holds(cache, 1, slot[1], 1));
    ftcache_free(cache);
}

static void things_that_are_not_there(void) {
    ftcache_configuration *configuration = new_configuration(8);
    ftcache *cache = NULL;
    SIZED(ftcache_pool_report, pool);
    SIZED(ftcache_slot_range, range);
    SIZED(ftcache_slot_span, span);
    SIZED(ftcache_stats, stats);
    ftcache_host_rows rows = {sizeof rows, 0, host_rows, 24 * EXPERTS - 1, 0};
    const int32_t id = 0;
    int32_t slot = -7;
    uint32_t of_layer = 9;
    ftcache_routes routes = routes_of(&id, 1);
    ftcache_slots slots = slots_of(&slot);

    REFUSED(ftcache_configuration_pool_get(configuration, 2, &pool), OUT_OF_RANGE, "no pool 2: there are 2 pools");
    REFUSED(ftcache_configuration_layer_pool(configuration, 3, &of_layer), OUT_OF_RANGE,
            "no layer 3: the model has 3 layers");
    REFUSED(ftcache_configuration_slot_range_get(configuration, 2, 0, &range), OUT_OF_RANGE,
            "no pool 2: there are 2 pools");
    REFUSED(ftcache_configuration_slot_range_get(configuration, 0, 2, &range), OUT_OF_RANGE,
            "no bank 2: the model has 2 banks");

    OK(ftcache_new(configuration, NULL, &cache));
    REFUSED(load(cache, 0, &routes, &slots), NOT_ATTACHED, "layer 0 bank 0 is not attached");
    REFUSED(ftcache_attach(cache, 0, 0, &rows), INVALID_ARGUMENT,
            "layer 0 bank 0: 8 rows of 24 bytes at a stride of 24 need 192 bytes; 191 are given");
    rows.stride = 23;
    REFUSED(ftcache_attach(cache, 0, 0, &rows), INVALID_ARGUMENT,
            "layer 0 bank 0: a stride of 23 bytes is less than the row's 24");
    rows.base = NULL;
    REFUSED(ftcache_attach(cache, 0, 0, &rows), INVALID_ARGUMENT, "rows->base is NULL");
    rows.base = host_rows;
    REFUSED(ftcache_attach(cache, 3, 0, &rows), OUT_OF_RANGE, "no layer 3: the model has 3 layers");
    REFUSED(ftcache_attach(cache, 0, 2, &rows), OUT_OF_RANGE, "no bank 2: the model has 2 banks");
    attach_rows(cache, 0, 0);
    REFUSED(load(cache, 0, &routes, &slots), NOT_ATTACHED, "layer 0 bank 1 is not attached");
    CHECK(slot == -7 && stats_of(cache).steps == 0);
    attach_rows(cache, 0, 1);
    OK(load(cache, 0, &routes, &slots));
    CHECK(slot_holds(cache, 0, slot, 0));

    REFUSED(ftcache_slot_span_get(cache, 2, 0, &span), OUT_OF_RANGE, "no pool 2: the cache has 2 pools");
    REFUSED(ftcache_slot_span_get(cache, 0, 2, &span), OUT_OF_RANGE, "no bank 2: the model has 2 banks");
    REFUSED(ftcache_forget(cache, 0, 3), OUT_OF_RANGE, "no slot 3: pool 0 has 3 slots");
    REFUSED(ftcache_forget_layer(cache, 3), OUT_OF_RANGE, "no layer 3: the cache has 3 layers");
    REFUSED(ftcache_layer_stats_get(cache, 3, &stats), OUT_OF_RANGE, "no layer 3: the cache has 3 layers");
    REFUSED(ftcache_pool_stats_get(cache, 2, &stats), OUT_OF_RANGE, "no pool 2: the cache has 2 pools");
    ftcache_free(cache);
    ftcache_configuration_free(configuration);
}

int main(void) {
    sizes_are_read();
    configurations_that_cannot_be_had();
    steps_that_cannot_be_taken();
    things_that_are_not_there();
    return 0;
}
