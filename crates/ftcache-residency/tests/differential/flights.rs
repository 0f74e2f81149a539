//! Fetches behind hybrid steps and ahead of steps, and their landing.

use ftcache_policy::{ExpertId, LayerId};
use ftcache_residency::{HintAnswer, LateError, LatePlan};
use ftcache_testkit::reference::{Answer, LateAnswer, Refusal, Step};

use crate::compare::{self, Outcome, differ, same};
use crate::operations::LateEnd;
use crate::pair::Pair;

#[derive(Debug, Default)]
pub(crate) struct Flights {
    plan: LatePlan,
    hint: LatePlan,
    /// What the pair's plan was for.
    last: Option<(Step, Answer)>,
    /// Every number there was, and whether it has not landed.
    numbers: Vec<(u64, bool)>,
}

impl Flights {
    pub(crate) fn admitted(&mut self, step: &Step, answer: &Answer) {
        self.last = Some((step.clone(), answer.clone()));
    }
}

impl Pair {
    pub(crate) fn fetch_later(&mut self, most: usize, end: LateEnd) -> Outcome {
        let Some((step, answer)) = &self.flights.last else { return Ok(()) };
        let wanted = self.model.fetch_later(step, answer, most);
        let ours = self.cache.fetch_later(&self.plan, most, &mut self.flights.plan).map(|ticket| match end {
            LateEnd::Commit => ticket.commit(),
            LateEnd::Fail => ticket.fail(),
            LateEnd::Abort => ticket.abort(),
            LateEnd::Drop => drop(ticket),
        });
        match (ours, wanted) {
            (Ok(()), Ok(late)) => {
                self.same_late(step.layer, &late)?;
                self.flights.numbers.push((late.flight, !late.copies.is_empty()));
                match end {
                    LateEnd::Commit => {}
                    LateEnd::Fail => self.model.fail_late(late),
                    LateEnd::Abort | LateEnd::Drop => self.model.abort_late(late),
                }
                Ok(())
            }
            (Err(LateError::NotTheLastStep { step, last }), Err(Refusal::NotTheLastStep(wanted, offered))) => {
                same("step and last step", (step, last), (wanted, offered))
            }
            (ours, wanted) => differ(ours, wanted),
        }
    }

    fn same_late(&self, layer: u32, wanted: &LateAnswer) -> Outcome {
        let plan = &self.flights.plan;
        same("flight", plan.flight(), wanted.flight)?;
        same(
            "number of a flight before",
            self.flights.numbers.iter().any(|&(number, _)| number == plan.flight()),
            false,
        )?;
        let pool = self.pool_of_layer[layer as usize].expect("the step was admitted");
        same("layer and pool", (plan.layer().get(), plan.pool().get()), (layer, pool))?;
        let copies = plan.copies().iter().map(|copy| (copy.slot.get(), copy.row.get())).collect();
        same("late copies", &copies, &wanted.copies)?;
        compare::same_runs(plan.runs(), &wanted.copies)
    }

    pub(crate) fn hint(&mut self, layer: u32, experts: &[u32], most: usize, end: LateEnd) -> Outcome {
        let ids: Vec<ExpertId> = experts.iter().copied().map(ExpertId::new).collect();
        let used = self.plan.slots().iter().filter(|slot| slot.is_slot());
        let used = used.map(|slot| (self.plan.pool().get(), slot.get())).collect();
        let wanted = self.model.hint((&used, self.plan.layer().get()), layer, experts, most);
        let ours = self.cache.hint(&self.plan, LayerId::new(layer), &ids, most, &mut self.flights.hint);
        let ours = ours.map(|ticket| match end {
            LateEnd::Commit => ticket.commit(),
            LateEnd::Fail => ticket.fail(),
            LateEnd::Abort => ticket.abort(),
            LateEnd::Drop => drop(ticket),
        });
        match (ours, wanted) {
            (Ok(()), Ok(hint)) => {
                let plan = &self.flights.hint;
                let copies = plan.copies().iter().map(|copy| (copy.slot.get(), copy.row.get())).collect();
                same("flight", plan.flight(), hint.flight)?;
                same("hinted copies", &copies, &hint.copies)?;
                compare::same_runs(plan.runs(), &hint.copies)?;
                let pool = self.pool_of_layer[layer as usize].expect("it was hinted at");
                same("layer and pool", (plan.layer().get(), plan.pool().get()), (layer, pool))?;
                let (started, present) = (hint.copies.len(), hint.present);
                let (over_budget, no_slot) = (hint.over_budget, hint.no_slot);
                let answer = HintAnswer { present, started, over_budget, no_slot };
                same("what the hint came to", plan.hint(), Some(answer))?;
                self.flights.numbers.push((hint.flight, !hint.copies.is_empty()));
                match end {
                    LateEnd::Commit => self.model.open_hint(&hint),
                    LateEnd::Fail => self.model.fail_hint(&hint),
                    LateEnd::Abort | LateEnd::Drop => self.model.abort_hint(&hint),
                }
                Ok(())
            }
            (Err(error), Err(refusal)) => compare::same_error(error, refusal, layer, experts, &self.model),
            (ours, wanted) => differ(ours, wanted),
        }
    }

    pub(crate) fn cancel_hint(&mut self, back: Option<usize>) -> Outcome {
        let Some(back) = back else {
            return same("rows of all hints", self.cache.cancel_hints(), self.model.cancel_hint(0));
        };
        let numbers = &self.flights.numbers;
        let hint = numbers.iter().rev().nth(back).map_or(u64::MAX, |&(number, _)| number);
        same("rows of a hint", self.cache.cancel_hint(hint), self.model.cancel_hint(hint))
    }

    pub(crate) fn land(&mut self, back: usize, is_up: bool) -> Outcome {
        let numbers = &mut self.flights.numbers;
        let stray = numbers.last().map_or(0, |(last, _)| last + 1);
        let mut candidates = numbers.iter_mut().rev().filter(|(_, up)| *up || !is_up);
        let flight = candidates.nth(back).map_or(stray, |(number, up)| {
            *up = false;
            *number
        });
        same("landed", self.cache.land(flight), self.model.land(flight))
    }
}
