//! A step wider than its pool, parted by experts: each part fits, and each expert is fetched once.

use ftcache_policy::{ExpertId, FlatExpertId, LayerId};

use crate::lent::is_lent;
use crate::map::Absence;
use crate::pool::check_ids;
use crate::{Cache, EnsureError, Misses, Step};

/// The parts of a step. Its buffers are used again by the next.
#[derive(Debug, Clone)]
pub struct Parts {
    step: Step,
    /// `routes[part * route_count..]`: the step's routes, those of other parts absent.
    routes: Vec<ExpertId>,
    route_count: usize,
    part_count: usize,
    /// `part_of[expert]`, plus one; 0 if the step does not route to it.
    part_of: Vec<u32>,
}

impl Default for Parts {
    fn default() -> Self {
        Self::new()
    }
}

impl Parts {
    /// No parts yet.
    pub fn new() -> Self {
        let step = Step::new(LayerId::new(0));
        Self { step, routes: Vec::new(), route_count: 0, part_count: 0, part_of: Vec::new() }
    }

    /// How many parts there are: one if the step fits, none if it has no routes that are present.
    pub fn len(&self) -> usize {
        self.part_count
    }

    /// Whether there is nothing to admit.
    pub fn is_empty(&self) -> bool {
        self.part_count == 0
    }

    /// Each part's step and its routes, as many as the whole step's and in their order; routes of other parts are
    /// absent. All parts but the first continue.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (Step, &[ExpertId])> + '_ {
        (0..self.part_count).map(|part| {
            let routes = &self.routes[part * self.route_count..(part + 1) * self.route_count];
            (Step { continues: part > 0, ..self.step }, routes)
        })
    }
}

impl Cache {
    /// Parts a step by experts, so that each part fits the pool: what is resident first, then misses ascending. The
    /// parts are to be admitted one after another, each once the kernels of the one before are enqueued. Together
    /// they fetch what misses now, each once, and statistics count one step. The rule of a hybrid step is asked in
    /// every part.
    ///
    /// Nothing is admitted here. The parts hold as long as nothing else is.
    ///
    /// # Errors
    ///
    /// An unknown layer or expert, a layer without slots, a row on its way in a step that is to fetch all, or a step
    /// that no parting makes fit, since all slots are pinned, in flight or under staging buffers. `parts` are as they
    /// were then.
    pub fn partition(
        &mut self,
        step: impl Into<Step>,
        routes: &[ExpertId],
        parts: &mut Parts,
    ) -> Result<(), EnsureError> {
        let step = step.into();
        let layer = step.layer;
        let pool = self.pool_of(layer)?;
        check_ids(layer, routes, self.expert_count())?;
        self.check_none_in_flight(&step, routes)?;
        let kept = self.kept_count(pool);
        let recency = &self.pools[pool.index()].recency;
        let (slot_count, withheld) = (recency.slot_count(), recency.withheld());
        let experts = self.map.layer(layer);

        parts.part_of.clear();
        parts.part_of.resize(experts.len(), 0);
        // What is resident is in the first part; it takes no slot from those of other layers that are pinned. So is
        // what a hint brings: its slot is there.
        let (mut distinct, mut hit_count, mut pinned, mut boarded_pins) = (0, 0, kept, 0);
        let (flights, hints, all_pins, map) = (&self.flights, &self.hints, &self.pins, &self.map);
        for route in routes.iter().filter(|&&route| route != ExpertId::ABSENT) {
            distinct += usize::from(self.scratch.experts.insert(route.index()));
            let place = experts[route.index()].place;
            if parts.part_of[route.index()] != 0 {
                continue;
            }
            if place.is_slot() {
                parts.part_of[route.index()] = 1;
                hit_count += 1;
                let is_lent = || is_lent(flights, hints, all_pins, pool, place.slot());
                pinned -= u32::from(recency.is_pinned(place.slot()) && !is_lent());
            } else if flights.is_hinted(map.flat(layer, *route)) {
                parts.part_of[route.index()] = 1;
                hit_count += 1;
                let is_boarded = step.misses == Misses::Fetched;
                boarded_pins += u32::from(is_boarded && all_pins.is_marked(map.flat(layer, *route)));
            }
        }
        let mut room = slot_count - withheld - pinned - hit_count;
        // Pinned experts that a part fetches, or takes on their way from a hint, stay in their slots through later ones.
        let mut pinned = kept + boarded_pins;
        let mut part = 1;
        let mut fits = true;
        let (part_of, pins) = (&mut parts.part_of, &self.pins);
        let first = self.map.experts_of_layer(layer).start;
        self.scratch.experts.take_lowest(usize::MAX, |expert| {
            if part_of[expert] != 0 || !fits {
                return;
            }
            // One that is on its way goes to the CPU, and takes no slot.
            if experts[expert].place.absence() == Some(Absence::InFlight) {
                part_of[expert] = 1;
                return;
            }
            if room == 0 {
                (part, room) = (part + 1, slot_count - withheld - pinned);
                fits = room > 0;
            }
            part_of[expert] = part;
            room = room.saturating_sub(1);
            pinned += u32::from(pins.is_marked(FlatExpertId::from_index(first + expert)));
        });
        if !fits && self.has_hints() {
            return Err(self.too_wide(layer, pool, routes));
        }
        if !fits {
            return self.pools[pool.index()].check_width(layer, routes, &self.map, &mut self.scratch.experts);
        }
        parts.step = step;
        parts.route_count = routes.len();
        parts.part_count = if distinct == 0 { 0 } else { part as usize };
        parts.routes.clear();
        for part in 1..=parts.part_count as u32 {
            parts.routes.extend(routes.iter().map(|&route| match parts.part_of.get(route.index()) {
                Some(&of) if of == part => route,
                _ => ExpertId::ABSENT,
            }));
        }
        Ok(())
    }
}
