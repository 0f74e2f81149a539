//! Rows and how they come to be attached: one bank, an arena read from files, memory of the engine's that is pinned
//! where it lies.
//!
//! *Unsafe* in one place, passing a promise on: whoever has memory registered keeps it mapped until that is ended.

use std::ops::ControlFlow;

use ftcache_policy::{BankId, LayerId};

use crate::host_arena::{ArenaError, HostArena, LoadReport, Progress, RegisterError, Reservation};
use crate::{AttachError, BankError, Device, DeviceError, HostAccess, HostMemory, HostRows, Loader};

/// An arena that was loaded, or not attached as a whole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadArenaError {
    /// It was not loaded, and is gone.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// One of its banks cannot serve the model: nothing was read. Or the device failed before its rows were attached:
    /// it is gone.
    #[error(transparent)]
    Attach(#[from] AttachError),
}

impl<D: Device> Loader<D> {
    /// Attaches the rows of one bank of a layer. In place of others, it waits until no copy reads those.
    ///
    /// Rows that the device cannot read where they lie go through the bounce buffer, which must be there.
    ///
    /// # Errors
    ///
    /// An unknown layer or bank, a bank that the layer does not read, a stride below the row's width, fewer bytes than
    /// the experts' rows take, or rows that need a bounce buffer where there is none; a residency that is on the
    /// device, or the device's own. What was attached before stays.
    pub fn attach(&mut self, layer: LayerId, bank: BankId, rows: HostRows) -> Result<(), AttachError> {
        self.banks.check(layer, bank, &rows)?;
        self.check_with_host("attach")?;
        let direct = self.device.can_read(rows.base(), rows.bytes())?;
        if !direct && self.bounce.is_none() {
            return Err(BankError::NotPinned { layer, bank }.into());
        }
        if self.banks.is_direct(layer, bank).is_some() {
            self.device.synchronize_all()?;
        }
        Ok(self.banks.attach(layer, bank, rows, direct)?)
    }

    /// Reads an arena from its files, pins what is to be pinned, attaches its banks and keeps it. Returns how it
    /// went; see [`Reservation::load`].
    ///
    /// Layers that could not be pinned go through the bounce buffer. Where there is none they have no rows any more,
    /// and are for the CPU: [`check_layer`](Self::check_layer) says so, and the report why.
    ///
    /// # Errors
    ///
    /// What fails while it is loaded, after which nothing is left of it; a bank that does not fit the model.
    pub fn load_arena(
        &mut self,
        reservation: Reservation,
        tell: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<&LoadReport, LoadArenaError> {
        // Reading takes minutes, so what does not fit is found before.
        for (layer, bank, row_bytes, bytes) in reservation.banks() {
            self.banks.check_bytes(layer, bank, bytes, row_bytes).map_err(AttachError::from)?;
        }
        self.check_with_host("load").map_err(AttachError::from)?;
        let mut arena = reservation.load(&mut self.device, tell)?;
        let attached = match self.readable_banks(&arena) {
            Ok(readable) => readable,
            Err(error) => {
                // The first error is the one to tell.
                let _ = arena.free(&mut self.device);
                return Err(AttachError::from(error).into());
            }
        };
        for ((layer, bank, rows), direct) in arena.banks().zip(attached) {
            match direct {
                Some(direct) => self.banks.attach(layer, bank, rows, direct).map_err(AttachError::from)?,
                // Rows that it had are not this file's.
                None => self.banks.detach(layer, bank),
            }
        }
        self.host_arenas.push(arena);
        Ok(self.host_arenas.last().expect("it was pushed").report())
    }

    /// Whether the device reads each bank of an arena where it lies, `None` if it cannot be served from there; once
    /// nothing reads the rows that these take the place of. Whatever can fail of attaching them has been done then.
    fn readable_banks(&mut self, arena: &HostArena) -> Result<Vec<Option<bool>>, DeviceError> {
        let mut readable = Vec::new();
        let mut replaces = false;
        for (layer, bank, rows) in arena.banks() {
            let direct = self.device.can_read(rows.base(), rows.bytes())?;
            readable.push((direct || self.bounce.is_some()).then_some(direct));
            replaces |= self.banks.is_direct(layer, bank).is_some();
        }
        if replaces {
            self.device.synchronize_all()?;
        }
        Ok(readable)
    }

    /// The arenas that are kept.
    pub fn host_arenas(&self) -> &[HostArena] {
        &self.host_arenas
    }

    /// Pins memory of the engine's where it lies, whole or in parts of `part_bytes`, where one call would be refused;
    /// zero means whole. It is ended by [`unregister`](Self::unregister), or with the loader.
    ///
    /// # Errors
    ///
    /// As [`Registrations::register`](crate::Registrations::register).
    pub fn register(&mut self, memory: HostMemory, access: HostAccess, part_bytes: u64) -> Result<(), RegisterError> {
        let HostMemory { base, bytes } = memory;
        // SAFETY: it stays mapped, by the promise of `HostMemory::borrowed`.
        unsafe { self.registrations.register(&mut self.device, base, bytes, access, part_bytes) }
    }

    /// Ends what [`register`](Self::register) began at `base`, once nothing that is enqueued reads there. Rows there
    /// must be attached anew before they are copied again.
    ///
    /// # Errors
    ///
    /// As [`Registrations::unregister`](crate::Registrations::unregister).
    pub fn unregister(&mut self, base: *const u8) -> Result<(), RegisterError> {
        self.check_with_host("unregister")?;
        self.registrations.unregister(&mut self.device, base)
    }
}
