// Thousands of random steps against a slow and obvious LRU cache: hits are stamped first, misses go up by expert, and
// each takes the slot of the least (stamp, slot) that this step does not use. A cache that copies and one that only
// plans are driven alike; each slot, copy, map and row is compared, and the digests at every step.

#include "check.h"

enum { MOST_LAYERS = 4, MOST_EXPERTS = 64, MOST_SLOTS = 128, MOST_ROUTES = 160, STEPS = 1500 };

typedef struct shape {
    const char *name;
    uint32_t layer_count, expert_count, top_k, scope, bank_count;
    uint64_t slot_count;
    uint64_t row_bytes[MOST_LAYERS][2];
} shape;

static const shape shapes[] = {
    {"one pool for all", 3, 64, 8, FTCACHE_SCOPE_UNIFIED, 1, 100, {{16, 0}, {16, 0}, {16, 0}}},
    {"two widths", 4, 16, 4, FTCACHE_SCOPE_UNIFIED, 2, 26, {{24, 2}, {40, 2}, {24, 2}, {40, 2}}},
    {"least slots, a pool each", 3, 32, 4, FTCACHE_SCOPE_PER_LAYER, 2, 12, {{7, 0}, {7, 3}, {7, 3}}},
    {"everything fits", 2, 12, 3, FTCACHE_SCOPE_UNIFIED, 2, 24, {{8, 8}, {8, 8}}},
};

static const shape *model_shape;
static uint64_t random_state, step_number;

#define SAME(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition)) fprintf(stderr, "%s, step %llu\n", model_shape->name, (unsigned long long)step_number);      \
        CHECK(condition);                                                                                              \
    } while (0)

static uint32_t random_below(uint32_t bound) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % bound);
}

// The reference. An owner is layer * expert_count + expert, or -1.
typedef struct pool {
    uint32_t slot_count;
    int32_t owner[MOST_SLOTS];
    uint64_t stamp[MOST_SLOTS];
} pool;

static pool pools[MOST_LAYERS];
static uint32_t pool_of[MOST_LAYERS];
static uint64_t reference_step;
// What the statistics must come to.
static ftcache_stats totals;

typedef struct decision {
    int32_t slot_of[MOST_EXPERTS];
    ftcache_copy copies[MOST_EXPERTS];
    uint32_t distinct, misses, evictions;
} decision;

static int decide(uint32_t layer, uint32_t phase, const unsigned char *wanted, decision *out) {
    pool *of = &pools[pool_of[layer]];
    unsigned char used[MOST_SLOTS] = {0};
    uint32_t expert, slot;
    memset(out, 0, sizeof *out);
    for (expert = 0; expert < model_shape->expert_count; expert++) {
        out->slot_of[expert] = -1;
        out->distinct += wanted[expert];
    }
    if (out->distinct > of->slot_count) return 0;
    reference_step++;
    for (slot = 0; slot < of->slot_count; slot++) {
        if (of->owner[slot] < 0 || (uint32_t)of->owner[slot] / model_shape->expert_count != layer) continue;
        expert = (uint32_t)of->owner[slot] % model_shape->expert_count;
        if (!wanted[expert]) continue;
        out->slot_of[expert] = (int32_t)slot;
        used[slot] = 1;
        if (phase == FTCACHE_PHASE_DECODE) of->stamp[slot] = reference_step;
    }
    for (expert = 0; expert < model_shape->expert_count; expert++) {
        uint32_t victim = of->slot_count;
        if (!wanted[expert] || out->slot_of[expert] >= 0) continue;
        for (slot = 0; slot < of->slot_count; slot++) {
            if (!used[slot] && (victim == of->slot_count || of->stamp[slot] < of->stamp[victim])) victim = slot;
        }
        out->evictions += of->owner[victim] >= 0;
        of->owner[victim] = (int32_t)(layer * model_shape->expert_count + expert);
        of->stamp[victim] = phase == FTCACHE_PHASE_PREFILL ? 1 : reference_step;
        used[victim] = 1;
        out->slot_of[expert] = (int32_t)victim;
        out->copies[out->misses].slot = victim;
        out->copies[out->misses++].row = expert;
    }
    return 1;
}

// Drafts that came in with their step and were rejected are the first to go after free slots; those that were resident
// stay as they were.
static void accept(uint32_t layer, const decision *step, const uint32_t *experts, uint32_t count) {
    pool *of = &pools[pool_of[layer]];
    uint32_t i;
    reference_step++;
    for (i = 0; i < step->misses; i++) of->stamp[step->copies[i].slot] = 1;
    for (i = 0; i < count; i++) of->stamp[step->slot_of[experts[i]]] = reference_step;
}

static void free_slot(pool *of, uint32_t slot) {
    of->owner[slot] = -1;
    of->stamp[slot] = 0;
}

// Rows on the host, and where the planner's engine has put them: its own owners of each slot.
static unsigned char rows[MOST_LAYERS][2][MOST_EXPERTS * 48];
static int32_t placed[MOST_LAYERS][MOST_SLOTS];

static unsigned char row_byte(uint32_t layer, uint32_t bank, uint32_t expert, uint64_t at) {
    return (unsigned char)(layer * 131 + bank * 71 + expert * 29 + (at + 1) * (expert + 3));
}

static ftcache_configuration *shape_configuration(void) {
    ftcache_model_config config = {sizeof config, model_shape->layer_count, model_shape->expert_count,
                                   model_shape->top_k, 1, 0};
    ftcache_settings settings = settings_of(model_shape->slot_count);
    ftcache_model *model = NULL;
    ftcache_configuration *configuration = NULL;
    uint32_t layer;
    OK(ftcache_model_new(&config, &model));
    for (layer = 0; layer < model_shape->layer_count; layer++) {
        const ftcache_layer key = {sizeof key, model_shape->bank_count, model_shape->row_bytes[layer], NULL, 0};
        OK(ftcache_model_layer_set(model, layer, &key));
    }
    settings.scope = model_shape->scope;
    OK(ftcache_configuration_new(model, &settings, &configuration));
    ftcache_model_free(model);
    return configuration;
}

// Each bank at a stride of its own, and not aligned.
static void attach_shape(ftcache *cache) {
    uint32_t layer, bank, expert;
    uint64_t at;
    for (layer = 0; layer < model_shape->layer_count; layer++) {
        for (bank = 0; bank < model_shape->bank_count; bank++) {
            SIZED(ftcache_host_rows, host);
            const uint64_t bytes = model_shape->row_bytes[layer][bank];
            if (bytes == 0) continue;
            host.base = rows[layer][bank] + 1;
            host.bytes = sizeof rows[layer][bank] - 1;
            host.stride = bytes + layer + bank;
            for (expert = 0; expert < model_shape->expert_count; expert++) {
                for (at = 0; at < bytes; at++) {
                    rows[layer][bank][1 + expert * host.stride + at] = row_byte(layer, bank, expert, at);
                }
            }
            OK(ftcache_attach(cache, layer, bank, &host));
        }
    }
}

static int row_lies_in(ftcache *cache, uint32_t layer, uint32_t slot, uint32_t expert) {
    uint32_t bank;
    uint64_t at;
    for (bank = 0; bank < model_shape->bank_count; bank++) {
        SIZED(ftcache_slot_span, span);
        OK(ftcache_slot_span_get(cache, pool_of[layer], bank, &span));
        if (span.row_bytes != model_shape->row_bytes[layer][bank]) return 0;
        for (at = 0; at < span.row_bytes; at++) {
            const unsigned char *row = (const unsigned char *)span.address + slot * span.stride;
            if (row[at] != row_byte(layer, bank, expert, at)) return 0;
        }
    }
    return 1;
}

// The routes of a step in one of the forms that they may come in.
typedef struct form {
    ftcache_routes routes;
    ftcache_slots slots;
    uint32_t row_count, row_width;
    int64_t ids[MOST_ROUTES];
    unsigned char id_memory[MOST_ROUTES * 24], slot_memory[MOST_ROUTES * 24];
} form;

static void put(unsigned char *at, uint32_t bytes, int64_t value) {
    const int32_t narrow = (int32_t)value;
    memcpy(at, bytes == 8 ? (const void *)&value : (const void *)&narrow, bytes);
}

static void new_form(form *out, unsigned char *wanted) {
    const uint32_t id_bytes = random_below(2) ? 4 : 8, slot_bytes = random_below(2) ? 4 : 8, skew = random_below(2);
    const uint32_t id_gap = random_below(9), slot_gap = random_below(9);
    uint32_t row, at, shift = random_below(2);
    memset(out, 0, sizeof *out);
    memset(wanted, 0, MOST_EXPERTS);
    out->row_count = random_below(8) == 0 ? 1 + random_below(16) : 1 + random_below(2);
    out->row_width = 1 + random_below(model_shape->top_k);
    out->routes.struct_size = sizeof out->routes;
    out->routes.id_bytes = id_bytes == 4 && random_below(2) ? 0 : id_bytes;
    out->routes.ids = out->id_memory + shift;
    out->routes.row_count = out->row_count;
    out->routes.row_width = out->row_width;
    out->routes.row_stride_bytes = id_gap ? out->row_width * id_bytes + id_gap : 0;
    out->routes.has_absent = random_below(2);
    out->routes.absent_id = random_below(2) ? -1 : (int64_t)model_shape->expert_count + random_below(5);
    out->slots.struct_size = sizeof out->slots;
    out->slots.slot_bytes = slot_bytes;
    out->slots.slots = out->slot_memory + shift;
    out->slots.row_stride_bytes = slot_gap ? out->row_width * slot_bytes + slot_gap : 0;
    out->slots.absent_slot = random_below(2) ? -1 : 1000000 + (int64_t)random_below(5);
    out->slots.cpu_slot = -2;
    memset(out->slot_memory, 0xa5, sizeof out->slot_memory);
    for (row = 0; row < out->row_count; row++) {
        for (at = 0; at < out->row_width; at++) {
            const uint32_t a = random_below(model_shape->expert_count), b = random_below(model_shape->expert_count);
            int64_t id = skew && b < a ? b : a;
            if (out->routes.has_absent && random_below(5) == 0) id = out->routes.absent_id;
            else wanted[id] = 1;
            out->ids[row * out->row_width + at] = id;
            put(out->id_memory + shift + row * (out->row_width * id_bytes + id_gap) + at * id_bytes, id_bytes, id);
        }
    }
}

// Bytes from slots->slots to a route's slot.
static uint64_t slot_place(const form *given, uint32_t route) {
    const uint64_t row_bytes = given->row_width * given->slots.slot_bytes;
    const uint64_t stride = given->slots.row_stride_bytes ? given->slots.row_stride_bytes : row_bytes;
    return route / given->row_width * stride + route % given->row_width * given->slots.slot_bytes;
}

// Whether each route has its slot, and nothing else was written.
static int answers(const form *given, const decision *wanted) {
    unsigned char expected[sizeof given->slot_memory];
    const uint64_t shift = (uint64_t)((unsigned char *)given->slots.slots - given->slot_memory);
    uint32_t i;
    memset(expected, 0xa5, sizeof expected);
    for (i = 0; i < given->row_count * given->row_width; i++) {
        const int absent = given->routes.has_absent && given->ids[i] == given->routes.absent_id;
        put(expected + shift + slot_place(given, i), given->slots.slot_bytes,
            absent ? given->slots.absent_slot : wanted->slot_of[given->ids[i]]);
    }
    return memcmp(expected, given->slot_memory, sizeof expected) == 0;
}

// The plan as the reference decided it; runs cover its copies, go up by row, and no two could be one.
static void check_plan(ftcache *cache, uint32_t layer, const decision *wanted, uint32_t is_open) {
    SIZED(ftcache_plan, plan);
    int32_t map[MOST_EXPERTS];
    uint64_t run, of_run, covered = 0;
    uint32_t expert;
    OK(ftcache_plan_get(cache, &plan));
    SAME(plan.layer == layer && plan.pool == pool_of[layer] && plan.is_open == is_open && plan.is_repeat == 0);
    SAME(plan.distinct_count == wanted->distinct && plan.miss_count == wanted->misses);
    SAME(plan.eviction_count == wanted->evictions && plan.copy_count == wanted->misses && plan.left_count == 0);
    SAME(plan.copy_count == 0 || memcmp(plan.copies, wanted->copies, plan.copy_count * sizeof *plan.copies) == 0);
    for (run = 0; run < plan.run_count; run++) {
        const ftcache_run *at = &plan.runs[run];
        if (run > 0) {
            const ftcache_run *last = at - 1;
            SAME(at->row >= last->row + last->count);
            SAME(at->row != last->row + last->count || at->slot != last->slot + last->count);
        }
        for (of_run = 0; of_run < at->count; of_run++, covered++) {
            SAME(wanted->slot_of[at->row + of_run] == (int32_t)(at->slot + of_run));
        }
    }
    SAME(covered == plan.copy_count);
    OK(ftcache_plan_map(cache, map, model_shape->expert_count, -9));
    for (expert = 0; expert < model_shape->expert_count; expert++) {
        SAME(map[expert] == (wanted->slot_of[expert] < 0 ? -9 : wanted->slot_of[expert]));
    }
}

static void count(uint32_t layer, const form *given, const decision *decided) {
    uint32_t i, bank;
    unsigned char missed[MOST_EXPERTS] = {0};
    for (i = 0; i < decided->misses; i++) missed[decided->copies[i].row] = 1;
    totals.steps++;
    totals.distinct += decided->distinct;
    totals.misses += decided->misses;
    totals.hits += decided->distinct - decided->misses;
    totals.fetched += decided->misses;
    totals.evictions += decided->evictions;
    for (i = 0; i < given->row_count * given->row_width; i++) {
        if (given->routes.has_absent && given->ids[i] == given->routes.absent_id) continue;
        totals.routes++;
        totals.hit_routes += !missed[given->ids[i]];
    }
    for (bank = 0; bank < model_shape->bank_count; bank++) {
        totals.bytes += decided->misses * model_shape->row_bytes[layer][bank];
    }
}

// All but the causes of misses, of which the reference knows nothing.
static int counted_as(ftcache *cache, uint64_t bytes) {
    ftcache_stats stats = stats_of(cache), wanted = totals;
    if (stats.cold_misses + stats.capacity_misses + stats.freed_misses != stats.misses) return 0;
    stats.cold_misses = stats.capacity_misses = stats.freed_misses = 0;
    wanted.struct_size = sizeof wanted;
    wanted.bytes = bytes;
    return memcmp(&stats, &wanted, sizeof wanted) == 0;
}

static void one_step(ftcache *loaded, ftcache *planned) {
    const uint32_t layer = random_below(model_shape->layer_count);
    ftcache_step step = step_of(layer);
    unsigned char wanted[MOST_EXPERTS];
    uint32_t accepted[MOST_EXPERTS], accepted_count = 0, expert, i;
    decision decided;
    form given;
    new_form(&given, wanted);
    step.phase = random_below(4) ? FTCACHE_PHASE_DECODE : random_below(3);
    if (!decide(layer, step.phase, wanted, &decided)) {
        char message[128];
        snprintf(message, sizeof message, "layer %u routes to %u distinct experts; pool %u has %u slots", layer,
                 decided.distinct, pool_of[layer], pools[pool_of[layer]].slot_count);
        REFUSED(ftcache_load(loaded, &step, &given.routes, NULL, &given.slots), STEP_TOO_WIDE, message);
        REFUSED(ftcache_admit(planned, &step, &given.routes, &given.slots), STEP_TOO_WIDE, message);
        totals.refused++;
        return;
    }
    count(layer, &given, &decided);
    OK(ftcache_admit(planned, &step, &given.routes, &given.slots));
    SAME(answers(&given, &decided));
    check_plan(planned, layer, &decided, 1);
    for (i = 0; i < decided.misses; i++) {
        placed[pool_of[layer]][decided.copies[i].slot] =
            (int32_t)(layer * model_shape->expert_count + decided.copies[i].row);
    }
    OK(ftcache_commit(planned));
    if (given.slots.slot_bytes == (given.routes.id_bytes ? given.routes.id_bytes : 4) && random_below(2)) {
        // In place: the slots take the ids' own memory, and what lies between rows stays.
        memset(given.slot_memory, 0xa5, sizeof given.slot_memory);
        for (i = 0; i < given.row_count * given.row_width; i++) {
            put((unsigned char *)given.slots.slots + slot_place(&given, i), given.slots.slot_bytes, given.ids[i]);
        }
        given.routes.ids = given.slots.slots;
        given.routes.row_stride_bytes = given.slots.row_stride_bytes;
    } else {
        memset(given.slot_memory, 0xa5, sizeof given.slot_memory);
    }
    OK(ftcache_load(loaded, &step, &given.routes, NULL, &given.slots));
    SAME(answers(&given, &decided));
    check_plan(loaded, layer, &decided, 0);
    for (expert = 0; expert < model_shape->expert_count; expert++) {
        const int32_t slot = decided.slot_of[expert];
        if (slot < 0) continue;
        SAME(placed[pool_of[layer]][slot] == (int32_t)(layer * model_shape->expert_count + expert));
        SAME(row_lies_in(loaded, layer, (uint32_t)slot, expert));
        if (step.phase == FTCACHE_PHASE_VERIFY && random_below(2)) accepted[accepted_count++] = expert;
    }
    if (step.phase == FTCACHE_PHASE_VERIFY) {
        accept(layer, &decided, accepted, accepted_count);
        OK(ftcache_accept(loaded, layer, accepted, accepted_count));
        OK(ftcache_accept(planned, layer, accepted, accepted_count));
    }
}

// Every slot is whose the reference says.
static void check_owners(ftcache *cache) {
    uint32_t pool, slot;
    for (pool = 0; pool < MOST_LAYERS; pool++) {
        for (slot = 0; slot < pools[pool].slot_count; slot++) {
            const int32_t wanted = pools[pool].owner[slot];
            SIZED(ftcache_slot_owner, owner);
            OK(ftcache_slot_owner_get(cache, pool, slot, &owner));
            SAME(owner.is_there == (wanted >= 0));
            SAME(wanted < 0 || owner.layer * model_shape->expert_count + owner.expert == (uint32_t)wanted);
        }
    }
}

static void forget_something(ftcache *loaded, ftcache *planned) {
    const uint32_t what = random_below(12), layer = random_below(model_shape->layer_count), pool_id = pool_of[layer];
    uint32_t i, slot;
    if (what > 1) {
        slot = random_below(pools[pool_id].slot_count);
        free_slot(&pools[pool_id], slot);
        OK(ftcache_forget(loaded, pool_id, slot));
        OK(ftcache_forget(planned, pool_id, slot));
        return;
    }
    for (i = 0; i < MOST_LAYERS; i++) {
        for (slot = 0; slot < pools[i].slot_count; slot++) {
            const uint32_t owner = (uint32_t)pools[i].owner[slot];
            if (what == 1 || owner / model_shape->expert_count == layer) free_slot(&pools[i], slot);
        }
    }
    OK(what ? ftcache_reset(loaded) : ftcache_forget_layer(loaded, layer));
    OK(what ? ftcache_reset(planned) : ftcache_forget_layer(planned, layer));
}

static void run(const shape *of, uint64_t seed) {
    ftcache_configuration *configuration;
    ftcache *loaded, *planned, *stale;
    uint32_t layer, slot;
    model_shape = of;
    random_state = seed;
    reference_step = 0;
    configuration = shape_configuration();
    memset(pools, 0, sizeof pools);
    memset(&totals, 0, sizeof totals);
    for (layer = 0; layer < of->layer_count; layer++) {
        SIZED(ftcache_pool_report, report);
        OK(ftcache_configuration_layer_pool(configuration, layer, &pool_of[layer]));
        OK(ftcache_configuration_pool_get(configuration, pool_of[layer], &report));
        CHECK(report.slot_count <= MOST_SLOTS);
        pools[pool_of[layer]].slot_count = report.slot_count;
        for (slot = 0; slot < MOST_SLOTS; slot++) free_slot(&pools[pool_of[layer]], slot);
    }
    loaded = cache_of(configuration, NULL);
    planned = planner_of(shape_configuration());
    stale = planner_of(shape_configuration());
    attach_shape(loaded);
    SAME(digest_of(loaded) == digest_of(planned));
    for (step_number = 0; step_number < STEPS; step_number++) {
        const uint64_t before = digest_of(loaded);
        SAME(before == digest_of(planned));
        if (random_below(40) == 0) forget_something(loaded, planned);
        else one_step(loaded, planned);
        if (step_number % 50 == 0) check_owners(step_number % 100 == 0 ? loaded : planned);
    }
    SAME(digest_of(loaded) == digest_of(planned) && digest_of(loaded) != digest_of(stale));
    SAME(counted_as(loaded, totals.bytes) && counted_as(planned, totals.bytes));
    SAME(totals.hits > 100 && (totals.refused > 0) == (of->slot_count < 50 && totals.evictions > 0));
    ftcache_free(loaded);
    ftcache_free(planned);
    ftcache_free(stale);
}

int main(void) {
    uint64_t i, seed;
    for (seed = 1; seed <= 2; seed++) {
        for (i = 0; i < sizeof shapes / sizeof *shapes; i++) run(&shapes[i], seed * 1000003);
    }
    return 0;
}
