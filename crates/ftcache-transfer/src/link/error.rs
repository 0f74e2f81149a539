//! What cannot be measured, or fitted to what was.

use ftcache_policy::{BankId, LayerId};
use thiserror::Error;

use crate::DeviceError;

/// A measurement that was not made, or points that no link fits.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The device's own.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A size that moves nothing.
    #[error("copies of 0 bytes; {total_bytes} are to be moved")]
    NoBytes {
        /// Bytes of each measurement.
        total_bytes: u64,
    },
    /// One copy alone is more than is to be moved.
    #[error("copies of {bytes} bytes; {total_bytes} are to be moved")]
    TooWide {
        /// Bytes of the copy.
        bytes: u64,
        /// Bytes of each measurement.
        total_bytes: u64,
    },
    /// Threads with nothing to read, or none.
    #[error("reads of {bytes} bytes by {threads} threads; each needs {needed_bytes}")]
    TooFewBytes {
        /// Bytes to read.
        bytes: u64,
        /// Threads.
        threads: usize,
        /// The least that a thread reads.
        needed_bytes: u64,
    },
    /// The system had not the host memory.
    #[error("{bytes} bytes of host memory cannot be had")]
    HostMemory {
        /// Bytes wanted.
        bytes: u64,
    },
    /// The system had not the threads.
    #[error("{threads} threads cannot be had: {reason}")]
    Threads {
        /// Threads wanted.
        threads: usize,
        /// What the system said.
        reason: String,
    },
    /// Arenas that may hold rows.
    #[error("layer {layer} bank {bank} has rows; arenas are measured while they hold nothing")]
    Attached {
        /// The layer.
        layer: LayerId,
        /// The bank.
        bank: BankId,
    },
    /// Too little to tell the cost of a copy from that of its bytes.
    #[error("a link is fitted to copies of {needed} sizes or more; {given} given")]
    TooFewSizes {
        /// Sizes that it takes.
        needed: usize,
        /// Sizes there are.
        given: usize,
    },
    /// A point that is none.
    #[error("point {point} is of {count} copies in {seconds} seconds")]
    Unmeasured {
        /// Which one.
        point: usize,
        /// Its copies.
        count: u64,
        /// Their time.
        seconds: f64,
    },
    /// Time that does not grow with bytes.
    #[error("copies of {largest} bytes take no longer than copies of {smallest}")]
    NoBandwidth {
        /// The smallest copies.
        smallest: u64,
        /// The largest.
        largest: u64,
    },
}
