//! Copies merged into runs: neighbouring rows that go to neighbouring slots travel as one entry.
//!
//! A plan's rows ascend, so one walk finds every run.

use ftcache_policy::{ExpertId, SlotId};
use ftcache_residency::Copy;

/// `count` rows from `row` on, to `count` slots from `slot` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The first slot.
    pub slot: SlotId,
    /// The first row.
    pub row: ExpertId,
    /// Rows and slots.
    pub count: u32,
}

/// The runs of a plan's copies, in their order.
pub fn runs(copies: &[Copy]) -> impl Iterator<Item = Run> + '_ {
    let follows = |a: &Copy, b: &Copy| b.row.get() == a.row.get() + 1 && b.slot.get() == a.slot.get() + 1;
    copies.chunk_by(follows).map(|run| Run { slot: run[0].slot, row: run[0].row, count: run.len() as u32 })
}
