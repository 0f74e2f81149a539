// The small model of check.h on a device of the emulated driver: pinned rows, slots that are read back, a reference for
// who is where, and steps of a seed.

#ifndef FFI_TESTS_CUDA_MODEL_H
#define FFI_TESTS_CUDA_MODEL_H

#include "check.h"
#include "emulator.h"

enum { POOLS = 2, SLOTS_MOST = 24 };

// The emulated driver is not watched. What it does with rows that threads of a bounce buffer have written is in their
// order, and the thread sanitizer cannot see why.
#ifdef __SANITIZE_THREAD__
enum { BOUNCES = 0 };
#else
enum { BOUNCES = 1 };
#endif

// Layer 1 is wider than the others.
static inline uint32_t pool_of(uint32_t layer) { return layer == 1 ? 0 : 1; }

typedef struct dice {
    uint64_t state;
} dice;

static inline uint32_t dice_below(dice *random, uint32_t bound) {
    random->state ^= random->state << 13;
    random->state ^= random->state >> 7;
    random->state ^= random->state << 17;
    return (uint32_t)(random->state >> 33) % bound;
}

// Host memory as an engine pins it by itself.
static inline void cuda_pin(cuda *driver, void *base, size_t bytes) {
    int (*host_register)(void *, size_t, unsigned);
    cuda_symbol(driver, "cuMemHostRegister_v2", &host_register);
    CUDA(host_register(base, bytes, 0));
}

static inline void cuda_unpin(cuda *driver, void *base) {
    int (*host_unregister)(void *);
    cuda_symbol(driver, "cuMemHostUnregister", &host_unregister);
    CUDA(host_unregister(base));
}

static inline ftcache_config cuda_config(int ordinal) {
    SIZED(ftcache_config, config);
    config.device = FTCACHE_DEVICE_CUDA;
    config.cuda_ordinal = (uint32_t)ordinal;
    config.cuda_driver = cuda_path();
    return config;
}

static inline ftcache_slot_span span_of(ftcache *cache, uint32_t pool, uint32_t bank) {
    SIZED(ftcache_slot_span, span);
    OK(ftcache_slot_span_get(cache, pool, bank, &span));
    return span;
}

// A slot of the layer's pool holds an expert's row in every bank. What fills it is done.
static inline void check_slot(cuda *driver, ftcache *cache, uint32_t layer, int32_t slot, uint32_t expert) {
    uint32_t bank;
    for (bank = 0; bank < BANKS; bank++) {
        const ftcache_slot_span span = span_of(cache, pool_of(layer), bank);
        unsigned char row[64];
        uint64_t at;
        CHECK(slot >= 0 && (uint32_t)slot < span.slot_count && span.row_bytes == row_bytes_of(layer, bank));
        cuda_read(driver, row, (unsigned char *)span.address + (uint64_t)slot * span.stride, span.row_bytes);
        for (at = 0; at < span.row_bytes; at++) CHECK(row[at] == byte_of(layer, bank, expert, at));
    }
}

// Who is where, the slow way: hits are stamped first, misses ascend, a victim is the least (stamp, slot) that this step
// has not stamped.
typedef struct reference {
    uint64_t step, hits, misses;
    uint32_t slot_counts[POOLS];
    struct { uint64_t stamp; uint32_t layer, expert; } slots[POOLS][SLOTS_MOST];
} reference;

static inline reference reference_of(ftcache *cache) {
    reference model;
    uint32_t pool;
    memset(&model, 0, sizeof model);
    for (pool = 0; pool < POOLS; pool++) model.slot_counts[pool] = span_of(cache, pool, 0).slot_count;
    return model;
}

static inline int32_t reference_find(const reference *model, uint32_t layer, uint32_t expert) {
    const uint32_t pool = pool_of(layer);
    uint32_t slot;
    for (slot = 0; slot < model->slot_counts[pool]; slot++) {
        if (model->slots[pool][slot].stamp > 0 && model->slots[pool][slot].layer == layer &&
            model->slots[pool][slot].expert == expert) return (int32_t)slot;
    }
    return -1;
}

static inline void reference_place(reference *model, uint32_t layer, uint32_t expert) {
    const uint32_t pool = pool_of(layer);
    uint32_t slot, victim = SLOTS_MOST;
    for (slot = 0; slot < model->slot_counts[pool]; slot++) {
        if (model->slots[pool][slot].stamp == model->step) continue;
        if (victim == SLOTS_MOST || model->slots[pool][slot].stamp < model->slots[pool][victim].stamp) victim = slot;
    }
    CHECK(victim < SLOTS_MOST);
    model->slots[pool][victim].stamp = model->step;
    model->slots[pool][victim].layer = layer;
    model->slots[pool][victim].expert = expert;
}

static inline void reference_step(reference *model, uint32_t layer, const int32_t *ids, uint32_t count,
                                  int32_t *slots) {
    int is_missing[EXPERTS] = {0};
    uint32_t i, expert;
    model->step++;
    for (i = 0; i < count; i++) {
        const int32_t slot = reference_find(model, layer, (uint32_t)ids[i]);
        if (slot < 0) {
            is_missing[ids[i]] = 1;
        } else if (model->slots[pool_of(layer)][slot].stamp != model->step) {
            model->slots[pool_of(layer)][slot].stamp = model->step;
            model->hits++;
        }
    }
    for (expert = 0; expert < EXPERTS; expert++) {
        if (!is_missing[expert]) continue;
        reference_place(model, layer, expert);
        model->misses++;
    }
    for (i = 0; i < count; i++) slots[i] = reference_find(model, layer, (uint32_t)ids[i]);
}

// Up to `distinct_most` distinct experts, some of them twice; low ids more often than others.
static inline uint32_t random_ids(dice *random, uint32_t distinct_most, int32_t *ids) {
    const uint32_t count = 1 + dice_below(random, 2 * distinct_most);
    int32_t chosen[EXPERTS];
    uint32_t i, distinct = 1 + dice_below(random, distinct_most);
    for (i = 0; i < distinct; i++) {
        const uint32_t first = dice_below(random, EXPERTS), second = dice_below(random, EXPERTS);
        chosen[i] = (int32_t)(first < second ? first : second);
    }
    for (i = 0; i < count; i++) ids[i] = chosen[dice_below(random, distinct)];
    return count;
}

// Streams of the caller's, with one of their own for copies or without.
static inline ftcache_streams cuda_streams(cuda *driver, int with_copy) {
    SIZED(ftcache_streams, streams);
    streams.compute = cuda_stream(driver);
    if (with_copy) streams.copy = cuda_stream(driver);
    return streams;
}

static inline void cuda_destroy_streams(cuda *driver, const ftcache_streams *streams) {
    CUDA(driver->stream_destroy(streams->compute));
    if (streams->copy != NULL) CUDA(driver->stream_destroy(streams->copy));
}

#endif
