//! Chores: `cargo xtask COMMAND`. Each command has a file; this one is the list.

mod demo;
mod header;
mod native;
mod python;
mod run;
mod test;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  demo              builds libftcache.a, compiles the mini engine against it and runs it
  test              runs the tests: Rust, the header, the model fixtures, those of CUDA on a GPU if there is one, CTest
  header [--check]  writes include/ftcache.h, or says whether it is fresh
  models [--check]  writes testdata/gguf with PyPI's gguf package, or says whether it is fresh
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments[..] {
        ["demo"] => demo::demo(),
        ["test"] => test::test(),
        ["header"] => header::write(),
        ["header", "--check"] => header::check(),
        ["models"] => python::models(false),
        ["models", "--check"] => python::models(true),
        _ => {
            eprint!("{USAGE}");
            return ExitCode::FAILURE;
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
