//! Copies of many sizes, timed: one by one, in batches, and from device to device.
//!
//! *Unsafe*, relying on two promises: the pages here are written by nobody once they are filled, and they are freed
//! only after the stream that reads them has been synchronised ([`Device`] says what that means) and they are
//! unregistered; where that fails, they are leaked.

use std::time::Instant;

use super::pages::{Pages, fill};
use super::{CopyPoint, LinkError};
use crate::{Device, DeviceError, DeviceSpan, HostAccess, HostSpan, Memory, RowCopy, Source, Stream};

/// The most copies of one size: by then the cost of one is plain, and copies of a few bytes would else take seconds.
const COUNT_MAX: u64 = 2048;
/// Copies of one call of [`Device::copy_all`]: eight misses of a model of eight banks.
const BATCH_COUNT: usize = 64;
/// How often each size is measured, after once that does not count. Odd, so that one of them is the median.
const REPETITIONS: u64 = 5;
/// Bytes of the copies that a step's own time is measured with: a page, which hardly takes longer than nothing.
const STEP_COPY_BYTES: u64 = 4096;
/// How often a step is measured: it takes so little that the clock's own steps show.
const STEP_REPETITIONS: usize = 201;
/// The least that anything takes, so that no rate is infinite on a coarse clock.
const TICK_SECONDS: f64 = 1e-9;

/// How copies are handed to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Calls {
    /// A call each.
    Alone,
    /// So many in a call.
    Together,
}

/// Where they come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum From {
    /// Pinned host memory.
    Host,
    /// Memory of the device.
    Device,
}

/// How long once through the copies took.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pass {
    pub(super) seconds: f64,
    pub(super) returned_seconds: f64,
}

/// Measures copies from pinned host memory, each in a call of its own: of each size as many as `total_bytes` hold, at
/// most 2,048. Of five repetitions the median counts. As much memory is taken on both sides for the time.
///
/// `progress` is told what is done and how much there is in all.
///
/// # Errors
///
/// A size of 0 or above `total_bytes`; host memory that cannot be had; the device's own.
pub fn measure_copies<D: Device>(
    device: &mut D,
    sizes: &[u64],
    total_bytes: u64,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<CopyPoint>, LinkError> {
    measure(device, From::Host, Calls::Alone, sizes, total_bytes, progress)
}

/// As [`measure_copies`], by [`Device::copy_all`] with 64 copies a call, as plans are applied. Where a device does not
/// copy in batches, these are calls for each, too.
///
/// # Errors
///
/// As those of [`measure_copies`].
pub fn measure_batches<D: Device>(
    device: &mut D,
    sizes: &[u64],
    total_bytes: u64,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<CopyPoint>, LinkError> {
    measure(device, From::Host, Calls::Together, sizes, total_bytes, progress)
}

/// As [`measure_batches`], with sources on the device, as hits are gathered for prefill.
///
/// # Errors
///
/// As those of [`measure_copies`].
pub fn measure_gathers<D: Device>(
    device: &mut D,
    sizes: &[u64],
    total_bytes: u64,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<CopyPoint>, LinkError> {
    measure(device, From::Device, Calls::Together, sizes, total_bytes, progress)
}

/// Measures what the copies of a step take besides their bytes, in seconds: from handing them to the device to knowing
/// that they are done. Of one copy and of 64 in one call the median of 201 times each; what is left of the one, once
/// the cost of a copy is taken off, at least 0.
///
/// # Errors
///
/// Host memory that cannot be had; the device's own.
pub fn measure_step<D: Device>(device: &mut D) -> Result<f64, LinkError> {
    let counts = [(STEP_COPY_BYTES, BATCH_COUNT as u64)];
    let mut bench = Bench::new(device, From::Host, &counts)?;
    let copies = bench.copies(STEP_COPY_BYTES, BATCH_COUNT as u64);
    let mut median = |copies: &[RowCopy]| -> Result<f64, DeviceError> {
        // The first time through does not count.
        bench.pass(Calls::Together, copies)?;
        let mut seconds = Vec::with_capacity(STEP_REPETITIONS);
        for _ in 0..STEP_REPETITIONS {
            seconds.push(bench.pass(Calls::Together, copies)?.seconds);
        }
        seconds.sort_by(f64::total_cmp);
        Ok(seconds[STEP_REPETITIONS / 2])
    };
    let (one, many) = (median(&copies[..1])?, median(&copies)?);
    bench.end()?;
    Ok(step_seconds(one, many))
}

/// What is left of a step of one copy, as each of the 63 that a step of 64 has more takes as long as the others.
fn step_seconds(one: f64, many: f64) -> f64 {
    let copy = (many - one).max(0.0) / (BATCH_COUNT - 1) as f64;
    (one - copy).max(0.0)
}

fn measure<D: Device>(
    device: &mut D,
    from: From,
    calls: Calls,
    sizes: &[u64],
    total_bytes: u64,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<CopyPoint>, LinkError> {
    let counts = counts(sizes, total_bytes)?;
    let mut bench = Bench::new(device, from, &counts)?;
    let (mut done, all) = (0, counts.len() as u64 * (1 + REPETITIONS));
    let mut points = Vec::with_capacity(counts.len());
    for (bytes, count) in counts {
        let copies = bench.copies(bytes, count);
        let mut passes = Vec::new();
        for repetition in 0..=REPETITIONS {
            let pass = bench.pass(calls, &copies)?;
            if repetition > 0 {
                passes.push(pass);
            }
            done += 1;
            progress(done, all);
        }
        passes.sort_by(|one, other| one.seconds.total_cmp(&other.seconds));
        let Pass { seconds, returned_seconds } = passes[passes.len() / 2];
        points.push(CopyPoint { bytes, count, seconds, returned_seconds });
    }
    bench.end()?;
    Ok(points)
}

/// Each size and how many copies there are of it.
pub(super) fn counts(sizes: &[u64], total_bytes: u64) -> Result<Vec<(u64, u64)>, LinkError> {
    let count = |&bytes: &u64| match bytes {
        0 => Err(LinkError::NoBytes { total_bytes }),
        bytes if bytes > total_bytes => Err(LinkError::TooWide { bytes, total_bytes }),
        bytes => Ok((bytes, (total_bytes / bytes).min(COUNT_MAX))),
    };
    sizes.iter().map(count).collect()
}

/// The numbers below `count` in an order that is always the same, neighbours by chance only, as misses are.
fn shuffled(count: u64) -> Vec<u64> {
    let mut numbers: Vec<u64> = (0..count).collect();
    // Knuth's generator and Fisher and Yates' shuffle; the high bits are the ones that are random.
    let mut state = count;
    for last in (1..numbers.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        numbers.swap(last, (state >> 33) as usize % (last + 1));
    }
    numbers
}

/// What copies are measured with. Dropping it waits and gives everything back, but for pages that the device does not
/// let go of.
pub(super) struct Bench<'d, D: Device> {
    device: &'d mut D,
    target: Option<Memory>,
    source: Option<Memory>,
    /// Registered.
    pages: Option<Pages>,
    stream: Option<Stream>,
}

impl<'d, D: Device> Bench<'d, D> {
    /// Memory for the widest of the counts, on both sides.
    pub(super) fn new(device: &'d mut D, from: From, counts: &[(u64, u64)]) -> Result<Self, LinkError> {
        let bytes = counts.iter().map(|&(bytes, count)| bytes * count).max().unwrap_or(0);
        // From here on, dropping gives back what was taken.
        let mut bench = Self { device, target: None, source: None, pages: None, stream: None };
        bench.target = Some(bench.device.allocate(bytes, 1)?);
        match from {
            From::Device => bench.source = Some(bench.device.allocate(bytes, 1)?),
            From::Host => {
                let mut pages = Pages::new(bytes)?;
                fill(pages.words_mut());
                // SAFETY: the pages stay until they are unregistered in `free`.
                unsafe { bench.device.register(pages.base(), pages.bytes(), HostAccess::ReadWrite) }?;
                bench.pages = Some(pages);
            }
        }
        bench.stream = Some(bench.device.create_stream()?);
        Ok(bench)
    }

    /// Copies from scattered sources to neighbouring targets; no two share a byte.
    pub(super) fn copies(&self, bytes: u64, count: u64) -> Vec<RowCopy> {
        let memory = self.target.expect("taken when this was made");
        let copy = |(index, source): (usize, u64)| {
            let offset = source * bytes;
            let source: Source = match (&self.pages, self.source) {
                (Some(pages), _) => HostSpan { base: pages.base().wrapping_add(offset as usize), stride: bytes }.into(),
                (None, source) => {
                    let memory = source.expect("taken when this was made");
                    DeviceSpan { memory, offset, stride: bytes }.into()
                }
            };
            let target = DeviceSpan { memory, offset: index as u64 * bytes, stride: bytes };
            RowCopy { source, target, row_bytes: bytes, row_count: 1 }
        };
        shuffled(count).into_iter().enumerate().map(copy).collect()
    }

    /// Enqueues copies of [`copies`](Self::copies), and waits until they are done.
    pub(super) fn pass(&mut self, calls: Calls, copies: &[RowCopy]) -> Result<Pass, DeviceError> {
        let stream = self.stream.expect("taken when this was made");
        let begin = Instant::now();
        match calls {
            Calls::Alone => {
                for copy in copies {
                    // SAFETY: the pages are written no more and stay until the stream has been synchronised (`free`).
                    unsafe { self.device.copy_rows(stream, copy) }?;
                }
            }
            Calls::Together => {
                for copies in copies.chunks(BATCH_COUNT) {
                    // SAFETY: as above.
                    unsafe { self.device.copy_all(stream, copies) }.map_err(|error| error.source)?;
                }
            }
        }
        let returned = begin.elapsed();
        self.device.synchronize(stream)?;
        let seconds = begin.elapsed().as_secs_f64().max(TICK_SECONDS);
        Ok(Pass { seconds, returned_seconds: returned.as_secs_f64() })
    }

    /// Gives everything back, and says what went wrong with that.
    pub(super) fn end(mut self) -> Result<(), DeviceError> {
        // `free` of the device has no way to tell, so it is asked.
        self.free().and_then(|()| self.device.check())
    }

    fn free(&mut self) -> Result<(), DeviceError> {
        let mut outcome = Ok(());
        if let Some(stream) = self.stream.take() {
            // Whatever it says, the copies read the pages no more.
            outcome = self.device.synchronize(stream);
            self.device.destroy_stream(stream);
        }
        if let Some(pages) = self.pages.take() {
            let ended = self.device.unregister(pages.base());
            if ended.is_err() {
                // The device may read them still, so they are nobody else's for good.
                std::mem::forget(pages);
            }
            outcome = outcome.and(ended);
        }
        for memory in self.source.take().into_iter().chain(self.target.take()) {
            self.device.free(memory);
        }
        outcome
    }
}

impl<D: Device> Drop for Bench<'_, D> {
    fn drop(&mut self) {
        // What went wrong before is being told; see `end`.
        let _ = self.free();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_what_is_left_of_one_copy_without_its_own_cost() {
        // 8 us for the step and 1/4 us for each copy, exact in binary.
        assert_eq!(step_seconds(8.25, 8.0 + 64.0 * 0.25), 8.0);
        // Many copies that take no longer than one, or as much as many steps: nothing is less than nothing.
        assert_eq!((step_seconds(2.0, 1.5), step_seconds(1.0, 100.0)), (2.0, 0.0));
    }
}
