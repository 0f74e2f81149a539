//! Host memory: registered, refused, and given up.

use ftcache_cuda_emu::client::Config;
use ftcache_transfer::{Device, DeviceError, HostAccess, RowCopy, Stream};
use insta::assert_snapshot;

use crate::cuda_world::CudaWorld;
use crate::raw::{Engine, ok};
use crate::support::{
    PAGE, Pages, can_read, code, contents, copy_rows, current_device, emulated, line, register, register_as, rows,
    seeded, span,
};

#[repr(align(4096))]
struct Page([u8; 2 * PAGE]);

const fn constants() -> [u8; 2 * PAGE] {
    let mut bytes = [0; 2 * PAGE];
    let mut at = 0;
    while at < bytes.len() {
        bytes[at] = (at % 251) as u8;
        at += 1;
    }
    bytes
}

/// Constants lie where the system maps a program's file read-only.
static CONSTANTS: Page = Page(constants());

#[test]
fn memory_that_is_mapped_read_only_is_registered_to_be_read() {
    let world = CudaWorld::emulated(seeded(1));
    let mut device = world.device();
    let refused = register(&mut device, &CONSTANTS.0).unwrap_err();
    let DeviceError::Driver { operation: "register", bytes: 8192, code: 1, .. } = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(emulated(&world).violations().len(), 1);
    assert_eq!((device.registered_bytes(), can_read(&mut device, &CONSTANTS.0)), (0, Ok(false)));
    register_as(&mut device, &CONSTANTS.0, HostAccess::ReadOnly).unwrap();
    assert_eq!((device.registered_bytes(), can_read(&mut device, &CONSTANTS.0)), (8192, Ok(true)));
    let memory = device.allocate(8192, 1).unwrap();
    let copy =
        RowCopy { source: rows(&CONSTANTS.0[1..], 100), target: span(memory, 3, 77), row_bytes: 50, row_count: 80 };
    copy_rows(&mut device, Stream::DEFAULT, &copy).unwrap();
    let found = contents(&mut device, memory, 8192);
    (0..80).for_each(|row| assert_eq!(found[3 + 77 * row..][..50], CONSTANTS.0[1 + 100 * row..][..50]));
    device.unregister(CONSTANTS.0.as_ptr()).unwrap();
    drop(device);
    world.check_gone();
}

#[test]
fn a_device_that_registers_nothing_read_only_says_so_and_is_not_asked() {
    // READ_ONLY_HOST_REGISTER_SUPPORTED.
    let world = CudaWorld::emulated(Config { attributes: vec![(113, 0)], ..Config::default() });
    let mut device = world.device();
    let refused = register_as(&mut device, &CONSTANTS.0, HostAccess::ReadOnly).unwrap_err();
    assert_snapshot!(refused, @"register of 8192 bytes: this device does not register read-only memory");
    assert_eq!(emulated(&world).calls("cuMemHostRegister_v2"), 0);
    let host = Pages::new(PAGE);
    register(&mut device, &host).unwrap();
    drop(device);
    world.check_gone();
}

#[test]
fn ranges_that_share_a_byte_are_refused_with_both_before_the_driver_is_asked() {
    let world = CudaWorld::new(2);
    let mut device = world.device();
    let host = Pages::new(6 * PAGE);
    register(&mut device, &host[2 * PAGE..4 * PAGE]).unwrap();
    let base = host[2 * PAGE..].as_ptr() as usize;
    for (from, bytes) in [(2, 2), (2, 1), (3, 1), (1, 2), (3, 2), (0, 6), (2, 4), (0, 3)] {
        let part = &host[from * PAGE..][..bytes * PAGE];
        let refused = register(&mut device, part).unwrap_err();
        let DeviceError::Failed { operation: "register", bytes: named, reason } = refused else {
            panic!("{refused:?}")
        };
        assert_eq!(named, part.len() as u64);
        assert_eq!(
            reason,
            format!("8192 bytes at {base:#x} are registered, {:#x} is asked for", part.as_ptr() as usize)
        );
    }
    if world.emulated.is_some() {
        assert_eq!(emulated(&world).calls("cuMemHostRegister_v2"), 1);
    }
    assert_eq!(device.registered_bytes(), 2 * PAGE as u64);
    // Up to it and from its end on.
    register(&mut device, &host[..2 * PAGE]).unwrap();
    register(&mut device, &host[4 * PAGE..]).unwrap();
    assert_eq!(can_read(&mut device, &host), Ok(true));
    drop(device);
    world.check_gone();
}

#[test]
fn what_the_driver_refuses_names_the_bytes_and_keeps_the_data() {
    let world = CudaWorld::emulated(Config { register_limit_bytes: Some(3 * PAGE as u64), ..Config::default() });
    let mut device = world.device();
    let host = Pages::noise(3, 4 * PAGE);
    let copy = host.to_vec();
    let refused = register(&mut device, &host).unwrap_err();
    assert_eq!(code(&refused), 2);
    assert_snapshot!(refused, @"register of 16384 bytes: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory");
    assert_eq!(host[..], copy[..]);
    assert_eq!((device.registered_bytes(), can_read(&mut device, &host)), (0, Ok(false)));
    // In chunks, as far as it goes.
    let reached: Vec<bool> = host.chunks(PAGE).map(|chunk| register(&mut device, chunk).is_ok()).collect();
    assert_eq!(reached, [true, true, true, false]);
    assert_eq!(can_read(&mut device, &host[..3 * PAGE]), Ok(true));
    assert_eq!(can_read(&mut device, &host), Ok(false));
    drop(device);
    world.check_gone();
}

#[test]
fn a_registration_ends_once_and_only_at_its_base() {
    let world = CudaWorld::new(4);
    let mut device = world.device();
    let host = Pages::new(2 * PAGE);
    let unknown = |base: *const u8| DeviceError::UnknownHandle { what: "registration", handle: base as u64 };
    let (base, inside) = (host.as_ptr(), host[PAGE..].as_ptr());
    assert_eq!(device.unregister(base), Err(unknown(base)));
    register(&mut device, &host).unwrap();
    assert_eq!(device.unregister(inside), Err(unknown(inside)));
    device.unregister(base).unwrap();
    assert_eq!(device.unregister(base), Err(unknown(base)));
    assert_eq!((device.registered_bytes(), can_read(&mut device, &host)), (0, Ok(false)));
    register(&mut device, &host[PAGE..]).unwrap();
    register(&mut device, &host[..PAGE]).unwrap();
    device.unregister(inside).unwrap();
    assert_eq!(can_read(&mut device, &host[..PAGE]), Ok(true));
    drop(device);
    world.check_gone();
}

#[test]
fn what_others_registered_is_not_ours_to_unregister() {
    let world = CudaWorld::emulated(seeded(5));
    let engine = Engine::new(&world);
    let mut device = current_device(&world);
    let mut host = Pages::new(PAGE);
    ok((engine.raw.cuMemHostRegister_v2)(host.as_mut_ptr().cast(), PAGE, 1));
    assert_eq!(can_read(&mut device, &host), Ok(true));
    assert_eq!(device.registered_bytes(), 0);
    assert!(device.unregister(host.as_ptr()).is_err());
    drop(device);
    assert_eq!(emulated(&world).counts().registrations, 1);
    ok((engine.raw.cuMemHostUnregister)(host.as_mut_ptr().cast()));
    emulated(&world).check();
}

#[test]
fn unregistering_waits_for_copies_that_read_there() {
    for seed in 0..20 {
        let world = CudaWorld::emulated(seeded(seed));
        let mut device = world.device();
        let mut host = Pages::noise(seed, PAGE);
        register(&mut device, &host).unwrap();
        let memory = device.allocate(2 * PAGE as u64, 1).unwrap();
        let streams = [device.create_stream().unwrap(), Stream::DEFAULT];
        for (at, &stream) in streams.iter().enumerate() {
            copy_rows(&mut device, stream, &line(&host, memory, (at * PAGE) as u64)).unwrap();
        }
        device.unregister(host.as_ptr()).unwrap();
        assert_eq!(emulated(&world).counts().queued, 0, "seed {seed}");
        emulated(&world).host_access(host.as_ptr(), PAGE, true);
        let copy = host.to_vec();
        host.fill(0);
        assert_eq!(contents(&mut device, memory, 2 * PAGE), copy.repeat(2));
        assert!(copy_rows(&mut device, streams[0], &line(&host, memory, 0)).is_err());
        drop(device);
        world.check_gone();
    }
}

#[test]
fn registrations_that_a_failing_device_gives_up_are_gone() {
    let world = CudaWorld::emulated(seeded(6));
    let engine = Engine::new(&world);
    let mut device = current_device(&world);
    let host = Pages::new(PAGE);
    register(&mut device, &host).unwrap();
    emulated(&world).fail_call("cuCtxSynchronize", 0, 999);
    let failed = device.unregister(host.as_ptr()).unwrap_err();
    assert_snapshot!(failed, @"unregister of 4096 bytes: CUDA_ERROR_UNKNOWN (999): unknown error");
    assert_eq!(emulated(&world).counts().registrations, 0);
    assert_eq!(device.registered_bytes(), 0);
    register(&mut device, &host).unwrap();
    drop(device);
    assert_eq!(emulated(&world).counts().registrations, 0);
    drop(engine);
    world.check_gone();
}
