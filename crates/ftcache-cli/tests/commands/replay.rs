//! `replay`: every slot checked.

use super::*;

#[test]
fn a_trace_is_replayed_and_every_slot_checked() {
    let trace = testdata("traces/synthetic-4l16e.ftr.zst");
    let text = done(&["replay", trace.to_str().unwrap(), "--slots", "20", "--per-layer"]);
    // The last line is how long it took.
    let (fixed, time) = text.trim_end().rsplit_once('\n').unwrap();
    assert!(time.starts_with("in ") && time.ends_with(" ns a step"), "{time}");
    insta::assert_snapshot!(fixed, @"
    synthetic: 256 tokens, 4 layers of 16 experts, top-2
    20 slots in 1 pool for 64 experts, 4,112 bytes each

    layer  steps  distinct  misses  hit rate   oracle  experts  for 90 %  entropy  bytes moved
    0        256       512     142   72.27 %  57.62 %       16        12    0.921      583,904
    1        256       512     124   75.78 %  61.13 %       16        12    0.872      509,888
    2        256       512     134   73.83 %  57.42 %       16        12    0.927      551,008
    3        256       512     127   75.20 %  66.41 %       16        11    0.887      522,224

    hit rate 74.27 %: 1,521 hits and 527 misses in 1,024 steps
    of the misses 64 were first uses and 463 had lost their slots to others
    a layer used 16.0 experts, 11.8 for 90 % of its routes, entropy 0.902; its most used, fixed, would hit 60.64 %
    checked 4,136 rows as they were used and 20 slots at the end: every byte right
    moved 2.07 MiB (2,167,024 bytes) to host memory
    ");
}

#[test]
fn replay_of_a_trained_model_in_both_scopes() {
    let trace = testdata("traces/tinymoe-8l64e.ftr.zst");
    let replay = |scope| {
        let arguments =
            ["replay", trace.to_str().unwrap(), "--slots", "128", "--row-bytes", "7", "--json", "--scope", scope];
        let json: serde_json::Value = serde_json::from_str(&done(&arguments)).unwrap();
        assert_eq!((json["steps"].as_u64(), json["distinct"].as_u64()), (Some(8 * 18_688), Some(6 * 8 * 18_688)));
        assert_eq!(json["checked_rows"], 2 * (6 * 8 * 18_688 + 128));
        assert_eq!(
            json["misses"].as_u64(),
            json["cold_misses"].as_u64().zip(json["capacity_misses"].as_u64()).map(|(cold, capacity)| cold + capacity)
        );
        assert_eq!(json["bytes"].as_u64(), json["misses"].as_u64().map(|misses| misses * (7 + 16)));
        json["misses"].as_u64().unwrap()
    };
    // Counted by a replay written apart from this one: a scan over a table of slots, in Python.
    assert_eq!((replay("unified"), replay("per-layer")), (420_440, 392_717));
}

/// The same counts as `sweep` has, which moves nothing.
#[test]
fn victims_by_other_rules() {
    let trace = testdata("traces/tinymoe-8l64e.ftr.zst");
    let replay = |arguments: &[&str]| {
        let all = ["replay", trace.to_str().unwrap(), "--slots", "128", "--row-bytes", "1", "--json"];
        serde_json::from_str::<serde_json::Value>(&done(&[&all, arguments].concat())).unwrap()
    };
    let json = done(&["sweep", trace.to_str().unwrap(), "--sizes", "128", "--eviction", "cyclic,learned", "--json"]);
    let sweep: serde_json::Value = serde_json::from_str(&json).unwrap();
    let lines = sweep["lines"].as_array().unwrap();
    let rows = [("cyclic", "unified"), ("cyclic", "per-layer"), ("learned", "unified"), ("learned", "per-layer")];
    for (eviction, scope) in rows {
        let replayed = replay(&["--eviction", eviction, "--scope", scope]);
        let line = lines.iter().find(|line| line["policy"] == eviction && line["scope"] == scope).unwrap();
        assert_eq!(replayed["eviction"], eviction);
        assert_eq!(replayed["misses"], line["misses"][0], "{eviction} {scope}");
    }
    assert!(replay(&["--eviction", "learned"])["misses"].as_u64() < Some(330_000));
    let wrong = refused(&["replay", trace.to_str().unwrap(), "--slots", "128", "--eviction", "belady"]);
    assert!(wrong.contains("\"belady\" is no rule for victims: there are lru, lfu, cyclic, learned"), "{wrong}");
}

#[test]
fn a_replay_over_a_cuda_device_moves_the_same_bytes() {
    let trace = testdata("traces/synthetic-4l16e.ftr.zst");
    let arguments = ["replay", trace.to_str().unwrap(), "--slots", "20", "--json"];
    let json = |text: &str| -> serde_json::Value { serde_json::from_str(text).unwrap() };
    let mut host = json(&done(&arguments));
    let (text, success) = Drivers::emulated().run(&[&arguments[..], &["--device", "0"]].concat(), &[]);
    assert!(success, "{text}");
    let mut cuda = json(&text);
    assert_eq!((&host["device"], &cuda["device"]), (&"host memory".into(), &"ftcache emulated device 0".into()));
    // A bank of rows and one of what lies beside them, 20 slots each and the rest of a multiple.
    for (bank, bytes) in [(0, 20 * 4096), (1, 20 * 16)] {
        let arena = &cuda["arenas"][bank];
        assert_eq!(arena["bank"], bank);
        assert!(arena["bytes"].as_u64().unwrap() >= bytes && arena["spilled"].is_boolean(), "{arena}");
    }
    assert!(cuda["arenas"].as_array().unwrap().len() == 2 && host["arenas"].is_null());
    for replay in [&mut host, &mut cuda] {
        replay["device"].take();
        replay["load_seconds"].take();
        replay["arenas"].take();
    }
    assert_eq!(host, cuda);
    let (text, success) = Drivers::none().run(&[&arguments[..], &["--device", "0"]].concat(), &[]);
    assert!(!success && text.starts_with("ftcache: no CUDA driver: "), "{text}");
}

#[test]
fn replays_that_cannot_be_are_refused() {
    let trace = testdata("traces/synthetic-4l16e.ftr.zst");
    let trace = trace.to_str().unwrap();
    insta::assert_snapshot!(refused(&["replay", trace, "--slots", "1"]), @"ftcache: PATH: the pools need at least 2 slots; 1 are given");
    insta::assert_snapshot!(refused(&["replay", trace, "--slots", "65"]), @"ftcache: PATH: the pools can use 64 slots; 65 are given");
    insta::assert_snapshot!(refused(&["replay", trace, "--slots", "7", "--scope", "per-layer"]), @"ftcache: PATH: the pools need at least 8 slots; 7 are given");
    let model = testdata("gguf/ggml_types.json");
    insta::assert_snapshot!(refused(&["replay", model.to_str().unwrap(), "--slots", "9"]), @"ftcache: PATH: starts with bytes 5b 0a 20 20: neither a JSON header nor zstd");
}
