//! What decode, verify and prefill steps leave in the order of victims.

use super::*;

/// One layer of eight experts, of which 0, 1 and 2 fill the three slots with stamps 2, 3 and 4.
fn full_pool() -> Cache {
    let mut cache = one_pool(1, 8, 3);
    decode(&mut cache, 0, &[]);
    for expert in 0..3 {
        decode(&mut cache, 0, &[expert]);
    }
    assert_eq!(stamps(&cache, POOL), [2, 3, 4]);
    cache
}

fn verify(cache: &mut Cache, routes: &[u32]) -> Plan {
    commit(cache, of_phase(Phase::Verify, 0), routes)
}

fn accept(cache: &mut Cache, accepted: &[u32]) -> Result<(), EnsureError> {
    let before = format!("{cache:?}");
    let outcome = cache.accept(layer(0), &ids(accepted));
    cache.check().unwrap();
    assert!(outcome.is_ok() || format!("{cache:?}") == before, "a refused call changes nothing");
    outcome
}

#[test]
fn only_decode_stamps_its_hits() {
    for (phase, wanted) in [(Phase::Decode, [5, 3, 4]), (Phase::Verify, [2, 3, 4]), (Phase::Prefill, [2, 3, 4])] {
        let mut cache = full_pool();
        let plan = commit(&mut cache, of_phase(phase, 0), &[0]);
        assert_eq!((plan.step(), plan.phase()), (5, phase));
        assert_eq!((cache.step(), stamps(&cache, POOL)), (5, wanted.to_vec()), "{phase:?}");
    }
}

#[test]
fn a_step_takes_no_slot_that_it_hits_in_any_phase() {
    for (phase, wanted) in [(Phase::Decode, [5, 5, 5]), (Phase::Verify, [2, 5, 5]), (Phase::Prefill, [2, 1, 1])] {
        let mut cache = full_pool();
        // 0 goes first of all by its stamp, but the step hits it.
        assert_eq!(
            commit(&mut cache, of_phase(phase, 0), &[3, 0, 4]).to_string(),
            "step 5 pool 0: routes [3, 0, 4] -> slots [1, 0, 2]; copy 3 -> slot 1 (was 1, last step 3); \
             copy 4 -> slot 2 (was 2, last step 4)"
        );
        assert_eq!(stamps(&cache, POOL), wanted, "{phase:?}");
    }
}

#[test]
fn a_step_as_wide_as_the_pool_fits_in_every_phase() {
    for phase in Phase::ALL {
        let mut cache = one_pool(1, 8, 3);
        let step = of_phase(phase, 0);
        let answers = [[0, 1, 2], [2, 3, 4], [0, 1, 2], [5, 6, 7], [7, 6, 5]].map(|routes| {
            let plan = commit(&mut cache, step, &routes);
            (answer(&plan), plan.copies().len())
        });
        // 2 keeps its slot from the first to the third, and its first stamp too unless the phase is decode: where the
        // others are stamped and it is not, it goes first.
        let (fourth, fifth) = if phase == Phase::Verify { ([2, 0, 1], [1, 0, 2]) } else { ([0, 1, 2], [2, 1, 0]) };
        let wanted = [([0, 1, 2], 3), ([2, 0, 1], 2), ([0, 1, 2], 2), (fourth, 3), (fifth, 0)];
        assert_eq!(answers, wanted.map(|(slots, copies)| (slots.to_vec(), copies)), "{phase:?}");
        let error = refuse(&mut cache, step, &[0, 5, 6, 7]);
        assert!(matches!(error, EnsureError::StepTooWide { needed: 4, given: 3, .. }), "{phase:?}: {error}");
    }
}

#[test]
fn accepted_drafts_are_stamped_and_rejected_fetches_go_first() {
    let mut cache = full_pool();
    verify(&mut cache, &[0, 3, 4]);
    assert_eq!(accept(&mut cache, &[3, ABSENT, 0, 3]), Ok(()));
    assert_eq!((cache.step(), stamps(&cache, POOL)), (6, vec![6, 6, 1]));
    assert_eq!(
        decode(&mut cache, 0, &[5]),
        "step 7 pool 0: routes [5] -> slots [2]; copy 5 -> slot 2 (was 4, last step 1)"
    );
}

#[test]
fn rejected_hits_keep_their_stamps() {
    let mut cache = full_pool();
    verify(&mut cache, &[2, 1, 5]);
    assert_eq!(accept(&mut cache, &[1]), Ok(()));
    // 5 took the slot of 0; 2 was hit and is as it was.
    assert_eq!(stamps(&cache, POOL), [1, 6, 4]);
    verify(&mut cache, &[2, 1]);
    assert_eq!(accept(&mut cache, &[]), Ok(()));
    assert_eq!((cache.step(), stamps(&cache, POOL)), (8, vec![1, 6, 4]));
}

#[test]
fn a_rejected_fetch_that_was_used_since_keeps_its_stamp() {
    let mut cache = full_pool();
    verify(&mut cache, &[3, 4]);
    decode(&mut cache, 0, &[4]);
    assert_eq!(accept(&mut cache, &[]), Ok(()));
    assert_eq!(stamps(&cache, POOL), [1, 6, 4]);
}

#[test]
fn what_lost_its_slot_since_is_neither_stamped_nor_cooled() {
    let mut cache = full_pool();
    verify(&mut cache, &[0, 3]);
    decode(&mut cache, 0, &[5, 6, 7]);
    assert_eq!(accept(&mut cache, &[0]), Ok(()));
    assert_eq!((cache.step(), stamps(&cache, POOL)), (7, vec![6, 6, 6]));
}

#[test]
fn there_is_one_verify_step_to_accept_and_it_is_the_last() {
    let nothing = Err(EnsureError::NothingToAccept { layer: layer(0) });
    let mut cache = full_pool();
    assert_eq!(accept(&mut cache, &[]), nothing, "a decode step is not to be accepted");
    verify(&mut cache, &[0]);
    verify(&mut cache, &[1, 2]);
    let error = EnsureError::NotVerified { layer: layer(0), route: 1, expert: expert(0) };
    assert_eq!(accept(&mut cache, &[1, 0]), Err(error), "the later verify step stands for the layer");
    assert_eq!(accept(&mut cache, &[1]), Ok(()), "a refused call has not used it up");
    assert_eq!(accept(&mut cache, &[1]), nothing, "once");
}

#[test]
fn an_aborted_verify_step_is_not_to_be_accepted() {
    let mut cache = full_pool();
    abort(&mut cache, of_phase(Phase::Verify, 0), &[0, 3]);
    assert_eq!(accept(&mut cache, &[0]), Err(EnsureError::NothingToAccept { layer: layer(0) }));
}

#[test]
fn a_verify_step_closes_the_one_before_also_if_it_is_aborted() {
    let mut cache = full_pool();
    verify(&mut cache, &[0]);
    refuse(&mut cache, of_phase(Phase::Verify, 0), &[0, 1, 2, 3]);
    let mut refused = cache.clone();
    abort(&mut cache, of_phase(Phase::Verify, 0), &[1]);
    assert_eq!(accept(&mut cache, &[0]), Err(EnsureError::NothingToAccept { layer: layer(0) }));
    assert_eq!(accept(&mut cache, &[]), Err(EnsureError::NothingToAccept { layer: layer(0) }), "not even nothing");
    decode(&mut refused, 0, &[2]);
    assert_eq!(accept(&mut refused, &[0]), Ok(()), "a refused one has closed nothing");
    assert_eq!(refused.stamp(POOL, slot(0)), 7);
}

#[test]
fn a_further_part_that_is_aborted_leaves_the_others_to_be_accepted() {
    let part = Step { continues: true, ..of_phase(Phase::Verify, 0) };
    let mut cache = full_pool();
    verify(&mut cache, &[0, 3]);
    abort(&mut cache, part, &[4]);
    let error = EnsureError::NotVerified { layer: layer(0), route: 1, expert: expert(4) };
    assert_eq!(accept(&mut cache, &[0, 4]), Err(error));
    commit(&mut cache, part, &[5]);
    assert_eq!(accept(&mut cache, &[0, 5]), Ok(()));
    // 3 took slot 1; 4 that of 0, which the abort freed, and so 5.
    assert_eq!((owners(&cache, POOL), stamps(&cache, POOL)), (vec![Some(5), Some(3), Some(2)], vec![8, 1, 4]));
    // Where the first part is aborted, the next begins the step.
    abort(&mut cache, of_phase(Phase::Verify, 0), &[6]);
    commit(&mut cache, part, &[7]);
    let error = EnsureError::NotVerified { layer: layer(0), route: 0, expert: expert(6) };
    assert_eq!(accept(&mut cache, &[6]), Err(error));
    assert_eq!(accept(&mut cache, &[7]), Ok(()));
}

#[test]
fn accepting_what_does_not_exist_is_an_error() {
    let mut cache = full_pool();
    verify(&mut cache, &[0]);
    let unknown = EnsureError::UnknownExpert { layer: layer(0), route: 1, expert: expert(8), expert_count: 8 };
    assert_eq!(accept(&mut cache, &[0, 8]), Err(unknown));
    let unknown = EnsureError::UnknownLayer { layer: layer(1), layer_count: 1 };
    assert_eq!(cache.accept(layer(1), &[]), Err(unknown));
}

#[test]
fn each_layer_has_its_own_drafts() {
    let mut cache = one_pool(2, 8, 4);
    commit(&mut cache, of_phase(Phase::Verify, 0), &[5]);
    commit(&mut cache, of_phase(Phase::Verify, 1), &[6]);
    assert_eq!(cache.accept(layer(1), &ids(&[6])), Ok(()));
    assert_eq!(cache.accept(layer(0), &ids(&[5])), Ok(()));
    assert_eq!(stamps(&cache, POOL), [4, 3, 0, 0]);
}

#[test]
fn a_hybrid_verify_step_is_activity_once_accepted() {
    let misses = Misses::Hybrid { fetch: Fetch { rule: FetchRule::UpTo(1), most: None }, order: FetchOrder::Recency };
    let mut cache = one_pool(1, 8, 4);
    let plan = commit(&mut cache, Step { misses, ..of_phase(Phase::Verify, 0) }, &[4, 5, 6]);
    assert_eq!(answer(&plan), [0, -1, -1]);
    let active = |cache: &Cache| [4, 5, 6].map(|number| cache.last_active(layer(0), expert(number)));
    assert_eq!(active(&cache), [0; 3]);
    assert_eq!(accept(&mut cache, &[4, 6]), Ok(()));
    assert_eq!((active(&cache), cache.stamp(POOL, slot(0))), ([2, 0, 2], 2));

    commit(&mut cache, Step { misses, ..of_phase(Phase::Prefill, 0) }, &[4, 5, 6]);
    assert_eq!(active(&cache), [2, 0, 2], "a prompt is none");
    verify(&mut cache, &[5]);
    assert_eq!(accept(&mut cache, &[5]), Ok(()));
    assert_eq!(active(&cache), [2, 0, 2], "nor are the drafts of a plain step");
}

#[test]
fn what_a_prompt_fetches_goes_right_after_free_slots() {
    let mut cache = one_pool(1, 8, 4);
    decode(&mut cache, 0, &[]);
    decode(&mut cache, 0, &[0]);
    decode(&mut cache, 0, &[1]);
    commit(&mut cache, of_phase(Phase::Prefill, 0), &[0, 2]);
    assert_eq!(stamps(&cache, POOL), [2, 3, 1, 0]);
    assert_eq!(
        decode(&mut cache, 0, &[3, 4, 5]),
        "step 5 pool 0: routes [3, 4, 5] -> slots [3, 2, 0]; copy 3 -> slot 3; copy 4 -> slot 2 (was 2, last step 1); \
         copy 5 -> slot 0 (was 0, last step 2)"
    );
}

#[test]
fn a_long_prompt_costs_the_decode_set_no_more_than_its_widest_step() {
    let mut cache = one_pool(1, 64, 8);
    decode(&mut cache, 0, &[]);
    for expert in 0..8 {
        decode(&mut cache, 0, &[expert]);
    }
    for first in (10..60).step_by(2) {
        commit(&mut cache, of_phase(Phase::Prefill, 0), &[first, first + 1]);
    }
    assert_eq!(
        decode(&mut cache, 0, &[2, 3, 4, 5, 6, 7]),
        "step 35 pool 0: routes [2, 3, 4, 5, 6, 7] -> slots [2, 3, 4, 5, 6, 7]"
    );
}

#[test]
fn a_decode_step_that_hits_what_a_prompt_fetched_keeps_it() {
    let mut cache = full_pool();
    commit(&mut cache, of_phase(Phase::Prefill, 0), &[5]);
    assert_eq!(stamps(&cache, POOL), [1, 3, 4]);
    decode(&mut cache, 0, &[5]);
    assert_eq!(stamps(&cache, POOL), [6, 3, 4]);
}
