//! Miss curves: the misses of an LRU cache of every size, in one pass over the events, and an estimate of them from a
//! sample of the experts.
//!
//! **What is counted.** A step is atomic: its hits are judged before anything of it is inserted, all its experts get
//! its stamp, and what it uses is never its victim. Victims ascend by stamp. Of one stamp, the expert that the router
//! chose last goes first. The cache breaks these ties by slot, which no list of experts can follow: where it gives up a
//! step's experts only in part, others of the same step may go, and the curve is not the cache's to the last miss.
//!
//! How far it is off: nothing wherever steps are kept or given up whole. On recorded routing the router's first choices
//! return soonest, so the curve lies below the cache: by 1.8 points at the worst (tinymoe, 45 slots, where one of eight
//! steps of 6 is kept in part) and by 0.06 at a quarter of the experts; the opposite order lies above the cache. On
//! traces of some hundred uses it may be 8 points to either side. `tests/curves.rs` replays the cache's rule beside the
//! curve.
//!
//! **Why one pass does for all sizes.** List the experts by stamp, ties as above. With `S` slots, the cache holds the
//! first `S` of the list. A step with experts `E` moves them to its front. The cache takes `E` and keeps the first
//! `S - |E|` others that it had; it had the first `S` of the list, at least `S - |E|` of which are others, and in the
//! same order: it holds the first `S` again. That needs `S >= |E|` and nothing else, so a use hits in exactly the sizes
//! from its place in the list **before the step** upwards, and the curve is exact from the widest step on. Below,
//! the cache refuses that step, and there is no answer. Judging the experts of a step one after another, as the
//! textbook does, would count a step's own experts against each other.

use std::ops::Range;

use crate::Events;
use crate::random::SplitMix;
use crate::recency::Recency;
use crate::uses::Uses;

/// The misses of a cache of every size from the widest step on, cold at the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissCurve {
    uses: u64,
    /// Experts of the widest step.
    least: usize,
    /// `misses[slots - least]`, never ascending; the last is for all experts used.
    misses: Vec<u64>,
}

/// A sample of fewer experts says too little.
const LEAST_SAMPLE: usize = 256;

impl MissCurve {
    /// LRU with one pool for all layers. Takes `O(log n)` a use, `n` the experts used.
    pub fn lru(events: &Events) -> Self {
        Self::exact(&Uses::unified(events))
    }

    /// As [`MissCurve::lru`], of the steps alone whose first token is one of `tokens`. Steps before them fill the cache,
    /// so that the curves of the parts of a trace add up to that of the whole.
    pub fn lru_within(events: &Events, tokens: Range<u64>) -> Self {
        let is_counted: Vec<bool> = events.iter().map(|event| tokens.contains(&event.token)).collect();
        Self::counted(&Uses::unified(events), |step| is_counted[step])
    }

    /// As [`MissCurve::lru`], estimated from one in `one_in` experts, chosen by a hash of `seed`, layer and id.
    ///
    /// Only the sampled experts are ranked. A sampled expert with `c` others of the sample used since stands for one
    /// with about `c * one_in` used since. The uses and how many are the first of their expert are counted, so the far
    /// end of the curve is exact. The work drops to the share sampled, the memory does not.
    ///
    /// The error: `c` is a draw, so what happens at `S` slots is smeared over some `sqrt(S * one_in)` slots to either
    /// side, and where the curve falls steeply within that, at few slots, a miss rate says little. And the popular
    /// experts are sampled or not, which moves what lies beyond. With one in 8 of 4,096, over 4 traces and 8 seeds: 1.4
    /// points in the mean over all sizes; 3.6 points at the worst size from `64 * one_in` slots on; 1.8 points at the
    /// worst of all beyond what the exact curve has within three such smears; 40 points at the worst of all otherwise.
    /// Another seed shows how much of that a trace has. Where fewer than 256 experts would be sampled, the curve is the
    /// exact one.
    ///
    /// # Panics
    ///
    /// If `one_in` is zero.
    pub fn lru_sampled(events: &Events, one_in: u32, seed: u64) -> Self {
        assert!(one_in > 0, "one in so many experts is sampled");
        let uses = Uses::unified(events);
        let bound = u64::MAX / u64::from(one_in);
        let sample = uses.only(|flat| SplitMix::new(SplitMix::new(seed).next() ^ flat).next() <= bound);
        if one_in == 1 || sample.used() < LEAST_SAMPLE || sample.count() == sample.used() {
            return Self::exact(&uses);
        }

        let reuses = reuses(&sample, |_| true);
        let mut hits = 0;
        // `sums[s]`: uses of the sample that hit in a cache of `s` slots for the sample alone.
        let sums: Vec<u64> = reuses
            .iter()
            .map(|reuses| {
                hits += reuses;
                hits
            })
            .collect();
        let all = (uses.count() - uses.used()) as f64;
        let scale = all / hits as f64;
        let estimate = |slots: usize| {
            // Half a slot up: `c` sampled experts since stand for anything from `c` to `c + 1` times `one_in`.
            let place = slots as f64 * sample.used() as f64 / uses.used() as f64 + 0.5;
            let below = (place as usize).min(sample.used());
            let above = (below + 1).min(sample.used());
            let between = (sums[above] - sums[below]) as f64 * (place - below as f64);
            uses.count() as u64 - ((sums[below] as f64 + between) * scale).min(all).round() as u64
        };
        let misses = (uses.widest()..=uses.used()).map(estimate).collect();
        Self { uses: uses.count() as u64, least: uses.widest(), misses }
    }

    fn exact(uses: &Uses) -> Self {
        Self::counted(uses, |_| true)
    }

    /// Of the steps whose index passes.
    fn counted(uses: &Uses, is_counted: impl Fn(usize) -> bool) -> Self {
        let steps = uses.steps().enumerate().filter(|&(index, _)| is_counted(index));
        let count = steps.map(|(_, step)| step.len() as u64).sum();
        let mut left = count;
        let mut misses = Vec::with_capacity(uses.used() + 1);
        for reuses in reuses(uses, is_counted) {
            left -= reuses;
            misses.push(left);
        }
        misses.drain(..uses.widest());
        Self { uses: count, least: uses.widest(), misses }
    }

    /// Uses of experts over all steps.
    pub fn uses(&self) -> u64 {
        self.uses
    }

    /// First uses, which miss in a cache of any size: of a whole trace, as many as experts are used at all.
    pub fn compulsory(&self) -> u64 {
        self.misses[self.misses.len() - 1]
    }

    /// The fewest slots that hold the widest step.
    pub fn least_slots(&self) -> usize {
        self.least
    }

    /// The fewest slots that hold all experts used; from there on only first uses miss.
    pub fn most_slots(&self) -> usize {
        self.least + self.misses.len() - 1
    }

    /// Misses with so many slots; `None` if the widest step does not fit.
    pub fn misses(&self, slots: usize) -> Option<u64> {
        let index = slots.checked_sub(self.least)?;
        Some(self.misses[index.min(self.misses.len() - 1)])
    }

    /// The same, and every use where the widest step does not fit: what a split by curves goes by.
    pub fn misses_or_uses(&self, slots: usize) -> u64 {
        self.misses(slots).unwrap_or(self.uses)
    }

    /// Misses as a share of the uses, from 0 to 1; `None` if the widest step does not fit or nothing is used.
    pub fn miss_rate(&self, slots: usize) -> Option<f64> {
        let misses = self.misses(slots)?;
        (self.uses > 0).then(|| misses as f64 / self.uses as f64)
    }

    /// The fewest slots whose share of hits is at least `hit_rate`, from 0 to 1; `None` if no size reaches it.
    pub fn slots_for(&self, hit_rate: f64) -> Option<usize> {
        let index = self.misses.partition_point(|&misses| !reaches(hit_rate, self.uses, misses));
        (self.uses > 0 && index < self.misses.len()).then_some(self.least + index)
    }
}

/// Whether so many misses leave a share of hits of at least `hit_rate`.
pub(crate) fn reaches(hit_rate: f64, uses: u64, misses: u64) -> bool {
    (uses - misses) as f64 >= hit_rate * uses as f64
}

/// The first of the sizes that passes, where none fails after one that passes; their end if none does.
pub(crate) fn first_size(sizes: Range<usize>, passes: impl Fn(usize) -> bool) -> usize {
    let Range { start: mut low, end: mut high } = sizes;
    while low < high {
        let middle = low + (high - low) / 2;
        match passes(middle) {
            true => high = middle,
            false => low = middle + 1,
        }
    }
    low
}

/// `reuses[d]`: uses of an expert that the first `d` most recent have and the first `d - 1` have not, in the steps whose
/// index passes.
fn reuses(uses: &Uses, is_counted: impl Fn(usize) -> bool) -> Vec<u64> {
    let mut recency = Recency::new(uses.used());
    let mut reuses = vec![0; uses.used() + 1];
    for (index, step) in uses.steps().enumerate() {
        // All are judged before any is moved.
        if is_counted(index) {
            step.iter().filter_map(|&name| recency.distance(name)).for_each(|distance| reuses[distance] += 1);
        }
        recency.renew(step);
    }
    reuses
}

/// A curve for each layer: what a pool of its own would miss.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerCurves {
    layers: Vec<MissCurve>,
}

impl LayerCurves {
    /// LRU with a pool for each layer. All layers are ranked in one pass, at `O(log n)` a use.
    pub fn lru(events: &Events) -> Self {
        Self { layers: Uses::by_layer(events).iter().map(MissCurve::exact).collect() }
    }

    /// The curve of each layer; that of a layer without a step has no uses and needs no slots.
    pub fn layers(&self) -> &[MissCurve] {
        &self.layers
    }

    /// Uses of experts over all layers.
    pub fn uses(&self) -> u64 {
        self.layers.iter().map(MissCurve::uses).sum()
    }

    /// Misses over all layers with `slots` shared out equally, one more each for the first layers where a rest is left;
    /// `None` if the widest step of a layer does not fit.
    pub fn misses_equal(&self, slots: usize) -> Option<u64> {
        let (each, rest) = (slots / self.layers.len(), slots % self.layers.len());
        self.layers.iter().enumerate().map(|(layer, curve)| curve.misses(each + usize::from(layer < rest))).sum()
    }

    /// [`LayerCurves::misses_equal`] as a share of the uses, from 0 to 1; `None` also if nothing is used.
    pub fn miss_rate_equal(&self, slots: usize) -> Option<f64> {
        let misses = self.misses_equal(slots)?;
        (self.uses() > 0).then(|| misses as f64 / self.uses() as f64)
    }

    /// The fewest slots over all layers, shared out equally, whose share of hits is at least `hit_rate`, from 0 to 1;
    /// `None` if no size reaches it.
    pub fn slots_for_equal(&self, hit_rate: f64) -> Option<usize> {
        // From here on every layer has all the experts that it uses.
        let most = self.layers.len() * self.layers.iter().map(MissCurve::most_slots).max().unwrap_or(0);
        let uses = self.uses();
        let passes = |slots| self.misses_equal(slots).is_some_and(|misses| reaches(hit_rate, uses, misses));
        let slots = first_size(0..most + 1, passes);
        (uses > 0 && slots <= most).then_some(slots)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Header, Phase, Segment, Shape, Trace};

    /// Steps of one layer, two experts each.
    fn events(ids: &[u16]) -> Events {
        let shape = Shape { tokens: ids.len() as u64 / 2, layers: 1, top_k: 2, experts: 8 };
        let header = Header::new("by hand", shape, vec![Segment::new("request", Phase::Decode, 0, shape.tokens)]);
        Events::of(&Trace::new(header, ids.to_vec()).unwrap())
    }

    fn check(ids: &[u16], misses: &[u64]) {
        let curve = MissCurve::lru(&events(ids));
        let found: Vec<u64> = (2..=curve.most_slots()).map(|slots| curve.misses(slots).unwrap()).collect();
        assert_eq!(found, misses, "{ids:?}");
        assert_eq!(LayerCurves::lru(&events(ids)).layers(), [curve]);
    }

    #[test]
    fn a_step_is_judged_before_it_is_moved() {
        // Before the last step the list is 2 3 0 1: 0 hits from 3 slots on and 1 from 4. Were 1 moved first, 0 would be
        // fourth as well.
        check(&[0, 1, 2, 3, 1, 0], &[6, 5, 4]);
        check(&[0, 1, 2, 3, 0, 1], &[6, 5, 4]);
        check(&[0, 1, 0, 1, 1, 0], &[2]);
    }

    #[test]
    fn of_one_step_the_first_choice_stays_longest() {
        check(&[0, 1, 2, 3, 0, 2], &[5, 4, 4]);
        check(&[1, 0, 2, 3, 0, 2], &[5, 5, 4]);
    }

    #[test]
    fn a_curve_is_flat_beyond_its_end_and_empty_before_it() {
        let curve = MissCurve::lru(&events(&[0, 1, 2, 3, 1, 0]));
        assert_eq!([1, 2, 4, 5, 99].map(|slots| curve.misses(slots)), [None, Some(6), Some(4), Some(4), Some(4)]);
        assert_eq!([0, 1, 3, 99].map(|slots| curve.misses_or_uses(slots)), [6, 6, 5, 4]);
        assert_eq!((curve.uses(), curve.compulsory(), curve.least_slots(), curve.most_slots()), (6, 4, 2, 4));
        assert_eq!((curve.miss_rate(3), curve.miss_rate(0)), (Some(5.0 / 6.0), None));
        let found = [0.0, 0.16, 0.17, 0.34].map(|hit_rate| curve.slots_for(hit_rate));
        assert_eq!(found, [Some(2), Some(3), Some(4), None]);
    }

    #[test]
    fn a_layer_that_never_ran_has_no_uses() {
        let shape = Shape { tokens: 1, layers: 2, top_k: 1, experts: 2 };
        let mut header = Header::new("by hand", shape, vec![Segment::new("request", Phase::Decode, 0, 1)]);
        header.absent_cells = 1;
        let events = Events::of(&Trace::new(header, vec![1, crate::ABSENT]).unwrap());
        let curves = LayerCurves::lru(&events);
        let idle = &curves.layers()[1];
        assert_eq!((idle.uses(), idle.least_slots(), idle.most_slots(), idle.misses(0)), (0, 0, 0, Some(0)));
        assert_eq!((idle.miss_rate(5), idle.slots_for(0.0)), (None, None));
        assert_eq!([0.0, 0.1].map(|hit_rate| curves.slots_for_equal(hit_rate)), [Some(1), None]);
        // The first layer gets the odd slot.
        assert_eq!([0, 1, 2].map(|slots| curves.misses_equal(slots)), [None, Some(1), Some(1)]);
        assert_eq!(curves.miss_rate_equal(1), Some(1.0));
    }
}
