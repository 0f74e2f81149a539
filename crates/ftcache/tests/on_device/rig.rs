//! A cache in device mode, and its twin that is given the same steps on the host.
//!
//! *Unsafe*, relying on one promise: the rows stay in place until both caches are gone, and what steps are told of lies
//! in memory of the engine's, which goes after the cache.

use std::sync::Arc;

use ftcache::transfer::HostAccess;
use ftcache::{
    BankId, Cache, CudaDevice, Device, DeviceAnswers, DeviceIds, DeviceModeOptions, DeviceRows, DeviceStep,
    EnsureError, Error, Eviction, ExpertId, Fault, FaultReport, Geometry, HostDevice, HostRows, IdWidth, LayerId,
    Model, Phase, Pool, PoolId, SlotId, Step, Stream, Streams,
};
use ftcache_cuda_emu::client::{Config, EmulatedDevice};
pub(crate) use ftcache_testkit::generators::row;

use crate::cuda_world::CudaWorld;
use crate::engine::{Buffer, Engine, Pinned};

/// Values that stand for no slot, one for each meaning.
pub(crate) const CPU: i64 = -7;
pub(crate) const ABSENT: i64 = -9;

/// Few threads, since each of the emulated ones costs as much as the next.
pub(crate) fn few() -> DeviceModeOptions {
    DeviceModeOptions { admission_threads: 64, gather_blocks: 2, ..DeviceModeOptions::default() }
}

const PAGE_BYTES: usize = 4096;

pub(crate) fn layer(number: u32) -> LayerId {
    LayerId::new(number)
}

pub(crate) fn experts(ids: &[i64]) -> Vec<ExpertId> {
    ids.iter().map(|&id| u32::try_from(id).map_or(ExpertId::ABSENT, ExpertId::new)).collect()
}

/// How routes lie on the device and what is asked beside the slots.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Form {
    pub(crate) width: IdWidth,
    /// Routes of a row; those that a last row lacks are absent.
    pub(crate) per_row: usize,
    /// Ids from the end of a row to the next row.
    pub(crate) gap: usize,
    pub(crate) in_place: bool,
    pub(crate) map: bool,
}

impl Default for Form {
    fn default() -> Self {
        Self { width: IdWidth::Four, per_row: 1, gap: 0, in_place: true, map: false }
    }
}

impl Form {
    fn id_bytes(&self) -> usize {
        if self.width == IdWidth::Four { 4 } else { 8 }
    }

    fn stride(&self) -> usize {
        (self.per_row + self.gap) * self.id_bytes()
    }

    /// Where a route begins.
    fn at(&self, route: usize) -> usize {
        route / self.per_row * self.stride() + route % self.per_row * self.id_bytes()
    }
}

/// Every bank's rows in one piece of host memory. What lies between them is never to reach the device.
pub(crate) struct Rows {
    memory: Vec<u8>,
    first: usize,
    places: Vec<(LayerId, BankId, usize, u64, u64)>,
}

impl Rows {
    /// Rows `gap` bytes apart, another gap more for each bank.
    pub(crate) fn new(model: &Model, gap: u64) -> Self {
        let (mut bytes, mut places) = (Vec::new(), Vec::new());
        for layer in model.layer_ids() {
            for bank in model.bank_ids().filter(|&bank| model.row_bytes(layer, bank) > 0) {
                let row_bytes = model.row_bytes(layer, bank);
                let stride = row_bytes + gap * (1 + u64::from(bank.get()));
                let begin = bytes.len();
                for expert in 0..model.expert_count() {
                    bytes.extend(row(layer.get(), expert, bank.get(), row_bytes));
                    bytes.extend(vec![0xEE; (stride - row_bytes) as usize]);
                }
                places.push((layer, bank, begin, stride, (bytes.len() - begin) as u64));
            }
        }
        let mut memory = vec![0xEE; bytes.len() + 2 * PAGE_BYTES];
        let first = memory.as_ptr().addr().next_multiple_of(PAGE_BYTES) - memory.as_ptr().addr();
        memory[first..first + bytes.len()].copy_from_slice(&bytes);
        Self { memory, first, places }
    }

    /// All of them, and where they begin.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.memory[self.first..]
    }

    /// Attaches all of them where an engine has put them.
    pub(crate) fn attach_at<D: Device>(&self, cache: &mut Cache<D>, pinned: Pinned) {
        for &(layer, bank, begin, stride, bytes) in &self.places {
            // SAFETY: the engine's memory stays until the cache is gone, and is written by the test alone, in time.
            let rows = unsafe { HostRows::borrowed(pinned.base().wrapping_add(begin), bytes, stride) };
            cache.attach(layer, bank, rows).unwrap();
        }
    }

    /// Lets nobody find a row any more.
    pub(crate) fn spoil(&mut self) {
        self.memory.fill(0xEE);
    }

    /// Pins all of it for a device.
    pub(crate) fn pin(&self, device: &mut CudaDevice) {
        self.pin_in_parts(device, usize::MAX, HostAccess::ReadWrite);
    }

    /// Pins all of it in parts of so many pages.
    pub(crate) fn pin_in_parts(&self, device: &mut CudaDevice, part_pages: usize, access: HostAccess) {
        let bytes = (self.memory.len() - 2 * PAGE_BYTES).max(1).next_multiple_of(PAGE_BYTES);
        let part_bytes = part_pages.saturating_mul(PAGE_BYTES);
        for part in self.memory[self.first..][..bytes].chunks(part_bytes) {
            // SAFETY: the memory stays until the device is gone.
            unsafe { device.register(part.as_ptr(), part.len() as u64, access) }.unwrap();
        }
    }

    pub(crate) fn attach<D: Device>(&self, cache: &mut Cache<D>) {
        for place in &self.places {
            self.attach_one(cache, place.0, place.1).unwrap();
        }
    }

    pub(crate) fn attach_one<D: Device>(
        &self,
        cache: &mut Cache<D>,
        layer: LayerId,
        bank: BankId,
    ) -> Result<(), Error> {
        let found = self.places.iter().find(|place| (place.0, place.1) == (layer, bank));
        let &(_, _, begin, stride, bytes) = found.expect("a bank that the layer reads");
        // SAFETY: the memory stays until the cache is gone, and nobody writes there.
        let rows = unsafe { HostRows::borrowed(self.memory[self.first + begin..].as_ptr(), bytes, stride) };
        cache.attach(layer, bank, rows)
    }
}

/// Bytes of the routes, of the answers and of the map.
const PART_BYTES: usize = 1 << 13;

/// A cache on the emulated driver, its twin, and the engine's memory for routes and answers.
pub(crate) struct Rig {
    pub(crate) cache: Cache<CudaDevice>,
    pub(crate) twin: Cache<HostDevice>,
    pub(crate) engine: Engine,
    pub(crate) stream: Stream,
    pub(crate) routes: Buffer,
    upload: Pinned,
    pub(crate) rows: Rows,
}

pub(crate) fn world(seed: u64) -> Arc<CudaWorld> {
    Arc::new(CudaWorld::emulated(Config { seed, memory_bytes: 1 << 24, ..Config::default() }))
}

impl Rig {
    pub(crate) fn new(seed: u64, geometry: Geometry) -> Self {
        Self::on(world(seed), geometry, seed % 4)
    }

    /// The same under the rule for victims that is a seed's.
    pub(crate) fn ruled(seed: u64, geometry: Geometry) -> Self {
        let mut rig = Self::new(seed, geometry);
        rig.set_eviction(Eviction::ALL[seed as usize % 4]);
        rig
    }

    pub(crate) fn set_eviction(&mut self, rule: Eviction) {
        self.cache.set_eviction(rule).unwrap();
        self.twin.set_eviction(rule).unwrap();
    }

    /// On a device of a world's, with so many bytes between rows on the host.
    pub(crate) fn on(world: Arc<CudaWorld>, geometry: Geometry, host_gap: u64) -> Self {
        let mut rig = Self::unattached(world, geometry, host_gap);
        rig.rows.attach(&mut rig.cache);
        rig
    }

    pub(crate) fn unattached(world: Arc<CudaWorld>, geometry: Geometry, host_gap: u64) -> Self {
        let of = geometry.clone();
        Self::made(world, geometry, host_gap, |rows, _, mut device| {
            rows.pin(&mut device);
            Cache::new(of, device).unwrap()
        })
    }

    /// With a cache that is made otherwise.
    pub(crate) fn made(
        world: Arc<CudaWorld>,
        geometry: Geometry,
        host_gap: u64,
        make: impl FnOnce(&Rows, &Engine, CudaDevice) -> Cache<CudaDevice>,
    ) -> Self {
        let rows = Rows::new(geometry.model(), host_gap);
        let engine = Engine::new(Arc::clone(&world));
        let cache = make(&rows, &engine, world.device());
        let mut twin = Cache::new(geometry, HostDevice::new()).unwrap();
        rows.attach(&mut twin);
        let (stream, routes, upload) = (engine.stream(), engine.memory(3 * PART_BYTES), engine.pinned(3 * PART_BYTES));
        Self { cache, twin, engine, stream, routes, upload, rows }
    }

    pub(crate) fn emulated(&self) -> &EmulatedDevice {
        self.engine.emulated()
    }

    pub(crate) fn model(&self) -> &Model {
        self.twin.geometry().model()
    }

    pub(crate) fn enter(&mut self) {
        self.cache.enter_device_mode(few()).unwrap();
    }

    fn part(&self, part: usize, stride: usize) -> DeviceRows {
        let address = self.routes.address + (part * PART_BYTES) as u64;
        // SAFETY: in memory of the engine's, with room for as many as are told of below.
        unsafe { DeviceRows::from_raw(address, stride as u64) }
    }

    /// A step whose routes lie in the engine's memory: as the cache is told of it.
    pub(crate) fn told(&self, step: Step, count: usize, form: Form) -> DeviceStep {
        let row_count = count.div_ceil(form.per_row);
        assert!(row_count * form.stride() <= PART_BYTES && 4 * self.model().expert_count() as usize <= PART_BYTES);
        let ids = DeviceIds {
            rows: self.part(0, form.stride()),
            row_count: row_count as u64,
            per_row: form.per_row as u32,
            width: form.width,
            absent: Some(ABSENT),
        };
        let answers = DeviceAnswers {
            slots: (!form.in_place).then(|| self.part(1, form.stride())),
            cpu: CPU,
            absent: ABSENT,
            map: form.map.then(|| self.part(2, 0)),
        };
        DeviceStep { answers, ..DeviceStep::new(step, ids) }
    }

    /// Puts routes where a step finds them.
    pub(crate) fn upload(&mut self, ids: &[i64], form: Form) {
        let mut image = vec![0x5A; ids.len().div_ceil(form.per_row) * form.stride()];
        for route in 0..ids.len().next_multiple_of(form.per_row) {
            let id = ids.get(route).copied().unwrap_or(ABSENT).to_le_bytes();
            image[form.at(route)..][..form.id_bytes()].copy_from_slice(&id[..form.id_bytes()]);
        }
        // The copy before must have read what it was to read.
        self.engine.sync(self.stream);
        self.engine.put(self.upload, 0, &image);
        let _entered = self.engine.enter();
        self.engine.upload(self.stream, self.upload, 0, self.routes, 0, image.len());
    }

    /// The answer of the last step, and its map.
    pub(crate) fn answer(&mut self, count: usize, form: Form) -> (Vec<i64>, Vec<i32>) {
        self.engine.sync(self.stream);
        let part = if form.in_place { 0 } else { PART_BYTES };
        let bytes = self.engine.read(self.routes.address + part as u64, PART_BYTES);
        let shift = 64 - 8 * form.id_bytes() as u32;
        let slot = |route: usize| {
            let mut slot = [0; 8];
            slot[..form.id_bytes()].copy_from_slice(&bytes[form.at(route)..][..form.id_bytes()]);
            i64::from_le_bytes(slot) << shift >> shift
        };
        let map_bytes = if form.map { 4 * self.model().expert_count() as usize } else { 0 };
        let map = self.engine.read(self.routes.address + 2 * PART_BYTES as u64, map_bytes);
        let map = map.chunks_exact(4).map(|slot| i32::from_le_bytes(slot.try_into().unwrap())).collect();
        ((0..count).map(slot).collect(), map)
    }

    /// Admits and gathers a step on the device. Returns its answer.
    pub(crate) fn admit(&mut self, step: Step, ids: &[i64], form: Form) -> Result<Vec<i64>, Error> {
        self.upload(ids, form);
        let told = self.told(step, ids.len(), form);
        self.cache.admit_on_device(self.stream, &told)?;
        self.cache.gather_on_device(self.stream, step.layer)?;
        Ok(self.answer(ids.len(), form).0)
    }

    /// The twin's answer in the values of the device's.
    pub(crate) fn on_host(&mut self, step: Step, ids: &[i64]) -> Result<Vec<i64>, Error> {
        let slots = self.twin.load_on(Streams::one(Stream::DEFAULT), step, &experts(ids))?;
        Ok(slots.iter().map(|&slot| as_answer(slot)).collect())
    }

    /// A step on the device and with the twin: the same slots, or refused by both.
    #[track_caller]
    pub(crate) fn step(&mut self, step: impl Into<Step>, ids: &[i64], form: Form, at: &str) {
        let step = step.into();
        let answer = self.admit(step, ids, form).unwrap_or_else(|error| panic!("{at}: {error}"));
        let map = self.answer(ids.len(), form).1;
        match self.on_host(step, ids) {
            Ok(expected) => {
                assert_eq!(answer, expected, "{at}: {}", self.twin.plan());
                let residency = self.twin.residency();
                for (expert, &slot) in (0..).map(ExpertId::new).zip(&map) {
                    let expected = residency.slot_of(step.layer, expert).map_or(-1, |slot| slot.get() as i32);
                    assert_eq!(slot, expected, "{at}: the map, layer {} expert {expert}", step.layer);
                }
                self.cache.check_device().unwrap_or_else(|error| panic!("{at}: {error}"));
            }
            Err(error) => {
                assert!(answer.iter().all(|&slot| slot == -1), "{at}: {error}, and {answer:?}");
                assert!(map.iter().all(|&slot| slot == -1), "{at}: {error}, and {map:?}");
                same_words(&self.cache.check_device().unwrap_err(), &error, at);
            }
        }
    }

    /// A step with both caches on the host.
    #[track_caller]
    pub(crate) fn host_step(&mut self, step: impl Into<Step>, ids: &[i64], at: &str) {
        let step = step.into();
        let found = self.cache.load_on(Streams::one(self.stream), step, &experts(ids));
        let found = found.map(|slots| slots.iter().map(|&slot| as_answer(slot)).collect());
        let expected = self.on_host(step, ids);
        assert_eq!(found, expected, "{at}");
        if expected.is_ok() {
            assert_eq!(self.cache.plan().to_string(), self.twin.plan().to_string(), "{at}");
        }
    }

    /// What can be read of the residency while it is on the device.
    #[track_caller]
    pub(crate) fn check_reading(&mut self, at: &str) {
        self.cache.request_reading(self.stream).unwrap();
        self.engine.sync(self.stream);
        let reading = self.cache.reading().unwrap().expect("the stream was synchronised");
        let residency = self.twin.residency();
        assert_eq!((reading.step, reading.digest), (residency.step(), residency.digest()), "{at}");
        assert_eq!(reading.resident_count, self.residents().len() as u64, "{at}");
        for (layer, read) in (0..).map(LayerId::from_index).zip(&reading.stats) {
            assert_eq!(*read, Phase::ALL.map(|phase| residency.phase_stats(layer, phase)), "{at}: layer {layer}");
        }
    }

    /// Who the twin says is where.
    pub(crate) fn residents(&self) -> Vec<(PoolId, SlotId, LayerId, ExpertId)> {
        let (residency, geometry) = (self.twin.residency(), self.twin.geometry());
        let pools = (0..).map(PoolId::from_index).zip(geometry.pools());
        let slots = pools.flat_map(|(id, pool)| (0..pool.slot_count()).map(move |slot| (id, SlotId::new(slot))));
        let owned = |(pool, slot)| residency.expert_of(pool, slot).map(|(layer, expert)| (pool, slot, layer, expert));
        slots.filter_map(owned).collect()
    }

    /// Every slot's bytes in every bank, while no chunk is open: a resident's are those of its rows; in a free slot
    /// there is nothing of another layout; gaps and pads are zeros.
    #[track_caller]
    pub(crate) fn check_bytes(&mut self, at: &str) {
        self.cache.synchronize_all().unwrap();
        let geometry = self.twin.geometry().clone();
        for (index, pool) in geometry.pools().iter().enumerate() {
            let id = PoolId::from_index(index);
            for (bank, range) in geometry.model().bank_ids().zip(pool.ranges()) {
                let Some(span) = self.cache.slots(id, bank).unwrap() else { continue };
                assert_eq!(
                    (span.stride, span.row_bytes, span.slot_count),
                    (range.stride, range.row_bytes, pool.slot_count())
                );
                let bytes = span.stride * u64::from(span.slot_count);
                let arena = self.engine.read(span.address, (bytes + range.tail_pad_bytes) as usize);
                let (slots, pad) = arena.split_at(bytes as usize);
                assert!(pad.iter().all(|&byte| byte == 0), "{at}: the pad of pool {index} bank {bank}");
                for (slot, bytes) in (0..).map(SlotId::new).zip(slots.chunks_exact(span.stride as usize)) {
                    let (row_seen, gap) = bytes.split_at(span.row_bytes as usize);
                    let place = || format!("{at}: pool {index} bank {bank} slot {slot}");
                    assert!(gap.iter().all(|&byte| byte == 0), "{}: the gap", place());
                    if let Some((layer, expert)) = self.twin.residency().expert_of(id, slot) {
                        let wanted = row(layer.get(), expert.get(), bank.get(), span.row_bytes);
                        assert_eq!(row_seen, wanted, "{}: layer {layer} expert {expert}", place());
                    } else {
                        let fits = is_of_pool(&geometry, pool, bank, row_seen);
                        assert!(fits, "{}: bytes of another layout in a free slot: {row_seen:?}", place());
                    }
                }
            }
        }
    }

    /// The rows of all residents, by their banks.
    #[track_caller]
    pub(crate) fn check_residents(&mut self, at: &str) {
        for (pool, slot, layer, expert) in self.residents() {
            for bank in self.model().clone().bank_ids() {
                let row_bytes = self.model().row_bytes(layer, bank);
                if row_bytes > 0 {
                    let mut bytes = vec![0; row_bytes as usize];
                    self.cache.read_row(layer, bank, slot, &mut bytes).unwrap();
                    let wanted = row(layer.get(), expert.get(), bank.get(), row_bytes);
                    assert_eq!(
                        bytes, wanted,
                        "{at}: pool {pool} bank {bank} slot {slot}: layer {layer} expert {expert}"
                    );
                }
            }
        }
    }

    /// Takes the residency back. It is the twin's in every number.
    #[track_caller]
    pub(crate) fn leave(&mut self, at: &str) {
        self.cache.leave_device_mode().unwrap_or_else(|error| panic!("{at}: {error}"));
        self.check_same(at);
    }

    /// With the host, the residency is the twin's in every number.
    #[track_caller]
    pub(crate) fn check_same(&self, at: &str) {
        let (found, wanted) = (self.cache.residency(), self.twin.residency());
        found.check().unwrap_or_else(|wrong| panic!("{at}: {wrong}"));
        assert_eq!(found.state().unwrap(), wanted.state().unwrap(), "{at}");
        assert_eq!((found.step(), found.digest()), (wanted.step(), wanted.digest()), "{at}");
        assert_eq!(self.cache.stats(), self.twin.stats(), "{at}");
        for layer in self.model().layer_ids().filter(|&layer| wanted.pool_of(layer).is_ok()) {
            assert_eq!(self.cache.layer_stats(layer), self.twin.layer_stats(layer), "{at}: layer {layer}");
        }
        for pool in (0..self.twin.geometry().pools().len()).map(PoolId::from_index) {
            assert_eq!(self.cache.pool_stats(pool), self.twin.pool_stats(pool), "{at}: pool {pool}");
        }
    }

    /// Nothing raced, was misused, damaged or left behind.
    #[track_caller]
    pub(crate) fn end(self) {
        let world = self.close();
        world.check_gone();
    }

    /// Gives up the cache and what is the engine's.
    pub(crate) fn close(self) -> Arc<CudaWorld> {
        let Self { cache, engine, rows, .. } = self;
        let world = Arc::clone(&engine.world);
        drop(cache);
        drop(engine);
        drop(rows);
        world
    }
}

/// Whether bytes are those of a row like the pool's, but for zeros.
fn is_of_pool(geometry: &Geometry, pool: &Pool, bank: BankId, bytes: &[u8]) -> bool {
    let model = geometry.model();
    let fits = |wanted: &[u8]| bytes.iter().zip(wanted).all(|(&seen, &wanted)| seen == 0 || seen == wanted);
    let key = model.layer(pool.layers()[0]);
    let of_key = model.layer_ids().filter(|&layer| model.layer(layer) == key);
    let mut rows = of_key.flat_map(|layer| (0..model.expert_count()).map(move |expert| (layer, expert)));
    bytes.iter().all(|&byte| byte == 0)
        || rows.any(|(layer, expert)| fits(&row(layer.get(), expert, bank.get(), bytes.len() as u64)))
}

fn as_answer(slot: SlotId) -> i64 {
    match slot {
        SlotId::ABSENT => ABSENT,
        SlotId::CPU => CPU,
        slot => i64::from(slot.get()),
    }
}

/// Whether a launch was refused for what the host refuses, with the same numbers.
#[track_caller]
fn same_words(fault: &Error, error: &Error, at: &str) {
    let same = match (fault, error) {
        (
            Error::Fault(FaultReport { first: Fault::StepTooWide { layer, needed, given }, count: 1, .. }),
            Error::Ensure(EnsureError::StepTooWide { layer: of, needed: n, given: g, .. }),
        ) => (layer, *needed, *given) == (of, *n as u64, *g as u64),
        _ => false,
    };
    assert!(same, "{at}: {fault}; the host says: {error}");
}
