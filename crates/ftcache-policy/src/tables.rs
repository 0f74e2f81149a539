//! What admission keeps on the device, beside the rows: which arrays, and how long they are.
//!
//! `ftcache-transfer` makes them so and `kernels/abi.h` says what is in them; what a plan sets aside is what they take,
//! to the byte.

use crate::{Eviction, Geometry, ScoreNumbers, Staging};

/// Where steps are admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Admission {
    /// On the host: the device keeps no tables.
    #[default]
    Host,
    /// On the device, for engines that capture decode into a graph.
    Device,
}

/// One of the arrays, in the order in which they lie: at the end those as long as there are slots, the widest first.
/// Slots are counted over all pools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Table {
    /// `u32[flat expert]`: its slot, or why it is in none.
    Place,
    /// `u64[flat expert]`: the last hybrid step that routed to it.
    Active,
    /// `u64[flat expert]`: routes to it.
    Routed,
    /// `u8[flat expert]`: whether it is pinned once in a slot.
    Marked,
    /// `u32[layer]`: 65,536ths of a miss.
    Carried,
    /// `u64[layer][phase][counter]`.
    Stats,
    /// A head for each layer: what its last admission decided.
    Plans,
    /// Of each layer as many copies as it has experts: what that admission wants copied.
    Copies,
    /// Of each pool its numbers of pinned, marked and withheld.
    Pools,
    /// Room for an admission of a layer too wide for shared memory.
    Scratch,
    /// `u32[component]`, from here on as [`ScoreNumbers`] has them.
    Weights,
    /// `u32[layer]`.
    Turns,
    /// `u32[flat expert][half]`.
    Counts,
    /// `u64[layer][component]`.
    Totals,
    /// `u64[layer][component]`.
    Gains,
    /// `u16[layer][place]`.
    Latest,
    /// `u8[layer]`.
    LatestWidths,
    /// `u16[flat expert][step][place]`.
    RingExperts,
    /// `u8[flat expert][step]`.
    RingWidths,
    /// `u8[flat expert]`.
    RingNext,
    /// `u32[flat expert]`.
    Followed,
    /// `u64[slot]`: 0 if it is free.
    Stamp,
    /// `u64[slot]`: room for an admission under a rule by score.
    Keys,
    /// `u32[slot]`: the flat expert in it.
    Owner,
    /// `u8[slot]`.
    Pinned,
}

impl Table {
    /// How many there are.
    pub const COUNT: usize = Self::Pinned as usize + 1;
}

/// What tells how long each array is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableShape {
    /// Layers, with slots or not.
    pub layer_count: u64,
    /// Experts of a layer.
    pub expert_count: u64,
    /// Slots of all pools.
    pub slot_count: u64,
    /// Pools.
    pub pool_count: u64,
    /// The rule by which victims are chosen.
    pub eviction: Eviction,
}

impl TableShape {
    /// Arrays begin at a multiple of so many bytes, but for those of slots, which follow each other without a gap: a
    /// slot costs the same wherever.
    pub const ALIGNMENT: u64 = 256;

    /// Layers of more experts have an admission's workspace in device memory.
    pub const SHARED_EXPERTS: u64 = 1024;

    /// Bytes of it, an expert.
    pub const WORKSPACE_BYTES: u64 = 28;

    /// Bytes of a layer's counters: 13 of each phase.
    pub const COUNTER_BYTES: u64 = 3 * 13 * 8;

    /// Bytes of what a layer's last admission decided, beside its copies.
    pub const PLAN_BYTES: u64 = 32;

    /// Bytes of one copy of it.
    pub const COPY_BYTES: u64 = 8;

    /// Bytes of what is kept of a pool.
    pub const POOL_BYTES: u64 = 16;

    /// Bytes of what all of it begins with, in memory of its own.
    pub const HEADER_BYTES: u64 = 32;

    /// Bytes of where the rows of a bank of a layer lie, and its slots.
    pub const BANK_ROWS_BYTES: u64 = 48;

    /// Bytes of where a bank of a layer lies and goes to as it is staged as a whole.
    pub const STAGE_BANK_BYTES: u64 = 64;

    /// Bytes of the numbers of hits and of misses of a staging buffer's layer.
    pub const STAGE_LISTS_BYTES: u64 = 8;

    /// Bytes of each array.
    pub fn bytes(&self) -> [u64; Table::COUNT] {
        let Self { layer_count: layers, slot_count: slots, .. } = *self;
        let experts = layers * self.expert_count;
        let scored = u64::from(self.eviction != Eviction::Lru);
        let learned = u64::from(self.eviction.learns());
        let scratch =
            if self.expert_count > Self::SHARED_EXPERTS { self.expert_count * Self::WORKSPACE_BYTES } else { 0 };
        let (halves, components) = (ScoreNumbers::HALVES as u64, ScoreNumbers::COMPONENTS as u64);
        let (steps, widest) = (ScoreNumbers::RING_STEPS as u64, ScoreNumbers::WIDEST as u64);
        let mut bytes = [0; Table::COUNT];
        for (table, count) in [
            (Table::Place, 4 * experts),
            (Table::Active, 8 * experts),
            (Table::Routed, 8 * experts),
            (Table::Marked, experts),
            (Table::Carried, 4 * layers),
            (Table::Stats, Self::COUNTER_BYTES * layers),
            (Table::Plans, Self::PLAN_BYTES * layers),
            (Table::Copies, Self::COPY_BYTES * experts),
            (Table::Stamp, 8 * slots),
            (Table::Owner, 4 * slots),
            (Table::Pinned, slots),
            (Table::Pools, Self::POOL_BYTES * self.pool_count),
            (Table::Scratch, scratch),
            (Table::Weights, scored * 4 * components),
            (Table::Turns, scored * 4 * layers),
            (Table::Counts, scored * 4 * experts * halves),
            (Table::Totals, scored * 8 * layers * components),
            (Table::Gains, scored * 8 * layers * components),
            (Table::Latest, learned * 2 * layers * widest),
            (Table::LatestWidths, learned * layers),
            (Table::RingExperts, learned * 2 * experts * steps * widest),
            (Table::RingWidths, learned * experts * steps),
            (Table::RingNext, learned * experts),
            (Table::Followed, learned * 4 * experts),
            (Table::Keys, scored * 8 * slots),
        ] {
            bytes[table as usize] = count;
        }
        bytes
    }

    /// Where each array begins, and the bytes of all.
    pub fn offsets(&self) -> ([u64; Table::COUNT], u64) {
        let mut end = 0_u64;
        let mut offsets = self.bytes();
        for (table, place) in offsets.iter_mut().enumerate() {
            let begin = if table <= Table::Stamp as usize { end.next_multiple_of(Self::ALIGNMENT) } else { end };
            end = begin + *place;
            *place = begin;
        }
        (offsets, end)
    }

    /// Bytes of the arrays and of what they begin with.
    pub fn total_bytes(&self) -> u64 {
        self.offsets().1 + Self::HEADER_BYTES
    }

    /// Bytes that each slot takes of it.
    pub(crate) fn slot_bytes(&self) -> u64 {
        let of = |slot_count| Self { slot_count, ..*self }.bytes().iter().sum::<u64>();
        of(1) - of(0)
    }

    /// All but what slots take.
    pub(crate) fn fixed_bytes(&self) -> u64 {
        Self { slot_count: 0, ..*self }.total_bytes()
    }
}

/// Bytes of what a loader tells kernels of its rows: of each bank of each layer, and again for each staging buffer four
/// times, with the lists of one layer's hits and misses.
pub(crate) fn loader_table_bytes(geometry: &Geometry, staging: Option<&Staging>) -> u64 {
    let model = geometry.model();
    let banks = model.layer_count() as u64 * model.bank_count() as u64;
    let buffers = staging.map_or(0, |staging| u64::from(staging.buffer_count()));
    let lists = TableShape::STAGE_LISTS_BYTES + 2 * u64::from(model.expert_count()) * TableShape::COPY_BYTES;
    let staged = 2 * (TableShape::BANK_ROWS_BYTES + TableShape::STAGE_BANK_BYTES);
    banks * TableShape::BANK_ROWS_BYTES + buffers * (banks * staged + lists)
}

/// Bytes of the device that admission keeps there: what [`TableShape`] says and what a loader adds; none on the host.
pub fn table_bytes(geometry: &Geometry, staging: Option<&Staging>, admission: Admission, eviction: Eviction) -> u64 {
    match admission {
        Admission::Host => 0,
        Admission::Device => shape_of(geometry, eviction).total_bytes() + loader_table_bytes(geometry, staging),
    }
}

/// The shape of a geometry's tables.
pub(crate) fn shape_of(geometry: &Geometry, eviction: Eviction) -> TableShape {
    let model = geometry.model();
    TableShape {
        layer_count: model.layer_count() as u64,
        expert_count: model.expert_count().into(),
        slot_count: geometry.slot_count(),
        pool_count: geometry.pools().len() as u64,
        eviction,
    }
}
