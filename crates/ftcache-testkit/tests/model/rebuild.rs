//! Other pools, and a working set that is taken along.

use super::*;

/// The marks ask for as many slots of the new pools as they did of the old.
#[test]
fn a_rebuild_needs_room_for_what_is_pinned() {
    let mut model = Reference::new(8, &[0, 0], &[4]);
    model.pin(&[(0, 0), (1, 1)], 2).unwrap();
    let smaller = |model: &mut Reference| model.rebuild(&[Some(0), Some(0)], &[3], true);
    assert_eq!(refused(&mut model, smaller), Refusal::TooManyPinned(0, 2, 1));
    // A layer without slots has nothing to keep, but its mark stays.
    model.rebuild(&[Some(0), None], &[3], true).unwrap();
    assert_eq!(refused(&mut model, smaller), Refusal::TooManyPinned(0, 2, 1));
    assert!(model.is_pinned(1, 1));
    model.unpin(&[(1, 1)]).unwrap();
    smaller(&mut model).unwrap();
}

#[test]
fn a_warm_rebuild_keeps_the_most_recent() {
    // Layers 0 and 1 in pool 0, layer 2 in pool 1.
    let mut model = Reference::new(8, &[0, 0, 1], &[4, 2]);
    commit(&mut model, &Step::decode(0, &[0, 1]));
    commit(&mut model, &Step::decode(2, &[3, 4]));
    commit(&mut model, &Step::decode(1, &[5, 6]));
    commit(&mut model, &Step::decode(0, &[1]));
    commit(&mut model, &step(Phase::Verify, &[0]));
    model.pin(&[(1, 6)], 0).unwrap();
    // Slots by pool: (0,0) 1, (0,1) 4, (1,5) 3, (1,6) 3; (2,3) 2, (2,4) 2. Layer 0 moves to pool 1, layer 2 to pool 0.
    let mut cold = model.clone();
    let moved = model.rebuild(&[Some(1), Some(0), Some(0)], &[3, 1], true).unwrap();
    model.check();
    let moved_to = |layer, expert, from, to| Moved { layer, expert, from, to };
    // Pool 0 has room for three of four: of the two of step 2 the higher slot. Slot 2 stays; the others take the
    // lowest.
    let wanted = [
        moved_to(2, 4, (1, 1), (0, 0)),
        moved_to(1, 6, (0, 3), (0, 1)),
        moved_to(1, 5, (0, 2), (0, 2)),
        moved_to(0, 1, (0, 1), (1, 0)),
    ];
    assert_eq!(moved, wanted);
    assert_eq!([(0, 0), (0, 1), (0, 2), (1, 0)].map(|(pool, slot)| model.stamp(pool, slot)), [2, 3, 3, 4]);
    assert_eq!((model.cause(0, 0), model.cause(2, 3)), (Some(Cause::Freed), Some(Cause::Freed)));
    assert_eq!((model.stats(0, Phase::Decode), model.route_count(0, 1)), (Stats::default(), 2));
    assert_eq!((model.step_counter(), model.is_pinned(1, 6), model.awaits_acceptance(0)), (5, true, false));

    assert_eq!(cold.rebuild(&[Some(0), None, Some(0)], &[8], false).unwrap(), []);
    assert_eq!((cold.export(), cold.cause(1, 5)), (vec![], Some(Cause::Freed)));
    assert_eq!(cold.admit(&Step::decode(1, &[5])), Err(Refusal::NoSlots(1)));
}

/// Which stays and which goes where stamps are equal: two pools become one.
#[test]
fn equal_stamps_go_by_pool_then_by_slot() {
    let mut model = Reference::new(8, &[0, 1], &[3, 3]);
    for layer in [0, 1] {
        commit(&mut model, &Step { phase: Phase::Prefill, ..Step::decode(layer, &[0, 1, 2]) });
    }
    let moved = model.rebuild(&[Some(0), Some(0)], &[4], true).unwrap();
    let owners: Vec<(u32, u32)> = moved.iter().map(|moved| (moved.layer, moved.expert)).collect();
    // Those of pool 1, and of pool 0 that of slot 2, which stays there; the others take 0, 1 and 3 in turn.
    assert_eq!(owners, [(1, 0), (1, 1), (0, 2), (1, 2)]);
    model.check();
    let moved = model.rebuild(&[Some(1), Some(0)], &[2, 2], true).unwrap();
    let places: Vec<_> = moved.iter().map(|moved| (moved.layer, moved.expert, moved.from.1, moved.to)).collect();
    // All are of one old pool now, so the slots decide: of layer 1, those in 1 and 3; 1 stays in its slot.
    assert_eq!(places, [(1, 2, 3, (0, 0)), (1, 1, 1, (0, 1)), (0, 2, 2, (1, 0))]);
}

#[test]
fn an_import_takes_the_working_set_along() {
    let mut old = Reference::new(8, &[0, 0, 1], &[4, 2]);
    commit(&mut old, &Step::decode(0, &[0, 1]));
    commit(&mut old, &Step::decode(2, &[3, 4]));
    commit(&mut old, &Step::decode(1, &[5]));
    commit(&mut old, &Step::decode(0, &[0]));
    let export = old.export();
    assert_eq!(export, [(0, 1), (2, 3), (2, 4), (1, 5), (0, 0)]);
    assert_eq!(refused(&mut old, |model| model.import(&export)), Refusal::NotEmpty);

    // Layer 2 has no slots here, and the oldest of the others does not fit.
    let mut model = Reference::with_pools(8, &[Some(0), Some(0), None], &[2]);
    assert_eq!(refused(&mut model, |model| model.import(&[(0, 1), (0, 8)])), Refusal::NoExpert(1));
    assert_eq!(refused(&mut model, |model| model.import(&[(0, 1), (3, 1)])), Refusal::NoLayer(3));
    assert_eq!(refused(&mut model, |model| model.import(&[(0, 1), (1, 1), (0, 1)])), Refusal::NamedTwice(2));
    let placed = |layer, expert, slot| Placed { layer, expert, pool: 0, slot };
    let wanted = [placed(1, 5, 0), placed(0, 0, 1)];
    assert_eq!(model.import(&export).unwrap(), wanted);
    model.abort();
    assert_eq!((model.export(), model.cause(1, 5)), (vec![], Some(Cause::Freed)));
    assert_eq!(model.step_counter(), 5, "each of the five is a step, aborted or not");
    assert_eq!(model.import(&export).unwrap(), wanted);
    model.commit();
    model.check();
    // The fourth and the fifth of those that come after step 5.
    assert_eq!((slots(&model), model.step_counter()), (vec![(9, Some(5)), (10, Some(0))], 10));
    assert_eq!(model.stats(1, Phase::Decode), Stats::default(), "an import is no step of a layer");
    // The least recent is the first to go, as it would have been.
    assert_eq!(commit(&mut model, &Step::decode(0, &[7])).evicted, [Some((1, 5))]);
}

#[test]
fn an_import_where_all_fit_is_exported_as_it_was() {
    let mut old = Reference::new(8, &[0, 0, 1], &[4, 2]);
    for (layer, routes) in [(2, &[3][..]), (0, &[2, 1]), (1, &[5]), (2, &[4]), (0, &[1])] {
        commit(&mut old, &Step::decode(layer, routes));
    }
    let export = old.export();
    assert_eq!(export, [(2, 3), (0, 2), (1, 5), (2, 4), (0, 1)]);
    let mut model = Reference::new(8, &[0, 0, 1], &[4, 2]);
    model.import(&export).unwrap();
    model.commit();
    assert_eq!(model.export(), export);
    let stamps = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)].map(|(pool, slot)| model.stamp(pool, slot));
    assert_eq!(stamps, [2, 3, 5, 1, 4]);
    assert_eq!(commit(&mut model, &Step::decode(2, &[0])).evicted, [Some((2, 3))]);
    assert_eq!(commit(&mut model, &Step::decode(1, &[6, 7])).evicted, [None, Some((0, 2))]);
}

#[test]
fn an_import_needs_a_number_for_each_of_its_experts() {
    let three = [(0, 3), (0, 1), (0, 2)];
    let mut model = Reference::new(8, &[0], &[1]);
    model.set_step_counter(LAST_STEP - 3);
    let mut later = model.clone();
    model.import(&three).unwrap();
    model.commit();
    assert_eq!((slots(&model), model.step_counter()), (vec![(LAST_STEP, Some(2))], LAST_STEP));
    later.set_step_counter(LAST_STEP - 2);
    assert_eq!(
        refused(&mut later, |model| model.import(&three)),
        Refusal::OutOfSteps,
        "one gets a slot, three a number"
    );
    later.set_step_counter(LAST_STEP);
    assert_eq!(later.import(&[]), Ok(vec![]), "nobody needs none");
}
