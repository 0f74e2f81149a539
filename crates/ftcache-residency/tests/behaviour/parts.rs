//! Steps wider than their pool, in parts that fit. C14 and B05.

use super::*;

fn partition(cache: &mut Cache, layer_number: u32, routes: &[u32]) -> Result<Vec<Vec<u32>>, EnsureError> {
    let before = format!("{cache:?}");
    let mut parts = Parts::new();
    let parted = cache.partition(layer(layer_number), &ids(routes), &mut parts);
    assert_eq!(format!("{cache:?}"), before, "nothing is admitted here");
    parted.map(|()| parts.iter().map(|(_, part)| part.iter().map(|route| route.get()).collect()).collect())
}

/// Admits the parts of a step, one after another; how many there were, and the copies of each.
fn admit(cache: &mut Cache, step: Step, routes: &[u32]) -> Vec<Vec<u32>> {
    let mut parts = Parts::new();
    cache.partition(step, &ids(routes), &mut parts).unwrap();
    let mut plan = Plan::new();
    let mut fetched = Vec::new();
    for (index, (of_part, part)) in parts.iter().enumerate() {
        assert_eq!(of_part, Step { continues: index > 0, ..step });
        cache.ensure(of_part, part, &mut plan).unwrap().commit();
        cache.check().unwrap();
        for ((&route, &of_part), slot) in routes.iter().zip(part).zip(plan.slots()) {
            assert_eq!(of_part != ExpertId::ABSENT, slot.is_slot());
            assert!(of_part == ExpertId::ABSENT || of_part == expert(route), "a route is where it was");
        }
        fetched.push(plan.copies().iter().map(|copy| copy.row.get()).collect());
    }
    for (index, &route) in routes.iter().enumerate() {
        let holding = parts.iter().filter(|(_, part)| part[index] != ExpertId::ABSENT).count();
        assert_eq!(holding, usize::from(route != ABSENT), "route {index} is in one part");
    }
    fetched
}

fn sorted(fetched: Vec<Vec<u32>>) -> Vec<u32> {
    let mut all = fetched.concat();
    all.sort_unstable();
    all
}

// C14: E = 128, 16 slots, all 128 routed.
#[test]
fn all_of_128_experts_pass_through_16_slots_in_eight_parts() {
    let mut cache = one_pool(1, 128, 16);
    let routes: Vec<u32> = (0..256).map(|route| 127 - route % 128).collect();
    let fetched = admit(&mut cache, Step::new(layer(0)), &routes);
    assert_eq!(fetched.iter().map(Vec::len).collect::<Vec<_>>(), [16; 8]);
    assert_eq!(sorted(fetched), (0..128).collect::<Vec<_>>(), "each expert once");
    let stats = cache.layer_stats(layer(0));
    assert_eq!((stats.steps, stats.routes, stats.distinct, stats.fetched), (1, 256, 128, 128));
    assert_eq!(stats.cold_misses, 128);
    assert!((0..128).all(|number| cache.routed(layer(0), expert(number)) == 2));
}

// C14: halving the tokens made 64,369 fetches where 30 x 128 suffice.
#[test]
fn a_prompt_of_585_tokens_through_30_layers_fetches_3840_rows() {
    let pools: Vec<Option<PoolId>> = (0..30).map(|pool| Some(PoolId::new(pool))).collect();
    let mut cache = Cache::with_pools(128, &pools, &[16; 30]).unwrap();
    let mut fetched = 0;
    for number in 0..30 {
        let routes: Vec<u32> = (0..585 * 8).map(|route| (route * 7 + number) % 128).collect();
        let parts = admit(&mut cache, of_phase(Phase::Prefill, number), &routes);
        assert_eq!(parts.len(), 8);
        fetched += parts.concat().len();
    }
    assert_eq!(fetched, 3_840);
    let steps: u64 = (0..30).map(|number| cache.layer_stats(layer(number)).steps).sum();
    assert_eq!(steps, 30);
}

#[test]
fn residents_come_first_and_misses_ascend() {
    let mut cache = one_pool(1, 10, 4);
    decode(&mut cache, 0, &[7, 8, 9]);
    let parts = partition(&mut cache, 0, &[0, 9, 1, ABSENT, 2, 8, 0, 3]).unwrap();
    let part = |routes: [u32; 8]| routes.to_vec();
    assert_eq!(
        parts,
        [part([0, 9, 1, ABSENT, ABSENT, 8, 0, ABSENT]), part([ABSENT, ABSENT, ABSENT, ABSENT, 2, ABSENT, ABSENT, 3]),]
    );
    // 8 and 9 are hit before their slots are given away: four copies, not five or six.
    let fetched = admit(&mut cache, Step::new(layer(0)), &[0, 9, 1, ABSENT, 2, 8, 0, 3]);
    assert_eq!(fetched, [[0, 1], [2, 3]]);
}

#[test]
fn a_step_that_fits_is_one_part() {
    let mut cache = one_pool(1, 8, 3);
    assert_eq!(partition(&mut cache, 0, &[5, 2, ABSENT, 5, 7]).unwrap(), [[5, 2, ABSENT, 5, 7]]);
    assert_eq!(partition(&mut cache, 0, &[]).unwrap(), Vec::<Vec<u32>>::new());
    assert_eq!(partition(&mut cache, 0, &[ABSENT; 4]).unwrap(), Vec::<Vec<u32>>::new());
}

/// A verify step of six experts over three slots, of which 0 is resident with stamp 1: two parts, steps 2 and 3.
fn verified(misses: Misses) -> Cache {
    let mut cache = one_pool(1, 8, 3);
    decode(&mut cache, 0, &[0]);
    let fetched = admit(&mut cache, Step { misses, ..of_phase(Phase::Verify, 0) }, &[5, 0, 4, 3, 2, 5]);
    assert_eq!(fetched, [[2, 3], [4, 5]]);
    assert_eq!((owners(&cache, POOL), stamps(&cache, POOL)), (vec![Some(4), Some(5), Some(3)], vec![3, 3, 2]));
    cache
}

#[test]
fn a_verify_step_in_parts_can_be_accepted() {
    let mut cache = verified(Misses::Fetched);
    assert_eq!(cache.phase_stats(layer(0), Phase::Verify).steps, 1);
    let before = format!("{cache:?}");
    let stray = EnsureError::NotVerified { layer: layer(0), route: 2, expert: expert(1) };
    assert_eq!(cache.accept(layer(0), &ids(&[2, 5, 1])), Err(stray));
    assert_eq!(format!("{cache:?}"), before);
    // 2 and 5 are of different parts; 0 and 2 have lost their slots to the second.
    let mut none = cache.clone();
    assert_eq!(cache.accept(layer(0), &ids(&[5, 0, 2, ABSENT, 5])), Ok(()));
    cache.check().unwrap();
    assert_eq!((cache.step(), stamps(&cache, POOL)), (4, vec![1, 4, 1]), "3 and 4 were fetched in vain");
    assert_eq!(cache.accept(layer(0), &[]), Err(EnsureError::NothingToAccept { layer: layer(0) }));
    assert_eq!(none.accept(layer(0), &[]), Ok(()));
    assert_eq!(stamps(&none, POOL), [1, 1, 1]);
}

#[test]
fn what_is_used_after_the_last_part_is_not_fetched_in_vain() {
    let mut cache = verified(Misses::Fetched);
    decode(&mut cache, 0, &[3]);
    assert_eq!(cache.accept(layer(0), &ids(&[4])), Ok(()));
    assert_eq!(stamps(&cache, POOL), [5, 1, 4]);
}

#[test]
fn a_hybrid_verify_step_in_parts_is_activity_where_accepted() {
    let fetch = Fetch { rule: FetchRule::UpTo(2), most: None };
    let mut cache = verified(Misses::Hybrid { fetch, order: FetchOrder::Recency });
    assert_eq!(cache.accept(layer(0), &ids(&[2, 5])), Ok(()));
    let active = [0, 2, 3, 4, 5].map(|number| cache.last_active(layer(0), expert(number)));
    assert_eq!(active, [0, 4, 0, 0, 4]);
}

#[test]
fn a_token_is_that_of_all_parts_and_remembers_the_last() {
    let mut cache = one_pool(1, 8, 3);
    let named = Step { token: Some(7), ..Step::new(layer(0)) };
    let routes = [0, 1, 2, 3, 4];
    assert_eq!(admit(&mut cache, named, &routes), [vec![0, 1, 2], vec![3, 4]], "no part is taken for another step");
    let (before, stats) = (state(&cache), cache.layer_stats(layer(0)));
    let last = Step { continues: true, ..named };
    let again = commit(&mut cache, last, &[ABSENT, ABSENT, ABSENT, 3, 4]);
    assert_eq!((again.is_repeat(), again.step(), answer(&again)), (true, 2, vec![-2, -2, -2, 0, 1]));
    assert_eq!((state(&cache), cache.layer_stats(layer(0))), (before, stats));
    let reused = EnsureError::TokenReused { layer: layer(0), token: 7 };
    assert_eq!(refuse(&mut cache, named, &[0, 1, 2, ABSENT, ABSENT]), reused);
    assert!(!commit(&mut cache, last, &[5]).is_repeat(), "a further part");
    assert_eq!(cache.layer_stats(layer(0)).steps, 1);
}

#[test]
fn the_first_part_continues_nothing_and_each_is_of_the_steps_kind() {
    let mut cache = one_pool(1, 8, 2);
    let fetch = Fetch { rule: FetchRule::UpTo(1), most: None };
    let misses = Misses::Hybrid { fetch, order: FetchOrder::LowestId };
    let step = Step { token: Some(3), misses, continues: true, ..of_phase(Phase::Prefill, 0) };
    let mut parts = Parts::new();
    cache.partition(step, &ids(&[0, 1, 2, 3, 4]), &mut parts).unwrap();
    let of_parts: Vec<Step> = parts.iter().map(|(step, _)| step).collect();
    assert_eq!(of_parts, [Step { continues: false, ..step }, step, step]);
    assert_eq!((parts.len(), parts.iter().len(), parts.is_empty()), (3, 3, false));
}

#[test]
fn parts_are_as_they_were_after_an_error() {
    let mut cache = Cache::with_pools(4, &[Some(POOL), None, Some(POOL)], &[2]).unwrap();
    decode(&mut cache, 0, &[0, 1]);
    cache.pin(&[(layer(0), expert(0)), (layer(0), expert(1))], 0).unwrap();
    let mut parts = Parts::new();
    for (number, routes) in [(0, &[0, 4][..]), (1, &[0]), (3, &[0]), (2, &[2, 3, 0])] {
        cache.partition(layer(0), &ids(&[0, 1]), &mut parts).unwrap();
        assert_eq!(parts.len(), 1);
        assert!(cache.partition(layer(number), &ids(routes), &mut parts).is_err());
        let whole = (Step::new(layer(0)), &ids(&[0, 1])[..]);
        assert_eq!((parts.len(), parts.iter().next()), (1, Some(whole)), "layer {number}");
        cache.check().unwrap();
    }
    cache.partition(layer(0), &ids(&[1]), &mut parts).unwrap();
    assert_eq!(parts.len(), 1, "and may be used again");
}

#[test]
fn parts_go_around_pinned_slots() {
    let mut cache = one_pool(1, 10, 4);
    decode(&mut cache, 0, &[7]);
    cache.pin(&[(layer(0), expert(7))], 1).unwrap();
    assert_eq!(admit(&mut cache, Step::new(layer(0)), &[0, 1, 2, 3, 4]), [vec![0, 1, 2], vec![3, 4]]);
    assert_eq!(cache.slot_of(layer(0), expert(7)), Some(slot(0)));
    // As part of the step it is hit, and is still there at the end.
    let fetched = admit(&mut cache, Step::new(layer(0)), &[5, 6, 7, 8, 9, 0, 1]);
    assert_eq!(sorted(fetched), [0, 1, 5, 6, 8, 9]);
    assert_eq!(cache.slot_of(layer(0), expert(7)), Some(slot(0)));
}

#[test]
fn parts_go_around_staging_buffers() {
    // Slot 8 alone does not lie under a buffer.
    let mut cache = borrowing(3, 4, 9);
    cache.begin_chunk().unwrap();
    assert_eq!(admit(&mut cache, Step::new(layer(0)), &[3, 1, 0, 2]), [[0], [1], [2], [3]]);
    assert_eq!(cache.slot_of(layer(0), expert(3)), Some(slot(8)));
}

#[test]
fn parts_fit_whatever_is_resident_and_pinned() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let (expert_count, slot_count) = (12, 2 + rng.below(5) as u32);
        let mut cache = one_pool(2, expert_count, slot_count);
        let mut pick = |count: u64| -> Vec<u32> { (0..count).map(|_| rng.below(12) as u32).collect() };
        let pinned: Vec<_> = pick(u64::from(slot_count / 2)).iter().map(|&number| (layer(0), expert(number))).collect();
        cache.pin(&pinned, 1).unwrap();
        for turn in 0..6 {
            let (number, routes) = (turn % 2, pick(10));
            let resident = |&route: &u32| cache.slot_of(layer(number), expert(route)).is_some();
            let mut missing: Vec<u32> = routes.iter().copied().filter(|route| !resident(route)).collect();
            missing.sort_unstable();
            missing.dedup();
            let fetched = admit(&mut cache, Step::new(layer(number)), &routes);
            assert_eq!(sorted(fetched), missing, "seed {seed}: each miss once");
        }
    }
}

#[test]
fn a_pool_without_a_slot_to_give_cannot_be_parted() {
    let mut cache = one_pool(2, 4, 2);
    decode(&mut cache, 0, &[0, 1]);
    cache.pin(&[(layer(0), expert(0)), (layer(0), expert(1))], 0).unwrap();
    let error = EnsureError::StepTooWide {
        layer: layer(1),
        pool: POOL,
        needed: 3,
        given: 0,
        slot_count: 2,
        pinned: 2,
        withheld: 0,
    };
    assert_eq!(partition(&mut cache, 1, &[3, 0, 3, 1]), Err(error));
    assert_eq!(partition(&mut cache, 0, &[1, 0]).unwrap(), [[1, 0]], "both are resident");
}

// Marks of experts that are in no slot, and of another layer, hold none: 8 and 9 are neither pinned nor under buffers.
#[test]
fn a_mark_alone_takes_no_room_from_parts() {
    let mut cache = borrowing(3, 4, 10);
    cache.pin(&[(layer(0), expert(0)), (layer(0), expert(1))], 2).unwrap();
    cache.begin_chunk().unwrap();
    let parts = partition(&mut cache, 1, &[0, 1, 2, 3]).unwrap();
    assert_eq!(parts, [[0, 1, ABSENT, ABSENT], [ABSENT, ABSENT, 2, 3]]);
}

#[test]
fn a_step_that_cannot_be_parted_is_told_in_the_numbers_of_its_admission() {
    let mut cache = one_pool(1, 4, 2);
    decode(&mut cache, 0, &[0, 1]);
    cache.pin(&[(layer(0), expert(0)), (layer(0), expert(1))], 0).unwrap();
    let error = refuse(&mut cache, layer(0), &[1, 0, 3]);
    assert!(matches!(error, EnsureError::StepTooWide { needed: 3, given: 2, pinned: 0, .. }), "{error}");
    assert_eq!(partition(&mut cache, 0, &[1, 0, 3]), Err(error), "the step uses what is pinned");
}

#[test]
fn a_step_that_is_none_cannot_be_parted() {
    let mut cache = Cache::with_pools(4, &[Some(POOL), None], &[2]).unwrap();
    let unknown = EnsureError::UnknownExpert { layer: layer(0), route: 1, expert: expert(4), expert_count: 4 };
    assert_eq!(partition(&mut cache, 0, &[0, 4]), Err(unknown));
    assert_eq!(partition(&mut cache, 1, &[0]), Err(EnsureError::NoSlots { layer: layer(1) }));
    let unknown = EnsureError::UnknownLayer { layer: layer(2), layer_count: 2 };
    assert_eq!(partition(&mut cache, 2, &[0]), Err(unknown));
}
