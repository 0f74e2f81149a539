//! A device that only pins, and minds how: what is registered, what was ended, and when to refuse.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU32;

use ftcache_transfer::{Device, DeviceError, DeviceSpan, Event, HostAccess, Memory, RowCopy, Stream};

/// Pins by a table.
#[derive(Debug, Default)]
pub(crate) struct PinningDevice {
    /// Bytes by address.
    pub(crate) registered: BTreeMap<usize, u64>,
    /// The access of every registration, in order.
    pub(crate) accesses: Vec<HostAccess>,
    /// Registrations that were accepted, and those that were ended.
    pub(crate) begun_count: usize,
    pub(crate) ended_count: usize,
    /// Most bytes ever registered at once, and in one registration.
    pub(crate) bytes_max: u64,
    pub(crate) call_bytes_max: u64,
    /// The first registration to be refused, counted from zero, and all after it.
    pub(crate) refuse_from: Option<usize>,
    /// The registration to be refused alone.
    pub(crate) refuse_once: Option<usize>,
    /// More than this many bytes are refused, in all or in one call.
    pub(crate) limit_bytes: Option<u64>,
    pub(crate) call_limit_bytes: Option<u64>,
    /// Calls of `register`.
    pub(crate) call_count: usize,
    /// Fails at the end of this registration, counted from zero.
    pub(crate) fail_end: Option<usize>,
    /// Work of before has failed: said by the next call that can say anything, as drivers do.
    pub(crate) late: Option<DeviceError>,
}

impl PinningDevice {
    pub(crate) fn registered_bytes(&self) -> u64 {
        self.registered.values().sum()
    }

    /// Everything that was begun was ended, once.
    pub(crate) fn assert_clear(&self) {
        assert!(self.registered.is_empty(), "{:?} are left", self.registered);
        assert_eq!(self.begun_count, self.ended_count);
    }
}

fn nothing<T>() -> Result<T, DeviceError> {
    Err(DeviceError::Failed { operation: "anything but pinning", bytes: 0, reason: "not this device".to_owned() })
}

// SAFETY: nothing is ever enqueued, so there is nothing to wait for.
unsafe impl Device for PinningDevice {
    unsafe fn register(&mut self, base: *const u8, bytes: u64, access: HostAccess) -> Result<(), DeviceError> {
        let call = self.call_count;
        self.call_count += 1;
        assert!(bytes > 0);
        if let Some(late) = self.late.take() {
            return Err(late);
        }
        let address = base.addr();
        let before = self.registered.range(..address + bytes as usize).next_back();
        assert!(before.is_none_or(|(&base, &bytes)| base + bytes as usize <= address), "registered twice");
        let is_refused = self.refuse_from.is_some_and(|from| call >= from)
            || self.refuse_once == Some(call)
            || self.limit_bytes.is_some_and(|limit| self.registered_bytes() + bytes > limit)
            || self.call_limit_bytes.is_some_and(|limit| bytes > limit);
        if is_refused {
            return Err(DeviceError::Failed { operation: "registration", bytes, reason: "refused".to_owned() });
        }
        self.registered.insert(address, bytes);
        self.accesses.push(access);
        self.begun_count += 1;
        self.bytes_max = self.bytes_max.max(self.registered_bytes());
        self.call_bytes_max = self.call_bytes_max.max(bytes);
        Ok(())
    }

    fn can_read(&mut self, _: *const u8, _: u64) -> Result<bool, DeviceError> {
        nothing()
    }

    fn unregister(&mut self, base: *const u8) -> Result<(), DeviceError> {
        let bytes = self.registered.remove(&base.addr()).expect("ended once");
        // The system answers for every page that is mapped, so this says that it is still there.
        // SAFETY: whoever registered the memory keeps it mapped until now, and one byte of it is read.
        let _ = unsafe { std::ptr::read_volatile(base.wrapping_add(bytes as usize - 1)) };
        self.ended_count += 1;
        match self.fail_end == Some(self.ended_count - 1) {
            true => Err(DeviceError::Failed { operation: "end of a registration", bytes, reason: "broken".to_owned() }),
            false => Ok(()),
        }
    }

    fn name(&self) -> String {
        "pins only".to_owned()
    }

    fn free_bytes(&self) -> Option<u64> {
        None
    }

    fn allocate(&mut self, _: u64, _: u64) -> Result<Memory, DeviceError> {
        nothing()
    }

    unsafe fn adopt(&mut self, _: u64, _: u64) -> Result<Memory, DeviceError> {
        nothing()
    }

    fn free(&mut self, _: Memory) {}

    fn address(&self, _: Memory) -> Result<u64, DeviceError> {
        nothing()
    }

    fn create_stream(&mut self) -> Result<Stream, DeviceError> {
        nothing()
    }

    fn destroy_stream(&mut self, _: Stream) {}

    fn check_stream(&self, _: Stream) -> Result<(), DeviceError> {
        nothing()
    }

    fn create_event(&mut self) -> Result<Event, DeviceError> {
        nothing()
    }

    fn destroy_event(&mut self, _: Event) {}

    fn record(&mut self, _: Event, _: Stream) -> Result<(), DeviceError> {
        nothing()
    }

    fn wait(&mut self, _: Stream, _: Event) -> Result<(), DeviceError> {
        nothing()
    }

    fn has_passed(&mut self, _: Event) -> Result<bool, DeviceError> {
        nothing()
    }

    fn synchronize(&mut self, _: Stream) -> Result<(), DeviceError> {
        nothing()
    }

    fn synchronize_all(&mut self) -> Result<(), DeviceError> {
        nothing()
    }

    fn check(&mut self) -> Result<(), DeviceError> {
        self.late.take().map_or(Ok(()), Err)
    }

    unsafe fn copy_rows(&mut self, _: Stream, _: &RowCopy) -> Result<(), DeviceError> {
        nothing()
    }

    fn clear_rows(&mut self, _: Stream, _: &DeviceSpan, _: u64, _: u64) -> Result<(), DeviceError> {
        nothing()
    }

    unsafe fn wait_for_host(&mut self, _: Stream, _: *const AtomicU32, _: u32) -> Result<(), DeviceError> {
        nothing()
    }

    unsafe fn tell_host(&mut self, _: Stream, _: *const AtomicU32, _: u32) -> Result<(), DeviceError> {
        nothing()
    }

    fn read(&mut self, _: Memory, _: u64, _: &mut [u8]) -> Result<(), DeviceError> {
        nothing()
    }

    fn write(&mut self, _: Memory, _: u64, _: &[u8]) -> Result<(), DeviceError> {
        nothing()
    }
}
