//! The order of victims: free slots first, then last step, then slot.
//!
//! Stamped slots stand in a list whose stamps never fall from head to tail. Stamping is an unlink and an append, so a
//! step costs what its slots cost. Slots of one stamp stand as they came; they are put in slot order only when they
//! have reached the head and a victim is wanted, which is once per stamping at the most. Most never get there, because
//! a later step stamps them again first.

use crate::{SlotId, SlotSet};

/// A place in the list. The sentinel, one past the last slot, closes the ring.
#[derive(Debug, Clone, Copy)]
struct Node {
    /// Step that last used the slot; 0 iff it is free, and then the node is in no list.
    stamp: u64,
    previous: u32,
    next: u32,
}

/// The recency of one pool's slots.
#[derive(Debug, Clone)]
pub struct Recency {
    nodes: Vec<Node>,
    free: SlotSet,
    /// The slots of this stamp at the head of the list are in slot order.
    sorted_stamp: u64,
    /// Reused for sorting; has room for every slot.
    group: Vec<u32>,
}

impl Recency {
    /// `slot_count` free slots.
    pub fn new(slot_count: u32) -> Self {
        let mut nodes = vec![Node { stamp: 0, previous: 0, next: 0 }; slot_count as usize];
        nodes.push(Node { stamp: u64::MAX, previous: slot_count, next: slot_count });
        Self { nodes, free: SlotSet::full(slot_count), sorted_stamp: 0, group: Vec::with_capacity(slot_count as usize) }
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

    /// Marks a slot that is in use as used by `step`, which must not be below any stamp given before.
    #[inline]
    pub fn touch(&mut self, slot: SlotId, step: u64) {
        debug_assert_ne!(self.stamp(slot), 0, "slot {slot} is free");
        self.unlink(slot.get());
        self.append(slot.get(), step);
    }

    /// Takes the slot that goes first and stamps it with `step`: the lowest free slot, else the lowest of the least
    /// recent. Returns it with the stamp it had.
    ///
    /// # Panics
    ///
    /// If every slot is already stamped with `step`: a step must be counted before it is admitted.
    pub fn take_victim(&mut self, step: u64) -> (SlotId, u64) {
        if let Some(slot) = self.free.pop_lowest() {
            self.append(slot.get(), step);
            return (slot, 0);
        }
        let head = self.head();
        let stamp = self.nodes[head as usize].stamp;
        assert!(stamp < step, "every slot is in use by step {step}");
        if stamp != self.sorted_stamp {
            self.sort_head_group(stamp);
        }
        let victim = SlotId::new(self.head());
        self.touch(victim, step);
        (victim, stamp)
    }

    /// Makes a slot free; whether it was in use.
    pub fn release(&mut self, slot: SlotId) -> bool {
        if !self.free.insert(slot) {
            return false;
        }
        self.unlink(slot.get());
        self.nodes[slot.index()].stamp = 0;
        true
    }

    /// Slots in use, the next victim first, with their stamps: the order in which they would go.
    pub fn victims(&self) -> Vec<(SlotId, u64)> {
        let mut victims = Vec::with_capacity(self.slot_count() as usize - self.free_count());
        let mut at = self.head();
        while at != self.sentinel() {
            victims.push((SlotId::new(at), self.nodes[at as usize].stamp));
            at = self.nodes[at as usize].next;
        }
        victims.sort_by_key(|&(slot, stamp)| (stamp, slot));
        victims
    }

    /// Recomputes what must hold from the raw state; for tests.
    ///
    /// # Errors
    ///
    /// The first thing found wrong.
    pub fn check(&self) -> Result<(), String> {
        let mut listed = 0;
        let mut at = self.sentinel();
        let mut stamp = 0;
        let mut in_order_of = None;
        loop {
            let next = self.nodes[at as usize].next;
            if self.nodes[next as usize].previous != at {
                return Err(format!("slot {next} does not point back to slot {at}"));
            }
            if next == self.sentinel() {
                break;
            }
            let node = self.nodes[next as usize];
            if node.stamp == 0 || node.stamp < stamp {
                return Err(format!("slot {next} has stamp {} after {stamp}", node.stamp));
            }
            if node.stamp == self.sorted_stamp && in_order_of.is_some_and(|before| before >= next) {
                return Err(format!("slot {next} is out of order in the sorted group {stamp}"));
            }
            in_order_of = (node.stamp == self.sorted_stamp).then_some(next);
            if self.free.contains(SlotId::new(next)) {
                return Err(format!("slot {next} is both free and in use"));
            }
            stamp = node.stamp;
            listed += 1;
            at = next;
        }
        if listed + self.free.len() != self.slot_count() as usize {
            return Err(format!("{listed} used and {} free of {} slots", self.free.len(), self.slot_count()));
        }
        Ok(())
    }

    #[inline]
    fn sentinel(&self) -> u32 {
        (self.nodes.len() - 1) as u32
    }

    #[inline]
    fn head(&self) -> u32 {
        self.nodes[self.sentinel() as usize].next
    }

    #[inline]
    fn unlink(&mut self, slot: u32) {
        let Node { previous, next, .. } = self.nodes[slot as usize];
        self.nodes[previous as usize].next = next;
        self.nodes[next as usize].previous = previous;
    }

    #[inline]
    fn append(&mut self, slot: u32, stamp: u64) {
        let sentinel = self.sentinel();
        let tail = self.nodes[sentinel as usize].previous;
        self.nodes[tail as usize].next = slot;
        self.nodes[slot as usize] = Node { stamp, previous: tail, next: sentinel };
        self.nodes[sentinel as usize].previous = slot;
    }

    /// Puts the slots at the head that have `stamp` in slot order.
    fn sort_head_group(&mut self, stamp: u64) {
        self.group.clear();
        let mut at = self.head();
        while self.nodes[at as usize].stamp == stamp {
            self.group.push(at);
            at = self.nodes[at as usize].next;
        }
        let after = at;
        self.group.sort_unstable();
        let mut previous = self.sentinel();
        for index in 0..self.group.len() {
            let slot = self.group[index];
            self.nodes[previous as usize].next = slot;
            self.nodes[slot as usize].previous = previous;
            previous = slot;
        }
        self.nodes[previous as usize].next = after;
        self.nodes[after as usize].previous = previous;
        self.sorted_stamp = stamp;
    }
}
