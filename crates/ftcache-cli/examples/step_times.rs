//! How far the times of `replay --rates` are from copies that are really made, on the host device.
//!
//! `cargo run --release -p ftcache-cli --example step_times -- TRACE SLOTS TOKENS ROW_BYTES [ROUNDS] [MEASURED_BYTES]`
//!
//! In each round (5) the link is measured as `probe` does it, over MEASURED_BYTES (64 MiB, as there), and then TOKENS
//! tokens of the trace are loaded over generated rows of ROW_BYTES, a step of each layer, every step waited for. A
//! round before them does not count: it touches every page for the first time. Three estimates are compared:
//!
//! - `bytes`: the bytes of a step at the rate of copies of as many bytes;
//! - `step`: besides, what a step takes without its bytes. This is what `replay --rates` says;
//! - `fit`: the same by two numbers for copies of all sizes, so much for each and so much for its bytes.
//!
//! What is measured is all of `load` and the wait behind it, so the admission of a step, too; steps without a miss,
//! which are estimated at nothing, show how much that is.

#![forbid(unsafe_code)]

use std::error::Error;
use std::fs::File;
use std::io::BufReader;
use std::time::Instant;

use ftcache::policy::{Point, Rates, StepRates};
use ftcache::transfer::{Link, measure_copies, measure_step};
use ftcache::{
    BankId, Budget, Cache, Constraints, ExpertId, Geometry, HostDevice, HostRows, LayerId, LayoutKey, Model,
    Quantisation, Stream,
};
use ftcache_trace::Trace;

/// Beside the rows' own, for the fit.
const SIZES: [u64; 7] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];
const ESTIMATES: [&str; 3] = ["bytes", "step", "fit"];

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
    fit: Link,
}

impl Measured {
    fn new(row_bytes: u64, total_bytes: u64) -> Result<Self, Box<dyn Error>> {
        let mut device = HostDevice::new();
        let sizes: Vec<u64> = SIZES.iter().copied().filter(|&bytes| bytes != row_bytes).chain([row_bytes]).collect();
        let points = measure_copies(&mut device, &sizes, total_bytes, &mut |_, _| ())?;
        let step_seconds = measure_step(&mut device)?;
        let row_rate = points.last().expect("the rows' own size is the last").bytes_per_second();
        let point = Point { tag: Vec::new(), expert_bytes: row_bytes, link: row_rate, cpu: None, contended: None };
        let rates = Rates::new("host memory", vec![point])?.with_seconds_per_step(step_seconds)?;
        let rates = StepRates::of(&rates, &LayoutKey::untagged([row_bytes]), 1 << 16)?;
        Ok(Self { rates, row_rate, step_seconds, fit: Link::fit(&points)? })
    }

    fn time(&self, fetched: u32, row_bytes: u64, measured: f64) -> Time {
        let bytes = u64::from(fetched) * row_bytes;
        let step = self.rates.time(fetched, 0).expect("nothing is left to the CPU").link_ns as f64;
        let step_ns = if fetched > 0 { 1e9 * self.step_seconds } else { 0.0 };
        let fit = step_ns + 1e9 * self.fit.seconds(fetched.into(), bytes);
        Time { measured, estimated: [1e9 * bytes as f64 / self.row_rate, step, fit] }
    }
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
    let shape = trace.header().shape();
    let layers = vec![LayoutKey::tagged("generated", [row_bytes]); shape.layers as usize];
    let model = Model::new(shape.experts, shape.top_k, Quantisation::PerLayer, layers)?;
    let mut cache = Cache::new(Geometry::new(model, Constraints::new(Budget::Slots(slots)))?, HostDevice::new())?;
    for layer in (0..shape.layers).map(LayerId::new) {
        let bytes = usize::try_from(row_bytes)? * shape.experts as usize;
        let rows: Vec<u8> = (0..bytes).map(|byte| byte as u8 ^ layer.get() as u8).collect();
        cache.attach(layer, BankId::new(0), HostRows::owned(rows.into(), 0))?;
    }

    let name = &trace.header().model;
    println!("{name}: {tokens} tokens of {}, {slots} slots, rows of {row_bytes} bytes", shape.tokens);
    println!("round  row GB/s  step ns  estimated / measured: {}", ESTIMATES.join("  "));
    let (mut steps, mut hit_steps, mut by_token) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=rounds {
        let link = Measured::new(row_bytes, measured_bytes)?;
        let mut whole = Time::default();
        for token in 0..tokens.min(trace.tokens().len()) {
            let mut sum = Time::default();
            for layer in 0..shape.layers as usize {
                let Some(cell) = trace.cell(token, layer) else { continue };
                let routes: Vec<ExpertId> = cell.iter().map(|&expert| ExpertId::new(expert.into())).collect();
                let begin = Instant::now();
                cache.load(LayerId::from_index(layer), &routes)?;
                cache.synchronize(Stream::DEFAULT)?;
                let measured = begin.elapsed().as_nanos() as f64;
                let fetched = cache.plan().copies().len() as u32;
                let time = link.time(fetched, row_bytes, measured);
                sum.add(time);
                if round > 0 {
                    if fetched > 0 { &mut steps } else { &mut hit_steps }.push(time);
                }
            }
            whole.add(sum);
            if round > 0 && sum.estimated[0] > 0.0 {
                by_token.push(sum);
            }
        }
        if round > 0 {
            let ratios = whole.estimated.map(|estimate| format!("{:.3}", estimate / whole.measured));
            let (giga, ns) = (link.row_rate / 1e9, 1e9 * link.step_seconds);
            println!("{round:>5}  {giga:>8.2}  {ns:>7.0}  {}", ratios.join("  "));
        }
    }
    println!("off by         median    95 %   worst");
    for (what, times) in [("step", &steps), ("token", &by_token)] {
        for (index, estimate) in ESTIMATES.iter().enumerate() {
            let off = |time: &Time| (time.estimated[index] / time.measured - 1.0).abs();
            let [median, most, worst] = percentiles(times.iter().map(off).collect(), [50, 95, 100]);
            let percent = |off: f64| format!("{:.1} %", 100.0 * off);
            println!("{what:<6} {estimate:<6} {:>8} {:>7} {:>7}", percent(median), percent(most), percent(worst));
        }
    }
    let [median] = percentiles(hit_steps.iter().map(|time| time.measured).collect(), [50]);
    println!("{} steps with misses, {} without: {median:.0} ns, the median", steps.len(), hit_steps.len());
    Ok(())
}

fn percentiles<const N: usize>(mut numbers: Vec<f64>, percents: [usize; N]) -> [f64; N] {
    numbers.sort_by(f64::total_cmp);
    percents.map(|percent| {
        let rank = (numbers.len() * percent).div_ceil(100).max(1);
        numbers.get(rank - 1).copied().unwrap_or_default()
    })
}
