// The split by curves: planned from a recording as `ftcache plan --split-trace` plans it, or from numbers of the
// engine's own; and what is refused.

#include "check.h"

// The build says where the recording lies: 18,688 tokens of 8 layers of 64 experts, top-6.
#ifndef TINYMOE_TRACE
#define TINYMOE_TRACE "testdata/traces/tinymoe-8l64e.ftr.zst"
#endif
#define TINYMOE_NAME "tinymoe-13.7M (trained for this file; see README)"

enum { TRACED_LAYERS = 8, TRACED_EXPERTS = 64, TRACED_COUNT = TRACED_LAYERS * (TRACED_EXPERTS + 1) };
enum { COUNTS = LAYERS * (EXPERTS + 1) };

// The slots of each layer, of which each has a pool; the configuration is freed.
static int has_slots(ftcache_configuration *configuration, const uint32_t *wanted, uint32_t layer_count) {
    uint32_t layer;
    int all = 1;
    for (layer = 0; layer < layer_count; layer++) {
        SIZED(ftcache_pool_report, report);
        uint32_t pool = 77;
        OK(ftcache_configuration_layer_pool(configuration, layer, &pool));
        OK(ftcache_configuration_pool_get(configuration, pool, &report));
        if (report.slot_count != wanted[layer]) {
            fprintf(stderr, "layer %u has %u slots, not %u\n", layer, report.slot_count, wanted[layer]);
            all = 0;
        }
    }
    ftcache_configuration_free(configuration);
    return all;
}

#define HAS_SLOTS(configuration, ...)                                                                                  \
    CHECK(has_slots((configuration), (const uint32_t[]){__VA_ARGS__}, COUNT(uint32_t, __VA_ARGS__)))

// Three banks of the traced model; the first `wide_count` layers have rows of 16,384 bytes, the others of 8,704.
static ftcache_model *traced_model(uint32_t wide_count) {
    const ftcache_model_config config = {sizeof config, TRACED_LAYERS, TRACED_EXPERTS, 6, 0, 0};
    const uint64_t wide[] = {16384, 16384, 16384}, narrow[] = {8704, 8704, 8704};
    ftcache_model *model = NULL;
    uint32_t layer;
    OK(ftcache_model_new(&config, &model));
    for (layer = 0; layer < TRACED_LAYERS; layer++) {
        const int is_wide = layer < wide_count;
        const ftcache_layer key = {sizeof key, 3, is_wide ? wide : narrow, is_wide ? "F16" : "Q8_0", is_wide ? 3 : 4};
        OK(ftcache_model_layer_set(model, layer, &key));
    }
    return model;
}

static uint64_t counts[TRACED_COUNT];

static void a_recording_divides_slots(void) {
    ftcache_model *model = traced_model(TRACED_LAYERS);
    SIZED(ftcache_settings, settings);
    size_t needed = 0, at;
    char name[64];
    OK(ftcache_model_miss_counts(model, TINYMOE_TRACE, counts, TRACED_COUNT, name, sizeof name, &needed));
    CHECK(strcmp(name, TINYMOE_NAME) == 0 && needed == sizeof TINYMOE_NAME);
    // A step uses six; layer 0 uses 63 experts in all, the others all 64.
    for (at = 0; at < 6; at++) CHECK(counts[at] == 6 * 18688);
    CHECK(counts[6] < counts[5] && counts[62] > 63 && counts[63] == 63 && counts[64] == 63 && counts[65] == 6 * 18688);
    CHECK(counts[TRACED_COUNT - 2] > 64 && counts[TRACED_COUNT - 1] == 64);

    // `ftcache plan tinymoe.gguf --mem 8MiB --split-trace`: docs/which-cache.md has its table.
    settings.scope = FTCACHE_SCOPE_PER_LAYER;
    settings.split = FTCACHE_SPLIT_CURVE;
    settings.budget = "8MiB";
    settings.miss_counts = counts;
    settings.miss_count_count = TRACED_COUNT;
    settings.miss_counts_model = name;
    settings.model_name = TINYMOE_NAME;
    settings.refuse_other_model = 1;
    HAS_SLOTS(configured(model, &settings), 24, 23, 20, 22, 22, 21, 18, 20);
    // Where the first three layers have wider rows: a test of the program, `slots_of_two_widths_by_a_trace`.
    HAS_SLOTS(configured(traced_model(3), &settings), 33, 33, 31, 30, 28, 28, 27, 25);
    settings.split = FTCACHE_SPLIT_EQUAL;
    settings.miss_counts = NULL;
    settings.miss_count_count = 0;
    settings.miss_counts_model = NULL;
    settings.refuse_other_model = 0;
    HAS_SLOTS(configured(traced_model(3), &settings), 30, 30, 30, 31, 30, 30, 30, 30);
}

static void a_trace_that_cannot_be_counted(void) {
    ftcache_model *model = traced_model(TRACED_LAYERS), *other = new_model(), *unset = NULL;
    const ftcache_model_config config = {sizeof config, 2, TRACED_EXPERTS, 6, 0, 0};
    uint64_t few[COUNTS] = {7};
    size_t needed = 7;
    char name[8] = "as was";
    FILE *file = fopen("curves_no_trace.ftr", "wb");
    counts[0] = 7;
    REFUSED(ftcache_model_miss_counts(model, TINYMOE_TRACE, counts, TRACED_COUNT - 1, name, sizeof name, &needed),
            INVALID_ARGUMENT, "miss_counts has 519 counts; 8 layers of 64 experts need 520");
    REFUSED(ftcache_model_miss_counts(model, TINYMOE_TRACE, NULL, 0, name, sizeof name, &needed), INVALID_ARGUMENT,
            "miss_counts has 0 counts; 8 layers of 64 experts need 520");
    REFUSED(ftcache_model_miss_counts(other, TINYMOE_TRACE, few, COUNTS, name, sizeof name, &needed),
            INVALID_ARGUMENT, TINYMOE_TRACE ": the trace has 8 layers of 64 experts; the model has 3 of 8");
    CHECK(ftcache_model_miss_counts(model, "no such file", counts, TRACED_COUNT, name, sizeof name, &needed) ==
          FTCACHE_STATUS_HOST);
    CHECK(strncmp(ftcache_last_error(), "no such file: ", 14) == 0);
    CHECK(ftcache_model_miss_counts(model, ".", counts, TRACED_COUNT, name, sizeof name, &needed) ==
          FTCACHE_STATUS_HOST);
    CHECK(strncmp(ftcache_last_error(), ".: ", 3) == 0);
    CHECK(file != NULL && fputs("GGUF", file) >= 0 && fclose(file) == 0);
    REFUSED(ftcache_model_miss_counts(model, "curves_no_trace.ftr", counts, TRACED_COUNT, name, sizeof name, &needed),
            INVALID_ARGUMENT, "curves_no_trace.ftr: starts with bytes 47 47 55 46: neither a JSON header nor zstd");
    CHECK(remove("curves_no_trace.ftr") == 0);
    OK(ftcache_model_new(&config, &unset));
    REFUSED(ftcache_model_miss_counts(unset, TINYMOE_TRACE, counts, TRACED_COUNT, name, sizeof name, &needed),
            INVALID_ARGUMENT, "layer 0 of 2 is not set: ftcache_model_layer_set");
    CHECK(counts[0] == 7 && few[0] == 7 && needed == 7 && strcmp(name, "as was") == 0);
    ftcache_model_free(unset);
    ftcache_model_free(other);
    ftcache_model_free(model);
}

// Layer 0 walks to and fro between four experts, layer 1 stays with two, layer 2 has no step.
static void what_was_just_recorded_divides_slots(void) {
    const ftcache_recorder_config config = {sizeof config, 0, LAYERS, EXPERTS, TOP_K, 0, 4096, "toy"};
    const int32_t one[] = {0, 1}, other[] = {2, 3};
    const uint64_t wanted[LAYERS][EXPERTS + 1] = {{8, 8, 8, 6, 4, 4, 4, 4, 4}, {8, 8, 2, 2, 2, 2, 2, 2, 2}, {0}};
    ftcache_settings settings = settings_of(8);
    ftcache_recorder *recorder = NULL;
    ftcache_model *model = new_model();
    int token;
    OK(ftcache_recorder_new(&config, &recorder));
    for (token = 0; token < 4; token++) {
        const ftcache_routes walking = routes_of(token % 2 == 0 ? one : other, 2), staying = routes_of(one, 2);
        OK(ftcache_recorder_record(recorder, 0, &walking));
        OK(ftcache_recorder_record(recorder, 1, &staying));
    }
    OK(ftcache_recorder_write(recorder, "curves_trace.ftr.zst"));
    ftcache_recorder_free(recorder);
    OK(ftcache_model_miss_counts(model, "curves_trace.ftr.zst", counts, COUNTS, NULL, 0, NULL));
    CHECK(remove("curves_trace.ftr.zst") == 0 && memcmp(counts, wanted, sizeof wanted) == 0);

    settings.scope = FTCACHE_SCOPE_PER_LAYER;
    HAS_SLOTS(configuration_of(&settings), 3, 3, 2);
    settings.split = FTCACHE_SPLIT_CURVE;
    settings.miss_counts = counts;
    settings.miss_count_count = COUNTS;
    HAS_SLOTS(configured(model, &settings), 4, 2, 2);
}

// Falls of so much a slot. A row of layer 1 has 42 bytes, those of the others 26.
static void fill_counts(uint64_t first, uint64_t second, uint64_t third) {
    const uint64_t falls[LAYERS] = {first, second, third};
    uint32_t layer, slots;
    for (layer = 0; layer < LAYERS; layer++) {
        for (slots = 0; slots <= EXPERTS; slots++) {
            counts[layer * (EXPERTS + 1) + slots] = (EXPERTS - slots) * falls[layer];
        }
    }
}

static void a_miss_weighs_its_bytes(void) {
    ftcache_settings settings = settings_of(7);
    settings.scope = FTCACHE_SCOPE_PER_LAYER;
    settings.split = FTCACHE_SPLIT_CURVE;
    settings.miss_counts = counts;
    settings.miss_count_count = COUNTS;
    // 7 misses of 42 bytes are more than 10 of 26, and 6 are less.
    fill_counts(10, 7, 1);
    HAS_SLOTS(configuration_of(&settings), 2, 3, 2);
    fill_counts(10, 6, 1);
    HAS_SLOTS(configuration_of(&settings), 3, 2, 2);
    // A byte budget counts what a slot takes too: 42 bytes for 42, so misses alone decide. What is left is 42 bytes.
    settings.slot_count = 0;
    settings.tail_pad = FTCACHE_TAIL_PAD_BYTES;
    settings.budget_bytes = 2 * (26 + 42 + 26) + 42;
    HAS_SLOTS(configuration_of(&settings), 3, 2, 2);
    fill_counts(10, 11, 1);
    HAS_SLOTS(configuration_of(&settings), 2, 3, 2);
}

static void what_contradicts_is_refused(void) {
    const double uses[LAYERS * EXPERTS] = {1};
    ftcache_model *model = new_model();
    ftcache_settings settings = settings_of(8);
    ftcache_configuration *configuration;
    fill_counts(3, 2, 1);
    settings.scope = FTCACHE_SCOPE_PER_LAYER;
    settings.miss_counts = counts;
    settings.miss_count_count = COUNTS;
    REFUSED_SETTINGS(&settings, INVALID_ARGUMENT,
                     "settings->miss_counts has 27 counts, which count only if split is FTCACHE_SPLIT_CURVE");
    settings.split = FTCACHE_SPLIT_PROFILE;
    REFUSED_SETTINGS(&settings, INVALID_ARGUMENT,
                     "settings->miss_counts has 27 counts, which count only if split is FTCACHE_SPLIT_CURVE");
    settings.split = FTCACHE_SPLIT_CURVE;
    settings.use_counts = uses;
    settings.use_count_count = LAYERS * EXPERTS;
    REFUSED_SETTINGS(&settings, INVALID_ARGUMENT,
                     "settings->use_counts has 24 counts, which count only if split is FTCACHE_SPLIT_PROFILE");
    settings.use_count_count = 0;
    settings.use_counts_model = "this";
    REFUSED_SETTINGS(&settings, INVALID_ARGUMENT,
                     "settings->use_counts_model is \"this\", which counts only if split is FTCACHE_SPLIT_PROFILE");
    settings.use_counts_model = NULL;
    settings.miss_count_count = COUNTS - 1;
    REFUSED_SETTINGS(&settings, INVALID_ARGUMENT, "settings->miss_counts has 26 counts; 3 layers of 8 experts need 27");
    settings.miss_count_count = 0;
    REFUSED_SETTINGS(&settings, INVALID_ARGUMENT, "settings->miss_counts has 0 counts; 3 layers of 8 experts need 27");
    settings.miss_count_count = COUNTS;
    counts[9 + 3]++;
    ftcache_configuration_free(configuration_of(&settings));
    counts[9 + 3]++;
    counts[9 + 3]++;
    REFUSED_SETTINGS(&settings, INVALID_ARGUMENT,
                     "the curve of layer 1 rises from 12 misses with 2 slots to 13 with 3");
    fill_counts(3, 2, 1);
    counts[0] = UINT64_MAX - 15;
    REFUSED_SETTINGS(&settings, INVALID_ARGUMENT,
                     "the curves' misses without a slot are too many to be summed up to layer 1");
    counts[0] = UINT64_MAX - 24;
    ftcache_configuration_free(configuration_of(&settings));

    // Counts of another model are noted, or refused if that is wanted.
    settings.miss_counts_model = "other";
    settings.model_name = "this";
    {
        SIZED(ftcache_configuration_report, report);
        char text[4096];
        OK(ftcache_configuration_new(model, &settings, &configuration));
        OK(ftcache_configuration_get(configuration, &report));
        OK(ftcache_configuration_text(configuration, text, sizeof text, NULL));
        CHECK(report.note_count == 1 && strstr(text, "split: curve\n") != NULL);
        CHECK(strstr(text, "the curves were counted on \"other\"; this model is \"this\"\n") != NULL);
        ftcache_configuration_free(configuration);
    }
    settings.refuse_other_model = 1;
    REFUSED_SETTINGS(&settings, UNSATISFIABLE, "the curves were counted on \"other\"; this model is \"this\"");
    settings.model_name = NULL;
    REFUSED_SETTINGS(&settings, UNSATISFIABLE,
                     "refusing another model's curves would have no effect: the model's name is not known");
    settings.model_name = "other";
    ftcache_configuration_free(configuration_of(&settings));
    settings.refuse_other_model = 0;
    settings.split = FTCACHE_SPLIT_EQUAL;
    settings.miss_counts = NULL;
    settings.miss_count_count = 0;
    REFUSED_SETTINGS(&settings, INVALID_ARGUMENT,
                     "settings->miss_counts_model is \"other\", which counts only if split is FTCACHE_SPLIT_CURVE");
    ftcache_model_free(model);
}

int main(void) {
    a_recording_divides_slots();
    a_trace_that_cannot_be_counted();
    what_was_just_recorded_divides_slots();
    a_miss_weighs_its_bytes();
    what_contradicts_is_refused();
    puts("curves: ok");
    return 0;
}
