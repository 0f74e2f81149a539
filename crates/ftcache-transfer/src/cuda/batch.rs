//! Copies in one call of the driver, once a probe has shown that it does what its manual says on this machine.
//!
//! The probe copies several entries of different sizes to memory that *another* stream has prepared, ordered by an
//! event, and checks every byte and what lies between. A probe that leaves the order to luck passes on an idle device
//! and turns the call off for good on a busy one. A second measurement tells whether a small entry beside a large one
//! makes the call wait for the copies: such entries go alone.
//!
//! Whatever says no, copies go one by one then, the reason is logged once and can be read back.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use cudarc::driver::sys::{
    CUdeviceptr, CUmemLocation, CUmemLocationType, CUmemcpyAttributes, CUmemcpySrcAccessOrder, CUstream,
};
use ftcache_policy::SMALL_ROW_BYTES;

use super::driver::CudaDriver;
use super::pinned::PinnedBytes;
use super::{CudaDevice, EVENT_DISABLE_TIMING, INVALID_VALUE, STREAM_NON_BLOCKING, handle_of};
use crate::{CopyError, DeviceError, RowCopy, Source, Stream};

/// Which form of the call the driver has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BatchSignature {
    /// Of CUDA 12.8: it tells the entry that failed.
    Old,
    /// Of CUDA 13.0.
    New,
}

/// Why copies do not go in batches.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum BatchRefusal {
    /// Nobody has asked whether they can; see [`CudaDevice::probe_batches`].
    NotProbed,
    /// The driver has neither form of the call.
    MissingSymbol,
    /// The probe could not be made.
    NoProbe {
        /// What was asked for.
        operation: &'static str,
        /// What the driver said.
        reason: String,
    },
    /// The driver refused the probe's batch.
    Refused {
        /// Its form.
        signature: BatchSignature,
        /// The driver's code.
        code: i32,
        /// What the driver calls it.
        reason: String,
    },
    /// An entry arrived with other bytes, or not at all.
    WrongBytes {
        /// Its form.
        signature: BatchSignature,
        /// The entry.
        entry: usize,
        /// Bytes from its start.
        offset: usize,
    },
    /// Bytes beside an entry were touched.
    TouchedNeighbour {
        /// Its form.
        signature: BatchSignature,
        /// The entry before the byte.
        entry: usize,
    },
    /// Entries of every size make the call wait.
    Blocks {
        /// The widest that was tried beside a large one.
        bytes: u64,
    },
    /// The driver refused a batch after the probe had passed.
    RefusedLater {
        /// Entries of the batch.
        entries: usize,
        /// The driver's code.
        code: i32,
        /// What the driver calls it.
        reason: String,
    },
}

impl fmt::Display for BatchRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotProbed => write!(f, "not probed"),
            Self::MissingSymbol => write!(f, "the driver has no cuMemcpyBatchAsync"),
            Self::NoProbe { operation, reason } => write!(f, "the probe had no {operation}: {reason}"),
            Self::Refused { signature, reason, .. } => write!(f, "{}: {reason}", signature.symbol()),
            Self::WrongBytes { signature, entry, offset } => {
                write!(f, "{}: wrong bytes at entry {entry}, offset {offset}", signature.symbol())
            }
            Self::TouchedNeighbour { signature, entry } => {
                write!(f, "{}: bytes after entry {entry} were touched", signature.symbol())
            }
            Self::Blocks { bytes } => write!(f, "a batch with an entry of {bytes} bytes waits for its copies"),
            Self::RefusedLater { entries, reason, .. } => write!(f, "a batch of {entries} entries: {reason}"),
        }
    }
}

/// With [`INVALID_VALUE`], what is said of the batch itself: its form, its entries, or the call as such.
const NOT_SUPPORTED: i32 = 801;

/// How copies go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BatchReport {
    /// In batches, but for entries narrower than `alone_below_bytes`, which go alone.
    On {
        /// Its form.
        signature: BatchSignature,
        /// Bytes.
        alone_below_bytes: u64,
    },
    /// One by one.
    Off(BatchRefusal),
}

impl Default for BatchReport {
    fn default() -> Self {
        Self::Off(BatchRefusal::NotProbed)
    }
}

impl fmt::Display for BatchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::On { signature, alone_below_bytes } => {
                write!(f, "copies in batches by {}, entries below {alone_below_bytes} bytes alone", signature.symbol())
            }
            Self::Off(refusal) => write!(f, "copies one by one ({refusal})"),
        }
    }
}

impl BatchSignature {
    fn symbol(self) -> &'static str {
        match self {
            Self::Old => "cuMemcpyBatchAsync",
            Self::New => "cuMemcpyBatchAsync_v2",
        }
    }
}

/// Entries of the probe: a byte, scales of a few bytes, a width that nothing divides, and rows.
const PROBE_BYTES: [usize; 6] = [1, 16, 253, 4096, 22_528, 70_000];
/// Bytes between entries, that no copy may touch.
const GAP_BYTES: usize = 64;
/// What the target holds before; no entry has it.
const BEFORE: u8 = 0xA5;
/// Widths tried beside a large entry. Entries of 5 to 22 KB were seen to block, ones of 253 KB and more never were,
/// on an H100 with CUDA 13.0 (the reference system's measurement).
const SMALL_BYTES: [u64; 5] = [4 << 10, 22 << 10, 64 << 10, 253 << 10, 1 << 20];

/// The byte of an entry at an offset.
fn pattern(entry: usize, offset: usize) -> u8 {
    ((offset * 7 + entry * 31 + 1) & 0x7F) as u8
}

/// Batched copies: whether they are on, and the buffers of their calls.
#[derive(Debug, Default)]
pub(super) struct Batches {
    report: BatchReport,
    sources: Vec<CUdeviceptr>,
    targets: Vec<CUdeviceptr>,
    sizes: Vec<usize>,
    /// `copies[entry]`: which copy an entry is a piece of.
    copies: Vec<usize>,
}

impl Batches {
    pub(super) fn report(&self) -> &BatchReport {
        &self.report
    }

    pub(super) fn are_on(&self) -> bool {
        matches!(self.report, BatchReport::On { .. })
    }

    fn turn_off(&mut self, refusal: BatchRefusal) {
        tracing::warn!(reason = %refusal, "copies go one by one");
        self.report = BatchReport::Off(refusal);
    }

    /// Asks the driver. A context of the device is current. `large_bytes` are moved to see whether a small entry
    /// makes the call wait; without them, entries of less than [`SMALL_ROW_BYTES`] are taken to.
    pub(super) fn probe(&mut self, driver: &Arc<CudaDriver>, large_bytes: u64) {
        let signature = match (driver.calls.copy_batch, driver.calls.copy_batch_with_index) {
            (Some(_), _) => BatchSignature::New,
            (None, Some(_)) => BatchSignature::Old,
            (None, None) => return self.turn_off(BatchRefusal::MissingSymbol),
        };
        let outcome = self.probe_bytes(driver, signature).and_then(|()| match large_bytes {
            0 => Ok(SMALL_ROW_BYTES),
            // Without the memory for it, nothing is known of small entries; that copies are right is.
            _ => match self.measure_blocking(driver, signature, large_bytes) {
                Err(BatchRefusal::NoProbe { .. }) => Ok(SMALL_ROW_BYTES),
                measured => measured,
            },
        });
        match outcome {
            Ok(alone_below_bytes) => {
                self.report = BatchReport::On { signature, alone_below_bytes };
                tracing::info!(report = %self.report, "probed");
            }
            Err(refusal) => self.turn_off(refusal),
        }
    }

    fn probe_bytes(&mut self, driver: &Arc<CudaDriver>, signature: BatchSignature) -> Result<(), BatchRefusal> {
        let total: usize = PROBE_BYTES.iter().map(|bytes| bytes + GAP_BYTES).sum();
        let mut scratch = Scratch::new(driver, total)?;
        let mut entry_at = 0;
        self.clear();
        for (entry, &bytes) in PROBE_BYTES.iter().enumerate() {
            let source = &mut scratch.host.bytes_mut()[entry_at..][..bytes];
            source.iter_mut().enumerate().for_each(|(offset, byte)| *byte = pattern(entry, offset));
            self.push(scratch.host.address() + entry_at as u64, scratch.device + entry_at as u64, bytes, entry);
            entry_at += bytes + GAP_BYTES;
        }
        let calls = &driver.calls;
        // SAFETY: the target is the scratch's, the stream its own.
        scratch.done("fill", unsafe { (calls.fill)(scratch.device, BEFORE, total, scratch.prepare) })?;
        // Without this the fill could land after the copies, and good copies would look like none.
        // SAFETY: event and streams are the scratch's.
        scratch.done("record", unsafe { (calls.event_record)(scratch.prepared, scratch.prepare) })?;
        // SAFETY: as above.
        scratch.done("wait", unsafe { (calls.stream_wait)(scratch.copy, scratch.prepared, 0) })?;
        let code = self.call(driver, signature, scratch.copy);
        if code != 0 {
            return Err(BatchRefusal::Refused { signature, code, reason: driver.reason(code) });
        }
        let mut back = PinnedBytes::new(driver, total).map_err(|code| no_probe(driver, "pinned memory", code))?;
        let target = back.bytes_mut().as_mut_ptr().cast();
        // SAFETY: both have so many bytes; the copies are enqueued before on the same stream.
        scratch.done("read", unsafe { (calls.copy_to_host)(target, scratch.device, total, scratch.copy) })?;
        // SAFETY: the stream is the scratch's.
        let code = unsafe { (calls.stream_synchronize)(scratch.copy) };
        if code != 0 {
            return Err(BatchRefusal::Refused { signature, code, reason: driver.reason(code) });
        }
        let mut left: &[u8] = back.bytes_mut();
        for (entry, &bytes) in PROBE_BYTES.iter().enumerate() {
            let (found, rest) = left.split_at(bytes);
            if let Some(offset) = (0..bytes).find(|&offset| found[offset] != pattern(entry, offset)) {
                return Err(BatchRefusal::WrongBytes { signature, entry, offset });
            }
            let (gap, rest) = rest.split_at(GAP_BYTES);
            if gap.iter().any(|&byte| byte != BEFORE) {
                return Err(BatchRefusal::TouchedNeighbour { signature, entry });
            }
            left = rest;
        }
        Ok(())
    }

    /// The width from which on an entry beside a large one does not make the call wait.
    fn measure_blocking(
        &mut self,
        driver: &Arc<CudaDriver>,
        signature: BatchSignature,
        large_bytes: u64,
    ) -> Result<u64, BatchRefusal> {
        let small_max = SMALL_BYTES[SMALL_BYTES.len() - 1];
        let scratch = Scratch::new(driver, large_bytes.saturating_add(small_max) as usize)?;
        let mut alone_below_bytes = 0;
        for (index, &small) in SMALL_BYTES.iter().enumerate() {
            // A call that is only slow for once does not count, so the best of three does.
            let mut blocks = true;
            for _ in 0..3 {
                self.clear();
                self.push(scratch.host.address(), scratch.device, large_bytes as usize, 0);
                let (source, target) = (scratch.host.address() + large_bytes, scratch.device + large_bytes);
                self.push(source, target, small as usize, 1);
                let begin = Instant::now();
                let code = self.call(driver, signature, scratch.copy);
                let returned = begin.elapsed();
                if code != 0 {
                    return Err(BatchRefusal::Refused { signature, code, reason: driver.reason(code) });
                }
                // SAFETY: the stream is the scratch's.
                scratch.done("wait", unsafe { (driver.calls.stream_synchronize)(scratch.copy) })?;
                blocks &= returned * 2 > begin.elapsed();
            }
            if blocks {
                let Some(&next) = SMALL_BYTES.get(index + 1) else {
                    return Err(BatchRefusal::Blocks { bytes: small });
                };
                alone_below_bytes = next;
            }
        }
        Ok(alone_below_bytes)
    }

    pub(super) fn reserve(&mut self, copy_count: usize) {
        self.clear();
        self.sources.reserve(copy_count);
        self.targets.reserve(copy_count);
        self.sizes.reserve(copy_count);
        self.copies.reserve(copy_count);
    }

    fn clear(&mut self) {
        self.sources.clear();
        self.targets.clear();
        self.sizes.clear();
        self.copies.clear();
    }

    fn bytes(&self) -> u64 {
        self.sizes.iter().map(|&bytes| bytes as u64).sum()
    }

    fn push(&mut self, source: u64, target: u64, bytes: usize, copy: usize) {
        self.sources.push(source);
        self.targets.push(target);
        self.sizes.push(bytes);
        self.copies.push(copy);
    }

    /// Enqueues every entry. Returns the driver's code.
    fn call(&mut self, driver: &CudaDriver, signature: BatchSignature, stream: CUstream) -> i32 {
        let nowhere = || CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_INVALID, id: 0 };
        let mut attributes = CUmemcpyAttributes {
            // The rows stay as they are until the stream is done, so the device may read them when it comes to them.
            srcAccessOrder: CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
            srcLocHint: nowhere(),
            dstLocHint: nowhere(),
            flags: 0,
        };
        // All entries have the attributes of index 0.
        let mut first = 0;
        let (targets, sources) = (self.targets.as_mut_ptr(), self.sources.as_mut_ptr());
        let (sizes, count) = (self.sizes.as_mut_ptr(), self.sizes.len());
        match signature {
            BatchSignature::New => {
                let call = driver.calls.copy_batch.expect("the form that was found");
                // SAFETY: the lists have `count` entries; where they point is as `copy_all` or the probe says.
                unsafe { call(targets, sources, sizes, count, &raw mut attributes, &raw mut first, 1, stream) }
            }
            BatchSignature::Old => {
                let call = driver.calls.copy_batch_with_index.expect("the form that was found");
                let mut failed = 0;
                let failed = &raw mut failed;
                // SAFETY: as above.
                unsafe { call(targets, sources, sizes, count, &raw mut attributes, &raw mut first, 1, failed, stream) }
            }
        }
    }

    /// Enqueues copies, wide pieces in one call. The context is current.
    pub(super) fn copy_all(
        &mut self,
        device: &CudaDevice,
        driver: &CudaDriver,
        stream: Stream,
        copies: &[RowCopy],
    ) -> Result<(), CopyError> {
        let BatchReport::On { signature, alone_below_bytes } = self.report else {
            unreachable!("batches that are off")
        };
        self.clear();
        for (index, copy) in copies.iter().enumerate() {
            let refused = |source| CopyError { index, source };
            if copy.widest_piece() < alone_below_bytes {
                device.copy_one(&driver.calls, stream, copy).map_err(refused)?;
                continue;
            }
            let target = device.locate("row copy", &copy.target, copy.row_bytes, copy.row_count).map_err(refused)?;
            let on_host = matches!(copy.source, Source::Host(_));
            // Nothing of a copy is enqueued that is refused at a later row.
            device.pieces(copy, target, |_, _, _| Ok(())).map_err(refused)?;
            let piece = |source, target, bytes: u64| {
                // A registration's end may have cut off less than may go with others.
                if bytes < alone_below_bytes {
                    return device.copy_piece(&driver.calls, stream, on_host, source, target, bytes);
                }
                self.push(source, target, bytes as usize, index);
                Ok(())
            };
            device.pieces(copy, target, piece).map_err(refused)?;
        }
        if self.sizes.len() > 1 {
            let code = self.call(driver, signature, handle_of(stream));
            if code == 0 {
                return Ok(());
            }
            let (entries, reason) = (self.sizes.len(), driver.reason(code));
            if !matches!(code, INVALID_VALUE | NOT_SUPPORTED) {
                // What failed is not the batch: something before it, or the device as a whole.
                let source = DeviceError::Driver { operation: "batch", bytes: self.bytes(), code, reason };
                return Err(CopyError { index: self.copies[0], source });
            }
            self.turn_off(BatchRefusal::RefusedLater { entries, code, reason });
        }
        // One entry needs no batch; and what a batch was refused for may go one by one, with the same bytes again.
        for entry in 0..self.sizes.len() {
            let (source, target, bytes) = (self.sources[entry], self.targets[entry], self.sizes[entry]);
            let index = self.copies[entry];
            let on_host = matches!(copies[index].source, Source::Host(_));
            device
                .copy_piece(&driver.calls, stream, on_host, source, target, bytes as u64)
                .map_err(|source| CopyError { index, source })?;
        }
        Ok(())
    }
}

/// What a probe works with, given back when it ends.
struct Scratch {
    driver: Arc<CudaDriver>,
    host: PinnedBytes,
    device: CUdeviceptr,
    prepare: CUstream,
    copy: CUstream,
    prepared: cudarc::driver::sys::CUevent,
}

fn no_probe(driver: &CudaDriver, operation: &'static str, code: i32) -> BatchRefusal {
    BatchRefusal::NoProbe { operation, reason: driver.reason(code) }
}

impl Scratch {
    fn new(driver: &Arc<CudaDriver>, bytes: usize) -> Result<Self, BatchRefusal> {
        let calls = &driver.calls;
        let host = PinnedBytes::new(driver, bytes).map_err(|code| no_probe(driver, "pinned memory", code))?;
        let null = std::ptr::null_mut();
        let mut scratch =
            Self { driver: Arc::clone(driver), host, device: 0, prepare: null, copy: null, prepared: null.cast() };
        // SAFETY: a context is current, for this and the calls below; each writes one handle.
        let code = unsafe { (calls.memory_allocate)(&raw mut scratch.device, bytes) };
        scratch.done("device memory", code)?;
        // SAFETY: as above.
        let code = unsafe { (calls.stream_create)(&raw mut scratch.prepare, STREAM_NON_BLOCKING) };
        scratch.done("stream", code)?;
        // SAFETY: as above.
        let code = unsafe { (calls.stream_create)(&raw mut scratch.copy, STREAM_NON_BLOCKING) };
        scratch.done("stream", code)?;
        // SAFETY: as above.
        let code = unsafe { (calls.event_create)(&raw mut scratch.prepared, EVENT_DISABLE_TIMING) };
        scratch.done("event", code)?;
        Ok(scratch)
    }

    fn done(&self, operation: &'static str, code: i32) -> Result<(), BatchRefusal> {
        if code == 0 { Ok(()) } else { Err(no_probe(&self.driver, operation, code)) }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let calls = &self.driver.calls;
        for stream in [self.prepare, self.copy] {
            if !stream.is_null() {
                // SAFETY: the stream was made here; its work is done before its memory goes.
                unsafe { (calls.stream_synchronize)(stream) };
                // SAFETY: as above, and it is used no more.
                unsafe { (calls.stream_destroy)(stream) };
            }
        }
        if !self.prepared.is_null() {
            // SAFETY: the event was made here and is used no more.
            unsafe { (calls.event_destroy)(self.prepared) };
        }
        if self.device != 0 {
            // SAFETY: the memory was allocated here and is used no more.
            unsafe { (calls.memory_free)(self.device) };
        }
    }
}
