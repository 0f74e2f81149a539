//! Random programs of copies over several streams. With all waits that they need, memory ends as if everything had been
//! done in turn, whatever the device does first; with one wait dropped, the device says which operations race.

use std::collections::BTreeSet;

use ftcache_testkit::Rng;
use ftcache_transfer::{CudaDevice, Device, Event, Memory, RowCopy, Stream};

use crate::cuda_world::CudaWorld;
use crate::raw::Engine;
use crate::support::{
    PAGE, Pages, contents, copy_all, copy_rows, current_device, emulated, event_of, line, register, rows, same_bytes,
    span, stream_of,
};

const CELLS: u64 = 6;
const CELL_BYTES: u64 = 5000;

/// One operation as the model knows it.
#[derive(Debug, Clone, Copy)]
struct Done {
    stream: usize,
    /// Its place in its stream, from 1.
    number: u64,
    reads: Option<u64>,
    writes: u64,
}

/// `clock[stream]`: the last operation of it that is done before.
type Clock = Vec<u64>;

fn join(clock: &mut Clock, other: &Clock) {
    clock.iter_mut().zip(other).for_each(|(own, other)| *own = (*own).max(*other));
}

/// A program as it is written down, with the order that it asks for and the order that it gets.
struct Program<'a> {
    device: &'a mut CudaDevice,
    streams: &'a [Stream],
    events: &'a [Event],
    memory: Memory,
    done: Vec<Done>,
    /// What each stream has been given, and what it stands after, with all waits.
    asked: Vec<Clock>,
    /// The same without the wait that was dropped.
    got: Vec<Clock>,
    /// What the host has waited for.
    host: [Clock; 2],
    waits: u64,
    dropped: Option<u64>,
    races: bool,
    image: Vec<u8>,
}

impl Program<'_> {
    fn conflicts(&self, stream: usize, reads: Option<u64>, writes: u64, clock: &Clock) -> BTreeSet<usize> {
        let meets = |done: &&Done| {
            let cells = done.writes == writes || done.reads == Some(writes) || Some(done.writes) == reads;
            cells && done.stream != stream && clock[done.stream] < done.number
        };
        self.done.iter().filter(meets).map(|done| done.stream).collect()
    }

    /// Orders what comes next on a stream behind everything that it meets.
    fn order(&mut self, rng: &mut Rng, stream: usize, reads: Option<u64>, writes: u64) {
        for host in 0..2 {
            let (clocks, host) = (if host == 0 { &mut self.asked } else { &mut self.got }, &self.host[host]);
            join(&mut clocks[stream], host);
        }
        for other in self.conflicts(stream, reads, writes, &self.asked[stream].clone()) {
            if self.asked[stream][other] >= self.asked[other][other] {
                continue;
            }
            let event = self.events[rng.below(self.events.len() as u64) as usize];
            self.device.record(event, self.streams[other]).unwrap();
            if self.dropped != Some(self.waits) {
                self.device.wait(self.streams[stream], event).unwrap();
                let got = self.got[other].clone();
                join(&mut self.got[stream], &got);
            }
            self.waits += 1;
            let asked = self.asked[other].clone();
            join(&mut self.asked[stream], &asked);
        }
        assert!(self.conflicts(stream, reads, writes, &self.asked[stream]).is_empty());
        self.races |= !self.conflicts(stream, reads, writes, &self.got[stream]).is_empty();
    }

    fn note(&mut self, stream: usize, reads: Option<u64>, writes: u64) {
        let number = self.asked[stream][stream] + 1;
        self.asked[stream][stream] = number;
        self.got[stream][stream] = number;
        self.done.push(Done { stream, number, reads, writes });
    }

    fn step(&mut self, rng: &mut Rng, host: &Pages) {
        let stream = rng.below(self.streams.len() as u64) as usize;
        let (cell, from) = (rng.below(CELLS), rng.below(CELLS));
        let (offset, base) = (cell * CELL_BYTES, rng.below(PAGE as u64) as usize);
        let place = offset as usize;
        let handle = self.streams[stream];
        match rng.below(8) {
            0..3 => {
                self.order(rng, stream, None, cell);
                let bytes = &host[base..][..CELL_BYTES as usize];
                copy_rows(self.device, handle, &line(bytes, self.memory, offset)).unwrap();
                self.image[place..][..bytes.len()].copy_from_slice(bytes);
            }
            3..5 if from != cell => {
                self.order(rng, stream, Some(from), cell);
                let row_bytes = CELL_BYTES / 5 - 1;
                let source = span(self.memory, from * CELL_BYTES, CELL_BYTES / 5).into();
                let target = span(self.memory, offset, CELL_BYTES / 5);
                copy_rows(self.device, handle, &RowCopy { source, target, row_bytes, row_count: 5 }).unwrap();
                for row in 0..5 {
                    let at = (from * CELL_BYTES + row * (row_bytes + 1)) as usize;
                    let to = place + (row * (row_bytes + 1)) as usize;
                    self.image.copy_within(at..at + row_bytes as usize, to);
                }
                self.note(stream, Some(from), cell);
                return;
            }
            5 => {
                self.order(rng, stream, None, cell);
                self.device.clear_rows(handle, &span(self.memory, offset, 50), 20, 100).unwrap();
                (0..100).for_each(|row| self.image[place + 50 * row..][..20].fill(0));
            }
            6 => {
                self.order(rng, stream, None, cell);
                let source = rows(&host[base..], 7);
                let all = RowCopy { source, target: span(self.memory, offset, 10), row_bytes: 5, row_count: 40 };
                let last = line(&host[base..][..100], self.memory, offset + 1000);
                copy_all(self.device, handle, &[all, last]).unwrap();
                (0..40)
                    .for_each(|row| self.image[place + 10 * row..][..5].copy_from_slice(&host[base + 7 * row..][..5]));
                self.image[place + 1000..][..100].copy_from_slice(&host[base..][..100]);
            }
            _ => {
                if rng.chance(1, 3) {
                    self.device.synchronize(handle).unwrap();
                    let clocks = [self.asked[stream].clone(), self.got[stream].clone()];
                    self.host.iter_mut().zip(&clocks).for_each(|(host, clock)| join(host, clock));
                }
                return;
            }
        }
        self.note(stream, None, cell);
    }
}

/// Runs a seed's program. Gives the waits that it has, and whether it races without the one that is dropped.
fn run(seed: u64, choices: u64, dropped: Option<u64>) -> (u64, bool) {
    let world = CudaWorld::new(choices);
    let engine = Engine::new(&world);
    let mut device = current_device(&world);
    let host = Pages::noise(seed, 3 * PAGE);
    register(&mut device, &host).unwrap();
    let memory = device.allocate(CELLS * CELL_BYTES, 1).unwrap();
    // The default stream is ordered with none of these.
    let streams = [
        Stream::DEFAULT,
        device.create_stream().unwrap(),
        stream_of(engine.stream(false)),
        device.create_stream().unwrap(),
    ];
    let events = [device.create_event().unwrap(), event_of(engine.event())];
    let clocks = vec![vec![0; streams.len()]; streams.len()];
    let mut program = Program {
        device: &mut device,
        streams: &streams,
        events: &events,
        memory,
        done: Vec::new(),
        asked: clocks.clone(),
        got: clocks,
        host: [vec![0; streams.len()], vec![0; streams.len()]],
        waits: 0,
        dropped,
        races: false,
        image: vec![0; (CELLS * CELL_BYTES) as usize],
    };
    let mut rng = Rng::new(seed);
    (0..40).for_each(|_| program.step(&mut rng, &host));
    let Program { waits, races, image, .. } = program;
    if races {
        let found = emulated(&world).races();
        assert!(!found.is_empty(), "seed {seed}, {choices}: wait {dropped:?} is missing and nobody minds");
    } else {
        let context = format!("seed {seed}, {choices}");
        same_bytes(&contents(&mut device, memory, image.len()), &image, &context);
        drop(device);
        drop(engine);
        if let Some(emulated) = &world.emulated {
            emulated.check();
        }
        return (waits, races);
    }
    (waits, races)
}

#[test]
fn programs_with_all_their_waits_end_as_if_done_in_turn() {
    let mut waits = 0;
    for seed in 0..60 {
        for choices in 0..3 {
            waits += run(seed, seed * 3 + choices, None).0;
        }
    }
    assert!(waits > 1000, "only {waits} waits");
}

#[test]
fn a_dropped_wait_is_a_race_whatever_the_device_does_first() {
    if std::env::var_os("FTCACHE_TEST_GPU").is_some() {
        eprintln!("skipped: a GPU reports no races");
        return;
    }
    let mut raced = 0;
    for seed in 0..40 {
        let (waits, _) = run(seed, 0, None);
        for dropped in (0..waits).step_by(4) {
            let outcomes = [1, 2, 3].map(|choices| run(seed, choices, Some(dropped)).1);
            assert!(outcomes.iter().all(|&races| races == outcomes[0]));
            raced += u64::from(outcomes[0]);
        }
    }
    assert!(raced > 60, "only {raced} races");
}

#[test]
fn a_wait_means_the_point_recorded_by_then_and_not_a_later_one() {
    for seed in 0..30 {
        let world = CudaWorld::emulated(crate::support::seeded(seed));
        let mut device = world.device();
        let host = Pages::noise(seed, 2 * PAGE);
        register(&mut device, &host[..PAGE]).unwrap();
        register(&mut device, &host[PAGE..]).unwrap();
        let memory = device.allocate(PAGE as u64, 1).unwrap();
        let (one, two) = (device.create_stream().unwrap(), device.create_stream().unwrap());
        let event = device.create_event().unwrap();
        copy_rows(&mut device, one, &line(&host[..100], memory, 0)).unwrap();
        device.record(event, one).unwrap();
        device.wait(two, event).unwrap();
        // What comes behind the point stands still, and the wait does not mind.
        let word = host.word(PAGE);
        word.store(0, std::sync::atomic::Ordering::Release);
        crate::support::wait_for_host(&mut device, one, word, 1).unwrap();
        device.record(event, one).unwrap();
        copy_rows(&mut device, two, &line(&host[100..200], memory, 50)).unwrap();
        device.synchronize(two).unwrap();
        assert_eq!(emulated(&world).peek(memory.0, 150), [&host[..50], &host[100..200]].concat(), "seed {seed}");
        assert_eq!(device.has_passed(event), Ok(false));
        word.store(1, std::sync::atomic::Ordering::Release);
        device.synchronize(one).unwrap();
        assert_eq!(device.has_passed(event), Ok(true));
        drop(device);
        world.check_gone();
    }
}
