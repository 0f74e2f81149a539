//! The smallest caches and the last steps; faults of other systems at their numbers. B01, B07, B10, B55, B67, C15.

use super::*;

#[test]
fn one_slot_serves_one_expert_a_step() {
    let mut cache = one_pool(2, 4, 1);
    assert_eq!(decode(&mut cache, 0, &[3, 3]), "step 1 pool 0: routes [3, 3] -> slots [0, 0]; copy 3 -> slot 0");
    assert_eq!(decode(&mut cache, 0, &[3]), "step 2 pool 0: routes [3] -> slots [0]");
    assert_eq!(
        decode(&mut cache, 1, &[3]),
        "step 3 pool 0: routes [3] -> slots [0]; copy 3 -> slot 0 (was 3, last step 2)"
    );
    let error = refuse(&mut cache, layer(0), &[0, 1]);
    assert!(matches!(error, EnsureError::StepTooWide { needed: 2, given: 1, slot_count: 1, .. }), "{error}");
    commit(&mut cache, of_phase(Phase::Prefill, 0), &[1]);
    commit(&mut cache, of_phase(Phase::Verify, 0), &[2]);
    assert_eq!(cache.accept(layer(0), &[]), Ok(()));
    assert_eq!(stamps(&cache, POOL), [1]);
    cache.pin(&[(layer(0), expert(2))], 0).unwrap();
    let error = refuse(&mut cache, layer(0), &[0]);
    assert!(matches!(error, EnsureError::StepTooWide { needed: 1, given: 0, pinned: 1, .. }), "{error}");
    assert_eq!(answer(&commit(&mut cache, layer(0), &[2])), [0]);
}

#[test]
fn a_pool_without_slots_leaves_everything_to_the_cpu() {
    let mut cache = one_pool(1, 4, 0);
    let error = refuse(&mut cache, layer(0), &[3]);
    assert!(matches!(error, EnsureError::StepTooWide { needed: 1, given: 0, slot_count: 0, .. }), "{error}");
    let fetch = Fetch { rule: FetchRule::UpTo(4), most: None };
    let misses = Misses::Hybrid { fetch, order: FetchOrder::Recency };
    assert_eq!(answer(&commit(&mut cache, Step { misses, ..Step::new(layer(0)) }, &[3, 1])), [-1, -1]);
    assert_eq!(answer(&commit(&mut cache, layer(0), &[ABSENT])), [-2]);
    assert!(cache.partition(layer(0), &ids(&[3]), &mut Parts::new()).is_err());
}

#[test]
fn layers_of_one_expert_share_slots() {
    let mut cache = one_pool(3, 1, 2);
    let answers = [0, 1, 2, 0].map(|number| (answer(&commit(&mut cache, layer(number), &[0, 0])), cache.step()));
    assert_eq!(answers, [(vec![0, 0], 1), (vec![1, 1], 2), (vec![0, 0], 3), (vec![1, 1], 4)]);
    let unknown = EnsureError::UnknownExpert { layer: layer(0), route: 0, expert: expert(1), expert_count: 1 };
    assert_eq!(refuse(&mut cache, layer(0), &[1]), unknown);
    let mut chunked = borrowing(3, 1, 3);
    chunked.begin_chunk().unwrap();
    let mut plan = StagePlan::new();
    chunked.prefetch(layer(2), &mut plan).unwrap().commit();
    assert_eq!((plan.misses().len(), plan.misses()[0].count), (1, 1));
}

#[test]
fn the_last_steps_work_and_then_none_does() {
    let last = u64::MAX - 1;
    let mut cache = one_pool(2, 8, 4);
    commit(&mut cache, of_phase(Phase::Verify, 1), &[7]);
    assert_eq!(cache.skip_to(last - 2), last - 2);
    decode(&mut cache, 0, &[1, 2]);
    let plan = commit(&mut cache, layer(0), &[2, 3, 4]);
    assert_eq!((plan.step(), answer(&plan)), (last, vec![2, 3, 0]), "the free slot, and then that of step 1");
    let ended = EnsureError::LastStep { step: last };
    for phase in Phase::ALL {
        assert_eq!(refuse(&mut cache, of_phase(phase, 0), &[2]), ended);
    }
    let before = format!("{cache:?}");
    assert_eq!(cache.accept(layer(1), &ids(&[7])), Err(ended));
    assert_eq!(format!("{cache:?}"), before);
    let (residents, nobody) = (cache.residents(0), one_pool(2, 8, 4).residents(0));
    cache.reset();
    assert_eq!(cache.bring_back(&residents, 0, &mut Vec::new()).err(), Some(SnapshotError::LastStep(ended)));
    cache.bring_back(&nobody, 0, &mut Vec::new()).unwrap().commit();
    assert_eq!(cache.skip_to(5), last, "it never goes back");
    // The counter goes on through a rebuild, so that is no way out.
    let (mut next, _) = cache.rebuilt_with_pools(&[Some(POOL); 2], &[4], Keep::Nothing).unwrap();
    let error = refuse(&mut next, layer(0), &[2]);
    assert_eq!(error, ended);
    assert!(error.to_string().ends_with("make a new cache"));
}

#[test]
fn the_last_step_can_be_aborted_and_repeated() {
    let mut cache = one_pool(1, 8, 4);
    cache.skip_to(u64::MAX - 2);
    let named = Step { token: Some(1), ..Step::new(layer(0)) };
    commit(&mut cache, named, &[1]);
    assert!(commit(&mut cache, named, &[1]).is_repeat(), "which needs no step");
    abort(&mut cache, named, &[1]);
    assert_eq!(refuse(&mut cache, named, &[1]), EnsureError::LastStep { step: u64::MAX - 1 });
}

// B01: D enters with the lowest score of all and must not be E's victim.
#[test]
fn two_new_experts_of_a_step_never_share_a_slot() {
    for phase in Phase::ALL {
        let mut cache = one_pool(1, 8, 3);
        for _ in 0..3 {
            decode(&mut cache, 0, &[0, 1, 2]);
        }
        let plan = commit(&mut cache, of_phase(phase, 0), &[3, 4]);
        assert_eq!(answer(&plan), [0, 1], "{phase:?}");
        assert_eq!(owners(&cache, POOL), [Some(3), Some(4), Some(2)]);
    }
}

// B07, C1: all slots are pinned. Nobody gets slot 0.
#[test]
fn with_every_slot_pinned_a_miss_is_an_error() {
    let mut cache = one_pool(1, 8, 2);
    decode(&mut cache, 0, &[0, 1]);
    cache.pin(&[(layer(0), expert(0)), (layer(0), expert(1))], 0).unwrap();
    let error = |needed, given, pinned| EnsureError::StepTooWide {
        layer: layer(0),
        pool: POOL,
        needed,
        given,
        slot_count: 2,
        pinned,
        withheld: 0,
    };
    assert_eq!(refuse(&mut cache, layer(0), &[2]), error(1, 0, 2));
    assert_eq!(refuse(&mut cache, layer(0), &[2, 1]), error(2, 1, 1));
    assert_eq!(answer(&commit(&mut cache, layer(0), &[1, 0])), [1, 0]);
}

// B10: a refused step must not make the next one believe that its experts are there.
#[test]
fn experts_of_a_refused_step_are_still_missing() {
    let mut cache = one_pool(1, 8, 2);
    refuse(&mut cache, layer(0), &[3, 4, 5]);
    let plan = commit(&mut cache, layer(0), &[3, 4]);
    assert_eq!((plan.miss_count(), plan.copies().len()), (2, 2));
    assert_eq!(cache.layer_stats(layer(0)).cold_misses, 2);
}

// B67: the slot of a failed copy has no stamp left and is taken first.
#[test]
fn the_slot_of_a_failed_copy_is_taken_first() {
    let mut cache = one_pool(1, 8, 3);
    decode(&mut cache, 0, &[]);
    for expert in 0..3 {
        decode(&mut cache, 0, &[expert]);
    }
    decode(&mut cache, 0, &[0]);
    abort(&mut cache, layer(0), &[5]);
    assert_eq!((stamps(&cache, POOL), owners(&cache, POOL)), (vec![5, 0, 4], vec![Some(0), None, Some(2)]));
    assert_eq!(decode(&mut cache, 0, &[6]), "step 7 pool 0: routes [6] -> slots [1]; copy 6 -> slot 1");
}

#[test]
fn an_abort_leaves_the_stamps_of_its_hits_as_the_step_made_them() {
    let mut cache = one_pool(1, 8, 3);
    decode(&mut cache, 0, &[0]);
    decode(&mut cache, 0, &[1]);
    abort(&mut cache, layer(0), &[0, 5]);
    assert_eq!((cache.step(), stamps(&cache, POOL)), (3, vec![3, 2, 0]));
}

// B55, C15: a target of 48 layers and a draft of one, in one process.
#[test]
fn a_draft_models_cache_is_its_own() {
    let mut target = one_pool(48, 512, 960);
    for number in 0..48 {
        decode(&mut target, number, &[1, 2, 3]);
    }
    let before = target.digest();
    let mut draft = one_pool(1, 64, 64);
    decode(&mut draft, 0, &[1, 2, 3]);
    assert_eq!(target.digest(), before);
    assert_eq!(commit(&mut target, layer(47), &[1, 2, 3]).miss_count(), 0);
}

#[test]
fn more_experts_or_slots_than_ids_count_are_no_cache() {
    let limit = SlotId::LIMIT;
    let refused = |experts, slots: &[u32]| Cache::with_pools(experts, &[Some(POOL)], slots).unwrap_err();
    let (experts, slots) = (u64::from(limit) + 1, 1);
    assert_eq!(refused(limit + 1, &[1]), PoolsError::TooMany { experts, slots });
    assert_eq!(refused(8, &[limit, 1]), PoolsError::TooMany { experts: 8, slots: u64::from(limit) + 1 });
}
