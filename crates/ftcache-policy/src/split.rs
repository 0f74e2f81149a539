//! How slots are divided between pools, exact to the last slot.
//!
//! Each rule is told one slot at a time, from the minima and never past a pool's maximum; ties go to the lower pool:
//!
//! - `equal`: *the next slot goes to the pool with the fewest slots per layer*;
//! - `profile`: *the next slot goes to the pool whose next most used expert has the largest share of its layer*.
//!
//! None is carried out so. `equal` goes by whole rounds, so that a million slots cost no more than a thousand;
//! `profile` selects the experts above a share instead of walking down to it.

use crate::{GeometryError, LayerId, PoolId, Profile};

/// How slots are divided between pools.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Split {
    /// As many per layer in every pool as the bounds allow.
    #[default]
    Equal,
    /// By how often the experts of a pool's layers were used.
    Profile(Profile),
}

/// What bounds one pool's slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolBounds {
    /// Layers that share the pool.
    pub layer_count: u32,
    /// The least slots with which the configured requests decode at once.
    pub min_slots: u32,
    /// The most slots that can ever be used.
    pub max_slots: u32,
}

/// `total` slots over all pools, as equal per layer as the bounds allow.
///
/// # Errors
///
/// Fewer slots than the minima need, or more than the maxima can use: both are refused, not clamped.
pub fn split_equal(pools: &[PoolBounds], total: u64) -> Result<Vec<u32>, GeometryError> {
    check_total(pools, total)?;
    Ok(water_fill(pools, &vec![1; pools.len()], total))
}

/// `total` slots over all pools by the use of their experts; `groups[pool]` are the layers of each pool.
///
/// # Errors
///
/// As [`split_equal`]'s.
///
/// # Panics
///
/// If the profile lacks a layer, or a pool may have more slots than its layers have experts.
pub fn split_profile(
    pools: &[PoolBounds],
    groups: &[Vec<LayerId>],
    profile: &Profile,
    total: u64,
) -> Result<Vec<u32>, GeometryError> {
    check_total(pools, total)?;
    Ok(fill_by_use(pools, groups, profile, &vec![1; pools.len()], total))
}

fn check_total(pools: &[PoolBounds], total: u64) -> Result<(), GeometryError> {
    let least: u64 = pools.iter().map(|pool| u64::from(pool.min_slots)).sum();
    let most: u64 = pools.iter().map(|pool| u64::from(pool.max_slots)).sum();
    if total < least {
        return Err(GeometryError::SlotsBelowMinimum { needed: least, given: total });
    }
    if total > most {
        return Err(GeometryError::SlotsAboveMaximum { most, given: total });
    }
    Ok(())
}

/// One slot that a pool could have next: the share of the expert that would fill it, and the pool.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    /// The bits of a share: shares are not negative, so these order as the shares do.
    share_bits: u64,
    pool: u32,
}

/// As [`water_fill`], in the order of use.
pub(crate) fn fill_by_use(
    pools: &[PoolBounds],
    groups: &[Vec<LayerId>],
    profile: &Profile,
    costs: &[u64],
    budget: u64,
) -> Vec<u32> {
    let mut sizes: Vec<u32> = pools.iter().map(|pool| pool.min_slots).collect();
    let mut rest = u128::from(budget) - cost_of(&sizes, costs);
    let mut candidates = Vec::new();
    let mut used = Vec::new();
    for (index, (bounds, layers)) in pools.iter().zip(groups).enumerate() {
        used.clear();
        used.extend(layers.iter().flat_map(|&layer| profile.shares(layer)).map(|share| share.to_bits()));
        let (min, max) = (bounds.min_slots as usize, bounds.max_slots as usize);
        assert!(max <= used.len(), "pool {index}: at most {max} slots for {} experts", used.len());
        // The most used experts fill the minimum, the least used find no slot at the maximum.
        if max < used.len() {
            used.select_nth_unstable_by(max, |a, b| b.cmp(a));
            used.truncate(max);
        }
        if min >= used.len() {
            continue;
        }
        if min > 0 {
            used.select_nth_unstable_by(min - 1, |a, b| b.cmp(a));
        }
        candidates.extend(used[min..].iter().map(|&share_bits| Candidate { share_bits, pool: index as u32 }));
    }

    // Each turn gives slots in order up to the first that does not fit; then its pool is out, and never fits again.
    let mut left = candidates.as_mut_slice();
    while !left.is_empty() {
        let fitting = longest_prefix_within(left, costs, rest);
        for candidate in &left[..fitting] {
            sizes[candidate.pool as usize] += 1;
            rest -= u128::from(costs[candidate.pool as usize]);
        }
        left = &mut left[fitting..];
        let Some(out) = left.first().map(|candidate| candidate.pool) else { break };
        let mut kept = 0;
        for index in 0..left.len() {
            if left[index].pool != out {
                left.swap(index, kept);
                kept += 1;
            }
        }
        left = &mut left[..kept];
    }
    sizes
}

/// Reorders `candidates` so that the longest run of first ones that costs no more than `rest` comes first, and then the
/// next in order; returns the run's length.
///
/// A selection instead of a sort: each turn halves the part that is in question, so the cost is that of a few passes.
fn longest_prefix_within(candidates: &mut [Candidate], costs: &[u64], rest: u128) -> usize {
    let (mut begin, mut end, mut spent) = (0, candidates.len(), 0_u128);
    // Before `begin` all fit; from `end` on, none is in the run, and each comes after all before `end`.
    while begin < end {
        let middle = begin + (end - begin) / 2;
        candidates[begin..end]
            .select_nth_unstable_by(middle - begin, |a, b| b.share_bits.cmp(&a.share_bits).then(a.pool.cmp(&b.pool)));
        let cost: u128 = candidates[begin..=middle].iter().map(|one| u128::from(costs[one.pool as usize])).sum();
        if spent + cost <= rest {
            spent += cost;
            begin = middle + 1;
        } else {
            end = middle;
        }
    }
    begin
}

/// Slots from the minima upwards, each at its pool's `costs`, while they fit into `budget`.
///
/// A pool whose next slot does not fit is out, the others go on: in the end no pool could take one more slot. The
/// minima must fit.
pub(crate) fn water_fill(pools: &[PoolBounds], costs: &[u64], budget: u64) -> Vec<u32> {
    let mut sizes: Vec<u32> = pools.iter().map(|pool| pool.min_slots).collect();
    let mut rest = u128::from(budget) - cost_of(&sizes, costs);
    let mut open: Vec<bool> = pools.iter().map(|pool| pool.min_slots < pool.max_slots).collect();

    // Each turn ends with one open pool fewer: it is full, or its next slot does not fit and never will again.
    while open.contains(&true) {
        let raised = raise_whole_rounds(pools, costs, &sizes, &open, rest);
        rest -= cost_of(&raised, costs) - cost_of(&sizes, costs);
        sizes = raised;
        // What is left is less than a round, so single steps are few.
        while let Some(next) = fewest_slots_per_layer(pools, &sizes, &open) {
            let cost = u128::from(costs[next]);
            let fits = sizes[next] < pools[next].max_slots && cost <= rest;
            if !fits {
                open[next] = false;
                break;
            }
            sizes[next] += 1;
            rest -= cost;
        }
    }
    sizes
}

/// The sizes after the most whole rounds that fit: a round brings every open pool to one more slot per layer.
fn raise_whole_rounds(pools: &[PoolBounds], costs: &[u64], sizes: &[u32], open: &[bool], rest: u128) -> Vec<u32> {
    let at_round = |round: u64| -> Vec<u32> {
        let raise = |index: usize| {
            let pool = &pools[index];
            let wanted = (round * u64::from(pool.layer_count)).min(u64::from(pool.max_slots)) as u32;
            if open[index] { wanted.max(sizes[index]) } else { sizes[index] }
        };
        (0..pools.len()).map(raise).collect()
    };
    let spent = cost_of(sizes, costs);
    // Round 0 raises nothing and fits; round `max_slots` fills every pool.
    let (mut fits, mut past) = (0, pools.iter().map(|pool| u64::from(pool.max_slots)).max().unwrap_or(0) + 1);
    while past - fits > 1 {
        let middle = fits + (past - fits) / 2;
        if cost_of(&at_round(middle), costs) - spent <= rest {
            fits = middle;
        } else {
            past = middle;
        }
    }
    at_round(fits)
}

fn fewest_slots_per_layer(pools: &[PoolBounds], sizes: &[u32], open: &[bool]) -> Option<usize> {
    (0..pools.len()).filter(|&index| open[index]).min_by(|&a, &b| {
        let left = u64::from(sizes[a]) * u64::from(pools[b].layer_count);
        let right = u64::from(sizes[b]) * u64::from(pools[a].layer_count);
        left.cmp(&right)
    })
}

fn cost_of(sizes: &[u32], costs: &[u64]) -> u128 {
    sizes.iter().zip(costs).map(|(&size, &cost)| u128::from(size) * u128::from(cost)).sum()
}

/// The least slots of a pool: what `request_count` requests of `top_k` experts can need at once.
pub(crate) fn min_slots(expert_count: u32, top_k: u32, request_count: u32) -> u32 {
    let wanted = u64::from(top_k) * u64::from(request_count);
    wanted.min(u64::from(expert_count)) as u32
}

/// The bounds of each pool: at least `min_slots`, at most every expert of its layers, `most`, and the limit of the
/// pool's own kernels.
///
/// # Errors
///
/// A limit below the least slots, with both numbers.
pub(crate) fn make_pools(
    groups: &[Vec<LayerId>],
    expert_count: u32,
    min_slots: u32,
    most: u32,
    slot_limit: impl Fn(LayerId) -> Option<u32>,
) -> Result<Vec<PoolBounds>, GeometryError> {
    groups
        .iter()
        .enumerate()
        .map(|(index, layers)| {
            // Fits: a model's flat expert ids do.
            let all = (layers.len() as u32 * expert_count).min(most);
            let max_slots = slot_limit(layers[0]).map_or(all, |limit| limit.min(all));
            if max_slots < min_slots {
                return Err(GeometryError::SlotLimitBelowMinimum {
                    pool: PoolId::from_index(index),
                    needed: min_slots,
                    limit: max_slots,
                });
            }
            Ok(PoolBounds { layer_count: layers.len() as u32, min_slots, max_slots })
        })
        .collect()
}
