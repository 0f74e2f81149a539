//! Rows that kernels bring: from pinned memory or from slots, of any width and alignment, as a list says. Every byte is
//! right, and none beside them is touched.

use ftcache_testkit::Rng;
use ftcache_transfer::{Device, Kernel};

use crate::cuda_world::CudaWorld;
use crate::mirror::{BankRows, Bench, Entry, GENERATION, Gather};
use crate::support::{Pages, same_bytes};

/// One bank of a case: rows on both sides, `row_bytes` wide, from a first byte on.
#[derive(Debug, Clone, Copy)]
struct Rows {
    row_bytes: usize,
    source_from: usize,
    source_stride: usize,
    target_from: usize,
    target_stride: usize,
}

/// A gather: its banks, what is to be moved, and how it is launched.
struct Case<'a> {
    banks: &'a [Rows],
    source_rows: usize,
    target_rows: usize,
    entries: &'a [Entry],
    entry_count: u32,
    entry_max: u32,
    shape: (u32, u32),
}

fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    Pages::noise(seed, bytes.max(1))[..bytes].to_vec()
}

/// Parts one after another, each at a multiple of 256 bytes, and where they begin.
fn in_one_piece(parts: &[Vec<u8>]) -> (Vec<u8>, Vec<usize>) {
    let mut all = Vec::new();
    let mut begins = Vec::new();
    for part in parts {
        all.resize(all.len().next_multiple_of(256), 0xEE);
        begins.push(all.len());
        all.extend(part);
    }
    (all, begins)
}

impl Case<'_> {
    /// Bytes of a bank's side, with some behind.
    fn extent(from: usize, stride: usize, rows: usize) -> usize {
        from + stride * rows + 24
    }

    /// Gathers, and compares all of every target.
    #[track_caller]
    fn check(&self, bench: &mut Bench, kernel: Kernel, at: &str) {
        let mut told = Vec::new();
        let (mut sources, mut targets) = (Vec::new(), Vec::new());
        for (number, bank) in (0..).zip(self.banks) {
            sources.push(noise(number, Self::extent(bank.source_from, bank.source_stride, self.source_rows)));
            targets.push(noise(!number, Self::extent(bank.target_from, bank.target_stride, self.target_rows)));
        }
        let (sources, source_begins) = in_one_piece(&sources);
        let (mut targets, target_begins) = in_one_piece(&targets);
        let source = match kernel {
            Kernel::GatherRows => bench.pinned(&sources),
            _ => bench.items(&sources),
        };
        let memory = bench.memory(&targets);
        let target = bench.device.address(memory).unwrap();
        for (number, bank) in self.banks.iter().enumerate() {
            let (from, to) = (source_begins[number] + bank.source_from, target_begins[number] + bank.target_from);
            told.push(BankRows {
                source: source + from as u64,
                source_stride: bank.source_stride as u64,
                target: target + to as u64,
                target_stride: bank.target_stride as u64,
                row_bytes: bank.row_bytes as u64,
                source_rows: self.source_rows as u32,
                target_rows: self.target_rows as u32,
            });
            for entry in &self.entries[..self.entry_count.min(self.entry_max) as usize] {
                let from = from + entry.source as usize * bank.source_stride;
                let to = to + entry.target as usize * bank.target_stride;
                targets[to..to + bank.row_bytes].copy_from_slice(&sources[from..from + bank.row_bytes]);
            }
        }
        // There is room for as many as may be; those behind the last are nobody's.
        let mut entries = self.entries.to_vec();
        entries.resize(entries.len().max(self.entry_max as usize), Entry { target: u32::MAX, source: u32::MAX });
        let arguments = Gather {
            header: bench.header_address,
            generation: GENERATION,
            entry_count: bench.items(&[self.entry_count]),
            entries: bench.items(&entries),
            banks: bench.items(&told),
            bank_count: told.len() as u32,
            entry_max: self.entry_max,
            layer: 3,
            reserved: 0,
        };
        bench.launch(kernel, self.shape, &arguments);
        bench.no_fault(at);
        same_bytes(&bench.read(memory, targets.len()), &targets, at);
        bench.clear();
    }
}

const KERNELS: [Kernel; 2] = [Kernel::GatherRows, Kernel::GatherSlots];

fn entries(pairs: &[(u32, u32)]) -> Vec<Entry> {
    pairs.iter().map(|&(target, source)| Entry { target, source }).collect()
}

/// Row `i` of so many to the place that is as far from the end.
fn reversed(count: u32) -> Vec<Entry> {
    (0..count).map(|row| Entry { target: count - 1 - row, source: row }).collect()
}

#[test]
fn rows_of_every_width_arrive_from_every_alignment_at_every_other() {
    let widths: Vec<usize> = (1..=40).chain(255..=257).collect();
    for kernel in KERNELS {
        let mut bench = Bench::new(CudaWorld::new(1));
        for &row_bytes in &widths {
            // A bank for each place of the source; the target is in another for each launch.
            for shift in (0..17).step_by(if row_bytes > 40 { 4 } else { 1 }) {
                let bank = |from: usize| Rows {
                    row_bytes,
                    source_from: from,
                    source_stride: row_bytes + [0, 1, 3, 8, 16][(from + shift) % 5],
                    target_from: (from + shift) % 17,
                    target_stride: row_bytes + [0, 7, 16, 2, 5][from % 5],
                };
                let banks: Vec<Rows> = (0..17).map(bank).collect();
                let case = Case {
                    banks: &banks,
                    source_rows: 3,
                    target_rows: 3,
                    entries: &entries(&[(2, 0), (0, 1)]),
                    entry_count: 2,
                    entry_max: 2,
                    shape: (2, 32),
                };
                case.check(&mut bench, kernel, &format!("{kernel:?}: {row_bytes} bytes, {shift} apart"));
            }
        }
        bench.end();
    }
}

#[test]
fn long_rows_are_cut_into_chunks_and_lose_nothing() {
    for kernel in KERNELS {
        let mut bench = Bench::new(CudaWorld::new(2));
        for row_bytes in [4096, 16_383, 16_384, 16_385, 32_768, 40_000] {
            for (source_from, target_from) in [(0, 0), (3, 3), (5, 13), (2, 10), (6, 2), (4, 6), (1, 2), (7, 16)] {
                let (source_stride, target_stride) = (row_bytes + source_from, row_bytes + 16);
                let bank = Rows { row_bytes, source_from, source_stride, target_from, target_stride };
                let case = Case {
                    banks: &[bank],
                    source_rows: 2,
                    target_rows: 2,
                    entries: &entries(&[(1, 0)]),
                    entry_count: 1,
                    entry_max: 1,
                    shape: (2, 64),
                };
                let at = format!("{kernel:?}: {row_bytes} bytes from {source_from} to {target_from}");
                case.check(&mut bench, kernel, &at);
            }
        }
        bench.end();
    }
}

#[test]
fn blocks_share_the_chunks_whatever_their_number() {
    // Chunks of an entry: 3 of the first bank, 1 of the second, none of the third, 2 of the last.
    let bank = |row_bytes: usize, from: usize| Rows {
        row_bytes,
        source_from: from,
        source_stride: row_bytes + 16 - from,
        target_from: from,
        target_stride: row_bytes + from,
    };
    let banks = [bank(40_000, 0), bank(7, 3), bank(0, 0), bank(16_385, 1)];
    for kernel in KERNELS {
        for seed in 0..3 {
            let mut bench = Bench::new(CudaWorld::new(seed));
            for shape in [(1, 32), (2, 1024), (3, 96), (5, 64), (6, 64), (7, 256), (18, 64), (64, 32), (65, 512)] {
                let case = Case {
                    banks: &banks,
                    source_rows: 3,
                    target_rows: 3,
                    entries: &reversed(3),
                    entry_count: 3,
                    entry_max: 3,
                    shape,
                };
                case.check(&mut bench, kernel, &format!("seed {seed}: {kernel:?}, {shape:?}"));
            }
            bench.end();
        }
    }
}

#[test]
fn no_more_entries_are_done_than_there_are_and_than_may_be() {
    let bank = Rows { row_bytes: 50, source_from: 2, source_stride: 51, target_from: 2, target_stride: 64 };
    for kernel in KERNELS {
        let mut bench = Bench::new(CudaWorld::new(4));
        for (entry_count, entry_max) in [(0, 0), (0, 9), (3, 0), (1, 9), (9, 9), (10, 9), (u32::MAX, 9), (9, 1), (8, 9)]
        {
            for blocks in [1, 4, 20] {
                let case = Case {
                    banks: &[bank, Rows { row_bytes: 3, ..bank }],
                    source_rows: 9,
                    target_rows: 9,
                    entries: &reversed(9),
                    entry_count,
                    entry_max,
                    shape: (blocks, 64),
                };
                case.check(&mut bench, kernel, &format!("{kernel:?}: {entry_count} entries of up to {entry_max}"));
            }
        }
        bench.end();
    }
}

#[test]
fn random_gathers_move_what_they_say() {
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let mut bench = Bench::new(CudaWorld::new(seed));
        for kernel in KERNELS {
            let (source_rows, target_rows) = (1 + rng.below(12), 1 + rng.below(12));
            let mut below = |bound: u64| rng.below(bound) as usize;
            let banks: Vec<Rows> = (0..1 + below(5))
                .map(|_| {
                    let row_bytes = [below(3), below(80), below(700), 16 * below(70)][below(4)];
                    Rows {
                        row_bytes,
                        source_from: below(20),
                        source_stride: row_bytes + below(20),
                        target_from: below(20),
                        target_stride: row_bytes + below(20),
                    }
                })
                .collect();
            // No target twice: their order is nobody's promise.
            let mut targets: Vec<u32> = (0..target_rows as u32).collect();
            let count = below(target_rows + 1);
            let entries: Vec<Entry> = (0..count)
                .map(|_| {
                    let target = targets.swap_remove(below(targets.len() as u64));
                    Entry { target, source: below(source_rows) as u32 }
                })
                .collect();
            let case = Case {
                banks: &banks,
                source_rows: source_rows as usize,
                target_rows: target_rows as usize,
                entries: &entries,
                entry_count: count as u32,
                entry_max: target_rows as u32,
                shape: (1 + below(9) as u32, 32 * (1 + below(8) as u32)),
            };
            case.check(&mut bench, kernel, &format!("seed {seed}: {kernel:?}, {banks:?}"));
        }
        bench.end();
    }
}
