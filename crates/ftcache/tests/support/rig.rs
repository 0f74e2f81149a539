//! A cache with every bank attached, and kernels that look at what it promises: each look is a copy to a scratch
//! allocation, enqueued where a kernel would run, and compared once everything is done.

#![allow(dead_code, reason = "each test file uses its own part")]

#[path = "probe.rs"]
mod probe;

#[path = "../../../ftcache-testkit/cuda_world.rs"]
mod cuda_world;

pub(crate) use cuda_world::CudaWorld;
use ftcache::transfer::HostAccess;
use ftcache::{
    BankId, BounceSize, Cache, Constraints, Device, DeviceSpan, Error, ExpertId, Geometry, HostDevice, HostRows,
    LayerId, LayoutKey, Loader, Memory, Model, PoolId, Quantisation, RowCopy, Scope, SlotId, Step, Stream, Streams,
    TailPad,
};
use ftcache_cuda_emu::client::Config;
use ftcache_testkit::Rng;
pub(crate) use probe::Probe;

/// A row that tells where it is from, without a zero, so that what must be zeros cannot be taken for one.
pub(crate) fn bytes_of(layer: u32, expert: u32, bank: u32, row_bytes: u64) -> Vec<u8> {
    let mut rng = Rng::new(u64::from((layer << 16) + (expert << 4) + bank));
    let mut bytes = Vec::with_capacity(row_bytes as usize + 8);
    while (bytes.len() as u64) < row_bytes {
        bytes.extend(rng.bits().to_le_bytes().map(|byte| byte.max(1)));
    }
    bytes.truncate(row_bytes as usize);
    bytes
}

/// A layer's tag and the bytes of a row in each bank.
pub(crate) type Layout<'a> = (&'a str, &'a [u64]);

/// The model of layers that each have a tag.
pub(crate) fn tagged_model(expert_count: u32, top_k: u32, layers: &[Layout]) -> Model {
    let layers = layers.iter().map(|&(tag, row_bytes)| LayoutKey::tagged(tag, row_bytes)).collect();
    Model::new(expert_count, top_k, Quantisation::PerLayer, layers).unwrap()
}

/// A stream by its handle, whether it is there or not.
pub(crate) const fn stream_of(handle: u64) -> Stream {
    // SAFETY: the host device and the emulated driver look every handle up.
    unsafe { Stream::from_raw(handle) }
}

pub(crate) fn layer(number: u32) -> LayerId {
    LayerId::new(number)
}

pub(crate) fn experts(numbers: &[u32]) -> Vec<ExpertId> {
    numbers.iter().copied().map(ExpertId::new).collect()
}

/// A look that is to be compared.
#[derive(Debug)]
struct Look {
    at: u64,
    wanted: Vec<u8>,
    /// Layer, expert and bank; an expert of none is a whole layer.
    what: (u32, Option<u32>, u32),
    /// Bytes behind what is wanted, which are zeros or of rows like the layer's.
    pad_bytes: u64,
}

/// What of the host rows is registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pinned {
    /// Nothing is, for a device that need not be asked.
    None,
    All,
    /// Layers and banks numbered below this: `layer * banks + bank`.
    Below(usize),
}

/// A cache and its looks.
#[derive(Debug)]
pub(crate) struct Rig {
    pub(crate) cache: Cache<Probe>,
    pub(crate) probe: Probe,
    scratch: Option<Memory>,
    looks: Vec<Look>,
    at: u64,
    /// The rows on the host, let go after the device.
    rows: Vec<Vec<u8>>,
}

/// How much looks may take between two comparisons.
pub(crate) const SCRATCH_BYTES: u64 = 32 << 10;
const PAGE_BYTES: usize = 4096;

impl Rig {
    pub(crate) fn new(geometry: Geometry, device: Box<dyn Device>, pinned: Pinned) -> Self {
        let probe = Probe::new(device);
        let mut rig = Self::unattached(Cache::new(geometry, probe.clone()).unwrap(), probe);
        rig.attach_all(pinned, 0);
        rig
    }

    pub(crate) fn unattached(cache: Cache<Probe>, probe: Probe) -> Self {
        Self { cache, probe, scratch: None, looks: Vec::new(), at: 0, rows: Vec::new() }
    }

    /// The same with a bounce buffer for what is not pinned.
    pub(crate) fn bouncing(geometry: Geometry, device: Box<dyn Device>, pinned: Pinned, size: BounceSize) -> Self {
        let probe = Probe::new(device);
        let mut rig = Self::unattached(Cache::new(geometry, probe.clone()).unwrap(), probe);
        rig.cache.set_bounce(size).unwrap();
        rig.attach_all(pinned, 3);
        rig
    }

    /// Slots in memory of the test's, which keeps it until the rig is gone.
    pub(crate) fn in_memory(
        geometry: Geometry,
        device: Box<dyn Device>,
        pinned: Pinned,
        arenas: &[(u64, u64)],
    ) -> Self {
        let probe = Probe::new(device);
        // SAFETY: the tests keep the memory, and look at it only when nothing is on its way.
        let loader = unsafe { Loader::in_memory(geometry, probe.clone(), arenas) }.unwrap();
        let mut rig = Self::unattached(Cache::with_loader(loader), probe);
        rig.attach_all(pinned, 0);
        rig
    }

    /// Attaches every bank. What is pinned lies on pages of its own, as registration goes by pages.
    pub(crate) fn attach_all(&mut self, pinned: Pinned, host_gap: u64) {
        let model = self.cache.geometry().model().clone();
        let mut halves = [Vec::new(), Vec::new()];
        let mut places = Vec::new();
        for layer in model.layer_ids() {
            for bank in model.bank_ids() {
                let row_bytes = model.row_bytes(layer, bank);
                let is_pinned = match pinned {
                    Pinned::None => false,
                    Pinned::All => true,
                    Pinned::Below(most) => layer.index() * model.bank_count() + bank.index() < most,
                };
                let half = &mut halves[usize::from(is_pinned)];
                places.push((layer, bank, row_bytes, is_pinned, half.len()));
                for expert in (0..model.expert_count()).filter(|_| row_bytes > 0) {
                    half.extend(bytes_of(layer.get(), expert, bank.get(), row_bytes));
                    half.extend(vec![0xEE; host_gap as usize]);
                }
            }
        }
        let pages = halves.map(|half| {
            let mut memory = vec![0; half.len() + 2 * PAGE_BYTES];
            let first = memory.as_ptr().addr().next_multiple_of(PAGE_BYTES) - memory.as_ptr().addr();
            memory[first..first + half.len()].copy_from_slice(&half);
            (memory, first, half.len().next_multiple_of(PAGE_BYTES))
        });
        let [_, (memory, first, bytes)] = &pages;
        if *bytes > 0 {
            // SAFETY: the rig keeps the memory until the device is gone.
            unsafe { self.probe.register(memory[*first..].as_ptr(), *bytes as u64, HostAccess::ReadWrite) }.unwrap();
        }
        for (layer, bank, row_bytes, is_pinned, at) in places {
            if row_bytes > 0 {
                let (memory, first, _) = &pages[usize::from(is_pinned)];
                let stride = row_bytes + host_gap;
                let bytes = stride * u64::from(model.expert_count());
                // SAFETY: as above, and nobody writes there.
                let rows = unsafe { HostRows::borrowed(memory[first + at..].as_ptr(), bytes, stride) };
                self.cache.attach(layer, bank, rows).unwrap();
            }
        }
        self.rows.extend(pages.map(|(memory, ..)| memory));
    }

    /// Begins the part of a program that a call of the cache is, for the names of its fences.
    pub(crate) fn calling(&mut self, call: &'static str) -> &mut Cache<Probe> {
        self.probe.get_mut().call = call;
        &mut self.cache
    }

    pub(crate) fn stream(&mut self) -> Stream {
        self.cache.create_stream().unwrap()
    }

    pub(crate) fn banks(&self) -> Vec<BankId> {
        self.cache.geometry().model().bank_ids().collect()
    }

    fn row_bytes(&self, layer: u32, bank: BankId) -> u64 {
        self.cache.geometry().model().row_bytes(LayerId::new(layer), bank)
    }

    /// A step, and a kernel behind it that reads the row of each route in every bank.
    pub(crate) fn load(
        &mut self,
        streams: Streams,
        step: impl Into<Step>,
        routes: &[u32],
    ) -> Result<Vec<SlotId>, Error> {
        let step = step.into();
        let slots = self.calling("load").load_on(streams, step, &experts(routes))?.to_vec();
        self.look_at_slots(streams.compute, step.layer.get(), routes, &slots);
        Ok(slots)
    }

    /// A kernel that reads the rows of routes.
    pub(crate) fn look_at_slots(&mut self, compute: Stream, layer: u32, routes: &[u32], slots: &[SlotId]) {
        let pool = self.cache.residency().pool_of(LayerId::new(layer)).unwrap();
        for bank in self.banks() {
            let row_bytes = self.row_bytes(layer, bank);
            let Some(span) = self.cache.slots(pool, bank).unwrap() else { continue };
            assert_eq!(span.row_bytes, row_bytes);
            for (index, (&expert, &slot)) in routes.iter().zip(slots).enumerate() {
                if slot == SlotId::CPU || routes[..index].contains(&expert) {
                    continue;
                }
                let address = span.address + u64::from(slot.get()) * span.stride;
                let wanted = bytes_of(layer, expert, bank.get(), row_bytes);
                self.look(compute, address, wanted, (layer, Some(expert), bank.get()), 0);
            }
        }
    }

    /// A kernel that reads every row of a staged layer with the gaps between them, which are zeros, and, if `around`,
    /// what comes behind them, where nothing of another layout may lie.
    pub(crate) fn look_at_staged(&mut self, compute: Stream, layer: u32, buffer: usize, around: bool) {
        let pool = self.cache.residency().pool_of(LayerId::new(layer)).unwrap();
        for bank in self.banks() {
            let Some(span) = self.cache.staged(LayerId::new(layer), bank, buffer).unwrap() else { continue };
            let range = self.cache.geometry().pool(pool).ranges()[bank.index()];
            assert_eq!((span.row_bytes, span.stride), (self.row_bytes(layer, bank), range.stride));
            assert_eq!(span.expert_count, self.cache.geometry().model().expert_count());
            assert_eq!(span.address % self.cache.geometry().constraints().alignment, 0);
            let mut wanted = Vec::new();
            for expert in 0..span.expert_count {
                wanted.extend(bytes_of(layer, expert, bank.get(), span.row_bytes));
                if around || expert + 1 < span.expert_count {
                    wanted.extend(vec![0; (span.stride - span.row_bytes) as usize]);
                }
            }
            let pad_bytes = if around { range.tail_pad_bytes } else { 0 };
            self.look(compute, span.address, wanted, (layer, None, bank.get()), pad_bytes);
        }
    }

    fn look(&mut self, stream: Stream, address: u64, wanted: Vec<u8>, what: (u32, Option<u32>, u32), pad_bytes: u64) {
        let bytes = wanted.len() as u64 + pad_bytes;
        if self.at + bytes > SCRATCH_BYTES {
            self.compare("a full scratch");
        }
        assert!(bytes <= SCRATCH_BYTES);
        let mut notes = self.probe.get_mut();
        let scratch = match self.scratch {
            Some(memory) => memory,
            None => {
                let memory = notes.inner.allocate(SCRATCH_BYTES, 64).unwrap();
                self.scratch = Some(memory);
                memory
            }
        };
        let (memory, offset) = notes.locate(address);
        let source = DeviceSpan { memory, offset, stride: bytes };
        let target = DeviceSpan { memory: scratch, offset: self.at, stride: bytes };
        let copy = RowCopy { source: source.into(), target, row_bytes: bytes, row_count: 1 };
        // SAFETY: the source is on the device.
        unsafe { notes.inner.copy_rows(stream, &copy) }.unwrap();
        self.looks.push(Look { at: self.at, wanted, what, pad_bytes });
        self.at += bytes;
    }

    /// That every look found what it should; the first one that did not.
    pub(crate) fn looks_wrong(&mut self) -> Option<String> {
        let memory = self.scratch?;
        let mut seen = vec![0; self.at as usize];
        self.probe.get_mut().inner.read(memory, 0, &mut seen).unwrap();
        self.at = 0;
        let looks = std::mem::take(&mut self.looks);
        looks.into_iter().find_map(|look| {
            let bytes = look.wanted.len() + look.pad_bytes as usize;
            self.look_wrong(&look, &seen[look.at as usize..][..bytes])
        })
    }

    fn look_wrong(&self, look: &Look, seen: &[u8]) -> Option<String> {
        let (layer, expert, bank) = look.what;
        let whole = expert.map_or("staged".to_owned(), |expert| format!("expert {expert}"));
        let place = || format!("layer {layer} {whole} bank {bank}");
        let (rows, pad) = seen.split_at(look.wanted.len());
        if let Some(at) = rows.iter().zip(&look.wanted).position(|(seen, wanted)| seen != wanted) {
            return Some(format!("{}: byte {at} is {}, not {}", place(), rows[at], look.wanted[at]));
        }
        let geometry = self.cache.geometry();
        let pool = geometry.pool(geometry.pool_of_layer(LayerId::new(layer))?);
        let range = pool.ranges()[bank as usize];
        for slot in pad.chunks(range.stride.max(1) as usize) {
            let (row, gap) = slot.split_at(slot.len().min(range.row_bytes as usize));
            if gap.iter().any(|&byte| byte != 0) || !self.is_of_pool(pool, BankId::new(bank), row) {
                return Some(format!("{}: bytes of another layout behind it: {slot:?}", place()));
            }
        }
        None
    }

    #[track_caller]
    pub(crate) fn compare(&mut self, context: &str) {
        if let Some(wrong) = self.looks_wrong() {
            panic!("{context}: {wrong}");
        }
    }

    /// Every slot at rest: a resident's rows are whole; in a free slot there is nothing of another layout; gaps and
    /// pads are zeros. Returns what is wrong.
    pub(crate) fn slots_wrong(&mut self) -> Option<String> {
        if let Err(wrong) = self.cache.residency().check() {
            return Some(wrong.to_string());
        }
        let geometry = self.cache.geometry().clone();
        let model = geometry.model();
        for (index, pool) in geometry.pools().iter().enumerate() {
            let id = PoolId::from_index(index);
            for (bank, range) in model.bank_ids().zip(pool.ranges()) {
                let Some(span) = self.cache.slots(id, bank).unwrap() else { continue };
                assert_eq!(span.address % geometry.constraints().alignment, 0);
                let bytes = range.stride * u64::from(pool.slot_count()) + range.tail_pad_bytes;
                let mut seen = vec![0; bytes as usize];
                let (memory, offset) = self.probe.get().locate(span.address);
                assert_eq!(offset, range.offset, "pools lie where the geometry says");
                self.probe.get_mut().inner.read(memory, offset, &mut seen).unwrap();
                let (slots, pad) = seen.split_at((range.stride * u64::from(pool.slot_count())) as usize);
                if pad.iter().any(|&byte| byte != 0) {
                    return Some(format!("pool {index} bank {bank}: the pad is not zeros"));
                }
                for (slot, bytes) in (0..).map(SlotId::new).zip(slots.chunks_exact(range.stride as usize)) {
                    let (bytes, gap) = bytes.split_at(range.row_bytes as usize);
                    let place = || format!("pool {index} bank {bank} slot {slot}");
                    if gap.iter().any(|&byte| byte != 0) {
                        return Some(format!("{}: the gap is not zeros", place()));
                    }
                    if let Some((layer, expert)) = self.cache.residency().expert_of(id, slot) {
                        if bytes != bytes_of(layer.get(), expert.get(), bank.get(), range.row_bytes) {
                            return Some(format!("{}: not layer {layer} expert {expert}", place()));
                        }
                    } else if !self.is_of_pool(pool, bank, bytes) {
                        return Some(format!("{}: bytes of another layout in a free slot", place()));
                    }
                }
            }
        }
        None
    }

    /// Whether bytes are those that a row like the pool's begins with, but for zeros.
    fn is_of_pool(&self, pool: &ftcache::Pool, bank: BankId, bytes: &[u8]) -> bool {
        let model = self.cache.geometry().model();
        let fits = |wanted: &[u8]| bytes.iter().zip(wanted).all(|(&seen, &wanted)| seen == 0 || seen == wanted);
        let key = model.layer(pool.layers()[0]);
        let of_key = model.layer_ids().filter(|&layer| model.layer(layer) == key);
        let mut rows = of_key.flat_map(|layer| (0..model.expert_count()).map(move |expert| (layer, expert)));
        bytes.iter().all(|&byte| byte == 0)
            || rows.any(|(layer, expert)| fits(&bytes_of(layer.get(), expert, bank.get(), bytes.len() as u64)))
    }

    /// That looks and slots are right.
    #[track_caller]
    pub(crate) fn check(&mut self, context: &str) {
        self.compare(context);
        if let Some(wrong) = self.slots_wrong() {
            panic!("{context}: {wrong}");
        }
    }

    pub(crate) fn slot_count(&self, layer: u32) -> u32 {
        let geometry = self.cache.geometry();
        geometry.pool(geometry.pool_of_layer(LayerId::new(layer)).unwrap()).slot_count()
    }

    /// Fills every slot of every pool, each layer in turn with as many experts as its pool takes.
    pub(crate) fn fill(&mut self, streams: Streams) {
        let (layer_count, expert_count) =
            (self.cache.geometry().model().layer_count() as u32, self.cache.geometry().model().expert_count());
        for layer in 0..layer_count {
            let routes: Vec<u32> = (0..expert_count.min(self.slot_count(layer))).collect();
            self.load(streams, LayerId::new(layer), &routes).unwrap();
        }
    }

    /// What a call that is refused must leave alone.
    pub(crate) fn state(&self) -> impl PartialEq + std::fmt::Debug + use<> {
        let (residency, notes) = (self.cache.residency(), self.probe.get());
        let stats = self.cache.geometry().model().layer_ids().map(|layer| {
            let mut stats = self.cache.layer_stats(layer).unwrap();
            stats.residency.refused = 0;
            stats
        });
        (
            (residency.digest(), residency.step(), stats.collect::<Vec<_>>(), self.cache.chunk_total()),
            (notes.enqueued, notes.used_bytes, self.cache.generation(), residency.has_open_chunk()),
        )
    }

    /// That a call is refused and changes nothing. Returns the error.
    #[track_caller]
    pub(crate) fn refused<T: std::fmt::Debug>(
        &mut self,
        call: impl FnOnce(&mut Cache<Probe>) -> Result<T, Error>,
    ) -> Error {
        let before = self.state();
        let error = call(&mut self.cache).unwrap_err();
        assert!(self.state() == before, "{error}: {before:?} -> {:?}", self.state());
        error
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(memory) = self.scratch.take() {
            self.probe.get_mut().inner.free(memory);
        }
    }
}

/// Runs a program on the host device, at once and deferred by some seeds, and on the emulated driver by others. After
/// it, every look and every slot is right, and nothing is left behind.
pub(crate) fn on_every_device(geometry: &Geometry, mut program: impl FnMut(&mut Rig, &str)) {
    let mut host = |device: HostDevice, context: &str| {
        let mut rig = Rig::new(geometry.clone(), Box::new(device), Pinned::None);
        program(&mut rig, context);
        rig.check(context);
    };
    host(HostDevice::new(), "at once");
    for seed in 0..2 {
        host(HostDevice::deferred(seed), &format!("deferred {seed}"));
    }
    for seed in 0..2 {
        let context = format!("emulated {seed}");
        let world = emulated(seed);
        let mut rig = Rig::new(geometry.clone(), cuda(&world), Pinned::All);
        program(&mut rig, &context);
        rig.check(&context);
        drop(rig);
        world.check_gone();
    }
}

pub(crate) fn emulated(seed: u64) -> CudaWorld {
    CudaWorld::emulated(Config { seed, memory_bytes: 1 << 22, ..Config::default() })
}

/// The world's device, with batches.
pub(crate) fn cuda(world: &CudaWorld) -> Box<dyn Device> {
    let mut device = world.device();
    device.probe_batches(0).unwrap();
    Box::new(device)
}

/// Constraints over a number of slots in all, with these gaps and pads.
pub(crate) fn padded(slots: u64, scope: Scope, slot_pad_bytes: u64, alignment: u64, tail_pad: u64) -> Constraints {
    Constraints {
        scope,
        slot_pad_bytes,
        alignment,
        tail_pad: TailPad::Bytes(tail_pad),
        ..Constraints::new(ftcache::Budget::Slots(slots))
    }
}
