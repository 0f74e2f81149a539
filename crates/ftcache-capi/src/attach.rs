//! The rows: where the experts lie on the host, and whether a device can read them there.

use std::ffi::c_void;

use ftcache_core::{BankId, HostAccess, HostMemory, HostRows, LayerId};

use crate::boundary::{SizedStruct, flag, read_sized, reserved};
use crate::cache::{enter, ftcache};
use crate::failure::Failure;
use crate::status::ftcache_status;

/// One bank of one layer in the caller's memory: a row for each expert.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_host_rows {
    /// sizeof(ftcache_host_rows).
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// The first expert's row. Any alignment.
    pub base: *const c_void,
    /// Bytes from base that may be read.
    pub bytes: u64,
    /// Bytes from one expert's row to the next; 0 means rows without gaps.
    pub stride: u64,
}

// SAFETY: `repr(C)`, a `u32` first, integers and pointers only; NULL is a value of a pointer.
unsafe impl SizedStruct for ftcache_host_rows {}

/// Attaches the rows of one bank of a layer, in any order; again after they have moved, with the same bytes. Waits for
/// what is enqueued if rows were attached before, else for nothing; may allocate.
///
/// The rows stay the caller's. They must stay readable and unchanged until they are attached anew or the cache is
/// freed, and until every stream that they are copied on has been synchronised. A bank whose row_bytes is 0 has none.
/// Rows that the device cannot read where they lie (pageable memory on CUDA) go through the bounce buffer, and are
/// refused if there is none: ftcache_register pins them.
///
/// # Safety
///
/// cache came from ftcache_new; rows points to a struct of its struct_size, and base to as many bytes as it
/// says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_attach(
    cache: *mut ftcache,
    layer: u32,
    bank: u32,
    rows: *const ftcache_host_rows,
) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        // SAFETY: points to a struct of its size by the caller's word.
        let rows = unsafe { read_sized(rows, "rows") }?;
        reserved(rows.reserved, "rows->reserved")?;
        if rows.base.is_null() {
            return Err(Failure::argument("rows->base is NULL"));
        }
        // SAFETY: the caller keeps `bytes` bytes readable and unchanged as long as they are attached.
        let rows = unsafe { HostRows::borrowed(rows.base.cast(), rows.bytes, rows.stride) };
        Ok(handle.on_device()?.attach(LayerId::new(layer), BankId::new(bank), rows)?)
    })
}

/// Pins host memory of the engine's where it lies, before rows in it are attached. May allocate; blocks while the
/// system pins.
///
/// part_bytes not 0: in parts of so many bytes, where one call would be refused; a multiple of the page size, from a
/// base that is one. Of 0 bytes nothing is pinned, and there is nothing to unregister. read_only 1: for memory that is
/// mapped read-only, such as a model file. It ends with ftcache_unregister or ftcache_free, and must stay mapped until
/// then. Memory that the engine pinned by itself needs no call.
///
/// # Safety
///
/// cache came from ftcache_new; base points to bytes bytes that stay mapped until they are unregistered.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_register(
    cache: *mut ftcache,
    base: *const c_void,
    bytes: u64,
    read_only: u32,
    part_bytes: u64,
) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        if base.is_null() {
            return Err(Failure::argument("base is NULL"));
        }
        let access = if flag(read_only, "read_only")? { HostAccess::ReadOnly } else { HostAccess::ReadWrite };
        // SAFETY: the memory stays mapped until it is unregistered, by the caller's word.
        let memory = unsafe { HostMemory::borrowed(base.cast(), bytes) };
        Ok(handle.on_device()?.register(memory, access, part_bytes)?)
    })
}

/// Ends what ftcache_register began at base. Waits for everything enqueued. Rows in it must be attached anew, from
/// elsewhere, before they are copied again. May allocate.
///
/// # Safety
///
/// cache came from ftcache_new.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_unregister(cache: *mut ftcache, base: *const c_void) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        if base.is_null() {
            return Err(Failure::argument("base is NULL"));
        }
        Ok(handle.on_device()?.unregister(base.cast())?)
    })
}
