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
//! A layer alone is a decode step whose misses are all fetched. A [`Step`] says otherwise: drafts and prompts leave
//! the order of victims alone ([`Phase`]), a CPU computes some of the misses ([`Misses`]), the same answer is asked
//! for again ([`Step::token`]), or the step is wider than its pool and comes in parts ([`Cache::partition`]).
//!
//! Long prompts do not go through slots at all: a chunk stages layer after layer whole ([`Cache::begin_chunk`]). What
//! outlives a step: experts that are never victims ([`Cache::pin`]), pools of another size ([`Cache::rebuilt`]), who
//! was resident when the program ended ([`Cache::residents`]), and what all of it came to ([`Stats`],
//! [`LayerRouting`]). Where steps are admitted on the device, all of it goes there and back as plain numbers
//! ([`Cache::state`]).
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

mod answers;
mod cache;
mod digest;
mod error;
mod flight;
mod hint;
mod ids;
mod lent;
mod map;
mod parts;
mod pin;
mod plan;
mod planner;
mod pool;
mod prefill;
mod ranking;
mod rebuild;
mod report;
mod snapshot;
mod stage_plan;
mod state;
mod stats;
mod step;
mod verify;

pub use cache::{Cache, Ticket};
pub use error::{EnsureError, PoolsError};
pub use flight::{LateError, LatePlan, LateStats, LateTicket};
pub use ftcache_policy::FetchOrder;
pub use hint::{HintAnswer, HintStats};
pub use ids::strided;
pub use map::Absence;
pub use parts::Parts;
pub use pin::PinError;
pub use plan::{Copy, Plan, Run, Victim, runs};
pub use planner::{OpenPlan, Planner, PlannerError};
pub use prefill::{ChunkReport, StageError, StageTicket};
pub use rebuild::{Keep, Move};
pub use report::{LayerRouting, MeanRouting};
pub use snapshot::{BringBackTicket, Placement, Residents, SnapshotError};
pub use stage_plan::{Gather, RowRun, StagePlan};
pub use state::{PoolState, State, StateError};
pub use stats::Stats;
pub use step::{Misses, Phase, Step};
