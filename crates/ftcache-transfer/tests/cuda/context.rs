//! The caller's current context is as it was after every call, whether it works or not; and contexts are given back by
//! whoever took them.

use std::sync::atomic::Ordering;

use ftcache_cuda_emu::client::Config;
use ftcache_transfer::{CudaDevice, Device, DeviceError, Event, Kernel, Launch, Memory, RowCopy, Stream};

use crate::cuda_world::CudaWorld;
use crate::driver::calls;
use crate::raw::{self, Engine, ok};
use crate::support::{
    PAGE, Pages, adopt, can_read, contents, copy_all, copy_rows, current_device, emulated, held, line, register, rows,
    seeded, span, tell_host, wait_for_host, world_without,
};

/// Bytes that go in batches, with a probe that measures nothing.
const WIDE: usize = 256 << 10;

/// A device and one of everything that its calls are about.
struct Fixture {
    device: CudaDevice,
    memory: Memory,
    spare: Memory,
    stream: Stream,
    event: Event,
    /// Registered: rows, then a page with words.
    host: Pages,
    /// Not registered.
    other: Pages,
    /// Device memory of the engine's; 0 for none.
    engines: u64,
}

const MEMORY_BYTES: u64 = 3 * WIDE as u64;

impl Fixture {
    fn new(mut device: CudaDevice, engines: u64) -> Self {
        let host = Pages::new(2 * WIDE + PAGE);
        let other = Pages::new(PAGE);
        register(&mut device, &host).unwrap();
        let memory = device.allocate(MEMORY_BYTES, 1).unwrap();
        let spare = device.allocate(100, 1024).unwrap();
        let (stream, event) = (device.create_stream().unwrap(), device.create_event().unwrap());
        host.word(2 * WIDE).store(7, Ordering::Release);
        Self { device, memory, spare, stream, event, host, other, engines }
    }

    fn gaps(&self, row_count: u64) -> RowCopy {
        let target = span(self.memory, 0, 120);
        RowCopy { source: rows(&self.host, 110), target, row_bytes: 100, row_count }
    }
}

type Call = fn(&mut Fixture) -> Result<(), DeviceError>;

/// Every call of the trait, and what the device has beside it.
const CALLS: &[(&str, Call)] = &[
    ("probe_batches", |it| it.device.probe_batches(0).map(|_| ())),
    ("name", |it| {
        it.device.name();
        Ok(())
    }),
    ("free_bytes", |it| it.device.free_bytes().map(|_| ()).ok_or_else(|| it.device.address(Memory(0)).unwrap_err())),
    ("allocate", |it| it.device.allocate(1000, 4096).map(|_| ())),
    ("adopt", |it| match it.engines {
        0 => Ok(()),
        address => adopt(&mut it.device, address, 1000).map(|_| ()),
    }),
    ("free", |it| {
        it.device.free(it.spare);
        Ok(())
    }),
    ("address", |it| it.device.address(it.memory).map(|_| ())),
    ("register", |it| register(&mut it.device, &it.other)),
    ("can_read ours", |it| can_read(&mut it.device, &it.host).map(|_| ())),
    ("can_read others'", |it| can_read(&mut it.device, &it.other).map(|_| ())),
    ("unregister", |it| it.device.unregister(it.host.as_ptr())),
    ("create_stream", |it| it.device.create_stream().map(|_| ())),
    ("destroy_stream", |it| {
        let stream = it.stream;
        it.device.destroy_stream(stream);
        Ok(())
    }),
    ("check_stream", |it| it.device.check_stream(it.stream)),
    ("create_event", |it| it.device.create_event().map(|_| ())),
    ("destroy_event", |it| {
        it.device.destroy_event(it.event);
        Ok(())
    }),
    ("record", |it| it.device.record(it.event, it.stream)),
    ("wait", |it| it.device.wait(it.stream, it.event)),
    ("has_passed", |it| it.device.has_passed(it.event).map(|_| ())),
    ("synchronize", |it| it.device.synchronize(it.stream)),
    ("synchronize_all", |it| it.device.synchronize_all()),
    ("check", |it| it.device.check()),
    ("copy_rows with gaps", |it| {
        let copy = it.gaps(5);
        copy_rows(&mut it.device, it.stream, &copy)
    }),
    ("copy_rows without", |it| {
        let copy = it.gaps(1);
        copy_rows(&mut it.device, it.stream, &copy)
    }),
    ("copy_rows on the device", |it| {
        let source = span(it.memory, 0, 100).into();
        let copy = RowCopy { source, target: span(it.memory, 5000, 120), row_bytes: 100, row_count: 1 };
        copy_rows(&mut it.device, it.stream, &copy)
    }),
    ("copy_all of small rows", |it| {
        let copies = [it.gaps(2), line(&it.host[..7], it.memory, 5000)];
        copy_all(&mut it.device, it.stream, &copies).map_err(|error| error.source)
    }),
    ("copy_all in a batch", |it| {
        it.device.probe_batches(0)?;
        let (one, two) = it.host[..2 * WIDE].split_at(WIDE);
        let copies = [line(one, it.memory, 0), line(two, it.memory, WIDE as u64)];
        copy_all(&mut it.device, it.stream, &copies).map_err(|error| error.source)
    }),
    ("clear_rows without gaps", |it| it.device.clear_rows(it.stream, &span(it.memory, 0, 10), 10, 4)),
    ("clear_rows with gaps", |it| it.device.clear_rows(it.stream, &span(it.memory, 0, 12), 10, 4)),
    ("wait_for_host", |it| wait_for_host(&mut it.device, it.stream, it.host.word(2 * WIDE), 7)),
    ("tell_host", |it| tell_host(&mut it.device, it.stream, it.host.word(2 * WIDE + 4), 9)),
    ("read", |it| it.device.read(it.memory, 1, &mut [0; 77])),
    ("write", |it| it.device.write(it.memory, 1, &[0; 77])),
    ("kernel_address", |it| it.device.kernel_address(it.host.as_ptr(), it.host.len() as u64).map(|_| ())),
    ("prepare_kernels", |it| it.device.prepare_kernels()),
    ("launch", |it| {
        it.device.prepare_kernels()?;
        let arguments = [0; Kernel::Zero.argument_bytes()];
        let (kernel, block_count, thread_count) = (Kernel::Zero, 1, 32);
        let launch = Launch { kernel, block_count, thread_count, shared_bytes: 0, arguments: &arguments };
        // SAFETY: a kernel that is told of no rows touches none.
        unsafe { it.device.launch(it.stream, &launch) }
    }),
];

#[test]
fn no_call_changes_which_context_is_current() {
    let (world, elsewhere) = (CudaWorld::new(3), CudaWorld::new(4));
    let raw = raw::of(&world);
    for is_current in [false, true] {
        let engine = is_current.then(|| Engine::new(&world));
        // None, another device's, or the device's own is current later.
        for other in [None, Some(&elsewhere), Some(&world)] {
            for &(name, call) in CALLS {
                let device = if is_current { current_device(&world) } else { world.device() };
                let engines = engine.as_ref().map_or(0, |engine| engine.memory(1000));
                let other = other.map(Engine::new);
                let stack = raw::contexts(raw);
                assert_eq!(stack.len(), usize::from(is_current) + usize::from(other.is_some()));
                let mut it = Fixture::new(device, engines);
                assert_eq!(raw::contexts(raw), stack, "before {name}");
                call(&mut it).unwrap_or_else(|error| panic!("{name}: {error}"));
                assert_eq!(raw::contexts(raw), stack, "{name}");
                drop(it.device);
                assert_eq!(raw::contexts(raw), stack, "{name}, dropped");
                drop(other);
                if let Some(engine) = &engine {
                    ok((engine.raw.cuMemFree_v2)(engines));
                }
            }
        }
    }
    world.check_gone();
    elsewhere.check_gone();
}

/// Calls by which something is given back: what they refuse stays.
const RELEASES: [&str; 8] = [
    "cuMemFree_v2",
    "cuMemFreeHost",
    "cuMemHostUnregister",
    "cuStreamDestroy_v2",
    "cuEventDestroy_v2",
    "cuModuleUnload",
    "cuDevicePrimaryCtxRelease_v2",
    // Nothing can be given back in a context that cannot be entered.
    "cuCtxPushCurrent_v2",
];

/// Makes a call on a new device of the engine's, with a fault before. Says how often each call of the driver was made.
fn call_with(world: &CudaWorld, engine: &Engine, call: Call, fault: Option<(&str, u64)>) -> Vec<(&'static str, u64)> {
    let device = emulated(world);
    let engines = engine.memory(1000);
    let before = held(device);
    let mut it = Fixture::new(current_device(world), engines);
    let stack = raw::contexts(engine.raw);
    let starts: Vec<u64> = calls().map(|name| device.calls(name)).collect();
    if let Some((name, after)) = fault {
        device.fail_call(name, after, 999);
    }
    // What it says is for others to test.
    let _ = call(&mut it);
    let made = calls().zip(starts).map(|(name, start)| (name, device.calls(name) - start)).collect();
    assert_eq!(raw::contexts(engine.raw), stack, "{fault:?}");
    drop(it.device);
    assert_eq!(raw::contexts(engine.raw), stack, "{fault:?}, dropped");
    if fault.is_none_or(|(name, _)| !RELEASES.contains(&name)) {
        assert_eq!(held(device), before, "{fault:?}");
    }
    device.check();
    made
}

#[test]
fn no_call_that_fails_changes_which_context_is_current_or_leaves_anything_behind() {
    let mut failed = 0;
    for hidden in [&[][..], &["cuStreamWaitValue32_v2", "cuStreamWriteValue32_v2", "cuMemcpyBatchAsync_v2"]] {
        for &(name, call) in CALLS {
            let world = |seed| world_without(hidden, Config { memory_bytes: 16 << 20, ..seeded(seed) });
            let first = world(0);
            let made = call_with(&first, &Engine::new(&first), call, None);
            for (refused, count) in made {
                for after in 0..count {
                    let world = world(failed);
                    eprintln!("{name}, failing at {refused} after {after}");
                    call_with(&world, &Engine::new(&world), call, Some((refused, after)));
                    failed += 1;
                }
            }
        }
    }
    assert!(failed > 200, "only {failed} failures");
}

#[test]
fn devices_in_turn_in_one_thread_do_not_meet() {
    let worlds = [CudaWorld::new(5), CudaWorld::new(6)];
    let mut devices: Vec<Fixture> = worlds.iter().map(|world| Fixture::new(world.device(), 0)).collect();
    for (seed, it) in devices.iter_mut().enumerate() {
        it.host[..4000].copy_from_slice(&Pages::noise(seed as u64, 4000));
    }
    for round in 0..4 {
        for it in &mut devices {
            let at = round * 1000;
            let target = span(it.memory, at, 100);
            let copy = RowCopy { source: rows(&it.host[at as usize..], 100), target, row_bytes: 100, row_count: 10 };
            copy_rows(&mut it.device, it.stream, &copy).unwrap();
            it.device.record(it.event, it.stream).unwrap();
            it.device.wait(it.stream, it.event).unwrap();
            it.device.check_stream(it.stream).unwrap();
        }
    }
    for it in &mut devices {
        let found = contents(&mut it.device, it.memory, 4000);
        assert_eq!(found, it.host[..4000]);
    }
    drop(devices);
    worlds.iter().for_each(CudaWorld::check_gone);
}

#[test]
fn a_device_works_in_the_thread_that_it_is_moved_to() {
    let world = CudaWorld::new(7);
    let host = Pages::noise(3, PAGE);
    let mut device = world.device();
    register(&mut device, &host).unwrap();
    let memory = device.allocate(PAGE as u64, 1).unwrap();
    let stream = device.create_stream().unwrap();
    let raw = raw::of(&world);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            copy_rows(&mut device, stream, &line(&host, memory, 0)).unwrap();
            assert!(raw::contexts(raw).is_empty());
            assert_eq!(contents(&mut device, memory, PAGE), host[..]);
            device.clear_rows(stream, &span(memory, 0, 16), 16, 2).unwrap();
        });
    });
    assert_eq!(contents(&mut device, memory, PAGE)[32..], host[32..]);
    let dropped_there = device;
    std::thread::scope(|scope| {
        scope.spawn(move || drop(dropped_there));
    });
    assert!(raw::contexts(raw).is_empty());
    world.check_gone();
}

#[test]
fn the_engines_context_stays_the_engines() {
    let world = CudaWorld::emulated(seeded(8));
    let raw = raw::of(&world);
    let mut context = 0;
    ok((raw.cuCtxCreate_v2)(&mut context, 0, world.ordinal));
    let mut device = current_device(&world);
    assert_eq!(emulated(&world).counts().primary_retains, 0);
    let memory = device.allocate(100, 1).unwrap();
    device.create_stream().unwrap();
    // Another context is current; the device works in its own.
    let mut popped = 0;
    ok((raw.cuCtxPopCurrent_v2)(&mut popped));
    assert_eq!(popped, context);
    assert_eq!(contents(&mut device, memory, 100), [0; 100]);
    device.allocate(200, 1).unwrap();
    drop(device);
    assert_eq!(emulated(&world).calls("cuDevicePrimaryCtxRelease_v2"), 0);
    assert_eq!(emulated(&world).calls("cuCtxDestroy_v2"), 0);
    let counts = emulated(&world).counts();
    assert_eq!((counts.contexts, counts.allocations, counts.streams), (1, 0, 0));
    ok((raw.cuCtxPushCurrent_v2)(context));
    ok((raw.cuCtxDestroy_v2)(context));
    world.check_gone();
}

#[test]
fn a_primary_context_is_retained_once_and_released_once() {
    let world = CudaWorld::emulated(seeded(9));
    let device = world.device();
    assert_eq!(emulated(&world).counts().primary_retains, 1);
    let other = world.device();
    assert_eq!(emulated(&world).counts().primary_retains, 2);
    drop(device);
    assert_eq!(emulated(&world).counts().primary_retains, 1);
    drop(other);
    world.check_gone();
}
