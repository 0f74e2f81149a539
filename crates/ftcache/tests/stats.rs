//! Statistics: what was counted, and what always adds up. Worked case C20.

mod support;

use std::collections::{BTreeMap, BTreeSet};

use ftcache::{Budget, Constraints, ExpertId, HostDevice, LayerId, PoolId, Scope, Stats, Stream, Streams};
use ftcache_testkit::Rng;
use ftcache_testkit::generators::skewed_routes;
use support::{World, model};

/// Three layers over two layouts: 18, 26 and 18 bytes an expert.
fn world(scope: Scope) -> World {
    let layers = [vec![16, 2], vec![20, 2, 4], vec![16, 2]];
    let constraints = Constraints { scope, slot_pad_bytes: 5, ..Constraints::new(Budget::Slots(15)) };
    World::new(model(12, 1, &layers), constraints, HostDevice::new(), 1)
}

const EXPERT_BYTES: [u64; 3] = [18, 26, 18];

fn sum(stats: impl IntoIterator<Item = Stats>) -> Stats {
    stats.into_iter().fold(Stats::default(), |mut sum, stats| {
        sum += stats;
        sum
    })
}

#[test]
fn whatever_was_routed_the_counters_add_up() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let scope = if seed % 2 == 0 { Scope::Unified } else { Scope::PerLayer };
        let mut world = world(scope);
        let mut reference = world.reference();
        // `[steps, routes, distinct, misses, evictions]` of each layer, counted beside the cache.
        let mut counted = BTreeMap::<u32, [u64; 5]>::new();
        for _ in 0..60 {
            let layer = rng.below(3) as u32;
            let width = rng.below(u64::from(world.slot_count(layer)) + 1) as usize;
            let mut routes: Vec<u32> = skewed_routes(&mut rng, 12, width).iter().map(|route| route.get()).collect();
            routes.extend_from_within(..);
            let answer = reference.ensure(layer, &routes).unwrap();
            world.load_one(layer, &routes).unwrap();
            let counts = counted.entry(layer).or_default();
            counts[0] += 1;
            counts[1] += routes.len() as u64;
            counts[2] += routes.iter().collect::<BTreeSet<_>>().len() as u64;
            counts[3] += answer.copies.len() as u64;
            counts[4] += answer.evicted.iter().flatten().count() as u64;
        }
        let layers: Vec<Stats> = (0..3).map(|layer| world.cache.layer_stats(LayerId::new(layer)).unwrap()).collect();
        for (layer, stats) in layers.iter().enumerate() {
            let counts = stats.residency;
            let found = [counts.steps, counts.routes, counts.distinct, counts.misses, counts.evictions];
            assert_eq!(found, counted.get(&(layer as u32)).copied().unwrap_or_default(), "seed {seed} layer {layer}");
            assert_eq!(counts.hits() + counts.misses, counts.distinct, "seed {seed} layer {layer}");
            assert_eq!(stats.bytes, counts.misses * EXPERT_BYTES[layer], "seed {seed} layer {layer}");
            match counts.hit_rate() {
                Some(rate) => {
                    let misses = counts.misses as f64 / counts.distinct as f64;
                    assert!((rate - (1.0 - misses)).abs() < 1e-12, "seed {seed} layer {layer}");
                }
                None => assert_eq!(counts.distinct, 0, "seed {seed} layer {layer}"),
            }
        }
        assert_eq!(world.cache.stats(), sum(layers.iter().copied()), "seed {seed}");
        let pool_count = world.cache.geometry().pools().len();
        let pools: Vec<Stats> =
            (0..pool_count).map(|pool| world.cache.pool_stats(PoolId::from_index(pool)).unwrap()).collect();
        assert_eq!(world.cache.stats(), sum(pools.iter().copied()), "seed {seed}");
        for (index, pool) in world.cache.geometry().pools().iter().enumerate() {
            let own = sum(pool.layers().iter().map(|layer| layers[layer.index()]));
            assert_eq!(pools[index], own, "seed {seed} pool {index}");
        }
    }
}

#[test]
fn a_wide_step_is_one_step_and_duplicates_are_only_routes() {
    let mut world = World::new(model(64, 2, &[vec![16, 2]]), Constraints::new(Budget::Slots(64)), HostDevice::new(), 0);
    let routes: Vec<u32> = (0..300).map(|route| route % 60).collect();
    world.load_one(0, &routes).unwrap();
    let stats = world.cache.stats();
    assert_eq!((stats.residency.steps, stats.residency.routes), (1, 300));
    assert_eq!((stats.residency.distinct, stats.residency.misses, stats.residency.evictions), (60, 60, 0));
    assert_eq!(stats.bytes, 60 * 18);
    world.load_one(0, &[7; 9]).unwrap();
    let stats = world.cache.stats();
    assert_eq!((stats.residency.steps, stats.residency.routes), (2, 309));
    assert_eq!((stats.residency.distinct, stats.residency.misses, stats.residency.hits()), (61, 60, 1));
}

#[test]
fn a_step_takes_from_another_layer_what_it_counts_as_an_eviction_of_its_own() {
    let mut world =
        World::new(model(8, 1, &[vec![16], vec![16]]), Constraints::new(Budget::Slots(2)), HostDevice::new(), 0);
    world.load_one(0, &[0, 1]).unwrap();
    world.load_one(1, &[5]).unwrap();
    let evictions = |layer| world.cache.layer_stats(LayerId::new(layer)).unwrap().residency.evictions;
    assert_eq!((evictions(0), evictions(1)), (0, 1));
}

#[test]
fn absent_routes_and_refused_steps_are_not_counted() {
    let mut world = world(Scope::PerLayer);
    let one = Streams::one(Stream::DEFAULT);
    world.cache.load_ids(one, LayerId::new(0), [3, -1, 3, -1], Some(-1)).unwrap();
    let mut stats = world.cache.stats();
    assert_eq!((stats.residency.steps, stats.residency.routes, stats.residency.distinct), (1, 2, 1));
    world.cache.load_ids(one, LayerId::new(0), [3, -1], None).unwrap_err();
    world.load_one(0, &[0, 1, 2, 3, 4, 5]).unwrap_err();
    world.load_one(9, &[0]).unwrap_err();
    // The one that was too wide is known to have been refused.
    stats.residency.refused = 1;
    assert_eq!(world.cache.stats(), stats);
    world.cache.load(LayerId::new(0), &[ExpertId::ABSENT]).unwrap();
    let after = world.cache.stats().residency;
    assert_eq!((after.routes, after.distinct, after.misses), (2, 1, 1));
}

#[test]
fn statistics_start_over_and_residents_stay() {
    let mut world = world(Scope::Unified);
    world.load_one(0, &[1, 2, 3]).unwrap();
    world.load_one(1, &[1]).unwrap();
    world.cache.reset_stats().unwrap();
    assert_eq!(world.cache.stats(), Stats::default());
    assert_eq!(world.cache.stats().residency.hit_rate(), None);
    for layer in 0..3 {
        assert_eq!(world.cache.layer_stats(LayerId::new(layer)).unwrap(), Stats::default());
    }
    world.load_one(0, &[3, 2, 9]).unwrap();
    let stats = world.cache.stats();
    assert_eq!((stats.residency.hits(), stats.residency.misses, stats.bytes), (2, 1, 18));
    assert_eq!(stats.residency.hit_rate(), Some(2.0 / 3.0));
    world.cache.reset().unwrap();
    assert_eq!(world.cache.stats(), stats, "freeing every slot leaves the statistics");
}

#[test]
fn a_window_is_the_difference_of_two_readings() {
    let mut world = world(Scope::PerLayer);
    world.load_one(1, &[0, 1]).unwrap();
    let before = world.cache.stats();
    world.load_one(1, &[1, 2]).unwrap();
    world.load_one(0, &[5]).unwrap();
    let window = world.cache.stats() - before;
    let counted = window.residency;
    assert_eq!((counted.steps, counted.hits(), counted.misses, window.bytes), (2, 1, 2, 26 + 18));
}
