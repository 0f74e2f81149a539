//! Expert to slot and slot to expert, kept inverse.
//!
//! Experts are numbered over the model and slots over all pools, so that the two arrays are each other's inverse
//! without a look at pools or layers.

use std::ops::Range;

use ftcache_policy::{ExpertId, FlatExpertId, LayerId, SlotId};

/// `expert_of` of a slot that holds nothing.
const NOBODY: FlatExpertId = FlatExpertId::new(u32::MAX);

/// The residency: two arrays, inverse of each other.
#[derive(Debug, Clone)]
pub(crate) struct Map {
    /// Experts of a layer.
    expert_count: u32,
    /// `slot_of[expert]` is local to the pool of the expert's layer; `SlotId::ABSENT` if the expert is not resident.
    slot_of: Vec<SlotId>,
    /// `expert_of[first + slot]`, with `first` the pool's first slot number.
    expert_of: Vec<FlatExpertId>,
}

impl Map {
    pub(crate) fn new(layer_count: usize, expert_count: u32, slot_count: usize) -> Self {
        let slot_of = vec![SlotId::ABSENT; layer_count * expert_count as usize];
        Self { expert_count, slot_of, expert_of: vec![NOBODY; slot_count] }
    }

    pub(crate) fn expert_count(&self) -> u32 {
        self.expert_count
    }

    #[inline]
    pub(crate) fn flat(&self, layer: LayerId, expert: ExpertId) -> FlatExpertId {
        FlatExpertId::new(layer.get() * self.expert_count + expert.get())
    }

    pub(crate) fn layer_and_expert(&self, flat: FlatExpertId) -> (LayerId, ExpertId) {
        (LayerId::new(flat.get() / self.expert_count), ExpertId::new(flat.get() % self.expert_count))
    }

    #[inline]
    pub(crate) fn slot_of(&self, expert: FlatExpertId) -> SlotId {
        self.slot_of[expert.index()]
    }

    /// `slot_of` for the experts of one layer, for a step's many look-ups.
    #[inline]
    pub(crate) fn slots_of_layer(&self, layer: LayerId) -> &[SlotId] {
        &self.slot_of[self.experts_of_layer(layer)]
    }

    /// As [`slots_of_layer`](Self::slots_of_layer), to mark experts whose slot is about to be chosen.
    #[inline]
    pub(crate) fn slots_of_layer_mut(&mut self, layer: LayerId) -> &mut [SlotId] {
        let experts = self.experts_of_layer(layer);
        &mut self.slot_of[experts]
    }

    #[inline]
    fn experts_of_layer(&self, layer: LayerId) -> Range<usize> {
        let base = self.flat(layer, ExpertId::new(0)).index();
        base..base + self.expert_count as usize
    }

    #[inline]
    pub(crate) fn expert_of(&self, first: u32, slot: SlotId) -> Option<FlatExpertId> {
        let expert = self.expert_of[first as usize + slot.index()];
        (expert != NOBODY).then_some(expert)
    }

    /// The pool's slots, to place experts of one layer in.
    #[inline]
    pub(crate) fn places(&mut self, layer: LayerId, first: u32) -> Places<'_> {
        let base = self.flat(layer, ExpertId::new(0)).get();
        Places { base, slot_of: &mut self.slot_of, expert_of: &mut self.expert_of[first as usize..] }
    }

    /// Empties a slot. Returns the owner that lost it.
    pub(crate) fn vacate(&mut self, first: u32, slot: SlotId) -> Option<FlatExpertId> {
        let owner = std::mem::replace(&mut self.expert_of[first as usize + slot.index()], NOBODY);
        if owner == NOBODY {
            return None;
        }
        self.slot_of[owner.index()] = SlotId::ABSENT;
        Some(owner)
    }

    /// Both directions from the raw state; `first_of` gives the first slot number of a layer's pool.
    pub(crate) fn check(&self, first_of: impl Fn(LayerId) -> Option<u32>) -> Result<(), String> {
        let mut resident = 0;
        for (expert, &slot) in self.slot_of.iter().enumerate().filter(|(_, slot)| slot.is_slot()) {
            let (layer, _) = self.layer_and_expert(FlatExpertId::from_index(expert));
            let first = first_of(layer).ok_or_else(|| format!("expert {expert} is in slot {slot} of no pool"))?;
            let owner = self.expert_of[first as usize + slot.index()];
            if owner.index() != expert {
                return Err(format!("expert {expert} is said to be in slot {slot}, which holds {owner}"));
            }
            resident += 1;
        }
        let owned = self.expert_of.iter().filter(|&&expert| expert != NOBODY).count();
        if owned != resident {
            return Err(format!("{owned} slots are owned and {resident} experts resident"));
        }
        Ok(())
    }
}

/// Both directions of a map, borrowed for a step's placements.
pub(crate) struct Places<'a> {
    /// Flat id of the layer's first expert.
    base: u32,
    slot_of: &'a mut [SlotId],
    /// From the pool's first slot on.
    expert_of: &'a mut [FlatExpertId],
}

impl Places<'_> {
    /// Puts an expert that is not resident into a slot. Returns the owner that lost it, or `NOBODY`.
    #[inline]
    pub(crate) fn place(&mut self, expert: ExpertId, slot: SlotId) -> FlatExpertId {
        let expert = FlatExpertId::new(self.base + expert.get());
        let owner = std::mem::replace(&mut self.expert_of[slot.index()], expert);
        if let Some(slot_of_owner) = self.slot_of.get_mut(owner.index()) {
            *slot_of_owner = SlotId::ABSENT;
        }
        self.slot_of[expert.index()] = slot;
        owner
    }
}
