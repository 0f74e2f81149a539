//! What the routing was like, and what a cache of this size could have made of it.

use ftcache_policy::{FlatExpertId, LayerId};

use crate::Cache;

/// The routing of one layer, from the routes of committed steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerRouting {
    /// The layer.
    pub layer: LayerId,
    /// Routes, duplicates included.
    pub routes: u64,
    /// Experts that were routed to at all.
    pub working_set: u32,
    /// The fewest experts to which nine tenths of the routes went.
    pub experts_for_90_percent: u32,
    /// Entropy of the routes over the experts, from 0 (all to one) to 1 (all alike). A layer of one expert has 0.
    pub entropy: f64,
    /// Slots of the layer's pool for each of its layers; they need not be a whole number.
    pub slots: f64,
    /// Share of the routes that go to the most used experts, as many as `slots`: what a set of experts that is chosen
    /// once would hit, if it were known beforehand. A fraction of a slot counts as that part of the next expert.
    pub oracle_hit_rate: f64,
    /// Share of its routes that were hit, since the statistics were last started over; `None` if there were none.
    pub hit_rate: Option<f64>,
}

/// The means over the layers that were routed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeanRouting {
    /// Layers that were routed.
    pub layers: u32,
    /// Mean [`working_set`](LayerRouting::working_set).
    pub working_set: f64,
    /// Mean [`experts_for_90_percent`](LayerRouting::experts_for_90_percent).
    pub experts_for_90_percent: f64,
    /// Mean [`entropy`](LayerRouting::entropy).
    pub entropy: f64,
    /// Mean [`oracle_hit_rate`](LayerRouting::oracle_hit_rate).
    pub oracle_hit_rate: f64,
    /// Mean [`hit_rate`](LayerRouting::hit_rate) of those that have one.
    pub hit_rate: Option<f64>,
}

impl Cache {
    /// The routing of a layer, or `None` if nothing was routed or it holds no slots.
    ///
    /// # Panics
    ///
    /// If there is no such layer.
    pub fn layer_routing(&self, layer: LayerId) -> Option<LayerRouting> {
        let pool = self.pool_of_layer[layer.index()]?;
        let experts = self.map.experts_of_layer(layer);
        let mut counts: Vec<u64> = experts
            .map(|expert| self.map.routed(FlatExpertId::from_index(expert)))
            .filter(|&count| count > 0)
            .collect();
        let routes: u64 = counts.iter().sum();
        if routes == 0 {
            return None;
        }
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let stats = self.layer_stats(layer);
        let slots = f64::from(self.slot_count(pool)) / self.layers_of(pool).count() as f64;
        let mut covered = 0;
        let nine_tenths = counts.iter().position(|&count| {
            covered += count;
            // In whole numbers, and beyond 64 bits: ten times the routes.
            u128::from(covered) * 10 >= u128::from(routes) * 9
        });
        Some(LayerRouting {
            layer,
            routes,
            working_set: counts.len() as u32,
            experts_for_90_percent: nine_tenths.map_or(0, |index| index as u32 + 1),
            entropy: entropy(&counts, routes, self.expert_count()),
            slots,
            oracle_hit_rate: most_used(&counts, slots) / routes as f64,
            hit_rate: (stats.routes > 0).then(|| stats.hit_routes as f64 / stats.routes as f64),
        })
    }

    /// The means over the layers that were routed, or `None` if none was.
    pub fn mean_routing(&self) -> Option<MeanRouting> {
        let layers = (0..self.layer_count()).map(LayerId::from_index);
        let layers: Vec<LayerRouting> = layers.filter_map(|layer| self.layer_routing(layer)).collect();
        let mean = |of: &dyn Fn(&LayerRouting) -> Option<f64>| {
            let values: Vec<f64> = layers.iter().filter_map(of).collect();
            (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
        };
        Some(MeanRouting {
            layers: layers.len() as u32,
            working_set: mean(&|layer| Some(f64::from(layer.working_set)))?,
            experts_for_90_percent: mean(&|layer| Some(f64::from(layer.experts_for_90_percent)))?,
            entropy: mean(&|layer| Some(layer.entropy))?,
            oracle_hit_rate: mean(&|layer| Some(layer.oracle_hit_rate))?,
            hit_rate: mean(&|layer| layer.hit_rate),
        })
    }
}

/// Of routes to experts with these counts, in parts of that of routes that go to all experts alike.
fn entropy(counts: &[u64], routes: u64, expert_count: u32) -> f64 {
    if expert_count < 2 {
        return 0.0;
    }
    let share = |&count: &u64| count as f64 / routes as f64;
    let bits: f64 = counts.iter().map(share).map(|share| -share * share.log2()).sum();
    bits / f64::from(expert_count).log2()
}

/// Routes to the first `slots` of the counts, which descend; a fraction of a slot has that part of its expert's.
fn most_used(counts: &[u64], slots: f64) -> f64 {
    let whole = slots.floor() as usize;
    let first: u64 = counts.iter().take(whole).sum();
    first as f64 + counts.get(whole).map_or(0.0, |&count| count as f64 * slots.fract())
}
