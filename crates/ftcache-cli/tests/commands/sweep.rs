//! `sweep`: lines counted from recorded routing, and the picture of them.

use ftcache_trace::{ABSENT, Form, Header, Phase, Segment, Shape, Trace};

use super::*;

/// A trace of one request, two layers of four experts, top-1.
fn by_hand(name: &str, ids: &[u16], expert_bytes: Option<Vec<u64>>) -> PathBuf {
    let shape = Shape { tokens: ids.len() as u64 / 2, layers: 2, top_k: 1, experts: 4 };
    let mut header = Header::new("R&D <small>", shape, vec![Segment::new("request", Phase::Decode, 0, shape.tokens)]);
    header.absent_cells = ids.iter().filter(|&&id| id == ABSENT).count() as u64;
    header.expert_bytes = expert_bytes;
    let path = folder("sweep").join(name);
    let trace = Trace::new(header, ids.to_vec()).unwrap().write(Vec::new(), Form::Plain).unwrap();
    std::fs::write(&path, trace).unwrap();
    path
}

/// Layer 0 uses 0 1 2 0 1 2, layer 1 uses 3 each time.
const SMALL: [u16; 12] = [0, 3, 1, 3, 2, 3, 0, 3, 1, 3, 2, 3];

/// Each tag is closed, nothing is open in text or in a value, and no name is taken for a tag.
fn check_tags(svg: &str) {
    let mut open = Vec::new();
    let mut parts = svg.split('<');
    assert_eq!(parts.next(), Some(""));
    for part in parts {
        let (tag, text) = part.split_once('>').unwrap_or_else(|| panic!("<{part} has no end"));
        assert!(!text.contains('>') && tag.matches('"').count() % 2 == 0, "<{part}");
        let entities = text.split('&').skip(1);
        entities.for_each(|part| assert!(["amp;", "lt;", "gt;"].iter().any(|name| part.starts_with(name)), "&{part}"));
        match tag.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name)),
            None if tag.ends_with('/') => {}
            None => open.extend(tag.split(' ').next()),
        }
    }
    assert!(open.is_empty(), "{open:?} are open");
}

#[test]
fn lines_of_a_trained_model() {
    let trace = testdata("traces/tinymoe-8l64e.ftr.zst");
    let csv = folder("sweep").join("lines.csv");
    let arguments =
        ["sweep", "--eviction", "lru", trace.to_str().unwrap(), "--sizes", "25%,50%", "--csv", csv.to_str().unwrap()];
    insta::assert_snapshot!(done(&arguments), @"
    tinymoe-13.7M (trained for this file; see README): 18,688 tokens, 8 layers of 64 experts, top-6
    149,504 steps use 511 experts 897,024 times; the widest uses 6
    16,384 of the tokens are prompts, and taken for steps of decode like the others
    LRU is counted up to ties within a step; `replay` has one size to the last miss
    curve: each half of the trace, cut at token 10,240, has its slots divided by the other's misses

    slots  of experts  unified LRU  per-layer LRU  per-layer LRU, curve  optimum
    128        25.0 %      46.82 %        43.50 %               43.49 %  22.87 %
    256        50.1 %      17.61 %        16.94 %               16.75 %   6.65 %

    best at 128 slots: per-layer LRU, curve, with 20.87 misses a token; it saves 1.60 misses (7.1 %) a token against unified LRU; the optimum has 10.98 misses
    ");
    // Misses of both LRU scopes were also counted with an ordered dict, in Python.
    insta::assert_snapshot!(std::fs::read_to_string(csv).unwrap(), @"
    slots,share,bytes,lru_unified_misses,lru_unified_miss_rate,lru_unified_bytes,lru_per_layer_misses,lru_per_layer_miss_rate,lru_per_layer_bytes,lru_per_layer_curve_misses,lru_per_layer_curve_miss_rate,lru_per_layer_curve_bytes,optimum_unified_misses,optimum_unified_miss_rate,optimum_unified_bytes
    128,0.250489,,419966,0.468177,,390207,0.435002,,390084,0.434865,,205168,0.228721,
    256,0.500978,,157993,0.176130,,151987,0.169435,,150294,0.167547,,59663,0.066512,
    ");
}

#[test]
fn a_pool_too_small_for_its_widest_step_has_no_rate() {
    let trace = testdata("traces/synthetic-4l16e.ftr.zst");
    let csv = folder("sweep").join("lines.csv");
    let arguments = [
        "sweep",
        "--eviction",
        "lru",
        trace.to_str().unwrap(),
        "--sizes",
        "8,50%",
        "--slots",
        "20",
        "--batch",
        "4",
        "--expert-bytes",
        "18874368",
        "--csv",
        csv.to_str().unwrap(),
    ];
    insta::assert_snapshot!(done(&arguments), @"
    synthetic: 256 tokens, 4 layers of 16 experts, top-2
    256 steps of up to 4 tokens use 64 experts 1,040 times; the widest uses 8
    an expert has 18,874,368 bytes
    LRU is counted up to ties within a step; `replay` has one size to the last miss
    curve: each half of the trace, cut at token 128, has its slots divided by the other's misses

    slots  of experts       bytes  unified LRU  per-layer LRU  per-layer LRU, curve  optimum
    8          12.5 %  144.00 MiB      99.81 %              -                     -  71.92 %
    20         31.2 %  360.00 MiB      48.94 %              -                     -  29.62 %
    32         50.0 %  576.00 MiB      31.44 %        28.85 %               29.62 %  16.15 %

    best at 20 slots, 360.00 MiB: unified LRU, with 1.99 misses and 35.79 MiB a token; nothing else that a cache can be set to saves any; the optimum has 1.20 misses and 21.66 MiB
    ");
    insta::assert_snapshot!(std::fs::read_to_string(csv).unwrap(), @"
    slots,share,bytes,lru_unified_misses,lru_unified_miss_rate,lru_unified_bytes,lru_per_layer_misses,lru_per_layer_miss_rate,lru_per_layer_bytes,lru_per_layer_curve_misses,lru_per_layer_curve_miss_rate,lru_per_layer_curve_bytes,optimum_unified_misses,optimum_unified_miss_rate,optimum_unified_bytes
    8,0.125000,150994944,1038,0.998077,19591593984,,,,,,,748,0.719231,14118027264
    20,0.312500,377487360,509,0.489423,9607053312,,,,,,,308,0.296154,5813305344
    32,0.500000,603979776,327,0.314423,6171918336,300,0.288462,5662310400,308,0.296154,5813305344,168,0.161538,3170893824
    ");
}

#[test]
fn the_default_sizes_and_the_size_that_is_looked_at() {
    let trace = testdata("traces/synthetic-4l16e.ftr.zst");
    let trace = trace.to_str().unwrap();
    let json = |arguments: &[&str]| -> serde_json::Value {
        serde_json::from_str(&done(&[&["sweep", "--eviction", "lru", trace, "--json"], arguments].concat())).unwrap()
    };
    let slots = |json: &serde_json::Value| -> Vec<u64> {
        json["sizes"].as_array().unwrap().iter().map(|size| size["slots"].as_u64().unwrap()).collect()
    };
    let sweep = json(&[]);
    assert_eq!(slots(&sweep), [2, 3, 6, 10, 13, 16, 19, 26, 32, 38, 45, 54, 64]);
    assert_eq!(sweep["chosen"]["slots"], 16);
    // A size that is not among them is looked at as well.
    let sweep = json(&["--slots", "20"]);
    assert_eq!((slots(&sweep).len(), &sweep["chosen"]["slots"]), (14, &20.into()));
    // 12 lies as far from a quarter as 20: the smaller one is taken.
    assert_eq!(json(&["--sizes", "64,20,12,20"])["chosen"]["slots"], 12);
}

#[test]
fn json_has_every_line() {
    let trace = by_hand("small.ftr", &SMALL, Some(vec![300, 200]));
    let arguments =
        ["sweep", "--eviction", "lru", trace.to_str().unwrap(), "--sizes", "1,2,4", "--slots", "3", "--json"];
    insta::assert_snapshot!(done(&arguments), @r#"
    {
      "batch": 1,
      "chosen": {
        "best": "unified LRU",
        "bytes": 750,
        "saved_bytes": 0.0,
        "saved_misses": 0.0,
        "slots": 3
      },
      "cut": 3,
      "expert_bytes": 250,
      "experts": 4,
      "experts_used": 4,
      "layers": 2,
      "lines": [
        {
          "configurable": true,
          "miss_rates": [
            1.0,
            0.5833333333333334,
            0.5833333333333334,
            0.3333333333333333
          ],
          "misses": [
            12,
            7,
            7,
            4
          ],
          "moved_bytes": [
            3000,
            1750,
            1750,
            1000
          ],
          "name": "unified LRU",
          "policy": "lru",
          "scope": "unified",
          "split": "equal"
        },
        {
          "configurable": true,
          "miss_rates": [
            null,
            0.5833333333333334,
            0.5833333333333334,
            0.5833333333333334
          ],
          "misses": [
            null,
            7,
            7,
            7
          ],
          "moved_bytes": [
            null,
            1750,
            1750,
            1750
          ],
          "name": "per-layer LRU",
          "policy": "lru",
          "scope": "per-layer",
          "split": "equal"
        },
        {
          "configurable": true,
          "miss_rates": [
            null,
            0.5833333333333334,
            0.5833333333333334,
            0.5833333333333334
          ],
          "misses": [
            null,
            7,
            7,
            7
          ],
          "moved_bytes": [
            null,
            1750,
            1750,
            1750
          ],
          "name": "per-layer LRU, curve",
          "policy": "lru",
          "scope": "per-layer",
          "split": "curve"
        },
        {
          "configurable": false,
          "miss_rates": [
            1.0,
            0.5833333333333334,
            0.4166666666666667,
            0.3333333333333333
          ],
          "misses": [
            12,
            7,
            5,
            4
          ],
          "moved_bytes": [
            3000,
            1750,
            1250,
            1000
          ],
          "name": "optimum",
          "policy": "optimum",
          "scope": "unified",
          "split": "equal"
        }
      ],
      "model": "R&D <small>",
      "pools_of": null,
      "sizes": [
        {
          "bytes": 250,
          "share": 0.25,
          "slots": 1
        },
        {
          "bytes": 500,
          "share": 0.5,
          "slots": 2
        },
        {
          "bytes": 750,
          "share": 0.75,
          "slots": 3
        },
        {
          "bytes": 1000,
          "share": 1.0,
          "slots": 4
        }
      ],
      "steps": 12,
      "tokens": 6,
      "top_k": 1,
      "uses": 12,
      "widest_step": 1
    }
    "#);
}

#[test]
fn the_picture_of_a_small_trace() {
    let trace = by_hand("small.ftr", &SMALL, Some(vec![300, 200]));
    let svg = folder("sweep").join("small.svg");
    let arguments =
        ["sweep", "--eviction", "lru", trace.to_str().unwrap(), "--slots", "2", "--svg", svg.to_str().unwrap()];
    insta::assert_snapshot!(done(&arguments), @"
    R&D <small>: 6 tokens, 2 layers of 4 experts, top-1
    12 steps use 4 experts 12 times; the widest uses 1
    an expert has 200 to 300 bytes by its layer; counted with their mean, 250
    LRU is counted up to ties within a step; `replay` has one size to the last miss
    curve: each half of the trace, cut at token 3, has its slots divided by the other's misses

    slots  of experts   bytes  unified LRU  per-layer LRU  per-layer LRU, curve   optimum
    1          25.0 %   250 B     100.00 %              -                     -  100.00 %
    2          50.0 %   500 B      58.33 %        58.33 %               58.33 %   58.33 %
    3          75.0 %   750 B      58.33 %        58.33 %               58.33 %   41.67 %
    4         100.0 %  1000 B      33.33 %        58.33 %               58.33 %   33.33 %

    best at 2 slots, 500 B: unified LRU, with 1.17 misses and 291 B a token; nothing else that a cache can be set to saves any; the optimum has 1.17 misses and 291 B
    ");
    let svg = std::fs::read_to_string(svg).unwrap();
    check_tags(&svg);
    insta::assert_snapshot!(svg, @r##"
    <svg xmlns="http://www.w3.org/2000/svg" width="960" height="540" viewBox="0 0 960 540" font-family="Helvetica, Arial, 'DejaVu Sans', sans-serif" font-size="13" fill="#444">
    <rect width="960" height="540" fill="#fff"/>
    <text x="24" y="34" font-size="18" font-weight="bold" fill="#111">R&amp;D &lt;small&gt;</text>
    <text x="24" y="56">small.ftr: misses, in percent of 12 uses of 4 experts in 2 layers</text>
    <path d="M66 464.0H716" stroke="#888"/>
    <text x="58" y="468.5" text-anchor="end">0 %</text>
    <path d="M66 390.4H716" stroke="#e4e4e4"/>
    <text x="58" y="394.9" text-anchor="end">20 %</text>
    <path d="M66 316.8H716" stroke="#e4e4e4"/>
    <text x="58" y="321.3" text-anchor="end">40 %</text>
    <path d="M66 243.2H716" stroke="#e4e4e4"/>
    <text x="58" y="247.7" text-anchor="end">60 %</text>
    <path d="M66 169.6H716" stroke="#e4e4e4"/>
    <text x="58" y="174.1" text-anchor="end">80 %</text>
    <path d="M66 96.0H716" stroke="#e4e4e4"/>
    <text x="58" y="100.5" text-anchor="end">100 %</text>
    <path d="M66.0 96V464" stroke="#e4e4e4"/>
    <text x="66.0" y="484" text-anchor="middle" fill="#444">0</text>
    <text x="66.0" y="501" text-anchor="middle" fill="#888">0 B</text>
    <path d="M228.5 96V464" stroke="#e4e4e4"/>
    <text x="228.5" y="484" text-anchor="middle" fill="#444">1</text>
    <text x="228.5" y="501" text-anchor="middle" fill="#888">250 B</text>
    <path d="M391.0 96V464" stroke="#e4e4e4"/>
    <text x="391.0" y="484" text-anchor="middle" fill="#444">2</text>
    <text x="391.0" y="501" text-anchor="middle" fill="#888">500 B</text>
    <path d="M553.5 96V464" stroke="#e4e4e4"/>
    <text x="553.5" y="484" text-anchor="middle" fill="#444">3</text>
    <text x="553.5" y="501" text-anchor="middle" fill="#888">750 B</text>
    <path d="M716.0 96V464" stroke="#e4e4e4"/>
    <text x="716.0" y="484" text-anchor="middle" fill="#444">4</text>
    <text x="716.0" y="501" text-anchor="middle" fill="#888">1000 B</text>
    <text x="391" y="524" text-anchor="middle">cache size in slots and bytes</text>
    <path d="M391.0 88V464" stroke="#666" stroke-dasharray="2 3"/>
    <text x="391.0" y="80" text-anchor="middle" font-weight="bold">2 slots, 500 B</text>
    <polyline points="228.5,96.0 391.0,249.3 553.5,310.7 716.0,341.3" fill="none" stroke="#555" stroke-width="2.5" stroke-linejoin="round" stroke-dasharray="7 4"/>
    <polyline points="391.0,249.3 553.5,249.3 716.0,249.3" fill="none" stroke="#009e73" stroke-width="2.5" stroke-linejoin="round"/>
    <polyline points="391.0,249.3 553.5,249.3 716.0,249.3" fill="none" stroke="#d55e00" stroke-width="2.5" stroke-linejoin="round"/>
    <polyline points="228.5,96.0 391.0,249.3 553.5,249.3 716.0,341.3" fill="none" stroke="#0072b2" stroke-width="2.5" stroke-linejoin="round"/>
    <circle cx="391.0" cy="249.3" r="4.5" fill="#555" stroke="#fff" stroke-width="1.5"/>
    <circle cx="391.0" cy="249.3" r="4.5" fill="#009e73" stroke="#fff" stroke-width="1.5"/>
    <circle cx="391.0" cy="249.3" r="4.5" fill="#d55e00" stroke="#fff" stroke-width="1.5"/>
    <circle cx="391.0" cy="249.3" r="9" fill="none" stroke="#0072b2" stroke-width="2"/>
    <circle cx="391.0" cy="249.3" r="4.5" fill="#0072b2" stroke="#fff" stroke-width="1.5"/>
    <path d="M718.0 341.3L738.0 341.3" stroke="#0072b2" stroke-opacity="0.6"/>
    <text x="742" y="342.3" font-weight="bold" fill="#0072b2">unified LRU</text>
    <text x="742" y="357.3" font-size="12">58.33 %, 291 B a token, best</text>
    <path d="M718.0 341.3L738.0 301.3" stroke="#555" stroke-opacity="0.6"/>
    <text x="742" y="302.3" font-weight="bold" fill="#555">optimum</text>
    <text x="742" y="317.3" font-size="12">58.33 %, 291 B a token</text>
    <path d="M718.0 249.3L738.0 249.3" stroke="#d55e00" stroke-opacity="0.6"/>
    <text x="742" y="250.3" font-weight="bold" fill="#d55e00">per-layer LRU</text>
    <text x="742" y="265.3" font-size="12">58.33 %, 291 B a token</text>
    <path d="M718.0 249.3L738.0 209.3" stroke="#009e73" stroke-opacity="0.6"/>
    <text x="742" y="210.3" font-weight="bold" fill="#009e73">per-layer LRU, curve</text>
    <text x="742" y="225.3" font-size="12">58.33 %, 291 B a token</text>
    </svg>
    "##);
}

#[test]
fn a_picture_of_one_size_has_all_labels() {
    let trace = testdata("traces/synthetic-4l16e.ftr.zst");
    let path = folder("sweep").join("one.svg");
    done(&["sweep", "--eviction", "lru", trace.to_str().unwrap(), "--sizes", "64", "--svg", path.to_str().unwrap()]);
    let svg = std::fs::read_to_string(path).unwrap();
    check_tags(&svg);
    for label in [">unified LRU<", ">per-layer LRU<", ">optimum<", ">64 slots<"] {
        assert_eq!(svg.matches(label).count(), 1, "{label}");
    }
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
}

#[test]
fn sweeps_that_cannot_be_are_refused() {
    let trace = testdata("traces/synthetic-4l16e.ftr.zst");
    let trace = trace.to_str().unwrap();
    let of_sizes = |sizes: &str| refused(&["sweep", trace, "--sizes", sizes]);
    insta::assert_snapshot!(of_sizes("25%,65"), @"ftcache: PATH: a size of 65 slots; the trace uses 64 experts");
    insta::assert_snapshot!(of_sizes("1"), @"ftcache: PATH: a size of 1 slot; the widest step uses 2 experts");
    insta::assert_snapshot!(of_sizes("2%"), @"ftcache: PATH: 2 % of the experts used are 1 slot; the widest step uses 2 experts");
    insta::assert_snapshot!(of_sizes("120%"), @"ftcache: PATH: a size of 120 % of the experts used; 100 % are all");
    insta::assert_snapshot!(refused(&["sweep", trace, "--slots", "65"]), @"ftcache: PATH: a size of 65 slots; the trace uses 64 experts");
    insta::assert_snapshot!(refused(&["sweep", trace, "--slots", "7", "--batch", "4"]), @"ftcache: PATH: a size of 7 slots; the widest step uses 8 experts");
    assert!(
        of_sizes("5x")
            .contains(r#""5x" is neither a number of slots, nor bytes such as 12GiB, nor a share such as 12.5%"#)
    );
    let idle = by_hand("idle.ftr", &[ABSENT; 4], None);
    insta::assert_snapshot!(refused(&["sweep", idle.to_str().unwrap()]), @"ftcache: PATH: 4 of 4 cells are absent: no expert is used");
    let model = testdata("gguf/ggml_types.json");
    insta::assert_snapshot!(refused(&["sweep", model.to_str().unwrap()]), @"ftcache: PATH: starts with bytes 5b 0a 20 20: neither a JSON header nor zstd");
    for option in ["--csv", "--svg"] {
        let path = folder("sweep").join("none/lines");
        let text = printed(Command::new(env!("CARGO_BIN_EXE_ftcache")).args(["sweep", trace, option]).arg(&path)).0;
        assert!(text.contains(&format!("ftcache: {}: ", path.display())), "{text}");
    }
}
