//! Admission at its edges, by name: what random runs meet too rarely. Numbers small enough to do by hand.

use ftcache_policy::{
    Budget, Constraints, Cut, ExpertId, Geometry, LayerId, LayoutKey, Model, PoolId, Quantisation, RankView, SlotId,
};
use ftcache_residency::{Cache, EnsureError, Plan, Stats};
use ftcache_testkit::Rng;

fn ids(routes: &[u32]) -> Vec<ExpertId> {
    routes.iter().copied().map(ExpertId::new).collect()
}

fn one_pool(layer_count: usize, expert_count: u32, slot_count: u32) -> Cache {
    Cache::with_pools(expert_count, &vec![Some(PoolId::new(0)); layer_count], &[slot_count]).unwrap()
}

/// Commits a step and returns its plan as text.
fn step(cache: &mut Cache, layer: u32, routes: &[u32]) -> String {
    let mut plan = Plan::new();
    cache.ensure(LayerId::new(layer), &ids(routes), &mut plan).unwrap().commit();
    cache.check().unwrap();
    plan.to_string()
}

/// Refuses a step, which changes nothing; one that is too wide is counted as such.
fn check_refused(cache: &mut Cache, layer: u32, routes: &[u32], error: EnsureError) {
    let (before, mut plan) = (cache.clone(), Plan::new());
    assert_eq!(cache.ensure(LayerId::new(layer), &ids(routes), &mut plan).unwrap_err(), error);
    for index in (0..cache.layer_count()).map(LayerId::from_index) {
        let wide = matches!(error, EnsureError::StepTooWide { .. }) && index.get() == layer;
        let stats = Stats { refused: before.layer_stats(index).refused + u64::from(wide), ..before.layer_stats(index) };
        assert_eq!(cache.layer_stats(index), stats);
    }
    let without_stats = |cache: &Cache| {
        let mut cache = cache.clone();
        cache.reset_stats();
        format!("{cache:?}")
    };
    assert_eq!(without_stats(cache), without_stats(&before));
    assert_eq!(format!("{plan:?}"), format!("{:?}", Plan::new()));
}

/// A step of layer 0 that is too wide for pool 0, of which nothing is pinned or withheld.
fn too_wide(needed: usize, slot_count: u32) -> EnsureError {
    let (layer, pool) = (LayerId::new(0), PoolId::new(0));
    EnsureError::StepTooWide { layer, pool, needed, given: slot_count, slot_count, pinned: 0, withheld: 0 }
}

#[test]
fn two_layers_share_four_slots() {
    let mut cache = one_pool(2, 4, 4);
    let steps = [(0, &[2, 0][..]), (1, &[3, 1]), (0, &[0, 1]), (1, &[1, 1, 0]), (0, &[3, 2, 1])];
    let plans: Vec<String> = steps.iter().map(|(layer, routes)| step(&mut cache, *layer, routes)).collect();
    insta::assert_snapshot!(plans.join("\n"), @"
    step 1 pool 0: routes [2, 0] -> slots [1, 0]; copy 0 -> slot 0; copy 2 -> slot 1
    step 2 pool 0: routes [3, 1] -> slots [3, 2]; copy 1 -> slot 2; copy 3 -> slot 3
    step 3 pool 0: routes [0, 1] -> slots [0, 1]; copy 1 -> slot 1 (was 2, last step 1)
    step 4 pool 0: routes [1, 1, 0] -> slots [2, 2, 3]; copy 0 -> slot 3 (was 7, last step 2)
    step 5 pool 0: routes [3, 2, 1] -> slots [2, 0, 1]; copy 2 -> slot 0 (was 0, last step 3); copy 3 -> slot 2 (was 5, last step 4)
    ");
    let owners: Vec<_> = (0..4).map(|slot| cache.expert_of(PoolId::new(0), SlotId::new(slot)).unwrap()).collect();
    let flat: Vec<u32> = owners.iter().map(|(layer, expert)| layer.get() * 4 + expert.get()).collect();
    assert_eq!(flat, [2, 1, 3, 4]);
    let stats = cache.pool_stats(PoolId::new(0));
    assert_eq!((stats.steps, stats.distinct, stats.misses, stats.evictions), (5, 11, 8, 4));
    assert_eq!(stats.routes, 12);
    let (first, second) = (cache.layer_stats(LayerId::new(0)), cache.layer_stats(LayerId::new(1)));
    assert_eq!((first.steps, second.steps), (3, 2));
    assert_eq!(first.hits() + second.hits(), stats.hits());
}

#[test]
fn a_step_never_takes_a_slot_that_it_uses() {
    let mut cache = one_pool(1, 8, 4);
    for expert in 0..4 {
        step(&mut cache, 0, &[expert]);
    }
    // 0 is the oldest, but the step uses it; 5 must not take the slot that 4 was just given.
    assert_eq!(
        step(&mut cache, 0, &[0, 4, 5]),
        "step 5 pool 0: routes [0, 4, 5] -> slots [0, 1, 2]; copy 4 -> slot 1 (was 1, last step 2); \
         copy 5 -> slot 2 (was 2, last step 3)"
    );
}

#[test]
fn hits_are_stamped_before_any_victim_is_chosen() {
    let mut cache = one_pool(1, 3, 2);
    step(&mut cache, 0, &[0]);
    step(&mut cache, 0, &[1]);
    // Walked in order, 2 would take the slot of 0, and 0 would be fetched again: two copies instead of one.
    assert_eq!(
        step(&mut cache, 0, &[2, 0]),
        "step 3 pool 0: routes [2, 0] -> slots [1, 0]; copy 2 -> slot 1 (was 1, last step 2)"
    );
}

#[test]
fn equal_routes_are_one_miss_and_one_copy() {
    let mut cache = one_pool(1, 8, 2);
    assert_eq!(
        step(&mut cache, 0, &[6; 5]),
        "step 1 pool 0: routes [6, 6, 6, 6, 6] -> slots [0, 0, 0, 0, 0]; copy 6 -> slot 0"
    );
    let stats = cache.layer_stats(LayerId::new(0));
    assert_eq!((stats.routes, stats.distinct, stats.misses), (5, 1, 1));
}

#[test]
fn an_absent_route_takes_no_slot() {
    let mut cache = one_pool(1, 8, 2);
    let absent = ExpertId::ABSENT.get();
    assert_eq!(
        step(&mut cache, 0, &[absent, 3, absent]),
        "step 1 pool 0: routes [-, 3, -] -> slots [-, 0, -]; copy 3 -> slot 0"
    );
    assert_eq!(
        step(&mut cache, 0, &[absent; 9]),
        "step 2 pool 0: routes [-, -, -, -, -, -, -, -, -] -> slots [-, -, -, -, -, -, -, -, -]"
    );
    let stats = cache.layer_stats(LayerId::new(0));
    assert_eq!((stats.steps, stats.routes, stats.distinct), (2, 1, 1));
}

#[test]
fn a_step_of_no_routes_is_a_step() {
    let mut cache = one_pool(1, 8, 2);
    assert_eq!(step(&mut cache, 0, &[]), "step 1 pool 0: routes [] -> slots []");
    assert_eq!(cache.layer_stats(LayerId::new(0)).hit_rate(), None);
}

#[test]
fn a_step_as_wide_as_the_pool_fits_and_one_wider_changes_nothing() {
    let mut cache = one_pool(1, 8, 3);
    step(&mut cache, 0, &[0, 1, 2]);
    check_refused(&mut cache, 0, &[7, 0, 6, 5], too_wide(4, 3));
    // All slots are older than this step, so a full exchange fits.
    assert_eq!(
        step(&mut cache, 0, &[7, 6, 5]),
        "step 2 pool 0: routes [7, 6, 5] -> slots [2, 1, 0]; copy 5 -> slot 0 (was 0, last step 1); \
         copy 6 -> slot 1 (was 1, last step 1); copy 7 -> slot 2 (was 2, last step 1)"
    );
}

#[test]
fn two_slots_refuse_three_experts() {
    let mut cache = one_pool(1, 3, 2);
    check_refused(&mut cache, 0, &[0, 1, 2], too_wide(3, 2));
    assert_eq!(
        step(&mut cache, 0, &[1, 2]),
        "step 1 pool 0: routes [1, 2] -> slots [0, 1]; copy 1 -> slot 0; copy 2 -> slot 1"
    );
}

#[test]
fn ids_outside_the_layer_change_nothing() {
    let mut cache = one_pool(2, 4, 4);
    step(&mut cache, 1, &[3]);
    // An id of the next layer's range must not pass for a flat id.
    for stray in [4, 7, u32::MAX - 1] {
        let error = EnsureError::UnknownExpert {
            layer: LayerId::new(0),
            route: 2,
            expert: ExpertId::new(stray),
            expert_count: 4,
        };
        check_refused(&mut cache, 0, &[1, 2, stray, 9], error);
    }
    check_refused(&mut cache, 2, &[0], EnsureError::UnknownLayer { layer: LayerId::new(2), layer_count: 2 });
    // Experts seen by the refused calls are still misses, once each.
    assert_eq!(
        step(&mut cache, 0, &[1, 2]),
        "step 2 pool 0: routes [1, 2] -> slots [1, 2]; copy 1 -> slot 1; copy 2 -> slot 2"
    );
}

#[test]
fn an_aborted_plan_leaves_its_slots_free_and_nobody_in_them() {
    let mut cache = one_pool(1, 8, 3);
    step(&mut cache, 0, &[0, 1, 2]);
    let mut plan = Plan::new();
    cache.ensure(LayerId::new(0), &ids(&[1, 5, 6]), &mut plan).unwrap().abort();
    cache.check().unwrap();
    let resident: Vec<u32> = (0..8).filter(|&e| cache.slot_of(LayerId::new(0), ExpertId::new(e)).is_some()).collect();
    assert_eq!(resident, [1], "the old owners' rows may be overwritten, the new ones' may not have arrived");
    assert_eq!(cache.layer_stats(LayerId::new(0)).steps, 1);
    assert_eq!(step(&mut cache, 0, &[5]), "step 3 pool 0: routes [5] -> slots [0]; copy 5 -> slot 0");

    drop(cache.ensure(LayerId::new(0), &ids(&[7]), &mut plan).unwrap());
    assert_eq!(cache.slot_of(LayerId::new(0), ExpertId::new(7)), None, "a dropped ticket aborts");
}

#[test]
fn layers_of_different_pools_do_not_touch_each_other() {
    let pools = [1, 0].map(|pool| Some(PoolId::new(pool)));
    let mut cache = Cache::with_pools(4, &pools, &[1, 2]).unwrap();
    assert_eq!(
        step(&mut cache, 0, &[3, 1]),
        "step 1 pool 1: routes [3, 1] -> slots [1, 0]; copy 1 -> slot 0; copy 3 -> slot 1"
    );
    assert_eq!(step(&mut cache, 1, &[2]), "step 2 pool 0: routes [2] -> slots [0]; copy 2 -> slot 0");
    assert_eq!(
        step(&mut cache, 1, &[0]),
        "step 3 pool 0: routes [0] -> slots [0]; copy 0 -> slot 0 (was 6, last step 2)"
    );
    assert_eq!(cache.slot_of(LayerId::new(0), ExpertId::new(3)), Some(SlotId::new(1)));
    assert_eq!(cache.pool_stats(PoolId::new(0)).misses, 2);
    assert_eq!(cache.pool_stats(PoolId::new(1)).misses, 2);
}

#[test]
fn forgotten_slots_go_first_lowest_first() {
    let mut cache = one_pool(2, 8, 6);
    step(&mut cache, 0, &[0, 1, 2]);
    step(&mut cache, 1, &[0, 1]);
    assert_eq!(cache.forget(PoolId::new(0), SlotId::new(4)), Some((LayerId::new(1), ExpertId::new(1))));
    assert_eq!(cache.forget(PoolId::new(0), SlotId::new(4)), None);
    assert_eq!(cache.forget_layer(LayerId::new(0)), Ok(3));
    assert_eq!(
        step(&mut cache, 1, &[5, 6, 7, 1]),
        "step 3 pool 0: routes [5, 6, 7, 1] -> slots [1, 2, 4, 0]; copy 1 -> slot 0; copy 5 -> slot 1; \
         copy 6 -> slot 2; copy 7 -> slot 4"
    );
    cache.reset();
    cache.check().unwrap();
    assert_eq!(step(&mut cache, 1, &[5]), "step 4 pool 0: routes [5] -> slots [0]; copy 5 -> slot 0");
}

/// Hits per token, once warm, of `k` fixed experts in each of `L` layers over one pool of `S` slots: the edge at one
/// token's cycle is not a step, since a step's slots are stamped alike and leave in slot order.
#[test]
fn hits_at_the_edge_of_one_tokens_cycle() {
    for (layer_count, k, slot_count, hits) in [
        (3, 2, 4, 0),
        (3, 2, 5, 3),
        (3, 2, 6, 6),
        (4, 3, 9, 0),
        (4, 3, 10, 4),
        (4, 3, 11, 8),
        (4, 3, 12, 12),
        (36, 4, 141, 36),
    ] {
        check_cycle(&mut Rng::new(u64::from(slot_count)), layer_count, k, slot_count, hits);
    }
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let (layer_count, k) = (2 + rng.below(6) as u32, 1 + rng.below(6) as u32);
        let slot_count = k + rng.below(u64::from((layer_count - 1) * k + 1)) as u32;
        let hits = layer_count * slot_count.saturating_sub((layer_count - 1) * k);
        check_cycle(&mut rng, layer_count, k, slot_count, hits);
    }
}

fn check_cycle(rng: &mut Rng, layer_count: u32, k: u32, slot_count: u32, hits_per_token: u32) {
    let expert_count = 16;
    let mut cache = one_pool(layer_count as usize, expert_count, slot_count);
    let mut sets: Vec<Vec<u32>> = vec![(0..expert_count).collect(); layer_count as usize];
    for set in &mut sets {
        for index in 0..k as usize {
            set.swap(index, index + rng.below(u64::from(expert_count) - index as u64) as usize);
        }
        set.truncate(k as usize);
    }
    for token in 0..6 {
        cache.reset_stats();
        for (layer, set) in sets.iter().enumerate() {
            step(&mut cache, layer as u32, set);
        }
        let hits = cache.pool_stats(PoolId::new(0)).hits();
        let wanted = if token == 0 { 0 } else { hits_per_token };
        assert_eq!(hits, u64::from(wanted), "token {token}: {k} experts in {layer_count} layers, {slot_count} slots");
    }
}

#[test]
fn one_admission_never_misses_more_than_one_in_parts() {
    let mut fewer = 0;
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let (expert_count, slot_count) = (40, 24);
        let mut whole = one_pool(1, expert_count, slot_count);
        for _ in 0..10 {
            let routes: Vec<u32> = (0..6).map(|_| rng.below(u64::from(expert_count)) as u32).collect();
            step(&mut whole, 0, &routes);
        }
        let mut parts = whole.clone();
        let routes: Vec<u32> = (0..20).map(|_| rng.below(u64::from(expert_count)) as u32).collect();
        let misses = |cache: &Cache| cache.layer_stats(LayerId::new(0)).misses;
        let before = misses(&whole);
        step(&mut whole, 0, &routes);
        for part in routes.chunks(5) {
            step(&mut parts, 0, part);
        }
        assert!(
            misses(&whole) <= misses(&parts),
            "seed {seed}: {} and {}",
            misses(&whole) - before,
            misses(&parts) - before
        );
        fewer += u32::from(misses(&whole) < misses(&parts));
    }
    assert!(fewer > 0, "no seed shows the difference");
}

#[test]
fn a_layer_without_slots_is_refused_and_its_neighbours_go_on() {
    let layers = vec![LayoutKey::tagged("q", [16]); 3];
    let model = Model::new(8, 2, Quantisation::PerLayer, layers).unwrap();
    let slotless_layers = vec![LayerId::new(1)];
    let constraints = Constraints { slotless_layers, ..Constraints::new(Budget::Slots(4)) };
    let mut cache = Cache::new(&Geometry::new(model, constraints).unwrap());
    check_refused(&mut cache, 1, &[0], EnsureError::NoSlots { layer: LayerId::new(1) });
    assert_eq!(cache.forget_layer(LayerId::new(1)), Err(EnsureError::NoSlots { layer: LayerId::new(1) }));
    assert_eq!(step(&mut cache, 0, &[5]), "step 1 pool 0: routes [5] -> slots [0]; copy 5 -> slot 0");
    assert_eq!(step(&mut cache, 2, &[5]), "step 2 pool 0: routes [5] -> slots [1]; copy 5 -> slot 1");
    assert_eq!(cache.pool_stats(PoolId::new(0)).steps, 2);
}

// C12.
#[test]
fn ranks_serve_each_route_once() {
    let layers = vec![LayoutKey::tagged("q", [16]); 2];
    let whole = Model::new(10, 3, Quantisation::PerLayer, layers).unwrap();
    let all: Vec<LayerId> = whole.layer_ids().collect();
    let views: Vec<RankView> =
        (0..4).map(|rank| RankView::new(&whole, &Cut::Experts { rank, rank_count: 4 }, &all).unwrap()).collect();
    let cache_of = |model: &Model, slots| {
        Cache::new(&Geometry::new(model.clone(), Constraints::new(Budget::Slots(slots))).unwrap())
    };
    let mut one = cache_of(&whole, 20);
    let mut ranks: Vec<Cache> = views.iter().map(|view| cache_of(view.model(), 4)).collect();
    let (mut plan, mut rng) = (Plan::new(), Rng::new(12));
    for _ in 0..200 {
        let layer = LayerId::new(rng.below(2) as u32);
        let routes: Vec<ExpertId> = (0..3).map(|_| ExpertId::new(rng.below(10) as u32)).collect();
        one.ensure(layer, &routes, &mut plan).unwrap().commit();
        let mut served = vec![0; routes.len()];
        for (view, cache) in views.iter().zip(&mut ranks) {
            let mut local = routes.clone();
            view.localise(&mut local).unwrap();
            cache.ensure(layer, &local, &mut plan).unwrap().commit();
            for (served, slot) in served.iter_mut().zip(plan.slots()) {
                *served += u32::from(slot.is_slot());
            }
        }
        assert_eq!(served, vec![1; routes.len()], "{routes:?}");
    }
    let distinct = |cache: &Cache| all.iter().map(|&layer| cache.layer_stats(layer).distinct).sum::<u64>();
    assert_eq!(ranks.iter().map(distinct).sum::<u64>(), distinct(&one));
}

#[test]
fn errors_name_the_thing_and_both_numbers() {
    let (layer, pool) = (LayerId::new(3), PoolId::new(1));
    let texts = [
        EnsureError::UnknownLayer { layer, layer_count: 3 },
        EnsureError::NoSlots { layer },
        EnsureError::UnknownExpert { layer, route: 5, expert: ExpertId::new(64), expert_count: 64 },
        EnsureError::StepTooWide { layer, pool, needed: 33, given: 21, slot_count: 21, pinned: 0, withheld: 0 },
    ]
    .map(|error| error.to_string());
    insta::assert_snapshot!(texts.join("\n"), @"
    no layer 3: the cache has 3 layers
    layer 3 holds no slots: it decodes elsewhere
    layer 3: route 5 is 64, which is no expert of 0..64
    layer 3 routes to 33 distinct experts; pool 1 has 21 slots
    ");
    let texts = [
        Cache::with_pools(4, &[0, 2].map(|pool| Some(PoolId::new(pool))), &[1, 1]),
        Cache::with_pools(u32::MAX, &[Some(PoolId::new(0)); 2], &[1]),
    ]
    .map(|refused| refused.unwrap_err().to_string());
    insta::assert_snapshot!(texts.join("\n"), @"
    layer 1 is in pool 2 of 2 pools
    8589934590 experts and 1 slots; ids count 4294967280 of each
    ");
}
