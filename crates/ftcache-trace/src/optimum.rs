//! The fewest misses that any policy could have on a trace: whose next use is farthest goes first.
//!
//! The same steps as a cache makes: a step is atomic, all its misses are admitted, and nothing of it is given up for
//! it. **Under these rules it is the optimum, not only a bound.** A hit is an expert kept from one use to the next;
//! over a step that does not use it, it takes one of the `slots - width` slots which that step leaves. So hits are
//! intervals, and what is wanted is as many of them as possible with no more over any step than it leaves. Where too
//! many lie over a step, one has to go, and of intervals that all lie over it the one that ends last stands in the way
//! of the most to come: exchanging it for another never loses a hit. Experts with the same next step are alike from
//! then on, so ties do not matter. A policy that fetches ahead misses less and copies no less; it is none of these.

use std::collections::BTreeSet;

use crate::Events;
use crate::curve::{first_size, reaches};
use crate::uses::Uses;

/// The optimum on one run of steps, for sizes asked one by one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Optimum {
    uses: Uses,
    /// The step of the next use of the same expert, for each use in turn, or [`NEVER`].
    next: Vec<u32>,
}

const NEVER: u32 = u32::MAX;

impl Optimum {
    /// With one pool for all layers: no split of the same slots does better.
    pub fn unified(events: &Events) -> Self {
        Self::new(Uses::unified(events))
    }

    /// With a pool for each layer.
    pub fn by_layer(events: &Events) -> Vec<Self> {
        Uses::by_layer(events).into_iter().map(Self::new).collect()
    }

    fn new(uses: Uses) -> Self {
        let mut next_of = vec![NEVER; uses.used()];
        let mut next = Vec::with_capacity(uses.count());
        for (step, names) in uses.steps().enumerate().rev() {
            // Steps below 2^32: more of them are more than memory holds.
            let following = |&name: &u32| std::mem::replace(&mut next_of[name as usize], step as u32);
            next.extend(names.iter().rev().map(following));
        }
        next.reverse();
        Self { uses, next }
    }

    /// Uses of experts over all steps.
    pub fn uses(&self) -> u64 {
        self.uses.count() as u64
    }

    /// The fewest slots that hold the widest step.
    pub fn least_slots(&self) -> usize {
        self.uses.widest()
    }

    /// Misses with so many slots; `None` if the widest step does not fit. Takes `O(log slots)` a use.
    pub fn misses(&self, slots: usize) -> Option<u64> {
        if slots < self.uses.widest() {
            return None;
        }
        let mut misses = 0;
        // The residents that are used again, by when. Those that are not take no room: they would be the first to go.
        let mut due = BTreeSet::new();
        let mut next = self.next.iter();
        for (step, names) in self.uses.steps().enumerate() {
            for &name in names {
                misses += u64::from(!due.remove(&(step as u32, name)));
            }
            // What is left is none of this step's.
            while due.len() > slots - names.len() {
                due.pop_last();
            }
            due.extend(next.by_ref().zip(names).filter(|&(&next, _)| next != NEVER).map(|(&next, &name)| (next, name)));
        }
        Some(misses)
    }

    /// Misses as a share of the uses, from 0 to 1; `None` if the widest step does not fit or nothing is used.
    pub fn miss_rate(&self, slots: usize) -> Option<f64> {
        let misses = self.misses(slots)?;
        (self.uses() > 0).then(|| misses as f64 / self.uses() as f64)
    }

    /// The fewest slots whose share of hits is at least `hit_rate`, from 0 to 1; `None` if no size reaches it. Takes
    /// about `log2` of the experts used as many passes as [`Optimum::misses`].
    pub fn slots_for(&self, hit_rate: f64) -> Option<usize> {
        // A slot more is one that may stay empty: misses never rise.
        let passes = |slots| self.misses(slots).is_some_and(|misses| reaches(hit_rate, self.uses(), misses));
        let slots = first_size(self.least_slots()..self.uses.used() + 1, passes);
        (self.uses() > 0 && slots <= self.uses.used()).then_some(slots)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Header, Phase, Segment, Shape, Trace};

    fn check(top_k: u32, ids: &[u16], misses: &[Option<u64>]) {
        let shape = Shape { tokens: ids.len() as u64 / u64::from(top_k), layers: 1, top_k, experts: 8 };
        let header = Header::new("by hand", shape, vec![Segment::new("request", Phase::Decode, 0, shape.tokens)]);
        let optimum = Optimum::unified(&Events::of(&Trace::new(header, ids.to_vec()).unwrap()));
        let found: Vec<Option<u64>> = (0..misses.len()).map(|slots| optimum.misses(slots)).collect();
        assert_eq!(found, misses, "{ids:?}");
    }

    #[test]
    fn the_farthest_next_use_goes() {
        // LRU with two slots would miss each time.
        check(1, &[0, 1, 2, 0, 1, 2], &[None, Some(6), Some(4), Some(3)]);
    }

    #[test]
    fn a_miss_takes_a_slot_even_if_it_is_never_used_again() {
        // With 2 slots, 0 or 1 has to go for 7; a cache that need not admit would keep both.
        check(1, &[0, 1, 7, 0, 1], &[None, Some(5), Some(4), Some(3)]);
    }

    #[test]
    fn a_step_keeps_its_own() {
        // 3 and 4 need both of 2 slots; with 3, one of 0 and 1 stays.
        check(2, &[0, 1, 3, 4, 0, 1], &[None, None, Some(6), Some(5), Some(4)]);
    }
}
