//! A device, its slots, and the rows they are filled from, in one place: who owns all three can keep the promise that a
//! copy needs.
//!
//! *Unsafe* in one place, relying on what is kept here: rows are let go only once every copy that reads them is done.

use ftcache_policy::{BankId, Geometry, LayerId, PoolId, SlotId};
use ftcache_residency::Plan;

use crate::{
    ApplyError, Arenas, AttachError, BankError, Banks, Device, DeviceError, DeviceSpan, Fences, HostRows, Stream,
    Streams,
};

/// The slots of a cache on a device.
#[derive(Debug)]
pub struct Loader<D: Device> {
    geometry: Geometry,
    device: D,
    arenas: Arenas,
    fences: Fences,
    banks: Banks,
}

impl<D: Device> Loader<D> {
    /// Every slot of a geometry, allocated on the device; no rows yet.
    ///
    /// # Errors
    ///
    /// The device's; nothing stays allocated then.
    pub fn new(geometry: Geometry, mut device: D) -> Result<Self, DeviceError> {
        let fences = Fences::new(&mut device)?;
        let arenas = Arenas::allocate(&mut device, &geometry)?;
        let banks = Banks::new(geometry.model());
        Ok(Self { geometry, device, arenas, fences, banks })
    }

    /// Attaches the rows of one bank of a layer. In place of others, it waits until no copy reads those.
    ///
    /// # Errors
    ///
    /// As [`Banks::attach`]. What was attached before stays.
    pub fn attach(&mut self, layer: LayerId, bank: BankId, rows: HostRows) -> Result<(), AttachError> {
        if self.banks.is_attached(layer, bank) {
            self.device.synchronize_all()?;
        }
        Ok(self.banks.attach(layer, bank, rows)?)
    }

    /// Whether a layer has rows in every bank it reads.
    ///
    /// # Errors
    ///
    /// An unknown layer, or the first bank that is missing.
    pub fn check_layer(&self, layer: LayerId) -> Result<(), BankError> {
        self.banks.check_layer(layer)
    }

    /// Enqueues every copy of a plan and returns the bytes they move; see [`apply`](crate::apply).
    ///
    /// # Errors
    ///
    /// The first copy that the device refuses: the plan is to be aborted.
    ///
    /// # Panics
    ///
    /// If a bank of the plan's layer is not attached.
    pub fn apply(&mut self, streams: Streams, plan: &Plan) -> Result<u64, ApplyError> {
        // SAFETY: rows are replaced after a wait for everything enqueued (`attach`) and dropped after the arenas are
        // freed, which waits too (`drop`), both by the promise of `Device`; and nobody outside can exchange the device.
        unsafe {
            crate::apply(&mut self.device, streams, &self.fences, &self.geometry, &self.arenas, &self.banks, plan)
        }
    }

    /// Where one slot's row lies in one bank, or `None` if the pool's layers do not read that bank.
    ///
    /// # Panics
    ///
    /// If there is no such pool, bank or slot.
    pub fn slot(&self, pool: PoolId, bank: BankId, slot: SlotId) -> Option<DeviceSpan> {
        self.arenas.slots(&self.geometry, pool, bank, slot)
    }

    /// Reads device memory from a span's start on, once everything enqueued is done.
    ///
    /// # Errors
    ///
    /// The device's.
    pub fn read(&mut self, span: &DeviceSpan, target: &mut [u8]) -> Result<(), DeviceError> {
        self.device.read(span.memory, span.offset, target)
    }

    /// A new stream of the device.
    ///
    /// # Errors
    ///
    /// The device's.
    pub fn create_stream(&mut self) -> Result<Stream, DeviceError> {
        self.device.create_stream()
    }

    /// Returns when everything enqueued on a stream is done.
    ///
    /// # Errors
    ///
    /// The device's.
    pub fn synchronize(&mut self, stream: Stream) -> Result<(), DeviceError> {
        self.device.synchronize(stream)
    }

    /// The geometry of the slots.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }
}

impl<D: Device> Drop for Loader<D> {
    fn drop(&mut self) {
        // Freeing waits for what is enqueued, so no copy reads rows that are gone or lands in memory given back.
        self.arenas.free(&mut self.device);
    }
}
