//! Copies and what is pinned: cut where registrations end, read from memory that others pinned, refused from what
//! nobody did.

use std::ffi::c_void;

use ftcache_testkit::Rng;
use ftcache_transfer::{Device, DeviceError, RowCopy, Stream};

use crate::cuda_world::CudaWorld;
use crate::raw::{Engine, ok};
use crate::support::{
    PAGE, Pages, can_read, contents, copy_all, copy_rows, current_device, emulated, line, register, rows, same_bytes,
    seeded, span,
};

#[test]
fn rows_that_lie_across_any_number_of_registrations_arrive() {
    for seed in 0..60 {
        let world = CudaWorld::new(seed);
        let mut rng = Rng::new(seed);
        let host = Pages::noise(seed, 12 * PAGE);
        let mut device = world.device();
        let mut left = &host[..];
        while !left.is_empty() {
            let pages = (1 + rng.below(3)) as usize;
            let (part, rest) = left.split_at(left.len().min(pages * PAGE));
            register(&mut device, part).unwrap();
            left = rest;
        }
        let memory = device.allocate(14 * PAGE as u64, 1).unwrap();
        let stream = device.create_stream().unwrap();
        for is_packed in [true, false] {
            // Up to some registrations wide.
            let row_bytes = 1 + rng.below(4 * PAGE as u64);
            let stride = if is_packed { row_bytes } else { row_bytes + rng.below(99) };
            let row_count = 11 * PAGE as u64 / stride;
            let first = rng.below(12 * PAGE as u64 - row_count * stride) as usize;
            let target = span(memory, 5, row_bytes);
            let copy = RowCopy { source: rows(&host[first..], stride), target, row_bytes, row_count };
            if rng.chance(1, 2) {
                copy_rows(&mut device, stream, &copy).unwrap();
            } else {
                copy_all(&mut device, stream, &[RowCopy { row_count: 0, ..copy }, copy]).unwrap();
            }
            let found = contents(&mut device, memory, 14 * PAGE);
            for row in 0..row_count as usize {
                let (from, to) = (first + row * stride as usize, 5 + row * row_bytes as usize);
                let bytes = row_bytes as usize;
                same_bytes(&found[to..][..bytes], &host[from..][..bytes], &format!("seed {seed}, row {row}"));
            }
        }
        drop(device);
        world.check_gone();
    }
}

#[test]
fn rows_inside_one_registration_go_in_one_call() {
    let world = CudaWorld::emulated(seeded(1));
    let mut device = world.device();
    let host = Pages::noise(1, 2 * PAGE);
    let (one, two) = host.split_at(PAGE);
    register(&mut device, one).unwrap();
    register(&mut device, two).unwrap();
    let memory = device.allocate(2 * PAGE as u64, 1).unwrap();
    let calls = || ["cuMemcpyHtoDAsync_v2", "cuMemcpy2DAsync_v2"].map(|name| emulated(&world).calls(name));
    let copy = RowCopy { source: rows(one, 64), target: span(memory, 0, 32), row_bytes: 30, row_count: 64 };
    copy_rows(&mut device, Stream::DEFAULT, &copy).unwrap();
    assert_eq!(calls(), [0, 1], "the last row ends inside, its stride does not");
    copy_rows(&mut device, Stream::DEFAULT, &RowCopy { source: rows(&one[2..], 64), ..copy }).unwrap();
    assert_eq!(calls(), [0, 2]);
    copy_rows(&mut device, Stream::DEFAULT, &RowCopy { source: rows(&one[35..], 64), ..copy }).unwrap();
    assert_eq!(calls(), [65, 2], "the last row lies across");
    drop(device);
    world.check_gone();
}

#[test]
fn memory_that_nobody_pinned_is_not_copied_from() {
    let world = CudaWorld::new(2);
    let mut device = world.device();
    let host = Pages::noise(2, 3 * PAGE);
    register(&mut device, &host[PAGE..2 * PAGE]).unwrap();
    let memory = device.allocate(3 * PAGE as u64, 1).unwrap();
    let stream = device.create_stream().unwrap();
    // All of it, its beginning, its end, its middle.
    for (from, to) in [(0, PAGE), (PAGE - 1, PAGE + 1), (PAGE, 2 * PAGE + 1), (0, 3 * PAGE), (2 * PAGE, 2 * PAGE + 1)] {
        let part = &host[from..to];
        assert_eq!(can_read(&mut device, part), Ok(false), "{from}..{to}");
        let refused = copy_rows(&mut device, stream, &line(part, memory, 0)).unwrap_err();
        let DeviceError::Failed { operation: "row copy", bytes, reason } = &refused else { panic!("{refused:?}") };
        assert_eq!(*bytes, part.len() as u64);
        let missing = if (PAGE..2 * PAGE).contains(&from) { &host[2 * PAGE..] } else { part };
        assert_eq!(*reason, format!("the host memory at {:#x} is not registered", missing.as_ptr() as usize));
        let good = line(&host[PAGE..PAGE + 8], memory, 3 * PAGE as u64 - 8);
        let failed = copy_all(&mut device, stream, &[good, line(part, memory, 0)]).unwrap_err();
        assert_eq!((failed.index, failed.source), (1, refused));
    }
    for (from, to) in [(PAGE, 2 * PAGE), (PAGE + 5, PAGE + 6), (2 * PAGE - 1, 2 * PAGE), (0, 0)] {
        assert_eq!(can_read(&mut device, &host[from..to]), Ok(true), "{from}..{to}");
    }
    if let Some(emulated) = &world.emulated {
        assert_eq!(emulated.counts().pageable_copies, 0);
    }
    drop(device);
    world.check_gone();
}

#[test]
fn a_copy_that_is_refused_for_a_later_row_copies_no_earlier_one() {
    let world = CudaWorld::new(3);
    let mut device = world.device();
    let host = Pages::noise(3, 3 * PAGE);
    register(&mut device, &host[..PAGE]).unwrap();
    register(&mut device, &host[2 * PAGE..]).unwrap();
    let memory = device.allocate(3 * PAGE as u64, 1).unwrap();
    let stream = device.create_stream().unwrap();
    let target = span(memory, 0, PAGE as u64);
    // Its rows are pinned, not pinned, pinned.
    let with_gaps = RowCopy { source: rows(&host, PAGE as u64), target, row_bytes: 100, row_count: 3 };
    for copy in [with_gaps, line(&host, memory, 0), line(&host[PAGE - 7..][..8], memory, 0)] {
        copy_rows(&mut device, stream, &copy).unwrap_err();
        let found = contents(&mut device, memory, 3 * PAGE);
        same_bytes(&found, &[0; 3 * PAGE], &format!("{copy:?}"));
    }
    drop(device);
    world.check_gone();
}

fn pinned<'a>(engine: &Engine, bytes: usize) -> (&'a mut [u8], *mut c_void) {
    let mut base = std::ptr::null_mut();
    ok((engine.raw.cuMemHostAlloc)(&mut base, bytes, 1));
    // SAFETY: so many bytes were just allocated; the driver has set them on an emulated device.
    unsafe { base.cast::<u8>().write_bytes(0x5A, bytes) };
    // SAFETY: as above, and all are set.
    (unsafe { std::slice::from_raw_parts_mut(base.cast(), bytes) }, base)
}

#[test]
fn rows_in_memory_that_the_engine_pinned_are_read_until_it_is_freed() {
    let world = CudaWorld::new(4);
    let engine = Engine::new(&world);
    let mut device = current_device(&world);
    let memory = device.allocate(10_000, 1).unwrap();
    let (block, base) = pinned(&engine, 10_000);
    block.copy_from_slice(&Pages::noise(4, 10_000));
    // Before somebody asks, nobody knows.
    let early = copy_rows(&mut device, Stream::DEFAULT, &line(block, memory, 0));
    assert!(matches!(early, Err(DeviceError::Failed { .. })), "{early:?}");
    assert_eq!(can_read(&mut device, &block[100..200]), Ok(true));
    copy_rows(&mut device, Stream::DEFAULT, &line(block, memory, 0)).unwrap();
    let copy = RowCopy { source: rows(&block[1..], 300), target: span(memory, 0, 310), row_bytes: 299, row_count: 30 };
    copy_rows(&mut device, Stream::DEFAULT, &copy).unwrap();
    let found = contents(&mut device, memory, 10_000);
    (0..30).for_each(|row| assert_eq!(found[310 * row..][..299], block[1 + 300 * row..][..299]));
    assert_eq!(device.registered_bytes(), 0);
    device.unregister(base.cast()).unwrap_err();
    // It is its owner's, who frees it.
    ok((engine.raw.cuMemFreeHost)(base));
    assert_eq!(device.can_read(base.cast(), 10_000), Ok(false));
    assert_eq!(device.can_read(base.cast(), 1), Ok(false));
    if world.emulated.is_some() {
        assert_eq!(emulated(&world).counts().pageable_copies, 1, "what was read went to a vector");
    }
    drop(device);
    drop(engine);
    world.check_gone();
}

#[test]
fn memory_of_the_device_is_no_memory_of_the_hosts() {
    let world = CudaWorld::new(5);
    let mut device = world.device();
    let memory = device.allocate(1000, 1).unwrap();
    let address = device.address(memory).unwrap() as *const u8;
    assert_eq!(device.can_read(address, 1000), Ok(false));
    drop(device);
    world.check_gone();
}

#[test]
fn a_block_that_others_freed_does_not_hide_a_larger_one_that_took_its_place() {
    let world = CudaWorld::emulated(seeded(6));
    let engine = Engine::new(&world);
    let mut device = current_device(&world);
    let mut host = Pages::noise(6, 16 * PAGE);
    let base = host.as_mut_ptr();
    let small: *mut c_void = base.wrapping_add(PAGE).cast();
    ok((engine.raw.cuMemHostRegister_v2)(small, PAGE, 1));
    assert_eq!(can_read(&mut device, &host[PAGE..2 * PAGE]), Ok(true));
    ok((engine.raw.cuMemHostUnregister)(small));
    ok((engine.raw.cuMemHostRegister_v2)(base.cast(), 16 * PAGE, 1));
    // If it asks the driver for ever, the driver stops answering.
    emulated(&world).fail_call("cuPointerGetAttribute", 100, 1);
    assert_eq!(can_read(&mut device, &host[2 * PAGE..4 * PAGE]), Ok(true));
    let memory = device.allocate(2 * PAGE as u64, 1).unwrap();
    copy_rows(&mut device, Stream::DEFAULT, &line(&host[2 * PAGE..4 * PAGE], memory, 0)).unwrap();
    assert_eq!(contents(&mut device, memory, 2 * PAGE), host[2 * PAGE..4 * PAGE]);
    drop(device);
    ok((engine.raw.cuMemHostUnregister)(base.cast()));
    drop(engine);
    world.check_gone();
}

#[test]
fn memory_that_we_register_where_others_had_theirs_is_cut_by_ours() {
    let world = CudaWorld::emulated(seeded(7));
    let engine = Engine::new(&world);
    let mut device = current_device(&world);
    let mut host = Pages::noise(7, 4 * PAGE);
    let base = host.as_mut_ptr();
    ok((engine.raw.cuMemHostRegister_v2)(base.cast(), 4 * PAGE, 1));
    assert_eq!(can_read(&mut device, &host), Ok(true));
    ok((engine.raw.cuMemHostUnregister)(base.cast()));
    let (one, two) = host.split_at(2 * PAGE);
    register(&mut device, two).unwrap();
    register(&mut device, one).unwrap();
    let memory = device.allocate(4 * PAGE as u64, 1).unwrap();
    copy_rows(&mut device, Stream::DEFAULT, &line(&host, memory, 0)).unwrap();
    assert_eq!(contents(&mut device, memory, 4 * PAGE), host[..]);
    drop(device);
    drop(engine);
    world.check_gone();
}
