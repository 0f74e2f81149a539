//! The `ftcache` program, for people who run models: what a model's experts weigh, what a budget buys, and how a cache
//! would have served recorded routing. One file a command.

#![forbid(unsafe_code)]

mod inspect;
mod load;
mod load_report;
mod memory;
mod plan;
mod plan_report;
mod probe;
mod probe_report;
mod progress;
mod replay;
mod replay_times;
mod replay_times_report;
mod split_trace;
mod sweep;
mod sweep_lines;
mod sweep_picture;
mod sweep_report;
mod sweep_rules;
mod sweep_space;
mod table;
mod trace;

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};
use ftcache::Scope;

#[derive(Parser)]
#[command(name = "ftcache", version, about = "Plan and replay a GPU expert-slot cache for mixture-of-experts models")]
struct Program {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show a model's layers of experts: quantisation and bytes of a row
    Inspect(inspect::Arguments),
    /// Divide a budget into slots, before anything is loaded
    Plan(Box<plan::Arguments>),
    /// Drive a cache with recorded routing: move generated rows, check every slot, count hits; or say how long steps wait
    Replay(Box<replay::Arguments>),
    /// Look at recorded routing, convert it, or make some up
    Trace(trace::Arguments),
    /// Say what caches of every size would miss on recorded routing
    Sweep(sweep::Arguments),
    /// Measure the link to a device and the CPU's memory, and write the rates that `plan` and `replay` read
    Probe(probe::Arguments),
    /// Read a model's experts into host memory and pin them, as an engine does, and say how that went
    Load(load::Arguments),
}

/// Which layers share a pool of slots.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum ScopeArgument {
    /// All layers of equal quantisation and row bytes
    #[default]
    Unified,
    /// None: each layer has its own
    PerLayer,
}

impl From<ScopeArgument> for Scope {
    fn from(scope: ScopeArgument) -> Self {
        match scope {
            ScopeArgument::Unified => Self::Unified,
            ScopeArgument::PerLayer => Self::PerLayer,
        }
    }
}

/// What a command could not do, in one line.
type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let mut out = String::new();
    let done = match Program::parse().command {
        Command::Inspect(arguments) => inspect::run(&arguments, &mut out),
        Command::Plan(arguments) => plan::run(&arguments, &mut out),
        Command::Replay(arguments) => replay::run(&arguments, &mut out),
        Command::Trace(arguments) => trace::run(&arguments, &mut out),
        Command::Sweep(arguments) => sweep::run(&arguments, &mut out),
        Command::Probe(arguments) => probe::run(&arguments, &mut out),
        Command::Load(arguments) => load::run(&arguments, &mut out),
    };
    // A reader that has seen enough, such as `head`, is no error.
    let written = std::io::stdout().write_all(out.as_bytes());
    let written = written.or_else(|error| if error.kind() == ErrorKind::BrokenPipe { Ok(()) } else { Err(error) });
    match done.and(written.map_err(Failure::from)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ftcache: {error}");
            ExitCode::FAILURE
        }
    }
}
