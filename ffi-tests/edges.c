// Calls at the edges of what they promise: refused without a trace, or told as they are.

// For mmap.
#define _DEFAULT_SOURCE

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda_model.h"
#include "planning.h"

// Layer 2 has no slots; the others leave to the CPU what is not fetched.
static ftcache *hybrid_planner(uint32_t order) {
    static const uint32_t slotless[] = {2};
    ftcache_settings settings = settings_of(8);
    settings.strategy = FTCACHE_STRATEGY_HYBRID;
    settings.fetch_rule = FTCACHE_FETCH_RULE_UP_TO;
    settings.fetch_most = 1;
    settings.fetch_order = order;
    settings.slotless_layers = slotless;
    settings.slotless_layer_count = 1;
    return planner_of(configured(plain_model(3, 16, 4, 16), &settings));
}

static void a_layer_that_cannot_be_stepped_is_named(void) {
    static const uint32_t kinds[] = {FTCACHE_MISSES_DEFAULT, FTCACHE_MISSES_FETCHED, FTCACHE_MISSES_HYBRID};
    ftcache *cache = hybrid_planner(0);
    SIZED(ftcache_layer_report, layer);
    uint32_t i;
    OK(ftcache_layer_get(cache, 1, &layer));
    CHECK(layer.is_attached && !layer.is_direct);
    OK(ftcache_layer_get(cache, 2, &layer));
    CHECK(!layer.is_attached);
    for (i = 0; i < 3; i++) {
        ftcache_step step = step_of(3);
        step.misses = kinds[i];
        REFUSED(admit(cache, &step, ROUTES(1)), OUT_OF_RANGE, "no layer 3: the cache has 3 layers");
        step.layer = 2;
        REFUSED(admit(cache, &step, ROUTES(1)), OUT_OF_RANGE, "layer 2 holds no slots: it decodes elsewhere");
        step.layer = i % 2;
        OK(admit(cache, &step, ROUTES(1)));
        OK(ftcache_commit(cache));
    }
    ftcache_free(cache);
}

static void the_configurations_rule_has_its_order(void) {
    ftcache *cache = hybrid_planner(FTCACHE_FETCH_ORDER_LOWEST);
    ftcache_step step = step_of(0);
    step.misses = FTCACHE_MISSES_HYBRID;
    // Expert 7 was used more recently than 1, and 1 is the lower.
    OK(admit(cache, &step, ROUTES(7)));
    OK(ftcache_commit(cache));
    OK(ftcache_reset(cache));
    OK(admit(cache, &step, ROUTES(7, 1)));
    CHECK(COPIES(cache, {0, 1}));
    OK(ftcache_abort(cache));
    step.fetch_rule = FTCACHE_FETCH_RULE_UP_TO;
    step.fetch_most = 1;
    OK(admit(cache, &step, ROUTES(7, 1)));
    CHECK(COPIES(cache, {0, 7}));
    OK(ftcache_abort(cache));
    ftcache_free(cache);
}

// Rows behind a repeated step are to be copied, and nobody is given their slots before they have landed.
static void rows_on_their_way_keep_their_slots(void) {
    ftcache_settings settings = settings_of(16);
    ftcache_configuration *larger, *borrowing;
    ftcache_step step = step_of(0);
    uint64_t flight = 0, landed = 0;
    ftcache *cache;
    settings.staging = FTCACHE_STAGING_BORROWED;
    settings.no_overlap = 1;
    borrowing = configured(plain_model(2, 16, 4, 16), &settings);
    settings.slot_count = 20;
    larger = configured(plain_model(2, 16, 4, 16), &settings);
    cache = planner_of(borrowing);
    step.misses = FTCACHE_MISSES_HYBRID;
    step.fetch_rule = FTCACHE_FETCH_RULE_UP_TO;
    step.token = 5;
    step.has_token = 1;
    OK(admit(cache, &step, ROUTES(3, 4)));
    OK(ftcache_commit(cache));
    OK(admit(cache, &step, ROUTES(3, 4)));
    CHECK(plan_of(cache).is_repeat == 1);
    OK(ftcache_commit(cache));
    OK(ftcache_admit_later(cache, 8, &flight));
    CHECK(plan_of(cache).is_repeat == 0 && plan_of(cache).eviction_count == 0 && COPIES(cache, {0, 3}, {1, 4}));
    OK(ftcache_commit(cache));
    REFUSED(ftcache_rebuild(cache, larger, 1, UINT64_MAX, NULL), IN_FLIGHT,
            "rows are on their way behind a step or ahead of one: land them first");
    REFUSED(ftcache_chunk_begin(cache, NULL), IN_FLIGHT,
            "rows are on their way behind a step or ahead of one: land them first");
    OK(ftcache_land_flight(cache, flight, &landed));
    CHECK(landed == 2);
    OK(ftcache_chunk_begin(cache, NULL));
    OK(ftcache_chunk_abandon(cache, NULL));
    OK(ftcache_rebuild(cache, larger, 1, UINT64_MAX, NULL));
    // A full pool: both take slots of others.
    decode(cache, 1, ROUTES(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    decode(cache, 0, ROUTES(8, 9, 10, 11));
    step.has_token = 0;
    step.token = 0;
    OK(admit(cache, &step, ROUTES(0, 1)));
    OK(ftcache_commit(cache));
    OK(ftcache_admit_later(cache, 2, &flight));
    CHECK(plan_of(cache).copy_count == 2 && plan_of(cache).eviction_count == 2);
    OK(ftcache_abort(cache));
    ftcache_configuration_free(larger);
    ftcache_free(cache);
}

// After a rebuild no plan is the last any more; rows whose pool lies elsewhere are among the moves.
static void a_rebuild_tells_what_lies_elsewhere(void) {
    ftcache_settings settings = settings_of(12);
    ftcache_configuration *unified, *longer;
    SIZED(ftcache_rebuild_report, report);
    int32_t map[EXPERTS];
    ftcache *cache;
    uint32_t i;
    settings.scope = FTCACHE_SCOPE_PER_LAYER;
    cache = planner_of(configuration_of(&settings));
    decode(cache, 2, ROUTES(5, 6));
    CHECK(plan_of(cache).pool == 2);
    settings.slot_count = 15;
    longer = configuration_of(&settings);
    OK(ftcache_rebuild(cache, longer, 1, 0, &report));
    // Pool 2 keeps its slots' numbers, behind pools that are longer now.
    CHECK(report.kept == 2 && report.rebuilt == FTCACHE_REBUILT_IN_PLACE && report.move_count == 2);
    for (i = 0; i < 2; i++) {
        CHECK(report.moves[i].from_pool == 2 && report.moves[i].to_pool == 2);
        CHECK(report.moves[i].from_slot == report.moves[i].to_slot);
    }
    unified = new_configuration(12);
    OK(ftcache_rebuild(cache, unified, 1, 0, &report));
    CHECK(report.kept == 2);
    OK(ftcache_plan_map(cache, map, EXPERTS, -1));
    for (i = 0; i < EXPERTS; i++) CHECK(map[i] == -1);
    CHECK(plan_of(cache).step == 0 && plan_of(cache).copy_count == 0);
    OK(ftcache_reset(cache));
    OK(ftcache_rebuild(cache, longer, 1, 0, &report));
    CHECK(report.kept == 0 && report.rebuilt == FTCACHE_REBUILT_COLD_AS_ASKED);
    ftcache_configuration_free(longer);
    ftcache_configuration_free(unified);
    ftcache_free(cache);
}

static void an_absent_id_may_be_any_number(void) {
    const int64_t ids[] = {INT64_MIN, 9, 3};
    ftcache *cache = plain_planner(1, 8, 3, 8);
    const ftcache_step step = step_of(0);
    ftcache_routes routes;
    memset(&routes, 0, sizeof routes);
    routes.struct_size = sizeof routes;
    routes.id_bytes = 8;
    routes.ids = ids;
    routes.row_count = 1;
    routes.row_width = 3;
    routes.absent_id = INT64_MIN;
    routes.has_absent = 1;
    routes.first_expert = 8;
    routes.whole_count = 16;
    OK(admit(cache, &step, routes));
    CHECK(ANSWER(-1, 0, -1) && COPIES(cache, {0, 1}));
    OK(ftcache_commit(cache));
    ftcache_free(cache);
}

static void counts_that_cannot_be_meant(void) {
    const ftcache_model_config model_config = {sizeof model_config, 2, 1 << 30, 2, 1, 0};
    ftcache_model *model = NULL;
    ftcache_configuration *configuration = new_configuration(8);
    SIZED(ftcache_config, config);
    ftcache *cache = NULL;
    REFUSED(ftcache_model_new(&model_config, &model), INVALID_ARGUMENT,
            "2 layers of 1073741824 experts are 2147483648; at most 16777216");
    config.remembered_routes = 1 << 28;
    REFUSED(ftcache_new(configuration, &config, &cache), INVALID_ARGUMENT,
            "config->remembered_routes is 268435456; at most 65536");
    config.remembered_routes = 0;
    config.later_step_bytes = 1;
    REFUSED(ftcache_new(configuration, &config, &cache), INVALID_ARGUMENT,
            "config->later_flight_count is 0; it must be 1 to 1024");
    ftcache_configuration_free(configuration);
}

static void what_is_refused_ends_nothing(void) {
    ftcache_settings settings = settings_of(8);
    SIZED(ftcache_chunk_report, report);
    ftcache *cache;
    uint32_t count = 0;
    const ftcache_step step = step_of(1);
    ftcache_routes routes = ROUTES(0, 1, 2, 3, 4);
    settings.staging = FTCACHE_STAGING_DEDICATED;
    cache = planner_of(configuration_of(&settings));
    OK(ftcache_chunk_begin(cache, NULL));
    report.struct_size = 3;
    REFUSED(ftcache_chunk_end(cache, &report), INVALID_ARGUMENT,
            "report->struct_size is 3; this library's struct has 64");
    REFUSED(ftcache_chunk_abandon(cache, &report), INVALID_ARGUMENT,
            "report->struct_size is 3; this library's struct has 64");
    report.struct_size = sizeof report;
    OK(ftcache_chunk_end(cache, &report));
    CHECK(report.chunks == 1);
    // The parts that there are stay, whatever is refused after them.
    OK(ftcache_partition(cache, &step, &routes, &count));
    CHECK(count == 2);
    routes = ROUTES(8);
    REFUSED(ftcache_partition(cache, &step, &routes, &count), OUT_OF_RANGE,
            "layer 1: route 0 is 8, which is no expert of 0..8");
    OK(ftcache_admit_part(cache, 1, NULL));
    OK(ftcache_commit(cache));
    ftcache_free(cache);
}

static uint64_t registrations(const emulator *emulated) {
    return emulator_counts_of(emulated, 0).registrations;
}

// Files take the place of rows as a whole, or not at all.
static void files_are_attached_whole(void) {
    static const char *const paths[] = {"edges_rows.bin"};
    cuda driver = cuda_open();
    const emulator emulated = emulator_open();
    const ftcache_config config = cuda_config(0);
    ftcache *cache = cache_of(new_configuration(8), &config);
    ftcache_file_bank banks[BANKS];
    SIZED(ftcache_file_options, options);
    SIZED(ftcache_layer_report, layer);
    char why[128];
    uint32_t bank, expert, residence = 0;
    uint64_t at, before;
    FILE *file = fopen(paths[0], "wb");
    CHECK(file != NULL);
    memset(banks, 0, sizeof banks);
    for (bank = 0; bank < BANKS; bank++) {
        banks[bank].bank = bank;
        banks[bank].first.offset = (uint64_t)ftell(file);
        for (expert = 0; expert < EXPERTS; expert++) {
            for (at = 0; at < row_bytes_of(0, bank); at++) CHECK(fputc(byte_of(0, bank, expert, at), file) != EOF);
        }
    }
    CHECK(fclose(file) == 0);
    OK(ftcache_register(cache, host_rows, sizeof host_rows, 0, 0));
    attach_all(cache);
    before = registrations(&emulated);
    // The device cannot wait for what reads the old rows: nothing of the file is left.
    emulated.fail_call(0, "cuCtxSynchronize", 0, 999);
    CHECK(ftcache_load_files(cache, paths, 1, banks, BANKS, NULL, NULL) == FTCACHE_STATUS_DEVICE);
    CHECK(registrations(&emulated) == before);
    REFUSED(ftcache_layer_residence(cache, 0, &residence, why, sizeof why), OUT_OF_RANGE,
            "layer 0 was not read from files");
    OK(ftcache_load_files(cache, paths, 1, banks, BANKS, NULL, NULL));
    OK(ftcache_layer_get(cache, 0, &layer));
    CHECK(registrations(&emulated) > before && layer.is_attached && layer.is_direct);
    // Rows that the device cannot read, with nothing to bounce them through, are no rows.
    options.no_pinning = 1;
    OK(ftcache_load_files(cache, paths, 1, banks, BANKS, &options, NULL));
    OK(ftcache_layer_get(cache, 0, &layer));
    CHECK(!layer.is_attached);
    // The file as the system maps it, which a device can only read.
    {
        const int mapped_file = open(paths[0], O_RDONLY);
        void *mapped = mmap(NULL, 256, PROT_READ, MAP_PRIVATE, mapped_file, 0);
        CHECK(mapped_file >= 0 && mapped != MAP_FAILED);
        CHECK(ftcache_register(cache, mapped, 256, 0, 0) == FTCACHE_STATUS_HOST);
        OK(ftcache_register(cache, mapped, 256, 1, 0));
        OK(ftcache_unregister(cache, mapped));
        CHECK(munmap(mapped, 256) == 0 && close(mapped_file) == 0);
    }
    ftcache_free(cache);
    CHECK(remove(paths[0]) == 0);
    cuda_close(&driver, NULL, NULL);
    CHECK(dlclose(emulated.library) == 0);
}

int main(void) {
    a_layer_that_cannot_be_stepped_is_named();
    the_configurations_rule_has_its_order();
    rows_on_their_way_keep_their_slots();
    a_rebuild_tells_what_lies_elsewhere();
    an_absent_id_may_be_any_number();
    counts_that_cannot_be_meant();
    what_is_refused_ends_nothing();
    files_are_attached_whole();
    puts("edges: ok");
    return 0;
}
