//! Plans that stay open between calls decide what tickets do, and keep everything else out meanwhile.

use ftcache_residency::{OpenPlan, Planner, PlannerError};

use super::*;

fn hybrid(layer_number: u32) -> Step {
    let fetch = Fetch { rule: FetchRule::UpTo(1), most: None };
    Step { misses: Misses::Hybrid { fetch, order: FetchOrder::Recency }, ..Step::new(layer(layer_number)) }
}

/// Holds that both have decided the same.
#[track_caller]
fn check_alike(planner: &Planner, cache: &Cache) {
    planner.cache().check().unwrap();
    assert_eq!(planner.cache().digest(), cache.digest());
    assert_eq!(planner.cache().total_stats(), cache.total_stats());
    assert_eq!(planner.cache().late_stats(), cache.late_stats());
    assert_eq!(planner.cache().total_hint_stats(), cache.total_hint_stats());
    assert_eq!(planner.cache().chunk_total(), cache.chunk_total());
}

/// Steps, later rows and staged layers, carried out or not as a seed says, over a cache with tickets and a planner.
fn run(seed: u64) {
    let mut rng = Rng::new(seed);
    let mut cache = borrowing(6, 4, 12);
    let mut planner = Planner::new(borrowing(6, 4, 12));
    let (mut plan, mut late, mut stage) = (Plan::new(), LatePlan::new(), StagePlan::new());
    let mut hint = LatePlan::new();
    for _ in 0..80 {
        let carried_out = rng.chance(3, 4);
        let end = |planner: &mut Planner| if carried_out { planner.commit() } else { planner.abort() }.unwrap();
        let number = rng.below(6) as u32;
        if rng.chance(1, 8) {
            if cache.has_open_chunk() {
                cache.abandon_chunk().unwrap();
                planner.cache_mut().unwrap().abandon_chunk().unwrap();
            } else {
                cache.begin_chunk().unwrap();
                planner.cache_mut().unwrap().begin_chunk().unwrap();
            }
        } else if cache.has_open_chunk() {
            let staged = cache
                .prefetch(layer(number), &mut stage)
                .map(|ticket| if carried_out { ticket.commit() } else { ticket.abort() });
            let planned = planner.prefetch(layer(number)).cloned();
            assert_eq!(planned.as_ref().err(), staged.err().map(PlannerError::Stage).as_ref());
            if let Ok(planned) = planned {
                assert_eq!(planned, stage);
                end(&mut planner);
            }
        } else {
            let routes: Vec<ExpertId> = (0..rng.below(5)).map(|_| expert(rng.below(4) as u32)).collect();
            let step = if rng.chance(1, 2) { hybrid(number) } else { Step::new(layer(number)) };
            let admitted = cache
                .ensure(step, &routes, &mut plan)
                .map(|ticket| if carried_out { ticket.commit() } else { ticket.abort() });
            let planned = planner.admit(step, &routes).map(|planned| planned.to_string());
            assert_eq!(planned.as_ref().err(), admitted.err().map(PlannerError::Ensure).as_ref());
            let Ok(planned) = planned else { continue };
            assert_eq!(planned, plan.to_string());
            end(&mut planner);
            let fetched = cache.fetch_later(&plan, 2, &mut late).map(|ticket| ticket.commit());
            let planned = planner.fetch_later(2).map(|planned| planned.copies().to_vec());
            assert_eq!(planned.as_ref().err(), fetched.err().map(PlannerError::Late).as_ref());
            if let Ok(planned) = planned {
                assert_eq!(planned, late.copies());
                planner.commit().unwrap();
                assert_eq!(planner.late_plan().flight(), late.flight());
                let landed = planner.cache_mut().unwrap().land(late.flight());
                assert_eq!(landed, cache.land(late.flight()));
            }
            let (next, most) = (layer(rng.below(6) as u32), rng.below(3) as usize);
            let hinted = cache.hint(&plan, next, &routes, most, &mut hint).unwrap();
            if carried_out {
                hinted.commit()
            } else {
                hinted.abort()
            }
            assert_eq!(planner.hint(next, &routes, most).unwrap().copies(), hint.copies());
            assert_eq!(planner.hint_plan().hint(), hint.hint());
            end(&mut planner);
            if rng.chance(1, 2) {
                assert_eq!(planner.cache_mut().unwrap().land(hint.flight()), cache.land(hint.flight()));
            }
        }
        check_alike(&planner, &cache);
    }
}

#[test]
fn open_plans_decide_what_tickets_do() {
    for seed in 0..300 {
        run(seed);
    }
}

#[test]
fn an_open_plan_keeps_everything_else_out() {
    let mut planner = Planner::new(borrowing(6, 4, 12));
    assert_eq!(
        (planner.open(), planner.commit(), planner.abort()),
        (None, Err(PlannerError::NotOpen), Err(PlannerError::NotOpen))
    );
    planner.admit(layer(0), &ids(&[1, 2])).unwrap();
    let refused = PlannerError::Open(OpenPlan::Step);
    let before = planner.cache().digest();
    let residents = planner.cache().residents(7);
    assert_eq!(planner.admit(layer(1), &ids(&[0])).err(), Some(refused));
    assert_eq!(planner.admit_ids(layer(1), [0], None).err(), Some(refused));
    assert_eq!(planner.fetch_later(1).err(), Some(refused));
    assert_eq!(planner.hint(layer(1), &[], 1).err(), Some(refused));
    assert_eq!(planner.prefetch(layer(0)).err(), Some(refused));
    assert_eq!(planner.materialize(layer(0)).err(), Some(refused));
    assert_eq!(planner.bring_back(&residents, 7).err(), Some(refused));
    assert_eq!(planner.cache_mut().err(), Some(refused));
    assert_eq!(planner.go_on_with(borrowing(6, 4, 12)), Err(refused));
    assert_eq!((planner.open(), planner.cache().digest()), (Some(OpenPlan::Step), before));
    assert_eq!(refused.to_string(), "the plan of a step is open: commit or abort it first");

    // Aborted, none of its slots is a hit; the next step takes the same ones.
    planner.abort().unwrap();
    assert_eq!(planner.cache().resident_count(), 0);
    assert_eq!(planner.admit(layer(0), &ids(&[1, 2])).unwrap().copies().len(), 2);
    planner.commit().unwrap();
    assert!(planner.admit(layer(0), &ids(&[1, 2])).unwrap().copies().is_empty());
}

#[test]
fn residents_come_back_by_an_open_plan() {
    let mut cache = borrowing(6, 4, 12);
    commit(&mut cache, layer(2), &[3, 1]);
    let residents = cache.residents(7);
    let mut planner = Planner::new(borrowing(6, 4, 12));
    assert_eq!(planner.bring_back(&residents, 7).unwrap().len(), 2);
    planner.abort().unwrap();
    assert_eq!(planner.cache().resident_count(), 0);
    planner.bring_back(&residents, 7).unwrap();
    planner.commit().unwrap();
    assert!(planner.admit(layer(2), &ids(&[1, 3])).unwrap().copies().is_empty());
}
