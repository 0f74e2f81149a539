//! The golden vectors of `testdata/golden`: what the reference systems did, one case a line.

use std::path::{Path, PathBuf};

use ftcache_policy::{Fetch, FetchOrder, FetchRule, Fraction};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// One case of `policy.jsonl`: pools, and how a slot count is split over them.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the keys are explained where the vectors are")]
pub struct PolicyCase {
    pub scope: String,
    pub layouts: Vec<u32>,
    pub slot_bytes: Vec<u64>,
    pub num_experts: u32,
    pub min_slots: u32,
    pub slot_limit: Option<u32>,
    pub total: u64,
    pub expert_counts: Option<Vec<Vec<f64>>>,
    pub groups: Vec<Vec<u32>>,
    pub pools: Vec<PolicyPool>,
    pub pool_of_layer: Vec<u32>,
    pub sizes: Option<Vec<u32>>,
    pub error: Option<String>,
}

/// One pool of a [`PolicyCase`].
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the keys are explained where the vectors are")]
pub struct PolicyPool {
    pub layers: Vec<u32>,
    pub min: u32,
    pub max: u32,
}

/// One case of `lru.jsonl`: a trace of steps with every slot and copy.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the keys are explained where the vectors are")]
pub struct LruCase {
    pub layers: usize,
    pub experts: u32,
    pub pool_of_layer: Vec<u32>,
    pub pool_sizes: Vec<u32>,
    pub steps: Vec<LruStep>,
    pub final_slot_of: Vec<Vec<i64>>,
}

/// One step of an [`LruCase`].
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the keys are explained where the vectors are")]
pub struct LruStep {
    pub layer: u32,
    pub experts: Vec<u32>,
    pub slots: Vec<u32>,
    pub copies: Vec<(u32, u32)>,
}

/// One case of `hybrid.jsonl`: a trace of steps of which a CPU computes what is not fetched.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the keys are explained where the vectors are")]
pub struct HybridCase {
    pub layers: usize,
    pub experts: u32,
    pub pool_of_layer: Vec<u32>,
    pub pool_sizes: Vec<u32>,
    pub order: String,
    pub rounding: String,
    pub steps: Vec<HybridStep>,
    pub final_slot_of: Vec<Vec<i64>>,
}

impl HybridCase {
    /// Which misses of its steps are fetched first.
    ///
    /// # Panics
    ///
    /// If the order has another name than the two there are.
    pub fn fetch_order(&self) -> FetchOrder {
        match self.order.as_str() {
            "recency" => FetchOrder::Recency,
            "lowest_id" => FetchOrder::LowestId,
            other => panic!("order {other}"),
        }
    }

    /// How many misses of one of its steps are fetched: up to a number where the fraction is 0, else a part of them.
    ///
    /// # Panics
    ///
    /// If the rounding has another name than the two there are, or the fraction is none.
    pub fn fetch(&self, step: &HybridStep) -> Fetch {
        let fraction = Fraction::from_q16(step.fraction_q16).expect("a fraction");
        let rule = match (step.fraction_q16, self.rounding.as_str()) {
            (0, _) => FetchRule::UpTo(step.max_fetch),
            (_, "min_wait") => FetchRule::MinWait(fraction),
            (_, "prefer_fetch") => FetchRule::PreferFetch(fraction),
            (_, other) => panic!("rounding {other}"),
        };
        Fetch { rule, most: Some(step.fetch_cap) }
    }
}

/// One step of a [`HybridCase`].
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the keys are explained where the vectors are")]
pub struct HybridStep {
    pub layer: u32,
    pub experts: Vec<u32>,
    pub fraction_q16: u32,
    pub max_fetch: u32,
    pub fetch_cap: u32,
    pub slots: Vec<i64>,
    pub cpu_experts: Vec<i64>,
    pub copies: Vec<(u32, u32)>,
    pub missing: u32,
    pub fetched: u32,
}

/// One case of `staging.jsonl`: where whole layers are staged on top of the pools' slots.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the keys are explained where the vectors are")]
pub struct StagingCase {
    pub num_experts: u32,
    pub layer_kind: Vec<usize>,
    pub row_bytes: Vec<Vec<u64>>,
    pub pool_of_layer: Vec<u32>,
    pub pool_sizes: Vec<u32>,
    pub stage_bytes: Option<Vec<u64>>,
    pub pool_offsets: Option<Vec<Vec<u64>>>,
    pub bank_bytes: Option<Vec<u64>>,
    pub stable_from: Option<Vec<u32>>,
    pub invalidates: Option<Vec<Vec<u64>>>,
    pub overlap_fits: Option<bool>,
    pub error: Option<String>,
}

/// Every case of one golden file, e.g. `lru.jsonl`.
///
/// # Panics
///
/// If the file is missing or a line is not a case: golden vectors are committed and never skipped.
pub fn cases<Case: DeserializeOwned>(name: &str) -> Vec<Case> {
    let path = testdata().join("golden").join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let case = |(index, line): (usize, &str)| {
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{name} line {}: {error}", index + 1))
    };
    text.lines().enumerate().map(case).collect()
}

/// The folder of committed test data.
pub fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata")
}
