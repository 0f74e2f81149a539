//! Headers that PyPI's gguf wrote, read by ours: the numbers are known beforehand. `testdata/gguf/write_models.py`
//! wrote the headers.

mod support;

use ftcache_model::{GgmlType, Gguf, ModelError, MoeLayer, MoeModel, RowPlace, Rows, Value};
use ftcache_policy::{Budget, Constraints, ExpertId, Geometry, LayerId, TailPad};
use support::{Folder, json, testdata};

fn open(model: &str) -> MoeModel {
    let folder = Folder::new();
    MoeModel::open(&folder.fixture(model)).unwrap_or_else(|error| panic!("{error}"))
}

/// `bank=bytes` of a layer's tensors.
fn rows(model: &MoeModel, layer: &MoeLayer) -> Vec<String> {
    let row = |bank: usize, bytes: u64| format!("{}={bytes}", model.banks[bank]);
    layer.tensors.iter().map(|tensor| row(tensor.bank.index(), tensor.row_bytes)).collect()
}

/// The one bank we are given says where expert `expert` lies.
fn place(layer: &MoeLayer, bank: usize, expert: u32) -> RowPlace {
    layer.tensors[bank].row(ExpertId::new(expert))
}

#[test]
fn the_type_table_is_that_of_pypi() {
    // Where the package and ggml-common.h disagree, the header of the code that runs is right.
    let ggml_says = |name: &str, bytes| if name == "Q8_1" { 36 } else { bytes };
    let table = json("ggml_types.json");
    let mut names: Vec<&str> = Vec::new();
    for row in table.as_array().expect("a list") {
        let id = row["id"].as_u64().expect("a number") as u32;
        let found = GgmlType::from_id(id).unwrap_or_else(|error| panic!("{row}: {error:?}"));
        assert_eq!(found.name(), row["name"], "{row}");
        assert_eq!(found.block_elements(), row["block_elements"].as_u64().unwrap(), "{row}");
        let block_bytes = ggml_says(found.name(), row["block_bytes"].as_u64().unwrap());
        assert_eq!(found.block_bytes(), block_bytes, "{row}");
        names.push(found.name());
    }
    assert_eq!(names.len(), 34);

    let others: Vec<GgmlType> = GgmlType::all().filter(|known| !names.contains(&known.name())).collect();
    let others: Vec<_> =
        others.iter().map(|one| (one.id(), one.name(), one.block_elements(), one.block_bytes())).collect();
    assert_eq!(others, [(42, "Q2_0", 64, 18)], "what the package does not have");
}

#[test]
fn mixed_quant() {
    let model = open("mixed_quant.gguf");
    assert_eq!((model.architecture.as_str(), model.name.as_str()), ("qwen3moe", "mixed_quant"));
    assert_eq!((model.block_count, model.expert_count, model.top_k), (48, 256, 10));
    assert_eq!(model.banks, ["gate", "up", "down"]);
    assert_eq!(model.layers.len(), 47);
    assert_eq!(model.files.len(), 1);

    for (layer, block) in model.layers.iter().zip(1..) {
        assert_eq!(layer.block, block);
        let (tag, bytes) = if block % 6 == 1 { ("BF16", 18_874_368) } else { ("Q4_K", 5_308_416) };
        assert_eq!((layer.tag.as_str(), layer.expert_bytes()), (tag, bytes), "block {block}");
    }
    let wide_count = model.layers.iter().filter(|layer| layer.tag == "BF16").count();
    assert_eq!(wide_count, 8);

    // The first tensor's first row is the first byte of the data; the last tensor's last row ends the file.
    assert_eq!(place(&model.layers[0], 0, 0), RowPlace { file_index: 0, offset: 10_752 });
    let last = &model.layers[46].tensors[2];
    let end = last.row(ExpertId::new(255)).offset + last.row_bytes;
    assert_eq!(end, support::full_bytes("mixed_quant.gguf"));
}

/// The known answer of the byte budget, from a file this time. The tail pads of the default change nothing here.
#[test]
fn mixed_quant_geometry() {
    let model = open("mixed_quant.gguf").geometry().unwrap();
    for tail_pad in [TailPad::Bytes(0), TailPad::RowUpTo(512)] {
        let constraints = Constraints { tail_pad, ..Constraints::new(Budget::Bytes(480 * 18_874_368)) };
        let geometry = Geometry::new(model.clone(), constraints).unwrap();
        let pools: Vec<_> = geometry.pools().iter().map(|pool| (pool.slot_count(), pool.layers().len())).collect();
        assert_eq!(pools, [(202, 8), (988, 39)], "{tail_pad:?}");
    }
}

#[test]
fn fused_gate_up_with_biases() {
    let model = open("fused_biases.gguf");
    assert_eq!((model.architecture.as_str(), model.name.as_str()), ("gpt-oss", "Fused Biases"));
    assert_eq!((model.block_count, model.expert_count, model.top_k), (4, 8, 4));
    assert_eq!(model.banks, ["gate_up", "down", "gate_up.bias", "down.bias"]);
    let blocks: Vec<u32> = model.layers.iter().map(|layer| layer.block).collect();
    assert_eq!(blocks, [1, 2, 3], "block 0 is dense");
    for layer in &model.layers {
        assert_eq!(layer.tag, "gate_up=MXFP4 down=MXFP4 gate_up.bias=F32 down.bias=F32");
        // gate_up: 192 rows of 64 elements in 2 blocks of 17 bytes; down: 64 rows of 96 elements in 3 blocks.
        assert_eq!(rows(&model, layer), ["gate_up=6528", "down=3264", "gate_up.bias=768", "down.bias=256"]);
    }
    let geometry = model.geometry().unwrap();
    assert_eq!(geometry.layer(LayerId::new(0)).row_bytes(), [6528, 3264, 768, 256]);
    assert_eq!(geometry.layer(LayerId::new(0)), geometry.layer(LayerId::new(2)));
}

/// What python wrote of each kind of value, and what is kept of it.
#[test]
fn metadata_of_every_kind() {
    let folder = Folder::new();
    let gguf = Gguf::open(&folder.fixture("fused_biases.gguf")).unwrap();
    assert_eq!((gguf.version(), gguf.alignment(), gguf.data_offset()), (3, 64, 7424));
    assert!(gguf.tensors().iter().all(|tensor| tensor.offset().is_multiple_of(64)));
    let values: Vec<String> = gguf
        .metadata()
        .iter()
        .filter_map(|(key, value)| {
            let key = key.strip_prefix("test.").or_else(|| key.strip_prefix("tokenizer.ggml."))?;
            match value {
                Value::Integers(values) if values.len() > 10 => Some(format!("{key}: {} integers", values.len())),
                value => Some(format!("{key}: {value:?}")),
            }
        })
        .collect();
    insta::assert_snapshot!(values.join("\n"), @r#"
    bool: Bool(true)
    f32: Float(0.5)
    f64: Float(0.25)
    i16: Integer(-30000)
    i32: Integer(-2000000000)
    i64: Integer(-4611686018427387904)
    i8: Integer(-100)
    integers: Integers([3, -4, 5])
    nested: Skipped
    nested_strings: Skipped
    string: Text("a string")
    u16: Integer(60000)
    u32: Integer(4000000000)
    u64: Integer(9223372036854775808)
    u8: Integer(200)
    scores: Skipped
    token_type: 200 integers
    tokens: Skipped
    "#);
}

#[test]
fn scales_are_banks() {
    let model = open("scales.gguf");
    assert_eq!(
        model.banks,
        ["gate", "up", "down", "gate.scale", "up.scale", "down.scale"]
            .into_iter()
            .chain(["gate.input_scale", "up.input_scale", "down.input_scale"])
            .collect::<Vec<_>>()
    );
    let [first, second] = &model.layers[..] else { panic!("two layers") };
    // 64 x 128 elements in blocks of 64 with 36 bytes.
    let narrow = ["gate=4608", "up=4608", "down=4608", "gate.scale=4", "up.scale=4", "down.scale=4"];
    assert_eq!(rows(&model, first)[..6], narrow);
    assert_eq!(rows(&model, first)[6..], ["gate.input_scale=4", "up.input_scale=4", "down.input_scale=4"]);
    // Q8_0: 64 x 128 elements in blocks of 32 with 34 bytes; it has no scales.
    assert!(second.tag.starts_with("gate=NVFP4 up=NVFP4 down=Q8_0 gate.scale=F32"), "{}", second.tag);
    let geometry = model.geometry().unwrap();
    assert_eq!(geometry.layer(LayerId::new(1)).row_bytes(), [4608, 4608, 8704, 4, 4, 0, 4, 4, 0]);
    assert_ne!(geometry.layer(LayerId::new(0)).tag(), geometry.layer(LayerId::new(1)).tag());
}

#[test]
fn a_layer_of_every_type() {
    let model = open("every_type.gguf");
    let table = json("ggml_types.json");
    let table = table.as_array().expect("a list");
    assert_eq!(model.layers.len(), table.len());
    for (layer, row) in model.layers.iter().zip(table) {
        assert_eq!(layer.tag, row["name"], "{row}");
        let ggml_type = layer.tensors[0].ggml_type;
        let bytes = 2 * 256 / row["block_elements"].as_u64().unwrap() * ggml_type.block_bytes();
        assert_eq!(rows(&model, layer), [format!("up={bytes}")], "{row}");
    }
    // Equal bytes, another type: another key, and so another pool.
    let geometry = model.geometry().unwrap();
    let keys: std::collections::HashSet<_> = geometry.layers().iter().collect();
    assert_eq!(keys.len(), table.len());
    assert_eq!(rows(&model, &model.layers[1]), ["up=1024"], "F16");
    assert_eq!(
        model.layers.iter().filter(|layer| layer.expert_bytes() == 1024).count(),
        3,
        "F16, I16 and BF16 have equal bytes"
    );
}

#[test]
fn any_shard_opens_the_split_model() {
    let folder = Folder::new();
    let paths = [1, 2, 3].map(|number| folder.fixture(&format!("split-0000{number}-of-00003.gguf")));
    let models = paths.each_ref().map(|path| MoeModel::open(path).unwrap_or_else(|error| panic!("{error}")));
    assert_eq!(models[0], models[1]);
    assert_eq!(models[0], models[2]);

    let model = &models[0];
    assert_eq!(model.files, paths);
    assert_eq!((model.expert_count, model.top_k, model.layers.len()), (8, 2, 4));
    for layer in &model.layers {
        assert_eq!(layer.tag, "gate=Q4_K up=Q4_K down=Q6_K");
        // 512 rows of one block of 144 bytes; 256 rows of two blocks of 210.
        assert_eq!(rows(model, layer), ["gate=73728", "up=73728", "down=107520"]);
    }
    // Five tensors a file: layer 1 lies in two of them.
    let files: Vec<usize> =
        model.layers.iter().flat_map(|layer| (0..3).map(|bank| place(layer, bank, 0).file_index)).collect();
    assert_eq!(files, [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2]);
    assert_eq!(place(&model.layers[1], 2, 3), RowPlace { file_index: 1, offset: 480 + 3 * 107_520 });
}

#[test]
fn a_tensor_an_expert() {
    let model = open("separate.gguf");
    assert_eq!(model.banks, ["gate", "up", "down"]);
    for layer in &model.layers {
        assert_eq!(layer.tag, "gate=Q4_0 up=Q4_0 down=Q5_0");
        // 64 rows of one block of 18 bytes; 32 rows of two blocks of 22.
        assert_eq!(rows(&model, layer), ["gate=1152", "up=1152", "down=1408"]);
    }
    // In the file an expert's gate, down and up follow one another.
    let Rows::Separate(places) = &model.layers[0].tensors[0].rows else { panic!("separate") };
    let offsets: Vec<u64> = places.iter().map(|place| place.offset).collect();
    assert_eq!(offsets, [0, 1, 2, 3].map(|expert| 1696 + expert * (1152 + 1408 + 1152)));
    assert_eq!(place(&model.layers[1], 2, 3).offset, 1696 + 7 * 3712 + 1152);
}

#[test]
fn a_dense_model_has_no_layer() {
    let folder = Folder::new();
    let error = MoeModel::open(&folder.fixture("dense.gguf")).unwrap_err();
    assert!(matches!(error, ModelError::NoExperts { .. }));
    let text = folder.text(error);
    insta::assert_snapshot!(text, @"dense.gguf: has no mixture-of-experts layer (it has no key llama.expert_count)");
}

/// Fixtures stay small enough for a repository.
#[test]
fn headers_are_small() {
    let sizes = json("headers.json");
    let sizes = sizes.as_object().expect("an object");
    assert_eq!(sizes.len(), 10);
    for name in sizes.keys() {
        assert!(testdata(&format!("{name}-header")).len() <= 64 << 10, "{name}");
    }
}
