//! Victims by score on the device: small cases worked out from what `ftcache_policy::Scores` says of itself, and the
//! boundaries that random steps come to rarely or never.

use ftcache_policy::{Eviction, FetchRule, PoolId, ScoreNumbers};
use ftcache_residency::Cache;
use ftcache_testkit::Rng;
use ftcache_transfer::{Fault, FaultReport};

use crate::rig::{ABSENT, Form, Rig};
use crate::states::{
    Resident, SCORED, decode, filled, hybrid, layer, of_layer, one_pool, prefill, ruled, span, with_staging,
};

const PLAIN: Form = Form::PLAIN;
const HALVES: usize = ScoreNumbers::HALVES;
const COMPONENTS: usize = ScoreNumbers::COMPONENTS;
const WIDEST: usize = ScoreNumbers::WIDEST;
/// Of seven components that share alike, each in 2^-20.
const SEVENTH: u32 = 149_796;

/// Layers over one pool, whose first step is 11: what has stamp 1 goes first, whatever it is worth.
fn rig(rule: Eviction, layers: usize, experts: u32, slots: u32) -> Rig {
    let mut cache = ruled(rule, one_pool(layers, experts, slots));
    assert_eq!(cache.skip_to(10), 10);
    let mut rig = Rig::new(1, cache);
    rig.tables.set_threads(64).unwrap();
    rig
}

/// Steps of a layer and a route each.
fn steps(rig: &mut Rig, steps: &[(u32, i64)]) {
    for (number, &(of, route)) in steps.iter().enumerate() {
        rig.step(decode(of), &[route], PLAIN, &format!("{} step {number}", rig.host.eviction()));
    }
}

/// What is counted on the device.
fn numbers(rig: &mut Rig) -> ScoreNumbers {
    rig.tables.disengage(&mut rig.device, &mut rig.twin).unwrap();
    let numbers = rig.twin.state().unwrap().scores.expect("the rule has scores");
    rig.tables.engage(&mut rig.device, &rig.twin).unwrap();
    numbers
}

/// The cache with other numbers.
pub(crate) fn counted(mut cache: Cache, change: impl FnOnce(&mut ScoreNumbers)) -> Cache {
    let mut state = cache.state().unwrap();
    change(state.scores.as_mut().expect("the rule has scores"));
    cache.set_state(&state).unwrap();
    cache
}

/// Counts of every size, and the totals and gains that are right with them.
fn random_counts(rng: &mut Rng, numbers: &mut ScoreNumbers) {
    let layers = numbers.turns.len();
    let experts = numbers.counts.len() / layers / HALVES;
    for (share, total) in numbers.totals.iter_mut().enumerate() {
        let (layer, half) = (share / COMPONENTS, share % COMPONENTS);
        if half >= numbers.rule.log_halves().len() {
            continue;
        }
        let bits = rng.below(33);
        for expert in 0..experts {
            let count = (rng.bits() & ((1 << bits) - 1)) as u32 >> rng.below(4);
            numbers.counts[(layer * experts + expert) * HALVES + half] = count;
            *total += u64::from(count);
        }
        numbers.gains[share] = (u64::from(numbers.weights[half]) << 40).checked_div(*total).unwrap_or(0);
    }
}

fn slots_of(rig: &Rig) -> Vec<u32> {
    rig.plan.copies().iter().map(|copy| copy.slot.get()).collect()
}

// By hand.

/// Of two slots 0 has had three uses and 1 the last. A use at turn t counts 8192 + 128 t by the half of 64 steps, 8192 +
/// 512 t by that of 16, 8192 * 2^t by that of one.
#[test]
fn uses_are_counted_and_the_rarer_goes() {
    let counts = [
        (Eviction::Lfu, [8_320 + 8_448 + 8_576, 8_704, 8_832]),
        (Eviction::Cyclic, [8_704 + 9_216 + 9_728, 10_240, 10_752]),
        (Eviction::Learned, [16_384 + 32_768 + 65_536, 131_072, 262_144]),
    ];
    for (rule, counts) in counts {
        let mut rig = rig(rule, 1, 3, 2);
        steps(&mut rig, &[(0, 0), (0, 0), (0, 0), (0, 1), (0, 2)]);
        assert_eq!(slots_of(&rig), [1], "{rule}");
        let numbers = numbers(&mut rig);
        let total: u64 = counts.iter().map(|&count| u64::from(count)).sum();
        assert_eq!([0, 1, 2].map(|expert| numbers.counts[expert * HALVES]), counts, "{rule}");
        assert_eq!((&numbers.turns[..], numbers.totals[0]), (&[5][..], total), "{rule}");
        assert_eq!(numbers.gains[0], (u64::from(numbers.weights[0]) << 40) / total, "{rule}");
        if rule != Eviction::Learned {
            assert_eq!(numbers.weights, [1 << 20, 0, 0, 0, 0, 0, 0], "{rule}");
            assert_eq!((&numbers.totals[1..], &numbers.gains[1..]), (&[0; 6][..], &[0; 6][..]), "{rule}");
        }
        rig.end();
    }
}

/// Each the only expert of its layer, so with the same chance. Seen from layer 1 layer 2 is next and layer 0 after it;
/// to lfu they are alike, and that of layer 2 lies in the lower slot.
#[test]
fn what_the_next_layer_is_about_to_use_stays() {
    for (rule, slot) in SCORED.into_iter().zip([0, 1, 1]) {
        let mut rig = rig(rule, 3, 4, 2);
        steps(&mut rig, &[(2, 0), (0, 0), (1, 0)]);
        assert_eq!(slots_of(&rig), [slot], "{rule}");
        rig.compare(rule.name());
        rig.end();
    }
}

/// All halves gave 0 the same, and the followers nothing: each half is credited with a sixth of 2^20, 174,759 with what
/// rounding takes, and goes an eighth of the way there from a seventh; the followers lose an eighth.
#[test]
fn weights_go_an_eighth_of_the_way() {
    let mut rig = rig(Eviction::Learned, 1, 2, 2);
    steps(&mut rig, &[(0, 0)]);
    assert_eq!(numbers(&mut rig).weights, [SEVENTH; 7]);
    steps(&mut rig, &[(0, 0)]);
    let numbers = numbers(&mut rig);
    let (sixth, rest) = (SEVENTH + (174_759 - SEVENTH) / 8, SEVENTH - SEVENTH / 8);
    assert_eq!(numbers.weights, [sixth, sixth, sixth, sixth, sixth, sixth, rest]);
    // 0 has come after 0, once.
    assert_eq!((numbers.followed, numbers.totals[6], numbers.gains[6]), (vec![1, 0], 1, u64::from(rest) << 40));
    rig.end();
}

#[test]
fn what_followed_is_kept_by_expert() {
    let mut rig = rig(Eviction::Learned, 1, 4, 4);
    for ids in [&[0][..], &[2, 1, 2], &[0], &[3, 1], &[ABSENT, 0, ABSENT]] {
        rig.step(decode(0), ids, PLAIN, "followers");
    }
    let numbers = numbers(&mut rig);
    let ring = |expert: usize| -> Vec<&[u16]> {
        let steps = (expert * 8..expert * 8 + 8).filter(|&step| numbers.ring_widths[step] > 0);
        steps.map(|step| &numbers.ring_experts[step * WIDEST..][..usize::from(numbers.ring_widths[step])]).collect()
    };
    assert_eq!(ring(0), [&[1, 2], &[1, 3]]);
    assert_eq!((ring(1), ring(2), ring(3)), (vec![&[0][..], &[0]], vec![&[0][..]], vec![&[0][..]]));
    assert_eq!(numbers.ring_next, [2, 2, 1, 1]);
    // After 0 there were 1 and 2, and 1 and 3.
    assert_eq!((numbers.followed, numbers.totals[6]), (vec![0, 2, 1, 1], 4));
    assert_eq!((numbers.latest[0], numbers.latest_widths[0]), (0, 1));
    rig.compare("followers");
    rig.end();
}

#[test]
fn the_oldest_of_eight_steps_is_written_over() {
    let mut rig = rig(Eviction::Learned, 1, 4, 4);
    for follower in [1, 1, 2, 2, 2, 2, 2, 2, 2, 3] {
        steps(&mut rig, &[(0, 0), (0, follower)]);
    }
    steps(&mut rig, &[(0, 0)]);
    let numbers = numbers(&mut rig);
    assert_eq!((numbers.followed, numbers.ring_next[0]), (vec![0, 0, 7, 1], 2));
    rig.end();
}

#[test]
fn steps_of_over_sixteen_experts_follow_nothing_and_have_no_followers() {
    for threads in [32, 64, 1024] {
        for (width, followed) in [(16, 1), (17, 0)] {
            let mut rig = rig(Eviction::Learned, 1, 40, 24);
            rig.tables.set_threads(threads).unwrap();
            rig.step(decode(0), &[39], PLAIN, "before");
            // Twice each, from the highest on, so that routes are more and in another order.
            let ids: Vec<i64> = span(3, width).into_iter().rev().flat_map(|id| [id, id]).collect();
            rig.step(decode(0), &ids, PLAIN, "wide");
            rig.step(decode(0), &[39], PLAIN, "behind");
            let numbers = numbers(&mut rig);
            let at = format!("{threads} threads, {width} experts");
            assert_eq!(numbers.followed.iter().sum::<u32>(), 16 * followed, "{at}");
            assert_eq!((numbers.followed[3], numbers.followed[18]), (followed, followed), "{at}");
            assert_eq!(numbers.totals[6], u64::from(16 * followed), "{at}");
            // What came after 3 was 39, if anything did.
            assert_eq!(numbers.ring_widths[3 * 8], followed as u8, "{at}");
            rig.compare(&at);
            rig.end();
        }
    }
}

/// At the 8th, 128th and 512th turn counts are brought down by eight bits before a use counts 8192 again.
#[test]
fn counts_are_brought_down_every_eight_halves() {
    for (rule, turn) in SCORED.into_iter().zip([512, 128, 8]) {
        let cache = counted(ruled(rule, one_pool(2, 3, 3)), |numbers| {
            numbers.turns[1] = turn - 1;
            [25_600, 511, 255].into_iter().enumerate().for_each(|(expert, count)| {
                numbers.counts[(3 + expert) * HALVES] = count;
            });
            numbers.totals[COMPONENTS] = 30_000;
        });
        let mut rig = Rig::new(2, cache);
        rig.step(decode(1), &[0], PLAIN, rule.name());
        let numbers = numbers(&mut rig);
        assert_eq!([3, 4, 5].map(|flat| numbers.counts[flat * HALVES]), [100 + 8_192, 1, 0], "{rule}");
        assert_eq!((numbers.turns[1], numbers.totals[COMPONENTS]), (turn, 117 + 8_192), "{rule}");
        rig.compare(rule.name());
        rig.end();
    }
}

#[test]
fn counts_stop_at_their_highest_and_totals_go_on() {
    for rule in SCORED {
        let cache = counted(ruled(rule, one_pool(1, 3, 3)), |numbers| {
            numbers.counts[0] = u32::MAX - 8_000;
            numbers.totals[0] = 1 << 33;
        });
        let mut rig = Rig::new(3, cache);
        rig.step(decode(0), &[0, 1], PLAIN, rule.name());
        let (numbers, used) = (numbers(&mut rig), [8_320, 8_704, 16_384][rule as usize - 1]);
        assert_eq!((numbers.counts[0], numbers.counts[HALVES]), (u32::MAX, used), "{rule}");
        assert_eq!(numbers.totals[0], (1 << 33) + 2 * u64::from(used), "{rule}");
        steps(&mut rig, &[(0, 0), (0, 2), (0, 0)]);
        rig.compare(rule.name());
        rig.end();
    }
}

// What counts, and what does not.

#[test]
fn only_decode_steps_that_are_admitted_count() {
    for rule in SCORED {
        let mut rig = rig(rule, 2, 8, 3);
        steps(&mut rig, &[(0, 0), (0, 1), (1, 3), (0, 0)]);
        let before = numbers(&mut rig);
        rig.step(decode(0), &[ABSENT; 40], PLAIN, "absent alone");
        rig.step(decode(0), &[], PLAIN, "no routes");
        rig.step(decode(0), &span(0, 4), PLAIN, "too wide");
        rig.step(prefill(0), &[0, 2], PLAIN, "a prompt");
        rig.step(prefill(1), &[5, 6, 7], PLAIN, "a prompt that takes all");
        assert_eq!(rig.admit(decode(0), &[1, 8], PLAIN).unwrap().slots, [-1, -1]);
        let first = Fault::UnknownExpert { layer: layer(0), route: 1, id: 8, expert_count: 8 };
        assert_eq!(rig.tables.take_faults(), Some(FaultReport { first, step: rig.host.step(), count: 1 }));
        rig.tables.reset(&mut rig.device, rig.stream).unwrap();
        rig.host.reset();
        assert_eq!(numbers(&mut rig), before, "{rule}");
        rig.compare(rule.name());
        rig.end();
    }
}

#[test]
fn a_step_that_fetches_nothing_counts_as_one_that_does() {
    for rule in SCORED {
        let (mut plain, mut none) = (rig(rule, 2, 40, 20), rig(rule, 2, 40, 20));
        for (number, ids) in [&[0, 1, 2][..], &[5, 1], &[1, 2, 3], &span(10, 18), &[0]].into_iter().enumerate() {
            plain.step(decode(0), ids, PLAIN, &format!("{rule} step {number}"));
            none.step(hybrid(0, FetchRule::UpTo(0)), ids, PLAIN, &format!("{rule} step {number}, nothing fetched"));
        }
        assert_eq!(none.host.resident_count(), 0);
        assert_eq!(numbers(&mut none), numbers(&mut plain), "{rule}");
        none.compare(rule.name());
        plain.end();
        none.end();
    }
}

// Slots that are no victims.

#[test]
fn where_all_slots_are_pinned_steps_are_counted_and_nothing_goes() {
    for rule in SCORED {
        let mut cache = ruled(rule, one_pool(2, 40, 33));
        cache.pin(&of_layer(1, 0..33), 0).unwrap();
        let mut rig = Rig::new(4, cache);
        rig.tables.set_threads(32).unwrap();
        rig.step(decode(1), &span(0, 33), PLAIN, "pinned");
        rig.step(decode(0), &[4], PLAIN, "no slot");
        rig.step(decode(1), &[4, 33], PLAIN, "no slot for one of two");
        assert_eq!(numbers(&mut rig).turns, [0, 1], "{rule}");
        let answer = rig.step(hybrid(0, FetchRule::UpTo(5)), &[4, 5], PLAIN, "for the CPU");
        assert_eq!(answer.slots, [crate::rig::CPU; 2]);
        assert_eq!(numbers(&mut rig).turns, [1, 1], "{rule}");
        rig.compare(rule.name());
        rig.end();
    }
}

/// Those with the lowest scores are pinned, or the step's own, or lie under a buffer; and some are cold.
#[test]
fn the_worst_that_may_go_goes() {
    for rule in SCORED {
        for seed in 0..6 {
            let mut rng = Rng::new(seed);
            let mut cache = ruled(rule, with_staging(12, 10, 96));
            cache.pin(&of_layer(3, [1, 4, 7]), 1).unwrap();
            cache.pin(&of_layer(5, [0]), 1).unwrap();
            let mut rig = Rig::new(seed, counted(cache, |numbers| random_counts(&mut rng, numbers)));
            rig.tables.set_threads(32 << (seed % 3)).unwrap();
            for of in 0..9 {
                let step = if of == 6 { prefill(of) } else { decode(of) };
                rig.step(step, &span(0, 10), PLAIN, "residents");
            }
            for round in 0..2 {
                let at = format!("{rule} seed {seed} round {round}");
                rig.step(decode(3), &[2, 5, 9], PLAIN, &at);
                rig.host.begin_chunk().unwrap();
                rig.tables.withhold(&mut rig.device, rig.stream, PoolId::new(0), 10).unwrap();
                rig.step(decode(10), &span(0, 10), PLAIN, &at);
                assert!(slots_of(&rig).iter().all(|&slot| slot >= 10), "{at}: {}", rig.plan);
                rig.step(hybrid(11, FetchRule::UpTo(4)), &span(0, 9), PLAIN, &at);
                rig.step(prefill(2), &[3, 9], PLAIN, &at);
                rig.tables.withhold(&mut rig.device, rig.stream, PoolId::new(0), 0).unwrap();
                rig.host.end_chunk().unwrap();
                for _ in 0..4 {
                    rig.step(decode(rng.below(12) as u32), &span(rng.below(6) as u32, 4), PLAIN, &at);
                }
                rig.compare(&at);
            }
            rig.end();
        }
    }
}

// Sizes.

/// A pool full of several layers' experts, each but a few of a stamp that says nothing, and with counts of every size.
fn full(rng: &mut Rng, rule: Eviction, layers: usize, experts: u32, slots: u32) -> Cache {
    let cache = counted(ruled(rule, one_pool(layers, experts, slots)), |numbers| random_counts(rng, numbers));
    let residents = (0..slots).map(|slot| {
        let stamp = if rng.chance(1, 200) { 1 } else { 2 + rng.below(40) };
        Resident { slot: slot as usize, expert: slot * 7 % slots, stamp }
    });
    filled(cache, 60, residents)
}

/// Of 157 slots a thread only four keys are kept; the rest wait in memory.
#[test]
fn keys_of_many_slots_wait_in_memory() {
    for rule in SCORED {
        for (slots, threads) in [(5_000, 32), (4_999, 64), (129, 32), (128, 32)] {
            let mut rng = Rng::new(u64::from(slots));
            let cache = full(&mut rng, rule, 10, 512, slots);
            let mut rig = Rig::new(5, cache);
            rig.tables.set_threads(threads).unwrap();
            for (number, count) in [1, 40, 3, 100].into_iter().enumerate() {
                let at = format!("{rule}: {slots} slots, {threads} threads, step {number}");
                let step = [decode(9), decode(4), prefill(9), hybrid(0, FetchRule::UpTo(17))][number];
                rig.step(step, &span(400, count.min(slots / 2)), PLAIN, &at);
            }
            rig.compare(&format!("{rule}: {slots} slots, {threads} threads"));
            rig.end();
        }
    }
}

/// Keys that are alike but for any one byte of seven, and in ties, whatever warp they are of.
#[test]
fn keys_are_put_in_order_by_every_digit() {
    for rule in SCORED {
        for bits in [1, 6, 14, 22, 30] {
            let mut rng = Rng::new(bits);
            let cache = counted(ruled(rule, one_pool(3, 100, 150)), |numbers| {
                for flat in 0..300 {
                    // Of few values near each other, so that many tie.
                    numbers.counts[flat * HALVES] = (1 << bits) + rng.below(1 << (bits / 3)) as u32;
                }
                for layer in 0..3 {
                    let counts = (0..100).map(|expert| u64::from(numbers.counts[(layer * 100 + expert) * HALVES]));
                    numbers.totals[layer * COMPONENTS] = counts.sum();
                    numbers.gains[layer * COMPONENTS] = 1 << (53 - bits);
                }
            });
            let residents = (0..150).map(|slot| Resident {
                slot: slot as usize,
                expert: slot * 7 % 150,
                stamp: 9 - u64::from(slot % 3),
            });
            let mut rig = Rig::new(6, filled(cache, 9, residents));
            rig.tables.set_threads(96).unwrap();
            for (number, count) in [1, 31, 2, 60].into_iter().enumerate() {
                let step = if number == 2 { prefill(2) } else { decode(2) };
                rig.step(step, &span(number as u32 * 10, count), PLAIN, &format!("{rule}: {bits} bits, step {number}"));
            }
            rig.compare(&format!("{rule}: {bits} bits"));
            rig.end();
        }
    }
}

#[test]
fn layers_of_over_1024_experts_are_counted_too() {
    for rule in SCORED {
        for (experts, threads) in [(1024, 64), (1025, 1024), (1100, 32)] {
            let mut rng = Rng::new(u64::from(experts));
            let mut rig = Rig::new(7, full(&mut rng, rule, 2, experts, 300));
            rig.tables.set_threads(threads).unwrap();
            let last = i64::from(experts) - 1;
            let steps = [
                vec![last, 0, last, 700],
                (0..200).map(|_| rng.below(u64::from(experts)) as i64).collect(),
                vec![last, 5],
                vec![0, 1, last],
                vec![last],
            ];
            for (number, ids) in steps.iter().enumerate() {
                let at = format!("{rule}: {experts} experts, {threads} threads, step {number}");
                rig.step(decode(number as u32 % 2), ids, PLAIN, &at);
                rig.step(hybrid(1, FetchRule::UpTo(3)), ids, PLAIN, &at);
            }
            rig.compare(&format!("{rule}: {experts} experts, {threads} threads"));
            rig.end();
        }
    }
}

// Turns.

#[test]
fn turns_go_on_at_the_end_of_eight_halves_and_of_32_bits() {
    for rule in SCORED {
        let ends = rule.log_halves().iter().map(|&log_half| 8 << log_half).chain([0]);
        for end in ends {
            let mut rng = Rng::new(u64::from(end));
            let cache = counted(ruled(rule, one_pool(2, 12, 9)), |numbers| {
                random_counts(&mut rng, numbers);
                numbers.turns = vec![0_u32.wrapping_add(end).wrapping_sub(3), u32::MAX];
            });
            let mut rig = Rig::new(8, cache);
            rig.tables.set_threads(32).unwrap();
            for number in 0..10 {
                let ids: Vec<i64> = (0..1 + rng.below(5)).map(|_| rng.below(12) as i64).collect();
                rig.step(decode(number % 2), &ids, PLAIN, &format!("{rule}: to {end}, step {number}"));
            }
            assert_eq!(numbers(&mut rig).turns, [end.wrapping_add(2), 4], "{rule}");
            rig.compare(&format!("{rule}: to {end}"));
            rig.end();
        }
    }
}

/// A number that is changed, and is let in: both sides go on from it alike.
#[test]
fn numbers_at_their_bounds_decide_alike_on_both_sides() {
    let mut let_in = 0;
    for seed in 0..90 {
        let rule = SCORED[seed as usize % 3];
        let mut rng = Rng::new(seed);
        let cache = counted(ruled(rule, one_pool(3, 20, 14)), |numbers| {
            random_counts(&mut rng, numbers);
            if seed % 2 == 0 {
                numbers.counts.iter_mut().filter(|count| **count > 0).for_each(|count| *count = u32::MAX);
                let halves = rule.log_halves().len();
                let shares = numbers.totals.iter_mut().zip(&mut numbers.gains).enumerate();
                for (_, (total, gain)) in shares.filter(|(share, _)| share % COMPONENTS < halves) {
                    (*total, *gain) = ((1 << 58) - 1, 1);
                }
            }
            if rule.learns() {
                numbers.weights.fill(128);
                numbers.weights[seed as usize % 7] = (3 << 19) - 6 * 128;
            }
        });
        let mut changed = cache.state().unwrap();
        let scores = changed.scores.as_mut().unwrap();
        let index = |rng: &mut Rng, length: usize| rng.below(length.max(1) as u64) as usize;
        let bits = rng.bits() >> rng.below(64);
        match rng.below(6) {
            0 => scores.gains[index(&mut rng, 3 * COMPONENTS)] = bits,
            1 => scores.totals[index(&mut rng, 3 * COMPONENTS)] = bits,
            2 => scores.counts[index(&mut rng, 60 * HALVES)] = bits as u32,
            3 => scores.weights[index(&mut rng, COMPONENTS)] = bits as u32,
            4 => scores.turns[index(&mut rng, 3)] = bits as u32,
            _ if rule.learns() => scores.ring_next[index(&mut rng, 60)] = bits as u8 % 9,
            // All that a half would have which the rule does not have.
            _ => (scores.counts[3], scores.totals[3], scores.gains[3]) = (50, 100, 1 << 50),
        }
        let mut start = cache.clone();
        let_in += u32::from(start.set_state(&changed).is_ok());
        let mut rig = Rig::new(seed, start);
        rig.tables.set_threads(64).unwrap();
        for number in 0..25 {
            let ids: Vec<i64> = (0..1 + rng.below(7)).map(|_| rng.below(20) as i64).collect();
            rig.step(decode(number % 3), &ids, PLAIN, &format!("{rule} seed {seed} step {number}"));
        }
        rig.compare(&format!("{rule} seed {seed}"));
        rig.end();
    }
    assert!((20..70).contains(&let_in), "{let_in}");
}

/// Of as many experts as there may be the highest are used, and follow each other.
#[test]
fn experts_of_the_highest_numbers_are_followed_too() {
    let (experts, last) = (1 << 16, u16::MAX);
    let cache = ruled(Eviction::Learned, one_pool(1, experts, 3));
    let mut rig = Rig::new(9, cache);
    for (number, ids) in [[65_535, 0], [65_535, 65_534], [0, 65_535]].into_iter().enumerate() {
        rig.step(decode(0), &ids, PLAIN, &format!("step {number}"));
    }
    let numbers = numbers(&mut rig);
    assert_eq!(numbers.latest[..2], [0, last]);
    // After 0 came 65,534 and 65,535; after 65,535 the same, and then 0 and itself.
    let followed = [0, 65_533, 65_534, 65_535].map(|expert| numbers.followed[expert]);
    assert_eq!((followed, numbers.totals[6]), ([1, 0, 2, 3], 6));
    rig.compare("the highest");
    rig.end();
}

/// Where no further step can be counted, nothing else is.
#[test]
fn behind_the_last_step_nothing_counts() {
    for rule in SCORED {
        let mut cache = ruled(rule, one_pool(1, 8, 4));
        cache.skip_to(u64::MAX - 2);
        let mut rig = Rig::new(10, cache);
        rig.step(decode(0), &[1, 2], PLAIN, "the last");
        let before = numbers(&mut rig);
        assert_eq!(before.turns, [1]);
        rig.step(decode(0), &[1, 3], PLAIN, "none is left");
        assert_eq!(numbers(&mut rig), before, "{rule}");
        rig.compare(rule.name());
        rig.end();
    }
}
