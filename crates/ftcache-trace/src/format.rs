//! The form `ftr1`: what its header says and which headers are refused. Touches no ids.
//!
//! The header is data from outside, so every size in it is bounded before anything is allocated by it.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::TraceError;

/// The id of a route without data; a cell has it for all its routes or for none.
pub const ABSENT: u16 = u16::MAX;

/// The longest header line that is read or written, in bytes: 16 MiB. The recorded ones are under 4 KiB; 100,000
/// segments of 150 bytes still fit.
pub const MAX_HEADER_BYTES: usize = 1 << 24;

/// The most bytes that one token's ids may have: 16 MiB. 100 layers of top-64 have 12,800.
pub const MAX_TOKEN_BYTES: u64 = 1 << 24;

pub(crate) const FORMAT: &str = "ftr1";
pub(crate) const DTYPE: &str = "u16le";
const WEIGHT_DTYPE: &str = "f16le";
const ORDER: &str = "token,layer,k";

/// How the bytes lie in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// As they are: `.ftr`.
    Plain,
    /// Compressed, with a checksum: `.ftr.zst`.
    Zstd,
}

/// The sizes of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Tokens, of all segments.
    pub tokens: u64,
    /// Mixture-of-experts layers that were recorded.
    pub layers: u32,
    /// Experts that a token is routed to in a layer.
    pub top_k: u32,
    /// Experts of a layer.
    pub experts: u32,
}

/// A trace of other layers or experts than a model's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the trace has {traced_layers} layers of {traced_experts} experts; the model has {layers} of {experts}")]
pub struct OtherShape {
    /// Layers of the trace.
    pub traced_layers: u32,
    /// Experts of each.
    pub traced_experts: u32,
    /// Layers of the model.
    pub layers: usize,
    /// Experts of each.
    pub experts: u32,
}

impl Shape {
    /// Whether a trace can be of a model of so many layers and experts.
    ///
    /// # Errors
    ///
    /// Others.
    pub fn check_model(&self, layers: usize, experts: u32) -> Result<(), OtherShape> {
        let Self { layers: traced_layers, experts: traced_experts, .. } = *self;
        if (traced_layers as usize, traced_experts) == (layers, experts) {
            return Ok(());
        }
        Err(OtherShape { traced_layers, traced_experts, layers, experts })
    }

    /// Ids of one token: layers times `top_k`.
    ///
    /// Fits, once [`Header::check`] has bounded it by [`MAX_TOKEN_BYTES`].
    pub fn token_ids(&self) -> usize {
        self.layers as usize * self.top_k as usize
    }

    /// Bytes of all ids.
    pub fn id_bytes(&self) -> u64 {
        self.tokens * self.token_bytes()
    }

    /// Bytes of one token's ids.
    pub(crate) fn token_bytes(&self) -> u64 {
        self.token_ids() as u64 * 2
    }

    fn check(&self) -> Result<(), TraceError> {
        let Self { tokens, layers, top_k, experts } = *self;
        let sizes =
            [("tokens", tokens), ("layers", layers.into()), ("top_k", top_k.into()), ("experts", experts.into())];
        if let Some(&(key, _)) = sizes.iter().find(|(_, size)| *size == 0) {
            return Err(TraceError::Zero { key });
        }
        // Ids are 0 to 65534, since 65535 says that there is none.
        let most = u32::from(ABSENT);
        if experts > most {
            return Err(TraceError::TooManyExperts { experts, most });
        }
        if top_k > experts {
            return Err(TraceError::TopK { top_k, experts });
        }
        // Cannot overflow: 2^32 layers of 2^16 routes of 2 bytes.
        let token_bytes = u64::from(layers) * u64::from(top_k) * 2;
        if token_bytes > MAX_TOKEN_BYTES {
            return Err(TraceError::TokenTooWide { layers, top_k, bytes: token_bytes });
        }
        if tokens.checked_mul(token_bytes).is_none() {
            return Err(TraceError::TooManyTokens { tokens, token_bytes });
        }
        Ok(())
    }
}

/// What a segment's tokens were.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Phase {
    /// Tokens that were given to the model, many at once.
    Prefill,
    /// Tokens that the model gave, one after another.
    Decode,
    /// Given tokens that stand for given ones read one after another.
    DecodeLike,
    /// A serving log in which several requests alternate.
    Mixed,
}

impl Phase {
    /// As it stands in a header.
    pub fn name(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::DecodeLike => "decode-like",
            Self::Mixed => "mixed",
        }
    }
}

/// A run of tokens that belong together; between two of them a new request or document starts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Segment {
    /// The first token.
    pub start: u64,
    /// How many.
    pub tokens: u64,
    /// What they were.
    pub phase: Phase,
    /// What the source calls it.
    pub name: String,
    /// Whatever else the source says of it (`prompt_tokens`, `dataset`, ...), kept as it is.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Segment {
    /// A segment of which nothing else is known.
    pub fn new(name: impl Into<String>, phase: Phase, start: u64, tokens: u64) -> Self {
        Self { start, tokens, phase, name: name.into(), extra: Map::new() }
    }
}

/// The header of a trace, key by key.
///
/// Fields are free to set; [`check`](Self::check) says whether they agree, and reader and writer both ask it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// `"ftr1"`.
    pub format: String,
    /// `"u16le"`: 16-bit ids, the low byte first.
    pub dtype: String,
    /// `"token,layer,k"`: the slowest index first.
    pub order: String,
    /// Tokens, of all segments.
    pub tokens: u64,
    /// Layers that were recorded.
    pub layers: u32,
    /// Experts that a token is routed to in a layer.
    pub top_k: u32,
    /// Experts of a layer.
    pub experts: u32,
    /// Cells without data.
    pub absent_cells: u64,
    /// The model, for people.
    pub model: String,
    /// Who recorded it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The files at the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_path: Option<String>,
    /// The version of the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_commit: Option<String>,
    /// The licence that the source states.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub licence: Option<String>,
    /// Bytes of one expert, by layer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expert_bytes: Option<Vec<u64>>,
    /// The model's own number of each layer, where not all were recorded or some are dense.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer_numbers: Option<Vec<u32>>,
    /// What one should know of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Runs of tokens that belong together: in order, without gaps, over all tokens.
    pub segments: Vec<Segment>,
    /// Keys that this version does not know: kept, and written again.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Header {
    /// A header without absent cells, of which nothing else is known.
    pub fn new(model: impl Into<String>, shape: Shape, segments: Vec<Segment>) -> Self {
        Self {
            format: FORMAT.to_owned(),
            dtype: DTYPE.to_owned(),
            order: ORDER.to_owned(),
            tokens: shape.tokens,
            layers: shape.layers,
            top_k: shape.top_k,
            experts: shape.experts,
            absent_cells: 0,
            model: model.into(),
            source: None,
            source_path: None,
            source_commit: None,
            licence: None,
            expert_bytes: None,
            layer_numbers: None,
            note: None,
            segments,
            extra: Map::new(),
        }
    }

    /// The sizes.
    pub fn shape(&self) -> Shape {
        Shape { tokens: self.tokens, layers: self.layers, top_k: self.top_k, experts: self.experts }
    }

    /// Whether the header is of this format and its numbers agree with one another.
    ///
    /// # Errors
    ///
    /// The first number that does not agree, and the one it should agree with.
    pub fn check(&self) -> Result<(), TraceError> {
        check_names([Some(&self.format), Some(&self.dtype), Some(&self.order)])?;
        self.shape().check()?;
        let lists = [
            ("expert_bytes", self.expert_bytes.as_ref().map(Vec::len)),
            ("layer_numbers", self.layer_numbers.as_ref().map(Vec::len)),
        ];
        for (key, length) in lists {
            if let Some(found) = length.filter(|&length| length != self.layers as usize) {
                return Err(TraceError::PerLayer { key, found, layers: self.layers });
            }
        }
        if let Some(layer) = self.expert_bytes.iter().flatten().position(|&bytes| bytes == 0) {
            return Err(TraceError::EmptyExpert { layer });
        }
        // Cannot overflow: a cell has at least two bytes, and the bytes of all ids were counted.
        let cells = self.tokens * u64::from(self.layers);
        if self.absent_cells > cells {
            return Err(TraceError::TooManyAbsent { absent: self.absent_cells, cells });
        }
        self.check_segments()
    }

    fn check_segments(&self) -> Result<(), TraceError> {
        let mut covered: u64 = 0;
        for (index, segment) in self.segments.iter().enumerate() {
            let name = || segment.name.clone();
            if segment.start != covered {
                return Err(TraceError::SegmentStart { index, name: name(), expected: covered, found: segment.start });
            }
            if segment.tokens == 0 {
                return Err(TraceError::EmptySegment { index, name: name() });
            }
            // A sum that does not fit is over any number of tokens too.
            covered = covered.saturating_add(segment.tokens);
        }
        if covered != self.tokens {
            return Err(TraceError::SegmentsCover { covered, tokens: self.tokens });
        }
        Ok(())
    }

    /// The header of a line without its newline.
    pub(crate) fn from_line(line: &[u8]) -> Result<Self, TraceError> {
        // The names come first and alone: another format may have any other keys, and the useful answer is its name.
        let names: Names = serde_json::from_slice(line).map_err(TraceError::Header)?;
        check_names([names.format.as_ref(), names.dtype.as_ref(), names.order.as_ref()])?;
        let header: Self = serde_json::from_slice(line).map_err(TraceError::Header)?;
        header.check()?;
        Ok(header)
    }

    /// The line, with its newline, that [`from_line`](Self::from_line) reads.
    pub(crate) fn to_line(&self) -> Result<Vec<u8>, TraceError> {
        self.check()?;
        let mut line = serde_json::to_vec(self).map_err(TraceError::Header)?;
        if line.len() > MAX_HEADER_BYTES {
            return Err(TraceError::HeaderTooLong { found: line.len() as u64 });
        }
        // An extra key that has a documented name would stand twice in the line; nobody could read that.
        Self::from_line(&line)?;
        line.push(b'\n');
        Ok(line)
    }
}

/// The keys that say which format this is.
#[derive(Deserialize)]
struct Names {
    format: Option<String>,
    dtype: Option<String>,
    order: Option<String>,
}

/// Checks format, dtype and order, in this order.
fn check_names([format, dtype, order]: [Option<&String>; 3]) -> Result<(), TraceError> {
    let check = |key, found: Option<&String>, expected| match found {
        Some(found) if found == expected => Ok(()),
        _ => Err(TraceError::Key { key, found: found.cloned(), expected }),
    };
    check("format", format, FORMAT)?;
    if dtype.is_some_and(|dtype| dtype == WEIGHT_DTYPE) {
        return Err(TraceError::Weights { found: WEIGHT_DTYPE.to_owned() });
    }
    check("dtype", dtype, DTYPE)?;
    check("order", order, ORDER)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        let segments = vec![Segment::new("a", Phase::Prefill, 0, 3), Segment::new("b", Phase::DecodeLike, 3, 2)];
        Header::new("toy", Shape { tokens: 5, layers: 2, top_k: 2, experts: 4 }, segments)
    }

    #[test]
    fn a_line_gives_the_header_back() {
        let mut header = header();
        header.expert_bytes = Some(vec![7, 9]);
        header.layer_numbers = Some(vec![1, 5]);
        header.note = Some("two lines\nin one".to_owned());
        header.extra.insert("engine".to_owned(), Value::from("x"));
        header.segments[1].extra.insert("prompt_tokens".to_owned(), Value::from(12));
        let line = header.to_line().unwrap();
        assert_eq!(line.iter().filter(|&&byte| byte == b'\n').count(), 1);
        assert_eq!(Header::from_line(&line[..line.len() - 1]).unwrap(), header);
    }

    #[test]
    fn sizes_are_bounded_before_they_are_multiplied() {
        for (tokens, layers) in [(u64::MAX, 1), (u64::MAX, u32::MAX), (1, u32::MAX), (u64::MAX / 8 + 1, 2)] {
            let mut header = header();
            (header.tokens, header.layers) = (tokens, layers);
            header.segments = vec![Segment::new("a", Phase::Mixed, 0, tokens)];
            assert!(header.check().is_err(), "{tokens} tokens, {layers} layers");
        }
        let mut header = header();
        header.segments[0].tokens = u64::MAX;
        header.segments[1].start = u64::MAX;
        assert!(matches!(header.check(), Err(TraceError::SegmentsCover { covered: u64::MAX, tokens: 5 })));
    }

    #[test]
    fn a_documented_key_cannot_hide_among_the_extra_ones() {
        let mut header = header();
        header.extra.insert("tokens".to_owned(), Value::from(5));
        assert!(matches!(header.to_line(), Err(TraceError::Header(_))));
    }
}
