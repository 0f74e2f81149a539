//! Other slots while the cache lives, and residents that go from one run to the next.

use std::ffi::c_void;

use ftcache_core::policy::SlotRange;
use ftcache_core::residency::Move;
use ftcache_core::transfer::ColdReason;
use ftcache_core::{Geometry, Keep, PoolId, Rebuilt, Residents, SlotId, reserved_routes};

use crate::boundary::{SizedStruct, array, array_mut, flag, required, required_mut, write_sized};
use crate::cache::{Engine, Handle, enter, ftcache, reserve_planned};
use crate::configuration::ftcache_configuration;
use crate::status::ftcache_status;
use crate::step::{ftcache_streams, streams_of};

/// What became of the residents when the slots were rebuilt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ftcache_rebuilt {
    /// They are where they were, or moved within the same memory.
    InPlace = 0,
    /// They moved to new memory, beside which the old one lay for a moment.
    Beside = 1,
    /// None was kept, as none was to be.
    ColdAsAsked = 2,
    /// None was kept: the old and the new slots together are more than most_bytes.
    ColdTooLarge = 3,
    /// None was kept: the device had not the memory for both.
    ColdOutOfMemory = 4,
    /// None was kept: the memory is the engine's, and pools lie elsewhere in it now.
    ColdPoolsMoved = 5,
    /// None was kept: a row could not be moved.
    ColdFailed = 6,
}

/// What a rebuild came to.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_rebuild_report {
    /// sizeof(ftcache_rebuild_report), set by the caller.
    pub struct_size: u32,
    /// An ftcache_rebuilt.
    pub rebuilt: u32,
    /// Residents that are in a slot still.
    pub kept: u64,
    /// Staging buffers that there are now.
    pub buffer_count: u32,
    /// 1 if staging was asked for and could not be had with these slots.
    pub staging_lost: u32,
    /// FTCACHE_DEVICE_NONE: the rows that the engine has to move before the next step, from slot to slot; all pools
    /// that keep their slots in place move nothing. The library's, and valid until the next call on the handle.
    pub moves: *const ftcache_move,
    /// How many.
    pub move_count: u64,
}

// SAFETY: `repr(C)`, a `u32` first, integers and pointers only; NULL is a value of a pointer.
unsafe impl SizedStruct for ftcache_rebuild_report {}

/// A resident from its old slot to its new one. This struct will not grow.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_move {
    /// The layer.
    pub layer: u32,
    /// The expert.
    pub expert: u32,
    /// Its pool before.
    pub from_pool: u32,
    /// Its slot in that.
    pub from_slot: u32,
    /// Its pool now.
    pub to_pool: u32,
    /// Its slot in that.
    pub to_slot: u32,
}

impl From<&Move> for ftcache_move {
    fn from(moved: &Move) -> Self {
        Self {
            layer: moved.layer.get(),
            expert: moved.expert.get(),
            from_pool: moved.from.0.get(),
            from_slot: moved.from.1.get(),
            to_pool: moved.to.0.get(),
            to_slot: moved.to.1.get(),
        }
    }
}

/// Where a slot lies: its pool and number, and its offset in each arena.
fn places(geometry: &Geometry, (pool, slot): (PoolId, SlotId)) -> (PoolId, SlotId, Vec<u64>) {
    let ranges = geometry.pools()[pool.index()].ranges();
    let offset = |range: &SlotRange| range.offset + u64::from(slot.get()) * range.stride;
    (pool, slot, ranges.iter().map(offset).collect())
}

fn word_of(rebuilt: &Rebuilt) -> ftcache_rebuilt {
    match rebuilt {
        Rebuilt::InPlace => ftcache_rebuilt::InPlace,
        Rebuilt::Beside => ftcache_rebuilt::Beside,
        Rebuilt::Cold(ColdReason::NothingToKeep) => ftcache_rebuilt::ColdAsAsked,
        Rebuilt::Cold(ColdReason::TooLarge { .. }) => ftcache_rebuilt::ColdTooLarge,
        Rebuilt::Cold(ColdReason::OutOfMemory(_)) => ftcache_rebuilt::ColdOutOfMemory,
        Rebuilt::Cold(ColdReason::PoolsMoved { .. }) => ftcache_rebuilt::ColdPoolsMoved,
        Rebuilt::Cold(_) => ftcache_rebuilt::ColdFailed,
    }
}

/// Exchanges the slots and the staging for those of another configuration of the same model. Waits until nothing is on
/// its way, and allocates: nobody may read the slots any more.
///
/// keep 1: residents survive, the most recently used first. While they move, the old and the new slots lie beside each
/// other: if that is more than most_bytes, or more than the device has, nobody survives, and the report says so.
/// UINT64_MAX is no limit; 0 keeps nobody. In memory of the engine's nothing lies beside, and most_bytes does not
/// count, nor where the engine copies by itself: it moves the rows of the report's moves, and must have landed what is
/// on its way.
///
/// Who survives is the most recently used under every rule for victims. What such a rule has counted goes on if the new
/// configuration has the same, and starts over with another. Open hints end.
///
/// Addresses that were handed out are void afterwards (ftcache_generation): spans and pools are to be asked for anew.
/// So is every graph that holds launches of device mode. Pins and the order of steps go on; statistics start over.
/// report may be NULL.
///
/// If the configuration is refused, nothing has changed. If the device has not the memory, the old slots are there
/// again and empty; or there are none, and every call that needs some says FTCACHE_STATUS_UNAVAILABLE until a rebuild
/// brings some back.
///
/// # Safety
///
/// cache came from ftcache_new; configuration came from this library; report is NULL or points to a struct of
/// its struct_size.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_rebuild(
    cache: *mut ftcache,
    configuration: *const ftcache_configuration,
    keep: u32,
    most_bytes: u64,
    report: *mut ftcache_rebuild_report,
) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        // SAFETY: a handle of ours by the caller's word.
        let configuration = &unsafe { required(configuration, "configuration") }?.configuration;
        let keep = if flag(keep, "keep")? { Keep::WhatFits } else { Keep::Nothing };
        if !report.is_null() {
            // A report that cannot be written is told before anything is rebuilt.
            // SAFETY: points to a struct of its size by the caller's word.
            unsafe { crate::boundary::check_sized(report, "report") }?;
        }
        let Handle { engine, views, .. } = handle;
        views.moves.clear();
        let value = match engine {
            Engine::Device(cache) => {
                let rebuilt = cache.rebuild_as(configuration, keep, most_bytes)?;
                if let Rebuilt::Cold(reason) = &rebuilt.rebuilt
                    && *reason != ColdReason::NothingToKeep
                {
                    tracing::warn!("rebuilt, and nobody was kept: {reason}");
                }
                let staging = rebuilt.staging.as_ref();
                ftcache_rebuild_report {
                    struct_size: 0,
                    rebuilt: word_of(&rebuilt.rebuilt) as u32,
                    kept: rebuilt.kept as u64,
                    buffer_count: staging.and_then(|s| s.as_ref().ok()).map_or(0, |staging| staging.buffer_count()),
                    staging_lost: u32::from(staging.is_some_and(Result::is_err)),
                    moves: std::ptr::null(),
                    move_count: 0,
                }
            }
            Engine::Planner(planner) => {
                if configuration.geometry().model() != handle.configuration.geometry().model() {
                    return Err(ftcache_core::Error::OtherLayouts.into());
                }
                planner.check_idle()?;
                let (mut rebuilt, moves) = planner.cache().rebuilt(configuration.geometry(), keep)?;
                if let Some(staging) = configuration.staging() {
                    rebuilt.set_staging(staging.clone(), configuration.small_row_bytes())?;
                }
                if rebuilt.eviction() != configuration.eviction() {
                    rebuilt.set_eviction(configuration.eviction())?;
                }
                rebuilt.reserve(reserved_routes(configuration.geometry()));
                reserve_planned(&mut rebuilt, handle.hint_flight_count);
                planner.go_on_with(rebuilt)?;
                let (old, new) = (handle.configuration.geometry(), configuration.geometry());
                let moved = moves.iter().filter(|moved| places(old, moved.from) != places(new, moved.to));
                views.moves.extend(moved.map(ftcache_move::from));
                let word = if moves.is_empty() { ftcache_rebuilt::ColdAsAsked } else { ftcache_rebuilt::InPlace };
                ftcache_rebuild_report {
                    struct_size: 0,
                    rebuilt: word as u32,
                    kept: moves.len() as u64,
                    buffer_count: configuration.staging().map_or(0, |staging| staging.buffer_count()),
                    staging_lost: 0,
                    moves: views.moves.as_ptr(),
                    move_count: views.moves.len() as u64,
                }
            }
        };
        handle.configure(configuration);
        if report.is_null() {
            return Ok(());
        }
        // SAFETY: points to a struct of its size by the caller's word.
        unsafe { write_sized(report, "report", value) }
    })
}

/// Who is in a slot, in the order of use, as bytes to be kept for a later run. fingerprint is the caller's: a hash of
/// the model file and whatever else must be the same then.
///
/// In device mode it is who was when the residency went there.
///
/// *needed is set to their number. If capacity is less, nothing is written; buffer may be NULL if capacity is 0.
/// Allocates; waits for nothing.
///
/// # Safety
///
/// cache came from ftcache_new; buffer points to capacity writable bytes; needed points to a number.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_residents_get(
    cache: *mut ftcache,
    fingerprint: u64,
    buffer: *mut c_void,
    capacity: usize,
    needed: *mut usize,
) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        // SAFETY: points to a number by the caller's word.
        let needed = unsafe { required_mut(needed, "needed") }?;
        let bytes = handle.residency().residents(fingerprint).to_bytes();
        // SAFETY: `capacity` writable bytes by the caller's word.
        let buffer = unsafe { array_mut(buffer.cast::<u8>(), capacity as u64, "buffer") }?;
        *needed = bytes.len();
        if let Some(target) = buffer.get_mut(..bytes.len()) {
            target.copy_from_slice(&bytes);
        }
        Ok(())
    })
}

/// Brings residents back into an empty cache: of each pool's as many as it has slots, the most recently used. The bytes
/// are those of ftcache_residents_get, and fingerprint what was given to it.
///
/// Copies are enqueued on the copy stream, and what the compute stream is given next comes behind them; *copied is set
/// to their bytes, and may be NULL. Where the engine copies by itself, it opens the plan of ftcache_placements_get
/// instead, and *copied is set to 0. Allocates; waits for nothing.
///
/// # Safety
///
/// cache came from ftcache_new; streams is NULL or points to a struct of its struct_size; bytes points to
/// count bytes; copied is NULL or points to a number.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_bring_back(
    cache: *mut ftcache,
    streams: *const ftcache_streams,
    bytes: *const c_void,
    count: usize,
    fingerprint: u64,
    copied: *mut u64,
) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        // SAFETY: `count` bytes by the caller's word.
        let bytes = unsafe { array(bytes.cast::<u8>(), count as u64, "bytes") }?;
        let residents = Residents::from_bytes(bytes)?;
        let moved = match &mut handle.engine {
            Engine::Device(cache) => {
                // SAFETY: points to a struct of its size, or NULL, by the caller's word.
                let streams = unsafe { streams_of(streams) }?;
                cache.bring_back(streams, &residents, fingerprint)?
            }
            Engine::Planner(planner) => {
                planner.bring_back(&residents, fingerprint)?;
                0
            }
        };
        // SAFETY: points to a number, or NULL, by the caller's word.
        if let Some(copied) = unsafe { copied.as_mut() } {
            *copied = moved;
        }
        Ok(())
    })
}
