//! Slots divided between the pools of 100 layers: `equal`, by a profile and by curves, in slots and in bytes.
//!
//! `cargo bench -p ftcache-policy`. One slot at a time would take a million turns over 100 pools; `equal` goes by whole
//! rounds, `profile` by selection. By curves they are told so, out of a heap of the pools.

#![forbid(unsafe_code)]

use std::env;
use std::hint::black_box;

use criterion::{BenchmarkId, Criterion};
use ftcache_policy::{
    Budget, Constraints, Curves, Geometry, LayoutKey, Model, PoolBounds, Profile, Quantisation, Scope, Split,
    split_curve, split_equal, split_profile,
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
        // Falls of any size in any order, so that a hull has few corners and a stretch many slots.
        let mut curve = |_| {
            let mut misses: Vec<u64> = (0..=expert_count).map(|_| rng.below(1 << 20)).collect();
            misses.sort_unstable_by(|a, b| b.cmp(a));
            misses
        };
        let curves = Curves::new("synthetic", (0..layer_count).map(&mut curve).collect()).unwrap();

        let row_bytes: Vec<u64> = model.layers().iter().map(LayoutKey::expert_bytes).collect();

        let name = |strategy: &str| BenchmarkId::new(strategy, format!("layers={layer_count},slots={slots}"));
        group.bench_function(name("equal"), |b| b.iter(|| split_equal(black_box(&bounds), slots).unwrap()));
        group.bench_function(name("profile"), |b| {
            b.iter(|| split_profile(black_box(&bounds), &groups, &profile, slots).unwrap());
        });
        group.bench_function(name("curve"), |b| {
            b.iter(|| split_curve(black_box(&bounds), &groups, &curves, &row_bytes, slots).unwrap());
        });
        let splits = [
            ("equal-bytes", Split::Equal),
            ("profile-bytes", Split::Profile(profile.clone())),
            ("curve-bytes", Split::Curve(curves.clone())),
        ];
        for (strategy, split) in splits {
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
