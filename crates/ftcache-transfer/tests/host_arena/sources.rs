//! Files of rows that can be told apart, in a folder of the test's own.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use ftcache_policy::{BankId, LayerId};
use ftcache_testkit::Rng;
use ftcache_transfer::{BankSource, FilePiece, HostArena};

/// The byte of a row: mixed from layer, bank and place, so that a wrong one shows.
pub(crate) fn byte(layer: LayerId, bank: BankId, at: u64) -> u8 {
    let mixed = (u64::from(layer.get()) << 40 | u64::from(bank.get()) << 32 | at).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 56) as u8
}

/// Files in the making, and the banks that lie in them.
pub(crate) struct Sources {
    folder: PathBuf,
    files: Vec<Vec<u8>>,
    pub(crate) banks: Vec<BankSource>,
    pub(crate) paths: Vec<PathBuf>,
}

impl Sources {
    pub(crate) fn new(file_count: usize) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("ftcache-arena-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let paths = (0..file_count).map(|file| folder.join(format!("{file}.bin"))).collect();
        Self { folder, files: vec![Vec::new(); file_count], banks: Vec::new(), paths }
    }

    /// Layers of two banks, each of them in one piece.
    pub(crate) fn layers(layer_count: u32, row_bytes: u64, row_count: u32) -> Self {
        let mut sources = Self::new(1);
        for layer in 0..layer_count {
            sources.contiguous(layer, 0, row_bytes, row_count, 0, 32);
            sources.contiguous(layer, 1, row_bytes / 2, row_count, 0, 0);
        }
        sources.written()
    }

    /// Appends a bank to a file, at the next offset with this rest of 4,096, or right away where that is zero.
    pub(crate) fn contiguous(&mut self, layer: u32, bank: u32, row_bytes: u64, row_count: u32, file: usize, rest: u64) {
        let (layer, bank) = (LayerId::new(layer), BankId::new(bank));
        let offset = self.pad(file, rest);
        let rows = (0..row_bytes * u64::from(row_count)).map(|at| byte(layer, bank, at));
        self.files[file].extend(rows);
        self.banks.push(BankSource::contiguous(layer, bank, row_bytes, row_count, file, offset));
    }

    /// Appends a bank in pieces of any length, in any order, over all files.
    pub(crate) fn shattered(&mut self, layer: u32, bank: u32, row_bytes: u64, row_count: u32, rng: &mut Rng) {
        let (layer, bank) = (LayerId::new(layer), BankId::new(bank));
        let bytes = row_bytes * u64::from(row_count);
        let mut ends: Vec<u64> = (0..rng.below(6)).map(|_| 1 + rng.below(bytes)).chain([bytes]).collect();
        ends.sort_unstable();
        ends.dedup();
        let mut pieces = Vec::new();
        let mut target = 0;
        for end in ends {
            pieces.push((target, end - target));
            target = end;
        }
        for at in (1..pieces.len()).rev() {
            pieces.swap(at, rng.below(at as u64 + 1) as usize);
        }
        let mut place = |(target, bytes): (u64, u64)| {
            let file = rng.below(self.files.len() as u64) as usize;
            let offset = self.pad(file, rng.below(4096));
            self.files[file].extend((target..target + bytes).map(|at| byte(layer, bank, at)));
            FilePiece { file, offset, bytes, target }
        };
        let pieces = pieces.into_iter().map(&mut place).collect();
        self.banks.push(BankSource { layer, bank, row_bytes, row_count, pieces });
    }

    fn pad(&mut self, file: usize, rest: u64) -> u64 {
        let file = &mut self.files[file];
        while rest > 0 && file.len() as u64 % 4096 != rest {
            file.push(0xEE);
        }
        file.len() as u64
    }

    /// Writes the files.
    pub(crate) fn written(self) -> Self {
        for (path, bytes) in self.paths.iter().zip(&self.files) {
            std::fs::write(path, bytes).unwrap();
        }
        self
    }

    /// Bytes of all banks.
    pub(crate) fn bytes(&self) -> u64 {
        self.banks.iter().map(|bank| bank.row_bytes * u64::from(bank.row_count)).sum()
    }

    /// Every byte of every bank is in its place.
    pub(crate) fn assert_in(&self, arena: &HostArena) {
        for source in &self.banks {
            let bytes = arena.bytes(source.layer, source.bank).unwrap();
            assert_eq!(bytes.len() as u64, source.row_bytes * u64::from(source.row_count));
            let wrong =
                bytes.iter().enumerate().find(|&(at, &found)| found != byte(source.layer, source.bank, at as u64));
            assert_eq!(wrong, None, "layer {} bank {}", source.layer, source.bank);
        }
    }
}

impl Drop for Sources {
    fn drop(&mut self) {
        // A folder that is left is no failure of the test.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
