//! The routes of a case: drawn once, replayed in a loop, the same for every peer.
//!
//! Experts come back as in a recorded decode of this shape ([`Decode`]): LRU then misses about 40 % of one request's
//! routes with 2,100 slots (44 a layer), and 13 % with 8,192. With 32 requests a token uses some 11,500 distinct
//! experts, more than either pool has slots, so LRU has let go of every one before it comes again: those cases time
//! nothing but misses.

use ftcache_policy::ExpertId;
use ftcache_testkit::generators::Decode;

use crate::{Case, EXPERTS, LAYERS, TOP_K};

const SEED: u64 = 48_512;

/// The routes of one step, in the type that each crate takes.
#[derive(Debug, Clone, Copy)]
pub struct StepRoutes<'a> {
    /// The layer that was routed.
    pub layer: u32,
    /// The routes as ids of ours.
    pub experts: &'a [ExpertId],
    /// The same routes as numbers.
    pub numbers: &'a [u32],
}

/// A decode of some tokens, to be run over and over.
#[derive(Debug, Clone)]
pub struct Replay {
    route_count: usize,
    token_count: usize,
    /// Step after step: `route_count` routes of each.
    experts: Vec<ExpertId>,
    numbers: Vec<u32>,
}

impl Replay {
    /// Enough tokens that the jump from the last to the first does not show: 256 of one request, 48 of 32.
    pub fn new(case: Case) -> Self {
        Self::with_tokens(case, if case.request_count == 1 { 256 } else { 48 })
    }

    /// The first tokens of a case's decode.
    pub fn with_tokens(case: Case, token_count: usize) -> Self {
        let mut decode = Decode::new(SEED, LAYERS as usize, EXPERTS, TOP_K, case.request_count);
        let mut experts = Vec::with_capacity(token_count * LAYERS as usize * case.route_count());
        for _ in 0..token_count {
            for layer in decode.next_token() {
                experts.extend_from_slice(layer);
            }
        }
        let numbers = experts.iter().map(|expert| expert.get()).collect();
        Self { route_count: case.route_count(), token_count, experts, numbers }
    }

    /// Tokens before it starts over.
    pub fn token_count(&self) -> usize {
        self.token_count
    }

    /// The steps of a token, layer after layer; tokens beyond the last start over.
    pub fn token(&self, token: usize) -> impl Iterator<Item = StepRoutes<'_>> {
        let width = LAYERS as usize * self.route_count;
        let range = token % self.token_count * width..(token % self.token_count + 1) * width;
        let experts = self.experts[range.clone()].chunks_exact(self.route_count);
        let numbers = self.numbers[range].chunks_exact(self.route_count);
        let steps = (0..LAYERS).zip(experts.zip(numbers));
        steps.map(|(layer, (experts, numbers))| StepRoutes { layer, experts, numbers })
    }

    /// The distinct experts of all steps together, each step for itself.
    pub fn distinct_count(&self) -> usize {
        let distinct = |step: &[u32]| {
            let mut step = step.to_vec();
            step.sort_unstable();
            step.dedup();
            step.len()
        };
        self.numbers.chunks_exact(self.route_count).map(distinct).sum()
    }
}
