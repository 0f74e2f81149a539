//! Constraints in, pools and arenas out: one pure function.
//!
//! Every bank has one arena on the device, and every pool has a range of it: `slot_count` slots of one stride, then
//! the tail pad. So a slot is the same index in every bank, and `offset + slot * stride` is where its row lies.

use crate::hull::fill_by_curve;
use crate::scope::order_groups;
use crate::split::{fill_by_use, make_pools, min_slots, split_curve, split_equal, split_profile, water_fill};
use crate::{Budget, GeometryError, LayerId, Model, PoolBounds, PoolId, Scope, Split, group_layers};

/// Bytes after the last slot of a pool that a kernel may read past the last row's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TailPad {
    /// As many bytes as the row has, up to this many.
    RowUpTo(u64),
    /// This many bytes.
    Bytes(u64),
}

/// The most slots that kernels of one quantisation can index in a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TagLimit {
    /// The quantisation tag.
    pub tag: Vec<u8>,
    /// Slots.
    pub slots: u32,
}

/// What is wanted of a geometry, besides its model.
#[derive(Debug, Clone, PartialEq)]
pub struct Constraints {
    /// Which layers share a pool.
    pub scope: Scope,
    /// What may be used.
    pub budget: Budget,
    /// How slots are divided between pools.
    pub split: Split,
    /// Requests decoded at once; each pool holds at least what they can need in one step.
    pub request_count: u32,
    /// The most slots that the engine's kernels can index in one pool.
    pub slot_limit: Option<u32>,
    /// Further limits, for the kernels of single quantisations.
    pub tag_limits: Vec<TagLimit>,
    /// Layers that hold no slots: they decode on the CPU, or lie on the device as a whole. A pool that only they would
    /// have is not made.
    pub slotless_layers: Vec<LayerId>,
    /// Decode computes every expert on the CPU, and the slots of the one pool only stage prefill: at least one whole
    /// layer, at most two.
    pub staging_only: bool,
    /// Slot strides and pool offsets are multiples of this many bytes; 1 leaves rows as they are.
    pub alignment: u64,
    /// Bytes between the end of a row and the next slot, before rounding up to `alignment`.
    pub slot_pad_bytes: u64,
    /// Bytes after a pool's last slot.
    pub tail_pad: TailPad,
}

impl Constraints {
    /// One request, the unified scope, the equal split, rows without gaps.
    ///
    /// The tail pad is the row's width up to 512 bytes: the batched quantised kernels of ggml read that far past a
    /// row's end and must find finite numbers there.
    pub fn new(budget: Budget) -> Self {
        Self {
            scope: Scope::Unified,
            budget,
            split: Split::Equal,
            request_count: 1,
            slot_limit: None,
            tag_limits: Vec::new(),
            slotless_layers: Vec::new(),
            staging_only: false,
            alignment: 1,
            slot_pad_bytes: 0,
            tail_pad: TailPad::RowUpTo(512),
        }
    }

    /// The most slots of a pool with this tag, if anything limits them.
    fn limit_of(&self, tag: Option<&[u8]>) -> Option<u32> {
        let of_tag = self.tag_limits.iter().filter(|limit| Some(limit.tag.as_slice()) == tag).map(|limit| limit.slots);
        of_tag.chain(self.slot_limit).min()
    }
}

/// One bank of one pool: where its slots lie in the bank's arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotRange {
    /// Bytes of a row; zero if the pool's layers do not read this bank.
    pub row_bytes: u64,
    /// Bytes from one slot to the next.
    pub stride: u64,
    /// Bytes from the start of the arena to slot 0.
    pub offset: u64,
    /// Bytes after the last slot.
    pub tail_pad_bytes: u64,
}

/// The slots of one pool, and where they lie in each bank's arena.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolSlots {
    /// How many.
    pub slot_count: u32,
    /// One range for each bank.
    pub ranges: Vec<SlotRange>,
}

/// Puts pools one after another in every bank's arena: sets their offsets and returns the arenas' bytes.
///
/// # Panics
///
/// If a pool has not one range for each bank, or an arena has more bytes than 64 bits count.
pub fn place_pools<'a>(pools: impl IntoIterator<Item = &'a mut PoolSlots>, bank_count: usize) -> Vec<u64> {
    let mut arena_bytes = vec![0; bank_count];
    for pool in pools {
        assert_eq!(pool.ranges.len(), bank_count, "a range for each bank");
        for (range, arena) in pool.ranges.iter_mut().zip(&mut arena_bytes) {
            range.offset = *arena;
            let slots = range.stride.checked_mul(u64::from(pool.slot_count));
            let end = slots.and_then(|bytes| bytes.checked_add(range.tail_pad_bytes)?.checked_add(range.offset));
            *arena = end.expect("an arena's bytes fit in 64 bits");
        }
    }
    arena_bytes
}

/// One pool: a number of slots that some layers share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    layers: Vec<LayerId>,
    bounds: PoolBounds,
    slots: PoolSlots,
}

impl Pool {
    /// The layers that share this pool, ascending.
    pub fn layers(&self) -> &[LayerId] {
        &self.layers
    }

    /// The least and the most slots it could have had.
    pub fn bounds(&self) -> PoolBounds {
        self.bounds
    }

    /// Slots of this pool and where they lie.
    pub fn slots(&self) -> &PoolSlots {
        &self.slots
    }

    /// Slots of this pool.
    pub fn slot_count(&self) -> u32 {
        self.slots.slot_count
    }

    /// Where the slots lie in each bank's arena.
    pub fn ranges(&self) -> &[SlotRange] {
        &self.slots.ranges
    }

    /// Bytes of one expert over all banks, which a miss fetches.
    fn row_bytes(&self) -> u64 {
        self.ranges().iter().map(|range| range.row_bytes).sum()
    }

    /// Bytes of one slot over all banks, pads between slots included.
    pub fn slot_bytes(&self) -> u64 {
        self.ranges().iter().map(|range| range.stride).sum()
    }

    /// Bytes of the pool over all banks: slots and tail pads.
    pub fn pool_bytes(&self) -> u64 {
        self.slot_bytes() * u64::from(self.slot_count()) + self.tail_pad_bytes()
    }

    /// As [`pool_bytes`](Self::pool_bytes), before it is known to fit.
    fn exact_bytes(&self) -> u128 {
        let bytes = |range: &SlotRange| {
            u128::from(range.stride) * u128::from(self.slot_count()) + u128::from(range.tail_pad_bytes)
        };
        self.ranges().iter().map(bytes).sum()
    }

    fn tail_pad_bytes(&self) -> u64 {
        self.ranges().iter().map(|range| range.tail_pad_bytes).sum()
    }
}

/// The pools of a cache and where every slot lies.
#[derive(Debug, Clone, PartialEq)]
pub struct Geometry {
    model: Model,
    constraints: Constraints,
    pools: Vec<Pool>,
    pool_of_layer: Vec<Option<PoolId>>,
    arena_bytes: Vec<u64>,
}

impl Geometry {
    /// The pools that the constraints allow, or the two numbers that conflict.
    ///
    /// With a byte budget: never over it, and no pool could take one more slot. With a slot count: exactly that many.
    ///
    /// # Errors
    ///
    /// A budget below what the requests need; more slots than there are experts; a slot limit below one step's need, or
    /// of a tag that no layer has; a profile or curves of another shape; no layer that holds slots; several pools of which
    /// decode uses none; an alignment that is not a power of two; a budget that is a share of memory, which only a
    /// [`Configuration`](crate::Configuration) knows.
    pub fn new(model: Model, constraints: Constraints) -> Result<Self, GeometryError> {
        Self::with_slot_tables(model, constraints, 0)
    }

    /// The same, where each slot costs so many bytes of a byte budget beside its rows.
    pub(crate) fn with_slot_tables(
        model: Model,
        constraints: Constraints,
        slot_table_bytes: u64,
    ) -> Result<Self, GeometryError> {
        Self::with_sizes(model, constraints, |constraints, pools| split(constraints, pools, slot_table_bytes))
    }

    /// The same with each pool at its least, whatever the budget.
    pub(crate) fn least(model: Model, constraints: Constraints) -> Result<Self, GeometryError> {
        Self::with_sizes(model, constraints, |_, pools| Ok(pools.iter().map(|pool| pool.bounds.min_slots).collect()))
    }

    fn with_sizes(
        model: Model,
        constraints: Constraints,
        sizes: impl Fn(&Constraints, &[Pool]) -> Result<Vec<u32>, GeometryError>,
    ) -> Result<Self, GeometryError> {
        check(&model, &constraints)?;
        let mut groups = group_layers(&model, constraints.scope);
        for layers in &mut groups {
            layers.retain(|layer| !constraints.slotless_layers.contains(layer));
        }
        groups.retain(|layers| !layers.is_empty());
        // A pool may have lost the layer by which it stood where it did.
        order_groups(&model, &mut groups);
        if groups.is_empty() {
            return Err(GeometryError::NothingCached { layers: model.layer_count() });
        }
        let expert_count = model.expert_count();
        let (least, most) = if constraints.staging_only {
            if groups.len() > 1 {
                return Err(GeometryError::SeveralPoolsToStage { pools: groups.len() });
            }
            (expert_count, expert_count.saturating_mul(2))
        } else {
            (min_slots(expert_count, model.top_k(), constraints.request_count), u32::MAX)
        };
        let limit_of = |layer| constraints.limit_of(model.layer(layer).tag());
        let bounds = make_pools(&groups, expert_count, least, most, limit_of)?;
        let mut pools = Vec::with_capacity(groups.len());
        for (layers, bounds) in groups.into_iter().zip(bounds) {
            let ranges = slot_ranges(&model, layers[0], &constraints)?;
            pools.push(Pool { layers, bounds, slots: PoolSlots { slot_count: 0, ranges } });
        }
        let sizes = sizes(&constraints, &pools)?;
        for (pool, size) in pools.iter_mut().zip(sizes) {
            pool.slots.slot_count = size;
        }
        // Rows fit, as the model was checked; wide strides and pads may not. Below this, no offset or sum can overflow.
        let total: u128 = pools.iter().map(Pool::exact_bytes).sum();
        if total > isize::MAX as u128 {
            return Err(GeometryError::TooManyBytes { bytes: total, most: isize::MAX as u64 });
        }
        let arena_bytes = place_pools(pools.iter_mut().map(|pool| &mut pool.slots), model.bank_count());

        let mut pool_of_layer = vec![None; model.layer_count()];
        for (index, pool) in pools.iter().enumerate() {
            for layer in &pool.layers {
                pool_of_layer[layer.index()] = Some(PoolId::from_index(index));
            }
        }
        Ok(Self { model, constraints, pools, pool_of_layer, arena_bytes })
    }

    /// The model this is a geometry of.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// What was asked for.
    pub fn constraints(&self) -> &Constraints {
        &self.constraints
    }

    /// Every pool, in the order in which they lie in the arenas.
    pub fn pools(&self) -> &[Pool] {
        &self.pools
    }

    /// One pool.
    ///
    /// # Panics
    ///
    /// If there is no such pool.
    pub fn pool(&self, pool: PoolId) -> &Pool {
        &self.pools[pool.index()]
    }

    /// The pool that serves a layer, unless it holds no slots.
    ///
    /// # Panics
    ///
    /// If the model has no such layer.
    pub fn pool_of_layer(&self, layer: LayerId) -> Option<PoolId> {
        self.pool_of_layer[layer.index()]
    }

    /// Bytes of each bank's arena.
    pub fn arena_bytes(&self) -> &[u64] {
        &self.arena_bytes
    }

    /// Bytes of all arenas: what the engine sets aside on the device.
    pub fn total_bytes(&self) -> u64 {
        self.arena_bytes.iter().sum()
    }

    /// Of [`total_bytes`](Self::total_bytes), those that hold no row.
    pub fn pad_bytes(&self) -> u64 {
        let used: u64 = self.pools.iter().map(|pool| pool.row_bytes() * u64::from(pool.slot_count())).sum();
        self.total_bytes() - used
    }

    /// Slots over all pools.
    pub fn slot_count(&self) -> u64 {
        self.pools.iter().map(|pool| u64::from(pool.slot_count())).sum()
    }

    /// Requests that can be decoded at once, or `None` if any number can.
    ///
    /// A pool with a slot for every expert of a layer holds a step of any width; a smaller one bounds the requests to
    /// `slots / top_k`. Decode that uses no slot is not bounded.
    pub fn request_limit(&self) -> Option<u32> {
        if self.constraints.staging_only {
            return None;
        }
        self.pools
            .iter()
            .filter(|pool| pool.slot_count() < self.model.expert_count())
            .map(|pool| pool.slot_count() / self.model.top_k())
            .min()
    }

    /// The most tokens of a prefill chunk that is admitted on demand instead of staging whole layers.
    ///
    /// A chunk of up to this many routes to fewer experts than a layer has, and than the smallest pool has slots. None
    /// is admitted where decode uses no slot.
    pub fn on_demand_tokens(&self) -> u32 {
        if self.constraints.staging_only {
            return 0;
        }
        let smallest = self.pools.iter().map(|pool| pool.slot_count()).min().unwrap_or(0);
        smallest.min(self.model.expert_count()).saturating_sub(1) / self.model.top_k()
    }

    /// Of these batch sizes, those that can be decoded at once: what an engine may capture as graphs.
    pub fn fitting_batches<'a>(&self, batch_sizes: &'a [u32]) -> impl Iterator<Item = u32> + use<'a> {
        let limit = self.request_limit();
        batch_sizes.iter().copied().filter(move |&size| limit.is_none_or(|limit| size <= limit))
    }
}

/// What strides and pads stay below.
pub(crate) const MOST_STRIDE: u64 = 1 << 48;

/// The slots of a pool in each bank, not yet placed in the arena. All layers of a pool have one layout key.
pub(crate) fn slot_ranges(
    model: &Model,
    layer: LayerId,
    constraints: &Constraints,
) -> Result<Vec<SlotRange>, GeometryError> {
    let tail_pad_of = |row_bytes: u64| match constraints.tail_pad {
        TailPad::RowUpTo(most) => row_bytes.min(most),
        TailPad::Bytes(bytes) => bytes,
    };
    let too_wide = |row_bytes| GeometryError::SlotTooWide {
        layer,
        row_bytes,
        slot_pad_bytes: constraints.slot_pad_bytes,
        tail_pad_bytes: tail_pad_of(row_bytes),
        alignment: constraints.alignment,
    };
    // So that a slot's bytes over as many banks as a model may have can be added up.
    let aligned =
        |bytes: u64| bytes.checked_next_multiple_of(constraints.alignment).filter(|&bytes| bytes < MOST_STRIDE);
    let mut ranges = Vec::with_capacity(model.bank_count());
    for &row_bytes in model.layer(layer).row_bytes() {
        if row_bytes == 0 {
            ranges.push(SlotRange { row_bytes, stride: 0, offset: 0, tail_pad_bytes: 0 });
            continue;
        }
        let padded = row_bytes.checked_add(constraints.slot_pad_bytes).ok_or_else(|| too_wide(row_bytes))?;
        let stride = aligned(padded).ok_or_else(|| too_wide(row_bytes))?;
        let tail_pad_bytes = aligned(tail_pad_of(row_bytes)).ok_or_else(|| too_wide(row_bytes))?;
        ranges.push(SlotRange { row_bytes, stride, offset: 0, tail_pad_bytes });
    }
    Ok(ranges)
}

/// Slots of each pool, by the budget and the split.
fn split(constraints: &Constraints, pools: &[Pool], slot_table_bytes: u64) -> Result<Vec<u32>, GeometryError> {
    let bounds: Vec<PoolBounds> = pools.iter().map(|pool| pool.bounds).collect();
    let groups = || pools.iter().map(|pool| pool.layers.clone()).collect::<Vec<_>>();
    let row_bytes = || pools.iter().map(Pool::row_bytes).collect::<Vec<_>>();
    match (constraints.budget, &constraints.split) {
        (Budget::Slots(total), Split::Equal) => split_equal(&bounds, total),
        (Budget::Slots(total), Split::Profile(profile)) => split_profile(&bounds, &groups(), profile, total),
        (Budget::Slots(total), Split::Curve(curves)) => split_curve(&bounds, &groups(), curves, &row_bytes(), total),
        (Budget::Bytes(budget), split) => {
            let costs: Vec<u64> = pools.iter().map(|pool| pool.slot_bytes() + slot_table_bytes).collect();
            let budget = budget_for_slots(pools, &costs, budget)?;
            Ok(match split {
                Split::Equal => water_fill(&bounds, &costs, budget),
                Split::Profile(profile) => fill_by_use(&bounds, &groups(), profile, &costs, budget),
                Split::Curve(curves) => fill_by_curve(&bounds, &groups(), curves, &row_bytes(), &costs, budget),
            })
        }
        (budget @ (Budget::Free(_) | Budget::Rest(_)), _) => Err(GeometryError::UnknownMemory { budget }),
    }
}

/// What a byte budget leaves for slots, once the tail pads are taken off.
fn budget_for_slots(pools: &[Pool], costs: &[u64], budget: u64) -> Result<u64, GeometryError> {
    let pads: u128 = pools.iter().map(|pool| u128::from(pool.tail_pad_bytes())).sum();
    let least = pools.iter().map(|pool| u128::from(pool.bounds.min_slots));
    let minima: u128 = costs.iter().zip(least).map(|(&cost, least)| u128::from(cost) * least).sum();
    let needed = pads + minima;
    if needed > u128::from(budget) {
        return Err(GeometryError::BudgetBelowMinimum { needed, given: budget });
    }
    Ok(budget - pads as u64)
}

/// What can be wrong with constraints before any pool is made.
fn check(model: &Model, constraints: &Constraints) -> Result<(), GeometryError> {
    if !constraints.alignment.is_power_of_two() {
        return Err(GeometryError::Alignment { alignment: constraints.alignment });
    }
    if constraints.request_count == 0 {
        return Err(GeometryError::NoRequests);
    }
    let layer_count = model.layer_count();
    if let Some(&layer) = constraints.slotless_layers.iter().find(|layer| layer.index() >= layer_count) {
        return Err(GeometryError::UnknownLayer { layer, layer_count });
    }
    let has_no_layer = |limit: &&TagLimit| !model.layers().iter().any(|layer| layer.tag() == Some(&limit.tag));
    if let Some(limit) = constraints.tag_limits.iter().find(has_no_layer) {
        return Err(GeometryError::UnknownTag { tag: limit.tag.clone() });
    }
    match &constraints.split {
        Split::Equal => Ok(()),
        Split::Profile(profile) => Ok(profile.check(model)?),
        Split::Curve(curves) => Ok(curves.check(model)?),
    }
}
