// An engine that copies by itself: plans, what may be done while one is open, copies that fail, tokens, steps wider
// than their pool, and drafts. No device is touched.

#include "planning.h"

enum { MOST = 128 };

static int32_t ids[MOST];

// Two layers of four experts in four slots, worked by hand.
static void victims_are_the_least_recent(void) {
    ftcache *cache = plain_planner(2, 4, 2, 4);
    char text[256];
    size_t needed = 0;
    decode(cache, 0, ROUTES(2, 0));
    CHECK(ANSWER(1, 0) && COPIES(cache, {0, 0}, {1, 2}) && plan_of(cache).eviction_count == 0);
    decode(cache, 1, ROUTES(3, 1));
    CHECK(ANSWER(3, 2) && COPIES(cache, {2, 1}, {3, 3}));
    decode(cache, 0, ROUTES(0, 1));
    CHECK(ANSWER(0, 1) && COPIES(cache, {1, 1}) && plan_of(cache).eviction_count == 1);
    decode(cache, 1, ROUTES(1, 1, 0));
    CHECK(ANSWER(2, 2, 3) && COPIES(cache, {3, 0}));
    decode(cache, 0, ROUTES(3, 2, 1));
    CHECK(ANSWER(2, 0, 1) && COPIES(cache, {0, 2}, {2, 3}) && plan_of(cache).eviction_count == 2);
    OK(ftcache_plan_text(cache, text, sizeof text, &needed));
    CHECK(strcmp(text, "step 5 pool 0: routes [3, 2, 1] -> slots [2, 0, 1]; copy 2 -> slot 0 (was 0, last step 3); "
                       "copy 3 -> slot 2 (was 5, last step 4)") == 0);
    CHECK(needed == strlen(text) + 1);
    {
        const ftcache_stats stats = stats_of(cache);
        CHECK(stats.steps == 5 && stats.distinct == 11 && stats.misses == 8 && stats.hits == 3);
        CHECK(stats.bytes == 8 * 16);
    }
    ftcache_free(cache);
}

static void runs_are_neighbours(void) {
    ftcache *cache = plain_planner(1, 16, 8, 16);
    const ftcache_step step = step_of(0);
    ftcache_plan plan;
    OK(admit(cache, &step, ROUTES(9, 5, 3, 4, 12, 13)));
    plan = plan_of(cache);
    CHECK(plan.is_open == 1 && plan.copy_count == 6 && plan.run_count == 3);
    CHECK(memcmp(plan.runs, (const ftcache_run[]){{0, 3, 3}, {3, 9, 1}, {4, 12, 2}}, 3 * sizeof *plan.runs) == 0);
    OK(ftcache_commit(cache));
    CHECK(plan_of(cache).is_open == 0 && plan_of(cache).run_count == 3);
    // A step of hits has neither.
    decode(cache, 0, ROUTES(3, 13));
    CHECK(plan_of(cache).copy_count == 0 && plan_of(cache).run_count == 0 && plan_of(cache).distinct_count == 2);
    ftcache_free(cache);
}

// What would change the residency is refused; what only looks is not.
static void one_plan_is_open_at_a_time(void) {
    static const char open[] = "the plan of a step is open: commit or abort it first";
    ftcache *cache = plain_planner(2, 4, 2, 4), *other = plain_planner(2, 4, 2, 4);
    ftcache_configuration *configuration = NULL;
    const ftcache_step step = step_of(0);
    const ftcache_routes routes = ROUTES(0, 1);
    const uint32_t zero = 0;
    int32_t map[4];
    uint32_t parts;
    char text[64];
    OK(ftcache_configuration_of(cache, &configuration));
    REFUSED(ftcache_commit(cache), OUT_OF_ORDER, "no plan is open");
    REFUSED(ftcache_abort(cache), OUT_OF_ORDER, "no plan is open");
    OK(admit(cache, &step, routes));
    answer[0] = -7;
    REFUSED(admit(cache, &step, routes), OUT_OF_ORDER, open);
    CHECK(answer[0] == -7);
    REFUSED(ftcache_partition(cache, &step, &routes, &parts), OUT_OF_ORDER, open);
    REFUSED(ftcache_accept(cache, 0, &zero, 1), OUT_OF_ORDER, open);
    REFUSED(ftcache_forget(cache, 0, 0), OUT_OF_ORDER, open);
    REFUSED(ftcache_forget_layer(cache, 0), OUT_OF_ORDER, open);
    REFUSED(ftcache_reset(cache), OUT_OF_ORDER, open);
    REFUSED(ftcache_rebuild(cache, configuration, 1, 0, NULL), OUT_OF_ORDER, open);
    // Looking at it is free.
    OK(ftcache_plan_map(cache, map, 4, -1));
    CHECK(map[0] == 0 && map[1] == 1 && map[2] == -1);
    OK(ftcache_plan_text(cache, text, sizeof text, NULL));
    CHECK(digest_of(cache) != digest_of(other));
    // Another handle has plans of its own.
    OK(admit(other, &step, ROUTES(3)));
    OK(ftcache_commit(other));
    OK(ftcache_commit(cache));
    CHECK(stats_of(cache).steps == 1);
    REFUSED(ftcache_commit(cache), OUT_OF_ORDER, "no plan is open");
    // An open plan goes with its cache.
    OK(admit(other, &step, ROUTES(2)));
    ftcache_free(other);
    ftcache_free(cache);
    ftcache_configuration_free(configuration);
}

static void what_failed_is_never_a_hit(void) {
    ftcache *cache = plain_planner(1, 8, 2, 4);
    const ftcache_step step = step_of(0);
    ftcache_stats stats;
    decode(cache, 0, ROUTES(0, 1));
    decode(cache, 0, ROUTES(2, 3));
    // Slots 0 and 1 are to be filled anew, and are not.
    OK(admit(cache, &step, ROUTES(2, 4, 5)));
    CHECK(ANSWER(2, 0, 1) && plan_of(cache).eviction_count == 2);
    OK(ftcache_abort(cache));
    stats = stats_of(cache);
    CHECK(stats.steps == 2 && stats.misses == 4 && stats.evictions == 0);
    // Old owners do not come back, and free slots go first.
    decode(cache, 0, ROUTES(0, 2, 3));
    CHECK(ANSWER(0, 2, 3) && COPIES(cache, {0, 0}) && plan_of(cache).eviction_count == 0);
    // One copy of a plan that failed after all is forgotten alone.
    decode(cache, 0, ROUTES(6, 0));
    CHECK(ANSWER(1, 0));
    OK(ftcache_forget(cache, 0, 1));
    decode(cache, 0, ROUTES(6));
    CHECK(ANSWER(1) && COPIES(cache, {1, 6}) && plan_of(cache).eviction_count == 0);
    stats = stats_of(cache);
    // 0 had lost its slot to the plan that was not carried out.
    CHECK(stats.steps == 5 && stats.misses == 7 && stats.hits == 3);
    CHECK(stats.cold_misses == 5 && stats.capacity_misses == 1 && stats.freed_misses == 1);
    ftcache_free(cache);
}

static void a_token_names_a_step(void) {
    ftcache *cache = plain_planner(2, 8, 2, 8);
    ftcache_step step = step_of(0);
    uint64_t before;
    step.has_token = 1;
    step.token = 7;
    OK(admit(cache, &step, ROUTES(4, 1)));
    CHECK(ANSWER(1, 0) && plan_of(cache).is_repeat == 0);
    OK(ftcache_commit(cache));
    before = digest_of(cache);
    answer[0] = answer[1] = -7;
    OK(admit(cache, &step, ROUTES(4, 1)));
    CHECK(ANSWER(1, 0) && plan_of(cache).is_repeat == 1);
    OK(ftcache_commit(cache));
    CHECK(stats_of(cache).steps == 1 && digest_of(cache) == before);
    REFUSED(admit(cache, &step, ROUTES(4, 2)), INVALID_ARGUMENT,
            "layer 0: token 7 stands for other routes or another kind of step");
    // The same token of another layer is another step, and leaves this one's answer alone.
    step.layer = 1;
    OK(admit(cache, &step, ROUTES(4, 2)));
    OK(ftcache_commit(cache));
    step.layer = 0;
    OK(admit(cache, &step, ROUTES(4, 1)));
    CHECK(ANSWER(1, 0) && plan_of(cache).is_repeat == 1 && stats_of(cache).steps == 2);
    OK(ftcache_commit(cache));
    // Something was freed: the answer does not hold any more.
    OK(ftcache_forget(cache, 0, 1));
    OK(admit(cache, &step, ROUTES(4, 1)));
    CHECK(ANSWER(1, 0) && plan_of(cache).is_repeat == 0 && COPIES(cache, {1, 4}));
    OK(ftcache_commit(cache));
    ftcache_free(cache);
}

// 128 experts of one layer, 16 slots: eight parts of 16, and each expert is fetched once.
static void a_step_wider_than_its_pool_is_parted(void) {
    ftcache *cache = plain_planner(2, 128, 8, 16);
    const ftcache_step step = step_of(0), other = step_of(1);
    ftcache_slots slots = slots_of(answer);
    ftcache_routes routes = routes_of(ids, MOST);
    unsigned char fetched[MOST] = {0}, served[MOST] = {0};
    uint32_t parts = 0, part, i;
    ftcache_stats stats;
    for (i = 0; i < MOST; i++) ids[i] = (int32_t)((i * 37 + 5) % 128);
    REFUSED(ftcache_admit(cache, &step, &routes, &slots), STEP_TOO_WIDE,
            "layer 0 routes to 128 distinct experts; pool 0 has 16 slots");
    OK(ftcache_partition(cache, &step, &routes, &parts));
    CHECK(parts == 8);
    for (part = 0; part < parts; part++) {
        ftcache_plan plan;
        uint32_t of_part = 0;
        OK(ftcache_admit_part(cache, part, &slots));
        plan = plan_of(cache);
        CHECK(plan.copy_count == 16 && plan.distinct_count == 16);
        for (i = 0; i < 16; i++) fetched[plan.copies[i].row]++;
        for (i = 0; i < MOST; i++) {
            if (answer[i] < 0) continue;
            CHECK(answer[i] < 16);
            served[i]++;
            of_part++;
        }
        CHECK(of_part == 16);
        OK(ftcache_commit(cache));
    }
    for (i = 0; i < MOST; i++) CHECK(fetched[i] == 1 && served[i] == 1);
    stats = stats_of(cache);
    CHECK(stats.steps == 1 && stats.routes == 128 && stats.misses == 128 && stats.distinct == 128 && stats.hits == 0);
    CHECK(stats.refused == 1);
    REFUSED(ftcache_admit_part(cache, 8, &slots), OUT_OF_RANGE, "no part 8: the step has 8 parts");

    // Residents are not fetched again.
    OK(ftcache_partition(cache, &step, &routes, &parts));
    for (part = 0, i = 0; part < parts; part++) {
        OK(ftcache_admit_part(cache, part, &slots));
        i += (uint32_t)plan_of(cache).copy_count;
        OK(ftcache_commit(cache));
    }
    CHECK(parts == 8 && i == 112 && stats_of(cache).steps == 2 && stats_of(cache).hits == 16);

    // A step that fits is one part; a step of nothing has none.
    routes = ROUTES(3, 3, 4);
    OK(ftcache_partition(cache, &other, &routes, &parts));
    CHECK(parts == 1);
    routes = ROUTES(-1, -1);
    routes.has_absent = 1;
    routes.absent_id = -1;
    OK(ftcache_partition(cache, &other, &routes, &parts));
    CHECK(parts == 0);
    ftcache_free(cache);
}

// The same on a cache that copies: each part's rows lie in its slots before the next part takes them.
static void parts_are_copied(void) {
    ftcache *cache = new_cache(8);
    const ftcache_step step = step_of(1);
    ftcache_slots slots = slots_of(answer);
    ftcache_routes routes = ROUTES(7, 0, 1, 7, 2, 3, 4, 5, 6, 0);
    uint32_t parts = 0, part, i, served = 0;
    OK(ftcache_partition(cache, &step, &routes, &parts));
    CHECK(parts == 3);
    for (part = 0; part < parts; part++) {
        OK(ftcache_load_part(cache, part, NULL, &slots));
        for (i = 0; i < 10; i++) {
            if (answer[i] < 0) continue;
            CHECK(slot_holds(cache, 1, answer[i], (uint32_t)((const int32_t *)routes.ids)[i]));
            served++;
        }
    }
    CHECK(served == 10 && stats_of(cache).bytes == 8 * 42 && stats_of(cache).steps == 1 && stats_of(cache).misses == 8);
    REFUSED(ftcache_load_part(cache, 3, NULL, &slots), OUT_OF_RANGE, "no part 3: the step has 3 parts");
    ftcache_free(cache);
}

static void drafts_leave_no_trace(void) {
    ftcache *cache = plain_planner(1, 8, 2, 4);
    ftcache_step verify = step_of(0);
    const uint32_t accepted[] = {4, 4}, stranger = 7;
    verify.phase = FTCACHE_PHASE_VERIFY;
    decode(cache, 0, ROUTES(0));
    decode(cache, 0, ROUTES(0, 1));
    decode(cache, 0, ROUTES(2));
    // A draft that hits 0, and brings 4 and 5 in slots 3 and 1.
    OK(admit(cache, &verify, ROUTES(0, 4, 5)));
    CHECK(ANSWER(0, 3, 1));
    REFUSED(ftcache_accept(cache, 0, accepted, 2), OUT_OF_ORDER,
            "the plan of a step is open: commit or abort it first");
    OK(ftcache_commit(cache));
    REFUSED(ftcache_accept(cache, 0, &stranger, 1), OUT_OF_RANGE,
            "layer 0: accepted route 0 is 7, which the verify step did not route to");
    OK(ftcache_accept(cache, 0, accepted, 2));
    // 5 was rejected and goes first, then 0, whose hit was rejected too; 4 outlives 2.
    decode(cache, 0, ROUTES(6));
    CHECK(ANSWER(1));
    decode(cache, 0, ROUTES(7));
    CHECK(ANSWER(0));
    decode(cache, 0, ROUTES(5));
    CHECK(ANSWER(2));
    decode(cache, 0, ROUTES(4));
    CHECK(ANSWER(3) && plan_of(cache).copy_count == 0);
    REFUSED(ftcache_accept(cache, 0, accepted, 1), OUT_OF_ORDER, "layer 0 has no verify step to accept");
    ftcache_free(cache);
}

static void each_cache_has_its_own_way_to_copy(void) {
    static const char copying[] = "the cache copies by itself: plans are for FTCACHE_DEVICE_NONE";
    static const char planning[] = "the cache has no device: the engine copies by itself";
    ftcache *copies = new_cache(8), *plans = plain_planner(1, 8, 2, 8);
    const ftcache_step step = step_of(0);
    const ftcache_routes routes = ROUTES(0);
    SIZED(ftcache_slot_span, span);
    SIZED(ftcache_host_rows, rows);
    uint64_t number;
    REFUSED(ftcache_admit(copies, &step, &routes, NULL), UNSUPPORTED, copying);
    REFUSED(ftcache_admit_later(copies, 1, &number), UNSUPPORTED, copying);
    REFUSED(ftcache_commit(copies), UNSUPPORTED, copying);
    REFUSED(ftcache_load(plans, &step, &routes, NULL, NULL), UNSUPPORTED, planning);
    REFUSED(ftcache_slot_span_get(plans, 0, 0, &span), UNSUPPORTED, planning);
    rows.base = host_rows;
    rows.bytes = sizeof host_rows;
    REFUSED(ftcache_attach(plans, 0, 0, &rows), UNSUPPORTED, planning);
    ftcache_free(copies);
    ftcache_free(plans);
}

int main(void) {
    victims_are_the_least_recent();
    runs_are_neighbours();
    one_plan_is_open_at_a_time();
    what_failed_is_never_a_hit();
    a_token_names_a_step();
    a_step_wider_than_its_pool_is_parted();
    parts_are_copied();
    drafts_leave_no_trace();
    each_cache_has_its_own_way_to_copy();
    return 0;
}
