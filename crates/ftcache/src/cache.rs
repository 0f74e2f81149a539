//! The one handle: geometry, residency, device and banks, and what an engine asks of each.

use std::ops::ControlFlow;

use ftcache_policy::{BankId, Eviction, ExpertId, Geometry, LayerId, Pool, PoolId, SlotId, SlotRange};
use ftcache_residency as residency;
use ftcache_transfer::{
    ArenaReport, BankError, BounceSize, Device, HostAccess, HostArena, HostMemory, HostRows, LinkError, LoadReport,
    Loader, Progress, RegisterError, Reservation, Stream,
};

use crate::Error;
use crate::hint::Hints;
use crate::later::Later;
use crate::prefill::Prefill;

/// The slots of one pool in one bank, as the engine's kernels are given them: slot `i` lies at `address + i * stride`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotSpan {
    /// Device address of slot 0. It does not move until the cache is rebuilt; see [`Cache::generation`].
    pub address: u64,
    /// Bytes from slot to slot.
    pub stride: u64,
    /// Bytes of a row.
    pub row_bytes: u64,
    /// Number of slots.
    pub slot_count: u32,
}

/// The widest step for which room is made beforehand.
const RESERVED_ROUTES_MAX: usize = 1 << 16;

/// A cache of one model's experts on one device.
///
/// Two caches share nothing, whether on one device or on several. A call takes `&mut self` because a step changes who
/// is where; one thread at a time.
#[derive(Debug)]
pub struct Cache<D: Device> {
    pub(crate) residency: residency::Cache,
    pub(crate) loader: Loader<D>,
    /// The last step's plan; its buffers serve the next.
    pub(crate) plan: residency::Plan,
    /// Reused for ids that an engine gives in its own form.
    pub(crate) routes: Vec<ExpertId>,
    pub(crate) prefill: Prefill,
    pub(crate) later: Option<Later>,
    pub(crate) hints: Option<Hints>,
}

/// Routes of the widest step that the requests of a geometry need, for which room is made beforehand: up to 65,536,
/// since some engines say "no limit" with the largest number there is.
pub fn reserved_routes(geometry: &Geometry) -> usize {
    let requests = geometry.constraints().request_count as usize;
    (geometry.model().top_k() as usize).saturating_mul(requests).min(RESERVED_ROUTES_MAX)
}

impl<D: Device> Cache<D> {
    /// An empty cache with every slot of a geometry allocated on the device.
    ///
    /// # Errors
    ///
    /// The device has not the memory, with the bytes wanted and free; nothing stays allocated then.
    pub fn new(geometry: Geometry, device: D) -> Result<Self, Error> {
        Ok(Self::with_loader(Loader::new(geometry, device)?))
    }

    /// An empty cache over slots that are there, such as those of [`Loader::in_memory`], which the engine allocated.
    pub fn with_loader(mut loader: Loader<D>) -> Self {
        let geometry = loader.geometry();
        let route_count = reserved_routes(geometry);
        let expert_count = geometry.model().expert_count() as usize;
        let mut residency = residency::Cache::new(geometry);
        residency.reserve(route_count);
        // A layer has no more rows to copy than experts.
        loader.reserve(route_count.min(expert_count));
        Self {
            residency,
            plan: residency::Plan::with_capacity(route_count),
            routes: Vec::with_capacity(route_count),
            prefill: Prefill::new(expert_count),
            later: None,
            hints: None,
            loader,
        }
    }

    /// Chooses victims by another rule from now on; see [`residency::Cache::set_eviction`].
    ///
    /// # Errors
    ///
    /// Layers of more experts than the rule can rank; a residency that is on the device.
    pub fn set_eviction(&mut self, rule: Eviction) -> Result<(), Error> {
        self.check_with_host()?;
        Ok(self.residency.set_eviction(rule)?)
    }

    /// Gives the cache a bounce buffer: pinned memory through which rows go that the device cannot read where they lie,
    /// filled by threads of its own. It is to be there before such rows are attached.
    ///
    /// # Errors
    ///
    /// A size of nothing, pinned memory or threads that cannot be had, or a buffer that is there already.
    pub fn set_bounce(&mut self, size: BounceSize) -> Result<(), Error> {
        Ok(self.loader.set_bounce(size)?)
    }

    /// Attaches the rows of one bank of a layer, in any order; again after an engine has moved them.
    ///
    /// Residents stay: the new rows must be the same bytes. Attaching again waits until nothing reads the rows before.
    ///
    /// # Errors
    ///
    /// An unknown layer or bank, a stride below the row's width, fewer bytes than the experts' rows take, or rows
    /// that the device cannot read where they lie if there is no bounce buffer.
    pub fn attach(&mut self, layer: LayerId, bank: BankId, rows: HostRows) -> Result<(), Error> {
        self.check_with_host()?;
        Ok(self.loader.attach(layer, bank, rows)?)
    }

    /// Reads an arena from its files, pins what is to be pinned, attaches its banks and keeps it. Returns how it went.
    ///
    /// Layers that could not be pinned go through the bounce buffer. Where there is none they are not attached, and are
    /// for the CPU: [`check_attached`](Self::check_attached) says so, and the report why.
    ///
    /// # Errors
    ///
    /// What fails while it is loaded, after which nothing is left of it; a bank that does not fit the model.
    pub fn load_arena(
        &mut self,
        reservation: Reservation,
        tell: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<&LoadReport, Error> {
        self.check_with_host()?;
        Ok(self.loader.load_arena(reservation, tell)?)
    }

    /// The arenas that were loaded and are kept, with how it went.
    pub fn host_arenas(&self) -> &[HostArena] {
        self.loader.host_arenas()
    }

    /// Pins memory of the engine's where it lies, before rows in it are attached; see [`Loader::register`].
    ///
    /// # Errors
    ///
    /// As [`Loader::register`].
    pub fn register(&mut self, memory: HostMemory, access: HostAccess, part_bytes: u64) -> Result<(), RegisterError> {
        self.loader.register(memory, access, part_bytes)
    }

    /// Ends what [`register`](Self::register) began at `base`; see [`Loader::unregister`].
    ///
    /// # Errors
    ///
    /// As [`Loader::unregister`].
    pub fn unregister(&mut self, base: *const u8) -> Result<(), RegisterError> {
        self.loader.unregister(base)
    }

    /// Whether copies from a bank of a layer go straight to the slots, and not through the bounce buffer; `None` if
    /// it is not attached.
    pub fn is_direct(&self, layer: LayerId, bank: BankId) -> Option<bool> {
        self.loader.is_direct(layer, bank)
    }

    /// Measures whether every arena lies on the device, once and before any rows are attached: on systems that let
    /// device memory overflow into the host's, one that does not is far slower. Waits.
    ///
    /// # Errors
    ///
    /// Rows are attached; what the device lacks or refuses.
    pub fn measure_arenas(&mut self) -> Result<ArenaReport, LinkError> {
        self.loader.measure_arenas()
    }

    /// Whether a layer can be loaded: it has rows in every bank it reads.
    ///
    /// # Errors
    ///
    /// An unknown layer, or the first bank that is not attached.
    pub fn check_attached(&self, layer: LayerId) -> Result<(), Error> {
        self.residency.pool_of(layer)?;
        Ok(self.loader.check_layer(layer)?)
    }

    /// The geometry it was made with.
    pub fn geometry(&self) -> &Geometry {
        self.loader.geometry()
    }

    /// Who is where.
    pub fn residency(&self) -> &residency::Cache {
        &self.residency
    }

    /// The device.
    pub fn device(&self) -> &D {
        self.loader.device()
    }

    /// A new stream of the device.
    ///
    /// # Errors
    ///
    /// The device's.
    pub fn create_stream(&mut self) -> Result<Stream, Error> {
        Ok(self.loader.create_stream()?)
    }

    /// Whether anything enqueued has failed since the last call. Waits for nothing, so what is on its way may fail yet.
    ///
    /// # Errors
    ///
    /// What failed, or what the device lacks if there are no slots; launches in device mode that were refused.
    pub fn check_device(&mut self) -> Result<(), Error> {
        self.check_slots()?;
        if let Some(faults) = self.loader.take_faults() {
            return Err(faults.into());
        }
        self.land()?;
        Ok(self.loader.check()?)
    }

    /// The number of this cache's slots: a rebuild counts it up, and with it every address that was handed out before
    /// is void.
    pub fn generation(&self) -> u64 {
        self.residency.generation()
    }

    pub(crate) fn check_slots(&self) -> Result<(), Error> {
        self.loader.check_slots().map_err(Error::Unavailable)
    }

    /// Whether there are slots: a rebuild that failed may have left none.
    pub fn has_slots(&self) -> bool {
        self.check_slots().is_ok()
    }

    /// Returns when everything enqueued on any stream is done. Streams of earlier steps may be destroyed then.
    ///
    /// # Errors
    ///
    /// The device's.
    pub fn synchronize_all(&mut self) -> Result<(), Error> {
        Ok(self.loader.synchronize_all()?)
    }

    /// Returns when everything enqueued on a stream is done.
    ///
    /// # Errors
    ///
    /// The device's.
    pub fn synchronize(&mut self, stream: Stream) -> Result<(), Error> {
        Ok(self.loader.synchronize(stream)?)
    }

    /// Where the slots of a pool lie in one bank, or `None` if its layers do not read that bank.
    ///
    /// # Errors
    ///
    /// An unknown pool or bank, or a cache without slots.
    pub fn slots(&self, pool: PoolId, bank: BankId) -> Result<Option<SlotSpan>, Error> {
        let pool_geometry = self.check_pool(pool)?;
        let (range, slot_count) = (*check_bank(pool_geometry, bank)?, pool_geometry.slot_count());
        self.check_slots()?;
        let Some(span) = self.loader.slot(pool, bank, SlotId::new(0)) else { return Ok(None) };
        let address = self.device().address(span.memory)? + span.offset;
        Ok(Some(SlotSpan { address, stride: range.stride, row_bytes: range.row_bytes, slot_count }))
    }

    /// Reads one row of a slot back, once everything enqueued is done: for tests and for `replay`.
    ///
    /// # Errors
    ///
    /// An unknown layer, bank or slot, a `target` that is not a row long, or the device's own.
    pub fn read_row(&mut self, layer: LayerId, bank: BankId, slot: SlotId, target: &mut [u8]) -> Result<(), Error> {
        let pool = self.residency.pool_of(layer)?;
        self.check_slot(pool, slot)?;
        let (row_bytes, given) = (check_bank(self.geometry().pool(pool), bank)?.row_bytes, target.len() as u64);
        self.check_slots()?;
        let span = self.loader.slot(pool, bank, slot).ok_or(BankError::Unread { layer, bank })?;
        if row_bytes != given {
            return Err(Error::RowBytes { layer, bank, row_bytes, given });
        }
        Ok(self.loader.read(&span, target)?)
    }

    /// Frees a slot, so that its expert is copied anew when it is next routed to. Returns who lost it.
    ///
    /// # Errors
    ///
    /// An unknown pool or slot.
    pub fn forget(&mut self, pool: PoolId, slot: SlotId) -> Result<Option<(LayerId, ExpertId)>, Error> {
        self.check_slot(pool, slot)?;
        self.check_with_host()?;
        Ok(self.residency.forget(pool, slot))
    }

    /// Frees every slot that holds an expert of `layer`. Returns how many there were.
    ///
    /// # Errors
    ///
    /// An unknown layer.
    pub fn forget_layer(&mut self, layer: LayerId) -> Result<usize, Error> {
        self.check_with_host()?;
        Ok(self.residency.forget_layer(layer)?)
    }

    /// Frees every slot. Statistics go on.
    ///
    /// # Errors
    ///
    /// A residency that is on the device.
    pub fn reset(&mut self) -> Result<(), Error> {
        self.check_with_host()?;
        self.residency.reset();
        Ok(())
    }

    /// Pins experts: once in a slot, they are never victims. Every pool keeps as many slots for others as the
    /// requests of the geometry can ask for at once, so that every step goes on being admitted. See
    /// [`residency::Cache::pin`].
    ///
    /// # Errors
    ///
    /// An unknown layer or expert, a layer without slots, or a pool with too few slots left. Nothing is pinned then.
    pub fn pin(&mut self, experts: &[(LayerId, ExpertId)]) -> Result<(), Error> {
        self.check_with_host()?;
        let widest = self.geometry().pools().iter().map(|pool| pool.bounds().min_slots).max().unwrap_or(0);
        Ok(self.residency.pin(experts, widest)?)
    }

    /// Makes experts victims like others again. Ones that are not pinned stay as they are.
    ///
    /// # Errors
    ///
    /// An unknown layer or expert.
    pub fn unpin(&mut self, experts: &[(LayerId, ExpertId)]) -> Result<(), Error> {
        self.check_with_host()?;
        Ok(self.residency.unpin(experts)?)
    }

    pub(crate) fn check_pool(&self, pool: PoolId) -> Result<&Pool, Error> {
        let pools = self.geometry().pools();
        pools.get(pool.index()).ok_or(Error::UnknownPool { pool, pool_count: pools.len() })
    }

    fn check_slot(&self, pool: PoolId, slot: SlotId) -> Result<(), Error> {
        let slot_count = self.check_pool(pool)?.slot_count();
        if slot.get() < slot_count { Ok(()) } else { Err(Error::UnknownSlot { pool, slot, slot_count }) }
    }
}

pub(crate) fn check_bank(pool: &Pool, bank: BankId) -> Result<&SlotRange, Error> {
    let unknown = BankError::UnknownBank { bank, bank_count: pool.ranges().len() };
    Ok(pool.ranges().get(bank.index()).ok_or(unknown)?)
}
