// Victims by other rules than LRU: the settings, a choice worked by hand, and rows that are where the answer says.

#include "planning.h"

static ftcache_configuration *configured_with(uint32_t eviction, uint64_t slot_count) {
    ftcache_settings settings = settings_of(slot_count);
    settings.eviction = eviction;
    return configured(plain_model(2, 8, 2, 16), &settings);
}

// Three slots. Layer 0 has used expert 0 twice and layer 1 its experts 0 and 1, in slots 0, 1 and 2, when layer 0 asks
// for expert 1. The least recent is slot 1. But layer 1 is next, and layer 0 only after it: what slot 0 holds is worth
// half of what its use makes of it.
static void what_the_next_layer_may_ask_for_stays(void) {
    static const uint32_t rules[] = {FTCACHE_EVICTION_LRU, FTCACHE_EVICTION_LFU, FTCACHE_EVICTION_CYCLIC,
                                     FTCACHE_EVICTION_LEARNED};
    static const uint32_t victims[] = {1, 1, 0, 0};
    uint32_t rule;
    for (rule = 0; rule < 4; rule++) {
        ftcache *cache = planner_of(configured_with(rules[rule], 3));
        decode(cache, 0, ROUTES(0));
        decode(cache, 1, ROUTES(0));
        decode(cache, 0, ROUTES(0));
        decode(cache, 1, ROUTES(1));
        CHECK(ANSWER(2));
        decode(cache, 0, ROUTES(1));
        CHECK(answer[0] == (int32_t)victims[rule]);
        CHECK(COPIES(cache, {victims[rule], 1}));
        ftcache_free(cache);
    }
}

// The same steps again and again: every rule finds a set that stays, and what a step was given is there.
static void rows_are_where_the_answer_says(uint32_t eviction) {
    ftcache_settings settings = settings_of(11);
    ftcache_configuration *configuration;
    ftcache *cache = NULL;
    uint32_t turn;
    SIZED(ftcache_config, config);
    settings.eviction = eviction;
    configuration = configuration_of(&settings);
    OK(ftcache_new(configuration, &config, &cache));
    ftcache_configuration_free(configuration);
    attach_all(cache);
    for (turn = 0; turn < 120; turn++) {
        const uint32_t layer = turn % LAYERS;
        const int32_t ids[TOP_K] = {(int32_t)(turn * 5 % EXPERTS), (int32_t)(turn * turn % EXPERTS)};
        const ftcache_step step = step_of(layer);
        const ftcache_routes routes = routes_of(ids, TOP_K);
        const ftcache_slots slots = slots_of(answer);
        uint32_t route;
        OK(ftcache_load(cache, &step, &routes, NULL, &slots));
        OK(ftcache_synchronize(cache));
        for (route = 0; route < TOP_K; route++) CHECK(slot_holds(cache, layer, answer[route], (uint32_t)ids[route]));
    }
    ftcache_free(cache);
}

static void settings_that_do_not_go_together_are_refused(void) {
    ftcache_settings settings = settings_of(6);
    ftcache_model *model = plain_model(2, 8, 2, 16);
    ftcache_configuration *configuration = NULL;
    settings.eviction = 4;
    REFUSED(ftcache_configuration_new(model, &settings, &configuration), INVALID_ARGUMENT,
            "settings->eviction is 4, not an ftcache_eviction");
    settings.eviction = FTCACHE_EVICTION_LEARNED;
    settings.admission = FTCACHE_ADMISSION_DEVICE;
    REFUSED(ftcache_configuration_new(model, &settings, &configuration), UNSATISFIABLE,
            "admission on the device evicts by lru alone, and eviction is learned");
    settings.admission = FTCACHE_ADMISSION_HOST;
    settings.strategy = FTCACHE_STRATEGY_CPU;
    settings.staging = FTCACHE_STAGING_BORROWED;
    settings.slot_count = 16;
    REFUSED(ftcache_configuration_new(model, &settings, &configuration), UNSATISFIABLE,
            "eviction would have no effect: nothing is admitted where the CPU computes every expert");
    CHECK(configuration == NULL);
    ftcache_model_free(model);
}

// A rebuild goes on with what was counted: expert 1 of layer 0 was used four times, so that it is expert 0 that goes,
// though used last. With another rule it is counted anew.
static void a_rebuild_keeps_what_was_counted_unless_the_rule_changes(void) {
    uint32_t changes;
    for (changes = 0; changes < 2; changes++) {
        ftcache *cache = planner_of(configured_with(FTCACHE_EVICTION_LFU, 2));
        ftcache_configuration *other =
            configured_with(changes ? FTCACHE_EVICTION_LRU : FTCACHE_EVICTION_LFU, changes ? 3 : 2);
        uint32_t turn;
        for (turn = 0; turn < 4; turn++) decode(cache, 0, ROUTES(1));
        OK(ftcache_rebuild(cache, other, 0, 0, NULL));
        if (changes) {
            char text[4096];
            OK(ftcache_configuration_text(other, text, sizeof text, NULL));
            CHECK(strstr(text, "eviction: lru") != NULL);
            decode(cache, 1, ROUTES(7));
        }
        decode(cache, 0, ROUTES(1));
        decode(cache, 0, ROUTES(0));
        decode(cache, 0, ROUTES(2));
        CHECK(answer[0] == 1 - (int32_t)changes);
        ftcache_configuration_free(other);
        ftcache_free(cache);
    }
}

int main(void) {
    what_the_next_layer_may_ask_for_stays();
    rows_are_where_the_answer_says(FTCACHE_EVICTION_LFU);
    rows_are_where_the_answer_says(FTCACHE_EVICTION_CYCLIC);
    rows_are_where_the_answer_says(FTCACHE_EVICTION_LEARNED);
    settings_that_do_not_go_together_are_refused();
    a_rebuild_keeps_what_was_counted_unless_the_rule_changes();
    return 0;
}
