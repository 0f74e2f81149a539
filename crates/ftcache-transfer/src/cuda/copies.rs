//! Row copies as the driver takes them: without gaps, with gaps in one call, or piece by piece.
//!
//! *Unsafe*, relying on one promise: sources on the host stay readable until the copy is done
//! ([`Device::copy_rows`](crate::Device::copy_rows)). Everything on the device is checked against our memory.

use std::ffi::c_void;

use cudarc::driver::sys::{CUDA_MEMCPY2D, CUmemorytype};

use super::driver::Calls;
use super::{CudaDevice, handle_of};
use crate::{DeviceError, DeviceSpan, HostSpan, RowCopy, Source, Stream};

impl CudaDevice {
    /// The address of a span's first row, once every row is known to lie in the memory.
    pub(super) fn locate(
        &self,
        operation: &'static str,
        span: &DeviceSpan,
        row_bytes: u64,
        row_count: u64,
    ) -> Result<u64, DeviceError> {
        let unknown = DeviceError::UnknownHandle { what: "memory", handle: span.memory.0 };
        let memory_bytes = self.blocks.get(&span.memory.0).ok_or(unknown)?.bytes;
        span.check(operation, memory_bytes, row_bytes, row_count)?;
        Ok(span.memory.0 + span.offset)
    }

    /// Calls `each` with the source, target and bytes of every piece of a copy that lies without gaps on both sides.
    pub(super) fn pieces(
        &self,
        copy: &RowCopy,
        target: u64,
        mut each: impl FnMut(u64, u64, u64) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let (base, stride, on_host) = self.source(copy)?;
        let bytes = copy.widest_piece();
        let count = if bytes == copy.bytes() { 1 } else { copy.row_count };
        for row in 0..count {
            let (mut source, mut target, mut left) = (base + row * stride, target + row * copy.target.stride, bytes);
            while left > 0 {
                // On the host, a piece ends where its registration does.
                let piece = if on_host { self.registered(copy, source)?.min(left) } else { left };
                each(source, target, piece)?;
                (source, target, left) = (source + piece, target + piece, left - piece);
            }
        }
        Ok(())
    }

    /// Address and stride of a copy's source, and whether it is on the host.
    fn source(&self, copy: &RowCopy) -> Result<(u64, u64, bool), DeviceError> {
        match &copy.source {
            Source::Host(HostSpan { base, stride }) => Ok((base.addr() as u64, *stride, true)),
            Source::Device(span) => {
                let first = self.locate("row copy", span, copy.row_bytes, copy.row_count)?;
                copy.check_apart(span)?;
                Ok((first, span.stride, false))
            }
        }
    }

    /// Bytes from an address on up to its registration's end.
    fn registered(&self, copy: &RowCopy, address: u64) -> Result<u64, DeviceError> {
        let reason = || format!("the host memory at {address:#x} is not registered");
        let failed = || DeviceError::Failed { operation: "row copy", bytes: copy.bytes(), reason: reason() };
        self.ranges.left(address).ok_or_else(failed)
    }

    /// Rows of a copy with gaps in one call, if the driver can: in one registration, with strides that it takes.
    fn copy_with_gaps(&self, calls: &Calls, stream: Stream, copy: &RowCopy, target: u64) -> Result<bool, DeviceError> {
        let (source, stride, on_host) = self.source(copy)?;
        let takes = |stride: u64| (copy.row_bytes..=self.max_pitch).contains(&stride);
        if copy.widest_piece() == copy.bytes() || !takes(stride) || !takes(copy.target.stride) {
            return Ok(false);
        }
        if on_host && self.registered(copy, source)? < (copy.row_count - 1) * stride + copy.row_bytes {
            return Ok(false);
        }
        let (host, device) = (CUmemorytype::CU_MEMORYTYPE_HOST, CUmemorytype::CU_MEMORYTYPE_DEVICE);
        let call = CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: if on_host { host } else { device },
            srcHost: if on_host { source as *const c_void } else { std::ptr::null() },
            srcDevice: if on_host { 0 } else { source },
            srcArray: std::ptr::null_mut(),
            srcPitch: stride as usize,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: device,
            dstHost: std::ptr::null_mut(),
            dstDevice: target,
            dstArray: std::ptr::null_mut(),
            dstPitch: copy.target.stride as usize,
            WidthInBytes: copy.row_bytes as usize,
            Height: copy.row_count as usize,
        };
        // SAFETY: the rows on the device lie in memory of ours (`locate`); those on the host are kept by our caller.
        let code = unsafe { (calls.copy_rows)(&raw const call, handle_of(stream)) };
        self.done("row copy", copy.bytes(), code).map(|()| true)
    }

    pub(super) fn copy_one(&self, calls: &Calls, stream: Stream, copy: &RowCopy) -> Result<(), DeviceError> {
        let target = self.locate("row copy", &copy.target, copy.row_bytes, copy.row_count)?;
        if self.copy_with_gaps(calls, stream, copy, target)? {
            return Ok(());
        }
        let on_host = matches!(copy.source, Source::Host(_));
        // Nothing of a copy is enqueued that is refused at a later row.
        self.pieces(copy, target, |_, _, _| Ok(()))?;
        self.pieces(copy, target, |source, target, bytes| {
            self.copy_piece(calls, stream, on_host, source, target, bytes)
        })
    }

    /// Bytes without gaps, as [`pieces`](Self::pieces) gives them.
    pub(super) fn copy_piece(
        &self,
        calls: &Calls,
        stream: Stream,
        on_host: bool,
        source: u64,
        target: u64,
        bytes: u64,
    ) -> Result<(), DeviceError> {
        let (length, handle) = (bytes as usize, handle_of(stream));
        let code = if on_host {
            // SAFETY: the target lies in memory of ours (`locate`); the source is kept by whoever asked for the copy.
            unsafe { (calls.copy_to_device)(target, source as *const c_void, length, handle) }
        } else {
            // SAFETY: both lie in memory of ours (`locate`).
            unsafe { (calls.copy_on_device)(target, source, length, handle) }
        };
        self.done("row copy", bytes, code)
    }
}
