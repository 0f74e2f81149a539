//! The program as people run it: what it prints, and what it refuses.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

mod drivers;
mod inspect;
mod load;
mod page;
mod plan;
mod probe;
mod replay;
mod replay_times;
mod split;
mod sweep;
mod sweep_model;
mod trace;

use drivers::Drivers;

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name)
}

/// A new folder of this run's own.
fn folder(name: &str) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let unique = format!("{name}-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(unique);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// A model of zeros with the header that PyPI's gguf wrote, as long as the header says.
fn model(name: &str) -> PathBuf {
    let sizes = std::fs::read_to_string(testdata("gguf/headers.json")).unwrap();
    let sizes: serde_json::Value = serde_json::from_str(&sizes).unwrap();
    let path = folder("model").join(name);
    std::fs::copy(testdata("gguf").join(format!("{name}-header")), &path).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(sizes[name].as_u64().unwrap()).unwrap();
    path
}

/// What a command printed, and whether it succeeded.
fn printed(command: &mut Command) -> (String, bool) {
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    (text, output.status.success())
}

fn without_paths(text: String, arguments: &[&str]) -> String {
    let paths = arguments.iter().filter(|argument| argument.contains('/'));
    paths.fold(text, |text, path| text.replace(path, "PATH"))
}

/// What a run printed, paths cut; and whether it succeeded.
fn ftcache(arguments: &[&str]) -> (String, bool) {
    let (text, success) = printed(Command::new(env!("CARGO_BIN_EXE_ftcache")).args(arguments));
    (without_paths(text, arguments), success)
}

fn done(arguments: &[&str]) -> String {
    let (text, success) = ftcache(arguments);
    assert!(success, "{text}");
    text
}

fn refused(arguments: &[&str]) -> String {
    let (text, success) = ftcache(arguments);
    assert!(!success, "{text}");
    text
}
