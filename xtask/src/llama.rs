//! `cargo xtask llama-example`: a real engine around the C library. It is no part of the tests, since llama.cpp takes
//! minutes to build.

use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::ctest;
use crate::native::{Profile, build_library};
use crate::python::python_with_gguf;
use crate::run::{Outcome, cargo, command, output, root, run, run_and_read, target};

/// The package that carries llama.cpp's sources. Nothing else of it is used: it is fetched, and never built.
const PACKAGE: &str = "llama-cpp-sys-2";
const VERSION: &str = "0.1.161";
/// Under half of the small model's 128 experts, and in every layer too few for the longer prompt.
const SLOTS: &str = "56";

/// Builds llama.cpp and the program beside it, makes a model, and runs it three ways; then replays what two of them
/// recorded, one of which must come to the same hits and misses.
pub(crate) fn example() -> Outcome {
    let folder = target().join("llama");
    let model = folder.join("model.gguf");
    let program = build(&sources(&folder.join("sources"))?, &folder.join("build"))?;
    let script = root().join("examples/llama/make_model.py");
    run(command(python_with_gguf()?).arg(script).arg(&model))?;

    let decode = |arguments: &[&str], trace: &Path| {
        let mut decode = command(&program);
        decode.arg(&model).args(["--slots", SLOTS]).args(arguments).arg("--trace").arg(trace);
        run_and_read(&mut decode)
    };
    let replay = |scope: &str, trace: &Path| {
        let mut replay = cargo();
        replay.args(["run", "--quiet", "--package", "ftcache-cli", "--", "replay"]).arg(trace);
        run_and_read(replay.args(["--slots", SLOTS, "--scope", scope]))
    };
    let trace = folder.join("prompts.ftr");
    decode(&["--scope", "unified", "--prefill", "parts"], &trace)?;
    decode(&["--scope", "unified", "--prefill", "staged"], &trace)?;
    replay("unified", &trace)?;

    // A replay takes each token as a step, and all layers for alike. So does this run, with a pool for each layer.
    let trace = folder.join("tokens.ftr");
    let live = decode(&["--scope", "per-layer", "--prefill", "tokens"], &trace)?;
    let replayed = replay("per-layer", &trace)?;
    let (live, replayed) = (counted(&live)?, counted(&replayed)?);
    if live != replayed {
        return Err(format!("the run with llama.cpp had {live}; its replay has {replayed}"));
    }
    println!("the run with llama.cpp and its replay: {live}");
    Ok(())
}

/// Fetches the sources; returns llama.cpp's folder among them.
fn sources(folder: &Path) -> Outcome<PathBuf> {
    let at = |error: std::io::Error| format!("{}: {error}", folder.display());
    std::fs::create_dir_all(folder).map_err(at)?;
    let manifest = format!(
        "[package]\nname = \"sources\"\nversion = \"0.0.0\"\nedition = \"2021\"\n\n[lib]\npath = \"empty.rs\"\n\n\
         [dependencies]\n{PACKAGE} = \"={VERSION}\"\n\n[workspace]\n"
    );
    std::fs::write(folder.join("Cargo.toml"), manifest).map_err(at)?;
    std::fs::write(folder.join("empty.rs"), "").map_err(at)?;
    let mut metadata = cargo();
    metadata.args(["metadata", "--format-version", "1", "--manifest-path"]).arg(folder.join("Cargo.toml"));
    let text = output(&mut metadata)?;
    // Of all keys one is wanted, and it holds a path: not worth a parser.
    let mut manifests = text.split("\"manifest_path\":\"").skip(1).filter_map(|rest| rest.split('"').next());
    manifests
        .find_map(|path| {
            let sources = Path::new(path).with_file_name("llama.cpp");
            (path.contains(PACKAGE) && sources.join("CMakeLists.txt").is_file()).then_some(sources)
        })
        .ok_or_else(|| format!("cargo does not say where the sources of {PACKAGE} {VERSION} are"))
}

/// Builds all that the program needs; returns the program.
fn build(sources: &Path, folder: &Path) -> Outcome<PathBuf> {
    let profile = Profile::Dev;
    build_library(profile)?;
    let begin = Instant::now();
    let variables = [
        ("CMAKE_BUILD_TYPE", "Release".to_owned()),
        ("CMAKE_MESSAGE_LOG_LEVEL", "WARNING".to_owned()),
        ("LLAMA_CPP", sources.display().to_string()),
    ];
    ctest::build(&root().join("examples/llama"), folder, &profile.folder(), &variables)?;
    println!("built in {:.0} s", begin.elapsed().as_secs_f64());
    Ok(folder.join("llama_cache"))
}

/// `1851 hits and 501 misses in 588 steps`, of a text that says so somewhere, with commas between thousands or without.
fn counted(text: &str) -> Outcome<String> {
    let text = text.replace(',', "");
    let words: Vec<&str> = text.split_whitespace().collect();
    let counts = words.windows(8).find(|words| matches!(words, [_, "hits", "and", _, "misses", "in", _, "steps"]));
    counts.map(|words| words.join(" ")).ok_or_else(|| format!("no hits and misses are told:\n{text}"))
}
