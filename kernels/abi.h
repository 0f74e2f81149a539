// What crosses from the host to kernels: tables in device memory, and the arguments of each launch. The host has the
// same types in `ftcache-transfer`, `on_device/abi.rs`; a test compares every size and offset.
//
// Numbers of experts are local to a layer unless they are called flat (layer * expert_count + expert); numbers of slots
// are local to a pool unless they are called global (the pool's first slot + slot).
#pragma once

#include "device.h"

namespace ftcache {

// A place below this is a slot; from ABSENT_FIRST on it says why an expert is in none (`residency`, map.rs).
constexpr u32 PLACE_LIMIT = 0xFFFFFFF0u;
constexpr u32 ABSENT_FIRST = 0xFFFFFFF8u;
constexpr u32 ABSENCE_COUNT = 6;
enum Absence : u32 { NEVER_ROUTED = 0, EVICTED = 1, STAGED = 2, FREED = 3, ON_CPU = 4, IN_FLIGHT = 5 };
// The owner of a slot that is free.
constexpr u32 NOBODY = 0xFFFFFFFFu;
// The stamp of slots that go right after the free ones.
constexpr u64 COLD = 1;
// The last step that can be counted.
constexpr u64 LAST_STEP = 0xFFFFFFFFFFFFFFFEull;
// `Header::generation` while the residency is the host's.
constexpr u64 WITH_HOST = 0xFFFFFFFFFFFFFFFFull;

// Layers of up to so many experts have an admission's workspace in shared memory, of so many bytes an expert.
constexpr u32 SHARED_EXPERTS = 1024;
constexpr u32 WORKSPACE_BYTES = 28;

// Shares of a layer's uses: by the decayed counts of so many halves, and by what followed (`policy::ScoreNumbers`).
constexpr u32 HALVES = 6;
constexpr u32 COMPONENTS = 7;
// An expert remembers so many steps right after it, of no more experts than these.
constexpr u32 RING_STEPS = 8;
constexpr u32 RING_WIDTH = 16;

enum Phase : u32 { DECODE = 0, VERIFY = 1, PREFILL = 2, PHASE_COUNT = 3 };

// Counters of one layer and phase, in the order of `residency::Stats`.
enum Counter : u32 {
    STEPS, ROUTES, HIT_ROUTES, DISTINCT, MISSES, FETCHED, EVICTIONS, COLD_MISSES, CAPACITY_MISSES, STAGING_MISSES,
    FREED_MISSES, CPU_MISSES, REFUSED, COUNTER_COUNT
};

enum FaultCode : u32 {
    NO_FAULT = 0,
    // A route is neither an expert nor absent: its position and value; `given` experts there are.
    UNKNOWN_EXPERT = 1,
    // More distinct experts (`needed`) than slots that the step may have (`given`).
    STEP_TOO_WIDE = 2,
    // The launch is of generation `value`, the cache of `needed`: it was rebuilt since.
    STALE_GENERATION = 3,
    // The residency is the host's.
    HOST_MODE = 4,
    // No further step can be counted.
    LAST_STEP_REACHED = 5,
    // The host has not raised the word that was waited for: it is at `given` and not at `needed`.
    WORD_TIMEOUT = 6,
    // A layer is to be staged in a buffer that lies on slots, of which `given` are withheld and not `needed`.
    NO_CHUNK = 7,
};

// What was wrong with launches, in pinned host memory. `count` is the device's and `told` the host's: while they are
// alike, all is told, and the next launch that is refused writes the rest before it counts itself.
struct Fault {
    u32 code;
    u32 layer;
    // Launches that were refused, ever.
    u64 count;
    u64 step;
    u64 position;
    i64 value;
    u64 needed;
    u64 given;
    // Of these, those that the host knows of.
    u64 told;
};

// Lives as long as the cache, so that a launch of an earlier generation finds it.
struct Header {
    u64 generation;
    // The last step.
    u64 step;
    Pointer<Fault> fault;
    u64 reserved;
};

struct PoolState {
    // Slots in use that are never victims.
    u32 pinned_count;
    // Experts of the pool's layers that are pinned once in a slot.
    u32 marked_count;
    // Slots below this are free and not handed out.
    u32 withheld;
    u32 reserved;
};

// One row to one place: `target` and `source` are rows or slots, as the banks they are used with say.
struct Entry {
    u32 target;
    u32 source;
};

// What an admission decided, beside its copies.
struct PlanHead {
    u32 copy_count;
    u32 distinct;
    u32 misses;
    // Misses left to the CPU.
    u32 left;
    u64 step;
    u64 reserved;
};

// Who is where, in device memory.
struct Tables {
    Pointer<Header> header;   // all of what follows only if its generation is the launch's
    Pointer<u32> place;       // [flat expert]
    Pointer<u64> active;      // [flat expert]: the last hybrid step that routed to it
    Pointer<u64> routed;      // [flat expert]: routes to it
    Pointer<u8> marked;       // [flat expert]: pinned once in a slot
    Pointer<u32> carried;     // [layer]: 65,536ths of a miss
    Pointer<u64> stats;       // [layer * PHASE_COUNT + phase][COUNTER_COUNT]
    Pointer<PlanHead> plans;  // [layer]
    Pointer<Entry> copies;    // [flat expert]: of each layer as many as it has experts; target slot, source row
    Pointer<u64> stamp;       // [global slot]: 0 is free
    Pointer<u32> owner;       // [global slot]: flat expert or NOBODY
    Pointer<u8> pinned;       // [global slot]
    Pointer<PoolState> pools; // [pool]
    u32 layer_count;
    u32 expert_count;
    u32 slot_count; // of all pools
    u32 pool_count;
};

// What victims go by under other rules than LRU, in device memory, as `policy::ScoreNumbers` has it. From `latest` to
// `followed` null under rules that do not learn; all null under LRU, which is rule 0.
struct Scores {
    Pointer<u32> weights;       // [component]
    Pointer<u32> turns;         // [layer]
    Pointer<u32> counts;        // [flat expert][half]
    Pointer<u64> totals;        // [layer][component]
    Pointer<u64> gains;         // [layer][component]
    Pointer<u16> latest;        // [layer][RING_WIDTH]
    Pointer<u8> latest_widths;  // [layer]
    Pointer<u16> ring_experts;  // [flat expert][RING_STEPS][RING_WIDTH]
    Pointer<u8> ring_widths;    // [flat expert][RING_STEPS]
    Pointer<u8> ring_next;      // [flat expert]
    Pointer<u32> followed;      // [flat expert]
    Pointer<u64> keys;          // [global slot]: room for an admission
    u32 log_halves[HALVES];
    u32 half_count;
    u32 rule;
    u32 learns;
    u32 looks_at_distance;
};

struct PoolRange {
    u32 pool;
    // Global number of its slot 0.
    u32 first;
    u32 slot_count;
    u32 reserved;
};

// Ids in an engine's memory: `row_count` rows, `row_stride` bytes apart, of `per_row` neighbouring ids.
struct Routes {
    Pointer<u8> base;
    u64 row_count;
    u64 row_stride;
    u32 per_row;
    // 4 or 8, signed.
    u32 id_bytes;
    // A route that is not for this device; looked at if has_absent.
    i64 absent;
    u32 has_absent;
    u32 reserved;
};

// Where the answer goes, in ids of the routes' width. It may be the routes themselves.
struct Answers {
    Pointer<u8> base;
    u64 row_stride;
    i64 cpu;
    i64 absent;
    // For each expert of the layer its slot or -1, or null.
    Pointer<i32> map;
};

struct Admission {
    Tables tables;
    u64 generation;
    PoolRange pool;
    u32 layer;
    u32 phase;
    Routes routes;
    Answers answers;
    // WORKSPACE_BYTES an expert, where they are more than SHARED_EXPERTS.
    Pointer<u8> scratch;
};

enum FetchRuleKind : u32 { UP_TO = 0, MIN_WAIT = 1, PREFER_FETCH = 2, CARRY = 3 };
enum FetchOrderKind : u32 { BY_RECENCY = 0, LOWEST_ID = 1 };

struct FetchRule {
    u32 rule;
    u32 order;
    // Of UP_TO: how many. Of the others: 65,536ths.
    u32 number;
    // At most so many.
    u32 most;
};

// Numbers of the engine's, one for each route, split by where the route is computed: each of `bytes` (0: none, else 2
// or 4) is copied to the side that computes the route, and zero written to the other. Either target may be null, or be
// the source.
struct Weights {
    Pointer<u8> source;
    u64 source_stride;
    Pointer<u8> device;
    u64 device_stride;
    Pointer<u8> cpu;
    u64 cpu_stride;
    u32 bytes;
    u32 reserved;
};

struct HybridAdmission {
    Admission admission;
    FetchRule fetch;
    // For each route the expert that the CPU computes, or `cpu_none`, in ids of the routes' width; or null.
    Pointer<u8> cpu_ids;
    u64 cpu_ids_stride;
    i64 cpu_none;
    Weights weights;
};

// The same under a rule with scores.
struct ScoredAdmission {
    Admission admission;
    Scores scores;
};

struct ScoredHybridAdmission {
    HybridAdmission hybrid;
    Scores scores;
};

// One bank as a gather sees it. `row_bytes` 0: there are no rows.
struct BankRows {
    Pointer<u8> source;
    u64 source_stride;
    Pointer<u8> target;
    u64 target_stride;
    u64 row_bytes;
    // Entries are below these.
    u32 source_rows;
    u32 target_rows;
};

// Rows of every bank, as a list on the device says.
struct Gather {
    Pointer<Header> header;
    u64 generation;
    // How many entries there are, on the device; no more than `entry_max` are done.
    Pointer<u32> entry_count;
    Pointer<Entry> entries;
    Pointer<BankRows> banks;
    u32 bank_count;
    u32 entry_max;
    u32 layer;
    u32 reserved;
};

// A wait for the host before the copies of a layer's last admission, if there are any.
struct Await {
    Tables tables;
    u64 generation;
    PoolRange pool;
    u32 layer;
    // The word is to be at this value or past it, counted around the end of 32 bits.
    u32 word_value;
    Pointer<u32> word;
    // How often it is looked at.
    u64 patience;
};

// A pool of which so many slots are withheld while a chunk is open, since a buffer lies on them; 0: none does.
struct Guard {
    u32 pool;
    u32 withheld;
};

// The hits and misses of a layer that is to be staged: hits from slots to rows, misses from rows to rows, both
// ascending.
struct CompactHits {
    Tables tables;
    u64 generation;
    Guard guard;
    u32 layer;
    u32 reserved;
    Pointer<u32> hit_count;
    Pointer<Entry> hits;
    Pointer<u32> miss_count;
    Pointer<Entry> misses;
};

// One bank as a layer is brought into one piece.
struct StageBank {
    Pointer<u8> host;
    u64 host_stride;
    // Slot 0 of the layer's pool.
    Pointer<u8> slots;
    u64 slot_stride;
    Pointer<u8> target;
    u64 target_stride;
    u64 row_bytes;
    u32 slot_count;
    // All rows come from the host.
    u32 whole;
};

// Every row of a layer, from its slot if it has one, else from the host.
struct Materialize {
    Pointer<Header> header;
    u64 generation;
    Pointer<PoolState> pools;
    Guard guard;
    // Of the layer: [expert].
    Pointer<u32> place;
    Pointer<StageBank> banks;
    u32 expert_count;
    u32 bank_count;
    u32 layer;
    u32 reserved;
};

// Frees `count` slots of a pool from `from` on, and says how many of its slots are withheld from now on.
struct Invalidate {
    Tables tables;
    u64 generation;
    PoolRange pool;
    u32 from;
    u32 count;
    u32 absence;
    u32 withheld;
};

// Frees every slot of every pool.
struct Reset {
    Tables tables;
    u64 generation;
};

struct ZeroSpan {
    Pointer<u8> base;
    u64 stride;
    u64 row_bytes;
    u64 row_count;
};

constexpr u32 ZERO_SPANS_MAX = 32;

struct Zero {
    ZeroSpan spans[ZERO_SPANS_MAX];
    u32 span_count;
    u32 layer;
    // Of the cache that the spans are of; null for others, which are always zeroed.
    Pointer<Header> header;
    u64 generation;
    Pointer<PoolState> pools;
    Guard guard;
};

// What can be read of tables without stopping the stream. It is whole while both counts are alike and not 0.
struct Reading {
    u64 begun;
    u64 ended;
    u64 generation;
    u64 step;
    u64 digest;
    u64 resident_count;
};

struct Statistics {
    Tables tables;
    u64 generation;
    Pointer<Reading> reading;
    // As `Tables::stats`.
    Pointer<u64> stats;
    Scores scores;
};

}  // namespace ftcache
