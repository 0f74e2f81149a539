//! Whole configurations: worked cases and reported faults, each by its code, what every accepted one has in common, and
//! every text of what is refused.

use ftcache_policy::*;
use ftcache_testkit::Rng;

mod accepted;
mod budgets;
mod layers;
mod strategies;
mod texts;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn layers(layer_count: usize, expert_count: u32, top_k: u32, row_bytes: &[u64]) -> Model {
    let layers = vec![LayoutKey::tagged("q", row_bytes); layer_count];
    Model::new(expert_count, top_k, Quantisation::PerLayer, layers).unwrap()
}

/// 32 experts of 1,000 bytes in 4 layers of 8, with a quantisation each.
fn tagged<const N: usize>(tags: [&str; N]) -> Model {
    let layers = tags.map(|tag| LayoutKey::tagged(tag, [1_000])).to_vec();
    Model::new(8, 2, Quantisation::PerLayer, layers).unwrap()
}

/// 32 experts of 1,000 bytes in 4 layers of 8.
fn toy() -> Model {
    tagged(["q"; 4])
}

/// No pads, so that a slot has the bytes of its rows.
fn settings(budget: Budget) -> Settings {
    Settings::new(Constraints { tail_pad: TailPad::Bytes(0), ..Constraints::new(budget) })
}

/// The whole of what is free, less one reserve.
fn rest_of(free: u64, reserved: u64) -> Settings {
    Settings {
        free_bytes: Some(free),
        reserves: vec![Reserve { name: "kv".into(), bytes: reserved }],
        ..settings(Budget::Rest(Share::WHOLE))
    }
}

fn on(mut settings: Settings, budget: Budget) -> Settings {
    settings.constraints.budget = budget;
    settings
}

fn share(text: &str) -> Share {
    Share::parse(text).unwrap()
}

fn sizes(configuration: &Configuration) -> Vec<u32> {
    configuration.geometry().pools().iter().map(|pool| pool.slot_count()).collect()
}

fn buffers(configuration: &Configuration) -> u32 {
    configuration.staging().map_or(0, |staging| staging.buffer_count())
}

fn ids(layers: impl IntoIterator<Item = u32>) -> Vec<LayerId> {
    layers.into_iter().map(LayerId::new).collect()
}

fn new(model: Model, settings: Settings) -> Configuration {
    Configuration::new(model, settings).unwrap()
}

fn refused(model: Model, settings: Settings) -> ConfigurationError {
    Configuration::new(model, settings).unwrap_err()
}

fn point(tag: &str, link: f64, cpu: Option<f64>, contended: Option<(f64, f64)>) -> Point {
    let contended = contended.map(|(link, cpu)| Pair { link, cpu });
    Point { tag: tag.into(), expert_bytes: 1_000, link, cpu, contended }
}

/// By these points, on a machine that computes these tags.
fn measured(points: Vec<Point>, cpu_code: CpuCode) -> Settings {
    Settings {
        strategy: StrategyChoice::Measured,
        rates: Some(Rates::new("gpu", points).unwrap()),
        device: Some("gpu".into()),
        cpu_code,
        ..settings(Budget::Slots(16))
    }
}

fn carry(fraction: Fraction) -> Option<Fetch> {
    Some(Fetch { rule: FetchRule::Carry(fraction), most: None })
}

/// None, as the caller says.
fn said_none() -> Option<FetchChoice> {
    Some(FetchChoice::Fixed(Fetch { rule: FetchRule::UpTo(0), most: None }))
}

/// All, as the caller says.
fn said_all() -> Option<FetchChoice> {
    carry(Fraction::ALL).map(FetchChoice::Fixed)
}
