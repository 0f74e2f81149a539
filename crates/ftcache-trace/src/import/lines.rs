//! Lines out of bytes that may be compressed, and their numbers.

use std::io::Read;

use super::ImportError;
use crate::Place;
use crate::format::MAX_HEADER_BYTES;
use crate::frames::Bytes;
use crate::reader::at;

/// The longest line: as long as a header may be. A token of 100 layers of top-64 has under 64 KiB of JSON.
const MAX_LINE_BYTES: usize = MAX_HEADER_BYTES;

pub(crate) struct Lines<R> {
    bytes: Bytes<R>,
    line: Vec<u8>,
    number: u64,
}

impl<R: Read> Lines<R> {
    pub(crate) fn new(source: R) -> Result<Self, ImportError> {
        let bytes = Bytes::new(source).map_err(|fault| at(Place::Line { line: 1 }, fault))?;
        Ok(Self { bytes, line: Vec::new(), number: 0 })
    }

    /// The next line that is not blank, and its number; the last may lack its newline.
    pub(crate) fn next(&mut self) -> Result<Option<(u64, &[u8])>, ImportError> {
        while self.read()? {
            if !self.line.trim_ascii().is_empty() {
                return Ok(Some((self.number, self.line.trim_ascii())));
            }
        }
        Ok(None)
    }

    /// Reads one line, without its newline; false at the end.
    fn read(&mut self) -> Result<bool, ImportError> {
        self.line.clear();
        self.number += 1;
        loop {
            let chunk = self.bytes.fill().map_err(|fault| at(Place::Line { line: self.number }, fault))?;
            if chunk.is_empty() {
                return Ok(!self.line.is_empty());
            }
            let newline = chunk.iter().position(|&byte| byte == b'\n');
            let count = newline.unwrap_or(chunk.len());
            self.line.extend_from_slice(&chunk[..count]);
            if self.line.len() > MAX_LINE_BYTES {
                return Err(ImportError::LineTooLong { line: self.number, most: MAX_LINE_BYTES });
            }
            self.bytes.consume(count + usize::from(newline.is_some()));
            if newline.is_some() {
                return Ok(true);
            }
        }
    }
}
