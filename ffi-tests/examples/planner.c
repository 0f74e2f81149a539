// Planner mode, as include/ftcache.h shows it: the engine holds the slots and copies.

#include "examples.h"

// The example's own slots, two pools at most, and how it fills one.
static unsigned char own_slot[64][EXAMPLE_ROW];

static int copy_row(uint32_t pool, uint32_t slot, uint32_t layer, uint32_t row) {
    (void)pool;
    memcpy(own_slot[slot], example_row(layer, row), EXAMPLE_ROW);
    return 0;
}

// example: planner
ftcache *make_planner(const ftcache_configuration *configuration) {
    ftcache_config config = {0};
    ftcache *cache = NULL;
    config.struct_size = sizeof config;
    config.device = FTCACHE_DEVICE_NONE;
    return ftcache_new(configuration, &config, &cache) == FTCACHE_STATUS_OK ? cache : NULL;
}

// One step: decides, copies what is missing (copy_row is the engine's), and says so.
ftcache_status planned_step(ftcache *cache, const ftcache_step *step, const ftcache_routes *routes,
                            const ftcache_slots *slots) {
    ftcache_plan plan = {0};
    ftcache_status status = ftcache_admit(cache, step, routes, slots);
    uint64_t i;
    if (status != FTCACHE_STATUS_OK) return status;   // nothing has changed
    plan.struct_size = sizeof plan;
    status = ftcache_plan_get(cache, &plan);
    if (status != FTCACHE_STATUS_OK) return status;
    for (i = 0; i < plan.copy_count && !plan.is_repeat; i++) {
        // In every bank that the layer reads.
        if (copy_row(plan.pool, plan.copies[i].slot, plan.layer, plan.copies[i].row) != 0) {
            return ftcache_abort(cache);              // none of these slots is ever taken for a hit
        }
    }
    return ftcache_commit(cache);
}
// end

int main(void) {
    ftcache_configuration *configuration = example_configuration(16);
    ftcache *cache = make_planner(configuration);
    int32_t ids[] = {3, 1, 3, 0}, slot[4];
    ftcache_step step = {0};
    ftcache_routes routes = {0};
    ftcache_slots slots = {0};
    int i;
    ftcache_configuration_free(configuration);
    CHECK(cache != NULL);
    step.struct_size = sizeof step;
    step.layer = 1;
    routes.struct_size = sizeof routes;
    routes.ids = ids;
    routes.row_count = 2;
    routes.row_width = 2;
    slots.struct_size = sizeof slots;
    slots.slots = slot;
    OK(planned_step(cache, &step, &routes, &slots));
    for (i = 0; i < 4; i++) CHECK(memcmp(own_slot[slot[i]], example_row(1, (uint32_t)ids[i]), EXAMPLE_ROW) == 0);
    ftcache_free(cache);
    return 0;
}
