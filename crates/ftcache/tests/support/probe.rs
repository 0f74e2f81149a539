//! A device that knows what its cache is doing when it asks for something: every wait of a stream has the name of its
//! fence and can be left out, copies and allocations can be refused, and the most memory there ever was is kept.

use std::cell::{Ref, RefCell, RefMut};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::atomic::AtomicU32;

use ftcache::transfer::{CopyError, HostAccess, Launch};
use ftcache::{Device, DeviceError, DeviceSpan, Event, Memory, RowCopy, Stream};

/// The events of a cache in the order in which it makes them: its fences, and then those of each staging.
const FENCES: [&str; 3] = ["release", "ready", "handover"];
const STAGE_EVENTS: [&str; 6] = ["begun", "filled", "filled", "released", "released", "loaded"];

/// A device and what it was asked.
pub(crate) struct Notes {
    pub(crate) inner: Box<dyn Device>,
    /// What the test is about to ask the cache for.
    pub(crate) call: &'static str,
    /// Each event and its name.
    events: Vec<(u64, &'static str)>,
    named: usize,
    /// The streams of what is copied behind steps, and ahead of them.
    late: Option<Stream>,
    hints: Option<Stream>,
    /// Events that have not been given back.
    pub(crate) live_events: usize,
    /// Of each wait between streams, the call and the event.
    pub(crate) waits: Vec<(&'static str, &'static str)>,
    /// This wait is left out, counted from the first.
    pub(crate) dropped_wait: Option<usize>,
    /// Copies, zeros, kernels, records and waits.
    pub(crate) enqueued: u64,
    pub(crate) copies: u64,
    pub(crate) clears: u64,
    /// The copy after so many more is refused.
    pub(crate) fail_copy: Option<u64>,
    /// The zeros after so many more are refused.
    pub(crate) fail_clear: Option<u64>,
    /// The wait for a word of the host's, or the raising of one, after so many more is refused.
    pub(crate) fail_word: Option<u64>,
    /// Numbers of the allocations that are refused, counted from the first.
    pub(crate) refused_allocations: BTreeSet<u64>,
    pub(crate) allocations: u64,
    /// Memory by its address.
    blocks: BTreeMap<u64, (Memory, u64)>,
    pub(crate) used_bytes: u64,
    /// The most that was allocated at a time since this was last set.
    pub(crate) most_bytes: u64,
    adopted: BTreeSet<u64>,
}

impl Notes {
    /// Live allocations, adopted memory included.
    pub(crate) fn live_memories(&self) -> usize {
        self.blocks.len()
    }

    /// Memory at an address, and the bytes from its start.
    pub(crate) fn locate(&self, address: u64) -> (Memory, u64) {
        let (&base, &(memory, bytes)) = self.blocks.range(..=address).next_back().expect("memory of this device");
        assert!(address - base <= bytes, "{address:#x} is behind {bytes} bytes at {base:#x}");
        (memory, address - base)
    }

    fn name_of(&self, event: Event) -> &'static str {
        self.events.iter().rev().find(|made| made.0 == event.raw()).expect("an event of this device").1
    }

    /// The name of the next event that is made.
    fn next_name(&mut self) -> &'static str {
        match self.call {
            "set_later" => return "late",
            "set_hints" => return "hint",
            _ => {}
        }
        let at = self.named;
        self.named += 1;
        FENCES.get(at).copied().unwrap_or_else(|| STAGE_EVENTS[(at - FENCES.len()) % STAGE_EVENTS.len()])
    }

    fn refuses_copy(&mut self) -> bool {
        count_down(&mut self.fail_copy)
    }

    fn check_word(&mut self) -> Result<(), DeviceError> {
        if count_down(&mut self.fail_word) { Err(refused("word", 4)) } else { Ok(()) }
    }
}

/// Whether it was at its end.
fn count_down(left: &mut Option<u64>) -> bool {
    let ends = *left == Some(0);
    *left = left.and_then(|left| left.checked_sub(1));
    ends
}

fn refused(operation: &'static str, bytes: u64) -> DeviceError {
    DeviceError::Failed { operation, bytes, reason: "it was asked to fail".to_owned() }
}

/// One device behind any number of handles.
#[derive(Clone)]
pub(crate) struct Probe(Rc<RefCell<Notes>>);

impl std::fmt::Debug for Probe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.get().inner.name())
    }
}

impl Probe {
    pub(crate) fn new(inner: Box<dyn Device>) -> Self {
        Self(Rc::new(RefCell::new(Notes {
            inner,
            call: "",
            events: Vec::new(),
            named: 0,
            late: None,
            hints: None,
            live_events: 0,
            waits: Vec::new(),
            dropped_wait: None,
            enqueued: 0,
            copies: 0,
            clears: 0,
            fail_copy: None,
            fail_clear: None,
            fail_word: None,
            refused_allocations: BTreeSet::new(),
            allocations: 0,
            blocks: BTreeMap::new(),
            used_bytes: 0,
            most_bytes: 0,
            adopted: BTreeSet::new(),
        })))
    }

    pub(crate) fn get(&self) -> Ref<'_, Notes> {
        self.0.borrow()
    }

    pub(crate) fn get_mut(&self) -> RefMut<'_, Notes> {
        self.0.borrow_mut()
    }

    fn enqueue(&self) -> RefMut<'_, Notes> {
        let mut notes = self.get_mut();
        notes.enqueued += 1;
        notes
    }
}

// SAFETY: every wait for work to be done is the device's own.
unsafe impl Device for Probe {
    fn name(&self) -> String {
        self.get().inner.name()
    }

    fn free_bytes(&self) -> Option<u64> {
        self.get().inner.free_bytes()
    }

    fn allocate(&mut self, bytes: u64, alignment: u64) -> Result<Memory, DeviceError> {
        let mut notes = self.get_mut();
        notes.allocations += 1;
        let number = notes.allocations - 1;
        if notes.refused_allocations.contains(&number) {
            return Err(DeviceError::OutOfMemory { wanted_bytes: bytes, free_bytes: 0 });
        }
        let memory = notes.inner.allocate(bytes, alignment)?;
        let address = notes.inner.address(memory)?;
        assert_eq!(address % alignment, 0);
        notes.blocks.insert(address, (memory, bytes));
        notes.used_bytes += bytes;
        notes.most_bytes = notes.most_bytes.max(notes.used_bytes);
        Ok(memory)
    }

    unsafe fn adopt(&mut self, address: u64, bytes: u64) -> Result<Memory, DeviceError> {
        let mut notes = self.get_mut();
        // SAFETY: our caller made the promise that is asked for here.
        let memory = unsafe { notes.inner.adopt(address, bytes) }?;
        notes.blocks.insert(address, (memory, bytes));
        notes.adopted.insert(address);
        Ok(memory)
    }

    fn free(&mut self, memory: Memory) {
        let mut notes = self.get_mut();
        let address = notes.inner.address(memory).expect("memory that is freed once");
        let (_, bytes) = notes.blocks.remove(&address).expect("memory of this device");
        if !notes.adopted.remove(&address) {
            notes.used_bytes -= bytes;
        }
        notes.inner.free(memory);
    }

    fn address(&self, memory: Memory) -> Result<u64, DeviceError> {
        self.get().inner.address(memory)
    }

    unsafe fn register(&mut self, base: *const u8, bytes: u64, access: HostAccess) -> Result<(), DeviceError> {
        // SAFETY: our caller made the promise that is asked for here.
        unsafe { self.get_mut().inner.register(base, bytes, access) }
    }

    fn can_read(&mut self, base: *const u8, bytes: u64) -> Result<bool, DeviceError> {
        self.get_mut().inner.can_read(base, bytes)
    }

    fn unregister(&mut self, base: *const u8) -> Result<(), DeviceError> {
        self.get_mut().inner.unregister(base)
    }

    fn create_stream(&mut self) -> Result<Stream, DeviceError> {
        let mut notes = self.get_mut();
        let stream = notes.inner.create_stream()?;
        match notes.call {
            "set_later" => drop(notes.late.get_or_insert(stream)),
            "set_hints" => drop(notes.hints.get_or_insert(stream)),
            _ => {}
        }
        Ok(stream)
    }

    fn destroy_stream(&mut self, stream: Stream) {
        self.get_mut().inner.destroy_stream(stream);
    }

    fn check_stream(&self, stream: Stream) -> Result<(), DeviceError> {
        self.get().inner.check_stream(stream)
    }

    fn create_event(&mut self) -> Result<Event, DeviceError> {
        let mut notes = self.get_mut();
        let event = notes.inner.create_event()?;
        let name = notes.next_name();
        notes.events.push((event.raw(), name));
        notes.live_events += 1;
        Ok(event)
    }

    fn destroy_event(&mut self, event: Event) {
        let mut notes = self.get_mut();
        notes.live_events -= 1;
        notes.inner.destroy_event(event);
    }

    fn record(&mut self, event: Event, stream: Stream) -> Result<(), DeviceError> {
        self.enqueue().inner.record(event, stream)
    }

    fn wait(&mut self, stream: Stream, event: Event) -> Result<(), DeviceError> {
        let mut notes = self.enqueue();
        let call = match stream {
            stream if notes.late == Some(stream) => "late",
            stream if notes.hints == Some(stream) => "hints",
            _ => notes.call,
        };
        let wait = (call, notes.name_of(event));
        notes.waits.push(wait);
        if notes.dropped_wait == Some(notes.waits.len() - 1) { Ok(()) } else { notes.inner.wait(stream, event) }
    }

    fn has_passed(&mut self, event: Event) -> Result<bool, DeviceError> {
        self.get_mut().inner.has_passed(event)
    }

    fn synchronize(&mut self, stream: Stream) -> Result<(), DeviceError> {
        self.get_mut().inner.synchronize(stream)
    }

    fn synchronize_all(&mut self) -> Result<(), DeviceError> {
        self.get_mut().inner.synchronize_all()
    }

    fn check(&mut self) -> Result<(), DeviceError> {
        self.get_mut().inner.check()
    }

    unsafe fn copy_rows(&mut self, stream: Stream, copy: &RowCopy) -> Result<(), DeviceError> {
        let mut notes = self.enqueue();
        notes.copies += 1;
        if notes.refuses_copy() {
            return Err(refused("row copy", copy.bytes()));
        }
        // SAFETY: our caller made the promise that is asked for here.
        unsafe { notes.inner.copy_rows(stream, copy) }
    }

    unsafe fn copy_all(&mut self, stream: Stream, copies: &[RowCopy]) -> Result<(), CopyError> {
        let mut notes = self.get_mut();
        let refused_at = copies.iter().position(|_| notes.refuses_copy());
        let tried = &copies[..refused_at.unwrap_or(copies.len())];
        notes.enqueued += tried.len() as u64;
        notes.copies += tried.len() as u64;
        // SAFETY: our caller made the promise that is asked for here.
        unsafe { notes.inner.copy_all(stream, tried) }?;
        match refused_at {
            Some(index) => Err(CopyError { index, source: refused("row copy", copies[index].bytes()) }),
            None => Ok(()),
        }
    }

    fn clear_rows(
        &mut self,
        stream: Stream,
        target: &DeviceSpan,
        row_bytes: u64,
        row_count: u64,
    ) -> Result<(), DeviceError> {
        let mut notes = self.enqueue();
        notes.clears += 1;
        if count_down(&mut notes.fail_clear) {
            return Err(refused("clear", row_bytes * row_count));
        }
        notes.inner.clear_rows(stream, target, row_bytes, row_count)
    }

    unsafe fn wait_for_host(&mut self, stream: Stream, word: *const AtomicU32, value: u32) -> Result<(), DeviceError> {
        let mut notes = self.enqueue();
        notes.check_word()?;
        // SAFETY: our caller made the promise that is asked for here.
        unsafe { notes.inner.wait_for_host(stream, word, value) }
    }

    unsafe fn tell_host(&mut self, stream: Stream, word: *const AtomicU32, value: u32) -> Result<(), DeviceError> {
        let mut notes = self.enqueue();
        notes.check_word()?;
        // SAFETY: our caller made the promise that is asked for here.
        unsafe { notes.inner.tell_host(stream, word, value) }
    }

    fn read(&mut self, memory: Memory, offset: u64, target: &mut [u8]) -> Result<(), DeviceError> {
        self.get_mut().inner.read(memory, offset, target)
    }

    fn write(&mut self, memory: Memory, offset: u64, source: &[u8]) -> Result<(), DeviceError> {
        self.get_mut().inner.write(memory, offset, source)
    }

    fn kernel_address(&mut self, base: *const u8, bytes: u64) -> Result<u64, DeviceError> {
        self.get_mut().inner.kernel_address(base, bytes)
    }

    fn prepare_kernels(&mut self) -> Result<(), DeviceError> {
        self.get_mut().inner.prepare_kernels()
    }

    unsafe fn launch(&mut self, stream: Stream, launch: &Launch<'_>) -> Result<(), DeviceError> {
        // SAFETY: our caller made the promise that is asked for here.
        unsafe { self.enqueue().inner.launch(stream, launch) }
    }
}
