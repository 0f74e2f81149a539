//! Rows and how they come to be attached: one bank, an arena read from files, memory of the engine's that is pinned
//! where it lies.
//!
//! *Unsafe* in one place, passing a promise on: whoever has memory registered keeps it mapped until that is ended.

use std::ops::ControlFlow;

use ftcache_policy::{BankId, LayerId};

use crate::host_arena::{ArenaError, HostArena, LoadReport, Progress, RegisterError, Reservation};
use crate::{AttachError, BankError, Device, HostAccess, HostMemory, HostRows, Loader};

/// An arena that was loaded, or not attached as a whole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadArenaError {
    /// It was not loaded, and is gone.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// One of its banks cannot serve the model: nothing was read. Or the device failed while its rows were attached:
    /// it is kept.
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
    /// Layers that could not be pinned go through the bounce buffer. Where there is none they are not attached, and are
    /// for the CPU: [`check_layer`](Self::check_layer) says so, and the report why.
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
        let arena = reservation.load(&mut self.device, tell)?;
        let banks: Vec<(LayerId, BankId, HostRows)> = arena.banks().collect();
        self.host_arenas.push(arena);
        for (layer, bank, rows) in banks {
            match self.attach(layer, bank, rows) {
                Ok(()) | Err(AttachError::Bank(BankError::NotPinned { .. })) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.host_arenas.last().expect("it was pushed").report())
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
