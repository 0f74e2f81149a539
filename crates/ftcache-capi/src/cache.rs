//! The cache: made of a geometry on a device, given its rows, asked where slots lie.

use std::ffi::c_void;

use ftcache_core::{BankId, Cache, HostDevice, HostRows, LayerId, PoolId, SlotId};

use crate::boundary::{
    Failure, Guarded, SizedStruct, guard, read_sized, required, required_mut, reserved, write_sized,
};
use crate::geometry::ftcache_geometry;
use crate::status::ftcache_status;

/// What holds the slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ftcache_device {
    /// Ordinary memory: no GPU is needed, and every copy is done when the call returns. It has the default stream
    /// alone.
    Host = 0,
}

/// How a cache is made.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_config {
    /// sizeof(ftcache_config).
    pub struct_size: u32,
    /// An ftcache_device.
    pub device: u32,
    /// Bytes that the device may have, for trying out small ones; 0 means as many as there are.
    pub device_bytes: u64,
}

// SAFETY: `repr(C)`, a `u32` first, integers only.
unsafe impl SizedStruct for ftcache_config {}

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

/// The slots of one pool in one bank: slot i lies at address + i * stride.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_slot_span {
    /// sizeof(ftcache_slot_span), set by the caller.
    pub struct_size: u32,
    /// Slots.
    pub slot_count: u32,
    /// Device address of slot 0, a multiple of the geometry's alignment and of 64 if no pool lies before. It does not
    /// move as long as the cache lives.
    pub address: *mut c_void,
    /// Bytes from one slot to the next.
    pub stride: u64,
    /// Bytes of a row.
    pub row_bytes: u64,
}

// SAFETY: `repr(C)`, a `u32` first, integers and pointers only; NULL is a value of a pointer.
unsafe impl SizedStruct for ftcache_slot_span {}

/// A cache of one model's experts on one device. Handles share nothing, so a draft model makes its own or has none.
///
/// One thread at a time: a second one that comes in is given FTCACHE_STATUS_BUSY. Any thread may be that one.
pub struct ftcache {
    pub(crate) cache: Guarded<Cache<HostDevice>>,
}

/// Makes a cache: allocates every slot on the device, filled with zeros. Allocates; may block.
///
/// config may be NULL for the defaults. The geometry may be freed afterwards. *out is set to NULL if this does not
/// succeed; else the caller frees it with ftcache_free.
///
/// # Safety
///
/// geometry came from ftcache_geometry_new; config is NULL or points to a struct of its struct_size; out points to a
/// pointer.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_new(
    geometry: *const ftcache_geometry,
    config: *const ftcache_config,
    out: *mut *mut ftcache,
) -> ftcache_status {
    guard(|| {
        // SAFETY: `out` points to a pointer by the caller's word.
        let out = unsafe { required_mut(out, "out") }?;
        *out = std::ptr::null_mut();
        // SAFETY: a handle of ours by the caller's word.
        let geometry = unsafe { required(geometry, "geometry") }?;
        let mut device = HostDevice::new();
        if !config.is_null() {
            // SAFETY: points to a struct of its size by the caller's word.
            let config = unsafe { read_sized(config, "config") }?;
            if config.device != ftcache_device::Host as u32 {
                let message = format!("config->device is {}, not an ftcache_device", config.device);
                return Err(Failure::argument(message));
            }
            if config.device_bytes > 0 {
                device = device.with_limit(config.device_bytes);
            }
        }
        let cache = Cache::new(geometry.geometry.clone(), device)?;
        *out = Box::into_raw(Box::new(ftcache { cache: Guarded::new(cache) }));
        Ok(())
    })
}

/// Attaches the rows of one bank of a layer, in any order; again after they have moved, with the same bytes.
///
/// The rows stay the caller's. They must stay readable and unchanged until they are attached anew or the cache is
/// freed, and until every stream that they are copied on has been synchronised. A bank whose row_bytes is 0 has none.
///
/// # Safety
///
/// cache came from ftcache_new; rows points to a struct of its struct_size, and base to as many bytes as it says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_attach(
    cache: *mut ftcache,
    layer: u32,
    bank: u32,
    rows: *const ftcache_host_rows,
) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |cache| {
        // SAFETY: points to a struct of its size by the caller's word.
        let rows = unsafe { read_sized(rows, "rows") }?;
        reserved(rows.reserved, "rows->reserved")?;
        if rows.base.is_null() {
            return Err(Failure::argument("rows->base is NULL"));
        }
        // SAFETY: the caller keeps `bytes` bytes readable and unchanged as long as they are attached.
        let rows = unsafe { HostRows::borrowed(rows.base.cast(), rows.bytes, rows.stride) };
        Ok(cache.attach(LayerId::new(layer), BankId::new(bank), rows)?)
    })
}

/// Where the slots of one pool lie in one bank, for the engine's kernels. Allocates nothing, waits for nothing.
///
/// address is NULL and row_bytes 0 if the pool's layers do not read that bank.
///
/// # Safety
///
/// cache came from ftcache_new; span points to a struct of its struct_size.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_slot_span_get(
    cache: *mut ftcache,
    pool: u32,
    bank: u32,
    span: *mut ftcache_slot_span,
) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |cache| {
        let slots = cache.slots(PoolId::new(pool), BankId::new(bank))?;
        let value = ftcache_slot_span {
            struct_size: 0,
            slot_count: slots.map_or(0, |slots| slots.slot_count),
            address: slots.map_or(0, |slots| slots.address) as *mut c_void,
            stride: slots.map_or(0, |slots| slots.stride),
            row_bytes: slots.map_or(0, |slots| slots.row_bytes),
        };
        // SAFETY: points to a struct of its size by the caller's word.
        unsafe { write_sized(span, "span", value) }
    })
}

/// Frees one slot: its expert is copied anew when it is next routed to. Slots that were forgotten are taken first.
///
/// Allocates nothing, waits for nothing.
///
/// # Safety
///
/// cache came from ftcache_new.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_forget(cache: *mut ftcache, pool: u32, slot: u32) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |cache| {
        cache.forget(PoolId::new(pool), SlotId::new(slot))?;
        Ok(())
    })
}

/// Frees every slot that holds an expert of a layer. Allocates nothing, waits for nothing.
///
/// # Safety
///
/// cache came from ftcache_new.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_forget_layer(cache: *mut ftcache, layer: u32) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |cache| {
        cache.forget_layer(LayerId::new(layer))?;
        Ok(())
    })
}

/// Frees every slot. Statistics go on. Allocates nothing, waits for nothing.
///
/// # Safety
///
/// cache came from ftcache_new.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_reset(cache: *mut ftcache) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |cache| Ok(cache.reset()?))
}

/// Frees a cache and its slots, once what is enqueued is done; NULL is accepted. No other call may be inside it.
#[unsafe(no_mangle)]
pub extern "C" fn ftcache_free(cache: Option<Box<ftcache>>) {
    let _ = guard(|| {
        drop(cache);
        Ok(())
    });
}

/// Runs a body inside a handle that must not be NULL.
pub(crate) fn enter(
    handle: Option<&ftcache>,
    body: impl FnOnce(&mut Cache<HostDevice>) -> Result<(), Failure>,
) -> ftcache_status {
    match handle {
        Some(handle) => handle.cache.enter(body),
        None => guard(|| Err(Failure::argument("cache is NULL"))),
    }
}
