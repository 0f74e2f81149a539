//! The order of victims against a scan over all slots, and the slot set against a sorted set.

use std::collections::BTreeSet;

use ftcache_policy::{BitSet, Recency, SlotId, sort_distinct};
use ftcache_testkit::Rng;

/// Victims as numbers, with the stamps they had.
fn take(recency: &mut Recency, count: usize, step: u64) -> Vec<(u32, u64)> {
    let mut taken = vec![(SlotId::ABSENT, 0); count];
    let free_count = recency.take_victims(&mut taken, step);
    assert_eq!(free_count, taken.iter().filter(|(_, stamp)| *stamp == 0).count());
    taken.into_iter().map(|(slot, stamp)| (slot.get(), stamp)).collect()
}

#[test]
fn free_slots_go_first_and_ascend() {
    let mut recency = Recency::new(3);
    assert_eq!([1, 2, 3].map(|step| take(&mut recency, 1, step)), [[(0, 0)], [(1, 0)], [(2, 0)]]);
    assert!(recency.release(SlotId::new(2)) && recency.release(SlotId::new(1)));
    assert!(!recency.release(SlotId::new(1)), "a free slot is not released again");
    assert_eq!(take(&mut recency, 3, 4), [(1, 0), (2, 0), (0, 1)]);
    recency.check().unwrap();
}

#[test]
fn ties_of_a_step_go_by_slot_whatever_the_order_of_touch() {
    let mut recency = Recency::new(4);
    take(&mut recency, 4, 1);
    assert_eq!(recency.touch(&[3, 1, 3, 2, 1].map(SlotId::new), 2), 3);
    let order: Vec<u32> = recency.victims().iter().map(|(slot, _)| slot.get()).collect();
    assert_eq!(order, [0, 1, 2, 3]);
    assert_eq!(take(&mut recency, 3, 3), [(0, 1), (1, 2), (2, 2)]);
}

#[test]
fn one_of_the_oldest_that_is_used_again_is_no_victim() {
    let mut recency = Recency::new(4);
    take(&mut recency, 4, 1);
    // Slot 0 goes, so 1 to 3 are known to be next; then 1 is used and 2 is freed.
    assert_eq!(take(&mut recency, 1, 2), [(0, 1)]);
    recency.touch(&[SlotId::new(1)], 3);
    recency.release(SlotId::new(2));
    recency.check().unwrap();
    assert_eq!(take(&mut recency, 4, 4), [(2, 0), (3, 1), (0, 2), (1, 3)]);
    recency.check().unwrap();
}

#[test]
#[should_panic(expected = "every slot is in use by step 5")]
fn a_slot_of_this_step_is_never_a_victim() {
    let mut recency = Recency::new(1);
    take(&mut recency, 1, 5);
    take(&mut recency, 1, 5);
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
                    let touched = recency.touch(&[SlotId::from_index(slot)], step);
                    assert_eq!(touched, usize::from(stamps[slot] < step), "seed {seed} step {step}");
                    stamps[slot] = step;
                }
            }
            let open = stamps.iter().filter(|&&stamp| stamp < step).count();
            let count = rng.below(1 + open as u64) as usize;
            let mut wanted: Vec<(u32, u64)> = Vec::new();
            for _ in 0..count {
                let victim = (0..stamps.len()).min_by_key(|&slot| (stamps[slot], slot)).unwrap();
                wanted.push((victim as u32, stamps[victim]));
                stamps[victim] = step;
            }
            assert_eq!(take(&mut recency, count, step), wanted, "seed {seed} step {step}");
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
fn a_bit_set_gives_up_its_lowest() {
    for bound in [0, 1, 63, 64, 65, 4_095, 4_096, 4_097, 300_000] {
        let mut rng = Rng::new(bound);
        let (mut set, mut model) = match rng.chance(1, 2) {
            true => (BitSet::full(bound as usize), (0..bound as usize).collect()),
            false => (BitSet::new(bound as usize), BTreeSet::new()),
        };
        for round in 0..bound.min(1_000) * 3 {
            let number = rng.below(bound) as usize;
            match rng.below(4) {
                0 | 1 => assert_eq!(set.insert(number), model.insert(number), "bound {bound} round {round}"),
                2 => {
                    let most = rng.below(200) as usize;
                    let mut taken = Vec::new();
                    let count = set.take_lowest(most, |number| taken.push(number));
                    let wanted: Vec<usize> = std::iter::from_fn(|| model.pop_first()).take(most).collect();
                    assert_eq!((count, &taken), (wanted.len(), &wanted), "bound {bound} round {round}");
                }
                _ => assert_eq!(set.contains(number), model.contains(&number), "bound {bound} round {round}"),
            }
            assert_eq!((set.len(), set.is_empty()), (model.len(), model.is_empty()), "bound {bound} round {round}");
        }
        set.clear();
        assert_eq!(set, BitSet::new(bound as usize), "bound {bound}");
    }
}

#[test]
fn distinct_numbers_are_sorted_at_every_length() {
    let mut rng = Rng::new(1);
    let mut scratch = BitSet::new(500);
    for length in (0..40).chain([200, 500]) {
        let mut numbers: Vec<u32> = (0..500).collect();
        for index in 0..length {
            numbers.swap(index, index + rng.below(500 - index as u64) as usize);
        }
        numbers.truncate(length);
        let mut wanted = numbers.clone();
        wanted.sort_unstable();
        sort_distinct(&mut numbers, &mut scratch);
        assert_eq!(numbers, wanted);
        assert!(scratch.is_empty());
    }
}
