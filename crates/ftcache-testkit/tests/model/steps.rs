//! What a step decides, counts and leaves, phase by phase but for what is accepted.

use super::*;

/// Prefill goes past what decode uses: its hits grow no younger, and what it copies is the first to go.
#[test]
fn prefill_stamps_its_misses_1_and_its_hits_not_at_all() {
    let mut model = one_pool(4);
    commit(&mut model, &Step::decode(0, &[0, 1]));
    commit(&mut model, &Step::decode(0, &[1]));
    let answer = commit(&mut model, &step(Phase::Prefill, &[0, 5, 4]));
    assert_eq!((answer.slots, answer.copies), (vec![0, 3, 2], vec![(2, 4), (3, 5)]));
    assert_eq!(slots(&model), [(1, Some(0)), (2, Some(1)), (1, Some(4)), (1, Some(5))]);
    // Slot 0 has stamp 1 and is the lowest, yet the step hits it; so the miss goes to slot 2.
    let answer = commit(&mut model, &step(Phase::Prefill, &[0, 6]));
    assert_eq!(answer.evicted, [Some((0, 4))]);
    assert_eq!(slots(&model)[2], (1, Some(6)));
}

#[test]
fn what_a_fraction_leaves_over_is_kept_by_a_commit_only() {
    let mut model = one_pool(8);
    let fetch = Fetch { rule: FetchRule::Carry(Fraction::from_q16(40_000).unwrap()), most: None };
    let hybrid = |routes: &[u32]| Step { misses: Misses::Hybrid(fetch, Order::LowestId), ..Step::decode(0, routes) };
    assert_eq!(commit(&mut model, &hybrid(&[3])).slots, [CPU]);
    assert_eq!(model.carried(0), Carried::from_q16(40_000));
    let counted = (model.stats(0, Phase::Decode), model.active(0, 3));
    assert_eq!(abort(&mut model, &hybrid(&[3, 2])).copies, [(0, 2)], "120,000 of 65,536 are one");
    assert_eq!(model.carried(0), Carried::from_q16(40_000));
    assert_eq!((model.stats(0, Phase::Decode), model.active(0, 3)), counted);
    assert_eq!([2, 3].map(|expert| model.cause(0, expert)), [Some(Cause::Freed), Some(Cause::OnCpu)]);
    assert_eq!(commit(&mut model, &hybrid(&[3])).copies, [(0, 3)]);
    assert_eq!(model.carried(0), Carried::from_q16((80_000 - 65_536) as u16));
}

#[test]
fn a_pinned_expert_is_no_victim_and_narrows_what_a_step_may_need() {
    let mut model = one_pool(3);
    commit(&mut model, &Step::decode(0, &[0]));
    assert_eq!(refused(&mut model, |model| model.pin(&[(0, 0), (0, 1)], 2)), Refusal::TooManyPinned(0, 2, 1));
    assert_eq!(refused(&mut model, |model| model.pin(&[(0, 0), (0, 8)], 0)), Refusal::NoExpert(1));
    model.pin(&[(0, 0), (0, 1)], 1).unwrap();
    model.pin(&[(0, 1)], 1).unwrap();
    assert_eq!(refused(&mut model, |model| model.pin(&[(0, 1), (0, 2)], 1)), Refusal::TooManyPinned(0, 3, 2));
    commit(&mut model, &Step::decode(0, &[2, 3]));
    assert_eq!(slots(&model), [(1, Some(0)), (2, Some(2)), (2, Some(3))], "1 is marked, but nowhere");
    // Slot 0 is the oldest and stays; three experts beside it do not fit, with it they do.
    assert_eq!(model.admit(&Step::decode(0, &[4, 5, 6])), Err(Refusal::TooWide(3, 2)));
    assert_eq!(model.stats(0, Phase::Decode).refused, 1);
    assert_eq!(commit(&mut model, &Step::decode(0, &[4, 5, 0])).slots, [1, 2, 0]);
    // A hybrid step is never too wide: of four misses as many are fetched as there are slots.
    assert_eq!(commit(&mut model, &up_to(9, &[1, 2, 6, 7])).slots, [1, 2, CPU, CPU]);
    assert_eq!(commit(&mut model, &up_to(9, &[6, 7])).slots, [2, CPU], "1 is in slot 1 now, and pinned too");
    model.unpin(&[(0, 0), (0, 7)]).unwrap();
    assert_eq!(commit(&mut model, &Step::decode(0, &[7])).slots, [0]);
    assert!(!model.is_pinned(0, 0) && model.is_pinned(0, 1));
    model.reset();
    assert!(model.is_pinned(0, 1), "marks outlive slots");
}

#[test]
fn every_miss_has_its_cause() {
    let mut model = one_pool(2);
    let counted = |model: &Reference| {
        let stats = model.stats(0, Phase::Decode);
        [stats.cold, stats.capacity, stats.staging, stats.freed, stats.on_cpu]
    };
    commit(&mut model, &Step::decode(0, &[0, 1]));
    assert_eq!((model.cause(0, 0), model.cause(0, 7)), (None, Some(Cause::Cold)));
    assert_eq!(counted(&model), [2, 0, 0, 0, 0]);
    commit(&mut model, &Step::decode(0, &[2]));
    assert_eq!(model.cause(0, 0), Some(Cause::Capacity));
    commit(&mut model, &up_to(0, &[0, 0, ABSENT]));
    assert_eq!((counted(&model), model.cause(0, 0)), ([3, 1, 0, 0, 0], Some(Cause::OnCpu)));
    // Not counted; but 1 has lost its slot to 0, which lost it to the abort.
    abort(&mut model, &Step::decode(0, &[0]));
    assert_eq!(counted(&model), [3, 1, 0, 0, 0]);
    assert_eq!([0, 1, 2].map(|expert| model.cause(0, expert)), [Some(Cause::Freed), Some(Cause::Capacity), None]);
    commit(&mut model, &Step::decode(0, &[0, 2]));
    assert_eq!(counted(&model), [3, 1, 0, 1, 0]);
    model.begin_chunk(&Buffers { count: 1, stable_from: Some(vec![2]) }).unwrap();
    model.end_chunk().unwrap();
    commit(&mut model, &up_to(1, &[0, 3]));
    assert_eq!(counted(&model), [4, 1, 1, 1, 0]);
    commit(&mut model, &up_to(0, &[3]));
    let stats = model.stats(0, Phase::Decode);
    assert_eq!(counted(&model), [4, 1, 1, 1, 1]);
    let wanted = Stats { steps: 6, routes: 10, distinct: 9, misses: 8, fetched: 5, evictions: 1, ..stats };
    assert_eq!((stats, stats.hit_routes), (wanted, 1));
    assert_eq!([0, 1, 2, 3].map(|expert| model.route_count(0, expert)), [5, 1, 2, 2]);
}

/// What was known of a miss before the step that leaves it to the CPU is known again if that step is aborted.
#[test]
fn an_aborted_hybrid_step_leaves_causes_as_they_were() {
    let mut model = one_pool(1);
    commit(&mut model, &Step::decode(0, &[0]));
    commit(&mut model, &Step::decode(0, &[1]));
    model.forget(0, 0);
    commit(&mut model, &Step::decode(0, &[2]));
    let causes = |model: &Reference| [0, 1, 2, 3].map(|expert| model.cause(0, expert));
    let before = [Some(Cause::Capacity), Some(Cause::Freed), None, Some(Cause::Cold)];
    assert_eq!(causes(&model), before);
    abort(&mut model, &up_to(0, &[0, 1, 2, 3]));
    assert_eq!(causes(&model), before);
    commit(&mut model, &up_to(0, &[0, 1, 2, 3]));
    let on_cpu = [Some(Cause::OnCpu), Some(Cause::OnCpu), None, Some(Cause::OnCpu)];
    assert_eq!(causes(&model), on_cpu);
    let stats = model.stats(0, Phase::Decode);
    assert_eq!((stats.cold, stats.capacity, stats.freed, stats.on_cpu), (4, 1, 1, 0));
    abort(&mut model, &up_to(0, &[0]));
    assert_eq!(causes(&model), on_cpu);
    // One that fetches as well: the slot is 2's, who does not come back.
    abort(&mut model, &up_to(1, &[0, 3]));
    let after = [Some(Cause::Freed), Some(Cause::OnCpu), Some(Cause::Capacity), Some(Cause::OnCpu)];
    assert_eq!(causes(&model), after);
}

#[test]
fn routes_are_hits_if_their_expert_was_there_before() {
    let mut model = one_pool(3);
    let hit_routes = |model: &Reference, phase| (model.stats(0, phase).hit_routes, model.stats(0, phase).routes);
    commit(&mut model, &Step::decode(0, &[0]));
    commit(&mut model, &Step::decode(0, &[0, 1, 0, ABSENT, 1, 0]));
    assert_eq!(hit_routes(&model, Phase::Decode), (3, 6), "both of 1 are misses");
    abort(&mut model, &Step::decode(0, &[0, 0]));
    commit(&mut model, &up_to(0, &[5, 1, 5, 1]));
    assert_eq!(hit_routes(&model, Phase::Decode), (5, 10), "those of the aborted step are none");
    commit(&mut model, &step(Phase::Prefill, &[1, 1, 2, 3]));
    assert_eq!(hit_routes(&model, Phase::Prefill), (2, 4));
    let asked = under(1, Step { continues: true, ..step(Phase::Verify, &[1]) });
    assert_eq!([commit(&mut model, &asked), commit(&mut model, &asked)].map(|answer| answer.repeat), [false, true]);
    assert_eq!(hit_routes(&model, Phase::Verify), (1, 1));
}

#[test]
fn a_step_that_continues_another_counts_all_but_itself() {
    let mut model = one_pool(2);
    commit(&mut model, &Step::decode(0, &[0, 1]));
    commit(&mut model, &Step { continues: true, ..Step::decode(0, &[2, 3]) });
    let wanted =
        Stats { steps: 1, routes: 4, distinct: 4, misses: 4, fetched: 4, evictions: 2, cold: 4, ..Stats::default() };
    assert_eq!(model.stats(0, Phase::Decode), wanted);
    assert_eq!(model.step_counter(), 2);
}

#[test]
fn an_aborted_step_frees_what_it_copied_and_nothing_more() {
    let mut model = one_pool(3);
    commit(&mut model, &Step::decode(0, &[0, 1, 2]));
    assert_eq!(abort(&mut model, &Step::decode(0, &[1, 5])).copies, [(0, 5)]);
    assert_eq!(slots(&model), [(0, None), (2, Some(1)), (1, Some(2))], "the hit's stamp and the step stay");
    assert_eq!(model.route_count(0, 1), 1);
    assert_eq!(commit(&mut model, &Step::decode(0, &[6])).copies, [(0, 6)]);
}

#[test]
fn what_is_wrong_is_found_in_a_fixed_order() {
    let mut model = Reference::with_pools(4, &[Some(0), None], &[2]);
    assert_eq!(refused(&mut model, |model| model.admit(&Step::decode(2, &[9]))), Refusal::NoLayer(2));
    assert_eq!(refused(&mut model, |model| model.admit(&Step::decode(1, &[9]))), Refusal::NoSlots(1));
    assert_eq!(refused(&mut model, |model| model.admit(&Step::decode(0, &[0, 4]))), Refusal::NoExpert(1));
    model.set_step_counter(LAST_STEP - 1);
    commit(&mut model, &under(1, step(Phase::Verify, &[0])));
    assert_eq!(refused(&mut model, |model| model.admit(&Step::decode(0, &[0, 1, 2]))), Refusal::OutOfSteps);
    assert_eq!(refused(&mut model, |model| model.accept(0, &[0])), Refusal::OutOfSteps);
    assert!(model.admit(&under(1, step(Phase::Verify, &[0]))).unwrap().repeat, "a repeat needs no number");
    assert_eq!(refused(&mut model, |model| model.admit(&Step::decode(0, &[0]))), Refusal::PlanOpen);
    assert_eq!(refused(&mut model, |model| model.import(&[])), Refusal::PlanOpen);
}
