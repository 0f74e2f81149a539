//! The driver: found, lacking, too old, refusing; and a device that cannot be set up leaves nothing.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::{c_int, c_void};
use std::path::Path;
use std::sync::Arc;

use ftcache_cuda_emu::client::{Config, Counts};
use ftcache_transfer::{CudaContext, CudaDevice, CudaDriver, Device, DriverError};
use insta::assert_snapshot;

use crate::cuda_world::CudaWorld;
use crate::raw::{self, Engine};
use crate::support::{current_device, driver_by, driver_without, emulated, held, seeded, symbol, world_without};

/// What no driver goes without.
pub(crate) const REQUIRED: [&str; 45] = [
    "cuInit",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceGetAttribute",
    "cuDeviceTotalMem_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxGetCurrent",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuCtxGetDevice",
    "cuCtxSynchronize",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemHostGetDevicePointer_v2",
    "cuPointerGetAttribute",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoH_v2",
    "cuMemcpyHtoD_v2",
    "cuMemcpy2DAsync_v2",
    "cuMemsetD8Async",
    "cuMemsetD2D8Async",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuStreamQuery",
    "cuStreamWaitEvent",
    "cuStreamGetCtx",
    "cuStreamIsCapturing",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventQuery",
    "cuThreadExchangeStreamCaptureMode",
    // Not called before all others are known to be there, but looked up first.
    "cuDriverGetVersion",
];

/// What is used where it is there.
pub(crate) const OPTIONAL: [&str; 8] = [
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuModuleGetFunction",
    "cuLaunchKernel",
    "cuStreamWaitValue32_v2",
    "cuStreamWriteValue32_v2",
    "cuMemcpyBatchAsync",
    "cuMemcpyBatchAsync_v2",
];

/// Calls that a driver may refuse, all of which an emulated device counts.
pub(crate) fn calls() -> impl Iterator<Item = &'static str> {
    REQUIRED.into_iter().chain(OPTIONAL)
}

#[test]
fn a_library_that_is_not_there_is_named() {
    let path = Path::new("/nowhere/libcuda.so.1");
    // SAFETY: there is no such library.
    let refused = unsafe { CudaDriver::open_at(path) }.unwrap_err();
    let DriverError::NotFound { reason } = &refused else { panic!("{refused:?}") };
    assert!(reason.contains("/nowhere/libcuda.so.1"), "{reason}");
    assert_eq!(refused.to_string(), format!("no CUDA driver: {reason}"));
}

#[test]
fn nothing_is_asked_for_beyond_the_two_lists() {
    let asked = RefCell::new(BTreeSet::new());
    driver_by(|name| {
        asked.borrow_mut().insert(name);
        symbol(name)
    })
    .unwrap();
    assert_eq!(asked.into_inner(), calls().collect());
}

#[test]
fn a_call_that_is_missing_is_named_whichever_it_is() {
    for missing in REQUIRED.into_iter().filter(|&name| name != "cuDriverGetVersion") {
        let refused = driver_without(&[missing]).unwrap_err();
        assert_eq!(refused, DriverError::MissingSymbol { symbol: missing });
        assert_eq!(refused.to_string(), format!("the CUDA driver has no {missing}"));
    }
}

#[test]
fn calls_of_newer_drivers_may_be_missing_and_the_device_says_what_it_lacks() {
    for missing in OPTIONAL {
        let world = world_without(&[missing], Config::default());
        let mut device = world.device();
        let memory = device.allocate(64, 1).unwrap();
        device.free(memory);
        assert_eq!(device.facts().waits_for_words, !missing.starts_with("cuStreamW"), "without {missing}");
    }
    let world = world_without(&OPTIONAL, Config::default());
    assert!(!world.device().facts().waits_for_words);
}

extern "C" fn version_of_11_3(version: *mut c_int) -> c_int {
    // SAFETY: the device gives room for one number.
    unsafe { version.write(11_030) };
    0
}

extern "C" fn version_of_11_4(version: *mut c_int) -> c_int {
    // SAFETY: as above.
    unsafe { version.write(11_040) };
    0
}

type VersionCall = extern "C" fn(*mut c_int) -> c_int;

fn driver_of_version(call: VersionCall, others: bool) -> Result<Arc<CudaDriver>, DriverError> {
    driver_by(|name| match name {
        "cuDriverGetVersion" => call as *const c_void,
        _ if others => symbol(name),
        _ => std::ptr::null(),
    })
}

#[test]
fn a_driver_that_is_too_old_is_called_old_even_if_it_lacks_calls() {
    for others in [true, false] {
        let refused = driver_of_version(version_of_11_3, others).unwrap_err();
        assert_eq!(refused, DriverError::TooOld { found: 11_030, needed: 11_040 });
        assert_eq!(refused.to_string(), "the CUDA driver is of CUDA 11.3; 11.4 is needed");
    }
    assert_eq!(driver_of_version(version_of_11_4, true).unwrap().version(), 11_040);
    assert_eq!(driver_by(symbol).unwrap().version(), 13_000);
}

extern "C" fn no_device(_flags: u32) -> c_int {
    100
}

extern "C" fn code_that_nobody_knows(_flags: u32) -> c_int {
    12_345
}

#[test]
fn a_driver_that_does_not_start_says_why() {
    let start = |init: extern "C" fn(u32) -> c_int| {
        driver_by(|name| if name == "cuInit" { init as *const c_void } else { symbol(name) }).unwrap_err()
    };
    let refused = start(no_device);
    assert!(matches!(refused, DriverError::Refused { call: "cuInit", code: 100, .. }), "{refused:?}");
    assert_snapshot!(refused, @"cuInit: CUDA_ERROR_NO_DEVICE (100): no CUDA-capable device is detected");
    assert_snapshot!(start(code_that_nobody_knows), @"cuInit: code 12345");
}

#[test]
fn an_ordinal_that_there_is_not_is_named_with_how_many_there_are() {
    let world = CudaWorld::new(0);
    for ordinal in [-1, i32::MIN, i32::MAX] {
        let refused = CudaDevice::new(Arc::clone(&world.driver), CudaContext::Primary(ordinal)).unwrap_err();
        let DriverError::UnknownDevice { ordinal: named, device_count } = refused else { panic!("{refused:?}") };
        assert_eq!(named, ordinal);
        assert!(device_count > world.ordinal);
    }
    let wanted = DriverError::UnknownDevice { ordinal: 4, device_count: 2 };
    assert_snapshot!(wanted, @"no CUDA device 4: there are 2");
}

#[test]
fn a_thread_without_a_context_has_no_engine() {
    let world = CudaWorld::new(0);
    let refused = CudaDevice::new(Arc::clone(&world.driver), CudaContext::Current).unwrap_err();
    assert_eq!(refused, DriverError::NoContext);
    assert_snapshot!(refused, @"this thread has no current CUDA context");
}

#[test]
fn a_device_says_what_it_found() {
    let world = CudaWorld::emulated(Config { memory_bytes: 12 << 20, ..Config::default() });
    let device = world.device();
    let ordinal = world.ordinal;
    let name = format!("ftcache emulated device {ordinal}");
    assert_eq!(device.name(), name);
    assert_eq!((device.facts().ordinal, device.facts().driver_version), (ordinal, 13_000));
    let text = device.facts().to_string().replace(&name, "NAME").replace(&format!("device {ordinal},"), "device N,");
    assert_snapshot!(text.replace(", ", ",\n"), @r"
    NAME (device N,
    compute capability 9.0,
    12582912 bytes),
    driver of CUDA 13.0,
    streams wait for words,
    registers read-only memory
    ");
    drop(device);
    // CAN_USE_64_BIT_STREAM_MEM_OPS and READ_ONLY_HOST_REGISTER_SUPPORTED.
    let world = CudaWorld::emulated(Config { attributes: vec![(122, 0), (113, 0)], ..Config::default() });
    let text = world.device().facts().to_string();
    let (_, text) = text.split_once(", driver ").unwrap();
    assert_snapshot!(text, @"of CUDA 13.0, streams do not wait for words, does not register read-only memory");
}

/// Makes a device, with a fault before. Says how often each call of the driver was made.
fn make_with(is_current: bool, fault: Option<(&'static str, u64)>) -> Vec<(&'static str, u64)> {
    let world = CudaWorld::emulated(seeded(0));
    let engine = is_current.then(|| Engine::new(&world));
    let context = if is_current { CudaContext::Current } else { CudaContext::Primary(world.ordinal) };
    let device = emulated(&world);
    let (before, stack) = (held(device), raw::contexts(raw::of(&world)));
    let starts: Vec<u64> = calls().map(|name| device.calls(name)).collect();
    if let Some((name, after)) = fault {
        device.fail_call(name, after, 999);
    }
    let made = CudaDevice::new(Arc::clone(&world.driver), context);
    let counts = calls().zip(starts).map(|(name, start)| (name, device.calls(name) - start)).collect();
    match (made, fault) {
        (Err(refused), Some((call, _))) => {
            let reason = "CUDA_ERROR_UNKNOWN (999): unknown error".to_owned();
            assert_eq!(refused, DriverError::Refused { call, code: 999, reason });
        }
        (made, fault) => assert_eq!(made.map(|_| fault).unwrap(), None),
    }
    assert_eq!(held(device), before, "{fault:?}");
    assert_eq!(raw::contexts(raw::of(&world)), stack, "{fault:?}");
    device.check();
    drop(engine);
    counts
}

#[test]
fn a_call_that_fails_at_set_up_is_named_and_leaves_nothing() {
    for is_current in [true, false] {
        // The device is dropped again, by which it is left and given back.
        let given_back = ["cuStreamDestroy_v2", "cuDevicePrimaryCtxRelease_v2"];
        let made: Vec<_> = make_with(is_current, None).into_iter().filter(|&(name, _)| name != given_back[0]).collect();
        let total: u64 = made.iter().map(|&(_, count)| count).sum();
        assert!(total >= 10, "{made:?}");
        for (name, count) in made {
            // Counted are a push and a release of the drop, too.
            let count = count - u64::from(name == "cuCtxPushCurrent_v2" && count > 1);
            (0..count).for_each(|after| drop(make_with(is_current, Some((name, after)))));
        }
    }
}

#[test]
fn two_drivers_and_two_devices_of_one_are_apart() {
    let (one, other) = (CudaWorld::emulated(seeded(1)), world_without(&OPTIONAL, seeded(2)));
    let (mut first, mut second) = (one.device(), other.device());
    let third = one.device();
    assert_eq!(emulated(&one).counts().primary_retains, 2);
    let memory = first.allocate(100, 1).unwrap();
    assert!(second.address(memory).is_err());
    assert_eq!(third.address(memory).unwrap_err().to_string(), format!("memory {} is not of this device", memory.0));
    second.allocate(100, 1).unwrap();
    drop((first, third, second));
    one.check_gone();
    other.check_gone();
    assert_eq!(emulated(&other).counts(), Counts { peak_bytes: 100, ..Counts::default() });
    let engine = Engine::new(&one);
    drop(current_device(&one));
    drop(engine);
}
