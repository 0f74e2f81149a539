//! What one layer's kernels read, and the key by which layers may share a pool.
//!
//! A slot holds one expert: a row in each bank. Two layers may share slots only if every row has the same bytes *and*
//! the same quantisation, since a kernel is compiled for the quantisation and would read the other's bits as its own.

use std::fmt;

/// The quantisation tag of a layer plus every bank's row bytes: layers of one key may share a pool.
///
/// A tag is any byte string. A bank that the layer's kernel does not read has rows of zero bytes, so that every layer
/// of a model has a row width for every bank.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LayoutKey {
    tag: Option<Box<[u8]>>,
    row_bytes: Box<[u64]>,
}

impl LayoutKey {
    /// A layer with a quantisation tag; `row_bytes[bank]` in bytes per expert.
    pub fn tagged(tag: impl Into<Vec<u8>>, row_bytes: impl Into<Vec<u64>>) -> Self {
        Self { tag: Some(tag.into().into_boxed_slice()), row_bytes: row_bytes.into().into_boxed_slice() }
    }

    /// A layer whose quantisation is not told; `row_bytes[bank]` in bytes per expert.
    ///
    /// Several such layers of equal bytes are accepted only in a model that declares one quantisation for all.
    pub fn untagged(row_bytes: impl Into<Vec<u64>>) -> Self {
        Self { tag: None, row_bytes: row_bytes.into().into_boxed_slice() }
    }

    /// The quantisation tag, if one was told.
    pub fn tag(&self) -> Option<&[u8]> {
        self.tag.as_deref()
    }

    /// Bytes of one expert's row in each bank.
    pub fn row_bytes(&self) -> &[u64] {
        &self.row_bytes
    }

    /// Bytes of one expert over all banks.
    ///
    /// Checked to fit when the [`Model`](crate::Model) is made; saturates before that.
    pub fn expert_bytes(&self) -> u64 {
        self.row_bytes.iter().fold(0, |sum: u64, &bytes| sum.saturating_add(bytes))
    }

    /// The same quantisation with rows of other widths.
    pub(crate) fn with_rows(&self, row_bytes: Vec<u64>) -> Self {
        Self { tag: self.tag.clone(), row_bytes: row_bytes.into_boxed_slice() }
    }

    /// The same key with a row width for each of `bank_count` banks, the added ones of zero bytes.
    pub(crate) fn widened(self, bank_count: usize) -> Self {
        let mut row_bytes = self.row_bytes.into_vec();
        row_bytes.resize(bank_count, 0);
        Self { tag: self.tag, row_bytes: row_bytes.into_boxed_slice() }
    }
}

impl fmt::Display for LayoutKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.tag {
            Some(tag) => write!(f, "{}", tag.escape_ascii())?,
            None => write!(f, "untagged")?,
        }
        write!(f, " {:?}", self.row_bytes)
    }
}
