//! The kernels themselves, as far as it shows that they can be run: whether they decide right is for others.

mod common;

use common::{Rig, ok};

const EXPERTS: usize = 8;
const SLOTS: usize = 4;
/// Bytes of dynamic shared memory.
const SHARED: u32 = 28 * EXPERTS as u32;

/// Tables of one layer of eight experts in a pool of four slots.
struct Cache {
    tables: Vec<u64>,
    fault: u64,
    copies: u64,
    plans: u64,
}

fn longs(rig: &Rig, numbers: &[u64]) -> u64 {
    rig.memory_of(&numbers.iter().flat_map(|number| [*number as u32, (number >> 32) as u32]).collect::<Vec<u32>>())
}

fn cache(rig: &Rig) -> Cache {
    let fault = rig.pinned(&[0; 64]) as u64;
    let header = longs(rig, &[1, 0, fault, 0]);
    let place = rig.memory_of(&[0xFFFF_FFF8; EXPERTS]);
    let (active, routed) = (longs(rig, &[0; EXPERTS]), longs(rig, &[0; EXPERTS]));
    let (marked, carried) = (rig.memory_of(&[0; EXPERTS / 4]), rig.memory_of(&[0]));
    let (stats, plans, copies) = (longs(rig, &[0; 3 * 13]), longs(rig, &[0; 4]), longs(rig, &[0; EXPERTS]));
    let (stamp, owner) = (longs(rig, &[0; SLOTS]), rig.memory_of(&[u32::MAX; SLOTS]));
    let (pinned, pools) = (rig.memory_of(&[0]), rig.memory_of(&[0; 4]));
    let counts = [1 | (EXPERTS as u64) << 32, SLOTS as u64 | 1 << 32];
    let tables = [header, place, active, routed, marked, carried, stats, plans, copies, stamp, owner, pinned, pools];
    Cache { tables: tables.into_iter().chain(counts).collect(), fault, copies, plans }
}

/// Arguments of an admission of three routes, answered where they lie.
fn admission(cache: &Cache, routes: u64, generation: u64) -> Vec<u64> {
    let mut args = cache.tables.clone();
    args.push(generation);
    // The pool, the layer and phase, the routes, the answers, no map and no scratch memory.
    args.extend([0, SLOTS as u64, 0]);
    args.extend([routes, 1, 12, 3 | 4 << 32, 0, 0]);
    args.extend([routes, 12, u64::MAX, u64::MAX, 0, 0]);
    args
}

/// Two steps, and their answers.
fn two_steps(rig: &Rig, cache: &Cache, threads: u32) -> (Vec<u32>, Vec<u32>) {
    let (kernel, stream) = (rig.kernel("ftcache_admit"), rig.stream());
    let answer = |ids: [u32; 3]| {
        let routes = rig.memory_of(&ids);
        ok(rig.run(kernel, (1, threads, SHARED), stream, &admission(cache, routes, 1)[..]));
        rig.sync(stream);
        rig.words(routes, 3)
    };
    (answer([5, 2, 5]), answer([2, 7, 1]))
}

#[test]
fn admissions_run_and_touch_only_what_they_may() {
    for seed in 0..30 {
        for threads in [32, 64, 256, 1024] {
            let rig = Rig::seeded(seed);
            let cache = cache(&rig);
            let answers = two_steps(&rig, &cache, threads);
            // Free slots go first, misses ascending.
            assert_eq!(answers, (vec![1, 0, 1], vec![0, 3, 2]), "seed {seed}, {threads} threads");
            assert_eq!(rig.words(cache.plans, 3), [2, 3, 2]);
            assert_eq!(rig.words(cache.copies, 4), [2, 1, 3, 7]);
            rig.device.check();
            let report = rig.device.launch_report("ftcache_admit");
            assert_eq!((report.launches, report.barrier_ids.len() as u64), (2, report.barriers_most));
        }
    }
}

#[test]
fn each_barrier_of_an_admission_is_needed() {
    let rig = Rig::seeded(0);
    two_steps(&rig, &cache(&rig), 256);
    for id in rig.device.launch_report("ftcache_admit").barrier_ids {
        let told = |seed: u64| {
            let rig = Rig::seeded(seed);
            rig.device.skip_barrier("ftcache_admit", Some(id));
            two_steps(&rig, &cache(&rig), 256);
            !rig.device.violations().is_empty()
        };
        assert!((0..20).any(told), "barrier {id}");
    }
}

#[test]
fn a_refused_admission_answers_and_tells() {
    for seed in 0..10 {
        let rig = Rig::seeded(seed);
        let cache = cache(&rig);
        let (kernel, stream, routes) = (rig.kernel("ftcache_admit"), rig.stream(), rig.memory_of(&[1, 2, 3]));
        for table in &cache.tables[1..13] {
            ok((rig.cu.cuMemFree_v2)(*table));
        }
        ok(rig.run(kernel, (1, 64, SHARED), stream, &admission(&cache, routes, 2)[..]));
        rig.sync(stream);
        assert_eq!(rig.words(routes, 3), [u32::MAX; 3]);
        assert_eq!(rig.words(cache.fault, 1), [3]);
        rig.device.check();
    }
}

#[test]
fn the_other_kernels_run_and_touch_only_what_they_may() {
    for seed in 0..20 {
        let rig = Rig::seeded(seed);
        let cache = cache(&rig);
        two_steps(&rig, &cache, 64);
        let stream = rig.stream();
        let run = |name: &str, shape: (u32, u32, u32), tail: &[u64]| {
            let args: Vec<u64> = cache.tables.iter().copied().chain([1]).chain(tail.iter().copied()).collect();
            ok(rig.run(rig.kernel(name), shape, stream, &args[..]));
            rig.sync(stream);
        };
        let (reading, stats) = (rig.pinned(&[0; 48]) as u64, rig.pinned(&[0; 8 * 39]) as u64);
        // And no scores.
        run("ftcache_statistics", (1, 64, 0), &[&[reading, stats][..], &[0; 17]].concat());
        // Begun and ended once, the generation, the step, a digest, and how many there are; steps of decode, their
        // routes, and hits.
        assert_eq!([0, 8, 16, 24, 40].map(|at| rig.words(reading + at, 1)[0]), [1, 1, 1, 2, 4], "seed {seed}");
        assert_eq!([0, 8, 16].map(|at| rig.words(stats + at, 1)[0]), [2, 6, 1]);

        let lists = [rig.memory_of(&[0]), longs(&rig, &[0; EXPERTS]), rig.memory_of(&[0]), longs(&rig, &[0; EXPERTS])];
        // Of a chunk that is not open nothing is listed.
        run("ftcache_compact_hits", (1, 32, 0), &[3 << 32, 0, lists[0], lists[1], lists[2], lists[3]]);
        assert_eq!(rig.words(cache.fault, 4), [7, 0, 1, 0]);
        assert_eq!((rig.words(lists[0], 1), rig.words(lists[2], 1)), (vec![0], vec![0]));
        run("ftcache_compact_hits", (1, 32, 0), &[0, 0, lists[0], lists[1], lists[2], lists[3]]);
        assert_eq!((rig.words(lists[0], 1), rig.words(lists[2], 1)), (vec![4], vec![4]));
        assert_eq!(rig.words(lists[1], 8), [1, 2, 2, 0, 5, 1, 7, 3]);
        assert_eq!(rig.words(lists[3], 8), [0, 0, 3, 3, 4, 4, 6, 6]);

        // Two banks of rows of 20 and 3 bytes: all from slots or the host, and all from the host.
        let host = rig.pinned(&(0..=255).collect::<Vec<u8>>()) as u64;
        let (slots, target) = (rig.memory_of(&[0xEEEE_EEEE; 20]), rig.memory_of(&[0; 64]));
        let banks = [host, 20, slots, 20, target, 20, 20, 4, host, 5, 0, 0, target + 160, 3, 3, 1 << 32];
        let banks = longs(&rig, &banks);
        let args = [cache.tables[0], 1, cache.tables[12], 0, cache.tables[1], banks, EXPERTS as u64 | 2 << 32, 0];
        ok(rig.run(rig.kernel("ftcache_materialize"), (3, 64, 0), stream, &args));
        rig.sync(stream);
        for expert in 0..EXPERTS {
            let (row, short) = (target + 20 * expert as u64, target + 160 + 3 * expert as u64);
            let hit = [1, 2, 5, 7].contains(&expert);
            let first = if hit { 0xEE } else { 20 * expert as u8 };
            assert_eq!(rig.device.peek(row, 1), [first], "seed {seed}, expert {expert}");
            assert_eq!(rig.device.peek(short, 3), [0, 1, 2].map(|at| 5 * expert as u8 + at));
        }

        let mut spans = vec![target + 1, 20, 3, 7, target + 160, 1, 5, 1];
        spans.resize(4 * 32, 0);
        // Two spans of no cache, and then of one that was rebuilt since, which are left alone.
        spans.extend([2, 0, 0, 0, 0]);
        ok(rig.run(rig.kernel("ftcache_zero"), (2, 32, 0), stream, &spans[..]));
        rig.sync(stream);
        let mut stale = spans.clone();
        (stale[0], stale[129], stale[130]) = (target + 20, cache.tables[0], 7);
        ok(rig.run(rig.kernel("ftcache_zero"), (2, 32, 0), stream, &stale[..]));
        rig.sync(stream);
        assert_eq!(rig.device.peek(target + 20, 5), [0xEE, 0, 0, 0, 0xEE]);

        // Two slots of the pool, and one withheld.
        run("ftcache_invalidate", (2, 32, 0), &[0, 4, 2 << 32, 3 | 1 << 32]);
        assert_eq!(rig.words(cache.tables[10], 4), [u32::MAX, u32::MAX, 1, 7]);
        assert_eq!(rig.words(cache.tables[12], 4), [0, 0, 1, 0]);
        run("ftcache_reset", (1, 32, 0), &[]);
        assert_eq!(rig.words(cache.tables[10], 4), [u32::MAX; 4]);
        rig.device.check();
    }
}

#[test]
fn hybrid_admissions_run_and_touch_only_what_they_may() {
    for seed in 0..20 {
        for generation in [1, 2] {
            let rig = Rig::seeded(seed);
            let cache = cache(&rig);
            let routes = rig.memory_of(&[5, 2, 5]);
            let (ids, split) = (rig.memory_of(&[0; 3]), rig.memory_of(&[7, 8, 9, 0, 0, 0]));
            let mut args = admission(&cache, routes, generation);
            // Up to one miss, the lowest id first, of any number; who the CPU computes; weights, in place and beside.
            args.extend([1 << 32, 1 | 9 << 32, ids, 12, 0xFFFF_FFFE, split, 12, split, 12, split + 12, 12, 4]);
            let stream = rig.stream();
            ok(rig.run(rig.kernel("ftcache_admit_hybrid"), (1, 64, SHARED), stream, &args[..]));
            rig.sync(stream);
            let (answer, cpu, weights) = match generation {
                1 => ([u32::MAX, 0, u32::MAX], [5, 0xFFFF_FFFE, 5], [0, 8, 0, 7, 0, 9]),
                _ => ([u32::MAX; 3], [0xFFFF_FFFE; 3], [0; 6]),
            };
            assert_eq!(rig.words(routes, 3), answer, "seed {seed}, generation {generation}");
            assert_eq!((rig.words(ids, 3), rig.words(split, 6)), (cpu.to_vec(), weights.to_vec()));
            rig.device.check();
        }
    }
}
