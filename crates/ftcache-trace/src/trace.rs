//! A whole trace in memory: two bytes a route, and the header.

use std::io::{Read, Write};

use crate::cells::Cells;
use crate::format::{ABSENT, Form, Header};
use crate::{TraceError, TraceReader, TraceWriter};

/// A header and all its ids, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    header: Header,
    /// `ids.len() == tokens * layers * top_k`, in the order of the file.
    ids: Vec<u16>,
}

impl Trace {
    /// A trace of ids `[token][layer][k]`.
    ///
    /// # Errors
    ///
    /// What a reader of the same header and ids would refuse.
    pub fn new(header: Header, ids: Vec<u16>) -> Result<Self, TraceError> {
        header.check()?;
        let shape = header.shape();
        let (expected, found) = (shape.id_bytes() / 2, ids.len() as u64);
        if expected != found {
            return Err(TraceError::IdCount { expected, found });
        }
        let mut cells = Cells::new(shape);
        ids.chunks_exact(shape.token_ids()).try_for_each(|token| cells.pass(token))?;
        cells.finish(header.absent_cells)?;
        Ok(Self { header, ids })
    }

    /// Reads a whole trace, plain or zstd, and checks it to its end.
    ///
    /// # Errors
    ///
    /// As [`TraceReader`].
    pub fn read(source: impl Read) -> Result<Self, TraceError> {
        let mut reader = TraceReader::new(source)?;
        // At most 2 MiB on the header's word alone; more grows with the data.
        let announced = reader.header().shape().id_bytes() / 2;
        let mut ids = Vec::with_capacity(announced.min(1 << 20) as usize);
        while reader.append_token(&mut ids)? {}
        Ok(Self { header: reader.header().clone(), ids })
    }

    /// Writes it and gives the sink back.
    ///
    /// # Errors
    ///
    /// As [`TraceWriter`], of which only an error of the sink and a header too long are left.
    pub fn write<W: Write>(&self, sink: W, form: Form) -> Result<W, TraceError> {
        let mut writer = TraceWriter::new(sink, &self.header, form)?;
        self.tokens().try_for_each(|token| writer.write_token(token))?;
        writer.finish()
    }

    /// What the trace says of itself.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// All ids, `[token][layer][k]`.
    pub fn ids(&self) -> &[u16] {
        &self.ids
    }

    /// The ids of each token in turn, `[layer][k]`.
    pub fn tokens(&self) -> impl ExactSizeIterator<Item = &[u16]> {
        self.ids.chunks_exact(self.header.shape().token_ids())
    }

    /// The experts of one token in one layer, the router's first choice first; `None` where the cell is absent.
    ///
    /// # Panics
    ///
    /// If there is no such token or layer, as an index would.
    pub fn cell(&self, token: usize, layer: usize) -> Option<&[u16]> {
        let (layers, top_k) = (self.header.layers as usize, self.header.top_k as usize);
        assert!(layer < layers, "layer {layer} of {layers}");
        let cell = &self.ids[(token * layers + layer) * top_k..][..top_k];
        // A cell is absent as a whole, so its first id tells.
        (cell[0] != ABSENT).then_some(cell)
    }

    /// The FNV-1a digest (64 bits) of the ids' bytes as they lie in a file: which data a result was measured on.
    pub fn digest(&self) -> u64 {
        let bytes = self.ids.iter().flat_map(|id| id.to_le_bytes());
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
    }
}
