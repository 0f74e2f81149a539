//! What the benchmark needs of the driver beside a [`CudaDevice`]: graphs, events that tell the time, pinned memory,
//! plain copies.
//!
//! *Unsafe*, relying on three promises: a symbol of the driver's name is the driver's call, as its manual declares it;
//! handles here are the driver's own, and alive as long as what holds them; a device that is in use was made in the
//! context that is current here.

use std::ffi::{CStr, c_char, c_void};
use std::path::PathBuf;
use std::sync::Arc;

use ftcache_transfer::{CudaContext, CudaDevice, CudaDriver, Stream};
use libloading::Library;

use crate::Outcome;

macro_rules! calls {
    ($($name:ident = $symbol:literal ($($argument:ty),*);)*) => {
        struct Calls {
            $($name: unsafe extern "C" fn($($argument),*) -> i32,)*
        }

        impl Calls {
            /// # Safety
            ///
            /// The library's symbols of these names are the driver's calls.
            unsafe fn find(library: &Library) -> Outcome<Self> {
                Ok(Self {
                    $($name: {
                        // SAFETY: our caller's promise; the type is the manual's, and handles are numbers of one word.
                        let found = unsafe {
                            library.get::<unsafe extern "C" fn($($argument),*) -> i32>($symbol.as_bytes())
                        };
                        *found.map_err(|_| concat!("the CUDA driver has no ", $symbol))?
                    },)*
                })
            }
        }
    };
}

calls! {
    error_name = "cuGetErrorName" (i32, *mut *const c_char);
    device = "cuDeviceGet" (*mut i32, i32);
    primary_retain = "cuDevicePrimaryCtxRetain" (*mut u64, i32);
    primary_release = "cuDevicePrimaryCtxRelease_v2" (i32);
    context_push = "cuCtxPushCurrent_v2" (u64);
    context_pop = "cuCtxPopCurrent_v2" (*mut u64);
    memory_allocate = "cuMemAlloc_v2" (*mut u64, usize);
    memory_free = "cuMemFree_v2" (u64);
    host_allocate = "cuMemHostAlloc" (*mut *mut c_void, usize, u32);
    host_free = "cuMemFreeHost" (*mut c_void);
    copy = "cuMemcpyHtoDAsync_v2" (u64, *const c_void, usize, u64);
    stream_synchronize = "cuStreamSynchronize" (u64);
    capture_begin = "cuStreamBeginCapture_v2" (u64, i32);
    capture_end = "cuStreamEndCapture" (u64, *mut u64);
    graph_instantiate = "cuGraphInstantiateWithFlags" (*mut u64, u64, u64);
    graph_destroy = "cuGraphDestroy" (u64);
    exec_launch = "cuGraphLaunch" (u64, u64);
    exec_destroy = "cuGraphExecDestroy" (u64);
    event_create = "cuEventCreate" (*mut u64, u32);
    event_destroy = "cuEventDestroy_v2" (u64);
    event_record = "cuEventRecord" (u64, u64);
    event_elapsed = "cuEventElapsedTime" (*mut f32, u64, u64);
}

/// What the manual calls `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`.
const CAPTURE_THREAD_LOCAL: i32 = 1;

#[cfg(not(windows))]
const SYSTEM: &str = "libcuda.so.1";
#[cfg(windows)]
const SYSTEM: &str = "nvcuda.dll";

/// Which driver to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    System,
    Emulated,
}

/// A driver and a device of it, whose primary context is current to the thread that opened it.
pub(crate) struct Cuda {
    calls: Calls,
    driver: Arc<CudaDriver>,
    ordinal: i32,
    /// Nothing of the driver's is unloaded while its calls are at hand.
    _library: Library,
}

/// The emulated driver: cargo puts it one folder down, and beside the program too if that is all it builds, where it may
/// be an old one.
fn emulated() -> Outcome<PathBuf> {
    let name = format!("{}ftcache_cuda_emu{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let program = std::env::current_exe().map_err(|error| format!("this program's path: {error}"))?;
    let folder = program.parent().ok_or("this program lies in no folder")?;
    let places = [folder.join("deps").join(&name), folder.join(&name)];
    let found = places.into_iter().find(|place| place.exists());
    found.ok_or_else(|| format!("{name} is not beside this program: `cargo build -p ftcache-cuda-emu` makes it"))
}

impl Cuda {
    /// # Errors
    ///
    /// No driver or no such device, in a sentence.
    pub(crate) fn open(which: Which, ordinal: i32) -> Outcome<Self> {
        let (driver, path) = match which {
            Which::System => (CudaDriver::open(), PathBuf::from(SYSTEM)),
            Which::Emulated => {
                let path = emulated()?;
                // SAFETY: the emulator exports the driver's calls as the driver's manual declares them.
                (unsafe { CudaDriver::open_at(&path) }, path)
            }
        };
        let driver = driver.map_err(|error| error.to_string())?;
        // SAFETY: it is loaded already; this counts it once more.
        let library = unsafe { Library::new(&path) }.map_err(|error| error.to_string())?;
        // SAFETY: as above.
        let calls = unsafe { Calls::find(&library) }?;
        let device_count = driver.device_count().map_err(|error| error.to_string())?;
        if !(0..device_count).contains(&ordinal) {
            return Err(format!("no CUDA device {ordinal}: there are {device_count}"));
        }
        let mut opened = Self { calls, driver, ordinal, _library: library };
        let (mut device, mut context) = (0, 0);
        // SAFETY: the driver writes one number.
        opened.done("cuDeviceGet", unsafe { (opened.calls.device)(&raw mut device, ordinal) })?;
        opened.ordinal = device;
        // SAFETY: as above.
        let code = unsafe { (opened.calls.primary_retain)(&raw mut context, device) };
        opened.done("cuDevicePrimaryCtxRetain", code)?;
        // SAFETY: the context is retained, until this is dropped.
        opened.done("cuCtxPushCurrent", unsafe { (opened.calls.context_push)(context) })?;
        Ok(opened)
    }

    /// The driver's CUDA version: 1000 times the major number and 10 times the minor.
    pub(crate) fn version(&self) -> i32 {
        self.driver.version()
    }

    /// The device, to work with. Several may be had at a time.
    pub(crate) fn device(&self) -> Outcome<CudaDevice> {
        CudaDevice::new(Arc::clone(&self.driver), CudaContext::Current).map_err(|error| error.to_string())
    }

    fn done(&self, call: &str, code: i32) -> Outcome {
        if code == 0 {
            return Ok(());
        }
        let mut name = std::ptr::null();
        // SAFETY: the driver writes a pointer, null for a code that it does not know.
        let known = unsafe { (self.calls.error_name)(code, &raw mut name) } == 0 && !name.is_null();
        // SAFETY: a text of the driver's own, ended by zero, and never freed.
        let name = if known { unsafe { CStr::from_ptr(name) }.to_string_lossy() } else { "no name".into() };
        Err(format!("{call}: {name} ({code})"))
    }

    pub(crate) fn synchronize(&self, stream: Stream) -> Outcome {
        // SAFETY: the stream is a device's of here.
        self.done("cuStreamSynchronize", unsafe { (self.calls.stream_synchronize)(stream.raw()) })
    }

    /// Device memory, aligned to 256 bytes as the manual has it.
    pub(crate) fn memory(&self, bytes: usize) -> Outcome<DeviceBytes<'_>> {
        let mut address = 0;
        // SAFETY: the driver writes one number.
        let code = unsafe { (self.calls.memory_allocate)(&raw mut address, bytes.max(1)) };
        self.done("cuMemAlloc", code).map(|()| DeviceBytes { cuda: self, address, bytes })
    }

    /// Host memory that the driver has allocated and pinned.
    pub(crate) fn pinned(&self, bytes: usize) -> Outcome<PinnedBytes<'_>> {
        let mut base = std::ptr::null_mut();
        // SAFETY: the driver writes one pointer.
        let code = unsafe { (self.calls.host_allocate)(&raw mut base, bytes, 0) };
        self.done("cuMemHostAlloc", code)?;
        let base = base.cast::<u8>();
        // SAFETY: so many bytes lie there, and nobody else knows them. Touched, so that each page is one of its own.
        unsafe { base.write_bytes(0x5A, bytes) };
        Ok(PinnedBytes { cuda: self, base })
    }

    /// Enqueues a copy in one piece.
    ///
    /// # Safety
    ///
    /// So many bytes lie at `source`, and stay until the stream was synchronised.
    pub(crate) unsafe fn copy(
        &self,
        stream: Stream,
        target: &DeviceBytes<'_>,
        source: *const u8,
        bytes: usize,
    ) -> Outcome {
        assert!(bytes <= target.bytes, "{bytes} into {}", target.bytes);
        // SAFETY: our caller's promise, and memory that is large enough.
        let code = unsafe { (self.calls.copy)(target.address, source.cast(), bytes, stream.raw()) };
        self.done("cuMemcpyHtoDAsync", code)
    }

    /// A graph of what `body` enqueues on the stream.
    pub(crate) fn capture(&self, stream: Stream, body: impl FnOnce() -> Outcome) -> Outcome<Graph<'_>> {
        // SAFETY: the stream is a device's of here.
        let code = unsafe { (self.calls.capture_begin)(stream.raw(), CAPTURE_THREAD_LOCAL) };
        self.done("cuStreamBeginCapture", code)?;
        let enqueued = body();
        let mut graph = 0;
        // SAFETY: as above. Whatever `body` said, the stream must not stay captured.
        let code = unsafe { (self.calls.capture_end)(stream.raw(), &raw mut graph) };
        let ended = self.done("cuStreamEndCapture", code);
        let instantiated = enqueued.and(ended).and_then(|()| {
            let mut exec = 0;
            // SAFETY: the graph was just captured.
            let code = unsafe { (self.calls.graph_instantiate)(&raw mut exec, graph, 0) };
            self.done("cuGraphInstantiateWithFlags", code).map(|()| Graph { cuda: self, exec })
        });
        if graph != 0 {
            // SAFETY: it is not used any more; what was instantiated is on its own.
            let code = unsafe { (self.calls.graph_destroy)(graph) };
            self.done("cuGraphDestroy", code)?;
        }
        instantiated
    }

    pub(crate) fn timer(&self) -> Outcome<Timer<'_>> {
        let event = || {
            let mut event = 0;
            // SAFETY: the driver writes one handle.
            let code = unsafe { (self.calls.event_create)(&raw mut event, 0) };
            self.done("cuEventCreate", code).map(|()| Event { cuda: self, event })
        };
        Ok(Timer { start: event()?, end: event()? })
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        let mut context = 0;
        // SAFETY: the context that was pushed when this was opened, if it came that far; else there is none.
        if unsafe { (self.calls.context_pop)(&raw mut context) } == 0 {
            // SAFETY: it was retained once.
            unsafe { (self.calls.primary_release)(self.ordinal) };
        }
    }
}

/// Device memory, given back with this. Giving back waits for everything enqueued.
pub(crate) struct DeviceBytes<'a> {
    cuda: &'a Cuda,
    pub(crate) address: u64,
    bytes: usize,
}

impl DeviceBytes<'_> {
    /// Writes numbers and returns when they are there. Not by the copy that waits: by the manual that one returns once
    /// the bytes are on their way, and no stream of ours would wait for them.
    pub(crate) fn write(&self, stream: Stream, numbers: &[i32]) -> Outcome {
        // SAFETY: the numbers stay until the stream was synchronised, here.
        unsafe { self.cuda.copy(stream, self, numbers.as_ptr().cast(), size_of_val(numbers)) }?;
        self.cuda.synchronize(stream)
    }
}

impl Drop for DeviceBytes<'_> {
    fn drop(&mut self) {
        // SAFETY: allocated by this driver, and used by nothing that is still to be launched.
        unsafe { (self.cuda.calls.memory_free)(self.address) };
    }
}

/// Pinned memory, given back with this.
pub(crate) struct PinnedBytes<'a> {
    cuda: &'a Cuda,
    pub(crate) base: *const u8,
}

impl Drop for PinnedBytes<'_> {
    fn drop(&mut self) {
        // SAFETY: allocated by this driver, and copied by nothing any more.
        unsafe { (self.cuda.calls.host_free)(self.base.cast_mut().cast()) };
    }
}

/// A graph that can be launched.
pub(crate) struct Graph<'a> {
    cuda: &'a Cuda,
    exec: u64,
}

impl Graph<'_> {
    pub(crate) fn launch(&self, stream: Stream) -> Outcome {
        // SAFETY: both are alive.
        self.cuda.done("cuGraphLaunch", unsafe { (self.cuda.calls.exec_launch)(self.exec, stream.raw()) })
    }
}

impl Drop for Graph<'_> {
    fn drop(&mut self) {
        // SAFETY: alive until now. What is enqueued of it is still done.
        unsafe { (self.cuda.calls.exec_destroy)(self.exec) };
    }
}

struct Event<'a> {
    cuda: &'a Cuda,
    event: u64,
}

impl Event<'_> {
    fn record(&self, stream: Stream) -> Outcome {
        // SAFETY: both are alive.
        self.cuda.done("cuEventRecord", unsafe { (self.cuda.calls.event_record)(self.event, stream.raw()) })
    }
}

impl Drop for Event<'_> {
    fn drop(&mut self) {
        // SAFETY: alive until now.
        unsafe { (self.cuda.calls.event_destroy)(self.event) };
    }
}

/// Two events around work on a stream.
pub(crate) struct Timer<'a> {
    start: Event<'a>,
    end: Event<'a>,
}

impl Timer<'_> {
    /// Seconds that `work`, enqueued `count` times behind itself, takes each time.
    ///
    /// It is enqueued once more before the first event, so that the device is busy while the rest is enqueued: what the
    /// host takes to launch is not in the time.
    pub(crate) fn time(&self, stream: Stream, count: u32, mut work: impl FnMut() -> Outcome) -> Outcome<f64> {
        work()?;
        self.start.record(stream)?;
        for _ in 0..count {
            work()?;
        }
        self.end.record(stream)?;
        let cuda = self.start.cuda;
        cuda.synchronize(stream)?;
        let mut milliseconds = 0.0;
        // SAFETY: both were recorded and have passed; the driver writes one number.
        let code = unsafe { (cuda.calls.event_elapsed)(&raw mut milliseconds, self.start.event, self.end.event) };
        cuda.done("cuEventElapsedTime", code)?;
        Ok(f64::from(milliseconds) / 1e3 / f64::from(count))
    }
}
