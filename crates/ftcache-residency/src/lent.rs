//! Slots that hints lend to steps: what a step does before it is admitted where any hint is open.
//!
//! It ends the hints of its layer by what it routes to, boards what is on its way, and takes from other hints what it
//! finds no other slot for. Then it is admitted as if there were none.

use ftcache_policy::{ExpertId, LayerId, PoolId, SlotId};

use crate::flight::{Flights, InFlight};
use crate::hint::{Hinted, Hints};
use crate::map::Absence;
use crate::pin::Pins;
use crate::{Cache, EnsureError, Misses, Phase, Plan, Step};

/// Whether a pinned slot is so for hints alone, so that a step may have it.
pub(crate) fn is_lent(flights: &Flights, hints: &Hints, pins: &Pins, pool: PoolId, slot: SlotId) -> bool {
    match flights.get(pool, slot) {
        Some(flown) => flown.is_lent(pins),
        None => hints.held_for(pool, slot).is_some_and(|expert| !pins.is_marked(expert)),
    }
}

/// The experts of a step, as hints and pins see them.
#[derive(Debug, Clone, Copy, Default)]
struct Need {
    /// Distinct experts.
    distinct: u32,
    /// Distinct experts in a slot, or on their way to one for a hint.
    placed: u32,
    /// Distinct others, but for those on their way behind a step.
    misses: u32,
    /// Slots that are pinned otherwise than for hints, and that the step does not use.
    kept: u32,
}

impl Cache {
    /// Slots of a pool that are pinned otherwise than for hints.
    pub(crate) fn kept_count(&self, pool: PoolId) -> u32 {
        let Self { flights, hints, pins, map, .. } = self;
        let flown = flights.iter().filter(|flown| flown.pool == pool && flown.is_lent(pins)).count();
        let landed = hints.named.iter().filter(|hinted| {
            let is_here = hinted.target.is_some_and(|(of, _)| of == pool) && map.place(hinted.expert).is_slot();
            is_here && !pins.is_marked(hinted.expert)
        });
        self.pools[pool.index()].recency.pinned_count() - flown as u32 - landed.count() as u32
    }

    /// What a step needs. Nothing is left in scratch.
    fn need(&mut self, layer: LayerId, pool: PoolId, routes: &[ExpertId]) -> Need {
        let mut need = Need { kept: self.kept_count(pool), ..Need::default() };
        let Self { flights, hints, pins, scratch, map, pools, .. } = self;
        let recency = &pools[pool.index()].recency;
        for route in routes.iter().filter(|&&route| route != ExpertId::ABSENT) {
            if !scratch.experts.insert(route.index()) {
                continue;
            }
            need.distinct += 1;
            let place = map.place(map.flat(layer, *route));
            if place.is_slot() {
                let is_kept = recency.is_pinned(place.slot()) && !is_lent(flights, hints, pins, pool, place.slot());
                need.placed += 1;
                need.kept -= u32::from(is_kept);
            } else if place.absence() != Some(Absence::InFlight) {
                need.misses += 1;
            } else if flights.is_hinted(map.flat(layer, *route)) {
                need.placed += 1;
            }
        }
        scratch.experts.clear();
        need
    }

    /// A step that is too wide also where hints hold nothing.
    pub(crate) fn too_wide(&mut self, layer: LayerId, pool: PoolId, routes: &[ExpertId]) -> EnsureError {
        let need = self.need(layer, pool, routes);
        let recency = &self.pools[pool.index()].recency;
        let (slot_count, withheld, pinned) = (recency.slot_count(), recency.withheld(), need.kept);
        let (needed, given) = (need.distinct as usize, slot_count - withheld - pinned);
        EnsureError::StepTooWide { layer, pool, needed, given, slot_count, pinned, withheld }
    }

    /// Before a step is admitted: ends the hints of its layer by what it routes to, and takes from other hints what it
    /// finds no other slot for. It is then admitted as if there were none.
    ///
    /// # Errors
    ///
    /// More distinct experts than there are slots, those of hints among them. Nothing has changed.
    pub(crate) fn make_way(
        &mut self,
        step: &Step,
        pool: PoolId,
        number: u64,
        routes: &[ExpertId],
    ) -> Result<(), EnsureError> {
        let need = self.need(step.layer, pool, routes);
        let recency = &self.pools[pool.index()].recency;
        let open = recency.slot_count() - recency.withheld() - need.kept;
        let fetched = match step.misses {
            Misses::Fetched if need.placed + need.misses > open => {
                return Err(self.too_wide(step.layer, pool, routes));
            }
            Misses::Fetched => need.misses,
            // As many as the rule will have where hints hold nothing.
            Misses::Hybrid { fetch, .. } => {
                let mut carried = self.carried[step.layer.index()];
                fetch.fetched_count(need.misses, open - need.placed, &mut carried)
            }
        };
        self.reach(step, pool, number, routes);
        self.yield_to(step.layer, pool, routes, fetched);
        Ok(())
    }

    /// Ends the hints of a step's layer. Rows on their way that a plain step routes to are boarded.
    fn reach(&mut self, step: &Step, pool: PoolId, number: u64, routes: &[ExpertId]) {
        let routed = &mut self.scratch.experts;
        for route in routes.iter().filter(|&&route| route != ExpertId::ABSENT) {
            routed.insert(route.index());
        }
        let (layer, mut index) = (step.layer, 0);
        while let Some(&Hinted { expert, target, .. }) = self.hints.named.get(index) {
            let (of, row) = self.map.layer_and_expert(expert);
            if of != layer {
                index += 1;
                continue;
            }
            if !self.scratch.experts.contains(row.index()) {
                self.give_up(index);
                continue;
            }
            self.hints.named.remove(index);
            let Some((pool, slot)) = target else { continue };
            if self.map.place(expert).is_slot() {
                self.stats_of(expert).useful += 1;
                self.unpin_slot(pool, slot, expert);
            } else {
                self.stats_of(expert).late += 1;
            }
        }
        let Self { flights, map, pools, scratch, .. } = self;
        let pool = &mut pools[pool.index()];
        for flown in flights.iter_mut().filter(|flown| flown.is_hinted && !flown.is_boarded) {
            let Some((of, row)) = flown.expert.map(|expert| map.layer_and_expert(expert)) else { continue };
            if of != layer || !scratch.experts.contains(row.index()) {
                continue;
            }
            if step.misses == Misses::Fetched {
                map.placing(layer, pool.first).put(row, flown.slot);
                flown.is_boarded = true;
            } else if step.phase == Phase::Decode {
                // It was used, if by the CPU.
                pool.recency.touch(&[flown.slot], number);
            }
        }
        scratch.experts.clear();
    }

    /// Frees slots that hints hold, until the step has as many to take as it fetches: those that nobody hopes for any
    /// more first, the last flight's first of them, and then what was named last.
    fn yield_to(&mut self, layer: LayerId, pool: PoolId, routes: &[ExpertId], fetched: u32) {
        let Self { map, scratch, pools, flights, .. } = self;
        let recency = &pools[pool.index()].recency;
        let mut unpinned = 0;
        for route in routes.iter().filter(|&&route| route != ExpertId::ABSENT) {
            let (expert, used) = (map.flat(layer, *route), &mut scratch.slots);
            let place = map.place(expert);
            if place.is_slot() {
                unpinned += u32::from(used.insert(place.slot().index()) && !recency.is_pinned(place.slot()));
            } else if let Some(slot) = flights.slot_of_hinted(expert) {
                used.insert(slot.index());
            }
        }
        let mut given = recency.slot_count() - recency.withheld() - recency.pinned_count() - unpinned;
        while given < fetched {
            self.yield_one(pool);
            given += 1;
        }
        self.scratch.slots.clear();
    }

    /// Frees one slot of those that hints hold and that are not in scratch.
    fn yield_one(&mut self, pool: PoolId) {
        let Self { flights, hints, pins, scratch, .. } = &*self;
        let is_other = |slot: SlotId| !scratch.slots.contains(slot.index());
        let unwanted = flights.iter().filter(|flown: &&InFlight| {
            flown.pool == pool && is_other(flown.slot) && flown.is_lent(pins) && !hints.holds(pool, flown.slot)
        });
        let unwanted = unwanted.max_by_key(|flown| (flown.flight, flown.slot)).map(|flown| flown.slot);
        let index = hints.named.iter().rposition(|hinted| {
            let target = hinted.target.filter(|&(of, slot)| of == pool && is_other(slot));
            target.is_some_and(|(_, slot)| is_lent(flights, hints, pins, pool, slot))
        });
        let (slot, index) = match (unwanted, index) {
            (Some(slot), _) => (slot, None),
            (None, Some(index)) => (hints.named[index].target.expect("it was looked for").1, Some(index)),
            (None, None) => unreachable!("a step that fits finds its slots"),
        };
        match flights.get(pool, slot).map(|flown| flown.flight) {
            Some(flight) => {
                // Whoever is given the slot writes to it after what is on its way there.
                self.flights.overdue = self.flights.overdue.max(Some(flight));
                self.ground(pool, slot, Absence::Evicted);
            }
            None => drop(index.map(|index| self.give_up(index))),
        }
    }

    /// The flight that a step's copies and kernels come behind, if there is one.
    pub(crate) fn awaited(&self, plan: &Plan) -> Option<u64> {
        let is_used =
            |flown: &&InFlight| flown.is_boarded && flown.pool == plan.pool() && plan.slots().contains(&flown.slot);
        let boarded = self.flights.iter().filter(is_used).map(|flown| flown.flight).max();
        boarded.max(self.flights.overdue.filter(|_| !plan.copies().is_empty()))
    }
}
