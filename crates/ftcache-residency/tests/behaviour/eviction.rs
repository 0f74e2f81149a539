//! Victims by score: who goes where it is not the least recently used, what is counted, and what it is counted for.

use super::flights::{land, later, up_to};
use super::*;
use ftcache_policy::{Eviction, EvictionError};

const SCORED: [Eviction; 3] = [Eviction::Lfu, Eviction::Cyclic, Eviction::Learned];

/// Layers over one pool. The steps have numbers from 11 on: stamp 1, which goes first, is for those that are to.
fn ruled(rule: Eviction, layer_count: usize, expert_count: u32, slot_count: u32) -> Cache {
    let mut cache = one_pool(layer_count, expert_count, slot_count);
    cache.set_eviction(rule).unwrap();
    assert_eq!(cache.skip_to(10), 10);
    cache
}

/// Whose slot the last of these steps, each a layer and a route, takes under each rule: layer and expert.
#[track_caller]
fn victims(layer_count: usize, slot_count: u32, steps: &[(u32, u32)]) -> [(u32, u32); 4] {
    Eviction::ALL.map(|rule| {
        let mut cache = ruled(rule, layer_count, 8, slot_count);
        let plans = steps.iter().map(|&(number, route)| commit(&mut cache, layer(number), &[route]));
        let victim = plans.last().unwrap().victims().next().unwrap().expect("a resident loses its slot");
        (victim.expert.get() / 8, victim.expert.get() % 8)
    })
}

/// What has been counted: turns, counts, weights and followers, as they are kept.
fn counted(cache: &Cache) -> String {
    let text = format!("{cache:?}");
    let from = text.find("turns: [").expect("the rule has scores");
    text[from..from + text[from..].find(", nearness").expect("it follows")].to_owned()
}

/// Holds that something counts nothing.
#[track_caller]
fn counts_nothing(cache: &mut Cache, what: impl FnOnce(&mut Cache)) {
    let before = counted(cache);
    what(cache);
    cache.check().unwrap();
    assert_eq!(counted(cache), before, "{}", cache.eviction());
}

#[test]
fn the_rule_can_be_read() {
    let mut cache = one_pool(1, 4, 2);
    assert_eq!(cache.eviction(), Eviction::Lru);
    for rule in Eviction::ALL {
        cache.set_eviction(rule).unwrap();
        assert_eq!(cache.eviction(), rule);
    }
}

/// Expert 0 is used three times, then 1 once; 2 needs a slot of the two. By counts of the half of 64 steps, 8192 + 128 t
/// at turn t, 0 has 8320 + 8448 + 8576 and 1 has 8704. LRU gives up 0, which was used before 1.
#[test]
fn what_was_used_often_stays_though_another_was_used_later() {
    let often = [(0, 0), (0, 0), (0, 0), (0, 1), (0, 2)];
    assert_eq!(victims(1, 2, &often), [(0, 0), (0, 1), (0, 1), (0, 1)]);
}

/// Two residents, each the only one that its layer used, so with the same chance; the next step is one of layer 1. Layer
/// 2 comes next then, and layer 0 after it: cyclic and learned give up the expert of layer 0, and LRU that of layer 2,
/// which was used before it. To lfu they are the same, and that of layer 2 is in the lower slot.
#[test]
fn what_the_next_layer_is_about_to_use_stays() {
    assert_eq!(victims(3, 2, &[(2, 0), (0, 0), (1, 0)]), [(2, 0), (2, 0), (0, 0), (0, 0)]);
    // Seen from layer 0 of two, layer 0 itself is two steps away, and so farther than layer 1.
    assert_eq!(victims(2, 2, &[(1, 0), (0, 0), (0, 1)])[2..], [(0, 0), (0, 0)]);
}

/// Of the same chance at both of two layers, the one that was used now goes for another of its layer: it is a whole
/// round away, and the other's next step is the next of all. So it goes with a chance twice as high.
#[test]
fn a_layers_own_are_a_whole_round_away() {
    let mut cache = ruled(Eviction::Cyclic, 4, 8, 5);
    // Of layer 1 a quarter each, of layer 0 all.
    commit(&mut cache, layer(1), &[0, 1, 2, 3]);
    commit(&mut cache, layer(0), &[0]);
    // Layer 0's own, with its chance a half of 2^31 less a little, over four; layer 1's a quarter, over one.
    let plan = decode(&mut cache, 0, &[1]);
    assert_eq!(plan, "step 13 pool 0: routes [1] -> slots [4]; copy 1 -> slot 4 (was 0, last step 12)");
    // Of layer 1's step it is the other way round: a quarter each over four, and layer 0's three away.
    let plan = decode(&mut cache, 1, &[4]);
    assert_eq!(plan, "step 14 pool 0: routes [4] -> slots [0]; copy 4 -> slot 0 (was 8, last step 11)");
    // Far is not nowhere: layer 1's quarters, over one, are less than two thirds of layer 0, over two.
    let mut cache = ruled(Eviction::Cyclic, 2, 8, 5);
    commit(&mut cache, layer(1), &[0, 1, 2, 3]);
    (0..2).for_each(|_| drop(decode(&mut cache, 0, &[0])));
    let plan = decode(&mut cache, 0, &[1]);
    assert_eq!(plan, "step 14 pool 0: routes [1] -> slots [0]; copy 1 -> slot 0 (was 8, last step 11)");
}

/// 0, 1 and 2 in turn over two slots. When 0 comes again, 1 and 2 are there, and LRU, lfu and cyclic give up 1, which
/// was used once as 2, and before it. But 1 came after 0: the followers give it all of their seventh, and the halves
/// give it less than 2 by 0.133 + 0.039 + 0.014 + 0.004 + 0.001 of theirs.
#[test]
fn what_followed_the_layers_last_routes_stays() {
    assert_eq!(victims(1, 2, &[(0, 0), (0, 1), (0, 2), (0, 0)]), [(0, 1), (0, 1), (0, 1), (0, 2)]);
}

#[test]
fn free_slots_go_first_then_those_of_stamp_1_then_the_lowest_score() {
    for rule in SCORED {
        let mut cache = ruled(rule, 1, 20, 8);
        // 4 and 5 are used most, and come again as part of a prompt.
        (0..3).for_each(|_| drop(decode(&mut cache, 0, &[4, 5])));
        [0, 1].iter().for_each(|&number| assert!(cache.forget(POOL, slot(number)).is_some()));
        decode(&mut cache, 0, &[0, 1, 2, 3]);
        commit(&mut cache, of_phase(Phase::Prefill, 0), &[4, 5]);
        decode(&mut cache, 0, &[3]);
        decode(&mut cache, 0, &[0]);
        cache.forget(POOL, slot(1));
        // Free are 1, 6 and 7; 4 and 5 are stamped 1; of the others 2 was used least, then 3.
        let plan = commit(&mut cache, layer(0), &[10, 11, 12, 13, 14, 15, 16]);
        let copies: Vec<(u32, u32)> = plan.copies().iter().map(|copy| (copy.row.get(), copy.slot.get())).collect();
        assert_eq!(copies, [(10, 1), (11, 6), (12, 7), (13, 4), (14, 5), (15, 2), (16, 3)], "{rule}");
        let stamps: Vec<Option<u64>> = plan.victims().map(|victim| victim.map(|victim| victim.last_step)).collect();
        assert_eq!(stamps, [None, None, None, Some(1), Some(1), Some(14), Some(16)], "{rule}");
    }
}

#[test]
fn the_lower_slot_goes_of_equal_scores() {
    for rule in SCORED {
        // Two parts of one step count the same: 5 in slot 0, 3 in slot 1.
        let mut cache = ruled(rule, 1, 8, 2);
        commit(&mut cache, layer(0), &[5]);
        commit(&mut cache, Step { continues: true, ..Step::new(layer(0)) }, &[3]);
        let plan = decode(&mut cache, 0, &[6]);
        assert_eq!(plan, "step 13 pool 0: routes [6] -> slots [0]; copy 6 -> slot 0 (was 5, last step 11)", "{rule}");
    }
    // Over layers too: the only experts of layers 1 and 0, in slots 0 and 1.
    assert_eq!(victims(3, 2, &[(1, 0), (0, 0), (2, 0)])[1], (1, 0));
    assert_eq!(victims(3, 2, &[(0, 0), (1, 0), (2, 0)])[1], (0, 0));
}

#[test]
fn what_the_step_uses_is_no_victim_however_low_its_score() {
    let phases = Phase::ALL.map(|phase| of_phase(phase, 0));
    for step in phases.into_iter().chain([up_to(1)]) {
        for rule in SCORED {
            let mut cache = ruled(rule, 1, 8, 2);
            [0, 0, 0, 1].iter().for_each(|&route| drop(decode(&mut cache, 0, &[route])));
            let plan = commit(&mut cache, step, &[1, 2]);
            assert_eq!((answer(&plan), owners(&cache, POOL)), (vec![1, 0], vec![Some(2), Some(1)]), "{rule} {step:?}");
        }
    }
}

#[test]
fn a_pinned_expert_is_no_victim_and_is_one_again() {
    for rule in SCORED {
        let mut cache = ruled(rule, 1, 8, 3);
        [0, 0, 0, 1, 1, 2].iter().for_each(|&route| drop(decode(&mut cache, 0, &[route])));
        cache.pin(&[(layer(0), expert(2))], 1).unwrap();
        // 2 is worth least, and 1 next.
        decode(&mut cache, 0, &[3]);
        assert_eq!(owners(&cache, POOL), [Some(0), Some(3), Some(2)], "{rule}");
        // The layer is ranked anew, with it.
        cache.unpin(&[(layer(0), expert(2))]).unwrap();
        decode(&mut cache, 0, &[4]);
        assert_eq!(owners(&cache, POOL), [Some(0), Some(3), Some(4)], "{rule}");
    }
}

#[test]
fn an_unpinned_expert_is_ranked_though_its_layer_has_no_step_in_between() {
    for rule in SCORED {
        let mut cache = ruled(rule, 3, 8, 4);
        cache.pin(&[(layer(1), expert(0))], 1).unwrap();
        // Of layer 1, pinned 0 is worth the least, and 1 more.
        [(1, 0), (1, 1), (1, 1), (2, 0)].iter().for_each(|&(number, route)| drop(decode(&mut cache, number, &[route])));
        decode(&mut cache, 2, &[0]);
        decode(&mut cache, 0, &[0]);
        // Ranks layer 1, without 0.
        decode(&mut cache, 0, &[1]);
        assert_eq!(cache.slot_of(layer(1), expert(0)), Some(slot(0)), "{rule}");
        cache.unpin(&[(layer(1), expert(0))]).unwrap();
        cache.check().unwrap();
        let plan = commit(&mut cache, layer(2), &[1]);
        let lost = plan.victims().flatten().map(|victim| victim.expert.get()).collect::<Vec<_>>();
        // It has a third of layer 1's uses, and the others about half of their layers', or more.
        assert_eq!(lost, [8], "{rule}");
    }
}

#[test]
fn slots_under_staging_buffers_are_no_victims() {
    let mut cache = borrowing(3, 4, 12);
    cache.set_eviction(Eviction::Lfu).unwrap();
    cache.skip_to(10);
    (0..2).for_each(|number| drop(decode(&mut cache, number, &[0, 1, 2, 3])));
    // Layer 2 in slots 8 to 11; of it 0 was used three times, and before the others.
    [0, 0, 0, 1, 2, 3].iter().for_each(|&route| drop(decode(&mut cache, 2, &[route])));
    cache.begin_chunk().unwrap();
    assert_eq!(owners(&cache, POOL)[..8], [None; 8]);
    let plan = decode(&mut cache, 0, &[2]);
    assert_eq!(plan, "step 19 pool 0: routes [2] -> slots [9]; copy 2 -> slot 9 (was 9, last step 16)");
    cache.abandon_chunk().unwrap();
    assert_eq!(decode(&mut cache, 1, &[2]), "step 20 pool 0: routes [2] -> slots [0]; copy 2 -> slot 0");
}

#[test]
fn fetches_behind_a_step_take_the_lowest_scores_too() {
    for rule in SCORED {
        let mut cache = ruled(rule, 1, 8, 3);
        [1, 1, 1, 2, 0].iter().for_each(|&route| drop(decode(&mut cache, 0, &[route])));
        // The step uses 0. Of the others 1 was used three times, and 2 once, though later.
        let plan = commit(&mut cache, up_to(0), &[0, 3]);
        assert_eq!(later(&mut cache, &plan, 9), (1, vec![(1, 3)]), "{rule}");
        // In flight it is no victim, though 3 was used less than 1.
        let plan = commit(&mut cache, up_to(1), &[0, 4]);
        assert_eq!((answer(&plan), owners(&cache, POOL)), (vec![2, 0], vec![Some(4), None, Some(0)]), "{rule}");
        assert_eq!(land(&mut cache, 1), 1);
        // Landed it is one: 3 was used a step before 4.
        decode(&mut cache, 0, &[5]);
        assert_eq!(owners(&cache, POOL), [Some(4), Some(5), Some(0)], "{rule}");
    }
}

#[test]
fn what_has_landed_is_ranked_though_its_layer_has_no_step_in_between() {
    for rule in SCORED {
        let mut cache = ruled(rule, 3, 8, 4);
        let plan = commit(&mut cache, up_to(0), &[0]);
        let (flight, copies) = later(&mut cache, &plan, 1);
        assert_eq!(copies, [(0, 0)]);
        // Layer 0 has used 1 six times and 0, on its way, once.
        (0..6).for_each(|_| drop(decode(&mut cache, 0, &[1])));
        decode(&mut cache, 1, &[0, 1]);
        // Ranks layer 0 without 0, and takes of layer 1.
        decode(&mut cache, 1, &[2]);
        assert_eq!(land(&mut cache, flight), 1);
        let plan = commit(&mut cache, layer(2), &[0]);
        let lost = plan.victims().flatten().map(|victim| victim.expert.get()).collect::<Vec<_>>();
        assert_eq!((lost, cache.slot_of(layer(2), expert(0))), (vec![0], Some(slot(0))), "{rule}");
    }
}

#[test]
fn decode_steps_are_counted_when_they_are_admitted() {
    for rule in SCORED {
        let empty = ruled(rule, 2, 8, 4);
        let (mut committed, mut aborted, mut hybrid, mut doubled) =
            (empty.clone(), empty.clone(), empty.clone(), empty.clone());
        for routes in [[0, 1, 2], [2, 3, 4], [0, 5, 1]] {
            commit(&mut committed, layer(0), &routes);
            abort(&mut aborted, layer(0), &routes);
            // All are computed elsewhere.
            commit(&mut hybrid, up_to(0), &routes);
            commit(&mut doubled, layer(0), &[routes[2], ABSENT, routes[0], routes[1], routes[0], ABSENT]);
        }
        assert_eq!(hybrid.resident_count(), 0);
        for other in [aborted, hybrid, doubled] {
            assert_eq!(counted(&other), counted(&committed), "{rule}");
        }
        assert_ne!(counted(&empty), counted(&committed), "{rule}");
    }
}

#[test]
fn drafts_are_counted_when_they_are_accepted() {
    for rule in SCORED {
        let (mut decoded, mut accepted) = (ruled(rule, 2, 8, 4), ruled(rule, 2, 8, 4));
        for routes in [[0, 1, 2], [2, 3, 4], [0, 5, 1]] {
            decode(&mut decoded, 1, &routes[..2]);
            counts_nothing(&mut accepted, |cache| drop(commit(cache, of_phase(Phase::Verify, 1), &routes)));
            counts_nothing(&mut accepted, |cache| {
                let stray = EnsureError::NotVerified { layer: layer(1), route: 1, expert: expert(7) };
                assert_eq!(cache.accept(layer(1), &ids(&[routes[0], 7])), Err(stray));
            });
            accepted.accept(layer(1), &ids(&[routes[1], ABSENT, routes[0], routes[1]])).unwrap();
            accepted.check().unwrap();
            assert_eq!(counted(&accepted), counted(&decoded), "{rule}");
        }
        commit(&mut accepted, of_phase(Phase::Verify, 1), &[6]);
        counts_nothing(&mut accepted, |cache| cache.accept(layer(1), &[]).unwrap());
    }
}

/// Of three residents 1 was used first. Accepted, it is used at turn 4 too. Then counts have 0, of turn 2, go before 2, of
/// turn 3; but 0 is what followed 1.
#[test]
fn an_accepted_draft_is_worth_more_at_once() {
    for (rule, owners_then) in SCORED.into_iter().zip([[1, 8, 2], [1, 8, 2], [1, 0, 8]]) {
        let mut cache = ruled(rule, 2, 8, 3);
        [1, 0, 2].iter().for_each(|&route| drop(decode(&mut cache, 0, &[route])));
        commit(&mut cache, of_phase(Phase::Verify, 0), &[1]);
        let mut rejected = cache.clone();
        for (cache, accepted, owners_then) in [(&mut cache, &[1][..], owners_then), (&mut rejected, &[], [8, 0, 2])] {
            cache.accept(layer(0), &ids(accepted)).unwrap();
            cache.check().unwrap();
            decode(cache, 1, &[0]);
            assert_eq!(owners(cache, POOL), owners_then.map(Some), "{rule} {accepted:?}");
        }
    }
}

#[test]
fn nothing_else_counts() {
    for rule in SCORED {
        let mut cache = ruled(rule, 2, 8, 4);
        [(0, 0), (1, 3), (0, 1), (0, 0)].iter().for_each(|&(number, route)| drop(decode(&mut cache, number, &[route])));
        let under_token = Step { token: Some(7), ..Step::new(layer(0)) };
        commit(&mut cache, under_token, &[0, 2]);
        counts_nothing(&mut cache, |cache| assert!(commit(cache, under_token, &[0, 2]).is_repeat()));
        counts_nothing(&mut cache, |cache| drop(commit(cache, of_phase(Phase::Prefill, 0), &[0, 4])));
        counts_nothing(&mut cache, |cache| drop(commit(cache, of_phase(Phase::Verify, 0), &[0, 5])));
        counts_nothing(&mut cache, |cache| drop(commit(cache, layer(0), &[ABSENT])));
        let plan = commit(&mut cache, up_to(0), &[6]);
        counts_nothing(&mut cache, |cache| {
            let (flight, copies) = later(cache, &plan, 1);
            assert_eq!((copies.len(), land(cache, flight)), (1, 1));
        });
        counts_nothing(&mut cache, |cache| cache.pin(&[(layer(0), expert(6))], 1).unwrap());
        counts_nothing(&mut cache, |cache| cache.unpin(&[(layer(0), expert(6))]).unwrap());
        counts_nothing(&mut cache, |cache| assert!(cache.forget(POOL, slot(0)).is_some()));
        counts_nothing(&mut cache, |cache| assert_eq!(cache.skip_to(1_000), 1_000));
        counts_nothing(&mut cache, Cache::reset);
    }
}

/// `refuse` holds that all of the cache is as it was.
#[test]
fn refused_steps_change_nothing_of_what_was_counted() {
    for rule in SCORED {
        let mut cache = ruled(rule, 1, 8, 3);
        [0, 0, 1, 2].iter().for_each(|&route| drop(decode(&mut cache, 0, &[route])));
        let error = refuse(&mut cache, layer(0), &[0, 1, 2, 3]);
        assert!(matches!(error, EnsureError::StepTooWide { needed: 4, given: 3, .. }), "{error}");
        let error = refuse(&mut cache, layer(0), &[0, 8]);
        assert!(matches!(error, EnsureError::UnknownExpert { route: 1, .. }), "{error}");
        let plan = commit(&mut cache, up_to(0), &[4]);
        later(&mut cache, &plan, 1);
        let error = refuse(&mut cache, layer(0), &[4]);
        assert!(matches!(error, EnsureError::InFlight { .. }), "{error}");
    }
}

#[test]
fn another_rule_leaves_residents_and_starts_counting_anew() {
    let mut cache = ruled(Eviction::Lfu, 1, 8, 2);
    [0, 0, 0, 1].iter().for_each(|&route| drop(decode(&mut cache, 0, &[route])));
    for rule in SCORED {
        let mut cache = cache.clone();
        let before = (owners(&cache, POOL), stamps(&cache, POOL), cache.layer_stats(layer(0)));
        cache.set_eviction(rule).unwrap();
        cache.check().unwrap();
        assert_eq!((owners(&cache, POOL), stamps(&cache, POOL), cache.layer_stats(layer(0))), before);
        assert_eq!(counted(&cache), counted(&ruled(rule, 1, 8, 2)), "{rule}");
        // Neither was counted, so the lower slot goes, with what was used three times.
        decode(&mut cache, 0, &[2]);
        assert_eq!(owners(&cache, POOL), [Some(2), Some(1)], "{rule}");
    }
    // Of stamps nothing is forgotten: 0 was used before 1.
    decode(&mut cache, 0, &[0]);
    cache.set_eviction(Eviction::Lru).unwrap();
    decode(&mut cache, 0, &[2]);
    assert_eq!(owners(&cache, POOL), [Some(0), Some(2)]);
}

#[test]
fn a_rule_that_layers_are_too_wide_for_is_refused_and_the_other_stays() {
    let mut cache = one_pool(1, 65_537, 2);
    cache.set_eviction(Eviction::Cyclic).unwrap();
    decode(&mut cache, 0, &[65_536]);
    let before = counted(&cache);
    let error = EvictionError::TooManyExperts { rule: Eviction::Learned, expert_count: 65_537, most: 65_536 };
    assert_eq!(cache.set_eviction(Eviction::Learned), Err(error));
    assert_eq!((cache.eviction(), counted(&cache)), (Eviction::Cyclic, before));
}

#[test]
fn a_rebuild_keeps_what_was_counted() {
    for rule in SCORED {
        let mut cache = ruled(rule, 2, 8, 4);
        // Of layer 0 expert 0 thrice, 1 once, and 2 last; layer 1 once.
        [0, 0, 0, 1, 2].iter().for_each(|&route| drop(decode(&mut cache, 0, &[route])));
        decode(&mut cache, 1, &[0]);
        for (keep, left) in [(Keep::Nothing, vec![None; 3]), (Keep::WhatFits, vec![Some(8), Some(1), Some(2)])] {
            let (mut rebuilt, _) = cache.rebuilt_with_pools(&[Some(POOL); 2], &[3], keep).unwrap();
            rebuilt.check().unwrap();
            assert_eq!((rebuilt.eviction(), counted(&rebuilt)), (rule, counted(&cache)));
            // Those used last are kept, whatever the rule.
            assert_eq!(owners(&rebuilt, POOL), left, "{rule}");
            if keep == Keep::WhatFits {
                // 1, in slot 1, was counted at turn 4, and 2 at turn 5; layer 1's is all that its layer used.
                decode(&mut rebuilt, 0, &[3]);
                assert_eq!(owners(&rebuilt, POOL), [Some(8), Some(3), Some(2)], "{rule}");
            }
        }
    }
}

#[test]
fn a_state_takes_along_what_victims_go_by() {
    for rule in SCORED {
        let mut cache = ruled(rule, 2, 8, 3);
        [0, 0, 0, 1, 2, 1].iter().for_each(|&route| drop(decode(&mut cache, 0, &[route])));
        decode(&mut cache, 1, &[5]);
        let state = cache.state().unwrap();
        // It has residents of its own, and has ranked those of layer 0.
        let mut other = ruled(rule, 2, 8, 3);
        [(0, 7), (0, 6), (0, 5), (0, 4), (1, 6)].iter().for_each(|&(of, route)| drop(decode(&mut other, of, &[route])));
        other.set_state(&state).unwrap();
        other.check().unwrap();
        assert_eq!((other.digest(), other.state()), (cache.digest(), Ok(state.clone())), "{rule}");
        for route in [3, 4, 3, 5, 1, 0] {
            assert_eq!(decode(&mut other, 0, &[route]), decode(&mut cache, 0, &[route]), "{rule}");
        }
        // A rule by stamps has none, and one that looks at other halves has others.
        let refused = |rule, state: &State| {
            let mut cache = ruled(rule, 2, 8, 3);
            let before = format!("{cache:?}");
            let error = cache.set_state(state).unwrap_err();
            assert_eq!(format!("{cache:?}"), before, "{rule}");
            error.to_string()
        };
        assert_eq!(refused(Eviction::Lru, &state), "a state with scores; the cache's eviction is lru");
        for other in SCORED.into_iter().filter(|&other| other != rule) {
            assert_eq!(refused(other, &state), format!("scores: they are of {rule} and should be of {other}"));
        }
        let without = State { scores: None, ..state };
        assert_eq!(refused(rule, &without), format!("a state without scores; the cache's eviction is {rule}"));
    }
}

#[test]
fn residents_are_brought_back_under_every_rule() {
    for rule in SCORED {
        let mut cache = ruled(rule, 1, 8, 3);
        [0, 0, 0, 1, 2].iter().for_each(|&route| drop(decode(&mut cache, 0, &[route])));
        let residents = cache.residents(5);
        // By use, as under any rule.
        assert_eq!(residents.experts(), flat_ids(&[0, 1, 2]));
        let mut cache = ruled(rule, 1, 8, 3);
        let mut placements = Vec::new();
        cache.bring_back(&residents, 5, &mut placements).unwrap().commit();
        cache.check().unwrap();
        assert_eq!((owners(&cache, POOL), cache.step()), (vec![Some(0), Some(1), Some(2)], 13));
        // Nothing is counted of another run: of those that were not used in this one the lower slot goes.
        assert_eq!(counted(&cache), counted(&ruled(rule, 1, 8, 3)));
        decode(&mut cache, 0, &[0]);
        decode(&mut cache, 0, &[3]);
        assert_eq!(owners(&cache, POOL), [Some(0), Some(3), Some(2)], "{rule}");
        // What was ranked before is not what is ranked now.
        cache.reset();
        cache.bring_back(&residents, 5, &mut placements).unwrap().commit();
        cache.check().unwrap();
        decode(&mut cache, 0, &[4]);
        assert_eq!(owners(&cache, POOL), [Some(0), Some(4), Some(2)], "{rule}");
    }
}

#[test]
fn a_layers_score_is_of_its_last_step_however_many_steps_of_others_there_are() {
    let mut cache = ruled(Eviction::Lfu, 2, 8, 3);
    decode(&mut cache, 1, &[0, 1]);
    decode(&mut cache, 0, &[0]);
    // A hundred steps of layer 0 that hit do not make layer 1's older.
    (0..100).for_each(|_| drop(decode(&mut cache, 0, &[0])));
    let plan = decode(&mut cache, 0, &[1]);
    assert_eq!(plan, "step 113 pool 0: routes [1] -> slots [0]; copy 1 -> slot 0 (was 8, last step 11)");
    // 1 was counted once of a hundred and two, and so is worth less than a half.
    let plan = decode(&mut cache, 1, &[0]);
    assert_eq!(plan, "step 114 pool 0: routes [0] -> slots [0]; copy 0 -> slot 0 (was 1, last step 113)");
}

/// Five residents, of which layer 2's 0 has gone for layer 1's 1: so layer 0 is ranked, and its first is 1, used at turns 1
/// and 2 of six, with 16,768 of 51,840. When layer 1 has a third expert, its 0 has 8320 of 25,344, and is the next.
fn ranked_before() -> Cache {
    let mut cache = ruled(Eviction::Lfu, 3, 8, 5);
    [1, 1, 2, 2, 2, 2].iter().for_each(|&route| drop(decode(&mut cache, 0, &[route])));
    [0, 1, 1, 1, 1, 1].iter().for_each(|&route| drop(decode(&mut cache, 2, &[route])));
    [0, 1].iter().for_each(|&route| drop(decode(&mut cache, 1, &[route])));
    assert_eq!(owners(&cache, POOL), [1, 2, 9, 17, 8].map(Some));
    cache
}

#[test]
fn a_layer_is_ranked_anew_after_hits_alone() {
    for (hit_count, left) in [(0, [10, 2, 9, 17, 8]), (4, [1, 2, 9, 17, 10])] {
        let mut cache = ranked_before();
        (0..hit_count).for_each(|_| drop(decode(&mut cache, 0, &[1])));
        decode(&mut cache, 1, &[2]);
        assert_eq!(owners(&cache, POOL), left.map(Some), "{hit_count}");
    }
}

#[test]
fn a_ranked_expert_that_is_pinned_then_is_no_victim() {
    for (pins, left) in [(vec![], [10, 2, 9, 17, 8]), (vec![(layer(0), expert(1))], [1, 2, 9, 17, 10])] {
        let mut cache = ranked_before();
        cache.pin(&pins, 1).unwrap();
        decode(&mut cache, 1, &[2]);
        assert_eq!(owners(&cache, POOL), left.map(Some), "{pins:?}");
    }
}

/// Layer 0 has used 3 four times, on the CPU, 0 once and 1 four times. A step uses 0 and 3, and so ranks it without 0; what
/// goes is layer 1's 0, of one turn in ten. Then layer 0's 0 is the next: it has two uses of eleven, and 1 has four.
#[test]
fn what_a_step_uses_is_a_victim_after_it_though_its_layer_gave_up_nothing() {
    let mut cache = ruled(Eviction::Lfu, 2, 8, 4);
    (0..4).for_each(|_| drop(commit(&mut cache, up_to(0), &[3])));
    [0, 1, 1, 1, 1].iter().for_each(|&route| drop(decode(&mut cache, 0, &[route])));
    [0, 1, 1, 1, 1, 1, 1, 1, 1, 1].iter().for_each(|&route| drop(decode(&mut cache, 1, &[route])));
    decode(&mut cache, 0, &[0, 3]);
    assert_eq!(owners(&cache, POOL), [0, 1, 3, 9].map(Some));
    decode(&mut cache, 1, &[2]);
    assert_eq!(owners(&cache, POOL), [10, 1, 3, 9].map(Some));
}

/// 0 of layer 0 has 8320 of 34,048, and goes when layer 1 has its second expert; brought back, it goes again.
#[test]
fn what_is_brought_back_is_ranked_though_its_layer_has_no_step_in_between() {
    let mut cache = ruled(Eviction::Lfu, 2, 8, 3);
    [0, 1, 1, 1].iter().for_each(|&route| drop(decode(&mut cache, 0, &[route])));
    decode(&mut cache, 1, &[0]);
    let (residents, mut placements) = (cache.residents(5), Vec::new());
    decode(&mut cache, 1, &[1]);
    assert_eq!(owners(&cache, POOL), [Some(9), Some(1), Some(8)]);
    cache.reset();
    cache.bring_back(&residents, 5, &mut placements).unwrap().commit();
    cache.check().unwrap();
    assert_eq!(owners(&cache, POOL), [Some(0), Some(1), Some(8)]);
    decode(&mut cache, 1, &[2]);
    assert_eq!(owners(&cache, POOL), [Some(10), Some(1), Some(8)]);
}

/// The same experts in the same slots, with the same stamps; but one cache has used 0 more often, and the other 1.
#[test]
fn a_digest_is_of_what_victims_go_by() {
    let of = |rule, often: u32| {
        let mut cache = ruled(rule, 1, 8, 2);
        for routes in [&[0, 1][..], &[often], &[often], &[0, 1]] {
            commit(&mut cache, layer(0), routes);
        }
        cache
    };
    for rule in Eviction::ALL {
        let mut caches = [of(rule, 0), of(rule, 1)];
        let same = caches[0].digest() == caches[1].digest();
        let slots = caches.each_mut().map(|cache| commit(cache, layer(0), &[2]).slots()[0]);
        assert_eq!((same, slots[0] == slots[1]), (rule == Eviction::Lru, rule == Eviction::Lru), "{rule}");
        assert_eq!(of(rule, 0).digest(), of(rule, 0).digest(), "{rule}");
    }
}

/// A copy has the room of what it is a copy of.
#[test]
fn a_copy_chooses_the_same_victims() {
    for rule in SCORED {
        let mut cache = ruled(rule, 2, 8, 5);
        for step in 0..40 {
            commit(&mut cache, layer(step % 2), &[step * 5 % 8, step * step % 8]);
        }
        let mut copy = cache.clone();
        for step in 0..10 {
            let routes = [step % 8, (step * 3 + 1) % 8];
            let plans = [&mut cache, &mut copy].map(|cache| commit(cache, layer(step % 2), &routes));
            assert_eq!(plans[0].copies(), plans[1].copies());
        }
    }
}

#[test]
fn layers_without_experts_have_a_rule_too() {
    for rule in SCORED {
        let mut cache = Cache::with_pools(0, &[Some(POOL), None], &[2]).unwrap();
        cache.set_eviction(rule).unwrap();
        decode(&mut cache, 0, &[]);
        cache.check().unwrap();
        let state = cache.state().unwrap();
        cache.set_state(&state).unwrap();
        assert_eq!((cache.eviction(), cache.step()), (rule, 1));
    }
}
