//! Writes a trace token by token, by the rules that the reader checks.
//!
//! The header stands first and says how many tokens and absent cells follow, so both must be known at the start; the
//! end only compares. Whoever cannot know them (a recorder in a running engine) keeps the ids, two bytes each, and
//! writes a [`Trace`](crate::Trace) when it has them all. Patching the header afterwards was ruled out: it needs a
//! target that seeks, and under zstd it cannot be done.

use std::fmt;
use std::io::Write;

use ruzstd::encoding::{CompressionLevel, compress_to_vec};

use crate::cells::Cells;
use crate::format::{Form, Header};
use crate::{Place, TraceError};

/// Plain bytes go out when this many are together.
const PLAIN_BYTES: usize = 1 << 16;

/// The bytes of one zstd frame: 32 MiB. The encoder takes a frame at once, so this is what the writer holds; traces
/// below 16 million ids are one frame, which also those tools read that stop after the first.
const FRAME_BYTES: usize = 1 << 25;

/// A trace being written.
///
/// Dropped without [`finish`](Self::finish), it leaves a file that no reader accepts.
#[must_use = "a trace is complete only after `finish`"]
pub struct TraceWriter<W> {
    sink: W,
    form: Form,
    absent_cells: u64,
    cells: Cells,
    /// Not yet written.
    buffer: Vec<u8>,
    /// `buffer` is written when it has this many bytes.
    full: usize,
    ended: bool,
}

impl<W: Write> TraceWriter<W> {
    /// Starts a trace of `header.tokens` tokens, `header.absent_cells` of whose cells will be absent.
    ///
    /// The sink needs no buffer of its own.
    ///
    /// # Errors
    ///
    /// A header that [`Header::check`] refuses, one whose line is over [`MAX_HEADER_BYTES`](crate::MAX_HEADER_BYTES),
    /// or one with a documented key among its extra ones. Nothing is written then.
    pub fn new(sink: W, header: &Header, form: Form) -> Result<Self, TraceError> {
        let full = match form {
            Form::Plain => PLAIN_BYTES,
            Form::Zstd => FRAME_BYTES,
        };
        let buffer = header.to_line()?;
        let cells = Cells::new(header.shape());
        Ok(Self { sink, form, absent_cells: header.absent_cells, cells, buffer, full, ended: false })
    }

    /// Writes the ids of the next token, `[layer][k]`.
    ///
    /// # Errors
    ///
    /// Ids that break a rule, and one token too many: the writer is then as it was before. An error of the sink ends
    /// it, since nobody knows how much went through.
    pub fn write_token(&mut self, ids: &[u16]) -> Result<(), TraceError> {
        self.check_open()?;
        let tokens = self.cells.shape().tokens;
        if self.cells.token() == tokens {
            return Err(TraceError::TokenCount { expected: tokens, found: tokens + 1 });
        }
        self.cells.pass(ids)?;
        self.buffer.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
        if self.buffer.len() >= self.full { self.flush() } else { Ok(()) }
    }

    /// Writes what is left, flushes the sink and gives it back.
    ///
    /// # Errors
    ///
    /// Another number of tokens or absent cells than the header says; then the rest stays unwritten, so that no
    /// reader takes the file for a whole one. Or an error of the sink.
    pub fn finish(mut self) -> Result<W, TraceError> {
        self.check_open()?;
        self.cells.finish(self.absent_cells)?;
        self.flush()?;
        let flushed = self.sink.flush();
        flushed.map_err(|error| TraceError::Write { error, place: self.place() })?;
        Ok(self.sink)
    }

    fn check_open(&self) -> Result<(), TraceError> {
        if self.ended {
            return Err(TraceError::Ended { token: self.cells.token(), tokens: self.cells.shape().tokens });
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), TraceError> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let written = match self.form {
            Form::Plain => self.sink.write_all(&self.buffer),
            // The levels above are not implemented in the encoder. It writes a checksum.
            Form::Zstd => self.sink.write_all(&compress_to_vec(self.buffer.as_slice(), CompressionLevel::Fastest)),
        };
        self.buffer.clear();
        written.map_err(|error| {
            self.ended = true;
            TraceError::Write { error, place: self.place() }
        })
    }

    fn place(&self) -> Place {
        self.cells.place(0)
    }
}

impl<W> fmt::Debug for TraceWriter<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceWriter")
            .field("form", &self.form)
            .field("token", &self.cells.token())
            .finish_non_exhaustive()
    }
}
