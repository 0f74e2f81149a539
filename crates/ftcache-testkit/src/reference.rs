//! The slow, obvious model of admission: a table of slots, scanned for every victim.
//!
//! Written from the rules alone, with types of its own. Where it makes the same choice as the code (ties of stamps go
//! to the lower slot; misses ascend by expert), the choice comes from the reference kernels, whose runs are
//! `testdata/golden/lru.jsonl`, and the model is held to those vectors too.

use std::collections::BTreeSet;

/// One pool's slots: `(stamp, owner)` with the owner as `(layer, expert)`, and stamp 0 for a free slot.
type Slots = Vec<(u64, Option<(u32, u32)>)>;

/// What a step came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// A slot for each route.
    pub slots: Vec<u32>,
    /// `(slot, row)` in the order in which they are made.
    pub copies: Vec<(u32, u32)>,
    /// `(layer, expert)` that lost its slot, for each copy.
    pub evicted: Vec<Option<(u32, u32)>>,
}

/// Why a step was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Distinct experts and slots of the pool.
    TooWide(usize, usize),
    /// Index of the first route that is no expert.
    NoExpert(usize),
}

/// The model.
#[derive(Debug, Clone)]
pub struct Reference {
    expert_count: u32,
    pool_of_layer: Vec<u32>,
    pools: Vec<Slots>,
    step: u64,
}

impl Reference {
    /// Empty pools of the given sizes.
    pub fn new(expert_count: u32, pool_of_layer: &[u32], pool_sizes: &[u32]) -> Self {
        let pools = pool_sizes.iter().map(|&size| vec![(0, None); size as usize]).collect();
        Self { expert_count, pool_of_layer: pool_of_layer.to_vec(), pools, step: 0 }
    }

    /// One step of a layer.
    ///
    /// # Errors
    ///
    /// A route that is no expert, or more distinct experts than the pool has slots; nothing changes then.
    pub fn ensure(&mut self, layer: u32, routes: &[u32]) -> Result<Answer, Refusal> {
        if let Some(index) = routes.iter().position(|&route| route >= self.expert_count) {
            return Err(Refusal::NoExpert(index));
        }
        let distinct: BTreeSet<u32> = routes.iter().copied().collect();
        let slots = &mut self.pools[self.pool_of_layer[layer as usize] as usize];
        if distinct.len() > slots.len() {
            return Err(Refusal::TooWide(distinct.len(), slots.len()));
        }
        self.step += 1;
        let step = self.step;
        let mut misses = Vec::new();
        for &expert in &distinct {
            match slots.iter_mut().find(|(_, owner)| *owner == Some((layer, expert))) {
                Some((stamp, _)) => *stamp = step,
                None => misses.push(expert),
            }
        }
        let mut answer = Answer { slots: Vec::new(), copies: Vec::new(), evicted: Vec::new() };
        for expert in misses {
            let candidates = (0..slots.len()).filter(|&slot| slots[slot].0 < step);
            let victim = candidates.min_by_key(|&slot| (slots[slot].0, slot)).expect("the step fits the pool");
            answer.copies.push((victim as u32, expert));
            answer.evicted.push(slots[victim].1);
            slots[victim] = (step, Some((layer, expert)));
        }
        for &route in routes {
            let slot = slots.iter().position(|(_, owner)| *owner == Some((layer, route))).expect("it was placed");
            answer.slots.push(slot as u32);
        }
        Ok(answer)
    }

    /// Frees a slot.
    pub fn forget(&mut self, pool: u32, slot: u32) {
        self.pools[pool as usize][slot as usize] = (0, None);
    }

    /// Frees every slot of a layer.
    pub fn forget_layer(&mut self, layer: u32) {
        let slots = &mut self.pools[self.pool_of_layer[layer as usize] as usize];
        for slot in slots.iter_mut().filter(|(_, owner)| owner.is_some_and(|(of, _)| of == layer)) {
            *slot = (0, None);
        }
    }

    /// Frees every slot.
    pub fn reset(&mut self) {
        for slots in &mut self.pools {
            slots.fill((0, None));
        }
    }

    /// The slot of an expert.
    pub fn slot_of(&self, layer: u32, expert: u32) -> Option<u32> {
        let slots = &self.pools[self.pool_of_layer[layer as usize] as usize];
        slots.iter().position(|(_, owner)| *owner == Some((layer, expert))).map(|slot| slot as u32)
    }

    /// Step that last used a slot; 0 if it is free.
    pub fn stamp(&self, pool: u32, slot: u32) -> u64 {
        self.pools[pool as usize][slot as usize].0
    }
}
