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

use std::panic::{AssertUnwindSafe, catch_unwind};

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

/// The shape and the operations of a seed.
fn of_seed(seed: u64) -> (Shape, Vec<Operation>) {
    let mut rng = Rng::new(seed);
    let shape = random_shape(&mut rng);
    let operations = random_operations(&mut rng, &shape, COUNT);
    (shape, operations)
}

#[test]
fn the_cache_does_what_the_model_does() {
    for seed in 0..4_000 {
        let (shape, operations) = of_seed(seed);
        if run(&shape, &operations).is_err() {
            let operations = shortest(&shape, operations);
            let wrong = run(&shape, &operations).unwrap_err();
            let lines: Vec<String> = operations.iter().map(|operation| format!("{operation:?}")).collect();
            panic!("seed {seed}: {wrong}\n{shape:?}\n{}", lines.join("\n"));
        }
    }
}

/// Of one run, [`compare::Digests`] holds that other states have other digests.
#[test]
fn caches_driven_alike_have_equal_digests() {
    for seed in 0..40 {
        let (shape, operations) = of_seed(seed);
        let [one, other] = [(); 2].map(|()| run(&shape, &operations).unwrap_or_else(|wrong| panic!("{seed}: {wrong}")));
        assert_eq!(one.cache.digest(), other.cache.digest(), "seed {seed}");
        assert_eq!(one.cache.digest(), one.cache.clone().digest(), "seed {seed}");
    }
}
