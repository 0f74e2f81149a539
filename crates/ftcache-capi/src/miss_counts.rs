//! What the layers of a model miss on a recording, by slots: the numbers of a split by curves.

use std::ffi::c_char;
use std::fs::File;
use std::io::BufReader;

use ftcache_trace::{Events, LayerCurves, Trace, TraceError};

use crate::boundary::{array_mut, guard, required, text, write_text};
use crate::failure::Failure;
use crate::model::ftcache_model;
use crate::status::ftcache_status;

/// Counts how often each layer of a model would have missed with so many slots of its own, on routing that
/// ftcache_recorder_write or `ftcache trace` wrote: LRU, every token a decode step of its own, as `ftcache plan
/// --split-trace` goes by. Allocates as much as the file holds, and blocks while it is read and counted.
///
/// miss_counts gets layers times (experts + 1) numbers, [layer][slots] from none to all experts, to be handed on in
/// ftcache_settings; with fewer slots than a step needs, every use is a miss. A recording of less than a thousand tokens
/// says more of its requests than of the layers. A recording of other layers or experts than the model's is refused,
/// and what is refused writes nothing.
///
/// The name of the recorded model is written to buffer, for miss_counts_model, cut to fit and ended by a zero. *needed
/// is set to the bytes of all of it, its ending zero included; it may be NULL, and buffer may be NULL if capacity is 0.
///
/// # Safety
///
/// model came from ftcache_model_new, with every layer set; path is a text; miss_counts points to
/// miss_count_count writable numbers; buffer points to capacity writable bytes; needed is NULL or points to a
/// number.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn ftcache_model_miss_counts(
    model: *const ftcache_model,
    path: *const c_char,
    miss_counts: *mut u64,
    miss_count_count: u64,
    buffer: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> ftcache_status {
    guard(|| {
        // SAFETY: a handle of ours by the caller's word.
        let model = unsafe { required(model, "model") }?.build()?;
        // SAFETY: a text by the caller's word.
        let path = unsafe { text(path, "path") }?.ok_or_else(|| Failure::argument("path is NULL"))?;
        // SAFETY: as many numbers as the count says, by the caller's word.
        let miss_counts = unsafe { array_mut(miss_counts, miss_count_count, "miss_counts") }?;
        let (layers, experts) = (model.layer_count(), model.expert_count() as usize);
        let wanted = layers * (experts + 1);
        if miss_counts.len() != wanted {
            let message = format!(
                "miss_counts has {} counts; {layers} layers of {experts} experts need {wanted}",
                miss_counts.len()
            );
            return Err(Failure::argument(message));
        }
        let file = File::open(path).map_err(|error| Failure::new(ftcache_status::Host, format!("{path}: {error}")))?;
        let trace = Trace::read(BufReader::new(file)).map_err(|error| {
            let status = match error {
                TraceError::Read { .. } => ftcache_status::Host,
                _ => ftcache_status::InvalidArgument,
            };
            Failure::new(status, format!("{path}: {error}"))
        })?;
        let other = |error| Failure::argument(format!("{path}: {error}"));
        trace.header().shape().check_model(layers, experts as u32).map_err(other)?;
        let curves = LayerCurves::lru(&Events::of(&trace));
        // First, since a buffer may be refused, and the numbers no more.
        // SAFETY: as many writable bytes as the capacity says, and a number, by the caller's word.
        unsafe { write_text(&trace.header().model, buffer, capacity, needed) }?;
        for (row, curve) in miss_counts.chunks_mut(experts + 1).zip(curves.layers()) {
            for (slots, misses) in row.iter_mut().enumerate() {
                *misses = curve.misses_or_uses(slots);
            }
        }
        Ok(())
    })
}
