//! What becomes of a verify step once it is known which of its tokens stand.

use std::collections::BTreeSet;

use super::{ABSENT, Reference, Refusal};

/// A committed verify step, until its acceptance: all its parts, if it came in several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Verified {
    /// The numbers of its first part and of its last.
    pub(super) first: u64,
    pub(super) last: u64,
    /// The experts it routed to.
    pub(super) routed: BTreeSet<u32>,
    /// The experts it copied.
    pub(super) fetched: BTreeSet<u32>,
    /// Whether a CPU computed what its last part did not copy; its parts are of one kind.
    pub(super) is_hybrid: bool,
}

impl Reference {
    /// Stamps the accepted routes of a layer's last verify step, as a step of its own; what that step fetched in vain
    /// is the first to go after free slots, unless its slot has been stamped since: then its stamp is not one of that
    /// step.
    ///
    /// # Errors
    ///
    /// In this order: no such layer, a layer without slots, no verify step that waits, an accepted id that is no
    /// expert, one that the step did not route to, a step counter at its end.
    pub fn accept(&mut self, layer: u32, accepted: &[u32]) -> Result<(), Refusal> {
        self.assert_closed();
        self.pool_of(layer)?;
        let Some(verified) = self.verified.get(&layer).cloned() else { return Err(Refusal::NothingToAccept(layer)) };
        if let Some(index) = accepted.iter().position(|&id| id != ABSENT && id >= self.expert_count) {
            return Err(Refusal::NoExpert(index));
        }
        if let Some(index) = accepted.iter().position(|id| *id != ABSENT && !verified.routed.contains(id)) {
            return Err(Refusal::NotVerified(index));
        }
        self.check_counter()?;
        self.verified.remove(&layer);
        self.step += 1;
        self.offered = None;
        self.count_uses(layer, accepted, false);
        let accepted: BTreeSet<u32> = accepted.iter().copied().filter(|&id| id != ABSENT).collect();
        for &expert in &accepted {
            self.stamp_resident(layer, expert, self.step);
            if verified.is_hybrid {
                self.active.insert((layer, expert), self.step);
            }
        }
        for &expert in verified.fetched.difference(&accepted) {
            let stamp = self.stamp_of(layer, expert);
            if stamp.is_some_and(|stamp| (verified.first..=verified.last).contains(&stamp)) {
                self.stamp_resident(layer, expert, 1);
            }
        }
        Ok(())
    }

    /// Adds a committed part to the layer's verify step; one that continues nothing begins another.
    pub(super) fn note_verified(&mut self, layer: u32, continues: bool, part: Verified) {
        match self.verified.get_mut(&layer) {
            Some(whole) if continues => {
                whole.last = part.last;
                whole.routed.extend(part.routed);
                whole.fetched.extend(part.fetched);
                whole.is_hybrid = part.is_hybrid;
            }
            _ => drop(self.verified.insert(layer, part)),
        }
    }

    /// Whether a layer's verify step waits for its acceptance.
    pub fn awaits_acceptance(&self, layer: u32) -> bool {
        self.verified.contains_key(&layer)
    }

    /// Stamp of the slot that an expert is in.
    fn stamp_of(&self, layer: u32, expert: u32) -> Option<u64> {
        let pool = self.pool_of_layer[layer as usize]?;
        self.slot_of(layer, expert).map(|slot| self.stamp(pool, slot))
    }

    /// Stamps the slot that an expert is in, if it is in one.
    fn stamp_resident(&mut self, layer: u32, expert: u32, stamp: u64) {
        if let (Some(pool), Some(slot)) = (self.pool_of_layer[layer as usize], self.slot_of(layer, expert)) {
            self.pools[pool as usize][slot as usize].stamp = stamp;
        }
    }
}
