//! Whole layers staged for a prompt, and what that costs the slots under the buffers. C10, C01.

use super::*;

type Pairs = Vec<(u32, u32)>;

/// Stages a layer and returns its buffer, its gathers `(slot, row)` and its misses `(row, count)`.
#[track_caller]
fn stage(cache: &mut Cache, layer_number: u32) -> (usize, Pairs, Pairs) {
    let mut plan = StagePlan::new();
    cache.prefetch(layer(layer_number), &mut plan).unwrap().commit();
    cache.check().unwrap();
    let gathers = plan.gathers().iter().map(|gather| (gather.slot.get(), gather.row.get()));
    let misses = plan.misses().iter().map(|run| (run.row.get(), run.count));
    (plan.buffer(), gathers.collect(), misses.collect())
}

/// A chunk that stages each of these layers in turn.
fn chunk(cache: &mut Cache, layer_numbers: impl IntoIterator<Item = u32>) -> ChunkReport {
    cache.begin_chunk().unwrap();
    for number in layer_numbers {
        stage(cache, number);
        cache.wait(layer(number)).unwrap();
        cache.release(layer(number)).unwrap();
    }
    cache.end_chunk().unwrap()
}

/// C10: three layers of four experts over twelve slots, owners 0: 1, 1: -1, 2: 7, 3: 8, 5: 0, 9: 6.
fn worked_owners(cache: &mut Cache) {
    for (number, of_layer) in [(0, 1), (2, 3), (1, 3), (2, 0), (2, 1), (0, 0), (0, 2), (0, 3), (1, 0), (1, 2)] {
        decode(cache, number, &[of_layer]);
    }
    for free in [1, 4, 6, 7, 8] {
        cache.forget(POOL, slot(free));
    }
    let mut wanted = [None; 12];
    for (place, flat) in [(0, 1), (2, 7), (3, 8), (5, 0), (9, 6)] {
        wanted[place] = Some(flat);
    }
    assert_eq!(owners(cache, POOL), wanted);
}

#[test]
fn taking_the_first_buffer_frees_what_lies_under_it_and_nothing_else() {
    let geometry = geometry(3, 4, 12);
    let mut cache = Cache::new(&geometry);
    let staging = Staging::borrowed(&geometry).unwrap();
    assert_eq!(
        [0, 1].map(|buffer| (staging.invalidates(buffer)[0].first.get(), staging.invalidates(buffer)[0].count)),
        [(0, 4), (4, 4)]
    );
    cache.set_staging(staging.without_overlap(), 0).unwrap();
    worked_owners(&mut cache);
    cache.begin_chunk().unwrap();
    cache.check().unwrap();
    let mut wanted = [None; 12];
    (wanted[5], wanted[9]) = (Some(0), Some(6));
    assert_eq!(owners(&cache, POOL), wanted);
    assert_eq!(stamps(&cache, POOL), [0, 0, 0, 0, 0, 6, 0, 0, 0, 10, 0, 0]);
    for (number, of_layer) in [(0, 1), (1, 3), (2, 0)] {
        assert_eq!(cache.absence(layer(number), expert(of_layer)), Some(Absence::Staged));
    }
    assert_eq!(cache.end_chunk().unwrap().lost, 3);

    let before = cache.digest();
    assert_eq!(chunk(&mut cache, []).lost, 0, "twice in a row changes nothing");
    assert_eq!(cache.digest(), before);
}

#[test]
fn taking_both_buffers_frees_what_lies_under_either() {
    let mut cache = borrowing(3, 4, 12);
    worked_owners(&mut cache);
    cache.begin_chunk().unwrap();
    let mut wanted = [None; 12];
    wanted[9] = Some(6);
    assert_eq!(owners(&cache, POOL), wanted);
    // Only layer 1 has a row that need not come from the host.
    assert_eq!(stage(&mut cache, 0), (0, vec![], vec![(0, 4)]));
    assert_eq!(stage(&mut cache, 1), (1, vec![(9, 2)], vec![(0, 2), (3, 1)]));
    for number in [0, 1] {
        cache.wait(layer(number)).unwrap();
        cache.release(layer(number)).unwrap();
    }
    let report = ChunkReport { chunks: 1, layers: 2, gathered: 1, fetched: 7, lost: 4 };
    assert_eq!(cache.end_chunk(), Ok(report));
    assert_eq!(cache.chunk_total(), report);
}

// A wide layer of 20 bytes a row and three narrow ones of 10, two experts each: buffers of 40 bytes.
#[test]
fn every_pool_is_stable_from_its_own_slot() {
    let layers = ["n", "w", "n", "n"].map(|tag| LayoutKey::tagged(tag, [if tag == "w" { 20 } else { 10 }]));
    let model = Model::new(2, 1, Quantisation::PerLayer, layers.to_vec()).unwrap();
    let constraints = Constraints { tail_pad: TailPad::Bytes(0), ..Constraints::new(Budget::Slots(8)) };
    let geometry = Geometry::new(model, constraints).unwrap();
    let staging = Staging::borrowed(&geometry).unwrap();
    let (wide, narrow) = (PoolId::new(0), PoolId::new(1));
    // The first lies on both wide slots, the second on the first four of six narrow ones.
    assert_eq!([wide, narrow].map(|pool| staging.stable_from(pool)), [2, 4]);
    let mut cache = Cache::new(&geometry);
    cache.set_staging(staging, 0).unwrap();
    for (number, routes) in [(0, [0, 1]), (2, [0, 1]), (3, [1, 0]), (1, [0, 1])] {
        decode(&mut cache, number, &routes);
    }
    cache.begin_chunk().unwrap();
    assert_eq!(owners(&cache, wide), [None; 2]);
    assert_eq!(owners(&cache, narrow), [None, None, None, None, Some(6), Some(7)]);
    assert_eq!(stage(&mut cache, 3), (0, vec![(4, 0), (5, 1)], vec![]));
    assert_eq!(stage(&mut cache, 1), (1, vec![], vec![(0, 2)]));
    assert_eq!(cache.abandon_chunk(), Ok(ChunkReport { chunks: 1, layers: 2, gathered: 2, fetched: 2, lost: 6 }));
}

#[test]
fn residents_are_gathered_and_the_others_come_in_runs() {
    // Slots 0 to 15 lie under buffers.
    let mut cache = borrowing(3, 8, 20);
    decode(&mut cache, 0, &[0, 1, 2, 3, 4, 5, 6, 7]);
    decode(&mut cache, 2, &[0, 1, 2, 3, 4, 5, 6, 7]);
    decode(&mut cache, 1, &[6]);
    decode(&mut cache, 1, &[3, 2]);
    let stamps_before = stamps(&cache, POOL)[16..].to_vec();
    cache.begin_chunk().unwrap();
    assert_eq!(stage(&mut cache, 1), (0, vec![(17, 2), (18, 3), (16, 6)], vec![(0, 2), (4, 2), (7, 1)]));
    assert_eq!(stamps(&cache, POOL)[16..], stamps_before, "staging is no use of a slot");
    assert_eq!(cache.step(), 4);
    assert_eq!(cache.wait(layer(1)), Ok(0));
    assert_eq!(cache.release(layer(1)), Ok(0));
    assert_eq!(cache.end_chunk(), Ok(ChunkReport { chunks: 1, layers: 1, gathered: 3, fetched: 5, lost: 16 }));
}

#[test]
fn a_bank_of_small_rows_ships_whole_also_with_no_miss() {
    let geometry = geometry(3, 4, 12);
    for resident in [&[0, 1, 2, 3][..], &[1, 2], &[]] {
        let mut cache = Cache::new(&geometry);
        cache.set_staging(Staging::borrowed(&geometry).unwrap(), 100).unwrap();
        decode(&mut cache, 0, &[0, 1, 2, 3]);
        decode(&mut cache, 1, &[0, 1, 2, 3]);
        decode(&mut cache, 2, resident);
        cache.begin_chunk().unwrap();
        let mut plan = StagePlan::new();
        cache.prefetch(layer(2), &mut plan).unwrap().commit();
        assert_eq!(plan.gathers().len(), resident.len());
        let shipped = |row_bytes| {
            let runs = plan.bank_runs(row_bytes).iter().map(|run| (run.row.get(), run.count));
            (plan.ships_whole(row_bytes), plan.bank_gathers(row_bytes).len(), runs.collect::<Vec<_>>())
        };
        for small in [1, 99] {
            assert_eq!(shipped(small), (true, 0, vec![(0, 4)]), "{resident:?}");
        }
        let runs = [(vec![(0, 4)], 0), (vec![(0, 1), (3, 1)], 2), (vec![], 4)];
        let (runs, gathers) = runs.into_iter().find(|(_, count)| *count == resident.len()).unwrap();
        for wide in [100, 1 << 20] {
            assert_eq!(shipped(wide), (false, gathers, runs.clone()), "{resident:?}");
        }
        let missing = 4 - resident.len() as u64;
        let bytes = [1, 99, 100, 1 << 40].map(|row_bytes| plan.bank_bytes(row_bytes));
        assert_eq!(bytes, [4, 396, 100 * missing, missing << 40], "what comes from the host");
    }
}

#[test]
fn layers_take_the_buffers_in_turn() {
    let mut cache = borrowing(5, 4, 8);
    cache.begin_chunk().unwrap();
    assert_eq!([stage(&mut cache, 0).0, stage(&mut cache, 1).0], [0, 1]);
    assert_eq!((cache.wait(layer(0)), cache.release(layer(0))), (Ok(0), Ok(0)));
    assert_eq!(stage(&mut cache, 2).0, 0, "the one that is free");
    assert_eq!((cache.wait(layer(1)), cache.release(layer(1))), (Ok(1), Ok(1)));
    assert_eq!((cache.wait(layer(2)), cache.release(layer(2))), (Ok(0), Ok(0)));
    assert_eq!(stage(&mut cache, 3).0, 1, "both are free: the one not used last");
    assert_eq!((cache.wait(layer(3)), cache.release(layer(3))), (Ok(1), Ok(1)));
    assert_eq!(stage(&mut cache, 4).0, 0);
    cache.abandon_chunk().unwrap();
    cache.begin_chunk().unwrap();
    assert_eq!(stage(&mut cache, 0).0, 0, "every chunk begins with the first");
}

#[test]
fn without_overlap_a_layer_materialises_in_the_first_buffer() {
    let geometry = geometry(2, 4, 7);
    let staging = Staging::borrowed(&geometry).unwrap();
    assert_eq!(staging.buffer_count(), 1, "seven slots hold one whole layer");
    let mut cache = Cache::new(&geometry);
    cache.set_staging(staging, 0).unwrap();
    decode(&mut cache, 0, &[0, 1, 2, 3]);
    decode(&mut cache, 1, &[2]);
    cache.begin_chunk().unwrap();
    let mut plan = StagePlan::new();
    assert_eq!(cache.prefetch(layer(0), &mut plan).unwrap_err(), StageError::NoOverlap);
    for number in [0, 1] {
        cache.materialize(layer(number), &mut plan).unwrap().commit();
        assert_eq!((plan.layer(), plan.pool(), plan.buffer()), (layer(number), POOL, 0));
        assert_eq!(plan.gathers().len() as u32, number, "2 of layer 1 lies in slot 4");
        assert_eq!(cache.wait(layer(number)), Ok(0));
        assert_eq!(cache.release(layer(number)), Ok(0));
    }
    assert_eq!(cache.end_chunk(), Ok(ChunkReport { chunks: 1, layers: 2, gathered: 1, fetched: 7, lost: 4 }));
}

#[test]
fn dedicated_buffers_leave_every_slot_alone() {
    let geometry = geometry(2, 4, 8);
    let mut cache = Cache::new(&geometry);
    cache.set_staging(Staging::dedicated(&geometry, 2), 0).unwrap();
    for number in [0, 1] {
        decode(&mut cache, number, &[0, 1, 2, 3]);
    }
    let before = cache.digest();
    assert_eq!(chunk(&mut cache, [0, 1]), ChunkReport { chunks: 1, layers: 2, gathered: 8, fetched: 0, lost: 0 });
    assert_eq!(cache.digest(), before);
    cache.begin_chunk().unwrap();
    assert_eq!(answer(&commit(&mut cache, layer(0), &[3, 2, 1, 0])), [3, 2, 1, 0], "nothing is withheld");
}

#[test]
fn misses_for_the_buffers_sake_are_counted_as_such() {
    let mut cache = borrowing(3, 4, 12);
    for number in 0..3 {
        decode(&mut cache, number, &[0, 1, 2, 3]);
    }
    cache.reset_stats();
    assert_eq!(chunk(&mut cache, 0..3).lost, 8);
    for number in 0..3 {
        decode(&mut cache, number, &[0, 1, 2, 3]);
    }
    let misses =
        [0, 1, 2].map(|number| cache.layer_stats(layer(number))).map(|stats| (stats.misses, stats.staging_misses));
    assert_eq!(misses, [(4, 4), (4, 4), (0, 0)]);
}

#[test]
fn admission_takes_no_slot_under_a_buffer_while_a_chunk_is_open() {
    // Slots 0 to 7 lie under buffers.
    let mut cache = borrowing(3, 4, 11);
    decode(&mut cache, 0, &[0, 1]);
    cache.begin_chunk().unwrap();
    let error = EnsureError::StepTooWide {
        layer: layer(0),
        pool: POOL,
        needed: 4,
        given: 3,
        slot_count: 11,
        pinned: 0,
        withheld: 8,
    };
    assert_eq!(refuse(&mut cache, layer(0), &[0, 1, 2, 3]), error);
    assert_eq!(answer(&commit(&mut cache, layer(0), &[2, 0, 1])), [10, 8, 9]);
    assert_eq!(answer(&commit(&mut cache, of_phase(Phase::Prefill, 1), &[1])), [8], "the others stay free");
    let fetch = Fetch { rule: FetchRule::UpTo(8), most: None };
    let misses = Misses::Hybrid { fetch, order: FetchOrder::LowestId };
    let hybrid = Step { misses, ..Step::new(layer(2)) };
    assert_eq!(answer(&commit(&mut cache, hybrid, &[0, 1, 2, 3])), [8, 9, 10, -1]);
    let mut parts = Parts::new();
    cache.partition(layer(0), &ids(&[0, 1, 2, 3]), &mut parts).unwrap();
    assert_eq!(parts.len(), 2);
    cache.end_chunk().unwrap();
    assert_eq!(answer(&commit(&mut cache, layer(0), &[0, 1, 2, 3])), [0, 1, 2, 3], "given back, free");
}

#[test]
fn slots_that_are_freed_in_a_chunk_are_not_those_under_its_buffers() {
    let mut cache = borrowing(3, 4, 10);
    decode(&mut cache, 0, &[0, 1]);
    cache.begin_chunk().unwrap();
    decode(&mut cache, 0, &[0, 1]);
    assert_eq!(cache.forget(POOL, slot(0)), None, "it holds nobody");
    assert_eq!(cache.forget(POOL, slot(8)), Some((layer(0), expert(0))));
    assert_eq!(answer(&commit(&mut cache, layer(1), &[2])), [8]);
    abort(&mut cache, layer(1), &[3]);
    cache.reset();
    assert_eq!(answer(&commit(&mut cache, layer(1), &[3, 2])), [9, 8]);
    assert_eq!(stage(&mut cache, 1).1, [(8, 2), (9, 3)]);
}

#[test]
fn an_aborted_stage_leaves_its_buffer_free_and_its_layer_to_be_staged() {
    let mut cache = borrowing(3, 4, 8);
    cache.begin_chunk().unwrap();
    let before = format!("{cache:?}");
    let mut plan = StagePlan::new();
    let ticket = cache.prefetch(layer(0), &mut plan).unwrap();
    assert_eq!(ticket.plan().misses().len(), 1);
    ticket.abort();
    drop(cache.prefetch(layer(0), &mut plan).unwrap());
    assert_eq!(format!("{cache:?}"), before);
    assert_eq!(cache.wait(layer(0)), Err(StageError::NotStaged { layer: layer(0) }));
    assert_eq!([stage(&mut cache, 0).0, stage(&mut cache, 1).0], [0, 1]);
    assert_eq!(cache.abandon_chunk().unwrap().layers, 2);
}

// C01: two layers of slots. Nothing is stable; what is lost is lost once.
#[test]
fn at_two_layers_of_slots_nothing_is_stable_and_chunks_lose_it_once() {
    let geometry = geometry(48, 512, 1_024);
    let staging = Staging::borrowed(&geometry).unwrap();
    assert_eq!((staging.stable_from(POOL), staging.stable_slots(&geometry)), (1_024, 0));
    let mut cache = Cache::new(&geometry);
    cache.set_staging(staging, 0).unwrap();
    let routes: Vec<u32> = (0..10).collect();
    for number in 0..48 {
        decode(&mut cache, number, &routes);
    }
    let reports = [0; 3].map(|_| chunk(&mut cache, 0..48));
    assert_eq!(reports.map(|report| report.lost), [480, 0, 0]);
    assert!(reports.iter().all(|report| (report.gathered, report.fetched) == (0, 48 * 512)));
    assert_eq!(cache.chunk_total(), ChunkReport { chunks: 3, layers: 144, gathered: 0, fetched: 73_728, lost: 480 });
    cache.begin_chunk().unwrap();
    let error = refuse(&mut cache, layer(0), &[7]);
    assert!(matches!(error, EnsureError::StepTooWide { needed: 1, given: 0, withheld: 1_024, .. }), "{error}");
}
