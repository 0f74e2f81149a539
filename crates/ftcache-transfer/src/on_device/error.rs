//! What device mode can refuse: on the host before anything is enqueued, and what a launch told of later.

use std::fmt;

use ftcache_policy::{BankId, LayerId};
use ftcache_residency::{EnsureError, StateError};
use thiserror::Error;

use crate::{BankError, DeviceError};

/// A call on a residency that is on the device, or is to go there, that was refused. Nothing has changed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DeviceModeError {
    /// The device did not do what was asked.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The residency cannot leave the host, or what came back from the device is none.
    #[error(transparent)]
    State(#[from] StateError),
    /// A layer, or a value that stands for an absent route.
    #[error(transparent)]
    Step(#[from] EnsureError),
    /// A layer's rows are not attached.
    #[error(transparent)]
    Bank(#[from] BankError),
    /// Rows that kernels cannot read where they lie.
    #[error("layer {layer} bank {bank}: kernels read pinned rows alone, and these go through the bounce buffer")]
    NotDirect {
        /// The layer.
        layer: LayerId,
        /// The bank.
        bank: BankId,
    },
    /// A residency other than the one that is on the device.
    #[error("another residency is on the device")]
    OtherResidency,
    /// Two answers that would be written to the same place.
    #[error("{one} and {other} lie in the same place")]
    SamePlace {
        /// One answer.
        one: &'static str,
        /// The other.
        other: &'static str,
    },
    /// The residency is on the device already.
    #[error("the residency is on the device: leave device mode first")]
    OnDevice,
    /// The residency is with the host.
    #[error("the residency is with the host: enter device mode first")]
    OnHost,
    /// A prefill chunk on the device has not ended.
    #[error("a prefill chunk is open on the device")]
    ChunkOpen,
    /// There are no staging buffers, or they are others since the residency came to the device.
    #[error("there are no staging buffers on the device")]
    NoStaging,
    /// No such buffer.
    #[error("no staging buffer {buffer}: there are {buffer_count}")]
    UnknownBuffer {
        /// The buffer.
        buffer: u32,
        /// How many there are.
        buffer_count: u32,
    },
    /// A number of threads that no block has.
    #[error("{given} threads a block; a multiple of 32 up to 1024 is needed")]
    Threads {
        /// The number.
        given: u32,
    },
    /// A number of blocks that no launch has.
    #[error("a gather of {given} blocks; a launch has 1 to {most}")]
    Blocks {
        /// The number.
        given: u32,
        /// The most there can be.
        most: u32,
    },
    /// A step that kernels do not know.
    #[error("layer {layer}: {what} is for the host alone")]
    Unsupported {
        /// The layer.
        layer: LayerId,
        /// What was asked for.
        what: &'static str,
    },
    /// More routes than a launch can count.
    #[error("{given} routes in one launch; {most} is the most")]
    TooManyRoutes {
        /// Their number.
        given: u64,
        /// What can be counted.
        most: u64,
    },
    /// An address that numbers of this width cannot have.
    #[error("{what}: {address:#x} is no multiple of {width} bytes")]
    Misaligned {
        /// What lies there.
        what: &'static str,
        /// The address.
        address: u64,
        /// Bytes of a number.
        width: u32,
    },
    /// A stride that numbers of this width cannot have.
    #[error("{what}: a stride of {stride} bytes is no multiple of {width}")]
    OddStride {
        /// What lies there.
        what: &'static str,
        /// Bytes from row to row.
        stride: u64,
        /// Bytes of a number.
        width: u32,
    },
    /// No address where one is needed.
    #[error("{what}: no address")]
    NoAddress {
        /// What should lie there.
        what: &'static str,
    },
    /// Rows that overlap.
    #[error("{what}: a stride of {stride} bytes is less than the row's {row_bytes}")]
    Stride {
        /// What lies there.
        what: &'static str,
        /// Bytes from row to row.
        stride: u64,
        /// Bytes of a row.
        row_bytes: u64,
    },
    /// A value that stands for no slot and is one.
    #[error("{what}: {value} is one of the pool's {slot_count} slots")]
    ValueIsSlot {
        /// What it stands for.
        what: &'static str,
        /// The value.
        value: i64,
        /// Slots of the pool.
        slot_count: u32,
    },
    /// A value that stands for no expert and is one.
    #[error("{what}: {value} is one of the layer's {expert_count} experts")]
    ValueIsExpert {
        /// What it stands for.
        what: &'static str,
        /// The value.
        value: i64,
        /// Experts of a layer.
        expert_count: u32,
    },
    /// A value that ids of this width do not hold.
    #[error("{what}: {value} does not fit into {width} bytes")]
    ValueTooWide {
        /// What it stands for.
        what: &'static str,
        /// The value.
        value: i64,
        /// Bytes of an id.
        width: u32,
    },
    /// Weights of a width that is not known.
    #[error("weights of {given} bytes; 2 and 4 are known")]
    WeightBytes {
        /// Bytes of a weight.
        given: u32,
    },
}

/// What was wrong with a launch that had been enqueued. An admission has answered -1 for every route then; nothing was
/// copied, and the residency is as it was but for [`WordTimeout`](Self::WordTimeout).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// A route is neither an expert nor absent.
    UnknownExpert {
        /// The layer.
        layer: LayerId,
        /// Index of the route, the first of such.
        route: u64,
        /// What it is.
        id: i64,
        /// Experts of the layer.
        expert_count: u64,
    },
    /// The step routes to more distinct experts than there are slots for it.
    StepTooWide {
        /// The layer.
        layer: LayerId,
        /// Distinct experts.
        needed: u64,
        /// Slots that the step may have.
        given: u64,
    },
    /// The launch was captured before a rebuild, or before there were other staging buffers.
    StaleGeneration {
        /// The layer.
        layer: LayerId,
        /// The generation that it was captured in.
        captured: u64,
        /// The cache's.
        current: u64,
    },
    /// The launch ran while the residency was with the host.
    WithHost {
        /// The layer.
        layer: LayerId,
    },
    /// The last step has been counted.
    LastStep {
        /// The layer.
        layer: LayerId,
    },
    /// The host did not raise the word that was waited for before rows were gathered. The slots that the step was given
    /// for them are free, and nothing was copied.
    WordTimeout {
        /// The layer.
        layer: LayerId,
        /// The value waited for.
        wanted: u64,
        /// The value there was.
        found: u64,
    },
    /// A layer was to be staged on slots, and no chunk is open, or not that of these buffers.
    NoChunk {
        /// The layer.
        layer: LayerId,
        /// Slots that a chunk withholds.
        needed: u64,
        /// Slots that are withheld.
        given: u64,
    },
    /// One that came while an earlier one was being told; no more is known of it.
    Untold,
    /// A code that is not known here.
    Unknown {
        /// The code.
        code: u32,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownExpert { layer, route, id, expert_count } => {
                write!(f, "layer {layer}, route {route}: {id} is none of its {expert_count} experts")
            }
            Self::StepTooWide { layer, needed, given } => {
                write!(f, "layer {layer}: a step of {needed} distinct experts; {given} slots are there for it")
            }
            Self::StaleGeneration { layer, captured, current } => {
                write!(f, "layer {layer}: captured in generation {captured}; the slots are of generation {current}")
            }
            Self::WithHost { layer } => write!(f, "layer {layer}: the residency is with the host"),
            Self::LastStep { layer } => write!(f, "layer {layer}: the last step has been counted"),
            Self::WordTimeout { layer, wanted, found } => {
                write!(f, "layer {layer}: waited for the host's word to be {wanted}; it is {found}")
            }
            Self::NoChunk { layer, needed, given } => {
                write!(
                    f,
                    "layer {layer}: staged without a chunk; {needed} slots lie under buffers, {given} are withheld"
                )
            }
            Self::Untold => write!(f, "a launch that came while another was being told"),
            Self::Unknown { code } => write!(f, "fault {code}"),
        }
    }
}

/// Launches that were refused since the last look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("after step {step}: {first}{}", others(*.count))]
pub struct FaultReport {
    /// What was wrong with the first.
    pub first: Fault,
    /// The last step that had been admitted by then.
    pub step: u64,
    /// How many there were.
    pub count: u64,
}

fn others(count: u64) -> String {
    match count {
        0 | 1 => String::new(),
        2 => "; 1 more launch was refused".to_owned(),
        _ => format!("; {} more launches were refused", count - 1),
    }
}
