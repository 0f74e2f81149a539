//! Reading and pinning at once: threads that read, and the caller's, which registers what they have finished.
//!
//! *Unsafe* in two places, relying on two promises of ours: every byte of the arena belongs to one block
//! (`Layout::new`), and no row is handed out before the last of them is read.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use ftcache_policy::LayerId;

use super::error::{ArenaError, LockRefusal, PinRefusal, RegisterError};
use super::files::SourceFile;
use super::layout::{Layout, Placement};
use super::memory::{Memory, lock_limit_bytes};
use super::options::{ArenaOptions, Pinning, Refusal};
use super::pins::Cuts;
use super::report::{LayerReport, Progress, Residence, Unpinned};
use super::{Pins, Reservation};
use crate::{Device, DeviceError, HostAccess};

/// Bytes that are read at once.
struct Block {
    /// Index of the bank.
    bank: usize,
    /// Index of the file.
    file: usize,
    /// From the file's start.
    offset: u64,
    bytes: u64,
    /// From the arena's start.
    target: u64,
}

/// A block that was read.
struct Filled {
    bank: usize,
    bytes: u64,
    at: Instant,
}

/// Every piece of every bank, cut at multiples of the read size in its file, so that direct reads share no sector.
fn blocks(layout: &Layout, read_bytes: u64) -> Vec<Block> {
    let mut blocks = Vec::new();
    for (bank, placement) in layout.banks.iter().enumerate() {
        for piece in &placement.pieces {
            let end = piece.offset + piece.bytes;
            let mut offset = piece.offset;
            while offset < end {
                let next = (offset - offset % read_bytes).saturating_add(read_bytes).min(end);
                let target = placement.first + piece.target + (offset - piece.offset);
                blocks.push(Block { bank, file: piece.file, offset, bytes: next - offset, target });
                offset = next;
            }
        }
    }
    blocks
}

/// Lets readers stop after the block they are at, however the caller's part ends.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What readers share.
struct Readers<'a> {
    files: &'a [SourceFile],
    memory: &'a Memory,
    blocks: &'a [Block],
    scratch_bytes: u64,
    scratch_alignment: u64,
    next: AtomicUsize,
    stop: AtomicBool,
}

impl Readers<'_> {
    /// Reads one block after the other until there are no more, or nobody wants them.
    fn run(&self, sender: &mpsc::Sender<Result<Filled, ArenaError>>) {
        let bytes = self.scratch_bytes;
        let scratch = match Memory::reserve(bytes, self.scratch_alignment) {
            Ok(scratch) => scratch,
            Err(error) => {
                let _ = sender.send(Err(ArenaError::Reserve { bytes, reason: error.to_string() }));
                return;
            }
        };
        // SAFETY: the only reference to memory of this thread's.
        let scratch = unsafe { scratch.slice_mut(0..bytes) };
        while !self.stop.load(Ordering::Relaxed) {
            let Some(block) = self.blocks.get(self.next.fetch_add(1, Ordering::Relaxed)) else { return };
            // SAFETY: no byte is in two blocks, each block is taken once, and nobody reads before all are filled.
            let target = unsafe { self.memory.slice_mut(block.target..block.target + block.bytes) };
            let filled = self.files[block.file].fill(block.offset, target, scratch);
            let filled = filled.map(|()| Filled { bank: block.bank, bytes: block.bytes, at: Instant::now() });
            // An error ends the whole load, and so does a caller who has gone.
            let is_last = filled.is_err();
            if sender.send(filled).is_err() || is_last {
                return;
            }
        }
    }
}

/// What a load leaves behind.
pub(super) struct Loaded {
    pub(super) pins: Pins,
    pub(super) layers: Vec<LayerReport>,
    /// For each bank, the rows at which a registration begins, but for the first.
    pub(super) cut_rows: Vec<Vec<u32>>,
    pub(super) register_bytes: u64,
    pub(super) pin_refusal: Option<PinRefusal>,
    pub(super) lock_refusal: Option<LockRefusal>,
    pub(super) read_time: Duration,
    pub(super) pin_time: Duration,
}

/// Fills and pins a reserved arena. After an error, nothing is registered, or the memory is leaked and the error says
/// so.
pub(super) fn load(
    reservation: &Reservation,
    device: &mut impl Device,
    tell: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<Loaded, ArenaError> {
    let begin = Instant::now();
    let Reservation { layout, files, memory, options, unit, .. } = reservation;
    let read_bytes = options.read_bytes.checked_next_multiple_of(*unit).unwrap_or(1 << 62);
    let blocks = blocks(layout, read_bytes);
    let largest = blocks.iter().map(|block| block.bytes).max().unwrap_or(0);
    let readers = Readers {
        files,
        memory,
        blocks: &blocks,
        // A block may begin and end inside a sector.
        scratch_bytes: largest.next_multiple_of(*unit) + 2 * unit,
        scratch_alignment: *unit,
        next: AtomicUsize::new(0),
        stop: AtomicBool::new(false),
    };
    let mut keeper = Keeper::new(reservation);
    let mut read_time = Duration::ZERO;
    let result = thread::scope(|scope| {
        let _stop = StopOnDrop(&readers.stop);
        let (sender, receiver) = mpsc::channel();
        for _ in 0..options.reader_count.min(blocks.len()) {
            let (sender, readers) = (sender.clone(), &readers);
            let reader = thread::Builder::new().name("ftcache-reader".to_owned());
            let spawned = reader.spawn_scoped(scope, move || readers.run(&sender));
            spawned.map_err(|error| ArenaError::Thread { reason: error.to_string() })?;
        }
        drop(sender);
        // Ends when every reader has: they hold the other ends.
        for filled in receiver {
            let Filled { bank, bytes, at } = filled?;
            read_time = read_time.max(at - begin);
            keeper.filled(device, bank, bytes, tell)?;
        }
        Ok(())
    });
    match result {
        Ok(()) => Ok(keeper.finish(read_time)),
        Err(error) => {
            let freed = keeper.pins.free(device);
            // A device that fails here, too, leaves the memory mapped (`Pins`).
            match keeper.unended.or(freed.err()) {
                Some(reason) => Err(ArenaError::Leaked { bytes: layout.bytes, reason, source: Box::new(error) }),
                None => Err(error),
            }
        }
    }
}

/// The caller's part: counts what is read, and pins or locks it.
struct Keeper<'a> {
    layout: &'a Layout,
    memory: &'a Memory,
    options: &'a ArenaOptions,
    page_bytes: u64,
    pins: Pins,
    /// A layer without a reason against it is being pinned, or is pinned.
    layers: Vec<LayerReport>,
    /// For each bank, the index of its layer.
    layer_of: Vec<usize>,
    /// For each bank, bytes to be read.
    unread_bytes: Vec<u64>,
    /// For each layer, banks that are not complete.
    unread_banks: Vec<usize>,
    /// For each bank, where its registrations begin.
    registered: Vec<Vec<u64>>,
    /// Most bytes of a registration from now on.
    register_bytes: u64,
    pin_refusal: Option<PinRefusal>,
    lock_refusal: Option<LockRefusal>,
    /// Why a registration was not ended.
    unended: Option<DeviceError>,
    pin_time: Duration,
    progress: Progress,
}

type Tell<'a> = &'a mut dyn FnMut(Progress) -> ControlFlow<()>;

impl<'a> Keeper<'a> {
    fn new(reservation: &'a Reservation) -> Self {
        let Reservation { layout, memory, options, unpinned, .. } = reservation;
        let report = |(place, &unpinned): (&super::layout::LayerPlace, &Option<Unpinned>)| LayerReport {
            layer: place.layer,
            bytes: place.bytes,
            page_bytes: place.page_bytes,
            residence: Residence::Pageable,
            registration_count: 0,
            unpinned,
        };
        let layers: Vec<LayerReport> = layout.layers.iter().zip(unpinned).map(report).collect();
        let layer_of =
            layout.layers.iter().enumerate().flat_map(|(index, layer)| layer.banks.clone().map(move |_| index));
        let wanted = layers.iter().filter(|layer| layer.unpinned.is_none());
        let progress = Progress {
            layer: layers.first().map_or(LayerId::new(0), |layer| layer.layer),
            read_bytes: 0,
            total_bytes: layers.iter().map(|layer| layer.bytes).sum(),
            pinned_bytes: 0,
            to_pin_bytes: wanted.map(|layer| layer.page_bytes).sum(),
        };
        Self {
            layout,
            memory,
            options,
            page_bytes: reservation.page_bytes,
            pins: Pins::new(Arc::clone(memory)),
            layer_of: layer_of.collect(),
            unread_bytes: layout.banks.iter().map(|bank| bank.bytes).collect(),
            unread_banks: layout.layers.iter().map(|layer| layer.banks.len()).collect(),
            registered: vec![Vec::new(); layout.banks.len()],
            register_bytes: options.register_bytes,
            pin_refusal: None,
            lock_refusal: None,
            unended: None,
            pin_time: Duration::ZERO,
            progress,
            layers,
        }
    }

    /// Takes note of a block, and keeps its bank if that was the last one.
    fn filled(&mut self, device: &mut impl Device, bank: usize, bytes: u64, tell: Tell) -> Result<(), ArenaError> {
        let layer = self.layer_of[bank];
        self.unread_bytes[bank] -= bytes;
        self.progress.layer = self.layers[layer].layer;
        self.progress.read_bytes += bytes;
        if self.unread_bytes[bank] == 0 {
            let begin = Instant::now();
            let kept = self.keep(device, bank, layer, tell);
            self.pin_time += begin.elapsed();
            kept?;
        }
        self.tell(tell)
    }

    fn tell(&self, tell: Tell) -> Result<(), ArenaError> {
        let Progress { read_bytes, total_bytes, .. } = self.progress;
        match tell(self.progress) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(ArenaError::Cancelled { read_bytes, total_bytes }),
        }
    }

    /// Pins a bank that is complete, if its layer is to be; locks a layer that is complete and is not.
    fn keep(&mut self, device: &mut impl Device, bank: usize, layer: usize, tell: Tell) -> Result<(), ArenaError> {
        if self.layers[layer].unpinned.is_none() {
            self.pin(device, bank, layer, tell)?;
        }
        self.unread_banks[layer] -= 1;
        if self.unread_banks[layer] > 0 {
            return Ok(());
        }
        let banks = self.layout.layers[layer].banks.clone();
        let report = &mut self.layers[layer];
        if report.unpinned.is_none() {
            report.residence = Residence::Pinned;
            report.registration_count = self.registered[banks].iter().map(Vec::len).sum();
            self.progress.pinned_bytes += report.page_bytes;
        } else if self.options.lock && self.lock_refusal.is_none() {
            self.lock(layer);
        }
        Ok(())
    }

    /// Registers a bank, in as many parts as it takes.
    fn pin(&mut self, device: &mut impl Device, bank: usize, layer: usize, tell: Tell) -> Result<(), ArenaError> {
        let placement = &self.layout.banks[bank];
        let cuts = Cuts {
            pages: placement.pages.clone(),
            page_bytes: self.page_bytes,
            first: placement.first,
            row_bytes: placement.row_bytes,
            bytes: placement.bytes,
        };
        let mut at = cuts.pages.start;
        while at < cuts.pages.end {
            let end = cuts.next(at, self.register_bytes);
            match self.register(device, placement, at..end)? {
                None => {
                    self.registered[bank].push(at);
                    at = end;
                    self.tell(tell)?;
                }
                Some(refusal) if self.options.refusal == Refusal::Fail => return Err(refusal.into()),
                Some(refusal) => {
                    self.pin_refusal = Some(refusal.clone());
                    if !self.halve(&cuts, at, end) {
                        self.give_up(device, layer);
                        // What was pinned of the layer is to be let go, or there is nothing to go on with.
                        return if self.unended.is_some() { Err(refusal.into()) } else { Ok(()) };
                    }
                }
            }
        }
        Ok(())
    }

    /// Registers pages of a bank, or answers why the device does not.
    fn register(
        &mut self,
        device: &mut impl Device,
        placement: &Placement,
        pages: std::ops::Range<u64>,
    ) -> Result<Option<PinRefusal>, ArenaError> {
        // Some drivers answer any call with the error of earlier work, which would be taken for a refusal.
        device.check().map_err(ArenaError::Device)?;
        let (base, wanted_bytes) = (self.memory.at(pages.start), pages.end - pages.start);
        let pinned_bytes = self.pins.registrations.bytes();
        let registrations = &mut self.pins.registrations;
        // SAFETY: the pages are the arena's, which stays mapped as long as it is registered (`Pins`).
        let registered = unsafe { registrations.register(device, base, wanted_bytes, HostAccess::ReadWrite, 0) };
        let source = match registered {
            Ok(()) => return Ok(None),
            Err(RegisterError::Refused { source, .. }) => source,
            Err(other) => unreachable!("pages of a bank are its own, and registered once: {other}"),
        };
        let budget_bytes = match self.options.pinning {
            Pinning::Budget(bytes) => Some(bytes),
            Pinning::None | Pinning::All => None,
        };
        let (layer, bank) = (placement.layer, placement.bank);
        Ok(Some(PinRefusal { layer, bank, wanted_bytes, pinned_bytes, budget_bytes, source }))
    }

    /// Lowers the bytes of a registration to half of what was refused, if the options and the rows allow it.
    fn halve(&mut self, cuts: &Cuts, at: u64, end: u64) -> bool {
        let Refusal::Halve { least_bytes } = self.options.refusal else { return false };
        let half = (end - at) / 2 / self.page_bytes * self.page_bytes;
        if half < least_bytes.max(self.page_bytes) || cuts.next(at, half) >= end {
            return false;
        }
        self.register_bytes = half;
        true
    }

    /// Leaves a layer unpinned, and every other one that is not pinned yet.
    fn give_up(&mut self, device: &mut impl Device, refused: usize) {
        for layer in 0..self.layers.len() {
            let report = &mut self.layers[layer];
            if report.unpinned.is_some() || report.residence == Residence::Pinned {
                continue;
            }
            report.unpinned = Some(if layer == refused { Unpinned::Refused } else { Unpinned::AfterRefusal });
            for bank in self.layout.layers[layer].banks.clone() {
                for at in self.registered[bank].drain(..) {
                    let base = self.memory.at(at);
                    match self.pins.registrations.unregister(device, base) {
                        Ok(()) => {}
                        Err(RegisterError::Device(source)) => drop(self.unended.get_or_insert(source)),
                        Err(other) => unreachable!("it was registered: {other}"),
                    }
                }
            }
        }
    }

    /// Locks every bank of a layer, or none.
    fn lock(&mut self, layer: usize) {
        let banks = &self.layout.banks[self.layout.layers[layer].banks.clone()];
        for (index, placement) in banks.iter().enumerate() {
            let Err(error) = self.memory.lock(&placement.pages) else { continue };
            let locked = |report: &&LayerReport| report.residence == Residence::Locked;
            let of_layer: u64 = banks[..index].iter().map(|bank| bank.pages.end - bank.pages.start).sum();
            let of_others: u64 = self.layers.iter().filter(locked).map(|report| report.page_bytes).sum();
            self.lock_refusal = Some(LockRefusal {
                layer: placement.layer,
                bank: placement.bank,
                wanted_bytes: placement.pages.end - placement.pages.start,
                locked_bytes: of_others + of_layer,
                limit_bytes: lock_limit_bytes(),
                reason: error.to_string(),
            });
            banks[..index].iter().for_each(|bank| self.memory.unlock(&bank.pages));
            return;
        }
        self.layers[layer].residence = Residence::Locked;
    }

    fn finish(self, read_time: Duration) -> Loaded {
        debug_assert_eq!(self.progress.read_bytes, self.progress.total_bytes);
        let cut_rows = self.registered.iter().zip(&self.layout.banks).map(|(registered, placement)| {
            let row = |&at: &u64| ((at - placement.first) / placement.row_bytes) as u32;
            registered.iter().skip(1).map(row).collect()
        });
        Loaded {
            cut_rows: cut_rows.collect(),
            pins: self.pins,
            layers: self.layers,
            register_bytes: self.register_bytes,
            pin_refusal: self.pin_refusal,
            lock_refusal: self.lock_refusal,
            read_time,
            pin_time: self.pin_time,
        }
    }
}
