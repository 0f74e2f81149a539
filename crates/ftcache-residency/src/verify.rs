//! Drafts: a verify step leaves no recency until it is known which of them were accepted.

use ftcache_policy::{ExpertId, LayerId};

use crate::pool::{Scratch, check_ids};
use crate::{Cache, EnsureError, Misses, Plan};

/// The verify step of a layer, whole or in parts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Verified {
    /// Whether it is still to be accepted.
    is_open: bool,
    /// Numbers of its first part and its last.
    first: u64,
    last: u64,
    is_hybrid: bool,
    /// Those that are present.
    routes: Vec<ExpertId>,
    /// The misses that were fetched.
    fetched: Vec<ExpertId>,
}

impl Verified {
    /// Has room for a step of `route_count` routes.
    pub(crate) fn reserve(&mut self, route_count: usize) {
        self.routes.reserve(route_count.saturating_sub(self.routes.len()));
        self.fetched.reserve(route_count.saturating_sub(self.fetched.len()));
    }

    /// There is nothing more to accept.
    pub(crate) fn close(&mut self) {
        self.is_open = false;
    }

    /// Keeps a plan that was committed, or a further part of it.
    pub(crate) fn keep(&mut self, plan: &Plan) {
        if !(plan.step.continues && self.is_open) {
            (self.is_open, self.first) = (true, plan.number);
            self.routes.clear();
            self.fetched.clear();
        }
        self.last = plan.number;
        self.is_hybrid = plan.step.misses != Misses::Fetched;
        // Routes of other parts are absent, so all parts together have no more than the step.
        self.routes.extend(plan.routes.iter().filter(|&&route| route != ExpertId::ABSENT));
        // Another step of these routes may fetch all of them.
        self.fetched.reserve(self.routes.len() - self.fetched.len());
        self.fetched.extend(plan.copies().iter().map(|copy| copy.row));
    }
}

impl Cache {
    /// Ends a verify step: what was accepted has been used, what was fetched for the rejected drafts goes first.
    ///
    /// `accepted` are the routes of the accepted drafts, in any order; absent ones say nothing. The counter goes on by
    /// one: accepted experts that are still resident are stamped with it. Experts that the verify step fetched and that
    /// are neither accepted nor used since get stamp 1.
    ///
    /// # Errors
    ///
    /// An unknown layer or expert; an expert that the layer's last verify step did not route to, or no such step that
    /// was committed and not yet accepted. The last step has been counted.
    pub fn accept(&mut self, layer: LayerId, accepted: &[ExpertId]) -> Result<(), EnsureError> {
        let pool = self.pool_of(layer)?;
        let number = self.next_step();
        let verified = self.verified.get_mut(layer.index()).filter(|verified| verified.is_open);
        let verified = verified.ok_or(EnsureError::NothingToAccept { layer })?;
        check_ids(layer, accepted, self.map.expert_count())?;
        let Scratch { experts: routed, list: slots, .. } = &mut self.scratch;
        let present = |route: &&ExpertId| **route != ExpertId::ABSENT;
        verified.routes.iter().for_each(|route| {
            routed.insert(route.index());
        });
        let stray = accepted.iter().position(|route| present(&route) && !routed.contains(route.index()));
        routed.clear();
        if let Some(route) = stray {
            return Err(EnsureError::NotVerified { layer, route, expert: accepted[route] });
        }

        let number = number?;
        self.step = number;
        self.flights.offered = None;
        if let Some(ranking) = &mut self.ranking {
            ranking.count(layer, accepted, false);
        }
        verified.is_open = false;
        let experts = self.map.layer(layer);
        let recency = &mut self.pools[pool.index()].recency;
        let slot = |route: &ExpertId| Some(experts[route.index()].place).filter(|place| place.is_slot());
        slots.clear();
        slots.extend(accepted.iter().filter(present).filter_map(slot).map(|place| place.slot()));
        recency.touch(slots, number);
        slots.clear();
        slots.extend(verified.fetched.iter().filter_map(slot).map(|place| place.slot()));
        slots.retain(|&slot| (verified.first..=verified.last).contains(&recency.stamp(slot)));
        recency.cool(slots.iter().copied());
        if verified.is_hybrid {
            let first = self.map.experts_of_layer(layer).start;
            accepted.iter().filter(present).for_each(|route| self.active[first + route.index()] = number);
        }
        Ok(())
    }
}
