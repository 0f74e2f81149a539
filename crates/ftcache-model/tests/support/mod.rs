//! Models for the tests: committed headers made sparse files, and headers built by hand to be wrong in one place.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use ftcache_model::GgmlType;

/// A committed file of `testdata/gguf`.
pub(crate) fn testdata(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/gguf").join(name);
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A committed JSON file of `testdata/gguf`.
pub(crate) fn json(name: &str) -> serde_json::Value {
    serde_json::from_slice(&testdata(name)).expect("the file is JSON")
}

/// Bytes of the whole model of which a header is committed.
pub(crate) fn full_bytes(model: &str) -> u64 {
    json("headers.json")[model].as_u64().expect("the model has a size")
}

/// A folder of its own, deleted at the end.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("model-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).expect("the folder can be made");
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// A file of these bytes, then zeros (holes, where the file system has them) up to `bytes`.
    pub(crate) fn write(&self, name: &str, header: &[u8], bytes: u64) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, header).expect("the header can be written");
        fs::OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(bytes)).expect("sparse files work");
        path
    }

    /// A committed model at its full size.
    pub(crate) fn fixture(&self, model: &str) -> PathBuf {
        self.write(model, &testdata(&format!("{model}-header")), full_bytes(model))
    }

    /// An error's text without this folder.
    pub(crate) fn text(&self, error: impl std::fmt::Display) -> String {
        error.to_string().replace(&format!("{}/", self.0.display()), "")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A header by hand. Nothing is checked: that is what it is for.
#[derive(Clone)]
pub(crate) struct Builder {
    pub(crate) magic: [u8; 4],
    pub(crate) version: u32,
    pub(crate) key_count: u64,
    pub(crate) tensor_count: u64,
    pub(crate) alignment: u64,
    pub(crate) keys: Vec<u8>,
    pub(crate) infos: Vec<u8>,
    pub(crate) data_bytes: u64,
}

impl Builder {
    pub(crate) fn new() -> Self {
        let (keys, infos) = (Vec::new(), Vec::new());
        Self { magic: *b"GGUF", version: 3, key_count: 0, tensor_count: 0, alignment: 32, keys, infos, data_bytes: 0 }
    }

    /// A model of two blocks, four experts, top-2, without tensors.
    pub(crate) fn moe() -> Self {
        Self::moe_without("")
    }

    /// The same without one of its keys.
    pub(crate) fn moe_without(key: &str) -> Self {
        let numbers = [("llama.block_count", 2), ("llama.expert_count", 4), ("llama.expert_used_count", 2)];
        let model = Self::new().text("general.architecture", "llama");
        numbers.into_iter().filter(|number| number.0 != key).fold(model, |model, (key, value)| model.u32(key, value))
    }

    pub(crate) fn key(mut self, key: &str, type_id: u32, value: &[u8]) -> Self {
        self.keys.extend(string(key));
        self.keys.extend(type_id.to_le_bytes());
        self.keys.extend(value);
        self.key_count += 1;
        self
    }

    pub(crate) fn u32(self, key: &str, value: u32) -> Self {
        self.key(key, 4, &value.to_le_bytes())
    }

    pub(crate) fn text(self, key: &str, value: &str) -> Self {
        self.key(key, 8, &string(value))
    }

    pub(crate) fn array(self, key: &str, item_id: u32, count: u64, items: &[u8]) -> Self {
        let mut value = item_id.to_le_bytes().to_vec();
        value.extend(count.to_le_bytes());
        value.extend(items);
        self.key(key, 9, &value)
    }

    /// A tensor behind those before it.
    pub(crate) fn tensor(mut self, name: &str, dims: &[u64], type_name: &str) -> Self {
        let ggml_type = GgmlType::all().find(|known| known.name() == type_name).expect("a known type");
        let offset = self.data_bytes;
        let bytes = dims.iter().product::<u64>() / ggml_type.block_elements() * ggml_type.block_bytes();
        self.data_bytes += bytes.next_multiple_of(self.alignment);
        self.raw_tensor(name, dims, ggml_type.id(), offset)
    }

    pub(crate) fn raw_tensor(mut self, name: &str, dims: &[u64], type_id: u32, offset: u64) -> Self {
        self.infos.extend(string(name));
        self.infos.extend((dims.len() as u32).to_le_bytes());
        for dim in dims {
            self.infos.extend(dim.to_le_bytes());
        }
        self.infos.extend(type_id.to_le_bytes());
        self.infos.extend(offset.to_le_bytes());
        self.tensor_count += 1;
        self
    }

    /// The header, up to the data.
    pub(crate) fn header(&self) -> Vec<u8> {
        let mut header = self.magic.to_vec();
        header.extend(self.version.to_le_bytes());
        header.extend(self.tensor_count.to_le_bytes());
        header.extend(self.key_count.to_le_bytes());
        header.extend(&self.keys);
        header.extend(&self.infos);
        header.resize(header.len().next_multiple_of(self.alignment as usize), 0);
        header
    }

    /// Bytes of the whole model.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.header().len() as u64 + self.data_bytes
    }

    pub(crate) fn write(&self, folder: &Folder, name: &str) -> PathBuf {
        folder.write(name, &self.header(), self.file_bytes())
    }
}

fn string(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}
