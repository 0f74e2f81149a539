//! Cells in the order in which lines bring them, until they lie token by token. Says which order is none.

use super::{ImportError, Wrong};
use crate::{ABSENT, Header, Phase, Segment, Shape};

/// Where a cell belongs, in the file's own numbers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spot {
    pub(crate) token: u64,
    /// The layer as the file names it.
    pub(crate) number: u32,
    /// Its place among the layers that are kept.
    pub(crate) layer: usize,
    /// The line it stands on.
    pub(crate) line: u64,
}

/// The tokens so far, layer by layer.
pub(crate) struct Grid {
    experts: u32,
    /// Ids of a cell; the first cell tells where nothing did before.
    top_k: Option<usize>,
    columns: Vec<Column>,
    /// Tokens that any layer has.
    tokens: u64,
    segments: Vec<Segment>,
    /// The file's number of the last segment's first token.
    first: u64,
    /// `seen[id] == cell` says that the id was met in the current cell.
    seen: Vec<u64>,
    cell: u64,
}

/// One layer: `ids.len() == top_k * cells`, of which those that no line had are absent.
#[derive(Default)]
struct Column {
    ids: Vec<u16>,
    /// The line of the last cell.
    line: u64,
}

impl Grid {
    /// Of 1 to 65535 experts.
    pub(crate) fn new(experts: u32, top_k: Option<usize>) -> Self {
        let seen = vec![0; experts as usize];
        Self { experts, top_k, columns: Vec::new(), tokens: 0, segments: Vec::new(), first: 0, seen, cell: 0 }
    }

    /// Starts a segment at a token of the file; `follows` says that it goes on with the request before.
    pub(crate) fn begin(&mut self, name: String, phase: Phase, token: u64, follows: bool) -> Result<(), Wrong> {
        let here = if follows { self.next_token() } else { 0 };
        if ![0, here, self.tokens].contains(&token) {
            return Err(Wrong::SegmentStart { token, name, here, all: self.tokens });
        }
        self.first = token;
        self.segments.push(Segment::new(name, phase, self.tokens, 0));
        Ok(())
    }

    /// The file's number of the first token that no line of this segment had.
    fn next_token(&self) -> u64 {
        self.first + self.segments.last().map_or(0, |segment| segment.tokens)
    }

    /// Makes sure that a token is there, if only with absent cells.
    pub(crate) fn touch(&mut self, token: u64, number: u32) -> Result<(), Wrong> {
        let expected = self.next_token();
        if token < self.first {
            return Err(Wrong::TokenOrder { token, layer: number, last: self.first });
        }
        if token > expected {
            return Err(Wrong::TokenGap { token, layer: number, expected });
        }
        if token == expected {
            self.tokens += 1;
            self.segments.last_mut().expect("a segment has begun").tokens += 1;
        }
        Ok(())
    }

    pub(crate) fn cell(&mut self, spot: Spot, ids: &[i64]) -> Result<(), Wrong> {
        let Spot { token, number, layer, line } = spot;
        let top_k = *self.top_k.get_or_insert(ids.len());
        if ids.len() != top_k || top_k == 0 {
            return Err(Wrong::TopK { token, layer: number, found: ids.len(), expected: top_k.max(1) });
        }
        self.touch(token, number)?;
        if self.columns.len() <= layer {
            self.columns.resize_with(layer + 1, Column::default);
        }
        // `touch` has seen to it that the token is one of the last segment.
        let start = self.segments.last().map_or(0, |segment| segment.start);
        let index = (start + (token - self.first)) as usize;
        let column = &mut self.columns[layer];
        let cells = column.ids.len() / top_k;
        if cells > index {
            return Err(match cells == index + 1 {
                true => Wrong::LayerTwice { token, layer: number, first: column.line },
                false => Wrong::TokenOrder { token, layer: number, last: token + (cells - 1 - index) as u64 },
            });
        }
        column.ids.resize(index * top_k, ABSENT);
        column.line = line;
        self.cell += 1;
        for (place, &id) in ids.iter().enumerate() {
            let seen = usize::try_from(id).ok().and_then(|id| self.seen.get_mut(id));
            let Some(seen) = seen else {
                return Err(Wrong::Id { token, layer: number, id, experts: self.experts });
            };
            if *seen == self.cell {
                let first = ids.iter().position(|&other| other == id).expect("it was seen");
                return Err(Wrong::IdTwice { token, layer: number, id, first, second: place });
            }
            *seen = self.cell;
            column.ids.push(id as u16);
        }
        Ok(())
    }

    /// Layers that a line had, and those before them.
    pub(crate) fn layer_count(&self) -> u32 {
        self.columns.len() as u32
    }

    /// Header and ids of all of it; `layers` counts those that no line had, too.
    pub(crate) fn finish(mut self, model: String, layers: Option<u32>) -> Result<(Header, Vec<u16>), ImportError> {
        let top_k = self.top_k.filter(|_| self.cell > 0).ok_or(ImportError::NoRoutes)?;
        let layers = layers.unwrap_or(self.columns.len() as u32);
        self.columns.resize_with(layers as usize, Column::default);
        let shape = Shape { tokens: self.tokens, layers, top_k: top_k as u32, experts: self.experts };
        let mut header = Header::new(model, shape, self.segments);
        header.check()?;
        let mut ids = Vec::with_capacity((shape.id_bytes() / 2) as usize);
        for token in 0..self.tokens as usize {
            for column in &self.columns {
                match column.ids.get(token * top_k..(token + 1) * top_k) {
                    Some(cell) => ids.extend_from_slice(cell),
                    None => ids.resize(ids.len() + top_k, ABSENT),
                }
            }
        }
        header.absent_cells = ids.chunks_exact(top_k).filter(|cell| cell[0] == ABSENT).count() as u64;
        Ok((header, ids))
    }
}
