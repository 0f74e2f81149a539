//! Routing that others recorded: what is read, and every text of what is not.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

use ftcache_trace::{ImportError, JsonlOptions, Phase, Segment, Trace, read_jsonl, read_route_csv};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

const SHARED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/traces");

/// Two of three layers have experts, top-2 of 8. A prompt of two tokens comes layer by layer, its last layer for the
/// last token only; then two tokens of decode, and a second turn.
const CSV: &str = "\
# route_trace v1
# model=/models/my toy.gguf arch=toy n_layer=3 n_expert=8 n_expert_used=2
# layer=0 expert_bytes=100 dense_bytes=7
# layer=1 expert_bytes=0 dense_bytes=9
# layer=2 expert_bytes=300 dense_bytes=7
turn,phase,step,layer,slot,expert,weight
0,0,0,0,0,5,0.6
0,0,0,0,1,2,0.4
0,0,1,0,0,0,0.6
0,0,1,0,1,7,0.4
0,0,1,2,0,3,0.6
0,0,1,2,1,1,0.4
0,1,2,0,0,6,0.6
0,1,2,0,1,5,0.4
0,1,2,2,0,1,0.6
0,1,2,2,1,3,0.4
1,0,0,0,0,4,0.6
1,0,0,0,1,1,0.4
";

fn csv(text: &str) -> Result<Trace, ImportError> {
    read_route_csv(text.as_bytes())
}

fn jsonl(text: &str) -> Result<Trace, ImportError> {
    read_jsonl(text.as_bytes(), &JsonlOptions::default())
}

/// The cells of a trace, `[token][layer]`.
fn cells(trace: &Trace) -> Vec<Vec<Option<&[u16]>>> {
    let shape = trace.header().shape();
    let layers = |token| (0..shape.layers as usize).map(move |layer| trace.cell(token, layer)).collect();
    (0..shape.tokens as usize).map(layers).collect()
}

#[test]
fn a_route_csv_becomes_a_trace() {
    let trace = csv(CSV).unwrap();
    let header = trace.header();
    assert_eq!((header.model.as_str(), header.experts, header.top_k), ("my toy", 8, 2));
    assert_eq!(
        (header.expert_bytes.as_deref(), header.layer_numbers.as_deref()),
        (Some(&[100, 300][..]), Some(&[0, 2][..]))
    );
    let segments = [
        Segment::new("turn-0-prefill", Phase::Prefill, 0, 2),
        Segment::new("turn-0-decode", Phase::Decode, 2, 1),
        Segment::new("turn-1-prefill", Phase::Prefill, 3, 1),
    ];
    assert_eq!(header.segments, segments);
    let wanted: [[Option<&[u16]>; 2]; 4] =
        [[Some(&[5, 2]), None], [Some(&[0, 7]), Some(&[3, 1])], [Some(&[6, 5]), Some(&[1, 3])], [Some(&[4, 1]), None]];
    assert_eq!(cells(&trace), wanted);
    assert_eq!(header.absent_cells, 2);

    // Under zstd, with the line ends of another system, without the last one, and with columns elsewhere.
    let compressed = compress_to_vec(CSV.as_bytes(), CompressionLevel::Fastest);
    assert_eq!(read_route_csv(compressed.as_slice()).unwrap(), trace);
    assert_eq!(csv(CSV.replace('\n', "\r\n").trim_end()).unwrap(), trace);
    let turned: String = CSV
        .lines()
        .map(|line| match line.starts_with('#') {
            true => format!("{line}\n"),
            false => line.rsplit(',').collect::<Vec<_>>().join(",") + "\n",
        })
        .collect();
    assert_eq!(csv(&turned).unwrap(), trace);
}

#[test]
fn recorded_route_csvs_are_their_ftr_files() {
    if !Path::new(SHARED).exists() {
        writeln!(io::stderr(), "skipped, no folder shared/traces: recorded_route_csvs_are_their_ftr_files").unwrap();
        return;
    }
    for name in ["bigmoe-gemma", "bigmoe-qwen"] {
        let open = |ending| File::open(Path::new(SHARED).join(format!("{name}.{ending}"))).unwrap();
        let imported = read_route_csv(open("route.csv.zst")).unwrap_or_else(|error| panic!("{name}: {error}"));
        let recorded = Trace::read(open("ftr.zst")).unwrap();
        assert!(imported.ids() == recorded.ids(), "{name}");
        let (found, wanted) = (imported.header(), recorded.header());
        assert_eq!(found.shape(), wanted.shape(), "{name}");
        assert_eq!(
            (&found.expert_bytes, &found.layer_numbers),
            (&wanted.expert_bytes, &wanted.layer_numbers),
            "{name}"
        );
        let runs = |segments: &[Segment]| -> Vec<(u64, u64, Phase)> {
            segments.iter().map(|segment| (segment.start, segment.tokens, segment.phase)).collect()
        };
        assert_eq!(runs(&found.segments), runs(&wanted.segments), "{name}");
    }
}

#[test]
fn json_lines_become_a_trace() {
    let by_cell = r#"{"experts": 8, "model": "toy", "expert_bytes": [100, 300]}
{"token": 0, "layer": 0, "topk": [5, 2], "request": "a", "phase": "prefill"}
{"token": 1, "layer": 0, "topk": [0, 7], "request": "a", "phase": "prefill"}
{"token": 1, "layer": 1, "topk": [3, 1], "request": "a", "phase": "prefill", "weights": [0.6, 0.4]}

{"token": 2, "layer": 0, "topk": [6, 5], "request": "a"}
{"token": 2, "layer": 1, "topk": [1, 3], "request": "a"}
{"token": 0, "layer": 0, "topk": [4, 1], "request": 7}
"#;
    let trace = jsonl(by_cell).unwrap();
    let header = trace.header();
    assert_eq!((header.model.as_str(), header.layers, header.top_k), ("toy", 2, 2));
    assert_eq!(header.expert_bytes.as_deref(), Some(&[100, 300][..]));
    let segments = [
        Segment::new("a-prefill", Phase::Prefill, 0, 2),
        Segment::new("a-decode", Phase::Decode, 2, 1),
        Segment::new("7-decode", Phase::Decode, 3, 1),
    ];
    assert_eq!(header.segments, segments);
    assert_eq!(trace.ids(), csv(CSV).unwrap().ids());

    // A line a token, under zstd, the file's numbers going on; sizes from the caller, names as another engine has them.
    let by_token = r#"{"type": "meta", "model_id": "toy"}
{"token_idx": 0, "topk_ids": [[5, 2], []], "req_id": "a", "phase": "prefill"}
{"token_idx": 1, "topk_ids": [[0, 7], [3, 1]], "req_id": "a", "phase": "prefill"}
{"token_idx": 2, "topk_ids": [[6, 5], [1, 3]], "req_id": "a"}
{"token_idx": 3, "topk_ids": [[4, 1], null], "req_id": "7"}"#;
    let compressed = compress_to_vec(by_token.as_bytes(), CompressionLevel::Fastest);
    let options = JsonlOptions { experts: Some(8), layers: Some(2), ..JsonlOptions::default() };
    let other = read_jsonl(compressed.as_slice(), &options).unwrap();
    assert_eq!((other.ids(), &other.header().segments), (trace.ids(), &header.segments));
    assert_eq!(other.header().model, "toy");

    // A token of which nothing is known is a token still.
    let empty = b"{\"token\": 0, \"topk\": [null, [7]]}\n{\"token\": 1, \"topk\": [[], null]}";
    let empty = read_jsonl(&empty[..], &options).unwrap();
    assert_eq!(cells(&empty), [[None, Some(&[7][..])], [None, None]]);

    // Nothing but routes: one segment of the caller's phase, and layers that no line had.
    let options = JsonlOptions { layers: Some(3), phase: Phase::Mixed, ..options };
    let bare = read_jsonl(&br#"{"token": 0, "layer": 1, "topk": [7]}"#[..], &options).unwrap();
    assert_eq!(bare.header().segments, [Segment::new("mixed", Phase::Mixed, 0, 1)]);
    assert_eq!(cells(&bare), [[None, Some(&[7][..]), None]]);
}

fn listing(results: impl IntoIterator<Item = Result<Trace, ImportError>>) -> String {
    let mut listing = String::new();
    for result in results {
        let text = result.expect_err("refused").to_string();
        assert!(!text.contains('\n'), "{text}");
        writeln!(listing, "{text}").unwrap();
    }
    listing
}

#[test]
fn errors_of_route_csvs() {
    let with = |old: &str, new: &str| {
        assert!(CSV.contains(old), "{old}");
        csv(&CSV.replacen(old, new, 1))
    };
    let errors = [
        csv(""),
        csv("turn,phase,step\n"),
        csv("# route_trace v1\n"),
        with("n_expert=8 ", ""),
        with("n_layer=3 ", ""),
        with("n_layer=3", "n_layer=three"),
        with("n_layer=3", "n_layer=4294967295"),
        with("n_expert=8", "n_expert=0"),
        with("n_expert_used=2", "n_expert_used=9"),
        with("# layer=2 expert_bytes=300", "# expert_bytes=300"),
        with("slot,expert", "slot,id"),
        with("0,0,0,0,1,2,0.4", "0,0,0,0,1,2"),
        with("0,0,0,0,1,2,0.4", "0,0,0,0,1,-2,0.4"),
        with("0,0,0,0,1,2,0.4", "0,0,0,0,1,8,0.4"),
        with("0,0,0,0,1,2,0.4", "0,0,0,0,1,5,0.4"),
        with("0,0,0,0,1,2,0.4", "0,0,0,0,2,2,0.4"),
        with("0,0,0,0,1,2,0.4\n", ""),
        with("0,0,0,0,1,2,0.4", "0,1,0,0,1,2,0.4"),
        with("0,0,0,0,1,2,0.4", "0,0,0,0,1,2,0.4\n0,0,0,0,2,3,0.4"),
        with("0,0,1,2,0,3,0.6\n0,0,1,2,1,1,0.4", "0,0,1,0,0,3,0.6\n0,0,1,0,1,1,0.4"),
        with("0,0,1,2,0,3,0.6\n0,0,1,2,1,1,0.4", "0,0,0,0,0,3,0.6\n0,0,0,0,1,1,0.4"),
        with("0,0,1,2,0,3,0.6\n0,0,1,2,1,1,0.4", "0,0,3,2,0,3,0.6\n0,0,3,2,1,1,0.4"),
        with("0,0,1,2,0,3,0.6\n0,0,1,2,1,1,0.4", "0,0,1,1,0,3,0.6\n0,0,1,1,1,1,0.4"),
        with("0,0,1,2,0,3,0.6\n0,0,1,2,1,1,0.4", "0,0,1,3,0,3,0.6\n0,0,1,3,1,1,0.4"),
        with("0,1,2,0,0,6,0.6", "0,1,4,0,0,6,0.6"),
        with("0,1,2,2,0,1,0.6\n0,1,2,2,1,3,0.4", "0,1,1,2,0,1,0.6\n0,1,1,2,1,3,0.4"),
        with("0,1,2,2,0,1,0.6\n0,1,2,2,1,3,0.4", "0,0,1,2,0,1,0.6\n0,0,1,2,1,3,0.4"),
        with("0,1,2,0,0,6,0.6", "0,2,2,0,0,6,0.6"),
        with("1,0,0,0,0,4,0.6", "1,0,1,0,0,4,0.6"),
        read_route_csv(&compress_to_vec(CSV.as_bytes(), CompressionLevel::Fastest)[..40]),
    ];
    insta::assert_snapshot!(listing(errors), @r##"
    no line has routes; at least 1 is needed
    line 1: "# route_trace v1" is read here; found "turn,phase,step"
    no line has routes; at least 1 is needed
    line 6: "n_expert" is missing: it must stand before the first routes
    line 6: "n_layer" is missing: it must stand before the first routes
    line 2: "n_layer" is "three"; a whole number is read here
    line 6: "n_layer" is 4294967295; at most 65536 are read
    line 6: "n_expert" is 0; at least 1 is needed
    line 6: "n_expert_used" is 9; at most 8 are read
    line 5: "layer" is missing
    line 6: "expert" is missing
    line 8: 6 fields; the columns are 7
    line 8: "expert" is "-2"; a whole number is read here
    line 8: token 0, layer 0: expert 8; there are 8 experts
    line 8: token 0, layer 0: expert 5 both at place 0 and at place 1
    line 8: token 0, layer 0: slot 2; 1 expected
    line 7: token 0, layer 0: 1 ids; 2 expected
    line 7: token 0, layer 0: 1 ids; 2 expected
    line 9: token 0, layer 0: 3 ids; 2 expected
    line 12: token 1, layer 0 a second time; the first was on line 10
    line 12: token 0, layer 0 after token 1; tokens ascend in a layer
    line 12: token 3, layer 2: token 2 is next
    line 11: token 1, layer 1: there are 2 layers with experts
    line 11: token 1, layer 3: there are 2 layers with experts
    line 13: token 4 starts "turn-0-decode"; 0, 2 (its request's next) or 2 (the file's next) is read here
    line 16: token 1, layer 2 after token 2; tokens ascend in a layer
    line 15: turn 0, phase 0 after turn 0, phase 1
    line 13: "phase" is 2; 0 (prefill) and 1 (decode) are read here
    line 17: token 1 starts "turn-1-prefill"; 0, 0 (its request's next) or 3 (the file's next) is read here
    the zstd data end inside a frame at byte 40; read up to line 1
    "##);
}

#[test]
fn errors_of_json_lines() {
    let after =
        |line: &str| jsonl(&format!("{{\"experts\": 8}}\n{{\"token\": 0, \"layer\": 0, \"topk\": [1, 2]}}\n{line}\n"));
    let given = JsonlOptions { experts: Some(8), layers: Some(2), ..JsonlOptions::default() };
    let errors = [
        jsonl(""),
        jsonl("{\"experts\": 8}\n"),
        jsonl("{\"token\": 0, \"layer\": 0, \"topk\": [1, 2]}"),
        jsonl("{\"experts\": 70000}\n{\"token\": 0, \"layer\": 0, \"topk\": [1, 2]}"),
        jsonl("{\"experts\": 8, \"top_k\": 3}\n{\"token\": 0, \"layer\": 0, \"topk\": [1, 2]}"),
        jsonl("{\"experts\": 8, \"expert_bytes\": [1, 1]}\n{\"token\": 0, \"layer\": 0, \"topk\": [1, 2]}"),
        read_jsonl(&b"{\"experts\": 9}"[..], &given),
        read_jsonl(&b"{\"token\": 0, \"layer\": 2, \"topk\": [1, 2]}"[..], &given),
        read_jsonl(&b"{\"token\": 0, \"topk\": [[1, 2]]}"[..], &given),
        after("token 1"),
        after("{\"token\": -1}"),
        after("{\"token\": 1}"),
        after("{\"layer\": 0, \"topk\": [1, 2]}"),
        after("{\"token\": 1, \"topk\": [1, 2]}"),
        after("{\"token\": 1, \"topk\": 5}"),
        after("{\"token\": 1, \"layer\": 0, \"topk\": [1, 0.5]}"),
        after("{\"token\": 1, \"layer\": 0, \"topk\": [1, 8]}"),
        after("{\"token\": 1, \"layer\": 0, \"topk\": [-1, 7]}"),
        after("{\"token\": 1, \"layer\": 0, \"topk\": [3, 3]}"),
        after("{\"token\": 1, \"layer\": 0, \"topk\": [1, 2, 3]}"),
        after("{\"token\": 1, \"layer\": 0, \"topk\": []}"),
        after("{\"token\": 1, \"layer\": 5000, \"topk\": [1, 2]}"),
        after("{\"token\": 0, \"layer\": 0, \"topk\": [1, 2]}"),
        after("{\"token\": 2, \"layer\": 0, \"topk\": [1, 2]}"),
        after("{\"token\": 1, \"layer\": 0, \"topk\": [1, 2]}\n{\"token\": 0, \"layer\": 0, \"topk\": [1, 2]}"),
        after("{\"token\": 1, \"layer\": 2, \"topk\": [1, 2]}\n{\"token\": 1, \"topk\": [[1, 2], [3, 4]]}"),
        after("{\"token\": 1, \"layer\": 0, \"topk\": [1, 2], \"phase\": \"warmup\"}"),
        after("{\"token\": 1, \"layer\": 0, \"topk\": [1, 2], \"request\": [1]}"),
        after("{\"token\": 2, \"layer\": 0, \"topk\": [1, 2], \"request\": \"b\"}"),
        after(
            "{\"token\": 0, \"layer\": 0, \"topk\": [1, 2], \"request\": 3}\n{\"token\": 0, \"layer\": 0, \"topk\": [1, 2], \
             \"request\": 4}\n{\"token\": 1, \"layer\": 0, \"topk\": [1, 2], \"request\": 3}",
        ),
        jsonl(&"x".repeat(17 << 20)),
    ];
    insta::assert_snapshot!(listing(errors), @r#"
    no line has routes; at least 1 is needed
    no line has routes; at least 1 is needed
    line 1: "experts" is missing: it must stand before the first routes
    line 2: "experts" is 70000; at most 65535 are read
    line 2: token 0, layer 0: 2 ids; 3 expected
    "expert_bytes" has 2 entries; there are 1 layers
    line 1: "experts" is 9; 8 was given
    line 1: token 0, layer 2: there are 2 layers with experts
    line 1: token 0: 1 layers; 2 expected
    line 3: expected ident at column 2
    line 3: invalid value: integer `-1`, expected u64 at column 12
    line 3: "topk" is missing
    line 3: "token" is missing
    line 3: "layer" is missing
    line 3: "topk" is neither a list of ids nor, without a "layer", a list of such lists
    line 3: "topk" is neither a list of ids nor, without a "layer", a list of such lists
    line 3: token 1, layer 0: expert 8; there are 8 experts
    line 3: token 1, layer 0: expert -1; there are 8 experts
    line 3: token 1, layer 0: expert 3 both at place 0 and at place 1
    line 3: token 1, layer 0: 3 ids; 2 expected
    line 3: token 1, layer 0: 0 ids; 2 expected
    line 3: token 1, layer 5000: without "layers" in the first line, layers below 4096 are read
    line 3: token 0, layer 0 a second time; the first was on line 2
    line 3: token 2, layer 0: token 1 is next
    line 4: token 0, layer 0 after token 1; tokens ascend in a layer
    line 4: token 1: 2 layers; 3 expected
    line 3: unknown variant `warmup`, expected one of `prefill`, `decode`, `decode-like`, `mixed` at column 58
    line 3: a request is a text or a whole number at column 56
    line 3: token 2 starts "b-decode"; 0, 0 (its request's next) or 1 (the file's next) is read here
    line 5: request "3" again; its lines must stand together
    line 1 has over 16777216 bytes; at most 16777216 are read
    "#);
}

/// Bytes changed, taken out and put in at random: a trace or an error that names a line, never a panic.
#[test]
fn any_bytes_are_a_trace_or_an_error() {
    let jsonl = "{\"experts\": 8, \"layers\": 2, \"top_k\": 2, \"expert_bytes\": [1, 2]}\n\
        {\"token\": 0, \"layer\": 0, \"topk\": [5, 2], \"request\": 1, \"phase\": \"prefill\"}\n\
        {\"token\": 0, \"layer\": 1, \"topk\": [0, 2], \"request\": 1, \"phase\": \"prefill\"}\n\
        {\"token\": 1, \"topk\": [[5, 3], null], \"request\": \"b\"}\n";
    let given = JsonlOptions { experts: Some(8), ..JsonlOptions::default() };
    let mut state = 1_u64;
    let mut draw = |bound: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % bound
    };
    let mut read = [0; 2];
    for round in 0..40_000 {
        let is_csv = round % 2 == 0;
        let mut bytes = if is_csv { CSV } else { jsonl }.as_bytes().to_vec();
        for _ in 0..=draw(3) {
            let place = draw(bytes.len());
            match draw(3) {
                0 => drop(bytes.remove(place)),
                1 => bytes.insert(place, b"0129-,[]{}\"\n= \xff"[draw(15)]),
                _ => bytes[place] = b"0129-,[]{}\"\n= \xff"[draw(15)],
            }
        }
        let result = if is_csv { read_route_csv(bytes.as_slice()) } else { read_jsonl(bytes.as_slice(), &given) };
        match result {
            Ok(trace) => {
                read[usize::from(is_csv)] += 1;
                assert_eq!(Trace::new(trace.header().clone(), trace.ids().to_vec()).unwrap(), trace);
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    // A weight or a name may be anything, so that some are still read.
    assert!(read.iter().all(|&count| count > 100), "{read:?}");
}
