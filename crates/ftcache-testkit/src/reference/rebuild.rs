//! Starting over: other pools for the same layers, and a working set that is taken along to an empty cache.

use std::collections::{BTreeMap, BTreeSet};

use super::hint::Hints;
use super::{Cause, LAST_STEP, Open, Reference, Refusal, Slot};

/// An expert that kept its row through a rebuild.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    /// Its layer.
    pub layer: u32,
    /// The expert.
    pub expert: u32,
    /// `(pool, slot)` before.
    pub from: (u32, u32),
    /// `(pool, slot)` now.
    pub to: (u32, u32),
}

/// An expert that an import gave a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// Its layer.
    pub layer: u32,
    /// The expert.
    pub expert: u32,
    /// Its pool.
    pub pool: u32,
    /// Its slot.
    pub slot: u32,
}

/// A resident as it was before a rebuild, least recent first.
type Resident = (u64, u32, u32, (u32, u32));

impl Reference {
    /// Other pools for the same layers. Cold: every slot is free. Warm: each pool keeps the most recent that fit. Rows
    /// on their way are lost; the numbers of flights go on.
    ///
    /// Says what was kept, ascending by new pool and slot.
    ///
    /// # Errors
    ///
    /// An open chunk, a pool in which marked experts would leave fewer slots than the last pinning asked for.
    pub fn rebuild(
        &mut self,
        pool_of_layer: &[Option<u32>],
        pool_sizes: &[u32],
        is_warm: bool,
    ) -> Result<Vec<Moved>, Refusal> {
        self.assert_closed();
        assert_eq!(pool_of_layer.len(), self.pool_of_layer.len(), "the layers are the same");
        if self.chunk.is_some() {
            return Err(Refusal::ChunkOpen);
        }
        Self::check_room(&self.pinned, self.unpinned, pool_of_layer, pool_sizes)?;
        let residents = self.residents();
        for &(_, pool, slot, _) in &residents {
            self.free(pool, slot, Cause::Freed);
        }
        self.forget_flights();
        self.hints = Hints::default();
        self.offered = None;
        self.stats.clear();
        self.verified.clear();
        self.remembered.clear();
        self.pool_of_layer = pool_of_layer.to_vec();
        self.pools = pool_sizes.iter().map(|&size| vec![Slot::default(); size as usize]).collect();
        let mut moved = Vec::new();
        if is_warm {
            for pool in 0..self.pools.len() as u32 {
                moved.extend(self.refill(pool, &residents));
            }
        }
        Ok(moved)
    }

    /// Gives the slots of a new pool to the most recent residents of its layers.
    fn refill(&mut self, pool: u32, residents: &[Resident]) -> Vec<Moved> {
        let slot_count = self.pools[pool as usize].len();
        // They ascend by stamp, old pool and old slot: one order, of who is kept and of who takes the lowest slot left.
        let mut kept: Vec<Resident> = residents.to_vec();
        kept.retain(|&(.., (layer, _))| self.pool_of_layer[layer as usize] == Some(pool));
        let kept = kept.split_off(kept.len().saturating_sub(slot_count));

        let stays = |&(_, old_pool, old_slot, _): &Resident| old_pool == pool && (old_slot as usize) < slot_count;
        for &(stamp, _, old_slot, expert) in kept.iter().filter(|resident| stays(resident)) {
            self.place(pool, old_slot, expert, stamp);
        }
        for &(stamp, _, _, expert) in kept.iter().filter(|resident| !stays(resident)) {
            let slot = self.pools[pool as usize].iter().position(|slot| slot.owner.is_none()).expect("they fit");
            self.place(pool, slot as u32, expert, stamp);
        }
        let mut moved: Vec<Moved> = Vec::new();
        for &(_, old_pool, old_slot, (layer, expert)) in &kept {
            let slot = self.slot_of(layer, expert).expect("it was placed");
            moved.push(Moved { layer, expert, from: (old_pool, old_slot), to: (pool, slot) });
        }
        moved.sort_by_key(|moved| moved.to);
        moved
    }

    /// `(layer, expert)` of every resident, least recent first: ascending by stamp, pool and slot.
    pub fn export(&self) -> Vec<(u32, u32)> {
        self.residents().into_iter().map(|(.., expert)| expert).collect()
    }

    /// Gives slots to the experts of an export, least recent first, and leaves that open, for
    /// [`commit`](Self::commit) or [`abort`](Self::abort). Experts of layers without slots are passed over.
    ///
    /// Each is a step of its own, also one that gets no slot: so their stamps have the order of the export.
    ///
    /// Says who is where, ascending by pool and slot.
    ///
    /// # Errors
    ///
    /// In this order: an open plan, an open chunk, no such layer or expert, an expert named twice, a cache that is not
    /// empty or to which rows are on their way, more experts than the step counter has numbers left.
    pub fn import(&mut self, experts: &[(u32, u32)]) -> Result<Vec<Placed>, Refusal> {
        if self.open.is_some() {
            return Err(Refusal::PlanOpen);
        }
        if self.chunk.is_some() {
            return Err(Refusal::ChunkOpen);
        }
        self.check_experts(experts)?;
        let mut named = BTreeSet::new();
        if let Some(index) = experts.iter().position(|&expert| !named.insert(expert)) {
            return Err(Refusal::NamedTwice(index));
        }
        if !self.residents().is_empty() || !self.in_flight.is_empty() {
            return Err(Refusal::NotEmpty);
        }
        if experts.len() as u64 > LAST_STEP - self.step {
            return Err(Refusal::OutOfSteps);
        }
        self.remembered.clear();
        self.offered = None;
        let mut of_pool: BTreeMap<u32, Vec<(u64, u32, u32)>> = BTreeMap::new();
        for &(layer, expert) in experts {
            self.step += 1;
            if let Some(pool) = self.pool_of_layer[layer as usize] {
                of_pool.entry(pool).or_default().push((self.step, layer, expert));
            }
        }
        let mut placed = Vec::new();
        for (pool, mut experts) in of_pool {
            let too_old = experts.len().saturating_sub(self.pools[pool as usize].len());
            for (slot, (stamp, layer, expert)) in experts.drain(too_old..).enumerate() {
                self.place(pool, slot as u32, (layer, expert), stamp);
                placed.push(Placed { layer, expert, pool, slot: slot as u32 });
            }
        }
        self.open = Some(Open::Import(placed.clone()));
        Ok(placed)
    }

    /// `(stamp, pool, slot, expert)` of every resident, ascending.
    fn residents(&self) -> Vec<Resident> {
        let mut residents = Vec::new();
        for (pool, slots) in self.pools.iter().enumerate() {
            for (index, slot) in slots.iter().enumerate() {
                if let Some(expert) = slot.owner {
                    residents.push((slot.stamp, pool as u32, index as u32, expert));
                }
            }
        }
        residents.sort_unstable();
        residents
    }
}
