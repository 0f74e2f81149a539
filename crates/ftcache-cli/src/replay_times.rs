//! `ftcache replay TRACE --rates FILE`: how long steps wait for their experts, strategy by strategy, by measured rates.
//!
//! The trace goes through a residency once for each strategy. Nothing is moved and nothing is timed: what each step
//! fetches and leaves to the CPU becomes time by `ftcache_policy::StepRates`. Here it is counted; `replay_times_report`
//! prints it.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use ftcache::policy::{
    Behind, Fetch, FetchOrder, FetchRule, Fraction, Point, Rates, Rounding, StepRates, StepTimeError, parse_bytes,
};
use ftcache::residency::{Cache, Stats};
use ftcache::{
    Budget, Constraints, Eviction, ExpertId, Geometry, LayerId, LayoutKey, Misses, Model, Planner, Quantisation, Scope,
    Step,
};
use ftcache_model::MoeModel;
use ftcache_model::measured::read_rates;
use ftcache_trace::{Header, Trace};

use crate::Failure;
use crate::plan::{FetchArgument, FetchOrderArgument, parse_fetch};
use crate::progress::ProgressLine;
use crate::table::grouped;

// Part of `replay`'s own, whose group has the name.
#[derive(clap::Args, Default)]
#[group(skip)]
pub(crate) struct Arguments {
    /// A JSON file of measured rates, as `probe` writes it: move nothing, and estimate how long steps wait, by strategy
    #[arg(long, value_name = "FILE", conflicts_with_all = ["device", "row_bytes", "per_layer"], help_heading = "Times")]
    pub(crate) rates: Option<PathBuf>,
    /// A .gguf file, whose experts the trace used: bytes and quantisation of each layer
    #[arg(long, value_name = "MODEL", requires = "rates", group = "experts", help_heading = "Times")]
    model: Option<PathBuf>,
    /// Bytes of an expert and its quantisation as `inspect` names it, alike in all layers: Q4_K=5308416
    #[arg(long, value_name = "[TAG=]BYTES", requires = "rates", group = "experts", value_parser = parse_expert, help_heading = "Times")]
    expert_bytes: Option<Expert>,
    /// Misses of a hybrid step to fetch, as `plan` has it: 8, carry, min-wait:0.294; may be given several times
    /// [default: every rule by the rates, and 1, 2, 4 ... below the experts of a token]
    #[arg(long, value_name = "RULE", requires = "rates", value_parser = parse_fetch, help_heading = "Times")]
    fetch: Vec<FetchArgument>,
    /// Which misses of a hybrid step to fetch first [default: recency]
    #[arg(long, value_enum, requires = "rates", help_heading = "Times")]
    fetch_order: Option<FetchOrderArgument>,
    /// Steps whose rows may be on their way behind them at once, where they are fetched behind [default: 4]
    #[arg(long, value_name = "N", requires = "rates", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Times")]
    flights: Option<u32>,
    /// Microseconds that the device computes between a step's rows and the next step: rows behind steps go on meanwhile
    /// [default: 0]
    #[arg(long, value_name = "US", requires = "rates", value_parser = clap::value_parser!(u32), help_heading = "Times")]
    compute_us: Option<u32>,
}

/// One expert, where there is no model to say it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Expert {
    tag: Option<String>,
    bytes: u64,
}

fn parse_expert(text: &str) -> Result<Expert, String> {
    // A tag may have a `=` of its own: `gate=Q4_K down=Q6_K=5308416`.
    let (tag, bytes) = match text.rsplit_once('=') {
        Some((tag, bytes)) => (Some(tag.to_owned()), bytes),
        None => (None, text),
    };
    match parse_bytes(bytes).map_err(|error| error.to_string())? {
        0 => Err("an expert of 0 bytes".to_owned()),
        bytes => Ok(Expert { tag, bytes }),
    }
}

/// What is replayed, and by which rates.
pub(crate) struct Replayed<'a> {
    pub(crate) trace: &'a Path,
    pub(crate) slots: u64,
    pub(crate) scope: Scope,
    pub(crate) eviction: Eviction,
    pub(crate) rates: &'a Path,
}

/// Where the experts of a step that are in no slot are computed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Way {
    /// On the device; the step waits for their rows.
    Plain,
    /// Some on the device, some on the CPU.
    Hybrid(FetchArgument),
    /// On the CPU; their rows are fetched behind the step.
    Behind,
    /// On the CPU, as are those that could be in slots: for comparison.
    Cpu,
}

/// What one strategy came to.
pub(crate) struct Outcome {
    /// `None` where there are no slots.
    pub(crate) stats: Option<Stats>,
    pub(crate) fetched: u64,
    pub(crate) on_cpu: u64,
    /// How long the link and the CPU worked.
    pub(crate) link_ns: u64,
    pub(crate) cpu_ns: u64,
    /// How long the steps of each token waited, ascending.
    pub(crate) waiting_ns: Vec<u64>,
}

impl Outcome {
    /// Of all tokens.
    pub(crate) fn waited_ns(&self) -> u64 {
        self.waiting_ns.iter().fold(0, |sum: u64, ns| sum.saturating_add(*ns))
    }

    /// What so many percent of the tokens do not exceed.
    pub(crate) fn percentile_ns(&self, percent: usize) -> u64 {
        let rank = (self.waiting_ns.len() * percent).div_ceil(100).max(1);
        self.waiting_ns.get(rank - 1).copied().unwrap_or_default()
    }
}

/// A strategy under its name, and what it came to or why that cannot be told.
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) way: Way,
    pub(crate) outcome: Result<Outcome, String>,
}

/// All that is printed.
pub(crate) struct Times<'a> {
    pub(crate) header: &'a Header,
    pub(crate) geometry: &'a Geometry,
    pub(crate) eviction: Eviction,
    pub(crate) rates_path: &'a Path,
    pub(crate) rates: &'a Rates,
    pub(crate) layers: &'a [Layer],
    pub(crate) flights: u32,
    pub(crate) compute_us: u32,
    /// Steps of the trace: cells that are not absent.
    pub(crate) steps: u64,
    pub(crate) lines: Vec<Line>,
}

/// How a layer's experts come.
pub(crate) struct Layer {
    pub(crate) rates: StepRates,
    /// Of the profile, the one that stands for it.
    pub(crate) point: usize,
    /// Of its misses those to fetch, as the profile recommends.
    pub(crate) fraction: Fraction,
}

pub(crate) fn run(replayed: &Replayed<'_>, arguments: &Arguments, json: bool, out: &mut String) -> Result<(), Failure> {
    let rates = read_rates(replayed.rates)?;
    let at = |error: &dyn std::fmt::Display| format!("{}: {error}", replayed.trace.display());
    let file = File::open(replayed.trace).map_err(|error| at(&error))?;
    let trace = Trace::read(BufReader::new(file)).map_err(|error| at(&error))?;
    let model = model(arguments, trace.header())?;
    let mut constraints = Constraints::new(Budget::Slots(replayed.slots));
    constraints.scope = replayed.scope;
    let geometry = Geometry::new(model, constraints).map_err(|error| at(&error))?;
    let layers = layers(&rates, geometry.model(), replayed.rates)?;
    let estimator = Estimator {
        trace: &trace,
        geometry: &geometry,
        eviction: replayed.eviction,
        layers: &layers,
        order: arguments.fetch_order.map_or(FetchOrder::default(), FetchOrder::from),
        flights: arguments.flights.unwrap_or(4),
        compute_ns: u64::from(arguments.compute_us.unwrap_or(0)) * 1000,
    };

    let mut lines = Vec::new();
    for way in ways(&arguments.fetch, trace.header().top_k) {
        let name = estimator.name(way);
        let outcome = match estimator.lack(way) {
            None => Ok(estimator.run(way, &name).map_err(|error| at(&format!("{name}: {error}")))?),
            Some(point) => Err(no_cpu_rate(replayed.rates, point, &rates.points()[point])),
        };
        if let (Way::Hybrid(_), Err(why), false) = (way, &outcome, arguments.fetch.is_empty()) {
            return Err(format!("{why}; --fetch is for steps that leave some to it").into());
        }
        lines.push(Line { name, way, outcome });
    }
    let steps = trace.tokens().map(|token| present(&trace, token).count() as u64).sum();
    let times = Times {
        header: trace.header(),
        eviction: replayed.eviction,
        geometry: &geometry,
        rates_path: replayed.rates,
        rates: &rates,
        layers: &layers,
        flights: estimator.flights,
        compute_us: arguments.compute_us.unwrap_or(0),
        steps,
        lines,
    };
    Ok(if json { times.write_json(out) } else { times.write_table(out) }?)
}

/// The layers of the trace with the bytes of the model's, or of the one expert that was given.
fn model(arguments: &Arguments, header: &Header) -> Result<Model, Failure> {
    let (layers, experts) = (header.layers as usize, header.experts);
    let keys = match (&arguments.model, &arguments.expert_bytes) {
        (Some(path), _) => {
            let model = MoeModel::open(path)?.geometry()?;
            let checked = header.shape().check_model(model.layer_count(), model.expert_count());
            checked.map_err(|error| format!("{}: {error}", path.display()))?;
            model.layers().to_vec()
        }
        (None, Some(Expert { tag, bytes })) => {
            let key = match tag {
                Some(tag) => LayoutKey::tagged(tag.as_str(), [*bytes]),
                None => LayoutKey::untagged([*bytes]),
            };
            vec![key; layers]
        }
        (None, None) => return Err("--rates needs the bytes of experts: --model or --expert-bytes".into()),
    };
    Ok(Model::new(experts, header.top_k, Quantisation::One, keys)?)
}

fn layers(rates: &Rates, model: &Model, path: &Path) -> Result<Vec<Layer>, Failure> {
    let layer = |id: LayerId| {
        let key = model.layer(id);
        let timed = StepRates::of(rates, key, model.expert_count()).map_err(|error| {
            let measured = match error {
                StepTimeError::NotMeasured { .. } => format!("; it has {}", points(rates)),
                _ => String::new(),
            };
            format!("{}: layer {id}: {error}{measured}", path.display())
        })?;
        let point = rates.point_of(key).expect("it has a time by it");
        let index = rates.points().iter().position(|other| std::ptr::eq(other, point)).expect("it is one of them");
        Ok(Layer { rates: timed, point: index, fraction: point.recommend().fraction })
    };
    model.layer_ids().map(layer).collect()
}

/// `5308416 bytes of Q4_K, 90 bytes of MXFP4`
fn points(rates: &Rates) -> String {
    let point = |point: &Point| match point.tag.as_slice() {
        [] => format!("{} bytes without a tag", point.expert_bytes),
        tag => format!("{} bytes of {}", point.expert_bytes, tag.escape_ascii()),
    };
    rates.points().iter().map(point).collect::<Vec<_>>().join(", ")
}

fn no_cpu_rate(path: &Path, index: usize, point: &Point) -> String {
    let tag = match point.tag.as_slice() {
        [] => String::new(),
        tag => format!(" of {}", tag.escape_ascii()),
    };
    format!(
        "{}: points[{index}], experts of {} bytes{tag}, has no cpu_bytes_per_second",
        path.display(),
        point.expert_bytes
    )
}

/// Every strategy, in the order of the table.
fn ways(fetch: &[FetchArgument], top_k: u32) -> Vec<Way> {
    let by_rates = [Rounding::MinWait, Rounding::PreferFetch, Rounding::Carry];
    let hybrid: Vec<FetchArgument> = match fetch {
        [] => {
            let caps = (0..u32::BITS).map(|bit| 1 << bit).take_while(|&most| most < top_k);
            let by_rates = by_rates.into_iter().map(|rounding| FetchArgument::By(rounding, None));
            by_rates.chain(caps.map(FetchArgument::UpTo)).collect()
        }
        given => given.to_vec(),
    };
    let hybrid = hybrid.into_iter().map(Way::Hybrid);
    [Way::Plain].into_iter().chain(hybrid).chain([Way::Behind, Way::Cpu]).collect()
}

/// The layers of a token that ran, and the experts of each.
fn present<'a>(trace: &Trace, token: &'a [u16]) -> impl Iterator<Item = (LayerId, &'a [u16])> {
    let cells = token.chunks_exact(trace.header().top_k as usize).enumerate();
    // An absent cell is absent as a whole.
    let cells = cells.filter(|(_, cell)| cell[0] != ftcache_trace::ABSENT);
    cells.map(|(layer, cell)| (LayerId::from_index(layer), cell))
}

/// What every strategy is replayed with.
struct Estimator<'a> {
    trace: &'a Trace,
    geometry: &'a Geometry,
    eviction: Eviction,
    layers: &'a [Layer],
    order: FetchOrder,
    flights: u32,
    compute_ns: u64,
}

impl Estimator<'_> {
    /// A point without a CPU rate that keeps a strategy from being estimated. A layer without one is fetched whole, so
    /// strategies that share the misses need one for some layer alone.
    fn lack(&self, way: Way) -> Option<usize> {
        let mut without = self.layers.iter().filter(|layer| !layer.rates.has_cpu());
        let first = without.next().map(|layer| layer.point)?;
        match way {
            Way::Plain => None,
            Way::Cpu => Some(first),
            Way::Hybrid(_) | Way::Behind => (without.count() + 1 == self.layers.len()).then_some(first),
        }
    }

    fn name(&self, way: Way) -> String {
        match way {
            Way::Plain => "plain".to_owned(),
            Way::Behind => "behind".to_owned(),
            Way::Cpu => "all on the CPU".to_owned(),
            Way::Hybrid(fetch) => {
                let mut fractions =
                    self.layers.iter().filter(|layer| layer.rates.has_cpu()).map(|layer| layer.fraction);
                let first = fractions.next();
                match (fetch, first) {
                    // Layers that differ have a fraction each, and without a rate of the CPU's there is none.
                    (FetchArgument::By(rounding, None), first)
                        if first.is_none_or(|one| fractions.any(|other| other != one)) =>
                    {
                        format!("hybrid, {rounding} by the rates")
                    }
                    (fetch, first) => format!("hybrid, {}", rule(fetch, first.unwrap_or(Fraction::ALL))),
                }
            }
        }
    }

    /// What becomes of a layer's misses.
    fn misses(&self, way: Way, layer: &Layer) -> Misses {
        let rule = match way {
            Way::Hybrid(fetch) if layer.rates.has_cpu() => rule(fetch, layer.fraction),
            Way::Behind if layer.rates.has_cpu() => FetchRule::UpTo(0),
            _ => return Misses::Fetched,
        };
        Misses::Hybrid { fetch: Fetch { rule, most: None }, order: self.order }
    }

    fn run(&self, way: Way, name: &str) -> Result<Outcome, Failure> {
        let mut cache = Cache::new(self.geometry);
        cache.set_eviction(self.eviction)?;
        let mut run = Run {
            planner: Planner::new(cache),
            behind: Behind::default(),
            routes: Vec::new(),
            fetched: 0,
            on_cpu: 0,
            link_ns: 0,
            cpu_ns: 0,
        };
        let mut line = ProgressLine::new();
        let mut waiting_ns = Vec::with_capacity(self.trace.tokens().len());
        for (token, cells) in self.trace.tokens().enumerate() {
            let mut waited_ns: u64 = 0;
            for (layer, cell) in present(self.trace, cells) {
                let ns = match way {
                    Way::Cpu => run.compute(&self.layers[layer.index()], cell.len()),
                    _ => run.step(self, way, layer, cell).map_err(|error| format!("token {token} {error}"))?,
                };
                waited_ns = waited_ns.saturating_add(ns);
                run.behind.pass(self.compute_ns);
            }
            waiting_ns.push(waited_ns);
            line.show(|| format!("{name}: token {} of {}", grouped(token as u64), grouped(self.trace.header().tokens)));
        }
        waiting_ns.sort_unstable();
        let stats = match way {
            Way::Cpu => None,
            _ => Some(run.planner.cache().total_stats()),
        };
        let link_ns = run.link_ns.saturating_add(run.behind.link_ns());
        let Run { fetched, on_cpu, cpu_ns, .. } = run;
        Ok(Outcome { stats, fetched, on_cpu, link_ns, cpu_ns, waiting_ns })
    }
}

/// The rule for a layer whose fraction by the rates is this.
fn rule(fetch: FetchArgument, measured: Fraction) -> FetchRule {
    match fetch {
        FetchArgument::UpTo(most) => FetchRule::UpTo(most),
        FetchArgument::By(rounding, fraction) => rounding.rule(fraction.unwrap_or(measured)),
    }
}

/// One strategy on its way through the trace.
struct Run {
    planner: Planner,
    behind: Behind,
    routes: Vec<ExpertId>,
    fetched: u64,
    on_cpu: u64,
    /// In steps; flights are counted by `behind`.
    link_ns: u64,
    cpu_ns: u64,
}

impl Run {
    /// All on the CPU. A cell names no expert twice.
    fn compute(&mut self, layer: &Layer, experts: usize) -> u64 {
        let time = layer.rates.time(0, experts as u32).expect("every layer has a CPU rate");
        self.on_cpu += experts as u64;
        self.cpu_ns = self.cpu_ns.saturating_add(time.cpu_ns);
        time.waiting_ns()
    }

    /// One step, and how long it waits.
    fn step(&mut self, estimator: &Estimator<'_>, way: Way, id: LayerId, cell: &[u16]) -> Result<u64, Failure> {
        let layer = &estimator.layers[id.index()];
        while let Some(flight) = self.behind.land() {
            self.planner.cache_mut()?.land(flight);
        }
        self.routes.clear();
        self.routes.extend(cell.iter().map(|&expert| ExpertId::new(expert.into())));
        let step = Step { misses: estimator.misses(way, layer), ..Step::new(id) };
        let plan = self.planner.admit(step, &self.routes).map_err(|error| format!("layer {id}: {error}"))?;
        let (fetched, left) = (plan.copies().len() as u32, plan.left_count() as u32);
        let wants_more = !plan.left().is_empty();
        self.planner.commit()?;
        self.fetched += u64::from(fetched);
        self.on_cpu += u64::from(left);
        if !matches!(way, Way::Behind) {
            let time = layer.rates.time(fetched, left).expect("a layer without a CPU rate is fetched whole");
            self.link_ns = self.link_ns.saturating_add(time.link_ns);
            self.cpu_ns = self.cpu_ns.saturating_add(time.cpu_ns);
            return Ok(time.waiting_ns());
        }
        if fetched > 0 {
            // Its rows come after those that are on their way; the CPU has nothing to do here.
            let (drained_ns, link_ns) = (self.behind.drain(), layer.rates.time(fetched, 0).expect("no CPU").link_ns);
            self.link_ns = self.link_ns.saturating_add(link_ns);
            return Ok(drained_ns.saturating_add(link_ns));
        }
        // The copies go out with the step, as the library's do, so they slow down what the CPU does for it.
        if wants_more && self.behind.flight_count() < estimator.flights as usize {
            let late = self.planner.fetch_later(usize::MAX)?;
            let (flight, rows) = (late.flight(), late.copies().len() as u32);
            if rows == 0 {
                // No slot is left that the step does not use.
                self.planner.abort()?;
            } else {
                self.planner.commit()?;
                self.fetched += u64::from(rows);
                self.behind.take_off(flight, &layer.rates, rows);
            }
        }
        let cpu_ns = self.behind.compute(&layer.rates, left).expect("a layer without a CPU rate leaves it nothing");
        self.cpu_ns = self.cpu_ns.saturating_add(cpu_ns);
        Ok(cpu_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experts_are_read_or_refused() {
        let read = |text| parse_expert(text).map(|expert| (expert.tag, expert.bytes));
        assert_eq!(read("5308416"), Ok((None, 5_308_416)));
        assert_eq!(read("Q4_K=5MiB"), Ok((Some("Q4_K".to_owned()), 5 << 20)));
        assert_eq!(read("gate=Q4_K down=Q6_K=9"), Ok((Some("gate=Q4_K down=Q6_K".to_owned()), 9)));
        for text in ["", "0", "Q4_K", "Q4_K=", "Q4_K=-1"] {
            assert!(read(text).is_err(), "{text:?} was taken for {:?}", read(text));
        }
    }

    #[test]
    fn percentiles_are_tokens() {
        let outcome = |waiting_ns| Outcome { stats: None, fetched: 0, on_cpu: 0, link_ns: 0, cpu_ns: 0, waiting_ns };
        let hundred = outcome((1..=100).collect());
        assert_eq!([50, 95, 99, 100].map(|percent| hundred.percentile_ns(percent)), [50, 95, 99, 100]);
        // Of three tokens two are needed for half of them, and all for more than two thirds.
        let three = outcome(vec![7, 8, 9]);
        assert_eq!([33, 50, 66, 67].map(|percent| three.percentile_ns(percent)), [7, 8, 8, 9]);
        assert_eq!((outcome(vec![]).percentile_ns(50), three.waited_ns()), (0, 24));
    }

    #[test]
    fn caps_are_below_the_experts_of_a_token() {
        let caps = |top_k| {
            let cap = |way| match way {
                Way::Hybrid(FetchArgument::UpTo(most)) => Some(most),
                _ => None,
            };
            ways(&[], top_k).into_iter().filter_map(cap).collect::<Vec<_>>()
        };
        assert_eq!([1, 2, 8, 10].map(caps), [vec![], vec![1], vec![1, 2, 4], vec![1, 2, 4, 8]]);
        assert_eq!(ways(&[FetchArgument::UpTo(3)], 8).len(), 4);
    }
}
