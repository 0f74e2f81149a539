//! The worked cases that an admission can be asked: each with its numbers, on both sides.

use ftcache_policy::{ExpertId, Fetch, FetchOrder, FetchRule, PoolId, SlotId};
use ftcache_residency::{Misses, Step};

use crate::rig::{CPU, Form, Rig};
use crate::states::{Resident, decode, filled, fraction, hybrid, layer, one_pool, span};

const PLAIN: Form = Form::PLAIN;

/// Copies of the last step, as slot and row.
fn copies(rig: &Rig) -> Vec<(u32, u32)> {
    rig.plan.copies().iter().map(|copy| (copy.slot.get(), copy.row.get())).collect()
}

/// Flat owners of a pool's slots on the host, which the device has been compared with.
fn owners(rig: &Rig) -> Vec<Option<u32>> {
    let experts = rig.host.expert_count();
    let owner = |slot| rig.host.expert_of(PoolId::new(0), SlotId::new(slot));
    (0..rig.host.slot_count(PoolId::new(0)))
        .map(|slot| owner(slot).map(|(layer, expert)| layer.get() * experts + expert.get()))
        .collect()
}

/// Layer, routes, slots, copies as slot and row, evicted flat experts.
type TraceStep = (u32, &'static [i64], &'static [i64], &'static [(u32, u32)], &'static [u32]);

#[test]
fn c1_trace_a_has_its_slots_copies_and_victims() {
    let mut rig = Rig::new(1, one_pool(2, 4, 4));
    let steps: [TraceStep; 5] = [
        (0, &[2, 0], &[1, 0], &[(0, 0), (1, 2)], &[]),
        (1, &[3, 1], &[3, 2], &[(2, 1), (3, 3)], &[]),
        (0, &[0, 1], &[0, 1], &[(1, 1)], &[2]),
        (1, &[1, 1, 0], &[2, 2, 3], &[(3, 0)], &[7]),
        (0, &[3, 2, 1], &[2, 0, 1], &[(0, 2), (2, 3)], &[0, 5]),
    ];
    for (number, (of, routes, slots, wanted, evicted)) in (1..).zip(steps) {
        let before = owners(&rig);
        let answer = rig.step(decode(of), routes, PLAIN, &format!("step {number}"));
        assert_eq!(answer.slots, slots, "step {number}");
        assert_eq!(copies(&rig), wanted, "step {number}");
        let gone: Vec<u32> = copies(&rig).iter().filter_map(|&(slot, _)| before[slot as usize]).collect();
        assert_eq!(gone, evicted, "step {number}");
    }
    assert_eq!(owners(&rig), [2, 1, 3, 4].map(Some));
    rig.compare("trace A");
    let all = rig.twin.total_stats();
    assert_eq!((all.distinct, all.misses, all.steps), (11, 8, 5));
    rig.end();
}

#[test]
fn c1_nothing_that_a_step_uses_is_its_victim() {
    let mut rig = Rig::new(2, one_pool(1, 8, 4));
    rig.step(decode(0), &[0, 1, 2, 3], PLAIN, "residents");
    let answer = rig.step(decode(0), &[0, 4, 5], PLAIN, "0 is as old as its victims");
    assert_eq!(answer.slots, [0, 1, 2]);
    assert_eq!(copies(&rig), [(1, 4), (2, 5)]);
    rig.compare("same-step safety");
    rig.end();
}

/// vllm#37190 and the walk in row order: hits are stamped before a victim is looked for.
#[test]
fn hits_are_stamped_before_victims_are_chosen_whatever_stands_first() {
    // A in slot 0 is older than B in slot 1; C and A are routed to.
    let residents = [(0, 0, 1), (1, 1, 2)].map(|(slot, expert, stamp)| Resident { slot, expert, stamp });
    let mut rig = Rig::new(3, filled(one_pool(1, 3, 2), 2, residents));
    assert_eq!(rig.step(decode(0), &[2, 0], PLAIN, "C, A").slots, [1, 0]);
    assert_eq!(copies(&rig), [(1, 2)]);
    rig.compare("hits first");
    rig.end();
}

#[test]
fn c1_equal_routes_are_one_miss_and_one_copy() {
    let mut rig = Rig::new(4, one_pool(1, 16, 3));
    for (number, count) in [1, 2, 31, 32, 33, 64, 100, 1023, 1024, 1025].into_iter().enumerate() {
        let id = number as i64;
        let answer = rig.step(decode(0), &vec![id; count], PLAIN, &format!("{count} routes"));
        assert!(answer.slots.iter().all(|slot| *slot == answer.slots[0]), "{count} routes");
        assert_eq!(copies(&rig), [(answer.slots[0] as u32, id as u32)], "{count} routes");
        rig.step(decode(0), &vec![id; count], PLAIN, &format!("{count} routes again"));
        assert_eq!(copies(&rig), [], "{count} routes again");
    }
    rig.compare("equal routes");
    rig.end();
}

#[test]
fn c1_a_step_wider_than_its_pool_changes_nothing_and_names_both_numbers() {
    let mut rig = Rig::new(5, one_pool(2, 8, 3));
    rig.step(decode(1), &[0, 1, 2], PLAIN, "residents");
    let answer = rig.step(decode(0), &[3, 4, 3, 5, 7], PLAIN, "four experts, three slots");
    assert_eq!(answer.slots, [-1; 5]);
    assert_eq!(owners(&rig), [8, 9, 10].map(Some));
    rig.compare("refused");
    assert_eq!(rig.twin.layer_stats(layer(0)).refused, 1);
    assert_eq!(rig.step(decode(1), &[2, 1, 0], PLAIN, "and they are still hits").slots, [2, 1, 0]);
    rig.end();
}

/// Launches of the plain admission so far, if the device can tell.
fn launches(rig: &Rig) -> Option<u64> {
    let emulated = rig.world.emulated.as_ref()?;
    Some(emulated.launch_report("ftcache_admit").launches)
}

#[test]
fn c3_a_wide_step_is_one_admission() {
    // 300 routes to 160 distinct experts, of which 7 are resident.
    let mut rig = Rig::new(6, one_pool(1, 256, 200));
    rig.step(decode(0), &[3, 30, 60, 90, 120, 150, 159], PLAIN, "residents");
    let routes: Vec<i64> = (0..300).map(|route| (route * 7) % 160).collect();
    let form = Form { per_row: 2, ..PLAIN };
    let before = launches(&rig);
    rig.step(decode(0), &routes, form, "300 routes");
    assert_eq!((rig.plan.distinct_count(), rig.plan.miss_count(), rig.plan.copies().len()), (160, 153, 153));
    assert_eq!(launches(&rig), before.map(|before| before + 1));
    rig.compare("300 routes");
    let all = rig.twin.total_stats();
    assert_eq!((all.steps, all.distinct, all.misses, all.routes), (2, 167, 160, 307));
    let routed: u64 = (0..256).map(|expert| rig.twin.routed(layer(0), ExpertId::new(expert))).sum();
    assert_eq!(routed, 307);
    // An 8-route step stays one, too.
    let before = launches(&rig);
    rig.step(decode(0), &[0, 1, 2, 3, 4, 200, 201, 202], form, "8 routes");
    assert_eq!(launches(&rig), before.map(|before| before + 1));
    rig.end();
}

/// B04: 320 to 480 routes, and 1,020 and 1,030, which other designs compile anew for or refuse.
#[test]
fn b04_no_width_is_special() {
    let mut rig = Rig::new(7, one_pool(1, 640, 640));
    for (number, width) in [127, 128, 129, 250, 256, 257, 260, 320, 480, 1020, 1024, 1030].into_iter().enumerate() {
        let routes: Vec<i64> = (0..width).map(|route| (route * 37 + 11 * number as i64) % 640).collect();
        let before = launches(&rig);
        rig.step(decode(0), &routes, Form { per_row: 10, ..PLAIN }, &format!("{width} routes"));
        assert_eq!(launches(&rig), before.map(|before| before + 1), "{width} routes");
    }
    rig.compare("widths");
    rig.end();
}

#[test]
fn c4_fetches_are_those_of_the_table() {
    let table: [(f64, u32, [usize; 11]); 6] = [
        (0.2189, 14346, [0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2]),
        (0.294, 19268, [0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 3]),
        (0.341, 22348, [0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]),
        (0.5, 32768, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5]),
        (0.75, 49152, [0, 1, 2, 2, 3, 4, 5, 5, 6, 7, 8]),
        (1.0, 65536, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
    ];
    for (ratio, q16, fetches) in table {
        assert_eq!(fraction(ratio).q16(), q16);
        let mut rig = Rig::new(8, one_pool(1, 64, 64));
        let mut first = 0;
        for (misses, fetched) in (0..).zip(fetches) {
            let at = format!("{misses} misses at {ratio}");
            let rule = FetchRule::MinWait(fraction(ratio));
            let answer = rig.step(hybrid(0, rule), &span(first, misses), Form { split: true, ..PLAIN }, &at);
            assert_eq!(copies(&rig).len(), fetched, "{at}");
            let on_cpu = answer.slots.iter().filter(|slot| **slot == CPU).count();
            assert_eq!(on_cpu, misses as usize - fetched, "{at}");
            // Every route is computed by one of the two.
            let pairs = answer.slots.iter().zip(&answer.cpu_ids);
            assert!(pairs.into_iter().all(|(&slot, &id)| (slot == CPU) == (id >= 0)), "{at}: {answer:?}");
            first += misses;
        }
        rig.compare(&format!("{ratio}"));
        rig.end();
    }
}

#[test]
fn c4_two_misses_that_recur_starve_but_for_what_is_carried() {
    let mut rig = Rig::new(9, one_pool(1, 8, 8));
    for number in 0..5 {
        let answer = rig.step(hybrid(0, FetchRule::MinWait(fraction(0.294))), &[0, 1], PLAIN, &format!("{number}"));
        assert_eq!(answer.slots, [CPU, CPU]);
    }
    rig.compare("starved");
    rig.end();

    let mut rig = Rig::new(10, one_pool(1, 8, 8));
    let fetched = [0, 1, 2, 3, 4].map(|number| {
        let rule = FetchRule::MinWait(fraction(0.294));
        rig.step(hybrid(0, rule), &[0, 1, 2], PLAIN, &format!("three, {number}"));
        copies(&rig).len()
    });
    assert_eq!(fetched, [1, 0, 0, 0, 0]);
    rig.end();

    let mut rig = Rig::new(11, one_pool(1, 8, 8));
    let fetched = [0, 1, 2, 3, 4, 5].map(|number| {
        rig.step(hybrid(0, FetchRule::Carry(fraction(0.294))), &[0, 1], PLAIN, &format!("carried, {number}"));
        copies(&rig).len()
    });
    // 0.588, 1.176, then one miss: 0.47, 0.764, 1.058; then none.
    assert_eq!(fetched, [0, 1, 0, 0, 1, 0]);
    rig.compare("carried");
    rig.end();
}

#[test]
fn c4_no_more_is_fetched_than_slots_are_free_of_the_step() {
    for rule in [FetchRule::UpTo(8), FetchRule::PreferFetch(fraction(1.0)), FetchRule::MinWait(fraction(1.0))] {
        let mut rig = Rig::new(12, one_pool(1, 8, 4));
        rig.step(decode(0), &[0, 1, 2, 3], PLAIN, "residents");
        let answer = rig.step(hybrid(0, rule), &[0, 1, 2, 3, 4, 5], PLAIN, &format!("{rule}"));
        assert_eq!(answer.slots, [0, 1, 2, 3, CPU, CPU], "{rule}");
        assert_eq!(copies(&rig), [], "{rule}");
        // One slot is left to the step: the lower id, as neither has been active before the other.
        let answer = rig.step(hybrid(0, rule), &[0, 1, 2, 5, 4], PLAIN, &format!("{rule}, three hits"));
        assert_eq!(answer.slots, [0, 1, 2, CPU, 3], "{rule}");
        rig.compare(&format!("{rule}"));
        rig.end();
    }
}

#[test]
fn c4_who_was_active_last_is_fetched_first() {
    let mut rig = Rig::new(13, one_pool(1, 8, 4));
    let steps: [(&[i64], &[i64]); 3] =
        [(&[0, 1, 2], &[0, CPU, CPU]), (&[0, 1, 3], &[0, 1, CPU]), (&[1, 3, 2], &[1, 2, CPU])];
    for (routes, slots) in steps {
        let answer = rig.step(hybrid(0, FetchRule::UpTo(1)), routes, PLAIN, &format!("{routes:?}"));
        assert_eq!(answer.slots, slots, "{routes:?}");
    }
    // 7 has been active and 5 has not: the lower id goes first only where that is asked for.
    rig.step(hybrid(0, FetchRule::UpTo(0)), &[7], PLAIN, "7 on the CPU");
    let fetch = Fetch { rule: FetchRule::UpTo(1), most: None };
    let lowest = Misses::Hybrid { fetch, order: FetchOrder::LowestId };
    assert_eq!(rig.step(Step { misses: lowest, ..decode(0) }, &[7, 5], PLAIN, "lowest id").slots, [CPU, 3]);
    assert_eq!(rig.step(hybrid(0, FetchRule::UpTo(1)), &[4, 7], PLAIN, "recency").slots, [CPU, 0]);
    rig.compare("recency");
    rig.end();
}
