//! What steps, chunks, pins, rebuilds and warm starts do, by name: numbers small enough to do by hand, one file a part.

use ftcache_policy::{
    Budget, Carried, Constraints, ExpertId, Fetch, FetchRule, FlatExpertId, Fraction, Geometry, LayerId, LayoutKey,
    Model, PoolId, Profile, Quantisation, SlotId, Staging, TailPad,
};
use ftcache_residency::{
    Absence, Cache, ChunkReport, EnsureError, FetchOrder, Keep, LateError, LatePlan, LateStats, Misses, Parts, Phase,
    PinError, Plan, PoolState, PoolsError, SnapshotError, StageError, StagePlan, State, StateError, Stats, Step,
    strided,
};
use ftcache_testkit::Rng;

mod answers;
mod boundaries;
mod eviction;
mod flights;
mod hints;
mod hybrid;
mod lost_flights;
mod parts;
mod phases;
mod pins;
mod planner;
mod prefill;
mod readers;
mod rebuild;
mod routing;
mod staging_order;
mod state;
mod statistics;
mod texts;
mod tokens;
mod warm_start;
mod wide;
mod wrong_states;

const POOL: PoolId = PoolId::new(0);
const ABSENT: u32 = ExpertId::ABSENT.get();

fn layer(number: u32) -> LayerId {
    LayerId::new(number)
}

fn expert(number: u32) -> ExpertId {
    ExpertId::new(number)
}

fn slot(number: u32) -> SlotId {
    SlotId::new(number)
}

fn ids(routes: &[u32]) -> Vec<ExpertId> {
    routes.iter().copied().map(ExpertId::new).collect()
}

fn flat_ids(experts: &[u32]) -> Vec<FlatExpertId> {
    experts.iter().copied().map(FlatExpertId::new).collect()
}

/// Layers by the pools that serve them.
fn pools_of<const N: usize>(pools: [u32; N]) -> [Option<PoolId>; N] {
    pools.map(|pool| Some(PoolId::new(pool)))
}

fn one_pool(layer_count: usize, expert_count: u32, slot_count: u32) -> Cache {
    Cache::with_pools(expert_count, &vec![Some(POOL); layer_count], &[slot_count]).unwrap()
}

/// Layers of one layout key, top-1, over one pool.
fn geometry(layer_count: usize, expert_count: u32, slot_count: u64) -> Geometry {
    let layers = vec![LayoutKey::tagged("q", [16]); layer_count];
    let model = Model::new(expert_count, 1, Quantisation::PerLayer, layers).unwrap();
    Geometry::new(model, Constraints::new(Budget::Slots(slot_count))).unwrap()
}

/// A cache of one pool whose staging buffers are borrowed, and in which every bank's misses ship by the row.
fn borrowing(layer_count: usize, expert_count: u32, slot_count: u64) -> Cache {
    let geometry = geometry(layer_count, expert_count, slot_count);
    let mut cache = Cache::new(&geometry);
    cache.set_staging(Staging::borrowed(&geometry).unwrap(), 0).unwrap();
    cache
}

/// Commits a step and returns its plan.
#[track_caller]
fn commit(cache: &mut Cache, step: impl Into<Step>, routes: &[u32]) -> Plan {
    let mut plan = Plan::new();
    cache.ensure(step, &ids(routes), &mut plan).unwrap().commit();
    cache.check().unwrap();
    plan
}

/// Commits a plain decode step and returns its plan as text.
#[track_caller]
fn decode(cache: &mut Cache, layer_number: u32, routes: &[u32]) -> String {
    commit(cache, layer(layer_number), routes).to_string()
}

#[track_caller]
fn abort(cache: &mut Cache, step: impl Into<Step>, routes: &[u32]) {
    let mut plan = Plan::new();
    cache.ensure(step, &ids(routes), &mut plan).unwrap().abort();
    cache.check().unwrap();
}

/// Has a step refused, and holds that nothing has changed but for the count of steps that were too wide.
#[track_caller]
fn refuse(cache: &mut Cache, step: impl Into<Step>, routes: &[u32]) -> EnsureError {
    let step = step.into();
    let (before, mut plan) = (cache.clone(), Plan::new());
    let error = cache.ensure(step, &ids(routes), &mut plan).unwrap_err();
    cache.check().unwrap();
    assert_eq!(state(cache), state(&before));
    assert_eq!(format!("{plan:?}"), format!("{:?}", Plan::new()));
    for layer in (0..cache.layer_count()).map(LayerId::from_index) {
        for phase in Phase::ALL {
            let was = before.phase_stats(layer, phase);
            let wide = matches!(error, EnsureError::StepTooWide { .. }) && (layer, phase) == (step.layer, step.phase);
            let refused = was.refused + u64::from(wide);
            assert_eq!(cache.phase_stats(layer, phase), Stats { refused, ..was });
        }
    }
    error
}

/// All of a cache but its statistics.
fn state(cache: &Cache) -> String {
    let mut cache = cache.clone();
    cache.reset_stats();
    format!("{cache:?}")
}

/// The answer in the numbers of the worked cases: -1 for the CPU; and -2 for an absent route.
fn answer(plan: &Plan) -> Vec<i64> {
    let number = |&slot: &SlotId| match slot {
        SlotId::CPU => -1,
        SlotId::ABSENT => -2,
        slot => i64::from(slot.get()),
    };
    plan.slots().iter().map(number).collect()
}

/// The flat expert in each slot of a pool; `None` where it is free.
fn owners(cache: &Cache, pool: PoolId) -> Vec<Option<u32>> {
    let owner = |slot| cache.expert_of(pool, slot).map(|(layer, expert)| (layer.get(), expert.get()));
    let flat = |(layer, expert)| layer * cache.expert_count() + expert;
    (0..cache.slot_count(pool)).map(|number| owner(slot(number)).map(flat)).collect()
}

fn stamps(cache: &Cache, pool: PoolId) -> Vec<u64> {
    (0..cache.slot_count(pool)).map(|number| cache.stamp(pool, slot(number))).collect()
}

fn of_phase(phase: Phase, layer_number: u32) -> Step {
    Step { phase, ..Step::new(layer(layer_number)) }
}
