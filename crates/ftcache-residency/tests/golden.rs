//! The kernels of the reference system, step by step: plain LRU, and hybrid steps in which a CPU computes what is not
//! fetched.

use ftcache_policy::{ExpertId, LayerId, PoolId, SlotId};
use ftcache_residency::{Cache, Misses, Plan, Step};
use ftcache_testkit::golden::{self, HybridCase, LruCase};

fn empty(expert_count: u32, pool_of_layer: &[u32], pool_sizes: &[u32]) -> Cache {
    let pools: Vec<Option<PoolId>> = pool_of_layer.iter().map(|&pool| Some(PoolId::new(pool))).collect();
    Cache::with_pools(expert_count, &pools, pool_sizes).unwrap()
}

/// Admits and commits a step, and holds the cache sound.
fn commit(cache: &mut Cache, step: impl Into<Step>, experts: &[u32], plan: &mut Plan, at: &str) {
    let routes: Vec<ExpertId> = experts.iter().copied().map(ExpertId::new).collect();
    cache.ensure(step, &routes, plan).unwrap_or_else(|error| panic!("{at}: {error}")).commit();
    cache.check().unwrap_or_else(|wrong| panic!("{at}: {wrong}"));
}

fn copies(plan: &Plan) -> Vec<(u32, u32)> {
    plan.copies().iter().map(|copy| (copy.slot.get(), copy.row.get())).collect()
}

fn same_places(cache: &Cache, wanted: &[Vec<i64>], line: usize) {
    assert_eq!(cache.layer_count(), wanted.len(), "line {line}");
    for (layer, wanted) in wanted.iter().enumerate() {
        assert_eq!(cache.expert_count() as usize, wanted.len(), "line {line}");
        for (expert, &wanted) in wanted.iter().enumerate() {
            let slot = cache.slot_of(LayerId::from_index(layer), ExpertId::from_index(expert));
            let slot = slot.map_or(-1, |slot: SlotId| i64::from(slot.get()));
            assert_eq!(slot, wanted, "line {line}: layer {layer} expert {expert}");
        }
    }
}

#[test]
fn every_slot_and_copy_is_that_of_the_reference() {
    let cases = golden::cases::<LruCase>("lru.jsonl");
    assert_eq!(cases.len(), 60);
    for (line, case) in (1..).zip(&cases) {
        let mut cache = empty(case.experts, &case.pool_of_layer, &case.pool_sizes);
        let mut plan = Plan::new();
        for (number, step) in (1..).zip(&case.steps) {
            let at = format!("line {line} step {number}");
            commit(&mut cache, LayerId::new(step.layer), &step.experts, &mut plan, &at);
            let slots: Vec<u32> = plan.slots().iter().map(|slot| slot.get()).collect();
            assert_eq!((slots, copies(&plan)), (step.slots.clone(), step.copies.clone()), "{at}: {plan}");
        }
        same_places(&cache, &case.final_slot_of, line);
    }
}

#[test]
fn every_fetch_of_a_hybrid_step_is_that_of_the_reference() {
    let cases = golden::cases::<HybridCase>("hybrid.jsonl");
    assert_eq!(cases.len(), 60);
    let mut step_count = 0;
    for (line, case) in (1..).zip(&cases) {
        let mut cache = empty(case.experts, &case.pool_of_layer, &case.pool_sizes);
        let mut plan = Plan::new();
        let order = case.fetch_order();
        for (number, golden) in (1..).zip(&case.steps) {
            let at = format!("line {line} step {number}");
            let fetch = case.fetch(golden);
            let step = Step { misses: Misses::Hybrid { fetch, order }, ..Step::new(LayerId::new(golden.layer)) };
            commit(&mut cache, step, &golden.experts, &mut plan, &at);
            let on_cpu_is_negative = |slot: &SlotId| if slot.is_slot() { i64::from(slot.get()) } else { -1 };
            let slots: Vec<i64> = plan.slots().iter().map(on_cpu_is_negative).collect();
            assert_eq!(slots, golden.slots, "{at}: {plan}");
            let number_of = |expert: Option<ExpertId>| expert.map_or(-1, |expert| i64::from(expert.get()));
            let cpu_experts: Vec<i64> = plan.cpu_experts().map(number_of).collect();
            assert_eq!(cpu_experts, golden.cpu_experts, "{at}: {plan}");
            assert_eq!(copies(&plan), golden.copies, "{at}: {plan}");
            let counts = (plan.miss_count(), plan.copies().len());
            assert_eq!(counts, (golden.missing as usize, golden.fetched as usize), "{at}: {plan}");
            step_count += 1;
        }
        same_places(&cache, &case.final_slot_of, line);
    }
    assert_eq!(step_count, 918);
}
