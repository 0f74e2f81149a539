//! Hints on every device: what is copied ahead lies where its step looks, a step waits for what it uses and for nothing
//! else, and what is refused changes nothing. Random programs with hints are in `mixed.rs`.

#[path = "support/rig.rs"]
mod rig;

use ftcache::residency::Keep;
use ftcache::{Error, Geometry, HintReport, HintStats, HostDevice, Scope, Stream, Streams};
use rig::{Pinned, Rig, experts, layer, on_every_device, padded, tagged_model};

/// Two layers of six experts of 14 bytes over six slots.
fn geometry() -> Geometry {
    Geometry::new(tagged_model(6, 2, &[("a", &[12, 2][..]); 2]), padded(6, Scope::Unified, 0, 1, 4)).unwrap()
}

fn hint(rig: &mut Rig, number: u32, predicted: &[u32], budget: u64) -> HintReport {
    rig.calling("hint").hint(layer(number), &experts(predicted), budget).unwrap()
}

/// Useful, late, wasted.
fn counts(rig: &Rig) -> (u64, u64, u64) {
    let HintStats { useful, late, wasted, .. } = rig.cache.hint_total().residency;
    (useful, late, wasted)
}

/// Waits of steps for hints so far.
fn awaited(rig: &Rig) -> usize {
    rig.probe.get().waits.iter().filter(|wait| **wait == ("load", "hint")).count()
}

#[test]
fn a_step_waits_for_the_hinted_rows_that_it_uses_and_for_no_others() {
    on_every_device(&geometry(), |rig, context| {
        rig.calling("set_hints").set_hints(4).unwrap();
        let streams = Streams { compute: rig.stream(), copy: rig.stream() };
        rig.load(streams, layer(0), &[0, 1]).unwrap();
        let report = hint(rig, 1, &[0, 1, 2], 2 * 14 + 13);
        assert_eq!((report.started, report.over_budget, report.bytes), (2, 1, 28), "{context}");
        assert_eq!(hint(rig, 0, &[0, 5], 1000).present, 1);
        rig.load(streams, layer(0), &[0, 1]).unwrap();
        assert_eq!((awaited(rig), counts(rig)), (0, (0, 0, 1)), "{context}: it does not use what was brought for it");
        rig.load(streams, layer(1), &[1, 3]).unwrap();
        let (useful, late, wasted) = counts(rig);
        assert_eq!((useful + late, wasted, awaited(rig) as u64), (1, 2, late), "{context}");
        rig.check(context);
        assert_eq!(rig.cache.land().unwrap(), if late == 1 { 3 } else { 0 }, "{context}");
        rig.load(streams, layer(1), &[0, 1, 3]).unwrap();
        assert_eq!(awaited(rig) as u64, late, "{context}: nothing is on its way");
        let stats = rig.cache.stats();
        assert_eq!((stats.residency.hits(), stats.residency.misses, stats.bytes), (6, 3, 3 * 14), "{context}");
    });
}

// Held back, the hint's copies are there only because the step's kernels wait for them.
#[test]
fn a_row_that_is_late_is_not_copied_twice() {
    for order in 0..16 {
        let mut rig = Rig::new(geometry(), Box::new(HostDevice::deferred(order)), Pinned::None);
        rig.calling("set_hints").set_hints(2).unwrap();
        hint(&mut rig, 1, &[4, 2], 1000);
        let copies = rig.probe.get().copies;
        rig.load(Streams::one(Stream::DEFAULT), layer(1), &[2, 4, 2]).unwrap();
        assert_eq!((rig.probe.get().copies - copies, counts(&rig)), (0, (0, 2, 0)), "order {order}");
        rig.check(&format!("order {order}"));
    }
}

#[test]
fn a_step_that_needs_every_slot_comes_behind_the_rows_that_it_overwrites() {
    for order in 0..16 {
        let mut rig = Rig::new(geometry(), Box::new(HostDevice::deferred(order)), Pinned::None);
        rig.calling("set_hints").set_hints(2).unwrap();
        let streams = Streams { compute: rig.stream(), copy: rig.stream() };
        assert_eq!(hint(&mut rig, 1, &[0, 1, 2, 3], 1000).started, 4);
        rig.load(streams, layer(0), &[0, 1, 2, 3, 4, 5]).unwrap();
        assert_eq!((awaited(&rig), counts(&rig)), (1, (0, 0, 4)), "order {order}");
        rig.check(&format!("order {order}"));
    }
}

#[test]
fn no_more_hints_are_on_their_way_than_were_set_and_it_is_said() {
    let mut rig = Rig::new(geometry(), Box::new(HostDevice::deferred(1)), Pinned::None);
    rig.calling("set_hints").set_hints(1).unwrap();
    assert_eq!(hint(&mut rig, 1, &[0], 14).started, 1);
    let report = hint(&mut rig, 1, &[0, 1, 2, 3], 2 * 14);
    let HintReport { present, started, over_budget, no_slot, held_back, bytes, .. } = report;
    assert_eq!((present, started, over_budget, no_slot, held_back, bytes), (1, 0, 1, 0, 2, 0));
    rig.cache.synchronize_all().unwrap();
    assert_eq!(hint(&mut rig, 1, &[0, 1, 2, 3], 2 * 14).started, 2, "it has landed");
}

#[test]
fn hints_that_are_refused_change_nothing() {
    on_every_device(&geometry(), |rig, context| {
        rig.load(Streams::one(Stream::DEFAULT), layer(0), &[0, 1]).unwrap();
        let error = rig.refused(|cache| cache.hint(layer(1), &experts(&[0]), 1000));
        assert_eq!(error, Error::NoHints, "{context}");
        rig.calling("set_hints").set_hints(1).unwrap();
        for (number, predicted, wanted) in
            [(2, 0, "no layer 2: the cache has 2 layers"), (1, 6, "layer 1: route 0 is 6, which is no expert of 0..6")]
        {
            let error = rig.refused(|cache| cache.hint(layer(number), &experts(&[predicted]), 1000));
            assert_eq!(error.to_string(), wanted, "{context}");
        }
        let error = rig.refused(|cache| cache.set_hints(1)).to_string();
        assert!(error.contains("they were set before"), "{error}");
    });
    let mut rig = Rig::new(geometry(), Box::new(HostDevice::new()), Pinned::None);
    for count in [0, 1025] {
        let error = rig.refused(|cache| cache.set_hints(count)).to_string();
        assert!(error.contains(&format!("{count} flights at once; it must be 1 to 1024")), "{error}");
    }
}

#[test]
fn a_hint_whose_copy_is_refused_is_wasted_and_its_slots_come_back() {
    for failing in 0..4 {
        let mut rig = Rig::new(geometry(), Box::new(HostDevice::deferred(failing)), Pinned::None);
        rig.calling("set_hints").set_hints(2).unwrap();
        rig.load(Streams::one(Stream::DEFAULT), layer(0), &[0, 1]).unwrap();
        rig.probe.get_mut().fail_copy = Some(failing);
        // Two runs in two banks.
        let error = rig.calling("hint").hint(layer(1), &experts(&[0, 2]), 1000).unwrap_err();
        assert!(matches!(error, Error::Apply(_)), "{error}");
        assert_eq!(counts(&rig), (0, 0, 2));
        // Not without a wait for what may be on its way.
        rig.load(Streams::one(Stream::DEFAULT), layer(1), &[0, 1, 2, 3, 4, 5]).unwrap();
        rig.check(&format!("copy {failing}"));
        rig.cache.land().unwrap();
        assert_eq!(rig.cache.residency().in_flight_count(ftcache::PoolId::new(0)), 0);
        assert_eq!(hint(&mut rig, 0, &[0], 1000).no_slot, 1, "all are the last step's");
    }
}

#[test]
fn what_hints_brought_is_kept_by_a_rebuild_and_hints_go_on_after_it() {
    on_every_device(&geometry(), |rig, context| {
        rig.calling("set_hints").set_hints(2).unwrap();
        hint(rig, 1, &[3, 4], 1000);
        let constraints = padded(4, Scope::Unified, 0, 1, 4);
        let smaller = Geometry::new(rig.cache.geometry().model().clone(), constraints).unwrap();
        let report = rig.calling("rebuild").rebuild(smaller, Keep::WhatFits, u64::MAX).unwrap();
        assert_eq!((report.kept, counts(rig)), (2, (0, 0, 0)), "{context}");
        rig.load(Streams::one(Stream::DEFAULT), layer(1), &[3, 4]).unwrap();
        assert_eq!(rig.cache.stats().residency.hits(), 2, "{context}");
        assert_eq!(hint(rig, 0, &[0, 1, 2], 1000).started, 2, "{context}: but for the last step's slots");
        rig.load(Streams::one(Stream::DEFAULT), layer(0), &[0, 1]).unwrap();
        rig.check(context);
    });
}
