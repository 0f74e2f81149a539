//! Properties of splits, bounds and budgets, against a model that is slow enough to be obvious.

use ftcache_policy::{
    Budget, Constraints, Curves, Geometry, GeometryError, LayerId, LayoutKey, Model, PoolBounds, Profile, Quantisation,
    Scope, Split, TagLimit, TailPad, split_profile,
};
use ftcache_testkit::Rng;

/// A pool as the rules tell it.
struct Told {
    layer_count: u64,
    min: u32,
    max: u32,
    cost: u64,
    pad: u64,
    /// Count and sum of the layer's counts for each expert of its layers, most used first.
    uses: Vec<(u128, u128)>,
    /// By curves, fetched bytes that each slot saves and the bytes that it takes, from the least on.
    savings: Vec<(u128, u128)>,
}

/// What the lower convex hull of `misses` falls by at each point, as a fraction: the least, over points before, of
/// the steepest way down from there past this point.
fn falls(misses: &[u64]) -> Vec<(u128, u128)> {
    let way = |from: usize, to: usize| (u128::from(misses[from] - misses[to]), (to - from) as u128);
    let steeper = |a: &(u128, u128), b: &(u128, u128)| (a.0 * b.1).cmp(&(b.0 * a.1));
    let fall = |at: usize| {
        let steepest = |from| (at + 1..misses.len()).map(|to| way(from, to)).max_by(steeper).unwrap();
        (0..=at).map(steepest).min_by(steeper).unwrap()
    };
    (0..misses.len() - 1).map(fall).collect()
}

/// What a pool misses with each number of slots: every layer with its share of them, the first with the odd ones.
fn misses_of(curves: &Curves, layers: &[LayerId], min: u32, max: u32) -> Vec<u64> {
    let with = |slots: u32| {
        let mut shares = vec![0; layers.len()];
        (0..slots as usize).for_each(|slot| shares[slot % layers.len()] += 1);
        layers.iter().zip(shares).map(|(&layer, share)| curves.misses(layer, share)).sum()
    };
    (min..=max).map(with).collect()
}

/// The pools of a geometry by its model and constraints alone, but for who shares; `counts` are the profile's, if any.
fn told(geometry: &Geometry, counts: Option<&[Vec<u64>]>) -> Vec<Told> {
    let (model, constraints) = (geometry.model(), geometry.constraints());
    let experts = model.expert_count();
    let mut pools = Vec::new();
    for pool in geometry.pools() {
        let key = model.layer(pool.layers()[0]);
        let mut max = pool.layers().len() as u32 * experts;
        for limit in constraints.tag_limits.iter().filter(|limit| key.tag() == Some(&limit.tag)) {
            max = max.min(limit.slots);
        }
        let mut uses = Vec::new();
        for layer in pool.layers().iter().filter_map(|layer| counts.map(|counts| &counts[layer.index()])) {
            let sum: u64 = layer.iter().sum();
            uses.extend(layer.iter().map(|&count| (u128::from(count), u128::from(sum))));
        }
        uses.sort_by(|a, b| (b.0 * a.1).cmp(&(a.0 * b.1)));
        // A bank that the layers do not read has neither slots nor pads.
        let read = || key.row_bytes().iter().copied().filter(|&row| row > 0);
        let stride = |row: u64| (row + constraints.slot_pad_bytes).next_multiple_of(constraints.alignment);
        let pad = |row: u64| match constraints.tail_pad {
            TailPad::RowUpTo(most) => row.min(most).next_multiple_of(constraints.alignment),
            TailPad::Bytes(bytes) => bytes.next_multiple_of(constraints.alignment),
        };
        let min = experts.min(model.top_k() * constraints.request_count);
        let max = max.min(constraints.slot_limit.unwrap_or(u32::MAX));
        let cost: u64 = read().map(stride).sum();
        let mut savings = Vec::new();
        if let Split::Curve(curves) = &constraints.split {
            let bytes = if matches!(constraints.budget, Budget::Slots(_)) { 1 } else { u128::from(cost) };
            savings = falls(&misses_of(curves, pool.layers(), min, max));
            let row_bytes: u64 = key.row_bytes().iter().sum();
            savings.iter_mut().for_each(|fall| *fall = (fall.0 * u128::from(row_bytes), fall.1 * bytes));
        }
        let pad = read().map(pad).sum();
        pools.push(Told { layer_count: pool.layers().len() as u64, min, max, cost, pad, uses, savings });
    }
    pools
}

/// The split as `split.rs` and DESIGN.md tell it. A pool whose next slot does not fit is out for good.
fn one_slot_at_a_time(geometry: &Geometry, counts: Option<&[Vec<u64>]>) -> Vec<u32> {
    let pools = told(geometry, counts);
    let (budget, costs): (u64, Vec<u64>) = match geometry.constraints().budget {
        Budget::Bytes(bytes) => {
            (bytes - pools.iter().map(|pool| pool.pad).sum::<u64>(), pools.iter().map(|pool| pool.cost).collect())
        }
        Budget::Slots(slots) => (slots, vec![1; pools.len()]),
        other => panic!("{other}"),
    };
    let mut sizes: Vec<u32> = pools.iter().map(|pool| pool.min).collect();
    let mut rest = budget - sizes.iter().zip(&costs).map(|(&size, cost)| u64::from(size) * cost).sum::<u64>();
    let mut out = vec![false; pools.len()];
    loop {
        let mut next: Option<usize> = None;
        for index in (0..pools.len()).filter(|&index| !out[index] && sizes[index] < pools[index].max) {
            let has_fewer = |best: usize| {
                u64::from(sizes[index]) * pools[best].layer_count < u64::from(sizes[best]) * pools[index].layer_count
            };
            let goes_before = |best: usize| match (counts, &geometry.constraints().split) {
                (Some(_), _) => {
                    let (count, sum) = pools[index].uses[sizes[index] as usize];
                    let (best_count, best_sum) = pools[best].uses[sizes[best] as usize];
                    count * best_sum > best_count * sum
                }
                (None, Split::Curve(_)) => {
                    let saving = |pool: usize| pools[pool].savings[(sizes[pool] - pools[pool].min) as usize];
                    let ((saved, bytes), (best_saved, best_bytes)) = (saving(index), saving(best));
                    let (one, other) = (saved * best_bytes, best_saved * bytes);
                    one > other || one == other && has_fewer(best)
                }
                (None, _) => has_fewer(best),
            };
            if next.is_none_or(goes_before) {
                next = Some(index);
            }
        }
        let Some(next) = next else { return sizes };
        if costs[next] > rest {
            out[next] = true;
        } else {
            sizes[next] += 1;
            rest -= costs[next];
        }
    }
}

fn sizes(geometry: &Geometry) -> Vec<u32> {
    geometry.pools().iter().map(|pool| pool.slot_count()).collect()
}

fn split_of(counts: Option<&[Vec<u64>]>) -> Split {
    let Some(counts) = counts else { return Split::Equal };
    let rows: Vec<Vec<f64>> = counts.iter().map(|row| row.iter().map(|&count| count as f64).collect()).collect();
    Split::Profile(Profile::new("counts", &rows).unwrap())
}

/// What every geometry holds to: the split, the bounds, the budget, and slots that lie apart inside their arenas.
fn check(geometry: &Geometry, counts: Option<&[Vec<u64>]>, at: &str) {
    let (sizes, pools) = (sizes(geometry), told(geometry, counts));
    assert_eq!(sizes, one_slot_at_a_time(geometry, counts), "{at}");
    for (pool, told) in geometry.pools().iter().zip(&pools) {
        let bounds = PoolBounds { layer_count: told.layer_count as u32, min_slots: told.min, max_slots: told.max };
        assert_eq!(pool.bounds(), bounds, "{at}");
        assert!((told.min..=told.max).contains(&pool.slot_count()), "{at}: {} slots", pool.slot_count());
    }
    match geometry.constraints().budget {
        Budget::Bytes(budget) => {
            let used = geometry.total_bytes();
            assert!(used <= budget, "{at}: {used} of {budget}");
            for (size, told) in sizes.iter().zip(&pools) {
                assert!(*size == told.max || used + told.cost > budget, "{at}: one more slot fits");
            }
        }
        Budget::Slots(slots) => assert_eq!(sizes.iter().map(|&size| u64::from(size)).sum::<u64>(), slots, "{at}"),
        other => panic!("{at}: {other}"),
    }
    for bank in 0..geometry.model().bank_count() {
        let mut spans = Vec::new();
        for pool in geometry.pools() {
            let range = pool.ranges()[bank];
            let slots = u64::from(pool.slot_count());
            assert!(
                range.stride >= range.row_bytes,
                "{at} bank {bank}: stride {} of {}",
                range.stride,
                range.row_bytes
            );
            assert!(
                range.stride.is_multiple_of(geometry.constraints().alignment),
                "{at} bank {bank}: {}",
                range.stride
            );
            spans.extend((0..slots).map(|slot| (range.offset + slot * range.stride, range.stride)));
            spans.push((range.offset + slots * range.stride, range.tail_pad_bytes));
        }
        spans.sort_unstable();
        let mut end = 0;
        for (begin, bytes) in spans {
            assert!(begin >= end, "{at} bank {bank}: {begin} lies before {end}");
            end = begin + bytes;
        }
        assert!(end <= geometry.arena_bytes()[bank], "{at} bank {bank}: {end} of {}", geometry.arena_bytes()[bank]);
    }
}

#[test]
fn every_small_geometry() {
    type Count = fn(u64, u64) -> u64;
    let profiles: [Option<Count>; 5] = [
        None,
        Some(|_, _| 1),
        Some(|l, e| 3 * l + e + 1),
        Some(|l, e| u64::from(e == l % 2)),
        Some(|l, e| 1 << (2 - e.min(l))),
    ];
    let mut checked = 0;
    for (layer_count, kinds) in (1..=3).flat_map(|count| (0..1_u32 << count).map(move |kinds| (count, kinds))) {
        let key = |layer: u32| {
            [LayoutKey::tagged("a", [7, 3]), LayoutKey::tagged("b", [2, 0])][(kinds >> layer & 1) as usize].clone()
        };
        for (experts, top_k) in [(1, 1), (2, 1), (2, 2), (3, 1), (3, 2), (3, 3)] {
            let model =
                Model::new(experts, top_k, Quantisation::PerLayer, (0..layer_count).map(key).collect()).unwrap();
            for (scope, count) in [Scope::Unified, Scope::PerLayer].iter().flat_map(|s| profiles.map(|p| (*s, p))) {
                let row = |count: Count, layer| (0..u64::from(experts)).map(|expert| count(layer, expert)).collect();
                let counts: Option<Vec<Vec<u64>>> =
                    count.map(|count| (0..u64::from(layer_count)).map(|layer| row(count, layer)).collect());
                // A layer whose one expert was never used has no profile.
                let counts = counts.filter(|rows| rows.iter().all(|row| row.iter().sum::<u64>() > 0));
                let most = u64::from(layer_count * experts);
                for total in 0..=most + 1 {
                    let at = format!(
                        "{layer_count} layers {kinds:b}, top-{top_k} of {experts}, {scope:?}, {counts:?}, {total} slots"
                    );
                    let split = split_of(counts.as_deref());
                    let constraints = Constraints { scope, split, ..Constraints::new(Budget::Slots(total)) };
                    let pools = match scope {
                        Scope::PerLayer => u64::from(layer_count),
                        Scope::Unified => 1 + u64::from(kinds != 0 && kinds + 1 != 1 << layer_count),
                    };
                    let needed = pools * u64::from(top_k);
                    match Geometry::new(model.clone(), constraints) {
                        Ok(geometry) => {
                            assert!((needed..=most).contains(&total), "{at}");
                            check(&geometry, counts.as_deref(), &at);
                            checked += 1;
                        }
                        Err(GeometryError::SlotsBelowMinimum { needed: said, given }) => {
                            assert!((said, given) == (needed, total) && total < needed, "{at}: {said}");
                        }
                        Err(error) => {
                            assert_eq!(error, GeometryError::SlotsAboveMaximum { most, given: total }, "{at}");
                            assert!(total > most, "{at}");
                        }
                    }
                }
            }
        }
    }
    assert!(checked > 2_500, "{checked}");
}

/// Up to eight layers of one to four kinds, whose slots have unequal bytes unless told otherwise, and small counts.
fn random_model(rng: &mut Rng, equal_bytes: bool) -> (Model, Vec<Vec<u64>>) {
    let experts = 1 + rng.below(7);
    let kinds: Vec<LayoutKey> = (0..1 + rng.below(4))
        .map(|kind| {
            let first = 1 + rng.below(11);
            LayoutKey::tagged(kind.to_string(), [first, if equal_bytes { 12 - first } else { rng.below(12) }])
        })
        .collect();
    let layers: Vec<LayoutKey> =
        (0..1 + rng.below(8)).map(|_| kinds[rng.below(kinds.len() as u64) as usize].clone()).collect();
    let most = 1 + rng.below(4);
    let mut counts: Vec<Vec<u64>> =
        layers.iter().map(|_| (0..experts).map(|_| rng.below(most + 1)).collect()).collect();
    counts.iter_mut().for_each(|row| row[rng.below(experts) as usize] += 1);
    let top_k = 1 + rng.below(experts) as u32;
    (Model::new(experts as u32, top_k, Quantisation::PerLayer, layers).unwrap(), counts)
}

/// Curves of few numbers, so that they have ties and edges; some end early.
fn random_curves(rng: &mut Rng, model: &Model) -> Curves {
    let most = 1 + rng.below(9);
    let mut curve = || {
        let mut misses: Vec<u64> =
            (0..1 + rng.below(u64::from(model.expert_count()) + 1)).map(|_| rng.below(most)).collect();
        misses.sort_unstable_by(|a, b| b.cmp(a));
        misses
    };
    Curves::new("curves", model.layer_ids().map(|_| curve()).collect()).unwrap()
}

/// Any of the splits, and the profile's counts if it is by one.
fn random_split(rng: &mut Rng, model: &Model, counts: Vec<Vec<u64>>) -> (Split, Option<Vec<Vec<u64>>>) {
    match rng.below(3) {
        0 => (Split::Equal, None),
        1 => (Split::Curve(random_curves(rng, model)), None),
        _ => (split_of(Some(&counts)), Some(counts)),
    }
}

fn random_constraints(rng: &mut Rng, model: &Model, split: Split) -> Constraints {
    let all = model.layer_count() as u64 * u64::from(model.expert_count());
    let limit = |rng: &mut Rng| model.top_k() + rng.below(all) as u32;
    let mut tag_limits = Vec::new();
    for key in model.layers() {
        if rng.chance(1, 6) {
            tag_limits.push(TagLimit { tag: key.tag().unwrap().to_vec(), slots: limit(rng) });
        }
    }
    Constraints {
        scope: if rng.chance(1, 2) { Scope::Unified } else { Scope::PerLayer },
        split,
        request_count: 1 + rng.below(2) as u32,
        slot_limit: rng.chance(1, 4).then(|| limit(rng)),
        tag_limits,
        slotless_layers: model.layer_ids().filter(|_| rng.chance(1, 10)).collect(),
        tail_pad: if rng.chance(1, 2) { TailPad::Bytes(rng.below(5)) } else { TailPad::RowUpTo(8) },
        ..Constraints::new(match rng.chance(1, 2) {
            true => Budget::Slots(rng.below(all + 1)),
            false => Budget::Bytes(rng.below(2 * model.model_bytes())),
        })
    }
}

/// Many ties, limits by pool and by tag, both kinds of budget, layers without slots.
#[test]
fn random_splits_are_those_of_one_slot_at_a_time() {
    let (mut by_slots, mut by_bytes, mut by_curve, mut limited, mut refused) = (0, 0, 0, 0, 0);
    for seed in 0..8_000 {
        let mut rng = Rng::new(seed);
        let (model, counts) = random_model(&mut rng, false);
        let (split, counts) = random_split(&mut rng, &model, counts);
        by_curve += usize::from(matches!(split, Split::Curve(_)));
        let mut constraints = random_constraints(&mut rng, &model, split);
        if rng.chance(1, 2) {
            (constraints.alignment, constraints.slot_pad_bytes) = (1 << rng.below(6), rng.below(4));
        }
        let slotless = constraints.slotless_layers.clone();
        let geometry = match Geometry::new(model.clone(), constraints.clone()) {
            Ok(geometry) => geometry,
            Err(GeometryError::BudgetBelowMinimum { needed, given }) => {
                assert!(needed > u128::from(given), "seed {seed}: {needed} of {given}");
                for (budget, fits) in [(needed as u64, true), (needed as u64 - 1, false)] {
                    let exact = Constraints { budget: Budget::Bytes(budget), ..constraints.clone() };
                    assert_eq!(Geometry::new(model.clone(), exact).is_ok(), fits, "seed {seed}: {budget} bytes");
                }
                refused += 1;
                continue;
            }
            Err(_) => continue,
        };
        check(&geometry, counts.as_deref(), &format!("seed {seed}"));
        by_slots += usize::from(matches!(constraints.budget, Budget::Slots(_)));
        by_bytes += usize::from(matches!(constraints.budget, Budget::Bytes(_)));
        limited += usize::from(!constraints.tag_limits.is_empty() && constraints.slot_limit.is_some());
        for layer in geometry.model().layer_ids() {
            let pool = geometry.pool_of_layer(layer);
            assert_eq!(pool.is_none(), slotless.contains(&layer), "seed {seed} layer {layer}");
            assert!(pool.is_none_or(|pool| geometry.pool(pool).layers().contains(&layer)), "seed {seed} layer {layer}");
        }
    }
    assert!(by_slots > 500 && by_bytes > 500 && limited > 50, "{by_slots} {by_bytes} {limited}");
    assert!(by_curve > 2_000, "{by_curve}");
    assert!(refused > 100, "{refused}");
}

/// So many experts that they are not sorted at once. Most of them have nearly equal shares: each layer's counts lie in
/// a band, but for one that brings their sum to the same number.
#[test]
fn large_splits_are_those_of_one_slot_at_a_time() {
    let mut checked = 0;
    for seed in 0..30 {
        let mut rng = Rng::new(seed);
        let spread = [3, 40, 1 << 20][seed as usize % 3];
        let kinds: Vec<LayoutKey> =
            (0..4).map(|kind| LayoutKey::tagged(kind.to_string(), [1 + rng.below(9), rng.below(9)])).collect();
        let layers: Vec<LayoutKey> = (0..6 + rng.below(4)).map(|_| kinds[rng.below(4) as usize].clone()).collect();
        let counts: Vec<Vec<u64>> = layers
            .iter()
            .map(|_| {
                let mut row: Vec<u64> = (0..999).map(|_| (1 << 20) + rng.below(spread)).collect();
                row.push((1 << 45) - row.iter().sum::<u64>());
                row
            })
            .collect();
        let model = Model::new(1_000, 8, Quantisation::PerLayer, layers).unwrap();
        let constraints = random_constraints(&mut rng, &model, split_of(Some(&counts)));
        let Ok(geometry) = Geometry::new(model, constraints) else { continue };
        check(&geometry, Some(&counts), &format!("seed {seed}"));
        checked += 1;
    }
    assert!(checked > 12, "{checked}");
}

/// One byte more is either of no use, or is the last byte of a slot that now fits and leaves nothing over.
#[test]
fn used_bytes_never_fall_when_a_byte_budget_grows() {
    let mut grown = 0;
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let (model, counts) = random_model(&mut rng, false);
        let (split, _) = random_split(&mut rng, &model, counts);
        let constraints = random_constraints(&mut rng, &model, split);
        let mut before = None;
        for budget in 0..2 * model.model_bytes() {
            let constraints = Constraints { budget: Budget::Bytes(budget), ..constraints.clone() };
            let used = Geometry::new(model.clone(), constraints).ok().map(|geometry| geometry.total_bytes());
            assert!(used == before || used == Some(budget), "seed {seed}: {before:?}, and {used:?} of {budget}");
            grown += usize::from(used != before);
            before = used;
        }
    }
    assert!(grown > 500, "{grown}");
}

#[test]
fn no_pool_shrinks_when_slots_of_equal_bytes_grow() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let (model, counts) = random_model(&mut rng, true);
        let (split, _) = random_split(&mut rng, &model, counts);
        let constraints = random_constraints(&mut rng, &model, split);
        let of = |budget| Geometry::new(model.clone(), Constraints { budget, ..constraints.clone() }).ok();
        let budgets: [Vec<Budget>; 2] = [
            (0..=model.model_bytes() / 12).map(Budget::Slots).collect(),
            (0..=model.model_bytes() + 40).map(Budget::Bytes).collect(),
        ];
        for pair in budgets.iter().flat_map(|budgets| budgets.windows(2)) {
            let (Some(less), Some(more)) = (of(pair[0]), of(pair[1])) else { continue };
            let (less, more) = (sizes(&less), sizes(&more));
            assert!(less.iter().zip(&more).all(|(a, b)| a <= b), "seed {seed} {pair:?}: {less:?}, {more:?}");
        }
    }
}

/// Slots of 10 and 3 bytes. With 22 bytes the second wide slot does not fit, and three narrow ones take its place; with
/// 23 it fits, and only they go.
#[test]
fn one_more_byte_can_take_slots_from_a_pool() {
    let layers = vec![LayoutKey::tagged("wide", [10]), LayoutKey::tagged("narrow", [3])];
    let model = Model::new(4, 1, Quantisation::PerLayer, layers).unwrap();
    let rows = vec![vec![1.0; 4]; 2];
    for split in [Split::Equal, Split::Profile(Profile::new("flat", &rows).unwrap())] {
        let of = |bytes| {
            let tail_pad = TailPad::Bytes(0);
            let constraints = Constraints { split: split.clone(), tail_pad, ..Constraints::new(Budget::Bytes(bytes)) };
            let geometry = Geometry::new(model.clone(), constraints).unwrap();
            (sizes(&geometry), geometry.total_bytes())
        };
        assert_eq!((of(22), of(23)), ((vec![1, 4], 22), (vec![2, 1], 23)), "{split:?}");
    }
}

/// In the per-layer scope the equal split leaves no pool behind, so one request more than its limit needs more.
#[test]
fn one_request_more_than_the_limit_needs_more() {
    let mut refused = 0;
    for seed in 0..2_000 {
        let mut rng = Rng::new(seed);
        let (model, _) = random_model(&mut rng, false);
        let constraints = random_constraints(&mut rng, &model, Split::Equal);
        let constraints = Constraints { scope: Scope::PerLayer, ..constraints };
        let Ok(geometry) = Geometry::new(model.clone(), constraints.clone()) else { continue };
        let Some(limit) = geometry.request_limit() else { continue };
        assert!(limit >= constraints.request_count, "seed {seed}");
        let of = |request_count| Geometry::new(model.clone(), Constraints { request_count, ..constraints.clone() });
        assert_eq!(of(limit).unwrap().request_limit(), Some(limit), "seed {seed}");
        match of(limit + 1).unwrap_err() {
            GeometryError::SlotsBelowMinimum { needed, given } => assert!(needed > given, "seed {seed}"),
            GeometryError::BudgetBelowMinimum { needed, given } => assert!(needed > u128::from(given), "seed {seed}"),
            GeometryError::SlotLimitBelowMinimum { needed, limit, .. } => assert!(needed > limit, "seed {seed}"),
            other => panic!("seed {seed}: {other}"),
        }
        refused += 1;
    }
    assert!(refused > 300, "{refused}");
}

fn two_kinds(change: impl Fn(&mut Constraints)) -> Result<Geometry, GeometryError> {
    let layer = |index: usize| LayoutKey::tagged(["a", "b"][index % 2], [[8, 4], [6, 2]][index % 2]);
    let model = Model::new(8, 2, Quantisation::PerLayer, (0..6).map(layer).collect()).unwrap();
    let mut constraints = Constraints::new(Budget::Bytes(1 << 20));
    change(&mut constraints);
    Geometry::new(model, constraints)
}

#[test]
fn a_pool_is_held_to_the_lower_of_both_limits() {
    let limit = |tag: &str, slots| TagLimit { tag: tag.into(), slots };
    let of = |slot_limit, tag_limits: &[TagLimit]| {
        let tag_limits = tag_limits.to_vec();
        two_kinds(|constraints| (constraints.slot_limit, constraints.tag_limits) = (slot_limit, tag_limits.clone()))
            .map(|geometry| sizes(&geometry))
    };
    assert_eq!(of(None, &[]), Ok(vec![24, 24]));
    assert_eq!(of(Some(20), &[limit("b", 9)]), Ok(vec![20, 9]));
    assert_eq!(of(Some(7), &[limit("b", 9)]), Ok(vec![7, 7]));
    assert_eq!(of(None, &[limit("a", 9), limit("a", 5), limit("b", 11)]), Ok(vec![5, 11]));
    assert_eq!(of(None, &[limit("a", 9), limit("c", 9)]), Err(GeometryError::UnknownTag { tag: b"c".to_vec() }));
    let below = of(Some(20), &[limit("b", 1)]).unwrap_err();
    assert_eq!(below.to_string(), "pool 1 needs at least 2 slots; at most 1 are allowed");
}

#[test]
fn pools_of_slotless_layers_vanish() {
    let without = |layers: &[u32]| {
        two_kinds(|constraints| constraints.slotless_layers = layers.iter().copied().map(LayerId::new).collect())
    };
    let geometry = without(&[0, 4, 2]).unwrap();
    assert_eq!(geometry.pools().len(), 1);
    let pools: Vec<Option<u32>> =
        geometry.model().layer_ids().map(|layer| geometry.pool_of_layer(layer).map(|pool| pool.get())).collect();
    assert_eq!(pools, [None, Some(0), None, Some(0), None, Some(0)]);
    assert_eq!(without(&[0, 1]).unwrap().pools().len(), 2);
    assert_eq!(without(&[5, 4, 3, 2, 1, 0]), Err(GeometryError::NothingCached { layers: 6 }));
    assert_eq!(without(&[6]), Err(GeometryError::UnknownLayer { layer: LayerId::new(6), layer_count: 6 }));
}

#[test]
fn slots_that_only_stage_are_one_or_two_whole_layers() {
    let of = |slotless: &[u32], scope, budget| {
        two_kinds(|constraints| {
            constraints.slotless_layers = slotless.iter().copied().map(LayerId::new).collect();
            (constraints.staging_only, constraints.scope, constraints.budget) = (true, scope, budget);
        })
    };
    let bytes = Budget::Bytes(1 << 20);
    assert_eq!(of(&[], Scope::Unified, bytes), Err(GeometryError::SeveralPoolsToStage { pools: 2 }));
    assert_eq!(of(&[0, 2, 4], Scope::PerLayer, bytes), Err(GeometryError::SeveralPoolsToStage { pools: 3 }));
    let slots =
        |budget| of(&[0, 2, 4], Scope::Unified, budget).map(|geometry| (sizes(&geometry), geometry.request_limit()));
    assert_eq!(slots(bytes), Ok((vec![16], None)));
    assert_eq!(slots(Budget::Slots(8)), Ok((vec![8], None)));
    assert_eq!(slots(Budget::Slots(7)), Err(GeometryError::SlotsBelowMinimum { needed: 8, given: 7 }));
    assert_eq!(slots(Budget::Slots(17)), Err(GeometryError::SlotsAboveMaximum { most: 16, given: 17 }));
}

#[test]
fn a_profile_of_a_million_experts() {
    let mut rng = Rng::new(1);
    let rows: Vec<Vec<f64>> = (0..100).map(|_| (0..10_000).map(|_| rng.below(1 << 20) as f64).collect()).collect();
    let profile = Profile::new("large", &rows).unwrap();
    let groups: Vec<Vec<LayerId>> = (0..100).map(|layer| vec![LayerId::new(layer)]).collect();
    let pools = vec![PoolBounds { layer_count: 1, min_slots: 8, max_slots: 10_000 }; 100];
    for total in [777_777, 1_000_000] {
        let sizes = split_profile(&pools, &groups, &profile, total).unwrap();
        assert_eq!(sizes.iter().map(|&size| u64::from(size)).sum::<u64>(), total);
        assert!(sizes.iter().all(|size| (8..=10_000).contains(size)), "{total} slots: {sizes:?}");
    }
}

/// Zero is zero, however it was written.
#[test]
fn an_expert_of_minus_zero_uses_is_not_the_most_used() {
    let layers = vec![LayoutKey::tagged("q", [8]); 2];
    let model = Model::new(4, 1, Quantisation::PerLayer, layers).unwrap();
    let of = |zero: f64| {
        let profile = Profile::new("zeros", &[vec![1.0, zero, zero, zero], vec![1.0; 4]]).unwrap();
        let (scope, split) = (Scope::PerLayer, Split::Profile(profile));
        sizes(
            &Geometry::new(model.clone(), Constraints { scope, split, ..Constraints::new(Budget::Slots(5)) }).unwrap(),
        )
    };
    assert_eq!((of(0.0), of(-0.0)), (vec![1, 4], vec![1, 4]));
}
