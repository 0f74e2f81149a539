//! What is asked of a configuration: constraints, and everything around them that an engine or its user may set.

use crate::{
    Admission, Constraints, CpuLayers, Eviction, Fetch, FetchOrder, LayerId, LayoutKey, Rates, Rounding, Strategy,
};

/// Where prefill stages whole layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StagingPlace {
    /// On top of the first pools' slots, which lose what they hold.
    #[default]
    Borrowed,
    /// In memory of its own, so that prefill leaves the decode set alone.
    Dedicated,
    /// Nowhere: small chunks are admitted on demand, and the others are the engine's.
    Nowhere,
}

/// Bytes of the device that the engine needs for something else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reserve {
    /// What for: `kv`, `transients`, `weights`.
    pub name: String,
    /// Bytes.
    pub bytes: u64,
}

/// What follows from a profile or curves that were counted on a model of another name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OtherModel {
    /// A note.
    #[default]
    Note,
    /// A refusal.
    Refuse,
}

/// Which quantisations the CPU can compute.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum CpuCode {
    /// All.
    #[default]
    Every,
    /// Those with one of these tags; an empty one stands for layers without a tag.
    Tags(Vec<Vec<u8>>),
}

impl CpuCode {
    /// Whether the CPU can compute a layer.
    pub fn has(&self, layer: &LayoutKey) -> bool {
        match self {
            Self::Every => true,
            Self::Tags(tags) => tags.iter().any(|known| known == layer.tag().unwrap_or_default()),
        }
    }
}

/// How the strategy is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StrategyChoice {
    /// By the caller.
    Fixed(Strategy),
    /// By the rates in the settings.
    Measured,
}

/// How it is chosen how many misses of a hybrid step are fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FetchChoice {
    /// By the caller, alike in every layer.
    Fixed(Fetch),
    /// By the fraction that the rates in the settings give each layer's kind.
    Measured {
        /// How a fraction becomes a number.
        rounding: Rounding,
        /// The most misses of a step that are fetched.
        most: Option<u32>,
    },
}

/// What is asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Pools, budget, split, requests, strides and pads. A byte budget covers the arenas with their pads and the layers
    /// that lie on the device as a whole; dedicated staging and tables come on top.
    pub constraints: Constraints,
    /// Free bytes of the device, if they are known; then nothing that does not fit is accepted.
    pub free_bytes: Option<u64>,
    /// What else the engine needs of them.
    pub reserves: Vec<Reserve>,
    /// Decode as many requests at once as fit, if that is fewer than asked for. Otherwise that is refused.
    pub lower_requests: bool,
    /// Batch sizes that the engine would capture as graphs.
    pub batch_sizes: Vec<u32>,
    /// Where prefill stages whole layers.
    pub staging: StagingPlace,
    /// Stage a layer while the one before it computes, if two layers fit.
    pub overlap: bool,
    /// Stage a bank whole if its rows are narrower than this; [`SMALL_ROW_BYTES`](crate::SMALL_ROW_BYTES), if it is
    /// not said.
    pub small_row_bytes: Option<u64>,
    /// Where steps are admitted.
    pub admission: Admission,
    /// Which rule says who goes.
    pub eviction: Eviction,
    /// How misses are computed.
    pub strategy: StrategyChoice,
    /// How many misses a hybrid step fetches; by the rates, carried, if it is not said.
    pub fetch: Option<FetchChoice>,
    /// Which of the misses of a hybrid step are fetched first; by recency, if it is not said.
    pub fetch_order: Option<FetchOrder>,
    /// What this machine was measured to do.
    pub rates: Option<Rates>,
    /// This device, as a profile of rates names it; needed to use one.
    pub device: Option<String>,
    /// Which quantisations the CPU can compute.
    pub cpu_code: CpuCode,
    /// Layers that decode on the CPU.
    pub cpu_layers: CpuLayers,
    /// What the host may pin, if that is known; else nothing is said of it.
    pub pinnable_bytes: Option<u64>,
    /// Layers that lie on the device as a whole.
    pub resident_layers: Vec<LayerId>,
    /// The model's name, to compare with that of a profile or of curves.
    pub model_name: Option<String>,
    /// What follows if they differ.
    pub other_model: OtherModel,
}

impl Settings {
    /// The constraints alone: borrowed staging with overlap, every miss fetched, admission on the host.
    pub fn new(constraints: Constraints) -> Self {
        Self {
            constraints,
            free_bytes: None,
            reserves: Vec::new(),
            lower_requests: false,
            batch_sizes: Vec::new(),
            staging: StagingPlace::Borrowed,
            overlap: true,
            small_row_bytes: None,
            admission: Admission::Host,
            eviction: Eviction::Lru,
            strategy: StrategyChoice::Fixed(Strategy::Offload),
            fetch: None,
            fetch_order: None,
            rates: None,
            device: None,
            cpu_code: CpuCode::Every,
            cpu_layers: CpuLayers::None,
            pinnable_bytes: None,
            resident_layers: Vec::new(),
            model_name: None,
            other_model: OtherModel::Note,
        }
    }

    /// Bytes of all reserves. Saturates, so that what cannot be counted is refused and does not wrap.
    pub fn reserved_bytes(&self) -> u64 {
        self.reserves.iter().fold(0, |sum: u64, reserve| sum.saturating_add(reserve.bytes))
    }
}
