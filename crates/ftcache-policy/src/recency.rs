//! The order of victims: free slots first, then last step, then slot.
//!
//! Slots in use stand in a list whose stamps never fall from head to tail. Stamping is an unlink and an append, so a
//! step costs what its slots cost. Slots of one stamp stand as they came: only when they have come to the head and a
//! victim is wanted are they taken off and put in slot order, which is once per stamping at the most. Most never get
//! there, because a later step stamps them again first.
//!
//! Stamp 1 is for slots that are to go first of all that are in use, whenever that is said of them: they are a set,
//! and no place in the list has to be found. A pinned slot is passed over when its turn comes, once, and is in no
//! order then until it is used again or unpinned: what is pinned costs nothing.

use crate::bit_set::{SORT_LANES, sort_first};
use crate::{BitSet, SlotId};

/// A place in the list. The sentinel, one past the last slot, closes the ring.
#[derive(Debug, Clone, Copy)]
struct Node {
    /// Step that last used the slot; 0 iff it is free.
    stamp: u64,
    previous: u32,
    next: u32,
}

/// Makes two nodes neighbours.
#[inline]
fn join(nodes: &mut [Node], previous: u32, next: u32) {
    nodes[previous as usize].next = next;
    nodes[next as usize].previous = previous;
}

/// The list while a step appends to it. The nodes' bounds and the last slot stay in registers; the sentinel learns of
/// the last slot at the end.
struct Tail<'a> {
    nodes: &'a mut [Node],
    sentinel: u32,
    last: u32,
}

impl<'a> Tail<'a> {
    #[inline]
    fn new(nodes: &'a mut [Node]) -> Self {
        let sentinel = nodes.len() as u32 - 1;
        let last = nodes[sentinel as usize].previous;
        Self { nodes, sentinel, last }
    }

    /// Takes a slot with these neighbours off the list.
    #[inline]
    fn unlink(&mut self, slot: u32, previous: u32, next: u32) {
        join(self.nodes, previous, next);
        self.last = if slot == self.last { previous } else { self.last };
    }

    /// Puts a slot that is in no list behind the last.
    #[inline]
    fn append(&mut self, slot: u32, stamp: u64) {
        self.nodes[slot as usize] = Node { stamp, previous: self.last, next: self.sentinel };
        self.nodes[self.last as usize].next = slot;
        self.last = slot;
    }

    #[inline]
    fn close(self) {
        self.nodes[self.sentinel as usize].previous = self.last;
    }
}

/// The recency of one pool's slots.
///
/// Each slot is in one of four places: `free` (or withheld) iff its stamp is 0, `cold` iff it is [`COLD`](Self::COLD),
/// what is left of `oldest` iff its stamp is up to `oldest_stamp`, else the list. A pinned slot may be missing from
/// `cold` and `oldest`.
#[derive(Debug, Clone)]
pub struct Recency {
    /// One for each slot, and the sentinel.
    nodes: Vec<Node>,
    free: BitSet,
    /// Slots below this are free and not in `free`: they are not handed out.
    withheld: u32,
    /// Holds every unpinned slot stamped `COLD`. One with another stamp is gone.
    cold: BitSet,
    /// The slots of the least stamps, ascending by stamp and slot, then room, so that sorting has what it asks for.
    /// Those before `oldest_next` are gone, and so is one whose stamp is now up to `COLD` or above `oldest_stamp`.
    oldest: Vec<u32>,
    oldest_next: usize,
    oldest_end: usize,
    /// The highest stamp that has come to `oldest`: below every stamp in the list, and at least `COLD`.
    oldest_stamp: u64,
    pinned: BitSet,
    /// Scratch for sorting, empty.
    order: BitSet,
}

/// The sentinel's stamp, which no slot has.
const NO_STEP: u64 = u64::MAX;

/// How many slots are taken off the list at once, that a step with few misses need not do it.
const OLDEST_LEAST: usize = 64;

impl Recency {
    /// The stamp of slots that go right after the free ones.
    pub const COLD: u64 = 1;

    /// The last step that can be counted.
    pub const LAST_STEP: u64 = NO_STEP - 1;

    /// `slot_count` free slots.
    pub fn new(slot_count: u32) -> Self {
        let mut nodes = vec![Node { stamp: 0, previous: 0, next: 0 }; slot_count as usize];
        nodes.push(Node { stamp: NO_STEP, previous: slot_count, next: slot_count });
        let slots = slot_count as usize;
        Self {
            nodes,
            free: BitSet::full(slots),
            withheld: 0,
            cold: BitSet::new(slots),
            oldest: vec![0; slots + SORT_LANES],
            oldest_next: 0,
            oldest_end: 0,
            oldest_stamp: Self::COLD,
            pinned: BitSet::new(slots),
            order: BitSet::new(slots),
        }
    }

    /// `slot_count` slots, of which these are in use with these stamps, in any order; the others are free.
    ///
    /// # Panics
    ///
    /// If a slot is named twice or is not below `slot_count`, or a stamp is 0.
    pub fn with_stamps(slot_count: u32, stamps: &[(SlotId, u64)]) -> Self {
        let mut recency = Self::new(slot_count);
        let mut used = stamps.to_vec();
        used.sort_unstable_by_key(|&(slot, stamp)| (stamp, slot));
        for (slot, stamp) in used {
            assert!(stamp > 0, "slot {slot} is in use and has no stamp");
            assert!(recency.free.remove(slot.index()), "slot {slot} is used twice");
            if stamp == Self::COLD {
                recency.nodes[slot.index()].stamp = stamp;
                recency.cold.insert(slot.index());
            } else {
                let mut tail = Tail::new(&mut recency.nodes);
                tail.append(slot.get(), stamp);
                tail.close();
            }
        }
        recency
    }

    /// Slots of the pool.
    #[inline]
    pub fn slot_count(&self) -> u32 {
        self.sentinel()
    }

    /// Slots that hold no expert, those that are withheld included.
    pub fn free_count(&self) -> usize {
        self.withheld as usize + self.free.len()
    }

    /// Slots below this one are not handed out.
    #[inline]
    pub fn withheld(&self) -> u32 {
        self.withheld
    }

    /// Slots in use that are never victims.
    #[inline]
    pub fn pinned_count(&self) -> u32 {
        self.pinned.len() as u32
    }

    /// Whether a slot is pinned.
    #[inline]
    pub fn is_pinned(&self, slot: SlotId) -> bool {
        self.pinned.contains(slot.index())
    }

    /// Step that last used `slot`; 0 if it is free.
    #[inline]
    pub fn stamp(&self, slot: SlotId) -> u64 {
        self.nodes[slot.index()].stamp
    }

    /// Marks slots that are in use as used by `step`. Returns how many this step had not used before.
    ///
    /// No stamp given before may be above `step`.
    #[inline]
    pub fn touch(&mut self, slots: &[SlotId], step: u64) -> usize {
        let mut tail = Tail::new(&mut self.nodes);
        let mut touched = 0;
        for slot in slots {
            let Node { stamp, previous, next } = tail.nodes[slot.index()];
            debug_assert_ne!(stamp, 0, "slot {slot} is free");
            if stamp == step {
                continue;
            }
            if stamp > self.oldest_stamp {
                tail.unlink(slot.get(), previous, next);
            }
            tail.append(slot.get(), step);
            touched += 1;
        }
        tail.close();
        touched
    }

    /// Makes slots that are in use the next to go after the free ones.
    pub fn cool(&mut self, slots: impl IntoIterator<Item = SlotId>) {
        for slot in slots {
            let Node { stamp, previous, next } = self.nodes[slot.index()];
            debug_assert_ne!(stamp, 0, "slot {slot} is free");
            if stamp > self.oldest_stamp {
                join(&mut self.nodes, previous, next);
            }
            self.nodes[slot.index()].stamp = Self::COLD;
            self.cold.insert(slot.index());
        }
    }

    /// Takes the `count` slots that go first, stamps them with `step`, and hands each to `each` with the stamp it had:
    /// free slots ascending (stamp 0), then those in use by stamp and slot. Returns how many were free. None is pinned
    /// or withheld.
    ///
    /// # Panics
    ///
    /// If all slots that are not stamped with `step` are fewer: a step must be counted before it is admitted.
    #[inline]
    pub fn take_victims(&mut self, count: usize, step: u64, mut each: impl FnMut(SlotId, u64)) -> usize {
        let free_count = self.take_free(count, step, &mut each);
        let mut left = count - free_count;
        if left > 0 && !self.cold.is_empty() {
            left -= self.take_cold(left, step, None, &mut each);
        }
        if left > 0 {
            if self.pinned.is_empty() {
                self.take_oldest(left, step, each);
            } else {
                self.take_oldest_sparing(left, step, None, each);
            }
        }
        free_count
    }

    /// As [`take_victims`](Self::take_victims), but none of `spared`, which keep their places.
    ///
    /// # Panics
    ///
    /// As [`take_victims`](Self::take_victims).
    pub fn take_victims_sparing(
        &mut self,
        count: usize,
        step: u64,
        spared: &BitSet,
        mut each: impl FnMut(SlotId, u64),
    ) -> usize {
        let free_count = self.take_free(count, step, &mut each);
        let mut left = count - free_count;
        if left > 0 {
            left -= self.take_cold(left, step, Some(spared), &mut each);
        }
        if left > 0 {
            self.take_oldest_sparing(left, step, Some(spared), each);
        }
        free_count
    }

    /// Takes up to `count` slots that go first under any rule, free ones and those of stamp [`COLD`](Self::COLD), but
    /// none of `spared`; otherwise as [`take_victims`](Self::take_victims). Returns how many were free, and how many
    /// there were in all.
    pub fn take_idle(
        &mut self,
        count: usize,
        step: u64,
        spared: Option<&BitSet>,
        mut each: impl FnMut(SlotId, u64),
    ) -> (usize, usize) {
        let free_count = self.take_free(count, step, &mut each);
        let cold_count = self.take_cold(count - free_count, step, spared, each);
        (free_count, free_count + cold_count)
    }

    /// Takes a slot that is in use and stamps it with `step`, whenever it was to go. Returns the stamp that it had.
    ///
    /// No stamp given before may be above `step`.
    pub fn take(&mut self, slot: SlotId, step: u64) -> u64 {
        let stamp = self.stamp(slot);
        self.touch(&[slot], step);
        stamp
    }

    #[inline]
    fn take_free(&mut self, most: usize, step: u64, mut each: impl FnMut(SlotId, u64)) -> usize {
        if self.free.is_empty() {
            return 0;
        }
        if step == Self::COLD {
            // The first step of all: its stamp is the one that has no place in the list.
            return self.free.take_lowest(most, |slot| {
                self.nodes[slot].stamp = step;
                self.cold.insert(slot);
                each(SlotId::from_index(slot), 0);
            });
        }
        let mut tail = Tail::new(&mut self.nodes);
        let taken = self.free.take_lowest(most, |slot| {
            tail.append(slot as u32, step);
            each(SlotId::from_index(slot), 0);
        });
        tail.close();
        taken
    }

    #[inline(never)]
    fn take_cold(
        &mut self,
        most: usize,
        step: u64,
        spared: Option<&BitSet>,
        mut each: impl FnMut(SlotId, u64),
    ) -> usize {
        if step == Self::COLD {
            return 0;
        }
        let mut taken = 0;
        let mut tail = Tail::new(&mut self.nodes);
        while taken < most && !self.cold.is_empty() {
            self.cold.take_lowest(1, |slot| {
                if tail.nodes[slot].stamp != Self::COLD || self.pinned.contains(slot) {
                    return;
                }
                if spared.is_some_and(|spared| spared.contains(slot)) {
                    self.order.insert(slot);
                    return;
                }
                tail.append(slot as u32, step);
                each(SlotId::from_index(slot), Self::COLD);
                taken += 1;
            });
        }
        tail.close();
        let cold = &mut self.cold;
        self.order.take_lowest(usize::MAX, |slot| {
            cold.insert(slot);
        });
        taken
    }

    /// Whether a slot of `oldest` is no longer there: it is free, cold or has been used since.
    #[inline]
    fn is_gone(stamp: u64, oldest_stamp: u64) -> bool {
        stamp.wrapping_sub(Self::COLD + 1) >= oldest_stamp - Self::COLD
    }

    #[inline]
    fn take_oldest(&mut self, mut count: usize, step: u64, mut each: impl FnMut(SlotId, u64)) {
        while count > 0 {
            if self.oldest_next == self.oldest_end {
                self.take_oldest_off(0, step);
            }
            let oldest_stamp = self.oldest_stamp;
            let mut tail = Tail::new(&mut self.nodes);
            let left = &self.oldest[self.oldest_next..self.oldest_end];
            let mut passed = 0;
            for (&slot, passes) in left.iter().zip(1..) {
                passed = passes;
                let stamp = tail.nodes[slot as usize].stamp;
                if Self::is_gone(stamp, oldest_stamp) {
                    continue;
                }
                tail.append(slot, step);
                each(SlotId::new(slot), stamp);
                count -= 1;
                if count == 0 {
                    break;
                }
            }
            self.oldest_next += passed;
            tail.close();
        }
    }

    /// As `take_oldest`, passing pinned slots over, which leave `oldest`, and spared ones, which stay.
    #[inline(never)]
    fn take_oldest_sparing(
        &mut self,
        mut count: usize,
        step: u64,
        spared: Option<&BitSet>,
        mut each: impl FnMut(SlotId, u64),
    ) {
        // Those that stay are gathered at the front of what has been passed.
        let mut kept = 0;
        while count > 0 {
            if self.oldest_next == self.oldest_end {
                self.take_oldest_off(kept, step);
            }
            let slot = self.oldest[self.oldest_next];
            self.oldest_next += 1;
            let stamp = self.nodes[slot as usize].stamp;
            if Self::is_gone(stamp, self.oldest_stamp) || self.pinned.contains(slot as usize) {
                continue;
            }
            if spared.is_some_and(|spared| spared.contains(slot as usize)) {
                self.oldest[kept] = slot;
                kept += 1;
                continue;
            }
            let mut tail = Tail::new(&mut self.nodes);
            tail.append(slot, step);
            tail.close();
            each(SlotId::new(slot), stamp);
            count -= 1;
        }
        let first = self.oldest_next - kept;
        self.oldest.copy_within(..kept, first);
        self.oldest_next = first;
    }

    /// Makes a slot free; whether it was in use.
    ///
    /// # Panics
    ///
    /// If there is no such slot.
    pub fn release(&mut self, slot: SlotId) -> bool {
        assert!(slot.get() < self.slot_count(), "slot {slot} of {}", self.slot_count());
        let Node { stamp, previous, next } = self.nodes[slot.index()];
        if stamp == 0 {
            return false;
        }
        if stamp > self.oldest_stamp {
            join(&mut self.nodes, previous, next);
        }
        self.nodes[slot.index()].stamp = 0;
        self.pinned.remove(slot.index());
        self.free.insert(slot.index());
        true
    }

    /// Hands out no slot below `below`, all of which must be free, until another call.
    ///
    /// # Panics
    ///
    /// If one of them is in use, or there are fewer slots.
    pub fn withhold(&mut self, below: u32) {
        for slot in 0..self.withheld as usize {
            self.free.insert(slot);
        }
        for slot in 0..below as usize {
            assert!(self.free.remove(slot), "slot {slot} is in use and cannot be withheld");
        }
        self.withheld = below;
    }

    /// Makes a slot that is in use one that is never a victim, until it is released or unpinned.
    pub fn pin(&mut self, slot: SlotId) {
        debug_assert_ne!(self.stamp(slot), 0, "slot {slot} is free");
        self.pinned.insert(slot.index());
    }

    /// Makes a slot a victim like others again, by the stamp that it has.
    pub fn unpin(&mut self, slot: SlotId) {
        if !self.pinned.remove(slot.index()) {
            return;
        }
        let stamp = self.stamp(slot);
        if stamp == Self::COLD {
            self.cold.insert(slot.index());
        } else if stamp <= self.oldest_stamp {
            // Its turn may have come and gone while it was pinned.
            let (nodes, oldest_stamp) = (&self.nodes, self.oldest_stamp);
            let key = |slot: u32| (nodes[slot as usize].stamp, slot);
            let mut kept = 0;
            for index in self.oldest_next..self.oldest_end {
                let slot = self.oldest[index];
                if !Self::is_gone(nodes[slot as usize].stamp, oldest_stamp) {
                    self.oldest[kept] = slot;
                    kept += 1;
                }
            }
            if let Err(place) = self.oldest[..kept].binary_search_by_key(&key(slot.get()), |&slot| key(slot)) {
                self.oldest.copy_within(place..kept, place + 1);
                self.oldest[place] = slot.get();
                kept += 1;
            }
            (self.oldest_next, self.oldest_end) = (0, kept);
        }
    }

    /// Slots in use with their stamps, ascending by stamp and slot: the order in which they would go, but for pinned
    /// ones.
    pub fn victims(&self) -> Vec<(SlotId, u64)> {
        let used = |&(_, node): &(usize, &Node)| node.stamp != 0 && node.stamp != NO_STEP;
        let slots = self.nodes.iter().enumerate().filter(used);
        let mut victims: Vec<_> = slots.map(|(slot, node)| (SlotId::from_index(slot), node.stamp)).collect();
        victims.sort_by_key(|&(slot, stamp)| (stamp, slot));
        victims
    }

    /// Recomputes what must hold from the raw state; for tests.
    ///
    /// # Errors
    ///
    /// The first thing found wrong.
    pub fn check(&self) -> Result<(), String> {
        let mut in_list = BitSet::new(self.nodes.len());
        let mut at = self.sentinel();
        let mut stamp = 0;
        loop {
            let next = self.nodes[at as usize].next;
            if self.nodes[next as usize].previous != at {
                return Err(format!("slot {next} does not point back to slot {at}"));
            }
            if next == self.sentinel() {
                break;
            }
            let node = self.nodes[next as usize];
            if node.stamp < stamp || node.stamp == 0 {
                return Err(format!("slot {next} has stamp {} after {stamp}", node.stamp));
            }
            in_list.insert(next as usize);
            stamp = node.stamp;
            at = next;
        }
        let old = |stamp: u64| !Self::is_gone(stamp, self.oldest_stamp);
        let left =
            self.oldest[self.oldest_next..self.oldest_end].iter().map(|&slot| (self.nodes[slot as usize].stamp, slot));
        let left: Vec<(u64, u32)> = left.filter(|&(stamp, _)| old(stamp)).collect();
        if !left.is_sorted() || !self.order.is_empty() {
            return Err(format!("the oldest are {left:?}, with {} left in scratch", self.order.len()));
        }
        for (slot, node) in self.nodes[..self.slot_count() as usize].iter().enumerate() {
            let Node { stamp, .. } = *node;
            let withheld = slot < self.withheld as usize;
            let pinned = self.pinned.contains(slot);
            // A pinned slot may have been passed over.
            let in_cold = stamp == Self::COLD && (self.cold.contains(slot) || pinned);
            let in_oldest = old(stamp) && (left.contains(&(stamp, slot as u32)) || pinned);
            let places = (self.free.contains(slot), in_cold, in_oldest, in_list.contains(slot));
            let right = (stamp == 0 && !withheld, stamp == Self::COLD, old(stamp), stamp > self.oldest_stamp);
            if places != right || (pinned || withheld) && (stamp == 0) != withheld {
                return Err(format!(
                    "slot {slot} with stamp {stamp} is in (free, cold, oldest, list) {places:?}, pinned {pinned}, \
                     withheld {withheld}"
                ));
            }
        }
        Ok(())
    }

    #[inline]
    fn sentinel(&self) -> u32 {
        (self.nodes.len() - 1) as u32
    }

    /// Takes the slots of the least stamps off the list, some groups of one stamp, each put in slot order, behind the
    /// first `kept` of `oldest`.
    fn take_oldest_off(&mut self, kept: usize, step: u64) {
        let sentinel = self.sentinel();
        let nodes = &mut self.nodes[..];
        let mut at = nodes[sentinel as usize].next;
        let mut stamp = nodes[at as usize].stamp;
        assert!(stamp < step, "every slot is in use by step {step}");
        let mut end = kept;
        self.oldest_next = kept;
        while end < kept + OLDEST_LEAST && stamp < step {
            let first = end;
            // The sentinel's stamp is above every step, so both walks end there.
            while nodes[at as usize].stamp == stamp {
                self.oldest[end] = at;
                end += 1;
                at = nodes[at as usize].next;
            }
            sort_first(&mut self.oldest[first..], end - first, &mut self.order);
            self.oldest_stamp = stamp;
            stamp = nodes[at as usize].stamp;
        }
        self.oldest_end = end;
        join(nodes, sentinel, at);
    }
}
