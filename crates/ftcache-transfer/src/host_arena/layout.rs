//! Where each bank lies in the arena: arithmetic on what was asked, without memory or files.
//!
//! A bank has its pages to itself, so that each can be registered or locked alone. Its first row lies where the bytes
//! of its file lie modulo the unit of direct reads, so that those go straight into place.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use ftcache_policy::{BankId, LayerId};

use super::error::ArenaError;
use super::options::{BankSource, FilePiece};

/// A bank in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Placement {
    pub(super) layer: LayerId,
    pub(super) bank: BankId,
    pub(super) row_bytes: u64,
    pub(super) row_count: u32,
    /// `row_bytes * row_count`.
    pub(super) bytes: u64,
    /// Whole pages of its own, from the arena's start.
    pub(super) pages: Range<u64>,
    /// Where the first row begins, from the arena's start.
    pub(super) first: u64,
    /// By target, neighbours in one file as one.
    pub(super) pieces: Vec<FilePiece>,
}

/// The banks of one layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LayerPlace {
    pub(super) layer: LayerId,
    /// Indices of its banks.
    pub(super) banks: Range<usize>,
    pub(super) bytes: u64,
    pub(super) page_bytes: u64,
}

/// Every bank in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    /// Those of a layer together.
    pub(super) banks: Vec<Placement>,
    /// In the order in which they were first named.
    pub(super) layers: Vec<LayerPlace>,
    /// Bytes from the arena's start to its end.
    pub(super) bytes: u64,
}

/// The sizes that places depend on; all powers of two.
#[derive(Debug, Clone, Copy)]
pub(super) struct Units {
    /// A page, or what direct reads need where that is more.
    pub(super) unit: u64,
    /// What the first row's address is a multiple of.
    pub(super) alignment: u64,
}

impl Layout {
    /// Lays the banks out. `is_parted` says which of them must have rows that begin with a page.
    pub(super) fn new(
        sources: &[BankSource],
        units: Units,
        direct: bool,
        is_parted: impl Fn(LayerId, u64) -> bool,
    ) -> Result<Self, ArenaError> {
        if sources.is_empty() {
            return Err(ArenaError::NoBanks);
        }
        let mut ranks: BTreeMap<LayerId, usize> = BTreeMap::new();
        let mut seen = HashSet::new();
        for source in sources {
            let rank = ranks.len();
            ranks.entry(source.layer).or_insert(rank);
            if !seen.insert((source.layer, source.bank)) {
                return Err(ArenaError::DuplicateBank { layer: source.layer, bank: source.bank });
            }
        }
        let mut order: Vec<&BankSource> = sources.iter().collect();
        order.sort_by_key(|source| ranks[&source.layer]);

        let mut layout = Self { banks: Vec::with_capacity(order.len()), layers: Vec::new(), bytes: 0 };
        for source in order {
            let (layer, bank) = (source.layer, source.bank);
            let BankSource { row_bytes, row_count, .. } = *source;
            let too_large = ArenaError::TooLarge { layer, bank, row_bytes, row_count };
            let bytes = row_bytes.checked_mul(row_count.into()).ok_or(too_large.clone())?;
            let pieces = tile(source, bytes)?;
            let shift = match direct && !is_parted(layer, bytes) {
                true => shift(&pieces, units),
                false => 0,
            };
            let begin = layout.bytes;
            let first = begin + shift;
            let end = first.checked_add(bytes).and_then(|end| end.checked_next_multiple_of(units.unit));
            // Half the address space: what a slice may hold, and room for the sums above.
            let end = end.filter(|&end| end <= isize::MAX as u64 / 2).ok_or(too_large)?;
            layout.bytes = end;

            let index = layout.banks.len();
            match layout.layers.last_mut() {
                Some(last) if last.layer == layer => {
                    last.banks.end = index + 1;
                    last.bytes += bytes;
                    last.page_bytes += end - begin;
                }
                _ => layout.layers.push(LayerPlace { layer, banks: index..index + 1, bytes, page_bytes: end - begin }),
            }
            layout.banks.push(Placement { layer, bank, row_bytes, row_count, bytes, pages: begin..end, first, pieces });
        }
        Ok(layout)
    }
}

/// The pieces of a bank by target, if they fill it, each byte once. Neighbours in one file become one piece.
fn tile(source: &BankSource, bank_bytes: u64) -> Result<Vec<FilePiece>, ArenaError> {
    let (layer, bank) = (source.layer, source.bank);
    if bank_bytes == 0 {
        let BankSource { row_bytes, row_count, .. } = *source;
        return Err(ArenaError::EmptyBank { layer, bank, row_bytes, row_count });
    }
    let mut pieces = source.pieces.clone();
    pieces.sort_by_key(|piece| piece.target);
    let mut tiles: Vec<FilePiece> = Vec::new();
    let mut reached = 0;
    for piece in pieces {
        let FilePiece { bytes, target, .. } = piece;
        if bytes == 0 {
            return Err(ArenaError::EmptyPiece { layer, bank, target });
        }
        let end = target.checked_add(bytes).filter(|&end| end <= bank_bytes);
        let end = end.ok_or(ArenaError::Outside { layer, bank, target, bytes, bank_bytes })?;
        if target > reached {
            return Err(ArenaError::Gap { layer, bank, begin: reached, end: target, bank_bytes });
        }
        if target < reached {
            return Err(ArenaError::Overlap { layer, bank, begin: target, end: end.min(reached), bank_bytes });
        }
        reached = end;
        match tiles.last_mut() {
            Some(last) if last.file == piece.file && last.offset.checked_add(last.bytes) == Some(piece.offset) => {
                last.bytes += bytes;
            }
            _ => tiles.push(piece),
        }
    }
    if reached < bank_bytes {
        return Err(ArenaError::Gap { layer, bank, begin: reached, end: bank_bytes, bank_bytes });
    }
    Ok(tiles)
}

/// Bytes from a unit's start to the first row, so that most bytes lie in memory as they do in their files.
fn shift(pieces: &[FilePiece], units: Units) -> u64 {
    let mut bytes_at: BTreeMap<u64, u64> = BTreeMap::new();
    for piece in pieces {
        *bytes_at.entry(piece.offset.wrapping_sub(piece.target) % units.unit).or_default() += piece.bytes;
    }
    // The lowest of equals: the maximum of the reversed order.
    let best = bytes_at.into_iter().rev().max_by_key(|&(_, bytes)| bytes).map_or(0, |(shift, _)| shift);
    if best.is_multiple_of(units.alignment) { best } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNITS: Units = Units { unit: 4096, alignment: 16 };

    fn contiguous(layer: u32, bank: u32, bytes: u64, offset: u64) -> BankSource {
        BankSource::contiguous(LayerId::new(layer), BankId::new(bank), bytes, 1, 0, offset)
    }

    #[test]
    fn banks_lie_where_their_files_have_them_each_in_pages_of_its_own() {
        let sources = [contiguous(7, 0, 5000, 100_000), contiguous(2, 0, 10, 4096), contiguous(7, 1, 4096, 8200)];
        let layout = Layout::new(&sources, UNITS, true, |_, _| false).unwrap();
        let places: Vec<_> =
            layout.banks.iter().map(|bank| (bank.layer.get(), bank.pages.clone(), bank.first)).collect();
        // 100,000 = 24 pages + 1,696; 8,200 = 2 pages + 8, which is no multiple of 16.
        assert_eq!(places, [(7, 0..8192, 1696), (7, 8192..12_288, 8192), (2, 12_288..16_384, 12_288)]);
        assert_eq!(layout.bytes, 16_384);
        let layers: Vec<_> = layout.layers.iter().map(|layer| (layer.layer.get(), layer.page_bytes)).collect();
        assert_eq!(layers, [(7, 12_288), (2, 4096)], "a layer's banks are together, by its first");

        let parted = Layout::new(&sources, UNITS, true, |layer, _| layer.get() == 7).unwrap();
        assert_eq!(parted.banks[0].first, 0);
        let buffered = Layout::new(&sources, UNITS, false, |_, _| false).unwrap();
        assert_eq!(buffered.banks[0].first, 0);
    }

    #[test]
    fn most_bytes_decide_where_a_bank_begins() {
        let layer = LayerId::new(0);
        let rows = [(0, 32), (0, 8192 + 128), (0, 16_384 + 128 + 100), (1, 4096 + 332)];
        // Targets 0, 100, 200, 300: three of the rows have the shift 28 or 32, two of them 28.
        let source = BankSource::scattered(layer, BankId::new(0), 100, rows);
        let of_one = Units { unit: 4096, alignment: 4 };
        assert_eq!(shift(&source.pieces, of_one), 28);
        assert_eq!(shift(&source.pieces, UNITS), 0, "28 is no multiple of 16");
    }

    #[test]
    fn neighbours_in_one_file_are_one_piece() {
        let rows = [(0, 1000), (0, 1100), (1, 1200), (0, 1300), (0, 1200)];
        let source = BankSource::scattered(LayerId::new(0), BankId::new(0), 100, rows);
        let mut mixed = source.clone();
        mixed.pieces.reverse();
        let pieces: Vec<_> =
            tile(&mixed, 500).unwrap().iter().map(|piece| (piece.file, piece.offset, piece.bytes)).collect();
        assert_eq!(pieces, [(0, 1000, 200), (1, 1200, 100), (0, 1300, 100), (0, 1200, 100)]);
    }

    #[test]
    fn sums_that_do_not_fit_are_refused() {
        let layer = LayerId::new(0);
        let source = BankSource::contiguous(layer, BankId::new(0), u64::MAX / 2, 3, 0, 0);
        let refused = Layout::new(&[source], UNITS, true, |_, _| false).unwrap_err();
        assert!(matches!(refused, ArenaError::TooLarge { .. }), "{refused}");
        let sources: Vec<_> = (0..4).map(|bank| contiguous(0, bank, u64::MAX / 8 - 4096, 0)).collect();
        let refused = Layout::new(&sources, UNITS, true, |_, _| false).unwrap_err();
        assert_eq!(
            refused,
            ArenaError::TooLarge { layer, bank: BankId::new(2), row_bytes: u64::MAX / 8 - 4096, row_count: 1 }
        );
    }
}
