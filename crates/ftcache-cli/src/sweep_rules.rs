//! Eviction rules beside LRU in a `sweep`: the cache itself, replayed at each size with nothing to move.

use ftcache::Scope;
use ftcache::policy::{Eviction, ExpertId, LayerId, PoolId, Split};
use ftcache::residency::{Cache, EnsureError, Plan};
use ftcache_trace::Events;

use crate::sweep_lines::{Contender, Cost, sum};
use crate::sweep_space::Space;

/// A rule in the pools of one scope, divided equally.
pub(crate) fn contender<'a>(space: &'a Space, events: &'a Events, rule: Eviction, scope: Scope) -> Contender<'a> {
    let groups = space.groups(scope);
    let misses = move |size| {
        let slots = space.slots(scope, &Split::Equal, size)?;
        let misses = replay(events, rule, &groups, &slots)?;
        sum(space, &groups, |pool| Some(misses[pool]))
    };
    let (scope, name) = match scope {
        Scope::Unified => ("unified", format!("unified {}", label(rule))),
        Scope::PerLayer => ("per-layer", format!("per-layer {}", label(rule))),
    };
    Contender {
        name: name.into(),
        policy: rule.name(),
        scope,
        split: "equal",
        is_configurable: true,
        cost: Cost::Replay,
        misses: Box::new(misses),
    }
}

/// Abbreviations in capitals, as elsewhere in the table.
fn label(rule: Eviction) -> String {
    match rule {
        Eviction::Lru | Eviction::Lfu => rule.name().to_uppercase(),
        Eviction::Cyclic | Eviction::Learned => rule.name().to_owned(),
    }
}

/// The misses of each pool; none if a step is wider than its pool.
fn replay(events: &Events, rule: Eviction, groups: &[Vec<LayerId>], slots: &[u32]) -> Option<Vec<u64>> {
    let mut pool_of_layer = vec![None; events.layers() as usize];
    for (pool, layers) in groups.iter().enumerate() {
        layers.iter().for_each(|layer| pool_of_layer[layer.index()] = Some(PoolId::from_index(pool)));
    }
    let mut cache =
        Cache::with_pools(events.experts(), &pool_of_layer, slots).expect("a space has no more slots than experts");
    cache.set_eviction(rule).expect("a trace has no more experts than 16 bits count");
    let (mut plan, mut routes) = (Plan::new(), Vec::new());
    let mut misses = vec![0; groups.len()];
    for event in events.iter() {
        routes.clear();
        routes.extend(event.experts.iter().map(|&expert| ExpertId::new(u32::from(expert))));
        match cache.ensure(LayerId::new(event.layer), &routes, &mut plan) {
            Ok(ticket) => ticket.commit(),
            Err(EnsureError::StepTooWide { .. }) => return None,
            Err(other) => unreachable!("the layers and experts are the trace's own: {other}"),
        }
        misses[plan.pool().index()] += plan.copies().len() as u64;
    }
    Some(misses)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ftcache_trace::{Header, MissCurve, Phase, Segment, Shape, Trace};

    /// Where all slots are one pool, misses are those of the curve; the rule decides the ties of one step otherwise.
    #[test]
    fn lru_misses_what_its_curve_says() {
        let shape = Shape { tokens: 200, layers: 3, top_k: 1, experts: 6 };
        let header = Header::new("by hand", shape, vec![Segment::new("request", Phase::Decode, 0, 200)]);
        let ids = (0..600_u32).map(|cell| (cell * cell / 7 % 6) as u16).collect();
        let events = Events::of(&Trace::new(header, ids).unwrap());
        let curve = MissCurve::lru(&events);
        let layers = vec![(0..3).map(LayerId::new).collect::<Vec<_>>()];
        for slots in 1..=18 {
            let misses = replay(&events, Eviction::Lru, &layers, &[slots]).unwrap();
            assert_eq!(Some(misses[0]), curve.misses(slots as usize), "{slots} slots");
        }
        assert_eq!(replay(&events, Eviction::Learned, &layers, &[0]), None);
    }
}
