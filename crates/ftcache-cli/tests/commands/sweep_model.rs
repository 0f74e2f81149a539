//! `sweep` beside `plan`: its pools are those that `plan` makes, of bytes or of slots, and its misses those of a replay in
//! them.

use std::collections::BTreeMap;
use std::fs::File;

use ftcache_trace::{Events, Form, Optimum, Synthetic, Trace};
use serde_json::Value;

use super::split::halves;
use super::*;

/// LRU with ties by the router's order: of one stamp the first chosen stays longest. The misses of each step.
fn lru(steps: &[Vec<u32>], slots: usize) -> Vec<u64> {
    let mut recent: Vec<u32> = Vec::new();
    let misses_of = |step: &Vec<u32>| {
        let misses = step.iter().filter(|id| !recent.contains(id)).count() as u64;
        recent.retain(|id| !step.contains(id));
        recent.splice(0..0, step.iter().copied());
        recent.truncate(slots);
        misses
    };
    steps.iter().map(misses_of).collect()
}

struct Case {
    model: String,
    trace: Trace,
    /// The trace's file, and those of its halves.
    files: [String; 3],
    /// Bytes of an expert of each layer.
    expert_bytes: Vec<u64>,
    /// The first token of the second half.
    cut: u64,
}

impl Case {
    fn new(name: &str, expert_bytes: Vec<u64>, experts: u32, top_k: u32, tokens: u64) -> Self {
        let path = model(name);
        let layers = expert_bytes.len() as u32;
        let synthetic = Synthetic { tokens, layers, experts, top_k, requests: 3, seed: 5, ..Synthetic::default() };
        let trace = synthetic.trace().unwrap();
        let [first, second] = halves(&trace);
        let written = |name: &str, trace: &Trace| {
            let path = path.with_file_name(name);
            trace.write(File::create(&path).unwrap(), Form::Zstd).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let files = [written("all.ftr", &trace), written("first.ftr", &first), written("second.ftr", &second)];
        let cut = first.header().tokens;
        Self { model: path.to_str().unwrap().to_owned(), trace, files, expert_bytes, cut }
    }

    /// The layers and slots of each pool; none if the budget is too small.
    fn pools(&self, scope: &str, split_trace: Option<usize>, budget: [&str; 2]) -> Option<Vec<(Vec<u32>, usize)>> {
        let mut arguments = vec!["plan", &self.model, "--scope", scope, "--staging", "none", "--json"];
        arguments.extend(budget);
        arguments.extend(split_trace.iter().flat_map(|&half| ["--split-trace", self.files[half].as_str()]));
        let (text, success) = ftcache(&arguments);
        if !success {
            assert!(text.contains("the pools need at least"), "{text}");
            return None;
        }
        let json: Value = text.parse().unwrap();
        let mut blocks: Vec<u64> = numbers(&json["rank"]["blocks"]);
        blocks.sort_unstable();
        let pool = |pool: &Value| {
            let layer = |block: &u64| blocks.binary_search(block).unwrap() as u32;
            (numbers(&pool["blocks"]).iter().map(layer).collect(), pool["slots"].as_u64().unwrap() as usize)
        };
        Some(json["pools"].as_array().unwrap().iter().map(pool).collect())
    }

    /// Misses and their bytes, of the tokens from `first` on to `end`.
    fn replay(&self, pools: &[(Vec<u32>, usize)], first: u64, end: u64) -> (u64, u64) {
        let events = Events::of(&self.trace);
        let (mut count, mut bytes) = (0, 0);
        for (layers, slots) in pools {
            let events: Vec<_> = events.iter().filter(|event| layers.contains(&event.layer)).collect();
            let flat = |id: &u16, layer: u32| layer << 16 | u32::from(*id);
            let steps: Vec<Vec<u32>> =
                events.iter().map(|event| event.experts.iter().map(|id| flat(id, event.layer)).collect()).collect();
            let misses = events.iter().zip(lru(&steps, *slots));
            let misses: u64 =
                misses.filter(|(event, _)| (first..end).contains(&event.token)).map(|(_, misses)| misses).sum();
            count += misses;
            bytes += misses * self.expert_bytes[layers[0] as usize];
        }
        (count, bytes)
    }

    /// `more` says what sizes are: bytes of the model, or slots.
    fn check(&self, more: [&str; 2], sizes: &str, names: &[&str]) -> Value {
        let arguments =
            [&["sweep", "--eviction", "lru", &self.files[0], "--sizes", sizes, "--json"], more.as_slice()].concat();
        let json: Value = done(&arguments).parse().unwrap();
        let lines: BTreeMap<&str, &Value> =
            json["lines"].as_array().unwrap().iter().map(|line| (line["name"].as_str().unwrap(), line)).collect();
        assert_eq!(lines.keys().copied().collect::<Vec<_>>(), names);
        let tokens = self.trace.header().tokens;
        let mut unfit = 0;
        for (index, size) in json["sizes"].as_array().unwrap().iter().enumerate() {
            let slots = size["slots"].as_u64();
            let number = slots.unwrap_or_else(|| size["bytes"].as_u64().unwrap()).to_string();
            let budget = [if slots.is_some() { "--slots" } else { "--mem" }, &number];
            for (name, line) in &lines {
                let scope = line["scope"].as_str().unwrap();
                let equal = || self.pools(scope, None, budget);
                let wanted = match (*name, line["split"].as_str().unwrap()) {
                    ("optimum", _) => equal().map(|pools| self.optimum(&pools)),
                    (_, "equal") => equal().map(|pools| self.replay(&pools, 0, tokens)),
                    _ => self.pools(scope, Some(2), budget).zip(self.pools(scope, Some(1), budget)).map(
                        |(first, second)| {
                            let (first, second) =
                                (self.replay(&first, 0, self.cut), self.replay(&second, self.cut, tokens));
                            (first.0 + second.0, first.1 + second.1)
                        },
                    ),
                };
                let found = line["misses"][index].as_u64().zip(line["moved_bytes"][index].as_u64());
                assert_eq!(found, wanted, "{name} at {number}");
                unfit += u32::from(found.is_none());
            }
        }
        assert!(unfit > 0, "each size is large enough for every line");
        json
    }

    fn optimum(&self, pools: &[(Vec<u32>, usize)]) -> (u64, u64) {
        let events = Events::of(&self.trace);
        pools.iter().fold((0, 0), |(count, bytes), (layers, slots)| {
            let misses = Optimum::unified(&events.of_layers(layers)).misses(*slots).unwrap();
            (count + misses, bytes + misses * self.expert_bytes[layers[0] as usize])
        })
    }
}

fn numbers(json: &Value) -> Vec<u64> {
    json.as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect()
}

#[test]
fn layers_of_one_layout_are_one_pool_or_one_each() {
    let case = Case::new("fused_biases.gguf", vec![10_816; 3], 8, 4, 90);
    let names = ["optimum", "per-layer LRU", "per-layer LRU, curve", "unified LRU"];
    // The least, one byte less than three pools need, and all of it.
    let of_model = ["--model", &case.model];
    let json = case.check(of_model, "45056B,135167B,135168B,150kB,190000B,75%,100%", &names);
    assert_eq!((&json["pools_of"], &json["cut"]), (&"Fused Biases".into(), &30.into()));
    assert_eq!(json["sizes"][6], serde_json::json!({ "bytes": 264_960, "share": 1.0, "slots": null }));
    // Every expert is used, and missed once.
    assert_eq!(json["lines"][0]["misses"][6], 24);
    case.check(["--expert-bytes", "10816"], "4,11,12,13,16,19,22,24", &names);
}

/// Blocks 1, 7, 13 and so on are wider than the others: unified pools are two, and can be divided by curves too.
#[test]
fn layers_of_two_layouts_are_two_pools_or_one_each() {
    let bytes = |block: u64| if block % 6 == 1 { 18_874_368 } else { 5_308_416 };
    let case = Case::new("mixed_quant.gguf", (1..48).map(bytes).collect(), 256, 10, 60);
    let names = ["optimum", "per-layer LRU", "per-layer LRU, curve", "unified LRU", "unified LRU, curve"];
    case.check(["--model", &case.model], "1GiB,4GiB,9GiB", &names);
    // The fewest misses are not the fewest bytes.
    let text = done(&["sweep", "--eviction", "lru", &case.files[0], "--model", &case.model, "--sizes", "5GiB"]);
    insta::assert_snapshot!(text.lines().last().unwrap(), @"best at 5.00 GiB by bytes moved: per-layer LRU, with 181.83 misses and 1.31 GiB a token; it saves 4.17 misses (2.2 %) and 26.70 MiB (2.0 %) a token against unified LRU; the optimum has 129.42 misses and 955.54 MiB");
}

/// A narrow slot saves more misses a byte and about as many bytes, as the layers are alike. On the trace by which slots
/// are divided, fewer bytes are fetched than with equal slots.
#[test]
fn a_split_by_a_trace_fetches_fewer_bytes_of_it() {
    let bytes = |block: u64| if block % 6 == 1 { 18_874_368 } else { 5_308_416 };
    let case = Case::new("mixed_quant.gguf", (1..48).map(bytes).collect(), 256, 10, 60);
    let fetched = |scope: &str, split_trace| {
        let pools = |budget| case.pools(scope, split_trace, ["--mem", budget]).unwrap();
        ["4GiB", "9GiB"].map(|budget| case.replay(&pools(budget), 0, 60).1)
    };
    // The pools of two widths are as well divided equally at 4 GiB.
    assert_eq!(fetched("unified", None), [92_844_195_840, 71_990_968_320]);
    assert_eq!(fetched("unified", Some(0)), [92_844_195_840, 71_340_392_448]);
    assert_eq!(fetched("per-layer", None), [89_170_771_968, 70_559_465_472]);
    assert_eq!(fetched("per-layer", Some(0)), [88_304_910_336, 69_263_032_320]);
}

/// Whatever the trace's steps need: routes of a batch may be as many as the model has.
#[test]
fn every_pool_holds_what_the_requests_of_a_batch_can_need() {
    let case = Case::new("fused_biases.gguf", vec![10_816; 3], 8, 1, 90);
    let of_batch = |batch: &str| -> Value {
        let arguments = [
            "sweep",
            "--eviction",
            "lru",
            &case.files[0],
            "--model",
            &case.model,
            "--batch",
            batch,
            "--mem",
            "150000",
            "--json",
        ];
        done(&arguments).parse().unwrap()
    };
    let widest = ["1", "2"].map(|batch| of_batch(batch)["widest_step"].as_u64());
    assert_eq!(widest, [Some(1), Some(2)]);
    for (batch, fits) in [("1", true), ("2", false)] {
        let json = of_batch(batch);
        let size = json["sizes"].as_array().unwrap().iter().position(|size| size["bytes"] == 150_000).unwrap();
        let fit: Vec<bool> =
            json["lines"].as_array().unwrap().iter().map(|line| line["misses"][size].is_u64()).collect();
        assert_eq!(fit, [true, fits, fits, true], "batch {batch}");
    }
}

#[test]
fn a_table_of_a_models_pools() {
    let case = Case::new("scales.gguf", vec![13_848, 17_936], 8, 2, 90);
    let csv = case.files[0].replace("all.ftr", "lines.csv");
    let arguments = [
        "sweep",
        "--eviction",
        "lru",
        &case.files[0],
        "--model",
        &case.model,
        "--mem",
        "120000",
        "--sizes",
        "100%",
        "--csv",
        &csv,
    ];
    insta::assert_snapshot!(done(&arguments), @r#"
    synthetic: 90 tokens, 2 layers of 8 experts, top-2
    180 steps use 16 experts 360 times; the widest uses 2
    scales: blocks 0 of gate=NVFP4 up=NVFP4 down=NVFP4 gate.scale=F32 up.scale=F32 down.scale=F32 gate.input_scale=F32 up.input_scale=F32 down.input_scale=F32, 13,848 bytes an expert; blocks 1 of gate=NVFP4 up=NVFP4 down=Q8_0 gate.scale=F32 up.scale=F32 gate.input_scale=F32 up.input_scale=F32, 17,936 bytes an expert
    note: the trace is of "synthetic"; this model is "scales"
    LRU is counted up to ties within a step; `replay` has one size to the last miss
    curve: each half of the trace, cut at token 30, has its slots divided by the other's fetched bytes
    optimum: of the unified pools as they are divided equally; another division may miss less

    bytes       of experts  unified LRU  unified LRU, curve  per-layer LRU  per-layer LRU, curve  optimum
    117.19 KiB      46.6 %      24.72 %             25.28 %        24.72 %               25.28 %  17.50 %
    251.35 KiB     100.0 %       4.44 %              4.44 %         4.44 %                4.44 %   4.44 %

    best at 117.19 KiB: unified LRU, with 0.99 misses and 15.46 KiB a token; nothing else that a cache can be set to saves any; the optimum has 0.70 misses and 10.75 KiB
    "#);
    insta::assert_snapshot!(std::fs::read_to_string(csv).unwrap(), @"
    slots,share,bytes,lru_unified_misses,lru_unified_miss_rate,lru_unified_bytes,lru_unified_curve_misses,lru_unified_curve_miss_rate,lru_unified_curve_bytes,lru_per_layer_misses,lru_per_layer_miss_rate,lru_per_layer_bytes,lru_per_layer_curve_misses,lru_per_layer_curve_miss_rate,lru_per_layer_curve_bytes,optimum_unified_misses,optimum_unified_miss_rate,optimum_unified_bytes
    ,0.466229,120000,89,0.247222,1424608,91,0.252778,1485008,89,0.247222,1424608,91,0.252778,1485008,63,0.175000,990976
    ,1.000000,257384,16,0.044444,254272,16,0.044444,254272,16,0.044444,254272,16,0.044444,254272,16,0.044444,254272
    ");
}

#[test]
fn models_and_sizes_that_do_not_fit_a_trace_are_refused() {
    let case = Case::new("fused_biases.gguf", vec![10_816; 3], 8, 4, 9);
    let (trace, model) = (case.files[0].as_str(), case.model.as_str());
    let of = |more: &[&str]| {
        let text = refused(&[&["sweep", trace], more].concat());
        text.lines().next().unwrap().replace(&case.model, "MODEL")
    };
    let other = Case::new("scales.gguf", vec![13_848, 17_936], 8, 2, 9).model;
    let wide = Case::new("fused_biases.gguf", vec![10_816; 3], 8, 5, 9);
    let refusals = [
        of(&["--model", model, "--mem", "45055"]),
        of(&["--model", model, "--mem", "264961"]),
        of(&["--model", model, "--sizes", "50%,24"]),
        of(&["--model", model, "--sizes", "101%"]),
        of(&["--model", model, "--batch", "2", "--mem", "88319"]),
        of(&["--model", model, "--slots", "24"]),
        of(&["--model", model, "--expert-bytes", "24"]),
        of(&["--slots", "24", "--mem", "24"]),
        of(&["--mem", "1MiB"]),
        of(&["--mem", "1MiB", "--expert-bytes", "10816"]),
        of(&["--model", &other]),
        refused(&["sweep", &wide.files[0], "--model", &wide.model]).trim_end().to_owned(),
        of(&["--model", trace]),
    ];
    insta::assert_snapshot!(refusals.join("\n"), @r#"
    ftcache: PATH: a size of 45,055 bytes; the pools need at least 45,056
    ftcache: PATH: a size of 264,961 bytes; all experts and their pads have 264,960
    ftcache: PATH: a size of 24 slots; with --model it is bytes, such as 12GiB, or a share
    ftcache: PATH: a size of 101 % of the model's experts; 100 % are all
    ftcache: PATH: a size of 88,319 bytes; the pools need at least 88,320
    error: the argument '--model <FILE>' cannot be used with '--slots <N>'
    error: the argument '--model <FILE>' cannot be used with '--expert-bytes <BYTES>'
    error: the argument '--slots <N>' cannot be used with '--mem <BYTES>'
    ftcache: PATH: how many slots bytes are is not known: --expert-bytes or --model says it
    ftcache: PATH: a size of 1,048,576 bytes is 96 slots; the trace uses 23 experts
    ftcache: PATH: the trace has 3 layers of 8 experts; the model has 2 of 8
    ftcache: PATH: the trace has 5 routes a token and layer; the model has 4
    ftcache: PATH: starts with "(\xb5/\xfd", not with "GGUF"
    "#);
}
