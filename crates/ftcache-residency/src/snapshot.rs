//! Warm start: who was resident, in the order of use, to be kept in a file and brought back by another run.
//!
//! What is kept are experts, not slots: it fits any pools of the same model. As bytes, all numbers little-endian:
//!
//! | bytes | what |
//! | --- | --- |
//! | 4 | `FTCR` |
//! | 4 | version, 1 |
//! | 8 | the caller's fingerprint of the model |
//! | 4, 4 | layers, experts of each |
//! | 4 | residents |
//! | 4 each | flat expert id, the least recently used first |
//! | 8 | FNV-1a of all bytes before |

use std::error::Error;
use std::fmt;

use ftcache_policy::{ExpertId, FlatExpertId, LayerId, PoolId, Recency, SlotId};

use crate::map::Absence;
use crate::pool::Pool;
use crate::rebuild::Resident;
use crate::{Cache, EnsureError};

const MAGIC: [u8; 4] = *b"FTCR";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 28;
const CHECKSUM_BYTES: usize = 8;

/// The experts that a cache held, the least recently used first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Residents {
    fingerprint: u64,
    layer_count: u32,
    expert_count: u32,
    experts: Vec<FlatExpertId>,
}

/// A row to bring back at start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Placement {
    /// The layer.
    pub layer: LayerId,
    /// The expert, which is the row in the layer's banks.
    pub row: ExpertId,
    /// The layer's pool.
    pub pool: PoolId,
    /// Where the row goes, local to the pool.
    pub slot: SlotId,
}

/// Residents that cannot be read, or cannot be brought back. Nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The bytes do not begin as residents do.
    Magic,
    /// A version that is not known here.
    Version {
        /// What the bytes say.
        given: u32,
        /// What is known.
        known: u32,
    },
    /// Fewer bytes, or more, than there must be.
    Length {
        /// Bytes that there must be.
        needed: u64,
        /// Bytes given.
        given: u64,
    },
    /// The bytes are damaged.
    Checksum,
    /// Another model, by the callers' fingerprints.
    Fingerprint {
        /// Of the residents.
        given: u64,
        /// Of the model that they are for.
        wanted: u64,
    },
    /// Another model, by its layers and experts.
    OtherModel {
        /// Layers and experts of the residents.
        given: (u32, u32),
        /// Layers and experts of the cache.
        wanted: (u32, u32),
    },
    /// An expert that the model does not have.
    UnknownExpert {
        /// Place among the residents.
        index: usize,
        /// The flat id.
        expert: FlatExpertId,
        /// Flat ids of the model.
        expert_count: u64,
    },
    /// An expert is named twice.
    NamedTwice {
        /// Place among the residents where it is named again.
        index: usize,
        /// The flat id.
        expert: FlatExpertId,
    },
    /// The cache holds experts.
    NotEmpty {
        /// How many.
        resident_count: usize,
    },
    /// A prefill chunk is open.
    ChunkOpen,
    /// The step counter is at its end.
    LastStep(EnsureError),
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Magic => write!(f, "not a list of residents: it does not begin with FTCR"),
            Self::Version { given, known } => write!(f, "residents of version {given}; version {known} is known"),
            Self::Length { needed, given } => write!(f, "residents of {needed} bytes; {given} were given"),
            Self::Checksum => write!(f, "the residents are damaged: their checksum is another"),
            Self::Fingerprint { given, wanted } => {
                write!(f, "residents of the model with fingerprint {given:016x}; this model's is {wanted:016x}")
            }
            Self::OtherModel { given, wanted } => write!(
                f,
                "residents of {} layers of {} experts; the cache has {} layers of {}",
                given.0, given.1, wanted.0, wanted.1
            ),
            Self::UnknownExpert { index, expert, expert_count } => {
                write!(f, "resident {index} is {expert}, which is no expert of 0..{expert_count}")
            }
            Self::NamedTwice { index, expert } => write!(f, "resident {index} is {expert}, which is named before"),
            Self::NotEmpty { resident_count } => {
                write!(f, "the cache holds {resident_count} experts; it must be empty")
            }
            Self::ChunkOpen => write!(f, "a prefill chunk is open"),
            Self::LastStep(error) => error.fmt(f),
        }
    }
}

impl Error for SnapshotError {}

impl Residents {
    /// Experts, the least recently used first.
    pub fn experts(&self) -> &[FlatExpertId] {
        &self.experts
    }

    /// Layers that have residents, ascending.
    pub fn layers(&self) -> impl Iterator<Item = LayerId> + '_ {
        let mut layers: Vec<u32> = self.experts.iter().map(|expert| expert.get() / self.expert_count).collect();
        layers.sort_unstable();
        layers.dedup();
        layers.into_iter().map(LayerId::new)
    }

    /// The caller's fingerprint of the model: a hash of its file, layouts and whatever else must be the same.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// As bytes, to be kept.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + 4 * self.experts.len() + CHECKSUM_BYTES);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(self.fingerprint.to_le_bytes());
        let numbers = [self.layer_count, self.expert_count, self.experts.len() as u32];
        numbers.into_iter().chain(self.experts.iter().map(|expert| expert.get())).for_each(|number| {
            bytes.extend(number.to_le_bytes());
        });
        bytes.extend(checksum(&bytes).to_le_bytes());
        bytes
    }

    /// From bytes that were kept.
    ///
    /// # Errors
    ///
    /// Bytes that are no residents, of an unknown version, cut, or damaged; an expert that the model they name does not
    /// have, or that is named twice.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, SnapshotError> {
        if !bytes.starts_with(&MAGIC) {
            return Err(SnapshotError::Magic);
        }
        let given = bytes.len() as u64;
        if bytes.len() < HEADER_BYTES + CHECKSUM_BYTES {
            return Err(SnapshotError::Length { needed: (HEADER_BYTES + CHECKSUM_BYTES) as u64, given });
        }
        let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        if number(4) != VERSION {
            return Err(SnapshotError::Version { given: number(4), known: VERSION });
        }
        let needed = (HEADER_BYTES + CHECKSUM_BYTES) as u64 + 4 * u64::from(number(24));
        if needed != given {
            return Err(SnapshotError::Length { needed, given });
        }
        let end = bytes.len() - CHECKSUM_BYTES;
        if checksum(&bytes[..end]) != long(end) {
            return Err(SnapshotError::Checksum);
        }
        let experts = (HEADER_BYTES..end).step_by(4).map(|at| FlatExpertId::new(number(at))).collect();
        let residents = Self { fingerprint: long(8), layer_count: number(16), expert_count: number(20), experts };
        residents.check()?;
        Ok(residents)
    }

    fn check(&self) -> Result<(), SnapshotError> {
        let expert_count = u64::from(self.layer_count) * u64::from(self.expert_count);
        let mut named: Vec<(FlatExpertId, usize)> = self.experts.iter().copied().zip(0..).collect();
        if let Some(&(expert, index)) = named.iter().find(|(expert, _)| u64::from(expert.get()) >= expert_count) {
            return Err(SnapshotError::UnknownExpert { index, expert, expert_count });
        }
        named.sort_unstable();
        let again = named.windows(2).filter(|pair| pair[0].0 == pair[1].0).map(|pair| pair[1]);
        match again.min_by_key(|&(_, index)| index) {
            Some((expert, index)) => Err(SnapshotError::NamedTwice { index, expert }),
            None => Ok(()),
        }
    }
}

/// FNV-1a of 64 bits.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

impl Cache {
    /// Who is resident, by use over all pools; of one stamp by pool and slot. `fingerprint` is the caller's for the
    /// model, and is compared when they are brought back.
    pub fn residents(&self, fingerprint: u64) -> Residents {
        let layers = (0..self.layer_count()).map(LayerId::from_index);
        let mut residents: Vec<Resident> = layers.flat_map(|layer| self.residents_of(layer)).collect();
        residents.sort_unstable_by_key(|resident| (resident.stamp, resident.pool, resident.slot));
        Residents {
            fingerprint,
            layer_count: self.layer_count() as u32,
            expert_count: self.expert_count(),
            experts: residents.iter().map(|resident| self.map.flat(resident.layer, resident.expert)).collect(),
        }
    }

    /// Brings residents back into an empty cache and lists the rows to copy, ascending by pool and slot: of each pool's
    /// layers those used last, as many as it has slots for. Those of layers without slots are left out.
    ///
    /// The order of use goes on: the step counter goes on by the number of residents, and each has a stamp of its own.
    /// Open until its ticket is committed or aborted; statistics count nothing.
    ///
    /// # Errors
    ///
    /// Residents of another model, by fingerprint or numbers; a cache that is not empty; an open chunk; more residents
    /// than there are steps left to count. The cache is then as it was.
    pub fn bring_back<'a>(
        &'a mut self,
        residents: &Residents,
        fingerprint: u64,
        placements: &'a mut Vec<Placement>,
    ) -> Result<BringBackTicket<'a>, SnapshotError> {
        self.step = self.check_bring_back(residents, fingerprint)?;
        let first_stamp = self.step + 1 - residents.experts.len() as u64;
        self.forget_answers();
        placements.clear();
        for index in 0..self.pools.len() {
            self.fill_pool(index, residents, first_stamp, placements);
        }
        Ok(BringBackTicket { cache: self, placements, open: true })
    }

    /// Whether residents can be brought back, for who has to look at other things first. Returns the step that the
    /// counter would then be at.
    ///
    /// # Errors
    ///
    /// As those of [`bring_back`](Self::bring_back).
    pub fn check_bring_back(&self, residents: &Residents, fingerprint: u64) -> Result<u64, SnapshotError> {
        if residents.fingerprint != fingerprint {
            return Err(SnapshotError::Fingerprint { given: residents.fingerprint, wanted: fingerprint });
        }
        let given = (residents.layer_count, residents.expert_count);
        let wanted = (self.layer_count() as u32, self.expert_count());
        if given != wanted {
            return Err(SnapshotError::OtherModel { given, wanted });
        }
        if self.has_open_chunk() {
            return Err(SnapshotError::ChunkOpen);
        }
        let resident_count = self.resident_count();
        if resident_count > 0 {
            return Err(SnapshotError::NotEmpty { resident_count });
        }
        let last_stamp = self.step.checked_add(residents.experts.len() as u64);
        let counted = last_stamp.filter(|&stamp| stamp <= Recency::LAST_STEP);
        counted.ok_or(SnapshotError::LastStep(EnsureError::LastStep { step: self.step }))
    }

    fn fill_pool(&mut self, index: usize, residents: &Residents, first_stamp: u64, placements: &mut Vec<Placement>) {
        let pool = PoolId::from_index(index);
        let stamped = residents.experts.iter().zip(first_stamp..);
        let of_layer = stamped.map(|(&expert, stamp)| (self.map.layer_and_expert(expert), stamp));
        let mut of_pool: Vec<_> =
            of_layer.filter(|((layer, _), _)| self.pool_of_layer[layer.index()] == Some(pool)).collect();
        let Pool { first, recency, .. } = &mut self.pools[index];
        of_pool.drain(..of_pool.len().saturating_sub(recency.slot_count() as usize));
        let mut stamps = Vec::with_capacity(of_pool.len());
        for (slot, ((layer, row), stamp)) in (0..).map(SlotId::new).zip(of_pool) {
            self.map.placing(layer, *first).put(row, slot);
            stamps.push((slot, stamp));
            placements.push(Placement { layer, row, pool, slot });
        }
        *recency = Recency::with_stamps(recency.slot_count(), &stamps);
        self.pin_residents(pool);
        if let Some(ranking) = &mut self.ranking {
            ranking.unrank_all();
        }
    }
}

/// Residents on their way back. Committed, their rows lie in their slots; aborted or dropped, the slots are free.
#[derive(Debug)]
#[must_use = "a ticket that is dropped aborts what it is for"]
pub struct BringBackTicket<'a> {
    cache: &'a mut Cache,
    placements: &'a [Placement],
    open: bool,
}

impl<'a> BringBackTicket<'a> {
    /// The ticket of placements that were left open.
    pub(crate) fn of(cache: &'a mut Cache, placements: &'a [Placement]) -> Self {
        Self { cache, placements, open: true }
    }

    /// Gives the borrow back; see [`Ticket::leave_open`](crate::Ticket).
    pub(crate) fn leave_open(mut self) {
        self.open = false;
    }

    /// The rows to copy.
    pub fn placements(&self) -> &[Placement] {
        self.placements
    }

    /// All rows have been copied.
    pub fn commit(mut self) {
        self.open = false;
    }

    /// They have not: every slot is free.
    pub fn abort(self) {}
}

impl Drop for BringBackTicket<'_> {
    fn drop(&mut self) {
        if self.open {
            for placement in self.placements {
                self.cache.free(placement.pool, placement.slot, Absence::Freed);
            }
            self.cache.forget_answers();
        }
    }
}
