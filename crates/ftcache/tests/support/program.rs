//! Programs of decode and prefill mixed, by a seed: steps over changing streams, hybrid ones among them, chunks with
//! steps in them, chunks given up, slots forgotten, rebuilt and brought back.

use ftcache::policy::{Fetch, FetchRule};
use ftcache::residency::Keep;
use ftcache::{
    Error, ExpertId, FetchOrder, Geometry, LaterLimits, Misses, Scope, SnapshotError, Staging, Step, Stream, Streams,
};
use ftcache_testkit::Rng;

use crate::rig::{Layout, Rig, experts, layer, padded, tagged_model};

/// What a cache of a program does beside its steps and chunks.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Extras {
    /// Hybrid steps fetch behind them.
    pub(crate) later: bool,
    /// Hints are given, and slots are few.
    pub(crate) hints: bool,
}

/// A small geometry of one layout or of two.
pub(crate) fn geometry(rng: &mut Rng, extras: Extras) -> Geometry {
    let (wide, narrow): (Layout, Layout) = (("wide", &[12, 2]), ("narrow", &[6, 0, 3]));
    let layers: &[Layout] = match rng.below(3) {
        0 => &[wide, wide, wide],
        1 => &[wide, narrow, wide],
        _ => &[narrow, wide, narrow, wide],
    };
    let model = tagged_model(3, 2, layers);
    let scope = if rng.chance(3, 4) { Scope::Unified } else { Scope::PerLayer };
    let most = 3 * layers.len() as u64;
    // Where hints are, so few that steps take what they hold.
    let slots = match (extras.hints, scope) {
        (true, Scope::Unified) => 4 + rng.below(5),
        _ => most - rng.below(3),
    };
    let (gap, pad) = (rng.below(3), 4 * rng.below(3));
    Geometry::new(model, padded(slots, scope, gap, 4, pad)).unwrap()
}

/// Two distinct streams, or one twice, of those there are.
fn streams(rng: &mut Rng, streams: &[Stream]) -> Streams {
    let pick = |rng: &mut Rng| streams[rng.below(streams.len() as u64) as usize];
    Streams { compute: pick(rng), copy: pick(rng) }
}

fn stage_as(rng: &mut Rng, geometry: &Geometry) -> Staging {
    match Staging::borrowed(geometry) {
        Ok(staging) if rng.chance(3, 4) => {
            if rng.chance(1, 4) {
                staging.without_overlap()
            } else {
                staging
            }
        }
        _ => Staging::dedicated(geometry, 1 + rng.below(2) as u32),
    }
}

/// The chunk that is open.
struct Chunk {
    streams: Streams,
    /// Layers to be staged yet.
    left: Vec<u32>,
    /// Layers in buffers, and whether they were waited for.
    held: Vec<(u32, bool)>,
    overlaps: bool,
    padded: bool,
}

/// A random program of so many calls. What it decides depends on its seed alone, unless there are extras: then what
/// hybrid steps find resident depends on when those copies land.
pub(crate) fn run(rig: &mut Rig, seed: u64, calls: u32, extras: Extras) {
    if extras.later {
        rig.calling("set_later").set_later(LaterLimits { step_bytes: 40, flight_count: 2 }).unwrap();
    }
    if extras.hints {
        rig.calling("set_hints").set_hints(3).unwrap();
    }
    let mut rng = Rng::new(seed);
    let rng = &mut rng;
    let all = [Stream::DEFAULT, rig.stream(), rig.stream(), rig.stream()];
    let one_key = |rig: &Rig| {
        let model = rig.cache.geometry().model();
        model.layers().iter().all(|layer| layer == &model.layers()[0])
    };
    let used = 2 + rng.below(3) as usize;
    let mut chunk: Option<Chunk> = None;
    let staging = stage_as(rng, rig.cache.geometry());
    rig.calling("set_staging").set_staging(staging, rng.below(2) * 5).unwrap();
    let layer_count = rig.cache.geometry().model().layer_count() as u64;
    for _ in 0..calls {
        let number = rng.below(layer_count) as u32;
        match (rng.below(10), &mut chunk) {
            (0..4, _) => {
                step(rig, rng, &all[..used], number, extras.hints);
            }
            (4, None) if rng.chance(1, 2) => {
                rig.cache.forget_layer(layer(number)).unwrap();
            }
            (4, None) if rng.chance(1, 3) => rebuild(rig, rng),
            (4, None) => bring_back(rig, streams(rng, &all[..used])),
            (_, None) => {
                let streams = streams(rng, &all[..used]);
                rig.calling("begin_chunk").begin_chunk(streams).unwrap();
                let mut left: Vec<u32> = (0..layer_count as u32).collect();
                (0..rng.below(2)).for_each(|_| left.rotate_left(1));
                let overlaps = rig.cache.residency().staging().unwrap().buffer_count() == 2;
                chunk = Some(Chunk { streams, left, held: Vec::new(), overlaps, padded: !one_key(rig) });
            }
            (_, Some(_)) => {
                if advance(rig, rng, chunk.as_mut().unwrap()) {
                    chunk = None;
                }
            }
        }
    }
    if chunk.is_some() {
        rig.calling("end_chunk").abandon_chunk().unwrap();
    }
    let last = rng.below(layer_count) as u32;
    step(rig, rng, &all[..used], last, extras.hints);
}

/// A step that its pool has room for, of misses that are all fetched, or some.
fn step(rig: &mut Rig, rng: &mut Rng, all: &[Stream], number: u32, hints: bool) {
    let streams = streams(rng, all);
    let width = 1 + rng.below(3) as usize;
    let routes: Vec<u32> = (0..width).map(|_| rng.below(3) as u32).collect();
    let mut step = Step::new(layer(number));
    if rng.chance(1, 5) {
        let fetch = Fetch { rule: FetchRule::UpTo(rng.below(2) as u32), most: None };
        step.misses = Misses::Hybrid { fetch, order: FetchOrder::LowestId };
    }
    let slots = match rig.calling("load").load_on(streams, step, &experts(&routes)) {
        Ok(slots) => slots.to_vec(),
        // Too few slots, or too few that no buffer lies on.
        Err(error) => return assert!(matches!(error, Error::Ensure(_)), "{error}"),
    };
    assert_eq!(slots.len(), routes.len());
    if hints {
        hint(rig, rng);
    }
    rig.look_at_slots(streams.compute, number, &routes, &slots);
}

/// Hints between a step and its kernels, some cancelled at once.
fn hint(rig: &mut Rig, rng: &mut Rng) {
    for _ in 0..rng.below(3) {
        let number = rng.below(rig.cache.geometry().model().layer_count() as u64) as u32;
        let width = 1 + rng.below(3) as usize;
        let routes: Vec<u32> = (0..width).map(|_| rng.below(3) as u32).collect();
        let report = rig.calling("hint").hint(layer(number), &experts(&routes), rng.below(50)).unwrap();
        if rng.chance(1, 8) {
            rig.cache.cancel_hint(report.hint).unwrap();
        }
    }
}

/// The next call of a chunk. Returns whether it was the last.
fn advance(rig: &mut Rig, rng: &mut Rng, chunk: &mut Chunk) -> bool {
    // In the middle of it.
    if rng.chance(1, 12) {
        rig.calling("end_chunk").abandon_chunk().unwrap();
        return true;
    }
    let room = if chunk.overlaps { 2 } else { 1 };
    if !chunk.left.is_empty() && chunk.held.len() < room && rng.chance(2, 3) {
        let number = chunk.left.remove(0);
        let cache = rig.calling("prefetch");
        if chunk.overlaps { cache.prefetch(layer(number)) } else { cache.materialize(layer(number)) }.unwrap();
        chunk.held.push((number, false));
        return false;
    }
    match chunk.held.first().copied() {
        Some((number, false)) => {
            let buffer = rig.calling("wait").wait(layer(number)).unwrap();
            rig.look_at_staged(chunk.streams.compute, number, buffer, chunk.padded);
            chunk.held[0].1 = true;
        }
        Some((number, true)) => {
            rig.calling("release").release(layer(number)).unwrap();
            chunk.held.remove(0);
        }
        None if chunk.left.is_empty() || rng.chance(1, 3) => {
            rig.calling("end_chunk").end_chunk().unwrap();
            return true;
        }
        None => {}
    }
    false
}

/// Everybody out and in again, to other slots.
fn bring_back(rig: &mut Rig, streams: Streams) {
    let residents = rig.cache.residents(7);
    rig.cache.reset().unwrap();
    match rig.calling("bring_back").bring_back(streams, &residents, 7) {
        Ok(_) => {}
        // Some are on their way behind a step.
        Err(error) => assert!(matches!(error, Error::Snapshot(SnapshotError::NotEmpty { .. })), "{error}"),
    }
    look_at_residents(rig, streams.compute);
}

/// A kernel that reads every slot.
fn look_at_residents(rig: &mut Rig, compute: Stream) {
    for number in 0..rig.cache.geometry().model().layer_count() as u32 {
        for expert in 0..3 {
            if let Some(slot) = rig.cache.residency().slot_of(layer(number), ExpertId::new(expert)) {
                rig.look_at_slots(compute, number, &[expert], &[slot]);
            }
        }
    }
}

fn rebuild(rig: &mut Rig, rng: &mut Rng) {
    let (model, constraints) = (rig.cache.geometry().model().clone(), rig.cache.geometry().constraints().clone());
    let most = 3 * model.layer_count() as u64;
    let budget = ftcache::Budget::Slots(most - rng.below(3));
    let geometry = Geometry::new(model, ftcache::Constraints { budget, ..constraints }).unwrap();
    let most_bytes = if rng.chance(3, 4) { u64::MAX } else { 0 };
    let report = rig.calling("rebuild").rebuild(geometry, Keep::WhatFits, most_bytes).unwrap();
    if report.staging.is_none_or(|staging| staging.is_err()) {
        let staging = Staging::dedicated(rig.cache.geometry(), 2);
        rig.cache.set_staging(staging, 0).unwrap();
    }
}

/// Three layers of one layout in nine slots, of which two buffers leave three.
#[allow(dead_code, reason = "each test file uses its own part")]
pub(crate) fn three_stable_slots() -> Geometry {
    Geometry::new(tagged_model(3, 2, &[("a", &[12, 2][..]); 3]), padded(9, Scope::Unified, 0, 1, 4)).unwrap()
}

/// A fill gathers rows of slots that a step then gives to others, over another copy stream or behind the step, or that
/// a hint does.
#[allow(dead_code, reason = "each test file uses its own part")]
pub(crate) fn overwrite_what_is_gathered(rig: &mut Rig, extras: Extras) {
    let Extras { later, hints } = extras;
    if hints {
        rig.calling("set_hints").set_hints(1).unwrap();
    }
    if later {
        rig.calling("set_later").set_later(LaterLimits { step_bytes: 40, flight_count: 2 }).unwrap();
    }
    let staging = Staging::borrowed(rig.cache.geometry()).unwrap();
    rig.calling("set_staging").set_staging(staging, 0).unwrap();
    let [compute, copy, other] = [rig.stream(), rig.stream(), rig.stream()];
    rig.fill(Streams { compute, copy });
    rig.calling("begin_chunk").begin_chunk(Streams { compute, copy }).unwrap();
    rig.calling("prefetch").prefetch(layer(2)).unwrap();
    let mut step = Step::new(layer(0));
    if later {
        step.misses =
            Misses::Hybrid { fetch: Fetch { rule: FetchRule::UpTo(0), most: None }, order: FetchOrder::LowestId };
    }
    if hints {
        // The last step uses none of the slots.
        rig.load(Streams::one(other), layer(1), &[]).unwrap();
        assert_eq!(rig.calling("hint").hint(layer(0), &experts(&[0, 1, 2]), 1 << 10).unwrap().started, 3);
    }
    rig.load(Streams { compute, copy: other }, step, &[0, 1, 2]).unwrap();
    let buffer = rig.calling("wait").wait(layer(2)).unwrap();
    rig.look_at_staged(compute, 2, buffer, false);
    rig.calling("release").release(layer(2)).unwrap();
    rig.calling("end_chunk").end_chunk().unwrap();
}

/// A chunk that is given up after a fill, and one with a step of other streams in it; steps take the slots under the
/// buffers at once.
#[allow(dead_code, reason = "each test file uses its own part")]
pub(crate) fn overwrite_what_was_staged(rig: &mut Rig) {
    let staging = Staging::borrowed(rig.cache.geometry()).unwrap();
    rig.calling("set_staging").set_staging(staging, 0).unwrap();
    let [chunk, step] = [(); 2].map(|()| Streams { compute: rig.stream(), copy: rig.stream() });
    rig.calling("begin_chunk").begin_chunk(chunk).unwrap();
    rig.calling("prefetch").prefetch(layer(0)).unwrap();
    rig.calling("end_chunk").abandon_chunk().unwrap();
    rig.load(Streams { copy: step.copy, ..chunk }, layer(1), &[0, 1, 2]).unwrap();
    rig.calling("begin_chunk").begin_chunk(chunk).unwrap();
    let slots = rig.load(step, layer(2), &[1]).unwrap();
    // So many kernels that other streams overtake them.
    (0..60).for_each(|_| rig.look_at_slots(step.compute, 2, &[1], &slots));
    rig.calling("prefetch").prefetch(layer(0)).unwrap();
    let buffer = rig.calling("wait").wait(layer(0)).unwrap();
    rig.look_at_staged(chunk.compute, 0, buffer, false);
    rig.calling("release").release(layer(0)).unwrap();
    rig.calling("end_chunk").end_chunk().unwrap();
    // The slot that the step's kernel reads has another expert next, without another call on its compute stream.
    rig.cache.forget_layer(layer(2)).unwrap();
    for number in [1, 0, 2] {
        rig.load(chunk, layer(number), &[0, 1, 2]).unwrap();
    }
}
