// The whole way once: describe, plan, make, attach, load, read the slots, ask how it went.

#include "check.h"

static void a_step_fills_the_slots_it_names(void) {
    ftcache *cache = new_cache(8);
    const int32_t ids[] = {5, 2, 5};
    int32_t slot[3] = {-7, -7, -7};
    ftcache_routes routes = routes_of(ids, 3);
    ftcache_slots slots = slots_of(slot);
    uint32_t layer;
    for (layer = 0; layer < LAYERS; layer++) {
        OK(load(cache, layer, &routes, &slots));
        CHECK(slot[0] == slot[2] && slot[0] != slot[1]);
        CHECK(slot_holds(cache, layer, slot[0], 5));
        CHECK(slot_holds(cache, layer, slot[1], 2));
    }
    {
        ftcache_stats stats = stats_of(cache);
        CHECK(stats.steps == 3 && stats.routes == 9 && stats.distinct == 6 && stats.misses == 6 && stats.hits == 0);
        CHECK(stats.bytes == 2 * (26 + 42 + 26) && stats.evictions == 0);
        // The same step again is all hits and moves nothing.
        OK(load(cache, 2, &routes, &slots));
        CHECK(slot_holds(cache, 2, slot[1], 2));
        stats = stats_of(cache);
        CHECK(stats.steps == 4 && stats.hits == 2 && stats.bytes == 2 * (26 + 42 + 26));
        OK(ftcache_layer_stats_get(cache, 2, &stats));
        CHECK(stats.steps == 2 && stats.hits == 2 && stats.misses == 2);
        OK(ftcache_pool_stats_get(cache, 1, &stats));
        CHECK(stats.steps == 3 && stats.misses == 4);
        OK(ftcache_stats_reset(cache));
        CHECK(stats_of(cache).steps == 0);
    }
    ftcache_free(cache);
}

static void routes_cross_in_any_form(void) {
    ftcache *cache = new_cache(8);
    // Two tokens whose ids are the heads of sorted rows of EXPERTS ids; slots go into rows of 3.
    const int32_t sorted[2][EXPERTS] = {{6, 1, 0, 2, 3, 4, 5, 7}, {1, 3, 0, 2, 4, 5, 6, 7}};
    int32_t slot[2][3] = {{-7, -7, -7}, {-7, -7, -7}};
    ftcache_routes routes = routes_of(&sorted[0][0], 2);
    ftcache_slots slots = slots_of(&slot[0][0]);
    routes.row_count = 2;
    routes.row_stride_bytes = sizeof sorted[0];
    slots.row_stride_bytes = sizeof slot[0];
    OK(load(cache, 0, &routes, &slots));
    CHECK(slot_holds(cache, 0, slot[0][0], 6) && slot_holds(cache, 0, slot[0][1], 1));
    CHECK(slot_holds(cache, 0, slot[1][0], 1) && slot_holds(cache, 0, slot[1][1], 3));
    CHECK(slot[0][2] == -7 && slot[1][2] == -7);
    {
        // 64-bit ids, rewritten in place; -1 is not for this device and comes back as the caller's own value.
        int64_t in_place[4] = {3, -1, 6, -1};
        routes = routes_of(NULL, 4);
        routes.ids = in_place;
        routes.id_bytes = 8;
        routes.has_absent = 1;
        routes.absent_id = -1;
        slots = slots_of(NULL);
        slots.slots = in_place;
        slots.slot_bytes = 8;
        slots.absent_slot = 99;
        OK(load(cache, 0, &routes, &slots));
        CHECK(in_place[1] == 99 && in_place[3] == 99);
        CHECK(in_place[0] == slot[1][1] && in_place[2] == slot[0][0]);
    }
    ftcache_free(cache);
}

static void a_configuration_says_what_to_set_aside(void) {
    ftcache_configuration *configuration = new_configuration(8);
    SIZED(ftcache_configuration_report, report);
    SIZED(ftcache_pool_report, pool);
    SIZED(ftcache_slot_range, range);
    uint64_t total = 0;
    uint32_t bank, of_layer = 9;
    OK(ftcache_configuration_get(configuration, &report));
    CHECK(report.pool_count == 2 && report.bank_count == 2 && report.slot_count == 8 && report.request_limit == 1);
    OK(ftcache_configuration_pool_get(configuration, 0, &pool));
    CHECK(pool.slot_count == 3 && pool.layer_count == 1 && pool.min_slots == 2 && pool.max_slots == 8);
    CHECK(pool.slot_bytes == 42 && pool.pool_bytes == 4 * 42);
    OK(ftcache_configuration_layer_pool(configuration, 1, &of_layer));
    CHECK(of_layer == 0);
    OK(ftcache_configuration_layer_pool(configuration, 2, &of_layer));
    CHECK(of_layer == 1);
    for (bank = 0; bank < BANKS; bank++) {
        OK(ftcache_configuration_slot_range_get(configuration, 1, bank, &range));
        CHECK(range.slot_count == 5 && range.row_bytes == row_bytes_of(0, bank) && range.stride == range.row_bytes);
        CHECK(range.offset == 4 * row_bytes_of(1, bank));
        total += range.arena_bytes;
    }
    CHECK(report.arena_bytes == total && report.total_bytes == total && report.pad_bytes == 42 + 26);
    ftcache_configuration_free(configuration);
}

static void forgotten_slots_are_filled_anew(void) {
    ftcache *cache = new_cache(8);
    const int32_t ids[] = {0, 1};
    int32_t slot[2];
    ftcache_routes routes = routes_of(ids, 2);
    ftcache_slots slots = slots_of(slot);
    OK(load(cache, 0, &routes, &slots));
    OK(ftcache_forget(cache, 1, (uint32_t)slot[1]));
    OK(load(cache, 0, &routes, &slots));
    CHECK(stats_of(cache).misses == 3 && slot_holds(cache, 0, slot[1], 1));
    OK(ftcache_forget_layer(cache, 0));
    OK(load(cache, 0, &routes, &slots));
    CHECK(stats_of(cache).misses == 5);
    OK(ftcache_reset(cache));
    OK(load(cache, 0, &routes, &slots));
    CHECK(stats_of(cache).misses == 7 && stats_of(cache).hits == 1);
    ftcache_free(cache);
}

// Every field of a configuration does something that can be read back.
static void every_setting_counts(void) {
    ftcache_model *model = new_model();
    ftcache_configuration *configuration = NULL;
    ftcache_settings settings = settings_of(14);
    SIZED(ftcache_configuration_report, report);
    SIZED(ftcache_pool_report, pool);
    SIZED(ftcache_slot_range, range);
    SIZED(ftcache_slot_span, span);
    ftcache *cache = NULL;

    settings.scope = FTCACHE_SCOPE_PER_LAYER;
    settings.request_count = 2;
    settings.slot_limit = 5;
    settings.alignment = 256;
    settings.slot_pad_bytes = 300;
    settings.tail_pad = FTCACHE_TAIL_PAD_BYTES;
    settings.tail_pad_bytes = 700;
    OK(ftcache_configuration_new(model, &settings, &configuration));
    OK(ftcache_configuration_get(configuration, &report));
    CHECK(report.pool_count == 3 && report.slot_count == 14 && report.request_limit == 2);
    OK(ftcache_configuration_pool_get(configuration, 1, &pool));
    CHECK(pool.layer_count == 1 && pool.min_slots == 4 && pool.max_slots == 5 && pool.slot_count == 5);
    // A row of 24 bytes and 300 more, rounded up; the pool before has rows of 40.
    OK(ftcache_configuration_slot_range_get(configuration, 1, 0, &range));
    CHECK(range.row_bytes == 24 && range.stride == 512 && range.tail_pad_bytes == 768);
    CHECK(range.offset == 5 * 512 + 768 && range.arena_bytes == 14 * 512 + 3 * 768);
    CHECK(pool.slot_bytes == 2 * 512 && pool.pool_bytes == 5 * 2 * 512 + 2 * 768);
    OK(ftcache_new(configuration, NULL, &cache));
    OK(ftcache_slot_span_get(cache, 1, 0, &span));
    CHECK((uintptr_t)span.address % 256 == 0 && span.stride == 512 && span.slot_count == 5 && span.row_bytes == 24);
    ftcache_free(cache);
    ftcache_configuration_free(configuration);
    ftcache_model_free(model);

    {
        // Layers without a tag are alike if the model says so.
        ftcache_model_config untagged = {sizeof untagged, 2, 4, 2, 1, 0};
        const uint64_t row_bytes[] = {16, 0};
        ftcache_layer key = {sizeof key, 2, row_bytes, NULL, 0};
        settings = settings_of(4);
        OK(ftcache_model_new(&untagged, &model));
        OK(ftcache_model_layer_set(model, 0, &key));
        OK(ftcache_model_layer_set(model, 1, &key));
        OK(ftcache_configuration_new(model, &settings, &configuration));
        OK(ftcache_configuration_get(configuration, &report));
        CHECK(report.pool_count == 1 && report.bank_count == 2);
        // A bank that nobody reads has no slots.
        OK(ftcache_new(configuration, NULL, &cache));
        OK(ftcache_slot_span_get(cache, 0, 1, &span));
        CHECK(span.address == NULL && span.row_bytes == 0);
        ftcache_free(cache);
        ftcache_configuration_free(configuration);
        ftcache_model_free(model);
    }
}

static void evictions_are_counted(void) {
    ftcache *cache = new_cache(8);
    int32_t expert;
    for (expert = 0; expert < 5; expert++) {
        int32_t slot;
        ftcache_routes routes = routes_of(&expert, 1);
        ftcache_slots slots = slots_of(&slot);
        OK(load(cache, 1, &routes, &slots));
    }
    // The wide pool has three slots.
    CHECK(stats_of(cache).misses == 5 && stats_of(cache).evictions == 2);
    ftcache_free(cache);
}

int main(void) {
    CHECK(ftcache_abi_version() == FTCACHE_ABI_VERSION);
    CHECK(strcmp(ftcache_last_error(), "") == 0);
    a_step_fills_the_slots_it_names();
    routes_cross_in_any_form();
    a_configuration_says_what_to_set_aside();
    forgotten_slots_are_filled_anew();
    every_setting_counts();
    evictions_are_counted();
    return 0;
}
