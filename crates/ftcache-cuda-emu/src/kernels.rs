//! The kernels that are compiled into this library, and what runs them: the calls into `cpp/`.
//!
//! *Unsafe*, relying on `cpp/engine.h` and `cpp/ranges.h` having the same structs, and on an engine being used by one
//! thread at a time, which its owner sees to.

use std::ffi::{CStr, c_char, c_void};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// Engines that are kept for the next launch. Each holds stacks for a block's threads.
const ENGINES_KEPT: usize = 8;

/// As `cpp/emulated.h` has them; 1 is a read.
pub(crate) const WRITE: u32 = 2;
pub(crate) const ATOMIC: u32 = 4;
/// Touched to tell of trouble only.
pub(crate) const RARELY: u32 = 8;
/// A word that has to be at a value or past it before the launch goes on.
pub(crate) const AWAITED: u32 = 16;

/// A number for each barrier of a kernel, a bit each.
pub(crate) type BarrierSet = [u64; 4];

/// Memory that a launch may touch.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) base: u64,
    pub(crate) row_bytes: u64,
    pub(crate) stride: u64,
    pub(crate) rows: u64,
    pub(crate) access: u32,
    /// Of a word that the launch waits for: what it waits for.
    pub(crate) value: u32,
    name: *const c_char,
}

impl Range {
    pub(crate) fn name(&self) -> &'static str {
        // SAFETY: names are texts in the library's code.
        unsafe { CStr::from_ptr(self.name) }.to_str().unwrap_or_default()
    }
}

#[repr(C)]
struct Sink {
    data: *mut c_void,
    take: extern "C" fn(*mut c_void, *const Range),
    is_live: extern "C" fn(*mut c_void, u64, u64) -> u32,
}

#[repr(C)]
struct RawRequest {
    kernel: u32,
    blocks: u32,
    threads: u32,
    shared_bytes: u32,
    seed: u64,
    patience_ns: u64,
    args: *const c_void,
    ranges: *const Range,
    range_count: u64,
    skipped: BarrierSet,
}

#[repr(C)]
#[derive(Default)]
struct RawOutcome {
    barriers: u64,
    barrier_ids: BarrierSet,
    report_count: u32,
    more: u32,
    ended: u32,
    reserved: u32,
}

type TakeNumber = extern "C" fn(*mut c_void, *const c_char, u64);

unsafe extern "C" {
    safe fn ftcache_emu_kernel_count() -> u32;
    fn ftcache_emu_kernel(kernel: u32, args_bytes: *mut u64) -> *const c_char;
    fn ftcache_emu_kernel_describe(kernel: u32, args: *const c_void, sink: *mut Sink);
    safe fn ftcache_emu_engine_new() -> *mut c_void;
    fn ftcache_emu_engine_free(engine: *mut c_void);
    fn ftcache_emu_engine_run(engine: *mut c_void, request: *const RawRequest, outcome: *mut RawOutcome);
    fn ftcache_emu_engine_report(engine: *const c_void, report: u32) -> *const c_char;
    safe fn ftcache_emu_numbers(take: TakeNumber, data: *mut c_void);
}

/// A kernel by its place in the list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel {
    index: u32,
    pub(crate) name: &'static str,
    pub(crate) args_bytes: u64,
}

/// All kernels.
fn kernels() -> &'static [Kernel] {
    static KERNELS: OnceLock<Vec<Kernel>> = OnceLock::new();
    KERNELS.get_or_init(|| {
        let kernel = |index| {
            let mut args_bytes = 0;
            // SAFETY: the index is below the count, and there is room for the number.
            let name = unsafe { ftcache_emu_kernel(index, &mut args_bytes) };
            // SAFETY: a text in the library's code.
            let name = unsafe { CStr::from_ptr(name) };
            Kernel { index, name: name.to_str().unwrap_or_default(), args_bytes }
        };
        (0..ftcache_emu_kernel_count()).map(kernel).collect()
    })
}

pub(crate) fn kernel(name: &str) -> Option<Kernel> {
    kernels().iter().copied().find(|kernel| kernel.name == name)
}

/// What a launch with these arguments may touch. `is_live` says whether so many bytes at an address are there.
pub(crate) fn describe(kernel: Kernel, args: &[u64], is_live: &dyn Fn(u64, u64) -> bool) -> Vec<Range> {
    struct Taker<'a> {
        ranges: Vec<Range>,
        is_live: &'a dyn Fn(u64, u64) -> bool,
    }
    extern "C" fn take(data: *mut c_void, range: *const Range) {
        // SAFETY: the taker lent below.
        let taker = unsafe { &mut *data.cast::<Taker<'_>>() };
        // SAFETY: the range is lent for the call.
        taker.ranges.push(unsafe { range.read() });
    }
    extern "C" fn is_live_to(data: *mut c_void, address: u64, bytes: u64) -> u32 {
        // SAFETY: the taker lent below.
        let taker = unsafe { &*data.cast::<Taker<'_>>() };
        (taker.is_live)(address, bytes).into()
    }
    assert!(size_of_val(args) as u64 >= kernel.args_bytes, "arguments in full");
    let mut taker = Taker { ranges: Vec::new(), is_live };
    let mut sink = Sink { data: (&raw mut taker).cast(), take, is_live: is_live_to };
    // SAFETY: the arguments are of the kernel's size, and the sink lives for the call.
    unsafe { ftcache_emu_kernel_describe(kernel.index, args.as_ptr().cast(), &mut sink) };
    taker.ranges
}

/// How a kernel is launched.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    pub(crate) kernel: Kernel,
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
    pub(crate) shared_bytes: u32,
    pub(crate) seed: u64,
    pub(crate) patience: Duration,
    pub(crate) args: &'a [u64],
    pub(crate) ranges: &'a [Range],
    /// Barriers that do nothing.
    pub(crate) skipped: BarrierSet,
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The most that one block has passed.
    pub(crate) barriers: u64,
    pub(crate) barrier_ids: BarrierSet,
    pub(crate) reports: Vec<String>,
}

struct Engine(*mut c_void);

// SAFETY: an engine is bound to no thread between launches.
unsafe impl Send for Engine {}

impl Drop for Engine {
    fn drop(&mut self) {
        // SAFETY: made by `ftcache_emu_engine_new`, and freed nowhere else.
        unsafe { ftcache_emu_engine_free(self.0) };
    }
}

/// Engines that nobody uses just now: making one costs more than many a launch, and every test is a thread of its own.
static IDLE: Mutex<Vec<Engine>> = Mutex::new(Vec::new());

/// Runs a kernel to its end, on this thread.
pub(crate) fn run(request: &Request<'_>) -> Outcome {
    let idle = || IDLE.lock().unwrap_or_else(PoisonError::into_inner);
    let kept = idle().pop();
    let engine = kept.unwrap_or_else(|| Engine(ftcache_emu_engine_new()));
    let raw = RawRequest {
        kernel: request.kernel.index,
        blocks: request.blocks,
        threads: request.threads,
        shared_bytes: request.shared_bytes,
        seed: request.seed,
        patience_ns: request.patience.as_nanos() as u64,
        args: request.args.as_ptr().cast(),
        ranges: request.ranges.as_ptr(),
        range_count: request.ranges.len() as u64,
        skipped: request.skipped,
    };
    let mut outcome = RawOutcome::default();
    // SAFETY: the engine is this thread's for now, and what the request points to lives for the call. That the memory
    // of the ranges is there was checked by whoever gives them.
    unsafe { ftcache_emu_engine_run(engine.0, &raw, &mut outcome) };
    let report = |index| {
        // SAFETY: the engine has so many, and keeps them until it runs again.
        let text = unsafe { ftcache_emu_engine_report(engine.0, index) };
        // SAFETY: a text that ends in a zero.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    };
    let mut reports: Vec<String> = (0..outcome.report_count).map(report).collect();
    if outcome.more > 0 {
        reports.push(format!("kernel {}: {} more reports were not kept", request.kernel.name, outcome.more));
    }
    let mut idle = idle();
    if idle.len() < ENGINES_KEPT {
        idle.push(engine);
    }
    Outcome { barriers: outcome.barriers, barrier_ids: outcome.barrier_ids, reports }
}

/// Sizes, offsets and constants that kernels are compiled with, by name.
pub(crate) fn numbers() -> Vec<(String, u64)> {
    extern "C" fn take(data: *mut c_void, name: *const c_char, value: u64) {
        // SAFETY: the list lent below.
        let numbers = unsafe { &mut *data.cast::<Vec<(String, u64)>>() };
        // SAFETY: a text in the library's code.
        let name = unsafe { CStr::from_ptr(name) };
        numbers.push((name.to_string_lossy().into_owned(), value));
    }
    let mut numbers = Vec::<(String, u64)>::new();
    ftcache_emu_numbers(take, (&raw mut numbers).cast());
    numbers
}
