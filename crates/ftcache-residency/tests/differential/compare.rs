//! Plans, errors and states of the cache beside those of the model, number by number.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};

use ftcache_policy::{ExpertId, LayerId, PoolId, SlotId};
use ftcache_residency::{
    Absence, Cache, EnsureError, HintStats, LateStats, PinError, Plan, Run, StageError, StagePlan,
};
use ftcache_testkit::reference::{self, Answer, Cause, Reference, Refusal, Scores, Step};

pub(crate) type Outcome = Result<(), String>;

pub(crate) fn same<T: PartialEq + Debug>(what: &str, ours: T, model: T) -> Outcome {
    if ours == model { Ok(()) } else { Err(format!("{what}: {ours:?}, the model says {model:?}")) }
}

/// Two results of which neither is what the other wants.
pub(crate) fn differ(ours: impl Debug, model: impl Debug) -> Outcome {
    Err(format!("{ours:?}, the model says {model:?}"))
}

/// Stamp and owner.
pub(crate) type Slot = (u64, Option<(u32, u32)>);

/// Every slot of every pool.
pub(crate) type Slots = Vec<Vec<Slot>>;

pub(crate) fn slots(model: &Reference) -> Slots {
    let slot = |pool, slot| (model.stamp(pool, slot), model.owner(pool, slot));
    (0..).zip(model.pool_sizes()).map(|(pool, size)| (0..size).map(|index| slot(pool, index)).collect()).collect()
}

/// `before` are the slots as they were before the step.
pub(crate) fn same_plan(plan: &Plan, step: &Step, pool: u32, answer: &Answer, before: &Slots, experts: u32) -> Outcome {
    same("step", plan.step(), answer.step)?;
    same("repeat", plan.is_repeat(), answer.repeat)?;
    same("layer, pool and phase", (plan.layer().get(), plan.pool().get(), plan.phase() as u32), {
        (step.layer, pool, step.phase as u32)
    })?;
    same("routes", &plan.routes().iter().map(|route| route.get()).collect(), &step.routes)?;
    same("slots", &plan.slots().iter().map(|slot| slot.get()).collect(), &answer.slots)?;
    let number = |&slot: &u32| match slot {
        reference::ABSENT => -2,
        reference::CPU => -1,
        slot => i64::from(slot),
    };
    same("numbers of slots", plan.slot_numbers(-2, -1).collect(), answer.slots.iter().map(number).collect::<Vec<_>>())?;
    let on_cpu = |(&slot, &route): (&u32, &u32)| (slot == reference::CPU).then_some(route);
    let cpu_experts: Vec<Option<u32>> = answer.slots.iter().zip(&step.routes).map(on_cpu).collect();
    same("experts on the CPU", plan.cpu_experts().map(|expert| expert.map(ExpertId::get)).collect(), cpu_experts)?;
    same("copies", &plan.copies().iter().map(|copy| (copy.slot.get(), copy.row.get())).collect(), &answer.copies)?;

    let flat = |(layer, expert): (u32, u32)| layer * experts + expert;
    let evicted = answer.evicted.iter().map(|owner| owner.map(flat)).collect::<Vec<_>>();
    same("victims", plan.victims().map(|victim| victim.map(|victim| victim.expert.get())).collect(), evicted)?;
    if !answer.repeat {
        let stamp =
            |(&(slot, _), owner): (&(u32, u32), &Option<_>)| owner.map(|_| before[pool as usize][slot as usize].0);
        let stamps: Vec<Option<u64>> = answer.copies.iter().zip(&answer.evicted).map(stamp).collect();
        same("victims' stamps", plan.victims().map(|victim| victim.map(|victim| victim.last_step)).collect(), stamps)?;
    }
    let mut present: Vec<u32> = step.routes.iter().copied().filter(|&route| route != reference::ABSENT).collect();
    same("present routes", plan.present_count(), present.len())?;
    present.sort_unstable();
    present.dedup();
    same("distinct experts", plan.distinct_count(), present.len())?;
    same("misses", plan.miss_count(), answer.missing.len())?;
    same("left to the CPU", plan.left_count(), answer.missing.len() - answer.copies.len())?;
    same("that could have been fetched", &plan.left().iter().map(|expert| expert.get()).collect(), &answer.left)?;
    same("evictions", plan.eviction_count(), answer.evicted.iter().flatten().count())?;

    same_runs(plan.runs(), &answer.copies)
}

/// Whether runs are the fewest of these copies, as `(slot, row)`.
pub(crate) fn same_runs(runs: impl Iterator<Item = Run>, copies: &[(u32, u32)]) -> Outcome {
    let runs: Vec<Run> = runs.collect();
    let of_run = |run: &Run| {
        let (row, slot) = (run.row.get(), run.slot.get());
        (0..run.count).map(move |at| (row + at, slot + at))
    };
    let mut by_row: Vec<(u32, u32)> = copies.iter().map(|&(slot, row)| (row, slot)).collect();
    by_row.sort_unstable();
    same("runs", runs.iter().flat_map(of_run).collect(), by_row.clone())?;
    let follows = |pair: &&[(u32, u32)]| pair[1] == (pair[0].0 + 1, pair[0].1 + 1);
    let wanted = by_row.len() - by_row.windows(2).filter(follows).count();
    same("number of runs", runs.len(), wanted)
}

pub(crate) fn same_stage(plan: &StagePlan, layer: u32, pool: u32, wanted: &reference::StagePlan) -> Outcome {
    same("layer, pool and buffer", (plan.layer().get(), plan.pool().get(), plan.buffer()), {
        (layer, pool, wanted.buffer)
    })?;
    let gathers = plan.gathers().iter().map(|gather| (gather.slot.get(), gather.row.get())).collect();
    same("gathers", &gathers, &wanted.gathers)?;
    let misses = plan.misses().iter().map(|run| (run.row.get(), run.count)).collect();
    same("misses", &misses, &wanted.runs)
}

/// `ids` are those that were asked for: routes, or accepted ones.
pub(crate) fn same_error(error: EnsureError, refusal: Refusal, of: u32, ids: &[u32], model: &Reference) -> Outcome {
    match (error, refusal) {
        (EnsureError::UnknownLayer { layer, .. }, Refusal::NoLayer(wanted))
        | (EnsureError::NoSlots { layer }, Refusal::NoSlots(wanted))
        | (EnsureError::NothingToAccept { layer }, Refusal::NothingToAccept(wanted)) => {
            same("layer", layer.get(), wanted)
        }
        (EnsureError::UnknownExpert { layer, route, expert, .. }, Refusal::NoExpert(wanted))
        | (EnsureError::NotVerified { layer, route, expert }, Refusal::NotVerified(wanted)) => {
            same("layer, route and expert", (layer.get(), route, expert.get()), (of, wanted, ids[wanted]))
        }
        (EnsureError::StepTooWide { layer, pool, needed, given, slot_count, pinned, withheld }, refusal) => {
            let Refusal::TooWide(wanted, had) = refusal else { return differ(error, refusal) };
            same("layer", layer.get(), of)?;
            same("width", (needed, given as usize), (wanted, had))?;
            same("slots", slot_count, model.pool_sizes()[pool.index()])?;
            same("withheld", withheld, model.withheld(pool.get()))?;
            same("given", given, slot_count - withheld - pinned)
        }
        (EnsureError::InFlight { layer, route, expert }, Refusal::InFlight(wanted)) => {
            same("layer, route and expert", (layer.get(), route, expert.get()), (of, wanted, ids[wanted]))
        }
        (EnsureError::LastStep { step }, Refusal::OutOfSteps) => same("last step", step, model.step_counter()),
        (EnsureError::TokenReused { layer, .. }, Refusal::TokenReused) => same("layer", layer.get(), of),
        (EnsureError::AnswerGone { layer, expert, .. }, Refusal::AnswerGone(wanted)) => {
            same("layer and expert", (layer.get(), expert.get()), (of, wanted))
        }
        _ => differ(error, refusal),
    }
}

/// `experts` are those that were asked for.
pub(crate) fn same_pin_error(error: PinError, refusal: Refusal, experts: &[(u32, u32)], model: &Reference) -> Outcome {
    match (error, refusal) {
        (PinError::TooMany { pool, pinned, unpinned, slot_count }, Refusal::TooManyPinned(of, needed, given)) => {
            let numbers = (pool.get(), pinned as usize, slot_count.saturating_sub(unpinned) as usize);
            same("pool, pinned and room", numbers, (of, needed, given))
        }
        (PinError::Unknown(EnsureError::UnknownExpert { layer, route, expert, .. }), Refusal::NoExpert(index)) => {
            same("place in the list", route, index)?;
            same("expert", (layer.get(), expert.get()), experts[index])
        }
        (PinError::Unknown(error), refusal) => same_error(error, refusal, 0, &[], model),
        _ => differ(error, refusal),
    }
}

pub(crate) fn same_stage_error(error: StageError, refusal: Refusal, model: &Reference) -> Outcome {
    match (error, refusal) {
        (StageError::Layer(error), refusal) => same_error(error, refusal, 0, &[], model),
        (StageError::ChunkOpen, Refusal::ChunkOpen)
        | (StageError::NoChunk, Refusal::NoChunk)
        | (StageError::NoOverlap, Refusal::NoOverlap) => Ok(()),
        (StageError::NotReleased { buffer, layer }, Refusal::NotReleased(held, wanted)) => {
            same("buffer and layer", (buffer, layer.get()), (held, wanted))
        }
        (StageError::StagedBefore { layer }, Refusal::StagedBefore(wanted))
        | (StageError::NotStaged { layer }, Refusal::NotStaged(wanted))
        | (StageError::InUse { layer }, Refusal::NotReady(wanted))
        | (StageError::NotWaitedFor { layer }, Refusal::NotInUse(wanted)) => same("layer", layer.get(), wanted),
        _ => differ(error, refusal),
    }
}

/// Everything that can be read of both. `slots` are the model's.
pub(crate) fn same_state(cache: &Cache, model: &Reference, pools: &[Option<u32>], slots: &Slots) -> Outcome {
    same("step counter", cache.step(), model.step_counter())?;
    same("rule", cache.eviction(), model.eviction())?;
    same("open chunk", cache.has_open_chunk(), model.is_chunk_open())?;
    same("pools", cache.pool_count(), slots.len())?;
    same_flights(cache, model)?;
    let expert_count = cache.expert_count();
    let mut places = vec![None; pools.len() * expert_count as usize];
    for (pool, slots) in slots.iter().enumerate() {
        let id = PoolId::from_index(pool);
        same("slots of a pool", cache.slot_count(id) as usize, slots.len())?;
        for (slot, &(stamp, owner)) in (0..).zip(slots) {
            let ours = cache.expert_of(id, SlotId::new(slot)).map(|(layer, expert)| (layer.get(), expert.get()));
            let ours = (cache.stamp(id, SlotId::new(slot)), ours);
            if ours != (stamp, owner) {
                return differ(format!("pool {pool} slot {slot}: {ours:?}"), (stamp, owner));
            }
            if let Some((layer, expert)) = owner {
                places[(layer * expert_count + expert) as usize] = Some(slot);
            }
        }
    }
    let mut causes = vec![Cause::Cold; places.len()];
    for ((layer, expert), cause) in model.causes() {
        causes[(layer * expert_count + expert) as usize] = cause;
    }
    let mut pinned = vec![0; slots.len()];
    let mut total = ftcache_residency::Stats::default();
    for (layer, &pool) in (0..).zip(pools) {
        let id = LayerId::new(layer);
        same("carried", cache.carried(id), model.carried(layer))?;
        for (ours, phase) in PHASES {
            let stats = stats(cache.phase_stats(id, ours));
            if stats != model.stats(layer, phase) {
                return differ(format!("layer {layer} {ours:?}: {stats:?}"), model.stats(layer, phase));
            }
            total += cache.phase_stats(id, ours);
        }
        for expert in 0..expert_count {
            let (ours, flat) = (ExpertId::new(expert), (layer * expert_count + expert) as usize);
            let cause = if places[flat].is_none() { Some(causes[flat]) } else { None };
            let ours = Expert {
                slot: cache.slot_of(id, ours).map(SlotId::get),
                cause: cache.absence(id, ours).map(cause_of),
                active: cache.last_active(id, ours),
                routed: cache.routed(id, ours),
                is_pinned: cache.is_pinned(id, ours),
                is_in_flight: cache.is_in_flight(id, ours),
                is_hinted: cache.is_hinted(id, ours),
            };
            let wanted = Expert {
                slot: places[flat],
                cause,
                active: model.active(layer, expert),
                routed: model.route_count(layer, expert),
                is_pinned: model.is_pinned(layer, expert),
                is_in_flight: cause == Some(Cause::InFlight),
                is_hinted: model.is_hinted(layer, expert),
            };
            if ours != wanted {
                return differ(format!("layer {layer} expert {expert}: {ours:?}"), wanted);
            }
            if let Some(pool) = pool.filter(|_| wanted.is_pinned) {
                pinned[pool as usize] += 1;
            }
        }
    }
    for (pool, &pinned) in pinned.iter().enumerate() {
        same("pinned experts of a pool", cache.pinned_count(PoolId::from_index(pool)), pinned)?;
    }
    same("statistics of all layers", cache.total_stats(), total)
}

fn same_flights(cache: &Cache, model: &Reference) -> Outcome {
    for pool in 0..cache.pool_count() as u32 {
        same("slots in flight", cache.in_flight_count(PoolId::new(pool)) as usize, model.in_flight_count(pool))?;
    }
    for layer in 0..cache.layer_count() as u32 {
        let HintStats { started, evictions, useful, late, wasted } = cache.hint_stats(LayerId::new(layer));
        let ours = reference::HintStats { started, evictions, useful, late, wasted };
        same("what became of hinted rows", ours, model.hint_stats(layer))?;
    }
    let LateStats { queued, evictions, landed, lost } = cache.late_stats();
    same("what became of late rows", reference::LateStats { queued, evictions, landed, lost }, model.late_stats())
}

/// An expert, as it is in cache or model.
#[derive(Debug, PartialEq, Eq)]
struct Expert {
    slot: Option<u32>,
    cause: Option<Cause>,
    active: u64,
    routed: u64,
    is_pinned: bool,
    is_in_flight: bool,
    is_hinted: bool,
}

pub(crate) const PHASES: [(ftcache_residency::Phase, reference::Phase); 3] = [
    (ftcache_residency::Phase::Decode, reference::Phase::Decode),
    (ftcache_residency::Phase::Verify, reference::Phase::Verify),
    (ftcache_residency::Phase::Prefill, reference::Phase::Prefill),
];

fn cause_of(absence: Absence) -> Cause {
    match absence {
        Absence::NeverRouted => Cause::Cold,
        Absence::Evicted => Cause::Capacity,
        Absence::Staged => Cause::Staging,
        Absence::Freed => Cause::Freed,
        Absence::OnCpu => Cause::OnCpu,
        Absence::InFlight => Cause::InFlight,
    }
}

fn stats(ours: ftcache_residency::Stats) -> reference::Stats {
    reference::Stats {
        steps: ours.steps,
        routes: ours.routes,
        hit_routes: ours.hit_routes,
        distinct: ours.distinct,
        misses: ours.misses,
        fetched: ours.fetched,
        evictions: ours.evictions,
        cold: ours.cold_misses,
        capacity: ours.capacity_misses,
        staging: ours.staging_misses,
        freed: ours.freed_misses,
        on_cpu: ours.cpu_misses,
        refused: ours.refused,
    }
}

/// Step and slots in use, as the digest numbers them: over all pools, with the experts flat; and the model's scores, as
/// a hash, since runs are in many states.
type Residency = (u64, Vec<(usize, u32, u64)>, u64);

/// Digests of states that a run has been in: equal states have equal digests, and others others.
#[derive(Debug, Default)]
pub(crate) struct Digests {
    of_state: BTreeMap<Residency, u64>,
    state_of: BTreeMap<u64, Residency>,
}

impl Digests {
    pub(crate) fn note(&mut self, cache: &Cache, slots: &Slots, scores: Option<&Scores>) -> Outcome {
        let resident = |(index, &(stamp, owner)): (usize, &Slot)| {
            owner.map(|(layer, expert)| (index, layer * cache.expert_count() + expert, stamp))
        };
        let mut scored = DefaultHasher::new();
        format!("{scores:?}").hash(&mut scored);
        let in_use = slots.iter().flatten().enumerate().filter_map(resident).collect();
        let state = (cache.step(), in_use, scored.finish());
        let digest = cache.digest();
        if *self.of_state.entry(state.clone()).or_insert(digest) != digest {
            return Err(format!("digest {digest:016x} of a state that had another: {state:?}"));
        }
        let before = self.state_of.entry(digest).or_insert_with(|| state.clone());
        if *before == state { Ok(()) } else { Err(format!("digest {digest:016x} of {before:?} and of {state:?}")) }
    }
}
