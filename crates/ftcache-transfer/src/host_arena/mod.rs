//! Host memory in which banks live: reserved without being touched, filled from files, and pinned while it is filled.
//!
//! [`HostArena::reserve`] checks everything that can be known before a byte is read, and lays the banks out. Threads
//! then read ranges of the files into place, layer by layer, and the calling thread registers every bank with the
//! device as soon as the last byte of it is there; so a load takes about as long as the longer of the two. What
//! became of each layer and file is in the [`LoadReport`]: nothing is lowered without a line there.
//!
//! ```text
//! readers   | layer 0 | layer 1      | layer 2 | ...
//! caller              | pin layer 0  | pin layer 1   | ...
//! ```
//!
//! A budget of pinned bytes is spent before anything is read, on whole layers in the order in which they are given,
//! and layers that the CPU computes are never registered. Memory that an engine owns itself needs no arena: it is
//! registered where it lies, with [`Registrations`].
//!
//! Pages come to lie on the memory node of the thread that first writes them, here a reader. On machines with several
//! nodes, bind the process to the device's (`numactl --cpunodebind=N --membind=N`), or interleave; the arena itself
//! chooses no node.
//!
//! *Unsafe* here, relying on one promise of ours: an arena's bytes are written by [`Reservation::load`] alone, which
//! ends before rows are handed out.

mod error;
mod files;
mod layout;
mod load;
mod memory;
mod options;
mod pins;
mod registrations;
mod report;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use ftcache_policy::{BankId, LayerId};

pub use error::{ArenaError, LockRefusal, PinRefusal, RegisterError};
pub use options::{ArenaOptions, BankSource, Direct, FilePiece, Pinning, Refusal};
pub use registrations::Registrations;
pub use report::{FileReport, HugePages, LayerReport, LoadReport, Progress, Residence, Unpinned};

use files::SourceFile;
use layout::{Layout, Units};
use memory::Memory;
pub(crate) use memory::page_bytes;

use crate::{Device, DeviceError, HostRows};

/// Huge pages of most systems; an arena that asks for them begins at one.
const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// The registrations of an arena, and the memory they are of.
///
/// What a device may read is never unmapped: dropped before they have ended, the memory is leaked.
#[derive(Debug)]
struct Pins {
    memory: Arc<Memory>,
    registrations: Registrations,
}

impl Pins {
    fn new(memory: Arc<Memory>) -> Self {
        Self { memory, registrations: Registrations::new() }
    }

    fn free(&mut self, device: &mut impl Device) -> Result<(), DeviceError> {
        self.registrations.free(device)
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        if !self.registrations.is_clear() {
            std::mem::forget(Arc::clone(&self.memory));
        }
    }
}

/// An arena that is laid out, and holds nothing yet.
#[derive(Debug)]
pub struct Reservation {
    layout: Layout,
    files: Vec<SourceFile>,
    memory: Arc<Memory>,
    options: ArenaOptions,
    /// For each layer, why it is not to be pinned, if it is not.
    unpinned: Vec<Option<Unpinned>>,
    huge_pages: HugePages,
    page_bytes: u64,
    /// A page, or what direct reads need where that is more.
    unit: u64,
}

impl Reservation {
    /// Bytes of address space that the banks take, with the rest of their last pages.
    pub fn bytes(&self) -> u64 {
        self.layout.bytes
    }

    /// Every layer and the bytes of its pages, in the order in which they are read, with the reason for each that is
    /// not to be pinned.
    pub fn layers(&self) -> impl ExactSizeIterator<Item = (LayerId, u64, Option<Unpinned>)> {
        let layers = self.layout.layers.iter().zip(&self.unpinned);
        layers.map(|(place, &unpinned)| (place.layer, place.page_bytes, unpinned))
    }

    /// Every bank with its bytes of a row and of all rows.
    pub fn banks(&self) -> impl Iterator<Item = (LayerId, BankId, u64, u64)> + '_ {
        self.layout.banks.iter().map(|place| (place.layer, place.bank, place.row_bytes, place.bytes))
    }

    /// Reads everything, and pins what is to be pinned.
    ///
    /// `tell` is called on this thread, after each read and each registration; when it breaks, the load stops. The
    /// device is used on this thread only, and no other one outlives the call.
    ///
    /// # Errors
    ///
    /// A read that fails or meets the end of its file; a registration that is refused, where that is to be an error;
    /// an error of the device's earlier work; the caller's stop. Nothing is left then: what was registered is not any
    /// more, and the memory is given back. But where the device does not end a registration, the memory is leaked,
    /// since it may still read there: [`ArenaError::Leaked`] says how much, besides what went wrong first.
    ///
    /// # Panics
    ///
    /// If `tell` or the device does. Memory that is registered by then stays mapped.
    pub fn load(
        self,
        device: &mut impl Device,
        mut tell: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<HostArena, ArenaError> {
        let begin = Instant::now();
        let loaded = load::load(&self, device, &mut tell)?;
        let report = LoadReport {
            layers: loaded.layers,
            files: self.files.iter().map(SourceFile::report).collect(),
            huge_pages: self.huge_pages,
            register_bytes: loaded.register_bytes,
            pin_refusal: loaded.pin_refusal,
            lock_refusal: loaded.lock_refusal,
            read_time: loaded.read_time,
            pin_time: loaded.pin_time,
            total_time: begin.elapsed(),
        };
        let Self { layout, memory, .. } = self;
        Ok(HostArena { layout, memory, pins: loaded.pins, cut_rows: loaded.cut_rows, report })
    }
}

/// Host memory that holds banks.
///
/// Registrations belong to a device, so whoever owns both calls [`free`](Self::free). An arena that is dropped without
/// it leaks its memory, since the device may still read there.
#[derive(Debug)]
pub struct HostArena {
    layout: Layout,
    memory: Arc<Memory>,
    pins: Pins,
    /// For each bank, the rows at which a registration begins, but for the first.
    cut_rows: Vec<Vec<u32>>,
    report: LoadReport,
}

impl HostArena {
    /// Lays banks out in memory that is reserved and not touched, and opens the files.
    ///
    /// Layers are read, and pinned where there is a budget, in the order in which they are first named.
    ///
    /// # Errors
    ///
    /// Options that cannot be followed; banks that their pieces do not fill exactly; files that are missing, too short,
    /// or not for direct reads where those are required; more memory than there are addresses.
    pub fn reserve(
        banks: &[BankSource],
        files: &[impl AsRef<Path>],
        options: ArenaOptions,
    ) -> Result<Reservation, ArenaError> {
        let page_bytes = page_bytes();
        check_options(&options, page_bytes)?;
        let missing = options.cpu_layers.iter().find(|&&layer| banks.iter().all(|bank| bank.layer != layer));
        if let Some(&layer) = missing {
            return Err(ArenaError::UnknownCpuLayer { layer });
        }
        let open = |path: &_| SourceFile::open(AsRef::as_ref(path), options.direct);
        let files = files.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let alignments = || files.iter().filter_map(SourceFile::alignment);
        let unit = alignments().fold(page_bytes, u64::max);

        // Where pinning may go in parts, rows must begin with pages.
        let may_pin = |layer| options.pinning != Pinning::None && !options.cpu_layers.contains(&layer);
        let may_halve = matches!(options.refusal, Refusal::Halve { .. });
        let is_long = |bytes| pins::is_parted(bytes, unit, options.register_bytes);
        let is_parted = |layer, bytes| may_pin(layer) && (may_halve || is_long(bytes));
        let units = Units { unit, alignment: options.alignment };
        let layout = Layout::new(banks, units, alignments().next().is_some(), is_parted)?;
        check_pieces(&layout, &files)?;
        let unpinned = choose_layers(&layout, &options);

        let alignment = if options.huge_pages { unit.max(HUGE_PAGE_BYTES) } else { unit };
        let memory = Memory::reserve(layout.bytes, alignment);
        let memory = memory.map_err(|error| ArenaError::Reserve { bytes: layout.bytes, reason: error.to_string() })?;
        let huge_pages = match options.huge_pages {
            false => HugePages::NotAsked,
            true => memory
                .advise_huge_pages()
                .map_or_else(|error| HugePages::Refused(error.to_string()), |()| HugePages::Accepted),
        };
        let memory = Arc::new(memory);
        Ok(Reservation { layout, files, memory, options, unpinned, huge_pages, page_bytes, unit })
    }

    /// The rows of one bank, without gaps, or `None` if the arena does not hold it. They keep the memory alive.
    pub fn rows(&self, layer: LayerId, bank: BankId) -> Option<HostRows> {
        let place = &self.layout.banks[self.bank_index(layer, bank)?];
        let base = self.memory.at(place.first).cast_const();
        let owner = Arc::clone(&self.memory);
        // SAFETY: the bytes are inside the memory, which the rows own a share of, and nothing writes there any more.
        Some(unsafe { HostRows::shared(owner, base, place.bytes, place.row_bytes) })
    }

    /// Every bank and its rows.
    pub fn banks(&self) -> impl Iterator<Item = (LayerId, BankId, HostRows)> + '_ {
        let rows = |place: &layout::Placement| {
            let rows = self.rows(place.layer, place.bank).expect("it is one of the arena's");
            (place.layer, place.bank, rows)
        };
        self.layout.banks.iter().map(rows)
    }

    /// The bytes of one bank, row after row, or `None` if the arena does not hold it: for experts that the CPU
    /// computes.
    pub fn bytes(&self, layer: LayerId, bank: BankId) -> Option<&[u8]> {
        let place = &self.layout.banks[self.bank_index(layer, bank)?];
        // SAFETY: nothing writes there any more.
        Some(unsafe { self.memory.slice(place.first..place.first + place.bytes) })
    }

    /// The rows at which a registration of a bank begins, but for the first: a copy may not lie across them. Empty if
    /// the bank is in one registration, in none, or not in the arena.
    pub fn cut_rows(&self, layer: LayerId, bank: BankId) -> &[u32] {
        self.bank_index(layer, bank).map_or(&[], |index| &self.cut_rows[index])
    }

    /// How a layer is kept, or `None` if the arena does not hold it.
    pub fn residence(&self, layer: LayerId) -> Option<Residence> {
        self.report.layers.iter().find(|report| report.layer == layer).map(|report| report.residence)
    }

    /// How the load went. What was freed since is no longer pinned in it.
    pub fn report(&self) -> &LoadReport {
        &self.report
    }

    /// Ends every registration, each once; the device waits for what may still read. The rows stay, pageable, until the
    /// arena and all that it handed out are dropped. Does nothing the second time.
    ///
    /// # Errors
    ///
    /// The device's first failure. The memory is never unmapped then, as the device may still read there, and the
    /// report stays as it was.
    pub fn free(&mut self, device: &mut impl Device) -> Result<(), DeviceError> {
        let freed = self.pins.free(device);
        if !self.pins.registrations.is_clear() {
            return freed;
        }
        for layer in self.report.layers.iter_mut().filter(|layer| layer.residence == Residence::Pinned) {
            layer.residence = Residence::Pageable;
            layer.registration_count = 0;
            layer.unpinned = Some(Unpinned::Freed);
        }
        self.cut_rows.iter_mut().for_each(Vec::clear);
        freed
    }

    fn bank_index(&self, layer: LayerId, bank: BankId) -> Option<usize> {
        self.layout.banks.iter().position(|place| place.layer == layer && place.bank == bank)
    }
}

fn check_options(options: &ArenaOptions, page_bytes: u64) -> Result<(), ArenaError> {
    let numbers = [
        ("reader_count", options.reader_count as u64, 1),
        ("read_bytes", options.read_bytes, 1),
        ("register_bytes", options.register_bytes, page_bytes),
    ];
    for (name, given, least) in numbers {
        if given < least {
            return Err(ArenaError::Option { name, given, least });
        }
    }
    let alignment = options.alignment;
    match alignment.is_power_of_two() && alignment <= page_bytes {
        true => Ok(()),
        false => Err(ArenaError::Alignment { alignment, page_bytes }),
    }
}

/// Whether every piece lies in its file.
fn check_pieces(layout: &Layout, files: &[SourceFile]) -> Result<(), ArenaError> {
    for place in &layout.banks {
        let (layer, bank) = (place.layer, place.bank);
        for piece in &place.pieces {
            let unknown = ArenaError::UnknownFile { layer, bank, file: piece.file, file_count: files.len() };
            let file = files.get(piece.file).ok_or(unknown)?;
            if piece.offset.checked_add(piece.bytes).is_none_or(|end| end > file.bytes) {
                return Err(ArenaError::ShortFile {
                    layer,
                    bank,
                    path: file.path().into(),
                    offset: piece.offset,
                    bytes: piece.bytes,
                    file_bytes: file.bytes,
                });
            }
        }
    }
    Ok(())
}

/// For each layer, why it is not to be pinned, if it is not.
fn choose_layers(layout: &Layout, options: &ArenaOptions) -> Vec<Option<Unpinned>> {
    let budget_bytes = match options.pinning {
        Pinning::None => return vec![Some(Unpinned::NotAsked); layout.layers.len()],
        Pinning::All => None,
        Pinning::Budget(bytes) => Some(bytes),
    };
    let is_cpu = |layer| options.cpu_layers.contains(&layer);
    // Layers of the CPU take nothing of the budget.
    let needed = |place: &layout::LayerPlace| if is_cpu(place.layer) { 0 } else { place.page_bytes };
    let chosen = pins::choose(&layout.layers.iter().map(needed).collect::<Vec<_>>(), budget_bytes);
    let unpinned = |(place, chosen): (&layout::LayerPlace, Result<(), u64>)| match chosen {
        _ if is_cpu(place.layer) => Some(Unpinned::Cpu),
        Ok(()) => None,
        Err(left_bytes) => Some(Unpinned::Budget { needed_bytes: place.page_bytes, left_bytes }),
    };
    layout.layers.iter().zip(chosen).map(unpinned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostDevice;

    /// An arena of one bank, read from this program's own file.
    fn arena(device: &mut HostDevice) -> HostArena {
        let bank = BankSource::contiguous(LayerId::new(0), BankId::new(0), 1000, 4, 0, 0);
        let program = std::env::current_exe().unwrap();
        let reserved = HostArena::reserve(&[bank], &[program], ArenaOptions::default()).unwrap();
        reserved.load(device, |_| ControlFlow::Continue(())).unwrap()
    }

    #[test]
    fn memory_is_given_back_once_the_device_has_let_go_and_not_before() {
        let mut device = HostDevice::new();
        let mut freed = arena(&mut device);
        let memory = Arc::downgrade(&freed.memory);
        freed.free(&mut device).unwrap();
        let rows = freed.rows(LayerId::new(0), BankId::new(0));
        drop(freed);
        assert!(memory.upgrade().is_some(), "rows keep it");
        drop(rows);
        assert!(memory.upgrade().is_none(), "nobody keeps it");

        let dropped = arena(&mut device);
        let memory = Arc::downgrade(&dropped.memory);
        drop(dropped);
        assert!(memory.upgrade().is_some(), "the device may read it");
    }

    #[test]
    fn memory_is_kept_if_the_load_panics_with_something_registered() {
        let bank = BankSource::contiguous(LayerId::new(0), BankId::new(0), 1000, 4, 0, 0);
        let program = std::env::current_exe().unwrap();
        let reserved = HostArena::reserve(&[bank], &[program], ArenaOptions::default()).unwrap();
        let memory = Arc::downgrade(&reserved.memory);
        let mut device = HostDevice::new();
        let load = || reserved.load(&mut device, |_| panic!("the caller's own"));
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(load)).unwrap_err();
        assert!(memory.upgrade().is_some());
    }
}
