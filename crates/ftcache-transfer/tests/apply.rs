//! A plan carried out: whole, or with an error that names what it may have left behind; ordered against the kernels
//! before and after it. And the rows it copies from: what may be attached.

mod support;

use std::sync::Arc;

use ftcache_policy::{
    BankId, Budget, Constraints, ExpertId, Geometry, LayerId, LayoutKey, Model, PoolId, Quantisation, Scope,
};
use ftcache_policy::{SlotId, TailPad};
use ftcache_testkit::Rng;
use ftcache_testkit::generators::skewed_routes;
use ftcache_transfer::{
    ApplyError, AttachError, BankError, Device, DeviceError, HostDevice, HostRows, LiveObjects, Loader, Stream, Streams,
};
use support::{Watched, World, host_rows, row, stream_of};

const ONE: Streams = Streams::one(Stream::DEFAULT);

/// Three layers over two pools: wide ones with a bank of two bytes and one that only the narrow layer reads.
const LAYERS: &[&[u64]] = &[&[70, 2, 0, 33], &[70, 2, 0, 33], &[16, 0, 5, 16]];

fn world(host: HostDevice) -> World {
    let constraints = Constraints { slot_pad_bytes: 3, alignment: 16, ..Constraints::new(Budget::Slots(12)) };
    World::new(10, LAYERS, constraints, host, 6)
}

#[test]
fn every_bank_gets_its_row_and_the_bytes_are_those_of_the_rows() {
    let mut world = world(HostDevice::new());
    assert_eq!(world.step(ONE, 0, &[4, 2, 4]), Ok(2 * (70 + 2 + 33)));
    assert_eq!(world.image(), world.image_of_residents());
    assert_eq!(world.step(ONE, 2, &[9]), Ok(16 + 5 + 16), "a bank of zero bytes moves none");
    assert_eq!(world.image(), world.image_of_residents());
    assert_eq!(world.step(ONE, 1, &[2, 3]), Ok(2 * (70 + 2 + 33)));
    assert_eq!(world.image(), world.image_of_residents());
}

#[test]
fn a_plan_without_copies_enqueues_nothing_at_all() {
    let mut world = world(HostDevice::new());
    let copy = world.device.create_stream().unwrap();
    let forked = Streams { compute: Stream::DEFAULT, copy };
    world.step(forked, 0, &[1, 2]).unwrap();
    let enqueued = world.device.get().enqueued;
    assert!(enqueued > 0);
    assert_eq!(world.step(forked, 0, &[2, 1, 1]), Ok(0));
    assert_eq!(world.step(forked, 1, &[]), Ok(0));
    assert_eq!(world.device.get().enqueued, enqueued);
}

#[test]
fn neighbouring_rows_to_neighbouring_slots_travel_as_one_copy_a_bank() {
    let mut world = world(HostDevice::new());
    world.step(ONE, 0, &[3, 4, 5]).unwrap();
    let shapes: Vec<(u64, u64)> =
        world.device.get().copies.iter().map(|(_, copy)| (copy.row_bytes, copy.row_count)).collect();
    let mut wanted = vec![(70, 3), (2, 3), (33, 3)];
    wanted.retain(|shape| !shapes.contains(shape));
    assert_eq!((shapes.len(), wanted), (3, vec![]), "{shapes:?}");
}

#[test]
fn random_steps_leave_exactly_the_residents_rows_in_the_arenas() {
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let constraints = Constraints {
            scope: if rng.chance(1, 2) { Scope::Unified } else { Scope::PerLayer },
            slot_pad_bytes: rng.below(4),
            alignment: 1 << rng.below(6),
            tail_pad: if rng.chance(1, 2) { TailPad::RowUpTo(512) } else { TailPad::Bytes(rng.below(20)) },
            ..Constraints::new(Budget::Slots(9 + rng.below(10)))
        };
        let host = if rng.chance(1, 2) { HostDevice::new() } else { HostDevice::deferred(seed) };
        let mut world = World::new(10, LAYERS, constraints, host, rng.below(9));
        for step in 0..30 {
            let layer = rng.below(3) as u32;
            let pool = world.geometry.pool_of_layer(LayerId::new(layer)).unwrap();
            let width = rng.below(u64::from(world.geometry.pool(pool).slot_count()) + 1) as usize;
            let routes: Vec<u32> = skewed_routes(&mut rng, 10, width).iter().map(|route| route.get()).collect();
            let bytes = world.step(ONE, layer, &routes).unwrap();
            let expert_bytes = world.geometry.model().layer(LayerId::new(layer)).expert_bytes();
            let context = format!("seed {seed} step {step}: {}", world.plan);
            assert_eq!(bytes, world.plan.miss_count() as u64 * expert_bytes, "{context}");
            assert!(world.image() == world.image_of_residents(), "{context}");
        }
    }
}

#[test]
fn a_copy_that_fails_names_its_layer_its_bank_and_every_slot_of_the_plan() {
    let routes = [1, 2, 4, 5, 9];
    let mut whole = world(HostDevice::new());
    whole.step(ONE, 1, &[0, 4]).unwrap();
    let first = whole.device.get().copies.len();
    whole.step(ONE, 1, &routes).unwrap();
    // Which bank the i-th copy of the step belongs to, from the arena that it writes.
    let bank_of = |index: usize| {
        let memory = whole.device.get().copies[first + index].1.target.memory;
        BankId::from_index((0..4).position(|bank| whole.memory(BankId::from_index(bank)) == Some(memory)).unwrap())
    };
    let count = whole.device.get().copies.len() - first;
    assert!(count > 3, "the step has runs apart: {count}");
    let slots: Vec<SlotId> = whole.plan.copies().iter().map(|copy| copy.slot).collect();

    for index in 0..count {
        let mut world = world(HostDevice::new());
        world.step(ONE, 1, &[0, 4]).unwrap();
        world.device.get_mut().host.fail_copy_after(index as u64);
        let error = world.step(ONE, 1, &routes).unwrap_err();
        assert_eq!(error.layer, LayerId::new(1), "copy {index}");
        assert_eq!(error.bank, Some(bank_of(index)), "copy {index}");
        assert_eq!(error.slots, slots, "copy {index}");
        assert!(matches!(error.source, DeviceError::Failed { .. }), "copy {index}: {error}");
        assert_eq!(world.device.get().copies.len(), first + index + 1, "nothing is tried after copy {index}");
        for &slot in &error.slots {
            assert_eq!(world.residency.expert_of(world.plan.pool(), slot), None, "copy {index} slot {slot}");
        }
        world.step(ONE, 1, &routes).unwrap();
        assert!(world.image() == world.image_of_residents(), "copy {index}");
    }
    let mut world = world(HostDevice::new());
    world.step(ONE, 1, &[0, 4]).unwrap();
    world.device.get_mut().host.fail_copy_after(count as u64);
    world.step(ONE, 1, &routes).unwrap();
}

#[test]
fn a_stream_that_the_device_does_not_know_is_an_error_without_a_bank() {
    for streams in [Streams { compute: stream_of(40), copy: Stream::DEFAULT }, Streams { copy: stream_of(40), ..ONE }] {
        let mut world = world(HostDevice::new());
        let error = world.step(streams, 0, &[3]).unwrap_err();
        assert_eq!(error.bank, None, "{error}");
        assert_eq!(error.slots, [SlotId::new(0)]);
        assert_eq!(error.source, DeviceError::UnknownHandle { what: "stream", handle: 40 });
        world.step(ONE, 0, &[3]).unwrap();
        assert!(world.image() == world.image_of_residents());
    }
}

// Order against kernels.

/// What a kernel leaves in a slot that it used. The trait has no kernels, so a write stands for one: it is work of the
/// compute stream at the slot, and who came last is seen in the bytes.
static KERNEL: [[u8; 70]; 2] = [[0xAA; 70], [0xBB; 70]];

/// Which of the two fences somebody forgot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Forgotten {
    Nothing,
    Release,
    Ready,
}

/// Steps and kernels in turn, with a failing copy now and then, over two streams or one. Returns every arena's bytes.
fn steps_and_kernels(program: u64, host: HostDevice, forgotten: Forgotten) -> Vec<Vec<u8>> {
    let mut rng = Rng::new(program);
    let mut world = world(host);
    let (compute, copy) = (world.device.create_stream().unwrap(), world.device.create_stream().unwrap());
    world.device.get_mut().deaf = match forgotten {
        Forgotten::Nothing => None,
        Forgotten::Release => Some(copy),
        Forgotten::Ready => Some(compute),
    };
    for _ in 0..6 {
        let pool = world.geometry.pool_of_layer(LayerId::new(0)).unwrap();
        for _ in 0..rng.below(4) {
            let slot = SlotId::new(rng.below(u64::from(world.geometry.pool(pool).slot_count())) as u32);
            let span = world.loader.slot(pool, BankId::new(0), slot).unwrap();
            let bytes = &KERNEL[rng.below(2) as usize];
            support::write(&mut world.device, compute, span.memory, span.offset, bytes).unwrap();
        }
        if rng.chance(1, 4) {
            world.device.get_mut().host.fail_copy_after(rng.below(5));
        }
        let streams = if rng.chance(1, 4) { Streams::one(compute) } else { Streams { compute, copy } };
        let routes = [(); 4].map(|()| rng.below(10) as u32);
        // A failed step counts as well: what it had enqueued must stay behind the kernels before it.
        let _ = world.step(streams, rng.below(2) as u32, &routes);
        // A failure that the step did not come to is not the next kernel's.
        world.device.get_mut().host.fail_copy_after(u64::MAX);
    }
    world.image()
}

#[test]
fn rows_land_behind_the_kernels_before_them_and_before_the_kernels_behind_them() {
    for program in 0..30 {
        // All of it is one order: compute, release, rows, ready, compute.
        let wanted = steps_and_kernels(program, HostDevice::new(), Forgotten::Nothing);
        for seed in 0..30 {
            let found = steps_and_kernels(program, HostDevice::deferred(seed), Forgotten::Nothing);
            assert!(found == wanted, "program {program} seed {seed}");
        }
    }
}

#[test]
fn either_fence_is_missed_when_it_is_left_out() {
    for forgotten in [Forgotten::Release, Forgotten::Ready] {
        let mut wrong = 0;
        for program in 0..30 {
            let wanted = steps_and_kernels(program, HostDevice::new(), Forgotten::Nothing);
            let differs = |seed| steps_and_kernels(program, HostDevice::deferred(seed), forgotten) != wanted;
            wrong += usize::from((0..30).any(differs));
        }
        assert!(wrong >= 10, "{forgotten:?}: only {wrong} of 30 programs noticed");
    }
}

#[test]
fn a_kernel_before_a_step_never_sees_the_rows_of_the_step() {
    for seed in 0..100 {
        let mut world = world(HostDevice::deferred(seed));
        let (compute, copy) = (world.device.create_stream().unwrap(), world.device.create_stream().unwrap());
        world.step(Streams::one(compute), 0, &[0, 1, 2]).unwrap();
        let span = world.loader.slot(PoolId::new(0), BankId::new(0), SlotId::new(0)).unwrap();
        for slot in 0..3 {
            let offset = span.offset + slot * span.stride;
            support::write(&mut world.device, compute, span.memory, offset, &KERNEL[0]).unwrap();
        }
        for slot in (0..3).map(SlotId::new) {
            world.residency.forget(PoolId::new(0), slot);
        }
        world.step(Streams { compute, copy }, 1, &[5, 6, 8]).unwrap();
        assert!(world.image() == world.image_of_residents(), "seed {seed}");
    }
}

#[test]
fn a_kernel_behind_a_step_sees_every_row_of_the_step() {
    for seed in 0..100 {
        let mut world = world(HostDevice::deferred(seed));
        let (compute, copy) = (world.device.create_stream().unwrap(), world.device.create_stream().unwrap());
        world.step(Streams { compute, copy }, 0, &[0]).unwrap();
        let span = world.loader.slot(PoolId::new(0), BankId::new(0), SlotId::new(0)).unwrap();
        support::write(&mut world.device, compute, span.memory, span.offset, &KERNEL[1]).unwrap();
        let mut bytes = [0; 70];
        world.device.read(span.memory, span.offset, &mut bytes).unwrap();
        assert_eq!(bytes, KERNEL[1], "seed {seed}: the row landed behind the kernel that reads it");
    }
}

#[test]
fn rows_of_a_failed_step_never_land_in_what_the_next_step_fills() {
    for seed in 0..100 {
        for index in 0..6 {
            let mut world = world(HostDevice::deferred(seed));
            let (compute, copy) = (world.device.create_stream().unwrap(), world.device.create_stream().unwrap());
            world.device.get_mut().host.fail_copy_after(index);
            world.step(Streams { compute, copy }, 0, &[0, 2, 4]).unwrap_err();
            world.step(Streams::one(compute), 1, &[1, 3, 5]).unwrap();
            assert!(world.image() == world.image_of_residents(), "seed {seed} copy {index}");
        }
    }
}

// Arenas.

#[test]
fn arenas_take_what_the_geometry_says_and_give_it_back() {
    let geometry = world(HostDevice::new()).geometry.clone();
    let device = Watched::new(HostDevice::new().with_limit(geometry.total_bytes()));
    let loader = Loader::new(geometry.clone(), device.clone()).unwrap();
    assert_eq!(device.get().host.used_bytes(), geometry.total_bytes());
    for (index, pool) in geometry.pools().iter().enumerate() {
        for (bank, range) in pool.ranges().iter().enumerate() {
            let slots = |slot| loader.slot(PoolId::from_index(index), BankId::from_index(bank), slot);
            let last = pool.slot_count() - 1;
            let offset = |slot: u32| slots(SlotId::new(slot)).map(|span| (span.offset, span.stride));
            let wanted = |slot: u32| {
                (range.row_bytes > 0).then_some((range.offset + u64::from(slot) * range.stride, range.stride))
            };
            assert_eq!([offset(0), offset(last)], [wanted(0), wanted(last)], "pool {index} bank {bank}");
        }
    }
    drop(loader);
    assert_eq!(device.get().host.live_objects(), LiveObjects::default());
}

#[test]
fn arenas_that_do_not_fit_name_both_numbers_and_leave_nothing() {
    let geometry = world(HostDevice::new()).geometry.clone();
    for limit in 0..geometry.total_bytes() {
        let device = Watched::new(HostDevice::new().with_limit(limit));
        match Loader::new(geometry.clone(), device.clone()) {
            Err(DeviceError::OutOfMemory { wanted_bytes, free_bytes }) => {
                assert!(wanted_bytes > free_bytes, "limit {limit}");
                assert!(geometry.arena_bytes().contains(&wanted_bytes), "limit {limit}: {wanted_bytes}");
            }
            other => panic!("limit {limit}: {other:?}"),
        }
        assert_eq!(device.get().host.used_bytes(), 0, "limit {limit}");
        assert_eq!(device.get().host.live_objects(), LiveObjects::default(), "limit {limit}");
    }
}

#[test]
fn slots_in_memory_of_the_caller_lie_where_it_is_and_stay_there() {
    let geometry = world(HostDevice::new()).geometry.clone();
    let mut memory: Vec<Vec<u8>> = geometry.arena_bytes().iter().map(|&n| vec![0xDB; n as usize + 9]).collect();
    let arenas: Vec<(u64, u64)> = memory.iter_mut().map(|m| (m.as_mut_ptr() as u64, m.len() as u64)).collect();
    let device = Watched::new(HostDevice::new().with_limit(0));
    for bank in (0..arenas.len()).filter(|&bank| geometry.arena_bytes()[bank] > 0) {
        let mut short = arenas.clone();
        short[bank].1 = geometry.arena_bytes()[bank] - 1;
        // SAFETY: the memory outlives the loaders, and is used by them alone.
        let error = unsafe { Loader::in_memory(geometry.clone(), device.clone(), &short) }.unwrap_err();
        let (needed, given) = (geometry.arena_bytes()[bank], short[bank].1);
        assert_eq!(error, DeviceError::Arena { bank: BankId::from_index(bank), needed, given });
        assert_eq!(device.get().host.live_objects(), LiveObjects::default());
    }
    // SAFETY: as above.
    let loader = unsafe { Loader::in_memory(geometry.clone(), device.clone(), &arenas) }.unwrap();
    for (bank, &(address, _)) in arenas.iter().enumerate() {
        let span = loader.slot(PoolId::new(0), BankId::from_index(bank), SlotId::new(1));
        let range = geometry.pools()[0].ranges()[bank];
        assert_eq!(
            span.map(|span| device.address(span.memory).unwrap() + span.offset),
            (range.row_bytes > 0).then_some(address + range.offset + range.stride)
        );
    }
    drop(loader);
    assert_eq!(device.get().host.live_objects(), LiveObjects::default());
    for (bank, memory) in memory.iter().enumerate() {
        let read = geometry.arena_bytes()[bank] > 0;
        assert!(memory.iter().all(|&byte| byte == if read { 0 } else { 0xDB }), "filled with zeros, and not freed");
    }
}

// Banks.

fn small_model() -> Model {
    let layers = vec![LayoutKey::tagged("q", [10, 2]), LayoutKey::tagged("q", [10])];
    Model::new(4, 1, Quantisation::PerLayer, layers).unwrap()
}

/// A loader of that model; nothing is attached.
fn small_loader() -> Loader<HostDevice> {
    let geometry = Geometry::new(small_model(), Constraints::new(Budget::Slots(3))).unwrap();
    Loader::new(geometry, HostDevice::new()).unwrap()
}

fn zeros(bytes: usize) -> Arc<[u8]> {
    vec![0; bytes].into()
}

#[test]
fn what_a_bank_refuses_says_so_with_its_numbers() {
    let mut banks = small_loader();
    let (zero, one) = (LayerId::new(0), LayerId::new(1));
    let (a, b) = (BankId::new(0), BankId::new(1));
    let mut refused = |layer, bank, bytes, stride| {
        banks.attach(layer, bank, HostRows::owned(zeros(bytes), stride)).unwrap_err().to_string()
    };
    let errors = [
        refused(LayerId::new(2), a, 40, 0),
        refused(zero, BankId::new(2), 40, 0),
        refused(LayerId::new(u32::MAX), BankId::new(u32::MAX), 0, 0),
        refused(one, b, 8, 0),
        refused(zero, a, 40, 9),
        refused(zero, a, 39, 0),
        refused(zero, b, 10, 3),
        refused(zero, b, 10, u64::MAX),
        banks.check_layer(zero).unwrap_err().to_string(),
    ];
    insta::assert_snapshot!(errors.join("\n"), @"
    no layer 2: the model has 2 layers
    no bank 2: the model has 2 banks
    no layer 4294967295: the model has 2 layers
    layer 1 bank 1: the layer does not read this bank
    layer 0 bank 0: a stride of 9 bytes is less than the row's 10
    layer 0 bank 0: 4 rows of 10 bytes at a stride of 10 need 40 bytes; 39 are given
    layer 0 bank 1: 4 rows of 2 bytes at a stride of 3 need 11 bytes; 10 are given
    layer 0 bank 1: 4 rows of 2 bytes at a stride of 18446744073709551615 need 55340232221128654847 bytes; 10 are given
    layer 0 bank 0 is not attached
    ");
}

#[test]
fn a_plan_that_was_not_carried_out_says_where_and_which_slots() {
    let mut forked = world(HostDevice::new());
    let mut copy = world(HostDevice::new());
    let mut one_slot = world(HostDevice::new());
    copy.device.get_mut().host.fail_copy_after(3);
    one_slot.device.get_mut().host.fail_copy_after(1);
    let errors = [
        forked.step(Streams { copy: stream_of(7), ..ONE }, 0, &[3, 4]).unwrap_err(),
        copy.step(ONE, 2, &[1, 2, 4]).unwrap_err(),
        one_slot.step(ONE, 1, &[9, 9]).unwrap_err(),
        ApplyError {
            layer: LayerId::new(5),
            bank: Some(BankId::new(1)),
            slots: vec![SlotId::new(3), SlotId::new(8)],
            source: DeviceError::OutOfMemory { wanted_bytes: 8, free_bytes: 4 },
        },
    ];
    insta::assert_snapshot!(errors.map(|error| error.to_string()).join("\n"), @"
    layer 0: stream 7 is not of this device; slots 0, 1 are forgotten
    layer 2 bank 2: row copy of 5 bytes: this copy was asked to fail; slots 0, 1, 2 are forgotten
    layer 1 bank 1: row copy of 2 bytes: this copy was asked to fail; slot 0 is forgotten
    layer 5 bank 1: 8 bytes of device memory wanted; 4 are free; slots 3, 8 are forgotten
    ");
}

#[test]
fn rows_of_the_exact_length_are_accepted_and_one_byte_less_is_not() {
    for stride in [0_u64, 10, 11, 64] {
        let exact = (3 * if stride == 0 { 10 } else { stride } + 10) as usize;
        let mut banks = small_loader();
        let mut attach = |bytes| banks.attach(LayerId::new(1), BankId::new(0), HostRows::owned(zeros(bytes), stride));
        match attach(exact - 1) {
            Err(AttachError::Bank(BankError::TooShort { needed, given, .. })) => {
                assert_eq!((needed, given), (exact as u128, exact as u64 - 1), "stride {stride}");
            }
            other => panic!("stride {stride}: {other:?}"),
        }
        attach(exact).unwrap();
        banks.check_layer(LayerId::new(1)).unwrap();
    }
}

#[test]
fn a_layer_is_attached_once_every_bank_that_it_reads_is() {
    let (layer, first, second) = (LayerId::new(0), BankId::new(0), BankId::new(1));
    let mut banks = small_loader();
    assert_eq!(banks.check_layer(layer), Err(BankError::NotAttached { layer, bank: first }));
    banks.attach(layer, second, HostRows::owned(zeros(8), 0)).unwrap();
    assert_eq!(banks.check_layer(layer), Err(BankError::NotAttached { layer, bank: first }));
    banks.attach(layer, first, HostRows::owned(zeros(40), 0)).unwrap();
    banks.check_layer(layer).unwrap();
    assert_eq!(banks.is_direct(LayerId::new(1), first), None);
    let other = LayerId::new(1);
    assert_eq!(banks.check_layer(other), Err(BankError::NotAttached { layer: other, bank: first }));
    banks.attach(other, first, HostRows::owned(zeros(40), 0)).unwrap();
    banks.check_layer(other).expect("a bank that the layer does not read is not missed");
}

#[test]
fn a_refused_attach_leaves_the_rows_that_were_there() {
    let mut world = world(HostDevice::new());
    let (layer, bank) = (LayerId::new(0), BankId::new(0));
    world.loader.attach(layer, bank, HostRows::owned(zeros(70), 0)).unwrap_err();
    world.loader.attach(layer, bank, HostRows::owned(zeros(7_000), 69)).unwrap_err();
    world.step(ONE, 0, &[3]).unwrap();
    assert!(world.image() == world.image_of_residents());
}

#[test]
fn rows_attached_again_take_the_place_of_the_old_ones() {
    let mut world = world(HostDevice::new());
    let (layer, bank) = (LayerId::new(0), BankId::new(0));
    // Rows of another layer, at another stride: the copies must follow both.
    let moved = host_rows(9, 0, 10, 70, 101);
    let watched = Arc::downgrade(&moved);
    world.loader.attach(layer, bank, HostRows::owned(moved, 101)).unwrap();
    world.step(ONE, 0, &[7, 3]).unwrap();
    let slot = world.residency.slot_of(layer, ExpertId::new(7)).unwrap();
    let span = world.loader.slot(world.plan.pool(), bank, slot).unwrap();
    let mut bytes = vec![0; 70];
    world.device.read(span.memory, span.offset, &mut bytes).unwrap();
    assert_eq!(bytes, row(9, 7, 0, 70));

    assert!(watched.upgrade().is_some(), "the banks keep owned rows alive");
    world.loader.attach(layer, bank, HostRows::owned(host_rows(0, 0, 10, 70, 70), 0)).unwrap();
    assert!(watched.upgrade().is_none(), "rows that nothing copies from any more are let go");
}

#[test]
fn borrowed_rows_at_any_address_are_copied_as_they_lie() {
    for shift in [0_usize, 1, 3, 8, 13] {
        let stride = 75;
        let mut block = vec![0xC3; shift];
        block.extend_from_slice(&host_rows(0, 0, 10, 70, stride));
        let mut world = world(HostDevice::new());
        // SAFETY: `block` outlives `world`, which is dropped first, and nothing changes it.
        let rows = unsafe { HostRows::borrowed(block[shift..].as_ptr(), (block.len() - shift) as u64, stride) };
        world.loader.attach(LayerId::new(0), BankId::new(0), rows).unwrap();
        world.step(ONE, 0, &[0, 9, 5]).unwrap();
        assert!(world.image() == world.image_of_residents(), "shift {shift}");
        drop(world);
        drop(block);
    }
}

#[test]
fn rows_may_be_shared_between_threads() {
    fn shared<T: Send + Sync>(_: &T) {}
    shared(&HostRows::owned(zeros(4), 0));
}
