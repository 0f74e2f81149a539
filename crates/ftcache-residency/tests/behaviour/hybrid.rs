//! Steps of which a CPU computes what is not fetched. C4 and C15 of the worked cases.

use super::*;

fn hybrid(fetch: Fetch, order: FetchOrder) -> Step {
    Step { misses: Misses::Hybrid { fetch, order }, ..Step::new(layer(0)) }
}

fn by_rule(rule: FetchRule) -> Step {
    hybrid(Fetch { rule, most: None }, FetchOrder::Recency)
}

fn fraction(ratio: f64) -> Fraction {
    Fraction::nearest(ratio).unwrap()
}

/// One layer of eight experts, of which 0 to 3 fill the four slots.
fn full_pool() -> Cache {
    let mut cache = one_pool(1, 8, 4);
    for expert in 0..4 {
        decode(&mut cache, 0, &[expert]);
    }
    cache
}

// C4's table.
#[test]
fn min_wait_fetches_the_worked_numbers() {
    let table = [
        (0.2189, [0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2]),
        (0.294, [0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 3]),
        (0.341, [0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]),
        (0.5, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5]),
        (0.75, [0, 1, 2, 2, 3, 4, 5, 5, 6, 7, 8]),
        (1.0, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
    ];
    for (ratio, fetched) in table {
        for (misses, wanted) in fetched.into_iter().enumerate() {
            let routes: Vec<u32> = (0..misses as u32).collect();
            let step = by_rule(FetchRule::MinWait(fraction(ratio)));
            let plan = commit(&mut one_pool(1, 16, 16), step, &routes);
            assert_eq!(plan.copies().len(), wanted, "{misses} misses at {ratio}");
            assert_eq!((plan.miss_count(), plan.left_count()), (misses, misses - wanted));
        }
    }
}

#[test]
fn min_wait_never_fetches_two_misses_that_recur() {
    let mut cache = one_pool(1, 8, 8);
    let step = by_rule(FetchRule::MinWait(fraction(0.294)));
    let answers = [0; 5].map(|_| answer(&commit(&mut cache, step, &[0, 1])));
    assert_eq!(answers, [[-1, -1]; 5]);
    let mut cache = one_pool(1, 8, 8);
    let answers = [0; 5].map(|_| answer(&commit(&mut cache, step, &[0, 1, 2])));
    assert_eq!(answers, [[0, -1, -1]; 5], "one of three, and then two recur");
}

#[test]
fn carry_fetches_two_misses_that_recur_in_the_end() {
    let mut cache = one_pool(1, 8, 8);
    // 0.294 is 19,268 of 65,536.
    let step = by_rule(FetchRule::Carry(fraction(0.294)));
    let steps: Vec<_> =
        (0..5).map(|_| (answer(&commit(&mut cache, step, &[0, 1])), cache.carried(layer(0)).q16())).collect();
    let wanted = [
        (vec![-1, -1], 38_536), // 2 x 19,268
        (vec![0, -1], 11_536),  // 77,072 - 65,536
        (vec![0, -1], 30_804),  // one miss from here on
        (vec![0, -1], 50_072),
        (vec![0, 1], 3_804), // 69,340 - 65,536
    ];
    assert_eq!(steps, wanted);
    assert_eq!(cache.layer_stats(layer(0)).fetched, 2);
}

#[test]
fn each_layer_carries_its_own() {
    let mut cache = one_pool(2, 8, 8);
    let step_of = |number| Step { layer: layer(number), ..by_rule(FetchRule::Carry(fraction(0.5))) };
    let mut copies = |number| commit(&mut cache, step_of(number), &[3]).copies().len();
    assert_eq!([copies(0), copies(1), copies(0)], [0, 0, 1]);
    assert_eq!([0, 1].map(|number| cache.carried(layer(number)).q16()), [0, 32_768]);
}

#[test]
fn prefer_fetch_rounds_up() {
    let step = by_rule(FetchRule::PreferFetch(fraction(0.294)));
    let fetched = [1, 3, 4, 7].map(|misses| {
        let routes: Vec<u32> = (0..misses).collect();
        commit(&mut one_pool(1, 8, 8), step, &routes).copies().len()
    });
    assert_eq!(fetched, [1, 1, 2, 3], "of 0.29, 0.88, 1.18 and 2.06");
}

#[test]
fn what_a_cap_holds_back_is_not_carried() {
    let mut cache = one_pool(1, 16, 16);
    let capped =
        |ratio, most| hybrid(Fetch { rule: FetchRule::Carry(fraction(ratio)), most: Some(most) }, FetchOrder::Recency);
    assert_eq!(answer(&commit(&mut cache, capped(1.0, 2), &[0, 1, 2, 3, 4])), [0, 1, -1, -1, -1]);
    assert_eq!(cache.carried(layer(0)), Carried::default());
    // 4 misses at 0.625 are 2.5: the cap takes one of the two, and only the half is kept.
    assert_eq!(answer(&commit(&mut cache, capped(0.625, 1), &[5, 6, 7, 8])), [2, -1, -1, -1]);
    assert_eq!(cache.carried(layer(0)).q16(), 32_768);
    assert_eq!(answer(&commit(&mut cache, capped(1.0, 0), &[9])), [-1]);
}

// C4, the free-slot cap: without it both would go to slot 0 and the hit there would be lost.
#[test]
fn a_step_that_hits_every_slot_fetches_nothing() {
    let mut cache = full_pool();
    let plan = commit(&mut cache, by_rule(FetchRule::UpTo(8)), &[0, 1, 2, 3, 4, 5]);
    assert_eq!(answer(&plan), [0, 1, 2, 3, -1, -1]);
    assert_eq!((plan.miss_count(), plan.copies().len()), (2, 0));
}

#[test]
fn fetches_end_at_the_slots_that_the_step_does_not_use() {
    let plan = commit(&mut full_pool(), by_rule(FetchRule::UpTo(8)), &[0, 1, 4, 5, 6]);
    assert_eq!(
        plan.to_string(),
        "step 5 pool 0: routes [0, 1, 4, 5, 6] -> slots [0, 1, 2, 3, cpu]; copy 4 -> slot 2 (was 2, last step 3); \
         copy 5 -> slot 3 (was 3, last step 4)"
    );
}

#[test]
fn fetches_end_at_the_slots_that_are_not_pinned() {
    let mut cache = full_pool();
    cache.pin(&[(layer(0), expert(1))], 2).unwrap();
    // Slot 0 is hit and slot 1 is pinned.
    let plan = commit(&mut cache, by_rule(FetchRule::UpTo(8)), &[0, 4, 5, 6]);
    assert_eq!(answer(&plan), [0, 2, 3, -1]);
    // A pinned slot that is hit counts once.
    let plan = commit(&mut cache, by_rule(FetchRule::UpTo(8)), &[0, 1, 6, 7]);
    assert_eq!(answer(&plan), [0, 1, 2, 3]);
}

#[test]
fn a_hybrid_step_is_never_too_wide() {
    let mut cache = one_pool(1, 8, 3);
    let plan = commit(&mut cache, by_rule(FetchRule::UpTo(8)), &[7, 6, 5, 4, 3, 2, 1, 0]);
    assert_eq!(answer(&plan), [-1, -1, -1, -1, -1, 2, 1, 0]);
    assert_eq!(cache.layer_stats(layer(0)).refused, 0);
}

// C4, the recency order.
#[test]
fn the_most_recently_active_are_fetched_first() {
    let mut cache = one_pool(1, 8, 4);
    let step = by_rule(FetchRule::UpTo(1));
    let answers = [[0, 1, 2], [0, 1, 3], [1, 3, 2]].map(|routes| answer(&commit(&mut cache, step, &routes)));
    assert_eq!(answers, [[0, -1, -1], [0, 1, -1], [1, 2, -1]], "3 was active in step 2, and 2 in step 1");
    let active = [0, 1, 2, 3, 4].map(|number| cache.last_active(layer(0), expert(number)));
    assert_eq!(active, [2, 3, 3, 3, 0], "hits, fetched and unfetched alike");
}

#[test]
fn the_lowest_id_first_is_an_option() {
    let mut cache = one_pool(1, 8, 4);
    let step = hybrid(Fetch { rule: FetchRule::UpTo(1), most: None }, FetchOrder::LowestId);
    let answers = [[0, 1, 2], [0, 1, 3], [1, 3, 2]].map(|routes| answer(&commit(&mut cache, step, &routes)));
    assert_eq!(answers, [[0, -1, -1], [0, 1, -1], [1, -1, 2]]);
}

#[test]
fn fetches_in_the_order_of_activity_run_in_that_of_rows() {
    let mut cache = one_pool(1, 8, 8);
    commit(&mut cache, by_rule(FetchRule::UpTo(0)), &[6]);
    let plan = commit(&mut cache, by_rule(FetchRule::UpTo(8)), &[4, 5, 6, 7]);
    let copies: Vec<_> = plan.copies().iter().map(|copy| (copy.slot.get(), copy.row.get())).collect();
    assert_eq!(copies, [(0, 6), (1, 4), (2, 5), (3, 7)], "the i-th of them takes the i-th victim");
    let runs: Vec<_> = plan.runs().map(|run| (run.slot.get(), run.row.get(), run.count)).collect();
    assert_eq!(runs, [(1, 4, 2), (0, 6, 1), (3, 7, 1)]);
}

#[test]
fn weights_go_to_the_side_that_computes_the_route() {
    let mut cache = one_pool(1, 8, 4);
    decode(&mut cache, 0, &[0]);
    let plan = commit(&mut cache, by_rule(FetchRule::UpTo(1)), &[5, 0, ABSENT, 4, 5, 0]);
    assert_eq!(answer(&plan), [-1, 0, -2, 1, -1, 0]);
    let (mut device, mut cpu) = ([9.0; 6], [9.0; 6]);
    plan.split_weights(&[0.5, 0.25, 7.0, 0.125, 0.0625, 0.03125], &mut device, &mut cpu);
    assert_eq!(device, [0.0, 0.25, 0.0, 0.125, 0.0, 0.03125]);
    assert_eq!(cpu, [0.5, 0.0, 0.0, 0.0, 0.0625, 0.0]);
    let on_cpu: Vec<_> = plan.cpu_experts().map(|expert| expert.map(ExpertId::get)).collect();
    assert_eq!(on_cpu, [Some(5), None, None, None, Some(5), None]);
}

#[test]
fn every_route_ends_on_one_side() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let mut cache = one_pool(1, 24, 1 + rng.below(12) as u32);
        for _ in 0..20 {
            let rule = match rng.below(3) {
                0 => FetchRule::UpTo(rng.below(6) as u32),
                1 => FetchRule::MinWait(fraction(rng.below(5) as f64 / 4.0)),
                _ => FetchRule::Carry(fraction(rng.below(5) as f64 / 4.0)),
            };
            let routes: Vec<u32> = (0..10).map(|_| rng.below(26) as u32).collect();
            let routes: Vec<u32> = routes.iter().map(|&route| if route < 24 { route } else { ABSENT }).collect();
            let plan = commit(&mut cache, by_rule(rule), &routes);
            let (mut device, mut cpu) = ([0.0; 10], [0.0; 10]);
            plan.split_weights(&[1.0; 10], &mut device, &mut cpu);
            for (index, &route) in routes.iter().enumerate() {
                let sides = match plan.slots()[index] {
                    SlotId::ABSENT => (ABSENT, (0.0, 0.0)),
                    SlotId::CPU => (plan.cpu_experts().nth(index).unwrap().unwrap().get(), (0.0, 1.0)),
                    slot => (cache.expert_of(POOL, slot).unwrap().1.get(), (1.0, 0.0)),
                };
                assert_eq!(sides, (route, (device[index], cpu[index])), "seed {seed}: {plan}");
            }
        }
        let stats = cache.layer_stats(layer(0));
        assert_eq!((stats.fetched + stats.left(), stats.hits() + stats.misses), (stats.misses, stats.distinct));
    }
}

#[test]
fn an_aborted_step_leaves_what_is_carried_and_who_was_active() {
    let mut cache = one_pool(1, 8, 4);
    let step = by_rule(FetchRule::Carry(fraction(0.5)));
    commit(&mut cache, step, &[0]);
    // 1 + 0.5: one of the two would be fetched, the one that was active.
    abort(&mut cache, step, &[0, 1]);
    assert_eq!(cache.carried(layer(0)).q16(), 32_768);
    assert_eq!([0, 1].map(|number| cache.last_active(layer(0), expert(number))), [1, 0]);
    assert_eq!(cache.absence(layer(0), expert(0)), Some(Absence::Freed));
    assert_eq!(cache.absence(layer(0), expert(1)), Some(Absence::NeverRouted));
    assert_eq!((cache.step(), stamps(&cache, POOL)), (2, vec![0; 4]));
    let stats = cache.layer_stats(layer(0));
    assert_eq!((stats.steps, stats.routes, stats.left()), (1, 1, 1));
    assert_eq!(answer(&commit(&mut cache, step, &[0, 1])), [0, -1], "the same again");
}

#[test]
fn an_aborted_step_leaves_causes_as_they_were() {
    let mut cache = one_pool(1, 8, 1);
    decode(&mut cache, 0, &[0]);
    decode(&mut cache, 0, &[1]);
    cache.forget(POOL, slot(0));
    decode(&mut cache, 0, &[2]);
    let causes = |cache: &Cache| [0, 1, 2, 3].map(|number| cache.absence(layer(0), expert(number)));
    let before = [Some(Absence::Evicted), Some(Absence::Freed), None, Some(Absence::NeverRouted)];
    assert_eq!(causes(&cache), before);
    let left = by_rule(FetchRule::UpTo(0));
    abort(&mut cache, left, &[0, 1, 2, 3, 3]);
    assert_eq!(causes(&cache), before);
    // The next step counts what there was before the aborted one.
    commit(&mut cache, left, &[0, 1, 2, 3, 3]);
    let stats = cache.layer_stats(layer(0));
    assert_eq!((stats.cold_misses, stats.capacity_misses, stats.freed_misses, stats.cpu_misses), (4, 1, 1, 0));
    let on_cpu = [Some(Absence::OnCpu), Some(Absence::OnCpu), None, Some(Absence::OnCpu)];
    assert_eq!(causes(&cache), on_cpu);
    abort(&mut cache, by_rule(FetchRule::UpTo(1)), &[0, 4]);
    let after = [Some(Absence::Freed), Some(Absence::OnCpu), Some(Absence::Evicted), Some(Absence::OnCpu)];
    assert_eq!(causes(&cache), after, "0 would have been fetched, and 2 has lost its slot for it");
    assert_eq!(cache.absence(layer(0), expert(4)), Some(Absence::NeverRouted));
}

#[test]
fn a_plain_step_is_no_activity() {
    let mut cache = one_pool(1, 8, 4);
    decode(&mut cache, 0, &[3]);
    assert_eq!(cache.last_active(layer(0), expert(3)), 0);
}
