//! A bounce buffer when things go wrong: copies and words that are refused, devices that fail late, caches that go with
//! work on its way. What comes after is right, and nothing hangs.

#[path = "support/rig.rs"]
mod rig;
#[path = "support/watchdog.rs"]
mod watchdog;

use ftcache::{BankId, BounceSize, Device, Error, Geometry, HostDevice, HostRows, Scope, Staging, Stream, Streams};
use rig::{Pinned, Rig, bytes_of, cuda, emulated, layer, padded, tagged_model};
use watchdog::Watchdog;

const ONE: Streams = Streams::one(Stream::DEFAULT);

fn linked(seed: Option<u64>) -> Box<dyn Device> {
    Box::new(seed.map_or_else(HostDevice::new, HostDevice::deferred).reading_registered_only())
}

fn geometry() -> Geometry {
    let wide: &[u64] = &[40, 2, 9];
    Geometry::new(tagged_model(8, 2, &[("a", wide), ("a", wide)]), padded(9, Scope::Unified, 3, 8, 9)).unwrap()
}

const SIZE: BounceSize = BounceSize { entry_bytes: 16, entry_count: 2, thread_count: 2 };

/// Runs a test on the devices there are, with numbers from zero on until it returns false. It may leave work on its
/// way.
fn with_each_number(run: impl Fn(&mut Rig, u64, &str) -> bool) {
    for seed in [None, Some(1), Some(2)] {
        for number in 0.. {
            let mut rig = Rig::bouncing(geometry(), linked(seed), Pinned::Below(1), SIZE);
            if !run(&mut rig, number, &format!("host {seed:?}, {number}")) {
                break;
            }
        }
    }
    for seed in 0..2 {
        for number in 0.. {
            let world = emulated(seed);
            let mut rig = Rig::bouncing(geometry(), cuda(&world), Pinned::Below(1), SIZE);
            let goes_on = run(&mut rig, number, &format!("emulated {seed}, {number}"));
            drop(rig);
            world.check_gone();
            if !goes_on {
                break;
            }
        }
    }
}

/// A step that is refused somewhere, and what comes after. Returns whether something was refused.
fn fails_once(rig: &mut Rig, forked: bool, context: &str, refuse: impl Fn(&mut Rig)) -> bool {
    let streams = if forked { Streams { compute: rig.stream(), copy: rig.stream() } } else { ONE };
    rig.load(streams, layer(0), &[0, 1]).unwrap();
    refuse(rig);
    let outcome = rig.load(streams, layer(1), &[7, 2, 3, 5]);
    (rig.probe.get_mut().fail_copy, rig.probe.get_mut().fail_word) = (None, None);
    let error = outcome.as_ref().err().cloned();
    if let Some(error) = &error {
        let Error::Apply(error) = error else { panic!("{context}: {error}") };
        assert_eq!(error.slots.len(), 4, "{context}");
    }
    // The buffer goes round several times.
    for step in 0..3 {
        rig.load(streams, layer(step % 2), &[step, 7 - step, 3]).unwrap();
    }
    rig.fill(streams);
    rig.check(context);
    error.is_some()
}

#[test]
fn a_copy_that_is_refused_leaves_the_buffer_in_order() {
    let _watchdog = Watchdog::new("a refused copy");
    for forked in [false, true] {
        with_each_number(|rig, number, context| {
            fails_once(rig, forked, context, |rig| rig.probe.get_mut().fail_copy = Some(number))
        });
    }
}

#[test]
fn a_word_that_is_refused_leaves_the_buffer_in_order() {
    let _watchdog = Watchdog::new("a refused word");
    for forked in [false, true] {
        with_each_number(|rig, number, context| {
            fails_once(rig, forked, context, |rig| rig.probe.get_mut().fail_word = Some(number))
        });
    }
}

#[test]
fn a_layer_whose_staging_fails_may_be_staged_again_through_the_buffer() {
    let _watchdog = Watchdog::new("a refused fill");
    with_each_number(|rig, number, context| {
        let streams = Streams { compute: rig.stream(), copy: rig.stream() };
        rig.cache.set_staging(Staging::dedicated(rig.cache.geometry(), 1), 10).unwrap();
        rig.load(streams, layer(0), &[0, 4]).unwrap();
        rig.cache.begin_chunk(streams).unwrap();
        rig.probe.get_mut().fail_copy = Some(number);
        let failed = rig.cache.materialize(layer(0)).is_err();
        rig.probe.get_mut().fail_copy = None;
        if failed {
            rig.cache.materialize(layer(0)).unwrap();
        }
        let buffer = rig.cache.wait(layer(0)).unwrap();
        rig.look_at_staged(streams.compute, 0, buffer, false);
        rig.cache.abandon_chunk().unwrap();
        rig.check(context);
        failed
    });
}

#[test]
fn a_cache_goes_with_rows_on_their_way() {
    let _watchdog = Watchdog::new("a cache that goes");
    with_each_number(|rig, number, _| {
        let streams = Streams { compute: rig.stream(), copy: rig.stream() };
        if number % 2 == 1 {
            rig.probe.get_mut().fail_copy = Some(number);
        }
        for step in 0..number as u32 {
            let _ = rig.cache.load_on(streams, layer(step % 2), &rig::experts(&[step % 8, 3, 6]));
        }
        number < 12
    });
}

#[test]
fn a_device_that_fails_late_hangs_nobody() {
    let _watchdog = Watchdog::new("a late failure");
    for seed in 0..3 {
        for number in 0..24 {
            let world = emulated(seed);
            let device = world.emulated.as_ref().unwrap();
            let mut rig = Rig::bouncing(geometry(), cuda(&world), Pinned::Below(1), SIZE);
            let streams = Streams { compute: rig.stream(), copy: rig.stream() };
            device.fail_late(number, 700);
            for step in 0..4 {
                let _ = rig.cache.load_on(streams, layer(step % 2), &rig::experts(&[step, 3, 6]));
            }
            match number % 3 {
                0 => {}
                1 => assert!(rig.cache.synchronize_all().is_err() || number > 8),
                _ => assert!(rig.cache.synchronize(streams.compute).is_err() || number > 8),
            }
            drop(rig);
            // What failed late is told by every call, and whoever owns the context ends it.
            let _ = (device.races(), device.violations());
        }
    }
}

#[test]
fn rows_that_are_exchanged_may_be_written_at_once() {
    let _watchdog = Watchdog::new("exchanged rows");
    for seed in [None, Some(1), Some(2), Some(3)] {
        let mut rig = Rig::bouncing(geometry(), linked(seed), Pinned::None, SIZE);
        for (number, bank, row_bytes) in [(0, 0, 40), (0, 1, 2), (0, 2, 9)] {
            let rows: Vec<u8> = (0..8).flat_map(|expert| bytes_of(0, expert, bank, row_bytes)).collect();
            let mut first = rows.clone();
            // SAFETY: it is written only when other rows are attached.
            let borrowed = unsafe { HostRows::borrowed(first.as_ptr(), first.len() as u64, 0) };
            rig.cache.attach(layer(number), BankId::new(bank), borrowed).unwrap();
            rig.load(ONE, layer(0), &[0, 1, 2, 3, 4, 5, 6, 7]).unwrap();
            rig.cache.attach(layer(number), BankId::new(bank), HostRows::owned(rows.into(), 0)).unwrap();
            first.fill(0);
            rig.compare(&format!("seed {seed:?}, bank {bank}"));
            rig.cache.reset().unwrap();
        }
        rig.fill(ONE);
        rig.check(&format!("seed {seed:?}"));
    }
}

#[test]
fn memory_that_is_not_pinned_or_threads_that_are_not_had_leave_nothing_behind() {
    let world = emulated(3);
    let device = world.emulated.as_ref().unwrap();
    let probe = rig::Probe::new(cuda(&world));
    let mut rig = Rig::unattached(ftcache::Cache::new(geometry(), probe.clone()).unwrap(), probe);
    device.fail_call("cuMemHostRegister_v2", 0, 304);
    let error = rig.refused(|cache| cache.set_bounce(SIZE));
    assert!(matches!(error, Error::Device(_)), "{error}");
    assert_eq!(device.counts().registrations, 0);
    rig.cache.set_bounce(SIZE).unwrap();
    assert_eq!(device.counts().registered_bytes, SIZE.bytes());
    rig.attach_all(Pinned::None, 0);
    rig.fill(ONE);
    rig.check("a second buffer");
    drop(rig);
    world.check_gone();
}
