//! What is counted of the steps of a layer, phase by phase. Counting happens in `step.rs`.

/// Why a missing expert was in no slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// It was never routed to and never in a slot.
    Cold,
    /// It lost its slot to another expert.
    Capacity,
    /// It lost its slot to a staging buffer.
    Staging,
    /// Its slot was freed: forgotten, reset, aborted or rebuilt.
    Freed,
    /// It was left to the CPU when it was last missed.
    OnCpu,
    /// The same, and its row is on its way.
    InFlight,
}

/// The counts of a layer's steps of one phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Committed steps that continue no other.
    pub steps: u64,
    /// Routes that were present, duplicates included.
    pub routes: u64,
    /// Those of them whose expert was in a slot before its step.
    pub hit_routes: u64,
    /// Distinct experts of each step.
    pub distinct: u64,
    /// Those of them that were in no slot: the sum of the five causes.
    pub misses: u64,
    /// Misses that got a slot.
    pub fetched: u64,
    /// Fetched misses that took the slot of another expert.
    pub evictions: u64,
    /// Misses by [`Cause::Cold`].
    pub cold: u64,
    /// Misses by [`Cause::Capacity`].
    pub capacity: u64,
    /// Misses by [`Cause::Staging`].
    pub staging: u64,
    /// Misses by [`Cause::Freed`].
    pub freed: u64,
    /// Misses by [`Cause::OnCpu`] or [`Cause::InFlight`].
    pub on_cpu: u64,
    /// Steps that were refused because they were too wide.
    pub refused: u64,
}

impl Stats {
    /// The count of one cause.
    pub fn of(&self, cause: Cause) -> u64 {
        match cause {
            Cause::Cold => self.cold,
            Cause::Capacity => self.capacity,
            Cause::Staging => self.staging,
            Cause::Freed => self.freed,
            Cause::OnCpu | Cause::InFlight => self.on_cpu,
        }
    }

    pub(super) fn count(&mut self, cause: Cause) {
        let count = match cause {
            Cause::Cold => &mut self.cold,
            Cause::Capacity => &mut self.capacity,
            Cause::Staging => &mut self.staging,
            Cause::Freed => &mut self.freed,
            Cause::OnCpu | Cause::InFlight => &mut self.on_cpu,
        };
        *count += 1;
    }
}
