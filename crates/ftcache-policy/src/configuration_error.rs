//! What the settings around a geometry can get wrong, and the sum of all that a configuration can.

use std::error::Error;
use std::fmt;

use crate::error::write_whole;
use crate::{
    BankId, Budget, EvictionError, ExpertId, GeometryError, LayerId, ProfileError, Reserve, StagingError, Strategy,
};

/// Layers that cannot be left to the CPU.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum CpuLayersError {
    /// A text that is no choice of layers.
    NotASpec {
        /// The whole text.
        text: String,
        /// The part that was not understood.
        part: String,
    },
    /// A layer that the model does not have.
    UnknownLayer {
        /// The layer.
        layer: LayerId,
        /// Layers of the model.
        layer_count: usize,
    },
    /// A layer that is listed twice.
    Twice {
        /// The layer.
        layer: LayerId,
    },
    /// A layer that holds no slots for another reason: it lies on the device as a whole, or is left out.
    Resident {
        /// The layer.
        layer: LayerId,
    },
    /// The CPU cannot compute the layer's quantisation.
    NoCpuCode {
        /// The layer.
        layer: LayerId,
        /// Its quantisation tag.
        tag: Vec<u8>,
    },
    /// More layers than the CPU could take.
    TooMany {
        /// Layers asked for.
        wanted: u64,
        /// Layers it could take.
        possible: usize,
    },
    /// Nothing but CPU layers would be left, as not even the smallest layer can be pinned.
    NothingPinned {
        /// Bytes of the smallest layer.
        least: u64,
        /// Bytes that may be pinned.
        pinnable: u64,
    },
    /// What can be pinned decides, and it is not known.
    PinnableUnknown,
    /// Rows that can neither be pinned nor be left to the CPU.
    Pinnable {
        /// Bytes of the layers that the CPU cannot take.
        needed: u64,
        /// Bytes that may be pinned.
        pinnable: u64,
    },
}

impl fmt::Display for CpuLayersError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotASpec { text, part } => {
                write_whole(f, text, part)?;
                write!(
                    f,
                    "{part:?} is not CPU layers such as 3,7,11 or 3, (these), 8 (so many), 0.5 (a share), auto or none"
                )
            }
            Self::UnknownLayer { layer, layer_count } => {
                write!(f, "no layer {layer} to leave to the CPU: the model has {layer_count} layers")
            }
            Self::Twice { layer } => write!(f, "layer {layer} is left to the CPU twice"),
            Self::Resident { layer } => {
                write!(f, "layer {layer} is left to the CPU, but holds no slots anyway")
            }
            Self::NoCpuCode { layer, tag } => {
                write!(f, "layer {layer} cannot be left to the CPU, which has no code for {}", tag_text(tag))
            }
            Self::TooMany { wanted, possible } => {
                write!(f, "{wanted} layers are to be left to the CPU; it can take {possible}")
            }
            Self::NothingPinned { least, pinnable } => {
                write!(
                    f,
                    "auto leaves every layer to the CPU: {pinnable} bytes can be pinned, the smallest layer has {least}"
                )
            }
            Self::PinnableUnknown => write!(f, "auto goes by what can be pinned, which is not known"),
            Self::Pinnable { needed, pinnable } => {
                write!(f, "layers that cannot be left to the CPU have {needed} bytes; {pinnable} can be pinned")
            }
        }
    }
}

impl Error for CpuLayersError {}

/// Measured rates that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RatesError {
    /// Nothing was measured.
    NoPoints,
    /// A point for experts without bytes.
    EmptyExpert {
        /// Index of the point.
        point: usize,
    },
    /// A second point of one quantisation and size.
    Twice {
        /// Index of the point.
        point: usize,
        /// Bytes of its experts.
        expert_bytes: u64,
    },
    /// A rate that is not a positive number.
    Rate {
        /// Index of the point.
        point: usize,
        /// Which rate.
        name: &'static str,
        /// The rate, as it prints.
        rate: String,
    },
    /// A time that a step takes besides its bytes that is negative or not a number.
    StepSeconds {
        /// Seconds, as they print.
        seconds: String,
    },
    /// A ratio that is negative or not a number.
    Ratio {
        /// The ratio, as it prints.
        ratio: String,
    },
    /// Another device's figures.
    OtherDevice {
        /// Where they were measured.
        measured: String,
        /// The device here.
        device: String,
    },
}

impl fmt::Display for RatesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPoints => write!(f, "the rates have no measured point"),
            Self::EmptyExpert { point } => write!(f, "the rates' point {point} is of experts of 0 bytes"),
            Self::Rate { point, name, rate } => {
                write!(f, "the rates' point {point} has a {name} rate of {rate} bytes a second")
            }
            Self::Twice { point, expert_bytes } => {
                write!(
                    f,
                    "the rates' point {point} is another of its quantisation with experts of {expert_bytes} bytes"
                )
            }
            Self::StepSeconds { seconds } => write!(f, "the rates have {seconds} seconds a step besides its bytes"),
            Self::Ratio { ratio } => write!(f, "a fraction of {ratio} of the misses; it is from 0 to 1"),
            Self::OtherDevice { measured, device } => {
                write!(f, "the rates were measured on {measured:?}; this device is {device:?}")
            }
        }
    }
}

impl Error for RatesError {}

/// A rank's view that cannot be had.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RankError {
    /// The rank runs no layer.
    NoLayers,
    /// A layer that the model does not have.
    UnknownLayer {
        /// The layer.
        layer: LayerId,
        /// Layers of the model.
        layer_count: usize,
    },
    /// Layers that do not ascend.
    Order {
        /// The one before.
        before: LayerId,
        /// The one after it.
        layer: LayerId,
    },
    /// A rank that does not exist.
    UnknownRank {
        /// The rank.
        rank: u32,
        /// Ranks there are.
        rank_count: u32,
    },
    /// Ranks that would own no expert.
    MoreRanksThanExperts {
        /// Ranks.
        rank_count: u32,
        /// Experts of a layer.
        expert_count: u32,
    },
    /// A bank that the model does not have.
    UnknownBank {
        /// The bank.
        bank: BankId,
        /// Banks of the model.
        bank_count: usize,
    },
    /// A row that cannot be cut into equal parts.
    Rows {
        /// The layer.
        layer: LayerId,
        /// The bank.
        bank: BankId,
        /// Bytes of the row.
        row_bytes: u64,
        /// Parts.
        rank_count: u32,
    },
    /// An expert that no rank has.
    UnknownExpert {
        /// The expert.
        expert: ExpertId,
        /// Experts of a layer.
        expert_count: u32,
    },
}

impl fmt::Display for RankError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLayers => write!(f, "the rank runs no layer"),
            Self::UnknownLayer { layer, layer_count } => {
                write!(f, "the rank runs layer {layer}: the model has {layer_count} layers")
            }
            Self::Order { before, layer } => write!(f, "the rank's layers do not ascend: {before} before {layer}"),
            Self::UnknownRank { rank, rank_count } => write!(f, "no rank {rank} of {rank_count}; they count from 0"),
            Self::MoreRanksThanExperts { rank_count, expert_count } => {
                write!(f, "{rank_count} ranks for {expert_count} experts: each must own one")
            }
            Self::UnknownBank { bank, bank_count } => write!(f, "no bank {bank}: the model has {bank_count} banks"),
            Self::Rows { layer, bank, row_bytes, rank_count } => {
                write!(f, "layer {layer} bank {bank}: rows of {row_bytes} bytes cannot be cut into {rank_count}")
            }
            Self::UnknownExpert { expert, expert_count } => {
                write!(f, "expert {expert} is no expert of 0..{expert_count}")
            }
        }
    }
}

impl Error for RankError {}

/// A budget with which everything else in the settings would be honoured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enough {
    /// Slots over all pools.
    Slots(u64),
    /// Bytes of the budget.
    Bytes(u64),
    /// Bytes of free memory.
    Free(u64),
}

impl fmt::Display for Enough {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slots(slots) => write!(f, "{slots} slots"),
            Self::Bytes(bytes) => write!(f, "{bytes} bytes"),
            Self::Free(bytes) => write!(f, "{bytes} bytes of free memory"),
        }
    }
}

/// Settings that cannot be honoured.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigurationError {
    /// The pools.
    Geometry(GeometryError),
    /// The profile.
    Profile(ProfileError),
    /// The layers left to the CPU.
    CpuLayers(CpuLayersError),
    /// The rates.
    Rates(RatesError),
    /// Not even one layer can be staged.
    Staging(StagingError),
    /// Too little was given, and how much would do.
    Short {
        /// What was refused.
        error: Box<ConfigurationError>,
        /// What would be accepted.
        enough: Enough,
    },
    /// The profile was counted on a model of another name.
    OtherModel {
        /// Where it was counted.
        profile: String,
        /// The model here.
        model: String,
    },
    /// The curves were counted on a model of another name.
    OtherCurves {
        /// Where they were counted.
        curves: String,
        /// The model here.
        model: String,
    },
    /// A share of free memory, and nothing says how much is free.
    FreeUnknown {
        /// The budget.
        budget: Budget,
    },
    /// The reserves alone are more than is free.
    Reserves {
        /// Each of them.
        reserves: Vec<Reserve>,
        /// Their sum.
        reserved: u64,
        /// Free bytes.
        free: u64,
    },
    /// Reserves, tables and dedicated staging leave nothing.
    NothingLeft {
        /// Their bytes.
        needed: u64,
        /// Free bytes.
        free: u64,
    },
    /// Layers on the device have more bytes than the budget.
    Resident {
        /// Their bytes.
        needed: u64,
        /// The budget.
        given: u64,
    },
    /// A layer that is listed twice among those on the device.
    ResidentTwice {
        /// The layer.
        layer: LayerId,
    },
    /// Everything to set aside is more than is free beside the reserves.
    PastFree {
        /// Bytes to set aside.
        needed: u64,
        /// Bytes reserved.
        reserved: u64,
        /// Free bytes.
        free: u64,
    },
    /// A rule for victims that the model is too wide for.
    Eviction(EvictionError),
    /// A setting that would have no effect.
    Ignored {
        /// The setting.
        setting: &'static str,
        /// Why.
        because: &'static str,
    },
    /// The CPU cannot compute a layer's quantisation.
    NoCpuCode {
        /// What was asked for.
        strategy: Strategy,
        /// The layer.
        layer: LayerId,
        /// Its quantisation tag.
        tag: Vec<u8>,
    },
    /// Rates, and nothing says on which device they are to be used.
    DeviceUnknown {
        /// Where they were measured.
        measured: String,
    },
    /// No rate was measured for a layer's kind, and none was given.
    NotMeasured {
        /// The layer.
        layer: LayerId,
    },
    /// A strategy that needs rates or a fetch rule, and has neither.
    NoRates,
    /// What the rates recommend cannot be had.
    Recommended {
        /// The strategy.
        strategy: Strategy,
        /// Why not.
        error: Box<ConfigurationError>,
    },
    /// Hybrid steps that never fetch a miss: no slot would ever be filled.
    NothingFetched,
    /// A quantisation that the CPU is said to compute and that no layer has.
    UnknownCpuTag {
        /// The tag.
        tag: Vec<u8>,
    },
    /// A batch of no request.
    EmptyBatch,
    /// Decode uses no slot, and prefill stages on none.
    CpuWithoutSlots,
}

impl From<GeometryError> for ConfigurationError {
    fn from(error: GeometryError) -> Self {
        Self::Geometry(error)
    }
}

impl From<ProfileError> for ConfigurationError {
    fn from(error: ProfileError) -> Self {
        Self::Profile(error)
    }
}

impl From<CpuLayersError> for ConfigurationError {
    fn from(error: CpuLayersError) -> Self {
        Self::CpuLayers(error)
    }
}

impl From<RatesError> for ConfigurationError {
    fn from(error: RatesError) -> Self {
        Self::Rates(error)
    }
}

impl From<StagingError> for ConfigurationError {
    fn from(error: StagingError) -> Self {
        Self::Staging(error)
    }
}

impl fmt::Display for ConfigurationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Geometry(error) => error.fmt(f),
            Self::Profile(error) => error.fmt(f),
            Self::CpuLayers(error) => error.fmt(f),
            Self::Rates(error) => error.fmt(f),
            Self::Staging(error) => error.fmt(f),
            Self::Short { error, enough } => {
                error.fmt(f)?;
                // The refusal may have said so already.
                let said = match (&**error, *enough) {
                    (Self::Geometry(GeometryError::SlotsBelowMinimum { needed, .. }), Enough::Slots(slots)) => {
                        *needed == slots
                    }
                    (Self::Geometry(GeometryError::BudgetBelowMinimum { needed, .. }), Enough::Bytes(bytes)) => {
                        *needed == u128::from(bytes)
                    }
                    _ => false,
                };
                if said { Ok(()) } else { write!(f, "; {enough} would do") }
            }
            Self::OtherModel { profile, model } => {
                write!(f, "the profile was counted on {profile:?}; this model is {model:?}")
            }
            Self::OtherCurves { curves, model } => {
                write!(f, "the curves were counted on {curves:?}; this model is {model:?}")
            }
            Self::FreeUnknown { budget } => write!(f, "a budget of {budget}: how much memory is free is not known"),
            Self::Reserves { reserves, reserved, free } => {
                let each = reserves.iter().map(|reserve| format!("{} {}", reserve.name, reserve.bytes));
                let each = each.collect::<Vec<_>>().join(", ");
                write!(f, "the reserves alone need {reserved} bytes ({each}); {free} are free")
            }
            Self::NothingLeft { needed, free } => {
                write!(f, "reserves, tables and staging need {needed} bytes; {free} are free")
            }
            Self::Resident { needed, given } => {
                write!(f, "the layers on the device need {needed} bytes; the budget is {given}")
            }
            Self::ResidentTwice { layer } => write!(f, "layer {layer} is to lie on the device twice"),
            Self::PastFree { needed, reserved, free } => {
                write!(f, "{needed} bytes are to be set aside beside reserves of {reserved}; {free} are free")
            }
            Self::Eviction(error) => error.fmt(f),
            Self::Ignored { setting, because } => write!(f, "{setting} would have no effect: {because}"),
            Self::NoCpuCode { strategy, layer, tag } => {
                write!(f, "strategy {strategy}: the CPU has no code for {} of layer {layer}", tag_text(tag))
            }
            Self::DeviceUnknown { measured } => {
                write!(f, "the rates were measured on {measured:?}, and the name of this device is not known")
            }
            Self::NotMeasured { layer } => {
                write!(f, "layer {layer}: no rate was measured for its quantisation and size")
            }
            Self::NoRates => {
                write!(f, "hybrid and measured strategies need rates, or hybrid a fraction or a cap of its own")
            }
            Self::Recommended { strategy, error } => write!(f, "the rates recommend {strategy}: {error}"),
            Self::NothingFetched => {
                write!(f, "hybrid steps that fetch no miss fill no slot: there is nothing to cache")
            }
            Self::UnknownCpuTag { tag } => write!(f, "CPU code for {}, which no layer has", tag_text(tag)),
            Self::EmptyBatch => write!(f, "a batch size of 0 requests; at least 1 is needed"),
            Self::CpuWithoutSlots => {
                write!(f, "strategy cpu uses slots only for borrowed staging, which is off: there is nothing to cache")
            }
        }
    }
}

impl Error for ConfigurationError {}

/// A quantisation tag as people read it.
fn tag_text(tag: &[u8]) -> String {
    if tag.is_empty() { "an empty tag".to_owned() } else { tag.escape_ascii().to_string() }
}
