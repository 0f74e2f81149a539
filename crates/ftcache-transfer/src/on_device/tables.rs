//! Who is where, in device memory, and the launches that decide over it.
//!
//! The tables are one block of memory, made anew when the pools are others. Beside them lives the header, as long as
//! the cache does: a launch that was captured before a rebuild finds there that it is of another generation, and
//! touches nothing else. Faults and readings come back through pages of pinned memory, so that looking at them waits
//! for nothing.
//!
//! *Unsafe*, relying on two promises: the engine's addresses are what [`DeviceRows`](super::DeviceRows) says; the pages
//! stay until nothing that is enqueued writes them, which is when the device was synchronised and no graph is launched
//! any more.

use bytemuck::{Pod, Zeroable};
use ftcache_policy::{ExpertId, LayerId, PoolId, SlotId, Table, TableShape};
use ftcache_residency::{Cache, Copy};

use super::abi::{self, Kernel};
use super::block::{Block, Shape};
use super::page::ReportPage;
use super::step::Told;
use super::{DeviceModeError, DeviceReading, DeviceStep, FaultReport};
use crate::{Device, DeviceError, Launch, Memory, Stream};

/// Threads of an admission unless told otherwise: the most there are, so that 4,096 slots are read in one go.
const THREADS: u32 = 1024;
/// Blocks and threads of kernels that go through slots or rows.
const SPREAD: (u32, u32, u32) = (64, 256, 0);

/// What a launch decided, read back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DevicePlan {
    /// The step.
    pub step: u64,
    /// Distinct experts.
    pub distinct: u32,
    /// Of these, those that were in no slot.
    pub misses: u32,
    /// The rows to copy, in the order in which victims were taken.
    pub copies: Vec<Copy>,
}

/// A residency in device memory.
#[derive(Debug)]
pub struct DeviceTables {
    header: Memory,
    header_address: u64,
    page: ReportPage,
    layer_count: usize,
    block: Option<Block>,
    /// Counts the times that what was captured went void. What is launched must be of this one.
    generation: u64,
    /// Whether the residency is here.
    is_engaged: bool,
    threads: u32,
}

impl DeviceTables {
    /// Room for a residency of so many layers, which is still with the host. It is to be given back by
    /// [`free`](Self::free).
    ///
    /// # Errors
    ///
    /// A device without kernels, or its own. Nothing stays behind then.
    pub fn new<D: Device>(device: &mut D, layer_count: usize) -> Result<Self, DeviceError> {
        device.prepare_kernels()?;
        let page = ReportPage::new(device, layer_count)?;
        match Self::header(device, &page) {
            Ok((header, header_address)) => Ok(Self {
                header,
                header_address,
                page,
                layer_count,
                block: None,
                generation: 0,
                is_engaged: false,
                threads: THREADS,
            }),
            Err(error) => {
                // The first word of the two is the one to tell.
                let _ = page.free(device);
                Err(error)
            }
        }
    }

    fn header<D: Device>(device: &mut D, page: &ReportPage) -> Result<(Memory, u64), DeviceError> {
        let header = device.allocate(size_of::<abi::Header>() as u64, TableShape::ALIGNMENT)?;
        let written = device.address(header).and_then(|address| {
            let (fault, ..) = page.addresses();
            let words = abi::Header { generation: abi::WITH_HOST, step: 0, fault, reserved: 0 };
            device.write(header, 0, bytemuck::bytes_of(&words))?;
            Ok(address)
        });
        match written {
            Ok(address) => Ok((header, address)),
            Err(error) => {
                device.free(header);
                Err(error)
            }
        }
    }

    /// Gives everything back. No graph that holds a launch may be launched from now on.
    ///
    /// # Errors
    ///
    /// What the device says of its registration.
    pub fn free<D: Device>(&mut self, device: &mut D) -> Result<(), DeviceError> {
        self.is_engaged = false;
        if let Some(block) = self.block.take() {
            device.free(block.memory);
        }
        device.free(self.header);
        self.page.free(device)
    }

    /// Threads of an admission, a multiple of 32 up to 1,024.
    ///
    /// # Errors
    ///
    /// Another number.
    pub fn set_threads(&mut self, threads: u32) -> Result<(), DeviceModeError> {
        check_threads(threads)?;
        self.threads = threads;
        Ok(())
    }

    /// Whether the residency is here.
    pub fn is_engaged(&self) -> bool {
        self.is_engaged
    }

    /// Bytes of device memory that tables take for a residency.
    pub fn table_bytes(residency: &Cache) -> u64 {
        Shape::of(residency).tables().total_bytes()
    }

    /// Takes the residency over: launches decide from now on, and the cache's own calls must not until it is
    /// [taken back](Self::disengage). Waits for everything enqueued.
    ///
    /// The tables of another generation are given back, so that what was captured over them is refused when it is
    /// launched.
    ///
    /// # Errors
    ///
    /// A residency that is here already, one that cannot leave the host, or the device's own: it is with the host then.
    pub fn engage<D: Device>(&mut self, device: &mut D, residency: &Cache) -> Result<(), DeviceModeError> {
        self.engage_anew(device, residency, false)
    }

    /// The same; `is_stale` if nothing that was captured may be launched any more, whatever the residency is.
    pub(super) fn engage_anew<D: Device>(
        &mut self,
        device: &mut D,
        residency: &Cache,
        is_stale: bool,
    ) -> Result<(), DeviceModeError> {
        if self.is_engaged {
            return Err(DeviceModeError::OnDevice);
        }
        assert_eq!(residency.layer_count(), self.layer_count, "the cache that this was made for");
        let state = residency.state()?;
        device.synchronize_all()?;
        let (shape, rebuilds) = (Shape::of(residency), residency.generation());
        if self.block.as_ref().is_none_or(|block| (block.rebuilds, &block.shape) != (rebuilds, &shape)) {
            if let Some(block) = self.block.take() {
                device.free(block.memory);
            }
            let (offsets, bytes) = shape.tables().offsets();
            let memory = device.allocate(bytes.max(1), TableShape::ALIGNMENT)?;
            match device.address(memory) {
                Ok(address) => self.block = Some(Block { rebuilds, shape, memory, address, offsets }),
                Err(error) => {
                    device.free(memory);
                    return Err(error.into());
                }
            }
            self.generation += 1;
        } else if is_stale {
            self.generation += 1;
        }
        let block = self.block.as_ref().expect("it is there now");
        block.write(device, &state)?;
        // Last, so that a launch finds its generation only over whole tables.
        self.write_header(device, self.generation, state.step)?;
        self.is_engaged = true;
        Ok(())
    }

    /// Says of which generation launches must be, once everything enqueued is done.
    fn write_generation<D: Device>(&self, device: &mut D, generation: u64) -> Result<(), DeviceError> {
        let offset = std::mem::offset_of!(abi::Header, generation) as u64;
        device.write(self.header, offset, bytemuck::bytes_of(&generation))
    }

    fn write_header<D: Device>(&self, device: &mut D, generation: u64, step: u64) -> Result<(), DeviceError> {
        let offset = std::mem::offset_of!(abi::Header, generation) as u64;
        device.write(self.header, offset, bytemuck::bytes_of(&[generation, step]))
    }

    /// Gives the residency back to the host, with all that launches decided. Waits for everything enqueued; what is
    /// launched later is refused.
    ///
    /// # Errors
    ///
    /// A residency that is not here, a chunk on borrowed buffers that has not ended; the device's own, or tables that
    /// contradict themselves: it is here still.
    pub fn disengage<D: Device>(&mut self, device: &mut D, residency: &mut Cache) -> Result<(), DeviceModeError> {
        self.check_residency(residency)?;
        // Launches first: what is read below they must not change any more.
        self.write_generation(device, abi::WITH_HOST)?;
        let taken = self.take_back(device, residency);
        match &taken {
            Ok(()) => self.is_engaged = false,
            // The first word of the two is the one to tell.
            Err(_) => drop(self.write_generation(device, self.generation)),
        }
        taken
    }

    fn take_back<D: Device>(&self, device: &mut D, residency: &mut Cache) -> Result<(), DeviceModeError> {
        let mut header = abi::Header::zeroed();
        device.read(self.header, 0, bytemuck::bytes_of_mut(&mut header))?;
        let state = self.engaged()?.read(device, header.step)?;
        // Slots are withheld as long as a buffer lies on them.
        if state.pools.iter().any(|pool| pool.withheld > 0) {
            return Err(DeviceModeError::ChunkOpen);
        }
        Ok(residency.set_state(&state)?)
    }

    /// Whether this is the residency that is here.
    ///
    /// # Errors
    ///
    /// Another one, by its shape or its rebuilds; none is here.
    pub(super) fn check_residency(&self, residency: &Cache) -> Result<(), DeviceModeError> {
        let block = self.engaged()?;
        match block.rebuilds == residency.generation() && block.shape.is_of(residency) {
            true => Ok(()),
            false => Err(DeviceModeError::OtherResidency),
        }
    }

    fn engaged(&self) -> Result<&Block, DeviceModeError> {
        self.block.as_ref().filter(|_| self.is_engaged).ok_or(DeviceModeError::OnHost)
    }

    /// Whether a step can be admitted.
    ///
    /// # Errors
    ///
    /// As [`admit`](Self::admit), but for the device's own.
    pub fn check(&self, residency: &Cache, step: &DeviceStep) -> Result<(), DeviceModeError> {
        self.check_residency(residency)?;
        self.tell(residency, step).map(|_| ())
    }

    /// Enqueues the admission of a step: one launch, which may be captured. All launches over these tables must be in
    /// one order of streams.
    ///
    /// # Errors
    ///
    /// A residency that is not here, a step or addresses that kernels cannot have, or the device's own; nothing is
    /// enqueued then. What is wrong with the routes themselves is told by [`take_faults`](Self::take_faults).
    ///
    pub fn admit<D: Device>(
        &self,
        device: &mut D,
        stream: Stream,
        residency: &Cache,
        step: &DeviceStep,
    ) -> Result<(), DeviceModeError> {
        self.check_residency(residency)?;
        let expert_count = residency.expert_count();
        let shared = if expert_count <= abi::SHARED_EXPERTS { expert_count * abi::WORKSPACE_BYTES } else { 0 };
        let Told { told: hybrid, is_hybrid } = self.tell(residency, step)?;
        let block = self.engaged()?;
        let (scores, admission) = (block.scores(), hybrid.admission);
        let scored = abi::ScoredAdmission { admission, scores };
        let scored_hybrid = abi::ScoredHybridAdmission { hybrid, scores };
        let (kernel, arguments) = match (is_hybrid, block.shape.is_scored()) {
            (false, false) => (Kernel::Admit, bytemuck::bytes_of(&admission)),
            (true, false) => (Kernel::AdmitHybrid, bytemuck::bytes_of(&hybrid)),
            (false, true) => (Kernel::AdmitScored, bytemuck::bytes_of(&scored)),
            (true, true) => (Kernel::AdmitHybridScored, bytemuck::bytes_of(&scored_hybrid)),
        };
        let launch = Launch { kernel, block_count: 1, thread_count: self.threads, shared_bytes: shared, arguments };
        // SAFETY: the engine's promise about its rows, and tables of ours.
        Ok(unsafe { device.launch(stream, &launch) }?)
    }

    /// Enqueues that every slot is freed: one launch, which may be captured. Statistics and the step counter go on.
    ///
    /// # Errors
    ///
    /// A residency that is not here; the device's own.
    pub fn reset<D: Device>(&self, device: &mut D, stream: Stream) -> Result<(), DeviceModeError> {
        self.engaged()?;
        let told = abi::Reset { tables: self.told(), generation: self.generation() };
        // SAFETY: tables of ours.
        Ok(unsafe { launch(device, stream, Kernel::Reset, SPREAD, &told) }?)
    }

    /// Enqueues that the first slots of a pool are freed and not handed out from then on, for a staging buffer that
    /// lies on them; with 0, that all are handed out again. One launch, which may be captured.
    ///
    /// # Errors
    ///
    /// A residency that is not here; the device's own.
    ///
    /// # Panics
    ///
    /// If there is no such pool, or it has fewer slots.
    pub fn withhold<D: Device>(
        &self,
        device: &mut D,
        stream: Stream,
        pool: PoolId,
        slot_count: u32,
    ) -> Result<(), DeviceModeError> {
        self.engaged()?;
        let range = self.pool_range(pool);
        assert!(slot_count <= range.slot_count, "{slot_count} of {} slots", range.slot_count);
        let told = abi::Invalidate {
            tables: self.told(),
            generation: self.generation(),
            pool: range,
            from: 0,
            count: slot_count,
            absence: abi::STAGED,
            withheld: slot_count,
        };
        // SAFETY: tables of ours.
        Ok(unsafe { launch(device, stream, Kernel::Invalidate, SPREAD, &told) }?)
    }

    /// Enqueues a reading: one launch, which may be captured. [`reading`](Self::reading) has it once the stream was
    /// synchronised.
    ///
    /// # Errors
    ///
    /// A residency that is not here; the device's own.
    pub fn request_reading<D: Device>(&self, device: &mut D, stream: Stream) -> Result<(), DeviceModeError> {
        let scores = self.engaged()?.scores();
        let (_, reading, stats) = self.page.addresses();
        let told = abi::Statistics { tables: self.told(), generation: self.generation(), reading, stats, scores };
        // SAFETY: tables and pages of ours.
        Ok(unsafe { launch(device, stream, Kernel::Statistics, (1, THREADS, 0), &told) }?)
    }

    /// The last reading that was asked for, or `None` if there was none or it is being written. Waits for nothing.
    pub fn reading(&self) -> Option<DeviceReading> {
        let mut reading = DeviceReading::default();
        self.read_into(&mut reading).then_some(reading)
    }

    /// As [`reading`](Self::reading), into one that there is: nothing is allocated once it had as many layers. Whether
    /// it is one; if not, nothing is to be read of it.
    pub fn read_into(&self, reading: &mut DeviceReading) -> bool {
        self.page.read_into(reading)
    }

    /// What the last admission of a layer decided. Waits for everything enqueued: for tests and for engines that copy
    /// by themselves.
    ///
    /// # Errors
    ///
    /// A residency that is not here; the device's own.
    ///
    /// # Panics
    ///
    /// If there is no such layer.
    pub fn plan<D: Device>(&self, device: &mut D, layer: LayerId) -> Result<DevicePlan, DeviceModeError> {
        let block = self.engaged()?;
        assert!(layer.index() < self.layer_count, "layer {layer} of {}", self.layer_count);
        let mut head = abi::PlanHead::zeroed();
        let at = (layer.index() * size_of::<abi::PlanHead>()) as u64;
        device.read(block.memory, block.offsets[Table::Plans as usize] + at, bytemuck::bytes_of_mut(&mut head))?;
        let mut entries = vec![abi::Entry::zeroed(); head.copy_count as usize];
        let at = u64::from(layer.get()) * u64::from(block.shape.expert_count) * size_of::<abi::Entry>() as u64;
        if !entries.is_empty() {
            let bytes = bytemuck::cast_slice_mut(&mut entries);
            device.read(block.memory, block.offsets[Table::Copies as usize] + at, bytes)?;
        }
        let copy = |entry: &abi::Entry| Copy { slot: SlotId::new(entry.target), row: ExpertId::new(entry.source) };
        let copies = entries.iter().map(copy).collect();
        Ok(DevicePlan { step: head.step, distinct: head.distinct, misses: head.misses, copies })
    }

    /// Launches that were refused since this was last asked, or `None`. Waits for nothing.
    pub fn take_faults(&mut self) -> Option<FaultReport> {
        self.page.take_faults()
    }

    pub(super) fn pool_range(&self, pool: PoolId) -> abi::PoolRange {
        let shape = &self.block.as_ref().expect("the residency is here").shape;
        let first = shape.slot_counts[..pool.index()].iter().sum();
        abi::PoolRange { pool: pool.get(), first, slot_count: shape.slot_counts[pool.index()], reserved: 0 }
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    pub(super) fn header_address(&self) -> u64 {
        self.header_address
    }

    pub(super) fn scratch(&self) -> u64 {
        let block = self.block.as_ref().expect("the residency is here");
        block.address + block.offsets[Table::Scratch as usize]
    }

    /// How many copies the last admission of a layer wants, and which: addresses.
    pub(super) fn copies(&self, layer: LayerId) -> (u64, u64) {
        let tables = self.told();
        let head = tables.plans + u64::from(layer.get()) * size_of::<abi::PlanHead>() as u64;
        let experts = u64::from(layer.get()) * u64::from(tables.expert_count);
        let count = head + std::mem::offset_of!(abi::PlanHead, copy_count) as u64;
        (count, tables.copies + experts * size_of::<abi::Entry>() as u64)
    }

    /// The tables as kernels are told of them.
    pub(super) fn told(&self) -> abi::Tables {
        let Block { shape, address, offsets, .. } = self.block.as_ref().expect("the residency is here");
        let at = |table: Table| address + offsets[table as usize];
        abi::Tables {
            header: self.header_address,
            place: at(Table::Place),
            active: at(Table::Active),
            routed: at(Table::Routed),
            marked: at(Table::Marked),
            carried: at(Table::Carried),
            stats: at(Table::Stats),
            plans: at(Table::Plans),
            copies: at(Table::Copies),
            stamp: at(Table::Stamp),
            owner: at(Table::Owner),
            pinned: at(Table::Pinned),
            pools: at(Table::Pools),
            layer_count: shape.layer_count,
            expert_count: shape.expert_count,
            slot_count: shape.slot_count(),
            pool_count: shape.slot_counts.len() as u32,
        }
    }
}

/// Whether an admission can have so many threads.
pub(super) fn check_threads(threads: u32) -> Result<(), DeviceModeError> {
    match threads > 0 && threads <= THREADS && threads.is_multiple_of(32) {
        true => Ok(()),
        false => Err(DeviceModeError::Threads { given: threads }),
    }
}

/// Enqueues a kernel of so many blocks, threads and bytes of shared memory.
///
/// # Safety
///
/// As for [`Device::launch`].
pub(super) unsafe fn launch<D: Device, A: Pod>(
    device: &mut D,
    stream: Stream,
    kernel: Kernel,
    (block_count, thread_count, shared_bytes): (u32, u32, u32),
    arguments: &A,
) -> Result<(), DeviceError> {
    let arguments = bytemuck::bytes_of(arguments);
    let launch = Launch { kernel, block_count, thread_count, shared_bytes, arguments };
    // SAFETY: our caller's promise.
    unsafe { device.launch(stream, &launch) }
}
