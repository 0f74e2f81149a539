//! What is said of the routing, by hand.

use super::*;

/// One step that routes so many times to each expert.
fn route(cache: &mut Cache, layer_number: u32, counts: &[usize]) {
    let routes: Vec<u32> = (0..).zip(counts).flat_map(|(expert, &count)| vec![expert; count]).collect();
    decode(cache, layer_number, &routes);
}

#[track_caller]
fn check_close(given: f64, wanted: f64) {
    assert!((given - wanted).abs() < 1e-12, "{given} instead of {wanted}");
}

#[test]
fn a_layer_that_routes_to_all_alike() {
    let mut cache = one_pool(1, 4, 4);
    route(&mut cache, 0, &[3, 3, 3, 3]);
    let routing = cache.layer_routing(layer(0)).unwrap();
    assert_eq!((routing.layer, routing.routes, routing.working_set), (layer(0), 12, 4));
    assert_eq!(routing.experts_for_90_percent, 4, "three have three quarters");
    check_close(routing.entropy, 1.0);
    check_close(routing.slots, 4.0);
    check_close(routing.oracle_hit_rate, 1.0);
    assert_eq!(routing.hit_rate, Some(0.0));
}

#[test]
fn a_layer_that_routes_to_one() {
    let mut cache = one_pool(1, 4, 4);
    route(&mut cache, 0, &[0, 0, 5]);
    route(&mut cache, 0, &[0, 0, 2]);
    let routing = cache.layer_routing(layer(0)).unwrap();
    assert_eq!((routing.routes, routing.working_set, routing.experts_for_90_percent), (7, 1, 1));
    check_close(routing.entropy, 0.0);
    check_close(routing.hit_rate.unwrap(), 2.0 / 7.0);
}

/// Both are shares of the routes, duplicates included, so that they can be compared.
#[test]
fn the_hit_rate_and_the_oracles_are_by_routes() {
    let mut cache = one_pool(1, 4, 2);
    route(&mut cache, 0, &[3, 1]);
    route(&mut cache, 0, &[4, 0, 1]);
    route(&mut cache, 0, &[2, 0, 1]);
    let stats = cache.layer_stats(layer(0));
    assert_eq!((stats.hits(), stats.distinct), (3, 6), "half of the distinct ones");
    let routing = cache.layer_routing(layer(0)).unwrap();
    // Of 12 routes: four, and then three. 0 and 2 were routed to 9 times and twice.
    check_close(routing.hit_rate.unwrap(), 7.0 / 12.0);
    check_close(routing.oracle_hit_rate, 11.0 / 12.0);
    decode(&mut cache, 0, &[ABSENT, 0]);
    check_close(cache.layer_routing(layer(0)).unwrap().hit_rate.unwrap(), 8.0 / 13.0);
}

#[test]
fn a_layer_of_one_expert_has_no_entropy() {
    let mut cache = one_pool(1, 1, 1);
    route(&mut cache, 0, &[5]);
    let routing = cache.layer_routing(layer(0)).unwrap();
    assert_eq!((routing.working_set, routing.experts_for_90_percent), (1, 1));
    check_close(routing.entropy, 0.0);
    check_close(routing.oracle_hit_rate, 1.0);
}

#[test]
fn a_layer_in_between_by_hand() {
    let mut cache = one_pool(2, 4, 5);
    // A half, a quarter and a quarter: 1.5 bits of 2.
    route(&mut cache, 0, &[1, 0, 2, 1]);
    let routing = cache.layer_routing(layer(0)).unwrap();
    check_close(routing.entropy, 0.75);
    check_close(routing.slots, 2.5);
    // The two most used have three of four routes, and half of the third's one.
    check_close(routing.oracle_hit_rate, 0.875);
}

#[test]
fn nine_tenths_are_reached_exactly() {
    for (counts, wanted) in
        [([9, 1, 0], 1), ([8, 1, 1], 2), ([18, 1, 1], 1), ([17, 2, 1], 2), ([89, 10, 1], 2), ([90, 9, 1], 1)]
    {
        let mut cache = one_pool(1, 3, 3);
        route(&mut cache, 0, &counts);
        assert_eq!(cache.layer_routing(layer(0)).unwrap().experts_for_90_percent, wanted, "{counts:?}");
    }
}

// C20: 2,267 slots for 40 layers are 56.675 a layer.
#[test]
fn the_oracle_has_a_part_of_a_slot() {
    let mut cache = one_pool(40, 128, 2_267);
    let counts: Vec<usize> = (0..128).map(|expert| if expert < 56 { 2 } else { 1 }).collect();
    route(&mut cache, 17, &counts);
    let routing = cache.layer_routing(layer(17)).unwrap();
    check_close(routing.slots, 56.675);
    check_close(routing.oracle_hit_rate, (112.0 + 0.675) / 184.0);
}

// B08: what a set chosen once would hit stands beside what was hit; here one layer has the whole pool of two.
#[test]
fn the_hit_rate_may_be_above_the_oracle_of_a_layers_share() {
    let mut cache = one_pool(2, 4, 4);
    for _ in 0..4 {
        route(&mut cache, 0, &[1, 1, 1, 1]);
    }
    let routing = cache.layer_routing(layer(0)).unwrap();
    check_close(routing.oracle_hit_rate, 0.5);
    assert_eq!(routing.hit_rate, Some(0.75));
}

#[test]
fn what_was_not_routed_has_no_routing() {
    let mut cache = Cache::with_pools(4, &[Some(POOL), None, Some(POOL)], &[3]).unwrap();
    assert!((0..3).all(|number| cache.layer_routing(layer(number)).is_none()));
    assert_eq!(cache.mean_routing(), None);
    decode(&mut cache, 0, &[ABSENT]);
    assert_eq!(cache.mean_routing(), None);
    route(&mut cache, 2, &[1]);
    assert!(cache.layer_routing(layer(0)).is_none() && cache.layer_routing(layer(1)).is_none());
    check_close(cache.layer_routing(layer(2)).unwrap().slots, 1.5);
    cache.reset_routing();
    assert_eq!(cache.mean_routing(), None);
}

#[test]
fn means_are_over_the_layers_that_were_routed() {
    // Two slots for each of three layers.
    let mut cache = one_pool(3, 4, 6);
    route(&mut cache, 0, &[2, 2, 2, 2]);
    route(&mut cache, 2, &[0, 9, 0, 0]);
    route(&mut cache, 2, &[0, 9, 0, 0]);
    let mean = cache.mean_routing().unwrap();
    assert_eq!(mean.layers, 2);
    check_close(mean.working_set, 2.5);
    check_close(mean.experts_for_90_percent, 2.5);
    check_close(mean.entropy, 0.5);
    check_close(mean.oracle_hit_rate, 0.75);
    check_close(mean.hit_rate.unwrap(), 0.25);
    cache.reset_stats();
    assert_eq!(cache.mean_routing().unwrap().hit_rate, None, "nothing since");
    route(&mut cache, 2, &[0, 1]);
    check_close(cache.mean_routing().unwrap().hit_rate.unwrap(), 1.0);
}

#[test]
fn a_rebuild_keeps_the_routing_and_counts_hits_anew() {
    let mut cache = one_pool(2, 4, 6);
    route(&mut cache, 0, &[2, 2, 2, 2]);
    let (next, _) = cache.rebuilt_with_pools(&[Some(POOL); 2], &[2], Keep::WhatFits).unwrap();
    let routing = next.layer_routing(layer(0)).unwrap();
    assert_eq!((routing.routes, routing.hit_rate), (8, None));
    check_close(routing.oracle_hit_rate, 0.25);
}
