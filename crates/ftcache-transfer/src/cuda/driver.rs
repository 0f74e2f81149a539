//! The driver's calls, looked up at run time: the same program runs with a GPU and without one.
//!
//! The types are cudarc's; the look-up is our own. cudarc's panics where the library or a symbol is missing, holds
//! one library for the whole process, and returns the driver's codes as an enum, in which a newer driver's code has
//! no place.
//!
//! *Unsafe*, relying on one promise: a symbol of the driver's name is the driver's call, as its manual declares it.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::path::Path;
use std::sync::Arc;

use cudarc::driver::sys::{
    CUDA_MEMCPY2D, CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUmemcpyAttributes, CUmodule, CUstream,
};
use libloading::Library;
use thiserror::Error;

/// The oldest driver whose calls are known here, CUDA 11.4.
const OLDEST_VERSION: i32 = 11_040;

/// What the driver is called, where the system's loader looks for it.
const NAMES: &[&str] = if cfg!(windows) { &["nvcuda.dll"] } else { &["libcuda.so.1", "libcuda.so"] };

/// A driver that cannot be used, or a device of it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DriverError {
    /// There is no driver.
    #[error("no CUDA driver: {reason}")]
    NotFound {
        /// What the system's loader said.
        reason: String,
    },
    /// The driver lacks a call that nothing goes without.
    #[error("the CUDA driver has no {symbol}")]
    MissingSymbol {
        /// The call.
        symbol: &'static str,
    },
    /// The driver is of before any that is known here.
    #[error("the CUDA driver is of CUDA {}; {} is needed", Version(*.found), Version(*.needed))]
    TooOld {
        /// As the driver tells it: 1000 times the major version and 10 times the minor.
        found: i32,
        /// In the same form.
        needed: i32,
    },
    /// The driver refused a call while it was set up.
    #[error("{call}: {reason}")]
    Refused {
        /// The call.
        call: &'static str,
        /// The driver's code.
        code: i32,
        /// What the driver calls it.
        reason: String,
    },
    /// No such device.
    #[error("no CUDA device {ordinal}: there are {device_count}")]
    UnknownDevice {
        /// The number asked for.
        ordinal: i32,
        /// Devices there are.
        device_count: i32,
    },
    /// The caller has no current context.
    #[error("this thread has no current CUDA context")]
    NoContext,
}

/// A version as people write it.
pub(super) struct Version(pub(super) i32);

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

/// Makes the table of calls: a field for each, found by its name in the library.
macro_rules! calls {
    (
        required { $($name:ident = $symbol:literal ($($argument:ty),*);)* }
        optional { $($other:ident = $other_symbol:literal ($($other_argument:ty),*);)* }
    ) => {
        /// The calls. Each returns the driver's code.
        #[derive(Clone, Copy)]
        pub(super) struct Calls {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> c_int,)*
            $(pub(super) $other: Option<unsafe extern "C" fn($($other_argument),*) -> c_int>,)*
        }

        impl Calls {
            /// # Safety
            ///
            /// What `look_up` finds is the driver's call of that name.
            unsafe fn new(look_up: impl Fn(&'static str) -> *const c_void) -> Result<Self, DriverError> {
                Ok(Self {
                    $($name: {
                        let found = look_up($symbol);
                        if found.is_null() {
                            return Err(DriverError::MissingSymbol { symbol: $symbol });
                        }
                        // SAFETY: a symbol that is found is the driver's call, by our caller's promise, whose type
                        // stands here as the driver's manual declares it.
                        unsafe {
                            std::mem::transmute::<*const c_void, unsafe extern "C" fn($($argument),*) -> c_int>(found)
                        }
                    },)*
                    $($other: {
                        let found = look_up($other_symbol);
                        // SAFETY: as above; null is none.
                        unsafe {
                            std::mem::transmute::<
                                *const c_void,
                                Option<unsafe extern "C" fn($($other_argument),*) -> c_int>,
                            >(found)
                        }
                    },)*
                })
            }
        }
    };
}

calls! {
    required {
        init = "cuInit" (c_uint);
        error_name = "cuGetErrorName" (c_int, *mut *const c_char);
        error_text = "cuGetErrorString" (c_int, *mut *const c_char);
        device_count = "cuDeviceGetCount" (*mut c_int);
        device = "cuDeviceGet" (*mut CUdevice, c_int);
        device_name = "cuDeviceGetName" (*mut c_char, c_int, CUdevice);
        device_attribute = "cuDeviceGetAttribute" (*mut c_int, c_int, CUdevice);
        device_bytes = "cuDeviceTotalMem_v2" (*mut usize, CUdevice);
        primary_retain = "cuDevicePrimaryCtxRetain" (*mut CUcontext, CUdevice);
        primary_release = "cuDevicePrimaryCtxRelease_v2" (CUdevice);
        context_current = "cuCtxGetCurrent" (*mut CUcontext);
        context_push = "cuCtxPushCurrent_v2" (CUcontext);
        context_pop = "cuCtxPopCurrent_v2" (*mut CUcontext);
        context_device = "cuCtxGetDevice" (*mut CUdevice);
        context_synchronize = "cuCtxSynchronize" ();
        memory_allocate = "cuMemAlloc_v2" (*mut CUdeviceptr, usize);
        memory_free = "cuMemFree_v2" (CUdeviceptr);
        memory_info = "cuMemGetInfo_v2" (*mut usize, *mut usize);
        host_allocate = "cuMemHostAlloc" (*mut *mut c_void, usize, c_uint);
        host_free = "cuMemFreeHost" (*mut c_void);
        host_register = "cuMemHostRegister_v2" (*mut c_void, usize, c_uint);
        host_unregister = "cuMemHostUnregister" (*mut c_void);
        host_device_pointer = "cuMemHostGetDevicePointer_v2" (*mut CUdeviceptr, *mut c_void, c_uint);
        pointer_attribute = "cuPointerGetAttribute" (*mut c_void, c_int, CUdeviceptr);
        copy_to_device = "cuMemcpyHtoDAsync_v2" (CUdeviceptr, *const c_void, usize, CUstream);
        copy_on_device = "cuMemcpyDtoDAsync_v2" (CUdeviceptr, CUdeviceptr, usize, CUstream);
        copy_to_host = "cuMemcpyDtoHAsync_v2" (*mut c_void, CUdeviceptr, usize, CUstream);
        copy_to_host_at_once = "cuMemcpyDtoH_v2" (*mut c_void, CUdeviceptr, usize);
        copy_to_device_at_once = "cuMemcpyHtoD_v2" (CUdeviceptr, *const c_void, usize);
        copy_rows = "cuMemcpy2DAsync_v2" (*const CUDA_MEMCPY2D, CUstream);
        fill = "cuMemsetD8Async" (CUdeviceptr, u8, usize, CUstream);
        fill_rows = "cuMemsetD2D8Async" (CUdeviceptr, usize, u8, usize, usize, CUstream);
        stream_create = "cuStreamCreate" (*mut CUstream, c_uint);
        stream_destroy = "cuStreamDestroy_v2" (CUstream);
        stream_synchronize = "cuStreamSynchronize" (CUstream);
        stream_query = "cuStreamQuery" (CUstream);
        stream_wait = "cuStreamWaitEvent" (CUstream, CUevent, c_uint);
        stream_context = "cuStreamGetCtx" (CUstream, *mut CUcontext);
        stream_capturing = "cuStreamIsCapturing" (CUstream, *mut c_int);
        capture_mode = "cuThreadExchangeStreamCaptureMode" (*mut c_int);
        event_create = "cuEventCreate" (*mut CUevent, c_uint);
        event_destroy = "cuEventDestroy_v2" (CUevent);
        event_record = "cuEventRecord" (CUevent, CUstream);
        event_query = "cuEventQuery" (CUevent);
    }
    optional {
        // In every driver. A device goes without them as long as it is not to run kernels.
        module_load = "cuModuleLoadData" (*mut CUmodule, *const c_void);
        module_unload = "cuModuleUnload" (CUmodule);
        module_function = "cuModuleGetFunction" (*mut CUfunction, CUmodule, *const c_char);
        launch = "cuLaunchKernel" (
            CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint,
            CUstream, *mut *mut c_void, *mut *mut c_void
        );
        // CUDA 11.7 and later.
        stream_wait_value = "cuStreamWaitValue32_v2" (CUstream, CUdeviceptr, u32, c_uint);
        stream_write_value = "cuStreamWriteValue32_v2" (CUstream, CUdeviceptr, u32, c_uint);
        // CUDA 12.8: the index of the entry that failed stands before the stream.
        copy_batch_with_index = "cuMemcpyBatchAsync" (
            *mut CUdeviceptr, *mut CUdeviceptr, *mut usize, usize,
            *mut CUmemcpyAttributes, *mut usize, usize, *mut usize, CUstream
        );
        // CUDA 13.0: it is gone.
        copy_batch = "cuMemcpyBatchAsync_v2" (
            *mut CUdeviceptr, *mut CUdeviceptr, *mut usize, usize,
            *mut CUmemcpyAttributes, *mut usize, usize, CUstream
        );
    }
}

/// A CUDA driver, found and started. Several may be in one process, and each serves any number of devices.
pub struct CudaDriver {
    pub(super) calls: Calls,
    version: i32,
}

impl std::fmt::Debug for CudaDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaDriver").field("version", &self.version).finish_non_exhaustive()
    }
}

impl CudaDriver {
    /// The system's driver.
    ///
    /// # Errors
    ///
    /// There is none, it lacks a call, is too old, or does not start, as without a device.
    pub fn open() -> Result<Arc<Self>, DriverError> {
        let mut reasons = Vec::new();
        for name in NAMES {
            // SAFETY: loading the vendor's driver under its own name runs what it runs at start and nothing else.
            match unsafe { Library::new(*name) } {
                // SAFETY: it goes by the driver's name on the system's own path.
                Ok(library) => return unsafe { Self::of_library(library) },
                Err(error) => reasons.push(in_full(&error)),
            }
        }
        Err(DriverError::NotFound { reason: reasons.join("; ") })
    }

    /// The driver in a file, such as an emulator.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    ///
    /// # Safety
    ///
    /// The library's symbols that have names of the driver's calls behave as those.
    pub unsafe fn open_at(path: &Path) -> Result<Arc<Self>, DriverError> {
        // SAFETY: our caller's promise.
        let library = unsafe { Library::new(path) };
        let library = library.map_err(|error| DriverError::NotFound { reason: in_full(&error) })?;
        // SAFETY: our caller's promise.
        unsafe { Self::of_library(library) }
    }

    unsafe fn of_library(library: Library) -> Result<Arc<Self>, DriverError> {
        // A driver that was started has threads of its own, so it is never unloaded.
        let library = ManuallyDrop::new(library);
        let look_up = |symbol: &'static str| {
            // SAFETY: a symbol stands where its call begins, so the pointer is the call's.
            let found = unsafe { library.get::<*const c_void>(symbol.as_bytes()) };
            found.map_or(std::ptr::null(), |found| *found)
        };
        // SAFETY: our caller's promise about the library, which stays in memory.
        unsafe { Self::from_symbols(look_up) }
    }

    /// The driver whose calls `look_up` finds by their names, null for none: where they are linked into the program, or
    /// stand behind a library that counts or filters them.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    ///
    /// # Safety
    ///
    /// What is found are the driver's calls of those names, and they stay in memory as long as the process.
    pub unsafe fn from_symbols(look_up: impl Fn(&'static str) -> *const c_void) -> Result<Arc<Self>, DriverError> {
        // SAFETY: our caller's promise.
        let (calls, version) = unsafe { start(look_up) }?;
        Ok(Arc::new(Self { calls, version }))
    }

    /// The newest CUDA version that the driver serves, 1000 times the major version and 10 times the minor.
    pub fn version(&self) -> i32 {
        self.version
    }

    /// Devices there are.
    ///
    /// # Errors
    ///
    /// The driver's own.
    pub fn device_count(&self) -> Result<i32, DriverError> {
        let mut count = 0;
        // SAFETY: the driver is started, and writes one number.
        self.set_up("cuDeviceGetCount", unsafe { (self.calls.device_count)(&raw mut count) })?;
        Ok(count)
    }

    /// What the driver calls a code: its name, the number, and its text.
    pub(super) fn reason(&self, code: i32) -> String {
        reason(&self.calls, code)
    }

    /// The code of a call of set-up as a result.
    pub(super) fn set_up(&self, call: &'static str, code: i32) -> Result<(), DriverError> {
        if code == 0 { Ok(()) } else { Err(DriverError::Refused { call, code, reason: self.reason(code) }) }
    }
}

/// An error and what it comes from.
fn in_full(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}

/// Finds the calls and starts the driver.
///
/// # Safety
///
/// What `look_up` finds is the driver's call of that name.
unsafe fn start(look_up: impl Fn(&'static str) -> *const c_void) -> Result<(Calls, i32), DriverError> {
    // A driver that is too old may lack calls, and is better called old.
    let found = look_up("cuDriverGetVersion");
    let mut version = 0;
    if !found.is_null() {
        // SAFETY: our caller's promise, and the type of the driver's manual.
        let call = unsafe { std::mem::transmute::<*const c_void, unsafe extern "C" fn(*mut c_int) -> c_int>(found) };
        // SAFETY: this call needs no started driver, and writes one number.
        let code = unsafe { call(&raw mut version) };
        if code == 0 && version < OLDEST_VERSION {
            return Err(DriverError::TooOld { found: version, needed: OLDEST_VERSION });
        }
    }
    // SAFETY: our caller's promise.
    let calls = unsafe { Calls::new(look_up) }?;
    // SAFETY: starting the driver has no precondition, and may be done any number of times.
    let code = unsafe { (calls.init)(0) };
    if code != 0 {
        return Err(DriverError::Refused { call: "cuInit", code, reason: reason(&calls, code) });
    }
    Ok((calls, version))
}

fn reason(calls: &Calls, code: i32) -> String {
    let word = |call: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int| {
        let mut word = std::ptr::null();
        // SAFETY: the driver writes a pointer, null for a code that it does not know.
        let code = unsafe { call(code, &raw mut word) };
        // SAFETY: the texts are the driver's own, ended by zero, and never freed.
        (code == 0 && !word.is_null()).then(|| unsafe { CStr::from_ptr(word) }.to_string_lossy().into_owned())
    };
    match (word(calls.error_name), word(calls.error_text)) {
        (Some(name), Some(text)) => format!("{name} ({code}): {text}"),
        (Some(name), None) => format!("{name} ({code})"),
        _ => format!("code {code}"),
    }
}
