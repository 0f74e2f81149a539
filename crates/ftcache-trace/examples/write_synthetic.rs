//! Writes `testdata/traces/synthetic-4l16e.ftr.zst`, the small trace that tests of all crates may use.
//!
//! `cargo run -p ftcache-trace --example write_synthetic`, after a change that moves what a seed gives; a test of this
//! crate says when that is.

use std::error::Error;
use std::fs::File;

use ftcache_trace::{Form, Synthetic};

fn main() -> Result<(), Box<dyn Error>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/traces/synthetic-4l16e.ftr.zst");
    let trace = Synthetic { requests: 4, drift: 64, ..Synthetic::default() }.trace()?;
    trace.write(File::create(path)?, Form::Zstd)?;
    println!("{} ids, digest {:016x}", trace.ids().len(), trace.digest());
    Ok(())
}
