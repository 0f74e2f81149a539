//! The C library and the compiler that links it.

use std::process::Command;

use crate::run::{Outcome, cargo, command, find, output, root, run, target};

/// How the library is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    Dev,
    Release,
}

impl Profile {
    pub(crate) fn cargo_name(self) -> &'static str {
        match self {
            Self::Dev => "dev",
            Self::Release => "release",
        }
    }

    fn folder_name(self) -> &'static str {
        match self {
            Self::Dev => "debug",
            Self::Release => "release",
        }
    }

    pub(crate) fn folder(self) -> std::path::PathBuf {
        target().join(self.folder_name())
    }
}

/// Builds libftcache.a and libftcache.so.
pub(crate) fn build_library(profile: Profile) -> Outcome {
    run(cargo().args(["build", "--quiet", "--package", "ftcache-capi", "--profile", profile.cargo_name()]))
}

/// Builds the emulated CUDA driver, and says where it is.
pub(crate) fn emulator() -> Outcome<std::path::PathBuf> {
    run(cargo().args(["build", "--quiet", "--package", "ftcache-cuda-emu"]))?;
    let name = format!("{}ftcache_cuda_emu{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    Ok(Profile::Dev.folder().join(name))
}

/// Builds another Rust archive by the same toolchain, and says where it is.
pub(crate) fn other_rust(profile: Profile) -> Outcome<std::path::PathBuf> {
    let folder = target().join("other-rust");
    run(cargo()
        .args(["build", "--quiet", "--profile", profile.cargo_name(), "--manifest-path"])
        .arg(root().join("ffi-tests/other_rust/Cargo.toml"))
        .env("CARGO_TARGET_DIR", &folder))?;
    Ok(folder.join(profile.folder_name()).join("libother_rust.a"))
}

/// What a program that links libftcache.a must link besides, as the compiler is told: `-lpthread -ldl ...`.
///
/// Asked of rustc, which knows it for the target, by linking an empty static library.
pub(crate) fn system_libraries() -> Outcome<Vec<String>> {
    let folder = target().join("xtask");
    let at = |error: std::io::Error| format!("{}: {error}", folder.display());
    std::fs::create_dir_all(&folder).map_err(at)?;
    let source = folder.join("empty.rs");
    std::fs::write(&source, "").map_err(at)?;
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut rustc = command(rustc);
    rustc.args(["--crate-type", "staticlib", "--print", "native-static-libs", "-o"]);
    let text = output(rustc.arg(folder.join("libempty.a")).arg(source))?;
    let line = text.lines().find_map(|line| line.split_once("native-static-libs:"));
    let (_, libraries) = line.ok_or("rustc does not say which system libraries a static library needs")?;
    Ok(libraries.split_whitespace().map(str::to_owned).collect())
}

/// The C++ compiler, to be given arguments: `CXX`, which may be several words, else the first that runs.
pub(crate) fn cxx() -> Outcome<Command> {
    compiler("CXX", ["c++", "g++", "clang++"]).ok_or("no C++ compiler: set CXX or install g++".to_owned())
}

/// The C compiler: `CC`, likewise.
pub(crate) fn cc() -> Outcome<Command> {
    compiler("CC", ["cc", "gcc", "clang"]).ok_or("no C compiler: set CC or install gcc".to_owned())
}

fn compiler(variable: &str, programs: [&str; 3]) -> Option<Command> {
    let set = std::env::var(variable).unwrap_or_default();
    let mut words = set.split_whitespace();
    if let Some(program) = words.next() {
        let mut compiler = command(program);
        compiler.args(words);
        return Some(compiler);
    }
    find(programs).map(command)
}
