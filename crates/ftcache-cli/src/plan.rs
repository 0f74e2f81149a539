//! `ftcache plan MODEL --mem 12GiB`: what a budget buys and what an engine must set aside, before anything is loaded.
//!
//! Here arguments become settings; what they come to is printed by `plan_report`.

use std::path::PathBuf;

use clap::ValueEnum;
use ftcache::policy::{
    Admission, BankId, Budget, Configuration, Constraints, CpuCode, CpuLayers, Cut, Eviction, Fetch, FetchChoice,
    FetchOrder, FetchRule, Fraction, LayerId, Model, OtherModel, RankView, Reserve, Rounding, Scope, Settings, Split,
    StagingPlace, Strategy, StrategyChoice, TagLimit, TailPad, parse_budget, parse_bytes,
};
use ftcache_model::MoeModel;
use ftcache_model::measured::{read_profile, read_rates};

use crate::plan_report::{Comparison, Planned};
use crate::split_trace::TraceCurves;
use crate::table::{parse_ranges, ranges};
use crate::{Failure, ScopeArgument};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A .gguf file; of a split model, any of its files
    model: PathBuf,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,

    /// Bytes for all slots, their pads and --resident layers: 12GiB, 480*18874368; or a share of --free: 0.9*free, or
    /// of what is left of it after reserves, tables and dedicated staging: rest
    #[arg(long, value_name = "BUDGET", value_parser = parse_budget, required_unless_present = "slots", help_heading = "Budget")]
    mem: Option<Budget>,
    /// Slots over all pools, instead of bytes
    #[arg(long, value_name = "N", conflicts_with = "mem", help_heading = "Budget")]
    slots: Option<u64>,
    /// Free memory of the device; nothing that does not fit is accepted then
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, help_heading = "Budget")]
    free: Option<u64>,
    /// What the engine needs besides: 4GiB or kv=4GiB; may be given several times
    #[arg(long, value_name = "[NAME=]BYTES", value_parser = parse_reserve, help_heading = "Budget")]
    reserve: Vec<Reserve>,
    /// Layers to put on the device as a whole, by block: 1-6,9. Compared with the same memory in slots
    #[arg(long, value_name = "BLOCKS", value_parser = parse_blocks, help_heading = "Budget")]
    resident: Option<Blocks>,

    /// Which layers share slots [default: unified; with --split-trace, per-layer]
    #[arg(long, value_enum, help_heading = "Pools")]
    scope: Option<ScopeArgument>,
    /// A JSON file of how often each expert was used: divide slots by that instead of equally
    #[arg(long, value_name = "FILE", group = "counted", help_heading = "Pools")]
    profile: Option<PathBuf>,
    /// A routing trace of a thousand tokens or more: divide slots by how many fetched bytes of it each saves instead of
    /// equally
    #[arg(long, value_name = "TRACE", group = "counted", help_heading = "Pools")]
    split_trace: Option<PathBuf>,
    /// Refuse a profile or a trace of another model's name, instead of a note
    #[arg(long, requires = "counted", help_heading = "Pools")]
    same_model: bool,
    /// The most slots that the engine's kernels index in one pool, of all or of one quantisation as `inspect` names
    /// it: 992, Q4_K=992
    #[arg(long, value_name = "[TAG=]N", value_parser = parse_slot_limit, help_heading = "Pools")]
    slot_limit: Vec<SlotLimit>,
    /// Make slot strides multiples of this power of two
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, default_value = "1", help_heading = "Pools")]
    alignment: u64,
    /// Bytes between the end of a row and the next slot
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, default_value = "0", help_heading = "Pools")]
    slot_pad: u64,
    /// Bytes after each pool's last slot [default: as many as a row has, up to 512]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, help_heading = "Pools")]
    tail_pad: Option<u64>,

    /// Requests decoded at once
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Decode")]
    requests: u32,
    /// Decode fewer requests at once if no more fit, instead of refusing
    #[arg(long, help_heading = "Decode")]
    lower_requests: bool,
    /// Batch sizes that the engine captures as graphs: 1,2,4,8
    #[arg(long, value_name = "N,N", value_delimiter = ',', help_heading = "Decode")]
    batch_sizes: Vec<u32>,
    /// Where steps are admitted
    #[arg(long, value_enum, default_value_t, help_heading = "Decode")]
    admission: AdmissionArgument,
    /// Which rule says who goes: lru, lfu, cyclic, learned
    #[arg(long, value_name = "RULE", default_value_t, help_heading = "Decode")]
    eviction: Eviction,
    /// Where misses are computed
    #[arg(long, value_enum, default_value_t, help_heading = "Decode")]
    strategy: StrategyArgument,
    /// Misses of a hybrid step to fetch: 8, or min-wait, prefer-fetch or carry with a fraction (carry:0.294) or by
    /// --rates
    #[arg(long, value_name = "RULE", value_parser = parse_fetch, help_heading = "Decode")]
    fetch: Option<FetchArgument>,
    /// The most misses of a hybrid step to fetch
    #[arg(long, value_name = "N", requires = "fetch", help_heading = "Decode")]
    fetch_most: Option<u32>,
    /// Which misses of a hybrid step to fetch first [default: recency]
    #[arg(long, value_enum, help_heading = "Decode")]
    fetch_order: Option<FetchOrderArgument>,
    /// A JSON file of measured rates
    #[arg(long, value_name = "FILE", requires = "device", help_heading = "Decode")]
    rates: Option<PathBuf>,
    /// This device's name; rates of another are refused
    #[arg(long, value_name = "NAME", requires = "rates", help_heading = "Decode")]
    device: Option<String>,
    /// Layers that decode on the CPU, by block: 3,7,11 (these), 8 (so many), 0.5 (a share), or auto
    #[arg(long, value_name = "LAYERS", value_parser = CpuLayers::parse, default_value = "none", help_heading = "Decode")]
    cpu_layers: CpuLayers,
    /// A quantisation, as `inspect` names it, that the CPU can compute; may be given several times [default: all]
    #[arg(long, value_name = "TAG", help_heading = "Decode")]
    cpu_code: Vec<String>,
    /// Bytes of the host that can be pinned
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, help_heading = "Decode")]
    pinnable: Option<u64>,

    /// Where prefill stages whole layers
    #[arg(long, value_enum, default_value_t, help_heading = "Prefill")]
    staging: StagingArgument,
    /// Stage one layer after another
    #[arg(long, help_heading = "Prefill")]
    no_overlap: bool,
    /// Stage a bank whole if its rows are narrower than this [default: 256KiB]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, help_heading = "Prefill")]
    small_rows: Option<u64>,

    /// This rank of so many: 0/4
    #[arg(long, value_name = "RANK/RANKS", value_parser = parse_rank, help_heading = "Ranks")]
    rank: Option<(u32, u32)>,
    /// What the ranks divide
    #[arg(long, value_enum, default_value_t, requires = "rank", help_heading = "Ranks")]
    cut: CutArgument,
    /// Banks whose rows every rank has whole
    #[arg(long, value_name = "BANK", requires = "rank", help_heading = "Ranks")]
    whole_bank: Vec<String>,
    /// Layers that this rank runs, by block: 1-24 [default: all]
    #[arg(long, value_name = "BLOCKS", value_parser = parse_blocks, help_heading = "Ranks")]
    blocks: Option<Blocks>,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum AdmissionArgument {
    /// On the host
    #[default]
    Host,
    /// On the device, inside a captured graph
    Device,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum StrategyArgument {
    /// On the device: every miss is fetched
    #[default]
    Offload,
    /// On the device those that are fetched, on the CPU the others
    Hybrid,
    /// On the CPU; slots only stage prefill
    Cpu,
    /// As the rates recommend
    Measured,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum FetchOrderArgument {
    /// The most recently active first
    Recency,
    /// The lowest id first
    LowestId,
}

impl From<FetchOrderArgument> for FetchOrder {
    fn from(order: FetchOrderArgument) -> Self {
        match order {
            FetchOrderArgument::Recency => Self::Recency,
            FetchOrderArgument::LowestId => Self::LowestId,
        }
    }
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum StagingArgument {
    /// On top of the first pools' slots
    #[default]
    Borrowed,
    /// In memory of its own
    Dedicated,
    /// Nowhere
    None,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
pub(crate) enum CutArgument {
    /// Whole experts
    #[default]
    Experts,
    /// The rows of every expert
    Rows,
}

/// Which rank is planned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rank {
    pub(crate) rank: u32,
    pub(crate) rank_count: u32,
    pub(crate) cut: CutArgument,
}

/// Blocks as a list, which clap would take for several values if it were a bare `Vec`.
#[derive(Debug, Clone)]
struct Blocks(Vec<u32>);

#[derive(Debug, Clone)]
struct SlotLimit {
    tag: Option<String>,
    slots: u32,
}

/// How many misses of a hybrid step are fetched.
#[derive(Debug, Clone, Copy)]
pub(crate) enum FetchArgument {
    UpTo(u32),
    By(Rounding, Option<Fraction>),
}

fn parse_blocks(text: &str) -> Result<Blocks, String> {
    parse_ranges(text).map(Blocks)
}

fn parse_reserve(text: &str) -> Result<Reserve, String> {
    let (name, bytes) = text.split_once('=').unwrap_or(("engine", text));
    if name.trim().is_empty() {
        return Err(format!("{text:?} has no name before its ="));
    }
    let bytes = parse_bytes(bytes).map_err(|error| error.to_string())?;
    Ok(Reserve { name: name.trim().to_owned(), bytes })
}

fn parse_slot_limit(text: &str) -> Result<SlotLimit, String> {
    // A tag may have a `=` of its own: `gate=Q4_K down=Q6_K=992`.
    let (tag, slots) = match text.rsplit_once('=') {
        Some((tag, slots)) => (Some(tag.to_owned()), slots),
        None => (None, text),
    };
    let slots = slots.trim().parse().map_err(|_| format!("{slots:?} is not a number of slots"))?;
    Ok(SlotLimit { tag, slots })
}

pub(crate) fn parse_fetch(text: &str) -> Result<FetchArgument, String> {
    let unknown =
        || format!("{text:?} is not a number of misses, min-wait, prefer-fetch or carry, with a fraction or not");
    if let Ok(most) = text.trim().parse() {
        return Ok(FetchArgument::UpTo(most));
    }
    let (rule, fraction) = text.split_once(':').map_or((text, None), |(rule, fraction)| (rule, Some(fraction)));
    let rounding = match rule.trim() {
        "min-wait" => Rounding::MinWait,
        "prefer-fetch" => Rounding::PreferFetch,
        "carry" => Rounding::Carry,
        _ => return Err(unknown()),
    };
    let fraction = fraction.map(|fraction| {
        let ratio: f64 = fraction.trim().parse().map_err(|_| unknown())?;
        if ratio > 1.0 {
            return Err(format!("a fraction of {ratio} misses; it is at most 1"));
        }
        Fraction::nearest(ratio).map_err(|error| error.to_string())
    });
    Ok(FetchArgument::By(rounding, fraction.transpose()?))
}

fn parse_rank(text: &str) -> Result<(u32, u32), String> {
    let parsed =
        text.split_once('/').and_then(|(rank, ranks)| Some((rank.trim().parse().ok()?, ranks.trim().parse().ok()?)));
    parsed.ok_or_else(|| format!("{text:?} is not a rank of ranks such as 0/4"))
}

pub(crate) fn run(arguments: &Arguments, out: &mut String) -> Result<(), Failure> {
    let profile = arguments.profile.as_deref().map(read_profile).transpose()?;
    let split_trace = arguments.split_trace.as_deref().map(TraceCurves::read).transpose()?;
    let rates = arguments.rates.as_deref().map(read_rates).transpose()?;
    let file = MoeModel::open(&arguments.model)?;
    let path = arguments.model.display();
    let at = |error: &dyn std::fmt::Display| format!("{path}: {error}");
    let whole = file.geometry()?;
    let view = rank_view(arguments, &file, &whole).map_err(|error| at(&error))?;
    let blocks: Vec<u32> = view.layers().iter().map(|layer| file.layers[layer.index()].block).collect();
    let mut settings = settings(arguments, &blocks).map_err(|error| at(&error))?;
    settings.model_name = Some(file.name.clone());
    settings.rates = rates;
    if let Some(profile) = profile {
        settings.constraints.split = Split::Profile(view.profile(&profile).map_err(|error| at(&error))?);
    }
    if let Some(curves) = split_trace {
        settings.constraints.split = Split::Curve(curves.of_rank(&whole, &view).map_err(|error| at(&error))?);
    }

    let model = view.model().clone();
    let planned = Configuration::new(model.clone(), settings.clone());
    // At the same memory with no layer on the device as a whole. Slots that cannot be had have no memory to compare at.
    let budget = match (settings.constraints.budget, &planned) {
        (Budget::Slots(_), Ok(planned)) => {
            Some(Budget::Bytes(planned.set_aside().resident + planned.geometry().total_bytes()))
        }
        (Budget::Slots(_), Err(_)) => None,
        (budget, _) => Some(budget),
    };
    let comparison = budget.filter(|_| !settings.resident_layers.is_empty()).map(|budget| {
        let mut all_in_slots = Settings { resident_layers: Vec::new(), ..settings };
        all_in_slots.constraints.budget = budget;
        Comparison { all_in_slots: Configuration::new(model, all_in_slots) }
    });
    let configuration = planned.map_err(|error| {
        let error = match &comparison {
            None => error.to_string(),
            Some(comparison) => format!("{error}; {comparison}"),
        };
        at(&in_blocks(&error, &blocks))
    })?;
    let rank = arguments.rank.map(|(rank, rank_count)| Rank { rank, rank_count, cut: arguments.cut });
    let planned = Planned { file: &file, view: &view, blocks, rank, configuration, comparison };
    Ok(if arguments.json { planned.write_json(out) } else { planned.write_table(out) }?)
}

/// A text of the policy's with the model's own numbers of its layers.
pub(crate) fn in_blocks(text: &str, blocks: &[u32]) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("layer ") {
        let (before, after) = (&rest[..at], &rest[at + "layer ".len()..]);
        let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
        out.push_str(before);
        match after[..digits].parse::<usize>().ok().and_then(|layer| blocks.get(layer)) {
            Some(block) => out.push_str(&format!("block {block}")),
            None => out.push_str(&rest[at..at + "layer ".len() + digits]),
        }
        rest = &after[digits..];
    }
    out + rest
}

/// Whether every part of a row that is cut has whole blocks of its type.
fn check_cut(file: &MoeModel, layers: &[LayerId], rank_count: u32, whole_banks: &[BankId]) -> Result<(), Failure> {
    for layer in layers {
        let layer = &file.layers[layer.index()];
        for tensor in layer.tensors.iter().filter(|tensor| !whole_banks.contains(&tensor.bank)) {
            let block_bytes = tensor.ggml_type.block_bytes();
            if !tensor.row_bytes.is_multiple_of(block_bytes * u64::from(rank_count)) {
                let (block, bank) = (layer.block, &file.banks[tensor.bank.index()]);
                let (row_bytes, ggml_type) = (tensor.row_bytes, tensor.ggml_type);
                return Err(format!(
                    "block {block} bank {bank}: rows of {row_bytes} bytes cannot be cut into {rank_count} parts of whole \
                     {ggml_type} blocks of {block_bytes} bytes; --whole-bank {bank} leaves them whole"
                )
                .into());
            }
        }
    }
    Ok(())
}

fn rank_view(arguments: &Arguments, file: &MoeModel, whole: &Model) -> Result<RankView, Failure> {
    let layers = match &arguments.blocks {
        None => whole.layer_ids().collect(),
        Some(blocks) => layers_of(&blocks.0, &file.layers.iter().map(|layer| layer.block).collect::<Vec<_>>())?,
    };
    let cut = match (arguments.rank, arguments.cut) {
        (None, _) => Cut::Whole,
        (Some((rank, rank_count)), CutArgument::Experts) => {
            if !arguments.whole_bank.is_empty() {
                return Err("--whole-bank would have no effect: --cut experts divides no row".into());
            }
            Cut::Experts { rank, rank_count }
        }
        (Some((rank, rank_count)), CutArgument::Rows) => {
            if rank >= rank_count {
                return Err(format!("no rank {rank} of {rank_count}; they count from 0").into());
            }
            let bank = |name: &String| {
                let index = file.banks.iter().position(|bank| bank == name);
                let unknown = || format!("no bank {name:?}: the model has {}", file.banks.join(", "));
                index.map(BankId::from_index).ok_or_else(unknown)
            };
            let whole_banks = arguments.whole_bank.iter().map(bank).collect::<Result<Vec<_>, _>>()?;
            check_cut(file, &layers, rank_count, &whole_banks)?;
            Cut::Rows { rank_count, whole_banks }
        }
    };
    Ok(RankView::new(whole, &cut, &layers)?)
}

fn settings(arguments: &Arguments, blocks: &[u32]) -> Result<Settings, Failure> {
    let budget = arguments.mem.or(arguments.slots.map(Budget::Slots)).expect("clap asks for one of the two");
    let mut constraints = Constraints::new(budget);
    constraints.scope = match (arguments.scope, &arguments.split_trace) {
        (Some(scope), _) => scope.into(),
        (None, Some(_)) => Scope::PerLayer,
        (None, None) => Scope::Unified,
    };
    constraints.request_count = arguments.requests;
    for limit in &arguments.slot_limit {
        match &limit.tag {
            Some(tag) => constraints.tag_limits.push(TagLimit { tag: tag.clone().into(), slots: limit.slots }),
            None => constraints.slot_limit = Some(constraints.slot_limit.map_or(limit.slots, |l| l.min(limit.slots))),
        }
    }
    constraints.alignment = arguments.alignment;
    constraints.slot_pad_bytes = arguments.slot_pad;
    if let Some(bytes) = arguments.tail_pad {
        constraints.tail_pad = TailPad::Bytes(bytes);
    }

    let mut settings = Settings::new(constraints);
    settings.other_model = if arguments.same_model { OtherModel::Refuse } else { OtherModel::Note };
    settings.free_bytes = arguments.free;
    settings.reserves = arguments.reserve.clone();
    settings.lower_requests = arguments.lower_requests;
    settings.batch_sizes = arguments.batch_sizes.clone();
    settings.overlap = !arguments.no_overlap;
    settings.pinnable_bytes = arguments.pinnable;
    settings.staging = match arguments.staging {
        StagingArgument::Borrowed => StagingPlace::Borrowed,
        StagingArgument::Dedicated => StagingPlace::Dedicated,
        StagingArgument::None => StagingPlace::Nowhere,
    };
    settings.admission = match arguments.admission {
        AdmissionArgument::Host => Admission::Host,
        AdmissionArgument::Device => Admission::Device,
    };
    settings.eviction = arguments.eviction;
    settings.strategy = match arguments.strategy {
        StrategyArgument::Offload => StrategyChoice::Fixed(Strategy::Offload),
        StrategyArgument::Hybrid => StrategyChoice::Fixed(Strategy::Hybrid),
        StrategyArgument::Cpu => StrategyChoice::Fixed(Strategy::Cpu),
        StrategyArgument::Measured => StrategyChoice::Measured,
    };
    let most = arguments.fetch_most;
    settings.fetch = arguments.fetch.map(|fetch| match fetch {
        FetchArgument::UpTo(misses) => FetchChoice::Fixed(Fetch { rule: FetchRule::UpTo(misses), most }),
        FetchArgument::By(rounding, Some(fraction)) => {
            FetchChoice::Fixed(Fetch { rule: rounding.rule(fraction), most })
        }
        FetchArgument::By(rounding, None) => FetchChoice::Measured { rounding, most },
    });
    settings.fetch_order = arguments.fetch_order.map(FetchOrder::from);
    settings.small_row_bytes = arguments.small_rows;
    settings.device = arguments.device.clone();
    if !arguments.cpu_code.is_empty() {
        settings.cpu_code = CpuCode::Tags(arguments.cpu_code.iter().map(|tag| tag.clone().into()).collect());
    }
    settings.cpu_layers = match &arguments.cpu_layers {
        CpuLayers::List(listed) => {
            CpuLayers::List(layers_of(&listed.iter().map(|block| block.get()).collect::<Vec<_>>(), blocks)?)
        }
        other => other.clone(),
    };
    if let Some(resident) = &arguments.resident {
        settings.resident_layers = layers_of(&resident.0, blocks)?;
    }
    Ok(settings)
}

/// The layers whose blocks these are; people know a model's layers by its own numbers, dense ones counted.
fn layers_of(wanted: &[u32], blocks: &[u32]) -> Result<Vec<LayerId>, Failure> {
    let layer = |block: &u32| {
        let index = blocks
            .binary_search(block)
            .map_err(|_| format!("block {block} has no experts here; blocks {} have", ranges(blocks.iter().copied())));
        index.map(LayerId::from_index)
    };
    Ok(wanted.iter().map(layer).collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_named_by_their_blocks() {
        assert_eq!(layers_of(&[5, 9], &[3, 5, 9]).unwrap(), [LayerId::new(1), LayerId::new(2)]);
        let error = layers_of(&[3, 4], &[3, 5, 9]).unwrap_err().to_string();
        assert_eq!(error, "block 4 has no experts here; blocks 3, 5, 9 have");
        let text = "layer 0 and layer 12: top layer of layers 1; layer 1";
        assert_eq!(in_blocks(text, &[3, 5]), "block 3 and layer 12: top layer of layers 1; block 5");
        assert_eq!(in_blocks("", &[]), "");
    }

    #[test]
    fn arguments_are_read() {
        let limit = |text| parse_slot_limit(text).map(|limit| (limit.tag, limit.slots));
        assert_eq!(limit("992"), Ok((None, 992)));
        assert_eq!(limit("gate=Q4_K down=Q6_K=992"), Ok((Some("gate=Q4_K down=Q6_K".to_owned()), 992)));
        assert_eq!(parse_reserve("kv=4GiB"), Ok(Reserve { name: "kv".to_owned(), bytes: 4 << 30 }));
        assert_eq!(parse_reserve("4096").map(|reserve| reserve.name), Ok("engine".to_owned()));
        assert_eq!(parse_rank("3/4"), Ok((3, 4)));
        assert!(matches!(parse_fetch("8"), Ok(FetchArgument::UpTo(8))));
        assert!(matches!(parse_fetch("min-wait"), Ok(FetchArgument::By(Rounding::MinWait, None))));
        let half = Fraction::from_q16(1 << 15);
        assert!(
            matches!(parse_fetch("carry:0.5"), Ok(FetchArgument::By(Rounding::Carry, fraction)) if fraction == half)
        );
    }

    /// None of them panics on any text.
    #[test]
    fn any_text_is_read_or_refused() {
        let parts = [
            "carry",
            "min-wait",
            "prefer-fetch",
            "kv",
            "Q4_K",
            "=",
            ":",
            "/",
            "-",
            ".",
            "0",
            "9",
            "1e9",
            "NaN",
            "GiB",
            " ",
            "é",
            "99999999999",
        ];
        let (mut state, mut read) = (1_u64, 0);
        for _ in 0..50_000 {
            let mut text = String::new();
            for _ in 0..1 + state % 5 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                text.push_str(parts[(state >> 33) as usize % parts.len()]);
            }
            if let Ok(FetchArgument::By(_, Some(fraction))) = parse_fetch(&text) {
                assert!(fraction <= Fraction::ALL, "{text:?}");
                read += 1;
            }
            read += u32::from(parse_slot_limit(&text).is_ok());
            read += u32::from(parse_reserve(&text).is_ok());
            read += u32::from(parse_rank(&text).is_ok());
        }
        assert!(read > 100, "{read}");
    }
}
