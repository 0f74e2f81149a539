//! What a model file can get wrong: the file, the tensor or key, what was needed and what is there.

use std::path::PathBuf;

use ftcache_policy::GeometryError;

use crate::GgmlType;

/// A model file that cannot be read, or that has no experts to cache.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The system refused to open or read the file.
    // The field is not called `source`, since the text below already has it.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// Not a GGUF file.
    #[error("{}: starts with \"{}\", not with \"GGUF\"", path.display(), found.escape_ascii())]
    Magic {
        /// The file.
        path: PathBuf,
        /// Its first bytes.
        found: [u8; 4],
    },
    /// A file for big-endian machines.
    #[error(
        "{}: is big-endian (version {version} with its bytes swapped); only little-endian files are read",
        path.display()
    )]
    BigEndian {
        /// The file.
        path: PathBuf,
        /// Its version, bytes in our order.
        version: u32,
    },
    /// A version of the format that is not read.
    #[error("{}: is GGUF version {version}; versions 2 and 3 are read", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// The file ends inside its header.
    #[error(
        "{}: ends inside {what}: {needed} bytes are needed at offset {offset}, {left} are there",
        path.display()
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// What was being read.
        what: String,
        /// Where in the file.
        offset: u64,
        /// Bytes needed from there.
        needed: u64,
        /// Bytes there are.
        left: u64,
    },
    /// A count of keys or tensors that cannot be true, found before anything is set aside for them.
    #[error("{}: {count} {what} need at least {needed} bytes, {left} are left in the file", path.display())]
    Count {
        /// The file.
        path: PathBuf,
        /// What is counted.
        what: &'static str,
        /// The count in the file.
        count: u64,
        /// Bytes that so many have at least.
        needed: u128,
        /// Bytes between the count and the end of the file.
        left: u64,
    },
    /// A header longer than any model's.
    #[error("{}: the header reaches byte {needed} inside {what}; at most {most} bytes are read", path.display())]
    HeaderTooLong {
        /// The file.
        path: PathBuf,
        /// What was being read.
        what: String,
        /// The byte up to which it reaches.
        needed: u64,
        /// The most that is read.
        most: u64,
    },
    /// A name longer than any.
    #[error("{}: {what} has {bytes} bytes; names have at most {most}", path.display())]
    NameTooLong {
        /// The file.
        path: PathBuf,
        /// Which name.
        what: String,
        /// Its bytes.
        bytes: u64,
        /// The most that a name has.
        most: u64,
    },
    /// Text that is not UTF-8.
    #[error("{}: {what} is not UTF-8: \"{}\"", path.display(), bytes.escape_ascii())]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// Which text.
        what: String,
        /// Its bytes.
        bytes: Vec<u8>,
    },
    /// A metadata key that is there twice.
    #[error("{}: key {key} is there twice", path.display())]
    DuplicateKey {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
    },
    /// A type of metadata values that is not known.
    #[error("{}: key {key} has values of type {id}; types 0 to 12 are known", path.display())]
    ValueType {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// The id of the type.
        id: u32,
    },
    /// Arrays in arrays, too deep.
    #[error("{}: key {key} has arrays nested over {most} deep", path.display())]
    Nesting {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// The deepest that is read.
        most: u32,
    },
    /// A metadata key that is needed and not there.
    #[error("{}: has no key {key}", path.display())]
    KeyMissing {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
    },
    /// A metadata value of another kind than its key has.
    #[error("{}: key {key} is {found}, not {wanted}", path.display())]
    KeyKind {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// What it should be.
        wanted: &'static str,
        /// What it is.
        found: &'static str,
    },
    /// A metadata number out of its range.
    #[error("{}: key {key} is {value}; it must be from {least} to {most}", path.display())]
    KeyRange {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// Its value.
        value: i128,
        /// The least it may be.
        least: u64,
        /// The most it may be.
        most: u64,
    },
    /// An alignment of the tensor data that is not a power of two.
    #[error("{}: general.alignment is {alignment}, not a power of two", path.display())]
    Alignment {
        /// The file.
        path: PathBuf,
        /// What the file says.
        alignment: u64,
    },
    /// A tensor name that is there twice, in one file or in two shards.
    #[error("{}: tensor {tensor} is there twice, first in {}", path.display(), first.display())]
    DuplicateTensor {
        /// The file with the second.
        path: PathBuf,
        /// The file with the first.
        first: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A tensor of too many dimensions.
    #[error("{}: tensor {tensor} has {count} dimensions; at most 4 are read", path.display())]
    Dimensions {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its dimensions.
        count: u32,
    },
    /// A tensor of a type that ggml has removed.
    #[error("{}: tensor {tensor} has type {id} ({name}), which ggml has removed", path.display())]
    TypeRemoved {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The id of the type.
        id: u32,
        /// The name it had.
        name: &'static str,
    },
    /// A tensor of a type that is not known.
    #[error("{}: tensor {tensor} has type {id}; types up to {} are known", path.display(), last_type_id())]
    TypeUnknown {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The id of the type.
        id: u32,
    },
    /// A row that is not made of whole blocks.
    #[error(
        "{}: tensor {tensor} has rows of {elements} elements; {ggml_type} has blocks of {}",
        path.display(), ggml_type.block_elements()
    )]
    PartialBlock {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Elements of a row.
        elements: u64,
        /// Its type.
        ggml_type: GgmlType,
    },
    /// A tensor whose bytes cannot be counted.
    #[error("{}: tensor {tensor} of {dims:?} elements has more bytes than 64 bits count", path.display())]
    TensorTooLarge {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its dimensions.
        dims: Vec<u64>,
    },
    /// A tensor that does not start where the file's alignment allows.
    #[error("{}: tensor {tensor} has data offset {offset}, no multiple of the alignment {alignment}", path.display())]
    Misaligned {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its offset in the tensor data.
        offset: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// A tensor that reaches past the end of the file.
    #[error("{}: tensor {tensor} ends at byte {needed}; the file has {actual} bytes", path.display())]
    PastEnd {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Bytes the file would have to have.
        needed: u128,
        /// Bytes it has.
        actual: u64,
    },
    /// A shard whose name is not what its metadata says.
    #[error("{}: is shard {number} of {count} by its metadata; its name should end in {expected}", path.display())]
    ShardName {
        /// The file.
        path: PathBuf,
        /// Its number, from 1.
        number: u64,
        /// Shards of the model.
        count: u64,
        /// How the name would end.
        expected: String,
    },
    /// A shard that is not there.
    #[error("{}: is missing, shard {number} of {count}", path.display())]
    ShardMissing {
        /// The missing file.
        path: PathBuf,
        /// Its number, from 1.
        number: u64,
        /// Shards of the model.
        count: u64,
    },
    /// A shard that disagrees with its name or with the other shards.
    #[error("{}: {key} is {found}; {needed} is needed", path.display())]
    ShardMismatch {
        /// The file.
        path: PathBuf,
        /// The key.
        key: &'static str,
        /// What the other shards, or their tensors, say.
        needed: u64,
        /// What this one says.
        found: u64,
    },
    /// A model without experts.
    #[error("{}: has no mixture-of-experts layer ({why})", path.display())]
    NoExperts {
        /// The file.
        path: PathBuf,
        /// What shows it.
        why: String,
    },
    /// An expert tensor of a block that the model does not have.
    #[error("{}: tensor {tensor} is of block {block}; the model has {block_count}, from 0", path.display())]
    Block {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its block.
        block: u64,
        /// Blocks of the model.
        block_count: u32,
    },
    /// An expert tensor whose outermost dimension is not the expert.
    #[error(
        "{}: tensor {tensor} of {dims:?} elements has {} as its outermost dimension; \
         the model has {expert_count} experts",
        path.display(), dims.last().unwrap_or(&1)
    )]
    OuterDimension {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its dimensions, innermost first.
        dims: Vec<u64>,
        /// Experts of a layer.
        expert_count: u32,
    },
    /// A tensor of one expert that the model does not have.
    #[error("{}: tensor {tensor} is of expert {expert}; the model has {expert_count}, from 0", path.display())]
    Expert {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its expert.
        expert: u64,
        /// Experts of a layer.
        expert_count: u32,
    },
    /// A bank with a tensor an expert, of which one is not there.
    #[error("{}: has no tensor {tensor}; {found} of {expert_count} experts are there", path.display())]
    ExpertMissing {
        /// The file.
        path: PathBuf,
        /// The tensor that is missing.
        tensor: String,
        /// Experts that are there.
        found: u32,
        /// Experts of a layer.
        expert_count: u32,
    },
    /// A bank with a tensor an expert, of which two are not alike.
    #[error(
        "{}: tensor {tensor} has {bytes} bytes of {ggml_type}, expert 0 has {first_bytes} of {first_type}",
        path.display()
    )]
    ExpertsDiffer {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its bytes.
        bytes: u64,
        /// Its type.
        ggml_type: GgmlType,
        /// Bytes of expert 0.
        first_bytes: u64,
        /// Type of expert 0.
        first_type: GgmlType,
    },
    /// A bank that is there twice: as one tensor, and as a tensor an expert.
    #[error("{}: tensor {tensor} has all experts, {other} one of them again", path.display())]
    BankTwice {
        /// The file.
        path: PathBuf,
        /// The tensor with all experts.
        tensor: String,
        /// A tensor with one.
        other: String,
    },
    /// Layers and experts that the policy refuses.
    #[error("{}: {error}", path.display())]
    Geometry {
        /// The file.
        path: PathBuf,
        /// What the policy said.
        error: GeometryError,
    },
}

fn last_type_id() -> u32 {
    GgmlType::all().last().map_or(0, |last| last.id())
}
