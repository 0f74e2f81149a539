//! One of the devices there are, chosen at run time: for a caller that cannot be generic over them, as the C ABI
//! cannot.
//!
//! *Unsafe* only in handing each call on, promises and all.

use std::sync::atomic::AtomicU32;

#[cfg(feature = "cuda")]
use crate::CudaDevice;
use crate::{
    CopyError, Device, DeviceError, DeviceSpan, Event, HostAccess, HostDevice, Launch, Memory, RowCopy, Stream,
};

/// A device of either kind.
#[derive(Debug)]
pub enum AnyDevice {
    /// Ordinary memory.
    Host(Box<HostDevice>),
    /// A device of a CUDA driver.
    #[cfg(feature = "cuda")]
    Cuda(Box<CudaDevice>),
}

impl AnyDevice {
    /// The CUDA device, if it is one.
    #[cfg(feature = "cuda")]
    pub fn cuda(&self) -> Option<&CudaDevice> {
        match self {
            Self::Host(_) => None,
            Self::Cuda(device) => Some(device),
        }
    }
}

impl From<HostDevice> for AnyDevice {
    fn from(device: HostDevice) -> Self {
        Self::Host(Box::new(device))
    }
}

#[cfg(feature = "cuda")]
impl From<CudaDevice> for AnyDevice {
    fn from(device: CudaDevice) -> Self {
        Self::Cuda(Box::new(device))
    }
}

/// A call on whichever device it is.
macro_rules! each {
    ($any:expr, $device:ident => $call:expr) => {
        match $any {
            Self::Host($device) => $call,
            #[cfg(feature = "cuda")]
            Self::Cuda($device) => $call,
        }
    };
}

// SAFETY: both devices' waits are real, by their own words, and no call is answered here.
unsafe impl Device for AnyDevice {
    fn name(&self) -> String {
        each!(self, device => device.name())
    }

    fn free_bytes(&self) -> Option<u64> {
        each!(self, device => device.free_bytes())
    }

    fn allocate(&mut self, bytes: u64, alignment: u64) -> Result<Memory, DeviceError> {
        each!(self, device => device.allocate(bytes, alignment))
    }

    unsafe fn adopt(&mut self, address: u64, bytes: u64) -> Result<Memory, DeviceError> {
        // SAFETY: our caller's promise.
        each!(self, device => unsafe { device.adopt(address, bytes) })
    }

    fn free(&mut self, memory: Memory) {
        each!(self, device => device.free(memory));
    }

    fn address(&self, memory: Memory) -> Result<u64, DeviceError> {
        each!(self, device => device.address(memory))
    }

    unsafe fn register(&mut self, base: *const u8, bytes: u64, access: HostAccess) -> Result<(), DeviceError> {
        // SAFETY: our caller's promise.
        each!(self, device => unsafe { device.register(base, bytes, access) })
    }

    fn can_read(&mut self, base: *const u8, bytes: u64) -> Result<bool, DeviceError> {
        each!(self, device => device.can_read(base, bytes))
    }

    fn unregister(&mut self, base: *const u8) -> Result<(), DeviceError> {
        each!(self, device => device.unregister(base))
    }

    fn create_stream(&mut self) -> Result<Stream, DeviceError> {
        each!(self, device => device.create_stream())
    }

    fn destroy_stream(&mut self, stream: Stream) {
        each!(self, device => device.destroy_stream(stream));
    }

    fn check_stream(&self, stream: Stream) -> Result<(), DeviceError> {
        each!(self, device => device.check_stream(stream))
    }

    fn create_event(&mut self) -> Result<Event, DeviceError> {
        each!(self, device => device.create_event())
    }

    fn destroy_event(&mut self, event: Event) {
        each!(self, device => device.destroy_event(event));
    }

    fn record(&mut self, event: Event, stream: Stream) -> Result<(), DeviceError> {
        each!(self, device => device.record(event, stream))
    }

    fn wait(&mut self, stream: Stream, event: Event) -> Result<(), DeviceError> {
        each!(self, device => device.wait(stream, event))
    }

    fn has_passed(&mut self, event: Event) -> Result<bool, DeviceError> {
        each!(self, device => device.has_passed(event))
    }

    fn synchronize(&mut self, stream: Stream) -> Result<(), DeviceError> {
        each!(self, device => device.synchronize(stream))
    }

    fn synchronize_all(&mut self) -> Result<(), DeviceError> {
        each!(self, device => device.synchronize_all())
    }

    fn check(&mut self) -> Result<(), DeviceError> {
        each!(self, device => device.check())
    }

    fn reserve(&mut self, copy_count: usize) {
        each!(self, device => device.reserve(copy_count));
    }

    fn waits_for_host(&self) -> bool {
        each!(self, device => device.waits_for_host())
    }

    unsafe fn copy_rows(&mut self, stream: Stream, copy: &RowCopy) -> Result<(), DeviceError> {
        // SAFETY: our caller's promise.
        each!(self, device => unsafe { device.copy_rows(stream, copy) })
    }

    unsafe fn copy_all(&mut self, stream: Stream, copies: &[RowCopy]) -> Result<(), CopyError> {
        // SAFETY: our caller's promise.
        each!(self, device => unsafe { device.copy_all(stream, copies) })
    }

    fn clear_rows(
        &mut self,
        stream: Stream,
        target: &DeviceSpan,
        row_bytes: u64,
        row_count: u64,
    ) -> Result<(), DeviceError> {
        each!(self, device => device.clear_rows(stream, target, row_bytes, row_count))
    }

    unsafe fn wait_for_host(&mut self, stream: Stream, word: *const AtomicU32, value: u32) -> Result<(), DeviceError> {
        // SAFETY: our caller's promise.
        each!(self, device => unsafe { device.wait_for_host(stream, word, value) })
    }

    unsafe fn tell_host(&mut self, stream: Stream, word: *const AtomicU32, value: u32) -> Result<(), DeviceError> {
        // SAFETY: our caller's promise.
        each!(self, device => unsafe { device.tell_host(stream, word, value) })
    }

    fn read(&mut self, memory: Memory, offset: u64, target: &mut [u8]) -> Result<(), DeviceError> {
        each!(self, device => device.read(memory, offset, target))
    }

    fn write(&mut self, memory: Memory, offset: u64, source: &[u8]) -> Result<(), DeviceError> {
        each!(self, device => device.write(memory, offset, source))
    }

    fn kernel_address(&mut self, base: *const u8, bytes: u64) -> Result<u64, DeviceError> {
        each!(self, device => device.kernel_address(base, bytes))
    }

    fn prepare_kernels(&mut self) -> Result<(), DeviceError> {
        each!(self, device => device.prepare_kernels())
    }

    unsafe fn launch(&mut self, stream: Stream, launch: &Launch<'_>) -> Result<(), DeviceError> {
        // SAFETY: our caller's promise.
        each!(self, device => unsafe { device.launch(stream, launch) })
    }
}
