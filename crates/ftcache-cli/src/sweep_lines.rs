//! The lines of a `sweep`: what each contender misses at every size, as jobs that run on all processors.
//!
//! **A split by curves is judged on what it has not seen.** The trace is cut in halves; each half's slots are divided by
//! what was counted on the other half alone, and its misses are counted where the trace goes on, in a cache that the steps
//! before have filled. So the two halves add up to a line beside all others, and a split that only remembers its trace
//! gains nothing. On its own trace a split by curves looks better than it will serve.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use ftcache::Scope;
use ftcache::policy::{Curves, LayerId, Split};
use ftcache_trace::{Events, Header, LayerCurves, MissCurve, Optimum};

use crate::Failure;
use crate::progress::{ProgressLine, bar};
use crate::split_trace::by_slots;
use crate::sweep_space::Space;

/// What a contender's misses at one more size cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cost {
    /// Next to nothing: a curve has every size.
    LookUp,
    /// A pass over the trace.
    Pass,
    /// Every step of the trace, decided by a cache.
    Replay,
}

impl Cost {
    /// About so many sizes are drawn, besides those asked for. Of a curve some two pixels of a picture each; of passes
    /// as few as do: straight from one table row to the next, the optimum would lie above LRU where rows are far apart.
    /// Of replays, which are slow, the rows of the table alone.
    fn drawn_sizes(self) -> u64 {
        match self {
            Self::LookUp => 300,
            Self::Pass => 30,
            Self::Replay => 1,
        }
    }
}

/// What a cache of one size misses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Misses {
    pub(crate) count: u64,
    /// Bytes of their rows, where they are known.
    pub(crate) bytes: Option<u64>,
}

impl Misses {
    const NONE: Self = Self { count: 0, bytes: Some(0) };

    /// Unknown bytes make the sum's unknown.
    fn plus(self, other: Self) -> Self {
        let bytes = self.bytes.zip(other.bytes).map(|(left, right)| left.saturating_add(right));
        Self { count: self.count + other.count, bytes }
    }
}

/// A cache in question. Whatever can be asked for its misses at one size after another is one: a curve that has them
/// all, or a pass for each size.
pub(crate) struct Contender<'a> {
    pub(crate) name: Cow<'static, str>,
    pub(crate) policy: &'static str,
    pub(crate) scope: &'static str,
    pub(crate) split: &'static str,
    /// Whether a cache can be set to it; the others are bounds.
    pub(crate) is_configurable: bool,
    pub(crate) cost: Cost,
    /// None where a pool is too small for its widest step. Asked by several threads at once.
    pub(crate) misses: Box<dyn Fn(u64) -> Option<Misses> + Sync + 'a>,
}

/// What one contender misses, size by size.
pub(crate) struct Line {
    pub(crate) name: Cow<'static, str>,
    pub(crate) policy: &'static str,
    pub(crate) scope: &'static str,
    pub(crate) split: &'static str,
    pub(crate) is_configurable: bool,
    /// `misses[i]` for the sweep's `sizes[i]`.
    pub(crate) misses: Vec<Option<Misses>>,
    /// Size and misses, ascending by size: where more sizes are drawn than are asked for, more.
    pub(crate) drawn: Vec<(u64, u64)>,
}

/// The lines of all contenders, in their order. Every size of each is a job of its own.
pub(crate) fn lines(contenders: &[Contender<'_>], sizes: &[u64], is_drawn: bool) -> Vec<Line> {
    let sizes_of = |contender: &Contender<'_>| match is_drawn {
        true => between(sizes, contender.cost.drawn_sizes()),
        false => sizes.to_vec(),
    };
    let jobs: Vec<(usize, u64)> = (0..)
        .zip(contenders)
        .flat_map(|(index, contender)| sizes_of(contender).into_iter().map(move |size| (index, size)))
        .collect();
    // Apart, so that what is shown of the passes is how far they are.
    let (passes, look_ups): (Vec<_>, Vec<_>) =
        jobs.into_iter().partition(|&(index, _)| contenders[index].cost != Cost::LookUp);
    let mut lines: Vec<Line> = contenders.iter().map(Contender::line).collect();
    for jobs in [look_ups, passes] {
        let answers = in_parallel("sizes", jobs.len(), |job| (contenders[jobs[job].0].misses)(jobs[job].1));
        for ((index, size), misses) in jobs.into_iter().zip(answers) {
            let line = &mut lines[index];
            if sizes.contains(&size) {
                line.misses.push(misses);
            }
            line.drawn.extend(misses.map(|misses| (size, misses.count)));
        }
    }
    lines
}

impl Contender<'_> {
    /// Its line, before anything is counted.
    fn line(&self) -> Line {
        let Self { policy, scope, split, is_configurable, .. } = *self;
        Line { name: self.name.clone(), policy, scope, split, is_configurable, misses: Vec::new(), drawn: Vec::new() }
    }
}

/// LRU in the pools of one scope.
struct LruPools {
    scope: Scope,
    groups: Vec<Vec<LayerId>>,
    curves: Vec<MissCurve>,
    /// The curves of each half of the trace; of one pool none, as there is nothing to divide.
    halves: [Vec<MissCurve>; 2],
}

impl LruPools {
    fn new(space: &Space, events: &Events, halves: &[Range<u64>; 2], scope: Scope) -> Self {
        let groups = space.groups(scope);
        let curves = in_parallel("pools", groups.len(), |pool| {
            let events = in_pool(events, &groups[pool]);
            let of_halves = || halves.clone().map(|tokens| MissCurve::lru_within(&events, tokens));
            (MissCurve::lru(&events), (groups.len() > 1).then(of_halves))
        });
        let mut pools = Self { scope, groups, curves: Vec::new(), halves: [Vec::new(), Vec::new()] };
        for (whole, of_halves) in curves {
            pools.curves.push(whole);
            for (half, curve) in pools.halves.iter_mut().zip(of_halves.into_iter().flatten()) {
                half.push(curve);
            }
        }
        pools
    }

    fn misses(&self, space: &Space, curves: &[MissCurve], split: &Split, size: u64) -> Option<Misses> {
        let slots = space.slots(self.scope, split, size)?;
        sum(space, &self.groups, |pool| curves[pool].misses(slots[pool] as usize))
    }

    /// Each half with its slots divided by the other half's misses.
    fn misses_by_curve(&self, space: &Space, fitted: &[Split; 2], size: u64) -> Option<Misses> {
        let half = |half: usize| self.misses(space, &self.halves[half], &fitted[1 - half], size);
        Some(half(0)?.plus(half(1)?))
    }
}

/// LRU by scope and split.
pub(crate) struct Lru<'a> {
    space: &'a Space,
    unified: LruPools,
    per_layer: LruPools,
    /// Splits by what was counted on each half of the trace alone.
    fitted: [Split; 2],
}

impl<'a> Lru<'a> {
    pub(crate) fn new(space: &'a Space, events: &Events, header: &Header) -> Result<Self, Failure> {
        let cut = cut(header);
        let halves = [0..cut, cut..header.tokens];
        let fitted = halves.clone().map(|tokens| {
            let curves = LayerCurves::lru(&events.within(tokens));
            Curves::new(header.model.as_str(), curves.layers().iter().map(by_slots).collect()).map(Split::Curve)
        });
        let [first, second] = fitted;
        Ok(Self {
            space,
            unified: LruPools::new(space, events, &halves, Scope::Unified),
            per_layer: LruPools::new(space, events, &halves, Scope::PerLayer),
            fitted: [first?, second?],
        })
    }

    /// Unified LRU first: what others are measured by. Where a scope has one pool, there is nothing to divide.
    pub(crate) fn contenders(&self) -> Vec<Contender<'_>> {
        let scopes = [
            (&self.unified, "unified", "unified LRU", "unified LRU, curve"),
            (&self.per_layer, "per-layer", "per-layer LRU", "per-layer LRU, curve"),
        ];
        let mut contenders = Vec::new();
        for (pools, scope, name, name_by_curve) in scopes {
            let contender = |name: &'static str, split, misses| Contender {
                name: name.into(),
                policy: "lru",
                scope,
                split,
                is_configurable: true,
                cost: Cost::LookUp,
                misses,
            };
            let equal = |size| pools.misses(self.space, &pools.curves, &Split::Equal, size);
            contenders.push(contender(name, "equal", Box::new(equal)));
            if pools.groups.len() > 1 {
                let by_curve = |size| pools.misses_by_curve(self.space, &self.fitted, size);
                contenders.push(contender(name_by_curve, "curve", Box::new(by_curve)));
            }
        }
        contenders
    }
}

/// The fewest misses that any policy could have in the pools of the unified scope, divided equally.
pub(crate) fn optimum<'a>(space: &'a Space, events: &Events) -> Contender<'a> {
    let groups = space.groups(Scope::Unified);
    let pools: Vec<Optimum> = groups.iter().map(|layers| Optimum::unified(&in_pool(events, layers))).collect();
    let misses = move |size| {
        let slots = space.slots(Scope::Unified, &Split::Equal, size)?;
        sum(space, &groups, |pool| pools[pool].misses(slots[pool] as usize))
    };
    Contender {
        name: "optimum".into(),
        policy: "optimum",
        scope: "unified",
        split: "equal",
        is_configurable: false,
        cost: Cost::Pass,
        misses: Box::new(misses),
    }
}

/// Where the halves of a trace meet: between two segments if there are any within its second and third quarter, else
/// in the middle.
pub(crate) fn cut(header: &Header) -> u64 {
    let middle = header.tokens / 2;
    let starts = header.segments.iter().map(|segment| segment.start);
    let nearest = starts.min_by_key(|start| start.abs_diff(middle));
    nearest.filter(|start| start.abs_diff(middle) <= header.tokens / 4).unwrap_or(middle)
}

fn in_pool(events: &Events, layers: &[LayerId]) -> Events {
    events.of_layers(&layers.iter().map(|layer| layer.get()).collect::<Vec<_>>())
}

/// Over all pools; none if one of them has none.
pub(crate) fn sum(space: &Space, groups: &[Vec<LayerId>], misses: impl Fn(usize) -> Option<u64>) -> Option<Misses> {
    (0..).zip(groups).try_fold(Misses::NONE, |all, (pool, layers)| {
        let count = misses(pool)?;
        let bytes = space.expert_bytes(layers).map(|bytes| bytes.saturating_mul(count));
        Some(all.plus(Misses { count, bytes }))
    })
}

/// The sizes, and up to about `count` more from the first to the last, ascending.
fn between(sizes: &[u64], count: u64) -> Vec<u64> {
    let (first, last) = (sizes[0], sizes[sizes.len() - 1]);
    let step = (last - first).div_ceil(count).max(1);
    let mut all: Vec<u64> = (first..last).step_by(step as usize).collect();
    all.extend(sizes);
    all.sort_unstable();
    all.dedup();
    all
}

/// The answers of a job for each index, on all processors; how many there are is shown. `what` they are of: "pools".
fn in_parallel<T: Send>(what: &str, count: usize, job: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let workers = thread::available_parallelism().map_or(1, usize::from).min(count);
    let next = AtomicUsize::new(0);
    let mut answers: Vec<Option<T>> = (0..count).map(|_| None).collect();
    thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        for _ in 0..workers {
            let (sender, next, job) = (sender.clone(), &next, &job);
            scope.spawn(move || {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count || sender.send((index, job(index))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let mut line = ProgressLine::new();
        for (done, (index, answer)) in (1..).zip(receiver) {
            answers[index] = Some(answer);
            line.show(|| format!("{} {what}", bar(done, count)));
        }
    });
    answers.into_iter().map(|answer| answer.expect("each index is answered")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ftcache_trace::{Phase, Segment, Shape};

    #[test]
    fn drawn_sizes_hold_those_asked_for() {
        assert_eq!(between(&[6, 9, 16], 5), [6, 8, 9, 10, 12, 14, 16]);
        assert_eq!(between(&[6, 9], 300), [6, 7, 8, 9]);
        assert_eq!(between(&[6], 300), [6]);
    }

    #[test]
    fn answers_stand_in_the_order_of_their_indices() {
        assert_eq!(
            in_parallel("jobs", 100, |index| index * index),
            (0..100).map(|index| index * index).collect::<Vec<_>>()
        );
        assert!(in_parallel("jobs", 0, |index| index).is_empty());
    }

    #[test]
    fn halves_meet_between_segments_near_the_middle() {
        let of_tokens = |tokens: &[u64]| {
            let shape = Shape { tokens: tokens.iter().sum(), layers: 1, top_k: 1, experts: 2 };
            let mut start = 0;
            let segments = tokens.iter().map(|&tokens| {
                start += tokens;
                Segment::new("request", Phase::Decode, start - tokens, tokens)
            });
            cut(&Header::new("by hand", shape, segments.collect()))
        };
        assert_eq!(
            [of_tokens(&[7]), of_tokens(&[3, 9]), of_tokens(&[2, 9]), of_tokens(&[3, 4, 2]), of_tokens(&[4, 1, 1, 9])],
            [3, 3, 5, 3, 6]
        );
    }

    #[test]
    fn unknown_bytes_make_a_sum_unknown() {
        let misses = |count, bytes| Misses { count, bytes };
        assert_eq!(misses(1, Some(5)).plus(misses(2, Some(7))), misses(3, Some(12)));
        assert_eq!(misses(1, Some(5)).plus(misses(2, None)), misses(3, None));
    }
}
