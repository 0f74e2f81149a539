//! All four golden files are there, whole: what a later change is held to cannot get lost before it.

use ftcache_testkit::golden::cases;
use serde_json::Value;

#[test]
fn every_golden_file_is_committed_whole() {
    for (name, count) in [("policy.jsonl", 300), ("staging.jsonl", 200), ("lru.jsonl", 60), ("hybrid.jsonl", 60)] {
        assert_eq!(cases::<Value>(name).len(), count, "{name}");
    }
}
