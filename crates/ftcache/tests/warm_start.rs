//! Residents kept by one cache and brought back by another: every byte of every slot, and what is refused.

#[path = "support/rig.rs"]
mod rig;

use ftcache::residency::Keep;
use ftcache::{
    Cache, Error, ExpertId, Geometry, HostDevice, PoolId, Residents, Scope, SlotId, SnapshotError, Staging, Stream,
    Streams,
};
use rig::{Layout, Pinned, Probe, Rig, layer, on_every_device, padded, stream_of, tagged_model};

const ONE: Streams = Streams::one(Stream::DEFAULT);

fn geometry(scope: Scope, slots: u64) -> Geometry {
    let (wide, narrow): (Layout, Layout) = (("wide", &[40, 2, 9]), ("narrow", &[24, 2, 0, 13]));
    let model = tagged_model(8, 2, &[wide, narrow, wide, narrow]);
    Geometry::new(model, padded(slots, scope, 3, 8, 9)).unwrap()
}

/// What a cache of sixteen slots held after some steps.
fn kept() -> Residents {
    let mut rig = Rig::new(geometry(Scope::Unified, 16), Box::new(HostDevice::new()), Pinned::None);
    for (number, routes) in [(0, [7, 1, 4]), (1, [0, 2, 6]), (2, [3, 3, 5]), (3, [1, 7, 2]), (0, [4, 0, 2])] {
        rig.load(ONE, layer(number), &routes).unwrap();
    }
    let residents = rig.cache.residents(77);
    Residents::from_bytes(&residents.to_bytes()).unwrap()
}

#[test]
fn every_resident_is_brought_back_whole_to_pools_of_any_kind() {
    let kept = kept();
    for (scope, slots) in [(Scope::Unified, 16), (Scope::Unified, 30), (Scope::Unified, 7), (Scope::PerLayer, 12)] {
        for forked in [false, true] {
            on_every_device(&geometry(scope, slots), |rig, context| {
                let streams = if forked { Streams { compute: rig.stream(), copy: rig.stream() } } else { ONE };
                let bytes = rig.cache.bring_back(streams, &kept, 77).unwrap();
                // A kernel right behind it.
                let mut held = 0;
                for flat in kept.experts() {
                    let (number, expert) = (flat.get() / 8, flat.get() % 8);
                    if let Some(slot) = rig.cache.residency().slot_of(layer(number), ExpertId::new(expert)) {
                        rig.look_at_slots(streams.compute, number, &[expert], &[slot]);
                        held += if number % 2 == 0 { 40 + 2 + 9 } else { 24 + 2 + 13 };
                    }
                }
                assert_eq!(bytes, held, "{context}");
                if slots >= 16 {
                    assert_eq!(rig.cache.residents(77), kept, "{context}: all, in the same order of use");
                }
                rig.check(context);
                rig.fill(streams);
            });
        }
    }
}

#[test]
fn of_a_pool_that_is_too_small_those_used_last_come_back() {
    let kept = kept();
    let mut rig = Rig::new(geometry(Scope::Unified, 4), Box::new(HostDevice::deferred(2)), Pinned::None);
    rig.cache.bring_back(ONE, &kept, 77).unwrap();
    for parity in [0, 1] {
        let of_pool = |residents: &Residents| -> Vec<u32> {
            residents.experts().iter().map(|flat| flat.get()).filter(|flat| flat / 8 % 2 == parity).collect()
        };
        let all = of_pool(&kept);
        assert_eq!(of_pool(&rig.cache.residents(77)), all[all.len() - 2..], "pool {parity}");
    }
    rig.check("two of each pool");
}

#[test]
fn a_start_that_is_refused_changes_nothing() {
    let kept = kept();
    on_every_device(&geometry(Scope::Unified, 16), |rig, _| {
        let snapshot = |error| Error::Snapshot(error);
        let error = rig.refused(|cache| cache.bring_back(ONE, &kept, 78));
        assert_eq!(error, snapshot(SnapshotError::Fingerprint { given: 77, wanted: 78 }));
        rig.load(ONE, layer(0), &[1]).unwrap();
        let error = rig.refused(|cache| cache.bring_back(ONE, &kept, 77));
        assert_eq!(error, snapshot(SnapshotError::NotEmpty { resident_count: 1 }));
        rig.cache.reset().unwrap();
        rig.cache.set_staging(Staging::dedicated(rig.cache.geometry(), 1), 0).unwrap();
        rig.cache.begin_chunk(ONE).unwrap();
        assert_eq!(rig.refused(|cache| cache.bring_back(ONE, &kept, 77)), snapshot(SnapshotError::ChunkOpen));
        rig.cache.end_chunk().unwrap();
        rig.cache.bring_back(ONE, &kept, 77).unwrap();
    });
    let model = tagged_model(8, 2, &[("wide", &[40, 2, 9])]);
    let other = Geometry::new(model, padded(8, Scope::Unified, 0, 1, 0)).unwrap();
    let mut rig = Rig::new(other, Box::new(HostDevice::new()), Pinned::None);
    let error = rig.refused(|cache| cache.bring_back(ONE, &kept, 77));
    assert_eq!(error, Error::Snapshot(SnapshotError::OtherModel { given: (4, 8), wanted: (1, 8) }));
    for streams in [Streams { copy: stream_of(99), ..ONE }, Streams { compute: stream_of(99), ..ONE }] {
        let error = rig.refused(|cache| cache.bring_back(streams, &kept, 77));
        assert!(matches!(error, Error::Device(_)), "{error}");
    }
}

#[test]
fn a_layer_without_rows_keeps_everybody_out() {
    let kept = kept();
    let probe = Probe::new(Box::new(HostDevice::new()));
    let cache = Cache::new(geometry(Scope::Unified, 16), probe.clone()).unwrap();
    let mut rig = Rig::unattached(cache, probe);
    let error = rig.refused(|cache| cache.bring_back(ONE, &kept, 77));
    assert!(matches!(error, Error::Bank(_)), "{error}");
    assert_eq!(rig.cache.residents(77).experts(), []);
    rig.attach_all(Pinned::None, 3);
    rig.cache.bring_back(ONE, &kept, 77).unwrap();
    rig.check("attached");
}

#[test]
fn a_copy_that_fails_leaves_every_slot_free_and_it_may_be_tried_again() {
    let kept = kept();
    for forked in [false, true] {
        on_every_device(&geometry(Scope::Unified, 16), |rig, context| {
            let streams = if forked { Streams { compute: rig.stream(), copy: rig.stream() } } else { ONE };
            let mut failed = 0;
            loop {
                rig.probe.get_mut().fail_copy = Some(failed);
                let outcome = rig.cache.bring_back(streams, &kept, 77);
                rig.probe.get_mut().fail_copy = None;
                let error = match outcome {
                    Ok(_) => break,
                    Err(Error::BringBack(error)) => error,
                    Err(error) => panic!("{context}: {error}"),
                };
                assert!(error.bank.is_some(), "{context}");
                assert_eq!(rig.cache.residents(77).experts(), [], "{context}, copy {failed}");
                for pool in [0, 1].map(PoolId::new) {
                    for slot in (0..8).map(SlotId::new) {
                        assert_eq!(rig.cache.residency().stamp(pool, slot), 0, "{context}, copy {failed}");
                    }
                }
                // Steps over other streams fill the same slots meanwhile.
                if failed % 3 == 0 {
                    let other = Streams { copy: rig.stream(), ..streams };
                    rig.fill(other);
                    rig.cache.reset().unwrap();
                }
                failed += 1;
            }
            assert!(failed >= 12, "{failed} copies");
            assert_eq!(rig.cache.residents(77), kept, "{context}");
        });
    }
}

#[test]
fn what_was_brought_back_survives_a_rebuild() {
    let kept = kept();
    on_every_device(&geometry(Scope::Unified, 16), |rig, context| {
        rig.cache.bring_back(ONE, &kept, 77).unwrap();
        let report = rig.cache.rebuild(geometry(Scope::PerLayer, 24), Keep::WhatFits, u64::MAX).unwrap();
        assert_eq!(report.kept, kept.experts().len(), "{context}");
        rig.check(context);
    });
}
