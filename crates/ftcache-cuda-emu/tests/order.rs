//! Order and conflicts: what is found for every seed, and what goes wrong for some.

mod common;

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use common::{Rig, ok};
use ftcache_cuda_emu::client::Config;

/// A generator for test programs; not the device's.
struct Draw(u64);

impl Draw {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % count as u64) as usize
    }
}

#[test]
fn nothing_runs_until_something_waits() {
    let rig = Rig::seeded(3);
    let (memory, stream) = (rig.memory(64), rig.stream());
    let fresh = rig.device.peek(memory, 64);
    assert!(fresh.iter().all(|byte| *byte != 0));
    rig.fill(memory, 9, 64, stream);
    assert_eq!(rig.device.peek(memory, 64), fresh);
    rig.sync(stream);
    assert_eq!(rig.device.peek(memory, 64), [9; 64]);
    rig.device.check();
    let eager = Rig::new(Config { eager: true, ..Config::default() });
    let (memory, stream) = (eager.memory(64), eager.stream());
    eager.fill(memory, 9, 64, stream);
    assert_eq!(eager.device.peek(memory, 64), [9; 64]);
    assert_eq!(eager.device.counts().queued, 0);
    eager.device.check();
}

#[test]
fn every_order_of_unordered_work_occurs() {
    let mut seen = HashSet::new();
    for seed in 0..400 {
        let rig = Rig::seeded(seed);
        let order = Arc::new(Mutex::new(Vec::new()));
        let streams = [rig.stream(), rig.stream(), rig.stream()];
        for (at, stream) in streams.iter().enumerate() {
            let order = order.clone();
            ok(rig.device.launch(*stream, &[], &[], move || order.lock().unwrap().push(at)));
        }
        ok((rig.cu.cuCtxSynchronize)());
        seen.insert(order.lock().unwrap().clone());
        rig.device.check();
    }
    assert_eq!(seen.len(), 6);
}

#[test]
fn a_wait_does_what_it_needs_and_by_the_seed_more() {
    let (mut only, mut more) = (0, 0);
    for seed in 0..100 {
        let rig = Rig::seeded(seed);
        let (a, b, memory) = (rig.stream(), rig.stream(), rig.memory(2));
        rig.fill(memory, 1, 1, a);
        rig.fill(memory + 1, 2, 1, b);
        rig.sync(a);
        assert_eq!(rig.device.peek(memory, 1), [1]);
        match rig.device.peek(memory + 1, 1)[0] {
            2 => more += 1,
            _ => only += 1,
        }
    }
    assert!(only > 10 && more > 10, "{only} and {more}");
}

#[test]
fn queries_find_work_done_sooner_or_later() {
    let (mut at_once, mut later) = (0, 0);
    for seed in 0..60 {
        let rig = Rig::seeded(seed);
        let (memory, stream, event) = (rig.memory(8), rig.stream(), rig.event());
        ok((rig.cu.cuEventQuery)(event));
        for value in 0..4 {
            rig.fill(memory, value, 8, stream);
        }
        rig.record(event, stream);
        let mut queries = 0;
        loop {
            match (rig.cu.cuEventQuery)(event) {
                0 => break,
                code => assert_eq!(code, 600),
            }
            queries += 1;
            assert!(queries < 400, "seed {seed}: starved");
        }
        assert_eq!(rig.device.peek(memory, 8), [3; 8]);
        ok((rig.cu.cuStreamQuery)(stream));
        // A query that succeeded is a wait: the legacy stream needs no other.
        rig.fill(memory, 7, 8, 0);
        rig.device.check();
        if queries == 0 { at_once += 1 } else { later += 1 }
    }
    assert!(later > at_once);
}

#[test]
fn a_missing_wait_is_a_race_for_every_seed_and_wrong_bytes_for_some() {
    let (mut wrong, mut right) = (0, 0);
    for seed in 0..100 {
        for waits in [true, false] {
            let rig = Rig::seeded(seed);
            let (upload, compute) = (rig.stream(), rig.stream());
            let (slot, result, row) = (rig.memory(512), rig.memory(512), rig.pinned(&[7; 512]));
            rig.up(slot, row, 512, upload);
            if waits {
                rig.order(upload, compute);
            }
            rig.across(result, slot, 512, compute);
            rig.sync(compute);
            let bytes = rig.device.peek(result, 512);
            let races = rig.device.races();
            if waits {
                assert_eq!(bytes, [7; 512]);
                assert!(races.is_empty(), "seed {seed}: {races:?}");
            } else {
                assert_eq!(races.len(), 1, "seed {seed}: {races:?}");
                let told = ["cuMemcpyHtoDAsync_v2", "cuMemcpyDtoDAsync_v2", "writes", "reads", "+512", "operation 1"];
                assert!(told.iter().all(|word| races[0].contains(word)), "{}", races[0]);
                if bytes == [7; 512] { right += 1 } else { wrong += 1 }
            }
            rig.device.check();
        }
    }
    assert!(wrong > 10 && right > 10, "{wrong} wrong, {right} right");
}

#[test]
fn rows_arrive_in_part() {
    let mut partial = 0;
    for seed in 0..200 {
        let rig = Rig::seeded(seed);
        let (a, b) = (rig.stream(), rig.stream());
        let (slot, seen, row) = (rig.memory(10_000), rig.memory(10_000), rig.pinned(&[7; 10_000]));
        rig.fill(slot, 1, 10_000, a);
        rig.sync(a);
        rig.up(slot, row, 10_000, a);
        rig.across(seen, slot, 10_000, b);
        ok((rig.cu.cuCtxSynchronize)());
        let bytes: HashSet<u8> = rig.device.peek(seen, 10_000).into_iter().collect();
        partial += usize::from(bytes == HashSet::from([1, 7]));
        assert_eq!(rig.device.peek(slot, 10_000), [7; 10_000]);
        assert_eq!(rig.device.races().len(), 1);
    }
    assert!(partial > 5, "{partial}");
}

#[test]
fn a_read_that_is_in_order_hides_no_write() {
    let rig = Rig::seeded(1);
    let (a, b, c, d) = (rig.stream(), rig.stream(), rig.stream(), rig.stream());
    let (memory, targets) = (rig.memory(64), rig.memory(192));
    rig.fill(memory, 1, 64, a);
    rig.order(a, b);
    rig.across(targets, memory, 64, b);
    rig.across(targets + 64, memory, 64, c);
    assert_eq!(rig.device.races().len(), 1, "the read in another stream meets the fill");
    // A write in order speaks for all before it; a word that is written atomically speaks for no plain access.
    rig.order(c, b);
    rig.fill(memory, 2, 64, b);
    rig.across(targets + 128, memory, 64, d);
    assert_eq!(rig.device.races().len(), 1);
    ok((rig.cu.cuCtxSynchronize)());
    rig.fill(memory, 3, 4, a);
    rig.order(a, b);
    ok((rig.cu.cuStreamWriteValue32_v2)(b, memory, 1, 0));
    ok((rig.cu.cuStreamWriteValue32_v2)(c, memory, 2, 0));
    assert_eq!(rig.device.races().len(), 1, "the other write of the word meets the fill only");
}

#[test]
fn what_is_not_known_to_be_over_is_not_forgotten() {
    let rig = Rig::seeded(1);
    let (a, b, memory) = (rig.stream(), rig.stream(), rig.memory(200));
    for at in 0..100 {
        rig.fill(memory + at, 1, 1, a);
    }
    for at in 100..150 {
        rig.fill(memory + at, 1, 1, b);
        rig.sync(b);
    }
    rig.device.check();
    for at in [0, 50, 99] {
        rig.fill(memory + at, 2, 1, b);
        assert_eq!(rig.device.races().len(), 1, "{at}");
    }
}

#[test]
fn a_wait_takes_the_record_made_by_then() {
    for seed in 0..50 {
        let rig = Rig::seeded(seed);
        let (a, b, event, memory) = (rig.stream(), rig.stream(), rig.event(), rig.memory(8));
        // Never recorded: passed.
        rig.wait(b, event);
        rig.sync(b);
        rig.fill(memory, 1, 8, a);
        rig.record(event, a);
        rig.wait(b, event);
        rig.fill(memory, 2, 8, b);
        assert!(rig.device.races().is_empty());
        // A record made after the wait orders nothing that was enqueued before.
        let other = rig.memory(8);
        rig.wait(b, event);
        rig.fill(other, 1, 8, a);
        rig.record(event, a);
        rig.fill(other, 2, 8, b);
        assert_eq!(rig.device.races().len(), 1);
        ok((rig.cu.cuEventSynchronize)(event));
        rig.sync(b);
        let mut time = -1.0;
        assert_eq!((rig.cu.cuEventElapsedTime_v2)(&mut time, event, event), 400);
        rig.one_violation("without timing");
    }
}

#[test]
fn waiting_by_the_host_orders_what_comes_after() {
    let rig = Rig::seeded(1);
    let (a, b, memory) = (rig.stream(), rig.stream(), rig.memory(8));
    let row = rig.pinned(&[1; 8]);
    rig.up(memory, row, 8, a);
    rig.device.host_access(row.cast(), 8, false);
    assert!(rig.device.races().is_empty());
    rig.device.host_access(row.cast(), 8, true);
    assert_eq!(rig.device.races().len(), 1);
    rig.sync(a);
    rig.device.host_access(row.cast(), 8, true);
    rig.fill(memory, 2, 8, b);
    rig.device.check();
    // What another thread knows is its own, until it is handed over.
    std::thread::scope(|scope| {
        let (to, from) = std::sync::mpsc::channel::<()>();
        let (back, done) = std::sync::mpsc::channel::<()>();
        let rig = &rig;
        let thread = scope.spawn(move || {
            ok((rig.cu.cuCtxSetCurrent)(rig.context));
            rig.fill(memory, 3, 8, b);
            back.send(()).unwrap();
            from.recv().unwrap();
            rig.fill(memory, 4, 8, a);
            let alone = rig.device.races().len();
            rig.sync(a);
            rig.device.hand_over();
            rig.fill(memory, 5, 8, a);
            (alone, rig.device.races().len())
        });
        done.recv().unwrap();
        rig.sync(b);
        to.send(()).unwrap();
        assert_eq!(thread.join().unwrap(), (1, 0));
    });
    rig.device.check();
}

#[test]
fn a_new_thread_knows_what_was_known_when_it_began() {
    let rig = Rig::seeded(1);
    let (a, b, c, memory) = (rig.stream(), rig.stream(), rig.stream(), rig.memory(100));
    let elsewhere = |work: &(dyn Fn() + Sync)| {
        let run = || {
            ok((rig.cu.cuCtxSetCurrent)(rig.context));
            work();
        };
        std::thread::scope(|scope| scope.spawn(run).join().unwrap());
    };
    rig.fill(memory, 1, 8, a);
    elsewhere(&|| rig.sync(a));
    // So much is forgotten here that the thread is, too; what it knew is not.
    for at in 10..90 {
        rig.fill(memory + at, 1, 1, c);
        rig.sync(c);
    }
    elsewhere(&|| rig.fill(memory, 2, 8, b));
    rig.device.check();
    // This thread has never waited for the first stream, and nobody told it.
    rig.fill(memory, 3, 8, b);
    rig.fill(memory, 4, 8, c);
    assert_eq!(rig.device.races().len(), 1);
}

#[test]
fn threads_share_what_they_know_if_so_set() {
    let rig = Rig::new(Config { threads_share_order: true, ..Config::default() });
    let (a, b, memory) = (rig.stream(), rig.stream(), rig.memory(8));
    rig.fill(memory, 1, 8, a);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            ok((rig.cu.cuCtxSetCurrent)(rig.context));
            rig.sync(a);
        });
    });
    rig.fill(memory, 2, 8, b);
    rig.device.check();
}

/// What one operation of a random program touches.
struct Touched {
    read: (usize, usize),
    written: (usize, usize),
    before: u128,
}

/// A random program on streams 0 (legacy), 1 and 2 (blocking), 3 and 4 (not), on one piece of memory. Some of the
/// needed waits may be left out. Order is kept as sets of operations here, and as clocks in the driver; both must find
/// the same.
fn random_program(seed: u64, leave_out: usize) -> (bool, bool) {
    const BYTES: usize = 6000;
    let rig = Rig::seeded(seed);
    let mut draw = Draw(seed ^ 0x1234);
    let memory = rig.memory(BYTES);
    let streams = [0, rig.blocking_stream(), rig.blocking_stream(), rig.stream(), rig.stream()];
    let events: Vec<u64> = (0..3).map(|_| rig.event()).collect();
    let mut model: Vec<u8> = rig.device.peek(memory, BYTES);
    let (mut host, mut ends, mut recorded) = (0_u128, [0_u128; 5], [None::<u128>; 3]);
    let mut done: Vec<Touched> = Vec::new();
    // What an operation in a stream stands after, by the rules of the legacy stream.
    let before = |host: u128, ends: &[u128; 5], stream: usize| match stream {
        0 => host | ends[0] | ends[1] | ends[2],
        1 | 2 => host | ends[stream] | ends[0],
        _ => host | ends[stream],
    };
    while done.len() < 40 {
        let stream = draw.below(5);
        match draw.below(12) {
            0 => {
                let event = draw.below(3);
                rig.record(events[event], streams[stream]);
                ends[stream] = before(host, &ends, stream);
                recorded[event] = Some(ends[stream]);
            }
            1 => {
                let event = draw.below(3);
                rig.wait(streams[stream], events[event]);
                if let Some(recorded) = recorded[event] {
                    ends[stream] = before(host, &ends, stream) | recorded;
                }
            }
            2 if draw.below(3) == 0 => {
                rig.sync(streams[stream]);
                if stream == 0 {
                    ends[0] = before(host, &ends, 0);
                }
                host |= ends[stream];
            }
            3 => {
                let event = draw.below(3);
                if (rig.cu.cuEventQuery)(events[event]) == 0 {
                    host |= recorded[event].unwrap_or(0);
                }
            }
            _ => {
                let longest = if draw.below(8) == 0 { 2900 } else { 300 };
                let bytes = 1 + draw.below(longest);
                let from = draw.below(BYTES / 2 - bytes + 1);
                let to = BYTES / 2 + draw.below(BYTES / 2 - bytes + 1);
                let fills = draw.below(2) == 0;
                let (from, to) = if draw.below(2) == 0 { (from, to) } else { (to, from) };
                let (read, written) = (if fills { (0, 0) } else { (from, from + bytes) }, (to, to + bytes));
                let meets = |a: (usize, usize), b: (usize, usize)| a.0 < b.1 && b.0 < a.1;
                let conflicts =
                    |old: &Touched| meets(old.written, written) || meets(old.written, read) || meets(old.read, written);
                // Waits for whatever is needed and not there yet.
                for other in 0..5 {
                    let known = before(host, &ends, stream);
                    let needed = done
                        .iter()
                        .enumerate()
                        .any(|(at, old)| conflicts(old) && known >> at & 1 == 0 && ends[other] >> at & 1 == 1);
                    if needed && (leave_out == 0 || draw.below(leave_out) > 0) {
                        rig.order(streams[other], streams[stream]);
                        ends[other] = before(host, &ends, other);
                        ends[stream] = before(host, &ends, stream) | ends[other];
                    }
                }
                let mine = before(host, &ends, stream);
                let place = memory + to as u64;
                if fills {
                    rig.fill(place, seed as u8 ^ done.len() as u8, bytes, streams[stream]);
                    model[written.0..written.1].fill(seed as u8 ^ done.len() as u8);
                } else {
                    rig.across(place, memory + from as u64, bytes, streams[stream]);
                    model.copy_within(read.0..read.1, to);
                }
                done.push(Touched { read, written, before: mine });
                ends[stream] = mine | 1 << (done.len() - 1);
            }
        }
    }
    let meets = |a: (usize, usize), b: (usize, usize)| a.0 < b.1 && b.0 < a.1;
    let raced = done.iter().enumerate().any(|(later, new)| {
        done[..later].iter().enumerate().any(|(at, old)| {
            let conflict =
                meets(old.written, new.written) || meets(old.written, new.read) || meets(old.read, new.written);
            conflict && new.before >> at & 1 == 0
        })
    });
    ok((rig.cu.cuCtxSynchronize)());
    let races = rig.device.races();
    assert_eq!(!races.is_empty(), raced, "seed {seed}: {races:?}");
    rig.device.check();
    (raced, rig.device.peek(memory, BYTES) == model)
}

#[test]
fn right_programs_never_race_and_do_as_if_in_sequence() {
    for seed in 0..300 {
        assert_eq!(random_program(seed, 0), (false, true), "seed {seed}");
    }
}

#[test]
fn programs_that_lack_a_needed_wait_race_and_no_others() {
    let (mut raced, mut not_raced, mut wrong) = (0, 0, 0);
    for seed in 0..500 {
        let (race, right) = random_program(seed, 12);
        assert!(race || right, "seed {seed}: wrong bytes, and nobody was told");
        if race {
            raced += 1
        } else {
            not_raced += 1
        }
        wrong += usize::from(!right);
    }
    assert!(raced > 50 && not_raced > 50 && wrong > 10, "{raced}, {not_raced}, {wrong}");
}
