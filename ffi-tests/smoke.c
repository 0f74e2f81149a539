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
        OK(ftcache_load(cache, layer, &routes, NULL, &slots));
        CHECK(slot[0] == slot[2] && slot[0] != slot[1]);
        CHECK(slot_holds(cache, layer, slot[0], 5));
        CHECK(slot_holds(cache, layer, slot[1], 2));
    }
    {
        ftcache_stats stats = stats_of(cache);
        CHECK(stats.steps == 3 && stats.routes == 9 && stats.distinct == 6 && stats.misses == 6 && stats.hits == 0);
        CHECK(stats.bytes == 2 * (26 + 42 + 26) && stats.evictions == 0);
        // The same step again is all hits and moves nothing.
        OK(ftcache_load(cache, 2, &routes, NULL, &slots));
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
    OK(ftcache_load(cache, 0, &routes, NULL, &slots));
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
        OK(ftcache_load(cache, 0, &routes, NULL, &slots));
        CHECK(in_place[1] == 99 && in_place[3] == 99);
        CHECK(in_place[0] == slot[1][1] && in_place[2] == slot[0][0]);
    }
    ftcache_free(cache);
}

static void a_geometry_says_what_to_set_aside(void) {
    ftcache_geometry *geometry = new_geometry(8);
    ftcache_geometry_report report = {sizeof report, 0, 0, 0, 0, 0, 0};
    ftcache_pool_report pool = {sizeof pool, 0, 0, 0, 0, 0, 0, 0};
    ftcache_slot_range range = {sizeof range, 0, 0, 0, 0, 0, 0};
    uint64_t total = 0;
    uint32_t bank, of_layer = 9;
    OK(ftcache_geometry_get(geometry, &report));
    CHECK(report.pool_count == 2 && report.bank_count == 2 && report.slot_count == 8 && report.request_limit == 1);
    OK(ftcache_geometry_pool_get(geometry, 0, &pool));
    CHECK(pool.slot_count == 3 && pool.layer_count == 1 && pool.min_slots == 2 && pool.max_slots == 8);
    CHECK(pool.slot_bytes == 42 && pool.pool_bytes == 4 * 42);
    OK(ftcache_geometry_layer_pool(geometry, 1, &of_layer));
    CHECK(of_layer == 0);
    OK(ftcache_geometry_layer_pool(geometry, 2, &of_layer));
    CHECK(of_layer == 1);
    for (bank = 0; bank < BANKS; bank++) {
        OK(ftcache_geometry_slot_range_get(geometry, 1, bank, &range));
        CHECK(range.slot_count == 5 && range.row_bytes == row_bytes_of(0, bank) && range.stride == range.row_bytes);
        CHECK(range.offset == 4 * row_bytes_of(1, bank));
        total += range.arena_bytes;
    }
    CHECK(report.total_bytes == total && report.pad_bytes == 42 + 26);
    ftcache_geometry_free(geometry);
}

static void forgotten_slots_are_filled_anew(void) {
    ftcache *cache = new_cache(8);
    const int32_t ids[] = {0, 1};
    int32_t slot[2];
    ftcache_routes routes = routes_of(ids, 2);
    ftcache_slots slots = slots_of(slot);
    OK(ftcache_load(cache, 0, &routes, NULL, &slots));
    OK(ftcache_forget(cache, 1, (uint32_t)slot[1]));
    OK(ftcache_load(cache, 0, &routes, NULL, &slots));
    CHECK(stats_of(cache).misses == 3 && slot_holds(cache, 0, slot[1], 1));
    OK(ftcache_forget_layer(cache, 0));
    OK(ftcache_load(cache, 0, &routes, NULL, &slots));
    CHECK(stats_of(cache).misses == 5);
    OK(ftcache_reset(cache));
    OK(ftcache_load(cache, 0, &routes, NULL, &slots));
    CHECK(stats_of(cache).misses == 7 && stats_of(cache).hits == 1);
    ftcache_free(cache);
}

int main(void) {
    CHECK(ftcache_abi_version() == FTCACHE_ABI_VERSION);
    CHECK(strcmp(ftcache_last_error(), "") == 0);
    a_step_fills_the_slots_it_names();
    routes_cross_in_any_form();
    a_geometry_says_what_to_set_aside();
    forgotten_slots_are_filled_anew();
    return 0;
}
