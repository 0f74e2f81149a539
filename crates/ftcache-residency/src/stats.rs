//! Counters of what was admitted. A step is counted once, whatever its width, when it is admitted; an aborted one is
//! taken back.

use std::ops::{AddAssign, Sub};

use ftcache_policy::{ExpertId, LayerId, PoolId};

use crate::{Cache, Phase, Step};

/// What the steps of one layer, or of several, came to.
///
/// A window is the difference between two readings: `now - then`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Steps committed.
    pub steps: u64,
    /// Routes, duplicates included, absent ones not.
    pub routes: u64,
    /// Of these, those to experts that were resident before their step.
    pub hit_routes: u64,
    /// Distinct experts, summed over steps.
    pub distinct: u64,
    /// Of these, those that were not resident before their step.
    pub misses: u64,
    /// Of the misses, those that were fetched: all but those that a hybrid step left to the CPU.
    pub fetched: u64,
    /// Of the fetched, those that took a slot from another expert.
    pub evictions: u64,
    /// Of the misses, those that no step had routed to before.
    pub cold_misses: u64,
    /// Of the misses, those that had lost their slot to another expert: more slots would have kept them.
    pub capacity_misses: u64,
    /// Of the misses, those that had lost their slot to a staging buffer.
    pub staging_misses: u64,
    /// Of the misses, those whose slot had been freed by a call: forgotten, aborted or rebuilt.
    pub freed_misses: u64,
    /// Of the misses, those that had been left to the CPU the last time too, or whose row was on its way.
    pub cpu_misses: u64,
    /// Steps refused because they were too wide, which are counted nowhere else.
    pub refused: u64,
}

/// Every counter, in the order of the fields.
macro_rules! for_each_counter {
    ($each:ident) => {
        $each!(
            steps,
            routes,
            hit_routes,
            distinct,
            misses,
            fetched,
            evictions,
            cold_misses,
            capacity_misses,
            staging_misses,
            freed_misses,
            cpu_misses,
            refused
        )
    };
}

/// How many counters there are.
const COUNTER_COUNT: usize = {
    macro_rules! count {
        ($($counter:ident),*) => { [$(stringify!($counter)),*].len() };
    }
    for_each_counter!(count)
};

impl Stats {
    /// How many counters there are.
    pub const COUNTER_COUNT: usize = COUNTER_COUNT;

    /// Every counter, in the order of the fields.
    pub fn counters(&self) -> [u64; COUNTER_COUNT] {
        macro_rules! list {
            ($($counter:ident),*) => { [$(self.$counter),*] };
        }
        for_each_counter!(list)
    }

    /// From every counter, in the order of the fields.
    pub fn from_counters(counters: [u64; COUNTER_COUNT]) -> Self {
        macro_rules! fields {
            ($($counter:ident),*) => {{
                let [$($counter),*] = counters;
                Self { $($counter),* }
            }};
        }
        for_each_counter!(fields)
    }

    /// Distinct experts that were resident before their step.
    pub fn hits(&self) -> u64 {
        self.distinct - self.misses
    }

    /// Misses that were left to the CPU.
    pub fn left(&self) -> u64 {
        self.misses - self.fetched
    }

    /// Hits among distinct experts, or `None` where nothing was routed.
    pub fn hit_rate(&self) -> Option<f64> {
        (self.distinct > 0).then(|| self.hits() as f64 / self.distinct as f64)
    }
}

impl AddAssign for Stats {
    fn add_assign(&mut self, other: Self) {
        macro_rules! add {
            ($($counter:ident),*) => { $(self.$counter += other.$counter;)* };
        }
        for_each_counter!(add);
    }
}

/// What was counted between two readings, the later minus the earlier.
impl Sub for Stats {
    type Output = Self;

    /// # Panics
    ///
    /// If `earlier` is not: statistics have been started over since.
    fn sub(self, earlier: Self) -> Self {
        macro_rules! sub {
            ($($counter:ident),*) => {
                Self { $($counter: self.$counter.checked_sub(earlier.$counter).expect("an earlier reading"),)* }
            };
        }
        for_each_counter!(sub)
    }
}

/// The counters of every layer and phase.
#[derive(Debug, Clone)]
pub(crate) struct Tally {
    /// `stats[Phase::ALL.len() * layer + phase]`.
    stats: Vec<Stats>,
}

impl Tally {
    pub(crate) fn new(layer_count: usize) -> Self {
        Self { stats: vec![Stats::default(); Phase::ALL.len() * layer_count] }
    }

    /// The counters of a step's layer and phase.
    #[inline]
    pub(crate) fn of(&mut self, step: &Step) -> &mut Stats {
        &mut self.stats[Phase::ALL.len() * step.layer.index() + step.phase as usize]
    }

    /// All of them, layer after layer.
    pub(crate) fn stats(&self) -> &[Stats] {
        &self.stats
    }

    /// All of them anew.
    pub(crate) fn set(&mut self, stats: impl Iterator<Item = Stats>) {
        self.stats.clear();
        self.stats.extend(stats);
    }

    pub(crate) fn restart(&mut self) {
        self.stats.fill(Stats::default());
    }
}

impl Cache {
    /// Statistics of one layer since the last [`reset_stats`](Self::reset_stats), over all phases.
    ///
    /// # Panics
    ///
    /// If there is no such layer.
    pub fn layer_stats(&self, layer: LayerId) -> Stats {
        let mut sum = Stats::default();
        Phase::ALL.iter().for_each(|&phase| sum += self.phase_stats(layer, phase));
        sum
    }

    /// Statistics of one layer's steps of one phase.
    ///
    /// # Panics
    ///
    /// If there is no such layer.
    pub fn phase_stats(&self, layer: LayerId, phase: Phase) -> Stats {
        self.tally.stats[Phase::ALL.len() * layer.index() + phase as usize]
    }

    /// Statistics over all layers.
    pub fn total_stats(&self) -> Stats {
        let mut sum = Stats::default();
        self.tally.stats.iter().for_each(|stats| sum += *stats);
        sum
    }

    /// Statistics of one pool: the sum over its layers.
    ///
    /// # Panics
    ///
    /// If there is no such pool.
    pub fn pool_stats(&self, pool: PoolId) -> Stats {
        assert!(pool.index() < self.pool_count(), "pool {pool} of {}", self.pool_count());
        let mut sum = Stats::default();
        self.layers_of(pool).for_each(|layer| sum += self.layer_stats(layer));
        sum
    }

    /// Routes to an expert in committed steps, duplicates included, since the last
    /// [`reset_routing`](Self::reset_routing).
    ///
    /// # Panics
    ///
    /// If the cache has no such layer or expert.
    pub fn routed(&self, layer: LayerId, expert: ExpertId) -> u64 {
        self.map.routed(self.flat(layer, expert))
    }

    /// Starts the statistics over. Neither residency nor what is known of the routing is touched.
    pub fn reset_stats(&mut self) {
        self.tally.restart();
    }

    /// Starts over what is counted of the routing.
    pub fn reset_routing(&mut self) {
        self.map.reset_routed();
    }

    pub(crate) fn layers_of(&self, pool: PoolId) -> impl Iterator<Item = LayerId> + '_ {
        let serves =
            move |(index, of): (usize, &Option<PoolId>)| (*of == Some(pool)).then(|| LayerId::from_index(index));
        self.pool_of_layer.iter().enumerate().filter_map(serves)
    }
}
