//! What a device or a bank can refuse: the operation, the sizes and the reason.

use std::fmt;

use ftcache_policy::{BankId, LayerId, SlotId};
use thiserror::Error;

/// A device that did not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// Not enough memory.
    #[error("{wanted_bytes} bytes of device memory wanted; {free_bytes} are free")]
    OutOfMemory {
        /// Bytes asked for.
        wanted_bytes: u64,
        /// Bytes that are left.
        free_bytes: u64,
    },
    /// Bytes outside an allocation.
    #[error("{operation} of {bytes} bytes at {offset}; the memory has {memory_bytes} bytes")]
    OutOfBounds {
        /// What was asked for.
        operation: &'static str,
        /// Where it would begin.
        offset: u64,
        /// Bytes from the first to the last.
        bytes: u64,
        /// Bytes of the allocation.
        memory_bytes: u64,
    },
    /// A handle that the device has not given out, or has taken back.
    #[error("{what} {handle} is not of this device")]
    UnknownHandle {
        /// Memory, stream or event.
        what: &'static str,
        /// The handle.
        handle: u64,
    },
    /// Memory of the caller's that does not hold a bank's slots.
    #[error("bank {bank}: the slots take {needed} bytes; the memory for them has {given}")]
    Arena {
        /// The bank.
        bank: BankId,
        /// Bytes that the geometry says.
        needed: u64,
        /// Bytes there are.
        given: u64,
    },
    /// Memory of the caller's where slots would not lie as their strides say.
    #[error("bank {bank}: the memory for its slots begins at {address:#x}, which is no multiple of {alignment}")]
    ArenaAlignment {
        /// The bank.
        bank: BankId,
        /// Where it begins.
        address: u64,
        /// The geometry's alignment in bytes.
        alignment: u64,
    },
    /// What launches of device mode may read is not exchanged under them.
    #[error("{operation}: the residency is on the device: leave device mode first")]
    OnDevice {
        /// What was asked for.
        operation: &'static str,
    },
    /// A stream that a graph is being captured on: what is copied now would be copied again by every replay, whatever
    /// the routes are by then.
    #[error("stream {stream:#x} is being captured")]
    Capturing {
        /// The stream.
        stream: u64,
    },
    /// A device that runs no kernels, or not those there are.
    #[error("no kernels on {device}: {reason}")]
    NoKernels {
        /// What it calls itself.
        device: String,
        /// What it lacks.
        reason: String,
    },
    /// The driver refused an operation, or tells of one that failed before.
    #[error("{operation}{}: {reason}", OfBytes(*.bytes))]
    Driver {
        /// What was asked for.
        operation: &'static str,
        /// Bytes it would have moved or pinned.
        bytes: u64,
        /// The driver's code.
        code: i32,
        /// What the driver calls it.
        reason: String,
    },
    /// The device failed at an operation.
    #[error("{operation}{}: {reason}", OfBytes(*.bytes))]
    Failed {
        /// What was asked for.
        operation: &'static str,
        /// Bytes it would have moved.
        bytes: u64,
        /// The device's own word.
        reason: String,
    },
}

/// Rows on the host that cannot serve a bank.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BankError {
    /// The model has no such layer.
    #[error("no layer {layer}: the model has {layer_count} layers")]
    UnknownLayer {
        /// The layer.
        layer: LayerId,
        /// Layers of the model.
        layer_count: usize,
    },
    /// The model has no such bank.
    #[error("no bank {bank}: the model has {bank_count} banks")]
    UnknownBank {
        /// The bank.
        bank: BankId,
        /// Banks of the model.
        bank_count: usize,
    },
    /// The layer does not read this bank.
    #[error("layer {layer} bank {bank}: the layer does not read this bank")]
    Unread {
        /// The layer.
        layer: LayerId,
        /// The bank.
        bank: BankId,
    },
    /// Rows that would overlap.
    #[error("layer {layer} bank {bank}: a stride of {stride} bytes is less than the row's {row_bytes}")]
    Stride {
        /// The layer.
        layer: LayerId,
        /// The bank.
        bank: BankId,
        /// Bytes from row to row.
        stride: u64,
        /// Bytes of a row.
        row_bytes: u64,
    },
    /// Fewer bytes than the layer's experts have.
    #[error(
        "layer {layer} bank {bank}: {expert_count} rows of {row_bytes} bytes at a stride of {stride} need {needed} bytes; {given} are given"
    )]
    TooShort {
        /// The layer.
        layer: LayerId,
        /// The bank.
        bank: BankId,
        /// Experts of the layer.
        expert_count: u32,
        /// Bytes of a row.
        row_bytes: u64,
        /// Bytes from row to row.
        stride: u64,
        /// Bytes from the first row's start to the last row's end.
        needed: u128,
        /// Bytes there are.
        given: u64,
    },
    /// The device cannot read the rows where they lie, and there is no bounce buffer for them to go through.
    #[error("layer {layer} bank {bank}: the rows are not pinned, and there is no bounce buffer")]
    NotPinned {
        /// The layer.
        layer: LayerId,
        /// The bank.
        bank: BankId,
    },
    /// The layer has rows in this bank, and none were attached.
    #[error("layer {layer} bank {bank} is not attached")]
    NotAttached {
        /// The layer.
        layer: LayerId,
        /// The bank.
        bank: BankId,
    },
}

/// Rows that were not attached.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AttachError {
    /// They cannot serve the bank.
    #[error(transparent)]
    Bank(#[from] BankError),
    /// The device failed while those before them were still read.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// A plan that was not carried out: the slots it names hold nothing that may be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("layer {layer}{}: {source}; {} forgotten", InBank(.bank), SlotList(.slots))]
pub struct ApplyError {
    /// The layer.
    pub layer: LayerId,
    /// The bank whose copy failed, if it was a copy.
    pub bank: Option<BankId>,
    /// Every slot that the plan would have filled.
    pub slots: Vec<SlotId>,
    /// What the device said.
    pub source: DeviceError,
}

/// A layer that was not staged: its buffer holds nothing that may be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("staging layer {layer}{} in buffer {buffer}: {source}", InBank(.bank))]
pub struct StageFailure {
    /// The layer.
    pub layer: LayerId,
    /// The bank whose copy failed, if it was a copy.
    pub bank: Option<BankId>,
    /// The buffer.
    pub buffer: usize,
    /// What the device said.
    pub source: DeviceError,
}

/// Residents that were not brought back: none of their slots may be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("bringing layer {layer}{} back: {source}", InBank(.bank))]
pub struct BringBackFailure {
    /// The layer whose copies failed.
    pub layer: LayerId,
    /// The bank whose copy failed, if it was a copy.
    pub bank: Option<BankId>,
    /// What the device said.
    pub source: DeviceError,
}

/// A rebuild that did not come to the new geometry.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RebuildError {
    /// Nothing was touched: residents are where they were.
    #[error(transparent)]
    Refused(DeviceError),
    /// The device had not the memory. The old slots are there again, and hold nothing.
    #[error("{0}; the old slots are back, and empty")]
    Restored(DeviceError),
    /// The device had the memory neither for the new slots nor for the old ones: there are none.
    #[error("{0}; the old slots could not be had again: there are none")]
    Emptied(DeviceError),
}

/// How much an operation was to move; nothing where it moves none.
struct OfBytes(u64);

impl fmt::Display for OfBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            bytes => write!(f, " of {bytes} bytes"),
        }
    }
}

struct InBank<'a>(&'a Option<BankId>);

impl fmt::Display for InBank<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |bank| write!(f, " bank {bank}"))
    }
}

struct SlotList<'a>(&'a [SlotId]);

impl fmt::Display for SlotList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (noun, verb) = if self.0.len() == 1 { ("slot", "is") } else { ("slots", "are") };
        write!(f, "{noun} ")?;
        for (index, slot) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{slot}")?;
        }
        write!(f, " {verb}")
    }
}
