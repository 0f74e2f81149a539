//! Device mode: steps that are admitted by kernels, from routes that never leave the device, so that an engine may
//! capture its decode into a graph.

use std::ffi::c_void;

use ftcache_core::{
    DeviceAnswers, DeviceIds, DeviceModeOptions, DeviceReading, DeviceRows, DeviceSplit, DeviceStep, DeviceWeights,
    HostWord, IdWidth, LayerId, Stats,
};

use crate::boundary::{SizedStruct, flag, read_sized, required_mut, reserved, write_sized};
use crate::cache::{Handle, enter, ftcache};
use crate::failure::Failure;
use crate::plan::{ftcache_copy, ftcache_plan, refill};
use crate::stats::ftcache_stats;
use crate::status::ftcache_status;
use crate::step::{ftcache_step, phase_of, step_of, stream_of};

/// How device mode is entered. All zeros is what was measured to do well.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_device_options {
    /// sizeof(ftcache_device_options).
    pub struct_size: u32,
    /// Threads of an admission: a multiple of 32 up to 1024; 0 means 1024.
    pub admission_threads: u32,
    /// Blocks of a gather, of 512 threads each, up to 2147483647; 0 means 64. They take that much of the device from
    /// kernels that run meanwhile.
    pub gather_blocks: u32,
    /// 0.
    pub reserved: u32,
    /// How often a word is looked at that ftcache_device_gather_after waits for, a microsecond or so apart; 0 means
    /// 10000000.
    pub word_looks: u64,
}

// SAFETY: `repr(C)`, a `u32` first, integers only.
unsafe impl SizedStruct for ftcache_device_options {}

/// Rows of numbers in device memory, or in pinned memory that the device reaches at this address. This struct will not
/// grow.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_device_rows {
    /// The device address of the first number; NULL if there are none.
    pub address: *mut c_void,
    /// Bytes from row to row; 0 means rows without gaps.
    pub stride: u64,
}

/// A step whose routes lie in device memory. Its addresses are read by the launch, and if that is captured by every
/// replay: they must stay valid until then, and the numbers there are the launch's to read and write in the order of
/// its stream.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_device_step {
    /// sizeof(ftcache_device_step).
    pub struct_size: u32,
    /// Bytes of an id, and of a slot: 4 or 8; 0 means 4.
    pub id_bytes: u32,
    /// What the step is: without a token, and no verify step. NULL is not accepted.
    pub step: *const ftcache_step,
    /// The routes, row by row.
    pub ids: ftcache_device_rows,
    /// Rows, such as one for each request.
    pub row_count: u64,
    /// Routes of a row.
    pub row_width: u32,
    /// 1 if ids may be absent_id.
    pub has_absent: u32,
    /// The id of a route that is not for this device.
    pub absent_id: i64,
    /// Where slots go; NULL: in place of the routes. Other rows than the routes' must not overlap them.
    pub slots: ftcache_device_rows,
    /// What is written for an absent route. No slot of the pool; -1 is what most kernels skip.
    pub absent_slot: i64,
    /// What is written for a route that the CPU computes, in a hybrid step. No slot of the pool.
    pub cpu_slot: i64,
    /// One 32-bit number for each expert of the layer, or NULL: its slot, or -1. Residents that the step does not route
    /// to have theirs too.
    pub map: *mut i32,
    /// Hybrid: where the experts go that the CPU computes, one for each route, as wide as its id; NULL if not wanted.
    pub cpu_ids: ftcache_device_rows,
    /// Hybrid: what stands there for the other routes. No expert of the layer.
    pub cpu_none: i64,
    /// Hybrid: numbers of the engine's, one for each route, to be split by where the route is computed; NULL if not
    /// wanted.
    pub weights: ftcache_device_rows,
    /// Where those of routes with a slot go, and zeros for others; it may be the weights' own place.
    pub device_weights: ftcache_device_rows,
    /// Where those of routes that the CPU computes go, and zeros for others; it may be the weights' own place instead.
    pub cpu_weights: ftcache_device_rows,
    /// Bytes of each: 2 or 4.
    pub weight_bytes: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: `repr(C)`, a `u32` first, integers and pointers only; NULL is a value of a pointer.
unsafe impl SizedStruct for ftcache_device_step {}

/// What can be read of a residency on the device.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_device_reading {
    /// sizeof(ftcache_device_reading), set by the caller.
    pub struct_size: u32,
    /// 1 if there is a reading; 0 if none was asked for, or it is being written.
    pub is_there: u32,
    /// The generation of launches it is of, as messages name it: each rebuild and each change of staging counts it up,
    /// while ftcache_generation counts rebuilds alone.
    pub generation: u64,
    /// The last step.
    pub step: u64,
    /// As ftcache_digest.
    pub digest: u64,
    /// Experts in slots.
    pub resident_count: u64,
}

// SAFETY: `repr(C)`, a `u32` first, integers only.
unsafe impl SizedStruct for ftcache_device_reading {}

fn rows(rows: ftcache_device_rows) -> Option<DeviceRows> {
    // SAFETY: by the header, as many numbers as the step says lie there, as long as it may be launched.
    (!rows.address.is_null()).then(|| unsafe { DeviceRows::from_raw(rows.address as u64, rows.stride) })
}

/// # Safety
///
/// `given` is as the header says, and its `step` points to a struct of its size.
unsafe fn device_step(given: &ftcache_device_step, handle: &Handle) -> Result<DeviceStep, Failure> {
    reserved(given.reserved, "step->reserved")?;
    // SAFETY: by this function's own promise.
    let step = step_of(&unsafe { read_sized(given.step, "step->step") }?, &handle.configuration)?;
    let width = match given.id_bytes {
        0 | 4 => IdWidth::Four,
        8 => IdWidth::Eight,
        other => return Err(Failure::argument(format!("step->id_bytes is {other}, not 4 or 8"))),
    };
    let Some(ids) = rows(given.ids) else { return Err(Failure::argument("step->ids.address is NULL")) };
    let weights = rows(given.weights).map(|source| DeviceWeights {
        source,
        device: rows(given.device_weights),
        cpu: rows(given.cpu_weights),
        bytes: given.weight_bytes,
    });
    let map = ftcache_device_rows { address: given.map.cast(), stride: 0 };
    Ok(DeviceStep {
        step,
        ids: DeviceIds {
            rows: ids,
            row_count: given.row_count,
            per_row: given.row_width,
            width,
            absent: flag(given.has_absent, "step->has_absent")?.then_some(given.absent_id),
        },
        answers: DeviceAnswers {
            slots: rows(given.slots),
            cpu: given.cpu_slot,
            absent: given.absent_slot,
            map: rows(map),
        },
        split: DeviceSplit { cpu_ids: rows(given.cpu_ids), cpu_none: given.cpu_none, weights },
    })
}

/// Moves the residency to the device, whose tables the settings set aside (FTCACHE_ADMISSION_DEVICE); without that they
/// are allocated here, beyond total_bytes. From now on steps are admitted there, and what would decide on the host is
/// refused, until ftcache_device_leave; hints that are open end. Loads the kernels, allocates, and waits for everything
/// enqueued. options may be NULL.
///
/// Every layer with slots must be attached, with rows that kernels read where they lie: pinned. A layer that is not is
/// named.
///
///   ftcache_device_enter
///   capture: router | ftcache_device_admit | ftcache_device_gather | kernels that read the slots | ... next layer
///   launch the graph for every token                   routes in, slots out, in the same buffers
///   ftcache_check                                      what a launch was refused for
///   ftcache_device_leave                               the residency comes back, as if the steps had been loaded here
///
/// What a graph holds stays good until the slots are rebuilt or the staging buffers are others; a launch that comes too
/// late, or while the residency is with the host, writes -1 for every route. Once the cache is freed, no graph that
/// holds its launches may be launched any more.
///
/// # Safety
///
/// cache came from ftcache_new; options is NULL or points to a struct of its struct_size.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_device_enter(
    cache: *mut ftcache,
    options: *const ftcache_device_options,
) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        let mut asked = DeviceModeOptions::default();
        if !options.is_null() {
            // SAFETY: points to a struct of its size by the caller's word.
            let options = unsafe { read_sized(options, "options") }?;
            reserved(options.reserved, "options->reserved")?;
            if options.admission_threads > 0 {
                asked.admission_threads = options.admission_threads;
            }
            if options.gather_blocks > 0 {
                asked.gather_blocks = options.gather_blocks;
            }
            if options.word_looks > 0 {
                asked.word_looks = options.word_looks;
            }
        }
        Ok(handle.on_device()?.enter_device_mode(asked)?)
    })
}

/// Takes the residency back with all that was decided on the device. Allocates; waits for everything enqueued.
///
/// # Safety
///
/// cache came from ftcache_new.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_device_leave(cache: *mut ftcache) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| Ok(handle.on_device()?.leave_device_mode()?))
}

/// Enqueues the admission of a step whose routes lie on the device: one launch, which may be captured. Allocates
/// nothing, waits for nothing. The answer is what ftcache_load would have given.
///
/// A step that cannot be admitted (an id that is no expert, more experts than slots, a graph of before a rebuild)
/// writes -1 for every route and leaves the residency as it was; ftcache_check tells. All launches of a cache are to be
/// in one order: over one stream, or over several that the engine orders by events, which may be recorded in the
/// capture.
///
/// # Safety
///
/// cache came from ftcache_new; stream is the device's; step points to a struct of its struct_size and is as
/// it says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_device_admit(
    cache: *mut ftcache,
    stream: *mut c_void,
    step: *const ftcache_device_step,
) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        // SAFETY: points to a struct of its size by the caller's word.
        let step = unsafe { read_sized(step, "step") }?;
        // SAFETY: as the header says, by the caller's word.
        let step = unsafe { device_step(&step, handle) }?;
        Ok(handle.on_device()?.admit_on_device(stream_of(stream), &step)?)
    })
}

/// Enqueues the copies that the layer's last admission decided on, in all banks: one launch, which may be captured.
/// Kernels that read the slots come behind it, and so does the next admission of the layer's pool. Allocates nothing,
/// waits for nothing.
///
/// # Safety
///
/// cache came from ftcache_new; stream is the device's.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_device_gather(cache: *mut ftcache, stream: *mut c_void, layer: u32) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        Ok(handle.on_device()?.gather_on_device(stream_of(stream), LayerId::new(layer))?)
    })
}

/// The same once the host has raised a word to value or past it, counted around the end of 32 bits: for rows that the
/// engine reads in late. The word lies in registered memory, and is raised after the rows were written. Allocates
/// nothing, waits for nothing.
///
/// # Safety
///
/// cache came from ftcache_new; stream is the device's; word points to an aligned uint32_t that stays there
/// until every launch that was told of it is done, and is written atomically meanwhile.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_device_gather_after(
    cache: *mut ftcache,
    stream: *mut c_void,
    layer: u32,
    word: *const u32,
    value: u32,
) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        if word.is_null() || !word.is_aligned() {
            return Err(Failure::argument(format!("word is {:#x}, not an aligned address", word as usize)));
        }
        // SAFETY: by the header's words on `word`.
        let word = unsafe { HostWord::from_raw(word.cast(), value) };
        Ok(handle.on_device()?.gather_on_device_after(stream_of(stream), LayerId::new(layer), word)?)
    })
}

/// Enqueues that every slot is freed: one launch, which may be captured. Allocates nothing, waits for nothing.
///
/// # Safety
///
/// cache came from ftcache_new; stream is the device's.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_device_reset(cache: *mut ftcache, stream: *mut c_void) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| Ok(handle.on_device()?.reset_on_device(stream_of(stream))?))
}

/// Enqueues the begin of a prefill chunk: slots under borrowed buffers are freed, and handed out to nobody until it
/// ends. Comes behind all that reads those slots; the engine keeps the order of a chunk's calls and streams. May be
/// captured. Allocates nothing, waits for nothing.
///
/// # Safety
///
/// cache came from ftcache_new; stream is the device's.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_device_chunk_begin(cache: *mut ftcache, stream: *mut c_void) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| Ok(handle.on_device()?.begin_chunk_on_device(stream_of(stream))?))
}

/// Enqueues that a layer is staged in a buffer, hits from their slots and misses from the host. Comes behind all that
/// reads the buffer's last layer. A borrowed buffer is not filled unless a chunk is open, which ftcache_check tells.
/// May be captured. Allocates nothing, waits for nothing.
///
/// # Safety
///
/// cache came from ftcache_new; stream is the device's.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_device_chunk_stage(
    cache: *mut ftcache,
    stream: *mut c_void,
    layer: u32,
    buffer: u32,
) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        Ok(handle.on_device()?.stage_on_device(stream_of(stream), LayerId::new(layer), buffer)?)
    })
}

/// The same in one launch, for a chunk that overlaps with nothing. Allocates nothing, waits for nothing.
///
/// # Safety
///
/// cache came from ftcache_new; stream is the device's.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_device_chunk_materialize(
    cache: *mut ftcache,
    stream: *mut c_void,
    layer: u32,
    buffer: u32,
) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        Ok(handle.on_device()?.materialize_on_device(stream_of(stream), LayerId::new(layer), buffer)?)
    })
}

/// Enqueues the end of a prefill chunk. Comes behind all that reads the buffers. May be captured. Allocates nothing,
/// waits for nothing.
///
/// # Safety
///
/// cache came from ftcache_new; stream is the device's.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_device_chunk_end(cache: *mut ftcache, stream: *mut c_void) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| Ok(handle.on_device()?.end_chunk_on_device(stream_of(stream))?))
}

/// Enqueues a reading of the residency on the device, for ftcache_device_reading_get. May be captured. Allocates
/// nothing, waits for nothing.
///
/// # Safety
///
/// cache came from ftcache_new; stream is the device's.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_device_reading_request(cache: *mut ftcache, stream: *mut c_void) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| Ok(handle.on_device()?.request_reading(stream_of(stream))?))
}

impl Handle {
    /// The last reading that was asked for, if it is whole.
    fn read(&mut self) -> Result<Option<&DeviceReading>, Failure> {
        let mut reading = std::mem::take(&mut self.reading);
        let is_whole = self.on_device().and_then(|cache| Ok(cache.read_into(&mut reading)?));
        self.reading = reading;
        Ok(is_whole?.then_some(&self.reading))
    }
}

/// The last reading that was asked for. Allocates nothing after the first; waits for nothing: is_there is 0 while it is
/// being written.
///
/// # Safety
///
/// cache came from ftcache_new; reading points to a struct of its struct_size.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_device_reading_get(
    cache: *mut ftcache,
    reading: *mut ftcache_device_reading,
) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        let read = handle.read()?;
        let value = ftcache_device_reading {
            struct_size: 0,
            is_there: u32::from(read.is_some()),
            generation: read.map_or(0, |read| read.generation),
            step: read.map_or(0, |read| read.step),
            digest: read.map_or(0, |read| read.digest),
            resident_count: read.map_or(0, |read| read.resident_count),
        };
        // SAFETY: points to a struct of its size by the caller's word.
        unsafe { write_sized(reading, "reading", value) }
    })
}

/// Statistics of the steps of one phase of a layer, of the last reading; phase is an ftcache_phase. *is_there is set to
/// 0 if there is no reading, and the statistics are zeros then. Allocates nothing after the first reading; waits for
/// nothing.
///
/// # Safety
///
/// cache came from ftcache_new; is_there points to a uint32_t; stats points to a struct of its struct_size.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_device_phase_stats_get(
    cache: *mut ftcache,
    layer: u32,
    phase: u32,
    is_there: *mut u32,
    stats: *mut ftcache_stats,
) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        // SAFETY: points to a number by the caller's word.
        let is_there = unsafe { required_mut(is_there, "is_there") }?;
        let phase = phase_of(phase, "phase")?;
        let layer = LayerId::new(layer);
        handle.residency().pool_of(layer)?;
        let counted = handle.read()?.map(|reading| reading.stats[layer.index()][phase as usize]);
        let key = handle.configuration.geometry().model().layer(layer);
        let value = Stats::of_layer(counted.unwrap_or_default(), key);
        // SAFETY: points to a struct of its size by the caller's word.
        unsafe { write_sized(stats, "stats", value.into()) }?;
        *is_there = u32::from(counted.is_some());
        Ok(())
    })
}

/// What the last admission of a layer on the device decided. Allocates; waits for everything enqueued: for tests, and
/// for engines that copy by themselves. The arrays are the library's, and valid until the next call on the handle; what
/// only the host knows of a plan (runs, left, evictions) is empty.
///
/// # Safety
///
/// cache came from ftcache_new; plan points to a struct of its struct_size.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_device_plan_get(
    cache: *mut ftcache,
    layer: u32,
    plan: *mut ftcache_plan,
) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { cache.as_ref() }, |handle| {
        let layer = LayerId::new(layer);
        let pool = handle.residency().pool_of(layer)?;
        let decided = handle.on_device()?.plan_on_device(layer)?;
        let views = &mut handle.views;
        refill(&mut views.copies, decided.copies.iter().map(ftcache_copy::from));
        let value = ftcache_plan {
            struct_size: 0,
            layer: layer.get(),
            pool: pool.get(),
            is_open: 0,
            is_repeat: 0,
            distinct_count: decided.distinct,
            miss_count: decided.misses,
            eviction_count: 0,
            step: decided.step,
            copies: views.copies.as_ptr(),
            copy_count: views.copies.len() as u64,
            runs: std::ptr::null(),
            run_count: 0,
            left: std::ptr::null(),
            left_count: 0,
            awaits_flight: 0,
        };
        // SAFETY: points to a struct of its size by the caller's word.
        unsafe { write_sized(plan, "plan", value) }
    })
}
