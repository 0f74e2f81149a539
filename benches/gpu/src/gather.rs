//! What rows from pinned memory take: gathers by a list on the device, beside one plain copy of as many bytes.
//!
//! Layers take turns, so that no row is the last one's, and a gather of a layer is launched again and again: it copies
//! what the layer's last admission asked for. Plain copies read the same memory in one piece, once out of the memory
//! that rows lie in and once out of memory that the driver allocated itself.
//!
//! *Unsafe*, relying on one promise: rows, routes and what plain copies read are a [`Bench`]'s own, which gives nothing
//! back before everything enqueued is done.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};

use ftcache_policy::{
    BankId, Budget, Constraints, ExpertId, Geometry, LayerId, LayoutKey, Model, PoolId, Quantisation,
};
use ftcache_residency::{Cache, Step};
use ftcache_transfer::{
    CudaDevice, DeviceIds, DeviceModeOptions, DeviceRows, DeviceStep, HostAccess, HostMemory, HostRows, IdWidth,
    Loader, Stream,
};

use crate::driver::{Cuda, DeviceBytes, PinnedBytes};
use crate::{Effort, Outcome, in_words};

/// What rows are gathered of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rows {
    pub(crate) layer_count: u32,
    /// Of a layer; as many can be gathered at once.
    pub(crate) expert_count: u32,
    pub(crate) bank_count: u32,
    pub(crate) row_bytes: u64,
}

impl Rows {
    /// Of all banks.
    pub(crate) fn expert_bytes(&self) -> u64 {
        u64::from(self.bank_count) * self.row_bytes
    }

    fn layer_bytes(&self) -> u64 {
        u64::from(self.expert_count) * self.expert_bytes()
    }
}

/// Seconds of one gather and of the plain copies of as many bytes, one for each repeat.
#[derive(Debug, Clone)]
pub(crate) struct Timed {
    pub(crate) gather: Vec<f64>,
    /// Out of the rows' memory, which was registered.
    pub(crate) plain: Vec<f64>,
    /// Out of memory that the driver allocated.
    pub(crate) allocated: Vec<f64>,
}

const PAGE: usize = 4096;

/// Memory from one page boundary on.
struct Aligned {
    base: *mut u8,
    layout: Layout,
}

impl Aligned {
    fn new(bytes: usize) -> Self {
        let layout =
            Layout::from_size_align(bytes.next_multiple_of(PAGE), PAGE).expect("as many bytes can be asked for");
        assert!(layout.size() > 0, "no rows");
        // SAFETY: of more than no bytes.
        let base = unsafe { alloc_zeroed(layout) };
        if base.is_null() {
            handle_alloc_error(layout);
        }
        Self { base, layout }
    }

    fn words(&mut self) -> &mut [u64] {
        // SAFETY: all of it, which is zeros or words that were written, and borrowed as long as the words are.
        unsafe { std::slice::from_raw_parts_mut(self.base.cast(), self.layout.size() / size_of::<u64>()) }
    }
}

impl Drop for Aligned {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.base, self.layout) };
    }
}

/// A device with slots, and rows to fill them.
pub(crate) struct Bench<'a> {
    cuda: &'a Cuda,
    rows: Rows,
    loader: Loader<CudaDevice>,
    cache: Cache,
    stream: Stream,
    /// `i32[layer][expert]`.
    routes: DeviceBytes<'a>,
    /// What plain copies fill.
    target: DeviceBytes<'a>,
    allocated: PinnedBytes<'a>,
    /// Layer after layer, each bank after bank. Behind the loader, which ends the registration first.
    memory: Aligned,
    /// Counts what was timed, so that no two in a row fill the same slots with the same rows.
    turn: u32,
}

/// Which word of a row's is where: every one differs from its neighbours, from those of other rows and from zero.
fn word(row: usize, at: usize) -> u64 {
    ((row as u64 + 1) << 32 | at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl<'a> Bench<'a> {
    pub(crate) fn new(cuda: &'a Cuda, rows: Rows) -> Outcome<Self> {
        let Rows { layer_count, expert_count, bank_count, row_bytes } = rows;
        let layers = vec![LayoutKey::untagged(vec![row_bytes; bank_count as usize]); layer_count as usize];
        let model = Model::new(expert_count, 1, Quantisation::One, layers).map_err(in_words)?;
        let constraints = Constraints::new(Budget::Slots(u64::from(layer_count * expert_count)));
        let geometry = Geometry::new(model, constraints).map_err(in_words)?;
        let cache = Cache::new(&geometry);
        let bytes = (u64::from(layer_count) * rows.layer_bytes()) as usize;
        let mut memory = Aligned::new(bytes);
        let row_words = row_bytes as usize / size_of::<u64>();
        for (row, words) in memory.words().chunks_exact_mut(row_words).enumerate() {
            words.iter_mut().enumerate().for_each(|(at, place)| *place = word(row, at));
        }
        let mut loader = Loader::new(geometry, cuda.device()?).map_err(in_words)?;
        let stream = loader.create_stream().map_err(in_words)?;
        // SAFETY: it stays until the loader is dropped, which is before it.
        let pages = unsafe { HostMemory::borrowed(memory.base, memory.layout.size() as u64) };
        loader.register(pages, HostAccess::ReadWrite, 0).map_err(in_words)?;
        let bank_bytes = u64::from(expert_count) * row_bytes;
        for layer in (0..layer_count).map(LayerId::new) {
            for bank in (0..bank_count).map(BankId::new) {
                let banks_before = u64::from(layer.get() * bank_count + bank.get());
                let base = memory.base.wrapping_add((banks_before * bank_bytes) as usize);
                // SAFETY: so many bytes lie there, which nobody writes; they stay as above.
                let rows = unsafe { HostRows::borrowed(base, bank_bytes, 0) };
                loader.attach(layer, bank, rows).map_err(in_words)?;
            }
        }
        let layer_bytes = rows.layer_bytes() as usize;
        let routes = cuda.memory((layer_count * expert_count) as usize * size_of::<i32>())?;
        let (target, allocated) = (cuda.memory(layer_bytes)?, cuda.pinned(layer_bytes)?);
        Ok(Self { cuda, rows, loader, cache, stream, routes, target, allocated, memory, turn: 0 })
    }

    /// From now on, gathers of so many blocks.
    pub(crate) fn set_blocks(&mut self, gather_blocks: u32) -> Outcome {
        if self.loader.is_in_device_mode() {
            self.loader.leave_device_mode(&mut self.cache).map_err(in_words)?;
        }
        let options = DeviceModeOptions { gather_blocks, ..DeviceModeOptions::default() };
        self.loader.enter_device_mode(&self.cache, options).map_err(in_words)
    }

    /// Gathers of `row_count` experts' rows.
    ///
    /// # Errors
    ///
    /// The device's own, or that a slot has not the bytes that it is to have.
    pub(crate) fn time(&mut self, row_count: u32, effort: &Effort) -> Outcome<Timed> {
        let (cuda, stream, layer_count) = (self.cuda, self.stream, self.rows.layer_count);
        self.admit(row_count)?;
        let graph = cuda.capture(stream, || {
            (0..layer_count).try_for_each(|layer| {
                self.loader.gather_on_device(stream, &self.cache, LayerId::new(layer)).map_err(in_words)
            })
        })?;
        let bytes = (u64::from(row_count) * self.rows.expert_bytes()) as usize;
        let layer_bytes = self.rows.layer_bytes() as usize;
        let (target, base, allocated) = (&self.target, self.memory.base, self.allocated.base);
        let mut gather = || graph.launch(stream);
        let mut plain = || {
            (0..layer_count as usize).try_for_each(|layer| {
                let source = base.wrapping_add(layer * layer_bytes);
                // SAFETY: the layer's rows, which are registered and stay.
                unsafe { cuda.copy(stream, target, source, bytes) }
            })
        };
        let mut plain_allocated = || {
            (0..layer_count).try_for_each(|_| {
                // SAFETY: as many bytes lie there, pinned, and stay.
                unsafe { cuda.copy(stream, target, allocated, bytes) }
            })
        };
        // In turn, so that whatever else the link is used for is used against all three.
        let [gather, plain, allocated] =
            effort.time_in_turn(cuda, stream, [&mut gather, &mut plain, &mut plain_allocated])?;
        drop(graph);
        self.check(row_count)?;
        if let Some(fault) = self.loader.take_faults() {
            return Err(format!("launches were refused: {fault}"));
        }
        let of_one = |times: Vec<f64>| times.into_iter().map(|time| time / f64::from(layer_count)).collect();
        Ok(Timed { gather: of_one(gather), plain: of_one(plain), allocated: of_one(allocated) })
    }

    /// Empties the slots and lets every layer miss `row_count` experts, spread over its rows. Each time another layer
    /// is first, and so gets other slots than the time before.
    fn admit(&mut self, row_count: u32) -> Outcome {
        let Rows { layer_count, expert_count, .. } = self.rows;
        let apart = expert_count / row_count;
        let ids: Vec<i32> = (0..layer_count * expert_count).map(|at| (at % expert_count * apart) as i32).collect();
        self.routes.write(self.stream, &ids)?;
        self.loader.reset_on_device(self.stream).map_err(in_words)?;
        self.turn += 1;
        for layer in (0..layer_count).map(|layer| (layer + self.turn) % layer_count) {
            let offset = (layer * expert_count) as usize * size_of::<i32>();
            // SAFETY: as many routes lie there, until everything is done.
            let rows = unsafe { DeviceRows::from_raw(self.routes.address + offset as u64, 0) };
            let row_count = row_count.into();
            let ids = DeviceIds { rows, row_count, per_row: 1, width: IdWidth::Four, absent: None };
            let step = DeviceStep::new(Step::new(LayerId::new(layer)), ids);
            self.loader.admit_on_device(self.stream, &self.cache, &step).map_err(in_words)?;
        }
        self.cuda.synchronize(self.stream)
    }

    /// Whether slots of every layer have the bytes of their rows: of up to eight rows, all of them.
    fn check(&mut self, row_count: u32) -> Outcome {
        let Rows { layer_count, expert_count, bank_count, row_bytes } = self.rows;
        let mut found = vec![0; row_bytes as usize];
        for layer in (0..layer_count).map(LayerId::new) {
            let plan = self.loader.plan_on_device(layer).map_err(in_words)?;
            if plan.copies.len() != row_count as usize {
                return Err(format!("layer {layer} had {} rows to gather and not {row_count}", plan.copies.len()));
            }
            for copy in plan.copies.iter().step_by(row_count.div_ceil(8) as usize) {
                for bank in (0..bank_count).map(BankId::new) {
                    let slot = self.loader.slot(PoolId::new(0), bank, copy.slot);
                    let slot = slot.expect("all layers read all banks");
                    self.loader.read(&slot, &mut found).map_err(in_words)?;
                    let row = (layer.get() * bank_count + bank.get()) * expert_count + copy.row.get();
                    if let Some(at) = first_wrong(&found, row as usize) {
                        let (row, slot): (ExpertId, _) = (copy.row, copy.slot);
                        return Err(format!(
                            "layer {layer}, bank {bank}: slot {slot} is not row {row}, from byte {at} on"
                        ));
                    }
                }
            }
        }
        Ok(())
    }
}

impl Drop for Bench<'_> {
    fn drop(&mut self) {
        // Everything is done then, so that what the loader does not own may go in any order.
        let _ = self.loader.synchronize_all();
    }
}

fn first_wrong(found: &[u8], row: usize) -> Option<usize> {
    let words = found.chunks_exact(size_of::<u64>()).enumerate();
    let mut wrong = words.filter(|&(at, bytes)| bytes != word(row, at).to_ne_bytes());
    wrong.next().map(|(at, _)| at * size_of::<u64>())
}
