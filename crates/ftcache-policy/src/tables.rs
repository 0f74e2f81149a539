//! What admission itself keeps on the device, beside the rows.

use crate::Geometry;

/// Where steps are admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Admission {
    /// On the host: the device keeps no tables.
    #[default]
    Host,
    /// On the device, for engines that capture decode into a graph.
    Device,
}

/// A stamp of a slot: 64 bits, as steps are counted.
const STAMP_BYTES: u64 = 8;
/// The expert in a slot, or the slot of an expert.
const ID_BYTES: u64 = 4;
/// A slot and a row.
const COPY_BYTES: u64 = 8;
/// Step counter, length of the copy list, error word and generation, each on a line of its own.
const COUNTER_BYTES: u64 = 4 * 64;

/// Bytes of the device that admission keeps: for each slot its stamp and owner, for each expert its slot, and the copy
/// list of the widest step.
pub fn table_bytes(geometry: &Geometry, admission: Admission) -> u64 {
    match admission {
        Admission::Host => 0,
        Admission::Device => {
            let model = geometry.model();
            let widest_step = u64::from(model.expert_count());
            geometry.slot_count() * (STAMP_BYTES + ID_BYTES)
                + model.layer_count() as u64 * widest_step * ID_BYTES
                + widest_step * COPY_BYTES
                + COUNTER_BYTES
        }
    }
}
