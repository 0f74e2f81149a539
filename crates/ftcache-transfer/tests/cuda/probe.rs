//! The probe of batched copies: right on any device that does what the manual says, however busy, and with a reason on
//! every other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ftcache_cuda_emu::client::{Batch, Config};
use ftcache_transfer::{BatchRefusal, BatchReport, BatchSignature, CudaDevice, Device, Stream};
use insta::assert_snapshot;

use crate::cuda_world::CudaWorld;
use crate::driver::calls;
use crate::raw::{self, Engine, ok};
use crate::support::{
    PAGE, Pages, contents, copy_all, current_device, emulated, held, line, register, seeded, world_without,
};

pub(crate) const OLD: &str = "cuMemcpyBatchAsync";
pub(crate) const NEW: &str = "cuMemcpyBatchAsync_v2";
/// Entries that the probe copies.
const ENTRIES: usize = 6;

fn probe(device: &mut CudaDevice, large_bytes: u64) -> BatchReport {
    let report = device.probe_batches(large_bytes).unwrap().clone();
    assert_eq!(device.batches(), &report);
    report
}

fn on(signature: BatchSignature) -> BatchReport {
    BatchReport::On { signature, alone_below_bytes: 256 << 10 }
}

fn world_of(batch: Batch, seed: u64) -> CudaWorld {
    CudaWorld::emulated(Config { batch, ..seeded(seed) })
}

/// Two copies go, whatever the probe found, with the right bytes.
fn copies_still_go(device: &mut CudaDevice, wide: usize) {
    let host = Pages::noise(1, 2 * wide);
    register(device, &host).unwrap();
    let memory = device.allocate(2 * wide as u64, 1).unwrap();
    let stream = device.create_stream().unwrap();
    let (one, two) = host.split_at(wide);
    copy_all(device, stream, &[line(one, memory, 0), line(two, memory, wide as u64)]).unwrap();
    assert_eq!(contents(device, memory, 2 * wide), host[..]);
    device.unregister(host.as_ptr()).unwrap();
}

#[test]
fn a_device_that_does_what_the_manual_says_is_found_right_for_every_seed() {
    for seed in 0..60 {
        let world = CudaWorld::emulated(seeded(seed));
        let mut device = world.device();
        let before = held(emulated(&world));
        assert_eq!(device.batches(), &BatchReport::Off(BatchRefusal::NotProbed));
        assert_eq!(probe(&mut device, 0), on(BatchSignature::New), "seed {seed}");
        assert_eq!([OLD, NEW].map(|name| emulated(&world).calls(name)), [0, 1]);
        assert_eq!(held(emulated(&world)), before);
        drop(device);
        world.check_gone();
    }
}

#[test]
fn either_form_of_the_call_will_do_and_a_driver_without_is_told_apart() {
    for seed in 0..20 {
        let world = world_without(&[NEW], seeded(seed));
        let mut device = world.device();
        assert_eq!(probe(&mut device, 0), on(BatchSignature::Old), "seed {seed}");
        copies_still_go(&mut device, 256 << 10);
        assert_eq!([OLD, NEW].map(|name| emulated(&world).calls(name)), [2, 0]);
        drop(device);
        world.check_gone();
    }
    let world = world_without(&[OLD], seeded(0));
    assert_eq!(probe(&mut world.device(), 0), on(BatchSignature::New));
    let world = world_without(&[OLD, NEW], seeded(0));
    let mut device = world.device();
    let before = emulated(&world).calls_total();
    assert_eq!(probe(&mut device, 0), BatchReport::Off(BatchRefusal::MissingSymbol));
    assert!(emulated(&world).calls_total() - before <= 1, "there is nothing to ask the device for");
    copies_still_go(&mut device, 256 << 10);
}

#[test]
fn a_busy_device_is_no_reason_to_find_batches_wrong() {
    // Worked case C8, reported fault B31: other streams are full of work, the default stream among them.
    for seed in 0..40 {
        let world = CudaWorld::emulated(seeded(seed));
        let engine = Engine::new(&world);
        let mut device = current_device(&world);
        let busy = device.allocate(PAGE as u64, 1).unwrap();
        let runs = Arc::new(AtomicBool::new(false));
        let streams = [0, engine.stream(true), engine.stream(false), 2];
        for (at, &stream) in streams.iter().enumerate() {
            let (runs, range) = (Arc::clone(&runs), [(busy.0 + 1024 * at as u64, 1024)]);
            let kernel = move || runs.store(true, Ordering::Release);
            ok(emulated(&world).launch(stream, &[], &range, kernel));
            ok((engine.raw.cuMemsetD8Async)(range[0].0, 7, 1024, stream));
        }
        assert!(!runs.load(Ordering::Acquire));
        assert_eq!(probe(&mut device, 0), on(BatchSignature::New), "seed {seed}");
        device.synchronize_all().unwrap();
        assert!(runs.load(Ordering::Acquire));
        drop(device);
        emulated(&world).check();
    }
}

#[test]
fn the_default_stream_is_left_alone() {
    // While a stream that the default stream waits for is captured, whatever is put there fails and ends the capture.
    for seed in 0..10 {
        let world = CudaWorld::emulated(seeded(seed));
        let engine = Engine::new(&world);
        let raw = engine.raw;
        let mut device = current_device(&world);
        // Frees and synchronisations are nobody's business in a relaxed capture.
        let (stream, relaxed) = (engine.stream(true), 2);
        ok((raw.cuStreamBeginCapture_v2)(stream, relaxed));
        assert_eq!(probe(&mut device, 0), on(BatchSignature::New), "seed {seed}");
        let mut graph = 0;
        ok((raw.cuStreamEndCapture)(stream, &mut graph));
        ok((raw.cuGraphDestroy)(graph));
        emulated(&world).check();
    }
}

#[test]
fn wrong_bytes_at_any_entry_are_found_and_named() {
    for (hidden, signature) in [(OLD, BatchSignature::New), (NEW, BatchSignature::Old)] {
        for wrong in 0..ENTRIES {
            for seed in 0..3 {
                let world =
                    world_without(&[hidden], Config { batch: Batch::WrongBytes { entry: wrong }, ..seeded(seed) });
                let mut device = world.device();
                let report = probe(&mut device, 0);
                let BatchReport::Off(BatchRefusal::WrongBytes { signature: form, entry, offset }) = report else {
                    panic!("entry {wrong}: {report}")
                };
                assert_eq!((form, entry), (signature, wrong));
                assert!(wrong > 0 || offset == 0);
                copies_still_go(&mut device, 256 << 10);
                drop(device);
                world.check_gone();
            }
        }
        // There are no more.
        let world = world_without(&[hidden], Config { batch: Batch::WrongBytes { entry: ENTRIES }, ..seeded(0) });
        assert_eq!(probe(&mut world.device(), 0), on(signature));
    }
}

#[test]
fn bytes_beside_any_entry_are_looked_at() {
    for touched in 0..ENTRIES {
        let world = world_of(Batch::TouchesNeighbours { entry: touched }, touched as u64);
        let mut device = world.device();
        // The byte before an entry is one behind the entry before it; before the first there is nothing.
        let entry = touched.saturating_sub(1);
        let wanted = BatchRefusal::TouchedNeighbour { signature: BatchSignature::New, entry };
        assert_eq!(probe(&mut device, 0), BatchReport::Off(wanted));
        copies_still_go(&mut device, 256 << 10);
        drop(device);
        world.check_gone();
    }
}

#[test]
fn a_refused_batch_is_told_with_the_drivers_code() {
    for (code, text) in [(1, "invalid argument"), (801, "operation not supported"), (4242, "code 4242")] {
        let world = world_of(Batch::Fails { code }, 0);
        let mut device = world.device();
        let report = probe(&mut device, 0);
        let BatchReport::Off(BatchRefusal::Refused { signature: BatchSignature::New, code: told, reason }) = &report
        else {
            panic!("{report}")
        };
        assert_eq!(*told, code);
        assert!(reason.contains(text), "{reason}");
        copies_still_go(&mut device, 256 << 10);
        drop(device);
        world.check_gone();
    }
}

/// Calls that give back what the probe took: what they refuse stays.
const RELEASES: [&str; 4] = ["cuMemFree_v2", "cuMemFreeHost", "cuStreamDestroy_v2", "cuEventDestroy_v2"];

/// Probes a new device, with a fault before. Says how often each call of the driver was made.
fn probe_with(fault: Option<(&'static str, u64)>) -> Vec<(&'static str, u64)> {
    let world = CudaWorld::emulated(seeded(0));
    let engine = Engine::new(&world);
    let mut device = current_device(&world);
    let before = held(emulated(&world));
    let stack = raw::contexts(engine.raw);
    let starts: Vec<u64> = calls().map(|name| emulated(&world).calls(name)).collect();
    if let Some((name, after)) = fault {
        emulated(&world).fail_call(name, after, 999);
    }
    let report = device.probe_batches(0).cloned();
    let counts = calls().zip(starts).map(|(name, start)| (name, emulated(&world).calls(name) - start)).collect();
    assert_eq!(raw::contexts(engine.raw), stack, "{fault:?}");
    emulated(&world).check();
    match (fault, &report) {
        (None, Ok(BatchReport::On { .. })) => {}
        // What could not be given back has no part in the answer.
        (Some((name, _)), Ok(_)) if RELEASES.contains(&name) => return counts,
        (Some((NEW, _)), Ok(BatchReport::Off(BatchRefusal::Refused { code: 999, .. }))) => {}
        // The first is for the copies; the others come before the memory goes, which waits by itself.
        (Some(("cuStreamSynchronize", 0)), Ok(BatchReport::Off(BatchRefusal::Refused { code: 999, .. }))) => {}
        (Some(("cuStreamSynchronize", _)), Ok(BatchReport::On { .. })) => {}
        (Some(("cuCtxPushCurrent_v2", _)), Err(_)) => {}
        (Some(_), Ok(BatchReport::Off(BatchRefusal::NoProbe { .. }))) => {}
        _ => panic!("{fault:?}: {report:?}"),
    }
    assert_eq!(held(emulated(&world)), before, "{fault:?}");
    if matches!(fault, Some((NEW | "cuMemsetD8Async" | "cuMemcpyDtoHAsync_v2", _))) {
        copies_still_go(&mut device, 256 << 10);
    }
    counts
}

#[test]
fn a_probe_that_fails_at_any_call_leaves_nothing_and_copies_go() {
    let made: Vec<_> = probe_with(None).into_iter().filter(|&(_, count)| count > 0).collect();
    for (name, count) in &made {
        (0..*count).for_each(|after| drop(probe_with(Some((name, after)))));
    }
    for call in [NEW, "cuMemHostAlloc", "cuMemAlloc_v2", "cuStreamCreate", "cuEventCreate", "cuMemsetD8Async"] {
        assert!(made.iter().any(|&(name, _)| name == call), "{call}: {made:?}");
    }
}

#[test]
fn a_device_without_room_for_the_probe_says_what_is_missing() {
    let world = CudaWorld::emulated(Config { memory_bytes: 10_000, ..Config::default() });
    let mut device = world.device();
    let report = probe(&mut device, 0);
    let BatchReport::Off(BatchRefusal::NoProbe { operation, reason }) = report else { panic!("{report}") };
    assert_snapshot!(format!("{operation}: {reason}"), @"device memory: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory");
    drop(device);
    world.check_gone();
}

#[test]
fn the_width_from_which_entries_do_not_block_is_measured() {
    // Real time is measured here: what a batch of 32 MiB takes, against what its call takes.
    for (below_bytes, alone_below_bytes) in [(0, 0), (16 << 10, 22 << 10)] {
        let world = world_of(Batch::BlocksOnSmallEntries { below_bytes }, 1);
        let mut device = world.device();
        let wanted = BatchReport::On { signature: BatchSignature::New, alone_below_bytes };
        assert_eq!(probe(&mut device, 32 << 20), wanted);
        assert_eq!(emulated(&world).counts().peak_bytes, 33 << 20);
        drop(device);
        world.check_gone();
    }
}

#[test]
fn calls_that_block_at_every_width_turn_batches_off() {
    let world = world_of(Batch::BlocksOnSmallEntries { below_bytes: 64 << 20 }, 2);
    let mut device = world.device();
    assert_eq!(probe(&mut device, 32 << 20), BatchReport::Off(BatchRefusal::Blocks { bytes: 1 << 20 }));
    copies_still_go(&mut device, 1 << 20);
    drop(device);
    world.check_gone();
}

#[test]
fn a_later_probe_stands_in_the_place_of_an_earlier_one() {
    let world = world_of(Batch::Fails { code: 1 }, 3);
    let mut device = world.device();
    assert!(matches!(probe(&mut device, 0), BatchReport::Off(_)));
    emulated(&world).set_batch(Batch::Right);
    assert_eq!(probe(&mut device, 0), on(BatchSignature::New));
    device.check_stream(Stream::DEFAULT).unwrap();
}

#[test]
fn every_report_is_a_sentence() {
    let (new, old) = (BatchSignature::New, BatchSignature::Old);
    let reason = || "CUDA_ERROR_INVALID_VALUE (1): invalid argument".to_owned();
    let off = [
        BatchRefusal::NotProbed,
        BatchRefusal::MissingSymbol,
        BatchRefusal::NoProbe { operation: "device memory", reason: reason() },
        BatchRefusal::Refused { signature: new, code: 1, reason: reason() },
        BatchRefusal::WrongBytes { signature: old, entry: 2, offset: 252 },
        BatchRefusal::TouchedNeighbour { signature: new, entry: 0 },
        BatchRefusal::Blocks { bytes: 1 << 20 },
        BatchRefusal::RefusedLater { entries: 24, code: 1, reason: reason() },
    ];
    let mut texts = vec![on(new).to_string(), on(old).to_string()];
    texts.extend(off.map(|refusal| BatchReport::Off(refusal).to_string()));
    assert_snapshot!(texts.join("\n"), @r"
    copies in batches by cuMemcpyBatchAsync_v2, entries below 262144 bytes alone
    copies in batches by cuMemcpyBatchAsync, entries below 262144 bytes alone
    copies one by one (not probed)
    copies one by one (the driver has no cuMemcpyBatchAsync)
    copies one by one (the probe had no device memory: CUDA_ERROR_INVALID_VALUE (1): invalid argument)
    copies one by one (cuMemcpyBatchAsync_v2: CUDA_ERROR_INVALID_VALUE (1): invalid argument)
    copies one by one (cuMemcpyBatchAsync: wrong bytes at entry 2, offset 252)
    copies one by one (cuMemcpyBatchAsync_v2: bytes after entry 0 were touched)
    copies one by one (a batch with an entry of 1048576 bytes waits for its copies)
    copies one by one (a batch of 24 entries: CUDA_ERROR_INVALID_VALUE (1): invalid argument)
    ");
}
