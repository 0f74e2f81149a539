//! What the tests of this crate share: a device that several handles can watch, rows that tell where they are
//! from, and a cache held to the slow model with a shadow of every byte of its arenas.

#![allow(dead_code, reason = "each test file uses its own part")]

#[path = "../../../ftcache-testkit/watched_device.rs"]
mod watched_device;

use std::sync::Arc;

use ftcache::{
    BankId, Cache, Constraints, Device, Error, ExpertId, Geometry, HostDevice, HostRows, LayerId, LayoutKey, Model,
    PoolId, Quantisation, SlotId, Stats, Stream, Streams,
};
pub(crate) use ftcache_testkit::generators::row;
use ftcache_testkit::reference::Reference;
pub(crate) use watched_device::Watched;

/// A stream by its handle, whether it is there or not.
pub(crate) const fn stream_of(handle: u64) -> Stream {
    // SAFETY: the host device and the emulated driver look every handle up.
    unsafe { Stream::from_raw(handle) }
}

/// One layer's rows of one bank, `stride` bytes apart. What lies between them is never to reach the device.
pub(crate) fn host_rows(layer: u32, bank: u32, expert_count: u32, row_bytes: u64, stride: u64) -> Arc<[u8]> {
    let mut bytes = vec![0xEE; (u64::from(expert_count - 1) * stride + row_bytes) as usize];
    for expert in 0..expert_count {
        let at = (u64::from(expert) * stride) as usize;
        bytes[at..at + row_bytes as usize].copy_from_slice(&row(layer, expert, bank, row_bytes));
    }
    bytes.into()
}

/// The model of `row_bytes[layer][bank]`, all of one quantisation.
pub(crate) fn model(expert_count: u32, top_k: u32, row_bytes: &[Vec<u64>]) -> Model {
    let layers = row_bytes.iter().map(|row_bytes| LayoutKey::tagged("t", row_bytes.as_slice())).collect();
    Model::new(expert_count, top_k, Quantisation::PerLayer, layers).unwrap()
}

/// What may change in a cache, but for its bytes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Summary {
    step: u64,
    /// `(owner, stamp)` of every slot of every pool.
    slots: Vec<(Option<(LayerId, ExpertId)>, u64)>,
    stats: Vec<Stats>,
    enqueued: u64,
}

/// A cache with every bank attached.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) cache: Cache<Watched>,
    pub(crate) device: Watched,
}

impl World {
    pub(crate) fn new(model: Model, constraints: Constraints, host: HostDevice, host_gap: u64) -> Self {
        let mut world = Self::unattached(model, constraints, host);
        for layer in world.model().layer_ids() {
            for bank in world.model().bank_ids() {
                world.attach(layer, bank, host_gap);
            }
        }
        world
    }

    pub(crate) fn unattached(model: Model, constraints: Constraints, host: HostDevice) -> Self {
        let device = Watched::new(host);
        let cache = Cache::new(Geometry::new(model, constraints).unwrap(), device.clone()).unwrap();
        Self { cache, device }
    }

    pub(crate) fn model(&self) -> &Model {
        self.cache.geometry().model()
    }

    /// Attaches one bank of a layer, if the layer reads it.
    pub(crate) fn attach(&mut self, layer: LayerId, bank: BankId, host_gap: u64) {
        let (row_bytes, expert_count) = (self.model().row_bytes(layer, bank), self.model().expert_count());
        if row_bytes > 0 {
            let stride = row_bytes + host_gap;
            let bytes = host_rows(layer.get(), bank.get(), expert_count, row_bytes, stride);
            self.cache.attach(layer, bank, HostRows::owned(bytes, stride)).unwrap();
        }
    }

    pub(crate) fn load(&mut self, streams: Streams, layer: u32, routes: &[u32]) -> Result<Vec<u32>, Error> {
        let routes: Vec<ExpertId> = routes.iter().copied().map(ExpertId::new).collect();
        let slots = self.cache.load_on(streams, LayerId::new(layer), &routes)?;
        Ok(slots.iter().map(|slot| slot.get()).collect())
    }

    /// Over the default stream alone.
    pub(crate) fn load_one(&mut self, layer: u32, routes: &[u32]) -> Result<Vec<u32>, Error> {
        self.load(Streams::one(Stream::DEFAULT), layer, routes)
    }

    pub(crate) fn pool_of(&self, layer: u32) -> PoolId {
        self.cache.residency().pool_of(LayerId::new(layer)).expect("the layer holds slots")
    }

    pub(crate) fn slot_count(&self, layer: u32) -> u32 {
        self.cache.geometry().pool(self.pool_of(layer)).slot_count()
    }

    /// The slow model of the same pools.
    pub(crate) fn reference(&self) -> Reference {
        let geometry = self.cache.geometry();
        let pools: Vec<u32> =
            geometry.model().layer_ids().map(|layer| geometry.pool_of_layer(layer).unwrap().get()).collect();
        let sizes: Vec<u32> = geometry.pools().iter().map(|pool| pool.slot_count()).collect();
        Reference::new(geometry.model().expert_count(), &pools, &sizes)
    }

    /// Every byte of every arena once everything is done, bank by bank. Memory is zeros before its first row.
    pub(crate) fn image(&mut self) -> Vec<Vec<u8>> {
        let mut image = Vec::new();
        let state = &mut *self.device.get_mut();
        let mut memories = state.memories.iter();
        for &bytes in self.cache.geometry().arena_bytes() {
            let mut arena = vec![0; bytes as usize];
            if bytes > 0 {
                state.host.read(*memories.next().expect("an arena for each bank"), 0, &mut arena).unwrap();
            }
            image.push(arena);
        }
        image
    }

    /// Arenas of zeros: what a cache starts with.
    pub(crate) fn empty_image(&self) -> Vec<Vec<u8>> {
        self.cache.geometry().arena_bytes().iter().map(|&bytes| vec![0; bytes as usize]).collect()
    }

    /// Puts an expert's rows where a slot lies, by the geometry's ranges.
    pub(crate) fn put(&self, image: &mut [Vec<u8>], layer: u32, expert: u32, slot: u32) {
        for (bank, image) in image.iter_mut().enumerate() {
            let geometry = self.cache.geometry();
            let range = geometry.pool(geometry.pool_of_layer(LayerId::new(layer)).unwrap()).ranges()[bank];
            let at = (range.offset + u64::from(slot) * range.stride) as usize;
            image[at..at + range.row_bytes as usize].copy_from_slice(&row(layer, expert, bank as u32, range.row_bytes));
        }
    }

    /// That a slot holds an expert's bytes in every bank, by `read_row`.
    pub(crate) fn check_slot(&mut self, layer: u32, expert: u32, slot: u32, context: &str) {
        for bank in self.model().bank_ids() {
            let row_bytes = self.model().row_bytes(LayerId::new(layer), bank);
            if row_bytes > 0 {
                let mut bytes = vec![0; row_bytes as usize];
                self.cache.read_row(LayerId::new(layer), bank, SlotId::new(slot), &mut bytes).unwrap();
                let wanted = row(layer, expert, bank.get(), row_bytes);
                assert_eq!(bytes, wanted, "{context}: layer {layer} expert {expert} slot {slot} bank {bank}");
            }
        }
    }

    /// That whoever is said to be resident is there, whole.
    pub(crate) fn check_residents(&mut self, context: &str) {
        self.cache.residency().check().unwrap_or_else(|wrong| panic!("{context}: {wrong}"));
        for pool in (0..self.cache.geometry().pools().len()).map(PoolId::from_index) {
            for slot in (0..self.cache.geometry().pool(pool).slot_count()).map(SlotId::new) {
                if let Some((layer, expert)) = self.cache.residency().expert_of(pool, slot) {
                    self.check_slot(layer.get(), expert.get(), slot.get(), context);
                }
            }
        }
    }

    pub(crate) fn summary(&self) -> Summary {
        let (residency, geometry) = (self.cache.residency(), self.cache.geometry());
        let mut slots = Vec::new();
        for (index, pool) in geometry.pools().iter().enumerate() {
            let pool_id = PoolId::from_index(index);
            let slot = |slot| (residency.expert_of(pool_id, slot), residency.stamp(pool_id, slot));
            slots.extend((0..pool.slot_count()).map(SlotId::new).map(slot));
        }
        // A refused step is counted, as refused and nowhere else.
        let stats_of = |layer| {
            let mut stats = self.cache.layer_stats(layer).unwrap();
            stats.residency.refused = 0;
            stats
        };
        let stats = geometry.model().layer_ids().map(stats_of).collect();
        Summary { step: residency.step(), slots, stats, enqueued: self.device.get().enqueued }
    }
}
