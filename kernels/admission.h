// Admission: DESIGN.md section 3 by one block, equal to `ftcache-residency` to the bit.
//
// Shapes. W routes (up to the experts of a layer times the batch), E experts a layer, S slots of the pool, m misses, n
// of them fetched (n = m unless a CPU computes some). One block of T threads, T / 32 warps.
//
//   phase      what                                                            work a thread       barrier after it
//   load       places of the layer's experts, shared memory cleared            E / T               0
//   mark       routes counted by expert; the first stray id is found           W / T               1
//   classify   hits and misses counted; nothing has changed so far             E / T               2
//   note       hits stamped, misses listed ascending                           E / T               3, if n > 0
//   rank       hybrid: the order in which misses are fetched                   m^2 / T
//   select     digit by digit, the stamp of the last victim                    S / T a digit       4, each digit
//   count      slots below that stamp, and with it, by warp                    S / T               5
//   list       victims in slot order, with stamp and owner                     S / T               6
//   place      each victim's rank among them; the rank-th miss takes it        n^2 / T             7
//   answer     a slot for each route                                           W / T
//
// Where victims go by score, a decode step is counted by and by (scores.h): it begins with `load`, goes on with `note`,
// and has phases of its own after that, with barrier 3 before them whatever n is: `settle`, barrier 8 if the rule
// learns, `follow`, barrier 9 if n > 0. Keys of 56 bits, worked out in `select`, take the place of stamps.
//
// A step without a miss to fetch ends after `note` with its answer: it reads no stamp. With some, the number of
// barriers is seven and one for each digit of the step counter in 256ths (three below 2^24, four below 2^32), whatever
// m, W and S are: victims are selected together. Stamps of up to KEPT slots a thread (4,096 with 1,024 threads) are
// read once and kept in registers; those of larger pools are read again for each digit and twice after.
//
// Why select, list and rank, and not one sort: a sort of S keys moves them all at every digit; here only n survive the
// selection. Victims are wanted in the order of (stamp, slot). They are listed by slot, so that equal stamps are in
// order, and their rank is a count of smaller stamps. That is n^2 comparisons, of which each warp does 32 at once: four
// a thread for 64 misses, 256 for 512: some 0.3 us and 20 us by the instructions, while copying 512 rows takes
// milliseconds.
//
// Tried and dropped: victims one after another (a barrier or more for each: the cost grows with the misses); digits of
// 11 bits (2,048 counters to scan, which a warp cannot do for itself, so two barriers a digit more than it saves); one
// order of all slots kept in memory (it must be mended on warm steps, which now write only stamps); routes compared
// with each other to find duplicates (W^2).
#pragma once

#include "routes.h"
#include "select.h"

namespace ftcache {

// No route is astray.
constexpr u64 NO_ROUTE = ~u64(0);

struct AdmissionShared {
    Bins bins;
    WarpCounts warp_misses;
    WarpCounts warp_below;
    WarpCounts warp_within;
    Cell<u32> absent_count;
    Cell<u32> hit_count;
    Cell<u32> pinned_hits;
    Cell<u32> hit_routes;
    Cell<u64> stray;
};

// Room for each expert of the layer.
struct Workspace {
    Pointer<u64> keys;    // of misses when they were last active, then of victims their stamp or key
    Pointer<u32> counts;  // routes to an expert
    Pointer<u32> places;  // where an expert is, as the step leaves it
    Pointer<u32> rows;    // misses in the order in which they are fetched
    Pointer<u32> listed;  // misses ascending, then slots of victims
    Pointer<u32> owners;  // of victims
};

// WORKSPACE_BYTES an expert: a key of 8, five numbers of 4.
FTC_DEVICE Workspace workspace(Pointer<u8> base, u32 experts) {
    const u64 n = experts;
    return Workspace{cast<u64>(base, 0),      cast<u32>(base, 8 * n),  cast<u32>(base, 12 * n),
                     cast<u32>(base, 16 * n), cast<u32>(base, 20 * n), cast<u32>(base, 24 * n)};
}

// What a step has of one expert: how many routes, where it was, and whether that is a hit or a miss.
struct Routed {
    u32 count, place;
    bool hit, miss;
};

FTC_DEVICE Routed routed(const Workspace& work, u32 expert, u32 experts) {
    const u32 count = expert < experts ? u32(work.counts[expert]) : 0;
    const u32 place = count != 0 ? u32(work.places[expert]) : 0;
    return Routed{count, place, count != 0 && place < PLACE_LIMIT, count != 0 && place >= PLACE_LIMIT};
}

FTC_DEVICE bool is_slot(u32 place) { return place < PLACE_LIMIT; }

// How many of m misses are fetched, before any cap; what is carried on. As `policy::FetchRule::fetched_count`.
FTC_DEVICE u32 fetched_count(const FetchRule& fetch, u32 misses, u32& carried) {
    const u64 m = misses, q = fetch.number;
    switch (fetch.rule) {
        case UP_TO:
            return least(misses, fetch.number);
        case MIN_WAIT: {
            const u64 below = (m * q) >> 16;
            const u64 above = least(below + 1, m);
            const u64 link_below = below * (65536 - q), cpu_below = (m - below) * q;
            const u64 link_above = above * (65536 - q), cpu_above = (m - above) * q;
            const u64 wait_below = link_below > cpu_below ? link_below : cpu_below;
            const u64 wait_above = link_above > cpu_above ? link_above : cpu_above;
            return static_cast<u32>(wait_above < wait_below ? above : below);
        }
        case PREFER_FETCH:
            return static_cast<u32>((m * q + 65535) >> 16);
        default: {
            const u64 sum = m * q + carried;
            carried = static_cast<u32>(sum & 0xFFFF);
            return static_cast<u32>(sum >> 16);
        }
    }
}

// The counter that a miss is counted in, by why its expert was absent.
FTC_DEVICE u32 counter_of(u32 absence) {
    switch (absence) {
        case NEVER_ROUTED:
            return COLD_MISSES;
        case EVICTED:
            return CAPACITY_MISSES;
        case STAGED:
            return STAGING_MISSES;
        case FREED:
            return FREED_MISSES;
        default:
            return CPU_MISSES;
    }
}

// `hybrid`, and `scores` with their shared memory, are null where it is not that.
template <bool HYBRID, bool SCORED>
FTC_DEVICE void admit(const Admission& args, const HybridAdmission* hybrid, const Scores* scores,
                      AdmissionShared& shared, ScoringShared* scoring_shared, Pointer<u8> dynamic) {
    const Place at = here();
    const Tables& tables = args.tables;
    const u32 experts = tables.expert_count;
    const u32 width = static_cast<u32>(args.routes.row_count * args.routes.per_row);
    // A thread's first route comes while the header does: the engine's memory may be read whatever the generation is.
    const i64 first_id = at.thread < width ? id_at(args.routes, at.thread) : 0;
    if (!is_current(tables.header, args.generation, args.layer, at.thread == 0)) {
        answer_nothing<HYBRID>(args, hybrid, width, at);
        return;
    }
    const u64 last_step = FTC_FIELD(tables.header, step);
    const PoolState pool = tables.pools[args.pool.pool];
    const u32 first_expert = args.layer * experts;
    const Workspace work = workspace(experts <= SHARED_EXPERTS ? dynamic : args.scratch, experts);
    const Pointer<u64> stats = tables.stats + (args.layer * PHASE_COUNT + args.phase) * COUNTER_COUNT;
    const Pointer<PlanHead> plan = tables.plans + args.layer;
    u32 carried = 0;
    if constexpr (HYBRID) {
        carried = tables.carried[args.layer];
    }
    u32 turn = 0;
    if constexpr (SCORED) {
        turn = scores->turns[args.layer] + 1;
    }
    const auto scoring = [&] { return Scoring{*scores, *scoring_shared, args.layer, first_expert, turn}; };

    // Load. The places come in one coalesced read.
    FTC_ROLL
    for (u32 expert = at.thread; expert < experts; expert += at.threads) {
        work.counts[expert] = 0;
        work.places[expert] = u32(tables.place[first_expert + expert]);
    }
    FTC_ROLL
    for (u32 bin = at.thread; bin < ROUNDS_MAX * DIGITS; bin += at.threads) {
        shared.bins[bin] = 0;
    }
    if (at.thread == 0) {
        shared.absent_count = 0;
        shared.hit_count = 0;
        shared.pinned_hits = 0;
        shared.hit_routes = 0;
        shared.stray = NO_ROUTE;
    }
    if constexpr (SCORED) {
        scoring().load(at);
    }
    // Without this a route could be counted before its counter is cleared.
    barrier<0>();

    // Mark.
    u32 absent = 0;
    FTC_ROLL
    for (u32 route = at.thread; route < width; route += at.threads) {
        const i64 id = route == at.thread ? first_id : id_at(args.routes, route);
        if (is_absent(args.routes, id)) {
            absent += 1;
        } else if (static_cast<u64>(id) >= experts) {
            atomic_min(&shared.stray, u64(route));
        } else {
            atomic_add(&work.counts[static_cast<u32>(id)], 1);
        }
    }
    if (absent > 0) {
        atomic_add(&shared.absent_count, absent);
    }
    // Without this an expert could be taken for one that no route names.
    barrier<1>();
    const u64 stray = shared.stray;
    if (stray != NO_ROUTE || last_step >= LAST_STEP) {
        // By the thread that writes the answer there, since it may lie over the routes.
        if (stray != NO_ROUTE && stray % at.threads == at.thread) {
            const i64 id = id_at(args.routes, static_cast<u32>(stray));
            report(tables.header, Trouble{UNKNOWN_EXPERT, args.layer, last_step, stray, id, 0, experts});
        }
        if (at.thread == 0) {
            if (stray == NO_ROUTE) {
                report(tables.header, Trouble{LAST_STEP_REACHED, args.layer, last_step, 0, 0, 0, 0});
            }
            FTC_FIELD(plan, copy_count) = 0;
        }
        answer_nothing<HYBRID>(args, hybrid, width, at);
        return;
    }

    // Classify.
    const bool has_pins = pool.pinned_count != 0;
    const Range range = range_of(experts, at);
    u32 warp_misses = 0, warp_hits = 0, warp_pinned = 0, hit_routes = 0;
    FTC_ROLL
    for (u32 tile = 0; tile < range.tiles; ++tile) {
        const auto [count, place, hit, miss] = routed(work, range.first + tile * WARP + at.lane, experts);
        warp_hits += count_ones(warp_ballot(hit));
        warp_misses += count_ones(warp_ballot(miss));
        if (has_pins) {
            warp_pinned += count_ones(warp_ballot(hit && tables.pinned[u64(args.pool.first) + place] != 0));
        }
        hit_routes += hit ? count : 0;
    }
    hit_routes = warp_sum(hit_routes);
    if (at.lane == 0) {
        shared.warp_misses[at.warp] = warp_misses;
        if constexpr (SCORED) {
            scoring_shared->warp_used[at.warp] = warp_hits + warp_misses;
        }
        if (warp_hits > 0) {
            atomic_add(&shared.hit_count, warp_hits);
            atomic_add(&shared.hit_routes, hit_routes);
        }
        if (warp_pinned > 0) {
            atomic_add(&shared.pinned_hits, warp_pinned);
        }
    }
    // Without this a warp could decide by numbers that are not all there.
    barrier<2>();
    const Share misses = share_of(shared.warp_misses, at);
    const u32 hit_count = shared.hit_count;
    // Free or in use by others, and not pinned; and the step's own.
    const u32 open = args.pool.slot_count - pool.withheld - (pool.pinned_count - shared.pinned_hits);
    u32 fetched = misses.total;
    if constexpr (HYBRID) {
        const u32 wanted = fetched_count(hybrid->fetch, misses.total, carried);
        fetched = least(least(wanted, hybrid->fetch.most), open - hit_count);
    } else if (hit_count + misses.total > open) {
        if (at.thread == 0) {
            const u64 needed = hit_count + misses.total;
            report(tables.header, Trouble{STEP_TOO_WIDE, args.layer, last_step, 0, 0, needed, open});
            atomic_add(&stats[REFUSED], u64(1));
            FTC_FIELD(plan, copy_count) = 0;
        }
        answer_nothing<HYBRID>(args, hybrid, width, at);
        return;
    }
    const u64 step = last_step + 1;
    const u32 distinct = hit_count + misses.total;
    // What is not decode is not counted, and neither is a step without routes.
    const bool is_scored = SCORED && args.phase == DECODE && distinct > 0;

    // Note. From here on the step happens.
    u32 rank = misses.before;
    u32 used_before = 0;
    if constexpr (SCORED) {
        used_before = share_of(scoring_shared->warp_used, at).before;
    }
    FTC_ROLL
    for (u32 tile = 0; tile < range.tiles; ++tile) {
        const u32 expert = range.first + tile * WARP + at.lane;
        const auto [count, place, hit, miss] = routed(work, expert, experts);
        const u32 missing = warp_ballot(miss);
        if constexpr (SCORED) {
            const u32 used = warp_ballot(count != 0);
            if (is_scored && expert < experts) {
                const u32 mine = used_before + count_ones(used & lanes_below(at.lane));
                scoring().note(expert, count != 0, mine);
            }
            used_before += count_ones(used);
        }
        if (count != 0) {
            const u32 flat = first_expert + expert;
            if (hit && args.phase == DECODE) {
                tables.stamp[u64(args.pool.first) + place] = step;
            }
            atomic_add(&tables.routed[flat], u64(count));
            if (miss) {
                const u32 mine = rank + count_ones(missing & lanes_below(at.lane));
                if constexpr (HYBRID) {
                    work.listed[mine] = expert;
                    work.keys[mine] = u64(tables.active[flat]);
                    if (fetched == 0) {
                        tables.place[flat] = ABSENT_FIRST + ON_CPU;
                    }
                } else {
                    work.rows[mine] = expert;
                }
            }
            if (HYBRID && args.phase == DECODE) {
                tables.active[flat] = step;
            }
        }
        if (missing != 0) {
            FTC_ROLL
            for (u32 why = 0; why < ABSENCE_COUNT; ++why) {
                const u32 of_these = warp_ballot(miss && place == ABSENT_FIRST + why);
                if (of_these != 0 && at.lane == 0) {
                    atomic_add(&stats[counter_of(why)], u64(count_ones(of_these)));
                }
            }
        }
        rank += count_ones(missing);
    }

    if (is_scored || fetched > 0) {
        // Without this a hit could be taken for a victim, a miss be ranked before it is listed, and a weight be moved
        // by some of the credits.
        barrier<3>();
    }
    if constexpr (SCORED) {
        if (is_scored) {
            scoring().settle(distinct, at);
            if (scores->learns != 0) {
                // Without this a ring could be counted that the step is not in yet.
                barrier<8>();
                scoring().follow(distinct, at);
            }
            if (fetched > 0) {
                // Without this a slot could get a key of before the step.
                barrier<9>();
            }
        }
    }
    if (fetched > 0) {
        if constexpr (HYBRID) {
            // Rank.
            FTC_ROLL
            for (u32 miss = at.warp; miss < misses.total; miss += at.warps) {
                u32 order = miss;
                if (hybrid->fetch.order == BY_RECENCY) {
                    const u64 mine = work.keys[miss];
                    order = 0;
                    FTC_ROLL
                    for (u32 base = 0; base < misses.total; base += WARP) {
                        const u32 other = base + at.lane;
                        const u64 key = other < misses.total ? u64(work.keys[other]) : 0;
                        const bool before = key > mine || (key == mine && other < miss);
                        order += count_ones(warp_ballot(other < misses.total && before));
                    }
                }
                if (at.lane == 0) {
                    const u32 row = work.listed[miss];
                    if (order < fetched) {
                        work.rows[order] = row;
                    } else {
                        tables.place[first_expert + row] = ABSENT_FIRST + ON_CPU;
                    }
                }
            }
        }

        // Select.
        const Range slots = range_of(args.pool.slot_count, at);
        Candidates<SCORED> candidates{args, scores, work.counts, pool.withheld, has_pins, slots, at.lane, {}};
        candidates.load();
        const u64 highest = SCORED ? (u64(1) << KEY_BITS) - 1 : step;
        const Threshold threshold = select(candidates, shared.bins, highest, fetched);

        // Count.
        u32 warp_below = 0, warp_within = 0;
        candidates.each([&](u32, u64 key) {
            const u64 high = key >> threshold.shift;
            warp_below += count_ones(warp_ballot(key != NO_CANDIDATE && high < threshold.prefix));
            warp_within += count_ones(warp_ballot(key != NO_CANDIDATE && high == threshold.prefix));
        });
        if (at.lane == 0) {
            shared.warp_below[at.warp] = warp_below;
            shared.warp_within[at.warp] = warp_within;
        }
        // Without this a warp would not know how many victims lie before its own.
        barrier<5>();
        u32 below = share_of(shared.warp_below, at).before;
        u32 within = share_of(shared.warp_within, at).before;

        // List.
        candidates.each([&](u32 slot, u64 key) {
            const u64 high = key >> threshold.shift;
            const bool is_below = key != NO_CANDIDATE && high < threshold.prefix;
            const bool is_within = key != NO_CANDIDATE && high == threshold.prefix;
            const u32 all_below = warp_ballot(is_below), all_within = warp_ballot(is_within);
            const u32 within_before = within + count_ones(all_within & lanes_below(at.lane));
            if (is_below || (is_within && within_before < threshold.within)) {
                const u32 below_before = below + count_ones(all_below & lanes_below(at.lane));
                const u32 victim = below_before + least(within_before, threshold.within);
                work.listed[victim] = slot;
                work.keys[victim] = key;
                work.owners[victim] = u32(tables.owner[u64(args.pool.first) + slot]);
            }
            below += count_ones(all_below);
            within += count_ones(all_within);
        });
        // Without this a victim could be ranked among some of them.
        barrier<6>();

        // Place.
        u32 evicted = 0;
        FTC_ROLL
        for (u32 victim = at.warp; victim < fetched; victim += at.warps) {
            const u64 mine = work.keys[victim];
            u32 order = 0;
            FTC_ROLL
            for (u32 base = 0; base < fetched; base += WARP) {
                const u32 other = base + at.lane;
                const u64 key = other < fetched ? u64(work.keys[other]) : 0;
                const bool before = key < mine || (key == mine && other < victim);
                order += count_ones(warp_ballot(other < fetched && before));
            }
            if (at.lane != 0) {
                continue;
            }
            const u32 slot = work.listed[victim], owner = work.owners[victim], row = work.rows[order];
            const u32 flat = first_expert + row;
            const u64 place = u64(args.pool.first) + slot;
            tables.copies[first_expert + order] = Entry{slot, row};
            if (owner != NOBODY) {
                evicted += 1;
                tables.place[owner] = ABSENT_FIRST + EVICTED;
                if (owner - first_expert < experts) {
                    work.places[owner - first_expert] = ABSENT_FIRST + EVICTED;
                }
            }
            tables.place[flat] = slot;
            work.places[row] = slot;
            tables.owner[place] = flat;
            tables.stamp[place] = args.phase == PREFILL ? COLD : step;
            if (pool.marked_count != 0 && tables.marked[flat] != 0) {
                tables.pinned[place] = u8(1);
                atomic_add(&FTC_FIELD(tables.pools + args.pool.pool, pinned_count), 1);
            }
        }
        if (evicted > 0) {
            atomic_add(&stats[EVICTIONS], u64(evicted));
        }
        // Without this a route could be answered before its miss has a slot.
        barrier<7>();
    }

    // Answer.
    FTC_ROLL
    for (u32 route = at.thread; route < width; route += at.threads) {
        const i64 id = route == at.thread ? first_id : id_at(args.routes, route);
        const bool absent_here = is_absent(args.routes, id);
        const u32 place = absent_here ? NOBODY : u32(work.places[static_cast<u32>(id)]);
        const bool on_device = is_slot(place);
        const i64 other = absent_here ? args.answers.absent : args.answers.cpu;
        put_id(args.routes, args.answers.base, args.answers.row_stride, route, on_device ? i64(place) : other);
        if constexpr (HYBRID) {
            answer_split(*hybrid, route, id, on_device, !on_device && !absent_here);
        }
    }
    if (args.answers.map != nullptr) {
        FTC_ROLL
        for (u32 expert = at.thread; expert < experts; expert += at.threads) {
            const u32 place = work.places[expert];
            args.answers.map[expert] = is_slot(place) ? static_cast<i32>(place) : -1;
        }
    }
    if (at.thread == 0) {
        FTC_FIELD(tables.header, step) = step;
        if constexpr (HYBRID) {
            tables.carried[args.layer] = carried;
        }
        plan[0] = PlanHead{fetched, distinct, misses.total, misses.total - fetched, step, 0};
        const u64 counted[] = {1, u64(width - shared.absent_count), shared.hit_routes, distinct, misses.total, fetched};
        FTC_UNROLL
        for (u32 counter = STEPS; counter <= FETCHED; ++counter) {
            // Not read here: the launch would end a round trip to memory later.
            atomic_add(&stats[counter], counted[counter]);
        }
    }
}

}  // namespace ftcache
