//! Prefill chunks of both, and staging whose buffers cover what a test says.

use ftcache_policy::{
    Budget, Constraints, Geometry, LayerId, LayoutKey, Model, PoolId, PoolSlots, Quantisation, Scope, SlotRange,
    Staging,
};
use ftcache_residency::{ChunkReport, StageError};
use ftcache_testkit::reference::{Buffers, Refusal};

use crate::compare::{self, Outcome, Slots, differ, same};
use crate::operations::End;
use crate::pair::{Pair, end};

impl Pair {
    pub(crate) fn set_staging(&mut self, buffer_count: u32, stable_from: Option<[u32; 3]>) -> Outcome {
        let buffers = match stable_from {
            None => Buffers { count: buffer_count as usize, stable_from: None },
            Some(bounds) => {
                let bounds = self.slots.iter().zip(bounds).map(|(slots, bound)| bound.min(slots.len() as u32));
                Buffers { count: buffer_count as usize, stable_from: Some(bounds.collect()) }
            }
        };
        match self.cache.set_staging(staging(&buffers, &self.slots), 0) {
            Ok(()) => {
                self.buffers = Some(buffers);
                same("open chunk", false, self.model.is_chunk_open())
            }
            Err(StageError::ChunkOpen) => same("open chunk", true, self.model.is_chunk_open()),
            Err(error) => Err(error.to_string()),
        }
    }

    pub(crate) fn begin_chunk(&mut self) -> Outcome {
        let ours = self.cache.begin_chunk();
        let Some(buffers) = &self.buffers else { return same("chunk", ours, Err(StageError::NoStaging)) };
        match (ours, self.model.begin_chunk(buffers)) {
            (Ok(()), Ok(())) => {
                let bounds = buffers.stable_from.iter().flatten();
                let under = self.slots.iter().zip(bounds).flat_map(|(slots, &bound)| &slots[..bound as usize]);
                let lost = under.filter(|(_, owner)| owner.is_some()).count() as u64;
                self.chunk = ChunkReport { chunks: 1, lost, ..ChunkReport::default() };
                Ok(())
            }
            (Err(error), Err(refusal)) => compare::same_stage_error(error, refusal, &self.model),
            (ours, wanted) => differ(ours, wanted),
        }
    }

    pub(crate) fn stage(&mut self, layer: u32, end: End, overlaps: bool) -> Outcome {
        // A plan that is not carried out leaves nothing behind.
        let mut after = self.model.clone();
        let wanted = if overlaps { after.prefetch(layer) } else { after.materialize(layer) };
        let (id, plan) = (LayerId::new(layer), &mut self.stage_plan);
        let ours = if overlaps { self.cache.prefetch(id, plan) } else { self.cache.materialize(id, plan) };
        let ours = ours.map(|ticket| end!(ticket, end));
        match (ours, wanted) {
            (Ok(()), Ok(wanted)) => {
                let pool = self.pool_of_layer[layer as usize].expect("the layer was staged");
                compare::same_stage(&self.stage_plan, layer, pool, &wanted)?;
                if end == End::Commit {
                    self.model = after;
                    self.chunk.layers += 1;
                    self.chunk.gathered += wanted.gathers.len() as u64;
                    self.chunk.fetched += u64::from(self.expert_count) - wanted.gathers.len() as u64;
                }
                Ok(())
            }
            (Err(error), Err(refusal)) => compare::same_stage_error(error, refusal, &self.model),
            (ours, wanted) => differ(ours, wanted),
        }
    }

    pub(crate) fn same_staged(
        &self,
        what: &str,
        ours: Result<usize, StageError>,
        wanted: Result<usize, Refusal>,
    ) -> Outcome {
        match (ours, wanted) {
            (Ok(ours), Ok(wanted)) => same(what, ours, wanted),
            (Err(error), Err(refusal)) => compare::same_stage_error(error, refusal, &self.model),
            (ours, wanted) => differ(ours, wanted),
        }
    }

    pub(crate) fn end_chunk(&mut self, ours: Result<ChunkReport, StageError>, wanted: Result<(), Refusal>) -> Outcome {
        match (ours, wanted) {
            (Ok(report), Ok(())) => {
                self.chunk_total += self.chunk;
                same("chunk", report, self.chunk)
            }
            (Err(error), Err(refusal)) => compare::same_stage_error(error, refusal, &self.model),
            (ours, wanted) => differ(ours, wanted),
        }
    }
}

/// Staging that covers so many slots of each pool: a bank for each, in which the pool lies so far from the start that
/// the buffers end where they are to, and the other pools have no bytes.
fn staging(buffers: &Buffers, slots: &Slots) -> Staging {
    const STAGE_BYTES: u64 = 100;
    let pool_count = slots.len();
    let Some(bounds) = &buffers.stable_from else { return dedicated(pool_count, buffers.count as u32) };
    let end = STAGE_BYTES * buffers.count as u64;
    let range = |pool: usize, bank: usize| {
        let stride = u64::from(pool == bank);
        SlotRange { row_bytes: stride, stride, offset: end - u64::from(bounds[bank]), tail_pad_bytes: 0 }
    };
    let pool = |pool: usize| PoolSlots {
        slot_count: slots[pool].len() as u32,
        ranges: (0..pool_count).map(|bank| range(pool, bank)).collect(),
    };
    let pools: Vec<PoolSlots> = (0..pool_count).map(pool).collect();
    let pools: Vec<&PoolSlots> = pools.iter().collect();
    let staging = Staging::on_slots(STAGE_BYTES as u32, true, &pools, &vec![end; pool_count]).expect("it fits");
    let covered: Vec<u32> = (0..pool_count).map(|pool| staging.stable_from(PoolId::from_index(pool))).collect();
    assert_eq!((staging.buffer_count() as usize, &covered), (buffers.count, bounds));
    staging
}

/// Buffers with bytes of their own, beside so many pools.
fn dedicated(pool_count: usize, buffer_count: u32) -> Staging {
    let model = Model::new(1, 1, Quantisation::PerLayer, vec![LayoutKey::tagged("", [1]); pool_count]);
    let constraints = Constraints { scope: Scope::PerLayer, ..Constraints::new(Budget::Slots(pool_count as u64)) };
    let geometry = Geometry::new(model.expect("it is one"), constraints).expect("a slot for each layer");
    Staging::dedicated(&geometry, buffer_count)
}
