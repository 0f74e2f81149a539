//! Decode and prefill mixed, by seeds: every kernel reads what it was promised, whatever the order in which streams go
//! on, and no fence can be left out.

#[path = "support/program.rs"]
mod program;
#[path = "support/rig.rs"]
mod rig;

use std::collections::BTreeMap;

use ftcache::HostDevice;
use ftcache_testkit::Rng;
use program::{geometry, run};
use rig::{CudaWorld, Pinned, Rig};

/// Calls of a program.
const CALLS: u32 = 20;

/// The fences of a cache: the call, and the event that it lets a stream wait for.
const FENCES: [(&str, &str); 14] = [
    ("load", "handover"),
    ("load", "release"),
    ("load", "ready"),
    ("load", "filled"),
    ("bring_back", "handover"),
    ("bring_back", "release"),
    ("bring_back", "ready"),
    ("begin_chunk", "handover"),
    ("begin_chunk", "begun"),
    ("prefetch", "released"),
    ("prefetch", "loaded"),
    ("wait", "filled"),
    ("end_chunk", "filled"),
    ("end_chunk", "handover"),
];

/// How many seeds are tried, unless `FTCACHE_SEEDS` says.
fn seeds(most: u64) -> u64 {
    std::env::var("FTCACHE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(most)
}

fn world(seed: u64) -> CudaWorld {
    CudaWorld::emulated(ftcache_cuda_emu::client::Config { seed, memory_bytes: 1 << 20, ..Default::default() })
}

fn emulated(seed: u64, world: &CudaWorld) -> Rig {
    Rig::new(geometry(&mut Rng::new(seed)), Box::new(world.device()), Pinned::All)
}

fn deferred(seed: u64, order: u64) -> Rig {
    Rig::new(geometry(&mut Rng::new(seed)), Box::new(HostDevice::deferred(order)), Pinned::None)
}

#[test]
fn decode_and_prefill_mixed_never_race() {
    for seed in 0..seeds(2_000) {
        let world = world(seed);
        let mut rig = emulated(seed, &world);
        run(&mut rig, seed, CALLS);
        rig.check(&format!("seed {seed}"));
        drop(rig);
        world.check_gone();
    }
}

#[test]
fn decode_and_prefill_mixed_are_right_in_every_order_of_the_host_device() {
    for seed in 0..seeds(2_000) {
        let mut rig = deferred(seed, seed);
        run(&mut rig, seed, CALLS);
        rig.check(&format!("seed {seed}"));
    }
}

/// Runs programs with each of their waits left out in turn, and tells of each fence how often that was seen, and how
/// often it was left out: a wait is not needed in a program where another path orders the same two operations.
fn leave_out(
    programs: u64,
    is_seen: impl Fn(u64, usize) -> bool,
) -> BTreeMap<(&'static str, &'static str), (u64, u64)> {
    let mut seen = BTreeMap::new();
    for seed in 0..programs {
        let mut whole = deferred(seed, 0);
        run(&mut whole, seed, CALLS);
        whole.check(&format!("seed {seed}"));
        let waits = whole.probe.get().waits.clone();
        for (index, fence) in waits.into_iter().enumerate() {
            let (times, of): &mut (u64, u64) = seen.entry(fence).or_default();
            *times += u64::from(is_seen(seed, index));
            *of += 1;
        }
    }
    seen
}

fn check_all_seen(seen: &BTreeMap<(&'static str, &'static str), (u64, u64)>) {
    println!("{seen:#?}");
    for fence in FENCES {
        assert!(seen.get(&fence).is_some_and(|&(times, _)| times > 0), "{fence:?} can be left out: {seen:?}");
    }
    for fence in seen.keys() {
        assert!(FENCES.contains(fence), "{fence:?} is not in the list");
    }
}

#[test]
fn every_fence_that_is_left_out_is_a_race() {
    let seen = leave_out(40, |seed, index| {
        let world = world(seed);
        let mut rig = emulated(seed, &world);
        rig.probe.get_mut().dropped_wait = Some(index);
        run(&mut rig, seed, CALLS);
        let device = world.emulated.as_ref().expect("it is emulated");
        let races = device.races();
        drop(rig);
        assert!(device.violations().is_empty() && device.damage().is_empty());
        // What the slots hold at the end may be wrong as well, but need not.
        !races.is_empty()
    });
    check_all_seen(&seen);
}

#[test]
fn every_fence_that_is_left_out_is_a_wrong_byte_in_some_order() {
    let seen = leave_out(40, |seed, index| {
        (0..8).any(|order| {
            let mut rig = deferred(seed, order);
            rig.probe.get_mut().dropped_wait = Some(index);
            run(&mut rig, seed, CALLS);
            rig.looks_wrong().is_some() || rig.slots_wrong().is_some()
        })
    });
    check_all_seen(&seen);
}
