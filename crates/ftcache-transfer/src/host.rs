//! The host device: slots in ordinary memory, streams and events with the meaning they have on a GPU.
//!
//! By default work is done as it is enqueued, which is one of the orders a device may choose. A *deferred* device
//! holds it back until something waits, and then picks among the streams that may go on by a seed: what an engine
//! forgot to order shows, without a GPU.
//!
//! *Unsafe*, relying on one promise: the sources of a copy stay readable and unchanged until its stream has been
//! synchronised ([`Device::copy_rows`]). Targets are checked against the memory they lie in.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::{Device, DeviceError, Event, Memory, RowCopy, Stream};

#[derive(Debug)]
enum Operation {
    Copy(RowCopy),
    /// The record of this number is reached.
    Record(u64),
    /// Go on once the record of this number has been reached.
    Wait(u64),
}

/// One allocation.
#[derive(Debug)]
struct Block {
    room: Box<[u8]>,
    /// Where the memory begins in the room.
    first: usize,
    bytes: usize,
}

impl Block {
    fn memory(&self) -> &[u8] {
        &self.room[self.first..][..self.bytes]
    }

    fn memory_mut(&mut self) -> &mut [u8] {
        &mut self.room[self.first..][..self.bytes]
    }
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
    next_memory: u64,
    limit_bytes: u64,
    used_bytes: u64,
    /// Index 0 is the default stream.
    streams: Vec<VecDeque<Operation>>,
    /// The number of each event's last record; 0 if it has none.
    events: Vec<u64>,
    next_record: u64,
    /// Records enqueued and not reached. An event may be recorded on several streams, which go on in any order, so each
    /// record is kept by itself.
    unreached: HashSet<u64>,
    order: Order,
    /// Copies until the one that is to fail.
    fail_in: Option<u64>,
}

// SAFETY: the pointers in queued copies are only read through, under the promise of `Device::copy_rows`, which binds
// whoever enqueued them whatever thread the work is done on.
unsafe impl Send for HostDevice {}

impl HostDevice {
    /// A device that does work as it is enqueued.
    pub fn new() -> Self {
        Self {
            memories: HashMap::new(),
            next_memory: 1,
            limit_bytes: u64::MAX,
            used_bytes: 0,
            streams: vec![VecDeque::new()],
            events: Vec::new(),
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

    /// Lets one copy fail: the next one after `copies` more, at the time it is enqueued. For tests of what follows.
    pub fn fail_copy_after(&mut self, copies: u64) {
        self.fail_in = Some(copies);
    }

    /// Bytes allocated.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    fn stream_index(&self, stream: Stream) -> Result<usize, DeviceError> {
        let known = usize::try_from(stream.0).ok().filter(|&index| index < self.streams.len());
        known.ok_or(DeviceError::UnknownHandle { what: "stream", handle: stream.0 })
    }

    fn event_index(&self, event: Event) -> Result<usize, DeviceError> {
        let known = usize::try_from(event.0).ok().filter(|&index| index < self.events.len());
        known.ok_or(DeviceError::UnknownHandle { what: "event", handle: event.0 })
    }

    fn memory(&self, memory: Memory) -> Result<&[u8], DeviceError> {
        let known = self.memories.get(&memory.0).map(Block::memory);
        known.ok_or(DeviceError::UnknownHandle { what: "memory", handle: memory.0 })
    }

    fn enqueue(&mut self, stream: usize, operation: Operation) {
        match self.order {
            // Nothing can be in the way: every record before this has passed.
            Order::AtOnce => self.execute(operation),
            Order::Deferred(_) => self.streams[stream].push_back(operation),
        }
    }

    fn execute(&mut self, operation: Operation) {
        match operation {
            Operation::Copy(copy) => self.execute_copy(&copy),
            Operation::Record(record) => {
                self.unreached.remove(&record);
            }
            Operation::Wait(record) => debug_assert!(!self.unreached.contains(&record)),
        }
    }

    fn execute_copy(&mut self, copy: &RowCopy) {
        let Some(block) = self.memories.get_mut(&copy.target.memory.0) else {
            // Freeing waits for what is enqueued, so a copy never outlives its memory.
            unreachable!("memory {} is gone", copy.target.memory.0);
        };
        let (row_bytes, packed) = (copy.row_bytes, copy.source.stride == copy.row_bytes);
        // Rows without gaps on both sides are one piece.
        let (piece_bytes, piece_count) = match packed && copy.target.stride == row_bytes {
            true => (row_bytes * copy.row_count, 1),
            false => (row_bytes, copy.row_count),
        };
        for piece in 0..piece_count {
            let source = copy.source.base.wrapping_add((piece * copy.source.stride) as usize);
            let at = (copy.target.offset + piece * copy.target.stride) as usize;
            let target = &mut block.memory_mut()[at..at + piece_bytes as usize];
            // SAFETY: whoever enqueued the copy keeps `row_count` rows at the source's stride readable until it is done
            // (`Device::copy_rows`), and a piece is one of them or all of them. The target is memory of ours and is
            // borrowed for writing, so the two do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(source, target.as_mut_ptr(), piece_bytes as usize) };
        }
    }

    /// Does held-back work, a stream at a time by the seed, until `done` says that no more is wanted.
    fn drain(&mut self, done: impl Fn(&[VecDeque<Operation>]) -> bool) {
        while !done(&self.streams) {
            let ready: Vec<usize> = (0..self.streams.len()).filter(|&stream| self.may_go_on(stream)).collect();
            // A record stands before every wait for it, so the oldest operation of all can always go on.
            let stream = ready[self.choose(ready.len())];
            let operation = self.streams[stream].pop_front().expect("a ready stream has work");
            self.execute(operation);
        }
    }

    fn drain_all(&mut self) {
        self.drain(|streams| streams.iter().all(VecDeque::is_empty));
    }

    fn may_go_on(&self, stream: usize) -> bool {
        match self.streams[stream].front() {
            None => false,
            Some(Operation::Wait(record)) => !self.unreached.contains(record),
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

impl Default for HostDevice {
    fn default() -> Self {
        Self::new()
    }
}

// SAFETY: a copy reads its source when it is taken from its stream's queue and never again. `synchronize` returns with that
// stream's queue empty, `synchronize_all`, `free` and `read` with all of them.
unsafe impl Device for HostDevice {
    fn name(&self) -> String {
        "host memory".to_owned()
    }

    fn allocate(&mut self, bytes: u64, alignment: u64) -> Result<Memory, DeviceError> {
        // A limit may be set below what is allocated already.
        let free_bytes = self.limit_bytes.saturating_sub(self.used_bytes);
        let out_of_memory = DeviceError::OutOfMemory { wanted_bytes: bytes, free_bytes };
        if bytes > free_bytes {
            return Err(out_of_memory);
        }
        // Room to begin at a multiple of the alignment.
        let length = bytes.checked_add(alignment).and_then(|length| usize::try_from(length).ok());
        let length = length.ok_or_else(|| out_of_memory.clone())?;
        let mut room = Vec::new();
        room.try_reserve_exact(length).map_err(|_| out_of_memory)?;
        room.resize(length, 0_u8);
        let room = room.into_boxed_slice();
        let first = room.as_ptr().addr().next_multiple_of(alignment as usize) - room.as_ptr().addr();
        let handle = self.next_memory;
        self.next_memory += 1;
        self.used_bytes += bytes;
        self.memories.insert(handle, Block { room, first, bytes: bytes as usize });
        Ok(Memory(handle))
    }

    fn free(&mut self, memory: Memory) {
        self.drain_all();
        if let Some(block) = self.memories.remove(&memory.0) {
            self.used_bytes -= block.bytes as u64;
        }
    }

    fn address(&self, memory: Memory) -> Result<u64, DeviceError> {
        Ok(self.memory(memory)?.as_ptr() as u64)
    }

    fn create_stream(&mut self) -> Result<Stream, DeviceError> {
        self.streams.push(VecDeque::new());
        Ok(Stream(self.streams.len() as u64 - 1))
    }

    fn check_stream(&self, stream: Stream) -> Result<(), DeviceError> {
        self.stream_index(stream).map(|_| ())
    }

    fn create_event(&mut self) -> Result<Event, DeviceError> {
        self.events.push(0);
        Ok(Event(self.events.len() as u64 - 1))
    }

    fn record(&mut self, event: Event, stream: Stream) -> Result<(), DeviceError> {
        let (event, stream) = (self.event_index(event)?, self.stream_index(stream)?);
        let record = self.next_record;
        self.next_record += 1;
        self.events[event] = record;
        self.unreached.insert(record);
        self.enqueue(stream, Operation::Record(record));
        Ok(())
    }

    fn wait(&mut self, stream: Stream, event: Event) -> Result<(), DeviceError> {
        let (event, stream) = (self.event_index(event)?, self.stream_index(stream)?);
        // The point waited for is the last one recorded by now, not one recorded later.
        self.enqueue(stream, Operation::Wait(self.events[event]));
        Ok(())
    }

    fn synchronize(&mut self, stream: Stream) -> Result<(), DeviceError> {
        let stream = self.stream_index(stream)?;
        self.drain(|streams| streams[stream].is_empty());
        Ok(())
    }

    fn synchronize_all(&mut self) -> Result<(), DeviceError> {
        self.drain_all();
        Ok(())
    }

    unsafe fn copy_rows(&mut self, stream: Stream, copy: &RowCopy) -> Result<(), DeviceError> {
        let stream = self.stream_index(stream)?;
        let memory_bytes = self.memory(copy.target.memory)?.len() as u64;
        let bytes = match copy.row_count {
            0 => 0,
            count => (count - 1).saturating_mul(copy.target.stride).saturating_add(copy.row_bytes),
        };
        let offset = copy.target.offset;
        if offset.saturating_add(bytes) > memory_bytes {
            return Err(DeviceError::OutOfBounds { operation: "row copy", offset, bytes, memory_bytes });
        }
        if self.fail_in == Some(0) {
            self.fail_in = None;
            let reason = "this copy was asked to fail".to_owned();
            return Err(DeviceError::Failed { operation: "row copy", bytes: copy.bytes(), reason });
        }
        self.fail_in = self.fail_in.map(|copies| copies - 1);
        self.enqueue(stream, Operation::Copy(*copy));
        Ok(())
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
