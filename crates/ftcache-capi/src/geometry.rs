//! The geometry: pools and slots for a budget, before anything is allocated.

use ftcache_core::{BankId, Budget, Constraints, Geometry, LayerId, Pool, PoolId, Scope, TailPad};

use crate::boundary::{Failure, SizedStruct, guard, read_sized, required, required_mut, reserved, write_sized};
use crate::model::ftcache_model;
use crate::status::ftcache_status;

/// Which layers share a pool of slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ftcache_scope {
    /// All layers of equal row bytes and equal tag.
    Unified = 0,
    /// None: each layer has its own.
    PerLayer = 1,
}

/// How many bytes follow a pool's last slot, for kernels that read past a row's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ftcache_tail_pad {
    /// As many as the row has, up to 512.
    Row = 0,
    /// tail_pad_bytes.
    Bytes = 1,
}

/// What is wanted of a geometry. Exactly one of budget_bytes and slot_count is not 0.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_geometry_config {
    /// sizeof(ftcache_geometry_config).
    pub struct_size: u32,
    /// An ftcache_scope.
    pub scope: u32,
    /// Bytes over all arenas, pads included; never exceeded, and no pool could take one more slot.
    pub budget_bytes: u64,
    /// Slots over all pools.
    pub slot_count: u64,
    /// Requests decoded at once; each pool gets at least what one step of them can need. 0 means 1.
    pub request_count: u32,
    /// The most slots that the engine's kernels index in one pool. 0 means no limit.
    pub slot_limit: u32,
    /// Slot strides and pool offsets are multiples of this power of two. 0 means 1: rows without gaps.
    pub alignment: u64,
    /// Bytes between the end of a row and the next slot.
    pub slot_pad_bytes: u64,
    /// An ftcache_tail_pad.
    pub tail_pad: u32,
    /// 0.
    pub reserved: u32,
    /// Bytes after a pool's last slot, if tail_pad is FTCACHE_TAIL_PAD_BYTES.
    pub tail_pad_bytes: u64,
}

// SAFETY: `repr(C)`, a `u32` first, integers only.
unsafe impl SizedStruct for ftcache_geometry_config {}

/// What a geometry came to.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_geometry_report {
    /// sizeof(ftcache_geometry_report), set by the caller.
    pub struct_size: u32,
    /// Pools, numbered from 0 in the order in which they lie in the arenas.
    pub pool_count: u32,
    /// Banks: the most that any layer has.
    pub bank_count: u32,
    /// Requests that can be decoded at once; 0 if any number can.
    pub request_limit: u32,
    /// Slots over all pools.
    pub slot_count: u64,
    /// Bytes of all arenas: what the engine sets aside on the device.
    pub total_bytes: u64,
    /// Of these, bytes that hold no row.
    pub pad_bytes: u64,
}

// SAFETY: `repr(C)`, a `u32` first, integers only.
unsafe impl SizedStruct for ftcache_geometry_report {}

/// One pool of a geometry.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_pool_report {
    /// sizeof(ftcache_pool_report), set by the caller.
    pub struct_size: u32,
    /// Slots.
    pub slot_count: u32,
    /// Layers that share them.
    pub layer_count: u32,
    /// The least slots it could have had.
    pub min_slots: u32,
    /// The most.
    pub max_slots: u32,
    /// 0.
    pub reserved: u32,
    /// Bytes of one slot over all banks, pads between slots included.
    pub slot_bytes: u64,
    /// Bytes of the pool over all banks, pads included.
    pub pool_bytes: u64,
}

// SAFETY: `repr(C)`, a `u32` first, integers only.
unsafe impl SizedStruct for ftcache_pool_report {}

/// Where the slots of one pool lie in one bank's arena.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_slot_range {
    /// sizeof(ftcache_slot_range), set by the caller.
    pub struct_size: u32,
    /// Slots.
    pub slot_count: u32,
    /// Bytes of a row; 0 if the pool's layers do not read this bank.
    pub row_bytes: u64,
    /// Bytes from one slot to the next.
    pub stride: u64,
    /// Bytes from the start of the arena to slot 0.
    pub offset: u64,
    /// Bytes after the last slot.
    pub tail_pad_bytes: u64,
    /// Bytes of the whole arena.
    pub arena_bytes: u64,
}

// SAFETY: `repr(C)`, a `u32` first, integers only.
unsafe impl SizedStruct for ftcache_slot_range {}

/// Pools and arenas for a budget. It never changes: any number of threads may ask it at once, and it may be freed while
/// caches that were made of it live on.
pub struct ftcache_geometry {
    pub(crate) geometry: Geometry,
}

fn constraints(config: &ftcache_geometry_config) -> Result<Constraints, Failure> {
    reserved(config.reserved, "config->reserved")?;
    let budget = match (config.budget_bytes, config.slot_count) {
        (0, 0) => return Err(Failure::argument("config has neither budget_bytes nor slot_count")),
        (bytes, 0) => Budget::Bytes(bytes),
        (0, slots) => Budget::Slots(slots),
        (bytes, slots) => {
            let message = format!("config has both budget_bytes {bytes} and slot_count {slots}; one of them must be 0");
            return Err(Failure::argument(message));
        }
    };
    let scope = match config.scope {
        scope if scope == ftcache_scope::Unified as u32 => Scope::Unified,
        scope if scope == ftcache_scope::PerLayer as u32 => Scope::PerLayer,
        other => return Err(Failure::argument(format!("config->scope is {other}, not an ftcache_scope"))),
    };
    let mut constraints = Constraints::new(budget);
    match config.tail_pad {
        rule if rule == ftcache_tail_pad::Row as u32 && config.tail_pad_bytes > 0 => {
            let message = format!(
                "config->tail_pad_bytes is {}, which counts only if tail_pad is FTCACHE_TAIL_PAD_BYTES",
                config.tail_pad_bytes
            );
            return Err(Failure::argument(message));
        }
        rule if rule == ftcache_tail_pad::Row as u32 => {}
        rule if rule == ftcache_tail_pad::Bytes as u32 => {
            constraints.tail_pad = TailPad::Bytes(config.tail_pad_bytes);
        }
        other => return Err(Failure::argument(format!("config->tail_pad is {other}, not an ftcache_tail_pad"))),
    }
    constraints.scope = scope;
    constraints.request_count = config.request_count.max(1);
    constraints.slot_limit = (config.slot_limit > 0).then_some(config.slot_limit);
    constraints.alignment = config.alignment.max(1);
    constraints.slot_pad_bytes = config.slot_pad_bytes;
    Ok(constraints)
}

/// Makes a geometry, or says which two numbers conflict. Pure: touches no device, and the model may be freed
/// afterwards.
///
/// *out is set to NULL if this does not succeed; else the caller frees it with ftcache_geometry_free.
///
/// # Safety
///
/// model came from ftcache_model_new; config points to a struct of its struct_size; out points to a pointer.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_geometry_new(
    model: *const ftcache_model,
    config: *const ftcache_geometry_config,
    out: *mut *mut ftcache_geometry,
) -> ftcache_status {
    guard(|| {
        // SAFETY: `out` points to a pointer by the caller's word.
        let out = unsafe { required_mut(out, "out") }?;
        *out = std::ptr::null_mut();
        // SAFETY: a handle of ours by the caller's word.
        let model = unsafe { required(model, "model") }?;
        // SAFETY: points to a struct of its size by the caller's word.
        let config = unsafe { read_sized(config, "config") }?;
        let geometry = Geometry::new(model.build()?, constraints(&config)?)?;
        *out = Box::into_raw(Box::new(ftcache_geometry { geometry }));
        Ok(())
    })
}

/// What the geometry came to.
///
/// # Safety
///
/// geometry came from ftcache_geometry_new; report points to a struct of its struct_size.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_geometry_get(
    geometry: *const ftcache_geometry,
    report: *mut ftcache_geometry_report,
) -> ftcache_status {
    guard(|| {
        // SAFETY: a handle of ours by the caller's word.
        let geometry = &unsafe { required(geometry, "geometry") }?.geometry;
        let value = ftcache_geometry_report {
            struct_size: 0,
            pool_count: geometry.pools().len() as u32,
            bank_count: geometry.model().bank_count() as u32,
            request_limit: geometry.request_limit().unwrap_or(0),
            slot_count: geometry.slot_count(),
            total_bytes: geometry.total_bytes(),
            pad_bytes: geometry.pad_bytes(),
        };
        // SAFETY: points to a struct of its size by the caller's word.
        unsafe { write_sized(report, "report", value) }
    })
}

/// What one pool came to.
///
/// # Safety
///
/// geometry came from ftcache_geometry_new; report points to a struct of its struct_size.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_geometry_pool_get(
    geometry: *const ftcache_geometry,
    pool: u32,
    report: *mut ftcache_pool_report,
) -> ftcache_status {
    guard(|| {
        // SAFETY: a handle of ours by the caller's word.
        let geometry = &unsafe { required(geometry, "geometry") }?.geometry;
        let pool = known_pool(geometry, pool)?;
        let value = ftcache_pool_report {
            struct_size: 0,
            slot_count: pool.slot_count(),
            layer_count: pool.layers().len() as u32,
            min_slots: pool.bounds().min_slots,
            max_slots: pool.bounds().max_slots,
            reserved: 0,
            slot_bytes: pool.slot_bytes(),
            pool_bytes: pool.pool_bytes(),
        };
        // SAFETY: points to a struct of its size by the caller's word.
        unsafe { write_sized(report, "report", value) }
    })
}

/// The pool that serves a layer.
///
/// # Safety
///
/// geometry came from ftcache_geometry_new; pool points to a uint32_t.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_geometry_layer_pool(
    geometry: *const ftcache_geometry,
    layer: u32,
    pool: *mut u32,
) -> ftcache_status {
    guard(|| {
        // SAFETY: a handle of ours by the caller's word.
        let geometry = &unsafe { required(geometry, "geometry") }?.geometry;
        // SAFETY: points to a `u32` by the caller's word.
        let pool = unsafe { required_mut(pool, "pool") }?;
        let layer_count = geometry.model().layer_count();
        if layer as usize >= layer_count {
            return Err(Failure::range(format!("no layer {layer}: the model has {layer_count} layers")));
        }
        let serving = geometry.pool_of_layer(LayerId::new(layer));
        *pool = serving.ok_or_else(|| Failure::range(format!("layer {layer} holds no slots")))?.get();
        Ok(())
    })
}

/// Where the slots of one pool lie in one bank's arena.
///
/// # Safety
///
/// geometry came from ftcache_geometry_new; range points to a struct of its struct_size.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_geometry_slot_range_get(
    geometry: *const ftcache_geometry,
    pool: u32,
    bank: u32,
    range: *mut ftcache_slot_range,
) -> ftcache_status {
    guard(|| {
        // SAFETY: a handle of ours by the caller's word.
        let geometry = &unsafe { required(geometry, "geometry") }?.geometry;
        let pool = known_pool(geometry, pool)?;
        let bank = BankId::new(bank);
        let bank_count = geometry.model().bank_count();
        let slots = pool.ranges().get(bank.index());
        let slots = slots.ok_or_else(|| Failure::range(format!("no bank {bank}: the model has {bank_count} banks")))?;
        let value = ftcache_slot_range {
            struct_size: 0,
            slot_count: pool.slot_count(),
            row_bytes: slots.row_bytes,
            stride: slots.stride,
            offset: slots.offset,
            tail_pad_bytes: slots.tail_pad_bytes,
            arena_bytes: geometry.arena_bytes()[bank.index()],
        };
        // SAFETY: points to a struct of its size by the caller's word.
        unsafe { write_sized(range, "range", value) }
    })
}

/// Frees a geometry; NULL is accepted.
#[unsafe(no_mangle)]
pub extern "C" fn ftcache_geometry_free(geometry: Option<Box<ftcache_geometry>>) {
    let _ = guard(|| {
        drop(geometry);
        Ok(())
    });
}

fn known_pool(geometry: &Geometry, pool: u32) -> Result<&Pool, Failure> {
    let pool_count = geometry.pools().len();
    let known = geometry.pools().get(PoolId::new(pool).index());
    known.ok_or_else(|| Failure::range(format!("no pool {pool}: the geometry has {pool_count} pools")))
}
