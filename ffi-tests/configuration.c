// What budgets, limits and reserves come to, in numbers that were worked out beforehand; what was declined or lowered,
// and why; and that a cache says the same of itself later.

#include "check.h"

static ftcache_configuration_report report_of(const ftcache_configuration *configuration) {
    SIZED(ftcache_configuration_report, report);
    OK(ftcache_configuration_get(configuration, &report));
    return report;
}

static ftcache_pool_report pool_of(const ftcache_configuration *configuration, uint32_t pool) {
    SIZED(ftcache_pool_report, report);
    OK(ftcache_configuration_pool_get(configuration, pool, &report));
    return report;
}

static ftcache_slot_range range_of(const ftcache_configuration *configuration, uint32_t pool, uint32_t bank) {
    SIZED(ftcache_slot_range, range);
    OK(ftcache_configuration_slot_range_get(configuration, pool, bank, &range));
    return range;
}

// The whole text, in memory of the test's.
static const char *text_of(const ftcache_configuration *configuration) {
    static char text[8192];
    size_t needed = 0;
    OK(ftcache_configuration_text(configuration, text, sizeof text, &needed));
    CHECK(needed == strlen(text) + 1);
    return text;
}

// Settings of a byte budget, no pads, and slots that staging lies on.
static ftcache_settings bytes_of(uint64_t budget_bytes) {
    SIZED(ftcache_settings, settings);
    settings.budget_bytes = budget_bytes;
    settings.tail_pad = FTCACHE_TAIL_PAD_BYTES;
    return settings;
}

// 39 layers of 5.0625 MiB an expert and 8 of 18 MiB, 256 experts, top 10: the budget of 480 of the wide ones.
static void two_geometries_share_a_budget(void) {
    const ftcache_model_config config = {sizeof config, 47, 256, 10, 0, 0};
    const uint64_t narrow[] = {3538944, 1769472}, wide[] = {12582912, 6291456};
    ftcache_settings settings = bytes_of(0);
    ftcache_configuration_report report;
    ftcache_configuration *configuration;
    ftcache_model *model = NULL;
    uint32_t layer;
    OK(ftcache_model_new(&config, &model));
    for (layer = 0; layer < 47; layer++) {
        const ftcache_layer key = {sizeof key, 2, layer < 39 ? narrow : wide, layer < 39 ? "q4" : "f16", 2};
        OK(ftcache_model_layer_set(model, layer, &key));
    }
    settings.budget = "480*18874368";
    configuration = configured(model, &settings);
    report = report_of(configuration);
    CHECK(report.pool_count == 2 && report.slot_count == 1190 && report.request_limit == 20);
    CHECK(pool_of(configuration, 0).slot_count == 202 && pool_of(configuration, 1).slot_count == 988);
    CHECK(pool_of(configuration, 0).slot_bytes == 18874368 && pool_of(configuration, 0).layer_count == 8);
    CHECK(report.arena_bytes == 8637ull * 1048576 + 786432 && report.pad_bytes == 0);
    CHECK(range_of(configuration, 1, 0).offset == 202ull * 12582912);
    CHECK(range_of(configuration, 1, 0).arena_bytes == 480ull * 12582912 - 1572864);
    CHECK(range_of(configuration, 1, 1).arena_bytes == 480ull * 6291456 - 786432);
    // Two wide layers are 512 rows, more than the arena has.
    CHECK(report.buffer_count == 1 && report.overlap_off == 1 && report.is_borrowed == 1);
    ftcache_configuration_free(configuration);
}

static void slots_are_split_evenly(void) {
    ftcache_settings settings = settings_of(1024);
    ftcache_configuration *configuration;
    uint32_t pool, larger = 0;
    settings.scope = FTCACHE_SCOPE_PER_LAYER;
    configuration = configured(plain_model(48, 256, 8, 16), &settings);
    CHECK(report_of(configuration).pool_count == 48 && report_of(configuration).request_limit == 2);
    for (pool = 0; pool < 48; pool++) {
        const uint32_t slots = pool_of(configuration, pool).slot_count;
        CHECK(slots == (pool < 16 ? 22 : 21));
        larger += slots == 22;
    }
    CHECK(larger == 16);
    ftcache_configuration_free(configuration);
}

// Layers of equal rows: one pool of a tag, and a limit for the kernels of one of them.
static void tags_part_pools(void) {
    const ftcache_model_config config = {sizeof config, 3, 16, 2, 0, 0};
    const ftcache_tag_limit limit = {"q4\0s", 4, 5};
    const uint64_t row_bytes = 64;
    static const char *const tags[] = {"q4\0k", "q4\0s", "q4\0k"};
    ftcache_settings settings = settings_of(16);
    ftcache_configuration *configuration;
    ftcache_model *model = NULL;
    uint32_t layer, pool = 9;
    OK(ftcache_model_new(&config, &model));
    for (layer = 0; layer < 3; layer++) {
        const ftcache_layer key = {sizeof key, 1, &row_bytes, tags[layer], 4};
        OK(ftcache_model_layer_set(model, layer, &key));
    }
    settings.tag_limits = &limit;
    settings.tag_limit_count = 1;
    configuration = configured(model, &settings);
    CHECK(report_of(configuration).pool_count == 2 && pool_of(configuration, 0).layer_count == 2);
    OK(ftcache_configuration_layer_pool(configuration, 2, &pool));
    CHECK(pool == 0 && pool_of(configuration, 1).max_slots == 5 && pool_of(configuration, 0).max_slots == 32);
    // Five and a third a layer, of which the limited one can take five.
    CHECK(pool_of(configuration, 0).slot_count == 11 && pool_of(configuration, 1).slot_count == 5);
    ftcache_configuration_free(configuration);
}

static void requests_are_never_lowered_unasked(void) {
    ftcache_settings settings = settings_of(1279);
    ftcache_model *model = plain_model(40, 256, 8, 16);
    ftcache_configuration *configuration = NULL;
    settings.scope = FTCACHE_SCOPE_PER_LAYER;
    settings.request_count = 4;
    REFUSED(ftcache_configuration_new(model, &settings, &configuration), UNSATISFIABLE,
            "the pools need at least 1280 slots; 1279 are given");
    settings.lower_requests = 1;
    OK(ftcache_configuration_new(model, &settings, &configuration));
    CHECK(report_of(configuration).request_count == 3 && report_of(configuration).request_limit == 3);
    CHECK(strstr(text_of(configuration), "requests: 3, asked for 4") != NULL);
    ftcache_configuration_free(configuration);
    settings.slot_count = 1280;
    settings.lower_requests = 0;
    configuration = configured(model, &settings);
    CHECK(report_of(configuration).request_count == 4 && pool_of(configuration, 39).slot_count == 32);
    CHECK(strstr(text_of(configuration), "requests: 4\n") != NULL);
    ftcache_configuration_free(configuration);
}

// Eight experts of 1,000 bytes in each of four layers, and 1,000 bytes for something else: two layers overlap from 16
// slots on, one is staged from 8 on.
static void a_budget_is_what_is_left(void) {
    static const struct { uint64_t free_bytes; uint32_t slots, buffers; } cases[] = {
        {9000, 8, 1},   {12999, 11, 1}, {16999, 15, 1}, {17000, 16, 2},
        {17999, 16, 2}, {20000, 19, 2}, {33000, 32, 2}, {40000, 32, 2},
    };
    const ftcache_reserve reserve = {"kv", 1000}, too_much = {"weights", 1965292852};
    ftcache_settings settings = bytes_of(0);
    ftcache_model *model = plain_model(4, 8, 2, 1000);
    ftcache_configuration *configuration = NULL;
    uint32_t i;
    settings.budget = "rest";
    settings.reserves = &reserve;
    settings.reserve_count = 1;
    for (i = 0; i < sizeof cases / sizeof *cases; i++) {
        ftcache_configuration_report report;
        settings.free_bytes = cases[i].free_bytes;
        OK(ftcache_configuration_new(model, &settings, &configuration));
        report = report_of(configuration);
        CHECK(report.slot_count == cases[i].slots && report.buffer_count == cases[i].buffers);
        CHECK(report.overlap_off == (cases[i].buffers == 1) && report.arena_bytes == cases[i].slots * 1000u);
        CHECK(report.left_bytes == cases[i].free_bytes - 1000 - report.total_bytes);
        ftcache_configuration_free(configuration);
        // One after the other is nothing lowered if it was asked for.
        settings.no_overlap = 1;
        OK(ftcache_configuration_new(model, &settings, &configuration));
        report = report_of(configuration);
        CHECK(report.slot_count == cases[i].slots && report.buffer_count == 1 && report.overlap_off == 0);
        ftcache_configuration_free(configuration);
        settings.no_overlap = 0;
    }
    settings.free_bytes = 8999;
    REFUSED(ftcache_configuration_new(model, &settings, &configuration), UNSATISFIABLE,
            "one whole layer needs 8000 bytes of bank 0 to be staged; its arena has 7000; 9000 bytes of free "
            "memory would do");
    settings.reserves = &too_much;
    settings.free_bytes = 1000000000;
    REFUSED(ftcache_configuration_new(model, &settings, &configuration), UNSATISFIABLE,
            "the reserves alone need 1965292852 bytes (weights 1965292852); 1000000000 are free");
    // Bytes that are asked for and do not fit are refused, not lowered.
    settings = bytes_of(16000);
    settings.free_bytes = 16999;
    settings.reserves = &reserve;
    settings.reserve_count = 1;
    REFUSED(ftcache_configuration_new(model, &settings, &configuration), UNSATISFIABLE,
            "16000 bytes are to be set aside beside reserves of 1000; 16999 are free");
    ftcache_model_free(model);
}

// Kernels that index 992 slots: whether two layers of so many experts overlap.
static void a_slot_limit_bounds_overlap(void) {
    static const struct { uint32_t experts, buffers; } cases[] = {{512, 1}, {497, 1}, {496, 2}};
    uint32_t i;
    for (i = 0; i < 3; i++) {
        ftcache_settings settings = bytes_of(1 << 30);
        ftcache_configuration *configuration;
        settings.slot_limit = 992;
        configuration = configured(plain_model(4, cases[i].experts, 8, 1000), &settings);
        CHECK(report_of(configuration).slot_count == 992 && pool_of(configuration, 0).max_slots == 992);
        CHECK(report_of(configuration).buffer_count == cases[i].buffers);
        CHECK(report_of(configuration).overlap_off == (cases[i].buffers == 1));
        ftcache_configuration_free(configuration);
    }
}

// 81.57 GiB, of which 16 are something else's, in entries of 13.5 MiB or of half that.
static void row_bytes_and_slots_are_inverse(void) {
    const ftcache_reserve reserve = {"kv", 16ull << 30};
    ftcache_settings settings = bytes_of(0);
    ftcache_configuration *configuration;
    settings.budget = "rest";
    settings.free_bytes = 87585120583;
    settings.reserves = &reserve;
    settings.reserve_count = 1;
    configuration = configured(plain_model(43, 256, 6, 14155776), &settings);
    CHECK(report_of(configuration).slot_count == 4973 && report_of(configuration).on_demand_tokens == 42);
    ftcache_configuration_free(configuration);
    configuration = configured(plain_model(43, 256, 6, 7077888), &settings);
    CHECK(report_of(configuration).slot_count == 9947);
    ftcache_configuration_free(configuration);
}

// E = 4, 12 slots: one buffer on slots 0..4, the other on 4..8.
static void buffers_lie_on_slots(void) {
    ftcache_settings settings = settings_of(12);
    SIZED(ftcache_slot_run, run);
    ftcache_configuration *configuration;
    uint32_t buffer;
    settings.staging = FTCACHE_STAGING_BORROWED;
    configuration = configured(plain_model(3, 4, 2, 32), &settings);
    for (buffer = 0; buffer < 2; buffer++) {
        OK(ftcache_configuration_buffer_run_get(configuration, buffer, 0, &run));
        CHECK(run.pool == 0 && run.first == buffer * 4 && run.count == 4);
        OK(ftcache_configuration_buffer_run_get(configuration, buffer, 1, &run));
        CHECK(run.count == 0);
    }
    REFUSED(ftcache_configuration_buffer_run_get(configuration, 2, 0, &run), OUT_OF_RANGE,
            "no staging buffer 2: there are 2");
    CHECK(report_of(configuration).stable_slot_count == 4 && report_of(configuration).staging_bytes == 0);
    ftcache_configuration_free(configuration);
    settings.staging = FTCACHE_STAGING_DEDICATED;
    settings.tail_pad = FTCACHE_TAIL_PAD_BYTES;
    configuration = configured(plain_model(3, 4, 2, 32), &settings);
    OK(ftcache_configuration_buffer_run_get(configuration, 0, 0, &run));
    CHECK(run.count == 0 && report_of(configuration).stable_slot_count == 12);
    CHECK(report_of(configuration).is_borrowed == 0 && report_of(configuration).staging_bytes == 2 * 4 * 32);
    CHECK(report_of(configuration).arena_bytes == 12 * 32 && report_of(configuration).total_bytes == 20 * 32);
    ftcache_configuration_free(configuration);
}

// Of ten layers two decode on the CPU, one lies on the device as a whole, and one is to have no slots.
static void declined_layers_have_reasons(void) {
    const uint32_t slotless[] = {4}, resident[] = {9}, all[] = {0, 1, 2};
    ftcache_settings settings = bytes_of(2000);
    ftcache_configuration *configuration = NULL;
    ftcache_configuration_report report;
    ftcache_model *model;
    ftcache *cache;
    SIZED(ftcache_report, now);
    SIZED(ftcache_layer_report, layer_report);
    uint32_t layer, state = 9;
    settings.slotless_layers = slotless;
    settings.slotless_layer_count = 1;
    settings.resident_layers = resident;
    settings.resident_layer_count = 1;
    settings.cpu_layers = "0,7";
    settings.staging = FTCACHE_STAGING_NOWHERE;
    configuration = configured(plain_model(10, 8, 2, 100), &settings);
    report = report_of(configuration);
    // 800 bytes are the whole layer's.
    CHECK(report.cached_layer_count == 6 && report.resident_bytes == 800 && report.slot_count == 12);
    cache = planner_of(configuration);
    OK(ftcache_configuration_of(cache, &configuration));
    for (layer = 0; layer < 10; layer++) {
        const uint32_t wanted = layer == 4                 ? FTCACHE_LAYER_STATE_SLOTLESS
                                : layer == 9               ? FTCACHE_LAYER_STATE_RESIDENT
                                : layer == 0 || layer == 7 ? FTCACHE_LAYER_STATE_CPU
                                                           : FTCACHE_LAYER_STATE_CACHED;
        OK(ftcache_configuration_layer_state(configuration, layer, &state));
        OK(ftcache_layer_get(cache, layer, &layer_report));
        CHECK(state == wanted && layer_report.state == wanted);
    }
    OK(ftcache_report_get(cache, &now));
    CHECK(now.is_engaged == 1 && now.cached_layer_count == 6 && now.ready_layer_count == 6);
    CHECK(now.declined_layer_count == 4 && now.device == FTCACHE_DEVICE_NONE);
    REFUSED(ftcache_configuration_layer_pool(configuration, 4, &state), OUT_OF_RANGE, "layer 4 holds no slots");
    {
        const ftcache_step step = step_of(9);
        const ftcache_routes routes = routes_of(NULL, 0);
        REFUSED(ftcache_admit(cache, &step, &routes, NULL), OUT_OF_RANGE,
                "layer 9 holds no slots: it decodes elsewhere");
    }
    ftcache_free(cache);
    ftcache_configuration_free(configuration);
    // A cache that serves nothing is refused.
    settings = settings_of(8);
    settings.slotless_layers = all;
    settings.slotless_layer_count = 3;
    model = plain_model(3, 8, 2, 100);
    REFUSED(ftcache_configuration_new(model, &settings, &configuration), UNSATISFIABLE,
            "none of 3 layers holds slots: there is nothing to cache");
    settings.slotless_layer_count = 0;
    settings.cpu_layers = "0.5";
    OK(ftcache_configuration_new(model, &settings, &configuration));
    CHECK(strstr(text_of(configuration), "cpu layers: 0, asked for 0.5 (taken from both ends)\n") != NULL);
    CHECK(strstr(text_of(configuration), "layer 0 has no slots: decodes on the CPU\n") != NULL);
    ftcache_configuration_free(configuration);
    ftcache_model_free(model);
}

static void engaged_is_a_number(void) {
    ftcache *cache = cache_of(new_configuration(8), NULL);
    SIZED(ftcache_report, report);
    SIZED(ftcache_layer_report, layer);
    uint32_t bank;
    for (bank = 0; bank < BANKS; bank++) {
        OK(ftcache_report_get(cache, &report));
        CHECK(report.is_engaged == 0 && report.ready_layer_count == 0 && report.cached_layer_count == 3);
        OK(ftcache_layer_get(cache, 2, &layer));
        CHECK(layer.is_attached == 0 && layer.is_direct == 0 && layer.pool == 1 && layer.state == 0);
        attach_rows(cache, 2, bank);
    }
    OK(ftcache_report_get(cache, &report));
    CHECK(report.is_engaged == 1 && report.ready_layer_count == 1 && report.declined_layer_count == 0);
    CHECK(report.slot_count == 8 && report.resident_count == 0 && report.generation == 0 && report.step == 0);
    OK(ftcache_layer_get(cache, 2, &layer));
    CHECK(layer.is_attached == 1 && layer.is_direct == 1);
    OK(ftcache_layer_get(cache, 1, &layer));
    CHECK(layer.is_attached == 0 && layer.pool == 0);
    ftcache_free(cache);
}

// All that the configuration said, the cache's own says too, when the first one is gone.
static void it_can_be_asked_again(void) {
    ftcache_settings settings = bytes_of(0);
    ftcache_configuration *first, *second = NULL;
    ftcache_configuration_report reports[2];
    ftcache_pool_report pools[2];
    ftcache_slot_range ranges[2];
    char text[8192];
    ftcache *cache = NULL;
    uint32_t pool, bank;
    settings.budget = "1KiB";
    settings.request_count = 5;
    settings.lower_requests = 1;
    settings.alignment = 16;
    first = configuration_of(&settings);
    OK(ftcache_new(first, NULL, &cache));
    OK(ftcache_configuration_of(cache, &second));
    reports[0] = report_of(first);
    reports[1] = report_of(second);
    CHECK(memcmp(&reports[0], &reports[1], sizeof *reports) == 0 && reports[0].pool_count == 2);
    for (pool = 0; pool < 2; pool++) {
        pools[0] = pool_of(first, pool);
        pools[1] = pool_of(second, pool);
        CHECK(memcmp(&pools[0], &pools[1], sizeof *pools) == 0);
        for (bank = 0; bank < BANKS; bank++) {
            SIZED(ftcache_slot_span, span);
            SIZED(ftcache_slot_span, first_span);
            ranges[0] = range_of(first, pool, bank);
            ranges[1] = range_of(second, pool, bank);
            CHECK(memcmp(&ranges[0], &ranges[1], sizeof *ranges) == 0);
            // And the slots lie where it said.
            OK(ftcache_slot_span_get(cache, 0, bank, &first_span));
            OK(ftcache_slot_span_get(cache, pool, bank, &span));
            CHECK((uint64_t)((char *)span.address - (char *)first_span.address) == ranges[0].offset);
            CHECK(span.slot_count == ranges[0].slot_count && span.stride == ranges[0].stride);
            CHECK(span.slot_count == pools[0].slot_count && span.row_bytes == row_bytes_of(pool == 0 ? 1 : 0, bank));
        }
    }
    strcpy(text, text_of(first));
    CHECK(strcmp(text, text_of(second)) == 0);
    CHECK(strstr(text, "overlap: off, asked for on (two whole layers need 768 bytes of bank 0 to be staged; its arena "
                       "has 704)\n") != NULL);
    ftcache_configuration_free(first);
    ftcache_configuration_free(second);
    ftcache_free(cache);
}

int main(void) {
    two_geometries_share_a_budget();
    slots_are_split_evenly();
    tags_part_pools();
    requests_are_never_lowered_unasked();
    a_budget_is_what_is_left();
    a_slot_limit_bounds_overlap();
    row_bytes_and_slots_are_inverse();
    buffers_lie_on_slots();
    declined_layers_have_reasons();
    engaged_is_a_number();
    it_can_be_asked_again();
    return 0;
}
