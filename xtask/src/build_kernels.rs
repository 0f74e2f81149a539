//! `cargo xtask build-kernels`: the kernels' images out of `kernels/`, and a manifest of what they were built from.
//!
//! Nothing else needs a compiler for CUDA: images and manifest are committed, and the check compares hashes.

use std::path::{Path, PathBuf};

use crate::python::nvcc;
use crate::run::{Outcome, command, root, run, target};

/// Each image, how it is asked for, and for what. Machine code runs on later minor versions of its major one, and PTX
/// on anything later: `cuda/kernels.rs` has the same list and picks.
const IMAGES: [(&str, &str, &str); 7] = [
    ("sm_80.cubin", "-cubin", "sm_80"),
    ("sm_86.cubin", "-cubin", "sm_86"),
    ("sm_89.cubin", "-cubin", "sm_89"),
    ("sm_90.cubin", "-cubin", "sm_90"),
    ("sm_100.cubin", "-cubin", "sm_100"),
    ("sm_120.cubin", "-cubin", "sm_120"),
    ("ftcache.ptx", "-ptx", "compute_80"),
];

/// No line numbers: they would put paths into the images.
/// A kernel whose numbers do not fit into registers is to be written otherwise.
const FLAGS: [&str; 6] = ["-std=c++17", "-O3", "-Werror", "all-warnings", "-Xptxas", "--warn-on-spills"];

const MANIFEST: &str = "manifest.txt";

const COMMAND: &str = "`cargo xtask build-kernels` builds them";

fn sources_folder() -> PathBuf {
    root().join("kernels")
}

fn images_folder() -> PathBuf {
    root().join("crates/ftcache-transfer/src/cuda/images")
}

/// As the workspace names it.
fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

fn at(path: &Path) -> impl Fn(std::io::Error) -> String {
    move |error| format!("{}: {error}", shown(path))
}

/// 64-bit FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3))
}

fn hash_of(path: &Path) -> Outcome<u64> {
    std::fs::read(path).map(|bytes| hash(&bytes)).map_err(at(path))
}

/// Names of a folder's files that end in one of these, in order.
fn files(folder: &Path, ends: &[&str]) -> Outcome<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(at(folder))? {
        let name = entry.map_err(at(folder))?.file_name();
        names.extend(name.to_str().filter(|name| ends.iter().any(|end| name.ends_with(end))).map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

/// What images of this folder would be built from and be, by a compiler of this version.
fn manifest(version: &str, images: &Path) -> Outcome<String> {
    let targets: Vec<&str> = IMAGES.iter().map(|&(_, _, architecture)| architecture).collect();
    let mut lines = vec![
        format!("nvcc {version}"),
        format!("flags {}", FLAGS.join(" ")),
        format!("architectures {}", targets.join(" ")),
    ];
    for name in files(&sources_folder(), &[".cu", ".h"])? {
        let hash = hash_of(&sources_folder().join(&name))?;
        lines.push(format!("source {name} {hash:016x}"));
    }
    for (name, _, _) in IMAGES {
        lines.push(format!("image {name} {:016x}", hash_of(&images.join(name))?));
    }
    Ok(lines.join("\n") + "\n")
}

/// What two manifests of one compiler differ in first.
fn difference(committed: &str, fresh: &str) -> Option<String> {
    let missing =
        |of: &str, from: &str| of.lines().find(|line| !from.lines().any(|other| other == *line)).map(str::to_owned);
    let file = |line: &str| line.split(' ').nth(1).unwrap_or_default().to_owned();
    let line = missing(fresh, committed).or_else(|| missing(committed, fresh))?;
    Some(match line.split(' ').next() {
        Some("source") => {
            format!("{} is not what the images were built from", shown(&sources_folder().join(file(&line))))
        }
        Some("image") => format!("{} is not the image that was built", shown(&images_folder().join(file(&line)))),
        Some(what) => format!("the images were built with other {what}: {line}"),
        None => format!("{MANIFEST} has an empty line"),
    })
}

/// Says whether the images are what the compiler made of these sources.
pub(crate) fn check() -> Outcome {
    let path = images_folder().join(MANIFEST);
    let committed = std::fs::read_to_string(&path).map_err(at(&path))?;
    let version = committed.lines().find_map(|line| line.strip_prefix("nvcc "));
    let version = version.ok_or_else(|| format!("{} does not say which nvcc; {COMMAND}", shown(&path)))?;
    if let Some(difference) = difference(&committed, &manifest(version, &images_folder())?) {
        return Err(format!("{difference}; {COMMAND}"));
    }
    let images = files(&images_folder(), &[""])?;
    match images.iter().find(|&name| name != MANIFEST && IMAGES.iter().all(|image| image.0 != name)) {
        Some(name) => Err(format!("{} is no image; remove it", shown(&images_folder().join(name)))),
        None => Ok(()),
    }
}

/// Builds the images.
pub(crate) fn build() -> Outcome {
    let (program, version) = nvcc()?;
    // The compiler is run where its input lies, so that no path of this machine can get into what it writes.
    let folder = target().join("kernels");
    std::fs::create_dir_all(&folder).map_err(at(&folder))?;
    let all = folder.join("all.cu");
    let kernels = files(&sources_folder(), &[".cu"])?;
    let list: String = kernels.iter().map(|name| format!("#include \"{name}\"\n")).collect();
    std::fs::write(&all, list).map_err(at(&all))?;
    for (name, form, architecture) in IMAGES {
        let mut compile = command(&program);
        compile.current_dir(&folder).env_remove("NVCC_PREPEND_FLAGS").env_remove("NVCC_APPEND_FLAGS");
        compile.args(FLAGS).args([form, &format!("-arch={architecture}"), "-I"]).arg(sources_folder());
        run(compile.args(["all.cu", "-o", name]))?;
        let image = std::fs::read(folder.join(name)).map_err(at(&folder))?;
        for path in [root(), target()] {
            let path = path.display().to_string();
            if image.windows(path.len()).any(|window| window == path.as_bytes()) {
                return Err(format!("{name} has a path of this machine: {path}"));
            }
        }
        println!("{name}: {} bytes", image.len());
    }
    // All of them, or none.
    let manifest = manifest(&version, &folder)?;
    std::fs::create_dir_all(images_folder()).map_err(at(&images_folder()))?;
    for (name, _, _) in IMAGES {
        let path = images_folder().join(name);
        std::fs::copy(folder.join(name), &path).map_err(at(&path))?;
    }
    let path = images_folder().join(MANIFEST);
    std::fs::write(&path, manifest).map_err(at(&path))
}

#[cfg(test)]
mod tests {
    use super::{IMAGES, check, difference, hash};

    #[test]
    fn the_images_are_fresh() {
        check().unwrap();
    }

    #[test]
    fn hashes_are_those_of_fnv_1a() {
        let hashes = ["", "a", "foobar"].map(|text| hash(text.as_bytes()));
        assert_eq!(hashes, [0xCBF2_9CE4_8422_2325, 0xAF63_DC4C_8601_EC8C, 0x8594_4171_F739_67E8]);
    }

    #[test]
    fn the_first_file_that_is_stale_is_named() {
        let built = "nvcc 13.0.88\nflags -a\nsource a.cu 01\nsource b.cu 02\nimage sm_80.cubin 03\n";
        assert_eq!(difference(built, built), None);
        let check = |from: &str, to: &str, wanted: &str| {
            assert_eq!(difference(built, &built.replace(from, to)).as_deref(), Some(wanted));
        };
        check("b.cu 02", "b.cu 22", "kernels/b.cu is not what the images were built from");
        check("source b.cu 02\n", "", "kernels/b.cu is not what the images were built from");
        check(
            "source b.cu 02\n",
            "source b.cu 02\nsource c.h 05\n",
            "kernels/c.h is not what the images were built from",
        );
        check("flags -a", "flags -b", "the images were built with other flags: flags -b");
        let image = "crates/ftcache-transfer/src/cuda/images/sm_80.cubin is not the image that was built";
        check("sm_80.cubin 03", "sm_80.cubin 33", image);
    }

    #[test]
    fn every_image_is_named_after_what_it_is_for() {
        for (name, form, architecture) in IMAGES {
            let wanted = match form {
                "-cubin" => format!("{architecture}.cubin"),
                _ => "ftcache.ptx".to_owned(),
            };
            assert_eq!(name, wanted);
        }
    }
}
