//! Verify steps, whole and in parts, and what becomes of them.

use super::*;

#[test]
fn a_verify_step_stamps_what_is_accepted() {
    let mut model = one_pool(4);
    commit(&mut model, &Step::decode(0, &[0]));
    commit(&mut model, &Step::decode(0, &[1]));
    let answer = commit(&mut model, &step(Phase::Verify, &[0, 2, 3, ABSENT]));
    assert_eq!(answer.slots, [0, 2, 3, ABSENT]);
    assert_eq!(slots(&model), [(1, Some(0)), (2, Some(1)), (3, Some(2)), (3, Some(3))], "the hit keeps its stamp");
    assert_eq!(refused(&mut model, |model| model.accept(0, &[0, 1])), Refusal::NotVerified(1));
    model.accept(0, &[0, 2, ABSENT, 2]).unwrap();
    assert_eq!(slots(&model), [(4, Some(0)), (2, Some(1)), (4, Some(2)), (1, Some(3))], "3 was fetched in vain");
    assert_eq!(model.active(0, 0), 0, "a plain step is no activity");
    assert_eq!(refused(&mut model, |model| model.accept(0, &[])), Refusal::NothingToAccept(0));
    assert_eq!(refused(&mut model, |model| model.accept(1, &[])), Refusal::NoLayer(1));
}

/// What was fetched in vain keeps its slot's stamp if another step has used it before the acceptance.
#[test]
fn an_acceptance_leaves_alone_what_was_used_since() {
    let mut model = one_pool(4);
    commit(&mut model, &step(Phase::Verify, &[2, 3]));
    commit(&mut model, &Step::decode(0, &[3]));
    model.accept(0, &[]).unwrap();
    assert_eq!(slots(&model)[..2], [(1, Some(2)), (2, Some(3))]);
    assert_eq!(model.step_counter(), 3, "an acceptance is a step of its own");
}

/// An admitted verify step is the layer's only one, also if nothing comes of it. One that is refused is not.
#[test]
fn a_later_verify_step_closes_the_one_before() {
    let mut model = one_pool(3);
    commit(&mut model, &step(Phase::Verify, &[3]));
    assert_eq!(model.admit(&step(Phase::Verify, &[0, 1, 2, 3])), Err(Refusal::TooWide(4, 3)));
    assert!(model.awaits_acceptance(0));
    abort(&mut model, &step(Phase::Verify, &[4]));
    assert_eq!(refused(&mut model, |model| model.accept(0, &[3])), Refusal::NothingToAccept(0));
    commit(&mut model, &under(1, step(Phase::Verify, &[3])));
    assert!(commit(&mut model, &under(1, step(Phase::Verify, &[3]))).repeat, "which is no step");
    commit(&mut model, &Step::decode(0, &[4]));
    model.accept(0, &[3]).unwrap();
    // Steps: two that verify and one that decodes, beside the aborted one.
    assert_eq!(slots(&model), [(5, Some(3)), (4, Some(4)), (0, None)]);
}

fn part(routes: &[u32]) -> Step {
    Step { continues: true, ..step(Phase::Verify, routes) }
}

#[test]
fn a_verify_step_in_parts_is_accepted_as_one() {
    let mut model = one_pool(3);
    commit(&mut model, &Step::decode(0, &[0]));
    commit(&mut model, &step(Phase::Verify, &[0, 1, 2]));
    let answer = commit(&mut model, &part(&[3, 4]));
    assert_eq!((answer.step, answer.copies), (3, vec![(0, 3), (1, 4)]));
    assert_eq!(slots(&model), [(3, Some(3)), (3, Some(4)), (2, Some(2))]);
    assert_eq!(refused(&mut model, |model| model.accept(0, &[3, 5])), Refusal::NotVerified(1));
    // 0 was hit and 1 fetched by the first part; both have lost their slots to the second.
    let mut other = model.clone();
    model.accept(0, &[0, 1, 2, 4]).unwrap();
    assert_eq!(slots(&model), [(1, Some(3)), (4, Some(4)), (4, Some(2))], "3 was fetched in vain");
    assert!(!model.awaits_acceptance(0));
    other.accept(0, &[3]).unwrap();
    assert_eq!(
        slots(&other),
        [(4, Some(3)), (1, Some(4)), (1, Some(2))],
        "2 has the first part's stamp, 4 the second's"
    );
    assert_eq!(other.stats(0, Phase::Verify).steps, 1);
}

/// Used since is what has a stamp after the last part's; whoever decodes between the parts gains nothing.
#[test]
fn stamps_from_the_first_part_to_the_last_are_the_steps_own() {
    let mut model = one_pool(4);
    commit(&mut model, &step(Phase::Verify, &[2]));
    commit(&mut model, &Step::decode(0, &[2]));
    commit(&mut model, &part(&[3]));
    commit(&mut model, &part(&[4]));
    commit(&mut model, &Step::decode(0, &[4]));
    assert_eq!(slots(&model)[..3], [(2, Some(2)), (3, Some(3)), (5, Some(4))]);
    model.accept(0, &[]).unwrap();
    assert_eq!(slots(&model)[..3], [(1, Some(2)), (1, Some(3)), (5, Some(4))]);
}

#[test]
fn parts_that_are_aborted_are_not_to_be_accepted() {
    let mut model = one_pool(4);
    commit(&mut model, &step(Phase::Verify, &[2]));
    abort(&mut model, &part(&[3]));
    commit(&mut model, &part(&[4]));
    assert_eq!(refused(&mut model, |model| model.accept(0, &[2, 3])), Refusal::NotVerified(1));
    model.accept(0, &[2, 4]).unwrap();
    assert_eq!(slots(&model)[..2], [(4, Some(2)), (4, Some(4))], "4 took the slot that the abort had freed");
    // Without a first part the next is the first.
    abort(&mut model, &step(Phase::Verify, &[2, 5]));
    commit(&mut model, &part(&[6]));
    assert_eq!(refused(&mut model, |model| model.accept(0, &[2])), Refusal::NotVerified(0));
    model.accept(0, &[6]).unwrap();
}

#[test]
fn a_hybrid_verify_step_is_active_where_it_is_accepted() {
    let mut model = one_pool(4);
    let answer = commit(&mut model, &Step { phase: Phase::Verify, ..up_to(1, &[5, 6, 7]) });
    assert_eq!(answer.slots, [0, CPU, CPU]);
    assert_eq!([5, 6, 7].map(|expert| model.active(0, expert)), [0, 0, 0]);
    model.accept(0, &[7]).unwrap();
    assert_eq!([5, 6, 7].map(|expert| model.active(0, expert)), [0, 0, 2]);
    assert_eq!(slots(&model)[0], (1, Some(5)));
    // The most recently active of the misses first: 7, though its id is the highest.
    assert_eq!(commit(&mut model, &up_to(1, &[5, 6, 7])).missing, [7, 6]);
}
