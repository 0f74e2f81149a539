// What is counted, by layer, pool and phase, on a sequence worked by hand; the same as JSON; and what the log is told.

#include "check.h"

static int32_t answer[EXPERTS];

static void step_with(ftcache *cache, const ftcache_step *step, const ftcache_routes *routes) {
    ftcache_slots slots = slots_of(answer);
    slots.cpu_slot = -2;
    OK(ftcache_load(cache, step, routes, NULL, &slots));
}

#define STEP(cache, layer_id, phase_id, ...)                                                                           \
    do {                                                                                                               \
        static const int32_t ids[] = {__VA_ARGS__};                                                                    \
        ftcache_step step = step_of(layer_id);                                                                         \
        ftcache_routes routes = routes_of(ids, sizeof ids / sizeof *ids);                                              \
        step.phase = FTCACHE_PHASE_##phase_id;                                                                         \
        step_with(cache, &step, &routes);                                                                              \
    } while (0)

#define SAME_STATS(call, ...)                                                                                          \
    do {                                                                                                               \
        const ftcache_stats given = call, wanted = {.struct_size = sizeof wanted, __VA_ARGS__};                        \
        CHECK(memcmp(&given, &wanted, sizeof wanted) == 0);                                                            \
    } while (0)

static ftcache_stats layer_stats(ftcache *cache, uint32_t layer) {
    SIZED(ftcache_stats, stats);
    OK(ftcache_layer_stats_get(cache, layer, &stats));
    return stats;
}

static ftcache_stats phase_stats(ftcache *cache, uint32_t layer, uint32_t phase) {
    SIZED(ftcache_stats, stats);
    OK(ftcache_phase_stats_get(cache, layer, phase, &stats));
    return stats;
}

static ftcache_stats pool_stats(ftcache *cache, uint32_t pool) {
    SIZED(ftcache_stats, stats);
    OK(ftcache_pool_stats_get(cache, pool, &stats));
    return stats;
}

// Layers 0 and 2 share five slots of 26 bytes; layer 1 has three of 42.
static ftcache *worked_cache(void) {
    static const int32_t wide[] = {0, 1, 2, 3}, mixed[] = {4, 6, 7, -1};
    ftcache *cache = new_cache(8);
    ftcache_step step = step_of(1);
    ftcache_routes routes = routes_of(wide, 4);
    ftcache_slots slots = slots_of(answer);
    uint32_t i;
    STEP(cache, 0, DECODE, 0, 1, 0);
    STEP(cache, 0, DECODE, 1, 2);
    // Two free slots, and that of layer 0's expert 0.
    STEP(cache, 2, PREFILL, 0, 1, 2);
    CHECK(answer[0] == 3 && answer[1] == 4 && answer[2] == 0);
    // Which comes back, and takes the first of the prompt's.
    STEP(cache, 0, DECODE, 0);
    CHECK(answer[0] == 0);
    OK(ftcache_forget_layer(cache, 2));
    STEP(cache, 2, DECODE, 0);
    STEP(cache, 2, DECODE, 2);
    STEP(cache, 1, VERIFY, 4, 5);
    REFUSED(ftcache_load(cache, &step, &routes, NULL, &slots), STEP_TOO_WIDE,
            "layer 1 routes to 4 distinct experts; pool 0 has 3 slots");
    // One hit, one absent, and two for the CPU; then again.
    step.misses = FTCACHE_MISSES_HYBRID;
    step.fetch_rule = FTCACHE_FETCH_RULE_UP_TO;
    routes = routes_of(mixed, 4);
    routes.has_absent = 1;
    routes.absent_id = -1;
    for (i = 0; i < 2; i++) {
        step_with(cache, &step, &routes);
        CHECK(answer[0] == 0 && answer[1] == -2 && answer[2] == -2 && answer[3] == -1);
    }
    return cache;
}

static void every_counter_is_exact(void) {
    ftcache *cache = worked_cache();
    SIZED(ftcache_stats, stats);
    SAME_STATS(phase_stats(cache, 0, FTCACHE_PHASE_DECODE), .steps = 3, .routes = 6, .hit_routes = 1, .distinct = 5,
               .hits = 1, .misses = 4, .fetched = 4, .evictions = 1, .cold_misses = 3, .capacity_misses = 1,
               .bytes = 4 * 26);
    SAME_STATS(layer_stats(cache, 0), .steps = 3, .routes = 6, .hit_routes = 1, .distinct = 5, .hits = 1, .misses = 4,
               .fetched = 4, .evictions = 1, .cold_misses = 3, .capacity_misses = 1, .bytes = 4 * 26);
    SAME_STATS(phase_stats(cache, 2, FTCACHE_PHASE_PREFILL), .steps = 1, .routes = 3, .distinct = 3, .misses = 3,
               .fetched = 3, .evictions = 1, .cold_misses = 3, .bytes = 3 * 26);
    SAME_STATS(phase_stats(cache, 2, FTCACHE_PHASE_DECODE), .steps = 2, .routes = 2, .distinct = 2, .misses = 2,
               .fetched = 2, .capacity_misses = 1, .freed_misses = 1, .bytes = 2 * 26);
    SAME_STATS(phase_stats(cache, 1, FTCACHE_PHASE_VERIFY), .steps = 1, .routes = 2, .distinct = 2, .misses = 2,
               .fetched = 2, .cold_misses = 2, .bytes = 2 * 42);
    SAME_STATS(phase_stats(cache, 1, FTCACHE_PHASE_DECODE), .steps = 2, .routes = 6, .hit_routes = 2, .distinct = 6,
               .hits = 2, .misses = 4, .left = 4, .cold_misses = 2, .cpu_misses = 2, .refused = 1);
    SAME_STATS(phase_stats(cache, 1, FTCACHE_PHASE_PREFILL), .steps = 0);
    SAME_STATS(pool_stats(cache, 0), .steps = 3, .routes = 8, .hit_routes = 2, .distinct = 8, .hits = 2, .misses = 6,
               .fetched = 2, .left = 4, .cold_misses = 4, .cpu_misses = 2, .refused = 1, .bytes = 2 * 42);
    SAME_STATS(pool_stats(cache, 1), .steps = 6, .routes = 11, .hit_routes = 1, .distinct = 10, .hits = 1, .misses = 9,
               .fetched = 9, .evictions = 2, .cold_misses = 6, .capacity_misses = 2, .freed_misses = 1,
               .bytes = 9 * 26);
    SAME_STATS(stats_of(cache), .steps = 9, .routes = 19, .hit_routes = 3, .distinct = 18, .hits = 3, .misses = 15,
               .fetched = 11, .left = 4, .evictions = 2, .cold_misses = 10, .capacity_misses = 2, .freed_misses = 1,
               .cpu_misses = 2, .refused = 1, .bytes = 2 * 42 + 9 * 26);
    REFUSED(ftcache_phase_stats_get(cache, 0, 3, &stats), INVALID_ARGUMENT, "phase is 3, not an ftcache_phase");
    REFUSED(ftcache_phase_stats_get(cache, 3, 0, &stats), OUT_OF_RANGE, "no layer 3: the cache has 3 layers");

    // The counters start over; slots, order and step go on.
    {
        SIZED(ftcache_report, report);
        const uint64_t digest = digest_of(cache);
        OK(ftcache_stats_reset(cache));
        SAME_STATS(stats_of(cache), .steps = 0);
        SAME_STATS(pool_stats(cache, 1), .steps = 0);
        SAME_STATS(phase_stats(cache, 1, FTCACHE_PHASE_DECODE), .steps = 0);
        CHECK(digest_of(cache) == digest);
        STEP(cache, 0, DECODE, 0);
        CHECK(stats_of(cache).hits == 1 && stats_of(cache).steps == 1);
        OK(ftcache_report_get(cache, &report));
        CHECK(report.step == 10 && report.resident_count == 7);
    }
    ftcache_free(cache);
}

// Every counter as a row of numbers.
enum { COUNTERS = (sizeof(ftcache_stats) - 8) / 8 };

static void add(ftcache_stats *sum, ftcache_stats part) {
    uint64_t *to = &sum->steps;
    const uint64_t *from = &part.steps;
    uint32_t i;
    for (i = 0; i < COUNTERS; i++) to[i] += from[i];
}

static void the_sums_agree(void) {
    ftcache *cache = worked_cache();
    ftcache_stats total = stats_of(cache);
    SIZED(ftcache_stats, layers);
    SIZED(ftcache_stats, pools);
    SIZED(ftcache_stats, phases);
    uint32_t layer, phase;
    for (layer = 0; layer < LAYERS; layer++) {
        add(&layers, layer_stats(cache, layer));
        for (phase = 0; phase < 3; phase++) add(&phases, phase_stats(cache, layer, phase));
    }
    add(&pools, pool_stats(cache, 0));
    add(&pools, pool_stats(cache, 1));
    CHECK(memcmp(&total, &layers, sizeof total) == 0 && memcmp(&total, &pools, sizeof total) == 0);
    CHECK(total.hits + total.misses == total.distinct && total.fetched + total.left == total.misses);
    CHECK(total.cold_misses + total.capacity_misses + total.staging_misses + total.freed_misses + total.cpu_misses ==
          total.misses);
    CHECK(memcmp(&total, &phases, sizeof total) == 0);
    ftcache_free(cache);
}

// The end of a JSON value.
static const char *past(const char *at) {
    int depth = 0;
    do {
        if (*at == '"') at = strchr(at + 1, '"');
        depth += (*at == '{' || *at == '[') - (*at == '}' || *at == ']');
        CHECK(*at != 0);
        at++;
    } while (depth > 0 || (*at != ',' && *at != '}' && *at != ']' && *at != 0));
    return at;
}

// The value of a key of an object; the index-th of a list if key is NULL.
static const char *inside(const char *at, const char *key, int index) {
    CHECK(*at == (key ? '{' : '['));
    for (at++; *at != '}' && *at != ']'; at += *at == ',') {
        if (key) {
            const size_t length = strlen(key);
            const int found = strncmp(at + 1, key, length) == 0 && at[1 + length] == '"';
            at = strchr(at + 1, '"') + 1;
            CHECK(*at++ == ':');
            if (found) return at;
        } else if (index-- == 0) {
            return at;
        }
        at = past(at);
    }
    CHECK(0);
    return NULL;
}

static uint64_t number(const char *object, const char *key) { return strtoull(inside(object, key, 0), NULL, 10); }

static void same_as_json(const char *object, ftcache_stats stats) {
    static const char *const names[] = {
        "steps", "routes", "hit_routes", "distinct", "hits", "misses", "fetched", "left", "evictions", "cold_misses",
        "capacity_misses", "staging_misses", "freed_misses", "cpu_misses", "refused", "bytes",
    };
    const uint64_t *counters = &stats.steps;
    uint32_t i;
    CHECK(sizeof names / sizeof *names == COUNTERS);
    for (i = 0; i < COUNTERS; i++) CHECK(number(object, names[i]) == counters[i]);
}

static void json_says_the_same(void) {
    static const char *const phases[] = {"decode", "verify", "prefill"};
    static char json[16384];
    ftcache *cache = worked_cache();
    char digest[24], start[8];
    size_t needed = 0;
    uint32_t layer, phase;
    OK(ftcache_stats_json(cache, json, sizeof json, &needed));
    CHECK(needed == strlen(json) + 1 && *past(json) == 0);
    same_as_json(inside(json, "total", 0), stats_of(cache));
    for (layer = 0; layer < LAYERS; layer++) {
        const char *of_layer = inside(inside(json, "layers", 0), NULL, (int)layer);
        CHECK(number(of_layer, "layer") == layer);
        same_as_json(of_layer, layer_stats(cache, layer));
        for (phase = 0; phase < 3; phase++) {
            const char *of_phase = inside(inside(of_layer, "phases", 0), phases[phase], 0);
            same_as_json(of_phase, phase_stats(cache, layer, phase));
        }
    }
    same_as_json(inside(inside(json, "pools", 0), NULL, 0), pool_stats(cache, 0));
    same_as_json(inside(inside(json, "pools", 0), NULL, 1), pool_stats(cache, 1));
    CHECK(number(inside(json, "chunks", 0), "chunks") == 0 && number(inside(json, "later", 0), "landed") == 0);
    CHECK(number(json, "generation") == 0 && number(json, "step") == 9);
    snprintf(digest, sizeof digest, "\"%016llx\"", (unsigned long long)digest_of(cache));
    CHECK(strncmp(inside(json, "digest", 0), digest, strlen(digest)) == 0);
    // Cut to fit, and ended by a zero.
    memset(start, 'x', sizeof start);
    OK(ftcache_stats_json(cache, start, 6, NULL));
    CHECK(strncmp(start, json, 5) == 0 && start[5] == 0 && start[6] == 'x');
    OK(ftcache_stats_json(cache, NULL, 0, &needed));
    CHECK(needed == strlen(json) + 1);
    ftcache_free(cache);
}

// What one handle said.
typedef struct heard {
    uint32_t count, levels[4];
    char first[256], last[256];
    // Handles that are asked from inside the callback: one with a log of its own, and the one that tells.
    ftcache *inside, *busy;
} heard;

static void hear(void *user, uint32_t level, const char *message) {
    heard *of = user;
    CHECK(level >= FTCACHE_LOG_LEVEL_ERROR && level <= FTCACHE_LOG_LEVEL_INFO);
    CHECK(message[0] != 0 && strchr(message, '\n') == NULL && strlen(message) < sizeof of->last);
    of->levels[level]++;
    strcpy(of->last, message);
    if (of->count++ == 0) strcpy(of->first, message);
    if (of->inside) {
        OK(ftcache_check(of->inside));
        REFUSED(ftcache_check(of->busy), BUSY, "another call is inside this handle");
    }
}

static void the_log_is_of_one_handle(void) {
    static heard off, errors, one, other;
    SIZED(ftcache_config, config);
    ftcache_configuration *larger = new_configuration(12);
    ftcache *quiet, *silent, *first, *second;
    config.log = hear;
    config.log_user = &off;
    quiet = cache_of(new_configuration(8), &config);
    config.log_level = FTCACHE_LOG_LEVEL_ERROR;
    config.log_user = &errors;
    silent = cache_of(new_configuration(8), &config);
    config.log_level = FTCACHE_LOG_LEVEL_INFO;
    config.log_user = &one;
    first = cache_of(new_configuration(8), &config);
    CHECK(off.count == 0 && errors.count == 0 && one.levels[FTCACHE_LOG_LEVEL_INFO] == 1);
    CHECK(strcmp(one.first, "a cache on host memory; slots: 8; bytes: 324; pools: 2") == 0);
    CHECK(one.levels[FTCACHE_LOG_LEVEL_WARNING] == 0);
    config.log_user = &other;
    second = cache_of(new_configuration(9), &config);
    CHECK(strcmp(other.first, "a cache on host memory; slots: 9; bytes: 350; pools: 2") == 0);
    // A rebuild of one is told to it alone, from inside the call. Other handles may be used there.
    one.count = other.count = 0;
    one.inside = second;
    one.busy = first;
    attach_all(first);
    STEP(first, 0, DECODE, 3);
    OK(ftcache_rebuild(first, larger, 1, 1, NULL));
    CHECK(one.count > 0 && other.count == 0 && off.count + errors.count == 0);
    CHECK(strstr(one.first, "rebuilt") != NULL);
    CHECK(one.levels[FTCACHE_LOG_LEVEL_INFO] == 2);
    OK(ftcache_check(first));
    ftcache_configuration_free(larger);
    ftcache_free(first);
    ftcache_free(second);
    ftcache_free(quiet);
    ftcache_free(silent);
    {
        ftcache_configuration *configuration = new_configuration(8);
        config.log_level = 4;
        REFUSED(ftcache_new(configuration, &config, &first), INVALID_ARGUMENT,
                "config->log_level is 4, not an ftcache_log_level");
        ftcache_configuration_free(configuration);
    }
}

int main(void) {
    every_counter_is_exact();
    the_sums_agree();
    json_says_the_same();
    the_log_is_of_one_handle();
    return 0;
}
