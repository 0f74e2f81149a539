//! A chunk's calls out of order, copies that fail in it, and steps that are admitted while it is open.

#[path = "support/rig.rs"]
mod rig;

use ftcache::policy::{Fetch, FetchRule};
use ftcache::residency::Keep;
use ftcache::{
    Device, Error, FetchOrder, Geometry, HostDevice, LaterLimits, Misses, PoolsError, Scope, SnapshotError, StageError,
    Staging, Step, Stream, Streams,
};
use rig::{Layout, Pinned, Rig, layer, on_every_device, padded, stream_of, tagged_model};

const ONE: Streams = Streams::one(Stream::DEFAULT);

/// Two layouts, with slots over two buffers to spare.
fn geometry() -> Geometry {
    let (wide, narrow): (Layout, Layout) = (("wide", &[40, 2, 9]), ("narrow", &[24, 2, 0, 13]));
    let model = tagged_model(4, 2, &[wide, narrow, narrow, wide, wide, narrow]);
    Geometry::new(model, padded(24, Scope::Unified, 3, 8, 9)).unwrap()
}

/// One layout, twelve slots, of which four are stable.
fn one_key() -> Geometry {
    Geometry::new(tagged_model(4, 2, &[("a", &[40, 2][..]); 4]), padded(12, Scope::Unified, 0, 1, 7)).unwrap()
}

fn staged(rig: &mut Rig, streams: Streams, number: u32) {
    let buffer = rig.cache.wait(layer(number)).unwrap();
    rig.look_at_staged(streams.compute, number, buffer, false);
    rig.cache.release(layer(number)).unwrap();
}

#[test]
fn a_call_out_of_order_changes_nothing() {
    on_every_device(&geometry(), |rig, _| {
        let chunk = |error| Error::Chunk(error);
        rig.fill(ONE);
        assert_eq!(rig.refused(|cache| cache.begin_chunk(ONE)), chunk(StageError::NoStaging));
        let staging = Staging::borrowed(rig.cache.geometry()).unwrap();
        rig.cache.set_staging(staging.clone(), 0).unwrap();
        for number in 0..4 {
            let number = layer(number);
            assert_eq!(rig.refused(|cache| cache.prefetch(number)), chunk(StageError::NoChunk));
            assert_eq!(rig.refused(|cache| cache.materialize(number)), chunk(StageError::NoChunk));
            assert_eq!(rig.refused(|cache| cache.wait(number)), chunk(StageError::NoChunk));
            assert_eq!(rig.refused(|cache| cache.release(number)), chunk(StageError::NoChunk));
        }
        assert_eq!(rig.refused(|cache| cache.end_chunk()), chunk(StageError::NoChunk));
        assert_eq!(rig.refused(|cache| cache.abandon_chunk()), chunk(StageError::NoChunk));
        // A stream of the driver's own is not looked at; one that was never given out is.
        if rig.cache.device().name() == "host memory" {
            for streams in [Streams { copy: stream_of(77), ..ONE }, Streams { compute: stream_of(77), ..ONE }] {
                let error = rig.refused(|cache| cache.begin_chunk(streams));
                assert!(matches!(error, Error::Device(_)), "{error}");
            }
        }

        rig.cache.begin_chunk(ONE).unwrap();
        assert_eq!(rig.refused(|cache| cache.begin_chunk(ONE)), chunk(StageError::ChunkOpen));
        let error = rig.refused(|cache| cache.set_staging(staging, 0));
        assert_eq!(error, chunk(StageError::ChunkOpen));
        let smaller = Geometry::new(rig.cache.geometry().model().clone(), padded(20, Scope::Unified, 3, 8, 9)).unwrap();
        let error = rig.refused(|cache| cache.rebuild(smaller, Keep::WhatFits, u64::MAX));
        assert_eq!(error, Error::Pools(PoolsError::ChunkOpen));
        let residents = rig.cache.residents(1);
        let error = rig.refused(|cache| cache.bring_back(ONE, &residents, 1));
        assert_eq!(error, Error::Snapshot(SnapshotError::ChunkOpen));
        let error = rig.refused(|cache| cache.prefetch(layer(6)));
        assert!(matches!(error, Error::Bank(_) | Error::Ensure(_)), "{error}");

        let first = layer(0);
        assert_eq!(rig.refused(|cache| cache.wait(first)), chunk(StageError::NotStaged { layer: first }));
        assert_eq!(rig.refused(|cache| cache.release(first)), chunk(StageError::NotStaged { layer: first }));
        rig.cache.prefetch(first).unwrap();
        assert_eq!(rig.refused(|cache| cache.prefetch(first)), chunk(StageError::StagedBefore { layer: first }));
        assert_eq!(rig.refused(|cache| cache.release(first)), chunk(StageError::NotWaitedFor { layer: first }));
        let held = chunk(StageError::NotReleased { buffer: 0, layer: first });
        assert_eq!(rig.refused(|cache| cache.materialize(layer(1))), held);
        assert_eq!(rig.refused(|cache| cache.end_chunk()), held);
        assert_eq!(rig.cache.wait(first).unwrap(), 0);
        assert_eq!(rig.refused(|cache| cache.wait(first)), chunk(StageError::InUse { layer: first }));
        assert_eq!(rig.refused(|cache| cache.end_chunk()), held);
        rig.cache.prefetch(layer(1)).unwrap();
        assert_eq!(rig.refused(|cache| cache.prefetch(layer(2))), held);
        rig.cache.release(first).unwrap();
        assert_eq!(rig.refused(|cache| cache.release(first)), chunk(StageError::NotStaged { layer: first }));
        assert_eq!(rig.refused(|cache| cache.prefetch(first)), chunk(StageError::StagedBefore { layer: first }));
        staged(rig, ONE, 1);
        rig.cache.end_chunk().unwrap();
    });
}

#[test]
fn one_buffer_is_never_filled_while_another_computes() {
    on_every_device(&geometry(), |rig, _| {
        let staging = Staging::borrowed(rig.cache.geometry()).unwrap().without_overlap();
        rig.cache.set_staging(staging, 0).unwrap();
        rig.cache.begin_chunk(ONE).unwrap();
        assert_eq!(rig.refused(|cache| cache.prefetch(layer(0))), Error::Chunk(StageError::NoOverlap));
        rig.cache.materialize(layer(0)).unwrap();
        assert_eq!(rig.cache.staged(layer(0), ftcache::BankId::new(0), 1), Ok(None));
        staged(rig, ONE, 0);
        rig.cache.end_chunk().unwrap();
    });
}

/// Stages layers with each copy of the second one refused in turn, and again until it is there.
#[test]
fn a_copy_that_fails_leaves_its_buffer_free_and_the_layer_may_be_staged_again() {
    for kind in [Staging::borrowed(&geometry()).unwrap(), Staging::dedicated(&geometry(), 2)] {
        for forked in [false, true] {
            on_every_device(&geometry(), |rig, context| {
                rig.cache.set_staging(kind.clone(), 10).unwrap();
                let streams = if forked { Streams { compute: rig.stream(), copy: rig.stream() } } else { ONE };
                rig.fill(streams);
                let mut failed = 0;
                loop {
                    // Two rows of layer 1 in slots that no buffer lies on.
                    rig.cache.reset().unwrap();
                    for (number, routes) in [(5, &[0, 1, 2, 3][..]), (2, &[0, 1, 2, 3]), (1, &[3, 0, 1])] {
                        rig.load(streams, layer(number), routes).unwrap();
                    }
                    let context = format!("{context}, forked {forked}, copy {failed}");
                    rig.cache.begin_chunk(streams).unwrap();
                    rig.cache.prefetch(layer(0)).unwrap();
                    let (digest, total) = (rig.cache.residency().digest(), rig.cache.chunk_total());
                    rig.probe.get_mut().fail_copy = Some(failed);
                    let error = match rig.cache.prefetch(layer(1)) {
                        Ok(()) => {
                            rig.probe.get_mut().fail_copy = None;
                            staged(rig, streams, 0);
                            staged(rig, streams, 1);
                            rig.cache.end_chunk().unwrap();
                            break;
                        }
                        Err(Error::Stage(error)) => error,
                        Err(error) => panic!("{context}: {error}"),
                    };
                    assert_eq!((error.layer, error.buffer), (layer(1), 1), "{context}");
                    assert!(error.bank.is_some(), "{context}");
                    assert_eq!(rig.cache.residency().digest(), digest, "{context}");
                    assert_eq!(rig.cache.chunk_total(), total, "{context}");
                    let lost = Error::Chunk(StageError::NotStaged { layer: layer(1) });
                    assert_eq!(rig.refused(|cache| cache.wait(layer(1))), lost, "{context}");
                    // Another layer first in some cases, then the one that failed, in either buffer.
                    if failed % 2 == 0 {
                        rig.cache.prefetch(layer(3)).unwrap();
                    }
                    staged(rig, streams, 0);
                    rig.cache.prefetch(layer(1)).unwrap();
                    if failed % 2 == 0 {
                        staged(rig, streams, 3);
                    }
                    staged(rig, streams, 1);
                    rig.cache.end_chunk().unwrap();
                    rig.check(&context);
                    failed += 1;
                }
                assert!(failed >= 5, "{failed} copies");
            });
        }
    }
}

#[test]
fn zeros_that_are_refused_are_put_there_when_the_layer_is_staged_again() {
    on_every_device(&geometry(), |rig, context| {
        rig.cache.set_staging(Staging::dedicated(rig.cache.geometry(), 1), 0).unwrap();
        let mut failed = 0;
        loop {
            rig.cache.begin_chunk(ONE).unwrap();
            rig.cache.materialize(layer(0)).unwrap();
            staged(rig, ONE, 0);
            rig.probe.get_mut().fail_clear = Some(failed);
            let outcome = rig.cache.materialize(layer(1));
            rig.probe.get_mut().fail_clear = None;
            if let Err(error) = &outcome {
                assert!(matches!(error, Error::Stage(_)), "{context}: {error}");
                rig.cache.materialize(layer(1)).unwrap();
            }
            let buffer = rig.cache.wait(layer(1)).unwrap();
            rig.look_at_staged(ONE.compute, 1, buffer, true);
            rig.cache.release(layer(1)).unwrap();
            rig.cache.end_chunk().unwrap();
            rig.compare(&format!("{context}, zeros {failed}"));
            if outcome.is_ok() {
                break;
            }
            failed += 1;
        }
        assert_eq!(failed, 6, "{context}: gaps and a pad in three banks");
    });
}

#[test]
fn a_chunk_given_up_after_a_failed_copy_leaves_slots_that_may_be_filled() {
    let geometry = geometry();
    let mut failed = 0;
    let mut copies = u64::MAX;
    while failed < copies {
        on_every_device(&geometry, |rig, context| {
            rig.cache.set_staging(Staging::borrowed(&geometry).unwrap(), 0).unwrap();
            let streams = Streams { compute: rig.stream(), copy: rig.stream() };
            rig.fill(streams);
            rig.cache.begin_chunk(streams).unwrap();
            rig.cache.prefetch(layer(0)).unwrap();
            let before = rig.probe.get().copies;
            rig.probe.get_mut().fail_copy = Some(failed);
            let outcome = rig.cache.prefetch(layer(1));
            rig.probe.get_mut().fail_copy = None;
            if outcome.is_ok() {
                copies = rig.probe.get().copies - before;
            }
            rig.cache.abandon_chunk().unwrap();
            // Over another copy stream than the fills'.
            let other = Streams { copy: rig.stream(), ..streams };
            rig.fill(other);
            rig.check(&format!("{context}, copy {failed}"));
        });
        failed += 1;
    }
    assert_eq!(copies, 3);
}

/// Steps in a chunk over these streams, between its fills and its kernels, that evict what the fills gather.
fn steps_in_a_chunk(rig: &mut Rig, chunk: Streams, steps: [Streams; 2], context: &str) {
    rig.cache.begin_chunk(chunk).unwrap();
    for number in 0..4 {
        // Into stable slots: half of what is staged next is in them.
        rig.load(steps[0], layer(number), &[number, (number + 1) % 4]).unwrap();
        rig.cache.prefetch(layer(number)).unwrap();
        rig.load(steps[1], layer((number + 2) % 4), &[0, 1, 2]).unwrap();
        staged(rig, chunk, number);
    }
    let report = rig.cache.end_chunk().unwrap();
    assert!(report.residency.gathered >= 8, "{context}: {report:?}");
}

#[test]
fn steps_are_admitted_in_a_chunk_over_its_own_streams_and_others() {
    let geometry = one_key();
    for (chunk, steps) in [
        ((0, 0), [(0, 0), (0, 0)]),
        ((0, 1), [(0, 1), (0, 1)]),
        ((0, 1), [(0, 0), (0, 2)]),
        ((0, 1), [(2, 2), (2, 3)]),
        ((0, 0), [(0, 1), (2, 0)]),
        ((0, 1), [(1, 2), (2, 1)]),
        ((0, 1), [(1, 0), (2, 0)]),
    ] {
        on_every_device(&geometry, |rig, context| {
            let context = format!("{context}, chunk {chunk:?}, steps {steps:?}");
            let streams = [Stream::DEFAULT, rig.stream(), rig.stream(), rig.stream()];
            let pair = |(compute, copy): (usize, usize)| Streams { compute: streams[compute], copy: streams[copy] };
            rig.cache.set_staging(Staging::borrowed(&geometry).unwrap(), 0).unwrap();
            rig.fill(pair(steps[1]));
            steps_in_a_chunk(rig, pair(chunk), steps.map(pair), &context);
            // The slots under the buffers are filled again over the chunk's streams.
            rig.fill(pair(chunk));
            rig.check(&context);
        });
    }
}

#[test]
fn steps_after_a_chunk_come_behind_it_over_the_streams_of_a_step_in_it() {
    // The last call was the chunk's end, so a step that names another compute stream is to come behind it.
    let geometry = one_key();
    on_every_device(&geometry, |rig, context| {
        let [chunk, step] = [(); 2].map(|()| Streams { compute: rig.stream(), copy: rig.stream() });
        rig.cache.set_staging(Staging::borrowed(&geometry).unwrap(), 0).unwrap();
        rig.cache.begin_chunk(chunk).unwrap();
        rig.load(step, layer(0), &[0]).unwrap();
        rig.cache.prefetch(layer(1)).unwrap();
        staged(rig, chunk, 1);
        rig.cache.end_chunk().unwrap();
        rig.load(step, layer(2), &[0, 1, 2, 3]).unwrap();
        rig.check(context);
    });
}

#[test]
fn slots_of_rows_on_their_way_behind_a_step_are_safe_after_a_chunk() {
    // The chunk takes the slot of the row that is on its way, and ends without a fill.
    let geometry = one_key();
    on_every_device(&geometry, |rig, context| {
        let [compute, copy] = [rig.stream(), rig.stream()];
        rig.calling("set_later").set_later(LaterLimits { step_bytes: 1 << 10, flight_count: 1 }).unwrap();
        rig.calling("set_staging").set_staging(Staging::borrowed(&geometry).unwrap(), 0).unwrap();
        let fetch = Fetch { rule: FetchRule::UpTo(0), most: None };
        let misses = Misses::Hybrid { fetch, order: FetchOrder::LowestId };
        let step = Step { misses, ..Step::new(layer(0)) };
        rig.load(Streams::one(compute), step, &[2]).unwrap();
        assert_eq!(rig.cache.later_report().residency.queued, 1, "{context}");
        rig.cache.begin_chunk(Streams { compute, copy }).unwrap();
        rig.cache.end_chunk().unwrap();
        rig.load(Streams::one(compute), layer(1), &[0, 1, 2, 3]).unwrap();
        rig.check(context);
    });
}

#[test]
fn a_step_in_a_chunk_takes_no_slot_under_a_buffer() {
    let geometry = one_key();
    on_every_device(&geometry, |rig, context| {
        rig.cache.set_staging(Staging::borrowed(&geometry).unwrap(), 0).unwrap();
        rig.fill(ONE);
        rig.cache.begin_chunk(ONE).unwrap();
        rig.cache.prefetch(layer(0)).unwrap();
        let slots = rig.load(ONE, layer(3), &[0, 1, 2, 3]).unwrap();
        assert!(slots.iter().all(|slot| slot.get() >= 8), "{context}: {slots:?}");
        staged(rig, ONE, 0);
        rig.cache.end_chunk().unwrap();
        rig.check(context);
    });
}

#[test]
fn staging_that_does_not_fit_the_pools_or_the_memory_leaves_the_one_before() {
    let geometry = one_key();
    let other = Geometry::new(geometry.model().clone(), padded(4, Scope::Unified, 0, 1, 7)).unwrap();
    let large = Staging::dedicated(&geometry, 2);
    let mut rig = Rig::new(other.clone(), Box::new(HostDevice::new().with_limit(40 << 10)), Pinned::None);
    rig.cache.set_staging(Staging::borrowed(&other).unwrap(), 0).unwrap();
    let error = rig.refused(|cache| cache.set_staging(Staging::borrowed(&geometry).unwrap(), 0));
    assert!(matches!(error, Error::Chunk(StageError::OtherPools { .. })), "{error}");
    for refused in 0..2 {
        let next = rig.probe.get().allocations;
        rig.probe.get_mut().refused_allocations.insert(next + refused);
        let before = (rig.probe.get().live_memories(), rig.probe.get().live_events);
        let error = rig.refused(|cache| cache.set_staging(large.clone(), 0));
        assert!(matches!(error, Error::Device(_)), "{error}");
        assert_eq!((rig.probe.get().live_memories(), rig.probe.get().live_events), before);
    }
    assert_eq!(rig.cache.residency().staging(), Some(&Staging::borrowed(&other).unwrap()));
    rig.cache.begin_chunk(ONE).unwrap();
    rig.cache.materialize(layer(2)).unwrap();
    staged(&mut rig, ONE, 2);
    rig.cache.end_chunk().unwrap();
    rig.check("after");
}
