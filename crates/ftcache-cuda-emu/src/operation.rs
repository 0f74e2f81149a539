//! What a stream's queue holds, and doing it: copies in pieces, fills, words, host functions, kernels and declared
//! kernels.
//!
//! *Unsafe*, relying on the caller of the driver for host memory (the manual: it stays valid until the work is done)
//! and on the checks made when the work was enqueued for device memory, which cannot be freed before the work is done.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::clock::Clock;
use crate::launches::Launch;
use crate::random::Random;
use crate::rows::Rows;

/// `CUhostFn`.
pub(crate) type HostFunction = extern "C" fn(*mut c_void);

/// A copy over this many bytes may be done in two pieces.
const PIECE_BYTES: u64 = 4096;

/// One copy of rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Move {
    pub(crate) target: u64,
    pub(crate) target_pitch: u64,
    pub(crate) source: u64,
    pub(crate) source_pitch: u64,
    pub(crate) width: u64,
    pub(crate) height: u64,
}

impl Move {
    pub(crate) fn line(target: u64, source: u64, bytes: u64) -> Self {
        Self { target, target_pitch: bytes, source, source_pitch: bytes, width: bytes, height: 1 }
    }

    pub(crate) fn source_rows(&self) -> Rows {
        Rows::new(self.source, self.width, self.source_pitch, self.height)
    }

    pub(crate) fn target_rows(&self) -> Rows {
        Rows::new(self.target, self.width, self.target_pitch, self.height)
    }

    /// Two copies that make up this one, if it is long enough to show half done.
    fn split(&self, random: &mut Random) -> Option<(Move, Move)> {
        if self.width * self.height <= PIECE_BYTES {
            return None;
        }
        let (mut low, mut high) = (*self, *self);
        if self.height > 1 {
            low.height = 1 + random.below(self.height as usize - 1) as u64;
            high.height -= low.height;
            high.source += low.height * self.source_pitch;
            high.target += low.height * self.target_pitch;
        } else {
            low.width = 1 + random.below(self.width as usize - 1) as u64;
            high.width -= low.width;
            high.source += low.width;
            high.target += low.width;
        }
        Some(if random.chance(4) { (low, high) } else { (high, low) })
    }

    fn run(&self) {
        for row in 0..self.height {
            let source = (self.source + row * self.source_pitch) as *const u8;
            let target = (self.target + row * self.target_pitch) as *mut u8;
            // SAFETY: host memory by the promise of whoever called the driver, device memory by the checks at
            // enqueueing. A copy onto itself is reported, and is still defined here.
            unsafe { std::ptr::copy(source, target, self.width as usize) };
        }
    }
}

/// How a stream waits for a word: `CUstreamWaitValue_flags`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Test {
    /// Cyclic: the difference is not negative as a signed number.
    AtLeast,
    Equal,
    And,
    Nor,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct WordWait {
    pub(crate) address: u64,
    pub(crate) value: u32,
    pub(crate) test: Test,
}

impl WordWait {
    pub(crate) fn accepts(&self, word: u32) -> bool {
        match self.test {
            Test::AtLeast => word.wrapping_sub(self.value) as i32 >= 0,
            Test::Equal => word == self.value,
            Test::And => word & self.value != 0,
            Test::Nor => !(word | self.value) != 0,
        }
    }

    pub(crate) fn is_met(&self) -> bool {
        self.accepts(word_at(self.address).load(Ordering::Acquire))
    }
}

fn word_at<'a>(address: u64) -> &'a AtomicU32 {
    // SAFETY: aligned and inside live device memory or pinned host memory, checked when the operation was enqueued;
    // neither goes away while operations are queued. Words that are waited for are only accessed atomically.
    unsafe { AtomicU32::from_ptr(address as *mut u32) }
}

/// Work of a test that runs in stream order: code and data of the test's side of the library.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) call: HostFunction,
    pub(crate) release: HostFunction,
    pub(crate) data: u64,
    /// It can be called one time only, and so not from a graph.
    pub(crate) once: bool,
}

/// Kernels that are done with and whose data still has to be ended. That runs code of the test, which may well call a
/// device, and so must wait until no lock is held.
static ENDED: Mutex<Vec<(HostFunction, u64)>> = Mutex::new(Vec::new());
/// How many there are: a look at this is cheaper than at the list.
static ENDED_COUNT: AtomicUsize = AtomicUsize::new(0);

impl Drop for Kernel {
    fn drop(&mut self) {
        ENDED.lock().unwrap_or_else(PoisonError::into_inner).push((self.release, self.data));
        ENDED_COUNT.fetch_add(1, Ordering::Release);
    }
}

/// Ends the data of kernels that are done with. For the end of calls, when no lock is held.
pub(crate) fn release_kernels() {
    if ENDED_COUNT.load(Ordering::Acquire) == 0 {
        return;
    }
    let ended = std::mem::take(&mut *ENDED.lock().unwrap_or_else(PoisonError::into_inner));
    ENDED_COUNT.fetch_sub(ended.len(), Ordering::Release);
    ended.into_iter().for_each(|(release, data)| release(data as *mut c_void));
}

#[derive(Clone, Debug)]
pub(crate) enum Work {
    /// Only its dependencies.
    Nothing,
    /// In any order.
    Moves(Vec<Move>),
    Fill(Rows, u8),
    /// The time at which it was reached.
    Record(Arc<AtomicU64>),
    WaitValue(WordWait),
    WriteValue(u64, u32),
    Host(HostFunction, u64),
    Kernel(Arc<Kernel>),
    Launch(Arc<Launch>),
}

/// Bytes that an operation touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Touch {
    pub(crate) rows: Rows,
    pub(crate) write: bool,
    /// A word that is only accessed atomically: such accesses are no conflict among themselves.
    pub(crate) atomic: bool,
    /// It may happen as early as the call itself, before what stands in the stream.
    pub(crate) early: bool,
}

impl Touch {
    pub(crate) fn read(rows: Rows) -> Self {
        Self { rows, write: false, atomic: false, early: false }
    }

    pub(crate) fn write(rows: Rows) -> Self {
        Self { write: true, ..Self::read(rows) }
    }
}

/// What a call wants done in a stream.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) call: &'static str,
    pub(crate) work: Work,
    pub(crate) touches: Vec<Touch>,
    /// A word that a launch waits for once it runs.
    pub(crate) awaited: Option<WordWait>,
    /// Bytes that were read when the call was made; moves may have their source in here.
    pub(crate) staged: Vec<Box<[u8]>>,
    /// Bytes that a wrong driver would spoil.
    pub(crate) tampered: Vec<u64>,
}

impl Task {
    pub(crate) fn new(call: &'static str, work: Work, touches: Vec<Touch>) -> Self {
        Self { call, work, touches, awaited: None, staged: Vec::new(), tampered: Vec::new() }
    }

    /// The word that the work waits for, in its stream or as a kernel.
    pub(crate) fn word(&self) -> Option<WordWait> {
        match self.work {
            Work::WaitValue(wait) => Some(wait),
            _ => self.awaited,
        }
    }

    /// Copies, fills and launches: what a late fault can hit.
    pub(crate) fn can_fail(&self) -> bool {
        matches!(self.work, Work::Moves(_) | Work::Fill(..) | Work::Launch(_))
    }
}

/// A task in a queue.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) number: u64,
    /// Operations of other timelines that come first.
    pub(crate) after: Vec<(usize, u64)>,
    /// What it stands after.
    pub(crate) clock: Arc<Clock>,
    pub(crate) task: Task,
    /// It ends in this code and moves nothing.
    pub(crate) fails: Option<i32>,
}

impl Operation {
    /// Does some of it, at least a piece; whether all of it is done. Host functions and kernels are not for here.
    pub(crate) fn run_some(&mut self, random: &mut Random, tick: u64) -> bool {
        match &mut self.task.work {
            Work::Nothing | Work::WaitValue(_) | Work::Host(..) | Work::Kernel(_) | Work::Launch(_) => {}
            Work::Moves(moves) => {
                while !moves.is_empty() {
                    let next = moves.swap_remove(random.below(moves.len()));
                    match next.split(random).filter(|_| random.chance(4)) {
                        Some((now, later)) => {
                            now.run();
                            moves.push(later);
                        }
                        None => next.run(),
                    }
                    if !moves.is_empty() && random.chance(3) {
                        return false;
                    }
                }
            }
            Work::Fill(rows, value) => {
                for row in 0..rows.rows {
                    let target = (rows.base + row * rows.stride) as *mut u8;
                    // SAFETY: device memory, or host memory the driver knows, by the checks at enqueueing.
                    unsafe { target.write_bytes(*value, rows.row_bytes as usize) };
                }
            }
            Work::Record(time) => time.store(tick, Ordering::Relaxed),
            Work::WriteValue(address, value) => word_at(*address).store(*value, Ordering::Release),
        }
        for &address in &self.task.tampered {
            let target = address as *mut u8;
            // SAFETY: in the live allocation that the operation's target lies in.
            let byte = unsafe { target.read() };
            // SAFETY: as above.
            unsafe { target.write(byte ^ 0x5A) };
        }
        true
    }
}
