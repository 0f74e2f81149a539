// Configurations by what was counted and measured: a profile split, and the strategy and fractions that rates recommend.

#include "check.h"

static uint32_t slots_of_layer(const ftcache_configuration *configuration, uint32_t layer) {
    SIZED(ftcache_pool_report, report);
    uint32_t pool = 77;
    OK(ftcache_configuration_layer_pool(configuration, layer, &pool));
    OK(ftcache_configuration_pool_get(configuration, pool, &report));
    return report.slot_count;
}

static void slots_go_where_the_use_is_spread(void) {
    double counts[LAYERS][EXPERTS];
    ftcache_model *model = new_model();
    ftcache_settings settings = settings_of(12);
    ftcache_configuration *configuration;
    uint32_t layer, expert;
    for (layer = 0; layer < LAYERS; layer++) {
        // Layer 0 uses two experts, the others five of them more than the rest.
        const uint32_t hot = layer == 0 ? 2 : 5;
        for (expert = 0; expert < EXPERTS; expert++) counts[layer][expert] = expert < hot ? 3 : layer == 0 ? 0 : 1;
    }
    settings.scope = FTCACHE_SCOPE_PER_LAYER;
    configuration = configuration_of(&settings);
    for (layer = 0; layer < LAYERS; layer++) CHECK(slots_of_layer(configuration, layer) == 4);
    ftcache_configuration_free(configuration);

    settings.use_counts = &counts[0][0];
    settings.use_count_count = LAYERS * EXPERTS;
    REFUSED_SETTINGS(&settings, INVALID_ARGUMENT,
            "settings->use_counts has 24 counts, which count only if split is FTCACHE_SPLIT_PROFILE");
    settings.split = FTCACHE_SPLIT_PROFILE;
    settings.use_count_count--;
    REFUSED_SETTINGS(&settings, INVALID_ARGUMENT, "settings->use_counts has 23 counts; 3 layers of 8 experts need 24");
    settings.use_count_count++;
    counts[1][4] = -1;
    REFUSED_SETTINGS(&settings, INVALID_ARGUMENT, "the profile's layer 1 expert 4 has a count of -1");
    counts[1][4] = 3;
    settings.split = 3;
    REFUSED_SETTINGS(&settings, INVALID_ARGUMENT, "settings->split is 3, not an ftcache_split");
    settings.split = FTCACHE_SPLIT_PROFILE;

    configuration = configuration_of(&settings);
    CHECK(slots_of_layer(configuration, 0) == 2);
    CHECK(slots_of_layer(configuration, 1) == 5 && slots_of_layer(configuration, 2) == 5);
    ftcache_configuration_free(configuration);

    // Counts of another model are noted, or refused if that is wanted.
    settings.use_counts_model = "other";
    settings.model_name = "this";
    {
        SIZED(ftcache_configuration_report, report);
        configuration = configuration_of(&settings);
        OK(ftcache_configuration_get(configuration, &report));
        CHECK(report.note_count == 1);
        ftcache_configuration_free(configuration);
    }
    settings.refuse_other_model = 1;
    REFUSED_SETTINGS(&settings, UNSATISFIABLE, "the profile was counted on \"other\"; this model is \"this\"");
    settings.use_counts_model = "this";
    ftcache_configuration_free(configuration_of(&settings));
    ftcache_model_free(model);
}

static ftcache_layer_fetch fetch_of(const ftcache_configuration *configuration, uint32_t layer) {
    SIZED(ftcache_layer_fetch, fetch);
    OK(ftcache_configuration_layer_fetch_get(configuration, layer, &fetch));
    return fetch;
}

static uint32_t strategy_of(const ftcache_configuration *configuration) {
    SIZED(ftcache_configuration_report, report);
    OK(ftcache_configuration_get(configuration, &report));
    return report.strategy;
}

static void rates_say_what_is_fetched(void) {
    ftcache_model *model = new_model();
    ftcache_settings settings = settings_of(12);
    ftcache_configuration *configuration;
    ftcache_layer_fetch fetch;
    // One figure for the narrow layers (26 bytes an expert), one for the wide layer (42).
    ftcache_rate rates[2] = {{"q", 1, 26, 10, 30, 0, 0}, {"q", 1, 42, 10, 70, 7, 63}};
    const ftcache_tag tags[2] = {{"q", 1}, {NULL, 0}};
    const ftcache_tag other = {"p", 1};
    settings.strategy = FTCACHE_STRATEGY_MEASURED;
    REFUSED_SETTINGS(&settings, UNSATISFIABLE,
            "hybrid and measured strategies need rates, or hybrid a fraction or a cap of its own");
    settings.rates = rates;
    settings.rate_count = 2;
    REFUSED_SETTINGS(&settings, INVALID_ARGUMENT, "settings->rates_device is NULL, with 2 rates");
    settings.rates_device = "a card";
    REFUSED_SETTINGS(&settings, UNSATISFIABLE,
            "the rates were measured on \"a card\", and the name of this device is not known");
    settings.device_name = "another card";
    REFUSED_SETTINGS(&settings, UNSATISFIABLE, "the rates were measured on \"a card\"; this device is \"another card\"");
    settings.device_name = "a card";
    rates[1].contended_cpu = 0;
    REFUSED_SETTINGS(&settings, INVALID_ARGUMENT,
            "settings->rates[1] has a contended_link of 7 and a contended_cpu of 0; both are measured, or neither");
    rates[1].contended_cpu = 63;

    configuration = configuration_of(&settings);
    CHECK(strategy_of(configuration) == FTCACHE_STRATEGY_HYBRID);
    // Alone: 10/30 of the misses. Together: 7/(7 + 63).
    fetch = fetch_of(configuration, 0);
    CHECK(fetch.fetch_rule == FTCACHE_FETCH_RULE_CARRY && fetch.fetch_q16 == 21845 && fetch.fetch_most == 0);
    fetch = fetch_of(configuration, 1);
    CHECK(fetch.fetch_rule == FTCACHE_FETCH_RULE_CARRY && fetch.fetch_q16 == 6554);
    ftcache_configuration_free(configuration);

    settings.strategy = FTCACHE_STRATEGY_HYBRID;
    settings.fetch_measured = 1;
    settings.fetch_most = 3;
    REFUSED_SETTINGS(&settings, INVALID_ARGUMENT, "settings->fetch_rule is 0, which no measured fraction fits");
    settings.fetch_rule = FTCACHE_FETCH_RULE_MIN_WAIT;
    settings.fetch_q16 = 9;
    REFUSED_SETTINGS(&settings, INVALID_ARGUMENT, "settings->fetch_q16 is 9, and fetch_measured is 1");
    settings.fetch_q16 = 0;
    configuration = configuration_of(&settings);
    fetch = fetch_of(configuration, 2);
    CHECK(fetch.fetch_rule == FTCACHE_FETCH_RULE_MIN_WAIT && fetch.fetch_q16 == 21845 && fetch.fetch_most == 3);
    CHECK(ftcache_configuration_layer_fetch_get(configuration, 3, &fetch) == FTCACHE_STATUS_OUT_OF_RANGE);
    ftcache_configuration_free(configuration);

    // What the CPU has code for is compared with what there is.
    settings.cpu_tags = &other;
    settings.cpu_tag_count = 1;
    REFUSED_SETTINGS(&settings, UNSATISFIABLE, "CPU code for p, which no layer has");
    settings.cpu_tags = tags;
    settings.cpu_tag_count = 2;
    REFUSED_SETTINGS(&settings, UNSATISFIABLE, "CPU code for an empty tag, which no layer has");
    settings.cpu_tag_count = 1;
    ftcache_configuration_free(configuration_of(&settings));

    // A link that is the faster one leaves nothing to the CPU.
    rates[0].cpu = rates[1].cpu = 8;
    rates[1].contended_link = rates[1].contended_cpu = 0;
    settings.strategy = FTCACHE_STRATEGY_MEASURED;
    configuration = configuration_of(&settings);
    CHECK(strategy_of(configuration) == FTCACHE_STRATEGY_OFFLOAD);
    CHECK(fetch_of(configuration, 0).fetch_rule == FTCACHE_FETCH_RULE_DEFAULT);
    ftcache_configuration_free(configuration);
    rates[0].link = 0;
    REFUSED_SETTINGS(&settings, INVALID_ARGUMENT, "the rates' point 0 has a link rate of 0 bytes a second");
    ftcache_model_free(model);
}

int main(void) {
    slots_go_where_the_use_is_spread();
    rates_say_what_is_fetched();
    puts("measured: ok");
    return 0;
}
