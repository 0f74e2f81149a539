//! Every error, provoked by a file that is wrong in one place, and its text as people read it.

mod support;

use std::collections::BTreeSet;
use std::io::Cursor;
use std::path::{Path, PathBuf};

use ftcache_model::{Gguf, ModelError, MoeModel};
use support::{Builder, Folder};

/// Texts of errors, and the variants that were seen.
struct Errors {
    folder: Folder,
    texts: Vec<String>,
    variants: BTreeSet<String>,
}

impl Errors {
    fn expect(&mut self, name: &str, model: &Builder) {
        let path = model.write(&self.folder, name);
        self.expect_open(&path);
    }

    fn expect_open(&mut self, path: &Path) {
        let result = MoeModel::open(path).and_then(|model| model.geometry());
        let error = result.err().unwrap_or_else(|| panic!("{} opens", path.display()));
        self.add(error);
    }

    /// A header at the start of a file that is said to have `file_bytes` bytes.
    fn expect_read(&mut self, name: &str, header: Vec<u8>, file_bytes: u64) {
        let error = Gguf::read(Cursor::new(header), file_bytes, Path::new(name)).err();
        self.add(error.unwrap_or_else(|| panic!("{name} is read")));
    }

    fn add(&mut self, error: ModelError) {
        let debug = format!("{error:?}");
        self.variants.insert(debug.split(' ').next().unwrap_or_default().to_owned());
        let text = self.folder.text(error);
        assert!(!text.contains('\n') && !text.contains("failed to"), "{text}");
        self.texts.push(text);
    }

    /// Three shards of one tensor each, which `change` may spoil.
    fn shards(&self, prefix: &str, change: impl Fn(u32, Builder) -> Option<Builder>) -> PathBuf {
        for number in 1..=3 {
            let shard = if number == 1 { Builder::moe() } else { Builder::new() };
            let tensor = format!("blk.{}.ffn_up_exps.weight", number % 2);
            let shard = if number == 3 { shard } else { shard.tensor(&tensor, &[32, 2, 4], "Q8_0") };
            if let Some(shard) = change(number, shard) {
                let shard = shard.key("split.no", 2, &(number as u16 - 1).to_le_bytes());
                shard.write(&self.folder, &format!("{prefix}-0000{number}-of-00003.gguf"));
            }
        }
        self.folder.path().join(format!("{prefix}-00002-of-00003.gguf"))
    }
}

fn split_keys(shard: Builder, count: u16, tensor_count: i32) -> Builder {
    shard.key("split.count", 2, &count.to_le_bytes()).key("split.tensors.count", 5, &tensor_count.to_le_bytes())
}

const UP: &str = "blk.0.ffn_up_exps.weight";

#[test]
fn every_error_text() {
    let mut errors = Errors { folder: Folder::new(), texts: Vec::new(), variants: BTreeSet::new() };
    file_errors(&mut errors);
    metadata_errors(&mut errors);
    tensor_errors(&mut errors);
    shard_errors(&mut errors);
    expert_errors(&mut errors);
    insta::assert_snapshot!(errors.texts.join("\n"), @r#"
    absent.gguf: No such file or directory (os error 2)
    magic.gguf: starts with "PK\x03\x04", not with "GGUF"
    big_endian.gguf: is big-endian (version 3 with its bytes swapped); only little-endian files are read
    version_0.gguf: is GGUF version 0; versions 2 and 3 are read
    version_1.gguf: is GGUF version 1; versions 2 and 3 are read
    version_4.gguf: is GGUF version 4; versions 2 and 3 are read
    empty.gguf: ends inside the magic: 4 bytes are needed at offset 0, 0 are there
    short.gguf: 4 metadata keys need at least 52 bytes, 16 are left in the file
    keys.gguf: 18446744073709551615 metadata keys need at least 239807672958224170995 bytes, 168 are left in the file
    tensors.gguf: 1099511627776 tensors need at least 26388279066624 bytes, 168 are left in the file
    long.gguf: the header reaches byte 314573018 inside key tokenizer.chat_template; at most 268435456 bytes are read
    array.gguf: ends inside key tokenizer.ggml.scores: 18446744073709551615 bytes are needed at offset 220, 1099511627556 are there
    name.gguf: the name of metadata key 4 has 70000 bytes; names have at most 65535
    utf8.gguf: key general.name is not UTF-8: "\xffx"
    twice.gguf: key llama.block_count is there twice
    type.gguf: key general.name has values of type 13; types 0 to 12 are known
    item_type.gguf: key general.tags has values of type 77; types 0 to 12 are known
    deep.gguf: key general.tags has arrays nested over 8 deep
    no_architecture.gguf: has no key general.architecture
    architecture.gguf: key general.architecture is an integer, not a text
    negative.gguf: key llama.expert_count is -1; it must be from 0 to 4294967295
    float.gguf: key llama.expert_count is a float, not an integer
    no_key.gguf: has no key llama.block_count
    no_key.gguf: has no key llama.expert_count
    no_key.gguf: has no key llama.expert_used_count
    alignment_0.gguf: general.alignment is 0, not a power of two
    alignment_24.gguf: general.alignment is 24, not a power of two
    alignment_big.gguf: key general.alignment is 1099511627776; it must be from 1 to 2147483648
    alignment_text.gguf: key general.alignment is a text, not an integer
    tensor_twice.gguf: tensor blk.0.ffn_up_exps.weight is there twice, first in tensor_twice.gguf
    dims.gguf: tensor blk.0.ffn_up_exps.weight has 5 dimensions; at most 4 are read
    removed.gguf: tensor blk.0.ffn_up_exps.weight has type 31 (Q4_0_4_4), which ggml has removed
    unknown.gguf: tensor blk.0.ffn_up_exps.weight has type 43; types up to 42 are known
    block.gguf: tensor blk.0.ffn_up_exps.weight has rows of 100 elements; Q4_K has blocks of 256
    large.gguf: tensor blk.0.ffn_up_exps.weight of [1099511627776, 1048576, 4] elements has more bytes than 64 bits count
    misaligned.gguf: tensor blk.0.ffn_up_exps.weight has data offset 48, no multiple of the alignment 32
    past_end.gguf: tensor blk.0.ffn_up_exps.weight ends at byte 528; the file has 527 bytes
    offset.gguf: tensor blk.0.ffn_up_exps.weight ends at byte 18446744073709552864; the file has 256 bytes
    renamed.gguf: is shard 2 of 3 by its metadata; its name should end in -00002-of-00003.gguf
    missing-00003-of-00003.gguf: is missing, shard 3 of 3
    counts-00001-of-00003.gguf: split.count is 4; 3 is needed
    tensors-00001-of-00003.gguf: split.tensors.count is 7; 2 is needed
    no_count-00003-of-00003.gguf: has no key split.count
    no_split-00002-of-00003.gguf: has no key split.count
    again-00003-of-00003.gguf: tensor blk.0.ffn_up_exps.weight is there twice, first in again-00002-of-00003.gguf
    swapped-00001-of-00003.gguf: split.no is 2; 0 is needed
    no_experts.gguf: has no mixture-of-experts layer (llama.expert_count is 0)
    no_tensor.gguf: has no mixture-of-experts layer (4 experts, but no tensor like blk.0.ffn_up_exps.weight)
    blocks.gguf: tensor blk.2.ffn_up_exps.weight is of block 2; the model has 2, from 0
    outer.gguf: tensor blk.0.ffn_up_exps.weight of [32, 4, 2] elements has 2 as its outermost dimension; the model has 4 experts
    scalar.gguf: tensor blk.0.ffn_up_exps.weight of [] elements has 1 as its outermost dimension; the model has 4 experts
    shared_block.gguf: tensor blk.0.ffn_up_exps.scale has rows of 1 elements; Q8_0 has blocks of 32
    experts_5.gguf: tensor blk.1.ffn_gate.4.weight is of expert 4; the model has 4, from 0
    experts_3.gguf: has no tensor blk.1.ffn_gate.3.weight; 3 of 4 experts are there
    experts_types.gguf: tensor blk.1.ffn_gate.3.weight has 36 bytes of IQ4_NL, expert 0 has 36 of Q4_0
    experts_sizes.gguf: tensor blk.1.ffn_gate.3.weight has 54 bytes of Q4_0, expert 0 has 36 of Q4_0
    both.gguf: tensor blk.1.ffn_gate_exps.weight has all experts, blk.1.ffn_gate.0.weight one of them again
    top_k.gguf: top-5 of 4 experts: top_k must be from 1 to the expert count
    "#);

    let source = include_str!("../src/error.rs");
    let declared: BTreeSet<String> = source
        .lines()
        .filter_map(|line| line.strip_prefix("    ")?.strip_suffix(" {"))
        .filter(|name| name.chars().all(char::is_alphanumeric))
        .map(str::to_owned)
        .collect();
    assert!(declared.len() > 30, "{declared:?}");
    assert_eq!(errors.variants, declared, "each variant is provoked above");
}

fn file_errors(errors: &mut Errors) {
    let absent = errors.folder.path().join("absent.gguf");
    errors.expect_open(&absent);
    errors.expect("magic.gguf", &Builder { magic: *b"PK\x03\x04", ..Builder::moe() });
    errors.expect("big_endian.gguf", &Builder { version: 3_u32.swap_bytes(), ..Builder::moe() });
    errors.expect("version_0.gguf", &Builder { version: 0, ..Builder::moe() });
    errors.expect("version_1.gguf", &Builder { version: 1, ..Builder::moe() });
    errors.expect("version_4.gguf", &Builder { version: 4, ..Builder::moe() });
    errors.expect_read("empty.gguf", Vec::new(), 0);
    errors.expect_read("short.gguf", Builder::moe().header()[..40].to_vec(), 40);
    errors.expect("keys.gguf", &Builder { key_count: u64::MAX, ..Builder::moe() });
    errors.expect("tensors.gguf", &Builder { tensor_count: 1 << 40, ..Builder::moe() });
    let long = Builder::moe().key("tokenizer.chat_template", 8, &(300_u64 << 20).to_le_bytes());
    errors.expect_read("long.gguf", long.header(), 1 << 40);
    let array = Builder::moe().array("tokenizer.ggml.scores", 6, u64::MAX, &[]);
    errors.expect_read("array.gguf", array.header(), 1 << 40);
}

fn metadata_errors(errors: &mut Errors) {
    let name = vec![b'k'; 70_000];
    errors.expect("name.gguf", &Builder::moe().u32(std::str::from_utf8(&name).unwrap(), 1));
    errors.expect("utf8.gguf", &Builder::moe().key("general.name", 8, b"\x02\0\0\0\0\0\0\0\xffx"));
    errors.expect("twice.gguf", &Builder::moe().u32("llama.block_count", 2));
    errors.expect("type.gguf", &Builder::moe().key("general.name", 13, &[]));
    errors.expect("item_type.gguf", &Builder::moe().array("general.tags", 77, 1, &[]));
    let deep: Vec<u8> = [&9_u32.to_le_bytes()[..], &1_u64.to_le_bytes()].concat().repeat(1000);
    errors.expect("deep.gguf", &Builder::moe().key("general.tags", 9, &deep));
    errors.expect("no_architecture.gguf", &Builder::new().u32("llama.block_count", 2));
    errors.expect("architecture.gguf", &Builder::new().u32("general.architecture", 2));
    errors
        .expect("negative.gguf", &Builder::moe_without("llama.expert_count").key("llama.expert_count", 5, &[0xff; 4]));
    errors.expect("float.gguf", &Builder::moe_without("llama.expert_count").key("llama.expert_count", 6, &[0; 4]));
    for key in ["llama.block_count", "llama.expert_count", "llama.expert_used_count"] {
        errors.expect("no_key.gguf", &Builder::moe_without(key).tensor(UP, &[32, 2, 4], "Q8_0"));
    }
    errors.expect("alignment_0.gguf", &Builder::moe().u32("general.alignment", 0));
    errors.expect("alignment_24.gguf", &Builder::moe().u32("general.alignment", 24));
    errors.expect("alignment_big.gguf", &Builder::moe().key("general.alignment", 10, &(1_u64 << 40).to_le_bytes()));
    errors.expect("alignment_text.gguf", &Builder::moe().text("general.alignment", "32"));
}

fn tensor_errors(errors: &mut Errors) {
    errors.expect("tensor_twice.gguf", &Builder::moe().tensor(UP, &[32, 2, 4], "Q8_0").tensor(UP, &[32], "F32"));
    errors.expect("dims.gguf", &Builder::moe().raw_tensor(UP, &[1; 5], 0, 0));
    errors.expect("removed.gguf", &Builder::moe().raw_tensor(UP, &[32, 2, 4], 31, 0));
    errors.expect("unknown.gguf", &Builder::moe().raw_tensor(UP, &[32, 2, 4], 43, 0));
    errors.expect("block.gguf", &Builder::moe().raw_tensor(UP, &[100, 2, 4], 12, 0));
    errors.expect("large.gguf", &Builder::moe().raw_tensor(UP, &[1 << 40, 1 << 20, 4], 0, 0));
    errors.expect("misaligned.gguf", &Builder::moe().raw_tensor(UP, &[32, 2, 4], 0, 48));
    let whole = Builder::moe().tensor(UP, &[32, 2, 4], "Q8_0");
    errors.expect_read("past_end.gguf", whole.header(), whole.file_bytes() - 17);
    errors.expect("offset.gguf", &Builder::moe().raw_tensor(UP, &[32, 2, 4], 0, u64::MAX - 31));
}

fn shard_errors(errors: &mut Errors) {
    let whole = |_, shard| Some(split_keys(shard, 3, 2));
    let path = errors.shards("renamed", whole);
    let renamed = errors.folder.path().join("renamed.gguf");
    std::fs::rename(path, &renamed).unwrap();
    errors.expect_open(&renamed);
    let path = errors.shards("missing", |number, shard| whole(number, shard).filter(|_| number != 3));
    errors.expect_open(&path);
    let path = errors.shards("counts", |number, shard| Some(split_keys(shard, if number == 1 { 4 } else { 3 }, 2)));
    errors.expect_open(&path);
    let path = errors.shards("tensors", |_, shard| Some(split_keys(shard, 3, 7)));
    errors.expect_open(&path);
    let path = errors.shards("no_count", |number, shard| if number == 3 { Some(shard) } else { whole(number, shard) });
    errors.expect_open(&path);
    let path = errors.shards("no_split", |_, shard| Some(shard));
    errors.expect_open(&path);
    let path = errors.shards("again", |number, shard| {
        let again = if number == 3 { shard.tensor(UP, &[32], "F32") } else { shard };
        Some(split_keys(again, 3, 3))
    });
    errors.expect_open(&path);
    // Shard 3 under the name of shard 1.
    let path = errors.shards("swapped", whole);
    let swapped = |number| errors.folder.path().join(format!("swapped-0000{number}-of-00003.gguf"));
    std::fs::copy(swapped(3), swapped(1)).unwrap();
    errors.expect_open(&path);
}

fn expert_errors(errors: &mut Errors) {
    let none = Builder::moe_without("llama.expert_count").u32("llama.expert_count", 0);
    errors.expect("no_experts.gguf", &none.tensor(UP, &[32, 2, 4], "Q8_0"));
    errors.expect("no_tensor.gguf", &Builder::moe().tensor("blk.0.ffn_up_shexp.weight", &[32, 2], "Q8_0"));
    errors.expect("blocks.gguf", &Builder::moe().tensor("blk.2.ffn_up_exps.weight", &[32, 2, 4], "Q8_0"));
    errors.expect("outer.gguf", &Builder::moe().tensor(UP, &[32, 4, 2], "Q8_0"));
    errors.expect("scalar.gguf", &Builder::moe().tensor(UP, &[], "F32"));
    // Four experts in one block: no row of its own for each.
    let shared = Builder::moe_without("llama.expert_count").u32("llama.expert_count", 32);
    errors.expect("shared_block.gguf", &shared.tensor("blk.0.ffn_up_exps.scale", &[32], "Q8_0"));

    let expert = |model: Builder, number: u64, dims: &[u64], type_name| {
        model.tensor(&format!("blk.1.ffn_gate.{number}.weight"), dims, type_name)
    };
    let experts = |count, last_dims: &[u64], last_type| {
        let model = (0..count).fold(Builder::moe(), |model, number| expert(model, number, &[32, 2], "Q4_0"));
        expert(model, count, last_dims, last_type)
    };
    errors.expect("experts_5.gguf", &experts(4, &[32, 2], "Q4_0"));
    errors.expect("experts_3.gguf", &experts(2, &[32, 2], "Q4_0"));
    errors.expect("experts_types.gguf", &experts(3, &[32, 2], "IQ4_NL"));
    errors.expect("experts_sizes.gguf", &experts(3, &[32, 3], "Q4_0"));
    let both = experts(3, &[32, 2], "Q4_0").tensor("blk.1.ffn_gate_exps.weight", &[32, 2, 4], "Q4_0");
    errors.expect("both.gguf", &both);
    let greedy = Builder::moe_without("llama.expert_used_count").u32("llama.expert_used_count", 5);
    errors.expect("top_k.gguf", &greedy.tensor(UP, &[32, 2, 4], "Q8_0"));
}
