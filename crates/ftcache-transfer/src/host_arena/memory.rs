//! The pages of an arena: reserved, locked where asked, and given back.
//!
//! *Unsafe*, relying on the system's manual for what it maps (`mmap(2)`, `madvise(2)`, `mlock(2)`), and on one promise
//! of ours: ranges that are written at the same time do not overlap, and nothing is written once rows are handed out.

use std::io;
use std::ops::Range;

/// Memory of zeros, untouched until it is written.
#[derive(Debug)]
pub(super) struct Memory {
    base: *mut u8,
    bytes: usize,
    room: Room,
}

// SAFETY: the pointer is to memory of ours, whatever thread uses it; writing is bound by the promise of `slice_mut`.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// `bytes` bytes from a multiple of `alignment` on, a power of two that is at least a page.
    pub(super) fn reserve(bytes: u64, alignment: u64) -> io::Result<Self> {
        let out_of_memory = || io::Error::from(io::ErrorKind::OutOfMemory);
        let bytes = usize::try_from(bytes).map_err(|_| out_of_memory())?;
        let room = Room::reserve(bytes, alignment as usize)?;
        let base = room.base.wrapping_add(room.base.addr().next_multiple_of(alignment as usize) - room.base.addr());
        Ok(Self { base, bytes, room })
    }

    /// The address of a byte.
    pub(super) fn at(&self, offset: u64) -> *mut u8 {
        assert!(offset <= self.bytes as u64, "byte {offset} of {}", self.bytes);
        self.base.wrapping_add(offset as usize)
    }

    /// Bytes to be written.
    ///
    /// # Safety
    ///
    /// No other reference to these bytes exists as long as this one does.
    #[expect(clippy::mut_from_ref, reason = "ranges that do not overlap are written by several threads")]
    pub(super) unsafe fn slice_mut(&self, range: Range<u64>) -> &mut [u8] {
        assert!(range.start <= range.end && range.end <= self.bytes as u64, "{range:?} of {} bytes", self.bytes);
        // SAFETY: the range is inside memory of ours, which is zeros or what was written, and by our caller's promise
        // nobody else refers to it.
        unsafe { std::slice::from_raw_parts_mut(self.at(range.start), (range.end - range.start) as usize) }
    }

    /// Bytes that are written.
    ///
    /// # Safety
    ///
    /// Nothing writes to these bytes as long as the reference exists.
    pub(super) unsafe fn slice(&self, range: Range<u64>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.bytes as u64, "{range:?} of {} bytes", self.bytes);
        // SAFETY: the range is inside memory of ours, and by our caller's promise nothing writes to it.
        unsafe { std::slice::from_raw_parts(self.at(range.start), (range.end - range.start) as usize) }
    }

    /// Asks for huge pages.
    pub(super) fn advise_huge_pages(&self) -> io::Result<()> {
        self.room.advise_huge_pages()
    }

    /// Locks whole pages in memory.
    pub(super) fn lock(&self, pages: &Range<u64>) -> io::Result<()> {
        self.room.lock(self.at(pages.start), (pages.end - pages.start) as usize)
    }

    /// Ends a lock.
    pub(super) fn unlock(&self, pages: &Range<u64>) {
        self.room.unlock(self.at(pages.start), (pages.end - pages.start) as usize);
    }
}

/// Bytes of a page.
#[cfg(unix)]
pub(crate) fn page_bytes() -> u64 {
    // SAFETY: `sysconf` takes any name and changes nothing.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(bytes).ok().filter(|bytes| bytes.is_power_of_two()).unwrap_or(4096)
}

/// Bytes that the process may lock, where there is a limit.
#[cfg(unix)]
pub(super) fn lock_limit_bytes() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the system writes one `rlimit` there (`getrlimit(2)`).
    let status = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    (status == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// A mapping.
#[cfg(unix)]
#[derive(Debug)]
struct Room {
    base: *mut u8,
    bytes: usize,
}

#[cfg(unix)]
impl Room {
    fn reserve(bytes: usize, alignment: usize) -> io::Result<Self> {
        // The surplus is address space and never touched.
        let bytes = bytes.checked_add(alignment).ok_or(io::Error::from(io::ErrorKind::OutOfMemory))?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_NORESERVE;
        // SAFETY: a new private mapping at a place of the system's choice touches no memory that is in use.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        match base == libc::MAP_FAILED {
            true => Err(io::Error::last_os_error()),
            false => Ok(Self { base: base.cast(), bytes }),
        }
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn advise_huge_pages(&self) -> io::Result<()> {
        // SAFETY: the range is a mapping of ours, and the advice changes no byte of it.
        check(unsafe { libc::madvise(self.base.cast(), self.bytes, libc::MADV_HUGEPAGE) })
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    fn advise_huge_pages(&self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn lock(&self, base: *mut u8, bytes: usize) -> io::Result<()> {
        // SAFETY: pages of a mapping of ours; locking changes no byte of them.
        check(unsafe { libc::mlock(base.cast(), bytes) })
    }

    fn unlock(&self, base: *mut u8, bytes: usize) {
        // SAFETY: as for `lock`. Pages of our own mapping are never refused, and unmapping would unlock them too.
        unsafe { libc::munlock(base.cast(), bytes) };
    }
}

#[cfg(unix)]
fn check(status: libc::c_int) -> io::Result<()> {
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(unix)]
impl Drop for Room {
    fn drop(&mut self) {
        // SAFETY: the whole of a mapping of ours. Whoever holds an address in it holds the memory, too, and what a
        // device may read is not dropped (`Pins`).
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}

// Elsewhere, the allocator's zeros. Written against the documentation; it has not been compiled there.

#[cfg(not(unix))]
pub(crate) fn page_bytes() -> u64 {
    4096
}

#[cfg(not(unix))]
pub(super) fn lock_limit_bytes() -> Option<u64> {
    None
}

#[cfg(not(unix))]
#[derive(Debug)]
struct Room {
    base: *mut u8,
    layout: std::alloc::Layout,
}

#[cfg(not(unix))]
impl Room {
    fn reserve(bytes: usize, alignment: usize) -> io::Result<Self> {
        let out_of_memory = || io::Error::from(io::ErrorKind::OutOfMemory);
        let layout = std::alloc::Layout::from_size_align(bytes.max(1), alignment).map_err(|_| out_of_memory())?;
        // SAFETY: the layout has at least one byte.
        let base = unsafe { std::alloc::alloc_zeroed(layout) };
        if base.is_null() { Err(out_of_memory()) } else { Ok(Self { base, layout }) }
    }

    fn advise_huge_pages(&self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn lock(&self, _: *mut u8, _: usize) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn unlock(&self, _: *mut u8, _: usize) {}
}

#[cfg(not(unix))]
impl Drop for Room {
    fn drop(&mut self) {
        // SAFETY: allocated above with this layout.
        unsafe { std::alloc::dealloc(self.base, self.layout) };
    }
}
