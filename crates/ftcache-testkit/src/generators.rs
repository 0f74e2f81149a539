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

/// The steps of a decode in which a request's next token keeps some experts of its last one.
///
/// Every request holds `top_k` distinct experts a layer. At each token each of them is kept with a probability of
/// `keep_percent`, else drawn anew from all experts: the reuse that LRU lives from, without any hot expert.
#[derive(Debug, Clone)]
pub struct Decode {
    rng: Rng,
    expert_count: u32,
    top_k: usize,
    keep_percent: u64,
    /// `held[layer]`: `top_k` experts of each request, one request after another.
    held: Vec<Vec<ExpertId>>,
}

impl Decode {
    /// A decode of `request_count` requests through `layer_count` layers.
    ///
    /// # Panics
    ///
    /// If `top_k` is over `expert_count`.
    pub fn new(
        seed: u64,
        layer_count: usize,
        expert_count: u32,
        top_k: usize,
        request_count: usize,
        keep_percent: u64,
    ) -> Self {
        assert!(top_k <= expert_count as usize, "top-{top_k} of {expert_count} experts");
        let mut rng = Rng::new(seed);
        let mut held = Vec::with_capacity(layer_count);
        for _ in 0..layer_count {
            let mut layer = Vec::with_capacity(top_k * request_count);
            for request in 0..request_count {
                for _ in 0..top_k {
                    let drawn = draw_outside(&mut rng, expert_count, &layer[request * top_k..]);
                    layer.push(drawn);
                }
            }
            held.push(layer);
        }
        Self { rng, expert_count, top_k, keep_percent, held }
    }

    /// The routes of every layer for the next token of every request.
    pub fn next_token(&mut self) -> &[Vec<ExpertId>] {
        for layer in &mut self.held {
            for request in layer.chunks_mut(self.top_k) {
                for index in 0..request.len() {
                    if !self.rng.chance(self.keep_percent, 100) {
                        request[index] = draw_outside(&mut self.rng, self.expert_count, request);
                    }
                }
            }
        }
        &self.held
    }
}

fn draw_outside(rng: &mut Rng, expert_count: u32, taken: &[ExpertId]) -> ExpertId {
    // With every expert taken, the one that is to be replaced is as good as any.
    if taken.len() >= expert_count as usize {
        return taken[0];
    }
    loop {
        let drawn = ExpertId::new(rng.below(u64::from(expert_count)) as u32);
        if !taken.contains(&drawn) {
            return drawn;
        }
    }
}
