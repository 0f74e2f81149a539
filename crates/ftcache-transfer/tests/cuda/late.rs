//! Failures: what the driver refuses at once keeps operation, bytes and code; what fails later is told by the next
//! call; and a device that failed can still be dropped.

use ftcache_cuda_emu::client::Counts;
use ftcache_transfer::{CudaDevice, Device, DeviceError, Event, Memory, RowCopy, Stream};
use insta::assert_snapshot;

use crate::cuda_world::CudaWorld;
use crate::raw::Engine;
use crate::support::{
    PAGE, Pages, adopt, can_read, code, contents, copy_all, copy_rows, current_device, emulated, held, line, register,
    rows, seeded, span, tell_host, wait_for_host,
};

const ILLEGAL_ADDRESS: i32 = 700;

struct Fixture {
    device: CudaDevice,
    memory: Memory,
    stream: Stream,
    event: Event,
    host: Pages,
}

impl Fixture {
    fn new(mut device: CudaDevice) -> Self {
        let host = Pages::new(2 * PAGE);
        register(&mut device, &host[..PAGE]).unwrap();
        let memory = device.allocate(PAGE as u64, 1).unwrap();
        let (stream, event) = (device.create_stream().unwrap(), device.create_event().unwrap());
        Self { device, memory, stream, event, host }
    }

    fn copy(&mut self) -> Result<(), DeviceError> {
        copy_rows(&mut self.device, self.stream, &line(&self.host[..PAGE], self.memory, 0))
    }
}

type Call = fn(&mut Fixture) -> Result<(), DeviceError>;

/// Every call that can say that something failed.
const CALLS: &[(&str, Call)] = &[
    ("check", |it| it.device.check()),
    ("allocate", |it| it.device.allocate(1000, 4096).map(|_| ())),
    ("adopt", |it| adopt(&mut it.device, it.memory.0 + PAGE as u64, 8).map(|_| ())),
    ("register", |it| register(&mut it.device, &it.host[PAGE..])),
    ("can_read", |it| can_read(&mut it.device, &it.host[PAGE..]).map(|_| ())),
    ("unregister", |it| it.device.unregister(it.host.as_ptr())),
    ("create_stream", |it| it.device.create_stream().map(|_| ())),
    ("check_stream", |it| it.device.check_stream(it.stream)),
    ("create_event", |it| it.device.create_event().map(|_| ())),
    ("record", |it| it.device.record(it.event, it.stream)),
    ("wait", |it| it.device.wait(it.stream, it.event)),
    ("has_passed", |it| it.device.has_passed(it.event).map(|_| ())),
    ("synchronize", |it| it.device.synchronize(it.stream)),
    ("synchronize_all", |it| it.device.synchronize_all()),
    ("copy_rows", Fixture::copy),
    ("copy_all", |it| {
        let copies = [line(&it.host[..8], it.memory, 0), line(&it.host[..8], it.memory, 8)];
        copy_all(&mut it.device, it.stream, &copies).map_err(|error| {
            assert_eq!(error.index, 0);
            error.source
        })
    }),
    ("clear_rows", |it| it.device.clear_rows(it.stream, &span(it.memory, 0, 12), 10, 4)),
    ("wait_for_host", |it| wait_for_host(&mut it.device, it.stream, it.host.word(0), 0)),
    ("tell_host", |it| tell_host(&mut it.device, it.stream, it.host.word(0), 1)),
    ("read", |it| it.device.read(it.memory, 0, &mut [0; 8])),
];

#[test]
fn what_fails_later_is_told_by_the_next_call_whichever_it_is() {
    let mut silent = Vec::new();
    for (seed, &(name, call)) in CALLS.iter().enumerate() {
        let world = CudaWorld::emulated(seeded(seed as u64));
        let mut it = Fixture::new(world.device());
        emulated(&world).fail_late(0, ILLEGAL_ADDRESS);
        it.copy().unwrap();
        // It is only known once somebody has waited.
        if !["synchronize", "synchronize_all", "unregister", "read"].contains(&name) {
            let told = it.device.synchronize(it.stream).unwrap_err();
            assert_eq!(code(&told), ILLEGAL_ADDRESS);
        }
        match call(&mut it) {
            Ok(()) => silent.push(name),
            Err(told) => assert_eq!(code(&told), ILLEGAL_ADDRESS, "{name}: {told}"),
        }
        assert_eq!(code(&it.device.check().unwrap_err()), ILLEGAL_ADDRESS, "{name}");
        drop(it.device);
        world.check_gone();
    }
    assert!(silent.is_empty(), "{silent:?} say nothing");
}

#[test]
fn check_tells_what_failed_once_the_device_has_come_to_it_and_waits_for_nothing() {
    let world = CudaWorld::emulated(seeded(1));
    let mut it = Fixture::new(world.device());
    emulated(&world).fail_late(1, 719);
    it.copy().unwrap();
    it.copy().unwrap();
    it.device.record(it.event, it.stream).unwrap();
    let before = emulated(&world).blocking_calls();
    let told = loop {
        if let Err(error) = it.device.check() {
            break error;
        }
    };
    assert_eq!(emulated(&world).blocking_calls(), before);
    assert_snapshot!(told, @"earlier operation: CUDA_ERROR_LAUNCH_FAILED (719): unspecified launch failure");
    drop(it.device);
    world.check_gone();
}

#[test]
fn a_device_that_failed_is_dropped_and_a_new_one_works() {
    for seed in 0..10 {
        let world = CudaWorld::emulated(seeded(seed));
        let mut it = Fixture::new(world.device());
        it.device.allocate(10, 4096).unwrap();
        emulated(&world).fail_late(seed % 3, ILLEGAL_ADDRESS);
        (0..4).for_each(|_| it.copy().unwrap());
        if seed % 2 == 0 {
            it.device.synchronize_all().unwrap_err();
        }
        let memory = it.memory;
        it.device.free(memory);
        let stream = it.stream;
        it.device.destroy_stream(stream);
        it.device.destroy_event(it.event);
        drop(it.device);
        world.check_gone();
        let mut device = world.device();
        let memory = device.allocate(10, 1).unwrap();
        assert_eq!(contents(&mut device, memory, 10), [0; 10]);
        drop(device);
        world.check_gone();
        assert_eq!(emulated(&world).counts().primary_retains, 0);
    }
}

#[test]
fn dropping_goes_on_past_calls_that_fail() {
    let fails = ["cuMemHostUnregister", "cuMemFree_v2", "cuEventDestroy_v2", "cuStreamDestroy_v2", "cuCtxSynchronize"];
    for fails in fails {
        for after in 0..3 {
            let world = CudaWorld::emulated(seeded(after));
            let _engine = Engine::new(&world);
            let before = held(emulated(&world));
            let mut it = Fixture::new(current_device(&world));
            register(&mut it.device, &it.host[PAGE..]).unwrap();
            for _ in 0..2 {
                it.device.allocate(10, 1).unwrap();
                it.device.create_event().unwrap();
                it.device.create_stream().unwrap();
            }
            it.copy().unwrap();
            emulated(&world).fail_call(fails, after, 999);
            drop(it.device);
            let after_drop = held(emulated(&world));
            let left = |count: fn(&Counts) -> u64| count(&after_drop) - count(&before);
            let left = [
                left(|counts| counts.registrations),
                left(|counts| counts.allocations),
                left(|counts| counts.events),
                left(|counts| counts.streams),
            ];
            // What the driver would not take stays, and nothing beside it.
            let wanted = fails_at(fails, after);
            assert_eq!(left, wanted, "{fails}, after {after}");
            emulated(&world).check();
        }
    }
}

/// What is left of registrations, allocations, events and streams if the call fails once, after so many.
fn fails_at(call: &str, after: u64) -> [u64; 4] {
    match call {
        // There are two registrations.
        "cuMemHostUnregister" => [u64::from(after < 2), 0, 0, 0],
        "cuMemFree_v2" => [0, 1, 0, 0],
        "cuEventDestroy_v2" => [0, 0, 1, 0],
        "cuStreamDestroy_v2" => [0, 0, 0, 1],
        _ => [0; 4],
    }
}

#[test]
fn what_could_not_be_told_at_once_is_told_by_the_next_call() {
    let frees: [(&str, &str, Call); 4] = [
        ("cuMemFree_v2", "free of 4096 bytes", |it| {
            it.device.free(it.memory);
            Ok(())
        }),
        ("cuCtxSynchronize", "free of 4096 bytes", |it| {
            it.device.free(it.memory);
            Ok(())
        }),
        ("cuStreamDestroy_v2", "stream", |it| {
            it.device.destroy_stream(it.stream);
            Ok(())
        }),
        ("cuEventDestroy_v2", "event", |it| {
            it.device.destroy_event(it.event);
            Ok(())
        }),
    ];
    let next: [(&str, Call); 9] = [
        ("check", |it| it.device.check()),
        ("allocate", |it| it.device.allocate(1, 1).map(|_| ())),
        ("create_stream", |it| it.device.create_stream().map(|_| ())),
        ("synchronize", |it| it.device.synchronize(Stream::DEFAULT)),
        ("synchronize_all", |it| it.device.synchronize_all()),
        ("register", |it| register(&mut it.device, &it.host[PAGE..])),
        ("can_read", |it| can_read(&mut it.device, &it.host).map(|_| ())),
        ("has_passed", |it| {
            // It may be the one that is gone.
            let event = it.device.create_event()?;
            it.device.has_passed(event).map(|_| ())
        }),
        ("probe_batches", |it| it.device.probe_batches(0).map(|_| ())),
    ];
    for (call, operation, give_back) in frees {
        for (name, next) in next {
            let world = CudaWorld::emulated(seeded(0));
            let mut it = Fixture::new(world.device());
            emulated(&world).fail_call(call, 0, 999);
            give_back(&mut it).unwrap();
            let told = next(&mut it).map(|()| name).expect_err(name);
            assert_eq!(told.to_string(), format!("{operation}: CUDA_ERROR_UNKNOWN (999): unknown error"), "{name}");
            // Told once; and what was refused for it goes now.
            next(&mut it).unwrap_or_else(|error| panic!("{name}: {error}"));
            drop(it.device);
            world.check_gone();
        }
    }
}

#[test]
fn unregistering_tells_what_could_not_be_told_before_and_is_done() {
    let world = CudaWorld::emulated(seeded(3));
    let mut it = Fixture::new(world.device());
    emulated(&world).fail_call("cuMemFree_v2", 0, 999);
    it.device.free(it.memory);
    let told = it.device.unregister(it.host.as_ptr());
    assert_eq!((emulated(&world).counts().registrations, it.device.registered_bytes()), (0, 0));
    assert_eq!(code(&told.unwrap_err()), 999);
    it.device.check().unwrap();
    drop(it.device);
    world.check_gone();
}

#[test]
fn errors_keep_the_operation_its_bytes_and_the_code() {
    let world = CudaWorld::emulated(seeded(2));
    let mut it = Fixture::new(world.device());
    let refused = |call: &str, code: i32| emulated(&world).fail_call(call, 0, code);
    let gaps = RowCopy { source: rows(&it.host, 20), target: span(it.memory, 0, 30), row_bytes: 10, row_count: 7 };
    let on_device = RowCopy { source: span(it.memory, 2000, 10).into(), row_count: 1, ..gaps };
    let mut texts = Vec::new();
    let mut note = |outcome: Result<(), DeviceError>| texts.push(outcome.unwrap_err().to_string());
    refused("cuMemcpyHtoDAsync_v2", 700);
    note(it.copy());
    refused("cuMemcpy2DAsync_v2", 1);
    note(copy_rows(&mut it.device, it.stream, &gaps));
    refused("cuMemcpyDtoDAsync_v2", 719);
    note(copy_rows(&mut it.device, it.stream, &on_device));
    refused("cuMemsetD8Async", 4242);
    note(it.device.clear_rows(it.stream, &span(it.memory, 0, 10), 10, 3));
    refused("cuMemsetD2D8Async", 999);
    note(it.device.clear_rows(it.stream, &span(it.memory, 0, 11), 10, 3));
    refused("cuMemcpyDtoH_v2", 999);
    note(it.device.read(it.memory, 0, &mut [0; 33]));
    refused("cuMemAlloc_v2", 999);
    note(it.device.allocate(55, 1).map(|_| ()));
    refused("cuStreamWaitValue32_v2", 999);
    note(wait_for_host(&mut it.device, it.stream, it.host.word(0), 0));
    refused("cuStreamWriteValue32_v2", 999);
    note(tell_host(&mut it.device, it.stream, it.host.word(0), 0));
    refused("cuCtxPushCurrent_v2", 201);
    note(it.device.check());
    for call in ["cuStreamCreate", "cuEventCreate", "cuEventRecord", "cuStreamWaitEvent", "cuEventQuery"] {
        refused(call, 999);
    }
    note(it.device.create_stream().map(|_| ()));
    note(it.device.create_event().map(|_| ()));
    note(it.device.record(it.event, it.stream));
    note(it.device.wait(it.stream, it.event));
    note(it.device.has_passed(it.event).map(|_| ()));
    assert_snapshot!(texts.join("\n"), @r"
    row copy of 4096 bytes: CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access was encountered
    row copy of 70 bytes: CUDA_ERROR_INVALID_VALUE (1): invalid argument
    row copy of 10 bytes: CUDA_ERROR_LAUNCH_FAILED (719): unspecified launch failure
    clear of 30 bytes: code 4242
    clear of 30 bytes: CUDA_ERROR_UNKNOWN (999): unknown error
    read of 33 bytes: CUDA_ERROR_UNKNOWN (999): unknown error
    allocation of 55 bytes: CUDA_ERROR_UNKNOWN (999): unknown error
    word of 4 bytes: CUDA_ERROR_UNKNOWN (999): unknown error
    word of 4 bytes: CUDA_ERROR_UNKNOWN (999): unknown error
    context push: CUDA_ERROR_INVALID_CONTEXT (201): invalid device context
    stream: CUDA_ERROR_UNKNOWN (999): unknown error
    event: CUDA_ERROR_UNKNOWN (999): unknown error
    record: CUDA_ERROR_UNKNOWN (999): unknown error
    wait: CUDA_ERROR_UNKNOWN (999): unknown error
    event: CUDA_ERROR_UNKNOWN (999): unknown error
    ");
    it.device.synchronize_all().unwrap();
    drop(it.device);
    world.check_gone();
}
