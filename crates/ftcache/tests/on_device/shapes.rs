//! Random models, geometries and steps.

use ftcache::policy::{Fetch, FetchRule, Fraction};
use ftcache::{
    Budget, Constraints, FetchOrder, Geometry, IdWidth, LayerId, LayoutKey, Misses, Model, Phase, Quantisation, Scope,
    Step, TailPad,
};
use ftcache_testkit::Rng;

use crate::rig::{ABSENT, Form};

pub(crate) fn pick<T: Copy>(rng: &mut Rng, items: &[T]) -> T {
    items[rng.below(items.len() as u64) as usize]
}

/// A layer's tag and the bytes of a row in each bank.
pub(crate) type Layout = (&'static str, [u64; 3]);

/// Weights and scales: odd widths, a bank that not all read, equal bytes under two tags, rows of several chunks.
pub(crate) const LAYOUTS: [Layout; 5] =
    [("a", [48, 17, 2]), ("b", [80, 17, 0]), ("c", [33, 4, 2]), ("d", [48, 17, 2]), ("e", [20_000, 3, 16])];

pub(crate) fn model(expert_count: u32, top_k: u32, layers: &[Layout]) -> Model {
    let layers = layers.iter().map(|(tag, row_bytes)| LayoutKey::tagged(*tag, row_bytes)).collect();
    Model::new(expert_count, top_k, Quantisation::PerLayer, layers).unwrap()
}

/// Constraints over a number of slots in all.
pub(crate) fn slots(count: u64) -> Constraints {
    Constraints::new(Budget::Slots(count))
}

/// A geometry of these layers in which every pool is smaller than its layers.
pub(crate) fn geometry_of(rng: &mut Rng, model: Model) -> Geometry {
    let experts = u64::from(model.expert_count()) * model.layer_count() as u64;
    loop {
        let layer_count = model.layer_count() as u64;
        let slotless = layer_count > 1 && rng.chance(1, 8);
        let constraints = Constraints {
            scope: pick(rng, &[Scope::Unified, Scope::Unified, Scope::PerLayer]),
            alignment: pick(rng, &[1, 1, 4, 16, 64]),
            slot_pad_bytes: pick(rng, &[0, 0, 5, 16]),
            tail_pad: TailPad::Bytes(pick(rng, &[0, 8, 40])),
            slotless_layers: slotless.then(|| LayerId::new(rng.below(layer_count) as u32)).into_iter().collect(),
            ..slots(1 + rng.below(experts))
        };
        // Some are too few for every pool.
        if let Ok(geometry) = Geometry::new(model.clone(), constraints) {
            return geometry;
        }
    }
}

pub(crate) fn geometry(rng: &mut Rng) -> Geometry {
    let layouts = &LAYOUTS[..if rng.chance(1, 10) { 5 } else { 4 }];
    let layers: Vec<Layout> = match rng.below(3) {
        0 => vec![pick(rng, layouts); 1 + rng.below(4) as usize],
        _ => (0..1 + rng.below(5)).map(|_| pick(rng, layouts)).collect(),
    };
    let expert_count = pick(rng, &[4, 6, 9, 16, 33]);
    geometry_of(rng, model(expert_count, 2, &layers))
}

fn misses(rng: &mut Rng) -> Misses {
    let fraction = Fraction::from_q16(pick(rng, &[19_268, 32_768, 65_536])).unwrap();
    let rule = match rng.below(4) {
        0 => FetchRule::UpTo(rng.below(4) as u32),
        1 => FetchRule::MinWait(fraction),
        2 => FetchRule::PreferFetch(fraction),
        _ => FetchRule::Carry(fraction),
    };
    let most = rng.chance(1, 4).then(|| rng.below(4) as u32);
    Misses::Hybrid { fetch: Fetch { rule, most }, order: pick(rng, &[FetchOrder::Recency, FetchOrder::LowestId]) }
}

/// A step of a layer with slots, of a phase that both sides know.
pub(crate) fn step(rng: &mut Rng, layers: &[LayerId], hybrids: bool) -> Step {
    let misses = if hybrids && rng.chance(2, 3) { misses(rng) } else { Misses::Fetched };
    let phase = pick(rng, &[Phase::Decode, Phase::Decode, Phase::Decode, Phase::Prefill]);
    Step { misses, phase, ..Step::new(pick(rng, layers)) }
}

/// Ids of a step: some are hot, some absent, some come twice.
pub(crate) fn ids(rng: &mut Rng, expert_count: u32, width_most: u64) -> Vec<i64> {
    let hot = 1 + u64::from(expert_count) / 3;
    let id = |rng: &mut Rng| match rng.below(10) {
        0 => ABSENT,
        1..=5 => rng.below(hot) as i64,
        _ => rng.below(u64::from(expert_count)) as i64,
    };
    (0..rng.below(width_most + 1)).map(|_| id(rng)).collect()
}

pub(crate) fn form(rng: &mut Rng) -> Form {
    Form {
        width: pick(rng, &[IdWidth::Four, IdWidth::Eight]),
        per_row: 1 + rng.below(4) as usize,
        gap: pick(rng, &[0, 0, 3]),
        in_place: rng.chance(1, 2),
        map: rng.chance(1, 3),
    }
}
