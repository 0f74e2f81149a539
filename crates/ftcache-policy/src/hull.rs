//! The split by curves: *the next slot goes to the pool where it saves the most misses a byte*.
//!
//! A curve may be flat and then fall: LRU misses all of a cycle until the whole of it fits. There a single slot saves
//! nothing, and only all of them together do. So a slot counts for its stretch of the curve's lower convex hull, and
//! saves as much as the stretch does on average. On convex curves the division is the best that there is, wherever the
//! budget ends; else it is where it ends between two stretches.
//!
//! Of equal savings the slot goes to the pool with the fewest slots per layer, then to the lower one: where the curves
//! tell nothing apart, the split is `equal`.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::split::cost_of;
use crate::{Curves, LayerId, PoolBounds};

/// A pool's next slot.
struct Next {
    /// Misses that its stretch of the hull saves.
    saved: u64,
    /// Bytes of that stretch, for which it saves them.
    bytes: u128,
    /// Slots that the pool has.
    size: u32,
    layer_count: u32,
    pool: usize,
}

impl Ord for Next {
    /// The one to be given first is the greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        let saving = product(other.bytes, self.saved).cmp(&product(self.bytes, other.saved));
        let sizes = || {
            let left = u64::from(self.size) * u64::from(other.layer_count);
            (u64::from(other.size) * u64::from(self.layer_count)).cmp(&left)
        };
        saving.then_with(sizes).then_with(|| other.pool.cmp(&self.pool))
    }
}

impl PartialOrd for Next {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Next {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Next {}

/// The product's upper 128 bits, then its lower 64: 128 alone do not hold it, and a rounded one would give ties to
/// whoever is rounded up.
fn product(bytes: u128, saved: u64) -> (u128, u64) {
    let low = u128::from(bytes as u64) * u128::from(saved);
    ((bytes >> 64) * u128::from(saved) + (low >> 64), low as u64)
}

/// The corners of the lower convex hull, from the first point to the last: misses saved a slot fall from each to the
/// next.
fn hull(points: impl Iterator<Item = (u32, u64)>) -> Vec<(u32, u64)> {
    let mut corners: Vec<(u32, u64)> = Vec::new();
    for point in points {
        while let [.., first, second] = corners[..] {
            let saved = |from: (u32, u64), to: (u32, u64), over: u32| u128::from(from.1 - to.1) * u128::from(over);
            if saved(first, second, point.0 - second.0) > saved(second, point, second.0 - first.0) {
                break;
            }
            corners.pop();
        }
        corners.push(point);
    }
    corners
}

/// Slots from the minima upwards, each at its pool's `costs`, while they fit into `budget`.
///
/// As in `water_fill`, a pool whose next slot does not fit is out, and the others go on. The minima must fit.
pub(crate) fn fill_by_curve(
    pools: &[PoolBounds],
    groups: &[Vec<LayerId>],
    curves: &Curves,
    costs: &[u64],
    budget: u64,
) -> Vec<u32> {
    let mut sizes: Vec<u32> = pools.iter().map(|pool| pool.min_slots).collect();
    let mut rest = u128::from(budget) - cost_of(&sizes, costs);
    let mut hulls: Vec<_> = pools
        .iter()
        .zip(groups)
        .map(|(pool, layers)| hull(curves.of_pool(layers, pool.min_slots, pool.max_slots)).into_iter().peekable())
        .collect();
    let mut stretches = vec![(0, 0, 0); pools.len()];
    let mut next = |pool: usize, size: u32| -> Option<Next> {
        let (mut end, mut saved, mut bytes) = stretches[pool];
        if size >= end {
            let start = hulls[pool].next()?;
            let &(corner, misses) = hulls[pool].peek()?;
            (end, saved) = (corner, start.1 - misses);
            bytes = u128::from(corner - start.0) * u128::from(costs[pool]);
            stretches[pool] = (end, saved, bytes);
        }
        Some(Next { saved, bytes, size, layer_count: pools[pool].layer_count, pool })
    };

    let mut open: BinaryHeap<Next> = (0..pools.len()).filter_map(|pool| next(pool, sizes[pool])).collect();
    while let Some(Next { pool, .. }) = open.pop() {
        let cost = u128::from(costs[pool]);
        if cost > rest {
            continue;
        }
        rest -= cost;
        sizes[pool] += 1;
        open.extend(next(pool, sizes[pool]));
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(misses: &[u64], corners: &[(u32, u64)]) {
        assert_eq!(hull((3..).zip(misses.iter().copied())), corners, "{misses:?}");
    }

    #[test]
    fn a_hull_skips_what_a_later_slot_makes_up_for() {
        check(&[7], &[(3, 7)]);
        check(&[9, 5, 2, 1, 1], &[(3, 9), (4, 5), (5, 2), (6, 1), (7, 1)]);
        check(&[9, 9, 9, 0, 0], &[(3, 9), (6, 0), (7, 0)]);
        check(&[9, 7, 5, 3], &[(3, 9), (6, 3)]);
        check(&[9, 7, 7, 0], &[(3, 9), (6, 0)]);
        check(&[9, 4, 4, 0], &[(3, 9), (4, 4), (6, 0)]);
    }

    #[test]
    fn products_beyond_128_bits_are_exact() {
        assert_eq!(product(u128::MAX, u64::MAX), (u128::MAX - (1 << 64), 1));
        assert_eq!(product((1 << 64) + 1, 3), (3, 3));
        assert!(product(u128::MAX, 2) > product(u128::MAX - 1, 2));
    }
}
