//! A step asked for again under its token.

use super::*;

fn named(token: u64, layer_number: u32) -> Step {
    Step { token: Some(token), ..Step::new(layer(layer_number)) }
}

/// Two layers of eight experts over four slots; layer 0 has had [3, 5, 3] under token 7.
fn answered() -> (Cache, Plan) {
    let mut cache = one_pool(2, 8, 4);
    decode(&mut cache, 0, &[5]);
    let plan = commit(&mut cache, named(7, 0), &[3, 5, 3]);
    assert!(!plan.is_repeat());
    (cache, plan)
}

#[test]
fn the_same_step_again_is_the_same_plan_and_no_step() {
    let (mut cache, first) = answered();
    let (before, stats) = (state(&cache), cache.layer_stats(layer(0)));
    for _ in 0..3 {
        let again = commit(&mut cache, named(7, 0), &[3, 5, 3]);
        assert!(again.is_repeat());
        assert_eq!((again.to_string(), again.step()), (first.to_string(), 2));
        assert_eq!(again.copies(), first.copies());
        let counts = |plan: &Plan| (plan.miss_count(), plan.distinct_count(), plan.present_count());
        assert_eq!(counts(&again), counts(&first));
        assert_eq!((cache.step(), cache.layer_stats(layer(0))), (2, stats));
        assert_eq!(state(&cache), before);
    }
}

#[test]
fn a_step_without_a_token_is_always_a_step() {
    let mut cache = one_pool(1, 8, 4);
    for _ in 0..2 {
        assert!(!commit(&mut cache, layer(0), &[3]).is_repeat());
    }
    assert_eq!(cache.step(), 2);
}

#[test]
fn another_step_under_the_token_is_an_error() {
    let (mut cache, _) = answered();
    let reused = EnsureError::TokenReused { layer: layer(0), token: 7 };
    for routes in [&[3, 5][..], &[3, 5, 4], &[5, 3, 3], &[3, 5, 3, 3], &[]] {
        assert_eq!(refuse(&mut cache, named(7, 0), routes), reused);
    }
    let fetch = Fetch { rule: FetchRule::UpTo(8), most: None };
    let misses = Misses::Hybrid { fetch, order: FetchOrder::Recency };
    assert_eq!(refuse(&mut cache, Step { misses, ..named(7, 0) }, &[3, 5, 3]), reused);
    assert_eq!(refuse(&mut cache, Step { phase: Phase::Verify, ..named(7, 0) }, &[3, 5, 3]), reused);
    assert!(commit(&mut cache, named(7, 0), &[3, 5, 3]).is_repeat(), "the errors have ended nothing");
}

#[test]
fn a_token_is_its_layers() {
    let (mut cache, _) = answered();
    assert!(!commit(&mut cache, named(7, 1), &[1, 2]).is_repeat());
    assert!(commit(&mut cache, named(7, 1), &[1, 2]).is_repeat());
    assert!(commit(&mut cache, named(7, 0), &[3, 5, 3]).is_repeat(), "another layer's step has ended nothing");
}

#[test]
fn the_next_admission_of_the_layer_ends_a_token() {
    for next in [Step::new(layer(0)), named(8, 0)] {
        let (mut cache, _) = answered();
        commit(&mut cache, next, &[5]);
        let again = commit(&mut cache, named(7, 0), &[5, 3]);
        assert!(!again.is_repeat(), "and other routes are no error");
        assert_eq!(again.step(), 4);
    }
}

#[test]
fn a_refused_admission_ends_no_token() {
    let (mut cache, _) = answered();
    refuse(&mut cache, layer(0), &[0, 1, 2, 3, 4]);
    refuse(&mut cache, named(8, 0), &[8]);
    assert!(commit(&mut cache, named(7, 0), &[3, 5, 3]).is_repeat());
}

#[test]
fn an_aborted_step_is_admitted_anew() {
    let mut cache = one_pool(1, 8, 4);
    abort(&mut cache, named(7, 0), &[3]);
    let again = commit(&mut cache, named(7, 0), &[3]);
    assert!(!again.is_repeat());
    assert_eq!(again.copies().len(), 1);
}

#[test]
fn whatever_frees_a_slot_ends_every_token() {
    type Freeing = (&'static str, fn(&mut Cache));
    let freeing: [Freeing; 6] = [
        ("forget", |cache| assert!(cache.forget(POOL, slot(2)).is_some())),
        ("forget_layer", |cache| assert_eq!(cache.forget_layer(layer(1)), Ok(1))),
        ("reset", |cache| cache.reset()),
        ("abort", |cache| abort(cache, layer(1), &[4])),
        ("cold rebuild", |cache| *cache = cache.rebuilt_with_pools(&[Some(POOL); 2], &[4], Keep::Nothing).unwrap().0),
        ("warm rebuild", |cache| *cache = cache.rebuilt_with_pools(&[Some(POOL); 2], &[4], Keep::WhatFits).unwrap().0),
    ];
    for (name, free) in freeing {
        let (mut cache, _) = answered();
        decode(&mut cache, 1, &[0]);
        free(&mut cache);
        assert!(!commit(&mut cache, named(7, 0), &[3, 5, 3]).is_repeat(), "{name}");
    }
}

#[test]
fn staging_ends_tokens_where_it_borrows_slots() {
    let geometry = geometry(2, 4, 8);
    for (staging, ended) in [(Staging::borrowed(&geometry).unwrap(), true), (Staging::dedicated(&geometry, 2), false)] {
        let mut cache = Cache::new(&geometry);
        cache.set_staging(staging, 0).unwrap();
        commit(&mut cache, named(7, 0), &[3]);
        cache.begin_chunk().unwrap();
        cache.end_chunk().unwrap();
        assert_eq!(commit(&mut cache, named(7, 0), &[3]).is_repeat(), !ended);
    }
}

#[test]
fn what_frees_nothing_ends_no_token() {
    let (mut cache, _) = answered();
    cache.pin(&[(layer(0), expert(3))], 2).unwrap();
    cache.unpin(&[(layer(0), expert(3))]).unwrap();
    cache.reset_stats();
    cache.reset_routing();
    cache.skip_to(90);
    assert!(commit(&mut cache, named(7, 0), &[3, 5, 3]).is_repeat());
}

#[test]
fn an_answer_whose_slot_has_gone_to_another_expert_is_an_error() {
    let (mut cache, _) = answered();
    decode(&mut cache, 1, &[0, 1, 2]);
    // 3 and 5 have the same stamp, and 5 the lower slot.
    assert_eq!(cache.slot_of(layer(0), expert(5)), None);
    let gone = EnsureError::AnswerGone { layer: layer(0), token: 7, expert: expert(5) };
    assert_eq!(refuse(&mut cache, named(7, 0), &[3, 5, 3]), gone);
    assert_eq!(refuse(&mut cache, named(7, 0), &[3]), EnsureError::TokenReused { layer: layer(0), token: 7 });
    assert!(!commit(&mut cache, named(8, 0), &[3, 5, 3]).is_repeat(), "under another token it is another step");
}

#[test]
fn a_repeat_that_is_aborted_frees_what_it_would_have_copied() {
    let (mut cache, _) = answered();
    let stats = cache.layer_stats(layer(0));
    abort(&mut cache, named(7, 0), &[3, 5, 3]);
    assert_eq!(cache.absence(layer(0), expert(3)), Some(Absence::Freed));
    assert_eq!(cache.slot_of(layer(0), expert(5)), Some(slot(0)), "5 was a hit");
    assert_eq!((cache.step(), cache.layer_stats(layer(0))), (2, stats));
    let again = commit(&mut cache, named(7, 0), &[3, 5, 3]);
    assert_eq!((again.is_repeat(), again.copies().len()), (false, 1));
}

#[test]
fn a_repeat_of_what_was_left_to_the_cpu_leaves_it_there() {
    let fetch = Fetch { rule: FetchRule::Carry(Fraction::nearest(0.5).unwrap()), most: None };
    let step = Step { misses: Misses::Hybrid { fetch, order: FetchOrder::Recency }, ..named(1, 0) };
    let mut cache = one_pool(1, 8, 4);
    assert_eq!(answer(&commit(&mut cache, step, &[2])), [-1]);
    let again = commit(&mut cache, step, &[2]);
    assert_eq!((again.is_repeat(), answer(&again), again.left_count()), (true, vec![-1], 1));
    assert_eq!(cache.carried(layer(0)).q16(), 32_768, "nothing is carried twice");
    assert_eq!(answer(&commit(&mut cache, Step { token: Some(2), ..step }, &[2])), [0]);
}

#[test]
fn a_repeat_of_a_verify_step_is_not_to_be_accepted_again() {
    let step = Step { phase: Phase::Verify, ..named(1, 0) };
    let mut cache = one_pool(1, 8, 4);
    commit(&mut cache, step, &[2, 3]);
    assert!(commit(&mut cache, step, &[2, 3]).is_repeat());
    assert_eq!(cache.accept(layer(0), &ids(&[2])), Ok(()));
    assert!(commit(&mut cache, step, &[2, 3]).is_repeat());
    assert_eq!(cache.accept(layer(0), &ids(&[2])), Err(EnsureError::NothingToAccept { layer: layer(0) }));
}
