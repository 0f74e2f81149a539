//! What kernels may touch, and threads that touch the same place without order.

mod common;

use common::{Rig, ok};

#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct OneTouch {
    memory: u64,
    output: u64,
    count: u64,
    offset: u64,
    bytes: u32,
    is_write: u32,
    thread: u32,
    may_write: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Meeting {
    memory: u64,
    count: u64,
    choice: u32,
    thread: u32,
}

/// One access of a thread, and the reports of it.
fn touch(rig: &Rig, offset: i64, bytes: u32, is_write: bool, may_write: bool) -> Vec<String> {
    // Sixteen words of which seven are declared.
    let (memory, output) = (rig.memory_of(&[5; 16]), rig.memory_of(&[0]));
    let (kernel, stream) = (rig.kernel("emu_test_touch"), rig.stream());
    let args = OneTouch {
        memory,
        output,
        count: 7,
        offset: offset as u64,
        bytes,
        is_write: is_write.into(),
        thread: 37,
        may_write: may_write.into(),
    };
    ok(rig.run(kernel, (2, 64, 0), stream, &args));
    rig.sync(stream);
    let found = rig.device.violations();
    rig.device.check();
    let words = rig.words(memory, 16);
    let at = usize::try_from(offset / 4).ok().filter(|at| *at < 7);
    if !is_write || !may_write || at.is_none() {
        assert_eq!(words, [5; 16], "nothing is written that may not be");
    }
    found
}

#[test]
fn accesses_outside_of_what_was_declared_are_told() {
    let rig = Rig::seeded(3);
    for (offset, bytes) in [(28, 4), (16, 16), (-4, 4), (28, 1), (48, 16), (1 << 40, 4)] {
        for is_write in [false, true] {
            // A write of sixteen is one of eight, of the last word and half of the one behind it.
            let offset = if is_write && offset == 16 { 24 } else { offset };
            let found = touch(&rig, offset, bytes, is_write, true);
            let what = if is_write { "writes" } else { "reads" };
            assert_eq!(found.len(), 1, "{offset}, {bytes}: {found:?}");
            let told = ["kernel emu_test_touch, block ", "thread 37", what, "which the launch may not"];
            assert!(told.iter().all(|word| found[0].contains(word)), "{}", found[0]);
            if offset < 64 {
                assert!(found[0].contains(&format!("{offset} bytes into memory")), "{}", found[0]);
            }
        }
    }
}

#[test]
fn accesses_that_are_allowed_pass() {
    let rig = Rig::seeded(4);
    // By two blocks: what both write, or write and read, is told as a race, and reads are not.
    for (offset, bytes) in [(0, 1), (27, 1), (0, 4), (24, 4), (0, 16)] {
        let found = touch(&rig, offset, bytes, false, false);
        assert!(found.iter().all(|text| text.contains("race") && text.contains("output")), "{found:?}");
    }
}

#[test]
fn accesses_are_aligned_and_read_only_memory_is_not_written() {
    let rig = Rig::seeded(5);
    for (offset, bytes) in [(2, 4), (1, 4), (8, 16), (4, 16)] {
        let found = touch(&rig, offset, bytes, false, true);
        assert!(found.len() == 1 && found[0].contains("misaligned"), "{found:?}");
    }
    let found = touch(&rig, 4, 8, true, true);
    assert!(found.len() == 1 && found[0].contains("misaligned"), "{found:?}");
    for (offset, bytes) in [(0, 1), (8, 8), (24, 4)] {
        let found = touch(&rig, offset, bytes, true, false);
        assert!(found.len() == 1 && found[0].contains("may only be read"), "{found:?}");
    }
}

#[test]
fn threads_that_race_are_told_for_every_seed() {
    // Case, barrier left out, blocks, and whether it is right; `args.thread` is 3 in all.
    let cases = [
        (0, None, 1, true),
        (0, Some(0), 1, false),
        (1, None, 1, true),
        (1, Some(0), 1, false),
        (2, None, 1, true),
        (2, Some(0), 1, false),
        (3, None, 1, true),
        (4, None, 1, false),
        (5, None, 1, true),
        (5, Some(0), 1, false),
        (5, Some(1), 1, false),
        (6, None, 1, true),
        (6, Some(0), 1, false),
        (7, None, 1, true),
        (7, None, 3, false),
        (8, None, 1, true),
        (8, Some(0), 1, false),
        (9, None, 1, false),
        (10, None, 1, false),
        (11, None, 1, false),
        (12, None, 1, false),
    ];
    for seed in 0..25 {
        for (choice, skipped, blocks, right) in cases {
            let rig = Rig::seeded(seed);
            let memory = rig.memory_of(&[0; 128]);
            rig.device.skip_barrier("emu_test_race", skipped);
            let (kernel, stream) = (rig.kernel("emu_test_race"), rig.stream());
            ok(rig.run(kernel, (blocks, 96, 0), stream, &Meeting { memory, count: 128, choice, thread: 3 }));
            rig.sync(stream);
            let found = rig.device.violations();
            assert_eq!(found.is_empty(), right, "seed {seed}, case {choice} without {skipped:?}: {found:?}");
            if !right {
                assert!(found[0].contains("race") && found[0].contains("barriers"), "{}", found[0]);
            }
            rig.device.check();
        }
    }
}

#[test]
fn a_race_says_who_and_where() {
    let rig = Rig::seeded(1);
    let memory = rig.memory_of(&[0; 128]);
    let (kernel, stream) = (rig.kernel("emu_test_race"), rig.stream());
    rig.device.skip_barrier("emu_test_race", Some(0));
    ok(rig.run(kernel, (1, 32, 0), stream, &Meeting { memory, count: 128, choice: 8, thread: 3 }));
    rig.sync(stream);
    let place = format!("what lies at {memory:#x}");
    let told = ["block 0: race: thread ", "thread 0", "thread 1", "after 0 barriers", "12 bytes into memory"];
    let found = rig.device.violations();
    assert!(found.len() == 1 && told.iter().all(|word| found[0].contains(word)), "{found:?}, and not {place}");
}

#[test]
fn arrays_of_shared_memory_end() {
    let rig = Rig::seeded(1);
    let memory = rig.memory_of(&[0]);
    let (kernel, stream) = (rig.kernel("emu_test_race"), rig.stream());
    ok(rig.run(kernel, (1, 64, 0), stream, &Meeting { memory, count: 1, choice: 99, thread: 0 }));
    rig.sync(stream);
    let found = rig.device.violations();
    assert!(found.iter().any(|text| text.contains("item 1024 of an array of 1024")), "{found:?}");
}
