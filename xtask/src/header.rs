//! `cargo xtask header`: include/ftcache.h out of the C ABI's sources.

use cbindgen::{Braces, Builder, Config, DocumentationStyle, EnumConfig, Language, RenameRule, Style};

use crate::run::{Outcome, root};

/// The sources in the order in which one learns them, which is the header's order.
const SOURCES: [&str; 21] = [
    "status",
    "model",
    "settings",
    "configuration",
    "log",
    "cache",
    "attach",
    "files",
    "report",
    "slots",
    "routes",
    "step",
    "plan",
    "hint",
    "on_device",
    "chunk",
    "stats",
    "rebuild",
    "probe",
    "recorder",
    "miss_counts",
];

/// Enums that are reached through integer fields only.
const ENUMS: [&str; 21] = [
    "ftcache_keep",
    "ftcache_scope",
    "ftcache_split",
    "ftcache_tail_pad",
    "ftcache_staging",
    "ftcache_strategy",
    "ftcache_fetch_rule",
    "ftcache_fetch_order",
    "ftcache_admission",
    "ftcache_eviction",
    "ftcache_layer_state",
    "ftcache_log_level",
    "ftcache_device",
    "ftcache_context",
    "ftcache_direct",
    "ftcache_refusal",
    "ftcache_residence",
    "ftcache_phase",
    "ftcache_misses",
    "ftcache_rebuilt",
    "ftcache_status",
];

/// The manual: prose in crates/ftcache-capi, with examples that CTest compiles and runs.
fn manual() -> Outcome<String> {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).map_err(|error| format!("{path}: {error}"));
    let mut text = String::from("/*");
    for line in read("crates/ftcache-capi/manual.txt")?.lines() {
        match line.strip_prefix("@example ").and_then(|line| line.strip_suffix('@')) {
            Some(name) => {
                let source = read(&format!("ffi-tests/examples/{name}.c"))?;
                let marked =
                    source.split_once(&format!("// example: {name}\n")).and_then(|(_, s)| s.split_once("// end\n"));
                let (example, _) =
                    marked.ok_or_else(|| format!("ffi-tests/examples/{name}.c has no example {name}"))?;
                for line in example.lines() {
                    // A comment of the old kind would end the manual.
                    let line = format!(" *     {line}");
                    text.push_str(line.trim_end());
                    text.push('\n');
                }
            }
            None => {
                text.push_str(format!(" * {line}").trim_end());
                text.push('\n');
            }
        }
    }
    text.push_str(" */");
    Ok(text.replacen("/* * ", "/* ", 1))
}

fn generate() -> Outcome<String> {
    let mut config = Config {
        language: Language::C,
        header: Some(manual()?),
        include_guard: Some("FTCACHE_H".to_owned()),
        no_includes: true,
        sys_includes: vec!["stddef.h".to_owned(), "stdint.h".to_owned()],
        cpp_compat: true,
        style: Style::Both,
        braces: Braces::SameLine,
        line_length: 120,
        tab_width: 4,
        documentation_style: DocumentationStyle::C99,
        usize_is_size_t: true,
        sort_by: cbindgen::SortKey::None,
        enumeration: EnumConfig { rename_variants: RenameRule::QualifiedScreamingSnakeCase, ..EnumConfig::default() },
        ..Config::default()
    };
    config.function.must_use = Some("FTCACHE_MUST_USE".to_owned());
    config.after_includes = Some(
        "\n/* A status that nobody looks at hides a step whose rows are missing. */\n\
         #if defined(__GNUC__) || defined(__clang__)\n\
         #define FTCACHE_MUST_USE __attribute__((warn_unused_result))\n\
         #else\n\
         #define FTCACHE_MUST_USE\n\
         #endif"
            .to_owned(),
    );
    // Reached through integer fields only, so that a value this library does not know is an error and not undefined.
    config.export.include = ENUMS.map(str::to_owned).to_vec();

    let mut builder = Builder::new().with_config(config);
    for source in SOURCES {
        builder = builder.with_src(root().join(format!("crates/ftcache-capi/src/{source}.rs")));
    }
    let mut text = Vec::new();
    builder.generate().map_err(|error| format!("cbindgen: {error}"))?.write(&mut text);
    let text = String::from_utf8(text).map_err(|error| format!("cbindgen: {error}"))?;
    // The heading that Rust wants says nothing to a reader of C; what stands below it is what the caller promises.
    Ok(text.replace("// # Safety\n//\n// ", "// Requires: "))
}

/// Writes the header.
pub(crate) fn write() -> Outcome {
    let path = root().join("include/ftcache.h");
    std::fs::write(&path, generate()?).map_err(|error| format!("{}: {error}", path.display()))
}

/// Says whether the header is what the sources give.
pub(crate) fn check() -> Outcome {
    let path = root().join("include/ftcache.h");
    let committed = std::fs::read_to_string(&path).map_err(|error| format!("include/ftcache.h: {error}"))?;
    let fresh = generate()?;
    if committed == fresh {
        return Ok(());
    }
    let line = committed.lines().zip(fresh.lines()).take_while(|(a, b)| a == b).count() + 1;
    Err(format!("include/ftcache.h is stale from line {line} on; `cargo xtask header` writes it"))
}

#[cfg(test)]
mod tests {
    use crate::run::root;

    #[test]
    fn every_function_says_whether_it_allocates_and_waits() {
        let header = std::fs::read_to_string(root().join("include/ftcache.h")).unwrap();
        let lines: Vec<&str> = header.lines().collect();
        let mut functions = 0;
        for (at, line) in lines.iter().enumerate() {
            let declares = ["ftcache_status ftcache_", "FTCACHE_MUST_USE ftcache_status ftcache_", "void ftcache_"];
            if !line.contains('(') || !declares.iter().any(|begin| line.starts_with(begin)) {
                continue;
            }
            functions += 1;
            let above = lines[..at].iter().rev().filter(|line| **line != "FTCACHE_MUST_USE");
            let said: Vec<&str> = above.take_while(|line| line.starts_with("//")).copied().collect();
            let says = |words: &[&str]| words.iter().any(|word| said.iter().any(|line| line.contains(word)));
            assert!(says(&["llocate", "Frees"]) && says(&["ait", "lock"]), "{line}");
        }
        assert!(functions > 80, "{functions} functions");
    }

    #[test]
    fn the_header_is_fresh() {
        super::check().unwrap();
    }
}
