//! The program as people run it: what it prints, and what it refuses.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name)
}

/// A model of zeros with the header that PyPI's gguf wrote, as long as the header says.
fn model(name: &str) -> PathBuf {
    let sizes = std::fs::read_to_string(testdata("gguf/headers.json")).unwrap();
    let sizes: serde_json::Value = serde_json::from_str(&sizes).unwrap();
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let unique = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(unique);
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join(name);
    std::fs::copy(testdata("gguf").join(format!("{name}-header")), &path).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(sizes[name].as_u64().unwrap()).unwrap();
    path
}

/// What a run printed, folders cut from paths; and whether it succeeded.
fn ftcache(arguments: &[&str]) -> (String, bool) {
    let output = Command::new(env!("CARGO_BIN_EXE_ftcache")).args(arguments).output().unwrap();
    let mut text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    for argument in arguments.iter().filter(|argument| argument.contains('/')) {
        text = text.replace(argument, "PATH");
    }
    (text, output.status.success())
}

fn done(arguments: &[&str]) -> String {
    let (text, success) = ftcache(arguments);
    assert!(success, "{text}");
    text
}

fn refused(arguments: &[&str]) -> String {
    let (text, success) = ftcache(arguments);
    assert!(!success, "{text}");
    text
}

#[test]
fn a_mixed_quant_model_is_shown() {
    let path = model("mixed_quant.gguf");
    insta::assert_snapshot!(done(&["inspect", path.to_str().unwrap()]), @"
    mixed_quant (qwen3moe), 48 blocks in 1 file
    47 layers of 256 experts, top-10

    quantisation  layers   gate row     up row   down row  expert bytes  all experts
    BF16               8  6,291,456  6,291,456  6,291,456    18,874,368    36.00 GiB
    Q4_K              39  1,769,472  1,769,472  1,769,472     5,308,416    49.36 GiB

    BF16: blocks 1, 7, 13, 19, 25, 31, 37, 43
    Q4_K: blocks 2-6, 8-12, 14-18, 20-24, 26-30, 32-36, 38-42, 44-47
    all experts 85.36 GiB (91,653,931,008 bytes); one token's 3.33 GiB (3,580,231,680 bytes)
    ");
    let json = done(&["inspect", "--json", path.to_str().unwrap()]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["layers"].as_array().unwrap().len(), 47);
    assert_eq!(json["expert_bytes"], 91_653_931_008_u64);
    std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
}

#[test]
fn a_mixed_quant_model_gets_988_and_202_slots() {
    let path = model("mixed_quant.gguf");
    let text = path.to_str().unwrap();
    insta::assert_snapshot!(done(&["plan", text, "--mem", "480*18874368", "--requests", "4"]), @"
    pool  quantisation  layers  slots  of experts  slot bytes     pool bytes
    0             BF16       8    202       9.9 %  18,874,368  3,812,623,872
    1             Q4_K      39    988       9.9 %   5,308,416  5,244,716,544

    pool 0: blocks 1, 7, 13, 19, 25, 31, 37, 43
    pool 1: blocks 2-6, 8-12, 14-18, 20-24, 26-30, 32-36, 38-42, 44-47
    1,190 slots, 8.44 GiB (9,057,340,416 bytes, pads 3,072) of 9,059,696,640 bytes
    one token routes to 470 experts, 3.33 GiB (3,580,231,680 bytes)
    up to 20 requests decoded at once; 4 asked for
    ");
    let json = done(&["plan", text, "--mem", "9059696640", "--tail-pad", "0", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let slots: Vec<_> = json["pools"].as_array().unwrap().iter().map(|pool| pool["slots"].as_u64().unwrap()).collect();
    assert_eq!(slots, [202, 988]);
    assert_eq!((json["pad_bytes"].as_u64(), json["request_limit"].as_u64()), (Some(0), Some(20)));
    assert_eq!(json["total_bytes"], 202 * 18_874_368_u64 + 988 * 5_308_416);

    insta::assert_snapshot!(refused(&["plan", text, "--mem", "200MB"]), @"ftcache: PATH: the pools need 241830912 bytes for their requests; 200000000 are given");
    insta::assert_snapshot!(refused(&["plan", text, "--slots", "12033"]), @"ftcache: PATH: the pools can use 12032 slots; 12033 are given");
    insta::assert_snapshot!(refused(&["plan", text, "--scope", "per-layer", "--slots", "100", "--requests", "2"]), @"ftcache: PATH: the pools need 940 slots for their requests; 100 are given");
    insta::assert_snapshot!(refused(&["plan", text, "--mem", "12GiBs"]), @r#"
    error: invalid value '12GiBs' for '--mem <BYTES>': "12GiBs" is not a byte count such as 12GiB, 12GB or 9059696640

    For more information, try '--help'.
    "#);
    assert!(refused(&["plan", text]).contains("--mem <BYTES>"));
    assert!(refused(&["plan", text, "--mem", "1GiB", "--slots", "9"]).contains("cannot be used with"));
    std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
}

#[test]
fn models_without_experts_and_files_that_are_none_are_refused() {
    let path = model("dense.gguf");
    insta::assert_snapshot!(refused(&["inspect", path.to_str().unwrap()]), @"ftcache: PATH: has no mixture-of-experts layer (it has no key llama.expert_count)");
    std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    let trace = testdata("traces/synthetic-4l16e.ftr.zst");
    insta::assert_snapshot!(refused(&["plan", trace.to_str().unwrap(), "--mem", "1GiB"]), @r#"ftcache: PATH: starts with "(\xb5/\xfd", not with "GGUF""#);
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no/such.gguf");
    assert!(refused(&["inspect", path.to_str().unwrap()]).starts_with("ftcache: PATH: "));
}

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

    layer  steps  distinct  misses  hit rate  bytes moved
    0        256       512     142   72.27 %      583,904
    1        256       512     124   75.78 %      509,888
    2        256       512     134   73.83 %      551,008
    3        256       512     127   75.20 %      522,224

    hit rate 74.27 %: 1,521 hits and 527 misses in 1,024 steps
    checked 4,136 rows as they were used and 20 slots at the end: every byte right
    moved 2.07 MiB (2,167,024 bytes)
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
        assert_eq!(json["bytes"].as_u64(), json["misses"].as_u64().map(|misses| misses * (7 + 16)));
        json["misses"].as_u64().unwrap()
    };
    // Counted by a replay written apart from this one: a scan over a table of slots, in Python.
    assert_eq!((replay("unified"), replay("per-layer")), (420_440, 392_717));
}

#[test]
fn replays_that_cannot_be_are_refused() {
    let trace = testdata("traces/synthetic-4l16e.ftr.zst");
    let trace = trace.to_str().unwrap();
    insta::assert_snapshot!(refused(&["replay", trace, "--slots", "1"]), @"ftcache: PATH: the pools need 2 slots for their requests; 1 are given");
    insta::assert_snapshot!(refused(&["replay", trace, "--slots", "65"]), @"ftcache: PATH: the pools can use 64 slots; 65 are given");
    insta::assert_snapshot!(refused(&["replay", trace, "--slots", "7", "--scope", "per-layer"]), @"ftcache: PATH: the pools need 8 slots for their requests; 7 are given");
    let model = testdata("gguf/ggml_types.json");
    insta::assert_snapshot!(refused(&["replay", model.to_str().unwrap(), "--slots", "9"]), @"ftcache: PATH: starts with bytes 5b 0a 20 20: neither a JSON header nor zstd");
}
