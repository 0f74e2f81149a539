//! Large ones: layers whose workspace does not fit into shared memory, steps of tens of thousands of routes, a pool of
//! a million slots, and routes as a sort leaves them.

use ftcache_policy::FetchRule;
use ftcache_residency::{Cache, Step};
use ftcache_testkit::Rng;
use ftcache_transfer::IdWidth;

use crate::rig::{ABSENT, Form, Rig};
use crate::states::{Resident, decode, filled, fraction, hybrid, one_pool, prefill, span};

const PLAIN: Form = Form::PLAIN;

fn ids(rng: &mut Rng, count: usize, experts: u64) -> Vec<i64> {
    (0..count).map(|_| if rng.chance(1, 40) { ABSENT } else { rng.below(experts) as i64 }).collect()
}

/// One of each kind of step in turn.
fn kind(number: usize, layer: u32) -> Step {
    [decode(layer), hybrid(layer, FetchRule::Carry(fraction(0.6))), prefill(layer)][number % 3]
}

#[test]
fn a_workspace_is_in_shared_memory_or_in_device_memory() {
    for experts in [1023, 1024, 1025, 3000] {
        for threads in [64, 1024] {
            let mut rng = Rng::new(u64::from(experts));
            let mut rig = Rig::new(u64::from(experts), one_pool(2, experts, 600));
            rig.tables.set_threads(threads).unwrap();
            for number in 0..9 {
                let routes = ids(&mut rng, 400, u64::from(experts));
                let form = Form { map: number % 2 == 0, split: true, weight_bytes: 2, width: IdWidth::Eight, ..PLAIN };
                let at = format!("{experts} experts, {threads} threads, step {number}");
                rig.step(kind(number, number as u32 / 3 % 2), &routes, form, &at);
            }
            // The first and the last expert of both layers.
            for of in 0..2 {
                let last = i64::from(experts) - 1;
                rig.step(decode(of), &[last, 0, last, 1022], PLAIN, &format!("{experts} experts, ends of {of}"));
            }
            rig.compare(&format!("{experts} experts, {threads} threads"));
            rig.end();
        }
    }
}

#[test]
fn every_expert_of_a_layer_at_once() {
    for experts in [1024, 1025, 3000] {
        let mut rig = Rig::new(2, one_pool(2, experts, experts));
        let all: Vec<i64> = span(0, experts).into_iter().rev().collect();
        rig.step(decode(0), &all, PLAIN, &format!("{experts}, all free"));
        rig.step(decode(1), &all, PLAIN, &format!("{experts}, all others'"));
        rig.step(hybrid(0, FetchRule::UpTo(700)), &all, PLAIN, &format!("{experts}, 700 of them"));
        rig.compare(&format!("{experts} experts"));
        rig.end();
    }
}

#[test]
fn tens_of_thousands_of_routes_are_one_step() {
    // 64 experts of 1,024 requests; 512 of 128; and some more than a multiple of the threads.
    for (experts, requests, per_row) in [(64, 1024, 64), (512, 128, 512), (256, 259, 256)] {
        let mut rng = Rng::new(u64::from(experts));
        let count = requests * per_row;
        let mut rig = Rig::new(3, one_pool(2, experts, experts));
        let all: Vec<i64> = (0..count).map(|route| ((route * 13 + route / per_row) % experts) as i64).collect();
        let form = Form { per_row, map: true, ..PLAIN };
        rig.step(decode(0), &all, form, &format!("{count} routes, all of {experts}"));
        assert_eq!(rig.plan.miss_count(), experts as usize);
        rig.step(decode(0), &all, form, &format!("{count} routes, warm"));
        assert_eq!(rig.plan.miss_count(), 0);
        let some = ids(&mut rng, count as usize, u64::from(experts) / 3);
        let form = Form { per_row, split: true, weight_bytes: 2, in_place: false, ..PLAIN };
        rig.step(hybrid(1, FetchRule::UpTo(9)), &some, form, &format!("{count} routes, hybrid"));
        rig.compare(&format!("{count} routes"));
        rig.end();
    }
}

/// One request's routes stand in a row as wide as the layer: views of an arg-sort, the usual case.
#[test]
fn routes_may_be_a_view_of_a_sort() {
    for (experts, top_k) in [(256, 8), (60, 4), (512, 10)] {
        for width in [IdWidth::Four, IdWidth::Eight] {
            for in_place in [true, false] {
                let mut rng = Rng::new(u64::from(experts));
                let mut rig = Rig::new(4, one_pool(1, experts, 120));
                rig.tables.set_threads(128).unwrap();
                let form = Form { width, per_row: top_k, gap: experts - top_k, in_place, ..PLAIN };
                for number in 0..4 {
                    let requests = [1, 7, 12, 3][number];
                    let routes = ids(&mut rng, requests * top_k as usize, 100.min(u64::from(experts)));
                    rig.step(kind(number, 0), &routes, form, &format!("{experts} experts, {width:?}, step {number}"));
                }
                rig.compare(&format!("{experts} experts, {width:?}"));
                rig.end();
            }
        }
    }
}

/// Slots of a pool that the experts of a thousand layers fill, but for these; one more layer has none.
const FREE: [u32; 3] = [5, 777_777, 999_999];

fn a_million() -> Cache {
    const SIDE: u32 = 1000;
    let resident = |slot: u32| {
        // Stamps rise and fall over the pool, and come in groups of a few hundred.
        let stamp = u64::from(slot.wrapping_mul(2_654_435_761) >> 20) + 3;
        Resident { slot: slot as usize, expert: slot, stamp }
    };
    let in_use = (0..SIDE * SIDE).filter(|slot| !FREE.contains(slot));
    filled(one_pool(SIDE as usize + 1, SIDE, SIDE * SIDE), 5000, in_use.map(resident))
}

#[test]
fn a_pool_of_a_million_slots_is_one_pool() {
    let mut rig = Rig::new(5, a_million());
    let slots = |rig: &Rig| -> Vec<u32> { rig.plan.copies().iter().map(|copy| copy.slot.get()).collect() };
    rig.step(decode(777), &[777, 0, 999], PLAIN, "one miss, two hits");
    assert_eq!(slots(&rig), FREE[..1]);
    rig.step(prefill(1000), &span(100, 400), PLAIN, "two free, the oldest");
    assert!(FREE[1..].iter().all(|free| slots(&rig).contains(free)), "{}", rig.plan);
    rig.step(decode(1000), &span(450, 100), PLAIN, "those of stamp 1 first");
    rig.tables.reset(&mut rig.device, rig.stream).unwrap();
    rig.host.reset();
    rig.step(hybrid(500, FetchRule::UpTo(2)), &span(0, 3), PLAIN, "all free");
    rig.compare("a million, all free");
    rig.end();
}
