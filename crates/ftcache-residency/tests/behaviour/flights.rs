//! Misses that the CPU computes now and that are resident later. B07.

use super::*;

/// A hybrid step of layer 0 that fetches up to so many.
pub(crate) fn up_to(most: u32) -> Step {
    let fetch = Fetch { rule: FetchRule::UpTo(most), most: None };
    Step { misses: Misses::Hybrid { fetch, order: FetchOrder::Recency }, ..Step::new(layer(0)) }
}

/// Commits a step of layer 0 that leaves all its misses to the CPU.
#[track_caller]
pub(crate) fn leave(cache: &mut Cache, routes: &[u32]) -> Plan {
    commit(cache, up_to(0), routes)
}

/// Fetches behind a step. Returns the number of the flight and its copies as `(slot, row)`.
#[track_caller]
pub(crate) fn later(cache: &mut Cache, plan: &Plan, most: usize) -> (u64, Vec<(u32, u32)>) {
    let mut late = LatePlan::new();
    let ticket = cache.fetch_later(plan, most, &mut late).unwrap();
    assert_eq!((ticket.plan().layer(), ticket.plan().pool()), (plan.layer(), plan.pool()));
    ticket.commit();
    cache.check().unwrap();
    (late.flight(), late.copies().iter().map(|copy| (copy.slot.get(), copy.row.get())).collect())
}

#[track_caller]
pub(crate) fn land(cache: &mut Cache, flight: u64) -> usize {
    let landed = cache.land(flight);
    cache.check().unwrap();
    landed
}

/// Queued, evictions, landed, lost.
pub(crate) fn late_stats(cache: &Cache) -> [u64; 4] {
    let LateStats { queued, evictions, landed, lost } = cache.late_stats();
    [queued, evictions, landed, lost]
}

pub(crate) fn absences<const N: usize>(cache: &Cache, experts: [u32; N]) -> [Option<Absence>; N] {
    experts.map(|number| cache.absence(layer(0), expert(number)))
}

/// One layer of eight experts, of which 0 to 3 fill the four slots with the stamps 1 to 4.
pub(crate) fn full_pool() -> Cache {
    let mut cache = one_pool(1, 8, 4);
    for expert in 0..4 {
        decode(&mut cache, 0, &[expert]);
    }
    cache
}

/// One layer of eight experts over two slots: 0 and 1 are on their way to slots 0 and 1, in flight 1.
pub(crate) fn all_in_flight() -> Cache {
    let mut cache = one_pool(1, 8, 2);
    let plan = leave(&mut cache, &[0, 1]);
    assert_eq!(later(&mut cache, &plan, 9), (1, vec![(0, 0), (1, 1)]));
    cache
}

#[test]
fn a_row_is_neither_here_nor_fetched_until_it_has_landed_and_then_it_is_a_hit() {
    let mut cache = full_pool();
    let plan = leave(&mut cache, &[7]);
    assert_eq!(later(&mut cache, &plan, 1), (1, vec![(0, 7)]));
    assert!(cache.is_in_flight(layer(0), expert(7)) && !cache.is_in_flight(layer(0), expert(0)));
    assert_eq!(absences(&cache, [0, 7]), [Some(Absence::Evicted), Some(Absence::InFlight)]);
    assert_eq!((owners(&cache, POOL), cache.in_flight_count(POOL)), (vec![None, Some(1), Some(2), Some(3)], 1));
    let plan = commit(&mut cache, up_to(9), &[7, 1, 7]);
    assert_eq!(
        (answer(&plan), plan.left(), plan.miss_count(), plan.left_count()),
        (vec![-1, 1, -1], &ids(&[])[..], 1, 1)
    );
    assert_eq!(absences(&cache, [7]), [Some(Absence::InFlight)], "it stays on its way");
    assert_eq!(later(&mut cache, &plan, 9), (2, vec![]), "and is not fetched twice");

    assert_eq!(land(&mut cache, 1), 1);
    assert!(!cache.is_in_flight(layer(0), expert(7)));
    assert_eq!(
        (owners(&cache, POOL), stamps(&cache, POOL)),
        (vec![Some(7), Some(1), Some(2), Some(3)], vec![5, 6, 3, 4])
    );
    assert_eq!(decode(&mut cache, 0, &[7]), "step 7 pool 0: routes [7] -> slots [0]");
    assert_eq!(late_stats(&cache), [1, 1, 1, 0]);
    assert_eq!(cache.layer_stats(layer(0)).cpu_misses, 1, "of step 6: it had been left to the CPU before");
}

#[test]
fn the_rows_that_the_step_would_have_fetched_next_take_the_slots_that_would_go_next() {
    let mut cache = full_pool();
    leave(&mut cache, &[7, 5]);
    leave(&mut cache, &[6]);
    // Active last: 6 in step 6, 5 and 7 in step 5, and 4 never. The step fetches 6 into slot 0.
    let plan = commit(&mut cache, up_to(1), &[4, 5, 6, 7]);
    assert_eq!((answer(&plan), plan.left()), (vec![-1, -1, 0, -1], &ids(&[5, 7, 4])[..]));
    let mut late = LatePlan::new();
    cache.fetch_later(&plan, 3, &mut late).unwrap().commit();
    let copies: Vec<_> = late.copies().iter().map(|copy| (copy.slot.get(), copy.row.get())).collect();
    assert_eq!(copies, [(1, 5), (2, 7), (3, 4)]);
    let runs: Vec<_> = late.runs().map(|run| (run.slot.get(), run.row.get(), run.count)).collect();
    assert_eq!(runs, [(3, 4, 1), (1, 5, 1), (2, 7, 1)], "and run in that of rows");
}

#[test]
fn neighbouring_rows_to_neighbouring_slots_are_one_run() {
    let mut cache = one_pool(1, 8, 4);
    leave(&mut cache, &[6]);
    let (plan, mut late) = (leave(&mut cache, &[2, 3, 4, 6]), LatePlan::new());
    cache.fetch_later(&plan, 4, &mut late).unwrap().commit();
    let runs: Vec<_> = late.runs().map(|run| (run.slot.get(), run.row.get(), run.count)).collect();
    assert_eq!(runs, [(1, 2, 3), (0, 6, 1)]);
}

#[test]
fn a_pinned_slot_is_not_taken_and_a_pinned_hit_counts_once() {
    let mut cache = full_pool();
    cache.pin(&[(layer(0), expert(0)), (layer(0), expert(1))], 2).unwrap();
    let plan = leave(&mut cache, &[0, 4, 5, 6, 7]);
    assert_eq!(later(&mut cache, &plan, 9).1, [(2, 4), (3, 5)], "slot 0 is pinned and hit, slot 1 is pinned");
}

#[test]
fn a_row_that_lands_has_the_stamp_of_its_step_and_goes_by_it() {
    let mut cache = full_pool();
    let plan = leave(&mut cache, &[4]);
    let (flight, _) = later(&mut cache, &plan, 1);
    for expert in [1, 2, 3] {
        decode(&mut cache, 0, &[expert]);
    }
    assert_eq!((land(&mut cache, flight), stamps(&cache, POOL)), (1, vec![5, 6, 7, 8]));
    let plan = decode(&mut cache, 0, &[5]);
    assert_eq!(plan, "step 9 pool 0: routes [5] -> slots [0]; copy 5 -> slot 0 (was 4, last step 5)");
}

// Its turn to go comes while it is in flight.
#[test]
fn a_slot_in_flight_is_passed_over_as_a_victim() {
    let mut cache = full_pool();
    let plan = leave(&mut cache, &[4]);
    let (flight, _) = later(&mut cache, &plan, 1);
    for first in [5, 1, 5, 1] {
        // Three experts, and slots 1 to 3 in turn.
        let plan = commit(&mut cache, layer(0), &[first, first + 1, first + 2]);
        assert!(plan.copies().iter().all(|copy| copy.slot != slot(0)), "{plan}");
    }
    assert_eq!((land(&mut cache, flight), stamps(&cache, POOL)), (1, vec![5, 9, 9, 9]));
    assert_eq!(commit(&mut cache, layer(0), &[0]).copies()[0].slot, slot(0), "and its turn has come");
}

#[test]
fn a_plain_step_to_a_row_on_its_way_is_refused_and_changes_nothing() {
    let mut cache = one_pool(1, 8, 4);
    decode(&mut cache, 0, &[1]);
    let plan = leave(&mut cache, &[5]);
    later(&mut cache, &plan, 1);
    for phase in Phase::ALL {
        let error = refuse(&mut cache, of_phase(phase, 0), &[1, ABSENT, 5, 6, 5]);
        assert_eq!(error, EnsureError::InFlight { layer: layer(0), route: 2, expert: expert(5) });
        assert_eq!(error.to_string(), "layer 0 route 2: the row of expert 5 is on its way");
    }
    let mut parts = Parts::new();
    let error = cache.partition(layer(0), &ids(&[1, 5]), &mut parts).unwrap_err();
    assert_eq!((error, parts.len()), (EnsureError::InFlight { layer: layer(0), route: 1, expert: expert(5) }, 0));
    assert_eq!(decode(&mut cache, 0, &[1]), "step 3 pool 0: routes [1] -> slots [0]", "others go on");
    land(&mut cache, 1);
    assert_eq!(decode(&mut cache, 0, &[5]), "step 4 pool 0: routes [5] -> slots [1]");
}

#[test]
fn a_step_too_wide_is_told_the_slots_in_flight() {
    let mut cache = full_pool();
    let plan = leave(&mut cache, &[7]);
    later(&mut cache, &plan, 1);
    cache.pin(&[(layer(0), expert(1)), (layer(0), expert(2))], 0).unwrap();
    // Slot 0 is in flight and slot 1 pinned for another; slot 2 is pinned for one that the step uses.
    let error = refuse(&mut cache, layer(0), &[2, 4, 5]);
    let wide = EnsureError::StepTooWide {
        layer: layer(0),
        pool: POOL,
        needed: 3,
        given: 2,
        slot_count: 4,
        pinned: 2,
        withheld: 0,
    };
    assert_eq!(error, wide);
    assert_eq!(answer(&commit(&mut cache, layer(0), &[2, 4])), [2, 3]);
}

#[test]
fn an_expert_pinned_on_its_way_is_no_victim_once_it_is_here() {
    let mut cache = one_pool(1, 8, 3);
    let plan = leave(&mut cache, &[0, 1]);
    later(&mut cache, &plan, 2);
    cache.pin(&[(layer(0), expert(0)), (layer(0), expert(1))], 1).unwrap();
    cache.unpin(&[(layer(0), expert(1))]).unwrap();
    cache.check().unwrap();
    assert_eq!(answer(&commit(&mut cache, layer(0), &[5])), [2], "unpinned, 1 is on its way all the same");
    assert_eq!(land(&mut cache, 1), 2);
    assert_eq!([6, 7].map(|number| answer(&commit(&mut cache, layer(0), &[number]))), [[1], [2]]);
    assert_eq!(owners(&cache, POOL)[0], Some(0));
    cache.unpin(&[(layer(0), expert(0))]).unwrap();
    assert_eq!(answer(&commit(&mut cache, layer(0), &[5])), [0]);
}

// Slots 0 to 2: 0 is on its way and pinned, 2 is pinned and not here, and 3 has the third.
#[test]
fn a_pinned_row_on_its_way_takes_one_slot_from_the_parts_of_a_step() {
    let mut cache = one_pool(1, 4, 3);
    let plan = leave(&mut cache, &[0]);
    later(&mut cache, &plan, 1);
    cache.pin(&[(layer(0), expert(0)), (layer(0), expert(2))], 0).unwrap();
    let mut parts = Parts::new();
    cache.partition(up_to(9), &ids(&[3, 0, 2]), &mut parts).unwrap();
    let answers: Vec<_> = parts.iter().map(|(step, part)| answer(&commit(&mut cache, step, &part_ids(part)))).collect();
    let of_route = |route: usize| answers.iter().map(|answer| answer[route]).find(|&slot| slot != -2);
    assert_eq!([0, 1, 2].map(of_route), [Some(2), Some(-1), Some(1)]);
}

fn part_ids(part: &[ExpertId]) -> Vec<u32> {
    part.iter().map(|route| route.get()).collect()
}

#[test]
fn free_slots_go_first_and_no_more_rows_than_asked_for() {
    for (most, copies) in [(0, vec![]), (1, vec![(3, 4)]), (3, vec![(3, 4), (0, 5), (1, 6)])] {
        let mut cache = full_pool();
        cache.forget(POOL, slot(3));
        let plan = leave(&mut cache, &[4, 5, 6, 7]);
        assert_eq!(later(&mut cache, &plan, most), (1, copies.clone()));
        let (rows, evictions) = (copies.len() as u64, copies.iter().filter(|(slot, _)| *slot != 3).count() as u64);
        assert_eq!((late_stats(&cache), cache.in_flight_count(POOL)), ([rows, evictions, 0, 0], rows as u32));
        let why = |index| if index < copies.len() { Absence::InFlight } else { Absence::OnCpu };
        assert_eq!(absences(&cache, [4, 5, 6, 7]), [0, 1, 2, 3].map(|index| Some(why(index))));
    }
}

#[test]
fn no_slot_that_the_step_uses_is_taken() {
    for phase in Phase::ALL {
        // Slot 0 is a hit, slot 1 goes to the first miss: in some phases both have lower stamps than slots 2 and 3.
        let mut cache = full_pool();
        let plan = commit(&mut cache, Step { phase, ..up_to(1) }, &[0, 4, 5, 6, 7]);
        assert_eq!(answer(&plan), [0, 1, -1, -1, -1], "{phase:?}");
        assert_eq!(later(&mut cache, &plan, 9), (1, vec![(2, 5), (3, 6)]), "{phase:?}");
    }
}

// B07.
#[test]
fn where_all_slots_are_in_flight_nobody_gets_one() {
    let mut cache = all_in_flight();
    let plan = commit(&mut cache, up_to(9), &[2, 0, 3]);
    assert_eq!((answer(&plan), plan.left()), (vec![-1; 3], &ids(&[2, 3])[..]));
    assert_eq!(later(&mut cache, &plan, 9), (2, vec![]));
    for phase in Phase::ALL {
        let (needed, given, slot_count, pinned) = (1, 0, 2, 2);
        let wide =
            EnsureError::StepTooWide { layer: layer(0), pool: POOL, needed, given, slot_count, pinned, withheld: 0 };
        assert_eq!(refuse(&mut cache, of_phase(phase, 0), &[2]), wide);
    }
    assert_eq!((owners(&cache, POOL), land(&mut cache, 1)), (vec![None; 2], 2));
    assert_eq!(owners(&cache, POOL), [Some(0), Some(1)]);
}

#[test]
fn a_flight_lands_once_and_flights_land_in_any_order() {
    let mut cache = one_pool(1, 8, 4);
    for (flight, routes) in [(1, &[0][..]), (2, &[1, 2]), (3, &[3])] {
        let plan = leave(&mut cache, routes);
        assert_eq!(later(&mut cache, &plan, 9).0, flight);
    }
    assert_eq!([3, 3, 2, 4, 0, 2, 1].map(|flight| land(&mut cache, flight)), [1, 0, 2, 0, 0, 0, 1]);
    assert_eq!((owners(&cache, POOL), late_stats(&cache)), ([0, 1, 2, 3].map(Some).to_vec(), [4, 0, 4, 0]));
    assert_eq!(stamps(&cache, POOL), [1, 2, 2, 3]);
}

/// Has a later fetch refused, and holds that nothing has changed.
#[track_caller]
fn refuse_later(cache: &mut Cache, plan: &Plan) -> LateError {
    let (before, mut late) = (state(cache), LatePlan::new());
    let error = cache.fetch_later(plan, 1, &mut late).map(drop).unwrap_err();
    assert_eq!((state(cache), format!("{late:?}")), (before, format!("{:?}", LatePlan::new())));
    error
}

#[test]
fn only_behind_the_last_step_can_be_fetched_and_only_if_it_is_hybrid() {
    let mut cache = one_pool(1, 8, 4);
    let (first, second) = (leave(&mut cache, &[5]), leave(&mut cache, &[6]));
    let error = refuse_later(&mut cache, &first);
    assert_eq!(error, LateError::NotTheLastStep { step: 1, last: Some(2) });
    assert_eq!(error.to_string(), "step 1 is not the last call, which is hybrid step 2");
    let plain = commit(&mut cache, layer(0), &[0]);
    for (plan, step) in [(&second, 2), (&plain, 3)] {
        let error = refuse_later(&mut cache, plan);
        assert_eq!(error, LateError::NotTheLastStep { step, last: None });
        assert_eq!(error.to_string(), format!("step {step} is not the last call, or not a hybrid step"));
    }
    let plan = leave(&mut cache, &[5]);
    assert_eq!(later(&mut cache, &plan, 1), (1, vec![(1, 5)]), "what was refused has no number");
    assert_eq!(refuse_later(&mut cache, &plan), LateError::NotTheLastStep { step: 4, last: None }, "once");
}

#[test]
fn nothing_that_frees_slots_or_uses_others_may_lie_between_a_step_and_its_later_fetch() {
    type Call = fn(&mut Cache);
    let calls: [(&str, Call); 10] = [
        ("steps that are passed over", |cache| assert_eq!(cache.skip_to(70), 70)),
        ("a slot that is freed", |cache| assert_eq!(cache.forget(POOL, slot(11)), None)),
        ("a layer that is forgotten", |cache| assert_eq!(cache.forget_layer(layer(2)), Ok(0))),
        ("a reset", Cache::reset),
        ("a chunk that begins", |cache| cache.begin_chunk().unwrap()),
        ("a step", |cache| drop(decode(cache, 1, &[0]))),
        ("an aborted step", |cache| abort(cache, layer(1), &[0])),
        ("an accepted draft", |cache| cache.accept(layer(1), &[]).unwrap()),
        ("a rebuild", |cache| *cache = cache.rebuilt_with_pools(&pools_of([0; 3]), &[12], Keep::WhatFits).unwrap().0),
        ("an answer that is repeated", |cache| {
            assert!(commit(cache, Step { token: Some(7), ..of_phase(Phase::Verify, 1) }, &[1]).is_repeat());
        }),
    ];
    for (what, call) in calls {
        let mut cache = borrowing(3, 4, 12);
        commit(&mut cache, Step { token: Some(7), ..of_phase(Phase::Verify, 1) }, &[1]);
        let plan = leave(&mut cache, &[0]);
        call(&mut cache);
        assert_eq!(refuse_later(&mut cache, &plan), LateError::NotTheLastStep { step: 2, last: None }, "{what}");
    }
    let mut cache = borrowing(3, 4, 12);
    cache.begin_chunk().unwrap();
    let plan = leave(&mut cache, &[0]);
    cache.abandon_chunk().unwrap();
    assert_eq!(refuse_later(&mut cache, &plan), LateError::NotTheLastStep { step: 1, last: None }, "a chunk that ends");
}

#[test]
fn what_neither_frees_slots_nor_is_a_step_may_lie_between_a_step_and_its_later_fetch() {
    let mut cache = full_pool();
    let plan = leave(&mut cache, &[4]);
    later(&mut cache, &plan, 1);
    let step = Step { token: Some(1), ..up_to(0) };
    let plan = commit(&mut cache, step, &[1, 5, 6, 7]);
    refuse(&mut cache, layer(0), &[8]);
    assert_eq!(land(&mut cache, 1), 1);
    cache.pin(&[(layer(0), expert(2))], 2).unwrap();
    assert!(commit(&mut cache, step, &[1, 5, 6, 7]).is_repeat());
    // Slot 0 has landed with stamp 5, slot 1 is the step's, and slot 2 is pinned.
    assert_eq!(later(&mut cache, &plan, 9).1, [(3, 5), (0, 6)]);
    assert_eq!((land(&mut cache, 2), stamps(&cache, POOL)), (2, vec![6, 6, 3, 6]));
}

#[test]
fn a_token_has_the_same_answer_when_its_rows_have_landed() {
    let mut cache = one_pool(1, 8, 3);
    let step = Step { token: Some(1), ..up_to(1) };
    let plan = commit(&mut cache, step, &[0, 1, 2]);
    assert_eq!(later(&mut cache, &plan, 1), (1, vec![(1, 1)]));
    for landed in [0, 1] {
        let again = commit(&mut cache, step, &[0, 1, 2]);
        assert_eq!((again.is_repeat(), answer(&again), again.left()), (true, vec![0, -1, -1], plan.left()));
        assert_eq!(land(&mut cache, 1), 1 - landed);
    }
}
