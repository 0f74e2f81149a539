//! One slot range with its own recency: where a step's experts go.

use ftcache_policy::{ExpertId, FlatExpertId, LayerId, PoolId, Recency, SlotId};

use crate::map::Map;
use crate::{Copy, EnsureError, Plan, Victim};

/// Scratch of an admission, shared by all pools: no step allocates once it has grown.
#[derive(Debug, Clone)]
pub(crate) struct Scratch {
    /// `seen[expert] == attempt` iff the routes walked so far name the expert.
    seen: Vec<u64>,
    /// Counts calls, failed ones too, so that `seen` never needs clearing.
    attempt: u64,
    hits: Vec<SlotId>,
    misses: Vec<ExpertId>,
}

impl Scratch {
    pub(crate) fn new(expert_count: u32) -> Self {
        let capacity = expert_count as usize;
        Self {
            seen: vec![0; capacity],
            attempt: 0,
            hits: Vec::with_capacity(capacity),
            misses: Vec::with_capacity(capacity),
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Pool {
    pub(crate) id: PoolId,
    /// Number of slot 0 among the slots of all pools.
    pub(crate) first: u32,
    pub(crate) recency: Recency,
}

impl Pool {
    /// Makes every expert of `routes` resident as of `step` and writes the plan.
    ///
    /// Fails before anything but scratch and plan has changed.
    pub(crate) fn ensure(
        &mut self,
        step: u64,
        layer: LayerId,
        routes: &[ExpertId],
        map: &mut Map,
        scratch: &mut Scratch,
        plan: &mut Plan,
    ) -> Result<(), EnsureError> {
        plan.begin(layer, self.id);
        self.look_up(layer, routes, map.slots_of_layer(layer), scratch, plan)?;

        let given = self.recency.slot_count() as usize;
        if plan.distinct_count > given {
            return Err(EnsureError::StepTooWide { layer, pool: self.id, needed: plan.distinct_count, given });
        }

        plan.step = step;
        // Hits first: stamping them with this step is what keeps them from being chosen below.
        for &slot in &scratch.hits {
            self.recency.touch(slot, step);
        }
        if scratch.misses.is_empty() {
            return Ok(());
        }
        scratch.misses.sort_unstable();
        for &row in &scratch.misses {
            let (slot, last_step) = self.recency.take_victim(step);
            let owner = map.place(map.flat(layer, row), self.first, slot);
            plan.copies.push(Copy { slot, row });
            plan.victims.push(owner.map(|expert| Victim { expert, last_step }));
        }
        let slot_of = map.slots_of_layer(layer);
        for (slot, route) in plan.slots.iter_mut().zip(routes) {
            if !slot.is_slot() && *route != ExpertId::ABSENT {
                *slot = slot_of[route.index()];
            }
        }
        Ok(())
    }

    /// One walk over the routes: the slots of those that are resident, the distinct hits and the distinct misses.
    fn look_up(
        &self,
        layer: LayerId,
        routes: &[ExpertId],
        slot_of: &[SlotId],
        scratch: &mut Scratch,
        plan: &mut Plan,
    ) -> Result<(), EnsureError> {
        let Scratch { seen, attempt, hits, misses } = scratch;
        *attempt += 1;
        hits.clear();
        misses.clear();
        plan.routes.extend_from_slice(routes);
        plan.slots.reserve(routes.len());
        for (index, &route) in routes.iter().enumerate() {
            let Some(&slot) = slot_of.get(route.index()) else {
                if route == ExpertId::ABSENT {
                    plan.slots.push(SlotId::ABSENT);
                    continue;
                }
                let expert_count = slot_of.len() as u32;
                return Err(EnsureError::UnknownExpert { layer, route: index, expert: route, expert_count });
            };
            plan.present_count += 1;
            plan.slots.push(slot);
            if seen[route.index()] == *attempt {
                continue;
            }
            seen[route.index()] = *attempt;
            if slot.is_slot() { hits.push(slot) } else { misses.push(route) }
        }
        plan.distinct_count = hits.len() + misses.len();
        Ok(())
    }

    /// Frees a slot. Returns the owner that lost it.
    pub(crate) fn forget(&mut self, slot: SlotId, map: &mut Map) -> Option<FlatExpertId> {
        self.recency.release(slot);
        map.vacate(self.first, slot)
    }
}
