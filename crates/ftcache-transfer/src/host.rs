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

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::row_copy::copy_rows;
use crate::{Device, DeviceError, DeviceSpan, Event, HostAccess, Memory, RowCopy, Source, Stream};

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
            unreached: HashSet::new(),
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

// SAFETY: a copy reads its source when it is taken from its stream's queue and never again. `synchronize` returns
// with that stream's queue empty, `synchronize_all`, `free` and `read` with all of them.
unsafe impl Device for HostDevice {
    fn name(&self) -> String {
        "host memory".to_owned()
    }

    fn free_bytes(&self) -> Option<u64> {
        // A limit may be set below what is allocated already.
        (self.limit_bytes < u64::MAX).then(|| self.limit_bytes.saturating_sub(self.used_bytes))
    }

    fn allocate(&mut self, bytes: u64, alignment: u64) -> Result<Memory, DeviceError> {
        let free_bytes = self.limit_bytes.saturating_sub(self.used_bytes);
        let out_of_memory = DeviceError::OutOfMemory { wanted_bytes: bytes, free_bytes };
        if bytes > free_bytes {
            return Err(out_of_memory);
        }
        let Ok(length) = usize::try_from(bytes) else { return Err(out_of_memory) };
        // An allocation of nothing is none.
        let layout = Layout::from_size_align(length.max(1), alignment as usize).map_err(|_| out_of_memory.clone())?;
        // SAFETY: the layout has at least one byte.
        let first = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(out_of_memory)?;
        self.used_bytes += bytes;
        Ok(self.add_block(Block { first, bytes: length, layout: Some(layout) }))
    }

    unsafe fn adopt(&mut self, address: u64, bytes: u64) -> Result<Memory, DeviceError> {
        let unknown = DeviceError::UnknownHandle { what: "address", handle: address };
        let first = NonNull::new(address as *mut u8).ok_or(unknown)?;
        // SAFETY: the caller promises that these bytes are ours to write.
        unsafe { first.as_ptr().write_bytes(0, bytes as usize) };
        Ok(self.add_block(Block { first, bytes: bytes as usize, layout: None }))
    }

    fn free(&mut self, memory: Memory) {
        self.drain_all();
        if let Some(block) = self.memories.remove(&memory.0)
            && block.layout.is_some()
        {
            self.used_bytes -= block.bytes as u64;
        }
    }

    fn address(&self, memory: Memory) -> Result<u64, DeviceError> {
        Ok(self.memory(memory)?.as_ptr() as u64)
    }

    unsafe fn register(&mut self, base: *const u8, bytes: u64, _access: HostAccess) -> Result<(), DeviceError> {
        let failed = |reason: String| DeviceError::Failed { operation: "register", bytes, reason };
        let first = base.addr();
        let before = self.registrations.range(..first.saturating_add(bytes as usize)).next_back();
        if let Some((&other, &other_bytes)) = before
            && other as u64 + other_bytes > first as u64
        {
            return Err(failed(format!("{other_bytes} bytes at {other:#x} are registered, {first:#x} is asked for")));
        }
        let registered = self.registered_bytes();
        if registered.saturating_add(bytes) > self.register_limit_bytes {
            let limit = self.register_limit_bytes;
            return Err(failed(format!("{registered} bytes are registered; the limit is {limit}")));
        }
        self.registrations.insert(first, bytes);
        Ok(())
    }

    fn can_read(&mut self, base: *const u8, bytes: u64) -> Result<bool, DeviceError> {
        let mut at = base.addr() as u64;
        let Some(end) = at.checked_add(bytes) else { return Ok(false) };
        while self.reads_registered_only && at < end {
            let before = self.registrations.range(..=at as usize).next_back();
            match before.map(|(&first, &length)| first as u64 + length).filter(|&past| past > at) {
                Some(past) => at = past,
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    fn unregister(&mut self, base: *const u8) -> Result<(), DeviceError> {
        self.drain_all();
        let known = self.registrations.remove(&base.addr());
        let unknown = DeviceError::UnknownHandle { what: "registration", handle: base.addr() as u64 };
        known.map(|_| ()).ok_or(unknown)
    }

    fn create_stream(&mut self) -> Result<Stream, DeviceError> {
        let handle = self.next_handle();
        self.streams.insert(handle, Queue::default());
        Ok(Stream(handle))
    }

    fn destroy_stream(&mut self, stream: Stream) {
        if stream == Stream::DEFAULT {
            return;
        }
        match self.streams.get_mut(&stream.0) {
            Some(queue) if !queue.operations.is_empty() => queue.destroyed = true,
            _ => {
                self.streams.remove(&stream.0);
            }
        }
    }

    fn check_stream(&self, stream: Stream) -> Result<(), DeviceError> {
        let known = self.streams.get(&stream.0).filter(|queue| !queue.destroyed);
        known.map(|_| ()).ok_or(DeviceError::UnknownHandle { what: "stream", handle: stream.0 })
    }

    fn create_event(&mut self) -> Result<Event, DeviceError> {
        let handle = self.next_handle();
        self.events.insert(handle, 0);
        Ok(Event(handle))
    }

    fn destroy_event(&mut self, event: Event) {
        self.events.remove(&event.0);
    }

    fn record(&mut self, event: Event, stream: Stream) -> Result<(), DeviceError> {
        self.check_event(event)?;
        self.check_stream(stream)?;
        let record = self.next_record;
        self.next_record += 1;
        self.events.insert(event.0, record);
        self.unreached.insert(record);
        self.enqueue(stream, Operation::Record(record))
    }

    fn wait(&mut self, stream: Stream, event: Event) -> Result<(), DeviceError> {
        self.check_event(event)?;
        // The point waited for is the last one recorded by now, not one recorded later.
        self.enqueue(stream, Operation::Wait(self.events[&event.0]))
    }

    /// Held-back work goes on by one operation, so that whoever asks again and again gets to the point.
    fn has_passed(&mut self, event: Event) -> Result<bool, DeviceError> {
        self.check_event(event)?;
        let passed = |device: &Self| !device.unreached.contains(&device.events[&event.0]);
        let already = passed(self);
        Ok(already || (self.advance() && passed(self)))
    }

    fn synchronize(&mut self, stream: Stream) -> Result<(), DeviceError> {
        self.check_stream(stream)?;
        self.drain(|streams| streams[&stream.0].operations.is_empty());
        Ok(())
    }

    fn synchronize_all(&mut self) -> Result<(), DeviceError> {
        self.drain_all();
        Ok(())
    }

    fn check(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    unsafe fn copy_rows(&mut self, stream: Stream, copy: &RowCopy) -> Result<(), DeviceError> {
        self.check_stream(stream)?;
        self.check_span("row copy", &copy.target, copy.row_bytes, copy.row_count)?;
        if let Source::Device(span) = &copy.source {
            self.check_span("row copy", span, copy.row_bytes, copy.row_count)?;
            copy.check_apart(span)?;
        }
        if let Source::Host(span) = &copy.source
            && copy.row_count > 0
            && !self
                .can_read(span.base, (copy.row_count - 1).saturating_mul(span.stride).saturating_add(copy.row_bytes))?
        {
            let reason = "the source is not registered".to_owned();
            return Err(DeviceError::Failed { operation: "row copy", bytes: copy.bytes(), reason });
        }
        if self.fail_in == Some(0) {
            self.fail_in = None;
            let reason = "this copy was asked to fail".to_owned();
            return Err(DeviceError::Failed { operation: "row copy", bytes: copy.bytes(), reason });
        }
        self.fail_in = self.fail_in.map(|copies| copies - 1);
        self.enqueue(stream, Operation::Copy(*copy))
    }

    fn clear_rows(
        &mut self,
        stream: Stream,
        target: &DeviceSpan,
        row_bytes: u64,
        row_count: u64,
    ) -> Result<(), DeviceError> {
        self.check_span("clear", target, row_bytes, row_count)?;
        self.enqueue(stream, Operation::Clear { target: *target, row_bytes, row_count })
    }

    unsafe fn wait_for_host(&mut self, stream: Stream, word: *const AtomicU32, value: u32) -> Result<(), DeviceError> {
        self.enqueue(stream, Operation::WaitForHost(word, value))
    }

    unsafe fn tell_host(&mut self, stream: Stream, word: *const AtomicU32, value: u32) -> Result<(), DeviceError> {
        self.enqueue(stream, Operation::TellHost(word, value))
    }

    fn read(&mut self, memory: Memory, offset: u64, target: &mut [u8]) -> Result<(), DeviceError> {
        self.drain_all();
        let source = self.memory(memory)?;
        let (bytes, memory_bytes) = (target.len() as u64, source.len() as u64);
        if offset.saturating_add(bytes) > memory_bytes {
            return Err(DeviceError::OutOfBounds { operation: "read", offset, bytes, memory_bytes });
        }
        target.copy_from_slice(&source[offset as usize..][..target.len()]);
        Ok(())
    }
}
