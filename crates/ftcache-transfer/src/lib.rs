//! How a plan becomes copies.
//!
//! A [`Device`] is memory, streams and events. A [`Loader`] owns one, with the slots on it and the rows on the host
//! that they are filled from, so that rows outlive the copies that read them. [`Loader::apply`] carries a plan out:
//! neighbouring rows go as one run, and every bank gets its row before the plan counts as done. Whoever calls it
//! commits the plan's ticket on success and aborts it on an error, so a slot is complete or free.
//!
//! Everything is ordered by streams. With one stream, what the engine enqueued before has read the old rows before
//! they are overwritten, and what it enqueues afterwards sees the new ones. With a stream of its own for copies:
//!
//! ```text
//! compute   ... kernels that read the victims | record release |            | wait ready | kernels that read the rows
//! copy                                          wait release | rows | record ready
//! ```
//!
//! Another compute stream than that of the call before is ordered behind it. [`Loader::stage`] fills staging buffers
//! while others are in use, [`Loader::copy_late`] copies behind a step without anybody waiting,
//! [`Loader::copy_hinted`] ahead of one that may, [`Loader::rebuild`] exchanges the slots.
//!
//! Rows may lie in a [`HostArena`], which reads them from files and pins them, or in memory of the engine's own, which
//! [`Loader::register`] pins where it lies. What the device cannot read goes through a bounce buffer
//! ([`Loader::set_bounce`]).
//!
//! The [`HostDevice`] keeps slots in ordinary memory and is the default where there is no GPU.

mod any_device;
mod apply;
mod arena;
mod attach;
mod bank;
mod bounce;
#[cfg(feature = "cuda")]
mod cuda;
mod device;
mod error;
mod host;
mod host_arena;
mod late;
mod link;
mod loader;
mod on_device;
mod pages;
mod rebuild;
mod row_copy;
mod stage;

pub use any_device::AnyDevice;
pub use apply::Streams;
pub use attach::LoadArenaError;
pub use bank::{HostMemory, HostRows};
pub use bounce::BounceSize;
#[cfg(feature = "cuda")]
pub use cuda::{
    BatchRefusal, BatchReport, BatchSignature, CudaContext, CudaDevice, CudaDriver, CudaFacts, DriverError, KernelImage,
};
pub use device::{CopyError, Device, DeviceSpan, Event, HostAccess, HostSpan, Launch, Memory, RowCopy, Source, Stream};
pub use error::{ApplyError, AttachError, BankError, BringBackFailure, DeviceError, RebuildError, StageFailure};
pub use host::{HostDevice, LiveObjects};
pub use host_arena::{
    ArenaError, ArenaOptions, BankSource, Direct, FilePiece, FileReport, HostArena, HugePages, LayerReport, LoadReport,
    LockRefusal, PinRefusal, Pinning, Progress, Refusal, RegisterError, Registrations, Reservation, Residence,
    Unpinned,
};
pub use late::LateFailure;
pub use link::{
    ArenaRate, ArenaReport, ContendedPoint, CopyPoint, Link, LinkError, Reads, SPILL_RATIO, measure_batches,
    measure_contended, measure_copies, measure_gathers, measure_reads, measure_step,
};
pub use loader::Loader;
pub use on_device::{
    DeviceAnswers, DeviceIds, DeviceModeError, DeviceModeOptions, DevicePlan, DeviceReading, DeviceRows, DeviceSplit,
    DeviceStep, DeviceTables, DeviceWeights, Fault, FaultReport, HostWord, IdWidth, Kernel,
};
pub use rebuild::{ColdReason, Rebuilt};
