//! Boundaries of an admission, which random steps come to rarely or never: each on both sides.

use ftcache_policy::{ExpertId, FetchRule, PoolId, SlotId};
use ftcache_residency::Cache;
use ftcache_testkit::Rng;
use ftcache_transfer::IdWidth;

use crate::rig::{ABSENT, Form, Rig};
use crate::states::{decode, empty, fraction, hybrid, layer, of_layer, one_pool, prefill, span, stamped, with_staging};

const PLAIN: Form = Form::PLAIN;
const MAP: Form = Form { map: true, ..PLAIN };
/// The last step that can be counted.
const LAST_STEP: u64 = u64::MAX - 1;

fn slots_of(rig: &Rig) -> Vec<u32> {
    rig.plan.copies().iter().map(|copy| copy.slot.get()).collect()
}

// Widths and sizes.

#[test]
fn one_slot_one_expert_and_one_route_are_enough() {
    for threads in [32, 1024] {
        let mut rig = Rig::new(1, one_pool(2, 1, 1));
        rig.tables.set_threads(threads).unwrap();
        for (number, of) in [0, 0, 1, 0, 1, 1].into_iter().enumerate() {
            let answer = rig.step(decode(of), &[0], MAP, &format!("{threads} threads, step {number}"));
            assert_eq!((answer.slots, answer.map), (vec![0], vec![0]));
        }
        rig.compare("one of each");
        assert_eq!(rig.twin.total_stats().evictions, 3);
        rig.end();
    }
}

#[test]
fn a_step_without_routes_is_a_step() {
    for step in [decode(0), prefill(0), hybrid(0, FetchRule::UpTo(3))] {
        let mut rig = Rig::new(2, one_pool(1, 40, 8));
        rig.step(decode(0), &[7, 9], PLAIN, "residents");
        let answer = rig.step(step, &[], Form { split: true, ..MAP }, "no routes");
        assert!(answer.slots.is_empty());
        assert_eq!((answer.map[7], answer.map[9], answer.map[0]), (0, 1, -1));
        assert_eq!(rig.host.step(), 2);
        rig.compare("no routes");
        rig.end();
    }
}

#[test]
fn a_step_of_absent_routes_alone_answers_absent() {
    for width in [1, 32, 33, 1000, 1500] {
        for step in [decode(0), hybrid(0, FetchRule::UpTo(3))] {
            let mut rig = Rig::new(3, one_pool(1, 40, 8));
            let form = Form { split: true, weight_bytes: 4, ..PLAIN };
            let answer = rig.step(step, &vec![ABSENT; width], form, &format!("{width} absent"));
            assert_eq!(answer.slots, vec![ABSENT; width]);
            rig.compare(&format!("{width} absent"));
            assert_eq!(rig.twin.layer_stats(layer(0)).routes, 0);
            rig.end();
        }
    }
}

#[test]
fn absent_routes_stand_between_others_without_a_trace() {
    let mut rig = Rig::new(4, one_pool(1, 40, 8));
    for (number, width) in (0..).zip([IdWidth::Four, IdWidth::Eight]) {
        let routes: Vec<i64> = (0..900).map(|route| if route % 3 == 0 { ABSENT } else { route % 8 }).collect();
        rig.step(decode(0), &routes, Form { width, ..MAP }, &format!("{width:?}"));
        assert_eq!(rig.plan.miss_count(), if number == 0 { 8 } else { 0 });
    }
    rig.compare("absent between");
    rig.end();
}

#[test]
fn as_many_distinct_experts_as_slots_fit_and_one_more_does_not() {
    for slots in [1, 2, 31, 32, 33, 63, 64, 65, 200] {
        let mut rig = Rig::new(5, one_pool(2, 220, slots));
        rig.tables.set_threads(64).unwrap();
        // Full of another layer's, then of its own in two parts, which leaves nobody of the first.
        rig.step(decode(1), &span(0, slots), PLAIN, "full");
        rig.step(decode(0), &span(10, slots), PLAIN, "exactly");
        assert_eq!(rig.plan.miss_count(), slots as usize);
        let answer = rig.step(decode(0), &span(10, slots + 1), MAP, &format!("{} in {slots}", slots + 1));
        assert!(answer.slots.iter().all(|&slot| slot == -1));
        rig.compare(&format!("{slots} slots"));
        rig.end();
    }
}

// Slots that are no victims.

#[test]
fn all_slots_pinned_but_one_leave_one_victim() {
    for threads in [32, 128] {
        let mut cache = one_pool(2, 80, 70);
        cache.pin(&of_layer(1, 0..69), 1).unwrap();
        let mut rig = Rig::new(6, cache);
        rig.tables.set_threads(threads).unwrap();
        rig.step(decode(1), &span(0, 69), PLAIN, "pinned");
        for (number, expert) in [5, 6, 6, 7, 5].into_iter().enumerate() {
            let answer = rig.step(decode(0), &[expert], MAP, &format!("{threads} threads, step {number}"));
            assert_eq!(answer.slots, [69]);
        }
        // Two distinct ones are too many: one slot is open. A pinned hit takes none of it.
        rig.step(decode(0), &[1, 2], MAP, "2 in 1");
        rig.step(decode(1), &[3, 68, 79], MAP, "hits that are pinned, and a miss");
        let answer = rig.step(hybrid(0, FetchRule::UpTo(9)), &[1, 2, 3], MAP, "hybrid takes what there is");
        assert_eq!(answer.slots.iter().filter(|slot| **slot == 69).count(), 1);
        rig.compare("pinned but one");
        rig.end();
    }
}

#[test]
fn a_pinned_expert_is_pinned_again_when_it_comes_back() {
    let mut cache = one_pool(1, 40, 4);
    cache.pin(&of_layer(0, [9]), 3).unwrap();
    let mut rig = Rig::new(7, cache);
    rig.step(decode(0), &[9, 1, 2, 3], PLAIN, "9 comes");
    rig.step(decode(0), &[4, 5, 6], PLAIN, "and stays");
    assert_eq!(rig.host.slot_of(layer(0), ExpertId::new(9)), Some(SlotId::new(3)));
    rig.tables.reset(&mut rig.device, rig.stream).unwrap();
    rig.host.reset();
    rig.step(decode(0), &[1, 2, 3, 4], PLAIN, "all free");
    rig.step(prefill(0), &[9], PLAIN, "9 comes again, by a prompt");
    rig.step(decode(0), &[5, 6, 7], PLAIN, "three others");
    rig.step(decode(0), &[5, 6, 7, 8], PLAIN, "four do not fit");
    rig.compare("pinned again");
    rig.end();
}

#[test]
fn withheld_slots_are_free_and_not_handed_out() {
    let mut rig = Rig::new(8, with_staging(12, 10, 96));
    rig.tables.set_threads(64).unwrap();
    let pool = PoolId::new(0);
    for of in 0..9 {
        rig.step(decode(of), &span(0, 10), PLAIN, "residents");
    }
    for round in 0..2 {
        rig.host.begin_chunk().unwrap();
        rig.tables.withhold(&mut rig.device, rig.stream, pool, 10).unwrap();
        // Layer 0 or what took its place lay below; six slots are free, then the oldest go.
        rig.step(decode(0), &span(0, 10), MAP, &format!("round {round}: those of the buffer"));
        assert!(slots_of(&rig).iter().all(|&slot| slot >= 10), "{}", rig.plan);
        rig.step(prefill(10), &span(0, 10), MAP, &format!("round {round}: a prompt's"));
        rig.step(hybrid(11, FetchRule::UpTo(4)), &span(0, 9), MAP, &format!("round {round}: some"));
        rig.tables.withhold(&mut rig.device, rig.stream, pool, 0).unwrap();
        rig.host.end_chunk().unwrap();
        rig.step(decode(9), &span(0, 3), MAP, &format!("round {round}: the lowest are free"));
        assert_eq!(slots_of(&rig), [0, 1, 2]);
        rig.compare(&format!("round {round}"));
    }
    rig.end();
}

#[test]
fn pinned_experts_that_lose_their_slots_to_a_buffer_are_pinned_again_when_they_come_back() {
    let mut cache = with_staging(3, 10, 16);
    cache.pin(&of_layer(0, [1, 2, 8]), 3).unwrap();
    let mut rig = Rig::new(8, cache);
    rig.tables.set_threads(32).unwrap();
    rig.step(decode(0), &span(0, 10), PLAIN, "pinned and others");
    rig.step(decode(1), &[0, 1, 2, 3], PLAIN, "beside them");
    for round in 0..2 {
        rig.host.begin_chunk().unwrap();
        rig.tables.withhold(&mut rig.device, rig.stream, PoolId::new(0), 10).unwrap();
        // Two of the pinned in what is left; then as many others as the rest holds, and one more.
        rig.step(decode(0), &[2, 8], MAP, &format!("round {round}: two come back"));
        rig.step(decode(2), &span(0, 4), MAP, &format!("round {round}: four beside them"));
        rig.step(decode(2), &span(1, 5), MAP, &format!("round {round}: five do not fit"));
        rig.tables.withhold(&mut rig.device, rig.stream, PoolId::new(0), 0).unwrap();
        rig.host.end_chunk().unwrap();
        rig.step(decode(0), &span(0, 10), MAP, &format!("round {round}: all"));
        rig.compare(&format!("round {round}"));
    }
    rig.end();
}

#[test]
fn a_step_may_have_what_is_not_withheld_and_no_more() {
    let mut rig = Rig::new(9, with_staging(3, 10, 16));
    rig.host.begin_chunk().unwrap();
    rig.tables.withhold(&mut rig.device, rig.stream, PoolId::new(0), 10).unwrap();
    rig.step(decode(0), &span(0, 7), MAP, "7 in 6");
    rig.step(decode(0), &span(0, 6), MAP, "6 in 6");
    assert_eq!(slots_of(&rig), [10, 11, 12, 13, 14, 15]);
    rig.tables.withhold(&mut rig.device, rig.stream, PoolId::new(0), 0).unwrap();
    rig.host.end_chunk().unwrap();
    rig.compare("withheld");
    rig.end();
}

// Stamps.

#[test]
fn stamps_of_one_digit_to_eight_are_put_in_order() {
    for bits in [8, 16, 24, 32, 40, 48, 56] {
        let edge = 1u64 << bits;
        // Slots with stamps on both sides of the edge, out of order, and the step on both sides of it.
        let around = [edge - 2, 5, edge - 3, edge - 1, 2, edge - 4, 1, edge - 5];
        let mut rig = Rig::new(bits, stamped(one_pool(2, 16, 8), &around));
        rig.tables.set_threads(32).unwrap();
        assert_eq!(rig.host.step(), edge - 1);
        for number in 0..6 {
            let routes = span(2 * number % 10, 2);
            rig.step(decode(1), &routes, MAP, &format!("{bits} bits, step {number}"));
        }
        rig.step(decode(1), &span(1, 7), MAP, &format!("{bits} bits, seven"));
        rig.compare(&format!("{bits} bits"));
        rig.end();
    }
}

#[test]
fn the_last_step_is_counted_and_none_after_it() {
    for step in [decode(0), prefill(0), hybrid(0, FetchRule::UpTo(2))] {
        let mut cache = one_pool(2, 16, 6);
        cache.skip_to(LAST_STEP - 3);
        let mut rig = Rig::new(10, cache);
        rig.step(decode(0), &[1, 2, 3], MAP, "the last but two");
        rig.step(step, &[3, 4, 5], MAP, "the last but one");
        rig.step(decode(1), &[6, 7, 8, 9], MAP, "the last");
        assert_eq!(rig.host.step(), LAST_STEP);
        for _ in 0..2 {
            let answer = rig.step(step, &[1, 9], MAP, "none is left");
            assert_eq!(answer.slots, [-1, -1]);
        }
        rig.compare("at the end");
        rig.end();
    }
}

#[test]
fn slots_of_one_stamp_go_by_number_whatever_warp_they_are_of() {
    for threads in [32, 64, 96, 512, 1024] {
        let mut rig = Rig::new(11, stamped(one_pool(2, 300, 300), &[7; 300]));
        rig.tables.set_threads(threads).unwrap();
        let mut next = 0;
        for count in [1, 31, 1, 32, 33, 64, 100] {
            rig.step(decode(1), &span(next, count), PLAIN, &format!("{threads} threads, {count} misses"));
            assert_eq!(slots_of(&rig), (next..next + count).collect::<Vec<_>>());
            next += count;
        }
        rig.compare(&format!("{threads} threads"));
        rig.end();
    }
}

#[test]
fn free_cold_and_old_slots_go_in_this_order() {
    // By slot: old, free, cold, old, cold, free, free, older, cold, youngest.
    let stamps = [9, 0, 1, 8, 1, 0, 0, 5, 1, 12];
    let order = [1, 5, 6, 2, 4, 8, 7, 3, 0, 9];
    for count in 1..=10 {
        for step in [decode(1), prefill(1)] {
            let mut rig = Rig::new(12, stamped(one_pool(2, 10, 10), &stamps));
            rig.tables.set_threads(32).unwrap();
            rig.step(step, &span(0, count), MAP, &format!("{count} misses"));
            assert_eq!(slots_of(&rig), order[..count as usize], "{:?}", step.phase);
            rig.compare(&format!("{count} misses"));
            rig.end();
        }
    }
}

#[test]
fn hits_of_a_prompt_are_no_victims_though_they_keep_old_stamps() {
    let mut rig = Rig::new(13, stamped(one_pool(2, 10, 10), &[1, 2, 1, 3, 1, 4, 0, 5, 0, 6]));
    rig.tables.set_threads(32).unwrap();
    // Experts 0, 2 and 1 are the oldest and cold; two slots are free.
    rig.step(prefill(0), &[0, 2, 1, 6, 8], MAP, "free ones");
    assert_eq!(slots_of(&rig), [6, 8]);
    let answer = rig.step(prefill(1), &[0, 1, 2], MAP, "another layer");
    assert_eq!(answer.slots, [0, 2, 4]);
    rig.step(prefill(1), &span(0, 10), MAP, "all of it");
    rig.compare("prompt");
    rig.end();
}

#[test]
fn the_threshold_lies_in_any_digit() {
    // Stamps that are alike but for one digit, and random ones of few values, so that it is found early and late.
    for digit in 0..6 {
        let of = |value: u64| (0x0102_0304_0506 & !(0xFF << (8 * digit))) | value << (8 * digit);
        let stamps: Vec<u64> = (0..96).map(|slot| of(200 - slot * 37 % 100)).collect();
        for count in [1, 2, 31, 50, 95, 96] {
            let mut rig = Rig::new(14, stamped(one_pool(2, 96, 96), &stamps));
            rig.tables.set_threads(64).unwrap();
            rig.step(decode(1), &span(0, count), PLAIN, &format!("digit {digit}, {count} misses"));
            rig.compare(&format!("digit {digit}, {count} misses"));
            rig.end();
        }
    }
}

#[test]
fn stamps_of_any_kind_are_put_in_order() {
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let slots = 1 + rng.below(130) as usize;
        let bits = 1 + rng.below(63);
        let values: Vec<u64> = (0..1 + rng.below(6)).map(|_| rng.bits() >> (64 - bits)).collect();
        let stamps: Vec<u64> = (0..slots)
            .map(|_| match rng.below(4) {
                0 => rng.bits() >> (64 - bits),
                // Neighbours of a few values, above and below.
                1 => values[rng.below(values.len() as u64) as usize].saturating_sub(rng.below(3)),
                _ => values[rng.below(values.len() as u64) as usize],
            })
            .map(|stamp| stamp.min(LAST_STEP - 2))
            .collect();
        let experts = slots as u32 + 8;
        let mut rig = Rig::new(seed, stamped(one_pool(2, experts, slots as u32), &stamps));
        rig.tables.set_threads(32 * (1 + rng.below(3)) as u32).unwrap();
        let of = rng.below(2) as u32;
        let count = 1 + rng.below(slots as u64) as u32;
        let step = if rng.chance(1, 3) { prefill(of) } else { decode(of) };
        rig.step(step, &span(experts - count, count), MAP, &format!("seed {seed}"));
        rig.compare(&format!("seed {seed}"));
        rig.end();
    }
}

// The map.

#[test]
fn an_expert_of_the_layer_that_loses_its_slot_loses_it_in_the_map_too() {
    for step in [decode(0), prefill(0), hybrid(0, FetchRule::PreferFetch(fraction(1.0)))] {
        let mut rig = Rig::new(15, stamped(one_pool(1, 12, 6), &[1, 2, 3, 4, 5, 6]));
        let answer = rig.step(step, &[9, 5, 8, 0], MAP, &format!("{:?}", step.phase));
        // 8 and 9 take the slots of 1 and 2, or of 0 and 1 if a hit did not spare it.
        assert_eq!(answer.map[1..3], [-1, -1]);
        assert_eq!((answer.map[8], answer.map[9]), (1, 2));
        rig.compare("the map");
        rig.end();
    }
}

#[test]
fn an_expert_of_another_layer_that_loses_its_slot_leaves_the_map_alone() {
    // Layer 1 lies behind layer 0 and layer 2 behind both, all in one pool of another's behind.
    let cache = empty(8, &[1, 1, 1, 0], &[3, 6]);
    let mut rig = Rig::new(16, cache);
    for (number, of) in [0, 1, 2, 0, 2, 1].into_iter().enumerate() {
        let routes = span(number as u32, 3);
        rig.step(decode(of), &routes, MAP, &format!("step {number}"));
        rig.step(decode(3), &routes, MAP, &format!("step {number}, pool 0"));
    }
    rig.compare("other layers");
    rig.end();
}

// Large pools and threads.

/// A pool of so many slots, all in use, with few stamps of their own.
fn large(slots: u32) -> Cache {
    let stamps: Vec<u64> = (0..u64::from(slots)).map(|slot| 2 + slot * 7919 % 97 * 300).collect();
    stamped(one_pool(slots.div_ceil(800) as usize + 1, 800, slots), &stamps)
}

#[test]
fn pools_at_and_above_what_threads_keep() {
    for (threads, slots) in [
        (1024, 4095),
        (1024, 4096),
        (1024, 4097),
        (1024, 5200),
        (1024, 9001),
        (32, 127),
        (32, 128),
        (32, 129),
        (32, 900),
    ] {
        let cache = large(slots);
        let last = cache.layer_count() as u32 - 1;
        let mut rig = Rig::new(17, cache);
        rig.tables.set_threads(threads).unwrap();
        let most = slots.min(700);
        for (number, count) in [1, 40, most].into_iter().enumerate() {
            let at = format!("{threads} threads, {slots} slots, step {number}");
            rig.step(decode(last), &span(100 - 50 * number as u32, count), PLAIN, &at);
        }
        // A last slot that is the only victim but for a few.
        rig.step(prefill(0), &span(1, most.min(60)), MAP, &format!("{threads} threads, {slots} slots, a prompt"));
        rig.compare(&format!("{threads} threads, {slots} slots"));
        rig.end();
    }
}

#[test]
fn any_number_of_threads_decides_alike() {
    let steps = |rig: &mut Rig, at: &str| {
        let mut rng = Rng::new(18);
        let answers: Vec<_> = (0..12)
            .map(|number| {
                let ids: Vec<i64> = (0..60).map(|_| rng.below(90) as i64).collect();
                let rule = FetchRule::Carry(fraction(0.4));
                let step = [decode(0), hybrid(1, rule), prefill(2)][number % 3];
                let form = Form { split: true, weight_bytes: 2, ..MAP };
                let answer = rig.step(step, &ids, form, at);
                (answer, rig.plan.copies().to_vec())
            })
            .collect();
        rig.compare(at);
        (answers, rig.twin.digest())
    };
    let decided = [32, 64, 96, 128, 512, 992, 1024].map(|threads| {
        let mut rig = Rig::new(u64::from(threads), one_pool(3, 90, 110));
        rig.tables.set_threads(threads).unwrap();
        let decided = steps(&mut rig, &format!("{threads} threads"));
        rig.end();
        decided
    });
    assert!(decided.iter().all(|other| *other == decided[0]));
}

#[test]
fn pools_beside_each_other_are_apart() {
    // Slots of several pools stand in one row; each pool is looked at alone.
    let mut rig = Rig::new(19, empty(40, &[0, 1, 2, 1], &[33, 5, 70]));
    rig.tables.set_threads(32).unwrap();
    let mut rng = Rng::new(19);
    for number in 0..40 {
        let of = rng.below(4) as u32;
        let width = if of % 2 == 1 { 5 } else { 20 };
        let ids: Vec<i64> = (0..width).map(|_| rng.below(40) as i64).collect();
        rig.step(decode(of), &ids, MAP, &format!("step {number}"));
    }
    rig.compare("pools");
    rig.end();
}
