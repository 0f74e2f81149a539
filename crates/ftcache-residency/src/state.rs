//! The residency as plain numbers: what tables in device memory begin with, and what is read back from them.
//!
//! Kernels decide there as the host does here, so one of both has the residency at a time. It is taken out of the cache
//! ([`Cache::state`]), goes on in the tables, and comes back ([`Cache::set_state`]) as if the steps in between had been
//! admitted here. Nothing that comes back is believed: all of it is checked before anything changes, since half a
//! residency would be hits on rows that are not there.

use std::error::Error;
use std::fmt;

use ftcache_policy::{
    Carried, Eviction, ExpertId, FlatExpertId, LayerId, PoolId, Recency, ScoreNumbers, ScoresError, SlotId,
};

use crate::map::{ABSENT_FIRST, Absence, NOBODY, Place};
use crate::pool::Pool;
use crate::{Cache, Phase, Stats};

/// The residency in the layout that kernels use (`kernels/abi.h`, `Tables`). Experts are flat, and slots are counted
/// over all pools, but for the places of experts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// The last step.
    pub step: u64,
    /// `places[flat expert]`: its slot, local to its layer's pool, or [`ABSENT_FIRST`](Self::ABSENT_FIRST) plus an
    /// [`Absence`].
    pub places: Vec<u32>,
    /// `active[flat expert]`: the last hybrid step that used it; 0 for none.
    pub active: Vec<u64>,
    /// `routed[flat expert]`: routes to it.
    pub routed: Vec<u64>,
    /// `marked[flat expert]`: 1 iff it is pinned once in a slot.
    pub marked: Vec<u8>,
    /// `carried[layer]`: 65,536ths of a miss, fewer than 65,536.
    pub carried: Vec<u32>,
    /// `stats[(layer * Phase::ALL.len() + phase) * Stats::COUNTER_COUNT + counter]`, counters as [`Stats::counters`]
    /// has them.
    pub stats: Vec<u64>,
    /// `stamps[slot]`; 0 iff it is free.
    pub stamps: Vec<u64>,
    /// `owners[slot]`: the flat expert in it, or [`NOBODY`](Self::NOBODY) iff it is free.
    pub owners: Vec<u32>,
    /// `pinned[slot]`: 1 iff it is in use and its owner is marked.
    pub pinned: Vec<u8>,
    /// `pools[pool]`.
    pub pools: Vec<PoolState>,
    /// What victims go by under other rules than LRU.
    pub scores: Option<ScoreNumbers>,
}

impl State {
    /// A place from here on is an absence.
    pub const ABSENT_FIRST: u32 = ABSENT_FIRST;

    /// The owner of a slot that is free.
    pub const NOBODY: u32 = NOBODY.get();
}

/// What a [`State`] has of one pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolState {
    /// Number of its slot 0 among the slots of all pools.
    pub first: u32,
    /// Its slots.
    pub slot_count: u32,
    /// Slots of it that are pinned.
    pub pinned_count: u32,
    /// Experts of its layers that are marked, in a slot or not.
    pub marked_count: u32,
    /// Slots below this are free and not handed out; 0 where no chunk is open.
    pub withheld: u32,
}

/// A residency that cannot leave the cache, or cannot come to it. Nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StateError {
    /// Rows are on their way, of which a state knows nothing.
    InFlight {
        /// The first pool with such slots.
        pool: PoolId,
        /// How many it has.
        in_flight_count: u32,
    },
    /// A prefill chunk is open.
    ChunkOpen,
    /// Scores under a rule without them, or none under one with.
    OtherRule {
        /// The cache's rule.
        eviction: Eviction,
    },
    /// Scores that are none of the cache's rule and model.
    Scores {
        /// What is wrong with them.
        error: ScoresError,
    },
    /// An array of another length, which is one for another model or other pools.
    Length {
        /// The array.
        array: &'static str,
        /// Its length.
        given: usize,
        /// What it is to be.
        needed: usize,
    },
    /// A number of a pool that is another.
    OtherPool {
        /// The pool.
        pool: PoolId,
        /// Which of its numbers.
        number: &'static str,
        /// What it is.
        given: u32,
        /// What it is to be.
        wanted: u32,
    },
    /// A step before the cache's, so that stamps would come again.
    EarlierStep {
        /// The step.
        given: u64,
        /// The cache's.
        had: u64,
    },
    /// A step beyond the last that can be counted.
    BeyondLastStep {
        /// The step.
        given: u64,
        /// The last.
        last: u64,
    },
    /// A mark that the cache has otherwise: kernels change none.
    OtherMark {
        /// The layer.
        layer: LayerId,
        /// The expert.
        expert: ExpertId,
        /// The mark.
        given: u8,
        /// The cache's.
        had: u8,
    },
    /// An expert was active in a step that has not been.
    ActiveLater {
        /// The layer.
        layer: LayerId,
        /// The expert.
        expert: ExpertId,
        /// When it was active.
        active: u64,
        /// The last step.
        step: u64,
    },
    /// A place that is neither a slot nor an absence.
    UnknownPlace {
        /// The layer.
        layer: LayerId,
        /// The expert.
        expert: ExpertId,
        /// The place.
        place: u32,
    },
    /// An expert whose row is said to be on its way.
    RowInFlight {
        /// The layer.
        layer: LayerId,
        /// The expert.
        expert: ExpertId,
    },
    /// An expert is in a slot, of which its layer holds none.
    NoSlots {
        /// The layer.
        layer: LayerId,
        /// The expert.
        expert: ExpertId,
        /// The slot.
        slot: SlotId,
    },
    /// An expert is in a slot that its pool does not have.
    UnknownSlot {
        /// The layer.
        layer: LayerId,
        /// The expert.
        expert: ExpertId,
        /// The slot.
        slot: SlotId,
        /// The pool of the layer.
        pool: PoolId,
        /// Its slots.
        slot_count: u32,
    },
    /// An expert is in a slot that another owns, or nobody.
    NotItsOwner {
        /// The expert.
        expert: FlatExpertId,
        /// The pool of the layer.
        pool: PoolId,
        /// The slot.
        slot: SlotId,
        /// Its owner, flat.
        owner: u32,
    },
    /// A slot with a stamp and no owner, or with an owner and no stamp.
    HalfInUse {
        /// The pool.
        pool: PoolId,
        /// The slot.
        slot: SlotId,
        /// Its stamp.
        stamp: u64,
        /// Its owner, flat.
        owner: u32,
    },
    /// A stamp of a step that has not been.
    StampLater {
        /// The pool.
        pool: PoolId,
        /// The slot.
        slot: SlotId,
        /// Its stamp.
        stamp: u64,
        /// The last step.
        step: u64,
    },
    /// An owner that the model does not have.
    UnknownOwner {
        /// The pool.
        pool: PoolId,
        /// The slot.
        slot: SlotId,
        /// Its owner, flat.
        owner: u32,
        /// Flat ids of the model.
        expert_count: usize,
    },
    /// A slot whose owner is elsewhere.
    OwnerElsewhere {
        /// The pool.
        pool: PoolId,
        /// The slot.
        slot: SlotId,
        /// Its owner.
        owner: FlatExpertId,
        /// The pool of the owner's layer.
        owner_pool: Option<PoolId>,
        /// The owner's place.
        place: u32,
    },
    /// A slot that is pinned though its owner is not marked, or not pinned though it is.
    OtherPin {
        /// The pool.
        pool: PoolId,
        /// The slot.
        slot: SlotId,
        /// Whether it is pinned.
        given: u8,
        /// Whether it is to be.
        wanted: u8,
    },
    /// A layer carries a whole miss or more.
    Carried {
        /// The layer.
        layer: LayerId,
        /// What it carries, in 65,536ths.
        given: u32,
    },
}

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InFlight { pool, in_flight_count } => {
                write!(f, "pool {pool} has {in_flight_count} slots in flight; a state has 0")
            }
            Self::ChunkOpen => write!(f, "a prefill chunk is open"),
            Self::OtherRule { eviction } => {
                let given = if *eviction == Eviction::Lru { "with" } else { "without" };
                write!(f, "a state {given} scores; the cache's eviction is {eviction}")
            }
            Self::Scores { error } => write!(f, "scores: {error}"),
            Self::Length { array, given, needed } => {
                write!(f, "{array}: their number is {given} and should be {needed}")
            }
            Self::OtherPool { pool, number, given, wanted } => {
                write!(f, "pool {pool}: {number} is {given} and should be {wanted}")
            }
            Self::EarlierStep { given, had } => write!(f, "a state of step {given}; the cache is at step {had}"),
            Self::BeyondLastStep { given, last } => {
                write!(f, "a state of step {given}; step {last} is the last that can be counted")
            }
            Self::OtherMark { layer, expert, given, had } => {
                write!(f, "layer {layer} expert {expert}: its mark is {given}; the cache's is {had}")
            }
            Self::ActiveLater { layer, expert, active, step } => {
                write!(f, "layer {layer} expert {expert} was active in step {active}; the last is {step}")
            }
            Self::UnknownPlace { layer, expert, place } => write!(
                f,
                "layer {layer} expert {expert}: {place:#010x} is neither a slot nor one of {} absences from \
                 {ABSENT_FIRST:#010x} on",
                Absence::COUNT
            ),
            Self::RowInFlight { layer, expert } => {
                write!(f, "layer {layer} expert {expert}: its row is said to be on its way")
            }
            Self::NoSlots { layer, expert, slot } => {
                write!(f, "layer {layer} expert {expert} is in slot {slot}; its layer holds 0 slots")
            }
            Self::UnknownSlot { layer, expert, slot, pool, slot_count } => {
                write!(f, "layer {layer} expert {expert} is in slot {slot}; pool {pool} has {slot_count} slots")
            }
            Self::NotItsOwner { expert, pool, slot, owner } => {
                write!(f, "flat expert {expert} is in slot {slot} of pool {pool}, which has {}", Owner(*owner))
            }
            Self::HalfInUse { pool, slot, stamp, owner } => {
                write!(f, "pool {pool} slot {slot} has stamp {stamp} and {}", Owner(*owner))
            }
            Self::StampLater { pool, slot, stamp, step } => {
                write!(f, "pool {pool} slot {slot} has stamp {stamp}; the last step is {step}")
            }
            Self::UnknownOwner { pool, slot, owner, expert_count } => {
                write!(f, "pool {pool} slot {slot} has owner {owner}, which is no expert of 0..{expert_count}")
            }
            Self::OwnerElsewhere { pool, slot, owner, owner_pool, place } => {
                write!(f, "pool {pool} slot {slot} has owner {owner}, which is in ")?;
                match owner_pool.filter(|_| *place < SlotId::LIMIT) {
                    Some(owner_pool) => write!(f, "slot {place} of pool {owner_pool}"),
                    None => write!(f, "no slot"),
                }
            }
            Self::OtherPin { pool, slot, given, wanted } => {
                write!(f, "pool {pool} slot {slot}: its pin is {given}; by its owner's mark it is {wanted}")
            }
            Self::Carried { layer, given } => {
                write!(f, "layer {layer} carries {given}/65536 of a miss; less than a whole one is carried")
            }
        }
    }
}

impl Error for StateError {}

/// The owner of a slot, as it is read.
struct Owner(u32);

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == State::NOBODY { write!(f, "no owner") } else { write!(f, "owner {}", self.0) }
    }
}

impl Cache {
    /// The residency, and all else that kernels go on with.
    ///
    /// Not part of it are answers under step tokens and drafts that wait to be accepted, of which kernels know nothing,
    /// and what chunks and later copies came to.
    ///
    /// # Errors
    ///
    /// Rows on their way to slots; an open prefill chunk.
    pub fn state(&self) -> Result<State, StateError> {
        self.check_at_rest()?;
        let experts = || (0..self.active.len()).map(FlatExpertId::from_index);
        let slots = || {
            self.pools.iter().flat_map(|pool| (0..pool.recency.slot_count()).map(move |slot| (pool, SlotId::new(slot))))
        };
        Ok(State {
            step: self.step,
            places: experts().map(|expert| self.map.place(expert).number()).collect(),
            active: self.active.clone(),
            routed: experts().map(|expert| self.map.routed(expert)).collect(),
            marked: experts().map(|expert| u8::from(self.pins.is_marked(expert))).collect(),
            carried: self.carried.iter().map(|carried| u32::from(carried.q16())).collect(),
            stats: self.tally.stats().iter().flat_map(Stats::counters).collect(),
            stamps: slots().map(|(pool, slot)| pool.recency.stamp(slot)).collect(),
            owners: slots().map(|(pool, slot)| self.map.expert_of(pool.first, slot).unwrap_or(NOBODY).get()).collect(),
            pinned: slots().map(|(pool, slot)| u8::from(self.is_pinned_by_mark(pool, slot))).collect(),
            pools: self.pools.iter().map(|pool| self.pool_state(pool, self.pinned_by_marks(pool))).collect(),
            scores: self.ranking.as_ref().map(|ranking| ranking.scores().numbers()),
        })
    }

    /// Goes on from a state: every later step decides as if those between had been admitted here.
    ///
    /// No answer under a step token is given again, nothing is fetched later for a step before, and open hints are
    /// cancelled. Drafts that waited to be accepted still do.
    ///
    /// # Errors
    ///
    /// A state of another model or rule, of other pools or with other marks, of a step before the cache's, or that
    /// contradicts itself, with the first thing found wrong; rows on their way; an open prefill chunk. The cache is then
    /// as it was.
    pub fn set_state(&mut self, state: &State) -> Result<(), StateError> {
        self.check_state(state)?;
        self.cancel_hints();
        self.step = state.step;
        let place = |&place: &u32| Place::from_number(place).expect("places are checked");
        let experts = state.places.iter().map(place).zip(state.routed.iter().copied());
        self.map.set(experts, state.owners.iter().copied().map(FlatExpertId::new));
        for index in 0..self.pools.len() {
            let pool = &mut self.pools[index];
            let stamps = (0..).map(SlotId::new).zip(state.stamps[pool.slots()].iter().copied());
            let in_use: Vec<(SlotId, u64)> = stamps.filter(|&(_, stamp)| stamp > 0).collect();
            pool.recency = Recency::with_stamps(pool.recency.slot_count(), &in_use);
            self.pin_residents(PoolId::from_index(index));
        }
        self.active.copy_from_slice(&state.active);
        let carried = |&carried: &u32| Carried::from_q16(u16::try_from(carried).expect("what is carried is checked"));
        self.carried = state.carried.iter().map(carried).collect();
        let (stats, _) = state.stats.as_chunks();
        self.tally.set(stats.iter().copied().map(Stats::from_counters));
        if let (Some(ranking), Some(scores)) = (&mut self.ranking, &state.scores) {
            ranking.set_scores(scores);
        }
        self.forget_answers();
        Ok(())
    }

    /// Of open hints a state knows nothing: what they brought is resident like others.
    fn is_pinned_by_mark(&self, pool: &Pool, slot: SlotId) -> bool {
        self.map.expert_of(pool.first, slot).is_some_and(|owner| self.pins.is_marked(owner))
    }

    fn pinned_by_marks(&self, pool: &Pool) -> u32 {
        (0..pool.recency.slot_count()).filter(|&slot| self.is_pinned_by_mark(pool, SlotId::new(slot))).count() as u32
    }

    /// Whether nothing is going on that a state has no numbers for.
    fn check_at_rest(&self) -> Result<(), StateError> {
        if self.has_open_chunk() {
            return Err(StateError::ChunkOpen);
        }
        for pool in &self.pools {
            let in_flight_count = self.in_flight_count(pool.id);
            if in_flight_count > 0 {
                return Err(StateError::InFlight { pool: pool.id, in_flight_count });
            }
        }
        Ok(())
    }

    fn pool_state(&self, pool: &Pool, pinned_count: u32) -> PoolState {
        PoolState {
            first: pool.first,
            slot_count: pool.recency.slot_count(),
            pinned_count,
            marked_count: self.pinned_count(pool.id),
            withheld: pool.recency.withheld(),
        }
    }

    fn check_state(&self, state: &State) -> Result<(), StateError> {
        self.check_at_rest()?;
        self.check_lengths(state)?;
        let (given, had, last) = (state.step, self.step, Recency::LAST_STEP);
        if given < had {
            return Err(StateError::EarlierStep { given, had });
        }
        if given > last {
            return Err(StateError::BeyondLastStep { given, last });
        }
        self.pools.iter().try_for_each(|pool| self.check_pool(state, pool))?;
        (0..self.active.len()).try_for_each(|expert| self.check_expert(state, FlatExpertId::from_index(expert)))?;
        for pool in &self.pools {
            (0..pool.recency.slot_count()).try_for_each(|slot| self.check_slot(state, pool, SlotId::new(slot)))?;
        }
        if let Some(layer) = state.carried.iter().position(|&carried| carried > u32::from(u16::MAX)) {
            return Err(StateError::Carried { layer: LayerId::from_index(layer), given: state.carried[layer] });
        }
        match (&self.ranking, &state.scores) {
            (None, None) => Ok(()),
            (Some(ranking), Some(scores)) => {
                ranking.scores().check_numbers(scores).map_err(|error| StateError::Scores { error })
            }
            _ => Err(StateError::OtherRule { eviction: self.eviction() }),
        }
    }

    fn check_lengths(&self, state: &State) -> Result<(), StateError> {
        let (layers, experts) = (self.layer_count(), self.active.len());
        let slots = self.pools.last().map_or(0, |pool| pool.slots().end);
        let lengths = [
            ("places", state.places.len(), experts),
            ("active", state.active.len(), experts),
            ("routed", state.routed.len(), experts),
            ("marked", state.marked.len(), experts),
            ("carried", state.carried.len(), layers),
            ("stats", state.stats.len(), layers * Phase::ALL.len() * Stats::COUNTER_COUNT),
            ("stamps", state.stamps.len(), slots),
            ("owners", state.owners.len(), slots),
            ("pinned", state.pinned.len(), slots),
            ("pools", state.pools.len(), self.pool_count()),
        ];
        match lengths.into_iter().find(|(_, given, needed)| given != needed) {
            Some((array, given, needed)) => Err(StateError::Length { array, given, needed }),
            None => Ok(()),
        }
    }

    fn check_pool(&self, state: &State, pool: &Pool) -> Result<(), StateError> {
        let pinned_count = state.pinned[pool.slots()].iter().filter(|&&pinned| pinned > 0).count() as u32;
        let (given, wanted) = (state.pools[pool.id.index()], self.pool_state(pool, pinned_count));
        let numbers = [
            ("first", given.first, wanted.first),
            ("slot_count", given.slot_count, wanted.slot_count),
            ("pinned_count", given.pinned_count, wanted.pinned_count),
            ("marked_count", given.marked_count, wanted.marked_count),
            ("withheld", given.withheld, wanted.withheld),
        ];
        match numbers.into_iter().find(|(_, given, wanted)| given != wanted) {
            Some((number, given, wanted)) => Err(StateError::OtherPool { pool: pool.id, number, given, wanted }),
            None => Ok(()),
        }
    }

    fn check_expert(&self, state: &State, flat: FlatExpertId) -> Result<(), StateError> {
        let (layer, expert) = self.map.layer_and_expert(flat);
        let (given, had) = (state.marked[flat.index()], u8::from(self.pins.is_marked(flat)));
        if given != had {
            return Err(StateError::OtherMark { layer, expert, given, had });
        }
        let (active, step) = (state.active[flat.index()], state.step);
        if active > step {
            return Err(StateError::ActiveLater { layer, expert, active, step });
        }
        let place = state.places[flat.index()];
        let known = Place::from_number(place).ok_or(StateError::UnknownPlace { layer, expert, place })?;
        match known.absence() {
            Some(Absence::InFlight) => return Err(StateError::RowInFlight { layer, expert }),
            Some(_) => return Ok(()),
            None => {}
        }
        let slot = known.slot();
        let pool = self.pool_of_layer[layer.index()].ok_or(StateError::NoSlots { layer, expert, slot })?;
        let slots = self.pools[pool.index()].slots();
        if slot.index() >= slots.len() {
            return Err(StateError::UnknownSlot { layer, expert, slot, pool, slot_count: slots.len() as u32 });
        }
        let owner = state.owners[slots.start + slot.index()];
        if owner == flat.get() { Ok(()) } else { Err(StateError::NotItsOwner { expert: flat, pool, slot, owner }) }
    }

    /// Of a slot, once all experts are checked.
    fn check_slot(&self, state: &State, &Pool { id: pool, first, .. }: &Pool, slot: SlotId) -> Result<(), StateError> {
        let index = first as usize + slot.index();
        let (stamp, owner, given, step) = (state.stamps[index], state.owners[index], state.pinned[index], state.step);
        if (stamp == 0) != (owner == State::NOBODY) {
            return Err(StateError::HalfInUse { pool, slot, stamp, owner });
        }
        if stamp > step {
            return Err(StateError::StampLater { pool, slot, stamp, step });
        }
        let mut wanted = 0;
        if owner != State::NOBODY {
            let (owner, expert_count) = (FlatExpertId::new(owner), self.active.len());
            let Some(&place) = state.places.get(owner.index()) else {
                return Err(StateError::UnknownOwner { pool, slot, owner: owner.get(), expert_count });
            };
            let owner_pool = self.pool_of_layer[self.map.layer_and_expert(owner).0.index()];
            if (owner_pool, place) != (Some(pool), slot.get()) {
                return Err(StateError::OwnerElsewhere { pool, slot, owner, owner_pool, place });
            }
            wanted = u8::from(self.pins.is_marked(owner));
        }
        if given == wanted { Ok(()) } else { Err(StateError::OtherPin { pool, slot, given, wanted }) }
    }
}
