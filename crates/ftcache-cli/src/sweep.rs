//! `ftcache sweep TRACE`: what caches of every size would miss on recorded routing. Moves nothing and has no cache: the
//! lines are counted from the trace alone.
//!
//! LRU is counted at every size in one pass, up to the order of victims within one step (`ftcache_trace::MissCurve`
//! says how far that goes); `replay` has it to the last miss, at one size. The optimum takes a pass for each size.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use ftcache_trace::{Events, Header, LayerCurves, MissCurve, Optimum, Trace};

use crate::Failure;
use crate::progress::ProgressLine;
use crate::table::{count, grouped};
use crate::{sweep_picture, sweep_report};

/// Sizes where none are given, in percent of the experts used: closer where curves are steep.
const DEFAULT_PERCENTS: [f64; 12] = [5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0, 70.0, 85.0, 100.0];

/// Of a curve that has every size, about so many are drawn: some two pixels of a picture each.
const CURVE_SIZES: usize = 300;

/// Where each size takes a pass, about so many are drawn. Straight from one table row to the next, the optimum would
/// lie above LRU where the rows are far apart.
const PASS_SIZES: usize = 30;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Recorded routing: an .ftr or .ftr.zst file
    trace: PathBuf,
    /// Sizes in slots, or in percent of the experts that the trace uses: 10%,25%,512 [default: 13 sizes up to 100%]
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = Size::parse)]
    sizes: Vec<Size>,
    /// The size that is looked at closely [default: of the sizes the one nearest 25%]
    #[arg(long, value_name = "N")]
    slots: Option<usize>,
    /// Tokens that are one step of each layer
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
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

/// A size as it is asked for.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Size {
    Percent(f64),
    Slots(usize),
}

impl Size {
    fn parse(text: &str) -> Result<Self, String> {
        let unknown = || format!("{text:?} is neither a number of slots nor a share such as 12.5%");
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let text = text.trim();
        match text.strip_suffix('%').map(str::trim_end) {
            Some(number) if is_number(number) => number.parse().map(Self::Percent).map_err(|_| unknown()),
            Some(_) => Err(unknown()),
            None => text.parse().map(Self::Slots).map_err(|_| unknown()),
        }
    }

    /// In slots, from the widest step to all experts used.
    fn slots(self, least: usize, most: usize) -> Result<usize, String> {
        let (slots, is) = match self {
            Self::Percent(percent) if percent > 100.0 => {
                return Err(format!("a size of {percent} % of the experts used; 100 % are all"));
            }
            Self::Percent(percent) => {
                let slots = (percent * most as f64 / 100.0).round() as usize;
                (slots, format!("{percent} % of the experts used are {}", count(slots as u64, "slot")))
            }
            Self::Slots(slots) => (slots, format!("a size of {}", count(slots as u64, "slot"))),
        };
        match slots {
            _ if slots > most => Err(format!("{is}; the trace uses {}", count(most as u64, "expert"))),
            _ if slots < least => Err(format!("{is}; the widest step uses {}", count(least as u64, "expert"))),
            _ => Ok(slots),
        }
    }
}

/// What one policy misses, size by size.
pub(crate) struct Line {
    pub(crate) name: &'static str,
    pub(crate) policy: &'static str,
    pub(crate) scope: &'static str,
    /// Whether a cache can be set to it; the others are bounds.
    pub(crate) is_configurable: bool,
    /// `misses[i]` for `sizes[i]`; none where a pool is too small for its widest step.
    pub(crate) misses: Vec<Option<u64>>,
    /// Size and misses, ascending by size: where more sizes are known than are asked for, more.
    pub(crate) drawn: Vec<(usize, u64)>,
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
    pub(crate) expert_bytes: Option<ExpertBytes>,
    /// Slots, ascending.
    pub(crate) sizes: Vec<usize>,
    /// `sizes[chosen]` is looked at closely.
    pub(crate) chosen: usize,
    /// Unified LRU is the first: what others are measured by.
    pub(crate) lines: Vec<Line>,
}

/// What an expert weighs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExpertBytes {
    /// Over the layers, each counted once.
    pub(crate) mean: u64,
    pub(crate) least: u64,
    pub(crate) most: u64,
}

pub(crate) fn run(arguments: &Arguments, out: &mut String) -> Result<(), Failure> {
    let at = |path: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let file = File::open(&arguments.trace).map_err(|error| at(&arguments.trace, &error))?;
    let trace = Trace::read(BufReader::new(file)).map_err(|error| at(&arguments.trace, &error))?;
    let sweep = Sweep::new(arguments, &trace).map_err(|error| at(&arguments.trace, &error))?;
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
    fn new(arguments: &Arguments, trace: &Trace) -> Result<Self, Failure> {
        let header = trace.header();
        let events = Events::batched(trace, arguments.batch as usize);
        if events.is_empty() {
            let cells = count(header.tokens * u64::from(header.layers), "cell");
            return Err(format!("{} of {cells} are absent: no expert is used", grouped(header.absent_cells)).into());
        }
        let (lru, lru_by_layer) = thread::scope(|scope| {
            let by_layer = scope.spawn(|| LayerCurves::lru(&events));
            (MissCurve::lru(&events), by_layer.join().expect("counting does not panic"))
        });
        let (least, most) = (lru.least_slots(), lru.most_slots());
        let chosen_slots = arguments.slots.map(|slots| Size::Slots(slots).slots(least, most)).transpose()?;
        let mut sizes = match arguments.sizes.as_slice() {
            [] => default_sizes(least, most),
            sizes => sizes.iter().map(|size| size.slots(least, most)).collect::<Result<_, _>>()?,
        };
        sizes.extend(chosen_slots);
        sizes.sort_unstable();
        sizes.dedup();
        let distance = |slots: usize| chosen_slots.map_or((4 * slots).abs_diff(most), |chosen| slots.abs_diff(chosen));
        let chosen = (0..sizes.len()).min_by_key(|&index| distance(sizes[index])).expect("there is a size");

        let lines = vec![
            Line::of_curve("unified LRU", "lru", "unified", &sizes, |slots| lru.misses(slots)),
            Line::of_curve("per-layer LRU", "lru", "per-layer", &sizes, |slots| lru_by_layer.misses_equal(slots)),
            Line::of_optimum(&Optimum::unified(&events), &sizes, arguments.svg.is_some()),
        ];
        Ok(Self {
            header: header.clone(),
            file_name: arguments.trace.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            batch: arguments.batch,
            steps: events.len(),
            uses: events.use_count(),
            experts_used: most,
            widest_step: least,
            expert_bytes: ExpertBytes::new(arguments.expert_bytes, header),
            sizes,
            chosen,
            lines,
        })
    }

    pub(crate) fn rate(&self, misses: u64) -> f64 {
        misses as f64 / self.uses as f64
    }

    /// Bytes of so many slots, where an expert's are known.
    pub(crate) fn bytes(&self, slots: usize) -> Option<u64> {
        self.expert_bytes.map(|bytes| bytes.mean.saturating_mul(slots as u64))
    }

    /// Of the lines that a cache can be set to, the one that misses least at the chosen size.
    pub(crate) fn best(&self) -> &Line {
        let misses = |line: &&Line| line.misses[self.chosen].unwrap_or(u64::MAX);
        self.lines.iter().filter(|line| line.is_configurable).min_by_key(misses).expect("unified LRU is one")
    }
}

impl Line {
    /// LRU, which a cache can be set to.
    fn of_curve(
        name: &'static str,
        policy: &'static str,
        scope: &'static str,
        sizes: &[usize],
        misses: impl Fn(usize) -> Option<u64>,
    ) -> Self {
        Self {
            name,
            policy,
            scope,
            is_configurable: true,
            misses: sizes.iter().map(|&slots| misses(slots)).collect(),
            drawn: between(sizes, CURVE_SIZES).into_iter().filter_map(|slots| Some((slots, misses(slots)?))).collect(),
        }
    }

    fn of_optimum(optimum: &Optimum, sizes: &[usize], is_drawn: bool) -> Self {
        let counted = if is_drawn { between(sizes, PASS_SIZES) } else { sizes.to_vec() };
        let misses = in_parallel(counted.len(), |index| optimum.misses(counted[index]));
        let drawn: Vec<(usize, u64)> =
            counted.into_iter().zip(misses).filter_map(|(slots, misses)| Some((slots, misses?))).collect();
        let find = |slots: &usize| drawn.iter().find(|(size, _)| size == slots).map(|&(_, misses)| misses);
        let misses = sizes.iter().map(find).collect();
        Self { name: "optimum", policy: "optimum", scope: "unified", is_configurable: false, misses, drawn }
    }
}

impl ExpertBytes {
    /// Of the bytes that are given, or else of the trace's own; none where there are neither.
    pub(crate) fn new(given: Option<u64>, header: &Header) -> Option<Self> {
        let by_layer = given.map_or_else(|| header.expert_bytes.clone().unwrap_or_default(), |bytes| vec![bytes]);
        let sum: u128 = by_layer.iter().map(|&bytes| u128::from(bytes)).sum();
        let (least, most) = (*by_layer.iter().min()?, *by_layer.iter().max()?);
        Some(Self { mean: (sum / by_layer.len() as u128) as u64, least, most })
    }
}

/// The widest step, and shares above it.
fn default_sizes(least: usize, most: usize) -> Vec<usize> {
    let shares = DEFAULT_PERCENTS.iter().map(|percent| (percent * most as f64 / 100.0).round() as usize);
    std::iter::once(least).chain(shares.filter(|&slots| slots > least)).collect()
}

/// The sizes, and up to about `count` more from the first to the last, ascending.
fn between(sizes: &[usize], count: usize) -> Vec<usize> {
    let (first, last) = (sizes[0], sizes[sizes.len() - 1]);
    let mut all: Vec<usize> = (first..last).step_by((last - first).div_ceil(count).max(1)).collect();
    all.extend(sizes);
    all.sort_unstable();
    all.dedup();
    all
}

/// The answers of a job for each index, on all processors; how many there are is shown.
fn in_parallel<T: Send>(count: usize, job: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let workers = thread::available_parallelism().map_or(1, usize::from).min(count);
    let next = AtomicUsize::new(0);
    let mut answers: Vec<Option<T>> = (0..count).map(|_| None).collect();
    thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        for _ in 0..workers {
            let (sender, next, job) = (sender.clone(), &next, &job);
            scope.spawn(move || {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count || sender.send((index, job(index))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let mut line = ProgressLine::new();
        for (done, (index, answer)) in (1..).zip(receiver) {
            answers[index] = Some(answer);
            line.show(|| format!("size {done} of {count}"));
        }
    });
    answers.into_iter().map(|answer| answer.expect("each index is answered")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_slots_or_shares() {
        assert_eq!(Size::parse("25%"), Ok(Size::Percent(25.0)));
        assert_eq!(Size::parse(" 12.5 % "), Ok(Size::Percent(12.5)));
        assert_eq!(Size::parse("128"), Ok(Size::Slots(128)));
        for text in ["", "%", "-1", "-1%", "1.5", "1e2%", "inf%", "NaN%", "1.2.3%", "ten"] {
            let error = Size::parse(text).unwrap_err();
            assert_eq!(error, format!("{text:?} is neither a number of slots nor a share such as 12.5%"));
        }
        assert_eq!(Size::Percent(12.5).slots(2, 20), Ok(3));
        assert_eq!(Size::Percent(100.0).slots(2, 63), Ok(63));
    }

    #[test]
    fn default_sizes_begin_with_the_widest_step() {
        assert_eq!(default_sizes(6, 512), [6, 26, 51, 77, 102, 128, 154, 205, 256, 307, 358, 435, 512]);
        assert_eq!(default_sizes(60, 63), [60, 63]);
        assert_eq!(default_sizes(7, 7), [7]);
    }

    #[test]
    fn drawn_sizes_hold_those_asked_for() {
        assert_eq!(between(&[6, 9, 16], 5), [6, 8, 9, 10, 12, 14, 16]);
        assert_eq!(between(&[6, 9], 300), [6, 7, 8, 9]);
        assert_eq!(between(&[6], 300), [6]);
    }

    #[test]
    fn answers_stand_in_the_order_of_their_indices() {
        assert_eq!(in_parallel(100, |index| index * index), (0..100).map(|index| index * index).collect::<Vec<_>>());
        assert!(in_parallel(0, |index| index).is_empty());
    }

    #[test]
    fn layers_of_several_sizes_have_a_mean() {
        let shape = ftcache_trace::Shape { tokens: 1, layers: 3, top_k: 1, experts: 2 };
        let mut header = Header::new("by hand", shape, Vec::new());
        assert_eq!(ExpertBytes::new(None, &header), None);
        header.expert_bytes = Some(vec![10, 30, 50]);
        assert_eq!(ExpertBytes::new(None, &header), Some(ExpertBytes { mean: 30, least: 10, most: 50 }));
        assert_eq!(ExpertBytes::new(Some(7), &header), Some(ExpertBytes { mean: 7, least: 7, most: 7 }));
    }
}
