//! Steps that come again under their token.

use super::*;

#[test]
fn a_token_gives_the_answer_again_until_something_comes_between() {
    let mut model = Reference::new(8, &[0, 0], &[3]);
    let asked = under(7, Step::decode(0, &[0, ABSENT, 1]));
    let answer = commit(&mut model, &asked);
    let before = model.clone();
    assert_eq!(commit(&mut model, &asked), Answer { repeat: true, ..answer.clone() });
    assert!(model == before, "a repeat is no step");
    for other in [
        under(7, Step::decode(0, &[0, 1, ABSENT])),
        under(7, step(Phase::Verify, &[0, ABSENT, 1])),
        under(7, up_to(9, &[0, ABSENT, 1])),
    ] {
        assert_eq!(refused(&mut model, |model| model.admit(&other)), Refusal::TokenReused);
    }
    // The token is the layer's: layer 1 has not used it. Its step leaves layer 0's experts where they are, then not.
    commit(&mut model, &under(7, Step::decode(1, &[4])));
    assert!(commit(&mut model, &asked).repeat);
    commit(&mut model, &Step::decode(1, &[4, 5]));
    assert_eq!(model.slot_of(0, 0), None);
    assert_eq!(refused(&mut model, |model| model.admit(&asked)), Refusal::AnswerGone(0));
    // A step of the layer without the token ends its memory, even if it is aborted; a refused one does not.
    assert_eq!(model.admit(&Step::decode(0, &[0, 1, 2, 3])), Err(Refusal::TooWide(4, 3)));
    assert_eq!(refused(&mut model, |model| model.admit(&asked)), Refusal::AnswerGone(0));
    abort(&mut model, &Step::decode(0, &[1]));
    assert!(!commit(&mut model, &asked).repeat);
}

/// The parts of a step have its token, and other routes each: the last is the one that may come again.
#[test]
fn a_step_in_parts_has_one_token() {
    let mut model = one_pool(2);
    let first = under(7, Step::decode(0, &[0, 1, ABSENT, ABSENT]));
    let second = Step { continues: true, ..under(7, Step::decode(0, &[ABSENT, ABSENT, 2, 3])) };
    commit(&mut model, &first);
    assert!(commit(&mut model, &first).repeat, "the last so far");
    let answer = commit(&mut model, &second);
    assert_eq!((answer.step, answer.repeat, answer.slots), (2, false, vec![ABSENT, ABSENT, 0, 1]));
    assert!(commit(&mut model, &second).repeat);
    assert_eq!(refused(&mut model, |model| model.admit(&first)), Refusal::TokenReused);
    assert!(commit(&mut model, &second).repeat, "a refusal ends nothing");
    // Further parts may be of any kind.
    for other in [first.clone(), step(Phase::Verify, &[1]), up_to(9, &[1])] {
        let answer = commit(&mut model, &under(7, Step { continues: true, ..other }));
        assert!(!answer.repeat);
    }
    assert_eq!((model.step_counter(), model.stats(0, Phase::Decode).steps), (5, 1));
    // An aborted part is not remembered, nor the one before it.
    abort(&mut model, &second);
    assert!(!commit(&mut model, &under(7, up_to(9, &[1]))).repeat);
}

/// Whoever carries a plan out bank by bank may fail when it is given again: nothing is known of its rows then.
#[test]
fn an_aborted_repeat_frees_what_the_answer_copied() {
    let mut model = one_pool(3);
    commit(&mut model, &Step::decode(0, &[0]));
    let asked = under(7, Step::decode(0, &[0, 1]));
    commit(&mut model, &asked);
    let counted = model.stats(0, Phase::Decode);
    assert_eq!(abort(&mut model, &asked).copies, [(1, 1)]);
    assert_eq!(slots(&model)[..2], [(2, Some(0)), (0, None)], "the hit stays");
    assert_eq!((model.cause(0, 1), model.step_counter()), (Some(Cause::Freed), 2));
    assert_eq!(model.stats(0, Phase::Decode), counted);
    assert!(!commit(&mut model, &asked).repeat);
}

#[test]
fn whatever_frees_slots_ends_every_answer() {
    let asked = under(1, Step::decode(0, &[0]));
    let ends: [fn(&mut Reference); 7] = [
        |model| assert_eq!(model.forget(0, 3), None),
        |model| assert_eq!(model.forget_layer(1), 0),
        |model| model.reset(),
        |model| drop(abort(model, &Step::decode(1, &[]))),
        |model| drop(model.rebuild(&[Some(0), Some(0)], &[4], true).unwrap()),
        |model| model.begin_chunk(&Buffers { count: 2, stable_from: Some(vec![0]) }).unwrap(),
        |model| drop(commit(model, &under(2, Step::decode(0, &[0])))),
    ];
    for (index, end) in ends.into_iter().enumerate() {
        let mut model = Reference::new(8, &[0, 0], &[4]);
        commit(&mut model, &asked);
        end(&mut model);
        assert!(!commit(&mut model, &asked).repeat, "{index}");
    }
    // An import needs an empty cache: an answer that gave no slot can wait for one.
    let mut model = one_pool(4);
    let asked_of_cpu = under(1, up_to(0, &[0]));
    commit(&mut model, &asked_of_cpu);
    assert!(commit(&mut model, &asked_of_cpu).repeat);
    model.import(&[(0, 0)]).unwrap();
    model.commit();
    assert!(!commit(&mut model, &asked_of_cpu).repeat);
    // These end none.
    let mut model = Reference::new(8, &[0, 0], &[4]);
    commit(&mut model, &asked);
    model.begin_chunk(&Buffers { count: 2, stable_from: None }).unwrap();
    model.prefetch(0).unwrap();
    model.pin(&[(0, 0)], 0).unwrap();
    commit(&mut model, &step(Phase::Verify, &[]));
    assert!(!commit(&mut model, &asked).repeat, "an admission of the layer, under no token");
    model.accept(0, &[]).unwrap();
    assert!(commit(&mut model, &asked).repeat);
}
