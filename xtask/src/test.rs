//! `cargo xtask test`: the tests of all default members, then CTest, so that its summary is the last that is printed.

use std::path::{Path, PathBuf};

use crate::ctest::ctest;
use crate::install::{Options, install};
use crate::native::{Profile, build_library, other_rust};
use crate::python::models;
use crate::run::{Outcome, cargo, command, run, target};

/// Rust (the freshness of the header and of the kernels' images is among its tests), the model fixtures, a GPU if there
/// is one, then C and C++.
pub(crate) fn test() -> Outcome {
    run(cargo().args(["test", "--quiet"]))?;
    models(true)?;
    gpu()?;
    c_tests()
}

/// The tests of the CUDA device and of what is measured on it ran on the emulated driver; where there is a GPU, they run
/// there too.
fn gpu() -> Outcome {
    let Some(name) = gpu_name() else {
        println!("no GPU here: the tests of the CUDA device ran on the emulated driver alone");
        return Ok(());
    };
    println!("the tests of the CUDA device once more, on {name}");
    let test = |arguments: &[&str]| {
        run(cargo()
            .args(["test", "--quiet", "--package", "ftcache-transfer"])
            .args(arguments)
            .env("FTCACHE_TEST_GPU", "1"))
    };
    test(&["--test", "cuda", "--test", "link"])?;
    // What else is tested of kernels looks into the emulated driver.
    test(&["--test", "on_device", "--", "golden", "differential"])
}

/// The first GPU, as its driver's own program tells it.
fn gpu_name() -> Option<String> {
    let listed = command("nvidia-smi").args(["--query-gpu=name", "--format=csv,noheader"]).output().ok()?;
    let names = String::from_utf8(listed.stdout).ok().filter(|_| listed.status.success())?;
    names.lines().next().map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned)
}

fn c_tests() -> Outcome {
    let profile = Profile::Dev;
    build_library(profile)?;
    let folder = target().join("ffi-tests");
    let definitions = [
        ("FTCACHE_OTHER_RUST", other_rust(profile)?.display().to_string()),
        ("FTCACHE_PREFIX", installed(&folder, profile)?.display().to_string()),
    ];
    ctest(&folder, &profile.folder(), &definitions)
}

/// Installs the library and moves the tree: nothing in it may name where it was, and blanks in its path must do no harm.
fn installed(folder: &Path, profile: Profile) -> Outcome<PathBuf> {
    let (before, prefix) = (folder.join("installed before"), folder.join("prefix with blank"));
    install(&Options { prefix: before.clone(), libdir: "lib".into(), profile })?;
    let at = |error: std::io::Error| format!("{}: {error}", prefix.display());
    if prefix.exists() {
        std::fs::remove_dir_all(&prefix).map_err(at)?;
    }
    std::fs::rename(before, &prefix).map_err(at)?;
    Ok(prefix)
}
