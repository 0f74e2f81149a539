//! Every error text, as people read it.

use std::fmt::Write as _;
use std::io;

use ftcache_trace::{ABSENT, Form, Header, Phase, Place, Segment, Shape, Synthetic, Trace, TraceError, TraceWriter};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use serde_json::{Value, json};

const SHAPE: Shape = Shape { tokens: 2, layers: 2, top_k: 3, experts: 8 };

fn header() -> Header {
    Header::new("toy", SHAPE, vec![Segment::new("a", Phase::Prefill, 0, 1), Segment::new("b", Phase::Decode, 1, 1)])
}

/// Two tokens of two layers, top-3.
fn ids() -> Vec<u16> {
    vec![0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3]
}

fn file(header: &Value, ids: &[u16]) -> Vec<u8> {
    let mut file = header.to_string().into_bytes();
    file.push(b'\n');
    file.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
    file
}

fn read(file: &[u8]) -> TraceError {
    Trace::read(file).unwrap_err()
}

/// The error of a file whose header has one key set, or taken out by a null.
fn with(key: &str, value: Value) -> TraceError {
    let mut header = serde_json::to_value(header()).unwrap();
    match value {
        Value::Null => drop(header.as_object_mut().unwrap().remove(key)),
        value => header[key] = value,
    }
    read(&file(&header, &ids()))
}

/// The error of a file in which one cell's ids are set.
fn cell(cell: usize, cell_ids: [u16; 3]) -> TraceError {
    let mut ids = ids();
    ids[cell * 3..][..3].copy_from_slice(&cell_ids);
    read(&file(&serde_json::to_value(header()).unwrap(), &ids))
}

fn segment(start: u64, tokens: u64) -> Value {
    json!([{ "name": "a", "phase": "prefill", "start": 0, "tokens": 1 },
           { "name": "b", "phase": "decode", "start": start, "tokens": tokens }])
}

fn listing(errors: &[TraceError]) -> String {
    let mut listing = String::new();
    for error in errors {
        let text = error.to_string();
        assert!(!text.contains('\n') && !text.to_lowercase().contains("failed to"), "{text}");
        writeln!(listing, "{text}").unwrap();
    }
    listing
}

#[test]
fn headers() {
    let errors = [
        read(b""),
        read(&[0x1f, 0x8b, 8, 0, 1]),
        read(b"token,layer\n"),
        read(b"{\"format\":"),
        read(b"{\"format\":}\n"),
        read(&vec![b'{'; 20 << 20]),
        with("format", Value::Null),
        with("format", json!("ftr2")),
        with("dtype", json!("u8")),
        with("dtype", json!("f16le")),
        with("order", json!("layer,token,k")),
        with("segments", Value::Null),
        with("tokens", json!(-1)),
        with("tokens", json!(0)),
        with("layers", json!(0)),
        with("top_k", json!(0)),
        with("experts", json!(0)),
        with("experts", json!(65536)),
        with("experts", json!(2)),
        with("layers", json!(u32::MAX)),
        with("tokens", json!(u64::MAX)),
        with("expert_bytes", json!([1])),
        with("layer_numbers", json!([1, 2, 3])),
        with("expert_bytes", json!([1, 0])),
        with("absent_cells", json!(5)),
        with("segments", segment(2, 1)),
        with("segments", segment(0, 1)),
        with("segments", segment(1, 0)),
        with("segments", segment(1, 2)),
        with("segments", json!([])),
        with("segments", json!([{ "name": "a", "phase": "warmup", "start": 0, "tokens": 2 }])),
    ];
    insta::assert_snapshot!(listing(&errors), @r#"
    0 bytes: a trace starts with a header of one line of JSON
    starts with bytes 1f 8b 08 00: neither a JSON header nor zstd
    starts with bytes 74 6f 6b 65: neither a JSON header nor zstd
    the header ends after 10 bytes without a newline
    header: expected value at line 1 column 11
    a header line of at least 16777220 bytes; at most 16777216 are read
    "format" is missing; "ftr1" is read here
    "format" is "ftr2"; "ftr1" is read here
    "dtype" is "u8"; "u16le" is read here
    a weight file (dtype "f16le"), not routes (dtype "u16le"); the routes lie in the .ftr file beside it
    "order" is "layer,token,k"; "token,layer,k" is read here
    header: missing field `segments` at line 1 column 132
    header: invalid value: integer `-1`, expected u64 at line 1 column 238
    "tokens" is 0; at least 1 is needed
    "layers" is 0; at least 1 is needed
    "top_k" is 0; at least 1 is needed
    "experts" is 0; at least 1 is needed
    65536 experts a layer; ftr1 has ids for 65535
    top-3 of 2 experts: top_k must be from 1 to the expert count
    4294967295 layers of top-3 are 25769803770 bytes a token; at most 16777216 are read
    18446744073709551615 tokens of 12 bytes are over 18446744073709551615 bytes
    "expert_bytes" has 1 entries; there are 2 layers
    "layer_numbers" has 3 entries; there are 2 layers
    layer 1: "expert_bytes" is 0; at least 1 is needed
    "absent_cells" is 5; there are 4 cells
    segment 1 ("b") starts at token 2; the segments before it end at 1
    segment 1 ("b") starts at token 0; the segments before it end at 1
    segment 1 ("b") has 0 tokens; at least 1 is needed
    the segments cover 3 tokens; the trace has 2
    the segments cover 0 tokens; the trace has 2
    header: unknown variant `warmup`, expected one of `prefill`, `decode`, `decode-like`, `mixed` at line 1 column 151
    "#);
}

#[test]
fn contents() {
    let plain = Trace::new(header(), ids()).unwrap().write(Vec::new(), Form::Plain).unwrap();
    let zstd = compress_to_vec(plain.as_slice(), CompressionLevel::Uncompressed);
    let mut damaged_sum = zstd.clone();
    *damaged_sum.last_mut().unwrap() ^= 1;
    let mut damaged_block = zstd.clone();
    damaged_block[6] |= 6;
    let two_frames = |cut: usize| {
        let mut file = compress_to_vec(&plain[..cut], CompressionLevel::Uncompressed);
        file.extend(compress_to_vec(&plain[cut..], CompressionLevel::Uncompressed));
        file
    };
    let in_ids = plain.len() - 5;
    let mut cut_in_ids = two_frames(in_ids);
    cut_in_ids.truncate(cut_in_ids.len() - 6);
    let mut trailing = plain.clone();
    trailing.push(b'\n');
    let mut absent_header = header();
    absent_header.absent_cells = 2;

    let errors = [
        read(&plain[..plain.len() - 7]),
        read(&trailing),
        cell(1, [3, 8, 5]),
        cell(3, [1, 2, 1]),
        cell(2, [6, ABSENT, 0]),
        cell(2, [ABSENT; 3]),
        read(&file(&serde_json::to_value(&absent_header).unwrap(), &ids())),
        read(&zstd[..20]),
        read(&cut_in_ids),
        read(&damaged_block),
        read(&damaged_sum),
    ];
    insta::assert_snapshot!(listing(&errors), @r#"
    the data end at token 1, layer 0: 24 bytes of ids expected, 17 found
    24 bytes of ids expected; at least 25 found
    token 0, layer 1: expert 8; there are 8 experts
    token 1, layer 1: expert 1 both at place 0 and at place 2
    token 1, layer 0: 1 of 3 ids are absent; a cell is absent as a whole
    "absent_cells" is 0; 1 cells are absent
    "absent_cells" is 2; 0 cells are absent
    the zstd data end inside a frame at byte 20; read up to byte 0 of the header
    the zstd data end inside a frame at byte 293; read up to token 1, layer 1: 24 bytes of ids expected, 19 found
    the zstd data are damaged before byte 9; read up to byte 0 of the header
    a zstd frame's checksum is 38feac1c, its data have 39feac1c; read up to the end of the ids, 24 bytes
    "#);
}

#[test]
fn calls() {
    let writer = || TraceWriter::new(Vec::new(), &header(), Form::Plain).unwrap();
    let mut full = writer();
    ids().chunks_exact(6).for_each(|token| full.write_token(token).unwrap());
    let mut wide = header();
    wide.note = Some("x".repeat(17 << 20));
    let synthetic = Synthetic::default();

    let errors = [
        Trace::new(header(), vec![0; 5]).unwrap_err(),
        writer().write_token(&[0, 1, 2]).unwrap_err(),
        writer().finish().unwrap_err(),
        full.write_token(&ids()[..6]).unwrap_err(),
        TraceWriter::new(Vec::new(), &wide, Form::Plain).unwrap_err(),
        Synthetic { skew: -1.0, ..synthetic.clone() }.trace().unwrap_err(),
        Synthetic { locality: f64::NAN, ..synthetic.clone() }.trace().unwrap_err(),
        Synthetic { requests: 300, ..synthetic.clone() }.trace().unwrap_err(),
        Synthetic { top_k: 17, ..synthetic.clone() }.trace().unwrap_err(),
        TraceError::Ended { token: 3, tokens: 9 },
        TraceError::Read { error: io::Error::other("the disk is gone"), place: Place::Header { bytes: 7 } },
        TraceError::Write { error: io::Error::other("the disk is full"), place: Place::End { bytes: 24 } },
    ];
    insta::assert_snapshot!(listing(&errors), @r#"
    12 ids expected, 5 given
    token 0: 6 ids expected, 3 given
    2 tokens expected, 0 given
    2 tokens expected, 3 given
    a header line of at least 17826050 bytes; at most 16777216 are read
    "skew" is -1; it lies from 0 to 8
    "locality" is NaN; it lies from 0 to 1
    "requests" is 300; it lies from 1 to 256
    top-17 of 16 experts: top_k must be from 1 to the expert count
    an earlier error ended this trace at token 3 of 9
    the disk is gone; read up to byte 7 of the header
    the disk is full; written up to the end of the ids, 24 bytes
    "#);
}
