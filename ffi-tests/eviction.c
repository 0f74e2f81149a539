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
    OK(ftcache_configuration_new(model, &settings, &configuration));
    ftcache_configuration_free(configuration);
    configuration = NULL;
    settings.admission = FTCACHE_ADMISSION_HOST;
    settings.strategy = FTCACHE_STRATEGY_CPU;
    settings.staging = FTCACHE_STAGING_BORROWED;
    settings.slot_count = 16;
    REFUSED(ftcache_configuration_new(model, &settings, &configuration), UNSATISFIABLE,
            "eviction would have no effect: nothing is admitted where the CPU computes every expert");
    CHECK(configuration == NULL);
    ftcache_model_free(model);
}

static void use_expert(ftcache *cache, uint32_t device, int32_t expert) {
    const ftcache_routes routes = routes_of(&expert, 1);
    const ftcache_slots slots = slots_of(answer);
    if (device == FTCACHE_DEVICE_NONE) {
        decode(cache, 0, routes);
    } else {
        OK(load(cache, 0, &routes, &slots));
    }
}

// One slot for each of two experts of layer 0, of which expert 1 is used four times before the rebuild. Then 1, 0, and 2,
// which takes the slot of the one that is worth less: of 0 where the four uses count, though 0 was used last; else of 1.
static void a_rebuild_keeps_what_was_counted_unless_the_rule_changes(uint32_t device) {
    static const uint32_t rules[] = {FTCACHE_EVICTION_LFU, FTCACHE_EVICTION_CYCLIC, FTCACHE_EVICTION_LRU};
    uint32_t rule;
    for (rule = 0; rule < 3; rule++) {
        const int keeps = rules[rule] == FTCACHE_EVICTION_LFU;
        ftcache_settings settings = settings_of(6);
        ftcache_configuration *configuration, *other;
        ftcache *cache = NULL;
        char text[4096];
        SIZED(ftcache_config, config);
        uint32_t turn;
        settings.scope = FTCACHE_SCOPE_PER_LAYER;
        settings.eviction = FTCACHE_EVICTION_LFU;
        configuration = configuration_of(&settings);
        settings.eviction = rules[rule];
        other = configuration_of(&settings);
        config.device = device;
        OK(ftcache_new(configuration, &config, &cache));
        if (device != FTCACHE_DEVICE_NONE) attach_all(cache);
        for (turn = 0; turn < 4; turn++) use_expert(cache, device, 1);
        OK(ftcache_rebuild(cache, other, 0, 0, NULL));
        OK(ftcache_configuration_text(other, text, sizeof text, NULL));
        CHECK((strstr(text, "eviction: lfu") != NULL) == keeps);
        use_expert(cache, device, 1);
        CHECK(answer[0] == 0);
        use_expert(cache, device, 0);
        CHECK(answer[0] == 1);
        use_expert(cache, device, 2);
        CHECK(answer[0] == keeps);
        ftcache_free(cache);
        ftcache_configuration_free(other);
        ftcache_configuration_free(configuration);
    }
}

int main(void) {
    what_the_next_layer_may_ask_for_stays();
    rows_are_where_the_answer_says(FTCACHE_EVICTION_LFU);
    rows_are_where_the_answer_says(FTCACHE_EVICTION_CYCLIC);
    rows_are_where_the_answer_says(FTCACHE_EVICTION_LEARNED);
    settings_that_do_not_go_together_are_refused();
    a_rebuild_keeps_what_was_counted_unless_the_rule_changes(FTCACHE_DEVICE_NONE);
    a_rebuild_keeps_what_was_counted_unless_the_rule_changes(FTCACHE_DEVICE_HOST);
    return 0;
}
