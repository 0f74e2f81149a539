//! Warm steps without an allocation, under every rule for victims: an allocator that counts, in a program of its own.

#[path = "../../ftcache-testkit/counting_allocator.rs"]
mod counting_allocator;

use std::collections::VecDeque;

use ftcache_policy::{
    Budget, Constraints, Eviction, ExpertId, Fetch, FetchRule, Fraction, Geometry, LayerId, LayoutKey, Model,
    Quantisation, Staging,
};
use ftcache_residency::{Cache, FetchOrder, Keep, LatePlan, Misses, Parts, Phase, Plan, StagePlan, Step};
use ftcache_testkit::generators::Decode;

use counting_allocator::allocations;

const LAYERS: usize = 3;
const EXPERTS: u32 = 64;

/// Three layers of 64 experts over 140 slots, of which 12 are not under a staging buffer.
fn cache(rule: Eviction) -> Cache {
    let layers = vec![LayoutKey::tagged("t", [32, 2]); LAYERS];
    let model = Model::new(EXPERTS, 8, Quantisation::PerLayer, layers).unwrap();
    let geometry = Geometry::new(model, Constraints::new(Budget::Slots(140))).unwrap();
    let mut cache = Cache::new(&geometry);
    cache.set_staging(Staging::borrowed(&geometry).unwrap(), 16).unwrap();
    cache.set_eviction(rule).unwrap();
    cache
}

fn carry() -> Misses {
    let rule = FetchRule::Carry(Fraction::nearest(0.3).unwrap());
    Misses::Hybrid { fetch: Fetch { rule, most: None }, order: FetchOrder::Recency }
}

/// Runs tokens of a decode of 32 routes a layer, and holds that `call` allocates nothing once it has had `warm_up` of
/// them.
fn check_tokens(
    seed: u64,
    warm_up: u64,
    cache: &mut Cache,
    mut call: impl FnMut(&mut Cache, LayerId, u64, &[ExpertId]),
) {
    let mut decode = Decode::new(seed, LAYERS, EXPERTS, 8, 4);
    for token in 0..60 {
        for (layer, routes) in decode.next_token().iter().enumerate() {
            let count = allocations(|| call(cache, LayerId::from_index(layer), token, routes));
            assert!(count == 0 || token < warm_up, "seed {seed}, token {token}, {layer}: {count} allocations");
        }
    }
    let misses: u64 = (0..LAYERS).map(|layer| cache.layer_stats(LayerId::from_index(layer)).misses).sum();
    assert!(misses > 300, "only {misses} misses");
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Vec::<u8>::with_capacity(10)))), 1);
    assert_eq!(allocations(|| drop(std::hint::black_box(vec![0_u8; 10]))), 1);
    assert_eq!(allocations(|| ()), 0);
}

#[test]
fn warm_steps_of_every_kind_allocate_nothing() {
    for rule in Eviction::ALL {
        for misses in [Misses::Fetched, carry()] {
            for phase in Phase::ALL {
                let mut plan = Plan::new();
                check_tokens(1, 10, &mut cache(rule), |cache, layer, _, routes| {
                    cache.ensure(Step { phase, misses, ..Step::new(layer) }, routes, &mut plan).unwrap().commit();
                    assert!(plan.runs().count() <= plan.copies().len());
                });
            }
        }
    }
}

#[test]
fn steps_of_a_reserved_width_allocate_nothing_from_the_first_on() {
    for rule in Eviction::ALL {
        for misses in [Misses::Fetched, carry()] {
            for phase in [Phase::Decode, Phase::Prefill] {
                let (mut cache, mut plan) = (cache(rule), Plan::with_capacity(32));
                cache.reserve(32);
                check_tokens(1, 0, &mut cache, |cache, layer, _, routes| {
                    cache.ensure(Step { phase, misses, ..Step::new(layer) }, routes, &mut plan).unwrap().commit();
                });
            }
        }
    }
}

/// Tokens, drafts and all that they are remembered for, on a cache that has served no step.
fn check_first_steps(mut cache: Cache, misses: Misses) {
    let mut plan = Plan::with_capacity(32);
    check_tokens(8, 0, &mut cache, |cache, layer, token, routes| {
        let step = Step { token: Some(token), misses, ..Step::new(layer) };
        for repeat in [false, true] {
            cache.ensure(step, routes, &mut plan).unwrap().commit();
            assert_eq!(plan.is_repeat(), repeat);
        }
        let step = Step { phase: Phase::Verify, token: Some(token), misses, ..Step::new(layer) };
        assert!(cache.ensure(step, routes, &mut plan).is_err(), "the token stands for the decode step");
        cache.ensure(Step { token: Some(token + 1_000), ..step }, routes, &mut plan).unwrap().commit();
        cache.accept(layer, &routes[..routes.len() / 2]).unwrap();
        assert!(cache.accept(layer, routes).is_err());
        cache.ensure(Step { token: None, ..step }, routes, &mut plan).unwrap().abort();
        cache.ensure(Step { token: None, ..step }, routes, &mut plan).unwrap().commit();
        assert!(cache.accept(layer, &[ExpertId::new(EXPERTS)]).is_err());
        cache.accept(layer, &[]).unwrap();
    });
}

#[test]
fn the_first_tokens_and_drafts_of_a_reserved_width_allocate_nothing() {
    for rule in Eviction::ALL {
        for misses in [Misses::Fetched, carry()] {
            let mut cache = cache(rule);
            cache.reserve_remembered(32);
            check_first_steps(cache, misses);
        }
    }
}

#[test]
fn a_rebuild_takes_the_width_of_plain_steps_along() {
    for rule in Eviction::ALL {
        let mut cache = one_pool(rule, 140);
        cache.reserve(32);
        let pools = [Some(ftcache_policy::PoolId::new(0)); LAYERS];
        let (mut cache, _) = cache.rebuilt_with_pools(&pools, &[120], Keep::Nothing).unwrap();
        let mut plan = Plan::with_capacity(32);
        check_tokens(1, 0, &mut cache, |cache, layer, _, routes| {
            cache.ensure(layer, routes, &mut plan).unwrap().commit();
        });
    }
}

#[test]
fn another_rule_keeps_the_reserved_width() {
    for rule in Eviction::ALL {
        for misses in [Misses::Fetched, carry()] {
            let mut cache = cache(Eviction::Lru);
            cache.reserve_remembered(32);
            cache.set_eviction(rule).unwrap();
            check_first_steps(cache, misses);
        }
    }
}

#[test]
fn a_rebuild_takes_the_reserved_width_along() {
    for rule in Eviction::ALL {
        let mut cache = one_pool(rule, 140);
        cache.reserve_remembered(32);
        let pools = [Some(ftcache_policy::PoolId::new(0)); LAYERS];
        for keep in [Keep::Nothing, Keep::WhatFits] {
            let (next, _) = cache.rebuilt_with_pools(&pools, &[120], keep).unwrap();
            check_first_steps(next.clone().rebuilt_with_pools(&pools, &[130], keep).unwrap().0, carry());
            check_first_steps(next, Misses::Fetched);
        }
    }
}

#[test]
fn warm_drafts_and_their_acceptance_allocate_nothing() {
    for rule in Eviction::ALL {
        for misses in [Misses::Fetched, carry()] {
            let mut plan = Plan::new();
            check_tokens(2, 10, &mut cache(rule), |cache, layer, _, routes| {
                let step = Step { phase: Phase::Verify, misses, ..Step::new(layer) };
                cache.ensure(step, routes, &mut plan).unwrap().commit();
                cache.accept(layer, &routes[..routes.len() / 2]).unwrap();
            });
        }
    }
}

/// One layer of 64 experts over 40 slots, after one step of eight routes and eight copies.
fn after_a_step_of_eight(rule: Eviction, plan: &mut Plan, step: Step) -> Cache {
    let mut cache = one_pool(rule, 40);
    let routes: Vec<ExpertId> = (0..8).map(ExpertId::new).collect();
    cache.ensure(step, &routes, plan).unwrap().commit();
    cache
}

#[test]
fn copies_out_of_row_order_allocate_nothing_where_the_step_is_no_wider() {
    for rule in Eviction::ALL {
        let up_to = |most| {
            let fetch = Fetch { rule: FetchRule::UpTo(most), most: None };
            Step { misses: Misses::Hybrid { fetch, order: FetchOrder::Recency }, ..Step::new(LayerId::new(0)) }
        };
        let mut plan = Plan::new();
        let mut cache = after_a_step_of_eight(rule, &mut plan, up_to(8));
        cache.ensure(up_to(0), &[ExpertId::new(21)], &mut plan).unwrap().commit();
        let count = allocations(|| {
            // 21 was active before, so it is fetched before 20.
            cache.ensure(up_to(8), &[20, 21].map(ExpertId::new), &mut plan).unwrap().commit();
        });
        assert_eq!((count, plan.copies().len()), (0, 2));
    }
}

#[test]
fn a_token_allocates_nothing_where_its_step_is_no_wider_than_one_before() {
    for rule in Eviction::ALL {
        let token = |token| Step { token: Some(token), ..Step::new(LayerId::new(0)) };
        let mut plan = Plan::new();
        let mut cache = after_a_step_of_eight(rule, &mut plan, Step::new(LayerId::new(0)));
        // The same eight without a copy, and then eight others.
        let routes: Vec<ExpertId> = (0..16).map(ExpertId::new).collect();
        cache.ensure(token(1), &routes[..8], &mut plan).unwrap().commit();
        let count = allocations(|| {
            cache.ensure(token(2), &routes[8..], &mut plan).unwrap().commit();
        });
        assert_eq!((count, plan.copies().len()), (0, 8));
    }
}

#[test]
fn warm_repeats_of_a_token_allocate_nothing() {
    for rule in Eviction::ALL {
        for misses in [Misses::Fetched, carry()] {
            let mut plan = Plan::new();
            check_tokens(3, 10, &mut cache(rule), |cache, layer, token, routes| {
                let step = Step { token: Some(token), misses, ..Step::new(layer) };
                for repeat in [false, true, true] {
                    cache.ensure(step, routes, &mut plan).unwrap().commit();
                    assert_eq!(plan.is_repeat(), repeat);
                }
            });
        }
    }
}

#[test]
fn warm_steps_around_pinned_experts_allocate_nothing() {
    for rule in Eviction::ALL {
        let mut cache = cache(rule);
        let pinned: Vec<_> = (0..30).map(|expert| (LayerId::new(expert % 3), ExpertId::new(expert))).collect();
        cache.pin(&pinned, 64).unwrap();
        let mut plan = Plan::new();
        check_tokens(4, 10, &mut cache, |cache, layer, _, routes| {
            cache.ensure(layer, routes, &mut plan).unwrap().commit();
        });
    }
}

#[test]
fn warm_steps_that_are_aborted_or_refused_allocate_nothing() {
    for rule in Eviction::ALL {
        let mut plan = Plan::new();
        let all: Vec<ExpertId> = (0..EXPERTS).map(ExpertId::new).collect();
        let mut small = one_pool(rule, 40);
        check_tokens(5, 10, &mut small, |cache, layer, token, routes| {
            let ticket = cache.ensure(layer, routes, &mut plan).unwrap();
            match token % 3 {
                0 => ticket.abort(),
                _ => ticket.commit(),
            }
            assert!(cache.ensure(layer, &all, &mut plan).is_err());
            assert!(cache.ensure(layer, &[ExpertId::new(EXPERTS)], &mut plan).is_err());
        });
    }
}

fn one_pool(rule: Eviction, slot_count: u32) -> Cache {
    let pools = [Some(ftcache_policy::PoolId::new(0)); LAYERS];
    let mut cache = Cache::with_pools(EXPERTS, &pools, &[slot_count]).unwrap();
    cache.set_eviction(rule).unwrap();
    cache
}

#[test]
fn warm_steps_in_parts_allocate_nothing() {
    for rule in Eviction::ALL {
        let (mut parts, mut plan, mut given) = (Parts::new(), Plan::new(), Vec::new());
        check_tokens(6, 10, &mut one_pool(rule, 10), |cache, layer, _, routes| {
            cache.read_ids(layer, routes.iter().map(|route| i64::from(route.get())), Some(-1), &mut given).unwrap();
            cache.partition(layer, &given, &mut parts).unwrap();
            for (step, part) in parts.iter() {
                cache.ensure(step, part, &mut plan).unwrap().commit();
            }
        });
    }
}

#[test]
fn warm_drafts_in_parts_and_their_acceptance_allocate_nothing() {
    for rule in Eviction::ALL {
        let (mut parts, mut plan) = (Parts::new(), Plan::new());
        check_tokens(9, 12, &mut one_pool(rule, 10), |cache, layer, token, routes| {
            let step = Step { phase: Phase::Verify, token: Some(token), ..Step::new(layer) };
            cache.partition(step, routes, &mut parts).unwrap();
            for (step, part) in parts.iter() {
                cache.ensure(step, part, &mut plan).unwrap().commit();
            }
            cache.accept(layer, &routes[..routes.len() / 2]).unwrap();
        });
    }
}

/// Of so many slots, flights stay up for so many steps: until others have used and evicted around them.
fn check_flights(rule: Eviction, slot_count: u32, steps_up: usize) {
    let (mut plan, mut late, mut up) = (Plan::new(), LatePlan::new(), VecDeque::with_capacity(steps_up + 1));
    let mut landed = 0;
    let fetch = Fetch { rule: FetchRule::UpTo(2), most: None };
    let misses = Misses::Hybrid { fetch, order: FetchOrder::Recency };
    check_tokens(10, 20, &mut one_pool(rule, slot_count), |cache, layer, token, routes| {
        if up.len() > steps_up {
            landed += cache.land(up.pop_front().unwrap());
        }
        cache.ensure(Step { misses, ..Step::new(layer) }, routes, &mut plan).unwrap().commit();
        let ticket = cache.fetch_later(&plan, 3, &mut late).unwrap();
        match token % 5 {
            0 => ticket.abort(),
            1 => ticket.fail(),
            _ => ticket.commit(),
        }
        up.push_back(late.flight());
    });
    assert!(landed > 50, "only {landed} rows landed");
}

#[test]
fn warm_fetches_behind_steps_and_their_landing_allocate_nothing() {
    for rule in Eviction::ALL {
        for slot_count in [60, 100, 140] {
            for steps_up in [0, 1, 6, 14] {
                check_flights(rule, slot_count, steps_up);
            }
        }
    }
}

#[test]
fn a_whole_warm_chunk_allocates_nothing() {
    for rule in Eviction::ALL {
        let (mut cache, mut plan, mut stage) = (cache(rule), Plan::new(), StagePlan::with_capacity(EXPERTS as usize));
        let mut decode = Decode::new(7, LAYERS, EXPERTS, 8, 2);
        for chunk in 0..6 {
            for _ in 0..3 {
                for (layer, routes) in decode.next_token().iter().enumerate() {
                    cache.ensure(LayerId::from_index(layer), routes, &mut plan).unwrap().commit();
                }
            }
            let count = allocations(|| {
                cache.begin_chunk().unwrap();
                for layer in (0..LAYERS).map(LayerId::from_index) {
                    cache.prefetch(layer, &mut stage).unwrap().commit();
                    cache.ensure(layer, &[1, 2, 3].map(ExpertId::new), &mut plan).unwrap().commit();
                    cache.wait(layer).unwrap();
                    cache.release(layer).unwrap();
                }
                assert!(cache.end_chunk().unwrap().lost > 0);
            });
            assert!(count == 0 || chunk < 1, "chunk {chunk}: {count} allocations");
        }
        assert!(cache.chunk_total().gathered > 0, "some rows were gathered");
    }
}

#[test]
fn the_first_chunk_with_room_for_a_layer_allocates_nothing() {
    for rule in Eviction::ALL {
        let (mut cache, mut stage) = (cache(rule), StagePlan::with_capacity(EXPERTS as usize));
        let count = allocations(|| {
            cache.begin_chunk().unwrap();
            cache.prefetch(LayerId::new(0), &mut stage).unwrap().commit();
        });
        assert_eq!(count, 0);
    }
}

#[test]
fn hints_and_the_steps_that_they_are_for_allocate_nothing_from_the_first_on() {
    for rule in Eviction::ALL {
        let (mut cache, mut plan, mut late) =
            (cache(rule), Plan::with_capacity(32), LatePlan::with_capacity(EXPERTS as usize));
        cache.reserve(32);
        cache.reserve_hints(4);
        let mut flights = VecDeque::with_capacity(4);
        check_tokens(3, 0, &mut cache, |cache, layer, token, routes| {
            cache.ensure(layer, routes, &mut plan).unwrap().commit();
            let next = LayerId::new((layer.get() + 1) % LAYERS as u32);
            cache.hint(&plan, next, routes, 6, &mut late).unwrap().commit();
            if token % 7 == 3 {
                cache.cancel_hint(late.flight());
            }
            flights.push_back(late.flight());
            while flights.len() == 4 || token % 2 == 0 && !flights.is_empty() {
                cache.land(flights.pop_front().unwrap());
            }
        });
        let stats = cache.total_hint_stats();
        assert!(stats.useful > 20 && stats.late > 20 && stats.wasted > 20, "{stats:?}");
    }
}
