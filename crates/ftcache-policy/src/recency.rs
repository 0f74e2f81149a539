//! The order of victims: free slots first, then last step, then slot.
//!
//! Slots in use stand in a list whose stamps never fall from head to tail. Stamping is an unlink and an append, so a
//! step costs what its slots cost. Slots of one stamp stand as they came: only when they have come to the head and a
//! victim is wanted are they taken off and put in slot order, which is once per stamping at the most. Most never get
//! there, because a later step stamps them again first.

use crate::bit_set::sort_distinct;
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
/// Each slot is in one of three places: `free` iff its stamp is 0, what is left of `oldest` iff its stamp is up to
/// `oldest_stamp`, else the list.
#[derive(Debug, Clone)]
pub struct Recency {
    /// One for each slot, and the sentinel.
    nodes: Vec<Node>,
    free: BitSet,
    /// The slots of the least stamps, ascending by stamp and slot. Those before `oldest_next` are gone, and so is one
    /// whose stamp is now 0 or above `oldest_stamp`.
    oldest: Vec<u32>,
    oldest_next: usize,
    /// The highest stamp that has come to `oldest`: below every stamp in the list.
    oldest_stamp: u64,
    /// Scratch for sorting, empty.
    order: BitSet,
}

/// The sentinel's stamp, which no slot has.
const NO_STEP: u64 = u64::MAX;

/// How many slots are taken off the list at once, that a step with few misses need not do it.
const OLDEST_LEAST: usize = 64;

impl Recency {
    /// `slot_count` free slots.
    pub fn new(slot_count: u32) -> Self {
        let mut nodes = vec![Node { stamp: 0, previous: 0, next: 0 }; slot_count as usize];
        nodes.push(Node { stamp: NO_STEP, previous: slot_count, next: slot_count });
        Self {
            nodes,
            free: BitSet::full(slot_count as usize),
            oldest: Vec::with_capacity(slot_count as usize),
            oldest_next: 0,
            oldest_stamp: 0,
            order: BitSet::new(slot_count as usize),
        }
    }

    /// Slots of the pool.
    #[inline]
    pub fn slot_count(&self) -> u32 {
        self.sentinel()
    }

    /// Slots that hold no expert.
    pub fn free_count(&self) -> usize {
        self.free.len()
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

    /// Takes the slots that go first, as many as there is room for, and stamps them with `step`. Writes each with the
    /// stamp it had: free slots ascending (stamp 0), then those in use by stamp and slot. Returns how many were free.
    ///
    /// # Panics
    ///
    /// If all slots that are not stamped with `step` are fewer: a step must be counted before it is admitted.
    #[inline]
    pub fn take_victims(&mut self, victims: &mut [(SlotId, u64)], step: u64) -> usize {
        let mut taken = 0;
        if !self.free.is_empty() {
            let mut tail = Tail::new(&mut self.nodes);
            self.free.take_lowest(victims.len(), |slot| {
                tail.append(slot as u32, step);
                victims[taken] = (SlotId::from_index(slot), 0);
                taken += 1;
            });
            tail.close();
        }
        let free_count = taken;
        while taken < victims.len() {
            if self.oldest_next == self.oldest.len() {
                self.take_oldest_off(step);
            }
            let oldest_stamp = self.oldest_stamp;
            let mut tail = Tail::new(&mut self.nodes);
            let left = &self.oldest[self.oldest_next..];
            let mut passed = 0;
            for (&slot, passes) in left.iter().zip(1..) {
                passed = passes;
                let stamp = tail.nodes[slot as usize].stamp;
                // Used again since it came up. None is free here, since the free ones went before.
                if stamp > oldest_stamp {
                    continue;
                }
                tail.append(slot, step);
                victims[taken] = (SlotId::new(slot), stamp);
                taken += 1;
                if taken == victims.len() {
                    break;
                }
            }
            self.oldest_next += passed;
            tail.close();
        }
        free_count
    }

    /// Makes a slot free; whether it was in use.
    ///
    /// # Panics
    ///
    /// If there is no such slot.
    pub fn release(&mut self, slot: SlotId) -> bool {
        assert!(slot.get() < self.slot_count(), "slot {slot} of {}", self.slot_count());
        if !self.free.insert(slot.index()) {
            return false;
        }
        let Node { stamp, previous, next } = self.nodes[slot.index()];
        if stamp > self.oldest_stamp {
            join(&mut self.nodes, previous, next);
        }
        self.nodes[slot.index()].stamp = 0;
        true
    }

    /// Slots in use with their stamps, the next victim first: the order in which they would go.
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
        let old = |stamp: u64| stamp != 0 && stamp <= self.oldest_stamp;
        let left = self.oldest[self.oldest_next..].iter().map(|&slot| (self.nodes[slot as usize].stamp, slot));
        let left: Vec<(u64, u32)> = left.filter(|&(stamp, _)| old(stamp)).collect();
        if !left.is_sorted() || !self.order.is_empty() {
            return Err(format!("the oldest are {left:?}, with {} left in scratch", self.order.len()));
        }
        for (slot, node) in self.nodes[..self.slot_count() as usize].iter().enumerate() {
            let in_oldest = left.contains(&(node.stamp, slot as u32));
            let places = (self.free.contains(slot), in_oldest, in_list.contains(slot));
            let right = (node.stamp == 0, old(node.stamp), node.stamp > self.oldest_stamp);
            if places != right {
                return Err(format!("slot {slot} with stamp {} is in (free, oldest, list) {places:?}", node.stamp));
            }
        }
        Ok(())
    }

    #[inline]
    fn sentinel(&self) -> u32 {
        (self.nodes.len() - 1) as u32
    }

    /// Takes the slots of the least stamps off the list, some groups of one stamp, each put in slot order.
    fn take_oldest_off(&mut self, step: u64) {
        let sentinel = self.sentinel();
        let nodes = &mut self.nodes[..];
        let mut at = nodes[sentinel as usize].next;
        let mut stamp = nodes[at as usize].stamp;
        assert!(stamp < step, "every slot is in use by step {step}");
        self.oldest.clear();
        self.oldest_next = 0;
        while self.oldest.len() < OLDEST_LEAST && stamp < step {
            let first = self.oldest.len();
            // The sentinel's stamp is above every step, so both walks end there.
            while nodes[at as usize].stamp == stamp {
                self.oldest.push(at);
                at = nodes[at as usize].next;
            }
            sort_distinct(&mut self.oldest[first..], &mut self.order);
            self.oldest_stamp = stamp;
            stamp = nodes[at as usize].stamp;
        }
        join(nodes, sentinel, at);
    }
}
