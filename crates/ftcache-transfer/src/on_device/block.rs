//! The tables as one block of memory: what lies where in it, and the residency's numbers out and in.

use bytemuck::{Pod, Zeroable};
use ftcache_policy::{Eviction, PoolId, ScoreNumbers};
use ftcache_residency::{Cache, State};

use super::abi;
use crate::{Device, DeviceError, Memory};

/// Where the parts of the tables begin.
pub(super) const ALIGNMENT: u64 = 256;

/// The parts of the tables, in the order of `abi::Tables` and `abi::Scores`.
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
    Weights,
    Turns,
    Counts,
    Totals,
    Gains,
    Latest,
    LatestWidths,
    RingExperts,
    RingWidths,
    RingNext,
    Followed,
    Keys,
}

const PART_COUNT: usize = Part::Keys as usize + 1;

/// What the tables are for: others need other memory.
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

    /// Bytes of each part.
    fn parts(&self) -> [u64; PART_COUNT] {
        let (layers, slots) = (u64::from(self.layer_count), u64::from(self.slot_count()));
        let experts = layers * u64::from(self.expert_count);
        let counters = layers * u64::from(abi::PHASE_COUNT * abi::COUNTER_COUNT);
        let is_shared = self.expert_count <= abi::SHARED_EXPERTS;
        let scratch = if is_shared { 0 } else { u64::from(self.expert_count) * u64::from(abi::WORKSPACE_BYTES) };
        let scored = |count: u64| if self.is_scored() { count } else { 0 };
        let learned = |count: u64| if self.eviction.learns() { count } else { 0 };
        let (halves, components) = (u64::from(abi::HALVES), u64::from(abi::COMPONENTS));
        let (steps, width) = (u64::from(abi::RING_STEPS), u64::from(abi::RING_WIDTH));
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
            (Part::Weights, scored(4 * components)),
            (Part::Turns, scored(4 * layers)),
            (Part::Counts, scored(4 * experts * halves)),
            (Part::Totals, scored(8 * layers * components)),
            (Part::Gains, scored(8 * layers * components)),
            (Part::Latest, learned(2 * layers * width)),
            (Part::LatestWidths, learned(layers)),
            (Part::RingExperts, learned(2 * experts * steps * width)),
            (Part::RingWidths, learned(experts * steps)),
            (Part::RingNext, learned(experts)),
            (Part::Followed, learned(4 * experts)),
            (Part::Keys, scored(8 * slots)),
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
        let scores = state.scores.iter().flat_map(scored_parts);
        for (part, bytes) in parts.into_iter().chain(scores) {
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
            scores: if self.shape.is_scored() { Some(self.read_scores(device)?) } else { None },
        })
    }

    fn read_scores<D: Device>(&self, device: &mut D) -> Result<ScoreNumbers, DeviceError> {
        Ok(ScoreNumbers {
            rule: self.shape.eviction,
            weights: self.array(device, Part::Weights)?,
            turns: self.array(device, Part::Turns)?,
            counts: self.array(device, Part::Counts)?,
            totals: self.array(device, Part::Totals)?,
            gains: self.array(device, Part::Gains)?,
            latest: self.array(device, Part::Latest)?,
            latest_widths: self.array(device, Part::LatestWidths)?,
            ring_experts: self.array(device, Part::RingExperts)?,
            ring_widths: self.array(device, Part::RingWidths)?,
            ring_next: self.array(device, Part::RingNext)?,
            followed: self.array(device, Part::Followed)?,
        })
    }

    /// The scores as kernels are told of them.
    pub(super) fn scores(&self) -> abi::Scores {
        let rule = self.shape.eviction;
        if !self.shape.is_scored() {
            return abi::Scores::zeroed();
        }
        let at = |part: Part| self.address + self.offsets[part as usize];
        let learned = |part: Part| if rule.learns() { at(part) } else { 0 };
        let mut log_halves = [0; abi::HALVES as usize];
        log_halves[..rule.log_halves().len()].copy_from_slice(rule.log_halves());
        abi::Scores {
            weights: at(Part::Weights),
            turns: at(Part::Turns),
            counts: at(Part::Counts),
            totals: at(Part::Totals),
            gains: at(Part::Gains),
            latest: learned(Part::Latest),
            latest_widths: learned(Part::LatestWidths),
            ring_experts: learned(Part::RingExperts),
            ring_widths: learned(Part::RingWidths),
            ring_next: learned(Part::RingNext),
            followed: learned(Part::Followed),
            keys: at(Part::Keys),
            log_halves,
            half_count: rule.log_halves().len() as u32,
            rule: rule as u32,
            learns: rule.learns().into(),
            looks_at_distance: rule.looks_at_distance().into(),
        }
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

// Both have the same numbers of everything.
const _: () = assert!(
    ScoreNumbers::HALVES == abi::HALVES as usize
        && ScoreNumbers::COMPONENTS == abi::COMPONENTS as usize
        && ScoreNumbers::RING_STEPS == abi::RING_STEPS as usize
        && ScoreNumbers::WIDEST == abi::RING_WIDTH as usize
);

fn scored_parts(scores: &ScoreNumbers) -> [(Part, &[u8]); 11] {
    [
        (Part::Weights, bytemuck::cast_slice(&scores.weights)),
        (Part::Turns, bytemuck::cast_slice(&scores.turns)),
        (Part::Counts, bytemuck::cast_slice(&scores.counts)),
        (Part::Totals, bytemuck::cast_slice(&scores.totals)),
        (Part::Gains, bytemuck::cast_slice(&scores.gains)),
        (Part::Latest, bytemuck::cast_slice(&scores.latest)),
        (Part::LatestWidths, &scores.latest_widths),
        (Part::RingExperts, bytemuck::cast_slice(&scores.ring_experts)),
        (Part::RingWidths, &scores.ring_widths),
        (Part::RingNext, &scores.ring_next),
        (Part::Followed, bytemuck::cast_slice(&scores.followed)),
    ]
}

fn told_pool(pool: &ftcache_residency::PoolState) -> abi::PoolState {
    let ftcache_residency::PoolState { pinned_count, marked_count, withheld, .. } = *pool;
    abi::PoolState { pinned_count, marked_count, withheld, reserved: 0 }
}
