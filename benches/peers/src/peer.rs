//! The crates: each behind the least code that its user would write.

use std::hint::black_box;

use ferrox_core::expert_cache::ExpertCache;
use ftcache_policy::{LayerId, PoolId};
use ftcache_residency::{Cache, Plan};
use schnellru::{ByLength, LruMap};

use crate::{EXPERTS, LAYERS, Replay, StepRoutes};

/// One crate, keeping the experts of all layers in one pool.
pub trait Peer {
    /// Its name in a bench.
    const NAME: &'static str;

    /// An empty pool.
    fn new(slot_count: u32) -> Self;

    /// Makes a step's experts resident. Returns how many were not.
    fn step(&mut self, step: StepRoutes<'_>) -> usize;

    /// Runs one token of a replay. Returns its misses.
    fn token(&mut self, replay: &Replay, token: usize) -> usize {
        replay.token(token).map(|step| self.step(step)).sum()
    }

    /// Runs every token of a replay once. Returns the misses.
    fn pass(&mut self, replay: &Replay) -> usize {
        (0..replay.token_count()).map(|token| self.token(replay, token)).sum()
    }
}

/// This library: exact victims, and a plan with slots, copies and who was evicted. The ticket is committed, so the
/// statistics are counted.
#[derive(Debug)]
pub struct Ftcache {
    cache: Cache,
    plan: Plan,
}

impl Peer for Ftcache {
    const NAME: &'static str = "ftcache";

    fn new(slot_count: u32) -> Self {
        let pool_of_layer = vec![Some(PoolId::new(0)); LAYERS as usize];
        let cache = Cache::with_pools(EXPERTS, &pool_of_layer, &[slot_count]).expect("the pools are consistent");
        Self { cache, plan: Plan::new() }
    }

    #[inline]
    fn step(&mut self, step: StepRoutes<'_>) -> usize {
        let ticket = self.cache.ensure(LayerId::new(step.layer), step.experts, &mut self.plan);
        ticket.expect("no step is wider than the pool").commit();
        black_box(&self.plan);
        self.plan.miss_count()
    }
}

/// ferrox-core: the same victims, and a new plan each step with slots, copies and counts.
pub struct Ferrox(ExpertCache);

impl Peer for Ferrox {
    const NAME: &'static str = "ferrox-core";

    fn new(slot_count: u32) -> Self {
        Self(ExpertCache::new(LAYERS as usize, EXPERTS as usize, slot_count as usize))
    }

    #[inline]
    fn step(&mut self, step: StepRoutes<'_>) -> usize {
        black_box(self.0.ensure(step.layer, step.numbers)).missing
    }
}

/// schnellru: a general LRU map from flat expert to slot, asked route by route; an evicted slot is used again.
///
/// It does less than the others. Victims go by the order of routes and not by step and slot. A route may evict an
/// expert that a later route of the same step hits, and then both move. There is no list of copies and of who was
/// evicted, no check of ids and widths, and no statistics but the count of misses.
pub struct Schnellru {
    slot_of: LruMap<u32, u32, ByLength>,
    slots: Vec<u32>,
}

impl Peer for Schnellru {
    const NAME: &'static str = "schnellru";

    fn new(slot_count: u32) -> Self {
        Self { slot_of: LruMap::new(ByLength::new(slot_count)), slots: Vec::new() }
    }

    #[inline]
    fn step(&mut self, step: StepRoutes<'_>) -> usize {
        self.slots.clear();
        let mut misses = 0;
        for number in step.numbers {
            let expert = step.layer * EXPERTS + number;
            if let Some(slot) = self.slot_of.get(&expert) {
                self.slots.push(*slot);
                continue;
            }
            misses += 1;
            let used = self.slot_of.len() as u32;
            let slot = if used < self.slot_of.limiter().max_length() {
                used
            } else {
                self.slot_of.pop_oldest().expect("a full pool has an oldest slot").1
            };
            self.slot_of.insert(expert, slot);
            self.slots.push(slot);
        }
        black_box(&self.slots);
        misses
    }
}
