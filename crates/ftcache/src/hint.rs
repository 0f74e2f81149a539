//! Hints: rows that a later step is expected to route to, copied ahead of it behind all that steps need.
//!
//! ```text
//! load(layer 4)  hint(layer 5, predicted, budget)  kernels of layer 4 | load(layer 5)  ...
//! copy           rows of layer 4
//! hints                                            rows of layer 5
//! ```

use std::ops::AddAssign;

use ftcache_policy::{ExpertId, LayerId, LayoutKey};
use ftcache_residency::{HintAnswer, HintStats, LatePlan};
use ftcache_transfer::Device;

use crate::{Cache, Error};

#[derive(Debug)]
pub(crate) struct Hints {
    pub(crate) flight_count: usize,
    plan: LatePlan,
}

/// What a hint came to. Each of its ids is counted once, but for absent ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HintReport {
    /// Its number, for [`Cache::cancel_hint`]; none is 0.
    pub hint: u64,
    /// Ids of experts that are in a slot or on their way to one, those named twice among them: they cost nothing.
    pub present: u32,
    /// Ids whose rows are copied.
    pub started: u32,
    /// Ids that are not, since the budget was spent.
    pub over_budget: u32,
    /// Ids that are not, since no slot was left that a hint may take.
    pub no_slot: u32,
    /// Ids that are not, since as many hints as there may be were on their way.
    pub held_back: u32,
    /// Bytes that are copied.
    pub bytes: u64,
}

impl HintReport {
    /// Of a hint's answer, for a layer of such rows.
    pub fn of_layer(hint: u64, answer: HintAnswer, layer: &LayoutKey) -> Self {
        let HintAnswer { present, started, over_budget, no_slot } = answer;
        Self {
            hint,
            present: present as u32,
            started: started as u32,
            over_budget: over_budget as u32,
            no_slot: no_slot as u32,
            held_back: 0,
            bytes: started as u64 * layer.expert_bytes(),
        }
    }
}

/// What became of hints since the cache was made or rebuilt.
///
/// Steps are counted as if there were none: an expert that a hint has brought is a hit, and so is one that a plain
/// step waits for; one that a hybrid step leaves to the CPU on its way is a miss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HintTotal {
    /// Rows.
    pub residency: HintStats,
    /// Bytes of the rows that were started.
    pub started_bytes: u64,
    /// Bytes of those that were there when they were wanted.
    pub useful_bytes: u64,
    /// Bytes of those that were on their way then.
    pub late_bytes: u64,
    /// Bytes of those that were not wanted.
    pub wasted_bytes: u64,
}

impl HintTotal {
    /// Of a layer's counts, with rows of such widths.
    pub fn of_layer(residency: HintStats, layer: &LayoutKey) -> Self {
        let bytes = |rows: u64| rows * layer.expert_bytes();
        Self {
            residency,
            started_bytes: bytes(residency.started),
            useful_bytes: bytes(residency.useful),
            late_bytes: bytes(residency.late),
            wasted_bytes: bytes(residency.wasted),
        }
    }
}

impl AddAssign for HintTotal {
    fn add_assign(&mut self, other: Self) {
        self.residency += other.residency;
        self.started_bytes += other.started_bytes;
        self.useful_bytes += other.useful_bytes;
        self.late_bytes += other.late_bytes;
        self.wasted_bytes += other.wasted_bytes;
    }
}

/// How many rows of a layer a budget of bytes is good for.
pub fn hinted_rows(budget: u64, layer: &LayoutKey) -> usize {
    usize::try_from(budget / layer.expert_bytes().max(1)).unwrap_or(usize::MAX)
}

impl<D: Device> Cache<D> {
    /// Lets the cache take [hints](Self::hint), with the rows of up to so many on their way at once. Once set it stays.
    ///
    /// Their copies have a stream of their own. When they land is a matter of time, and until then their slots are no
    /// victims: ranks that are to stay alike must not use this.
    ///
    /// # Errors
    ///
    /// No flights, hints that were set before, or the device's own.
    pub fn set_hints(&mut self, flight_count: u32) -> Result<(), Error> {
        let flight_count = flight_count as usize;
        self.loader.set_hints(flight_count)?;
        let plan = LatePlan::with_capacity(self.geometry().model().expert_count() as usize);
        self.hints = Some(Hints { flight_count, plan });
        self.reserve_flights();
        Ok(())
    }

    /// Room in a residency for all that may be on its way, behind steps and ahead of them.
    pub(crate) fn reserve_flights(&mut self) {
        let behind = self.later.as_ref().map_or(0, |later| later.limits.flight_count as usize);
        match &self.hints {
            Some(hints) => {
                self.residency.reserve_hints(behind.saturating_add(hints.flight_count));
                self.loader.reserve(self.residency.expert_count() as usize);
            }
            None => self.residency.reserve_flights(behind),
        }
    }

    /// Starts to copy the rows of experts that the next step of a layer is expected to route to, the likeliest first,
    /// as far as `budget` bytes go, rounded down to whole experts. Says what became of each id.
    ///
    /// To be called once the last step is loaded and before its kernels are enqueued: the copies come behind what its
    /// compute stream was given until now, so behind the rows of that step, and beside its kernels. Nothing is waited
    /// for, and nothing allocated. Absent ids are passed over.
    ///
    /// No slot is taken that the last step uses, that is pinned or in flight, or whose expert an earlier hint named.
    /// The hint is open until the next step of its layer, or until it is cancelled; until then steps take its rows'
    /// slots only where they find no others, and so never fail for a hint. A step that routes to a row on its way comes
    /// behind it. See [`residency::Cache::hint`](ftcache_residency::Cache::hint).
    ///
    /// # Errors
    ///
    /// Hints that were not set, an unknown layer or expert, a layer that is not attached, a stream that is being
    /// captured, a residency that is on the device, or a cache without slots: nothing has changed. A copy that the
    /// device refused: the rows count as wasted, and their slots are free once what is on its way has landed.
    pub fn hint(&mut self, layer: LayerId, experts: &[ExpertId], budget: u64) -> Result<HintReport, Error> {
        self.check_attached(layer)?;
        self.check_with_host()?;
        self.check_slots()?;
        if self.hints.is_none() {
            return Err(Error::NoHints);
        }
        if let Some(compute) = self.loader.compute() {
            self.device().check_stream(compute)?;
        }
        self.land()?;
        let Self { residency, loader, plan, hints: Some(Hints { plan: hinted, .. }), .. } = self else {
            unreachable!("it was looked at")
        };
        let key = loader.geometry().model().layer(layer);
        let rows = hinted_rows(budget, key);
        let may_hint = loader.may_hint();
        let ticket = residency.hint(plan, layer, experts, if may_hint { rows } else { 0 }, hinted)?;
        let (number, answer) = (ticket.plan().flight(), ticket.plan().hint().expect("it is a hint's"));
        let mut report = HintReport::of_layer(number, answer, key);
        if !may_hint {
            report.held_back = report.over_budget.min(u32::try_from(rows).unwrap_or(u32::MAX));
            report.over_budget -= report.held_back;
        }
        if answer.started == 0 {
            ticket.commit();
            return Ok(report);
        }
        match loader.copy_hinted(ticket.plan()) {
            Ok(_) => {
                ticket.commit();
                Ok(report)
            }
            Err(failure) => {
                if failure.on_its_way {
                    ticket.fail()
                } else {
                    ticket.abort()
                }
                Err(failure.error.into())
            }
        }
    }

    /// Cancels an open hint: what it brought goes first from now on, and nobody waits for what it is bringing. Copies
    /// that the device was given are not taken back. Returns how many of its rows count as wasted for that; none if the
    /// hint is not open.
    ///
    /// # Errors
    ///
    /// A residency that is on the device.
    pub fn cancel_hint(&mut self, hint: u64) -> Result<usize, Error> {
        self.check_with_host()?;
        Ok(self.residency.cancel_hint(hint))
    }

    /// The same for all open hints.
    ///
    /// # Errors
    ///
    /// A residency that is on the device.
    pub fn cancel_hints(&mut self) -> Result<usize, Error> {
        self.check_with_host()?;
        Ok(self.residency.cancel_hints())
    }

    /// What became of the hints of a layer.
    ///
    /// # Errors
    ///
    /// An unknown layer, or one without slots.
    pub fn layer_hints(&self, layer: LayerId) -> Result<HintTotal, Error> {
        self.residency.pool_of(layer)?;
        Ok(HintTotal::of_layer(self.residency.hint_stats(layer), self.geometry().model().layer(layer)))
    }

    /// What became of hints over all layers.
    pub fn hint_total(&self) -> HintTotal {
        let mut sum = HintTotal::default();
        for (layer, key) in self.geometry().model().layer_ids().zip(self.geometry().model().layers()) {
            sum += HintTotal::of_layer(self.residency.hint_stats(layer), key);
        }
        sum
    }
}
