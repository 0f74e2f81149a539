//! What frees slots besides a step, and the marks that keep experts in theirs.

use std::collections::BTreeSet;

use super::{Cause, Reference, Refusal};

impl Reference {
    /// Frees a slot, and says who lost it; one in flight is free once it has landed, and its row is nobody's. Ends the
    /// memory of every answer, whoever was in the slot.
    pub fn forget(&mut self, pool: u32, slot: u32) -> Option<(u32, u32)> {
        self.assert_closed();
        self.remembered.clear();
        self.offered = None;
        self.free(pool, slot, Cause::Freed)
    }

    /// Frees every slot of a layer, and says how many that were. Its rows on their way are nobody's.
    pub fn forget_layer(&mut self, layer: u32) -> usize {
        let freed = self.free_all_of(|(of, _)| of == layer);
        self.lose_all_of(layer, Cause::Freed);
        freed
    }

    /// Frees every slot, and takes every row on its way from its expert. Marks, counts and the step counter stay.
    pub fn reset(&mut self) {
        for layer in 0..self.pool_of_layer.len() as u32 {
            self.lose_all_of(layer, Cause::Freed);
        }
        self.free_all_of(|_| true);
    }

    fn free_all_of(&mut self, is_lost: impl Fn((u32, u32)) -> bool) -> usize {
        self.assert_closed();
        self.remembered.clear();
        self.offered = None;
        let mut count = 0;
        for pool in 0..self.pools.len() as u32 {
            for slot in 0..self.pools[pool as usize].len() as u32 {
                if self.owner(pool, slot).is_some_and(&is_lost) {
                    self.free(pool, slot, Cause::Freed);
                    count += 1;
                }
            }
        }
        count
    }

    /// Marks experts as `(layer, expert)`, resident or not; a marked one that is in a slot is never a victim.
    ///
    /// # Errors
    ///
    /// No such layer or expert, a layer without slots, or a pool in which fewer than `unpinned` slots would be left if
    /// every marked expert were in one. None is marked then.
    pub fn pin(&mut self, experts: &[(u32, u32)], unpinned: u32) -> Result<(), Refusal> {
        self.assert_closed();
        self.check_places(experts)?;
        let marked: BTreeSet<(u32, u32)> = self.pinned.iter().chain(experts).copied().collect();
        Self::check_room(&marked, unpinned, &self.pool_of_layer, &self.pool_sizes())?;
        self.pinned = marked;
        self.unpinned = unpinned;
        Ok(())
    }

    /// Takes marks away; experts without one are no error.
    ///
    /// # Errors
    ///
    /// No such layer or expert; no mark is taken then.
    pub fn unpin(&mut self, experts: &[(u32, u32)]) -> Result<(), Refusal> {
        self.assert_closed();
        self.check_experts(experts)?;
        for expert in experts {
            self.pinned.remove(expert);
        }
        Ok(())
    }
}
