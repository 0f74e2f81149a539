//! Random steps on both sides, with everything that a step can be: thousands of seeds, and now and then the state.

use ftcache_policy::{Eviction, ExpertId, Fetch, FetchOrder, FetchRule, Fraction, LayerId, PoolId, SlotId};
use ftcache_residency::{Cache, Misses, Phase, Step};
use ftcache_testkit::Rng;
use ftcache_transfer::IdWidth;

use crate::rig::{ABSENT, Form, Rig};

fn pick<T: Copy>(rng: &mut Rng, items: &[T]) -> T {
    items[rng.below(items.len() as u64) as usize]
}

/// A number below one of these bounds, so that small numbers are common and large ones exist.
fn below(rng: &mut Rng, bounds: &[u64]) -> u64 {
    let bound = pick(rng, bounds);
    rng.below(bound)
}

/// A cache of random shape in a random state: pins, freed slots, other steps before.
fn random_cache(rng: &mut Rng) -> Cache {
    let expert_count = 1 + below(rng, &[4, 8, 16, 40, 70, 140]) as u32;
    let layer_count = 1 + rng.below(4) as usize;
    let pool_count = 1 + rng.below(2);
    let slots: Vec<u32> = (0..pool_count).map(|_| 1 + below(rng, &[6, 12, 40, 90, 200]) as u32).collect();
    let pools: Vec<Option<PoolId>> =
        (0..layer_count).map(|_| rng.chance(9, 10).then(|| PoolId::new(rng.below(pool_count) as u32))).collect();
    let mut cache = Cache::with_pools(expert_count, &pools, &slots).unwrap();
    cache.set_eviction(pick(rng, &Eviction::ALL)).unwrap();
    if rng.chance(1, 4) {
        // Another number of digits to a stamp, up to the last.
        let bits = 1 + rng.below(64);
        cache.skip_to(((1u64 << (bits - 1)) | rng.bits() >> (64 - bits)).min(u64::MAX - 40));
    }
    cache
}

fn random_misses(rng: &mut Rng) -> Misses {
    if rng.chance(1, 2) {
        return Misses::Fetched;
    }
    let q16 = pick(rng, &[0, 1, 19_268, 32_768, 40_000, 65_535, 65_536]);
    let fraction = Fraction::from_q16(q16).unwrap();
    let rule = match rng.below(4) {
        0 => FetchRule::UpTo(rng.below(6) as u32),
        1 => FetchRule::MinWait(fraction),
        2 => FetchRule::PreferFetch(fraction),
        _ => FetchRule::Carry(fraction),
    };
    let most = rng.chance(1, 4).then(|| rng.below(5) as u32);
    Misses::Hybrid { fetch: Fetch { rule, most }, order: pick(rng, &[FetchOrder::Recency, FetchOrder::LowestId]) }
}

fn random_form(rng: &mut Rng) -> Form {
    Form {
        width: pick(rng, &[IdWidth::Four, IdWidth::Eight]),
        per_row: 1 + rng.below(9) as u32,
        gap: pick(rng, &[0, 0, 1, 7]),
        in_place: rng.chance(2, 3),
        map: rng.chance(1, 4),
        split: rng.chance(1, 2),
        weight_bytes: pick(rng, &[0, 2, 4]),
    }
}

/// As the host does what kernels do not: the residency comes to the host, and goes back.
fn on_the_host(rig: &mut Rig, what: impl Fn(&mut Cache)) {
    rig.tables.disengage(&mut rig.device, &mut rig.twin).unwrap();
    what(&mut rig.twin);
    what(&mut rig.host);
    rig.tables.engage(&mut rig.device, &rig.twin).unwrap();
}

fn run(seed: u64) {
    let mut rng = Rng::new(seed);
    let cache = random_cache(&mut rng);
    let layers: Vec<LayerId> =
        (0..cache.layer_count()).map(LayerId::from_index).filter(|&layer| cache.pool_of(layer).is_ok()).collect();
    if layers.is_empty() {
        return;
    }
    let experts = u64::from(cache.expert_count());
    let mut rig = Rig::new(seed, cache);
    rig.tables.set_threads(32 * (1 + below(&mut rng, &[1, 4, 8])) as u32).unwrap();
    let pins = rng.chance(1, 3);
    let usual = random_misses(&mut rng);
    for number in 0..12 {
        let at = format!("seed {seed} step {number}");
        let layer = pick(&mut rng, &layers);
        if pins && rng.chance(1, 4) {
            let experts: Vec<(LayerId, ExpertId)> =
                (0..1 + rng.below(3)).map(|_| (layer, ExpertId::new(rng.below(experts) as u32))).collect();
            let pin = rng.chance(2, 3);
            on_the_host(&mut rig, |cache| {
                // Either both caches have the room or neither.
                let _ = if pin { cache.pin(&experts, 1) } else { cache.unpin(&experts) };
            });
        }
        if rng.chance(1, 12) {
            let pool = rig.host.pool_of(layer).unwrap();
            let slot = SlotId::new(rng.below(u64::from(rig.host.slot_count(pool))) as u32);
            on_the_host(&mut rig, |cache| {
                cache.forget(pool, slot);
            });
        }
        if rng.chance(1, 30) {
            rig.tables.reset(&mut rig.device, rig.stream).unwrap();
            rig.host.reset();
        }
        let misses = if rng.chance(3, 4) { usual } else { random_misses(&mut rng) };
        let phase = pick(&mut rng, &[Phase::Decode, Phase::Decode, Phase::Prefill]);
        let step = Step { misses, phase, ..Step::new(layer) };
        let width = below(&mut rng, &[2, 5, 12, 40]);
        let hot = 1 + rng.below(experts);
        let ids: Vec<i64> = (0..width)
            .map(|_| match rng.below(12) {
                0 => ABSENT,
                1..=7 => rng.below(hot) as i64,
                _ => rng.below(experts) as i64,
            })
            .collect();
        let form = random_form(&mut rng);
        rig.step(step, &ids, form, &at);
        if rng.chance(1, 10) {
            rig.compare(&at);
        }
    }
    rig.compare(&format!("seed {seed}, at the end"));
    rig.end();
}

#[test]
fn the_device_decides_as_the_host_does() {
    for seed in 0..2000 {
        run(seed);
    }
}
