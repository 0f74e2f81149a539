//! The slow model held to the golden vectors, and, where none reaches, to cases worked out by hand.

use ftcache_policy::{Carried, Fetch, FetchOrder, FetchRule, Fraction};
use ftcache_testkit::Rng;
use ftcache_testkit::reference::{
    ABSENT, Answer, Buffers, CPU, Cause, LAST_STEP, Misses, Moved, Order, Phase, Placed, Reference, Refusal, StagePlan,
    Stats, Step,
};

mod chunks;
mod eviction;
mod rebuild;
mod steps;
mod tokens;
mod vectors;
mod verify;

/// One layer of eight experts over one pool.
fn one_pool(slot_count: u32) -> Reference {
    Reference::new(8, &[0], &[slot_count])
}

fn step(phase: Phase, routes: &[u32]) -> Step {
    Step { phase, ..Step::decode(0, routes) }
}

/// Up to so many of the misses, the most recently active first.
fn up_to(most: u32, routes: &[u32]) -> Step {
    let fetch = Fetch { rule: FetchRule::UpTo(most), most: None };
    Step { misses: Misses::Hybrid(fetch, Order::Recency), ..Step::decode(0, routes) }
}

fn under(token: u64, step: Step) -> Step {
    Step { token: Some(token), ..step }
}

#[track_caller]
fn commit(model: &mut Reference, step: &Step) -> Answer {
    let answer = model.admit(step).unwrap();
    model.commit();
    model.check();
    answer
}

#[track_caller]
fn abort(model: &mut Reference, step: &Step) -> Answer {
    let answer = model.admit(step).unwrap();
    model.abort();
    model.check();
    answer
}

/// `(stamp, owner)` of each slot of pool 0, owners by expert.
fn slots(model: &Reference) -> Vec<(u64, Option<u32>)> {
    let slot = |slot| (model.stamp(0, slot), model.owner(0, slot).map(|(_, expert)| expert));
    (0..model.pool_sizes()[0]).map(slot).collect()
}

/// Asks for something that is refused, and holds that nothing changed.
#[track_caller]
fn refused<T: std::fmt::Debug>(
    model: &mut Reference,
    ask: impl FnOnce(&mut Reference) -> Result<T, Refusal>,
) -> Refusal {
    let before = model.clone();
    let refusal = ask(model).unwrap_err();
    assert!(*model == before, "{refusal:?} has changed something");
    refusal
}

/// Whatever is asked in whatever order, the tables stay sound and the causes add up.
#[test]
fn random_operations_leave_the_model_sound() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let mut model = Reference::with_pools(12, &[Some(0), Some(1), Some(0), None], &[9, 6]);
        for _ in 0..60 {
            let layer = rng.below(4) as u32;
            let mut expert = || if rng.chance(1, 12) { ABSENT } else { rng.below(12) as u32 };
            let routes: Vec<u32> = (0..6).map(|_| expert()).collect();
            match rng.below(12) {
                0 => drop(model.forget(0, rng.below(3) as u32)),
                1 => drop(model.forget_layer(layer)),
                2 => drop(model.begin_chunk(&Buffers { count: 2, stable_from: Some(vec![3, 1]) })),
                3 => drop(model.end_chunk()),
                4 => drop(model.pin(&[(layer, routes[0] % 12)], 4)),
                5 => drop(model.accept(layer, &routes[..2])),
                6 => {
                    let sizes = [6 + rng.below(6) as u32, 6];
                    drop(model.rebuild(&[Some(1), Some(0), Some(0), None], &sizes, rng.chance(1, 2)));
                }
                kind => {
                    let phase = [Phase::Decode, Phase::Verify, Phase::Prefill][rng.below(3) as usize];
                    let asked = if kind < 9 { up_to(2, &routes) } else { Step::decode(layer, &routes) };
                    if model
                        .admit(&Step { layer, phase, token: Some(rng.below(3)), continues: rng.chance(1, 4), ..asked })
                        .is_ok()
                    {
                        if rng.chance(1, 5) { model.abort() } else { model.commit() }
                    }
                }
            }
            model.check();
            for layer in 0..4 {
                for phase in [Phase::Decode, Phase::Verify, Phase::Prefill] {
                    let stats = model.stats(layer, phase);
                    let causes = [Cause::Cold, Cause::Capacity, Cause::Staging, Cause::Freed, Cause::OnCpu];
                    assert_eq!(causes.map(|cause| stats.of(cause)).iter().sum::<u64>(), stats.misses, "seed {seed}");
                }
            }
        }
    }
}
