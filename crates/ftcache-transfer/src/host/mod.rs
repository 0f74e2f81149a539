//! The host device: slots in ordinary memory, streams and events with the meaning they have on a GPU.
//!
//! By default work is done as it is enqueued, which is one of the orders a device may choose. A *deferred* device
//! holds it back until something waits, and then picks among the streams that may go on by a seed: what an engine
//! forgot to order shows, without a GPU.
//!
//! *Unsafe*, relying on three promises: the sources of a copy stay readable and unchanged until its stream has been
//! synchronised ([`Device::copy_rows`]), words that are waited for stay in place as long ([`Device::wait_for_host`]),
//! and adopted memory is ours until it is freed ([`Device::adopt`]). Targets are checked against the memory they lie
//! in.

mod device;

use std::alloc::{Layout, dealloc};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::row_copy::copy_rows;
use crate::{Device, DeviceError, DeviceSpan, Event, Memory, RowCopy, Source, Stream};

#[derive(Debug)]
enum Operation {
    Copy(RowCopy),
    /// Zeros over rows.
    Clear {
        target: DeviceSpan,
        row_bytes: u64,
        row_count: u64,
    },
    /// The record of this number is reached.
    Record(u64),
    /// Go on once the record of this number has been reached.
    Wait(u64),
    /// Go on once the host has raised a word to a value.
    WaitForHost(*const AtomicU32, u32),
    /// Set a word of the host's to a value.
    TellHost(*const AtomicU32, u32),
}

/// One allocation, or memory that was adopted.
#[derive(Debug)]
struct Block {
    first: NonNull<u8>,
    bytes: usize,
    /// What it was allocated with; `None` if it was adopted.
    layout: Option<Layout>,
}

impl Block {
    fn memory(&self) -> &[u8] {
        // SAFETY: `bytes` bytes from `first` on are ours, allocated (`allocate`) or promised (`Device::adopt`), until
        // this block is dropped, and they were all set to zero then.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.bytes) }
    }

    fn memory_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `memory`; and the block is borrowed for writing.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr(), self.bytes) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(layout) = self.layout {
            // SAFETY: it was allocated with this layout and is not freed elsewhere.
            unsafe { dealloc(self.first.as_ptr(), layout) };
        }
    }
}

/// What a device has given out and not taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LiveObjects {
    /// Allocations, adopted memory included.
    pub memories: usize,
    /// Streams, without the default one.
    pub streams: usize,
    /// Events.
    pub events: usize,
    /// Registered ranges of host memory.
    pub registrations: usize,
}

/// How enqueued work is done.
#[derive(Debug)]
enum Order {
    AtOnce,
    /// When something waits, by the state of a generator.
    Deferred(u64),
}

/// Slots in ordinary memory.
#[derive(Debug)]
pub struct HostDevice {
    memories: HashMap<u64, Block>,
    limit_bytes: u64,
    used_bytes: u64,
    /// In the order they were made, so that a seed means the same on every machine; a destroyed one until it is done.
    streams: BTreeMap<u64, Queue>,
    /// The number of each event's last record; 0 if it has none.
    events: HashMap<u64, u64>,
    /// Bytes from each base.
    registrations: BTreeMap<usize, u64>,
    register_limit_bytes: u64,
    /// Whether copies from other host memory are refused, as they are slow on a GPU.
    reads_registered_only: bool,
    next_handle: u64,
    next_record: u64,
    /// Records enqueued and not reached. An event may be recorded on several streams, which go on in any order, so each
    /// record is kept by itself.
    unreached: HashSet<u64>,
    order: Order,
    /// Copies until the one that is to fail.
    fail_in: Option<u64>,
}

/// What a stream has been given and not done.
#[derive(Debug, Default)]
struct Queue {
    operations: VecDeque<Operation>,
    destroyed: bool,
}

// SAFETY: blocks are owned, or ours alone by the promise of `Device::adopt`. The pointers in queued operations are only
// used under the promises of `Device::copy_rows` and `Device::wait_for_host`, which bind whoever enqueued them whatever
// thread the work is done on.
unsafe impl Send for HostDevice {}

impl HostDevice {
    /// A device that does work as it is enqueued.
    pub fn new() -> Self {
        Self {
            memories: HashMap::new(),
            limit_bytes: u64::MAX,
            used_bytes: 0,
            streams: BTreeMap::from([(Stream::DEFAULT.0, Queue::default())]),
            events: HashMap::new(),
            registrations: BTreeMap::new(),
            register_limit_bytes: u64::MAX,
            reads_registered_only: false,
            next_handle: 1,
            next_record: 1,
            unreached: HashSet::with_capacity(64),
            order: Order::AtOnce,
            fail_in: None,
        }
    }

    /// A device that holds work back until something waits, and then chooses between streams by `seed`.
    pub fn deferred(seed: u64) -> Self {
        Self { order: Order::Deferred(seed), ..Self::new() }
    }

    /// The same device with at most this many bytes of memory.
    #[must_use]
    pub fn with_limit(mut self, limit_bytes: u64) -> Self {
        self.limit_bytes = limit_bytes;
        self
    }

    /// The same device, which refuses to register more than this many bytes of host memory.
    #[must_use]
    pub fn with_register_limit(mut self, limit_bytes: u64) -> Self {
        self.register_limit_bytes = limit_bytes;
        self
    }

    /// The same device, which copies from registered host memory only, as one with a link does.
    #[must_use]
    pub fn reading_registered_only(mut self) -> Self {
        self.reads_registered_only = true;
        self
    }

    /// Lets one copy fail: the next one after `copies` more, at the time it is enqueued. For tests of what follows.
    pub fn fail_copy_after(&mut self, copies: u64) {
        self.fail_in = Some(copies);
    }

    /// Bytes allocated.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// Bytes of host memory that are registered.
    pub fn registered_bytes(&self) -> u64 {
        self.registrations.values().sum()
    }

    /// What has been given out and not taken back.
    pub fn live_objects(&self) -> LiveObjects {
        LiveObjects {
            memories: self.memories.len(),
            streams: self.streams.values().filter(|queue| !queue.destroyed).count() - 1,
            events: self.events.len(),
            registrations: self.registrations.len(),
        }
    }

    fn check_event(&self, event: Event) -> Result<(), DeviceError> {
        let known = self.events.contains_key(&event.0);
        if known { Ok(()) } else { Err(DeviceError::UnknownHandle { what: "event", handle: event.0 }) }
    }

    fn memory(&self, memory: Memory) -> Result<&[u8], DeviceError> {
        let known = self.memories.get(&memory.0).map(Block::memory);
        known.ok_or(DeviceError::UnknownHandle { what: "memory", handle: memory.0 })
    }

    /// Whether rows lie in their memory.
    fn check_span(
        &self,
        operation: &'static str,
        span: &DeviceSpan,
        row_bytes: u64,
        row_count: u64,
    ) -> Result<(), DeviceError> {
        span.check(operation, self.memory(span.memory)?.len() as u64, row_bytes, row_count)
    }

    fn next_handle(&mut self) -> u64 {
        self.next_handle += 1;
        self.next_handle - 1
    }

    fn add_block(&mut self, block: Block) -> Memory {
        let handle = self.next_handle();
        self.memories.insert(handle, block);
        Memory(handle)
    }

    fn enqueue(&mut self, stream: Stream, operation: Operation) -> Result<(), DeviceError> {
        match self.order {
            // Nothing can be in the way: every record before this has passed.
            Order::AtOnce => {
                self.check_stream(stream)?;
                self.execute(operation);
            }
            Order::Deferred(_) => {
                let queue = self.streams.get_mut(&stream.0).filter(|queue| !queue.destroyed);
                let queue = queue.ok_or(DeviceError::UnknownHandle { what: "stream", handle: stream.0 })?;
                queue.operations.push_back(operation);
            }
        }
        Ok(())
    }

    fn execute(&mut self, operation: Operation) {
        match operation {
            Operation::Copy(copy) => self.execute_copy(&copy),
            Operation::Clear { target, row_bytes, row_count } => {
                let block = self.memories.get_mut(&target.memory.0).expect("freeing waits for what is enqueued");
                for row in 0..row_count {
                    let at = (target.offset + row * target.stride) as usize;
                    block.memory_mut()[at..][..row_bytes as usize].fill(0);
                }
            }
            Operation::Record(record) => {
                self.unreached.remove(&record);
            }
            Operation::Wait(record) => debug_assert!(!self.unreached.contains(&record)),
            Operation::WaitForHost(word, value) => {
                while !is_raised(word, value) {
                    std::thread::yield_now();
                }
            }
            // SAFETY: the word stays in place until its stream has been synchronised (`Device::tell_host`).
            Operation::TellHost(word, value) => unsafe { (*word).store(value, Ordering::Release) },
        }
    }

    fn execute_copy(&mut self, copy: &RowCopy) {
        let (base, stride) = match &copy.source {
            Source::Host(span) => (span.base, span.stride),
            Source::Device(span) => {
                let memory = self.memories[&span.memory.0].memory().as_ptr();
                (memory.wrapping_add(span.offset as usize), span.stride)
            }
        };
        let target = self.memories.get_mut(&copy.target.memory.0).expect("freeing waits for what is enqueued");
        let target_base = target.first.as_ptr().wrapping_add(copy.target.offset as usize);
        let RowCopy { row_bytes, row_count, .. } = *copy;
        // SAFETY: a source on the host stays readable until the copy is done, by the promise of whoever enqueued it
        // (`Device::copy_rows`); one on the device, and the target, were checked against their memory, which outlives
        // what is enqueued, and do not overlap (`RowCopy`, checked where it was enqueued).
        unsafe { copy_rows(base, stride, target_base, copy.target.stride, row_bytes, row_count) };
    }

    /// Does held-back work, a stream at a time by the seed, until `done` says that no more is wanted.
    fn drain(&mut self, done: impl Fn(&BTreeMap<u64, Queue>) -> bool) {
        while !done(&self.streams) {
            if !self.advance() {
                // A record stands before every wait for it, so only the host can be in the way.
                std::thread::yield_now();
            }
        }
    }

    /// Does one operation of a stream that may go on, by the seed. Returns whether there was one.
    fn advance(&mut self) -> bool {
        let ready: Vec<u64> = self.streams.keys().copied().filter(|&stream| self.may_go_on(stream)).collect();
        if ready.is_empty() {
            return false;
        }
        let stream = ready[self.choose(ready.len())];
        let queue = self.streams.get_mut(&stream).expect("a ready stream is there");
        let operation = queue.operations.pop_front().expect("a ready stream has work");
        if queue.destroyed && queue.operations.is_empty() {
            self.streams.remove(&stream);
        }
        self.execute(operation);
        true
    }

    fn drain_all(&mut self) {
        self.drain(|streams| streams.values().all(|queue| queue.operations.is_empty()));
    }

    fn may_go_on(&self, stream: u64) -> bool {
        match self.streams[&stream].operations.front() {
            None => false,
            Some(Operation::Wait(record)) => !self.unreached.contains(record),
            Some(&Operation::WaitForHost(word, value)) => is_raised(word, value),
            Some(_) => true,
        }
    }

    fn choose(&mut self, count: usize) -> usize {
        let Order::Deferred(state) = &mut self.order else { return 0 };
        // An odd multiplier and the high bits: enough to mix orders, and the same on every machine.
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((*state >> 33) % count as u64) as usize
    }
}

/// Whether a word has been raised to a value, counted around the end of 32 bits.
fn is_raised(word: *const AtomicU32, value: u32) -> bool {
    // SAFETY: the word stays in place until its stream has been synchronised (`Device::wait_for_host`), which is after
    // the operation that asks.
    let word = unsafe { (*word).load(Ordering::Acquire) };
    word.wrapping_sub(value) as i32 >= 0
}

impl Default for HostDevice {
    fn default() -> Self {
        Self::new()
    }
}
