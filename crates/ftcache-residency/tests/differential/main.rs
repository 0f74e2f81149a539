//! One list of operations to the slow model and to the cache: after each, what they answered and all that can be read
//! of them is equal, and every invariant holds. A failure prints its seed, and the shortest list of the narrowest
//! steps that still fails.

mod chunk;
mod compare;
mod draw;
mod flights;
mod operations;
mod pair;
mod parts;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ftcache_policy::Eviction;
use ftcache_testkit::Rng;

use draw::{random_operations, random_shape};
use operations::{Operation, Shape};
use pair::Pair;

/// Operations of a run.
const COUNT: usize = 60;

/// What goes wrong first, a panic included.
fn run(shape: &Shape, operations: &[Operation]) -> Result<Pair, String> {
    let mut pair = Pair::new(shape);
    for (index, operation) in operations.iter().enumerate() {
        let applied = catch_unwind(AssertUnwindSafe(|| pair.apply(operation)));
        let outcome = applied.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
            Err(format!("panicked: {}", text.unwrap_or_default()))
        });
        outcome.map_err(|wrong| format!("operation {index}: {wrong}"))?;
    }
    Ok(pair)
}

/// Drops operations, many at a time and then one by one, as long as the rest still fails.
fn shortest(shape: &Shape, mut operations: Vec<Operation>) -> Vec<Operation> {
    let mut dropped = operations.len().div_ceil(2);
    loop {
        let (mut index, before) = (0, operations.len());
        while index < operations.len() {
            let mut fewer = operations.clone();
            fewer.drain(index..(index + dropped).min(operations.len()));
            if run(shape, &fewer).is_err() {
                operations = fewer;
            } else {
                index += dropped;
            }
        }
        if dropped == 1 && operations.len() == before {
            return narrowest(shape, operations);
        }
        dropped = dropped.div_ceil(2);
    }
}

/// Drops routes one by one as long as the rest still fails.
fn narrowest(shape: &Shape, mut operations: Vec<Operation>) -> Vec<Operation> {
    for index in 0..operations.len() {
        let mut at = 0;
        loop {
            let mut fewer = operations.clone();
            let (Operation::Ensure(step, _) | Operation::Parts { step, .. }) = &mut fewer[index] else { break };
            if at == step.routes.len() {
                break;
            }
            step.routes.remove(at);
            if run(shape, &fewer).is_err() {
                operations = fewer;
            } else {
                at += 1;
            }
        }
    }
    operations
}

/// The shape and the operations of a seed, the same under every rule but for changes to another.
fn of_seed(seed: u64, eviction: Eviction, count: usize) -> (Shape, Vec<Operation>) {
    let mut rng = Rng::new(seed);
    let shape = Shape { eviction, ..random_shape(&mut rng) };
    let mut operations = random_operations(&mut rng, &shape, count);
    if eviction != Eviction::Lru && rng.chance(1, 3) {
        for _ in 0..1 + rng.below(3) {
            let rule = if rng.chance(1, 2) { eviction } else { Eviction::ALL[rng.below(4) as usize] };
            operations.insert(rng.below(count as u64) as usize, Operation::SetEviction(rule));
        }
    }
    let mut rng = Rng::new(!seed);
    if rng.chance(1, 2) {
        for _ in 0..1 + rng.below(4) {
            operations.insert(rng.below(count as u64) as usize, Operation::CarryOver);
        }
    }
    (shape, operations)
}

fn check_seeds(seeds: Range<u64>, eviction: Eviction, count: usize) {
    for seed in seeds {
        let (shape, operations) = of_seed(seed, eviction, count);
        if run(&shape, &operations).is_err() {
            let operations = shortest(&shape, operations);
            let wrong = run(&shape, &operations).unwrap_err();
            let lines: Vec<String> = operations.iter().map(|operation| format!("{operation:?}")).collect();
            panic!("seed {seed}: {wrong}\n{shape:?}\n{}", lines.join("\n"));
        }
    }
}

#[test]
fn the_cache_does_what_the_model_does() {
    check_seeds(0..4_000, Eviction::Lru, COUNT);
}

#[test]
fn victims_of_lfu_are_the_models() {
    check_seeds(0..1_200, Eviction::Lfu, COUNT);
}

#[test]
fn victims_of_cyclic_are_the_models() {
    check_seeds(0..1_200, Eviction::Cyclic, COUNT);
}

#[test]
fn victims_of_learned_are_the_models() {
    check_seeds(0..1_200, Eviction::Learned, COUNT);
}

/// Long enough that all counts are brought down, in some layers more than once.
#[test]
fn victims_of_long_runs_are_the_models() {
    for (rule, count) in [(Eviction::Lfu, 2_400), (Eviction::Cyclic, 1_200), (Eviction::Learned, 1_200)] {
        check_seeds(10_000..10_012, rule, count);
    }
}

/// Of one run, [`compare::Digests`] holds that other states have other digests.
#[test]
fn caches_driven_alike_have_equal_digests() {
    for seed in 0..40 {
        let (shape, operations) = of_seed(seed, Eviction::ALL[seed as usize % 4], COUNT);
        let [one, other] = [(); 2].map(|()| run(&shape, &operations).unwrap_or_else(|wrong| panic!("{seed}: {wrong}")));
        assert_eq!(one.cache.digest(), other.cache.digest(), "seed {seed}");
        assert_eq!(one.cache.digest(), one.cache.clone().digest(), "seed {seed}");
    }
}
