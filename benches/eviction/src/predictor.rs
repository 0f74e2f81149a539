//! How likely an expert is to be used at its layer's next event, in 65536ths.

/// Certain.
pub(crate) const ONE: u32 = 1 << 16;

/// Learns from events.
pub(crate) trait Predictor {
    fn on_event(&mut self, layer: usize, experts: &[u16]);
    /// From 0 to [`ONE`].
    fn chance(&self, flat: usize) -> u32;
}

/// One use, in counts that decay.
const USE: u32 = 1 << 12;

/// `count` after `turns` turns: halved every `half` of them, a power of two, a straight line between.
fn decay(count: u32, turns: u32, half: u32) -> u32 {
    let log = half.trailing_zeros();
    let shift = turns >> log;
    if shift > 31 {
        return 0;
    }
    let count = count >> shift;
    count - ((u64::from(count) * u64::from(turns & (half - 1))) >> (log + 1)) as u32
}

/// Two buckets an octave: 0, 1, 2, 3, 4-5, 6-7, 8-11, ...
pub(crate) fn bucket(x: u32) -> usize {
    if x < 2 {
        return x as usize;
    }
    let log = x.ilog2();
    (2 * log - 1 + (x >> (log - 1) & 1)) as usize
}

/// What was seen of every expert: time in turns of its layer, which are its events.
#[derive(Debug, Clone)]
pub(crate) struct Past {
    pub(crate) experts: usize,
    /// Events of each layer so far.
    pub(crate) turn: Vec<u32>,
    /// The turn of the last use, from 1; 0 for never.
    pub(crate) last: Vec<u32>,
    /// The gap before that.
    pub(crate) gap: Vec<u32>,
    /// The place among the router's choices at the last use.
    pub(crate) rank: Vec<u8>,
    kernel: Kernel,
    count: Vec<Vec<u32>>,
    follow: Option<Follow>,
}

/// Which experts follow which at the next event of their layer.
#[derive(Debug, Clone)]
struct Follow {
    /// `pairs[flat of the first * experts + second]`.
    pairs: Vec<u32>,
    uses: Vec<u32>,
    /// What each layer used last.
    latest: Vec<Vec<u16>>,
    /// The chance that this gives each expert, in `ONE`s.
    chance: Vec<u32>,
}

impl Follow {
    fn on_event(&mut self, layer: usize, ids: &[u16], experts: usize) {
        let first = layer * experts;
        for &old in &self.latest[layer] {
            let old = first + usize::from(old);
            ids.iter().for_each(|&id| self.pairs[old * experts + usize::from(id)] += 1);
            self.uses[old] += 1;
        }
        self.latest[layer] = ids.to_vec();
        let uses: u64 = ids.iter().map(|&id| u64::from(self.uses[first + usize::from(id)])).sum();
        for expert in 0..experts {
            let pairs = ids.iter().map(|&id| u64::from(self.pairs[(first + usize::from(id)) * experts + expert]));
            self.chance[first + expert] = (pairs.sum::<u64>() * u64::from(ONE) / (uses + 1)) as u32;
        }
    }
}

/// Halves of the counts and the weight of each in their sum.
pub(crate) type Kernel = Vec<(u32, u32)>;

impl Past {
    pub(crate) fn new(layers: usize, experts: usize, kernel: Kernel) -> Self {
        let all = layers * experts;
        let (turn, count) = (vec![0; layers], vec![vec![0; all]; kernel.len()]);
        Self { experts, turn, last: vec![0; all], gap: vec![0; all], rank: vec![0; all], kernel, count, follow: None }
    }

    fn on_event(&mut self, layer: usize, experts: &[u16]) {
        self.turn[layer] += 1;
        let turn = self.turn[layer];
        for (rank, &id) in experts.iter().enumerate() {
            let flat = layer * self.experts + usize::from(id);
            let since = turn - self.last[flat];
            for ((half, _), count) in self.kernel.iter().zip(&mut self.count) {
                count[flat] = decay(count[flat], since, *half) + USE;
            }
            self.gap[flat] = if self.last[flat] == 0 { 0 } else { since };
            self.last[flat] = turn;
            self.rank[flat] = rank.min(255) as u8;
        }
        if let Some(follow) = &mut self.follow {
            follow.on_event(layer, experts, self.experts);
        }
    }

    /// Turns from the last use to the next event, from 1.
    pub(crate) fn since(&self, flat: usize) -> u32 {
        self.turn[flat / self.experts] + 1 - self.last[flat]
    }

    /// The count as it will be at the next event.
    fn count(&self, which: usize, flat: usize) -> u32 {
        decay(self.count[which][flat], self.since(flat), self.kernel[which].0)
    }

    /// The counts as they will be, by weight.
    fn sum(&self, flat: usize) -> u32 {
        (0..self.kernel.len()).map(|which| (self.count(which, flat) * self.kernel[which].1) >> 4).sum()
    }
}

/// The rate that a decayed count stands for.
pub(crate) struct Rate {
    past: Past,
}

impl Rate {
    pub(crate) fn new(layers: usize, experts: usize, half: u32) -> Self {
        Self { past: Past::new(layers, experts, vec![(half, 16)]) }
    }
}

impl Predictor for Rate {
    fn on_event(&mut self, layer: usize, experts: &[u16]) {
        self.past.on_event(layer, experts);
    }

    fn chance(&self, flat: usize) -> u32 {
        // A use each turn sums to `half / ln 2` uses; 45426 is ln 2.
        let count = u64::from(self.past.count(0, flat));
        (count * 45426 / (u64::from(USE) * u64::from(self.past.kernel[0].0))).min(u64::from(ONE)) as u32
    }
}

/// The sum itself, as if it were a chance: its scale is no one's business but that of rules that ask for more.
pub(crate) struct Sum {
    past: Past,
}

impl Sum {
    pub(crate) fn new(layers: usize, experts: usize, kernel: Kernel) -> Self {
        Self { past: Past::new(layers, experts, kernel) }
    }
}

impl Predictor for Sum {
    fn on_event(&mut self, layer: usize, experts: &[u16]) {
        self.past.on_event(layer, experts);
    }

    fn chance(&self, flat: usize) -> u32 {
        self.past.sum(flat)
    }
}

/// What of the past is looked at: each feature has up to 32 values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Feature {
    /// Turns since the last use.
    Gap,
    /// Turns between the last two uses.
    LastGap,
    /// The first decayed count.
    Count,
    /// The second, usually a slower one.
    Slow,
    /// The place in the router's order at the last use.
    Rank,
    /// The layer, folded.
    Layer,
    /// The count of this place in the kernel.
    Of(usize),
    /// What the layer's last event says of the expert, beside its mean rate.
    Follow,
}

impl Feature {
    fn of(self, past: &Past, flat: usize) -> usize {
        match self {
            Self::Gap => bucket(past.since(flat)).min(23),
            Self::LastGap => bucket(past.gap[flat]).min(15),
            Self::Count => bucket(past.count(0, flat) >> 7).min(31),
            Self::Slow => bucket(past.count(1, flat) >> 7).min(31),
            Self::Rank => usize::from(past.rank[flat]).min(15),
            Self::Of(which) => bucket(past.count(which, flat) >> 7).min(31),
            Self::Follow => past.follow.as_ref().map_or(0, |follow| {
                let lift = 256 * u64::from(follow.chance[flat]) / (u64::from(past.sum(flat)) * 9 / 128 + 1);
                bucket(lift.min(1 << 16) as u32).min(31)
            }),
            Self::Layer => flat / past.experts,
        }
    }
}

/// How often experts with such a past were used at the next event.
pub(crate) struct Table {
    past: Past,
    features: Vec<Feature>,
    /// Used, and seen.
    cells: Vec<(u32, u32)>,
}

impl Table {
    pub(crate) fn new(layers: usize, experts: usize, kernel: Kernel, features: &[Feature]) -> Self {
        Self {
            past: Past::new(layers, experts, kernel),
            features: features.to_vec(),
            cells: vec![(0, 0); 64usize.pow(features.len() as u32)],
        }
    }

    fn key(&self, flat: usize) -> usize {
        self.features.iter().fold(0, |key, feature| key * 64 + feature.of(&self.past, flat))
    }
}

impl Predictor for Table {
    fn on_event(&mut self, layer: usize, experts: &[u16]) {
        let first = layer * self.past.experts;
        let mut used = vec![false; self.past.experts];
        experts.iter().for_each(|&id| used[usize::from(id)] = true);
        for (id, used) in used.into_iter().enumerate() {
            if self.past.last[first + id] > 0 {
                let key = self.key(first + id);
                let (hits, seen) = &mut self.cells[key];
                *hits += u32::from(used);
                *seen += 1;
                if *seen == 1 << 15 {
                    (*hits, *seen) = (*hits / 2, *seen / 2);
                }
            }
        }
        self.past.on_event(layer, experts);
    }

    fn chance(&self, flat: usize) -> u32 {
        // An expert of which nothing is known is taken for one of a rate of one in `2 * gap`.
        let gap = u64::from(self.past.since(flat));
        let (hits, seen) = self.cells[self.key(flat)];
        let prior = 8 * u64::from(ONE) / (1 + gap);
        ((u64::from(hits) * u64::from(ONE) + prior) / (u64::from(seen) + 8)) as u32
    }
}

/// A sum of weights, one for each feature's value, through a logistic curve: learned by following the error.
pub(crate) struct Mixed {
    past: Past,
    /// Each set of features is one index.
    sets: Vec<Vec<Feature>>,
    weights: Vec<Vec<i32>>,
    rate: i64,
}

/// The logistic curve, 4096 high, from -2048 to 2047 in 33 points 128 apart; 256 is one unit of the exponent.
const CURVE: [i64; 33] = [
    1, 2, 3, 6, 10, 16, 27, 45, 73, 120, 194, 310, 488, 747, 1101, 1546, 2047, 2549, 2994, 3348, 3607, 3785, 3901,
    3975, 4022, 4050, 4068, 4079, 4085, 4089, 4092, 4093, 4094,
];

/// Of `x` in 256ths of 256ths.
fn logistic(x: i64) -> u32 {
    let x = (x >> 4).clamp(-2047 << 4, 2047 << 4) + (2048 << 4);
    let (at, part) = ((x >> 11) as usize, x & 2047);
    ((CURVE[at] * (2048 - part) + CURVE[at + 1] * part) >> 7) as u32
}

impl Mixed {
    pub(crate) fn new(layers: usize, experts: usize, kernel: Kernel, sets: &[&[Feature]], rate: i64) -> Self {
        let weights = sets.iter().map(|set| vec![0; if set.len() == 1 { 1 << 6 } else { 1 << 12 }]).collect();
        let sets = sets.iter().map(|set| set.to_vec()).collect();
        Self { past: Past::new(layers, experts, kernel), sets, weights, rate }
    }

    fn key(&self, set: usize, flat: usize) -> usize {
        self.sets[set].iter().fold(0, |key, feature| key * 64 + feature.of(&self.past, flat))
    }

    fn sum(&self, flat: usize) -> i64 {
        // A start at one in 20.
        let weights = self.weights.iter().enumerate().map(|(set, weights)| i64::from(weights[self.key(set, flat)]));
        weights.sum::<i64>() - (3 << 16)
    }
}

impl Predictor for Mixed {
    fn on_event(&mut self, layer: usize, experts: &[u16]) {
        let first = layer * self.past.experts;
        let mut used = vec![false; self.past.experts];
        experts.iter().for_each(|&id| used[usize::from(id)] = true);
        for (id, used) in used.into_iter().enumerate() {
            let flat = first + id;
            if self.past.last[flat] > 0 {
                let error = i64::from(used) * i64::from(ONE) - i64::from(logistic(self.sum(flat)));
                for set in 0..self.sets.len() {
                    let key = self.key(set, flat);
                    self.weights[set][key] += ((error * self.rate) >> 10) as i32;
                }
            }
        }
        self.past.on_event(layer, experts);
    }

    fn chance(&self, flat: usize) -> u32 {
        logistic(self.sum(flat))
    }
}

/// The mean of five use rates, corrected by how often experts with such a past were used against how often that said.
pub(crate) struct Corrected {
    past: Past,
    /// Corrections are made one on top of the other.
    sets: Vec<Vec<Feature>>,
    /// Used, and expected, in `ONE`s.
    cells: Vec<Vec<(u64, u64)>>,
    prior: u64,
}

impl Corrected {
    pub(crate) fn new(layers: usize, experts: usize, kernel: Kernel, sets: &[&[Feature]], prior: u64) -> Self {
        let cells = sets.iter().map(|set| vec![(0, 0); 64usize.pow(set.len() as u32)]).collect();
        let mut past = Past::new(layers, experts, kernel);
        if sets.iter().any(|set| set.contains(&Feature::Follow)) {
            let all = layers * experts;
            let (pairs, uses, chance) = (vec![0; all * experts], vec![0; all], vec![0; all]);
            past.follow = Some(Follow { pairs, uses, latest: vec![Vec::new(); layers], chance });
        }
        let sets = sets.iter().map(|set| set.to_vec()).collect();
        Self { past, sets, cells, prior: prior << 16 }
    }

    /// `kernel` has weights `512 / half`: `sum * 16 / 512` is the sum of `count / half`, and a rate is ln 2 of that.
    fn raw(&self, flat: usize) -> u64 {
        u64::from(self.past.sum(flat)) * 9 / 128 + 1
    }

    fn key(&self, set: usize, flat: usize) -> usize {
        self.sets[set].iter().fold(0, |key, feature| key * 64 + feature.of(&self.past, flat))
    }

    fn corrected(&self, p: u64, set: usize, key: usize) -> u64 {
        let (hits, expected) = self.cells[set][key];
        p * (hits + self.prior) / (expected + self.prior)
    }
}

impl Predictor for Corrected {
    fn on_event(&mut self, layer: usize, experts: &[u16]) {
        let first = layer * self.past.experts;
        let mut used = vec![false; self.past.experts];
        experts.iter().for_each(|&id| used[usize::from(id)] = true);
        for (id, used) in used.into_iter().enumerate() {
            let flat = first + id;
            if self.past.last[flat] > 0 {
                let mut p = self.raw(flat);
                for set in 0..self.sets.len() {
                    let key = self.key(set, flat);
                    let next = self.corrected(p, set, key);
                    let (hits, expected) = &mut self.cells[set][key];
                    *hits += u64::from(used) * u64::from(ONE);
                    *expected += p;
                    if *expected > 1 << 28 {
                        (*hits, *expected) = (*hits / 2, *expected / 2);
                    }
                    p = next;
                }
            }
        }
        self.past.on_event(layer, experts);
    }

    fn chance(&self, flat: usize) -> u32 {
        let p = (0..self.sets.len()).fold(self.raw(flat), |p, set| self.corrected(p, set, self.key(set, flat)));
        p.min(u64::from(ONE) * 4) as u32
    }
}
