//! `docs/which-cache.md` says what the program does: its commands are run as they stand there, and print what it says
//! they print; its pictures are those that they draw. `cargo xtask docs` writes both anew, by this test.

use std::collections::BTreeMap;
use std::io::Write;

use super::*;

/// In which `cargo xtask docs` asks for new outputs and pictures.
const WRITE: &str = "FTCACHE_WRITE_DOCS";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// A command of the page and what it is said to print.
struct Example {
    /// The line of the page, from 1.
    line: usize,
    command: String,
    output: String,
}

/// What the page is made of, in order.
enum Part {
    Text(String),
    Example(Example),
}

/// Commands stand in `console` blocks behind a dollar, each before its output.
fn parts(page: &str) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    let mut is_console = false;
    for (line, text) in (1..).zip(page.split_inclusive('\n')) {
        is_console = match text.trim_end() {
            "```console" => true,
            "```" => false,
            _ => is_console,
        };
        match (text.strip_prefix("$ "), parts.last_mut()) {
            (Some(command), _) if is_console => {
                let command = command.trim_end().to_owned();
                parts.push(Part::Text(text.to_owned()));
                parts.push(Part::Example(Example { line, command, output: String::new() }));
            }
            (_, Some(Part::Example(example))) if is_console => example.output += text,
            _ => parts.push(Part::Text(text.to_owned())),
        }
    }
    parts
}

/// A folder that looks like the repository to the page's commands, with a folder of pictures of its own.
fn place() -> (PathBuf, bool) {
    let folder = folder("page");
    std::fs::create_dir(folder.join("docs")).unwrap();
    std::os::unix::fs::symlink(root().join("testdata"), folder.join("testdata")).unwrap();
    let traces = root().join("../shared/traces");
    let has_traces = traces.is_dir();
    if has_traces {
        std::os::unix::fs::symlink(traces, folder.join("traces")).unwrap();
    }
    (folder, has_traces)
}

fn printed_by(command: &str, folder: &Path) -> String {
    let programs = Path::new(env!("CARGO_BIN_EXE_ftcache")).parent().unwrap().display().to_string();
    let path = format!("{programs}:{}", std::env::var("PATH").unwrap());
    let (text, success) = printed(Command::new("sh").args(["-c", command]).current_dir(folder).env("PATH", path));
    assert!(success, "{command}: {text}");
    text
}

fn pictures(folder: &Path) -> BTreeMap<String, String> {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let svgs = files.filter(|path| path.extension().is_some_and(|extension| extension == "svg"));
    svgs.map(|path| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, std::fs::read_to_string(path).unwrap())
    })
    .collect()
}

#[test]
fn the_page_says_what_its_commands_print_and_draw() {
    let docs = root().join("docs");
    let page = std::fs::read_to_string(docs.join("which-cache.md")).unwrap();
    let (folder, has_traces) = place();
    let (mut written, mut found, mut stale) = (String::new(), 0, Vec::new());
    for part in parts(&page) {
        match part {
            Part::Text(text) => written += &text,
            Part::Example(Example { line, command, output }) => {
                found += 1;
                if !has_traces && command.contains(" traces/") {
                    // Past the test runner's capture, so that a skip is seen.
                    writeln!(std::io::stderr(), "skipped, no folder shared/traces: {command}").unwrap();
                    written += &output;
                    continue;
                }
                let text = printed_by(&command, &folder);
                if text != output {
                    stale.push(format!("line {line}: {command}\nprints\n{text}the page says\n{output}"));
                }
                written += &text;
            }
        }
    }
    assert!(found >= 10, "{found} commands were found on the page");
    let (drawn, committed) = (pictures(&folder.join("docs")), pictures(&docs));
    let differ = drawn.iter().filter(|(name, svg)| committed.get(*name) != Some(svg));
    stale.extend(differ.map(|(name, _)| format!("docs/{name} is another picture")));
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(docs.join("which-cache.md"), written).unwrap();
        drawn.iter().for_each(|(name, svg)| std::fs::write(docs.join(name), svg).unwrap());
        return;
    }
    assert!(stale.is_empty(), "docs/which-cache.md is stale; `cargo xtask docs` writes it anew:\n{}", stale.join("\n"));
    for name in committed.keys() {
        assert!(!has_traces || drawn.contains_key(name), "docs/{name}: no command of the page draws it");
        assert!(page.contains(&format!("]({name})")), "docs/{name} is not on the page");
    }
}

/// Blocks of code of the page, by language.
fn code<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let blocks = page.split("\n```").skip(1).step_by(2);
    blocks.filter_map(|block| block.strip_prefix(language)?.strip_prefix('\n')).flat_map(str::lines).collect()
}

/// What the page shows of recorders is what is compiled and run elsewhere.
#[test]
fn the_code_on_the_page_is_tested_elsewhere() {
    let page = std::fs::read_to_string(root().join("docs/which-cache.md")).unwrap();
    let source = |name: &str| std::fs::read_to_string(root().join(name)).unwrap();
    let recorder = source("crates/ftcache-trace/src/recorder.rs");
    let lines: Vec<&str> = code(&page, "rust").into_iter().filter(|line| !line.starts_with("//")).collect();
    assert!(lines.len() >= 5, "{lines:?}");
    for line in lines {
        assert!(recorder.contains(&format!("/// {line}\n")), "not in the recorder's example: {line}");
    }
    let test = source("ffi-tests/recorder.c");
    let calls: Vec<&str> = code(&page, "c").into_iter().filter(|line| line.starts_with("ftcache_recorder_")).collect();
    assert!(calls.len() >= 5, "{calls:?}");
    for call in calls {
        let (call, _) = call.split_once(';').unwrap();
        assert!(test.contains(call), "not in ffi-tests/recorder.c: {call}");
    }
}

#[test]
fn a_page_is_read_as_text_and_commands() {
    let page = "a\n```console\n$ b c\nd\n$ e\n```\n$ f\n```c\n$ g\n```\n";
    let read: Vec<String> = parts(page)
        .into_iter()
        .map(|part| match part {
            Part::Text(text) => text.trim_end().to_owned(),
            Part::Example(Example { line, command, output }) => format!("{line}: {command} -> {output:?}"),
        })
        .collect();
    let wanted =
        ["a", "```console", "$ b c", "3: b c -> \"d\\n\"", "$ e", "5: e -> \"\"", "```", "$ f", "```c", "$ g", "```"];
    assert_eq!(read, wanted);
    assert_eq!(code("x\n```c\na;\nb;\n```\ny\n```rust\nd\n```\n", "c"), ["a;", "b;"]);
}
