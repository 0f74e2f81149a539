//! Prefill chunks.

use super::*;

#[test]
fn a_chunk_on_borrowed_slots_stages_layers_in_turn() {
    let mut model = Reference::with_pools(6, &[Some(0), Some(0), Some(0), None], &[6]);
    commit(&mut model, &Step::decode(0, &[0, 1, 2]));
    commit(&mut model, &Step::decode(0, &[4]));
    commit(&mut model, &Step::decode(1, &[5]));
    for misuse in [Reference::wait, Reference::release] {
        assert_eq!(refused(&mut model, |model| misuse(model, 0)), Refusal::NoChunk);
    }
    assert_eq!(refused(&mut model, |model| model.prefetch(0)), Refusal::NoChunk);
    assert_eq!(refused(&mut model, Reference::end_chunk), Refusal::NoChunk);

    let buffers = Buffers { count: 2, stable_from: Some(vec![2]) };
    model.begin_chunk(&buffers).unwrap();
    model.check();
    assert_eq!(refused(&mut model, |model| model.begin_chunk(&buffers)), Refusal::ChunkOpen);
    assert_eq!(refused(&mut model, |model| model.rebuild(&[None; 4], &[], false)), Refusal::ChunkOpen);
    assert_eq!(refused(&mut model, |model| model.import(&[])), Refusal::ChunkOpen);
    assert_eq!([0, 1, 2].map(|expert| model.cause(0, expert)), [Some(Cause::Staging), Some(Cause::Staging), None]);
    assert_eq!(model.admit(&Step::decode(0, &[0, 1, 2, 3, 4])), Err(Refusal::TooWide(5, 4)));
    let stage = model.prefetch(0).unwrap();
    assert_eq!(stage, StagePlan { buffer: 0, gathers: vec![(2, 2), (3, 4)], runs: vec![(0, 2), (3, 1), (5, 1)] });
    assert_eq!(model.prefetch(1).unwrap(), StagePlan { buffer: 1, gathers: vec![(4, 5)], runs: vec![(0, 5)] });
    assert_eq!(refused(&mut model, |model| model.prefetch(0)), Refusal::StagedBefore(0));
    assert_eq!(refused(&mut model, |model| model.prefetch(2)), Refusal::NotReleased(0, 0));
    assert_eq!(refused(&mut model, |model| model.prefetch(3)), Refusal::NoSlots(3));
    assert_eq!(refused(&mut model, |model| model.prefetch(4)), Refusal::NoLayer(4));
    assert_eq!(refused(&mut model, |model| model.wait(2)), Refusal::NotStaged(2));
    assert_eq!(refused(&mut model, |model| model.release(0)), Refusal::NotInUse(0));
    assert_eq!(model.wait(0), Ok(0));
    assert_eq!(refused(&mut model, |model| model.wait(0)), Refusal::NotReady(0));
    assert_eq!(model.release(0), Ok(0));
    assert_eq!(refused(&mut model, |model| model.release(0)), Refusal::NotStaged(0));
    assert_eq!(model.prefetch(2).unwrap(), StagePlan { buffer: 0, gathers: vec![], runs: vec![(0, 6)] });

    // Decode goes on meanwhile, above the buffers.
    let answer = commit(&mut model, &Step::decode(0, &[0, 4]));
    assert_eq!((answer.slots, answer.evicted), (vec![5, 3], vec![None]));
    assert_eq!((model.wait(1), model.wait(2)), (Ok(1), Ok(0)));
    assert_eq!(refused(&mut model, Reference::end_chunk), Refusal::NotReleased(0, 2));
    assert_eq!((model.release(1), model.release(2)), (Ok(1), Ok(0)));
    model.end_chunk().unwrap();
    assert_eq!((model.withheld(0), slots(&model)[..2].to_vec()), (0, vec![(0, None), (0, None)]));
    assert_eq!(commit(&mut model, &Step::decode(1, &[0])).copies, [(0, 0)]);
}

/// Two buffers that are both free take turns, also where a layer is over before the next is staged. A layer that is
/// materialized goes to the first.
#[test]
fn buffers_take_turns() {
    type Stage = fn(&mut Reference, u32) -> Result<StagePlan, Refusal>;
    let ways: [(usize, Stage, _); 3] = [
        (2, Reference::prefetch, [0, 1, 0, 1]),
        (2, Reference::materialize, [0; 4]),
        (1, Reference::materialize, [0; 4]),
    ];
    for (count, stage, wanted) in ways {
        let mut model = Reference::new(2, &[0; 4], &[2]);
        commit(&mut model, &Step::decode(0, &[0, 1]));
        let before = slots(&model);
        model.begin_chunk(&Buffers { count, stable_from: None }).unwrap();
        let taken = [0, 1, 2, 3].map(|layer| {
            let buffer = stage(&mut model, layer).unwrap().buffer;
            assert_eq!((model.wait(layer), model.release(layer)), (Ok(buffer), Ok(buffer)));
            buffer
        });
        assert_eq!(taken, wanted);
        model.end_chunk().unwrap();
        assert_eq!(slots(&model), before, "buffers with bytes of their own leave the slots alone");
    }
}

#[test]
fn one_buffer_has_no_overlap_and_a_chunk_can_be_abandoned() {
    let mut model = Reference::new(2, &[0; 2], &[3]);
    commit(&mut model, &Step::decode(0, &[0, 1]));
    assert_eq!(refused(&mut model, Reference::abandon_chunk), Refusal::NoChunk);
    model.begin_chunk(&Buffers { count: 1, stable_from: Some(vec![1]) }).unwrap();
    assert_eq!(refused(&mut model, |model| model.prefetch(0)), Refusal::NoOverlap);
    assert_eq!(model.materialize(0).unwrap().gathers, [(1, 1)]);
    assert_eq!(refused(&mut model, |model| model.materialize(1)), Refusal::NotReleased(0, 0));
    assert_eq!(refused(&mut model, Reference::end_chunk), Refusal::NotReleased(0, 0));
    model.abandon_chunk().unwrap();
    assert_eq!((model.withheld(0), model.is_chunk_open()), (0, false));
}
