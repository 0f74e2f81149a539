//! `ftcache probe`: what a machine's link and memory do, measured, and the rates that the fetch policy reads.
//!
//! Without a GPU the host device is measured: the same copies within host memory, which say nothing of a link. So no
//! rates are written then.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs::File;
use std::path::{Path, PathBuf};

use ftcache::policy::{Pair, Point, Rates, parse_bytes};
use ftcache::transfer::{
    ContendedPoint, CopyPoint, Reads, measure_batches, measure_contended, measure_copies, measure_gathers,
    measure_reads, measure_step,
};
use ftcache::{BatchReport, CudaContext, CudaDevice, CudaDriver, CudaFacts, Device, HostDevice};
use ftcache_model::MoeModel;

use crate::Failure;
use crate::memory::{available_bytes, check_memory};
use crate::probe_report::rates_json;
use crate::progress::ProgressLine;
use crate::table::{count, grouped};

/// From where a call costs more than its bytes to where it is nothing beside them.
const SIZES: [u64; 7] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];
/// Read by the CPU at least, where its caches are smaller or not known.
const READ_BYTES_MIN: u64 = 256 << 20;
/// Moved to see whether a small entry makes a batch wait.
const LARGE_BYTES: u64 = 32 << 20;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A .gguf file, whose rows are measured, too; of a split model, any of its files
    model: Option<PathBuf>,
    /// A CUDA device by its number [default: 0, or the host if there is no CUDA driver]
    #[arg(long, value_name = "N", conflicts_with = "host")]
    device: Option<i32>,
    /// Measure host memory, whatever devices there are
    #[arg(long)]
    host: bool,
    /// Sizes of copies [default: 4KiB to 16MiB]
    #[arg(long, value_name = "BYTES,BYTES", value_delimiter = ',', value_parser = parse_bytes)]
    sizes: Vec<u64>,
    /// Bytes of each measurement, in as many copies as that makes, 2048 at most
    #[arg(long, value_name = "TOTAL", value_parser = parse_bytes, default_value = "64MiB")]
    bytes: u64,
    /// Threads that read memory [default: one fewer than CPUs, which waits for copies]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    threads: Option<u32>,
    /// Bytes that they read over and over [default: twice what the caches hold, 256MiB at least]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    read_bytes: Option<u64>,
    /// Bytes of experts a second that CPU code was measured to compute, of a quantisation as `inspect` names it:
    /// Q4_K=9.1e10; may be given several times [default: what memory reads reach]
    #[arg(long, value_name = "TAG=BYTES_PER_S", value_parser = parse_cpu_rate, requires = "rates")]
    cpu_rate: Vec<CpuRate>,
    /// Write rates of the model's experts for `plan --rates` and `replay --rates`
    #[arg(long, value_name = "FILE", requires = "model")]
    rates: Option<PathBuf>,
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, PartialEq)]
struct CpuRate {
    tag: String,
    bytes_per_second: f64,
}

fn parse_cpu_rate(text: &str) -> Result<CpuRate, String> {
    // A tag may have a `=` of its own: `gate=Q4_K down=Q6_K=9.1e10`.
    let (tag, rate) = text.rsplit_once('=').ok_or_else(|| format!("{text:?} has no tag before a ="))?;
    let rate = rate.trim();
    let bytes = rate.parse().ok().or_else(|| parse_bytes(rate).ok().map(|bytes| bytes as f64));
    let known = bytes.filter(|&rate: &f64| rate > 0.0 && rate < f64::MAX / 2.0);
    let bytes_per_second = known.ok_or_else(|| format!("{rate:?} is not bytes a second such as 9.1e10 or 91GB"))?;
    Ok(CpuRate { tag: tag.to_owned(), bytes_per_second })
}

/// Experts of one quantisation and size.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Expert {
    tag: String,
    bytes: u64,
    /// Of each bank that has one.
    row_bytes: Vec<u64>,
}

/// One of each quantisation and size, in the order of layers. Those that differ only in how bytes are divided between
/// banks are taken for the first: rates have no place for more.
fn experts(model: &MoeModel) -> Vec<Expert> {
    let mut experts: Vec<Expert> = Vec::new();
    for layer in &model.layers {
        let bytes = layer.expert_bytes();
        if !experts.iter().any(|expert| expert.tag == layer.tag && expert.bytes == bytes) {
            let row_bytes = layer.tensors.iter().map(|tensor| tensor.row_bytes).filter(|&bytes| bytes > 0).collect();
            experts.push(Expert { tag: layer.tag.clone(), bytes, row_bytes });
        }
    }
    experts
}

pub(crate) fn run(arguments: &Arguments, out: &mut String) -> Result<(), Failure> {
    let experts = match &arguments.model {
        None => Vec::new(),
        Some(path) => {
            let model = MoeModel::open(path)?;
            // What the policy refuses is no model to measure for.
            model.geometry()?;
            experts(&model)
        }
    };
    check_cpu_rates(&arguments.cpu_rate, &experts)?;
    let plan = Measurements::new(arguments, &experts)?;
    let device = open(arguments)?;
    check_memory("measuring needs", plan.host_bytes(device.is_err()), available_bytes())?;
    let at = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    let file = match (&arguments.rates, &device) {
        (None, _) => None,
        (Some(path), Ok(_)) => Some((path, RatesFile::create(path).map_err(|error| at(path, error))?)),
        (Some(path), Err(why)) => {
            return Err(format!("{}: not written, as host memory is no link: {why}", path.display()).into());
        }
    };
    let measured = match device {
        Ok(mut device) => {
            device.probe_batches(LARGE_BYTES)?;
            let measured = plan.measure(&mut device, |device| matches!(device.batches(), BatchReport::On { .. }))?;
            let (facts, batches) = (device.facts().clone(), device.batches().clone());
            Measured { found: Found::Cuda(facts, batches, kernels(&mut device)), ..measured }
        }
        Err(why) => Measured { found: Found::Host(why), ..plan.measure(&mut HostDevice::new(), |_| false)? },
    };
    let rates = match file {
        None => None,
        Some((path, file)) => {
            let (rates, note) = measured.rates(&experts, &arguments.cpu_rate)?;
            let written = file.write(&rates, note.as_deref()).map_err(|error| at(path, error));
            Some(MeasuredRates { path, rates, note, written })
        }
    };
    if arguments.json {
        writeln!(out, "{:#}", measured.json(rates.as_ref()))
    } else {
        measured.write(rates.as_ref(), out)
    }?;
    // What was measured is shown, wherever it could not be written.
    Ok(rates.map_or(Ok(()), |rates| rates.written)?)
}

fn check_cpu_rates(cpu_rates: &[CpuRate], experts: &[Expert]) -> Result<(), Failure> {
    for (index, CpuRate { tag, .. }) in cpu_rates.iter().enumerate() {
        if !experts.iter().any(|expert| expert.tag == *tag) {
            return Err(format!("a CPU rate for {tag}, which no layer has").into());
        }
        if cpu_rates[..index].iter().any(|before| before.tag == *tag) {
            return Err(format!("two CPU rates for {tag}").into());
        }
    }
    Ok(())
}

/// The device that was asked for, or else the first, or else why it is the host that is measured.
fn open(arguments: &Arguments) -> Result<Result<CudaDevice, String>, Failure> {
    if arguments.host {
        return Ok(Err("--host".to_owned()));
    }
    match (CudaDriver::open(), arguments.device) {
        (Ok(driver), ordinal) => Ok(Ok(CudaDevice::new(driver, CudaContext::Primary(ordinal.unwrap_or_default()))?)),
        // A number is a wish for that device and no other.
        (Err(error), Some(_)) => Err(error.into()),
        (Err(error), None) => Ok(Err(error.to_string())),
    }
}

/// What is to be measured.
struct Measurements {
    sizes: Vec<u64>,
    /// Sizes that nobody asked for, and that are above what is to be moved.
    left_out: Vec<u64>,
    total_bytes: u64,
    reads: Reads,
}

impl Measurements {
    fn new(arguments: &Arguments, experts: &[Expert]) -> Result<Self, Failure> {
        let total_bytes = arguments.bytes;
        let asked = &arguments.sizes;
        let default = if asked.is_empty() { &SIZES[..] } else { &[] };
        let (default, left_out): (Vec<u64>, Vec<u64>) = default.iter().partition(|&&bytes| bytes <= total_bytes);
        let rows = experts.iter().flat_map(|expert| &expert.row_bytes);
        let sizes: BTreeSet<u64> = default.iter().chain(asked).chain(rows).copied().collect();
        if sizes.is_empty() {
            let (least, total_bytes) = (grouped(SIZES[0]), grouped(total_bytes));
            return Err(format!("copies of {least} bytes and more; --bytes {total_bytes} are to be moved").into());
        }
        if let Some(bytes) = sizes.iter().find(|&&bytes| bytes > total_bytes) {
            let total_bytes = grouped(total_bytes);
            return Err(format!("copies of {} bytes; --bytes {total_bytes} are to be moved", grouped(*bytes)).into());
        }
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = arguments.threads.map_or(cpus.saturating_sub(1).max(1), |threads| threads as usize);
        let bytes = arguments.read_bytes.unwrap_or_else(|| (2 * cache_bytes()).max(READ_BYTES_MIN));
        let reads = Reads { threads, bytes };
        Ok(Self { sizes: sizes.into_iter().collect(), left_out, total_bytes, reads })
    }

    /// Host memory that it takes: what is read and the sources of copies; on the host device the targets, too.
    fn host_bytes(&self, on_host: bool) -> u64 {
        self.reads.bytes.saturating_add(self.total_bytes.saturating_mul(if on_host { 2 } else { 1 }))
    }

    /// What it was measured on is the caller's to say.
    fn measure<D: Device>(&self, device: &mut D, is_batched: impl Fn(&D) -> bool) -> Result<Measured, Failure> {
        let batched = is_batched(device);
        let measured = self.measure_once(device, batched)?;
        // A batch that was refused in between leaves some copies in batches and some alone, under one heading. None are
        // in batches from then on.
        if batched && !is_batched(device) { self.measure_once(device, false) } else { Ok(measured) }
    }

    fn measure_once<D: Device>(&self, device: &mut D, batched: bool) -> Result<Measured, Failure> {
        let &Self { ref sizes, ref left_out, total_bytes, reads } = self;
        let mut line = ProgressLine::new();
        let copies = measure_copies(device, sizes, total_bytes, &mut shown(&mut line, "copies"))?;
        let batches = batched.then(|| measure_batches(device, sizes, total_bytes, &mut shown(&mut line, "batches")));
        let batches = batches.transpose()?;
        let gathers = measure_gathers(device, sizes, total_bytes, &mut shown(&mut line, "gathers"))?;
        let step_seconds = measure_step(device)?;
        let read_rate = measure_reads(reads, &mut shown(&mut line, "reads"))?;
        let contended =
            measure_contended(device, sizes, total_bytes, reads, &mut shown(&mut line, "copies beside reads"))?;
        let (name, found, left_out) = (device.name(), Found::Host(String::new()), left_out.clone());
        Ok(Measured {
            name,
            found,
            total_bytes,
            left_out,
            copies,
            batches,
            gathers,
            step_seconds,
            reads,
            read_rate,
            contended,
        })
    }
}

/// Whether there can be device mode: the image of the kernels, or why there is none.
fn kernels(device: &mut CudaDevice) -> Result<String, String> {
    device.prepare_kernels().map_err(|error| error.to_string())?;
    Ok(device.kernel_image().expect("they are prepared").to_string())
}

/// What was measured on.
pub(crate) enum Found {
    /// And what kernels run from, or why none do.
    Cuda(CudaFacts, BatchReport, Result<String, String>),
    /// Host memory, and why.
    Host(String),
}

/// Rates, and whether they were written.
pub(crate) struct MeasuredRates<'a> {
    pub(crate) path: &'a Path,
    pub(crate) rates: Rates,
    /// What is to be said of them.
    pub(crate) note: Option<String>,
    pub(crate) written: Result<(), String>,
}

pub(crate) struct Measured {
    pub(crate) name: String,
    pub(crate) found: Found,
    pub(crate) total_bytes: u64,
    /// Sizes above it that were left out.
    pub(crate) left_out: Vec<u64>,
    pub(crate) copies: Vec<CopyPoint>,
    /// `None` where the device takes none.
    pub(crate) batches: Option<Vec<CopyPoint>>,
    pub(crate) gathers: Vec<CopyPoint>,
    /// What a step's copies take besides their bytes.
    pub(crate) step_seconds: f64,
    pub(crate) reads: Reads,
    pub(crate) read_rate: f64,
    pub(crate) contended: Vec<ContendedPoint>,
}

impl Measured {
    /// Copies as a plan's are made, which is how they are made beside reads, too: in batches where the device takes
    /// them.
    pub(crate) fn as_applied(&self) -> &[CopyPoint] {
        self.batches.as_ref().unwrap_or(&self.copies)
    }

    /// The rates of experts, and what is to be said of them.
    fn rates(&self, experts: &[Expert], cpu_rates: &[CpuRate]) -> Result<(Rates, Option<String>), Failure> {
        let (mut by_reads, mut faster) = (Vec::new(), Vec::new());
        let points = experts.iter().map(|expert| {
            let seconds = |row: &u64| find(self.as_applied(), |point| point.bytes == *row).seconds_per_copy();
            let link = expert.bytes as f64 / expert.row_bytes.iter().map(seconds).sum::<f64>();
            let beside: Vec<(f64, f64)> = expert
                .row_bytes
                .iter()
                .map(|row| {
                    let point = find(&self.contended, |point| point.copies.bytes == *row);
                    (point.copies.seconds_per_copy(), point.read_bytes_per_second)
                })
                .collect();
            let beside_seconds: f64 = beside.iter().map(|(seconds, _)| seconds).sum();
            let reads = beside.iter().map(|(seconds, rate)| seconds * rate).sum::<f64>() / beside_seconds;
            let given = cpu_rates.iter().find(|rate| rate.tag == expert.tag).map(|rate| rate.bytes_per_second);
            if given.is_none() && !by_reads.contains(&expert.tag.as_str()) {
                by_reads.push(expert.tag.as_str());
            }
            // Code that does not come to what memory gives is not slower for copies beside it.
            let pair = Pair { link: expert.bytes as f64 / beside_seconds, cpu: given.unwrap_or(reads).min(reads) };
            if pair.link > link && !faster.contains(&expert.tag.as_str()) {
                faster.push(expert.tag.as_str());
            }
            let cpu = Some(given.unwrap_or(self.read_rate));
            Point { tag: expert.tag.clone().into(), expert_bytes: expert.bytes, link, cpu, contended: Some(pair) }
        });
        let points = points.collect();
        let by_reads = (!by_reads.is_empty()).then(|| {
            format!(
                "the CPU's rate of {} is that of memory reads by {}: the most that its code could reach, not what it does",
                by_reads.join(", "),
                count(self.reads.threads as u64, "thread")
            )
        });
        let faster = (!faster.is_empty()).then(|| {
            let tags = faster.join(", ");
            format!(
                "the link's rate of {tags} came out higher beside reads than alone, which no link is: measure again"
            )
        });
        let notes: Vec<String> = by_reads.into_iter().chain(faster).collect();
        let rates = Rates::new(&self.name, points)?.with_seconds_per_step(self.step_seconds)?;
        Ok((rates, (!notes.is_empty()).then(|| notes.join("; "))))
    }
}

/// The point of a size; every row of an expert has one.
fn find<T>(points: &[T], is_it: impl Fn(&&T) -> bool) -> &T {
    points.iter().find(is_it).expect("rows of experts are among the sizes")
}

/// Rates, written whole or not at all: to a file beside their own, and then in its place. It is made before anything is
/// measured, so that a place where it cannot be is told at once.
struct RatesFile {
    path: PathBuf,
    part: PathBuf,
    file: File,
}

impl RatesFile {
    fn create(path: &Path) -> std::io::Result<Self> {
        let mut name = path.file_name().ok_or(std::io::ErrorKind::InvalidInput)?.to_owned();
        name.push(format!(".{}.part", std::process::id()));
        let part = path.with_file_name(name);
        Ok(Self { path: path.to_owned(), file: File::create(&part)?, part })
    }

    fn write(mut self, rates: &Rates, note: Option<&str>) -> std::io::Result<()> {
        std::io::Write::write_all(&mut self.file, format!("{:#}\n", rates_json(rates, note)).as_bytes())?;
        self.file.sync_all()?;
        std::fs::rename(&self.part, &self.path)
    }
}

impl Drop for RatesFile {
    fn drop(&mut self) {
        // Of what was written it is gone already.
        let _ = std::fs::remove_file(&self.part);
    }
}

/// Bytes of all caches of the last level together, where the system says so; else 0.
fn cache_bytes() -> u64 {
    // One cache is listed by every CPU that shares it.
    let mut caches: BTreeSet<(u32, String, u64)> = BTreeSet::new();
    let Ok(cpus) = std::fs::read_dir("/sys/devices/system/cpu") else { return 0 };
    for cpu in cpus.flatten() {
        let Ok(indexes) = std::fs::read_dir(cpu.path().join("cache")) else { continue };
        for index in indexes.flatten() {
            let field = |name: &str| -> Option<String> {
                Some(std::fs::read_to_string(index.path().join(name)).ok()?.trim().to_owned())
            };
            let bytes = field("size").and_then(|size| size.strip_suffix('K')?.parse::<u64>().ok()?.checked_mul(1024));
            let level = field("level").and_then(|level| level.parse().ok());
            if let (Some(level), Some(shared), Some(bytes)) = (level, field("shared_cpu_list"), bytes) {
                caches.insert((level, shared, bytes));
            }
        }
    }
    let last = caches.last().map_or(0, |&(level, ..)| level);
    let bytes = caches.iter().filter(|&&(level, ..)| level == last).map(|&(.., bytes)| bytes);
    bytes.fold(0, u64::saturating_add).min(u64::MAX / 2)
}

/// Shows how far one measurement is.
fn shown(line: &mut ProgressLine, what: &'static str) -> impl FnMut(u64, u64) {
    move |done, all| line.show(|| format!("measuring {what}: {done} of {all}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_rates_are_read_or_refused() {
        let read = |text| parse_cpu_rate(text).map(|rate| (rate.tag, rate.bytes_per_second));
        assert_eq!(read("Q4_K=9.1e10"), Ok(("Q4_K".to_owned(), 9.1e10)));
        assert_eq!(read("gate=Q4_K down=Q6_K=91GB"), Ok(("gate=Q4_K down=Q6_K".to_owned(), 9.1e10)));
        for text in ["Q4_K", "Q4_K=", "Q4_K=0", "Q4_K=-1", "Q4_K=NaN", "Q4_K=inf", "Q4_K=1e308", "Q4_K=fast"] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    fn copies(bytes: u64, seconds_per_copy: f64) -> CopyPoint {
        let seconds = 10.0 * seconds_per_copy;
        CopyPoint { bytes, count: 10, seconds, returned_seconds: seconds }
    }

    #[test]
    fn rates_are_those_of_an_experts_rows() {
        let beside = |bytes, seconds, rate| {
            let copies = copies(bytes, seconds);
            ContendedPoint { copies, read_bytes_per_second: rate }
        };
        let measured = Measured {
            name: "card".to_owned(),
            found: Found::Host("a test".to_owned()),
            total_bytes: 1000,
            left_out: Vec::new(),
            copies: Vec::new(),
            batches: Some(vec![copies(100, 1e-6), copies(900, 3e-6)]),
            gathers: Vec::new(),
            step_seconds: 9e-6,
            reads: Reads { threads: 3, bytes: 1 },
            read_rate: 5e9,
            contended: vec![beside(100, 2e-6, 4e9), beside(900, 6e-6, 3e9)],
        };
        let expert = |tag: &str, row_bytes: &[u64]| Expert {
            tag: tag.to_owned(),
            bytes: row_bytes.iter().sum(),
            row_bytes: row_bytes.to_vec(),
        };
        let experts = [expert("a", &[900, 100, 900]), expert("b", &[100]), expert("c", &[100])];
        let given =
            [("b", 2e9), ("c", 4.5e9)].map(|(tag, rate)| CpuRate { tag: tag.to_owned(), bytes_per_second: rate });
        let (rates, note) = measured.rates(&experts, &given).unwrap();
        let near = |one: f64, other: f64| assert!((one / other - 1.0).abs() < 1e-12, "{one} {other}");
        assert_eq!(rates.seconds_per_step(), Some(9e-6));
        let [a, b, c] = rates.points() else { panic!("three points") };
        near(a.link, 1900.0 / 7e-6);
        let pair = a.contended.unwrap();
        near(pair.link, 1900.0 / 14e-6);
        near(pair.cpu, (2.0 * 4e9 + 12.0 * 3e9) / 14.0);
        assert_eq!([a.cpu, b.cpu, c.cpu], [Some(5e9), Some(2e9), Some(4.5e9)]);
        // Slower code loses nothing to copies; faster code comes to what reads come to.
        near(b.contended.unwrap().cpu, 2e9);
        near(c.contended.unwrap().cpu, 4e9);
        let wanted = "the CPU's rate of a is that of memory reads by 3 threads: the most that its code could reach, not what it does";
        assert_eq!(note.as_deref(), Some(wanted));
        assert_eq!(measured.rates(&experts[1..], &given).unwrap().1, None);
        // Copies that are faster while others use the memory, too, are a measurement that went wrong.
        let measured = Measured { contended: vec![beside(100, 2e-6, 4e9), beside(900, 2e-6, 3e9)], ..measured };
        let note = |experts: &[Expert], given: &[CpuRate]| measured.rates(experts, given).unwrap().1;
        let faster = "the link's rate of a came out higher beside reads than alone, which no link is: measure again";
        assert_eq!(note(&experts, &given), Some(format!("{wanted}; {faster}")));
        assert_eq!(note(&experts[1..], &given), None);
    }

    fn measurements() -> Measurements {
        let reads = Reads { threads: 1, bytes: 1 << 16 };
        Measurements { sizes: vec![64, 128], left_out: Vec::new(), total_bytes: 1000, reads }
    }

    #[test]
    fn batches_that_went_off_while_measuring_are_none() {
        let measured = |answers: [bool; 2]| {
            let asked = std::cell::Cell::new(0);
            let is_batched = |_: &HostDevice| answers[asked.replace(asked.get() + 1)];
            measurements().measure(&mut HostDevice::new(), is_batched).unwrap()
        };
        let on = measured([true, true]);
        assert!(on.batches.is_some() && on.as_applied() == on.batches.as_deref().unwrap());
        let off = measured([true, false]);
        assert!(off.batches.is_none() && off.as_applied() == off.copies);
    }

    #[test]
    fn targets_on_a_device_take_no_host_memory() {
        let measurements = measurements();
        assert_eq!([true, false].map(|on_host| measurements.host_bytes(on_host)), [65_536 + 2000, 65_536 + 1000]);
    }
}
