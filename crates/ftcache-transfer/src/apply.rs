//! A plan carried out, whole or not at all.
//!
//! *Unsafe*, relying on one promise: the rows that are attached outlive the copies that read them.

use ftcache_policy::Geometry;
use ftcache_residency::Plan;

use crate::{ApplyError, Arenas, Banks, Device, DeviceError, Event, RowCopy, Stream};

/// The streams of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Streams {
    /// Where the kernels run that read the slots.
    pub compute: Stream,
    /// Where the rows are copied; the compute stream itself if there is no other.
    pub copy: Stream,
}

impl Streams {
    /// Kernels and copies in one order.
    pub const fn one(stream: Stream) -> Self {
        Self { compute: stream, copy: stream }
    }
}

/// The two events that order a copy stream against the compute stream, made once and recorded at every use.
#[derive(Debug, Clone, Copy)]
pub struct Fences {
    release: Event,
    ready: Event,
}

impl Fences {
    /// Two events of a device.
    ///
    /// # Errors
    ///
    /// The device's.
    pub fn new(device: &mut impl Device) -> Result<Self, DeviceError> {
        Ok(Self { release: device.create_event()?, ready: device.create_event()? })
    }
}

/// Enqueues every copy of a plan and returns the bytes they move.
///
/// A plan without copies enqueues nothing, not even events.
///
/// # Errors
///
/// The first copy that the device refuses. Rows of the plan's slots may have been overwritten then: the plan is to be
/// aborted, and the error names its slots.
///
/// # Panics
///
/// If a bank of the plan's layer is not attached; see [`Banks::check_layer`].
///
/// # Safety
///
/// The rows of `banks` stay readable and unchanged until every stream that copies from them has been synchronised:
/// `banks` is neither dropped nor given other rows before that, and borrowed memory is kept as it was promised.
pub unsafe fn apply(
    device: &mut impl Device,
    streams: Streams,
    fences: &Fences,
    geometry: &Geometry,
    arenas: &Arenas,
    banks: &Banks,
    plan: &Plan,
) -> Result<u64, ApplyError> {
    if plan.copies().is_empty() {
        return Ok(0);
    }
    let layer = plan.layer();
    let failed = |bank, source| {
        let slots = plan.copies().iter().map(|copy| copy.slot).collect();
        ApplyError { layer, bank, slots, source }
    };
    let forked = streams.copy != streams.compute;
    if forked {
        // Without this the rows would land under kernels that still read the slots' old owners.
        device.record(fences.release, streams.compute).map_err(|error| failed(None, error))?;
        device.wait(streams.copy, fences.release).map_err(|error| failed(None, error))?;
    }
    let mut moved = 0;
    let mut outcome = Ok(());
    'banks: for bank in geometry.model().bank_ids() {
        let row_bytes = geometry.model().row_bytes(layer, bank);
        if row_bytes == 0 {
            continue;
        }
        for run in plan.runs() {
            let copy = RowCopy {
                source: banks.rows(layer, bank, run.row.get()).expect("the layer's banks are attached").into(),
                target: arenas.slots(geometry, plan.pool(), bank, run.slot).expect("the layer reads this bank"),
                row_bytes,
                row_count: u64::from(run.count),
            };
            // SAFETY: the source is rows of `banks`, which our caller keeps until the copies are done.
            if let Err(error) = unsafe { device.copy_rows(streams.copy, &copy) } {
                outcome = Err(failed(Some(bank), error));
                break 'banks;
            }
            moved += copy.bytes();
        }
    }
    if forked {
        // Without this the kernels of this step could read slots whose rows are still on their way; and after a copy
        // that failed, rows on their way could land in slots that a later step has filled over another stream.
        let fenced = device.record(fences.ready, streams.copy);
        let fenced = fenced.and_then(|()| device.wait(streams.compute, fences.ready));
        outcome = outcome.and(fenced.map_err(|error| failed(None, error)));
    }
    outcome.map(|()| moved)
}
