//! Steps without an allocation: an allocator that counts, in a program of its own.

#[path = "../../ftcache-testkit/counting_allocator.rs"]
mod counting_allocator;

use ftcache::{BankId, Budget, Cache, Constraints, ExpertId, Geometry, HostDevice, HostRows, LayerId, LayoutKey};
use ftcache::{Model, Phase, Quantisation, Step, Stream, Streams};
use ftcache_testkit::generators::Decode;

use counting_allocator::allocations;

const ONE: Streams = Streams::one(Stream::DEFAULT);

/// Three layers of 64 experts, top-4, with banks of 32 and 2 bytes.
fn cache(request_count: u32, slot_count: u64) -> Cache<HostDevice> {
    let model = Model::new(64, 4, Quantisation::PerLayer, vec![LayoutKey::tagged("t", [32, 2]); 3]).unwrap();
    let constraints = Constraints { request_count, ..Constraints::new(Budget::Slots(slot_count)) };
    let mut cache = Cache::new(Geometry::new(model, constraints).unwrap(), HostDevice::new()).unwrap();
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
