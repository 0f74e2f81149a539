//! What the tests of this crate share: a device that notes what it is asked, rows that tell where they are from,
//! and everything that one plan needs.

#![allow(dead_code, reason = "each test file uses its own part")]

#[path = "../../../ftcache-testkit/watched_device.rs"]
mod watched_device;

use std::sync::Arc;

use ftcache_policy::{
    BankId, Constraints, ExpertId, Geometry, LayerId, LayoutKey, Model, PoolId, Quantisation, SlotId,
};
use ftcache_residency::{Cache, Plan};
pub(crate) use ftcache_testkit::generators::row;
use ftcache_transfer::{
    ApplyError, Device, DeviceError, DeviceSpan, Event, HostDevice, HostRows, HostSpan, Loader, Memory, RowCopy,
    Stream, Streams,
};
pub(crate) use watched_device::Watched;

/// A stream by its handle, whether it is there or not.
pub(crate) const fn stream_of(handle: u64) -> Stream {
    // SAFETY: the host device looks every handle up.
    unsafe { Stream::from_raw(handle) }
}

/// An event by its handle.
pub(crate) const fn event_of(handle: u64) -> Event {
    // SAFETY: as above.
    unsafe { Event::from_raw(handle) }
}

/// Enqueues a write of `bytes`, which are never freed or changed.
pub(crate) fn write(
    device: &mut impl Device,
    stream: Stream,
    memory: Memory,
    offset: u64,
    bytes: &'static [u8],
) -> Result<(), DeviceError> {
    let row_bytes = bytes.len() as u64;
    let source = HostSpan { base: bytes.as_ptr(), stride: row_bytes }.into();
    let target = DeviceSpan { memory, offset, stride: row_bytes };
    // SAFETY: a `'static` slice behind a shared reference stays readable and unchanged for good.
    unsafe { device.copy_rows(stream, &RowCopy { source, target, row_bytes, row_count: 1 }) }
}

/// What lies between the rows on the host; none of it is ever to reach the device.
pub(crate) const HOST_GAP: u8 = 0xEE;

/// One layer's rows of one bank, `stride` bytes apart; nothing after the last row.
pub(crate) fn host_rows(layer: u32, bank: u32, expert_count: u32, row_bytes: u64, stride: u64) -> Arc<[u8]> {
    let mut bytes = vec![HOST_GAP; (u64::from(expert_count - 1) * stride + row_bytes) as usize];
    for expert in 0..expert_count {
        let at = (u64::from(expert) * stride) as usize;
        bytes[at..at + row_bytes as usize].copy_from_slice(&row(layer, expert, bank, row_bytes));
    }
    bytes.into()
}

/// Everything that a plan needs to be applied.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) geometry: Geometry,
    pub(crate) residency: Cache,
    pub(crate) device: Watched,
    pub(crate) loader: Loader<Watched>,
    pub(crate) plan: Plan,
}

impl World {
    /// A cache of `row_bytes[layer][bank]` over a device, every bank attached, with `host_gap` bytes between rows.
    pub(crate) fn new(
        expert_count: u32,
        row_bytes: &[&[u64]],
        constraints: Constraints,
        host: HostDevice,
        host_gap: u64,
    ) -> Self {
        let layers = row_bytes.iter().map(|&row_bytes| LayoutKey::tagged("t", row_bytes)).collect();
        let model = Model::new(expert_count, 1, Quantisation::PerLayer, layers).unwrap();
        let geometry = Geometry::new(model, constraints).unwrap();
        let device = Watched::new(host);
        let mut loader = Loader::new(geometry.clone(), device.clone()).unwrap();
        for layer in geometry.model().layer_ids() {
            for bank in geometry.model().bank_ids() {
                let row_bytes = geometry.model().row_bytes(layer, bank);
                if row_bytes > 0 {
                    let stride = row_bytes + host_gap;
                    let bytes = host_rows(layer.get(), bank.get(), expert_count, row_bytes, stride);
                    loader.attach(layer, bank, HostRows::owned(bytes, stride)).unwrap();
                }
            }
        }
        let residency = Cache::new(&geometry);
        Self { geometry, residency, device, loader, plan: Plan::new() }
    }

    /// One step: committed if its plan was applied, else aborted.
    pub(crate) fn step(&mut self, streams: Streams, layer: u32, routes: &[u32]) -> Result<u64, ApplyError> {
        let routes: Vec<ExpertId> = routes.iter().copied().map(ExpertId::new).collect();
        let ticket = self.residency.ensure(LayerId::new(layer), &routes, &mut self.plan).expect("a step that fits");
        let applied = self.loader.apply(streams, ticket.plan());
        match applied {
            Ok(_) => ticket.commit(),
            Err(_) => ticket.abort(),
        }
        applied
    }

    /// Every byte of every arena, once everything is done; a bank that nobody reads has none.
    pub(crate) fn image(&mut self) -> Vec<Vec<u8>> {
        let mut image = Vec::new();
        for (bank, &bytes) in self.geometry.arena_bytes().iter().enumerate() {
            let mut arena = vec![0; bytes as usize];
            if let Some(memory) = self.memory(BankId::from_index(bank)) {
                self.device.read(memory, 0, &mut arena).unwrap();
            }
            image.push(arena);
        }
        image
    }

    /// The arena of a bank.
    pub(crate) fn memory(&self, bank: BankId) -> Option<Memory> {
        let pools = (0..self.geometry.pools().len()).map(PoolId::from_index);
        let mut spans = pools.filter_map(|pool| self.loader.slot(pool, bank, SlotId::new(0)));
        spans.next().map(|span| span.memory)
    }

    /// What the arenas hold if every resident lies in its slot and nothing else was ever written.
    pub(crate) fn image_of_residents(&self) -> Vec<Vec<u8>> {
        let mut image: Vec<Vec<u8>> = self.geometry.arena_bytes().iter().map(|&n| vec![0; n as usize]).collect();
        for (index, pool) in self.geometry.pools().iter().enumerate() {
            for slot in (0..pool.slot_count()).map(SlotId::new) {
                let Some((layer, expert)) = self.residency.expert_of(PoolId::from_index(index), slot) else { continue };
                for (bank, range) in pool.ranges().iter().enumerate() {
                    let bytes = row(layer.get(), expert.get(), bank as u32, range.row_bytes);
                    let at = (range.offset + u64::from(slot.get()) * range.stride) as usize;
                    image[bank][at..at + bytes.len()].copy_from_slice(&bytes);
                }
            }
        }
        image
    }
}
