// What the examples stand on: CHECK, and a model of two layers of eight experts with one bank.

#ifndef FFI_TESTS_EXAMPLES_H
#define FFI_TESTS_EXAMPLES_H

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

enum { EXAMPLE_LAYERS = 2, EXAMPLE_EXPERTS = 8, EXAMPLE_ROW = 64 };

static unsigned char example_rows[EXAMPLE_LAYERS][EXAMPLE_EXPERTS][EXAMPLE_ROW];

static inline const unsigned char *example_row(uint32_t layer, uint32_t expert) {
    unsigned char *row = example_rows[layer][expert];
    memset(row, (int)(1 + layer * 100 + expert), EXAMPLE_ROW);
    return row;
}

static inline ftcache_model *example_model(void) {
    ftcache_model_config config;
    ftcache_layer key;
    ftcache_model *model = NULL;
    const uint64_t row_bytes = EXAMPLE_ROW;
    uint32_t layer;
    memset(&config, 0, sizeof config);
    config.struct_size = sizeof config;
    config.layer_count = EXAMPLE_LAYERS;
    config.expert_count = EXAMPLE_EXPERTS;
    config.top_k = 2;
    OK(ftcache_model_new(&config, &model));
    memset(&key, 0, sizeof key);
    key.struct_size = sizeof key;
    key.bank_count = 1;
    key.row_bytes = &row_bytes;
    key.tag = "f32";
    key.tag_bytes = 3;
    for (layer = 0; layer < EXAMPLE_LAYERS; layer++) OK(ftcache_model_layer_set(model, layer, &key));
    return model;
}

static inline ftcache_configuration *example_configuration(uint64_t slot_count) {
    ftcache_model *model = example_model();
    ftcache_settings settings;
    ftcache_configuration *configuration = NULL;
    memset(&settings, 0, sizeof settings);
    settings.struct_size = sizeof settings;
    settings.slot_count = slot_count;
    OK(ftcache_configuration_new(model, &settings, &configuration));
    ftcache_model_free(model);
    return configuration;
}

static inline void example_attach(ftcache *cache) {
    uint32_t layer, expert;
    for (layer = 0; layer < EXAMPLE_LAYERS; layer++) {
        ftcache_host_rows rows;
        for (expert = 0; expert < EXAMPLE_EXPERTS; expert++) example_row(layer, expert);
        memset(&rows, 0, sizeof rows);
        rows.struct_size = sizeof rows;
        rows.base = example_rows[layer];
        rows.bytes = sizeof example_rows[layer];
        OK(ftcache_attach(cache, layer, 0, &rows));
    }
}

static inline unsigned char *example_slot(ftcache *cache, uint32_t layer, int32_t slot) {
    ftcache_slot_span span;
    (void)layer;  // One pool serves both.
    memset(&span, 0, sizeof span);
    span.struct_size = sizeof span;
    OK(ftcache_slot_span_get(cache, 0, 0, &span));
    CHECK(slot >= 0 && (uint32_t)slot < span.slot_count);
    return (unsigned char *)span.address + (uint64_t)slot * span.stride;
}

static inline int example_slot_holds(ftcache *cache, uint32_t layer, int32_t slot, uint32_t expert) {
    return memcmp(example_slot(cache, layer, slot), example_row(layer, expert), EXAMPLE_ROW) == 0;
}

#endif
