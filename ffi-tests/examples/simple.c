// Simple use, as include/ftcache.h shows it: the cache holds the slots and copies.

#include "examples.h"

// example: simple
ftcache *make_cache(const ftcache_model *model, uint64_t budget_bytes) {
    ftcache_settings settings = {0};
    ftcache_configuration *configuration = NULL;
    ftcache_config config = {0};
    ftcache *cache = NULL;

    settings.struct_size = sizeof settings;
    settings.budget_bytes = budget_bytes;
    settings.request_count = 4;                       // decoded at once
    if (ftcache_configuration_new(model, &settings, &configuration) != FTCACHE_STATUS_OK) return NULL;

    config.struct_size = sizeof config;
    config.device = FTCACHE_DEVICE_HOST;              // or FTCACHE_DEVICE_CUDA
    if (ftcache_new(configuration, &config, &cache) != FTCACHE_STATUS_OK) cache = NULL;
    ftcache_configuration_free(configuration);
    return cache;                                     // NULL: ftcache_last_error has the reason
}

// One step of one layer: a slot for each of the token_count rows of top_k ids, in place of the ids.
ftcache_status step(ftcache *cache, uint32_t layer, int32_t *ids, uint64_t token_count, uint64_t top_k,
                    const ftcache_streams *streams) {
    ftcache_step what = {0};
    ftcache_routes routes = {0};
    ftcache_slots slots = {0};
    what.struct_size = sizeof what;
    what.layer = layer;
    routes.struct_size = sizeof routes;
    routes.ids = ids;
    routes.row_count = token_count;
    routes.row_width = top_k;
    slots.struct_size = sizeof slots;
    slots.slots = ids;
    slots.absent_slot = slots.cpu_slot = -1;
    return ftcache_load(cache, &what, &routes, streams, &slots);
}
// end

int main(void) {
    ftcache_model *model = example_model();
    ftcache *cache = make_cache(model, 64 * EXAMPLE_ROW);
    int32_t ids[] = {3, 1, 3, 0};
    ftcache_model_free(model);
    CHECK(cache != NULL);
    example_attach(cache);
    OK(step(cache, 1, ids, 2, 2, NULL));
    CHECK(ids[0] == ids[2] && ids[0] != ids[1] && ids[3] != ids[1]);
    CHECK(example_slot_holds(cache, 1, ids[0], 3) && example_slot_holds(cache, 1, ids[1], 1));
    CHECK(example_slot_holds(cache, 1, ids[3], 0));
    ftcache_free(cache);
    return 0;
}
