//! What the parsers must keep whatever bytes they are given: no panic, and what is read means what it says. Each function
//! is a target of `cargo fuzz`; a test of `ftcache-model` runs them on mutated texts in every build.

use std::path::Path;

use ftcache_model::measured::{parse_profile, parse_rates};
use ftcache_policy::{Budget, CpuLayers, LayerId, Share, parse_budget, parse_bytes};

/// Bytes, budgets, shares and CPU layers as people write them. Returns whether any of them was read.
pub(crate) fn texts(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let bytes = parse_bytes(text);
    if let Ok(bytes) = bytes {
        assert_eq!(parse_budget(text), Ok(Budget::Bytes(bytes)));
        assert_eq!(parse_bytes(&bytes.to_string()), Ok(bytes));
    }
    let budget = parse_budget(text);
    if let Ok(budget @ (Budget::Free(_) | Budget::Rest(_))) = budget {
        assert_eq!(parse_budget(&budget.to_string()), Ok(budget));
    }
    let share = Share::parse(text);
    if let Ok(share) = share {
        assert_eq!(Share::parse(&share.to_string()), Ok(share));
        assert!(share.of(u64::MAX - 1) < u64::MAX && share.of(0) == 0);
    }
    let layers = CpuLayers::parse(text);
    if let Ok(layers) = &layers {
        assert_eq!(CpuLayers::parse(&layers.to_string()).as_ref(), Ok(layers));
    }
    bytes.is_ok() || budget.is_ok() || share.is_ok() || layers.is_ok()
}

/// A profile of expert use. Returns whether it was read.
pub(crate) fn profile(data: &[u8]) -> bool {
    let Ok(profile) = parse_profile(Path::new("fuzz"), data) else { return false };
    assert!(profile.layer_count() > 0 && profile.expert_count() > 0);
    for layer in (0..profile.layer_count()).map(LayerId::from_index) {
        let shares = profile.shares(layer);
        assert!(shares.iter().all(|share| (0.0..=1.0).contains(share) && share.is_sign_positive()));
        let sum: f64 = shares.iter().sum();
        assert!((sum - 1.0).abs() < 1e-6, "layer {layer}: shares of {sum}");
    }
    true
}

/// The rates of a device. Returns whether they were read.
pub(crate) fn rates(data: &[u8]) -> bool {
    let Ok(rates) = parse_rates(Path::new("fuzz"), data) else { return false };
    for point in rates.points() {
        assert!(point.link > 0.0 && point.expert_bytes > 0);
        assert!(point.recommend().fraction.q16() <= 1 << 16);
    }
    true
}
