//! The slots: one arena of device memory for each bank, cut as the geometry says.

use ftcache_policy::{BankId, Geometry, PoolId, SlotId};

use crate::{Device, DeviceError, DeviceSpan, Memory};

/// The arenas of a cache, one for each bank. A clone names the same memory.
#[derive(Debug, Clone)]
pub(crate) struct Arenas {
    /// `None` for a bank that no layer reads.
    arenas: Vec<Option<Arena>>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Arena {
    pub(crate) memory: Memory,
    pub(crate) bytes: u64,
    /// Whether it is the caller's.
    pub(crate) adopted: bool,
}

impl Arenas {
    /// Allocates every arena of a geometry, filled with zeros so that pads hold finite numbers.
    ///
    /// # Errors
    ///
    /// The device's; what was allocated before is freed.
    pub(crate) fn allocate(device: &mut impl Device, geometry: &Geometry) -> Result<Self, DeviceError> {
        // At least a cache line, as kernels like their tensors.
        let alignment = geometry.constraints().alignment.max(64);
        Self::collect(device, geometry, |device, _, bytes| {
            let memory = device.allocate(bytes, alignment)?;
            Ok(Arena { memory, bytes, adopted: false })
        })
    }

    /// Takes an arena of the caller's for every bank that is read: its address and bytes.
    ///
    /// # Errors
    ///
    /// Too few arenas, or one with too few bytes; the device's own.
    ///
    /// # Safety
    ///
    /// As for [`Device::adopt`], for each of them.
    pub(crate) unsafe fn adopt(
        device: &mut impl Device,
        geometry: &Geometry,
        given: &[(u64, u64)],
    ) -> Result<Self, DeviceError> {
        Self::collect(device, geometry, |device, bank, needed| {
            let lacks = |bytes| DeviceError::Arena { bank: BankId::from_index(bank), needed, given: bytes };
            let &(address, bytes) = given.get(bank).ok_or_else(|| lacks(0))?;
            if bytes < needed {
                return Err(lacks(bytes));
            }
            let alignment = geometry.constraints().alignment;
            if address % alignment > 0 {
                return Err(DeviceError::ArenaAlignment { bank: BankId::from_index(bank), address, alignment });
            }
            // SAFETY: our caller's promise.
            let memory = unsafe { device.adopt(address, bytes) }?;
            Ok(Arena { memory, bytes, adopted: true })
        })
    }

    fn collect<D: Device>(
        device: &mut D,
        geometry: &Geometry,
        mut make: impl FnMut(&mut D, usize, u64) -> Result<Arena, DeviceError>,
    ) -> Result<Self, DeviceError> {
        let mut arenas = Self { arenas: Vec::with_capacity(geometry.arena_bytes().len()) };
        for (bank, &bytes) in geometry.arena_bytes().iter().enumerate() {
            match (bytes > 0).then(|| make(device, bank, bytes)).transpose() {
                Ok(arena) => arenas.arenas.push(arena),
                Err(error) => {
                    arenas.free(device);
                    return Err(error);
                }
            }
        }
        Ok(arenas)
    }

    /// Gives every arena back.
    pub(crate) fn free(&mut self, device: &mut impl Device) {
        for arena in self.arenas.drain(..).flatten() {
            device.free(arena.memory);
        }
    }

    /// Each bank's arena.
    pub(crate) fn arenas(&self) -> &[Option<Arena>] {
        &self.arenas
    }

    /// The memory of a bank, or `None` if no layer reads it.
    pub(crate) fn memory(&self, bank: BankId) -> Option<Memory> {
        self.arenas[bank.index()].map(|arena| arena.memory)
    }

    /// The slots of one pool and bank from `slot` on, or `None` if the pool's layers do not read that bank.
    ///
    /// # Panics
    ///
    /// If the geometry has no such pool, bank or slot.
    pub(crate) fn slots(&self, geometry: &Geometry, pool: PoolId, bank: BankId, slot: SlotId) -> Option<DeviceSpan> {
        let pool = geometry.pool(pool);
        assert!(slot.get() < pool.slot_count(), "slot {slot} of {}", pool.slot_count());
        let range = &pool.ranges()[bank.index()];
        if range.row_bytes == 0 {
            return None;
        }
        let memory = self.memory(bank)?;
        let offset = range.offset + u64::from(slot.get()) * range.stride;
        Some(DeviceSpan { memory, offset, stride: range.stride })
    }
}
