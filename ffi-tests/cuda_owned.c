// The cache on CUDA holds the slots and copies: every slot is read back from the device and compared, and who is where
// is compared with a reference.

#include "cuda_model.h"

enum { DISTINCT_MOST = 4, IDS_MOST = 2 * DISTINCT_MOST, GUARD = 64 };

static emulator emulated;
static cuda driver;
static int (*to_host_later)(void *, cuda_address, size_t, void *);

// Pinned memory to which the engine's kernels bring what they read: a row of each bank for each route.
enum { SEEN_ROW = 64 };
static unsigned char *seen;

// In the place of a kernel: reads the slots of a step on the compute stream, whenever that comes to it.
static void read_later(ftcache *cache, uint32_t layer, const int32_t *slot, uint32_t count, void *stream) {
    uint32_t i, bank;
    for (i = 0; i < count; i++) {
        for (bank = 0; bank < BANKS; bank++) {
            const ftcache_slot_span span = span_of(cache, pool_of(layer), bank);
            const unsigned char *row = (unsigned char *)span.address + (uint64_t)slot[i] * span.stride;
            unsigned char *target = seen + (i * BANKS + bank) * SEEN_ROW;
            CUDA(to_host_later(target, (cuda_address)(uintptr_t)row, span.row_bytes, stream));
        }
    }
}

// Nothing is left but that memory.
static void check_empty(void) {
    cuda_unpin(&driver, seen);
    emulator_check_empty(&emulated, 0, 1);
    cuda_pin(&driver, seen, 4096);
}

// What it has read by now.
static void check_seen(uint32_t layer, const int32_t *ids, uint32_t count) {
    uint32_t i, bank;
    uint64_t at;
    for (i = 0; i < count; i++) {
        for (bank = 0; bank < BANKS; bank++) {
            const unsigned char *row = seen + (i * BANKS + bank) * SEEN_ROW;
            for (at = 0; at < row_bytes_of(layer, bank); at++) {
                CHECK(row[at] == byte_of(layer, bank, (uint32_t)ids[i], at));
            }
        }
    }
}

// Steps with both the reference and the cache, and now and then a slot is forgotten; what each step used is read on the
// compute stream, and looked at once that is there.
static void run_steps(ftcache *cache, reference *model, dice *random, const ftcache_streams *streams, uint32_t count) {
    uint32_t step;
    for (step = 0; step < count; step++) {
        const uint32_t layer = dice_below(random, LAYERS);
        const ftcache_step what = step_of(layer);
        int32_t ids[IDS_MOST], slot[IDS_MOST], wanted[IDS_MOST];
        const uint32_t id_count = random_ids(random, DISTINCT_MOST, ids);
        const ftcache_routes routes = routes_of(ids, id_count);
        const ftcache_slots slots = slots_of(slot);
        const uint64_t pageable_count = emulator_counts_of(&emulated, 0).pageable_copies;
        uint32_t i;
        if (dice_below(random, 16) == 0) {
            const uint32_t pool = dice_below(random, POOLS), gone = dice_below(random, model->slot_counts[pool]);
            OK(ftcache_forget(cache, pool, gone));
            model->slots[pool][gone].stamp = 0;
        }
        OK(ftcache_load(cache, &what, &routes, streams, &slots));
        // The driver would stage such a row by itself, and wait.
        CHECK(emulator_counts_of(&emulated, 0).pageable_copies == pageable_count);
        reference_step(model, layer, ids, id_count, wanted);
        CHECK(memcmp(slot, wanted, id_count * sizeof slot[0]) == 0);
        read_later(cache, layer, slot, id_count, streams->compute);
        // Several steps may be on their way at once.
        if (dice_below(random, 4) != 0) continue;
        cuda_synchronize(&driver, streams->compute);
        check_seen(layer, ids, id_count);
        for (i = 0; i < id_count; i++) check_slot(&driver, cache, layer, slot[i], (uint32_t)ids[i]);
    }
    {
        const ftcache_stats stats = stats_of(cache);
        CHECK(stats.steps == model->step && stats.hits == model->hits && stats.misses == model->misses);
    }
}

// Every resident of the reference, and zeros between and behind the slots.
static void check_arenas(ftcache *cache, const reference *model, const ftcache_settings *settings) {
    uint32_t pool, bank, slot, resident_count = 0;
    SIZED(ftcache_report, report);
    OK(ftcache_synchronize(cache));
    for (pool = 0; pool < POOLS; pool++) {
        for (slot = 0; slot < model->slot_counts[pool]; slot++) {
            if (model->slots[pool][slot].stamp == 0) continue;
            resident_count++;
            check_slot(&driver, cache, model->slots[pool][slot].layer, (int32_t)slot, model->slots[pool][slot].expert);
        }
        for (bank = 0; bank < BANKS; bank++) {
            const ftcache_slot_span span = span_of(cache, pool, bank);
            const int is_given = settings->tail_pad == FTCACHE_TAIL_PAD_BYTES;
            const uint64_t tail = is_given ? settings->tail_pad_bytes : span.row_bytes;
            const uint64_t alignment = settings->alignment == 0 ? 1 : settings->alignment;
            uint64_t at, bytes = span.slot_count * span.stride + tail;
            unsigned char *all = malloc(bytes);
            CHECK(all != NULL);
            CHECK(span.stride >= span.row_bytes + settings->slot_pad_bytes && span.stride % alignment == 0);
            CHECK(span.stride < span.row_bytes + settings->slot_pad_bytes + alignment);
            CHECK((uintptr_t)span.address % alignment == 0);
            // A slot's own pad lies behind the last one too.
            cuda_read(&driver, all, span.address, bytes);
            for (at = 0; at < bytes; at++) {
                const int is_row = at < span.slot_count * span.stride && at % span.stride < span.row_bytes;
                CHECK(is_row || all[at] == 0);
            }
            free(all);
        }
    }
    OK(ftcache_report_get(cache, &report));
    CHECK(report.resident_count == resident_count && report.step == model->step);
}

static ftcache_settings padded(uint64_t alignment, uint64_t slot_pad, uint64_t tail_pad) {
    ftcache_settings settings = settings_of(12);
    settings.request_count = 2;
    settings.alignment = alignment;
    settings.slot_pad_bytes = slot_pad;
    if (tail_pad > 0) {
        settings.tail_pad = FTCACHE_TAIL_PAD_BYTES;
        settings.tail_pad_bytes = tail_pad;
    }
    return settings;
}

// Hundreds of steps on every way to lay slots out, with and without a copy stream.
static void slots_are_who_the_reference_says(void) {
    const ftcache_settings layouts[] = {padded(0, 0, 0), padded(64, 0, 0), padded(16, 24, 100), padded(1, 3, 5)};
    uint32_t i, with_copy;
    for (i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        for (with_copy = 0; with_copy < 2; with_copy++) {
            const ftcache_config config = cuda_config(0);
            const ftcache_streams streams = cuda_streams(&driver, with_copy != 0);
            ftcache *cache = cache_of(configuration_of(&layouts[i]), &config);
            dice random = {1 + i * 2 + with_copy};
            reference model = reference_of(cache);
            emulated.set_seed(0, 100 + i);
            OK(ftcache_register(cache, host_rows, sizeof host_rows, 0, 0));
            attach_all(cache);
            run_steps(cache, &model, &random, &streams, 300);
            CHECK(model.hits > 100 && model.misses > 100);
            check_arenas(cache, &model, &layouts[i]);
            OK(ftcache_check(cache));
            ftcache_free(cache);
            cuda_destroy_streams(&driver, &streams);
            check_empty();
        }
    }
}

// The default stream does both where no streams are given, and another stream may come any time.
static void streams_may_change(void) {
    const ftcache_settings settings = padded(0, 0, 0);
    const ftcache_config config = cuda_config(0);
    const ftcache_streams both = cuda_streams(&driver, 1), one = cuda_streams(&driver, 0);
    SIZED(ftcache_streams, none);
    ftcache *cache = cache_of(configuration_of(&settings), &config);
    dice random = {77};
    reference model = reference_of(cache);
    uint32_t turn;
    OK(ftcache_register(cache, host_rows, sizeof host_rows, 0, 0));
    attach_all(cache);
    for (turn = 0; turn < 20; turn++) {
        run_steps(cache, &model, &random, turn % 3 == 0 ? &both : turn % 3 == 1 ? &one : &none, 10);
    }
    check_arenas(cache, &model, &settings);
    ftcache_free(cache);
    cuda_destroy_streams(&driver, &both);
    cuda_destroy_streams(&driver, &one);
    check_empty();
}

// Of each pool so many are residents still, the most recent.
static void check_most_recent(ftcache *cache, reference *model, uint32_t wide, uint32_t narrow,
                              const ftcache_streams *streams) {
    uint32_t pool, i, slot;
    for (pool = 0; pool < POOLS; pool++) {
        for (i = 0; i < (pool == 0 ? wide : narrow); i++) {
            const ftcache_stats before = stats_of(cache);
            uint32_t latest = 0;
            for (slot = 1; slot < model->slot_counts[pool]; slot++) {
                if (model->slots[pool][slot].stamp > model->slots[pool][latest].stamp) latest = slot;
            }
            {
                const ftcache_step what = step_of(model->slots[pool][latest].layer);
                const int32_t id = (int32_t)model->slots[pool][latest].expert;
                int32_t found = -7;
                const ftcache_routes routes = routes_of(&id, 1);
                const ftcache_slots slots = slots_of(&found);
                OK(ftcache_load(cache, &what, &routes, streams, &slots));
                CHECK(stats_of(cache).hits == before.hits + 1);
                cuda_synchronize(&driver, streams->compute);
                check_slot(&driver, cache, what.layer, found, (uint32_t)id);
            }
            model->slots[pool][latest].stamp = 0;
        }
    }
}

// Arenas of the engine's: what lies around them stays, and no slot lies elsewhere.
static void arenas_of_the_engine(void) {
    const ftcache_settings settings = padded(16, 0, 32);
    ftcache_configuration *configuration = configuration_of(&settings);
    const ftcache_streams streams = cuda_streams(&driver, 1);
    ftcache_config config = cuda_config(0);
    ftcache_arena arenas[BANKS];
    unsigned char *memory[BANKS], guard[GUARD], found[GUARD];
    ftcache *cache = NULL;
    dice random = {5};
    reference model;
    uint32_t bank, pool;
    uint64_t before;
    memset(guard, 0xA5, sizeof guard);
    for (bank = 0; bank < BANKS; bank++) {
        SIZED(ftcache_slot_range, range);
        OK(ftcache_configuration_slot_range_get(configuration, 0, bank, &range));
        memory[bank] = cuda_allocate(&driver, range.arena_bytes + 2 * GUARD);
        arenas[bank].address = memory[bank] + GUARD;
        arenas[bank].bytes = range.arena_bytes;
        cuda_write(&driver, streams.compute, memory[bank], guard, GUARD);
        cuda_write(&driver, streams.compute, memory[bank] + GUARD + range.arena_bytes, guard, GUARD);
        cuda_synchronize(&driver, streams.compute);
    }
    config.arenas = arenas;
    config.arena_count = BANKS;
    arenas[1].bytes--;
    REFUSED(ftcache_new(configuration, &config, &cache), INVALID_ARGUMENT,
            "bank 1: the slots take 256 bytes; the memory for them has 255");
    arenas[1].bytes++;
    config.arena_count = 1;
    REFUSED(ftcache_new(configuration, &config, &cache), INVALID_ARGUMENT,
            "bank 1: the slots take 256 bytes; the memory for them has 0");
    config.arena_count = BANKS;
    arenas[0].address = memory[0] + GUARD - 8;
    CHECK(ftcache_new(configuration, &config, &cache) == FTCACHE_STATUS_INVALID_ARGUMENT);
    CHECK(strstr(ftcache_last_error(), "bank 0: the memory for its slots begins at 0x") != NULL);
    CHECK(strstr(ftcache_last_error(), "8, which is no multiple of 16") != NULL);
    arenas[0].address = memory[0] + GUARD;
    before = emulator_counts_of(&emulated, 0).allocated_bytes;
    OK(ftcache_new(configuration, &config, &cache));
    // Only what is not a slot may lie elsewhere.
    CHECK(emulator_counts_of(&emulated, 0).allocated_bytes == before);
    for (bank = 0; bank < BANKS; bank++) {
        for (pool = 0; pool < POOLS; pool++) {
            SIZED(ftcache_slot_range, range);
            OK(ftcache_configuration_slot_range_get(configuration, pool, bank, &range));
            CHECK(span_of(cache, pool, bank).address == (unsigned char *)arenas[bank].address + range.offset);
        }
    }
    model = reference_of(cache);
    OK(ftcache_register(cache, host_rows, sizeof host_rows, 0, 0));
    attach_all(cache);
    run_steps(cache, &model, &random, &streams, 200);
    check_arenas(cache, &model, &settings);
    // Fewer slots lie in the same memory, and more than it holds are refused.
    {
        ftcache_settings other = settings;
        ftcache_configuration *fewer, *more;
        const uint64_t allocated = emulator_counts_of(&emulated, 0).allocated_bytes;
        SIZED(ftcache_rebuild_report, report);
        other.slot_count = 9;
        fewer = configuration_of(&other);
        other.slot_count = 13;
        more = configuration_of(&other);
        REFUSED(ftcache_rebuild(cache, more, 1, UINT64_MAX, &report), INVALID_ARGUMENT,
                "bank 0: the slots take 560 bytes; the memory for them has 512");
        check_arenas(cache, &model, &settings);
        OK(ftcache_rebuild(cache, fewer, 1, UINT64_MAX, &report));
        CHECK(report.rebuilt == FTCACHE_REBUILT_IN_PLACE && report.kept == 9);
        CHECK(emulator_counts_of(&emulated, 0).allocated_bytes == allocated);
        CHECK(span_of(cache, 0, 0).address == arenas[0].address && span_of(cache, 0, 0).slot_count == 4);
        check_most_recent(cache, &model, 4, 5, &streams);
        ftcache_configuration_free(fewer);
        ftcache_configuration_free(more);
    }
    ftcache_free(cache);
    for (bank = 0; bank < BANKS; bank++) {
        cuda_read(&driver, found, memory[bank], GUARD);
        CHECK(memcmp(found, guard, GUARD) == 0);
        cuda_read(&driver, found, memory[bank] + GUARD + arenas[bank].bytes, GUARD);
        CHECK(memcmp(found, guard, GUARD) == 0);
        CUDA(driver.free_memory((cuda_address)(uintptr_t)memory[bank]));
    }
    ftcache_configuration_free(configuration);
    cuda_destroy_streams(&driver, &streams);
    check_empty();
}

// Memory that the system may page out: named and refused, or served through a bounce buffer where one is asked for.
static void pageable_rows(void) {
    const ftcache_settings settings = padded(0, 0, 0);
    const ftcache_streams streams = cuda_streams(&driver, 1);
    ftcache_config config = cuda_config(0);
    ftcache *cache = cache_of(configuration_of(&settings), &config);
    SIZED(ftcache_host_rows, rows);
    SIZED(ftcache_layer_report, layer);
    SIZED(ftcache_report, report);
    rows.base = host_rows[2][0];
    rows.bytes = sizeof host_rows[2][0];
    rows.stride = HOST_STRIDE;
    REFUSED(ftcache_attach(cache, 2, 0, &rows), INVALID_ARGUMENT,
            "layer 2 bank 0: the rows are not pinned, and there is no bounce buffer");
    OK(ftcache_layer_get(cache, 2, &layer));
    CHECK(layer.state == FTCACHE_LAYER_STATE_CACHED && !layer.is_attached && !layer.is_direct);
    OK(ftcache_report_get(cache, &report));
    CHECK(!report.is_engaged && report.ready_layer_count == 0);
    ftcache_free(cache);

    if (BOUNCES) {
        dice random = {9};
        reference model;
        uint32_t each;
        config.bounce_entry_count = 3;
        config.bounce_entry_bytes = 96;
        cache = cache_of(configuration_of(&settings), &config);
        model = reference_of(cache);
        // Layer 0 is pinned, the others are not.
        OK(ftcache_register(cache, host_rows[0], sizeof host_rows[0], 0, 0));
        attach_all(cache);
        for (each = 0; each < LAYERS; each++) {
            OK(ftcache_layer_get(cache, each, &layer));
            CHECK(layer.is_attached && layer.is_direct == (each == 0));
        }
        run_steps(cache, &model, &random, &streams, 200);
        check_arenas(cache, &model, &settings);
        ftcache_free(cache);
    }
    cuda_destroy_streams(&driver, &streams);
    check_empty();
}

// Pinned by the engine, in parts by the library, and not all of it.
static void who_pins(void) {
    const ftcache_settings settings = padded(0, 0, 0);
    const ftcache_config config = cuda_config(0);
    const ftcache_streams streams = cuda_streams(&driver, 0);
    const size_t bytes = 3 * 4096;
    unsigned char *memory = aligned_alloc(4096, bytes);
    ftcache *cache = cache_of(configuration_of(&settings), &config);
    reference model = reference_of(cache);
    dice random = {13};
    SIZED(ftcache_host_rows, rows);
    CHECK(memory != NULL);
    memset(memory, 0, bytes);
    cuda_pin(&driver, host_rows, sizeof host_rows);
    attach_all(cache);
    run_steps(cache, &model, &random, &streams, 50);
    // The system pins the first part and not the second: neither stays.
    emulated.fail_call(0, "cuMemHostRegister_v2", 1, 2);
    REFUSED(ftcache_register(cache, memory, 2 * 4096, 0, 4096), HOST,
            "registering 4096 bytes, with 4096 bytes registered: register of 4096 bytes: CUDA_ERROR_OUT_OF_MEMORY (2): "
            "out of memory");
    CHECK(emulator_counts_of(&emulated, 0).registrations == 2);
    // Layer 2 bank 1 from the end of the first page on, in parts of a page.
    fill_rows(2, 1);
    memcpy(memory + 4000, host_rows[2][1], sizeof host_rows[2][1]);
    OK(ftcache_register(cache, memory, 2 * 4096, 0, 4096));
    CHECK(emulator_counts_of(&emulated, 0).registrations == 4);
    rows.base = memory + 4000;
    rows.bytes = sizeof host_rows[2][1];
    rows.stride = HOST_STRIDE;
    OK(ftcache_attach(cache, 2, 1, &rows));
    run_steps(cache, &model, &random, &streams, 50);
    // The last rows lie behind what is pinned.
    rows.base = memory + 2 * 4096 - 100;
    REFUSED(ftcache_attach(cache, 2, 1, &rows), INVALID_ARGUMENT,
            "layer 2 bank 1: the rows are not pinned, and there is no bounce buffer");
    run_steps(cache, &model, &random, &streams, 50);
    check_arenas(cache, &model, &settings);
    {
        char message[64];
        snprintf(message, sizeof message, "no registration begins at %p", (void *)(memory + 1));
        REFUSED(ftcache_unregister(cache, memory + 1), INVALID_ARGUMENT, message);
    }
    ftcache_free(cache);
    // What the engine pinned it unpins.
    CHECK(emulator_counts_of(&emulated, 0).registrations == 2);
    cuda_unpin(&driver, host_rows);
    free(memory);
    cuda_destroy_streams(&driver, &streams);
    check_empty();
}

// The engine moved a bank after steps had read it: what lies at the old place is not read any more.
static void a_bank_that_moved(void) {
    const ftcache_settings settings = padded(0, 0, 0);
    const ftcache_config config = cuda_config(0);
    const ftcache_streams streams = cuda_streams(&driver, 1);
    unsigned char *memory = aligned_alloc(4096, 4096);
    ftcache *cache = cache_of(configuration_of(&settings), &config);
    reference model = reference_of(cache);
    dice random = {21};
    uint32_t turn, bank;
    CHECK(memory != NULL);
    OK(ftcache_register(cache, host_rows, sizeof host_rows, 0, 0));
    attach_all(cache);
    run_steps(cache, &model, &random, &streams, 30);
    for (turn = 0; turn < 4; turn++) {
        const uint32_t layer = turn % LAYERS;
        SIZED(ftcache_host_rows, rows);
        OK(ftcache_register(cache, memory, 4096, 0, 0));
        for (bank = 0; bank < BANKS; bank++) {
            // At another stride than before.
            unsigned char *moved = memory + bank * 2048;
            const uint64_t stride = row_bytes_of(layer, bank) + turn;
            uint32_t expert;
            for (expert = 0; expert < EXPERTS; expert++) {
                const unsigned char *row = host_rows[layer][bank] + expert * HOST_STRIDE;
                memcpy(moved + expert * stride, row, row_bytes_of(layer, bank));
            }
            rows.base = moved;
            rows.stride = stride;
            rows.bytes = EXPERTS * stride;
            OK(ftcache_attach(cache, layer, bank, &rows));
            // It has waited for what read the old place.
            memset(host_rows[layer][bank], 0xEE, sizeof host_rows[layer][bank]);
        }
        run_steps(cache, &model, &random, &streams, 40);
        for (bank = 0; bank < BANKS; bank++) attach_rows(cache, layer, bank);
        OK(ftcache_unregister(cache, memory));
        memset(memory, 0xEE, 4096);
        run_steps(cache, &model, &random, &streams, 40);
    }
    // Rows that are pinned no longer are not copied from.
    OK(ftcache_unregister(cache, host_rows));
    {
        const int32_t id = 0;
        int32_t slot = -7;
        const ftcache_routes routes = routes_of(&id, 1);
        const ftcache_slots slots = slots_of(&slot);
        const ftcache_step step = step_of(0);
        char message[160];
        OK(ftcache_reset(cache));
        snprintf(message, sizeof message,
                 "layer 0 bank 0: row copy of 24 bytes: the host memory at %p is not registered; slot 0 is forgotten",
                 (void *)host_rows[0][0]);
        REFUSED(ftcache_load(cache, &step, &routes, &streams, &slots), DEVICE, message);
        CHECK(slot == -7);
        OK(ftcache_register(cache, host_rows, sizeof host_rows, 0, 0));
        attach_all(cache);
        OK(ftcache_load(cache, &step, &routes, &streams, &slots));
        OK(ftcache_synchronize(cache));
        check_slot(&driver, cache, 0, slot, 0);
    }
    ftcache_free(cache);
    free(memory);
    cuda_destroy_streams(&driver, &streams);
    check_empty();
}

// What the engine reads on its stream behind a step is read before the slots go, and rows before they are let go.
static void nothing_goes_that_is_still_read(void) {
    enum { FREE, REBUILD_COLD, REBUILD_WARM, UNREGISTER, ATTACH, WAYS };
    uint32_t way, seed;
    for (way = 0; way < WAYS; way++) {
        for (seed = 0; seed < 8; seed++) {
            const ftcache_settings settings = settings_of(12), fewer = settings_of(8);
            const ftcache_config config = cuda_config(0);
            const ftcache_streams streams = cuda_streams(&driver, 1);
            ftcache_configuration *smaller = configuration_of(&fewer);
            ftcache *cache = cache_of(configuration_of(&settings), &config);
            const int32_t ids[] = {5, 2, 7};
            int32_t slot[3] = {-7, -7, -7};
            const ftcache_step step = step_of(1);
            const ftcache_routes routes = routes_of(ids, 3);
            const ftcache_slots slots = slots_of(slot);
            SIZED(ftcache_rebuild_report, report);
            uint32_t i;
            emulated.set_seed(0, seed);
            OK(ftcache_register(cache, host_rows, sizeof host_rows, 0, 0));
            attach_all(cache);
            OK(ftcache_load(cache, &step, &routes, &streams, &slots));
            memset(seen, 0, 2048);
            read_later(cache, 1, slot, 3, streams.compute);
            CHECK(emulator_counts_of(&emulated, 0).queued > 0);
            if (way == UNREGISTER) OK(ftcache_unregister(cache, host_rows));
            if (way == REBUILD_COLD || way == REBUILD_WARM) {
                OK(ftcache_rebuild(cache, smaller, way == REBUILD_WARM, 1 << 20, &report));
                CHECK(report.kept == (way == REBUILD_WARM ? 3 : 0));
                OK(ftcache_load(cache, &step, &routes, &streams, &slots));
                CHECK(stats_of(cache).hits == report.kept && stats_of(cache).misses == 3 - report.kept);
                OK(ftcache_synchronize(cache));
                for (i = 0; i < 3; i++) check_slot(&driver, cache, 1, slot[i], (uint32_t)ids[i]);
            }
            if (way == ATTACH) {
                uint32_t bank;
                for (bank = 0; bank < BANKS; bank++) {
                    SIZED(ftcache_host_rows, rows);
                    rows.base = seen + 2048 + bank * 1024;
                    rows.stride = HOST_STRIDE;
                    rows.bytes = sizeof host_rows[1][bank];
                    OK(ftcache_attach(cache, 1, bank, &rows));
                    memset(host_rows[1][bank], 0xEE, sizeof host_rows[1][bank]);
                }
            }
            if (way == UNREGISTER) memset(host_rows, 0xEE, sizeof host_rows);
            ftcache_free(cache);
            CHECK(emulator_counts_of(&emulated, 0).queued == 0);
            check_seen(1, ids, 3);
            ftcache_configuration_free(smaller);
            cuda_destroy_streams(&driver, &streams);
            check_empty();
        }
    }
}

int main(void) {
    emulated = emulator_open();
    driver = cuda_open();
    cuda_symbol(&driver, "cuMemcpyDtoHAsync_v2", &to_host_later);
    seen = aligned_alloc(4096, 4096);
    CHECK(seen != NULL);
    cuda_pin(&driver, seen, 4096);
    slots_are_who_the_reference_says();
    streams_may_change();
    arenas_of_the_engine();
    pageable_rows();
    who_pins();
    a_bank_that_moved();
    nothing_goes_that_is_still_read();
    cuda_unpin(&driver, seen);
    free(seen);
    cuda_close(&driver, NULL, NULL);
    return 0;
}
