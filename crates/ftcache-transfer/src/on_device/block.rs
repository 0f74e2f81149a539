//! The tables as one block of memory: what lies where in it, and the residency's numbers out and in.

use bytemuck::{Pod, Zeroable};
use ftcache_policy::{Eviction, PoolId, ScoreNumbers, Table, TableShape};
use ftcache_residency::{Cache, State};

use super::abi;
use crate::{Device, DeviceError, Memory};

/// What the tables are for, down to the slots of each pool: others need other memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) layer_count: u32,
    pub(super) expert_count: u32,
    pub(super) slot_counts: Vec<u32>,
    pub(super) eviction: Eviction,
}

impl Shape {
    pub(super) fn of(residency: &Cache) -> Self {
        Self {
            layer_count: residency.layer_count() as u32,
            expert_count: residency.expert_count(),
            slot_counts: (0..residency.pool_count())
                .map(|pool| residency.slot_count(PoolId::from_index(pool)))
                .collect(),
            eviction: residency.eviction(),
        }
    }

    /// Whether tables of this shape are for a residency.
    pub(super) fn is_of(&self, residency: &Cache) -> bool {
        let counts = (0..residency.pool_count()).map(|pool| residency.slot_count(PoolId::from_index(pool)));
        (self.layer_count, self.expert_count) == (residency.layer_count() as u32, residency.expert_count())
            && counts.eq(self.slot_counts.iter().copied())
            && self.eviction == residency.eviction()
    }

    pub(super) fn slot_count(&self) -> u32 {
        self.slot_counts.iter().sum()
    }

    /// Whether victims go by scores.
    pub(super) fn is_scored(&self) -> bool {
        self.eviction != Eviction::Lru
    }

    /// How long each array is, and where it lies.
    pub(super) fn tables(&self) -> TableShape {
        TableShape {
            layer_count: self.layer_count.into(),
            expert_count: self.expert_count.into(),
            slot_count: self.slot_count().into(),
            pool_count: self.slot_counts.len() as u64,
            eviction: self.eviction,
        }
    }
}

/// The tables of one generation.
#[derive(Debug)]
pub(super) struct Block {
    /// The rebuilds that had been by then.
    pub(super) rebuilds: u64,
    pub(super) shape: Shape,
    pub(super) memory: Memory,
    pub(super) address: u64,
    pub(super) offsets: [u64; Table::COUNT],
}

impl Block {
    pub(super) fn write<D: Device>(&self, device: &mut D, state: &State) -> Result<(), DeviceError> {
        let pools: Vec<abi::PoolState> = state.pools.iter().map(told_pool).collect();
        let parts: [(Table, &[u8]); 10] = [
            (Table::Place, bytemuck::cast_slice(&state.places)),
            (Table::Active, bytemuck::cast_slice(&state.active)),
            (Table::Routed, bytemuck::cast_slice(&state.routed)),
            (Table::Marked, &state.marked),
            (Table::Carried, bytemuck::cast_slice(&state.carried)),
            (Table::Stats, bytemuck::cast_slice(&state.stats)),
            (Table::Stamp, bytemuck::cast_slice(&state.stamps)),
            (Table::Owner, bytemuck::cast_slice(&state.owners)),
            (Table::Pinned, &state.pinned),
            (Table::Pools, bytemuck::cast_slice(&pools)),
        ];
        let scores = state.scores.iter().flat_map(scored_parts);
        for (table, bytes) in parts.into_iter().chain(scores) {
            device.write(self.memory, self.offsets[table as usize], bytes)?;
        }
        // Nothing is left to be gathered of another time's plans.
        let plans = vec![0; self.shape.tables().bytes()[Table::Plans as usize] as usize];
        device.write(self.memory, self.offsets[Table::Plans as usize], &plans)
    }

    pub(super) fn read<D: Device>(&self, device: &mut D, step: u64) -> Result<State, DeviceError> {
        let mut pools = self.array::<abi::PoolState>(device, Table::Pools)?;
        let mut first = 0;
        let pools = pools.drain(..).zip(&self.shape.slot_counts).map(|(pool, &slot_count)| {
            let abi::PoolState { pinned_count, marked_count, withheld, .. } = pool;
            let state = ftcache_residency::PoolState { first, slot_count, pinned_count, marked_count, withheld };
            first += slot_count;
            state
        });
        let pools = pools.collect();
        Ok(State {
            step,
            places: self.array(device, Table::Place)?,
            active: self.array(device, Table::Active)?,
            routed: self.array(device, Table::Routed)?,
            marked: self.array(device, Table::Marked)?,
            carried: self.array(device, Table::Carried)?,
            stats: self.array(device, Table::Stats)?,
            stamps: self.array(device, Table::Stamp)?,
            owners: self.array(device, Table::Owner)?,
            pinned: self.array(device, Table::Pinned)?,
            pools,
            scores: if self.shape.is_scored() { Some(self.read_scores(device)?) } else { None },
        })
    }

    fn read_scores<D: Device>(&self, device: &mut D) -> Result<ScoreNumbers, DeviceError> {
        Ok(ScoreNumbers {
            rule: self.shape.eviction,
            weights: self.array(device, Table::Weights)?,
            turns: self.array(device, Table::Turns)?,
            counts: self.array(device, Table::Counts)?,
            totals: self.array(device, Table::Totals)?,
            gains: self.array(device, Table::Gains)?,
            latest: self.array(device, Table::Latest)?,
            latest_widths: self.array(device, Table::LatestWidths)?,
            ring_experts: self.array(device, Table::RingExperts)?,
            ring_widths: self.array(device, Table::RingWidths)?,
            ring_next: self.array(device, Table::RingNext)?,
            followed: self.array(device, Table::Followed)?,
        })
    }

    /// The scores as kernels are told of them.
    pub(super) fn scores(&self) -> abi::Scores {
        let rule = self.shape.eviction;
        if !self.shape.is_scored() {
            return abi::Scores::zeroed();
        }
        let at = |table: Table| self.address + self.offsets[table as usize];
        let learned = |table: Table| if rule.learns() { at(table) } else { 0 };
        let mut log_halves = [0; abi::HALVES as usize];
        log_halves[..rule.log_halves().len()].copy_from_slice(rule.log_halves());
        abi::Scores {
            weights: at(Table::Weights),
            turns: at(Table::Turns),
            counts: at(Table::Counts),
            totals: at(Table::Totals),
            gains: at(Table::Gains),
            latest: learned(Table::Latest),
            latest_widths: learned(Table::LatestWidths),
            ring_experts: learned(Table::RingExperts),
            ring_widths: learned(Table::RingWidths),
            ring_next: learned(Table::RingNext),
            followed: learned(Table::Followed),
            keys: at(Table::Keys),
            log_halves,
            half_count: rule.log_halves().len() as u32,
            rule: rule as u32,
            learns: rule.learns().into(),
            looks_at_distance: rule.looks_at_distance().into(),
        }
    }

    fn array<T: Pod>(&self, device: &mut impl Device, table: Table) -> Result<Vec<T>, DeviceError> {
        let bytes = self.shape.tables().bytes()[table as usize] as usize;
        let mut array = vec![T::zeroed(); bytes / size_of::<T>()];
        if !array.is_empty() {
            device.read(self.memory, self.offsets[table as usize], bytemuck::cast_slice_mut(&mut array))?;
        }
        Ok(array)
    }
}

// Kernels have the same numbers of everything.
const _: () = assert!(
    ScoreNumbers::HALVES == abi::HALVES as usize
        && ScoreNumbers::COMPONENTS == abi::COMPONENTS as usize
        && ScoreNumbers::RING_STEPS == abi::RING_STEPS as usize
        && ScoreNumbers::WIDEST == abi::RING_WIDTH as usize
);
const _: () = assert!(
    TableShape::SHARED_EXPERTS == abi::SHARED_EXPERTS as u64
        && TableShape::WORKSPACE_BYTES == abi::WORKSPACE_BYTES as u64
        && TableShape::COUNTER_BYTES == 8 * (abi::PHASE_COUNT * abi::COUNTER_COUNT) as u64
        && TableShape::PLAN_BYTES == size_of::<abi::PlanHead>() as u64
        && TableShape::COPY_BYTES == size_of::<abi::Entry>() as u64
        && TableShape::POOL_BYTES == size_of::<abi::PoolState>() as u64
        && TableShape::HEADER_BYTES == size_of::<abi::Header>() as u64
        && TableShape::BANK_ROWS_BYTES == size_of::<abi::BankRows>() as u64
        && TableShape::STAGE_BANK_BYTES == size_of::<abi::StageBank>() as u64
);

fn scored_parts(scores: &ScoreNumbers) -> [(Table, &[u8]); 11] {
    [
        (Table::Weights, bytemuck::cast_slice(&scores.weights)),
        (Table::Turns, bytemuck::cast_slice(&scores.turns)),
        (Table::Counts, bytemuck::cast_slice(&scores.counts)),
        (Table::Totals, bytemuck::cast_slice(&scores.totals)),
        (Table::Gains, bytemuck::cast_slice(&scores.gains)),
        (Table::Latest, bytemuck::cast_slice(&scores.latest)),
        (Table::LatestWidths, &scores.latest_widths),
        (Table::RingExperts, bytemuck::cast_slice(&scores.ring_experts)),
        (Table::RingWidths, &scores.ring_widths),
        (Table::RingNext, &scores.ring_next),
        (Table::Followed, bytemuck::cast_slice(&scores.followed)),
    ]
}

fn told_pool(pool: &ftcache_residency::PoolState) -> abi::PoolState {
    let ftcache_residency::PoolState { pinned_count, marked_count, withheld, .. } = *pool;
    abi::PoolState { pinned_count, marked_count, withheld, reserved: 0 }
}
