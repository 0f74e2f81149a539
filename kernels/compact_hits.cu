// What of a layer lies in slots, and what does not: two lists for two gathers, ascending by row.
//
// One block of T threads over the layer's E experts: each warp counts its hits, and after barrier 0 knows how many lie
// before its own; without it, two warps would write their hits to the same places. Misses lie before an expert as many
// as there are experts that are no hits, so they need no count of their own. E / T work a thread, twice, of which the
// second finds the places in the cache.
#include "common.h"

namespace ftcache {

FTC_KERNEL(ftcache_compact_hits, CompactHits) {
    FTC_SHARED(WarpCounts, shared);
    const Place at = here();
    const Tables& tables = args.tables;
    if (!is_current(tables.header, args.generation, args.layer, at.thread == 0)) {
        return;
    }
    if (!is_guarded(tables.header, tables.pools, args.guard, args.layer, at.thread == 0)) {
        if (at.thread == 0) {
            args.hit_count[0] = 0;
            args.miss_count[0] = 0;
        }
        return;
    }
    const u32 experts = tables.expert_count;
    const Pointer<u32> places = tables.place + args.layer * experts;
    const Range range = range_of(experts, at);
    u32 hits = 0;
    FTC_ROLL
    for (u32 tile = 0; tile < range.tiles; ++tile) {
        const u32 expert = range.first + tile * WARP + at.lane;
        hits += count_ones(warp_ballot(expert < experts && u32(places[expert]) < PLACE_LIMIT));
    }
    if (at.lane == 0) {
        shared[at.warp] = hits;
    }
    barrier<0>();
    const Share share = share_of(shared, at);
    u32 before = share.before;
    FTC_ROLL
    for (u32 tile = 0; tile < range.tiles; ++tile) {
        const u32 expert = range.first + tile * WARP + at.lane;
        const u32 place = expert < experts ? u32(places[expert]) : NOBODY;
        const u32 all = warp_ballot(place < PLACE_LIMIT);
        const u32 mine = before + count_ones(all & lanes_below(at.lane));
        if (place < PLACE_LIMIT) {
            args.hits[mine] = Entry{expert, place};
        } else if (expert < experts) {
            args.misses[expert - mine] = Entry{expert, expert};
        }
        before += count_ones(all);
    }
    if (at.thread == 0) {
        args.hit_count[0] = share.total;
        args.miss_count[0] = experts - share.total;
    }
}

}  // namespace ftcache
