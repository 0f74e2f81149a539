//! Who is where: which expert sits in which slot, and what a step changes.
//!
//! A step names the experts that one layer routed to. [`Cache::ensure`] makes all of them resident at once and writes
//! a [`Plan`]: a slot for each route, and the rows that must be copied first. Nothing moves here; whoever carries the
//! plan out commits its [`Ticket`] when the rows lie in their slots, or aborts it, and then none of them is ever a hit.
//!
//! Two rules must not drift from the kernels that decide the same on the device:
//!
//! 1. victims ascend by (stamp, slot), and a slot that the step itself uses is never one;
//! 2. misses ascend by expert, and the i-th miss takes the i-th victim.
//!
//! ```
//! use ftcache_policy::{ExpertId, LayerId, PoolId, SlotId};
//! use ftcache_residency::{Cache, Plan};
//!
//! // One layer of eight experts over four slots.
//! let mut cache = Cache::with_pools(8, &[Some(PoolId::new(0))], &[4])?;
//! let mut plan = Plan::new();
//! let routes = [5, 2, 5].map(ExpertId::new);
//! cache.ensure(LayerId::new(0), &routes, &mut plan)?.commit();
//! assert_eq!(plan.slots(), [1, 0, 1].map(SlotId::new));
//! assert_eq!(plan.copies().len(), 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod cache;
mod error;
mod map;
mod plan;
mod pool;
mod stats;

pub use cache::{Cache, Ticket};
pub use error::{EnsureError, PoolsError};
pub use plan::{Copy, Plan, Victim};
pub use stats::Stats;
