//! Copies merged into runs: neighbouring rows that go to neighbouring slots.

use ftcache_policy::{ExpertId, SlotId};
use ftcache_residency::{Copy, Run, runs};
use ftcache_testkit::Rng;

fn copies(pairs: &[(u32, u32)]) -> Vec<Copy> {
    pairs.iter().map(|&(slot, row)| Copy { slot: SlotId::new(slot), row: ExpertId::new(row) }).collect()
}

fn list(copies: &[Copy]) -> Vec<(u32, u32, u32)> {
    runs(copies).map(|run| (run.slot.get(), run.row.get(), run.count)).collect()
}

#[test]
fn a_run_needs_neighbours_on_both_sides() {
    assert_eq!(list(&[]), []);
    assert_eq!(list(&copies(&[(3, 5)])), [(3, 5, 1)]);
    assert_eq!(list(&copies(&[(3, 5), (4, 6), (5, 7)])), [(3, 5, 3)]);
    assert_eq!(list(&copies(&[(3, 5), (5, 6)])), [(3, 5, 1), (5, 6, 1)], "slots apart");
    assert_eq!(list(&copies(&[(3, 5), (4, 7)])), [(3, 5, 1), (4, 7, 1)], "rows apart");
    assert_eq!(list(&copies(&[(4, 5), (3, 6)])), [(4, 5, 1), (3, 6, 1)], "slots descend");
    assert_eq!(list(&copies(&[(0, 0), (1, 1), (9, 2), (10, 3), (11, 5)])), [(0, 0, 2), (9, 2, 2), (11, 5, 1)]);
}

#[test]
fn runs_are_the_copies_merged_as_far_as_they_go() {
    for seed in 0..2_000 {
        let mut rng = Rng::new(seed);
        // Rows ascend, as in a plan; slots mostly follow.
        let (mut slot, mut row, mut pairs) = (rng.below(100) as u32, 0, Vec::new());
        for _ in 0..rng.below(30) {
            row += if rng.chance(2, 3) { 1 } else { 1 + rng.below(4) as u32 };
            slot = if rng.chance(2, 3) { slot + 1 } else { rng.below(100) as u32 };
            pairs.push((slot, row));
        }
        let copies = copies(&pairs);
        let found: Vec<Run> = runs(&copies).collect();

        let expanded: Vec<(u32, u32)> = found
            .iter()
            .flat_map(|run| (0..run.count).map(|index| (run.slot.get() + index, run.row.get() + index)))
            .collect();
        assert_eq!(expanded, pairs, "seed {seed}: {found:?}");
        for (a, b) in found.iter().zip(found.iter().skip(1)) {
            let merged = a.slot.get() + a.count == b.slot.get() && a.row.get() + a.count == b.row.get();
            assert!(!merged, "seed {seed}: {a:?} and {b:?} are one run of {pairs:?}");
        }
        assert!(found.iter().all(|run| run.count > 0), "seed {seed}: {found:?}");
    }
}
