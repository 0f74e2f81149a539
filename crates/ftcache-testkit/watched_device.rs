//! A device that notes what it is asked, and can leave a wait out. Test files include this file by its path, as it is
//! written against `ftcache-transfer`, which this crate does not see.

use std::cell::{Ref, RefCell, RefMut};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::AtomicU32;

use ftcache_transfer::{
    CopyError, Device, DeviceError, DeviceSpan, Event, HostAccess, HostDevice, Launch, Memory, RowCopy, Stream,
};

/// A device and what it was asked.
#[derive(Debug)]
pub(crate) struct State<D> {
    pub(crate) host: D,
    /// In the order in which they were allocated: the arenas, bank by bank.
    pub(crate) memories: Vec<Memory>,
    pub(crate) copies: Vec<(Stream, RowCopy)>,
    /// Copies, zeros, kernels, records and waits.
    pub(crate) enqueued: u64,
    /// Calls after which something that was enqueued is done.
    pub(crate) waited: u64,
    /// Waits of this stream are dropped: a fence that somebody forgot.
    pub(crate) deaf: Option<Stream>,
    pub(crate) used_bytes_max: u64,
    bytes_of: HashMap<u64, u64>,
}

/// One device behind any number of handles.
#[derive(Debug)]
pub(crate) struct Watched<D = HostDevice>(Rc<RefCell<State<D>>>);

impl<D> Clone for Watched<D> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<D> Watched<D> {
    pub(crate) fn new(host: D) -> Self {
        Self(Rc::new(RefCell::new(State {
            host,
            memories: Vec::new(),
            copies: Vec::new(),
            enqueued: 0,
            waited: 0,
            deaf: None,
            used_bytes_max: 0,
            bytes_of: HashMap::new(),
        })))
    }

    pub(crate) fn get(&self) -> Ref<'_, State<D>> {
        self.0.borrow()
    }

    pub(crate) fn get_mut(&self) -> RefMut<'_, State<D>> {
        self.0.borrow_mut()
    }

    fn enqueue(&self) -> RefMut<'_, State<D>> {
        let mut state = self.get_mut();
        state.enqueued += 1;
        state
    }

    fn await_it(&self) -> RefMut<'_, State<D>> {
        let mut state = self.get_mut();
        state.waited += 1;
        state
    }
}

// SAFETY: every wait for work to be done is the device's own.
unsafe impl<D: Device> Device for Watched<D> {
    fn name(&self) -> String {
        self.get().host.name()
    }

    fn free_bytes(&self) -> Option<u64> {
        self.get().host.free_bytes()
    }

    fn allocate(&mut self, bytes: u64, alignment: u64) -> Result<Memory, DeviceError> {
        let mut state = self.get_mut();
        let memory = state.host.allocate(bytes, alignment)?;
        state.memories.push(memory);
        state.bytes_of.insert(memory.0, bytes);
        state.used_bytes_max = state.used_bytes_max.max(state.bytes_of.values().sum());
        Ok(memory)
    }

    unsafe fn adopt(&mut self, address: u64, bytes: u64) -> Result<Memory, DeviceError> {
        let mut state = self.get_mut();
        // SAFETY: our caller made the promise that is asked for here.
        let memory = unsafe { state.host.adopt(address, bytes) }?;
        state.memories.push(memory);
        Ok(memory)
    }

    fn free(&mut self, memory: Memory) {
        let mut state = self.await_it();
        state.bytes_of.remove(&memory.0);
        state.host.free(memory);
    }

    fn address(&self, memory: Memory) -> Result<u64, DeviceError> {
        self.get().host.address(memory)
    }

    unsafe fn register(&mut self, base: *const u8, bytes: u64, access: HostAccess) -> Result<(), DeviceError> {
        // SAFETY: our caller made the promise that is asked for here.
        unsafe { self.get_mut().host.register(base, bytes, access) }
    }

    fn can_read(&mut self, base: *const u8, bytes: u64) -> Result<bool, DeviceError> {
        self.get_mut().host.can_read(base, bytes)
    }

    fn unregister(&mut self, base: *const u8) -> Result<(), DeviceError> {
        self.await_it().host.unregister(base)
    }

    fn create_stream(&mut self) -> Result<Stream, DeviceError> {
        self.get_mut().host.create_stream()
    }

    fn destroy_stream(&mut self, stream: Stream) {
        self.get_mut().host.destroy_stream(stream);
    }

    fn check_stream(&self, stream: Stream) -> Result<(), DeviceError> {
        self.get().host.check_stream(stream)
    }

    fn create_event(&mut self) -> Result<Event, DeviceError> {
        self.get_mut().host.create_event()
    }

    fn destroy_event(&mut self, event: Event) {
        self.get_mut().host.destroy_event(event);
    }

    fn record(&mut self, event: Event, stream: Stream) -> Result<(), DeviceError> {
        self.enqueue().host.record(event, stream)
    }

    fn wait(&mut self, stream: Stream, event: Event) -> Result<(), DeviceError> {
        let mut state = self.enqueue();
        if state.deaf == Some(stream) { Ok(()) } else { state.host.wait(stream, event) }
    }

    fn has_passed(&mut self, event: Event) -> Result<bool, DeviceError> {
        self.get_mut().host.has_passed(event)
    }

    fn synchronize(&mut self, stream: Stream) -> Result<(), DeviceError> {
        self.await_it().host.synchronize(stream)
    }

    fn synchronize_all(&mut self) -> Result<(), DeviceError> {
        self.await_it().host.synchronize_all()
    }

    fn check(&mut self) -> Result<(), DeviceError> {
        self.get_mut().host.check()
    }

    unsafe fn copy_rows(&mut self, stream: Stream, copy: &RowCopy) -> Result<(), DeviceError> {
        let mut state = self.enqueue();
        state.copies.push((stream, *copy));
        // SAFETY: our caller made the promise that is asked for here.
        unsafe { state.host.copy_rows(stream, copy) }
    }

    unsafe fn copy_all(&mut self, stream: Stream, copies: &[RowCopy]) -> Result<(), CopyError> {
        // What fails at a copy goes no further, so the copies are noted as far as they were tried.
        let mut state = self.get_mut();
        // SAFETY: our caller made the promise that is asked for here.
        let copied = unsafe { state.host.copy_all(stream, copies) };
        let tried = copied.as_ref().map_or_else(|error| error.index + 1, |()| copies.len());
        state.enqueued += tried as u64;
        state.copies.extend(copies[..tried].iter().map(|copy| (stream, *copy)));
        copied
    }

    fn clear_rows(
        &mut self,
        stream: Stream,
        target: &DeviceSpan,
        row_bytes: u64,
        row_count: u64,
    ) -> Result<(), DeviceError> {
        self.enqueue().host.clear_rows(stream, target, row_bytes, row_count)
    }

    unsafe fn wait_for_host(&mut self, stream: Stream, word: *const AtomicU32, value: u32) -> Result<(), DeviceError> {
        // SAFETY: our caller made the promise that is asked for here.
        unsafe { self.enqueue().host.wait_for_host(stream, word, value) }
    }

    unsafe fn tell_host(&mut self, stream: Stream, word: *const AtomicU32, value: u32) -> Result<(), DeviceError> {
        // SAFETY: our caller made the promise that is asked for here.
        unsafe { self.enqueue().host.tell_host(stream, word, value) }
    }

    fn read(&mut self, memory: Memory, offset: u64, target: &mut [u8]) -> Result<(), DeviceError> {
        self.await_it().host.read(memory, offset, target)
    }

    fn write(&mut self, memory: Memory, offset: u64, source: &[u8]) -> Result<(), DeviceError> {
        self.await_it().host.write(memory, offset, source)
    }

    fn kernel_address(&mut self, base: *const u8, bytes: u64) -> Result<u64, DeviceError> {
        self.get_mut().host.kernel_address(base, bytes)
    }

    fn prepare_kernels(&mut self) -> Result<(), DeviceError> {
        self.get_mut().host.prepare_kernels()
    }

    unsafe fn launch(&mut self, stream: Stream, launch: &Launch<'_>) -> Result<(), DeviceError> {
        // SAFETY: our caller made the promise that is asked for here.
        unsafe { self.enqueue().host.launch(stream, launch) }
    }
}
