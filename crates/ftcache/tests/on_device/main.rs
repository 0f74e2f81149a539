//! Device mode on the emulated driver: a cache whose steps are admitted by kernels, beside a twin that decides on the
//! host. Slots, bytes, statistics and state are the same, whatever is captured, replayed, refused or fails.

#[path = "../../../ftcache-testkit/cuda_world.rs"]
mod cuda_world;
#[allow(dead_code, reason = "it is used to outlive a cache, and does much more")]
#[path = "../support/probe.rs"]
mod probe;

mod cases;
mod engine;
mod faults;
mod graphs;
mod life;
mod prefill;
mod prefill_graphs;
mod refusals;
mod rig;
mod several;
mod shapes;
mod shortage;
mod sources;
mod stale;
mod token;
mod words;
