//! What the trait asks for, call by call.
//!
//! *Unsafe*, relying on the promises that [`Device`] asks of its callers.

use std::alloc::{Layout, alloc_zeroed};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

use super::{Block, HostDevice, Operation, Queue};
use crate::{Device, DeviceError, DeviceSpan, Event, HostAccess, Memory, RowCopy, Source, Stream};

// SAFETY: a copy reads its source when it is taken from its stream's queue and never again. `synchronize` returns
// with that stream's queue empty, `synchronize_all`, `free`, `read` and `write` with all of them.
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
        // Inserted, it could make the map grow, though it is there.
        *self.events.get_mut(&event.0).expect("it was looked for") = record;
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

    fn write(&mut self, memory: Memory, offset: u64, source: &[u8]) -> Result<(), DeviceError> {
        self.drain_all();
        let unknown = DeviceError::UnknownHandle { what: "memory", handle: memory.0 };
        let target = self.memories.get_mut(&memory.0).ok_or(unknown)?.memory_mut();
        let (bytes, memory_bytes) = (source.len() as u64, target.len() as u64);
        if offset.saturating_add(bytes) > memory_bytes {
            return Err(DeviceError::OutOfBounds { operation: "write", offset, bytes, memory_bytes });
        }
        target[offset as usize..][..source.len()].copy_from_slice(source);
        Ok(())
    }
}
