//! Calls out of the order of a prefill chunk: each is its own error, and changes nothing.

use super::*;

/// Holds that a call is refused and changes nothing.
#[track_caller]
fn check<T>(cache: &mut Cache, call: impl FnOnce(&mut Cache) -> Result<T, StageError>, error: StageError) {
    let before = format!("{cache:?}");
    assert_eq!(call(cache).err(), Some(error));
    assert_eq!(format!("{cache:?}"), before);
    cache.check().unwrap();
}

fn prefetch(cache: &mut Cache, layer_number: u32) -> Result<usize, StageError> {
    let mut plan = StagePlan::new();
    cache.prefetch(layer(layer_number), &mut plan)?.commit();
    Ok(plan.buffer())
}

fn materialize(cache: &mut Cache, layer_number: u32) -> Result<usize, StageError> {
    let mut plan = StagePlan::new();
    cache.materialize(layer(layer_number), &mut plan)?.commit();
    Ok(plan.buffer())
}

/// Six layers of four experts over twelve slots with two borrowed buffers, and a chunk that has staged layers 0 and 1.
fn two_staged() -> Cache {
    let mut cache = borrowing(6, 4, 12);
    cache.begin_chunk().unwrap();
    assert_eq!([0, 1].map(|number| prefetch(&mut cache, number)), [Ok(0), Ok(1)]);
    cache
}

#[test]
fn a_chunk_needs_staging() {
    let mut cache = one_pool(1, 4, 4);
    check(&mut cache, Cache::begin_chunk, StageError::NoStaging);
    assert!(cache.staging().is_none() && !cache.has_open_chunk());
}

#[test]
fn nothing_is_staged_without_a_chunk() {
    let mut cache = borrowing(2, 4, 8);
    check(&mut cache, |cache| prefetch(cache, 0), StageError::NoChunk);
    check(&mut cache, |cache| materialize(cache, 0), StageError::NoChunk);
    check(&mut cache, |cache| cache.wait(layer(0)), StageError::NoChunk);
    check(&mut cache, |cache| cache.release(layer(0)), StageError::NoChunk);
    check(&mut cache, Cache::end_chunk, StageError::NoChunk);
    check(&mut cache, Cache::abandon_chunk, StageError::NoChunk);
}

#[test]
fn a_chunk_is_begun_once() {
    let mut cache = two_staged();
    check(&mut cache, Cache::begin_chunk, StageError::ChunkOpen);
}

#[test]
fn a_buffer_is_not_used_again_before_it_is_released() {
    let mut cache = two_staged();
    let held = StageError::NotReleased { buffer: 0, layer: layer(0) };
    check(&mut cache, |cache| prefetch(cache, 2), held);
    check(&mut cache, |cache| materialize(cache, 2), held);
    cache.wait(layer(0)).unwrap();
    check(&mut cache, |cache| prefetch(cache, 2), held);
    cache.release(layer(0)).unwrap();
    assert_eq!(prefetch(&mut cache, 2), Ok(0));
    let held = StageError::NotReleased { buffer: 1, layer: layer(1) };
    check(&mut cache, |cache| prefetch(cache, 3), held);
}

#[test]
fn a_layer_without_overlap_waits_for_the_one_buffer() {
    let geometry = geometry(3, 4, 12);
    let mut cache = Cache::new(&geometry);
    cache.set_staging(Staging::borrowed(&geometry).unwrap().without_overlap(), 0).unwrap();
    cache.begin_chunk().unwrap();
    check(&mut cache, |cache| prefetch(cache, 0), StageError::NoOverlap);
    assert_eq!(materialize(&mut cache, 0), Ok(0));
    check(&mut cache, |cache| materialize(cache, 1), StageError::NotReleased { buffer: 0, layer: layer(0) });
}

#[test]
fn waiting_is_for_what_is_staged_and_once() {
    let mut cache = two_staged();
    check(&mut cache, |cache| cache.wait(layer(2)), StageError::NotStaged { layer: layer(2) });
    assert_eq!(cache.wait(layer(1)), Ok(1));
    check(&mut cache, |cache| cache.wait(layer(1)), StageError::InUse { layer: layer(1) });
}

#[test]
fn release_is_after_waiting_and_once() {
    let mut cache = two_staged();
    check(&mut cache, |cache| cache.release(layer(0)), StageError::NotWaitedFor { layer: layer(0) });
    check(&mut cache, |cache| cache.release(layer(2)), StageError::NotStaged { layer: layer(2) });
    cache.wait(layer(0)).unwrap();
    assert_eq!(cache.release(layer(0)), Ok(0));
    check(&mut cache, |cache| cache.release(layer(0)), StageError::NotStaged { layer: layer(0) });
    check(&mut cache, |cache| cache.wait(layer(0)), StageError::NotStaged { layer: layer(0) });
}

#[test]
fn a_layers_rows_never_move_twice() {
    let mut cache = two_staged();
    cache.wait(layer(0)).unwrap();
    cache.release(layer(0)).unwrap();
    check(&mut cache, |cache| prefetch(cache, 0), StageError::StagedBefore { layer: layer(0) });
    check(&mut cache, |cache| materialize(cache, 0), StageError::StagedBefore { layer: layer(0) });
    check(&mut cache, |cache| prefetch(cache, 1), StageError::StagedBefore { layer: layer(1) });
    cache.abandon_chunk().unwrap();
    cache.begin_chunk().unwrap();
    assert_eq!(prefetch(&mut cache, 0), Ok(0), "another chunk stages it again");
}

#[test]
fn a_chunk_does_not_end_with_a_buffer_that_is_held() {
    let mut cache = two_staged();
    check(&mut cache, Cache::end_chunk, StageError::NotReleased { buffer: 0, layer: layer(0) });
    cache.wait(layer(0)).unwrap();
    check(&mut cache, Cache::end_chunk, StageError::NotReleased { buffer: 0, layer: layer(0) });
    cache.release(layer(0)).unwrap();
    check(&mut cache, Cache::end_chunk, StageError::NotReleased { buffer: 1, layer: layer(1) });
    cache.wait(layer(1)).unwrap();
    cache.release(layer(1)).unwrap();
    assert_eq!(cache.end_chunk().map(|report| report.layers), Ok(2));
    assert!(!cache.has_open_chunk());
}

#[test]
fn an_abandoned_chunk_ends_whatever_its_buffers_hold() {
    let mut cache = two_staged();
    cache.wait(layer(0)).unwrap();
    assert_eq!(cache.abandon_chunk().map(|report| (report.chunks, report.layers)), Ok((1, 2)));
    assert!(!cache.has_open_chunk());
    assert_eq!(answer(&commit(&mut cache, layer(3), &[0])), [0]);
    cache.begin_chunk().unwrap();
    check(&mut cache, |cache| cache.wait(layer(1)), StageError::NotStaged { layer: layer(1) });
}

#[test]
fn a_layer_that_is_none_or_has_no_slots_is_not_staged() {
    let layers = vec![LayoutKey::tagged("q", [16]); 3];
    let model = Model::new(4, 1, Quantisation::PerLayer, layers).unwrap();
    let slotless_layers = vec![layer(1)];
    let constraints = Constraints { slotless_layers, ..Constraints::new(Budget::Slots(8)) };
    let geometry = Geometry::new(model, constraints).unwrap();
    let mut cache = Cache::new(&geometry);
    cache.set_staging(Staging::borrowed(&geometry).unwrap(), 0).unwrap();
    cache.begin_chunk().unwrap();
    let unknown = StageError::Layer(EnsureError::UnknownLayer { layer: layer(3), layer_count: 3 });
    let no_slots = StageError::Layer(EnsureError::NoSlots { layer: layer(1) });
    for (number, error) in [(3, unknown), (1, no_slots)] {
        check(&mut cache, |cache| prefetch(cache, number), error);
        check(&mut cache, |cache| materialize(cache, number), error);
    }
    assert_eq!([prefetch(&mut cache, 0), prefetch(&mut cache, 2)], [Ok(0), Ok(1)]);
}

#[test]
fn waiting_for_a_layer_that_is_none_changes_nothing() {
    let mut cache = two_staged();
    for call in [Cache::wait, Cache::release] {
        let before = format!("{cache:?}");
        assert!(call(&mut cache, layer(6)).is_err());
        assert_eq!(format!("{cache:?}"), before);
    }
}

#[test]
fn staging_is_not_exchanged_in_an_open_chunk() {
    let mut cache = two_staged();
    let staging = Staging::borrowed(&geometry(6, 4, 12)).unwrap();
    check(&mut cache, |cache| cache.set_staging(staging.clone(), 0), StageError::ChunkOpen);
    cache.abandon_chunk().unwrap();
    assert_eq!(cache.set_staging(staging, 0), Ok(()));
}

#[test]
fn staging_laid_out_for_other_pools_is_refused() {
    let mut cache = Cache::with_pools(4, &pools_of([0, 0, 0]), &[7]).unwrap();
    // Two buffers of four rows; the cache has seven slots.
    let staging = Staging::borrowed(&geometry(3, 4, 12)).unwrap();
    let error = StageError::OtherPools { pool: POOL, stable_from: Some(8), slot_count: Some(7) };
    check(&mut cache, |cache| cache.set_staging(staging.clone(), 0), error);

    let mut cache = Cache::with_pools(4, &pools_of([0, 1, 0]), &[12, 4]).unwrap();
    let error = StageError::OtherPools { pool: PoolId::new(1), stable_from: None, slot_count: Some(4) };
    check(&mut cache, |cache| cache.set_staging(staging.clone(), 0), error);

    let layers = ["a", "b"].map(|tag| LayoutKey::tagged(tag, [16]));
    let model = Model::new(4, 1, Quantisation::PerLayer, layers.to_vec()).unwrap();
    let geometry = Geometry::new(model, Constraints::new(Budget::Slots(8))).unwrap();
    let mut cache = one_pool(2, 4, 8);
    let error = StageError::OtherPools { pool: PoolId::new(1), stable_from: Some(0), slot_count: None };
    check(&mut cache, |cache| cache.set_staging(Staging::dedicated(&geometry, 2), 0), error);
    assert!(cache.staging().is_none());
}
