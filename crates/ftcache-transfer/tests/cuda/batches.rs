//! Batches once they are on: what goes in them and what goes alone, and what happens when the driver refuses one.

use std::fmt::Write;
use std::sync::{Arc, Mutex};

use ftcache_cuda_emu::client::{Batch, Config};
use ftcache_transfer::{BatchRefusal, BatchReport, BatchSignature, CudaDevice, Device, Memory, RowCopy, Stream};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

use crate::cuda_world::CudaWorld;
use crate::probe::{NEW, OLD};
use crate::raw::Engine;
use crate::support::{
    PAGE, Pages, contents, copy_all, current_device, emulated, line, register, rows, same_bytes, seeded, stream_of,
    world_without,
};

/// Wide enough for a batch where nothing was measured.
const WIDE: usize = 256 << 10;

const SINGLE: &str = "cuMemcpyHtoDAsync_v2";

/// A device whose batches are on, and what its copies are made of.
struct Fixture {
    device: CudaDevice,
    memory: Memory,
    stream: Stream,
    host: Pages,
}

impl Fixture {
    fn new(mut device: CudaDevice) -> Self {
        assert!(matches!(device.probe_batches(0).unwrap(), BatchReport::On { .. }));
        let host = Pages::noise(1, 4 * WIDE);
        register(&mut device, &host).unwrap();
        let memory = device.allocate(4 * WIDE as u64, 1).unwrap();
        let stream = device.create_stream().unwrap();
        Self { device, memory, stream, host }
    }

    fn copy(&self, at: usize, bytes: usize) -> RowCopy {
        line(&self.host[at..][..bytes], self.memory, at as u64)
    }

    fn check_bytes(&mut self, parts: &[(usize, usize)]) {
        let mut image = vec![0; 4 * WIDE];
        parts.iter().for_each(|&(at, bytes)| image[at..][..bytes].copy_from_slice(&self.host[at..][..bytes]));
        same_bytes(&contents(&mut self.device, self.memory, 4 * WIDE), &image, "copied");
    }
}

/// Calls of batches and of single copies.
fn calls(world: &CudaWorld) -> [u64; 2] {
    [emulated(world).calls(NEW) + emulated(world).calls(OLD), emulated(world).calls(SINGLE)]
}

#[test]
fn wide_copies_go_in_one_call_and_small_ones_alone() {
    for hidden in [&[][..], &[NEW]] {
        let world = world_without(hidden, seeded(1));
        let mut it = Fixture::new(world.device());
        let [batches, singles] = calls(&world);
        let parts = [(0, WIDE), (WIDE, WIDE - 1), (2 * WIDE, WIDE), (3 * WIDE, 7), (3 * WIDE + 9, WIDE - 9)];
        let copies = parts.map(|(at, bytes)| it.copy(at, bytes));
        copy_all(&mut it.device, it.stream, &copies).unwrap();
        assert_eq!(calls(&world), [batches + 1, singles + 3]);
        it.check_bytes(&parts);
        // Small rows with gaps go together, too, in the call for those.
        let (source, target) = (rows(&it.host, 20), crate::support::span(it.memory, 0, 30));
        let gaps = RowCopy { source, target, row_bytes: 10, row_count: 50 };
        let before = emulated(&world).calls("cuMemcpy2DAsync_v2");
        copy_all(&mut it.device, it.stream, &[gaps, copies[3]]).unwrap();
        assert_eq!(emulated(&world).calls("cuMemcpy2DAsync_v2"), before + 1);
        let singles = singles + 1;
        assert_eq!(calls(&world), [batches + 1, singles + 3]);
        // What a batch would have one entry of needs none, nor does a copy by itself.
        copy_all(&mut it.device, it.stream, &copies[2..4]).unwrap();
        assert_eq!(calls(&world), [batches + 1, singles + 5]);
        copy_all(&mut it.device, it.stream, &copies[..1]).unwrap();
        copy_all(&mut it.device, it.stream, &[]).unwrap();
        assert_eq!(calls(&world), [batches + 1, singles + 6]);
        drop(it.device);
        world.check_gone();
    }
}

#[test]
fn small_copies_do_not_make_a_call_wait() {
    // Reported fault B32: a small entry beside a large one blocks.
    let world = CudaWorld::emulated(seeded(2));
    let mut it = Fixture::new(world.device());
    emulated(&world).set_batch(Batch::BlocksOnSmallEntries { below_bytes: WIDE as u64 });
    let before = emulated(&world).blocking_calls();
    let parts = [(0, WIDE), (WIDE, 16), (2 * WIDE, WIDE), (3 * WIDE, 22_528)];
    let copies = parts.map(|(at, bytes)| it.copy(at, bytes));
    copy_all(&mut it.device, it.stream, &copies).unwrap();
    assert_eq!(emulated(&world).blocking_calls(), before);
    it.check_bytes(&parts);
}

#[test]
fn a_small_piece_that_a_registration_cuts_off_does_not_make_a_call_wait() {
    let world = CudaWorld::emulated(seeded(3));
    let mut it = Fixture::new(world.device());
    it.device.unregister(it.host.as_ptr()).unwrap();
    // The first copy is 4 KiB in one registration and the rest in the next.
    register(&mut it.device, &it.host[..PAGE]).unwrap();
    register(&mut it.device, &it.host[PAGE..]).unwrap();
    emulated(&world).set_batch(Batch::BlocksOnSmallEntries { below_bytes: WIDE as u64 });
    let before = emulated(&world).blocking_calls();
    let parts = [(0, WIDE + PAGE), (2 * WIDE, WIDE)];
    let copies = parts.map(|(at, bytes)| it.copy(at, bytes));
    copy_all(&mut it.device, it.stream, &copies).unwrap();
    assert_eq!(emulated(&world).blocking_calls(), before);
    it.check_bytes(&parts);
}

#[test]
fn the_default_stream_takes_no_batch_under_any_of_its_names() {
    // The default stream's handle is 0, and 1 where it is called by name.
    for stream in [Stream::DEFAULT, stream_of(1)] {
        let world = CudaWorld::emulated(seeded(4));
        let mut it = Fixture::new(world.device());
        let [batches, singles] = calls(&world);
        let parts = [(0, WIDE), (WIDE, WIDE)];
        let copies = parts.map(|(at, bytes)| it.copy(at, bytes));
        copy_all(&mut it.device, stream, &copies).unwrap();
        assert_eq!(calls(&world), [batches, singles + 2], "{stream:?}");
        it.check_bytes(&parts);
        assert!(matches!(it.device.batches(), BatchReport::On { .. }), "{}", it.device.batches());
        drop(it.device);
        world.check_gone();
    }
}

#[test]
fn batches_go_into_the_engines_streams() {
    let world = CudaWorld::new(5);
    let engine = Engine::new(&world);
    let mut device = current_device(&world);
    device.probe_batches(0).unwrap();
    let host = Pages::noise(5, 2 * WIDE);
    register(&mut device, &host).unwrap();
    let memory = device.allocate(2 * WIDE as u64, 1).unwrap();
    for stream in [engine.stream(true), engine.stream(false), 2].map(stream_of) {
        device
            .clear_rows(stream, &ftcache_transfer::DeviceSpan { memory, offset: 0, stride: 1 }, 2 * WIDE as u64, 1)
            .unwrap();
        let (one, two) = host.split_at(WIDE);
        copy_all(&mut device, stream, &[line(one, memory, 0), line(two, memory, WIDE as u64)]).unwrap();
        same_bytes(&contents(&mut device, memory, 2 * WIDE), &host, "in the engine's stream");
        if world.emulated.is_some() {
            assert!(matches!(device.batches(), BatchReport::On { .. }));
        }
    }
    drop(device);
    drop(engine);
    if let Some(emulated) = &world.emulated {
        emulated.check();
    }
}

#[test]
fn a_batch_that_is_refused_later_goes_one_by_one_and_no_other_is_tried() {
    // Reported fault B33.
    for (hidden, signature) in [(OLD, BatchSignature::New), (NEW, BatchSignature::Old)] {
        let world = world_without(&[hidden], seeded(6));
        let mut it = Fixture::new(world.device());
        let wanted = BatchReport::On { signature, alone_below_bytes: WIDE as u64 };
        assert_eq!(it.device.batches(), &wanted);
        emulated(&world).set_batch(Batch::Fails { code: 1 });
        let [batches, singles] = calls(&world);
        let parts = [(0, WIDE), (WIDE, 100), (2 * WIDE, WIDE), (3 * WIDE, WIDE)];
        let copies = parts.map(|(at, bytes)| it.copy(at, bytes));
        copy_all(&mut it.device, it.stream, &copies).unwrap();
        assert_eq!(calls(&world), [batches + 1, singles + 4]);
        it.check_bytes(&parts);
        let reason = "CUDA_ERROR_INVALID_VALUE (1): invalid argument".to_owned();
        let refusal = BatchRefusal::RefusedLater { entries: 3, code: 1, reason };
        assert_eq!(it.device.batches(), &BatchReport::Off(refusal));
        emulated(&world).set_batch(Batch::Right);
        copy_all(&mut it.device, it.stream, &copies).unwrap();
        assert_eq!(calls(&world), [batches + 1, singles + 8]);
        // Whoever asks anew may have them again.
        assert_eq!(it.device.probe_batches(0).unwrap(), &wanted);
        drop(it.device);
        world.check_gone();
    }
}

#[test]
fn rows_with_gaps_are_entries_of_their_own_and_rows_without_are_one() {
    let world = CudaWorld::emulated(Config { batch: Batch::Right, ..seeded(7) });
    let mut it = Fixture::new(world.device());
    let [batches, singles] = calls(&world);
    let wide = WIDE as u64;
    let source = rows(&it.host, wide + 1);
    let gaps = RowCopy { source, target: crate::support::span(it.memory, 0, wide + 2), row_bytes: wide, row_count: 2 };
    let packed = RowCopy {
        source: rows(&it.host, 8),
        target: crate::support::span(it.memory, 3 * wide, 8),
        row_bytes: 8,
        row_count: wide / 8,
    };
    copy_all(&mut it.device, it.stream, &[gaps, packed]).unwrap();
    assert_eq!(calls(&world), [batches + 1, singles]);
    let found = contents(&mut it.device, it.memory, 4 * WIDE);
    same_bytes(&found[..WIDE], &it.host[..WIDE], "first row");
    assert_eq!(found[WIDE..WIDE + 2], [0; 2]);
    same_bytes(&found[WIDE + 2..][..WIDE], &it.host[WIDE + 1..][..WIDE], "second row");
    same_bytes(&found[3 * WIDE..], &it.host[..WIDE], "packed rows");
    drop(it.device);
    world.check_gone();
}

#[test]
fn a_failing_single_copy_after_a_refused_batch_is_named() {
    let world = CudaWorld::emulated(seeded(8));
    let mut it = Fixture::new(world.device());
    emulated(&world).set_batch(Batch::Fails { code: 1 });
    let copies = [0, WIDE, 2 * WIDE].map(|at| it.copy(at, WIDE));
    emulated(&world).fail_call(SINGLE, 1, 719);
    let refused = copy_all(&mut it.device, it.stream, &copies).unwrap_err();
    assert_eq!(refused.index, 1);
    assert_eq!(crate::support::code(&refused.source), 719);
}

/// Keeps the warnings of this thread.
#[derive(Default, Clone)]
struct Warnings(Arc<Mutex<Vec<String>>>);

struct Fields<'a>(&'a mut String);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        write!(self.0, "{}={value:?} ", field.name()).expect("a string takes it");
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = String::new();
        event.record(&mut Fields(&mut text));
        self.0.lock().expect("nobody panics with it").push(text);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// A batch that is refused, and two that are not tried.
fn refused_batch() {
    let world = CudaWorld::emulated(seeded(9));
    let mut it = Fixture::new(world.device());
    emulated(&world).set_batch(Batch::Fails { code: 801 });
    let copies = [0, WIDE].map(|at| it.copy(at, WIDE));
    (0..3).for_each(|_| copy_all(&mut it.device, it.stream, &copies).unwrap());
}

#[test]
fn a_refusal_is_logged_once_with_its_reason() {
    let warnings = Warnings::default();
    let is_empty = || warnings.0.lock().unwrap().is_empty();
    tracing::subscriber::with_default(warnings.clone(), || {
        // `tracing` asks whoever comes first to a place whether it is of interest there, and threads of other tests
        // have nobody who listens. One that comes there just now may have the last word, so it is asked again.
        for _ in 0..100 {
            tracing::callsite::rebuild_interest_cache();
            refused_batch();
            if !is_empty() {
                break;
            }
        }
    });
    let texts = warnings.0.lock().unwrap().clone();
    assert_eq!(texts.len(), 1, "{texts:?}");
    assert!(texts[0].contains("a batch of 2 entries: CUDA_ERROR_NOT_SUPPORTED (801)"), "{texts:?}");
}
