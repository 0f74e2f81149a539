//! The golden vectors of the reference's kernels, on ours.

use ftcache_policy::{ExpertId, LayerId, PoolId, SlotId};
use ftcache_residency::{Cache, Misses, Step};
use ftcache_testkit::golden::{self, HybridCase, LruCase};

use crate::rig::{CPU, Form, Rig};

fn empty(expert_count: u32, pool_of_layer: &[u32], pool_sizes: &[u32]) -> Cache {
    let pools: Vec<Option<PoolId>> = pool_of_layer.iter().map(|&pool| Some(PoolId::new(pool))).collect();
    Cache::with_pools(expert_count, &pools, pool_sizes).unwrap()
}

fn same_places(cache: &Cache, wanted: &[Vec<i64>], line: u64) {
    for (layer, wanted) in wanted.iter().enumerate() {
        for (expert, &wanted) in wanted.iter().enumerate() {
            let slot = cache.slot_of(LayerId::from_index(layer), ExpertId::from_index(expert));
            let slot = slot.map_or(-1, |slot: SlotId| i64::from(slot.get()));
            assert_eq!(slot, wanted, "line {line}: layer {layer} expert {expert}");
        }
    }
}

fn ids(experts: &[u32]) -> Vec<i64> {
    experts.iter().copied().map(i64::from).collect()
}

#[test]
fn every_slot_and_copy_is_that_of_the_reference() {
    let cases = golden::cases::<LruCase>("lru.jsonl");
    assert_eq!(cases.len(), 60);
    for (line, case) in (1..).zip(&cases) {
        let mut rig = Rig::new(line, empty(case.experts, &case.pool_of_layer, &case.pool_sizes));
        for (number, step) in (1..).zip(&case.steps) {
            let at = format!("line {line} step {number}");
            let asked = Step::new(LayerId::new(step.layer));
            let answer = rig.admit(asked, &ids(&step.experts), Form::default()).unwrap();
            assert_eq!(answer.slots, ids(&step.slots), "{at}");
            let plan = rig.tables.plan(&mut rig.device, LayerId::new(step.layer)).unwrap();
            let copies: Vec<(u32, u32)> = plan.copies.iter().map(|copy| (copy.slot.get(), copy.row.get())).collect();
            assert_eq!(copies, step.copies, "{at}");
        }
        rig.tables.disengage(&mut rig.device, &mut rig.twin).unwrap();
        rig.twin.check().unwrap();
        same_places(&rig.twin, &case.final_slot_of, line);
        rig.end();
    }
}

#[test]
fn every_fetch_of_a_hybrid_step_is_that_of_the_reference() {
    let cases = golden::cases::<HybridCase>("hybrid.jsonl");
    assert_eq!(cases.len(), 60);
    let mut step_count = 0;
    for (line, case) in (1..).zip(&cases) {
        let mut rig = Rig::new(line, empty(case.experts, &case.pool_of_layer, &case.pool_sizes));
        for (number, golden) in (1..).zip(&case.steps) {
            let at = format!("line {line} step {number}");
            let misses = Misses::Hybrid { fetch: case.fetch(golden), order: case.fetch_order() };
            let step = Step { misses, ..Step::new(LayerId::new(golden.layer)) };
            let form = Form { split: true, ..Form::default() };
            let answer = rig.admit(step, &ids(&golden.experts), form).unwrap();
            let slots: Vec<i64> = answer.slots.iter().map(|&slot| if slot == CPU { -1 } else { slot }).collect();
            assert_eq!(slots, golden.slots, "{at}");
            assert_eq!(answer.cpu_ids, golden.cpu_experts, "{at}");
            let plan = rig.tables.plan(&mut rig.device, step.layer).unwrap();
            let copies: Vec<(u32, u32)> = plan.copies.iter().map(|copy| (copy.slot.get(), copy.row.get())).collect();
            assert_eq!(copies, golden.copies, "{at}");
            assert_eq!((plan.misses, copies.len()), (golden.missing, golden.fetched as usize), "{at}");
            step_count += 1;
        }
        rig.tables.disengage(&mut rig.device, &mut rig.twin).unwrap();
        same_places(&rig.twin, &case.final_slot_of, line);
        rig.end();
    }
    assert_eq!(step_count, 918);
}
