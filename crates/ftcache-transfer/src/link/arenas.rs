//! Spill: whether an arena lies where the device says it does. Where device memory may overflow into host memory, an
//! allocation succeeds and is then read over the link, many times slower, without a word.
//!
//! Zeros are copied over zeros, so only arenas that hold nothing are measured, and they hold nothing after.
//!
//! *Unsafe*, relying on no promise: no copy here has a source on the host.

use std::fmt;
use std::time::Instant;

use ftcache_policy::BankId;

use super::LinkError;
use crate::{Device, DeviceError, DeviceSpan, Loader, Memory, RowCopy, Stream};

/// An arena below this part of the reference has spilled. Copies within device memory go at 100 GB/s and more where a
/// link moves 25, at 1,700 where the fastest moves 400: four times slower at the least, if all of an arena lies on the
/// host. Of the figures of whole arenas, two of one device differ by a few parts in a hundred.
pub const SPILL_RATIO: f64 = 1.0 / 3.0;
/// What the reference has at most, and from where on a rate no longer depends on size: above any device's cache of
/// today, in which a copy is twice as fast.
const REFERENCE_BYTES: u64 = 256 << 20;
/// The most copies that are timed together. Those of small arenas are lost in what a call takes, on both sides alike.
const PASS_COUNT_MAX: u64 = 64;
/// How often an arena is measured, after once that does not count. Odd, so that one of them is the median.
const REPETITIONS: usize = 3;

/// How fast an arena is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ArenaRate {
    /// Its bank.
    pub bank: BankId,
    /// Its bytes.
    pub bytes: u64,
    /// Bytes a second that are copied from one half to the other: each is read once and written once.
    pub bytes_per_second: f64,
    /// The same of as many bytes, 256 MiB at most, that were allocated for the moment; `None` if the device had not so
    /// many left.
    pub fresh_bytes_per_second: Option<f64>,
}

impl ArenaRate {
    /// Whether it has spilled, if an arena of its size goes at `reference` bytes a second. See [`SPILL_RATIO`].
    pub fn spilled(&self, reference: f64) -> bool {
        self.bytes_per_second < SPILL_RATIO * reference
    }
}

/// How fast every arena is.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ArenaReport {
    /// In the order of banks; without those that no layer reads, or that have no two bytes.
    pub rates: Vec<ArenaRate>,
}

impl ArenaReport {
    /// What an arena is to be compared with: the fastest of fresh memory and all arenas of its size, sizes of 256 MiB
    /// and more being one. Memory that is allocated when the device is full may be the first to spill.
    pub fn reference(&self, rate: &ArenaRate) -> f64 {
        let alike = self.rates.iter().filter(|other| size_class(other.bytes) == size_class(rate.bytes));
        let known = alike.flat_map(|other| [Some(other.bytes_per_second), other.fresh_bytes_per_second]).flatten();
        known.fold(rate.bytes_per_second, f64::max)
    }

    /// Arenas that do not lie in the device's memory, or not as a whole.
    ///
    /// If none does, and fresh memory neither, there is nothing to tell it by but the rates.
    pub fn spilled(&self) -> impl Iterator<Item = &ArenaRate> {
        self.rates.iter().filter(|rate| rate.spilled(self.reference(rate)))
    }
}

impl fmt::Display for ArenaReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.rates.is_empty() {
            return write!(f, "no arena");
        }
        for (index, rate) in self.rates.iter().enumerate() {
            let (ArenaRate { bank, bytes, .. }, comma) = (rate, if index == 0 { "" } else { "; " });
            write!(f, "{comma}bank {bank}: {bytes} bytes at {:.1} GB/s", rate.bytes_per_second / 1e9)?;
            let reference = self.reference(rate);
            if rate.spilled(reference) {
                write!(f, ", spilled: device memory goes at {:.1} GB/s", reference / 1e9)?;
            }
        }
        Ok(())
    }
}

fn size_class(bytes: u64) -> u64 {
    bytes.min(REFERENCE_BYTES)
}

impl<D: Device> Loader<D> {
    /// Measures every arena, once, right after this was made: it is for slots that hold nothing yet. Every byte is as
    /// it was after. Waits, and takes up to 256 MiB of device memory for the moment, or does without.
    ///
    /// # Errors
    ///
    /// Rows that are attached, as they may be in slots by now; slots that the device had not the memory for; its own.
    pub fn measure_arenas(&mut self) -> Result<ArenaReport, LinkError> {
        // What comes into a slot comes from attached rows, and none are ever taken back. So without any, arenas are
        // zeros.
        for layer in self.geometry.model().layer_ids() {
            for bank in self.geometry.model().bank_ids() {
                if self.banks.is_direct(layer, bank).is_some() {
                    return Err(LinkError::Attached { layer, bank });
                }
            }
        }
        let places = self.places.as_ref().map_err(Clone::clone)?;
        let arenas = places.arenas.arenas().iter().enumerate();
        // What a caller's arena has beyond its geometry is filled with zeros like the rest.
        let arenas: Vec<(BankId, Memory, u64)> = arenas
            .filter_map(|(bank, arena)| arena.map(|arena| (BankId::from_index(bank), arena.memory, arena.bytes)))
            .filter(|&(_, _, bytes)| bytes > 1)
            .collect();
        let Some(widest) = arenas.iter().map(|&(_, _, bytes)| bytes).max() else { return Ok(ArenaReport::default()) };
        let stream = self.device.create_stream()?;
        let fresh = match self.device.allocate(size_class(widest), 1) {
            Ok(memory) => Ok(Some(memory)),
            Err(DeviceError::OutOfMemory { .. }) => Ok(None),
            Err(error) => Err(error),
        };
        let rates = fresh.clone().and_then(|fresh| {
            let rate = |&(bank, memory, bytes): &(BankId, Memory, u64)| {
                let of_fresh = fresh.map(|fresh| halves_rate(&mut self.device, stream, fresh, size_class(bytes)));
                let fresh_bytes_per_second = of_fresh.transpose()?;
                let bytes_per_second = halves_rate(&mut self.device, stream, memory, bytes)?;
                Ok(ArenaRate { bank, bytes, bytes_per_second, fresh_bytes_per_second })
            };
            arenas.iter().map(rate).collect::<Result<Vec<_>, _>>()
        });
        // A copy that was refused may have others before it.
        let waited = self.device.synchronize(stream);
        self.device.destroy_stream(stream);
        if let Ok(Some(fresh)) = fresh {
            self.device.free(fresh);
        }
        let rates = rates.and_then(|rates| waited.map(|()| rates))?;
        self.device.check()?;
        Ok(ArenaReport { rates })
    }
}

/// Bytes a second that are copied between the halves of a memory of zeros, to and fro.
fn halves_rate<D: Device>(device: &mut D, stream: Stream, memory: Memory, bytes: u64) -> Result<f64, DeviceError> {
    let half = bytes / 2;
    let span = |offset| DeviceSpan { memory, offset, stride: half };
    let (first, second) = (span(0), span(half));
    let copy = |source: DeviceSpan, target| RowCopy { source: source.into(), target, row_bytes: half, row_count: 1 };
    let to_and_fro = [copy(first, second), copy(second, first)];
    let count = REFERENCE_BYTES.div_ceil(half).clamp(1, PASS_COUNT_MAX);
    let mut seconds = Vec::new();
    for repetition in 0..=REPETITIONS {
        let begin = Instant::now();
        for copy in to_and_fro.iter().cycle().take(count as usize) {
            // SAFETY: the source is on the device.
            unsafe { device.copy_rows(stream, copy) }?;
        }
        device.synchronize(stream)?;
        if repetition > 0 {
            // On a coarse clock no time may have passed.
            seconds.push(begin.elapsed().as_secs_f64().max(1e-9));
        }
    }
    seconds.sort_by(f64::total_cmp);
    Ok(count as f64 * half as f64 / seconds[seconds.len() / 2])
}
