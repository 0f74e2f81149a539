//! What a call on the cache can refuse.

use ftcache_policy::{BankId, EvictionError, LayerId, PoolId, SlotId};
use ftcache_residency::{EnsureError, PinError, PoolsError, SnapshotError, StageError};
use ftcache_transfer::{
    ApplyError, AttachError, BankError, BringBackFailure, DeviceError, DeviceModeError, FaultReport, LoadArenaError,
    RebuildError, StageFailure,
};
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
    /// Layers that are too wide for a rule for victims.
    #[error(transparent)]
    Eviction(#[from] EvictionError),
    /// Rows on the host cannot serve a bank, or are not attached.
    #[error(transparent)]
    Bank(#[from] BankError),
    /// The device did not do what was asked.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The step's rows were not copied. The slots that the error names are free now; the step may be tried again.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// An arena that was not loaded, or not attached as a whole.
    #[error(transparent)]
    LoadArena(#[from] LoadArenaError),
    /// A call out of the order of a prefill chunk.
    #[error(transparent)]
    Chunk(#[from] StageError),
    /// A layer was not staged: its buffer is free, and it may be staged again.
    #[error(transparent)]
    Stage(#[from] StageFailure),
    /// The cache cannot have other pools.
    #[error(transparent)]
    Pools(#[from] PoolsError),
    /// The slots could not be rebuilt; what is left is in the error.
    #[error(transparent)]
    Rebuild(#[from] RebuildError),
    /// Residents cannot be brought back.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// Residents were not brought back: every slot is free.
    #[error(transparent)]
    BringBack(#[from] BringBackFailure),
    /// The residency is on the device, or is not, or cannot go there or come back.
    #[error(transparent)]
    DeviceMode(#[from] DeviceModeError),
    /// Launches on the device that were refused since the last look. The residency there is as they found it.
    #[error(transparent)]
    Fault(#[from] FaultReport),
    /// A rebuild for a model of other layouts.
    #[error("a rebuild is for the same model; this one has other layouts")]
    OtherLayouts,
    /// A rebuild left no slots. Another, of fewer bytes, may bring them back.
    #[error("the cache has no slots: {0}")]
    Unavailable(DeviceError),
    /// Rows that were to come behind an earlier step did not. That step is whole, and this call has changed nothing:
    /// it may be made again.
    #[error("behind an earlier step: {0}")]
    Later(ApplyError),
    /// A hint, and the cache was not set to take any.
    #[error("the cache takes no hints: no flights were set for them")]
    NoHints,
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
