//! The driver calls that are exported, by what they are about.
//!
//! Every call takes plain integers where the header has enumerations: a caller may pass what no enumeration has.

#![allow(non_snake_case, reason = "the names are the driver's")]

mod batch;
mod context;
mod copy;
mod device;
mod event;
mod graph;
mod host;
mod memory;
mod module;
mod stream;
mod value;
