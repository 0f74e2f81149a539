//! The tables as one block of memory: what lies where in it, and the residency's numbers out and in.

use bytemuck::Pod;
use ftcache_policy::PoolId;
use ftcache_residency::{Cache, State};

use super::abi;
use crate::{Device, DeviceError, Memory};

/// Where the parts of the tables begin.
pub(super) const ALIGNMENT: u64 = 256;

/// The parts of the tables, in the order of `abi::Tables`.
#[derive(Debug, Clone, Copy)]
pub(super) enum Part {
    Place,
    Active,
    Routed,
    Marked,
    Carried,
    Stats,
    Plans,
    Copies,
    Stamp,
    Owner,
    Pinned,
    Pools,
    Scratch,
}

const PART_COUNT: usize = Part::Scratch as usize + 1;

/// What the tables are for: others need other memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) layer_count: u32,
    pub(super) expert_count: u32,
    pub(super) slot_counts: Vec<u32>,
}

impl Shape {
    pub(super) fn of(residency: &Cache) -> Self {
        Self {
            layer_count: residency.layer_count() as u32,
            expert_count: residency.expert_count(),
            slot_counts: (0..residency.pool_count())
                .map(|pool| residency.slot_count(PoolId::from_index(pool)))
                .collect(),
        }
    }

    /// Whether tables of this shape are for a residency.
    pub(super) fn is_of(&self, residency: &Cache) -> bool {
        let counts = (0..residency.pool_count()).map(|pool| residency.slot_count(PoolId::from_index(pool)));
        (self.layer_count, self.expert_count) == (residency.layer_count() as u32, residency.expert_count())
            && counts.eq(self.slot_counts.iter().copied())
    }

    pub(super) fn slot_count(&self) -> u32 {
        self.slot_counts.iter().sum()
    }

    /// Bytes of each part.
    fn parts(&self) -> [u64; PART_COUNT] {
        let (layers, slots) = (u64::from(self.layer_count), u64::from(self.slot_count()));
        let experts = layers * u64::from(self.expert_count);
        let counters = layers * u64::from(abi::PHASE_COUNT * abi::COUNTER_COUNT);
        let is_shared = self.expert_count <= abi::SHARED_EXPERTS;
        let scratch = if is_shared { 0 } else { u64::from(self.expert_count) * u64::from(abi::WORKSPACE_BYTES) };
        let mut parts = [0; PART_COUNT];
        let bytes = [
            (Part::Place, 4 * experts),
            (Part::Active, 8 * experts),
            (Part::Routed, 8 * experts),
            (Part::Marked, experts),
            (Part::Carried, 4 * layers),
            (Part::Stats, 8 * counters),
            (Part::Plans, size_of::<abi::PlanHead>() as u64 * layers),
            (Part::Copies, size_of::<abi::Entry>() as u64 * experts),
            (Part::Stamp, 8 * slots),
            (Part::Owner, 4 * slots),
            (Part::Pinned, slots),
            (Part::Pools, size_of::<abi::PoolState>() as u64 * self.slot_counts.len() as u64),
            (Part::Scratch, scratch),
        ];
        bytes.into_iter().for_each(|(part, bytes)| parts[part as usize] = bytes);
        parts
    }

    /// Where each part begins, and the bytes of all.
    pub(super) fn offsets(&self) -> ([u64; PART_COUNT], u64) {
        let mut end = 0;
        let offsets = self.parts().map(|bytes| {
            let begin = end;
            end = (begin + bytes).next_multiple_of(ALIGNMENT);
            begin
        });
        (offsets, end)
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
    pub(super) offsets: [u64; PART_COUNT],
}

impl Block {
    pub(super) fn write<D: Device>(&self, device: &mut D, state: &State) -> Result<(), DeviceError> {
        let pools: Vec<abi::PoolState> = state.pools.iter().map(told_pool).collect();
        let parts: [(Part, &[u8]); 10] = [
            (Part::Place, bytemuck::cast_slice(&state.places)),
            (Part::Active, bytemuck::cast_slice(&state.active)),
            (Part::Routed, bytemuck::cast_slice(&state.routed)),
            (Part::Marked, &state.marked),
            (Part::Carried, bytemuck::cast_slice(&state.carried)),
            (Part::Stats, bytemuck::cast_slice(&state.stats)),
            (Part::Stamp, bytemuck::cast_slice(&state.stamps)),
            (Part::Owner, bytemuck::cast_slice(&state.owners)),
            (Part::Pinned, &state.pinned),
            (Part::Pools, bytemuck::cast_slice(&pools)),
        ];
        for (part, bytes) in parts {
            device.write(self.memory, self.offsets[part as usize], bytes)?;
        }
        // Nothing is left to be gathered of another time's plans.
        let plans = vec![0; self.shape.parts()[Part::Plans as usize] as usize];
        device.write(self.memory, self.offsets[Part::Plans as usize], &plans)
    }

    pub(super) fn read<D: Device>(&self, device: &mut D, step: u64) -> Result<State, DeviceError> {
        let mut pools = self.array::<abi::PoolState>(device, Part::Pools)?;
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
            places: self.array(device, Part::Place)?,
            active: self.array(device, Part::Active)?,
            routed: self.array(device, Part::Routed)?,
            marked: self.array(device, Part::Marked)?,
            carried: self.array(device, Part::Carried)?,
            stats: self.array(device, Part::Stats)?,
            stamps: self.array(device, Part::Stamp)?,
            owners: self.array(device, Part::Owner)?,
            pinned: self.array(device, Part::Pinned)?,
            pools,
        })
    }

    fn array<T: Pod>(&self, device: &mut impl Device, part: Part) -> Result<Vec<T>, DeviceError> {
        let bytes = self.shape.parts()[part as usize] as usize;
        let mut array = vec![T::zeroed(); bytes / size_of::<T>()];
        if !array.is_empty() {
            device.read(self.memory, self.offsets[part as usize], bytemuck::cast_slice_mut(&mut array))?;
        }
        Ok(array)
    }
}

fn told_pool(pool: &ftcache_residency::PoolState) -> abi::PoolState {
    let ftcache_residency::PoolState { pinned_count, marked_count, withheld, .. } = *pool;
    abi::PoolState { pinned_count, marked_count, withheld, reserved: 0 }
}
