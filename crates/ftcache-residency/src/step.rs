//! What a step is, beside its routes: a layer, what it is for, and what becomes of its misses.

use ftcache_policy::{Fetch, FetchOrder, LayerId};

/// What a step is for, which decides what it leaves in the order of victims.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Phase {
    /// A token of each request: what is routed to has been used.
    #[default]
    Decode,
    /// Drafted tokens: hits keep their stamps, since a draft may be rejected. [`Cache::accept`](crate::Cache::accept)
    /// says what was used in the end.
    Verify,
    /// A prompt: hits keep their stamps, and misses are the first to go after free slots, so that a prompt costs the
    /// decode set no more than it must.
    Prefill,
}

impl Phase {
    /// Every phase.
    pub const ALL: [Self; 3] = [Self::Decode, Self::Verify, Self::Prefill];
}

/// What becomes of the experts that are in no slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Misses {
    /// All are fetched.
    #[default]
    Fetched,
    /// Some are fetched, and a CPU computes the others.
    Hybrid {
        /// How many.
        fetch: Fetch,
        /// Which.
        order: FetchOrder,
    },
}

/// One call for one layer.
///
/// ```
/// use ftcache_policy::LayerId;
/// use ftcache_residency::{Phase, Step};
///
/// let step = Step { phase: Phase::Verify, ..Step::new(LayerId::new(3)) };
/// # assert_eq!(step.layer.get(), 3);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// The layer.
    pub layer: LayerId,
    /// What it is for.
    pub phase: Phase,
    /// The caller's name for the step. A second call for this layer with the same token, before another admission of
    /// the layer and before anything was freed by a call, has the same answer and changes nothing; if another layer
    /// has taken one of its slots since, it is refused. Of a step in parts the last part alone is remembered.
    pub token: Option<u64>,
    /// What becomes of the misses.
    pub misses: Misses,
    /// Whether it is a further part of a step that was [partitioned](crate::Cache::partition): statistics count the
    /// step with its first part, and drafts are accepted in all parts at once.
    pub continues: bool,
}

impl Step {
    /// A decode step without a token, whose misses are all fetched.
    pub const fn new(layer: LayerId) -> Self {
        Self { layer, phase: Phase::Decode, token: None, misses: Misses::Fetched, continues: false }
    }
}

impl From<LayerId> for Step {
    fn from(layer: LayerId) -> Self {
        Self::new(layer)
    }
}
