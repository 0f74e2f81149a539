//! Devices made by the environment. Alone in its file: it must be the first to start the driver in its process.

mod common;

use ftcache_cuda_emu::client::Emulator;

#[test]
fn the_environment_makes_devices_if_nobody_else_has() {
    for (name, value) in
        [("FTCACHE_EMU_DEVICES", "3"), ("FTCACHE_EMU_SEED", "5"), ("FTCACHE_EMU_MEMORY_BYTES", "65536")]
    {
        // SAFETY: the only test of this process, and nothing else reads the environment meanwhile.
        unsafe { std::env::set_var(name, value) };
    }
    let library = Emulator::open().library();
    // SAFETY: the driver's symbol with its type.
    let count = unsafe { library.get::<extern "C" fn(*mut i32) -> i32>(b"cuDeviceGetCount\0") }.unwrap();
    let mut devices = -1;
    assert_eq!(count(&mut devices), 3, "the driver is not started yet");
    let cu = common::driver();
    assert_eq!((count(&mut devices), devices), (0, 3));
    let mut bytes = 0;
    assert_eq!(((cu.cuDeviceTotalMem_v2)(&mut bytes, 2), bytes), (0, 65536));
    // Control calls go on from there.
    let device = Emulator::open().device(Default::default());
    assert_eq!(device.ordinal(), 3);
}
