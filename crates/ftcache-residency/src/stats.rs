//! Counters of what was admitted. A step is counted once, whatever its width, when its plan is committed.

use std::ops::AddAssign;

use crate::Plan;

/// What the steps of one layer, or of several, came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Steps committed.
    pub steps: u64,
    /// Routes, duplicates included, absent ones not.
    pub routes: u64,
    /// Distinct experts, summed over steps.
    pub distinct: u64,
    /// Of these, those that were not resident before their step.
    pub misses: u64,
    /// Of the misses, those that took a slot from another expert.
    pub evictions: u64,
}

impl Stats {
    /// Distinct experts that were resident before their step.
    pub fn hits(&self) -> u64 {
        self.distinct - self.misses
    }

    /// Hits among distinct experts, or `None` where nothing was routed.
    pub fn hit_rate(&self) -> Option<f64> {
        (self.distinct > 0).then(|| self.hits() as f64 / self.distinct as f64)
    }

    pub(crate) fn count(&mut self, plan: &Plan) {
        self.steps += 1;
        self.routes += plan.present_count() as u64;
        self.distinct += plan.distinct_count() as u64;
        self.misses += plan.miss_count() as u64;
        self.evictions += plan.eviction_count() as u64;
    }
}

impl AddAssign for Stats {
    fn add_assign(&mut self, other: Self) {
        self.steps += other.steps;
        self.routes += other.routes;
        self.distinct += other.distinct;
        self.misses += other.misses;
        self.evictions += other.evictions;
    }
}
