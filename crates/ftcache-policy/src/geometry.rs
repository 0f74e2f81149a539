//! Constraints in, pools and arenas out: one pure function.
//!
//! Every bank has one arena on the device, and every pool has a range of it: `slot_count` slots of one stride, then
//! the tail pad. So a slot is the same index in every bank, and `offset + slot * stride` is where its row lies.

use crate::split::{make_pools, min_slots, split_equal, water_fill};
use crate::{GeometryError, LayerId, Model, PoolBounds, PoolId, Scope, group_layers};

/// What a geometry may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Budget {
    /// Bytes over all arenas, pads included.
    Bytes(u64),
    /// Slots over all pools, whatever their width.
    Slots(u64),
}

/// Bytes after the last slot of a pool that a kernel may read past the last row's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TailPad {
    /// As many bytes as the row has, up to this many.
    RowUpTo(u64),
    /// This many bytes.
    Bytes(u64),
}

/// What is wanted of a geometry, besides its model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Constraints {
    /// Which layers share a pool.
    pub scope: Scope,
    /// What may be used.
    pub budget: Budget,
    /// Requests decoded at once; each pool holds at least what they can need in one step.
    pub request_count: u32,
    /// The most slots that the engine's kernels can index in one pool.
    pub slot_limit: Option<u32>,
    /// Slot strides and pool offsets are multiples of this many bytes; 1 leaves rows as they are.
    pub alignment: u64,
    /// Bytes between the end of a row and the next slot, before rounding up to `alignment`.
    pub slot_pad_bytes: u64,
    /// Bytes after a pool's last slot.
    pub tail_pad: TailPad,
}

impl Constraints {
    /// One request, the unified scope, rows without gaps.
    ///
    /// The tail pad is the row's width up to 512 bytes: the batched quantised kernels of ggml read that far past a
    /// row's end and must find finite numbers there.
    pub fn new(budget: Budget) -> Self {
        Self {
            scope: Scope::Unified,
            budget,
            request_count: 1,
            slot_limit: None,
            alignment: 1,
            slot_pad_bytes: 0,
            tail_pad: TailPad::RowUpTo(512),
        }
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

/// One pool: a number of slots that some layers share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    layers: Vec<LayerId>,
    bounds: PoolBounds,
    slot_count: u32,
    ranges: Vec<SlotRange>,
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

    /// Slots of this pool.
    pub fn slot_count(&self) -> u32 {
        self.slot_count
    }

    /// Where the slots lie in each bank's arena.
    pub fn ranges(&self) -> &[SlotRange] {
        &self.ranges
    }

    /// Bytes of one slot over all banks, pads between slots included.
    pub fn slot_bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.stride).sum()
    }

    /// Bytes of the pool over all banks: slots and tail pads.
    pub fn pool_bytes(&self) -> u64 {
        self.slot_bytes() * u64::from(self.slot_count) + self.tail_pad_bytes()
    }

    /// As [`pool_bytes`](Self::pool_bytes), before it is known to fit.
    fn exact_bytes(&self) -> u128 {
        let bytes = |range: &SlotRange| {
            u128::from(range.stride) * u128::from(self.slot_count) + u128::from(range.tail_pad_bytes)
        };
        self.ranges.iter().map(bytes).sum()
    }

    fn tail_pad_bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.tail_pad_bytes).sum()
    }
}

/// The pools of a cache and where every slot lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Geometry {
    model: Model,
    constraints: Constraints,
    pools: Vec<Pool>,
    pool_of_layer: Vec<PoolId>,
    arena_bytes: Vec<u64>,
}

impl Geometry {
    /// The pools that the constraints allow, or the two numbers that conflict.
    ///
    /// With a byte budget: never over it, and no pool could take one more slot. With a slot count: exactly that many.
    ///
    /// # Errors
    ///
    /// A budget below what the requests need; more slots than there are experts; a slot limit below one step's need;
    /// an alignment that is not a power of two.
    pub fn new(model: Model, constraints: Constraints) -> Result<Self, GeometryError> {
        if !constraints.alignment.is_power_of_two() {
            return Err(GeometryError::Alignment { alignment: constraints.alignment });
        }
        if constraints.request_count == 0 {
            return Err(GeometryError::NoRequests);
        }
        let groups = group_layers(&model, constraints.scope);
        let least = min_slots(model.expert_count(), model.top_k(), constraints.request_count);
        let bounds = make_pools(groups.iter().map(Vec::as_slice), model.expert_count(), least, constraints.slot_limit)?;
        let mut pools = Vec::with_capacity(groups.len());
        for (layers, bounds) in groups.into_iter().zip(&bounds) {
            let ranges = slot_ranges(&model, layers[0], &constraints)?;
            pools.push(Pool { layers, bounds: *bounds, slot_count: 0, ranges });
        }

        let sizes = match constraints.budget {
            Budget::Slots(total) => split_equal(&bounds, total)?,
            Budget::Bytes(budget) => split_bytes(&pools, &bounds, budget)?,
        };
        for (pool, size) in pools.iter_mut().zip(sizes) {
            pool.slot_count = size;
        }
        // Rows fit, as the model was checked; wide strides and pads may not. Below this, no offset or sum can overflow.
        let total: u128 = pools.iter().map(Pool::exact_bytes).sum();
        if total > isize::MAX as u128 {
            return Err(GeometryError::TooManyBytes { bytes: total, most: isize::MAX as u64 });
        }
        let arena_bytes = place(&mut pools, model.bank_count());

        let mut pool_of_layer = vec![PoolId::new(0); model.layer_count()];
        for (index, pool) in pools.iter().enumerate() {
            for layer in &pool.layers {
                pool_of_layer[layer.index()] = PoolId::from_index(index);
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

    /// The pool that serves a layer.
    ///
    /// # Panics
    ///
    /// If the model has no such layer.
    pub fn pool_of_layer(&self, layer: LayerId) -> PoolId {
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
        let row_bytes = |pool: &Pool| pool.ranges.iter().map(|range| range.row_bytes).sum::<u64>();
        let used: u64 = self.pools.iter().map(|pool| row_bytes(pool) * u64::from(pool.slot_count)).sum();
        self.total_bytes() - used
    }

    /// Slots over all pools.
    pub fn slot_count(&self) -> u64 {
        self.pools.iter().map(|pool| u64::from(pool.slot_count)).sum()
    }

    /// Requests that can be decoded at once, or `None` if any number can.
    ///
    /// A pool with a slot for every expert of a layer holds a step of any width; a smaller one bounds the requests to
    /// `slots / top_k`.
    pub fn request_limit(&self) -> Option<u32> {
        self.pools
            .iter()
            .filter(|pool| pool.slot_count < self.model.expert_count())
            .map(|pool| pool.slot_count / self.model.top_k())
            .min()
    }
}

/// The slots of a pool in each bank, not yet placed in the arena. All layers of a pool have one layout key.
fn slot_ranges(model: &Model, layer: LayerId, constraints: &Constraints) -> Result<Vec<SlotRange>, GeometryError> {
    let too_wide =
        |row_bytes| GeometryError::SlotTooWide { layer, row_bytes, slot_pad_bytes: constraints.slot_pad_bytes };
    // So that a slot's bytes over any number of banks can be added up.
    let aligned = |bytes: u64| bytes.checked_next_multiple_of(constraints.alignment).filter(|&bytes| bytes < 1 << 48);
    let mut ranges = Vec::with_capacity(model.bank_count());
    for &row_bytes in model.layer(layer).row_bytes() {
        if row_bytes == 0 {
            ranges.push(SlotRange { row_bytes, stride: 0, offset: 0, tail_pad_bytes: 0 });
            continue;
        }
        let padded = row_bytes.checked_add(constraints.slot_pad_bytes).ok_or_else(|| too_wide(row_bytes))?;
        let stride = aligned(padded).ok_or_else(|| too_wide(row_bytes))?;
        let tail_pad = match constraints.tail_pad {
            TailPad::RowUpTo(most) => row_bytes.min(most),
            TailPad::Bytes(bytes) => bytes,
        };
        let tail_pad_bytes = aligned(tail_pad).ok_or_else(|| too_wide(row_bytes))?;
        ranges.push(SlotRange { row_bytes, stride, offset: 0, tail_pad_bytes });
    }
    Ok(ranges)
}

fn split_bytes(pools: &[Pool], bounds: &[PoolBounds], budget: u64) -> Result<Vec<u32>, GeometryError> {
    let costs: Vec<u64> = pools.iter().map(Pool::slot_bytes).collect();
    let pads: u128 = pools.iter().map(|pool| u128::from(pool.tail_pad_bytes())).sum();
    let minima: u128 =
        costs.iter().zip(bounds).map(|(&cost, pool)| u128::from(cost) * u128::from(pool.min_slots)).sum();
    let needed = pads + minima;
    if needed > u128::from(budget) {
        return Err(GeometryError::BudgetBelowMinimum { needed, given: budget });
    }
    Ok(water_fill(bounds, &costs, budget - pads as u64))
}

/// Puts the pools one after another in every bank's arena and returns the arenas' bytes.
fn place(pools: &mut [Pool], bank_count: usize) -> Vec<u64> {
    let mut arena_bytes = vec![0; bank_count];
    for pool in pools {
        for (range, arena) in pool.ranges.iter_mut().zip(&mut arena_bytes) {
            range.offset = *arena;
            *arena += range.stride * u64::from(pool.slot_count) + range.tail_pad_bytes;
        }
    }
    arena_bytes
}
