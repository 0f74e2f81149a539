//! A recorder: the routing of a running engine, kept in bounded memory to be replayed later.

use std::ffi::c_char;
use std::io::Write;

use ftcache_core::residency::Phase;
use ftcache_trace::{Form, Keep, Recorder, RecorderOptions};

use crate::boundary::{Guarded, SizedStruct, guard, read_sized, required_mut, reserved, text, write_sized};
use crate::failure::Failure;
use crate::routes::{ftcache_routes, ids_of};
use crate::settings::not_a;
use crate::status::ftcache_status;
use crate::step::phase_of;

/// Which tokens stay in a recorder that is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ftcache_keep {
    /// Those that came first: a run from its start.
    First = 0,
    /// Those that came last: what led to now.
    Last = 1,
}

/// What a recorder is told of the model, and how much it keeps.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_recorder_config {
    /// sizeof(ftcache_recorder_config).
    pub struct_size: u32,
    /// An ftcache_keep.
    pub keep: u32,
    /// Mixture-of-experts layers, numbered from 0.
    pub layer_count: u32,
    /// Experts of a layer.
    pub expert_count: u32,
    /// Experts that a token is routed to in each layer.
    pub top_k: u32,
    /// 0.
    pub reserved: u32,
    /// Bytes for tokens, taken at the start and never more: each token takes 2 * layer_count * top_k + 24.
    pub capacity_bytes: u64,
    /// The model's name, for people; NULL if it has none. Copied.
    pub model: *const c_char,
}

// SAFETY: `repr(C)`, a `u32` first, integers and a pointer only; NULL is a value of a pointer.
unsafe impl SizedStruct for ftcache_recorder_config {}

/// How a recorder is doing.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ftcache_recorder_report {
    /// sizeof(ftcache_recorder_report), set by the caller.
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// Tokens that are held.
    pub tokens: u64,
    /// Tokens that fit.
    pub room: u64,
    /// Tokens that came and are not held.
    pub dropped: u64,
    /// Calls and cells that made no sense and were left out: a layer out of the model, a step of another width, an
    /// expert twice or past the last one.
    pub refused: u64,
}

// SAFETY: `repr(C)`, a `u32` first, integers only.
unsafe impl SizedStruct for ftcache_recorder_report {}

/// Records which experts each token was routed to, layer by layer. It has nothing to do with a cache, and is safe to
/// leave on: memory is bounded, and no input stops it.
///
/// One thread at a time inside it: a second one is given FTCACHE_STATUS_BUSY, and its step is not recorded.
pub struct ftcache_recorder {
    recording: Guarded<Recording>,
}

struct Recording {
    recorder: Recorder,
    top_k: u32,
    /// Reused for ids in the recorder's form.
    ids: Vec<u32>,
}

/// Makes a recorder. Allocates; waits for nothing.
///
/// *out is set to NULL if this does not succeed; else the caller frees it with ftcache_recorder_free.
///
/// # Safety
///
/// config points to a struct of its struct_size; out points to a pointer.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_recorder_new(
    config: *const ftcache_recorder_config,
    out: *mut *mut ftcache_recorder,
) -> ftcache_status {
    guard(|| {
        // SAFETY: `out` points to a pointer by the caller's word.
        let out = unsafe { required_mut(out, "out") }?;
        *out = std::ptr::null_mut();
        // SAFETY: points to a struct of its size by the caller's word.
        let config = unsafe { read_sized(config, "config") }?;
        reserved(config.reserved, "config->reserved")?;
        // SAFETY: a text by the caller's word.
        let model = unsafe { text(config.model, "config->model") }?.unwrap_or_default();
        let ftcache_recorder_config { layer_count, expert_count, top_k, capacity_bytes, .. } = config;
        let keep = match config.keep {
            keep if keep == ftcache_keep::First as u32 => Keep::First,
            keep if keep == ftcache_keep::Last as u32 => Keep::Last,
            other => return Err(not_a("config->keep", other, "ftcache_keep")),
        };
        let options = RecorderOptions { keep, ..RecorderOptions::new(model, layer_count, expert_count, top_k) };
        let recorder = Recorder::new(options, usize::try_from(capacity_bytes).unwrap_or(usize::MAX))?;
        let recording = Guarded::new(Recording { recorder, top_k, ids: Vec::new() });
        *out = Box::into_raw(Box::new(ftcache_recorder { recording }));
        Ok(())
    })
}

fn enter(
    recorder: Option<&ftcache_recorder>,
    body: impl FnOnce(&mut Recording) -> Result<(), Failure>,
) -> ftcache_status {
    match recorder {
        Some(recorder) => recorder.recording.enter(body),
        None => guard(|| Err(Failure::argument("recorder is NULL"))),
    }
}

/// Says that the next step is another request's, or another phase of one; phase is an ftcache_phase, of which drafts
/// count as decode. Without it all is decode of request 0. Allocates nothing, waits for nothing.
///
/// # Safety
///
/// recorder came from ftcache_recorder_new.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_recorder_begin(
    recorder: *mut ftcache_recorder,
    request: u64,
    phase: u32,
) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { recorder.as_ref() }, |recording| {
        let phase = match phase_of(phase, "phase")? {
            Phase::Prefill => ftcache_trace::Phase::Prefill,
            Phase::Decode | Phase::Verify => ftcache_trace::Phase::Decode,
        };
        recording.recorder.begin(request, phase);
        Ok(())
    })
}

/// Notes one layer's routes of one step, in the router's order: a row for each token. The layers of a step come in
/// ascending order; one that is not above the one before starts the next step, and one that is left out is absent. An
/// id that is no expert makes its token's cell absent. Allocates nothing once there was a step as wide; waits for
/// nothing.
///
/// # Safety
///
/// recorder came from ftcache_recorder_new; routes points to a struct of its struct_size, and the memory that
/// it names is readable as it says.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_recorder_record(
    recorder: *mut ftcache_recorder,
    layer: u32,
    routes: *const ftcache_routes,
) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { recorder.as_ref() }, |recording| {
        // SAFETY: a struct of its size, and ids that are readable, by the caller's word.
        let (width, ids) = unsafe { ids_of(routes) }?;
        if width != u64::from(recording.top_k) {
            let message =
                format!("routes->row_width is {width}; the recorder's model has a top_k of {}", recording.top_k);
            return Err(Failure::argument(message));
        }
        recording.ids.clear();
        // What is no expert for sure is refused by the recorder, with its cell.
        recording.ids.extend(ids.map(|id| u32::try_from(id).unwrap_or(u32::MAX)));
        recording.recorder.record(layer, &recording.ids);
        Ok(())
    })
}

/// How a recorder is doing. Allocates nothing, waits for nothing.
///
/// # Safety
///
/// recorder came from ftcache_recorder_new; report points to a struct of its struct_size.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_recorder_get(
    recorder: *mut ftcache_recorder,
    report: *mut ftcache_recorder_report,
) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { recorder.as_ref() }, |recording| {
        let Recording { recorder, .. } = recording;
        let value = ftcache_recorder_report {
            struct_size: 0,
            reserved: 0,
            tokens: recorder.tokens(),
            room: recorder.room(),
            dropped: recorder.dropped(),
            refused: recorder.refused(),
        };
        // SAFETY: points to a struct of its size by the caller's word.
        unsafe { write_sized(report, "report", value) }
    })
}

/// Writes what is held to a file that `ftcache replay` and `ftcache trace` read: compressed if the name ends with .zst.
/// A file of that name is replaced; recording may go on. Allocates as much as is held, and blocks while it is written.
///
/// # Safety
///
/// recorder came from ftcache_recorder_new; path is a text.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_recorder_write(
    recorder: *mut ftcache_recorder,
    path: *const c_char,
) -> ftcache_status {
    // SAFETY: a handle of ours by the caller's word.
    enter(unsafe { recorder.as_ref() }, |recording| {
        // SAFETY: a text by the caller's word.
        let path = unsafe { text(path, "path") }?.ok_or_else(|| Failure::argument("path is NULL"))?;
        let trace = recording.recorder.trace()?;
        let form = if path.ends_with(".zst") { Form::Zstd } else { Form::Plain };
        let at = |error: std::io::Error| Failure::new(ftcache_status::Host, format!("{path}: {error}"));
        let file = std::io::BufWriter::new(std::fs::File::create(path).map_err(at)?);
        trace.write(file, form)?.flush().map_err(at)
    })
}

/// Frees a recorder and what it holds; NULL is accepted. No other call may be inside it. Waits for nothing.
#[unsafe(no_mangle)]
pub extern "C" fn ftcache_recorder_free(recorder: Option<Box<ftcache_recorder>>) {
    let _ = guard(|| {
        drop(recorder);
        Ok(())
    });
}
