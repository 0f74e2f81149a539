//! Python and what its registry holds: a virtual environment under the build folder, filled as needed.

use std::path::{Path, PathBuf};

use crate::run::{Outcome, command, find, output, root, run, target};

/// What models are written with. NumPy is its one dependency.
const GGUF: &str = "gguf==0.19.0";
/// What `ffi-tests` asks for; an older one on the path is passed over.
const CMAKE_LEAST: (u32, u32) = (3, 21);
/// For machines without them.
const CMAKE: &str = "cmake==4.4.5";
const NINJA: &str = "ninja==1.13.2";
/// What kernels are compiled with. The last one asks for the others, in any version, so it comes last.
const NVCC: [&str; 5] = [
    "nvidia-cuda-crt==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-cccl==13.0.85",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-nvcc==13.0.88",
];
/// A compiler on the path is taken if it is of this version: others make other images, which other drivers take.
const NVCC_VERSION: &str = "13.0.";

/// The environment's `bin`, with these packages in it.
fn environment(packages: &[&str]) -> Outcome<PathBuf> {
    let folder = target().join("python");
    let bin = folder.join("bin");
    // One that was left half made has a Python and no pip.
    if output(command(bin.join("python")).args(["-m", "pip", "--version"])).is_err() {
        if folder.exists() {
            std::fs::remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        let python = find(["python3", "python"]).ok_or("no Python 3: install python3")?;
        run(command(python).args(["-m", "venv"]).arg(&folder))
            .map_err(|error| format!("{error}; on Debian and Ubuntu, install python3-venv"))?;
    }
    for package in packages {
        // Asked for once: a look at the registry at every run would need the network at every run.
        let mark = folder.join(format!("{package}.installed"));
        if !mark.exists() {
            run(command(bin.join("python")).args(["-m", "pip", "install", "--quiet", package]))?;
            std::fs::write(&mark, "").map_err(|error| format!("{}: {error}", mark.display()))?;
        }
    }
    Ok(bin)
}

/// The first two numbers that a program says its version to be.
fn version(program: &str) -> Option<(u32, u32)> {
    let text = output(command(program).arg("--version")).ok()?;
    let word = text.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
    let mut numbers = word.split('.').map_while(|number| number.parse().ok());
    Some((numbers.next()?, numbers.next()?))
}

/// Programs that build C projects.
pub(crate) struct Cmake {
    pub(crate) cmake: PathBuf,
    pub(crate) ctest: PathBuf,
    /// Ninja where there is no `make`.
    pub(crate) ninja: Option<PathBuf>,
}

/// CMake from the path if it is new enough, else from Python's registry; and Ninja likewise if there is no `make`.
pub(crate) fn cmake() -> Outcome<Cmake> {
    let (cmake, ctest) = match find(["cmake"]).zip(find(["ctest"])) {
        Some((cmake, ctest)) if version(cmake).is_some_and(|version| version >= CMAKE_LEAST) => {
            (cmake.into(), ctest.into())
        }
        _ => {
            let bin = environment(&[CMAKE])?;
            (bin.join("cmake"), bin.join("ctest"))
        }
    };
    let ninja = match find(["make"]) {
        Some(_) => None,
        None => Some(environment(&[NINJA])?.join("ninja")),
    };
    Ok(Cmake { cmake, ctest, ninja })
}

/// What a compiler for CUDA says its version to be, `13.0.88`.
fn nvcc_version(program: &Path) -> Option<String> {
    let text = output(command(program).arg("--version")).ok()?;
    let version = text.split_whitespace().find_map(|word| word.strip_prefix('V'))?;
    version.starts_with(|c: char| c.is_ascii_digit()).then(|| version.to_owned())
}

/// The compiler for CUDA and its version: from the path, else from Python's registry.
pub(crate) fn nvcc() -> Outcome<(PathBuf, String)> {
    let on_path = PathBuf::from("nvcc");
    if let Some(version) = nvcc_version(&on_path).filter(|version| version.starts_with(NVCC_VERSION)) {
        return Ok((on_path, version));
    }
    let python = environment(&NVCC)?.join("python");
    let folder = output(command(python).args(["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]))?;
    let program = Path::new(folder.trim()).join("nvidia/cu13/bin/nvcc");
    let version = nvcc_version(&program).ok_or_else(|| format!("{} does not say its version", program.display()))?;
    Ok((program, version))
}

/// A Python that has the package which writes models.
pub(crate) fn python_with_gguf() -> Outcome<PathBuf> {
    Ok(environment(&[GGUF])?.join("python"))
}

/// Writes the model fixtures, or says whether they are what the package writes today.
pub(crate) fn models(check: bool) -> Outcome {
    let script = root().join("testdata/gguf/write_models.py");
    let mut command = command(python_with_gguf()?);
    command.arg(script);
    match check {
        true => run(command.arg("--check")),
        false => run(&mut command),
    }
}
