//! Caches as tests want them: of some shape, and in a state that would take long to come to.

use ftcache_policy::{
    Budget, Constraints, Eviction, ExpertId, Fetch, FetchOrder, FetchRule, Fraction, Geometry, LayerId, LayoutKey,
    Model, PoolId, Quantisation, Staging,
};
use ftcache_residency::{Cache, Misses, Phase, Step};

pub(crate) fn layer(number: u32) -> LayerId {
    LayerId::new(number)
}

/// A cache without residents; the pool of each layer, and the slots of each pool.
pub(crate) fn empty(expert_count: u32, pool_of_layer: &[u32], slot_counts: &[u32]) -> Cache {
    let pools: Vec<Option<PoolId>> = pool_of_layer.iter().map(|&pool| Some(PoolId::new(pool))).collect();
    Cache::with_pools(expert_count, &pools, slot_counts).unwrap()
}

/// The same with one pool for all layers.
pub(crate) fn one_pool(layer_count: usize, expert_count: u32, slot_count: u32) -> Cache {
    empty(expert_count, &vec![0; layer_count], &[slot_count])
}

/// The rules by which victims go by score.
pub(crate) const SCORED: [Eviction; 3] = [Eviction::Lfu, Eviction::Cyclic, Eviction::Learned];

/// The cache under a rule.
pub(crate) fn ruled(rule: Eviction, mut cache: Cache) -> Cache {
    cache.set_eviction(rule).unwrap();
    cache
}

/// A cache over one bank, with room for a buffer of its experts.
pub(crate) fn with_staging(layers: usize, experts: u32, slots: u64) -> Cache {
    let keys = vec![LayoutKey::tagged("t", [16]); layers];
    let model = Model::new(experts, 1, Quantisation::PerLayer, keys).unwrap();
    let geometry = Geometry::new(model, Constraints::new(Budget::Slots(slots))).unwrap();
    let mut cache = Cache::new(&geometry);
    cache.set_staging(Staging::borrowed(&geometry).unwrap().without_overlap(), 0).unwrap();
    cache
}

/// One expert in a slot. Slots are counted over all pools.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Resident {
    pub(crate) slot: usize,
    /// Flat.
    pub(crate) expert: u32,
    pub(crate) stamp: u64,
}

/// The cache after so many steps, with these residents beside those it has.
pub(crate) fn filled(mut cache: Cache, step: u64, residents: impl IntoIterator<Item = Resident>) -> Cache {
    let mut state = cache.state().unwrap();
    state.step = step;
    for Resident { slot, expert, stamp } in residents {
        let pool = state.pools.iter().rfind(|pool| pool.first as usize <= slot).unwrap();
        state.places[expert as usize] = slot as u32 - pool.first;
        (state.owners[slot], state.stamps[slot]) = (expert, stamp);
    }
    cache.set_state(&state).unwrap();
    cache.check().unwrap();
    cache
}

/// Expert `i` in slot `i`, with the i-th of these stamps; the last step is the highest of them.
pub(crate) fn stamped(cache: Cache, stamps: &[u64]) -> Cache {
    let step = stamps.iter().copied().max().unwrap_or(0);
    let resident = |(slot, &stamp): (usize, &u64)| Resident { slot, expert: slot as u32, stamp };
    filled(cache, step, stamps.iter().enumerate().filter(|(_, stamp)| **stamp > 0).map(resident))
}

pub(crate) fn decode(number: u32) -> Step {
    Step::new(layer(number))
}

pub(crate) fn prefill(number: u32) -> Step {
    Step { phase: Phase::Prefill, ..decode(number) }
}

/// A decode step of which a CPU computes what this rule leaves to it.
pub(crate) fn hybrid(number: u32, rule: FetchRule) -> Step {
    let fetch = Fetch { rule, most: None };
    Step { misses: Misses::Hybrid { fetch, order: FetchOrder::Recency }, ..decode(number) }
}

pub(crate) fn fraction(ratio: f64) -> Fraction {
    Fraction::nearest(ratio).unwrap()
}

/// So many experts of a layer, from one on.
pub(crate) fn span(first: u32, count: u32) -> Vec<i64> {
    (first..first + count).map(i64::from).collect()
}

/// Experts of a layer, to be pinned.
pub(crate) fn of_layer(number: u32, experts: impl IntoIterator<Item = u32>) -> Vec<(LayerId, ExpertId)> {
    experts.into_iter().map(|expert| (layer(number), ExpertId::new(expert))).collect()
}
