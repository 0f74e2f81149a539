//! Barriers: how many an admission has, and that none can be left out.
//!
//! Only the emulated driver can count them and leave one out. It compares all accesses of a launch, so what a barrier
//! orders is missed whatever order the threads happen to run in.

use bytemuck::Zeroable;
use ftcache_policy::{Eviction, ExpertId, FetchRule};
use ftcache_residency::{Cache, Phase, Plan, Step};
use ftcache_testkit::Rng;
use ftcache_transfer::{Device, Kernel};

use crate::awaits;
use crate::cuda_world::CudaWorld;
use crate::mirror::{Bench, CompactHits, GENERATION, Guard, Scores, Statistics, Tables};
use crate::rig::{Form, Rig};
use crate::states::{Resident, decode, filled, fraction, hybrid, one_pool};
use crate::support::seeded;

const PLAIN: Form = Form::PLAIN;
const MISSES: [u32; 5] = [0, 1, 8, 64, 512];
const WIDTHS: [u32; 4] = [1, 10, 120, 1280];

/// A layer of 1,024 experts of which the first 512 are in as many slots, beside as many of others'; so many experts of
/// those that are in none, and routes to all of them and to some that are.
fn routes(width: u32, misses: u32) -> Option<Vec<i64>> {
    let hits = (width - misses.min(width)).min(300);
    let distinct = misses + hits;
    (misses <= width && distinct > 0).then(|| {
        (0..width)
            .map(|route| match route % distinct {
                miss if miss < misses => i64::from(512 + miss),
                hit => i64::from(hit - misses),
            })
            .collect()
    })
}

/// That cache at a step, with these stamps, none of them the step's own.
fn cache(stamps: &[u64]) -> Cache {
    assert_eq!(stamps.len(), 1024);
    let cache = one_pool(2, 1024, 1024);
    let residents = stamps.iter().enumerate().filter(|(_, stamp)| **stamp > 0).map(|(slot, &stamp)| {
        let expert = if slot < 512 { slot as u32 } else { 1024 + slot as u32 };
        Resident { slot, expert, stamp }
    });
    filled(cache, stamps.iter().copied().max().unwrap_or(0), residents)
}

/// Barriers that one admission has passed.
#[track_caller]
fn barriers(cache: &Cache, step: Step, ids: &[i64]) -> u64 {
    let mut rig = Rig::in_world(CudaWorld::emulated(seeded(1)), cache.clone());
    rig.admit(step, ids, PLAIN).unwrap();
    assert_eq!(rig.tables.take_faults(), None);
    let name = match (step == decode(0), cache.eviction() == Eviction::Lru) {
        (true, true) => "ftcache_admit",
        (false, true) => "ftcache_admit_hybrid",
        (true, false) => "ftcache_admit_scored",
        (false, false) => "ftcache_admit_hybrid_scored",
    };
    let report = rig.world.emulated.as_ref().unwrap().launch_report(name);
    rig.end();
    assert_eq!((report.launches, report.barriers_most), (1, report.barriers_last));
    report.barriers_last
}

/// Digits of a step in 256ths.
fn digits(step: u64) -> u64 {
    u64::from(64 - step.leading_zeros()).div_ceil(8)
}

#[test]
fn a_step_has_as_many_barriers_as_its_counter_has_digits_and_seven_more() {
    // All slots are of one stamp, so that no digit parts victims from the rest: the most rounds there are.
    for last in [99, 60_000, (1 << 24) - 2, (1 << 32) - 2, 1 << 32, 1 << 60] {
        let cache = cache(&[last; 1024]);
        for step in [decode(0), hybrid(0, FetchRule::PreferFetch(fraction(1.0)))] {
            for (width, misses) in WIDTHS.into_iter().flat_map(|width| MISSES.map(|misses| (width, misses))) {
                let Some(ids) = routes(width, misses) else { continue };
                let wanted = if misses == 0 { 3 } else { 3 + 1 + digits(last + 1) + 3 };
                assert_eq!(
                    barriers(&cache, step, &ids),
                    wanted,
                    "{misses} misses of {width} routes behind step {last}"
                );
            }
        }
    }
}

/// Below, at and above what a block of 1,024 threads keeps of stamps, which is four a thread.
#[test]
fn the_number_of_slots_plays_no_part() {
    for slot_count in [100, 2_100, 5_000] {
        let residents =
            (0..slot_count as usize).map(|slot| Resident { slot, expert: 1024 + slot as u32, stamp: 60_000 });
        let cache = filled(one_pool(8, 1024, slot_count), 60_000, residents);
        for misses in [1, 8, 64] {
            let ids: Vec<i64> = (0..misses).collect();
            assert_eq!(barriers(&cache, decode(0), &ids), 3 + 1 + 2 + 3, "{misses} misses, {slot_count} slots");
        }
    }
}

#[test]
fn a_step_ends_its_search_as_soon_as_a_digit_parts_the_victims_from_the_rest() {
    for seed in 0..3 {
        let mut rng = Rng::new(seed);
        let bits = [16, 24, 40][seed as usize];
        let stamps: Vec<u64> = (0..1024).map(|_| (rng.bits() >> (64 - bits)).max(1)).collect();
        let most = digits(stamps.iter().max().unwrap() + 1);
        let cache = cache(&stamps);
        for (width, misses) in WIDTHS.into_iter().flat_map(|width| MISSES.map(|misses| (width, misses))) {
            let Some(ids) = routes(width, misses) else { continue };
            let found = barriers(&cache, decode(0), &ids);
            let wanted = if misses == 0 { 3..=3 } else { 3 + 1 + 1 + 3..=3 + 1 + most + 3 };
            assert!(wanted.contains(&found), "seed {seed}: {found} for {misses} misses of {width} routes");
        }
    }
    // One free slot, and one miss: the first digit says so, however many there are.
    let mut stamps = [1 << 40; 1024];
    stamps[77] = 0;
    let one = cache(&stamps);
    assert_eq!(barriers(&one, decode(0), &[512]), 8);
    assert_eq!(barriers(&one, decode(0), &[512, 513]), 7 + 6);
}

#[test]
fn a_hybrid_step_that_fetches_nothing_has_the_barriers_of_a_warm_one() {
    let cache = cache(&[9; 1024]);
    for width in WIDTHS {
        let ids = routes(width, width.min(64)).unwrap();
        assert_eq!(barriers(&cache, hybrid(0, FetchRule::UpTo(0)), &ids), 3, "{width} routes");
    }
}

/// One more, since what a step counts is settled after all have counted; and two if there are followers to be counted and
/// keys to be read.
#[test]
fn a_step_under_scores_has_as_many_barriers_whatever_its_number_is() {
    for (rule, warm) in [(Eviction::Lfu, 4), (Eviction::Cyclic, 4), (Eviction::Learned, 5)] {
        for last in [99, 1 << 60] {
            let mut cache = cache(&[last; 1024]);
            // Nobody was counted, so all keys are alike, and no digit parts victims from the rest.
            cache.set_eviction(rule).unwrap();
            for step in [decode(0), hybrid(0, FetchRule::PreferFetch(fraction(1.0)))] {
                for (width, misses) in WIDTHS.into_iter().flat_map(|width| MISSES.map(|misses| (width, misses))) {
                    let Some(ids) = routes(width, misses) else { continue };
                    let wanted = if misses == 0 { warm } else { warm + 1 + 7 + 3 };
                    assert_eq!(barriers(&cache, step, &ids), wanted, "{rule}: {misses} misses of {width} routes");
                }
            }
            // What is not decode is not counted.
            assert_eq!(barriers(&cache, hybrid(0, FetchRule::UpTo(0)), &[512]), warm, "{rule}");
            let prefill = Step { phase: Phase::Prefill, ..hybrid(0, FetchRule::UpTo(1)) };
            assert_eq!(barriers(&cache, prefill, &[0]), 3, "{rule}");
            assert_eq!(barriers(&cache, prefill, &[512]), 4 + 7 + 3, "{rule}");
        }
    }
}

#[test]
fn kernels_have_the_barriers_that_are_numbered_and_no_others() {
    let mut rig = Rig::in_world(CudaWorld::emulated(seeded(2)), one_pool(2, 40, 30));
    for step in [decode(0), hybrid(1, FetchRule::UpTo(4))] {
        rig.step(step, &[3, 4, 5], PLAIN, "misses");
    }
    rig.change_rule(Eviction::Learned);
    for step in [decode(0), hybrid(1, FetchRule::UpTo(4))] {
        rig.step(step, &[6, 7, 8], PLAIN, "misses");
    }
    rig.tables.request_reading(&mut rig.device, rig.stream).unwrap();
    rig.tables.reset(&mut rig.device, rig.stream).unwrap();
    rig.tables.withhold(&mut rig.device, rig.stream, ftcache_policy::PoolId::new(0), 0).unwrap();
    rig.device.synchronize(rig.stream).unwrap();
    let ids = |name| rig.world.emulated.as_ref().unwrap().launch_report(name).barrier_ids;
    for (name, wanted) in [
        ("ftcache_admit", (0..8).collect()),
        ("ftcache_admit_hybrid", (0..8).collect()),
        ("ftcache_admit_scored", (0..10).collect()),
        ("ftcache_admit_hybrid_scored", (0..10).collect()),
        ("ftcache_statistics", vec![0, 1]),
        ("ftcache_reset", vec![]),
        ("ftcache_invalidate", vec![]),
    ] {
        assert_eq!(ids(name), wanted, "{name}");
    }
    rig.host.reset();
    rig.end();
}

// Each left out.

const SEEDS: u64 = 12;

/// How often a run without a barrier is told as a race, or comes to something wrong. With all, never.
#[track_caller]
fn caught(kernel: Kernel, ids: std::ops::Range<u32>, run: impl Fn(u64, Option<u32>) -> bool) {
    for seed in 0..SEEDS {
        assert!(!run(seed, None), "{kernel:?}, seed {seed}, with all barriers");
    }
    for id in ids {
        let missed: Vec<u64> = (0..SEEDS).filter(|&seed| !run(seed, Some(id))).collect();
        assert!(missed.is_empty(), "{kernel:?} without barrier {id}: seeds {missed:?} of {SEEDS} see nothing");
    }
}

/// Whether an admission of hits and misses goes wrong.
fn admission(seed: u64, step: Step, name: &str, skipped: Option<u32>) -> bool {
    let mut rng = Rng::new(seed);
    // No expert is in the slot of its own number, which would be the same thread's.
    let resident = |expert: u32| Resident {
        slot: (expert as usize * 37 + 5) % 96,
        expert,
        stamp: 1 + (u64::from(expert) + seed) * 8121 % 70_000,
    };
    let cache = filled(one_pool(2, 120, 96), 70_000, (0..96).map(resident));
    let ids: Vec<i64> = (0..100).map(|_| rng.below(120) as i64).chain([100, 101, 102, 0, 1]).collect();
    goes_wrong(seed, cache, step, &ids, name, skipped)
}

/// The same under a rule that learns, with steps that are followed: each expert has followed itself.
fn scored_admission(seed: u64, step: Step, name: &str, skipped: Option<u32>) -> bool {
    let mut cache = one_pool(3, 120, 96);
    cache.set_eviction(Eviction::Learned).unwrap();
    let mut rng = Rng::new(seed);
    let mut plan = Plan::new();
    let mut ids = Vec::new();
    for turn in 0..60 {
        // Six of those before, and six others.
        ids = ids.into_iter().take(6).chain((0..6).map(|_| rng.below(120) as i64)).collect();
        let routes: Vec<ExpertId> = ids.iter().map(|&id| ExpertId::new(id as u32)).collect();
        cache.ensure(decode(turn % 3), &routes, &mut plan).unwrap().commit();
    }
    let absent = (0..120).map(ExpertId::new).filter(|&expert| cache.slot_of(step.layer, expert).is_none());
    ids.extend(absent.take(3).map(|expert| i64::from(expert.get())));
    goes_wrong(seed, cache, step, &ids, name, skipped)
}

fn goes_wrong(seed: u64, cache: Cache, step: Step, ids: &[i64], name: &str, skipped: Option<u32>) -> bool {
    let mut rig = Rig::in_world(CudaWorld::emulated(seeded(seed)), cache);
    rig.tables.set_threads(32 * (2 + seed as u32 % 3)).unwrap();
    let form = Form { map: true, ..PLAIN };
    rig.world.emulated.as_ref().unwrap().skip_barrier(name, skipped);
    let answer = rig.admit(step, ids, form).unwrap();
    let expected = rig.expected(step, ids, form).unwrap();
    let emulated = rig.world.emulated.as_ref().unwrap();
    emulated.skip_barrier(name, None);
    let told = emulated.violations();
    let is_right = answer == expected && rig.tables.take_faults().is_none();
    rig.end();
    !told.is_empty() || !is_right
}

#[test]
fn an_admission_needs_every_one_of_its_barriers() {
    caught(Kernel::Admit, 0..8, |seed, id| admission(seed, decode(0), "ftcache_admit", id));
    let step = hybrid(0, FetchRule::PreferFetch(fraction(0.7)));
    caught(Kernel::AdmitHybrid, 0..8, |seed, id| admission(seed, step, "ftcache_admit_hybrid", id));
    let plain = |seed, id| scored_admission(seed, decode(0), "ftcache_admit_scored", id);
    caught(Kernel::AdmitScored, 0..10, plain);
    let hybrid = |seed, id| scored_admission(seed, step, "ftcache_admit_hybrid_scored", id);
    caught(Kernel::AdmitHybridScored, 0..10, hybrid);
}

#[test]
fn a_wait_for_the_host_needs_its_barrier() {
    caught(Kernel::Await, 0..1, awaits::goes_wrong);
}

/// Whether the lists of a layer go wrong.
fn compact(seed: u64, skipped: Option<u32>) -> bool {
    let mut bench = Bench::new(CudaWorld::emulated(seeded(seed)));
    let places: Vec<u32> = (0..200).map(|row| if row % 3 == 0 { row } else { u32::MAX - 7 }).collect();
    let lists = [400, 400, 2].map(|words| bench.memory(bytemuck::cast_slice(&vec![0_u32; words])));
    let at = lists.map(|list| bench.device.address(list).unwrap());
    let (header, place) = (bench.header_address, bench.items(&places));
    let tables = Tables { header, place, layer_count: 1, expert_count: 200, ..Tables::zeroed() };
    let arguments = CompactHits {
        tables,
        generation: GENERATION,
        guard: Guard::zeroed(),
        layer: 0,
        reserved: 0,
        hit_count: at[2],
        hits: at[0],
        miss_count: at[2] + 4,
        misses: at[1],
    };
    bench.world.emulated.as_ref().unwrap().skip_barrier("ftcache_compact_hits", skipped);
    bench.launch(Kernel::CompactHits, (1, 96), &arguments);
    let counts: Vec<u32> = bench.read_items(lists[2], 2);
    let told = bench.world.emulated.as_ref().unwrap().violations();
    bench.end();
    !told.is_empty() || counts != [67, 133]
}

#[test]
fn lists_need_their_barrier() {
    caught(Kernel::CompactHits, 0..1, compact);
}

/// Whether a reading goes wrong: of slots, or of scores beside slots that are free.
fn reading(seed: u64, skipped: Option<u32>) -> bool {
    let mut bench = Bench::new(CudaWorld::emulated(seeded(seed)));
    let is_scored = seed % 2 == 1;
    let tables = Tables {
        header: bench.header_address,
        owner: bench.items(&[if is_scored { u32::MAX } else { 5 }; 300]),
        stamp: bench.items(&[9_u64; 300]),
        stats: bench.items(&[1_u64; 39]),
        layer_count: 1,
        expert_count: 8,
        slot_count: 300,
        ..Tables::zeroed()
    };
    let scores = Scores {
        weights: bench.items(&[1_u32; 7]),
        turns: bench.items(&[9_u32]),
        counts: bench.items(&[3_u32; 48]),
        totals: bench.items(&[24_u64; 7]),
        gains: bench.items(&[2_u64; 7]),
        rule: is_scored.into(),
        ..Scores::zeroed()
    };
    let arguments = Statistics {
        tables,
        generation: GENERATION,
        reading: bench.items(&[0_u64; 6]),
        stats: bench.items(&[0_u64; 39]),
        scores,
    };
    bench.world.emulated.as_ref().unwrap().skip_barrier("ftcache_statistics", skipped);
    bench.launch(Kernel::Statistics, (1, 128), &arguments);
    bench.device.synchronize(bench.stream).unwrap();
    let told = bench.world.emulated.as_ref().unwrap().violations();
    bench.end();
    !told.is_empty()
}

#[test]
fn a_reading_needs_its_barriers() {
    caught(Kernel::Statistics, 0..2, reading);
}
