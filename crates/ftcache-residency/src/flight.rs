//! Misses that the CPU computes now and that are resident later: rows on their way to slots that nobody uses yet.
//!
//! A hybrid step leaves some misses to the CPU. [`Cache::fetch_later`] takes slots for some of these, behind the
//! step: a slot that is in flight is never a hit and never a victim until [`Cache::land`] says that its copy is done.
//! Each call is a *flight*, with a number that never comes again, so that what lands late cannot be taken for
//! something else.
//!
//! ```text
//! ensure (hybrid) -> commit -> fetch_later -> copies enqueued -> commit ... their event has passed -> land
//! ```
//!
//! A slot that is forgotten meanwhile stays out of use until its flight has landed, and is free then: its copy may
//! still be on its way.

use std::error::Error;
use std::fmt;

use ftcache_policy::{ExpertId, FlatExpertId, LayerId, PoolId, SlotId};

use crate::map::{Absence, Map};
use crate::ranking::Slots;
use crate::{Cache, Copy, Plan, Run, runs};

/// Later copies that cannot be planned. Nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LateError {
    /// Nothing may lie between a hybrid step and its later copies, or slots that it uses could be taken: no other step,
    /// nothing that frees slots, no chunk begun or ended, no rebuild, and no later copies before.
    NotTheLastStep {
        /// The step of the plan.
        step: u64,
        /// The hybrid step that is the last call, if there is one.
        last: Option<u64>,
    },
}

impl fmt::Display for LateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotTheLastStep { step, last: Some(last) } => {
                write!(f, "step {step} is not the last call, which is hybrid step {last}")
            }
            Self::NotTheLastStep { step, last: None } => {
                write!(f, "step {step} is not the last call, or not a hybrid step")
            }
        }
    }
}

impl Error for LateError {}

/// What became of later copies, over the life of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LateStats {
    /// Rows queued.
    pub queued: u64,
    /// Of these, those that took the slot of another expert.
    pub evictions: u64,
    /// Rows that have become resident.
    pub landed: u64,
    /// Rows that were forgotten on their way.
    pub lost: u64,
}

/// A slot that is in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct InFlight {
    flight: u64,
    pool: PoolId,
    slot: SlotId,
    /// Whose row is on its way; nobody's any more if it was forgotten.
    expert: Option<FlatExpertId>,
}

/// Every slot that is in flight.
#[derive(Debug, Clone, Default)]
pub(crate) struct Flights {
    slots: Vec<InFlight>,
    last: u64,
    stats: LateStats,
    /// The hybrid step that was committed, as long as nothing has happened since.
    pub(crate) offered: Option<u64>,
}

impl Flights {
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// No slot is in flight, and numbers go on.
    pub(crate) fn grounded(&self) -> Self {
        Self { last: self.last, ..Self::default() }
    }

    fn find(&self, pool: PoolId, slot: SlotId) -> Option<usize> {
        self.slots.iter().position(|flown| (flown.pool, flown.slot) == (pool, slot))
    }
}

/// Copies to be made behind a step. A value, whose buffers are used again by the next.
#[derive(Debug, Clone)]
pub struct LatePlan {
    flight: u64,
    layer: LayerId,
    pool: PoolId,
    /// In the order in which they took their slots.
    copies: Vec<Copy>,
    by_row: Vec<Copy>,
    eviction_count: usize,
}

impl Default for LatePlan {
    fn default() -> Self {
        Self::new()
    }
}

impl LatePlan {
    /// An empty plan, to be filled by the first step.
    pub fn new() -> Self {
        Self::with_capacity(0)
    }

    /// An empty plan with room for so many rows, which then allocates nothing.
    pub fn with_capacity(row_count: usize) -> Self {
        let (layer, pool) = (LayerId::new(0), PoolId::new(0));
        let (copies, by_row) = (Vec::with_capacity(row_count), Vec::with_capacity(row_count));
        Self { flight: 0, layer, pool, copies, by_row, eviction_count: 0 }
    }

    /// The number of the flight, for [`Cache::land`].
    pub fn flight(&self) -> u64 {
        self.flight
    }

    /// The layer.
    pub fn layer(&self) -> LayerId {
        self.layer
    }

    /// The pool that serves it; slots are local to this pool.
    pub fn pool(&self) -> PoolId {
        self.pool
    }

    /// The rows to copy, in the order in which they took their slots.
    pub fn copies(&self) -> &[Copy] {
        &self.copies
    }

    /// Copies whose slot another expert lost.
    pub fn eviction_count(&self) -> usize {
        self.eviction_count
    }

    /// The same as the fewest runs of neighbouring rows to neighbouring slots, ascending by row.
    pub fn runs(&self) -> impl Iterator<Item = Run> + '_ {
        runs(&self.by_row)
    }
}

impl Cache {
    /// Takes slots for up to `most` of the misses that a hybrid step has just left to the CPU, in the order in which
    /// the step would have fetched them. No slot that the step uses is taken.
    ///
    /// The step's own plan is to be committed, and this to be the next call, once. When a copy lands is a matter of
    /// time, so two ranks that see the same routes need not stay alike.
    ///
    /// # Errors
    ///
    /// A step that was not the last call, or that was not hybrid.
    pub fn fetch_later<'a>(
        &'a mut self,
        plan: &Plan,
        most: usize,
        late: &'a mut LatePlan,
    ) -> Result<LateTicket<'a>, LateError> {
        let (layer, pool) = (plan.layer(), plan.pool());
        let last = self.flights.offered;
        if last != Some(plan.number) {
            return Err(LateError::NotTheLastStep { step: plan.number, last });
        }
        self.flights.offered = None;
        self.flights.last += 1;
        (late.flight, late.layer, late.pool) = (self.flights.last, layer, pool);
        late.copies.clear();
        late.by_row.clear();
        let spared = &mut self.scratch.slots;
        let recency = &mut self.pools[pool.index()].recency;
        let mut pinned = 0;
        for slot in plan.slots().iter().filter(|slot| slot.is_slot()) {
            pinned += u32::from(spared.insert(slot.index()) && recency.is_pinned(*slot));
        }
        let open = recency.slot_count() - recency.withheld();
        let unused = open as usize - spared.len() - (recency.pinned_count() - pinned) as usize;
        // What is on its way already is not fetched twice.
        let map = &mut self.map;
        let absent =
            |row: &ExpertId| map.place(map.flat(layer, *row)).absence().is_some_and(|why| why != Absence::InFlight);
        let rows = plan.left.iter().copied().filter(absent).take(most.min(unused));
        late.copies.extend(rows.map(|row| Copy { slot: SlotId::ABSENT, row }));
        let first = self.pools[pool.index()].first;
        let recency = &mut self.pools[pool.index()].recency;
        let row_count = late.copies.len();
        let mut copies = late.copies.iter_mut();
        let mut evictions: usize = 0;
        let mut take = |map: &mut Map, slot| {
            copies.next().expect("as many slots are taken as there are rows").slot = slot;
            evictions += usize::from(map.vacate(first, slot, Absence::Evicted).is_some());
        };
        if let Some(ranking) = &mut self.ranking {
            let slots = Slots { pool, recency, number: self.step, layer, spared: Some(spared) };
            ranking.take_victims(row_count, slots, map);
            ranking.taken().iter().for_each(|&(slot, _)| take(map, slot));
        } else {
            recency.take_victims_sparing(row_count, self.step, spared, |slot, _| take(map, slot));
        }
        spared.clear();
        for copy in &late.copies {
            recency.pin(copy.slot);
            map.set_absent(map.flat(layer, copy.row), Absence::InFlight);
        }
        late.by_row.extend_from_slice(&late.copies);
        late.by_row.sort_unstable_by_key(|copy| copy.row);
        self.flights.stats.queued += late.copies.len() as u64;
        self.flights.stats.evictions += evictions as u64;
        late.eviction_count = evictions;
        Ok(LateTicket { cache: self, plan: late, open: true })
    }

    /// Makes room for so many flights at once, of all experts of a layer each, which then allocate nothing.
    pub fn reserve_flights(&mut self, flight_count: usize) {
        let slots: usize = (0..self.pool_count()).map(|pool| self.slot_count(PoolId::from_index(pool)) as usize).sum();
        let rows = flight_count.saturating_mul(self.expert_count() as usize).min(slots);
        self.flights.slots.reserve(rows);
    }

    /// Makes the rows of a flight resident: their copies are done. Returns how many there are; those that were
    /// forgotten on their way are not among them, and their slots are free. A flight that has landed, or went with
    /// pools that were rebuilt, has none.
    ///
    /// They have the stamp of the step that left them to the CPU.
    pub fn land(&mut self, flight: u64) -> usize {
        let mut landed = 0;
        let mut index = 0;
        while let Some(&InFlight { flight: number, pool, slot, expert }) = self.flights.slots.get(index) {
            if number != flight {
                index += 1;
                continue;
            }
            self.flights.slots.swap_remove(index);
            let Some(expert) = expert else {
                self.pools[pool.index()].recency.release(slot);
                continue;
            };
            let (layer, row) = self.map.layer_and_expert(expert);
            let (first, recency) = (self.pools[pool.index()].first, &mut self.pools[pool.index()].recency);
            self.map.placing(layer, first).put(row, slot);
            if !self.pins.is_marked(expert) {
                recency.unpin(slot);
            }
            self.unrank(layer);
            landed += 1;
        }
        self.flights.stats.landed += landed as u64;
        landed
    }

    /// Whether an expert's row is on its way.
    ///
    /// # Panics
    ///
    /// If the cache has no such layer or expert.
    pub fn is_in_flight(&self, layer: LayerId, expert: ExpertId) -> bool {
        self.absence(layer, expert) == Some(Absence::InFlight)
    }

    /// Whether a row is on its way to a slot, though it may have been forgotten.
    pub(crate) fn is_slot_in_flight(&self, pool: PoolId, slot: SlotId) -> bool {
        self.flights.find(pool, slot).is_some()
    }

    /// Slots of a pool that are in flight, forgotten ones included.
    pub fn in_flight_count(&self, pool: PoolId) -> u32 {
        self.flights.slots.iter().filter(|flown| flown.pool == pool).count() as u32
    }

    /// Whether any slot is in flight, forgotten ones included.
    pub fn has_flights(&self) -> bool {
        !self.flights.slots.is_empty()
    }

    /// What became of later copies.
    pub fn late_stats(&self) -> LateStats {
        self.flights.stats
    }

    /// Takes the row of a slot that is in flight from its expert; the slot is free when it has landed. Returns
    /// whether it was in flight.
    pub(crate) fn lose_flight(&mut self, pool: PoolId, slot: SlotId, why: Absence) -> bool {
        let Some(index) = self.flights.find(pool, slot) else { return false };
        if let Some(expert) = self.flights.slots[index].expert.take() {
            self.map.set_absent(expert, why);
            self.flights.stats.lost += 1;
        }
        true
    }

    /// The same for all of a layer's.
    pub(crate) fn lose_flights_of(&mut self, layer: LayerId, why: Absence) {
        for index in 0..self.flights.slots.len() {
            let InFlight { pool, slot, expert, .. } = self.flights.slots[index];
            if expert.is_some_and(|expert| self.map.layer_and_expert(expert).0 == layer) {
                self.lose_flight(pool, slot, why);
            }
        }
    }

    /// Frees a slot that is in flight at once, for whoever overwrites it after what is on its way.
    pub(crate) fn ground(&mut self, pool: PoolId, slot: SlotId, why: Absence) {
        if self.lose_flight(pool, slot, why) {
            let index = self.flights.find(pool, slot).expect("it was in flight");
            self.flights.slots.swap_remove(index);
            self.pools[pool.index()].recency.release(slot);
        }
    }

    pub(crate) fn check_flights(&self) -> Result<(), String> {
        for (index, flown) in self.flights.slots.iter().enumerate() {
            let InFlight { pool, slot, expert, .. } = *flown;
            let Cache { pools, map, .. } = self;
            let recency = &pools[pool.index()].recency;
            if recency.stamp(slot) == 0 || !recency.is_pinned(slot) || self.expert_of(pool, slot).is_some() {
                return Err(format!("pool {pool} slot {slot} is in flight and free, a victim or owned"));
            }
            if expert.is_some_and(|expert| map.place(expert).absence() != Some(Absence::InFlight)) {
                return Err(format!("pool {pool} slot {slot} is in flight, and its expert is not"));
            }
            if self.flights.find(pool, slot) != Some(index) {
                return Err(format!("pool {pool} slot {slot} is in flight twice"));
            }
        }
        let expected = self.flights.slots.iter().filter(|flown| flown.expert.is_some()).count();
        let found = self.map.in_flight_count();
        if expected != found {
            return Err(format!("{expected} experts are in flight, and {found} are marked so"));
        }
        Ok(())
    }
}

/// Later copies that are being enqueued. Committed, their slots are in flight; aborted or dropped, the slots are free:
/// no copy may be on its way to them then.
#[derive(Debug)]
#[must_use = "a ticket that is dropped aborts its plan"]
pub struct LateTicket<'a> {
    cache: &'a mut Cache,
    plan: &'a LatePlan,
    open: bool,
}

impl<'a> LateTicket<'a> {
    /// The ticket of a plan that was left open.
    pub(crate) fn of(cache: &'a mut Cache, plan: &'a LatePlan) -> Self {
        Self { cache, plan, open: true }
    }

    /// Gives the borrow back; see [`Ticket::leave_open`](crate::Ticket).
    pub(crate) fn leave_open(mut self) {
        self.open = false;
    }

    /// What is to be copied.
    pub fn plan(&self) -> &LatePlan {
        self.plan
    }

    /// The copies are enqueued.
    pub fn commit(mut self) {
        self.take_off(true);
    }

    /// Some copies may be on their way, and others are not: the slots are free once the flight has landed.
    pub fn fail(mut self) {
        self.take_off(false);
    }

    /// None was enqueued.
    pub fn abort(self) {}

    fn take_off(&mut self, whole: bool) {
        self.open = false;
        let LatePlan { flight, layer, pool, ref copies, .. } = *self.plan;
        for copy in copies {
            let expert = self.cache.map.flat(layer, copy.row);
            self.cache.flights.slots.push(InFlight { flight, pool, slot: copy.slot, expert: Some(expert) });
            if !whole {
                self.cache.lose_flight(pool, copy.slot, Absence::OnCpu);
            }
        }
    }
}

impl Drop for LateTicket<'_> {
    fn drop(&mut self) {
        if !self.open {
            return;
        }
        let Self { cache, plan, .. } = self;
        for copy in plan.copies() {
            cache.pools[plan.pool.index()].recency.release(copy.slot);
            cache.map.set_absent(cache.map.flat(plan.layer, copy.row), Absence::OnCpu);
        }
        cache.flights.stats.lost += plan.copies().len() as u64;
    }
}
