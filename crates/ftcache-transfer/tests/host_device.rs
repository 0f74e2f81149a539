//! The host device against the words of the `Device` trait: memory, and the meaning of streams and events.
//!
//! A random program of writes, records, waits and synchronisations has a *before* that follows from the trait's words
//! alone. Every two writes of it share a cell of their own, so that memory tells afterwards which of them came last.

mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};

use ftcache_testkit::Rng;
use ftcache_transfer::{
    Device, DeviceError, DeviceSpan, Event, HostDevice, HostSpan, Kernel, Launch, Memory, RowCopy, Stream,
};
use support::{event_of, stream_of, write};

fn read(device: &mut HostDevice, memory: Memory, bytes: usize) -> Vec<u8> {
    let mut target = vec![0xFF; bytes];
    device.read(memory, 0, &mut target).unwrap();
    target
}

#[test]
fn memory_is_zeros_also_where_other_memory_was_before() {
    let mut device = HostDevice::new();
    for bytes in [1_u64, 2, 63, 64, 4096, 100_000] {
        let memory = device.allocate(bytes, 1).unwrap();
        assert_eq!(read(&mut device, memory, bytes as usize), vec![0; bytes as usize]);
        write(&mut device, Stream::DEFAULT, memory, 0, vec![0xAA; bytes as usize].leak()).unwrap();
        device.free(memory);
        let again = device.allocate(bytes, 1).unwrap();
        assert_eq!(read(&mut device, again, bytes as usize), vec![0; bytes as usize], "{bytes} bytes, again");
    }
}

#[test]
fn out_of_memory_names_what_is_wanted_and_what_is_free() {
    let mut device = HostDevice::new().with_limit(100);
    let first = device.allocate(60, 1).unwrap();
    let refused = device.allocate(41, 1).unwrap_err();
    assert_eq!(refused, DeviceError::OutOfMemory { wanted_bytes: 41, free_bytes: 40 });
    assert_eq!(device.used_bytes(), 60, "a refused allocation takes nothing");
    let second = device.allocate(40, 1).unwrap();
    assert_eq!(device.used_bytes(), 100);
    let refused = device.allocate(u64::MAX, 1).unwrap_err();
    assert_eq!(refused, DeviceError::OutOfMemory { wanted_bytes: u64::MAX, free_bytes: 0 });
    device.free(first);
    assert_eq!(device.used_bytes(), 40);
    device.allocate(60, 1).unwrap();
    device.free(second);
    assert_eq!(device.used_bytes(), 60);
}

#[test]
fn a_device_without_a_limit_still_refuses_what_no_machine_has() {
    let mut device = HostDevice::new();
    let refused = device.allocate(u64::MAX, 1).unwrap_err();
    assert!(matches!(refused, DeviceError::OutOfMemory { wanted_bytes: u64::MAX, .. }), "{refused}");
    assert_eq!(device.used_bytes(), 0);
}

#[test]
fn a_limit_below_what_is_allocated_leaves_nothing_free() {
    let mut device = HostDevice::new();
    device.allocate(100, 1).unwrap();
    let mut device = device.with_limit(10);
    let refused = device.allocate(1, 1).unwrap_err();
    assert_eq!(refused, DeviceError::OutOfMemory { wanted_bytes: 1, free_bytes: 0 });
}

#[test]
fn every_memory_has_an_address_of_its_own() {
    let mut device = HostDevice::new();
    let (a, b) = (device.allocate(64, 1).unwrap(), device.allocate(64, 1).unwrap());
    let (at_a, at_b) = (device.address(a).unwrap(), device.address(b).unwrap());
    assert!(at_a.abs_diff(at_b) >= 64, "{at_a} and {at_b}");
    write(&mut device, Stream::DEFAULT, a, 0, &[7; 64]).unwrap();
    assert_eq!(device.address(a).unwrap(), at_a, "memory does not move");
    assert_eq!(read(&mut device, b, 64), [0; 64]);
}

#[test]
fn bytes_outside_the_memory_are_refused_and_nothing_is_written() {
    const ROW: &[u8] = &[9; 16];
    for mut device in [HostDevice::new(), HostDevice::deferred(3)] {
        let memory = device.allocate(40, 1).unwrap();
        let other = device.allocate(40, 1).unwrap();
        write(&mut device, Stream::DEFAULT, memory, 24, ROW).unwrap();
        let refused = write(&mut device, Stream::DEFAULT, memory, 25, ROW).unwrap_err();
        let wanted = DeviceError::OutOfBounds { operation: "row copy", offset: 25, bytes: 16, memory_bytes: 40 };
        assert_eq!(refused, wanted);
        write(&mut device, Stream::DEFAULT, memory, u64::MAX - 7, ROW).unwrap_err();

        let mut rows = RowCopy {
            source: HostSpan { base: ROW.as_ptr(), stride: 2 }.into(),
            target: DeviceSpan { memory, offset: 0, stride: 9 },
            row_bytes: 2,
            row_count: 6,
        };
        // SAFETY: six rows of two bytes of a constant, which is never freed or changed.
        let refused = unsafe { device.copy_rows(Stream::DEFAULT, &rows) }.unwrap_err();
        // Five strides and a row: the row after the last stride does not fit, though its first bytes would.
        let wanted = DeviceError::OutOfBounds { operation: "row copy", offset: 0, bytes: 47, memory_bytes: 40 };
        assert_eq!(refused, wanted);
        rows.target.stride = u64::MAX / 2;
        // SAFETY: as above.
        unsafe { device.copy_rows(Stream::DEFAULT, &rows) }.unwrap_err();

        let mut target = [0; 8];
        let refused = device.read(memory, 33, &mut target).unwrap_err();
        assert_eq!(refused, DeviceError::OutOfBounds { operation: "read", offset: 33, bytes: 8, memory_bytes: 40 });
        device.read(memory, u64::MAX, &mut target).unwrap_err();
        device.read(memory, 32, &mut target).unwrap();
        assert_eq!(target, [9; 8]);
        assert_eq!(read(&mut device, memory, 24), [0; 24]);
        assert_eq!(read(&mut device, other, 40), [0; 40]);
    }
}

#[test]
fn rows_may_end_with_the_memory_without_a_last_stride() {
    static ROWS: [u8; 9] = [1, 2, 3, 4, 5, 6, 7, 8, 9];
    let mut device = HostDevice::new();
    let memory = device.allocate(23, 1).unwrap();
    let source = HostSpan { base: ROWS.as_ptr(), stride: 3 };
    let target = DeviceSpan { memory, offset: 0, stride: 10 };
    // SAFETY: three rows of three bytes of a static, which is never freed or changed.
    unsafe {
        device.copy_rows(Stream::DEFAULT, &RowCopy { source: source.into(), target, row_bytes: 3, row_count: 3 })
    }
    .unwrap();
    assert_eq!(read(&mut device, memory, 23)[20..], [7, 8, 9]);
}

#[test]
fn handles_that_were_never_given_out_are_refused_by_name() {
    let mut device = HostDevice::deferred(0);
    let (stream, event) = (device.create_stream().unwrap(), device.create_event().unwrap());
    let memory = device.allocate(8, 1).unwrap();
    let unknown = |what, handle| DeviceError::UnknownHandle { what, handle };
    let (no_stream, no_event, no_memory) = (stream_of(77), event_of(78), Memory(79));
    assert_eq!(device.record(event, no_stream), Err(unknown("stream", 77)));
    assert_eq!(device.record(no_event, stream), Err(unknown("event", 78)));
    assert_eq!(device.wait(no_stream, event), Err(unknown("stream", 77)));
    assert_eq!(device.wait(stream, no_event), Err(unknown("event", 78)));
    assert_eq!(device.synchronize(no_stream), Err(unknown("stream", 77)));
    assert_eq!(device.synchronize(stream_of(u64::MAX)), Err(unknown("stream", u64::MAX)));
    assert_eq!(device.address(no_memory), Err(unknown("memory", 79)));
    assert_eq!(device.read(no_memory, 0, &mut [0]), Err(unknown("memory", 79)));
    assert_eq!(write(&mut device, no_stream, memory, 0, &[1]), Err(unknown("stream", 77)));
    assert_eq!(write(&mut device, stream, no_memory, 0, &[1]), Err(unknown("memory", 79)));
    device.free(memory);
    assert_eq!(device.address(memory), Err(unknown("memory", memory.0)), "memory that was taken back");
    assert_eq!(write(&mut device, stream, memory, 0, &[1]), Err(unknown("memory", memory.0)));
    device.free(memory);
    assert_eq!(device.used_bytes(), 0, "freed twice, counted once");
}

#[test]
fn one_copy_fails_when_asked_to_and_the_next_does_not() {
    static MARK: [u8; 1] = [5];
    for after in 0..4 {
        let mut device = HostDevice::deferred(1);
        let memory = device.allocate(6, 1).unwrap();
        device.fail_copy_after(after);
        let results: Vec<bool> =
            (0..6).map(|at| write(&mut device, Stream::DEFAULT, memory, at, &MARK).is_ok()).collect();
        let wanted: Vec<bool> = (0..6).map(|at| at != after).collect();
        assert_eq!(results, wanted, "after {after}");
        let bytes: Vec<u8> = wanted.iter().map(|&copied| if copied { 5 } else { 0 }).collect();
        assert_eq!(read(&mut device, memory, 6), bytes, "after {after}");
    }
}

#[test]
fn errors_read_as_sentences_with_their_numbers() {
    let mut device = HostDevice::new().with_limit(40);
    let memory = device.allocate(30, 1).unwrap();
    device.fail_copy_after(0);
    let errors = [
        device.allocate(11, 1).unwrap_err(),
        write(&mut device, Stream::DEFAULT, memory, 15, &[0; 16]).unwrap_err(),
        device.read(memory, 31, &mut [0; 2]).unwrap_err(),
        device.synchronize(stream_of(9)).unwrap_err(),
        device.address(Memory(9)).unwrap_err(),
        device.wait(Stream::DEFAULT, event_of(9)).unwrap_err(),
        write(&mut device, Stream::DEFAULT, memory, 0, &[0; 16]).unwrap_err(),
        device.write(memory, 29, &[0; 2]).unwrap_err(),
        device.prepare_kernels().unwrap_err(),
    ];
    let text = errors.map(|error| error.to_string()).join("\n");
    insta::assert_snapshot!(text, @"
    11 bytes of device memory wanted; 10 are free
    row copy of 16 bytes at 15; the memory has 30 bytes
    read of 2 bytes at 31; the memory has 30 bytes
    stream 9 is not of this device
    memory 9 is not of this device
    event 9 is not of this device
    row copy of 16 bytes: this copy was asked to fail
    write of 2 bytes at 29; the memory has 30 bytes
    no kernels on host memory: it only copies
    ");
}

// Streams and events.

/// Most writes of a program; the bytes of a row that says `i` that often.
const WRITES: usize = 40;

static FILL: [[u8; WRITES]; WRITES] = {
    let mut fill = [[0; WRITES]; WRITES];
    let mut write = 0;
    while write < WRITES {
        fill[write] = [write as u8 + 1; WRITES];
        write += 1;
    }
    fill
};

#[derive(Debug, Clone, Copy)]
enum Operation {
    Write { stream: usize },
    Record { event: usize, stream: usize },
    Wait { stream: usize, event: usize },
    Synchronize { stream: usize },
}

#[derive(Debug)]
struct Program {
    stream_count: usize,
    event_count: usize,
    operations: Vec<Operation>,
}

impl Program {
    /// With `roaming` events, an event is recorded on any stream; else on one stream of its own.
    fn random(rng: &mut Rng, roaming: bool) -> Self {
        let (stream_count, event_count) = (1 + rng.below(4) as usize, 1 + rng.below(4) as usize);
        let mut operations = Vec::new();
        for _ in 0..10 + rng.below(50) {
            let stream = rng.below(stream_count as u64) as usize;
            let event = rng.below(event_count as u64) as usize;
            operations.push(match rng.below(20) {
                0..=9 => Operation::Write { stream },
                10..=13 if roaming => Operation::Record { event, stream },
                10..=13 => Operation::Record { event, stream: event % stream_count },
                14..=18 => Operation::Wait { stream, event },
                _ => Operation::Synchronize { stream },
            });
        }
        let mut writes = 0;
        operations.retain(|operation| {
            writes += usize::from(matches!(operation, Operation::Write { .. }));
            writes <= WRITES
        });
        Self { stream_count, event_count, operations }
    }

    /// For each write, a bit set of the writes that are done before it: the words of the trait, and nothing else.
    fn before(&self) -> Vec<u64> {
        let mut of_stream = vec![0_u64; self.stream_count];
        // A point that was never recorded has nothing before it.
        let mut of_event = vec![0_u64; self.event_count];
        let mut of_host = 0_u64;
        let mut before = Vec::new();
        for &operation in &self.operations {
            match operation {
                Operation::Write { stream } => {
                    before.push(of_stream[stream] | of_host);
                    of_stream[stream] |= of_host | 1 << (before.len() - 1);
                }
                Operation::Record { event, stream } => of_event[event] = of_stream[stream],
                Operation::Wait { stream, event } => of_stream[stream] |= of_event[event],
                Operation::Synchronize { stream } => of_host |= of_stream[stream],
            }
        }
        before
    }

    /// `last[i][j]` for writes `i < j`: which of the two came last.
    fn run(&self, mut device: HostDevice, with_waits: bool) -> Vec<Vec<usize>> {
        let mut streams = vec![Stream::DEFAULT];
        streams.extend((1..self.stream_count).map(|_| device.create_stream().unwrap()));
        let events: Vec<Event> = (0..self.event_count).map(|_| device.create_event().unwrap()).collect();
        let memory = device.allocate((WRITES * WRITES) as u64, 1).unwrap();
        let mut writes = 0;
        for &operation in &self.operations {
            match operation {
                Operation::Write { stream } => {
                    write_cells(&mut device, streams[stream], memory, writes);
                    writes += 1;
                }
                Operation::Record { event, stream } => device.record(events[event], streams[stream]).unwrap(),
                Operation::Wait { stream, event } if with_waits => {
                    device.wait(streams[stream], events[event]).unwrap();
                }
                Operation::Wait { .. } => {}
                Operation::Synchronize { stream } => device.synchronize(streams[stream]).unwrap(),
            }
        }
        let cells = read(&mut device, memory, WRITES * WRITES);
        (0..writes).map(|i| (0..writes).map(|j| (cells[i * WRITES + j] as usize).wrapping_sub(1)).collect()).collect()
    }
}

/// Write `i` goes to every cell `(k, i)` of an earlier `k` and every cell `(i, k)` of a later one.
fn write_cells(device: &mut HostDevice, stream: Stream, memory: Memory, i: usize) {
    let source = HostSpan { base: FILL[i].as_ptr(), stride: 1 };
    let column = DeviceSpan { memory, offset: i as u64, stride: WRITES as u64 };
    let line = DeviceSpan { memory, offset: (i * WRITES + i + 1) as u64, stride: 1 };
    for (target, row_count) in [(column, i as u64), (line, (WRITES - i - 1) as u64)] {
        if row_count > 0 {
            let copy = RowCopy { source: source.into(), target, row_bytes: 1, row_count };
            // SAFETY: fewer rows of one byte than `FILL[i]` has, in a static that is never freed or changed.
            unsafe { device.copy_rows(stream, &copy) }.unwrap();
        }
    }
}

/// The first two writes that came in the wrong order, if any.
fn wrong_order(before: &[u64], last: &[Vec<usize>]) -> Option<String> {
    for (j, &before) in before.iter().enumerate() {
        for i in (0..j).filter(|i| before >> i & 1 == 1) {
            if last[i][j] != j {
                return Some(format!("write {i} is before write {j}, and came last"));
            }
        }
    }
    None
}

/// Runs many programs; fails with the seed, and returns how many unordered writes came the other way round.
fn check_programs(roaming: bool) -> usize {
    let mut reordered = 0;
    for seed in 0..1_000 {
        let program = Program::random(&mut Rng::new(seed), roaming);
        let before = program.before();
        let run = catch_unwind(AssertUnwindSafe(|| program.run(HostDevice::deferred(seed * 31 + 7), true)));
        let Ok(last) = run else { panic!("seed {seed}: the device did not come to an end\n{program:?}") };
        if let Some(wrong) = wrong_order(&before, &last) {
            panic!("seed {seed}: {wrong}\n{program:?}");
        }
        let at_once = program.run(HostDevice::new(), true);
        for j in 0..before.len() {
            for i in 0..j {
                reordered += usize::from(last[i][j] == i);
                assert_eq!(at_once[i][j], j, "seed {seed}: at once, write {i} came after write {j}\n{program:?}");
            }
        }
    }
    reordered
}

#[test]
fn streams_and_events_order_what_they_say() {
    let reordered = check_programs(false);
    assert!(reordered > 1_000, "only {reordered} pairs of unordered writes came the other way round");
}

#[test]
fn an_event_may_be_recorded_on_one_stream_after_another() {
    check_programs(true);
}

#[test]
fn without_its_waits_some_program_shows_the_wrong_order() {
    let wrong = |seed: &u64| {
        let program = Program::random(&mut Rng::new(*seed), false);
        wrong_order(&program.before(), &program.run(HostDevice::deferred(seed * 31 + 7), false)).is_some()
    };
    let count = (0..1_000).filter(wrong).count();
    assert!(count > 100, "only {count} of 1000 programs noticed that their waits were missing");
}

#[test]
fn a_seed_gives_one_order_and_seeds_differ() {
    let program = Program::random(&mut Rng::new(5), false);
    let runs: Vec<_> = (0..20).map(|seed| program.run(HostDevice::deferred(seed), true)).collect();
    for (seed, run) in runs.iter().enumerate() {
        assert_eq!(*run, program.run(HostDevice::deferred(seed as u64), true), "seed {seed}");
    }
    assert!(runs.iter().any(|run| *run != runs[0]));
}

static A: [u8; 1] = [1];
static B: [u8; 1] = [2];

/// A deferred device with two further streams, two events and one byte of memory.
fn two_streams(seed: u64) -> (HostDevice, [Stream; 2], [Event; 2], Memory) {
    let mut device = HostDevice::deferred(seed);
    let streams = [device.create_stream().unwrap(), device.create_stream().unwrap()];
    let events = [device.create_event().unwrap(), device.create_event().unwrap()];
    let memory = device.allocate(1, 1).unwrap();
    (device, streams, events, memory)
}

#[test]
fn work_of_one_stream_is_done_in_order() {
    for seed in 0..100 {
        let (mut device, [a, _], _, memory) = two_streams(seed);
        write(&mut device, a, memory, 0, &A).unwrap();
        write(&mut device, a, memory, 0, &B).unwrap();
        assert_eq!(read(&mut device, memory, 1), B, "seed {seed}");
    }
}

#[test]
fn two_streams_without_a_fence_go_either_way() {
    let last = |seed| {
        let (mut device, [a, b], _, memory) = two_streams(seed);
        write(&mut device, a, memory, 0, &A).unwrap();
        write(&mut device, b, memory, 0, &B).unwrap();
        read(&mut device, memory, 1)[0]
    };
    let counts = (0..100).fold([0; 3], |mut counts, seed| {
        counts[last(seed) as usize] += 1;
        counts
    });
    assert!(counts[1] >= 10 && counts[2] >= 10, "first, A and B came last: {counts:?}");
}

#[test]
fn a_wait_puts_one_stream_behind_another() {
    for seed in 0..100 {
        let (mut device, [a, b], [event, _], memory) = two_streams(seed);
        write(&mut device, a, memory, 0, &A).unwrap();
        device.record(event, a).unwrap();
        device.wait(b, event).unwrap();
        write(&mut device, b, memory, 0, &B).unwrap();
        assert_eq!(read(&mut device, memory, 1), B, "seed {seed}");
    }
}

#[test]
fn a_wait_means_the_point_recorded_by_then_and_not_a_later_one() {
    let mut early = 0;
    for seed in 0..100 {
        let (mut device, [a, b], [event, _], memory) = two_streams(seed);
        device.record(event, a).unwrap();
        device.wait(b, event).unwrap();
        write(&mut device, b, memory, 0, &B).unwrap();
        write(&mut device, a, memory, 0, &A).unwrap();
        device.record(event, a).unwrap();
        early += usize::from(read(&mut device, memory, 1) == A);

        // If the wait meant the later point, the two streams would wait for each other.
        let (mut device, [a, b], [event, back], memory) = two_streams(seed);
        device.record(event, a).unwrap();
        device.wait(b, event).unwrap();
        write(&mut device, b, memory, 0, &B).unwrap();
        device.record(back, b).unwrap();
        device.wait(a, back).unwrap();
        write(&mut device, a, memory, 0, &A).unwrap();
        device.record(event, a).unwrap();
        assert_eq!(read(&mut device, memory, 1), A, "seed {seed}");
    }
    assert!(early > 0, "no seed let the waiting stream go before the later point");
}

#[test]
fn a_wait_for_an_event_that_was_never_recorded_waits_for_nothing() {
    for seed in 0..100 {
        let (mut device, [a, b], [event, back], memory) = two_streams(seed);
        device.wait(b, event).unwrap();
        write(&mut device, b, memory, 0, &B).unwrap();
        device.record(back, b).unwrap();
        // Recorded only behind what waits: it must not be this record that is waited for.
        device.wait(a, back).unwrap();
        write(&mut device, a, memory, 0, &A).unwrap();
        device.record(event, a).unwrap();
        device.synchronize(b).unwrap();
        assert_eq!(read(&mut device, memory, 1), A, "seed {seed}");
    }
}

#[test]
fn a_second_stream_that_records_an_event_does_not_release_who_waits_for_the_first() {
    for seed in 0..100 {
        let (mut device, [a, b], [event, _], memory) = two_streams(seed);
        write(&mut device, a, memory, 0, &A).unwrap();
        device.record(event, a).unwrap();
        device.wait(b, event).unwrap();
        write(&mut device, b, memory, 0, &B).unwrap();
        device.record(event, Stream::DEFAULT).unwrap();
        assert_eq!(read(&mut device, memory, 1), B, "seed {seed}: the write behind the wait came first");
    }
}

#[test]
fn an_event_recorded_on_two_streams_is_reached_whichever_goes_first() {
    for seed in 0..100 {
        let (mut device, [a, b], [event, _], memory) = two_streams(seed);
        device.record(event, a).unwrap();
        device.record(event, b).unwrap();
        device.wait(Stream::DEFAULT, event).unwrap();
        write(&mut device, Stream::DEFAULT, memory, 0, &A).unwrap();
        let end = catch_unwind(AssertUnwindSafe(|| read(&mut device, memory, 1)));
        assert_eq!(end.ok(), Some(A.to_vec()), "seed {seed}: the device did not come to an end");
    }
}

/// Enqueues a copy of `source`, which the caller leaves alone until the copy must be done.
fn copy_of(device: &mut HostDevice, stream: Stream, memory: Memory, offset: u64, source: &[u8]) {
    let row_bytes = source.len() as u64;
    let target = DeviceSpan { memory, offset, stride: row_bytes };
    let source = HostSpan { base: source.as_ptr(), stride: row_bytes };
    // SAFETY: the tests below overwrite the source, which stays allocated to their end, only after a call that returns
    // when the copy is done.
    unsafe { device.copy_rows(stream, &RowCopy { source: source.into(), target, row_bytes, row_count: 1 }) }.unwrap();
}

#[test]
fn a_synchronised_stream_is_done_with_its_sources_and_with_those_it_waits_for() {
    for seed in 0..100 {
        let (mut device, [a, b], [event, _], _) = two_streams(seed);
        let memory = device.allocate(12, 1).unwrap();
        let mut sources = [[1_u8; 4], [2; 4], [3; 4]];
        copy_of(&mut device, a, memory, 0, &sources[0]);
        device.record(event, a).unwrap();
        device.wait(b, event).unwrap();
        copy_of(&mut device, b, memory, 4, &sources[1]);
        // Behind the recorded point: nobody who synchronises `b` may count on it, so its source is left alone.
        copy_of(&mut device, a, memory, 8, &sources[2]);
        device.synchronize(b).unwrap();
        sources[0].fill(0xBD);
        sources[1].fill(0xBD);
        std::hint::black_box(&mut sources);
        assert_eq!(read(&mut device, memory, 12), [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3], "seed {seed}");
    }
}

#[test]
fn a_read_sees_what_every_stream_was_given() {
    for seed in 0..100 {
        let (mut device, [a, b], _, _) = two_streams(seed);
        let memory = device.allocate(3, 1).unwrap();
        let other = device.allocate(1, 1).unwrap();
        write(&mut device, a, memory, 0, &A).unwrap();
        write(&mut device, b, memory, 1, &B).unwrap();
        write(&mut device, Stream::DEFAULT, memory, 2, &A).unwrap();
        write(&mut device, b, other, 0, &B).unwrap();
        assert_eq!(read(&mut device, memory, 3), [1, 2, 1], "seed {seed}");
        assert_eq!(read(&mut device, other, 1), B, "seed {seed}");
    }
}

#[test]
fn what_is_written_comes_behind_what_every_stream_was_given() {
    for seed in 0..20 {
        let mut device = HostDevice::deferred(seed);
        let memory = device.allocate(8, 1).unwrap();
        let stream = device.create_stream().unwrap();
        let source = [1; 8];
        copy_of(&mut device, stream, memory, 0, &source);
        device.write(memory, 2, &[2; 3]).unwrap();
        assert_eq!(read(&mut device, memory, 8), [1, 1, 2, 2, 2, 1, 1, 1]);
        device.write(memory, 8, &[]).unwrap();
        let unknown = DeviceError::UnknownHandle { what: "memory", handle: 9 };
        assert_eq!(device.write(Memory(9), 0, &[]), Err(unknown));
    }
}

#[test]
fn a_device_that_only_copies_has_no_kernels() {
    let mut device = HostDevice::new();
    let arguments = [0; Kernel::Reset.argument_bytes()];
    let launch =
        Launch { kernel: Kernel::Reset, block_count: 1, thread_count: 32, shared_bytes: 0, arguments: &arguments };
    // SAFETY: it is refused.
    let launched = unsafe { device.launch(Stream::DEFAULT, &launch) };
    let refused = [device.prepare_kernels(), launched, device.kernel_address(arguments.as_ptr(), 1).map(|_| ())];
    let (name, reason) = (device.name(), "it only copies".to_owned());
    let wanted = Err(DeviceError::NoKernels { device: name, reason });
    assert!(refused.iter().all(|refused| *refused == wanted), "{refused:?}");
}

#[test]
fn freeing_waits_for_what_is_enqueued() {
    for seed in 0..100 {
        let (mut device, [a, b], _, memory) = two_streams(seed);
        let kept = device.allocate(4, 1).unwrap();
        let mut source = [4_u8; 4];
        write(&mut device, a, memory, 0, &A).unwrap();
        copy_of(&mut device, b, kept, 0, &source);
        device.free(memory);
        source.fill(0xBD);
        std::hint::black_box(&mut source);
        assert_eq!(read(&mut device, kept, 4), [4; 4], "seed {seed}");
    }
}

#[test]
fn a_device_with_work_held_back_may_move_to_another_thread() {
    let (mut device, [a, _], _, memory) = two_streams(9);
    write(&mut device, a, memory, 0, &B).unwrap();
    let bytes = std::thread::spawn(move || read(&mut device, memory, 1)).join().unwrap();
    assert_eq!(bytes, B);
}

#[test]
fn memory_begins_where_it_was_asked_to() {
    let mut device = HostDevice::new();
    for alignment in [1, 2, 64, 4096, 1 << 20] {
        for bytes in [0, 1, 100, 5000] {
            let memory = device.allocate(bytes, alignment).unwrap();
            assert_eq!(device.address(memory).unwrap() % alignment, 0, "{bytes} bytes at {alignment}");
            let mut read = vec![1; bytes as usize];
            device.read(memory, 0, &mut read).unwrap();
            assert_eq!(read, vec![0; bytes as usize]);
        }
    }
}
