//! Admission on the device, beside `ftcache-residency` on the host: the same slots, copies, statistics and state.

#![cfg(feature = "cuda")]

/// What crosses to kernels, for tests that launch them by themselves.
#[allow(unreachable_pub, reason = "it is not public here")]
#[path = "../../src/on_device/abi.rs"]
mod abi;
#[path = "../../../ftcache-testkit/cuda_world.rs"]
mod cuda_world;
#[allow(dead_code, reason = "these tests use a part of it")]
#[path = "../cuda/raw.rs"]
mod raw;
#[allow(dead_code, reason = "as above")]
#[path = "../cuda/support.rs"]
mod support;

mod awaits;
mod barriers;
mod differential;
mod edges;
mod faults;
mod golden;
mod graphs;
mod lists;
mod loaded;
mod loader;
mod mirror;
mod moves;
mod rig;
mod rows;
mod scored;
mod scored_runs;
mod staged;
mod states;
mod wide;
mod worked;
