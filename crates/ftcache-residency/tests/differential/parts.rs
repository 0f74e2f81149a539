//! A step partitioned by the cache, each part admitted in both. The model has no partition of its own, so what parts
//! must be is held here.

use std::collections::BTreeSet;

use ftcache_policy::ExpertId;
use ftcache_residency::EnsureError;
use ftcache_testkit::reference::{ABSENT, Misses, Phase, Reference, Refusal, Step};

use crate::compare::{self, Outcome, Slot, differ, same};
use crate::operations::End;
use crate::pair::{Pair, our_step};

impl Pair {
    /// Partitions a step, admits its parts and ends the i-th as `ends` say, in turn. Accepts the routes in the end,
    /// if so asked.
    pub(crate) fn in_parts(&mut self, step: &Step, ends: &[End], accepted: Option<&[u32]>) -> Outcome {
        let routes: Vec<ExpertId> = step.routes.iter().copied().map(ExpertId::new).collect();
        let before: Vec<(_, Vec<ExpertId>)> = self.parts.iter().map(|(part, routes)| (part, routes.to_vec())).collect();
        let parted = self.cache.partition(our_step(step), &routes, &mut self.parts);
        self.check().map_err(|wrong| format!("partition: {wrong}"))?;
        let parts = self.parts.iter().filter(|_| parted.is_ok());
        let parts: Vec<Step> = parts.map(|(part, routes)| self.part_of(step, part, routes)).collect();
        let whole = Step { token: None, misses: Misses::Fetched, ..step.clone() };
        let mut model = self.model.clone();
        if step.misses != Misses::Fetched {
            self.land_nowhere(&mut model, step.layer);
        }
        let admitted = model.admit(&whole).map(drop);
        match (parted, admitted) {
            (Ok(()), Err(Refusal::NoLayer(_) | Refusal::NoSlots(_) | Refusal::NoExpert(_))) => {
                return differ(parts, admitted);
            }
            (Ok(()), _) => {}
            (Err(error), Err(refusal)) => {
                let after: Vec<(_, Vec<ExpertId>)> =
                    self.parts.iter().map(|(part, routes)| (part, routes.to_vec())).collect();
                same("parts after an error", after, before)?;
                if let EnsureError::StepTooWide { .. } = error {
                    self.same_lack_of_room(step)?;
                    if refusal == Refusal::OutOfSteps {
                        // Parts have no numbers yet, so the width is what is wrong with them.
                        return Ok(());
                    }
                }
                return compare::same_error(error, refusal, step.layer, &step.routes, &self.model);
            }
            (Err(error), Ok(())) => return differ(error, "a step that fits whole"),
        }

        let missing = self.same_parts(step, &parts)?;
        if admitted.is_ok() {
            same("parts of a step that fits", parts.len() <= 1, true)?;
        }
        let mut copied: Vec<u32> = Vec::new();
        let (mut all_committed, mut any_repeat) = (true, false);
        for (index, part) in parts.iter().enumerate() {
            let end = ends[index % ends.len()];
            // Parts always fit; but tokens, rows on their way and the end of the steps are beside the matter.
            let is_admitted = match self.model.clone().admit(part) {
                Ok(answer) => {
                    any_repeat |= answer.repeat;
                    true
                }
                Err(Refusal::TokenReused | Refusal::AnswerGone(_) | Refusal::InFlight(_) | Refusal::OutOfSteps) => {
                    false
                }
                Err(refusal) => return Err(format!("part {index} is refused: {refusal:?}")),
            };
            self.ensure(part, end).map_err(|wrong| format!("part {index}: {wrong}"))?;
            self.check().map_err(|wrong| format!("part {index}: {wrong}"))?;
            all_committed &= is_admitted && end == End::Commit;
            if is_admitted && !self.plan.is_repeat() {
                copied.extend(self.plan.copies().iter().map(|copy| copy.row.get()));
            }
        }
        let is_whole = all_committed && !any_repeat;
        if is_whole && step.misses == Misses::Fetched {
            same("experts copied", &copied, &missing)?;
        }
        let Some(accepted) = accepted.filter(|_| step.phase == Phase::Verify) else { return Ok(()) };
        if is_whole && !parts.is_empty() {
            let refused = self.model.clone().accept(step.layer, &step.routes).err();
            let refused = refused.filter(|why| *why != Refusal::OutOfSteps);
            same("a verify step in parts is not accepted", refused, None)?;
        }
        self.accept(step.layer, accepted)
    }

    /// Makes a layer's rows on their way misses like others, as they are where parts of a hybrid step are made. Their
    /// slots stay out of use.
    fn land_nowhere(&self, model: &mut Reference, layer: u32) {
        let Some(&Some(pool)) = self.pool_of_layer.get(layer as usize) else { return };
        for slot in 0..self.slots[pool as usize].len() as u32 {
            if self.model.is_slot_in_flight(pool, slot) && self.model.owner(pool, slot).is_none() {
                assert_eq!(model.forget(pool, slot), None, "nobody is in it");
            }
        }
    }

    /// A part in the model's words.
    fn part_of(&self, whole: &Step, part: ftcache_residency::Step, routes: &[ExpertId]) -> Step {
        let routes = routes.iter().map(|route| route.get()).collect();
        let ours = Step { routes, continues: part.continues, ..whole.clone() };
        assert_eq!(our_step(&ours), part, "a part is of the step's kind");
        ours
    }

    /// Whether parts are what they must be. Returns the distinct experts that are in no slot and not on their way,
    /// ascending. Rows on their way are in the first part.
    fn same_parts(&self, step: &Step, parts: &[Step]) -> Result<Vec<u32>, String> {
        let present =
            |routes: &[u32]| routes.iter().copied().filter(|&route| route != ABSENT).collect::<BTreeSet<u32>>();
        same("step without parts", parts.is_empty(), present(&step.routes).is_empty())?;
        let is_resident = |expert: &u32| self.model.slot_of(step.layer, *expert).is_some();
        let mut fetched = Vec::new();
        let mut seen = BTreeSet::new();
        for (index, part) in parts.iter().enumerate() {
            same("continues", part.continues, index > 0)?;
            let experts = present(&part.routes);
            same("a part without routes", experts.is_empty(), false)?;
            // All routes of its experts, where they were, and no others.
            let routes =
                step.routes.iter().map(|route| if experts.contains(route) { *route } else { ABSENT }).collect();
            same("routes of a part", &part.routes, &routes)?;
            for &expert in &experts {
                same("expert in an earlier part", seen.insert(expert), true)?;
                let is_first = is_resident(&expert) || self.model.is_in_flight(step.layer, expert);
                same("resident or in flight in a later part", index > 0 && is_first, false)?;
            }
            let is_missing = |expert: &u32| !is_resident(expert) && !self.model.is_in_flight(step.layer, *expert);
            fetched.extend(experts.into_iter().filter(is_missing));
        }
        same("experts of all parts", &seen, &present(&step.routes))?;
        let is_missing = |expert: &u32| !is_resident(expert) && !self.model.is_in_flight(step.layer, *expert);
        let missing: Vec<u32> = seen.into_iter().filter(is_missing).collect();
        same("misses, part by part", &fetched, &missing)?;
        Ok(missing)
    }

    /// Whether slots are lacking at all: those neither pinned, in flight behind a step nor under buffers, but for one to each miss
    /// that is to be pinned.
    fn same_lack_of_room(&self, step: &Step) -> Outcome {
        let pool = self.pool_of_layer[step.layer as usize].expect("the layer has slots");
        let is_open = |(slot, (_, owner)): (u32, &Slot)| {
            let is_pinned = owner.is_some_and(|(layer, expert)| self.model.is_pinned(layer, expert));
            let is_flown = self.model.is_slot_in_flight(pool, slot) && !self.model.is_lent(pool, slot);
            slot >= self.model.withheld(pool) && !is_pinned && !is_flown
        };
        let open = (0..).zip(&self.slots[pool as usize]).filter(|slot| is_open(*slot)).count();
        let to_be_pinned = |expert: &&u32| {
            let is_here = self.model.slot_of(step.layer, **expert).is_some();
            // A plain step takes what comes by a hint.
            let is_plain = step.misses == Misses::Fetched;
            let is_missing = !is_here && (is_plain || !self.model.is_in_flight(step.layer, **expert));
            is_missing && self.model.is_pinned(step.layer, **expert)
        };
        let pinned = step.routes.iter().collect::<BTreeSet<_>>().into_iter().filter(to_be_pinned).count();
        same("room for parts", open > pinned, false)
    }
}
