//! What a cache of so many bytes would have hit, had it seen a trace: by recency, by frequency, or knowing what comes.
//!
//! Made to be compared with: it decides nothing for the real cache and shares no code with it. One size for every
//! expert, and a capacity in the same unit, make it a replay by slots. `tests/published.rs` holds it against what
//! others published for their own recordings.

use std::collections::BTreeSet;

use crate::{Events, Phase};

/// Which expert is given up when the bytes are full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BytePolicy {
    /// The one whose last use is oldest.
    Lru,
    /// The one used least. Uses count for ever, also those before it was given up; of equals, the one whose last use is
    /// oldest.
    Lfu,
    /// The one whose next use is farthest: what no policy that has to admit every expert can beat, as long as all have
    /// the same size. Of those never used again, the one whose last use is oldest.
    Belady,
}

/// Who shares the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ByteScope {
    /// All layers.
    #[default]
    Unified,
    /// Each layer has the capacity divided by the number of layers, rounded down, whatever the size of its experts.
    PerLayer,
}

/// A cache of bytes that holds whole experts and admits every one that is used.
///
/// An event is atomic. Each of its experts is looked up once, against what was held before. Then all of them are held,
/// even if they are over the capacity together, and others are given up until the rest fits; none of the event's own
/// is. An expert that would not fit is thus held until the next event of those who share its bytes.
///
/// ```
/// use ftcache_trace::{BytePolicy, ByteReplay, ByteScope, Events, Synthetic};
///
/// let trace = Synthetic { tokens: 64, layers: 4, experts: 16, top_k: 2, ..Synthetic::default() }.trace()?;
/// let events = Events::passes(&trace);
/// // Experts of the first two layers are wider.
/// let expert_bytes = [300, 300, 200, 200];
/// let hits = |policy| {
///     let replay = ByteReplay { policy, scope: ByteScope::Unified, capacity_bytes: 6_000 };
///     replay.run(&events, &expert_bytes).all.hits
/// };
/// assert!(hits(BytePolicy::Lru) < hits(BytePolicy::Belady));
/// # Ok::<(), ftcache_trace::TraceError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ByteReplay {
    /// Which expert is given up.
    pub policy: BytePolicy,
    /// Who shares the bytes.
    pub scope: ByteScope,
    /// Bytes over all layers.
    pub capacity_bytes: u64,
}

/// What a replay counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ByteCounts {
    /// Over all events.
    pub all: ByteHits,
    /// Over all events but those of a prompt ([`Phase::Prefill`]).
    pub decode: ByteHits,
}

/// Look-ups and what became of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ByteHits {
    /// Experts looked up, each once an event.
    pub uses: u64,
    /// Those held before the event.
    pub hits: u64,
    /// Bytes of those that were not; more than 64 bits hold are [`u64::MAX`].
    pub read_bytes: u64,
}

impl ByteHits {
    /// Hits of a hundred uses; 0 if there was no use.
    pub fn hit_percent(&self) -> f64 {
        if self.uses == 0 { 0.0 } else { 100.0 * self.hits as f64 / self.uses as f64 }
    }

    fn count(&mut self, is_hit: bool, bytes: u64) {
        self.uses += 1;
        if is_hit {
            self.hits += 1;
        } else {
            self.read_bytes = self.read_bytes.saturating_add(bytes);
        }
    }
}

impl ByteReplay {
    /// Replays events, of which each expert of a layer has the same bytes: `expert_bytes[layer]`, as
    /// [`Header::expert_bytes`](crate::Header::expert_bytes) has them.
    ///
    /// # Panics
    ///
    /// If `expert_bytes` is not as long as there are layers.
    pub fn run(&self, events: &Events, expert_bytes: &[u64]) -> ByteCounts {
        let layers = events.layers() as usize;
        assert_eq!(expert_bytes.len(), layers, "each layer has a size");
        let (shares, capacity) = match self.scope {
            ByteScope::Unified => (1, self.capacity_bytes),
            ByteScope::PerLayer => (layers, self.capacity_bytes / layers as u64),
        };
        let next_events = match self.policy {
            BytePolicy::Belady => next_events(events),
            BytePolicy::Lru | BytePolicy::Lfu => Vec::new(),
        };
        let mut held = Held::new(events, expert_bytes, shares);
        let mut use_counts = vec![0; held.ranks.len()];
        let mut counts = ByteCounts::default();
        let mut stamp = 0;
        for event in events.iter() {
            let (layer, first_stamp) = (event.layer as usize, stamp);
            for &expert in event.experts {
                let entry = held.entry(layer, expert);
                use_counts[entry] += 1;
                let urgency = match self.policy {
                    BytePolicy::Lru => 0,
                    BytePolicy::Lfu => use_counts[entry],
                    BytePolicy::Belady => u64::MAX - next_events[stamp as usize],
                };
                let is_hit = held.hold(entry, Rank { urgency, stamp });
                stamp += 1;
                counts.all.count(is_hit, expert_bytes[layer]);
                if event.phase != Phase::Prefill {
                    counts.decode.count(is_hit, expert_bytes[layer]);
                }
            }
            held.give_up(layer, capacity, first_stamp);
        }
        counts
    }
}

/// For each use in turn, the event of the same expert's next use; `u64::MAX` if there is none.
fn next_events(events: &Events) -> Vec<u64> {
    let mut next_events = vec![u64::MAX; events.use_count() as usize];
    let mut last_use = vec![None; events.layers() as usize * events.experts() as usize];
    let mut use_index = 0;
    for (index, event) in events.iter().enumerate() {
        for &expert in event.experts {
            let entry = event.layer as usize * events.experts() as usize + usize::from(expert);
            if let Some(before) = last_use[entry].replace(use_index) {
                next_events[before] = index as u64;
            }
            use_index += 1;
        }
    }
    next_events
}

/// The lowest goes first. No two are equal, since each use has a stamp of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    urgency: u64,
    /// Uses before this one.
    stamp: u64,
}

/// Who is held, by those who share bytes.
struct Held<'a> {
    experts: usize,
    expert_bytes: &'a [u64],
    /// `ranks[layer * experts + expert]`, of those that are held.
    ranks: Vec<Option<Rank>>,
    shares: Vec<Share>,
}

/// Bytes of their own, and who lies in them.
#[derive(Clone, Default)]
struct Share {
    queue: BTreeSet<(Rank, usize)>,
    /// Wider than a size, so that no sum of sizes is too large.
    bytes: u128,
}

impl<'a> Held<'a> {
    fn new(events: &Events, expert_bytes: &'a [u64], shares: usize) -> Self {
        let experts = events.experts() as usize;
        let ranks = vec![None; expert_bytes.len() * experts];
        Self { experts, expert_bytes, ranks, shares: vec![Share::default(); shares] }
    }

    fn entry(&self, layer: usize, expert: u16) -> usize {
        layer * self.experts + usize::from(expert)
    }

    fn share_of(&mut self, layer: usize) -> &mut Share {
        let index = if self.shares.len() == 1 { 0 } else { layer };
        &mut self.shares[index]
    }

    /// Holds an expert at a new rank; says whether it was held before.
    fn hold(&mut self, entry: usize, rank: Rank) -> bool {
        let layer = entry / self.experts;
        let bytes = u128::from(self.expert_bytes[layer]);
        let before = self.ranks[entry].replace(rank);
        let share = self.share_of(layer);
        match before {
            Some(before) => _ = share.queue.remove(&(before, entry)),
            None => share.bytes += bytes,
        }
        share.queue.insert((rank, entry));
        before.is_some()
    }

    /// Gives up what is over the capacity of a layer's share, but nothing used at `first_stamp` or since.
    fn give_up(&mut self, layer: usize, capacity: u64, first_stamp: u64) {
        let (experts, sizes) = (self.experts, self.expert_bytes);
        let share = self.share_of(layer);
        let mut victims = Vec::new();
        let mut bytes = share.bytes;
        for &(rank, entry) in share.queue.iter().filter(|(rank, _)| rank.stamp < first_stamp) {
            if bytes <= u128::from(capacity) {
                break;
            }
            bytes -= u128::from(sizes[entry / experts]);
            victims.push((rank, entry));
        }
        share.bytes = bytes;
        victims.iter().for_each(|victim| _ = share.queue.remove(victim));
        victims.iter().for_each(|&(_, entry)| self.ranks[entry] = None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Header, Segment, Shape, Synthetic, Trace};

    const POLICIES: [BytePolicy; 3] = [BytePolicy::Lru, BytePolicy::Lfu, BytePolicy::Belady];

    /// Decoded tokens of `layers` layers, their ids one after another.
    fn events(layers: u32, top_k: u32, ids: &[u16]) -> Events {
        Events::passes(&trace(layers, top_k, ids, 0))
    }

    /// The same, of which the first tokens are a prompt.
    fn trace(layers: u32, top_k: u32, ids: &[u16], prompt: u64) -> Trace {
        let tokens = ids.len() as u64 / u64::from(layers * top_k);
        let segments = [("prompt", Phase::Prefill, 0, prompt), ("answer", Phase::Decode, prompt, tokens - prompt)];
        let segments = segments.into_iter().filter(|&(.., tokens)| tokens > 0);
        let segments = segments.map(|(name, phase, start, tokens)| Segment::new(name, phase, start, tokens)).collect();
        Trace::new(Header::new("toy", Shape { tokens, layers, top_k, experts: 16 }, segments), ids.to_vec()).unwrap()
    }

    fn run(policy: BytePolicy, scope: ByteScope, capacity_bytes: u64, events: &Events, bytes: &[u64]) -> ByteCounts {
        ByteReplay { policy, scope, capacity_bytes }.run(events, bytes)
    }

    /// Hits of a unified cache up to each token, for a policy that does not look ahead.
    #[track_caller]
    fn check(policy: BytePolicy, capacity: u64, (layers, top_k, ids): (u32, u32, &[u16]), bytes: &[u64], hits: &[u64]) {
        let width = (layers * top_k) as usize;
        let hits_of = |tokens: usize| {
            let events = events(layers, top_k, &ids[..tokens * width]);
            run(policy, ByteScope::Unified, capacity, &events, bytes).all.hits
        };
        let seen: Vec<u64> = (1..=ids.len() / width).map(hits_of).collect();
        assert_eq!(seen, hits, "hits up to each token, {policy:?}");
    }

    #[test]
    fn recency_gives_up_the_oldest_use() {
        // 2 takes the place of 0, then 0 that of 2, since 1 was used again.
        check(BytePolicy::Lru, 2, (1, 1, &[0, 1, 2, 1, 0, 1]), &[1], &[0, 0, 0, 1, 1, 2]);
    }

    #[test]
    fn uses_count_also_while_an_expert_is_absent() {
        // 1 and 2 take turns beside 0, which was used twice. With two uses each, 0 is the oldest and goes for 2; were
        // uses forgotten with the expert, 1 would go.
        check(BytePolicy::Lfu, 2, (1, 1, &[0, 0, 1, 2, 1, 2, 1, 0]), &[1], &[0, 1, 1, 1, 1, 1, 2, 2]);
    }

    #[test]
    fn what_comes_is_known_and_admission_is_not_refused() {
        let hits = |ids| run(BytePolicy::Belady, ByteScope::Unified, 2, &events(1, 1, ids), &[1]).all.hits;
        // 2 is never used again, but takes the place of 1, whose next use is farther than that of 0.
        assert_eq!(hits(&[0, 1, 2, 0, 1]), 1);
        // Recency would keep 1; the next use of 0 is the nearer.
        assert_eq!(hits(&[0, 1, 2, 0, 2, 0]), 3);
    }

    #[test]
    fn an_event_keeps_its_own() {
        // Three at once in room for two: they stay until 2 is used, then the oldest goes, which is 0.
        for policy in [BytePolicy::Lru, BytePolicy::Lfu] {
            let ids = [0, 1, 2, 2, 1, 3];
            check(policy, 2, (1, 3, &ids), &[1], &[0, 2]);
            let hits = |capacity| run(policy, ByteScope::Unified, capacity, &events(1, 3, &ids), &[1]).all.hits;
            assert_eq!([hits(0), hits(1), hits(2)], [2, 2, 2]);
        }
    }

    #[test]
    fn a_wide_expert_takes_the_place_of_several() {
        // Layer 0 has experts of 2 bytes, layer 1 of 5. Six bytes: 0.0 goes for 1.0, and then 1.0 for 0.0.
        let each = events(2, 1, &[0, 0, 0, 0]);
        let counts = run(BytePolicy::Lru, ByteScope::Unified, 6, &each, &[2, 5]);
        assert_eq!(counts.all, ByteHits { uses: 4, hits: 0, read_bytes: 14 });
        let counts = run(BytePolicy::Lru, ByteScope::Unified, 7, &each, &[2, 5]);
        assert_eq!(counts.all, ByteHits { uses: 4, hits: 2, read_bytes: 7 });
        // Two of layer 0 and one of layer 1 are 9 bytes. Of 8, one narrow expert is enough: 0.2 stays.
        let two = [1, 0, 2, 0, 2, 0];
        let counts = run(BytePolicy::Lru, ByteScope::Unified, 8, &events(2, 1, &two), &[2, 5]);
        assert_eq!(counts.all, ByteHits { uses: 6, hits: 3, read_bytes: 9 });
    }

    #[test]
    fn a_layer_has_its_share_and_no_remainder() {
        // Two layers, each of which takes turns between three experts: two bytes hit nothing, three all.
        let ids: Vec<u16> = (0..12).map(|index| index / 2 % 3).collect();
        let hits =
            |capacity| run(BytePolicy::Lru, ByteScope::PerLayer, capacity, &events(2, 1, &ids), &[1, 1]).all.hits;
        assert_eq!([hits(4), hits(5), hits(6), hits(7)], [0, 0, 6, 6]);
        // Equal in bytes, not in experts.
        let counts = run(BytePolicy::Lru, ByteScope::PerLayer, 6, &events(2, 1, &ids), &[1, 3]);
        assert_eq!((counts.all.hits, counts.all.read_bytes), (3, 3 + 6 * 3));
        // What layer 0 leaves is of no use to layer 1.
        let ids = [0, 0, 0, 1, 0, 0, 0, 1];
        let counts = run(BytePolicy::Lru, ByteScope::PerLayer, 3, &events(2, 1, &ids), &[1, 1]);
        assert_eq!(counts.all.hits, 3);
    }

    #[test]
    fn a_prompt_is_one_pass_and_not_counted_as_decode() {
        // The prompt's union is 4 experts, of which the last used, 0 and 1, are those that stay.
        let trace = trace(1, 2, &[0, 1, 2, 3, 0, 1, 1, 4, 0, 4], 3);
        let counts = run(BytePolicy::Lru, ByteScope::Unified, 30, &Events::passes(&trace), &[10]);
        assert_eq!(counts.all, ByteHits { uses: 8, hits: 3, read_bytes: 50 });
        assert_eq!(counts.decode, ByteHits { uses: 4, hits: 3, read_bytes: 10 });
        assert_eq!((counts.all.hit_percent(), counts.decode.hit_percent()), (37.5, 75.0));
        assert_eq!(ByteHits::default().hit_percent(), 0.0);
        // A log of neither has no prompt: token by token, and all of it counts.
        let mut header = trace.header().clone();
        header.segments[0].phase = Phase::Mixed;
        let trace = Trace::new(header, trace.ids().to_vec()).unwrap();
        let counts = run(BytePolicy::Lru, ByteScope::Unified, 30, &Events::passes(&trace), &[10]);
        assert_eq!(counts.decode, counts.all);
        assert_eq!(counts.all, ByteHits { uses: 10, hits: 4, read_bytes: 60 });
    }

    #[test]
    fn at_the_edge_of_one_tokens_cycle_a_layer_hits_by_the_slot() {
        // C19: the same k experts in each layer, token by token.
        for (layers, top_k, slots, hits) in [
            (3, 2, 4, 0),
            (3, 2, 5, 3),
            (3, 2, 6, 6),
            (4, 3, 9, 0),
            (4, 3, 10, 4),
            (4, 3, 11, 8),
            (4, 3, 12, 12),
            (36, 4, 140, 0),
            (36, 4, 141, 36),
            (36, 4, 142, 72),
            (36, 4, 143, 108),
            (36, 4, 144, 144),
        ] {
            let token: Vec<u16> = (0..layers).flat_map(|_| 0..top_k as u16).collect();
            let hits_of = |tokens| {
                let events = events(layers, top_k, &token.repeat(tokens));
                run(BytePolicy::Lru, ByteScope::Unified, slots, &events, &vec![1; layers as usize]).all.hits
            };
            assert_eq!(hits_of(9) - hits_of(8), hits, "{slots} slots, {layers} layers of top-{top_k}");
        }
    }

    #[test]
    fn no_policy_beats_the_one_that_knows() {
        let synthetic = Synthetic { tokens: 128, layers: 3, experts: 16, top_k: 3, drift: 32, ..Synthetic::default() };
        let events = Events::of(&synthetic.trace().unwrap());
        let mut before = [0; 3];
        for capacity in (9..=48).map(|slots| slots * 7) {
            let hits = POLICIES.map(|policy| run(policy, ByteScope::Unified, capacity, &events, &[7; 3]).all.hits);
            assert!(hits[0].max(hits[1]) <= hits[2], "{capacity} bytes: {hits:?}");
            // More bytes never hurt recency, nor the one that knows.
            assert!(before[0] <= hits[0] && before[2] <= hits[2], "{capacity} bytes: {before:?}, then {hits:?}");
            before = hits;
        }
        // All 48 fit: each is read once.
        assert!(before.iter().all(|&hits| hits == before[0]));
    }

    #[test]
    fn sizes_that_sum_to_more_than_64_bits_are_counted() {
        let counts = run(BytePolicy::Lru, ByteScope::Unified, u64::MAX, &events(1, 2, &[0, 1, 1, 0]), &[u64::MAX]);
        assert_eq!(counts.all, ByteHits { uses: 4, hits: 2, read_bytes: u64::MAX });
    }

    #[test]
    #[should_panic(expected = "each layer has a size")]
    fn a_layer_without_a_size_is_refused() {
        run(BytePolicy::Lru, ByteScope::Unified, 1, &events(2, 1, &[0, 0]), &[1]);
    }
}
