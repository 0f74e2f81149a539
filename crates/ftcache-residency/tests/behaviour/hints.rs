//! Rows that are brought in ahead of the step that is expected to route to them. B43.

use ftcache_residency::{HintAnswer, HintStats, OpenPlan, Planner, PlannerError};

use super::flights::{absences, land, late_stats, later, leave, up_to};
use super::*;

/// Hints behind a plan. Returns the number of the hint and its copies as `(slot, row)`.
#[track_caller]
fn hint_behind(
    cache: &mut Cache,
    current: &Plan,
    layer_number: u32,
    experts: &[u32],
    most: usize,
) -> (u64, Vec<(u32, u32)>) {
    let mut late = LatePlan::new();
    cache.hint(current, layer(layer_number), &ids(experts), most, &mut late).unwrap().commit();
    cache.check().unwrap();
    (late.flight(), late.copies().iter().map(|copy| (copy.slot.get(), copy.row.get())).collect())
}

/// The same after a step that uses no slot.
#[track_caller]
fn hint(cache: &mut Cache, layer_number: u32, experts: &[u32], most: usize) -> (u64, Vec<(u32, u32)>) {
    hint_behind(cache, &Plan::new(), layer_number, experts, most)
}

/// Present, started, over budget, no slot.
fn answer_of(cache: &mut Cache, current: &Plan, layer_number: u32, experts: &[u32], most: usize) -> [usize; 4] {
    let mut late = LatePlan::new();
    cache.hint(current, layer(layer_number), &ids(experts), most, &mut late).unwrap().commit();
    let HintAnswer { present, started, over_budget, no_slot } = late.hint().unwrap();
    [present, started, over_budget, no_slot]
}

/// Started, evictions, useful, late, wasted of a layer.
fn counts(cache: &Cache, layer_number: u32) -> [u64; 5] {
    let HintStats { started, evictions, useful, late, wasted } = cache.hint_stats(layer(layer_number));
    [started, evictions, useful, late, wasted]
}

/// Two layers of eight experts over four slots.
fn two_layers() -> Cache {
    one_pool(2, 8, 4)
}

/// Experts 0 to 3 of layer 0 fill the slots, with the stamps 1 to 4.
fn full() -> Cache {
    let mut cache = two_layers();
    (0..4).for_each(|expert| drop(decode(&mut cache, 0, &[expert])));
    cache
}

#[test]
fn a_row_that_has_landed_is_a_hit_of_its_step_and_useful() {
    let mut cache = full();
    assert_eq!(
        hint(&mut cache, 1, &[5, 2], 9),
        (1, vec![(0, 5), (1, 2)]),
        "the slots that would go next, in their order"
    );
    assert_eq!((counts(&cache, 1), cache.hint_stats(layer(1)).open()), ([2, 2, 0, 0, 0], 2));
    assert_eq!(owners(&cache, POOL), [None, None, Some(2), Some(3)]);
    assert!(cache.is_in_flight(layer(1), expert(5)) && cache.is_hinted(layer(1), expert(5)));
    assert_eq!(land(&mut cache, 1), 2);
    assert_eq!(
        (owners(&cache, POOL), stamps(&cache, POOL)),
        ([Some(13), Some(10), Some(2), Some(3)].to_vec(), vec![1, 1, 3, 4])
    );
    let plan = commit(&mut cache, layer(1), &[5, 2]);
    assert_eq!((answer(&plan), plan.copies().len(), plan.awaits()), (vec![0, 1], 0, None));
    assert_eq!((counts(&cache, 1), stamps(&cache, POOL)), ([2, 2, 2, 0, 0], vec![6, 6, 3, 4]));
    let stats = cache.layer_stats(layer(1));
    assert_eq!((stats.steps, stats.hits(), stats.misses, stats.fetched, stats.evictions), (1, 2, 0, 0, 0));
    assert_eq!(late_stats(&cache), [0; 4], "they are not what comes behind steps");
}

#[test]
fn a_row_that_its_step_does_not_route_to_is_the_first_to_go_from_then_on() {
    let mut cache = full();
    hint(&mut cache, 1, &[5, 2], 9);
    land(&mut cache, 1);
    // At once: the step's own miss takes its slot.
    assert_eq!(
        decode(&mut cache, 1, &[5, 7]),
        "step 6 pool 0: routes [5, 7] -> slots [0, 1]; copy 7 -> slot 1 (was 10, last step 1)"
    );
    assert_eq!(counts(&cache, 1), [2, 2, 1, 0, 1]);
    // And one that lands only after its step.
    hint(&mut cache, 0, &[6], 9);
    assert_eq!(answer(&commit(&mut cache, layer(0), &[3])), [3]);
    assert_eq!((counts(&cache, 0), land(&mut cache, 2)), ([1, 1, 0, 0, 1], 1));
    assert_eq!(
        decode(&mut cache, 1, &[0]),
        "step 9 pool 0: routes [0] -> slots [2]; copy 0 -> slot 2 (was 6, last step 1)"
    );
}

#[test]
fn a_plain_step_boards_a_row_on_its_way_and_awaits_its_flight() {
    for phase in Phase::ALL {
        let mut cache = full();
        assert_eq!(hint(&mut cache, 1, &[5], 9), (1, vec![(0, 5)]));
        assert_eq!(hint(&mut cache, 1, &[6], 9), (2, vec![(1, 6)]));
        let plan = commit(&mut cache, of_phase(phase, 1), &[6, 5, 6]);
        assert_eq!((answer(&plan), plan.miss_count(), plan.awaits()), (vec![1, 0, 1], 0, Some(2)), "{phase:?}");
        assert_eq!((counts(&cache, 1), cache.in_flight_count(POOL)), ([2, 2, 0, 2, 0], 2));
        assert_eq!(cache.layer_stats(layer(1)).hits(), 2);
        // Every step that uses the slots comes behind them until they have landed; no victim meanwhile.
        assert_eq!(commit(&mut cache, layer(1), &[5]).awaits(), Some(1));
        assert_eq!(commit(&mut cache, layer(0), &[2]).awaits(), None);
        assert_eq!(answer(&commit(&mut cache, layer(0), &[4, 7])), [3, 2]);
        assert_eq!([1, 2].map(|flight| land(&mut cache, flight)), [1, 1]);
        assert_eq!(commit(&mut cache, layer(1), &[5, 6]).awaits(), None);
        let stamp = if phase == Phase::Decode { 7 } else { 1 };
        let mut cache = full();
        hint(&mut cache, 1, &[5], 9);
        hint(&mut cache, 1, &[6], 9);
        commit(&mut cache, of_phase(phase, 1), &[5, 6]);
        land(&mut cache, 1);
        assert_eq!(cache.stamp(POOL, slot(0)), stamp, "{phase:?}");
    }
}

#[test]
fn a_hybrid_step_leaves_a_row_on_its_way_to_the_cpu_and_it_is_late() {
    let mut cache = full();
    hint(&mut cache, 0, &[5, 6], 9);
    let plan = commit(&mut cache, up_to(9), &[5, 2]);
    assert_eq!((answer(&plan), plan.left().len(), plan.awaits()), (vec![-1, 2], 0, None));
    assert_eq!((counts(&cache, 0), cache.layer_stats(layer(0)).cpu_misses), ([2, 2, 0, 1, 1], 1));
    assert_eq!((land(&mut cache, 1), stamps(&cache, POOL)), (2, vec![6, 1, 6, 4]), "what was wanted goes by its step");
}

#[test]
fn no_slot_is_taken_that_the_last_step_uses_or_that_is_pinned_or_in_flight() {
    for phase in Phase::ALL {
        // Slot 0 is a hit, which keeps its stamp in some phases.
        let mut cache = full();
        let plan = commit(&mut cache, of_phase(phase, 0), &[0, 4]);
        assert_eq!(answer(&plan), [0, 1]);
        assert_eq!(answer_of(&mut cache, &plan, 1, &[0, 1, 2, 3], 9), [0, 2, 0, 2], "{phase:?}");
        assert_eq!(owners(&cache, POOL)[..2], [Some(0), Some(4)]);
    }
    let mut cache = full();
    cache.pin(&[(layer(0), expert(1))], 2).unwrap();
    let plan = leave(&mut cache, &[6]);
    assert_eq!(later(&mut cache, &plan, 1).1, [(0, 6)]);
    assert_eq!(answer_of(&mut cache, &Plan::new(), 1, &[0, 1, 2, 3], 9), [0, 2, 0, 2]);
    assert_eq!(owners(&cache, POOL), [None, Some(1), None, None]);
}

#[test]
fn nothing_is_taken_that_an_earlier_hint_has_named() {
    let mut cache = full();
    // 1 is resident: it costs nothing, and is spared from now on. 4 is brought.
    assert_eq!(answer_of(&mut cache, &Plan::new(), 0, &[1, 4], 9), [1, 1, 0, 0]);
    assert_eq!(answer_of(&mut cache, &Plan::new(), 1, &[5, 6, 7], 9), [0, 2, 0, 1]);
    assert_eq!((owners(&cache, POOL), cache.in_flight_count(POOL)), ([None, Some(1), None, None].to_vec(), 3));
    // Its layer's step ends that.
    commit(&mut cache, layer(0), &[4]);
    assert!(!cache.is_hinted(layer(0), expert(1)));
    assert_eq!(answer_of(&mut cache, &Plan::new(), 1, &[0], 9), [0, 1, 0, 0]);
    assert_eq!(owners(&cache, POOL)[1], None);
}

#[test]
fn no_more_rows_are_started_than_asked_for_and_every_id_is_counted_once() {
    let mut cache = full();
    let given = [3, 6, ABSENT, 6, 4, 3, 5, 7];
    assert_eq!(answer_of(&mut cache, &Plan::new(), 0, &given, 2), [3, 2, 2, 0]);
    assert_eq!(answer_of(&mut cache, &Plan::new(), 0, &given, 0), [5, 0, 2, 0]);
    assert_eq!(answer_of(&mut cache, &Plan::new(), 0, &given, 9), [5, 1, 0, 1], "slot 3 is 3's, which was named");
    assert_eq!(counts(&cache, 0), [3, 3, 0, 0, 0]);
    assert_eq!(answer_of(&mut cache, &Plan::new(), 0, &[], 9), [0; 4]);
}

#[test]
fn a_step_takes_the_slots_of_hints_only_where_it_finds_no_others() {
    let mut cache = full();
    hint(&mut cache, 1, &[0], 9);
    hint(&mut cache, 1, &[1, 2], 9);
    assert_eq!([1, 2].map(|flight| land(&mut cache, flight)), [1, 2]);
    assert_eq!(owners(&cache, POOL), [Some(8), Some(9), Some(10), Some(3)]);
    // Slot 3 has the latest stamp by far, and goes all the same.
    assert_eq!(answer(&commit(&mut cache, layer(0), &[5])), [3]);
    assert_eq!(counts(&cache, 1), [3, 3, 0, 0, 0]);
    // Of what was named last the last goes first.
    assert_eq!(answer(&commit(&mut cache, layer(0), &[5, 6])), [3, 2]);
    assert_eq!((counts(&cache, 1), cache.is_hinted(layer(1), expert(1))), ([3, 3, 0, 0, 1], true));
    assert_eq!(answer(&commit(&mut cache, layer(0), &[0, 1, 2, 3])), [0, 1, 2, 3]);
    assert_eq!(counts(&cache, 1), [3, 3, 0, 0, 3]);
    let error = refuse(&mut cache, layer(0), &[0, 1, 2, 3, 4]);
    assert_eq!(error.to_string(), "layer 0 routes to 5 distinct experts; pool 0 has 4 slots");
}

#[test]
fn a_step_that_needs_a_slot_of_a_row_on_its_way_awaits_what_it_overwrites() {
    let mut cache = full();
    hint(&mut cache, 1, &[0, 1], 9);
    hint(&mut cache, 1, &[2], 9);
    // Cancelled, its row is nobody's hope, and goes before what was named later.
    assert_eq!(cache.cancel_hint(1), 2);
    let plan = commit(&mut cache, layer(0), &[4, 5]);
    assert_eq!((answer(&plan), plan.awaits()), (vec![1, 3], Some(1)));
    assert_eq!((cache.absence(layer(1), expert(1)), cache.in_flight_count(POOL)), (Some(Absence::Evicted), 2));
    assert_eq!(commit(&mut cache, layer(0), &[4]).awaits(), None, "it is behind that flight now");
    assert_eq!((land(&mut cache, 1), land(&mut cache, 2)), (1, 1));

    // A step that was aborted has put nothing behind it: the next one that copies awaits it still.
    let mut cache = full();
    hint(&mut cache, 1, &[0], 9);
    abort(&mut cache, layer(0), &[4, 5, 6, 7]);
    let plan = commit(&mut cache, layer(0), &[1]);
    assert_eq!((answer(&plan), plan.awaits()), (vec![0], Some(1)));
    assert_eq!(commit(&mut cache, layer(0), &[2]).awaits(), None);
    let mut cache = full();
    hint(&mut cache, 1, &[0], 9);
    abort(&mut cache, layer(0), &[4, 5, 6, 7]);
    assert_eq!((land(&mut cache, 1), commit(&mut cache, layer(0), &[1]).awaits()), (0, None), "its copies are done");
}

#[test]
fn a_hybrid_step_fetches_as_many_as_without_hints() {
    let mut cache = full();
    hint(&mut cache, 1, &[0, 1, 2], 9);
    land(&mut cache, 1);
    // Two of three misses, where one slot is not of hints; the last named row goes.
    let plan = commit(&mut cache, up_to(2), &[4, 5, 6]);
    assert_eq!((answer(&plan), counts(&cache, 1)), (vec![2, 3, -1], [3, 3, 0, 0, 1]));
    let plan = commit(&mut cache, up_to(0), &[4, 5, 6, 7]);
    assert_eq!((answer(&plan), counts(&cache, 1)), (vec![2, 3, -1, -1], [3, 3, 0, 0, 1]), "and none for nothing");
}

#[test]
fn a_refused_step_leaves_hints_as_they_were() {
    let mut cache = full();
    cache.pin(&[(layer(0), expert(3))], 3).unwrap();
    hint(&mut cache, 1, &[0, 1], 9);
    hint(&mut cache, 0, &[4], 9);
    let error = refuse(&mut cache, layer(1), &[0, 2, 3, 4]);
    let (needed, given, slot_count, pinned) = (4, 3, 4, 1);
    let wide = EnsureError::StepTooWide { layer: layer(1), pool: POOL, needed, given, slot_count, pinned, withheld: 0 };
    assert_eq!(error, wide, "slots of hints are not pinned for others");
    let mut parts = Parts::new();
    cache.partition(layer(1), &ids(&[0, 2, 3, 4]), &mut parts).unwrap();
    let widths: Vec<usize> =
        parts.iter().map(|(_, part)| part.iter().filter(|&&route| route != ExpertId::ABSENT).count()).collect();
    assert_eq!(widths, [3, 1], "what a hint brings is in the first part, and its slot is there");
    for (step, part) in parts.iter() {
        let part: Vec<u32> = part.iter().map(|route| route.get()).collect();
        commit(&mut cache, step, &part);
    }
    assert_eq!((counts(&cache, 1), counts(&cache, 0)), ([2, 2, 0, 1, 1], [1, 1, 0, 0, 1]));
}

#[test]
fn a_hint_is_cancelled_by_its_number_and_all_are_at_once() {
    let mut cache = full();
    let (first, _) = hint(&mut cache, 1, &[0], 9);
    let (second, _) = hint(&mut cache, 0, &[4, 3], 9);
    assert_eq!((land(&mut cache, first), cache.cancel_hint(99)), (1, 0));
    assert_eq!((cache.cancel_hint(first), cache.cancel_hint(first)), (1, 0));
    assert_eq!((counts(&cache, 1), cache.is_hinted(layer(1), expert(0))), ([1, 1, 0, 0, 1], false));
    // 3 is resident, and protected by the hint alone.
    assert!(cache.is_hinted(layer(0), expert(3)));
    assert_eq!((cache.cancel_hints(), counts(&cache, 0)), (1, [1, 1, 0, 0, 1]));
    assert!(!cache.is_hinted(layer(0), expert(3)) && cache.is_in_flight(layer(0), expert(4)));
    // Its copy is made all the same, and the row is there for who asks before it goes.
    assert_eq!(land(&mut cache, second), 1);
    assert_eq!(answer(&commit(&mut cache, layer(0), &[4])), [1]);
    cache.check().unwrap();
}

#[test]
fn a_row_that_two_hints_name_is_the_last_ones() {
    let mut cache = full();
    let (first, _) = hint(&mut cache, 1, &[0, 1], 9);
    let (second, copies) = hint(&mut cache, 1, &[0], 9);
    assert_eq!((copies.len(), cache.cancel_hint(first)), (0, 1));
    assert!(cache.is_hinted(layer(1), expert(0)) && !cache.is_hinted(layer(1), expert(1)));
    assert_eq!((cache.cancel_hint(second), counts(&cache, 1)), (1, [2, 2, 0, 0, 2]));
}

#[test]
fn an_aborted_hint_was_never_given_and_a_failed_one_is_wasted() {
    let mut cache = full();
    let before = cache.absence(layer(1), expert(5));
    let mut late = LatePlan::new();
    cache.hint(&Plan::new(), layer(1), &ids(&[5]), 9, &mut late).unwrap().abort();
    cache.check().unwrap();
    assert_eq!((counts(&cache, 1), cache.absence(layer(1), expert(5))), ([0; 5], before));
    assert_eq!((owners(&cache, POOL)[0], cache.in_flight_count(POOL)), (None, 0), "the old owner does not come back");
    cache.hint(&Plan::new(), layer(1), &ids(&[5, 6]), 9, &mut late).unwrap().fail();
    cache.check().unwrap();
    assert_eq!((counts(&cache, 1), cache.absence(layer(1), expert(5))), ([2, 1, 0, 0, 2], before));
    assert_eq!((cache.in_flight_count(POOL), land(&mut cache, late.flight())), (2, 0));
    assert_eq!(owners(&cache, POOL), [None, None, Some(2), Some(3)]);
}

#[test]
fn hints_that_cannot_be_given_change_nothing() {
    let mut cache = Cache::with_pools(8, &[Some(POOL), None], &[4]).unwrap();
    commit(&mut cache, layer(0), &[1]);
    let before = state(&cache);
    let mut late = LatePlan::new();
    for (of, experts, wanted) in [
        (2, &[0][..], "no layer 2: the cache has 2 layers"),
        (1, &[0], "layer 1 holds no slots: it decodes elsewhere"),
        (0, &[0, 8], "layer 0: route 1 is 8, which is no expert of 0..8"),
    ] {
        let error = cache.hint(&Plan::new(), layer(of), &ids(experts), 9, &mut late).map(drop).unwrap_err();
        assert_eq!((error.to_string().as_str(), state(&cache)), (wanted, before.clone()));
    }
    cache.skip_to(u64::MAX);
    let error = cache.hint(&Plan::new(), layer(0), &ids(&[0]), 9, &mut late).map(drop).unwrap_err();
    assert_eq!(error, EnsureError::LastStep { step: cache.step() });
}

#[test]
fn the_first_call_of_a_cache_may_be_a_hint() {
    let mut cache = two_layers();
    assert_eq!((hint(&mut cache, 0, &[3], 9), cache.step()), ((1, vec![(0, 3)]), 1));
    assert_eq!(hint(&mut cache, 0, &[4, 5, 6], 9), (2, vec![(1, 4), (2, 5), (3, 6)]));
    let plan = commit(&mut cache, layer(1), &[0, 1, 2, 3]);
    assert_eq!((plan.step(), plan.awaits(), counts(&cache, 0)), (3, Some(2), [4, 0, 0, 0, 4]));
}

#[test]
fn a_chunk_takes_the_slots_under_its_buffers_from_hints_and_a_hint_takes_none_of_them() {
    // Slots 0 to 7 lie under buffers, 8 to 11 do not.
    let mut cache = borrowing(3, 4, 12);
    hint(&mut cache, 0, &[0, 1], 9);
    hint(&mut cache, 1, &[0], 9);
    let plan = commit(&mut cache, layer(1), &[0]);
    assert_eq!(plan.awaits(), Some(2));
    cache.begin_chunk().unwrap();
    cache.check().unwrap();
    assert_eq!((counts(&cache, 0), counts(&cache, 1), cache.has_flights()), ([2, 0, 0, 0, 2], [1, 0, 0, 1, 0], false));
    assert_eq!(absences(&cache, [0, 1]), [Some(Absence::Staged); 2]);
    assert_eq!(hint(&mut cache, 2, &[0, 1, 2, 3], 9).1, [(8, 0), (9, 1), (10, 2), (11, 3)]);
    assert_eq!(answer(&commit(&mut cache, layer(0), &[1])), [11], "a step of the chunk finds no other");
    let report = cache.abandon_chunk().unwrap();
    assert_eq!((report.lost, counts(&cache, 2)), (1, [4, 0, 0, 0, 1]), "the boarded row was resident");
    // A layer that is staged is no step of it: the hint is open still.
    cache.begin_chunk().unwrap();
    let mut stage = StagePlan::new();
    cache.prefetch(layer(2), &mut stage).unwrap().commit();
    assert_eq!(
        (stage.gathers().len(), cache.hint_stats(layer(2)).open()),
        (0, 3),
        "rows on their way are not gathered"
    );
}

#[test]
fn what_frees_slots_wastes_the_rows_of_hints() {
    type Call = fn(&mut Cache);
    let calls: [(&str, Call, u64); 3] = [
        ("a slot that is forgotten", |cache| assert!(cache.forget(POOL, slot(0)) != Some((layer(0), expert(0)))), 1),
        ("a layer that is forgotten", |cache| assert!(cache.forget_layer(layer(1)).is_ok()), 2),
        ("a reset", Cache::reset, 2),
    ];
    for (what, call, wasted) in calls {
        for landed in [true, false] {
            let mut cache = full();
            hint(&mut cache, 1, &[5, 6], 9);
            if landed {
                land(&mut cache, 1);
            }
            call(&mut cache);
            cache.check().unwrap();
            assert_eq!(counts(&cache, 1), [2, 2, 0, 0, wasted], "{what}");
            land(&mut cache, 1);
            assert_eq!(owners(&cache, POOL)[0], None, "{what}");
        }
    }
    // A boarded row loses its expert at once, and its slot is free once it has landed.
    let mut cache = full();
    hint(&mut cache, 1, &[5], 9);
    commit(&mut cache, layer(1), &[5]);
    assert_eq!(cache.forget(POOL, slot(0)), Some((layer(1), expert(5))));
    cache.check().unwrap();
    assert_eq!((cache.absence(layer(1), expert(5)), cache.in_flight_count(POOL)), (Some(Absence::Freed), 1));
    assert_eq!((land(&mut cache, 1), stamps(&cache, POOL)[0]), (0, 0));
}

#[test]
fn a_rebuild_and_a_state_end_hints_and_keep_what_they_brought() {
    let mut cache = full();
    hint(&mut cache, 1, &[5], 9);
    land(&mut cache, 1);
    let state = cache.state().unwrap();
    assert_eq!((state.pinned.iter().sum::<u8>(), state.pools[0].pinned_count), (0, 0), "kernels know of no hints");
    let mut other = cache.clone();
    other.set_state(&state).unwrap();
    other.check().unwrap();
    assert_eq!((counts(&other, 1), other.is_hinted(layer(1), expert(5))), ([1, 1, 0, 0, 1], false));
    assert_eq!(other.digest(), cache.digest());
    let (mut rebuilt, moves) = cache.rebuilt_with_pools(&pools_of([0; 2]), &[4], Keep::WhatFits).unwrap();
    rebuilt.check().unwrap();
    assert_eq!((moves.len(), counts(&rebuilt, 1), rebuilt.is_hinted(layer(1), expert(5))), (4, [0; 5], false));
    assert_eq!(answer(&commit(&mut rebuilt, layer(1), &[5])), [0]);
    assert_eq!(counts(&cache, 1), [1, 1, 0, 0, 0], "of the old one they go on");
    // Kept for a later run, it is the first to go.
    let residents = cache.residents(1);
    assert_eq!(residents.experts(), flat_ids(&[13, 1, 2, 3]));
}

#[test]
fn a_draft_that_is_accepted_keeps_what_a_hint_brought_for_it() {
    let mut cache = full();
    hint(&mut cache, 1, &[5, 6], 9);
    land(&mut cache, 1);
    commit(&mut cache, of_phase(Phase::Verify, 1), &[5, 6]);
    assert_eq!((counts(&cache, 1), stamps(&cache, POOL)), ([2, 2, 2, 0, 0], vec![1, 1, 3, 4]));
    cache.accept(layer(1), &ids(&[6])).unwrap();
    assert_eq!(stamps(&cache, POOL), [1, 7, 3, 4]);
}

#[test]
fn a_pinned_row_that_a_hint_brings_is_pinned_once_it_is_used() {
    let mut cache = full();
    cache.pin(&[(layer(1), expert(5))], 2).unwrap();
    hint(&mut cache, 1, &[5], 9);
    land(&mut cache, 1);
    cache.check().unwrap();
    assert_eq!(
        refuse(&mut cache, layer(0), &[4, 5, 6, 7]).to_string(),
        "layer 0 routes to 4 distinct experts; pool 0 has 4 slots, 3 without 1 that are pinned for others or in flight"
    );
    commit(&mut cache, layer(1), &[5]);
    assert_eq!(answer(&commit(&mut cache, layer(0), &[4, 5, 6])), [1, 2, 3]);
    // Marked and unmarked while a hint holds it, it is the hint's.
    hint(&mut cache, 1, &[7], 9);
    land(&mut cache, 2);
    cache.pin(&[(layer(1), expert(7))], 2).unwrap();
    cache.unpin(&[(layer(1), expert(7))]).unwrap();
    cache.check().unwrap();
    assert_eq!(counts(&cache, 1), [2, 2, 1, 0, 0]);
}

#[test]
fn a_planner_keeps_the_plan_of_a_hint_open() {
    let mut planner = Planner::new(borrowing(2, 4, 8));
    planner.admit(layer(0), &ids(&[0])).unwrap();
    planner.commit().unwrap();
    let plan = planner.hint(layer(1), &ids(&[0, 2]), 1).unwrap();
    assert_eq!((plan.flight(), plan.copies().len(), plan.hint().unwrap().over_budget), (1, 1, 1));
    let open = PlannerError::Open(OpenPlan::Hint);
    assert_eq!(planner.admit(layer(0), &ids(&[0])).map(drop), Err(open));
    assert_eq!(open.to_string(), "the plan of a hint is open: commit or abort it first");
    planner.abort().unwrap();
    assert_eq!(planner.cache().total_hint_stats(), HintStats::default());
    // Slot 0 is the last step's, and not taken.
    let copies: Vec<_> = planner.hint(layer(1), &ids(&[0]), 9).unwrap().copies().to_vec();
    assert_eq!(copies[0].slot, slot(1));
    planner.commit().unwrap();
    assert_eq!(planner.begin_chunk(), Err(PlannerError::InFlight));
    assert_eq!(planner.hint_plan().flight(), 2);
    assert_eq!(planner.cache_mut().unwrap().land(2), 1);
    assert_eq!(planner.admit(layer(1), &ids(&[0])).unwrap().miss_count(), 0);
    planner.commit().unwrap();
    assert_eq!(planner.cache().hint_stats(layer(1)).useful, 1);
}

// Boarded by the first part, it keeps its slot through the others.
#[test]
fn a_pinned_row_on_its_way_takes_its_slot_from_later_parts() {
    let mut cache = one_pool(1, 8, 3);
    cache.pin(&[(layer(0), expert(0))], 0).unwrap();
    hint(&mut cache, 0, &[0], 9);
    let mut parts = Parts::new();
    cache.partition(layer(0), &ids(&[5, 4, 3, 2, 1, 0]), &mut parts).unwrap();
    let parts: Vec<(Step, Vec<u32>)> =
        parts.iter().map(|(step, part)| (step, part.iter().map(|route| route.get()).collect())).collect();
    let answers: Vec<Vec<i64>> = parts.iter().map(|(step, part)| answer(&commit(&mut cache, *step, part))).collect();
    assert_eq!(answers, [[-2, -2, -2, 2, 1, 0], [-2, 2, 1, -2, -2, -2], [1, -2, -2, -2, -2, -2]]);
}

// It has the step's stamp, and is none of the slots that the step was given.
#[test]
fn what_lands_between_a_step_that_left_it_and_its_later_fetch_is_not_taken() {
    let mut cache = one_pool(1, 8, 2);
    hint(&mut cache, 0, &[1], 9);
    let plan = leave(&mut cache, &[1, 0, 2]);
    assert_eq!((land(&mut cache, 1), cache.stamp(POOL, slot(0))), (1, 2));
    assert_eq!(later(&mut cache, &plan, 9).1, [(1, 0)]);
}

// What kernels of earlier steps read was enqueued before it; a slot that this one frees may be taken at once.
#[test]
fn a_hint_after_an_aborted_step_may_have_its_slots() {
    let mut cache = full();
    let mut plan = Plan::new();
    cache.ensure(layer(0), &ids(&[4, 3]), &mut plan).unwrap().abort();
    assert_eq!(hint_behind(&mut cache, &plan, 1, &[0, 1, 2, 3], 9).1, [(0, 0), (1, 1), (2, 2)], "3 is resident still");
}
