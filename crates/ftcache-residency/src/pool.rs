//! One slot range with its own recency: where a step's experts go.

use ftcache_policy::{BitSet, ExpertId, FlatExpertId, LayerId, PoolId, Recency, SlotId, sort_distinct};

use crate::map::Map;
use crate::{Copy, EnsureError, Plan, Victim};

/// `slot_of` of an expert that this step has seen to miss and not placed yet.
const PENDING: SlotId = SlotId::new(SlotId::ABSENT.get() - 1);

/// Buffers of an admission, shared by all pools. They keep their length; a step says how much of them it has filled.
#[derive(Debug, Clone)]
pub(crate) struct Scratch {
    /// Slots of hits, duplicates included; at least as long as the widest step.
    hits: Vec<SlotId>,
    /// Distinct misses; as long.
    misses: Vec<u32>,
    /// The slots they take, with the stamps that those had; as long.
    victims: Vec<(SlotId, u64)>,
    /// Empty.
    experts: BitSet,
}

impl Scratch {
    pub(crate) fn new(expert_count: u32) -> Self {
        let experts = BitSet::new(expert_count as usize);
        Self { hits: Vec::new(), misses: Vec::new(), victims: Vec::new(), experts }
    }

    pub(crate) fn widen(&mut self, route_count: usize) {
        if self.hits.len() < route_count {
            self.hits.resize(route_count, SlotId::ABSENT);
            self.misses.resize(route_count, 0);
            self.victims.resize(route_count, (SlotId::ABSENT, 0));
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
    /// Fails before anything has changed, the plan included.
    pub(crate) fn ensure(
        &mut self,
        step: u64,
        layer: LayerId,
        routes: &[ExpertId],
        map: &mut Map,
        scratch: &mut Scratch,
        plan: &mut Plan,
    ) -> Result<(), EnsureError> {
        check_ids(layer, routes, map.expert_count())?;
        // A step of few routes fits whatever they are; only of a wider one the experts are told apart first.
        if routes.len() > self.recency.slot_count() as usize {
            self.check_width(layer, routes, &mut scratch.experts)?;
        }

        plan.begin(step, layer, self.id, routes);
        scratch.widen(routes.len());
        let Scratch { hits, misses, victims, experts } = scratch;
        let parts = part(routes, map.slots_of_layer_mut(layer), hits, misses);
        let misses = &mut misses[..parts.miss_count];
        // Hits first: stamping them with this step is what keeps them from being chosen below.
        let hit_count = self.recency.touch(&hits[..parts.hit_count], step);
        plan.present_count = routes.len() - parts.absent_count;
        plan.distinct_count = hit_count + misses.len();
        if !misses.is_empty() {
            sort_distinct(misses, experts);
            let victims = &mut victims[..misses.len()];
            self.place_misses(step, layer, map, misses, victims, plan);
        }
        let slot_of = map.slots_of_layer(layer);
        if parts.absent_count == 0 {
            plan.slots.extend(routes.iter().map(|route| slot_of[route.index()]));
        } else {
            // Ids are checked, so what is outside is absent.
            plan.slots.extend(routes.iter().map(|route| slot_of.get(route.index()).copied().unwrap_or(SlotId::ABSENT)));
        }
        Ok(())
    }

    /// The i-th of the misses, which ascend, takes the i-th victim.
    fn place_misses(
        &mut self,
        step: u64,
        layer: LayerId,
        map: &mut Map,
        misses: &[u32],
        victims: &mut [(SlotId, u64)],
        plan: &mut Plan,
    ) {
        let free_count = self.recency.take_victims(victims, step);
        plan.eviction_count = misses.len() - free_count;
        let placed = || misses.iter().map(|&row| ExpertId::new(row)).zip(&*victims);
        plan.copies.extend(placed().map(|(row, &(slot, _))| Copy { slot, row }));
        let mut places = map.places(layer, self.first);
        plan.victims
            .extend(placed().map(|(row, &(slot, last_step))| Victim { expert: places.place(row, slot), last_step }));
    }

    fn check_width(&self, layer: LayerId, routes: &[ExpertId], experts: &mut BitSet) -> Result<(), EnsureError> {
        for route in routes.iter().filter(|&&route| route != ExpertId::ABSENT) {
            experts.insert(route.index());
        }
        let (needed, given) = (experts.len(), self.recency.slot_count() as usize);
        experts.clear();
        if needed > given {
            return Err(EnsureError::StepTooWide { layer, pool: self.id, needed, given });
        }
        Ok(())
    }

    /// Frees a slot. Returns the owner that lost it.
    pub(crate) fn forget(&mut self, slot: SlotId, map: &mut Map) -> Option<FlatExpertId> {
        self.recency.release(slot);
        map.vacate(self.first, slot)
    }
}

struct Parts {
    hit_count: usize,
    miss_count: usize,
    absent_count: usize,
}

/// Parts the routes into slots of hits and distinct misses, and marks the misses' experts as pending.
///
/// Whether a route hits is a coin toss to the processor, so nothing here branches on it: each route is written to both
/// buffers, and one of the counts moves on.
#[inline]
fn part(routes: &[ExpertId], slot_of: &mut [SlotId], hits: &mut [SlotId], misses: &mut [u32]) -> Parts {
    let (hits, misses) = (&mut hits[..routes.len()], &mut misses[..routes.len()]);
    let mut parts = Parts { hit_count: 0, miss_count: 0, absent_count: 0 };
    for route in routes {
        // Ids are checked, so what is outside is absent.
        let Some(place) = slot_of.get_mut(route.index()) else {
            parts.absent_count += 1;
            continue;
        };
        let slot = *place;
        let (hit, miss) = (slot.get() < PENDING.get(), slot == SlotId::ABSENT);
        hits[parts.hit_count] = slot;
        parts.hit_count += usize::from(hit);
        misses[parts.miss_count] = route.get();
        parts.miss_count += usize::from(miss);
        *place = if miss { PENDING } else { slot };
    }
    parts
}

fn check_ids(layer: LayerId, routes: &[ExpertId], expert_count: u32) -> Result<(), EnsureError> {
    // One comparison: the absent id, which is the highest, wraps to zero. And no way out of the loop, so that it is
    // done several routes at a time.
    let stray = |route: ExpertId| route.get().wrapping_add(1) > expert_count;
    if !routes.iter().fold(false, |any, &route| any | stray(route)) {
        return Ok(());
    }
    let route = routes.iter().position(|&route| stray(route)).expect("one was seen");
    Err(EnsureError::UnknownExpert { layer, route, expert: routes[route], expert_count })
}
