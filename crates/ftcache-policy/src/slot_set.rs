//! A set of slots that gives up its lowest member without a scan: a bit a slot, and a bit a word of the level below.

use crate::SlotId;

const WORD_BITS: usize = 64;

/// A set of slots of one pool. Every call costs a few word operations per level: three levels hold 262,144 slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotSet {
    /// `levels[0]` has a bit per slot; bit `i` of level `n + 1` is set iff word `i` of level `n` is not zero. The last
    /// level has one word.
    levels: Vec<Vec<u64>>,
    len: usize,
}

impl SlotSet {
    /// The set of all of `slot_count` slots.
    pub fn full(slot_count: u32) -> Self {
        let mut levels = Vec::new();
        let mut bit_count = slot_count as usize;
        loop {
            levels.push(ones(bit_count));
            if bit_count <= WORD_BITS {
                break;
            }
            bit_count = bit_count.div_ceil(WORD_BITS);
        }
        Self { levels, len: slot_count as usize }
    }

    /// Slots in the set.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the set has no slot.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether `slot` is in the set.
    pub fn contains(&self, slot: SlotId) -> bool {
        let index = slot.index();
        self.levels[0][index / WORD_BITS] >> (index % WORD_BITS) & 1 == 1
    }

    /// Puts `slot` into the set; whether it was not there.
    pub fn insert(&mut self, slot: SlotId) -> bool {
        if self.contains(slot) {
            return false;
        }
        let mut index = slot.index();
        for level in &mut self.levels {
            level[index / WORD_BITS] |= 1 << (index % WORD_BITS);
            index /= WORD_BITS;
        }
        self.len += 1;
        true
    }

    /// Takes the lowest slot out of the set.
    pub fn pop_lowest(&mut self) -> Option<SlotId> {
        if self.is_empty() {
            return None;
        }
        let mut index = 0;
        for level in self.levels.iter().rev() {
            index = index * WORD_BITS + level[index].trailing_zeros() as usize;
        }
        let lowest = SlotId::from_index(index);
        for level in &mut self.levels {
            let word = &mut level[index / WORD_BITS];
            *word &= !(1 << (index % WORD_BITS));
            if *word != 0 {
                break;
            }
            index /= WORD_BITS;
        }
        self.len -= 1;
        Some(lowest)
    }
}

/// `bit_count` ones, in at least one word.
fn ones(bit_count: usize) -> Vec<u64> {
    let mut words = vec![u64::MAX; bit_count.div_ceil(WORD_BITS).max(1)];
    let used = bit_count - (words.len() - 1) * WORD_BITS;
    if used < WORD_BITS {
        *words.last_mut().expect("at least one word") = (1 << used) - 1;
    }
    words
}
