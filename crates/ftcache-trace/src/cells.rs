//! The rules of the ids, told once: reader, writer and [`Trace`](crate::Trace) ask the same code.

use crate::format::{ABSENT, Shape};
use crate::{Place, TraceError};

/// Checks token after token of one shape, and counts the absent cells.
#[derive(Debug)]
pub(crate) struct Cells {
    shape: Shape,
    /// Tokens that passed.
    token: u64,
    /// Absent cells of the tokens that passed.
    absent: u64,
    /// `seen[id] == cell` says that the id was met in the current cell; cells are counted from 1 over the whole trace,
    /// so nothing is cleared between them.
    seen: Vec<u64>,
    cell: u64,
}

impl Cells {
    /// Of a shape that [`Header::check`](crate::Header::check) has passed.
    pub(crate) fn new(shape: Shape) -> Self {
        Self { shape, token: 0, absent: 0, seen: vec![0; shape.experts as usize], cell: 0 }
    }

    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    /// Tokens that passed.
    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    /// Checks the next token's ids; a token that does not pass is not counted.
    pub(crate) fn pass(&mut self, ids: &[u16]) -> Result<(), TraceError> {
        let expected = self.shape.token_ids();
        if ids.len() != expected {
            return Err(TraceError::TokenIds { token: self.token, expected, found: ids.len() });
        }
        let mut absent = 0;
        for (layer, cell) in ids.chunks_exact(self.shape.top_k as usize).enumerate() {
            // One look-up an id, and no question which rule an id breaks until one does.
            self.cell += 1;
            let mut good = true;
            for &id in cell {
                match self.seen.get_mut(usize::from(id)) {
                    Some(seen) => {
                        good &= *seen != self.cell;
                        *seen = self.cell;
                    }
                    None => good = false,
                }
            }
            if !good {
                self.judge(layer as u32, cell)?;
                absent += 1;
            }
        }
        self.token += 1;
        self.absent += absent;
        Ok(())
    }

    /// Says what is wrong with a cell, or that it is absent as a whole.
    #[cold]
    fn judge(&self, layer: u32, cell: &[u16]) -> Result<(), TraceError> {
        let Shape { top_k, experts, .. } = self.shape;
        let token = self.token;
        let absent = cell.iter().filter(|&&id| id == ABSENT).count();
        if absent == cell.len() {
            return Ok(());
        }
        if absent > 0 {
            return Err(TraceError::HalfAbsent { token, layer, absent, top_k });
        }
        if let Some(&id) = cell.iter().find(|&&id| u32::from(id) >= experts) {
            return Err(TraceError::Id { token, layer, id, experts });
        }
        let pairs = (0..cell.len()).flat_map(|second| (0..second).map(move |first| (first, second)));
        for (first, second) in pairs {
            if cell[first] == cell[second] {
                return Err(TraceError::Twice { token, layer, id: cell[first], first, second });
            }
        }
        unreachable!("a cell that did not pass breaks a rule")
    }

    /// Checks what can only be known after the last token.
    pub(crate) fn finish(&self, absent_cells: u64) -> Result<(), TraceError> {
        if self.token != self.shape.tokens {
            return Err(TraceError::TokenCount { expected: self.shape.tokens, found: self.token });
        }
        if self.absent != absent_cells {
            return Err(TraceError::AbsentCells { expected: absent_cells, found: self.absent });
        }
        Ok(())
    }

    /// The place `found_in_token` bytes into the next token.
    pub(crate) fn place(&self, found_in_token: usize) -> Place {
        let expected = self.shape.id_bytes();
        if self.token == self.shape.tokens {
            return Place::End { bytes: expected };
        }
        let layer = (found_in_token / (self.shape.top_k as usize * 2)) as u32;
        let found = self.token * self.shape.token_bytes() + found_in_token as u64;
        Place::Ids { token: self.token, layer, expected, found }
    }
}
