//! All pools: sends a layer to its pool and keeps what they share, the map, the step counter and the statistics.

use ftcache_policy::{ExpertId, Geometry, LayerId, PoolId, Recency, SlotId};

use crate::map::Map;
use crate::pool::{Pool, Scratch};
use crate::{EnsureError, Plan, PoolsError, Stats};

/// The residency of one model's experts.
#[derive(Debug, Clone)]
pub struct Cache {
    /// `None`: the layer holds no slots.
    pool_of_layer: Vec<Option<PoolId>>,
    pools: Vec<Pool>,
    map: Map,
    /// Steps admitted since the cache was made; one counter for all pools.
    step: u64,
    stats_of_layer: Vec<Stats>,
    scratch: Scratch,
}

impl Cache {
    /// An empty cache with the pools of a geometry.
    pub fn new(geometry: &Geometry) -> Self {
        let model = geometry.model();
        let pool_of_layer: Vec<Option<PoolId>> = model.layer_ids().map(|layer| geometry.pool_of_layer(layer)).collect();
        let slot_counts: Vec<u32> = geometry.pools().iter().map(|pool| pool.slot_count()).collect();
        Self::with_pools(model.expert_count(), &pool_of_layer, &slot_counts)
            .expect("a geometry's pools are consistent, and no pool has more slots than experts")
    }

    /// An empty cache of layers of `expert_count` experts; layer `l` is served by pool `pool_of_layer[l]` or holds no
    /// slots, and pool `p` has `slot_counts[p]` slots.
    ///
    /// # Errors
    ///
    /// A layer in a pool that does not exist; more experts or slots than 32 bits count.
    pub fn with_pools(
        expert_count: u32,
        pool_of_layer: &[Option<PoolId>],
        slot_counts: &[u32],
    ) -> Result<Self, PoolsError> {
        let experts = u64::from(expert_count) * pool_of_layer.len() as u64;
        let slots: u64 = slot_counts.iter().map(|&count| u64::from(count)).sum();
        if experts.max(slots) >= u64::from(u32::MAX) {
            return Err(PoolsError::TooMany { experts, slots });
        }
        for (index, pool) in pool_of_layer.iter().enumerate() {
            if let Some(pool) = pool.filter(|pool| pool.index() >= slot_counts.len()) {
                let layer = LayerId::from_index(index);
                return Err(PoolsError::UnknownPool { layer, pool, pool_count: slot_counts.len() });
            }
        }

        let mut pools = Vec::with_capacity(slot_counts.len());
        let mut first = 0;
        for (index, &slot_count) in slot_counts.iter().enumerate() {
            pools.push(Pool { id: PoolId::from_index(index), first, recency: Recency::new(slot_count) });
            first += slot_count;
        }
        Ok(Self {
            pools,
            map: Map::new(pool_of_layer.len(), expert_count, slots as usize),
            step: 0,
            stats_of_layer: vec![Stats::default(); pool_of_layer.len()],
            scratch: Scratch::new(expert_count),
            pool_of_layer: pool_of_layer.to_vec(),
        })
    }

    /// Makes room for steps of `route_count` routes, which then allocate nothing, given a plan with as much room.
    pub fn reserve(&mut self, route_count: usize) {
        self.scratch.widen(route_count);
    }

    /// Makes every expert of `routes` resident and says what has to be copied first.
    ///
    /// Any number of routes is one admission. Duplicate routes share one slot and one copy; a route that is
    /// [`ExpertId::ABSENT`] takes none. A slot that this step uses is never its victim, so a plan never overwrites
    /// what the same step reads. The cost is that of the routes, whatever the number of slots, and a step without a
    /// miss allocates nothing once there was one as wide.
    ///
    /// The plan is open until its ticket is committed or aborted.
    ///
    /// # Errors
    ///
    /// An unknown layer or expert, a layer without slots, or more distinct experts than the pool has slots; the cache is
    /// then as it was.
    pub fn ensure<'a>(
        &'a mut self,
        layer: LayerId,
        routes: &[ExpertId],
        plan: &'a mut Plan,
    ) -> Result<Ticket<'a>, EnsureError> {
        let pool = self.pool_of(layer)?;
        self.pools[pool.index()].ensure(self.step + 1, layer, routes, &mut self.map, &mut self.scratch, plan)?;
        self.step += 1;
        Ok(Ticket { cache: self, plan, open: true })
    }

    /// Experts of a layer.
    pub fn expert_count(&self) -> u32 {
        self.map.expert_count()
    }

    /// Number of layers.
    pub fn layer_count(&self) -> usize {
        self.pool_of_layer.len()
    }

    /// Number of pools.
    pub fn pool_count(&self) -> usize {
        self.pools.len()
    }

    /// Slots of a pool.
    ///
    /// # Panics
    ///
    /// If there is no such pool.
    pub fn slot_count(&self, pool: PoolId) -> u32 {
        self.pools[pool.index()].recency.slot_count()
    }

    /// The pool that serves a layer.
    ///
    /// # Errors
    ///
    /// An unknown layer, or one that holds no slots.
    pub fn pool_of(&self, layer: LayerId) -> Result<PoolId, EnsureError> {
        let layer_count = self.layer_count();
        let pool = self.pool_of_layer.get(layer.index()).ok_or(EnsureError::UnknownLayer { layer, layer_count })?;
        pool.ok_or(EnsureError::NoSlots { layer })
    }

    /// The slot that holds an expert.
    ///
    /// # Panics
    ///
    /// If the cache has no such layer or expert.
    pub fn slot_of(&self, layer: LayerId, expert: ExpertId) -> Option<SlotId> {
        assert!(expert.get() < self.expert_count(), "expert {expert} of {}", self.expert_count());
        let slot = self.map.slot_of(self.map.flat(layer, expert));
        slot.is_slot().then_some(slot)
    }

    /// The layer and expert that a slot holds.
    ///
    /// # Panics
    ///
    /// If there is no such pool or slot.
    pub fn expert_of(&self, pool: PoolId, slot: SlotId) -> Option<(LayerId, ExpertId)> {
        assert!(slot.get() < self.slot_count(pool), "slot {slot} of {}", self.slot_count(pool));
        let expert = self.map.expert_of(self.pools[pool.index()].first, slot)?;
        Some(self.map.layer_and_expert(expert))
    }

    /// Step that last used a slot; 0 if it is free.
    ///
    /// # Panics
    ///
    /// If there is no such pool or slot.
    pub fn stamp(&self, pool: PoolId, slot: SlotId) -> u64 {
        assert!(slot.get() < self.slot_count(pool), "slot {slot} of {}", self.slot_count(pool));
        self.pools[pool.index()].recency.stamp(slot)
    }

    /// Steps admitted since the cache was made.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Frees a slot: it is taken first, lowest slot first, and its expert is not resident. Returns who lost it.
    ///
    /// # Panics
    ///
    /// If there is no such pool or slot.
    pub fn forget(&mut self, pool: PoolId, slot: SlotId) -> Option<(LayerId, ExpertId)> {
        let owner = self.expert_of(pool, slot);
        self.pools[pool.index()].forget(slot, &mut self.map);
        owner
    }

    /// Frees every slot that holds an expert of `layer`. Returns how many there were.
    ///
    /// # Errors
    ///
    /// An unknown layer, or one that holds no slots.
    pub fn forget_layer(&mut self, layer: LayerId) -> Result<usize, EnsureError> {
        let pool = self.pool_of(layer)?;
        let mut freed = 0;
        for expert in (0..self.expert_count()).map(ExpertId::new) {
            if let Some(slot) = self.slot_of(layer, expert) {
                self.pools[pool.index()].forget(slot, &mut self.map);
                freed += 1;
            }
        }
        Ok(freed)
    }

    /// Frees every slot. Statistics and the step counter go on.
    pub fn reset(&mut self) {
        for pool in &mut self.pools {
            for slot in (0..pool.recency.slot_count()).map(SlotId::new) {
                pool.forget(slot, &mut self.map);
            }
        }
    }

    /// Statistics of one layer since the last [`reset_stats`](Self::reset_stats).
    ///
    /// # Panics
    ///
    /// If there is no such layer.
    pub fn layer_stats(&self, layer: LayerId) -> Stats {
        self.stats_of_layer[layer.index()]
    }

    /// Statistics of one pool: the sum over its layers.
    pub fn pool_stats(&self, pool: PoolId) -> Stats {
        let mut sum = Stats::default();
        for (stats, _) in self.stats_of_layer.iter().zip(&self.pool_of_layer).filter(|(_, of)| **of == Some(pool)) {
            sum += *stats;
        }
        sum
    }

    /// Starts the statistics over; residency is not touched.
    pub fn reset_stats(&mut self) {
        self.stats_of_layer.fill(Stats::default());
    }

    /// Recomputes what must hold from the raw state; for tests.
    ///
    /// # Errors
    ///
    /// The first thing found wrong.
    pub fn check(&self) -> Result<(), String> {
        self.map.check(|layer| self.pool_of_layer[layer.index()].map(|pool| self.pools[pool.index()].first))?;
        for pool in &self.pools {
            pool.recency.check().map_err(|wrong| format!("pool {}: {wrong}", pool.id))?;
            for slot in (0..pool.recency.slot_count()).map(SlotId::new) {
                let stamp = pool.recency.stamp(slot);
                let owned = self.map.expert_of(pool.first, slot).is_some();
                if stamp > self.step || owned != (stamp > 0) {
                    return Err(format!("pool {} slot {slot}: stamp {stamp}, owned {owned}", pool.id));
                }
            }
        }
        Ok(())
    }
}

/// An open plan. Committed, its rows lie in their slots; aborted or dropped, the slots it would have filled are free.
///
/// While a ticket is open the cache is borrowed, so no other step can count on rows that may never arrive.
#[derive(Debug)]
#[must_use = "a ticket that is dropped aborts its plan"]
pub struct Ticket<'a> {
    cache: &'a mut Cache,
    plan: &'a Plan,
    open: bool,
}

impl Ticket<'_> {
    /// What the step decided.
    pub fn plan(&self) -> &Plan {
        self.plan
    }

    /// Ends the plan as carried out, and counts the step.
    pub fn commit(mut self) {
        self.open = false;
        self.cache.stats_of_layer[self.plan.layer().index()].count(self.plan);
    }

    /// Ends the plan as not carried out: every slot it would have filled is free. Old owners do not come back, since
    /// their rows may be overwritten; the step is not counted.
    pub fn abort(self) {}
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        if self.open {
            let pool = &mut self.cache.pools[self.plan.pool().index()];
            for copy in self.plan.copies() {
                pool.forget(copy.slot, &mut self.cache.map);
            }
        }
    }
}
