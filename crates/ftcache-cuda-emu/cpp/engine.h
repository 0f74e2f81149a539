// What runs launches: an engine runs one at a time, on the thread that asks. Engines share nothing.
//
// `fibers.cpp` has the threads of a block and where they meet, `memory.cpp` what they may touch and whether they race,
// `kernels.cpp` the list of kernels and what Rust calls.
#pragma once

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "device.h"

namespace ftcache::emu {

constexpr u32 THREADS_MAX = 1024;
constexpr u32 WARPS_MOST = THREADS_MAX / 32;
constexpr u32 SHARED_MAX = 48 * 1024;
// Between objects of shared memory and around them.
constexpr u32 ZONE = 64;
constexpr u32 OBJECTS_MAX = 16;
constexpr u32 ARENA_BYTES = SHARED_MAX + (OBJECTS_MAX + 2) * 2 * ZONE;
constexpr u32 REPORTS_MAX = 8;
constexpr u32 REPORT_BYTES = 512;
constexpr u32 NOBODY_RUNS = ~0u;

// Memory that a launch may touch: rows at a stride. As Rust has it in `kernels.rs`.
struct Range {
    u64 base;
    u64 row_bytes;
    u64 stride;
    u64 rows;
    u32 access;
    // Of a word that the launch waits for: what it waits for.
    u32 value;
    const char* name;

    u64 end() const { return base + (rows - 1) * stride + row_bytes; }
    bool holds(u64 address, u64 bytes) const {
        const u64 offset = address - base;
        if (rows == 1) {
            return offset < row_bytes && bytes <= row_bytes - offset;
        }
        return offset < (rows - 1) * stride + row_bytes && offset % stride + bytes <= row_bytes;
    }
};

// A launch and what came of it. As Rust has them in `kernels.rs`.
struct Request {
    u32 kernel;
    u32 blocks;
    u32 threads;
    u32 shared_bytes;
    u64 seed;
    u64 patience_ns;
    const void* args;
    const Range* ranges;
    u64 range_count;
    // Barriers that do nothing, a bit each.
    u64 skipped[4];
};

struct Outcome {
    // The most that one block has passed.
    u64 barriers;
    u64 barrier_ids[4];
    u32 report_count;
    // Reports that were too many.
    u32 more;
    // It did not come to its end.
    u32 ended;
    u32 reserved;
};

enum class At : u8 { READY, BARRIER, WARP_CALL, PAUSED, RETURNED };

struct Fiber {
    void* stack;
    At at;
};

struct Warp {
    u32 arrived;
    Call call;
    u32 line;
    // Grows with each warp_sync: what orders the lanes' accesses.
    u32 epoch;
    u32 values[32];
    u32 extras[32];
    u32 results[32];
};

// Who of one warp has touched a place since the last barrier of the block, and since the last warp_sync.
struct Slot {
    u32 epoch;
    u16 thread;
    u8 ever;
    u8 now;
};

// Accesses to one place. Two slots, of different warps, are enough: accesses by a third warp that are in no conflict
// are of the same kind as those by the two, and whatever conflicts with them conflicts with one of the two as well.
struct Cells {
    // The epoch of the block when it was last touched; epochs are never used twice, so an old one means untouched.
    u32 epoch;
    // How earlier blocks of the launch, and this block so far, have touched it.
    u8 before, kinds;
    Slot slots[2];
};

constexpr u32 PAGE = 256;
constexpr u32 WORDS = PAGE / 4;

struct Bytes {
    Cells cells[PAGE];
};

// What was touched of 256 bytes: by words, or by quads while nothing smaller is touched; and by bytes, where it was.
struct Page {
    u64 key;
    u32 launch;
    u8 unit;
    bool has_bytes;
    Bytes* bytes;
    Cells words[WORDS];
};

// Pages by address.
struct PageTable {
    struct Recent {
        u64 key;
        Page* page;
    };
    static constexpr u32 RECENT = 512;

    Page** slots;
    u64 capacity;
    u64 count;
    Recent recent[RECENT];
};

struct Object {
    const char* key;
    u32 offset;
    u32 bytes;
};

struct Engine {
    Request request;
    Outcome outcome;
    const char* name;
    void (*body)(const void* args);

    // Threads of the block.
    u8* stacks;
    u64 stack_pitch;
    u32 block;
    u32 running;
    void* home;
    u32 ready_count, paused_count, returned_count, waiting_count;
    u16 ready[THREADS_MAX];
    u16 paused[THREADS_MAX];
    u32 barrier_id;
    u32 barrier_thread;
    u64 block_barriers;
    // Who goes on: one of so many that were ready last; and whether warps are mixed at a barrier.
    u32 window;
    bool by_warps;
    u64 random;
    u64 waiting_since_ns;
    Fiber fibers[THREADS_MAX];
    Warp warps[WARPS_MOST];

    // Memory.
    u64 range_count;
    Range* ranges;
    u64* reach;
    u32 recent_range[64];
    u32 epoch, block_epoch, launch_epoch, launch;
    // What was remembered before this epoch counts for nothing: the block's first one for its shared memory.
    u32 floor_epoch;
    u32 race_count;
    u32 object_count;
    u32 arena_used;
    Object objects[OBJECTS_MAX];
    u8 tile[256];
    PageTable pages;
    Page* shared_pages;
    alignas(256) u8 arena[ARENA_BYTES];

    char reports[REPORTS_MAX][REPORT_BYTES];

    u64 next_random() {
        random += 0x9E3779B97F4A7C15ull;
        u64 mixed = (random ^ (random >> 30)) * 0xBF58476D1CE4E5B9ull;
        mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBull;
        return mixed ^ (mixed >> 31);
    }
    u32 below(u32 count) { return static_cast<u32>((next_random() >> 32) * count >> 32); }
};

// The engine that runs on this thread, or null.
Engine* current();
// The launch as reports begin.
void report(Engine& engine, const char* format, ...) __attribute__((format(printf, 2, 3)));
// Leaves the thread that runs, and the launch.
[[noreturn]] void end_launch(Engine& engine);

// memory.cpp
void begin_memory(Engine& engine);
void begin_block_memory(Engine& engine);
void end_block_memory(Engine& engine);
void free_memory(Engine& engine);

// fibers.cpp
Engine* new_engine();
void free_engine(Engine* engine);
void run(Engine& engine);

}  // namespace ftcache::emu
