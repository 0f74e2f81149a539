//! Real files: those that ship with the project, and those beside it where they are.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use ftcache_trace::{Form, Phase, Synthetic, Trace, TraceError};

const SHIPPED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/traces");
const SHARED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/traces");

fn read(folder: &str, name: &str) -> Result<Trace, TraceError> {
    Trace::read(File::open(Path::new(folder).join(name)).unwrap())
}

#[test]
fn tinymoe_is_what_it_says() {
    let trace = read(SHIPPED, "tinymoe-8l64e.ftr.zst").unwrap();
    let header = trace.header();
    assert_eq!((header.tokens, header.layers, header.top_k, header.experts), (18_688, 8, 6, 64));
    assert_eq!((header.segments.len(), header.absent_cells), (11, 0));
    assert!(trace.ids().iter().all(|&id| id < 64));
    // As a program of another language computed it too.
    assert_eq!(trace.digest(), 0xb99e_b483_44de_60e1);

    let sampled = &header.segments[8];
    assert_eq!((sampled.name.as_str(), sampled.phase, sampled.start), ("python-sampled", Phase::Decode, 16_384));
    assert_eq!(sampled.extra["prompt_tokens"], 128);

    for form in [Form::Plain, Form::Zstd] {
        let file = trace.write(Vec::new(), form).unwrap();
        assert_eq!(Trace::read(file.as_slice()).unwrap(), trace, "{form:?}");
    }
}

/// The committed file is what `examples/write_synthetic.rs` would write today.
#[test]
fn the_synthetic_file_is_not_stale() {
    let trace = Synthetic { requests: 4, drift: 64, ..Synthetic::default() }.trace().unwrap();
    let shipped = read(SHIPPED, "synthetic-4l16e.ftr.zst").unwrap();
    assert_eq!(shipped, trace, "run `cargo run -p ftcache-trace --example write_synthetic`");
    let header = trace.header();
    assert_eq!((header.tokens, header.layers, header.top_k, header.experts), (256, 4, 2, 16));
    assert_eq!(trace.digest(), 0xc0e4_68c8_6089_c9f9);
}

/// Name, layers, experts, top-k, tokens, absent cells: the table of the folder's own description.
const RECORDED: [(&str, u32, u32, u32, u64, u64); 10] = [
    ("bigmoe-gemma", 30, 128, 6, 29 + 128, 0),
    ("bigmoe-qwen", 48, 128, 6, 28 + 128, 27),
    ("flame290m-first10", 25, 64, 6, 640, 0),
    ("flame290m-prefill", 25, 64, 6, 2_048, 0),
    ("gptoss20b-decode-24req", 24, 32, 4, 10_877, 0),
    ("gptoss20b-decode-2req", 24, 32, 4, 872, 0),
    ("olmoe-layer0", 1, 64, 8, 4_471, 0),
    ("qwen15moe-layer0-a", 1, 60, 4, 4_384, 0),
    ("qwen15moe-layer0-b", 1, 60, 4, 1_230, 0),
    ("tinymoe-8l64e", 8, 64, 6, 18_688, 0),
];

#[test]
fn recorded_traces_are_what_their_table_says() {
    let Ok(folder) = fs::read_dir(SHARED) else {
        // Past the test runner's capture, so that a skip is seen.
        writeln!(io::stderr(), "skipped, no folder shared/traces: recorded_traces_are_what_their_table_says").unwrap();
        return;
    };
    let names: Vec<String> = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();

    for (name, layers, experts, top_k, tokens, absent) in RECORDED {
        let trace = read(SHARED, &format!("{name}.ftr.zst")).unwrap_or_else(|error| panic!("{name}: {error}"));
        let header = trace.header();
        assert_eq!((header.layers, header.experts, header.top_k), (layers, experts, top_k), "{name}");
        assert_eq!((header.tokens, header.absent_cells), (tokens, absent), "{name}");
        assert_eq!(trace.ids().len() as u64, tokens * u64::from(layers * top_k), "{name}");
        let absent_cells: Vec<(usize, usize)> = (0..tokens as usize)
            .flat_map(|token| (0..layers as usize).map(move |layer| (token, layer)))
            .filter(|&(token, layer)| trace.cell(token, layer).is_none())
            .collect();
        // The last layer of all prompt tokens but the last.
        let expected: Vec<(usize, usize)> = (0..absent as usize).map(|token| (token, 47)).collect();
        assert_eq!(absent_cells, expected, "{name}");
        let file = trace.write(Vec::new(), Form::Zstd).unwrap();
        assert_eq!(Trace::read(file.as_slice()).unwrap(), trace, "{name}");
    }
    for name in names.iter().filter(|name| name.ends_with(".w.zst")) {
        assert!(matches!(read(SHARED, name), Err(TraceError::Weights { .. })), "{name}");
    }
    for name in names.iter().filter(|name| name.ends_with(".csv.zst")) {
        assert!(matches!(read(SHARED, name), Err(TraceError::NotATrace { .. })), "{name}");
    }
}
