//! What one step decided. A plan is a value: it moves nothing, and its buffers are used again by the next step.

use std::fmt;

use ftcache_policy::{ExpertId, FlatExpertId, LayerId, PoolId, SlotId};

/// One row to one slot, in every bank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Copy {
    /// Where it goes, local to the plan's pool.
    pub slot: SlotId,
    /// The expert within the plan's layer, which is the row in the layer's banks.
    pub row: ExpertId,
}

/// Who had a slot before it was given to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Victim {
    /// The expert that lost its slot.
    pub expert: FlatExpertId,
    /// Step that last used it.
    pub last_step: u64,
}

/// A slot for each route, and the copies to make first.
#[derive(Debug, Clone)]
pub struct Plan {
    pub(crate) step: u64,
    pub(crate) layer: LayerId,
    pub(crate) pool: PoolId,
    pub(crate) routes: Vec<ExpertId>,
    /// `slots.len() == routes.len()`.
    pub(crate) slots: Vec<SlotId>,
    /// Rows ascend.
    pub(crate) copies: Vec<Copy>,
    /// `victims.len() == copies.len()`; nobody, last used in step 0, where the slot was free.
    pub(crate) victims: Vec<Victim>,
    pub(crate) eviction_count: usize,
    pub(crate) present_count: usize,
    pub(crate) distinct_count: usize,
}

impl Plan {
    /// An empty plan, to be filled by the first step.
    pub fn new() -> Self {
        Self::with_capacity(0)
    }

    /// An empty plan with room for steps of `route_count` routes, which then allocate nothing.
    pub fn with_capacity(route_count: usize) -> Self {
        Self {
            step: 0,
            layer: LayerId::new(0),
            pool: PoolId::new(0),
            routes: Vec::with_capacity(route_count),
            slots: Vec::with_capacity(route_count),
            copies: Vec::with_capacity(route_count),
            victims: Vec::with_capacity(route_count),
            eviction_count: 0,
            present_count: 0,
            distinct_count: 0,
        }
    }

    /// The step that decided this, counted from 1 over the whole cache.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The layer that was routed.
    pub fn layer(&self) -> LayerId {
        self.layer
    }

    /// The pool that serves it; slots are local to this pool.
    pub fn pool(&self) -> PoolId {
        self.pool
    }

    /// The routes as they were given.
    pub fn routes(&self) -> &[ExpertId] {
        &self.routes
    }

    /// A slot for each route, in route order; [`SlotId::ABSENT`] for a route that is [`ExpertId::ABSENT`].
    pub fn slots(&self) -> &[SlotId] {
        &self.slots
    }

    /// The rows to copy, ascending by row.
    pub fn copies(&self) -> &[Copy] {
        &self.copies
    }

    /// Who lost the slot of each copy; `None` where it was free.
    pub fn victims(&self) -> impl ExactSizeIterator<Item = Option<Victim>> + '_ {
        self.victims.iter().map(|victim| (victim.last_step > 0).then_some(*victim))
    }

    /// Routes that are not absent.
    pub fn present_count(&self) -> usize {
        self.present_count
    }

    /// Distinct experts among the routes.
    pub fn distinct_count(&self) -> usize {
        self.distinct_count
    }

    /// Distinct experts that were not resident before.
    pub fn miss_count(&self) -> usize {
        self.copies.len()
    }

    /// Copies that take a slot from another expert.
    pub fn eviction_count(&self) -> usize {
        self.eviction_count
    }

    pub(crate) fn begin(&mut self, step: u64, layer: LayerId, pool: PoolId, routes: &[ExpertId]) {
        self.step = step;
        self.layer = layer;
        self.pool = pool;
        self.routes.clear();
        self.routes.extend_from_slice(routes);
        self.slots.clear();
        self.copies.clear();
        self.victims.clear();
        self.eviction_count = 0;
    }
}

impl Default for Plan {
    fn default() -> Self {
        Self::new()
    }
}

/// One line: `step 7 pool 0: routes [5, 2, 5, 9] -> slots [2, 1, 2, 0]; copy 9 -> slot 0 (was 31, last step 2)`.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {} pool {}: routes ", self.step, self.pool)?;
        let route = |route: &ExpertId| if *route == ExpertId::ABSENT { None } else { Some(route.get()) };
        write_list(f, self.routes.iter().map(route))?;
        write!(f, " -> slots ")?;
        write_list(f, self.slots.iter().map(|slot| slot.is_slot().then_some(slot.get())))?;
        for (copy, victim) in self.copies.iter().zip(self.victims()) {
            write!(f, "; copy {} -> slot {}", copy.row, copy.slot)?;
            if let Some(victim) = victim {
                write!(f, " (was {}, last step {})", victim.expert, victim.last_step)?;
            }
        }
        Ok(())
    }
}

fn write_list(f: &mut fmt::Formatter<'_>, numbers: impl Iterator<Item = Option<u32>>) -> fmt::Result {
    write!(f, "[")?;
    for (index, number) in numbers.enumerate() {
        let comma = if index == 0 { "" } else { ", " };
        match number {
            Some(number) => write!(f, "{comma}{number}")?,
            None => write!(f, "{comma}-")?,
        }
    }
    write!(f, "]")
}
