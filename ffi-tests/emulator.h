// The emulated driver's own calls, for tests that count, that let something fail, or that ask what it objects to. See
// crates/ftcache-cuda-emu/src/client.rs, which has the same in Rust.

#ifndef FFI_TESTS_EMULATOR_H
#define FFI_TESTS_EMULATOR_H

#include "cuda_driver.h"

// What a device holds just now.
typedef struct emulator_counts {
    uint64_t allocations, allocated_bytes, peak_bytes;
    uint64_t registrations, registered_bytes, host_allocations;
    uint64_t streams, events, graphs, graph_execs, modules, contexts, primary_retains;
    uint64_t pageable_copies, queued;
} emulator_counts;

enum emulator_batch { BATCH_RIGHT, BATCH_WRONG_BYTES, BATCH_TOUCHES_NEIGHBOURS, BATCH_FAILS, BATCH_BLOCKS_BELOW };

typedef void (*emulator_sink)(void *data, const unsigned char *text, size_t bytes);

typedef struct emulator {
    void *library;
    void (*set_seed)(int, uint64_t);
    void (*set_memory_bytes)(int, uint64_t);
    // How batches of copies work: an emulator_batch, and the entry, code or bytes that it goes by.
    void (*set_batch)(int, uint32_t, uint64_t);
    void (*set_attribute)(int, int, int);
    // A call of this name fails once with a code, after so many more of its name, and does nothing.
    void (*fail_call)(int, const char *, uint64_t, int);
    // A copy, fill or launch fails when it runs, after so many more; every call in its context gives the code then.
    void (*fail_late)(int, uint64_t, int);
    // Calls of a name, or of all if it is NULL.
    uint64_t (*calls)(int, const char *);
    // Calls that had to wait for queued work.
    uint64_t (*blocking_calls)(int);
    void (*counts)(int, emulator_counts *);
    void (*reports)(int, uint32_t, emulator_sink, void *);
    // This thread was told, by means of the host, of all that others have waited for.
    void (*hand_over)(int);
} emulator;

static inline void emulator_symbol(const emulator *emulated, const char *name, void *target) {
    void *symbol = dlsym(emulated->library, name);
    CHECK(symbol != NULL);
    memcpy(target, &symbol, sizeof symbol);
}

static inline emulator emulator_open(void) {
    emulator emulated;
    memset(&emulated, 0, sizeof emulated);
    emulated.library = dlopen(cuda_path(), RTLD_NOW | RTLD_LOCAL);
    CHECK(emulated.library != NULL);
    emulator_symbol(&emulated, "ftcache_emu_set_seed", &emulated.set_seed);
    emulator_symbol(&emulated, "ftcache_emu_set_memory_bytes", &emulated.set_memory_bytes);
    emulator_symbol(&emulated, "ftcache_emu_set_batch", &emulated.set_batch);
    emulator_symbol(&emulated, "ftcache_emu_set_attribute", &emulated.set_attribute);
    emulator_symbol(&emulated, "ftcache_emu_fail_call", &emulated.fail_call);
    emulator_symbol(&emulated, "ftcache_emu_fail_late", &emulated.fail_late);
    emulator_symbol(&emulated, "ftcache_emu_calls", &emulated.calls);
    emulator_symbol(&emulated, "ftcache_emu_blocking_calls", &emulated.blocking_calls);
    emulator_symbol(&emulated, "ftcache_emu_counts", &emulated.counts);
    emulator_symbol(&emulated, "ftcache_emu_reports", &emulated.reports);
    emulator_symbol(&emulated, "ftcache_emu_hand_over", &emulated.hand_over);
    return emulated;
}

static inline emulator_counts emulator_counts_of(const emulator *emulated, int ordinal) {
    emulator_counts counts;
    emulated->counts(ordinal, &counts);
    return counts;
}

static inline void emulator_print(void *data, const unsigned char *text, size_t bytes) {
    fprintf(stderr, "  %.*s\n", (int)bytes, (const char *)text);
    ++*(int *)data;
}

// Races, violations and damage: there are none.
static inline void emulator_check(const emulator *emulated, int ordinal) {
    int count = 0;
    uint32_t kind;
    for (kind = 0; kind < 3; kind++) emulated->reports(ordinal, kind, emulator_print, &count);
    CHECK(count == 0);
}

// Nothing is left of what a test had on a device but so many retains of its primary context.
static inline void emulator_check_empty(const emulator *emulated, int ordinal, uint64_t retains) {
    const emulator_counts counts = emulator_counts_of(emulated, ordinal);
    CHECK(counts.allocations == 0 && counts.allocated_bytes == 0 && counts.registrations == 0);
    CHECK(counts.host_allocations == 0 && counts.streams == 0 && counts.events == 0 && counts.modules == 0);
    CHECK(counts.graphs == 0 && counts.graph_execs == 0 && counts.queued == 0);
    CHECK(counts.primary_retains == retains);
    emulator_check(emulated, ordinal);
}

#endif
