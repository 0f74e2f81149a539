//! Copies and fills, one at a time.
//!
//! What is synchronous with whom is the manual's chapter "API synchronization behavior": a copy from pageable memory is
//! staged before the call returns and may arrive later, even if the call is not an asynchronous one; a copy to pageable
//! memory has arrived when the call returns.

use std::ffi::{c_int, c_uchar, c_uint, c_void};

use crate::codes::{Answer, INVALID_VALUE};
use crate::host_memory::HostKind;
use crate::operation::{Move, Task, Touch, Work};
use crate::rows::Rows;
use crate::session::{Session, in_context};

/// Which memory an address of a call is said to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Host,
    Device,
    /// Told by the address.
    Unified,
}

/// Whether the calling thread goes on before the copy is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    Async,
    Sync,
}

impl Session<'_> {
    /// Checks one side of a copy, and says whether it is memory the driver does not know.
    pub(crate) fn is_pageable(&mut self, side: Side, rows: &Rows, write: bool) -> Answer<bool> {
        let (base, extent) = (rows.base, rows.extent());
        if base == 0 {
            return Err(self.refuse(INVALID_VALUE, "an address is null"));
        }
        let on_device = self.memory.holding(base).is_some();
        if side == Side::Device || (side == Side::Unified && on_device) {
            let (call, context) = (self.call, self.context);
            return self.check_device(call, context, base, extent, write).map(|()| false);
        }
        if on_device {
            return Err(
                self.refuse(INVALID_VALUE, &format!("{base:#x} is device memory, and was given as host memory"))
            );
        }
        match self.host.classify(base, extent) {
            HostKind::Pageable => Ok(true),
            HostKind::Pinned { read_only: true } if write => {
                Err(self.refuse(INVALID_VALUE, &format!("{rows} is registered read-only and would be written")))
            }
            HostKind::Pinned { .. } => Ok(false),
            HostKind::Mixed => {
                let what = format!("{rows} is partly registered, or in two registrations");
                Err(self.refuse(INVALID_VALUE, &what))
            }
        }
    }

    /// Bytes of host memory as they are now.
    pub(crate) fn stage(&self, rows: &Rows, width: u64, pitch: u64, height: u64) -> Box<[u8]> {
        let mut staged = vec![0_u8; (width * height) as usize].into_boxed_slice();
        let target = staged.as_mut_ptr();
        for row in 0..height {
            let source = (rows.base + row * pitch) as *const u8;
            let target = target.wrapping_add((row * width) as usize);
            // SAFETY: the caller gave readable host memory, by the manual; the target is a row of what was just made.
            unsafe { std::ptr::copy_nonoverlapping(source, target, width as usize) };
        }
        staged
    }

    fn copy(&mut self, timeline: usize, mut bytes: Move, target: Side, source: Side, manner: Manner) -> Answer {
        if bytes.width == 0 || bytes.height == 0 {
            return Ok(());
        }
        let (from, to) = (bytes.source_rows(), bytes.target_rows());
        let from_pageable = self.is_pageable(source, &from, false)?;
        let to_pageable = self.is_pageable(target, &to, true)?;
        if let Some((low, high)) = from.overlap(&to) {
            self.refuse(INVALID_VALUE, &format!("[{low:#x}, +{}) is both source and target", high - low));
        }
        if from_pageable || to_pageable {
            self.not_captured(timeline, "a copy with pageable memory")?;
            self.pageable_copies += 1;
        }
        let mut touches = Vec::new();
        let mut staged = Vec::new();
        if from_pageable {
            if manner == Manner::Sync {
                self.synchronize(timeline)?;
            }
            self.touch_by_host(from, false, false);
            let copy = self.stage(&from, bytes.width, bytes.source_pitch, bytes.height);
            (bytes.source, bytes.source_pitch) = (copy.as_ptr() as u64, bytes.width);
            staged.push(copy);
        } else {
            touches.push(Touch::read(from));
        }
        if to_pageable {
            self.touch_by_host(to, true, false);
        } else {
            touches.push(Touch::write(to));
        }
        let mut task = Task::new(self.call, Work::Moves(vec![bytes]), touches);
        task.staged = staged;
        self.submit(timeline, task)?;
        match to_pageable || (manner == Manner::Sync && !from_pageable) {
            true => self.synchronize(timeline),
            false => Ok(()),
        }
    }

    /// Whether nothing is queued in a legacy stream and in those it waits for.
    fn is_idle(&self, legacy: usize) -> bool {
        let context = self.timelines[legacy].context;
        let waits_for = |at: usize| at == legacy || self.timelines[at].kind == crate::state::Kind::Blocking;
        !self.pending.iter().any(|&at| self.timelines[at].context == context && waits_for(at))
    }

    /// Waits for a stream, and for the streams that the legacy stream waits for if it is that.
    pub(crate) fn synchronize(&mut self, timeline: usize) -> Answer {
        if self.timelines[timeline].kind == crate::state::Kind::Legacy {
            // A place in the legacy stream behind all that it waits for. To reach it is no wait if nothing else is
            // queued.
            self.not_implicit(timeline)?;
            self.waited |= self.is_idle(timeline);
            let (thread, call) = (self.thread, self.call);
            self.enqueue(thread, timeline, Task::new(call, Work::Nothing, Vec::new()), Vec::new(), None);
        }
        let clock = self.timelines[timeline].clock.clone();
        let goal = (timeline, self.timelines[timeline].enqueued);
        self.wait_for(&[goal])?;
        let thread = self.thread;
        self.learn(thread, &clock);
        Ok(())
    }

    fn copy_line(&mut self, stream: Option<u64>, bytes: Move, target: Side, source: Side) -> Answer {
        let manner = if stream.is_some() { Manner::Async } else { Manner::Sync };
        if manner == Manner::Sync {
            self.unsafe_in_capture()?;
        }
        let timeline = self.stream(stream.unwrap_or(0))?;
        self.copy(timeline, bytes, target, source, manner)
    }

    fn fill(&mut self, stream: u64, base: u64, pitch: u64, value: u8, width: u64, height: u64) -> Answer {
        let timeline = self.stream(stream)?;
        if width == 0 || height == 0 {
            return Ok(());
        }
        if height > 1 && pitch < width {
            return Err(self.refuse(INVALID_VALUE, &format!("a pitch of {pitch} for rows of {width} bytes")));
        }
        let rows = Rows::new(base, width, pitch, height);
        let (call, context) = (self.call, self.context);
        self.check_device(call, context, base, rows.extent(), true)?;
        self.submit(timeline, Task::new(call, Work::Fill(rows, value), vec![Touch::write(rows)]))?;
        Ok(())
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoDAsync_v2(target: u64, source: *const c_void, bytes: usize, stream: u64) -> c_int {
    let line = Move::line(target, source as u64, bytes as u64);
    in_context("cuMemcpyHtoDAsync_v2", |session| session.copy_line(Some(stream), line, Side::Device, Side::Host))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoHAsync_v2(target: *mut c_void, source: u64, bytes: usize, stream: u64) -> c_int {
    let line = Move::line(target as u64, source, bytes as u64);
    in_context("cuMemcpyDtoHAsync_v2", |session| session.copy_line(Some(stream), line, Side::Host, Side::Device))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoDAsync_v2(target: u64, source: u64, bytes: usize, stream: u64) -> c_int {
    let line = Move::line(target, source, bytes as u64);
    in_context("cuMemcpyDtoDAsync_v2", |session| session.copy_line(Some(stream), line, Side::Device, Side::Device))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoD_v2(target: u64, source: *const c_void, bytes: usize) -> c_int {
    let line = Move::line(target, source as u64, bytes as u64);
    in_context("cuMemcpyHtoD_v2", |session| session.copy_line(None, line, Side::Device, Side::Host))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoH_v2(target: *mut c_void, source: u64, bytes: usize) -> c_int {
    let line = Move::line(target as u64, source, bytes as u64);
    in_context("cuMemcpyDtoH_v2", |session| session.copy_line(None, line, Side::Host, Side::Device))
}

/// `CUDA_MEMCPY2D`, with integers where the header has an enumeration.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Copy2d {
    source_x: usize,
    source_y: usize,
    source_type: c_uint,
    source_host: u64,
    source_device: u64,
    source_array: u64,
    source_pitch: usize,
    target_x: usize,
    target_y: usize,
    target_type: c_uint,
    target_host: u64,
    target_device: u64,
    target_array: u64,
    target_pitch: usize,
    width: usize,
    height: usize,
}

const _: () = assert!(size_of::<Copy2d>() == size_of::<cudarc::driver::sys::CUDA_MEMCPY2D>());

/// One side of a 2-D copy: what memory, its first byte, and its pitch.
fn side_of(
    session: &mut Session<'_>,
    (kind, host, device): (c_uint, u64, u64),
    (x, y, pitch): (usize, usize, usize),
    width: usize,
) -> Answer<(Side, u64, u64)> {
    use cudarc::driver::sys::{CUdevice_attribute, CUmemorytype};
    const HOST: u32 = CUmemorytype::CU_MEMORYTYPE_HOST as u32;
    const DEVICE: u32 = CUmemorytype::CU_MEMORYTYPE_DEVICE as u32;
    const UNIFIED: u32 = CUmemorytype::CU_MEMORYTYPE_UNIFIED as u32;
    let (side, base) = match kind {
        HOST => (Side::Host, host),
        DEVICE => (Side::Device, device),
        // The manual: for unified memory the device field holds the address.
        UNIFIED => (Side::Unified, device),
        _ => return Err(session.refuse(INVALID_VALUE, &format!("memory type {kind} is not emulated"))),
    };
    let used = x.checked_add(width).ok_or(INVALID_VALUE)?;
    let max = session.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_PITCH as i32);
    if pitch < used || pitch > max as usize {
        let what = format!("a pitch of {pitch} for rows of {width} bytes at {x}; {max} at most");
        return Err(session.refuse(INVALID_VALUE, &what));
    }
    let offset = y.checked_mul(pitch).and_then(|offset| offset.checked_add(x)).ok_or(INVALID_VALUE)?;
    Ok((side, base.checked_add(offset as u64).ok_or(INVALID_VALUE)?, pitch as u64))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpy2DAsync_v2(copy: *const c_void, stream: u64) -> c_int {
    in_context("cuMemcpy2DAsync_v2", |session| {
        if copy.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, and by the manual a CUDA_MEMCPY2D, whose every bit pattern this type takes.
        let copy = unsafe { copy.cast::<Copy2d>().read() };
        let timeline = session.stream(stream)?;
        if copy.width == 0 || copy.height == 0 {
            return Ok(());
        }
        let from = (copy.source_type, copy.source_host, copy.source_device);
        let to = (copy.target_type, copy.target_host, copy.target_device);
        let from = side_of(session, from, (copy.source_x, copy.source_y, copy.source_pitch), copy.width)?;
        let to = side_of(session, to, (copy.target_x, copy.target_y, copy.target_pitch), copy.width)?;
        let bytes = Move {
            target: to.1,
            target_pitch: to.2,
            source: from.1,
            source_pitch: from.2,
            width: copy.width as u64,
            height: copy.height as u64,
        };
        session.copy(timeline, bytes, to.0, from.0, Manner::Async)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8_v2(target: u64, value: c_uchar, bytes: usize) -> c_int {
    in_context("cuMemsetD8_v2", |session| {
        session.unsafe_in_capture()?;
        session.fill(0, target, bytes as u64, value, bytes as u64, 1)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8Async(target: u64, value: c_uchar, bytes: usize, stream: u64) -> c_int {
    let bytes = bytes as u64;
    in_context("cuMemsetD8Async", |session| session.fill(stream, target, bytes, value, bytes, 1))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD2D8Async(
    target: u64,
    pitch: usize,
    value: c_uchar,
    width: usize,
    height: usize,
    stream: u64,
) -> c_int {
    let (pitch, width, height) = (pitch as u64, width as u64, height as u64);
    in_context("cuMemsetD2D8Async", |session| session.fill(stream, target, pitch, value, width, height))
}
