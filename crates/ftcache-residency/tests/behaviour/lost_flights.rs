//! Flights that come to nothing: aborted, failed, forgotten, overwritten by a chunk or left behind by a rebuild.

use super::flights::{absences, all_in_flight, full_pool, land, late_stats, later, leave, up_to};
use super::*;

#[test]
fn a_late_ticket_that_is_dropped_or_aborted_leaves_its_slots_free() {
    for is_told in [false, true] {
        let mut cache = full_pool();
        let plan = leave(&mut cache, &[4, 5]);
        let mut late = LatePlan::new();
        let ticket = cache.fetch_later(&plan, 9, &mut late).unwrap();
        if is_told {
            ticket.abort()
        } else {
            drop(ticket)
        }
        cache.check().unwrap();
        assert_eq!(
            (owners(&cache, POOL), stamps(&cache, POOL)),
            (vec![None, None, Some(2), Some(3)], vec![0, 0, 3, 4])
        );
        let why = [Some(Absence::Evicted), Some(Absence::Evicted), Some(Absence::OnCpu), Some(Absence::OnCpu)];
        assert_eq!((absences(&cache, [0, 1, 4, 5]), cache.in_flight_count(POOL)), (why, 0));
        assert_eq!((land(&mut cache, 1), late_stats(&cache)), (0, [2, 2, 0, 2]));
        let plan = leave(&mut cache, &[4, 5]);
        assert_eq!(later(&mut cache, &plan, 9), (2, vec![(0, 4), (1, 5)]), "the same again, under another number");
    }
}

#[test]
fn a_flight_that_failed_keeps_its_slots_until_it_has_landed_and_leaves_its_rows_to_the_cpu() {
    let mut cache = full_pool();
    let plan = leave(&mut cache, &[4, 5]);
    let mut late = LatePlan::new();
    cache.fetch_later(&plan, 9, &mut late).unwrap().fail();
    cache.check().unwrap();
    assert_eq!(absences(&cache, [4, 5]), [Some(Absence::OnCpu); 2]);
    assert_eq!((cache.in_flight_count(POOL), late_stats(&cache)), (2, [2, 2, 0, 2]));
    let plan = commit(&mut cache, layer(0), &[4, 5]);
    assert_eq!(answer(&plan), [2, 3], "its rows may come to other slots meanwhile");
    assert_eq!((land(&mut cache, late.flight()), stamps(&cache, POOL)), (0, vec![0, 0, 6, 6]));
    assert_eq!(answer(&commit(&mut cache, layer(0), &[6, 7])), [0, 1], "and then its slots are the first to go");
}

#[test]
fn a_forgotten_slot_stays_out_of_use_until_its_flight_has_landed_and_is_the_first_to_go_then() {
    let mut cache = full_pool();
    let plan = leave(&mut cache, &[4, 5]);
    let (flight, _) = later(&mut cache, &plan, 2);
    assert_eq!(cache.forget(POOL, slot(0)), None, "nobody was in it");
    cache.check().unwrap();
    assert_eq!(
        (absences(&cache, [4, 5]), late_stats(&cache)),
        ([Some(Absence::Freed), Some(Absence::InFlight)], [2, 2, 0, 1])
    );
    assert_eq!((stamps(&cache, POOL), cache.in_flight_count(POOL)), (vec![5, 5, 3, 4], 2));
    cache.forget(POOL, slot(0));
    assert_eq!(late_stats(&cache)[3], 1, "a row is lost once");
    // 4 may come elsewhere meanwhile, and that is not undone.
    assert_eq!(answer(&commit(&mut cache, layer(0), &[4, 6])), [2, 3]);
    assert!(matches!(refuse(&mut cache, layer(0), &[4, 6, 7]), EnsureError::StepTooWide { given: 2, pinned: 2, .. }));
    assert_eq!((land(&mut cache, flight), late_stats(&cache)), (1, [2, 2, 1, 1]));
    assert_eq!((owners(&cache, POOL), stamps(&cache, POOL)), (vec![None, Some(5), Some(4), Some(6)], vec![0, 5, 6, 6]));
    assert_eq!(answer(&commit(&mut cache, layer(0), &[7])), [0]);
}

#[test]
fn forgetting_a_layer_forgets_its_rows_on_their_way_and_no_others() {
    let mut cache = one_pool(2, 8, 6);
    decode(&mut cache, 0, &[0]);
    let plan = leave(&mut cache, &[1]);
    later(&mut cache, &plan, 1);
    let plan = commit(&mut cache, Step { layer: layer(1), ..up_to(0) }, &[1]);
    later(&mut cache, &plan, 1);
    assert_eq!(cache.forget_layer(layer(0)), Ok(1), "slots that held an expert");
    cache.check().unwrap();
    assert_eq!(absences(&cache, [0, 1]), [Some(Absence::Freed); 2]);
    assert_eq!((cache.is_in_flight(layer(1), expert(1)), cache.in_flight_count(POOL)), (true, 2));
    assert_eq!([1, 2].map(|flight| land(&mut cache, flight)), [0, 1]);
}

#[test]
fn a_reset_loses_all_flights_and_a_warm_start_waits_for_them() {
    let mut cache = all_in_flight();
    let residents = Cache::residents(&full_pool(), 1);
    cache.reset();
    cache.check().unwrap();
    assert_eq!((absences(&cache, [0, 1]), late_stats(&cache)), ([Some(Absence::Freed); 2], [2, 0, 0, 2]));
    let error = cache.bring_back(&residents, 1, &mut Vec::new()).map(drop).unwrap_err();
    assert_eq!(error, SnapshotError::NotEmpty { resident_count: 2 });
    assert_eq!(land(&mut cache, 1), 0);
    cache.bring_back(&residents, 1, &mut Vec::new()).unwrap().commit();
    cache.check().unwrap();
    assert_eq!(owners(&cache, POOL), [Some(2), Some(3)]);
}

#[test]
fn pools_that_are_rebuilt_have_no_flights_and_no_number_comes_again() {
    for keep in [Keep::Nothing, Keep::WhatFits] {
        let mut cache = full_pool();
        let plan = leave(&mut cache, &[4]);
        assert_eq!(later(&mut cache, &plan, 1).0, 1);
        let (mut next, _) = cache.rebuilt_with_pools(&pools_of([0]), &[4], keep).unwrap();
        next.check().unwrap();
        assert_eq!((absences(&next, [4]), next.in_flight_count(POOL)), ([Some(Absence::Freed)], 0));
        assert_eq!((late_stats(&next), owners(&next, POOL)[0]), ([0; 4], None));
        let plan = leave(&mut next, &[4]);
        let flight = later(&mut next, &plan, 1).0;
        assert_eq!([1, flight].map(|flight| (flight, land(&mut next, flight))), [(1, 0), (2, 1)], "{keep:?}");
        assert_eq!(land(&mut cache, 1), 1, "the old pools go on as they were");
    }
}

// Buffers lie on slots 0 to 7.
#[test]
fn a_chunk_frees_the_slots_in_flight_under_its_buffers() {
    let mut cache = borrowing(3, 4, 12);
    for number in 0..2 {
        decode(&mut cache, number, &[0, 1, 2, 3]);
    }
    cache.forget(POOL, slot(5));
    let plan = commit(&mut cache, Step { layer: layer(2), ..up_to(0) }, &[0, 1, 2]);
    let (flight, copies) = later(&mut cache, &plan, 2);
    assert_eq!(copies, [(5, 0), (8, 1)]);
    cache.begin_chunk().unwrap();
    cache.check().unwrap();
    assert_eq!(
        [0, 1].map(|number| cache.absence(layer(2), expert(number))),
        [Some(Absence::Staged), Some(Absence::InFlight)]
    );
    assert_eq!((cache.in_flight_count(POOL), late_stats(&cache)), (1, [2, 0, 0, 1]));
    let plan = commit(&mut cache, Step { layer: layer(2), ..up_to(0) }, &[0, 1, 2]);
    assert_eq!(later(&mut cache, &plan, 9).1, [(9, 0), (10, 2)], "again, and to no slot under a buffer");
    let mut stage = StagePlan::new();
    cache.prefetch(layer(2), &mut stage).unwrap().commit();
    assert_eq!((stage.gathers().len(), stage.misses()[0].count), (0, 4), "what is on its way is no hit");
    assert_eq!(land(&mut cache, flight), 1);
    let report = cache.abandon_chunk().unwrap();
    assert_eq!((report.lost, cache.stamp(POOL, slot(5))), (7, 0), "what never was here is not lost to the buffers");
    assert_eq!(land(&mut cache, flight), 0);
}

// Of nine slots the buffer leaves 7 and 8, and the step hits one of these.
#[test]
fn fetches_behind_a_step_of_a_chunk_end_at_the_slots_that_no_buffer_lies_on() {
    let mut cache = borrowing(2, 7, 9);
    cache.set_staging(cache.staging().unwrap().clone().without_overlap(), 0).unwrap();
    cache.begin_chunk().unwrap();
    commit(&mut cache, layer(0), &[0]);
    let plan = leave(&mut cache, &[0, 1, 2, 3]);
    assert_eq!((answer(&plan), later(&mut cache, &plan, 9).1), (vec![7, -1, -1, -1], vec![(8, 1)]));
    let plan = leave(&mut cache, &[0, 1, 2, 3]);
    assert_eq!((plan.left(), later(&mut cache, &plan, 9).1), (&ids(&[2, 3])[..], vec![]));
}
