//! Seeded inputs: a small generator of numbers, and routes of a stated shape.

use ftcache_policy::ExpertId;

/// SplitMix64: every seed gives one sequence on every machine.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    ///
    /// # Panics
    ///
    /// If `bound` is zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// True in `numerator` of `denominator` cases.
    pub fn chance(&mut self, numerator: u64, denominator: u64) -> bool {
        self.below(denominator) < numerator
    }
}

/// Routes in which low ids are hot: half the draws come from the lowest eighth of the experts. Ids repeat.
pub fn skewed_routes(rng: &mut Rng, expert_count: u32, route_count: usize) -> Vec<ExpertId> {
    let hot = u64::from(expert_count).div_ceil(8);
    let mut route = || {
        let bound = if rng.chance(1, 2) { hot } else { u64::from(expert_count) };
        ExpertId::new(rng.below(bound) as u32)
    };
    (0..route_count).map(|_| route()).collect()
}

/// The steps of a decode whose experts come back as they were seen to in a recorded one.
///
/// Each request has, for each layer, its experts by last use, the most recent first. A route takes the expert at
/// place `E/8 * 2^((u - 0.67) / 0.14)` of them, `u` uniform in 0..1; so LRU with slots for an eighth of a layer's
/// experts hits 67 % of one request's routes, and each doubling adds 14 points. That is what per-layer LRU reached on
/// 54,000 recorded tokens of a model of 512 experts, top-10: 67 % with 64 slots, 81 % with 128 (llama.cpp, pull
/// request 27861).
#[derive(Debug, Clone)]
pub struct Decode {
    rng: Rng,
    top_k: usize,
    /// `by_last_use[layer][request]`: every expert, the most recent first.
    by_last_use: Vec<Vec<Vec<ExpertId>>>,
    /// `routes[layer]`: `top_k` distinct experts of each request, one request after another.
    routes: Vec<Vec<ExpertId>>,
}

impl Decode {
    /// A decode of `request_count` requests through `layer_count` layers.
    ///
    /// # Panics
    ///
    /// If `top_k` is over a quarter of `expert_count`: the law then has too few places for distinct experts.
    pub fn new(seed: u64, layer_count: usize, expert_count: u32, top_k: usize, request_count: usize) -> Self {
        assert!(top_k * 4 <= expert_count as usize, "top-{top_k} of {expert_count} experts");
        let mut rng = Rng::new(seed);
        let mut shuffled = || {
            let mut experts: Vec<ExpertId> = (0..expert_count).map(ExpertId::new).collect();
            for index in (1..experts.len()).rev() {
                experts.swap(index, rng.below(index as u64 + 1) as usize);
            }
            experts
        };
        let by_last_use = (0..layer_count).map(|_| (0..request_count).map(|_| shuffled()).collect()).collect();
        Self { rng, top_k, by_last_use, routes: vec![Vec::new(); layer_count] }
    }

    /// The routes of every layer for the next token of every request.
    pub fn next_token(&mut self) -> &[Vec<ExpertId>] {
        for (routes, requests) in self.routes.iter_mut().zip(&mut self.by_last_use) {
            routes.clear();
            for by_last_use in requests {
                let mut places: Vec<usize> = Vec::with_capacity(self.top_k);
                while places.len() < self.top_k {
                    let unit = self.rng.bits() as f64 / u64::MAX as f64;
                    let place = by_last_use.len() as f64 / 8.0 * ((unit - 0.67) / 0.14).exp2();
                    let place = (place as usize).min(by_last_use.len() - 1);
                    if !places.contains(&place) {
                        places.push(place);
                    }
                }
                let first = routes.len();
                routes.extend(places.iter().map(|&place| by_last_use[place]));
                by_last_use.retain(|expert| !routes[first..].contains(expert));
                by_last_use.splice(0..0, routes[first..].iter().copied());
            }
        }
        &self.routes
    }
}

/// A row of `row_bytes` bytes that tells layer, expert and bank: the first two bytes number the row, from 1.
pub fn row(layer: u32, expert: u32, bank: u32, row_bytes: u64) -> Vec<u8> {
    let number = 1 + bank + 4 * (expert + 64 * layer);
    (0..row_bytes as u32)
        .map(|at| match at {
            0 => number as u8,
            1 => (number >> 8) as u8,
            _ => (number.wrapping_mul(167) ^ at.wrapping_mul(59)) as u8,
        })
        .collect()
}
