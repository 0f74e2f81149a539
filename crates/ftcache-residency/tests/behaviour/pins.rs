//! Pinned experts: never victims while they are in a slot, and marked whether they are or not.

use super::*;

fn experts<const N: usize>(pairs: [(u32, u32); N]) -> [(LayerId, ExpertId); N] {
    pairs.map(|(number, of_layer)| (layer(number), expert(of_layer)))
}

fn too_many(pinned: u32, unpinned: u32, slot_count: u32) -> Result<(), PinError> {
    Err(PinError::TooMany { pool: POOL, pinned, unpinned, slot_count })
}

/// Pins; a refused call changes nothing.
fn pin(cache: &mut Cache, pairs: &[(LayerId, ExpertId)], unpinned: u32) -> Result<(), PinError> {
    let before = format!("{cache:?}");
    let outcome = cache.pin(pairs, unpinned);
    cache.check().unwrap();
    assert!(outcome.is_ok() || format!("{cache:?}") == before);
    outcome
}

#[test]
fn a_pinned_expert_is_never_a_victim() {
    let mut cache = one_pool(1, 64, 3);
    for expert in 0..3 {
        decode(&mut cache, 0, &[expert]);
    }
    pin(&mut cache, &experts([(0, 0)]), 2).unwrap();
    for first in (10..60).step_by(2) {
        decode(&mut cache, 0, &[first, first + 1]);
        assert_eq!(cache.slot_of(layer(0), expert(0)), Some(slot(0)));
    }
    assert_eq!(cache.stamp(POOL, slot(0)), 1, "nothing has used it");
    assert_eq!(decode(&mut cache, 0, &[0]), "step 29 pool 0: routes [0] -> slots [0]");
    assert_eq!(cache.stamp(POOL, slot(0)), 29, "a hit stamps it as others");
}

#[test]
fn an_expert_that_is_not_resident_is_pinned_once_it_comes() {
    let mut cache = one_pool(1, 8, 2);
    pin(&mut cache, &experts([(0, 5)]), 1).unwrap();
    // The mark alone holds no slot.
    decode(&mut cache, 0, &[0, 1]);
    decode(&mut cache, 0, &[5]);
    let plan = decode(&mut cache, 0, &[2]);
    assert_eq!(plan, "step 3 pool 0: routes [2] -> slots [1]; copy 2 -> slot 1 (was 1, last step 1)");
    assert_eq!(
        decode(&mut cache, 0, &[3]),
        "step 4 pool 0: routes [3] -> slots [1]; copy 3 -> slot 1 (was 2, last step 3)",
        "5 in slot 0 is older"
    );
}

#[test]
fn what_leaves_too_few_slots_is_refused_whole() {
    let mut cache = one_pool(2, 8, 5);
    assert_eq!(pin(&mut cache, &experts([(0, 0), (0, 1), (1, 0), (1, 7)]), 2), too_many(4, 2, 5));
    assert_eq!(cache.pinned_count(POOL), 0);
    assert_eq!(pin(&mut cache, &experts([(0, 0), (0, 1), (1, 0)]), 2), Ok(()));
    assert_eq!(pin(&mut cache, &experts([(1, 1)]), 2), too_many(4, 2, 5));
    // One that is named twice, or has been pinned before, is one.
    assert_eq!(pin(&mut cache, &experts([(0, 0), (1, 0), (1, 0), (0, 1)]), 2), Ok(()));
    assert_eq!((cache.pinned_count(POOL), cache.is_pinned(layer(1), expert(1))), (3, false));
    assert_eq!(pin(&mut cache, &[], 5), too_many(3, 5, 5), "more are to stay free of pins than do");
    cache.unpin(&experts([(0, 0), (0, 0), (0, 6)])).unwrap();
    assert_eq!(cache.pinned_count(POOL), 2);
    assert_eq!(pin(&mut cache, &experts([(1, 1)]), 2), Ok(()));
}

#[test]
fn every_pool_has_its_own_bound() {
    let mut cache = Cache::with_pools(8, &pools_of([0, 1]), &[4, 2]).unwrap();
    let refused = pin(&mut cache, &experts([(0, 0), (0, 1), (1, 0), (1, 1)]), 1);
    assert_eq!(refused, Err(PinError::TooMany { pool: PoolId::new(1), pinned: 2, unpinned: 1, slot_count: 2 }));
    assert!(!cache.is_pinned(layer(0), expert(0)), "nor are those of the other pool");
    assert_eq!(pin(&mut cache, &experts([(0, 0), (0, 1), (0, 2), (1, 1)]), 1), Ok(()));
    assert_eq!([0, 1].map(|pool| cache.pinned_count(PoolId::new(pool))), [3, 1]);
}

#[test]
fn what_does_not_exist_is_not_pinned() {
    let mut cache = Cache::with_pools(8, &[Some(POOL), None], &[4]).unwrap();
    let unknown = EnsureError::UnknownLayer { layer: layer(2), layer_count: 2 };
    let no_slots = EnsureError::NoSlots { layer: layer(1) };
    for (stray, error) in [((2, 0), unknown), ((1, 0), no_slots)] {
        assert_eq!(pin(&mut cache, &experts([(0, 1), stray]), 1), Err(PinError::Unknown(error)));
    }
    assert_eq!(cache.unpin(&experts([(2, 0)])), Err(PinError::Unknown(unknown)));
    assert_eq!(cache.pinned_count(POOL), 0);
}

#[test]
fn an_expert_of_a_layer_that_lost_its_slots_can_be_unpinned() {
    let mut cache = one_pool(2, 8, 4);
    pin(&mut cache, &experts([(0, 1), (1, 2)]), 2).unwrap();
    let (mut next, _) = cache.rebuilt_with_pools(&[Some(POOL), None], &[4], Keep::WhatFits).unwrap();
    assert_eq!((next.pinned_count(POOL), next.is_pinned(layer(1), expert(2))), (1, true));
    assert_eq!(next.unpin(&experts([(1, 2)])), Ok(()));
    next.check().unwrap();
    assert_eq!((next.pinned_count(POOL), next.is_pinned(layer(1), expert(2))), (1, false));
}

#[test]
fn an_expert_that_cannot_be_pinned_is_named_with_its_place() {
    let mut cache = one_pool(1, 8, 4);
    let stray = EnsureError::UnknownExpert { layer: layer(0), route: 2, expert: expert(8), expert_count: 8 };
    let experts = experts([(0, 1), (0, 2), (0, 8)]);
    assert_eq!(pin(&mut cache, &experts, 1), Err(PinError::Unknown(stray)));
    assert_eq!(cache.unpin(&experts), Err(PinError::Unknown(stray)));
}

// With all experts pinned but as many slots as a step is wide, no step is ever refused (B07: none gets slot 0 either).
#[test]
fn a_pool_that_is_pinned_but_for_top_k_admits_every_step() {
    let mut cache = one_pool(2, 8, 8);
    let pinned = experts([(0, 1), (0, 3), (0, 5), (1, 0), (1, 1), (1, 2)]);
    pin(&mut cache, &pinned, 2).unwrap();
    for (layer, expert) in pinned {
        commit(&mut cache, layer, &[expert.get()]);
    }
    for turn in 0..8 * 8 * 2 {
        let plan = commit(&mut cache, layer(turn % 2), &[turn / 2 % 8, turn / 16]);
        assert!(plan.slots().iter().all(|slot| slot.is_slot()));
        assert!(pinned.iter().all(|&(layer, expert)| cache.slot_of(layer, expert).is_some()), "{plan}");
    }
}

#[test]
fn pinned_experts_of_other_steps_count_against_a_wide_one() {
    let mut cache = one_pool(2, 8, 4);
    decode(&mut cache, 0, &[0, 1]);
    pin(&mut cache, &experts([(0, 0), (0, 1), (0, 2)]), 1).unwrap();
    let error = |number, needed, given, pinned| {
        let (layer, pool) = (layer(number), POOL);
        EnsureError::StepTooWide { layer, pool, needed, given, slot_count: 4, pinned, withheld: 0 }
    };
    // 2 is marked and in no slot, so two slots are pinned.
    assert_eq!(refuse(&mut cache, layer(1), &[4, 5, 6]), error(1, 3, 2, 2));
    // A step that hits one of them needs no slot for it.
    assert_eq!(refuse(&mut cache, layer(0), &[0, 5, 6, 7]), error(0, 4, 3, 1));
    assert_eq!(answer(&commit(&mut cache, layer(0), &[0, 1, 5, 6])), [0, 1, 2, 3]);
    assert_eq!(answer(&commit(&mut cache, layer(1), &[4, 5])), [2, 3]);
}

#[test]
fn a_forgotten_slot_is_free_and_the_mark_stays() {
    type Freeing = (&'static str, fn(&mut Cache));
    let freeing: [Freeing; 4] = [
        ("forget", |cache| assert_eq!(cache.forget(POOL, slot(0)), Some((layer(0), expert(5))))),
        ("forget_layer", |cache| assert_eq!(cache.forget_layer(layer(0)), Ok(1))),
        ("reset", |cache| cache.reset()),
        ("abort", |cache| {
            cache.forget(POOL, slot(0));
            abort(cache, layer(0), &[5]);
        }),
    ];
    for (name, free) in freeing {
        let mut cache = one_pool(1, 8, 2);
        pin(&mut cache, &experts([(0, 5)]), 1).unwrap();
        decode(&mut cache, 0, &[5]);
        free(&mut cache);
        cache.check().unwrap();
        assert_eq!(cache.slot_of(layer(0), expert(5)), None, "{name}");
        assert!(cache.is_pinned(layer(0), expert(5)) && cache.pinned_count(POOL) == 1, "{name}");
        // Its slot is anybody's again.
        assert_eq!(answer(&commit(&mut cache, layer(0), &[0, 1])), [0, 1], "{name}");
        decode(&mut cache, 0, &[5]);
        decode(&mut cache, 0, &[2]);
        decode(&mut cache, 0, &[3]);
        assert_eq!(cache.slot_of(layer(0), expert(5)), Some(slot(0)), "{name}");
    }
}

#[test]
fn a_staging_buffer_takes_a_pinned_slot_and_the_mark_stays() {
    let mut cache = borrowing(3, 4, 10);
    pin(&mut cache, &experts([(0, 1)]), 2).unwrap();
    decode(&mut cache, 0, &[1]);
    cache.begin_chunk().unwrap();
    assert_eq!(cache.absence(layer(0), expert(1)), Some(Absence::Staged));
    assert!(cache.is_pinned(layer(0), expert(1)));
    // Two slots are not under buffers; the first comes to be pinned.
    let answers = [(0, 1), (1, 0), (1, 1)].map(|(number, route)| answer(&commit(&mut cache, layer(number), &[route])));
    assert_eq!(answers, [[8], [9], [9]]);
    let error = refuse(&mut cache, layer(1), &[0, 1]);
    assert_eq!(
        error,
        EnsureError::StepTooWide {
            layer: layer(1),
            pool: POOL,
            needed: 2,
            given: 1,
            slot_count: 10,
            pinned: 1,
            withheld: 8,
        }
    );
}

#[test]
fn an_unpinned_expert_has_its_place_in_the_order_again() {
    let mut cache = one_pool(1, 8, 4);
    decode(&mut cache, 0, &[]);
    for expert in 0..4 {
        decode(&mut cache, 0, &[expert]);
    }
    // Stamps 2, 3, 4, 5.
    pin(&mut cache, &experts([(0, 0), (0, 2)]), 2).unwrap();
    assert_eq!(
        decode(&mut cache, 0, &[4, 5]),
        "step 6 pool 0: routes [4, 5] -> slots [1, 3]; copy 4 -> slot 1 (was 1, last step 3); \
         copy 5 -> slot 3 (was 3, last step 5)",
        "both have been passed over"
    );
    cache.unpin(&experts([(0, 2)])).unwrap();
    assert_eq!(
        decode(&mut cache, 0, &[6]),
        "step 7 pool 0: routes [6] -> slots [2]; copy 6 -> slot 2 (was 2, last step 4)"
    );
    cache.unpin(&experts([(0, 0)])).unwrap();
    assert_eq!(
        decode(&mut cache, 0, &[7, 1]),
        "step 8 pool 0: routes [7, 1] -> slots [1, 0]; copy 1 -> slot 0 (was 0, last step 2); \
         copy 7 -> slot 1 (was 4, last step 6)"
    );
}

#[test]
fn unpinned_experts_of_a_prompt_go_right_after_free_slots_again() {
    let mut cache = one_pool(1, 8, 3);
    decode(&mut cache, 0, &[]);
    decode(&mut cache, 0, &[0, 1]);
    commit(&mut cache, of_phase(Phase::Prefill, 0), &[5]);
    pin(&mut cache, &experts([(0, 5)]), 2).unwrap();
    assert_eq!(answer(&commit(&mut cache, layer(0), &[2])), [0]);
    cache.unpin(&experts([(0, 5)])).unwrap();
    assert_eq!(answer(&commit(&mut cache, layer(0), &[3])), [2]);
}

#[test]
fn the_hottest_experts_of_a_profile_are_what_to_pin() {
    let counts = [vec![1.0, 3.0, 3.0, 0.0], vec![0.0, 0.0, 0.0, 5.0]];
    let profile = Profile::new("m", &counts).unwrap();
    assert_eq!(
        profile.hottest(2),
        experts([(0, 1), (0, 2), (1, 3)]),
        "ties to the lower id, and none that was not used"
    );
    assert_eq!(profile.hottest(1), experts([(0, 1), (1, 3)]));
    assert_eq!(profile.hottest(9), experts([(0, 1), (0, 2), (0, 0), (1, 3)]));
    assert_eq!(profile.hottest(0), []);
    let mut cache = one_pool(2, 4, 5);
    assert_eq!(pin(&mut cache, &profile.hottest(2), 2), Ok(()));
}
