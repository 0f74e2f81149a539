//! `inspect`, and what is no model.

use super::*;

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
fn models_without_experts_and_files_that_are_none_are_refused() {
    let path = model("dense.gguf");
    insta::assert_snapshot!(refused(&["inspect", path.to_str().unwrap()]), @"ftcache: PATH: has no mixture-of-experts layer (it has no key llama.expert_count)");
    std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    let trace = testdata("traces/synthetic-4l16e.ftr.zst");
    insta::assert_snapshot!(refused(&["plan", trace.to_str().unwrap(), "--mem", "1GiB"]), @r#"ftcache: PATH: starts with "(\xb5/\xfd", not with "GGUF""#);
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no/such.gguf");
    assert!(refused(&["inspect", path.to_str().unwrap()]).starts_with("ftcache: PATH: "));
}
