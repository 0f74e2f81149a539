// Hints: rows that a later step is expected to route to, brought in ahead of it by the library or by the engine; what
// they take and what they leave alone, and how they are counted apart from steps.

#include "planning.h"

static ftcache_hint_stats hints_of(ftcache *cache) {
    SIZED(ftcache_hint_stats, stats);
    OK(ftcache_hint_stats_get(cache, &stats));
    return stats;
}

// started, useful, late, wasted, open.
static int counts_are(ftcache *cache, uint64_t started, uint64_t useful, uint64_t late, uint64_t wasted,
                      uint64_t open) {
    const ftcache_hint_stats stats = hints_of(cache);
    return stats.started == started && stats.useful == useful && stats.late == late && stats.wasted == wasted &&
           stats.open == open;
}

// present, started, over_budget, no_slot.
static int came_to(const ftcache_hint_report *report, uint32_t present, uint32_t started, uint32_t over_budget,
                   uint32_t no_slot) {
    return report->present == present && report->started == started && report->over_budget == over_budget &&
           report->no_slot == no_slot && report->held_back == 0;
}

static ftcache *hinting(uint64_t slot_count) {
    SIZED(ftcache_config, config);
    ftcache *cache;
    config.hint_flight_count = 4;
    cache = cache_of(new_configuration(slot_count), &config);
    attach_all(cache);
    return cache;
}

static ftcache_hint_report hint(ftcache *cache, uint32_t layer, ftcache_routes routes, uint64_t budget) {
    SIZED(ftcache_hint_report, report);
    OK(ftcache_hint(cache, layer, &routes, budget, &report));
    return report;
}

static void step(ftcache *cache, uint32_t layer, ftcache_routes routes) {
    const ftcache_slots slots = slots_of(answer);
    OK(load(cache, layer, &routes, &slots));
}

// Rows of 26 bytes: the budget is for two and a half of them, so for two. What is there already is not paid for.
static void rows_are_there_when_their_step_comes(void) {
    ftcache *cache = hinting(8);
    ftcache_hint_report report;
    ftcache_routes routes = ROUTES(4, -1, 6, 4, 7, 1);
    SIZED(ftcache_hint_stats, layer);
    step(cache, 0, ROUTES(1));
    routes.has_absent = 1;
    routes.absent_id = -1;
    report = hint(cache, 0, routes, 2 * 26 + 13);
    CHECK(came_to(&report, 2, 2, 1, 0) && report.bytes == 2 * 26 && report.hint > 0);
    CHECK(counts_are(cache, 2, 0, 0, 0, 2) && stats_of(cache).fetched == 1 && stats_of(cache).bytes == 26);
    step(cache, 0, ROUTES(4, 7));
    CHECK(slot_holds(cache, 0, answer[0], 4) && slot_holds(cache, 0, answer[1], 7));
    // A hit is a hit, whoever brought the row.
    CHECK(stats_of(cache).hits == 1 && stats_of(cache).misses == 2 && stats_of(cache).routes == 3);
    CHECK(stats_of(cache).hit_routes == 1 && stats_of(cache).bytes == 2 * 26);
    CHECK(counts_are(cache, 2, 1, 0, 1, 0));
    CHECK(hints_of(cache).started_bytes == 52 && hints_of(cache).useful_bytes == 26);
    CHECK(hints_of(cache).wasted_bytes == 26 && hints_of(cache).late_bytes == 0 && hints_of(cache).evictions == 0);
    OK(ftcache_layer_hint_stats_get(cache, 0, &layer));
    CHECK(layer.started == 2 && layer.useful == 1);
    OK(ftcache_layer_hint_stats_get(cache, 2, &layer));
    CHECK(layer.started == 0);
    OK(ftcache_stats_reset(cache));
    CHECK(counts_are(cache, 2, 1, 0, 1, 0));
    ftcache_free(cache);
}

// Five narrow slots for layers 0 and 2.
static void no_step_fails_for_a_hint(void) {
    ftcache *cache = hinting(8);
    ftcache_hint_report report;
    uint64_t wasted = 7;
    step(cache, 2, ROUTES(0));
    // Not the slot of the last step, and not those of an earlier hint.
    report = hint(cache, 0, ROUTES(1, 2), 1000);
    CHECK(came_to(&report, 0, 2, 0, 0));
    report = hint(cache, 2, ROUTES(0, 3, 4, 5, 6), 1000);
    CHECK(came_to(&report, 1, 2, 0, 2) && hints_of(cache).evictions == 0);
    // A step takes what goes first without hints, and then of theirs the last one's, unlikeliest first.
    step(cache, 0, ROUTES(1, 5, 6, 7));
    CHECK(counts_are(cache, 4, 1, 0, 2, 1) && stats_of(cache).evictions == 3);
    CHECK(slot_holds(cache, 0, answer[0], 1) && slot_holds(cache, 0, answer[1], 5));
    step(cache, 2, ROUTES(3));
    CHECK(counts_are(cache, 4, 2, 0, 2, 0) && stats_of(cache).hits == 2);
    // Cancelled, its row is the first to go, and no other hint is touched.
    report = hint(cache, 0, ROUTES(4), 26);
    CHECK(came_to(&report, 0, 1, 0, 0));
    hint(cache, 2, ROUTES(4), 26);
    OK(ftcache_cancel_hint(cache, report.hint, &wasted));
    CHECK(wasted == 1 && counts_are(cache, 6, 2, 0, 3, 1));
    OK(ftcache_cancel_hint(cache, report.hint, &wasted));
    CHECK(wasted == 0);
    OK(ftcache_cancel_hint(cache, 0, NULL));
    CHECK(counts_are(cache, 6, 2, 0, 4, 0));
    // All five in one step: every row of hints gives way.
    hint(cache, 2, ROUTES(1, 2, 6, 7), 1000);
    step(cache, 0, ROUTES(0, 1, 2, 3, 4));
    CHECK(slot_holds(cache, 0, answer[4], 4) && hints_of(cache).open == 0);
    ftcache_free(cache);
}

// While an engine that copies by itself has not said that they have landed, rows are on their way.
static void an_engine_copies_ahead(void) {
    ftcache *cache = plain_planner(2, 8, 2, 4);
    ftcache_step hybrid = step_of(1);
    SIZED(ftcache_hint_report, report);
    ftcache_routes routes = ROUTES(6, 3);
    const ftcache_step plain = step_of(0);
    uint64_t landed = 7, first;
    decode(cache, 0, ROUTES(0));
    CHECK(plan_of(cache).awaits_flight == 0);
    OK(ftcache_admit_hint(cache, 1, &routes, 2 * 16, &report));
    CHECK(came_to(&report, 0, 2, 0, 0) && report.bytes == 32);
    CHECK(plan_of(cache).is_open == 1 && plan_of(cache).layer == 1 && COPIES(cache, {1, 6}, {2, 3}));
    CHECK(plan_of(cache).run_count == 2 && plan_of(cache).runs[0].row == 3 && plan_of(cache).awaits_flight == 0);
    REFUSED(admit(cache, &plain, ROUTES(0)), OUT_OF_ORDER, "the plan of a hint is open: commit or abort it first");
    OK(ftcache_commit(cache));
    first = report.hint;
    // A hybrid step leaves it to the CPU; a plain one takes it, and is told what to wait for.
    hybrid.misses = FTCACHE_MISSES_HYBRID;
    hybrid.fetch_rule = FTCACHE_FETCH_RULE_UP_TO;
    OK(admit(cache, &hybrid, ROUTES(6)));
    CHECK(ANSWER(-2) && plan_of(cache).awaits_flight == 0);
    OK(ftcache_commit(cache));
    CHECK(counts_are(cache, 2, 0, 1, 1, 0));
    decode(cache, 1, ROUTES(6));
    CHECK(ANSWER(1) && plan_of(cache).copy_count == 0 && plan_of(cache).awaits_flight == first);
    CHECK(stats_of(cache).hits == 1 && stats_of(cache).misses == 2 && stats_of(cache).cpu_misses == 1);
    OK(ftcache_land_flight(cache, first, &landed));
    CHECK(landed == 2);
    decode(cache, 1, ROUTES(6, 3));
    CHECK(ANSWER(1, 2) && plan_of(cache).awaits_flight == 0);
    OK(ftcache_land_flight(cache, first, &landed));
    CHECK(landed == 0);
    // What could not be copied was never started; the step that needs all slots comes behind what it overwrites.
    OK(ftcache_admit_hint(cache, 0, &routes, UINT64_MAX, &report));
    OK(ftcache_abort(cache));
    CHECK(counts_are(cache, 2, 0, 1, 1, 0));
    routes = ROUTES(5);
    OK(ftcache_admit_hint(cache, 1, &routes, 16, &report));
    OK(ftcache_commit(cache));
    decode(cache, 0, ROUTES(1, 2, 3, 4));
    CHECK(plan_of(cache).copy_count == 4 && plan_of(cache).awaits_flight == report.hint);
    CHECK(counts_are(cache, 3, 0, 1, 2, 0));
    ftcache_free(cache);
}

static void hints_that_cannot_be_given(void) {
    static const char *const copying = "the cache copies by itself: plans are for FTCACHE_DEVICE_NONE";
    static const char *const planning = "the cache has no device: the engine copies by itself";
    ftcache_configuration *configuration = new_configuration(8);
    ftcache *cache = hinting(8), *none = new_cache(8), *planner = plain_planner(1, 8, 2, 4), *made = NULL;
    ftcache_routes routes = ROUTES(0, 8);
    SIZED(ftcache_config, config);
    SIZED(ftcache_hint_report, report);
    const uint64_t digest = digest_of(cache);
    REFUSED(ftcache_hint(cache, 0, &routes, 100, &report), OUT_OF_RANGE,
            "layer 0: route 1 is 8, which is no expert of 0..8");
    REFUSED(ftcache_hint(cache, 3, &routes, 100, &report), OUT_OF_RANGE, "no layer 3: the cache has 3 layers");
    routes = ROUTES(0);
    REFUSED(ftcache_hint(none, 0, &routes, 100, &report), UNSUPPORTED,
            "the cache takes no hints: no flights were set for them");
    REFUSED(ftcache_hint(planner, 0, &routes, 100, &report), UNSUPPORTED, planning);
    REFUSED(ftcache_admit_hint(cache, 0, &routes, 100, &report), UNSUPPORTED, copying);
    report.struct_size = 3;
    REFUSED(ftcache_hint(cache, 0, &routes, 100, &report), INVALID_ARGUMENT,
            "report->struct_size is 3; this library's struct has 40");
    CHECK(digest_of(cache) == digest && counts_are(cache, 0, 0, 0, 0, 0) && report.hint == 0);
    OK(ftcache_hint(cache, 0, &routes, 25, NULL));
    CHECK(counts_are(cache, 0, 0, 0, 0, 0));
    OK(ftcache_hint(cache, 0, &routes, 26, NULL));
    CHECK(counts_are(cache, 1, 0, 0, 0, 1));
    config.hint_flight_count = 1025;
    REFUSED(ftcache_new(configuration, &config, &made), INVALID_ARGUMENT,
            "config->hint_flight_count is 1025; at most 1024");
    config.hint_flight_count = 1;
    config.reserved = 1;
    REFUSED(ftcache_new(configuration, &config, &made), INVALID_ARGUMENT, "config->reserved is 1; it must be 0");
    ftcache_configuration_free(configuration);
    ftcache_free(planner);
    ftcache_free(none);
    ftcache_free(cache);
}

// A chunk on borrowed buffers takes the slots of hints like those of others; other calls that free slots do too.
static void what_frees_slots_ends_hints(void) {
    ftcache_settings settings = settings_of(24);
    SIZED(ftcache_config, config);
    ftcache_hint_report report;
    ftcache_configuration *larger = new_configuration(9);
    ftcache *cache;
    settings.staging = FTCACHE_STAGING_BORROWED;
    config.hint_flight_count = 4;
    cache = cache_of(configuration_of(&settings), &config);
    attach_all(cache);
    hint(cache, 0, ROUTES(1, 2), 1000);
    OK(ftcache_chunk_begin(cache, NULL));
    CHECK(counts_are(cache, 2, 0, 0, 2, 0));
    report = hint(cache, 2, ROUTES(0, 1, 2, 3, 4, 5, 6, 7), 1000);
    CHECK(report.started < 8 && report.no_slot == 8 - report.started);
    OK(ftcache_chunk_end(cache, NULL));
    CHECK(hints_of(cache).open == report.started);
    OK(ftcache_forget_layer(cache, 2));
    CHECK(hints_of(cache).open == 0 && hints_of(cache).wasted == 2 + report.started);
    hint(cache, 0, ROUTES(1), 1000);
    OK(ftcache_rebuild(cache, larger, 1, UINT64_MAX, NULL));
    CHECK(counts_are(cache, 0, 0, 0, 0, 0));
    // It is resident still, and hints go on.
    step(cache, 0, ROUTES(1));
    CHECK(stats_of(cache).hits == 1 && slot_holds(cache, 0, answer[0], 1));
    report = hint(cache, 0, ROUTES(1, 5), 1000);
    CHECK(came_to(&report, 1, 1, 0, 0));
    ftcache_configuration_free(larger);
    ftcache_free(cache);
}

int main(void) {
    rows_are_there_when_their_step_comes();
    no_step_fails_for_a_hint();
    an_engine_copies_ahead();
    hints_that_cannot_be_given();
    what_frees_slots_ends_hints();
    return 0;
}
