//! What goes wrong in a step, and what is left then: nothing half-copied is ever a hit, and a call that was refused
//! changed nothing.

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;

use ftcache::{
    BankError, BankId, Budget, Cache, Constraints, Device, DeviceError, EnsureError, Error, ExpertId, Geometry,
    HostDevice, HostRows, LayerId, PoolId, Scope, SlotId, Stream, Streams,
};
use support::{Summary, Watched, World, host_rows, model, stream_of};

const ONE: Streams = Streams::one(Stream::DEFAULT);

/// Two layers of three banks, warmed up so that a step has hits, misses into free slots and misses with victims.
fn warm_world(scope: Scope, host: HostDevice) -> World {
    let layers = [vec![24, 2, 9], vec![24, 2, 9]];
    let constraints = Constraints { scope, slot_pad_bytes: 3, ..Constraints::new(Budget::Slots(14)) };
    let mut world = World::new(model(10, 2, &layers), constraints, host, 5);
    world.load_one(0, &[9, 2]).unwrap();
    world.load_one(1, &[0, 1, 2, 3]).unwrap();
    world.load_one(0, &[0, 5]).unwrap();
    world
}

/// A step over the warm world: 5 and 2 are hits, the rest is neither all neighbours nor all apart.
const STEP: [u32; 8] = [5, 1, 3, 4, 2, 8, 4, 7];

#[test]
fn a_copy_that_fails_leaves_no_half_copied_hit_and_the_step_may_be_tried_again() {
    for scope in [Scope::Unified, Scope::PerLayer] {
        for forked in [false, true] {
            for seed in [None, Some(1), Some(2), Some(3)] {
                let copies = fail_at_every_copy(scope, forked, seed);
                assert!(copies >= 6, "{scope:?}: only {copies} copies");
            }
        }
    }
}

/// Returns how many copies the step has.
fn fail_at_every_copy(scope: Scope, forked: bool, seed: Option<u64>) -> u64 {
    let mut index = 0;
    loop {
        let context = format!("{scope:?}, forked {forked}, seed {seed:?}, copy {index}");
        let mut world = warm_world(scope, seed.map_or_else(HostDevice::new, HostDevice::deferred));
        let streams = match forked {
            true => Streams { compute: Stream::DEFAULT, copy: world.cache.create_stream().unwrap() },
            false => ONE,
        };
        let distinct: BTreeSet<u32> = STEP.into_iter().collect();
        let resident =
            |world: &World, expert| world.cache.residency().slot_of(LayerId::new(0), ExpertId::new(expert)).is_some();
        let misses: Vec<u32> = distinct.iter().copied().filter(|&expert| !resident(&world, expert)).collect();
        let hits: Vec<u32> = distinct.iter().copied().filter(|&expert| resident(&world, expert)).collect();
        assert_eq!(hits, [2, 5]);
        let stats = world.cache.stats();
        let enqueued = world.device.get().copies.len() as u64;

        world.device.get_mut().host.fail_copy_after(index);
        let error = match world.load(streams, 0, &STEP) {
            Err(Error::Apply(error)) => error,
            Ok(_) => {
                assert_eq!(world.device.get().copies.len() as u64 - enqueued, index, "{context}");
                return index;
            }
            Err(error) => panic!("{context}: {error}"),
        };
        assert_eq!(
            world.device.get().copies.len() as u64 - enqueued,
            index + 1,
            "{context}: nothing is tried after it"
        );
        assert_eq!(error.layer, LayerId::new(0), "{context}");
        assert!(error.bank.is_some(), "{context}");
        assert_eq!(error.slots.len(), misses.len(), "{context}: {error}");
        for &slot in &error.slots {
            assert_eq!(world.cache.residency().expert_of(world.pool_of(0), slot), None, "{context} slot {slot}");
            assert_eq!(world.cache.residency().stamp(world.pool_of(0), slot), 0, "{context} slot {slot}: taken first");
        }
        assert!(misses.iter().all(|&expert| !resident(&world, expert)), "{context}");
        assert!(hits.iter().all(|&expert| resident(&world, expert)), "{context}");
        assert_eq!(world.cache.stats(), stats, "{context}: a failed step is not counted");
        world.check_residents(&context);

        // Tried again, also over other streams than before.
        let again = if index % 2 == 0 { streams } else { ONE };
        let slots = world.load(again, 0, &STEP).unwrap_or_else(|error| panic!("{context}: {error}"));
        for (&expert, &slot) in STEP.iter().zip(&slots) {
            world.check_slot(0, expert, slot, &context);
        }
        world.check_residents(&context);
        let mut freed = error.slots.clone();
        freed.sort();
        let mut filled: Vec<SlotId> = world.cache.plan().copies().iter().map(|copy| copy.slot).collect();
        filled.sort();
        assert_eq!(filled, freed, "{context}: the freed slots are taken first");
        let after = world.cache.stats();
        assert_eq!(after.residency.steps, stats.residency.steps + 1, "{context}");
        assert_eq!(after.residency.routes, stats.residency.routes + STEP.len() as u64, "{context}");
        assert_eq!(after.residency.distinct, stats.residency.distinct + distinct.len() as u64, "{context}");
        assert_eq!(after.residency.misses, stats.residency.misses + misses.len() as u64, "{context}");
        assert_eq!(after.bytes, stats.bytes + misses.len() as u64 * (24 + 2 + 9), "{context}");
        index += 1;
    }
}

#[test]
fn an_old_owner_does_not_come_back_after_a_failed_step() {
    let mut world = World::new(model(8, 1, &[vec![16, 2]]), Constraints::new(Budget::Slots(2)), HostDevice::new(), 0);
    world.load_one(0, &[0, 1]).unwrap();
    // The second bank's copy fails: the first bank's row of expert 0 is gone already.
    world.device.get_mut().host.fail_copy_after(1);
    world.load_one(0, &[5]).unwrap_err();
    let slots = world.load_one(0, &[0, 1]).unwrap();
    for (expert, slot) in [0, 1].into_iter().zip(slots) {
        world.check_slot(0, expert, slot, "after the failure");
    }
    assert_eq!(world.cache.plan().miss_count(), 1, "expert 0 is copied anew, expert 1 was never touched");
}

#[test]
fn failures_again_and_again_never_make_a_wrong_hit() {
    let mut rng = ftcache_testkit::Rng::new(41);
    for seed in 0..20 {
        let mut world = warm_world(Scope::Unified, HostDevice::deferred(seed));
        let copy = world.cache.create_stream().unwrap();
        for step in 0..60 {
            let context = format!("seed {seed} step {step}");
            world.device.get_mut().host.fail_copy_after(rng.below(12));
            let routes = [(); 5].map(|()| rng.below(10) as u32);
            let streams = if rng.chance(1, 2) { ONE } else { Streams { compute: Stream::DEFAULT, copy } };
            let layer = rng.below(2) as u32;
            match world.load(streams, layer, &routes) {
                Ok(slots) => {
                    for (&expert, &slot) in routes.iter().zip(&slots) {
                        world.check_slot(layer, expert, slot, &context);
                    }
                }
                Err(error) => assert!(matches!(error, Error::Apply(_)), "{context}: {error}"),
            }
            if step % 4 == 0 {
                world.check_residents(&context);
            }
        }
        world.check_residents(&format!("seed {seed}"));
    }
}

/// What a call refuses, and that it changed nothing: not even what the device was given.
fn refused(world: &mut World, what: &str, call: impl FnOnce(&mut World) -> Error) -> Error {
    let (summary, image): (Summary, _) = (world.summary(), world.image());
    let error = call(world);
    assert_eq!(world.summary(), summary, "{what}: {error}");
    assert!(world.image() == image, "{what}: {error}");
    world.check_residents(what);
    error
}

#[test]
fn a_layer_that_is_not_attached_takes_no_slot_from_one_that_is() {
    let layers = [vec![24, 2], vec![24, 2]];
    let mut world = World::unattached(model(6, 1, &layers), Constraints::new(Budget::Slots(3)), HostDevice::new());
    world.attach(LayerId::new(0), BankId::new(1), 0);
    world.attach(LayerId::new(0), BankId::new(0), 0);
    world.attach(LayerId::new(1), BankId::new(0), 0);
    world.load_one(0, &[0, 1, 2]).unwrap();
    let wanted = Error::Bank(BankError::NotAttached { layer: LayerId::new(1), bank: BankId::new(1) });
    assert_eq!(world.cache.check_attached(LayerId::new(1)), Err(wanted.clone()));
    for routes in [&[3][..], &[0, 1, 2], &[]] {
        let error = refused(&mut world, "load", |world| world.load_one(1, routes).unwrap_err());
        assert_eq!(error, wanted);
        let ids: Vec<i64> = routes.iter().map(|&route| i64::from(route)).collect();
        let error =
            refused(&mut world, "load_ids", |world| world.cache.load_ids(ONE, LayerId::new(1), ids, None).unwrap_err());
        assert_eq!(error, wanted);
    }
    world.attach(LayerId::new(1), BankId::new(1), 7);
    world.cache.check_attached(LayerId::new(1)).unwrap();
    let slots = world.load_one(1, &[3]).unwrap();
    world.check_slot(1, 3, slots[0], "attached");
}

#[test]
fn a_bad_id_is_named_with_its_value_and_position_and_changes_nothing() {
    // Reported fault B12.
    let mut world = warm_world(Scope::Unified, HostDevice::new());
    let over = i64::from(u32::MAX);
    for id in [10, 11, -1, -2, i64::MIN, i64::MAX, over, over + 1, over + 3, 1 << 32, 1 << 40, i64::from(i32::MIN)] {
        for position in 0..4 {
            let mut ids = [5, 1, 7, 3];
            ids[position] = id;
            let what = format!("id {id} at {position}");
            let error =
                refused(&mut world, &what, |world| world.cache.load_ids(ONE, LayerId::new(0), ids, None).unwrap_err());
            let wanted =
                Error::Ensure(EnsureError::UnknownId { layer: LayerId::new(0), route: position, id, expert_count: 10 });
            assert_eq!(error, wanted);
        }
    }
    // A value that means absent does not excuse another one.
    let error = refused(&mut world, "absent", |world| {
        world.cache.load_ids(ONE, LayerId::new(0), [-1, -2], Some(-1)).unwrap_err()
    });
    assert_eq!(
        error,
        Error::Ensure(EnsureError::UnknownId { layer: LayerId::new(0), route: 1, id: -2, expert_count: 10 })
    );
    assert_eq!(error.to_string(), "layer 0: route 1 is -2, which is no expert of 0..10");
    world.cache.load_ids(ONE, LayerId::new(0), [5, 1, -1], Some(-1)).expect("a good step after all of them");
}

#[test]
fn a_route_that_is_no_expert_changes_nothing() {
    let mut world = warm_world(Scope::Unified, HostDevice::new());
    for expert in [10, 11, u32::MAX - 1] {
        let error = refused(&mut world, "route", |world| world.load_one(0, &[5, 1, expert]).unwrap_err());
        let (layer, expert) = (LayerId::new(0), ExpertId::new(expert));
        assert_eq!(error, Error::Ensure(EnsureError::UnknownExpert { layer, route: 2, expert, expert_count: 10 }));
    }
}

#[test]
fn an_unknown_layer_changes_nothing() {
    let mut world = warm_world(Scope::PerLayer, HostDevice::new());
    for layer in [2, 3, u32::MAX] {
        let wanted = Error::Ensure(EnsureError::UnknownLayer { layer: LayerId::new(layer), layer_count: 2 });
        assert_eq!(refused(&mut world, "load", |world| world.load_one(layer, &[1]).unwrap_err()), wanted);
        assert_eq!(world.cache.check_attached(LayerId::new(layer)), Err(wanted.clone()));
        assert_eq!(world.cache.forget_layer(LayerId::new(layer)), Err(wanted.clone()));
        assert_eq!(world.cache.layer_stats(LayerId::new(layer)), Err(wanted));
    }
}

#[test]
fn a_step_wider_than_its_pool_names_both_numbers_and_changes_nothing() {
    // Worked case C14: every expert of a layer, over a pool of 16. Reported faults B02 and B05.
    let mut world = World::new(model(128, 8, &[vec![16]]), Constraints::new(Budget::Slots(16)), HostDevice::new(), 0);
    world.load_one(0, &[3, 1, 127]).unwrap();
    for width in [17, 18, 128] {
        let routes: Vec<u32> = (0..width).chain(0..width).collect();
        let error = refused(&mut world, "wide", |world| world.load_one(0, &routes).unwrap_err());
        let (layer, pool, needed, given) = (LayerId::new(0), PoolId::new(0), width as usize, 16);
        let too_wide =
            EnsureError::StepTooWide { layer, pool, needed, given, slot_count: given, pinned: 0, withheld: 0 };
        assert_eq!(error, Error::Ensure(too_wide));
        assert_eq!(error.to_string(), format!("layer 0 routes to {width} distinct experts; pool 0 has 16 slots"));
    }
    assert_eq!(world.load_one(0, &[127, 3, 1]).unwrap(), [2, 1, 0], "residents still hit");
    assert_eq!(world.cache.plan().miss_count(), 0);
    world.load_one(0, &[5; 200]).expect("duplicates do not make a step wide");
}

#[test]
fn a_refused_step_leaves_what_the_last_step_decided() {
    // `Error`: "Unless it says otherwise, the cache is as it was before", and `plan` is "what the last step decided".
    let mut world = World::new(model(8, 1, &[vec![16]]), Constraints::new(Budget::Slots(2)), HostDevice::new(), 0);
    world.load_one(0, &[3, 1]).unwrap();
    let plan = world.cache.plan().to_string();
    for (layer, routes) in [(4, &[1][..]), (0, &[1, 8]), (0, &[1, 2, 3])] {
        let error = world.load_one(layer, routes).unwrap_err();
        assert_eq!(world.cache.plan().to_string(), plan, "{error}");
    }
}

#[test]
fn an_unknown_stream_changes_nothing_not_even_on_a_hit() {
    for streams in [Streams { copy: stream_of(50), ..ONE }, Streams { compute: stream_of(50), copy: Stream::DEFAULT }] {
        let mut world = warm_world(Scope::Unified, HostDevice::deferred(3));
        let unknown = Error::Device(DeviceError::UnknownHandle { what: "stream", handle: 50 });
        let before = format!("{:?}", world.cache.residency());
        assert_eq!(world.load(streams, 0, &STEP).unwrap_err(), unknown);
        assert_eq!(format!("{:?}", world.cache.residency()), before, "nobody lost a slot");
        world.load_one(0, &STEP).unwrap();
        assert_eq!(world.load(streams, 0, &STEP).unwrap_err(), unknown, "a step of hits");
        world.check_residents("unknown stream");
        world.load_one(0, &STEP).unwrap();
        world.check_residents("tried again");
    }
}

#[test]
fn a_device_with_too_little_memory_names_both_numbers_and_keeps_nothing() {
    let geometry = || {
        let constraints = Constraints { alignment: 16, ..Constraints::new(Budget::Bytes(1_000)) };
        Geometry::new(model(8, 2, &[vec![33, 2], vec![7, 2, 5]]), constraints).unwrap()
    };
    let total = geometry().total_bytes();
    assert!(total <= 1_000);
    for limit in 0..total {
        let device = Watched::new(HostDevice::new().with_limit(limit));
        match Cache::new(geometry(), device.clone()) {
            Err(Error::Device(error @ DeviceError::OutOfMemory { wanted_bytes, free_bytes })) => {
                assert!(wanted_bytes > free_bytes && free_bytes <= limit, "limit {limit}: {error}");
                let text = error.to_string();
                let named = |number: u64| text.split(' ').any(|word| word == number.to_string());
                assert!(named(wanted_bytes) && named(free_bytes), "limit {limit}: {text}");
            }
            other => panic!("limit {limit}: {other:?}"),
        }
        assert_eq!(device.get().host.used_bytes(), 0, "limit {limit}");
        assert!(device.get().used_bytes_max <= limit);
    }
    let device = Watched::new(HostDevice::new().with_limit(total));
    let cache = Cache::new(geometry(), device.clone()).unwrap();
    assert_eq!(device.get().host.used_bytes(), total, "what the geometry says, to the byte");
    drop(cache);
    assert_eq!(device.get().host.used_bytes(), 0);
}

#[test]
fn steps_never_take_device_memory() {
    // Reported faults B14 and B15: the budget holds at every instant.
    let mut rng = ftcache_testkit::Rng::new(14);
    let constraints = Constraints::new(Budget::Bytes(2_000));
    let mut world = World::new(model(16, 2, &[vec![33, 2], vec![90]]), constraints, HostDevice::deferred(14), 3);
    for _ in 0..200 {
        let routes = [rng.below(16) as u32, rng.below(16) as u32];
        world.load_one(rng.below(2) as u32, &routes).unwrap();
    }
    assert_eq!(world.device.get().used_bytes_max, world.cache.geometry().total_bytes());
    assert!(world.device.get().used_bytes_max <= 2_000);
}

#[test]
fn a_cache_that_is_dropped_gives_its_memory_back_when_its_copies_are_done() {
    let mut world = warm_world(Scope::Unified, HostDevice::deferred(6));
    world.load_one(0, &STEP).unwrap();
    let World { cache, device } = world;
    drop(cache);
    assert_eq!(device.get().host.used_bytes(), 0);
}

// Two caches.

#[test]
fn two_caches_share_nothing_on_two_devices_or_on_one() {
    // Worked case C15 and reported fault B55: a target and a draft model side by side.
    for shared in [false, true] {
        let first = Watched::new(HostDevice::deferred(8));
        let second = if shared { first.clone() } else { Watched::new(HostDevice::deferred(9)) };
        let cache = |device: &Watched, layers: &[Vec<u64>], slots| {
            let geometry = Geometry::new(model(16, 2, layers), Constraints::new(Budget::Slots(slots))).unwrap();
            Cache::new(geometry, device.clone()).unwrap()
        };
        let mut target = cache(&first, &vec![vec![24, 2]; 4], 9);
        for layer in (0..4).map(LayerId::new) {
            for (bank, row_bytes) in [(0, 24), (1, 2)] {
                let rows = host_rows(layer.get(), bank, 16, row_bytes, row_bytes);
                target.attach(layer, BankId::new(bank), HostRows::owned(rows, 0)).unwrap();
            }
        }
        let routes = [4, 9].map(ExpertId::new);
        let slots = target.load(LayerId::new(2), &routes).unwrap().to_vec();
        let stats = target.stats();

        let mut draft = cache(&second, &[vec![40]], 2);
        draft.attach(LayerId::new(0), BankId::new(0), HostRows::owned(host_rows(7, 0, 16, 40, 40), 0)).unwrap();
        for expert in 0..12 {
            let slots = draft.load(LayerId::new(0), &[expert, expert + 1].map(ExpertId::new)).unwrap().to_vec();
            let mut bytes = [0; 40];
            draft.read_row(LayerId::new(0), BankId::new(0), slots[1], &mut bytes).unwrap();
            assert_eq!(bytes[..], support::row(7, expert + 1, 0, 40), "shared {shared}");
        }
        assert_eq!((draft.stats().residency.steps, target.stats()), (12, stats), "shared {shared}");
        draft.load(LayerId::new(0), &[ExpertId::new(99)]).unwrap_err();
        draft.reset_stats().unwrap();
        draft.reset().unwrap();

        assert_eq!(target.load(LayerId::new(2), &routes).unwrap(), slots);
        assert_eq!(target.plan().miss_count(), 0, "shared {shared}: the target's experts still hit");
        assert_eq!(target.stats().residency.steps, 2);
        let both = target.geometry().total_bytes();
        drop(draft);
        assert_eq!(first.get().host.used_bytes(), both, "shared {shared}: only the draft's memory went");
        for (&expert, &slot) in routes.iter().zip(&slots) {
            let mut bytes = [0; 24];
            target.read_row(LayerId::new(2), BankId::new(0), slot, &mut bytes).unwrap();
            assert_eq!(bytes[..], support::row(2, expert.get(), 0, 24), "shared {shared}");
        }
    }
}

#[test]
fn two_caches_on_one_device_keep_their_fences_apart() {
    for seed in 0..40 {
        let device = Watched::new(HostDevice::deferred(seed));
        let mut streams = device.clone();
        let compute = streams.create_stream().unwrap();
        let copies = [streams.create_stream().unwrap(), streams.create_stream().unwrap()];
        let mut caches = [0, 1].map(|_| {
            let geometry = Geometry::new(model(8, 1, &[vec![24, 2]]), Constraints::new(Budget::Slots(2))).unwrap();
            let mut cache = Cache::new(geometry, device.clone()).unwrap();
            for (bank, row_bytes) in [(0, 24), (1, 2)] {
                let rows = host_rows(0, bank, 8, row_bytes, row_bytes);
                cache.attach(LayerId::new(0), BankId::new(bank), HostRows::owned(rows, 0)).unwrap();
            }
            cache
        });
        for step in 0..5 {
            for (cache, &copy) in caches.iter_mut().zip(&copies) {
                let routes = [step, step + 2].map(ExpertId::new);
                cache.load_on(Streams { compute, copy }, LayerId::new(0), &routes).unwrap();
            }
        }
        for (index, cache) in caches.iter_mut().enumerate() {
            let slots = cache.plan().slots().to_vec();
            for (expert, slot) in [4, 6].into_iter().zip(slots) {
                let mut bytes = [0; 24];
                cache.read_row(LayerId::new(0), BankId::new(0), slot, &mut bytes).unwrap();
                assert_eq!(bytes[..], support::row(0, expert, 0, 24), "seed {seed} cache {index}");
            }
        }
    }
}

// Rows on the host.

#[test]
fn rows_may_be_attached_again_after_they_moved_and_residents_stay() {
    let mut world = warm_world(Scope::Unified, HostDevice::new());
    for layer in [0, 1].map(LayerId::new) {
        for bank in [0, 1, 2].map(BankId::new) {
            world.attach(layer, bank, 31);
        }
    }
    assert_eq!(world.load_one(0, &[0, 5]).unwrap().len(), 2);
    assert_eq!(world.cache.plan().miss_count(), 0, "residents stay");
    world.load_one(0, &STEP).unwrap();
    world.check_residents("moved");
}

#[test]
fn a_refused_attach_changes_nothing() {
    let mut world = warm_world(Scope::Unified, HostDevice::new());
    let attach = |world: &mut World, layer, bank, bytes: usize, stride| {
        let rows = HostRows::owned(vec![0x77; bytes].into(), stride);
        world.cache.attach(LayerId::new(layer), BankId::new(bank), rows).unwrap_err()
    };
    for (layer, bank, bytes, stride) in [(2, 0, 240, 0), (0, 3, 240, 0), (0, 0, 239, 0), (0, 0, 240, 23)] {
        let error = refused(&mut world, "attach", |world| attach(world, layer, bank, bytes, stride));
        assert!(matches!(error, Error::Bank(_)), "{error}");
    }
    world.load_one(0, &STEP).unwrap();
    world.check_residents("the old rows are still attached");
}

#[test]
fn owned_rows_live_until_the_copies_that_read_them_are_done() {
    let mut world = World::unattached(
        model(4, 1, &[vec![16]]),
        Constraints::new(Budget::Slots(2)),
        // Work is held back until something waits, as on a GPU.
        HostDevice::deferred(1),
    );
    let rows: Arc<[u8]> = host_rows(0, 0, 4, 16, 16);
    // The test's own handle: whatever the cache does, the bytes are there when they are read.
    let handle = Arc::clone(&rows);
    world.cache.attach(LayerId::new(0), BankId::new(0), HostRows::owned(rows, 0)).unwrap();
    world.load_one(0, &[3]).unwrap();
    let waited = world.device.get().waited;
    world.attach(LayerId::new(0), BankId::new(0), 0);
    let kept = Arc::strong_count(&handle) > 1;
    let done = world.device.get().waited > waited;
    assert!(kept || done, "the copy of expert 3 is still to read rows that the cache has let go");
}
