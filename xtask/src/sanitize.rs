//! `cargo xtask sanitize`: the C tests once more, with the library and the tests both watched by the address sanitizer
//! (the tests by the undefined-behaviour one too), then by the thread sanitizer.
//!
//! rustc knows them as unstable options, which the stable toolchain takes with RUSTC_BOOTSTRAP; gcc's runtimes serve
//! its code as well as C's. The standard library is not watched: it is not built here. Each sanitizer first has to see
//! a mistake that is made inside the library on purpose.

use crate::ctest::ctest;
use crate::run::{Outcome, cargo, command, output, run, target};

/// A sanitizer as CMake and rustc know it.
struct Sanitizer {
    name: &'static str,
    rust_flags: &'static str,
}

const SANITIZERS: [Sanitizer; 2] = [
    Sanitizer { name: "address", rust_flags: "-Zsanitizer=address" },
    // The standard library has no traces of it, which rustc wants to be told is meant.
    Sanitizer { name: "thread", rust_flags: "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer" },
];

/// Builds and runs the C tests under each.
pub(crate) fn sanitize() -> Outcome {
    let host = host()?;
    for Sanitizer { name, rust_flags } in SANITIZERS {
        let built = target().join("sanitize").join(name);
        run(cargo()
            .args(["build", "--quiet", "--package", "ftcache-capi", "--target", &host])
            // By the target, build scripts and macros stay as they are.
            .env("CARGO_TARGET_DIR", &built)
            .env("RUSTC_BOOTSTRAP", "1")
            .env("RUSTFLAGS", rust_flags))?;
        // The emulated driver switches stacks by itself, which sanitizers do not follow: it runs as it is.
        let library_folder = built.join(&host).join("debug");
        ctest(&built.join("ffi-tests"), &library_folder, &[("FTCACHE_SANITIZER", name.to_owned())])?;
    }
    Ok(())
}

/// The triple of this machine, as rustc tells it.
fn host() -> Outcome<String> {
    let text = output(command(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into())).arg("-vV"))?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.ok_or("rustc does not say what it runs on")?.to_owned())
}
