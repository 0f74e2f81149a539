//! Other pools for the same model: empty, or keeping what still fits.

use ftcache_policy::{ExpertId, Geometry, LayerId, PoolId, Recency, SlotId};

use crate::answers::Answers;
use crate::cache::{make_pools, pools_of};
use crate::hint::Hints;
use crate::map::Expert;
use crate::pool::{Pool, Scratch};
use crate::prefill::Prefill;
use crate::stats::Tally;
use crate::{Cache, PoolsError};

/// What a rebuild keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Keep {
    /// No resident: the new pools are empty.
    Nothing,
    /// Of each new pool's layers the residents used last, as many as it has slots for.
    WhatFits,
}

/// A resident that survives a rebuild, from its old slot to its new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Move {
    /// The layer.
    pub layer: LayerId,
    /// The expert.
    pub expert: ExpertId,
    /// Where it lay, in the old pools.
    pub from: (PoolId, SlotId),
    /// Where it lies, in the new pools.
    pub to: (PoolId, SlotId),
}

impl Cache {
    /// The cache with the pools of another geometry of the same model, and who moves where. This one stays as it is,
    /// to go on with if the device refuses the new pools.
    ///
    /// Rows on their way are lost. The step counter, pinned experts, what is known of the routing and hybrid steps go
    /// on: none of it depends on the slots. Statistics start over, those of chunks too, since those of other slots
    /// would not be true of these. Staging buffers are to be given anew.
    ///
    /// A survivor keeps its stamp, and its slot if its pool has the same number and still has the slot. So where
    /// every layer keeps its pool, and the pool lies where it lay, rows that move never land on rows that stay or
    /// have still to move: the moves may be made in place, in any order. Otherwise old and new slots must exist at
    /// the same time, or nothing can be kept.
    ///
    /// # Errors
    ///
    /// A geometry of other layers or experts, with the numbers of both; a pool without room for what is pinned; an open
    /// chunk.
    pub fn rebuilt(&self, geometry: &Geometry, keep: Keep) -> Result<(Self, Vec<Move>), PoolsError> {
        let (pool_of_layer, slot_counts) = pools_of(geometry);
        let given = (geometry.model().layer_count(), geometry.model().expert_count());
        let had = (self.layer_count(), self.expert_count());
        if had != given {
            return Err(PoolsError::OtherModel { had, given });
        }
        self.rebuilt_with_pools(&pool_of_layer, &slot_counts, keep)
    }

    /// As [`rebuilt`](Self::rebuilt), for pools told as to [`with_pools`](Self::with_pools).
    ///
    /// # Errors
    ///
    /// As [`rebuilt`](Self::rebuilt) and [`with_pools`](Self::with_pools).
    pub fn rebuilt_with_pools(
        &self,
        pool_of_layer: &[Option<PoolId>],
        slot_counts: &[u32],
        keep: Keep,
    ) -> Result<(Self, Vec<Move>), PoolsError> {
        let (had, expert_count) = ((self.layer_count(), self.expert_count()), self.expert_count());
        if pool_of_layer.len() != had.0 {
            return Err(PoolsError::OtherModel { had, given: (pool_of_layer.len(), expert_count) });
        }
        if self.has_open_chunk() {
            return Err(PoolsError::ChunkOpen);
        }
        let pools = make_pools(self.active.len() as u64, pool_of_layer, slot_counts)?;
        let pins = self.pins.for_pools(expert_count, pool_of_layer, slot_counts.len());
        pins.check_room(&pools).map_err(PoolsError::Pinned)?;
        let slots: u32 = slot_counts.iter().sum();
        let mut cache = Self {
            pool_of_layer: pool_of_layer.to_vec(),
            pools,
            map: self.map.emptied(slots as usize),
            step: self.step,
            active: self.active.clone(),
            carried: self.carried.clone(),
            tally: Tally::new(had.0),
            answers: Answers::default(),
            verified: Vec::new(),
            generation: self.generation + 1,
            pins,
            prefill: Prefill::default(),
            flights: self.flights.grounded(),
            ranking: self
                .ranking
                .as_ref()
                .map(|ranking| ranking.for_pools(expert_count, pool_of_layer, slot_counts.len())),
            hints: Hints::new(had.0),
            scratch: Scratch::new(expert_count, slot_counts.iter().copied().max().unwrap_or(0)),
        };
        cache.reserve(self.scratch.width());
        if !self.verified.is_empty() {
            cache.reserve_remembered(self.scratch.width());
        }
        let moves = match keep {
            Keep::Nothing => Vec::new(),
            Keep::WhatFits => self.move_to(&mut cache),
        };
        Ok((cache, moves))
    }

    /// Puts those that fit into the empty pools of `target`. Returns them, ascending by new pool and slot.
    fn move_to(&self, target: &mut Self) -> Vec<Move> {
        let mut moves = Vec::new();
        for index in 0..target.pools.len() {
            let pool = PoolId::from_index(index);
            let slot_count = target.slot_count(pool);
            let mut residents: Vec<Resident> =
                target.layers_of(pool).flat_map(|layer| self.residents_of(layer)).collect();
            residents.sort_unstable_by_key(|resident| (resident.stamp, resident.pool, resident.slot));
            residents.drain(..residents.len().saturating_sub(slot_count as usize));

            let stays = |resident: &Resident| resident.pool == pool && resident.slot.get() < slot_count;
            let mut taken = vec![false; slot_count as usize];
            residents
                .iter()
                .filter(|resident| stays(resident))
                .for_each(|resident| taken[resident.slot.index()] = true);
            let mut left = (0..slot_count).map(SlotId::new).filter(|slot| !taken[slot.index()]);
            let mut stamps = Vec::with_capacity(residents.len());
            let first = target.pools[index].first;
            for resident in &residents {
                let slot = if stays(resident) { resident.slot } else { left.next().expect("they were cut to fit") };
                let Resident { layer, expert, .. } = *resident;
                target.map.placing(layer, first).put(expert, slot);
                stamps.push((slot, resident.stamp));
                moves.push(Move { layer, expert, from: (resident.pool, resident.slot), to: (pool, slot) });
            }
            target.pools[index].recency = Recency::with_stamps(slot_count, &stamps);
            target.pin_residents(pool);
        }
        moves.sort_unstable_by_key(|moved| moved.to);
        moves
    }

    /// Who of a layer is in a slot, ascending by expert.
    pub(crate) fn residents_of(&self, layer: LayerId) -> impl Iterator<Item = Resident> + '_ {
        let pool = self.pool_of(layer).ok();
        let resident = move |(expert, Expert { place, .. }): (u32, &Expert)| {
            let pool = pool.filter(|_| place.is_slot())?;
            let (slot, expert) = (place.slot(), ExpertId::new(expert));
            Some(Resident { layer, expert, pool, slot, stamp: self.stamp(pool, slot) })
        };
        (0..).zip(self.map.layer(layer)).filter_map(resident)
    }

    pub(crate) fn pin_residents(&mut self, pool: PoolId) {
        let Pool { first, recency, .. } = &mut self.pools[pool.index()];
        for slot in (0..recency.slot_count()).map(SlotId::new) {
            if self.map.expert_of(*first, slot).is_some_and(|owner| self.pins.is_marked(owner)) {
                recency.pin(slot);
            }
        }
    }
}

/// An expert in a slot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Resident {
    pub(crate) layer: LayerId,
    pub(crate) expert: ExpertId,
    pub(crate) pool: PoolId,
    pub(crate) slot: SlotId,
    pub(crate) stamp: u64,
}
