//! The slow, obvious model of who is where: tables of slots, scanned for every question.
//!
//! Written from the rules alone, with types of its own. Where it makes the same choice as the code (ties of stamps go
//! to the lower slot; misses ascend by expert, or by recency where a CPU helps), the choice comes from the reference
//! kernels, whose runs are `testdata/golden/lru.jsonl` and `hybrid.jsonl`, and the model is held to those vectors too.
//!
//! A step is asked for with [`Reference::admit`], which decides an [`Answer`] and leaves it open until
//! [`commit`](Reference::commit) or [`abort`](Reference::abort). This file is the state and what can be read of it;
//! `step.rs` admits, `verify.rs` accepts, `flight.rs` fetches behind a step, `hint.rs` ahead of one, `forget.rs` frees
//! and pins, `chunk.rs` stages, `rebuild.rs` starts over, `scores.rs` says what a resident is worth where it is not its
//! stamp.

mod chunk;
mod flight;
mod forget;
mod hint;
mod rebuild;
mod scores;
mod stats;
mod step;
mod verify;

use std::collections::{BTreeMap, BTreeSet};

use ftcache_policy::{Carried, Eviction};

pub use chunk::{Buffers, StagePlan};
pub use flight::{LateAnswer, LateStats};
pub use hint::{HintAnswer, HintStats};
pub use rebuild::{Moved, Placed};
pub use scores::Scores;
pub use stats::{Cause, Stats};
pub use step::{ABSENT, Answer, CPU, Misses, Order, Phase, Step};

/// The last number that a step may have; the one above is no step.
pub const LAST_STEP: u64 = u64::MAX - 1;

/// `(layer, expert)`.
type Expert = (u32, u32);

/// One place of a pool: stamp 0 and nobody, or a stamp and an owner, who may still be on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Slot {
    stamp: u64,
    owner: Option<Expert>,
}

/// Why something was refused; nothing has changed then but the count of steps too wide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Distinct experts, and the slots that they could have.
    TooWide(usize, usize),
    /// Index of the first route, or of the first expert of a list, that is no expert.
    NoExpert(usize),
    /// The model has no such layer.
    NoLayer(u32),
    /// The layer is in no pool.
    NoSlots(u32),
    /// Index of the first route of a plain step to an expert whose row is on its way.
    InFlight(usize),
    /// The step counter is at its end.
    OutOfSteps,
    /// An admission or an import was neither committed nor aborted.
    PlanOpen,
    /// The token was last used with other routes, another phase or another rule for misses.
    TokenReused,
    /// The first expert of the token's answer whose slot another expert has taken since.
    AnswerGone(u32),
    /// The layer has no committed verify step that waits for its acceptance.
    NothingToAccept(u32),
    /// Index of the first accepted id that the verify step did not route to.
    NotVerified(usize),
    /// The number of a step behind which nothing can be fetched, and that of the one behind which something can.
    NotTheLastStep(u64, Option<u64>),
    /// Pool, experts that would be pinned in it, and how many may be.
    TooManyPinned(u32, usize, usize),
    /// A chunk is open.
    ChunkOpen,
    /// No chunk is open.
    NoChunk,
    /// The layer was staged in this chunk before.
    StagedBefore(u32),
    /// A layer is prefetched, and there is one buffer.
    NoOverlap,
    /// The layer is in no buffer: it was not staged in this chunk, or was released before.
    NotStaged(u32),
    /// The layer's buffer was waited for before.
    NotReady(u32),
    /// The layer's buffer was not waited for.
    NotInUse(u32),
    /// Buffer and layer: to be staged into, or to end the chunk, and not released.
    NotReleased(usize, u32),
    /// An import into a cache that has residents.
    NotEmpty,
    /// Index of the first expert that an import names a second time.
    NamedTwice(usize),
}

/// The model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    expert_count: u32,
    pool_of_layer: Vec<Option<u32>>,
    pools: Vec<Vec<Slot>>,
    step: u64,
    pinned: BTreeSet<Expert>,
    /// Slots that every pool was to keep for others when experts were pinned last.
    unpinned: u32,
    /// Step that last asked for an expert in a hybrid decode; missing: never.
    active: BTreeMap<Expert, u64>,
    /// Why an expert is in no slot; missing: it is in one, or never was in one and never was asked for.
    causes: BTreeMap<Expert, Cause>,
    histogram: BTreeMap<Expert, u64>,
    carried: BTreeMap<u32, Carried>,
    stats: BTreeMap<(u32, Phase), Stats>,
    /// A layer's verify step that waits for its acceptance.
    verified: BTreeMap<u32, verify::Verified>,
    /// A layer's last committed admission, if it had a token and nothing has ended its memory.
    remembered: BTreeMap<u32, step::Remembered>,
    /// Slots that rows are on their way to, as `(pool, slot)`.
    in_flight: BTreeMap<(u32, u32), flight::Flown>,
    /// Flights there have been.
    flights: u64,
    late: LateStats,
    /// What hints named and came to.
    hints: hint::Hints,
    /// The hybrid step that was the last thing to happen.
    offered: Option<u64>,
    chunk: Option<chunk::Chunk>,
    /// `None`: a resident is worth its stamp.
    scores: Option<Scores>,
    open: Option<Open>,
}

/// What is neither committed nor aborted.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Open {
    Step(Box<step::Pending>),
    /// An answer given before, under the same token.
    Repeat {
        pool: u32,
        answer: step::Answer,
    },
    Import(Vec<Placed>),
}

impl Reference {
    /// Empty pools of the given sizes, where every layer has a pool.
    pub fn new(expert_count: u32, pool_of_layer: &[u32], pool_sizes: &[u32]) -> Self {
        let pools: Vec<Option<u32>> = pool_of_layer.iter().copied().map(Some).collect();
        Self::with_pools(expert_count, &pools, pool_sizes)
    }

    /// Empty pools of the given sizes; a layer may have none.
    pub fn with_pools(expert_count: u32, pool_of_layer: &[Option<u32>], pool_sizes: &[u32]) -> Self {
        Self {
            expert_count,
            pool_of_layer: pool_of_layer.to_vec(),
            pools: pool_sizes.iter().map(|&size| vec![Slot::default(); size as usize]).collect(),
            step: 0,
            pinned: BTreeSet::new(),
            unpinned: 0,
            active: BTreeMap::new(),
            causes: BTreeMap::new(),
            histogram: BTreeMap::new(),
            carried: BTreeMap::new(),
            stats: BTreeMap::new(),
            verified: BTreeMap::new(),
            remembered: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            flights: 0,
            late: LateStats::default(),
            hints: hint::Hints::default(),
            offered: None,
            chunk: None,
            scores: None,
            open: None,
        }
    }

    /// Chooses victims by another rule, which starts with nothing counted.
    pub fn set_eviction(&mut self, rule: Eviction) {
        self.assert_closed();
        self.scores = Scores::new(rule, self.pool_of_layer.len());
    }

    /// What victims go by beside stamps, where there is something.
    pub fn scores(&self) -> Option<&Scores> {
        self.scores.as_ref()
    }

    /// The rule by which victims are chosen.
    pub fn eviction(&self) -> Eviction {
        self.scores.as_ref().map_or(Eviction::Lru, Scores::rule)
    }

    /// The slot of an expert.
    pub fn slot_of(&self, layer: u32, expert: u32) -> Option<u32> {
        let slots = &self.pools[self.pool_of_layer[layer as usize]? as usize];
        slots.iter().position(|slot| slot.owner == Some((layer, expert))).map(|slot| slot as u32)
    }

    /// `(layer, expert)` in a slot.
    pub fn owner(&self, pool: u32, slot: u32) -> Option<(u32, u32)> {
        self.pools[pool as usize][slot as usize].owner
    }

    /// Step that last used a slot; 0 if it is free.
    pub fn stamp(&self, pool: u32, slot: u32) -> u64 {
        self.pools[pool as usize][slot as usize].stamp
    }

    /// Step that last asked for an expert, as the order of fetches sees it; 0 if none did.
    pub fn active(&self, layer: u32, expert: u32) -> u64 {
        self.active.get(&(layer, expert)).copied().unwrap_or(0)
    }

    /// What a layer's steps have left over of a fetch.
    pub fn carried(&self, layer: u32) -> Carried {
        self.carried.get(&layer).copied().unwrap_or_default()
    }

    /// Why an expert is in no slot; `None` if it is in one.
    pub fn cause(&self, layer: u32, expert: u32) -> Option<Cause> {
        match self.slot_of(layer, expert) {
            Some(_) => None,
            None => Some(self.causes.get(&(layer, expert)).copied().unwrap_or(Cause::Cold)),
        }
    }

    /// Every expert that has a cause, with it; the others that are in no slot are [`Cause::Cold`].
    pub fn causes(&self) -> impl Iterator<Item = ((u32, u32), Cause)> + '_ {
        self.causes.iter().map(|(&expert, &cause)| (expert, cause))
    }

    /// The counts of a layer's steps of one phase.
    pub fn stats(&self, layer: u32, phase: Phase) -> Stats {
        self.stats.get(&(layer, phase)).copied().unwrap_or_default()
    }

    /// How often committed steps routed to an expert, duplicates included.
    pub fn route_count(&self, layer: u32, expert: u32) -> u64 {
        self.histogram.get(&(layer, expert)).copied().unwrap_or(0)
    }

    /// Whether an expert is marked, resident or not.
    pub fn is_pinned(&self, layer: u32, expert: u32) -> bool {
        self.pinned.contains(&(layer, expert))
    }

    /// The number of the last step.
    pub fn step_counter(&self) -> u64 {
        self.step
    }

    /// Lets the next step have the number after this one, so that a test can reach the end of the numbers.
    pub fn set_step_counter(&mut self, step: u64) {
        assert!(self.step <= step && step <= LAST_STEP, "steps count up");
        self.offered = None;
        self.step = step;
    }

    /// The residency goes elsewhere and comes back. Answers and what could be fetched later are forgotten, and open hints
    /// end. Whether it can: nothing goes where rows are on their way or a chunk is open.
    pub fn carry_over(&mut self) -> bool {
        if self.chunk.is_some() || !self.in_flight.is_empty() {
            return false;
        }
        self.cancel_hint(0);
        self.remembered.clear();
        self.offered = None;
        true
    }

    /// The slots at the start of a pool that an open chunk has borrowed.
    pub fn withheld(&self, pool: u32) -> u32 {
        match self.chunk.as_ref().and_then(|chunk| chunk.stable_from.as_ref()) {
            Some(stable_from) => stable_from[pool as usize],
            None => 0,
        }
    }

    /// The slots of each pool.
    pub fn pool_sizes(&self) -> Vec<u32> {
        self.pools.iter().map(|slots| slots.len() as u32).collect()
    }

    /// Holds the model to what must be so after everything.
    ///
    /// # Panics
    ///
    /// If a slot is half free, holds an expert of another pool or one that another slot holds, or is withheld and not
    /// free; or if a row is on its way to where it cannot be.
    pub fn check(&self) {
        let mut seen = BTreeSet::new();
        for (pool, slots) in self.pools.iter().enumerate() {
            for (index, slot) in slots.iter().enumerate() {
                assert!(slot.stamp <= self.step, "pool {pool} slot {index}: a stamp to come");
                let is_used = slot.owner.is_some() || self.is_slot_in_flight(pool as u32, index as u32);
                assert_eq!(is_used, slot.stamp > 0, "pool {pool} slot {index}: half free");
                let Some((layer, expert)) = slot.owner else { continue };
                assert!(expert < self.expert_count && seen.insert((layer, expert)), "{layer} {expert}: twice");
                assert_eq!(self.pool_of_layer[layer as usize], Some(pool as u32), "{layer} {expert}: astray");
                assert!(!self.causes.contains_key(&(layer, expert)), "{layer} {expert}: here and gone");
                assert!(index as u32 >= self.withheld(pool as u32), "pool {pool} slot {index}: withheld");
            }
        }
        self.check_flights();
        self.check_hints();
    }

    /// The pool of a layer that exists and has one.
    fn pool_of(&self, layer: u32) -> Result<u32, Refusal> {
        let pool = self.pool_of_layer.get(layer as usize).ok_or(Refusal::NoLayer(layer))?;
        pool.ok_or(Refusal::NoSlots(layer))
    }

    /// Whether every one of a list of experts exists and may have a slot.
    fn check_places(&self, experts: &[Expert]) -> Result<(), Refusal> {
        for (index, &(layer, expert)) in experts.iter().enumerate() {
            self.pool_of(layer)?;
            if expert >= self.expert_count {
                return Err(Refusal::NoExpert(index));
            }
        }
        Ok(())
    }

    /// The first pool in which marked experts would leave fewer slots than are to stay for others.
    fn check_room(
        marked: &BTreeSet<Expert>,
        unpinned: u32,
        pool_of_layer: &[Option<u32>],
        pool_sizes: &[u32],
    ) -> Result<(), Refusal> {
        for (pool, &size) in (0..).zip(pool_sizes) {
            let needed = marked.iter().filter(|&&(layer, _)| pool_of_layer[layer as usize] == Some(pool)).count();
            let given = size.saturating_sub(unpinned) as usize;
            if needed > given {
                return Err(Refusal::TooManyPinned(pool, needed, given));
            }
        }
        Ok(())
    }

    /// Whether every one of a list of experts exists.
    fn check_experts(&self, experts: &[Expert]) -> Result<(), Refusal> {
        for (index, &(layer, expert)) in experts.iter().enumerate() {
            if layer as usize >= self.pool_of_layer.len() {
                return Err(Refusal::NoLayer(layer));
            }
            if expert >= self.expert_count {
                return Err(Refusal::NoExpert(index));
            }
        }
        Ok(())
    }

    fn check_counter(&self) -> Result<(), Refusal> {
        if self.step == LAST_STEP { Err(Refusal::OutOfSteps) } else { Ok(()) }
    }

    /// # Panics
    ///
    /// If a plan is open: a test then drives the model as no caller can drive the cache.
    fn assert_closed(&self) {
        assert!(self.open.is_none(), "a plan is open");
    }

    /// Counts what a step of decode used, or what was accepted.
    fn count_uses(&mut self, layer: u32, routes: &[u32], continues: bool) {
        if let Some(scores) = &mut self.scores {
            scores.count(layer, routes, continues);
        }
    }

    /// Puts slots in the order in which they go at a step of a layer: free ones, those of stamp 1, the others by what
    /// their residents are worth; ties by slot.
    fn sort_victims(&self, pool: u32, layer: u32, victims: &mut [u32]) {
        let worth = |slot: u32| match (self.stamp(pool, slot), &self.scores) {
            (0, _) => (0, 0),
            (1, _) => (1, 0),
            (stamp, None) => (2, stamp),
            (_, Some(scores)) => {
                let (of, expert) = self.owner(pool, slot).expect("no row is on its way to a victim");
                (2, scores.score(of, expert, layer))
            }
        };
        victims.sort_by_cached_key(|&slot| (worth(slot), slot));
    }

    /// Gives a slot to an expert that has none, and says who lost it.
    fn place(&mut self, pool: u32, slot: u32, expert: Expert, stamp: u64) -> Option<Expert> {
        let place = &mut self.pools[pool as usize][slot as usize];
        let old = place.owner;
        *place = Slot { stamp, owner: Some(expert) };
        if let Some(old) = old {
            self.causes.insert(old, Cause::Capacity);
        }
        self.causes.remove(&expert);
        old
    }

    /// Frees a slot, and says who lost it. One in flight stays so, and its row is nobody's.
    fn free(&mut self, pool: u32, slot: u32, cause: Cause) -> Option<Expert> {
        if self.is_slot_in_flight(pool, slot) {
            let boarded = self.owner(pool, slot);
            self.lose(pool, slot, cause);
            return boarded;
        }
        self.lose_hinted(pool, slot);
        let place = &mut self.pools[pool as usize][slot as usize];
        let old = place.owner;
        *place = Slot::default();
        if let Some(old) = old {
            self.causes.insert(old, cause);
        }
        old
    }
}
