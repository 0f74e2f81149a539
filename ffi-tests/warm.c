// A cache that is warm from the start or stays so: residents kept for a later run, experts that are never victims, and
// rows that the library reads from files.

#include "check.h"

static int32_t answer[EXPERTS];

static void decode(ftcache *cache, uint32_t layer, const int32_t *ids, uint64_t count) {
    const ftcache_routes routes = routes_of(ids, count);
    const ftcache_slots slots = slots_of(answer);
    OK(load(cache, layer, &routes, &slots));
}

static uint64_t resident_count(ftcache *cache) {
    SIZED(ftcache_report, report);
    OK(ftcache_report_get(cache, &report));
    return report.resident_count;
}

// Layer 0 used 0 and 1, then 2; layer 2 used 7; layer 1 used 4 and 5.
static ftcache *used_cache(void) {
    static const int32_t ids[] = {0, 1, 2, 7, 4, 5};
    ftcache *cache = new_cache(8);
    decode(cache, 0, ids, 2);
    decode(cache, 0, ids + 2, 1);
    decode(cache, 2, ids + 3, 1);
    decode(cache, 1, ids + 4, 2);
    return cache;
}

static unsigned char saved[1024];
static size_t saved_count;

static void save(ftcache *cache, uint64_t fingerprint) {
    size_t needed = 0;
    OK(ftcache_residents_get(cache, fingerprint, NULL, 0, &needed));
    CHECK(needed > 0 && needed <= sizeof saved);
    // Less than all of it is nothing.
    memset(saved, 0xa5, sizeof saved);
    OK(ftcache_residents_get(cache, fingerprint, saved, needed - 1, &saved_count));
    CHECK(saved_count == needed && saved[0] == 0xa5 && saved[needed - 2] == 0xa5);
    OK(ftcache_residents_get(cache, fingerprint, saved, sizeof saved, &saved_count));
    CHECK(saved_count == needed && saved[needed] == 0xa5);
}

static void residents_come_back(void) {
    static const int32_t ids[] = {0, 1, 2, 7, 4, 5, 3};
    ftcache *first = used_cache(), *second = new_cache(8);
    uint64_t copied = 7;
    save(first, 0xfeed);
    ftcache_free(first);
    OK(ftcache_bring_back(second, NULL, saved, saved_count, 0xfeed, &copied));
    CHECK(copied == 4 * 26 + 2 * 42 && resident_count(second) == 6);
    // No step was taken, so nothing is counted.
    CHECK(stats_of(second).steps == 0 && stats_of(second).bytes == 0);
    decode(second, 0, ids + 6, 1);
    CHECK(stats_of(second).misses == 1 && stats_of(second).evictions == 0);
    // The oldest go first: 0 and 1 of layer 0.
    decode(second, 2, ids, 2);
    CHECK(stats_of(second).evictions == 2);
    decode(second, 0, ids + 2, 1);
    CHECK(stats_of(second).hits == 1 && slot_holds(second, 0, answer[0], 2));
    decode(second, 2, ids + 3, 1);
    CHECK(stats_of(second).hits == 2 && slot_holds(second, 2, answer[0], 7));
    decode(second, 1, ids + 4, 2);
    CHECK(stats_of(second).hits == 4 && slot_holds(second, 1, answer[0], 4) && slot_holds(second, 1, answer[1], 5));
    ftcache_free(second);
}

// Fewer slots: the most recently used of each pool.
static void as_many_come_back_as_fit(void) {
    static const int32_t ids[] = {2, 7, 4, 5};
    ftcache *cache = used_cache();
    uint64_t copied = 7;
    save(cache, 1);
    ftcache_free(cache);
    cache = new_cache(4);
    OK(ftcache_bring_back(cache, NULL, saved, saved_count, 1, &copied));
    CHECK(copied == 2 * 26 + 2 * 42 && resident_count(cache) == 4);
    decode(cache, 0, ids, 1);
    decode(cache, 2, ids + 1, 1);
    decode(cache, 1, ids + 2, 2);
    CHECK(stats_of(cache).hits == 4 && stats_of(cache).misses == 0);
    ftcache_free(cache);
}

static void other_bytes_are_refused(void) {
    static const int32_t one[] = {0};
    const ftcache_settings settings = settings_of(8);
    ftcache *cache = used_cache(), *other = planner_of(configured(plain_model(3, 4, 2, 16), &settings));
    uint64_t copied = 7, digest;
    save(cache, 1);
    REFUSED(ftcache_bring_back(cache, NULL, saved, saved_count, 1, &copied), OUT_OF_ORDER,
            "the cache holds 6 experts; it must be empty");
    ftcache_free(cache);
    cache = new_cache(8);
    digest = digest_of(cache);
    REFUSED(ftcache_bring_back(cache, NULL, saved, saved_count, 2, &copied), INVALID_ARGUMENT,
            "residents of the model with fingerprint 0000000000000001; this model's is 0000000000000002");
    REFUSED(ftcache_bring_back(other, NULL, saved, saved_count, 1, &copied), INVALID_ARGUMENT,
            "residents of 3 layers of 8 experts; the cache has 3 layers of 4");
    REFUSED(ftcache_bring_back(cache, NULL, saved, saved_count - 1, 1, &copied), INVALID_ARGUMENT,
            "residents of 60 bytes; 59 were given");
    REFUSED(ftcache_bring_back(cache, NULL, saved, 0, 1, &copied), INVALID_ARGUMENT,
            "not a list of residents: it does not begin with FTCR");
    saved[saved_count / 2] ^= 0x40;
    REFUSED(ftcache_bring_back(cache, NULL, saved, saved_count, 1, &copied), INVALID_ARGUMENT,
            "the residents are damaged: their checksum is another");
    CHECK(digest_of(cache) == digest && resident_count(cache) == 0);
    decode(cache, 0, one, 1);
    CHECK(slot_holds(cache, 0, answer[0], 0));
    ftcache_free(cache);
    ftcache_free(other);
}

// The engine is told where rows go, and they are nobody's until it has put them there.
static void an_engine_brings_rows_back(void) {
    static const int32_t ids[] = {0, 1, 2, 7, 4, 5};
    const ftcache_placement *placements = NULL;
    uint64_t count = 7, copied = 7, i;
    ftcache *cache = used_cache(), *engine = planner_of(new_configuration(8));
    const ftcache_step step = step_of(0);
    const ftcache_routes routes = routes_of(ids, 2);
    uint32_t seen[LAYERS][EXPERTS] = {{0}};
    save(cache, 1);
    REFUSED(ftcache_placements_get(engine, &placements, &count), OUT_OF_ORDER,
            "the plan of ftcache_bring_back is not open");
    OK(ftcache_bring_back(engine, NULL, saved, saved_count, 1, &copied));
    CHECK(copied == 0);
    OK(ftcache_placements_get(engine, &placements, &count));
    CHECK(count == 6);
    for (i = 0; i < count; i++) {
        CHECK(placements[i].pool == (placements[i].layer == 1 ? 0u : 1u) && placements[i].slot < 5);
        seen[placements[i].layer][placements[i].row]++;
    }
    CHECK(seen[0][0] == 1 && seen[0][1] == 1 && seen[0][2] == 1 && seen[2][7] == 1);
    CHECK(seen[1][4] == 1 && seen[1][5] == 1);
    REFUSED(ftcache_admit(engine, &step, &routes, NULL), OUT_OF_ORDER,
            "the plan of residents on their way back is open: commit or abort it first");
    OK(ftcache_abort(engine));
    CHECK(resident_count(engine) == 0);
    OK(ftcache_bring_back(engine, NULL, saved, saved_count, 1, &copied));
    OK(ftcache_commit(engine));
    CHECK(resident_count(engine) == 6);
    OK(ftcache_admit(engine, &step, &routes, NULL));
    CHECK(plan_of(engine).copy_count == 0);
    OK(ftcache_commit(engine));
    ftcache_free(engine);
    ftcache_free(cache);
}

static void pinned_experts_are_never_victims(void) {
    static const int32_t ids[] = {0, 1, 2, 3, 4, 5, 6, 7};
    static const uint32_t layers[] = {1, 0, 1}, experts[] = {0, 6, 1}, beyond = 8;
    ftcache *cache = new_cache(8);
    const ftcache_step step = step_of(1);
    const ftcache_routes routes = routes_of(ids + 1, 3);
    int32_t slot, i;
    // Three wide slots: one may be pinned, so that two are left for a step.
    REFUSED(ftcache_pin(cache, layers, experts, 3), UNSATISFIABLE,
            "pool 0 has 3 slots; 2 pinned experts and 2 slots for others need 4");
    REFUSED(ftcache_pin(cache, layers, &beyond, 1), OUT_OF_RANGE,
            "layer 1: expert 8, number 0 of the list, is none of 0..8");
    OK(ftcache_pin(cache, layers, experts, 2));
    decode(cache, 1, ids, 1);
    slot = answer[0];
    for (i = 1; i < 8; i++) {
        decode(cache, 1, ids + i, 1);
        CHECK(answer[0] != slot);
    }
    decode(cache, 1, ids, 1);
    CHECK(answer[0] == slot && stats_of(cache).hits == 1 && slot_holds(cache, 1, slot, 0));
    // A step has the slots that are not pinned.
    REFUSED(ftcache_load(cache, &step, &routes, NULL, NULL), STEP_TOO_WIDE,
            "layer 1 routes to 3 distinct experts; pool 0 has 3 slots, 2 without 1 that are pinned for others "
            "or in flight");
    // Again a victim like others.
    OK(ftcache_unpin(cache, layers, experts, 2));
    OK(ftcache_unpin(cache, layers, experts, 2));
    decode(cache, 1, ids + 1, 1);
    decode(cache, 1, ids + 2, 1);
    decode(cache, 1, ids + 3, 1);
    decode(cache, 1, ids, 1);
    CHECK(stats_of(cache).hits == 1);
    ftcache_free(cache);
}

// One file has layers 0 and 1 as tensors, the other layer 2 row by row, in the opposite order.
enum { HEAD = 5 };
static const char *const paths[] = {"warm_rows_0.bin", "warm_rows_1.bin"};

static uint64_t put_row(FILE *file, uint32_t layer, uint32_t bank, uint32_t expert) {
    const long at = ftell(file);
    uint64_t byte;
    for (byte = 0; byte < row_bytes_of(layer, bank); byte++) {
        CHECK(fputc(byte_of(layer, bank, expert, byte), file) != EOF);
    }
    CHECK(at >= 0);
    return (uint64_t)at;
}

static void write_files(ftcache_file_bank *banks, ftcache_file_row (*rows)[EXPERTS]) {
    uint32_t layer, bank, expert;
    FILE *file = fopen(paths[0], "wb");
    CHECK(file != NULL && fwrite("head.", HEAD, 1, file) == 1);
    for (layer = 0; layer < 2; layer++) {
        for (bank = 0; bank < BANKS; bank++, banks++) {
            memset(banks, 0, sizeof *banks);
            banks->layer = layer;
            banks->bank = bank;
            banks->first.offset = (uint64_t)ftell(file);
            for (expert = 0; expert < EXPERTS; expert++) put_row(file, layer, bank, expert);
        }
    }
    CHECK(fclose(file) == 0);
    file = fopen(paths[1], "wb");
    CHECK(file != NULL);
    for (bank = 0; bank < BANKS; bank++, banks++) {
        memset(banks, 0, sizeof *banks);
        banks->layer = 2;
        banks->bank = bank;
        banks->rows = rows[bank];
        for (expert = EXPERTS; expert-- > 0;) {
            rows[bank][expert].file = 1;
            rows[bank][expert].offset = put_row(file, 2, bank, expert);
        }
    }
    CHECK(fclose(file) == 0);
}

typedef struct told {
    uint32_t calls, stop;
    uint64_t read_bytes, total_bytes;
} told;

static uint32_t tell(void *user, uint64_t read_bytes, uint64_t total_bytes, uint64_t pinned_bytes) {
    told *of = user;
    CHECK(read_bytes >= of->read_bytes && read_bytes <= total_bytes && pinned_bytes <= 1 << 20);
    of->calls++;
    of->read_bytes = read_bytes;
    of->total_bytes = total_bytes;
    return of->stop;
}

// Layers that are for the CPU, or that nobody wants pinned, are served all the same where the device reads any memory.
static void pinning_is_chosen(const ftcache_file_bank *banks) {
    static const uint32_t cpu_layer = 1;
    static const struct { const char *whys[LAYERS]; uint32_t no_pinning, cpu, pinned; } cases[] = {
        {{"no layer was to be", "no layer was to be", "no layer was to be"}, 1, 0, 0},
        {{"", "the CPU computes it", ""}, 0, 1, 2},
    };
    uint32_t i, layer;
    for (i = 0; i < sizeof cases / sizeof *cases; i++) {
        ftcache *cache = cache_of(new_configuration(8), NULL);
        SIZED(ftcache_file_options, options);
        SIZED(ftcache_file_report, report);
        SIZED(ftcache_layer_report, served);
        options.no_pinning = cases[i].no_pinning;
        options.cpu_layers = &cpu_layer;
        options.cpu_layer_count = cases[i].cpu;
        OK(ftcache_load_files(cache, paths, 2, banks, 6, &options, &report));
        CHECK(report.layer_count == 3 && report.pinned_layer_count == cases[i].pinned);
        for (layer = 0; layer < LAYERS; layer++) {
            const char *why = cases[i].whys[layer];
            uint32_t residence = 9;
            char text[64];
            OK(ftcache_layer_residence(cache, layer, &residence, text, sizeof text));
            CHECK(residence == (*why ? FTCACHE_RESIDENCE_PAGEABLE : FTCACHE_RESIDENCE_PINNED));
            CHECK(strcmp(text, why) == 0);
            OK(ftcache_layer_get(cache, layer, &served));
            CHECK(served.is_attached == 1 && served.is_direct == 1);
        }
        ftcache_free(cache);
    }
}

// A second load adds to the first, and a budget that is too small for any page pins nothing.
static void files_may_be_loaded_in_turn(const ftcache_file_bank *banks) {
    static const int32_t ids[] = {5};
    ftcache *cache = cache_of(new_configuration(8), NULL);
    SIZED(ftcache_file_options, options);
    SIZED(ftcache_file_report, report);
    SIZED(ftcache_report, now);
    uint32_t layer;
    options.pin_bytes = 1;
    OK(ftcache_load_files(cache, paths, 2, banks, 2, &options, &report));
    CHECK(report.layer_count == 1 && report.bytes == EXPERTS * 26);
    CHECK(report.pinned_layer_count == 0 && report.pinned_bytes == 0);
    OK(ftcache_report_get(cache, &now));
    CHECK(now.ready_layer_count == 1);
    OK(ftcache_load_files(cache, paths, 2, banks + 2, 4, NULL, &report));
    CHECK(report.layer_count == 2 && report.pinned_layer_count == 2);
    for (layer = 0; layer < LAYERS; layer++) {
        decode(cache, layer, ids, 1);
        CHECK(slot_holds(cache, layer, answer[0], 5));
    }
    ftcache_free(cache);
}

static void rows_are_read_from_files(void) {
    static ftcache_file_row rows[BANKS][EXPERTS];
    static const int32_t ids[] = {7, 3};
    ftcache_file_bank banks[LAYERS * BANKS], wrong[2];
    const char *const none[] = {"warm_rows_0.bin", "warm_no_such_file.bin"};
    ftcache *cache = cache_of(new_configuration(8), NULL);
    SIZED(ftcache_file_options, options);
    SIZED(ftcache_file_report, report);
    SIZED(ftcache_report, now);
    told told_of = {0, 0, 0, 0};
    uint32_t layer, residence = 9;
    char text[256];
    write_files(banks, rows);
    options.reader_count = 2;
    options.progress = tell;
    options.progress_user = &told_of;
    // On any error nothing is left of it.
    told_of.stop = 1;
    CHECK(ftcache_load_files(cache, paths, 2, banks, 6, &options, &report) == FTCACHE_STATUS_HOST);
    CHECK(strncmp(ftcache_last_error(), "stopped after ", 14) == 0 && strstr(ftcache_last_error(), " of 752 bytes"));
    told_of.stop = 0;
    told_of.read_bytes = 0;
    REFUSED(ftcache_load_files(cache, none, 2, banks, 6, NULL, &report), HOST,
            "opening warm_no_such_file.bin: No such file or directory (os error 2)");
    REFUSED(ftcache_load_files(cache, paths, 1, banks, 6, NULL, &report), OUT_OF_RANGE,
            "layer 2 bank 0: a piece is of file 1; 1 files are given");
    memcpy(wrong, banks, sizeof wrong);
    wrong[1].first.offset = 100000;
    REFUSED(ftcache_load_files(cache, paths, 2, wrong, 2, NULL, &report), HOST,
            "layer 0 bank 1: 16 bytes at 100000 of warm_rows_0.bin, which has 549");
    wrong[1] = wrong[0];
    REFUSED(ftcache_load_files(cache, paths, 2, wrong, 2, NULL, &report), INVALID_ARGUMENT,
            "layer 0 bank 0 is given twice");
    wrong[1].layer = 3;
    REFUSED(ftcache_load_files(cache, paths, 2, wrong, 2, NULL, &report), OUT_OF_RANGE,
            "no layer 3: the model has 3 layers");
    OK(ftcache_report_get(cache, &now));
    CHECK(now.ready_layer_count == 0 && now.is_engaged == 0);

    pinning_is_chosen(banks);
    files_may_be_loaded_in_turn(banks);
    OK(ftcache_load_files(cache, paths, 2, banks, 6, &options, &report));
    CHECK(report.layer_count == 3 && report.bytes == EXPERTS * (26 + 42 + 26));
    CHECK(told_of.calls > 0 && told_of.read_bytes == report.bytes && told_of.total_bytes == report.bytes);
    OK(ftcache_report_get(cache, &now));
    CHECK(now.ready_layer_count == 3 && now.is_engaged == 1);
    // They are the library's own now.
    CHECK(remove(paths[0]) == 0 && remove(paths[1]) == 0);
    for (layer = 0; layer < LAYERS; layer++) {
        decode(cache, layer, ids, 2);
        CHECK(slot_holds(cache, layer, answer[0], 7) && slot_holds(cache, layer, answer[1], 3));
        OK(ftcache_layer_residence(cache, layer, &residence, text, sizeof text));
        CHECK(residence == FTCACHE_RESIDENCE_PINNED && strcmp(text, "") == 0);
    }
    CHECK(report.pinned_layer_count == 3 && report.locked_layer_count == 0 && report.pinned_bytes >= report.bytes);
    REFUSED(ftcache_layer_residence(cache, 3, &residence, NULL, 0), OUT_OF_RANGE, "layer 3 was not read from files");
    ftcache_free(cache);
}

int main(void) {
    residents_come_back();
    as_many_come_back_as_fit();
    other_bytes_are_refused();
    an_engine_brings_rows_back();
    pinned_experts_are_never_victims();
    rows_are_read_from_files();
    return 0;
}
