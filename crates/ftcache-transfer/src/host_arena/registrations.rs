//! What is registered with a device: each range once, and each ended once.
//!
//! *Unsafe* in one place, passing a promise on: whoever registers memory keeps it mapped until that is ended.

use std::collections::BTreeMap;

use super::error::RegisterError;
use crate::{Device, DeviceError, HostAccess};

/// The host memory that one device was told of: an arena's, or an engine's own, registered where it lies.
///
/// Bytes are in one range at most, which is checked here. Ranges that share a page but no byte are the device's affair.
/// The table does nothing when it is dropped: whatever is in it stays registered, and must stay mapped.
#[derive(Debug, Default)]
pub struct Registrations {
    /// By address.
    ranges: BTreeMap<usize, Range>,
    /// The device failed at the end of one, which may still stand.
    is_stuck: bool,
}

/// One range, in the parts that the device was given.
#[derive(Debug)]
struct Range {
    bytes: u64,
    /// Bytes from part to part.
    part_bytes: u64,
}

impl Range {
    /// The offset and bytes of each part.
    fn parts(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> + use<> {
        let Self { bytes, part_bytes } = *self;
        (0..bytes.div_ceil(part_bytes)).map(move |part| {
            let offset = part * part_bytes;
            (offset, part_bytes.min(bytes - offset))
        })
    }
}

impl Registrations {
    /// An empty table.
    pub const fn new() -> Self {
        Self { ranges: BTreeMap::new(), is_stuck: false }
    }

    /// Registers a range, whole or in parts of `part_bytes`; zero means whole. Of no bytes, it does nothing.
    ///
    /// The bytes of one copy must lie in one part, so a part is a number of rows.
    ///
    /// # Errors
    ///
    /// Bytes that are registered, or the device's refusal. Nothing of the range is registered then. But if the device
    /// fails while it takes back the parts before, that failure is what is told ([`RegisterError::Device`]): the range
    /// is not in the table, and its memory must stay mapped for good.
    ///
    /// # Safety
    ///
    /// `bytes` bytes from `base` on stay mapped until [`unregister`](Self::unregister) or [`free`](Self::free) has
    /// returned without an error, or [`is_clear`](Self::is_clear) says so.
    pub unsafe fn register(
        &mut self,
        device: &mut impl Device,
        base: *const u8,
        bytes: u64,
        access: HostAccess,
        part_bytes: u64,
    ) -> Result<(), RegisterError> {
        if bytes == 0 {
            return Ok(());
        }
        let address = base.expose_provenance();
        let end = usize::try_from(bytes).ok().and_then(|bytes| address.checked_add(bytes));
        let end = end.ok_or(RegisterError::TooLarge { base: address, bytes })?;
        // Ranges share no bytes, so only the last one to begin before the end can reach into this one.
        if let Some((&other_base, other)) = self.ranges.range(..end).next_back()
            && other_base + other.bytes as usize > address
        {
            return Err(RegisterError::Overlap { base: address, bytes, other_base, other_bytes: other.bytes });
        }
        let range = Range { bytes, part_bytes: if part_bytes == 0 { bytes } else { part_bytes } };
        for (offset, wanted_bytes) in range.parts() {
            let part = base.wrapping_add(offset as usize);
            // SAFETY: our caller keeps the range mapped until its registration has ended.
            if let Err(source) = unsafe { device.register(part, wanted_bytes, access) } {
                let registered_bytes = self.bytes() + offset;
                // Of a refusal and memory that must stay mapped, the second is what the caller has to know.
                self.end(device, address, &Range { bytes: offset, part_bytes: range.part_bytes })?;
                return Err(RegisterError::Refused { wanted_bytes, registered_bytes, source });
            }
        }
        self.ranges.insert(address, range);
        Ok(())
    }

    /// Ends the registration of the range that begins at `base`. The device waits for what may still read there.
    ///
    /// # Errors
    ///
    /// No range begins there; or the device's failure. Then the range is not in the table any more, but the memory must
    /// stay mapped for good.
    pub fn unregister(&mut self, device: &mut impl Device, base: *const u8) -> Result<(), RegisterError> {
        let address = base.addr();
        let range = self.ranges.remove(&address).ok_or(RegisterError::Unknown { base: address })?;
        Ok(self.end(device, address, &range)?)
    }

    /// Ends every registration.
    ///
    /// # Errors
    ///
    /// The device's first failure, as [`unregister`](Self::unregister).
    pub fn free(&mut self, device: &mut impl Device) -> Result<(), DeviceError> {
        let mut result = Ok(());
        for (address, range) in std::mem::take(&mut self.ranges).into_iter().rev() {
            result = result.and(self.end(device, address, &range));
        }
        result
    }

    /// Bytes in the table.
    pub fn bytes(&self) -> u64 {
        self.ranges.values().map(|range| range.bytes).sum()
    }

    /// Registrations that the device has.
    pub fn registration_count(&self) -> usize {
        self.ranges.values().map(|range| range.parts().count()).sum()
    }

    /// Whether the device may read none of the memory that was ever in the table. Only then may it be unmapped.
    pub fn is_clear(&self) -> bool {
        self.ranges.is_empty() && !self.is_stuck
    }

    /// Ends every part of a range that is not in the table, each once.
    fn end(&mut self, device: &mut impl Device, address: usize, range: &Range) -> Result<(), DeviceError> {
        let mut result = Ok(());
        for (offset, _) in range.parts().rev() {
            let ended = device.unregister(std::ptr::with_exposed_provenance(address + offset as usize));
            self.is_stuck |= ended.is_err();
            result = result.and(ended);
        }
        result
    }
}
