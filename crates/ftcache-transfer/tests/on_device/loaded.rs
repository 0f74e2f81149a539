//! A loader with rows and a residency, whose steps are admitted on the device.
//!
//! *Unsafe*, relying on two promises: rows are attached as long as their loader lives, and go after it; routes lie in
//! memory of a second device in the same context, which is waited for before it goes.

use ftcache_policy::{
    BankId, Constraints, Eviction, ExpertId, Geometry, LayoutKey, Model, PoolId, Quantisation, SlotId,
};
use ftcache_residency::{Cache, Plan, Step};
use ftcache_testkit::generators::row;
use ftcache_transfer::{
    CudaDevice, Device, DeviceIds, DeviceModeOptions, DeviceRows, DeviceStep, HostAccess, HostMemory, HostRows,
    IdWidth, Loader, Memory, Stream,
};

use crate::cuda_world::CudaWorld;
use crate::support::Pages;

/// What lies between rows on the host.
const HOST_GAP: u8 = 0xEE;
pub(crate) const EXPERTS: u32 = 10;

/// A loader with its rows attached, a residency that it has, one that decides on the host, and the engine's routes.
pub(crate) struct Loaded {
    pub(crate) world: CudaWorld,
    pub(crate) engine: CudaDevice,
    pub(crate) routes: Memory,
    pub(crate) stream: Stream,
    pub(crate) loader: Loader<CudaDevice>,
    pub(crate) twin: Cache,
    pub(crate) host: Cache,
    pub(crate) plan: Plan,
    /// Attached, so it goes after the loader.
    pub(crate) rows: Vec<Pages>,
}

pub(crate) fn geometry(layers: &[Vec<u64>], constraints: Constraints) -> Geometry {
    let keys = layers.iter().map(|row_bytes| LayoutKey::tagged("t", row_bytes.clone())).collect();
    let model = Model::new(EXPERTS, 1, Quantisation::PerLayer, keys).unwrap();
    Geometry::new(model, constraints).unwrap()
}

impl Loaded {
    pub(crate) fn new(seed: u64, geometry: &Geometry, host_gap: u64) -> Self {
        let world = CudaWorld::new(seed);
        let mut engine = world.device();
        let stream = engine.create_stream().unwrap();
        let routes = engine.allocate(4096, 256).unwrap();
        let mut loader = Loader::new(geometry.clone(), world.device()).unwrap();
        let mut rows = Vec::new();
        for layer in geometry.model().layer_ids() {
            for bank in geometry.model().bank_ids() {
                let row_bytes = geometry.model().row_bytes(layer, bank);
                if row_bytes == 0 {
                    continue;
                }
                let stride = row_bytes + host_gap;
                let bytes = u64::from(EXPERTS - 1) * stride + row_bytes;
                let mut pages = Pages::new(bytes as usize);
                pages.fill(HOST_GAP);
                for expert in 0..EXPERTS {
                    let at = (u64::from(expert) * stride) as usize;
                    let bytes = row(layer.get(), expert, bank.get(), row_bytes);
                    pages[at..at + bytes.len()].copy_from_slice(&bytes);
                }
                // SAFETY: see above.
                let memory = unsafe { HostMemory::borrowed(pages.as_ptr(), bytes) };
                loader.register(memory, HostAccess::ReadWrite, 0).unwrap();
                // SAFETY: as before.
                let attached = unsafe { HostRows::borrowed(pages.as_ptr(), bytes, stride) };
                loader.attach(layer, bank, attached).unwrap();
                rows.push(pages);
            }
        }
        let twin = Cache::new(geometry);
        let host = twin.clone();
        Self { world, engine, routes, stream, loader, twin, host, plan: Plan::new(), rows }
    }

    /// Both sides choose victims by this rule.
    pub(crate) fn set_eviction(&mut self, rule: Eviction) {
        self.twin.set_eviction(rule).unwrap();
        self.host.set_eviction(rule).unwrap();
    }

    pub(crate) fn enter(&mut self, options: DeviceModeOptions) {
        self.loader.enter_device_mode(&self.twin, options).unwrap();
    }

    /// A step over routes that lie in their place.
    pub(crate) fn told(&self, step: Step, count: usize) -> DeviceStep {
        let address = self.engine.address(self.routes).unwrap();
        // SAFETY: see above.
        let rows = unsafe { DeviceRows::from_raw(address, 0) };
        let ids = DeviceIds { rows, row_count: 1, per_row: count as u32, width: IdWidth::Eight, absent: None };
        let mut told = DeviceStep::new(step, ids);
        (told.answers.cpu, told.answers.absent) = (-2, -3);
        told
    }

    pub(crate) fn write_routes(&mut self, ids: &[i64]) {
        self.engine.write(self.routes, 0, bytemuck::cast_slice(ids)).unwrap();
    }

    /// What the host decides, and so what the answer is to be.
    pub(crate) fn expected(&mut self, step: Step, ids: &[i64]) -> Vec<i64> {
        let routes: Vec<ExpertId> = ids.iter().map(|&id| ExpertId::new(id as u32)).collect();
        self.host.ensure(step, &routes, &mut self.plan).unwrap().commit();
        self.plan.slot_numbers(-3, -2).collect()
    }

    #[track_caller]
    pub(crate) fn answered(&mut self, wanted: &[i64], at: &str) {
        let mut found = vec![0_i64; wanted.len()];
        self.engine.read(self.routes, 0, bytemuck::cast_slice_mut(&mut found)).unwrap();
        assert_eq!(found, wanted, "{at}: {}", self.plan);
        assert_eq!(self.loader.take_faults(), None, "{at}");
    }

    /// One step on both sides, with its gather.
    #[track_caller]
    pub(crate) fn step(&mut self, step: Step, ids: &[i64], at: &str) {
        self.write_routes(ids);
        let told = self.told(step, ids.len());
        self.loader.admit_on_device(self.stream, &self.twin, &told).unwrap();
        self.loader.gather_on_device(self.stream, &self.twin, step.layer).unwrap();
        let wanted = self.expected(step, ids);
        self.answered(&wanted, at);
    }

    /// Every byte of every arena is that of the residents, and zero where nobody ever was; or in slots that somebody
    /// has left, what is left there.
    #[track_caller]
    pub(crate) fn check_arenas(&mut self, at: &str) {
        let geometry = self.loader.geometry().clone();
        for (index, pool) in geometry.pools().iter().enumerate() {
            let id = PoolId::from_index(index);
            for (bank, range) in pool.ranges().iter().enumerate().filter(|(_, range)| range.row_bytes > 0) {
                let span = self.loader.slot(id, BankId::from_index(bank), SlotId::new(0)).unwrap();
                let bytes = (range.stride * u64::from(pool.slot_count()) + range.tail_pad_bytes) as usize;
                let mut found = vec![0; bytes];
                self.loader.read(&span, &mut found).unwrap();
                for slot in (0..pool.slot_count()).map(SlotId::new) {
                    let (from, end) = (slot.get() as usize * range.stride as usize, range.row_bytes as usize);
                    let bytes = &found[from..from + range.stride as usize];
                    assert!(
                        bytes[end..].iter().all(|&byte| byte == 0),
                        "{at}: behind pool {id} bank {bank} slot {slot}"
                    );
                    if let Some((layer, expert)) = self.host.expert_of(id, slot) {
                        let wanted = row(layer.get(), expert.get(), bank as u32, range.row_bytes);
                        assert_eq!(bytes[..end], wanted, "{at}: pool {id} bank {bank} slot {slot}");
                    }
                }
                let pad = (range.stride * u64::from(pool.slot_count())) as usize;
                assert!(found[pad..].iter().all(|&byte| byte == 0), "{at}: the pad of pool {id} bank {bank}");
            }
        }
    }

    #[track_caller]
    pub(crate) fn leave(&mut self, at: &str) {
        self.loader.leave_device_mode(&mut self.twin).unwrap();
        self.twin.check().unwrap();
        assert_eq!(self.twin.state().unwrap(), self.host.state().unwrap(), "{at}");
    }

    #[track_caller]
    pub(crate) fn end(self) {
        let Self { world, mut engine, routes, stream, loader, rows, .. } = self;
        drop(loader);
        drop(rows);
        engine.free(routes);
        engine.destroy_stream(stream);
        drop(engine);
        world.check_gone();
    }
}
