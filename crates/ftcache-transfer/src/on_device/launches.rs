//! Device mode of a loader: the tables, and beside them where every bank's rows and slots lie, so that gathers can be
//! launched by what a launch before them decided.
//!
//! Nothing here is kept between calls but what lies on the device, so whatever is captured can be launched again. The
//! order of the launches is the engine's: over one stream, or over several that it orders by events of its own, which
//! may be recorded in the capture.
//!
//! *Unsafe*, relying on promises of [`Loader`]'s: rows stay attached while gathers read them, and are exchanged only
//! after a wait for everything enqueued.

use std::sync::atomic::AtomicU32;

use ftcache_policy::{BankId, LayerId, SlotId};
use ftcache_residency::Cache;

use super::abi::{self, Kernel};
use super::staging::StageTables;
use super::tables::{check_threads, launch};
use super::{DeviceModeError, DevicePlan, DeviceReading, DeviceStep, DeviceTables, FaultReport};
use crate::{BankError, Device, DeviceError, Loader, Memory, Stream};

/// How launches are shaped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeviceModeOptions {
    /// Threads of an admission: a multiple of 32 up to 1,024. Stamps of four slots a thread are read once; those of
    /// larger pools several times.
    pub admission_threads: u32,
    /// Blocks of a gather, of 512 threads each: 1 to 2^31 - 1. They take that much of the device from kernels that run
    /// meanwhile.
    pub gather_blocks: u32,
    /// How often a word is looked at that is waited for, a microsecond or so apart.
    pub word_looks: u64,
}

impl Default for DeviceModeOptions {
    fn default() -> Self {
        Self { admission_threads: 1024, gather_blocks: 64, word_looks: 10_000_000 }
    }
}

/// A word of the host's that a gather waits for.
#[derive(Debug, Clone, Copy)]
pub struct HostWord {
    word: *const AtomicU32,
    value: u32,
}

impl HostWord {
    /// A word that is to be raised to `value` or past it, counted around the end of 32 bits.
    ///
    /// # Safety
    ///
    /// The word lies in registered memory and stays there until every launch that was told of it is done; if
    /// that was captured, as long as its graph is launched. It is raised after the rows that are gathered then were
    /// written.
    pub const unsafe fn from_raw(word: *const AtomicU32, value: u32) -> Self {
        Self { word, value }
    }
}

const GATHER_THREADS: u32 = 512;
/// The most blocks of a launch.
const BLOCKS_MAX: u32 = i32::MAX as u32;
/// One waits, the others free slots if it was in vain.
const AWAIT_THREADS: u32 = 256;

/// What a loader has of device mode.
#[derive(Debug)]
pub(crate) struct DeviceMode {
    pub(super) tables: DeviceTables,
    options: DeviceModeOptions,
    /// `abi::BankRows[layer][bank]`: from rows to slots.
    banks: Memory,
    /// Where staged layers come from and go to, if there are buffers.
    pub(super) stage: Option<StageTables>,
    /// Whether the buffers are others since the residency was on the device last, so that what was captured names
    /// memory that is gone.
    pub(super) is_stale: bool,
}

pub(super) fn engaged(mode: &Option<DeviceMode>) -> Result<&DeviceMode, DeviceModeError> {
    mode.as_ref().filter(|mode| mode.tables.is_engaged()).ok_or(DeviceModeError::OnHost)
}

impl DeviceMode {
    /// Called when the buffers are others. The residency is with the host.
    pub(crate) fn set_stale(&mut self) {
        self.is_stale = true;
    }

    pub(super) fn spread(&self) -> (u32, u32, u32) {
        (self.options.gather_blocks, GATHER_THREADS, 0)
    }

    pub(super) fn stage(&self) -> Result<&StageTables, DeviceModeError> {
        self.stage.as_ref().ok_or(DeviceModeError::NoStaging)
    }

    /// A gather of a layer, but for what it gathers.
    pub(super) fn gather(&self, layer: LayerId, bank_count: u32, entry_max: u32) -> abi::Gather {
        abi::Gather {
            header: self.tables.header_address(),
            generation: self.tables.generation(),
            entry_count: 0,
            entries: 0,
            banks: 0,
            bank_count,
            entry_max,
            layer: layer.get(),
            reserved: 0,
        }
    }

    pub(crate) fn free<D: Device>(&mut self, device: &mut D) -> Result<(), DeviceError> {
        if let Some(stage) = self.stage.take() {
            device.free(stage.memory);
        }
        device.free(self.banks);
        self.tables.free(device)
    }
}

impl<D: Device> Loader<D> {
    /// Moves a residency to the device: from now on [`admit_on_device`](Self::admit_on_device) decides, and the cache's
    /// own calls must not until it is [taken back](Self::leave_device_mode). Waits for everything enqueued.
    ///
    /// # Errors
    ///
    /// A residency that is there already or cannot leave the host; a layer with slots whose rows are not attached, or
    /// lie where kernels cannot read them, with its number; shapes that no launch has; a device without kernels, or its
    /// own. The residency is with the host then.
    pub fn enter_device_mode(&mut self, residency: &Cache, options: DeviceModeOptions) -> Result<(), DeviceModeError> {
        self.check_slots()?;
        let (given, most) = (options.gather_blocks, BLOCKS_MAX);
        if given == 0 || given > most {
            return Err(DeviceModeError::Blocks { given, most });
        }
        if self.is_in_device_mode() {
            return Err(DeviceModeError::OnDevice);
        }
        // What can be seen to be refused is refused before anything is allocated.
        check_threads(options.admission_threads)?;
        residency.state()?;
        let banks = self.bank_rows(residency)?;
        let mut mode = match self.mode.take() {
            Some(mut mode) => {
                mode.options = options;
                mode
            }
            None => {
                let bytes = bytemuck::cast_slice::<_, u8>(&banks).len() as u64;
                let mut tables = DeviceTables::new(&mut self.device, residency.layer_count())?;
                match self.device.allocate(bytes.max(1), 64) {
                    Ok(banks) => DeviceMode { tables, options, banks, stage: None, is_stale: false },
                    Err(error) => {
                        // The first word of the two is the one to tell.
                        let _ = tables.free(&mut self.device);
                        return Err(error.into());
                    }
                }
            }
        };
        let entered = self.fill(&mut mode, residency, &banks);
        self.mode = Some(mode);
        entered
    }

    fn fill(
        &mut self,
        mode: &mut DeviceMode,
        residency: &Cache,
        banks: &[abi::BankRows],
    ) -> Result<(), DeviceModeError> {
        mode.tables.set_threads(mode.options.admission_threads)?;
        self.device.write(mode.banks, 0, bytemuck::cast_slice(banks))?;
        self.fill_stage(mode, residency)?;
        mode.tables.engage_anew(&mut self.device, residency, mode.is_stale)?;
        mode.is_stale = false;
        // Whatever a step before was enqueued on is done.
        self.compute = None;
        Ok(())
    }

    /// Takes the residency back, with all that was decided on the device. Waits for everything enqueued; what is
    /// launched later is refused. The tables stay, so that what was captured is good again once the residency is back
    /// there, unless there was a rebuild between.
    ///
    /// # Errors
    ///
    /// A residency that is with the host, a chunk on borrowed buffers that has not ended; the device's own, or tables
    /// that contradict themselves: it is on the device still.
    pub fn leave_device_mode(&mut self, residency: &mut Cache) -> Result<(), DeviceModeError> {
        let mode = self.mode.as_mut().ok_or(DeviceModeError::OnHost)?;
        mode.tables.disengage(&mut self.device, residency)
    }

    /// Whether the residency is on the device.
    pub fn is_in_device_mode(&self) -> bool {
        self.mode.as_ref().is_some_and(|mode| mode.tables.is_engaged())
    }

    /// Whether a residency is the one that is on the device.
    pub(super) fn check_residency(&self, residency: &Cache) -> Result<(), DeviceModeError> {
        engaged(&self.mode)?.tables.check_residency(residency)
    }

    /// Launches may read what these calls would exchange.
    pub(crate) fn check_with_host(&self, operation: &'static str) -> Result<(), DeviceError> {
        if self.is_in_device_mode() {
            return Err(DeviceError::OnDevice { operation });
        }
        Ok(())
    }

    /// Enqueues the admission of a step whose routes lie on the device: one launch, which may be captured. What is to
    /// be copied stays on the device; [`gather_on_device`](Self::gather_on_device) does it.
    ///
    /// # Errors
    ///
    /// As [`DeviceTables::admit`].
    pub fn admit_on_device(
        &mut self,
        stream: Stream,
        residency: &Cache,
        step: &DeviceStep,
    ) -> Result<(), DeviceModeError> {
        let mode = self.mode.as_ref().ok_or(DeviceModeError::OnHost)?;
        mode.tables.admit(&mut self.device, stream, residency, step)
    }

    /// Enqueues the copies that the last admission of a layer enqueued before it decided on, in all banks: one launch,
    /// which may be captured. Kernels that read the slots come behind it, and so does the next admission of the layer's
    /// pool, which may give the slots to others.
    ///
    /// # Errors
    ///
    /// A residency that is with the host; an unknown layer or one without slots; the device's own.
    pub fn gather_on_device(
        &mut self,
        stream: Stream,
        residency: &Cache,
        layer: LayerId,
    ) -> Result<(), DeviceModeError> {
        residency.pool_of(layer)?;
        self.check_residency(residency)?;
        let bank_count = self.geometry.model().bank_count() as u32;
        let mode = engaged(&self.mode)?;
        let (entry_count, entries) = mode.tables.copies(layer);
        let at = u64::from(layer.get()) * u64::from(bank_count) * size_of::<abi::BankRows>() as u64;
        let told = abi::Gather {
            entry_count,
            entries,
            banks: self.device.address(mode.banks)? + at,
            ..mode.gather(layer, bank_count, residency.expert_count())
        };
        // SAFETY: tables of ours, rows that are attached, slots.
        Ok(unsafe { launch(&mut self.device, stream, Kernel::GatherRows, mode.spread(), &told) }?)
    }

    /// The same once the host has raised a word, if there is anything to copy: for rows whose place is pinned and whose
    /// bytes the engine reads in late. Two launches, of which the first waits; what it waits for is of one launch, so
    /// in a graph the word is to be lowered between two.
    ///
    /// If the word is not raised in time, the slots that the step was given for its misses are free again and nothing
    /// is copied, which [`take_faults`](Self::take_faults) tells.
    ///
    /// # Errors
    ///
    /// As [`gather_on_device`](Self::gather_on_device); a word in memory that kernels cannot read.
    pub fn gather_on_device_after(
        &mut self,
        stream: Stream,
        residency: &Cache,
        layer: LayerId,
        word: HostWord,
    ) -> Result<(), DeviceModeError> {
        let pool = residency.pool_of(layer)?;
        self.check_residency(residency)?;
        let address = self.device.kernel_address(word.word.cast(), size_of::<AtomicU32>() as u64)?;
        let mode = engaged(&self.mode)?;
        let told = abi::Await {
            tables: mode.tables.told(),
            generation: mode.tables.generation(),
            pool: mode.tables.pool_range(pool),
            layer: layer.get(),
            word_value: word.value,
            word: address,
            patience: mode.options.word_looks,
        };
        // SAFETY: tables of ours; the word is the engine's, by its promise.
        unsafe { launch(&mut self.device, stream, Kernel::Await, (1, AWAIT_THREADS, 0), &told) }?;
        self.gather_on_device(stream, residency, layer)
    }

    /// Enqueues that every slot is freed; see [`DeviceTables::reset`].
    ///
    /// # Errors
    ///
    /// As [`DeviceTables::reset`].
    pub fn reset_on_device(&mut self, stream: Stream) -> Result<(), DeviceModeError> {
        engaged(&self.mode)?.tables.reset(&mut self.device, stream)
    }

    /// Enqueues a reading; see [`DeviceTables::request_reading`].
    ///
    /// # Errors
    ///
    /// As [`DeviceTables::request_reading`].
    pub fn request_reading(&mut self, stream: Stream) -> Result<(), DeviceModeError> {
        engaged(&self.mode)?.tables.request_reading(&mut self.device, stream)
    }

    /// The last reading that was asked for, or `None` if there was none or it is being written. Waits for nothing.
    ///
    /// # Errors
    ///
    /// There never was device mode.
    pub fn reading(&self) -> Result<Option<DeviceReading>, DeviceModeError> {
        Ok(self.mode.as_ref().ok_or(DeviceModeError::OnHost)?.tables.reading())
    }

    /// As [`reading`](Self::reading), into one that there is; see [`DeviceTables::read_into`].
    ///
    /// # Errors
    ///
    /// As [`reading`](Self::reading).
    pub fn read_into(&self, reading: &mut DeviceReading) -> Result<bool, DeviceModeError> {
        Ok(self.mode.as_ref().ok_or(DeviceModeError::OnHost)?.tables.read_into(reading))
    }

    /// What the last admission of a layer decided; see [`DeviceTables::plan`].
    ///
    /// # Errors
    ///
    /// As [`DeviceTables::plan`].
    pub fn plan_on_device(&mut self, layer: LayerId) -> Result<DevicePlan, DeviceModeError> {
        engaged(&self.mode)?.tables.plan(&mut self.device, layer)
    }

    /// Launches that were refused since this was last asked, or `None`. Waits for nothing.
    pub fn take_faults(&mut self) -> Option<FaultReport> {
        self.mode.as_mut()?.tables.take_faults()
    }

    /// Where every bank's rows and slots lie.
    fn bank_rows(&mut self, residency: &Cache) -> Result<Vec<abi::BankRows>, DeviceModeError> {
        let mut banks = Vec::new();
        for layer in (0..residency.layer_count()).map(LayerId::from_index) {
            for bank in self.geometry.model().bank_ids() {
                banks.push(self.bank_rows_of(residency, layer, bank)?);
            }
        }
        Ok(banks)
    }

    pub(super) fn bank_rows_of(
        &mut self,
        residency: &Cache,
        layer: LayerId,
        bank: BankId,
    ) -> Result<abi::BankRows, DeviceModeError> {
        let none = abi::BankRows {
            source: 0,
            source_stride: 0,
            target: 0,
            target_stride: 0,
            row_bytes: 0,
            source_rows: 0,
            target_rows: 0,
        };
        let Ok(pool) = residency.pool_of(layer) else { return Ok(none) };
        let Some(slots) = self.slot(pool, bank, SlotId::new(0)) else { return Ok(none) };
        let row_bytes = self.geometry.pool(pool).ranges()[bank.index()].row_bytes;
        let rows = self.banks.rows(layer, bank, 0).ok_or(BankError::NotAttached { layer, bank })?;
        let (span, direct) = rows;
        if !direct {
            return Err(DeviceModeError::NotDirect { layer, bank });
        }
        let expert_count = residency.expert_count();
        let bytes = u64::from(expert_count - 1) * span.stride + row_bytes;
        Ok(abi::BankRows {
            source: self.device.kernel_address(span.base, bytes)?,
            source_stride: span.stride,
            target: self.device.address(slots.memory)? + slots.offset,
            target_stride: slots.stride,
            row_bytes,
            source_rows: expert_count,
            target_rows: residency.slot_count(pool),
        })
    }
}
