//! `ftcache sweep TRACE`: what caches of every size would miss on recorded routing. Moves nothing.
//!
//! LRU is counted at every size in one pass, up to the order of victims within one step (`ftcache_trace::MissCurve`
//! says how far that goes); `replay` has it to the last miss, at one size. The optimum takes a pass for each size, and
//! every other rule a replay of the cache that decides by it.
//!
//! Every token is one decode step of each layer, or `--batch` of them, whatever its phase in the trace.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use ftcache::Scope;
use ftcache::policy::Eviction;
use ftcache_model::MoeModel;
use ftcache_trace::{Events, Header, MissCurve, Trace};

use crate::Failure;
use crate::sweep_lines::{Line, Lru, Misses, cut, lines, optimum};
use crate::sweep_rules::contender;
use crate::sweep_space::{ExpertBytes, Size, Space};
use crate::table::{count, grouped};
use crate::{sweep_picture, sweep_report};

/// Sizes where none are given, in percent of the largest: closer where curves are steep.
const DEFAULT_PERCENTS: [f64; 12] = [5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0, 70.0, 85.0, 100.0];

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Recorded routing: an .ftr or .ftr.zst file
    trace: PathBuf,
    /// The model that it is of, a .gguf file: sizes are bytes of its pools, as `plan` makes them
    #[arg(long, value_name = "FILE", conflicts_with = "expert_bytes")]
    model: Option<PathBuf>,
    /// The size that is looked at closely, in bytes: 12GiB [default: of the sizes the one nearest 25%]
    #[arg(long, value_name = "BYTES", value_parser = ftcache::policy::parse_bytes)]
    mem: Option<u64>,
    /// The size that is looked at closely, in slots
    #[arg(long, value_name = "N", conflicts_with_all = ["mem", "model"])]
    slots: Option<u64>,
    /// Sizes in slots, in bytes, or in percent of the experts that the trace uses, with --model of the model's:
    /// 10%,25%,512 [default: 13 sizes up to 100%]
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = Size::parse)]
    sizes: Vec<Size>,
    /// Tokens that are one step of each layer
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
    /// The rules for victims to be compared: lru, lfu, cyclic, learned; LRU is always among them
    #[arg(long, value_name = "RULES", value_delimiter = ',', default_value = "learned")]
    eviction: Vec<Eviction>,
    /// Bytes of an expert [default: the trace's own, where it has them]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..1 << 40))]
    expert_bytes: Option<u64>,
    /// Write the table as CSV
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Draw the lines as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// All lines of one trace.
pub(crate) struct Sweep {
    pub(crate) header: Header,
    /// The trace's file, without its folders.
    pub(crate) file_name: String,
    pub(crate) batch: u32,
    pub(crate) steps: usize,
    /// Uses of experts: what misses are a share of.
    pub(crate) uses: u64,
    pub(crate) experts_used: usize,
    pub(crate) widest_step: usize,
    /// The first token of the trace's second half.
    pub(crate) cut: u64,
    /// What sizes are.
    pub(crate) space: Space,
    /// Ascending.
    pub(crate) sizes: Vec<u64>,
    /// `sizes[chosen]` is looked at closely.
    pub(crate) chosen: usize,
    /// Unified LRU is the first: what others are measured by.
    pub(crate) lines: Vec<Line>,
}

pub(crate) fn run(arguments: &Arguments, out: &mut String) -> Result<(), Failure> {
    let at = |path: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let model = arguments.model.as_deref().map(MoeModel::open).transpose()?;
    let file = File::open(&arguments.trace).map_err(|error| at(&arguments.trace, &error))?;
    let trace = Trace::read(BufReader::new(file)).map_err(|error| at(&arguments.trace, &error))?;
    let sweep = Sweep::new(arguments, &trace, model.as_ref()).map_err(|error| at(&arguments.trace, &error))?;
    if let Some(path) = &arguments.csv {
        std::fs::write(path, sweep_report::csv(&sweep)).map_err(|error| at(path, &error))?;
    }
    if let Some(path) = &arguments.svg {
        std::fs::write(path, sweep_picture::svg(&sweep)).map_err(|error| at(path, &error))?;
    }
    match arguments.json {
        true => sweep_report::write_json(&sweep, out)?,
        false => sweep_report::write(&sweep, out)?,
    }
    Ok(())
}

impl Sweep {
    fn new(arguments: &Arguments, trace: &Trace, model: Option<&MoeModel>) -> Result<Self, Failure> {
        let header = trace.header();
        let events = Events::batched(trace, arguments.batch as usize);
        if events.is_empty() {
            let cells = count(header.tokens * u64::from(header.layers), "cell");
            return Err(format!("{} of {cells} are absent: no expert is used", grouped(header.absent_cells)).into());
        }
        let curve = MissCurve::lru(&events);
        let space = match model {
            Some(model) => Space::of_model(model, header, arguments.batch)?,
            None => Space::of_slots(&events, &curve, ExpertBytes::new(arguments.expert_bytes, header)),
        };
        let asked = arguments.slots.map(Size::Slots).or(arguments.mem.map(Size::Bytes));
        let asked = asked.map(|size| space.resolve(size)).transpose()?;
        let mut sizes = match arguments.sizes.as_slice() {
            [] => default_sizes(space.bounds()),
            sizes => sizes.iter().map(|&size| space.resolve(size)).collect::<Result<_, _>>()?,
        };
        sizes.extend(asked);
        sizes.sort_unstable();
        sizes.dedup();
        let quarter = |size: u64| (4 * u128::from(size)).abs_diff(u128::from(space.bounds().1));
        let distance = |size: u64| asked.map_or(quarter(size), |asked| size.abs_diff(asked).into());
        let chosen = (0..sizes.len()).min_by_key(|&index| distance(sizes[index])).expect("there is a size");

        let lru = Lru::new(&space, &events, header)?;
        let mut contenders = lru.contenders();
        let is_asked = |rule: &Eviction| *rule != Eviction::Lru && arguments.eviction.contains(rule);
        for rule in Eviction::ALL.into_iter().filter(is_asked) {
            for scope in [Scope::Unified, Scope::PerLayer] {
                contenders.push(contender(&space, &events, rule, scope));
            }
        }
        contenders.push(optimum(&space, &events));
        let lines = lines(&contenders, &sizes, arguments.svg.is_some());
        drop(contenders);
        drop(lru);
        Ok(Self {
            header: header.clone(),
            file_name: arguments.trace.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            batch: arguments.batch,
            steps: events.len(),
            uses: events.use_count(),
            experts_used: curve.most_slots(),
            widest_step: curve.least_slots(),
            cut: cut(header),
            space,
            sizes,
            chosen,
            lines,
        })
    }

    pub(crate) fn rate(&self, misses: u64) -> f64 {
        misses as f64 / self.uses as f64
    }

    /// Of the largest size.
    pub(crate) fn share(&self, size: u64) -> f64 {
        size as f64 / self.space.bounds().1 as f64
    }

    /// Bytes that a token moves on average, where they are known.
    pub(crate) fn bytes_a_token(&self, misses: Misses) -> Option<u64> {
        misses.bytes.map(|bytes| bytes / self.header.tokens)
    }

    /// The size that is looked at closely.
    pub(crate) fn chosen_size(&self) -> u64 {
        self.sizes[self.chosen]
    }

    /// Of the lines that a cache can be set to, the one that moves the fewest bytes at the chosen size; where bytes are
    /// not known, the one that misses least.
    pub(crate) fn best(&self) -> &Line {
        let moved = |misses: Misses| misses.bytes.unwrap_or(misses.count);
        let cost = |line: &&Line| line.misses[self.chosen].map_or(u64::MAX, moved);
        self.lines.iter().filter(|line| line.is_configurable).min_by_key(cost).expect("unified LRU is one")
    }
}

/// The least size, and shares above it of the most.
fn default_sizes((least, most): (u64, u64)) -> Vec<u64> {
    let shares = DEFAULT_PERCENTS.iter().map(|percent| (percent * most as f64 / 100.0).round() as u64);
    std::iter::once(least).chain(shares.filter(|&size| size > least)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_sizes_begin_with_the_least() {
        assert_eq!(default_sizes((6, 512)), [6, 26, 51, 77, 102, 128, 154, 205, 256, 307, 358, 435, 512]);
        assert_eq!(default_sizes((60, 63)), [60, 63]);
        assert_eq!(default_sizes((7, 7)), [7]);
    }
}
