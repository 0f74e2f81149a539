// Every struct of `kernels/abi.h` with its fields, and every constant, as numbers that a test of the host compares.
//
// A list of fields is complete, or this does not compile: each begins where the one before ends, and the last ends with
// the struct. So abi.h has no padding either.
#pragma once

#include "abi.h"

namespace ftcache::emu {

struct Number {
    const char* name;
    u64 value;
};

struct Field {
    const char* name;
    u64 offset;
    u64 bytes;
};

template <u64 COUNT>
constexpr bool is_complete(const Field (&fields)[COUNT], u64 bytes) {
    u64 end = 0;
    for (const Field& field : fields) {
        if (field.offset != end) {
            return false;
        }
        end += field.bytes;
    }
    return end == bytes;
}

#define FTC_FIELD_OF(S, f) {#S "." #f, offsetof(S, f), sizeof(S::f)}
// Up to sixteen fields of a struct.
#define FTC_F1(S, f) FTC_FIELD_OF(S, f)
#define FTC_F2(S, f, ...) FTC_FIELD_OF(S, f), FTC_F1(S, __VA_ARGS__)
#define FTC_F3(S, f, ...) FTC_FIELD_OF(S, f), FTC_F2(S, __VA_ARGS__)
#define FTC_F4(S, f, ...) FTC_FIELD_OF(S, f), FTC_F3(S, __VA_ARGS__)
#define FTC_F5(S, f, ...) FTC_FIELD_OF(S, f), FTC_F4(S, __VA_ARGS__)
#define FTC_F6(S, f, ...) FTC_FIELD_OF(S, f), FTC_F5(S, __VA_ARGS__)
#define FTC_F7(S, f, ...) FTC_FIELD_OF(S, f), FTC_F6(S, __VA_ARGS__)
#define FTC_F8(S, f, ...) FTC_FIELD_OF(S, f), FTC_F7(S, __VA_ARGS__)
#define FTC_F9(S, f, ...) FTC_FIELD_OF(S, f), FTC_F8(S, __VA_ARGS__)
#define FTC_F10(S, f, ...) FTC_FIELD_OF(S, f), FTC_F9(S, __VA_ARGS__)
#define FTC_F11(S, f, ...) FTC_FIELD_OF(S, f), FTC_F10(S, __VA_ARGS__)
#define FTC_F12(S, f, ...) FTC_FIELD_OF(S, f), FTC_F11(S, __VA_ARGS__)
#define FTC_F13(S, f, ...) FTC_FIELD_OF(S, f), FTC_F12(S, __VA_ARGS__)
#define FTC_F14(S, f, ...) FTC_FIELD_OF(S, f), FTC_F13(S, __VA_ARGS__)
#define FTC_F15(S, f, ...) FTC_FIELD_OF(S, f), FTC_F14(S, __VA_ARGS__)
#define FTC_F16(S, f, ...) FTC_FIELD_OF(S, f), FTC_F15(S, __VA_ARGS__)
#define FTC_F17(S, f, ...) FTC_FIELD_OF(S, f), FTC_F16(S, __VA_ARGS__)
#define FTC_F18(S, f, ...) FTC_FIELD_OF(S, f), FTC_F17(S, __VA_ARGS__)

#define FTC_STRUCT(S, COUNT, ...)                                  \
    constexpr Field S##_FIELDS[] = {FTC_F##COUNT(S, __VA_ARGS__)}; \
    static_assert(is_complete(S##_FIELDS, sizeof(S)), "fields of " #S);

FTC_STRUCT(Fault, 9, code, layer, count, step, position, value, needed, given, told)
FTC_STRUCT(Header, 4, generation, step, fault, reserved)
FTC_STRUCT(PoolState, 4, pinned_count, marked_count, withheld, reserved)
FTC_STRUCT(Entry, 2, target, source)
FTC_STRUCT(PlanHead, 6, copy_count, distinct, misses, left, step, reserved)
FTC_STRUCT(Tables, 17, header, place, active, routed, marked, carried, stats, plans, copies, stamp, owner, pinned,
           pools, layer_count, expert_count, slot_count, pool_count)
FTC_STRUCT(Scores, 17, weights, turns, counts, totals, gains, latest, latest_widths, ring_experts, ring_widths,
           ring_next, followed, keys, log_halves, half_count, rule, learns, looks_at_distance)
FTC_STRUCT(PoolRange, 4, pool, first, slot_count, reserved)
FTC_STRUCT(Routes, 8, base, row_count, row_stride, per_row, id_bytes, absent, has_absent, reserved)
FTC_STRUCT(Answers, 5, base, row_stride, cpu, absent, map)
FTC_STRUCT(Admission, 8, tables, generation, pool, layer, phase, routes, answers, scratch)
FTC_STRUCT(FetchRule, 4, rule, order, number, most)
FTC_STRUCT(Weights, 8, source, source_stride, device, device_stride, cpu, cpu_stride, bytes, reserved)
FTC_STRUCT(HybridAdmission, 6, admission, fetch, cpu_ids, cpu_ids_stride, cpu_none, weights)
FTC_STRUCT(ScoredAdmission, 2, admission, scores)
FTC_STRUCT(ScoredHybridAdmission, 2, hybrid, scores)
FTC_STRUCT(BankRows, 7, source, source_stride, target, target_stride, row_bytes, source_rows, target_rows)
FTC_STRUCT(Gather, 9, header, generation, entry_count, entries, banks, bank_count, entry_max, layer, reserved)
FTC_STRUCT(Await, 7, tables, generation, pool, layer, word_value, word, patience)
FTC_STRUCT(Guard, 2, pool, withheld)
FTC_STRUCT(CompactHits, 9, tables, generation, guard, layer, reserved, hit_count, hits, miss_count, misses)
FTC_STRUCT(StageBank, 9, host, host_stride, slots, slot_stride, target, target_stride, row_bytes, slot_count, whole)
FTC_STRUCT(Materialize, 10, header, generation, pools, guard, place, banks, expert_count, bank_count, layer, reserved)
FTC_STRUCT(Invalidate, 7, tables, generation, pool, from, count, absence, withheld)
FTC_STRUCT(Reset, 2, tables, generation)
FTC_STRUCT(ZeroSpan, 4, base, stride, row_bytes, row_count)
FTC_STRUCT(Zero, 7, spans, span_count, layer, header, generation, pools, guard)
FTC_STRUCT(Reading, 6, begun, ended, generation, step, digest, resident_count)
FTC_STRUCT(Statistics, 5, tables, generation, reading, stats, scores)

#define FTC_STRUCTS(X)                                                                                            \
    X(Fault) X(Header) X(PoolState) X(Entry) X(PlanHead) X(Tables) X(Scores) X(PoolRange) X(Routes) X(Answers)    \
    X(Admission) X(FetchRule) X(Weights) X(HybridAdmission) X(ScoredAdmission) X(ScoredHybridAdmission)           \
    X(BankRows) X(Gather) X(Await) X(Guard) X(CompactHits) X(StageBank) X(Materialize) X(Invalidate) X(Reset)     \
    X(ZeroSpan) X(Zero) X(Reading) X(Statistics)

#define FTC_CONSTANTS(X)                                                                                            \
    X(PLACE_LIMIT) X(ABSENT_FIRST) X(ABSENCE_COUNT) X(NOBODY) X(COLD) X(LAST_STEP) X(WITH_HOST) X(SHARED_EXPERTS)   \
    X(WORKSPACE_BYTES) X(HALVES) X(COMPONENTS) X(RING_STEPS) X(RING_WIDTH) X(ZERO_SPANS_MAX) X(NEVER_ROUTED)        \
    X(EVICTED) X(STAGED) X(FREED) X(ON_CPU) X(IN_FLIGHT) X(DECODE) X(VERIFY) X(PREFILL) X(PHASE_COUNT) X(STEPS)     \
    X(ROUTES) X(HIT_ROUTES) X(DISTINCT) X(MISSES) X(FETCHED) X(EVICTIONS) X(COLD_MISSES) X(CAPACITY_MISSES)         \
    X(STAGING_MISSES) X(FREED_MISSES) X(CPU_MISSES) X(REFUSED) X(COUNTER_COUNT) X(NO_FAULT) X(UNKNOWN_EXPERT)       \
    X(STEP_TOO_WIDE) X(STALE_GENERATION) X(HOST_MODE) X(LAST_STEP_REACHED) X(WORD_TIMEOUT) X(NO_CHUNK) X(UP_TO)     \
    X(MIN_WAIT) X(PREFER_FETCH) X(CARRY) X(BY_RECENCY) X(LOWEST_ID)

#define FTC_NUMBER(name) {#name, static_cast<u64>(name)},
constexpr Number CONSTANTS[] = {FTC_CONSTANTS(FTC_NUMBER)};
#undef FTC_NUMBER

}  // namespace ftcache::emu
