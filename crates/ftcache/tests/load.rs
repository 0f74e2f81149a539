//! Real rows through real steps: after each, every route's slot holds its expert in every bank, and not one byte of the
//! arenas differs from what the slow model says.

mod support;

use ftcache::{BankId, Budget, Constraints, EnsureError, Error, ExpertId, HostDevice, LayerId, PoolId, Scope, SlotId};
use ftcache::{LayoutKey, Model, Quantisation, Stream, Streams, TailPad};
use ftcache_testkit::Rng;
use ftcache_testkit::generators::{Decode, skewed_routes};
use ftcache_testkit::golden::{self, LruCase};
use ftcache_testkit::reference::Reference;
use support::{World, model};

/// A world held to the slow model, with a shadow of its arenas.
struct Held {
    world: World,
    reference: Reference,
    shadow: Vec<Vec<u8>>,
}

impl Held {
    fn new(world: World) -> Self {
        let (reference, shadow) = (world.reference(), world.empty_image());
        Self { world, reference, shadow }
    }

    fn step(&mut self, streams: Streams, layer: u32, routes: &[u32], context: &str) {
        let wanted = self.reference.ensure(layer, routes).unwrap_or_else(|refusal| panic!("{context}: {refusal:?}"));
        let slots = self.world.load(streams, layer, routes).unwrap_or_else(|error| panic!("{context}: {error}"));
        assert_eq!(slots, wanted.slots, "{context}: layer {layer} routes {routes:?}");
        for &(slot, expert) in &wanted.copies {
            self.world.put(&mut self.shadow, layer, expert, slot);
        }
        for (&expert, &slot) in routes.iter().zip(&slots) {
            self.world.check_slot(layer, expert, slot, context);
        }
        assert!(self.world.image() == self.shadow, "{context}: a byte beside the rows of {}", self.world.cache.plan());
        self.world.cache.residency().check().unwrap_or_else(|wrong| panic!("{context}: {wrong}"));
    }
}

const ONE: Streams = Streams::one(Stream::DEFAULT);

/// A geometry with exactly the pools of a golden case: pool `p` has `pool_sizes[p]` slots and serves the case's layers.
///
/// The equal split gives each pool slots in proportion to its layers, so layers that are never routed to are added
/// until the proportion is the case's: `pool_sizes[p]` times a factor. Pools lie widest first, so widths descend.
fn golden_world(case: &LruCase, host_gap: u64, host: HostDevice) -> World {
    let layers_of = |pool: usize| case.pool_of_layer.iter().filter(|&&of| of as usize == pool).count() as u32;
    let pool_count = case.pool_sizes.len();
    let factor = (0..pool_count).map(|pool| layers_of(pool).div_ceil(case.pool_sizes[pool])).max().unwrap();
    let widths = |pool: usize| {
        let narrower = (pool_count - pool) as u64;
        vec![11 + 9 * narrower, 2, 5 * narrower]
    };
    let mut layers: Vec<Vec<u64>> = case.pool_of_layer.iter().map(|&pool| widths(pool as usize)).collect();
    for pool in 0..pool_count {
        let missing = case.pool_sizes[pool] * factor - layers_of(pool);
        layers.extend((0..missing).map(|_| widths(pool)));
    }
    let slots = case.pool_sizes.iter().map(|&size| u64::from(size)).sum();
    let constraints = Constraints { slot_pad_bytes: 1, alignment: 8, ..Constraints::new(Budget::Slots(slots)) };
    World::new(model(case.experts, 1, &layers), constraints, host, host_gap)
}

#[test]
fn every_step_of_the_golden_cases_puts_every_byte_in_its_place() {
    let cases = golden::cases::<LruCase>("lru.jsonl");
    for (line, case) in cases.iter().enumerate() {
        let host = if line % 2 == 0 { HostDevice::new() } else { HostDevice::deferred(line as u64) };
        let mut world = golden_world(case, line as u64 % 5, host);
        let sizes: Vec<u32> = world.cache.geometry().pools().iter().map(|pool| pool.slot_count()).collect();
        let pools: Vec<u32> = (0..case.layers as u32).map(|layer| world.pool_of(layer).get()).collect();
        assert_eq!((&sizes, &pools), (&case.pool_sizes, &case.pool_of_layer), "line {}", line + 1);

        let mut shadow = world.empty_image();
        for (index, step) in case.steps.iter().enumerate() {
            let context = format!("line {} step {}", line + 1, index + 1);
            let slots = world.load_one(step.layer, &step.experts).unwrap();
            assert_eq!(slots, step.slots, "{context}");
            let copies: Vec<(u32, u32)> =
                world.cache.plan().copies().iter().map(|copy| (copy.slot.get(), copy.row.get())).collect();
            assert_eq!(copies, step.copies, "{context}");
            for &(slot, expert) in &step.copies {
                world.put(&mut shadow, step.layer, expert, slot);
            }
            for (&expert, &slot) in step.experts.iter().zip(&slots) {
                world.check_slot(step.layer, expert, slot, &context);
            }
            assert!(world.image() == shadow, "{context}: a byte beside the rows of {}", world.cache.plan());
        }
        for (layer, wanted) in case.final_slot_of.iter().enumerate() {
            for (expert, &wanted) in wanted.iter().enumerate() {
                let slot = world.cache.residency().slot_of(LayerId::from_index(layer), ExpertId::from_index(expert));
                assert_eq!(slot.map_or(-1, |slot| i64::from(slot.get())), wanted, "line {}", line + 1);
            }
        }
    }
}

/// Layers of two widths in turn, each with a bank of two bytes; the wide ones read one more.
fn random_model(rng: &mut Rng) -> Model {
    let (wide, narrow) = (40 + rng.below(30), 1 + rng.below(30));
    let (wide_second, narrow_second) = (1 + rng.below(20), 1 + rng.below(20));
    let layer_count = 1 + rng.below(5);
    let layers: Vec<Vec<u64>> = (0..layer_count)
        .map(|layer| if layer % 2 == 0 { vec![wide, 2, wide_second] } else { vec![narrow, 2, 0, narrow_second] })
        .collect();
    let expert_count = 1 + rng.below(24) as u32;
    let top_k = 1 + rng.below(u64::from(expert_count).min(4)) as u32;
    model(expert_count, top_k, &layers)
}

fn random_world(rng: &mut Rng, host: HostDevice) -> World {
    let model = random_model(rng);
    let mut constraints = Constraints {
        scope: if rng.chance(1, 2) { Scope::Unified } else { Scope::PerLayer },
        request_count: 1 + rng.below(3) as u32,
        slot_pad_bytes: rng.below(6),
        alignment: 1 << rng.below(6),
        tail_pad: if rng.chance(1, 2) { TailPad::RowUpTo(512) } else { TailPad::Bytes(rng.below(30)) },
        ..Constraints::new(Budget::Slots(0))
    };
    // From the least that the requests need, which the refusal of no slots at all would name, to every expert.
    let least = u64::from((model.top_k() * constraints.request_count).min(model.expert_count()));
    let most = model.layer_count() as u64 * u64::from(model.expert_count());
    let pool_count = match constraints.scope {
        Scope::Unified => model.layer_count().min(2) as u64,
        Scope::PerLayer => model.layer_count() as u64,
    };
    constraints.budget = Budget::Slots(least * pool_count + rng.below(most - least * pool_count + 1));
    World::new(model, constraints, host, rng.below(9))
}

#[test]
fn random_models_of_two_widths_hold_exactly_the_right_bytes() {
    for seed in 0..150 {
        let mut rng = Rng::new(seed);
        let host = if rng.chance(1, 2) { HostDevice::new() } else { HostDevice::deferred(seed) };
        let mut held = Held::new(random_world(&mut rng, host));
        let copy = held.world.cache.create_stream().unwrap();
        let forked = Streams { compute: Stream::DEFAULT, copy };
        let (expert_count, layer_count) = (held.world.model().expert_count(), held.world.model().layer_count() as u64);
        for step in 0..40 {
            let layer = rng.below(layer_count) as u32;
            // Duplicates make a step of more routes than slots; as many distinct ones as there are slots always fit.
            let width = rng.below(u64::from(held.world.slot_count(layer)) + 1) as usize;
            let mut routes: Vec<u32> =
                skewed_routes(&mut rng, expert_count, width).iter().map(|route| route.get()).collect();
            routes.extend_from_within(..routes.len() / 2);
            let streams = if rng.chance(1, 2) { ONE } else { forked };
            held.step(streams, layer, &routes, &format!("seed {seed} step {step}"));
        }
    }
}

#[test]
fn several_requests_decode_together_and_each_reads_its_own_experts() {
    for (seed, scope) in [(1, Scope::Unified), (2, Scope::PerLayer)] {
        for request_count in [1, 3, 8] {
            let layers = [vec![24, 2], vec![9, 2], vec![24, 2]];
            let slots = 3 * 4 * u64::from(request_count);
            let constraints =
                Constraints { scope, request_count, ..Constraints::new(Budget::Slots(slots.min(3 * 32))) };
            let mut held = Held::new(World::new(model(32, 4, &layers), constraints, HostDevice::deferred(seed), 3));
            let mut decode = Decode::new(seed, 3, 32, 4, request_count as usize);
            for token in 0..25 {
                for (layer, routes) in decode.next_token().to_vec().iter().enumerate() {
                    let routes: Vec<u32> = routes.iter().map(|route| route.get()).collect();
                    let context = format!("seed {seed}, {request_count} requests, token {token}");
                    held.step(ONE, layer as u32, &routes, &context);
                }
            }
        }
    }
}

#[test]
fn a_step_as_wide_as_its_pool_works_and_one_expert_more_does_not() {
    let layers = [vec![16], vec![16]];
    let mut held =
        Held::new(World::new(model(12, 1, &layers), Constraints::new(Budget::Slots(7)), HostDevice::new(), 0));
    held.step(ONE, 0, &[11, 3, 5, 7, 9, 1, 2, 2, 11], "seven of seven");
    held.step(ONE, 1, &[0, 1, 2, 3, 4, 5, 6], "all of them evicted");
    held.world.load_one(1, &[0, 1, 2, 3, 4, 5, 6, 7]).unwrap_err();
    held.step(ONE, 1, &[6, 5, 4, 3, 2, 1, 0], "and all of them still there");
}

#[test]
fn experts_of_this_step_are_never_its_victims() {
    // Reported faults B01, B02 and B03; worked case C1.
    let mut held =
        Held::new(World::new(model(8, 1, &[vec![16]]), Constraints::new(Budget::Slots(4)), HostDevice::new(), 0));
    held.step(ONE, 0, &[0, 1, 2, 3], "fill");
    held.step(ONE, 0, &[0, 4, 5], "same step");
    assert_eq!(held.world.load_one(0, &[0, 4, 5]).unwrap(), [0, 1, 2]);

    let mut two =
        Held::new(World::new(model(8, 1, &[vec![16]]), Constraints::new(Budget::Slots(2)), HostDevice::new(), 0));
    two.step(ONE, 0, &[0], "A");
    two.step(ONE, 0, &[1], "B");
    let copied = two.world.device.get().copies.len() as u64;
    two.step(ONE, 0, &[2, 0], "C takes the slot of B, and A stays");
    assert_eq!(two.world.device.get().copies.len() as u64 - copied, 1);
}

#[test]
fn the_result_does_not_depend_on_the_number_of_slots() {
    // Worked case C16, with rows of a few bytes in place of a MiB.
    for slots in [8, 4, 2] {
        let mut rng = Rng::new(16);
        let mut held = Held::new(World::new(
            model(8, 2, &[vec![64, 2]]),
            Constraints::new(Budget::Slots(slots)),
            HostDevice::deferred(slots),
            16,
        ));
        for step in 0..1_000 {
            let routes = [rng.below(8) as u32, rng.below(8) as u32];
            held.step(ONE, 0, &routes, &format!("seed 16, {slots} slots, step {step}"));
        }
    }
}

#[test]
fn layers_of_two_widths_keep_their_experts_from_token_to_token() {
    // Worked case C17 and reported fault B13: 37 layers of one class and then 6 of the other.
    let layers: Vec<Vec<u64>> = (0..43).map(|layer| if layer < 37 { vec![27] } else { vec![13] }).collect();
    let constraints = Constraints::new(Budget::Slots(43 * 2));
    let mut held = Held::new(World::new(model(4, 2, &layers), constraints, HostDevice::new(), 0));
    for token in 0..2 {
        for layer in 0..43 {
            held.step(ONE, layer, &[layer % 4, (layer + 1) % 4], &format!("token {token}"));
        }
    }
    let stats = held.world.cache.stats();
    assert_eq!((stats.residency.misses, stats.residency.hits()), (86, 86), "the second token hits everywhere");
}

#[test]
fn equal_widths_under_different_tags_never_share_a_slot() {
    let layers = vec![LayoutKey::tagged("a", [16]), LayoutKey::tagged("b", [16])];
    let model = Model::new(6, 1, Quantisation::PerLayer, layers).unwrap();
    let mut held = Held::new(World::new(model, Constraints::new(Budget::Slots(6)), HostDevice::new(), 0));
    assert_ne!(held.world.pool_of(0), held.world.pool_of(1));
    for step in 0..6 {
        held.step(ONE, step % 2, &[step, (step + 1) % 6], "tags");
    }
    for pool in [0, 1].map(PoolId::new) {
        for slot in (0..3).map(SlotId::new) {
            let (layer, _) = held.world.cache.residency().expert_of(pool, slot).unwrap();
            assert_eq!(held.world.pool_of(layer.get()), pool);
        }
    }
}

#[test]
fn a_step_of_hits_or_of_nothing_enqueues_nothing() {
    let mut world =
        World::new(model(8, 2, &[vec![16, 2]]), Constraints::new(Budget::Slots(4)), HostDevice::deferred(1), 0);
    let copy = world.cache.create_stream().unwrap();
    let forked = Streams { compute: Stream::DEFAULT, copy };
    world.load(forked, 0, &[1, 2]).unwrap();
    let before = (world.device.get().enqueued, world.device.get().waited);
    assert!(before.0 > 0);
    assert_eq!(world.load(forked, 0, &[2, 1, 2]).unwrap(), [1, 0, 1]);
    assert_eq!(world.load(forked, 0, &[]).unwrap(), [0_u32; 0]);
    assert_eq!((world.device.get().enqueued, world.device.get().waited), before);
    world.load(forked, 0, &[3]).unwrap();
    assert_eq!(world.device.get().waited, before.1, "nothing is waited for");
}

#[test]
fn absent_routes_take_no_slot_and_no_two_experts_share_one() {
    // Worked case C15: 4 of 10 routes are not for this device.
    let mut world =
        World::new(model(64, 10, &[vec![16, 2]]), Constraints::new(Budget::Slots(12)), HostDevice::new(), 0);
    let ids = [9, -1, 40, 3, -1, -1, 63, 0, -1, 12];
    let slots = world.cache.load_ids(ONE, LayerId::new(0), ids, Some(-1)).unwrap().to_vec();
    let mut taken = Vec::new();
    for (&id, &slot) in ids.iter().zip(&slots) {
        assert_eq!(slot == SlotId::ABSENT, id == -1, "id {id}");
        if id != -1 {
            assert!(!taken.contains(&slot), "slot {slot} twice");
            taken.push(slot);
            world.check_slot(0, id as u32, slot.get(), "present");
        }
    }
    let direct: Vec<ExpertId> =
        ids.iter().map(|&id| if id == -1 { ExpertId::ABSENT } else { ExpertId::new(id as u32) }).collect();
    assert_eq!(world.cache.load(LayerId::new(0), &direct).unwrap(), slots);
    assert_eq!(world.cache.stats().residency.routes, 12, "absent routes are not counted");
    let none = world.cache.load(LayerId::new(0), &[ExpertId::ABSENT; 3]).unwrap();
    assert_eq!(none, [SlotId::ABSENT; 3]);
}

#[test]
fn an_absent_value_is_no_expert() {
    let mut world = World::new(model(8, 2, &[vec![16]]), Constraints::new(Budget::Slots(4)), HostDevice::new(), 0);
    for id in [0, 3, 7] {
        // Else a configuration of zeros would leave expert 0 out for ever, without a word.
        let error = world.cache.load_ids(ONE, LayerId::new(0), [3, 0, 3], Some(id)).unwrap_err();
        assert_eq!(error, Error::Ensure(EnsureError::AbsentId { id, expert_count: 8 }));
        assert_eq!(error.to_string(), format!("the id of an absent route is {id}, an expert of 0..8"));
    }
    for absent in [i64::MIN, i64::MAX, i64::from(u32::MAX), 8, -1] {
        let slots = world.cache.load_ids(ONE, LayerId::new(0), [absent, 0], Some(absent)).unwrap();
        assert_eq!(slots, [SlotId::ABSENT, SlotId::new(0)], "absent is {absent}");
    }
}

#[test]
fn ids_may_come_from_any_view_of_an_engines_memory() {
    // A view of an arg-sort: top-2 of each token, a row of the sorted experts apart.
    let sorted: [[i32; 6]; 3] = [[4, 1, 0, 2, 3, 5], [1, 5, 4, 3, 2, 0], [0, 4, 1, 2, 3, 5]];
    let mut world = World::new(model(6, 2, &[vec![16]]), Constraints::new(Budget::Slots(6)), HostDevice::new(), 0);
    let ids = sorted.iter().flat_map(|token| &token[..2]).map(|&id| i64::from(id));
    let slots = world.cache.load_ids(ONE, LayerId::new(0), ids, None).unwrap().to_vec();
    let routes = [4, 1, 1, 5, 0, 4].map(ExpertId::new);
    assert_eq!(world.cache.load(LayerId::new(0), &routes).unwrap(), slots);
}

#[test]
fn forgotten_slots_are_taken_first_and_filled_anew() {
    let layers = [vec![16, 2], vec![16, 2]];
    let mut held =
        Held::new(World::new(model(8, 1, &layers), Constraints::new(Budget::Slots(5)), HostDevice::new(), 2));
    held.step(ONE, 0, &[0, 1, 2], "fill");
    held.step(ONE, 1, &[6, 7], "fill");
    let pool = PoolId::new(0);
    let lost = held.world.cache.forget(pool, SlotId::new(1)).unwrap();
    assert_eq!(lost, Some((LayerId::new(0), ExpertId::new(1))));
    assert_eq!(held.world.cache.forget(pool, SlotId::new(1)).unwrap(), None);
    held.reference.forget(0, 1);
    held.step(ONE, 0, &[4], "the freed slot, not the oldest");
    assert_eq!(held.world.cache.forget_layer(LayerId::new(1)).unwrap(), 2);
    held.reference.forget_layer(1);
    held.step(ONE, 1, &[7, 6], "copied anew");
    held.world.cache.reset().unwrap();
    held.reference.reset();
    assert!(held.world.image() == held.shadow, "forgetting moves no bytes");
    held.step(ONE, 0, &[0, 1, 2, 3, 4], "after a reset");
}

#[test]
fn slots_lie_where_the_cache_says_they_do() {
    let mut rng = Rng::new(77);
    for _ in 0..20 {
        let mut world = random_world(&mut rng, HostDevice::new());
        for layer in 0..world.model().layer_count() as u32 {
            world.load_one(layer, &[0]).unwrap();
            let slot = world.cache.plan().slots()[0].get();
            for bank in world.model().bank_ids() {
                let (pool, row_bytes) = (world.pool_of(layer), world.model().row_bytes(LayerId::new(layer), bank));
                let Some(span) = world.cache.slots(pool, bank).unwrap() else {
                    assert_eq!(row_bytes, 0);
                    continue;
                };
                assert_eq!((span.row_bytes, span.slot_count), (row_bytes, world.slot_count(layer)));
                let address = span.address + u64::from(slot) * span.stride;
                // SAFETY: the host device's addresses are those of this process, the row lies inside its arena, and
                // nothing writes to it while it is looked at.
                let bytes = unsafe { std::slice::from_raw_parts(address as *const u8, row_bytes as usize) };
                assert_eq!(bytes, support::row(layer, 0, bank.get(), row_bytes), "seed 77 layer {layer} bank {bank}");
            }
        }
    }
}

#[test]
fn what_is_read_back_must_be_a_row() {
    let mut world =
        World::new(model(8, 1, &[vec![16], vec![4, 2]]), Constraints::new(Budget::Slots(4)), HostDevice::new(), 0);
    let (layer, bank, slot) = (LayerId::new(0), BankId::new(0), SlotId::new(0));
    let cache = &mut world.cache;
    let errors = [
        cache.read_row(layer, bank, slot, &mut [0; 15]).unwrap_err().to_string(),
        cache.read_row(layer, BankId::new(1), slot, &mut [0; 2]).unwrap_err().to_string(),
        cache.read_row(layer, BankId::new(2), slot, &mut [0; 2]).unwrap_err().to_string(),
        cache.read_row(layer, bank, SlotId::new(2), &mut [0; 16]).unwrap_err().to_string(),
        cache.read_row(LayerId::new(2), bank, slot, &mut [0; 16]).unwrap_err().to_string(),
        cache.forget(PoolId::new(0), SlotId::new(2)).unwrap_err().to_string(),
        cache.forget(PoolId::new(2), SlotId::new(0)).unwrap_err().to_string(),
        cache.forget_layer(LayerId::new(9)).unwrap_err().to_string(),
        cache.slots(PoolId::new(2), bank).unwrap_err().to_string(),
        cache.slots(PoolId::new(0), BankId::new(2)).unwrap_err().to_string(),
        cache.pool_stats(PoolId::new(2)).unwrap_err().to_string(),
        cache.layer_stats(LayerId::new(2)).unwrap_err().to_string(),
    ];
    assert_eq!(cache.slots(PoolId::new(0), BankId::new(1)), Ok(None), "a bank that the pool's layers do not read");
    insta::assert_snapshot!(errors.join("\n"), @"
    layer 0 bank 0: a row has 16 bytes; 15 are to be read
    layer 0 bank 1: the layer does not read this bank
    no bank 2: the model has 2 banks
    no slot 2: pool 0 has 2 slots
    no layer 2: the cache has 2 layers
    no slot 2: pool 0 has 2 slots
    no pool 2: the cache has 2 pools
    no layer 9: the cache has 2 layers
    no pool 2: the cache has 2 pools
    no bank 2: the model has 2 banks
    no pool 2: the cache has 2 pools
    no layer 2: the cache has 2 layers
    ");
}

#[test]
fn steps_over_two_pairs_of_streams_keep_their_order() {
    // One engine, two compute streams with a copy stream each: the layers of either are apart, so nothing but the
    // fences of its own pair orders them.
    for seed in 0..60 {
        let mut world = World::new(
            model(8, 1, &[vec![16, 2], vec![16, 2]]),
            Constraints { scope: Scope::PerLayer, ..Constraints::new(Budget::Slots(4)) },
            HostDevice::deferred(seed),
            0,
        );
        let mut stream = || world.cache.create_stream().unwrap();
        let mut pair = || Streams { compute: stream(), copy: stream() };
        let pairs = [pair(), pair()];
        let steps = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for step in 0..6 {
                let layer = step % 2;
                world.load(pairs[layer as usize], layer, &[step, step + 1]).unwrap();
            }
            world.check_residents(&format!("seed {seed}"));
        }));
        if steps.is_err() {
            // A device that comes to no end would panic again while it is freed, and end the program.
            std::mem::forget(world);
            panic!("seed {seed}: the device did not come to an end, or a row is wrong");
        }
    }
}
