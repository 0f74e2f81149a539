//! What a resident is worth: how likely its layer's next step is to use it, over how far that step is.
//!
//! Integers only and a function of the steps so far, so that a host and a device decide alike. Time is counted in
//! steps of a layer. Between these an expert's chance stands still; what changes from step to step is how far away its
//! layer is.
//!
//! The chance is a mixture. Each *component* gives every expert of the layer a share of the next uses: its share of
//! the decayed counts with one half, or of what followed the layer's last routes before ([`Followers`]). The shares
//! are weighed, and the weights, which all layers have in common, follow what the components said of the experts that
//! then were used: of each use, a component is credited with its part of the chance that was given. So nothing is
//! learned of experts that are not used, and a step costs what its routes cost, and now and then a pass over its layer.
//!
//! A decayed count does not decay: a later use counts more. All counts of a component are brought down together, by
//! eight bits every eight halves.

mod followers;
mod numbers;

use crate::{BitSet, Eviction, ExpertId, LayerId};
use followers::Followers;
pub use numbers::{ScoreNumbers, ScoresError};

/// What a use counts at first, of a component's eight halves.
const USE: u32 = 1 << 13;
/// The sum of all weights, but for what rounding takes.
const WEIGHTS: u32 = 1 << 20;
/// No weight is less: what is nothing can never grow.
const LEAST_WEIGHT: u32 = 1 << 7;
/// A weight goes an eighth of the way to what a step says of it.
const INERTIA: i64 = 8;

/// Components have at the most so many halves.
const HALVES: usize = 6;
/// And the followers.
const COMPONENTS: usize = HALVES + 1;

/// What a use counts at a layer's step `turn`: doubled every half, a straight line between, and back to the start
/// after eight, when all counts are brought down.
fn use_at(turn: u32, log_half: u32) -> u32 {
    let within = turn & ((8 << log_half) - 1);
    let octave = USE << (within >> log_half);
    octave + ((u64::from(octave) * u64::from(within & ((1 << log_half) - 1))) >> log_half) as u32
}

/// Whether counts are brought down before the uses of step `turn`.
fn is_brought_down(turn: u32, log_half: u32) -> bool {
    turn & ((8 << log_half) - 1) == 0
}

/// What one layer has of a component beside the experts' counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Share {
    /// No less than the sum of its experts' counts.
    total: u64,
    /// A count's part of the chance: the weight over the total, as they were at the layer's last step.
    gain: u64,
}

/// The scores of all experts of a model, in slots or not.
#[derive(Debug, Clone)]
pub struct Scores {
    rule: Eviction,
    expert_count: usize,
    /// `turns[layer]`: its steps so far.
    turns: Vec<u32>,
    /// `counts[flat expert][half]`: together, since they are wanted together.
    counts: Vec<[u32; HALVES]>,
    shares: Vec<[Share; COMPONENTS]>,
    weights: [u32; COMPONENTS],
    followers: Option<Followers>,
    /// `nearness[layers until the next step]`, at least 1.
    nearness: Vec<u32>,
    /// Scratch, of as many as there are experts: a length is what a copy has too.
    used: Vec<u32>,
    seen: BitSet,
}

impl Scores {
    /// Scores under a rule, of a model with no step so far; `None` for LRU, whose scores are the stamps.
    ///
    /// # Panics
    ///
    /// If the rule does not [`check`](Eviction::check) with so many experts a layer.
    pub fn new(rule: Eviction, layer_count: usize, expert_count: u32) -> Option<Self> {
        let halves = rule.log_halves().len();
        if halves == 0 {
            return None;
        }
        rule.check(expert_count).expect("it was to be checked");
        let experts = expert_count as usize;
        let has_followers = rule.learns();
        let components = halves + usize::from(has_followers);
        let mut weights = [0; COMPONENTS];
        weights[..halves].fill(WEIGHTS / components as u32);
        weights[HALVES] = if has_followers { WEIGHTS / components as u32 } else { 0 };
        let near = |layers: usize| if layers == 0 { 0 } else { (1 << 24) / layers as u32 };
        Some(Self {
            rule,
            expert_count: experts,
            turns: vec![0; layer_count],
            counts: vec![[0; HALVES]; layer_count * experts],
            shares: vec![[Share::default(); COMPONENTS]; layer_count],
            weights,
            followers: has_followers.then(|| Followers::new(layer_count, experts)),
            nearness: (0..=layer_count).map(near).collect(),
            used: vec![0; experts],
            seen: BitSet::new(experts),
        })
    }

    /// The rule.
    pub fn rule(&self) -> Eviction {
        self.rule
    }

    /// Counts a step's uses: of each expert one, however many routes it has. Absent routes are none, and a step of these
    /// alone is none. The cost is that of the routes, and a pass over the counts of the layer.
    ///
    /// `continues`: the step goes on with other experts, as one does that is wider than its pool.
    ///
    /// # Panics
    ///
    /// If there is no such layer or expert.
    pub fn count(&mut self, layer: LayerId, routes: &[ExpertId], continues: bool) {
        for route in routes.iter().filter(|&&route| route != ExpertId::ABSENT) {
            self.seen.insert(route.index());
        }
        let mut scratch = std::mem::take(&mut self.used);
        let mut places = scratch.iter_mut();
        let count = self.seen.take_lowest(usize::MAX, |expert| {
            *places.next().expect("there is one for each expert") = expert as u32;
        });
        let used = &scratch[..count];
        if !used.is_empty() {
            self.credit(layer.index(), used);
            self.count_uses(layer.index(), used, continues);
            if let Some(followers) = &mut self.followers {
                self.shares[layer.index()][HALVES].total = followers.step(layer.index(), used, continues);
            }
            for (share, &weight) in self.shares[layer.index()].iter_mut().zip(&self.weights) {
                share.gain = (u64::from(weight) << 40).checked_div(share.total).unwrap_or(0);
            }
        }
        self.used = scratch;
    }

    /// Of each use, its parts of the chance that was given, to the components.
    fn credit(&mut self, layer: usize, used: &[u32]) {
        if !self.rule.learns() {
            return;
        }
        let chances = self.chances(LayerId::from_index(layer));
        let mut credits = [0; COMPONENTS];
        let mut foreseen = 0;
        for &expert in used {
            let parts = chances.parts(expert as usize);
            let chance: u64 = parts.iter().sum::<u64>() >> 28;
            let Some(one) = (1_u64 << 48).checked_div(chance) else { continue };
            foreseen += 1;
            for (credit, part) in credits.iter_mut().zip(parts) {
                *credit += ((part >> 28) * one) >> 28;
            }
        }
        for (weight, credit) in self.weights.iter_mut().zip(credits) {
            let change = credit as i64 - foreseen * i64::from(*weight);
            let moved = i64::from(*weight) + change / (INERTIA * used.len() as i64);
            *weight = moved.max(i64::from(LEAST_WEIGHT)) as u32;
        }
    }

    fn count_uses(&mut self, layer: usize, used: &[u32], continues: bool) {
        if !continues {
            self.turns[layer] = self.turns[layer].wrapping_add(1);
        }
        let turn = self.turns[layer];
        let counts = &mut self.counts[layer * self.expert_count..][..self.expert_count];
        for (half, &log_half) in self.rule.log_halves().iter().enumerate() {
            let share = &mut self.shares[layer][half];
            if !continues && is_brought_down(turn, log_half) {
                counts.iter_mut().for_each(|counts| counts[half] >>= 8);
                share.total >>= 8;
            }
            let more = use_at(turn, log_half);
            for &expert in used {
                let count = &mut counts[expert as usize][half];
                *count = count.saturating_add(more);
            }
            share.total += u64::from(more) * used.len() as u64;
        }
    }

    /// The chances of a layer's experts, as they stand until its next step.
    ///
    /// # Panics
    ///
    /// If there is no such layer.
    #[inline]
    pub fn chances(&self, layer: LayerId) -> Chances<'_> {
        let experts = layer.index() * self.expert_count..(layer.index() + 1) * self.expert_count;
        Chances {
            counts: &self.counts[experts],
            follows: self.followers.as_ref().map_or(&[], |followers| followers.counts(layer.index())),
            gains: self.shares[layer.index()].map(|share| share.gain),
        }
    }

    /// What a chance at the next step of `layer` is worth in a step of `now`. The lowest goes.
    #[inline]
    pub fn score(&self, chance: u32, layer: LayerId, now: LayerId) -> u64 {
        u64::from(chance) * u64::from(self.nearness(layer, now))
    }

    /// What a chance is multiplied with.
    #[inline]
    fn nearness(&self, layer: LayerId, now: LayerId) -> u32 {
        if !self.rule.looks_at_distance() {
            return 1;
        }
        let (layer, now) = (layer.index(), now.index());
        let ahead = if layer > now { layer - now } else { layer + self.turns.len() - now };
        self.nearness[ahead]
    }
}

/// The chances of one layer's experts.
#[derive(Debug, Clone, Copy)]
pub struct Chances<'a> {
    counts: &'a [[u32; HALVES]],
    /// Empty if nothing follows.
    follows: &'a [u16],
    gains: [u64; COMPONENTS],
}

impl Chances<'_> {
    /// An expert's share of the uses of its layer's next step, in 2^-31.
    ///
    /// # Panics
    ///
    /// If there is no such expert.
    #[inline]
    pub fn of(&self, expert: ExpertId) -> u32 {
        (self.parts(expert.index()).iter().sum::<u64>() >> 29) as u32
    }

    /// No more than [`of`](Self::of), and sooner known: without what followed.
    ///
    /// # Panics
    ///
    /// If there is no such expert.
    #[inline]
    pub fn at_least(&self, expert: ExpertId) -> u32 {
        let parts = self.counts[expert.index()].iter().zip(&self.gains);
        (parts.map(|(&count, gain)| u64::from(count) * gain).sum::<u64>() >> 29) as u32
    }

    /// What each component gives to an expert's chance, in 2^-60 of all of the next step's uses.
    #[inline]
    fn parts(&self, expert: usize) -> [u64; COMPONENTS] {
        let counts = &self.counts[expert];
        let follows = self.follows.get(expert).copied().unwrap_or(0);
        std::array::from_fn(|component| {
            let count = if component < HALVES { counts[component] } else { u32::from(follows) };
            u64::from(count) * self.gains[component]
        })
    }
}

#[cfg(test)]
mod tests;
