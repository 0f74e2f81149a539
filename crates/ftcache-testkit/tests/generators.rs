//! What the tests of other crates rest on: rows that tell whose they are.

use std::collections::HashSet;

use ftcache_testkit::generators::row;

#[test]
fn no_two_rows_are_alike() {
    for row_bytes in [2, 3, 16, 33] {
        let mut rows = HashSet::new();
        for (layer, expert, bank) in (0..6).flat_map(|l| (0..64).flat_map(move |e| (0..3).map(move |b| (l, e, b)))) {
            let made = row(layer, expert, bank, row_bytes);
            assert_eq!(made.len() as u64, row_bytes);
            assert!(rows.insert(made), "layer {layer} expert {expert} bank {bank}");
        }
    }
}
