//! What a call can get wrong. Unless it says otherwise, the cache is then as it was before.

use std::error::Error;
use std::fmt;

use ftcache_policy::{ExpertId, LayerId, PoolId};

use crate::PinError;

/// A step that cannot be admitted, or accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum EnsureError {
    /// The cache has no such layer.
    UnknownLayer {
        /// What was asked for.
        layer: LayerId,
        /// Layers of the cache.
        layer_count: usize,
    },
    /// The layer holds no slots: it decodes elsewhere.
    NoSlots {
        /// The layer.
        layer: LayerId,
    },
    /// A route names an expert that the layer does not have.
    UnknownExpert {
        /// The layer.
        layer: LayerId,
        /// Index of the route.
        route: usize,
        /// What it names.
        expert: ExpertId,
        /// Experts of the layer.
        expert_count: u32,
    },
    /// A route in an engine's own form is neither an expert nor the value that stands for an absent one.
    UnknownId {
        /// The layer.
        layer: LayerId,
        /// Index of the route.
        route: usize,
        /// What it is.
        id: i64,
        /// Experts of the layer.
        expert_count: u32,
    },
    /// The value that stands for an absent route is an expert's.
    AbsentId {
        /// The value.
        id: i64,
        /// Experts of a layer.
        expert_count: u32,
    },
    /// The step routes to more distinct experts than there are slots for it.
    StepTooWide {
        /// The layer.
        layer: LayerId,
        /// Its pool.
        pool: PoolId,
        /// Distinct experts of the step.
        needed: usize,
        /// Slots that it may have: those of the pool but for the two numbers below.
        given: u32,
        /// Slots of the pool.
        slot_count: u32,
        /// Slots pinned for experts that the step does not use, and slots that are in flight.
        pinned: u32,
        /// Slots under the staging buffers of an open chunk.
        withheld: u32,
    },
    /// The row of an expert is on its way, so that it can neither be used nor be fetched. A hybrid step leaves it to
    /// the CPU.
    InFlight {
        /// The layer.
        layer: LayerId,
        /// Index of the route.
        route: usize,
        /// The expert.
        expert: ExpertId,
    },
    /// The step counter is at its end.
    LastStep {
        /// The last step.
        step: u64,
    },
    /// A step was asked for again under its token, but it is another.
    TokenReused {
        /// The layer.
        layer: LayerId,
        /// The token.
        token: u64,
    },
    /// A step was asked for again under its token, and one of its slots has been given to another expert since.
    AnswerGone {
        /// The layer.
        layer: LayerId,
        /// The token.
        token: u64,
        /// The first expert that lost its slot.
        expert: ExpertId,
    },
    /// No verify step of the layer waits to be accepted.
    NothingToAccept {
        /// The layer.
        layer: LayerId,
    },
    /// An accepted expert is none that the verify step routed to.
    NotVerified {
        /// The layer.
        layer: LayerId,
        /// Index among the accepted.
        route: usize,
        /// The expert.
        expert: ExpertId,
    },
}

impl fmt::Display for EnsureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownLayer { layer, layer_count } => {
                write!(f, "no layer {layer}: the cache has {layer_count} layers")
            }
            Self::NoSlots { layer } => write!(f, "layer {layer} holds no slots: it decodes elsewhere"),
            Self::UnknownExpert { layer, route, expert, expert_count } => {
                write!(f, "layer {layer}: route {route} is {expert}, which is no expert of 0..{expert_count}")
            }
            Self::UnknownId { layer, route, id, expert_count } => {
                write!(f, "layer {layer}: route {route} is {id}, which is no expert of 0..{expert_count}")
            }
            Self::AbsentId { id, expert_count } => {
                write!(f, "the id of an absent route is {id}, an expert of 0..{expert_count}")
            }
            Self::StepTooWide { layer, pool, needed, given, slot_count, pinned, withheld } => {
                write!(f, "layer {layer} routes to {needed} distinct experts; pool {pool} has {slot_count} slots")?;
                match (pinned, withheld) {
                    (0, 0) => Ok(()),
                    (pinned, 0) => write!(f, ", {given} without {pinned} that are pinned for others or in flight"),
                    (0, withheld) => write!(f, ", {given} without the {withheld} under staging buffers"),
                    (pinned, withheld) => write!(
                        f,
                        ", {given} without {pinned} that are pinned for others or in flight and the {withheld} under \
                         staging buffers"
                    ),
                }
            }
            Self::InFlight { layer, route, expert } => {
                write!(f, "layer {layer} route {route}: the row of expert {expert} is on its way")
            }
            Self::LastStep { step } => write!(f, "step {step} was the last that can be counted: make a new cache"),
            Self::TokenReused { layer, token } => {
                write!(f, "layer {layer}: token {token} stands for other routes or another kind of step")
            }
            Self::AnswerGone { layer, token, expert } => {
                write!(f, "layer {layer}: expert {expert} has lost its slot since the step of token {token}")
            }
            Self::NothingToAccept { layer } => write!(f, "layer {layer} has no verify step to accept"),
            Self::NotVerified { layer, route, expert } => {
                write!(f, "layer {layer}: accepted route {route} is {expert}, which the verify step did not route to")
            }
        }
    }
}

impl Error for EnsureError {}

/// Pools that cannot be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PoolsError {
    /// A layer names a pool that does not exist.
    UnknownPool {
        /// The layer.
        layer: LayerId,
        /// The pool it names.
        pool: PoolId,
        /// Pools there are.
        pool_count: usize,
    },
    /// Experts or slots beyond what ids can count.
    TooMany {
        /// Experts over all layers.
        experts: u64,
        /// Slots over all pools.
        slots: u64,
    },
    /// A rebuild for another model.
    OtherModel {
        /// Layers of the cache, and experts of each.
        had: (usize, u32),
        /// Layers and experts of what it is to become.
        given: (usize, u32),
    },
    /// A rebuild that leaves a pool with too few slots beside those that are pinned.
    Pinned(PinError),
    /// A rebuild while a prefill chunk is open.
    ChunkOpen,
}

impl fmt::Display for PoolsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownPool { layer, pool, pool_count } => {
                write!(f, "layer {layer} is in pool {pool} of {pool_count} pools")
            }
            Self::TooMany { experts, slots } => {
                write!(f, "{experts} experts and {slots} slots; ids count {} of each", ftcache_policy::SlotId::LIMIT)
            }
            Self::OtherModel { had, given } => write!(
                f,
                "a cache of {} layers of {} experts cannot become one of {} layers of {}",
                had.0, had.1, given.0, given.1
            ),
            Self::Pinned(error) => error.fmt(f),
            Self::ChunkOpen => write!(f, "a prefill chunk is open"),
        }
    }
}

impl Error for PoolsError {}
