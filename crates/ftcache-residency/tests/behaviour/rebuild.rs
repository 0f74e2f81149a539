//! Other pools for the same model, empty or keeping what fits. C11's part of residency.

use super::*;

fn rebuilt(cache: &Cache, pools: &[Option<PoolId>], slot_counts: &[u32], keep: Keep) -> (Cache, Vec<String>) {
    let before = format!("{cache:?}");
    let (next, moves) = cache.rebuilt_with_pools(pools, slot_counts, keep).unwrap();
    next.check().unwrap();
    assert_eq!(format!("{cache:?}"), before, "to go on with if the device refuses");
    let place = |(pool, slot): (PoolId, SlotId)| format!("{pool}/{slot}");
    let line = |from, to| if from == to { from } else { format!("{from} -> {to}") };
    let moves =
        moves.iter().map(|one| format!("{}.{}: {}", one.layer, one.expert, line(place(one.from), place(one.to))));
    (next, moves.collect())
}

/// One layer of eight experts: 0 to 4 in five slots with stamps 6, 2, 3, 4, 5.
fn five_residents() -> Cache {
    let mut cache = one_pool(1, 8, 5);
    for expert in [0, 1, 2, 3, 4, 0] {
        decode(&mut cache, 0, &[expert]);
    }
    assert_eq!(stamps(&cache, POOL), [6, 2, 3, 4, 5]);
    cache
}

#[test]
fn a_refused_rebuild_leaves_the_old_cache_hitting() {
    let mut cache = borrowing(2, 4, 8);
    decode(&mut cache, 0, &[0, 1, 2]);
    decode(&mut cache, 1, &[3]);
    cache.pin(&[(layer(0), expert(0)), (layer(1), expert(3))], 2).unwrap();
    let before = format!("{cache:?}");
    let refused = |cache: &Cache, geometry: &Geometry| {
        let errors = [Keep::Nothing, Keep::WhatFits].map(|keep| cache.rebuilt(geometry, keep).unwrap_err());
        assert_eq!(errors[0], errors[1]);
        errors[0]
    };
    assert_eq!(refused(&cache, &geometry(2, 5, 8)), PoolsError::OtherModel { had: (2, 4), given: (2, 5) });
    assert_eq!(refused(&cache, &geometry(3, 4, 8)), PoolsError::OtherModel { had: (2, 4), given: (3, 4) });
    let too_many = PinError::TooMany { pool: POOL, pinned: 2, unpinned: 2, slot_count: 3 };
    assert_eq!(refused(&cache, &geometry(2, 4, 3)), PoolsError::Pinned(too_many));
    assert_eq!(format!("{cache:?}"), before);
    assert_eq!(decode(&mut cache, 0, &[2, 1, 0]), "step 3 pool 0: routes [2, 1, 0] -> slots [2, 1, 0]");

    cache.begin_chunk().unwrap();
    assert_eq!(refused(&cache, &geometry(2, 4, 8)), PoolsError::ChunkOpen);
    cache.end_chunk().unwrap();
    assert!(cache.rebuilt(&geometry(2, 4, 4), Keep::WhatFits).is_ok(), "room for two pinned and two others");
}

#[test]
fn pools_that_do_not_exist_are_refused() {
    let cache = one_pool(2, 4, 8);
    let refused =
        |pools: &[Option<PoolId>], slots: &[u32]| cache.rebuilt_with_pools(pools, slots, Keep::WhatFits).unwrap_err();
    let unknown = PoolsError::UnknownPool { layer: layer(1), pool: PoolId::new(2), pool_count: 2 };
    assert_eq!(refused(&pools_of([0, 2]), &[4, 4]), unknown);
    assert_eq!(refused(&pools_of([0]), &[4]), PoolsError::OtherModel { had: (2, 4), given: (1, 4) });
    assert_eq!(refused(&pools_of([0, 1]), &[u32::MAX, 1]), PoolsError::TooMany { experts: 8, slots: 1 << 32 });
}

#[test]
fn a_cold_rebuild_is_empty_and_goes_on_counting() {
    let mut cache = five_residents();
    let fetch = Fetch { rule: FetchRule::Carry(Fraction::nearest(0.5).unwrap()), most: None };
    let misses = Misses::Hybrid { fetch, order: FetchOrder::Recency };
    commit(&mut cache, Step { misses, ..Step::new(layer(0)) }, &[7]);
    cache.pin(&[(layer(0), expert(2))], 1).unwrap();
    let (mut next, moves) = rebuilt(&cache, &[Some(POOL)], &[3], Keep::Nothing);
    assert_eq!((moves.len(), owners(&next, POOL)), (0, vec![None; 3]));
    assert_eq!((next.step(), next.layer_stats(layer(0))), (7, Stats::default()));
    let absences = [0, 4, 5, 7].map(|number| next.absence(layer(0), expert(number)).unwrap());
    assert_eq!(absences, [Absence::Freed, Absence::Freed, Absence::NeverRouted, Absence::OnCpu]);
    assert!(next.is_pinned(layer(0), expert(2)));
    assert_eq!((next.last_active(layer(0), expert(7)), next.carried(layer(0)).q16()), (7, 32_768));
    assert_eq!((next.routed(layer(0), expert(0)), next.routed(layer(0), expert(7))), (2, 1));
    assert_eq!(decode(&mut next, 0, &[1]), "step 8 pool 0: routes [1] -> slots [0]; copy 1 -> slot 0");
    assert_eq!(next.layer_stats(layer(0)).freed_misses, 1);
}

#[test]
fn a_smaller_pool_keeps_those_used_last() {
    let (mut next, moves) = rebuilt(&five_residents(), &[Some(POOL)], &[3], Keep::WhatFits);
    // 0 has its slot; 3 and 4 take the lowest that are left, the older first.
    assert_eq!(moves, ["0.0: 0/0", "0.3: 0/3 -> 0/1", "0.4: 0/4 -> 0/2"]);
    assert_eq!((owners(&next, POOL), stamps(&next, POOL)), (vec![Some(0), Some(3), Some(4)], vec![6, 4, 5]));
    assert_eq!(next.absence(layer(0), expert(2)), Some(Absence::Freed));
    assert_eq!(
        decode(&mut next, 0, &[1]),
        "step 7 pool 0: routes [1] -> slots [1]; copy 1 -> slot 1 (was 3, last step 4)"
    );
    let stats = next.layer_stats(layer(0));
    assert_eq!((stats.steps, stats.misses, stats.freed_misses), (1, 1, 1));
}

#[test]
fn a_larger_pool_keeps_everyone_in_place() {
    let (mut next, moves) = rebuilt(&five_residents(), &[Some(POOL)], &[7], Keep::WhatFits);
    assert_eq!(moves, ["0.0: 0/0", "0.1: 0/1", "0.2: 0/2", "0.3: 0/3", "0.4: 0/4"]);
    assert_eq!(
        decode(&mut next, 0, &[5, 6, 7]),
        "step 7 pool 0: routes [5, 6, 7] -> slots [5, 6, 1]; copy 5 -> slot 5; copy 6 -> slot 6; \
         copy 7 -> slot 1 (was 1, last step 2)"
    );
}

#[test]
fn of_those_used_in_one_step_the_higher_slots_stay() {
    let mut cache = one_pool(1, 8, 4);
    decode(&mut cache, 0, &[4, 5, 6, 7]);
    let (next, moves) = rebuilt(&cache, &[Some(POOL)], &[3], Keep::WhatFits);
    assert_eq!(moves, ["0.7: 0/3 -> 0/0", "0.5: 0/1", "0.6: 0/2"], "4 would have been the first victim");
    assert_eq!(stamps(&next, POOL), [1, 1, 1]);
}

#[test]
fn pools_may_be_joined_and_parted() {
    let mut cache = Cache::with_pools(4, &pools_of([0, 1]), &[2, 2]).unwrap();
    for (number, of_layer) in [(1, 0), (0, 0), (1, 1), (0, 1)] {
        decode(&mut cache, number, &[of_layer]);
    }
    let (joined, moves) = rebuilt(&cache, &pools_of([0, 0]), &[3], Keep::WhatFits);
    // Stamps: 0.0 2, 0.1 4, 1.0 1, 1.1 3.
    assert_eq!(moves, ["0.0: 0/0", "0.1: 0/1", "1.1: 1/1 -> 0/2"]);
    assert_eq!(stamps(&joined, POOL), [2, 4, 3]);
    let (parted, moves) = rebuilt(&joined, &pools_of([1, 0]), &[1, 2], Keep::WhatFits);
    assert_eq!(moves, ["1.1: 0/2 -> 0/0", "0.0: 0/0 -> 1/0", "0.1: 0/1 -> 1/1"]);
    assert_eq!((stamps(&parted, POOL), stamps(&parted, PoolId::new(1))), (vec![3], vec![2, 4]));
    let (without, moves) = rebuilt(&parted, &[None, Some(POOL)], &[1], Keep::WhatFits);
    assert_eq!(moves, ["1.1: 0/0"]);
    assert_eq!(without.absence(layer(0), expert(1)), Some(Absence::Freed));
}

#[test]
fn moves_land_on_no_row_that_stays_or_has_still_to_move() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let old = [0; 2].map(|_| 1 + rng.below(9) as u32);
        let new = [0; 2].map(|_| 1 + rng.below(9) as u32);
        let mut cache = Cache::with_pools(6, &pools_of([0, 1, 0, 1]), &old).unwrap();
        for _ in 0..rng.below(30) {
            let number = rng.below(4) as u32;
            commit(&mut cache, layer(number), &[rng.below(6) as u32]);
            if rng.chance(1, 6) {
                cache.forget_layer(layer(number)).unwrap();
            }
        }
        let (next, moves) = cache.rebuilt_with_pools(&pools_of([0, 1, 0, 1]), &new, Keep::WhatFits).unwrap();
        let sources: Vec<_> = moves.iter().map(|one| one.from).collect();
        assert!(moves.iter().all(|one| one.from == one.to || !sources.contains(&one.to)), "seed {seed}: {moves:?}");
        assert!(moves.is_sorted_by_key(|one| one.to));
        for one in &moves {
            assert_eq!(cache.expert_of(one.from.0, one.from.1), Some((one.layer, one.expert)));
            assert_eq!(next.expert_of(one.to.0, one.to.1), Some((one.layer, one.expert)));
            assert_eq!(cache.stamp(one.from.0, one.from.1), next.stamp(one.to.0, one.to.1));
        }
        for pool in [0, 1].map(PoolId::new) {
            let in_use = |cache: &Cache| owners(cache, pool).iter().flatten().count();
            assert_eq!(in_use(&next), in_use(&cache).min(new[pool.index()] as usize), "seed {seed}");
        }
    }
}

#[test]
fn a_pinned_expert_stays_pinned_in_its_new_slot() {
    let mut cache = five_residents();
    cache.pin(&[(layer(0), expert(3))], 2).unwrap();
    let (mut next, _) = rebuilt(&cache, &[Some(POOL)], &[3], Keep::WhatFits);
    assert_eq!(answer(&commit(&mut next, layer(0), &[5])), [2], "3 in slot 1 is older and pinned");
    let pinned = PinError::TooMany { pool: POOL, pinned: 1, unpinned: 2, slot_count: 2 };
    let refused = next.rebuilt_with_pools(&[Some(POOL)], &[2], Keep::WhatFits).unwrap_err();
    assert_eq!(refused, PoolsError::Pinned(pinned), "the slots for others are remembered");
}

#[test]
fn drafts_are_not_accepted_after_a_rebuild() {
    let mut cache = one_pool(1, 8, 4);
    commit(&mut cache, of_phase(Phase::Verify, 0), &[1, 2]);
    let (mut next, _) = rebuilt(&cache, &[Some(POOL)], &[4], Keep::WhatFits);
    assert_eq!(next.accept(layer(0), &ids(&[1])), Err(EnsureError::NothingToAccept { layer: layer(0) }));
    assert_eq!(cache.accept(layer(0), &ids(&[1])), Ok(()), "in the old one they are");
}

// C11: overlap that a shrink below two layers turned off comes back on a grow.
#[test]
fn overlap_that_a_smaller_pool_has_not_comes_back_with_a_larger_one() {
    let mut cache = borrowing(3, 8, 16);
    let staging_of = |slots| Staging::borrowed(&geometry(3, 8, slots)).unwrap();
    for (slots, buffers) in [(12, 1), (15, 1), (16, 2), (24, 2)] {
        (cache, _) = cache.rebuilt(&geometry(3, 8, slots), Keep::WhatFits).unwrap();
        assert!(cache.staging().is_none(), "to be given anew");
        assert_eq!(cache.begin_chunk(), Err(StageError::NoStaging));
        cache.set_staging(staging_of(slots), 0).unwrap();
        cache.begin_chunk().unwrap();
        let mut plan = StagePlan::new();
        match buffers {
            1 => assert_eq!(cache.prefetch(layer(0), &mut plan).err(), Some(StageError::NoOverlap)),
            _ => drop(cache.prefetch(layer(0), &mut plan).unwrap()),
        }
        cache.end_chunk().unwrap();
    }
}
