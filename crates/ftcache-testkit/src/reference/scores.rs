//! What a resident is worth where victims go by score: every number kept as it is defined, and looked up in tables of
//! tables.
//!
//! Numbers are whole, so who rounds where decides ties; the places are those of `ftcache_policy::Scores`, and nothing
//! else is taken from there.

use std::collections::{BTreeMap, BTreeSet};

use ftcache_policy::Eviction;

use super::ABSENT;

/// Numbers far from their end.
type Number = i128;

/// Steps of one layer under a rule.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Layer {
    steps: u64,
    /// By half: what the uses of each expert count.
    counts: Vec<BTreeMap<u32, Number>>,
    /// By half, what all uses counted; then how many followers there are.
    totals: Vec<Number>,
    /// By component: what one of its counts is of the chance.
    parts: Vec<Number>,
    /// The steps that came right after those of an expert.
    after: BTreeMap<u32, Vec<BTreeSet<u32>>>,
    /// The experts of the last step, unless they were too many or it was a part.
    last: BTreeSet<u32>,
}

/// The scores of a model's experts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scores {
    rule: Eviction,
    weights: Vec<Number>,
    layers: Vec<Layer>,
}

impl Scores {
    /// Scores of a model with no step so far; `None` where stamps decide.
    pub fn new(rule: Eviction, layer_count: usize) -> Option<Self> {
        let components = halves(rule).len() + usize::from(rule == Eviction::Learned);
        if components == 0 {
            return None;
        }
        let layer = Layer {
            counts: vec![BTreeMap::new(); halves(rule).len()],
            totals: vec![0; components],
            parts: vec![0; components],
            ..Layer::default()
        };
        let weights = vec![(1 << 20) / components as Number; components];
        Some(Self { rule, weights, layers: vec![layer; layer_count] })
    }

    /// The rule.
    pub fn rule(&self) -> Eviction {
        self.rule
    }

    /// Counts a step, or a further part of one.
    pub fn count(&mut self, layer: u32, routes: &[u32], continues: bool) {
        let used: BTreeSet<u32> = routes.iter().copied().filter(|&route| route != ABSENT).collect();
        if used.is_empty() {
            return;
        }
        if self.rule == Eviction::Learned {
            self.learn(layer, &used);
        }
        let halves = halves(self.rule);
        let state = &mut self.layers[layer as usize];
        if !continues {
            state.steps += 1;
        }
        for (index, half) in halves.iter().enumerate() {
            // Eight halves make a round. In the n-th half of it a use counts 2^n times as much, and within a half it
            // grows by the same with each step.
            let place = state.steps % (8 * half);
            if place == 0 && !continues {
                state.counts[index].values_mut().for_each(|count| *count /= 256);
                state.totals[index] /= 256;
            }
            let start = 8_192 << (place / half);
            let worth = start + start * Number::from(place % half) / Number::from(*half);
            for &expert in &used {
                let count = state.counts[index].entry(expert).or_default();
                *count = (*count + worth).min(Number::from(u32::MAX));
                state.totals[index] += worth;
            }
        }
        if self.rule == Eviction::Learned {
            let counts = used.len() <= 16 && !continues;
            if counts {
                for &before in &state.last {
                    let after = state.after.entry(before).or_default();
                    after.push(used.clone());
                    if after.len() > 8 {
                        after.remove(0);
                    }
                }
            }
            state.last = if counts { used } else { BTreeSet::new() };
            let after = state.last.iter().filter_map(|expert| state.after.get(expert));
            state.totals[halves.len()] = after.flatten().map(|step| step.len() as Number).sum();
        }
        for (component, part) in state.parts.iter_mut().enumerate() {
            *part = match state.totals[component] {
                0 => 0,
                total => (self.weights[component] << 40) / total,
            };
        }
    }

    /// Of a layer's next uses, an expert's share in 2^-31.
    pub fn chance(&self, layer: u32, expert: u32) -> u64 {
        (self.said(layer, expert).iter().sum::<Number>() >> 29) as u64
    }

    /// What an expert is worth at a step of the layer `now`: its chance, the less the more layers are in between.
    pub fn score(&self, layer: u32, expert: u32, now: u32) -> u64 {
        let chance = self.chance(layer, expert);
        if self.rule == Eviction::Lfu {
            return chance;
        }
        let layer_count = self.layers.len() as u32;
        let comes_after = |steps: &u32| (now + steps) % layer_count == layer;
        let steps = (1..=layer_count).find(comes_after).expect("every layer comes again");
        chance * u64::from((1 << 24) / steps)
    }

    /// What each component gives to an expert's chance, in 2^-60.
    fn said(&self, layer: u32, expert: u32) -> Vec<Number> {
        let state = &self.layers[layer as usize];
        let of_half = |counts: &BTreeMap<u32, Number>| counts.get(&expert).copied().unwrap_or(0);
        let mut counts: Vec<Number> = state.counts.iter().map(of_half).collect();
        if self.rule == Eviction::Learned {
            let after = state.last.iter().filter_map(|before| state.after.get(before)).flatten();
            counts.push(after.filter(|step| step.contains(&expert)).count() as Number);
        }
        counts.iter().zip(&state.parts).map(|(count, part)| count * part).collect()
    }

    /// Moves each weight an eighth of the way to what its component has given of the chances of these experts, for
    /// each that had one.
    fn learn(&mut self, layer: u32, used: &BTreeSet<u32>) {
        let mut gave = vec![0; self.weights.len()];
        let mut foreseen: Number = 0;
        for &expert in used {
            let said = self.said(layer, expert);
            let chance = said.iter().sum::<Number>() >> 28;
            if chance == 0 {
                continue;
            }
            foreseen += 1;
            let unit = (1 << 48) / chance;
            for (gave, said) in gave.iter_mut().zip(said) {
                *gave += ((said >> 28) * unit) >> 28;
            }
        }
        for (weight, gave) in self.weights.iter_mut().zip(gave) {
            let way = gave - foreseen * *weight;
            // Towards where it was.
            *weight = (*weight + way / (8 * used.len() as Number)).max(128);
        }
    }
}

/// After how many steps of its layer a use counts half.
fn halves(rule: Eviction) -> &'static [u64] {
    match rule {
        Eviction::Lru => &[],
        Eviction::Lfu => &[64],
        Eviction::Cyclic => &[16],
        Eviction::Learned => &[1, 4, 16, 64, 256, 1_024],
    }
}
