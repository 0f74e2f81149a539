//! Prefill: whole layers staged in two buffers in turn, and what that costs the slots under them.
//!
//! A chunk walks the layers in order. Each is staged in a buffer while the one before it computes: rows of residents
//! are gathered from their slots, the others come from the host. Buffers that are borrowed lie on slots: those are
//! freed when the chunk begins, and handed out again when it ends.
//!
//! ```text
//! begin_chunk   prefetch 0   prefetch 1 | wait 0   release 0 | prefetch 2   wait 1   release 1 | ...   end_chunk
//! ```

use std::error::Error;
use std::fmt;
use std::ops::AddAssign;

use ftcache_policy::{LayerId, PoolId, SlotId, Staging};

use crate::map::Absence;
use crate::{Cache, EnsureError, StagePlan};

/// What a prefill chunk came to, or several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ChunkReport {
    /// Chunks.
    pub chunks: u64,
    /// Layers staged.
    pub layers: u64,
    /// Rows of these that lay in slots.
    pub gathered: u64,
    /// Rows of these that came from the host.
    pub fetched: u64,
    /// Residents that lost their slots to the staging buffers: what the chunk cost the decode set.
    pub lost: u64,
}

impl AddAssign for ChunkReport {
    fn add_assign(&mut self, other: Self) {
        self.chunks += other.chunks;
        self.layers += other.layers;
        self.gathered += other.gathered;
        self.fetched += other.fetched;
        self.lost += other.lost;
    }
}

/// A call out of the order of a chunk. Nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StageError {
    /// An unknown layer, or one without slots.
    Layer(EnsureError),
    /// The cache was given no staging buffers.
    NoStaging,
    /// Staging that was laid out for other pools.
    OtherPools {
        /// The first pool that does not fit it.
        pool: PoolId,
        /// Slots of the pool that lie under buffers; `None` if the staging knows no such pool.
        stable_from: Option<u32>,
        /// Slots of the pool; `None` if the cache has no such pool.
        slot_count: Option<u32>,
    },
    /// A chunk is open.
    ChunkOpen,
    /// No chunk is open.
    NoChunk,
    /// A layer cannot be prefetched while another computes: there is one buffer.
    NoOverlap,
    /// Every buffer that could be filled holds a layer that has not been released.
    NotReleased {
        /// The buffer.
        buffer: usize,
        /// The layer in it.
        layer: LayerId,
    },
    /// The layer has been staged in this chunk: its rows do not move twice.
    StagedBefore {
        /// The layer.
        layer: LayerId,
    },
    /// The layer is in no buffer.
    NotStaged {
        /// The layer.
        layer: LayerId,
    },
    /// The layer has been waited for.
    InUse {
        /// The layer.
        layer: LayerId,
    },
    /// The layer has not been waited for, so nothing can have used it.
    NotWaitedFor {
        /// The layer.
        layer: LayerId,
    },
}

impl fmt::Display for StageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Layer(error) => error.fmt(f),
            Self::NoStaging => write!(f, "the cache has no staging buffers"),
            Self::OtherPools { pool, stable_from, slot_count } => {
                write!(f, "the staging buffers are not laid out for these pools: ")?;
                match (stable_from, slot_count) {
                    (Some(covered), Some(slots)) => {
                        write!(f, "they cover {covered} slots of pool {pool}, which has {slots}")
                    }
                    (None, _) => write!(f, "they know no pool {pool}"),
                    (_, None) => write!(f, "the cache has no pool {pool}"),
                }
            }
            Self::ChunkOpen => write!(f, "a prefill chunk is open"),
            Self::NoChunk => write!(f, "no prefill chunk is open"),
            Self::NoOverlap => write!(f, "there is one staging buffer: layers are materialized one at a time"),
            Self::NotReleased { buffer, layer } => {
                write!(f, "staging buffer {buffer} holds layer {layer}, which has not been released")
            }
            Self::StagedBefore { layer } => write!(f, "layer {layer} has been staged in this chunk"),
            Self::NotStaged { layer } => write!(f, "layer {layer} is in no staging buffer"),
            Self::InUse { layer } => write!(f, "layer {layer} is in use"),
            Self::NotWaitedFor { layer } => write!(f, "layer {layer} is staged and has not been waited for"),
        }
    }
}

impl Error for StageError {}

/// A staging buffer of an open chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Buffer {
    #[default]
    Free,
    /// Its fill is enqueued.
    Ready(LayerId),
    /// Kernels may read it.
    InUse(LayerId),
}

impl Buffer {
    fn layer(self) -> Option<LayerId> {
        match self {
            Self::Free => None,
            Self::Ready(layer) | Self::InUse(layer) => Some(layer),
        }
    }
}

#[derive(Debug, Clone, Default)]
struct Chunk {
    buffers: [Buffer; 2],
    /// The buffer to be filled next, if both are free.
    next: usize,
    report: ChunkReport,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Prefill {
    staging: Option<Staging>,
    small_row_bytes: u64,
    chunk: Option<Chunk>,
    /// `staged[layer]`: whether the open chunk has staged it.
    staged: Vec<bool>,
    /// Over all chunks that have ended.
    total: ChunkReport,
}

impl Cache {
    /// Gives the cache staging buffers. A bank with rows narrower than `small_row_bytes` ships whole layers; see
    /// [`SMALL_ROW_BYTES`](ftcache_policy::SMALL_ROW_BYTES). With 0 none does.
    ///
    /// # Errors
    ///
    /// Staging that was laid out for other pools; a chunk is open.
    pub fn set_staging(&mut self, staging: Staging, small_row_bytes: u64) -> Result<(), StageError> {
        self.check_staging(&staging)?;
        self.prefill.staged = vec![false; self.layer_count()];
        self.prefill.staging = Some(staging);
        self.prefill.small_row_bytes = small_row_bytes;
        Ok(())
    }

    /// Whether the cache can be given these buffers: for who has to make room for them first.
    ///
    /// # Errors
    ///
    /// As those of [`set_staging`](Self::set_staging).
    pub fn check_staging(&self, staging: &Staging) -> Result<(), StageError> {
        if self.prefill.chunk.is_some() {
            return Err(StageError::ChunkOpen);
        }
        for pool in (0..self.pool_count().max(staging.pool_count())).map(PoolId::from_index) {
            let stable_from = (pool.index() < staging.pool_count()).then(|| staging.stable_from(pool));
            let slot_count = (pool.index() < self.pool_count()).then(|| self.slot_count(pool));
            if stable_from.zip(slot_count).is_none_or(|(stable_from, slot_count)| stable_from > slot_count) {
                return Err(StageError::OtherPools { pool, stable_from, slot_count });
            }
        }
        Ok(())
    }

    /// Takes the staging buffers away again.
    ///
    /// # Errors
    ///
    /// A chunk is open.
    pub fn clear_staging(&mut self) -> Result<(), StageError> {
        if self.prefill.chunk.is_some() {
            return Err(StageError::ChunkOpen);
        }
        self.prefill.staging = None;
        Ok(())
    }

    /// The staging buffers.
    pub fn staging(&self) -> Option<&Staging> {
        self.prefill.staging.as_ref()
    }

    /// A bank with rows narrower than this ships whole layers.
    pub fn small_row_bytes(&self) -> u64 {
        self.prefill.small_row_bytes
    }

    /// Opens a prefill chunk. Slots under buffers that are borrowed are freed and handed out to nobody until it ends;
    /// rows on their way there are lost, and are to land before the buffers are filled.
    ///
    /// # Errors
    ///
    /// No staging buffers, or a chunk is open.
    pub fn begin_chunk(&mut self) -> Result<(), StageError> {
        if self.prefill.chunk.is_some() {
            return Err(StageError::ChunkOpen);
        }
        let staging = self.prefill.staging.take().ok_or(StageError::NoStaging)?;
        let mut chunk = Chunk::default();
        chunk.report.chunks = 1;
        if staging.is_borrowed() {
            for pool in (0..self.pool_count()).map(PoolId::from_index) {
                let stable_from = staging.stable_from(pool);
                for slot in (0..stable_from).map(SlotId::new) {
                    let was_resident = self.ground(pool, slot, Absence::Staged);
                    chunk.report.lost += u64::from(self.free(pool, slot, Absence::Staged) || was_resident);
                }
                self.pools[pool.index()].recency.withhold(stable_from);
            }
            self.answers.forget_all();
        }
        self.flights.offered = None;
        self.prefill.staging = Some(staging);
        self.prefill.staged.fill(false);
        self.prefill.chunk = Some(chunk);
        Ok(())
    }

    /// Stages a layer in a free buffer, while another may be in use. The buffer is taken when the ticket is committed.
    ///
    /// Residents' rows are gathered from slots that no buffer lies on; their stamps stay. A layer is staged at most
    /// once in a chunk.
    ///
    /// # Errors
    ///
    /// No chunk is open, there is one buffer, no buffer is free, the layer has been staged in this chunk, is unknown or
    /// holds no slots.
    pub fn prefetch<'a>(&'a mut self, layer: LayerId, plan: &'a mut StagePlan) -> Result<StageTicket<'a>, StageError> {
        let chunk = self.prefill.chunk.as_ref().ok_or(StageError::NoChunk)?;
        if self.prefill.staging.as_ref().is_some_and(|staging| staging.buffer_count() == 1) {
            return Err(StageError::NoOverlap);
        }
        let free = [chunk.next, 1 - chunk.next].into_iter().find(|&buffer| chunk.buffers[buffer] == Buffer::Free);
        let buffer = free.unwrap_or(chunk.next);
        self.stage(layer, buffer, plan)
    }

    /// Stages a layer in the first buffer, for a chunk that does not overlap: one buffer is enough.
    ///
    /// # Errors
    ///
    /// As [`prefetch`](Self::prefetch), if the first buffer is not free.
    pub fn materialize<'a>(
        &'a mut self,
        layer: LayerId,
        plan: &'a mut StagePlan,
    ) -> Result<StageTicket<'a>, StageError> {
        self.stage(layer, 0, plan)
    }

    fn stage<'a>(
        &'a mut self,
        layer: LayerId,
        buffer: usize,
        plan: &'a mut StagePlan,
    ) -> Result<StageTicket<'a>, StageError> {
        let chunk = self.prefill.chunk.as_ref().ok_or(StageError::NoChunk)?;
        let pool = self.pool_of(layer).map_err(StageError::Layer)?;
        if self.prefill.staged[layer.index()] {
            return Err(StageError::StagedBefore { layer });
        }
        if let Some(layer) = chunk.buffers[buffer].layer() {
            return Err(StageError::NotReleased { buffer, layer });
        }
        plan.stage(self.map.layer(layer), (layer, pool, buffer), self.prefill.small_row_bytes);
        Ok(StageTicket { cache: self, plan })
    }

    /// Begins the use of a staged layer. Returns its buffer.
    ///
    /// # Errors
    ///
    /// No chunk is open, the layer is in no buffer, or it is in use.
    pub fn wait(&mut self, layer: LayerId) -> Result<usize, StageError> {
        let chunk = self.prefill.chunk.as_mut().ok_or(StageError::NoChunk)?;
        let buffer = chunk.find(layer)?;
        if chunk.buffers[buffer] == Buffer::InUse(layer) {
            return Err(StageError::InUse { layer });
        }
        chunk.buffers[buffer] = Buffer::InUse(layer);
        Ok(buffer)
    }

    /// Ends the use of a staged layer: its buffer is free. Returns the buffer.
    ///
    /// # Errors
    ///
    /// No chunk is open, the layer is in no buffer, or it has not been waited for.
    pub fn release(&mut self, layer: LayerId) -> Result<usize, StageError> {
        let chunk = self.prefill.chunk.as_mut().ok_or(StageError::NoChunk)?;
        let buffer = chunk.find(layer)?;
        if chunk.buffers[buffer] == Buffer::Ready(layer) {
            return Err(StageError::NotWaitedFor { layer });
        }
        chunk.buffers[buffer] = Buffer::Free;
        Ok(buffer)
    }

    /// Ends the chunk and says what it came to.
    ///
    /// # Errors
    ///
    /// No chunk is open, or a buffer holds a layer that has not been released.
    pub fn end_chunk(&mut self) -> Result<ChunkReport, StageError> {
        self.check_chunk_end()?;
        self.abandon_chunk()
    }

    /// Whether the chunk can be ended.
    ///
    /// # Errors
    ///
    /// As those of [`end_chunk`](Self::end_chunk).
    pub fn check_chunk_end(&self) -> Result<(), StageError> {
        let chunk = self.prefill.chunk.as_ref().ok_or(StageError::NoChunk)?;
        for (buffer, held) in chunk.buffers.iter().enumerate() {
            if let Some(layer) = held.layer() {
                return Err(StageError::NotReleased { buffer, layer });
            }
        }
        Ok(())
    }

    /// Ends the chunk in the middle, whatever its buffers hold: nothing may read them any more, and no fill may still
    /// be on its way.
    ///
    /// # Errors
    ///
    /// No chunk is open.
    pub fn abandon_chunk(&mut self) -> Result<ChunkReport, StageError> {
        let chunk = self.prefill.chunk.take().ok_or(StageError::NoChunk)?;
        self.flights.offered = None;
        for pool in &mut self.pools {
            pool.recency.withhold(0);
        }
        self.prefill.total += chunk.report;
        Ok(chunk.report)
    }

    /// Whether a chunk is open.
    pub fn has_open_chunk(&self) -> bool {
        self.prefill.chunk.is_some()
    }

    /// What all chunks that have ended came to.
    pub fn chunk_total(&self) -> ChunkReport {
        self.prefill.total
    }

    pub(crate) fn check_prefill(&self) -> Result<(), String> {
        let staging = self.prefill.staging.as_ref().filter(|staging| self.has_open_chunk() && staging.is_borrowed());
        for pool in &self.pools {
            let withheld = staging.map_or(0, |staging| staging.stable_from(pool.id));
            if pool.recency.withheld() != withheld {
                return Err(format!("pool {}: {} slots are withheld", pool.id, pool.recency.withheld()));
            }
        }
        Ok(())
    }
}

impl Chunk {
    fn find(&self, layer: LayerId) -> Result<usize, StageError> {
        let holds = |buffer: &Buffer| buffer.layer() == Some(layer);
        self.buffers.iter().position(holds).ok_or(StageError::NotStaged { layer })
    }
}

/// An open stage plan. Committed, its buffer holds the layer; aborted or dropped, the buffer is free, and the layer
/// may be staged again.
#[derive(Debug)]
#[must_use = "a ticket that is dropped aborts its plan"]
pub struct StageTicket<'a> {
    cache: &'a mut Cache,
    plan: &'a StagePlan,
}

impl<'a> StageTicket<'a> {
    /// The ticket of a plan that was left open.
    pub(crate) fn of(cache: &'a mut Cache, plan: &'a StagePlan) -> Self {
        Self { cache, plan }
    }

    /// Gives the borrow back; see [`Ticket::leave_open`](crate::Ticket). Nothing is taken before a commit.
    pub(crate) fn leave_open(self) {}

    /// What is to be moved.
    pub fn plan(&self) -> &StagePlan {
        self.plan
    }

    /// Ends the plan as enqueued.
    pub fn commit(self) {
        let Self { cache, plan } = self;
        let chunk = cache.prefill.chunk.as_mut().expect("the chunk that the ticket is of is open");
        chunk.buffers[plan.buffer()] = Buffer::Ready(plan.layer());
        chunk.next = 1 - plan.buffer();
        chunk.report.layers += 1;
        chunk.report.gathered += plan.gathers().len() as u64;
        chunk.report.fetched += plan.misses().iter().map(|run| u64::from(run.count)).sum::<u64>();
        cache.prefill.staged[plan.layer().index()] = true;
    }

    /// Ends the plan as not carried out.
    pub fn abort(self) {}
}
