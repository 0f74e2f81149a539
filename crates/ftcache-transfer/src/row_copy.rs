//! Rows in host memory copied at the rate of one long memcpy.
//!
//! A long memcpy writes past the caches; a short one does not, and has every line of its target read first. Rows with
//! gaps are many short ones, at two thirds of the rate (`cargo bench -p ftcache-transfer`). So rows that go together
//! and are more than caches hold are written past them here, too.
//!
//! *Unsafe*, relying on its caller: sources are readable, targets are writable, and no target lies over a source.

/// Rows that go together and are fewer bytes than this stay in the caches, where they may be used next.
const STREAMED_BYTES: u64 = 8 << 20;
/// Rows that are narrower leave too little between their unaligned ends.
const STREAMED_ROW_BYTES: u64 = 1024;

/// Copies `row_count` rows of `row_bytes`, `source_stride` and `target_stride` bytes apart.
///
/// # Safety
///
/// Every row of the source is readable, every row of the target is writable and used by nobody else, and rows of the
/// one do not overlap rows of the other.
pub(crate) unsafe fn copy_rows(
    source: *const u8,
    source_stride: u64,
    target: *mut u8,
    target_stride: u64,
    row_bytes: u64,
    row_count: u64,
) {
    let packed = source_stride == row_bytes && target_stride == row_bytes;
    let (piece_bytes, piece_count) = if packed { (row_bytes * row_count, 1) } else { (row_bytes, row_count) };
    // The library's own memcpy streams one long piece.
    let streamed = piece_count > 1 && row_bytes >= STREAMED_ROW_BYTES && row_bytes * row_count >= STREAMED_BYTES;
    for piece in 0..piece_count {
        let source = source.wrapping_add((piece * source_stride) as usize);
        let target = target.wrapping_add((piece * target_stride) as usize);
        if streamed {
            // SAFETY: a row, by our caller's promise.
            unsafe { stream(source, target, piece_bytes as usize) };
        } else {
            // SAFETY: a row, or all of them without gaps, by our caller's promise.
            unsafe { std::ptr::copy_nonoverlapping(source, target, piece_bytes as usize) };
        }
    }
    if streamed {
        fence();
    }
}

/// Copies bytes past the caches; [`fence`] orders them before what is written afterwards.
///
/// Four pages at a time, a line of each in turn: memory answers several pages at once faster than one after another,
/// as a long memcpy of the C library has it. Line by line without that took a third longer.
///
/// # Safety
///
/// As for `copy_nonoverlapping`.
#[cfg(target_arch = "x86_64")]
unsafe fn stream(source: *const u8, target: *mut u8, bytes: usize) {
    const PAGE: usize = 4096;
    const PAGES: usize = 4;

    let head = target.addr().wrapping_neg() % LINE;
    let lines = bytes.saturating_sub(head) / LINE;
    if lines == 0 {
        // SAFETY: our caller's promise.
        return unsafe { std::ptr::copy_nonoverlapping(source, target, bytes) };
    }
    // SAFETY: the bytes before the first whole line of the target.
    unsafe { std::ptr::copy_nonoverlapping(source, target, head) };
    let copy_line = |at: usize| {
        // SAFETY: a whole line of the target, and the bytes of the source that belong there.
        unsafe { stream_line(source.wrapping_add(at), target.wrapping_add(at)) };
    };
    let mut at = head;
    while at + PAGES * PAGE <= head + lines * LINE {
        for line in (0..PAGE).step_by(LINE) {
            (0..PAGES).for_each(|page| copy_line(at + page * PAGE + line));
        }
        at += PAGES * PAGE;
    }
    while at < head + lines * LINE {
        copy_line(at);
        at += LINE;
    }
    // SAFETY: the bytes after the last whole line.
    unsafe { std::ptr::copy_nonoverlapping(source.wrapping_add(at), target.wrapping_add(at), bytes - at) };
}

#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// One line, past the caches.
///
/// # Safety
///
/// The source's bytes are readable, and the target is a line that is writable and begins at a multiple of its size.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn stream_line(source: *const u8, target: *mut u8) {
    use std::arch::x86_64::{__m128i, _MM_HINT_T0, _mm_loadu_si128, _mm_prefetch, _mm_stream_si128};

    /// How far ahead lines are asked for.
    const AHEAD: usize = 8 * LINE;
    // SAFETY: what is asked for ahead need not be there.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(source.wrapping_add(AHEAD).cast()) };
    let (source, target) = (source.cast::<__m128i>(), target.cast::<__m128i>());
    // SAFETY: our caller's promise; the loads take any alignment.
    let quarters = [0, 1, 2, 3].map(|quarter| unsafe { _mm_loadu_si128(source.wrapping_add(quarter)) });
    for (quarter, bytes) in quarters.into_iter().enumerate() {
        // SAFETY: our caller's promise.
        unsafe { _mm_stream_si128(target.wrapping_add(quarter), bytes) };
    }
}

/// Elsewhere, the library's own copy.
///
/// # Safety
///
/// As for `copy_nonoverlapping`.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn stream(source: *const u8, target: *mut u8, bytes: usize) {
    // SAFETY: our caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(source, target, bytes) };
}

/// Streamed bytes are in no order with other writes until this.
fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every processor of this kind has it.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}
