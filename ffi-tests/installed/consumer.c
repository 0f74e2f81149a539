// A program of somebody else's: it knows the installed header and library, and nothing of this repository. One layer of
// four experts in two slots, two steps, and the bytes of the slots after each.

#include <stdio.h>
#include <string.h>

#include "ftcache.h"

enum { EXPERTS = 4, SLOTS = 2, ROW_BYTES = 16 };

static unsigned char rows[EXPERTS][ROW_BYTES];

static int failed(const char *what) {
    fprintf(stderr, "%s: %s\n", what, ftcache_last_error());
    return 1;
}

static ftcache *make_cache(void) {
    ftcache_model_config model_config;
    ftcache_layer layer;
    ftcache_settings settings;
    ftcache_model *model = NULL;
    ftcache_configuration *configuration = NULL;
    ftcache *cache = NULL;
    const uint64_t row_bytes = ROW_BYTES;

    memset(&model_config, 0, sizeof model_config);
    model_config.struct_size = sizeof model_config;
    model_config.layer_count = 1;
    model_config.expert_count = EXPERTS;
    model_config.top_k = 2;
    memset(&layer, 0, sizeof layer);
    layer.struct_size = sizeof layer;
    layer.bank_count = 1;
    layer.row_bytes = &row_bytes;
    memset(&settings, 0, sizeof settings);
    settings.struct_size = sizeof settings;
    settings.slot_count = SLOTS;
    settings.staging = FTCACHE_STAGING_NOWHERE;
    if (ftcache_model_new(&model_config, &model) == FTCACHE_STATUS_OK &&
        ftcache_model_layer_set(model, 0, &layer) == FTCACHE_STATUS_OK &&
        ftcache_configuration_new(model, &settings, &configuration) == FTCACHE_STATUS_OK &&
        ftcache_new(configuration, NULL, &cache) != FTCACHE_STATUS_OK) {
        cache = NULL;
    }
    ftcache_configuration_free(configuration);
    ftcache_model_free(model);
    return cache;
}

// Loads two experts, and looks whether their rows are where the answer says.
static int step(ftcache *cache, int32_t first, int32_t second) {
    const int32_t experts[2] = {first, second};
    int32_t ids[2];
    ftcache_step what;
    ftcache_routes routes;
    ftcache_slots slots;
    ftcache_slot_span span;
    int i;

    ids[0] = first;
    ids[1] = second;
    memset(&what, 0, sizeof what);
    what.struct_size = sizeof what;
    memset(&routes, 0, sizeof routes);
    routes.struct_size = sizeof routes;
    routes.ids = ids;
    routes.row_count = 1;
    routes.row_width = 2;
    memset(&slots, 0, sizeof slots);
    slots.struct_size = sizeof slots;
    slots.slots = ids;
    slots.absent_slot = slots.cpu_slot = -1;
    memset(&span, 0, sizeof span);
    span.struct_size = sizeof span;
    if (ftcache_load(cache, &what, &routes, NULL, &slots) != FTCACHE_STATUS_OK) return failed("ftcache_load");
    if (ftcache_slot_span_get(cache, 0, 0, &span) != FTCACHE_STATUS_OK) return failed("ftcache_slot_span_get");
    for (i = 0; i < 2; i++) {
        const unsigned char *slot = (const unsigned char *)span.address + (uint64_t)ids[i] * span.stride;
        if (ids[i] < 0 || (uint32_t)ids[i] >= span.slot_count || memcmp(slot, rows[experts[i]], ROW_BYTES) != 0) {
            fprintf(stderr, "slot %d does not hold expert %d\n", (int)ids[i], (int)experts[i]);
            return 1;
        }
    }
    return 0;
}

int main(void) {
    ftcache *cache = make_cache();
    ftcache_host_rows host;
    ftcache_stats stats;
    int i;

    if (ftcache_abi_version() < FTCACHE_ABI_VERSION) return failed("the library is older than the header");
    if (cache == NULL) return failed("ftcache_new");
    for (i = 0; i < EXPERTS * ROW_BYTES; i++) rows[i / ROW_BYTES][i % ROW_BYTES] = (unsigned char)(1 + i);
    memset(&host, 0, sizeof host);
    host.struct_size = sizeof host;
    host.base = rows;
    host.bytes = sizeof rows;
    if (ftcache_attach(cache, 0, 0, &host) != FTCACHE_STATUS_OK) return failed("ftcache_attach");
    if (step(cache, 3, 1) != 0 || step(cache, 2, 3) != 0) return 1;
    memset(&stats, 0, sizeof stats);
    stats.struct_size = sizeof stats;
    if (ftcache_stats_get(cache, &stats) != FTCACHE_STATUS_OK) return failed("ftcache_stats_get");
    if (stats.hits != 1 || stats.misses != 3 || stats.evictions != 1 || stats.bytes != 3 * ROW_BYTES) {
        fprintf(stderr, "%d hits, %d misses\n", (int)stats.hits, (int)stats.misses);
        return 1;
    }
    ftcache_free(cache);
    return 0;
}
