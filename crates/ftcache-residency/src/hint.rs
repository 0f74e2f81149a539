//! Hints: rows that an engine expects a later step to route to, brought in ahead of it.
//!
//! [`Cache::hint`] takes slots for predicted experts that are in none, free ones first and then those that would go
//! next; their copies are a flight like those behind a step ([`Cache::land`]). From then on a hint is *open* until its
//! layer is stepped or it is cancelled. What an open hint named is no victim of another hint; what it brought in, or
//! is bringing, is no victim at all, unless a step would find no other slot: a hint costs a step at most the slot of
//! an expert that would have gone next, and never fails one.
//!
//! ```text
//! hint -> copies enqueued -> commit ... their event has passed -> land ... the layer's step: useful or wasted
//!                                   ... the layer's step: late, and it awaits the flight ... land
//! ```
//!
//! A plain step that routes to a row on its way takes it as a hit, and says which flight it awaits ([`Plan::awaits`]):
//! the row is resident and in flight at a time, here called *boarded*. A hybrid step leaves it to the CPU, as any row
//! on its way. What steps do about hints before they are admitted is in `lent.rs`.

use std::ops::AddAssign;

use ftcache_policy::{ExpertId, FlatExpertId, LayerId, PoolId, SlotId};

use crate::flight::LateTicket;
use crate::map::Absence;
use crate::pool::check_ids;
use crate::{Cache, Copy, EnsureError, LatePlan, Plan};

/// What a hint came to. Each of its ids is counted once, but for absent ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HintAnswer {
    /// Ids of experts that are in a slot or on their way to one, those named twice among them: they cost nothing.
    pub present: usize,
    /// Ids whose rows are to be copied.
    pub started: usize,
    /// Ids that are not fetched since the budget was spent.
    pub over_budget: usize,
    /// Ids that are not fetched since no slot was left that a hint may take.
    pub no_slot: usize,
}

/// What became of the rows that hints have started. Those of no other count are of hints that are open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HintStats {
    /// Rows that were given a slot and copied.
    pub started: u64,
    /// Of these, those that took the slot of another expert.
    pub evictions: u64,
    /// Rows that had landed when their layer's next step routed to them.
    pub useful: u64,
    /// Rows that their layer's next step routed to while they were on their way.
    pub late: u64,
    /// Rows that their layer's next step did not route to, that a step took the slot of before, that were cancelled or
    /// freed by a call, and those of a flight that failed.
    pub wasted: u64,
}

impl HintStats {
    /// Rows of hints that are open.
    pub fn open(&self) -> u64 {
        self.started - self.useful - self.late - self.wasted
    }
}

impl AddAssign for HintStats {
    fn add_assign(&mut self, other: Self) {
        self.started += other.started;
        self.evictions += other.evictions;
        self.useful += other.useful;
        self.late += other.late;
        self.wasted += other.wasted;
    }
}

/// An expert that an open hint named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hinted {
    pub(crate) expert: FlatExpertId,
    /// The number of the hint.
    hint: u64,
    /// The slot that was taken for it, in which it is once it has landed; none if it was in one, or on its way, before.
    pub(crate) target: Option<(PoolId, SlotId)>,
}

/// What open hints named, and what became of those before.
#[derive(Debug, Clone)]
pub(crate) struct Hints {
    /// One for each expert, in the order in which they were named last.
    pub(crate) named: Vec<Hinted>,
    /// `stats[layer]`.
    stats: Vec<HintStats>,
}

impl Hints {
    pub(crate) fn new(layer_count: usize) -> Self {
        Self { named: Vec::new(), stats: vec![HintStats::default(); layer_count] }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.named.is_empty()
    }

    /// The expert for which an open hint has taken a slot, wherever its row is.
    pub(crate) fn held_for(&self, pool: PoolId, slot: SlotId) -> Option<FlatExpertId> {
        self.named.iter().find(|hinted| hinted.target == Some((pool, slot))).map(|hinted| hinted.expert)
    }

    pub(crate) fn holds(&self, pool: PoolId, slot: SlotId) -> bool {
        self.held_for(pool, slot).is_some()
    }
}

impl Cache {
    /// Takes slots for up to `most` experts that a later step of a layer is expected to route to, in the order in which
    /// they are given, so that they are there when it comes; absent ones are passed over. The rows are to be copied
    /// once what reads the slots' old owners is done.
    ///
    /// Victims are those of the rule, as seen from the step of `current`, which is the last one; of an empty plan, from
    /// layer 0. No slot is taken that this step uses, none that is pinned, in flight or under an open chunk's staging
    /// buffers, and none of an expert that an open hint has named. Rows of hints have stamp 1: once a step has come
    /// that did not want them, they go first. The step counter goes on by one if any row is to be copied.
    ///
    /// The answer is [`LatePlan::hint`], and the number of the hint [`LatePlan::flight`]. Where several open hints name
    /// an expert, it belongs to the last.
    ///
    /// # Errors
    ///
    /// An unknown layer or expert, a layer without slots; the last step has been counted.
    pub fn hint<'a>(
        &'a mut self,
        current: &Plan,
        layer: LayerId,
        experts: &[ExpertId],
        most: usize,
        late: &'a mut LatePlan,
    ) -> Result<LateTicket<'a>, EnsureError> {
        let pool = self.pool_of(layer)?;
        check_ids(layer, experts, self.expert_count())?;
        let number = self.next_step()?;
        late.begin_hint(self.flights.next_number(), layer, pool);

        let map = &self.map;
        let place = |row: &ExpertId| map.place(map.flat(layer, *row));
        let is_present = |row: &ExpertId| place(row).is_slot() || place(row).absence() == Some(Absence::InFlight);
        let counted = &mut self.scratch.experts;
        let given = || experts.iter().copied().filter(|&row| row != ExpertId::ABSENT);
        late.present.extend(given().filter(|row| is_present(row) && counted.insert(row.index())));
        let recency = &mut self.pools[pool.index()].recency;
        let spared = &mut self.scratch.slots;
        let of_step = current.slots().iter().filter(|slot| current.pool() == pool && slot.get() < recency.slot_count());
        let of_this = late.present.iter().map(place).filter(|place| place.is_slot()).map(|place| place.slot());
        let named = self.hints.named.iter().map(|hinted| (hinted.expert, map.place(hinted.expert)));
        let of_pool = named.filter(|(expert, place)| {
            place.is_slot() && self.pool_of_layer[map.layer_and_expert(*expert).0.index()] == Some(pool)
        });
        for slot in of_step.copied().chain(of_this).chain(of_pool.map(|(_, place)| place.slot())) {
            if recency.stamp(slot) > 0 && !recency.is_pinned(slot) {
                spared.insert(slot.index());
            }
        }
        let taken = recency.withheld() + recency.pinned_count() + spared.len() as u32;
        let room = (recency.slot_count() - taken) as usize;

        let mut answer = HintAnswer::default();
        for row in given() {
            if counted.contains(row.index()) {
                answer.present += 1;
            } else if answer.started == most {
                answer.over_budget += 1;
            } else if answer.started == room {
                answer.no_slot += 1;
            } else {
                answer.started += 1;
                counted.insert(row.index());
                late.copies.push(Copy { slot: SlotId::ABSENT, row });
                late.were.push(place(&row).absence().expect("it is in no slot"));
            }
        }
        counted.clear();
        late.hint = Some(answer);

        // The layers between now and the hint's are still to come.
        self.take_slots(late, current.layer(), number);
        self.pools[pool.index()].recency.cool(late.copies.iter().map(|copy| copy.slot));
        if answer.started > 0 {
            // What takes slots next must give them later stamps than any that was passed over here.
            self.step = number;
        }
        late.sort_by_row();
        Ok(LateTicket::of(self, late))
    }

    /// Makes room for so many flights of hints at once and for what they name, which then allocates nothing.
    pub fn reserve_hints(&mut self, flight_count: usize) {
        self.reserve_flights(flight_count);
        let slots: usize = self.pools.iter().map(|pool| pool.recency.slot_count() as usize).sum();
        self.hints.named.reserve(slots.saturating_sub(self.hints.named.len()));
    }

    /// Cancels an open hint: nobody waits for its rows any more, and those it brought in go first. Copies that the
    /// device was given are not taken back: they land, and their rows are resident and go first. Returns how many rows
    /// it had started and that count as wasted; none if the hint is not open.
    pub fn cancel_hint(&mut self, hint: u64) -> usize {
        self.give_up_where(|hinted| hinted.hint == hint)
    }

    /// The same for all open hints.
    pub fn cancel_hints(&mut self) -> usize {
        self.give_up_where(|_| true)
    }

    /// What became of a layer's hints, since the cache was made or rebuilt.
    ///
    /// # Panics
    ///
    /// If there is no such layer.
    pub fn hint_stats(&self, layer: LayerId) -> HintStats {
        self.hints.stats[layer.index()]
    }

    /// The same over all layers.
    pub fn total_hint_stats(&self) -> HintStats {
        let mut sum = HintStats::default();
        self.hints.stats.iter().for_each(|stats| sum += *stats);
        sum
    }

    /// Whether an open hint has named an expert.
    ///
    /// # Panics
    ///
    /// If the cache has no such layer or expert.
    pub fn is_hinted(&self, layer: LayerId, expert: ExpertId) -> bool {
        let expert = self.flat(layer, expert);
        self.hints.named.iter().any(|hinted| hinted.expert == expert)
    }

    /// Notes what a hint named, once its copies are enqueued.
    pub(crate) fn open_hint(&mut self, plan: &LatePlan) {
        let layer = plan.layer();
        let stats = &mut self.hints.stats[layer.index()];
        stats.started += plan.copies().len() as u64;
        stats.evictions += plan.eviction_count() as u64;
        let Self { hints: Hints { named, .. }, map, .. } = self;
        // Those that have lost their slots to steps have none to be spared: so there are no more than slots.
        named.retain(|hinted| {
            let place = map.place(hinted.expert);
            hinted.target.is_some() || place.is_slot() || place.absence() == Some(Absence::InFlight)
        });
        let hint = plan.flight();
        for row in &plan.present {
            let expert = map.flat(layer, *row);
            let before = named.iter().position(|hinted| hinted.expert == expert);
            let target = before.and_then(|index| named.remove(index).target);
            named.push(Hinted { expert, hint, target });
        }
        for copy in plan.copies() {
            let (expert, target) = (map.flat(layer, copy.row), Some((plan.pool(), copy.slot)));
            named.retain(|hinted| hinted.expert != expert);
            named.push(Hinted { expert, hint, target });
        }
    }

    /// Counts the rows of a flight of which not all were enqueued.
    pub(crate) fn fail_hint(&mut self, plan: &LatePlan) {
        let stats = &mut self.hints.stats[plan.layer().index()];
        stats.started += plan.copies().len() as u64;
        stats.evictions += plan.eviction_count() as u64;
        stats.wasted += plan.copies().len() as u64;
    }

    pub(crate) fn stats_of(&mut self, expert: FlatExpertId) -> &mut HintStats {
        &mut self.hints.stats[self.map.layer_and_expert(expert).0.index()]
    }

    /// A slot is freed, or its row on its way is lost: what was hoped for is not there any more.
    pub(crate) fn lose_hinted(&mut self, pool: PoolId, slot: SlotId) {
        if let Some(index) = self.hints.named.iter().position(|hinted| hinted.target == Some((pool, slot))) {
            let Hinted { expert, .. } = self.hints.named.remove(index);
            self.stats_of(expert).wasted += 1;
        }
    }

    fn give_up_where(&mut self, is_meant: impl Fn(&Hinted) -> bool) -> usize {
        let (mut index, mut wasted) = (0, 0);
        while let Some(hinted) = self.hints.named.get(index) {
            if is_meant(hinted) {
                wasted += usize::from(self.give_up(index));
            } else {
                index += 1;
            }
        }
        wasted
    }

    /// Hopes no more for an expert; whether a row was started for it, which goes by the stamp it has from now on: that
    /// of those that go first, unless an accepted draft has used it.
    pub(crate) fn give_up(&mut self, index: usize) -> bool {
        let Hinted { expert, target, .. } = self.hints.named.remove(index);
        let Some((pool, slot)) = target else { return false };
        self.stats_of(expert).wasted += 1;
        // One that is on its way is pinned until it lands.
        if self.map.place(expert).is_slot() {
            self.unpin_slot(pool, slot, expert);
        }
        true
    }

    /// Makes a slot a victim like others, unless its expert is pinned.
    pub(crate) fn unpin_slot(&mut self, pool: PoolId, slot: SlotId, expert: FlatExpertId) {
        if !self.pins.is_marked(expert) {
            self.pools[pool.index()].recency.unpin(slot);
            let (layer, row) = self.map.layer_and_expert(expert);
            self.add_candidate(layer, row, slot);
        }
    }

    /// Whether steps have hints or their rows to look at.
    #[inline]
    pub(crate) fn has_hints(&self) -> bool {
        !self.hints.is_empty() || !self.flights.is_empty() && self.flights.any_hinted()
    }

    pub(crate) fn check_hints(&self) -> Result<(), String> {
        for (index, hinted) in self.hints.named.iter().enumerate() {
            let Hinted { expert, target, .. } = *hinted;
            if self.hints.named[..index].iter().any(|other| other.expert == expert) {
                return Err(format!("expert {expert} is named twice by open hints"));
            }
            let Some((pool, slot)) = target else { continue };
            let here = match self.flights.get(pool, slot) {
                Some(flown) => flown.expert == Some(expert) && flown.is_hinted && !flown.is_boarded,
                None => self.map.expert_of(self.pools[pool.index()].first, slot) == Some(expert),
            };
            if !here {
                return Err(format!("expert {expert} is hinted, and is not in slot {slot} of pool {pool}"));
            }
        }
        let open = self.hints.named.iter().filter(|hinted| hinted.target.is_some()).count() as u64;
        let stats = self.total_hint_stats();
        if stats.open() != open {
            return Err(format!("{open} rows of hints are open, and {stats:?}"));
        }
        Ok(())
    }
}
