//! Damaged files: cut at every byte, one bit turned at every byte, sources and sinks that fail. An error each time, or
//! the undamaged trace, never a panic and never other ids.

use std::io::{self, Read, Write};

use ftcache_trace::{ABSENT, Form, Header, Phase, Place, Segment, Shape, Trace, TraceError, TraceReader, TraceWriter};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

/// 6 tokens of 3 layers, top-2 of 8, one cell absent.
fn small() -> Trace {
    let segments = vec![Segment::new("prompt", Phase::Prefill, 0, 4), Segment::new("answer", Phase::Decode, 4, 2)];
    let mut header = Header::new("toy", Shape { tokens: 6, layers: 3, top_k: 2, experts: 8 }, segments);
    header.absent_cells = 1;
    let mut ids: Vec<u16> = (0..18).flat_map(|cell| [cell % 8, (cell * 3 + 1) % 8]).collect();
    for pair in ids.chunks_exact_mut(2).filter(|pair| pair[0] == pair[1]) {
        pair[1] = (pair[0] + 1) % 8;
    }
    ids[4..6].fill(ABSENT);
    Trace::new(header, ids).unwrap()
}

fn written(form: Form) -> Vec<u8> {
    small().write(Vec::new(), form).unwrap()
}

/// Gives its bytes one at a time, with an interruption before each.
struct Slow<'a>(&'a [u8], bool);

impl Read for Slow<'_> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        self.1 = !self.1;
        if self.1 {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let count = target.len().min(1);
        self.0.read(&mut target[..count])
    }
}

/// Gives its bytes and then an error.
struct Failing<'a>(&'a [u8]);

impl Read for Failing<'_> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        match self.0.read(target)? {
            0 => Err(io::Error::other("the disk is gone")),
            count => Ok(count),
        }
    }
}

/// Takes so many bytes and then gives an error.
#[derive(Debug)]
struct Full(usize);

impl Write for Full {
    fn write(&mut self, source: &[u8]) -> io::Result<usize> {
        let count = source.len().min(self.0);
        self.0 -= count;
        if count == 0 { Err(io::Error::other("the disk is full")) } else { Ok(count) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn the_undamaged_file_is_read_however_slowly_it_comes() {
    for form in [Form::Plain, Form::Zstd] {
        assert_eq!(Trace::read(Slow(&written(form), false)).unwrap(), small(), "{form:?}");
    }
}

#[test]
fn a_plain_file_cut_at_any_byte_says_where() {
    let file = written(Form::Plain);
    let ids_start = file.iter().position(|&byte| byte == b'\n').unwrap() + 1;
    for length in 0..file.len() {
        let error = Trace::read(&file[..length]).unwrap_err();
        match length.checked_sub(ids_start) {
            None if length == 0 => assert!(matches!(error, TraceError::Empty), "{length}: {error}"),
            None => {
                assert!(
                    matches!(error, TraceError::HeaderCut { found } if found == length as u64),
                    "{length}: {error}"
                );
            }
            Some(bytes) => {
                let (token, layer) = (bytes / 12, bytes % 12 / 4);
                let expected =
                    Place::Ids { token: token as u64, layer: layer as u32, expected: 72, found: bytes as u64 };
                assert!(matches!(error, TraceError::Truncated { place } if place == expected), "{length}: {error}");
            }
        }
    }
}

#[test]
fn a_zstd_file_cut_at_any_byte_is_refused() {
    let file = written(Form::Zstd);
    for length in 0..file.len() {
        Trace::read(&file[..length]).expect_err(&format!("cut at {length}"));
    }
}

/// A byte more is refused in both forms, and in a frame of its own too.
#[test]
fn bytes_after_the_last_id_are_refused() {
    for form in [Form::Plain, Form::Zstd] {
        let mut file = written(form);
        file.push(0);
        Trace::read(file.as_slice()).unwrap_err();
    }
    let mut file = written(Form::Zstd);
    file.extend(compress_to_vec([7, 7].as_slice(), CompressionLevel::Fastest));
    let error = Trace::read(file.as_slice()).unwrap_err();
    assert!(matches!(error, TraceError::Trailing { expected: 72, found: 74 }), "{error}");
}

/// Compressed, some bits are without meaning (padding, an entry that no symbol uses); stored, all count but an unused
/// bit and the window's size in bytes 4 and 5.
#[test]
fn a_bit_turned_in_a_zstd_file_is_noticed_or_changes_nothing() {
    let stored = compress_to_vec(written(Form::Plain).as_slice(), CompressionLevel::Uncompressed);
    for (form, file) in [("compressed", written(Form::Zstd)), ("stored", stored)] {
        for (byte, bit) in (0..file.len()).flat_map(|byte| (0..8).map(move |bit| (byte, bit))) {
            let mut damaged = file.clone();
            damaged[byte] ^= 1 << bit;
            if let Ok(trace) = Trace::read(damaged.as_slice()) {
                assert_eq!(trace, small(), "{form}, byte {byte}, bit {bit}");
                assert!(form == "compressed" || (4..6).contains(&byte), "{form}, byte {byte}, bit {bit}");
            }
        }
    }
}

#[test]
fn several_frames_and_skipped_ones_are_one_file() {
    let plain = written(Form::Plain);
    for cut in [1, 3, 100, plain.len() - 1] {
        let mut file = vec![0x5a, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3];
        file.extend(compress_to_vec(&plain[..cut], CompressionLevel::Fastest));
        file.extend([0x50, 0x2a, 0x4d, 0x18, 0, 0, 0, 0]);
        file.extend(compress_to_vec(&plain[cut..], CompressionLevel::Uncompressed));
        assert_eq!(Trace::read(file.as_slice()).unwrap(), small(), "cut at {cut}");
    }
    let skipped = [0x5a, 0x2a, 0x4d, 0x18, 4, 0, 0, 0, 1, 2, 3];
    let error = Trace::read(skipped.as_slice()).unwrap_err();
    assert!(matches!(error, TraceError::ZstdCut { byte: 11, .. }), "{error}");
}

#[test]
fn a_failing_source_is_named_in_its_own_words() {
    for form in [Form::Plain, Form::Zstd] {
        let file = written(form);
        for length in [0, 3, 20, file.len() - 1, file.len()] {
            let error = Trace::read(Failing(&file[..length])).unwrap_err();
            assert!(error.to_string().starts_with("the disk is gone; read up to"), "{form:?}, {length}: {error}");
        }
    }
}

#[test]
fn a_full_sink_ends_the_writer() {
    for form in [Form::Plain, Form::Zstd] {
        let length = written(form).len();
        for room in [0, 10, length - 1] {
            let error = small().write(Full(room), form).unwrap_err();
            assert!(error.to_string().starts_with("the disk is full; written up to"), "{form:?}, {room}: {error}");
        }
        small().write(Full(length), form).unwrap();
    }
    // 100,000 tokens of 4 bytes: the buffer runs over long before the end.
    let segments = vec![Segment::new("a", Phase::Mixed, 0, 100_000)];
    let header = Header::new("toy", Shape { tokens: 100_000, layers: 1, top_k: 2, experts: 8 }, segments);
    let mut writer = TraceWriter::new(Full(1000), &header, Form::Plain).unwrap();
    let failed = (0..100_000).find_map(|_| writer.write_token(&[1, 2]).err()).unwrap();
    assert!(matches!(failed, TraceError::Write { place: Place::Ids { .. }, .. }), "{failed}");
    assert!(matches!(writer.write_token(&[1, 2]), Err(TraceError::Ended { .. })));
    assert!(matches!(writer.finish(), Err(TraceError::Ended { .. })));
}

#[test]
fn a_refused_token_leaves_the_writer_as_it_was() {
    let trace = small();
    let mut writer = TraceWriter::new(Vec::new(), trace.header(), Form::Plain).unwrap();
    for token in trace.tokens() {
        writer.write_token(&[ABSENT, ABSENT, 1, 1, 2, 3]).unwrap_err();
        writer.write_token(&token[1..]).unwrap_err();
        writer.write_token(token).unwrap();
    }
    writer.write_token(&[0, 1, 0, 1, 0, 1]).unwrap_err();
    assert_eq!(writer.finish().unwrap(), written(Form::Plain));
}

#[test]
fn a_reader_does_not_go_on_after_an_error() {
    let mut file = written(Form::Plain);
    let length = file.len();
    file[length - 12 - 2..length - 12].fill(0xff);
    let mut reader = TraceReader::new(file.as_slice()).unwrap();
    let mut ids = Vec::new();
    for token in small().tokens().take(4) {
        assert!(reader.next_token(&mut ids).unwrap());
        assert_eq!(ids, token);
    }
    assert!(matches!(reader.next_token(&mut ids), Err(TraceError::HalfAbsent { token: 4, layer: 2, .. })));
    assert!(ids.is_empty());
    assert!(matches!(reader.next_token(&mut ids), Err(TraceError::Ended { token: 4, tokens: 6 })));
}

/// A header that promises 2^60 bytes costs no memory.
#[test]
fn a_header_alone_allocates_nothing() {
    let tokens = 1 << 50;
    let segments = vec![Segment::new("a", Phase::Mixed, 0, tokens)];
    let header = Header::new("toy", Shape { tokens, layers: 100, top_k: 5, experts: 8 }, segments);
    let error = TraceWriter::new(Vec::new(), &header, Form::Plain).unwrap().finish().unwrap_err();
    assert!(matches!(error, TraceError::TokenCount { expected, found: 0 } if expected == tokens), "{error}");
    let mut file = serde_json::to_vec(&header).unwrap();
    file.push(b'\n');
    let error = Trace::read(file.as_slice()).unwrap_err();
    assert!(matches!(error, TraceError::Truncated { .. }), "{error}");
}
