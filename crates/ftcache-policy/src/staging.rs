//! Where prefill stages a whole layer: two buffers at the start of every bank's arena, on top of the first pools'
//! slots, or memory of their own. One pure function of a geometry.
//!
//! Borrowed buffers are not owned: a slot under one is given up when the buffer is taken. A buffer begins where the one
//! before it ends; where a geometry has several layout keys, pad bytes lie between, since a kernel that reads past the
//! last row's end must not find another layout's bits there. With one layout key it finds a row like its own.

use crate::{BankId, Geometry, Pool, PoolId, PoolSlots, SlotId, SlotRange, StagingError};

/// A bank whose rows are narrower than this ships a whole layer rather than the rows that miss: 256 KiB.
///
/// Below this, one small entry beside large ones made a batched copy block its caller on an H100 with CUDA 13.0, as the
/// reference system measured; rows of 253 KB and more never did.
pub const SMALL_ROW_BYTES: u64 = 256 * 1024;

/// Neighbouring slots of one pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotRun {
    /// The pool.
    pub pool: PoolId,
    /// The first slot.
    pub first: SlotId,
    /// How many.
    pub count: u32,
}

/// What a bank's staging buffers are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StageRange {
    /// Bytes of one whole layer at the widest stride of any layer that holds slots.
    pub stage_bytes: u64,
    /// Bytes from the start of one buffer to the next.
    pub buffer_stride: u64,
    /// Bytes after the last buffer, for kernels that read past its last row.
    pub tail_pad_bytes: u64,
}

impl StageRange {
    /// Bytes of this many buffers, pads included.
    fn bytes(&self, buffer_count: u32) -> u64 {
        match buffer_count {
            0 => 0,
            // A layer need not fit, so its bytes need not be counted exactly beyond 64 bits.
            _ => (self.buffer_stride.saturating_mul(u64::from(buffer_count - 1)))
                .saturating_add(self.stage_bytes)
                .saturating_add(self.tail_pad_bytes),
        }
    }
}

/// The staging buffers of a cache.
///
/// ```
/// use ftcache_policy::{Budget, Constraints, Geometry, LayoutKey, Model, PoolId, Quantisation, Staging};
///
/// let layers = vec![LayoutKey::tagged("Q4_K", [4096, 2048]); 48];
/// let model = Model::new(128, 8, Quantisation::PerLayer, layers)?;
/// let geometry = Geometry::new(model, Constraints::new(Budget::Slots(300)))?;
/// let staging = Staging::borrowed(&geometry)?;
/// // Two layers of 128 rows lie on the first 256 slots; 44 keep what they hold through a prefill.
/// assert_eq!(staging.buffer_count(), 2);
/// assert_eq!(staging.stable_from(PoolId::new(0)), 256);
/// assert_eq!(staging.invalidates(1)[0].first.get(), 128);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Staging {
    borrowed: bool,
    buffer_count: u32,
    second_lacks: Option<StagingError>,
    ranges: Vec<StageRange>,
    /// `invalidates[buffer]`, in the order of pools and slots.
    invalidates: [Vec<SlotRun>; 2],
    /// `stable_from[buffers - 1][pool]`.
    stable_from: [Vec<u32>; 2],
}

impl Staging {
    /// Two buffers, or the one that fits, on top of the first pools' slots.
    ///
    /// # Errors
    ///
    /// The first bank in which not even one whole layer fits, with both numbers.
    pub fn borrowed(geometry: &Geometry) -> Result<Self, StagingError> {
        let pools: Vec<&PoolSlots> = geometry.pools().iter().map(|pool| pool.slots()).collect();
        Self::on_slots(geometry.model().expert_count(), has_one_key(geometry), &pools, geometry.arena_bytes())
    }

    /// The same for pools that are already placed in arenas: layers of `expert_count` experts, of one layout key or of
    /// several.
    ///
    /// # Errors
    ///
    /// As those of [`borrowed`](Self::borrowed).
    ///
    /// # Panics
    ///
    /// If there is no expert or no pool, or a pool has not one range for each arena.
    pub fn on_slots(
        expert_count: u32,
        one_key: bool,
        pools: &[&PoolSlots],
        arena_bytes: &[u64],
    ) -> Result<Self, StagingError> {
        assert!(expert_count > 0 && !pools.is_empty(), "{expert_count} experts in {} pools", pools.len());
        assert!(pools.iter().all(|pool| pool.ranges.len() == arena_bytes.len()), "a range for each arena");
        let ranges = stage_ranges(expert_count, one_key, pools, arena_bytes.len());
        let lacks = |buffer_count: u32| {
            let mut short = ranges.iter().zip(arena_bytes).enumerate().filter_map(|(bank, (range, &given))| {
                let needed = if range.stage_bytes > 0 { range.bytes(buffer_count) } else { 0 };
                let bank = BankId::from_index(bank);
                (needed > given).then_some(StagingError { bank, buffer_count, needed, given })
            });
            short.next()
        };
        if let Some(error) = lacks(1) {
            return Err(error);
        }
        let second_lacks = lacks(2);
        let buffer_count = if second_lacks.is_none() { 2 } else { 1 };
        let invalidates = [0, 1].map(|buffer| invalidated(pools, &ranges, buffer));
        let past_last = |index: usize, runs: &[SlotRun]| {
            let ends = runs.iter().filter(|run| run.pool.index() == index).map(|run| run.first.get() + run.count);
            ends.max().unwrap_or(0)
        };
        let under_first: Vec<u32> = (0..pools.len()).map(|index| past_last(index, &invalidates[0])).collect();
        let under_both =
            (0..pools.len()).map(|index| under_first[index].max(past_last(index, &invalidates[1]))).collect();
        let stable_from = [under_first, under_both];
        Ok(Self { borrowed: true, buffer_count, second_lacks, ranges, invalidates, stable_from })
    }

    /// One buffer or two in memory of their own, which leave every slot alone.
    ///
    /// # Panics
    ///
    /// If `buffer_count` is neither 1 nor 2.
    pub fn dedicated(geometry: &Geometry, buffer_count: u32) -> Self {
        assert!(matches!(buffer_count, 1 | 2), "{buffer_count} staging buffers");
        let pools: Vec<&PoolSlots> = geometry.pools().iter().map(|pool| pool.slots()).collect();
        let model = geometry.model();
        let ranges = stage_ranges(model.expert_count(), has_one_key(geometry), &pools, model.bank_count());
        let no_slot = || vec![0; pools.len()];
        Self {
            borrowed: false,
            buffer_count,
            second_lacks: None,
            ranges,
            invalidates: [Vec::new(), Vec::new()],
            stable_from: [no_slot(), no_slot()],
        }
    }

    /// The same with one buffer: one layer is staged after another, without overlap.
    pub fn without_overlap(self) -> Self {
        Self { buffer_count: 1, ..self }
    }

    /// Whether the buffers lie on slots of the pools.
    pub fn is_borrowed(&self) -> bool {
        self.borrowed
    }

    /// Buffers: 2 if a layer can be staged while the one before it computes, else 1.
    pub fn buffer_count(&self) -> u32 {
        self.buffer_count
    }

    /// What a second borrowed buffer lacks, if it does not fit.
    pub fn second_lacks(&self) -> Option<&StagingError> {
        self.second_lacks.as_ref()
    }

    /// Each bank's buffers.
    pub fn ranges(&self) -> &[StageRange] {
        &self.ranges
    }

    /// Bytes that the buffers add to the arenas, each bank's: none if they are borrowed.
    pub fn added_bytes(&self) -> Vec<u64> {
        let added = if self.borrowed { 0 } else { self.buffer_count };
        self.ranges.iter().map(|range| range.bytes(added)).collect()
    }

    /// The slots that are overwritten when a buffer is filled, ascending.
    ///
    /// They are told for the second buffer even if it does not fit: those under the part of it that the arenas have.
    ///
    /// # Panics
    ///
    /// If `buffer` is neither 0 nor 1.
    pub fn invalidates(&self, buffer: usize) -> &[SlotRun] {
        &self.invalidates[buffer]
    }

    /// Pools that the buffers were laid out for.
    pub fn pool_count(&self) -> usize {
        self.stable_from[0].len()
    }

    /// The first slot of a pool from which on none lies under a buffer that is in use; the pool's slot count if all do.
    ///
    /// # Panics
    ///
    /// If there is no such pool.
    pub fn stable_from(&self, pool: PoolId) -> u32 {
        self.stable_from_with(pool, self.buffer_count)
    }

    /// As [`stable_from`](Self::stable_from), for the first buffer alone or for both.
    ///
    /// # Panics
    ///
    /// If there is no such pool, or `buffer_count` is neither 1 nor 2.
    pub fn stable_from_with(&self, pool: PoolId, buffer_count: u32) -> u32 {
        assert!(matches!(buffer_count, 1 | 2), "{buffer_count} staging buffers");
        self.stable_from[buffer_count as usize - 1][pool.index()]
    }

    /// Slots over all pools that no buffer in use lies on.
    pub fn stable_slots(&self, geometry: &Geometry) -> u64 {
        let stable =
            |(index, pool): (usize, &Pool)| u64::from(pool.slot_count() - self.stable_from(PoolId::from_index(index)));
        geometry.pools().iter().enumerate().map(stable).sum()
    }
}

/// Whether all layers that hold slots have one layout key.
fn has_one_key(geometry: &Geometry) -> bool {
    let mut keys = geometry.pools().iter().map(|pool| geometry.model().layer(pool.layers()[0]));
    let first = keys.next();
    keys.all(|key| Some(key) == first)
}

fn stage_ranges(expert_count: u32, one_key: bool, pools: &[&PoolSlots], bank_count: usize) -> Vec<StageRange> {
    let of_bank = |bank: usize| {
        let widest = pools.iter().map(|pool| pool.ranges[bank].stride).max().unwrap_or(0);
        let tail_pad_bytes = pools.iter().map(|pool| pool.ranges[bank].tail_pad_bytes).max().unwrap_or(0);
        let stage_bytes = u64::from(expert_count).saturating_mul(widest);
        // With several keys, the bits past a buffer's end may be another layout's.
        let buffer_stride = if one_key { stage_bytes } else { stage_bytes.saturating_add(tail_pad_bytes) };
        StageRange { stage_bytes, buffer_stride, tail_pad_bytes }
    };
    (0..bank_count).map(of_bank).collect()
}

/// The slots that lie under a buffer in some bank, as runs.
fn invalidated(pools: &[&PoolSlots], stages: &[StageRange], buffer: u64) -> Vec<SlotRun> {
    let mut runs: Vec<SlotRun> = Vec::new();
    for (index, pool) in pools.iter().enumerate() {
        let under = |(stage, range): (&StageRange, &SlotRange)| {
            let begin = stage.buffer_stride.saturating_mul(buffer);
            slots_within(range, pool.slot_count, begin, begin.saturating_add(stage.buffer_stride))
        };
        let mut spans: Vec<(u32, u32)> = stages.iter().zip(&pool.ranges).filter_map(under).collect();
        spans.sort_unstable();
        let mut end = 0;
        for (first, past) in spans {
            let first = first.max(end);
            if first >= past {
                continue;
            }
            match runs.last_mut() {
                Some(run) if run.pool.index() == index && end == first => run.count += past - first,
                _ => {
                    let pool = PoolId::from_index(index);
                    runs.push(SlotRun { pool, first: SlotId::new(first), count: past - first });
                }
            }
            end = past;
        }
    }
    runs
}

/// The slots of a pool that share a byte with `begin..end` of their arena, the gaps after their rows included.
fn slots_within(range: &SlotRange, slot_count: u32, begin: u64, end: u64) -> Option<(u32, u32)> {
    if range.stride == 0 || end <= range.offset || begin == end {
        return None;
    }
    let first = begin.saturating_sub(range.offset) / range.stride;
    let past = (end - range.offset).div_ceil(range.stride).min(u64::from(slot_count));
    (first < past).then_some((first as u32, past as u32))
}
