//! The link model: bytes and copies to time, from copies that were measured here, and the rate of every arena.
//!
//! Measuring makes what it needs, waits for what it enqueues, and leaves nothing behind, whether it succeeds or not. It
//! knows no slot and no row: `copies` moves bytes of its own, `reads` is the CPU reading beside it, `arenas` copies the
//! zeros of arenas that hold nothing yet. What the figures mean for a step is decided in `ftcache_policy::rates`.

mod arenas;
mod copies;
mod error;
mod pages;
mod reads;

use std::collections::BTreeSet;

pub use arenas::{ArenaRate, ArenaReport, SPILL_RATIO};
pub use copies::{measure_batches, measure_copies, measure_gathers, measure_step};
pub use error::LinkError;
pub use reads::{ContendedPoint, Reads, measure_contended, measure_reads};

/// Copies of one size, as they were measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CopyPoint {
    /// Bytes of one.
    pub bytes: u64,
    /// How many there were.
    pub count: u64,
    /// From before the first was enqueued until all were done.
    pub seconds: f64,
    /// Of these, until the last call had returned. Near the whole where calls wait for their copies; and where copies
    /// are so small that enqueueing takes the longest.
    pub returned_seconds: f64,
}

impl CopyPoint {
    /// Bytes a second of all of them.
    pub fn bytes_per_second(&self) -> f64 {
        self.count as f64 * self.bytes as f64 / self.seconds
    }

    /// The time of one among the others.
    pub fn seconds_per_copy(&self) -> f64 {
        self.seconds / self.count as f64
    }
}

/// How long copies take: so much for each, and so much for their bytes.
///
/// ```
/// use ftcache_transfer::Link;
///
/// let link = Link { bytes_per_second: 5e10, seconds_per_copy: 2e-6 };
/// assert_eq!(link.seconds(10, 5_000_000), 2e-5 + 1e-4);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// What copies without end would come to. More than zero.
    pub bytes_per_second: f64,
    /// What each copy takes besides. Zero or more.
    pub seconds_per_copy: f64,
}

impl Link {
    /// The link that fits measured points best: the sum of the squares of its *relative* errors is the least, so that
    /// small copies, which take little time, count as much as large ones.
    ///
    /// # Errors
    ///
    /// Points of fewer than two sizes, a point of no copies or no time, or points whose time does not grow with bytes.
    pub fn fit(points: &[CopyPoint]) -> Result<Self, LinkError> {
        let sizes: BTreeSet<u64> = points.iter().map(|point| point.bytes).collect();
        if sizes.len() < 2 {
            return Err(LinkError::TooFewSizes { needed: 2, given: sizes.len() });
        }
        for (index, &CopyPoint { count, seconds, .. }) in points.iter().enumerate() {
            if count == 0 || !(seconds > 0.0 && seconds < f64::INFINITY) {
                return Err(LinkError::Unmeasured { point: index, count, seconds });
            }
        }
        // Copies and bytes of each point over its time: wanted are factors with which they add up to 1.
        let rows: Vec<(f64, f64)> =
            points.iter().map(|point| (point.count as f64 / point.seconds, point.bytes_per_second())).collect();
        let sum = |term: fn(f64, f64) -> f64| -> f64 { rows.iter().map(|&(copies, bytes)| term(copies, bytes)).sum() };
        let copies_squared = sum(|copies, _| copies * copies);
        // Bytes less the part of them that goes with copies: products of the two columns as they are would cancel out,
        // as bytes are thousands of times copies.
        let along = sum(|copies, bytes| copies * bytes) / copies_squared;
        let apart = |&(copies, bytes): &(f64, f64)| bytes - along * copies;
        let apart_squared: f64 = rows.iter().map(|row| apart(row).powi(2)).sum();
        let mut seconds_per_byte = rows.iter().map(apart).sum::<f64>() / apart_squared;
        let mut seconds_per_copy = sum(|copies, _| copies) / copies_squared - seconds_per_byte * along;
        if seconds_per_copy < 0.0 {
            // No copy takes less than nothing: of the links without a cost, the best.
            seconds_per_copy = 0.0;
            seconds_per_byte = sum(|_, bytes| bytes) / sum(|_, bytes| bytes * bytes);
        }
        let bytes_per_second = 1.0 / seconds_per_byte;
        if !(bytes_per_second > 0.0 && bytes_per_second < f64::INFINITY) {
            let (smallest, largest) = (sizes.first().copied(), sizes.last().copied());
            let (smallest, largest) = (smallest.unwrap_or_default(), largest.unwrap_or_default());
            return Err(LinkError::NoBandwidth { smallest, largest });
        }
        Ok(Self { bytes_per_second, seconds_per_copy })
    }

    /// How long so many copies of so many bytes in all take.
    pub fn seconds(&self, copies: u64, bytes: u64) -> f64 {
        copies as f64 * self.seconds_per_copy + bytes as f64 / self.bytes_per_second
    }

    /// By how much of a point's time this is off, for the point where it is the most.
    pub fn deviation(&self, points: &[CopyPoint]) -> f64 {
        let off = |point: &CopyPoint| {
            let seconds = point.count as f64 * (self.seconds_per_copy + point.bytes as f64 / self.bytes_per_second);
            (seconds / point.seconds - 1.0).abs()
        };
        points.iter().map(off).fold(0.0, f64::max)
    }
}
