//! What one step decided. A plan is a value: it moves nothing, and its buffers are used again by the next step.

use std::fmt;

use ftcache_policy::{Carried, ExpertId, FlatExpertId, LayerId, Model, PoolId, SlotId};

use crate::map::NOBODY;
use crate::{Misses, Phase, Stats, Step};

/// One row to one slot, in every bank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Copy {
    /// Where it goes, local to the plan's pool.
    pub slot: SlotId,
    /// The expert within the plan's layer, which is the row in the layer's banks.
    pub row: ExpertId,
}

/// `count` rows from `row` on, to `count` slots from `slot` on: neighbouring rows that go to neighbouring slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Run {
    /// The first slot.
    pub slot: SlotId,
    /// The first row.
    pub row: ExpertId,
    /// Rows and slots.
    pub count: u32,
}

/// The runs of copies whose rows ascend, in their order.
pub fn runs(copies: &[Copy]) -> impl Iterator<Item = Run> + '_ {
    let follows = |a: &Copy, b: &Copy| b.row.get() == a.row.get() + 1 && b.slot.get() == a.slot.get() + 1;
    copies.chunk_by(follows).map(|run| Run { slot: run[0].slot, row: run[0].row, count: run.len() as u32 })
}

/// Who had a slot before it was given to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Victim {
    /// The expert that lost its slot.
    pub expert: FlatExpertId,
    /// The stamp it had: the step that last used it, or 1 if it was to go first.
    pub last_step: u64,
}

/// A slot for each route, and the copies to make first.
#[derive(Debug)]
pub struct Plan {
    pub(crate) number: u64,
    pub(crate) step: Step,
    pub(crate) pool: PoolId,
    pub(crate) routes: Vec<ExpertId>,
    /// `slots.len() == routes.len()`.
    pub(crate) slots: Vec<SlotId>,
    /// As many as `stats.fetched`, then room: in the order in which victims were taken.
    pub(crate) copies: Vec<Copy>,
    /// As many and as much room; nobody, with stamp 0, where the slot was free.
    pub(crate) victims: Vec<Victim>,
    /// The copies ascending by row, or empty if they are so already.
    pub(crate) by_row: Vec<Copy>,
    /// Experts left to the CPU that could have been fetched, in the order in which they would have been.
    pub(crate) left: Vec<ExpertId>,
    /// What the step adds to the statistics.
    pub(crate) stats: Stats,
    /// What a hybrid step leaves its layer's next.
    pub(crate) carried: Carried,
    pub(crate) is_repeat: bool,
    pub(crate) awaits: Option<u64>,
}

impl Plan {
    /// An empty plan, to be filled by the first step.
    pub fn new() -> Self {
        Self::with_capacity(0)
    }

    /// An empty plan with room for steps of `route_count` routes, which then allocate nothing.
    pub fn with_capacity(route_count: usize) -> Self {
        let mut plan = Self {
            number: 0,
            step: Step::new(LayerId::new(0)),
            pool: PoolId::new(0),
            routes: Vec::new(),
            slots: Vec::new(),
            copies: Vec::new(),
            victims: Vec::new(),
            by_row: Vec::new(),
            left: Vec::new(),
            stats: Stats::default(),
            carried: Carried::default(),
            is_repeat: false,
            awaits: None,
        };
        plan.reserve(route_count);
        plan
    }

    /// The number of the step that decided this, counted from 1 over the whole cache.
    pub fn step(&self) -> u64 {
        self.number
    }

    /// The layer that was routed.
    pub fn layer(&self) -> LayerId {
        self.step.layer
    }

    /// What the step was for.
    pub fn phase(&self) -> Phase {
        self.step.phase
    }

    /// What becomes of its misses.
    pub fn misses(&self) -> Misses {
        self.step.misses
    }

    /// The pool that serves the layer; slots are local to this pool.
    pub fn pool(&self) -> PoolId {
        self.pool
    }

    /// The routes as they were given.
    pub fn routes(&self) -> &[ExpertId] {
        &self.routes
    }

    /// A slot for each route, in route order; [`SlotId::CPU`] for a route to an expert that was not fetched, and
    /// [`SlotId::ABSENT`] for one that is [`ExpertId::ABSENT`].
    pub fn slots(&self) -> &[SlotId] {
        &self.slots
    }

    /// The rows to copy, in the order in which they took their slots: ascending by row, or in a hybrid step by how
    /// recently their experts were active.
    pub fn copies(&self) -> &[Copy] {
        &self.copies[..self.stats.fetched as usize]
    }

    /// The same copies as the fewest runs of neighbouring rows to neighbouring slots, ascending by row.
    pub fn runs(&self) -> impl Iterator<Item = Run> + '_ {
        runs(if self.by_row.is_empty() { self.copies() } else { &self.by_row })
    }

    /// Bytes that the copies move in each bank.
    ///
    /// # Panics
    ///
    /// If the model has no such layer.
    pub fn bank_bytes<'a>(&self, model: &'a Model) -> impl Iterator<Item = u64> + 'a {
        let copies = self.stats.fetched;
        model.layer(self.layer()).row_bytes().iter().map(move |row_bytes| row_bytes * copies)
    }

    /// Who lost the slot of each copy; `None` where it was free.
    pub fn victims(&self) -> impl ExactSizeIterator<Item = Option<Victim>> + '_ {
        let victims = &self.victims[..self.stats.fetched as usize];
        victims.iter().map(|victim| (victim.expert != NOBODY).then_some(*victim))
    }

    /// Routes that are not absent.
    pub fn present_count(&self) -> usize {
        self.stats.routes as usize
    }

    /// Distinct experts among the routes.
    pub fn distinct_count(&self) -> usize {
        self.stats.distinct as usize
    }

    /// Distinct experts that were not resident before.
    pub fn miss_count(&self) -> usize {
        self.stats.misses as usize
    }

    /// Of these, those that are left to the CPU.
    pub fn left_count(&self) -> usize {
        self.stats.left() as usize
    }

    /// Copies that take a slot from another expert.
    pub fn eviction_count(&self) -> usize {
        self.stats.evictions as usize
    }

    /// Whether this is the answer to an earlier call with the same token. Its copies are those of that call: whoever
    /// has carried them out has nothing left to do but to commit the ticket, as one that is dropped frees the slots.
    pub fn is_repeat(&self) -> bool {
        self.is_repeat
    }

    /// The flight of a hint that the step's copies and its kernels come behind, as they do behind the flights of hints
    /// before it: it brings rows that the step uses, or was to bring some to slots that the step takes.
    pub fn awaits(&self) -> Option<u64> {
        self.awaits
    }

    /// The expert of each route that the CPU computes, in route order; `None` for the others.
    pub fn cpu_experts(&self) -> impl ExactSizeIterator<Item = Option<ExpertId>> + '_ {
        self.slots.iter().zip(&self.routes).map(|(slot, route)| (*slot == SlotId::CPU).then_some(*route))
    }

    /// A slot for each route as a number, with the caller's values for a route that is absent and for one that the CPU
    /// computes. They should be no slots of the pool.
    pub fn slot_numbers(&self, absent: i64, cpu: i64) -> impl ExactSizeIterator<Item = i64> + '_ {
        self.slots.iter().map(move |&slot| match slot {
            SlotId::ABSENT => absent,
            SlotId::CPU => cpu,
            slot => i64::from(slot.get()),
        })
    }

    /// The experts left to the CPU that could have been fetched, in the order in which they would have been; those
    /// whose rows are on their way are not among them.
    pub fn left(&self) -> &[ExpertId] {
        &self.left
    }

    /// Parts the routes' weights between device and CPU: each goes to the side that computes it, and is 0 on the
    /// other. An absent route's is 0 on both.
    ///
    /// # Panics
    ///
    /// If a slice is not as long as the routes.
    pub fn split_weights(&self, weights: &[f32], device: &mut [f32], cpu: &mut [f32]) {
        let routes = self.slots.len();
        assert_eq!((weights.len(), device.len(), cpu.len()), (routes, routes, routes), "a weight for each route");
        for (((slot, weight), device), cpu) in self.slots.iter().zip(weights).zip(device).zip(cpu) {
            *device = if slot.is_slot() { *weight } else { 0.0 };
            *cpu = if *slot == SlotId::CPU { *weight } else { 0.0 };
        }
    }

    /// The same answer as a map of the layer's experts: `places[expert]` is its slot, [`SlotId::CPU`], or
    /// [`SlotId::ABSENT`] if the step does not route to it.
    ///
    /// # Panics
    ///
    /// If `places` is too short for an expert of the step.
    pub fn write_map(&self, places: &mut [SlotId]) {
        places.fill(SlotId::ABSENT);
        for (route, slot) in self.routes.iter().zip(&self.slots).filter(|(route, _)| **route != ExpertId::ABSENT) {
            places[route.index()] = *slot;
        }
    }

    /// Makes room for steps of `route_count` routes, which then allocate nothing.
    #[inline]
    pub fn reserve(&mut self, route_count: usize) {
        if self.copies.len() < route_count {
            let Self { routes, slots, copies, victims, by_row, left, .. } = self;
            left.reserve(route_count - left.len());
            routes.reserve(route_count - routes.len());
            slots.reserve(route_count - slots.len());
            copies.resize(route_count, Copy { slot: SlotId::ABSENT, row: ExpertId::ABSENT });
            victims.resize(route_count, Victim { expert: NOBODY, last_step: 0 });
            by_row.reserve(route_count - by_row.len());
        }
    }

    #[inline]
    pub(crate) fn begin(&mut self, number: u64, step: &Step, pool: PoolId, routes: &[ExpertId]) {
        self.number = number;
        self.step = *step;
        self.pool = pool;
        self.reserve(routes.len());
        self.routes.clear();
        self.routes.extend_from_slice(routes);
        self.slots.clear();
        self.by_row.clear();
        self.left.clear();
        self.is_repeat = false;
        self.awaits = None;
    }

    /// Has the runs sorted, where copies were decided in another order than that of rows.
    pub(crate) fn sort_by_row(&mut self) {
        let copies = &self.copies[..self.stats.fetched as usize];
        if !copies.is_sorted_by_key(|copy| copy.row) {
            self.by_row.extend_from_slice(copies);
            self.by_row.sort_unstable_by_key(|copy| copy.row);
        }
    }
}

impl Clone for Plan {
    fn clone(&self) -> Self {
        let mut plan = Self::new();
        plan.clone_from(self);
        plan
    }

    /// Keeps the buffers.
    fn clone_from(&mut self, source: &Self) {
        self.reserve(source.routes.len());
        let Self { number, step, pool, routes, slots, copies, victims, by_row, left, .. } = self;
        left.clone_from(&source.left);
        (*number, *step, *pool) = (source.number, source.step, source.pool);
        routes.clone_from(&source.routes);
        slots.clone_from(&source.slots);
        let fetched = source.stats.fetched as usize;
        copies[..fetched].copy_from_slice(&source.copies[..fetched]);
        victims[..fetched].copy_from_slice(&source.victims[..fetched]);
        by_row.clone_from(&source.by_row);
        self.stats = source.stats;
        self.carried = source.carried;
        self.is_repeat = source.is_repeat;
        self.awaits = source.awaits;
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
        write!(f, "step {} pool {}: routes ", self.number, self.pool)?;
        write_list(f, &self.routes, |f, &route| match route {
            ExpertId::ABSENT => f.write_str("-"),
            route => write!(f, "{route}"),
        })?;
        write!(f, " -> slots ")?;
        write_list(f, &self.slots, |f, &slot| match slot {
            SlotId::ABSENT => f.write_str("-"),
            SlotId::CPU => f.write_str("cpu"),
            slot => write!(f, "{slot}"),
        })?;
        for (copy, victim) in self.copies().iter().zip(self.victims()) {
            write!(f, "; copy {} -> slot {}", copy.row, copy.slot)?;
            if let Some(victim) = victim {
                write!(f, " (was {}, last step {})", victim.expert, victim.last_step)?;
            }
        }
        Ok(())
    }
}

fn write_list<T>(
    f: &mut fmt::Formatter<'_>,
    items: &[T],
    each: impl Fn(&mut fmt::Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    f.write_str("[")?;
    for (index, item) in items.iter().enumerate() {
        f.write_str(if index == 0 { "" } else { ", " })?;
        each(f, item)?;
    }
    f.write_str("]")
}
