// Other slots while the cache lives: who survives, what is said of it, and that a refused or failed rebuild leaves a
// cache that works.

#include "check.h"

static int32_t answer[EXPERTS];

static void decode(ftcache *cache, uint32_t layer, const int32_t *ids, uint64_t count) {
    const ftcache_routes routes = routes_of(ids, count);
    const ftcache_slots slots = slots_of(answer);
    OK(load(cache, layer, &routes, &slots));
}

static ftcache_rebuild_report rebuilt(ftcache *cache, uint64_t slot_count, uint32_t keep, uint64_t most_bytes) {
    ftcache_configuration *configuration = new_configuration(slot_count);
    SIZED(ftcache_rebuild_report, report);
    OK(ftcache_rebuild(cache, configuration, keep, most_bytes, &report));
    ftcache_configuration_free(configuration);
    return report;
}

static uint64_t generation_of(ftcache *cache) {
    uint64_t generation = 99;
    OK(ftcache_generation(cache, &generation));
    return generation;
}

static ftcache_report report_of(ftcache *cache) {
    SIZED(ftcache_report, report);
    OK(ftcache_report_get(cache, &report));
    return report;
}

// Layer 0: 0 to 3, layer 1: 5 and 6, in that order of use.
static ftcache *used_cache(const ftcache_config *config) {
    static const int32_t narrow[][2] = {{0, 1}, {2, 3}}, wide[] = {5, 6};
    ftcache *cache = cache_of(new_configuration(8), config);
    attach_all(cache);
    decode(cache, 0, narrow[0], 2);
    decode(cache, 0, narrow[1], 2);
    decode(cache, 1, wide, 2);
    return cache;
}

// So many of layer 0's experts, the most recent, and both of layer 1's are hits with their own bytes.
static void survivors_are(ftcache *cache, const int32_t *narrow, uint64_t narrow_count) {
    static const int32_t wide[] = {5, 6};
    const uint64_t misses = stats_of(cache).misses;
    uint64_t i;
    decode(cache, 0, narrow, narrow_count);
    for (i = 0; i < narrow_count; i++) CHECK(slot_holds(cache, 0, answer[i], (uint32_t)narrow[i]));
    decode(cache, 1, wide, 2);
    for (i = 0; i < 2; i++) CHECK(slot_holds(cache, 1, answer[i], (uint32_t)wide[i]));
    CHECK(stats_of(cache).misses == misses);
}

static void it_grows_and_shrinks(void) {
    static const int32_t four[] = {0, 1, 2, 3}, two[] = {2, 3};
    ftcache *cache = used_cache(NULL);
    ftcache_rebuild_report report = rebuilt(cache, 12, 1, 1 << 20);
    CHECK(report.rebuilt == FTCACHE_REBUILT_BESIDE && report.kept == 6 && report.move_count == 0);
    CHECK(generation_of(cache) == 1 && report_of(cache).generation == 1 && report_of(cache).slot_count == 12);
    // Statistics start over, steps go on.
    CHECK(stats_of(cache).steps == 0 && report_of(cache).step == 3 && report_of(cache).resident_count == 6);
    survivors_are(cache, four, 4);
    CHECK(report_of(cache).step == 5);
    // Two narrow slots: the most recently used of the four have used the same step, so the lowest slots went first.
    report = rebuilt(cache, 4, 1, 1 << 20);
    CHECK(report.kept == 4 && report_of(cache).slot_count == 4 && generation_of(cache) == 2);
    CHECK(report_of(cache).resident_count == 4);
    survivors_are(cache, two, 2);
    ftcache_free(cache);
}

static void it_says_why_nobody_was_kept(void) {
    static const int32_t two[] = {2, 3};
    SIZED(ftcache_config, small);
    ftcache *cache = used_cache(NULL);
    ftcache_rebuild_report report = rebuilt(cache, 12, 0, 1 << 20);
    CHECK(report.rebuilt == FTCACHE_REBUILT_COLD_AS_ASKED && report.kept == 0 && report_of(cache).resident_count == 0);
    decode(cache, 0, two, 2);
    CHECK(stats_of(cache).freed_misses + stats_of(cache).cold_misses == 2 && slot_holds(cache, 0, answer[0], 2));
    // 12 slots take 4 * 42 + 42 + 8 * 26 + 26 = 444 bytes, 8 take 324.
    report = rebuilt(cache, 8, 1, 444 + 324 - 1);
    CHECK(report.rebuilt == FTCACHE_REBUILT_COLD_TOO_LARGE && report.kept == 0);
    decode(cache, 0, two, 2);
    report = rebuilt(cache, 12, 1, 444 + 324);
    CHECK(report.rebuilt == FTCACHE_REBUILT_BESIDE && report.kept == 2);
    ftcache_free(cache);
    // A device of 700 bytes has not both.
    small.device_bytes = 700;
    cache = used_cache(&small);
    report = rebuilt(cache, 12, 1, 1 << 20);
    CHECK(report.rebuilt == FTCACHE_REBUILT_COLD_OUT_OF_MEMORY && report.kept == 0);
    CHECK(report_of(cache).slot_count == 12 && report_of(cache).resident_count == 0);
    decode(cache, 0, two, 2);
    CHECK(slot_holds(cache, 0, answer[1], 3));
    ftcache_free(cache);
}

// The old slots are there again, empty.
static void what_does_not_fit_at_all_is_undone(void) {
    static const int32_t two[] = {2, 3};
    SIZED(ftcache_config, small);
    SIZED(ftcache_rebuild_report, report);
    ftcache_configuration *larger = new_configuration(24);
    ftcache *cache;
    uint32_t attempt;
    small.device_bytes = 700;
    cache = used_cache(&small);
    for (attempt = 0; attempt < 2; attempt++) {
        REFUSED(ftcache_rebuild(cache, larger, 1, 1 << 20, &report), OUT_OF_MEMORY,
                "768 bytes of device memory wanted; 700 are free; the old slots are back, and empty");
        CHECK(report_of(cache).slot_count == 8 && report_of(cache).resident_count == 0);
        decode(cache, 0, two, 2);
        CHECK(slot_holds(cache, 0, answer[0], 2) && slot_holds(cache, 0, answer[1], 3));
        CHECK(report_of(cache).is_engaged == 1 && report_of(cache).ready_layer_count == 3);
        // What was handed out before is void all the same.
        CHECK(generation_of(cache) == attempt + 1);
    }
    rebuilt(cache, 6, 1, 1 << 20);
    decode(cache, 0, two, 2);
    CHECK(slot_holds(cache, 0, answer[1], 3) && report_of(cache).slot_count == 6);
    ftcache_configuration_free(larger);
    ftcache_free(cache);
}

// Whatever is refused changes nothing: residents are hits still, addresses stay.
static void refused_targets_change_nothing(void) {
    static const int32_t four[] = {0, 1, 2, 3};
    const ftcache_settings settings = settings_of(8);
    ftcache *cache = used_cache(NULL);
    ftcache_configuration *other = configured(plain_model(3, 8, 2, 26), &settings);
    const uint64_t digest = digest_of(cache);
    SIZED(ftcache_slot_span, before);
    SIZED(ftcache_slot_span, after);
    OK(ftcache_slot_span_get(cache, 1, 0, &before));
    REFUSED(ftcache_rebuild(cache, other, 1, 1 << 20, NULL), INVALID_ARGUMENT,
            "a rebuild is for the same model; this one has other layouts");
    ftcache_configuration_free(other);
    other = new_configuration(12);
    REFUSED(ftcache_rebuild(cache, other, 2, 1 << 20, NULL), INVALID_ARGUMENT, "keep is 2, not 0 or 1");
    OK(ftcache_slot_span_get(cache, 1, 0, &after));
    CHECK(generation_of(cache) == 0 && digest_of(cache) == digest && memcmp(&before, &after, sizeof after) == 0);
    survivors_are(cache, four, 4);
    ftcache_configuration_free(other);
    // A budget that is none says so before there is anything to rebuild with.
    OK(ftcache_configuration_of(cache, &other));
    {
        ftcache_configuration *none = other;
        REFUSED(ftcache_configuration_with_budget(other, "100", &none), UNSATISFIABLE,
                "the pools need at least 204 bytes; 100 are given");
        CHECK(none == NULL);
        none = other;
        REFUSED(ftcache_configuration_with_budget(other, "much", &none), INVALID_ARGUMENT,
                "\"much\" is not a byte count such as 12GiB, 12GB or 9059696640");
        CHECK(none == NULL);
    }
    ftcache_configuration_free(other);
    ftcache_free(cache);
}

// Overlap that a small budget turned off comes back with a larger one.
static void overlap_comes_back(void) {
    ftcache_settings settings = settings_of(16);
    ftcache_configuration *configuration, *next = NULL;
    ftcache *cache;
    uint32_t i;
    static const struct { const char *budget; uint32_t buffers; } budgets[] = {{"800", 1}, {"1500", 1}, {"1600", 2}};
    settings.staging = FTCACHE_STAGING_BORROWED;
    settings.tail_pad = FTCACHE_TAIL_PAD_BYTES;
    configuration = configured(plain_model(3, 8, 2, 100), &settings);
    cache = planner_of(configuration);
    for (i = 0; i < 3; i++) {
        SIZED(ftcache_rebuild_report, report);
        SIZED(ftcache_configuration_report, came_to);
        OK(ftcache_configuration_of(cache, &configuration));
        OK(ftcache_configuration_with_budget(configuration, budgets[i].budget, &next));
        OK(ftcache_configuration_get(next, &came_to));
        CHECK(came_to.buffer_count == budgets[i].buffers && came_to.overlap_off == 2 - budgets[i].buffers);
        OK(ftcache_rebuild(cache, next, 1, 1 << 20, &report));
        CHECK(report.buffer_count == budgets[i].buffers && report.staging_lost == 0);
        ftcache_configuration_free(configuration);
        ftcache_configuration_free(next);
    }
    ftcache_free(cache);
}

// An engine that copies by itself is told what to move; until then nothing is lost.
static void an_engine_moves_the_rows(void) {
    static const int32_t ids[] = {0, 1, 2, 3}, last[] = {6, 7};
    const ftcache_slots slots = slots_of(answer);
    ftcache_routes routes = routes_of(ids, 4);
    const ftcache_step step = step_of(0);
    SIZED(ftcache_rebuild_report, report);
    ftcache_configuration *configuration;
    ftcache_settings settings = settings_of(8);
    // Whose row lies in each slot.
    int32_t before[8], after[8];
    ftcache *cache;
    uint64_t i;
    memset(before, -1, sizeof before);
    cache = planner_of(configured(plain_model(1, 8, 4, 16), &settings));
    OK(ftcache_admit(cache, &step, &routes, &slots));
    for (i = 0; i < 4; i++) before[answer[i]] = ids[i];
    OK(ftcache_commit(cache));
    routes = routes_of(last, 2);
    OK(ftcache_admit(cache, &step, &routes, &slots));
    for (i = 0; i < 2; i++) before[answer[i]] = last[i];
    // Not while a plan is open.
    settings.slot_count = 4;
    configuration = configured(plain_model(1, 8, 4, 16), &settings);
    REFUSED(ftcache_rebuild(cache, configuration, 1, 1 << 20, &report), OUT_OF_ORDER,
            "the plan of a step is open: commit or abort it first");
    OK(ftcache_commit(cache));
    OK(ftcache_rebuild(cache, configuration, 1, 1 << 20, &report));
    CHECK(report.kept == 4);
    memcpy(after, before, sizeof after);
    for (i = 0; i < report.move_count; i++) {
        const ftcache_move *move = &report.moves[i];
        CHECK(move->layer == 0 && move->from_pool == 0 && move->to_pool == 0 && move->to_slot < 4);
        CHECK(before[move->from_slot] == (int32_t)move->expert);
        after[move->to_slot] = (int32_t)move->expert;
    }
    // The two last ones and two of the four are where the engine has put them.
    OK(ftcache_admit(cache, &step, &routes, &slots));
    CHECK(plan_of(cache).copy_count == 0 && after[answer[0]] == 6 && after[answer[1]] == 7);
    OK(ftcache_commit(cache));
    CHECK(report_of(cache).resident_count == 4);
    ftcache_configuration_free(configuration);
    ftcache_free(cache);
}

int main(void) {
    it_grows_and_shrinks();
    it_says_why_nobody_was_kept();
    what_does_not_fit_at_all_is_undone();
    refused_targets_change_nothing();
    overlap_comes_back();
    an_engine_moves_the_rows();
    return 0;
}
