//! Misses that the CPU computes now and that are resident later: copies behind hybrid steps, which nobody waits for.

use ftcache_residency::{LatePlan, LateStats, Misses};
use ftcache_transfer::{Device, Streams};

use crate::{Cache, Error};

/// How much may be fetched behind steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LaterLimits {
    /// Bytes behind one step, over all banks: rounded down to whole experts.
    pub step_bytes: u64,
    /// Steps whose copies may be on their way at once; further ones fetch nothing later.
    pub flight_count: u32,
}

#[derive(Debug)]
pub(crate) struct Later {
    pub(crate) limits: LaterLimits,
    plan: LatePlan,
    bytes: u64,
    /// Steps behind which nothing was fetched since too many flights were on their way.
    held_back: u64,
    /// What failed behind a step, for the next call.
    error: Option<Error>,
}

/// What became of later copies since the cache was made or rebuilt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LaterReport {
    /// Rows.
    pub residency: LateStats,
    /// Bytes copied behind steps.
    pub bytes: u64,
    /// Steps behind which nothing was fetched since too many flights were on their way.
    pub held_back: u64,
}

impl<D: Device> Cache<D> {
    /// Lets hybrid steps fetch behind them some of what they leave to the CPU: the step goes on, and the rows are
    /// resident once their copies are done, which every later call looks for. Once set it stays.
    ///
    /// The copies have a stream of their own and come behind what the compute stream was given, so nothing waits for
    /// them. When they land is a matter of time: ranks that are to stay alike must not use this.
    ///
    /// # Errors
    ///
    /// No flights, limits that were set before, or the device's own.
    pub fn set_later(&mut self, limits: LaterLimits) -> Result<(), Error> {
        self.loader.set_late(limits.flight_count as usize)?;
        self.later = Some(Later {
            limits,
            plan: LatePlan::with_capacity(self.geometry().model().expert_count() as usize),
            bytes: 0,
            held_back: 0,
            error: None,
        });
        self.reserve_flights();
        Ok(())
    }

    /// Makes resident what has arrived behind earlier steps or ahead of later ones. Every step does this first; on its
    /// own it is for an engine that looks at the residency between steps. Returns how many rows there were. Waits for
    /// nothing.
    ///
    /// # Errors
    ///
    /// The device's own, or what failed behind a step before.
    pub fn land(&mut self) -> Result<usize, Error> {
        if let Some(error) = self.later.as_mut().and_then(|later| later.error.take()) {
            return Err(error);
        }
        let mut landed = 0;
        while let Some(flight) = self.loader.next_landed()? {
            landed += self.residency.land(flight);
        }
        Ok(landed)
    }

    /// What became of later copies.
    pub fn later_report(&self) -> LaterReport {
        let (bytes, held_back) = self.later.as_ref().map_or((0, 0), |later| (later.bytes, later.held_back));
        LaterReport { residency: self.residency.late_stats(), bytes, held_back }
    }

    /// Fetches behind the step that was just admitted what it has left to the CPU, within the limits.
    pub(crate) fn fetch_later(&mut self, streams: Streams) {
        let Some(later) = &mut self.later else { return };
        let is_hybrid = matches!(self.plan.misses(), Misses::Hybrid { .. });
        if !is_hybrid || self.plan.left().is_empty() {
            return;
        }
        let expert_bytes = self.loader.geometry().model().layer(self.plan.layer()).expert_bytes();
        let most = (later.limits.step_bytes / expert_bytes.max(1)) as usize;
        if most == 0 {
            return;
        }
        if !self.loader.may_take_off() {
            later.held_back += 1;
            return;
        }
        let ticket = self.residency.fetch_later(&self.plan, most, &mut later.plan);
        let ticket = ticket.expect("the step is hybrid and the last one");
        if ticket.plan().copies().is_empty() {
            ticket.abort();
            return;
        }
        match self.loader.copy_late(streams, ticket.plan()) {
            Ok(bytes) => {
                ticket.commit();
                later.bytes += bytes;
            }
            // The step itself is whole; what failed behind it is told by the next call.
            Err(failure) => {
                if failure.on_its_way {
                    ticket.fail()
                } else {
                    ticket.abort()
                }
                later.error = Some(Error::Later(failure.error));
            }
        }
    }
}
