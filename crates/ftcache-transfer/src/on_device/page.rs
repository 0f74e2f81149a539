//! What comes back from launches without anybody waiting: faults and readings, in pages of pinned memory.
//!
//! *Unsafe*, relying on one promise: kernels write there as `kernels/abi.h` says, a fault's count last and a reading's
//! between its two.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use bytemuck::{Pod, Zeroable};
use ftcache_policy::LayerId;
use ftcache_residency::Stats;

use super::abi;
use super::{Fault, FaultReport};
use crate::pages::Pages;
use crate::{Device, DeviceError};

/// What the pages hold: a fault, a reading, and after them the counters of the reading.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct Page {
    fault: abi::Fault,
    reading: abi::Reading,
}

/// What can be read of a residency on the device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceReading {
    /// The generation it is of.
    pub generation: u64,
    /// The last step.
    pub step: u64,
    /// As [`Cache::digest`](ftcache_residency::Cache::digest).
    pub digest: u64,
    /// Experts in slots.
    pub resident_count: u64,
    /// `stats[layer][phase]`.
    pub stats: Vec<[Stats; abi::PHASE_COUNT as usize]>,
}

/// The pages of one cache.
#[derive(Debug)]
pub(super) struct ReportPage {
    pages: Pages,
    address: u64,
    /// Layers that they have room for.
    layer_count: usize,
}

impl ReportPage {
    /// Pages for a cache of so many layers. [`free`](Self::free) is to be called at the end.
    ///
    /// # Errors
    ///
    /// The device's. Nothing stays behind then.
    pub(super) fn new<D: Device>(device: &mut D, layer_count: usize) -> Result<Self, DeviceError> {
        let counters = layer_count * (abi::PHASE_COUNT * abi::COUNTER_COUNT) as usize;
        let bytes = (size_of::<Page>() + size_of::<u64>() * counters) as u64;
        let pages = Pages::registered(device, "device mode", bytes)?;
        match device.kernel_address(pages.first(), pages.bytes()) {
            Ok(address) => Ok(Self { pages, address, layer_count }),
            Err(error) => {
                // The first word of the two is the one to tell.
                let _ = pages.unregister(device);
                Err(error)
            }
        }
    }

    pub(super) fn free<D: Device>(&self, device: &mut D) -> Result<(), DeviceError> {
        self.pages.unregister(device)
    }

    /// Where kernels write a fault, a reading, and the reading's counters.
    pub(super) fn addresses(&self) -> (u64, u64, u64) {
        let at = |offset: usize| self.address + offset as u64;
        (at(std::mem::offset_of!(Page, fault)), at(std::mem::offset_of!(Page, reading)), at(size_of::<Page>()))
    }

    /// A number that the device writes too, or reads.
    fn number(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: aligned, in the pages, and only accessed as a whole while anything is enqueued.
        unsafe { AtomicU64::from_ptr(self.pages.first().wrapping_add(offset).cast()) }
    }

    /// Whether the last reading that was asked for is whole; `reading` is that one then, else it is nothing. Waits for
    /// nothing; allocates nothing where there was room for one.
    pub(super) fn read_into(&self, reading: &mut DeviceReading) -> bool {
        let at = std::mem::offset_of!(Page, reading);
        let begun = self.number(at + std::mem::offset_of!(abi::Reading, begun));
        let ended = self.number(at + std::mem::offset_of!(abi::Reading, ended)).load(Ordering::Acquire);
        let number = |offset: usize| self.number(at + offset).load(Ordering::Relaxed);
        let counter = |index: usize| self.number(size_of::<Page>() + size_of::<u64>() * index).load(Ordering::Relaxed);
        let count = abi::COUNTER_COUNT as usize;
        let of = |layer: usize, phase: usize| {
            let first = (layer * abi::PHASE_COUNT as usize + phase) * count;
            Stats::from_counters(std::array::from_fn(|index| counter(first + index)))
        };
        reading.generation = number(std::mem::offset_of!(abi::Reading, generation));
        reading.step = number(std::mem::offset_of!(abi::Reading, step));
        reading.digest = number(std::mem::offset_of!(abi::Reading, digest));
        reading.resident_count = number(std::mem::offset_of!(abi::Reading, resident_count));
        reading.stats.clear();
        reading.stats.extend((0..self.layer_count).map(|layer| std::array::from_fn(|phase| of(layer, phase))));
        // Whatever of it was written by a later reading, that had begun before.
        fence(Ordering::Acquire);
        ended > 0 && begun.load(Ordering::Relaxed) == ended
    }

    /// Launches that were refused since this was last asked, or `None`. Waits for nothing.
    pub(super) fn take_faults(&mut self) -> Option<FaultReport> {
        let at = std::mem::offset_of!(Page, fault);
        let count = self.number(at + std::mem::offset_of!(abi::Fault, count));
        let told = self.number(at + std::mem::offset_of!(abi::Fault, told));
        let told_before = told.load(Ordering::Relaxed);
        if count.load(Ordering::Acquire) == told_before {
            return None;
        }
        // The device does not write them again before the host has told.
        let number = |offset: usize| self.number(at + offset).load(Ordering::Relaxed);
        // Code and layer stand in one.
        let both = self.number(at).load(Ordering::Relaxed).to_ne_bytes();
        let half = |at: usize| u32::from_ne_bytes(std::array::from_fn(|byte| both[at + byte]));
        let (code, layer) = (half(0), LayerId::new(half(std::mem::offset_of!(abi::Fault, layer))));
        let step = number(std::mem::offset_of!(abi::Fault, step));
        let position = number(std::mem::offset_of!(abi::Fault, position));
        let value = number(std::mem::offset_of!(abi::Fault, value)).cast_signed();
        let needed = number(std::mem::offset_of!(abi::Fault, needed));
        let given = number(std::mem::offset_of!(abi::Fault, given));
        let first = match code {
            abi::NO_FAULT => Fault::Untold,
            abi::UNKNOWN_EXPERT => Fault::UnknownExpert { layer, route: position, id: value, expert_count: given },
            abi::STEP_TOO_WIDE => Fault::StepTooWide { layer, needed, given },
            abi::STALE_GENERATION => Fault::StaleGeneration { layer, captured: value.cast_unsigned(), current: needed },
            abi::HOST_MODE => Fault::WithHost { layer },
            abi::LAST_STEP_REACHED => Fault::LastStep { layer },
            abi::WORD_TIMEOUT => Fault::WordTimeout { layer, wanted: needed, found: given },
            abi::NO_CHUNK => Fault::NoChunk { layer, needed, given },
            code => Fault::Unknown { code },
        };
        // One that comes from here on finds another code only if it is counted after what is told below.
        self.number(at).store(0, Ordering::Relaxed);
        let counted = count.load(Ordering::Relaxed);
        told.store(counted, Ordering::Release);
        Some(FaultReport { first, step, count: counted - told_before })
    }
}
