//! Launches among other work: order, captures, and what is declared when.

mod common;

use common::{Rig, ok};

#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Numbers {
    input: u64,
    output: u64,
    count: u64,
    choice: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Gather {
    header: u64,
    generation: u64,
    entry_count: u64,
    entries: u64,
    banks: u64,
    bank_count: u32,
    entry_max: u32,
    layer: u32,
    reserved: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Tables {
    header: u64,
    place: u64,
    beside: [u64; 5],
    plans: u64,
    copies: u64,
    stamp: u64,
    owner: u64,
    pinned: u64,
    pools: u64,
    counts: [u32; 4],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Await {
    tables: Tables,
    generation: u64,
    pool: [u32; 4],
    layer: u32,
    word_value: u32,
    word: u64,
    patience: u64,
}

/// A sum of 64 words, and a copy of the words before it or behind it in another stream.
#[test]
fn launches_race_with_other_work() {
    for seed in 0..20 {
        for (ordered, launch_first) in [(true, true), (true, false), (false, true), (false, false)] {
            let rig = Rig::seeded(seed);
            let (input, output) = (rig.memory_of(&[1; 64]), rig.memory_of(&[0; 64]));
            let row = rig.pinned(&2_u32.to_le_bytes().repeat(64));
            let (kernel, compute, upload) = (rig.kernel("emu_test_sum"), rig.stream(), rig.stream());
            let args = Numbers { input, output, count: 64, choice: 0 };
            let launch = || ok(rig.run(kernel, (1, 32, 0), compute, &args));
            let copy = || rig.up(input, row, 256, upload);
            if launch_first {
                launch();
                if ordered {
                    rig.order(compute, upload);
                }
                copy();
            } else {
                copy();
                if ordered {
                    rig.order(upload, compute);
                }
                launch();
            }
            ok((rig.cu.cuCtxSynchronize)());
            let races = rig.device.races();
            assert_eq!(races.len(), usize::from(!ordered), "seed {seed}: {races:?}");
            if ordered {
                assert_eq!(rig.words(output, 1), [if launch_first { 64 } else { 128 }]);
            } else {
                assert!(races[0].contains("emu_test_sum") && races[0].contains("cuMemcpyHtoDAsync"), "{races:?}");
            }
            // Memory beside what it touches is nobody's business.
            launch();
            rig.device.check();
        }
    }
}

#[test]
fn launches_are_captured_and_replayed() {
    for seed in 0..20 {
        let rig = Rig::seeded(seed);
        let (input, output) = (rig.memory_of(&[0; 64]), rig.memory_of(&[0; 64]));
        let row = rig.pinned(&[0; 256]);
        let (kernel, stream) = (rig.kernel("emu_test_sum"), rig.stream());
        ok((rig.cu.cuStreamBeginCapture_v2)(stream, 0));
        rig.up(input, row, 256, stream);
        let mut args = Numbers { input, output, count: 64, choice: 0 };
        ok(rig.run(kernel, (1, 64, 0), stream, &args));
        // Arguments are taken when the call is made.
        args.count = 1;
        assert_eq!(std::hint::black_box(&args).count, 1);
        let (mut graph, mut exec) = (0, 0);
        ok((rig.cu.cuStreamEndCapture)(stream, &mut graph));
        ok((rig.cu.cuGraphInstantiateWithFlags)(&mut exec, graph, 0));
        assert_eq!(rig.device.launch_report("emu_test_sum").launches, 0);
        for round in 1..4_u8 {
            let word = u32::from(round).to_le_bytes();
            // SAFETY: pinned memory of this length, and what read it was waited for.
            unsafe { std::ptr::copy_nonoverlapping(word.repeat(64).as_ptr(), row.cast(), 256) };
            ok((rig.cu.cuGraphLaunch)(exec, stream));
            rig.sync(stream);
            assert_eq!(rig.words(output, 1), [64 * u32::from(round)], "seed {seed}");
        }
        assert_eq!(rig.device.launch_report("emu_test_sum").launches, 3);
        rig.device.check();
        ok((rig.cu.cuMemFree_v2)(output));
        assert_eq!((rig.cu.cuGraphLaunch)(exec, stream), 1);
        rig.one_violation("output of emu_test_sum");
    }
}

/// The header of a cache with a fault record, and a gather of two rows of 20 bytes by a table that is uploaded.
struct Cache {
    header: u64,
    fault: u64,
    source: u64,
    target: u64,
    args: Gather,
}

fn cache(rig: &Rig, generation: u64) -> Cache {
    let fault = rig.pinned(&[0; 64]) as u64;
    let quads =
        |words: &[u64]| -> Vec<u32> { words.iter().flat_map(|word| [*word as u32, (word >> 32) as u32]).collect() };
    let header = rig.memory_of(&quads(&[generation, 9, fault, 0]));
    let source = rig.pinned(&(0..96).collect::<Vec<u8>>()) as u64;
    let target = rig.memory_of(&[0; 24]);
    let entry_count = rig.memory_of(&[2]);
    // Row 2 to row 0, row 1 to row 3.
    let entries = rig.memory_of(&[0, 2, 3, 1, 7, 7]);
    let banks = rig.memory_of(&quads(&[source, 24, target, 20, 20, 4 << 32 | 4]));
    let args = Gather {
        header,
        generation: 3,
        entry_count,
        entries,
        banks,
        bank_count: 1,
        entry_max: 3,
        layer: 5,
        reserved: 0,
    };
    Cache { header, fault, source, target, args }
}

#[test]
fn rows_are_gathered_and_only_what_is_meant_is_touched() {
    for seed in 0..20 {
        for name in ["ftcache_gather_rows", "ftcache_gather_slots"] {
            let rig = Rig::seeded(seed);
            let cache = cache(&rig, 3);
            let (kernel, stream, other) = (rig.kernel(name), rig.stream(), rig.stream());
            ok(rig.run(kernel, (3, 64, 0), stream, &cache.args));
            // Between the rows of the source, and what tells of trouble, nothing conflicts.
            rig.device.host_access((cache.source + 20) as *const u8, 4, true);
            rig.device.host_access(cache.fault as *const u8, 64, true);
            assert!(rig.device.races().is_empty());
            rig.fill(cache.target + 40, 1, 4, other);
            assert_eq!(rig.device.races().len(), 1);
            ok((rig.cu.cuCtxSynchronize)());
            assert_eq!(rig.device.peek(cache.target, 20), (48..68).collect::<Vec<u8>>(), "seed {seed}");
            assert_eq!(rig.device.peek(cache.target + 60, 20), (24..44).collect::<Vec<u8>>());
            rig.device.check();
        }
    }
}

#[test]
fn a_launch_of_another_generation_touches_nothing_of_the_cache() {
    for seed in 0..20 {
        let rig = Rig::seeded(seed);
        let cache = cache(&rig, 4);
        let (kernel, stream) = (rig.kernel("ftcache_gather_rows"), rig.stream());
        for memory in [cache.target, cache.args.banks, cache.args.entries, cache.args.entry_count] {
            ok((rig.cu.cuMemFree_v2)(memory));
        }
        ok(rig.run(kernel, (2, 32, 0), stream, &cache.args));
        rig.sync(stream);
        // The code of a stale launch, the layer, and that it is one.
        assert_eq!(rig.words(cache.fault, 3), [3, 5, 1]);
        rig.device.check();
    }
}

#[test]
fn what_lies_in_memory_counts_when_the_launch_runs() {
    for seed in 0..20 {
        let rig = Rig::seeded(seed);
        // The header says something else until a copy arrives that is on its way as the launch is enqueued.
        let cache = cache(&rig, 4);
        let current = rig.pinned(&3_u64.to_le_bytes());
        let (kernel, stream, other) = (rig.kernel("ftcache_gather_rows"), rig.stream(), rig.stream());
        rig.up(cache.header, current, 8, stream);
        ok(rig.run(kernel, (1, 64, 0), stream, &cache.args));
        rig.sync(stream);
        assert_eq!(rig.device.peek(cache.target, 20), (48..68).collect::<Vec<u8>>(), "seed {seed}");
        rig.device.check();
        // What is found only then races too, whichever was enqueued first.
        for launch_first in [false, true] {
            let old = rig.pinned(&4_u64.to_le_bytes());
            let make_current_late = || {
                rig.up(cache.header, old, 8, stream);
                rig.sync(stream);
                rig.up(cache.header, current, 8, stream);
            };
            make_current_late();
            let launch = || ok(rig.run(kernel, (1, 64, 0), stream, &cache.args));
            let fill = || rig.fill(cache.target + 60, 1, 20, other);
            if launch_first {
                launch();
                fill();
            } else {
                fill();
                launch();
            }
            ok((rig.cu.cuCtxSynchronize)());
            let races = rig.device.races();
            assert_eq!(races.len(), 1, "seed {seed}: {races:?}");
            // What stands behind the launch does not.
            make_current_late();
            launch();
            rig.order(stream, other);
            fill();
            ok((rig.cu.cuCtxSynchronize)());
            rig.device.check();
        }
    }
}

#[test]
fn a_wait_for_the_hosts_word_ends_with_it_or_frees_what_was_to_be_copied() {
    for seed in 0..20 {
        let rig = Rig::seeded(seed);
        let cache = cache(&rig, 3);
        let word = rig.pinned(&[0; 4]) as u64;
        // Experts 1 and 2 of the one layer were put into slots 3 and 0 of five; slot 3 is pinned, and expert 3 in slot 1.
        let place = rig.memory_of(&[!7, 3, 0, 1]);
        let (owner, stamp) = (rig.memory_of(&[2, 3, !0, 1, !0]), rig.memory_of(&[9, 0, 8, 0, 0, 0, 9, 0, 0, 0]));
        let (pinned, pools) = (rig.memory_of(&[1 << 24, 0]), rig.memory_of(&[1, 1, 0, 0]));
        let (plans, copies) = (rig.memory_of(&[2, 2, 2, 0, 9, 0, 0, 0]), rig.memory_of(&[3, 1, 0, 2, 7, 7, 7, 7]));
        let (header, beside, counts) = (cache.header, [0; 5], [1, 4, 5, 1]);
        let tables = Tables { header, place, beside, plans, copies, stamp, owner, pinned, pools, counts };
        let pool = [0, 0, 5, 0];
        let mut args = Await { tables, generation: 3, pool, layer: 0, word_value: 8, word, patience: u64::MAX };
        let (kernel, stream, other) = (rig.kernel("ftcache_await"), rig.stream(), rig.stream());
        ok(rig.run(kernel, (1, 64, 0), stream, &args));
        // Another stream may write the word, and nothing else of it be touched.
        ok((rig.cu.cuStreamWriteValue32_v2)(other, word, 7, 0));
        assert!(rig.device.races().is_empty());
        rig.sync(other);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(std::time::Duration::from_millis(1));
                // SAFETY: a word of pinned memory that is only touched atomically.
                let word = unsafe { std::sync::atomic::AtomicU32::from_ptr(word as *mut u32) };
                word.store(8, std::sync::atomic::Ordering::Release);
            });
            rig.sync(stream);
        });
        assert_eq!((rig.words(place, 4), rig.words(plans, 1)), (vec![!7, 3, 0, 1], vec![2]), "seed {seed}");
        // Nobody raises it further.
        (args.word_value, args.patience) = (9, 50);
        ok(rig.run(kernel, (1, 64, 0), stream, &args));
        rig.sync(stream);
        assert_eq!(rig.words(cache.fault, 3), [6, 0, 1], "seed {seed}");
        assert_eq!((rig.words(place, 4), rig.words(plans, 1)), (vec![!7, !4, !4, 1], vec![0]), "seed {seed}");
        assert_eq!(rig.words(owner, 5), [!0, 3, !0, !0, !0], "seed {seed}");
        assert_eq!(rig.words(stamp, 10), [0, 0, 8, 0, 0, 0, 0, 0, 0, 0], "seed {seed}");
        assert_eq!((rig.words(pinned, 1), rig.words(pools, 2)), (vec![0], vec![0, 1]), "seed {seed}");
        rig.device.check();
    }
}

#[test]
fn a_launch_fails_late() {
    let rig = Rig::seeded(1);
    let (input, output) = (rig.memory_of(&[1; 64]), rig.memory_of(&[0; 64]));
    let (kernel, stream) = (rig.kernel("emu_test_sum"), rig.stream());
    rig.device.fail_late(0, 719);
    ok(rig.run(kernel, (1, 32, 0), stream, &Numbers { input, output, count: 64, choice: 0 }));
    assert_eq!((rig.cu.cuStreamSynchronize)(stream), 719);
    assert_eq!(rig.words(output, 1), [0]);
    assert_eq!(rig.device.launch_report("emu_test_sum").launches, 0);
    rig.device.check();
}
