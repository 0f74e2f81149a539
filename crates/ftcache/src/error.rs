//! What a call on the cache can refuse.

use ftcache_policy::{BankId, LayerId, PoolId, SlotId};
use ftcache_residency::{EnsureError, PinError};
use ftcache_transfer::{ApplyError, AttachError, BankError, DeviceError};
use thiserror::Error;

/// A call that was refused. Unless it says otherwise, the cache is as it was before.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// The step cannot be admitted.
    #[error(transparent)]
    Ensure(#[from] EnsureError),
    /// Experts cannot be pinned.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// Rows on the host cannot serve a bank, or are not attached.
    #[error(transparent)]
    Bank(#[from] BankError),
    /// The device did not do what was asked.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The step's rows were not copied. The slots that the error names are free now; the step may be tried again.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// No such pool.
    #[error("no pool {pool}: the cache has {pool_count} pools")]
    UnknownPool {
        /// The pool.
        pool: PoolId,
        /// Pools of the cache.
        pool_count: usize,
    },
    /// No such slot.
    #[error("no slot {slot}: pool {pool} has {slot_count} slots")]
    UnknownSlot {
        /// The pool.
        pool: PoolId,
        /// The slot.
        slot: SlotId,
        /// Slots of the pool.
        slot_count: u32,
    },
    /// A row that has not as many bytes as the place it is to be read to.
    #[error("layer {layer} bank {bank}: a row has {row_bytes} bytes; {given} are to be read")]
    RowBytes {
        /// The layer.
        layer: LayerId,
        /// The bank.
        bank: BankId,
        /// Bytes of a row.
        row_bytes: u64,
        /// Bytes given.
        given: u64,
    },
}

impl From<AttachError> for Error {
    fn from(error: AttachError) -> Self {
        match error {
            AttachError::Bank(error) => error.into(),
            AttachError::Device(error) => error.into(),
        }
    }
}
