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
use crate::pin::Pins;
use crate::pool::Pool;
use crate::ranking::Slots;
use crate::{Cache, Copy, HintAnswer, Plan, Run, runs};

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
pub(crate) struct InFlight {
    pub(crate) flight: u64,
    pub(crate) pool: PoolId,
    pub(crate) slot: SlotId,
    /// Whose row is on its way; nobody's any more if it was forgotten.
    pub(crate) expert: Option<FlatExpertId>,
    /// Whether it came by a hint, so that steps may wait for it.
    pub(crate) is_hinted: bool,
    /// Whether the expert is resident all the same: whoever reads the slot waits for the flight.
    pub(crate) is_boarded: bool,
}

impl InFlight {
    /// Whether a step that finds no other slot may have this one.
    pub(crate) fn is_lent(&self, pins: &Pins) -> bool {
        let is_pinned = self.is_boarded && self.expert.is_some_and(|expert| pins.is_marked(expert));
        self.is_hinted && !is_pinned
    }
}

/// Every slot that is in flight.
#[derive(Debug, Clone, Default)]
pub(crate) struct Flights {
    slots: Vec<InFlight>,
    last: u64,
    stats: LateStats,
    /// The last flight whose slots were taken from it, until a step is behind it or it has landed: what is copied next
    /// comes behind it.
    pub(crate) overdue: Option<u64>,
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

    /// A number that no flight had.
    pub(crate) fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn find(&self, pool: PoolId, slot: SlotId) -> Option<usize> {
        self.slots.iter().position(|flown| (flown.pool, flown.slot) == (pool, slot))
    }

    pub(crate) fn get(&self, pool: PoolId, slot: SlotId) -> Option<&InFlight> {
        self.find(pool, slot).map(|index| &self.slots[index])
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &InFlight> {
        self.slots.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut InFlight> {
        self.slots.iter_mut()
    }

    /// Whether any row is on its way by a hint.
    pub(crate) fn any_hinted(&self) -> bool {
        self.slots.iter().any(|flown| flown.is_hinted)
    }

    /// The slot that an expert's row is on its way to by a hint.
    pub(crate) fn slot_of_hinted(&self, expert: FlatExpertId) -> Option<SlotId> {
        self.slots.iter().find(|flown| flown.is_hinted && flown.expert == Some(expert)).map(|flown| flown.slot)
    }

    pub(crate) fn is_hinted(&self, expert: FlatExpertId) -> bool {
        self.slot_of_hinted(expert).is_some()
    }
}

/// Copies to be made behind a step, or ahead of one by a hint. A value, whose buffers are used again by the next.
#[derive(Debug, Clone)]
pub struct LatePlan {
    flight: u64,
    layer: LayerId,
    pool: PoolId,
    /// In the order in which they took their slots.
    pub(crate) copies: Vec<Copy>,
    by_row: Vec<Copy>,
    pub(crate) eviction_count: usize,
    /// What a hint came to.
    pub(crate) hint: Option<HintAnswer>,
    /// Of a hint, experts that it found in slots or on their way; and why those of its copies were in no slot.
    pub(crate) present: Vec<ExpertId>,
    pub(crate) were: Vec<Absence>,
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
        let (present, were) = (Vec::with_capacity(row_count), Vec::with_capacity(row_count));
        Self { flight: 0, layer, pool, copies, by_row, eviction_count: 0, hint: None, present, were }
    }

    fn begin(&mut self, flight: u64, layer: LayerId, pool: PoolId) {
        (self.flight, self.layer, self.pool, self.hint) = (flight, layer, pool, None);
        self.copies.clear();
        self.by_row.clear();
    }

    pub(crate) fn begin_hint(&mut self, flight: u64, layer: LayerId, pool: PoolId) {
        self.begin(flight, layer, pool);
        self.present.clear();
        self.were.clear();
    }

    pub(crate) fn sort_by_row(&mut self) {
        self.by_row.extend_from_slice(&self.copies);
        self.by_row.sort_unstable_by_key(|copy| copy.row);
    }

    /// The number of the flight, for [`Cache::land`]; of a hint, also for [`Cache::cancel_hint`].
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

    /// What the hint came to that it is for, if it is for one.
    pub fn hint(&self) -> Option<HintAnswer> {
        self.hint
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
    /// the step would have fetched them. No slot is taken of an expert that the step routes to.
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
        late.begin(self.flights.next_number(), layer, pool);
        let spared = &mut self.scratch.slots;
        let recency = &mut self.pools[pool.index()].recency;
        let mut pinned = 0;
        // Those of its experts, also if their rows have landed since: such may have the step's stamp.
        let places = plan.routes.iter().filter(|&&route| route != ExpertId::ABSENT);
        let places = places.map(|&route| self.map.place(self.map.flat(layer, route)));
        for slot in places.filter(|place| place.is_slot()).map(|place| place.slot()) {
            pinned += u32::from(spared.insert(slot.index()) && recency.is_pinned(slot));
        }
        let open = recency.slot_count() - recency.withheld();
        let unused = open as usize - spared.len() - (recency.pinned_count() - pinned) as usize;
        // What is on its way already is not fetched twice.
        let map = &self.map;
        let absent =
            |row: &ExpertId| map.place(map.flat(layer, *row)).absence().is_some_and(|why| why != Absence::InFlight);
        let rows = plan.left.iter().copied().filter(absent).take(most.min(unused));
        late.copies.extend(rows.map(|row| Copy { slot: SlotId::ABSENT, row }));
        self.take_slots(late, layer, self.step);
        late.sort_by_row();
        self.flights.stats.queued += late.copies.len() as u64;
        self.flights.stats.evictions += late.eviction_count as u64;
        Ok(LateTicket { cache: self, plan: late, open: true })
    }

    /// Gives each row of a plan a slot, which is in flight from then on: the victims of a step of layer `from`, but none
    /// of those in scratch, which is empty then.
    pub(crate) fn take_slots(&mut self, late: &mut LatePlan, from: LayerId, number: u64) {
        let Self { pools, map, ranking, scratch, .. } = self;
        let Pool { first, recency, .. } = &mut pools[late.pool.index()];
        let row_count = late.copies.len();
        let (mut copies, mut evictions) = (late.copies.iter_mut(), 0);
        let mut take = |map: &mut Map, slot| {
            copies.next().expect("as many slots are taken as there are rows").slot = slot;
            evictions += usize::from(map.vacate(*first, slot, Absence::Evicted).is_some());
        };
        let spared = &mut scratch.slots;
        if let Some(ranking) = ranking {
            let slots = Slots { pool: late.pool, recency, number, layer: from, spared: Some(spared) };
            ranking.take_victims(row_count, slots, map);
            ranking.taken().iter().for_each(|&(slot, _)| take(map, slot));
        } else {
            recency.take_victims_sparing(row_count, number, spared, |slot, _| take(map, slot));
        }
        spared.clear();
        for copy in &late.copies {
            recency.pin(copy.slot);
            map.set_absent(map.flat(late.layer, copy.row), Absence::InFlight);
        }
        late.eviction_count = evictions;
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
    /// They have the stamp of the step that left them to the CPU; those of a hint have stamp 1 until a step uses them.
    pub fn land(&mut self, flight: u64) -> usize {
        let mut landed = 0;
        let mut index = 0;
        if self.flights.overdue == Some(flight) {
            self.flights.overdue = None;
        }
        while let Some(&flown) = self.flights.slots.get(index) {
            if flown.flight != flight {
                index += 1;
                continue;
            }
            let InFlight { pool, slot, expert, .. } = flown;
            self.flights.slots.swap_remove(index);
            let Some(expert) = expert else {
                self.pools[pool.index()].recency.release(slot);
                continue;
            };
            let (layer, row) = self.map.layer_and_expert(expert);
            let (first, recency) = (self.pools[pool.index()].first, &mut self.pools[pool.index()].recency);
            if !flown.is_boarded {
                self.map.placing(layer, first).put(row, slot);
            }
            if !self.pins.is_marked(expert) && !self.hints.holds(pool, slot) {
                recency.unpin(slot);
            }
            self.add_candidate(layer, row, slot);
            self.flights.stats.landed += u64::from(!flown.is_hinted);
            landed += 1;
        }
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
        let flown = &mut self.flights.slots[index];
        if let Some(expert) = flown.expert.take() {
            if std::mem::take(&mut flown.is_boarded) {
                self.map.vacate(self.pools[pool.index()].first, slot, why);
            } else {
                self.map.set_absent(expert, why);
            }
            if flown.is_hinted {
                self.lose_hinted(pool, slot);
            } else {
                self.flights.stats.lost += 1;
            }
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

    /// Frees a slot that is in flight at once, for whoever overwrites it after what is on its way. Returns whether
    /// somebody was resident there.
    pub(crate) fn ground(&mut self, pool: PoolId, slot: SlotId, why: Absence) -> bool {
        let Some(index) = self.flights.find(pool, slot) else { return false };
        let was_resident = self.flights.slots[index].is_boarded;
        self.lose_flight(pool, slot, why);
        self.flights.slots.swap_remove(index);
        self.pools[pool.index()].recency.release(slot);
        was_resident
    }

    pub(crate) fn check_flights(&self) -> Result<(), String> {
        for (index, flown) in self.flights.slots.iter().enumerate() {
            let InFlight { pool, slot, expert, is_hinted, is_boarded, .. } = *flown;
            let Cache { pools, map, .. } = self;
            let Pool { first, recency, .. } = &pools[pool.index()];
            let owner = if is_boarded { expert } else { None };
            if recency.stamp(slot) == 0 || !recency.is_pinned(slot) || map.expert_of(*first, slot) != owner {
                return Err(format!("pool {pool} slot {slot} is in flight and free, a victim or owned"));
            }
            if is_boarded && !(is_hinted && expert.is_some()) {
                return Err(format!("pool {pool} slot {slot} is boarded by nobody, or without a hint"));
            }
            let coming = expert.filter(|_| !is_boarded);
            if coming.is_some_and(|expert| map.place(expert).absence() != Some(Absence::InFlight)) {
                return Err(format!("pool {pool} slot {slot} is in flight, and its expert is not"));
            }
            if self.flights.find(pool, slot) != Some(index) {
                return Err(format!("pool {pool} slot {slot} is in flight twice"));
            }
        }
        let expected = self.flights.slots.iter().filter(|flown| flown.expert.is_some() && !flown.is_boarded).count();
        let found = self.map.in_flight_count();
        if expected != found {
            return Err(format!("{expected} experts are in flight, and {found} are marked so"));
        }
        Ok(())
    }
}

/// Later copies, or a hint's, that are being enqueued. Committed, their slots are in flight; aborted or dropped, the
/// slots are free: no copy may be on its way to them then.
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
        let LatePlan { flight, layer, pool, ref copies, ref hint, ref were, .. } = *self.plan;
        let is_hinted = hint.is_some();
        for (index, copy) in copies.iter().enumerate() {
            let (slot, expert) = (copy.slot, Some(self.cache.map.flat(layer, copy.row)));
            self.cache.flights.slots.push(InFlight { flight, pool, slot, expert, is_hinted, is_boarded: false });
            if !whole {
                let was = if is_hinted { were[index] } else { Absence::OnCpu };
                self.cache.lose_flight(pool, slot, was);
            }
        }
        match (is_hinted, whole) {
            (true, true) => self.cache.open_hint(self.plan),
            (true, false) => self.cache.fail_hint(self.plan),
            (false, _) => {}
        }
    }
}

impl Drop for LateTicket<'_> {
    fn drop(&mut self) {
        if !self.open {
            return;
        }
        let Self { cache, plan, .. } = self;
        for (index, copy) in plan.copies().iter().enumerate() {
            let was = if plan.hint.is_some() { plan.were[index] } else { Absence::OnCpu };
            cache.pools[plan.pool.index()].recency.release(copy.slot);
            cache.map.set_absent(cache.map.flat(plan.layer, copy.row), was);
        }
        if plan.hint.is_none() {
            cache.flights.stats.lost += plan.copies().len() as u64;
        }
    }
}
