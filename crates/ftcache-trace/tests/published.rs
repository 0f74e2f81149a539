//! Replays by bytes against those that the recordings' own source published, where they are.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use ftcache_trace::{BytePolicy, ByteReplay, ByteScope, Events, Trace};

const SHARED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/traces");

/// Their digits: three after the point of a percentage, one of a MiB.
const PERCENT: f64 = 0.000_5;
const MIB: f64 = 0.05;

/// What the source calls it. Its `random` depends on its generator, and is not replayed.
fn policy_of(name: &str) -> Option<(BytePolicy, ByteScope)> {
    match name {
        "lru" => Some((BytePolicy::Lru, ByteScope::Unified)),
        "lfu" => Some((BytePolicy::Lfu, ByteScope::Unified)),
        "belady" => Some((BytePolicy::Belady, ByteScope::Unified)),
        "layer" => Some((BytePolicy::Lru, ByteScope::PerLayer)),
        "layerlfu" => Some((BytePolicy::Lfu, ByteScope::PerLayer)),
        "random" => None,
        other => panic!("policy {other:?}"),
    }
}

#[test]
fn every_published_number_is_replayed_to_its_last_digit() {
    if !Path::new(SHARED).exists() {
        // Past the test runner's capture, so that a skip is seen.
        writeln!(
            io::stderr(),
            "skipped, no folder shared/traces: every_published_number_is_replayed_to_its_last_digit"
        )
        .unwrap();
        return;
    }
    for name in ["bigmoe-qwen", "bigmoe-gemma"] {
        let folder = Path::new(SHARED);
        let trace = Trace::read(File::open(folder.join(format!("{name}.ftr.zst"))).unwrap()).unwrap();
        let expert_bytes = trace.header().expert_bytes.as_deref().unwrap();
        let events = Events::passes(&trace);
        let published = fs::read_to_string(folder.join(format!("{name}.published-curve.csv"))).unwrap();
        let mut lines = published.lines();
        assert_eq!(lines.next(), Some("budget_mib,policy,hit_pct_cum,hit_pct_decode,read_mib"));
        let mut replayed = 0;
        for line in lines {
            let fields: Vec<&str> = line.split(',').collect();
            let [budget, policy, cumulative, decode, read] = fields[..] else { panic!("{name}: {line}") };
            let Some((policy, scope)) = policy_of(policy) else { continue };
            let capacity_bytes = budget.parse::<u64>().unwrap() << 20;
            let counts = ByteReplay { policy, scope, capacity_bytes }.run(&events, expert_bytes);
            let read_mib = counts.all.read_bytes as f64 / f64::from(1 << 20);
            for (what, ours, theirs, digits) in [
                ("of all", counts.all.hit_percent(), cumulative, PERCENT),
                ("of decode", counts.decode.hit_percent(), decode, PERCENT),
                ("MiB read", read_mib, read, MIB),
            ] {
                // A hair more, since half a last digit may be rounded either way.
                let off = (ours - theirs.parse::<f64>().unwrap()).abs();
                assert!(off <= digits * 1.001, "{name}, {line}: {ours} {what}");
            }
            replayed += 1;
        }
        // Eleven budgets, five policies.
        assert_eq!(replayed, 55, "{name}");
    }
}
