//! `cargo xtask demo`: the main job, end to end. Needs Rust and a C++ compiler, nothing else.

use crate::native::{Profile, build_library, cxx, system_libraries};
use crate::run::{Outcome, command, root, run};

/// Builds the library, compiles the mini engine against it and runs it.
pub(crate) fn demo() -> Outcome {
    let profile = Profile::Release;
    build_library(profile)?;
    let library = profile.folder().join("libftcache.a");
    let program = profile.folder().join("mini_engine");
    let mut compile = cxx()?;
    compile.args(["-std=c++17", "-O2", "-Wall", "-Wextra", "-I"]).arg(root().join("include"));
    compile.arg(root().join("examples/mini_engine/mini_engine.cpp")).arg(library);
    run(compile.args(system_libraries()?).arg("-o").arg(&program))?;
    run(&mut command(program))
}
