//! The golden vectors: runs of the reference kernels.

use super::*;
use ftcache_testkit::golden::{self, HybridCase, LruCase};

fn same_places(model: &Reference, wanted: &[Vec<i64>], at: &str) {
    for (layer, wanted) in wanted.iter().enumerate() {
        for (expert, &wanted) in wanted.iter().enumerate() {
            let slot = model.slot_of(layer as u32, expert as u32).map_or(-1, i64::from);
            assert_eq!(slot, wanted, "{at}: layer {layer} expert {expert}");
        }
    }
}

#[test]
fn plain_steps_are_those_of_the_reference_kernel() {
    let cases = golden::cases::<LruCase>("lru.jsonl");
    assert_eq!(cases.len(), 60);
    for (line, case) in cases.iter().enumerate() {
        let mut model = Reference::new(case.experts, &case.pool_of_layer, &case.pool_sizes);
        for (index, step) in case.steps.iter().enumerate() {
            let at = format!("line {} step {}", line + 1, index + 1);
            let answer = commit(&mut model, &Step::decode(step.layer, &step.experts));
            assert_eq!((answer.slots, answer.copies), (step.slots.clone(), step.copies.clone()), "{at}");
        }
        same_places(&model, &case.final_slot_of, &format!("line {}", line + 1));
    }
}

#[test]
fn hybrid_steps_are_those_of_the_reference_kernel() {
    let cases = golden::cases::<HybridCase>("hybrid.jsonl");
    assert_eq!(cases.len(), 60);
    let mut step_count = 0;
    for (line, case) in cases.iter().enumerate() {
        let mut model = Reference::new(case.experts, &case.pool_of_layer, &case.pool_sizes);
        let order = match case.fetch_order() {
            FetchOrder::Recency => Order::Recency,
            FetchOrder::LowestId => Order::LowestId,
        };
        for (index, golden) in case.steps.iter().enumerate() {
            let at = format!("line {} step {}", line + 1, index + 1);
            let misses = Misses::Hybrid(case.fetch(golden), order);
            let answer = commit(&mut model, &Step { misses, ..Step::decode(golden.layer, &golden.experts) });
            let slots: Vec<i64> = answer.slots.iter().map(|&slot| if slot == CPU { -1 } else { slot.into() }).collect();
            let on_cpu = |(&slot, &route): (&u32, &u32)| if slot == CPU { i64::from(route) } else { -1 };
            let cpu_experts: Vec<i64> = answer.slots.iter().zip(&golden.experts).map(on_cpu).collect();
            assert_eq!((slots, cpu_experts), (golden.slots.clone(), golden.cpu_experts.clone()), "{at}");
            assert_eq!(answer.copies, golden.copies, "{at}");
            let counts = (answer.missing.len() as u32, answer.copies.len() as u32);
            assert_eq!(counts, (golden.missing, golden.fetched), "{at}");
            step_count += 1;
        }
        same_places(&model, &case.final_slot_of, &format!("line {}", line + 1));
    }
    assert_eq!(step_count, 918);
}
