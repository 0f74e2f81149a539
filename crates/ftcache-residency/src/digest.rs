//! The residency as one number, for ranks and tests to compare.

use ftcache_policy::SlotId;

use crate::Cache;

impl Cache {
    /// 64 bits of who is where, with which stamp, after which step, and of what victims go by: equal if all that is,
    /// else other but for one time in 2^64. Neither pins count nor what hybrid steps remember.
    ///
    /// The sum over all slots in use, wrapping, of `mix(mix(slot << 32 | expert) + stamp)`, and `mix(mix(2^64 - 1) +
    /// step)`. `slot` is counted over all pools, `expert` is flat, and `mix` is a step of SplitMix64. A sum has no
    /// order, so a device can add the slots up as it likes. Under other rules than LRU what was counted is added:
    /// `mix` of the sum of `mix(mix(place) + number)` over the numbers and places of
    /// [`Scores::each_number`](ftcache_policy::Scores::each_number).
    pub fn digest(&self) -> u64 {
        let mut sum = mix(mix(u64::MAX).wrapping_add(self.step));
        for pool in &self.pools {
            for slot in (0..pool.recency.slot_count()).map(SlotId::new) {
                if let Some(expert) = self.map.expert_of(pool.first, slot) {
                    let place = u64::from(pool.first + slot.get()) << 32 | u64::from(expert.get());
                    sum = sum.wrapping_add(mix(mix(place).wrapping_add(pool.recency.stamp(slot))));
                }
            }
        }
        if let Some(ranking) = &self.ranking {
            let mut counted = 0_u64;
            ranking.scores().each_number(|place, number| {
                counted = counted.wrapping_add(mix(mix(place).wrapping_add(number)));
            });
            sum = sum.wrapping_add(mix(counted));
        }
        sum
    }
}

/// SplitMix64 (Steele, Lea and Flood, 2014). Without the constant that comes first, the sum of small numbers' would
/// often be that of others.
fn mix(z: u64) -> u64 {
    let mut z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
