//! What a trace can get wrong: where, what was expected and what was found. The caller knows the file and names it.

use std::error::Error;
use std::{fmt, io};

use crate::format::{DTYPE, FORMAT, MAX_HEADER_BYTES, MAX_TOKEN_BYTES};

/// How far into a trace the reading or writing had come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In the header line.
    Header {
        /// Bytes of it so far.
        bytes: u64,
    },
    /// Among the ids.
    Ids {
        /// The token reached.
        token: u64,
        /// Its layer reached.
        layer: u32,
        /// Bytes of ids that the header announces.
        expected: u64,
        /// Bytes of ids so far.
        found: u64,
    },
    /// After the last id.
    End {
        /// Bytes of ids, all of them there.
        bytes: u64,
    },
    /// In a form of lines, before this one, counted from 1.
    Line {
        /// The line.
        line: u64,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header { bytes } => write!(f, "byte {bytes} of the header"),
            Self::Ids { token, layer, expected, found } => {
                write!(f, "token {token}, layer {layer}: {expected} bytes of ids expected, {found} found")
            }
            Self::End { bytes } => write!(f, "the end of the ids, {bytes} bytes"),
            Self::Line { line } => write!(f, "line {line}"),
        }
    }
}

/// A trace that cannot be read, written or made.
///
/// Layers and tokens are counted from 0, as they lie in the file. A text is whole without what the error came from;
/// only the words of the zstd decoder stand apart, as its source.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// Nothing at all.
    #[error("0 bytes: a trace starts with a header of one line of JSON")]
    Empty,
    /// Neither plain nor zstd.
    #[error("starts with bytes {}: neither a JSON header nor zstd", Hex(.first))]
    NotATrace {
        /// The first bytes, at most four.
        first: Vec<u8>,
    },
    /// A header line too long to be held.
    #[error("a header line of at least {found} bytes; at most {MAX_HEADER_BYTES} are read")]
    HeaderTooLong {
        /// Bytes of it, as far as was looked.
        found: u64,
    },
    /// The data end in the header.
    #[error("the header ends after {found} bytes without a newline")]
    HeaderCut {
        /// Bytes of it.
        found: u64,
    },
    /// A header that is not JSON, or lacks a key, or has one of a wrong type.
    #[error("header: {0}")]
    Header(serde_json::Error),
    /// A key that says this is another format.
    #[error("{key:?} is {}; {expected:?} is read here", Value(found))]
    Key {
        /// The key.
        key: &'static str,
        /// Its value, if the header has it.
        found: Option<String>,
        /// The value that is read here.
        expected: &'static str,
    },
    /// The router's weights, in a file of their own.
    #[error("a weight file (dtype {found:?}), not routes (dtype {DTYPE:?}); the routes lie in the .ftr file beside it")]
    Weights {
        /// The dtype in the header.
        found: String,
    },
    /// A size of 0.
    #[error("{key:?} is 0; at least 1 is needed")]
    Zero {
        /// The key.
        key: &'static str,
    },
    /// More experts than 16-bit ids name.
    #[error("{experts} experts a layer; {FORMAT} has ids for {most}")]
    TooManyExperts {
        /// Experts of a layer.
        experts: u32,
        /// The most that have an id.
        most: u32,
    },
    /// More routes than experts.
    #[error("top-{top_k} of {experts} experts: top_k must be from 1 to the expert count")]
    TopK {
        /// Experts a token is routed to.
        top_k: u32,
        /// Experts of a layer.
        experts: u32,
    },
    /// A token of more ids than are held at once.
    #[error("{layers} layers of top-{top_k} are {bytes} bytes a token; at most {MAX_TOKEN_BYTES} are read")]
    TokenTooWide {
        /// Layers.
        layers: u32,
        /// Experts a token is routed to.
        top_k: u32,
        /// Bytes of a token's ids.
        bytes: u64,
    },
    /// More ids than can be counted.
    #[error("{tokens} tokens of {token_bytes} bytes are over {} bytes", u64::MAX)]
    TooManyTokens {
        /// Tokens.
        tokens: u64,
        /// Bytes of a token's ids.
        token_bytes: u64,
    },
    /// A list by layer that is not as long as there are layers.
    #[error("{key:?} has {found} entries; there are {layers} layers")]
    PerLayer {
        /// The key.
        key: &'static str,
        /// Entries.
        found: usize,
        /// Layers.
        layers: u32,
    },
    /// A layer whose experts have no bytes.
    #[error("layer {layer}: \"expert_bytes\" is 0; at least 1 is needed")]
    EmptyExpert {
        /// The layer.
        layer: usize,
    },
    /// More absent cells than cells.
    #[error("\"absent_cells\" is {absent}; there are {cells} cells")]
    TooManyAbsent {
        /// Absent cells in the header.
        absent: u64,
        /// Cells.
        cells: u64,
    },
    /// A segment without tokens.
    #[error("segment {index} ({name:?}) has 0 tokens; at least 1 is needed")]
    EmptySegment {
        /// Its place in the list.
        index: usize,
        /// Its name.
        name: String,
    },
    /// A gap or an overlap between segments, or segments out of order.
    #[error("segment {index} ({name:?}) starts at token {found}; the segments before it end at {expected}")]
    SegmentStart {
        /// Its place in the list.
        index: usize,
        /// Its name.
        name: String,
        /// Where the one before ends.
        expected: u64,
        /// Where it starts.
        found: u64,
    },
    /// Segments that end before or after the last token.
    #[error("the segments cover {covered} tokens; the trace has {tokens}")]
    SegmentsCover {
        /// Tokens in segments.
        covered: u64,
        /// Tokens of the trace.
        tokens: u64,
    },
    /// The data end before the last id.
    #[error("the data end at {place}")]
    Truncated {
        /// Where.
        place: Place,
    },
    /// The data go on after the last id.
    #[error("{expected} bytes of ids expected; at least {found} found")]
    Trailing {
        /// Bytes of ids that the header announces.
        expected: u64,
        /// Bytes found, as far as was looked.
        found: u64,
    },
    /// An id past the experts.
    #[error("token {token}, layer {layer}: expert {id}; there are {experts} experts")]
    Id {
        /// The token.
        token: u64,
        /// The layer.
        layer: u32,
        /// The id.
        id: u16,
        /// Experts of a layer.
        experts: u32,
    },
    /// An id twice in a cell.
    #[error("token {token}, layer {layer}: expert {id} both at place {first} and at place {second}")]
    Twice {
        /// The token.
        token: u64,
        /// The layer.
        layer: u32,
        /// The id.
        id: u16,
        /// Its first place in the cell.
        first: usize,
        /// Its next.
        second: usize,
    },
    /// A cell with some of its ids absent.
    #[error("token {token}, layer {layer}: {absent} of {top_k} ids are absent; a cell is absent as a whole")]
    HalfAbsent {
        /// The token.
        token: u64,
        /// The layer.
        layer: u32,
        /// Ids that are absent.
        absent: usize,
        /// Ids of the cell.
        top_k: u32,
    },
    /// Another number of absent cells than announced.
    #[error("\"absent_cells\" is {expected}; {found} cells are absent")]
    AbsentCells {
        /// In the header.
        expected: u64,
        /// Among the ids.
        found: u64,
    },
    /// The source of the bytes gave an error.
    #[error("{error}; read up to {place}")]
    Read {
        /// What it said.
        error: io::Error,
        /// Where.
        place: Place,
    },
    /// The compressed data end inside a frame.
    #[error("the zstd data end inside a frame at byte {byte}; read up to {place}")]
    ZstdCut {
        /// Compressed bytes there are.
        byte: u64,
        /// Where.
        place: Place,
    },
    /// The compressed data cannot be decoded.
    #[error("the zstd data are damaged before byte {byte}; read up to {place}")]
    ZstdDamaged {
        /// Compressed bytes read so far.
        byte: u64,
        /// Where.
        place: Place,
        /// What the decoder said.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The decoded data are not what was compressed.
    #[error("a zstd frame's checksum is {stored:08x}, its data have {computed:08x}; read up to {place}")]
    ZstdChecksum {
        /// In the file.
        stored: u32,
        /// Of the decoded data.
        computed: u32,
        /// Where.
        place: Place,
    },
    /// The target of the bytes gave an error.
    #[error("{error}; written up to {place}")]
    Write {
        /// What it said.
        error: io::Error,
        /// Where.
        place: Place,
    },
    /// A token of another number of ids than layers times `top_k`.
    #[error("token {token}: {expected} ids expected, {found} given")]
    TokenIds {
        /// The token.
        token: u64,
        /// Layers times `top_k`.
        expected: usize,
        /// Ids given.
        found: usize,
    },
    /// A trace of another number of ids than its header says.
    #[error("{expected} ids expected, {found} given")]
    IdCount {
        /// Tokens times layers times `top_k`.
        expected: u64,
        /// Ids given.
        found: u64,
    },
    /// Another number of tokens than announced.
    #[error("{expected} tokens expected, {found} given")]
    TokenCount {
        /// In the header.
        expected: u64,
        /// Given.
        found: u64,
    },
    /// A reader or writer used again after an error.
    #[error("an earlier error ended this trace at token {token} of {tokens}")]
    Ended {
        /// The token reached.
        token: u64,
        /// Tokens of the trace.
        tokens: u64,
    },
    /// A recorder too small for one token.
    #[error("a recorder of {capacity_bytes} bytes; one token takes {token_bytes}")]
    NoRoom {
        /// Bytes it was given.
        capacity_bytes: usize,
        /// Bytes of a token.
        token_bytes: usize,
    },
    /// A recorder larger than memory.
    #[error("a recorder of {bytes} bytes; there is not so much memory")]
    NoMemory {
        /// Bytes it was given.
        bytes: usize,
    },
    /// A parameter of a synthetic trace outside its range.
    #[error("{name:?} is {found}; it lies from {least} to {most}")]
    Parameter {
        /// The parameter.
        name: &'static str,
        /// What was given.
        found: f64,
        /// The least.
        least: f64,
        /// The most.
        most: f64,
    },
}

/// A value of the header, or that there is none.
struct Value<'a>(&'a Option<String>);

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(value) => write!(f, "{value:?}"),
            None => write!(f, "missing"),
        }
    }
}

/// Bytes as people write them.
struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            write!(f, "{}{byte:02x}", if index == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}
