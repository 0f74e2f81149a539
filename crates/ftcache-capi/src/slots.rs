//! Slots: where they lie, which are freed and which are kept.

use std::ffi::c_void;

use ftcache_core::{BankId, ExpertId, LayerId, PoolId, SlotId, residency};

use crate::boundary::{SizedStruct, array, write_sized};
use crate::cache::{Engine, enter, ftcache};
use crate::failure::Failure;
use crate::status::ftcache_status;

/// The slots of one pool in one bank: slot i lies at address + i * stride.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_slot_span {
    /// sizeof(ftcache_slot_span), set by the caller.
    pub struct_size: u32,
    /// Slots.
    pub slot_count: u32,
    /// Device address of slot 0, a multiple of the settings' alignment; in memory that the cache allocated also of 64,
    /// if no pool lies before. It does not move until the cache is rebuilt: see ftcache_generation.
    pub address: *mut c_void,
    /// Bytes from one slot to the next.
    pub stride: u64,
    /// Bytes of a row.
    pub row_bytes: u64,
}

// SAFETY: `repr(C)`, a `u32` first, integers and pointers only; NULL is a value of a pointer.
unsafe impl SizedStruct for ftcache_slot_span {}

/// Whose row a slot holds.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_slot_owner {
    /// sizeof(ftcache_slot_owner), set by the caller.
    pub struct_size: u32,
    /// 1 if the slot holds a row; 0 if it is free, or if its row is on its way behind a step.
    pub is_there: u32,
    /// The expert's layer.
    pub layer: u32,
    /// The expert.
    pub expert: u32,
}

// SAFETY: `repr(C)`, a `u32` first, integers only.
unsafe impl SizedStruct for ftcache_slot_owner {}

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
    enter(unsafe { cache.as_ref() }, |handle| {
        let cache = handle.on_device()?;
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

/// Whose row a slot holds, for engines that keep something of their own beside each. In device mode, of the time when
/// the residency went there. Allocates nothing, waits for nothing.
///
/// # Safety
///
/// cache came from ftcache_new; owner points to a struct of its struct_size.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_slot_owner_get(
    cache: *mut ftcache,
    pool: u32,
    slot: u32,
    owner: *mut ftcache_slot_owner,
) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        let (pool, slot) = (PoolId::new(pool), SlotId::new(slot));
        let residency = handle.residency();
        check_slot(residency, pool, slot)?;
        let held = residency.expert_of(pool, slot);
        let value = ftcache_slot_owner {
            struct_size: 0,
            is_there: u32::from(held.is_some()),
            layer: held.map_or(0, |(layer, _)| layer.get()),
            expert: held.map_or(0, |(_, expert)| expert.get()),
        };
        // SAFETY: points to a struct of its size by the caller's word.
        unsafe { write_sized(owner, "owner", value) }
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
    enter(unsafe { cache.as_ref() }, |handle| {
        let (pool, slot) = (PoolId::new(pool), SlotId::new(slot));
        match &mut handle.engine {
            Engine::Device(cache) => {
                cache.forget(pool, slot)?;
            }
            Engine::Planner(planner) => {
                let cache = planner.cache_mut()?;
                check_slot(cache, pool, slot)?;
                cache.forget(pool, slot);
            }
        }
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
    enter(unsafe { cache.as_ref() }, |handle| {
        let layer = LayerId::new(layer);
        match &mut handle.engine {
            Engine::Device(cache) => cache.forget_layer(layer)?,
            Engine::Planner(planner) => planner.cache_mut()?.forget_layer(layer)?,
        };
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
    enter(unsafe { cache.as_ref() }, |handle| match &mut handle.engine {
        Engine::Device(cache) => Ok(cache.reset()?),
        Engine::Planner(planner) => {
            planner.cache_mut()?.reset();
            Ok(())
        }
    })
}

/// Pins experts: once in a slot, they are never victims. Allocates; waits for nothing.
///
/// layers and experts are of count numbers each: expert experts[i] of layer layers[i]. Every pool keeps as many slots
/// for others as one step of the configured requests can need; if it would not, none is pinned.
///
/// # Safety
///
/// cache came from ftcache_new; layers and experts point to count numbers each.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_pin(
    cache: *mut ftcache,
    layers: *const u32,
    experts: *const u32,
    count: u64,
) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        // SAFETY: `count` numbers each, by the caller's word.
        let experts = unsafe { experts_of(layers, experts, count) }?;
        match &mut handle.engine {
            Engine::Device(cache) => Ok(cache.pin(&experts)?),
            Engine::Planner(planner) => {
                let pools = handle.configuration.geometry().pools();
                let widest = pools.iter().map(|pool| pool.bounds().min_slots).max().unwrap_or(0);
                Ok(planner.cache_mut()?.pin(&experts, widest)?)
            }
        }
    })
}

/// Makes experts victims like others again; ones that are not pinned stay as they are. May allocate; waits for nothing.
///
/// # Safety
///
/// cache came from ftcache_new; layers and experts point to count numbers each.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_unpin(
    cache: *mut ftcache,
    layers: *const u32,
    experts: *const u32,
    count: u64,
) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        // SAFETY: `count` numbers each, by the caller's word.
        let experts = unsafe { experts_of(layers, experts, count) }?;
        match &mut handle.engine {
            Engine::Device(cache) => Ok(cache.unpin(&experts)?),
            Engine::Planner(planner) => Ok(planner.cache_mut()?.unpin(&experts)?),
        }
    })
}

/// Whether a pool exists, for a cache whose own calls take that for granted.
pub(crate) fn check_pool(cache: &residency::Cache, pool: PoolId) -> Result<(), Failure> {
    let pool_count = cache.pool_count();
    if pool.index() >= pool_count {
        return Err(ftcache_core::Error::UnknownPool { pool, pool_count }.into());
    }
    Ok(())
}

/// The same for a slot.
fn check_slot(cache: &residency::Cache, pool: PoolId, slot: SlotId) -> Result<(), Failure> {
    check_pool(cache, pool)?;
    let slot_count = cache.slot_count(pool);
    if slot.get() >= slot_count {
        return Err(ftcache_core::Error::UnknownSlot { pool, slot, slot_count }.into());
    }
    Ok(())
}

/// # Safety
///
/// `layers` and `experts` are NULL or point to `count` numbers each.
unsafe fn experts_of(layers: *const u32, experts: *const u32, count: u64) -> Result<Vec<(LayerId, ExpertId)>, Failure> {
    // SAFETY: by this function's own promise.
    let layers = unsafe { array(layers, count, "layers") }?;
    // SAFETY: as above.
    let experts = unsafe { array(experts, count, "experts") }?;
    let ids = layers.iter().zip(experts);
    Ok(ids.map(|(&layer, &expert)| (LayerId::new(layer), ExpertId::new(expert))).collect())
}
