// Steps of which the CPU computes a part: how many misses are fetched and which, by hand and at random against a slow
// and obvious reference; what is told of the others; and rows that come in behind a step.

#include "planning.h"

// The number of misses that min_wait fetches, for 0 to 10 of them at several fractions.
static void min_wait_fetches_so_many(void) {
    static const struct { double fraction; uint64_t fetches[11]; } cases[] = {
        {0.2189, {0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2}}, {0.294, {0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 3}},
        {0.341, {0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3}},  {0.5, {0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5}},
        {0.75, {0, 1, 2, 2, 3, 4, 5, 5, 6, 7, 8}},   {1.0, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}},
    };
    ftcache *cache = plain_planner(1, 16, 10, 16);
    ftcache_step step = step_of(0);
    int32_t ids[11];
    uint32_t i, misses;
    step.misses = FTCACHE_MISSES_HYBRID;
    step.fetch_rule = FTCACHE_FETCH_RULE_MIN_WAIT;
    for (i = 0; i < 11; i++) ids[i] = (int32_t)i;
    for (i = 0; i < sizeof cases / sizeof *cases; i++) {
        step.fetch_q16 = (uint32_t)(65536 * cases[i].fraction + 0.5);
        for (misses = 0; misses <= 10; misses++) {
            OK(ftcache_reset(cache));
            OK(admit(cache, &step, routes_of(ids, misses)));
            CHECK(plan_of(cache).copy_count == cases[i].fetches[misses] && plan_of(cache).miss_count == misses);
            OK(ftcache_commit(cache));
        }
    }
    ftcache_free(cache);
}

static void what_is_not_fetched_is_the_cpus(void) {
    static const float weights[] = {0.5f, 0.25f, 0.125f, 2};
    ftcache *cache = plain_planner(1, 8, 3, 4);
    ftcache_step step = step_of(0);
    ftcache_routes absent;
    int32_t experts[4], map[8];
    float device[4], cpu[4];
    ftcache_plan plan;
    ftcache_stats stats;
    step.misses = FTCACHE_MISSES_HYBRID;
    step.fetch_rule = FTCACHE_FETCH_RULE_UP_TO;
    step.fetch_most = 1;
    // The most recently active miss is fetched first, ties to the lower expert.
    OK(admit(cache, &step, ROUTES(0, 1, 2)));
    plan = plan_of(cache);
    CHECK(ANSWER(0, -2, -2) && COPIES(cache, {0, 0}));
    CHECK(plan.left_count == 2 && plan.left[0] == 1 && plan.left[1] == 2);
    OK(ftcache_commit(cache));
    OK(admit(cache, &step, ROUTES(0, 1, 3)));
    CHECK(ANSWER(0, 1, -2) && COPIES(cache, {1, 1}));
    OK(ftcache_commit(cache));
    absent = ROUTES(1, 3, 2, -1);
    absent.has_absent = 1;
    absent.absent_id = -1;
    OK(admit(cache, &step, absent));
    CHECK(ANSWER(1, 2, -2, -1) && COPIES(cache, {2, 3}));
    OK(ftcache_commit(cache));
    REFUSED(ftcache_plan_cpu_experts(cache, experts, 4, 3), INVALID_ARGUMENT, "none is 3, an expert of 0..8");
    OK(ftcache_plan_cpu_experts(cache, experts, 4, -3));
    CHECK(experts[0] == -3 && experts[1] == -3 && experts[2] == 2 && experts[3] == -3);
    OK(ftcache_plan_split_weights(cache, weights, device, cpu, 4));
    CHECK(device[0] == 0.5f && device[1] == 0.25f && device[2] == 0 && device[3] == 0);
    CHECK(cpu[0] == 0 && cpu[1] == 0 && cpu[2] == 0.125f && cpu[3] == 0);
    OK(ftcache_plan_map(cache, map, 8, -4));
    CHECK(map[1] == 1 && map[3] == 2 && map[2] == -4 && map[0] == -4);
    REFUSED(ftcache_plan_cpu_experts(cache, experts, 3, -3), INVALID_ARGUMENT,
            "count is 3; the last step had 4 routes");
    REFUSED(ftcache_plan_map(cache, map, 7, -3), INVALID_ARGUMENT, "count is 7; a layer has 8 experts");
    stats = stats_of(cache);
    CHECK(stats.misses == 7 && stats.fetched == 3 && stats.left == 4 && stats.hits == 2 && stats.cpu_misses == 3);

    // No more than the slots that the step does not use, whatever the rule would have.
    OK(ftcache_reset(cache));
    decode(cache, 0, ROUTES(0, 1, 2, 3));
    step.fetch_most = 8;
    OK(admit(cache, &step, ROUTES(0, 1, 2, 3, 4, 5)));
    CHECK(ANSWER(0, 1, 2, 3, -2, -2) && plan_of(cache).copy_count == 0);
    OK(ftcache_commit(cache));
    ftcache_free(cache);
}

// Two misses that recur: min_wait never fetches them, carry does in the end.
static void carry_ends_starvation(void) {
    ftcache *cache = plain_planner(1, 8, 2, 8);
    ftcache_step step = step_of(0);
    uint32_t i;
    step.misses = FTCACHE_MISSES_HYBRID;
    step.fetch_rule = FTCACHE_FETCH_RULE_MIN_WAIT;
    step.fetch_q16 = 19268;
    for (i = 0; i < 5; i++) {
        OK(admit(cache, &step, ROUTES(0, 1)));
        CHECK(ANSWER(-2, -2));
        OK(ftcache_commit(cache));
    }
    // 0.588 of a miss a step, less what a hit leaves over: one is fetched by the second step, the other by the fifth.
    step.fetch_rule = FTCACHE_FETCH_RULE_CARRY;
    for (i = 0; i < 5; i++) {
        static const int32_t first[] = {-2, 0, 0, 0, 0}, second[] = {-2, -2, -2, -2, 1};
        OK(admit(cache, &step, ROUTES(0, 1)));
        CHECK(answer[0] == first[i] && answer[1] == second[i]);
        OK(ftcache_commit(cache));
    }
    ftcache_free(cache);
}

static void rows_come_behind_a_step(void) {
    ftcache *cache = plain_planner(1, 8, 2, 4);
    ftcache_step step = step_of(0);
    const ftcache_step plain = step_of(0);
    uint64_t flight = 7, landed = 7;
    step.misses = FTCACHE_MISSES_HYBRID;
    step.fetch_rule = FTCACHE_FETCH_RULE_UP_TO;
    OK(admit(cache, &step, ROUTES(5, 2)));
    CHECK(ANSWER(-2, -2));
    OK(ftcache_commit(cache));
    OK(ftcache_admit_later(cache, 1, &flight));
    CHECK(plan_of(cache).is_open == 1 && COPIES(cache, {0, 2}));
    OK(ftcache_commit(cache));
    // On its way it is nobody's: the CPU still computes it, and a step that fetches every miss has to wait.
    OK(admit(cache, &step, ROUTES(5, 2)));
    CHECK(ANSWER(-2, -2));
    OK(ftcache_commit(cache));
    REFUSED(admit(cache, &plain, ROUTES(2)), IN_FLIGHT, "layer 0 route 0: the row of expert 2 is on its way");
    OK(ftcache_land_flight(cache, flight, &landed));
    CHECK(landed == 1);
    OK(admit(cache, &plain, ROUTES(2)));
    CHECK(ANSWER(0) && plan_of(cache).copy_count == 0);
    OK(ftcache_commit(cache));
    OK(ftcache_land_flight(cache, flight, &landed));
    CHECK(landed == 0);
    ftcache_free(cache);
}

// The reference of random steps: one layer after the other in one pool.
enum { LAYER_COUNT = 2, EXPERT_COUNT = 24, SLOT_COUNT = 14, STEPS = 3000 };

static struct {
    int32_t owner[SLOT_COUNT];
    uint64_t stamp[SLOT_COUNT], active[LAYER_COUNT][EXPERT_COUNT], step;
} reference;

static uint32_t random_below(uint32_t bound) {
    static uint64_t state = 12345;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((state >> 33) % bound);
}

static uint32_t wanted_fetches(const ftcache_step *step, uint32_t misses) {
    uint64_t n, best = 0, q = step->fetch_q16;
    uint64_t least = UINT64_MAX;
    if (step->misses == FTCACHE_MISSES_FETCHED) return misses;
    if (step->fetch_rule == FTCACHE_FETCH_RULE_UP_TO) return misses < step->fetch_most ? misses : step->fetch_most;
    if (step->fetch_rule == FTCACHE_FETCH_RULE_PREFER_FETCH) {
        best = (misses * q + 65535) / 65536;
    } else {
        for (n = 0; n <= misses; n++) {
            const uint64_t link = n * (65536 - q), cpu = (misses - n) * q, wait = link > cpu ? link : cpu;
            if (wait < least) {
                least = wait;
                best = n;
            }
        }
    }
    return (uint32_t)(step->fetch_most > 0 && best > step->fetch_most ? step->fetch_most : best);
}

// Whether a miss is fetched before another.
static int goes_before(const ftcache_step *step, uint32_t expert, uint32_t other) {
    const uint64_t *active = reference.active[step->layer];
    if (step->misses == FTCACHE_MISSES_HYBRID && step->fetch_order == FTCACHE_FETCH_ORDER_RECENCY &&
        active[expert] != active[other]) {
        return active[expert] > active[other];
    }
    return expert < other;
}

// Decides as the header says, and compares with what the cache's plan has.
static void decide_and_compare(ftcache *cache, const ftcache_step *step, const unsigned char *wanted) {
    const ftcache_plan plan = plan_of(cache);
    int32_t slot_of[EXPERT_COUNT], map[EXPERT_COUNT];
    uint32_t misses[EXPERT_COUNT], miss_count = 0, unused = SLOT_COUNT, fetches, expert, slot, i;
    unsigned char used[SLOT_COUNT] = {0};
    reference.step++;
    for (expert = 0; expert < EXPERT_COUNT; expert++) {
        slot_of[expert] = -1;
        if (!wanted[expert]) continue;
        for (slot = 0; slot < SLOT_COUNT; slot++) {
            if (reference.owner[slot] != (int32_t)(step->layer * EXPERT_COUNT + expert)) continue;
            slot_of[expert] = (int32_t)slot;
            reference.stamp[slot] = reference.step;
            used[slot] = 1;
            unused--;
        }
        if (slot_of[expert] >= 0) continue;
        for (i = miss_count++; i > 0 && goes_before(step, expert, misses[i - 1]); i--) misses[i] = misses[i - 1];
        misses[i] = expert;
    }
    fetches = wanted_fetches(step, miss_count);
    if (fetches > unused) fetches = unused;
    CHECK(plan.miss_count == miss_count && plan.copy_count == fetches && plan.left_count == miss_count - fetches);
    for (i = 0; i < fetches; i++) {
        uint32_t victim = SLOT_COUNT;
        for (slot = 0; slot < SLOT_COUNT; slot++) {
            if (!used[slot] && (victim == SLOT_COUNT || reference.stamp[slot] < reference.stamp[victim])) victim = slot;
        }
        reference.owner[victim] = (int32_t)(step->layer * EXPERT_COUNT + misses[i]);
        reference.stamp[victim] = reference.step;
        used[victim] = 1;
        slot_of[misses[i]] = (int32_t)victim;
        CHECK(plan.copies[i].row == misses[i] && plan.copies[i].slot == victim);
    }
    for (i = fetches; i < miss_count; i++) CHECK(plan.left[i - fetches] == misses[i]);
    OK(ftcache_plan_map(cache, map, EXPERT_COUNT, -1));
    CHECK(memcmp(map, slot_of, sizeof map) == 0);
    for (expert = 0; expert < EXPERT_COUNT; expert++) {
        const int is_activity = wanted[expert] && step->misses == FTCACHE_MISSES_HYBRID;
        if (is_activity) reference.active[step->layer][expert] = reference.step;
    }
}

static void random_steps_are_those_of_the_reference(void) {
    ftcache *cache = plain_planner(LAYER_COUNT, EXPERT_COUNT, 6, SLOT_COUNT);
    uint64_t fetched = 0, left = 0;
    uint32_t at, i;
    memset(&reference, 0, sizeof reference);
    memset(reference.owner, -1, sizeof reference.owner);
    for (at = 0; at < STEPS; at++) {
        ftcache_step step = step_of(random_below(LAYER_COUNT));
        unsigned char wanted[EXPERT_COUNT] = {0};
        int32_t ids[10], experts[10];
        const uint32_t count = 1 + random_below(10);
        for (i = 0; i < count; i++) {
            const uint32_t a = random_below(EXPERT_COUNT), b = random_below(EXPERT_COUNT);
            ids[i] = (int32_t)(a < b ? a : b);
            wanted[ids[i]] = 1;
        }
        step.misses = random_below(5) ? FTCACHE_MISSES_HYBRID : FTCACHE_MISSES_FETCHED;
        if (step.misses == FTCACHE_MISSES_HYBRID) {
            step.fetch_rule = FTCACHE_FETCH_RULE_UP_TO + random_below(3);
            step.fetch_order = random_below(2);
            step.fetch_most = random_below(5);
            if (step.fetch_rule != FTCACHE_FETCH_RULE_UP_TO) step.fetch_q16 = 1 + random_below(65536);
        }
        OK(admit(cache, &step, routes_of(ids, count)));
        decide_and_compare(cache, &step, wanted);
        fetched += plan_of(cache).copy_count;
        left += plan_of(cache).left_count;
        OK(ftcache_commit(cache));
        OK(ftcache_plan_cpu_experts(cache, experts, count, -3));
        for (i = 0; i < count; i++) {
            CHECK((answer[i] == -2) == (experts[i] == ids[i]) && (answer[i] >= 0) == (experts[i] == -3));
        }
    }
    CHECK(stats_of(cache).fetched == fetched && stats_of(cache).left == left);
    CHECK(fetched > STEPS / 2 && left > STEPS / 2);
    ftcache_free(cache);
}

int main(void) {
    min_wait_fetches_so_many();
    what_is_not_fetched_is_the_cpus();
    carry_ends_starvation();
    rows_come_behind_a_step();
    random_steps_are_those_of_the_reference();
    return 0;
}
