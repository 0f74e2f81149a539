//! Host memory that the driver knows: registered by the program or allocated for it.
//!
//! Ranges are kept exactly as they were given: a driver pins whole pages, but the rest of a page belongs to somebody
//! else, and a copy that strays there is a mistake. Whether two registrations collide goes by pages, as it does with
//! a driver that pins them.

use std::collections::BTreeMap;

use crate::memory::Room;

pub(crate) const PORTABLE: u32 = 1;
pub(crate) const DEVICE_MAP: u32 = 2;
pub(crate) const IO_MEMORY: u32 = 4;
pub(crate) const READ_ONLY: u32 = 8;
pub(crate) const PAGE: u64 = 4096;

#[derive(Debug)]
pub(crate) struct Pinned {
    pub(crate) base: u64,
    pub(crate) bytes: u64,
    pub(crate) flags: u32,
    pub(crate) context: u64,
    /// Memory of ours, or none if the program's own was registered.
    pub(crate) room: Option<Room>,
}

/// What a range of host memory is to the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostKind {
    /// In one registration or allocation.
    Pinned { read_only: bool },
    /// The driver knows none of it.
    Pageable,
    /// Partly registered, or in two registrations.
    Mixed,
}

#[derive(Debug, Default)]
pub(crate) struct HostMemory {
    pinned: BTreeMap<u64, Pinned>,
    pub(crate) registered_bytes: u64,
}

impl HostMemory {
    pub(crate) fn count(&self, allocated: bool) -> usize {
        self.pinned.values().filter(|pinned| pinned.room.is_some() == allocated).count()
    }

    pub(crate) fn holding(&self, address: u64) -> Option<&Pinned> {
        let (_, pinned) = self.pinned.range(..=address).next_back()?;
        (address < pinned.base + pinned.bytes).then_some(pinned)
    }

    pub(crate) fn classify(&self, address: u64, bytes: u64) -> HostKind {
        let end = address.saturating_add(bytes);
        match self.holding(address) {
            Some(pinned) if end <= pinned.base + pinned.bytes => {
                HostKind::Pinned { read_only: pinned.flags & READ_ONLY != 0 && pinned.room.is_none() }
            }
            Some(_) => HostKind::Mixed,
            None if self.pinned.range(address..end).next().is_some() => HostKind::Mixed,
            None => HostKind::Pageable,
        }
    }

    /// Whether kernels may touch all of a range: pinned memory in one piece or several, one behind the other.
    pub(crate) fn is_pinned_throughout(&self, address: u64, bytes: u64, write: bool) -> bool {
        let (mut at, end) = (address, address.saturating_add(bytes));
        while at < end {
            let Some(pinned) = self.holding(at) else { return false };
            if write && pinned.flags & READ_ONLY != 0 && pinned.room.is_none() {
                return false;
            }
            at = pinned.base + pinned.bytes;
        }
        bytes > 0
    }

    /// Whether a page of the range is already pinned.
    pub(crate) fn collides(&self, address: u64, bytes: u64) -> bool {
        let (low, high) = (address / PAGE, (address + bytes).div_ceil(PAGE));
        // Pinned ranges share no page, so only the last that begins below the end can reach into these pages.
        let before = self.pinned.range(..high * PAGE).next_back();
        before.is_some_and(|(_, pinned)| (pinned.base + pinned.bytes).div_ceil(PAGE) > low)
    }

    pub(crate) fn insert(&mut self, pinned: Pinned) {
        if pinned.room.is_none() {
            self.registered_bytes += pinned.bytes;
        }
        self.pinned.insert(pinned.base, pinned);
    }

    /// Takes out what begins here, if it is of the kind.
    pub(crate) fn remove(&mut self, base: u64, allocated: bool) -> Option<Pinned> {
        if self.pinned.get(&base)?.room.is_some() != allocated {
            return None;
        }
        let pinned = self.pinned.remove(&base)?;
        if !allocated {
            self.registered_bytes -= pinned.bytes;
        }
        Some(pinned)
    }

    /// Bases of what a context pinned, and whether it is memory of ours.
    pub(crate) fn of_context(&self, context: u64) -> Vec<(u64, bool)> {
        let of_it = self.pinned.values().filter(|pinned| pinned.context == context);
        of_it.map(|pinned| (pinned.base, pinned.room.is_some())).collect()
    }
}

/// How the process has mapped a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mapping {
    Writable,
    ReadOnly,
    /// Some of it is not mapped, or not readable.
    Missing,
}

/// Looks a range up in `/proc/self/maps`. Where there is none, memory is taken to be writable.
pub(crate) fn mapping_of(address: u64, bytes: u64) -> Mapping {
    match std::fs::read("/proc/self/maps") {
        Ok(maps) => mapping_in(&maps, address, bytes),
        Err(_) => Mapping::Writable,
    }
}

fn mapping_in(maps: &[u8], address: u64, bytes: u64) -> Mapping {
    let (mut reached, end, mut writable) = (address, address.saturating_add(bytes), true);
    for line in maps.split(|byte| *byte == b'\n') {
        // A line is "low-high rwxp ...", and lines ascend.
        let Some((low, rest)) = hexadecimal(line) else { continue };
        let Some((high, rest)) = rest.get(1..).and_then(hexadecimal) else { continue };
        if high <= reached {
            continue;
        }
        if low > reached || rest.get(1) != Some(&b'r') {
            return Mapping::Missing;
        }
        writable &= rest.get(2) == Some(&b'w');
        reached = high;
        if reached >= end {
            return if writable { Mapping::Writable } else { Mapping::ReadOnly };
        }
    }
    Mapping::Missing
}

fn hexadecimal(text: &[u8]) -> Option<(u64, &[u8])> {
    let length = text.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let digits = std::str::from_utf8(&text[..length]).ok()?;
    Some((u64::from_str_radix(digits, 16).ok()?, &text[length..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_read_from_the_list() {
        let maps = b"1000-3000 r--p 0 0 0 a\n3000-5000 rw-p 0 0 0\n6000-7000 rw-p 0\n7000-8000 ---p 0\n";
        let cases = [
            (0x1000, 0x1000, Mapping::ReadOnly),
            (0x3000, 0x2000, Mapping::Writable),
            (0x2fff, 2, Mapping::ReadOnly),
            (0x4fff, 2, Mapping::Missing),
            (0x0fff, 2, Mapping::Missing),
            (0x6800, 0x900, Mapping::Missing),
            (0x9000, 1, Mapping::Missing),
        ];
        for (address, bytes, mapping) in cases {
            assert_eq!(mapping_in(maps, address, bytes), mapping, "{address:#x}");
        }
    }

    #[test]
    fn ranges_are_exact_and_collisions_go_by_pages() {
        let mut memory = HostMemory::default();
        let pinned = |base, bytes| Pinned { base, bytes, flags: 0, context: 1, room: None };
        memory.insert(pinned(0x10010, 0x100));
        memory.insert(pinned(0x20000, 0x1000));
        memory.insert(pinned(0x21000, 0x1000));
        assert_eq!(memory.classify(0x10010, 0x100), HostKind::Pinned { read_only: false });
        assert_eq!(memory.classify(0x1000f, 2), HostKind::Mixed);
        assert_eq!(memory.classify(0x10010, 0x101), HostKind::Mixed);
        assert_eq!(memory.classify(0x20800, 0x1000), HostKind::Mixed);
        assert_eq!(memory.classify(0x10110, 0x100), HostKind::Pageable);
        assert!(memory.collides(0x10800, 8) && memory.collides(0xf000, 0x1001));
        assert!(!memory.collides(0x11000, 8) && !memory.collides(0xf000, 0x1000));
        assert_eq!(memory.registered_bytes, 0x2100);
        assert!(memory.remove(0x10011, false).is_none() && memory.remove(0x10010, true).is_none());
        assert!(memory.remove(0x10010, false).is_some());
    }
}
