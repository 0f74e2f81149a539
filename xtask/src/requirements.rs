//! The table of what engines require (`crates/ftcache-capi/README.md`) has every number, and names tests that exist.

use std::path::Path;

use crate::run::root;

/// What all sources of a folder say.
fn sources(folder: &Path, text: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, text);
        } else if let Ok(source) = std::fs::read_to_string(&path) {
            text.push_str(&source);
        }
    }
}

/// The words between backticks that name a test: of small letters, digits and at least one underscore.
fn names(row: &str) -> impl Iterator<Item = &str> {
    let is_name = |word: &&str| {
        word.contains('_') && word.chars().all(|c| c == '_' || c.is_ascii_lowercase() || c.is_ascii_digit())
    };
    row.split('`').skip(1).step_by(2).filter(is_name)
}

#[test]
fn every_requirement_has_a_row_and_every_test_of_it_exists() {
    let table = std::fs::read_to_string(root().join("crates/ftcache-capi/README.md")).unwrap();
    let mut known = std::fs::read_to_string(root().join("include/ftcache.h")).unwrap();
    sources(&root().join("ffi-tests"), &mut known);
    let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("| ")).collect();
    for number in 1..=33 {
        let row = rows.iter().find(|row| row.starts_with(&format!("| {number} |")));
        assert!(row.is_some_and(|row| row.matches('|').count() == 4), "requirement {number}");
    }
    for row in rows {
        for name in names(row) {
            let found = known.match_indices(name).any(|(at, _)| {
                let is_word = |c: char| c == '_' || c.is_ascii_alphanumeric();
                !known[..at].ends_with(is_word) && !known[at + name.len()..].starts_with(is_word)
            });
            assert!(found, "no test or function {name}");
        }
    }
}
