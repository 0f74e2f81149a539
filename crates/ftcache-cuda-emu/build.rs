//! Compiles the kernels and what runs them, and names the library as the driver is named, so that it can stand in its
//! place on a library path.

use std::path::{Path, PathBuf};

/// The files of the kernels, by the one list of them: `X(ftcache_NAME, ...)` is `NAME.cu`.
fn kernel_files(list: &Path, kernels: &Path) -> Vec<PathBuf> {
    let text = std::fs::read_to_string(list).unwrap_or_else(|error| panic!("{}: {error}", list.display()));
    let names = text.lines().filter_map(|line| line.trim().strip_prefix("X(ftcache_")?.split(',').next());
    names.map(|name| kernels.join(format!("{name}.cu"))).collect()
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let (sources, kernels) = (Path::new("cpp"), Path::new("../../kernels"));
    let mut build = cc::Build::new();
    build.cpp(true).std("c++17").include(sources).include(kernels);
    // A test runs tens of thousands of launches, whatever else is built how.
    build.opt_level(2).warnings(true).extra_warnings(true).warnings_into_errors(true);
    // Nothing of the C++ library is needed, so the tests of no system have to find one.
    build.cpp_link_stdlib(None).flag("-fno-exceptions").flag("-fno-rtti").flag("-fno-threadsafe-statics");
    // Arrays that are filled as far as they are read: one compiler sees that, another does not.
    build.flag_if_supported("-Wno-maybe-uninitialized");
    // Kernels are C++ by another ending.
    build.flag("-xc++");
    build.files(["fibers.cpp", "memory.cpp", "kernels.cpp", "self_test.cu"].map(|name| sources.join(name)));
    build.files(kernel_files(&sources.join("kernel_list.h"), kernels));
    build.compile("ftcache_kernels");
    for folder in [sources, kernels] {
        println!("cargo:rerun-if-changed={}", folder.display());
    }
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    }
}
