//! Files cut short and files overwritten: always an error or a model, never a panic, and never memory for a count that
//! the file cannot back.

mod support;

use std::io::Cursor;
use std::path::Path;

use ftcache_model::{Gguf, ModelError, MoeModel};
use ftcache_policy::ExpertId;
use support::{Builder, Folder, full_bytes, testdata};

fn read(header: &[u8], file_bytes: u64) -> Result<MoeModel, ModelError> {
    let file = Gguf::read(Cursor::new(header), file_bytes, Path::new("model.gguf"))?;
    let model = MoeModel::from_files(&[file])?;
    model.geometry().map(|_| model)
}

/// Small models whose last tensor ends the file.
fn models() -> Vec<(&'static str, Vec<u8>, u64)> {
    let names = ["fused_biases.gguf", "scales.gguf", "separate.gguf", "every_type.gguf"];
    names.map(|name| (name, testdata(&format!("{name}-header")), full_bytes(name))).into()
}

/// The file ends after any byte of its header.
#[test]
fn truncated_at_every_byte() {
    for (name, header, file_bytes) in models() {
        assert!(read(&header, file_bytes).is_ok(), "{name}");
        for end in 0..=header.len() {
            let error = read(&header[..end], end as u64).expect_err(name);
            let expected =
                matches!(error, ModelError::Truncated { .. } | ModelError::Count { .. } | ModelError::PastEnd { .. });
            assert!(expected, "{name} cut at {end}: {error}");
        }
    }
}

/// The same through a real file, which ends between two reads rather than where a slice does.
#[test]
fn truncated_files() {
    let folder = Folder::new();
    let header = testdata("scales.gguf-header");
    for end in (0..header.len()).step_by(7) {
        let path = folder.write("cut.gguf", &header[..end], end as u64);
        assert!(MoeModel::open(&path).is_err(), "cut at {end}");
    }
}

/// A file that shrank after its length was asked for.
#[test]
fn shorter_than_it_said() {
    let (name, header, file_bytes) = models().remove(0);
    for end in 0..header.len() {
        let result = read(&header[..end], file_bytes);
        // The last bytes pad the header and are not read.
        assert!(result.is_err() || header[end..].iter().all(|&byte| byte == 0), "{name} cut at {end}");
    }
}

/// A header of which the end was never written, in a file of full size.
#[test]
fn zeros_from_every_byte_on() {
    for (_, header, file_bytes) in models() {
        for end in 0..header.len() {
            let mut zeroed = header.clone();
            zeroed[end..].fill(0);
            drop(read(&zeroed, file_bytes));
        }
    }
}

/// Every aligned and unaligned 8 bytes set to what counts, lengths and offsets fear most.
#[test]
fn huge_numbers_everywhere() {
    let huge = [u64::MAX, i64::MAX as u64, 1 << 63, 1 << 32, u64::from(u32::MAX), u64::MAX - 31];
    for (_, header, file_bytes) in models() {
        for start in 4..header.len() - 8 {
            for value in huge {
                let mut changed = header.clone();
                changed[start..start + 8].copy_from_slice(&value.to_le_bytes());
                drop(read(&changed, file_bytes));
            }
        }
    }
}

/// Each count of the format, huge, in a file of a terabyte: an error by arithmetic, at once.
#[test]
fn huge_counts_are_refused() {
    let tensor = |name: &str| Builder::moe().tensor(name, &[32, 2, 4], "Q8_0");
    let whole = tensor("blk.0.ffn_up_exps.weight");
    let keys_at = 24;
    let infos_at = keys_at + whole.keys.len();
    let name_bytes = "blk.0.ffn_up_exps.weight".len();
    let fields = [
        ("tensor count", 8, 8),
        ("metadata count", 16, 8),
        ("length of a key", keys_at, 8),
        ("length of a text", keys_at + 8 + "general.architecture".len() + 4, 8),
        ("length of a name", infos_at, 8),
        ("dimension count", infos_at + 8 + name_bytes, 4),
        ("dimension", infos_at + 8 + name_bytes + 4, 8),
        ("outer dimension", infos_at + 8 + name_bytes + 4 + 16, 8),
        ("offset", infos_at + 8 + name_bytes + 4 + 24 + 4, 8),
    ];
    assert!(read(&whole.header(), 1 << 40).is_ok());
    for (field, start, width) in fields {
        let mut header = whole.header();
        header[start..start + width].fill(0xff);
        let error = read(&header, 1 << 40).expect_err(field);
        assert!(!matches!(error, ModelError::Io { .. }), "{field}: {error}");
    }
    // Arrays, of any kind of item, nested or not.
    for item_id in 0..=12 {
        let header = Builder::moe().array("tokenizer", item_id, u64::MAX, &[]).header();
        assert!(read(&header, 1 << 40).is_err(), "items of type {item_id}");
    }
}

/// Bytes changed at random.
#[test]
fn random_bytes() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |bound: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % bound as u64) as usize
    };
    for (_, header, file_bytes) in models() {
        for _ in 0..5000 {
            let mut changed = header.clone();
            for _ in 0..=random(4) {
                changed[random(header.len())] = random(256) as u8;
            }
            drop(read(&changed, file_bytes));
        }
    }
}

/// What a model need not have: a bank in every layer, a name, one number of experts for all layers.
#[test]
fn unusual_but_right() {
    let counts = [0_u32, 2, 3].map(u32::to_le_bytes).concat();
    let model = Builder::moe_without("llama.expert_used_count")
        .array("llama.expert_used_count", 4, 3, &counts)
        .array("empty", 8, 0, &[])
        .key("long", 8, &[&5000_u64.to_le_bytes()[..], &[b'x'; 5000]].concat())
        .tensor("blk.1.ffn_down_exps.weight", &[32, 2, 4], "Q8_0")
        .tensor("blk.0.ffn_up_exps.weight", &[32, 2, 4], "Q8_0")
        .tensor("blk.0.ffn_down_exps.weight", &[32, 2, 4], "F16");
    let read_model = read(&model.header(), model.file_bytes()).unwrap();
    assert_eq!((read_model.top_k, read_model.name.as_str()), (3, "model"));
    assert_eq!(read_model.banks, ["up", "down"]);
    let tags: Vec<&str> = read_model.layers.iter().map(|layer| layer.tag.as_str()).collect();
    assert_eq!(tags, ["up=Q8_0 down=F16", "Q8_0"]);
    let geometry = read_model.geometry().unwrap();
    let rows: Vec<&[u64]> = geometry.layers().iter().map(|layer| layer.row_bytes()).collect();
    assert_eq!(rows, [[68, 128], [0, 68]]);

    // Version 2 has the layout of version 3.
    let old = Builder { version: 2, ..model };
    assert_eq!(read(&old.header(), old.file_bytes()).unwrap(), read_model);
}

/// The data starts at a multiple of the file's own alignment, far behind the header.
#[test]
fn wide_alignment() {
    let mut model = Builder { alignment: 4096, ..Builder::moe().key("general.alignment", 10, &4096_u64.to_le_bytes()) };
    for name in ["blk.0.ffn_up_exps.weight", "blk.1.ffn_up_exps.weight"] {
        model = model.tensor(name, &[32, 2, 4], "Q8_0");
    }
    let layers = read(&model.header(), model.file_bytes()).unwrap().layers;
    let offsets: Vec<u64> = layers.iter().map(|layer| layer.tensors[0].row(ExpertId::new(1)).offset).collect();
    assert_eq!(offsets, [4096 + 68, 8192 + 68]);
}
