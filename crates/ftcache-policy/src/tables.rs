//! What admission itself keeps on the device, beside the rows.

use crate::{Geometry, Model, Strategy};

/// Where steps are admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Admission {
    /// On the host: the device keeps no tables.
    #[default]
    Host,
    /// On the device, for engines that capture decode into a graph.
    Device,
}

/// A stamp of a slot, or when an expert was last active: 64 bits, as steps are counted.
const STAMP_BYTES: u64 = 8;
/// The expert in a slot, or the slot of an expert.
const ID_BYTES: u64 = 4;
/// A slot and a row.
const COPY_BYTES: u64 = 8;
/// The fraction of a miss that a layer carries to its next step.
const CARRIED_BYTES: u64 = 4;
/// Step counter, length of the copy list, error word and generation, each on a line of its own.
const COUNTER_BYTES: u64 = 4 * 64;

/// Bytes of the device that admission keeps: for each slot its stamp and owner, for each expert its slot, the copy list
/// of the widest step; and for hybrid steps when each expert was last active, and what each layer carries.
pub fn table_bytes(geometry: &Geometry, admission: Admission, strategy: Strategy) -> u64 {
    geometry.slot_count() * slot_table_bytes(admission) + fixed_table_bytes(geometry.model(), admission, strategy)
}

/// Of these, the bytes of each slot.
pub(crate) fn slot_table_bytes(admission: Admission) -> u64 {
    match admission {
        Admission::Host => 0,
        Admission::Device => STAMP_BYTES + ID_BYTES,
    }
}

/// Of these, the bytes that do not depend on the slots.
pub(crate) fn fixed_table_bytes(model: &Model, admission: Admission, strategy: Strategy) -> u64 {
    if admission == Admission::Host {
        return 0;
    }
    let (layers, widest_step) = (model.layer_count() as u64, u64::from(model.expert_count()));
    let hybrid = match strategy {
        Strategy::Hybrid => layers * (widest_step * STAMP_BYTES + CARRIED_BYTES),
        Strategy::Offload | Strategy::Cpu => 0,
    };
    layers * widest_step * ID_BYTES + widest_step * COPY_BYTES + COUNTER_BYTES + hybrid
}
