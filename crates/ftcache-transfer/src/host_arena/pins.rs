//! Which layers are pinned, and in which registrations: arithmetic, decided before anything is read.
//!
//! The bytes of one copy must lie in one registration: a driver answers a copy across two with *invalid argument*
//! (sgl-project/sglang#36798 met it in batched copies). So a bank is cut where a row begins with a page, or not at all.

use std::ops::Range;

/// For each layer, in order: whether its pages fit, or else how many bytes were left for them.
pub(super) fn choose(layer_bytes: &[u64], budget_bytes: Option<u64>) -> Vec<Result<(), u64>> {
    let mut left_bytes = budget_bytes.unwrap_or(u64::MAX);
    let fit = |&bytes: &u64| {
        left_bytes = left_bytes.checked_sub(bytes).ok_or(left_bytes)?;
        Ok(())
    };
    layer_bytes.iter().map(fit).collect()
}

/// Whether a bank may need several registrations: its rows begin anywhere in their first unit of direct reads.
///
/// Such a bank begins with a page, so that others of its rows do.
pub(super) fn is_parted(bytes: u64, unit: u64, register_bytes: u64) -> bool {
    bytes.saturating_add(unit) > register_bytes
}

/// Rows in pages.
#[derive(Debug, Clone)]
pub(super) struct Cuts {
    pub(super) pages: Range<u64>,
    pub(super) page_bytes: u64,
    /// Where the first row begins.
    pub(super) first: u64,
    pub(super) row_bytes: u64,
    /// Bytes of all rows.
    pub(super) bytes: u64,
}

impl Cuts {
    /// The end of a registration that begins at `at`: the last place within `limit` bytes where a row begins with a
    /// page; the first one beyond, if there is none; or the end of the pages.
    pub(super) fn next(&self, at: u64, limit_bytes: u64) -> u64 {
        let end = self.pages.end;
        if end - at <= limit_bytes {
            return end;
        }
        // Where pages are narrower than the unit of direct reads, whole pages lie before the first row and behind the
        // last.
        let rows = self.first + 1..self.first + self.bytes;
        let is_row = |place: &u64| rows.contains(place) && (place - self.first).is_multiple_of(self.row_bytes);
        let step = self.page_bytes as usize;
        let page_count = limit_bytes / self.page_bytes;
        let within = (1..=page_count).rev().map(|page| at + page * self.page_bytes).find(is_row);
        within.or_else(|| (at + (page_count + 1) * self.page_bytes..end).step_by(step).find(is_row)).unwrap_or(end)
    }
}

#[cfg(test)]
mod tests {
    use ftcache_policy::{BankId, LayerId};

    use super::super::layout::{Layout, Placement, Units};
    use super::super::options::BankSource;
    use super::*;

    /// 40 layers of 256 experts, rows of 1,179,648 and 860,160 bytes, a budget of 15 GiB.
    #[test]
    fn thirty_of_forty_layers_fit_in_sixty_registrations() {
        const ROWS: [u64; 2] = [1_179_648, 860_160];
        let layer_bytes = 256 * ROWS.iter().sum::<u64>();
        assert_eq!(layer_bytes, 522_190_848);
        let chosen = choose(&[layer_bytes; 40], Some(15 << 30));
        let pinned_count = chosen.iter().filter(|chosen| chosen.is_ok()).count();
        assert_eq!(pinned_count, 30);
        assert_eq!(pinned_count as u64 * layer_bytes, 15_665_725_440);
        assert_eq!(chosen[30], Err(16_106_127_360 - 15_665_725_440));

        let registration_count = |row_bytes: u64| {
            let pages = 0..256 * row_bytes;
            let cuts = Cuts { pages: pages.clone(), page_bytes: 4096, first: 0, row_bytes, bytes: pages.end };
            std::iter::successors(Some(0), |&at| Some(cuts.next(at, 1 << 30))).take_while(|&at| at < pages.end).count()
        };
        assert_eq!(pinned_count * ROWS.map(registration_count).iter().sum::<usize>(), 60);
    }

    #[test]
    fn a_layer_that_does_not_fit_is_passed_over() {
        assert_eq!(choose(&[5, 7, 4, 1, 1], Some(10)), [Ok(()), Err(5), Ok(()), Ok(()), Err(0)]);
        assert_eq!(choose(&[5, 7], Some(0)), [Err(0), Err(0)]);
        assert_eq!(choose(&[u64::MAX], None), [Ok(())]);
        assert!(choose(&[], Some(1)).is_empty());
    }

    #[test]
    fn cuts_fall_where_a_row_begins_with_a_page() {
        // Rows of 6,144 bytes begin with a page at every second one: each 12,288 bytes.
        let cuts = Cuts { pages: 0..61_440, page_bytes: 4096, first: 0, row_bytes: 6144, bytes: 61_440 };
        assert_eq!(cuts.next(0, 61_440), 61_440);
        assert_eq!(cuts.next(0, 61_439), 49_152);
        assert_eq!(cuts.next(0, 12_288), 12_288);
        assert_eq!(cuts.next(0, 4096), 12_288, "rows that cannot be parted sooner");
        assert_eq!(cuts.next(49_152, 4096), 61_440);
        // From a shift of 2,048 on, the first row to begin with a page is the one at 2,048 + 6,144.
        let cuts = Cuts { pages: 0..61_440, page_bytes: 4096, first: 2048, row_bytes: 6144, bytes: 61_440 - 2048 };
        assert_eq!(cuts.next(0, 4096), 8192);
        assert_eq!(cuts.next(8192, 4096), 20_480);
        // Never.
        let cuts = Cuts { pages: 0..61_440, page_bytes: 4096, first: 16, row_bytes: 4096, bytes: 61_440 - 16 };
        assert_eq!(cuts.next(0, 8192), 61_440);
    }

    /// Direct reads in multiples of 16,384 bytes with pages of 4,096: three pages may lie before the first row.
    #[test]
    fn nothing_is_cut_before_the_first_row_or_behind_the_last() {
        let ends = |cuts: &Cuts, limit: u64| -> Vec<u64> {
            let ends = std::iter::successors(Some(cuts.pages.start), |&at| Some(cuts.next(at, limit)));
            ends.skip(1).take_while(|&at| at < cuts.pages.end).collect()
        };
        let cuts = |first, bytes| Cuts { pages: 0..49_152, page_bytes: 4096, first, row_bytes: 4096, bytes };
        assert_eq!(ends(&cuts(12_288, 12_288), 8192), [16_384, 20_480]);
        assert_eq!(ends(&cuts(12_288, 4096), 8192), []);
        // A row in the middle of a page is at none.
        assert_eq!(ends(&cuts(12_304, 12_288), 8192), []);

        assert!(is_parted(1, 16_384, 8192), "its row may begin a page too late");
        assert!(is_parted(8192, 16_384, 24_575) && !is_parted(8192, 16_384, 24_576));
        assert!(is_parted(u64::MAX, 16_384, u64::MAX - 1));
    }

    #[test]
    fn banks_as_they_are_laid_out_are_cut_between_their_rows() {
        let page_bytes = 4096;
        for (unit, register_bytes) in [(16_384, 8192), (16_384, 20_480), (16_384, 40_960), (4096, 8192)] {
            for (row_bytes, row_count) in [(512, 9), (4096, 2), (4096, 5), (6144, 8), (5000, 9), (40_000, 1)] {
                for offset in [0, 512, 4096, 12_288, 15_872, 16_383] {
                    let source =
                        BankSource::contiguous(LayerId::new(0), BankId::new(0), row_bytes, row_count, 0, offset);
                    let is_parted = |_, bytes| is_parted(bytes, unit, register_bytes);
                    let layout = Layout::new(&[source], Units { unit, alignment: 1 }, true, is_parted).unwrap();
                    let Placement { pages, first, bytes, .. } = layout.banks[0].clone();
                    let cuts = Cuts { pages: pages.clone(), page_bytes, first, row_bytes, bytes };
                    let mut at = cuts.next(pages.start, register_bytes);
                    while at < pages.end {
                        let row = at.checked_sub(first).map(|from| (from / row_bytes, from % row_bytes));
                        let case = (unit, register_bytes, row_bytes, row_count, offset);
                        assert!(row.is_some_and(|(row, rest)| rest == 0 && row < u64::from(row_count)), "{case:?}");
                        at = cuts.next(at, register_bytes);
                    }
                }
            }
        }
    }
}
