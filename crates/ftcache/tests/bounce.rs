//! Rows that the device cannot read where they lie: every byte arrives through a small pinned buffer, whatever its
//! size, and nobody who enqueues waits. Worked case C16.

#[path = "support/program.rs"]
mod program;
#[path = "support/rig.rs"]
mod rig;
#[path = "support/watchdog.rs"]
mod watchdog;

use ftcache::{
    BankError, BankId, BounceSize, Budget, Constraints, Device, Error, Geometry, HostDevice, HostRows, Scope, SlotId,
    Staging, Stream, Streams,
};
use ftcache_testkit::Rng;
use program::Extras;
use rig::{Layout, Pinned, Rig, bytes_of, cuda, emulated, layer, padded, tagged_model};
use watchdog::Watchdog;

const ONE: Streams = Streams::one(Stream::DEFAULT);

/// A device with a link: it copies from registered memory only.
fn linked(seed: Option<u64>) -> Box<dyn Device> {
    Box::new(seed.map_or_else(HostDevice::new, HostDevice::deferred).reading_registered_only())
}

fn size(entry_bytes: u64, entry_count: u32, thread_count: u32) -> BounceSize {
    BounceSize { entry_bytes, entry_count, thread_count }
}

/// Eight experts of 1 MiB, an eighth in each bank, so that as many MiB are pinned as banks.
fn c16(slots: u64, pinned_banks: usize) -> (Rig, Vec<Vec<SlotId>>) {
    const BANK_BYTES: u64 = 128 << 10;
    let model = tagged_model(8, 2, &[("a", &[BANK_BYTES; 8])]);
    let geometry = Geometry::new(model, Constraints::new(Budget::Slots(slots))).unwrap();
    let pinned = Pinned::Below(pinned_banks);
    let mut rig = Rig::bouncing(geometry, linked(None), pinned, size(1 << 20, 2, 1));
    let source: Vec<Vec<Vec<u8>>> =
        (0..8).map(|bank| (0..8).map(|expert| bytes_of(0, expert, bank, BANK_BYTES)).collect()).collect();
    let mut rng = Rng::new(16);
    let mut slots = Vec::new();
    let mut row = vec![0; BANK_BYTES as usize];
    for step in 0..1_000 {
        let routes = [rng.below(8) as u32, rng.below(8) as u32].map(ftcache::ExpertId::new);
        let given = rig.cache.load(layer(0), &routes).unwrap().to_vec();
        // What has just been copied; hits were compared when they were.
        for copy in rig.cache.plan().copies().to_vec() {
            for bank in 0..8 {
                rig.cache.read_row(layer(0), BankId::new(bank), copy.slot, &mut row).unwrap();
                assert!(row == source[bank as usize][copy.row.index()], "step {step}, bank {bank}: {routes:?}");
            }
        }
        slots.push(given);
    }
    (rig, slots)
}

#[test]
fn what_is_in_the_slots_does_not_depend_on_what_is_pinned() {
    let _watchdog = Watchdog::new("C16");
    for slots in [8, 4, 2] {
        let mut answers = Vec::new();
        for pinned_mib in [0, 1, 3, 8] {
            let (mut rig, given) = c16(slots, pinned_mib);
            if let Some(wrong) = rig.slots_wrong() {
                panic!("{slots} slots, {pinned_mib} MiB pinned: {wrong}");
            }
            answers.push((given, rig.cache.residency().digest()));
        }
        assert!(answers.windows(2).all(|pair| pair[0] == pair[1]), "{slots} slots");
    }
}

/// Two layouts, rows of 40, 2, 9 and of 24, 2 and 13 bytes.
fn geometry() -> Geometry {
    let (wide, narrow): (Layout, Layout) = (("wide", &[40, 2, 9]), ("narrow", &[24, 2, 0, 13]));
    Geometry::new(tagged_model(8, 2, &[wide, narrow, wide, narrow]), padded(18, Scope::Unified, 3, 8, 9)).unwrap()
}

/// Runs a test over several sizes of the buffer and devices, with nothing pinned, some of it and all.
fn on_every_bounce(run: impl Fn(&mut Rig, &str)) {
    let _watchdog = Watchdog::new("bounce");
    // Entries smaller than a row; of a row; of many rows; one alone; more than there are jobs; more threads than
    // entries.
    let sizes = [size(7, 3, 1), size(40, 2, 2), size(200, 1, 1), size(1, 64, 3), size(16, 2, 8), size(4096, 16, 2)];
    for size in sizes {
        for pinned in [Pinned::None, Pinned::Below(5), Pinned::All] {
            for seed in [None, Some(1), Some(2)] {
                let context = format!("{size:?}, {pinned:?}, host {seed:?}");
                let mut rig = Rig::bouncing(geometry(), linked(seed), pinned, size);
                run(&mut rig, &context);
                rig.check(&context);
            }
            for seed in 0..2 {
                let context = format!("{size:?}, {pinned:?}, emulated {seed}");
                let world = emulated(seed);
                let mut rig = Rig::bouncing(geometry(), cuda(&world), pinned, size);
                run(&mut rig, &context);
                rig.check(&context);
                drop(rig);
                world.check_gone();
            }
        }
    }
}

#[test]
fn every_byte_of_every_row_arrives_whatever_the_size_of_the_buffer() {
    on_every_bounce(|rig, context| {
        let streams = [ONE, Streams { compute: rig.stream(), copy: rig.stream() }];
        for step in 0..6 {
            let number = step % 4;
            let routes: Vec<u32> = (0..5).map(|route| (route * 3 + step) % 8).collect();
            rig.load(streams[step as usize % 2], layer(number), &routes).unwrap();
        }
        rig.compare(context);
        rig.fill(streams[1]);
    });
}

#[test]
fn layers_are_staged_and_brought_back_through_the_buffer() {
    on_every_bounce(|rig, context| {
        let streams = Streams { compute: rig.stream(), copy: rig.stream() };
        rig.cache.set_staging(Staging::dedicated(rig.cache.geometry(), 2), 10).unwrap();
        rig.load(streams, layer(0), &[1, 2, 5]).unwrap();
        rig.cache.begin_chunk(streams).unwrap();
        for number in 0..4 {
            rig.cache.prefetch(layer(number)).unwrap();
            let buffer = rig.cache.wait(layer(number)).unwrap();
            rig.look_at_staged(streams.compute, number, buffer, true);
            rig.cache.release(layer(number)).unwrap();
        }
        rig.cache.end_chunk().unwrap();
        rig.fill(streams);
        let residents = rig.cache.residents(1);
        rig.cache.reset().unwrap();
        rig.cache.bring_back(streams, &residents, 1).unwrap();
        rig.check(context);
        assert_eq!(rig.cache.residents(1), residents, "{context}");
    });
}

#[test]
fn decode_and_prefill_mixed_go_through_one_small_buffer_in_any_order_of_streams() {
    let _watchdog = Watchdog::new("mixed through a buffer");
    for seed in 0..300 {
        let extras = Extras { later: seed % 2 == 0, hints: seed / 2 % 2 == 0 };
        let geometry = program::geometry(&mut Rng::new(seed), extras);
        let size = size(1 + seed % 23, 1 + seed as u32 % 3, 1 + seed as u32 % 2);
        let pinned = Pinned::Below(seed as usize % 6);
        let mut rig = Rig::bouncing(geometry.clone(), linked(Some(seed)), pinned, size);
        program::run(&mut rig, seed, 16, extras);
        rig.check(&format!("host, seed {seed}"));
        drop(rig);
        if seed % 3 == 0 {
            let world = emulated(seed);
            let mut rig = Rig::bouncing(geometry, cuda(&world), pinned, size);
            program::run(&mut rig, seed, 16, extras);
            rig.check(&format!("emulated, seed {seed}"));
            drop(rig);
            world.check_gone();
        }
    }
}

#[test]
fn nobody_who_enqueues_waits() {
    let _watchdog = Watchdog::new("nobody waits");
    for seed in 0..8 {
        let world = emulated(seed);
        let device = world.emulated.as_ref().unwrap();
        let mut rig = Rig::bouncing(geometry(), cuda(&world), Pinned::None, size(7, 2, 1));
        let streams = Streams { compute: rig.stream(), copy: rig.stream() };
        rig.cache.set_staging(Staging::dedicated(rig.cache.geometry(), 2), 0).unwrap();
        let before = (device.blocking_calls(), device.counts().pageable_copies);
        // Hundreds of jobs for two entries.
        for number in 0..4 {
            rig.cache.load_on(streams, layer(number), &rig::experts(&[0, 1, 2, 3, 4, 5, 6, 7])).unwrap();
        }
        rig.cache.begin_chunk(streams).unwrap();
        rig.cache.prefetch(layer(0)).unwrap();
        rig.cache.prefetch(layer(1)).unwrap();
        rig.cache.wait(layer(0)).unwrap();
        rig.cache.abandon_chunk().unwrap();
        assert_eq!((device.blocking_calls(), device.counts().pageable_copies), before, "seed {seed}");
        rig.check(&format!("seed {seed}"));
        drop(rig);
        world.check_gone();
    }
}

#[test]
fn rows_that_need_a_buffer_are_attached_only_where_there_is_one() {
    let probe = rig::Probe::new(linked(None));
    let cache = ftcache::Cache::new(geometry(), probe.clone()).unwrap();
    let mut rig = Rig::unattached(cache, probe);
    let rows = || HostRows::owned(vec![1; 8 * 40].into(), 0);
    let (first, bank) = (layer(0), BankId::new(0));
    let error = rig.refused(|cache| cache.attach(first, bank, rows()));
    assert_eq!(error, Error::Bank(BankError::NotPinned { layer: first, bank }));
    for size in [size(0, 2, 1), size(7, 0, 1), size(7, 2, 0), size(u64::MAX, 2, 1)] {
        let error = rig.refused(|cache| cache.set_bounce(size));
        assert!(matches!(error, Error::Device(_)), "{error}");
    }
    rig.cache.set_bounce(size(7, 2, 1)).unwrap();
    let error = rig.refused(|cache| cache.set_bounce(size(7, 2, 1)));
    assert!(matches!(error, Error::Device(_)), "{error}");
    rig.cache.attach(first, bank, rows()).unwrap();
}
