//! Device memory: zeroed, aligned, refused with both numbers, the engine's own, and given back.

use ftcache_cuda_emu::client::Config;
use ftcache_testkit::Rng;
use ftcache_transfer::{Device, DeviceError, DeviceSpan, Memory, Stream};

use crate::cuda_world::CudaWorld;
use crate::raw::{Engine, ok};
use crate::support::{
    PAGE, Pages, adopt, contents, copy_rows, current_device, emulated, event_of, held, line, register, same_bytes,
    seeded, stream_of,
};

#[test]
fn memory_is_zeros_also_where_other_memory_was_before() {
    for seed in 0..10 {
        let world = CudaWorld::new(seed);
        let mut device = world.device();
        let host = Pages::noise(seed, 100_000);
        register(&mut device, &host).unwrap();
        for bytes in [1_usize, 2, 255, 256, 257, 4096, 100_000] {
            for alignment in [1, 512] {
                let memory = device.allocate(bytes as u64, alignment).unwrap();
                if let Some(emulated) = &world.emulated {
                    // Zeros already, not only for those who wait.
                    assert_eq!(emulated.peek(memory.0, bytes), vec![0; bytes], "{bytes} bytes, seed {seed}");
                }
                assert_eq!(contents(&mut device, memory, bytes), vec![0; bytes], "{bytes} bytes, seed {seed}");
                copy_rows(&mut device, Stream::DEFAULT, &line(&host[..bytes], memory, 0)).unwrap();
                device.free(memory);
            }
        }
        let empty = device.allocate(0, 1).unwrap();
        device.read(empty, 0, &mut []).unwrap();
        drop(device);
        world.check_gone();
    }
}

#[test]
fn memory_is_aligned_as_asked_and_apart() {
    for seed in 0..10 {
        let world = CudaWorld::new(seed);
        let mut device = world.device();
        let mut rng = Rng::new(seed);
        let mut taken: Vec<(Memory, usize)> = Vec::new();
        for shift in 0..=12 {
            for _ in 0..2 {
                let bytes = 1 + rng.below(6000);
                let memory = device.allocate(bytes, 1 << shift).unwrap();
                assert!(device.address(memory).unwrap().is_multiple_of(1 << shift), "seed {seed}");
                taken.push((memory, bytes as usize));
            }
        }
        let host = Pages::noise(seed, taken.len() * 6000);
        register(&mut device, &host).unwrap();
        let source = |at: usize, bytes: usize| &host[at * 6000..][..bytes];
        for (at, &(memory, bytes)) in taken.iter().enumerate() {
            copy_rows(&mut device, Stream::DEFAULT, &line(source(at, bytes), memory, 0)).unwrap();
        }
        for (at, &(memory, bytes)) in taken.iter().enumerate() {
            let context = format!("seed {seed}, memory {at}");
            same_bytes(&contents(&mut device, memory, bytes), source(at, bytes), &context);
        }
        // Half of it by hand, the rest by dropping the device.
        taken.iter().step_by(2).for_each(|&(memory, _)| device.free(memory));
        drop(device);
        world.check_gone();
    }
}

#[test]
fn out_of_memory_names_what_is_wanted_and_what_is_free() {
    let world = CudaWorld::emulated(Config { memory_bytes: 1000, ..Config::default() });
    let mut device = world.device();
    assert_eq!(device.free_bytes(), Some(1000));
    let first = device.allocate(600, 1).unwrap();
    assert_eq!(device.free_bytes(), Some(400));
    let before = held(emulated(&world));
    for (wanted_bytes, alignment) in [(401, 1), (10, 512), (u64::MAX, 1), (u64::MAX, 4096), (u64::MAX - 4096, 4096)] {
        let refused = device.allocate(wanted_bytes, alignment).unwrap_err();
        assert_eq!(refused, DeviceError::OutOfMemory { wanted_bytes, free_bytes: 400 });
        assert_eq!(held(emulated(&world)), before);
    }
    device.allocate(400, 1).unwrap();
    assert_eq!(device.free_bytes(), Some(0));
    device.free(first);
    assert_eq!(device.free_bytes(), Some(600));
    device.allocate(600, 256).unwrap();
    drop(device);
    world.check_gone();
}

#[test]
fn an_allocation_that_fails_at_any_call_leaves_what_was_there() {
    let world = CudaWorld::emulated(seeded(1));
    let _engine = Engine::new(&world);
    let before = held(emulated(&world));
    let mut device = current_device(&world);
    for after in 0..5 {
        for (call, code) in
            [("cuMemAlloc_v2", 2), ("cuMemAlloc_v2", 999), ("cuMemsetD8Async", 1), ("cuStreamSynchronize", 719)]
        {
            emulated(&world).fail_call(call, after, code);
            let mut taken = Vec::new();
            let refused = loop {
                match device.allocate(300, 1 << (after + 6)) {
                    Ok(memory) => taken.push(memory),
                    Err(error) => break error,
                }
            };
            assert_eq!(taken.len() as u64, after, "{call}");
            assert_eq!(emulated(&world).counts().allocations, after, "{call}");
            match refused {
                DeviceError::OutOfMemory { wanted_bytes: 300, free_bytes } => {
                    assert_eq!((code, Some(free_bytes)), (2, device.free_bytes()));
                }
                DeviceError::Driver { operation, bytes: 300, code: named, reason } => {
                    assert_eq!(operation, if call == "cuMemAlloc_v2" { "allocation" } else { "clear" });
                    assert_eq!(named, code);
                    assert!(reason.contains(&format!("({code})")), "{reason}");
                }
                other => panic!("{call}: {other:?}"),
            }
            taken.into_iter().for_each(|memory| device.free(memory));
        }
    }
    drop(device);
    assert_eq!(held(emulated(&world)), before);
    emulated(&world).check();
}

#[test]
fn memory_of_the_engines_is_zeroed_used_and_never_freed() {
    for seed in 0..5 {
        let world = CudaWorld::new(seed);
        let engine = Engine::new(&world);
        let arena = engine.memory(10_000);
        ok((engine.raw.cuMemsetD8Async)(arena, 0x77, 10_000, 0));
        ok((engine.raw.cuStreamSynchronize)(0));
        let host = Pages::noise(seed, 3000);
        let mut device = current_device(&world);
        register(&mut device, &host).unwrap();
        let memory = adopt(&mut device, arena + 1000, 3000).unwrap();
        assert_eq!(device.address(memory).unwrap(), arena + 1000);
        assert_eq!(contents(&mut device, memory, 3000), [0; 3000]);
        copy_rows(&mut device, Stream::DEFAULT, &line(&host, memory, 0)).unwrap();
        same_bytes(&contents(&mut device, memory, 3000), &host, "adopted");
        let refused = copy_rows(&mut device, Stream::DEFAULT, &line(&host[..2], memory, 2999)).unwrap_err();
        let wanted = DeviceError::OutOfBounds { operation: "row copy", offset: 2999, bytes: 2, memory_bytes: 3000 };
        assert_eq!(refused, wanted);
        device.free(memory);
        assert!(device.address(memory).is_err());
        // The bytes beside it are as the engine left them, and it may be taken again, whole.
        let memory = adopt(&mut device, arena + 4000, 1).unwrap();
        assert_eq!(contents(&mut device, memory, 1), [0]);
        if let Some(emulated) = &world.emulated {
            assert_eq!(emulated.peek(arena, 1000), [0x77; 1000]);
            assert_eq!(emulated.peek(arena + 4001, 5999), [0x77; 5999]);
        }
        device.free(memory);
        adopt(&mut device, arena, 10_000).unwrap();
        drop(device);
        if let Some(emulated) = &world.emulated {
            assert_eq!((emulated.calls("cuMemFree_v2"), emulated.counts().allocations), (0, 1));
        }
        ok((engine.raw.cuMemFree_v2)(arena));
        drop(engine);
        world.check_gone();
    }
}

#[test]
fn memory_that_is_in_use_is_not_taken_a_second_time() {
    let world = CudaWorld::new(0);
    let engine = Engine::new(&world);
    let arena = engine.memory(4000);
    let mut device = current_device(&world);
    let ours = device.allocate(1000, 1).unwrap();
    let adopted = adopt(&mut device, arena + 1000, 1000).unwrap();
    for (base, first) in [(ours.0, ours.0), (adopted.0, arena)] {
        for (from, bytes) in
            [(0_i64, 1000), (0, 1), (999, 1), (1, 10), (999, 1000), (-1000, 1001), (-10, 3000), (-1, 2)]
        {
            let Some(address) = base.checked_add_signed(from).filter(|&address| address >= first) else { continue };
            let refused = adopt(&mut device, address, bytes).unwrap_err();
            let DeviceError::Failed { operation: "adoption", bytes: named, reason } = refused else {
                panic!("{refused:?}")
            };
            assert_eq!(named, bytes);
            assert_eq!(reason, format!("the memory at {address:#x} is in use here"));
        }
    }
    // Up to it and from its end on.
    adopt(&mut device, arena, 1000).unwrap();
    adopt(&mut device, arena + 2000, 2000).unwrap();
    drop(device);
    ok((engine.raw.cuMemFree_v2)(arena));
    drop(engine);
    world.check_gone();
}

#[test]
fn adopting_no_bytes_loses_no_memory_that_begins_there() {
    let world = CudaWorld::emulated(seeded(0));
    let engine = Engine::new(&world);
    let mut device = current_device(&world);
    let memory = device.allocate(1000, 1).unwrap();
    let _ = adopt(&mut device, memory.0, 0);
    assert_eq!(contents(&mut device, memory, 1000), [0; 1000]);
    drop(device);
    assert_eq!(emulated(&world).counts().allocations, 0);
    drop(engine);
}

#[test]
fn freeing_waits_for_what_is_enqueued() {
    for seed in 0..20 {
        let world = CudaWorld::emulated(seeded(seed));
        let engine = Engine::new(&world);
        let arena = engine.memory(PAGE);
        let mut device = current_device(&world);
        let mut host = Pages::noise(seed, PAGE);
        register(&mut device, &host).unwrap();
        let adopted = adopt(&mut device, arena, PAGE as u64).unwrap();
        for is_ours in [true, false] {
            let memory = if is_ours { device.allocate(PAGE as u64, 1).unwrap() } else { adopted };
            let streams = [Stream::DEFAULT, device.create_stream().unwrap(), stream_of(engine.stream(false))];
            let part = PAGE / streams.len();
            for (at, &stream) in streams.iter().enumerate() {
                let copy = line(&host[at * part..][..part], memory, (at * part) as u64);
                copy_rows(&mut device, stream, &copy).unwrap();
            }
            assert_eq!(emulated(&world).counts().queued, 3);
            device.free(memory);
            assert_eq!(emulated(&world).counts().queued, 0, "seed {seed}");
            // Nobody reads the rows any more.
            emulated(&world).host_access(host.as_ptr(), PAGE, true);
            host[0] ^= 1;
        }
        let counts = emulated(&world).counts();
        assert_eq!(counts.allocations, 1, "the engine's");
        device.check().unwrap();
        device.free(adopted);
        device.free(Memory(12));
        drop(device);
        emulated(&world).check();
    }
}

#[test]
fn dropping_a_device_gives_everything_back_that_is_left() {
    let world = CudaWorld::emulated(seeded(2));
    let engine = Engine::new(&world);
    let arena = engine.memory(PAGE);
    let (stream, event) = (engine.stream(true), engine.event());
    let before = held(emulated(&world));
    let host = Pages::noise(2, 2 * PAGE);
    let mut device = current_device(&world);
    let (one, two) = host.split_at(PAGE);
    register(&mut device, one).unwrap();
    register(&mut device, two).unwrap();
    assert_eq!(device.registered_bytes(), 2 * PAGE as u64);
    let memories = [device.allocate(PAGE as u64, 1).unwrap(), adopt(&mut device, arena, PAGE as u64).unwrap()];
    device.allocate(0, 4096).unwrap();
    for memory in memories {
        let ours = device.create_stream().unwrap();
        device.create_event().unwrap();
        copy_rows(&mut device, ours, &line(one, memory, 0)).unwrap();
        device.record(event_of(event), stream_of(stream)).unwrap();
    }
    device.probe_batches(0).unwrap();
    drop(device);
    assert_eq!(held(emulated(&world)), before);
    assert_eq!(emulated(&world).counts().queued, 0);
    // The engine's own are as they were.
    ok((engine.raw.cuStreamSynchronize)(stream));
    assert_eq!(emulated(&world).peek(arena, PAGE), one);
    emulated(&world).check();
}

#[test]
fn bytes_outside_and_memory_of_others_are_refused() {
    let world = CudaWorld::new(0);
    let mut device = world.device();
    let memory = device.allocate(40, 1).unwrap();
    let out = |offset, bytes| DeviceError::OutOfBounds { operation: "read", offset, bytes, memory_bytes: 40 };
    for (offset, bytes) in [(33, 8), (40, 1), (0, 41), (u64::MAX, 8)] {
        let refused = device.read(memory, offset, &mut vec![0; bytes]).unwrap_err();
        assert_eq!(refused, out(offset, bytes as u64));
    }
    device.read(memory, 32, &mut [0; 8]).unwrap();
    device.read(memory, 40, &mut []).unwrap();
    let target = |offset, stride| DeviceSpan { memory, offset, stride };
    for (target, row_bytes, row_count, bytes) in
        [(target(0, 9), 5, 5, 41), (target(1, 9), 4, 5, 40), (target(2, u64::MAX / 2), 2, 4, u64::MAX)]
    {
        let offset = target.offset;
        let refused = device.clear_rows(Stream::DEFAULT, &target, row_bytes, row_count).unwrap_err();
        assert_eq!(refused, DeviceError::OutOfBounds { operation: "clear", offset, bytes, memory_bytes: 40 });
    }
    device.clear_rows(Stream::DEFAULT, &target(0, 9), 4, 5).unwrap();
    let unknown = Memory(memory.0 + 1);
    let wanted = DeviceError::UnknownHandle { what: "memory", handle: unknown.0 };
    assert_eq!(device.address(unknown), Err(wanted.clone()));
    assert_eq!(device.read(unknown, 0, &mut [0]), Err(wanted.clone()));
    let target = DeviceSpan { memory: unknown, offset: 0, stride: 1 };
    assert_eq!(device.clear_rows(Stream::DEFAULT, &target, 1, 1), Err(wanted));
    device.free(memory);
    assert!(device.read(memory, 0, &mut [0]).is_err());
    drop(device);
    world.check_gone();
}
