//! Admission and gathers on a GPU, timed: `cargo xtask bench-gpu`, or this program alone where there is no cargo.
//!
//! It needs a CUDA driver and nothing else; the kernels are in it. With `--emulated` it runs on the emulated driver, to
//! see that it works: the times mean nothing then. Each number is told as soon as it is known (on the standard error
//! output), so that a run that is cut short was not for nothing; the tables come last.
//!
//! - `walk`: steps that miss as often as asked, again and again
//! - `admission`, `gather`: what is timed; `effort`: for how long; `report`: tables and JSON
//! - `driver`: graphs, events, plain copies

mod admission;
mod driver;
mod effort;
mod gather;
mod report;
mod walk;

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use clap::{Parser, ValueEnum};
use ftcache_policy::Eviction;

use crate::driver::{Cuda, Which};
use crate::effort::Effort;
use crate::gather::Rows;
use crate::report::{AdmissionRow, GatherRow, Head, Report, median};
use crate::walk::{Room, Walk};

/// What something came to, or a sentence that says why not.
pub(crate) type Outcome<T = ()> = Result<T, String>;

pub(crate) fn in_words(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// As many slots as the reference's measurements have, for a model of 48 layers of 512 experts.
pub(crate) const ROOM: Room = Room { layer_count: 48, expert_count: 512, top_k: 10, slot_count: 2100 };
pub(crate) const REQUESTS: [u32; 10] = [1, 4, 8, 12, 13, 16, 24, 32, 48, 128];
/// Of each step.
pub(crate) const MISSES: [u32; 4] = [0, 1, 8, 64];
/// Three banks of Qwen3-30B-A3B, 768 rows of 2,048 weights at 210 bytes for 256: 3.9 MB an expert, 1 GB in all.
const ROWS: Rows = Rows { layer_count: 4, expert_count: 64, bank_count: 3, row_bytes: 1_290_240 };
const ROW_COUNTS: [u32; 3] = [1, 8, 64];
pub(crate) const GATHER_BLOCKS: [u32; 5] = [16, 32, 64, 128, 256];
/// What device mode has unless told otherwise.
pub(crate) const GATHER_GOAL_BLOCKS: u32 = 64;
const THREADS: u32 = 1024;

/// The same in small, with the same columns: 8 misses are for as many requests as 64 are in full.
const SMALL_ROOM: Room = Room { layer_count: 4, expert_count: 24, top_k: 3, slot_count: 40 };
const SMALL_REQUESTS: [u32; 3] = [1, 2, 8];
const SMALL_ROWS: Rows = Rows { layer_count: 2, expert_count: 8, bank_count: 3, row_bytes: 20_000 };
const SMALL_ROW_COUNTS: [u32; 2] = [1, 8];
const SMALL_THREADS: u32 = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Admission,
    Gather,
}

/// Admission and gathers on a GPU, timed.
#[derive(Debug, Parser)]
#[command(name = "gpu-bench")]
struct Arguments {
    /// Few rows of small numbers, once or twice: to see that it works
    #[arg(long)]
    small: bool,
    /// On the emulated driver, whose times mean nothing
    #[arg(long)]
    emulated: bool,
    /// The device's number
    #[arg(long, value_name = "N", default_value_t = 0)]
    device: i32,
    /// Threads of an admission: multiples of 32 up to 1024
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    threads: Vec<u32>,
    /// The rule for victims: lru, lfu, cyclic, learned
    #[arg(long, value_name = "RULE", default_value_t)]
    eviction: Eviction,
    /// One part alone
    #[arg(long)]
    only: Option<Part>,
    /// Everything as JSON, written anew after each row
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Arguments {
    fn wants(&self, part: Part) -> bool {
        self.only.is_none_or(|only| only == part)
    }

    /// As the tables show it: what it was run with, but for files.
    fn command(&self) -> String {
        let mut words = vec!["gpu-bench".to_owned()];
        let flags = [(self.small, "--small"), (self.emulated, "--emulated")];
        words.extend(flags.into_iter().filter(|(given, _)| *given).map(|(_, word)| word.to_owned()));
        if self.device != 0 {
            words.push(format!("--device {}", self.device));
        }
        if !self.threads.is_empty() {
            let threads: Vec<String> = self.threads.iter().map(u32::to_string).collect();
            words.push(format!("--threads {}", threads.join(",")));
        }
        if self.eviction != Eviction::Lru {
            words.push(format!("--eviction {}", self.eviction));
        }
        if let Some(only) = self.only {
            words.push(format!("--only {}", if only == Part::Admission { "admission" } else { "gather" }));
        }
        words.join(" ")
    }
}

/// No row takes a tenth of it.
const PATIENCE: Duration = Duration::from_secs(120);

/// Ends the program if nothing was sent for too long: a kernel that never ends cannot be waited for. Rows that are done
/// were told, and saved.
fn watch() -> Sender<()> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        loop {
            match receiver.recv_timeout(PATIENCE) {
                Ok(()) => {}
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    eprintln!("gpu-bench: nothing has happened for {} s, so this ends here", PATIENCE.as_secs());
                    // An exit would wait for the device.
                    std::process::abort();
                }
            }
        }
    });
    sender
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let which = if arguments.emulated { Which::Emulated } else { Which::System };
    let cuda = match Cuda::open(which, arguments.device) {
        Ok(cuda) => cuda,
        Err(error) => {
            eprintln!("gpu-bench: nothing was measured: {error}");
            return ExitCode::from(2);
        }
    };
    match run(&cuda, &arguments) {
        Ok(report) => {
            println!("{}", report.markdown());
            let failures = report.failures();
            let has_numbers = report.admissions.iter().any(|row| row.timed.is_ok())
                || report.gathers.iter().any(|row| row.timed.is_ok());
            if !has_numbers {
                eprintln!("gpu-bench: nothing was measured");
            }
            if failures.is_empty() && has_numbers { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("gpu-bench: nothing was measured: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(cuda: &Cuda, arguments: &Arguments) -> Outcome<Report> {
    let facts = cuda.device()?.facts().clone();
    let room = if arguments.small { SMALL_ROOM } else { ROOM };
    let head = Head {
        device: facts.name,
        capability: facts.capability,
        cuda: cuda.version(),
        driver: if arguments.emulated { None } else { driver_version() },
        command: arguments.command(),
        is_emulated: arguments.emulated,
    };
    eprintln!("{} (CUDA {})", head.device, head.cuda / 1000);
    let (image, failures) = (String::new(), Vec::new());
    let eviction = arguments.eviction;
    let mut report = Report { head, room, eviction, image, admissions: Vec::new(), gathers: Vec::new(), failures };
    let row_done = watch();
    if arguments.wants(Part::Admission) {
        let outcome = admissions(cuda, arguments, &row_done, &mut report);
        report.failures.extend(outcome.err().map(|error| format!("admission: {error}")));
    }
    if arguments.wants(Part::Gather) {
        let outcome = gathers(cuda, arguments, &row_done, &mut report);
        report.failures.extend(outcome.err().map(|error| format!("gather: {error}")));
    }
    save(arguments, &report)?;
    Ok(report)
}

fn admissions(cuda: &Cuda, arguments: &Arguments, row_done: &Sender<()>, report: &mut Report) -> Outcome {
    let mut bench = admission::Bench::new(cuda, report.room, arguments.eviction)?;
    report.image = bench.image();
    let (effort, requests, usual) = match arguments.small {
        true => (Effort::SMALL, &SMALL_REQUESTS[..], SMALL_THREADS),
        false => (Effort::FULL, &REQUESTS[..], THREADS),
    };
    let threads = if arguments.threads.is_empty() { vec![usual] } else { arguments.threads.clone() };
    for threads in threads {
        bench.set_threads(threads)?;
        for &requests in requests {
            for walk in MISSES.iter().filter_map(|&misses| Walk::new(&report.room, requests, misses)) {
                let timed = bench.time(&walk, &effort);
                let told = match &timed {
                    Ok(timed) => {
                        let (graph, wait) = (median(&timed.graph), median(&timed.wait));
                        format!("{graph:.2} us a step, {wait:.1} launched and waited for")
                    }
                    Err(error) => format!("not measured: {error}"),
                };
                let (routes, misses) = (walk.route_count(), walk.misses);
                eprintln!("admission, {threads} threads, {routes} routes, {misses} misses: {told}");
                report.admissions.push(AdmissionRow { threads, walk, timed });
                save(arguments, report)?;
                row_done.send(()).expect("it is listened to until this ends");
            }
        }
    }
    Ok(())
}

fn gathers(cuda: &Cuda, arguments: &Arguments, row_done: &Sender<()>, report: &mut Report) -> Outcome {
    let (effort, rows, counts) = match arguments.small {
        true => (Effort::SMALL, SMALL_ROWS, &SMALL_ROW_COUNTS[..]),
        false => (Effort::FULL, ROWS, &ROW_COUNTS[..]),
    };
    let mut bench = gather::Bench::new(cuda, rows)?;
    for blocks in GATHER_BLOCKS {
        bench.set_blocks(blocks)?;
        for &row_count in counts {
            let bytes = u64::from(row_count) * rows.expert_bytes();
            let timed = bench.time(row_count, &effort);
            let told = match &timed {
                Ok(timed) => {
                    let rate = |times: &[f64]| bytes as f64 / median(times) / 1e9;
                    let (gather, plain, allocated) = (rate(&timed.gather), rate(&timed.plain), rate(&timed.allocated));
                    format!("{gather:.1} GB/s, plain copy {plain:.1}, of the driver's memory {allocated:.1}")
                }
                Err(error) => format!("not measured: {error}"),
            };
            eprintln!("gather, {blocks} blocks, {row_count} experts: {told}");
            report.gathers.push(GatherRow { row_count, bytes, blocks, timed });
            save(arguments, report)?;
            row_done.send(()).expect("it is listened to until this ends");
        }
    }
    Ok(())
}

fn save(arguments: &Arguments, report: &Report) -> Outcome {
    let Some(path) = &arguments.json else { return Ok(()) };
    std::fs::write(path, format!("{:#}\n", report.json())).map_err(|error| format!("{}: {error}", path.display()))
}

/// The version of the driver itself, such as 580.159.03: as the system's kernel tells it, or else the driver's own
/// program.
fn driver_version() -> Option<String> {
    let told = std::fs::read_to_string("/sys/module/nvidia/version").ok().or_else(|| {
        let asked = ["--query-gpu=driver_version", "--format=csv,noheader"];
        let output = Command::new("nvidia-smi").args(asked).output().ok()?;
        String::from_utf8(output.stdout).ok().filter(|_| output.status.success())
    })?;
    told.lines().next().map(str::trim).filter(|version| !version.is_empty()).map(str::to_owned)
}

#[cfg(test)]
#[path = "../../../crates/ftcache-testkit/cuda_world.rs"]
mod cuda_world;

#[cfg(test)]
mod tests {
    use clap::Parser;
    use ftcache_cuda_emu::client::Config;

    use super::cuda_world::CudaWorld;
    use super::{Arguments, Cuda, Eviction, MISSES, SMALL_REQUESTS, SMALL_ROOM, Walk, Which, run};
    use crate::report::Report;

    /// In whatever order the device does its work, without a race, and with everything given back.
    #[test]
    fn everything_is_measured_once_in_small() {
        let arguments = Arguments::parse_from(["gpu-bench", "--small", "--emulated"]);
        measure(&arguments);
        // And under a rule by scores, which decides on both sides alike.
        let arguments = Arguments { eviction: Eviction::Learned, ..arguments };
        let tables = measure(&arguments).markdown();
        assert!(tables.contains("`gpu-bench --small --emulated --eviction learned`\n"), "{tables}");
        assert!(tables.contains("victims by learned. By replays"), "{tables}");
        assert!(tables.contains(" (0.00) |") && tables.contains(" | - |"), "{tables}");
    }

    fn measure(arguments: &Arguments) -> Report {
        // The program's own test has seed 0.
        let world = CudaWorld::emulated(Config { seed: 1, ..Config::default() });
        let cuda = Cuda::open(Which::Emulated, world.ordinal).unwrap();
        let report = run(&cuda, arguments).unwrap();
        assert_eq!(report.failures(), Vec::<String>::new());
        let walks = SMALL_REQUESTS.into_iter().flat_map(|requests| MISSES.map(|misses| (requests, misses)));
        let walks = walks.filter(|&(requests, misses)| Walk::new(&SMALL_ROOM, requests, misses).is_some());
        let rows = report.admissions.iter().map(|row| (row.walk.requests, row.walk.misses));
        assert!(rows.eq(walks), "a row for each walk there is");
        assert_eq!(report.gathers.len(), 10, "two counts of rows by five of blocks");
        drop(cuda);
        world.check_gone();
        report
    }
}
