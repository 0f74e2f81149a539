//! The cache and the model, side by side: each operation is asked of both.

use ftcache_policy::{Eviction, ExpertId, LayerId, PoolId, SlotId};
use ftcache_residency::{
    Cache, ChunkReport, FetchOrder, Keep, Misses, Parts, Placement, Plan, PoolsError, Residents, SnapshotError,
    StagePlan, StateError, Step,
};
use ftcache_testkit::reference::{self, Buffers, Order, Reference, Refusal};

use crate::compare::{self, Digests, Outcome, Slots, differ, same};
use crate::flights::Flights;
use crate::operations::{End, Operation, Shape};

/// Of the model whose residents are exported.
const FINGERPRINT: u64 = 0x0123_4567_89ab_cdef;

#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) cache: Cache,
    pub(crate) model: Reference,
    pub(crate) expert_count: u32,
    pub(crate) pool_of_layer: Vec<Option<u32>>,
    eviction: Eviction,
    pub(crate) plan: Plan,
    pub(crate) parts: Parts,
    pub(crate) stage_plan: StagePlan,
    /// What the cache was given, and the model is given with each chunk.
    pub(crate) buffers: Option<Buffers>,
    /// Of the open chunk, and of all that have ended.
    pub(crate) chunk: ChunkReport,
    pub(crate) chunk_total: ChunkReport,
    pub(crate) exported: (Residents, Vec<(u32, u32)>),
    pub(crate) flights: Flights,
    /// Rebuilds that led to the cache.
    generation: u64,
    /// The model's, after the last operation.
    pub(crate) slots: Slots,
    pub(crate) digests: Digests,
}

/// An end of a ticket, whatever it is of.
macro_rules! end {
    ($ticket:expr, $end:expr) => {
        match $end {
            End::Commit => $ticket.commit(),
            End::Abort => $ticket.abort(),
            End::Drop => drop($ticket),
        }
    };
}
pub(crate) use end;

impl Pair {
    pub(crate) fn new(shape: &Shape) -> Self {
        let (cache, model) = empty(shape.expert_count, &shape.pool_of_layer, &shape.pool_sizes, shape.eviction);
        Self {
            exported: (cache.residents(FINGERPRINT), model.export()),
            slots: compare::slots(&model),
            cache,
            model,
            expert_count: shape.expert_count,
            pool_of_layer: shape.pool_of_layer.clone(),
            eviction: shape.eviction,
            plan: Plan::new(),
            parts: Parts::new(),
            stage_plan: StagePlan::new(),
            buffers: None,
            chunk: ChunkReport::default(),
            chunk_total: ChunkReport::default(),
            flights: Flights::default(),
            generation: 0,
            digests: Digests::default(),
        }
    }

    /// Asks both, and holds what they say and what they have become beside each other.
    pub(crate) fn apply(&mut self, operation: &Operation) -> Outcome {
        match operation {
            Operation::Ensure(step, end) => self.ensure(step, *end)?,
            Operation::Parts { step, ends, accepted } => self.in_parts(step, ends, accepted.as_deref())?,
            Operation::FetchLater { most, end } => self.fetch_later(*most, *end)?,
            Operation::Hint { layer, experts, most, end } => self.hint(*layer, experts, *most, *end)?,
            Operation::CancelHint(back) => self.cancel_hint(*back)?,
            Operation::Land { back, is_up } => self.land(*back, *is_up)?,
            Operation::Accept { layer, accepted } => self.accept(*layer, accepted)?,
            Operation::Pin { experts, unpinned } => {
                let ours = self.cache.pin(&ids(experts), *unpinned);
                let wanted = self.model.pin(experts, *unpinned);
                self.same_pins(ours, wanted, experts)?;
            }
            Operation::Unpin(experts) => {
                let ours = self.cache.unpin(&ids(experts));
                let wanted = self.model.unpin(experts);
                self.same_pins(ours, wanted, experts)?;
            }
            Operation::Forget { pool, slot } => {
                let pool = pool % self.slots.len() as u32;
                let slot = slot % self.slots[pool as usize].len() as u32;
                let lost = self.cache.forget(PoolId::new(pool), SlotId::new(slot));
                let lost = lost.map(|(layer, expert)| (layer.get(), expert.get()));
                same("who lost its slot", lost, self.model.forget(pool, slot))?;
            }
            Operation::ForgetLayer(layer) => match self.cache.forget_layer(LayerId::new(*layer)) {
                Ok(freed) => same("freed slots", freed, self.model.forget_layer(*layer))?,
                Err(error) => {
                    let is_known = self.pool_of_layer.get(*layer as usize).is_some();
                    let refusal = if is_known { Refusal::NoSlots(*layer) } else { Refusal::NoLayer(*layer) };
                    compare::same_error(error, refusal, *layer, &[], &self.model)?;
                }
            },
            Operation::Reset => {
                self.cache.reset();
                self.model.reset();
            }
            Operation::SetStaging { buffer_count, stable_from } => self.set_staging(*buffer_count, *stable_from)?,
            Operation::BeginChunk => self.begin_chunk()?,
            Operation::Prefetch(layer, end) => self.stage(*layer, *end, true)?,
            Operation::Materialize(layer, end) => self.stage(*layer, *end, false)?,
            Operation::Wait(layer) => {
                let ours = self.cache.wait(LayerId::new(*layer));
                let wanted = self.model.wait(*layer);
                self.same_staged("buffer to wait for", ours, wanted)?;
            }
            Operation::Release(layer) => {
                let ours = self.cache.release(LayerId::new(*layer));
                let wanted = self.model.release(*layer);
                self.same_staged("buffer to release", ours, wanted)?;
            }
            Operation::EndChunk => {
                let ours = self.cache.end_chunk();
                let wanted = self.model.end_chunk();
                self.end_chunk(ours, wanted)?;
            }
            Operation::AbandonChunk => {
                let ours = self.cache.abandon_chunk();
                let wanted = self.model.abandon_chunk();
                self.end_chunk(ours, wanted)?;
            }
            Operation::Rebuild { pool_of_layer, pool_sizes, is_warm, is_taken } => {
                self.rebuild(pool_of_layer, pool_sizes, *is_warm, *is_taken)?;
            }
            Operation::Export => {
                let residents = self.cache.residents(FINGERPRINT);
                let experts = self.model.export();
                let flat: Vec<u32> = experts.iter().map(|(layer, expert)| layer * self.expert_count + expert).collect();
                same("residents", residents.experts().iter().map(|expert| expert.get()).collect(), flat)?;
                same("residents from bytes", Residents::from_bytes(&residents.to_bytes()), Ok(residents.clone()))?;
                self.exported = (residents, experts);
            }
            Operation::Restart { pool_of_layer, pool_sizes } => {
                (self.cache, self.model) = empty(self.expert_count, pool_of_layer, pool_sizes, self.eviction);
                self.has_new_pools(pool_of_layer);
                self.generation = 0;
                self.plan = Plan::new();
                self.flights = Flights::default();
            }
            Operation::BringBack(end) => self.bring_back(*end)?,
            Operation::SkipTo(step) => {
                let step = self.model.step_counter().max((*step).min(reference::LAST_STEP));
                self.model.set_step_counter(step);
                same("step skipped to", self.cache.skip_to(step), step)?;
            }
            Operation::SetEviction(rule) => {
                self.cache.set_eviction(*rule).map_err(|error| error.to_string())?;
                self.model.set_eviction(*rule);
            }
            Operation::CarryOver => self.carry_over()?,
        }
        self.check()
    }

    pub(crate) fn check(&mut self) -> Outcome {
        self.cache.check()?;
        self.model.check();
        self.slots = compare::slots(&self.model);
        compare::same_state(&self.cache, &self.model, &self.pool_of_layer, &self.slots)?;
        same("generation", self.cache.generation(), self.generation)?;
        same("chunks that have ended", self.cache.chunk_total(), self.chunk_total)?;
        self.digests.note(&self.cache, &self.slots, self.model.scores())
    }

    pub(crate) fn ensure(&mut self, step: &reference::Step, end: End) -> Outcome {
        let routes: Vec<ExpertId> = step.routes.iter().copied().map(ExpertId::new).collect();
        let ours = self.cache.ensure(our_step(step), &routes, &mut self.plan).map(|ticket| end!(ticket, end));
        let wanted = self.model.admit(step);
        let awaits = wanted
            .as_ref()
            .ok()
            .and_then(|answer| self.model.awaits(step.layer, &answer.slots, !answer.copies.is_empty()));
        match (ours, wanted) {
            (Ok(()), Ok(answer)) => {
                if end == End::Commit {
                    self.model.commit()
                } else {
                    self.model.abort()
                }
                self.flights.admitted(step, &answer);
                let pool = self.pool_of_layer[step.layer as usize].expect("the step was admitted");
                same("flight that is awaited", self.plan.awaits(), awaits)?;
                compare::same_plan(&self.plan, step, pool, &answer, &self.slots, self.expert_count)
            }
            (Err(error), Err(refusal)) => compare::same_error(error, refusal, step.layer, &step.routes, &self.model),
            (ours, wanted) => {
                if wanted.is_ok() {
                    self.model.abort();
                }
                differ(ours, wanted)
            }
        }
    }

    pub(crate) fn accept(&mut self, layer: u32, accepted: &[u32]) -> Outcome {
        let experts: Vec<ExpertId> = accepted.iter().copied().map(ExpertId::new).collect();
        let ours = self.cache.accept(LayerId::new(layer), &experts);
        match (ours, self.model.accept(layer, accepted)) {
            (Ok(()), Ok(())) => Ok(()),
            (Err(error), Err(refusal)) => compare::same_error(error, refusal, layer, accepted, &self.model),
            (ours, wanted) => differ(ours, wanted),
        }
    }

    fn same_pins(
        &self,
        ours: Result<(), ftcache_residency::PinError>,
        wanted: Result<(), Refusal>,
        experts: &[(u32, u32)],
    ) -> Outcome {
        match (ours, wanted) {
            (Ok(()), Ok(())) => Ok(()),
            (Err(error), Err(refusal)) => compare::same_pin_error(error, refusal, experts, &self.model),
            (ours, wanted) => differ(ours, wanted),
        }
    }

    fn rebuild(&mut self, layers: &[Option<u32>], sizes: &[u32], is_warm: bool, is_taken: bool) -> Outcome {
        let keep = if is_warm { Keep::WhatFits } else { Keep::Nothing };
        let ours = self.cache.rebuilt_with_pools(&pool_ids(layers), sizes, keep);
        let mut after = self.model.clone();
        match (ours, after.rebuild(layers, sizes, is_warm)) {
            (Ok((cache, moves)), Ok(wanted)) => {
                let place = |(pool, slot): (PoolId, SlotId)| (pool.get(), slot.get());
                let moved = |moved: &ftcache_residency::Move| reference::Moved {
                    layer: moved.layer.get(),
                    expert: moved.expert.get(),
                    from: place(moved.from),
                    to: place(moved.to),
                };
                same("moves", moves.iter().map(moved).collect(), wanted)?;
                if is_taken {
                    (self.cache, self.model) = (cache, after);
                    self.generation += 1;
                    self.has_new_pools(layers);
                }
                Ok(())
            }
            (Err(PoolsError::ChunkOpen), Err(Refusal::ChunkOpen)) => Ok(()),
            (Err(PoolsError::Pinned(error)), Err(refusal)) => compare::same_pin_error(error, refusal, &[], &self.model),
            (ours, wanted) => differ(ours.map(|_| ()), wanted),
        }
    }

    fn has_new_pools(&mut self, pool_of_layer: &[Option<u32>]) {
        self.pool_of_layer = pool_of_layer.to_vec();
        (self.buffers, self.chunk_total) = (None, ChunkReport::default());
    }

    fn carry_over(&mut self) -> Outcome {
        match (self.cache.state(), self.model.carry_over()) {
            (Ok(state), true) => {
                let digest = self.cache.digest();
                self.cache.set_state(&state).map_err(|error| error.to_string())?;
                same("state that came back", self.cache.state().as_ref(), Ok(&state))?;
                same("digest", self.cache.digest(), digest)
            }
            (Err(StateError::ChunkOpen | StateError::InFlight { .. }), false) => Ok(()),
            (ours, wanted) => differ(ours.map(|_| ()), wanted),
        }
    }

    fn bring_back(&mut self, end: End) -> Outcome {
        let (residents, experts) = &self.exported;
        let mut placements = Vec::new();
        let ours = self.cache.bring_back(residents, FINGERPRINT, &mut placements).map(|ticket| end!(ticket, end));
        match (ours, self.model.import(experts)) {
            (Ok(()), Ok(wanted)) => {
                if end == End::Commit {
                    self.model.commit()
                } else {
                    self.model.abort()
                }
                let placed = |placed: &Placement| reference::Placed {
                    layer: placed.layer.get(),
                    expert: placed.row.get(),
                    pool: placed.pool.get(),
                    slot: placed.slot.get(),
                };
                same("placements", placements.iter().map(placed).collect(), wanted)
            }
            (Err(SnapshotError::ChunkOpen), Err(Refusal::ChunkOpen)) => Ok(()),
            (Err(SnapshotError::NotEmpty { resident_count }), Err(Refusal::NotEmpty)) => {
                let in_use = self.slots.iter().flatten().filter(|(stamp, _)| *stamp > 0).count();
                same("slots in use", resident_count, in_use)
            }
            (Err(SnapshotError::LastStep(error)), Err(refusal)) => {
                compare::same_error(error, refusal, 0, &[], &self.model)
            }
            (ours, wanted) => differ(ours, wanted),
        }
    }
}

fn pool_ids(pool_of_layer: &[Option<u32>]) -> Vec<Option<PoolId>> {
    pool_of_layer.iter().map(|pool| pool.map(PoolId::new)).collect()
}

fn ids(experts: &[(u32, u32)]) -> Vec<(LayerId, ExpertId)> {
    experts.iter().map(|&(layer, expert)| (LayerId::new(layer), ExpertId::new(expert))).collect()
}

fn empty(expert_count: u32, pool_of_layer: &[Option<u32>], pool_sizes: &[u32], rule: Eviction) -> (Cache, Reference) {
    let mut cache = Cache::with_pools(expert_count, &pool_ids(pool_of_layer), pool_sizes).expect("the pools exist");
    let mut model = Reference::with_pools(expert_count, pool_of_layer, pool_sizes);
    cache.set_eviction(rule).expect("the layers are narrow");
    model.set_eviction(rule);
    (cache, model)
}

pub(crate) fn our_step(step: &reference::Step) -> Step {
    let (phase, _) = compare::PHASES.into_iter().find(|(_, phase)| *phase == step.phase).expect("all are listed");
    let misses = match step.misses {
        reference::Misses::Fetched => Misses::Fetched,
        reference::Misses::Hybrid(fetch, Order::Recency) => Misses::Hybrid { fetch, order: FetchOrder::Recency },
        reference::Misses::Hybrid(fetch, Order::LowestId) => Misses::Hybrid { fetch, order: FetchOrder::LowestId },
    };
    Step { layer: LayerId::new(step.layer), phase, token: step.token, misses, continues: step.continues }
}
