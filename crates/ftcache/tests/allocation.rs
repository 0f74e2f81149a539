//! Steps without an allocation: an allocator that counts, in a program of its own.

#[path = "../../ftcache-testkit/counting_allocator.rs"]
mod counting_allocator;

use ftcache::policy::{Fetch, FetchRule};
use ftcache::residency::Keep;
use ftcache::{BankId, BounceSize, Budget, Cache, Constraints, ExpertId, FetchOrder, Geometry, HostDevice, HostRows};
use ftcache::{LaterLimits, LayerId, LayoutKey, Misses, Model, Phase, Quantisation, Staging, Step, Stream, Streams};
use ftcache_testkit::generators::Decode;

use counting_allocator::allocations;

const ONE: Streams = Streams::one(Stream::DEFAULT);

/// Three layers of 64 experts, top-4, with banks of 32 and 2 bytes.
fn cache(request_count: u32, slot_count: u64) -> Cache<HostDevice> {
    cache_on(HostDevice::new(), request_count, slot_count, |_| ())
}

fn cache_on(
    device: HostDevice,
    request_count: u32,
    slot_count: u64,
    prepare: impl FnOnce(&mut Cache<HostDevice>),
) -> Cache<HostDevice> {
    let model = Model::new(64, 4, Quantisation::PerLayer, vec![LayoutKey::tagged("t", [32, 2]); 3]).unwrap();
    let constraints = Constraints { request_count, ..Constraints::new(Budget::Slots(slot_count)) };
    let mut cache = Cache::new(Geometry::new(model, constraints).unwrap(), device).unwrap();
    prepare(&mut cache);
    for layer in (0..3).map(LayerId::new) {
        for (bank, row_bytes) in [(0, 32), (1, 2)] {
            cache.attach(layer, BankId::new(bank), HostRows::owned(vec![1; 64 * row_bytes].into(), 0)).unwrap();
        }
    }
    cache
}

fn ids(routes: &[ExpertId]) -> impl Iterator<Item = i64> + '_ {
    routes.iter().map(|route| i64::from(route.get()))
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Vec::<u8>::with_capacity(10)))), 1);
    assert_eq!(allocations(|| drop(std::hint::black_box(vec![0_u8; 10]))), 1);
    let mut grown = vec![1_u8];
    assert_eq!(allocations(|| grown.reserve_exact(100)), 1);
    assert_eq!(allocations(|| ()), 0);
}

#[test]
fn a_warm_step_allocates_nothing() {
    for request_count in [1, 32] {
        // Room for every expert, so that the second token of the same routes has no miss.
        let mut cache = cache(request_count, 3 * 64);
        let mut decode = Decode::new(3, 3, 64, 4, request_count as usize);
        let token = decode.next_token().to_vec();
        for (layer, routes) in token.iter().enumerate() {
            cache.load(LayerId::from_index(layer), routes).unwrap();
        }
        let misses = cache.stats().residency.misses;
        for (layer, routes) in token.iter().enumerate() {
            let layer = LayerId::from_index(layer);
            let count = allocations(|| {
                cache.load(layer, routes).unwrap();
            });
            assert_eq!(count, 0, "load, {request_count} requests");
            let count = allocations(|| {
                cache.load_ids(ONE, layer, ids(routes), Some(-1)).unwrap();
            });
            assert_eq!(count, 0, "load_ids, {request_count} requests");
        }
        assert_eq!(cache.stats().residency.misses, misses, "no miss among them");
    }
}

#[test]
fn a_step_with_misses_allocates_nothing_once_the_cache_has_run() {
    for request_count in [1, 32] {
        let mut cache = cache(request_count, u64::from(request_count * 4).clamp(5, 70));
        let mut decode = Decode::new(4, 3, 64, 4, request_count as usize);
        let mut misses_counted = 0;
        for token in 0..60 {
            for (layer, routes) in decode.next_token().iter().enumerate() {
                let layer = LayerId::from_index(layer);
                let before = cache.stats().residency.misses;
                let count = allocations(|| {
                    match token % 2 {
                        0 => cache.load(layer, routes).unwrap(),
                        _ => cache.load_ids(ONE, layer, ids(routes), None).unwrap(),
                    };
                });
                if token >= 10 {
                    assert_eq!(count, 0, "seed 4, {request_count} requests, token {token}");
                    misses_counted += cache.stats().residency.misses - before;
                }
            }
        }
        assert!(misses_counted > 50, "only {misses_counted} misses");
    }
}

#[test]
fn the_first_step_of_the_configured_width_allocates_nothing_either() {
    for request_count in [1, 8] {
        let mut cache = cache(request_count, 64);
        let routes: Vec<ExpertId> = (0..4 * request_count).map(ExpertId::new).collect();
        let count = allocations(|| {
            cache.load(LayerId::new(0), &routes).unwrap();
        });
        assert_eq!(count, 0, "{request_count} requests");
    }
}

#[test]
fn rows_that_go_through_the_bounce_buffer_allocate_nothing_from_the_first_step_on() {
    let size = BounceSize { entry_bytes: 16, entry_count: 3, thread_count: 1 };
    let device = HostDevice::new().reading_registered_only();
    let mut cache = cache_on(device, 8, 64, |cache| cache.set_bounce(size).unwrap());
    assert_eq!(cache.is_direct(LayerId::new(0), BankId::new(0)), Some(false));
    for first in [0, 32, 16] {
        let routes: Vec<ExpertId> = (first..first + 32).map(ExpertId::new).collect();
        let count = allocations(|| {
            cache.load(LayerId::new(0), &routes).unwrap();
        });
        assert_eq!(count, 0, "experts from {first} on");
    }
}

#[test]
fn hybrid_steps_and_what_they_fetch_later_allocate_nothing_from_the_first_on() {
    let limits = LaterLimits { step_bytes: 2 * 34, flight_count: 2 };
    let mut cache = cache_on(HostDevice::new(), 8, 64, |cache| cache.set_later(limits).unwrap());
    let fetch = Fetch { rule: FetchRule::UpTo(1), most: None };
    for token in 0..20 {
        let routes: Vec<ExpertId> = (token..token + 8).map(ExpertId::new).collect();
        let misses = Misses::Hybrid { fetch, order: FetchOrder::Recency };
        let count = allocations(|| {
            cache.load(Step { misses, ..Step::new(LayerId::new(1)) }, &routes).unwrap();
        });
        assert_eq!(count, 0, "token {token}");
        if token == 9 {
            // Room for what is behind steps is made anew, and statistics too.
            assert!(cache.later_report().residency.landed > 5, "{:?}", cache.later_report());
            let geometry = cache.geometry().clone();
            cache.rebuild(geometry, Keep::Nothing, u64::MAX).unwrap();
        }
    }
    assert!(cache.later_report().residency.landed > 5, "{:?}", cache.later_report());
}

#[test]
fn hints_and_the_steps_that_they_are_for_allocate_nothing_from_the_first_on() {
    let mut cache = cache_on(HostDevice::new(), 8, 64, |cache| cache.set_hints(3).unwrap());
    for token in 0..40 {
        let routes: Vec<ExpertId> = (token..token + 8).map(ExpertId::new).collect();
        let predicted: Vec<ExpertId> = (token + 2..token + 12).map(ExpertId::new).collect();
        let count = allocations(|| {
            cache.load(LayerId::new(token % 3), &routes).unwrap();
            let report = cache.hint(LayerId::new((token + 1) % 3), &predicted, 5 * 34).unwrap();
            if token % 5 == 4 {
                cache.cancel_hint(report.hint).unwrap();
            }
        });
        assert_eq!(count, 0, "token {token}");
        if token == 19 {
            // Room for hints is made anew.
            let geometry = cache.geometry().clone();
            cache.rebuild(geometry, Keep::WhatFits, u64::MAX).unwrap();
        }
    }
    let total = cache.hint_total().residency;
    assert!(total.useful > 5 && total.wasted > 5, "{total:?}");
}

#[test]
fn a_warm_chunk_allocates_nothing() {
    let mut cache = cache(1, 3 * 64);
    let staging = Staging::borrowed(cache.geometry()).unwrap();
    cache.set_staging(staging, 16).unwrap();
    let streams = Streams { compute: cache.create_stream().unwrap(), copy: cache.create_stream().unwrap() };
    for chunk in 0..3 {
        cache.load(LayerId::new(0), &[1, 2, 63].map(ExpertId::new)).unwrap();
        let count = allocations(|| {
            cache.begin_chunk(streams).unwrap();
            for layer in (0..3).map(LayerId::new) {
                cache.prefetch(layer).unwrap();
                cache.wait(layer).unwrap();
                cache.release(layer).unwrap();
            }
            cache.end_chunk().unwrap();
        });
        // The first makes room.
        assert!(count == 0 || chunk == 0, "chunk {chunk}: {count}");
    }
}

#[test]
fn a_warm_step_wider_than_the_requests_allocates_once() {
    let mut cache = cache(1, 8);
    cache.load(LayerId::new(0), &[1, 2, 3, 4].map(ExpertId::new)).unwrap();
    let routes = [1, 2, 3, 4].map(ExpertId::new).repeat(50);
    let mut load = || {
        allocations(|| {
            cache.load(LayerId::new(0), &routes).unwrap();
        })
    };
    assert!(load() > 0, "the requests of the geometry are what room was made for");
    assert_eq!(load(), 0);
}

#[test]
fn with_room_for_what_is_remembered_tokens_and_drafts_allocate_nothing_from_the_first_on() {
    // Room for every expert, and every one resident: what is left to allocate is what a layer remembers.
    let mut cache = cache(1, 3 * 64);
    let routes: Vec<ExpertId> = (0..64).map(ExpertId::new).collect();
    cache.reserve_remembered(64);
    for layer in (0..3).map(LayerId::new) {
        cache.load(layer, &routes).unwrap();
    }
    for layer in (0..3).map(LayerId::new) {
        let drafts = Step { token: Some(1), phase: Phase::Verify, ..Step::new(layer) };
        let count = allocations(|| {
            cache.load(drafts, &routes[..8]).unwrap();
            cache.load(drafts, &routes[..8]).unwrap();
            cache.accept(layer, &routes[..4]).unwrap();
        });
        assert_eq!(count, 0, "layer {layer}");
    }
}
