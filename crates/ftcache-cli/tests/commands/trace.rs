//! `trace`: what routing is like, other forms of it, and made-up ones.

use super::*;

const CSV: &str = "\
# route_trace v1
# model=/models/toy.gguf arch=toy n_layer=2 n_expert=8 n_expert_used=2
# layer=0 expert_bytes=100
# layer=1 expert_bytes=300
turn,phase,step,layer,slot,expert,weight
0,0,0,0,0,5,0.6
0,0,0,0,1,2,0.4
0,0,1,0,0,5,0.6
0,0,1,0,1,7,0.4
0,0,1,1,0,3,0.6
0,0,1,1,1,1,0.4
0,1,2,0,0,7,0.6
0,1,2,0,1,5,0.4
0,1,2,1,0,1,0.6
0,1,2,1,1,3,0.4
";

/// The same without sizes, and with phases and a request.
const JSONL: &str = r#"{"token": 0, "topk": [[5, 2], []], "request": 1, "phase": "prefill"}
{"token": 1, "topk": [[5, 7], [3, 1]], "request": 1, "phase": "prefill"}
{"token": 2, "topk": [[7, 5], [1, 3]], "request": 1}
"#;

/// A file of a new folder.
fn file(name: &str, text: &str) -> String {
    let path = folder("trace").join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn info_says_what_routing_is_like() {
    let trace = testdata("traces/synthetic-4l16e.ftr.zst");
    insta::assert_snapshot!(done(&["trace", "info", trace.to_str().unwrap()]), @"
    synthetic: 256 tokens, 4 layers of 16 experts, top-2
    256 tokens decode in 4 segments

    layer  cells  experts  hottest 10 %  entropy  overlap  again after  90 % within  99 %  longest
    0        256       16       29.10 %    0.921  60.52 %            1           17    80      131
    1        256       16       39.26 %    0.872  64.48 %            1           18    63      185
    2        256       16       31.64 %    0.927  62.70 %            1           18    64      156
    3        256       16       33.59 %    0.887  61.11 %            1           15    84      135

    64 of 64 experts are used
    a layer's hottest tenth of experts has 33.40 % of its routes, entropy 0.902
    of a token's experts the token before used 62.20 %
    an expert is used again after 1 token (median of 1,984 uses), 90 % within 17, 99 % within 75, the longest 185
    for 90 % hits per-layer LRU needs 43 slots, unified LRU 42, an optimal cache 28; no cache has more than 96.88 %
    digest c0e468c86089c9f9
    ");
    insta::assert_snapshot!(done(&["trace", "info", &file("toy.csv", CSV)]), @"
    toy: 3 tokens, 2 layers of 8 experts, top-2
    1 of 6 cells absent
    2 tokens prefill in 1 segment, 1 token decode in 1 segment

    layer  cells  experts  hottest 10 %  entropy  overlap  again after  90 % within  99 %  longest
    0          3        3       50.00 %    0.486  50.00 %            1            1     1        1
    1          2        2       50.00 %    0.333        -            1            1     1        1

    5 of 16 experts are used
    a layer's hottest tenth of experts has 50.00 % of its routes, entropy 0.410
    of a token's experts the token before used 50.00 %
    an expert is used again after 1 token (median of 5 uses), 90 % within 1, 99 % within 1, the longest 1
    no cache has 90 % hits, and none more than 50.00 %: 5 of 10 uses are the first of their expert
    digest 3910f30f5091028e
    ");
}

#[test]
fn slots_have_bytes_where_an_experts_are_known() {
    // Each layer uses one expert nine times: with one pool, two slots hold both, and 16 of 18 uses hit at most.
    let head = "0,0,STEP,0,0,5,1\n0,0,STEP,1,0,5,1\n";
    let of_tokens = |tokens: usize| {
        let lines: String = (0..tokens).map(|token| head.replace("STEP", &token.to_string())).collect();
        let (before, _) = CSV.split_once("0,0,0,0,0,5").unwrap();
        file("walk.csv", &(before.replace("n_expert_used=2", "n_expert_used=1") + &lines))
    };
    let needs = |tokens| {
        let text = done(&["trace", "info", &of_tokens(tokens)]);
        text.lines().find(|line| line.contains("no cache has")).unwrap().to_owned()
    };
    insta::assert_snapshot!([9, 10].map(needs).join("\n"), @"
    no cache has 90 % hits, and none more than 88.89 %: 2 of 18 uses are the first of their expert
    for 90 % hits per-layer LRU needs 2 slots (400 B), unified LRU 2 (400 B), an optimal cache 2 (400 B); no cache has more than 90.00 %
    ");
}

#[test]
fn info_in_json() {
    let mut json: serde_json::Value =
        serde_json::from_str(&done(&["trace", "info", "--json", &file("toy.csv", CSV)])).unwrap();
    // Logarithms differ in their last place between systems.
    for pointer in ["/entropy", "/by_layer/0/entropy", "/by_layer/1/entropy"] {
        let entropy = json.pointer_mut(pointer).unwrap();
        *entropy = format!("{:.6}", entropy.as_f64().unwrap()).into();
    }
    insta::assert_snapshot!(format!("{json:#}"), @r#"
    {
      "absent_cells": 1,
      "by_layer": [
        {
          "absent_cells": 0,
          "cells": 3,
          "entropy": "0.486383",
          "experts_used": 3,
          "hottest_tenth_share": 0.5,
          "layer": 0,
          "next_token_overlap": 0.5,
          "reuse_distance": {
            "max": 1,
            "p50": 1,
            "p90": 1,
            "p99": 1,
            "uses": 3
          }
        },
        {
          "absent_cells": 1,
          "cells": 2,
          "entropy": "0.333333",
          "experts_used": 2,
          "hottest_tenth_share": 0.5,
          "layer": 1,
          "next_token_overlap": null,
          "reuse_distance": {
            "max": 1,
            "p50": 1,
            "p90": 1,
            "p99": 1,
            "uses": 2
          }
        }
      ],
      "digest": "3910f30f5091028e",
      "entropy": "0.409858",
      "experts": 8,
      "experts_used": 5,
      "hottest_tenth_share": 0.5,
      "layers": 2,
      "model": "toy",
      "next_token_overlap": 0.5,
      "phases": [
        {
          "phase": "prefill",
          "segments": 1,
          "tokens": 2
        },
        {
          "phase": "decode",
          "segments": 1,
          "tokens": 1
        }
      ],
      "reuse_distance": {
        "max": 1,
        "p50": 1,
        "p90": 1,
        "p99": 1,
        "uses": 5
      },
      "segments": [
        {
          "name": "turn-0-prefill",
          "phase": "prefill",
          "start": 0,
          "tokens": 2
        },
        {
          "name": "turn-0-decode",
          "phase": "decode",
          "start": 2,
          "tokens": 1
        }
      ],
      "slots_for_hits": {
        "hit_rate": 0.9,
        "most_hit_rate": 0.5,
        "optimal": null,
        "per_layer": null,
        "unified": null
      },
      "tokens": 3,
      "top_k": 2
    }
    "#);
}

/// Counted by a program of another language too.
#[test]
fn a_trained_model_is_counted_as_elsewhere() {
    let trace = testdata("traces/tinymoe-8l64e.ftr.zst");
    let json: serde_json::Value =
        serde_json::from_str(&done(&["trace", "info", trace.to_str().unwrap(), "--json"])).unwrap();
    assert_eq!(json["digest"], "b99eb48344de60e1");
    let reuse = &json["reuse_distance"];
    assert_eq!(
        [&reuse["uses"], &reuse["p50"], &reuse["p90"], &reuse["p99"], &reuse["max"]],
        [896_513, 3, 21, 107, 9_926]
    );
    let near =
        |key: &str, wanted: f64| assert!((json[key].as_f64().unwrap() - wanted).abs() < 1e-9, "{key}: {}", json[key]);
    near("hottest_tenth_share", 0.186_661_672_374);
    near("entropy", 0.972_363_574_435);
    near("next_token_overlap", 0.273_413_378_308);
    let needs = &json["slots_for_hits"];
    assert_eq!([&needs["per_layer"], &needs["unified"], &needs["optimal"]], [310, 311, 217]);
}

#[test]
fn other_forms_become_ftr_files() {
    let (csv, jsonl) = (file("toy.csv", CSV), file("log.jsonl", JSONL));
    let folder = folder("trace");
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let (plain, packed, again) = (path("a.ftr"), path("b.ftr.zst"), path("c.ftr"));
    let text = done(&["trace", "convert", &csv, &plain]);
    insta::assert_snapshot!(text, @"
    toy: 3 tokens, 2 layers of 8 experts, top-2
    1 of 6 cells absent
    digest 3910f30f5091028e
    ");
    assert_eq!(done(&["trace", "convert", &jsonl, &packed, "--experts", "8", "--model", "toy"]), text);
    assert_eq!(done(&["trace", "convert", &plain, &packed]), text);
    assert_eq!(done(&["trace", "convert", &packed, &again]), text);
    assert_eq!(std::fs::read(&again).unwrap(), std::fs::read(&plain).unwrap());
    assert_eq!(std::fs::read(&packed).unwrap()[..4], [0x28, 0xb5, 0x2f, 0xfd]);
    // By another name, what it is has to be said.
    let log = file("routes.log", JSONL);
    assert_eq!(done(&["trace", "convert", &log, &again, "--from", "jsonl", "--experts", "8", "--model", "toy"]), text);
    let info = |trace: &str| -> serde_json::Value {
        serde_json::from_str(&done(&["trace", "info", "--json", trace])).unwrap()
    };
    assert_eq!(info(&csv), info(&plain));
}

#[test]
fn made_up_routing_is_that_of_its_parameters() {
    let path = folder("trace").join("made-up.ftr.zst");
    let path = path.to_str().unwrap();
    let text = done(&["trace", "synth", path, "--tokens", "256", "--requests", "4", "--drift", "64"]);
    insta::assert_snapshot!(text, @"
    synthetic: 256 tokens, 4 layers of 16 experts, top-2
    digest c0e468c86089c9f9
    ");
    // The file that ships was made by the library with the same.
    assert_eq!(std::fs::read(path).unwrap(), std::fs::read(testdata("traces/synthetic-4l16e.ftr.zst")).unwrap());
    let other = "--tokens 50 --layers 3 --experts 32 --top-k 4 --requests 2 --skew 0 --locality 0.25 --seed 9";
    let other: Vec<&str> = ["trace", "synth", path].into_iter().chain(other.split(' ')).collect();
    let text = done(&other);
    insta::assert_snapshot!(text, @"
    synthetic: 50 tokens, 3 layers of 32 experts, top-4
    digest 83b7f7a960c646a5
    ");
    let json: serde_json::Value = serde_json::from_str(&done(&["trace", "info", "--json", path])).unwrap();
    assert_eq!(
        json["segments"][1],
        serde_json::json!({ "name": "request-1", "phase": "decode", "start": 25, "tokens": 25 })
    );
}

#[test]
fn what_cannot_be_read_or_written_is_refused() {
    let csv = file("toy.csv", CSV);
    let wrong = file("wrong.csv", &CSV.replace("0,0,1,1,1,1,0.4", "0,0,1,1,1,8,0.4"));
    let jsonl = file("log.jsonl", JSONL);
    let target = folder("trace").join("out.ftr");
    let target = target.to_str().unwrap();
    let named = target.replace("out.ftr", "out.csv");
    let missing = target.replace("out.ftr", "missing/out.ftr");
    let refusals = [
        refused(&["trace", "info", &missing]),
        refused(&["trace", "info", &csv, "--from", "ftr"]),
        refused(&["trace", "info", &wrong]),
        refused(&["trace", "info", &jsonl]),
        refused(&["trace", "info", &jsonl, "--experts", "5"]),
        refused(&["trace", "info", &csv, "--experts", "8"]),
        refused(&["trace", "convert", &csv, &named]),
        refused(&["trace", "convert", &csv, &missing]),
        refused(&["trace", "convert", &wrong, target]),
        refused(&["trace", "synth", target, "--tokens", "0"]),
        refused(&["trace", "synth", target, "--tokens", "5", "--skew", "-1"]),
        refused(&["trace", "synth", target, "--tokens", "5", "--top-k", "17"]),
        refused(&["trace", "synth", target, "--tokens", "18446744073709551615"]),
        refused(&["trace", "synth", &named, "--tokens", "5"]),
    ];
    insta::assert_snapshot!(refusals.concat(), @r#"
    ftcache: PATH: No such file or directory (os error 2)
    ftcache: PATH: starts with bytes 23 20 72 6f: neither a JSON header nor zstd
    ftcache: PATH: line 11: token 1, layer 1: expert 8; there are 8 experts
    ftcache: PATH: line 1: "experts" is missing: it must stand before the first routes
    ftcache: PATH: line 1: token 0, layer 0: expert 5; there are 5 experts
    ftcache: PATH: --experts is for JSON lines; a file of this form says it itself
    ftcache: PATH: a trace is written as .ftr or .ftr.zst
    ftcache: PATH: No such file or directory (os error 2)
    ftcache: PATH: line 11: token 1, layer 1: expert 8; there are 8 experts
    ftcache: PATH: "tokens" is 0; at least 1 is needed
    ftcache: PATH: "skew" is -1; it lies from 0 to 8
    ftcache: PATH: top-17 of 16 experts: top_k must be from 1 to the expert count
    ftcache: PATH: 18446744073709551615 tokens of 16 bytes are over 18446744073709551615 bytes
    ftcache: PATH: a trace is written as .ftr or .ftr.zst
    "#);
    assert!(!Path::new(target).exists(), "a refusal writes nothing");
}
