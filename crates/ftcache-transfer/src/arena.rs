//! The slots: one arena of device memory for each bank, cut as the geometry says.

use ftcache_policy::{BankId, Geometry, PoolId, SlotId};

use crate::{Device, DeviceError, DeviceSpan, Memory};

/// The arenas of a cache, one for each bank.
#[derive(Debug)]
pub struct Arenas {
    /// `None` for a bank that no layer reads.
    arenas: Vec<Option<Memory>>,
}

impl Arenas {
    /// Allocates every arena of a geometry, filled with zeros so that pads hold finite numbers.
    ///
    /// # Errors
    ///
    /// The device's; what was allocated before is freed.
    pub fn allocate(device: &mut impl Device, geometry: &Geometry) -> Result<Self, DeviceError> {
        // At least a cache line, as kernels like their tensors.
        let alignment = geometry.constraints().alignment.max(64);
        let mut arenas = Self { arenas: Vec::with_capacity(geometry.arena_bytes().len()) };
        for &bytes in geometry.arena_bytes() {
            if bytes == 0 {
                arenas.arenas.push(None);
                continue;
            }
            match device.allocate(bytes, alignment) {
                Ok(memory) => arenas.arenas.push(Some(memory)),
                Err(error) => {
                    arenas.free(device);
                    return Err(error);
                }
            }
        }
        Ok(arenas)
    }

    /// Gives every arena back.
    pub fn free(&mut self, device: &mut impl Device) {
        for memory in self.arenas.drain(..).flatten() {
            device.free(memory);
        }
    }

    /// The slots of one pool and bank from `slot` on, or `None` if the pool's layers do not read that bank.
    ///
    /// # Panics
    ///
    /// If the geometry has no such pool, bank or slot.
    pub fn slots(&self, geometry: &Geometry, pool: PoolId, bank: BankId, slot: SlotId) -> Option<DeviceSpan> {
        let pool = geometry.pool(pool);
        assert!(slot.get() < pool.slot_count(), "slot {slot} of {}", pool.slot_count());
        let range = &pool.ranges()[bank.index()];
        if range.row_bytes == 0 {
            return None;
        }
        let memory = self.arenas[bank.index()]?;
        let offset = range.offset + u64::from(slot.get()) * range.stride;
        Some(DeviceSpan { memory, offset, stride: range.stride })
    }
}
