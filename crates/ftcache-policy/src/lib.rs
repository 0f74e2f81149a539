//! What a GPU expert-slot cache decides before a single byte moves: which layers share a pool, how many slots each
//! pool gets, where every slot lies, and in which order slots are given up.
//!
//! Everything here is arithmetic on values: no `unsafe`, no input or output, no clock. The words are those of the
//! whole workspace:
//!
//! - an **expert** is one expert's weights in one layer; a **bank** holds one role's **rows** of all experts;
//! - a **slot** is a place on the device for one expert, the same index in every bank;
//! - a **pool** is a range of slots that layers of one **layout key** share;
//! - a **scope** says which layers share, a **split** how slots are divided, a **budget** what may be used.
//!
//! Start at [`Geometry::new`]: a [`Model`] and [`Constraints`] in, pools and arenas out, or an error that names what
//! was needed and what was given. [`Configuration::new`] puts a geometry together with all that an engine decides
//! around it: free memory and reserves, staging, concurrency, CPU layers, the strategy for misses.
//!
//! ```
//! use ftcache_policy::{Budget, Constraints, Geometry, LayoutKey, Model, Quantisation};
//!
//! // Eight layers of 64 experts, top-6; two banks of 4,096 and 2,048 bytes an expert.
//! let layers = vec![LayoutKey::tagged("Q4_K", [4096, 2048]); 8];
//! let model = Model::new(64, 6, Quantisation::PerLayer, layers)?;
//! let geometry = Geometry::new(model, Constraints::new(Budget::Bytes(1 << 20)))?;
//! assert_eq!(geometry.slot_count(), 170);
//! assert!(geometry.total_bytes() <= 1 << 20);
//! # Ok::<(), ftcache_policy::GeometryError>(())
//! ```

#![forbid(unsafe_code)]

mod bit_set;
mod budget;
mod configuration;
mod configuration_error;
mod cpu_layers;
mod curves;
mod error;
mod eviction;
mod fetch;
mod geometry;
mod hull;
mod ids;
mod layout;
mod model;
mod profile;
mod rank;
mod rates;
mod recency;
mod report;
mod scope;
mod scores;
mod search;
mod settings;
mod split;
mod staging;
mod step_time;
mod tables;

pub use bit_set::{BitSet, SORT_LANES, sort_distinct, sort_first};
pub use budget::{Budget, Share, parse_budget, parse_bytes};
pub use configuration::{Configuration, Declined, Note, OverlapOff, SetAside};
pub use configuration_error::{ConfigurationError, CpuLayersError, Enough, RankError, RatesError};
pub use cpu_layers::CpuLayers;
pub use curves::Curves;
pub use error::{BytesError, CurvesError, EvictionError, GeometryError, ProfileError, StagingError};
pub use eviction::Eviction;
pub use fetch::{Carried, Fetch, FetchOrder, FetchRule, Fraction, Rounding, Strategy};
pub use geometry::{Constraints, Geometry, Pool, PoolSlots, SlotRange, TagLimit, TailPad, place_pools};
pub use ids::{BankId, ExpertId, FlatExpertId, LayerId, PoolId, SlotId};
pub use layout::LayoutKey;
pub use model::{Model, Quantisation};
pub use profile::Profile;
pub use rank::{Cut, RankView};
pub use rates::{Basis, Pair, Point, Rates, Recommendation};
pub use recency::Recency;
pub use report::Effective;
pub use scope::{Scope, group_layers};
pub use scores::{Chances, ScoreNumbers, Scores, ScoresError};
pub use settings::{CpuCode, FetchChoice, OtherModel, Reserve, Settings, StagingPlace, StrategyChoice};
pub use split::{PoolBounds, Split, split_curve, split_equal, split_profile};
pub use staging::{SMALL_ROW_BYTES, SlotRun, StageRange, Staging};
pub use step_time::{Behind, StepRates, StepTime, StepTimeError};
pub use tables::{Admission, Table, TableShape, table_bytes};
