//! What routing is like: how unevenly experts are used, and how soon again. Counted from the ids alone; what a cache
//! would have made of it is not asked.

use std::collections::BTreeMap;

use crate::Trace;

/// What the routing of a trace is like, and of each of its layers.
#[derive(Debug, Clone, PartialEq)]
pub struct Survey {
    /// Each layer in turn.
    pub layers: Vec<LayerSurvey>,
    /// (layer, expert) pairs that a token used.
    pub used: u64,
    /// Mean of the layers'; `None` where no layer has routes.
    pub hottest_share: Option<f64>,
    /// Mean of the layers'.
    pub entropy: Option<f64>,
    /// Mean over the tokens of all layers; see [`LayerSurvey::overlap`].
    pub overlap: Option<f64>,
    /// Over the uses in all layers.
    pub reuse: Option<Reuse>,
}

/// What one layer's routing is like.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerSurvey {
    /// Cells with data.
    pub cells: u64,
    /// Cells without.
    pub absent_cells: u64,
    /// Experts that a token used.
    pub used: u32,
    /// The share of routes to the most used tenth of the layer's experts, rounded up to whole ones. 0.1 if all are
    /// used alike and their number is a multiple of ten.
    pub hottest_share: Option<f64>,
    /// Of the use of experts, in parts of that of routes that go to all experts alike: 1 if all are used alike, 0 if
    /// one is.
    pub entropy: Option<f64>,
    /// The mean share of a token's experts that the token before used too. Only where both are of one segment and have
    /// data.
    pub overlap: Option<f64>,
    /// How soon experts are used again.
    pub reuse: Option<Reuse>,
}

/// How many tokens lie from one use of an expert to its next in the same layer: 1 is the next token. Tokens without
/// data in the layer do not count; a new segment does not start anew, since a cache does not either.
///
/// First uses have no distance. A percentile is the least distance that so many uses in a hundred do not exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reuse {
    /// Uses that were not the first.
    pub uses: u64,
    /// The median.
    pub p50: u64,
    /// The 90th percentile.
    pub p90: u64,
    /// The 99th percentile.
    pub p99: u64,
    /// The longest.
    pub max: u64,
}

impl Survey {
    /// Counts a trace.
    pub fn of(trace: &Trace) -> Self {
        let mut all = Counts::default();
        let mut layers = Vec::new();
        for layer in 0..trace.header().layers as usize {
            let counts = Counts::of(trace, layer);
            layers.push(counts.layer(trace));
            all.add(&counts);
        }
        let mean = |of: &dyn Fn(&LayerSurvey) -> Option<f64>| {
            let values: Vec<f64> = layers.iter().filter_map(of).collect();
            (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
        };
        Self {
            used: layers.iter().map(|layer| u64::from(layer.used)).sum(),
            hottest_share: mean(&|layer| layer.hottest_share),
            entropy: mean(&|layer| layer.entropy),
            overlap: all.overlap(trace.header().top_k),
            reuse: all.reuse(),
            layers,
        }
    }
}

/// Counts of one layer, or of several.
#[derive(Default)]
struct Counts {
    /// Uses of each expert; of one layer only.
    uses: Vec<u64>,
    cells: u64,
    /// Cells whose token has one before it.
    followers: u64,
    /// Ids of those that the token before has too.
    repeated: u64,
    /// Uses at each distance.
    distances: BTreeMap<u64, u64>,
}

impl Counts {
    fn of(trace: &Trace, layer: usize) -> Self {
        let experts = trace.header().experts as usize;
        let mut counts = Self { uses: vec![0; experts], ..Self::default() };
        // The last cell, counted from 1, that each expert was in.
        let mut last = vec![0_u64; experts];
        for segment in &trace.header().segments {
            let mut before: Option<&[u16]> = None;
            for token in segment.start..segment.start + segment.tokens {
                let cell = trace.cell(token as usize, layer);
                if let Some(ids) = cell {
                    counts.cells += 1;
                    for id in ids.iter().map(|&id| usize::from(id)) {
                        counts.uses[id] += 1;
                        if last[id] > 0 {
                            *counts.distances.entry(counts.cells - last[id]).or_default() += 1;
                        }
                        // The cell before is the token before only if that is of the segment and has data.
                        counts.repeated += u64::from(before.is_some() && last[id] + 1 == counts.cells);
                        last[id] = counts.cells;
                    }
                    counts.followers += u64::from(before.is_some());
                }
                before = cell;
            }
        }
        counts
    }

    fn add(&mut self, other: &Self) {
        self.cells += other.cells;
        self.followers += other.followers;
        self.repeated += other.repeated;
        for (distance, uses) in &other.distances {
            *self.distances.entry(*distance).or_default() += uses;
        }
    }

    fn layer(&self, trace: &Trace) -> LayerSurvey {
        let header = trace.header();
        let routes = self.cells * u64::from(header.top_k);
        let mut uses: Vec<u64> = self.uses.iter().copied().filter(|&uses| uses > 0).collect();
        uses.sort_unstable_by(|a, b| b.cmp(a));
        let hottest: u64 = uses.iter().take(header.experts.div_ceil(10) as usize).sum();
        LayerSurvey {
            cells: self.cells,
            absent_cells: header.tokens - self.cells,
            used: uses.len() as u32,
            hottest_share: (routes > 0).then(|| hottest as f64 / routes as f64),
            entropy: (routes > 0).then(|| entropy(&uses, routes, header.experts)),
            overlap: self.overlap(header.top_k),
            reuse: self.reuse(),
        }
    }

    fn overlap(&self, top_k: u32) -> Option<f64> {
        // Cells are equally wide, so the mean of their shares is the share of all.
        let ids = self.followers as f64 * f64::from(top_k);
        (self.followers > 0).then(|| self.repeated as f64 / ids)
    }

    fn reuse(&self) -> Option<Reuse> {
        let uses: u64 = self.distances.values().sum();
        let (&max, _) = self.distances.last_key_value()?;
        let percentile = |percent: u64| {
            let mut within = 0;
            let mut reached = self.distances.iter().filter(|&(_, uses_there)| {
                within += uses_there;
                // Beyond 64 bits: a hundred times the uses.
                u128::from(within) * 100 >= u128::from(uses) * u128::from(percent)
            });
            reached.next().map_or(max, |(&distance, _)| distance)
        };
        Some(Reuse { uses, p50: percentile(50), p90: percentile(90), p99: percentile(99), max })
    }
}

/// Of counts that are not 0.
fn entropy(counts: &[u64], routes: u64, experts: u32) -> f64 {
    if experts < 2 {
        return 0.0;
    }
    let share = |&count: &u64| count as f64 / routes as f64;
    let bits: f64 = counts.iter().map(share).map(|share| -share * share.log2()).sum();
    bits / f64::from(experts).log2()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ABSENT, Header, Phase, Segment, Shape};

    fn trace(segments: &[u64], experts: u32, layers: &[&[[u16; 2]]]) -> Trace {
        let mut start = 0;
        let run = |&tokens: &u64| {
            start += tokens;
            Segment::new("a", Phase::Decode, start - tokens, tokens)
        };
        let segments: Vec<Segment> = segments.iter().map(run).collect();
        let tokens = layers[0].len();
        let shape = Shape { tokens: tokens as u64, layers: layers.len() as u32, top_k: 2, experts };
        let ids: Vec<u16> = (0..tokens).flat_map(|token| layers.iter().flat_map(move |layer| layer[token])).collect();
        let mut header = Header::new("toy", shape, segments);
        header.absent_cells = ids.chunks(2).filter(|cell| cell[0] == ABSENT).count() as u64;
        Trace::new(header, ids).unwrap()
    }

    const NONE: [u16; 2] = [ABSENT; 2];

    #[test]
    fn one_layer_counted_by_hand() {
        // 11 experts: the hottest tenth are two.
        let survey = Survey::of(&trace(&[4, 2], 11, &[&[[0, 1], [1, 2], NONE, [1, 2], [1, 0], [0, 5]]]));
        let layer = &survey.layers[0];
        assert_eq!((layer.cells, layer.absent_cells, layer.used), (5, 1, 4));
        // 1 four times and 0 three times of ten.
        assert_eq!(layer.hottest_share, Some(0.7));
        // Token 1 repeats one of two. Token 3 follows an absent one, token 4 another segment; token 5 repeats one.
        assert_eq!(layer.overlap, Some(0.5));
        // 1 after 1; both after 1; 1 after 1 and 0 after 3; 0 after 1.
        assert_eq!(layer.reuse, Some(Reuse { uses: 6, p50: 1, p90: 3, p99: 3, max: 3 }));
        let bits: f64 = [0.4_f64, 0.3, 0.2, 0.1].iter().map(|share| -share * share.log2()).sum();
        assert!((layer.entropy.unwrap() - bits / 11_f64.log2()).abs() < 1e-12);
    }

    #[test]
    fn layers_are_put_together() {
        let even = [[0, 1], [2, 3], [4, 5], [6, 7], [0, 1]];
        let same = [[0, 1], [0, 1], [0, 1], [0, 1], NONE];
        let survey = Survey::of(&trace(&[5], 8, &[&even, &same, &[NONE; 5]]));
        assert_eq!(survey.used, 8 + 2);
        assert_eq!(survey.layers.iter().map(|layer| layer.overlap).collect::<Vec<_>>(), [Some(0.0), Some(1.0), None]);
        // Four followers of the first layer, three of the second.
        assert_eq!(survey.overlap, Some(3.0 / 7.0));
        // 2 of 10, and 4 of 8; a layer without routes has no part in the mean.
        assert_eq!((survey.layers[2].hottest_share, survey.layers[2].entropy), (None, None));
        assert_eq!(survey.hottest_share, Some((0.2 + 0.5) / 2.0));
        assert_eq!(survey.layers[1].entropy, Some(1.0 / 3.0));
        // Six times 1, twice 4: 75 % are within 1.
        assert_eq!(survey.reuse, Some(Reuse { uses: 8, p50: 1, p90: 4, p99: 4, max: 4 }));
        assert_eq!(survey.layers[2].reuse, None);
    }

    #[test]
    fn a_percentile_is_the_least_distance_that_suffices() {
        let reuse = |distances: &[(u64, u64)]| {
            Counts { distances: distances.iter().copied().collect(), ..Counts::default() }.reuse().unwrap()
        };
        assert_eq!(reuse(&[(1, 50), (2, 40), (3, 9), (9, 1)]), Reuse { uses: 100, p50: 1, p90: 2, p99: 3, max: 9 });
        assert_eq!(reuse(&[(1, 49), (2, 40), (3, 9), (9, 2)]), Reuse { uses: 100, p50: 2, p90: 3, p99: 9, max: 9 });
    }
}
