//! Names libftcache.so as `cargo xtask install` links it, so that programs ask for what serves them: libftcache.so.0.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        let major = std::env::var("CARGO_PKG_VERSION_MAJOR").expect("cargo says the version");
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libftcache.so.{major}");
    }
}
