//! Which images are loaded, which kernels are found, and which launches are refused.

mod common;

use std::ffi::{CString, c_void};

use common::{Rig, ok};
use ftcache_cuda_emu::client::{Config, Emulator};

const MAJOR: i32 = 75;
const MINOR: i32 = 76;

const INVALID_VALUE: i32 = 1;
const INVALID_IMAGE: i32 = 200;
const NO_BINARY_FOR_GPU: i32 = 209;
const UNSUPPORTED_PTX_VERSION: i32 = 222;
const INVALID_HANDLE: i32 = 400;
const NOT_FOUND: i32 = 500;
const CAPTURE_UNSUPPORTED: i32 = 900;

/// An ELF file as the compiler of CUDA 13 or one before makes it, as far as a driver looks before it loads it.
fn cubin(architecture: u32, is_of_13: bool, name: &str) -> Vec<u8> {
    let names = format!("\0.text.{name}\0{name}\0");
    let mut file = vec![0_u8; 64];
    file[..8].copy_from_slice(&[0x7F, b'E', b'L', b'F', 2, 1, 1, if is_of_13 { 0x41 } else { 0x33 }]);
    file[8] = if is_of_13 { 8 } else { 7 };
    file[16] = 2;
    file[18] = 190;
    let flags = if is_of_13 { 0x0600_0004 | architecture << 8 } else { 0x0050_0500 | architecture };
    let table = 64 + names.len().next_multiple_of(8);
    file[40..48].copy_from_slice(&(table as u64).to_le_bytes());
    file[48..52].copy_from_slice(&flags.to_le_bytes());
    file[58] = 64;
    file[60] = 2;
    file.extend(names.as_bytes());
    file.resize(table + 128, 0);
    // One section, of names.
    file[table + 64 + 4] = 3;
    file[table + 64 + 24..][..8].copy_from_slice(&64_u64.to_le_bytes());
    file[table + 64 + 32..][..8].copy_from_slice(&(names.len() as u64).to_le_bytes());
    file
}

fn ptx(version: &str, target: &str, name: &str) -> Vec<u8> {
    format!("// made by hand\n.version {version}\n.target {target}\n.visible .entry {name}(\n)\n\0").into_bytes()
}

fn on(capability: (i32, i32), driver_version: i32) -> Rig {
    let attributes = vec![(MAJOR, capability.0), (MINOR, capability.1)];
    Rig::new(Config { driver_version, attributes, ..Config::default() })
}

fn load(rig: &Rig, image: &[u8]) -> (i32, u64) {
    let mut module = 0;
    let code = (rig.cu.cuModuleLoadData)(&mut module, image.as_ptr().cast());
    (code, module)
}

fn function(rig: &Rig, module: u64, name: &str) -> (i32, u64) {
    let name = CString::new(name).unwrap();
    let mut function = 0;
    let code = (rig.cu.cuModuleGetFunction)(&mut function, module, name.as_ptr());
    (code, function)
}

#[test]
fn machine_code_is_for_its_generation_of_devices() {
    let cases = [
        (80, (8, 0), 0),
        (80, (8, 9), 0),
        (86, (8, 9), 0),
        (89, (8, 6), NO_BINARY_FOR_GPU),
        (80, (9, 0), NO_BINARY_FOR_GPU),
        (90, (9, 0), 0),
        (90, (8, 9), NO_BINARY_FOR_GPU),
        (100, (10, 0), 0),
        (100, (10, 3), 0),
        (120, (10, 0), NO_BINARY_FOR_GPU),
        (120, (12, 0), 0),
        (120, (12, 1), 0),
    ];
    for (architecture, capability, code) in cases {
        for is_of_13 in [true, false] {
            let rig = on(capability, 13_000);
            let image = cubin(architecture, is_of_13, "ftcache_zero");
            assert_eq!(load(&rig, &image).0, code, "{architecture} on {capability:?}, of 13: {is_of_13}");
            rig.device.check();
        }
    }
}

#[test]
fn images_of_cuda_13_want_its_driver() {
    for (version, code) in [(12_090, INVALID_IMAGE), (13_000, 0), (13_010, 0)] {
        let rig = on((9, 0), version);
        assert_eq!(load(&rig, &cubin(90, true, "ftcache_zero")).0, code, "{version}");
        assert_eq!(load(&rig, &cubin(90, false, "ftcache_zero")).0, 0, "{version}");
    }
}

#[test]
fn text_is_for_devices_from_its_own_on_and_for_drivers_that_know_its_version() {
    let cases = [
        ("8.0", "sm_80", (9, 0), 12_000, 0),
        ("8.0", "sm_80", (7, 5), 12_000, UNSUPPORTED_PTX_VERSION),
        ("8.1", "sm_80", (9, 0), 12_000, UNSUPPORTED_PTX_VERSION),
        ("8.7", "sm_80", (12, 0), 12_080, 0),
        ("8.8", "sm_80", (12, 0), 12_080, UNSUPPORTED_PTX_VERSION),
        ("9.0", "sm_80", (12, 0), 12_090, UNSUPPORTED_PTX_VERSION),
        ("9.0", "sm_80", (8, 0), 13_000, 0),
        ("9.0", "sm_90", (8, 9), 13_000, UNSUPPORTED_PTX_VERSION),
        ("9.0", "sm_100", (12, 0), 13_000, 0),
    ];
    for (version, target, capability, driver, code) in cases {
        let rig = on(capability, driver);
        let image = ptx(version, target, "ftcache_zero");
        assert_eq!(load(&rig, &image).0, code, "{version} for {target} on {capability:?} by {driver}");
    }
    // A device's driver may be another one later.
    let rig = on((9, 0), 13_000);
    rig.device.set_driver_version(12_080);
    assert_eq!(load(&rig, &ptx("9.0", "sm_80", "ftcache_zero")).0, UNSUPPORTED_PTX_VERSION);
}

#[test]
fn other_images_are_invalid() {
    let rig = Rig::seeded(1);
    let mut other_machine = cubin(90, true, "ftcache_zero");
    other_machine[18] = 62;
    let mut other_bits = cubin(90, true, "ftcache_zero");
    other_bits[4] = 1;
    let fat = [0x50, 0xED, 0x55, 0xBA, 1, 0, 16, 0];
    let texts: [&[u8]; 5] = [b"\0", b".version 8.0\n\0", b".target sm_80\n\0", b".version x\n.target sm_80\n\0", &fat];
    for image in texts.into_iter().chain([&other_machine[..], &other_bits]) {
        assert_eq!(load(&rig, image), (INVALID_IMAGE, 0), "{image:?}");
    }
    rig.device.check();
}

#[test]
fn kernels_are_found_by_their_whole_names_while_the_module_is_loaded() {
    let rig = Rig::seeded(1);
    let (admit, hybrid) = ("ftcache_admit", "ftcache_admit_hybrid");
    for image in [cubin(90, true, hybrid), ptx("8.0", "sm_80", hybrid)] {
        let (_, module) = load(&rig, &image);
        assert_eq!(function(&rig, module, hybrid).0, 0);
        assert_eq!(function(&rig, module, admit).0, NOT_FOUND, "only another begins so");
        assert_eq!(rig.device.counts().modules, 1);
        ok((rig.cu.cuModuleUnload)(module));
        assert_eq!(rig.device.counts().modules, 0);
    }
    rig.device.check();
    let (_, module) = load(&rig, &ptx("8.0", "sm_80", "some_kernel"));
    assert_eq!(function(&rig, module, "some_kernel").0, NOT_FOUND, "there is no code for it");
    ok((rig.cu.cuModuleUnload)(module));
    assert_eq!((rig.cu.cuModuleUnload)(module), INVALID_HANDLE);
    assert_eq!(function(&rig, module, admit).0, INVALID_HANDLE);
    assert_eq!(rig.device.violations().len(), 2);
    let (_, module) = load(&rig, &ptx("8.0", "sm_80", "emu_test_sum"));
    let (_, kernel) = function(&rig, module, "emu_test_sum");
    let (stream, memory) = (rig.stream(), rig.memory_of(&[0; 64]));
    let args = [memory, memory + 128, 32, 0_u64];
    ok(rig.run(kernel, (1, 32, 0), stream, &args));
    assert_eq!((rig.cu.cuModuleUnload)(module), INVALID_VALUE);
    rig.one_violation("has not been waited for");
    rig.sync(stream);
    ok((rig.cu.cuModuleUnload)(module));
    assert_eq!(rig.run(kernel, (1, 32, 0), stream, &args), INVALID_HANDLE);
    rig.one_violation("no kernel");
}

#[test]
fn a_graph_outlives_no_module() {
    let rig = Rig::seeded(1);
    let (_, module) = load(&rig, &ptx("8.0", "sm_80", "emu_test_sum"));
    let (_, kernel) = function(&rig, module, "emu_test_sum");
    let (stream, memory) = (rig.stream(), rig.memory_of(&[0; 64]));
    let (mut graph, mut exec) = (0, 0);
    ok((rig.cu.cuStreamBeginCapture_v2)(stream, 0));
    ok(rig.run(kernel, (1, 32, 0), stream, &[memory, memory + 128, 32, 0_u64]));
    ok((rig.cu.cuStreamEndCapture)(stream, &mut graph));
    ok((rig.cu.cuGraphInstantiateWithFlags)(&mut exec, graph, 0));
    ok((rig.cu.cuModuleUnload)(module));
    assert_eq!((rig.cu.cuGraphLaunch)(exec, stream), INVALID_HANDLE);
    rig.one_violation("of a module that was unloaded");
}

#[test]
fn launches_that_no_device_takes_are_refused() {
    let rig = Rig::seeded(1);
    let (kernel, stream, memory) = (rig.kernel("emu_test_sum"), rig.stream(), rig.memory_of(&[0; 64]));
    let args = [memory, memory + 128, 32, 0_u64];
    for shape in [(0, 32, 0), (1, 0, 0), (1, 33, 0), (1, 1056, 0), (1, 32, 48 * 1024 + 1)] {
        assert_eq!(rig.run(kernel, shape, stream, &args), INVALID_VALUE, "{shape:?}");
        rig.one_violation("a grid of");
    }
    let (params, none) = ([args.as_ptr().cast::<c_void>()], std::ptr::null());
    let launch = |y, params, extra| (rig.cu.cuLaunchKernel)(kernel, 1, y, 1, 32, 1, 1, 0, stream, params, extra);
    assert_eq!(launch(2, params.as_ptr(), none), INVALID_VALUE);
    assert_eq!(launch(1, std::ptr::null(), none), INVALID_VALUE);
    assert_eq!(launch(1, [std::ptr::null()].as_ptr(), none), INVALID_VALUE);
    assert_eq!(launch(1, params.as_ptr(), params.as_ptr()), INVALID_VALUE);
    assert_eq!(rig.device.violations().len(), 4);
    // Memory that is not there, or in part.
    for wrong in [[memory + 256, memory, 32, 0], [memory, memory, 65, 0], [memory, 0x1000, 32, 0]] {
        assert_eq!(rig.run(kernel, (1, 32, 0), stream, &wrong), INVALID_VALUE);
        rig.one_violation("of emu_test_sum");
    }
    rig.device.fail_call("cuLaunchKernel", 0, 701);
    assert_eq!(rig.run(kernel, (1, 32, 0), stream, &args), 701);
    ok(rig.run(kernel, (1, 32, 0), stream, &args));
    rig.sync(stream);
    rig.device.check();
    // Static and dynamic shared memory together.
    ok(rig.run(kernel, (1, 32, 45 * 1024), stream, &args));
    rig.sync(stream);
    rig.one_violation("bytes of shared memory");
}

#[test]
fn modules_are_not_loaded_while_a_capture_forbids_it() {
    let rig = Rig::seeded(1);
    let stream = rig.stream();
    let image = ptx("8.0", "sm_80", "ftcache_zero");
    for (mode, code) in [(0, CAPTURE_UNSUPPORTED), (1, CAPTURE_UNSUPPORTED), (2, 0)] {
        ok((rig.cu.cuStreamBeginCapture_v2)(stream, mode));
        assert_eq!(load(&rig, &image).0, code, "mode {mode}");
        (rig.cu.cuStreamEndCapture)(stream, &mut 0);
    }
    assert_eq!(rig.device.violations().len(), 2);
    assert_eq!(rig.device.counts().modules, 1);
    ok((rig.cu.cuDevicePrimaryCtxRelease_v2)(rig.device.ordinal()));
    assert_eq!(rig.device.counts().modules, 0, "they end with their context");
}

#[test]
fn the_abi_is_told_in_full() {
    let abi = Emulator::open().abi();
    let value = |name: &str| abi.iter().find(|(known, _)| known == name).map(|(_, value)| *value);
    assert_eq!(value("Entry"), Some(8));
    assert_eq!(value("Entry.source"), Some(4));
    assert_eq!(value("PLACE_LIMIT"), Some(0xFFFF_FFF0));
    assert_eq!(value("WORD_TIMEOUT"), Some(6));
    let mut names: Vec<&String> = abi.iter().map(|(name, _)| name).collect();
    let count = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count, "every name once");
}
