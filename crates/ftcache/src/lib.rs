//! A GPU expert-slot cache for mixture-of-experts inference.
//!
//! A model's experts do not fit in GPU memory. Their rows lie in host memory; a bounded number of slots on the device
//! hold the experts that the router keeps asking for. Each step names the experts that one layer routed to;
//! [`Cache::load`] answers with a slot for each, having enqueued the copies of those that were missing.
//!
//! ```
//! use ftcache::{Budget, BankId, Cache, Constraints, ExpertId, Geometry, HostDevice, HostRows, LayerId, LayoutKey};
//! use ftcache::{Model, Quantisation};
//!
//! // Two layers of eight experts, top-2, with one bank of rows of 16 bytes; room for five experts.
//! let model = Model::new(8, 2, Quantisation::PerLayer, vec![LayoutKey::tagged("f32", [16]); 2])?;
//! let geometry = Geometry::new(model, Constraints::new(Budget::Slots(5)))?;
//! let mut cache = Cache::new(geometry, HostDevice::new())?;
//! for layer in [0, 1].map(LayerId::new) {
//!     let rows: Vec<u8> = (0..8 * 16).map(|byte| byte / 16 + 8 * layer.get() as u8).collect();
//!     cache.attach(layer, BankId::new(0), HostRows::owned(rows.into(), 0))?;
//! }
//!
//! let slots = cache.load(LayerId::new(1), &[6, 2, 6].map(ExpertId::new))?.to_vec();
//! assert_eq!(slots[0], slots[2]);
//! let mut row = [0; 16];
//! cache.read_row(LayerId::new(1), BankId::new(0), slots[0], &mut row)?;
//! assert_eq!(row, [6 + 8; 16]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The layers below can be used alone: `ftcache-policy` for the arithmetic, `ftcache-residency` for engines that copy
//! by themselves, `ftcache-transfer` for the copies.

#![forbid(unsafe_code)]

mod cache;
mod error;
mod hint;
mod later;
mod load;
mod on_device;
mod prefill;
mod rebuild;
mod report;
mod warm_start;

pub use cache::{Cache, SlotSpan, reserved_routes};
pub use error::Error;
pub use ftcache_policy as policy;
pub use ftcache_policy::{
    BankId, Budget, BytesError, Configuration, Constraints, Eviction, EvictionError, ExpertId, FlatExpertId, Geometry,
    GeometryError, LayerId, LayoutKey, Model, Pool, PoolBounds, PoolId, Quantisation, SMALL_ROW_BYTES, Scope, SlotId,
    SlotRange, Staging, TailPad, parse_bytes,
};
pub use ftcache_residency as residency;
pub use ftcache_residency::{
    Copy, EnsureError, FetchOrder, HintStats, Keep, Misses, Phase, PinError, Plan, Planner, PlannerError, PoolsError,
    Residents, Run, SnapshotError, StageError, Step, Victim,
};
pub use ftcache_transfer as transfer;
pub use ftcache_transfer::{
    AnyDevice, ApplyError, ArenaOptions, BankError, BankSource, BounceSize, ColdReason, Device, DeviceAnswers,
    DeviceError, DeviceIds, DeviceModeError, DeviceModeOptions, DevicePlan, DeviceReading, DeviceRows, DeviceSpan,
    DeviceSplit, DeviceStep, DeviceWeights, Event, Fault, FaultReport, HostAccess, HostArena, HostDevice, HostMemory,
    HostRows, HostSpan, HostWord, IdWidth, Loader, Memory, RebuildError, Rebuilt, RowCopy, Stream, Streams,
};
#[cfg(feature = "cuda")]
pub use ftcache_transfer::{BatchReport, CudaContext, CudaDevice, CudaDriver, CudaFacts, DriverError};
pub use hint::{HintReport, HintTotal, hinted_rows};
pub use later::{LaterLimits, LaterReport};
pub use prefill::{ChunkReport, StagedSpan};
pub use rebuild::{RebuildReport, StagingLost};
pub use report::Stats;
