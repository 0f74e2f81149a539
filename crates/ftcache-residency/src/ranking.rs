//! Victims by score: the same under every rule but LRU.
//!
//! Between two steps of a layer its experts' chances stand still. So each layer has its worst resident worked out once,
//! when a victim is wanted after its step, and again when it has lost that; a victim is the worst of these by what the
//! layer's distance makes of it. That is a look at every layer of the pool, and one at every resident of the layer that
//! gave the last victim up: the number of slots plays no part, and steps without misses rank nothing.
//!
//! No key is kept but those of the worst: what a layer's other residents come to is sooner worked out again than
//! fetched from memory.

use ftcache_policy::{BitSet, Eviction, ExpertId, LayerId, PoolId, Recency, ScoreNumbers, Scores, SlotId};

use crate::map::{Expert, Map};
use crate::pool::Pool;

const WORD_BITS: usize = 64;

/// The key of an expert that is no candidate.
const NO_KEY: u64 = u64::MAX;

/// The resident of a layer that goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Worst {
    /// Its chance, then its slot.
    key: u64,
    expert: u32,
}

impl Worst {
    /// Of a layer that is not ranked.
    const UNKNOWN: Self = Self { key: NO_KEY, expert: u32::MAX };

    /// Of a layer without candidates.
    const NOBODY: Self = Self { key: NO_KEY, expert: u32::MAX - 1 };

    #[inline]
    fn chance(self) -> u32 {
        (self.key >> 32) as u32
    }

    #[inline]
    fn slot(self) -> SlotId {
        SlotId::new(self.key as u32)
    }

    #[inline]
    fn lower(&mut self, key: u64, expert: ExpertId) {
        if key < self.key {
            *self = Self { key, expert: expert.get() };
        }
    }
}

/// Who goes, by score.
#[derive(Debug, Clone)]
pub(crate) struct Ranking {
    scores: Scores,
    layers_of: Vec<Vec<LayerId>>,
    /// `residents[layer * word_count + expert / 64]`: a bit for every candidate, and for some that are none any more.
    residents: Vec<u64>,
    /// Of a layer.
    word_count: usize,
    /// Experts of a layer.
    expert_count: usize,
    /// `worst[layer]`: no candidate has a lower key. It may itself be none any more.
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
        let expert_count = expert_count as usize;
        let word_count = expert_count.div_ceil(WORD_BITS);
        let mut ranking = Self {
            scores,
            layers_of,
            residents: vec![0; layer_count * word_count],
            word_count,
            expert_count,
            worst: vec![Worst::UNKNOWN; layer_count],
            struck: BitSet::new(layer_count),
            // No call takes more than a layer has experts.
            taken: vec![(SlotId::ABSENT, 0); expert_count],
            taken_count: 0,
        };
        ranking.unrank_all();
        ranking
    }

    pub(crate) fn scores(&self) -> &Scores {
        &self.scores
    }

    /// Goes on from other scores and with other residents.
    ///
    /// # Panics
    ///
    /// If the scores are not checked.
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
        self.worst[layer.index()] = Worst::UNKNOWN;
    }

    /// Where an expert's bit is: in which word, and there.
    #[inline]
    fn bit(&self, layer: LayerId, expert: ExpertId) -> (usize, u64) {
        let index = expert.index();
        (layer.index() * self.word_count + index / WORD_BITS, 1 << (index % WORD_BITS))
    }

    /// An expert has got a slot, or may lose it again. That one has lost its slot, or may not, need not be said.
    #[inline]
    pub(crate) fn add(&mut self, layer: LayerId, expert: ExpertId, slot: SlotId) {
        let (word, bit) = self.bit(layer, expert);
        self.residents[word] |= bit;
        let worst = &mut self.worst[layer.index()];
        if *worst != Worst::UNKNOWN {
            worst.lower(key_of(self.scores.chances(layer).of(expert), slot), expert);
        }
    }

    /// These experts have got the slots that were taken last.
    pub(crate) fn add_taken(&mut self, layer: LayerId, rows: &[u32]) {
        for (index, &row) in rows.iter().enumerate() {
            self.add(layer, ExpertId::new(row), self.taken[index].0);
        }
    }

    /// Any expert may have got a slot.
    pub(crate) fn unrank_all(&mut self) {
        self.worst.fill(Worst::UNKNOWN);
        for (index, word) in self.residents.iter_mut().enumerate() {
            let first = index % self.word_count * WORD_BITS;
            *word = u64::MAX >> WORD_BITS.saturating_sub(self.expert_count - first);
        }
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
        for index in idle_count..count {
            let slot = self.take_worst(&slots, map);
            self.taken[index] = (slot, slots.recency.take(slot, slots.number));
        }
        let worst = &mut self.worst;
        self.struck.take_lowest(usize::MAX, |layer| worst[layer] = Worst::UNKNOWN);
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
            let mut lowest = (u64::MAX, SlotId::ABSENT);
            let mut lowest_layer = None;
            for index in 0..self.layers_of[slots.pool.index()].len() {
                let layer = self.layers_of[slots.pool.index()][index];
                if self.worst[layer.index()] == Worst::UNKNOWN {
                    self.rank(layer, slots, map.layer(layer));
                }
                let worst = self.worst[layer.index()];
                if worst != Worst::NOBODY {
                    let key = (self.scores.score(worst.chance(), layer, slots.layer), worst.slot());
                    if key < lowest {
                        (lowest, lowest_layer) = (key, Some(layer));
                    }
                }
            }
            let layer = lowest_layer.expect("no more victims are taken than there are candidates");
            let worst = std::mem::replace(&mut self.worst[layer.index()], Worst::UNKNOWN);
            let (expert, slot) = (ExpertId::new(worst.expert), worst.slot());
            let is_there = map.layer(layer)[expert.index()].place.holds(slot);
            if is_there && !slots.recency.is_pinned(slot) && !slots.uses(slot) {
                let (word, bit) = self.bit(layer, expert);
                self.residents[word] &= !bit;
                return slot;
            }
        }
    }

    /// Finds a layer's worst.
    fn rank(&mut self, layer: LayerId, slots: &Slots<'_>, experts: &[Expert]) {
        let chances = self.scores.chances(layer);
        let (mut worst, mut spared) = (Worst::NOBODY, NO_KEY);
        let words = &mut self.residents[layer.index() * self.word_count..][..self.word_count];
        for (word, first) in words.iter_mut().zip((0..).step_by(WORD_BITS)) {
            let mut left = *word;
            while left != 0 {
                let bit = left & left.wrapping_neg();
                let expert = ExpertId::new(first + left.trailing_zeros());
                left ^= bit;
                // Most are told by this alone, and no other memory is read for them.
                if chances.at_least(expert) > worst.chance() {
                    continue;
                }
                let place = experts[expert.index()].place;
                if !place.is_slot() {
                    *word ^= bit;
                    continue;
                }
                let slot = place.slot();
                let key = key_of(chances.of(expert), slot);
                if key < worst.key && !slots.recency.is_pinned(slot) {
                    if slots.uses(slot) {
                        spared = spared.min(key);
                    } else {
                        worst = Worst { key, expert: expert.get() };
                    }
                }
            }
        }
        if spared < worst.key {
            // It is one later.
            self.struck.insert(layer.index());
        }
        self.worst[layer.index()] = worst;
    }

    /// Looks at every resident; for tests.
    ///
    /// # Errors
    ///
    /// A candidate without its bit, one that goes before its layer's worst, or a worst with another key than its own.
    pub(crate) fn check(&self, map: &Map, pools: &[Pool]) -> Result<(), String> {
        for (pool, layers) in pools.iter().zip(&self.layers_of) {
            for &layer in layers {
                let worst = self.worst[layer.index()];
                let chances = self.scores.chances(layer);
                for (expert, known) in (0..).map(ExpertId::new).zip(map.layer(layer)) {
                    // Slots of stamp 1 are found without a ranking.
                    let slot = known.place.slot();
                    if !known.place.is_slot()
                        || pool.recency.is_pinned(slot)
                        || pool.recency.stamp(slot) == Recency::COLD
                    {
                        continue;
                    }
                    let (word, bit) = self.bit(layer, expert);
                    if self.residents[word] & bit == 0 {
                        return Err(format!("layer {layer} expert {expert} is not known to be in slot {slot}"));
                    }
                    let key = key_of(chances.of(expert), slot);
                    let is_worst = (worst.expert, worst.slot()) == (expert.get(), slot);
                    if worst != Worst::UNKNOWN && (key < worst.key || is_worst && key != worst.key) {
                        return Err(format!("layer {layer} expert {expert} has key {key:x}; its worst is {worst:x?}"));
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
