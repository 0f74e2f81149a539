//! Whole chunks in bytes: what kernels read of a staged layer when they read it, what lies around its rows, and what a
//! chunk leaves behind.

#[path = "support/rig.rs"]
mod rig;

use ftcache::{Geometry, Model, PoolId, SMALL_ROW_BYTES, Scope, Staging, Stream, Streams};
use rig::{Layout, Rig, layer, on_every_device, padded, tagged_model};

const ONE: Streams = Streams::one(Stream::DEFAULT);

/// How a cache stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Borrowed,
    OneBorrowed,
    Dedicated(u32),
}

impl Kind {
    const ALL: [Self; 4] = [Self::Borrowed, Self::OneBorrowed, Self::Dedicated(1), Self::Dedicated(2)];

    fn staging(self, geometry: &Geometry) -> Staging {
        match self {
            Self::Borrowed => Staging::borrowed(geometry).unwrap(),
            Self::OneBorrowed => Staging::borrowed(geometry).unwrap().without_overlap(),
            Self::Dedicated(count) => Staging::dedicated(geometry, count),
        }
    }
}

/// Layers of four experts with a bank of wide rows, one of two bytes, and one that only some read.
fn one_key(layer_count: usize) -> Model {
    tagged_model(4, 2, &vec![("a", &[40, 2, 9][..]); layer_count])
}

fn two_keys() -> Model {
    let (wide, narrow): (Layout, Layout) = (("wide", &[40, 2, 9]), ("narrow", &[24, 2, 0, 13]));
    tagged_model(4, 2, &[wide, narrow, narrow, wide, narrow])
}

/// Two layouts of one width each way: only the tag tells them apart.
fn two_tags() -> Model {
    tagged_model(4, 2, &[("a", &[16, 6]), ("b", &[16, 6]), ("a", &[16, 6]), ("b", &[16, 6])])
}

/// A chunk over every layer, each computed while the next is staged, or one after another. `around` looks at the gaps
/// and pads of the buffers, too.
fn chunk(rig: &mut Rig, streams: Streams, around: bool) -> ftcache::ChunkReport {
    let layer_count = rig.cache.geometry().model().layer_count() as u32;
    let overlaps = rig.cache.residency().staging().unwrap().buffer_count() == 2;
    rig.cache.begin_chunk(streams).unwrap();
    if overlaps {
        rig.cache.prefetch(layer(0)).unwrap();
    }
    for number in 0..layer_count {
        if !overlaps {
            rig.cache.materialize(layer(number)).unwrap();
        } else if number + 1 < layer_count {
            rig.cache.prefetch(layer(number + 1)).unwrap();
        }
        let buffer = rig.cache.wait(layer(number)).unwrap();
        rig.look_at_staged(streams.compute, number, buffer, around);
        rig.cache.release(layer(number)).unwrap();
    }
    rig.cache.end_chunk().unwrap()
}

/// Every kind of staging over a geometry, small rows shipped whole and not, one stream and two. Chunks follow steps
/// that fill every slot, and steps follow chunks.
fn stages_everywhere(geometry: &Geometry, kinds: &[Kind], around: impl Fn(Kind) -> bool) {
    for &kind in kinds {
        for small_row_bytes in [0, 10, SMALL_ROW_BYTES] {
            for forked in [false, true] {
                on_every_device(geometry, |rig, context| {
                    let context = format!("{kind:?}, small {small_row_bytes}, forked {forked}, {context}");
                    let streams = if forked { Streams { compute: rig.stream(), copy: rig.stream() } } else { ONE };
                    rig.cache.set_staging(kind.staging(geometry), small_row_bytes).unwrap();
                    for round in 0..2 {
                        rig.fill(streams);
                        chunk(rig, streams, around(kind));
                        rig.check(&format!("{context}, chunk {round}"));
                    }
                    rig.fill(streams);
                });
            }
        }
    }
}

#[test]
fn every_row_of_a_staged_layer_is_there_when_kernels_read_it() {
    for slots in [4, 8, 11] {
        let geometry = Geometry::new(one_key(3), padded(slots, Scope::Unified, 0, 1, 7)).unwrap();
        let kinds = if slots == 4 { &Kind::ALL[1..] } else { &Kind::ALL };
        // Behind the first buffer lie the second one's rows, which may be on their way.
        stages_everywhere(&geometry, kinds, |_| false);
    }
}

#[test]
fn every_row_of_a_padded_layer_is_there_and_nothing_else_lies_around_it() {
    for scope in [Scope::Unified, Scope::PerLayer] {
        for (slots, pads) in [(13, (3, 16, 30)), (20, (0, 1, 5)), (20, (0, 8, 512))] {
            let geometry = Geometry::new(two_keys(), padded(slots, scope, pads.0, pads.1, pads.2)).unwrap();
            let kinds = match Staging::borrowed(&geometry) {
                Err(_) => &Kind::ALL[2..],
                Ok(staging) if staging.buffer_count() == 1 => &Kind::ALL[1..],
                Ok(_) => &Kind::ALL[..],
            };
            stages_everywhere(&geometry, kinds, |_| true);
        }
    }
}

#[test]
fn equal_widths_under_two_tags_leave_nothing_of_each_other_around() {
    for scope in [Scope::Unified, Scope::PerLayer] {
        let geometry = Geometry::new(two_tags(), padded(16, scope, 2, 8, 9)).unwrap();
        assert_eq!(Staging::borrowed(&geometry).unwrap().buffer_count(), 2);
        stages_everywhere(&geometry, &Kind::ALL, |_| true);
    }
}

#[test]
fn layers_of_one_key_in_pools_of_their_own_are_staged_across_them() {
    let geometry = Geometry::new(one_key(3), padded(10, Scope::PerLayer, 1, 1, 6)).unwrap();
    assert!(Staging::borrowed(&geometry).unwrap().stable_from(PoolId::new(2)) > 0, "a buffer reaches the last pool");
    stages_everywhere(&geometry, &Kind::ALL, |_| false);
}

#[test]
fn where_there_is_one_layout_nothing_is_cleared() {
    for (slot_pad_bytes, alignment) in [(0, 1), (5, 8)] {
        for kind in Kind::ALL {
            let geometry = Geometry::new(one_key(3), padded(11, Scope::Unified, slot_pad_bytes, alignment, 7)).unwrap();
            on_every_device(&geometry, |rig, context| {
                rig.cache.set_staging(kind.staging(&geometry), 0).unwrap();
                rig.fill(ONE);
                chunk(rig, ONE, false);
                chunk(rig, ONE, false);
                assert_eq!(rig.probe.get().clears, 0, "{kind:?}, a gap of {slot_pad_bytes}, {context}");
            });
        }
    }
}

#[test]
fn a_buffer_whose_layout_has_not_changed_is_not_cleared_again() {
    let model = tagged_model(4, 2, &[("a", &[40]), ("b", &[24]), ("b", &[24]), ("b", &[24])]);
    let geometry = Geometry::new(model, padded(16, Scope::Unified, 2, 8, 9)).unwrap();
    on_every_device(&geometry, |rig, context| {
        rig.cache.set_staging(Staging::dedicated(&geometry, 1), 0).unwrap();
        chunk(rig, ONE, true);
        // A gap and a pad, where the second layout follows the first in a buffer of zeros.
        assert_eq!(rig.probe.get().clears, 2, "{context}");
        chunk(rig, ONE, true);
        // And where the first follows the second.
        assert_eq!(rig.probe.get().clears, 6, "{context}");
    });
}

#[test]
fn bytes_that_move_are_those_of_rows_that_lay_in_slots_and_those_that_did_not() {
    let geometry = Geometry::new(two_keys(), padded(20, Scope::Unified, 3, 8, 9)).unwrap();
    let wide_bytes = [40 + 2 + 9, 24 + 2 + 13];
    on_every_device(&geometry, |rig, context| {
        for (small_row_bytes, whole) in [(0, [0, 0]), (10, [2 + 9, 2]), (SMALL_ROW_BYTES, wide_bytes)] {
            rig.cache.set_staging(Staging::dedicated(&geometry, 2), small_row_bytes).unwrap();
            rig.cache.reset().unwrap();
            rig.load(ONE, layer(0), &[1, 3]).unwrap();
            rig.load(ONE, layer(1), &[0, 1, 2]).unwrap();
            let before = rig.cache.chunk_total();
            let report = chunk(rig, ONE, true);
            let gathered = [2, 3].into_iter().zip([0, 1]).map(|(rows, key)| rows * (wide_bytes[key] - whole[key]));
            let gathered: u64 = gathered.sum();
            let all = 4 * (2 * wide_bytes[0] + 3 * wide_bytes[1]);
            assert_eq!(report.gathered_bytes, gathered, "{context}, small {small_row_bytes}");
            assert_eq!(report.fetched_bytes, all - gathered, "{context}, small {small_row_bytes}");
            let residency = report.residency;
            assert_eq!((residency.gathered, residency.fetched, residency.lost), (5, 5 * 4 - 5, 0), "{context}");
            let total = rig.cache.chunk_total();
            assert_eq!(total.gathered_bytes - before.gathered_bytes, report.gathered_bytes);
            assert_eq!(total.fetched_bytes - before.fetched_bytes, report.fetched_bytes);
        }
    });
}

#[test]
fn what_is_resident_before_a_chunk_on_buffers_of_its_own_is_resident_after_it() {
    let geometry = Geometry::new(two_keys(), padded(13, Scope::Unified, 3, 8, 9)).unwrap();
    on_every_device(&geometry, |rig, context| {
        rig.cache.set_staging(Staging::dedicated(&geometry, 2), 0).unwrap();
        rig.fill(ONE);
        let digest = rig.cache.residency().digest();
        let copies = rig.cache.stats();
        chunk(rig, ONE, true);
        assert_eq!(rig.cache.residency().digest(), digest, "{context}");
        assert_eq!(rig.cache.stats(), copies, "{context}: a chunk is no step");
    });
}
