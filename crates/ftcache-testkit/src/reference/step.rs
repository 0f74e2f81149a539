//! Admission: which slot each route gets, what is copied, and what a commit or an abort makes of it.
//!
//! Also the memory of the last answer, by which a step that comes again under its token gets the same one.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use ftcache_policy::{Carried, Fetch};

use super::verify::Verified;
use super::{Cause, Open, Reference, Refusal};

/// A route to nobody here, in routes and in answers.
pub const ABSENT: u32 = u32::MAX;

/// In an answer: the CPU computes this route.
pub const CPU: u32 = u32::MAX - 1;

/// What a step is part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Hits and fetched misses are stamped with the step.
    Decode,
    /// Hits keep their stamps; an acceptance stamps afterwards.
    Verify,
    /// Hits keep their stamps; misses are the first to go after free slots.
    Prefill,
}

/// Which misses are fetched first where not all are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The most recently active, ties to the lower id.
    Recency,
    /// The lowest id.
    LowestId,
}

/// What becomes of a step's misses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Misses {
    /// All are fetched: a plain step.
    Fetched,
    /// Some are fetched, in an order; the CPU computes the others: a hybrid step.
    Hybrid(Fetch, Order),
}

/// One step of a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The layer.
    pub layer: u32,
    /// Its routes, each an expert or [`ABSENT`].
    pub routes: Vec<u32>,
    /// What it is part of.
    pub phase: Phase,
    /// The name under which the same step may come again.
    pub token: Option<u64>,
    /// What becomes of its misses.
    pub misses: Misses,
    /// Whether it is a further part of the step before, so that it counts as none of its own, may have that one's
    /// token, and is accepted together with it.
    pub continues: bool,
}

impl Step {
    /// A plain step of decode.
    pub fn decode(layer: u32, routes: &[u32]) -> Self {
        Self {
            layer,
            routes: routes.to_vec(),
            phase: Phase::Decode,
            token: None,
            misses: Misses::Fetched,
            continues: false,
        }
    }
}

/// What a step came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The number of the step.
    pub step: u64,
    /// For each route a slot, [`CPU`] or [`ABSENT`].
    pub slots: Vec<u32>,
    /// `(slot, row)` in the order in which they are made.
    pub copies: Vec<(u32, u32)>,
    /// `(layer, expert)` that lost its slot, for each copy.
    pub evicted: Vec<Option<(u32, u32)>>,
    /// Every distinct expert that was in no slot: those that are copied and the others, in fetch order, and those on
    /// their way.
    pub missing: Vec<u32>,
    /// Of these, those that are neither copied nor on their way.
    pub left: Vec<u32>,
    /// Whether it was given before, under the same token.
    pub repeat: bool,
}

/// A step between its admission and its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pending {
    step: Step,
    answer: Answer,
    distinct: BTreeSet<u32>,
    /// Routes to experts that were in a slot before the step.
    hit_routes: u64,
    /// Why each miss was one, before the step.
    causes: Vec<Cause>,
    /// What the layer keeps of a fetch, after the step.
    carried: Carried,
}

/// A committed step that may come again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Remembered {
    step: Step,
    answer: Answer,
}

impl Reference {
    /// One plain decode step of a layer, admitted and committed.
    ///
    /// # Errors
    ///
    /// As [`admit`](Self::admit).
    pub fn ensure(&mut self, layer: u32, routes: &[u32]) -> Result<Answer, Refusal> {
        let answer = self.admit(&Step::decode(layer, routes))?;
        self.commit();
        Ok(answer)
    }

    /// Decides a step and leaves it open, for [`commit`](Self::commit) or [`abort`](Self::abort).
    ///
    /// # Errors
    ///
    /// In this order: an open plan, no such layer, a layer without slots, a route that is no expert, a token that was
    /// used for something else (but for another part of one step) or whose answer has gone, a plain step that routes to
    /// an expert on its way, a step counter at its end, a plain step of more distinct experts than there are slots for
    /// it.
    pub fn admit(&mut self, step: &Step) -> Result<Answer, Refusal> {
        if self.open.is_some() {
            return Err(Refusal::PlanOpen);
        }
        let layer = step.layer;
        let pool = self.pool_of(layer)?;
        if let Some(index) = step.routes.iter().position(|&route| route != ABSENT && route >= self.expert_count) {
            return Err(Refusal::NoExpert(index));
        }
        if let Some(answer) = self.same_again(step)? {
            self.offered = self.offered.filter(|&step| step == answer.step);
            self.open = Some(Open::Repeat { pool, answer: answer.clone() });
            return Ok(answer);
        }
        let is_in_flight = |route: &u32| *route != ABSENT && self.is_in_flight(layer, *route);
        let is_behind_a_step = |route: &u32| is_in_flight(route) && !self.is_in_flight_by_hint(layer, *route);
        let waits_for = step.routes.iter().position(is_behind_a_step).filter(|_| step.misses == Misses::Fetched);
        if let Some(index) = waits_for {
            return Err(Refusal::InFlight(index));
        }
        self.check_counter()?;

        self.make_way(step, pool)?;

        let distinct: BTreeSet<u32> = step.routes.iter().copied().filter(|&route| route != ABSENT).collect();
        let hit_slots: BTreeSet<u32> = distinct.iter().filter_map(|&expert| self.slot_of(layer, expert)).collect();
        let missing = distinct.iter().copied().filter(|&expert| self.slot_of(layer, expert).is_none());
        let (in_flight, mut missing): (Vec<u32>, Vec<u32>) =
            missing.partition(|&expert| self.is_in_flight(layer, expert));
        let slot_count = self.pools[pool as usize].len();
        let withheld = self.withheld(pool);
        let is_victim = |&slot: &u32| self.is_open(pool, slot) && !hit_slots.contains(&slot);
        let mut victims: Vec<u32> = (0..slot_count as u32).filter(is_victim).collect();

        let mut carried = self.carried(layer);
        let fetched_count = match step.misses {
            Misses::Fetched => {
                let kept =
                    (0..slot_count as u32).filter(|&slot| self.is_kept(pool, slot) && !hit_slots.contains(&slot));
                let usable = slot_count - withheld as usize - kept.count();
                if distinct.len() > usable {
                    self.stats.entry((layer, step.phase)).or_default().refused += 1;
                    return Err(Refusal::TooWide(distinct.len(), usable));
                }
                missing.len()
            }
            Misses::Hybrid(fetch, order) => {
                if order == Order::Recency {
                    missing.sort_by_key(|&expert| (Reverse(self.active(layer, expert)), expert));
                }
                fetch.fetched_count(missing.len() as u32, victims.len() as u32, &mut carried) as usize
            }
        };
        let left = missing[fetched_count..].to_vec();
        missing.extend(in_flight);
        // Why each is missing, before this step gives it another reason.
        let causes: Vec<Cause> =
            missing.iter().map(|&expert| self.cause(layer, expert).expect("it is in no slot")).collect();

        let is_hit = |route: &&u32| **route != ABSENT && self.slot_of(layer, **route).is_some();
        let hit_routes = step.routes.iter().filter(is_hit).count() as u64;

        // Everything is checked: from here on the step happens.
        self.step += 1;
        self.offered = None;
        self.remembered.remove(&layer);
        if step.phase == Phase::Verify && !step.continues {
            self.verified.remove(&layer);
        }
        if step.phase == Phase::Decode {
            self.count_uses(layer, &step.routes, step.continues);
        }
        self.sort_victims(pool, layer, &mut victims);
        if step.phase == Phase::Decode {
            for &slot in &hit_slots {
                self.pools[pool as usize][slot as usize].stamp = self.step;
            }
        }
        let stamp = if step.phase == Phase::Prefill { 1 } else { self.step };
        let mut answer = Answer {
            step: self.step,
            slots: Vec::new(),
            copies: Vec::new(),
            evicted: Vec::new(),
            missing: missing.clone(),
            left,
            repeat: false,
        };
        for (&expert, &victim) in missing.iter().zip(&victims).take(fetched_count) {
            answer.copies.push((victim, expert));
            answer.evicted.push(self.place(pool, victim, (layer, expert), stamp));
        }
        for &route in &step.routes {
            answer.slots.push(match route {
                ABSENT => ABSENT,
                _ => self.slot_of(layer, route).unwrap_or(CPU),
            });
        }
        let pending = Pending { step: step.clone(), answer: answer.clone(), distinct, hit_routes, causes, carried };
        self.open = Some(Open::Step(Box::new(pending)));
        Ok(answer)
    }

    /// Ends an admission or an import whose rows have arrived.
    ///
    /// # Panics
    ///
    /// If nothing is open.
    pub fn commit(&mut self) {
        let Open::Step(pending) = self.open.take().expect("a plan is open") else { return };
        let Pending { step, answer, distinct, hit_routes, causes, carried } = *pending;
        let layer = step.layer;
        let present: Vec<u32> = step.routes.iter().copied().filter(|&route| route != ABSENT).collect();

        let stats = self.stats.entry((layer, step.phase)).or_default();
        stats.steps += u64::from(!step.continues);
        stats.routes += present.len() as u64;
        stats.hit_routes += hit_routes;
        stats.distinct += distinct.len() as u64;
        stats.misses += answer.missing.len() as u64;
        stats.fetched += answer.copies.len() as u64;
        stats.evictions += answer.evicted.iter().flatten().count() as u64;
        for cause in causes {
            stats.count(cause);
        }
        for &route in &present {
            *self.histogram.entry((layer, route)).or_default() += 1;
        }
        for &expert in &answer.left {
            self.causes.insert((layer, expert), Cause::OnCpu);
        }

        self.is_behind(self.awaits(layer, &answer.slots, !answer.copies.is_empty()));
        let is_hybrid = step.misses != Misses::Fetched;
        if is_hybrid {
            self.offered = Some(answer.step);
            self.carried.insert(layer, carried);
        }
        if is_hybrid && step.phase == Phase::Decode {
            for &expert in &distinct {
                self.active.insert((layer, expert), answer.step);
            }
        }
        if step.phase == Phase::Verify {
            let fetched = answer.copies.iter().map(|&(_, row)| row).collect();
            let (first, last) = (answer.step, answer.step);
            self.note_verified(layer, step.continues, Verified { first, last, routed: distinct, fetched, is_hybrid });
        }
        if step.token.is_some() {
            self.remembered.insert(layer, Remembered { step, answer });
        }
    }

    /// Ends an admission or an import whose rows may not have arrived: their slots are free, and nobody comes back.
    ///
    /// Those are the slots of its copies also where the answer is a repeated one: its rows may be half copied.
    ///
    /// # Panics
    ///
    /// If nothing is open.
    pub fn abort(&mut self) {
        self.offered = None;
        match self.open.take().expect("a plan is open") {
            Open::Repeat { pool, answer } => self.free_copies(pool, &answer),
            Open::Step(pending) => {
                let pool = self.pool_of_layer[pending.step.layer as usize].expect("it was admitted");
                self.free_copies(pool, &pending.answer);
            }
            Open::Import(placed) => {
                self.remembered.clear();
                for placed in placed {
                    self.free(placed.pool, placed.slot, Cause::Freed);
                }
            }
        }
    }

    fn free_copies(&mut self, pool: u32, answer: &Answer) {
        self.remembered.clear();
        for &(slot, _) in &answer.copies {
            self.free(pool, slot, Cause::Freed);
        }
    }

    /// The answer to a step that comes again; `None` if it is a new one.
    fn same_again(&self, step: &Step) -> Result<Option<Answer>, Refusal> {
        let Some(Remembered { step: before, answer }) = self.remembered.get(&step.layer) else { return Ok(None) };
        if step.token != before.token {
            return Ok(None);
        }
        if (&step.routes, step.phase, step.misses) != (&before.routes, before.phase, before.misses) {
            return if step.continues { Ok(None) } else { Err(Refusal::TokenReused) };
        }
        for (&route, &slot) in step.routes.iter().zip(&answer.slots) {
            if slot != CPU && slot != ABSENT && self.slot_of(step.layer, route) != Some(slot) {
                return Err(Refusal::AnswerGone(route));
            }
        }
        Ok(Some(Answer { repeat: true, ..answer.clone() }))
    }
}
