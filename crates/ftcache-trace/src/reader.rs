//! Reads a trace token by token, in memory that neither the trace's length nor its header's claims bound: one token's
//! ids, the header, and what the decompression needs.

use std::fmt;
use std::io::Read;

use crate::cells::Cells;
use crate::format::{Header, MAX_HEADER_BYTES};
use crate::frames::{Bytes, Fault};
use crate::{Place, TraceError};

/// A trace being read.
///
/// Tokens are checked as they come, but the count of absent cells, what follows the last token and a checksum only
/// when [`next_token`](Self::next_token) has answered `false`. Whoever stops before has read unchecked data.
pub struct TraceReader<R> {
    bytes: Bytes<R>,
    header: Header,
    cells: Cells,
    /// The bytes of one token, used again for each.
    token: Vec<u8>,
    ended: bool,
}

impl<R: Read> TraceReader<R> {
    /// Reads and checks the header. The source needs no buffer of its own.
    ///
    /// # Errors
    ///
    /// Data that are no trace, weights, or a header that [`Header::check`] refuses.
    pub fn new(source: R) -> Result<Self, TraceError> {
        let start = Place::Header { bytes: 0 };
        let mut bytes = Bytes::new(source).map_err(|fault| at(start, fault))?;
        let line = read_line(&mut bytes)?;
        let header = Header::from_line(&line)?;
        let cells = Cells::new(header.shape());
        Ok(Self { bytes, header, cells, token: Vec::new(), ended: false })
    }

    /// What the trace says of itself.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Replaces `ids` by those of the next token, `[layer][k]`; `false` after the last one, when all is checked.
    ///
    /// # Errors
    ///
    /// Data that end early or late, or ids that break a rule; `ids` is then empty and nothing more is read.
    pub fn next_token(&mut self, ids: &mut Vec<u16>) -> Result<bool, TraceError> {
        ids.clear();
        self.append_token(ids)
    }

    /// As [`next_token`](Self::next_token), but after the ids that are already there.
    pub(crate) fn append_token(&mut self, ids: &mut Vec<u16>) -> Result<bool, TraceError> {
        if self.ended {
            return Err(TraceError::Ended { token: self.cells.token(), tokens: self.header.tokens });
        }
        let before = ids.len();
        let result = self.read_token(ids);
        if result.is_err() {
            self.ended = true;
            ids.truncate(before);
        }
        result
    }

    fn read_token(&mut self, ids: &mut Vec<u16>) -> Result<bool, TraceError> {
        if self.cells.token() == self.header.tokens {
            self.read_end()?;
            return Ok(false);
        }
        self.fill_token()?;
        let before = ids.len();
        ids.extend(self.token.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])));
        self.cells.pass(&ids[before..])?;
        Ok(true)
    }

    /// Fills `token`; it grows with the bytes that are there, not with those that the header announces.
    fn fill_token(&mut self) -> Result<(), TraceError> {
        let wanted = self.header.shape().token_bytes() as usize;
        self.token.clear();
        while self.token.len() < wanted {
            let found = self.token.len();
            let chunk = self.bytes.fill().map_err(|fault| at(self.cells.place(found), fault))?;
            if chunk.is_empty() {
                return Err(TraceError::Truncated { place: self.cells.place(found) });
            }
            let count = chunk.len().min(wanted - found);
            self.token.extend_from_slice(&chunk[..count]);
            self.bytes.consume(count);
        }
        Ok(())
    }

    fn read_end(&mut self) -> Result<(), TraceError> {
        let rest = self.bytes.fill().map_err(|fault| at(self.cells.place(0), fault))?;
        if !rest.is_empty() {
            let expected = self.header.shape().id_bytes();
            return Err(TraceError::Trailing { expected, found: expected.saturating_add(rest.len() as u64) });
        }
        self.cells.finish(self.header.absent_cells)
    }
}

impl<R> fmt::Debug for TraceReader<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceReader")
            .field("header", &self.header)
            .field("token", &self.cells.token())
            .finish_non_exhaustive()
    }
}

/// The header line without its newline.
fn read_line<R: Read>(bytes: &mut Bytes<R>) -> Result<Vec<u8>, TraceError> {
    let mut line = Vec::new();
    loop {
        let found = line.len() as u64;
        let chunk = bytes.fill().map_err(|fault| at(Place::Header { bytes: found }, fault))?;
        // Looked at before 16 MiB of something else are searched for a newline.
        match (line.is_empty(), chunk) {
            (true, []) => return Err(TraceError::Empty),
            (true, [b'{', ..]) | (false, [_, ..]) => {}
            (true, _) => return Err(TraceError::NotATrace { first: chunk[..chunk.len().min(4)].to_vec() }),
            (false, []) => return Err(TraceError::HeaderCut { found }),
        }
        let newline = chunk.iter().position(|&byte| byte == b'\n');
        let count = newline.unwrap_or(chunk.len());
        line.extend_from_slice(&chunk[..count]);
        if line.len() > MAX_HEADER_BYTES {
            return Err(TraceError::HeaderTooLong { found: line.len() as u64 });
        }
        bytes.consume(count + usize::from(newline.is_some()));
        if newline.is_some() {
            return Ok(line);
        }
    }
}

pub(crate) fn at(place: Place, fault: Fault) -> TraceError {
    match fault {
        Fault::Read(error) => TraceError::Read { error, place },
        Fault::Cut { byte } => TraceError::ZstdCut { byte, place },
        Fault::Damaged { byte, source } => TraceError::ZstdDamaged { byte, place, source },
        Fault::Checksum { stored, computed } => TraceError::ZstdChecksum { stored, computed, place },
    }
}
