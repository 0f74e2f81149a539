//! ftcache and ferrox-core decide the same: every slot, every copy, every count.
//!
//! Both follow the same reference, written apart from each other; ferrox-core scans all slots for each victim.

#![forbid(unsafe_code)]

use ferrox_core::expert_cache::ExpertCache;
use ftcache_policy::{ExpertId, LayerId, PoolId, SlotId};
use ftcache_residency::{Cache, Plan};
use ftcache_testkit::Rng;
use ftcache_testkit::generators::{Decode, skewed_routes};

struct Both {
    ftcache: Cache,
    plan: Plan,
    ferrox: ExpertCache,
}

impl Both {
    fn new(layer_count: usize, expert_count: u32, slot_count: u32) -> Self {
        let pool_of_layer = vec![Some(PoolId::new(0)); layer_count];
        Self {
            ftcache: Cache::with_pools(expert_count, &pool_of_layer, &[slot_count]).unwrap(),
            plan: Plan::new(),
            ferrox: ExpertCache::new(layer_count, expert_count as usize, slot_count as usize),
        }
    }

    fn step(&mut self, layer: u32, routes: &[ExpertId]) {
        self.ftcache.ensure(LayerId::new(layer), routes, &mut self.plan).unwrap().commit();
        let numbers: Vec<u32> = routes.iter().map(|route| route.get()).collect();
        let theirs = self.ferrox.ensure(layer, &numbers);

        let plan = &self.plan;
        let slots: Vec<Option<u32>> = plan.slots().iter().map(|slot| Some(slot.get())).collect();
        assert_eq!(slots, theirs.slots, "slots of {plan}");
        let (targets, rows): (Vec<u32>, Vec<u32>) =
            plan.copies().iter().map(|copy| (copy.slot.get(), copy.row.get())).unzip();
        assert_eq!(targets, theirs.copy.dst_slots, "slots copied to by {plan}");
        assert_eq!(rows, theirs.copy.src_rows, "rows copied by {plan}");
        assert_eq!((plan.distinct_count(), plan.miss_count()), (theirs.active, theirs.missing), "counts of {plan}");
    }

    fn forget(&mut self, slot: u32) {
        let ours = self.ftcache.forget(PoolId::new(0), SlotId::new(slot));
        let theirs = self.ferrox.forget_slot(slot);
        assert_eq!(
            ours.map(|(layer, expert)| (layer.get(), expert.get())),
            theirs.map(|id| (id.layer, id.expert)),
            "owner of slot {slot}"
        );
    }

    /// Who is where at the end, and the counts of every layer.
    fn finish(&self) {
        self.ftcache.check().unwrap();
        for slot in 0..self.ferrox.cache_size() as u32 {
            let ours = self.ftcache.expert_of(PoolId::new(0), SlotId::new(slot));
            let theirs = self.ferrox.resident_in(slot);
            assert_eq!(
                ours.map(|(layer, expert)| (layer.get(), expert.get())),
                theirs.map(|id| (id.layer, id.expert)),
                "owner of slot {slot}"
            );
        }
        for layer in 0..self.ferrox.num_layers() as u32 {
            let (ours, theirs) = (self.ftcache.layer_stats(LayerId::new(layer)), self.ferrox.layer_stats(layer));
            let theirs = (theirs.calls, theirs.active, theirs.missing);
            assert_eq!((ours.steps, ours.distinct, ours.misses), theirs, "counts of layer {layer}");
        }
    }
}

#[test]
fn a_decode_at_full_size() {
    for (slot_count, request_count, token_count) in [(2_100, 1, 40), (8_192, 1, 40), (2_100, 32, 2)] {
        let mut both = Both::new(48, 512, slot_count);
        let mut decode = Decode::new(1, 48, 512, 10, request_count);
        for _ in 0..token_count {
            for (layer, routes) in decode.next_token().iter().enumerate() {
                both.step(layer as u32, routes);
            }
        }
        both.finish();
    }
}

/// Steps of any width and order of layers, repeated ids, pools from one layer's experts upward, slots freed between.
#[test]
fn small_pools_under_wide_steps() {
    for seed in 0..8 {
        let mut rng = Rng::new(seed);
        let slot_count = 16 + rng.below(49) as u32;
        let mut both = Both::new(4, 16, slot_count);
        for _ in 0..1_000 {
            let layer = rng.below(4) as u32;
            let width = 1 + rng.below(24) as usize;
            both.step(layer, &skewed_routes(&mut rng, 16, width));
            if rng.chance(1, 8) {
                both.forget(rng.below(u64::from(slot_count)) as u32);
            }
        }
        both.finish();
    }
}
