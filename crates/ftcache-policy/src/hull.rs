//! The split by curves: *the next slot goes to the pool where it saves the most fetched bytes a byte that it takes*.
//!
//! A miss fetches its row in every bank, so a miss of a pool with wide rows weighs more. A slot takes its row and what
//! lies around it: pads, and tables where they are paid with it. Under a budget of slots all take the same.
//!
//! A curve may be flat and then fall: LRU misses all of a cycle until the whole of it fits. There a single slot saves
//! nothing, and only all of them together do. So a slot counts for its stretch of the curve's lower convex hull, and
//! saves as much as the stretch does on average. Where slots take equal bytes, the division fetches the fewest bytes
//! that any could: on convex curves wherever the budget ends, else where it ends between two stretches. Where they
//! take different bytes, a slot may not fit in its turn, and what is left goes to those that do: on convex curves that
//! is off the best by less than what the first slot that did not fit saves.
//!
//! Of equal savings the slot goes to the pool with the fewest slots per layer, then to the lower one: where the curves
//! tell nothing apart, the split is `equal`.

use std::cmp::Ordering;
use std::collections::binary_heap::{BinaryHeap, PeekMut};

use crate::split::cost_of;
use crate::{Curves, LayerId, PoolBounds};

/// A pool's next slot.
struct Next {
    /// Fetched bytes that its stretch of the hull saves.
    saved: u128,
    /// Bytes that the stretch takes.
    taken: u128,
    /// Slots that the pool has.
    size: u32,
    layer_count: u32,
    pool: usize,
}

impl Ord for Next {
    /// The one to be given first is the greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        let saving = product(self.saved, other.taken).cmp(&product(other.saved, self.taken));
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

/// The product's upper 128 bits, then its lower 128: the lower alone do not hold it, and a rounded one would give ties
/// to whoever is rounded up.
fn product(left: u128, right: u128) -> (u128, u128) {
    let halves = |number: u128| (number >> 64, u128::from(number as u64));
    let ((left_high, left_low), (right_high, right_low)) = (halves(left), halves(right));
    // A product of halves leaves room for one more half.
    let low = left_low * right_low;
    let (carried, middle) = halves(left_high * right_low + (low >> 64));
    let middle = left_low * right_high + middle;
    (left_high * right_high + carried + (middle >> 64), middle << 64 | u128::from(low as u64))
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

/// Slots from the minima upwards, each at its pool's `costs`, while they fit into `budget`; a miss of a pool fetches
/// its `row_bytes`.
///
/// As in `water_fill`, a pool whose next slot does not fit is out, and the others go on. The minima must fit.
pub(crate) fn fill_by_curve(
    pools: &[PoolBounds],
    groups: &[Vec<LayerId>],
    curves: &Curves,
    row_bytes: &[u64],
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
        let (mut end, mut saved, mut taken) = stretches[pool];
        if size >= end {
            let start = hulls[pool].next()?;
            let &(corner, misses) = hulls[pool].peek()?;
            end = corner;
            saved = u128::from(start.1 - misses) * u128::from(row_bytes[pool]);
            taken = u128::from(corner - start.0) * u128::from(costs[pool]);
            stretches[pool] = (end, saved, taken);
        }
        Some(Next { saved, taken, size, layer_count: pools[pool].layer_count, pool })
    };

    let mut open: BinaryHeap<Next> = (0..pools.len()).filter_map(|pool| next(pool, sizes[pool])).collect();
    // In its place on top, since the pool that had a slot mostly has the next one of its stretch too.
    while let Some(mut top) = open.peek_mut() {
        let pool = top.pool;
        let cost = u128::from(costs[pool]);
        let after = if cost > rest {
            None
        } else {
            rest -= cost;
            sizes[pool] += 1;
            next(pool, sizes[pool])
        };
        match after {
            Some(after) => *top = after,
            None => drop(PeekMut::pop(top)),
        }
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
        assert_eq!(product(u128::MAX, u128::MAX), (u128::MAX - 1, 1));
        let most = u128::from(u64::MAX);
        assert_eq!(
            (product(u128::MAX, most), product(most, u128::MAX)),
            ((most - 1, 1_u128.wrapping_sub(1 << 64)), (most - 1, 1_u128.wrapping_sub(1 << 64)))
        );
        assert_eq!(product((1 << 64) + 1, 3), (0, (3 << 64) + 3));
        assert_eq!(product((5 << 64) + 7, (11 << 64) + 13), (55, (142 << 64) + 91));
        assert!(product(u128::MAX, 2) > product(u128::MAX - 1, 2));
    }
}
