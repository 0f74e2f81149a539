//! All pools: sends a layer to its pool and keeps what they share, the map, the step counter and the statistics.

use ftcache_policy::{
    Carried, Eviction, EvictionError, ExpertId, FlatExpertId, Geometry, LayerId, PoolId, Recency, Scores, SlotId,
};

use crate::answers::Answers;
use crate::flight::Flights;
use crate::hint::Hints;
use crate::map::{Absence, Map};
use crate::pin::Pins;
use crate::pool::{Admission, Common, Pool, Scratch, check_ids};
use crate::prefill::Prefill;
use crate::ranking::Ranking;
use crate::stats::Tally;
use crate::verify::Verified;
use crate::{EnsureError, Misses, Phase, Plan, PoolsError, Step};

/// The residency of one model's experts.
#[derive(Debug, Clone)]
pub struct Cache {
    /// `None`: the layer holds no slots.
    pub(crate) pool_of_layer: Vec<Option<PoolId>>,
    pub(crate) pools: Vec<Pool>,
    pub(crate) map: Map,
    /// The last step; one counter for all pools.
    pub(crate) step: u64,
    /// `active[flat expert]`: the last hybrid step that routed to it; 0 for none.
    pub(crate) active: Vec<u64>,
    /// `carried[layer]`.
    pub(crate) carried: Vec<Carried>,
    pub(crate) tally: Tally,
    pub(crate) answers: Answers,
    /// `verified[layer]`; empty before the first verify step.
    pub(crate) verified: Vec<Verified>,
    pub(crate) pins: Pins,
    /// Rebuilds that led to this cache.
    pub(crate) generation: u64,
    pub(crate) prefill: Prefill,
    pub(crate) flights: Flights,
    /// `None`: the order of victims is that of the stamps.
    pub(crate) ranking: Option<Ranking>,
    pub(crate) hints: Hints,
    pub(crate) scratch: Scratch,
}

impl Cache {
    /// An empty cache with the pools of a geometry.
    pub fn new(geometry: &Geometry) -> Self {
        let (pool_of_layer, slot_counts) = pools_of(geometry);
        Self::with_pools(geometry.model().expert_count(), &pool_of_layer, &slot_counts)
            .expect("a geometry's pools are consistent, and no pool has more slots than experts")
    }

    /// An empty cache of layers of `expert_count` experts; layer `l` is served by pool `pool_of_layer[l]` or holds no
    /// slots, and pool `p` has `slot_counts[p]` slots.
    ///
    /// # Errors
    ///
    /// A layer in a pool that does not exist; more experts or slots than ids count.
    pub fn with_pools(
        expert_count: u32,
        pool_of_layer: &[Option<PoolId>],
        slot_counts: &[u32],
    ) -> Result<Self, PoolsError> {
        let layer_count = pool_of_layer.len();
        let experts = u64::from(expert_count) * layer_count as u64;
        let pools = make_pools(experts, pool_of_layer, slot_counts)?;
        let slots: u32 = slot_counts.iter().sum();
        Ok(Self {
            map: Map::new(layer_count, expert_count, slots as usize),
            step: 0,
            active: vec![0; experts as usize],
            carried: vec![Carried::default(); layer_count],
            tally: Tally::new(layer_count),
            answers: Answers::default(),
            verified: Vec::new(),
            generation: 0,
            pins: Pins::new(experts as usize, slot_counts.len()),
            prefill: Prefill::default(),
            flights: Flights::default(),
            ranking: None,
            hints: Hints::new(layer_count),
            scratch: Scratch::new(expert_count, slot_counts.iter().copied().max().unwrap_or(0)),
            pools,
            pool_of_layer: pool_of_layer.to_vec(),
        })
    }

    /// Chooses victims by another rule from now on. Residents stay; what the rule goes by is counted from here on, also
    /// if it is the rule already.
    ///
    /// # Errors
    ///
    /// Layers of more experts than the rule can rank.
    pub fn set_eviction(&mut self, rule: Eviction) -> Result<(), EvictionError> {
        rule.check(self.expert_count())?;
        let scores = Scores::new(rule, self.layer_count(), self.expert_count());
        let ranking = |scores| Ranking::new(scores, self.expert_count(), &self.pool_of_layer, self.pools.len());
        self.ranking = scores.map(ranking);
        Ok(())
    }

    /// The rule by which victims are chosen.
    pub fn eviction(&self) -> Eviction {
        self.ranking.as_ref().map_or(Eviction::Lru, Ranking::rule)
    }

    /// Makes room for steps of `route_count` routes without tokens or drafts, which then allocate nothing, given a plan
    /// with as much room.
    pub fn reserve(&mut self, route_count: usize) {
        self.scratch.widen(route_count);
    }

    /// The same for steps with tokens, and for verify steps and their acceptance: every layer remembers one of each.
    pub fn reserve_remembered(&mut self, route_count: usize) {
        self.reserve(route_count);
        let layer_count = self.layer_count();
        self.answers.reserve(layer_count, route_count);
        self.verified.resize_with(layer_count, Verified::default);
        self.verified.iter_mut().for_each(|verified| verified.reserve(route_count));
    }

    /// Makes every expert of `routes` resident and says what has to be copied first.
    ///
    /// A layer alone stands for a decode step whose misses are all fetched; a [`Step`] says more. Any number of routes
    /// is one admission. Duplicate routes share one slot and one copy; a route that is [`ExpertId::ABSENT`] takes none.
    /// A slot that this step uses is never its victim, so a plan never overwrites what the same step reads. The cost is
    /// that of the routes, whatever the number of slots (under rules other than LRU, and of the residents of the layers
    /// that victims are looked for in), and a step allocates nothing once there was one as wide.
    ///
    /// The plan is open until its ticket is committed or aborted.
    ///
    /// # Errors
    ///
    /// An unknown layer or expert, a layer without slots, a token that stands for another step or whose answer no
    /// longer holds, or, where all misses are fetched, more distinct experts than there are slots for them; the cache
    /// is then as it was. The last step has been counted.
    pub fn ensure<'a>(
        &'a mut self,
        step: impl Into<Step>,
        routes: &[ExpertId],
        plan: &'a mut Plan,
    ) -> Result<Ticket<'a>, EnsureError> {
        let step = step.into();
        let pool = self.pool_of(step.layer)?;
        check_ids(step.layer, routes, self.expert_count())?;
        if step.token.is_some() && self.answers.recall(&step, routes, &self.map, plan)? {
            // Its slots are used anew, and would have to be spared.
            self.flights.offered = self.flights.offered.filter(|&offered| offered == plan.number);
            plan.awaits = self.awaited(plan);
            return Ok(Ticket { cache: self, plan, open: true });
        }
        self.check_none_in_flight(&step, routes)?;
        let number = self.next_step()?;
        if self.has_hints()
            && let Err(error) = self.make_way(&step, pool, number, routes)
        {
            self.tally.of(&step).refused += 1;
            return Err(error);
        }
        let admission = Admission {
            number,
            step: &step,
            routes,
            active: &self.active[self.map.experts_of_layer(step.layer)],
            carried: self.carried[step.layer.index()],
            flights: !self.flights.is_empty(),
        };
        let tally = self.tally.of(&step);
        let common = Common { map: &mut self.map, ranking: self.ranking.as_mut() };
        let admitted = self.pools[pool.index()].ensure(admission, common, tally, &mut self.scratch, plan);
        if let Err(error) = admitted {
            tally.refused += u64::from(matches!(error, EnsureError::StepTooWide { .. }));
            return Err(error);
        }
        self.step += 1;
        self.flights.offered = None;
        self.answers.forget(step.layer);
        if !self.flights.is_empty() || self.flights.overdue.is_some() {
            plan.awaits = self.awaited(plan);
        }
        if step.phase == Phase::Verify && !step.continues && !self.verified.is_empty() {
            self.verified[step.layer.index()].close();
        }
        Ok(Ticket { cache: self, plan, open: true })
    }

    /// A step whose misses are all fetched cannot have a row that is on its way behind another.
    #[inline]
    pub(crate) fn check_none_in_flight(&self, step: &Step, routes: &[ExpertId]) -> Result<(), EnsureError> {
        if self.flights.is_empty() || step.misses != Misses::Fetched {
            return Ok(());
        }
        let layer = step.layer;
        let experts = self.map.layer(layer);
        let in_flight = |route: &ExpertId| {
            let known = experts.get(route.index());
            known.is_some_and(|expert| expert.place.absence() == Some(Absence::InFlight))
                && !self.flights.is_hinted(self.map.flat(layer, *route))
        };
        match routes.iter().position(in_flight) {
            Some(route) => Err(EnsureError::InFlight { layer, route, expert: routes[route] }),
            None => Ok(()),
        }
    }

    pub(crate) fn next_step(&self) -> Result<u64, EnsureError> {
        if self.step < Recency::LAST_STEP { Ok(self.step + 1) } else { Err(EnsureError::LastStep { step: self.step }) }
    }

    /// Experts that are in a slot.
    pub fn resident_count(&self) -> usize {
        self.pools.iter().map(|pool| pool.recency.slot_count() as usize - pool.recency.free_count()).sum()
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
    #[inline]
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
        let place = self.map.place(self.flat(layer, expert));
        place.is_slot().then_some(place.slot())
    }

    /// Why an expert is in no slot, or `None` if it is in one.
    ///
    /// # Panics
    ///
    /// If the cache has no such layer or expert.
    pub fn absence(&self, layer: LayerId, expert: ExpertId) -> Option<Absence> {
        self.map.place(self.flat(layer, expert)).absence()
    }

    /// The last hybrid step that used an expert; 0 for none.
    ///
    /// # Panics
    ///
    /// If the cache has no such layer or expert.
    pub fn last_active(&self, layer: LayerId, expert: ExpertId) -> u64 {
        self.active[self.flat(layer, expert).index()]
    }

    /// What the hybrid steps of a layer carry to its next.
    ///
    /// # Panics
    ///
    /// If the cache has no such layer.
    pub fn carried(&self, layer: LayerId) -> Carried {
        self.carried[layer.index()]
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

    /// The stamp of a slot: the step that last used it, 1 if it is to go first of those in use, 0 if it is free.
    ///
    /// # Panics
    ///
    /// If there is no such pool or slot.
    pub fn stamp(&self, pool: PoolId, slot: SlotId) -> u64 {
        assert!(slot.get() < self.slot_count(pool), "slot {slot} of {}", self.slot_count(pool));
        self.pools[pool.index()].recency.stamp(slot)
    }

    /// How many rebuilds led to this cache: what was handed out under another number is no longer true.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The layer and the expert that a flat id stands for.
    ///
    /// # Panics
    ///
    /// If the cache has no such expert.
    pub fn layer_and_expert(&self, expert: FlatExpertId) -> (LayerId, ExpertId) {
        assert!(expert.index() < self.active.len(), "expert {expert} of {}", self.active.len());
        self.map.layer_and_expert(expert)
    }

    /// The last step; 0 before the first.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Counts on from `step`, for a residency that goes on where another was. Returns the last step, which is the
    /// higher of `step` and what it was.
    pub fn skip_to(&mut self, step: u64) -> u64 {
        self.step = self.step.max(step.min(Recency::LAST_STEP));
        self.flights.offered = None;
        self.step
    }

    /// Frees a slot: it is taken first, lowest slot first, and its expert is not resident. Returns who lost it. A slot
    /// that is in flight is free once it has landed, and its row is nobody's.
    ///
    /// # Panics
    ///
    /// If there is no such pool or slot.
    pub fn forget(&mut self, pool: PoolId, slot: SlotId) -> Option<(LayerId, ExpertId)> {
        let owner = self.expert_of(pool, slot);
        self.free(pool, slot, Absence::Freed);
        self.forget_answers();
        owner
    }

    /// Frees every slot that holds an expert of `layer`, and forgets its rows on their way. Returns how many slots
    /// there were.
    ///
    /// # Errors
    ///
    /// An unknown layer, or one that holds no slots.
    pub fn forget_layer(&mut self, layer: LayerId) -> Result<usize, EnsureError> {
        let pool = self.pool_of(layer)?;
        let mut freed = 0;
        for expert in (0..self.expert_count()).map(ExpertId::new) {
            if let Some(slot) = self.slot_of(layer, expert) {
                self.free(pool, slot, Absence::Freed);
                freed += 1;
            }
        }
        self.lose_flights_of(layer, Absence::Freed);
        self.forget_answers();
        Ok(freed)
    }

    /// Frees every slot. Statistics and the step counter go on.
    pub fn reset(&mut self) {
        for pool in (0..self.pools.len()).map(PoolId::from_index) {
            for slot in (0..self.slot_count(pool)).map(SlotId::new) {
                self.free(pool, slot, Absence::Freed);
            }
        }
        self.forget_answers();
    }

    /// An expert in a slot may be a victim from now on, other than by a step.
    pub(crate) fn add_candidate(&mut self, layer: LayerId, expert: ExpertId, slot: SlotId) {
        if let Some(ranking) = &mut self.ranking {
            ranking.add(layer, expert, slot);
        }
    }

    /// After something was freed: no answer holds any more, and no step has slots to be spared.
    pub(crate) fn forget_answers(&mut self) {
        self.answers.forget_all();
        self.flights.offered = None;
    }

    /// Whether the slot was in use.
    pub(crate) fn free(&mut self, pool: PoolId, slot: SlotId, why: Absence) -> bool {
        if !self.flights.is_empty() && self.lose_flight(pool, slot, why) {
            return false;
        }
        if !self.hints.is_empty() {
            self.lose_hinted(pool, slot);
        }
        self.pools[pool.index()].free(slot, &mut self.map, why).is_some()
    }

    pub(crate) fn flat(&self, layer: LayerId, expert: ExpertId) -> FlatExpertId {
        assert!(layer.index() < self.layer_count(), "layer {layer} of {}", self.layer_count());
        assert!(expert.get() < self.expert_count(), "expert {expert} of {}", self.expert_count());
        self.map.flat(layer, expert)
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
                let owner = self.map.expert_of(pool.first, slot);
                let in_flight = self.is_slot_in_flight(pool.id, slot);
                let is_marked = owner.is_some_and(|owner| self.pins.is_marked(owner));
                let pinned = in_flight || is_marked || self.hints.holds(pool.id, slot);
                let in_use = owner.is_some() || in_flight;
                if stamp > self.step || in_use != (stamp > 0) || pinned != pool.recency.is_pinned(slot) {
                    return Err(format!(
                        "pool {} slot {slot}: stamp {stamp} after step {}, owner {owner:?}, pinned {}",
                        pool.id,
                        self.step,
                        pool.recency.is_pinned(slot)
                    ));
                }
            }
        }
        if !self.scratch.is_clean() {
            return Err("a step has left something in scratch".to_owned());
        }
        if let Some(ranking) = &self.ranking {
            ranking.check(&self.map, &self.pools)?;
        }
        self.check_pins()?;
        self.check_flights()?;
        self.check_hints()?;
        self.check_prefill()
    }

    fn commit(&mut self, plan: &Plan) {
        let layer = plan.layer();
        if plan.is_repeat {
            return;
        }
        if plan.awaits >= self.flights.overdue {
            self.flights.overdue = None;
        }
        if let Misses::Hybrid { .. } = plan.step.misses {
            self.flights.offered = Some(plan.number);
            self.carried[layer.index()] = plan.carried;
            self.map.leave_to_cpu(layer, plan.cpu_experts().flatten());
            if plan.phase() == Phase::Decode {
                let active = &mut self.active[self.map.experts_of_layer(layer)];
                for route in &plan.routes {
                    // Absent ones are outside.
                    if let Some(active) = active.get_mut(route.index()) {
                        *active = plan.number;
                    }
                }
            }
        }
        if !self.pins.is_empty() {
            let recency = &mut self.pools[plan.pool.index()].recency;
            for copy in plan.copies() {
                if self.pins.is_marked(self.map.flat(layer, copy.row)) {
                    recency.pin(copy.slot);
                }
            }
        }
        if plan.step.token.is_some() {
            self.answers.keep(plan, self.pool_of_layer.len());
        }
        if plan.phase() == Phase::Verify {
            self.verified.resize_with(self.pool_of_layer.len(), Verified::default);
            self.verified[layer.index()].keep(plan);
        }
    }

    fn abort(&mut self, plan: &Plan) {
        if !plan.is_repeat {
            let tally = self.tally.of(&plan.step);
            *tally = *tally - plan.stats;
            let mut routing = self.map.routing(plan.layer());
            plan.routes.iter().for_each(|&route| routing.unroute(route));
        }
        for copy in plan.copies() {
            self.free(plan.pool, copy.slot, Absence::Freed);
        }
        self.forget_answers();
    }
}

/// Pools of a geometry: the pool of each layer, and the slots of each pool.
pub(crate) fn pools_of(geometry: &Geometry) -> (Vec<Option<PoolId>>, Vec<u32>) {
    let pool_of_layer = geometry.model().layer_ids().map(|layer| geometry.pool_of_layer(layer)).collect();
    (pool_of_layer, geometry.pools().iter().map(|pool| pool.slot_count()).collect())
}

/// Empty pools, one after another.
pub(crate) fn make_pools(
    experts: u64,
    pool_of_layer: &[Option<PoolId>],
    slot_counts: &[u32],
) -> Result<Vec<Pool>, PoolsError> {
    let slots: u64 = slot_counts.iter().map(|&count| u64::from(count)).sum();
    if experts.max(slots) > u64::from(SlotId::LIMIT) {
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
    Ok(pools)
}

/// An open plan. Committed, its rows lie in their slots; aborted or dropped, the slots it would have filled are free
/// and the step is in no statistics. What the router chose stays counted in the scores of rules that have some.
///
/// While a ticket is open the cache is borrowed, so no other step can count on rows that may never arrive. One that is
/// leaked is as if committed.
#[derive(Debug)]
#[must_use = "a ticket that is dropped aborts its plan"]
pub struct Ticket<'a> {
    cache: &'a mut Cache,
    plan: &'a Plan,
    open: bool,
}

impl<'a> Ticket<'a> {
    /// The ticket of a plan that was left open.
    pub(crate) fn of(cache: &'a mut Cache, plan: &'a Plan) -> Self {
        Self { cache, plan, open: true }
    }

    /// Gives the borrow back; the plan is to be ended by [`of`](Self::of) it, before anything else is decided.
    pub(crate) fn leave_open(mut self) {
        self.open = false;
    }

    /// What the step decided.
    pub fn plan(&self) -> &Plan {
        self.plan
    }

    /// Ends the plan as carried out.
    pub fn commit(mut self) {
        self.open = false;
        self.cache.commit(self.plan);
    }

    /// Ends the plan as not carried out: every slot it would have filled is free, also if the plan is a repeat, whose
    /// rows had arrived. Old owners do not come back, since their rows may be overwritten; the step is in no statistics.
    pub fn abort(self) {}
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        if self.open {
            self.cache.abort(self.plan);
        }
    }
}
