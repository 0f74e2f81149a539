//! `Cache::ensure` by temperature: one iteration is a token, a step of each layer, all layers over one pool.
//!
//! | word | routes | misses |
//! | --- | --- | --- |
//! | warm | the same token again and again | none |
//! | steady | experts come back as in a recorded decode (`Decode`) | a third with slots for an eighth, few with half |
//! | half | half of the top-k stay, the others walk through the layer | every second |
//! | cold | all walk through the layer, and LRU has let go of each before it comes again | all |
//!
//! Steady routes are also admitted by hybrid steps, which fetch half of their misses, and in the phases that leave hits
//! unstamped.
//!
//! `cargo bench -p ftcache-residency`. `benches/peers` compares with other crates.

#![forbid(unsafe_code)]

use std::env;
use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput};
use ftcache_policy::{Eviction, ExpertId, Fetch, FetchOrder, FetchRule, Fraction, LayerId, PoolId};
use ftcache_residency::{Cache, Misses, Phase, Plan, Step};
use ftcache_testkit::generators::Decode;

struct Model {
    name: &'static str,
    layer_count: u32,
    expert_count: u32,
    top_k: u32,
    /// One expert over all banks: three matrices of hidden by intermediate size, at 4.5 bits a weight.
    row_bytes: u64,
}

const MODELS: [Model; 3] = [
    Model { name: "qwen3-30b", layer_count: 48, expert_count: 128, top_k: 8, row_bytes: 3 * 2048 * 768 * 9 / 16 },
    Model { name: "qwen3-next-80b", layer_count: 48, expert_count: 512, top_k: 10, row_bytes: 3 * 2048 * 512 * 9 / 16 },
    Model { name: "deepseek-v3", layer_count: 58, expert_count: 256, top_k: 8, row_bytes: 3 * 7168 * 2048 * 9 / 16 },
];

/// Slots as a part of the model's experts. At an eighth every model still holds the experts of a token.
const SLOT_DIVISORS: [u32; 2] = [8, 2];

#[derive(Clone, Copy)]
enum Temperature {
    Warm,
    Steady,
    Half,
    Cold,
}

impl Temperature {
    const ALL: [(&'static str, Self); 4] =
        [("warm", Self::Warm), ("steady", Self::Steady), ("half", Self::Half), ("cold", Self::Cold)];

    /// `[token][layer]`: the routes of each step, to be replayed in a loop.
    fn tokens(self, model: &Model, token_count: usize) -> Vec<Vec<Vec<ExpertId>>> {
        let kept = match self {
            Self::Warm | Self::Steady => {
                let (layers, top_k) = (model.layer_count as usize, model.top_k as usize);
                let mut decode = Decode::new(1, layers, model.expert_count, top_k, 1);
                let token_count = if matches!(self, Self::Warm) { 1 } else { token_count };
                return (0..token_count).map(|_| decode.next_token().to_vec()).collect();
            }
            Self::Half => model.top_k / 2,
            Self::Cold => 0,
        };
        let (walked, stride) = (model.expert_count - kept, model.top_k - kept);
        let route = |token: usize, index| match index {
            stays if stays < kept => ExpertId::new(stays),
            walks => ExpertId::new(kept + (token as u32 * stride + walks - kept) % walked),
        };
        let step = |token| (0..model.top_k).map(|index| route(token, index)).collect::<Vec<_>>();
        // After as many tokens as there are experts to walk through, the walk is where it began.
        let tokens = 0..token_count.min(walked as usize);
        tokens.map(|token| vec![step(token); model.layer_count as usize]).collect()
    }
}

/// How a step is admitted, beside its routes.
fn admissions() -> [(&'static str, Step); 4] {
    let step = Step::new(LayerId::new(0));
    let half = Fetch { rule: FetchRule::Carry(Fraction::from_q16(1 << 15).expect("a half")), most: None };
    [
        ("lru", step),
        ("hybrid", Step { misses: Misses::Hybrid { fetch: half, order: FetchOrder::Recency }, ..step }),
        ("verify", Step { phase: Phase::Verify, ..step }),
        ("prefill", Step { phase: Phase::Prefill, ..step }),
    ]
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let mut group = criterion.benchmark_group("ensure");
    // Cargo says `--bench` when it benches and nothing when it tests.
    let timed = env::args().any(|arg| arg == "--bench") && env::args().all(|arg| arg != "--test");
    let token_count = if timed { 512 } else { 2 };
    for model in &MODELS {
        for divisor in SLOT_DIVISORS {
            for (word, temperature, (strategy, step), eviction) in cases() {
                let slot_count = model.layer_count * model.expert_count / divisor;
                let tokens = temperature.tokens(model, token_count);
                let pool_of_layer = vec![Some(PoolId::new(0)); model.layer_count as usize];
                let mut cache = Cache::with_pools(model.expert_count, &pool_of_layer, &[slot_count]).unwrap();
                cache.set_eviction(eviction).unwrap();
                let mut plan = Plan::new();
                tokens.iter().for_each(|token| run(&mut cache, step, token, &mut plan));
                cache.reset_stats();
                tokens.iter().for_each(|token| run(&mut cache, step, token, &mut plan));

                let workload = format!("{}/slots={slot_count},k={},{word}", model.name, model.top_k);
                let stats = cache.pool_stats(PoolId::new(0));
                let percent = 100.0 * stats.misses as f64 / stats.distinct as f64;
                let mebibytes = (stats.fetched * model.row_bytes) as f64 / tokens.len() as f64 / f64::from(1 << 20);
                println!("{strategy} {workload}: {percent:.1} % missed, {mebibytes:.1} MiB to copy a token");

                group.throughput(Throughput::Elements(u64::from(model.layer_count * model.top_k)));
                let mut endless = tokens.iter().cycle();
                group.bench_function(BenchmarkId::new(strategy, workload), |bencher| {
                    bencher.iter(|| run(&mut cache, step, endless.next().expect("there are tokens"), &mut plan));
                });
            }
        }
    }
    group.finish();
    criterion.final_summary();
}

/// Every temperature of plain steps, under LRU and under the dearest rule, and steady ones of every other kind.
fn cases() -> Vec<(&'static str, Temperature, (&'static str, Step), Eviction)> {
    let [plain, others @ ..] = admissions();
    let learned = (Eviction::Learned.name(), plain.1);
    let mut cases = Vec::new();
    for (admission, eviction) in [(plain, Eviction::Lru), (learned, Eviction::Learned)] {
        cases.extend(Temperature::ALL.map(|(word, temperature)| (word, temperature, admission, eviction)));
    }
    cases.extend(others.map(|other| ("steady", Temperature::Steady, other, Eviction::Lru)));
    cases
}

/// One token: a step of each layer.
fn run(cache: &mut Cache, step: Step, token: &[Vec<ExpertId>], plan: &mut Plan) {
    for (layer, routes) in token.iter().enumerate() {
        cache
            .ensure(Step { layer: LayerId::from_index(layer), ..step }, routes, plan)
            .expect("no step is wider than the pool")
            .commit();
        black_box(&*plan);
    }
}
