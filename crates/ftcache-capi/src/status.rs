//! Version, status codes and the message of the last error.

use std::ffi::c_char;

use crate::boundary;

/// The version of this header. It grows when something is added; what is there keeps its meaning.
pub const FTCACHE_ABI_VERSION: u32 = 1;

/// What a call came to. Numbers never change their meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum ftcache_status {
    /// Done.
    Ok = 0,
    /// A NULL, a size or a value that the call cannot take; the message names the parameter. Nothing has changed.
    InvalidArgument = 1,
    /// A layer, bank, pool, slot or expert that does not exist. Nothing has changed.
    OutOfRange = 2,
    /// A model or geometry that cannot be had; the message gives what is needed and what is given.
    Unsatisfiable = 3,
    /// More distinct experts in a step than the pool has slots. Nothing has changed.
    StepTooWide = 4,
    /// The layer has a bank without rows. Nothing has changed.
    NotAttached = 5,
    /// The device has not the memory. Nothing stays allocated.
    OutOfMemory = 6,
    /// The device did not do what was asked. After ftcache_load the slots that the message names are free, and the step
    /// may be tried again. Where a call says that it tells of earlier ones, this one has changed nothing.
    Device = 7,
    /// Another call is inside the same handle, on another thread or on this one from a callback. Nothing has changed.
    Busy = 8,
    /// An earlier call on this handle panicked; only ftcache_free works.
    Poisoned = 9,
    /// A fault of ours. The handle, if one was given, is poisoned: half-changed maps must not feed a multiply.
    Panicked = 10,
    /// The cache, its device or its driver cannot do that at all: a cache without a device copies nothing, a host
    /// device runs no kernels. Nothing has changed.
    Unsupported = 11,
    /// The call is out of order: a plan or a chunk is open or is not, the cache is in device mode or is not, a stream
    /// is being captured. Nothing has changed.
    OutOfOrder = 12,
    /// The row of an expert is on its way behind an earlier step, so that a step that fetches every miss has to wait
    /// for it, and so has what would give its slot to another: try again once it has landed. Nothing has changed.
    InFlight = 13,
    /// A rebuild left no slots. Another, of fewer bytes, may bring some back; every call that needs slots says so until
    /// then.
    Unavailable = 14,
    /// Launches on the device were refused since the last look: they wrote -1 for every route and left the maps as they
    /// were.
    LaunchRefused = 15,
    /// A file could not be read, or host memory could not be had or pinned.
    Host = 16,
}

/// The version that the library was built with, to be compared with FTCACHE_ABI_VERSION.
///
/// A library of a higher version serves this header; one of a lower version does not.
#[unsafe(no_mangle)]
pub extern "C" fn ftcache_abi_version() -> u32 {
    FTCACHE_ABI_VERSION
}

/// The message of the last call on this thread that did not return FTCACHE_STATUS_OK: one line, with the thing and both
/// numbers. Never NULL; empty if there was none.
///
/// The text is owned by the library and valid until the next call on this thread.
#[unsafe(no_mangle)]
pub extern "C" fn ftcache_last_error() -> *const c_char {
    boundary::last_error()
}

/// Copies the message of ftcache_last_error to a buffer of the caller, cut to fit and always ended by a zero.
///
/// Returns the bytes that the whole message needs, its ending zero included. buffer may be NULL if capacity is 0.
///
/// # Safety
///
/// buffer points to capacity writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ftcache_last_error_copy(buffer: *mut c_char, capacity: usize) -> usize {
    // SAFETY: the caller gives `capacity` writable bytes, as the header says.
    unsafe { boundary::copy_last_error(buffer, capacity) }
}
