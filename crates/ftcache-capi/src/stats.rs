//! Statistics: per layer, per pool and over all.

use ftcache_core::{LayerId, PoolId, Stats};

use crate::boundary::{SizedStruct, write_sized};
use crate::cache::{enter, ftcache};
use crate::status::ftcache_status;

/// What the steps since the start, or since ftcache_stats_reset, came to.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_stats {
    /// sizeof(ftcache_stats), set by the caller.
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// Steps whose rows were copied; one a call, whatever its width.
    pub steps: u64,
    /// Routes, duplicates included, absent ones not.
    pub routes: u64,
    /// Distinct experts, summed over steps: hits and misses together.
    pub distinct: u64,
    /// Distinct experts that were resident before their step.
    pub hits: u64,
    /// Distinct experts that were not.
    pub misses: u64,
    /// Misses that took a slot from another expert.
    pub evictions: u64,
    /// Bytes copied from the host to slots.
    pub bytes: u64,
}

// SAFETY: `repr(C)`, a `u32` first, integers only.
unsafe impl SizedStruct for ftcache_stats {}

impl From<Stats> for ftcache_stats {
    fn from(stats: Stats) -> Self {
        let counted = stats.residency;
        Self {
            struct_size: 0,
            reserved: 0,
            steps: counted.steps,
            routes: counted.routes,
            distinct: counted.distinct,
            hits: counted.hits(),
            misses: counted.misses,
            evictions: counted.evictions,
            bytes: stats.bytes,
        }
    }
}

/// Statistics over all layers. Allocates nothing, waits for nothing.
///
/// # Safety
///
/// cache came from ftcache_new; stats points to a struct of its struct_size.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_stats_get(cache: *mut ftcache, stats: *mut ftcache_stats) -> ftcache_status {
    // SAFETY: a handle of ours, and a struct of its size, by the caller's word.
    enter(unsafe { cache.as_ref() }, |cache| {
        let value = cache.stats().into();
        // SAFETY: points to a struct of its size by the caller's word.
        unsafe { write_sized(stats, "stats", value) }
    })
}

/// Statistics of one layer. Allocates nothing, waits for nothing.
///
/// # Safety
///
/// cache came from ftcache_new; stats points to a struct of its struct_size.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_layer_stats_get(
    cache: *mut ftcache,
    layer: u32,
    stats: *mut ftcache_stats,
) -> ftcache_status {
    // SAFETY: a handle of ours, and a struct of its size, by the caller's word.
    enter(unsafe { cache.as_ref() }, |cache| {
        let value = cache.layer_stats(LayerId::new(layer))?.into();
        // SAFETY: points to a struct of its size by the caller's word.
        unsafe { write_sized(stats, "stats", value) }
    })
}

/// Statistics of one pool: the sum over its layers. Allocates nothing, waits for nothing.
///
/// # Safety
///
/// cache came from ftcache_new; stats points to a struct of its struct_size.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_pool_stats_get(
    cache: *mut ftcache,
    pool: u32,
    stats: *mut ftcache_stats,
) -> ftcache_status {
    // SAFETY: a handle of ours, and a struct of its size, by the caller's word.
    enter(unsafe { cache.as_ref() }, |cache| {
        let value = cache.pool_stats(PoolId::new(pool))?.into();
        // SAFETY: points to a struct of its size by the caller's word.
        unsafe { write_sized(stats, "stats", value) }
    })
}

/// Starts the statistics over. Slots stay as they are. Allocates nothing, waits for nothing.
///
/// # Safety
///
/// cache came from ftcache_new.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_stats_reset(cache: *mut ftcache) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |cache| Ok(cache.reset_stats()?))
}
