//! `cargo xtask bench-gpu`: times admission and gathers on a GPU, and flashlib's admission beside them where a Python
//! has it. What is timed is the program in `benches/gpu`.

use std::path::{Path, PathBuf};

use crate::run::{Outcome, cargo, command, find, root, run, target};

/// Where the program writes its results, and whether that is because the arguments say so. It runs in the workspace's
/// root.
fn results(arguments: &[&str]) -> (PathBuf, bool) {
    let mut words = arguments.iter();
    while let Some(&word) = words.next() {
        if let Some(path) = word.strip_prefix("--json=") {
            return (root().join(path), true);
        }
        if let Some(path) = words.as_slice().first().filter(|_| word == "--json") {
            return (root().join(path), true);
        }
    }
    (target().join("gpu-bench.json"), false)
}

/// Builds the program, runs it with these arguments, and then the script beside it.
pub(crate) fn bench(arguments: &[&str]) -> Outcome {
    run(cargo().args(["build", "--quiet", "--release", "--package", "gpu-bench"]))?;
    let is_emulated = arguments.contains(&"--emulated");
    if is_emulated {
        run(cargo().args(["build", "--quiet", "--release", "--package", "ftcache-cuda-emu"]))?;
    }
    let program = target().join("release").join(format!("gpu-bench{}", std::env::consts::EXE_SUFFIX));
    let (path, is_told) = results(arguments);
    let mut bench = command(program);
    bench.args(arguments);
    if !is_told {
        bench.arg("--json").arg(&path);
    }
    // Nobody is to take the last run's for this one's.
    if let Err(error) = std::fs::remove_file(&path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        return Err(format!("{}: {error}", path.display()));
    }
    // Rows that failed are told by the program; flashlib is asked about the others all the same.
    let timed = run(&mut bench);
    let has_rows = std::fs::exists(&path).unwrap_or(false);
    if is_emulated || !has_rows {
        return timed;
    }
    let compared = flashlib(&path);
    timed.and(compared)
}

/// Runs the script with the Python that `FLASHLIB_PYTHON` names, or the one there is. It says what it lacks by itself.
fn flashlib(results: &Path) -> Outcome {
    let named = std::env::var("FLASHLIB_PYTHON").ok();
    let Some(python) = named.as_deref().or_else(|| find(["python3"])) else {
        println!("flashlib was not measured: there is no python3, and FLASHLIB_PYTHON names none");
        return Ok(());
    };
    run(command(python).arg(root().join("benches/gpu/beside_flashlib.py")).arg(results))
}

#[cfg(test)]
mod tests {
    use super::results;
    use crate::run::root;

    #[test]
    fn results_lie_where_they_are_wanted() {
        let check = |arguments: &[&str], wanted: &str| {
            assert_eq!(results(arguments), (root().join(wanted), true));
        };
        check(&["--small", "--json", "a.json"], "a.json");
        check(&["--json=b.json", "--small"], "b.json");
        let (path, is_told) = results(&["--small", "--json"]);
        assert!(path.ends_with("gpu-bench.json") && !is_told, "{}", path.display());
    }
}
