//! Decode and prefill mixed, by seeds: every kernel reads what it was promised, whatever the order in which streams go
//! on, and no fence can be left out.

#[path = "support/program.rs"]
mod program;
#[path = "support/rig.rs"]
mod rig;

use std::collections::BTreeMap;

use ftcache::{Geometry, HintStats, HintTotal, HostDevice};
use ftcache_testkit::Rng;
use program::{Extras, geometry, overwrite_what_is_gathered, overwrite_what_was_staged, run, three_stable_slots};
use rig::{CudaWorld, Pinned, Rig};

/// Calls of a program.
const CALLS: u32 = 20;

/// Programs that are tried with each wait left out.
const PROGRAMS: u64 = 40;

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
    ("end_chunk", "begun"),
    ("end_chunk", "handover"),
];

/// Those of copies behind steps.
const LATE_FENCES: [(&str, &str); 3] = [("late", "release"), ("late", "filled"), ("begin_chunk", "late")];

/// Those of copies ahead of steps.
const HINT_FENCES: [(&str, &str); 4] =
    [("hints", "release"), ("hints", "filled"), ("load", "hint"), ("begin_chunk", "hint")];

/// How many seeds are tried, unless `FTCACHE_SEEDS` says.
fn seeds(most: u64) -> u64 {
    std::env::var("FTCACHE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(most)
}

fn world(seed: u64) -> CudaWorld {
    CudaWorld::emulated(ftcache_cuda_emu::client::Config { seed, memory_bytes: 1 << 20, ..Default::default() })
}

/// Programs with what chance rarely brings, behind those of the seeds.
const DIRECTED: [u64; 2] = [u64::MAX - 1, u64::MAX];

fn geometry_of(program: u64, extras: Extras) -> Geometry {
    if DIRECTED.contains(&program) { three_stable_slots() } else { geometry(&mut Rng::new(program), extras) }
}

fn run_program(rig: &mut Rig, program: u64, extras: Extras) {
    match DIRECTED.iter().position(|&directed| directed == program) {
        None => run(rig, program, CALLS, extras),
        Some(0) => overwrite_what_is_gathered(rig, extras),
        Some(_) => overwrite_what_was_staged(rig),
    }
}

fn emulated(seed: u64, world: &CudaWorld, extras: Extras) -> Rig {
    Rig::new(geometry_of(seed, extras), Box::new(world.device()), Pinned::All)
}

fn deferred(seed: u64, order: u64, extras: Extras) -> Rig {
    Rig::new(geometry_of(seed, extras), Box::new(HostDevice::deferred(order)), Pinned::None)
}

/// Every second program has one extra, and every second the other.
fn extras_of(seed: u64) -> Extras {
    Extras { later: seed % 2 == 1, hints: seed / 2 % 2 == 1 }
}

#[test]
fn decode_and_prefill_mixed_never_race() {
    let (mut landed, mut hints) = (0, HintTotal::default());
    for seed in 0..seeds(10_000) {
        let (world, extras) = (world(seed), extras_of(seed));
        let mut rig = emulated(seed, &world, extras);
        run_program(&mut rig, seed, extras);
        rig.check(&format!("seed {seed}"));
        landed += rig.cache.later_report().residency.landed;
        hints += rig.cache.hint_total();
        drop(rig);
        world.check_gone();
    }
    let HintStats { useful, late, wasted, .. } = hints.residency;
    assert!(landed > 0 && useful > 0 && late > 0 && wasted > 0, "{landed} behind steps, and {hints:?}");
}

#[test]
fn decode_and_prefill_mixed_are_right_in_every_order_of_the_host_device() {
    for seed in 0..seeds(2_000) {
        let extras = extras_of(seed);
        let mut rig = deferred(seed, seed, extras);
        run_program(&mut rig, seed, extras);
        rig.check(&format!("seed {seed}"));
    }
}

type Seen = BTreeMap<(&'static str, &'static str), (u64, u64)>;

/// Leaves each of a program's waits out in turn, and counts for each fence how often that was seen, and how often it
/// was left out: a wait is not needed in a program where another path orders the same two operations.
fn leave_out(seen: &mut Seen, waits: Vec<(&'static str, &'static str)>, is_seen: impl Fn(usize) -> bool) {
    for (index, fence) in waits.into_iter().enumerate() {
        let (times, of) = seen.entry(fence).or_default();
        *times += u64::from(is_seen(index));
        *of += 1;
    }
}

fn check_all_seen(seen: &Seen, fences: &[(&'static str, &'static str)]) {
    println!("{seen:?}");
    for fence in fences {
        assert!(seen.get(fence).is_some_and(|&(times, _)| times > 0), "{fence:?} can be left out: {seen:?}");
    }
    for fence in seen.keys() {
        let known = [&FENCES[..], &LATE_FENCES, &HINT_FENCES];
        assert!(known.iter().any(|fences| fences.contains(fence)), "{fence:?} is not in the list");
    }
}

/// The waits of a program on the emulated driver, and the races there are with one of them left out.
fn races(seed: u64, extras: Extras, left_out: Option<usize>) -> (Vec<(&'static str, &'static str)>, Vec<String>) {
    let world = world(seed);
    let mut rig = emulated(seed, &world, extras);
    rig.probe.get_mut().dropped_wait = left_out;
    run_program(&mut rig, seed, extras);
    let device = world.emulated.as_ref().expect("it is emulated");
    let (waits, races) = (std::mem::take(&mut rig.probe.get_mut().waits), device.races());
    drop(rig);
    assert!(device.violations().is_empty() && device.damage().is_empty());
    (waits, races)
}

#[test]
fn every_fence_that_is_left_out_is_a_race() {
    let [none, later, hints] = [(false, false), (true, false), (false, true)];
    for ((later, hints), fences) in [(none, &FENCES[..]), (later, &LATE_FENCES), (hints, &HINT_FENCES)] {
        let (mut seen, extras) = (Seen::new(), Extras { later, hints });
        for seed in (0..PROGRAMS).chain(DIRECTED) {
            let (waits, none) = races(seed, extras, None);
            assert_eq!(none, [""; 0], "seed {seed}");
            leave_out(&mut seen, waits, |index| !races(seed, extras, Some(index)).1.is_empty());
        }
        check_all_seen(&seen, fences);
    }
}

#[test]
fn every_fence_that_is_left_out_is_a_wrong_byte_in_some_order() {
    for (hints, fences) in [(false, &FENCES[..]), (true, &HINT_FENCES)] {
        let (mut seen, extras) = (Seen::new(), Extras { later: false, hints });
        for seed in (0..PROGRAMS).chain(DIRECTED) {
            let mut whole = deferred(seed, 0, extras);
            run_program(&mut whole, seed, extras);
            whole.check(&format!("seed {seed}"));
            let waits = whole.probe.get().waits.clone();
            leave_out(&mut seen, waits, |index| {
                (0..8).any(|order| {
                    let mut rig = deferred(seed, order, extras);
                    rig.probe.get_mut().dropped_wait = Some(index);
                    run_program(&mut rig, seed, extras);
                    rig.looks_wrong().is_some() || rig.slots_wrong().is_some()
                })
            });
        }
        check_all_seen(&seen, fences);
    }
}
