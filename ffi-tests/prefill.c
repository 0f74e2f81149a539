// Chunks of prefill: whole layers are staged, residents from their slots and the others from the host, byte by byte;
// what a chunk costs the decode set, with buffers of its own and with borrowed ones; and calls in the wrong order.

#include "check.h"

static int32_t answer[EXPERTS];

// Banks with rows narrower than small_row_bytes are staged whole.
static ftcache *staged_cache(uint32_t staging, uint64_t slot_count, uint64_t small_row_bytes) {
    ftcache_settings settings = settings_of(slot_count);
    ftcache *cache;
    settings.staging = staging;
    settings.small_row_bytes = small_row_bytes;
    cache = cache_of(configuration_of(&settings), NULL);
    attach_all(cache);
    return cache;
}

static void decode(ftcache *cache, uint32_t layer, const int32_t *ids, uint64_t count) {
    const ftcache_routes routes = routes_of(ids, count);
    const ftcache_slots slots = slots_of(answer);
    OK(load(cache, layer, &routes, &slots));
}

// Whether a buffer holds a whole layer in every bank.
static int buffer_holds(ftcache *cache, uint32_t layer, uint32_t buffer) {
    uint32_t bank, expert;
    uint64_t at;
    for (bank = 0; bank < BANKS; bank++) {
        SIZED(ftcache_slot_span, span);
        OK(ftcache_staged_span_get(cache, layer, bank, buffer, &span));
        CHECK(span.address != NULL && span.slot_count == EXPERTS && span.row_bytes == row_bytes_of(layer, bank));
        for (expert = 0; expert < EXPERTS; expert++) {
            for (at = 0; at < span.row_bytes; at++) {
                const unsigned char *row = (const unsigned char *)span.address + expert * span.stride;
                if (row[at] != byte_of(layer, bank, expert, at)) return 0;
            }
        }
    }
    return 1;
}

static ftcache_chunk_report ended(ftcache *cache) {
    SIZED(ftcache_chunk_report, report);
    OK(ftcache_chunk_end(cache, &report));
    return report;
}

// Layers in their order, one ahead.
static void walk(ftcache *cache) {
    uint32_t layer, buffer, last = 9;
    OK(ftcache_chunk_prefetch(cache, 0));
    for (layer = 0; layer < LAYERS; layer++) {
        if (layer + 1 < LAYERS) OK(ftcache_chunk_prefetch(cache, layer + 1));
        buffer = 9;
        OK(ftcache_chunk_wait(cache, layer, &buffer));
        CHECK(buffer < 2 && buffer != last);
        CHECK(buffer_holds(cache, layer, buffer));
        OK(ftcache_chunk_release(cache, layer));
        last = buffer;
    }
}

static void layers_are_staged_from_the_host(void) {
    ftcache *cache = staged_cache(FTCACHE_STAGING_DEDICATED, 8, 1);
    ftcache_chunk_report report;
    SIZED(ftcache_slot_span, span);
    OK(ftcache_chunk_begin(cache, NULL));
    walk(cache);
    report = ended(cache);
    CHECK(report.chunks == 1 && report.layers == 3 && report.gathered == 0 && report.fetched == 24 && report.lost == 0);
    CHECK(report.fetched_bytes == EXPERTS * (26 + 42 + 26) && report.gathered_bytes == 0);
    OK(ftcache_staged_span_get(cache, 0, 0, 2, &span));
    CHECK(span.address == NULL);
    ftcache_free(cache);
}

// The widest rows that are staged whole are those below the bound: none, the side tensor's, all.
static void residents_are_gathered_and_others_fetched(void) {
    static const struct { uint64_t bound, gathered_bytes; } cases[] = {{1, 3 * 26}, {24, 3 * 24}, {25, 0}, {0, 0}};
    static const int32_t ids[] = {6, 1}, others[] = {3};
    uint32_t i;
    for (i = 0; i < sizeof cases / sizeof *cases; i++) {
        ftcache *cache = staged_cache(FTCACHE_STAGING_DEDICATED, 8, cases[i].bound);
        ftcache_chunk_report report, total = {.struct_size = sizeof total};
        ftcache_stats stats;
        int32_t slots[2];
        uint64_t digest;
        decode(cache, 0, ids, 2);
        memcpy(slots, answer, sizeof slots);
        decode(cache, 2, others, 1);
        digest = digest_of(cache);
        stats = stats_of(cache);
        OK(ftcache_chunk_begin(cache, NULL));
        walk(cache);
        report = ended(cache);
        CHECK(report.layers == 3 && report.lost == 0 && report.gathered_bytes == cases[i].gathered_bytes);
        CHECK(report.fetched_bytes == EXPERTS * (26 + 42 + 26) - cases[i].gathered_bytes);
        CHECK(report.gathered == 3 && report.fetched == 21);
        // The decode set is where it was, and nothing of this was a step.
        CHECK(digest_of(cache) == digest && memcmp(&stats, (ftcache_stats[]){stats_of(cache)}, sizeof stats) == 0);
        CHECK(slot_holds(cache, 0, slots[0], 6) && slot_holds(cache, 0, slots[1], 1));
        decode(cache, 0, ids, 2);
        CHECK(answer[0] == slots[0] && answer[1] == slots[1] && stats_of(cache).hits == 2);
        // A second chunk, and what both came to.
        OK(ftcache_chunk_begin(cache, NULL));
        OK(ftcache_chunk_prefetch(cache, 1));
        OK(ftcache_chunk_abandon(cache, &report));
        CHECK(report.chunks == 1 && report.layers == 1 && report.fetched_bytes == EXPERTS * 42);
        OK(ftcache_chunk_total_get(cache, &total));
        CHECK(total.chunks == 2 && total.layers == 4 && total.gathered_bytes == cases[i].gathered_bytes);
        CHECK(total.fetched_bytes == EXPERTS * (26 + 42 + 26 + 42) - cases[i].gathered_bytes);
        ftcache_free(cache);
    }
}

// Twelve slots, of which eight lie under the buffers.
static void borrowed_slots_are_lost(void) {
    static unsigned char rows[3][4][32];
    static const int32_t all[] = {0, 1, 2, 3}, one[] = {2};
    ftcache_settings settings = settings_of(12);
    ftcache_chunk_report report;
    ftcache *cache;
    uint32_t layer, buffer, expert, lost = 0;
    settings.staging = FTCACHE_STAGING_BORROWED;
    settings.small_row_bytes = 1;
    cache = cache_of(configured(plain_model(4, 4, 2, 32), &settings), NULL);
    for (layer = 0; layer < 4; layer++) {
        SIZED(ftcache_host_rows, host);
        for (expert = 0; layer < 3 && expert < 4; expert++) memset(rows[layer][expert], 1 + layer * 4 + expert, 32);
        host.base = rows[layer % 3];
        host.bytes = sizeof rows[0];
        OK(ftcache_attach(cache, layer, 0, &host));
    }
    for (layer = 0; layer < 3; layer++) decode(cache, layer, all, 4);
    CHECK(answer[0] == 8 && answer[3] == 11);
    OK(ftcache_chunk_begin(cache, NULL));
    // While it is open, only slots past the buffers are given out.
    decode(cache, 3, one, 1);
    CHECK(answer[0] == 8);
    for (layer = 0; layer < 3; layer++) {
        SIZED(ftcache_slot_span, span);
        OK(ftcache_chunk_prefetch(cache, layer));
        OK(ftcache_chunk_wait(cache, layer, &buffer));
        OK(ftcache_staged_span_get(cache, layer, 0, buffer, &span));
        CHECK(memcmp(span.address, rows[layer], sizeof rows[layer]) == 0 && span.stride == 32);
        OK(ftcache_chunk_release(cache, layer));
    }
    report = ended(cache);
    CHECK(report.lost == 8 && report.layers == 3 && report.gathered == 3 && report.fetched == 9);
    OK(ftcache_chunk_begin(cache, NULL));
    CHECK(ended(cache).lost == 0);
    // Twice in a row changes nothing; the stable ones are hits, and the others have lost their slots to staging.
    decode(cache, 2, all + 1, 3);
    CHECK(answer[0] == 9 && answer[2] == 11 && stats_of(cache).hits == 3);
    for (layer = 0; layer < 2; layer++) decode(cache, layer, all, 4);
    lost = (uint32_t)stats_of(cache).staging_misses;
    CHECK(lost == 8 && stats_of(cache).capacity_misses == 0 && answer[3] == 7);
    ftcache_free(cache);
}

// Of eleven slots three are left while a chunk is open.
static void a_step_has_the_slots_that_are_left(void) {
    static const int32_t ids[] = {0, 1, 2, 3};
    ftcache_settings settings = settings_of(11);
    ftcache_routes routes = routes_of(ids, 4);
    const ftcache_slots slots = slots_of(answer);
    const ftcache_step step = step_of(0);
    ftcache *cache;
    settings.staging = FTCACHE_STAGING_BORROWED;
    cache = planner_of(configured(plain_model(3, 4, 2, 32), &settings));
    OK(ftcache_chunk_begin(cache, NULL));
    REFUSED(ftcache_admit(cache, &step, &routes, &slots), STEP_TOO_WIDE,
            "layer 0 routes to 4 distinct experts; pool 0 has 11 slots, 3 without the 8 under staging buffers");
    routes.row_width = 3;
    OK(ftcache_admit(cache, &step, &routes, &slots));
    CHECK(answer[0] == 8 && answer[1] == 9 && answer[2] == 10);
    OK(ftcache_commit(cache));
    CHECK(ended(cache).lost == 0);
    routes.row_width = 4;
    OK(ftcache_admit(cache, &step, &routes, &slots));
    CHECK(answer[0] == 8 && answer[3] == 0);
    ftcache_free(cache);
}

// Too few slots for two layers: one is staged at a time.
static void without_overlap_there_is_one_buffer(void) {
    ftcache_settings settings = settings_of(8);
    ftcache *cache;
    uint32_t layer, buffer;
    settings.staging = FTCACHE_STAGING_DEDICATED;
    settings.no_overlap = 1;
    cache = cache_of(configuration_of(&settings), NULL);
    attach_all(cache);
    OK(ftcache_chunk_begin(cache, NULL));
    for (layer = 0; layer < LAYERS; layer++) {
        buffer = 9;
        OK(ftcache_chunk_materialize(cache, layer));
        REFUSED(ftcache_chunk_prefetch(cache, (layer + 1) % LAYERS), UNSUPPORTED,
                "there is one staging buffer: layers are materialized one at a time");
        OK(ftcache_chunk_wait(cache, layer, &buffer));
        CHECK(buffer == 0 && buffer_holds(cache, layer, 0));
        OK(ftcache_chunk_release(cache, layer));
    }
    CHECK(ended(cache).layers == 3);
    ftcache_free(cache);
}

static void the_order_is_kept(void) {
    ftcache *cache = staged_cache(FTCACHE_STAGING_DEDICATED, 8, 1), *nowhere = new_cache(8);
    ftcache_configuration *configuration = NULL;
    uint32_t buffer = 9;
    OK(ftcache_configuration_of(cache, &configuration));
    REFUSED(ftcache_chunk_begin(nowhere, NULL), UNSUPPORTED, "the cache has no staging buffers");
    REFUSED(ftcache_chunk_prefetch(cache, 0), OUT_OF_ORDER, "no prefill chunk is open");
    REFUSED(ftcache_chunk_materialize(cache, 0), OUT_OF_ORDER, "no prefill chunk is open");
    REFUSED(ftcache_chunk_wait(cache, 0, &buffer), OUT_OF_ORDER, "no prefill chunk is open");
    REFUSED(ftcache_chunk_release(cache, 0), OUT_OF_ORDER, "no prefill chunk is open");
    REFUSED(ftcache_chunk_end(cache, NULL), OUT_OF_ORDER, "no prefill chunk is open");
    REFUSED(ftcache_chunk_abandon(cache, NULL), OUT_OF_ORDER, "no prefill chunk is open");
    OK(ftcache_chunk_begin(cache, NULL));
    REFUSED(ftcache_chunk_begin(cache, NULL), OUT_OF_ORDER, "a prefill chunk is open");
    REFUSED(ftcache_rebuild(cache, configuration, 1, 0, NULL), OUT_OF_ORDER, "a prefill chunk is open");
    REFUSED(ftcache_chunk_wait(cache, 0, &buffer), OUT_OF_ORDER, "layer 0 is in no staging buffer");
    REFUSED(ftcache_chunk_prefetch(cache, 3), OUT_OF_RANGE, "no layer 3: the cache has 3 layers");
    OK(ftcache_chunk_prefetch(cache, 0));
    REFUSED(ftcache_chunk_prefetch(cache, 0), OUT_OF_ORDER, "layer 0 has been staged in this chunk");
    REFUSED(ftcache_chunk_release(cache, 0), OUT_OF_ORDER, "layer 0 is staged and has not been waited for");
    OK(ftcache_chunk_prefetch(cache, 1));
    REFUSED(ftcache_chunk_prefetch(cache, 2), OUT_OF_ORDER,
            "staging buffer 0 holds layer 0, which has not been released");
    OK(ftcache_chunk_wait(cache, 0, &buffer));
    REFUSED(ftcache_chunk_wait(cache, 0, &buffer), OUT_OF_ORDER, "layer 0 is in use");
    REFUSED(ftcache_chunk_prefetch(cache, 2), OUT_OF_ORDER,
            "staging buffer 0 holds layer 0, which has not been released");
    REFUSED(ftcache_chunk_end(cache, NULL), OUT_OF_ORDER,
            "staging buffer 0 holds layer 0, which has not been released");
    OK(ftcache_chunk_release(cache, 0));
    REFUSED(ftcache_chunk_prefetch(cache, 0), OUT_OF_ORDER, "layer 0 has been staged in this chunk");
    OK(ftcache_chunk_prefetch(cache, 2));
    REFUSED(ftcache_chunk_end(cache, NULL), OUT_OF_ORDER,
            "staging buffer 0 holds layer 2, which has not been released");
    OK(ftcache_chunk_abandon(cache, NULL));
    // All of it works again.
    OK(ftcache_chunk_begin(cache, NULL));
    walk(cache);
    CHECK(ended(cache).layers == 3);
    ftcache_configuration_free(configuration);
    ftcache_free(nowhere);
    ftcache_free(cache);
}

// The engine stages by the plan: what is gathered from which slot, what is fetched, bank by bank.
static void an_engine_stages_by_the_plan(void) {
    static const int32_t ids[] = {6, 1};
    const ftcache_routes routes = routes_of(ids, 2);
    const ftcache_step step = step_of(0);
    ftcache_settings settings = settings_of(8);
    SIZED(ftcache_stage_plan, plan);
    ftcache_chunk_report report;
    ftcache *cache;
    uint32_t buffer = 9;
    settings.staging = FTCACHE_STAGING_DEDICATED;
    settings.small_row_bytes = 3;
    cache = planner_of(configuration_of(&settings));
    OK(ftcache_admit(cache, &step, &routes, NULL));
    OK(ftcache_commit(cache));
    REFUSED(ftcache_stage_plan_get(cache, 0, &plan), OUT_OF_ORDER,
            "no layer is being staged: ftcache_chunk_prefetch opens the plan");
    OK(ftcache_chunk_begin(cache, NULL));
    OK(ftcache_chunk_prefetch(cache, 0));
    OK(ftcache_stage_plan_get(cache, 0, &plan));
    CHECK(plan.layer == 0 && plan.pool == 1 && plan.buffer == 0 && plan.gather_count == 2 && plan.fetch_count == 3);
    CHECK(memcmp(plan.gathers, (const ftcache_copy[]){{0, 1}, {1, 6}}, 2 * sizeof *plan.gathers) == 0);
    CHECK(plan.fetches[0].row == 0 && plan.fetches[0].count == 1 && plan.fetches[1].row == 2);
    CHECK(plan.fetches[1].count == 4 && plan.fetches[2].row == 7 && plan.fetches[2].count == 1);
    // The side tensor is staged whole.
    OK(ftcache_stage_plan_get(cache, 1, &plan));
    CHECK(plan.gather_count == 0 && plan.fetch_count == 1 && plan.fetches[0].row == 0 && plan.fetches[0].count == 8);
    REFUSED(ftcache_stage_plan_get(cache, 2, &plan), OUT_OF_RANGE, "no bank 2: the layer has 2 banks");
    REFUSED(ftcache_chunk_prefetch(cache, 1), OUT_OF_ORDER,
            "the plan of a layer to be staged is open: commit or abort it first");
    REFUSED(ftcache_chunk_wait(cache, 0, &buffer), OUT_OF_ORDER,
            "the plan of a layer to be staged is open: commit or abort it first");
    REFUSED(ftcache_admit(cache, &step, &routes, NULL), OUT_OF_ORDER,
            "the plan of a layer to be staged is open: commit or abort it first");
    // It could not be made: the layer may be staged again.
    OK(ftcache_abort(cache));
    REFUSED(ftcache_chunk_wait(cache, 0, &buffer), OUT_OF_ORDER, "layer 0 is in no staging buffer");
    OK(ftcache_chunk_prefetch(cache, 0));
    OK(ftcache_commit(cache));
    OK(ftcache_chunk_wait(cache, 0, &buffer));
    CHECK(buffer == 0);
    OK(ftcache_chunk_release(cache, 0));
    report = ended(cache);
    CHECK(report.layers == 1 && report.gathered == 2 && report.fetched == 6 && report.fetched_bytes == 0);
    ftcache_free(cache);
}

int main(void) {
    layers_are_staged_from_the_host();
    residents_are_gathered_and_others_fetched();
    borrowed_slots_are_lost();
    a_step_has_the_slots_that_are_left();
    without_overlap_there_is_one_buffer();
    the_order_is_kept();
    an_engine_stages_by_the_plan();
    return 0;
}
