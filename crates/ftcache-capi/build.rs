//! Names libftcache.so as `cargo xtask install` links it, so that programs ask for what serves them: libftcache.so.0.1, as of
//! 0.x each minor number is another interface.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        let of = |part: &str| std::env::var(format!("CARGO_PKG_VERSION_{part}")).expect("cargo says the version");
        let version = if of("MAJOR") == "0" { format!("0.{}", of("MINOR")) } else { of("MAJOR") };
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libftcache.so.{version}");
    }
}
