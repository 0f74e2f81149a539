//! How it went: counters per layer and per pool.

use std::ops::{AddAssign, Sub};

use ftcache_policy::{LayerId, LayoutKey, PoolId};
use ftcache_residency::{self as residency, Phase};
use ftcache_transfer::Device;

use crate::{Cache, Error};

/// What the steps of one layer, of one pool or of the whole cache came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// What was decided.
    pub residency: residency::Stats,
    /// Bytes copied from the host to slots.
    pub bytes: u64,
}

impl Stats {
    /// Statistics of steps of one layer, whose every row of every bank was copied for what was fetched.
    pub fn of_layer(residency: residency::Stats, key: &LayoutKey) -> Self {
        Self { residency, bytes: residency.fetched * key.expert_bytes() }
    }
}

impl AddAssign for Stats {
    fn add_assign(&mut self, other: Self) {
        self.residency += other.residency;
        self.bytes += other.bytes;
    }
}

/// What was counted between two readings, the later minus the earlier: a window.
impl Sub for Stats {
    type Output = Self;

    /// # Panics
    ///
    /// If `earlier` is not: statistics have been started over since.
    fn sub(self, earlier: Self) -> Self {
        let bytes = self.bytes.checked_sub(earlier.bytes).expect("an earlier reading");
        Self { residency: self.residency - earlier.residency, bytes }
    }
}

impl<D: Device> Cache<D> {
    /// Statistics of one layer since the last [`reset_stats`](Self::reset_stats).
    ///
    /// # Errors
    ///
    /// An unknown layer.
    pub fn layer_stats(&self, layer: LayerId) -> Result<Stats, Error> {
        self.residency.pool_of(layer)?;
        Ok(self.stats_of(layer))
    }

    /// Statistics of one layer's steps of one phase.
    ///
    /// # Errors
    ///
    /// An unknown layer.
    pub fn phase_stats(&self, layer: LayerId, phase: Phase) -> Result<Stats, Error> {
        self.residency.pool_of(layer)?;
        Ok(Stats::of_layer(self.residency.phase_stats(layer, phase), self.geometry().model().layer(layer)))
    }

    /// Statistics of one pool: the sum over its layers.
    ///
    /// # Errors
    ///
    /// An unknown pool.
    pub fn pool_stats(&self, pool: PoolId) -> Result<Stats, Error> {
        Ok(self.sum(self.check_pool(pool)?.layers().iter().copied()))
    }

    /// Statistics over all layers.
    pub fn stats(&self) -> Stats {
        self.sum(self.geometry().model().layer_ids())
    }

    /// Starts the statistics over; residency is not touched.
    ///
    /// # Errors
    ///
    /// A residency that is on the device: counting goes on there.
    pub fn reset_stats(&mut self) -> Result<(), Error> {
        self.check_with_host()?;
        self.residency.reset_stats();
        Ok(())
    }

    fn stats_of(&self, layer: LayerId) -> Stats {
        Stats::of_layer(self.residency.layer_stats(layer), self.geometry().model().layer(layer))
    }

    fn sum(&self, layers: impl Iterator<Item = LayerId>) -> Stats {
        let mut sum = Stats::default();
        for layer in layers {
            sum += self.stats_of(layer);
        }
        sum
    }
}
