//! How slots are divided between pools, exact to the last slot.
//!
//! Each rule is told one slot at a time, from the minima and never past a pool's maximum; ties go to the lower pool:
//!
//! - `equal`: *the next slot goes to the pool with the fewest slots per layer*;
//! - `profile`: *the next slot goes to the pool whose next most used expert has the largest share of its layer*;
//! - `curve`: *the next slot goes to the pool where it saves the most fetched bytes a byte that it takes*, and is in
//!   `hull.rs`.
//!
//! The first two are not carried out so. `equal` goes by whole rounds, so that a million slots cost no more than a
//! thousand; `profile` counts experts by ranges of their share, and gives whole ranges at once.

use crate::hull::fill_by_curve;
use crate::{Curves, GeometryError, LayerId, PoolId, Profile};

/// How slots are divided between pools.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Split {
    /// As many per layer in every pool as the bounds allow.
    #[default]
    Equal,
    /// By how often the experts of a pool's layers were used.
    Profile(Profile),
    /// By how many fetched bytes each slot saves, as misses were counted on a trace.
    Curve(Curves),
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
///
/// # Panics
///
/// If a pool has no layer, or a minimum over its maximum.
pub fn split_equal(pools: &[PoolBounds], total: u64) -> Result<Vec<u32>, GeometryError> {
    check_total(pools, total)?;
    Ok(water_fill(pools, &vec![1; pools.len()], total))
}

/// `total` slots over all pools by the use of their experts; `groups[pool]` are the layers of each pool.
///
/// ```
/// use ftcache_policy::{LayerId, PoolBounds, Profile, split_profile};
///
/// let pool = PoolBounds { layer_count: 1, min_slots: 1, max_slots: 4 };
/// let groups = [vec![LayerId::new(0)], vec![LayerId::new(1)]];
/// // Layer 0 is used evenly, layer 1 mostly for one expert, which its minimum covers.
/// let profile = Profile::new("tiny", &[vec![1.0, 1.0, 1.0, 1.0], vec![97.0, 1.0, 1.0, 1.0]])?;
/// assert_eq!(split_profile(&[pool, pool], &groups, &profile, 5)?, [4, 1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// As [`split_equal`]'s.
///
/// # Panics
///
/// As [`split_equal`]; if there is not one group for each pool, if the profile lacks a layer, or if a pool may have
/// more slots than its layers have experts.
pub fn split_profile(
    pools: &[PoolBounds],
    groups: &[Vec<LayerId>],
    profile: &Profile,
    total: u64,
) -> Result<Vec<u32>, GeometryError> {
    assert_eq!(pools.len(), groups.len(), "a group of layers for each pool");
    check_total(pools, total)?;
    Ok(fill_by_use(pools, groups, profile, &vec![1; pools.len()], total))
}

/// `total` slots over all pools by the fetched bytes that each saves; `groups[pool]` are the layers of each pool, and
/// `row_bytes[pool]` is what a miss of them fetches, over all banks. A pool of several layers misses what they would
/// with its slots shared out equally between them.
///
/// ```
/// use ftcache_policy::{Curves, LayerId, PoolBounds, split_curve};
///
/// let pool = PoolBounds { layer_count: 1, min_slots: 1, max_slots: 4 };
/// let groups = [vec![LayerId::new(0)], vec![LayerId::new(1)]];
/// // Layer 0 walks through three experts in turn and misses until it holds them all; layer 1 mostly uses one.
/// let curves = Curves::new("tiny", vec![vec![90, 90, 90, 3], vec![90, 30, 20, 12, 4]])?;
/// assert_eq!(split_curve(&[pool, pool], &groups, &curves, &[1, 1], 4)?, [3, 1]);
/// // 8 misses of 11 bytes each are more than 43.5 of 2 bytes each.
/// assert_eq!(split_curve(&[pool, pool], &groups, &curves, &[2, 11], 4)?, [1, 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// As [`split_equal`]'s.
///
/// # Panics
///
/// As [`split_equal`]; if there is not one group and one row for each pool, or if a layer has no curve.
pub fn split_curve(
    pools: &[PoolBounds],
    groups: &[Vec<LayerId>],
    curves: &Curves,
    row_bytes: &[u64],
    total: u64,
) -> Result<Vec<u32>, GeometryError> {
    assert_eq!(pools.len(), groups.len(), "a group of layers for each pool");
    assert_eq!(pools.len(), row_bytes.len(), "a row for each pool");
    check_total(pools, total)?;
    Ok(fill_by_curve(pools, groups, curves, row_bytes, &vec![1; pools.len()], total))
}

fn check_total(pools: &[PoolBounds], total: u64) -> Result<(), GeometryError> {
    for (index, pool) in pools.iter().enumerate() {
        let PoolBounds { layer_count, min_slots, max_slots } = *pool;
        assert!(min_slots <= max_slots && layer_count > 0, "pool {index}: {min_slots} to {max_slots} slots");
    }
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

/// As [`water_fill`], in the order of use.
pub(crate) fn fill_by_use(
    pools: &[PoolBounds],
    groups: &[Vec<LayerId>],
    profile: &Profile,
    costs: &[u64],
    budget: u64,
) -> Vec<u32> {
    for (index, (bounds, layers)) in pools.iter().zip(groups).enumerate() {
        let (most, experts) = (bounds.max_slots as usize, layers.len() * profile.expert_count());
        assert!(most <= experts, "pool {index}: at most {most} slots for {experts} experts");
    }
    let sizes: Vec<u32> = pools.iter().map(|pool| pool.min_slots).collect();
    let mut fill = Fill {
        pools,
        costs,
        rest: u128::from(budget) - cost_of(&sizes, costs),
        covered: sizes.clone(),
        open: pools.iter().map(|pool| pool.min_slots < pool.max_slots).collect(),
        sizes,
    };
    fill.give(&Uses { groups, profile });
    fill.sizes
}

/// One expert that could fill a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Candidate {
    /// The bits of its share: shares are not negative, so these order as the shares do.
    share_bits: u64,
    pool: u32,
}

/// A list of candidates in any order, to be walked again and again.
trait Candidates {
    fn len(&self) -> usize;
    fn for_each(&self, see: impl FnMut(Candidate));
}

/// All experts of all pools.
struct Uses<'a> {
    groups: &'a [Vec<LayerId>],
    profile: &'a Profile,
}

impl Candidates for Uses<'_> {
    fn len(&self) -> usize {
        self.groups.iter().map(Vec::len).sum::<usize>() * self.profile.expert_count()
    }

    fn for_each(&self, mut see: impl FnMut(Candidate)) {
        for (pool, layers) in self.groups.iter().enumerate() {
            for &layer in layers {
                for share in self.profile.shares(layer) {
                    see(Candidate { share_bits: share.to_bits(), pool: pool as u32 });
                }
            }
        }
    }
}

impl Candidates for Vec<Candidate> {
    fn len(&self) -> usize {
        self.len()
    }

    fn for_each(&self, see: impl FnMut(Candidate)) {
        self.iter().copied().for_each(see);
    }
}

/// So few candidates are sorted; more are counted by ranges of their shares first.
const SORTED_AT_ONCE: usize = 1 << 12;
/// Ranges of shares that are counted in one pass.
const RANGE_COUNT: usize = 1 << 12;

/// A split under way.
struct Fill<'a> {
    pools: &'a [PoolBounds],
    costs: &'a [u64],
    /// What is left of the budget.
    rest: u128,
    /// Of each pool's most used experts, how many its minimum covers that were not seen yet.
    covered: Vec<u32>,
    /// Whether a pool may still grow. One whose next slot did not fit never fits again.
    open: Vec<bool>,
    sizes: Vec<u32>,
}

impl Fill<'_> {
    /// Gives slots to candidates in their order, all of which come after those given before.
    ///
    /// Ranges of shares that fit as a whole are given without a look at their experts, so the cost is that of a few
    /// passes, whatever the number of slots.
    fn give(&mut self, candidates: &impl Candidates) {
        let (mut lowest, mut highest) = (u64::MAX, 0);
        candidates.for_each(|one| {
            lowest = lowest.min(one.share_bits);
            highest = highest.max(one.share_bits);
        });
        if candidates.len() <= SORTED_AT_ONCE || lowest == highest {
            return self.give_sorted(candidates);
        }
        let span = highest - lowest;
        let shift = (u64::BITS - span.leading_zeros()).saturating_sub(RANGE_COUNT.ilog2());
        let range_of = |one: Candidate| ((one.share_bits - lowest) >> shift) as usize;
        let mut counts = vec![0_u32; self.pools.len() * RANGE_COUNT];
        candidates.for_each(|one| counts[one.pool as usize * RANGE_COUNT + range_of(one)] += 1);

        for range in (0..RANGE_COUNT).rev() {
            let in_range = |pool: usize| counts[pool * RANGE_COUNT + range];
            let least_cost = (0..self.pools.len()).filter(|&pool| self.open[pool]).map(|pool| self.costs[pool]).min();
            if least_cost.is_none_or(|cost| u128::from(cost) > self.rest) {
                return;
            }
            let cost: u128 = (0..self.pools.len())
                .map(|pool| u128::from(self.growth(pool, in_range(pool))) * u128::from(self.costs[pool]))
                .sum();
            if cost <= self.rest {
                (0..self.pools.len()).for_each(|pool| self.give_count(pool, in_range(pool)));
            } else {
                let mut those = Vec::with_capacity((0..self.pools.len()).map(|pool| in_range(pool) as usize).sum());
                candidates.for_each(|one| {
                    if range_of(one) == range {
                        those.push(one);
                    }
                });
                self.give(&those);
            }
        }
    }

    /// The same for candidates that are few, or of equal shares.
    fn give_sorted(&mut self, candidates: &impl Candidates) {
        let mut sorted = Vec::with_capacity(candidates.len());
        candidates.for_each(|one| sorted.push(one));
        sorted.sort_unstable_by(|a, b| b.share_bits.cmp(&a.share_bits).then(a.pool.cmp(&b.pool)));
        for one in sorted {
            self.give_count(one.pool as usize, 1);
        }
    }

    /// By how many slots a pool would grow for its next `count` candidates, if all of them fitted.
    fn growth(&self, pool: usize, count: u32) -> u32 {
        if !self.open[pool] {
            return 0;
        }
        count.saturating_sub(self.covered[pool]).min(self.pools[pool].max_slots - self.sizes[pool])
    }

    /// Slots for a pool's next `count` candidates, as far as they fit.
    fn give_count(&mut self, pool: usize, count: u32) {
        let growth = self.growth(pool, count);
        self.covered[pool] = self.covered[pool].saturating_sub(count);
        let cost = u128::from(self.costs[pool]);
        let fitting = if u128::from(growth) * cost <= self.rest { growth } else { (self.rest / cost) as u32 };
        self.sizes[pool] += fitting;
        self.rest -= u128::from(fitting) * cost;
        if fitting < growth || self.sizes[pool] == self.pools[pool].max_slots {
            self.open[pool] = false;
        }
    }
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

pub(crate) fn cost_of(sizes: &[u32], costs: &[u64]) -> u128 {
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
