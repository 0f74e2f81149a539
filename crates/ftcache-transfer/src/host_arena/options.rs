//! What is asked of an arena: the banks, where their bytes are, and how far to go for them.

use ftcache_policy::{BankId, LayerId};

/// One bank of one layer, and where its bytes come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BankSource {
    /// The layer.
    pub layer: LayerId,
    /// The bank.
    pub bank: BankId,
    /// Bytes of a row.
    pub row_bytes: u64,
    /// Number of rows.
    pub row_count: u32,
    /// In any order; together they fill the rows, each byte once.
    pub pieces: Vec<FilePiece>,
}

impl BankSource {
    /// A bank whose rows lie one after the other in a file, as a tensor of a GGUF file does.
    pub fn contiguous(layer: LayerId, bank: BankId, row_bytes: u64, row_count: u32, file: usize, offset: u64) -> Self {
        // A product that overflows is refused when the arena is reserved.
        let bytes = row_bytes.wrapping_mul(row_count.into());
        Self { layer, bank, row_bytes, row_count, pieces: vec![FilePiece { file, offset, bytes, target: 0 }] }
    }

    /// A bank of which every row lies somewhere of its own, as an expert of a safetensors file does: for each row, the
    /// file and the offset.
    pub fn scattered(
        layer: LayerId,
        bank: BankId,
        row_bytes: u64,
        rows: impl IntoIterator<Item = (usize, u64)>,
    ) -> Self {
        let piece = |(row, (file, offset)): (usize, (usize, u64))| {
            let target = row_bytes.wrapping_mul(row as u64);
            FilePiece { file, offset, bytes: row_bytes, target }
        };
        let pieces: Vec<FilePiece> = rows.into_iter().enumerate().map(piece).collect();
        let row_count = u32::try_from(pieces.len()).unwrap_or(u32::MAX);
        Self { layer, bank, row_bytes, row_count, pieces }
    }
}

/// A range of a file, and where in its bank the bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilePiece {
    /// Index in the list of files.
    pub file: usize,
    /// Bytes from the file's start.
    pub offset: u64,
    /// Bytes of the range.
    pub bytes: u64,
    /// Bytes from the bank's start.
    pub target: u64,
}

/// How an arena is filled and pinned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArenaOptions {
    /// Threads that read, besides the caller's, which pins.
    pub reader_count: usize,
    /// Whether reads go past the system's page cache.
    pub direct: Direct,
    /// Most bytes of one read. Rounded up to whole pages.
    pub read_bytes: u64,
    /// The address of a bank's first row is a multiple of this, a power of two up to a page.
    ///
    /// Kernels that read rows in place like 16 or more. Where a file has its rows at other addresses, direct reads of
    /// that bank take one more copy by the CPU.
    pub alignment: u64,
    /// Whether the system is asked for huge pages. Where memory is in whole pieces, they make the first touch two to
    /// four times faster; where it is not, the system stops to make room for each. In a virtual machine whose host
    /// takes free memory back, direct reads went at 0.2 to 0.7 of the rate of `dd` with them, at 0.9 to 1.2 without
    /// (`examples/arena_load.rs`), so they are not the default.
    pub huge_pages: bool,
    /// Which layers are pinned.
    pub pinning: Pinning,
    /// Layers whose experts the CPU computes: they need no device address, so they are never pinned.
    pub cpu_layers: Vec<LayerId>,
    /// Most bytes of one registration, but for rows that cannot be parted: a copy must lie in one registration, so a
    /// bank is cut where a row and a page begin at once, and nowhere else.
    pub register_bytes: u64,
    /// What follows when a registration is refused.
    pub refusal: Refusal,
    /// Whether what is not pinned is locked in memory. Where that is refused, the rest stays pageable, and the report
    /// says so.
    pub lock: bool,
}

impl Default for ArenaOptions {
    /// Four readers (one does not keep a disk busy while it touches pages, and eight were no faster), direct reads
    /// where they can be had, everything pinned, a refusal is an error.
    fn default() -> Self {
        Self {
            reader_count: 4,
            direct: Direct::Try,
            read_bytes: 8 << 20,
            alignment: 16,
            huge_pages: false,
            pinning: Pinning::All,
            cpu_layers: Vec::new(),
            // A registration cannot be stopped midway and takes some tenths of a second a GiB, so this is how long a
            // caller waits who cancels. Most banks are smaller and go in one. The driver's own limits are far above:
            // 512 GiB a call since R580 (NVIDIA/open-gpu-kernel-modules#1234).
            register_bytes: 1 << 30,
            refusal: Refusal::Fail,
            lock: false,
        }
    }
}

/// Whether reads go past the system's page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direct {
    /// Where the file system has it; the report says where it has not, and why.
    Try,
    /// Never.
    Never,
    /// Always, or it is an error.
    Require,
}

/// Which layers are pinned. A layer is pinned as a whole or not at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pinning {
    /// None.
    None,
    /// All, but for those of the CPU.
    All,
    /// As many as this many bytes hold, in the order in which they are given: a layer that does not fit is passed over.
    Budget(u64),
}

/// What follows when a registration is refused. The bytes in the arena stay as they are in any case but the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// An error; everything is undone.
    Fail,
    /// The layer stays unpinned, and so do those after it: what was pinned of it is let go, and nothing further is
    /// tried, since on some systems one refusal makes every later allocation of pinned memory fail.
    Serve,
    /// It is tried again with half the bytes, and so is everything after it, down to this many; then as
    /// [`Serve`](Self::Serve). Every bank is laid out for it, at the cost of a copy by the CPU in direct reads.
    Halve {
        /// Bytes below which a registration is not halved.
        least_bytes: u64,
    },
}
