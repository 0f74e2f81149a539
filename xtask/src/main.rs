//! Chores: `cargo xtask COMMAND`. Each command has a file; this one is the list.

mod abi;
mod bench_gpu;
mod build_kernels;
mod ctest;
mod demo;
mod docs;
mod header;
mod install;
mod llama;
mod native;
mod python;
#[cfg(test)]
mod requirements;
mod run;
mod sanitize;
mod test;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  demo                     builds libftcache.a, compiles the mini engine against it and runs it
  test                     runs the tests: Rust, the header, the kernels' images, the model fixtures, those of CUDA on a
                           GPU if there is one, CTest
  sanitize                 runs CTest with the library and the tests under the address and the thread sanitizer, the
                           tests under the undefined-behaviour sanitizer too
  header [--check]         writes include/ftcache.h, or says whether it is fresh
  abi [--check]            writes testdata/abi.txt, what compiled programs rely on, or says what was added or broken
  install --prefix P [--libdir lib] [--debug]
                           builds the library and puts it, its headers, and what CMake and pkg-config find it by there
  build-kernels [--check]  compiles kernels/ with nvcc 13.0 to the images in ftcache-transfer, or says whether they are
                           fresh
  bench-gpu [ARGUMENTS]    times admission and gathers on a GPU, and flashlib's admission beside them if the Python that
                           FLASHLIB_PYTHON names, or else python3, has it; --help lists the arguments
  llama-example            builds llama.cpp, which takes minutes the first time, and lets it decode a small model out of the
                           slots of a cache; then replays the routing that was recorded
  docs [--check]           runs the commands of docs/which-cache.md and writes what they print and draw, or says whether
                           it is fresh
  models [--check]         writes testdata/gguf with PyPI's gguf package, or says whether it is fresh
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments[..] {
        ["demo"] => demo::demo(),
        ["test"] => test::test(),
        ["sanitize"] => sanitize::sanitize(),
        ["header"] => header::write(),
        ["header", "--check"] => header::check(),
        ["abi"] => abi::write(),
        ["abi", "--check"] => abi::check(),
        ["install", ref rest @ ..] => install::run(rest),
        ["build-kernels"] => build_kernels::build(),
        ["build-kernels", "--check"] => build_kernels::check(),
        ["bench-gpu", ref rest @ ..] => bench_gpu::bench(rest),
        ["llama-example"] => llama::example(),
        ["docs"] => docs::write(),
        ["docs", "--check"] => docs::check(),
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
