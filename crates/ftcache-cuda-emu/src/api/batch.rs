//! Many copies by one call.
//!
//! The manual: a batch as a whole is in stream order, its copies are in none among themselves. When a source is read is
//! said by its attributes: in stream order, during the call, or at any time.

use std::ffi::{c_int, c_uint};

use crate::codes::{Answer, INVALID_VALUE, SUCCESS};
use crate::operation::{Move, Task, Touch, Work};
use crate::rows::Rows;
use crate::session::{Session, in_context, put};
use crate::settings::Batch;

use super::copy::Side;

/// `CUmemcpyAttributes`, with integers where the header has enumerations.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Attributes {
    source_access_order: c_uint,
    source_location: [c_int; 2],
    target_location: [c_int; 2],
    flags: c_uint,
}

const _: () = assert!(size_of::<Attributes>() == size_of::<cudarc::driver::sys::CUmemcpyAttributes>());

/// `CUmemcpySrcAccessOrder`.
const STREAM: u32 = 1;
const DURING_CALL: u32 = 2;
const ANY: u32 = 3;

/// The arrays of a call.
struct Arrays {
    targets: *const u64,
    sources: *const u64,
    sizes: *const usize,
    count: usize,
    attributes: *const Attributes,
    attribute_starts: *const usize,
    attribute_count: usize,
}

struct Entry {
    target: u64,
    source: u64,
    bytes: u64,
    order: u32,
}

fn item<T: Copy>(array: *const T, at: usize) -> T {
    // SAFETY: not null and at least this long, by the manual and the check for null before.
    unsafe { array.wrapping_add(at).read() }
}

impl Arrays {
    fn entries(&self, session: &mut Session<'_>) -> Answer<Vec<Entry>> {
        let null = self.targets.is_null()
            || self.sources.is_null()
            || self.sizes.is_null()
            || self.attributes.is_null()
            || self.attribute_starts.is_null();
        if null || self.count == 0 || self.attribute_count == 0 || self.attribute_count > self.count {
            let (count, attributes) = (self.count, self.attribute_count);
            return Err(
                session.refuse(INVALID_VALUE, &format!("{count} copies, {attributes} attributes, null: {null}"))
            );
        }
        let mut entries = Vec::with_capacity(self.count);
        let mut kind = 0;
        for at in 0..self.count {
            if at == 0 && item(self.attribute_starts, 0) != 0 {
                return Err(session.refuse(INVALID_VALUE, "the first attributes do not begin with the first copy"));
            }
            if at > 0 && kind + 1 < self.attribute_count && item(self.attribute_starts, kind + 1) == at {
                kind += 1;
            }
            let attributes = item(self.attributes, kind);
            let order = attributes.source_access_order;
            // CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE is the only flag there is.
            if !(STREAM..=ANY).contains(&order) || attributes.flags & !1 != 0 {
                let what = format!("copy {at} has source access order {order} and flags {:#x}", attributes.flags);
                return Err(session.refuse(INVALID_VALUE, &what));
            }
            let (target, source) = (item(self.targets, at), item(self.sources, at));
            entries.push(Entry { target, source, bytes: item(self.sizes, at) as u64, order });
        }
        if kind + 1 != self.attribute_count {
            return Err(session.refuse(INVALID_VALUE, "indices of attributes do not ascend, or go past the copies"));
        }
        Ok(entries)
    }
}

/// A batch; where a copy of it is at fault, its index is left in `fail`.
fn batch(session: &mut Session<'_>, arrays: &Arrays, stream: u64, fail: &mut usize) -> Answer {
    let timeline = session.stream(stream)?;
    if stream <= 1 {
        return Err(session.refuse(INVALID_VALUE, "the legacy stream takes no batches"));
    }
    session.not_captured(timeline, "a batch")?;
    let entries = arrays.entries(session)?;
    let behaviour = session.settings.batch;
    if let Batch::Fails { code } = behaviour {
        return Err(code);
    }
    let (mut moves, mut touches, mut staged) = (Vec::new(), Vec::new(), Vec::new());
    let (mut reads, mut writes, mut waits) = (Vec::new(), Vec::new(), false);
    for (at, entry) in entries.iter().enumerate() {
        *fail = at;
        if entry.bytes == 0 {
            return Err(session.refuse(INVALID_VALUE, &format!("copy {at} is of no bytes")));
        }
        let (from, to) = (Rows::span(entry.source, entry.bytes), Rows::span(entry.target, entry.bytes));
        let from_pageable = session.is_pageable(Side::Unified, &from, false)?;
        let to_pageable = session.is_pageable(Side::Unified, &to, true)?;
        session.pageable_copies += u64::from(from_pageable || to_pageable);
        waits |= to_pageable;
        let mut one = Move::line(entry.target, entry.source, entry.bytes);
        // A driver may read at once what it may read at any time; over seeds this one does both.
        let at_once = entry.order == DURING_CALL || (entry.order == ANY && session.random.chance(4));
        let early = entry.order != STREAM;
        if from_pageable || entry.order == DURING_CALL {
            session.touch_by_host(from, false, false);
        }
        if from_pageable || at_once {
            let copy = session.stage(&from, entry.bytes, entry.bytes, 1);
            one.source = copy.as_ptr() as u64;
            staged.push(copy);
        }
        // A source read by now was checked like any access of the host, and is over.
        if !from_pageable && entry.order != DURING_CALL {
            touches.push(Touch { early, ..Touch::read(from) });
            reads.push((from.base, from.end(), at));
        }
        match to_pageable {
            true => session.touch_by_host(to, true, false),
            false => touches.push(Touch::write(to)),
        }
        moves.push(one);
        writes.push((to.base, to.end(), at));
    }
    *fail = usize::MAX;
    report_overlaps(session, reads, writes);
    let mut task = Task::new(session.call, Work::Moves(moves), touches);
    task.staged = staged;
    task.tampered = tampering(session, &entries);
    session.submit(timeline, task)?;
    if waits {
        return session.synchronize(timeline);
    }
    if let Batch::BlocksOnSmallEntries { below_bytes } = behaviour
        && entries.iter().any(|entry| entry.bytes < below_bytes)
    {
        // It blocks, and promises nothing: what the host may rely on stays as it was.
        let goal = (timeline, session.timelines[timeline].enqueued);
        return session.wait_for(&[goal]);
    }
    Ok(())
}

/// Bytes that a driver would spoil which works as the settings say.
fn tampering(session: &mut Session<'_>, entries: &[Entry]) -> Vec<u64> {
    match session.settings.batch {
        Batch::WrongBytes { entry } if entry < entries.len() => {
            let Entry { target, bytes, .. } = entries[entry];
            vec![target + session.random.below(bytes as usize) as u64]
        }
        Batch::TouchesNeighbours { entry } if entry < entries.len() => {
            let Entry { target, bytes, .. } = entries[entry];
            let Some((base, end)) = session.memory.holding(target).map(|live| (live.base, live.base + live.bytes))
            else {
                return Vec::new();
            };
            let neighbours = [(target > base).then(|| target - 1), (target + bytes < end).then_some(target + bytes)];
            neighbours.into_iter().flatten().collect()
        }
        _ => Vec::new(),
    }
}

/// Copies of a batch are unordered: a target must not meet another target or source.
fn report_overlaps(session: &mut Session<'_>, reads: Vec<(u64, u64, usize)>, writes: Vec<(u64, u64, usize)>) {
    let call = session.call;
    let mut spans: Vec<(u64, u64, usize, bool)> =
        writes.into_iter().map(|(low, high, at)| (low, high, at, true)).collect();
    spans.extend(reads.into_iter().map(|(low, high, at)| (low, high, at, false)));
    spans.sort_unstable();
    // The furthest write and the furthest access so far.
    let mut furthest: [Option<(u64, usize)>; 2] = [None; 2];
    for (low, high, at, write) in spans {
        let [any, wrote] = furthest;
        if let Some((reached, other)) = if write { any } else { wrote }
            && reached > low
        {
            let shared = reached.min(high) - low;
            session.race(format!("{call}: copies {other} and {at} of a batch both touch [{low:#x}, +{shared})"));
        }
        let further =
            |old: Option<(u64, usize)>| if old.is_none_or(|old| old.0 < high) { Some((high, at)) } else { old };
        furthest[0] = further(any);
        furthest[1] = if write { further(wrote) } else { wrote };
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyBatchAsync_v2(
    targets: *const u64,
    sources: *const u64,
    sizes: *const usize,
    count: usize,
    attributes: *const std::ffi::c_void,
    attribute_starts: *const usize,
    attribute_count: usize,
    stream: u64,
) -> c_int {
    let attributes = attributes.cast();
    let arrays = Arrays { targets, sources, sizes, count, attributes, attribute_starts, attribute_count };
    in_context("cuMemcpyBatchAsync_v2", |session| batch(session, &arrays, stream, &mut 0))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyBatchAsync(
    targets: *const u64,
    sources: *const u64,
    sizes: *const usize,
    count: usize,
    attributes: *const std::ffi::c_void,
    attribute_starts: *const usize,
    attribute_count: usize,
    fail_index: *mut usize,
    stream: u64,
) -> c_int {
    let attributes = attributes.cast();
    let arrays = Arrays { targets, sources, sizes, count, attributes, attribute_starts, attribute_count };
    let mut fail = usize::MAX;
    let code = in_context("cuMemcpyBatchAsync", |session| batch(session, &arrays, stream, &mut fail));
    if code != SUCCESS && !fail_index.is_null() {
        // SIZE_MAX where no one copy is at fault, by the manual.
        let _ = put(fail_index, fail);
    }
    code
}
