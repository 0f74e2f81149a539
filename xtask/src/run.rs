//! Running other programs from the workspace's root.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub(crate) type Outcome<T = ()> = Result<T, String>;

/// The workspace's root.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace").to_owned()
}

/// The build folder. Every cargo that is run from here is told it, so that settings outside cannot put it elsewhere.
pub(crate) fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(target) => root().join(target),
        None => root().join("target"),
    }
}

/// A program to be run in the workspace's root.
pub(crate) fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root());
    command
}

/// The cargo that runs this, building for this machine into [`target`].
pub(crate) fn cargo() -> Command {
    let mut command = command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.env("CARGO_TARGET_DIR", target()).env_remove("CARGO_BUILD_TARGET");
    command
}

/// Runs a command, its output shown.
pub(crate) fn run(command: &mut Command) -> Outcome {
    println!("$ {}", shown(command));
    let status = command.status().map_err(|error| format!("{}: {error}", shown(command)))?;
    if status.success() { Ok(()) } else { Err(format!("{}: {status}", shown(command))) }
}

/// Runs a command and returns what it wrote to either output.
pub(crate) fn output(command: &mut Command) -> Outcome<String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{}: {error}", shown(command)))?;
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        Ok(text.into_owned())
    } else {
        Err(format!("{}: {}\n{text}", shown(command), output.status))
    }
}

/// Runs a command, its output shown at its end, and returns that too.
pub(crate) fn run_and_read(command: &mut Command) -> Outcome<String> {
    println!("$ {}", shown(command));
    let text = output(command)?;
    print!("{text}");
    Ok(text)
}

/// The first of some programs that runs with `--version`.
pub(crate) fn find<'a>(programs: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    programs.into_iter().find(|program| output(command(program).arg("--version")).is_ok())
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(|word| word.to_string_lossy().replace(&format!("{}/", root().display()), ""))
        .collect::<Vec<_>>()
        .join(" ")
}
