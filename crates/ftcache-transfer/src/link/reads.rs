//! The CPU reading memory, alone and while copies run: both share the memory's bandwidth.
//!
//! Threads read shares of one buffer over and over, and count; whoever measures looks at the counters at two times.
//! What they read is summed and thrown away: the most that code could do which computes experts where they lie.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::copies::{Bench, Calls, From, Pass, counts};
use super::pages::{Pages, fill};
use super::{CopyPoint, LinkError};
use crate::Device;

/// The least that a thread reads.
const SHARE_BYTES: u64 = 4096;
/// Words after which a thread counts: 256 KiB, some 10 to 30 us.
const CHUNK_WORDS: usize = 32 << 10;
/// How long one look lasts: a thousand times what a thread reads between counts.
const WINDOW: Duration = Duration::from_millis(30);
/// How often it is looked. Odd, so that one of them is the median.
const WINDOWS: u64 = 5;

/// How the CPU reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reads {
    /// Threads. A wait for copies takes a CPU of its own, so one fewer than there are.
    pub threads: usize,
    /// Bytes that they read over and over. More than the caches hold, or it is the caches that are measured.
    pub bytes: u64,
}

/// Copies and reads while both ran.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ContendedPoint {
    /// The copies.
    pub copies: CopyPoint,
    /// Bytes a second that were read meanwhile.
    pub read_bytes_per_second: f64,
}

/// Measures bytes a second that the CPU reads while nothing is copied.
///
/// # Errors
///
/// No thread, or too few bytes for so many; memory or threads that cannot be had.
pub fn measure_reads(reads: Reads, progress: &mut dyn FnMut(u64, u64)) -> Result<f64, LinkError> {
    reads.with(|readers| {
        let mut rates = Vec::new();
        for window in 1..=WINDOWS {
            let rate: Result<f64, LinkError> = readers.window(|| {
                std::thread::sleep(WINDOW / 8);
                Ok(())
            });
            rates.push(rate?);
            progress(window, WINDOWS);
        }
        rates.sort_by(f64::total_cmp);
        Ok(rates[rates.len() / 2])
    })?
}

/// Measures copies from pinned memory in batches, as [`measure_batches`](super::measure_batches) does, while the CPU
/// reads as [`measure_reads`] does. Time and copies of a point are those of once through `count` copies, on average.
///
/// # Errors
///
/// As those of both.
pub fn measure_contended<D: Device>(
    device: &mut D,
    sizes: &[u64],
    total_bytes: u64,
    reads: Reads,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<ContendedPoint>, LinkError> {
    let counts = counts(sizes, total_bytes)?;
    let mut bench = Bench::new(device, From::Host, &counts)?;
    let (mut done, all) = (0, counts.len() as u64 * WINDOWS);
    let points = reads.with(|readers| {
        let mut points = Vec::with_capacity(counts.len());
        for &(bytes, count) in &counts {
            let copies = bench.copies(bytes, count);
            // The first time through does not count.
            bench.pass(Calls::Together, &copies)?;
            let mut windows = Vec::new();
            for _ in 0..WINDOWS {
                let mut passes: Vec<Pass> = Vec::new();
                let rate = readers.window(|| -> Result<(), LinkError> {
                    passes.push(bench.pass(Calls::Together, &copies)?);
                    Ok(())
                })?;
                let mean = |seconds: fn(&Pass) -> f64| passes.iter().map(seconds).sum::<f64>() / passes.len() as f64;
                let (seconds, returned_seconds) = (mean(|pass| pass.seconds), mean(|pass| pass.returned_seconds));
                let copies = CopyPoint { bytes, count, seconds, returned_seconds };
                windows.push(ContendedPoint { copies, read_bytes_per_second: rate });
                done += 1;
                progress(done, all);
            }
            windows.sort_by(|one, other| one.copies.seconds.total_cmp(&other.copies.seconds));
            points.push(windows[windows.len() / 2]);
        }
        Ok::<_, LinkError>(points)
    })??;
    bench.end()?;
    Ok(points)
}

/// Threads that read.
struct Readers<'a> {
    /// Bytes that each has read.
    counts: &'a [AtomicU64],
}

/// Ends the threads however the scope is left, since it waits for them.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Reads {
    /// Calls `body` while threads read.
    fn with<T>(self, body: impl FnOnce(&Readers<'_>) -> T) -> Result<T, LinkError> {
        let Self { threads, bytes } = self;
        if threads == 0 || bytes / (threads as u64) < SHARE_BYTES {
            return Err(LinkError::TooFewBytes { bytes, threads, needed_bytes: SHARE_BYTES });
        }
        let mut pages = Pages::new(bytes)?;
        let (stop, counts) = (AtomicBool::new(false), Vec::from_iter((0..threads).map(|_| AtomicU64::new(0))));
        let mut left = pages.words_mut();
        std::thread::scope(|scope| {
            let stop_at_end = Stop(&stop);
            for (index, count) in counts.iter().enumerate() {
                let (share, rest) = left.split_at_mut(left.len() / (threads - index));
                left = rest;
                let stop = &stop;
                let spawned = std::thread::Builder::new().spawn_scoped(scope, move || read(share, count, stop));
                spawned.map_err(|error| LinkError::Threads { threads, reason: error.to_string() })?;
            }
            // Before a thread reads, it writes its share, so that the memory is near it.
            while counts.iter().any(|count| count.load(Ordering::Relaxed) == 0) {
                std::thread::sleep(WINDOW / 64);
            }
            let outcome = body(&Readers { counts: &counts });
            drop(stop_at_end);
            Ok(outcome)
        })
    }
}

impl Readers<'_> {
    fn read_bytes(&self) -> u64 {
        self.counts.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Works until a window is over and something has been read. Returns bytes a second that were read.
    fn window<E>(&self, mut work: impl FnMut() -> Result<(), E>) -> Result<f64, E> {
        let (begin, before) = (Instant::now(), self.read_bytes());
        loop {
            work()?;
            let (elapsed, read) = (begin.elapsed(), self.read_bytes() - before);
            if elapsed >= WINDOW && read > 0 {
                return Ok(read as f64 / elapsed.as_secs_f64());
            }
        }
    }
}

/// What each thread does.
fn read(words: &mut [u64], count: &AtomicU64, stop: &AtomicBool) {
    fill(words);
    loop {
        for chunk in words.chunks(CHUNK_WORDS) {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            black_box(chunk.iter().fold(0, |sum: u64, word| sum.wrapping_add(*word)));
            count.fetch_add(size_of_val(chunk) as u64, Ordering::Relaxed);
        }
    }
}
