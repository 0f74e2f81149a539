//! The one trait to hardware: memory on both sides, streams and events, row copies.
//!
//! *Unsafe* only in saying that an address may go to another thread.
//!
//! Handles are plain numbers, as a driver gives them, so that an engine's own streams can be used as they are. Calls
//! only enqueue, but for those that say what they wait for.

use std::sync::atomic::AtomicU32;

use crate::{DeviceError, Kernel};

/// One allocation of device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Memory(pub u64);

/// An order of work on the device: the driver's handle. [`Stream::DEFAULT`] is there without being made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stream(pub(crate) u64);

impl Stream {
    /// The stream that a handle of zero means.
    pub const DEFAULT: Self = Self(0);

    /// An engine's own stream.
    ///
    /// # Safety
    ///
    /// The handle is a stream of the device's driver, and stays alive until everything was synchronised after the
    /// last call that names it or, as a compute stream, until a later call names another. A driver does not check its
    /// handles.
    pub const unsafe fn from_raw(handle: u64) -> Self {
        Self(handle)
    }

    /// The handle.
    pub const fn raw(self) -> u64 {
        self.0
    }
}

/// A point in a stream's work: the driver's handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Event(pub(crate) u64);

impl Event {
    /// An engine's own event.
    ///
    /// # Safety
    ///
    /// The handle is an event of the device's driver and alive as long as it is used. A driver does not check its
    /// handles.
    pub const unsafe fn from_raw(handle: u64) -> Self {
        Self(handle)
    }

    /// The handle.
    pub const fn raw(self) -> u64 {
        self.0
    }
}

/// Rows in host memory, each `stride` bytes after the one before.
#[derive(Debug, Clone, Copy)]
pub struct HostSpan {
    /// The first row.
    pub base: *const u8,
    /// Bytes from row to row.
    pub stride: u64,
}

// SAFETY: a span says where rows lie and reads none; whoever has them copied promises that they are there
// (`Device::copy_rows`), whatever thread that is done on.
unsafe impl Send for HostSpan {}
// SAFETY: as above.
unsafe impl Sync for HostSpan {}

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

/// Where rows come from.
#[derive(Debug, Clone, Copy)]
pub enum Source {
    /// Host memory.
    Host(HostSpan),
    /// Memory of the same device.
    Device(DeviceSpan),
}

impl From<HostSpan> for Source {
    fn from(span: HostSpan) -> Self {
        Self::Host(span)
    }
}

impl From<DeviceSpan> for Source {
    fn from(span: DeviceSpan) -> Self {
        Self::Device(span)
    }
}

/// `row_count` rows of `row_bytes` to the device; the strides differ freely.
///
/// On the device, source and target do not overlap.
#[derive(Debug, Clone, Copy)]
pub struct RowCopy {
    /// Where they lie.
    pub source: Source,
    /// Where they go.
    pub target: DeviceSpan,
    /// Bytes of a row.
    pub row_bytes: u64,
    /// Number of rows.
    pub row_count: u64,
}

impl DeviceSpan {
    /// Whether rows lie in memory of so many bytes, one after another.
    pub(crate) fn check(
        &self,
        operation: &'static str,
        memory_bytes: u64,
        row_bytes: u64,
        row_count: u64,
    ) -> Result<(), DeviceError> {
        let (offset, stride) = (self.offset, self.stride);
        if row_count > 1 && stride < row_bytes {
            let reason = format!("rows at a stride of {stride} bytes overlap");
            return Err(DeviceError::Failed { operation, bytes: row_bytes, reason });
        }
        let bytes = match row_count {
            0 => 0,
            count => (count - 1).saturating_mul(stride).saturating_add(row_bytes),
        };
        if offset.saturating_add(bytes) > memory_bytes {
            return Err(DeviceError::OutOfBounds { operation, offset, bytes, memory_bytes });
        }
        Ok(())
    }
}

impl RowCopy {
    /// Bytes that move.
    pub fn bytes(&self) -> u64 {
        self.row_bytes.saturating_mul(self.row_count)
    }

    /// Whether rows of a source on the device lie apart from those of the target, as far as first and last byte tell.
    /// Both are known to lie in their memory.
    pub(crate) fn check_apart(&self, source: &DeviceSpan) -> Result<(), DeviceError> {
        let Some(last) = self.row_count.checked_sub(1) else { return Ok(()) };
        let end = |span: &DeviceSpan| span.offset + last * span.stride + self.row_bytes;
        let apart = source.memory != self.target.memory
            || end(source) <= self.target.offset
            || end(&self.target) <= source.offset;
        if apart {
            return Ok(());
        }
        let reason = format!("source at {} and target at {} overlap", source.offset, self.target.offset);
        Err(DeviceError::Failed { operation: "row copy", bytes: self.bytes(), reason })
    }

    /// Bytes that lie without gaps on both sides: all of them, or a row.
    pub fn widest_piece(&self) -> u64 {
        let stride = match &self.source {
            Source::Host(span) => span.stride,
            Source::Device(span) => span.stride,
        };
        let packed = self.row_count < 2 || (stride == self.row_bytes && self.target.stride == self.row_bytes);
        if packed { self.bytes() } else { self.row_bytes }
    }
}

/// The copy of several that a device refused. Those before it may be on their way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyError {
    /// Which one.
    pub index: usize,
    /// What the device said.
    pub source: DeviceError,
}

/// A kernel, how many threads run it, and what they are told.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    /// Which one.
    pub kernel: Kernel,
    /// Blocks of threads.
    pub block_count: u32,
    /// Threads of a block.
    pub thread_count: u32,
    /// Bytes of shared memory of each block, beside what the kernel always has.
    pub shared_bytes: u32,
    /// Its arguments as they lie in memory: [`Kernel::argument_bytes`] of them. Read before the call returns.
    pub arguments: &'a [u8],
}

/// What a device may do with host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HostAccess {
    /// Read and write.
    ReadWrite,
    /// Only read, so that memory which the system maps read-only can be registered, such as a model file.
    ReadOnly,
}

/// What a device says that runs nothing but copies.
fn no_kernels(device: &(impl Device + ?Sized)) -> DeviceError {
    DeviceError::NoKernels { device: device.name(), reason: "it only copies".to_owned() }
}

/// A device that holds slots.
///
/// # Safety
///
/// Others let rows go on a device's word, so its waits must be real: once [`synchronize`](Self::synchronize) of a
/// stream has returned, no copy or kernel that was enqueued on it reads its source and no word of the host's is written
/// any more; nor is anything once [`synchronize_all`](Self::synchronize_all), [`free`](Self::free),
/// [`unregister`](Self::unregister), [`read`](Self::read) or [`write`](Self::write) has. That holds if they return an
/// error, too: a device that cannot wait does no more work.
pub unsafe trait Device {
    /// What it calls itself, for people.
    fn name(&self) -> String;

    /// Bytes of device memory that are free; `None` where that is not known.
    fn free_bytes(&self) -> Option<u64>;

    /// Memory of `bytes` zeros, until [`free`](Self::free). Its address is a multiple of `alignment`, a power of two.
    ///
    /// # Errors
    ///
    /// Not enough memory, with the bytes wanted and free.
    fn allocate(&mut self, bytes: u64, alignment: u64) -> Result<Memory, DeviceError>;

    /// Takes device memory of the caller's, such as an arena of the engine's, and fills it with zeros. It is used until
    /// [`free`](Self::free), which waits as for other memory and gives nothing back.
    ///
    /// # Errors
    ///
    /// The device's own.
    ///
    /// # Safety
    ///
    /// `bytes` bytes from `address` on are this device's memory, nobody else writes there, and they stay so until they
    /// are freed.
    unsafe fn adopt(&mut self, address: u64, bytes: u64) -> Result<Memory, DeviceError>;

    /// Takes memory back. Waits for what is enqueued, since it may still use it.
    fn free(&mut self, memory: Memory);

    /// The address of the memory's first byte, as kernels are given it.
    ///
    /// # Errors
    ///
    /// Memory that is not of this device.
    fn address(&self, memory: Memory) -> Result<u64, DeviceError>;

    /// Pins host memory, so that copies from it need nobody's help.
    ///
    /// # Errors
    ///
    /// Memory that is registered, as a whole or in part, or what the system refuses to pin. Its bytes stay as they are.
    ///
    /// # Safety
    ///
    /// `bytes` bytes from `base` on stay mapped until they are unregistered.
    unsafe fn register(&mut self, base: *const u8, bytes: u64, access: HostAccess) -> Result<(), DeviceError>;

    /// Whether copies from so much host memory need nobody's help: it is pinned, by [`register`](Self::register) or by
    /// whoever owns it. Asked when rows are attached, so the answer may be remembered until they are attached anew.
    ///
    /// # Errors
    ///
    /// The device's own.
    fn can_read(&mut self, base: *const u8, bytes: u64) -> Result<bool, DeviceError>;

    /// Ends what [`register`](Self::register) began at `base`. Waits for what is enqueued, since it may still read
    /// there.
    ///
    /// # Errors
    ///
    /// No registration that begins there; whatever failed since the last call.
    fn unregister(&mut self, base: *const u8) -> Result<(), DeviceError>;

    /// A new stream, ordered with no other.
    ///
    /// # Errors
    ///
    /// The device's own.
    fn create_stream(&mut self) -> Result<Stream, DeviceError>;

    /// Takes back a stream of [`create_stream`](Self::create_stream). What it was given is still done.
    fn destroy_stream(&mut self, stream: Stream);

    /// Whether work can be given to a stream, as far as that can be told without giving it any.
    ///
    /// # Errors
    ///
    /// A stream that is not of this device, or that a graph is being captured on.
    fn check_stream(&self, stream: Stream) -> Result<(), DeviceError>;

    /// A new event, not recorded yet; waiting for it then waits for nothing.
    ///
    /// # Errors
    ///
    /// The device's own.
    fn create_event(&mut self) -> Result<Event, DeviceError>;

    /// Takes an event back. Waits for it that are enqueued stay.
    fn destroy_event(&mut self, event: Event);

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

    /// Whether the point that `event` was last recorded at has been reached. Waits for nothing.
    ///
    /// # Errors
    ///
    /// An event that is not of this device; whatever failed since the last call.
    fn has_passed(&mut self, event: Event) -> Result<bool, DeviceError>;

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

    /// Whether anything enqueued has failed since the last call. Waits for nothing, so it can only tell of the past.
    ///
    /// # Errors
    ///
    /// What failed.
    fn check(&mut self) -> Result<(), DeviceError>;

    /// Makes room for so many copies at once, which then allocate nothing.
    fn reserve(&mut self, copy_count: usize) {
        let _ = copy_count;
    }

    /// Whether streams can wait for words of the host's; else [`wait_for_host`](Self::wait_for_host) and
    /// [`tell_host`](Self::tell_host) fail.
    fn waits_for_host(&self) -> bool {
        true
    }

    /// Enqueues a copy of rows.
    ///
    /// # Errors
    ///
    /// A handle that is not of this device; a source or target outside its memory; the device's own. Nothing is copied
    /// then.
    ///
    /// # Safety
    ///
    /// Every row of a source on the host must stay readable and unchanged until the copy is done, which is when
    /// `stream` has been synchronised after this call.
    unsafe fn copy_rows(&mut self, stream: Stream, copy: &RowCopy) -> Result<(), DeviceError>;

    /// Enqueues several copies of rows, in one call of the driver where it has one. Their order among each other is
    /// the device's choice, so no row is the target of two.
    ///
    /// # Errors
    ///
    /// The first copy that is refused, as [`copy_rows`](Self::copy_rows) says. Others may be on their way then.
    ///
    /// # Safety
    ///
    /// As for [`copy_rows`](Self::copy_rows), for each of them.
    unsafe fn copy_all(&mut self, stream: Stream, copies: &[RowCopy]) -> Result<(), CopyError> {
        for (index, copy) in copies.iter().enumerate() {
            // SAFETY: our caller's promise, copy by copy.
            unsafe { self.copy_rows(stream, copy) }.map_err(|source| CopyError { index, source })?;
        }
        Ok(())
    }

    /// Enqueues zeros over `row_count` rows of `row_bytes`.
    ///
    /// # Errors
    ///
    /// A handle that is not of this device; a target outside its memory; the device's own.
    fn clear_rows(
        &mut self,
        stream: Stream,
        target: &DeviceSpan,
        row_bytes: u64,
        row_count: u64,
    ) -> Result<(), DeviceError>;

    /// Lets what is enqueued on `stream` from now on wait until the host has raised `word` to `value` or past it,
    /// counted around the end of 32 bits.
    ///
    /// # Errors
    ///
    /// A stream that is not of this device; a word that the device cannot read, as it is in no registered memory.
    ///
    /// # Safety
    ///
    /// The word stays where it is until `stream` has been synchronised after this call, and somebody raises it.
    unsafe fn wait_for_host(&mut self, stream: Stream, word: *const AtomicU32, value: u32) -> Result<(), DeviceError>;

    /// Sets `word` to `value` once everything enqueued on `stream` before is done.
    ///
    /// # Errors
    ///
    /// As [`wait_for_host`](Self::wait_for_host).
    ///
    /// # Safety
    ///
    /// The word stays where it is until `stream` has been synchronised after this call.
    unsafe fn tell_host(&mut self, stream: Stream, word: *const AtomicU32, value: u32) -> Result<(), DeviceError>;

    /// Reads device memory once everything enqueued on any stream is done.
    ///
    /// # Errors
    ///
    /// Memory that is not of this device, bytes outside it, or whatever failed since the last call.
    fn read(&mut self, memory: Memory, offset: u64, target: &mut [u8]) -> Result<(), DeviceError>;

    /// Writes device memory once everything enqueued on any stream is done. The bytes are there when this returns.
    ///
    /// # Errors
    ///
    /// Memory that is not of this device, bytes outside it, or whatever failed since the last call.
    fn write(&mut self, memory: Memory, offset: u64, source: &[u8]) -> Result<(), DeviceError>;

    /// The address at which kernels find so much host memory, all of it registered.
    ///
    /// # Errors
    ///
    /// No kernels, memory that is not registered, or several registrations that do not follow each other for kernels
    /// as they do for the host.
    fn kernel_address(&mut self, base: *const u8, bytes: u64) -> Result<u64, DeviceError> {
        let _ = (base, bytes);
        Err(no_kernels(self))
    }

    /// Loads what [`launch`](Self::launch) needs, once: it may be called again, and does nothing then.
    ///
    /// # Errors
    ///
    /// [`NoKernels`](DeviceError::NoKernels), with what the device or its driver lacks; the device's own. What was
    /// loaded by then is unloaded, and it may be tried again.
    fn prepare_kernels(&mut self) -> Result<(), DeviceError> {
        Err(no_kernels(self))
    }

    /// Enqueues a kernel. `stream` may be one that a graph is being captured on. Loads nothing, allocates nothing and
    /// waits for nothing.
    ///
    /// # Errors
    ///
    /// Kernels that are not prepared, arguments of another length than the kernel's, or the device's own: nothing is
    /// enqueued then.
    ///
    /// # Safety
    ///
    /// The arguments are of the kernel's type (`kernels/abi.h`), and the addresses among them name as much memory of
    /// this device, or host memory by its [`kernel_address`](Self::kernel_address), as it says there. All of it stays
    /// until `stream` has been synchronised after this call; if the stream is being captured, until no graph of the
    /// capture is left and every launch of one is done.
    unsafe fn launch(&mut self, stream: Stream, launch: &Launch<'_>) -> Result<(), DeviceError> {
        let _ = (stream, launch);
        Err(no_kernels(self))
    }
}
