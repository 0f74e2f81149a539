//! Steps of which each misses exactly as often as is asked, however often the whole walk is repeated. Arithmetic on
//! values: nothing here knows a device.
//!
//! A captured graph has its routes in fixed places, so its second replay asks for what the first one made resident, and
//! a handful of steps would only ever hit. So a walk asks for more experts than there are slots, in such an order that
//! each is gone by the time it comes again:
//!
//! - `L` layers take turns, one step each. Of a layer the same `h` experts are in every one of its steps: the hits.
//! - Its other experts stand in groups of `m`, and its steps take one group after another: the misses.
//! - A step has `D = h + m` experts. Before a layer's turn comes again, `L * D` experts are used; they all fit into the
//!   `S` slots (`L * D <= S`), so hits stay.
//! - There are `k` groups, and all come before the first comes again: by then all experts of the walk but that group
//!   have been used. They are at least `S` (`L * (h + k * m) - m >= S`), so none of the group is left, and all miss.
//!
//! The walk begins anew after `L * k` steps, and stays exact: LRU over a repeated sequence is in its steady state after
//! one round. Both conditions together want a step to use at most one slot in five where layers have 512 experts and
//! there are 2,100 slots: 420 experts. Uniform routes of 128 requests would use 471.

use ftcache_policy::{ExpertId, LayerId};
use ftcache_testkit::generators::Rng;

/// What steps are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) layer_count: u32,
    pub(crate) expert_count: u32,
    pub(crate) top_k: u32,
    pub(crate) slot_count: u32,
}

impl Room {
    /// Distinct experts of a step: as many as uniform routes would use on average, but no more than a walk can have.
    pub(crate) fn distinct(&self, requests: u32) -> u32 {
        let experts = f64::from(self.expert_count);
        let missed_by_all = (1.0 - f64::from(self.top_k) / experts).powi(requests as i32);
        let most = self.slot_count / (self.slot_count / self.expert_count + 1);
        ((experts * (1.0 - missed_by_all)).round() as u32).min(most)
    }
}

/// The steps of one round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Walk {
    pub(crate) requests: u32,
    pub(crate) top_k: u32,
    pub(crate) layer_count: u32,
    /// Of a step.
    pub(crate) hits: u32,
    pub(crate) misses: u32,
    pub(crate) group_count: u32,
    /// `order[layer]`: its experts, of which the first are the hits, then the groups.
    order: Vec<Vec<u32>>,
}

impl Walk {
    /// The shortest walk of steps of so many requests and misses; `None` if there is none: fewer experts in a step than
    /// it is to miss, or fewer in the layers than it takes.
    pub(crate) fn new(room: &Room, requests: u32, misses: u32) -> Option<Self> {
        let distinct = room.distinct(requests);
        let hits = distinct.checked_sub(misses)?;
        let layer_count = room.layer_count.min(room.slot_count / distinct);
        let group_count = match misses {
            0 => 1,
            _ => (room.slot_count + misses).saturating_sub(layer_count * hits).div_ceil(layer_count * misses),
        };
        if layer_count == 0 || hits + group_count * misses > room.expert_count {
            return None;
        }
        let order = (0..layer_count).map(|layer| {
            let mut experts: Vec<u32> = (0..room.expert_count).collect();
            shuffle(&mut experts, &mut Rng::new(layer.into()));
            experts
        });
        let (top_k, order) = (room.top_k, order.collect());
        Some(Self { requests, top_k, layer_count, hits, misses, group_count, order })
    }

    pub(crate) fn distinct(&self) -> u32 {
        self.hits + self.misses
    }

    pub(crate) fn route_count(&self) -> u32 {
        self.requests * self.top_k
    }

    pub(crate) fn step_count(&self) -> u32 {
        self.layer_count * self.group_count
    }

    pub(crate) fn layer(&self, step: u32) -> LayerId {
        LayerId::new(step % self.layer_count)
    }

    /// `top_k` distinct experts of each request, one request after another; together all of the step's, each about as
    /// often.
    pub(crate) fn routes(&self, step: u32) -> Vec<ExpertId> {
        let (hits, misses) = (self.hits as usize, self.misses as usize);
        let (order, group) = (&self.order[self.layer(step).index()], (step / self.layer_count) as usize);
        let mut experts = [&order[..hits], &order[hits + group * misses..][..misses]].concat();
        shuffle(&mut experts, &mut Rng::new(1 << 32 | u64::from(step)));
        // A row's experts are neighbours of a circle that is longer than the row.
        experts.iter().cycle().copied().map(ExpertId::new).take(self.route_count() as usize).collect()
    }
}

/// Fisher and Yates.
fn shuffle<T>(items: &mut [T], rng: &mut Rng) {
    for last in (1..items.len()).rev() {
        items.swap(last, rng.below(last as u64 + 1) as usize);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ftcache_policy::PoolId;
    use ftcache_residency::{Cache, Plan};

    use super::{Room, Walk};
    use crate::{MISSES, REQUESTS, ROOM};

    /// Every step of five rounds misses as often as it is to, from the second round on.
    #[track_caller]
    fn check(room: &Room, requests: u32, misses: u32) {
        let at = format!("{requests} requests, {misses} misses");
        let walk = Walk::new(room, requests, misses).expect(&at);
        let pools = vec![Some(PoolId::new(0)); room.layer_count as usize];
        let mut cache = Cache::with_pools(room.expert_count, &pools, &[room.slot_count]).unwrap();
        let mut plan = Plan::new();
        for round in 0..5 {
            for step in 0..walk.step_count() {
                let routes = walk.routes(step);
                assert_eq!(routes.len(), (requests * room.top_k) as usize, "{at}");
                for row in routes.chunks(room.top_k as usize) {
                    assert_eq!(row.iter().collect::<BTreeSet<_>>().len(), row.len(), "{at}: a request's are distinct");
                }
                cache.ensure(walk.layer(step), &routes, &mut plan).unwrap().commit();
                assert_eq!(plan.distinct_count(), room.distinct(requests) as usize, "{at}: step {step}");
                if round > 0 {
                    assert_eq!(plan.miss_count(), misses as usize, "{at}: round {round}, step {step}");
                }
            }
        }
    }

    #[test]
    fn every_step_misses_as_often_as_it_is_to() {
        for requests in REQUESTS {
            for misses in MISSES.into_iter().filter(|&misses| misses <= ROOM.distinct(requests)) {
                check(&ROOM, requests, misses);
            }
        }
    }

    #[test]
    fn steps_use_as_many_experts_as_uniform_routes_up_to_what_a_walk_can_have() {
        let wanted = [10, 39, 75, 108, 116, 139, 193, 240, 313, 420];
        assert_eq!(REQUESTS.map(|requests| ROOM.distinct(requests)), wanted);
    }

    #[test]
    fn there_is_no_walk_without_as_many_experts() {
        assert_eq!(Walk::new(&ROOM, 1, 11), None, "a step has 10");
        let tight = Room { layer_count: 4, ..ROOM };
        assert_eq!(Walk::new(&tight, 1, 1), None, "4 layers of 512 fit into 2,100 slots");
        check(&Room { layer_count: 5, ..ROOM }, 1, 1);
    }
}
