//! Step tokens: the answer to a layer's last step, to be given again under its token. Layers without tokens cost
//! nothing.

use ftcache_policy::{ExpertId, LayerId};

use crate::map::Map;
use crate::{EnsureError, Plan, Step};

#[derive(Debug, Clone)]
pub(crate) struct Answers {
    /// `of_layer[layer]`; empty before the first token.
    of_layer: Vec<Answer>,
    /// Goes on when slots are freed by a call: answers of an earlier epoch are not given again.
    epoch: u64,
}

/// The answer to the last step of a layer that had a token.
#[derive(Debug, Clone, Default)]
struct Answer {
    /// 0: none.
    epoch: u64,
    plan: Plan,
}

impl Default for Answers {
    fn default() -> Self {
        Self { of_layer: Vec::new(), epoch: 1 }
    }
}

impl Answers {
    /// Has room for steps of `route_count` routes in each of `layer_count` layers.
    pub(crate) fn reserve(&mut self, layer_count: usize, route_count: usize) {
        self.of_layer.resize_with(layer_count, Answer::default);
        self.of_layer.iter_mut().for_each(|answer| answer.plan.reserve(route_count));
    }

    /// Writes the answer of the step's token to `plan`, if there is one; whether there is.
    pub(crate) fn recall(
        &self,
        step: &Step,
        routes: &[ExpertId],
        map: &Map,
        plan: &mut Plan,
    ) -> Result<bool, EnsureError> {
        let layer = step.layer;
        let answer = self.of_layer.get(layer.index()).filter(|answer| answer.epoch == self.epoch);
        let Some((answer, token)) = answer.zip(step.token).filter(|(answer, _)| answer.plan.step.token == step.token)
        else {
            return Ok(false);
        };
        let Step { phase, misses, .. } = answer.plan.step;
        if (phase, misses) != (step.phase, step.misses) || answer.plan.routes != routes {
            // The parts of a step have one token, and other routes each.
            return if step.continues { Ok(false) } else { Err(EnsureError::TokenReused { layer, token }) };
        }
        let mut placed = routes.iter().zip(&answer.plan.slots).filter(|(_, slot)| slot.is_slot());
        let is_gone = |(expert, slot): &(&ExpertId, &_)| map.layer(layer)[expert.index()].place.slot() != **slot;
        if let Some((&expert, _)) = placed.find(is_gone) {
            return Err(EnsureError::AnswerGone { layer, token, expert });
        }
        plan.clone_from(&answer.plan);
        plan.is_repeat = true;
        Ok(true)
    }

    /// No answer of the layer is given again.
    #[inline]
    pub(crate) fn forget(&mut self, layer: LayerId) {
        if let Some(answer) = self.of_layer.get_mut(layer.index()) {
            answer.epoch = 0;
        }
    }

    /// No answer of any layer is given again.
    pub(crate) fn forget_all(&mut self) {
        self.epoch += 1;
    }

    /// Keeps a plan that was committed.
    pub(crate) fn keep(&mut self, plan: &Plan, layer_count: usize) {
        self.of_layer.resize_with(layer_count, Answer::default);
        let answer = &mut self.of_layer[plan.layer().index()];
        answer.epoch = self.epoch;
        answer.plan.clone_from(plan);
    }
}
