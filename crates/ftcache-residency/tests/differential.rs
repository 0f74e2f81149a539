//! One list of operations to the slow model and to the cache: plans equal field by field, every invariant after each,
//! both directions of the map at the end. A failure prints its seed and the shortest list that still fails.

use std::fmt::Debug;

use ftcache_policy::{ExpertId, LayerId, PoolId, SlotId};
use ftcache_residency::{Cache, EnsureError, Plan, Ticket};
use ftcache_testkit::Rng;
use ftcache_testkit::generators::skewed_routes;
use ftcache_testkit::reference::{Answer, Reference, Refusal};

#[derive(Debug, Clone)]
enum Operation {
    Ensure { layer: u32, routes: Vec<ExpertId> },
    Abort { layer: u32, routes: Vec<ExpertId> },
    Forget { pool: u32, slot: u32 },
    ForgetLayer(u32),
    Reset,
}

#[derive(Debug, Clone)]
struct Shape {
    expert_count: u32,
    pool_of_layer: Vec<u32>,
    pool_sizes: Vec<u32>,
}

fn random_shape(rng: &mut Rng) -> Shape {
    let expert_count = 1 + rng.below(40) as u32;
    let pool_sizes: Vec<u32> = (0..1 + rng.below(3)).map(|_| 1 + rng.below(70) as u32).collect();
    let pool_of_layer = (0..1 + rng.below(5)).map(|_| rng.below(pool_sizes.len() as u64) as u32).collect();
    Shape { expert_count, pool_of_layer, pool_sizes }
}

fn random_operations(rng: &mut Rng, shape: &Shape) -> Vec<Operation> {
    // Each kind besides the plain step is switched off in half of the runs, so that long undisturbed ones exist too.
    let [aborts, forgets, resets, strays] = [(); 4].map(|()| rng.chance(1, 2));
    let mut operations = Vec::new();
    for _ in 0..80 {
        let layer = rng.below(shape.pool_of_layer.len() as u64) as u32;
        let pool = rng.below(shape.pool_sizes.len() as u64) as u32;
        let width = rng.below(24) as usize;
        let mut routes = skewed_routes(rng, shape.expert_count, width);
        if strays && !routes.is_empty() && rng.chance(1, 10) {
            let at = rng.below(routes.len() as u64) as usize;
            routes[at] = ExpertId::new(shape.expert_count + rng.below(3) as u32);
        }
        operations.push(match rng.below(20) {
            0 if aborts => Operation::Abort { layer, routes },
            1 if forgets => {
                let slot = rng.below(u64::from(shape.pool_sizes[pool as usize])) as u32;
                Operation::Forget { pool, slot }
            }
            2 if forgets => Operation::ForgetLayer(layer),
            3 if resets && rng.chance(1, 3) => Operation::Reset,
            _ => Operation::Ensure { layer, routes },
        });
    }
    operations
}

fn same<T: PartialEq + Debug>(what: &str, ours: T, model: T) -> Result<(), String> {
    if ours == model { Ok(()) } else { Err(format!("{what}: {ours:?}, the model says {model:?}")) }
}

fn run(shape: &Shape, operations: &[Operation]) -> Result<(), String> {
    let pools: Vec<Option<PoolId>> = shape.pool_of_layer.iter().map(|&pool| Some(PoolId::new(pool))).collect();
    let mut cache = Cache::with_pools(shape.expert_count, &pools, &shape.pool_sizes).map_err(|e| e.to_string())?;
    let mut model = Reference::new(shape.expert_count, &shape.pool_of_layer, &shape.pool_sizes);
    let mut plan = Plan::new();
    for (index, operation) in operations.iter().enumerate() {
        apply(&mut cache, &mut model, &mut plan, operation).map_err(|wrong| format!("operation {index}: {wrong}"))?;
        cache.check().map_err(|wrong| format!("operation {index}: {wrong}"))?;
    }
    for (layer, pool) in pools.iter().enumerate() {
        for expert in 0..shape.expert_count {
            let (layer_id, expert_id) = (LayerId::from_index(layer), ExpertId::new(expert));
            let slot = cache.slot_of(layer_id, expert_id);
            same("slot_of", slot.map(SlotId::get), model.slot_of(layer as u32, expert))?;
            if let Some(slot) = slot {
                same("expert_of", cache.expert_of(pool.unwrap(), slot), Some((layer_id, expert_id)))?;
            }
        }
    }
    for (pool, &size) in shape.pool_sizes.iter().enumerate() {
        for slot in 0..size {
            let stamp = cache.stamp(PoolId::from_index(pool), SlotId::new(slot));
            same("stamp", stamp, model.stamp(pool as u32, slot))?;
        }
    }
    Ok(())
}

fn apply(cache: &mut Cache, model: &mut Reference, plan: &mut Plan, operation: &Operation) -> Result<(), String> {
    match operation {
        Operation::Ensure { layer, routes } | Operation::Abort { layer, routes } => {
            let aborted = matches!(operation, Operation::Abort { .. });
            let numbers: Vec<u32> = routes.iter().map(|route| route.get()).collect();
            let wanted = model.ensure(*layer, &numbers);
            let before = cache.layer_stats(LayerId::new(*layer));
            let end = |ticket: Ticket<'_>| if aborted { ticket.abort() } else { ticket.commit() };
            let ours = cache.ensure(LayerId::new(*layer), routes, plan).map(end);
            let after = cache.layer_stats(LayerId::new(*layer));
            match (ours, wanted) {
                (Ok(()), Ok(answer)) => {
                    same_plan(plan, &answer, cache.expert_count())?;
                    if aborted {
                        for (slot, _) in answer.copies {
                            model.forget(plan.pool().get(), slot);
                        }
                        return same("stats", after, before);
                    }
                    same("steps", after.steps, before.steps + 1)?;
                    same("routes", after.routes, before.routes + routes.len() as u64)?;
                    same("misses", after.misses, before.misses + answer.copies.len() as u64)?;
                    let evicted = answer.evicted.iter().flatten().count() as u64;
                    same("evictions", after.evictions, before.evictions + evicted)
                }
                (Err(EnsureError::StepTooWide { needed, given, .. }), Err(Refusal::TooWide(wanted, had))) => {
                    same("width", (needed, given), (wanted, had))
                }
                (Err(EnsureError::UnknownExpert { route, .. }), Err(Refusal::NoExpert(wanted))) => {
                    same("stray route", route, wanted)
                }
                (ours, wanted) => Err(format!("{ours:?}, the model says {wanted:?}")),
            }
        }
        Operation::Forget { pool, slot } => {
            cache.forget(PoolId::new(*pool), SlotId::new(*slot));
            model.forget(*pool, *slot);
            Ok(())
        }
        Operation::ForgetLayer(layer) => {
            cache.forget_layer(LayerId::new(*layer)).map_err(|error| error.to_string())?;
            model.forget_layer(*layer);
            Ok(())
        }
        Operation::Reset => {
            cache.reset();
            model.reset();
            Ok(())
        }
    }
}

fn same_plan(plan: &Plan, answer: &Answer, expert_count: u32) -> Result<(), String> {
    let slots = plan.slots().iter().map(|slot| slot.get()).collect();
    same("slots", &slots, &answer.slots)?;
    let copies = plan.copies().iter().map(|copy| (copy.slot.get(), copy.row.get())).collect();
    same("copies", &copies, &answer.copies)?;
    let flat = |(layer, expert): (u32, u32)| layer * expert_count + expert;
    let evicted: Vec<Option<u32>> = answer.evicted.iter().map(|owner| owner.map(flat)).collect();
    let victims = plan.victims().map(|victim| victim.map(|victim| victim.expert.get())).collect();
    same("victims", victims, evicted)
}

/// Drops operations one by one as long as the rest still fails.
fn shortest(shape: &Shape, mut operations: Vec<Operation>) -> Vec<Operation> {
    let mut index = 0;
    while index < operations.len() {
        let mut fewer = operations.clone();
        fewer.remove(index);
        if run(shape, &fewer).is_err() {
            operations = fewer;
        } else {
            index += 1;
        }
    }
    operations
}

#[test]
fn the_cache_does_what_the_model_does() {
    for seed in 0..1_500 {
        let mut rng = Rng::new(seed);
        let shape = random_shape(&mut rng);
        let operations = random_operations(&mut rng, &shape);
        if run(&shape, &operations).is_err() {
            let operations = shortest(&shape, operations);
            let wrong = run(&shape, &operations).unwrap_err();
            panic!("seed {seed}: {wrong}\n{shape:?}\n{operations:#?}");
        }
    }
}
