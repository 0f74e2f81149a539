//! What can be read of a cache beside its plans, and of what it does not have.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

/// Two layers of four experts in pool 0, a third without slots, and a pool 1 that serves none.
fn cache() -> Cache {
    let mut cache = Cache::with_pools(4, &[Some(POOL), Some(POOL), None], &[3, 2]).unwrap();
    decode(&mut cache, 0, &[3]);
    decode(&mut cache, 1, &[0, 0]);
    cache
}

/// Layer 0's expert 4 is not layer 1's expert 0, which is pinned and resident.
#[test]
fn experts_that_a_layer_does_not_have_are_a_fault() {
    type Reader = (&'static str, fn(&Cache, LayerId, ExpertId) -> String);
    let readers: [Reader; 5] = [
        ("slot_of", |cache, layer, expert| format!("{:?}", cache.slot_of(layer, expert))),
        ("absence", |cache, layer, expert| format!("{:?}", cache.absence(layer, expert))),
        ("last_active", |cache, layer, expert| cache.last_active(layer, expert).to_string()),
        ("routed", |cache, layer, expert| cache.routed(layer, expert).to_string()),
        ("is_pinned", |cache, layer, expert| cache.is_pinned(layer, expert).to_string()),
    ];
    let mut cache = cache();
    cache.pin(&[(layer(1), expert(0))], 1).unwrap();
    for (name, read) in readers {
        for (number, of_layer) in [(0, 3), (1, 0), (2, 3)] {
            drop(read(&cache, layer(number), expert(of_layer)));
        }
        for (number, of_layer) in [(0, 4), (2, 4), (3, 0), (u32::MAX, 0), (0, ABSENT), (1 << 30, 0)] {
            let read = catch_unwind(AssertUnwindSafe(|| read(&cache, layer(number), expert(of_layer))));
            assert!(read.is_err(), "{name} of layer {number}, expert {of_layer}");
        }
    }
}

#[test]
fn layers_and_pools_that_a_cache_does_not_have_are_a_fault() {
    type Reader = (&'static str, u32, fn(&Cache, u32) -> String);
    let readers: [Reader; 9] = [
        ("layer_stats", 3, |cache, number| format!("{:?}", cache.layer_stats(layer(number)))),
        ("phase_stats", 3, |cache, number| format!("{:?}", cache.phase_stats(layer(number), Phase::Decode))),
        ("carried", 3, |cache, number| format!("{:?}", cache.carried(layer(number)))),
        ("layer_routing", 3, |cache, number| format!("{:?}", cache.layer_routing(layer(number)))),
        ("pool_stats", 2, |cache, number| format!("{:?}", cache.pool_stats(PoolId::new(number)))),
        ("pinned_count", 2, |cache, number| format!("{:?}", cache.pinned_count(PoolId::new(number)))),
        ("slot_count", 2, |cache, number| format!("{:?}", cache.slot_count(PoolId::new(number)))),
        ("stamp", 2, |cache, number| format!("{:?}", cache.stamp(PoolId::new(number), slot(1)))),
        ("expert_of", 2, |cache, number| format!("{:?}", cache.expert_of(PoolId::new(number), slot(1)))),
    ];
    let cache = cache();
    for (name, count, read) in readers {
        (0..count).for_each(|number| drop(read(&cache, number)));
        for number in [count, u32::MAX] {
            let read = catch_unwind(AssertUnwindSafe(|| read(&cache, number)));
            assert!(read.is_err(), "{name} of {number} of {count}");
        }
    }
    // Slot 2 of pool 1 would be beyond all; slot 3 of pool 0 would be pool 1's first.
    for (pool, number) in [(0, 3), (1, 2)] {
        let pool = PoolId::new(pool);
        assert!(catch_unwind(AssertUnwindSafe(|| cache.stamp(pool, slot(number)))).is_err());
        assert!(catch_unwind(AssertUnwindSafe(|| cache.expert_of(pool, slot(number)))).is_err());
    }
}

#[test]
fn a_pool_that_serves_no_layer_has_nothing_counted() {
    let cache = cache();
    assert_eq!(cache.pool_stats(PoolId::new(1)), Stats::default());
    assert_eq!(cache.pool_stats(POOL), cache.total_stats());
}

#[test]
fn the_total_is_that_of_all_layers_and_phases() {
    let mut cache = cache();
    commit(&mut cache, of_phase(Phase::Verify, 0), &[3, 2]);
    commit(&mut cache, of_phase(Phase::Prefill, 1), &[0]);
    refuse(&mut cache, layer(1), &[0, 1, 2, 3]);
    let total = cache.total_stats();
    let wanted = Stats {
        steps: 4,
        routes: 6,
        hit_routes: 2,
        distinct: 5,
        misses: 3,
        fetched: 3,
        cold_misses: 3,
        refused: 1,
        ..Stats::default()
    };
    assert_eq!(total, wanted);
    decode(&mut cache, 1, &[1]);
    assert_eq!((cache.total_stats() - total).steps, 1);
    cache.reset_stats();
    assert_eq!(cache.total_stats(), Stats::default());
}

#[test]
fn every_rebuild_is_another_generation() {
    let mut cache = cache();
    assert_eq!(cache.generation(), 0);
    let pools = [Some(POOL); 3];
    let (cold, _) = cache.rebuilt_with_pools(&pools, &[3], Keep::Nothing).unwrap();
    let (warm, _) = cold.rebuilt_with_pools(&pools, &[3], Keep::WhatFits).unwrap();
    assert_eq!([&cache, &cold, &warm, &warm.clone()].map(Cache::generation), [0, 1, 2, 2]);
    assert!(cache.rebuilt_with_pools(&pools, &[], Keep::Nothing).is_err());
    cache.reset();
    cache.reset_stats();
    cache.forget_layer(layer(0)).unwrap();
    assert_eq!(cache.generation(), 0, "neither does the same pools' slots being freed");
}

#[test]
fn a_flat_id_is_a_layers_expert() {
    let cache = cache();
    for (flat, place) in [(0, (0, 0)), (3, (0, 3)), (4, (1, 0)), (11, (2, 3))] {
        let (layer, expert) = cache.layer_and_expert(FlatExpertId::new(flat));
        assert_eq!((layer.get(), expert.get()), place);
    }
}
