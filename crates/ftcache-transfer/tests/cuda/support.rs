//! What these tests share: host memory by pages, and calls whose promises every test keeps.
//!
//! *Unsafe*, relying on one promise: each test keeps its rows and words in place until the device that was given them
//! is dropped or has been waited for.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::c_void;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use ftcache_cuda_emu::client::{Config, Counts, EmulatedDevice, Emulator};
use ftcache_testkit::Rng;
use ftcache_transfer::{
    CopyError, CudaContext, CudaDevice, CudaDriver, Device, DeviceError, DeviceSpan, DriverError, Event, HostAccess,
    HostSpan, Memory, RowCopy, Source, Stream,
};

use crate::cuda_world::CudaWorld;

pub(crate) const PAGE: usize = 4096;

/// A stream by its handle, whether it is there or not.
pub(crate) const fn stream_of(handle: u64) -> Stream {
    // SAFETY: the emulated driver looks every handle up; on a GPU the tests give those of streams that are alive.
    unsafe { Stream::from_raw(handle) }
}

/// An event by its handle.
pub(crate) const fn event_of(handle: u64) -> Event {
    // SAFETY: as above.
    unsafe { Event::from_raw(handle) }
}

/// Host memory of whole pages, so that parts of it can be registered apart.
pub(crate) struct Pages {
    base: *mut u8,
    bytes: usize,
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes.next_multiple_of(PAGE), PAGE).expect("a size that there is")
}

impl Pages {
    /// So many zeros.
    pub(crate) fn new(bytes: usize) -> Self {
        assert!(bytes > 0);
        // SAFETY: the size is not zero.
        let base = unsafe { alloc_zeroed(layout(bytes)) };
        assert!(!base.is_null());
        Self { base, bytes }
    }

    /// Bytes of which neighbours differ, as do those of other seeds.
    pub(crate) fn noise(seed: u64, bytes: usize) -> Self {
        let mut pages = Self::new(bytes);
        let mut rng = Rng::new(seed);
        for chunk in pages.chunks_mut(8) {
            chunk.copy_from_slice(&rng.bits().to_le_bytes()[..chunk.len()]);
        }
        pages
    }

    /// A word at a multiple of four bytes, which the host may raise while a device reads it.
    pub(crate) fn word(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at + 4 <= self.bytes);
        // SAFETY: aligned, inside, and touched by atomic operations only, as no test has a slice over its words.
        unsafe { AtomicU32::from_ptr(self.base.wrapping_add(at).cast()) }
    }
}

// SAFETY: what is shared is only read, but for words, which are atomic.
unsafe impl Sync for Pages {}

impl Deref for Pages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: allocated with so many bytes, all set.
        unsafe { std::slice::from_raw_parts(self.base, self.bytes) }
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed for writing.
        unsafe { std::slice::from_raw_parts_mut(self.base, self.bytes) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // A test that fails has not come to where its device is dropped, which may still read here.
        if std::thread::panicking() {
            return;
        }
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.base, layout(self.bytes)) };
    }
}

/// Where the emulated driver has a call, or null.
pub(crate) fn symbol(name: &str) -> *const c_void {
    // SAFETY: a symbol stands where its call begins, so the pointer is the call's.
    let found = unsafe { Emulator::open().library().get::<*const c_void>(name.as_bytes()) };
    found.map_or(std::ptr::null(), |found| *found)
}

/// The emulated driver with a look-up between.
pub(crate) fn driver_by(look_up: impl Fn(&'static str) -> *const c_void) -> Result<Arc<CudaDriver>, DriverError> {
    // SAFETY: tests give the emulator's calls, calls of theirs with the same types, or null.
    unsafe { CudaDriver::from_symbols(look_up) }
}

/// The emulated driver without some of its calls.
pub(crate) fn driver_without(hidden: &[&str]) -> Result<Arc<CudaDriver>, DriverError> {
    driver_by(|name| if hidden.contains(&name) { std::ptr::null() } else { symbol(name) })
}

/// An emulated world whose driver lacks some calls.
pub(crate) fn world_without(hidden: &[&str], config: Config) -> CudaWorld {
    let world = CudaWorld::emulated(config);
    CudaWorld { driver: driver_without(hidden).expect("a driver that will do"), ..world }
}

pub(crate) fn seeded(seed: u64) -> Config {
    Config { seed, ..Config::default() }
}

/// What steers a world that is emulated.
pub(crate) fn emulated(world: &CudaWorld) -> &EmulatedDevice {
    world.emulated.as_ref().expect("an emulated world")
}

/// What a device holds, without what only ever grows.
pub(crate) fn held(device: &EmulatedDevice) -> Counts {
    Counts { peak_bytes: 0, pageable_copies: 0, queued: 0, ..device.counts() }
}

/// A device in the context that is current.
pub(crate) fn current_device(world: &CudaWorld) -> CudaDevice {
    CudaDevice::new(Arc::clone(&world.driver), CudaContext::Current).expect("a context is current")
}

pub(crate) fn register(device: &mut CudaDevice, rows: &[u8]) -> Result<(), DeviceError> {
    register_as(device, rows, HostAccess::ReadWrite)
}

pub(crate) fn register_as(device: &mut CudaDevice, rows: &[u8], access: HostAccess) -> Result<(), DeviceError> {
    // SAFETY: the rows stay, see above.
    unsafe { device.register(rows.as_ptr(), rows.len() as u64, access) }
}

pub(crate) fn can_read(device: &mut CudaDevice, rows: &[u8]) -> Result<bool, DeviceError> {
    device.can_read(rows.as_ptr(), rows.len() as u64)
}

pub(crate) fn adopt(device: &mut CudaDevice, address: u64, bytes: u64) -> Result<Memory, DeviceError> {
    // SAFETY: tests give memory that they have allocated, and free it later; what is not theirs is to be refused.
    unsafe { device.adopt(address, bytes) }
}

pub(crate) fn copy_rows(device: &mut CudaDevice, stream: Stream, copy: &RowCopy) -> Result<(), DeviceError> {
    // SAFETY: the rows stay, see above.
    unsafe { device.copy_rows(stream, copy) }
}

pub(crate) fn copy_all(device: &mut CudaDevice, stream: Stream, copies: &[RowCopy]) -> Result<(), CopyError> {
    // SAFETY: the rows stay, see above.
    unsafe { device.copy_all(stream, copies) }
}

pub(crate) fn wait_for_host(
    device: &mut CudaDevice,
    stream: Stream,
    word: &AtomicU32,
    value: u32,
) -> Result<(), DeviceError> {
    // SAFETY: the word stays, see above, and the test raises it.
    unsafe { device.wait_for_host(stream, word, value) }
}

pub(crate) fn tell_host(
    device: &mut CudaDevice,
    stream: Stream,
    word: &AtomicU32,
    value: u32,
) -> Result<(), DeviceError> {
    // SAFETY: the word stays, see above.
    unsafe { device.tell_host(stream, word, value) }
}

/// Rows on the host, `stride` bytes apart.
pub(crate) fn rows(first: &[u8], stride: u64) -> Source {
    HostSpan { base: first.as_ptr(), stride }.into()
}

pub(crate) fn span(memory: Memory, offset: u64, stride: u64) -> DeviceSpan {
    DeviceSpan { memory, offset, stride }
}

/// Bytes without gaps from the host to an offset.
pub(crate) fn line(bytes: &[u8], memory: Memory, offset: u64) -> RowCopy {
    let row_bytes = bytes.len() as u64;
    RowCopy { source: rows(bytes, row_bytes), target: span(memory, offset, row_bytes), row_bytes, row_count: 1 }
}

/// What the memory holds once everything is done.
pub(crate) fn contents(device: &mut CudaDevice, memory: Memory, bytes: usize) -> Vec<u8> {
    let mut target = vec![0xEE; bytes];
    device.read(memory, 0, &mut target).expect("memory that can be read");
    target
}

/// Where two images differ first; whole images are too long to print.
#[track_caller]
pub(crate) fn same_bytes(found: &[u8], wanted: &[u8], context: &str) {
    assert_eq!(found.len(), wanted.len(), "{context}");
    if found != wanted {
        let at = found.iter().zip(wanted).position(|(found, wanted)| found != wanted).unwrap_or(0);
        panic!("{context}: byte {at} is {:#x} and not {:#x}", found[at], wanted[at]);
    }
}

/// The code in an error of the driver's.
pub(crate) fn code(error: &DeviceError) -> i32 {
    match error {
        DeviceError::Driver { code, .. } => *code,
        other => panic!("no error of the driver's: {other:?}"),
    }
}
