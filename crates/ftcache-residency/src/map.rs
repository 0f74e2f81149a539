//! Expert to slot and slot to expert, kept inverse; of an expert in no slot, why; and how often each was routed to.
//!
//! Experts are numbered over the model and slots over all pools, so that the two arrays are each other's inverse
//! without a look at pools or layers.

use std::ops::Range;

use ftcache_policy::{ExpertId, FlatExpertId, LayerId, SlotId};

/// `expert_of` of a slot that holds nothing.
pub(crate) const NOBODY: FlatExpertId = FlatExpertId::new(u32::MAX);

/// Why an expert is in no slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Absence {
    /// No step has routed to it.
    NeverRouted = 0,
    /// It lost its slot to another expert.
    Evicted = 1,
    /// It lost its slot to a staging buffer.
    Staged = 2,
    /// Its slot was freed by a call: it was forgotten, its plan was aborted, or the pools were rebuilt.
    Freed = 3,
    /// It was left to the CPU when it was last routed to.
    OnCpu = 4,
    /// Its row is on its way to a slot; see [`Cache::fetch_later`](crate::Cache::fetch_later).
    InFlight = 5,
}

impl Absence {
    /// How many there are.
    pub(crate) const COUNT: usize = 6;

    const ALL: [Self; Self::COUNT] =
        [Self::NeverRouted, Self::Evicted, Self::Staged, Self::Freed, Self::OnCpu, Self::InFlight];
}

/// Where an expert is: the number of a slot, local to the pool of its layer, or why it is in none.
///
/// The highest eight numbers are absences. The eight below them are the same for experts that a step has seen to miss
/// and not placed yet, so that marking one is clearing a bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place(u32);

pub(crate) const ABSENT_FIRST: u32 = u32::MAX - 7;
const PENDING_BIT: u32 = 8;
const _: () = assert!(SlotId::LIMIT == ABSENT_FIRST - PENDING_BIT && Absence::COUNT <= 8);

impl Place {
    pub(crate) const fn absent(why: Absence) -> Self {
        Self(ABSENT_FIRST + why as u32)
    }

    #[inline]
    pub(crate) fn is_slot(self) -> bool {
        self.0 < SlotId::LIMIT
    }

    /// Whether it is this slot.
    #[inline]
    pub(crate) fn holds(self, slot: SlotId) -> bool {
        self.0 == slot.get()
    }

    /// Whether it is in no slot and not marked as pending.
    #[inline]
    pub(crate) fn is_absent(self) -> bool {
        self.0 >= ABSENT_FIRST
    }

    /// The same, marked as pending if it is absent.
    #[inline]
    pub(crate) fn marked(self) -> Self {
        Self(self.0 & !(PENDING_BIT * u32::from(self.is_absent())))
    }

    /// The same if it is pending, not marked any more.
    fn unmarked(self) -> Self {
        Self(self.0 | PENDING_BIT)
    }

    /// As kernels have it: the number of a slot, or of an absence from [`ABSENT_FIRST`] on.
    pub(crate) fn number(self) -> u32 {
        self.0
    }

    /// The place that kernels have so; `None` if it is neither a slot nor an absence that is known.
    pub(crate) fn from_number(number: u32) -> Option<Self> {
        let place = Self(number);
        let is_known = place.is_slot() || place.is_absent() && place.absence_index() < Absence::COUNT;
        is_known.then_some(place)
    }

    /// The number itself: a slot, or none.
    #[inline]
    pub(crate) fn slot(self) -> SlotId {
        SlotId::new(self.0)
    }

    /// Of one that is pending or absent, which of the absences it is.
    #[inline]
    pub(crate) fn absence_index(self) -> usize {
        (self.0 % 8) as usize
    }

    pub(crate) fn absence(self) -> Option<Absence> {
        if self.is_absent() { Some(Absence::ALL[self.absence_index()]) } else { None }
    }
}

/// What a step reads and changes of an expert, together: a route so touches one line of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Expert {
    pub(crate) place: Place,
    /// The low half of the count of its routes.
    routed: u32,
}

/// The residency: two arrays, inverse of each other.
#[derive(Debug, Clone)]
pub(crate) struct Map {
    /// Experts of a layer.
    expert_count: u32,
    experts: Vec<Expert>,
    /// The high halves of the counts of routes.
    routed_high: Vec<u32>,
    /// `expert_of[first + slot]`, with `first` the pool's first slot number.
    expert_of: Vec<FlatExpertId>,
}

impl Map {
    pub(crate) fn new(layer_count: usize, expert_count: u32, slot_count: usize) -> Self {
        let expert = Expert { place: Place::absent(Absence::NeverRouted), routed: 0 };
        let experts = vec![expert; layer_count * expert_count as usize];
        Self { expert_count, routed_high: vec![0; experts.len()], experts, expert_of: vec![NOBODY; slot_count] }
    }

    /// The same experts over `slot_count` slots, all empty: residents and what was on its way are freed, and the others
    /// absent as they were.
    pub(crate) fn emptied(&self, slot_count: usize) -> Self {
        let mut map = Self { expert_of: vec![NOBODY; slot_count], ..self.clone() };
        let in_flight = Place::absent(Absence::InFlight);
        for expert in map.experts.iter_mut().filter(|expert| !expert.place.is_absent() || expert.place == in_flight) {
            expert.place = Place::absent(Absence::Freed);
        }
        map
    }

    /// Every place, count of routes and owner anew: of each expert, and of each slot of all pools.
    pub(crate) fn set(
        &mut self,
        experts: impl Iterator<Item = (Place, u64)>,
        owners: impl Iterator<Item = FlatExpertId>,
    ) {
        for ((expert, high), (place, routed)) in self.experts.iter_mut().zip(&mut self.routed_high).zip(experts) {
            *expert = Expert { place, routed: routed as u32 };
            *high = (routed >> 32) as u32;
        }
        self.expert_of.iter_mut().zip(owners).for_each(|(owner, given)| *owner = given);
    }

    #[inline]
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
    pub(crate) fn place(&self, expert: FlatExpertId) -> Place {
        self.experts[expert.index()].place
    }

    /// One layer's experts, for a step's many look-ups.
    #[inline]
    pub(crate) fn layer(&self, layer: LayerId) -> &[Expert] {
        &self.experts[self.experts_of_layer(layer)]
    }

    /// One layer's experts, for the routes of a step to be counted.
    #[inline]
    pub(crate) fn routing(&mut self, layer: LayerId) -> Routing<'_> {
        let experts = self.experts_of_layer(layer);
        Routing { experts: &mut self.experts[experts.clone()], routed_high: &mut self.routed_high[experts] }
    }

    /// Of experts in no slot, that the CPU computed them; what is on its way stays so.
    pub(crate) fn leave_to_cpu(&mut self, layer: LayerId, experts: impl Iterator<Item = ExpertId>) {
        let first = self.experts_of_layer(layer).start;
        let in_flight = Place::absent(Absence::InFlight);
        for expert in experts {
            let place = &mut self.experts[first + expert.index()].place;
            if *place != in_flight {
                *place = Place::absent(Absence::OnCpu);
            }
        }
    }

    /// Of an expert in no slot, why.
    pub(crate) fn set_absent(&mut self, expert: FlatExpertId, why: Absence) {
        debug_assert!(self.place(expert).is_absent());
        self.experts[expert.index()].place = Place::absent(why);
    }

    /// Experts whose rows are on their way.
    pub(crate) fn in_flight_count(&self) -> usize {
        let in_flight = Place::absent(Absence::InFlight);
        self.experts.iter().filter(|expert| expert.place == in_flight).count()
    }

    /// How often an expert was routed to.
    pub(crate) fn routed(&self, expert: FlatExpertId) -> u64 {
        let index = expert.index();
        u64::from(self.routed_high[index]) << 32 | u64::from(self.experts[index].routed)
    }

    /// No expert was ever routed to.
    pub(crate) fn reset_routed(&mut self) {
        self.experts.iter_mut().for_each(|expert| expert.routed = 0);
        self.routed_high.fill(0);
    }

    /// Flat ids of a layer's experts.
    #[inline]
    pub(crate) fn experts_of_layer(&self, layer: LayerId) -> Range<usize> {
        let base = self.flat(layer, ExpertId::new(0)).index();
        base..base + self.expert_count as usize
    }

    #[inline]
    pub(crate) fn expert_of(&self, first: u32, slot: SlotId) -> Option<FlatExpertId> {
        let expert = self.expert_of[first as usize + slot.index()];
        (expert != NOBODY).then_some(expert)
    }

    /// Both directions, to place experts of one layer in the slots of a pool.
    #[inline]
    pub(crate) fn placing(&mut self, layer: LayerId, first: u32) -> Placing<'_> {
        let base = self.flat(layer, ExpertId::new(0)).get();
        Placing { base, experts: &mut self.experts, expert_of: &mut self.expert_of[first as usize..] }
    }

    /// Empties a slot. Returns the owner that lost it.
    pub(crate) fn vacate(&mut self, first: u32, slot: SlotId, why: Absence) -> Option<FlatExpertId> {
        let owner = std::mem::replace(&mut self.expert_of[first as usize + slot.index()], NOBODY);
        if owner == NOBODY {
            return None;
        }
        self.experts[owner.index()].place = Place::absent(why);
        Some(owner)
    }

    /// Both directions from the raw state; `first_of` gives the first slot number of a layer's pool.
    pub(crate) fn check(&self, first_of: impl Fn(LayerId) -> Option<u32>) -> Result<(), String> {
        let mut resident = 0;
        for (expert, Expert { place, .. }) in self.experts.iter().enumerate() {
            if place.is_absent() {
                continue;
            }
            let (layer, _) = self.layer_and_expert(FlatExpertId::from_index(expert));
            if !place.is_slot() {
                return Err(format!("expert {expert} is still pending"));
            }
            let slot = place.slot();
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

/// The experts of one layer, borrowed for the routes of a step.
pub(crate) struct Routing<'a> {
    experts: &'a mut [Expert],
    routed_high: &'a mut [u32],
}

impl Routing<'_> {
    /// Counts a route to an expert and marks it as pending if it is in no slot. Returns where it was, or `None` for an
    /// id outside.
    #[inline]
    pub(crate) fn route(&mut self, route: ExpertId) -> Option<Place> {
        let expert = self.experts.get_mut(route.index())?;
        let place = expert.place;
        expert.place = place.marked();
        expert.routed = expert.routed.wrapping_add(1);
        if expert.routed == 0 {
            self.routed_high[route.index()] += 1;
        }
        Some(place)
    }

    /// Takes the count of a route back.
    pub(crate) fn unroute(&mut self, route: ExpertId) {
        if let Some(expert) = self.experts.get_mut(route.index()) {
            self.routed_high[route.index()] -= u32::from(expert.routed == 0);
            expert.routed = expert.routed.wrapping_sub(1);
        }
    }
}

/// Both directions of a map, borrowed for a step's placements.
pub(crate) struct Placing<'a> {
    /// Flat id of the layer's first expert.
    base: u32,
    experts: &'a mut [Expert],
    /// From the pool's first slot on.
    expert_of: &'a mut [FlatExpertId],
}

impl Placing<'_> {
    /// Puts an expert that is in no slot into one. Returns where it was, and the owner that lost the slot, or `NOBODY`.
    #[inline]
    pub(crate) fn put(&mut self, expert: ExpertId, slot: SlotId) -> (Place, FlatExpertId) {
        let expert = FlatExpertId::new(self.base + expert.get());
        let owner = std::mem::replace(&mut self.expert_of[slot.index()], expert);
        if let Some(owner) = self.experts.get_mut(owner.index()) {
            owner.place = Place::absent(Absence::Evicted);
        }
        (std::mem::replace(&mut self.experts[expert.index()].place, Place(slot.get())), owner)
    }

    /// Leaves an expert that is pending where it was, and says why it is there.
    pub(crate) fn leave(&mut self, expert: ExpertId) -> Place {
        let place = &mut self.experts[(self.base + expert.get()) as usize].place;
        *place = place.unmarked();
        *place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_counted_beyond_32_bits_and_back() {
        let mut map = Map::new(1, 2, 0);
        let (layer, expert) = (LayerId::new(0), ExpertId::new(1));
        map.experts[1].routed = u32::MAX - 1;
        let counts = [1, 2, 3].map(|_| {
            assert_eq!(map.routing(layer).route(expert).and_then(Place::absence), Some(Absence::NeverRouted));
            map.experts[1].place = map.experts[1].place.unmarked();
            map.routed(FlatExpertId::new(1))
        });
        assert_eq!(counts, [(1 << 32) - 1, 1 << 32, (1 << 32) + 1]);
        let back = [1, 2, 3].map(|_| {
            map.routing(layer).unroute(expert);
            map.routed(FlatExpertId::new(1))
        });
        assert_eq!(back, [1 << 32, (1 << 32) - 1, (1 << 32) - 2]);
        assert_eq!(map.routed(FlatExpertId::new(0)), 0);
    }

    #[test]
    fn an_expert_in_no_slot_says_why_whether_marked_or_not() {
        for why in Absence::ALL {
            let place = Place::absent(why);
            assert_eq!((place.is_slot(), place.is_absent(), place.absence()), (false, true, Some(why)));
            let marked = place.marked();
            assert_eq!((marked.is_slot(), marked.is_absent(), marked.absence()), (false, false, None));
            assert_eq!((marked.absence_index(), marked.unmarked()), (why as usize, place));
            assert_eq!(marked.marked(), marked);
        }
        let last = Place(SlotId::LIMIT - 1);
        assert_eq!((last.is_slot(), last.is_absent(), last.marked()), (true, false, last));
    }
}
