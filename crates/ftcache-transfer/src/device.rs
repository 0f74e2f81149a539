//! The one trait to hardware: memory, row copies, streams and events.
//!
//! Handles are plain numbers, as a driver gives them, so that an engine's own streams can be used as they are. Calls
//! only enqueue, but for those that say what they wait for.

use crate::DeviceError;

/// One allocation of device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Memory(pub u64);

/// An order of work on the device: the driver's handle. [`Stream::DEFAULT`] is there without being made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stream(pub u64);

impl Stream {
    /// The stream that a handle of zero means.
    pub const DEFAULT: Self = Self(0);
}

/// A point in a stream's work: the driver's handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Event(pub u64);

/// Rows in host memory, each `stride` bytes after the one before.
#[derive(Debug, Clone, Copy)]
pub struct HostSpan {
    /// The first row.
    pub base: *const u8,
    /// Bytes from row to row.
    pub stride: u64,
}

/// Rows in device memory, each `stride` bytes after the one before.
#[derive(Debug, Clone, Copy)]
pub struct DeviceSpan {
    /// The allocation.
    pub memory: Memory,
    /// Bytes from its start to the first row.
    pub offset: u64,
    /// Bytes from row to row.
    pub stride: u64,
}

/// `row_count` rows of `row_bytes` from the host to the device; the strides differ freely.
#[derive(Debug, Clone, Copy)]
pub struct RowCopy {
    /// Where they lie.
    pub source: HostSpan,
    /// Where they go.
    pub target: DeviceSpan,
    /// Bytes of a row.
    pub row_bytes: u64,
    /// Number of rows.
    pub row_count: u64,
}

impl RowCopy {
    /// Bytes that move.
    pub fn bytes(&self) -> u64 {
        self.row_bytes * self.row_count
    }
}

/// A device that holds slots.
///
/// # Safety
///
/// Others let rows go on a device's word, so its waits must be real: once [`synchronize`](Self::synchronize) of a stream
/// has returned, no copy that was enqueued on it reads its source any more; nor does any copy once
/// [`synchronize_all`](Self::synchronize_all), [`free`](Self::free) or [`read`](Self::read) has.
pub unsafe trait Device {
    /// What it calls itself, for people.
    fn name(&self) -> String;

    /// Memory of `bytes` zeros, until [`free`](Self::free). Its address is a multiple of `alignment`, a power of two.
    ///
    /// # Errors
    ///
    /// Not enough memory, with the bytes wanted and free.
    fn allocate(&mut self, bytes: u64, alignment: u64) -> Result<Memory, DeviceError>;

    /// Takes memory back. Waits for what is enqueued, since it may still use it.
    fn free(&mut self, memory: Memory);

    /// The address of the memory's first byte, as kernels are given it.
    ///
    /// # Errors
    ///
    /// Memory that is not of this device.
    fn address(&self, memory: Memory) -> Result<u64, DeviceError>;

    /// A new stream.
    ///
    /// # Errors
    ///
    /// The device's own.
    fn create_stream(&mut self) -> Result<Stream, DeviceError>;

    /// Whether work can be given to a stream, as far as that can be told without giving it any.
    ///
    /// # Errors
    ///
    /// A stream that is not of this device.
    fn check_stream(&self, stream: Stream) -> Result<(), DeviceError>;

    /// A new event, not recorded yet; waiting for it then waits for nothing.
    ///
    /// # Errors
    ///
    /// The device's own.
    fn create_event(&mut self) -> Result<Event, DeviceError>;

    /// Makes `event` the point that `stream` has been given work up to.
    ///
    /// # Errors
    ///
    /// A stream or event that is not of this device.
    fn record(&mut self, event: Event, stream: Stream) -> Result<(), DeviceError>;

    /// Lets what is enqueued on `stream` from now on wait for the point that `event` was last recorded at.
    ///
    /// # Errors
    ///
    /// A stream or event that is not of this device.
    fn wait(&mut self, stream: Stream, event: Event) -> Result<(), DeviceError>;

    /// Returns when everything enqueued on `stream` is done.
    ///
    /// # Errors
    ///
    /// A stream that is not of this device; whatever failed since the last call.
    fn synchronize(&mut self, stream: Stream) -> Result<(), DeviceError>;

    /// Returns when everything enqueued on any stream is done.
    ///
    /// # Errors
    ///
    /// Whatever failed since the last call.
    fn synchronize_all(&mut self) -> Result<(), DeviceError>;

    /// Enqueues a copy of rows.
    ///
    /// # Errors
    ///
    /// A handle that is not of this device; a target outside its memory; the device's own. Nothing is copied then.
    ///
    /// # Safety
    ///
    /// Every row of the source must stay readable and unchanged until the copy is done, which is when `stream` has
    /// been synchronised after this call.
    unsafe fn copy_rows(&mut self, stream: Stream, copy: &RowCopy) -> Result<(), DeviceError>;

    /// Reads device memory once everything enqueued on any stream is done.
    ///
    /// # Errors
    ///
    /// Memory that is not of this device, bytes outside it, or whatever failed since the last call.
    fn read(&mut self, memory: Memory, offset: u64, target: &mut [u8]) -> Result<(), DeviceError>;
}
