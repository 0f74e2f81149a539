//! Other slots for a cache that lives: residents that move beside the old slots, memory that is refused at every
//! allocation, and what is left then. Worked case C11; reported faults B15, B25, B37, B68.

#[path = "support/rig.rs"]
mod rig;

use ftcache::residency::Keep;
use ftcache::{
    BankId, ColdReason, DeviceError, Error, ExpertId, Geometry, HostDevice, Model, PoolId, RebuildError, Rebuilt,
    Scope, SlotId, Staging, StagingLost, Stream, Streams,
};
use rig::{Layout, Pinned, Rig, SCRATCH_BYTES, cuda, emulated, layer, on_every_device, padded, tagged_model};

const ONE: Streams = Streams::one(Stream::DEFAULT);

fn model() -> Model {
    let (wide, narrow): (Layout, Layout) = (("wide", &[40, 2, 9]), ("narrow", &[24, 2, 0, 13]));
    tagged_model(8, 2, &[wide, narrow, wide, narrow, wide, narrow])
}

fn geometry(slots: u64) -> Geometry {
    Geometry::new(model(), padded(slots, Scope::Unified, 3, 8, 9)).unwrap()
}

/// Banks that have an arena.
const ARENAS: u64 = 4;

/// A cache of so many slots, all of them filled, the last of each pool by the layers that come last.
fn filled(slots: u64, device: HostDevice) -> Rig {
    let mut rig = Rig::new(geometry(slots), Box::new(device), Pinned::None);
    rig.fill(ONE);
    rig.check("filled");
    rig
}

/// Who is in a slot, in the order of use.
fn residents(rig: &Rig) -> Vec<u32> {
    rig.cache.residents(0).experts().iter().map(|expert| expert.get()).collect()
}

#[test]
fn residents_that_fit_are_there_in_every_slot_of_other_sizes() {
    for (from, to) in [(16, 16), (16, 8), (8, 16), (16, 32), (32, 5), (9, 31)] {
        on_every_device(&geometry(from), |rig, context| {
            let context = format!("{context}, {from} -> {to} slots");
            let streams = Streams { compute: rig.stream(), copy: rig.stream() };
            rig.fill(streams);
            let (before, generation) = (residents(rig), rig.cache.generation());
            // Copies are on their way still.
            let report = rig.cache.rebuild(geometry(to), Keep::WhatFits, u64::MAX).unwrap();
            assert_eq!((&report.rebuilt, report.kept), (&Rebuilt::Beside, residents(rig).len()), "{context}");
            let fits = rig.cache.geometry().pools().iter().map(|pool| pool.slot_count() as usize);
            let fits: usize = fits.zip([0, 1]).map(|(slots, pool)| slots.min(held(&before, pool))).sum();
            assert_eq!(report.kept, fits, "{context}");
            assert!(residents(rig).iter().all(|expert| before.contains(expert)), "{context}");
            assert!(rig.cache.generation() > generation, "{context}");
            assert_eq!(rig.probe.get().live_memories(), ARENAS as usize, "{context}: the old slots are gone");
            rig.check(&context);
            rig.fill(streams);
            rig.check(&context);
        });
    }
}

/// How many of these flat ids are of the layers of a pool.
fn held(residents: &[u32], pool: u32) -> usize {
    residents.iter().filter(|&&expert| expert / 8 % 2 == pool).count()
}

#[test]
fn addresses_of_before_are_void_and_that_can_be_told() {
    let mut rig = filled(16, HostDevice::new());
    let slots = |rig: &Rig| rig.cache.slots(PoolId::new(0), BankId::new(0)).unwrap().unwrap();
    let (before, generation) = (slots(&rig), rig.cache.generation());
    let again = geometry(16);
    rig.refused(|cache| {
        cache.rebuild(
            Geometry::new(tagged_model(8, 2, &[("a", &[4])]), padded(8, Scope::Unified, 0, 1, 0)).unwrap(),
            Keep::Nothing,
            0,
        )
    });
    assert_eq!((slots(&rig), rig.cache.generation()), (before, generation), "refused: nothing is void");
    rig.cache.rebuild(again, Keep::WhatFits, u64::MAX).unwrap();
    assert_eq!(rig.cache.generation(), generation + 1);
    assert_ne!(slots(&rig).address, before.address, "the new slots lay beside the old ones");
}

#[test]
fn memory_never_rises_above_what_is_allowed() {
    let (small, large) = (geometry(8).total_bytes(), geometry(24).total_bytes());
    for (from, to) in [(8, 24), (24, 8)] {
        for most_bytes in [0, large, small + large - 1, small + large, u64::MAX] {
            let mut rig = filled(from, HostDevice::new());
            rig.probe.get_mut().most_bytes = 0;
            let report = rig.cache.rebuild(geometry(to), Keep::WhatFits, most_bytes).unwrap();
            let most = rig.probe.get().most_bytes;
            if most_bytes >= small + large {
                assert_eq!(report.rebuilt, Rebuilt::Beside);
                assert_eq!(most, small + large);
            } else {
                let reason = ColdReason::TooLarge { needed: small + large, allowed: most_bytes };
                assert_eq!(report.rebuilt, Rebuilt::Cold(reason));
                assert!(most <= small.max(large), "{most} bytes at a time");
                assert_eq!((report.kept, residents(&rig).len()), (0, 0));
            }
            assert_eq!(rig.probe.get().used_bytes, geometry(to).total_bytes());
            rig.check("after");
        }
    }
}

#[test]
fn a_device_without_the_memory_for_both_rebuilds_cold_within_its_limit() {
    let (small, large) = (geometry(8).total_bytes(), geometry(24).total_bytes());
    for limit in [large, small + large - 1].map(|bytes| bytes + SCRATCH_BYTES) {
        let mut rig = filled(8, HostDevice::new().with_limit(limit));
        let report = rig.cache.rebuild(geometry(24), Keep::WhatFits, u64::MAX).unwrap();
        assert!(matches!(report.rebuilt, Rebuilt::Cold(ColdReason::OutOfMemory(DeviceError::OutOfMemory { .. }))));
        assert_eq!(report.kept, 0);
        rig.check("cold");
        rig.fill(ONE);
        rig.check("filled again");
    }
    let world = emulated(1);
    let mut rig = Rig::new(geometry(8), cuda(&world), Pinned::All);
    rig.fill(ONE);
    rig.compare("before");
    let device = world.emulated.as_ref().unwrap();
    device.set_memory_bytes(device.counts().allocated_bytes + large - 1);
    let report = rig.cache.rebuild(geometry(24), Keep::WhatFits, u64::MAX).unwrap();
    assert!(matches!(report.rebuilt, Rebuilt::Cold(ColdReason::OutOfMemory(_))), "{report:?}");
    rig.check("cold");
    drop(rig);
    world.check_gone();
}

#[test]
fn nothing_to_keep_is_cold_and_says_so() {
    let mut rig = filled(8, HostDevice::new());
    let report = rig.cache.rebuild(geometry(24), Keep::Nothing, u64::MAX).unwrap();
    assert_eq!((report.rebuilt, report.kept), (Rebuilt::Cold(ColdReason::NothingToKeep), 0));
    let report = rig.cache.rebuild(geometry(8), Keep::WhatFits, u64::MAX).unwrap();
    assert_eq!((report.rebuilt, report.kept), (Rebuilt::Cold(ColdReason::NothingToKeep), 0), "nobody was there");
    rig.check("after");
}

#[test]
fn a_row_that_cannot_be_moved_makes_it_cold() {
    let mut failed = 0;
    loop {
        let mut rig = filled(8, HostDevice::deferred(failed));
        rig.probe.get_mut().fail_copy = Some(failed);
        let report = rig.cache.rebuild(geometry(24), Keep::WhatFits, u64::MAX).unwrap();
        rig.probe.get_mut().fail_copy = None;
        if report.rebuilt == Rebuilt::Beside {
            break;
        }
        assert!(matches!(report.rebuilt, Rebuilt::Cold(ColdReason::Failed(_))), "{report:?}");
        assert_eq!((report.kept, residents(&rig).len()), (0, 0), "copy {failed}");
        assert_eq!(rig.probe.get().live_memories(), ARENAS as usize);
        rig.check(&format!("copy {failed}"));
        rig.fill(ONE);
        rig.check(&format!("copy {failed}, filled"));
        failed += 1;
    }
    // Four slots of either width, three banks each.
    assert_eq!(failed, 8 * 3);
}

/// What a rebuild comes to with these allocations refused, counted from its first.
fn rebuild_without(refused: &[u64], most_bytes: u64) -> (Rig, Result<Rebuilt, Error>) {
    let mut rig = filled(8, HostDevice::deferred(3));
    let next = rig.probe.get().allocations;
    rig.probe.get_mut().refused_allocations = refused.iter().map(|number| next + number).collect();
    let outcome = rig.cache.rebuild(geometry(24), Keep::WhatFits, most_bytes).map(|report| report.rebuilt);
    rig.probe.get_mut().refused_allocations.clear();
    (rig, outcome)
}

#[test]
fn an_allocation_refused_at_any_bank_leaves_the_new_slots_or_the_old_ones() {
    for bank in 0..ARENAS {
        // Beside the old ones; then instead of them there is room.
        let (mut rig, outcome) = rebuild_without(&[bank], u64::MAX);
        assert!(matches!(outcome, Ok(Rebuilt::Cold(ColdReason::OutOfMemory(_)))), "bank {bank}: {outcome:?}");
        works(&mut rig, 24);

        // Instead of the old ones: they are had again.
        let (mut rig, outcome) = rebuild_without(&[bank], 0);
        assert!(matches!(outcome, Err(Error::Rebuild(RebuildError::Restored(_)))), "bank {bank}: {outcome:?}");
        works(&mut rig, 8);

        for instead in 0..ARENAS {
            let (mut rig, outcome) = rebuild_without(&[bank, bank + 1 + instead], u64::MAX);
            assert!(matches!(outcome, Err(Error::Rebuild(RebuildError::Restored(_)))), "{bank} {instead}: {outcome:?}");
            works(&mut rig, 8);
        }
    }
}

/// A cache that a failure has left with so many slots and nobody in them.
#[track_caller]
fn works(rig: &mut Rig, slots: u64) {
    assert_eq!(rig.cache.geometry().slot_count(), slots);
    assert_eq!(residents(rig), [0_u32; 0]);
    assert_eq!(rig.probe.get().live_memories(), ARENAS as usize);
    assert_eq!(rig.probe.get().used_bytes, geometry(slots).total_bytes());
    rig.cache.check_device().unwrap();
    rig.fill(ONE);
    rig.check("it works");
}

/// A cache that could have neither its new slots nor its old ones.
fn emptied(bank: u64, old_bank: u64) -> Rig {
    let (rig, outcome) = rebuild_without(&[bank, bank + 1 + old_bank], 0);
    assert!(matches!(outcome, Err(Error::Rebuild(RebuildError::Emptied(_)))), "{bank} {old_bank}: {outcome:?}");
    rig
}

#[test]
fn a_cache_that_lost_its_slots_says_so_at_every_call_and_a_smaller_one_brings_it_back() {
    for (bank, old_bank) in (0..ARENAS).flat_map(|bank| (0..ARENAS).map(move |old| (bank, old))) {
        let mut rig = emptied(bank, old_bank);
        assert_eq!(rig.probe.get().used_bytes, 0, "nothing stays allocated");
        assert_eq!(rig.probe.get().live_memories(), 0);
        let residents = rig.cache.residents(0);
        let staging = Staging::dedicated(rig.cache.geometry(), 2);
        let (first, pool, zero) = (layer(0), PoolId::new(0), BankId::new(0));
        let errors = [
            rig.refused(|cache| cache.load(first, &[ExpertId::new(1)]).map(drop)),
            rig.refused(|cache| cache.load(first, &[]).map(drop)),
            rig.refused(|cache| cache.load_ids(ONE, first, [1], None).map(drop)),
            rig.refused(|cache| cache.set_staging(staging, 0)),
            rig.refused(|cache| cache.begin_chunk(ONE)),
            rig.refused(|cache| cache.bring_back(ONE, &residents, 0)),
            rig.refused(|cache| cache.slots(pool, zero)),
            rig.refused(|cache| cache.staged(first, zero, 0)),
            rig.refused(|cache| cache.read_row(first, zero, SlotId::new(0), &mut [0; 40])),
            rig.refused(|cache| cache.check_device()),
        ];
        for error in errors {
            assert!(matches!(error, Error::Unavailable(DeviceError::OutOfMemory { .. })), "{error}");
        }
        // Too much again, and then less.
        let next = rig.probe.get().allocations;
        rig.probe.get_mut().refused_allocations.insert(next + 1);
        let again = rig.cache.rebuild(geometry(24), Keep::WhatFits, u64::MAX).unwrap_err();
        assert!(matches!(again, Error::Rebuild(RebuildError::Emptied(_))), "{again}");
        let generation = rig.cache.generation();
        let report = rig.cache.rebuild(geometry(5), Keep::WhatFits, u64::MAX).unwrap();
        assert_eq!(report.rebuilt, Rebuilt::Cold(ColdReason::NothingToKeep));
        assert!(rig.cache.generation() > generation);
        works(&mut rig, 5);
    }
}

#[test]
fn the_emulated_driver_refuses_and_everything_is_given_back() {
    for seed in 0..4 {
        let world = emulated(seed);
        let mut rig = Rig::new(geometry(8), cuda(&world), Pinned::All);
        let device = world.emulated.as_ref().unwrap();
        rig.fill(ONE);
        rig.compare("before");
        let before = device.counts();
        device.fail_call("cuMemAlloc_v2", 1, 2);
        rig.cache.rebuild(geometry(24), Keep::WhatFits, 0).unwrap_err();
        assert_eq!(device.counts().allocations, before.allocations, "restored");
        assert_eq!(device.counts().allocated_bytes, before.allocated_bytes);
        works(&mut rig, 8);
        device.fail_call("cuMemAlloc_v2", 0, 2);
        device.fail_call("cuMemAlloc_v2", 1, 2);
        let error = rig.cache.rebuild(geometry(24), Keep::WhatFits, 0).unwrap_err();
        assert!(matches!(error, Error::Rebuild(RebuildError::Emptied(_))), "{error}");
        assert_eq!(device.counts().events, before.events);
        rig.cache.rebuild(geometry(6), Keep::WhatFits, 0).unwrap();
        works(&mut rig, 6);
        drop(rig);
        world.check_gone();
    }
}

#[test]
fn a_refused_target_changes_nothing() {
    // Worked case C11: residents still hit.
    let mut rig = filled(16, HostDevice::deferred(1));
    let refused = |slots| Geometry::new(model(), padded(slots, Scope::Unified, 3, 8, 9));
    refused(3).unwrap_err();
    let pinned: Vec<_> = (0..8).map(|expert| (layer(0), ExpertId::new(expert))).collect();
    rig.cache.pin(&pinned[..5]).unwrap();
    let error = rig.refused(|cache| cache.rebuild(geometry(8), Keep::WhatFits, u64::MAX));
    assert!(matches!(error, Error::Pools(_)), "{error}");
    let other = tagged_model(8, 2, &[("other", &[40, 2, 9]); 6].map(|(tag, bytes)| (tag, &bytes[..])));
    let other = Geometry::new(other, padded(16, Scope::Unified, 0, 1, 0)).unwrap();
    assert_eq!(rig.refused(|cache| cache.rebuild(other, Keep::WhatFits, u64::MAX)), Error::OtherLayouts);
    let copies = rig.probe.get().copies;
    let held: Vec<(u32, u32)> = residents(&rig).iter().map(|flat| (flat / 8, flat % 8)).collect();
    for (number, expert) in held {
        rig.load(ONE, layer(number), &[expert]).unwrap();
    }
    assert_eq!(rig.probe.get().copies, copies, "all hits");
    rig.check("after");
}

#[test]
fn staging_comes_back_as_it_was_asked_for() {
    let mut rig = filled(40, HostDevice::new());
    rig.cache.set_staging(Staging::borrowed(rig.cache.geometry()).unwrap(), 7).unwrap();
    assert_eq!(rig.cache.residency().staging().unwrap().buffer_count(), 2);
    let buffers = |rig: &mut Rig, slots| {
        let staging = rig.cache.rebuild(geometry(slots), Keep::WhatFits, u64::MAX).unwrap().staging.unwrap();
        if let Ok(staging) = &staging {
            assert_eq!(rig.cache.residency().staging(), Some(staging));
            assert!(staging.is_borrowed());
        }
        staging.map(|staging| staging.buffer_count())
    };
    // Worked case C11: overlap that a shrink has turned off comes back on a grow.
    assert_eq!(buffers(&mut rig, 24), Ok(1));
    chunk_works(&mut rig);
    assert!(matches!(buffers(&mut rig, 8), Err(StagingLost::Slots(_))));
    assert_eq!(rig.cache.residency().staging(), None);
    assert_eq!(buffers(&mut rig, 40), Ok(2));
    chunk_works(&mut rig);
    rig.cache.set_staging(Staging::borrowed(&geometry(40)).unwrap().without_overlap(), 7).unwrap();
    assert_eq!(buffers(&mut rig, 24), Ok(1));
    assert_eq!(buffers(&mut rig, 40), Ok(1), "one was asked for");
    chunk_works(&mut rig);
}

fn chunk_works(rig: &mut Rig) {
    rig.fill(ONE);
    rig.cache.begin_chunk(ONE).unwrap();
    for number in 0..6 {
        rig.cache.materialize(layer(number)).unwrap();
        let buffer = rig.cache.wait(layer(number)).unwrap();
        rig.look_at_staged(Stream::DEFAULT, number, buffer, true);
        rig.cache.release(layer(number)).unwrap();
    }
    rig.cache.end_chunk().unwrap();
    rig.check("a chunk after a rebuild");
}

#[test]
fn buffers_of_their_own_go_and_come_with_the_slots() {
    let mut rig = filled(8, HostDevice::new());
    rig.cache.set_staging(Staging::dedicated(rig.cache.geometry(), 2), 0).unwrap();
    let added = |rig: &Rig| rig.cache.residency().staging().unwrap().added_bytes().iter().sum::<u64>();
    for slots in [24, 16, 32, 5] {
        let both = rig.cache.geometry().total_bytes() + geometry(slots).total_bytes();
        rig.probe.get_mut().most_bytes = 0;
        let report = rig.cache.rebuild(geometry(slots), Keep::WhatFits, both).unwrap();
        assert_eq!(report.rebuilt, Rebuilt::Beside);
        assert!(rig.probe.get().most_bytes <= both.max(geometry(slots).total_bytes() + added(&rig)));
        assert_eq!(report.staging, Some(Ok(Staging::dedicated(&geometry(slots), 2))));
        assert_eq!(rig.probe.get().used_bytes, geometry(slots).total_bytes() + added(&rig));
        chunk_works(&mut rig);
    }
    // The device refuses the buffers, and gives them with the next slots.
    let next = rig.probe.get().allocations;
    rig.probe.get_mut().refused_allocations.insert(next + ARENAS + 1);
    let report = rig.cache.rebuild(geometry(8), Keep::WhatFits, u64::MAX).unwrap();
    assert!(matches!(report.staging, Some(Err(StagingLost::Device(_)))), "{report:?}");
    assert_eq!(report.rebuilt, Rebuilt::Beside);
    assert_eq!(rig.probe.get().used_bytes, geometry(8).total_bytes());
    rig.check("without buffers");
    let events = rig.probe.get().live_events;
    rig.cache.rebuild(geometry(16), Keep::WhatFits, u64::MAX).unwrap().staging.unwrap().unwrap();
    assert_eq!(rig.probe.get().live_events, events + 6);
    chunk_works(&mut rig);
}
