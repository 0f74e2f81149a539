//! Devices, contexts, handles, counts and faults.

mod common;

use std::ffi::CStr;

use common::{Rig, driver, ok};
use ftcache_cuda_emu::client::{Config, Emulator};

#[test]
fn a_device_says_what_it_is() {
    let rig = Rig::new(Config { memory_bytes: 1 << 20, attributes: vec![(75, 8)], ..Config::default() });
    let (cu, ordinal) = (rig.cu, rig.device.ordinal());
    let (mut version, mut count, mut device) = (0, 0, -1);
    ok((cu.cuDriverGetVersion)(&mut version));
    ok((cu.cuDeviceGetCount)(&mut count));
    ok((cu.cuDeviceGet)(&mut device, ordinal));
    assert_eq!((version, device), (13000, ordinal));
    assert!(count > ordinal);
    let mut name = [1; 64];
    ok((cu.cuDeviceGetName)(name.as_mut_ptr(), 64, ordinal));
    // SAFETY: the driver has put a zero at the end.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) };
    assert_eq!(name.to_str().unwrap(), format!("ftcache emulated device {ordinal}"));
    let mut total = 0;
    ok((cu.cuDeviceTotalMem_v2)(&mut total, ordinal));
    assert_eq!(total, 1 << 20);
    // Maximum pitch; compute capability, the major one overridden; unified addressing; one that nobody has.
    for (attribute, wanted) in [(11, i32::MAX), (75, 8), (76, 0), (41, 1), (9999, 0)] {
        let mut value = -1;
        ok((cu.cuDeviceGetAttribute)(&mut value, attribute, ordinal));
        assert_eq!(value, wanted, "attribute {attribute}");
    }
    assert_eq!((cu.cuDeviceGet)(&mut device, 1 << 30), 101);
    assert_eq!((cu.cuDeviceGetAttribute)(std::ptr::null_mut(), 11, ordinal), 1);
    let mut text = std::ptr::null();
    ok((cu.cuGetErrorName)(712, &mut text));
    // SAFETY: a text of the library, for ever.
    let text = unsafe { CStr::from_ptr(text) };
    assert_eq!(text.to_str().unwrap(), "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED");
    let mut text = text.as_ptr();
    assert_eq!((cu.cuGetErrorString)(4711, &mut text), 1);
    assert!(text.is_null());
    rig.device.check();
}

#[test]
fn calls_need_a_current_context() {
    std::thread::spawn(|| {
        let device = Emulator::open().device(Config::default());
        let cu = driver();
        let (mut address, mut context) = (0, 7);
        assert_eq!((cu.cuMemAlloc_v2)(&mut address, 16), 201);
        assert_eq!((cu.cuCtxSynchronize)(), 201);
        ok((cu.cuCtxGetCurrent)(&mut context));
        assert_eq!(context, 0);
        let (mut a, mut b, mut primary) = (0, 0, 0);
        ok((cu.cuCtxCreate_v2)(&mut a, 0, device.ordinal()));
        ok((cu.cuCtxCreate_v2)(&mut b, 0, device.ordinal()));
        ok((cu.cuDevicePrimaryCtxRetain)(&mut primary, device.ordinal()));
        assert_eq!((device.counts().contexts, device.counts().primary_retains), (2, 1));
        ok((cu.cuCtxPushCurrent_v2)(primary));
        let mut popped = Vec::new();
        while (cu.cuCtxPopCurrent_v2)(&mut context) == 0 {
            popped.push(context);
        }
        assert_eq!(popped, [primary, b, a]);
        ok((cu.cuCtxSetCurrent)(a));
        let mut ordinal = -1;
        ok((cu.cuCtxGetDevice)(&mut ordinal));
        assert_eq!(ordinal, device.ordinal());
        ok((cu.cuMemAlloc_v2)(&mut address, 16));
        ok((cu.cuCtxDestroy_v2)(a));
        assert_eq!(device.counts().allocations, 0);
        assert_eq!((cu.cuMemAlloc_v2)(&mut address, 16), 201);
        device.check();
        assert_eq!((cu.cuCtxSetCurrent)(a), 709);
        assert_eq!((cu.cuCtxSetCurrent)(b + 0x1000), 201);
        assert_eq!(device.violations().len(), 2);
    })
    .join()
    .unwrap();
}

#[test]
fn the_primary_context_lives_while_it_is_retained() {
    let rig = Rig::seeded(1);
    let (cu, ordinal) = (rig.cu, rig.device.ordinal());
    let (mut again, mut flags, mut active) = (0, 0, 0);
    ok((cu.cuDevicePrimaryCtxRetain)(&mut again, ordinal));
    assert_eq!(again, rig.context);
    rig.memory(100);
    let stream = rig.stream();
    ok((cu.cuDevicePrimaryCtxRelease_v2)(ordinal));
    assert_eq!(rig.device.counts().streams, 1);
    ok((cu.cuDevicePrimaryCtxRelease_v2)(ordinal));
    ok((cu.cuDevicePrimaryCtxGetState)(ordinal, &mut flags, &mut active));
    let counts = rig.device.counts();
    assert_eq!((active, counts.streams, counts.allocations, counts.primary_retains), (0, 0, 0, 0));
    rig.device.check();
    assert_eq!((cu.cuStreamQuery)(stream), 709);
    assert_eq!((cu.cuDevicePrimaryCtxRelease_v2)(ordinal), 201);
    assert_eq!(rig.device.violations().len(), 2);
}

#[test]
fn stale_and_foreign_handles_are_errors() {
    let (other, rig) = (Rig::seeded(1), Rig::seeded(2));
    ok((rig.cu.cuCtxSetCurrent)(other.context));
    let (foreign_stream, foreign_event) = (other.stream(), other.event());
    ok((rig.cu.cuCtxSetCurrent)(rig.context));
    let (stream, event, stale_stream, stale_event) = (rig.stream(), rig.event(), rig.stream(), rig.event());
    ok((rig.cu.cuStreamDestroy_v2)(stale_stream));
    ok((rig.cu.cuEventDestroy_v2)(stale_event));
    rig.device.check();
    let memory = rig.memory(16);
    for bad in [foreign_stream, stale_stream, event, 0xdead_beef, u64::MAX] {
        assert_eq!((rig.cu.cuMemsetD8Async)(memory, 0, 16, bad), 400);
        assert_eq!((rig.cu.cuStreamSynchronize)(bad), 400);
        assert_eq!((rig.cu.cuEventRecord)(event, bad), 400);
        assert_eq!((rig.cu.cuStreamDestroy_v2)(bad), 400);
        assert_eq!(rig.device.violations().len(), 4, "{bad:#x}");
    }
    for bad in [foreign_event, stale_event, stream, 0, u64::MAX] {
        assert_eq!((rig.cu.cuEventRecord)(bad, stream), 400);
        assert_eq!((rig.cu.cuStreamWaitEvent)(stream, bad, 0), 400);
        assert_eq!((rig.cu.cuEventQuery)(bad), 400);
        assert_eq!((rig.cu.cuEventDestroy_v2)(bad), 400);
        assert_eq!(rig.device.violations().len(), 4, "{bad:#x}");
    }
    drop(other);
    assert_eq!((rig.cu.cuStreamSynchronize)(foreign_stream), 400);
    // A context of a device that is gone.
    let context = { Rig::seeded(3).context };
    assert_eq!((rig.cu.cuMemAlloc_v2)(&mut 0, 1), 201);
    ok((rig.cu.cuCtxSetCurrent)(rig.context));
    assert_eq!((rig.cu.cuCtxSetCurrent)(context), 201);
    assert_eq!(rig.device.violations().len(), 2);
}

#[test]
fn counts_are_what_is_held() {
    let rig = Rig::seeded(1);
    let (a, b) = (rig.memory(1000), rig.memory(24));
    let (stream, event, host) = (rig.stream(), rig.event(), rig.pinned(&[0; 10]));
    ok((rig.cu.cuMemFree_v2)(a));
    let counts = rig.device.counts();
    assert_eq!((counts.allocations, counts.allocated_bytes, counts.peak_bytes), (1, 24, 1024));
    assert_eq!((counts.streams, counts.events, counts.host_allocations, counts.primary_retains), (1, 1, 1, 1));
    assert_eq!((rig.device.calls("cuMemAlloc_v2"), rig.device.calls("cuMemFree_v2")), (2, 1));
    let total = rig.device.calls_total();
    rig.fill(b, 1, 24, stream);
    assert_eq!((rig.device.counts().queued, rig.device.blocking_calls()), (1, 0));
    rig.sync(stream);
    rig.sync(stream);
    assert_eq!((rig.device.counts().queued, rig.device.blocking_calls()), (0, 1));
    assert_eq!(rig.device.calls_total(), total + 3);
    ok((rig.cu.cuMemFree_v2)(b));
    ok((rig.cu.cuMemFreeHost)(host));
    ok((rig.cu.cuStreamDestroy_v2)(stream));
    ok((rig.cu.cuEventDestroy_v2)(event));
    let counts = rig.device.counts();
    assert_eq!((counts.allocations, counts.streams, counts.events, counts.host_allocations), (0, 0, 0, 0));
    rig.device.check();
}

#[test]
fn a_call_fails_once_and_does_nothing() {
    let rig = Rig::seeded(1);
    rig.device.fail_call("cuMemAlloc_v2", 2, 2);
    rig.device.fail_call("cuStreamCreate", 0, 999);
    let codes: Vec<i32> = (0..5).map(|_| (rig.cu.cuMemAlloc_v2)(&mut 0, 8)).collect();
    assert_eq!(codes, [0, 0, 2, 0, 0]);
    assert_eq!(rig.device.counts().allocations, 4);
    assert_eq!((rig.cu.cuStreamCreate)(&mut 0, 1), 999);
    ok((rig.cu.cuStreamCreate)(&mut 0, 1));
    rig.device.check();
}

#[test]
fn a_late_fault_moves_nothing_and_stays() {
    for seed in 0..20 {
        let rig = Rig::seeded(seed);
        let (memory, stream) = (rig.memory(64), rig.stream());
        rig.fill(memory, 1, 64, stream);
        rig.sync(stream);
        rig.device.fail_late(1, 700);
        rig.fill(memory, 2, 64, stream);
        rig.fill(memory, 3, 64, stream);
        rig.fill(memory, 4, 64, stream);
        // Nobody has noticed yet.
        let event = rig.event();
        rig.record(event, stream);
        assert_eq!((rig.cu.cuStreamSynchronize)(stream), 700);
        assert_eq!(rig.device.peek(memory, 64), [2; 64]);
        assert_eq!((rig.cu.cuMemAlloc_v2)(&mut 0, 8), 700);
        assert_eq!((rig.cu.cuEventQuery)(event), 700);
        assert_eq!((rig.cu.cuMemsetD8Async)(memory, 5, 64, stream), 700);
        assert_eq!((rig.cu.cuCtxSynchronize)(), 700);
        assert_eq!(rig.device.counts().queued, 0);
        // The next primary context is a new one.
        ok((rig.cu.cuDevicePrimaryCtxRelease_v2)(rig.device.ordinal()));
        let mut context = 0;
        ok((rig.cu.cuDevicePrimaryCtxRetain)(&mut context, rig.device.ordinal()));
        assert_ne!(context, rig.context);
        ok((rig.cu.cuCtxSetCurrent)(context));
        ok((rig.cu.cuCtxSynchronize)());
        rig.device.check();
    }
}

#[test]
fn two_devices_are_apart_in_two_threads() {
    let run = |seed: u64| {
        move || {
            let rig = Rig::seeded(seed);
            let (memory, stream) = (rig.memory(256), rig.stream());
            for round in 0..100_u8 {
                rig.fill(memory, round, 256, stream);
                rig.sync(stream);
                assert_eq!(rig.device.peek(memory, 256), [round; 256]);
            }
            assert_eq!((rig.device.calls("cuMemsetD8Async"), rig.device.counts().allocations), (100, 1));
            rig.device.check();
        }
    };
    let threads: Vec<_> = (0..2).map(|seed| std::thread::spawn(run(seed))).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn thousands_of_devices_in_a_process() {
    let first = Rig::seeded(0).device.ordinal();
    for seed in 0..2000 {
        let rig = Rig::seeded(seed);
        assert!(rig.device.ordinal() > first);
    }
}

#[test]
#[cfg(target_os = "linux")]
fn the_library_has_the_name_of_the_driver() {
    let library = std::fs::read(Emulator::library_path()).unwrap();
    let name = b"\0libcuda.so.1\0";
    assert!(library.windows(name.len()).any(|bytes| bytes == name));
}
