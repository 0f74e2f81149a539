//! Sets of bytes that operations touch: rows of equal length at a stride, exact to the byte.

use std::fmt;

/// `rows` rows of `row_bytes` bytes, `stride` apart; one row if it is a plain range. Rows do not overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    pub(crate) base: u64,
    pub(crate) row_bytes: u64,
    pub(crate) stride: u64,
    pub(crate) rows: u64,
}

impl Rows {
    pub(crate) fn span(base: u64, bytes: u64) -> Self {
        Self { base, row_bytes: bytes, stride: bytes, rows: 1 }
    }

    /// Rows at a stride of at least their length; rows without gaps are one row.
    pub(crate) fn new(base: u64, row_bytes: u64, stride: u64, rows: u64) -> Self {
        match stride == row_bytes || rows == 1 {
            true => Self::span(base, row_bytes * rows),
            false => Self { base, row_bytes, stride, rows },
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows == 0 || self.row_bytes == 0
    }

    /// One past the last byte.
    pub(crate) fn end(&self) -> u64 {
        self.base + (self.rows - 1) * self.stride + self.row_bytes
    }

    /// Bytes from the first to the last, gaps included.
    pub(crate) fn extent(&self) -> u64 {
        self.end() - self.base
    }

    /// The first bytes that both hold.
    pub(crate) fn overlap(&self, other: &Rows) -> Option<(u64, u64)> {
        if self.is_empty() || other.is_empty() || self.base >= other.end() || other.base >= self.end() {
            return None;
        }
        let (few, many) = if self.rows <= other.rows { (self, other) } else { (other, self) };
        // Only rows between the other's ends can meet it.
        let first = many.base.saturating_sub(few.base) / few.stride;
        (first..few.rows).map(|row| few.base + row * few.stride).take_while(|&start| start < many.end()).find_map(
            |start| {
                let end = start + few.row_bytes;
                let nearest = start.saturating_sub(many.base) / many.stride;
                (nearest..=nearest + 1).take_while(|&row| row < many.rows).find_map(|row| {
                    let low = many.base + row * many.stride;
                    let (low, high) = (low.max(start), (low + many.row_bytes).min(end));
                    (low < high).then_some((low, high))
                })
            },
        )
    }

    /// Whether every byte of the other is in this; false where that takes more than a look.
    pub(crate) fn covers(&self, other: &Rows) -> bool {
        self == other || (self.rows == 1 && self.base <= other.base && other.end() <= self.end())
    }
}

impl fmt::Display for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rows {
            1 => write!(f, "[{:#x}, +{})", self.base, self.row_bytes),
            rows => write!(f, "{rows} rows of {} at {:#x}, {} apart", self.row_bytes, self.base, self.stride),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn overlaps_are_those_of_the_bytes_one_by_one() {
        let mut random = Random::new(7);
        let mut overlapping = 0;
        for _ in 0..20_000 {
            let draw = |random: &mut Random| {
                let row_bytes = 1 + random.below(6) as u64;
                let stride = row_bytes + random.below(5) as u64;
                Rows::new(100 + random.below(40) as u64, row_bytes, stride, 1 + random.below(6) as u64)
            };
            let (a, b) = (draw(&mut random), draw(&mut random));
            let bytes = |rows: &Rows| -> Vec<u64> {
                (0..rows.rows)
                    .flat_map(|row| (0..rows.row_bytes).map(move |byte| (row, byte)))
                    .collect::<Vec<_>>()
                    .into_iter()
                    .map(|(row, byte)| rows.base + row * rows.stride + byte)
                    .collect()
            };
            let (of_a, of_b) = (bytes(&a), bytes(&b));
            let shared = of_a.iter().filter(|byte| of_b.contains(byte)).count();
            assert_eq!(a.overlap(&b).is_some(), shared > 0, "{a} and {b}");
            assert_eq!(b.overlap(&a).is_some(), shared > 0, "{b} and {a}");
            if let Some((low, high)) = a.overlap(&b) {
                assert!((low..high).all(|byte| of_a.contains(&byte) && of_b.contains(&byte)), "{a} and {b}");
            }
            if a.covers(&b) {
                assert_eq!(shared, of_b.len(), "{a} covers {b}");
            }
            overlapping += usize::from(shared > 0);
        }
        assert!(overlapping > 1000);
    }
}
