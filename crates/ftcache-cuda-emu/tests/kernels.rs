//! Running kernels: threads that meet, the order they run in, and what they find in shared memory.

mod common;

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};

use common::{Rig, ok};
use ftcache_cuda_emu::client::Config;

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
struct Meeting {
    memory: u64,
    count: u64,
    choice: u32,
    thread: u32,
}

/// Launches and waits.
#[track_caller]
fn run<T>(rig: &Rig, name: &str, shape: (u32, u32, u32), args: &T) {
    let (kernel, stream) = (rig.kernel(name), rig.stream());
    ok(rig.run(kernel, shape, stream, args));
    rig.sync(stream);
}

#[test]
fn sums_are_right_for_every_seed_and_shape() {
    for seed in 0..60 {
        let rig = Rig::seeded(seed);
        let threads = 32 << (seed % 6);
        let blocks = 1 + seed as u32 % 5;
        let count = 700 + seed * 13;
        let words: Vec<u32> = (0..count as u32).map(|at| at * 7 + 1).collect();
        let (input, output) = (rig.memory_of(&words), rig.memory_of(&vec![0; words.len()]));
        run(&rig, "emu_test_sum", (blocks, threads, 0), &Numbers { input, output, count, choice: 0 });
        let sum: u32 = rig.words(output, blocks as usize).iter().sum();
        assert_eq!(sum, words.iter().sum::<u32>(), "seed {seed}");
        rig.device.check();
        let report = rig.device.launch_report("emu_test_sum");
        let halvings = u64::from(threads.ilog2());
        assert_eq!((report.launches, report.barriers_most, report.barriers_last), (1, 1 + halvings, 1 + halvings));
        assert_eq!(report.barrier_ids, [0, 1]);
    }
}

#[test]
fn a_missing_barrier_is_found_for_every_seed() {
    for seed in 0..40 {
        for id in [0, 1] {
            let rig = Rig::seeded(seed);
            let words = [1; 512];
            let (input, output) = (rig.memory_of(&words), rig.memory_of(&words));
            let args = Numbers { input, output, count: 512, choice: 0 };
            rig.device.skip_barrier("emu_test_sum", Some(id));
            run(&rig, "emu_test_sum", (1, 256, 0), &args);
            let found = rig.device.violations();
            assert!(!found.is_empty(), "seed {seed}, barrier {id}");
            assert!(found.iter().all(|text| text.contains("race") || text.contains("more reports")), "{found:?}");
            assert!(found[0].contains("emu_test_sum") && found[0].contains("thread"), "{}", found[0]);
            rig.device.skip_barrier("emu_test_sum", None);
            run(&rig, "emu_test_sum", (1, 256, 0), &args);
            rig.device.check();
            assert_eq!(rig.device.launch_report("emu_test_sum").launches, 2);
        }
    }
}

#[test]
fn warps_vote_shuffle_and_sum() {
    for seed in 0..30 {
        let rig = Rig::seeded(seed);
        let count = 7 * 1024;
        let words: Vec<u32> = (0..count as u32).map(|at| at.wrapping_mul(2_654_435_761) >> (at % 31)).collect();
        let (input, output) = (rig.memory_of(&words), rig.memory_of(&vec![0; count]));
        run(&rig, "emu_test_warp", (1, 1024, 0), &Numbers { input, output, count: count as u64, choice: 0 });
        let found = rig.words(output, count);
        for (thread, found) in found.chunks(7).enumerate() {
            let (lane, value) = (thread % 32, words[thread]);
            let warp = &words[thread - lane..thread - lane + 32];
            let odd = warp.iter().enumerate().map(|(lane, value)| (value % 2) << lane).sum::<u32>();
            let up = if lane >= 3 { warp[lane - 3] } else { value };
            let sum = warp.iter().fold(0_u32, |sum, value| sum.wrapping_add(*value));
            let leading = u64::from(value).leading_zeros();
            let lowest = if value == 0 { u32::MAX } else { value.trailing_zeros() };
            let all = [odd, warp[(lane + 1) % 32], up, sum, value.count_ones(), leading, lowest];
            assert_eq!(found, all, "seed {seed}, thread {thread}");
        }
        rig.device.check();
    }
}

#[test]
fn threads_that_do_not_meet_are_told() {
    let cases: [(u32, u32, &[&str]); 6] = [
        (0, 9, &["thread 9", "at barrier 5", "at barrier 6"]),
        (1, 9, &["thread 9 has returned while", "waits at barrier 5"]),
        (2, 40, &["at warp_sync in line", "thread 40 of its warp has returned"]),
        (3, 40, &["warp_ballot", "warp_sync", "warp 1"]),
        (4, 9, &["at warp_sync in line", "thread 9 of its warp is at barrier 5"]),
        (5, 0, &[]),
    ];
    for seed in 0..20 {
        for (choice, thread, words) in cases {
            let rig = Rig::seeded(seed);
            let memory = rig.memory_of(&[0]);
            run(&rig, "emu_test_meet", (1, 64, 0), &Meeting { memory, count: 1, choice, thread });
            let found = rig.device.violations();
            assert_eq!(found.len(), usize::from(!words.is_empty()), "seed {seed}, case {choice}: {found:?}");
            for word in words {
                assert!(found[0].contains(word), "seed {seed}, case {choice}: {word:?} is not in {found:?}");
            }
            rig.device.check();
            if choice == 5 {
                assert_eq!(rig.device.launch_report("emu_test_meet").barrier_ids, [5, 200]);
            }
        }
    }
}

#[test]
fn shared_memory_is_never_clean() {
    let mut seen = HashSet::new();
    for seed in 0..10 {
        let rig = Rig::seeded(seed);
        let (input, output) = (rig.memory_of(&[0; 512]), rig.memory_of(&[0; 512]));
        // Each block writes over what the one before has found.
        run(&rig, "emu_test_poison", (3, 256, 1024), &Numbers { input, output, count: 512, choice: 0 });
        let words = rig.words(output, 512);
        assert!(words.iter().all(|word| word.to_le_bytes().iter().all(|byte| *byte != 0)), "seed {seed}");
        // Three blocks write the same words, and nothing orders them.
        let found = rig.device.violations();
        assert!(found[0].contains("another block"), "{found:?}");
        seen.insert(words);
    }
    assert_eq!(seen.len(), 10);
}

#[test]
fn the_order_of_threads_and_blocks_is_the_seeds() {
    let mut orders = HashSet::new();
    let mut first_blocks = HashSet::new();
    for seed in 0..40 {
        let order = |seed| {
            let rig = Rig::seeded(seed);
            let (input, output) = (rig.memory_of(&[0; 257]), rig.memory_of(&[0; 257]));
            run(&rig, "emu_test_order", (4, 64, 0), &Numbers { input, output, count: 257, choice: 0 });
            rig.device.check();
            let words = rig.words(output, 257);
            assert_eq!(words[0], 256, "seed {seed}");
            words[1..].to_vec()
        };
        let tickets = order(seed);
        let mut sorted = tickets.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (1..=256).collect::<Vec<u32>>());
        assert_eq!(order(seed), tickets, "seed {seed} again");
        first_blocks.insert(tickets.iter().position(|ticket| *ticket == 1).unwrap() / 64);
        orders.insert(tickets);
    }
    assert_eq!((orders.len(), first_blocks.len()), (40, 4));
}

#[test]
fn a_kernel_waits_for_a_word_that_the_host_raises() {
    for seed in 0..10 {
        let rig = Rig::seeded(seed);
        let (kernel, stream, output) = (rig.kernel("emu_test_wait"), rig.stream(), rig.memory_of(&[0; 64]));
        let input = rig.pinned(&[0; 256]) as u64;
        ok(rig.run(kernel, (1, 64, 0), stream, &Numbers { input, output, count: 64, choice: 3 }));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // SAFETY: two words of pinned memory, which the kernel reads atomically.
                let word = |at: u64| unsafe { AtomicU32::from_ptr((input + 4 * at) as *mut u32) };
                std::thread::sleep(std::time::Duration::from_millis(3));
                word(1).store(77, Ordering::Relaxed);
                word(0).store(3, Ordering::Release);
            });
            rig.sync(stream);
        });
        assert_eq!(rig.words(output, 64), [77; 64]);
        rig.device.check();
    }
    let rig = Rig::new(Config { word_patience_ms: 20, ..Config::default() });
    let (input, output) = (rig.memory_of(&[0; 64]), rig.memory_of(&[0; 64]));
    run(&rig, "emu_test_wait", (1, 64, 0), &Numbers { input, output, count: 64, choice: 3 });
    rig.one_violation("has waited 20 ms");
}

#[test]
fn devices_run_kernels_at_the_same_time() {
    std::thread::scope(|scope| {
        for seed in 0..8 {
            scope.spawn(move || {
                let rig = Rig::seeded(seed);
                let words: Vec<u32> = (0..2048).map(|at| at * (seed as u32 + 1)).collect();
                let (input, output) = (rig.memory_of(&words), rig.memory_of(&words));
                for _ in 0..20 {
                    run(&rig, "emu_test_sum", (2, 512, 0), &Numbers { input, output, count: 2048, choice: 0 });
                    assert_eq!(rig.words(output, 2).iter().sum::<u32>(), words.iter().sum::<u32>());
                }
                rig.device.check();
            });
        }
    });
}

/// What a launch costs: `cargo test -p ftcache-cuda-emu --test kernels -- --ignored --nocapture speed`.
#[test]
#[ignore = "a measurement"]
fn speed() {
    for (threads, rounds) in [(1024, 6), (1024, 0), (256, 6), (32, 6)] {
        let rig = Rig::seeded(1);
        let (input, output) = (rig.memory_of(&vec![1; 1024]), rig.memory_of(&vec![1; 1024]));
        let (kernel, stream) = (rig.kernel("emu_test_speed"), rig.stream());
        let args = Numbers { input, output, count: 1024, choice: rounds };
        let mut times: Vec<_> = (0..200)
            .map(|_| {
                let begin = std::time::Instant::now();
                ok(rig.run(kernel, (1, threads, 0), stream, &args));
                rig.sync(stream);
                begin.elapsed()
            })
            .collect();
        times.sort_unstable();
        let (least, middle) = (times[0], times[times.len() / 2]);
        println!("{threads} threads, {} barriers: {middle:?} a launch, {least:?} the fastest", 2 * rounds);
        rig.device.check();
    }
}
