//! Bytes out of a file that may be compressed: plain ones as they are, zstd frame by frame.
//!
//! The decoder underneath reads one frame and compares no checksum; a file may have several frames, may skip some, and
//! a checksum that is not compared is worth nothing. So both are done here. What is decoded never grows past the
//! window and a block.

use std::error::Error;
use std::io::{self, BufRead, BufReader, Read};

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// 64 KiB: a system call every few thousand ids, and it stays in the second-level cache.
const BUFFER_BYTES: usize = 1 << 16;

/// Why no more bytes come; the reader adds how far it got.
#[derive(Debug)]
pub(crate) enum Fault {
    Read(io::Error),
    Cut { byte: u64 },
    Damaged { byte: u64, source: Box<dyn Error + Send + Sync> },
    Checksum { stored: u32, computed: u32 },
}

/// Buffered, decompressed bytes.
pub(crate) struct Bytes<R> {
    input: Input<R>,
    buffer: Box<[u8]>,
    /// `buffer[start..end]` is not yet consumed.
    start: usize,
    end: usize,
}

enum Input<R> {
    Plain(Prefixed<R>),
    Zstd(Box<Frames<R>>),
}

/// The first bytes, which were looked at, and the rest.
type Prefixed<R> = io::Chain<io::Cursor<Vec<u8>>, R>;

impl<R: Read> Bytes<R> {
    pub(crate) fn new(mut source: R) -> Result<Self, Fault> {
        let mut first = Vec::with_capacity(4);
        source.by_ref().take(4).read_to_end(&mut first).map_err(Fault::Read)?;
        let compressed = is_zstd(&first);
        let source = io::Cursor::new(first).chain(source);
        let input = if compressed { Input::Zstd(Box::new(Frames::new(source))) } else { Input::Plain(source) };
        Ok(Self { input, buffer: vec![0; BUFFER_BYTES].into_boxed_slice(), start: 0, end: 0 })
    }

    /// The next bytes; none only at the end.
    pub(crate) fn fill(&mut self) -> Result<&[u8], Fault> {
        if self.start == self.end {
            self.start = 0;
            self.end = match &mut self.input {
                Input::Plain(source) => read_some(source, &mut self.buffer).map_err(Fault::Read)?,
                Input::Zstd(frames) => frames.read(&mut self.buffer)?,
            };
        }
        Ok(&self.buffer[self.start..self.end])
    }

    pub(crate) fn consume(&mut self, count: usize) {
        self.start += count;
        assert!(self.start <= self.end, "only what was filled can be consumed");
    }
}

/// Whether bytes are the start of a frame, or of one to be skipped.
fn is_zstd(first: &[u8]) -> bool {
    matches!(first, [0x28, 0xb5, 0x2f, 0xfd] | [0x50..=0x5f, 0x2a, 0x4d, 0x18])
}

fn read_some(source: &mut impl Read, target: &mut [u8]) -> io::Result<usize> {
    loop {
        match source.read(target) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// The frames of a file, one after another.
struct Frames<R> {
    source: Tap<Prefixed<R>>,
    decoder: FrameDecoder,
    /// Whether the decoder is inside a frame.
    open: bool,
}

impl<R: Read> Frames<R> {
    fn new(source: Prefixed<R>) -> Self {
        Self { source: Tap::new(source), decoder: FrameDecoder::new(), open: false }
    }

    /// Decoded bytes into a target that is not empty; 0 only after the last frame.
    fn read(&mut self, target: &mut [u8]) -> Result<usize, Fault> {
        loop {
            if !self.open {
                if self.source.is_at_end().map_err(Fault::Read)? {
                    return Ok(0);
                }
                self.open = self.begin()?;
                continue;
            }
            let count = self.decoder.read(target).map_err(Fault::Read)?;
            if count > 0 {
                return Ok(count);
            }
            if self.decoder.is_finished() {
                self.compare_checksum()?;
                self.open = false;
                continue;
            }
            let decoded = self.decoder.decode_blocks(&mut self.source, BlockDecodingStrategy::UptoBlocks(1));
            decoded.map_err(|error| self.source.fault(error))?;
        }
    }

    /// Starts the next frame; false where it was one to be skipped.
    fn begin(&mut self) -> Result<bool, Fault> {
        match self.decoder.reset(&mut self.source) {
            Ok(()) => Ok(true),
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                let skipped = io::copy(&mut self.source.by_ref().take(length.into()), &mut io::sink());
                match skipped {
                    Ok(count) if count == u64::from(length) => Ok(false),
                    Ok(_) => Err(Fault::Cut { byte: self.source.consumed }),
                    Err(error) => Err(self.source.fault(error)),
                }
            }
            Err(error) => Err(self.source.fault(error)),
        }
    }

    /// Of a frame that is decoded and drained, without which the computed sum is not yet that of the frame.
    fn compare_checksum(&self) -> Result<(), Fault> {
        let sums = (self.decoder.get_checksum_from_data(), self.decoder.get_calculated_checksum());
        match sums {
            (Some(stored), Some(computed)) if stored != computed => Err(Fault::Checksum { stored, computed }),
            _ => Ok(()),
        }
    }
}

/// The compressed bytes on their way to the decoder, which keeps neither where it was nor why a read went wrong.
struct Tap<R> {
    inner: BufReader<R>,
    consumed: u64,
    ended: bool,
    failed: Option<io::Error>,
}

impl<R: Read> Tap<R> {
    fn new(source: R) -> Self {
        Self { inner: BufReader::with_capacity(BUFFER_BYTES, source), consumed: 0, ended: false, failed: None }
    }

    fn is_at_end(&mut self) -> io::Result<bool> {
        loop {
            match self.inner.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result.map(<[u8]>::is_empty),
            }
        }
    }

    /// Whose fault it was that decoding stopped.
    fn fault(&mut self, error: impl Into<Box<dyn Error + Send + Sync>>) -> Fault {
        match self.failed.take() {
            Some(failed) => Fault::Read(failed),
            None if self.ended => Fault::Cut { byte: self.consumed },
            None => Fault::Damaged { byte: self.consumed, source: error.into() },
        }
    }
}

impl<R: Read> Read for Tap<R> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        match read_some(&mut self.inner, target) {
            Ok(count) => {
                self.consumed += count as u64;
                self.ended |= count == 0 && !target.is_empty();
                Ok(count)
            }
            Err(error) => {
                let kind = error.kind();
                self.failed = Some(error);
                Err(kind.into())
            }
        }
    }
}
