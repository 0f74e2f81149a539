//! The geometry of mixture-of-experts layers, read from GGUF model files.
//!
//! Start at [`MoeModel::open`]: a path in; layers, banks and the place of every expert's row out.
//! [`MoeModel::geometry`] is the same as the [`Model`](ftcache_policy::Model) that the policy divides slots for. Only
//! headers are read: metadata and tensor infos, never a byte of tensor data, so a model of any size opens at once.
//!
//! - [`Gguf`] is the header of one file; [`open_shards`] opens all files of a split model, given any one of them;
//! - [`GgmlType`] is the table of block sizes;
//! - [`ModelError`] is everything a file can get wrong;
//! - [`measured`] reads what was measured beforehand: profiles of expert use, and a machine's rates.
//!
//! The reader is our own because a wrong row width here is a wrong copy later, and the crates that read GGUF do not
//! know the types of today: ggus 0.5.1 ends at type 33 (no TQ1_0, TQ2_0, MXFP4, NVFP4, Q1_0 or Q2_0), gguf 0.1.2 at 18
//! and with other meanings for 16 to 18, and gguf-rs 0.1.8 ends at 39, takes every type from 10 on for blocks of 256
//! elements (so a BF16 row comes out 256 times too short, and an MXFP4 block is 273 bytes of 256 elements, not 17 of
//! 32), and requires clap in a library.
//!
//! ```no_run
//! use ftcache_model::MoeModel;
//! use ftcache_policy::{Budget, Constraints, Geometry};
//!
//! let model = MoeModel::open("model-00001-of-00003.gguf".as_ref())?;
//! let geometry = Geometry::new(model.geometry()?, Constraints::new(Budget::Bytes(12 << 30)))?;
//! println!("{} slots for {} layers", geometry.slot_count(), model.layers.len());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod error;
mod ggml_type;
mod gguf;
pub mod measured;
mod moe;
mod shards;

pub use error::ModelError;
pub use ggml_type::{GgmlType, TypeIdError};
pub use gguf::{Gguf, TensorInfo, Value};
pub use moe::{ExpertTensor, MoeLayer, MoeModel, RowPlace, Rows};
pub use shards::open_shards;
