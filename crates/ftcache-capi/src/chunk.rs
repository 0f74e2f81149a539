//! Prefill: a chunk's layers staged whole, one while the other computes.

use ftcache_core::residency::{Gather, OpenPlan, RowRun};
use ftcache_core::{ChunkReport, LayerId};

use crate::boundary::{SizedStruct, required_mut, write_sized};
use crate::cache::{Engine, Handle, enter, ftcache};
use crate::failure::Failure;
use crate::plan::{ftcache_copy, ftcache_run, refill};
use crate::slots::ftcache_slot_span;
use crate::status::ftcache_status;
use crate::step::{ftcache_streams, streams_of};

/// What a prefill chunk came to, or all of them.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_chunk_report {
    /// sizeof(ftcache_chunk_report), set by the caller.
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// Chunks.
    pub chunks: u64,
    /// Layers staged.
    pub layers: u64,
    /// Experts that were in slots. Their rows came from there, but in banks of small rows, which are staged whole from
    /// the host.
    pub gathered: u64,
    /// Experts that were in no slot.
    pub fetched: u64,
    /// Experts that lost their slot to a staging buffer.
    pub lost: u64,
    /// Bytes copied from the host; 0 where the engine copies by itself.
    pub fetched_bytes: u64,
    /// Bytes copied from slots; 0 where the engine copies by itself.
    pub gathered_bytes: u64,
}

// SAFETY: `repr(C)`, a `u32` first, integers only.
unsafe impl SizedStruct for ftcache_chunk_report {}

impl From<ChunkReport> for ftcache_chunk_report {
    fn from(report: ChunkReport) -> Self {
        let counted = report.residency;
        Self {
            struct_size: 0,
            reserved: 0,
            chunks: counted.chunks,
            layers: counted.layers,
            gathered: counted.gathered,
            fetched: counted.fetched,
            lost: counted.lost,
            fetched_bytes: report.fetched_bytes,
            gathered_bytes: report.gathered_bytes,
        }
    }
}

/// How a layer comes to lie in a staging buffer, in one bank. The arrays are the library's, and valid until the next
/// call on the handle.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_stage_plan {
    /// sizeof(ftcache_stage_plan), set by the caller.
    pub struct_size: u32,
    /// The layer.
    pub layer: u32,
    /// Its pool.
    pub pool: u32,
    /// The buffer, 0 or 1.
    pub buffer: u32,
    /// Rows that lie in slots: from slot to the buffer's row.
    pub gathers: *const ftcache_copy,
    /// How many.
    pub gather_count: u64,
    /// Rows that come from the host: count rows from row on; slot has no meaning.
    pub fetches: *const ftcache_run,
    /// How many.
    pub fetch_count: u64,
}

// SAFETY: `repr(C)`, a `u32` first, integers and pointers only; NULL is a value of a pointer.
unsafe impl SizedStruct for ftcache_stage_plan {}

/// Opens a prefill chunk over these streams. Slots under borrowed buffers are freed, and handed out to nobody until it
/// ends; steps may be loaded meanwhile. Then, 0, 1, 2 ... being the layers that have slots, and while another computes:
///
///   ftcache_chunk_prefetch(0), ftcache_chunk_prefetch(1)
///   for each layer l: ftcache_chunk_wait(l), kernels over ftcache_staged_span_get,
///                     ftcache_chunk_release(l), ftcache_chunk_prefetch(l + 2)
///   ftcache_chunk_end
///
/// With one buffer (buffer_count of the configuration), ftcache_chunk_materialize(l) before each wait, and no prefetch.
///
/// The chunk's copies come behind everything that the compute stream was given before. Enqueues events, allocates
/// nothing, waits for nothing. streams may be NULL, and is not looked at where the engine copies by itself; what that
/// has on its way behind a step must have landed.
///
/// # Safety
///
/// cache came from ftcache_new; streams is NULL or points to a struct of its struct_size, and its streams
/// live until everything was synchronised after the chunk.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_chunk_begin(cache: *mut ftcache, streams: *const ftcache_streams) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| match &mut handle.engine {
        // SAFETY: points to a struct of its size, or NULL, by the caller's word.
        Engine::Device(cache) => Ok(cache.begin_chunk(unsafe { streams_of(streams) }?)?),
        Engine::Planner(planner) => Ok(planner.begin_chunk()?),
    })
}

/// Enqueues the copies that stage a layer in a free buffer, while another may be in use; rows of residents come from
/// their slots. Where the engine copies by itself, it opens the plan of ftcache_stage_plan_get instead, to be made in
/// every bank and then committed or aborted; what is committed holds its buffer until ftcache_chunk_wait and
/// ftcache_chunk_release, here too. Each layer is staged at most once in a chunk. Allocates nothing, waits for nothing.
///
/// On FTCACHE_STATUS_DEVICE the buffer is free, and the layer may be staged again.
///
/// # Safety
///
/// cache came from ftcache_new.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_chunk_prefetch(cache: *mut ftcache, layer: u32) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        let layer = LayerId::new(layer);
        match &mut handle.engine {
            Engine::Device(cache) => cache.prefetch(layer)?,
            Engine::Planner(planner) => drop(planner.prefetch(layer)?),
        }
        Ok(())
    })
}

/// As ftcache_chunk_prefetch, in the first buffer: for a chunk that does not overlap. Allocates nothing, waits for
/// nothing.
///
/// # Safety
///
/// cache came from ftcache_new.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_chunk_materialize(cache: *mut ftcache, layer: u32) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        let layer = LayerId::new(layer);
        match &mut handle.engine {
            Engine::Device(cache) => cache.materialize(layer)?,
            Engine::Planner(planner) => drop(planner.materialize(layer)?),
        }
        Ok(())
    })
}

/// How the layer that is being staged comes to lie in its buffer, in one bank, while the plan is open. Allocates
/// nothing once there was one as long; waits for nothing.
///
/// # Safety
///
/// cache came from ftcache_new; plan points to a struct of its struct_size.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_stage_plan_get(
    cache: *mut ftcache,
    bank: u32,
    plan: *mut ftcache_stage_plan,
) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        handle.planner()?;
        let Handle { engine: Engine::Planner(planner), views, configuration, .. } = handle else {
            unreachable!("looked at before")
        };
        if planner.open() != Some(OpenPlan::Stage) {
            let message = "no layer is being staged: ftcache_chunk_prefetch opens the plan";
            return Err(Failure::new(ftcache_status::OutOfOrder, message));
        }
        let staged = planner.stage_plan();
        let row_bytes = configuration.geometry().model().layer(staged.layer()).row_bytes();
        let bank_count = row_bytes.len();
        let row_bytes = row_bytes.get(bank as usize);
        let row_bytes =
            *row_bytes.ok_or_else(|| Failure::range(format!("no bank {bank}: the layer has {bank_count} banks")))?;
        // A bank that the layer does not read moves nothing.
        let is_read = row_bytes > 0;
        let gather = |gather: &Gather| ftcache_copy { slot: gather.slot.get(), row: gather.row.get() };
        let fetch = |run: &RowRun| ftcache_run { slot: 0, row: run.row.get(), count: run.count };
        refill(&mut views.copies, staged.bank_gathers(row_bytes).iter().filter(|_| is_read).map(gather));
        refill(&mut views.runs, staged.bank_runs(row_bytes).iter().filter(|_| is_read).map(fetch));
        let value = ftcache_stage_plan {
            struct_size: 0,
            layer: staged.layer().get(),
            pool: staged.pool().get(),
            buffer: staged.buffer() as u32,
            gathers: views.copies.as_ptr(),
            gather_count: views.copies.len() as u64,
            fetches: views.runs.as_ptr(),
            fetch_count: views.runs.len() as u64,
        };
        // SAFETY: points to a struct of its size by the caller's word.
        unsafe { write_sized(plan, "plan", value) }
    })
}

/// Begins the use of a staged layer: what the compute stream is given next comes behind its copies. *buffer is set to 0
/// or 1, for ftcache_staged_span_get. Enqueues a wait; allocates nothing, waits for nothing on the host. After
/// FTCACHE_STATUS_DEVICE from this call or from ftcache_chunk_release, the chunk is to be abandoned.
///
/// # Safety
///
/// cache came from ftcache_new; buffer points to a uint32_t.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_chunk_wait(cache: *mut ftcache, layer: u32, buffer: *mut u32) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        // SAFETY: points to a number by the caller's word.
        let buffer = unsafe { required_mut(buffer, "buffer") }?;
        let layer = LayerId::new(layer);
        *buffer = match &mut handle.engine {
            Engine::Device(cache) => cache.wait(layer)?,
            Engine::Planner(planner) => planner.cache_mut()?.wait(layer)?,
        } as u32;
        Ok(())
    })
}

/// Ends the use of a staged layer: the next fill of its buffer waits for what the compute stream was given until now.
/// Enqueues an event; allocates nothing, waits for nothing.
///
/// # Safety
///
/// cache came from ftcache_new.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_chunk_release(cache: *mut ftcache, layer: u32) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        let layer = LayerId::new(layer);
        match &mut handle.engine {
            Engine::Device(cache) => cache.release(layer)?,
            Engine::Planner(planner) => {
                planner.cache_mut()?.release(layer)?;
            }
        }
        Ok(())
    })
}

/// Ends the chunk. What the compute stream is given next comes behind every copy of it; where staged rows of another
/// layout lie on slots, zeros take their place. report is NULL or set to what it came to. Allocates nothing, waits for
/// nothing.
///
/// # Safety
///
/// cache came from ftcache_new; report is NULL or points to a struct of its struct_size.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_chunk_end(cache: *mut ftcache, report: *mut ftcache_chunk_report) -> ftcache_status {
    // SAFETY: as the header says, handed on.
    unsafe { end(cache, report, false) }
}

/// Ends the chunk in the middle, whatever its buffers hold; as ftcache_chunk_end. Allocates nothing, waits for nothing.
///
/// # Safety
///
/// As for ftcache_chunk_end.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_chunk_abandon(
    cache: *mut ftcache,
    report: *mut ftcache_chunk_report,
) -> ftcache_status {
    // SAFETY: as the header says, handed on.
    unsafe { end(cache, report, true) }
}

/// # Safety
///
/// As for ftcache_chunk_end.
unsafe fn end(cache: *mut ftcache, report: *mut ftcache_chunk_report, abandon: bool) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        if !report.is_null() {
            // A report that cannot be written is told before anything ends.
            // SAFETY: points to a struct of its size by the caller's word.
            unsafe { crate::boundary::check_sized(report, "report") }?;
        }
        let ended = match &mut handle.engine {
            Engine::Device(cache) if abandon => cache.abandon_chunk()?,
            Engine::Device(cache) => cache.end_chunk()?,
            Engine::Planner(planner) => {
                let cache = planner.cache_mut()?;
                let residency = if abandon { cache.abandon_chunk() } else { cache.end_chunk() }?;
                ChunkReport { residency, ..ChunkReport::default() }
            }
        };
        if report.is_null() {
            return Ok(());
        }
        // SAFETY: points to a struct of its size by the caller's word.
        unsafe { write_sized(report, "report", ended.into()) }
    })
}

/// What all chunks that have ended came to, but for those of device mode. Allocates nothing, waits for nothing.
///
/// # Safety
///
/// cache came from ftcache_new; report points to a struct of its struct_size.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_chunk_total_get(
    cache: *mut ftcache,
    report: *mut ftcache_chunk_report,
) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        let total = match &handle.engine {
            Engine::Device(cache) => cache.chunk_total(),
            Engine::Planner(planner) => {
                ChunkReport { residency: planner.cache().chunk_total(), ..ChunkReport::default() }
            }
        };
        // SAFETY: points to a struct of its size by the caller's word.
        unsafe { write_sized(report, "report", total.into()) }
    })
}

/// Where a layer lies in a bank when it is staged in a buffer: expert i at address + i * stride; slot_count is the
/// number of experts. address is NULL if the layer does not read the bank or there is no such buffer. Allocates
/// nothing, waits for nothing. Where the engine copies by itself, its buffers are its own.
///
/// # Safety
///
/// cache came from ftcache_new; span points to a struct of its struct_size.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_staged_span_get(
    cache: *mut ftcache,
    layer: u32,
    bank: u32,
    buffer: u32,
    span: *mut ftcache_slot_span,
) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        let cache = handle.on_device()?;
        let staged = cache.staged(LayerId::new(layer), ftcache_core::BankId::new(bank), buffer as usize)?;
        let value = ftcache_slot_span {
            struct_size: 0,
            slot_count: staged.map_or(0, |staged| staged.expert_count),
            address: staged.map_or(0, |staged| staged.address) as *mut _,
            stride: staged.map_or(0, |staged| staged.stride),
            row_bytes: staged.map_or(0, |staged| staged.row_bytes),
        };
        // SAFETY: points to a struct of its size by the caller's word.
        unsafe { write_sized(span, "span", value) }
    })
}
