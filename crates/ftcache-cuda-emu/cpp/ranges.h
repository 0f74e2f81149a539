// Which memory a launch may touch, by its arguments: looked at when it is enqueued, and again when it runs.
//
// As kernels do, it first asks whether the launch is of the cache as it is. If not, only what lives as long as the
// cache, and what is the engine's, may be touched: the rest may have been given back.
#pragma once

#include "abi.h"
#include "engine.h"

namespace ftcache::emu {

constexpr u32 BOTH = READ | WRITE;
// Touched to tell of trouble only: allowed, and no reason to call it a race.
constexpr u32 RARELY = 8;
// A word that has to be at a value or past it before the launch goes on.
constexpr u32 AWAITED = 16;

// Rust's side: takes ranges, and says whether memory is there.
struct Sink {
    void* data;
    void (*take)(void* data, const Range* range);
    u32 (*is_live)(void* data, u64 address, u64 bytes);

    void rows(const char* name, u64 base, u64 row_bytes, u64 stride, u64 count, u32 access) {
        if (base != 0 && row_bytes != 0 && count != 0) {
            const bool gaps = stride > row_bytes && count > 1;
            const Range range{base, gaps || count == 1 ? row_bytes : row_bytes + (count - 1) * stride, stride,
                              gaps ? count : 1, access, 0, name};
            take(data, &range);
        }
    }
    template <class T>
    void items(const char* name, Pointer<T> first, u64 count, u32 access) {
        rows(name, first.raw(), sizeof(T), sizeof(T), count, access);
    }
    void awaited(const char* name, Pointer<u32> word, u32 value) {
        if (word != nullptr) {
            const Range range{word.raw(), 4, 4, 1, READ | ATOMIC | AWAITED, value, name};
            take(data, &range);
        }
    }
    // What lies there, or nothing if there is no such memory.
    template <class T>
    bool look(Pointer<T> place, T& value) {
        if (place == nullptr || is_live(data, place.raw(), sizeof(T)) == 0) {
            return false;
        }
        memcpy(static_cast<void*>(&value), reinterpret_cast<const void*>(place.raw()), sizeof(T));
        return true;
    }
};

// What the header leads to, and whether the launch is of the cache as it is.
inline bool describe_header(Pointer<Header> header, u64 generation, u32 step_access, Sink& sink) {
    const auto member = [&](const char* name, u64 offset, u32 access) {
        sink.rows(name, header.raw() + offset, 8, 8, 1, access);
    };
    member("header.generation", offsetof(Header, generation), READ);
    member("header.fault", offsetof(Header, fault), READ);
    member("header.step", offsetof(Header, step), step_access);
    Header now;
    if (!sink.look(header, now)) {
        return false;
    }
    sink.items("the fault", now.fault, 1, BOTH | RARELY);
    return now.generation == generation;
}

inline void describe_routes(const Routes& routes, Pointer<u8> base, u64 stride, u64 width, const char* name,
                            u32 access, Sink& sink) {
    sink.rows(name, base.raw(), routes.per_row * width, stride, routes.row_count, access);
}

inline void describe_scores(const Scores& scores, const Tables& tables, u32 access, Sink& sink) {
    const u64 layers = tables.layer_count, experts = layers * tables.expert_count;
    sink.items("scores.weights", scores.weights, COMPONENTS, access);
    sink.items("scores.turns", scores.turns, layers, access);
    sink.items("scores.counts", scores.counts, experts * HALVES, access);
    sink.items("scores.totals", scores.totals, layers * COMPONENTS, access);
    sink.items("scores.gains", scores.gains, layers * COMPONENTS, access);
    sink.items("scores.latest", scores.latest, layers * RING_WIDTH, access);
    sink.items("scores.latest_widths", scores.latest_widths, layers, access);
    sink.items("scores.ring_experts", scores.ring_experts, experts * RING_STEPS * RING_WIDTH, access);
    sink.items("scores.ring_widths", scores.ring_widths, experts * RING_STEPS, access);
    sink.items("scores.ring_next", scores.ring_next, experts, access);
    sink.items("scores.followed", scores.followed, experts, access);
    if (access == BOTH) {
        sink.items("scores.keys", scores.keys, tables.slot_count, access);
    }
}

// Whether the launch is of the cache as it is.
inline bool describe_admission(const Admission& args, bool hybrid, Sink& sink) {
    const Tables& tables = args.tables;
    const Routes& routes = args.routes;
    const u64 experts = tables.expert_count, first = u64(args.layer) * experts;
    // An answer may lie over the routes.
    describe_routes(routes, routes.base, routes.row_stride, routes.id_bytes, "routes", READ, sink);
    describe_routes(routes, args.answers.base, args.answers.row_stride, routes.id_bytes, "answers", BOTH, sink);
    sink.items("answers.map", args.answers.map, experts, WRITE);
    Header header;
    // A step goes on only if the launch is current: else it is read, for the report.
    const bool current = sink.look(tables.header, header) && header.generation == args.generation;
    if (!describe_header(tables.header, args.generation, current ? BOTH : READ | RARELY, sink)) {
        return false;
    }
    sink.items("place", tables.place, tables.layer_count * experts, BOTH);
    sink.items("routed", tables.routed + first, experts, BOTH);
    sink.items("marked", tables.marked + first, experts, READ);
    if (hybrid) {
        sink.items("active", tables.active + first, experts, BOTH);
        sink.items("carried", tables.carried + args.layer, 1, BOTH);
    }
    const u64 counters = (u64(args.layer) * PHASE_COUNT + args.phase) * COUNTER_COUNT;
    sink.items("stats", tables.stats + counters, COUNTER_COUNT, BOTH);
    sink.items("plans", tables.plans + args.layer, 1, BOTH);
    sink.items("copies", tables.copies + first, experts, BOTH);
    sink.items("stamp", tables.stamp + args.pool.first, args.pool.slot_count, BOTH);
    sink.items("owner", tables.owner + args.pool.first, args.pool.slot_count, BOTH);
    sink.items("pinned", tables.pinned + args.pool.first, args.pool.slot_count, BOTH);
    sink.items("pools", tables.pools + args.pool.pool, 1, BOTH);
    if (experts > SHARED_EXPERTS) {
        sink.items("scratch", args.scratch, experts * WORKSPACE_BYTES, BOTH);
    }
    return true;
}

inline void describe(const Admission& args, Sink& sink) { describe_admission(args, false, sink); }

inline bool describe_hybrid(const HybridAdmission& args, Sink& sink) {
    const Routes& routes = args.admission.routes;
    const Weights& weights = args.weights;
    describe_routes(routes, args.cpu_ids, args.cpu_ids_stride, routes.id_bytes, "cpu_ids", WRITE, sink);
    describe_routes(routes, weights.source, weights.source_stride, weights.bytes, "weights.source", READ, sink);
    describe_routes(routes, weights.device, weights.device_stride, weights.bytes, "weights.device", WRITE, sink);
    describe_routes(routes, weights.cpu, weights.cpu_stride, weights.bytes, "weights.cpu", WRITE, sink);
    return describe_admission(args.admission, true, sink);
}

inline void describe(const HybridAdmission& args, Sink& sink) { describe_hybrid(args, sink); }

inline void describe(const ScoredAdmission& args, Sink& sink) {
    if (describe_admission(args.admission, false, sink)) {
        describe_scores(args.scores, args.admission.tables, BOTH, sink);
    }
}

inline void describe(const ScoredHybridAdmission& args, Sink& sink) {
    if (describe_hybrid(args.hybrid, sink)) {
        describe_scores(args.scores, args.hybrid.admission.tables, BOTH, sink);
    }
}

inline void describe(const Gather& args, Sink& sink) {
    if (!describe_header(args.header, args.generation, READ | RARELY, sink)) {
        return;
    }
    sink.items("entry_count", args.entry_count, 1, READ);
    sink.items("entries", args.entries, args.entry_max, READ);
    sink.items("banks", args.banks, args.bank_count, READ);
    for (u32 bank = 0; bank < args.bank_count; ++bank) {
        BankRows rows;
        if (sink.look(args.banks + bank, rows)) {
            const u64 source = rows.source.raw(), target = rows.target.raw();
            sink.rows("a bank's source", source, rows.row_bytes, rows.source_stride, rows.source_rows, READ);
            sink.rows("a bank's target", target, rows.row_bytes, rows.target_stride, rows.target_rows, WRITE);
        }
    }
}

inline void describe(const Await& args, Sink& sink) {
    const Tables& tables = args.tables;
    if (!describe_header(tables.header, args.generation, READ | RARELY, sink)) {
        return;
    }
    const u64 experts = tables.expert_count, first = u64(args.layer) * experts;
    sink.awaited("word", args.word, args.word_value);
    sink.items("plans", tables.plans + args.layer, 1, BOTH);
    sink.items("copies", tables.copies + first, experts, READ);
    sink.items("place", tables.place + first, experts, BOTH);
    sink.items("stamp", tables.stamp + args.pool.first, args.pool.slot_count, BOTH);
    sink.items("owner", tables.owner + args.pool.first, args.pool.slot_count, BOTH);
    sink.items("pinned", tables.pinned + args.pool.first, args.pool.slot_count, BOTH);
    sink.items("pools", tables.pools + args.pool.pool, 1, BOTH);
}

// The pool of which slots must be withheld, if any is.
inline void describe_guard(Pointer<PoolState> pools, const Guard& guard, Sink& sink) {
    if (guard.withheld > 0) {
        sink.items("pools", pools + guard.pool, 1, READ);
    }
}

inline void describe(const CompactHits& args, Sink& sink) {
    const Tables& tables = args.tables;
    if (!describe_header(tables.header, args.generation, READ | RARELY, sink)) {
        return;
    }
    describe_guard(tables.pools, args.guard, sink);
    const u64 experts = tables.expert_count;
    sink.items("place", tables.place + u64(args.layer) * experts, experts, READ);
    sink.items("hit_count", args.hit_count, 1, WRITE);
    sink.items("hits", args.hits, experts, WRITE);
    sink.items("miss_count", args.miss_count, 1, WRITE);
    sink.items("misses", args.misses, experts, WRITE);
}

inline void describe(const Materialize& args, Sink& sink) {
    if (!describe_header(args.header, args.generation, READ | RARELY, sink)) {
        return;
    }
    describe_guard(args.pools, args.guard, sink);
    sink.items("place", args.place, args.expert_count, READ);
    sink.items("banks", args.banks, args.bank_count, READ);
    for (u32 bank = 0; bank < args.bank_count; ++bank) {
        StageBank rows;
        if (!sink.look(args.banks + bank, rows)) {
            continue;
        }
        sink.rows("a bank's host rows", rows.host.raw(), rows.row_bytes, rows.host_stride, args.expert_count, READ);
        sink.rows("a bank's target", rows.target.raw(), rows.row_bytes, rows.target_stride, args.expert_count, WRITE);
        if (rows.whole == 0) {
            sink.rows("a bank's slots", rows.slots.raw(), rows.row_bytes, rows.slot_stride, rows.slot_count, READ);
        }
    }
}

inline void describe(const Invalidate& args, Sink& sink) {
    const Tables& tables = args.tables;
    if (!describe_header(tables.header, args.generation, READ | RARELY, sink)) {
        return;
    }
    const u64 first = u64(args.pool.first) + args.from;
    sink.items("place", tables.place, u64(tables.layer_count) * tables.expert_count, BOTH);
    sink.items("stamp", tables.stamp + first, args.count, BOTH);
    sink.items("owner", tables.owner + first, args.count, BOTH);
    sink.items("pinned", tables.pinned + first, args.count, BOTH);
    sink.items("pools", tables.pools + args.pool.pool, 1, BOTH);
}

inline void describe(const Reset& args, Sink& sink) {
    const Tables& tables = args.tables;
    if (!describe_header(tables.header, args.generation, READ | RARELY, sink)) {
        return;
    }
    sink.items("place", tables.place, u64(tables.layer_count) * tables.expert_count, BOTH);
    sink.items("stamp", tables.stamp, tables.slot_count, BOTH);
    sink.items("owner", tables.owner, tables.slot_count, BOTH);
    sink.items("pinned", tables.pinned, tables.slot_count, BOTH);
    sink.items("pools", tables.pools, tables.pool_count, BOTH);
}

inline void describe(const Statistics& args, Sink& sink) {
    const Tables& tables = args.tables;
    if (!describe_header(tables.header, args.generation, READ, sink)) {
        return;
    }
    const u64 counters = u64(tables.layer_count) * PHASE_COUNT * COUNTER_COUNT;
    sink.items("owner", tables.owner, tables.slot_count, READ);
    sink.items("stamp", tables.stamp, tables.slot_count, READ);
    sink.items("stats", tables.stats, counters, READ);
    sink.items("reading", args.reading, 1, BOTH);
    sink.items("the stats read", args.stats, counters, WRITE);
    if (args.scores.rule != 0) {
        describe_scores(args.scores, tables, READ, sink);
    }
}

inline void describe(const Zero& args, Sink& sink) {
    if (args.header != nullptr) {
        if (!describe_header(args.header, args.generation, READ | RARELY, sink)) {
            return;
        }
        describe_guard(args.pools, args.guard, sink);
    }
    for (u32 index = 0; index < args.span_count && index < ZERO_SPANS_MAX; ++index) {
        const ZeroSpan& span = args.spans[index];
        sink.rows("a span", span.base.raw(), span.row_bytes, span.stride, span.row_count, WRITE);
    }
}

}  // namespace ftcache::emu
