//! Device memory: ordinary memory of the process between red zones, poisoned when fresh and when freed.
//!
//! *Unsafe*, relying on ourselves: a room is made here, freed here, and every pointer into it is kept inside it by the
//! lengths beside it. Kernels of a test write through raw addresses, which is why bytes are only ever reached by
//! copies.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::{BTreeMap, VecDeque};

use crate::random::Random;

/// Bytes on each side of an allocation that nobody may write; also the alignment of device memory, as the manual has
/// it.
const RED_ZONE: usize = 256;
/// The length of the pattern that memory is filled with.
const TILE: usize = 256;
/// What is kept of freed memory to see late writes to it; more would only cost tests their memory.
const QUARANTINE_BYTES: usize = 4 << 20;
/// Freed memory is filled with this: unlike the fresh pattern it is one byte, so a stale read is told by sight.
const FREED: u8 = 0xDF;

/// A piece of memory of the process.
#[derive(Debug)]
pub(crate) struct Room {
    pointer: *mut u8,
    layout: Layout,
}

// SAFETY: the room is owned by whoever holds this, as a boxed slice would be; nothing about it is tied to a thread.
unsafe impl Send for Room {}

impl Room {
    pub(crate) fn new(bytes: usize, alignment: usize) -> Option<Self> {
        let layout = Layout::from_size_align(bytes.max(1), alignment).ok()?;
        // SAFETY: the layout is not of zero bytes.
        let pointer = unsafe { alloc(layout) };
        (!pointer.is_null()).then_some(Self { pointer, layout })
    }

    pub(crate) fn address(&self) -> u64 {
        self.pointer as u64
    }

    /// Fills a part with a repeated pattern.
    pub(crate) fn fill(&mut self, start: usize, bytes: usize, pattern: &[u8]) {
        assert!(start + bytes <= self.layout.size(), "a fill stays in its room");
        let target = self.pointer.wrapping_add(start);
        let first = pattern.len().min(bytes);
        // SAFETY: the part is inside the room, and the pattern is not.
        unsafe { std::ptr::copy_nonoverlapping(pattern.as_ptr(), target, first) };
        let mut filled = first;
        while filled < bytes {
            let more = filled.min(bytes - filled);
            // SAFETY: both pieces are inside the part, the second behind the first.
            unsafe { std::ptr::copy_nonoverlapping(target, target.wrapping_add(filled), more) };
            filled += more;
        }
    }

    /// A copy of a part.
    pub(crate) fn bytes(&self, start: usize, bytes: usize) -> Vec<u8> {
        assert!(start + bytes <= self.layout.size(), "a look stays in its room");
        let mut copy = vec![0_u8; bytes];
        // SAFETY: the part is inside the room, and all of it was filled when the room was made.
        unsafe { std::ptr::copy_nonoverlapping(self.pointer.wrapping_add(start), copy.as_mut_ptr(), bytes) };
        copy
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // SAFETY: made in `new` with this layout, and freed nowhere else.
        unsafe { dealloc(self.pointer, self.layout) };
    }
}

/// One allocation: a red zone, the memory, another red zone.
#[derive(Debug)]
pub(crate) struct Allocation {
    room: Room,
    pub(crate) base: u64,
    pub(crate) bytes: u64,
    pub(crate) context: u64,
}

/// The memory of one device.
#[derive(Debug)]
pub(crate) struct Memory {
    live: BTreeMap<u64, Allocation>,
    quarantine: VecDeque<Allocation>,
    quarantine_bytes: usize,
    pub(crate) used_bytes: u64,
    pub(crate) peak_bytes: u64,
    pub(crate) limit_bytes: u64,
    pattern: [u8; TILE],
}

impl Memory {
    pub(crate) fn new(limit_bytes: u64, seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x6672_6573_6820_6D65);
        let mut pattern = [0; TILE];
        // No zeros: what forgets to write must not look as if it had written them.
        pattern.iter_mut().for_each(|byte| *byte = 1 + random.below(255) as u8);
        Self {
            live: BTreeMap::new(),
            quarantine: VecDeque::new(),
            quarantine_bytes: 0,
            used_bytes: 0,
            peak_bytes: 0,
            limit_bytes,
            pattern,
        }
    }

    pub(crate) fn live_count(&self) -> usize {
        self.live.len()
    }

    /// Memory of this many bytes, unless that is more than is left.
    pub(crate) fn allocate(&mut self, bytes: u64, context: u64) -> Option<u64> {
        if bytes > self.limit_bytes.saturating_sub(self.used_bytes) {
            return None;
        }
        let length = usize::try_from(bytes).ok()?;
        let mut room = Room::new(length.checked_add(2 * RED_ZONE)?, RED_ZONE)?;
        let whole = length + 2 * RED_ZONE;
        room.fill(0, whole, &self.pattern);
        let base = room.address() + RED_ZONE as u64;
        self.used_bytes += bytes;
        self.peak_bytes = self.peak_bytes.max(self.used_bytes);
        self.live.insert(base, Allocation { room, base, bytes, context });
        Some(base)
    }

    /// The live allocation that an address lies in.
    pub(crate) fn holding(&self, address: u64) -> Option<&Allocation> {
        let (_, allocation) = self.live.range(..=address).next_back()?;
        (address < allocation.base + allocation.bytes).then_some(allocation)
    }

    /// Ends an allocation that begins here. What was damaged is told in words.
    pub(crate) fn free(&mut self, base: u64, damage: &mut Vec<String>) -> bool {
        let Some(mut allocation) = self.live.remove(&base) else { return false };
        self.check_zones(&allocation, damage);
        self.used_bytes -= allocation.bytes;
        let whole = allocation.bytes as usize + 2 * RED_ZONE;
        if whole > QUARANTINE_BYTES {
            return true;
        }
        allocation.room.fill(0, whole, &[FREED]);
        self.quarantine_bytes += whole;
        self.quarantine.push_back(allocation);
        while self.quarantine_bytes > QUARANTINE_BYTES {
            let Some(oldest) = self.quarantine.pop_front() else { break };
            Self::check_freed(&oldest, damage);
            self.quarantine_bytes -= oldest.bytes as usize + 2 * RED_ZONE;
        }
        true
    }

    /// Bases of what a context allocated.
    pub(crate) fn of_context(&self, context: u64) -> Vec<u64> {
        self.live.values().filter(|allocation| allocation.context == context).map(|live| live.base).collect()
    }

    /// Looks at every red zone and at all that is in quarantine.
    pub(crate) fn check(&self, damage: &mut Vec<String>) {
        self.live.values().for_each(|allocation| self.check_zones(allocation, damage));
        self.quarantine.iter().for_each(|allocation| Self::check_freed(allocation, damage));
    }

    fn check_zones(&self, allocation: &Allocation, damage: &mut Vec<String>) {
        let after = RED_ZONE + allocation.bytes as usize;
        for (start, side) in [(0, "before"), (after, "after")] {
            let zone = allocation.room.bytes(start, RED_ZONE);
            let cut = start % TILE;
            if zone[..TILE - cut] == self.pattern[cut..] && zone[TILE - cut..] == self.pattern[..cut] {
                continue;
            }
            let wrong = zone.iter().enumerate().find(|(at, byte)| **byte != self.pattern[(start + at) % TILE]);
            if let Some((at, byte)) = wrong {
                let address = allocation.room.address() + (start + at) as u64;
                let (base, bytes) = (allocation.base, allocation.bytes);
                damage.push(format!(
                    "red zone {side} the allocation [{base:#x}, +{bytes}) is damaged: byte {byte:#04x} at {address:#x}"
                ));
            }
        }
    }

    fn check_freed(allocation: &Allocation, damage: &mut Vec<String>) {
        let bytes = allocation.room.bytes(0, allocation.bytes as usize + 2 * RED_ZONE);
        if bytes.first() == Some(&FREED) && bytes[1..] == bytes[..bytes.len() - 1] {
            return;
        }
        let at = bytes.iter().position(|byte| *byte != FREED).unwrap_or(0);
        let (base, address) = (allocation.base, allocation.room.address() + at as u64);
        damage.push(format!("freed memory [{base:#x}, +{}) was written at {address:#x}", allocation.bytes));
    }
}
