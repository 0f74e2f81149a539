//! The device over the CUDA driver.
//!
//! Streams and events are the driver's handles, the engine's own or ours. Every call pushes the device's context and
//! pops it again, so the caller's is as it was. What is enqueued is enqueued: no call below waits unless the trait
//! says so.
//!
//! Device memory is filled with zeros on a stream of our own, which is waited for: a fill on the default stream would
//! not be ordered against the engine's streams.
//!
//! *Unsafe*, relying on these promises: the driver does what its manual says; sources of copies and words that are
//! waited for stay in place as [`Device`] asks of its callers; streams and events that are passed in are the driver's
//! and alive.

mod batch;
mod copies;
mod device;
mod driver;
mod host_ranges;
mod kernels;
mod pinned;
mod words;

use std::collections::{BTreeMap, HashSet};
use std::ffi::{CStr, c_int};
use std::sync::Arc;

use cudarc::driver::sys::{CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUstream};

use self::batch::Batches;
pub use self::batch::{BatchRefusal, BatchReport, BatchSignature};
use self::driver::{Calls, Version};
pub use self::driver::{CudaDriver, DriverError};
use self::host_ranges::HostRanges;
pub use self::kernels::KernelImage;
use self::kernels::Kernels;
use crate::{Device, DeviceError, Event, Memory, Stream};

const INVALID_VALUE: i32 = 1;
const STREAM_NON_BLOCKING: u32 = 1;
const EVENT_DISABLE_TIMING: u32 = 2;

/// Which context a device works in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CudaContext {
    /// The one that is current to the calling thread: the engine's. It is to outlive the device.
    Current,
    /// The primary one of a device, by its number, kept alive by the device here.
    Primary(i32),
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CudaFacts {
    /// The device's name.
    pub name: String,
    /// Its number.
    pub ordinal: i32,
    /// The newest CUDA version that the driver serves, 1000 times the major version and 10 times the minor.
    pub driver_version: i32,
    /// Compute capability.
    pub capability: (i32, i32),
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Whether streams wait for words of the host's by themselves; else the driver's own thread does it for them.
    pub waits_for_words: bool,
    /// Whether memory that is mapped read-only can be registered.
    pub registers_read_only: bool,
}

impl std::fmt::Display for CudaFacts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (major, minor) = self.capability;
        let Self { name, ordinal, memory_bytes, .. } = self;
        write!(f, "{name} (device {ordinal}, compute capability {major}.{minor}, {memory_bytes} bytes)")?;
        write!(f, ", driver of CUDA {}", Version(self.driver_version))?;
        write!(f, ", streams {} for words", if self.waits_for_words { "wait" } else { "do not wait" })?;
        let read_only = if self.registers_read_only { "registers" } else { "does not register" };
        write!(f, ", {read_only} read-only memory")
    }
}

/// One allocation, or memory that was adopted.
#[derive(Debug, Clone, Copy)]
struct Block {
    bytes: u64,
    /// What the driver gave, which may begin before; `None` if it was adopted.
    allocation: Option<CUdeviceptr>,
}

/// A device of a CUDA driver.
#[derive(Debug)]
pub struct CudaDevice {
    driver: Arc<CudaDriver>,
    context: CUcontext,
    device: CUdevice,
    /// Whether the context is the device's primary one, to be released.
    is_retained: bool,
    /// For what is done at set-up, and to ask how things stand.
    own: CUstream,
    facts: CudaFacts,
    max_pitch: u64,
    /// By address.
    blocks: BTreeMap<u64, Block>,
    streams: HashSet<u64>,
    events: HashSet<u64>,
    ranges: HostRanges,
    batches: Batches,
    kernels: Option<Kernels>,
    /// An error that was met where none could be returned.
    late: Option<DeviceError>,
}

// SAFETY: the driver's handles may be used from any thread, and every call makes the context current to its own.
unsafe impl Send for CudaDevice {}

/// Makes a context current for as long as it lives, and lets this thread make calls that others' captures forbid: none
/// of ours has to do with them, and each would end them.
struct Entered<'a> {
    calls: &'a Calls,
    /// The thread's capture mode before, once it is another.
    mode: Option<c_int>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if let Some(mode) = &mut self.mode {
            // SAFETY: the driver reads and writes one number.
            let code = unsafe { (self.calls.capture_mode)(mode) };
            debug_assert_eq!(code, 0, "a mode that a thread had is taken back");
        }
        let mut ours = std::ptr::null_mut();
        // SAFETY: the context was pushed when this was made, and whatever was pushed since has been popped.
        let code = unsafe { (self.calls.context_pop)(&raw mut ours) };
        debug_assert_eq!(code, 0, "a context that was pushed is popped");
    }
}

fn enter<'a>(driver: &'a CudaDriver, context: CUcontext) -> Result<Entered<'a>, DeviceError> {
    // SAFETY: the context is alive: the engine's own, by `CudaContext::Current`, or retained.
    let code = unsafe { (driver.calls.context_push)(context) };
    done(driver, "context push", 0, code)?;
    let mut entered = Entered { calls: &driver.calls, mode: None };
    done(driver, "capture mode", 0, entered.relax())?;
    Ok(entered)
}

/// What the driver's manual calls `CU_STREAM_CAPTURE_MODE_RELAXED`.
const CAPTURE_RELAXED: c_int = 2;

impl Entered<'_> {
    /// Lets the thread make any call. Returns the driver's code.
    fn relax(&mut self) -> c_int {
        let mut mode = CAPTURE_RELAXED;
        // SAFETY: the driver reads and writes one number.
        let code = unsafe { (self.calls.capture_mode)(&raw mut mode) };
        self.mode = (code == 0).then_some(mode);
        code
    }
}

/// The code of a call as a result.
fn done(driver: &CudaDriver, operation: &'static str, bytes: u64, code: c_int) -> Result<(), DeviceError> {
    if code == 0 { Ok(()) } else { Err(DeviceError::Driver { operation, bytes, code, reason: driver.reason(code) }) }
}

fn handle_of(stream: Stream) -> CUstream {
    stream.0 as CUstream
}

impl CudaDevice {
    /// A device of a driver. Copies go one by one until [`probe_batches`](Self::probe_batches) has shown that they
    /// can go together.
    ///
    /// # Errors
    ///
    /// An unknown device, no current context, or what the driver refuses. Nothing stays behind then.
    pub fn new(driver: Arc<CudaDriver>, context: CudaContext) -> Result<Self, DriverError> {
        let mut device = 0;
        let mut handle = std::ptr::null_mut();
        match context {
            CudaContext::Current => {
                // SAFETY: the driver is started, and writes one handle.
                let code = unsafe { (driver.calls.context_current)(&raw mut handle) };
                driver.set_up("cuCtxGetCurrent", code)?;
                if handle.is_null() {
                    return Err(DriverError::NoContext);
                }
                // SAFETY: a context is current; the driver writes one number.
                driver.set_up("cuCtxGetDevice", unsafe { (driver.calls.context_device)(&raw mut device) })?;
            }
            CudaContext::Primary(ordinal) => {
                let device_count = driver.device_count()?;
                if !(0..device_count).contains(&ordinal) {
                    return Err(DriverError::UnknownDevice { ordinal, device_count });
                }
                // SAFETY: the driver is started, and writes one number.
                driver.set_up("cuDeviceGet", unsafe { (driver.calls.device)(&raw mut device, ordinal) })?;
                // SAFETY: as above, for a handle.
                let code = unsafe { (driver.calls.primary_retain)(&raw mut handle, device) };
                driver.set_up("cuDevicePrimaryCtxRetain", code)?;
            }
        }
        let facts = CudaFacts {
            name: String::new(),
            ordinal: device,
            driver_version: driver.version(),
            capability: (0, 0),
            memory_bytes: 0,
            waits_for_words: false,
            registers_read_only: false,
        };
        // From here on, dropping gives back what was taken.
        let mut device = Self {
            driver,
            context: handle,
            device,
            is_retained: matches!(context, CudaContext::Primary(_)),
            own: std::ptr::null_mut(),
            facts,
            max_pitch: 0,
            blocks: BTreeMap::new(),
            streams: HashSet::new(),
            events: HashSet::new(),
            ranges: HostRanges::default(),
            batches: Batches::default(),
            kernels: None,
            late: None,
        };
        device.set_up()?;
        Ok(device)
    }

    fn set_up(&mut self) -> Result<(), DriverError> {
        let driver = Arc::clone(&self.driver);
        let calls = &driver.calls;
        // SAFETY: the context is alive, as in `enter`.
        driver.set_up("cuCtxPushCurrent_v2", unsafe { (calls.context_push)(self.context) })?;
        let mut entered = Entered { calls, mode: None };
        driver.set_up("cuThreadExchangeStreamCaptureMode", entered.relax())?;
        // SAFETY: a context is current; the driver writes one handle.
        let code = unsafe { (calls.stream_create)(&raw mut self.own, STREAM_NON_BLOCKING) };
        driver.set_up("cuStreamCreate", code)?;
        let mut name = [0; 256];
        // SAFETY: the driver writes at most 256 bytes, the last of them zero.
        let code = unsafe { (calls.device_name)(name.as_mut_ptr(), name.len() as c_int, self.device) };
        driver.set_up("cuDeviceGetName", code)?;
        // SAFETY: a text ended by zero, by the driver's manual.
        self.facts.name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        let mut bytes = 0;
        // SAFETY: the driver writes one number.
        driver.set_up("cuDeviceTotalMem_v2", unsafe { (calls.device_bytes)(&raw mut bytes, self.device) })?;
        self.facts.memory_bytes = bytes as u64;
        let attribute = |attribute: CUdevice_attribute| {
            let mut value = 0;
            // SAFETY: the driver writes one number.
            let code = unsafe { (calls.device_attribute)(&raw mut value, attribute as c_int, self.device) };
            driver.set_up("cuDeviceGetAttribute", code).map(|()| value)
        };
        self.max_pitch = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_PITCH)?.max(0) as u64;
        self.facts.capability = (
            attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        // Devices that take words of 64 bits take those of 32 without being asked to.
        // A driver that is older than an attribute refuses it, and has not what it tells.
        let has = |name| match attribute(name) {
            Err(DriverError::Refused { code: INVALID_VALUE, .. }) => Ok(false),
            value => value.map(|value| value != 0),
        };
        let memory_operations = has(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS)?;
        self.facts.waits_for_words =
            memory_operations && calls.stream_wait_value.is_some() && calls.stream_write_value.is_some();
        let read_only = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED;
        self.facts.registers_read_only = has(read_only)?;
        Ok(())
    }

    /// What was found.
    pub fn facts(&self) -> &CudaFacts {
        &self.facts
    }

    /// Asks the driver whether it copies in batches as its manual says, and uses them if it does. To see whether a
    /// small entry makes the call wait, `large_bytes` are moved a few times, 32 MiB or more; with 0, entries of less
    /// than [`SMALL_ROW_BYTES`](ftcache_policy::SMALL_ROW_BYTES) are taken to.
    ///
    /// It takes that much memory on both sides for a moment, and waits. Whatever it finds, copies go; see
    /// [`batches`](Self::batches).
    ///
    /// # Errors
    ///
    /// The context cannot be made current, or an earlier error that has still to be told.
    pub fn probe_batches(&mut self, large_bytes: u64) -> Result<&BatchReport, DeviceError> {
        let driver = Arc::clone(&self.driver);
        self.with(|device, _| {
            device.batches.probe(&driver, large_bytes);
            Ok(())
        })?;
        Ok(self.batches.report())
    }

    /// Whether copies go in batches now, and if not, why: what the probe found, or what a batch met since.
    pub fn batches(&self) -> &BatchReport {
        self.batches.report()
    }

    /// What [`prepare_kernels`](Device::prepare_kernels) has loaded.
    pub fn kernel_image(&self) -> Option<&KernelImage> {
        self.kernels.as_ref().map(Kernels::image)
    }

    /// Bytes of host memory that are registered here.
    pub fn registered_bytes(&self) -> u64 {
        self.ranges.bytes()
    }

    /// An earlier error that has still to be told, once.
    fn take_late(&mut self) -> Result<(), DeviceError> {
        self.late.take().map_or(Ok(()), Err)
    }

    /// Runs calls of the driver with the context current, unless an earlier error has still to be told.
    fn with<T>(&mut self, body: impl FnOnce(&mut Self, &Calls) -> Result<T, DeviceError>) -> Result<T, DeviceError> {
        self.take_late()?;
        let driver = Arc::clone(&self.driver);
        let _entered = enter(&driver, self.context)?;
        body(self, &driver.calls)
    }

    fn done(&self, operation: &'static str, bytes: u64, code: c_int) -> Result<(), DeviceError> {
        done(&self.driver, operation, bytes, code)
    }

    /// Keeps an error that cannot be returned for the next call.
    fn keep(&mut self, outcome: Result<(), DeviceError>) {
        if let Err(error) = outcome {
            self.late.get_or_insert(error);
        }
    }

    fn zero(&self, calls: &Calls, address: u64, bytes: u64) -> Result<(), DeviceError> {
        // SAFETY: the bytes are this device's memory and ours.
        self.done("clear", bytes, unsafe { (calls.fill)(address, 0, bytes as usize, self.own) })?;
        // SAFETY: the stream is ours and alive.
        self.done("clear", bytes, unsafe { (calls.stream_synchronize)(self.own) })
    }

    fn memory_info(&self, calls: &Calls) -> Option<u64> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: a context is current; the driver writes two numbers.
        let code = unsafe { (calls.memory_info)(&raw mut free, &raw mut total) };
        (code == 0).then_some(free as u64)
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        for base in self.ranges.ours().collect::<Vec<_>>() {
            // An error of now has nobody left to be told to.
            let _ = self.unregister(base as *const u8);
        }
        for address in self.blocks.keys().copied().collect::<Vec<_>>() {
            self.free(Memory(address));
        }
        for event in self.events.iter().copied().collect::<Vec<_>>() {
            self.destroy_event(Event(event));
        }
        for stream in self.streams.iter().copied().collect::<Vec<_>>() {
            self.destroy_stream(Stream(stream));
        }
        self.unload_kernels();
        if !self.own.is_null()
            && let Ok(_entered) = enter(&self.driver, self.context)
        {
            // SAFETY: the stream is ours and is used no more.
            unsafe { (self.driver.calls.stream_destroy)(self.own) };
        }
        if self.is_retained {
            // SAFETY: the context was retained once when this was made.
            unsafe { (self.driver.calls.primary_release)(self.device) };
        }
    }
}
