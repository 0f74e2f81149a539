// The C++ wrapper, as include/ftcache.hpp shows it. wrapper.cmake compares the two texts.

#include "examples.h"
#include "ftcache.hpp"

// example: wrapper
ftc::result<ftc::cache> make_cache(const ftc::model &model, uint64_t budget_bytes) {
    auto settings = ftc::sized<ftcache_settings>();
    settings.budget_bytes = budget_bytes;
    auto configuration = ftc::configuration::make(model, settings);
    if (!configuration) return configuration.error();   // its status, and the reason in one line
    auto config = ftc::sized<ftcache_config>();
    config.device = FTCACHE_DEVICE_HOST;                // or FTCACHE_DEVICE_CUDA
    return ftc::cache::make(*configuration, &config);   // the configuration frees itself
}

// One step of one layer: a slot for each of the token_count rows of top_k ids, in place of the ids.
ftc::result<void> step(ftc::cache &cache, uint32_t layer, int32_t *ids, uint64_t token_count, uint64_t top_k) {
    auto what = ftc::sized<ftcache_step>();
    what.layer = layer;
    const auto slots = ftc::slots_of(ids);
    return cache.load(what, ftc::routes_of(ids, token_count, top_k), nullptr, &slots);
}
// end

int main() {
    const ftc::model model(example_model());
    const auto refused = make_cache(model, 1);
    CHECK(!refused && refused.error().status == FTCACHE_STATUS_UNSATISFIABLE);
    CHECK(refused.error().message == "the pools need at least 192 bytes; 1 are given; 576 bytes would do");

    ftc::cache cache = make_cache(model, 64 * EXAMPLE_ROW).value();
    example_attach(cache.get());
    int32_t ids[] = {3, 1, 3, 0};
    CHECK(step(cache, 1, ids, 2, 2));
    CHECK(ids[0] == ids[2] && ids[0] != ids[1] && ids[3] != ids[1]);
    CHECK(example_slot_holds(cache.get(), 1, ids[0], 3) && example_slot_holds(cache.get(), 1, ids[1], 1));
    CHECK(example_slot_holds(cache.get(), 1, ids[3], 0));
    return 0;
}
