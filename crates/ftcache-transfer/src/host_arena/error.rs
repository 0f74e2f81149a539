//! What an arena can refuse or fail at: the layer and bank, or the file and place, and every size.

use std::path::PathBuf;

use ftcache_policy::{BankId, LayerId};
use thiserror::Error;

use crate::DeviceError;

/// An arena that was not made. Nothing of it is left then: no registration, no memory, no thread; but for
/// [`Leaked`](Self::Leaked), which says what is.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ArenaError {
    /// Nothing to hold.
    #[error("an arena needs at least one bank")]
    NoBanks,
    /// The same bank of the same layer twice.
    #[error("layer {layer} bank {bank} is given twice")]
    DuplicateBank {
        /// The layer.
        layer: LayerId,
        /// The bank.
        bank: BankId,
    },
    /// A bank without bytes.
    #[error("layer {layer} bank {bank}: {row_count} rows of {row_bytes} bytes are no bytes")]
    EmptyBank {
        /// The layer.
        layer: LayerId,
        /// The bank.
        bank: BankId,
        /// Bytes of a row.
        row_bytes: u64,
        /// Number of rows.
        row_count: u32,
    },
    /// Banks beyond what an address can say.
    #[error("layer {layer} bank {bank}: {row_count} rows of {row_bytes} bytes end beyond the address space")]
    TooLarge {
        /// The first layer that does not fit.
        layer: LayerId,
        /// Its bank.
        bank: BankId,
        /// Bytes of a row.
        row_bytes: u64,
        /// Number of rows.
        row_count: u32,
    },
    /// A piece of a file that is not in the list.
    #[error("layer {layer} bank {bank}: a piece is of file {file}; {file_count} files are given")]
    UnknownFile {
        /// The layer.
        layer: LayerId,
        /// The bank.
        bank: BankId,
        /// Index of the file.
        file: usize,
        /// Number of files.
        file_count: usize,
    },
    /// A piece without bytes.
    #[error("layer {layer} bank {bank}: the piece for byte {target} has no bytes")]
    EmptyPiece {
        /// The layer.
        layer: LayerId,
        /// The bank.
        bank: BankId,
        /// Where in the bank it would go.
        target: u64,
    },
    /// Bytes of a bank that no piece fills.
    #[error("layer {layer} bank {bank}: no piece fills bytes {begin} to {end} of {bank_bytes}")]
    Gap {
        /// The layer.
        layer: LayerId,
        /// The bank.
        bank: BankId,
        /// The first byte without a piece.
        begin: u64,
        /// The byte after the last one.
        end: u64,
        /// Bytes of the bank.
        bank_bytes: u64,
    },
    /// Bytes of a bank that two pieces fill.
    #[error("layer {layer} bank {bank}: two pieces fill bytes {begin} to {end} of {bank_bytes}")]
    Overlap {
        /// The layer.
        layer: LayerId,
        /// The bank.
        bank: BankId,
        /// The first byte with two pieces.
        begin: u64,
        /// The byte after the last one.
        end: u64,
        /// Bytes of the bank.
        bank_bytes: u64,
    },
    /// A piece past the end of its bank.
    #[error("layer {layer} bank {bank}: {bytes} bytes at {target} go past the bank's {bank_bytes}")]
    Outside {
        /// The layer.
        layer: LayerId,
        /// The bank.
        bank: BankId,
        /// Where in the bank the piece goes.
        target: u64,
        /// Bytes of the piece.
        bytes: u64,
        /// Bytes of the bank.
        bank_bytes: u64,
    },
    /// A file that ends before a piece does.
    #[error("layer {layer} bank {bank}: {bytes} bytes at {offset} of {}, which has {file_bytes}", path.display())]
    ShortFile {
        /// The layer.
        layer: LayerId,
        /// The bank.
        bank: BankId,
        /// The file.
        path: PathBuf,
        /// Where in the file the piece begins.
        offset: u64,
        /// Bytes of the piece.
        bytes: u64,
        /// Bytes of the file.
        file_bytes: u64,
    },
    /// A file that cannot be opened.
    #[error("opening {}: {reason}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The system's own word.
        reason: String,
    },
    /// Direct reads are required, and a file does not have them.
    #[error("{}: direct reads are required: {reason}", path.display())]
    NotDirect {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// An option that cannot be followed.
    #[error("{name} is {given}; the least is {least}")]
    Option {
        /// Its name.
        name: &'static str,
        /// Its value.
        given: u64,
        /// The least value that it may have.
        least: u64,
    },
    /// An alignment that is no power of two, or more than a page.
    #[error("an alignment of {alignment} bytes is no power of two up to a page of {page_bytes}")]
    Alignment {
        /// The alignment.
        alignment: u64,
        /// Bytes of a page.
        page_bytes: u64,
    },
    /// A layer for the CPU of which no bank is given.
    #[error("layer {layer} is for the CPU and has no bank")]
    UnknownCpuLayer {
        /// The layer.
        layer: LayerId,
    },
    /// The system has no room for the arena.
    #[error("reserving {bytes} bytes of host memory: {reason}")]
    Reserve {
        /// Bytes asked for.
        bytes: u64,
        /// The system's own word.
        reason: String,
    },
    /// A reader that the system does not start.
    #[error("starting a reader: {reason}")]
    Thread {
        /// The system's own word.
        reason: String,
    },
    /// A read that failed.
    #[error("reading {bytes} bytes at {offset} of {}: {reason}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Where in the file.
        offset: u64,
        /// Bytes asked for.
        bytes: u64,
        /// The system's own word.
        reason: String,
    },
    /// A file that has become shorter.
    #[error("reading {bytes} bytes at {offset} of {}: it ends at {end}", path.display())]
    Ended {
        /// The file.
        path: PathBuf,
        /// Where in the file.
        offset: u64,
        /// Bytes asked for.
        bytes: u64,
        /// Where the file ends.
        end: u64,
    },
    /// A registration that the device refused, where that is not to be lived with.
    #[error(transparent)]
    Pin(#[from] PinRefusal),
    /// Work that the device was given before has failed. Nothing was pinned after it.
    #[error(transparent)]
    Device(DeviceError),
    /// Something else went wrong, and then the device did not end a registration. The memory stays mapped for good, as
    /// the device may still read there.
    #[error("{source}; {bytes} bytes of host memory stay mapped, as a registration was not ended: {reason}")]
    Leaked {
        /// Bytes of the arena.
        bytes: u64,
        /// What the device said.
        reason: DeviceError,
        /// What went wrong first.
        source: Box<ArenaError>,
    },
    /// The caller has stopped it.
    #[error("stopped after {read_bytes} of {total_bytes} bytes")]
    Cancelled {
        /// Bytes read by then.
        read_bytes: u64,
        /// Bytes there were to read.
        total_bytes: u64,
    },
}

/// A registration that a device refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "pinning {wanted_bytes} bytes of layer {layer} bank {bank}, with {pinned_bytes} bytes pinned{}: {source}",
    budget_bytes.map_or(String::new(), |bytes| format!(" of a budget of {bytes}"))
)]
pub struct PinRefusal {
    /// The layer.
    pub layer: LayerId,
    /// The bank.
    pub bank: BankId,
    /// Bytes asked for.
    pub wanted_bytes: u64,
    /// Bytes pinned by then, of this arena.
    pub pinned_bytes: u64,
    /// The caller's budget, if there is one.
    pub budget_bytes: Option<u64>,
    /// What the device said.
    pub source: DeviceError,
}

/// A lock that the system refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "locking {wanted_bytes} bytes of layer {layer} bank {bank}, with {locked_bytes} bytes locked{}: {reason}",
    limit_bytes.map_or(String::new(), |bytes| format!(" of a limit of {bytes}"))
)]
pub struct LockRefusal {
    /// The layer.
    pub layer: LayerId,
    /// The bank.
    pub bank: BankId,
    /// Bytes asked for.
    pub wanted_bytes: u64,
    /// Bytes locked by then, of this arena.
    pub locked_bytes: u64,
    /// What the process may lock (`RLIMIT_MEMLOCK`), where there is a limit.
    pub limit_bytes: Option<u64>,
    /// The system's own word.
    pub reason: String,
}

/// Memory that was not registered, or not unregistered.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// Bytes that are registered already.
    #[error("{bytes} bytes at {base:#x} share bytes with {other_bytes} at {other_base:#x}, which are registered")]
    Overlap {
        /// Address of what was to be registered.
        base: usize,
        /// Its bytes.
        bytes: u64,
        /// Address of what is registered.
        other_base: usize,
        /// Its bytes.
        other_bytes: u64,
    },
    /// A range past the end of the address space.
    #[error("{bytes} bytes at {base:#x} end beyond the address space")]
    TooLarge {
        /// Its address.
        base: usize,
        /// Its bytes.
        bytes: u64,
    },
    /// Nothing is registered there.
    #[error("no registration begins at {base:#x}")]
    Unknown {
        /// The address.
        base: usize,
    },
    /// The device refused a part. Nothing of the range stays registered.
    #[error("registering {wanted_bytes} bytes, with {registered_bytes} bytes registered: {source}")]
    Refused {
        /// Bytes asked for.
        wanted_bytes: u64,
        /// Bytes registered by then, of every range.
        registered_bytes: u64,
        /// What the device said.
        source: DeviceError,
    },
    /// The device failed at the end of a registration, which may still stand: the memory must stay mapped.
    #[error(transparent)]
    Device(#[from] DeviceError),
}
