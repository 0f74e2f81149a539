//! The types of tensor elements: how many elements a block has, and how many bytes.
//!
//! The numbers are those of ggml.h and ggml-common.h. A type that is not in the table is refused, never guessed: its
//! row width decides what is copied where.

use std::fmt;

/// A type of ggml: blocks of so many elements in so many bytes.
// A reference, so that errors with two types in them stay small.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct GgmlType(&'static Block);

#[derive(PartialEq, Eq, Hash)]
struct Block {
    id: u32,
    name: &'static str,
    elements: u32,
    bytes: u32,
}

/// A type id that stands for no type of today.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TypeIdError {
    /// A type that ggml no longer reads; its name.
    Removed(&'static str),
    /// No type that we know.
    Unknown,
}

/// Every type, ascending by id.
static BLOCKS: &[Block] = &[
    block(0, "F32", 1, 4),
    block(1, "F16", 1, 2),
    block(2, "Q4_0", 32, 2 + 16),
    block(3, "Q4_1", 32, 2 + 2 + 16),
    block(6, "Q5_0", 32, 2 + 4 + 16),
    block(7, "Q5_1", 32, 2 + 2 + 4 + 16),
    block(8, "Q8_0", 32, 2 + 32),
    // PyPI's gguf 0.19.0 says 4 + 4 + 32: it kept the two floats that ggml made two halves. What counts here is
    // ggml-common.h; no model file holds this type, which is made of activations.
    block(9, "Q8_1", 32, 2 + 2 + 32),
    block(10, "Q2_K", 256, 2 + 2 + 16 + 64),
    block(11, "Q3_K", 256, 2 + 64 + 32 + 12),
    block(12, "Q4_K", 256, 2 + 2 + 12 + 128),
    block(13, "Q5_K", 256, 2 + 2 + 12 + 128 + 32),
    block(14, "Q6_K", 256, 2 + 16 + 192),
    block(15, "Q8_K", 256, 4 + 256 + 32),
    block(16, "IQ2_XXS", 256, 2 + 64),
    block(17, "IQ2_XS", 256, 2 + 64 + 8),
    block(18, "IQ3_XXS", 256, 2 + 96),
    block(19, "IQ1_S", 256, 2 + 32 + 16),
    block(20, "IQ4_NL", 32, 2 + 16),
    block(21, "IQ3_S", 256, 2 + 104 + 4),
    block(22, "IQ2_S", 256, 2 + 64 + 16),
    block(23, "IQ4_XS", 256, 2 + 2 + 4 + 128),
    block(24, "I8", 1, 1),
    block(25, "I16", 1, 2),
    block(26, "I32", 1, 4),
    block(27, "I64", 1, 8),
    block(28, "F64", 1, 8),
    block(29, "IQ1_M", 256, 32 + 16 + 8),
    block(30, "BF16", 1, 2),
    block(34, "TQ1_0", 256, 2 + 4 + 48),
    block(35, "TQ2_0", 256, 2 + 64),
    block(39, "MXFP4", 32, 1 + 16),
    block(40, "NVFP4", 64, 4 + 32),
    block(41, "Q1_0", 128, 2 + 16),
    block(42, "Q2_0", 64, 2 + 16),
];

/// The ids that ggml took out of service. They are not given out again.
static REMOVED: &[(u32, &str)] = &[
    (4, "Q4_2"),
    (5, "Q4_3"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (36, "IQ4_NL_4_4"),
    (37, "IQ4_NL_4_8"),
    (38, "IQ4_NL_8_8"),
];

const fn block(id: u32, name: &'static str, elements: u32, bytes: u32) -> Block {
    Block { id, name, elements, bytes }
}

impl GgmlType {
    /// Every type, ascending by id.
    pub fn all() -> impl ExactSizeIterator<Item = Self> {
        BLOCKS.iter().map(Self)
    }

    /// The type with this id.
    ///
    /// # Errors
    ///
    /// An id that was removed, or one that is not known.
    pub fn from_id(id: u32) -> Result<Self, TypeIdError> {
        if let Some(known) = Self::all().find(|known| known.id() == id) {
            return Ok(known);
        }
        match REMOVED.iter().find(|removed| removed.0 == id) {
            Some(&(_, name)) => Err(TypeIdError::Removed(name)),
            None => Err(TypeIdError::Unknown),
        }
    }

    /// The number by which files name it.
    pub const fn id(self) -> u32 {
        self.0.id
    }

    /// The name, such as `Q4_K`.
    pub const fn name(self) -> &'static str {
        self.0.name
    }

    /// Elements of a block.
    pub const fn block_elements(self) -> u64 {
        self.0.elements as u64
    }

    /// Bytes of a block.
    pub const fn block_bytes(self) -> u64 {
        self.0.bytes as u64
    }
}

impl fmt::Debug for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every id up to well past the last: in exactly one of the tables, or unknown.
    #[test]
    fn ids_are_known_removed_or_unknown() {
        let removed = [4, 5, 31, 32, 33, 36, 37, 38];
        for id in 0..100 {
            match GgmlType::from_id(id) {
                Ok(known) => assert!(known.id() == id && id <= 42 && !removed.contains(&id), "{id}"),
                Err(TypeIdError::Removed(_)) => assert!(removed.contains(&id), "{id}"),
                Err(TypeIdError::Unknown) => assert!(id > 42, "{id}"),
            }
        }
        assert_eq!(GgmlType::from_id(u32::MAX), Err(TypeIdError::Unknown));
        assert_eq!(GgmlType::all().len(), 43 - removed.len());
        assert!(GgmlType::all().is_sorted_by(|a, b| a.id() < b.id()));
    }
}
