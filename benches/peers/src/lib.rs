//! ftcache beside the crates of other authors: the same routes, in one run.
//!
//! A [`Case`] is a number of slots and of requests; the model is always [`LAYERS`] layers of [`EXPERTS`] experts, of
//! which a token uses [`TOP_K`] a layer, over one pool. [`Replay`] holds the routes of a case, drawn before anything
//! is timed. A [`Peer`] is one crate, used as its documentation says, and answers a step with a slot for each route.

#![forbid(unsafe_code)]

mod peer;
mod replay;

pub use peer::{Ferrox, Ftcache, Peer, Schnellru};
pub use replay::{Replay, StepRoutes};

use std::fmt;

/// Layers of the model: the shape of Qwen3-Next-80B-A3B.
pub const LAYERS: u32 = 48;
/// Experts of a layer.
pub const EXPERTS: u32 = 512;
/// Experts of a token in a layer.
pub const TOP_K: usize = 10;

/// What is compared: a number of slots, and of requests decoded at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    /// Slots of the one pool that all layers share.
    pub slot_count: u32,
    /// Requests; a step has this many times [`TOP_K`] routes.
    pub request_count: usize,
}

impl Case {
    /// Every case, in the order in which the bench runs them.
    pub const ALL: [Self; 4] = [
        Self { slot_count: 2_100, request_count: 1 },
        Self { slot_count: 8_192, request_count: 1 },
        Self { slot_count: 2_100, request_count: 32 },
        Self { slot_count: 8_192, request_count: 32 },
    ];

    /// Routes of a step.
    pub fn route_count(self) -> usize {
        self.request_count * TOP_K
    }
}

/// As in a bench's name: `48x512,top-10/slots=2100,requests=1`.
impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{LAYERS}x{EXPERTS},top-{TOP_K}/slots={},requests={}", self.slot_count, self.request_count)
    }
}
