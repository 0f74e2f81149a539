//! Pinned experts: once in a slot, never a victim. What is marked is the expert, so that it stays pinned when it
//! comes back after its slot was freed by a call.

use std::error::Error;
use std::fmt;

use ftcache_policy::{BitSet, ExpertId, FlatExpertId, LayerId, PoolId, SlotId};

use crate::pool::Pool;
use crate::{Cache, EnsureError};

#[derive(Debug, Clone)]
pub(crate) struct Pins {
    marked: BitSet,
    /// `of_pool[pool]`: marked experts of its layers.
    pub(crate) of_pool: Vec<u32>,
    /// Slots that every pool was to keep for other experts when experts were pinned last.
    pub(crate) unpinned: u32,
}

impl Pins {
    pub(crate) fn new(expert_count: usize, pool_count: usize) -> Self {
        Self { marked: BitSet::new(expert_count), of_pool: vec![0; pool_count], unpinned: 0 }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.marked.is_empty()
    }

    #[inline]
    pub(crate) fn is_marked(&self, expert: FlatExpertId) -> bool {
        self.marked.contains(expert.index())
    }

    /// Whether every pool keeps the slots that it is to.
    pub(crate) fn check_room(&self, pools: &[Pool]) -> Result<(), PinError> {
        for (pool, &pinned) in pools.iter().zip(&self.of_pool) {
            let (slot_count, unpinned) = (pool.recency.slot_count(), self.unpinned);
            if pinned > 0 && u64::from(pinned) + u64::from(unpinned) > u64::from(slot_count) {
                return Err(PinError::TooMany { pool: pool.id, pinned, unpinned, slot_count });
            }
        }
        Ok(())
    }

    /// The same marks for other pools of the same layers.
    pub(crate) fn for_pools(&self, expert_count: u32, pool_of_layer: &[Option<PoolId>], pool_count: usize) -> Self {
        let mut pins = Self { marked: self.marked.clone(), of_pool: vec![0; pool_count], unpinned: self.unpinned };
        for (layer, pool) in pool_of_layer.iter().enumerate() {
            let first = layer * expert_count as usize;
            let marked = (first..first + expert_count as usize).filter(|&expert| self.marked.contains(expert));
            if let Some(pool) = pool {
                pins.of_pool[pool.index()] += marked.count() as u32;
            }
        }
        pins
    }
}

/// Experts that cannot be pinned. None of them is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PinError {
    /// An unknown layer or expert, or a layer without slots; a route is a place in the list.
    Unknown(EnsureError),
    /// A pool would have too few slots left for steps.
    TooMany {
        /// The pool.
        pool: PoolId,
        /// Pinned experts that its layers would have.
        pinned: u32,
        /// Slots that are to stay unpinned.
        unpinned: u32,
        /// Slots of the pool.
        slot_count: u32,
    },
}

impl fmt::Display for PinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // What is a step's route there is a place in the caller's list here.
            Self::Unknown(EnsureError::UnknownExpert { layer, route, expert, expert_count }) => {
                write!(f, "layer {layer}: expert {expert}, number {route} of the list, is none of 0..{expert_count}")
            }
            Self::Unknown(error) => error.fmt(f),
            Self::TooMany { pool, pinned, unpinned, slot_count } => {
                let needed = u64::from(*pinned) + u64::from(*unpinned);
                write!(f, "pool {pool} has {slot_count} slots; ")?;
                write!(f, "{pinned} pinned experts and {unpinned} slots for others need {needed}")
            }
        }
    }
}

impl Error for PinError {}

impl Cache {
    /// Pins experts, whether resident or not. One that is not comes to be pinned with the step that fetches it.
    ///
    /// A pinned expert's slot is never a victim. It is free again when a call frees it: [`forget`](Self::forget), an
    /// aborted plan, or a staging buffer that is borrowed from it; the expert stays marked.
    ///
    /// In every pool `unpinned` slots are to stay for others: as many as the distinct experts of the widest step, and
    /// every step goes on being admitted, but for those within a chunk on borrowed staging, which has slots of its own
    /// to keep.
    ///
    /// # Errors
    ///
    /// An unknown layer or expert, a layer without slots, or a pool with too few slots left.
    pub fn pin(&mut self, experts: &[(LayerId, ExpertId)], unpinned: u32) -> Result<(), PinError> {
        self.check_experts(experts, true)?;
        let mut pins = self.pins.clone();
        pins.unpinned = unpinned;
        for &(layer, expert) in experts {
            let pool = self.pool_of(layer).expect("it was asked for above");
            pins.of_pool[pool.index()] += u32::from(pins.marked.insert(self.map.flat(layer, expert).index()));
        }
        pins.check_room(&self.pools)?;
        self.pins = pins;
        for &(layer, expert) in experts {
            let pool = self.pool_of(layer).expect("it was asked for above");
            if let Some(slot) = self.slot_of(layer, expert) {
                self.pools[pool.index()].recency.pin(slot);
            }
        }
        Ok(())
    }

    /// Makes experts victims like others again. Ones that are not pinned stay as they are.
    ///
    /// # Errors
    ///
    /// An unknown layer or expert.
    pub fn unpin(&mut self, experts: &[(LayerId, ExpertId)]) -> Result<(), PinError> {
        self.check_experts(experts, false)?;
        for &(layer, expert) in experts {
            let was_marked = self.pins.marked.remove(self.map.flat(layer, expert).index());
            // A layer may have lost its slots since.
            if let Some(pool) = self.pool_of_layer[layer.index()].filter(|_| was_marked) {
                self.pins.of_pool[pool.index()] -= 1;
                // A row that a hint brings or brought stays a victim of nobody.
                let is_held = |slot: &SlotId| self.is_slot_in_flight(pool, *slot) || self.hints.holds(pool, *slot);
                if let Some(slot) = self.slot_of(layer, expert).filter(|slot| !is_held(slot)) {
                    self.pools[pool.index()].recency.unpin(slot);
                    self.add_candidate(layer, expert, slot);
                }
            }
        }
        Ok(())
    }

    /// Whether an expert is pinned.
    ///
    /// # Panics
    ///
    /// If the cache has no such layer or expert.
    pub fn is_pinned(&self, layer: LayerId, expert: ExpertId) -> bool {
        self.pins.is_marked(self.flat(layer, expert))
    }

    /// Pinned experts of a pool's layers, resident or not.
    ///
    /// # Panics
    ///
    /// If there is no such pool.
    pub fn pinned_count(&self, pool: PoolId) -> u32 {
        self.pins.of_pool[pool.index()]
    }

    /// Whether experts exist, and, if so asked, may have slots.
    fn check_experts(&self, experts: &[(LayerId, ExpertId)], with_slots: bool) -> Result<(), PinError> {
        for (route, &(layer, expert)) in experts.iter().enumerate() {
            match self.pool_of(layer) {
                Err(EnsureError::NoSlots { .. }) if !with_slots => {}
                known => drop(known.map_err(PinError::Unknown)?),
            }
            let expert_count = self.expert_count();
            if expert.get() >= expert_count {
                return Err(PinError::Unknown(EnsureError::UnknownExpert { layer, route, expert, expert_count }));
            }
        }
        Ok(())
    }

    pub(crate) fn check_pins(&self) -> Result<(), String> {
        for pool in &self.pools {
            let layers = self.layers_of(pool.id).map(|layer| self.map.experts_of_layer(layer));
            let marked = layers.flatten().filter(|&expert| self.pins.marked.contains(expert)).count();
            if marked != self.pins.of_pool[pool.id.index()] as usize {
                return Err(format!("pool {}: {marked} experts are marked as pinned", pool.id));
            }
        }
        Ok(())
    }
}
