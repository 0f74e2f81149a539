//! Pinned host memory of the driver's own, for the moment of a probe or a measurement.

use std::sync::Arc;

use super::driver::CudaDriver;

const PORTABLE: u32 = 1;

/// Pinned bytes. A context of the device is current where it is made and where it is dropped.
pub(super) struct PinnedBytes {
    driver: Arc<CudaDriver>,
    base: *mut u8,
    bytes: usize,
}

impl PinnedBytes {
    /// So many zeros, or the driver's code.
    pub(super) fn new(driver: &Arc<CudaDriver>, bytes: usize) -> Result<Self, i32> {
        let mut base = std::ptr::null_mut();
        // SAFETY: the driver writes one pointer.
        let code = unsafe { (driver.calls.host_allocate)(&raw mut base, bytes, PORTABLE) };
        if code != 0 {
            return Err(code);
        }
        let base = base.cast::<u8>();
        // SAFETY: the driver gave so many bytes, which nobody else has.
        unsafe { base.write_bytes(0, bytes) };
        Ok(Self { driver: Arc::clone(driver), base, bytes })
    }

    pub(super) fn address(&self) -> u64 {
        self.base.addr() as u64
    }

    /// The bytes; nothing may be on its way from here or to here.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: they were all set when they were allocated, are freed when this is dropped, and are borrowed for
        // writing.
        unsafe { std::slice::from_raw_parts_mut(self.base, self.bytes) }
    }
}

impl Drop for PinnedBytes {
    fn drop(&mut self) {
        // SAFETY: the driver gave this memory, and waits for what still uses it.
        unsafe { (self.driver.calls.host_free)(self.base.cast()) };
    }
}
