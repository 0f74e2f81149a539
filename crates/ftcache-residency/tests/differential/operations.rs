//! What can be asked of a cache, in the model's words. `draw.rs` makes random lists of it.
//!
//! An operation stands by itself: whatever was taken out of the list before it, it can still be asked. A pool or slot
//! that the cache of that moment does not have is taken modulo those it has.

use ftcache_policy::Eviction;
use ftcache_testkit::reference::Step;

/// The pools of a cache.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    pub(crate) expert_count: u32,
    pub(crate) pool_of_layer: Vec<Option<u32>>,
    pub(crate) pool_sizes: Vec<u32>,
    /// The rule by which the first cache, and each that starts over, chooses victims.
    pub(crate) eviction: Eviction,
}

/// How a ticket ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Commit,
    Abort,
    Drop,
}

/// How a ticket of later copies ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LateEnd {
    Commit,
    Fail,
    Abort,
    Drop,
}

#[derive(Debug, Clone)]
pub(crate) enum Operation {
    Ensure(Step, End),
    /// A step in as many parts as it takes, each ended in turn as told, and perhaps accepted.
    Parts {
        step: Step,
        ends: Vec<End>,
        accepted: Option<Vec<u32>>,
    },
    /// Fetches behind the last plan that was committed.
    FetchLater {
        most: usize,
        end: LateEnd,
    },
    /// Hints at experts of a layer.
    Hint {
        layer: u32,
        experts: Vec<u32>,
        most: usize,
        end: LateEnd,
    },
    /// Cancels a hint, counted back from the last flight there was; or all.
    CancelHint(Option<usize>),
    /// Lands a flight, counted back from the last there was, or from the last that has not landed; or, beyond the
    /// first, one that there never was.
    Land {
        back: usize,
        is_up: bool,
    },
    Accept {
        layer: u32,
        accepted: Vec<u32>,
    },
    Pin {
        experts: Vec<(u32, u32)>,
        unpinned: u32,
    },
    Unpin(Vec<(u32, u32)>),
    Forget {
        pool: u32,
        slot: u32,
    },
    ForgetLayer(u32),
    Reset,
    /// Gives staging of so many buffers: borrowed up to a bound in each pool, or with bytes of its own.
    SetStaging {
        buffer_count: u32,
        stable_from: Option<[u32; 3]>,
    },
    BeginChunk,
    Prefetch(u32, End),
    Materialize(u32, End),
    Wait(u32),
    Release(u32),
    EndChunk,
    AbandonChunk,
    /// Other pools for the same layers; the cache goes on with them if `is_taken`, else as it was.
    Rebuild {
        pool_of_layer: Vec<Option<u32>>,
        pool_sizes: Vec<u32>,
        is_warm: bool,
        is_taken: bool,
    },
    /// Notes who is resident.
    Export,
    /// Starts over with nothing but the last export.
    Restart {
        pool_of_layer: Vec<Option<u32>>,
        pool_sizes: Vec<u32>,
    },
    /// Brings the last export back.
    BringBack(End),
    SkipTo(u64),
    /// Another rule, or the same with nothing counted.
    SetEviction(Eviction),
    /// The residency goes out as plain numbers, and comes in again.
    CarryOver,
}
