//! Which tensors are experts, in which layers and banks, and where each expert's row lies.
//!
//! A bank is a role (gate, up, gate_up, down) with the kind of its tensor: `up` are the weights, `up.bias`, `up.scale`
//! and so on lie beside them and are banks like any other. Two forms are read:
//!
//! - `blk.N.ffn_up_exps.weight`: one tensor with all experts, the expert outermost, so that rows are neighbours;
//! - `blk.N.ffn_up.E.weight`: the old form, a tensor an expert. All of a bank must have one type and one size, since a
//!   slot holds any of them; their rows lie anywhere.
//!
//! Not experts: the router (`ffn_gate_inp`), shared experts (`_shexp`), which every token uses, and chunk experts
//! (`_chexps`), of which a layer has another number. Layers that predict further tokens (MTP) have blocks of their own
//! and are layers like any other here.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use ftcache_policy::{BankId, ExpertId, LayoutKey, Model, Quantisation};

use crate::{GgmlType, Gguf, ModelError, TensorInfo, open_shards};

/// Roles in the order in which a layer computes with them.
const ROLES: [&str; 4] = ["gate", "up", "gate_up", "down"];
/// Kinds of tensors, widest first. Others follow by name.
const KINDS: [&str; 4] = ["weight", "bias", "scale", "input_scale"];

/// The mixture-of-experts layers of a model, as its files have them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MoeModel {
    /// The model's own name, or else its first file's.
    pub name: String,
    /// Its architecture, such as `qwen3moe`.
    pub architecture: String,
    /// Blocks, those without experts included.
    pub block_count: u32,
    /// Experts of a layer.
    pub expert_count: u32,
    /// Experts a token is routed to in each layer; the most, where the model has a number for each layer.
    pub top_k: u32,
    /// The name of every bank: weights, then what lies beside them, each in the order gate, up, gate_up, down.
    pub banks: Vec<String>,
    /// The layers with experts, ascending by block.
    pub layers: Vec<MoeLayer>,
    /// The files, in the order of the shards.
    pub files: Vec<PathBuf>,
}

/// One layer with experts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MoeLayer {
    /// The model's own number of the layer, dense ones counted.
    pub block: u32,
    /// The types of its banks: `Q4_K` if all have one, else `gate=Q4_K up=Q4_K down=Q6_K`.
    pub tag: String,
    /// Its banks, ascending; a bank that the layer does not have is not listed.
    pub tensors: Vec<ExpertTensor>,
}

/// One bank of one layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpertTensor {
    /// Index into [`MoeModel::banks`].
    pub bank: BankId,
    /// The type of its elements.
    pub ggml_type: GgmlType,
    /// Bytes of one expert.
    pub row_bytes: u64,
    /// Where the rows lie.
    pub rows: Rows,
}

/// Where the rows of a bank lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rows {
    /// One after another, in one tensor.
    Strided {
        /// Expert 0.
        first: RowPlace,
        /// Bytes from one expert to the next.
        stride: u64,
    },
    /// A tensor an expert; one place each.
    Separate(Vec<RowPlace>),
}

/// Where one row lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowPlace {
    /// Index into [`MoeModel::files`].
    pub file_index: usize,
    /// Bytes from the start of that file.
    pub offset: u64,
}

impl MoeModel {
    /// Reads a model from its file, or from all its files when `path` is any shard.
    ///
    /// # Errors
    ///
    /// What [`open_shards`] refuses; a model without experts, or whose expert tensors and metadata disagree.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        Self::from_files(&open_shards(path)?)
    }

    /// Reads a model from the headers of all its files, the metadata being that of the first.
    ///
    /// # Errors
    ///
    /// A model without experts, or whose expert tensors and metadata disagree.
    ///
    /// # Panics
    ///
    /// If there is no file.
    pub fn from_files(files: &[Gguf]) -> Result<Self, ModelError> {
        let main = &files[0];
        let architecture = main.text("general.architecture")?.ok_or_else(|| main.missing("general.architecture"))?;
        let found = find_tensors(files);
        let number = |key: &str| {
            let key = format!("{architecture}.{key}");
            main.number(&key)?.ok_or_else(|| main.missing(key))
        };
        let no_experts = |why| ModelError::NoExperts { path: main.path().to_owned(), why };

        // A dense model need not say that it has no experts; one with expert tensors must say how many.
        let expert_count = match number("expert_count") {
            Err(ModelError::KeyMissing { key, .. }) if found.is_empty() => {
                return Err(no_experts(format!("it has no key {key}")));
            }
            other => other?,
        };
        if expert_count == 0 {
            return Err(no_experts(format!("{architecture}.expert_count is 0")));
        }
        if found.is_empty() {
            return Err(no_experts(format!("{expert_count} experts, but no tensor like blk.0.ffn_up_exps.weight")));
        }
        let block_count = number("block_count")?;
        let top_k_key = format!("{architecture}.expert_used_count");
        let top_k = main.numbers(&top_k_key)?.and_then(|numbers| numbers.into_iter().max());
        let top_k = top_k.ok_or_else(|| main.missing(top_k_key))?;

        let banks = bank_order(&found);
        let mut layers: Vec<MoeLayer> = Vec::new();
        // Ascending by block, then by bank, as the map's keys are.
        for ((block, bank), tensors) in &found {
            let tensor = tensors.read(files, expert_count, bank)?;
            let block = u32::try_from(*block).ok().filter(|&block| block < block_count).ok_or_else(|| {
                let any = tensors.any();
                let (path, tensor) = (any.path(files), any.info.name().to_owned());
                ModelError::Block { path, tensor, block: *block, block_count }
            })?;
            if layers.last().is_none_or(|layer| layer.block != block) {
                layers.push(MoeLayer { block, tag: String::new(), tensors: Vec::new() });
            }
            let bank = banks.binary_search(bank).map(BankId::from_index).expect("the order has every bank");
            let layer = layers.last_mut().expect("a layer was just pushed");
            layer.tensors.push(ExpertTensor { bank, ..tensor });
        }
        let banks: Vec<String> = banks.iter().map(Bank::name).collect();
        for layer in &mut layers {
            layer.tag = tag(&layer.tensors, &banks);
        }

        let stem = || main.path().file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self {
            name: main.text("general.name")?.map_or_else(stem, str::to_owned),
            architecture: architecture.to_owned(),
            block_count,
            expert_count,
            top_k,
            banks,
            layers,
            files: files.iter().map(|file| file.path().to_owned()).collect(),
        })
    }

    /// The model as the policy sees it: a layout key for each layer, with zero bytes where it lacks a bank.
    ///
    /// # Errors
    ///
    /// What [`Model::new`] refuses, with the name of the file.
    pub fn geometry(&self) -> Result<Model, ModelError> {
        let layers = self.layers.iter().map(|layer| {
            let mut row_bytes = vec![0; self.banks.len()];
            for tensor in &layer.tensors {
                row_bytes[tensor.bank.index()] = tensor.row_bytes;
            }
            LayoutKey::tagged(layer.tag.as_str(), row_bytes)
        });
        Model::new(self.expert_count, self.top_k, Quantisation::PerLayer, layers.collect())
            .map_err(|error| ModelError::Geometry { path: self.files[0].clone(), error })
    }
}

impl MoeLayer {
    /// Bytes of one expert over all banks.
    pub fn expert_bytes(&self) -> u64 {
        // Tensors may overlap in a hostile file, so nothing bounds the sum; `Model::new` refuses what saturates.
        self.tensors.iter().fold(0, |sum: u64, tensor| sum.saturating_add(tensor.row_bytes))
    }
}

impl ExpertTensor {
    /// Where one expert's row lies.
    ///
    /// # Panics
    ///
    /// If the rows are separate and the model has no such expert. Strided rows are not checked: the place of an expert
    /// that the model does not have lies behind the tensor.
    pub fn row(&self, expert: ExpertId) -> RowPlace {
        match &self.rows {
            Rows::Strided { first, stride } => {
                RowPlace { offset: first.offset + stride * u64::from(expert.get()), ..*first }
            }
            Rows::Separate(places) => places[expert.index()],
        }
    }
}

/// A bank's name in parts. Ordered as [`MoeModel::banks`] lists them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Bank {
    /// Index into [`KINDS`], or past its end.
    kind_rank: usize,
    kind: String,
    /// Index into [`ROLES`].
    role_index: usize,
}

impl Bank {
    fn name(&self) -> String {
        match self.kind.as_str() {
            "weight" => ROLES[self.role_index].to_owned(),
            kind => format!("{}.{kind}", ROLES[self.role_index]),
        }
    }
}

/// What the name of an expert tensor says.
#[derive(Debug, PartialEq, Eq)]
struct ExpertName {
    block: u64,
    bank: Bank,
    /// The expert, if the tensor has only one.
    expert: Option<u64>,
}

impl ExpertName {
    fn parse(name: &str) -> Option<Self> {
        let (block, rest) = name.strip_prefix("blk.")?.split_once('.')?;
        let (role, rest) = rest.strip_prefix("ffn_")?.split_once('.')?;
        let (role, expert, kind) = match role.strip_suffix("_exps") {
            Some(role) => (role, None, rest),
            None => {
                let (expert, kind) = rest.split_once('.')?;
                (role, Some(number(expert)?), kind)
            }
        };
        let role_index = ROLES.iter().position(|&known| known == role)?;
        let kind_rank = KINDS.iter().position(|&known| known == kind).unwrap_or(KINDS.len());
        Some(Self { block: number(block)?, bank: Bank { kind_rank, kind: kind.to_owned(), role_index }, expert })
    }
}

/// A number as names have it: digits, without leading zeros, so that no two names mean one tensor.
fn number(digits: &str) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let leads_with_zero = digits.len() > 1 && digits.starts_with('0');
    // One that is too large for 64 bits is out of every range, and is refused as such.
    (is_number && !leads_with_zero).then(|| digits.parse().unwrap_or(u64::MAX))
}

/// A tensor and the file it lies in.
#[derive(Debug, Clone, Copy)]
struct Located<'a> {
    file_index: usize,
    info: &'a TensorInfo,
}

impl Located<'_> {
    fn place(self) -> RowPlace {
        RowPlace { file_index: self.file_index, offset: self.info.offset() }
    }

    fn path(self, files: &[Gguf]) -> PathBuf {
        files[self.file_index].path().to_owned()
    }
}

/// The tensors of one bank of one layer: one with all experts, or one an expert.
#[derive(Debug, Default)]
struct BankTensors<'a> {
    whole: Option<Located<'a>>,
    separate: BTreeMap<u64, Located<'a>>,
}

type FoundTensors<'a> = BTreeMap<(u64, Bank), BankTensors<'a>>;

fn find_tensors(files: &[Gguf]) -> FoundTensors<'_> {
    let mut found = FoundTensors::new();
    for (file_index, file) in files.iter().enumerate() {
        for info in file.tensors() {
            let Some(name) = ExpertName::parse(info.name()) else { continue };
            let tensors = found.entry((name.block, name.bank)).or_default();
            // Names differ, so nothing is overwritten.
            match name.expert {
                None => tensors.whole = Some(Located { file_index, info }),
                Some(expert) => drop(tensors.separate.insert(expert, Located { file_index, info })),
            }
        }
    }
    found
}

fn bank_order(found: &FoundTensors<'_>) -> Vec<Bank> {
    let banks: BTreeSet<&Bank> = found.keys().map(|(_, bank)| bank).collect();
    banks.into_iter().cloned().collect()
}

fn tag(tensors: &[ExpertTensor], banks: &[String]) -> String {
    let first = tensors[0].ggml_type;
    if tensors.iter().all(|tensor| tensor.ggml_type == first) {
        return first.name().to_owned();
    }
    let parts = tensors.iter().map(|tensor| format!("{}={}", banks[tensor.bank.index()], tensor.ggml_type));
    parts.collect::<Vec<_>>().join(" ")
}

impl BankTensors<'_> {
    /// Any of them: an entry is made for the first that is found.
    fn any(&self) -> Located<'_> {
        self.whole.or_else(|| self.separate.values().next().copied()).expect("a bank has a tensor")
    }

    /// The bank's rows; its id is the caller's to fill in.
    fn read(&self, files: &[Gguf], expert_count: u32, bank: &Bank) -> Result<ExpertTensor, ModelError> {
        let Some(whole) = self.whole else {
            return self.read_separate(files, expert_count, bank);
        };
        let (path, tensor) = (whole.path(files), whole.info.name().to_owned());
        if let Some(other) = self.separate.values().next() {
            return Err(ModelError::BankTwice { path, tensor, other: other.info.name().to_owned() });
        }
        let (dims, ggml_type) = (whole.info.dims(), whole.info.ggml_type());
        if dims.last() != Some(&expert_count.into()) {
            return Err(ModelError::OuterDimension { path, tensor, dims: dims.to_vec(), expert_count });
        }
        // One number an expert: then the experts must not share a block.
        if dims.len() == 1 && ggml_type.block_elements() > 1 {
            return Err(ModelError::PartialBlock { path, tensor, elements: 1, ggml_type });
        }
        let row_bytes = whole.info.bytes() / u64::from(expert_count);
        let rows = Rows::Strided { first: whole.place(), stride: row_bytes };
        Ok(ExpertTensor { bank: BankId::new(0), ggml_type, row_bytes, rows })
    }

    fn read_separate(&self, files: &[Gguf], expert_count: u32, bank: &Bank) -> Result<ExpertTensor, ModelError> {
        if let Some((&expert, located)) = self.separate.range(u64::from(expert_count)..).next() {
            let (path, tensor) = (located.path(files), located.info.name().to_owned());
            return Err(ModelError::Expert { path, tensor, expert, expert_count });
        }
        let any = self.any();
        if let Some(missing) = (0..expert_count).find(|&expert| !self.separate.contains_key(&expert.into())) {
            let name = any.info.name();
            let block = name.split('.').nth(1).unwrap_or_default();
            return Err(ModelError::ExpertMissing {
                path: any.path(files),
                tensor: format!("blk.{block}.ffn_{}.{missing}.{}", ROLES[bank.role_index], bank.kind),
                found: self.separate.len() as u32,
                expert_count,
            });
        }
        let (first_bytes, first_type) = (any.info.bytes(), any.info.ggml_type());
        for located in self.separate.values() {
            let (bytes, ggml_type) = (located.info.bytes(), located.info.ggml_type());
            if (bytes, ggml_type) != (first_bytes, first_type) {
                let (path, tensor) = (located.path(files), located.info.name().to_owned());
                return Err(ModelError::ExpertsDiffer { path, tensor, bytes, ggml_type, first_bytes, first_type });
            }
        }
        let rows = Rows::Separate(self.separate.values().map(|located| located.place()).collect());
        Ok(ExpertTensor { bank: BankId::new(0), ggml_type: first_type, row_bytes: first_bytes, rows })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, expected: Option<(u64, &str, Option<u64>)>) {
        let found = ExpertName::parse(name);
        let found = found.map(|found| (found.block, found.bank.name(), found.expert));
        let expected = expected.map(|(block, bank, expert)| (block, bank.to_owned(), expert));
        assert_eq!(found, expected, "{name}");
    }

    #[test]
    fn names_of_expert_tensors() {
        check("blk.0.ffn_up_exps.weight", Some((0, "up", None)));
        check("blk.61.ffn_gate_up_exps.bias", Some((61, "gate_up.bias", None)));
        check("blk.3.ffn_down_exps.input_scale", Some((3, "down.input_scale", None)));
        check("blk.3.ffn_gate.7.weight", Some((3, "gate", Some(7))));
        check("blk.99999999999999999999999.ffn_up_exps.weight", Some((u64::MAX, "up", None)));
    }

    #[test]
    fn names_of_other_tensors() {
        for name in [
            "blk.0.ffn_up.weight",
            "blk.0.ffn_up_shexp.weight",
            "blk.0.ffn_up_chexps.weight",
            "blk.0.ffn_gate_inp.weight",
            "blk.0.ffn_gate_inp_shexp.weight",
            "blk.0.ffn_norm_exps.weight",
            "blk.0.exp_probs_b.bias",
            "blk.00.ffn_up_exps.weight",
            "blk.+1.ffn_up_exps.weight",
            "blk..ffn_up_exps.weight",
            "blk.0.ffn_up.01.weight",
            "blk.0.ffn_up.1",
            "blk.0.ffn_up_exps",
            "enc.blk.0.ffn_up_exps.weight",
            "token_embd.weight",
            "",
        ] {
            check(name, None);
        }
    }

    #[test]
    fn banks_have_one_order() {
        let mut names = [
            "blk.0.ffn_up_exps.zeta",
            "blk.0.ffn_down_exps.scale",
            "blk.0.ffn_down_exps.weight",
            "blk.0.ffn_gate_up_exps.weight",
            "blk.0.ffn_gate_exps.bias",
            "blk.0.ffn_up_exps.weight",
            "blk.0.ffn_gate_exps.alpha",
            "blk.0.ffn_gate_exps.weight",
        ]
        .map(|name| ExpertName::parse(name).unwrap().bank);
        names.sort();
        let names = names.map(|bank| bank.name());
        assert_eq!(names, ["gate", "up", "gate_up", "down", "gate.bias", "down.scale", "gate.alpha", "up.zeta"]);
    }
}
