//! Statistics: per layer, phase and pool and over all.

use std::ffi::c_char;

use ftcache_core::residency::Phase;
use ftcache_core::{LayerId, PoolId, Stats};
use serde_json::{Value, json};

use crate::boundary::{SizedStruct, required_mut, write_sized, write_text};
use crate::cache::{Engine, Handle, enter, ftcache};
use crate::failure::Failure;
use crate::slots::check_pool;
use crate::status::ftcache_status;
use crate::step::phase_of;

/// What the steps since the start, or since ftcache_stats_reset, came to. In device mode, until the residency went
/// there: see ftcache_device_reading_get.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_stats {
    /// sizeof(ftcache_stats), set by the caller.
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// Steps whose rows were copied, or whose plan is open; one a call, whatever its width.
    pub steps: u64,
    /// Routes, duplicates included, absent ones not.
    pub routes: u64,
    /// Of these, those to experts that were resident before their step.
    pub hit_routes: u64,
    /// Distinct experts, summed over steps: hits and misses together.
    pub distinct: u64,
    /// Distinct experts that were resident before their step.
    pub hits: u64,
    /// Distinct experts that were not: fetched and left to the CPU together.
    pub misses: u64,
    /// Misses that were fetched.
    pub fetched: u64,
    /// Misses that were left to the CPU.
    pub left: u64,
    /// Fetched ones that took a slot from another expert.
    pub evictions: u64,
    /// Misses that no step had routed to before.
    pub cold_misses: u64,
    /// Misses that had lost their slot to another expert: more slots would have kept them.
    pub capacity_misses: u64,
    /// Misses that had lost their slot to a staging buffer.
    pub staging_misses: u64,
    /// Misses whose slot had been freed by a call: forgotten, aborted or rebuilt.
    pub freed_misses: u64,
    /// Misses that had been left to the CPU the last time too, or whose row was on its way.
    pub cpu_misses: u64,
    /// Steps refused because they were too wide, which are counted nowhere else.
    pub refused: u64,
    /// Bytes of what was fetched: copied from the host to slots by steps, or by the engine's commits.
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
            hit_routes: counted.hit_routes,
            distinct: counted.distinct,
            hits: counted.hits(),
            misses: counted.misses,
            fetched: counted.fetched,
            left: counted.left(),
            evictions: counted.evictions,
            cold_misses: counted.cold_misses,
            capacity_misses: counted.capacity_misses,
            staging_misses: counted.staging_misses,
            freed_misses: counted.freed_misses,
            cpu_misses: counted.cpu_misses,
            refused: counted.refused,
            bytes: stats.bytes,
        }
    }
}

impl Handle {
    fn sum(&self, is_meant: impl Fn(LayerId) -> bool) -> Stats {
        let mut sum = Stats::default();
        let model = self.configuration.geometry().model();
        for layer in model.layer_ids().filter(|&layer| is_meant(layer)) {
            sum += Stats::of_layer(self.residency().layer_stats(layer), model.layer(layer));
        }
        sum
    }

    fn total_stats(&self) -> Stats {
        self.sum(|_| true)
    }

    fn layer_stats(&self, layer: LayerId) -> Result<Stats, Failure> {
        self.residency().pool_of(layer)?;
        Ok(self.sum(|other| other == layer))
    }

    fn phase_stats(&self, layer: LayerId, phase: Phase) -> Result<Stats, Failure> {
        self.residency().pool_of(layer)?;
        let key = self.configuration.geometry().model().layer(layer);
        Ok(Stats::of_layer(self.residency().phase_stats(layer, phase), key))
    }

    fn pool_stats(&self, pool: PoolId) -> Result<Stats, Failure> {
        check_pool(self.residency(), pool)?;
        Ok(self.sum(|layer| self.residency().pool_of(layer) == Ok(pool)))
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
    enter(unsafe { cache.as_ref() }, |handle| {
        // SAFETY: points to a struct of its size by the caller's word.
        unsafe { write_sized(stats, "stats", handle.total_stats().into()) }
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
    enter(unsafe { cache.as_ref() }, |handle| {
        let value = handle.layer_stats(LayerId::new(layer))?.into();
        // SAFETY: points to a struct of its size by the caller's word.
        unsafe { write_sized(stats, "stats", value) }
    })
}

/// Statistics of the steps of one phase of a layer; phase is an ftcache_phase. Allocates nothing, waits for nothing.
///
/// # Safety
///
/// cache came from ftcache_new; stats points to a struct of its struct_size.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_phase_stats_get(
    cache: *mut ftcache,
    layer: u32,
    phase: u32,
    stats: *mut ftcache_stats,
) -> ftcache_status {
    // SAFETY: a handle of ours, and a struct of its size, by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        let value = handle.phase_stats(LayerId::new(layer), phase_of(phase, "phase")?)?;
        // SAFETY: points to a struct of its size by the caller's word.
        unsafe { write_sized(stats, "stats", value.into()) }
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
    enter(unsafe { cache.as_ref() }, |handle| {
        let value = handle.pool_stats(PoolId::new(pool))?.into();
        // SAFETY: points to a struct of its size by the caller's word.
        unsafe { write_sized(stats, "stats", value) }
    })
}

/// Everything that is counted as one JSON object: "total", "pools", "layers" (each with its "phases"), "chunks",
/// "later", "hints", "digest", "step", "generation". The text is cut to fit and ended by a zero; *needed is set to the
/// bytes of all of it, and may be NULL. Allocates; waits for nothing.
///
/// # Safety
///
/// cache came from ftcache_new; buffer points to capacity writable bytes; needed is NULL or points to a
/// number.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_stats_json(
    cache: *mut ftcache,
    buffer: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        let text = handle.json()?.to_string();
        // SAFETY: the caller gives `capacity` writable bytes, and a number, as the header says.
        unsafe { write_text(&text, buffer, capacity, needed) }
    })
}

/// The counters of one place, by the names of the struct's fields.
fn counters(stats: Stats) -> Value {
    let stats = ftcache_stats::from(stats);
    json!({
        "steps": stats.steps,
        "routes": stats.routes,
        "hit_routes": stats.hit_routes,
        "distinct": stats.distinct,
        "hits": stats.hits,
        "misses": stats.misses,
        "fetched": stats.fetched,
        "left": stats.left,
        "evictions": stats.evictions,
        "cold_misses": stats.cold_misses,
        "capacity_misses": stats.capacity_misses,
        "staging_misses": stats.staging_misses,
        "freed_misses": stats.freed_misses,
        "cpu_misses": stats.cpu_misses,
        "refused": stats.refused,
        "bytes": stats.bytes,
    })
}

impl Handle {
    fn json(&self) -> Result<Value, Failure> {
        let residency = self.residency();
        let pools = (0..residency.pool_count()).map(|pool| Ok(counters(self.pool_stats(PoolId::from_index(pool))?)));
        let layer = |layer: LayerId| -> Result<Value, Failure> {
            let mut value = counters(self.layer_stats(layer)?);
            value["phases"] = json!({
                "decode": counters(self.phase_stats(layer, Phase::Decode)?),
                "verify": counters(self.phase_stats(layer, Phase::Verify)?),
                "prefill": counters(self.phase_stats(layer, Phase::Prefill)?),
            });
            value["layer"] = layer.get().into();
            Ok(value)
        };
        let model = self.configuration.geometry().model();
        let with_slots = model.layer_ids().filter(|&layer| residency.pool_of(layer).is_ok());
        let (chunks, later) = match &self.engine {
            Engine::Device(cache) => {
                let (total, later) = (cache.chunk_total(), cache.later_report());
                let bytes = (total.fetched_bytes, total.gathered_bytes);
                ((total.residency, bytes), json!({ "bytes": later.bytes, "held_back": later.held_back }))
            }
            Engine::Planner(planner) => ((planner.cache().chunk_total(), (0, 0)), json!({})),
        };
        let (chunks, (fetched_bytes, gathered_bytes)) = chunks;
        let late = residency.late_stats();
        let mut later = later;
        later["queued"] = late.queued.into();
        later["landed"] = late.landed.into();
        later["lost"] = late.lost.into();
        later["evictions"] = late.evictions.into();
        Ok(json!({
            "total": counters(self.total_stats()),
            "pools": pools.collect::<Result<Vec<Value>, Failure>>()?,
            "layers": with_slots.map(layer).collect::<Result<Vec<Value>, Failure>>()?,
            "chunks": {
                "chunks": chunks.chunks,
                "layers": chunks.layers,
                "gathered": chunks.gathered,
                "fetched": chunks.fetched,
                "lost": chunks.lost,
                "fetched_bytes": fetched_bytes,
                "gathered_bytes": gathered_bytes,
            },
            "later": later,
            "hints": self.hints_json(),
            // JSON's readers often have doubles, which 64 bits do not fit into.
            "digest": format!("{:016x}", residency.digest()),
            "step": residency.step(),
            "generation": residency.generation(),
        }))
    }
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
    enter(unsafe { cache.as_ref() }, |handle| match &mut handle.engine {
        Engine::Device(cache) => Ok(cache.reset_stats()?),
        Engine::Planner(planner) => {
            planner.cache_mut()?.reset_stats();
            Ok(())
        }
    })
}

/// A number of 64 bits that stands for who is where, and for the order of victims: equal on ranks that decided alike.
/// Costs a pass over the slots, and over what ftcache_eviction counts; allocates nothing, waits for nothing. In device
/// mode, of the time when the residency went there: ftcache_device_reading_get has the device's.
///
/// # Safety
///
/// cache came from ftcache_new; digest points to a number.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_digest(cache: *mut ftcache, digest: *mut u64) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        // SAFETY: points to a number by the caller's word.
        *unsafe { required_mut(digest, "digest") }? = handle.residency().digest();
        Ok(())
    })
}

/// Counts the rebuilds: with each, addresses that were handed out before are void. Allocates nothing, waits for
/// nothing.
///
/// # Safety
///
/// cache came from ftcache_new; generation points to a number.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_generation(cache: *mut ftcache, generation: *mut u64) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        // SAFETY: points to a number by the caller's word.
        *unsafe { required_mut(generation, "generation") }? = handle.residency().generation();
        Ok(())
    })
}
