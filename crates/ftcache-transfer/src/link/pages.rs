//! Host memory in whole pages: what is registered is nobody else's.
//!
//! *Unsafe*, relying on nothing but the allocator.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use super::LinkError;
use crate::host_arena::page_bytes;

/// What memory is filled with. Memory that was never written is one page of zeros to many systems, wherever it is read.
const FILLED: u8 = 0xA5;

/// Pages of zeros, which take room once they are written.
#[derive(Debug)]
pub(super) struct Pages {
    first: NonNull<u8>,
    layout: Layout,
}

impl Pages {
    /// So many bytes, rounded up to whole pages.
    pub(super) fn new(bytes: u64) -> Result<Self, LinkError> {
        let lack = || LinkError::HostMemory { bytes };
        // Registered memory begins and ends with a page.
        let page_bytes = page_bytes() as usize;
        let rounded = usize::try_from(bytes.max(1)).ok().and_then(|bytes| bytes.checked_next_multiple_of(page_bytes));
        let layout = Layout::from_size_align(rounded.ok_or_else(lack)?, page_bytes).map_err(|_| lack())?;
        // SAFETY: the layout has at least a page.
        let first = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(lack)?;
        Ok(Self { first, layout })
    }

    pub(super) fn base(&self) -> *const u8 {
        self.first.as_ptr()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.layout.size() as u64
    }

    pub(super) fn words_mut(&mut self) -> &mut [u64] {
        // SAFETY: the pages are ours, zeroed when they were allocated, aligned to more than a word, and borrowed for
        // writing.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr().cast(), self.layout.size() / size_of::<u64>()) }
    }
}

/// Writes every word, so that its page is there.
pub(super) fn fill(words: &mut [u64]) {
    // SAFETY: the words are borrowed for writing, and any bytes are words. `fill` would write word by word.
    unsafe { std::ptr::write_bytes(words.as_mut_ptr(), FILLED, words.len()) };
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: they were allocated with this layout.
        unsafe { dealloc(self.first.as_ptr(), self.layout) };
    }
}
