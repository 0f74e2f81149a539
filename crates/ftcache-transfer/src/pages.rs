//! Pages of host memory that a device is to read or write, registered with it for as long as they are used.
//!
//! *Unsafe*, relying on ourselves: the memory is made here, and freed here once it is not registered any more. If that
//! cannot be ended, or nobody does, it is never given back, as the device may still write there.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::host_arena::page_bytes;
use crate::{Device, DeviceError, HostAccess};

/// Whole pages of zeros, so that no other memory is registered with them.
#[derive(Debug)]
pub(crate) struct Pages {
    first: NonNull<u8>,
    layout: Layout,
    is_registered: AtomicBool,
}

// SAFETY: what lies in the pages is for their users to share; the pages themselves are only freed at the end.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// Pages for so many bytes, registered for reading and writing until [`unregister`](Self::unregister).
    ///
    /// # Errors
    ///
    /// Memory that cannot be had, or registration that is refused.
    pub(crate) fn registered(
        device: &mut impl Device,
        operation: &'static str,
        bytes: u64,
    ) -> Result<Self, DeviceError> {
        let failed = |reason: &str| DeviceError::Failed { operation, bytes, reason: reason.to_owned() };
        let size = bytes.max(1).checked_next_multiple_of(page_bytes()).and_then(|size| usize::try_from(size).ok());
        let layout = size.and_then(|size| Layout::from_size_align(size, page_bytes() as usize).ok());
        let layout = layout.ok_or_else(|| failed("too many bytes"))?;
        // SAFETY: the layout has a page at least.
        let first = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(|| failed("no host memory"))?;
        let pages = Self { first, layout, is_registered: AtomicBool::new(false) };
        // SAFETY: the pages stay as long as they are registered.
        unsafe { device.register(first.as_ptr(), layout.size() as u64, HostAccess::ReadWrite) }?;
        pages.is_registered.store(true, Ordering::Relaxed);
        Ok(pages)
    }

    /// Ends what [`registered`](Self::registered) began.
    ///
    /// # Errors
    ///
    /// The device's. The pages are never given back then.
    pub(crate) fn unregister(&self, device: &mut impl Device) -> Result<(), DeviceError> {
        device.unregister(self.first.as_ptr())?;
        self.is_registered.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// The first byte.
    pub(crate) fn first(&self) -> *mut u8 {
        self.first.as_ptr()
    }

    /// How many there are.
    pub(crate) fn bytes(&self) -> u64 {
        self.layout.size() as u64
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if !*self.is_registered.get_mut() {
            // SAFETY: it was allocated with this layout, and whoever used it is gone.
            unsafe { dealloc(self.first.as_ptr(), self.layout) };
        }
    }
}
