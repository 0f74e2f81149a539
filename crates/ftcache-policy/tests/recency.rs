//! The order of victims against a scan over all slots, and the slot set against a sorted set.

use std::collections::BTreeSet;

use ftcache_policy::{Recency, SlotId, SlotSet};
use ftcache_testkit::Rng;

#[test]
fn free_slots_go_first_and_ascend() {
    let mut recency = Recency::new(3);
    let taken: Vec<u32> = (1..=3).map(|step| recency.take_victim(step).0.get()).collect();
    assert_eq!(taken, [0, 1, 2]);
    assert!(recency.release(SlotId::new(2)) && recency.release(SlotId::new(1)));
    assert!(!recency.release(SlotId::new(1)), "a free slot is not released again");
    assert_eq!(recency.take_victim(4), (SlotId::new(1), 0));
    assert_eq!(recency.take_victim(4), (SlotId::new(2), 0));
    assert_eq!(recency.take_victim(4), (SlotId::new(0), 1));
    recency.check().unwrap();
}

#[test]
fn ties_of_a_step_go_by_slot_whatever_the_order_of_touch() {
    let mut recency = Recency::new(4);
    for _ in 0..4 {
        recency.take_victim(1);
    }
    for slot in [3, 1, 2] {
        recency.touch(SlotId::new(slot), 2);
    }
    let order: Vec<u32> = recency.victims().iter().map(|(slot, _)| slot.get()).collect();
    assert_eq!(order, [0, 1, 2, 3]);
    assert_eq!(
        [3, 3, 3].map(|step| recency.take_victim(step)).map(|(slot, stamp)| (slot.get(), stamp)),
        [(0, 1), (1, 2), (2, 2)]
    );
}

#[test]
#[should_panic(expected = "every slot is in use by step 5")]
fn a_slot_of_this_step_is_never_a_victim() {
    let mut recency = Recency::new(1);
    recency.take_victim(5);
    recency.take_victim(5);
}

#[test]
fn the_order_is_that_of_a_scan() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let slot_count = 1 + rng.below(90) as u32;
        let mut recency = Recency::new(slot_count);
        let mut stamps = vec![0_u64; slot_count as usize];
        for step in 1..=60 {
            // Touches in any order, then victims, as a step does; now and then a slot is freed.
            for _ in 0..rng.below(u64::from(slot_count)) {
                let slot = rng.below(u64::from(slot_count)) as usize;
                if stamps[slot] > 0 {
                    recency.touch(SlotId::from_index(slot), step);
                    stamps[slot] = step;
                }
            }
            let open = stamps.iter().filter(|&&stamp| stamp < step).count();
            for _ in 0..rng.below(1 + open as u64) {
                let wanted = (0..stamps.len()).min_by_key(|&slot| (stamps[slot], slot)).unwrap();
                let given = recency.take_victim(step);
                assert_eq!(given, (SlotId::from_index(wanted), stamps[wanted]), "seed {seed} step {step}");
                stamps[wanted] = step;
            }
            if rng.chance(1, 3) {
                let slot = rng.below(u64::from(slot_count)) as usize;
                assert_eq!(recency.release(SlotId::from_index(slot)), stamps[slot] > 0, "seed {seed} step {step}");
                stamps[slot] = 0;
            }
            recency.check().unwrap_or_else(|wrong| panic!("seed {seed} step {step}: {wrong}"));
            let mut used: Vec<usize> = (0..stamps.len()).filter(|&slot| stamps[slot] > 0).collect();
            used.sort_by_key(|&slot| (stamps[slot], slot));
            let victims: Vec<usize> = recency.victims().iter().map(|(slot, _)| slot.index()).collect();
            assert_eq!(victims, used, "seed {seed} step {step}");
            assert_eq!(recency.free_count(), stamps.len() - used.len());
        }
    }
}

#[test]
fn a_slot_set_gives_up_its_lowest() {
    for slot_count in [0, 1, 63, 64, 65, 4_095, 4_096, 4_097, 300_000] {
        let mut set = SlotSet::full(slot_count);
        let mut model: BTreeSet<u32> = (0..slot_count).collect();
        let mut rng = Rng::new(u64::from(slot_count));
        let rounds = if slot_count > 5_000 { 2_000 } else { 3 * slot_count + 1 };
        for _ in 0..rounds {
            if slot_count > 0 && rng.chance(1, 3) {
                let slot = rng.below(u64::from(slot_count)) as u32;
                assert_eq!(set.contains(SlotId::new(slot)), model.contains(&slot));
                assert_eq!(set.insert(SlotId::new(slot)), model.insert(slot));
            } else {
                assert_eq!(set.pop_lowest().map(SlotId::get), model.pop_first());
            }
            assert_eq!((set.len(), set.is_empty()), (model.len(), model.is_empty()));
        }
    }
}
