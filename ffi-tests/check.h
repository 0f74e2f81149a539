// What the tests share: CHECK and REFUSED, which say where and what the library's last error was, and a small model.

#ifndef FFI_TESTS_CHECK_H
#define FFI_TESTS_CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ftcache.h"

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s\n  last error: %s\n", __FILE__, __LINE__, #condition, ftcache_last_error());    \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

#define OK(call) CHECK((call) == FTCACHE_STATUS_OK)

static inline void refused(ftcache_status given, ftcache_status wanted, const char *message, const char *file,
                           int line) {
    if (given == wanted && strcmp(ftcache_last_error(), message) == 0) return;
    fprintf(stderr, "%s:%d: status %d, \"%s\"\n  wanted status %d, \"%s\"\n", file, line, (int)given,
            ftcache_last_error(), (int)wanted, message);
    exit(1);
}

#define REFUSED(call, status, message) refused((call), FTCACHE_STATUS_##status, (message), __FILE__, __LINE__)

// A configuration that cannot be had: of a `model` where that stands, with these settings.
#define REFUSED_SETTINGS(settings, status, message)                                                                    \
    do {                                                                                                               \
        ftcache_configuration *none = (ftcache_configuration *)1;                                                      \
        REFUSED(ftcache_configuration_new(model, (settings), &none), status, message);                                 \
        CHECK(none == NULL);                                                                                           \
    } while (0)

enum { LAYERS = 3, EXPERTS = 8, TOP_K = 2, BANKS = 2 };

// Layer 1 is the wide one; bank 1 is a side tensor of two bytes an expert.
static inline uint64_t row_bytes_of(uint32_t layer, uint32_t bank) { return bank == 1 ? 2 : layer == 1 ? 40 : 24; }

// Every byte of a row tells whose it is.
static inline unsigned char byte_of(uint32_t layer, uint32_t bank, uint32_t expert, uint64_t at) {
    return (unsigned char)(1 + layer * 64 + bank * 32 + expert + (at == 0 ? 0 : 100));
}

// A stride of its own on the host, so that host and device differ.
enum { HOST_STRIDE = 48 };
static unsigned char host_rows[LAYERS][BANKS][EXPERTS * HOST_STRIDE];

static inline ftcache_model *new_model(void) {
    ftcache_model_config config;
    ftcache_model *model = NULL;
    uint32_t layer;
    memset(&config, 0, sizeof config);
    config.struct_size = sizeof config;
    config.layer_count = LAYERS;
    config.expert_count = EXPERTS;
    config.top_k = TOP_K;
    OK(ftcache_model_new(&config, &model));
    for (layer = 0; layer < LAYERS; layer++) {
        uint64_t row_bytes[BANKS];
        ftcache_layer key;
        memset(&key, 0, sizeof key);
        row_bytes[0] = row_bytes_of(layer, 0);
        row_bytes[1] = row_bytes_of(layer, 1);
        key.struct_size = sizeof key;
        key.bank_count = BANKS;
        key.row_bytes = row_bytes;
        key.tag = "q";
        key.tag_bytes = 1;
        OK(ftcache_model_layer_set(model, layer, &key));
    }
    return model;
}

// A struct of zeros that knows its size.
#define SIZED(type, name)                                                                                              \
    type name;                                                                                                         \
    memset(&name, 0, sizeof name);                                                                                     \
    name.struct_size = sizeof name

// So many slots, and nothing staged: the pools are smaller than a layer.
static inline ftcache_settings settings_of(uint64_t slot_count) {
    SIZED(ftcache_settings, settings);
    settings.slot_count = slot_count;
    settings.staging = FTCACHE_STAGING_NOWHERE;
    return settings;
}

static inline ftcache_configuration *configuration_of(const ftcache_settings *settings) {
    ftcache_model *model = new_model();
    ftcache_configuration *configuration = NULL;
    OK(ftcache_configuration_new(model, settings, &configuration));
    ftcache_model_free(model);
    return configuration;
}

// Two pools: one of the wide layer, one of the other two.
static inline ftcache_configuration *new_configuration(uint64_t slot_count) {
    const ftcache_settings settings = settings_of(slot_count);
    return configuration_of(&settings);
}

static inline void fill_rows(uint32_t layer, uint32_t bank) {
    uint32_t expert;
    uint64_t at;
    for (expert = 0; expert < EXPERTS; expert++) {
        for (at = 0; at < row_bytes_of(layer, bank); at++) {
            host_rows[layer][bank][expert * HOST_STRIDE + at] = byte_of(layer, bank, expert, at);
        }
    }
}

static inline void attach_rows(ftcache *cache, uint32_t layer, uint32_t bank) {
    SIZED(ftcache_host_rows, rows);
    fill_rows(layer, bank);
    rows.base = host_rows[layer][bank];
    rows.bytes = sizeof host_rows[layer][bank];
    rows.stride = HOST_STRIDE;
    OK(ftcache_attach(cache, layer, bank, &rows));
}

static inline void attach_all(ftcache *cache) {
    uint32_t layer, bank;
    for (layer = 0; layer < LAYERS; layer++) {
        for (bank = 0; bank < BANKS; bank++) attach_rows(cache, layer, bank);
    }
}

// A cache of a configuration, which is freed; NULL is the host's default config.
static inline ftcache *cache_of(ftcache_configuration *configuration, const ftcache_config *config) {
    ftcache *cache = NULL;
    OK(ftcache_new(configuration, config, &cache));
    ftcache_configuration_free(configuration);
    return cache;
}

// A cache of `slot_count` slots with every row attached.
static inline ftcache *new_cache(uint64_t slot_count) {
    ftcache *cache = cache_of(new_configuration(slot_count), NULL);
    attach_all(cache);
    return cache;
}

static inline ftcache_step step_of(uint32_t layer) {
    SIZED(ftcache_step, step);
    step.layer = layer;
    return step;
}

// One row of 32-bit ids, and slots for it.
static inline ftcache_routes routes_of(const int32_t *ids, uint64_t count) {
    ftcache_routes routes;
    memset(&routes, 0, sizeof routes);
    routes.struct_size = sizeof routes;
    routes.ids = ids;
    routes.row_count = 1;
    routes.row_width = count;
    return routes;
}

#define COUNT(type, ...) (sizeof((const type[]){__VA_ARGS__}) / sizeof(type))
// Ids as they stand, alive until the end of the block.
#define ROUTES(...) routes_of((const int32_t[]){__VA_ARGS__}, COUNT(int32_t, __VA_ARGS__))

static inline ftcache_slots slots_of(int32_t *values) {
    ftcache_slots slots;
    memset(&slots, 0, sizeof slots);
    slots.struct_size = sizeof slots;
    slots.slots = values;
    slots.absent_slot = slots.cpu_slot = -1;
    return slots;
}

static inline ftcache_stats stats_of(ftcache *cache) {
    ftcache_stats stats;
    memset(&stats, 0, sizeof stats);
    stats.struct_size = sizeof stats;
    OK(ftcache_stats_get(cache, &stats));
    return stats;
}

// Layers that are all alike: one bank, one pool.
static inline ftcache_model *plain_model(uint32_t layer_count, uint32_t expert_count, uint32_t top_k,
                                         uint64_t row_bytes) {
    const ftcache_model_config config = {sizeof config, layer_count, expert_count, top_k, 1, 0};
    const ftcache_layer key = {sizeof key, 1, &row_bytes, NULL, 0};
    ftcache_model *model = NULL;
    uint32_t layer;
    OK(ftcache_model_new(&config, &model));
    for (layer = 0; layer < layer_count; layer++) OK(ftcache_model_layer_set(model, layer, &key));
    return model;
}

// The configuration of a model, which is freed.
static inline ftcache_configuration *configured(ftcache_model *model, const ftcache_settings *settings) {
    ftcache_configuration *configuration = NULL;
    OK(ftcache_configuration_new(model, settings, &configuration));
    ftcache_model_free(model);
    return configuration;
}

// A cache that copies nothing, of a configuration that is freed.
static inline ftcache *planner_of(ftcache_configuration *configuration) {
    SIZED(ftcache_config, config);
    config.device = FTCACHE_DEVICE_NONE;
    return cache_of(configuration, &config);
}

// One pool over layers that are all alike.
static inline ftcache *plain_planner(uint32_t layer_count, uint32_t expert_count, uint32_t top_k, uint64_t slot_count) {
    const ftcache_settings settings = settings_of(slot_count);
    return planner_of(configured(plain_model(layer_count, expert_count, top_k, 16), &settings));
}

static inline ftcache_plan plan_of(ftcache *cache) {
    SIZED(ftcache_plan, plan);
    OK(ftcache_plan_get(cache, &plan));
    return plan;
}

static inline uint64_t digest_of(ftcache *cache) {
    uint64_t digest = 0;
    OK(ftcache_digest(cache, &digest));
    return digest;
}

// A decode step of one layer, on the default stream.
static inline ftcache_status load(ftcache *cache, uint32_t layer, const ftcache_routes *routes,
                                  const ftcache_slots *slots) {
    const ftcache_step step = step_of(layer);
    return ftcache_load(cache, &step, routes, NULL, slots);
}

// Whether a slot of the layer's pool holds an expert's row in every bank, to the byte.
static inline int slot_holds(ftcache *cache, uint32_t layer, int32_t slot, uint32_t expert) {
    uint32_t bank;
    for (bank = 0; bank < BANKS; bank++) {
        ftcache_slot_span span;
        const unsigned char *row;
        uint64_t at;
        memset(&span, 0, sizeof span);
        span.struct_size = sizeof span;
        OK(ftcache_slot_span_get(cache, layer == 1 ? 0 : 1, bank, &span));
        if (slot < 0 || (uint32_t)slot >= span.slot_count || span.row_bytes != row_bytes_of(layer, bank)) return 0;
        row = (const unsigned char *)span.address + (uint64_t)slot * span.stride;
        for (at = 0; at < span.row_bytes; at++) {
            if (row[at] != byte_of(layer, bank, expert, at)) return 0;
        }
    }
    return 1;
}

#endif
