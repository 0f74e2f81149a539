//! One slot range with its own recency: where a step's experts go.

use std::cmp::Reverse;
use std::iter::Zip;
use std::ops::Range;
use std::slice;

use ftcache_policy::{
    BitSet, Carried, ExpertId, FetchOrder, FlatExpertId, LayerId, PoolId, Recency, SORT_LANES, SlotId, sort_distinct,
    sort_first,
};

use crate::map::{Absence, Expert, Map, Place, Placing, Routing};
use crate::ranking::{Ranking, Slots};
use crate::{Copy, EnsureError, Misses, Phase, Plan, Stats, Step, Victim};

/// Buffers of an admission, shared by all pools. They keep their length; a step says how much of them it has filled.
#[derive(Debug, Clone)]
pub(crate) struct Scratch {
    /// Slots of hits, duplicates included; at least as long as the widest step.
    hits: Vec<SlotId>,
    /// Distinct misses; as long, and with the room that sorting asks for.
    misses: Vec<u32>,
    /// Empty.
    pub(crate) experts: BitSet,
    /// Empty; for the slots of the widest pool.
    pub(crate) slots: BitSet,
    /// Of any length.
    pub(crate) list: Vec<SlotId>,
}

impl Scratch {
    pub(crate) fn new(expert_count: u32, widest_pool: u32) -> Self {
        let experts = BitSet::new(expert_count as usize);
        let slots = BitSet::new(widest_pool as usize);
        Self { hits: Vec::new(), misses: Vec::new(), experts, slots, list: Vec::new() }
    }

    /// Steps of this many routes have room.
    pub(crate) fn width(&self) -> usize {
        self.hits.len()
    }

    /// Whether the sets are as empty as a step must find them.
    pub(crate) fn is_clean(&self) -> bool {
        self.experts.is_empty() && self.slots.is_empty()
    }

    pub(crate) fn widen(&mut self, route_count: usize) {
        if self.hits.len() < route_count {
            self.list.reserve(route_count.saturating_sub(self.list.len()));
            self.hits.resize(route_count, SlotId::ABSENT);
            self.misses.resize(route_count.max(SORT_LANES), 0);
        }
    }
}

/// A step to be admitted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Admission<'a> {
    /// Its number.
    pub(crate) number: u64,
    pub(crate) step: &'a Step,
    pub(crate) routes: &'a [ExpertId],
    /// For each expert of the layer, the last hybrid step that routed to it; 0 for none.
    pub(crate) active: &'a [u64],
    /// What the fetch rule has carried from the layer's steps before.
    pub(crate) carried: Carried,
    /// Whether any row of the cache is on its way.
    pub(crate) flights: bool,
}

/// What all pools have in common and steps change.
pub(crate) struct Common<'a> {
    pub(crate) map: &'a mut Map,
    pub(crate) ranking: Option<&'a mut Ranking>,
}

#[derive(Debug, Clone)]
pub(crate) struct Pool {
    pub(crate) id: PoolId,
    /// Number of slot 0 among the slots of all pools.
    pub(crate) first: u32,
    pub(crate) recency: Recency,
}

impl Pool {
    /// Its slots among those of all pools.
    pub(crate) fn slots(&self) -> Range<usize> {
        self.first as usize..(self.first + self.recency.slot_count()) as usize
    }

    /// Slots that steps may have, those that are pinned included.
    pub(crate) fn open_count(&self) -> u32 {
        self.recency.slot_count() - self.recency.withheld()
    }

    /// Makes every expert of the routes resident, or as many as a hybrid step is to fetch, writes the plan, and counts
    /// the routes and the step.
    ///
    /// The routes' ids are checked. Fails before anything has changed, the plan included.
    pub(crate) fn ensure(
        &mut self,
        admission: Admission<'_>,
        common: Common<'_>,
        tally: &mut Stats,
        scratch: &mut Scratch,
        plan: &mut Plan,
    ) -> Result<(), EnsureError> {
        let Admission { number, step, routes, .. } = admission;
        let Common { map, mut ranking } = common;
        let is_plain = step.misses == Misses::Fetched;
        // A step of few routes fits whatever they are; only of a wider one the experts are told apart first.
        if is_plain && routes.len() > (self.open_count() - self.recency.pinned_count()) as usize {
            self.check_width(step.layer, routes, map, &mut scratch.experts)?;
        }

        if let Some(ranking) = ranking.as_deref_mut().filter(|_| step.phase == Phase::Decode) {
            ranking.count(step.layer, routes, step.continues);
        }
        plan.begin(number, step, self.id, routes);
        scratch.widen(routes.len());
        let parts = part(routes, map.routing(step.layer), &mut scratch.hits, &mut scratch.misses);
        if is_plain && step.phase == Phase::Decode {
            let Scratch { hits, misses, experts, .. } = scratch;
            // Hits first: stamping them with this step is what keeps them from being chosen below.
            let hit_count = self.recency.touch(&hits[..parts.hit_count], number);
            let (mut free_count, mut absences) = (0, Absences::default());
            if parts.miss_count > 0 {
                sort_first(misses, parts.miss_count, experts);
                let fetched = &misses[..parts.miss_count];
                let placer;
                (free_count, placer) = self.place(&admission, fetched, None, Common { map: &mut *map, ranking }, plan);
                absences = placer.absences;
            }
            let placed =
                Placed { distinct_hits: hit_count, fetched: parts.miss_count, free_count, absences: &absences };
            parts.count(step, routes, placed, &mut plan.stats, tally);
        } else {
            self.admit_sparing(admission, &parts, Common { map: &mut *map, ranking }, tally, scratch, plan);
        }
        answer(routes, map.layer(step.layer), parts.absent_count == 0 && plan.left_count() == 0, &mut plan.slots);
        Ok(())
    }

    /// The rest of a step that does not stamp its hits, or does not fetch all its misses.
    fn admit_sparing(
        &mut self,
        admission: Admission<'_>,
        parts: &Parted,
        common: Common<'_>,
        tally: &mut Stats,
        scratch: &mut Scratch,
        plan: &mut Plan,
    ) {
        let Step { layer, phase, misses: rule, .. } = *admission.step;
        let Common { map, ranking } = common;
        let Scratch { hits, misses, experts, slots, .. } = scratch;
        let (hits, misses) = (&hits[..parts.hit_count], &mut misses[..parts.miss_count]);
        let mut pinned_hits = 0;
        for &slot in hits {
            if slots.insert(slot.index()) {
                pinned_hits += u32::from(self.recency.is_pinned(slot));
            }
        }
        let hit_count = slots.len() as u32;
        // What is on its way already goes to the CPU, and is no miss that could be fetched.
        let fetchable = if admission.flights { set_in_flight_apart(misses, map.layer(layer)) } else { misses.len() };
        let (misses, in_flight) = misses.split_at_mut(fetchable);
        let fetched_count = match rule {
            Misses::Fetched => {
                sort_distinct(misses, experts);
                misses.len()
            }
            Misses::Hybrid { fetch, order } => {
                let unused = self.open_count() - hit_count - (self.recency.pinned_count() - pinned_hits);
                plan.carried = admission.carried;
                let count = fetch.fetched_count(misses.len() as u32, unused, &mut plan.carried) as usize;
                match order {
                    FetchOrder::LowestId => sort_distinct(misses, experts),
                    FetchOrder::Recency => {
                        misses.sort_unstable_by_key(|&row| (Reverse(admission.active[row as usize]), row));
                    }
                }
                count
            }
        };
        let (fetched, left) = misses.split_at(fetched_count);
        plan.left.extend(left.iter().copied().map(ExpertId::new));
        let (free_count, mut placer) = self.place(&admission, fetched, Some(slots), Common { map, ranking }, plan);
        left.iter().chain(&*in_flight).for_each(|&row| placer.leave(row));
        let absences = placer.absences;
        let placed = Placed { distinct_hits: slots.len(), fetched: fetched.len(), free_count, absences: &absences };
        parts.count(admission.step, admission.routes, placed, &mut plan.stats, tally);
        plan.sort_by_row();
        slots.clear();
        match phase {
            Phase::Decode => {
                self.recency.touch(hits, admission.number);
            }
            Phase::Verify => {}
            Phase::Prefill => self.recency.cool(plan.copies().iter().map(|copy| copy.slot)),
        }
    }

    /// Puts rows into the slots that go first, sparing those of `spared` and those that the step has stamped. Returns
    /// how many were free.
    #[inline]
    fn place<'a>(
        &mut self,
        admission: &Admission<'_>,
        rows: &'a [u32],
        spared: Option<&BitSet>,
        common: Common<'a>,
        plan: &'a mut Plan,
    ) -> (usize, Placer<'a>) {
        let (number, layer) = (admission.number, admission.step.layer);
        let Common { map, ranking } = common;
        if let Some(ranking) = ranking {
            let slots = Slots { pool: self.id, recency: &mut self.recency, number, layer, spared };
            let free_count = ranking.take_victims(rows.len(), slots, map);
            let mut placer = Placer::new(rows, map.placing(layer, self.first), plan);
            ranking.taken().iter().for_each(|&(slot, stamp)| placer.put(slot, stamp));
            ranking.add_taken(layer, rows);
            return (free_count, placer);
        }
        let mut placer = Placer::new(rows, map.placing(layer, self.first), plan);
        let put = |slot, stamp| placer.put(slot, stamp);
        let free_count = match spared {
            None => self.recency.take_victims(rows.len(), number, put),
            Some(spared) => self.recency.take_victims_sparing(rows.len(), number, spared, put),
        };
        (free_count, placer)
    }

    /// Whether the distinct experts of a step fit into the slots that it may have.
    pub(crate) fn check_width(
        &self,
        layer: LayerId,
        routes: &[ExpertId],
        map: &Map,
        experts: &mut BitSet,
    ) -> Result<(), EnsureError> {
        let known = map.layer(layer);
        let mut pinned = self.recency.pinned_count();
        for route in routes.iter().filter(|&&route| route != ExpertId::ABSENT) {
            let place = known[route.index()].place;
            let is_pinned = place.is_slot() && self.recency.is_pinned(place.slot());
            pinned -= u32::from(experts.insert(route.index()) && is_pinned);
        }
        let needed = experts.len();
        experts.clear();
        let (slot_count, withheld) = (self.recency.slot_count(), self.recency.withheld());
        let given = slot_count - withheld - pinned;
        if needed > given as usize {
            return Err(EnsureError::StepTooWide { layer, pool: self.id, needed, given, slot_count, pinned, withheld });
        }
        Ok(())
    }

    /// Frees a slot. Returns the owner that lost it.
    pub(crate) fn free(&mut self, slot: SlotId, map: &mut Map, why: Absence) -> Option<FlatExpertId> {
        self.recency.release(slot);
        map.vacate(self.first, slot, why)
    }
}

/// Why a step's misses were absent: because they had been evicted, but for those that are told apart.
#[derive(Default)]
struct Absences {
    others: [u64; Absence::COUNT],
    any_other: bool,
}

impl Absences {
    #[inline]
    fn add(&mut self, was: Place) {
        if was.absence_index() != Absence::Evicted as usize {
            self.add_other(was);
        }
    }

    /// Apart from the other, which is all there is once a cache is warm.
    #[cold]
    fn add_other(&mut self, was: Place) {
        self.others[was.absence_index()] += 1;
        self.any_other = true;
    }

    #[inline]
    fn others(&self) -> [u64; Absence::COUNT] {
        if self.any_other { self.others } else { [0; Absence::COUNT] }
    }
}

/// Puts rows into the slots that are taken for them, the i-th row into the i-th slot, and writes down copies and
/// victims.
struct Placer<'a> {
    placing: Placing<'a>,
    /// What is left to do. One iterator, with one end to look at.
    left: Zip<Zip<slice::Iter<'a, u32>, slice::IterMut<'a, Copy>>, slice::IterMut<'a, Victim>>,
    absences: Absences,
}

impl<'a> Placer<'a> {
    #[inline]
    fn new(rows: &'a [u32], placing: Placing<'a>, plan: &'a mut Plan) -> Self {
        let left = rows.iter().zip(&mut plan.copies[..rows.len()]).zip(&mut plan.victims[..rows.len()]);
        Self { placing, left, absences: Absences::default() }
    }

    #[inline]
    fn put(&mut self, slot: SlotId, last_step: u64) {
        let ((&row, copy), victim) = self.left.next().expect("no more slots are taken than there are rows");
        let row = ExpertId::new(row);
        let (was, expert) = self.placing.put(row, slot);
        self.absences.add(was);
        *copy = Copy { slot, row };
        *victim = Victim { expert, last_step };
    }

    /// Leaves a row to the CPU.
    fn leave(&mut self, row: u32) {
        let was = self.placing.leave(ExpertId::new(row));
        self.absences.add(was);
    }
}

/// A slot for each route; `all` if every route has one.
#[inline]
fn answer(routes: &[ExpertId], experts: &[Expert], all: bool, slots: &mut Vec<SlotId>) {
    if all {
        slots.extend(routes.iter().map(|route| experts[route.index()].place.slot()));
        return;
    }
    // Ids are checked, so what is outside is absent.
    slots.extend(routes.iter().map(|route| match experts.get(route.index()) {
        Some(Expert { place, .. }) if place.is_slot() => place.slot(),
        Some(_) => SlotId::CPU,
        None => SlotId::ABSENT,
    }));
}

/// How many of a step's routes hit, how many distinct experts miss, and how many routes are absent.
struct Parted {
    hit_count: usize,
    miss_count: usize,
    absent_count: usize,
}

impl Parted {
    /// Writes down what the step adds to the statistics, and adds it to those of its layer.
    ///
    /// Each counter by itself, and from where it was counted: where the sum was made of what had been written down, the
    /// processor read two counters at once that had just been written one by one, and waited for them.
    #[inline]
    fn count(&self, step: &Step, routes: &[ExpertId], placed: Placed<'_>, stats: &mut Stats, tally: &mut Stats) {
        let Placed { distinct_hits, fetched, free_count, absences } = placed;
        let others = absences.others();
        macro_rules! count {
            ($($counter:ident: $number:expr,)*) => { $(
                let number = $number;
                stats.$counter = number;
                tally.$counter += number;
            )* };
        }
        count! {
            steps: u64::from(!step.continues),
            routes: (routes.len() - self.absent_count) as u64,
            hit_routes: self.hit_count as u64,
            distinct: (distinct_hits + self.miss_count) as u64,
            misses: self.miss_count as u64,
            fetched: fetched as u64,
            evictions: (fetched - free_count) as u64,
            cold_misses: others[Absence::NeverRouted as usize],
            capacity_misses: self.miss_count as u64 - others.iter().sum::<u64>(),
            staging_misses: others[Absence::Staged as usize],
            freed_misses: others[Absence::Freed as usize],
            cpu_misses: others[Absence::OnCpu as usize] + others[Absence::InFlight as usize],
        }
    }
}

/// What became of a step's experts.
struct Placed<'a> {
    distinct_hits: usize,
    fetched: usize,
    /// Of the fetched, those that took a free slot.
    free_count: usize,
    absences: &'a Absences,
}

/// Parted the routes into slots of hits and distinct misses, marks the misses' experts as pending and counts the
/// routes.
///
/// Whether a route hits is a coin toss to the processor, so nothing here branches on it: each route is written to both
/// buffers, and one of the counts moves on.
#[inline]
fn part(routes: &[ExpertId], mut routing: Routing<'_>, hits: &mut [SlotId], misses: &mut [u32]) -> Parted {
    let (hits, misses) = (&mut hits[..routes.len()], &mut misses[..routes.len()]);
    let mut parts = Parted { hit_count: 0, miss_count: 0, absent_count: 0 };
    for route in routes {
        // Ids are checked, so what is outside is absent.
        let Some(was) = routing.route(*route) else {
            parts.absent_count += 1;
            continue;
        };
        hits[parts.hit_count] = was.slot();
        parts.hit_count += usize::from(was.is_slot());
        misses[parts.miss_count] = route.get();
        parts.miss_count += usize::from(was.is_absent());
    }
    parts
}

/// Moves rows that are on their way behind the others. Returns how many others there are.
fn set_in_flight_apart(misses: &mut [u32], experts: &[Expert]) -> usize {
    let mut fetchable = 0;
    for index in 0..misses.len() {
        // They are pending now, and still say why they are absent.
        if experts[misses[index] as usize].place.absence_index() != Absence::InFlight as usize {
            misses.swap(fetchable, index);
            fetchable += 1;
        }
    }
    fetchable
}

pub(crate) fn check_ids(layer: LayerId, routes: &[ExpertId], expert_count: u32) -> Result<(), EnsureError> {
    // One comparison: the absent id, which is the highest, wraps to zero. And no way out of the loop, so that it is
    // done several routes at a time.
    let stray = |route: ExpertId| route.get().wrapping_add(1) > expert_count;
    if !routes.iter().fold(false, |any, &route| any | stray(route)) {
        return Ok(());
    }
    let route = routes.iter().position(|&route| stray(route)).expect("one was seen");
    Err(EnsureError::UnknownExpert { layer, route, expert: routes[route], expert_count })
}
