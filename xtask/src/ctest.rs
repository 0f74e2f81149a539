//! The C and C++ tests: configured, built and run with the library of a folder.

use std::path::Path;

use crate::native::{emulator, system_libraries};
use crate::python::cmake;
use crate::run::{Outcome, command, root, run};

/// `definitions` are further variables of `ffi-tests/CMakeLists.txt`.
pub(crate) fn ctest(folder: &Path, library_folder: &Path, definitions: &[(&str, String)]) -> Outcome {
    let tools = cmake()?;
    let mut configure = command(&tools.cmake);
    configure.arg("-S").arg(root().join("ffi-tests")).arg("-B").arg(folder);
    if let Some(ninja) = &tools.ninja {
        configure.arg("-GNinja").arg(format!("-DCMAKE_MAKE_PROGRAM={}", ninja.display()));
    }
    configure.arg(format!("-DFTCACHE_LIBRARY_DIR={}", library_folder.display()));
    configure.arg(format!("-DFTCACHE_EMULATOR={}", emulator()?.display()));
    configure.arg(format!("-DFTCACHE_SYSTEM_LIBRARIES={}", system_libraries()?.join(";")));
    for (name, value) in definitions {
        configure.arg(format!("-D{name}={value}"));
    }
    run(&mut configure)?;
    run(command(&tools.cmake).arg("--build").arg(folder).args(["--parallel", "2"]))?;
    run(command(&tools.ctest).arg("--test-dir").arg(folder).args(["--output-on-failure", "--no-tests=error"]))
}
