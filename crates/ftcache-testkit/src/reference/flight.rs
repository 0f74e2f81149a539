//! Slots in flight: rows that a hybrid step left to the CPU, on their way to slots that nobody uses yet.

use std::collections::BTreeSet;

use super::{ABSENT, Answer, Cause, Expert, Reference, Refusal, Slot, Step};

/// Rows to copy behind a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LateAnswer {
    /// Its number, which no other flight has.
    pub flight: u64,
    /// `(slot, row)` in the order in which they took their slots.
    pub copies: Vec<(u32, u32)>,
    layer: u32,
    pool: u32,
}

/// A slot in flight, and whose row is on its way: nobody's any more if it was forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Flown {
    pub(super) flight: u64,
    pub(super) expert: Option<Expert>,
    /// Whether a hint brings it.
    pub(super) is_hinted: bool,
    /// Whether its expert is in the slot for all that.
    pub(super) is_boarded: bool,
}

/// What became of rows behind steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LateStats {
    /// Rows that took a slot.
    pub queued: u64,
    /// Those of them that took it from another expert.
    pub evictions: u64,
    /// Rows that came to be resident.
    pub landed: u64,
    /// Rows that did not, and never will.
    pub lost: u64,
}

impl Reference {
    /// Takes slots for at most `most` experts that a committed step left to the CPU, in its fetch order. Their rows are
    /// on their way, unless [`fail_late`](Self::fail_late) or [`abort_late`](Self::abort_late) says otherwise at once.
    ///
    /// They are the first to go of those that the step itself could have taken, less those that it took.
    ///
    /// # Errors
    ///
    /// A step that is plain, or after which there was anything that counts steps or answers another again, frees slots,
    /// begins or ends a chunk, makes pools anew or fetches behind a step.
    pub fn fetch_later(&mut self, step: &Step, answer: &Answer, most: usize) -> Result<LateAnswer, Refusal> {
        self.assert_closed();
        if self.offered != Some(answer.step) {
            return Err(Refusal::NotTheLastStep(answer.step, self.offered));
        }
        self.offered = None;
        let (layer, pool) = (step.layer, self.pool_of(step.layer)?);
        let routed = step.routes.iter().filter(|&&route| route != ABSENT);
        let used: BTreeSet<u32> = routed.filter_map(|&expert| self.slot_of(layer, expert)).collect();
        let mut victims: Vec<u32> = (0..self.pools[pool as usize].len() as u32).collect();
        victims.retain(|slot| self.is_open(pool, *slot) && !used.contains(slot));
        self.sort_victims(pool, layer, &mut victims);

        self.flights += 1;
        let mut late = LateAnswer { flight: self.flights, copies: Vec::new(), layer, pool };
        // A hint may have brought some since, or begun to.
        let left: Vec<u32> = answer
            .left
            .iter()
            .copied()
            .filter(|&expert| self.cause(layer, expert).is_some_and(|cause| cause != Cause::InFlight))
            .collect();
        for (&slot, &expert) in victims.iter().zip(&left).take(most) {
            if self.free(pool, slot, Cause::Capacity).is_some() {
                self.late.evictions += 1;
            }
            self.late.queued += 1;
            self.pools[pool as usize][slot as usize].stamp = self.step;
            let (flight, expert) = (late.flight, (layer, expert));
            let flown = Flown { flight, expert: Some(expert), is_hinted: false, is_boarded: false };
            self.in_flight.insert((pool, slot), flown);
            self.causes.insert(expert, Cause::InFlight);
            late.copies.push((slot, expert.1));
        }
        Ok(late)
    }

    /// Some rows of a flight are on their way, others are not: they are nobody's, and their slots free once landed.
    pub fn fail_late(&mut self, late: LateAnswer) {
        for (slot, _) in late.copies {
            self.lose(late.pool, slot, Cause::OnCpu);
        }
    }

    /// No row of a flight is on its way: the slots are free.
    pub fn abort_late(&mut self, late: LateAnswer) {
        for (slot, _) in late.copies {
            self.lose(late.pool, slot, Cause::OnCpu);
            self.set_down(late.pool, slot);
        }
    }

    /// Makes the rows of a flight resident, with the stamp of the step that left them. Those that were forgotten leave
    /// their slots free. Says how many are resident.
    pub fn land(&mut self, flight: u64) -> usize {
        self.assert_closed();
        self.has_landed(flight);
        let (mut landed, mut late) = (0, 0);
        for ((pool, slot), flown) in self.in_flight.clone() {
            if flown.flight != flight {
                continue;
            }
            let stamp = self.stamp(pool, slot);
            self.set_down(pool, slot);
            if let Some(expert) = flown.expert {
                self.place(pool, slot, expert, stamp);
                landed += 1;
                late += u64::from(!flown.is_hinted);
            }
        }
        self.late.landed += late;
        landed
    }

    /// Whether an expert's row is on its way.
    pub fn is_in_flight(&self, layer: u32, expert: u32) -> bool {
        self.in_flight.values().any(|flown| !flown.is_boarded && flown.expert == Some((layer, expert)))
    }

    /// Whether that row comes by a hint, so that a plain step may wait for it.
    pub(super) fn is_in_flight_by_hint(&self, layer: u32, expert: u32) -> bool {
        self.in_flight.values().any(|flown| flown.is_hinted && flown.expert == Some((layer, expert)))
    }

    /// Whether a row is on its way to a slot, whoever it was for.
    pub fn is_slot_in_flight(&self, pool: u32, slot: u32) -> bool {
        self.in_flight.contains_key(&(pool, slot))
    }

    /// How many slots of a pool rows are on their way to.
    pub fn in_flight_count(&self, pool: u32) -> usize {
        self.in_flight.keys().filter(|(of, _)| *of == pool).count()
    }

    /// What became of rows behind steps, since the pools were made.
    pub fn late_stats(&self) -> LateStats {
        self.late
    }

    /// Whether a step may take a slot that it does not use.
    pub(super) fn is_open(&self, pool: u32, slot: u32) -> bool {
        slot >= self.withheld(pool) && !self.is_kept(pool, slot)
    }

    /// Whether a slot is kept by a mark on its expert, by a row on its way or by a hint.
    pub(super) fn is_kept(&self, pool: u32, slot: u32) -> bool {
        let is_marked = self.owner(pool, slot).is_some_and(|owner| self.pinned.contains(&owner));
        is_marked || self.is_slot_in_flight(pool, slot) || self.is_held(pool, slot)
    }

    /// Takes the row on its way to a slot from its expert. The slot waits for it.
    pub(super) fn lose(&mut self, pool: u32, slot: u32, cause: Cause) {
        let Some(flown) = self.in_flight.get_mut(&(pool, slot)) else { return };
        let Some(expert) = flown.expert.take() else { return };
        let is_hinted = flown.is_hinted;
        flown.is_boarded = false;
        self.pools[pool as usize][slot as usize].owner = None;
        self.causes.insert(expert, cause);
        if is_hinted {
            self.lose_hinted(pool, slot);
        } else {
            self.late.lost += 1;
        }
    }

    /// The same for all rows of a layer.
    pub(super) fn lose_all_of(&mut self, layer: u32, cause: Cause) {
        for ((pool, slot), flown) in self.in_flight.clone() {
            if flown.expert.is_some_and(|(of, _)| of == layer) {
                self.lose(pool, slot, cause);
            }
        }
    }

    /// Frees a slot that nothing is on its way to any more.
    pub(super) fn set_down(&mut self, pool: u32, slot: u32) {
        if self.in_flight.remove(&(pool, slot)).is_some() {
            self.pools[pool as usize][slot as usize] = Slot::default();
        }
    }

    /// Nothing is on its way, and what was is lost; counts start over.
    pub(super) fn forget_flights(&mut self) {
        for ((pool, slot), _) in self.in_flight.clone() {
            self.lose(pool, slot, Cause::Freed);
            self.set_down(pool, slot);
        }
        self.late = LateStats::default();
    }

    /// # Panics
    ///
    /// If a slot in flight holds somebody or has no stamp, or its expert is in a slot or on its way to another.
    pub(super) fn check_flights(&self) {
        let mut seen = BTreeSet::new();
        for (&(pool, slot), flown) in &self.in_flight {
            let here = self.pools[pool as usize][slot as usize];
            let owner = flown.expert.filter(|_| flown.is_boarded);
            assert!(here.owner == owner && here.stamp > 0, "pool {pool} slot {slot}: in flight and in use");
            assert!(slot >= self.withheld(pool), "pool {pool} slot {slot}: in flight and withheld");
            let Some((layer, expert)) = flown.expert.filter(|_| !flown.is_boarded) else { continue };
            assert!(seen.insert((layer, expert)), "{layer} {expert}: twice on its way");
            assert_eq!(self.cause(layer, expert), Some(Cause::InFlight), "{layer} {expert}: on its way, and not said");
        }
        let said = self.causes.values().filter(|&&cause| cause == Cause::InFlight).count();
        assert_eq!(said, seen.len(), "experts that are said to be on their way");
        let LateStats { queued, landed, lost, .. } = self.late;
        let up = self.in_flight.values().filter(|flown| flown.expert.is_some() && !flown.is_hinted).count();
        assert_eq!(queued, landed + lost + up as u64, "what became of rows");
    }
}
