//! The replay: slow and clear. An event is atomic, the cache starts cold, and what an event uses is never its victim.

use ftcache_policy::{Eviction, ExpertId, LayerId, PoolId};
use ftcache_residency::{Cache, Plan};
use ftcache_trace::Events;

use crate::policy::Policy;

/// An empty slot, or an expert without one.
const NONE: u32 = u32::MAX;

/// Which residents a victim is looked for among.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Candidates {
    /// All.
    All,
    /// So many, the least recent of the whole pool.
    Oldest(usize),
    /// So many: the least recent `each` of this layer, then of the layer before, and so on round the cycle.
    Behind { count: usize, each: usize },
}

/// Which layers share slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    Unified,
    Layer,
}

/// Misses of the cache itself under one of its rules.
pub(crate) fn misses_of(rule: Eviction, events: &Events, slots: usize, scope: Scope) -> u64 {
    let layers = events.layers() as usize;
    let (pools, slot_counts): (Vec<usize>, Vec<u32>) = match scope {
        Scope::Unified => (vec![0; layers], vec![slots as u32]),
        Scope::Layer => {
            let bounds = |layer| (slots * (layer + 1) / layers - slots * layer / layers) as u32;
            ((0..layers).collect(), (0..layers).map(bounds).collect())
        }
    };
    let pools: Vec<_> = pools.into_iter().map(|pool| Some(PoolId::from_index(pool))).collect();
    let mut cache = Cache::with_pools(events.experts(), &pools, &slot_counts).expect("there are few slots");
    cache.set_eviction(rule).expect("there are few experts");
    let (mut plan, mut routes) = (Plan::new(), Vec::new());
    let mut misses = 0;
    for event in events.iter() {
        routes.clear();
        routes.extend(event.experts.iter().map(|&id| ExpertId::new(u32::from(id))));
        cache.ensure(LayerId::new(event.layer), &routes, &mut plan).expect("a step fits").commit();
        misses += plan.copies().len() as u64;
    }
    misses
}

/// Misses with so many slots in all.
pub(crate) fn misses(
    events: &Events,
    slots: usize,
    scope: Scope,
    candidates: Candidates,
    policy: &mut dyn Policy,
) -> u64 {
    let (layers, experts) = (events.layers() as usize, events.experts() as usize);
    let pools: Vec<std::ops::Range<usize>> = match scope {
        Scope::Unified => vec![0..slots; layers],
        Scope::Layer => (0..layers).map(|layer| slots * layer / layers..slots * (layer + 1) / layers).collect(),
    };
    let mut slot_of = vec![NONE; layers * experts];
    let mut expert_of = vec![NONE; slots];
    let mut stamp = vec![0u64; slots];
    let mut misses = 0;
    let mut missed = Vec::new();
    let mut choice: Vec<(u64, u32)> = Vec::new();
    for (step, event) in (1..).zip(events.iter()) {
        let layer = event.layer as usize;
        let pool = pools[layer].clone();
        assert!(event.experts.len() <= pool.len(), "a step is wider than its {} slots", pool.len());
        policy.on_event(layer, event.experts);
        missed.clear();
        for &id in event.experts {
            let flat = layer * experts + usize::from(id);
            match slot_of[flat] {
                NONE => missed.push(flat as u32),
                slot => stamp[slot as usize] = step,
            }
        }
        missed.sort_unstable();
        misses += missed.len() as u64;

        choice.clear();
        let free = pool.clone().filter(|&slot| expert_of[slot] == NONE).map(|slot| (0, slot as u32));
        choice.extend(free.take(missed.len()));
        let wanted = missed.len() - choice.len();
        if wanted > 0 {
            let mut from: Vec<u32> = pool.map(|slot| slot as u32).collect();
            from.retain(|&slot| expert_of[slot as usize] != NONE && stamp[slot as usize] != step);
            narrow(&mut from, candidates, wanted, &stamp, |slot| {
                let of = expert_of[slot as usize] as usize / experts;
                (layer + layers - of) % layers
            });
            let mut scored: Vec<(u64, u32)> =
                from.iter().map(|&slot| (policy.score(expert_of[slot as usize] as usize, layer), slot)).collect();
            scored.select_nth_unstable(wanted - 1);
            scored.truncate(wanted);
            scored.sort_unstable();
            choice.extend(scored);
        }
        for (&flat, &(_, slot)) in missed.iter().zip(&choice) {
            let old = std::mem::replace(&mut expert_of[slot as usize], flat);
            if old != NONE {
                slot_of[old as usize] = NONE;
            }
            slot_of[flat as usize] = slot;
            stamp[slot as usize] = step;
        }
    }
    misses
}

/// Leaves the candidates; at least as many as are wanted.
fn narrow(from: &mut Vec<u32>, to: Candidates, wanted: usize, stamp: &[u64], behind: impl Fn(u32) -> usize) {
    match to {
        Candidates::All => {}
        Candidates::Oldest(count) => {
            from.sort_unstable_by_key(|&slot| (stamp[slot as usize], slot));
            from.truncate(count.max(wanted));
        }
        Candidates::Behind { count, each } => {
            from.sort_unstable_by_key(|&slot| (behind(slot), stamp[slot as usize], slot));
            // The first `each` of every layer in front, the rest behind, both in order.
            let mut rank = 0;
            let mut last = usize::MAX;
            let mut keyed: Vec<(bool, u32)> = Vec::with_capacity(from.len());
            for &slot in from.iter() {
                let layer = behind(slot);
                rank = if layer == last { rank + 1 } else { 0 };
                last = layer;
                keyed.push((rank >= each, slot));
            }
            keyed.sort_by_key(|&(late, _)| late);
            from.clear();
            from.extend(keyed.iter().take(count.max(wanted)).map(|&(_, slot)| slot));
        }
    }
}
