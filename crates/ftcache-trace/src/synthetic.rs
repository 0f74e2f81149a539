//! Traces from a seed: popularity, repetition and drift by formula, so that a test can say what it needs and a
//! benchmark can turn one knob at a time. What they lack of a model's routing is what the formulas leave out.
//!
//! The same parameters give the same ids on every platform. Popularity becomes integers by square roots, products and
//! one division, which IEEE 754 rounds exactly; powers and logarithms differ between libraries and are not used.

use serde_json::json;

use crate::random::Random;
use crate::{Header, Phase, Segment, Shape, Trace, TraceError};

/// What a synthetic trace is made by.
///
/// Each layer has a generator of its own, seeded by `seed` and the layer's number, and a permutation `p` of the
/// experts, drawn at the start: `p[r]` is the expert of rank `r`, from 0. Then for each token, layer by layer, the
/// `top_k` places of the cell are filled in turn, never twice by one expert:
///
/// 1. with probability `locality`, by one of the experts of the same layer's cell before, each of those not yet in
///    this cell as likely as another;
/// 2. otherwise, or where no cell is before (a request starts with this token), by the expert of rank `r` with
///    probability `w[r] / sum of w` over the ranks not yet in this cell, `w[r] = max(1, floor(2^32 / (r + 1)^skew))`.
///
/// So of a token's experts, a share of `locality + (1 - locality) c` was also the token before's, where `c` is what
/// the popular ones coincide by chance: about `top_k / experts` without skew.
#[derive(Debug, Clone, PartialEq)]
pub struct Synthetic {
    /// Where all of it starts from.
    pub seed: u64,
    /// Tokens, over all requests.
    pub tokens: u64,
    /// Layers.
    pub layers: u32,
    /// Experts of a layer.
    pub experts: u32,
    /// Experts that a token is routed to in a layer.
    pub top_k: u32,
    /// Requests, one after another, each a segment of `tokens / requests` tokens; the first `tokens % requests` have
    /// one more. From 1 to `tokens`.
    pub requests: u64,
    /// The exponent of popularity, from 0 (all alike) to 8, rounded to a multiple of 2^-16. 1 is Zipf's law.
    pub skew: f64,
    /// The probability of repeating an expert of the token before, from 0 to 1.
    pub locality: f64,
    /// Tokens after which popularity moves; 0 for never. Before each token `t > 0` with `t % drift == 0`, every layer
    /// draws `ceil(experts / 4)` ranks, at least two of them, and their experts move one rank round in the order
    /// drawn. A layer of one expert stays.
    pub drift: u64,
}

impl Default for Synthetic {
    /// 256 tokens of one request over 4 layers of 16 experts, top-2; Zipf's law, half of the routes repeated, no drift.
    fn default() -> Self {
        Self { seed: 1, tokens: 256, layers: 4, experts: 16, top_k: 2, requests: 1, skew: 1.0, locality: 0.5, drift: 0 }
    }
}

const MAX_SKEW: f64 = 8.0;
/// `skew` is a multiple of 2^-16.
const SKEW_BITS: u32 = 16;

impl Synthetic {
    /// Makes the trace. Its header keeps the parameters under `"synthetic"`.
    ///
    /// # Errors
    ///
    /// A parameter outside its range, or sizes that no trace can have.
    pub fn trace(&self) -> Result<Trace, TraceError> {
        let header = self.header()?;
        let shape = header.shape();
        let top_k = self.top_k as usize;
        let popularity = Popularity::new(self.experts, self.skew);
        let mut layers: Vec<Layer> =
            (0..self.layers).map(|layer| Layer::new(Random::new(self.seed, layer.into()), self.experts)).collect();

        let mut ids: Vec<u16> = Vec::new();
        for segment in &header.segments {
            for token in segment.start..segment.start + segment.tokens {
                let moves = self.drift != 0 && token != 0 && token % self.drift == 0;
                let follows = token != segment.start;
                for layer in &mut layers {
                    if moves {
                        layer.drift();
                    }
                    // The cell before lies one token back; at the first token of a request there is none.
                    let start = ids.len();
                    ids.resize(start + top_k, 0);
                    let (past, cell) = ids.split_at_mut(start);
                    let before = if follows { &past[start - shape.token_ids()..][..top_k] } else { &[] };
                    layer.fill(cell, before, self.locality, &popularity);
                }
            }
        }
        Trace::new(header, ids)
    }

    fn header(&self) -> Result<Header, TraceError> {
        let within = |name, found: f64, least: f64, most: f64| {
            // Written so that a NaN is outside.
            if found >= least && found <= most {
                Ok(())
            } else {
                Err(TraceError::Parameter { name, found, least, most })
            }
        };
        let &Self { seed, tokens, layers, experts, top_k, requests, skew, locality, drift } = self;
        within("skew", skew, 0.0, MAX_SKEW)?;
        within("locality", locality, 0.0, 1.0)?;
        let shape = Shape { tokens, layers, top_k, experts };
        // The sizes first, with one segment: what bounds `requests` must itself be sound.
        let mut header = Header::new("synthetic", shape, vec![Segment::new("request-0", Phase::Decode, 0, tokens)]);
        header.check()?;
        within("requests", requests as f64, 1.0, tokens as f64)?;

        let mut start = 0;
        header.segments.clear();
        for request in 0..requests {
            let length = tokens / requests + u64::from(request < tokens % requests);
            header.segments.push(Segment::new(format!("request-{request}"), Phase::Decode, start, length));
            start += length;
        }
        header.source = Some("ftcache-trace, from a seed".to_owned());
        let parameters =
            json!({ "seed": seed, "requests": requests, "skew": skew, "locality": locality, "drift": drift });
        header.extra.insert("synthetic".to_owned(), parameters);
        Ok(header)
    }
}

/// How likely each rank is, the same in all layers.
struct Popularity {
    /// `sums[r]` is the weight of the ranks up to `r`, itself included.
    sums: Vec<u64>,
}

impl Popularity {
    fn new(experts: u32, skew: f64) -> Self {
        // Exact: `skew` was checked, and scaling by a power of two rounds nothing before `round` does.
        let exponent = (skew * f64::from(1_u32 << SKEW_BITS)).round() as u32;
        let mut sum = 0;
        let sums = (1..=experts).map(|rank| {
            sum += ((2_f64.powi(32) / power(rank, exponent)) as u64).max(1);
            sum
        });
        Self { sums: sums.collect() }
    }

    fn total(&self) -> u64 {
        self.sums[self.sums.len() - 1]
    }

    fn rank(&self, draw: u64) -> usize {
        self.sums.partition_point(|&sum| sum <= draw)
    }

    fn weight(&self, rank: usize) -> u64 {
        self.sums[rank] - if rank == 0 { 0 } else { self.sums[rank - 1] }
    }
}

/// `base ^ (exponent / 2^16)`, by the bits of the exponent: products and square roots only.
fn power(base: u32, exponent: u32) -> f64 {
    let mut result = 1.0;
    for _ in 0..exponent >> SKEW_BITS {
        result *= f64::from(base);
    }
    let mut root = f64::from(base);
    for bit in (0..SKEW_BITS).rev() {
        root = root.sqrt();
        if exponent >> bit & 1 == 1 {
            result *= root;
        }
    }
    result
}

/// One layer's generator and who is popular in it now.
struct Layer {
    random: Random,
    /// The permutation: `expert_of[rank]`.
    expert_of: Vec<u16>,
    /// Scratch of `fill`: the experts of the cell before that are not yet in this one.
    free: Vec<u16>,
}

impl Layer {
    fn new(random: Random, experts: u32) -> Self {
        // Ids fit in 16 bits: the header was checked.
        let mut layer = Self { random, expert_of: (0..experts).map(|id| id as u16).collect(), free: Vec::new() };
        for last in (1..layer.expert_of.len()).rev() {
            let other = layer.random.below(last as u64 + 1) as usize;
            layer.expert_of.swap(last, other);
        }
        layer
    }

    fn fill(&mut self, cell: &mut [u16], before: &[u16], locality: f64, popularity: &Popularity) {
        self.free.clear();
        self.free.extend_from_slice(before);
        for place in 0..cell.len() {
            let (chosen, rest) = cell.split_at_mut(place);
            // Drawn also where nothing can be repeated: the stream then does not depend on what is in a cell.
            let repeats = self.random.unit() < locality;
            let expert = if repeats && !self.free.is_empty() {
                self.free[self.random.below(self.free.len() as u64) as usize]
            } else {
                self.draw(chosen, popularity)
            };
            self.free.retain(|&id| id != expert);
            rest[0] = expert;
        }
    }

    /// An expert by popularity that is not in `chosen`.
    fn draw(&mut self, chosen: &[u16], popularity: &Popularity) -> u16 {
        // Drawing again where it was chosen gives the ranks left their shares. With much skew nearly all draws are of
        // those chosen, so after 16 the shares are counted out: the same law, so the bound changes no distribution.
        for _ in 0..16 {
            let expert = self.expert_of[popularity.rank(self.random.below(popularity.total()))];
            if !chosen.contains(&expert) {
                return expert;
            }
        }
        let left = || (0..self.expert_of.len()).filter(|&rank| !chosen.contains(&self.expert_of[rank]));
        let total = left().map(|rank| popularity.weight(rank)).sum();
        let mut draw = self.random.below(total);
        for rank in left() {
            match draw.checked_sub(popularity.weight(rank)) {
                Some(rest) => draw = rest,
                None => return self.expert_of[rank],
            }
        }
        unreachable!("a draw is below the sum of the weights")
    }

    fn drift(&mut self) {
        let count = self.expert_of.len();
        let moved = count.div_ceil(4).max(2);
        if count < 2 {
            return;
        }
        // The first of a shuffle are a draw without repetition.
        let mut ranks: Vec<usize> = (0..count).collect();
        for place in 0..moved {
            let other = place + self.random.below((count - place) as u64) as usize;
            ranks.swap(place, other);
        }
        for pair in ranks[..moved].windows(2) {
            self.expert_of.swap(pair[0], pair[1]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base() -> Synthetic {
        Synthetic {
            seed: 42,
            tokens: 2000,
            layers: 3,
            experts: 64,
            top_k: 4,
            skew: 0.0,
            locality: 0.0,
            ..Synthetic::default()
        }
    }

    /// The share of experts that the token before had too, without the first token.
    fn overlap(trace: &Trace) -> f64 {
        let (layers, tokens) = (trace.header().layers as usize, trace.header().tokens as usize);
        let cell = |token, layer| trace.cell(token, layer).unwrap();
        let cells = (1..tokens).flat_map(|token| (0..layers).map(move |layer| (token, layer)));
        let shared: usize = cells
            .map(|(token, layer)| cell(token, layer).iter().filter(|id| cell(token - 1, layer).contains(id)).count())
            .sum();
        shared as f64 / ((tokens - 1) * layers * trace.header().top_k as usize) as f64
    }

    /// Uses of each expert of layer 0 by the tokens of a range.
    fn uses(trace: &Trace, tokens: std::ops::Range<usize>) -> Vec<u32> {
        let mut uses = vec![0; trace.header().experts as usize];
        tokens.flat_map(|token| trace.cell(token, 0).unwrap()).for_each(|&id| uses[usize::from(id)] += 1);
        uses
    }

    // Fixed once: a change of any of these is a change of every synthetic result ever reported.
    #[test]
    fn a_seed_gives_the_same_ids_for_ever() {
        let synthetic = Synthetic { skew: 1.3, locality: 0.4, drift: 100, requests: 3, ..base() };
        let trace = synthetic.trace().unwrap();
        assert_eq!(trace.digest(), 0xb05d_bee5_5430_35b0);
        assert_eq!(trace.cell(1999, 2), Some([8, 59, 14, 3].as_slice()));
    }

    #[test]
    fn locality_is_the_share_that_repeats() {
        for locality in [0.0, 0.25, 0.5, 0.75, 1.0] {
            let found = overlap(&Synthetic { locality, ..base() }.trace().unwrap());
            let chance = 4.0 / 64.0;
            let expected = locality + (1.0 - locality) * chance;
            assert!((found - expected).abs() < 0.03, "locality {locality}: {found}, not {expected}");
        }
    }

    #[test]
    fn skew_is_the_exponent_of_popularity() {
        let mut last = 0.0;
        for skew in [0.0, 0.5, 1.0, 2.0, 8.0] {
            // One route a token, so that none is left out for being chosen already.
            let synthetic = Synthetic { skew, top_k: 1, tokens: 20_000, layers: 1, ..base() };
            let mut uses = uses(&synthetic.trace().unwrap(), 0..20_000);
            uses.sort_unstable_by(|a, b| b.cmp(a));
            let found = f64::from(uses[0]) / 20_000.0;
            let expected = 1.0 / (1..=64).map(|rank| f64::from(rank).powf(-skew)).sum::<f64>();
            assert!((found - expected).abs() < 0.02, "skew {skew}: {found}, not {expected}");
            assert!(found > last, "skew {skew}: {found} after {last}");
            last = found;
        }
    }

    #[test]
    fn drift_moves_who_is_popular() {
        let change = |drift| {
            let trace = Synthetic { skew: 1.5, drift, ..base() }.trace().unwrap();
            let (first, second) = (uses(&trace, 0..1000), uses(&trace, 1000..2000));
            first.iter().zip(&second).map(|(a, b)| a.abs_diff(*b)).sum::<u32>()
        };
        // Of 4,000 routes a half: without drift only chance differs.
        let (never, sometimes) = (change(0), change(200));
        assert!(never < 600, "{never}");
        assert!(sometimes > 1500, "{sometimes}");
    }

    #[test]
    fn drift_moves_a_quarter_of_the_ranks() {
        for experts in [1, 2, 3, 16, 64, 65] {
            let mut layer = Layer::new(Random::new(3, 0), experts);
            let before = layer.expert_of.clone();
            layer.drift();
            let moved = before.iter().zip(&layer.expert_of).filter(|(a, b)| a != b).count();
            let expected = if experts == 1 { 0 } else { experts.div_ceil(4).max(2) as usize };
            assert_eq!(moved, expected, "{experts} experts");
            layer.expert_of.sort_unstable();
            assert!(layer.expert_of.iter().copied().eq(0..experts as u16), "{experts} experts");
        }
    }

    #[test]
    fn a_request_starts_without_the_one_before() {
        let trace = Synthetic { locality: 1.0, requests: 7, ..base() }.trace().unwrap();
        let header = trace.header();
        assert_eq!(
            header.segments.iter().map(|segment| segment.tokens).collect::<Vec<_>>(),
            [286, 286, 286, 286, 286, 285, 285]
        );
        let set = |token| {
            let mut ids = trace.cell(token, 0).unwrap().to_vec();
            ids.sort_unstable();
            ids
        };
        for segment in &header.segments {
            let (start, end) = (segment.start as usize, (segment.start + segment.tokens) as usize);
            assert!((start..end).all(|token| set(token) == set(start)), "{}", segment.name);
        }
        assert_ne!(set(0), set(286));
    }

    #[test]
    fn a_longer_or_deeper_trace_starts_the_same() {
        let short = Synthetic { skew: 1.0, locality: 0.5, drift: 30, ..base() };
        let long = Synthetic { tokens: 2500, layers: 5, ..short.clone() };
        let (short, long) = (short.trace().unwrap(), long.trace().unwrap());
        for token in 0..2000 {
            for layer in 0..3 {
                assert_eq!(short.cell(token, layer), long.cell(token, layer));
            }
        }
    }

    #[test]
    fn every_expert_of_a_layer_can_be_chosen_at_once() {
        let trace = Synthetic { top_k: 64, skew: 8.0, tokens: 20, ..base() }.trace().unwrap();
        assert_eq!(uses(&trace, 0..20), [20; 64]);
    }

    #[test]
    fn powers_agree_with_the_library() {
        for (base, skew) in [(1, 1.0), (2, 0.5), (3, 1.75), (64, 2.3), (65535, 8.0)] {
            let exponent = (skew * 65536_f64).round() as u32;
            let (found, expected) = (power(base, exponent), f64::from(base).powf(f64::from(exponent) / 65536.0));
            assert!((found / expected - 1.0).abs() < 1e-12, "{base}^{skew}: {found}, not {expected}");
        }
    }
}
