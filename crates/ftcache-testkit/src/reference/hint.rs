//! Hints: experts that a later step is expected to route to, brought to slots ahead of it.

use std::collections::{BTreeMap, BTreeSet};

use super::flight::Flown;
use super::{ABSENT, CPU, Cause, Expert, Misses, Phase, Reference, Refusal, Slot, Step};

/// What a hint came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HintAnswer {
    /// Its number, and that of its flight.
    pub flight: u64,
    /// `(slot, row)` in the order of its experts.
    pub copies: Vec<(u32, u32)>,
    /// Ids of experts that are in a slot or on their way, or were named before in the list.
    pub present: usize,
    /// Ids beyond what was asked for at the most.
    pub over_budget: usize,
    /// Ids for which there was no slot.
    pub no_slot: usize,
    layer: u32,
    pool: u32,
    evicted: Vec<Option<Expert>>,
    named: Vec<Expert>,
    were: Vec<Cause>,
}

/// What became of a layer's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HintStats {
    /// Rows copied.
    pub started: u64,
    /// Those that took the slot of another expert.
    pub evictions: u64,
    /// Those that were there when their step came.
    pub useful: u64,
    /// Those that were on their way then.
    pub late: u64,
    /// Those that no step wanted or ever will.
    pub wasted: u64,
}

/// An expert that a hint named, and the slot that it got for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Named {
    expert: Expert,
    hint: u64,
    target: Option<(u32, u32)>,
}

/// All that hints have left.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Hints {
    /// Of those that are open, in the order in which they were named last.
    named: Vec<Named>,
    stats: BTreeMap<u32, HintStats>,
    /// The last flight that lost a slot to a step, which nothing was ordered behind yet.
    overdue: Option<u64>,
}

impl Reference {
    /// Brings at most `most` of a layer's experts to slots, ahead of a step. `used` are `(pool, slot)` of the last
    /// step, which was of layer `from`. Their rows are on their way, and the hint is open, unless [`fail_hint`](Self::fail_hint) or
    /// [`abort_hint`](Self::abort_hint) says otherwise at once.
    ///
    /// # Errors
    ///
    /// In this order: no such layer, a layer without slots, an id that is no expert, a step counter at its end.
    pub fn hint(
        &mut self,
        (used, from): (&BTreeSet<(u32, u32)>, u32),
        layer: u32,
        experts: &[u32],
        most: usize,
    ) -> Result<HintAnswer, Refusal> {
        self.assert_closed();
        let pool = self.pool_of(layer)?;
        if let Some(index) = experts.iter().position(|&id| id != ABSENT && id >= self.expert_count) {
            return Err(Refusal::NoExpert(index));
        }
        self.check_counter()?;
        let is_present = |expert: u32| self.slot_of(layer, expert).is_some() || self.is_in_flight(layer, expert);
        let mut named: Vec<Expert> = Vec::new();
        for &id in experts.iter().filter(|&&id| id != ABSENT && is_present(id)) {
            if !named.contains(&(layer, id)) {
                named.push((layer, id));
            }
        }
        let is_spared = |slot: u32| {
            let owner = self.owner(pool, slot);
            let by_hint = |owner: Expert| named.contains(&owner) || self.is_hinted(owner.0, owner.1);
            (used.contains(&(pool, slot)) && owner.is_some()) || owner.is_some_and(by_hint)
        };
        let mut victims: Vec<u32> = (0..self.pools[pool as usize].len() as u32).collect();
        victims.retain(|&slot| self.is_open(pool, slot) && !is_spared(slot));
        self.sort_victims(pool, from, &mut victims);

        self.flights += 1;
        let mut answer = HintAnswer {
            flight: self.flights,
            copies: Vec::new(),
            present: 0,
            over_budget: 0,
            no_slot: 0,
            layer,
            pool,
            evicted: Vec::new(),
            named,
            were: Vec::new(),
        };
        for &expert in experts.iter().filter(|&&id| id != ABSENT) {
            if answer.named.contains(&(layer, expert)) || answer.copies.iter().any(|&(_, row)| row == expert) {
                answer.present += 1;
            } else if answer.copies.len() == most {
                answer.over_budget += 1;
            } else if answer.copies.len() == victims.len() {
                answer.no_slot += 1;
            } else {
                let slot = victims[answer.copies.len()];
                answer.copies.push((slot, expert));
                answer.were.push(self.cause(layer, expert).expect("it is in no slot"));
            }
        }
        self.step += u64::from(!answer.copies.is_empty());
        for &(slot, expert) in &answer.copies {
            answer.evicted.push(self.free(pool, slot, Cause::Capacity));
            self.pools[pool as usize][slot as usize] = Slot { stamp: 1, owner: None };
            let (flight, expert) = (answer.flight, (layer, expert));
            let flown = Flown { flight, expert: Some(expert), is_hinted: true, is_boarded: false };
            self.in_flight.insert((pool, slot), flown);
            self.causes.insert(expert, Cause::InFlight);
        }
        Ok(answer)
    }

    /// The hint is open.
    pub fn open_hint(&mut self, answer: &HintAnswer) {
        self.count_hint(answer);
        let mut named = std::mem::take(&mut self.hints.named);
        named.retain(|named| {
            let (layer, expert) = named.expert;
            self.slot_of(layer, expert).is_some() || self.is_in_flight(layer, expert)
        });
        self.hints.named = named;
        let hint = answer.flight;
        for &expert in &answer.named {
            let before = self.hints.named.iter().position(|named| named.expert == expert);
            let target = before.and_then(|index| self.hints.named.remove(index).target);
            self.hints.named.push(Named { expert, hint, target });
        }
        for &(slot, row) in &answer.copies {
            let expert = (answer.layer, row);
            self.hints.named.retain(|named| named.expert != expert);
            self.hints.named.push(Named { expert, hint, target: Some((answer.pool, slot)) });
        }
    }

    fn count_hint(&mut self, answer: &HintAnswer) {
        let stats = self.hints.stats.entry(answer.layer).or_default();
        stats.started += answer.copies.len() as u64;
        stats.evictions += answer.evicted.iter().flatten().count() as u64;
    }

    /// Some of its rows are on their way, others are not: they are nobody's, and their slots free once landed.
    pub fn fail_hint(&mut self, answer: &HintAnswer) {
        self.count_hint(answer);
        for (&(slot, _), &was) in answer.copies.iter().zip(&answer.were) {
            self.lose(answer.pool, slot, was);
            self.hints.stats.entry(answer.layer).or_default().wasted += 1;
        }
    }

    /// None of its rows is on its way: the slots are free.
    pub fn abort_hint(&mut self, answer: &HintAnswer) {
        for (&(slot, _), &was) in answer.copies.iter().zip(&answer.were) {
            self.lose(answer.pool, slot, was);
            self.set_down(answer.pool, slot);
        }
    }

    /// Ends an open hint, or with 0 all of them. Says how many rows were started for nothing.
    pub fn cancel_hint(&mut self, hint: u64) -> usize {
        self.assert_closed();
        let is_meant = |named: &Named| hint == 0 || named.hint == hint;
        let meant: Vec<Named> = self.hints.named.iter().copied().filter(is_meant).collect();
        meant.into_iter().filter(|named| self.give_up(*named)).count()
    }

    /// What became of a layer's hints, since the pools were made.
    pub fn hint_stats(&self, layer: u32) -> HintStats {
        self.hints.stats.get(&layer).copied().unwrap_or_default()
    }

    /// Whether an open hint has named an expert.
    pub fn is_hinted(&self, layer: u32, expert: u32) -> bool {
        self.hints.named.iter().any(|named| named.expert == (layer, expert))
    }

    /// The flight that a step with such slots and copies comes behind.
    pub fn awaits(&self, layer: u32, slots: &[u32], has_copies: bool) -> Option<u64> {
        let pool = self.pool_of_layer[layer as usize]?;
        let used = slots.iter().filter(|slot| ![CPU, ABSENT].contains(*slot));
        let flown = used.filter_map(|&slot| self.in_flight.get(&(pool, slot)));
        let boarded = flown.filter(|flown| flown.is_boarded).map(|flown| flown.flight).max();
        boarded.max(self.hints.overdue.filter(|_| has_copies))
    }

    /// A step that awaits a flight was committed.
    pub(super) fn is_behind(&mut self, flight: Option<u64>) {
        if flight >= self.hints.overdue {
            self.hints.overdue = None;
        }
    }

    pub(super) fn has_landed(&mut self, flight: u64) {
        if self.hints.overdue == Some(flight) {
            self.hints.overdue = None;
        }
    }

    /// Whether an open hint keeps a slot for an expert.
    pub(super) fn is_held(&self, pool: u32, slot: u32) -> bool {
        self.hints.named.iter().any(|named| named.target == Some((pool, slot)))
    }

    /// Whether a slot is kept, and for hints alone.
    pub fn is_lent(&self, pool: u32, slot: u32) -> bool {
        let is_marked = self.owner(pool, slot).is_some_and(|owner| self.pinned.contains(&owner));
        let by_flight = self.in_flight.get(&(pool, slot)).map(|flown| flown.is_hinted);
        by_flight.unwrap_or(self.is_held(pool, slot)) && !is_marked
    }

    /// A slot has lost what a hint brought there.
    pub(super) fn lose_hinted(&mut self, pool: u32, slot: u32) {
        if let Some(index) = self.hints.named.iter().position(|named| named.target == Some((pool, slot))) {
            let (layer, _) = self.hints.named.remove(index).expert;
            self.hints.stats.entry(layer).or_default().wasted += 1;
        }
    }

    /// Whether a row had been started, which is the first to go now.
    fn give_up(&mut self, named: Named) -> bool {
        self.hints.named.retain(|other| *other != named);
        if named.target.is_none() {
            return false;
        }
        self.hints.stats.entry(named.expert.0).or_default().wasted += 1;
        true
    }

    /// Ends the hints of a step's layer, and boards what a plain step finds on its way.
    pub(super) fn reach_hints(&mut self, step: &Step) {
        let of_layer = |named: &Named| named.expert.0 == step.layer;
        for named in self.hints.named.clone().into_iter().filter(of_layer) {
            if !step.routes.contains(&named.expert.1) {
                self.give_up(named);
                continue;
            }
            self.hints.named.retain(|other| *other != named);
            let Some(target) = named.target else { continue };
            let stats = self.hints.stats.entry(step.layer).or_default();
            if self.in_flight.contains_key(&target) {
                stats.late += 1;
            } else {
                stats.useful += 1;
            }
        }
        for ((pool, slot), flown) in self.in_flight.clone() {
            let Some(expert) = flown.expert.filter(|_| flown.is_hinted && !flown.is_boarded) else { continue };
            if expert.0 != step.layer || !step.routes.contains(&expert.1) {
                continue;
            }
            if step.misses == Misses::Fetched {
                let stamp = self.stamp(pool, slot);
                self.place(pool, slot, expert, stamp);
                self.in_flight.get_mut(&(pool, slot)).expect("it is there").is_boarded = true;
            } else if step.phase == Phase::Decode {
                self.pools[pool as usize][slot as usize].stamp = self.step + 1;
            }
        }
    }

    /// Before a step: ends the hints of its layer, and has others give up slots until it has as many as it needs.
    pub(super) fn make_way(&mut self, step: &Step, pool: u32) -> Result<(), Refusal> {
        let before = self.clone();
        self.reach_hints(step);
        let layer = step.layer;
        let distinct: BTreeSet<u32> = step.routes.iter().copied().filter(|&route| route != ABSENT).collect();
        loop {
            let slots: Vec<u32> = (0..self.pools[pool as usize].len() as u32).collect();
            let place = |expert: &u32| self.in_flight.iter().find(|(_, flown)| flown.expert == Some((layer, *expert)));
            let coming = distinct.iter().filter_map(place).map(|(&(_, slot), _)| slot);
            let here = distinct.iter().filter_map(|&expert| self.slot_of(layer, expert));
            let used: BTreeSet<u32> = coming.chain(here).collect();
            let missing = distinct.len() - used.len();
            let victims = slots.iter().filter(|&&slot| self.is_open(pool, slot) && !used.contains(&slot)).count();
            let wanted = match step.misses {
                Misses::Fetched => missing,
                Misses::Hybrid(fetch, _) => {
                    fetch.fetched_count(missing as u32, slots.len() as u32, &mut self.carried(layer)) as usize
                }
            };
            if victims >= wanted {
                return Ok(());
            }
            if self.yield_one(pool, &used) {
                continue;
            }
            if step.misses != Misses::Fetched {
                return Ok(());
            }
            let kept = slots.iter().filter(|&&slot| self.is_kept(pool, slot) && !used.contains(&slot)).count();
            let usable = slots.len() - self.withheld(pool) as usize - kept;
            *self = before;
            self.stats.entry((layer, step.phase)).or_default().refused += 1;
            return Err(Refusal::TooWide(distinct.len(), usable));
        }
    }

    /// Frees a slot that hints hold and that is not `used`; whether there was one. Those that no open hint has are
    /// first, of the last flight the last slot; then what was named last.
    pub(super) fn yield_one(&mut self, pool: u32, used: &BTreeSet<u32>) -> bool {
        let lent: Vec<u32> = (0..self.pools[pool as usize].len() as u32)
            .filter(|slot| !used.contains(slot) && self.is_lent(pool, *slot))
            .collect();
        let unwanted = lent.iter().filter(|&&slot| !self.is_held(pool, slot));
        let unwanted = unwanted.max_by_key(|&&slot| (self.in_flight[&(pool, slot)].flight, slot));
        let last = self
            .hints
            .named
            .iter()
            .rev()
            .find(|named| named.target.is_some_and(|(of, slot)| of == pool && lent.contains(&slot)));
        let Some(slot) = unwanted.copied().or(last.map(|named| named.target.expect("it has one").1)) else {
            return false;
        };
        match self.in_flight.get(&(pool, slot)).map(|flown| flown.flight) {
            Some(flight) => {
                self.lose(pool, slot, Cause::Capacity);
                self.set_down(pool, slot);
                self.hints.overdue = self.hints.overdue.max(Some(flight));
            }
            None => {
                let named = *last.expect("it was found");
                self.give_up(named);
            }
        }
        true
    }

    /// # Panics
    ///
    /// If an expert is named twice, a target is not where its expert is, or rows are unaccounted for.
    pub(super) fn check_hints(&self) {
        let mut experts = BTreeSet::new();
        for named in &self.hints.named {
            assert!(experts.insert(named.expert), "{named:?}: named twice");
            let Some((pool, slot)) = named.target else { continue };
            let flown = self.in_flight.get(&(pool, slot));
            let here = flown.map_or(self.owner(pool, slot), |flown| flown.expert);
            assert_eq!(here, Some(named.expert), "{named:?}: not there");
        }
        for (&layer, stats) in &self.hints.stats {
            let open = |named: &&Named| named.expert.0 == layer && named.target.is_some();
            let open = self.hints.named.iter().filter(open).count() as u64;
            assert_eq!(stats.started, stats.useful + stats.late + stats.wasted + open, "layer {layer}: {stats:?}");
        }
    }
}
