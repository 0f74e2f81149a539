//! What a geometry and its parts can get wrong: the thing, what it needs and what it was given.

use std::error::Error;
use std::fmt;
use std::ops::Range;

use crate::{BankId, Budget, Eviction, LayerId, PoolId, SlotId};

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
    /// More banks than are counted.
    TooManyBanks {
        /// The most that a layer lists.
        banks: usize,
        /// How many a model may have.
        most: usize,
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
        /// Bytes asked for after the last slot.
        tail_pad_bytes: u64,
        /// What strides and pads are multiples of.
        alignment: u64,
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
    /// A budget that is a share of memory, where nothing says how much there is.
    UnknownMemory {
        /// The budget.
        budget: Budget,
    },
    /// A layer that the model does not have.
    UnknownLayer {
        /// The layer.
        layer: LayerId,
        /// Layers of the model.
        layer_count: usize,
    },
    /// A limit for a tag that no layer has.
    UnknownTag {
        /// The tag.
        tag: Vec<u8>,
    },
    /// No layer holds slots.
    NothingCached {
        /// Layers of the model.
        layers: usize,
    },
    /// Slots only stage prefill, which needs one pool of them.
    SeveralPoolsToStage {
        /// Pools that the scope and the layout keys make.
        pools: usize,
    },
    /// A profile that does not fit the model.
    Profile(ProfileError),
    /// Curves that do not fit the model.
    Curves(CurvesError),
}

impl From<ProfileError> for GeometryError {
    fn from(error: ProfileError) -> Self {
        Self::Profile(error)
    }
}

impl From<CurvesError> for GeometryError {
    fn from(error: CurvesError) -> Self {
        Self::Curves(error)
    }
}

impl fmt::Display for GeometryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLayers => write!(f, "the model has no mixture-of-experts layer"),
            Self::TopK { top_k, expert_count } => {
                write!(f, "top-{top_k} of {expert_count} experts: top_k must be from 1 to the expert count")
            }
            Self::TooManyExperts { layers, expert_count } => {
                write!(f, "{layers} layers of {expert_count} experts: flat expert ids end at {}", SlotId::LIMIT - 1)
            }
            Self::TooManyBytes { bytes, most } => {
                write!(f, "experts or slots of {bytes} bytes; at most {most} can be counted")
            }
            Self::TooManyBanks { banks, most } => write!(f, "{banks} banks; a model has at most {most}"),
            Self::EmptyLayer { layer } => write!(f, "layer {layer} has no bytes in any bank"),
            Self::UntaggedLayers { first, second, expert_bytes } => write!(
                f,
                "layers {first} and {second} both have {expert_bytes} bytes an expert and no quantisation tag; \
                 tag them, or declare one quantisation for all layers"
            ),
            Self::NoRequests => write!(f, "0 requests decoded at once; at least 1 is needed"),
            Self::Alignment { alignment } => write!(f, "an alignment of {alignment} bytes is not a power of two"),
            Self::SlotTooWide { layer, row_bytes, slot_pad_bytes, tail_pad_bytes, alignment } => write!(
                f,
                "layer {layer}: rows of {row_bytes} bytes, pads of {slot_pad_bytes} after a slot and {tail_pad_bytes} \
                 after a pool, aligned to {alignment}: each must stay below {} bytes",
                crate::geometry::MOST_STRIDE
            ),
            Self::SlotLimitBelowMinimum { pool, needed, limit } => {
                write!(f, "pool {pool} needs at least {needed} slots; at most {limit} are allowed")
            }
            Self::SlotsBelowMinimum { needed, given } => {
                write!(f, "the pools need at least {needed} slots; {given} are given")
            }
            Self::SlotsAboveMaximum { most, given } => {
                write!(f, "the pools can use {most} slots; {given} are given")
            }
            Self::BudgetBelowMinimum { needed, given } => {
                write!(f, "the pools need at least {needed} bytes; {given} are given")
            }
            Self::UnknownMemory { budget } => write!(f, "a budget of {budget}, where free memory is not known"),
            Self::UnknownLayer { layer, layer_count } => {
                write!(f, "no layer {layer}: the model has {layer_count} layers")
            }
            Self::UnknownTag { tag } => write!(f, "a slot limit for {}, which no layer has", tag.escape_ascii()),
            Self::NothingCached { layers } => {
                write!(f, "none of {layers} layers holds slots: there is nothing to cache")
            }
            Self::SeveralPoolsToStage { pools } => {
                write!(f, "slots that only stage prefill make 1 pool; scope and quantisations make {pools}")
            }
            Self::Profile(error) => error.fmt(f),
            Self::Curves(error) => error.fmt(f),
        }
    }
}

impl Error for GeometryError {}

/// A text that is not a byte count, a share or a budget.
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
    /// A part that is not a decimal number.
    NotShare {
        /// The whole text.
        text: String,
        /// The part.
        part: String,
    },
    /// A share over 1.
    OverWhole {
        /// The whole text.
        text: String,
    },
}

impl fmt::Display for BytesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotBytes { text, part } => {
                write_whole(f, text, part)?;
                write!(f, "{part:?} is not a byte count such as 12GiB, 12GB or 9059696640")
            }
            Self::TooLarge { text } => write!(f, "{text:?} is over {} bytes", u64::MAX),
            Self::NotShare { text, part } => {
                write_whole(f, text, part)?;
                write!(f, "{part:?} is not a share such as 0.9")
            }
            Self::OverWhole { text } => write!(f, "{text:?} is over the whole; a share is at most 1"),
        }
    }
}

/// The whole text, where only a part of it was not understood.
pub(crate) fn write_whole(f: &mut fmt::Formatter<'_>, text: &str, part: &str) -> fmt::Result {
    if text == part { Ok(()) } else { write!(f, "{text:?}: ") }
}

impl Error for BytesError {}

/// A profile that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProfileError {
    /// No layer, or no expert in the first.
    Empty,
    /// A layer with another number of experts than the first.
    RowLength {
        /// The layer.
        layer: LayerId,
        /// Its experts.
        experts: usize,
        /// Experts of the first layer.
        first_experts: usize,
    },
    /// A count that is negative or not a number.
    Count {
        /// The layer.
        layer: LayerId,
        /// The expert.
        expert: usize,
        /// The count, as it prints.
        count: String,
    },
    /// A layer of which no expert was used.
    Unused {
        /// The layer.
        layer: LayerId,
    },
    /// A layer of which a rank owns no expert that was used.
    NoneOwned {
        /// The layer, by the whole model's number.
        layer: LayerId,
        /// The experts that the rank owns.
        experts: Range<u32>,
    },
    /// A layer whose counts cannot be summed.
    TooLarge {
        /// The layer.
        layer: LayerId,
    },
    /// Another shape than the model's.
    Shape {
        /// Layers of the profile.
        layers: usize,
        /// Experts of its layers.
        experts: usize,
        /// Layers of the model.
        model_layers: usize,
        /// Experts of its layers.
        model_experts: u32,
    },
}

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "the profile counts no expert"),
            Self::RowLength { layer, experts, first_experts } => {
                write!(f, "the profile counts {experts} experts in layer {layer} and {first_experts} in layer 0")
            }
            Self::Count { layer, expert, count } => {
                write!(f, "the profile's layer {layer} expert {expert} has a count of {count}")
            }
            Self::Unused { layer } => write!(f, "the profile's layer {layer} was never used: all counts are 0"),
            Self::NoneOwned { layer, experts } => {
                write!(
                    f,
                    "the profile's layer {layer} never used this rank's experts {}..{}",
                    experts.start, experts.end
                )
            }
            Self::TooLarge { layer } => write!(f, "the profile's layer {layer} has counts too large to be summed"),
            Self::Shape { layers, experts, model_layers, model_experts } => write!(
                f,
                "the profile has {layers} layers of {experts} experts; the model has {model_layers} of {model_experts}"
            ),
        }
    }
}

impl Error for ProfileError {}

/// Miss curves that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum CurvesError {
    /// No layer.
    NoLayers,
    /// A layer whose curve has no number.
    Empty {
        /// The layer.
        layer: LayerId,
        /// Layers of the curves.
        layers: usize,
    },
    /// A layer that misses more with a slot more.
    Rises {
        /// The layer.
        layer: LayerId,
        /// Slots with which it misses more than with one fewer.
        slots: usize,
        /// Misses with one fewer.
        before: u64,
        /// Misses with these.
        misses: u64,
    },
    /// Misses that cannot be summed up to this layer.
    TooLarge {
        /// The layer.
        layer: LayerId,
    },
    /// Another number of layers than the model's.
    Layers {
        /// Layers of the curves.
        layers: usize,
        /// Layers of the model.
        model_layers: usize,
    },
    /// A curve that goes on beyond every expert.
    Slots {
        /// The layer.
        layer: LayerId,
        /// The most slots of its curve.
        slots: usize,
        /// Experts of a layer of the model.
        expert_count: u32,
    },
}

impl fmt::Display for CurvesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLayers => write!(f, "the curves have no layer"),
            Self::Empty { layer, layers } => {
                write!(f, "the curves of {layers} layers have 0 numbers for layer {layer}; at least 1 is needed")
            }
            Self::Rises { layer, slots, before, misses } => write!(
                f,
                "the curve of layer {layer} rises from {before} misses with {} slots to {misses} with {slots}",
                slots - 1
            ),
            Self::TooLarge { layer } => {
                write!(f, "the curves' misses without a slot are too many to be summed up to layer {layer}")
            }
            Self::Layers { layers, model_layers } => {
                write!(f, "the curves have {layers} layers; the model has {model_layers}")
            }
            Self::Slots { layer, slots, expert_count } => {
                write!(f, "the curve of layer {layer} goes on to {slots} slots; the model has {expert_count} experts")
            }
        }
    }
}

impl Error for CurvesError {}

/// Whole layers that the arenas cannot hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StagingError {
    /// The first bank that is too small.
    pub bank: BankId,
    /// Whole layers it was to hold.
    pub buffer_count: u32,
    /// Bytes they need, pads included.
    pub needed: u64,
    /// Bytes of the bank's arena.
    pub given: u64,
}

impl fmt::Display for StagingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bank, buffer_count, needed, given } = self;
        let layers = if *buffer_count == 1 { "one whole layer needs" } else { "two whole layers need" };
        write!(f, "{layers} {needed} bytes of bank {bank} to be staged; its arena has {given}")
    }
}

impl Error for StagingError {}

/// A rule for victims that cannot be had.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum EvictionError {
    /// No rule has this name.
    UnknownName {
        /// The name.
        name: String,
    },
    /// More experts a layer than the rule can tell apart.
    TooManyExperts {
        /// The rule.
        rule: Eviction,
        /// Experts of a layer.
        expert_count: u32,
        /// How many there may be.
        most: u32,
    },
}

impl fmt::Display for EvictionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownName { name } => {
                let names = Eviction::ALL.map(Eviction::name).join(", ");
                write!(f, "{name:?} is no rule for victims: there are {names}")
            }
            Self::TooManyExperts { rule, expert_count, most } => {
                write!(f, "layers of {expert_count} experts are too wide for eviction by {rule}: at most {most}")
            }
        }
    }
}

impl Error for EvictionError {}
