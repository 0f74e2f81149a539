// Routing as an engine records it: bounded, counted, and in a file of the form ftr1.

#include "check.h"

static ftcache_recorder *recorder_of(uint32_t keep, uint64_t tokens) {
    // Two layers of top-2: 8 bytes of ids a token, and 24 of a start.
    ftcache_recorder_config config = {sizeof config, keep, 2, 8, 2, 0, tokens * 32, "toy"};
    ftcache_recorder *recorder = NULL;
    OK(ftcache_recorder_new(&config, &recorder));
    return recorder;
}

static ftcache_recorder_report report_of(ftcache_recorder *recorder) {
    SIZED(ftcache_recorder_report, report);
    OK(ftcache_recorder_get(recorder, &report));
    return report;
}

// What a file holds; its first line, and the ids behind it.
static size_t read_trace(const char *path, char *head, size_t capacity, uint16_t *ids, size_t most) {
    FILE *file = fopen(path, "rb");
    size_t count;
    CHECK(file != NULL && fgets(head, (int)capacity, file) != NULL);
    count = fread(ids, sizeof *ids, most, file);
    CHECK(fclose(file) == 0 && remove(path) == 0);
    return count;
}

static void what_was_routed_is_in_the_file(void) {
    // A view of four ids a row, of which two are the token's.
    const int64_t view[] = {5, 2, 90, 91, 0, 7, 92, 93};
    const int32_t layer_1[] = {3, 1, 4, 6}, next[] = {5, 1}, stray[] = {-1, 2}, twice[] = {3, 3};
    ftcache_recorder *recorder = recorder_of(FTCACHE_KEEP_FIRST, 16);
    ftcache_routes routes;
    char head[4096];
    uint16_t ids[32];
    REFUSED(ftcache_recorder_write(recorder, "recorder_empty.ftr"), OUT_OF_ORDER,
            "\"tokens\" is 0; at least 1 is needed");
    OK(ftcache_recorder_begin(recorder, 7, FTCACHE_PHASE_PREFILL));
    memset(&routes, 0, sizeof routes);
    routes.struct_size = sizeof routes;
    routes.id_bytes = 8;
    routes.ids = view;
    routes.row_count = 2;
    routes.row_width = 2;
    routes.row_stride_bytes = 32;
    OK(ftcache_recorder_record(recorder, 0, &routes));
    routes = routes_of(layer_1, 2);
    routes.row_count = 2;
    OK(ftcache_recorder_record(recorder, 1, &routes));
    OK(ftcache_recorder_begin(recorder, 7, FTCACHE_PHASE_DECODE));
    routes = routes_of(next, 2);
    OK(ftcache_recorder_record(recorder, 0, &routes));
    // Neither is a cell; the token has none in layer 1.
    routes = routes_of(stray, 2);
    OK(ftcache_recorder_record(recorder, 1, &routes));
    OK(ftcache_recorder_record(recorder, 9, &routes));
    routes = routes_of(twice, 2);
    OK(ftcache_recorder_record(recorder, 0, &routes));
    CHECK(report_of(recorder).tokens == 4 && report_of(recorder).refused == 3 && report_of(recorder).dropped == 0);
    routes = routes_of(layer_1, 3);
    REFUSED(ftcache_recorder_record(recorder, 0, &routes), INVALID_ARGUMENT,
            "routes->row_width is 3; the recorder's model has a top_k of 2");
    OK(ftcache_recorder_write(recorder, "recorder_trace.ftr"));
    CHECK(read_trace("recorder_trace.ftr", head, sizeof head, ids, 32) == 16);
    CHECK(strstr(head, "\"format\":\"ftr1\"") && strstr(head, "\"model\":\"toy\"") && strstr(head, "\"tokens\":4"));
    CHECK(strstr(head, "request-7-prefill") && strstr(head, "request-7-decode") && strstr(head, "\"absent_cells\":3"));
    {
        const uint16_t none = 65535;
        const uint16_t wanted[] = {5, 2, 3, 1, 0, 7, 4, 6, 5, 1, none, none, none, none, none, none};
        CHECK(memcmp(ids, wanted, sizeof wanted) == 0);
    }
    // Recording goes on.
    routes = routes_of(next, 2);
    OK(ftcache_recorder_record(recorder, 0, &routes));
    CHECK(report_of(recorder).tokens == 5);
    OK(ftcache_recorder_write(recorder, "recorder_trace.ftr.zst"));
    {
        FILE *file = fopen("recorder_trace.ftr.zst", "rb");
        unsigned char magic[4];
        CHECK(file != NULL && fread(magic, 1, 4, file) == 4 && memcmp(magic, "\x28\xb5\x2f\xfd", 4) == 0);
        CHECK(fclose(file) == 0 && remove("recorder_trace.ftr.zst") == 0);
    }
    CHECK(ftcache_recorder_write(recorder, "no such folder/trace.ftr") == FTCACHE_STATUS_HOST);
    CHECK(strncmp(ftcache_last_error(), "no such folder/trace.ftr: ", 26) == 0);
    ftcache_recorder_free(recorder);
}

static void what_does_not_fit_is_counted(void) {
    uint32_t keep;
    for (keep = FTCACHE_KEEP_FIRST; keep <= FTCACHE_KEEP_LAST; keep++) {
        ftcache_recorder *recorder = recorder_of(keep, 3);
        char head[4096];
        uint16_t ids[32];
        int32_t token;
        for (token = 0; token < 5; token++) {
            const int32_t cell[] = {token, 7};
            const ftcache_routes routes = routes_of(cell, 2);
            OK(ftcache_recorder_record(recorder, 0, &routes));
            OK(ftcache_recorder_record(recorder, 1, &routes));
        }
        CHECK(report_of(recorder).room == 3 && report_of(recorder).tokens == 3 && report_of(recorder).dropped == 2);
        OK(ftcache_recorder_write(recorder, "recorder_full.ftr"));
        CHECK(read_trace("recorder_full.ftr", head, sizeof head, ids, 32) == 12);
        for (token = 0; token < 3; token++) CHECK(ids[token * 4] == token + (keep == FTCACHE_KEEP_LAST ? 2 : 0));
        ftcache_recorder_free(recorder);
    }
}

static void what_cannot_be_recorded(void) {
    ftcache_recorder_config config = {sizeof config, 2, 2, 8, 2, 0, 32, NULL};
    ftcache_recorder *recorder = NULL;
    REFUSED(ftcache_recorder_new(&config, &recorder), INVALID_ARGUMENT, "config->keep is 2, not an ftcache_keep");
    config.keep = 0;
    config.capacity_bytes = 31;
    CHECK(ftcache_recorder_new(&config, &recorder) == FTCACHE_STATUS_INVALID_ARGUMENT);
    CHECK(strstr(ftcache_last_error(), "31") != NULL && strstr(ftcache_last_error(), "32") != NULL);
    config.capacity_bytes = 32;
    config.top_k = 9;
    CHECK(ftcache_recorder_new(&config, &recorder) == FTCACHE_STATUS_INVALID_ARGUMENT && recorder == NULL);
    CHECK(strstr(ftcache_last_error(), "9") != NULL && strstr(ftcache_last_error(), "8") != NULL);
}

int main(void) {
    what_was_routed_is_in_the_file();
    what_does_not_fit_is_counted();
    what_cannot_be_recorded();
    puts("recorder: ok");
    return 0;
}
