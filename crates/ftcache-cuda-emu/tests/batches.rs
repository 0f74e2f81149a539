//! Batches of copies, by both calls, from a driver that is right and from some that are not.

mod common;

use std::ffi::c_void;

use common::{Rig, ok};
use ftcache_cuda_emu::client::{Batch, Config};

#[repr(C)]
#[derive(Clone, Copy)]
struct Attributes {
    source_access_order: u32,
    locations: [i32; 4],
    flags: u32,
}

const STREAM: u32 = 1;
const DURING_CALL: u32 = 2;
const ANY: u32 = 3;

fn attributes(source_access_order: u32) -> Attributes {
    Attributes { source_access_order, locations: [0; 4], flags: 0 }
}

/// A batch by the newer call, all copies with the same attributes.
fn batch(rig: &Rig, copies: &[(u64, u64, usize)], order: u32, stream: u64) -> i32 {
    let targets: Vec<u64> = copies.iter().map(|copy| copy.0).collect();
    let sources: Vec<u64> = copies.iter().map(|copy| copy.1).collect();
    let sizes: Vec<usize> = copies.iter().map(|copy| copy.2).collect();
    let (attributes, start) = (attributes(order), 0);
    let attributes = std::ptr::from_ref(&attributes).cast();
    let call = rig.cu.cuMemcpyBatchAsync_v2;
    call(targets.as_ptr(), sources.as_ptr(), sizes.as_ptr(), copies.len(), attributes, &start, 1, stream)
}

/// Three rows of 5000 bytes to three slots with a gap of 8 between them.
struct Rows {
    rig: Rig,
    stream: u64,
    host: *mut c_void,
    slots: u64,
}

const ROW: usize = 5000;

impl Rows {
    fn new(seed: u64, batch: Batch) -> Self {
        let rig = Rig::new(Config { seed, batch, ..Config::default() });
        let host: Vec<u8> = (0..3 * ROW).map(|at| (at / ROW + 1) as u8).collect();
        let (host, slots, stream) = (rig.pinned(&host), rig.memory(3 * (ROW + 8)), rig.stream());
        rig.fill(slots, 0, 3 * (ROW + 8), stream);
        rig.sync(stream);
        Self { rig, stream, host, slots }
    }

    fn copies(&self) -> Vec<(u64, u64, usize)> {
        (0..3).map(|row| (self.slots + (row * (ROW + 8)) as u64, self.host as u64 + (row * ROW) as u64, ROW)).collect()
    }

    /// Bytes that are not as they should be.
    fn wrong(&self) -> Vec<usize> {
        let bytes = self.rig.device.peek(self.slots, 3 * (ROW + 8));
        let wanted = |at: usize| if at % (ROW + 8) < ROW { (at / (ROW + 8) + 1) as u8 } else { 0 };
        (0..bytes.len()).filter(|&at| bytes[at] != wanted(at)).collect()
    }
}

#[test]
fn a_right_batch_copies_in_stream_order() {
    for seed in 0..50 {
        for order in [STREAM, DURING_CALL, ANY] {
            let rows = Rows::new(seed, Batch::Right);
            ok(batch(&rows.rig, &rows.copies(), order, rows.stream));
            assert_eq!(rows.rig.device.counts().queued, 1);
            rows.rig.sync(rows.stream);
            assert!(rows.wrong().is_empty());
            assert_eq!(rows.rig.device.counts().pageable_copies, 0);
            rows.rig.device.check();
        }
    }
}

#[test]
fn the_order_of_source_accesses_is_kept() {
    let mut stale = 0;
    for seed in 0..40 {
        for order in [STREAM, DURING_CALL, ANY] {
            let rig = Rig::seeded(seed);
            let (memory, source, stream) = (rig.memory(64), rig.memory(64), rig.stream());
            rig.fill(source, 1, 64, stream);
            rig.sync(stream);
            rig.fill(source, 2, 64, stream);
            ok(batch(&rig, &[(memory, source, 64)], order, stream));
            // Only with stream order does the batch read what the stream wrote before it.
            assert_eq!(rig.device.races().len(), usize::from(order != STREAM), "seed {seed}, order {order}");
            rig.sync(stream);
            let bytes = rig.device.peek(memory, 64);
            stale += usize::from(order == ANY && bytes == [1; 64]);
            assert_eq!(
                bytes[0],
                if order == STREAM {
                    2
                } else if order == DURING_CALL {
                    1
                } else {
                    bytes[0]
                }
            );
        }
    }
    assert!(stale > 5 && stale < 35, "{stale}");
}

#[test]
fn copies_of_a_batch_are_unordered() {
    let rig = Rig::seeded(1);
    let (memory, stream) = (rig.memory(400), rig.stream());
    ok(batch(&rig, &[(memory, memory + 100, 50), (memory + 200, memory + 120, 50)], STREAM, stream));
    assert!(rig.device.races().is_empty(), "two reads of the same bytes");
    ok(batch(&rig, &[(memory, memory + 100, 50), (memory + 300, memory + 49, 50)], STREAM, stream));
    assert_eq!(rig.device.races().len(), 1);
    ok(batch(&rig, &[(memory, memory + 100, 50), (memory + 49, memory + 200, 50)], STREAM, stream));
    let races = rig.device.races();
    assert!(races.len() == 1 && races[0].contains("copies 0 and 1"), "{races:?}");
    // And unordered with other streams, as any copy; the last of those to the same place speaks for all.
    rig.fill(memory, 0, 1, rig.stream());
    assert_eq!(rig.device.races().len(), 1);
}

#[test]
fn batches_have_rules() {
    let rig = Rig::seeded(1);
    let (memory, stream, row) = (rig.memory(100), rig.stream(), rig.pinned(&[1; 100]) as u64);
    let good = (memory, row, 10);
    for (copies, order, stream, words) in [
        (vec![], STREAM, stream, "0 copies"),
        (vec![good], 0, stream, "source access order 0"),
        (vec![good], 4, stream, "source access order 4"),
        (vec![good], STREAM, 0, "legacy"),
        (vec![good, (memory, row, 0)], STREAM, stream, "no bytes"),
        (vec![good, (memory + 95, row, 10)], STREAM, stream, "past the end"),
        (vec![good, (memory, row + 95, 10)], STREAM, stream, "partly registered"),
        (vec![good], STREAM, 77 << 32, "no stream"),
    ] {
        assert_ne!(batch(&rig, &copies, order, stream), 0);
        rig.one_violation(words);
    }
    let call = |sizes: &[usize], starts: &[usize], fail: &mut usize| {
        let (targets, sources) = ([memory, memory + 50], [row, row + 50]);
        let kinds = [attributes(STREAM), attributes(ANY)];
        let kinds: *const c_void = kinds.as_ptr().cast();
        let call = rig.cu.cuMemcpyBatchAsync;
        call(targets.as_ptr(), sources.as_ptr(), sizes.as_ptr(), 2, kinds, starts.as_ptr(), starts.len(), fail, stream)
    };
    let mut fail = 99;
    ok(call(&[10, 10], &[0, 1], &mut fail));
    assert_eq!(fail, 99);
    assert_eq!((call(&[10, 51], &[0], &mut fail), fail), (1, 1));
    rig.one_violation("partly registered");
    for starts in [&[1][..], &[0, 0], &[0, 2], &[0, 1, 2]] {
        assert_eq!((call(&[10, 10], starts, &mut fail), fail), (1, usize::MAX), "{starts:?}");
        assert_eq!(rig.device.violations().len(), 1);
    }
    rig.sync(stream);
    assert_eq!(rig.device.peek(memory + 50, 10), [1; 10]);
    rig.device.check();
}

#[test]
fn pageable_copies_of_a_batch_count() {
    let rig = Rig::seeded(1);
    let (memory, stream) = (rig.memory(100), rig.stream());
    let (mut up, mut down) = ([3_u8; 40], [0_u8; 40]);
    ok(batch(&rig, &[(memory, up.as_ptr() as u64, 40), (memory + 40, up.as_ptr() as u64, 40)], STREAM, stream));
    up.fill(4);
    assert_eq!((rig.device.counts().pageable_copies, rig.device.counts().queued), (2, 1));
    ok(batch(&rig, &[(down.as_mut_ptr() as u64, memory, 40)], STREAM, stream));
    assert_eq!((down, up), ([3; 40], [4; 40]));
    assert_eq!((rig.device.counts().pageable_copies, rig.device.counts().queued), (3, 0));
    rig.device.check();
}

#[test]
fn drivers_can_be_wrong() {
    for seed in 0..20 {
        let wrong = Rows::new(seed, Batch::WrongBytes { entry: 1 });
        ok(batch(&wrong.rig, &wrong.copies(), STREAM, wrong.stream));
        wrong.rig.sync(wrong.stream);
        let at = wrong.wrong();
        assert!(at.len() == 1 && (ROW + 8..2 * ROW + 8).contains(&at[0]), "{at:?}");

        let strays = Rows::new(seed, Batch::TouchesNeighbours { entry: 1 });
        ok(batch(&strays.rig, &strays.copies(), STREAM, strays.stream));
        strays.rig.sync(strays.stream);
        assert_eq!(strays.wrong(), [ROW + 7, 2 * ROW + 8]);

        let fails = Rows::new(seed, Batch::Fails { code: 801 });
        assert_eq!(batch(&fails.rig, &fails.copies(), STREAM, fails.stream), 801);
        assert_eq!(fails.rig.device.counts().queued, 0);
        fails.rig.device.set_batch(Batch::Right);
        ok(batch(&fails.rig, &fails.copies(), STREAM, fails.stream));

        for (below_bytes, queued) in [(ROW as u64, 1), (ROW as u64 + 1, 0)] {
            let blocks = Rows::new(seed, Batch::BlocksOnSmallEntries { below_bytes });
            let before = blocks.rig.device.blocking_calls();
            ok(batch(&blocks.rig, &blocks.copies(), STREAM, blocks.stream));
            assert_eq!(blocks.rig.device.counts().queued, queued);
            assert_eq!(blocks.rig.device.blocking_calls() - before, 1 - queued);
            // That it was done is no promise.
            blocks.rig.fill(blocks.slots, 0, 8, blocks.rig.stream());
            assert_eq!(blocks.rig.device.races().len(), 1);
        }
        for rows in [wrong, strays, fails] {
            rows.rig.device.check();
        }
    }
}
