//! Rules for who goes: integers only, and a function of what the events so far have said.
//!
//! Most are a [`Predictor`], which says how likely an expert is at its layer's next event, under a [`Rule`], which
//! makes a score of that and of how far the event is.

use crate::predictor::{ONE, Predictor};

/// A score for each resident. The lowest goes.
pub(crate) trait Policy {
    /// A layer uses these, in the router's order.
    fn on_event(&mut self, layer: usize, experts: &[u16]);
    /// Asked after the event of `now`, never of what the event used.
    fn score(&self, flat: usize, now: usize) -> u64;
}

/// Least recently used.
pub(crate) struct Lru {
    experts: usize,
    step: u64,
    stamp: Vec<u64>,
}

impl Lru {
    pub(crate) fn new(layers: usize, experts: usize) -> Self {
        Self { experts, step: 0, stamp: vec![0; layers * experts] }
    }
}

impl Policy for Lru {
    fn on_event(&mut self, layer: usize, experts: &[u16]) {
        self.step += 1;
        experts.iter().for_each(|&id| self.stamp[layer * self.experts + usize::from(id)] = self.step);
    }

    fn score(&self, flat: usize, _now: usize) -> u64 {
        self.stamp[flat]
    }
}

/// What is made of a chance `p` at an event that lies `off` layers ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// `p`: whenever the event is.
    Chance,
    /// Expected layers until the next use: `off + layers / p - layers`, `off` from 1 to `layers`.
    Wait,
    /// Hits for each layer waited: `p / off`.
    Density,
}

/// A predictor under a rule. Chances are worked out once an event, for the experts of its layer.
pub(crate) struct Scored<P> {
    layers: usize,
    experts: usize,
    rule: Rule,
    predictor: P,
    chance: Vec<u32>,
}

impl<P: Predictor> Scored<P> {
    pub(crate) fn new(layers: usize, experts: usize, rule: Rule, predictor: P) -> Self {
        Self { layers, experts, rule, predictor, chance: vec![0; layers * experts] }
    }
}

impl<P: Predictor> Policy for Scored<P> {
    fn on_event(&mut self, layer: usize, experts: &[u16]) {
        self.predictor.on_event(layer, experts);
        for flat in layer * self.experts..(layer + 1) * self.experts {
            self.chance[flat] = self.predictor.chance(flat).max(1);
        }
    }

    fn score(&self, flat: usize, now: usize) -> u64 {
        let layers = self.layers as u64;
        let ahead = (flat / self.experts + self.layers - now) % self.layers;
        let off = if ahead == 0 { layers } else { ahead as u64 };
        let p = u64::from(self.chance[flat]);
        match self.rule {
            Rule::Chance => p,
            Rule::Wait => (1 << 40) - ((off << 16) + layers * ((u64::from(ONE) << 16) / p)).min(1 << 40),
            Rule::Density => (p << 24) / off,
        }
    }
}
