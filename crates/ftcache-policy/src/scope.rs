//! Which layers share a pool.

use std::collections::HashMap;

use crate::{LayerId, LayoutKey, Model};

/// How layers are grouped into pools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scope {
    /// One pool a layout key: layers of equal key compete for the same slots.
    #[default]
    Unified,
    /// One pool a layer.
    PerLayer,
}

/// The layers of each pool: pools with wider slots first, equal widths by first layer; layers ascend within a pool.
///
/// Wider first, so that the staging buffers that prefill borrows from the start of the arenas lie on few wide slots
/// instead of many narrow ones.
pub fn group_layers(model: &Model, scope: Scope) -> Vec<Vec<LayerId>> {
    let mut groups: Vec<Vec<LayerId>> = match scope {
        Scope::PerLayer => model.layer_ids().map(|layer| vec![layer]).collect(),
        Scope::Unified => {
            let mut groups: Vec<Vec<LayerId>> = Vec::new();
            let mut group_of: HashMap<&LayoutKey, usize> = HashMap::new();
            for layer in model.layer_ids() {
                let group = *group_of.entry(model.layer(layer)).or_insert(groups.len());
                if group == groups.len() {
                    groups.push(Vec::new());
                }
                groups[group].push(layer);
            }
            groups
        }
    };
    order_groups(model, &mut groups);
    groups
}

/// Wider slots first, equal widths by first layer.
pub(crate) fn order_groups(model: &Model, groups: &mut [Vec<LayerId>]) {
    groups.sort_by_key(|layers| (std::cmp::Reverse(model.layer(layers[0]).expert_bytes()), layers[0]));
}
