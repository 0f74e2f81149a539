// Worked cases of steps: ranks that divide whole experts, slots towards kernels, two models in one process, and where
// hits begin as slots grow.

#include "check.h"

enum { MOST = 64 };

static void decode(ftcache *cache, uint32_t layer, const ftcache_routes *routes, int32_t *answer) {
    const ftcache_step step = step_of(layer);
    const ftcache_slots slots = slots_of(answer);
    OK(ftcache_admit(cache, &step, routes, &slots));
    OK(ftcache_commit(cache));
}

// Ten experts over four ranks: 2, 3, 2 and 3 of them. Every route is one rank's, and what they do sums to what one
// does.
static void ranks_divide_whole_experts(void) {
    static const uint32_t firsts[] = {0, 2, 5, 7, 10};
    ftcache *whole = plain_planner(2, 10, 4, 12), *ranks[4];
    ftcache_routes routes = routes_of(NULL, 4);
    ftcache_stats sum, one;
    uint32_t rank, i, step, seed = 1;
    for (rank = 0; rank < 4; rank++) {
        CHECK(firsts[rank] == rank * 10 / 4);
        ranks[rank] = plain_planner(2, firsts[rank + 1] - firsts[rank], 2, 4);
    }
    memset(&sum, 0, sizeof sum);
    for (step = 0; step < 200; step++) {
        int32_t ids[8], answer[8], owner[8];
        for (i = 0; i < 8; i++) {
            seed = seed * 1664525 + 1013904223;
            ids[i] = (int32_t)((seed >> 16) % 10);
            owner[i] = -1;
        }
        routes.ids = ids;
        routes.row_count = 2;
        for (rank = 0; rank < 4; rank++) {
            routes.first_expert = firsts[rank];
            routes.whole_count = 10;
            decode(ranks[rank], step % 2, &routes, answer);
            for (i = 0; i < 8; i++) {
                if (answer[i] == -1) continue;
                CHECK(owner[i] == -1);
                owner[i] = (int32_t)rank;
            }
        }
        for (i = 0; i < 8; i++) {
            CHECK(owner[i] >= 0 && (uint32_t)ids[i] >= firsts[owner[i]] && (uint32_t)ids[i] < firsts[owner[i] + 1]);
        }
        routes.first_expert = routes.whole_count = 0;
        decode(whole, step % 2, &routes, answer);
    }
    for (rank = 0; rank < 4; rank++) {
        one = stats_of(ranks[rank]);
        sum.distinct += one.distinct;
        sum.routes += one.routes;
        sum.cold_misses += one.cold_misses;
    }
    one = stats_of(whole);
    CHECK(one.routes == 1600 && sum.routes == one.routes && sum.distinct == one.distinct);
    CHECK(one.cold_misses == 20 && sum.cold_misses == 20);
    {
        // Rows of a plan are the rank's own: expert 9 is the last of rank 3's.
        const int32_t last = 9, beyond = 10;
        const ftcache_step step_0 = step_of(0);
        int32_t answer;
        OK(ftcache_reset(ranks[3]));
        routes = routes_of(&last, 1);
        routes.first_expert = 7;
        routes.whole_count = 10;
        decode(ranks[3], 0, &routes, &answer);
        CHECK(answer == 0 && plan_of(ranks[3]).copies[0].row == 2);
        routes.ids = &beyond;
        REFUSED(ftcache_admit(ranks[3], &step_0, &routes, NULL), OUT_OF_RANGE,
                "layer 0: route 0 is 10, which is no expert of 0..10");
        routes.ids = &last;
        routes.first_expert = 8;
        REFUSED(ftcache_admit(ranks[3], &step_0, &routes, NULL), INVALID_ARGUMENT,
                "routes->first_expert is 8, and 3 from there on are not among 10");
        routes.first_expert = 0;
        routes.whole_count = 2;
        REFUSED(ftcache_admit(ranks[3], &step_0, &routes, NULL), INVALID_ARGUMENT,
                "routes->first_expert is 0, and 3 from there on are not among 2");
        routes.first_expert = 1;
        routes.whole_count = 0;
        REFUSED(ftcache_admit(ranks[3], &step_0, &routes, NULL), INVALID_ARGUMENT,
                "routes->first_expert is 1, and whole_count is 0");
    }
    for (rank = 0; rank < 4; rank++) ftcache_free(ranks[rank]);
    ftcache_free(whole);
}

// Ranks that each hold half of every row: equal routes, equal slots, equal digests, and twice the slots of the same
// bytes.
static void ranks_that_halve_rows_stay_alike(void) {
    SIZED(ftcache_settings, settings);
    ftcache *ranks[2], *alone;
    ftcache_report reports[2] = {{.struct_size = sizeof *reports}, {.struct_size = sizeof *reports}};
    const int32_t ids[] = {3, 1, 3, 7};
    const ftcache_routes routes = routes_of(ids, 4), fewer = routes_of(ids, 2);
    int32_t answers[2][4];
    uint32_t rank;
    settings.budget_bytes = 40 * 2048;
    settings.tail_pad = FTCACHE_TAIL_PAD_BYTES;
    settings.staging = FTCACHE_STAGING_NOWHERE;
    for (rank = 0; rank < 2; rank++) {
        ranks[rank] = planner_of(configured(plain_model(8, 16, 4, 1024), &settings));
        decode(ranks[rank], 5, &routes, answers[rank]);
        OK(ftcache_report_get(ranks[rank], &reports[rank]));
    }
    alone = planner_of(configured(plain_model(8, 16, 4, 2048), &settings));
    CHECK(reports[0].slot_count == 80 && memcmp(&reports[0], &reports[1], sizeof *reports) == 0);
    CHECK(memcmp(answers[0], answers[1], sizeof *answers) == 0 && digest_of(ranks[0]) == digest_of(ranks[1]));
    OK(ftcache_report_get(alone, &reports[0]));
    CHECK(reports[0].slot_count == 40);
    // The order of victims is part of it.
    decode(ranks[0], 5, &fewer, answers[0]);
    CHECK(digest_of(ranks[0]) != digest_of(ranks[1]));
    decode(ranks[1], 5, &fewer, answers[1]);
    CHECK(digest_of(ranks[0]) == digest_of(ranks[1]));
    ftcache_free(ranks[0]);
    ftcache_free(ranks[1]);
    ftcache_free(alone);
}

// 512 experts, ten routes of which four are absent, 64 slots: no slot stands for two experts, and none for "absent".
static void absent_routes_have_no_slot(void) {
    static const int32_t ids[] = {511, -1, 3, 200, -1, -1, 77, 0, -1, 128};
    ftcache *cache = plain_planner(2, 512, 10, 64);
    ftcache_routes routes = routes_of(ids, 10);
    int32_t answer[10], seen[64] = {0};
    uint32_t i, round;
    ftcache_slots slots = slots_of(answer);
    ftcache_step step = step_of(0);
    routes.has_absent = 1;
    routes.absent_id = -1;
    for (round = 0; round < 2; round++) {
        memset(seen, 0, sizeof seen);
        slots.absent_slot = round ? 64 : -1;
        OK(ftcache_admit(cache, &step, &routes, &slots));
        OK(ftcache_commit(cache));
        for (i = 0; i < 10; i++) {
            if (ids[i] == -1) CHECK(answer[i] == slots.absent_slot);
            else CHECK(answer[i] >= 0 && answer[i] < 64 && seen[answer[i]]++ == 0);
        }
    }
    CHECK(stats_of(cache).routes == 12 && stats_of(cache).distinct == 12 && stats_of(cache).hits == 6);
    // A number that is a slot would be given out twice.
    slots.absent_slot = 63;
    REFUSED(ftcache_admit(cache, &step, &routes, &slots), INVALID_ARGUMENT,
            "slots->absent_slot is 63, a slot of pool 0");
    slots.absent_slot = -1;
    slots.cpu_slot = 0;
    step.misses = FTCACHE_MISSES_HYBRID;
    step.fetch_rule = FTCACHE_FETCH_RULE_UP_TO;
    REFUSED(ftcache_admit(cache, &step, &routes, &slots), INVALID_ARGUMENT, "slots->cpu_slot is 0, a slot of pool 0");
    ftcache_free(cache);
}

static void a_draft_leaves_its_target_alone(void) {
    ftcache *target = plain_planner(48, 512, 8, 480), *draft;
    int32_t ids[8], answer[8];
    const ftcache_routes routes = routes_of(ids, 8);
    uint64_t before;
    uint32_t layer, i;
    for (i = 0; i < 8; i++) ids[i] = (int32_t)(i * 61);
    for (layer = 0; layer < 48; layer++) decode(target, layer, &routes, answer);
    before = digest_of(target);
    draft = plain_planner(1, 64, 4, 16);
    for (i = 0; i < 8; i++) ids[i] = (int32_t)i;
    decode(draft, 0, &routes, answer);
    OK(ftcache_reset(draft));
    CHECK(digest_of(target) == before && stats_of(draft).misses == 8);
    for (i = 0; i < 8; i++) ids[i] = (int32_t)(i * 61);
    for (layer = 0; layer < 48; layer++) decode(target, layer, &routes, answer);
    CHECK(stats_of(target).hits == 48 * 8 && stats_of(target).misses == 48 * 8);
    ftcache_free(draft);
    for (layer = 0; layer < 48; layer++) decode(target, layer, &routes, answer);
    CHECK(stats_of(target).hits == 2 * 48 * 8);
    ftcache_free(target);
}

// The same k experts of each of L layers at every token, S slots: L * max(0, S - (L - 1) k) hits a token.
static void hits_begin_one_layer_below_the_cycle(void) {
    static const struct { uint32_t layers, top_k, slots, hits; } cases[] = {
        {3, 2, 4, 0},     {3, 2, 5, 3},     {3, 2, 6, 6},     {4, 3, 9, 0},     {4, 3, 10, 4},
        {4, 3, 11, 8},    {4, 3, 12, 12},   {36, 4, 140, 0},  {36, 4, 141, 36}, {36, 4, 142, 72},
        {36, 4, 143, 108}, {36, 4, 144, 144},
    };
    static const int32_t ids[] = {5, 0, 7, 2};
    uint32_t i, layer, token;
    for (i = 0; i < sizeof cases / sizeof *cases; i++) {
        ftcache *cache = plain_planner(cases[i].layers, 8, cases[i].top_k, cases[i].slots);
        const ftcache_routes routes = routes_of(ids, cases[i].top_k);
        int32_t answer[4];
        for (token = 0; token < 4; token++) {
            const uint64_t before = stats_of(cache).hits;
            for (layer = 0; layer < cases[i].layers; layer++) decode(cache, layer, &routes, answer);
            CHECK(stats_of(cache).hits - before == (token ? cases[i].hits : 0));
        }
        ftcache_free(cache);
    }
}

int main(void) {
    ranks_divide_whole_experts();
    ranks_that_halve_rows_stay_alike();
    absent_routes_have_no_slot();
    a_draft_leaves_its_target_alone();
    hits_begin_one_layer_below_the_cycle();
    return 0;
}
