//! Slots divided between the pools of 100 layers, `equal` and by a profile, in slots and in bytes.
//!
//! `cargo bench -p ftcache-policy`. One slot at a time would take a million turns over 100 pools; `equal` goes by whole
//! rounds, `profile` by selection.

#![forbid(unsafe_code)]

use std::env;
use std::hint::black_box;

use criterion::{BenchmarkId, Criterion};
use ftcache_policy::{
    Budget, Constraints, Geometry, LayoutKey, Model, PoolBounds, Profile, Quantisation, Scope, Split, split_equal,
    split_profile,
};
use ftcache_testkit::Rng;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let mut group = criterion.benchmark_group("split");
    // Cargo says `--bench` when it benches and nothing when it tests.
    let timed = env::args().any(|arg| arg == "--bench") && env::args().all(|arg| arg != "--test");
    let layer_count = 100;
    let experts_of: &[u32] = if timed { &[1_000, 20_000] } else { &[50] };
    for &expert_count in experts_of {
        let slots = u64::from(expert_count) * layer_count as u64 / 2;
        let layers = (0..layer_count).map(|index| LayoutKey::tagged(index.to_string(), [4_096 + 16 * index as u64]));
        let model = Model::new(expert_count, 8, Quantisation::PerLayer, layers.collect()).unwrap();
        let bounds = vec![PoolBounds { layer_count: 1, min_slots: 8, max_slots: expert_count }; layer_count];
        let groups: Vec<_> = model.layer_ids().map(|layer| vec![layer]).collect();
        let mut rng = Rng::new(1);
        // A few experts are used often and most seldom, another lot in each layer.
        let row = |_| (0..expert_count).map(|_| 1.0 / (1 + rng.below(1 << 20)) as f64).collect::<Vec<_>>();
        let counts: Vec<Vec<f64>> = (0..layer_count).map(row).collect();
        let profile = Profile::new("synthetic", &counts).unwrap();

        let name = |strategy: &str| BenchmarkId::new(strategy, format!("layers={layer_count},slots={slots}"));
        group.bench_function(name("equal"), |b| b.iter(|| split_equal(black_box(&bounds), slots).unwrap()));
        group.bench_function(name("profile"), |b| {
            b.iter(|| split_profile(black_box(&bounds), &groups, &profile, slots).unwrap());
        });
        for (strategy, split) in [("equal-bytes", Split::Equal), ("profile-bytes", Split::Profile(profile.clone()))] {
            let budget = Budget::Bytes(model.model_bytes() / 2);
            let constraints = Constraints { scope: Scope::PerLayer, split, ..Constraints::new(budget) };
            group.bench_function(name(strategy), |b| {
                b.iter(|| Geometry::new(black_box(model.clone()), constraints.clone()).unwrap());
            });
        }
    }
    group.finish();
    criterion.final_summary();
}
