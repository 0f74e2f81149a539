//! What a call on the cache can refuse.

use ftcache_policy::{BankId, LayerId, PoolId, SlotId};
use ftcache_residency::EnsureError;
use ftcache_transfer::{ApplyError, AttachError, BankError, DeviceError};
use thiserror::Error;

/// A call that was refused. Unless it says otherwise, the cache is as it was before.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// The step cannot be admitted.
    #[error(transparent)]
    Ensure(#[from] EnsureError),
    /// A route is neither an expert nor the value that stands for an absent one.
    #[error("layer {layer}: route {route} is {id}, which is no expert of 0..{expert_count}")]
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
    #[error("the id of an absent route is {id}, an expert of 0..{expert_count}")]
    AbsentId {
        /// The value.
        id: i64,
        /// Experts of a layer.
        expert_count: u32,
    },
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
