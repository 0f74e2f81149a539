//! `ensure` beside ferrox-core and schnellru: one iteration is a token, 48 steps, from a pool that has seen the replay.
//!
//! `cargo bench -p peers`; the first lines of each case say what was missed. Divide a time by 48 for that of a step.

#![forbid(unsafe_code)]

use std::env;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput};
use peers::{Case, Ferrox, Ftcache, LAYERS, Peer, Replay, Schnellru};

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let mut group = criterion.benchmark_group("ensure");
    // Cargo says `--bench` when it benches and nothing when it tests.
    let timed = env::args().any(|arg| arg == "--bench") && env::args().all(|arg| arg != "--test");
    for case in Case::ALL {
        let replay = if timed { Replay::new(case) } else { Replay::with_tokens(case, 1) };
        let (ftcache, ftcache_misses) = warmed(case, &replay);
        let (ferrox, ferrox_misses) = warmed(case, &replay);
        let (schnellru, schnellru_misses) = warmed(case, &replay);
        let distinct = replay.distinct_count();
        let percent = |misses: usize| 100.0 * misses as f64 / distinct as f64;
        println!("{case}: of {distinct} distinct experts in {} tokens", replay.token_count());
        println!("  ftcache     missed {ftcache_misses} ({:.1} %)", percent(ftcache_misses));
        println!("  ferrox-core missed {ferrox_misses} ({:.1} %)", percent(ferrox_misses));
        println!("  schnellru   missed {schnellru_misses} ({:.1} %)", percent(schnellru_misses));
        assert_eq!(ftcache_misses, ferrox_misses, "both are exact LRU with the same victims");

        group.throughput(Throughput::Elements(u64::from(LAYERS) * case.route_count() as u64));
        bench::<Ftcache>(&mut group, case, &replay, ftcache);
        bench::<Ferrox>(&mut group, case, &replay, ferrox);
        bench::<Schnellru>(&mut group, case, &replay, schnellru);
    }
    group.finish();
    criterion.final_summary();
}

/// A peer that has seen the replay twice, and its misses of the second time.
fn warmed<P: Peer>(case: Case, replay: &Replay) -> (P, usize) {
    let mut peer = P::new(case.slot_count);
    peer.pass(replay);
    let misses = peer.pass(replay);
    (peer, misses)
}

fn bench<P: Peer>(group: &mut BenchmarkGroup<'_, WallTime>, case: Case, replay: &Replay, mut peer: P) {
    let mut token = 0;
    group.bench_function(BenchmarkId::new(P::NAME, case), |bencher| {
        bencher.iter(|| {
            let misses = peer.token(replay, token);
            token += 1;
            misses
        });
    });
}
