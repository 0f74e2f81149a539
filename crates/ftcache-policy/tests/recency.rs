//! The order of victims against a scan over all slots, and the slot set against a sorted set.

use std::collections::BTreeSet;

use ftcache_policy::{BitSet, Recency, SlotId, sort_distinct, sort_first};
use ftcache_testkit::Rng;

/// Victims as numbers, with the stamps they had.
fn take(recency: &mut Recency, count: usize, step: u64) -> Vec<(u32, u64)> {
    let mut taken = Vec::new();
    let free_count = recency.take_victims(count, step, |slot, stamp| taken.push((slot.get(), stamp)));
    assert_eq!(free_count, taken.iter().filter(|(_, stamp)| *stamp == 0).count());
    taken
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
fn a_cool_slot_goes_right_after_the_free_ones() {
    let mut recency = Recency::new(5);
    take(&mut recency, 3, 2);
    take(&mut recency, 1, 3);
    recency.cool([3, 1].map(SlotId::new));
    recency.check().unwrap();
    assert_eq!(take(&mut recency, 4, 4), [(4, 0), (1, 1), (3, 1), (0, 2)]);
    recency.cool([4, 1].map(SlotId::new));
    // Used again, it is no more to go than others.
    assert_eq!(recency.touch(&[SlotId::new(1)], 5), 1);
    recency.check().unwrap();
    assert_eq!(take(&mut recency, 4, 6), [(4, 1), (2, 2), (0, 4), (3, 4)]);
}

#[test]
fn slots_of_the_first_step_tie_with_cool_ones() {
    let mut recency = Recency::new(3);
    take(&mut recency, 2, 1);
    take(&mut recency, 1, 2);
    recency.cool([SlotId::new(2)]);
    recency.check().unwrap();
    assert_eq!(take(&mut recency, 3, 3), [(0, 1), (1, 1), (2, 1)]);
}

#[test]
fn spared_slots_keep_their_places() {
    let mut recency = Recency::new(6);
    (2..8).for_each(|step| drop(take(&mut recency, 1, step)));
    recency.cool([SlotId::new(5)]);
    let spared = [5, 0, 2].iter().fold(BitSet::new(6), |mut spared, &slot| {
        spared.insert(slot);
        spared
    });
    let mut victims = Vec::new();
    assert_eq!(recency.take_victims_sparing(2, 8, &spared, |slot, stamp| victims.push((slot.get(), stamp))), 0);
    assert_eq!(victims, [(1, 3), (3, 5)]);
    recency.check().unwrap();
    assert_eq!(take(&mut recency, 4, 9), [(5, 1), (0, 2), (2, 4), (4, 6)]);
}

#[test]
fn a_pinned_slot_is_no_victim_and_unpinned_it_is_where_it_was() {
    let mut recency = Recency::new(4);
    (2..6).for_each(|step| drop(take(&mut recency, 1, step)));
    recency.pin(SlotId::new(0));
    recency.pin(SlotId::new(2));
    assert_eq!(recency.pinned_count(), 2);
    assert_eq!(take(&mut recency, 1, 6), [(1, 3)]);
    recency.check().unwrap();
    // Slot 0 has been passed over; slot 2 is still to come up.
    recency.unpin(SlotId::new(0));
    recency.unpin(SlotId::new(2));
    recency.check().unwrap();
    assert_eq!(take(&mut recency, 4, 7), [(0, 2), (2, 4), (3, 5), (1, 6)]);
}

#[test]
#[should_panic(expected = "slot 1 is in use and cannot be withheld")]
fn a_slot_in_use_is_not_withheld() {
    let mut recency = Recency::new(3);
    take(&mut recency, 2, 2);
    recency.release(SlotId::new(0));
    recency.withhold(2);
}

/// What a scan over all slots says.
struct Scan {
    stamps: Vec<u64>,
    pinned: Vec<bool>,
    withheld: usize,
}

impl Scan {
    /// The slots that may go, the next first.
    fn victims(&self, step: u64, spared: &BitSet) -> Vec<(u32, u64)> {
        let may_go = |&slot: &usize| self.stamps[slot] < step && !self.pinned[slot] && !spared.contains(slot);
        let mut slots: Vec<usize> = (self.withheld..self.stamps.len()).filter(may_go).collect();
        slots.sort_by_key(|&slot| (self.stamps[slot], slot));
        slots.into_iter().map(|slot| (slot as u32, self.stamps[slot])).collect()
    }

    fn used(&self) -> Vec<usize> {
        (0..self.stamps.len()).filter(|&slot| self.stamps[slot] > 0).collect()
    }
}

#[test]
fn the_order_is_that_of_a_scan() {
    for seed in 0..400 {
        let mut rng = Rng::new(seed);
        let slot_count = 1 + rng.below(90) as u32;
        let slots = slot_count as usize;
        let mut recency = Recency::new(slot_count);
        let mut scan = Scan { stamps: vec![0; slots], pinned: vec![false; slots], withheld: 0 };
        // Half of the runs have nothing but touches, victims and releases.
        let is_plain = rng.chance(1, 2);
        for step in 1..=60 {
            let at = format!("seed {seed} step {step}");
            // Hits in any order are used or spared, then victims are taken, as a step does; then this and that.
            let (mut spared, spares) = (BitSet::new(slots), !is_plain && rng.chance(1, 3));
            for _ in 0..rng.below(u64::from(slot_count)) {
                let slot = rng.below(u64::from(slot_count)) as usize;
                if scan.stamps[slot] == 0 {
                    continue;
                }
                if spares {
                    spared.insert(slot);
                    continue;
                }
                let touched = recency.touch(&[SlotId::from_index(slot)], step);
                assert_eq!(touched, usize::from(scan.stamps[slot] < step), "{at}");
                scan.stamps[slot] = step;
            }
            let mut wanted = scan.victims(step, &spared);
            wanted.truncate(rng.below(1 + wanted.len() as u64) as usize);
            if spares {
                let mut taken = Vec::new();
                let take = |slot: SlotId, stamp| taken.push((slot.get(), stamp));
                recency.take_victims_sparing(wanted.len(), step, &spared, take);
                assert_eq!(taken, wanted, "{at}");
            } else {
                assert_eq!(take(&mut recency, wanted.len(), step), wanted, "{at}");
            }
            wanted.iter().for_each(|&(slot, _)| scan.stamps[slot as usize] = step);
            let slot = rng.below(u64::from(slot_count)) as usize;
            let (id, is_used) = (SlotId::from_index(slot), scan.stamps[slot] > 0);
            match rng.below(if is_plain { 3 } else { 9 }) {
                0 => {
                    assert_eq!(recency.release(id), is_used, "{at}");
                    (scan.stamps[slot], scan.pinned[slot]) = (0, false);
                }
                3 | 4 if is_used => {
                    recency.cool([id]);
                    scan.stamps[slot] = 1;
                }
                5 if is_used => {
                    recency.pin(id);
                    scan.pinned[slot] = true;
                }
                6 => {
                    recency.unpin(id);
                    scan.pinned[slot] = false;
                }
                7 => {
                    // The slots below are freed and withheld, or those that were are handed out again.
                    let withheld = if scan.withheld > 0 { 0 } else { slot };
                    for freed in 0..withheld {
                        recency.release(SlotId::from_index(freed));
                        (scan.stamps[freed], scan.pinned[freed]) = (0, false);
                    }
                    recency.withhold(withheld as u32);
                    scan.withheld = withheld;
                }
                8 => {
                    // Begun anew with the stamps that there are.
                    let stamps: Vec<(SlotId, u64)> =
                        scan.used().iter().map(|&slot| (SlotId::from_index(slot), scan.stamps[slot])).collect();
                    recency = Recency::with_stamps(slot_count, &stamps);
                    scan.pinned.fill(false);
                    scan.withheld = 0;
                }
                _ => {}
            }
            recency.check().unwrap_or_else(|wrong| panic!("{at}: {wrong}"));
            let mut used = scan.used();
            assert_eq!(recency.free_count(), slots - used.len(), "{at}");
            assert_eq!(recency.pinned_count() as usize, scan.pinned.iter().filter(|&&pinned| pinned).count(), "{at}");
            used.sort_by_key(|&slot| (scan.stamps[slot], slot));
            let victims: Vec<usize> = recency.victims().iter().map(|(slot, _)| slot.index()).collect();
            assert_eq!(victims, used, "{at}");
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
            match rng.below(5) {
                0 | 1 => assert_eq!(set.insert(number), model.insert(number), "bound {bound} round {round}"),
                4 => assert_eq!(set.remove(number), model.remove(&number), "bound {bound} round {round}"),
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
fn what_is_removed_leaves_nothing_behind() {
    for number in [0, 63, 64, 4_095, 4_096, 299_999] {
        let mut set = BitSet::new(300_000);
        assert!(set.insert(number) && set.remove(number) && !set.remove(number));
        assert_eq!(set, BitSet::new(300_000), "{number}");
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
        let mut first: Vec<u32> = numbers.iter().copied().chain([0; 8]).collect();
        sort_first(&mut first, length, &mut scratch);
        assert_eq!(first[..length], wanted);
        sort_distinct(&mut numbers, &mut scratch);
        assert_eq!(numbers, wanted);
        assert!(scratch.is_empty());
    }
}

/// Those that go first under any rule, with the stamps they had; and how many were free, and how many in all.
fn take_idle(recency: &mut Recency, count: usize, step: u64, spared: Option<&BitSet>) -> (Vec<(u32, u64)>, usize) {
    let mut taken = Vec::new();
    let (free_count, all) = recency.take_idle(count, step, spared, |slot, stamp| taken.push((slot.get(), stamp)));
    assert_eq!(free_count, taken.iter().filter(|(_, stamp)| *stamp == 0).count());
    recency.check().unwrap();
    (taken, all)
}

#[test]
fn idle_slots_are_the_free_ones_and_then_those_of_stamp_1() {
    let mut recency = Recency::new(8);
    take(&mut recency, 6, 2);
    recency.cool([5, 0, 3, 1].map(SlotId::new));
    recency.pin(SlotId::new(3));
    let mut spared = BitSet::new(8);
    spared.insert(1);
    assert_eq!(take_idle(&mut recency, 3, 3, Some(&spared)), (vec![(6, 0), (7, 0), (0, 1)], 3));
    // 1 is spared and 3 is pinned; 2 and 4 have been used, so they are left to a rule.
    assert_eq!(take_idle(&mut recency, 3, 4, Some(&spared)), (vec![(5, 1)], 1));
    assert_eq!(take_idle(&mut recency, 3, 5, None), (vec![(1, 1)], 1));
    assert_eq!(take_idle(&mut recency, 3, 6, None), (vec![], 0));
    recency.unpin(SlotId::new(3));
    assert_eq!(take_idle(&mut recency, 3, 7, None), (vec![(3, 1)], 1));
    let stamps = [0, 1, 2, 3, 4, 5, 6, 7].map(|slot| recency.stamp(SlotId::new(slot)));
    assert_eq!(stamps, [3, 5, 2, 7, 2, 4, 3, 3]);
}

#[test]
fn in_the_first_step_only_free_slots_are_idle() {
    let mut recency = Recency::new(3);
    assert_eq!(take_idle(&mut recency, 2, Recency::COLD, None), (vec![(0, 0), (1, 0)], 2));
    // Those that it has taken have the stamp of the cold, and are its own.
    assert_eq!(take_idle(&mut recency, 3, Recency::COLD, None), (vec![(2, 0)], 1));
    assert_eq!(take_idle(&mut recency, 3, 2, None), (vec![(0, 1), (1, 1), (2, 1)], 3));
}

#[test]
fn a_slot_is_taken_from_wherever_it_stands() {
    let mut recency = Recency::new(5);
    for step in 2..7 {
        take(&mut recency, 1, step);
    }
    // 0 comes to be one of the oldest, which are known by then; 3 stands in the list, and 4 is the last.
    assert_eq!(take(&mut recency, 1, 7), [(0, 2)]);
    assert_eq!([3, 4, 3, 1].map(|slot| recency.take(SlotId::new(slot), 8)), [5, 6, 8, 3]);
    recency.check().unwrap();
    assert_eq!(recency.victims().iter().map(|(slot, _)| slot.get()).collect::<Vec<_>>(), [2, 0, 1, 3, 4]);
    assert_eq!(take(&mut recency, 3, 9), [(2, 4), (0, 7), (1, 8)]);
}
