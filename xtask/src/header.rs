//! `cargo xtask header`: include/ftcache.h out of the C ABI's sources.

use cbindgen::{Braces, Builder, Config, DocumentationStyle, EnumConfig, Language, RenameRule, Style};

use crate::run::{Outcome, root};

/// The sources in the order in which one learns them, which is the header's order.
const SOURCES: [&str; 6] = ["status", "model", "geometry", "cache", "step", "stats"];

const INTRODUCTION: &str = "\
/* ftcache.h: a GPU expert-slot cache for mixture-of-experts inference.
 *
 * Written by `cargo xtask header` from crates/ftcache-capi; changes belong there.
 *
 * A model's experts do not fit in device memory. Their rows lie in host memory, and a bounded number of slots on the
 * device hold the experts that the router keeps asking for. In order:
 *
 *   1. describe the model:    ftcache_model_new, ftcache_model_layer_set
 *   2. plan slots for bytes:  ftcache_geometry_new, ftcache_geometry_get
 *   3. make the cache:        ftcache_new, ftcache_attach for every layer and bank
 *   4. at every step:         ftcache_load, then kernels that read ftcache_slot_span_get
 *   5. see how it goes:       ftcache_stats_get, ftcache_layer_stats_get
 *
 * Conventions
 *
 * A function that can be refused returns an ftcache_status; ftcache_last_error has the reason in one line. Nothing unwinds
 * into the caller, and nothing is written to stderr but the message of a panic, which is a fault of ours.
 *
 * A struct begins with its struct_size: set it to sizeof, the rest to zeros, then what is wanted. A library of another
 * version reads a shorter struct as followed by zeros, and accepts a longer one whose unknown tail is zeros.
 *
 * A pointer must not be NULL unless its sentence says that it may. What a function is given stays the caller's; what a
 * _new gives out is freed by its _free, which accepts NULL.
 */";

fn generate() -> Outcome<String> {
    let mut config = Config {
        language: Language::C,
        header: Some(INTRODUCTION.to_owned()),
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
    config.export.include = ["ftcache_scope", "ftcache_tail_pad", "ftcache_device"].map(str::to_owned).to_vec();

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
    #[test]
    fn the_header_is_fresh() {
        super::check().unwrap();
    }
}
