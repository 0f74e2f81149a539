//! What the trait asks for, call by call.
//!
//! *Unsafe*, relying on the promises that [`Device`] asks of its callers, and on handles that are passed in being the
//! driver's and alive.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use cudarc::driver::sys::{CUevent, CUmemorytype, CUpointer_attribute};

use super::driver::Calls;
use super::words::WordTask;
use super::{Block, CudaDevice, EVENT_DISABLE_TIMING, STREAM_NON_BLOCKING, enter, handle_of};
use crate::{CopyError, Device, DeviceError, DeviceSpan, Event, HostAccess, Launch, Memory, RowCopy, Stream};

/// Alignment of what the driver allocates, by its manual.
const ALLOCATION_ALIGNMENT: u64 = 256;

/// What the driver's manual calls `CU_STREAM_LEGACY`; 0 is the same.
const LEGACY_STREAM: u64 = 1;
/// `CU_STREAM_PER_THREAD`.
const PER_THREAD_STREAM: u64 = 2;

const OUT_OF_MEMORY: i32 = 2;
const NOT_READY: i32 = 600;
const REGISTER_PORTABLE: u32 = 1;
const REGISTER_DEVICE_MAP: u32 = 2;
const REGISTER_READ_ONLY: u32 = 8;

impl CudaDevice {
    /// What the driver says of an address: `None` if it does not know it.
    fn pointer_attribute(&self, calls: &Calls, attribute: CUpointer_attribute, address: u64) -> Option<u64> {
        let mut value = 0_u64;
        // SAFETY: the driver writes at most eight bytes for the attributes that are asked for here.
        let code = unsafe { (calls.pointer_attribute)((&raw mut value).cast(), attribute as c_int, address) };
        (code == 0).then_some(value)
    }
}

// SAFETY: `synchronize` is the driver's own for the stream; `synchronize_all`, `free`, `unregister`, `read` and
// `write` wait for the whole context first. A context in which something failed does no more work.
unsafe impl Device for CudaDevice {
    fn name(&self) -> String {
        self.facts.name.clone()
    }

    fn free_bytes(&self) -> Option<u64> {
        let _entered = enter(&self.driver, self.context).ok()?;
        self.memory_info(&self.driver.calls)
    }

    fn allocate(&mut self, bytes: u64, alignment: u64) -> Result<Memory, DeviceError> {
        self.with(|device, calls| {
            let extra = if alignment > ALLOCATION_ALIGNMENT { alignment } else { 0 };
            let mut allocation = 0;
            let length = bytes.saturating_add(extra).max(1) as usize;
            // SAFETY: a context is current; the driver writes one address.
            let code = unsafe { (calls.memory_allocate)(&raw mut allocation, length) };
            if code == OUT_OF_MEMORY {
                let free_bytes = device.memory_info(calls).unwrap_or(0);
                return Err(DeviceError::OutOfMemory { wanted_bytes: bytes, free_bytes });
            }
            device.done("allocation", bytes, code)?;
            let address = if extra > 0 { allocation.next_multiple_of(alignment) } else { allocation };
            if let Err(error) = device.zero(calls, address, bytes) {
                // SAFETY: the memory was allocated above and is used by nothing.
                unsafe { (calls.memory_free)(allocation) };
                return Err(error);
            }
            device.blocks.insert(address, Block { bytes, allocation: Some(allocation) });
            Ok(Memory(address))
        })
    }

    unsafe fn adopt(&mut self, address: u64, bytes: u64) -> Result<Memory, DeviceError> {
        self.with(|device, calls| {
            let mut others = device.blocks.range(..address.saturating_add(bytes.max(1))).rev();
            if others.next().is_some_and(|(&first, block)| first + block.bytes.max(1) > address) {
                let reason = format!("the memory at {address:#x} is in use here");
                return Err(DeviceError::Failed { operation: "adoption", bytes, reason });
            }
            device.zero(calls, address, bytes)?;
            device.blocks.insert(address, Block { bytes, allocation: None });
            Ok(Memory(address))
        })
    }

    fn free(&mut self, memory: Memory) {
        let Some(block) = self.blocks.remove(&memory.0) else { return };
        let driver = Arc::clone(&self.driver);
        let outcome = enter(&driver, self.context).and_then(|_entered| {
            // SAFETY: a context is current.
            let waited = self.done("free", block.bytes, unsafe { (driver.calls.context_synchronize)() });
            let Some(allocation) = block.allocation else { return waited };
            // SAFETY: the memory is ours, and nothing uses it any more.
            waited.and(self.done("free", block.bytes, unsafe { (driver.calls.memory_free)(allocation) }))
        });
        self.keep(outcome);
    }

    fn address(&self, memory: Memory) -> Result<u64, DeviceError> {
        let known = self.blocks.contains_key(&memory.0).then_some(memory.0);
        known.ok_or(DeviceError::UnknownHandle { what: "memory", handle: memory.0 })
    }

    unsafe fn register(&mut self, base: *const u8, bytes: u64, access: HostAccess) -> Result<(), DeviceError> {
        let address = base.addr() as u64;
        if let Some((other, other_bytes)) = self.ranges.overlap(address, bytes) {
            let reason = format!("{other_bytes} bytes at {other:#x} are registered, {address:#x} is asked for");
            return Err(DeviceError::Failed { operation: "register", bytes, reason });
        }
        self.with(|device, calls| {
            let read_only = match access {
                HostAccess::ReadWrite => 0,
                HostAccess::ReadOnly if device.facts.registers_read_only => REGISTER_READ_ONLY,
                HostAccess::ReadOnly => {
                    let reason = "this device does not register read-only memory".to_owned();
                    return Err(DeviceError::Failed { operation: "register", bytes, reason });
                }
            };
            let flags = REGISTER_PORTABLE | REGISTER_DEVICE_MAP | read_only;
            // SAFETY: the memory is mapped until it is unregistered, by our caller's promise.
            let code = unsafe { (calls.host_register)(base.cast_mut().cast(), bytes as usize, flags) };
            device.done("register", bytes, code)?;
            device.ranges.add(address, bytes);
            Ok(())
        })
    }

    fn can_read(&mut self, base: *const u8, bytes: u64) -> Result<bool, DeviceError> {
        let first = base.addr() as u64;
        let Some(end) = first.checked_add(bytes) else { return Ok(false) };
        // What the driver says of an address after a failure is no answer.
        self.check()?;
        self.with(|device, calls| {
            let mut at = first;
            while at < end {
                if let Some(left) = device.ranges.left_of_ours(at) {
                    at += left;
                    continue;
                }
                let ask = |attribute| device.pointer_attribute(calls, attribute, at);
                let kind = ask(CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
                let is_host = kind.is_some_and(|kind| kind as u32 == CUmemorytype::CU_MEMORYTYPE_HOST as u32);
                let start = ask(CUpointer_attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR);
                let length = ask(CUpointer_attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE);
                let range = start.zip(length).filter(|_| is_host);
                // A driver may round to pages what was registered, so what is ours ends the range.
                let range = range.map(|(start, length)| device.ranges.between_ours(at, start, length));
                match range.filter(|&(start, past)| start <= at && at < past) {
                    Some((start, past)) => {
                        device.ranges.add_foreign(start, past - start);
                        at = past;
                    }
                    None => return Ok(false),
                }
            }
            Ok(true)
        })
    }

    fn unregister(&mut self, base: *const u8) -> Result<(), DeviceError> {
        let address = base.addr() as u64;
        let Some(bytes) = self.ranges.remove(address) else {
            return Err(DeviceError::UnknownHandle { what: "registration", handle: address });
        };
        let driver = Arc::clone(&self.driver);
        let _entered = enter(&driver, self.context)?;
        // SAFETY: a context is current.
        let waited = self.done("unregister", bytes, unsafe { (driver.calls.context_synchronize)() });
        // SAFETY: the range was registered here, and nothing reads it any more.
        let code = unsafe { (driver.calls.host_unregister)(base.cast_mut().cast()) };
        waited.and(self.done("unregister", bytes, code)).and(self.take_late())
    }

    fn reserve(&mut self, copy_count: usize) {
        self.batches.reserve(copy_count);
    }

    fn waits_for_host(&self) -> bool {
        self.facts.waits_for_words
    }

    fn create_stream(&mut self) -> Result<Stream, DeviceError> {
        self.with(|device, calls| {
            let mut handle = std::ptr::null_mut();
            // SAFETY: a context is current; the driver writes one handle.
            device.done("stream", 0, unsafe { (calls.stream_create)(&raw mut handle, STREAM_NON_BLOCKING) })?;
            device.streams.insert(handle as u64);
            Ok(Stream(handle as u64))
        })
    }

    fn destroy_stream(&mut self, stream: Stream) {
        if self.streams.remove(&stream.0) {
            let driver = Arc::clone(&self.driver);
            let outcome = enter(&driver, self.context).and_then(|_entered| {
                // SAFETY: the stream was made here and not destroyed before; the driver finishes its work.
                self.done("stream", 0, unsafe { (driver.calls.stream_destroy)(handle_of(stream)) })
            });
            self.keep(outcome);
        }
    }

    fn check_stream(&self, stream: Stream) -> Result<(), DeviceError> {
        if stream.0 == PER_THREAD_STREAM {
            let reason = "the default stream of each thread is another one on every thread".to_owned();
            return Err(DeviceError::Failed { operation: "stream", bytes: 0, reason });
        }
        let calls = &self.driver.calls;
        let _entered = enter(&self.driver, self.context)?;
        let mut context = std::ptr::null_mut();
        // SAFETY: the stream is the driver's, by our caller's word; the driver writes one handle.
        let code = unsafe { (calls.stream_context)(handle_of(stream), &raw mut context) };
        self.done("stream", 0, code)?;
        if context != self.context {
            return Err(DeviceError::UnknownHandle { what: "stream", handle: stream.0 });
        }
        let mut capturing = 0;
        // SAFETY: as above, for a number.
        let code = unsafe { (calls.stream_capturing)(handle_of(stream), &raw mut capturing) };
        self.done("stream", 0, code)?;
        if capturing == 0 { Ok(()) } else { Err(DeviceError::Capturing { stream: stream.0 }) }
    }

    fn create_event(&mut self) -> Result<Event, DeviceError> {
        self.with(|device, calls| {
            let mut handle = std::ptr::null_mut();
            // SAFETY: a context is current; the driver writes one handle.
            device.done("event", 0, unsafe { (calls.event_create)(&raw mut handle, EVENT_DISABLE_TIMING) })?;
            device.events.insert(handle as u64);
            Ok(Event(handle as u64))
        })
    }

    fn destroy_event(&mut self, event: Event) {
        if self.events.remove(&event.0) {
            let driver = Arc::clone(&self.driver);
            let outcome = enter(&driver, self.context).and_then(|_entered| {
                // SAFETY: the event was made here and not destroyed before; the driver keeps waits for it.
                self.done("event", 0, unsafe { (driver.calls.event_destroy)(event.0 as CUevent) })
            });
            self.keep(outcome);
        }
    }

    fn record(&mut self, event: Event, stream: Stream) -> Result<(), DeviceError> {
        self.with(|device, calls| {
            // SAFETY: both are the driver's, by our caller's word.
            let code = unsafe { (calls.event_record)(event.0 as CUevent, handle_of(stream)) };
            device.done("record", 0, code)
        })
    }

    fn wait(&mut self, stream: Stream, event: Event) -> Result<(), DeviceError> {
        self.with(|device, calls| {
            // SAFETY: both are the driver's, by our caller's word.
            let code = unsafe { (calls.stream_wait)(handle_of(stream), event.0 as CUevent, 0) };
            device.done("wait", 0, code)
        })
    }

    fn has_passed(&mut self, event: Event) -> Result<bool, DeviceError> {
        self.with(|device, calls| {
            // SAFETY: the event is the driver's, by our caller's word.
            match unsafe { (calls.event_query)(event.0 as CUevent) } {
                NOT_READY => Ok(false),
                code => device.done("event", 0, code).map(|()| true),
            }
        })
    }

    fn synchronize(&mut self, stream: Stream) -> Result<(), DeviceError> {
        let driver = Arc::clone(&self.driver);
        let _entered = enter(&driver, self.context)?;
        // SAFETY: the stream is the driver's, by our caller's word.
        let code = unsafe { (driver.calls.stream_synchronize)(handle_of(stream)) };
        self.done("synchronisation", 0, code).and(self.take_late())
    }

    fn synchronize_all(&mut self) -> Result<(), DeviceError> {
        let driver = Arc::clone(&self.driver);
        let _entered = enter(&driver, self.context)?;
        // SAFETY: a context is current.
        let code = unsafe { (driver.calls.context_synchronize)() };
        self.done("synchronisation", 0, code).and(self.take_late())
    }

    fn check(&mut self) -> Result<(), DeviceError> {
        self.with(|device, calls| {
            // SAFETY: the stream is ours and alive.
            match unsafe { (calls.stream_query)(device.own) } {
                NOT_READY => Ok(()),
                code => device.done("earlier operation", 0, code),
            }
        })
    }

    unsafe fn copy_rows(&mut self, stream: Stream, copy: &RowCopy) -> Result<(), DeviceError> {
        self.with(|device, calls| device.copy_one(calls, stream, copy))
    }

    unsafe fn copy_all(&mut self, stream: Stream, copies: &[RowCopy]) -> Result<(), CopyError> {
        let at = |index| move |source| CopyError { index, source };
        self.take_late().map_err(at(0))?;
        let driver = Arc::clone(&self.driver);
        let _entered = enter(&driver, self.context).map_err(at(0))?;
        // The default stream takes no batches, under neither of its names.
        if copies.len() < 2 || stream.0 <= LEGACY_STREAM || !self.batches.are_on() {
            for (index, copy) in copies.iter().enumerate() {
                self.copy_one(&driver.calls, stream, copy).map_err(at(index))?;
            }
            return Ok(());
        }
        let mut batches = std::mem::take(&mut self.batches);
        let copied = batches.copy_all(self, &driver, stream, copies);
        self.batches = batches;
        copied
    }

    fn clear_rows(
        &mut self,
        stream: Stream,
        target: &DeviceSpan,
        row_bytes: u64,
        row_count: u64,
    ) -> Result<(), DeviceError> {
        let stride = target.stride;
        self.with(|device, calls| {
            let address = device.locate("clear", target, row_bytes, row_count)?;
            let bytes = row_bytes * row_count;
            if bytes == 0 {
                return Ok(());
            }
            if row_count == 1 || stride == row_bytes {
                // SAFETY: the bytes lie in memory of ours (`locate`).
                let code = unsafe { (calls.fill)(address, 0, bytes as usize, handle_of(stream)) };
                return device.done("clear", bytes, code);
            }
            if (row_bytes..=device.max_pitch).contains(&stride) {
                let (stride, width, height) = (stride as usize, row_bytes as usize, row_count as usize);
                // SAFETY: as above.
                let code = unsafe { (calls.fill_rows)(address, stride, 0, width, height, handle_of(stream)) };
                return device.done("clear", bytes, code);
            }
            for row in 0..row_count {
                let address = address + row * stride;
                // SAFETY: as above.
                let code = unsafe { (calls.fill)(address, 0, row_bytes as usize, handle_of(stream)) };
                device.done("clear", row_bytes, code)?;
            }
            Ok(())
        })
    }

    unsafe fn wait_for_host(&mut self, stream: Stream, word: *const AtomicU32, value: u32) -> Result<(), DeviceError> {
        self.with(|device, calls| device.wait_for_word(calls, stream, WordTask { word, value }))
    }

    unsafe fn tell_host(&mut self, stream: Stream, word: *const AtomicU32, value: u32) -> Result<(), DeviceError> {
        self.with(|device, calls| device.raise_word(calls, stream, WordTask { word, value }))
    }

    fn read(&mut self, memory: Memory, offset: u64, target: &mut [u8]) -> Result<(), DeviceError> {
        self.synchronize_all()?;
        let bytes = target.len() as u64;
        let address = self.locate("read", &DeviceSpan { memory, offset, stride: bytes }, bytes, 1)?;
        if target.is_empty() {
            return Ok(());
        }
        self.with(|device, calls| {
            // SAFETY: the bytes lie in memory of ours, which nothing writes, and the target is borrowed for writing.
            let code = unsafe { (calls.copy_to_host_at_once)(target.as_mut_ptr().cast(), address, target.len()) };
            device.done("read", bytes, code)
        })
    }

    fn write(&mut self, memory: Memory, offset: u64, source: &[u8]) -> Result<(), DeviceError> {
        self.synchronize_all()?;
        let bytes = source.len() as u64;
        let address = self.locate("write", &DeviceSpan { memory, offset, stride: bytes }, bytes, 1)?;
        if source.is_empty() {
            return Ok(());
        }
        self.with(|device, calls| {
            // SAFETY: the bytes lie in memory of ours, which nothing uses, and the source is borrowed for reading.
            let code = unsafe { (calls.copy_to_device_at_once)(address, source.as_ptr().cast(), source.len()) };
            device.done("write", bytes, code)?;
            // By the driver's manual, a copy from memory that is not pinned may still be on its way when it returns.
            // SAFETY: the default stream is always there.
            device.done("write", bytes, unsafe { (calls.stream_synchronize)(handle_of(Stream::DEFAULT)) })
        })
    }

    fn kernel_address(&mut self, base: *const u8, bytes: u64) -> Result<u64, DeviceError> {
        if !self.can_read(base, bytes)? {
            let reason = format!("the host memory at {:#x} is not registered", base.addr());
            return Err(DeviceError::Failed { operation: "kernel address", bytes, reason });
        }
        self.with(|device, calls| device.mapped_address(calls, base.addr() as u64, bytes))
    }

    fn prepare_kernels(&mut self) -> Result<(), DeviceError> {
        if self.kernels.is_none() {
            self.kernels = Some(self.with(|device, calls| device.load_kernels(calls))?);
        }
        Ok(())
    }

    unsafe fn launch(&mut self, stream: Stream, launch: &Launch<'_>) -> Result<(), DeviceError> {
        // SAFETY: our caller made the promise that is asked for here.
        self.with(|device, _| unsafe { device.launch_kernel(stream, launch) })
    }
}
