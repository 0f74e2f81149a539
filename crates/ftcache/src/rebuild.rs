//! Another number of slots for the same model, while the cache lives.

use ftcache_policy::{Configuration, Geometry, Staging, StagingError};
use ftcache_residency as residency;
use ftcache_residency::Keep;
use ftcache_transfer::{Device, RebuildError, Rebuilt};

use crate::cache::reserved_routes;
use crate::prefill::Asked;
use crate::{Cache, Error};

/// What a rebuild came to.
#[derive(Debug, Clone, PartialEq)]
pub struct RebuildReport {
    /// How the slots changed, and if nobody was kept, why.
    pub rebuilt: Rebuilt,
    /// Residents that are in a slot still.
    pub kept: usize,
    /// The staging buffers, laid out anew as they were asked for; `None` if none were.
    pub staging: Option<Result<Staging, StagingLost>>,
}

/// Why there are no staging buffers after a rebuild.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StagingLost {
    /// The slots do not hold one whole layer.
    #[error(transparent)]
    Slots(#[from] StagingError),
    /// The device has not the memory.
    #[error(transparent)]
    Device(#[from] ftcache_transfer::DeviceError),
}

impl<D: Device> Cache<D> {
    /// Exchanges the slots for those of another geometry of the same model.
    ///
    /// Waits until nothing is on its way: nobody may read the slots any more. Residents survive, the most recently
    /// used first, if the old and the new slots together take no more than `most_bytes` of device memory and the
    /// device has it; else the old ones are freed before the new ones are allocated, and nobody survives, which the
    /// report says. In memory of the engine's they survive where their pools stay in place.
    ///
    /// Addresses that were handed out are void afterwards ([`generation`](Self::generation)). Pins, the order of
    /// steps and the way staging was asked for go on; statistics start over, and open hints end.
    ///
    /// # Errors
    ///
    /// A geometry of another model, one that holds not what is pinned, or an open chunk: nothing has changed. Memory
    /// that the device has not: the old slots are there again, and empty; or there are none, and every call says so
    /// until a rebuild brings some back.
    pub fn rebuild(&mut self, geometry: Geometry, keep: Keep, most_bytes: u64) -> Result<RebuildReport, Error> {
        self.rebuild_with(geometry, keep, most_bytes, self.prefill.asked)
    }

    /// As [`rebuild`](Self::rebuild), with the pools, the staging and the rule for victims of a configuration of the
    /// same model. What another rule goes by is counted from here on.
    ///
    /// # Errors
    ///
    /// As [`rebuild`](Self::rebuild). Unless the slots are others, staging stays as it was asked for before.
    pub fn rebuild_as(
        &mut self,
        configuration: &Configuration,
        keep: Keep,
        most_bytes: u64,
    ) -> Result<RebuildReport, Error> {
        let geometry = configuration.geometry().clone();
        let report = self.rebuild_with(geometry, keep, most_bytes, Asked::of(configuration))?;
        if self.residency.eviction() != configuration.eviction() {
            self.residency.set_eviction(configuration.eviction())?;
        }
        Ok(report)
    }

    fn rebuild_with(
        &mut self,
        geometry: Geometry,
        keep: Keep,
        most_bytes: u64,
        asked: Option<Asked>,
    ) -> Result<RebuildReport, Error> {
        if geometry.model() != self.geometry().model() {
            return Err(Error::OtherLayouts);
        }
        self.check_with_host()?;
        // What is on its way behind steps is kept, too.
        self.loader.synchronize_all()?;
        self.land()?;
        let (warm, moves) = self.residency.rebuilt(&geometry, keep)?;
        let cold = |cache: &Self, geometry: &Geometry| -> Result<residency::Cache, Error> {
            Ok(cache.residency.rebuilt(geometry, Keep::Nothing)?.0)
        };
        let emptied = cold(self, &geometry)?;
        // As many slots as there were, for when the device refuses.
        let restored = cold(self, self.geometry())?;
        let rebuilt = match self.loader.rebuild(geometry, &moves, most_bytes) {
            Ok(rebuilt) => rebuilt,
            Err(error @ RebuildError::Refused(_)) => return Err(error.into()),
            Err(error) => {
                self.start_over(restored);
                if matches!(error, RebuildError::Restored(_)) {
                    // The buffers are where they were asked for, or the error of the slots is the one to tell.
                    let _ = self.stage_anew();
                }
                return Err(error.into());
            }
        };
        let is_cold = matches!(rebuilt, Rebuilt::Cold(_));
        self.start_over(if is_cold { emptied } else { warm });
        let kept = if is_cold { 0 } else { moves.len() };
        self.prefill.asked = asked;
        Ok(RebuildReport { rebuilt, kept, staging: self.stage_anew() })
    }

    /// Goes on with another state of the residency.
    fn start_over(&mut self, residency: residency::Cache) {
        self.residency = residency;
        let (expert_count, route_count) = (self.residency.expert_count() as usize, reserved_routes(self.geometry()));
        self.residency.reserve(route_count);
        self.loader.reserve(route_count.min(expert_count));
        self.reserve_flights();
        self.routes.clear();
        self.routes.reserve(route_count);
        self.plan = residency::Plan::with_capacity(self.routes.capacity());
    }

    /// Lays the staging buffers out anew, as they were asked for.
    fn stage_anew(&mut self) -> Option<Result<Staging, StagingLost>> {
        let Asked { dedicated, without_overlap, small_row_bytes } = self.prefill.asked?;
        let staging = match dedicated {
            Some(buffer_count) => Staging::dedicated(self.geometry(), buffer_count),
            None => match Staging::borrowed(self.geometry()) {
                Ok(staging) if without_overlap => staging.without_overlap(),
                Ok(staging) => staging,
                Err(error) => return Some(Err(error.into())),
            },
        };
        if let Err(error) = self.loader.set_staging(staging.clone()) {
            return Some(Err(error.into()));
        }
        let set = self.residency.set_staging(staging.clone(), small_row_bytes);
        set.expect("it was laid out for these pools, and no chunk is open");
        Some(Ok(staging))
    }
}
