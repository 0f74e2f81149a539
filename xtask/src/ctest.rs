//! CMake projects, built; and the C and C++ tests, run.

use std::path::Path;

use crate::native::{emulator, system_libraries};
use crate::python::cmake;
use crate::run::{Outcome, command, root, run};

/// Configures and builds a project that links the library of a folder, with further variables of its own.
pub(crate) fn build(source: &Path, folder: &Path, library_folder: &Path, variables: &[(&str, String)]) -> Outcome {
    let tools = cmake()?;
    let mut configure = command(&tools.cmake);
    configure.arg("-S").arg(source).arg("-B").arg(folder);
    if let Some(ninja) = &tools.ninja {
        configure.arg("-GNinja").arg(format!("-DCMAKE_MAKE_PROGRAM={}", ninja.display()));
    }
    configure.arg(format!("-DFTCACHE_LIBRARY_DIR={}", library_folder.display()));
    configure.arg(format!("-DFTCACHE_SYSTEM_LIBRARIES={}", system_libraries()?.join(";")));
    for (name, value) in variables {
        configure.arg(format!("-D{name}={value}"));
    }
    run(&mut configure)?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from).to_string();
    run(command(&tools.cmake).arg("--build").arg(folder).args(["--parallel", &threads]))
}

/// Runs the tests of `ffi-tests` with the library of a folder.
pub(crate) fn ctest(folder: &Path, library_folder: &Path, variables: &[(&str, String)]) -> Outcome {
    let emulator = ("FTCACHE_EMULATOR", emulator()?.display().to_string());
    let variables: Vec<_> = variables.iter().cloned().chain([emulator]).collect();
    build(&root().join("ffi-tests"), folder, library_folder, &variables)?;
    run(command(&cmake()?.ctest).arg("--test-dir").arg(folder).args(["--output-on-failure", "--no-tests=error"]))
}
