//! What was found out about the device: its facts, how copies go, whether the arenas lie where they should.

use std::ffi::c_char;

use ftcache_core::{BatchReport, Device};

use crate::boundary::{SizedStruct, required_mut, write_sized, write_text};
use crate::cache::{enter, ftcache};
use crate::failure::Failure;
use crate::status::ftcache_status;

/// What was found out about the device.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_device_facts {
    /// sizeof(ftcache_device_facts), set by the caller.
    pub struct_size: u32,
    /// The CUDA device's number; 0 on the host.
    pub ordinal: u32,
    /// The newest CUDA version that the driver serves, 1000 times the major version and 10 times the minor; 0 on the
    /// host.
    pub driver_version: u32,
    /// Compute capability, 10 times the major version and the minor; 0 on the host.
    pub capability: u32,
    /// Bytes of device memory; 0 on the host.
    pub memory_bytes: u64,
    /// Free bytes of it; 0 if that is not known.
    pub free_bytes: u64,
    /// 1 if streams wait for words of the host's by themselves, which a bounce buffer needs.
    pub waits_for_words: u32,
    /// 1 if memory that is mapped read-only can be registered.
    pub registers_read_only: u32,
    /// 1 if rows are copied in batches, 0 if one by one; the text has the reason.
    pub copies_in_batches: u32,
    /// 0.
    pub reserved: u32,
    /// In batches, entries narrower than this go alone, since a batch with one makes the call wait.
    pub alone_below_bytes: u64,
}

// SAFETY: `repr(C)`, a `u32` first, integers only.
unsafe impl SizedStruct for ftcache_device_facts {}

/// What was found out about the device when the cache was made. Asks it for its free memory; allocates nothing, waits
/// for nothing.
///
/// # Safety
///
/// cache came from ftcache_new; facts points to a struct of its struct_size.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_device_facts_get(
    cache: *mut ftcache,
    facts: *mut ftcache_device_facts,
) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        let device = handle.on_device()?.device();
        let found = device.cuda().map(|device| device.facts());
        let batches = device.cuda().map(|device| device.batches());
        let value = ftcache_device_facts {
            struct_size: 0,
            ordinal: found.map_or(0, |found| found.ordinal as u32),
            driver_version: found.map_or(0, |found| found.driver_version as u32),
            capability: found.map_or(0, |found| (found.capability.0 * 10 + found.capability.1) as u32),
            memory_bytes: found.map_or(0, |found| found.memory_bytes),
            free_bytes: device.free_bytes().unwrap_or(0),
            waits_for_words: u32::from(found.map_or(device.waits_for_host(), |found| found.waits_for_words)),
            registers_read_only: u32::from(found.is_none_or(|found| found.registers_read_only)),
            copies_in_batches: u32::from(matches!(batches, Some(BatchReport::On { .. }))),
            reserved: 0,
            alone_below_bytes: match batches {
                Some(BatchReport::On { alone_below_bytes, .. }) => *alone_below_bytes,
                _ => 0,
            },
        };
        // SAFETY: points to a struct of its size by the caller's word.
        unsafe { write_sized(facts, "facts", value) }
    })
}

/// The same for people, with the device's name and, if copies go one by one, the reason: one fact a line. The text is
/// cut to fit and ended by a zero; *needed is set to the bytes of all of it, and may be NULL. Allocates; waits for
/// nothing.
///
/// # Safety
///
/// cache came from ftcache_new; buffer points to capacity writable bytes; needed is NULL or points to a
/// number.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_device_text(
    cache: *mut ftcache,
    buffer: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        let device = handle.on_device()?.device();
        let text = match device.cuda() {
            None => format!("{}\n", device.name()),
            Some(device) => format!("{}\n{}\n", device.facts(), device.batches()),
        };
        // SAFETY: the caller gives `capacity` writable bytes, and a number, as the header says.
        unsafe { write_text(&text, buffer, capacity, needed) }
    })
}

/// Measures whether every arena lies on the device, before any rows are attached: where device memory may overflow into
/// the host's, one that does not is far slower, without an error. *spilled is set to the number of those that do not.
///
/// Allocates up to 256 MiB of device memory for the moment; waits for everything enqueued. The text has each arena's
/// rate; it is cut to fit and ended by a zero, and buffer may be NULL if capacity is 0.
///
/// # Safety
///
/// cache came from ftcache_new; spilled points to a uint32_t; buffer points to capacity writable bytes.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_arenas_measure(
    cache: *mut ftcache,
    spilled: *mut u32,
    buffer: *mut c_char,
    capacity: usize,
) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        // SAFETY: points to a number by the caller's word.
        let spilled = unsafe { required_mut(spilled, "spilled") }?;
        if buffer.is_null() && capacity > 0 {
            return Err(Failure::argument(format!("buffer is NULL, with a capacity of {capacity}")));
        }
        let report = handle.on_device()?.measure_arenas()?;
        *spilled = report.spilled().count() as u32;
        if *spilled > 0 {
            tracing::warn!("{report}");
        }
        // SAFETY: the caller gives `capacity` writable bytes, as the header says.
        unsafe { write_text(&report.to_string(), buffer, capacity, std::ptr::null_mut()) }
    })
}
