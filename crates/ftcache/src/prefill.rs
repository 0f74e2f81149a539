//! Prefill: a chunk's layers staged whole, one while the other computes.
//!
//! ```text
//! begin_chunk
//!   prefetch(0)  prefetch(1) | wait(0), kernels of layer 0, release(0) | prefetch(2) | wait(1), ... release(1) | ...
//! end_chunk
//! ```

use std::ops::AddAssign;

use ftcache_policy::{BankId, Configuration, LayerId, PoolId, Staging};
use ftcache_residency as residency;
use ftcache_residency::{StageError, StagePlan};
use ftcache_transfer::{Device, Streams};

use crate::cache::check_bank;
use crate::{Cache, Error};

/// What a prefill chunk came to, or several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ChunkReport {
    /// Layers, rows, and what it cost the decode set.
    pub residency: residency::ChunkReport,
    /// Bytes copied from the host.
    pub fetched_bytes: u64,
    /// Bytes copied from slots.
    pub gathered_bytes: u64,
}

impl AddAssign for ChunkReport {
    fn add_assign(&mut self, other: Self) {
        self.residency += other.residency;
        self.fetched_bytes += other.fetched_bytes;
        self.gathered_bytes += other.gathered_bytes;
    }
}

/// A staged layer in one bank, as kernels are given it: expert `i` lies at `address + i * stride`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StagedSpan {
    /// Device address of the first expert's row.
    pub address: u64,
    /// Bytes from row to row.
    pub stride: u64,
    /// Bytes of a row.
    pub row_bytes: u64,
    /// Experts of the layer.
    pub expert_count: u32,
}

/// Staging as it was asked for, to be laid out anew when the slots change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asked {
    /// How many buffers of their own; `None` if they are borrowed.
    pub(crate) dedicated: Option<u32>,
    /// Whether one buffer is enough, though two would fit.
    pub(crate) without_overlap: bool,
    pub(crate) small_row_bytes: u64,
}

impl Asked {
    /// What a configuration asks for; `None` if nothing is staged.
    pub(crate) fn of(configuration: &Configuration) -> Option<Self> {
        let staging = configuration.staging()?;
        Some(Self {
            dedicated: (!staging.is_borrowed()).then(|| staging.buffer_count()),
            without_overlap: !configuration.settings().overlap,
            small_row_bytes: configuration.small_row_bytes(),
        })
    }
}

#[derive(Debug)]
pub(crate) struct Prefill {
    pub(crate) asked: Option<Asked>,
    plan: StagePlan,
    /// Bytes of the chunk that is open, from the host and from slots.
    open: (u64, u64),
    total: ChunkReport,
}

impl Prefill {
    pub(crate) fn new(expert_count: usize) -> Self {
        Self { asked: None, plan: StagePlan::with_capacity(expert_count), open: (0, 0), total: ChunkReport::default() }
    }
}

impl<D: Device> Cache<D> {
    /// Gives the cache staging buffers, laid out for its geometry; those that are not borrowed are allocated. A bank
    /// with rows narrower than `small_row_bytes` ships whole layers; see
    /// [`SMALL_ROW_BYTES`](ftcache_policy::SMALL_ROW_BYTES).
    ///
    /// # Errors
    ///
    /// Staging for other pools, an open chunk, memory that the device has not, or a cache without slots. The buffers
    /// that were there stay.
    pub fn set_staging(&mut self, staging: Staging, small_row_bytes: u64) -> Result<(), Error> {
        self.check_slots()?;
        self.check_with_host()?;
        self.residency.check_staging(&staging)?;
        self.loader.set_staging(staging.clone())?;
        let dedicated = (!staging.is_borrowed()).then(|| staging.buffer_count());
        let without_overlap = staging.buffer_count() == 1 && staging.second_lacks().is_none();
        self.residency.set_staging(staging, small_row_bytes)?;
        self.prefill.asked = Some(Asked { dedicated, without_overlap, small_row_bytes });
        self.loader.reserve(self.geometry().model().expert_count() as usize);
        Ok(())
    }

    /// The same as a configuration of these pools says, which may be that there are none. What it wants of other pools,
    /// such as overlap, a later [`rebuild_as`](Self::rebuild_as) asks for anew.
    ///
    /// # Errors
    ///
    /// As [`set_staging`](Self::set_staging).
    pub fn stage_as(&mut self, configuration: &Configuration) -> Result<(), Error> {
        let Some(staging) = configuration.staging() else { return Ok(()) };
        self.set_staging(staging.clone(), configuration.small_row_bytes())?;
        self.prefill.asked = Asked::of(configuration);
        Ok(())
    }

    /// Opens a prefill chunk over these streams. Slots under borrowed buffers are freed, and handed out to nobody
    /// until it ends.
    ///
    /// The chunk's copies come behind everything that the compute stream was given before. Nothing is waited for.
    ///
    /// # Errors
    ///
    /// No staging buffers, an open chunk, an unknown stream or one that is being captured, the device's own, or a cache
    /// without slots.
    pub fn begin_chunk(&mut self, streams: Streams) -> Result<(), Error> {
        self.check_with_host()?;
        self.check_streams(streams)?;
        if self.residency.has_open_chunk() {
            return Err(StageError::ChunkOpen.into());
        }
        if self.residency.staging().is_none() {
            return Err(StageError::NoStaging.into());
        }
        self.loader.begin_chunk(streams)?;
        self.prefill.open = (0, 0);
        Ok(self.residency.begin_chunk()?)
    }

    /// Enqueues the copies that stage a layer in a free buffer, while another may be in use. Rows of residents come
    /// from their slots, the others from the host.
    ///
    /// # Errors
    ///
    /// No chunk is open, no buffer is free, the layer has been staged in this chunk, is unknown, holds no slots or is
    /// not attached. A copy that the device refused: the buffer is free, and the layer may be staged again.
    pub fn prefetch(&mut self, layer: LayerId) -> Result<(), Error> {
        self.stage(layer, residency::Cache::prefetch)
    }

    /// As [`prefetch`](Self::prefetch), in the first buffer: for a chunk that does not overlap.
    ///
    /// # Errors
    ///
    /// As [`prefetch`](Self::prefetch), if the first buffer is not free.
    pub fn materialize(&mut self, layer: LayerId) -> Result<(), Error> {
        self.stage(layer, residency::Cache::materialize)
    }

    fn stage(
        &mut self,
        layer: LayerId,
        stage: for<'a> fn(
            &'a mut residency::Cache,
            LayerId,
            &'a mut StagePlan,
        ) -> Result<residency::StageTicket<'a>, StageError>,
    ) -> Result<(), Error> {
        self.check_attached(layer)?;
        self.check_chunk()?;
        let ticket = stage(&mut self.residency, layer, &mut self.prefill.plan)?;
        match self.loader.stage(ticket.plan()) {
            Ok((fetched, gathered)) => {
                ticket.commit();
                self.prefill.open.0 += fetched;
                self.prefill.open.1 += gathered;
                Ok(())
            }
            Err(error) => {
                ticket.abort();
                Err(error.into())
            }
        }
    }

    /// Begins the use of a staged layer: what the compute stream is given next comes behind its copies. Returns the
    /// buffer, 0 or 1; see [`staged`](Self::staged).
    ///
    /// # Errors
    ///
    /// No chunk is open, the layer is in no buffer, or it is in use. The device's own: the chunk is to be abandoned.
    pub fn wait(&mut self, layer: LayerId) -> Result<usize, Error> {
        self.check_chunk()?;
        let buffer = self.residency.wait(layer)?;
        self.loader.await_staged(buffer)?;
        Ok(buffer)
    }

    /// Ends the use of a staged layer: the next fill of its buffer waits for what the compute stream was given until
    /// now.
    ///
    /// # Errors
    ///
    /// No chunk is open, the layer is in no buffer, or it has not been waited for. The device's own: the chunk is to be
    /// abandoned.
    pub fn release(&mut self, layer: LayerId) -> Result<(), Error> {
        self.check_chunk()?;
        let buffer = self.residency.release(layer)?;
        Ok(self.loader.release_staged(buffer)?)
    }

    /// Whether a chunk is open whose streams can be given work: before anything of it changes.
    fn check_chunk(&self) -> Result<(), Error> {
        if !self.residency.has_open_chunk() {
            return Err(StageError::NoChunk.into());
        }
        Ok(self.loader.check_chunk()?)
    }

    /// Where a layer lies in a bank when it is staged in a buffer, or `None` if it does not read the bank or there
    /// are no staging buffers.
    ///
    /// # Errors
    ///
    /// An unknown layer or bank, or a cache without slots.
    pub fn staged(&self, layer: LayerId, bank: BankId, buffer: usize) -> Result<Option<StagedSpan>, Error> {
        let pool: PoolId = self.residency.pool_of(layer)?;
        let range = *check_bank(self.geometry().pool(pool), bank)?;
        self.check_slots()?;
        let buffer_count = self.residency.staging().map_or(0, Staging::buffer_count) as usize;
        let Some(span) = (buffer < buffer_count).then(|| self.loader.staged(pool, bank, buffer)).flatten() else {
            return Ok(None);
        };
        let address = self.device().address(span.memory)? + span.offset;
        let expert_count = self.geometry().model().expert_count();
        Ok(Some(StagedSpan { address, stride: range.stride, row_bytes: range.row_bytes, expert_count }))
    }

    /// Ends the chunk and says what it came to. What the compute stream is given next comes behind every copy of the
    /// chunk; where staged rows of another layout lie on slots, zeros take their place.
    ///
    /// # Errors
    ///
    /// No chunk is open, or a buffer holds a layer that has not been released; the device's own. The chunk is open
    /// still.
    pub fn end_chunk(&mut self) -> Result<ChunkReport, Error> {
        self.residency.check_chunk_end()?;
        self.abandon_chunk()
    }

    /// Ends the chunk in the middle, whatever its buffers hold.
    ///
    /// # Errors
    ///
    /// No chunk is open. The device's own: the chunk is open still.
    pub fn abandon_chunk(&mut self) -> Result<ChunkReport, Error> {
        self.check_chunk()?;
        self.loader.end_chunk()?;
        let residency = self.residency.abandon_chunk()?;
        let (fetched_bytes, gathered_bytes) = self.prefill.open;
        let report = ChunkReport { residency, fetched_bytes, gathered_bytes };
        self.prefill.total += report;
        Ok(report)
    }

    /// What all chunks that have ended came to.
    pub fn chunk_total(&self) -> ChunkReport {
        self.prefill.total
    }
}
