// The host device: memory that the engine gives, what is known of the device, rows that come behind a step, strategies,
// and what it does not have.

#include "check.h"

static int32_t answer[EXPERTS];

static ftcache_status try_step(ftcache *cache, const ftcache_step *step, const int32_t *ids, uint64_t count) {
    const ftcache_routes routes = routes_of(ids, count);
    ftcache_slots slots = slots_of(answer);
    slots.cpu_slot = -2;
    return ftcache_load(cache, step, &routes, NULL, &slots);
}

static void decode(ftcache *cache, uint32_t layer, const int32_t *ids, uint64_t count) {
    const ftcache_step step = step_of(layer);
    OK(try_step(cache, &step, ids, count));
}

// Slots lie in the engine's own memory: zeros at first, rows where they belong, and nothing past the end is touched.
static void slots_lie_in_the_engines_memory(void) {
    enum { BANK_0 = 3 * 40 + 40 + 5 * 24 + 24, BANK_1 = 3 * 2 + 2 + 5 * 2 + 2, GUARD = 64 };
    static _Alignas(64) unsigned char memory[2][BANK_0 + GUARD];
    static const int32_t ids[] = {4, 7};
    ftcache_arena arenas[BANKS] = {{memory[0], BANK_0}, {memory[1], BANK_1}};
    ftcache_configuration *configuration = new_configuration(8);
    SIZED(ftcache_config, config);
    SIZED(ftcache_slot_span, span);
    ftcache *cache = NULL;
    uint32_t i;
    config.arenas = arenas;
    config.arena_count = 1;
    REFUSED(ftcache_new(configuration, &config, &cache), INVALID_ARGUMENT,
            "bank 1: the slots take 20 bytes; the memory for them has 0");
    config.arena_count = BANKS;
    arenas[1].bytes--;
    REFUSED(ftcache_new(configuration, &config, &cache), INVALID_ARGUMENT,
            "bank 1: the slots take 20 bytes; the memory for them has 19");
    arenas[1].bytes++;
    memset(memory, 0xee, sizeof memory);
    cache = cache_of(configuration, &config);
    for (i = 0; i < BANK_0 + GUARD; i++) CHECK(memory[0][i] == (i < BANK_0 ? 0 : 0xee));
    for (i = 0; i < BANK_0 + GUARD; i++) CHECK(memory[1][i] == (i < BANK_1 ? 0 : 0xee));
    attach_all(cache);
    decode(cache, 1, ids, 2);
    decode(cache, 2, ids, 2);
    CHECK(slot_holds(cache, 2, answer[0], 4) && slot_holds(cache, 2, answer[1], 7));
    OK(ftcache_slot_span_get(cache, 1, 0, &span));
    CHECK(span.address == memory[0] + 3 * 40 + 40 && span.stride == 24);
    // Rows end where they end: the pads are zeros still.
    for (i = 0; i < 40; i++) CHECK(memory[0][3 * 40 + i] == 0);
    for (i = 0; i < 24; i++) CHECK(memory[0][BANK_0 - 24 + i] == 0);
    ftcache_free(cache);
    for (i = 0; i < GUARD; i++) CHECK(memory[0][BANK_0 + i] == 0xee && memory[1][BANK_1 + i] == 0xee);
}

static void what_is_known_of_it(void) {
    SIZED(ftcache_config, config);
    SIZED(ftcache_device_facts, facts);
    ftcache *cache;
    uint32_t spilled = 9;
    size_t needed = 0;
    char text[256];
    config.device_bytes = 1000;
    cache = cache_of(new_configuration(8), &config);
    OK(ftcache_device_facts_get(cache, &facts));
    CHECK(facts.ordinal == 0 && facts.driver_version == 0 && facts.capability == 0);
    CHECK(facts.free_bytes == 1000 - 324 && facts.copies_in_batches == 0);
    OK(ftcache_device_text(cache, text, sizeof text, &needed));
    CHECK(strcmp(text, "host memory\n") == 0 && needed == strlen(text) + 1);
    OK(ftcache_arenas_measure(cache, &spilled, text, sizeof text));
    CHECK(spilled == 0 && strncmp(text, "bank 0: 304 bytes at ", 21) == 0 && strstr(text, "; bank 1: 20 bytes at "));
    OK(ftcache_check(cache));
    OK(ftcache_synchronize(cache));
    ftcache_free(cache);
    cache = planner_of(new_configuration(8));
    REFUSED(ftcache_device_facts_get(cache, &facts), UNSUPPORTED,
            "the cache has no device: the engine copies by itself");
    REFUSED(ftcache_arenas_measure(cache, &spilled, NULL, 0), UNSUPPORTED,
            "the cache has no device: the engine copies by itself");
    OK(ftcache_check(cache));
    OK(ftcache_synchronize(cache));
    ftcache_free(cache);
}

static void memory_is_registered_and_let_go(void) {
    ftcache *cache = cache_of(new_configuration(8), NULL);
    char message[128];
    OK(ftcache_register(cache, host_rows, sizeof host_rows, 0, 4096));
    snprintf(message, sizeof message, "2304 bytes at %p share bytes with 2304 at %p, which are registered",
             (void *)host_rows, (void *)host_rows);
    REFUSED(ftcache_register(cache, host_rows, sizeof host_rows, 0, 0), INVALID_ARGUMENT, message);
    REFUSED(ftcache_register(cache, host_rows, 64, 2, 0), INVALID_ARGUMENT, "read_only is 2, not 0 or 1");
    OK(ftcache_unregister(cache, host_rows));
    snprintf(message, sizeof message, "no registration begins at %p", (void *)host_rows);
    REFUSED(ftcache_unregister(cache, host_rows), INVALID_ARGUMENT, message);
    OK(ftcache_register(cache, host_rows, 0, 0, 0));
    ftcache_free(cache);
}

// What a hybrid step leaves to the CPU comes in behind it, within a number of bytes.
static void rows_come_behind_a_step(void) {
    static const int32_t ids[] = {2, 5, 6};
    SIZED(ftcache_config, config);
    ftcache_step hybrid = step_of(0);
    ftcache *cache;
    uint64_t landed = 9;
    config.later_step_bytes = 2 * 26;
    config.later_flight_count = 2;
    cache = cache_of(new_configuration(8), &config);
    attach_all(cache);
    hybrid.misses = FTCACHE_MISSES_HYBRID;
    hybrid.fetch_rule = FTCACHE_FETCH_RULE_UP_TO;
    OK(try_step(cache, &hybrid, ids, 3));
    CHECK(answer[0] == -2 && answer[1] == -2 && answer[2] == -2);
    OK(ftcache_land(cache, &landed));
    CHECK(landed == 2);
    OK(ftcache_land(cache, &landed));
    CHECK(landed == 0);
    OK(try_step(cache, &hybrid, ids, 3));
    CHECK(slot_holds(cache, 0, answer[0], 2) && slot_holds(cache, 0, answer[1], 5) && answer[2] == -2);
    CHECK(stats_of(cache).hits == 2 && stats_of(cache).left == 4 && stats_of(cache).fetched == 0);
    ftcache_free(cache);
}

// What the settings say goes for steps that say nothing; a step may say otherwise.
static void a_strategy_is_the_default_of_steps(void) {
    static const int32_t ids[] = {2, 5};
    ftcache_settings settings = settings_of(8);
    ftcache_step step = step_of(0);
    ftcache *cache;
    settings.strategy = FTCACHE_STRATEGY_HYBRID;
    settings.fetch_rule = FTCACHE_FETCH_RULE_UP_TO;
    settings.fetch_most = 1;
    cache = cache_of(configuration_of(&settings), NULL);
    attach_all(cache);
    OK(try_step(cache, &step, ids, 2));
    CHECK(answer[0] == 0 && answer[1] == -2);
    step.misses = FTCACHE_MISSES_FETCHED;
    OK(try_step(cache, &step, ids, 2));
    CHECK(answer[0] == 0 && answer[1] == 1 && slot_holds(cache, 0, 1, 5));
    ftcache_free(cache);
    {
        ftcache_model *model = new_model();
        ftcache_configuration *configuration = NULL;
        settings.fetch_q16 = 65537;
        REFUSED(ftcache_configuration_new(model, &settings, &configuration), INVALID_ARGUMENT,
                "settings->fetch_q16 is 65537, and fetch_rule 1 has no fraction");
        settings.fetch_rule = FTCACHE_FETCH_RULE_CARRY;
        REFUSED(ftcache_configuration_new(model, &settings, &configuration), INVALID_ARGUMENT,
                "settings->fetch_q16 is 65537; 65536 is the whole");
        settings.fetch_rule = 0;
        settings.fetch_q16 = settings.fetch_most = 0;
        REFUSED(ftcache_configuration_new(model, &settings, &configuration), UNSATISFIABLE,
                "hybrid and measured strategies need rates, or hybrid a fraction or a cap of its own");
        ftcache_model_free(model);
    }
}

// Decode on the CPU: slots are there for prefill, and a step fetches nothing unless it says so.
static void the_cpu_may_decode_it_all(void) {
    static const int32_t ids[] = {1, 2};
    ftcache_settings settings = settings_of(8);
    const ftcache_routes routes = routes_of(ids, 2);
    ftcache_slots slots = slots_of(answer);
    ftcache_step step = step_of(0);
    ftcache_chunk_report report;
    ftcache *cache;
    ftcache_configuration *configuration = NULL;
    ftcache_model *model;
    settings.strategy = FTCACHE_STRATEGY_CPU;
    model = new_model();
    REFUSED(ftcache_configuration_new(model, &settings, &configuration), UNSATISFIABLE,
            "strategy cpu uses slots only for borrowed staging, which is off: there is nothing to cache");
    ftcache_model_free(model);
    settings.staging = FTCACHE_STAGING_BORROWED;
    cache = planner_of(configured(plain_model(3, 4, 2, 32), &settings));
    slots.cpu_slot = -2;
    OK(ftcache_admit(cache, &step, &routes, &slots));
    CHECK(answer[0] == -2 && answer[1] == -2 && plan_of(cache).copy_count == 0);
    OK(ftcache_commit(cache));
    step.misses = FTCACHE_MISSES_FETCHED;
    OK(ftcache_admit(cache, &step, &routes, &slots));
    CHECK(answer[0] == 0 && answer[1] == 1);
    OK(ftcache_commit(cache));
    memset(&report, 0, sizeof report);
    report.struct_size = sizeof report;
    OK(ftcache_chunk_begin(cache, NULL));
    OK(ftcache_chunk_end(cache, &report));
    CHECK(report.lost == 2);
    ftcache_free(cache);
}

static void it_has_no_kernels(void) {
    ftcache *cache = new_cache(8), *planner = planner_of(new_configuration(8));
    static const char on_host[] = "the residency is with the host: enter device mode first";
    SIZED(ftcache_device_reading, reading);
    REFUSED(ftcache_device_enter(cache, NULL), UNSUPPORTED, "no kernels on host memory: it only copies");
    REFUSED(ftcache_device_enter(planner, NULL), UNSUPPORTED, "the cache has no device: the engine copies by itself");
    REFUSED(ftcache_device_leave(cache), OUT_OF_ORDER, on_host);
    REFUSED(ftcache_device_gather(cache, NULL, 0), OUT_OF_ORDER, on_host);
    REFUSED(ftcache_device_reset(cache, NULL), OUT_OF_ORDER, on_host);
    REFUSED(ftcache_device_reading_get(cache, &reading), OUT_OF_ORDER, on_host);
    ftcache_free(cache);
    ftcache_free(planner);
}

static void the_last_error_is_copied(void) {
    char text[16];
    REFUSED(ftcache_reset(NULL), INVALID_ARGUMENT, "cache is NULL");
    memset(text, 'x', sizeof text);
    CHECK(ftcache_last_error_copy(text, 6) == sizeof "cache is NULL");
    CHECK(strcmp(text, "cache") == 0 && text[6] == 'x');
    CHECK(ftcache_last_error_copy(text, 1) == sizeof "cache is NULL" && text[0] == 0);
    CHECK(ftcache_last_error_copy(text, sizeof text) == sizeof "cache is NULL" && strcmp(text, "cache is NULL") == 0);
    // A call that succeeds leaves it.
    ftcache_model_free(new_model());
    CHECK(strcmp(ftcache_last_error(), "cache is NULL") == 0);
}

int main(void) {
    slots_lie_in_the_engines_memory();
    what_is_known_of_it();
    memory_is_registered_and_let_go();
    rows_come_behind_a_step();
    a_strategy_is_the_default_of_steps();
    the_cpu_may_decode_it_all();
    it_has_no_kernels();
    the_last_error_is_copied();
    return 0;
}
