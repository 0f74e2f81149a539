//! The program as people run it: what it prints, and what it refuses.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

mod inspect;
mod load;
mod plan;
mod probe;
mod replay;

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name)
}

/// A model of zeros with the header that PyPI's gguf wrote, as long as the header says.
fn model(name: &str) -> PathBuf {
    let sizes = std::fs::read_to_string(testdata("gguf/headers.json")).unwrap();
    let sizes: serde_json::Value = serde_json::from_str(&sizes).unwrap();
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let unique = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(unique);
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join(name);
    std::fs::copy(testdata("gguf").join(format!("{name}-header")), &path).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(sizes[name].as_u64().unwrap()).unwrap();
    path
}

/// What a run printed, folders cut from paths; and whether it succeeded.
fn ftcache(arguments: &[&str]) -> (String, bool) {
    let output = Command::new(env!("CARGO_BIN_EXE_ftcache")).args(arguments).output().unwrap();
    let mut text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    for argument in arguments.iter().filter(|argument| argument.contains('/')) {
        text = text.replace(argument, "PATH");
    }
    (text, output.status.success())
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
