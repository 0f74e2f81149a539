//! Warm start: the experts that a run held, brought back at the start of another.

use ftcache_residency::Residents;
use ftcache_transfer::{Device, Streams};

use crate::{Cache, Error};

impl<D: Device> Cache<D> {
    /// Who is in a slot, in the order of use, to be kept; see [`Residents::to_bytes`]. The fingerprint is the
    /// caller's: a hash of the model file and whatever else must be the same.
    pub fn residents(&self, fingerprint: u64) -> Residents {
        self.residency.residents(fingerprint)
    }

    /// Brings residents back into an empty cache: of each pool's as many as it has slots, the most recently used.
    /// Returns the bytes that are on their way.
    ///
    /// Nothing is waited for: what the compute stream is given next comes behind the copies.
    ///
    /// # Errors
    ///
    /// Residents of another model, a cache that is not empty, an open chunk, a layer that is not attached, an unknown
    /// stream, or a cache without slots: nothing has changed. A copy that the device refused: every slot is free.
    pub fn bring_back(&mut self, streams: Streams, residents: &Residents, fingerprint: u64) -> Result<u64, Error> {
        self.check_with_host()?;
        self.check_streams(streams)?;
        self.residency.check_bring_back(residents, fingerprint)?;
        // Layers without slots have nothing to be brought back to.
        let with_slots = residents.layers().filter(|&layer| self.residency.pool_of(layer).is_ok());
        for layer in with_slots {
            self.loader.check_layer(layer)?;
        }
        let mut placements = Vec::new();
        let ticket = self.residency.bring_back(residents, fingerprint, &mut placements)?;
        match self.loader.bring_back(streams, ticket.placements()) {
            Ok(bytes) => {
                ticket.commit();
                Ok(bytes)
            }
            Err(error) => {
                ticket.abort();
                Err(error.into())
            }
        }
    }
}
