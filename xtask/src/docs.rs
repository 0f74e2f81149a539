//! `cargo xtask docs`: what commands print and draw in `docs/which-cache.md`. The test that compares them writes them too,
//! so that there is one way to run them.

use crate::run::{Outcome, cargo, run};

pub(crate) fn write() -> Outcome {
    run(cargo().args(TEST).env("FTCACHE_WRITE_DOCS", "1"))
}

pub(crate) fn check() -> Outcome {
    run(cargo().args(TEST).env_remove("FTCACHE_WRITE_DOCS"))
}

const TEST: [&str; 7] = ["test", "--quiet", "--package", "ftcache-cli", "--test", "commands", "page::"];
