//! How slots are divided between pools, exact to the last slot.
//!
//! The rule is told one slot at a time: *the next slot goes to the pool with the fewest slots per layer, ties to the
//! lower pool, never past a pool's maximum*. It is carried out by whole rounds, so that a million slots cost no more
//! than a thousand.

use crate::{GeometryError, PoolId};

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
    let least: u64 = pools.iter().map(|pool| u64::from(pool.min_slots)).sum();
    let most: u64 = pools.iter().map(|pool| u64::from(pool.max_slots)).sum();
    if total < least {
        return Err(GeometryError::SlotsBelowMinimum { needed: least, given: total });
    }
    if total > most {
        return Err(GeometryError::SlotsAboveMaximum { most, given: total });
    }
    Ok(water_fill(pools, &vec![1; pools.len()], total))
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

/// The bounds of each pool: at least what the requests need, at most every expert of its layers or the kernels' limit.
///
/// # Errors
///
/// A `slot_limit` below the least slots, with both numbers.
pub(crate) fn make_pools<'a>(
    groups: impl Iterator<Item = &'a [crate::LayerId]>,
    expert_count: u32,
    min_slots: u32,
    slot_limit: Option<u32>,
) -> Result<Vec<PoolBounds>, GeometryError> {
    groups
        .enumerate()
        .map(|(index, layers)| {
            // Fits: a model's flat expert ids do.
            let all = layers.len() as u32 * expert_count;
            let max_slots = slot_limit.map_or(all, |limit| limit.min(all));
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
