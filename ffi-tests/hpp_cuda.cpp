// Device mode through the C++ wrapper, on the emulated driver: each call hands its numbers on in their order.

#include <array>
#include <cstdint>

#include "check.h"
#include "cuda_driver.h"
#include "ftcache.hpp"

namespace {

ftc::cache cuda_cache() {
    auto settings = settings_of(24);
    settings.staging = FTCACHE_STAGING_DEDICATED;
    settings.admission = FTCACHE_ADMISSION_DEVICE;
    settings.small_row_bytes = 1;
    const ftc::configuration configuration(configuration_of(&settings));
    auto config = ftc::sized<ftcache_config>();
    config.device = FTCACHE_DEVICE_CUDA;
    config.cuda_driver = cuda_path();
    auto cache = ftc::cache::make(configuration, &config).value();
    CHECK(cache.register_memory(host_rows, sizeof host_rows));
    attach_all(cache.get());
    return cache;
}

// Whether the row at a device address is an expert's.
bool is_row(cuda *driver, const ftcache_slot_span &span, uint64_t at, uint32_t layer, uint32_t bank, uint32_t expert) {
    unsigned char row[64];
    CHECK(span.row_bytes == row_bytes_of(layer, bank));
    cuda_read(driver, row, static_cast<const unsigned char *>(span.address) + at * span.stride, span.row_bytes);
    for (uint64_t byte = 0; byte < span.row_bytes; byte++) {
        if (row[byte] != byte_of(layer, bank, expert, byte)) return false;
    }
    return true;
}

void steps_and_chunks_are_captured() {
    cuda driver = cuda_open();
    void *stream = cuda_stream(&driver);
    auto *ids = static_cast<int32_t *>(cuda_allocate(&driver, 2 * sizeof(int32_t)));
    {
        auto cache = cuda_cache();
        const auto step = step_of(2);
        auto what = ftc::sized<ftcache_device_step>();
        what.step = &step;
        what.ids.address = ids;
        what.row_count = 1;
        what.row_width = 2;
        what.absent_slot = what.cpu_slot = what.cpu_none = -1;

        CHECK(!cache.device_admit(stream, what));
        CHECK(cache.device_enter());
        cuda_begin_capture(&driver, stream);
        CHECK(cache.device_admit(stream, what));
        CHECK(cache.device_gather(stream, 2));
        CHECK(cache.device_reading_request(stream));
        void *graph = cuda_end_capture(&driver, stream);
        const std::array<int32_t, 2> routes = {6, 3};
        std::array<int32_t, 2> slot;
        cuda_write(&driver, stream, ids, routes.data(), sizeof routes);
        cuda_launch(&driver, graph, stream);
        cuda_synchronize(&driver, stream);
        CHECK(cache.check());
        cuda_read(&driver, slot.data(), ids, sizeof slot);
        for (uint32_t bank = 0; bank < BANKS; bank++) {
            const auto span = cache.slot_span_get(1, bank);
            CHECK(is_row(&driver, *span, static_cast<uint64_t>(slot[0]), 2, bank, 6));
            CHECK(is_row(&driver, *span, static_cast<uint64_t>(slot[1]), 2, bank, 3));
        }
        CHECK(cache.device_reading_get()->is_there == 1 && cache.device_reading_get()->resident_count == 2);
        const auto stats = cache.device_phase_stats_get(2, FTCACHE_PHASE_DECODE);
        CHECK(stats && stats->has_value() && (*stats)->steps == 1 && (*stats)->misses == 2);
        CHECK(cache.device_phase_stats_get(2, FTCACHE_PHASE_PREFILL)->value().steps == 0);
        const auto plan = cache.device_plan_get(2);
        CHECK(plan && plan->layer == 2 && plan->miss_count == 2 && ftc::copies_of(*plan).size() == 2);

        // A word that is there already.
        uint32_t *word = reinterpret_cast<uint32_t *>(host_rows[0][1]) + (EXPERTS * HOST_STRIDE / 4 - 1);
        *word = 5;
        const std::array<int32_t, 2> others = {0, 7};
        cuda_write(&driver, stream, ids, others.data(), sizeof others);
        CHECK(cache.device_admit(stream, what));
        CHECK(cache.device_gather_after(stream, 2, word, 5));
        CHECK(cache.synchronize() && cache.check());

        // Layer 1 in buffer 0, layer 2 in buffer 1.
        CHECK(cache.device_chunk_begin(stream));
        CHECK(cache.device_chunk_stage(stream, 1, 0));
        CHECK(cache.device_chunk_materialize(stream, 2, 1));
        CHECK(cache.synchronize() && cache.check());
        for (uint32_t expert = 0; expert < EXPERTS; expert++) {
            CHECK(is_row(&driver, *cache.staged_span_get(1, 0, 0), expert, 1, 0, expert));
            CHECK(is_row(&driver, *cache.staged_span_get(2, 1, 1), expert, 2, 1, expert));
        }
        CHECK(cache.device_chunk_end(stream));

        CHECK(cache.device_leave());
        CHECK(cache.stats_get()->steps == 2 && cache.report_get()->resident_count == 4);
        auto options = ftc::sized<ftcache_device_options>();
        options.admission_threads = 33;
        CHECK(!cache.device_enter(&options));
        CHECK(cache.device_enter() && cache.device_reset(stream));
        CHECK(cache.device_leave() && cache.report_get()->resident_count == 0);
        cuda_destroy_graph(&driver, graph);
    }
    cuda_close(&driver, stream, ids);
}

}  // namespace

int main() {
    steps_and_chunks_are_captured();
    return 0;
}
