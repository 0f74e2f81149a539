//! A device, its slots, and the rows they are filled from, in one place: who owns all three can keep the promise that a
//! copy needs.

use ftcache_policy::{BankId, Geometry, LayerId, PoolId, SlotId};

use crate::apply::{Copies, Fences};
use crate::arena::Arenas;
use crate::bank::Banks;
use crate::bounce::Bounce;
use crate::late::Late;
use crate::on_device::DeviceMode;
use crate::stage::Stage;
use crate::{BankError, BounceSize, Device, DeviceError, DeviceSpan, HostArena, Registrations, Stream};

/// Where rows lie on the device.
#[derive(Debug)]
pub(crate) struct Places {
    pub(crate) arenas: Arenas,
    pub(crate) stage: Option<Stage>,
}

/// The slots of a cache on a device.
///
/// Rows are let go only once no copy reads them: they are replaced after a wait for everything enqueued, and dropped
/// after the slots are freed, which waits too. A device that cannot wait
/// does no more work.
#[derive(Debug)]
pub struct Loader<D: Device> {
    pub(crate) geometry: Geometry,
    pub(crate) device: D,
    /// What the device lacked, if it holds no slots.
    pub(crate) places: Result<Places, DeviceError>,
    pub(crate) fences: Fences,
    pub(crate) banks: Banks,
    pub(crate) bounce: Option<Bounce>,
    /// Copies behind steps, and ahead of them.
    pub(crate) late: Option<Late>,
    pub(crate) hints: Option<Late>,
    pub(crate) host_arenas: Vec<HostArena>,
    /// Memory of the engine's.
    pub(crate) registrations: Registrations,
    pub(crate) copies: Copies,
    pub(crate) mode: Option<DeviceMode>,
    /// Copies for which there is to be room.
    reserved: usize,
    /// The compute stream of the last call.
    pub(crate) compute: Option<Stream>,
}

impl<D: Device> Loader<D> {
    /// Every slot of a geometry, allocated on the device; no rows yet.
    ///
    /// # Errors
    ///
    /// The device's; nothing stays allocated then.
    pub fn new(geometry: Geometry, mut device: D) -> Result<Self, DeviceError> {
        let arenas = Arenas::allocate(&mut device, &geometry)?;
        Self::with_arenas(geometry, device, arenas)
    }

    /// Every slot of a geometry, in memory of the caller's: for each bank an address and bytes, as many as the
    /// geometry's [`arena_bytes`](Geometry::arena_bytes) or more; what stands for a bank that no layer reads is not
    /// looked at. The memory is filled with zeros.
    ///
    /// # Errors
    ///
    /// A bank without an arena, or one with too few bytes, with both numbers; the device's own.
    ///
    /// # Safety
    ///
    /// Each is memory of this device, in which nobody else writes, as long as this lives.
    pub unsafe fn in_memory(geometry: Geometry, mut device: D, arenas: &[(u64, u64)]) -> Result<Self, DeviceError> {
        // SAFETY: our caller's promise.
        let arenas = unsafe { Arenas::adopt(&mut device, &geometry, arenas) }?;
        Self::with_arenas(geometry, device, arenas)
    }

    fn with_arenas(geometry: Geometry, mut device: D, mut arenas: Arenas) -> Result<Self, DeviceError> {
        match Fences::new(&mut device) {
            Ok(fences) => {
                let banks = Banks::new(geometry.model());
                let places = Ok(Places { arenas, stage: None });
                let copies = Copies::default();
                Ok(Self {
                    geometry,
                    device,
                    places,
                    fences,
                    banks,
                    bounce: None,
                    late: None,
                    hints: None,
                    host_arenas: Vec::new(),
                    registrations: Registrations::new(),
                    copies,
                    mode: None,
                    reserved: 0,
                    compute: None,
                })
            }
            Err(error) => {
                arenas.free(&mut device);
                Err(error)
            }
        }
    }

    /// Makes room for plans of so many copies, which then allocate nothing.
    pub fn reserve(&mut self, copy_count: usize) {
        let copies = copy_count.saturating_mul(self.geometry.model().bank_count());
        self.reserved = self.reserved.max(copies);
        self.make_room();
    }

    /// Room for as many copies as was asked for, wherever they go.
    fn make_room(&mut self) {
        let bounced = if self.bounce.is_some() { self.reserved } else { 0 };
        self.copies.reserve(self.reserved, bounced);
        self.device.reserve(self.reserved);
        if let Some(bounce) = &mut self.bounce {
            let widest = self.geometry.model().layers().iter().flat_map(|layer| layer.row_bytes()).max();
            bounce.reserve(self.reserved, widest.copied().unwrap_or(0));
        }
    }

    /// Gives the loader a bounce buffer, through which rows go that the device cannot read where they lie. One is
    /// enough; a second call is an error.
    ///
    /// # Errors
    ///
    /// A size of nothing, pinned memory or threads that cannot be had, or a buffer that is there already.
    pub fn set_bounce(&mut self, size: BounceSize) -> Result<(), DeviceError> {
        if self.bounce.is_some() {
            let reason = "there is one".to_owned();
            return Err(DeviceError::Failed { operation: "bounce buffer", bytes: size.bytes(), reason });
        }
        self.bounce = Some(Bounce::new(&mut self.device, size)?);
        self.make_room();
        Ok(())
    }

    /// Whether copies from a bank of a layer go straight to the slots, and not through the bounce buffer; `None` if it
    /// is not attached.
    pub fn is_direct(&self, layer: LayerId, bank: BankId) -> Option<bool> {
        self.banks.is_direct(layer, bank)
    }

    /// Whether a layer has rows in every bank it reads.
    ///
    /// # Errors
    ///
    /// An unknown layer, or the first bank that is missing.
    pub fn check_layer(&self, layer: LayerId) -> Result<(), BankError> {
        self.banks.check_layer(layer)
    }

    /// Whether there are slots. A rebuild that found the device out of memory twice leaves none.
    ///
    /// # Errors
    ///
    /// What the device lacked.
    pub fn check_slots(&self) -> Result<(), DeviceError> {
        self.places.as_ref().map(|_| ()).map_err(Clone::clone)
    }

    /// Where one slot's row lies in one bank, or `None` if the pool's layers do not read that bank, or there are no
    /// slots.
    ///
    /// # Panics
    ///
    /// If there is no such pool, bank or slot.
    pub fn slot(&self, pool: PoolId, bank: BankId, slot: SlotId) -> Option<DeviceSpan> {
        self.places.as_ref().ok()?.arenas.slots(&self.geometry, pool, bank, slot)
    }

    /// Reads device memory from a span's start on, once everything enqueued is done.
    ///
    /// # Errors
    ///
    /// The device's.
    pub fn read(&mut self, span: &DeviceSpan, target: &mut [u8]) -> Result<(), DeviceError> {
        self.device.read(span.memory, span.offset, target)
    }

    /// A new stream of the device, which goes with it.
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

    /// Returns when everything enqueued is done, after which no stream of an earlier step need live on.
    ///
    /// # Errors
    ///
    /// The device's.
    pub fn synchronize_all(&mut self) -> Result<(), DeviceError> {
        self.device.synchronize_all()?;
        self.compute = None;
        Ok(())
    }

    /// Whether anything enqueued has failed since the last call. Waits for nothing.
    ///
    /// # Errors
    ///
    /// What failed.
    pub fn check(&mut self) -> Result<(), DeviceError> {
        self.device.check()
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
        // No call is left that could return what fails, so the log has it. Freeing waits for what is enqueued, so no copy lands in memory that is
        // given back, or reads rows that are gone: they go after this. A device that cannot wait does no more work;
        // threads of ours that could still read are stopped with the bounce buffer.
        if let Ok(places) = &mut self.places {
            if let Some(stage) = &mut places.stage {
                stage.free(&mut self.device);
            }
            places.arenas.free(&mut self.device);
        }
        self.fences.free(&mut self.device);
        if let Some(mode) = &mut self.mode {
            told("the memory of device mode", mode.free(&mut self.device));
        }
        for late in [&mut self.late, &mut self.hints].into_iter().flatten() {
            late.free(&mut self.device);
        }
        if let Some(bounce) = self.bounce.take() {
            told("the bounce buffer", bounce.free(&mut self.device));
        }
        for arena in &mut self.host_arenas {
            told("an arena", arena.free(&mut self.device));
        }
        told("registered memory", self.registrations.free(&mut self.device));
    }
}

/// Tells of memory that could not be given back.
fn told(what: &str, freed: Result<(), DeviceError>) {
    if let Err(error) = freed {
        tracing::error!("{what} is not given back: {error}");
    }
}
