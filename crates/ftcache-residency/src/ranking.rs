//! Victims by score: the same under every rule but LRU.
//!
//! Between two steps of a layer its experts' chances stand still. So each layer has them worked out once, when a victim
//! is wanted after its step, and its worst resident at hand; a victim is the worst of these by what the layer's
//! distance makes of it. That is a look at every layer of the pool, and one at every expert of the layer that gives the
//! victim up: the number of slots plays no part, and steps without misses rank nothing.

use ftcache_policy::{BitSet, Eviction, ExpertId, LayerId, PoolId, Recency, ScoreNumbers, Scores, SlotId};

use crate::map::{Expert, Map};
use crate::pool::Pool;

/// The key of an expert that is no candidate.
const NO_KEY: u64 = u64::MAX;

/// The resident of a layer that goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Worst {
    key: u64,
    expert: u32,
}

/// Of a layer whose keys are not true. Experts are fewer, so that no layer has this as its worst.
const UNRANKED: Worst = Worst { key: NO_KEY, expert: u32::MAX };

/// Who goes, by score.
#[derive(Debug, Clone)]
pub(crate) struct Ranking {
    scores: Scores,
    expert_count: usize,
    layers_of: Vec<Vec<LayerId>>,
    /// `keys[flat expert]`: of a candidate its chance, then its slot. Of a layer that is not ranked they say nothing.
    keys: Vec<u64>,
    /// `worst[layer]`, which may have gone since.
    worst: Vec<Worst>,
    /// Scratch: layers that have lost a candidate for now.
    struck: BitSet,
    /// The victims that were taken last, with the stamps that they had, then room: a length is what a copy has too.
    taken: Vec<(SlotId, u64)>,
    taken_count: usize,
}

/// What of a pool a ranking looks at.
pub(crate) struct Slots<'a> {
    pub(crate) pool: PoolId,
    pub(crate) recency: &'a mut Recency,
    /// The step that takes them, in which layer.
    pub(crate) number: u64,
    pub(crate) layer: LayerId,
    /// Slots that it uses beside those that it has stamped.
    pub(crate) spared: Option<&'a BitSet>,
}

impl Slots<'_> {
    fn uses(&self, slot: SlotId) -> bool {
        self.recency.stamp(slot) == self.number || self.spared.is_some_and(|spared| spared.contains(slot.index()))
    }
}

impl Ranking {
    pub(crate) fn new(scores: Scores, expert_count: u32, pool_of_layer: &[Option<PoolId>], pool_count: usize) -> Self {
        let layer_count = pool_of_layer.len();
        let mut layers_of = vec![Vec::new(); pool_count];
        for (layer, pool) in pool_of_layer.iter().enumerate() {
            if let Some(pool) = pool {
                layers_of[pool.index()].push(LayerId::from_index(layer));
            }
        }
        Self {
            scores,
            expert_count: expert_count as usize,
            layers_of,
            keys: vec![NO_KEY; layer_count * expert_count as usize],
            worst: vec![UNRANKED; layer_count],
            struck: BitSet::new(layer_count),
            // No call takes more than a layer has experts.
            taken: vec![(SlotId::ABSENT, 0); expert_count as usize],
            taken_count: 0,
        }
    }

    pub(crate) fn scores(&self) -> &Scores {
        &self.scores
    }

    /// Goes on from other scores.
    ///
    /// # Panics
    ///
    /// If they are not checked.
    pub(crate) fn set_scores(&mut self, numbers: &ScoreNumbers) {
        self.scores.set_numbers(numbers).expect("the numbers are checked");
        self.unrank_all();
    }

    pub(crate) fn rule(&self) -> Eviction {
        self.scores.rule()
    }

    /// The same scores for other pools.
    pub(crate) fn for_pools(&self, expert_count: u32, pool_of_layer: &[Option<PoolId>], pool_count: usize) -> Self {
        Self::new(self.scores.clone(), expert_count, pool_of_layer, pool_count)
    }

    /// Counts what a step uses.
    pub(crate) fn count(&mut self, layer: LayerId, routes: &[ExpertId], continues: bool) {
        self.scores.count(layer, routes, continues);
        self.unrank(layer);
    }

    /// A layer has got residents that may be victims, or its chances have changed. That it has lost some need not be
    /// said.
    #[inline]
    pub(crate) fn unrank(&mut self, layer: LayerId) {
        self.worst[layer.index()] = UNRANKED;
    }

    /// All layers have got others.
    pub(crate) fn unrank_all(&mut self) {
        self.worst.fill(UNRANKED);
    }

    /// Takes `count` victims, in their order, and stamps them. Returns how many were free; the slots are
    /// [`taken`](Self::taken).
    ///
    /// # Panics
    ///
    /// If there are fewer: a step must be counted before it is admitted.
    pub(crate) fn take_victims(&mut self, count: usize, slots: Slots<'_>, map: &Map) -> usize {
        let mut places = self.taken.iter_mut();
        let (free_count, idle_count) = slots.recency.take_idle(count, slots.number, slots.spared, |slot, stamp| {
            *places.next().expect("a layer has as many experts") = (slot, stamp);
        });
        if idle_count < count {
            // What the step uses is no candidate now, and is one later.
            self.unrank(slots.layer);
            for index in 0..self.layers_of[slots.pool.index()].len() {
                let layer = self.layers_of[slots.pool.index()][index];
                if self.worst[layer.index()] == UNRANKED {
                    self.rank(layer, &slots, map.layer(layer));
                }
            }
            for index in idle_count..count {
                let slot = self.take_worst(&slots, map);
                self.taken[index] = (slot, slots.recency.take(slot, slots.number));
            }
        }
        self.unrank(slots.layer);
        let worst = &mut self.worst;
        self.struck.take_lowest(usize::MAX, |layer| worst[layer] = UNRANKED);
        self.taken_count = count;
        free_count
    }

    /// The victims that were taken last, with the stamps that they had.
    pub(crate) fn taken(&self) -> &[(SlotId, u64)] {
        &self.taken[..self.taken_count]
    }

    /// The worst of the layers' worst, if it is still a candidate: another layer's that is gone would only have hidden a
    /// better one.
    fn take_worst(&mut self, slots: &Slots<'_>, map: &Map) -> SlotId {
        loop {
            let mut lowest = (u64::MAX, u32::MAX);
            let mut lowest_layer = None;
            for &layer in &self.layers_of[slots.pool.index()] {
                let worst = self.worst[layer.index()];
                if worst.key != NO_KEY {
                    let key = (self.scores.score((worst.key >> 32) as u32, layer, slots.layer), worst.key as u32);
                    if key < lowest {
                        (lowest, lowest_layer) = (key, Some(layer));
                    }
                }
            }
            let layer = lowest_layer.expect("no more victims are taken than there are candidates");
            let expert = self.worst[layer.index()].expert;
            self.keys[layer.index() * self.expert_count + expert as usize] = NO_KEY;
            self.worst[layer.index()] = self.find_worst(layer);
            let slot = SlotId::new(lowest.1);
            if map.layer(layer)[expert as usize].place.holds(slot) && !slots.recency.is_pinned(slot) {
                if !slots.uses(slot) {
                    return slot;
                }
                // Spared now and no more later; or it was idle, is taken, and gets its new owner when all are.
                self.struck.insert(layer.index());
            }
        }
    }

    /// Works out the keys of a layer's candidates.
    fn rank(&mut self, layer: LayerId, slots: &Slots<'_>, experts: &[Expert]) {
        let keys = &mut self.keys[layer.index() * self.expert_count..][..self.expert_count];
        let chances = self.scores.chances(layer);
        // What a step uses beside slots that were idle is of its own layer; others are struck when their turn comes.
        let may_be_used = layer == slots.layer;
        let any_pinned = slots.recency.pinned_count() > 0;
        for ((expert, known), key) in (0..).zip(experts).zip(&mut *keys) {
            // Of those in no slot too: whether an expert is in one is a coin toss to the processor.
            let of_slot = key_of(chances.of(ExpertId::new(expert)), known.place.slot());
            *key = if known.place.is_slot() { of_slot } else { NO_KEY };
        }
        if may_be_used || any_pinned {
            for (known, key) in experts.iter().zip(keys).filter(|(known, _)| known.place.is_slot()) {
                let slot = known.place.slot();
                if may_be_used && slots.uses(slot) || slots.recency.is_pinned(slot) {
                    *key = NO_KEY;
                }
            }
        }
        self.worst[layer.index()] = self.find_worst(layer);
    }

    fn find_worst(&self, layer: LayerId) -> Worst {
        let keys = &self.keys[layer.index() * self.expert_count..][..self.expert_count];
        // The lowest first, and then where it is: a loop over keys alone is a fast one.
        let key = keys.iter().fold(NO_KEY, |lowest, &key| lowest.min(key));
        let expert = if key == NO_KEY { 0 } else { keys.iter().position(|&it| it == key).expect("it is there") };
        Worst { key, expert: expert as u32 }
    }

    /// Recomputes the keys of every layer that is ranked; for tests.
    ///
    /// # Errors
    ///
    /// A candidate without its key, or a layer whose worst is another.
    pub(crate) fn check(&self, map: &Map, pools: &[Pool]) -> Result<(), String> {
        for (pool, layers) in pools.iter().zip(&self.layers_of) {
            for &layer in layers {
                let worst = self.worst[layer.index()];
                if worst == UNRANKED {
                    continue;
                }
                if worst != self.find_worst(layer) {
                    return Err(format!("layer {layer} has another worst than {worst:?}"));
                }
                let keys = &self.keys[layer.index() * self.expert_count..][..self.expert_count];
                let chances = self.scores.chances(layer);
                for ((expert, known), &key) in (0..).zip(map.layer(layer)).zip(keys) {
                    if !known.place.is_slot() || pool.recency.is_pinned(known.place.slot()) {
                        continue;
                    }
                    let slot = known.place.slot();
                    let right = key_of(chances.of(ExpertId::new(expert)), slot);
                    // Slots of stamp 1 are found without a ranking.
                    if key != right && pool.recency.stamp(slot) != Recency::COLD {
                        return Err(format!("layer {layer} expert {expert} has key {key:x} and not {right:x}"));
                    }
                }
            }
        }
        Ok(())
    }
}

/// Keys of one layer are in the order of its scores, then of slots.
#[inline]
fn key_of(chance: u32, slot: SlotId) -> u64 {
    u64::from(chance) << 32 | u64::from(slot.get())
}
