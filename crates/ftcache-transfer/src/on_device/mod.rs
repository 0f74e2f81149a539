//! Admission on the device: the residency in tables that kernels decide over (`kernels/`), as the host does to the bit.
//!
//! `abi.rs` is what crosses to kernels; `tables.rs` the residency there, and the launches over it alone, with
//! `block.rs` for its memory and `page.rs` for what comes back; `step.rs` what an engine says of a step whose routes
//! lie on the device; `launches.rs` a loader's rows and slots beside it, for gathers, and `staging.rs` its buffers. All
//! calls but entering and leaving only enqueue, and may be captured into a graph.

pub(crate) mod abi;
mod block;
mod error;
mod launches;
mod page;
mod staging;
mod step;
mod tables;

pub use abi::Kernel;
pub use error::{DeviceModeError, Fault, FaultReport};
pub(crate) use launches::DeviceMode;
pub use launches::{DeviceModeOptions, HostWord};
pub use page::DeviceReading;
pub use step::{DeviceAnswers, DeviceIds, DeviceRows, DeviceSplit, DeviceStep, DeviceWeights, IdWidth};
pub use tables::{DevicePlan, DeviceTables};
