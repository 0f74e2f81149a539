//! The one handle: geometry, residency, device and banks, and what an engine asks of each.

use ftcache_policy::{BankId, ExpertId, Geometry, LayerId, PoolId, SlotId};
use ftcache_residency as residency;
use ftcache_transfer::{Arenas, BankError, Banks, Device, DeviceSpan, Fences, HostRows};

use crate::Error;

/// The slots of one pool in one bank, as the engine's kernels are given them: slot `i` lies at `address + i * stride`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotSpan {
    /// Device address of slot 0. It does not move as long as the cache lives.
    pub address: u64,
    /// Bytes from slot to slot.
    pub stride: u64,
    /// Bytes of a row.
    pub row_bytes: u64,
    /// Number of slots.
    pub slot_count: u32,
}

/// A cache of one model's experts on one device.
///
/// Two caches share nothing, whether on one device or on several. A call takes `&mut self` because a step changes who
/// is where; one thread at a time.
#[derive(Debug)]
pub struct Cache<D: Device> {
    pub(crate) geometry: Geometry,
    pub(crate) residency: residency::Cache,
    pub(crate) device: D,
    pub(crate) arenas: Arenas,
    pub(crate) fences: Fences,
    pub(crate) banks: Banks,
    /// The last step's plan; its buffers serve the next.
    pub(crate) plan: residency::Plan,
    /// Reused for ids that an engine gives in its own form.
    pub(crate) routes: Vec<ExpertId>,
    /// `bytes_of_layer[layer]`: bytes copied to slots by committed steps.
    pub(crate) bytes_of_layer: Vec<u64>,
}

impl<D: Device> Cache<D> {
    /// An empty cache with every slot of a geometry allocated on the device.
    ///
    /// # Errors
    ///
    /// The device has not the memory, with the bytes wanted and free; nothing stays allocated then.
    pub fn new(geometry: Geometry, mut device: D) -> Result<Self, Error> {
        let fences = Fences::new(&mut device)?;
        let arenas = Arenas::allocate(&mut device, &geometry)?;
        let route_count = geometry.model().top_k() as usize * geometry.constraints().request_count as usize;
        Ok(Self {
            residency: residency::Cache::new(&geometry),
            banks: Banks::new(geometry.model()),
            plan: residency::Plan::with_capacity(route_count),
            routes: Vec::with_capacity(route_count),
            bytes_of_layer: vec![0; geometry.model().layer_count()],
            geometry,
            device,
            arenas,
            fences,
        })
    }

    /// Attaches the rows of one bank of a layer, in any order; again after an engine has moved them.
    ///
    /// Residents stay: the new rows must be the same bytes.
    ///
    /// # Errors
    ///
    /// An unknown layer or bank, a stride below the row's width, or fewer bytes than the experts' rows take.
    pub fn attach(&mut self, layer: LayerId, bank: BankId, rows: HostRows) -> Result<(), Error> {
        Ok(self.banks.attach(layer, bank, rows)?)
    }

    /// Whether a layer can be loaded: it has rows in every bank it reads.
    ///
    /// # Errors
    ///
    /// An unknown layer, or the first bank that is not attached.
    pub fn check_attached(&self, layer: LayerId) -> Result<(), Error> {
        self.residency.pool_of(layer)?;
        Ok(self.banks.check_layer(layer)?)
    }

    /// The geometry it was made with.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Who is where.
    pub fn residency(&self) -> &residency::Cache {
        &self.residency
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The device, for streams of the engine's own.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// Where the slots of a pool lie in one bank, or `None` if its layers do not read that bank.
    ///
    /// # Errors
    ///
    /// An unknown pool or bank.
    pub fn slots(&self, pool: PoolId, bank: BankId) -> Result<Option<SlotSpan>, Error> {
        self.check_slot(pool, SlotId::new(0))?;
        let Some(span) = self.device_span(pool, bank, SlotId::new(0))? else { return Ok(None) };
        let address = self.device.address(span.memory)? + span.offset;
        let row_bytes = self.geometry.pool(pool).ranges()[bank.index()].row_bytes;
        let slot_count = self.geometry.pool(pool).slot_count();
        Ok(Some(SlotSpan { address, stride: span.stride, row_bytes, slot_count }))
    }

    /// Reads one row of a slot back, once everything enqueued is done: for tests and for `replay`.
    ///
    /// # Errors
    ///
    /// An unknown layer, bank or slot, a `target` that is not a row long, or the device's own.
    pub fn read_row(&mut self, layer: LayerId, bank: BankId, slot: SlotId, target: &mut [u8]) -> Result<(), Error> {
        let pool = self.residency.pool_of(layer)?;
        self.check_slot(pool, slot)?;
        let span = self.device_span(pool, bank, slot)?;
        let row_bytes = self.geometry.model().row_bytes(layer, bank);
        let given = target.len() as u64;
        match span {
            Some(span) if row_bytes == given => Ok(self.device.read(span.memory, span.offset, target)?),
            _ => Err(Error::RowBytes { layer, bank, row_bytes, given }),
        }
    }

    /// Frees a slot, so that its expert is copied anew when it is next routed to. Returns who lost it.
    ///
    /// # Errors
    ///
    /// An unknown pool or slot.
    pub fn forget(&mut self, pool: PoolId, slot: SlotId) -> Result<Option<(LayerId, ExpertId)>, Error> {
        self.check_slot(pool, slot)?;
        Ok(self.residency.forget(pool, slot))
    }

    /// Frees every slot that holds an expert of `layer`. Returns how many there were.
    ///
    /// # Errors
    ///
    /// An unknown layer.
    pub fn forget_layer(&mut self, layer: LayerId) -> Result<usize, Error> {
        Ok(self.residency.forget_layer(layer)?)
    }

    /// Frees every slot. Statistics go on.
    pub fn reset(&mut self) {
        self.residency.reset();
    }

    fn device_span(&self, pool: PoolId, bank: BankId, slot: SlotId) -> Result<Option<DeviceSpan>, Error> {
        let (layer_count, bank_count) = (self.geometry.model().layer_count(), self.geometry.model().bank_count());
        if bank.index() >= bank_count {
            let layer = self.geometry.pool(pool).layers()[0];
            return Err(BankError::Unknown { layer, bank, layer_count, bank_count }.into());
        }
        Ok(self.arenas.slots(&self.geometry, pool, bank, slot))
    }

    pub(crate) fn check_slot(&self, pool: PoolId, slot: SlotId) -> Result<(), Error> {
        let pool_count = self.geometry.pools().len();
        let slot_count = self.geometry.pools().get(pool.index()).map_or(0, |pool| pool.slot_count());
        if slot.get() < slot_count { Ok(()) } else { Err(Error::UnknownSlot { pool, slot, pool_count, slot_count }) }
    }
}

impl<D: Device> Drop for Cache<D> {
    fn drop(&mut self) {
        // Freeing waits for what is enqueued, so no copy lands in memory that was given back.
        self.arenas.free(&mut self.device);
    }
}
