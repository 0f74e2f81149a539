//! Kernels: the image that a device gets, what it lacks, launches in and out of captures, and the calls that go with
//! them: writes and the addresses of host memory.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use ftcache_cuda_emu::client::Config;
use ftcache_testkit::Rng;
use ftcache_transfer::{CudaDevice, Device, DeviceError, Kernel, KernelImage, Launch, Memory, Stream};
use insta::assert_snapshot;

use crate::cuda_world::CudaWorld;
use crate::raw::{Engine, ok};
use crate::support::{
    PAGE, Pages, code, contents, current_device, driver_by, emulated, held, register, same_bytes, seeded, span,
    stream_of, symbol, world_without,
};

/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR` and `_MINOR`.
fn of_capability(major: i32, minor: i32) -> Config {
    Config { attributes: vec![(75, major), (76, minor)], ..Config::default() }
}

const NEEDED: [&str; 4] = ["cuModuleLoadData", "cuModuleUnload", "cuModuleGetFunction", "cuLaunchKernel"];

fn image(device: &CudaDevice) -> String {
    device.kernel_image().expect("kernels are loaded").to_string()
}

/// Why there are no kernels, without the device's name.
fn lack(error: &DeviceError) -> &str {
    let DeviceError::NoKernels { device, reason } = error else { panic!("{error:?}") };
    assert!(device.starts_with("ftcache emulated device "), "{device}");
    assert_eq!(error.to_string(), format!("no kernels on {device}: {reason}"));
    reason
}

// Images.

#[test]
fn a_device_gets_machine_code_of_its_major_capability_or_else_ptx() {
    let choices = [
        (8, 0, "machine code for sm_80"),
        (8, 6, "machine code for sm_86"),
        (8, 7, "machine code for sm_86"),
        (8, 9, "machine code for sm_89"),
        (9, 0, "machine code for sm_90"),
        (10, 0, "machine code for sm_100"),
        (10, 3, "machine code for sm_100"),
        (11, 0, "PTX, compiled by the driver, since there is no machine code for compute capability 11.0"),
        (12, 0, "machine code for sm_120"),
        (12, 1, "machine code for sm_120"),
    ];
    for (major, minor, wanted) in choices {
        let world = CudaWorld::emulated(of_capability(major, minor));
        let mut device = world.device();
        assert_eq!(device.kernel_image(), None);
        // Once, however often it is asked for.
        for _ in 0..3 {
            device.prepare_kernels().unwrap();
            assert_eq!(image(&device), wanted);
        }
        assert_eq!(emulated(&world).calls("cuModuleLoadData"), 1);
        assert_eq!(emulated(&world).counts().modules, 1);
        drop(device);
        assert_eq!(emulated(&world).calls("cuModuleUnload"), 1);
        world.check_gone();
    }
}

#[test]
fn a_device_that_is_older_than_any_image_says_so() {
    for (major, minor) in [(7, 5), (7, 9), (5, 2)] {
        let world = CudaWorld::emulated(of_capability(major, minor));
        let mut device = world.device();
        let refused = device.prepare_kernels().unwrap_err();
        assert_eq!(lack(&refused), "8.0 is needed");
        assert!(refused.to_string().contains(&format!("(compute capability {major}.{minor})")), "{refused}");
        assert_eq!((device.kernel_image(), emulated(&world).calls("cuModuleLoadData")), (None, 0));
        drop(device);
        world.check_gone();
    }
}

#[test]
fn a_driver_that_lacks_a_call_is_a_device_that_only_copies() {
    for missing in NEEDED {
        let world = world_without(&[missing], seeded(0));
        let mut device = world.device();
        assert_eq!(lack(&device.prepare_kernels().unwrap_err()), format!("the CUDA driver has no {missing}"));
        let memory = device.allocate(64, 1).unwrap();
        assert_eq!(contents(&mut device, memory, 64), [0; 64]);
        drop(device);
        world.check_gone();
    }
}

type LoadCall = extern "C" fn(*mut c_void, *const c_char) -> c_int;

const ELF: &[u8] = b"\x7FELF";

fn starts_as_elf(image: *const c_char) -> bool {
    // SAFETY: images have more bytes than this.
    unsafe { std::slice::from_raw_parts(image.cast::<u8>(), ELF.len()) == ELF }
}

/// Not supported.
const REFUSED: c_int = 801;

extern "C" fn load_text_only(module: *mut c_void, image: *const c_char) -> c_int {
    if starts_as_elf(image) {
        return REFUSED;
    }
    // SAFETY: the emulated driver's call has this type.
    let load = unsafe { std::mem::transmute::<*const c_void, LoadCall>(symbol("cuModuleLoadData")) };
    load(module, image)
}

extern "C" fn version_of_12_4(version: *mut c_int) -> c_int {
    // SAFETY: the device gives room for one number.
    unsafe { version.write(12_040) };
    0
}

/// A world whose driver has one call replaced.
fn world_with(call: &'static str, replacement: *const c_void, config: Config) -> CudaWorld {
    let driver = driver_by(|name| if name == call { replacement } else { symbol(name) });
    CudaWorld { driver: driver.expect("a driver that will do"), ..CudaWorld::emulated(config) }
}

#[test]
fn a_driver_that_refuses_machine_code_gets_ptx() {
    let world = world_with("cuModuleLoadData", load_text_only as *const c_void, of_capability(8, 9));
    let mut device = world.device();
    device.prepare_kernels().unwrap();
    assert!(matches!(device.kernel_image(), Some(KernelImage::Ptx { .. })));
    assert_snapshot!(image(&device).replace(", ", ",\n"), @"
    PTX,
    compiled by the driver,
    since it refused sm_89: CUDA_ERROR_NOT_SUPPORTED (801): operation not supported
    ");
    drop(device);
    world.check_gone();
}

#[test]
fn a_driver_that_is_too_old_for_any_image_is_told_of_with_all_its_reasons() {
    let reasons = [(9, 0), (11, 0)].map(|(major, minor)| {
        let config = Config { driver_version: 12_040, ..of_capability(major, minor) };
        let world = world_with("cuDriverGetVersion", version_of_12_4 as *const c_void, config);
        let mut device = world.device();
        let refused = device.prepare_kernels().unwrap_err();
        assert_eq!(device.kernel_image(), None);
        drop(device);
        world.check_gone();
        lack(&refused).replace("; ", ";\n")
    });
    assert_snapshot!(reasons.join("\n\n"), @"
    the driver is of CUDA 12.4, and one of CUDA 13.0 is needed;
    sm_90: CUDA_ERROR_INVALID_IMAGE (200): device kernel image is invalid;
    PTX: CUDA_ERROR_UNSUPPORTED_PTX_VERSION (222): the provided PTX was compiled with an unsupported toolchain

    the driver is of CUDA 12.4, and one of CUDA 13.0 is needed;
    PTX: CUDA_ERROR_UNSUPPORTED_PTX_VERSION (222): the provided PTX was compiled with an unsupported toolchain
    ");
}

type FunctionCall = extern "C" fn(*mut c_void, *mut c_void, *const c_char) -> c_int;

extern "C" fn function_but_reset(function: *mut c_void, module: *mut c_void, name: *const c_char) -> c_int {
    // SAFETY: names are given ended by zero.
    if unsafe { CStr::from_ptr(name) } == c"ftcache_reset" {
        return 500;
    }
    // SAFETY: the emulated driver's call has this type.
    let find = unsafe { std::mem::transmute::<*const c_void, FunctionCall>(symbol("cuModuleGetFunction")) };
    find(function, module, name)
}

#[test]
fn a_kernel_that_an_image_lacks_is_named_and_nothing_stays_loaded() {
    let world = world_with("cuModuleGetFunction", function_but_reset as *const c_void, seeded(0));
    let mut device = world.device();
    for _ in 0..2 {
        let refused = device.prepare_kernels().unwrap_err();
        let text = "kernel ftcache_reset: CUDA_ERROR_NOT_FOUND (500): named symbol not found";
        assert_eq!(refused.to_string(), text);
        assert_eq!((device.kernel_image(), emulated(&world).counts().modules), (None, 0));
    }
    drop(device);
    world.check_gone();
}

#[test]
fn loading_that_fails_at_any_call_leaves_nothing_and_may_be_tried_again() {
    let finds = (0..Kernel::ALL.len() as u64).map(|after| ("cuModuleGetFunction", after));
    for (call, after) in [("cuModuleLoadData", 0)].into_iter().chain(finds) {
        for failure in [2, 719, 999] {
            let world = CudaWorld::emulated(seeded(after));
            let mut device = world.device();
            let before = held(emulated(&world));
            emulated(&world).fail_call(call, after, failure);
            let refused = device.prepare_kernels().unwrap_err();
            assert_eq!(code(&refused), failure, "{call} after {after}");
            let DeviceError::Driver { operation, bytes, .. } = refused else { unreachable!("it has a code") };
            match call {
                "cuModuleLoadData" => assert!(operation == "kernels" && bytes > 0, "{refused}"),
                _ => {
                    let kernel = format!("kernel {}", Kernel::ALL[after as usize].symbol());
                    assert_eq!((operation, bytes), (kernel.as_str(), 0));
                }
            }
            assert_eq!((device.kernel_image(), held(emulated(&world))), (None, before), "{call} after {after}");
            device.prepare_kernels().unwrap();
            assert_eq!(image(&device), "machine code for sm_90");
            drop(device);
            world.check_gone();
        }
    }
}

// Launches.

/// Rows to be zeroed: address, stride, bytes of a row, number of rows.
type ZeroSpan = [u64; 4];

/// `Zero` of `kernels/abi.h`, as the host lays it out: of no cache.
fn zero_arguments(spans: &[ZeroSpan]) -> Vec<u8> {
    let mut words = [0_u64; 32 * 4 + 5];
    words[..4 * spans.len()].copy_from_slice(spans.as_flattened());
    words[128] = u64::from_le_bytes(std::array::from_fn(|at| if at == 0 { spans.len() as u8 } else { 0 }));
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn launch(device: &mut CudaDevice, stream: Stream, launch: &Launch<'_>) -> Result<(), DeviceError> {
    // SAFETY: tests give spans in memory of the device, which stays until it is dropped, and drop graphs before that.
    unsafe { device.launch(stream, launch) }
}

fn zeroing(arguments: &[u8]) -> Launch<'_> {
    Launch { kernel: Kernel::Zero, block_count: 3, thread_count: 64, shared_bytes: 0, arguments }
}

const BYTES: usize = 10_000;

/// Memory full of noise, and the noise.
fn noisy(device: &mut CudaDevice, seed: u64) -> (Memory, Vec<u8>) {
    let memory = device.allocate(BYTES as u64, 256).unwrap();
    let noise = Pages::noise(seed, BYTES).to_vec();
    device.write(memory, 0, &noise).unwrap();
    (memory, noise)
}

/// Spans without a byte in common, each in a part of its own.
fn draw_spans(rng: &mut Rng, base: u64, image: &mut [u8]) -> Vec<ZeroSpan> {
    let count = 1 + rng.below(8);
    let part = BYTES as u64 / count;
    let mut spans = Vec::new();
    for index in 0..count {
        let (row_bytes, row_count) = (rng.below(120), rng.below(5));
        let stride = row_bytes + rng.below(80);
        let room = part - (row_count.max(1) * stride).max(row_bytes);
        let first = index * part + rng.below(room + 1);
        for row in 0..row_count {
            image[(first + row * stride) as usize..][..row_bytes as usize].fill(0);
        }
        spans.push([base + first, stride, row_bytes, row_count]);
    }
    spans
}

#[test]
fn a_kernel_does_what_its_arguments_say_in_the_order_of_its_stream() {
    for seed in 0..60 {
        let world = CudaWorld::new(seed);
        let mut rng = Rng::new(seed);
        let mut device = world.device();
        device.prepare_kernels().unwrap();
        let (memory, mut image) = noisy(&mut device, seed);
        let stream = device.create_stream().unwrap();
        let address = device.address(memory).unwrap();
        for _ in 0..3 {
            let arguments = zero_arguments(&draw_spans(&mut rng, address, &mut image));
            let shape = zeroing(&arguments);
            let (block_count, thread_count) = (1 + rng.below(5) as u32, 32 * (1 + rng.below(4) as u32));
            launch(&mut device, stream, &Launch { block_count, thread_count, ..shape }).unwrap();
        }
        // The arguments are gone; what they said was taken at the launch.
        device.synchronize(stream).unwrap();
        same_bytes(&contents(&mut device, memory, BYTES), &image, &format!("seed {seed}"));
        drop(device);
        world.check_gone();
    }
}

#[test]
fn a_launch_before_kernels_are_prepared_is_refused_and_enqueues_nothing() {
    let world = CudaWorld::new(1);
    let mut device = world.device();
    let (memory, noise) = noisy(&mut device, 1);
    let arguments = zero_arguments(&[[device.address(memory).unwrap(), 1, 1, BYTES as u64]]);
    let refused = launch(&mut device, Stream::DEFAULT, &zeroing(&arguments)).unwrap_err();
    assert_snapshot!(refused, @"kernel ftcache_zero: kernels are not prepared");
    device.prepare_kernels().unwrap();
    for length in [0, 8, arguments.len() - 8] {
        let refused = launch(&mut device, Stream::DEFAULT, &zeroing(&arguments[..length])).unwrap_err();
        let DeviceError::Failed { operation: "kernel ftcache_zero", bytes, reason } = refused else {
            panic!("{refused:?}")
        };
        assert_eq!((bytes, reason.as_str()), (length as u64, "its arguments have 1064 bytes"));
    }
    if let Some(emulated) = &world.emulated {
        assert_eq!((emulated.calls("cuLaunchKernel"), emulated.counts().queued), (0, 0));
    }
    same_bytes(&contents(&mut device, memory, BYTES), &noise, "nothing ran");
    drop(device);
    world.check_gone();
}

#[test]
fn a_launch_that_the_driver_refuses_is_named_after_its_kernel() {
    let world = CudaWorld::emulated(seeded(2));
    let mut device = world.device();
    device.prepare_kernels().unwrap();
    let arguments = zero_arguments(&[]);
    emulated(&world).fail_call("cuLaunchKernel", 0, 999);
    let refused = launch(&mut device, Stream::DEFAULT, &zeroing(&arguments)).unwrap_err();
    assert_snapshot!(refused, @"kernel ftcache_zero: CUDA_ERROR_UNKNOWN (999): unknown error");
    launch(&mut device, Stream::DEFAULT, &zeroing(&arguments)).unwrap();
    drop(device);
    world.check_gone();
}

#[test]
fn launches_records_and_waits_are_captured_and_done_at_every_replay() {
    for seed in 0..20 {
        let world = CudaWorld::new(seed);
        let engine = Engine::new(&world);
        let mut device = current_device(&world);
        device.prepare_kernels().unwrap();
        let (memory, noise) = noisy(&mut device, seed);
        let address = device.address(memory).unwrap();
        let (main, side) = (stream_of(engine.stream(false)), device.create_stream().unwrap());
        let events = [device.create_event().unwrap(), device.create_event().unwrap()];
        // Main zeroes the first half; behind it, side the second, with main behind that.
        let half = BYTES as u64 / 2;
        let parts = [address, address + half].map(|base| zero_arguments(&[[base, 100, 100, half / 100]]));
        // Others' calls are forbidden to this thread while it captures, and to all: ours are not.
        for mode in [0, 1] {
            ok((engine.raw.cuStreamBeginCapture_v2)(main.raw(), mode));
            assert_eq!(device.check_stream(main).unwrap_err(), DeviceError::Capturing { stream: main.raw() });
            launch(&mut device, main, &zeroing(&parts[0])).unwrap();
            device.record(events[0], main).unwrap();
            device.wait(side, events[0]).unwrap();
            launch(&mut device, side, &zeroing(&parts[1])).unwrap();
            device.record(events[1], side).unwrap();
            device.wait(main, events[1]).unwrap();
            let (mut graph, mut exec) = (0, 0);
            ok((engine.raw.cuStreamEndCapture)(main.raw(), &mut graph));
            ok((engine.raw.cuGraphInstantiateWithFlags)(&mut exec, graph, 0));
            // Nothing ran, and every replay does.
            same_bytes(&contents(&mut device, memory, BYTES), &noise, "captured");
            for _ in 0..2 {
                ok((engine.raw.cuGraphLaunch)(exec, main.raw()));
                device.synchronize(main).unwrap();
                same_bytes(&contents(&mut device, memory, BYTES), &[0; BYTES], "replayed");
                device.write(memory, 0, &noise).unwrap();
            }
            ok((engine.raw.cuGraphExecDestroy)(exec));
            ok((engine.raw.cuGraphDestroy)(graph));
        }
        drop(device);
        ok((engine.raw.cuStreamDestroy_v2)(main.raw()));
        drop(engine);
        world.check_gone();
    }
}

#[test]
fn a_device_is_dropped_behind_its_kernels() {
    for seed in 0..20 {
        let world = CudaWorld::emulated(seeded(seed));
        let engine = Engine::new(&world);
        let mut device = current_device(&world);
        device.prepare_kernels().unwrap();
        // Memory that the device does not know, and so waits for nobody to free.
        let memory = engine.memory(64);
        let streams = [Stream::DEFAULT, device.create_stream().unwrap()];
        launch(&mut device, streams[seed as usize % 2], &zeroing(&zero_arguments(&[[memory, 1, 1, 64]]))).unwrap();
        assert_eq!(emulated(&world).counts().queued, 1);
        drop(device);
        assert_eq!(emulated(&world).peek(memory, 64), [0; 64]);
        ok((engine.raw.cuMemFree_v2)(memory));
        drop(engine);
        world.check_gone();
    }
}

// Writes.

#[test]
fn what_is_written_is_there_at_once_and_last() {
    for seed in 0..40 {
        let world = CudaWorld::new(seed);
        let mut rng = Rng::new(seed);
        let mut device = world.device();
        let (memory, mut image) = noisy(&mut device, seed);
        let streams = [Stream::DEFAULT, device.create_stream().unwrap(), device.create_stream().unwrap()];
        for round in 0..6 {
            // Behind what is on its way to the same bytes.
            let stream = streams[rng.below(3) as usize];
            device.clear_rows(stream, &span(memory, 0, 100), 100, BYTES as u64 / 100).unwrap();
            image.fill(0);
            let bytes = rng.below(BYTES as u64 + 1) as usize;
            let offset = rng.below((BYTES - bytes) as u64 + 1) as usize;
            let noise = Pages::noise(seed * 100 + round, bytes.max(1));
            device.write(memory, offset as u64, &noise[..bytes]).unwrap();
            image[offset..][..bytes].copy_from_slice(&noise[..bytes]);
            if let Some(emulated) = &world.emulated {
                let address = device.address(memory).unwrap();
                same_bytes(&emulated.peek(address, BYTES), &image, &format!("seed {seed}, without waiting"));
            }
            same_bytes(&contents(&mut device, memory, BYTES), &image, &format!("seed {seed}"));
        }
        drop(device);
        world.check_gone();
    }
}

#[test]
fn writes_outside_the_memory_or_to_none_are_refused() {
    let world = CudaWorld::new(3);
    let mut device = world.device();
    let (memory, noise) = noisy(&mut device, 3);
    let end = BYTES as u64;
    for (offset, bytes) in [(0, BYTES + 1), (end, 1), (end - 3, 4), (end + 1, 0), (u64::MAX, 1), (u64::MAX, 0)] {
        let refused = device.write(memory, offset, &vec![0; bytes]).unwrap_err();
        let bytes = bytes as u64;
        let wanted = DeviceError::OutOfBounds { operation: "write", offset, bytes, memory_bytes: end };
        assert_eq!(refused, wanted);
    }
    device.write(memory, end, &[]).unwrap();
    let other = Memory(memory.0 + 1);
    let unknown = DeviceError::UnknownHandle { what: "memory", handle: other.0 };
    assert_eq!(device.write(other, 0, &[0]), Err(unknown));
    same_bytes(&contents(&mut device, memory, BYTES), &noise, "nothing was written");
    drop(device);
    world.check_gone();
}

#[test]
fn a_write_that_fails_says_so_and_so_does_one_after_a_failure() {
    for (call, operation) in
        [("cuMemcpyHtoD_v2", "write"), ("cuStreamSynchronize", "write"), ("cuCtxSynchronize", "synchronisation")]
    {
        let world = CudaWorld::emulated(seeded(4));
        let mut device = world.device();
        let memory = device.allocate(64, 1).unwrap();
        emulated(&world).fail_call(call, 0, 999);
        let refused = device.write(memory, 0, &[1; 64]).unwrap_err();
        assert_eq!(code(&refused), 999);
        assert!(refused.to_string().starts_with(operation), "{refused}");
        device.write(memory, 0, &[2; 64]).unwrap();
        assert_eq!(contents(&mut device, memory, 64), [2; 64]);
        drop(device);
        world.check_gone();
    }
    let world = CudaWorld::emulated(seeded(4));
    let mut device = world.device();
    let memory = device.allocate(64, 1).unwrap();
    emulated(&world).fail_late(0, 719);
    device.clear_rows(Stream::DEFAULT, &span(memory, 0, 64), 64, 1).unwrap();
    assert_eq!(code(&device.write(memory, 0, &[1; 64]).unwrap_err()), 719);
}

// Addresses.

fn kernel_address(device: &mut CudaDevice, part: &[u8]) -> Result<u64, DeviceError> {
    device.kernel_address(part.as_ptr(), part.len() as u64)
}

#[test]
fn host_memory_has_an_address_for_kernels_where_all_of_it_is_registered() {
    let world = CudaWorld::new(5);
    let mut device = world.device();
    let host = Pages::new(6 * PAGE);
    register(&mut device, &host[..PAGE]).unwrap();
    register(&mut device, &host[PAGE..3 * PAGE]).unwrap();
    register(&mut device, &host[4 * PAGE..]).unwrap();
    let first = kernel_address(&mut device, &host[..PAGE]).unwrap();
    let whole = [(0, 1), (7, PAGE), (PAGE - 1, PAGE), (PAGE, 3 * PAGE), (4 * PAGE, 6 * PAGE), (100, 100)];
    for (from, to) in whole {
        let address = kernel_address(&mut device, &host[from..to]);
        assert!(address.is_ok(), "{from}..{to}: {address:?}");
    }
    if world.emulated.is_some() {
        assert_eq!(first, host.as_ptr() as u64);
        // Registrations that are neighbours for kernels too.
        for (from, to) in [(0, 3 * PAGE), (PAGE - 1, PAGE + 1), (5, 2 * PAGE)] {
            assert_eq!(kernel_address(&mut device, &host[from..to]), Ok(first + from as u64));
        }
    }
    for (from, to) in [(3 * PAGE, 4 * PAGE), (0, 3 * PAGE + 1), (0, 6 * PAGE), (4 * PAGE - 1, 5 * PAGE)] {
        let refused = kernel_address(&mut device, &host[from..to]).unwrap_err();
        let DeviceError::Failed { operation: "kernel address", bytes, reason } = refused else { panic!("{refused:?}") };
        assert_eq!(bytes, (to - from) as u64);
        assert_eq!(reason, format!("the host memory at {:#x} is not registered", host[from..].as_ptr() as usize));
    }
    let past = DeviceError::Failed {
        operation: "kernel address",
        bytes: u64::MAX,
        reason: format!("the host memory at {:#x} is not registered", host.as_ptr() as usize),
    };
    assert_eq!(device.kernel_address(host.as_ptr(), u64::MAX), Err(past));
    // Not after it has ended.
    device.unregister(host.as_ptr()).unwrap();
    assert!(kernel_address(&mut device, &host[..PAGE]).is_err());
    drop(device);
    world.check_gone();
}

/// From here on, host memory is elsewhere for kernels, in one test.
static APART_FROM: AtomicU64 = AtomicU64::new(u64::MAX);
static APART_TO: AtomicU64 = AtomicU64::new(0);

extern "C" fn address_apart(device: *mut u64, host: *mut c_void, _flags: u32) -> c_int {
    let host = host as u64;
    let is_apart = (APART_FROM.load(Ordering::Relaxed)..APART_TO.load(Ordering::Relaxed)).contains(&host);
    // SAFETY: the device gives room for one number.
    unsafe { device.write(host + if is_apart { 1 << 40 } else { 0 }) };
    0
}

#[test]
fn registrations_that_kernels_find_apart_have_no_address_in_common() {
    let world = world_with("cuMemHostGetDevicePointer_v2", address_apart as *const c_void, seeded(6));
    let mut device = world.device();
    let host = Pages::new(3 * PAGE);
    for part in host.chunks(PAGE) {
        register(&mut device, part).unwrap();
    }
    // The one in the middle, so that the first and the last byte are as far apart as they should be.
    let base = host.as_ptr() as u64;
    APART_FROM.store(base + PAGE as u64, Ordering::Relaxed);
    APART_TO.store(base + 2 * PAGE as u64, Ordering::Relaxed);
    for (from, to) in [(0, 3 * PAGE), (0, PAGE + 1), (PAGE - 1, PAGE + 1), (PAGE, 2 * PAGE + 1)] {
        let refused = kernel_address(&mut device, &host[from..to]).unwrap_err();
        let DeviceError::Failed { operation: "kernel address", bytes, reason } = refused else { panic!("{refused:?}") };
        assert_eq!(bytes, (to - from) as u64);
        let next = if from < PAGE { PAGE } else { 2 * PAGE };
        let (at, wanted) = (base + next as u64, (next - from) as u64);
        let apart = if from < PAGE { wanted + (1 << 40) } else { wanted.wrapping_sub(1 << 40) };
        let start = base + from as u64;
        assert_eq!(reason, format!("{at:#x} is {wanted} bytes from {start:#x} for the host and {apart} for kernels"));
    }
    for (part, moved) in [(0, 0), (1, 1 << 40), (2, 0)] {
        let wanted = base + (part * PAGE) as u64 + moved;
        assert_eq!(kernel_address(&mut device, &host[part * PAGE..][..PAGE]), Ok(wanted));
    }
    drop(device);
    world.check_gone();
}

#[test]
fn an_address_that_the_driver_refuses_is_an_error_of_its() {
    let world = CudaWorld::emulated(seeded(7));
    let mut device = world.device();
    let host = Pages::new(PAGE);
    register(&mut device, &host).unwrap();
    for after in 0..2 {
        emulated(&world).fail_call("cuMemHostGetDevicePointer_v2", after, 999);
        let refused = kernel_address(&mut device, &host).unwrap_err();
        let text = "kernel address of 4096 bytes: CUDA_ERROR_UNKNOWN (999): unknown error";
        assert_eq!(refused.to_string(), text);
    }
    assert_eq!(kernel_address(&mut device, &host), Ok(host.as_ptr() as u64));
    drop(device);
    world.check_gone();
}

#[test]
fn memory_that_the_engine_pinned_has_an_address_for_kernels() {
    let world = CudaWorld::new(8);
    let engine = Engine::new(&world);
    let mut device = current_device(&world);
    let mut base = std::ptr::null_mut();
    ok((engine.raw.cuMemHostAlloc)(&mut base, PAGE, 1));
    let address = device.kernel_address(base.cast::<u8>().wrapping_add(8), 100).unwrap();
    if world.emulated.is_some() {
        assert_eq!(address, base as u64 + 8);
    }
    drop(device);
    ok((engine.raw.cuMemFreeHost)(base));
    drop(engine);
    world.check_gone();
}
