//! Arenas: every byte where it belongs, however it lies in files; what is pinned, and what is left when something
//! fails.

mod errors;
mod keeping;
mod pinning;
mod reading;
mod registering;
mod sources;

use std::ops::ControlFlow;

use ftcache_transfer::{ArenaError, ArenaOptions, Device, HostArena, Progress};
use sources::Sources;

/// Options for small arenas.
fn options() -> ArenaOptions {
    ArenaOptions { read_bytes: 16_384, ..ArenaOptions::default() }
}

fn load(sources: &Sources, options: ArenaOptions, device: &mut impl Device) -> Result<HostArena, ArenaError> {
    HostArena::reserve(&sources.banks, &sources.paths, options)?.load(device, go_on)
}

fn go_on(_: Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}
