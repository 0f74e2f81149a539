//! The header of one GGUF file: metadata, tensor infos, and where each tensor's bytes lie.
//!
//! Everything in the file is taken for hostile. A length is compared with what is left of the file before anything is
//! set aside for it, products are checked, and what a model needs no more of (the tokenizer's arrays, long texts) is
//! stepped over. Tensor data is never read; that it lies inside the file is all that is asked of it.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Arguments;
use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::path::{Path, PathBuf};

use crate::{GgmlType, ModelError, TypeIdError};

/// The most of a header that is read. The largest vocabularies, of 260,000 tokens with their merges, come to about
/// 20 MB; the bound keeps a file of a terabyte from being read for its length.
const HEADER_BYTES_MAX: u64 = 256 << 20;
/// The most bytes of a key or of a tensor's name: what the format allows for a key.
const NAME_BYTES_MAX: u64 = (1 << 16) - 1;
/// The longest text that is kept. Chat templates may be longer, and are nothing to us.
const TEXT_BYTES_MAX: u64 = 4096;
/// The longest array of integers that is kept: some models list one number a block.
const INTEGERS_MAX: u64 = 4096;
/// Arrays in arrays: the format allows any depth, and each level is a level of our stack.
const NESTING_MAX: u32 = 8;
/// Bytes of the shortest metadata entry: an empty key, its value's type, a value of one byte.
const KEY_BYTES_MIN: u64 = 8 + 4 + 1;
/// Bytes of the shortest tensor info: an empty name, no dimension, a type, an offset.
const TENSOR_BYTES_MIN: u64 = 8 + 4 + 4 + 8;
/// Where the format says nothing else, tensors start at multiples of this.
const DEFAULT_ALIGNMENT: u64 = 32;

/// A metadata value, as far as it is kept.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// A whole number of any width.
    Integer(i128),
    /// A floating-point number of either width.
    Float(f64),
    /// True or false.
    Bool(bool),
    /// A text.
    Text(String),
    /// A short array of whole numbers.
    Integers(Vec<i128>),
    /// A long text or another array: read over, not kept.
    Skipped,
}

impl Value {
    /// What errors call it.
    fn kind(&self) -> &'static str {
        match self {
            Self::Integer(_) => "an integer",
            Self::Float(_) => "a float",
            Self::Bool(_) => "a bool",
            Self::Text(_) => "a text",
            Self::Integers(_) => "an array of integers",
            Self::Skipped => "an array or a long text",
        }
    }
}

/// One tensor: its shape, its type, and where its bytes lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    name: String,
    dims: [u64; 4],
    dim_count: usize,
    ggml_type: GgmlType,
    offset: u64,
    bytes: u64,
}

impl TensorInfo {
    /// The name, such as `blk.3.ffn_up_exps.weight`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Elements in each dimension, innermost first.
    pub fn dims(&self) -> &[u64] {
        &self.dims[..self.dim_count]
    }

    /// The type of its elements.
    pub fn ggml_type(&self) -> GgmlType {
        self.ggml_type
    }

    /// Bytes from the start of the file to its first.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Its bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// The header of a GGUF file.
#[derive(Debug, Clone, PartialEq)]
pub struct Gguf {
    path: PathBuf,
    version: u32,
    file_bytes: u64,
    alignment: u64,
    data_offset: u64,
    metadata: BTreeMap<String, Value>,
    tensors: Vec<TensorInfo>,
}

impl Gguf {
    /// Reads the header of a file.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, that is not GGUF of version 2 or 3 in little-endian order, whose header ends early
    /// or contradicts itself, or that is too short for its tensors.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let io_error = |error| ModelError::Io { path: path.to_owned(), error };
        let file = File::open(path).map_err(io_error)?;
        let file_bytes = file.metadata().map_err(io_error)?.len();
        Self::read(BufReader::new(file), file_bytes, path)
    }

    /// Reads a header from the start of a model of `file_bytes` bytes; `path` is its name in errors.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn read(reader: impl Read + Seek, file_bytes: u64, path: &Path) -> Result<Self, ModelError> {
        let mut header = Header { reader, path, position: 0, file_bytes };
        let version = header.magic_and_version()?;
        let tensor_count = header.u64(format_args!("the tensor count"))?;
        let key_count = header.u64(format_args!("the metadata count"))?;
        header.check_count("metadata keys", key_count, KEY_BYTES_MIN)?;
        header.check_count("tensors", tensor_count, TENSOR_BYTES_MIN)?;

        let metadata = header.metadata(key_count)?;
        let alignment = alignment(&metadata, path)?;
        let mut tensors = header.tensors(tensor_count)?;

        let data_offset = header.position.next_multiple_of(alignment);
        for tensor in &mut tensors {
            place(tensor, data_offset, alignment, file_bytes, path)?;
        }
        Ok(Self { path: path.to_owned(), version, file_bytes, alignment, data_offset, metadata, tensors })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The version of the format: 2 or 3, which have the same layout.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Bytes of the file.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Tensors start at multiples of this, counted from the data's start.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// Bytes from the start of the file to the tensor data.
    pub fn data_offset(&self) -> u64 {
        self.data_offset
    }

    /// Every metadata key and its value.
    pub fn metadata(&self) -> &BTreeMap<String, Value> {
        &self.metadata
    }

    /// Every tensor, in the file's order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// A text of the metadata, or `None` if the key is not there.
    pub(crate) fn text(&self, key: &str) -> Result<Option<&str>, ModelError> {
        match self.metadata.get(key) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(other) => Err(self.kind_error(key, "a text", other)),
        }
    }

    /// A number of the metadata, or `None` if the key is not there.
    pub(crate) fn number(&self, key: &str) -> Result<Option<u32>, ModelError> {
        match self.metadata.get(key) {
            None => Ok(None),
            Some(&Value::Integer(value)) => self.in_range(key, value).map(Some),
            Some(other) => Err(self.kind_error(key, "an integer", other)),
        }
    }

    /// A number, or one number a block; `None` if the key is not there.
    pub(crate) fn numbers(&self, key: &str) -> Result<Option<Vec<u32>>, ModelError> {
        match self.metadata.get(key) {
            Some(Value::Integers(values)) => {
                values.iter().map(|&value| self.in_range(key, value)).collect::<Result<_, _>>().map(Some)
            }
            _ => Ok(self.number(key)?.map(|number| vec![number])),
        }
    }

    fn in_range(&self, key: &str, value: i128) -> Result<u32, ModelError> {
        u32::try_from(value).map_err(|_| ModelError::KeyRange {
            path: self.path.clone(),
            key: key.to_owned(),
            value,
            least: 0,
            most: u32::MAX.into(),
        })
    }

    fn kind_error(&self, key: &str, wanted: &'static str, found: &Value) -> ModelError {
        ModelError::KeyKind { path: self.path.clone(), key: key.to_owned(), wanted, found: found.kind() }
    }

    pub(crate) fn missing(&self, key: impl Into<String>) -> ModelError {
        ModelError::KeyMissing { path: self.path.clone(), key: key.into() }
    }
}

fn alignment(metadata: &BTreeMap<String, Value>, path: &Path) -> Result<u64, ModelError> {
    const KEY: &str = "general.alignment";
    match metadata.get(KEY) {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(&Value::Integer(value)) => {
            let (least, most) = (1, 1 << 31);
            let range_error =
                || ModelError::KeyRange { path: path.to_owned(), key: KEY.to_owned(), value, least, most };
            let alignment = u64::try_from(value).ok().filter(|&value| value <= most).ok_or_else(range_error)?;
            match alignment.is_power_of_two() {
                true => Ok(alignment),
                false => Err(ModelError::Alignment { path: path.to_owned(), alignment }),
            }
        }
        Some(other) => Err(ModelError::KeyKind {
            path: path.to_owned(),
            key: KEY.to_owned(),
            wanted: "an integer",
            found: other.kind(),
        }),
    }
}

/// Turns a tensor's offset in the data into one in the file, and checks that the file holds the tensor.
fn place(
    tensor: &mut TensorInfo,
    data_offset: u64,
    alignment: u64,
    file_bytes: u64,
    path: &Path,
) -> Result<(), ModelError> {
    if !tensor.offset.is_multiple_of(alignment) {
        return Err(ModelError::Misaligned {
            path: path.to_owned(),
            tensor: tensor.name.clone(),
            offset: tensor.offset,
            alignment,
        });
    }
    let needed = u128::from(data_offset) + u128::from(tensor.offset) + u128::from(tensor.bytes);
    if needed > u128::from(file_bytes) {
        return Err(ModelError::PastEnd {
            path: path.to_owned(),
            tensor: tensor.name.clone(),
            needed,
            actual: file_bytes,
        });
    }
    // The sum just checked is not over `file_bytes`.
    tensor.offset += data_offset;
    Ok(())
}

/// A header being read: every read first asks whether the file has the bytes.
struct Header<'a, R> {
    reader: R,
    path: &'a Path,
    position: u64,
    file_bytes: u64,
}

impl<R: Read + Seek> Header<'_, R> {
    fn magic_and_version(&mut self) -> Result<u32, ModelError> {
        let found = self.array(format_args!("the magic"))?;
        if &found != b"GGUF" {
            return Err(ModelError::Magic { path: self.path.to_owned(), found });
        }
        let version = self.u32(format_args!("the version"))?;
        // Versions are small, so one with nothing in its low half was written by a machine of the other order.
        if version != 0 && version & 0xffff == 0 {
            return Err(ModelError::BigEndian { path: self.path.to_owned(), version: version.swap_bytes() });
        }
        match version {
            2 | 3 => Ok(version),
            // Version 1 had 32-bit lengths; ggml refuses it too.
            _ => Err(ModelError::Version { path: self.path.to_owned(), version }),
        }
    }

    fn metadata(&mut self, count: u64) -> Result<BTreeMap<String, Value>, ModelError> {
        let mut metadata = BTreeMap::new();
        for index in 0..count {
            let key = self.name(format_args!("the name of metadata key {index}"))?;
            let type_id = self.u32(format_args!("key {key}"))?;
            let value = self.value(&key, type_id)?;
            if metadata.contains_key(&key) {
                return Err(ModelError::DuplicateKey { path: self.path.to_owned(), key });
            }
            metadata.insert(key, value);
        }
        Ok(metadata)
    }

    fn value(&mut self, key: &str, type_id: u32) -> Result<Value, ModelError> {
        let what = format_args!("key {key}");
        Ok(match type_id {
            6 => Value::Float(f32::from_le_bytes(self.array(what)?).into()),
            7 => Value::Bool(u8::from_le_bytes(self.array(what)?) != 0),
            8 => {
                let bytes = self.u64(what)?;
                if bytes > TEXT_BYTES_MAX {
                    self.skip(bytes, what)?;
                    return Ok(Value::Skipped);
                }
                Value::Text(self.utf8(bytes, what)?)
            }
            9 => {
                let item_id = self.u32(what)?;
                let count = self.u64(what)?;
                if is_integer(item_id) && count <= INTEGERS_MAX {
                    let mut integers = Vec::new();
                    for _ in 0..count {
                        integers.push(self.integer(key, item_id)?);
                    }
                    return Ok(Value::Integers(integers));
                }
                self.skip_items(key, item_id, count, 1)?;
                Value::Skipped
            }
            12 => Value::Float(f64::from_le_bytes(self.array(what)?)),
            _ => Value::Integer(self.integer(key, type_id)?),
        })
    }

    fn integer(&mut self, key: &str, type_id: u32) -> Result<i128, ModelError> {
        let what = format_args!("key {key}");
        Ok(match type_id {
            0 => u8::from_le_bytes(self.array(what)?).into(),
            1 => i8::from_le_bytes(self.array(what)?).into(),
            2 => u16::from_le_bytes(self.array(what)?).into(),
            3 => i16::from_le_bytes(self.array(what)?).into(),
            4 => u32::from_le_bytes(self.array(what)?).into(),
            5 => i32::from_le_bytes(self.array(what)?).into(),
            10 => u64::from_le_bytes(self.array(what)?).into(),
            11 => i64::from_le_bytes(self.array(what)?).into(),
            _ => return Err(self.value_type_error(key, type_id)),
        })
    }

    /// Steps over `count` values of one type. Each takes bytes of the file, so the file bounds the loops.
    fn skip_items(&mut self, key: &str, item_id: u32, count: u64, depth: u32) -> Result<(), ModelError> {
        let what = format_args!("key {key}");
        match item_id {
            8 => {
                for _ in 0..count {
                    let bytes = self.u64(what)?;
                    self.skip(bytes, what)?;
                }
                Ok(())
            }
            9 if depth == NESTING_MAX => {
                Err(ModelError::Nesting { path: self.path.to_owned(), key: key.to_owned(), most: NESTING_MAX })
            }
            9 => {
                for _ in 0..count {
                    let inner_id = self.u32(what)?;
                    let inner_count = self.u64(what)?;
                    self.skip_items(key, inner_id, inner_count, depth + 1)?;
                }
                Ok(())
            }
            _ => match fixed_bytes(item_id) {
                // A product that saturates is over any file's bytes.
                Some(bytes) => self.skip(count.saturating_mul(bytes), what),
                None => Err(self.value_type_error(key, item_id)),
            },
        }
    }

    fn value_type_error(&self, key: &str, id: u32) -> ModelError {
        ModelError::ValueType { path: self.path.to_owned(), key: key.to_owned(), id }
    }

    fn tensors(&mut self, count: u64) -> Result<Vec<TensorInfo>, ModelError> {
        // Not reserved for `count`: an info of 24 bytes in the file is several times that here.
        let mut tensors = Vec::new();
        let mut names = HashSet::new();
        for index in 0..count {
            let tensor = self.tensor(index)?;
            if !names.insert(tensor.name.clone()) {
                let path = self.path.to_owned();
                return Err(ModelError::DuplicateTensor { first: path.clone(), path, tensor: tensor.name });
            }
            tensors.push(tensor);
        }
        Ok(tensors)
    }

    /// One tensor info; its offset is still that in the data.
    fn tensor(&mut self, index: u64) -> Result<TensorInfo, ModelError> {
        let name = self.name(format_args!("the name of tensor {index}"))?;
        let what = format_args!("tensor {name}");
        let count = self.u32(what)?;
        if count > 4 {
            return Err(ModelError::Dimensions { path: self.path.to_owned(), tensor: name, count });
        }
        let dim_count = count as usize;
        let mut dims = [1; 4];
        for dim in &mut dims[..dim_count] {
            *dim = self.u64(what)?;
        }
        let id = self.u32(what)?;
        let offset = self.u64(what)?;
        let ggml_type = match GgmlType::from_id(id) {
            Ok(ggml_type) => ggml_type,
            Err(error) => {
                let path = self.path.to_owned();
                return Err(match error {
                    TypeIdError::Removed(removed) => ModelError::TypeRemoved { path, tensor: name, id, name: removed },
                    TypeIdError::Unknown => ModelError::TypeUnknown { path, tensor: name, id },
                });
            }
        };

        if !dims[0].is_multiple_of(ggml_type.block_elements()) {
            return Err(ModelError::PartialBlock {
                path: self.path.to_owned(),
                tensor: name,
                elements: dims[0],
                ggml_type,
            });
        }
        let row_bytes = (dims[0] / ggml_type.block_elements()).checked_mul(ggml_type.block_bytes());
        let bytes = dims[1..].iter().try_fold(row_bytes, |bytes, &dim| Some(bytes?.checked_mul(dim))).flatten();
        match bytes {
            Some(bytes) => Ok(TensorInfo { name, dims, dim_count, ggml_type, offset, bytes }),
            None => Err(ModelError::TensorTooLarge {
                path: self.path.to_owned(),
                tensor: name,
                dims: dims[..dim_count].to_vec(),
            }),
        }
    }

    fn check_count(&self, what: &'static str, count: u64, bytes_min: u64) -> Result<(), ModelError> {
        let needed = u128::from(count) * u128::from(bytes_min);
        let left = self.file_bytes.saturating_sub(self.position);
        if needed > u128::from(left) {
            return Err(ModelError::Count { path: self.path.to_owned(), what, count, needed, left });
        }
        Ok(())
    }

    /// A key or a tensor's name.
    fn name(&mut self, what: Arguments<'_>) -> Result<String, ModelError> {
        let bytes = self.u64(what)?;
        if bytes > NAME_BYTES_MAX {
            return Err(ModelError::NameTooLong {
                path: self.path.to_owned(),
                what: what.to_string(),
                bytes,
                most: NAME_BYTES_MAX,
            });
        }
        self.utf8(bytes, what)
    }

    /// Text of a length that the caller has bounded.
    fn utf8(&mut self, bytes: u64, what: Arguments<'_>) -> Result<String, ModelError> {
        self.require(bytes, what)?;
        let mut text = vec![0; bytes as usize];
        self.fill(&mut text)?;
        String::from_utf8(text).map_err(|error| ModelError::NotUtf8 {
            path: self.path.to_owned(),
            what: what.to_string(),
            bytes: error.into_bytes(),
        })
    }

    fn u32(&mut self, what: Arguments<'_>) -> Result<u32, ModelError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    fn u64(&mut self, what: Arguments<'_>) -> Result<u64, ModelError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    fn array<const N: usize>(&mut self, what: Arguments<'_>) -> Result<[u8; N], ModelError> {
        self.require(N as u64, what)?;
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn skip(&mut self, bytes: u64, what: Arguments<'_>) -> Result<(), ModelError> {
        self.require(bytes, what)?;
        // `require` bounds it by `HEADER_BYTES_MAX`. A relative seek keeps the reader's buffer.
        self.reader.seek_relative(bytes as i64).map_err(|error| self.io_error(error))?;
        self.position += bytes;
        Ok(())
    }

    fn fill(&mut self, target: &mut [u8]) -> Result<(), ModelError> {
        self.reader.read_exact(target).map_err(|error| self.io_error(error))?;
        self.position += target.len() as u64;
        Ok(())
    }

    /// Whether the header may have so many bytes more.
    fn require(&self, bytes: u64, what: Arguments<'_>) -> Result<(), ModelError> {
        let left = self.file_bytes.saturating_sub(self.position);
        if bytes > left {
            return Err(ModelError::Truncated {
                path: self.path.to_owned(),
                what: what.to_string(),
                offset: self.position,
                needed: bytes,
                left,
            });
        }
        if self.position + bytes > HEADER_BYTES_MAX {
            return Err(ModelError::HeaderTooLong {
                path: self.path.to_owned(),
                what: what.to_string(),
                needed: self.position + bytes,
                most: HEADER_BYTES_MAX,
            });
        }
        Ok(())
    }

    fn io_error(&self, error: std::io::Error) -> ModelError {
        ModelError::Io { path: self.path.to_owned(), error }
    }
}

/// Whether values of this type are whole numbers.
fn is_integer(type_id: u32) -> bool {
    matches!(type_id, 0..=5 | 10 | 11)
}

/// Bytes of a value of this type, if all have the same.
fn fixed_bytes(type_id: u32) -> Option<u64> {
    match type_id {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}
