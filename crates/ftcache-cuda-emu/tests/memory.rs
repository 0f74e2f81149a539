//! Memory of both kinds: bounds, red zones, quarantine, registration, and copies with it.

mod common;

use std::ffi::c_void;
use std::os::fd::AsRawFd;

use common::{Rig, ok};
use ftcache_cuda_emu::client::Config;

const READ_ONLY: u32 = 8;

/// Whole pages of the test's own, aligned to them.
struct Pages {
    address: *mut u8,
    layout: std::alloc::Layout,
}

impl Pages {
    fn new(count: usize) -> Self {
        let layout = std::alloc::Layout::from_size_align(count * 4096, 4096).unwrap();
        // SAFETY: the layout is not of zero bytes.
        let address = unsafe { std::alloc::alloc_zeroed(layout) };
        Self { address, layout }
    }

    fn at(&self, offset: usize) -> *mut c_void {
        self.address.wrapping_add(offset).cast()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: made with this layout.
        unsafe { std::alloc::dealloc(self.address, self.layout) };
    }
}

#[test]
fn memory_has_a_size_an_alignment_and_a_peak() {
    let rig = Rig::new(Config { memory_bytes: 1000, ..Config::default() });
    let (mut free, mut total, mut address) = (0, 0, 0);
    let a = rig.memory(600);
    assert_eq!(a % 256, 0);
    ok((rig.cu.cuMemGetInfo_v2)(&mut free, &mut total));
    assert_eq!((free, total), (400, 1000));
    assert_eq!((rig.cu.cuMemAlloc_v2)(&mut address, 401), 2);
    rig.device.check();
    assert_eq!((rig.cu.cuMemAlloc_v2)(&mut address, 0), 1);
    rig.one_violation("no bytes");
    rig.device.set_memory_bytes(500);
    ok((rig.cu.cuMemGetInfo_v2)(&mut free, &mut total));
    assert_eq!((free, total), (0, 500));
    for bad in [a + 1, a + 600, 0x1000] {
        assert_eq!((rig.cu.cuMemFree_v2)(bad), 1);
        rig.one_violation("not the base");
    }
    ok((rig.cu.cuMemFree_v2)(a));
    ok((rig.cu.cuMemFree_v2)(0));
    assert_eq!((rig.cu.cuMemFree_v2)(a), 1);
    rig.one_violation("not the base");
    assert_eq!((rig.device.counts().allocated_bytes, rig.device.counts().peak_bytes), (0, 600));
}

#[test]
fn fresh_memory_is_a_pattern_of_the_seed() {
    let bytes = |seed| {
        let rig = Rig::seeded(seed);
        rig.device.peek(rig.memory(1000), 1000)
    };
    assert_eq!(bytes(1), bytes(1));
    assert_ne!(bytes(1), bytes(2));
    assert!(bytes(1).iter().all(|byte| *byte != 0));
}

#[test]
fn ranges_lie_in_one_allocation() {
    let (other, rig) = (Rig::seeded(1), Rig::seeded(2));
    ok((rig.cu.cuCtxSetCurrent)(other.context));
    let foreign = other.memory(100);
    ok((rig.cu.cuCtxSetCurrent)(rig.context));
    let (memory, stream, row) = (rig.memory(100), rig.stream(), rig.pinned(&[0; 200]));
    let on_the_stack = [0_u8; 8];
    for (address, bytes) in
        [(memory, 101), (memory + 99, 2), (memory + 100, 1), (foreign, 1), (on_the_stack.as_ptr() as u64, 8)]
    {
        assert_eq!((rig.cu.cuMemcpyHtoDAsync_v2)(address, row, bytes, stream), 1);
        assert_eq!((rig.cu.cuMemcpyDtoHAsync_v2)(row, address, bytes, stream), 1);
        assert_eq!((rig.cu.cuMemcpyDtoDAsync_v2)(address, memory, bytes, stream), 1);
        assert_eq!((rig.cu.cuMemsetD8Async)(address, 0, bytes, stream), 1);
        assert_eq!((rig.cu.cuMemcpyHtoD_v2)(address, row, bytes), 1);
        assert_eq!((rig.cu.cuStreamWriteValue32_v2)(stream, (address + bytes as u64) & !3, 0, 0), 1);
        assert_eq!(rig.device.launch(stream, &[(address, bytes as u64)], &[], || ()), 1);
        assert_eq!(rig.device.violations().len(), 7, "{address:#x}, {bytes}");
    }
    rig.up(memory, row, 100, stream);
    rig.fill(memory + 50, 0, 0, stream);
    rig.sync(stream);
    // Device memory is no host memory, and the other way round.
    assert_eq!((rig.cu.cuMemcpyHtoDAsync_v2)(memory, (memory + 50) as *const c_void, 8, stream), 1);
    rig.one_violation("given as host memory");
    // A copy onto itself.
    ok((rig.cu.cuMemcpyDtoDAsync_v2)(memory, memory + 4, 8, stream));
    rig.one_violation("both source and target");
}

#[test]
fn writes_beside_and_after_are_seen() {
    for at in [-256_i64, -1, 100, 355] {
        let rig = Rig::seeded(9);
        let memory = rig.memory(100);
        rig.device.check();
        let target = memory.wrapping_add_signed(at) as *mut u8;
        // SAFETY: in the red zone, which is memory of the library.
        let byte = unsafe { target.read() };
        // SAFETY: as above.
        unsafe { target.write(!byte) };
        let damage = rig.device.damage();
        assert!(damage.len() == 1 && damage[0].contains(if at < 0 { "before" } else { "after" }), "{at}: {damage:?}");
        ok((rig.cu.cuMemFree_v2)(memory));
        rig.one_violation("red zone");
        assert!(rig.device.damage().is_empty());
    }
    let rig = Rig::seeded(9);
    let memory = rig.memory(100);
    ok((rig.cu.cuMemFree_v2)(memory));
    rig.device.check();
    let late = (memory + 50) as *mut u8;
    // SAFETY: freed memory is kept for a while, for this.
    unsafe { late.write(1) };
    assert!(rig.device.damage()[0].contains("freed memory"));
    // It is looked at once more when it leaves.
    for _ in 0..5 {
        ok((rig.cu.cuMemFree_v2)(rig.memory(1 << 20)));
    }
    rig.one_violation("freed memory");
}

#[test]
fn freeing_waits_for_everything() {
    for seed in 0..30 {
        let rig = Rig::seeded(seed);
        let (a, b, stream) = (rig.memory(8), rig.memory(8), rig.stream());
        rig.fill(a, 1, 8, stream);
        rig.fill(b, 2, 8, stream);
        ok((rig.cu.cuStreamDestroy_v2)(stream));
        assert_eq!(rig.device.counts().queued, 2);
        ok((rig.cu.cuMemFree_v2)(a));
        assert_eq!((rig.device.counts().queued, rig.device.peek(b, 8)), (0, vec![2; 8]));
        assert_eq!(rig.device.blocking_calls(), 1);
        rig.device.check();
    }
}

#[test]
fn registration_has_rules() {
    let rig = Rig::seeded(4);
    let pages = Pages::new(4);
    let register = |offset: usize, bytes: usize, flags| (rig.cu.cuMemHostRegister_v2)(pages.at(offset), bytes, flags);
    ok(register(100, 5000, 3));
    for (offset, bytes) in [(0, 50), (100, 5000), (4096, 1), (5200, 100), (0, 16384)] {
        assert_eq!(register(offset, bytes, 0), 712, "{offset}, {bytes}");
        rig.one_violation("shares a page");
    }
    ok(register(8192, 4096, 0));
    assert_eq!((rig.device.counts().registrations, rig.device.counts().registered_bytes), (2, 9096));
    let mut device = 0;
    ok((rig.cu.cuMemHostGetDevicePointer_v2)(&mut device, pages.at(200), 0));
    assert_eq!(device, pages.at(200) as u64);
    for bad in [101, 0, 4096, 12288] {
        assert_eq!((rig.cu.cuMemHostUnregister)(pages.at(bad)), 713);
        rig.one_violation("not the base");
    }
    assert_eq!((rig.cu.cuMemFreeHost)(pages.at(100)), 1);
    rig.one_violation("not the base");
    ok((rig.cu.cuMemHostUnregister)(pages.at(100)));
    ok(register(100, 5000, 0));
    ok((rig.cu.cuMemHostUnregister)(pages.at(100)));
    ok((rig.cu.cuMemHostUnregister)(pages.at(8192)));
    for (bytes, flags, code) in [(0, 0, 1), (16, 16, 1), (16, 4, 801)] {
        assert_eq!(register(0, bytes, flags), code);
        assert_eq!(rig.device.violations().len(), usize::from(code == 1));
    }
    // Memory that is not there.
    assert_eq!((rig.cu.cuMemHostRegister_v2)(0x1000 as *mut c_void, 16, 0), 1);
    rig.one_violation("Missing");
    let host = rig.pinned(&[0; 16]);
    assert_eq!((rig.cu.cuMemHostRegister_v2)(host, 16, 0), 712);
    assert_eq!((rig.cu.cuMemHostUnregister)(host), 713);
    assert_eq!(rig.device.violations().len(), 2);
    ok((rig.cu.cuMemFreeHost)(host));
}

#[test]
fn a_read_only_mapping_is_registered_as_such() {
    unsafe extern "C" {
        fn mmap(address: *mut c_void, bytes: usize, protection: i32, flags: i32, file: i32, offset: i64)
        -> *mut c_void;
    }
    let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
    // SAFETY: a private, read-only mapping of a file, anywhere; it stays for ever.
    let mapping = unsafe { mmap(std::ptr::null_mut(), 8192, 1, 2, file.as_raw_fd(), 0) };
    let rig = Rig::seeded(4);
    for flags in [0, 1, 2, 3] {
        assert_eq!((rig.cu.cuMemHostRegister_v2)(mapping, 8192, flags), 1);
        rig.one_violation("ReadOnly");
    }
    ok((rig.cu.cuMemHostRegister_v2)(mapping, 8192, READ_ONLY));
    let (memory, stream) = (rig.memory(64), rig.stream());
    rig.up(memory, mapping, 64, stream);
    rig.sync(stream);
    assert_eq!(rig.device.peek(memory, 4), b"\x7fELF");
    rig.device.check();
    for code in [
        (rig.cu.cuMemcpyDtoHAsync_v2)(mapping, memory, 64, stream),
        (rig.cu.cuMemsetD8Async)(mapping as u64, 0, 64, stream),
        (rig.cu.cuStreamWriteValue32_v2)(stream, mapping as u64, 0, 0),
    ] {
        assert_eq!(code, 1);
    }
    assert_eq!(rig.device.violations().len(), 3);
    ok((rig.cu.cuMemHostUnregister)(mapping));
    rig.device.set_attribute(113, 0);
    assert_eq!((rig.cu.cuMemHostRegister_v2)(mapping, 8192, READ_ONLY), 801);
}

#[test]
fn registrations_are_refused_as_asked() {
    let config = Config { register_limit_bytes: Some(8192), register_call_max_bytes: Some(5000), ..Config::default() };
    let pages = Pages::new(4);
    for poisoned in [false, true] {
        let rig = Rig::new(Config { register_poisoned_after_refusal: poisoned, ..config.clone() });
        ok((rig.cu.cuMemHostRegister_v2)(pages.at(0), 4096, 0));
        assert_eq!((rig.cu.cuMemHostRegister_v2)(pages.at(4096), 5001, 0), 2);
        let next = (rig.cu.cuMemHostRegister_v2)(pages.at(4096), 4096, 0);
        assert_eq!(next, if poisoned { 2 } else { 0 });
        assert_eq!((rig.cu.cuMemHostRegister_v2)(pages.at(8192), 4096, 0), 2);
        rig.device.check();
    }
}

#[test]
fn host_ranges_do_not_cross_registrations() {
    let rig = Rig::seeded(4);
    let pages = Pages::new(4);
    ok((rig.cu.cuMemHostRegister_v2)(pages.at(0), 4096, 0));
    ok((rig.cu.cuMemHostRegister_v2)(pages.at(4096), 4096, 0));
    let (memory, stream) = (rig.memory(4096), rig.stream());
    for (offset, bytes) in [(4000, 200), (8191, 2), (4096, 4097)] {
        let bytes = bytes.min(4096);
        let code = (rig.cu.cuMemcpyHtoDAsync_v2)(memory, pages.at(offset), bytes, stream);
        if offset == 4096 {
            ok(code);
            continue;
        }
        assert_eq!(code, 1, "{offset}");
        rig.one_violation("partly registered");
        assert_eq!((rig.cu.cuMemcpyDtoHAsync_v2)(pages.at(offset), memory, bytes, stream), 1);
        rig.one_violation("partly registered");
    }
    assert_eq!(rig.device.counts().pageable_copies, 0);
    rig.sync(stream);
    ok((rig.cu.cuMemHostUnregister)(pages.at(0)));
    ok((rig.cu.cuMemHostUnregister)(pages.at(4096)));
    assert_eq!(rig.device.counts().registered_bytes, 0);
    rig.device.check();
}

#[test]
fn pageable_sources_are_read_at_once_and_targets_are_waited_for() {
    let rig = Rig::seeded(4);
    let (memory, stream) = (rig.memory(64), rig.stream());
    let mut row = vec![3_u8; 64];
    rig.up(memory, row.as_ptr().cast(), 64, stream);
    row.fill(4);
    assert_eq!((rig.device.counts().queued, rig.device.counts().pageable_copies), (1, 1));
    ok((rig.cu.cuMemcpyDtoHAsync_v2)(row.as_mut_ptr().cast(), memory, 64, stream));
    assert_eq!((row, rig.device.counts().queued), (vec![3; 64], 0));
    assert_eq!((rig.device.counts().pageable_copies, rig.device.blocking_calls()), (2, 1));
    // It was waited for, and so known.
    rig.fill(memory, 1, 64, rig.stream());
    rig.device.check();
}

#[test]
fn synchronous_copies_wait_as_the_manual_has_it() {
    for seed in 0..20 {
        let rig = Rig::seeded(seed);
        let (memory, other) = (rig.memory(64), rig.stream());
        let (pinned, back) = (rig.pinned(&[5; 64]), rig.pinned(&[0; 64]));
        ok((rig.cu.cuMemcpyHtoD_v2)(memory, pinned, 64));
        assert_eq!(rig.device.peek(memory, 64), [5; 64]);
        rig.fill(memory, 6, 64, 0);
        ok((rig.cu.cuMemcpyDtoH_v2)(back, memory, 64));
        assert_eq!(rig.host_bytes(back, 64), [6; 64]);
        rig.fill(memory, 7, 64, other);
        rig.sync(other);
        // From pageable memory only the staging is over, and a stream that does not wait for the legacy one is not
        // ordered.
        ok((rig.cu.cuMemcpyHtoD_v2)(memory, [8_u8; 64].as_ptr().cast(), 64));
        ok((rig.cu.cuMemsetD8_v2)(memory + 32, 9, 32));
        rig.device.check();
        rig.across(memory, memory + 32, 32, other);
        // What it reads was copied and filled, what it writes was copied.
        assert_eq!(rig.device.races().len(), 3, "seed {seed}");
    }
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Copy2d {
    source: [usize; 2],
    source_type: u32,
    source_host: usize,
    source_device: u64,
    source_array: usize,
    source_pitch: usize,
    target: [usize; 2],
    target_type: u32,
    target_host: usize,
    target_device: u64,
    target_array: usize,
    target_pitch: usize,
    width: usize,
    height: usize,
}

#[test]
fn rows_are_copied_and_gaps_are_left_alone() {
    let rig = Rig::seeded(4);
    let host: Vec<u8> = (0..200).collect();
    let (pinned, device, a, b) = (rig.pinned(&host), rig.memory(240), rig.stream(), rig.stream());
    rig.fill(device, 0xEE, 240, a);
    rig.sync(a);
    let mut copy = Copy2d {
        source: [2, 1],
        source_type: 1,
        source_host: pinned as usize,
        source_pitch: 20,
        target: [1, 2],
        target_type: 2,
        target_device: device,
        target_pitch: 30,
        width: 7,
        height: 4,
        ..Copy2d::default()
    };
    let call = |copy: &Copy2d| (rig.cu.cuMemcpy2DAsync_v2)(std::ptr::from_ref(copy).cast(), a);
    ok(call(&copy));
    // The gaps are free for others; a byte of a row is not.
    rig.fill(device + 2 * 30 + 8, 1, 23, b);
    ok((rig.cu.cuMemsetD2D8Async)(device + 8, 30, 2, 10, 8, b));
    assert!(rig.device.races().is_empty());
    rig.fill(device + 4 * 30 + 7, 1, 1, b);
    assert_eq!(rig.device.races().len(), 1);
    ok((rig.cu.cuCtxSynchronize)());
    let bytes = rig.device.peek(device, 240);
    for row in 0..4 {
        assert_eq!(bytes[(2 + row) * 30 + 1..][..6], host[(1 + row) * 20 + 2..][..6]);
    }
    assert_eq!(bytes[..8], [0xEE; 8]);
    assert_eq!(bytes[8..18], [2; 10]);
    // Unified, device to host, without gaps.
    let unified = Copy2d {
        source: [0, 0],
        source_type: 4,
        source_device: device,
        source_pitch: 30,
        target: [0, 0],
        target_type: 4,
        target_device: pinned as u64,
        target_pitch: 7,
        ..copy
    };
    ok(call(&unified));
    rig.sync(a);
    let rows: Vec<u8> = (0..4).flat_map(|row| bytes[row * 30..][..7].to_vec()).collect();
    assert_eq!(rig.host_bytes(pinned, 28), rows);
    rig.device.check();
    // Pitches and bounds.
    for (change, words) in [
        (Copy2d { source_pitch: 8, ..copy }, "a pitch of 8"),
        (Copy2d { source_pitch: 0, ..copy }, "a pitch of 0"),
        (Copy2d { target_pitch: 7, ..copy }, "a pitch of 7"),
        (Copy2d { source_pitch: 1 << 31, ..copy }, "a pitch of 2147483648"),
        (Copy2d { target: [1, 5], ..copy }, "past the end"),
        (Copy2d { source_type: 3, ..copy }, "memory type 3"),
        (Copy2d { source_type: 99, ..copy }, "memory type 99"),
    ] {
        assert_eq!(call(&change), 1, "{words}");
        rig.one_violation(words);
    }
    copy.height = 0;
    ok(call(&copy));
}

#[test]
fn addresses_are_known_for_what_they_are() {
    let (other, rig) = (Rig::seeded(1), Rig::seeded(2));
    let (memory, host) = (rig.memory(100), rig.pinned(&[0; 50]) as u64);
    let ask = |attribute: i32, address: u64| {
        let mut value = 0_u64;
        let code = (rig.cu.cuPointerGetAttribute)((&raw mut value).cast(), attribute, address);
        (code, value)
    };
    assert_eq!(
        [1, 2, 9, 11, 12].map(|attribute| ask(attribute, memory + 99)),
        [(0, rig.context), (0, 2), (0, rig.device.ordinal() as u64), (0, memory), (0, 100)]
    );
    assert_eq!([2, 11, 12].map(|attribute| ask(attribute, host + 1)), [(0, 1), (0, host), (0, 50)]);
    assert_eq!(ask(2, memory + 100).0, 1);
    ok((rig.cu.cuCtxSetCurrent)(other.context));
    assert_eq!(ask(9, memory), (0, rig.device.ordinal() as u64));
    rig.device.check();
}

#[test]
fn giving_host_memory_back_waits_for_everything() {
    for seed in 0..30 {
        let rig = Rig::seeded(seed);
        let pages = Pages::new(2);
        let (memory, stream, mine) = (rig.memory(64), rig.stream(), rig.pinned(&[1; 64]));
        ok((rig.cu.cuMemHostRegister_v2)(pages.at(0), 8192, 0));
        rig.fill(memory, 7, 64, stream);
        ok((rig.cu.cuMemcpyDtoHAsync_v2)(pages.at(100), memory, 64, stream));
        assert_eq!(rig.host_bytes(pages.at(100), 64), [0; 64]);
        ok((rig.cu.cuMemHostUnregister)(pages.at(0)));
        assert_eq!((rig.host_bytes(pages.at(100), 64), rig.device.counts().queued), (vec![7; 64], 0));
        rig.up(memory, mine, 64, stream);
        ok((rig.cu.cuMemFreeHost)(mine));
        assert_eq!((rig.device.peek(memory, 64), rig.device.counts().queued), (vec![1; 64], 0));
        rig.device.check();
    }
}
