//! Scores as plain numbers: for tables elsewhere that go on from them and come back, and for digests.

use std::error::Error;
use std::fmt;

use super::followers::{Followers, KEPT, WIDEST};
use super::{COMPONENTS, HALVES, LEAST_WEIGHT, Scores, Share, WEIGHTS};
use crate::{Eviction, ExpertId, LayerId};

/// No count of uses comes near it.
const TOTAL_MOST: u64 = (1 << 60) - 1;
/// All chances of a layer together are half of it.
const CHANCES_MOST: u128 = (1 << 61) - 1;
/// Rounding lifts the weights a little above their sum. With twice of it chances would reach [`CHANCES_MOST`].
const WEIGHTS_MOST: u32 = WEIGHTS + WEIGHTS / 2;

/// All numbers of [`Scores`]. Experts are flat: `layer * expert_count + expert`.
///
/// Arrays from `latest` on are empty under rules that do not [learn](crate::Eviction::learns).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ScoreNumbers {
    /// The rule that they are of.
    pub rule: Eviction,
    /// `weights[component]`, in 2^-20: the halves, then what followed.
    pub weights: Vec<u32>,
    /// `turns[layer]`: its steps so far, in 32 bits.
    pub turns: Vec<u32>,
    /// `counts[flat expert * HALVES + half]`.
    pub counts: Vec<u32>,
    /// `totals[layer * COMPONENTS + component]`: no less than the sum of the layer's counts.
    pub totals: Vec<u64>,
    /// `gains[layer * COMPONENTS + component]`: what one of a count is of a chance, in 2^-60.
    pub gains: Vec<u64>,
    /// `latest[layer * WIDEST + place]`: the experts of the layer's last step, ascending.
    pub latest: Vec<u16>,
    /// `latest_widths[layer]`: how many they are.
    pub latest_widths: Vec<u8>,
    /// `ring_experts[(flat expert * RING_STEPS + step) * WIDEST + place]`: the experts of steps right after the expert.
    pub ring_experts: Vec<u16>,
    /// `ring_widths[flat expert * RING_STEPS + step]`: how many they are.
    pub ring_widths: Vec<u8>,
    /// `ring_next[flat expert]`: the step that is the next to be overwritten.
    pub ring_next: Vec<u8>,
    /// `followed[flat expert]`: how often it is in the rings of `latest`.
    pub followed: Vec<u32>,
}

impl ScoreNumbers {
    /// Halves that an expert has counts of, used by the rule or not.
    pub const HALVES: usize = HALVES;

    /// The halves, and what followed.
    pub const COMPONENTS: usize = COMPONENTS;

    /// The experts of the widest step that is remembered.
    pub const WIDEST: usize = WIDEST;

    /// How many steps right after it an expert remembers.
    pub const RING_STEPS: usize = KEPT;
}

/// Numbers that are no scores, or those of another model or rule. Nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScoresError {
    /// Numbers of another rule, which may be as many.
    Rule {
        /// The rule.
        given: Eviction,
        /// What it is to be.
        needed: Eviction,
    },
    /// An array of another length.
    Length {
        /// The array.
        array: &'static str,
        /// Its length.
        given: usize,
        /// What it is to be.
        needed: usize,
    },
    /// A weight that no step leads to.
    Weight {
        /// The component.
        component: usize,
        /// Its weight.
        given: u32,
        /// The least there can be.
        least: u32,
        /// The most.
        most: u32,
    },
    /// Weights that together are more than steps lead to.
    Weights {
        /// Their sum.
        sum: u64,
        /// The most there can be.
        most: u32,
    },
    /// A total that is less than the sum of the counts it is of, or more than any can be: above 0, of a component that
    /// the rule does not have.
    Total {
        /// The layer.
        layer: LayerId,
        /// The component.
        component: usize,
        /// The total.
        given: u64,
        /// The sum of the counts, which it is at the least.
        sum: u64,
        /// What it is at the most.
        most: u64,
    },
    /// A gain of nothing.
    Gain {
        /// The layer.
        layer: LayerId,
        /// The component, whose total is 0.
        component: usize,
        /// The gain.
        given: u64,
    },
    /// A layer whose chances come to more than all of its uses.
    Chances {
        /// The layer.
        layer: LayerId,
        /// The sum of totals times gains.
        given: u128,
        /// What it is at the most.
        most: u128,
    },
    /// A number that is above what there can be.
    Above {
        /// The array.
        array: &'static str,
        /// Its place there.
        index: usize,
        /// The number.
        given: u32,
        /// The most there can be.
        most: u32,
    },
    /// The experts of a step do not ascend.
    Order {
        /// The array.
        array: &'static str,
        /// The place of the second of two neighbours there.
        index: usize,
        /// The expert there.
        given: u32,
        /// The one before it, which is not below it.
        before: u32,
    },
    /// An expert is said to follow the layer's last more or less often than their rings say.
    Followed {
        /// The layer.
        layer: LayerId,
        /// The expert.
        expert: ExpertId,
        /// How often it is said to.
        given: u32,
        /// How often the rings say so.
        counted: u32,
    },
}

impl fmt::Display for ScoresError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule { given, needed } => write!(f, "they are of {given} and should be of {needed}"),
            Self::Length { array, given, needed } => {
                write!(f, "{array}: their number is {given} and should be {needed}")
            }
            Self::Weight { component, given, least, most } => {
                write!(f, "component {component} has weight {given}; weights here are {least} to {most}")
            }
            Self::Weights { sum, most } => write!(f, "the weights sum to {sum}; at most {most} there can be"),
            Self::Total { layer, component, given, sum, most } => {
                write!(
                    f,
                    "layer {layer} component {component}: the total is {given}; its counts sum to {sum}; at most {most} it can be"
                )
            }
            Self::Gain { layer, component, given } => {
                write!(f, "layer {layer} component {component}: the gain is {given}; the total is 0")
            }
            Self::Chances { layer, given, most } => {
                write!(f, "layer {layer}: totals times gains come to {given}; at most {most} there can be")
            }
            Self::Above { array, index, given, most } => {
                write!(f, "{array}[{index}] is {given}; at most {most} there can be")
            }
            Self::Order { array, index, given, before } => {
                write!(f, "{array}[{index}] is {given} after {before}; the experts of a step ascend")
            }
            Self::Followed { layer, expert, given, counted } => {
                write!(
                    f,
                    "layer {layer} expert {expert} is said to have followed {given} times; by the rings {counted}"
                )
            }
        }
    }
}

impl Error for ScoresError {}

impl Scores {
    /// All numbers.
    pub fn numbers(&self) -> ScoreNumbers {
        let shares = self.shares.as_flattened();
        let mut numbers = ScoreNumbers {
            rule: self.rule,
            weights: self.weights.to_vec(),
            turns: self.turns.clone(),
            counts: self.counts.as_flattened().to_vec(),
            totals: shares.iter().map(|share| share.total).collect(),
            gains: shares.iter().map(|share| share.gain).collect(),
            ..ScoreNumbers::default()
        };
        if let Some(followers) = &self.followers {
            followers.write_numbers(&mut numbers);
        }
        numbers
    }

    /// Goes on from other numbers, of this rule and as many layers and experts.
    ///
    /// # Errors
    ///
    /// As [`check_numbers`](Self::check_numbers). The scores are then as they were.
    pub fn set_numbers(&mut self, numbers: &ScoreNumbers) -> Result<(), ScoresError> {
        self.check_numbers(numbers)?;
        self.weights.copy_from_slice(&numbers.weights);
        self.turns.copy_from_slice(&numbers.turns);
        self.counts.as_flattened_mut().copy_from_slice(&numbers.counts);
        let shares = numbers.totals.iter().zip(&numbers.gains);
        for (share, (&total, &gain)) in self.shares.as_flattened_mut().iter_mut().zip(shares) {
            *share = Share { total, gain };
        }
        if let Some(followers) = &mut self.followers {
            followers.read_numbers(numbers);
        }
        Ok(())
    }

    /// Whether numbers can be gone on from.
    ///
    /// # Errors
    ///
    /// Numbers of another model or rule, or that contradict each other, with the first thing found wrong.
    pub fn check_numbers(&self, numbers: &ScoreNumbers) -> Result<(), ScoresError> {
        let (given, needed) = (numbers.rule, self.rule);
        if given != needed {
            return Err(ScoresError::Rule { given, needed });
        }
        self.check_lengths(numbers)?;
        self.check_weights(numbers)?;
        if self.followers.is_some() {
            self.check_rings(numbers)?;
        }
        (0..self.turns.len()).try_for_each(|layer| self.check_layer(numbers, layer))
    }

    fn check_lengths(&self, numbers: &ScoreNumbers) -> Result<(), ScoresError> {
        let (layers, experts) = (self.turns.len(), self.counts.len());
        let if_learns = |count: usize| if self.rule.learns() { count } else { 0 };
        let lengths = [
            ("weights", numbers.weights.len(), COMPONENTS),
            ("turns", numbers.turns.len(), layers),
            ("counts", numbers.counts.len(), experts * HALVES),
            ("totals", numbers.totals.len(), layers * COMPONENTS),
            ("gains", numbers.gains.len(), layers * COMPONENTS),
            ("latest", numbers.latest.len(), if_learns(layers * WIDEST)),
            ("latest_widths", numbers.latest_widths.len(), if_learns(layers)),
            ("ring_experts", numbers.ring_experts.len(), if_learns(experts * KEPT * WIDEST)),
            ("ring_widths", numbers.ring_widths.len(), if_learns(experts * KEPT)),
            ("ring_next", numbers.ring_next.len(), if_learns(experts)),
            ("followed", numbers.followed.len(), if_learns(experts)),
        ];
        match lengths.into_iter().find(|(_, given, needed)| given != needed) {
            Some((array, given, needed)) => Err(ScoresError::Length { array, given, needed }),
            None => Ok(()),
        }
    }

    fn check_weights(&self, numbers: &ScoreNumbers) -> Result<(), ScoresError> {
        for (component, &given) in numbers.weights.iter().enumerate() {
            let fixed = if component == 0 { WEIGHTS } else { 0 };
            let (least, most) = if self.rule.learns() { (LEAST_WEIGHT, WEIGHTS_MOST) } else { (fixed, fixed) };
            if given < least || given > most {
                return Err(ScoresError::Weight { component, given, least, most });
            }
        }
        let (sum, most) = (numbers.weights.iter().map(|&weight| u64::from(weight)).sum(), WEIGHTS_MOST);
        if sum > u64::from(most) { Err(ScoresError::Weights { sum, most }) } else { Ok(()) }
    }

    fn check_rings(&self, numbers: &ScoreNumbers) -> Result<(), ScoresError> {
        fn wide<T: Copy + Into<u32>>(numbers: &[T]) -> impl Iterator<Item = u32> {
            numbers.iter().map(|&number| number.into())
        }
        let above = |array, mut numbers: &mut dyn Iterator<Item = u32>, most| {
            let found = (&mut numbers).enumerate().find(|&(_, given)| given > most);
            found.map_or(Ok(()), |(index, given)| Err(ScoresError::Above { array, index, given, most }))
        };
        let last = (self.expert_count as u32).saturating_sub(1);
        above("latest", &mut wide(&numbers.latest), last)?;
        above("latest_widths", &mut wide(&numbers.latest_widths), WIDEST as u32)?;
        above("ring_experts", &mut wide(&numbers.ring_experts), last)?;
        above("ring_widths", &mut wide(&numbers.ring_widths), WIDEST as u32)?;
        above("ring_next", &mut wide(&numbers.ring_next), KEPT as u32 - 1)?;
        // One that was there twice would get a step twice, and at once where threads write rings.
        check_order("latest", &numbers.latest, &numbers.latest_widths)?;
        check_order("ring_experts", &numbers.ring_experts, &numbers.ring_widths)
    }

    fn check_layer(&self, numbers: &ScoreNumbers, index: usize) -> Result<(), ScoresError> {
        let layer = LayerId::from_index(index);
        let counts = &numbers.counts[index * self.expert_count * HALVES..][..self.expert_count * HALVES];
        let (counts, _) = counts.as_chunks::<HALVES>();
        let totals = &numbers.totals[index * COMPONENTS..][..COMPONENTS];
        let gains = &numbers.gains[index * COMPONENTS..][..COMPONENTS];
        for (half, &given) in totals[..HALVES].iter().enumerate() {
            let sum = counts.iter().map(|counts| u64::from(counts[half])).sum();
            // What is not counted here would be a part of chances here, and no part where kernels work them out.
            let most = if half < self.rule.log_halves().len() { TOTAL_MOST } else { 0 };
            if given < sum || given > most {
                return Err(ScoresError::Total { layer, component: half, given, sum, most });
            }
        }
        let mut followed = Vec::new();
        if self.followers.is_some() {
            followed = Followers::count(numbers, index, self.expert_count);
            let given = &numbers.followed[index * self.expert_count..][..self.expert_count];
            for (expert, (&given, &counted)) in (0..).map(ExpertId::new).zip(given.iter().zip(&followed)) {
                if given != counted {
                    return Err(ScoresError::Followed { layer, expert, given, counted });
                }
            }
        }
        let (given, sum) = (totals[HALVES], followed.iter().map(|&count| u64::from(count)).sum());
        if given != sum {
            return Err(ScoresError::Total { layer, component: HALVES, given, sum, most: sum });
        }
        let of_nothing = totals.iter().zip(gains).position(|(&total, &gain)| total == 0 && gain > 0);
        if let Some(component) = of_nothing {
            return Err(ScoresError::Gain { layer, component, given: gains[component] });
        }
        let parts = totals.iter().zip(gains).map(|(&total, &gain)| u128::from(total) * u128::from(gain));
        let (given, most) = (parts.sum::<u128>(), CHANCES_MOST);
        if given <= most { Ok(()) } else { Err(ScoresError::Chances { layer, given, most }) }
    }

    /// Calls `each(place, number)` for every number that victims depend on, that of the rule among them, in any order:
    /// for digests. A place is that of one number: the kind of number times 2^40, and its index among these. The rule
    /// is the only one of kind 0; kinds 1 to 5 are the first arrays of [`ScoreNumbers`]; 6 and 7 the last step of each
    /// layer and its width, 8 and 9 rings and their widths, with their steps counted from the oldest.
    pub fn each_number(&self, mut each: impl FnMut(u64, u64)) {
        let mut tell = |kind: u64, index: usize, number: u64| each(kind << 40 | index as u64, number);
        tell(0, 0, self.rule as u64);
        for (kind, numbers) in [(1, &self.weights[..]), (2, &self.turns), (3, self.counts.as_flattened())] {
            numbers.iter().enumerate().for_each(|(index, &number)| tell(kind, index, number.into()));
        }
        for (index, share) in self.shares.as_flattened().iter().enumerate() {
            tell(4, index, share.total);
            tell(5, index, share.gain);
        }
        if let Some(followers) = &self.followers {
            followers.each_number(tell);
        }
    }
}

/// Whether the experts of each step ascend.
fn check_order(array: &'static str, experts: &[u16], widths: &[u8]) -> Result<(), ScoresError> {
    for (step, (experts, &width)) in experts.chunks_exact(WIDEST).zip(widths).enumerate() {
        let pairs = experts[..usize::from(width)].windows(2);
        if let Some((place, pair)) = pairs.enumerate().find(|(_, pair)| pair[0] >= pair[1]) {
            let (before, given) = (pair[0].into(), pair[1].into());
            return Err(ScoresError::Order { array, index: step * WIDEST + place + 1, given, before });
        }
    }
    Ok(())
}
