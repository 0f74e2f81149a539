//! How far the times of `replay --rates` are from copies that are really made, on the host device.
//!
//! `cargo run --release -p ftcache-cli --example step_times -- TRACE SLOTS TOKENS ROW_BYTES [ROUNDS] [MEASURED_BYTES]`
//!
//! In each round (5) the link is measured as `probe` does it, over MEASURED_BYTES (64 MiB, as there), and then TOKENS
//! tokens of the trace are loaded over generated rows of ROW_BYTES, a step of each layer, every step waited for. A
//! round before them does not count: it touches every page for the first time. After it, each round makes much the same
//! copies. Three estimates are compared:
//!
//! - `bytes`: the bytes of a step at the rate at which copies as large as a row were measured;
//! - `step`: besides, what a step takes without its bytes. This is what `replay --rates` says;
//! - `fitted`: as `step`, but both numbers are those that fit the steps themselves best: how good the form of the model
//!   is, whatever the measurement of the link was worth.
//!
//! They are compared with every step of every round, by the link as it was measured in that round; and with the fastest
//! of each step's rounds, by the fastest that the link was measured, in which there is little of what else the machine
//! does. What is measured is all of `load` and the wait behind it, so the admission of a step, too; steps without a
//! miss, which are estimated at nothing, show how much that is.

#![forbid(unsafe_code)]

use std::error::Error;
use std::fs::File;
use std::io::BufReader;
use std::time::Instant;

use ftcache::policy::{Point, Rates, StepRates};
use ftcache::transfer::{CopyPoint, Link, measure_copies, measure_step};
use ftcache::{
    BankId, Budget, Cache, Constraints, ExpertId, Geometry, HostDevice, HostRows, LayerId, LayoutKey, Model,
    Quantisation, Stream,
};
use ftcache_trace::Trace;

const ESTIMATES: [&str; 3] = ["bytes", "step", "fitted"];

/// One step, as it was measured.
#[derive(Clone, Copy)]
struct Step {
    token: usize,
    fetched: u32,
    ns: f64,
}

/// Nanoseconds of a step or a token: as measured, and by each estimate.
#[derive(Clone, Copy, Default)]
struct Time {
    measured: f64,
    estimated: [f64; ESTIMATES.len()],
}

impl Time {
    fn add(&mut self, other: Self) {
        self.measured += other.measured;
        self.estimated.iter_mut().zip(other.estimated).for_each(|(sum, estimate)| *sum += estimate);
    }
}

/// What the link was measured to do.
struct Measured {
    rates: StepRates,
    row_rate: f64,
    step_seconds: f64,
}

impl Measured {
    fn new(row_bytes: u64, total_bytes: u64) -> Result<Self, Box<dyn Error>> {
        let mut device = HostDevice::new();
        let points = measure_copies(&mut device, &[row_bytes], total_bytes, &mut |_, _| ())?;
        let step_seconds = measure_step(&mut device)?;
        let row_rate = points[0].bytes_per_second();
        let point = Point { tag: Vec::new(), expert_bytes: row_bytes, link: row_rate, cpu: None, contended: None };
        let rates = Rates::new("host memory", vec![point])?.with_seconds_per_step(step_seconds)?;
        let rates = StepRates::of(&rates, &LayoutKey::untagged([row_bytes]), 1 << 16)?;
        Ok(Self { rates, row_rate, step_seconds })
    }
}

/// What fits steps best: the median of all that fetch one row, two rows and so on, as copies of so many bytes.
fn fit(steps: &[Step], row_bytes: u64) -> Result<Link, Box<dyn Error>> {
    let most = steps.iter().map(|step| step.fetched).max().unwrap_or(0);
    let points = (1..=most).filter_map(|rows| {
        let times: Vec<f64> = steps.iter().filter(|step| step.fetched == rows).map(|step| step.ns).collect();
        let count = times.len() as u64;
        let [median] = percentiles(times, [50]);
        let seconds = 1e-9 * median * count as f64;
        (count > 0).then_some(CopyPoint { bytes: u64::from(rows) * row_bytes, count, seconds, returned_seconds: 0.0 })
    });
    Ok(Link::fit(&points.collect::<Vec<_>>())?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let usage = "step_times TRACE SLOTS TOKENS ROW_BYTES [ROUNDS] [MEASURED_BYTES]";
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or(usage)?;
    let slots: u64 = arguments.next().ok_or(usage)?.parse()?;
    let tokens: usize = arguments.next().ok_or(usage)?.parse()?;
    let row_bytes: u64 = arguments.next().ok_or(usage)?.parse()?;
    let rounds: u32 = arguments.next().map_or(Ok(5), |rounds| rounds.parse())?;
    let measured_bytes: u64 = arguments.next().map_or(Ok(64 << 20), |bytes| bytes.parse())?;

    let trace = Trace::read(BufReader::new(File::open(&path)?))?;
    let mut cache = cache(&trace, slots, row_bytes)?;
    let (name, all) = (&trace.header().model, trace.tokens().len());
    println!("{name}: {} tokens of {all}, {slots} slots, rows of {row_bytes} bytes", tokens.min(all));
    println!("round  row GB/s  step ns  estimated / measured: {}", ESTIMATES.join("  "));
    round(&mut cache, &trace, tokens)?;
    let (mut every, mut every_token) = (Vec::new(), Vec::new());
    let mut fastest: Option<(Vec<Step>, Measured)> = None;
    for number in 1..=rounds {
        let link = Measured::new(row_bytes, measured_bytes)?;
        let steps = round(&mut cache, &trace, tokens)?;
        let (times, by_token) = compare(&steps, &link, row_bytes)?;
        let mut whole = Time::default();
        by_token.iter().for_each(|time| whole.add(*time));
        let ratios = whole.estimated.map(|estimate| format!("{:.3}", estimate / whole.measured));
        let (giga, ns) = (link.row_rate / 1e9, 1e9 * link.step_seconds);
        println!("{number:>5}  {giga:>8.2}  {ns:>7.0}  {}", ratios.join("  "));
        every.extend(times);
        every_token.extend(by_token);
        fastest = Some(match fastest {
            None => (steps, link),
            Some((mut least, best)) => {
                // Slots differ from round to round, and so, now and then, does who of a step is the victim.
                let alike = least.iter_mut().zip(&steps).filter(|(least, step)| least.fetched == step.fetched);
                alike.for_each(|(least, step)| least.ns = least.ns.min(step.ns));
                (least, if link.row_rate > best.row_rate { link } else { best })
            }
        });
    }
    let (steps, link) = fastest.ok_or("no round")?;
    let (least, least_token) = compare(&steps, &link, row_bytes)?;
    println!("off by                  median    95 %   worst");
    for (what, times) in
        [("step", &every), ("token", &every_token), ("fastest step", &least), ("fastest token", &least_token)]
    {
        for (index, estimate) in ESTIMATES.iter().enumerate() {
            let off = |time: &Time| (time.estimated[index] / time.measured - 1.0).abs();
            let [median, most, worst] =
                percentiles(times.iter().map(off).collect(), [50, 95, 100]).map(|off| format!("{:.1} %", 100.0 * off));
            println!("{what:<14} {estimate:<6} {median:>8} {most:>7} {worst:>7}");
        }
    }
    let hits: Vec<f64> = steps.iter().filter(|step| step.fetched == 0).map(|step| step.ns).collect();
    let (misses, without) = (least.len(), hits.len());
    let [median] = percentiles(hits, [50]);
    println!("{misses} steps with misses; the fastest of {without} without took {median:.0} ns, the median");
    Ok(())
}

/// Steps with misses beside their estimates, and the tokens that they add up to.
fn compare(steps: &[Step], link: &Measured, row_bytes: u64) -> Result<(Vec<Time>, Vec<Time>), Box<dyn Error>> {
    let fitted = fit(steps, row_bytes)?;
    let (mut by_step, mut by_token) = (Vec::new(), Vec::new());
    for token in steps.chunk_by(|one, other| one.token == other.token) {
        let mut sum = Time::default();
        for &Step { fetched, ns, .. } in token.iter().filter(|step| step.fetched > 0) {
            let bytes = u64::from(fetched) * row_bytes;
            let step = link.rates.time(fetched, 0).expect("nothing is left to the CPU").link_ns as f64;
            let estimated = [1e9 * bytes as f64 / link.row_rate, step, 1e9 * fitted.seconds(1, bytes)];
            let time = Time { measured: ns, estimated };
            by_step.push(time);
            sum.add(time);
        }
        if sum.measured > 0.0 {
            by_token.push(sum);
        }
    }
    Ok((by_step, by_token))
}

/// A cache over rows that are made up; what they hold is nobody's business here.
fn cache(trace: &Trace, slots: u64, row_bytes: u64) -> Result<Cache<HostDevice>, Box<dyn Error>> {
    let shape = trace.header().shape();
    let layers = vec![LayoutKey::tagged("generated", [row_bytes]); shape.layers as usize];
    let model = Model::new(shape.experts, shape.top_k, Quantisation::PerLayer, layers)?;
    let mut cache = Cache::new(Geometry::new(model, Constraints::new(Budget::Slots(slots)))?, HostDevice::new())?;
    for layer in (0..shape.layers).map(LayerId::new) {
        let bytes = usize::try_from(row_bytes)? * shape.experts as usize;
        // Pages that were never written are all the same one.
        let rows = vec![1 + layer.get() as u8; bytes];
        cache.attach(layer, BankId::new(0), HostRows::owned(rows.into(), 0))?;
    }
    Ok(cache)
}

/// Every step of so many tokens.
fn round(cache: &mut Cache<HostDevice>, trace: &Trace, tokens: usize) -> Result<Vec<Step>, Box<dyn Error>> {
    let layers = trace.header().layers as usize;
    let mut steps = Vec::with_capacity(tokens * layers);
    let mut routes: Vec<ExpertId> = Vec::new();
    for token in 0..tokens.min(trace.tokens().len()) {
        for layer in 0..layers {
            let Some(cell) = trace.cell(token, layer) else { continue };
            routes.clear();
            routes.extend(cell.iter().map(|&expert| ExpertId::new(expert.into())));
            let begin = Instant::now();
            cache.load(LayerId::from_index(layer), &routes)?;
            cache.synchronize(Stream::DEFAULT)?;
            let ns = begin.elapsed().as_nanos() as f64;
            steps.push(Step { token, fetched: cache.plan().copies().len() as u32, ns });
        }
    }
    Ok(steps)
}

fn percentiles<const N: usize>(mut numbers: Vec<f64>, percents: [usize; N]) -> [f64; N] {
    numbers.sort_by(f64::total_cmp);
    percents.map(|percent| {
        let rank = (numbers.len() * percent).div_ceil(100).max(1);
        numbers.get(rank - 1).copied().unwrap_or_default()
    })
}
