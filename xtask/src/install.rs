//! `cargo xtask install`: the library, its headers, and what CMake and pkg-config find it by, under a prefix.
//!
//! Nothing that is written names the prefix, so the tree may be moved, or packed and unpacked elsewhere.

use std::path::{Component, Path, PathBuf};

use crate::native::{Profile, build_library, system_libraries};
use crate::run::{Outcome, cargo, output, root};

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) prefix: PathBuf,
    /// The libraries' folder, within the prefix.
    pub(crate) libdir: PathBuf,
    pub(crate) profile: Profile,
}

impl Options {
    fn of(arguments: &[&str]) -> Outcome<Self> {
        let (mut prefix, mut libdir, mut profile) = (None, PathBuf::from("lib"), Profile::Release);
        let mut words = arguments.iter().copied();
        while let Some(word) = words.next() {
            let (name, inline) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
            let mut value = || {
                let value = inline.or_else(|| words.next()).filter(|value| !value.is_empty());
                value.map(PathBuf::from).ok_or_else(|| format!("install: {name} has no value"))
            };
            match name {
                "--prefix" => prefix = Some(value()?),
                "--libdir" => libdir = value()?,
                "--debug" if inline.is_none() => profile = Profile::Dev,
                _ => {
                    let known = "--prefix P, --libdir D and --debug";
                    return Err(format!("install: `{word}` is unknown; known are {known}"));
                }
            }
        }
        let prefix = prefix.ok_or("install: --prefix P is missing: where to")?;
        // The way back to the prefix is counted in names.
        if !libdir.components().all(|part| matches!(part, Component::Normal(_))) {
            return Err(format!("install: --libdir {} is not a folder within the prefix", libdir.display()));
        }
        let prefix = std::path::absolute(&prefix).map_err(at(&prefix))?;
        Ok(Self { prefix, libdir, profile })
    }
}

/// The crate's version, in three numbers.
fn version() -> Outcome<String> {
    let id = output(cargo().args(["pkgid", "--package", "ftcache-capi"]))?;
    let version = id.trim().rsplit(['#', '@']).next().unwrap_or_default();
    match version.split('.').count() {
        3 => Ok(version.to_owned()),
        _ => Err(format!("cargo does not say the version of ftcache-capi: {}", id.trim())),
    }
}

/// The names of a library's files.
#[derive(Debug, PartialEq, Eq)]
struct Names {
    shared: String,
    /// What stands for it, each for the one before: `libftcache.so.0.1` and `libftcache.so`.
    links: Vec<String>,
    archive: &'static str,
    /// A DLL is linked by another file.
    import: Option<&'static str>,
}

impl Names {
    fn of(system: &str, version: &str) -> Self {
        let plain = |shared: &str, archive, import| Self { shared: shared.to_owned(), links: vec![], archive, import };
        match system {
            "windows" => plain("ftcache.dll", "ftcache.lib", Some("ftcache.dll.lib")),
            "macos" => plain("libftcache.dylib", "libftcache.a", None),
            _ => {
                // As `crates/ftcache-capi/build.rs` has it: of 0.x each minor number is another interface.
                let parts = if version.starts_with("0.") { 2 } else { 1 };
                let interface = version.split('.').take(parts).collect::<Vec<_>>().join(".");
                let links = vec![format!("libftcache.so.{interface}"), "libftcache.so".to_owned()];
                Self { shared: format!("libftcache.so.{version}"), links, archive: "libftcache.a", import: None }
            }
        }
    }
}

/// System libraries as CMake takes them: a framework is one item, and what begins with a slash would be a path.
fn link_items(libraries: &[String]) -> Vec<String> {
    let mut items = Vec::new();
    let mut words = libraries.iter();
    while let Some(word) = words.next() {
        items.push(match (word.as_str(), word.strip_prefix('/')) {
            ("-framework", _) => format!("-framework {}", words.next().map_or("", String::as_str)),
            (_, Some(option)) => format!("-{option}"),
            _ => word.clone(),
        });
    }
    items
}

/// A template of `cmake/` with every `@NAME@` replaced.
fn filled(template: &str, values: &[(&str, String)]) -> Outcome<String> {
    let path = format!("cmake/{template}.in");
    let mut text = std::fs::read_to_string(root().join(&path)).map_err(|error| format!("{path}: {error}"))?;
    for (name, value) in values {
        text = text.replace(&format!("@{name}@"), value);
    }
    match text.split('@').nth(1) {
        Some(name) => Err(format!("{path}: nothing is known of @{name}@")),
        None => Ok(text),
    }
}

/// Builds and puts everything in place.
pub(crate) fn install(Options { prefix, libdir, profile }: &Options) -> Outcome {
    build_library(*profile)?;
    let version = version()?;
    let names = Names::of(std::env::consts::OS, &version);
    let (libraries, built) = (prefix.join(libdir), profile.folder());

    put(&root().join("include/ftcache.h"), &prefix.join("include/ftcache.h"))?;
    let cxx_header = root().join("include/ftcache.hpp");
    if cxx_header.exists() {
        put(&cxx_header, &prefix.join("include/ftcache.hpp"))?;
    }
    put(&built.join(names.archive), &libraries.join(names.archive))?;
    let plain = names.links.last().unwrap_or(&names.shared);
    put(&built.join(plain), &libraries.join(&names.shared))?;
    if let Some(import) = names.import {
        put(&built.join(import), &libraries.join(import))?;
    }
    let mut target = &names.shared;
    for name in &names.links {
        link(target, &libraries.join(name))?;
        target = name;
    }

    // From the folder of a file below the libraries' back to the prefix.
    let up = |below: usize| vec![".."; libdir.components().count() + below].join("/");
    let system = system_libraries()?;
    let shared_properties = match (&names.links[..], names.import) {
        ([soname, ..], _) => format!("  set_target_properties(ftcache::ftcache PROPERTIES IMPORTED_SONAME {soname})\n"),
        (_, Some(import)) => format!(
            "  set_target_properties(ftcache::ftcache PROPERTIES IMPORTED_IMPLIB \"${{_ftcache_libdir}}/{import}\")\n"
        ),
        _ => String::new(),
    };
    let minor = version.rsplit_once('.').map_or("", |(minor, _)| minor);
    let values = |below: usize| {
        [
            ("TO_PREFIX", up(below)),
            ("LIBDIR", libdir.display().to_string().replace('\\', "/")),
            ("VERSION", version.clone()),
            ("MINOR_VERSION", minor.to_owned()),
            ("SHARED_FILE", names.shared.clone()),
            ("STATIC_FILE", names.archive.to_owned()),
            ("SHARED_PROPERTIES", shared_properties.clone()),
            ("SYSTEM_LIBRARIES", system.join(" ")),
            ("LINK_ITEMS", link_items(&system).join(";")),
        ]
    };
    for (template, folder) in [
        ("ftcache.pc", "pkgconfig"),
        ("ftcache-config.cmake", "cmake/ftcache"),
        ("ftcache-config-version.cmake", "cmake/ftcache"),
    ] {
        let path = libraries.join(folder).join(template);
        make_folder(&path)?;
        let text = filled(template, &values(Path::new(folder).components().count()))?;
        std::fs::write(&path, text).map_err(at(&path))?;
    }
    println!("ftcache {version} is in {}", prefix.display());
    Ok(())
}

fn at(path: &Path) -> impl Fn(std::io::Error) -> String {
    move |error| format!("{}: {error}", path.display())
}

fn make_folder(of: &Path) -> Outcome {
    let folder = of.parent().unwrap_or(of);
    std::fs::create_dir_all(folder).map_err(at(folder))
}

/// Copies a file. A program that has the one before mapped keeps it.
fn put(source: &Path, target: &Path) -> Outcome {
    make_folder(target)?;
    // What is removed first must not be what is to be copied.
    if source.canonicalize().ok().is_some_and(|source| target.canonicalize().is_ok_and(|target| target == source)) {
        return Err(format!("{} is where it is installed from", target.display()));
    }
    remove(target)?;
    std::fs::copy(source, target)
        .map(|_| ())
        .map_err(|error| format!("{} to {}: {error}", source.display(), target.display()))
}

fn remove(path: &Path) -> Outcome {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(at(path)(error)),
        _ => Ok(()),
    }
}

#[cfg(unix)]
fn link(target: &str, path: &Path) -> Outcome {
    remove(path)?;
    std::os::unix::fs::symlink(target, path).map_err(at(path))
}

#[cfg(not(unix))]
fn link(_: &str, path: &Path) -> Outcome {
    Err(format!("{}: there are no links here", path.display()))
}

/// `cargo xtask install` with these arguments.
pub(crate) fn run(arguments: &[&str]) -> Outcome {
    install(&Options::of(arguments)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read() {
        let check = |arguments: &[&str], prefix: &str, libdir: &str, profile| {
            let prefix = std::env::current_dir().unwrap().join(prefix);
            let wanted = Options { prefix, libdir: libdir.into(), profile };
            assert_eq!(Options::of(arguments), Ok(wanted));
        };
        check(&["--prefix", "a b"], "a b", "lib", Profile::Release);
        check(&["--prefix=/usr", "--libdir=lib/x", "--debug"], "/usr", "lib/x", Profile::Dev);
        check(&["--libdir", "lib64", "--prefix", "p"], "p", "lib64", Profile::Release);
    }

    #[test]
    fn arguments_that_cannot_be_meant() {
        let check = |arguments: &[&str], wanted: &str| {
            assert_eq!(Options::of(arguments), Err(wanted.to_owned()));
        };
        check(&[], "install: --prefix P is missing: where to");
        check(&["--debug"], "install: --prefix P is missing: where to");
        check(&["--prefix"], "install: --prefix has no value");
        check(&["--prefix="], "install: --prefix has no value");
        check(&["/usr"], "install: `/usr` is unknown; known are --prefix P, --libdir D and --debug");
        check(&["--debug=1"], "install: `--debug=1` is unknown; known are --prefix P, --libdir D and --debug");
        for libdir in ["/usr/lib", "../lib"] {
            let wanted = format!("install: --libdir {libdir} is not a folder within the prefix");
            check(&["--prefix", "p", "--libdir", libdir], &wanted);
        }
    }

    #[test]
    fn files_are_named_as_the_system_looks_for_them() {
        let names = Names::of("linux", "0.1.2");
        assert_eq!(names.shared, "libftcache.so.0.1.2");
        assert_eq!(names.links, ["libftcache.so.0.1", "libftcache.so"]);
        assert_eq!(Names::of("linux", "2.3.4").links, ["libftcache.so.2", "libftcache.so"]);
        let names = Names::of("windows", "0.1.2");
        assert_eq!(
            (&*names.shared, names.archive, names.import),
            ("ftcache.dll", "ftcache.lib", Some("ftcache.dll.lib"))
        );
        assert_eq!(names.links, Vec::<String>::new());
    }

    #[test]
    fn system_libraries_as_cmake_takes_them() {
        let check = |given: &str, wanted: &[&str]| {
            let given: Vec<String> = given.split(' ').map(str::to_owned).collect();
            assert_eq!(link_items(&given), wanted);
        };
        check("-lpthread -lm", &["-lpthread", "-lm"]);
        check("-framework CoreFoundation -lSystem", &["-framework CoreFoundation", "-lSystem"]);
        check("kernel32.lib /defaultlib:msvcrt", &["kernel32.lib", "-defaultlib:msvcrt"]);
    }

    #[test]
    fn templates_are_filled_or_refused() {
        let names = ["TO_PREFIX", "LIBDIR", "VERSION"];
        let values = names.map(|name| (name, "x".to_owned()));
        let wanted = "cmake/ftcache.pc.in: nothing is known of @SYSTEM_LIBRARIES@";
        assert_eq!(filled("ftcache.pc", &values), Err(wanted.to_owned()));
    }

    /// An archive whose standard library was merged into it by LTO defines what another Rust archive in the same program
    /// defines too, and one that aborts on a panic has nothing for its guard to catch.
    #[test]
    fn the_archive_is_built_to_stand_beside_another() {
        let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
        let (_, release) = manifest.split_once("[profile.release]").unwrap();
        let release = release.split("\n[").next().unwrap();
        for setting in ["lto", "panic"] {
            assert!(!release.contains(setting), "{release}");
        }
    }
}
