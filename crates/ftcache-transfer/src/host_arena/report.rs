//! How a load went: what was achieved for each layer and file, and why where it is less than was asked.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use ftcache_policy::LayerId;

use super::error::{LockRefusal, PinRefusal};

/// How the memory of a layer is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Residence {
    /// Registered with the device.
    Pinned,
    /// Locked in memory, unknown to the device.
    Locked,
    /// The system may page it out.
    Pageable,
}

/// Why a layer is not pinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unpinned {
    /// No layer was to be.
    NotAsked,
    /// The CPU computes it.
    Cpu,
    /// It needs more than the budget had left.
    Budget {
        /// Bytes of its pages.
        needed_bytes: u64,
        /// Bytes that the layers before it left.
        left_bytes: u64,
    },
    /// The device refused a part of it.
    Refused,
    /// The device had refused before.
    AfterRefusal,
    /// It was let go, with all others.
    Freed,
}

impl fmt::Display for Unpinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAsked => write!(f, "no layer was to be"),
            Self::Cpu => write!(f, "the CPU computes it"),
            Self::Budget { needed_bytes, left_bytes } => {
                write!(f, "{needed_bytes} bytes of pages each; the budget had {left_bytes} left")
            }
            Self::Refused => write!(f, "the device refused"),
            Self::AfterRefusal => write!(f, "not tried after the refusal"),
            Self::Freed => write!(f, "let go"),
        }
    }
}

/// How one layer is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerReport {
    /// The layer.
    pub layer: LayerId,
    /// Bytes of its rows.
    pub bytes: u64,
    /// Bytes of its pages: what pinning or locking it takes.
    pub page_bytes: u64,
    /// How it is kept.
    pub residence: Residence,
    /// Registrations it takes; zero if it is not pinned.
    pub registration_count: usize,
    /// Why it is not pinned, if it is not.
    pub unpinned: Option<Unpinned>,
}

/// How one file was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileReport {
    /// The file.
    pub path: PathBuf,
    /// The alignment of direct reads, if reads were direct to the end.
    pub direct: Option<u64>,
    /// Why they were not, if that was asked for.
    pub reason: Option<String>,
}

/// What came of huge pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HugePages {
    /// They were not asked for.
    NotAsked,
    /// The system took the advice; how far it follows is its own affair.
    Accepted,
    /// The system refused, in its own words.
    Refused(String),
}

/// How a load went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadReport {
    /// Every layer, in the order in which they were read.
    pub layers: Vec<LayerReport>,
    /// Every file, as given.
    pub files: Vec<FileReport>,
    /// Whether huge pages were had.
    pub huge_pages: HugePages,
    /// Most bytes of one registration in the end: less than asked where the device made it so.
    pub register_bytes: u64,
    /// The last registration that was refused.
    pub pin_refusal: Option<PinRefusal>,
    /// The lock that was refused. None was tried after it.
    pub lock_refusal: Option<LockRefusal>,
    /// From the start to the last byte read.
    pub read_time: Duration,
    /// Spent in registrations and locks, most of it while others read.
    pub pin_time: Duration,
    /// From the start to the end.
    pub total_time: Duration,
}

impl LoadReport {
    /// Bytes of all rows.
    pub fn bytes(&self) -> u64 {
        self.layers.iter().map(|layer| layer.bytes).sum()
    }

    /// Layers that are kept so.
    pub fn layer_count(&self, residence: Residence) -> usize {
        self.layers.iter().filter(|layer| layer.residence == residence).count()
    }

    /// Bytes of the pages that are kept so.
    pub fn page_bytes(&self, residence: Residence) -> u64 {
        self.layers.iter().filter(|layer| layer.residence == residence).map(|layer| layer.page_bytes).sum()
    }

    /// Registrations of all layers.
    pub fn registration_count(&self) -> usize {
        self.layers.iter().map(|layer| layer.registration_count).sum()
    }
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes in {} layers:", self.bytes(), self.layers.len())?;
        let mut comma = "";
        for (residence, word) in
            [(Residence::Pinned, "pinned"), (Residence::Locked, "locked"), (Residence::Pageable, "pageable")]
        {
            let count = self.layer_count(residence);
            if count > 0 {
                write!(f, "{comma} {count} {word} ({} bytes", self.page_bytes(residence))?;
                match (residence, self.registration_count()) {
                    (Residence::Pinned, 1) => write!(f, " in one registration)")?,
                    (Residence::Pinned, count) => write!(f, " in {count} registrations)")?,
                    _ => write!(f, ")")?,
                }
                comma = ",";
            }
        }
        for file in &self.files {
            if let Some(reason) = &file.reason {
                write!(f, "; {} not read directly: {reason}", file.path.display())?;
            }
        }
        if let HugePages::Refused(reason) = &self.huge_pages {
            write!(f, "; no huge pages: {reason}")?;
        }
        if let Some(refusal) = &self.pin_refusal {
            write!(f, "; {refusal}")?;
        }
        match &self.lock_refusal {
            Some(refusal) => write!(f, "; {refusal}"),
            None => Ok(()),
        }
    }
}

/// How far a load is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The layer that something was just done for.
    pub layer: LayerId,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes to read.
    pub total_bytes: u64,
    /// Bytes of the layers that are pinned as a whole.
    pub pinned_bytes: u64,
    /// Bytes that are to be pinned; fewer are where the device refuses.
    pub to_pin_bytes: u64,
}
