//! `cargo xtask test`: the tests of all default members, then CTest, so that its summary is the last that is printed.

use crate::native::{Profile, build_library, system_libraries};
use crate::python::{cmake, models};
use crate::run::{Outcome, cargo, command, root, run, target};

/// Rust (the header's freshness is one of its tests), the model fixtures, then C and C++.
pub(crate) fn test() -> Outcome {
    run(cargo().args(["test", "--quiet"]))?;
    models(true)?;
    ctest()
}

fn ctest() -> Outcome {
    let tools = cmake()?;
    let profile = Profile::Dev;
    build_library(profile)?;
    let folder = target().join("ffi-tests");
    let mut configure = command(&tools.cmake);
    configure.arg("-S").arg(root().join("ffi-tests")).arg("-B").arg(&folder);
    if let Some(ninja) = &tools.ninja {
        configure.arg("-GNinja").arg(format!("-DCMAKE_MAKE_PROGRAM={}", ninja.display()));
    }
    configure.arg(format!("-DFTCACHE_LIBRARY_DIR={}", profile.folder().display()));
    configure.arg(format!("-DFTCACHE_SYSTEM_LIBRARIES={}", system_libraries()?.join(";")));
    run(&mut configure)?;
    run(command(&tools.cmake).arg("--build").arg(&folder).args(["--parallel", "2"]))?;
    run(command(&tools.ctest).arg("--test-dir").arg(&folder).args(["--output-on-failure", "--no-tests=error"]))
}
