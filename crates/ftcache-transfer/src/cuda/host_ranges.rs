//! Host memory that the driver knows: what was registered here, and what the engine had pinned before.
//!
//! A copy must not reach from one registration into the next, so every copy is cut where they end.

use std::collections::BTreeMap;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    bytes: u64,
    /// Whether we registered it.
    ours: bool,
}

/// Ranges by their first address; none overlaps another.
#[derive(Debug, Default)]
pub(super) struct HostRanges {
    ranges: BTreeMap<u64, Range>,
}

impl HostRanges {
    /// Adds a range that was registered here.
    pub(super) fn add(&mut self, base: u64, bytes: u64) {
        self.forget_foreign(base, bytes);
        self.ranges.insert(base, Range { bytes, ours: true });
    }

    /// Adds a range that somebody else keeps pinned.
    pub(super) fn add_foreign(&mut self, base: u64, bytes: u64) {
        if self.ranges.get(&base).is_some_and(|range| !range.ours && range.bytes == bytes) {
            return;
        }
        self.forget_foreign(base, bytes);
        self.ranges.insert(base, Range { bytes, ours: false });
    }

    /// Forgets what was known of others' memory in a range: they may have freed it.
    pub(super) fn forget_foreign(&mut self, base: u64, bytes: u64) {
        let end = base.saturating_add(bytes);
        let stale = |(&first, range): (&u64, &Range)| (!range.ours && first + range.bytes > base).then_some(first);
        let stale: Vec<u64> = self.ranges.range(..end).filter_map(stale).collect();
        for first in stale {
            self.ranges.remove(&first);
        }
    }

    /// The range of ours that shares a byte with this one.
    pub(super) fn overlap(&self, base: u64, bytes: u64) -> Option<(u64, u64)> {
        let before = self.ranges.range(..base.saturating_add(bytes.max(1))).rev();
        let ours = before.filter(|(_, range)| range.ours).map(|(&first, range)| (first, range.bytes)).next();
        ours.filter(|&(first, length)| first + length > base)
    }

    /// Removes a range of ours that begins here. Returns its bytes.
    pub(super) fn remove(&mut self, base: u64) -> Option<u64> {
        let bytes = self.ranges.get(&base).filter(|range| range.ours)?.bytes;
        self.ranges.remove(&base);
        Some(bytes)
    }

    /// Bytes that are registered here.
    pub(super) fn bytes(&self) -> u64 {
        self.ranges.values().filter(|range| range.ours).map(|range| range.bytes).sum()
    }

    /// The first addresses of what is registered here.
    pub(super) fn ours(&self) -> impl Iterator<Item = u64> + '_ {
        self.ranges.iter().filter(|(_, range)| range.ours).map(|(&first, _)| first)
    }

    /// How many bytes from an address on lie in a range of ours, or `None` if it lies in none.
    pub(super) fn left_of_ours(&self, address: u64) -> Option<u64> {
        let (&first, range) = self.ranges.range(..=address).rev().find(|(_, range)| range.ours)?;
        (first + range.bytes).checked_sub(address).filter(|&left| left > 0)
    }

    /// What of a range around an address is not ours: its first address, and the one past it.
    pub(super) fn between_ours(&self, address: u64, base: u64, bytes: u64) -> (u64, u64) {
        let before = self.ranges.range(..=address).rev().find(|(_, range)| range.ours);
        let after = self.ranges.range(address..).find(|(_, range)| range.ours);
        let first = before.map_or(0, |(&first, range)| first + range.bytes);
        let past = after.map_or(u64::MAX, |(&first, _)| first);
        (base.max(first), base.saturating_add(bytes).min(past))
    }

    /// How many bytes from an address on lie in its range, or `None` if it lies in none.
    pub(super) fn left(&self, address: u64) -> Option<u64> {
        let (&first, range) = self.ranges.range(..=address).next_back()?;
        (first + range.bytes).checked_sub(address).filter(|&left| left > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::HostRanges;

    fn ranges(ours: &[(u64, u64)], foreign: &[(u64, u64)]) -> HostRanges {
        let mut ranges = HostRanges::default();
        foreign.iter().for_each(|&(base, bytes)| ranges.add_foreign(base, bytes));
        ours.iter().for_each(|&(base, bytes)| ranges.add(base, bytes));
        ranges
    }

    #[test]
    fn a_range_ends_where_its_registration_does() {
        let ranges = ranges(&[(100, 50), (150, 10), (170, 5)], &[(160, 5)]);
        let left = [99, 100, 149, 150, 164, 165, 170, 175].map(|address| ranges.left(address));
        assert_eq!(left, [None, Some(50), Some(1), Some(10), Some(1), None, Some(5), None]);
        assert_eq!(ranges.bytes(), 65);
        assert_eq!(ranges.ours().collect::<Vec<_>>(), [100, 150, 170]);
    }

    #[test]
    fn what_others_freed_is_forgotten_and_ours_is_not() {
        let mut ranges = ranges(&[(200, 10)], &[(100, 50), (210, 20)]);
        ranges.forget_foreign(140, 75);
        assert_eq!([100, 210, 200].map(|address| ranges.left(address)), [None, None, Some(10)]);
        assert_eq!(ranges.overlap(205, 100), Some((200, 10)));
        assert_eq!(ranges.overlap(210, 100), None);
        assert_eq!((ranges.remove(201), ranges.remove(200), ranges.remove(200)), (None, Some(10), None));
    }
}
