//! The LRU kernel of the reference system, step by step; and the slow model held to the same vectors.

use ftcache_policy::{ExpertId, LayerId, PoolId, SlotId};
use ftcache_residency::{Cache, Plan};
use ftcache_testkit::golden::{self, LruCase};
use ftcache_testkit::reference::Reference;

#[test]
fn every_slot_and_copy_is_that_of_the_reference() {
    let cases = golden::cases::<LruCase>("lru.jsonl");
    assert_eq!(cases.len(), 60);
    for (line, case) in cases.iter().enumerate() {
        let pool_of_layer: Vec<Option<PoolId>> =
            case.pool_of_layer.iter().map(|&pool| Some(PoolId::new(pool))).collect();
        let mut cache = Cache::with_pools(case.experts, &pool_of_layer, &case.pool_sizes).unwrap();
        let mut plan = Plan::new();
        for (index, step) in case.steps.iter().enumerate() {
            let at = format!("line {} step {}", line + 1, index + 1);
            let routes: Vec<ExpertId> = step.experts.iter().copied().map(ExpertId::new).collect();
            cache.ensure(LayerId::new(step.layer), &routes, &mut plan).unwrap().commit();
            let slots: Vec<u32> = plan.slots().iter().map(|slot| slot.get()).collect();
            let copies: Vec<(u32, u32)> = plan.copies().iter().map(|copy| (copy.slot.get(), copy.row.get())).collect();
            assert_eq!((slots, copies), (step.slots.clone(), step.copies.clone()), "{at}: {plan}");
            cache.check().unwrap_or_else(|wrong| panic!("{at}: {wrong}"));
        }
        for (layer, wanted) in case.final_slot_of.iter().enumerate() {
            for (expert, &wanted) in wanted.iter().enumerate() {
                let slot = cache.slot_of(LayerId::from_index(layer), ExpertId::from_index(expert));
                assert_eq!(slot.map_or(-1, |slot: SlotId| i64::from(slot.get())), wanted, "line {}", line + 1);
            }
        }
    }
}

#[test]
fn the_slow_model_agrees_with_the_reference() {
    for (line, case) in golden::cases::<LruCase>("lru.jsonl").iter().enumerate() {
        let mut model = Reference::new(case.experts, &case.pool_of_layer, &case.pool_sizes);
        for step in &case.steps {
            let answer = model.ensure(step.layer, &step.experts).unwrap();
            assert_eq!((answer.slots, answer.copies), (step.slots.clone(), step.copies.clone()), "line {}", line + 1);
        }
    }
}
