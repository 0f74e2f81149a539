//! Rows that the device cannot read where they lie: a bounded pinned buffer that threads fill, and streams wait for.
//!
//! The buffer is cut into entries, used in turn. Whoever enqueues a copy waits for nobody: the stream waits for a word
//! that says that its entry is filled, and raises another when the entry may be filled again, which a thread waits for.
//!
//! ```text
//! caller   job n queued
//! thread           wait drained[e] | rows -> entry e | filled[e] = n
//! stream                                               wait filled[e] | entry e -> slots | drained[e] = n
//! ```
//!
//! Threads take jobs in the order of the queue, and what a stream was given depends only on what was given before it,
//! so the job that an entry waits for is always filled, and its stream comes to it.
//!
//! *Unsafe*, relying on one promise: the rows of a job stay readable and unchanged until its stream has been
//! synchronised, or [`Bounce::abandon`] has returned.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::host_arena::page_bytes;
use crate::pages::Pages;
use crate::{Device, DeviceError, Event, HostSpan, RowCopy, Source, Stream};

/// Jobs for which there is room before the queue grows.
const JOBS: usize = 64;
/// How long a thread sleeps between looks at an entry that the device has not read yet: a copy of 256 KiB takes 5 to 10
/// us over a link of today.
const NAP: Duration = Duration::from_micros(20);

/// Rows to be brought into an entry.
#[derive(Debug, Clone, Copy)]
struct Job {
    kind: Kind,
    entry: usize,
    /// How often the entry has been used, this time included.
    round: u32,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Fill {
        source: *const u8,
        stride: u64,
        row_bytes: u64,
        row_count: u64,
    },
    /// Nobody will read the entry this time.
    Drain,
}

// SAFETY: the source is only read through, under the promise of whoever queued the job.
unsafe impl Send for Job {}

/// What the threads share.
#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// There is a job, or it is over.
    changed: Condvar,
    /// No job is carried out any more.
    over: AtomicBool,
    /// Words, then the entries. The words are atomic; each entry is written by the one thread that has its job, at a
    /// time when the words say that the device does not read it.
    memory: Pages,
    entry_bytes: u64,
    entry_count: usize,
}

#[derive(Debug)]
struct State {
    jobs: VecDeque<Job>,
    /// Threads that have taken a job and not ended it.
    busy: usize,
}

impl Shared {
    fn word(&self, index: usize) -> &AtomicU32 {
        debug_assert!(index < 2 * self.entry_count);
        // SAFETY: the words begin the memory, which is zeroed and aligned to a page, and are only used as atomics.
        unsafe { &*self.memory.first().cast::<AtomicU32>().wrapping_add(index) }
    }

    /// Raised when an entry is filled.
    fn filled(&self, entry: usize) -> &AtomicU32 {
        self.word(2 * entry)
    }

    /// Raised when an entry may be filled again.
    fn drained(&self, entry: usize) -> &AtomicU32 {
        self.word(2 * entry + 1)
    }

    fn entry(&self, entry: usize) -> *mut u8 {
        let words = words_bytes(self.entry_count);
        self.memory.first().wrapping_add(words + entry * self.entry_bytes as usize)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A thread that panicked has changed nothing half.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What each thread does.
    fn work(&self) {
        loop {
            let mut state = self.lock();
            let job = loop {
                if self.over.load(Ordering::Relaxed) {
                    return;
                }
                match state.jobs.pop_front() {
                    Some(job) => break job,
                    None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                }
            };
            state.busy += 1;
            drop(state);
            self.carry_out(&job);
            self.lock().busy -= 1;
            self.changed.notify_all();
        }
    }

    fn carry_out(&self, job: &Job) {
        let (entry, round) = (job.entry, job.round);
        match job.kind {
            Kind::Fill { source, stride, row_bytes, row_count } => {
                // The device may still read what was put here the last time.
                if !self.until_raised(self.drained(entry), round.wrapping_sub(1)) {
                    return;
                }
                let target = self.entry(entry);
                for row in 0..row_count {
                    let source = source.wrapping_add((row * stride) as usize);
                    let target = target.wrapping_add((row * row_bytes) as usize);
                    // SAFETY: the rows are kept readable by whoever queued the job, and fit in the entry, which nobody
                    // else writes or reads until it is said to be filled.
                    unsafe { std::ptr::copy_nonoverlapping(source, target, row_bytes as usize) };
                }
                self.filled(entry).store(round, Ordering::Release);
            }
            Kind::Drain => {
                // Another thread may still fill it.
                if self.until_raised(self.filled(entry), round) {
                    self.drained(entry).store(round, Ordering::Release);
                }
            }
        }
    }

    /// Waits for a word, or until it is over. Returns whether the word was raised.
    fn until_raised(&self, word: &AtomicU32, value: u32) -> bool {
        loop {
            if word.load(Ordering::Acquire).wrapping_sub(value) as i32 >= 0 {
                return true;
            }
            if self.over.load(Ordering::Relaxed) {
                return false;
            }
            std::thread::sleep(NAP);
        }
    }
}

/// Registered memory begins and ends with a page, so that no other memory is registered with it.
fn words_bytes(entry_count: usize) -> usize {
    (2 * entry_count * size_of::<AtomicU32>()).next_multiple_of(page_bytes() as usize)
}

/// A bounce buffer and its threads.
#[derive(Debug)]
pub(crate) struct Bounce {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Jobs queued so far: the next takes entry `queued % entries`.
    queued: u64,
    /// `uses[entry]`: the stream that read it last, and the point where it had.
    uses: Vec<(Option<Stream>, Event)>,
}

/// How a bounce buffer is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BounceSize {
    /// Bytes of an entry. Rows that are wider go in pieces, narrower ones together.
    pub entry_bytes: u64,
    /// Entries; 2 or more let one be filled while another is read.
    pub entry_count: u32,
    /// Threads that fill them.
    pub thread_count: u32,
}

impl Default for BounceSize {
    /// 16 entries of 1 MiB, filled by two threads. *Not measured on a GPU yet.*
    fn default() -> Self {
        Self { entry_bytes: 1 << 20, entry_count: 16, thread_count: 2 }
    }
}

impl BounceSize {
    /// Bytes of pinned memory it takes.
    pub fn bytes(&self) -> u64 {
        let entries = self.entry_bytes.saturating_mul(u64::from(self.entry_count));
        let bytes = entries.saturating_add(words_bytes(self.entry_count as usize) as u64);
        bytes.checked_next_multiple_of(page_bytes()).unwrap_or(u64::MAX)
    }
}

impl Bounce {
    /// A buffer, registered with the device, and its threads.
    ///
    /// # Errors
    ///
    /// A size of nothing, memory that cannot be had, registration that is refused, or threads that cannot be started.
    /// Nothing stays behind then.
    pub(crate) fn new(device: &mut impl Device, size: BounceSize) -> Result<Self, DeviceError> {
        let bytes = size.bytes();
        let failed = |reason: String| DeviceError::Failed { operation: "bounce buffer", bytes, reason };
        if !device.waits_for_host() {
            return Err(failed("the device's streams do not wait for words of the host's".to_owned()));
        }
        if size.entry_bytes == 0 || size.entry_count == 0 || size.thread_count == 0 {
            let BounceSize { entry_bytes, entry_count, thread_count } = size;
            let given = format!("{entry_count} entries of {entry_bytes} bytes for {thread_count} threads");
            return Err(failed(format!("{given}; each must be 1 or more")));
        }
        let memory = Pages::registered(device, "bounce buffer", bytes)?;
        let shared = Arc::new(Shared {
            state: Mutex::new(State { jobs: VecDeque::with_capacity(JOBS), busy: 0 }),
            changed: Condvar::new(),
            over: AtomicBool::new(false),
            memory,
            entry_bytes: size.entry_bytes,
            entry_count: size.entry_count as usize,
        });
        let mut bounce = Self { shared, threads: Vec::new(), queued: 0, uses: Vec::new() };
        for _ in 0..size.entry_count {
            match device.create_event() {
                Ok(event) => bounce.uses.push((None, event)),
                Err(error) => {
                    // The first word of the two is the one to tell.
                    let _ = bounce.free(device);
                    return Err(error);
                }
            }
        }
        for index in 0..size.thread_count {
            let shared = Arc::clone(&bounce.shared);
            let thread = std::thread::Builder::new().name(format!("ftcache-bounce-{index}"));
            match thread.spawn(move || shared.work()) {
                Ok(thread) => bounce.threads.push(thread),
                Err(error) => {
                    // The first word of the two is the one to tell.
                    let _ = bounce.free(device);
                    return Err(failed(format!("no thread: {error}")));
                }
            }
        }
        Ok(bounce)
    }

    /// Enqueues a copy of rows from host memory that the device cannot read.
    ///
    /// # Errors
    ///
    /// As [`Device::copy_rows`]; some rows may be on their way then.
    ///
    /// # Safety
    ///
    /// As for [`Device::copy_rows`]. Also, the rows stay readable until [`abandon`](Self::abandon) has returned, if
    /// `stream` cannot be synchronised any more.
    pub(crate) unsafe fn copy(
        &mut self,
        device: &mut impl Device,
        stream: Stream,
        copy: &RowCopy,
    ) -> Result<(), DeviceError> {
        let Source::Host(span) = copy.source else { unreachable!("rows on the device need no help") };
        if copy.bytes() == 0 {
            return Ok(());
        }
        let entry_bytes = self.shared.entry_bytes;
        let together = entry_bytes / copy.row_bytes;
        if together > 0 {
            let mut row = 0;
            while row < copy.row_count {
                let row_count = together.min(copy.row_count - row);
                let base = span.base.wrapping_add((row * span.stride) as usize);
                let mut target = copy.target;
                target.offset += row * target.stride;
                let part = RowCopy { source: HostSpan { base, ..span }.into(), target, row_count, ..*copy };
                // SAFETY: some of the rows that our caller keeps.
                unsafe { self.copy_entry(device, stream, &part) }?;
                row += row_count;
            }
            return Ok(());
        }
        for row in 0..copy.row_count {
            let mut done = 0;
            while done < copy.row_bytes {
                let row_bytes = entry_bytes.min(copy.row_bytes - done);
                let base = span.base.wrapping_add((row * span.stride + done) as usize);
                let mut target = copy.target;
                target.offset += row * target.stride + done;
                let part =
                    RowCopy { source: HostSpan { base, stride: row_bytes }.into(), target, row_bytes, row_count: 1 };
                // SAFETY: a part of a row that our caller keeps.
                unsafe { self.copy_entry(device, stream, &part) }?;
                done += row_bytes;
            }
        }
        Ok(())
    }

    /// Rows that fit in an entry.
    ///
    /// # Safety
    ///
    /// As for [`copy`](Self::copy).
    unsafe fn copy_entry(
        &mut self,
        device: &mut impl Device,
        stream: Stream,
        copy: &RowCopy,
    ) -> Result<(), DeviceError> {
        let Source::Host(span) = copy.source else { unreachable!("`copy` gives rows on the host") };
        let entry_count = self.shared.entry_count as u64;
        let entry = (self.queued % entry_count) as usize;
        let round = (self.queued / entry_count + 1) as u32;
        let RowCopy { row_bytes, row_count, target, .. } = *copy;
        let (before, read) = self.uses[entry];
        if before.is_some_and(|before| before != stream) {
            // The words order the two streams, which a driver does not see: it could run the later one first, for ever.
            device.wait(stream, read)?;
        }
        self.queued += 1;
        self.push(Job {
            kind: Kind::Fill { source: span.base, stride: span.stride, row_bytes, row_count },
            entry,
            round,
        });
        let source = HostSpan { base: self.shared.entry(entry), stride: row_bytes }.into();
        // SAFETY: the words lie in the buffer, which is freed after the streams have been synchronised.
        let enqueued = unsafe { device.wait_for_host(stream, self.shared.filled(entry), round) };
        // SAFETY: the entry is not filled again before the stream says so.
        let enqueued = enqueued
            .and_then(|()| unsafe { device.copy_rows(stream, &RowCopy { source, target, row_bytes, row_count }) });
        if enqueued.is_err() {
            self.push(Job { kind: Kind::Drain, entry, round });
            return enqueued;
        }
        // SAFETY: as above.
        let told = unsafe { device.tell_host(stream, self.shared.drained(entry), round) };
        if told.is_err() {
            // The copy is on its way: only once it is done may the entry be filled again. If that cannot be waited for,
            // the device does no more work.
            let _ = device.synchronize(stream);
            self.push(Job { kind: Kind::Drain, entry, round });
            return told;
        }
        self.uses[entry].0 = Some(stream);
        device.record(read, stream)
    }

    /// Makes room for so many copies of rows of up to `row_bytes`, which then allocate nothing.
    pub(crate) fn reserve(&mut self, copies: usize, row_bytes: u64) {
        let pieces = row_bytes.div_ceil(self.shared.entry_bytes).max(1) as usize;
        self.shared.lock().jobs.reserve(copies.saturating_mul(pieces));
    }

    fn push(&self, job: Job) {
        self.shared.lock().jobs.push_back(job);
        // All, since one that waits for the threads to be idle waits for the same.
        self.shared.changed.notify_all();
    }

    /// Gives up every job that is not done, and returns when no thread reads rows any more. Nothing goes through here
    /// afterwards: for when the device has failed, or is let go.
    pub(crate) fn abandon(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        let mut state = self.shared.lock();
        state.jobs.clear();
        self.shared.changed.notify_all();
        while state.busy > 0 {
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        for thread in self.threads.drain(..) {
            // A thread that panicked has nothing left to do.
            let _ = thread.join();
        }
        // A stream that still waits for an entry goes on: what it copies is nobody's any more.
        let entry_count = self.shared.entry_count as u64;
        for entry in 0..self.shared.entry_count {
            self.shared.filled(entry).store((self.queued / entry_count + 1) as u32, Ordering::Release);
        }
    }

    /// Gives the buffer back. Every stream that copies from it has been synchronised, or the device has failed.
    ///
    /// # Errors
    ///
    /// The device's. The memory is never given back then, as the device may still read there.
    pub(crate) fn free(mut self, device: &mut impl Device) -> Result<(), DeviceError> {
        self.abandon();
        self.uses.drain(..).for_each(|(_, event)| device.destroy_event(event));
        self.shared.memory.unregister(device)
    }
}
