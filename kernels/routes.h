// Ids and weights in an engine's memory: read, and answered where they lie or beside.
#pragma once

#include "common.h"

namespace ftcache {

FTC_DEVICE u64 offset_of(const Routes& routes, u64 stride, u32 width, u32 at) {
    return u64(at / routes.per_row) * stride + u64(at % routes.per_row) * width;
}

FTC_DEVICE i64 id_at(const Routes& routes, u32 at) {
    const u64 offset = offset_of(routes, routes.row_stride, routes.id_bytes, at);
    return routes.id_bytes == 4 ? i64(cast<i32>(routes.base, offset)[0]) : i64(cast<i64>(routes.base, offset)[0]);
}

FTC_DEVICE void put_id(const Routes& routes, Pointer<u8> base, u64 stride, u32 at, i64 id) {
    const u64 offset = offset_of(routes, stride, routes.id_bytes, at);
    if (routes.id_bytes == 4) {
        cast<i32>(base, offset)[0] = static_cast<i32>(id);
    } else {
        cast<i64>(base, offset)[0] = id;
    }
}

FTC_DEVICE bool is_absent(const Routes& routes, i64 id) { return routes.has_absent != 0 && id == routes.absent; }

FTC_DEVICE void put_weight(const Weights& weights, Pointer<u8> base, u64 offset, u32 value) {
    if (weights.bytes == 4) {
        cast<u32>(base, offset)[0] = value;
    } else {
        cast<u16>(base, offset)[0] = static_cast<u16>(value);
    }
}

// One route's share of the answer beside its slot: who computes it, and with which weight. A refused one has nobody.
FTC_DEVICE void answer_split(const HybridAdmission& hybrid, u32 at, i64 cpu_id, bool on_device, bool on_cpu) {
    const Routes& routes = hybrid.admission.routes;
    if (hybrid.cpu_ids != nullptr) {
        put_id(routes, hybrid.cpu_ids, hybrid.cpu_ids_stride, at, on_cpu ? cpu_id : hybrid.cpu_none);
    }
    const Weights& weights = hybrid.weights;
    if (weights.bytes == 0) {
        return;
    }
    const u64 from = offset_of(routes, weights.source_stride, weights.bytes, at);
    // Read before either target is written, since that may be the source.
    const u32 weight = weights.bytes == 4 ? u32(cast<u32>(weights.source, from)[0])
                                          : u32(cast<u16>(weights.source, from)[0]);
    if (weights.device != nullptr) {
        put_weight(weights, weights.device, offset_of(routes, weights.device_stride, weights.bytes, at),
                   on_device ? weight : 0);
    }
    if (weights.cpu != nullptr) {
        put_weight(weights, weights.cpu, offset_of(routes, weights.cpu_stride, weights.bytes, at), on_cpu ? weight : 0);
    }
}

// The answer of a launch that is refused: -1 for every route, and nothing to copy.
template <bool HYBRID>
FTC_DEVICE void answer_nothing(const Admission& args, const HybridAdmission* hybrid, u32 width, const Place& at) {
    for (u32 route = at.thread; route < width; route += at.threads) {
        put_id(args.routes, args.answers.base, args.answers.row_stride, route, -1);
        if constexpr (HYBRID) {
            answer_split(*hybrid, route, 0, false, false);
        }
    }
    if (args.answers.map != nullptr) {
        FTC_ROLL
        for (u32 expert = at.thread; expert < args.tables.expert_count; expert += at.threads) {
            args.answers.map[expert] = -1;
        }
    }
}

}  // namespace ftcache
