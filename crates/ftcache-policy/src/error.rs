//! What a configuration can get wrong: the thing, what it needs and what it was given.

use std::error::Error;
use std::fmt;

use crate::{LayerId, PoolId};

/// A model or a geometry that cannot be had.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum GeometryError {
    /// The model has no mixture-of-experts layer.
    NoLayers,
    /// `top_k` is not in `1..=expert_count`.
    TopK {
        /// Experts a token is routed to.
        top_k: u32,
        /// Experts of a layer.
        expert_count: u32,
    },
    /// The flat expert ids do not fit in 32 bits.
    TooManyExperts {
        /// Layers of the model.
        layers: usize,
        /// Experts of a layer.
        expert_count: u32,
    },
    /// The bytes of all experts, or of all slots, cannot be counted.
    TooManyBytes {
        /// Bytes there would be.
        bytes: u128,
        /// Bytes that can be counted.
        most: u64,
    },
    /// A layer whose rows have no bytes.
    EmptyLayer {
        /// The layer.
        layer: LayerId,
    },
    /// Two layers of equal bytes of which nothing says that they have one quantisation.
    UntaggedLayers {
        /// The first of them.
        first: LayerId,
        /// The second.
        second: LayerId,
        /// Bytes of one expert in both.
        expert_bytes: u64,
    },
    /// No request is to be decoded.
    NoRequests,
    /// An alignment that is not a power of two.
    Alignment {
        /// What was given.
        alignment: u64,
    },
    /// A row that no slot can hold with its pads.
    SlotTooWide {
        /// The first layer of the pool.
        layer: LayerId,
        /// Bytes of the row.
        row_bytes: u64,
        /// Bytes asked for between slots.
        slot_pad_bytes: u64,
    },
    /// The kernels' slot limit is below what one step may need.
    SlotLimitBelowMinimum {
        /// The pool.
        pool: PoolId,
        /// Slots that the requests need.
        needed: u32,
        /// Slots it may have.
        limit: u32,
    },
    /// Fewer slots than the pools need.
    SlotsBelowMinimum {
        /// Slots that the requests need over all pools.
        needed: u64,
        /// Slots given.
        given: u64,
    },
    /// More slots than all pools can use.
    SlotsAboveMaximum {
        /// Slots that all pools can use.
        most: u64,
        /// Slots given.
        given: u64,
    },
    /// Fewer bytes than the pools need.
    BudgetBelowMinimum {
        /// Bytes that the requests need over all pools, pads included.
        needed: u128,
        /// Bytes given.
        given: u64,
    },
}

impl fmt::Display for GeometryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLayers => write!(f, "the model has no mixture-of-experts layer"),
            Self::TopK { top_k, expert_count } => {
                write!(f, "top-{top_k} of {expert_count} experts: top_k must be from 1 to the expert count")
            }
            Self::TooManyExperts { layers, expert_count } => {
                write!(f, "{layers} layers of {expert_count} experts: flat expert ids end at {}", u32::MAX - 1)
            }
            Self::TooManyBytes { bytes, most } => {
                write!(f, "experts or slots of {bytes} bytes; at most {most} can be counted")
            }
            Self::EmptyLayer { layer } => write!(f, "layer {layer} has no bytes in any bank"),
            Self::UntaggedLayers { first, second, expert_bytes } => write!(
                f,
                "layers {first} and {second} both have {expert_bytes} bytes an expert and no quantisation tag; \
                 tag them, or declare one quantisation for all layers"
            ),
            Self::NoRequests => write!(f, "0 requests decoded at once; at least 1 is needed"),
            Self::Alignment { alignment } => write!(f, "an alignment of {alignment} bytes is not a power of two"),
            Self::SlotTooWide { layer, row_bytes, slot_pad_bytes } => {
                write!(f, "layer {layer}: rows of {row_bytes} bytes and pads of {slot_pad_bytes} make too wide a slot")
            }
            Self::SlotLimitBelowMinimum { pool, needed, limit } => {
                write!(f, "pool {pool} needs {needed} slots for its requests; at most {limit} are allowed")
            }
            Self::SlotsBelowMinimum { needed, given } => {
                write!(f, "the pools need {needed} slots for their requests; {given} are given")
            }
            Self::SlotsAboveMaximum { most, given } => {
                write!(f, "the pools can use {most} slots; {given} are given")
            }
            Self::BudgetBelowMinimum { needed, given } => {
                write!(f, "the pools need {needed} bytes for their requests; {given} are given")
            }
        }
    }
}

impl Error for GeometryError {}

/// A text that is not a byte count.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum BytesError {
    /// A part that is neither a number nor a number with a unit.
    NotBytes {
        /// The whole text.
        text: String,
        /// The part.
        part: String,
    },
    /// More than 64 bits hold.
    TooLarge {
        /// The whole text.
        text: String,
    },
}

impl fmt::Display for BytesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotBytes { text, part } => {
                if text != part {
                    write!(f, "{text:?}: ")?;
                }
                write!(f, "{part:?} is not a byte count such as 12GiB, 12GB or 9059696640")
            }
            Self::TooLarge { text } => write!(f, "{text:?} is over {} bytes", u64::MAX),
        }
    }
}

impl Error for BytesError {}
