//! What is counted, by hand and as identities. C20.

use super::*;

/// `(cold, capacity, staging, freed, on the CPU)`.
fn causes(stats: Stats) -> [u64; 5] {
    [stats.cold_misses, stats.capacity_misses, stats.staging_misses, stats.freed_misses, stats.cpu_misses]
}

fn up_to(most: u32, layer_number: u32) -> Step {
    let fetch = Fetch { rule: FetchRule::UpTo(most), most: None };
    Step { misses: Misses::Hybrid { fetch, order: FetchOrder::LowestId }, ..Step::new(layer(layer_number)) }
}

/// What a call adds to the statistics of layer 0.
fn added(cache: &mut Cache, call: impl FnOnce(&mut Cache)) -> Stats {
    let before = cache.layer_stats(layer(0));
    call(cache);
    cache.layer_stats(layer(0)) - before
}

#[test]
fn every_counter_of_a_step_by_hand() {
    let mut cache = one_pool(1, 8, 3);
    decode(&mut cache, 0, &[0, 1]);
    let stats = added(&mut cache, |cache| {
        // 1 is hit, 2 takes the free slot and 3 that of 0; 4 is left.
        commit(cache, up_to(2, 0), &[4, 1, 3, ABSENT, 2, 2, 4]);
    });
    let wanted = Stats {
        steps: 1,
        routes: 6,
        hit_routes: 1,
        distinct: 4,
        misses: 3,
        fetched: 2,
        evictions: 1,
        cold_misses: 3,
        ..Stats::default()
    };
    assert_eq!(stats, wanted);
    assert_eq!((stats.hits(), stats.left(), stats.hit_rate()), (1, 1, Some(0.25)));
}

#[test]
fn each_cause_of_a_miss_by_hand() {
    let mut cache = one_pool(1, 8, 2);
    let mut miss = |step: Step, route: u32, free: fn(&mut Cache)| {
        let stats = added(&mut cache, |cache| {
            free(cache);
            commit(cache, step, &[route]);
        });
        (stats.misses, causes(stats))
    };
    let plain = Step::new(layer(0));
    let nothing = |_: &mut Cache| ();
    assert_eq!(miss(plain, 0, nothing), (1, [1, 0, 0, 0, 0]));
    assert_eq!(miss(plain, 0, nothing), (0, [0; 5]));
    assert_eq!(miss(plain, 1, nothing), (1, [1, 0, 0, 0, 0]));
    assert_eq!(miss(plain, 2, nothing), (1, [1, 0, 0, 0, 0]), "and 0 loses its slot");
    assert_eq!(miss(plain, 0, nothing), (1, [0, 1, 0, 0, 0]));
    assert_eq!(miss(plain, 0, |cache| assert!(cache.forget(POOL, slot(1)).is_some())), (1, [0, 0, 0, 1, 0]));
    assert_eq!(miss(plain, 0, |cache| assert_eq!(cache.forget_layer(layer(0)), Ok(2))), (1, [0, 0, 0, 1, 0]));
    assert_eq!(miss(plain, 0, Cache::reset), (1, [0, 0, 0, 1, 0]));
    assert_eq!(miss(up_to(0, 0), 5, nothing), (1, [1, 0, 0, 0, 0]), "left, and never routed to before");
    assert_eq!(miss(up_to(0, 0), 5, nothing), (1, [0, 0, 0, 0, 1]));
    assert_eq!(miss(up_to(1, 0), 5, nothing), (1, [0, 0, 0, 0, 1]), "fetched this time");
    assert_eq!(miss(plain, 5, nothing), (0, [0; 5]));
    assert_eq!(miss(up_to(0, 0), 1, nothing), (1, [0, 1, 0, 0, 0]), "it had lost its slot when it was left");
    assert_eq!(miss(plain, 1, nothing), (1, [0, 0, 0, 0, 1]));
}

#[test]
fn routes_are_hits_if_their_expert_was_resident_before() {
    let mut cache = one_pool(1, 8, 3);
    let mut of = |step: Step, routes: &[u32]| {
        let stats = added(&mut cache, |cache| drop(commit(cache, step, routes)));
        (stats.hit_routes, stats.routes, stats.hits(), stats.distinct)
    };
    let (plain, token) = (Step::new(layer(0)), Step { token: Some(1), ..Step::new(layer(0)) });
    assert_eq!(of(plain, &[0, 0]), (0, 2, 0, 1), "the second is no hit either");
    assert_eq!(of(plain, &[0, 1, 0, ABSENT, 1, 0]), (3, 5, 1, 2));
    assert_eq!(of(up_to(0, 0), &[5, 1, 5, 1, 0]), (3, 5, 2, 3));
    for phase in [Phase::Verify, Phase::Prefill] {
        assert_eq!(of(of_phase(phase, 0), &[1, 1, 0]), (3, 3, 2, 2), "{phase:?}");
    }
    assert_eq!(of(token, &[1, 1, ABSENT]), (2, 2, 1, 1));
    assert_eq!(of(token, &[1, 1, ABSENT]), (0, 0, 0, 0), "a repeat is no step");
    assert_eq!(of(Step { continues: true, ..plain }, &[0]), (1, 1, 1, 1));
    let stats = added(&mut cache, |cache| abort(cache, layer(0), &[0, 0, 3]));
    assert_eq!(stats, Stats::default());
}

#[test]
fn an_abort_counts_nothing_and_is_the_cause_of_what_it_costs() {
    let mut cache = one_pool(1, 8, 2);
    decode(&mut cache, 0, &[0, 1]);
    let stats = added(&mut cache, |cache| abort(cache, layer(0), &[1, 2]));
    assert_eq!(stats, Stats::default());
    assert_eq!(cache.routed(layer(0), expert(2)), 0);
    let absences = [0, 1, 2, 3].map(|number| cache.absence(layer(0), expert(number)));
    assert_eq!(absences, [Some(Absence::Evicted), None, Some(Absence::Freed), Some(Absence::NeverRouted)]);
    let stats = added(&mut cache, |cache| drop(commit(cache, up_to(1, 0), &[0, 1, 2])));
    assert_eq!((stats.evictions, causes(stats)), (0, [0, 1, 0, 1, 0]));
}

#[test]
fn phases_are_counted_apart() {
    let mut cache = one_pool(2, 8, 4);
    for (phase, number, routes) in [
        (Phase::Decode, 0, &[0, 1][..]),
        (Phase::Prefill, 0, &[1, 2, 3, 3]),
        (Phase::Verify, 0, &[4]),
        (Phase::Verify, 0, &[4]),
        (Phase::Decode, 1, &[0]),
    ] {
        commit(&mut cache, of_phase(phase, number), routes);
    }
    let of = |phase| {
        let stats = cache.phase_stats(layer(0), phase);
        (stats.steps, stats.routes, stats.distinct, stats.misses)
    };
    assert_eq!(Phase::ALL.map(of), [(1, 2, 2, 2), (2, 2, 2, 1), (1, 4, 3, 2)]);
    let mut sum = Stats::default();
    for phase in Phase::ALL {
        sum += cache.phase_stats(layer(0), phase);
    }
    assert_eq!(sum, cache.layer_stats(layer(0)));
}

#[test]
fn a_further_part_is_no_step_of_its_own() {
    let mut cache = one_pool(1, 8, 2);
    decode(&mut cache, 0, &[0, 1]);
    let stats = added(&mut cache, |cache| {
        commit(cache, Step { continues: true, ..Step::new(layer(0)) }, &[2, 1, 2]);
    });
    assert_eq!((stats.steps, stats.routes, stats.distinct, stats.misses, stats.evictions), (0, 3, 2, 1, 1));
}

#[test]
fn the_identities_hold_whatever_happens() {
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let mut cache = Cache::with_pools(10, &pools_of([0, 1, 0]), &[5, 4]).unwrap();
        let (mut routed, mut wide) = ([0; 3], [0; 3]);
        for _ in 0..80 {
            let number = rng.below(3) as u32;
            let routes: Vec<u32> = (0..1 + rng.below(7)).map(|_| rng.below(10) as u32).collect();
            let phase = Phase::ALL[rng.below(3) as usize];
            let misses = if rng.chance(1, 2) { up_to(rng.below(4) as u32, 0).misses } else { Misses::Fetched };
            let mut plan = Plan::new();
            let step = Step { misses, ..of_phase(phase, number) };
            match cache.ensure(step, &ids(&routes), &mut plan) {
                Ok(ticket) if rng.chance(1, 8) => ticket.abort(),
                Ok(ticket) => {
                    routed[number as usize] += routes.len() as u64;
                    ticket.commit();
                }
                Err(_) => wide[number as usize] += 1,
            }
            match rng.below(20) {
                0 => cache.reset(),
                1 => drop(cache.forget(PoolId::new(1), slot(rng.below(4) as u32))),
                _ => (),
            }
        }
        let mut by_pool = [Stats::default(); 2];
        for (number, pool) in [(0, 0), (1, 1), (2, 0)] {
            let stats = cache.layer_stats(layer(number));
            assert_eq!(stats.hits() + stats.misses, stats.distinct, "seed {seed}");
            assert_eq!(stats.fetched + stats.left(), stats.misses, "seed {seed}");
            assert_eq!(causes(stats).iter().sum::<u64>(), stats.misses, "seed {seed}");
            assert_eq!((stats.routes, stats.refused), (routed[number as usize], wide[number as usize]), "seed {seed}");
            assert!(stats.evictions <= stats.fetched && stats.distinct <= stats.routes);
            assert!(stats.hits() <= stats.hit_routes && stats.hit_routes + stats.misses <= stats.routes);
            let histogram: u64 = (0..10).map(|of_layer| cache.routed(layer(number), expert(of_layer))).sum();
            assert_eq!(histogram, stats.routes, "seed {seed}");
            by_pool[pool] += stats;
        }
        assert_eq!([0, 1].map(|pool| cache.pool_stats(PoolId::new(pool))), by_pool);
        let mut total = by_pool[0];
        total += by_pool[1];
        assert_eq!(cache.total_stats(), total, "seed {seed}");
        assert!(wide.iter().sum::<u64>() > 0, "seed {seed}");
    }
}

#[test]
fn a_window_is_the_difference_of_two_readings() {
    let mut cache = one_pool(1, 8, 2);
    decode(&mut cache, 0, &[0, 1]);
    let then = cache.layer_stats(layer(0));
    decode(&mut cache, 0, &[1, 2]);
    let window = cache.layer_stats(layer(0)) - then;
    assert_eq!((window.steps, window.distinct, window.misses, window.evictions), (1, 2, 1, 1));
    assert_eq!(window.hit_rate(), Some(0.5));
    let mut sum = then;
    sum += window;
    assert_eq!(sum, cache.layer_stats(layer(0)));
}

#[test]
fn a_warm_up_can_be_left_out() {
    let mut cache = one_pool(1, 8, 2);
    decode(&mut cache, 0, &[0, 1]);
    let digest = cache.digest();
    cache.reset_stats();
    assert_eq!((cache.layer_stats(layer(0)), cache.layer_stats(layer(0)).hit_rate()), (Stats::default(), None));
    assert_eq!(cache.routed(layer(0), expert(0)), 1, "the routing is started over by itself");
    cache.reset_routing();
    assert_eq!((cache.routed(layer(0), expert(0)), cache.digest()), (0, digest));
    decode(&mut cache, 0, &[2]);
    decode(&mut cache, 0, &[0]);
    assert_eq!(causes(cache.layer_stats(layer(0))), [1, 1, 0, 0, 0], "what was known of the experts stays");
}

#[test]
fn the_digest_is_the_sum_that_is_described() {
    let mix = |z: u64| {
        let mut z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let mut cache = Cache::with_pools(4, &pools_of([0, 1]), &[3, 2]).unwrap();
    let empty = |step| mix(mix(u64::MAX).wrapping_add(step));
    assert_eq!(cache.digest(), empty(0));
    decode(&mut cache, 0, &[2]);
    decode(&mut cache, 1, &[3, 0]);
    decode(&mut cache, 0, &[1]);
    // Flat 2 in slot 0 and 1 in slot 1 of pool 0; flat 4 and 7 in slots 0 and 1 of pool 1, which are 3 and 4 of all.
    let slots = [(0_u64, 2, 1), (1, 1, 3), (3, 4, 2), (4, 7, 2)];
    let sum = slots.iter().fold(empty(3), |sum, (slot, expert, stamp)| {
        sum.wrapping_add(mix(mix(slot << 32 | expert).wrapping_add(*stamp)))
    });
    assert_eq!(cache.digest(), sum);
    let mut other = cache.clone();
    commit(&mut cache, of_phase(Phase::Verify, 0), &[2]);
    decode(&mut other, 0, &[2]);
    assert_ne!(cache.digest(), other.digest(), "one stamp is another");
}
