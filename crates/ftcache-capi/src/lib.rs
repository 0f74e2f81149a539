//! The C ABI: `libftcache.a`, `libftcache.so` and `include/ftcache.h`.
//!
//! This crate decides nothing. Each module is one C noun in the header's order; every function reads its arguments,
//! calls `ftcache` once inside [`boundary`]'s guard, and writes the answer. The header is generated from these files
//! by `cargo xtask header`, so their comments speak to readers of C.

#![allow(non_camel_case_types, reason = "the names are those of the C header")]

pub mod attach;
mod boundary;
pub mod cache;
pub mod chunk;
pub mod configuration;
mod failure;
pub mod files;
pub mod hint;
pub mod log;
pub mod miss_counts;
pub mod model;
pub mod on_device;
pub mod plan;
pub mod probe;
pub mod rebuild;
pub mod recorder;
pub mod report;
pub mod routes;
pub mod settings;
pub mod slots;
mod split;
pub mod stats;
pub mod status;
pub mod step;
