//! `ftcache trace`: recorded routing as a file: what it is like, other forms of it, and made-up ones.

mod convert;
mod info;
mod synth;

use std::fmt::{Display, Write as _};
use std::fs::File;
use std::path::{Path, PathBuf};

use clap::{Subcommand, ValueEnum};
use ftcache_trace::{Form, JsonlOptions, Phase, Trace, read_jsonl, read_route_csv};

use crate::Failure;
use crate::table::{count, grouped};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Say what recorded routing is like: sizes, skew, and how soon experts are used again
    Info(info::Arguments),
    /// Write recorded routing of another form as an .ftr or .ftr.zst file
    Convert(convert::Arguments),
    /// Make routing up, from a seed
    Synth(synth::Arguments),
}

pub(crate) fn run(arguments: &Arguments, out: &mut String) -> Result<(), Failure> {
    match &arguments.command {
        Command::Info(arguments) => info::run(arguments, out),
        Command::Convert(arguments) => convert::run(arguments, out),
        Command::Synth(arguments) => synth::run(arguments, out),
    }
}

/// A file of routing, of any form that is read.
#[derive(clap::Args)]
struct Input {
    /// Recorded routing: .ftr, .csv (route_trace v1) or .jsonl, each plain or .zst
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The form of FILE [default: by its name, else ftr]
    #[arg(long, value_enum)]
    from: Option<FormArgument>,
    /// Of JSON lines: experts of a layer, where the first line does not say it
    #[arg(long, value_name = "N")]
    experts: Option<u32>,
    /// Of JSON lines: layers [default: those up to the last that is named]
    #[arg(long, value_name = "N")]
    layers: Option<u32>,
    /// Of JSON lines: the model's name
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Of JSON lines: the phase of those that name none [default: decode]
    #[arg(long, value_enum)]
    phase: Option<PhaseArgument>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FormArgument {
    /// A header and 16-bit ids
    Ftr,
    /// `route_trace v1`: a line for each route
    Csv,
    /// JSON lines: an object for each token, or for each token and layer
    Jsonl,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum PhaseArgument {
    /// Tokens that were given to the model
    Prefill,
    /// Tokens that the model gave
    Decode,
    /// Given ones, read one after another
    DecodeLike,
    /// A log in which requests alternate
    Mixed,
}

impl Input {
    fn read(&self) -> Result<Trace, Failure> {
        let from = self.from.unwrap_or_else(|| from_name(&self.file));
        let file = File::open(&self.file).map_err(|error| at(&self.file, error))?;
        let given = [
            ("--experts", self.experts.is_some()),
            ("--layers", self.layers.is_some()),
            ("--model", self.model.is_some()),
            ("--phase", self.phase.is_some()),
        ];
        if let Some((option, _)) = given.iter().find(|(_, is_given)| *is_given && from != FormArgument::Jsonl) {
            return Err(at(&self.file, format!("{option} is for JSON lines; a file of this form says it itself")));
        }
        match from {
            FormArgument::Ftr => Trace::read(file).map_err(|error| at(&self.file, error)),
            FormArgument::Csv => read_route_csv(file).map_err(|error| at(&self.file, error)),
            FormArgument::Jsonl => read_jsonl(file, &self.options()).map_err(|error| at(&self.file, error)),
        }
    }

    fn options(&self) -> JsonlOptions {
        let phase = match self.phase {
            Some(PhaseArgument::Prefill) => Phase::Prefill,
            Some(PhaseArgument::Decode) | None => Phase::Decode,
            Some(PhaseArgument::DecodeLike) => Phase::DecodeLike,
            Some(PhaseArgument::Mixed) => Phase::Mixed,
        };
        JsonlOptions { experts: self.experts, layers: self.layers, model: self.model.clone(), phase }
    }
}

/// The name without `.zst`, and its ending.
fn ending(path: &Path) -> (bool, String) {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    let plain = name.strip_suffix(".zst");
    let ending = plain.unwrap_or(&name).rsplit_once('.').map_or("", |(_, ending)| ending);
    (plain.is_some(), ending.to_owned())
}

fn from_name(path: &Path) -> FormArgument {
    match ending(path).1.as_str() {
        "csv" => FormArgument::Csv,
        "jsonl" | "ndjson" => FormArgument::Jsonl,
        _ => FormArgument::Ftr,
    }
}

/// The form that a name asks for.
fn form_of(path: &Path) -> Result<Form, Failure> {
    match ending(path) {
        (false, ending) if ending == "ftr" => Ok(Form::Plain),
        (true, ending) if ending == "ftr" => Ok(Form::Zstd),
        _ => Err(at(path, "a trace is written as .ftr or .ftr.zst")),
    }
}

/// Writes a trace and says what it is.
fn write(trace: &Trace, path: &Path, form: Form, out: &mut String) -> Result<(), Failure> {
    let file = File::create(path).map_err(|error| at(path, error))?;
    trace.write(file, form).map_err(|error| at(path, error))?;
    describe(trace, out)?;
    writeln!(out, "digest {:016x}", trace.digest())?;
    Ok(())
}

/// The first line of every answer.
fn describe(trace: &Trace, out: &mut String) -> Result<(), Failure> {
    let header = trace.header();
    let model = if header.model.is_empty() { "unnamed" } else { &header.model };
    let (tokens, layers) = (count(header.tokens, "token"), count(header.layers.into(), "layer"));
    let experts = count(header.experts.into(), "expert");
    writeln!(out, "{model}: {tokens}, {layers} of {experts}, top-{}", header.top_k)?;
    if header.absent_cells > 0 {
        let cells = header.tokens * u64::from(header.layers);
        let (absent, cells) = (grouped(header.absent_cells), grouped(cells));
        writeln!(out, "{absent} of {cells} cells absent")?;
    }
    Ok(())
}

fn at(path: &Path, error: impl Display) -> Failure {
    format!("{}: {error}", path.display()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_forms() {
        let from = |name: &str| from_name(Path::new(name));
        assert_eq!([from("a.csv"), from("a.route.CSV.zst")], [FormArgument::Csv; 2]);
        assert_eq!([from("a.jsonl"), from("csv/a.ndjson.zst")], [FormArgument::Jsonl; 2]);
        assert_eq!(
            [from("a.ftr"), from("a.ftr.zst"), from("a.zst"), from("csv"), from("a.csv/b")],
            [FormArgument::Ftr; 5]
        );
        assert_eq!(form_of(Path::new("a.csv.ftr")).unwrap(), Form::Plain);
        assert_eq!(form_of(Path::new("a.ftr.zst")).unwrap(), Form::Zstd);
        for name in ["a", "ftr", "a.zst", "a.csv", "a.ftr.gz"] {
            assert!(form_of(Path::new(name)).is_err(), "{name}");
        }
    }
}
