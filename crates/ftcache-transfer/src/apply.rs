//! A plan carried out, whole or not at all.
//!
//! *Unsafe*, relying on one promise of [`Loader`]'s: rows are let go only once every copy that reads them is done.

use ftcache_policy::{BankId, LayerId, PoolId, SlotId};
use ftcache_residency::{Plan, Run};

use crate::loader::Places;
use crate::{ApplyError, Device, DeviceError, Event, Loader, RowCopy, Stream};

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

    pub(crate) fn are_two(&self) -> bool {
        self.copy != self.compute
    }
}

/// The events that order streams against each other, made once and recorded at every use.
#[derive(Debug)]
pub(crate) struct Fences {
    /// What the compute stream was given before the rows of a step are overwritten.
    pub(crate) release: Event,
    /// The rows of a step.
    pub(crate) ready: Event,
    /// What a compute stream was given before another takes its place.
    pub(crate) handover: Event,
}

impl Fences {
    pub(crate) fn new(device: &mut impl Device) -> Result<Self, DeviceError> {
        let [release, ready, handover] = create_events(device)?;
        Ok(Self { release, ready, handover })
    }

    pub(crate) fn free(&self, device: &mut impl Device) {
        [self.release, self.ready, self.handover].into_iter().for_each(|event| device.destroy_event(event));
    }
}

/// So many events, or none.
pub(crate) fn create_events<const N: usize>(device: &mut impl Device) -> Result<[Event; N], DeviceError> {
    let mut events = [Event(0); N];
    for made in 0..N {
        match device.create_event() {
            Ok(event) => events[made] = event,
            Err(error) => {
                events[..made].iter().for_each(|&event| device.destroy_event(event));
                return Err(error);
            }
        }
    }
    Ok(events)
}

/// The copies of a plan, gathered before the first is enqueued; the buffers serve the next plan.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    /// What the device reads by itself.
    direct: Vec<RowCopy>,
    /// `bank_of[copy]` of those.
    bank_of: Vec<BankId>,
    /// What goes through the bounce buffer.
    bounced: Vec<(BankId, RowCopy)>,
}

/// A copy that was refused, and the bank it was for.
pub(crate) type Refused = (BankId, DeviceError);

impl Copies {
    pub(crate) fn reserve(&mut self, copies: usize, bounced: usize) {
        self.clear();
        self.direct.reserve(copies);
        self.bank_of.reserve(copies);
        self.bounced.reserve(bounced);
    }

    pub(crate) fn clear(&mut self) {
        self.direct.clear();
        self.bank_of.clear();
        self.bounced.clear();
    }

    /// Adds a copy of a bank; `direct` if the device can read its source.
    pub(crate) fn push(&mut self, bank: BankId, direct: bool, copy: RowCopy) {
        if direct {
            self.direct.push(copy);
            self.bank_of.push(bank);
        } else {
            self.bounced.push((bank, copy));
        }
    }

    /// Bytes of all of them.
    pub(crate) fn bytes(&self) -> u64 {
        self.direct.iter().chain(self.bounced.iter().map(|(_, copy)| copy)).map(RowCopy::bytes).sum()
    }
}

impl<D: Device> Loader<D> {
    /// Enqueues every copy of a plan and returns the bytes they move.
    ///
    /// Copies are enqueued behind what the compute stream was given before, and what it is given afterwards comes
    /// behind the copies. A plan without copies enqueues nothing, not even events, unless the compute stream is
    /// another than that of the plan before: then the new one is ordered behind the old one, which must be alive; or the
    /// plan awaits the flight of a hint, which the compute stream and with it the copies are ordered behind.
    ///
    /// # Errors
    ///
    /// The first copy that the device refuses. Rows of the plan's slots may have been overwritten then: the plan is
    /// to be aborted, and the error names its slots.
    ///
    /// # Panics
    ///
    /// If a bank of the plan's layer is not attached; see [`check_layer`](Self::check_layer).
    pub fn apply(&mut self, streams: Streams, plan: &Plan) -> Result<u64, ApplyError> {
        let layer = plan.layer();
        let failed = |bank, source| {
            let slots = plan.copies().iter().map(|copy| copy.slot).collect();
            ApplyError { layer, bank, slots, source }
        };
        self.take_over(streams.compute).map_err(|error| failed(None, error))?;
        if let Some(flight) = plan.awaits() {
            self.after_hint(streams.compute, flight).map_err(|error| failed(None, error))?;
        }
        if plan.copies().is_empty() {
            return Ok(0);
        }
        let places = self.places.as_ref().map_err(|lack| failed(None, lack.clone()))?;
        let mut copies = std::mem::take(&mut self.copies);
        self.push_runs(&mut copies, places, (layer, plan.pool()), || plan.runs());
        let moved = copies.bytes();
        let outcome = self.copy_between(streams, &mut copies).map_err(|(bank, error)| failed(bank, error));
        self.copies = copies;
        outcome.map(|()| moved)
    }

    /// A plan's runs in every bank, in place of what was there.
    pub(crate) fn push_runs<R: Iterator<Item = Run>>(
        &self,
        copies: &mut Copies,
        places: &Places,
        (layer, pool): (LayerId, PoolId),
        runs: impl Fn() -> R,
    ) {
        copies.clear();
        for bank in self.geometry.model().bank_ids() {
            for Run { row, slot, count } in runs() {
                self.push_rows(copies, places, (layer, bank), row.get(), (pool, slot), u64::from(count));
            }
        }
    }

    /// Adds rows of one bank that go to neighbouring slots; none if the layer does not read the bank.
    pub(crate) fn push_rows(
        &self,
        copies: &mut Copies,
        places: &Places,
        (layer, bank): (LayerId, BankId),
        row: u32,
        (pool, slot): (PoolId, SlotId),
        row_count: u64,
    ) {
        let row_bytes = self.geometry.model().row_bytes(layer, bank);
        if row_bytes == 0 {
            return;
        }
        let (source, direct) = self.banks.rows(layer, bank, row).expect("the layer's banks are attached");
        let target = places.arenas.slots(&self.geometry, pool, bank, slot).expect("the layer reads this bank");
        copies.push(bank, direct, RowCopy { source: source.into(), target, row_bytes, row_count });
    }

    /// Enqueues copies into slots: behind what the compute stream was given, and before what it is given next.
    pub(crate) fn copy_between(
        &mut self,
        streams: Streams,
        copies: &mut Copies,
    ) -> Result<(), (Option<BankId>, DeviceError)> {
        let fence = |error| (None, error);
        self.before_slots_change(streams.copy).map_err(fence)?;
        if streams.are_two() {
            // Without this the rows would land under kernels that still read the slots' old owners.
            self.device.record(self.fences.release, streams.compute).map_err(fence)?;
            self.device.wait(streams.copy, self.fences.release).map_err(fence)?;
        }
        let mut outcome = self.enqueue(streams.copy, copies).map_err(|(bank, error)| (Some(bank), error));
        if streams.are_two() {
            // Without this the kernels of this step could read slots whose rows are still on their way; and after a
            // copy that failed, rows on their way could land in slots that a later step has filled over another
            // stream.
            let fenced = self.device.record(self.fences.ready, streams.copy);
            let fenced = fenced.and_then(|()| self.device.wait(streams.compute, self.fences.ready));
            outcome = outcome.and(fenced.map_err(fence));
        }
        outcome.and(self.after_slots_changed(streams.copy).map_err(fence))
    }

    /// Enqueues copies on a stream, in no order of their own.
    pub(crate) fn enqueue(&mut self, stream: Stream, copies: &Copies) -> Result<(), Refused> {
        // Of none, none can be the one that was refused.
        if !copies.direct.is_empty() {
            // SAFETY: sources on the host are rows of `banks`, which are let go only after a wait for everything
            // enqueued (`attach`, `drop`); targets and sources on the device are the arenas'.
            let direct = unsafe { self.device.copy_all(stream, &copies.direct) };
            direct.map_err(|error| (copies.bank_of[error.index], error.source))?;
        }
        for (bank, copy) in &copies.bounced {
            let bounce = self.bounce.as_mut().expect("rows that need it are attached only where there is one");
            // SAFETY: as above; and the bounce buffer is given up before rows are let go if the wait has failed.
            unsafe { bounce.copy(&mut self.device, stream, copy) }.map_err(|error| (*bank, error))?;
        }
        Ok(())
    }

    /// Orders a compute stream behind the one before it, if it is another: kernels there may still read the slots, and
    /// its rows may be on their way.
    ///
    /// Every call that names a compute stream does so. On its own it is for a step whose rows are on their way already.
    ///
    /// # Errors
    ///
    /// Either stream is none of the device's or being captured: the new one would join the capture. The device's own.
    pub fn take_over(&mut self, compute: Stream) -> Result<(), DeviceError> {
        if self.compute == Some(compute) {
            return Ok(());
        }
        // One that is refused must not be what the next is ordered behind.
        self.device.check_stream(compute)?;
        if let Some(before) = self.compute {
            self.device.check_stream(before)?;
            self.device.record(self.fences.handover, before)?;
            self.device.wait(compute, self.fences.handover)?;
        }
        self.compute = Some(compute);
        Ok(())
    }
}
