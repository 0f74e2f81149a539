//! What a step can get wrong.

use std::error::Error;
use std::fmt;

use ftcache_policy::{ExpertId, LayerId, PoolId};

/// A step that cannot be admitted. The cache is as it was before the call.
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
    /// The step routes to more distinct experts than the pool has slots.
    StepTooWide {
        /// The layer.
        layer: LayerId,
        /// Its pool.
        pool: PoolId,
        /// Distinct experts of the step.
        needed: usize,
        /// Slots of the pool.
        given: usize,
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
            Self::StepTooWide { layer, pool, needed, given } => {
                write!(f, "layer {layer} routes to {needed} distinct experts; pool {pool} has {given} slots")
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
}

impl fmt::Display for PoolsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownPool { layer, pool, pool_count } => {
                write!(f, "layer {layer} is in pool {pool} of {pool_count} pools")
            }
            Self::TooMany { experts, slots } => {
                write!(f, "{experts} experts and {slots} slots; ids count {} of each", u32::MAX - 1)
            }
        }
    }
}

impl Error for PoolsError {}
