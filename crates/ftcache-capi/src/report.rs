//! Is it engaged: which layers are served, which are not and why, and the configuration in effect.

use ftcache_core::{LayerId, PoolId};

use crate::boundary::{SizedStruct, required_mut, write_sized};
use crate::cache::{Engine, enter, ftcache, ftcache_device};
use crate::configuration::{ftcache_configuration, ftcache_layer_state};
use crate::failure::Failure;
use crate::status::ftcache_status;

/// What is in effect: whether the cache serves anything, and how.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_report {
    /// sizeof(ftcache_report), set by the caller.
    pub struct_size: u32,
    /// 1 if at least one layer is served: it has slots and, unless the engine copies by itself, all its rows are
    /// attached.
    pub is_engaged: u32,
    /// Layers that hold slots.
    pub cached_layer_count: u32,
    /// Of these, layers whose rows are attached in every bank; all of them where the engine copies by itself.
    pub ready_layer_count: u32,
    /// Layers without slots; ftcache_layer_get has the reason of each.
    pub declined_layer_count: u32,
    /// An ftcache_device.
    pub device: u32,
    /// 1 if the residency is on the device: see ftcache_device_enter.
    pub is_in_device_mode: u32,
    /// Notes and settings that are not in effect as asked for.
    pub note_count: u32,
    /// Counts the rebuilds: with each, addresses that were handed out before are void.
    pub generation: u64,
    /// Slots over all pools.
    pub slot_count: u64,
    /// Experts that are in one. In device mode, of the time when the residency went there.
    pub resident_count: u64,
    /// The last step.
    pub step: u64,
}

// SAFETY: `repr(C)`, a `u32` first, integers only.
unsafe impl SizedStruct for ftcache_report {}

/// How one layer is served.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_layer_report {
    /// sizeof(ftcache_layer_report), set by the caller.
    pub struct_size: u32,
    /// An ftcache_layer_state.
    pub state: u32,
    /// The pool that serves it, if it has slots.
    pub pool: u32,
    /// 1 if every bank that it reads has rows; where the engine copies by itself, if it has slots.
    pub is_attached: u32,
    /// 1 if the device reads all of them where they lie; 0 if some go through the bounce buffer, or none are attached.
    pub is_direct: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: `repr(C)`, a `u32` first, integers only.
unsafe impl SizedStruct for ftcache_layer_report {}

/// What is in effect. Allocates nothing, waits for nothing.
///
/// # Safety
///
/// cache came from ftcache_new; report points to a struct of its struct_size.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_report_get(cache: *mut ftcache, report: *mut ftcache_report) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        let geometry = handle.configuration.geometry();
        let layers = || geometry.pools().iter().flat_map(|pool| pool.layers());
        let cached = layers().count() as u32;
        let (device, ready, slot_count) = match &handle.engine {
            Engine::Planner(_) => (ftcache_device::None, cached, geometry.slot_count()),
            Engine::Device(cache) => {
                let device = if cache.device().cuda().is_some() { ftcache_device::Cuda } else { ftcache_device::Host };
                let ready = layers().filter(|&&layer| cache.check_attached(layer).is_ok()).count() as u32;
                if cache.has_slots() { (device, ready, geometry.slot_count()) } else { (device, 0, 0) }
            }
        };
        let residency = handle.residency();
        let value = ftcache_report {
            struct_size: 0,
            is_engaged: u32::from(ready > 0),
            cached_layer_count: cached,
            ready_layer_count: ready,
            declined_layer_count: geometry.model().layer_count() as u32 - cached,
            device: device as u32,
            is_in_device_mode: match &handle.engine {
                Engine::Planner(_) => 0,
                Engine::Device(cache) => u32::from(cache.is_in_device_mode()),
            },
            note_count: handle.note_count,
            generation: residency.generation(),
            slot_count,
            resident_count: residency.resident_count() as u64,
            step: residency.step(),
        };
        // SAFETY: points to a struct of its size by the caller's word.
        unsafe { write_sized(report, "report", value) }
    })
}

/// How one layer is served. Allocates nothing, waits for nothing.
///
/// # Safety
///
/// cache came from ftcache_new; report points to a struct of its struct_size.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_layer_get(
    cache: *mut ftcache,
    layer: u32,
    report: *mut ftcache_layer_report,
) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        let layer_count = handle.states.len();
        let state = handle.states.get(layer as usize).copied();
        let state =
            state.ok_or_else(|| Failure::range(format!("no layer {layer}: the model has {layer_count} layers")))?;
        let layer = LayerId::new(layer);
        let geometry = handle.configuration.geometry();
        let (attached, direct) = match &handle.engine {
            Engine::Planner(_) => (state == ftcache_layer_state::Cached, false),
            Engine::Device(cache) => {
                let attached = state == ftcache_layer_state::Cached && cache.check_attached(layer).is_ok();
                let mut read = geometry.model().bank_ids();
                let lies_elsewhere = |bank| cache.is_direct(layer, bank) == Some(false);
                (attached, attached && !read.any(lies_elsewhere))
            }
        };
        let value = ftcache_layer_report {
            struct_size: 0,
            state: state as u32,
            pool: geometry.pool_of_layer(layer).map_or(0, PoolId::get),
            is_attached: u32::from(attached),
            is_direct: u32::from(direct),
            reserved: 0,
        };
        // SAFETY: points to a struct of its size by the caller's word.
        unsafe { write_sized(report, "report", value) }
    })
}

/// The configuration that is in effect, to be asked like any other or to be rebuilt with another budget. Allocates;
/// waits for nothing.
///
/// *out is set to NULL if this does not succeed; else the caller frees it with ftcache_configuration_free.
///
/// # Safety
///
/// cache came from ftcache_new; out points to a pointer.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_configuration_of(
    cache: *mut ftcache,
    out: *mut *mut ftcache_configuration,
) -> ftcache_status {
    // SAFETY: NULL or a pointer to a pointer by the caller's word.
    if let Some(out) = unsafe { out.as_mut() } {
        *out = std::ptr::null_mut();
    }
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        // SAFETY: `out` points to a pointer by the caller's word.
        let out = unsafe { required_mut(out, "out") }?;
        *out = ftcache_configuration::boxed(handle.configuration.clone());
        Ok(())
    })
}
