//! The split by curves: against every division there is, and what is refused.

use ftcache_policy::{
    Budget, Configuration, Constraints, Curves, CurvesError, Geometry, LayerId, LayoutKey, Model, Note, OtherModel,
    PoolBounds, Quantisation, Scope, Settings, Split, TailPad, split_curve, split_equal,
};
use ftcache_testkit::Rng;

fn groups(layers: u32) -> Vec<Vec<LayerId>> {
    (0..layers).map(|layer| vec![LayerId::new(layer)]).collect()
}

/// Falls that never grow.
fn convex(rng: &mut Rng, slots: u64, steepest: u64) -> Vec<u64> {
    let mut falls: Vec<u64> = (0..slots).map(|_| rng.below(steepest)).collect();
    falls.sort_unstable();
    let mut misses = vec![0];
    falls.iter().for_each(|fall| misses.push(misses[misses.len() - 1] + fall));
    misses.reverse();
    misses
}

/// A layer with a pool of its own, as a search through all divisions knows it.
struct Layer {
    min_slots: u32,
    max_slots: u32,
    row_bytes: u64,
    /// What a slot takes of the budget.
    cost: u64,
}

/// The least fetched bytes over all divisions within `budget`, from layer `first` on.
fn least_fetched(layers: &[Layer], curves: &Curves, first: usize, budget: u64) -> Option<u64> {
    let Some(layer) = layers.get(first) else { return Some(0) };
    let sizes = (layer.min_slots..=layer.max_slots).filter(|&size| u64::from(size) * layer.cost <= budget);
    let fetched = |size: u32| {
        let others = least_fetched(layers, curves, first + 1, budget - u64::from(size) * layer.cost)?;
        Some(others + curves.misses(LayerId::new(first as u32), size) * layer.row_bytes)
    };
    sizes.filter_map(fetched).min()
}

fn fetched(layers: &[Layer], curves: &Curves, sizes: &[u32]) -> u64 {
    (0..)
        .zip(sizes)
        .zip(layers)
        .map(|((index, &size), layer)| curves.misses(LayerId::new(index), size) * layer.row_bytes)
        .sum()
}

#[test]
fn no_division_of_convex_curves_fetches_less() {
    let mut checked = 0;
    for seed in 0..400 {
        let mut rng = Rng::new(seed);
        let (layers, experts) = (1 + rng.below(4), 1 + rng.below(5));
        let curves = Curves::new("any", (0..layers).map(|_| convex(&mut rng, experts, 9)).collect()).unwrap();
        let pool = PoolBounds { layer_count: 1, min_slots: 1, max_slots: experts as u32 };
        let pools = vec![pool; layers as usize];
        let row_bytes: Vec<u64> = (0..layers).map(|_| 1 + rng.below(4)).collect();
        let all: Vec<Layer> = row_bytes
            .iter()
            .map(|&row_bytes| Layer { min_slots: 1, max_slots: experts as u32, row_bytes, cost: 1 })
            .collect();
        for total in layers..=layers * experts {
            let sizes = split_curve(&pools, &groups(layers as u32), &curves, &row_bytes, total).unwrap();
            assert_eq!(sizes.iter().map(|&size| u64::from(size)).sum::<u64>(), total, "seed {seed}");
            let (found, least) = (fetched(&all, &curves, &sizes), least_fetched(&all, &curves, 0, total));
            assert_eq!(Some(found), least, "seed {seed}: {total} slots, {sizes:?}");
            checked += 1;
        }
    }
    assert!(checked > 1_500, "{checked}");
}

/// By bytes, with pads between slots. Where no slot was passed over for a lesser one, nothing fetches less within what
/// the division takes; else it is off by less than the first slot that did not fit would save.
#[test]
fn no_division_within_a_byte_budget_fetches_less_but_for_one_slot() {
    let (mut exact, mut passed_over) = (0, 0);
    for seed in 0..400 {
        let mut rng = Rng::new(seed);
        let (count, experts) = (2 + rng.below(3), 2 + rng.below(4));
        let curves = Curves::new("any", (0..count).map(|_| convex(&mut rng, experts, 9)).collect()).unwrap();
        let (alignment, slot_pad_bytes) = (1 << rng.below(4), rng.below(3));
        let mut all: Vec<Layer> = Vec::new();
        for _ in 0..count {
            let row_bytes = 1 + rng.below(12);
            let cost = (row_bytes + slot_pad_bytes).next_multiple_of(alignment);
            all.push(Layer { min_slots: 1, max_slots: experts as u32, row_bytes, cost });
        }
        let key = |(index, layer): (usize, &Layer)| LayoutKey::tagged(index.to_string(), [layer.row_bytes]);
        let keys = all.iter().enumerate().map(key).collect();
        let model = Model::new(experts as u32, 1, Quantisation::PerLayer, keys).unwrap();
        let least: u64 = all.iter().map(|layer| layer.cost).sum();
        for budget in least..=least * experts {
            let (split, tail_pad) = (Split::Curve(curves.clone()), TailPad::Bytes(0));
            let scope = Scope::PerLayer;
            let constraints = Constraints {
                scope,
                split,
                tail_pad,
                alignment,
                slot_pad_bytes,
                ..Constraints::new(Budget::Bytes(budget))
            };
            let geometry = Geometry::new(model.clone(), constraints).unwrap();
            let size = |layer| geometry.pool(geometry.pool_of_layer(layer).unwrap()).slot_count();
            let sizes: Vec<u32> = model.layer_ids().map(size).collect();
            let label = format!("seed {seed}: {budget} bytes, {sizes:?}");

            let found = fetched(&all, &curves, &sizes);
            // What the slot after `size` slots saves, and what it takes.
            let slot = |index: usize, size: u32| {
                let misses = |size| curves.misses(LayerId::new(index as u32), size);
                ((misses(size) - misses(size + 1)) * all[index].row_bytes, all[index].cost)
            };
            let by_worth = |one: &(u64, u64), other: &(u64, u64)| (one.0 * other.1).cmp(&(other.0 * one.1));
            let last = (0..all.len()).filter(|&index| sizes[index] > 1).map(|index| slot(index, sizes[index] - 1));
            let next = (0..all.len()).filter(|&index| sizes[index] < all[index].max_slots);
            let (last, next) = (last.min_by(by_worth), next.map(|index| slot(index, sizes[index])).max_by(by_worth));
            match (last, next) {
                (Some(last), Some(next)) if by_worth(&last, &next).is_lt() => {
                    let loss = found - least_fetched(&all, &curves, 0, budget).unwrap();
                    assert!(loss < next.0, "{label}: {loss} more, a slot saves {}", next.0);
                    passed_over += 1;
                }
                _ => {
                    let taken = sizes.iter().zip(&all).map(|(&size, layer)| u64::from(size) * layer.cost).sum();
                    assert_eq!(Some(found), least_fetched(&all, &curves, 0, taken), "{label}");
                    exact += 1;
                }
            }
        }
    }
    assert!(exact > 10_000 && passed_over > 1_000, "{exact} {passed_over}");
}

/// The same pools, and curves that are alike: nothing tells them apart, whatever their form.
#[test]
fn equal_curves_give_the_equal_split() {
    for misses in [vec![9; 9], vec![9, 9, 9, 9, 9, 9, 9, 9, 0], vec![80, 70, 60, 50, 40, 30, 20, 10, 0], vec![3, 2, 0]]
    {
        let curves = Curves::new("alike", vec![misses.clone(); 3]).unwrap();
        let pools = [PoolBounds { layer_count: 1, min_slots: 2, max_slots: 8 }; 3];
        for total in 6..=24 {
            let found = split_curve(&pools, &groups(3), &curves, &[7; 3], total);
            assert_eq!(found, split_equal(&pools, total), "{misses:?}, {total} slots");
        }
    }
}

/// One edge of a thousand misses is worth four slots before it, but not five.
#[test]
fn slots_before_an_edge_count_for_the_edge() {
    let of = |slope: u64, total| {
        let cliff = vec![1_000, 1_000, 1_000, 1_000, 1_000, 0];
        let slopes = (0..=5).map(|slots| 5 * slope - slots * slope).collect();
        let curves = Curves::new("edge", vec![slopes, cliff]).unwrap();
        let pools = [PoolBounds { layer_count: 1, min_slots: 1, max_slots: 5 }; 2];
        split_curve(&pools, &groups(2), &curves, &[1, 1], total).unwrap()
    };
    // Four slots save 250 each.
    assert_eq!((of(249, 6), of(251, 6)), (vec![1, 5], vec![5, 1]));
    // Of equal savings the smaller pool has the next slot, and of equal pools the lower.
    assert_eq!((of(250, 3), of(250, 4)), (vec![2, 1], vec![2, 2]));
}

/// Slots of 10 and of 3 bytes. What a slot saves is bytes too, so of rows without pads misses alone decide.
#[test]
fn misses_weigh_their_bytes() {
    let layers = vec![LayoutKey::tagged("wide", [10]), LayoutKey::tagged("narrow", [3])];
    let model = Model::new(4, 1, Quantisation::PerLayer, layers).unwrap();
    let curves = |wide: u64, narrow: u64| {
        let fall = |saved: u64| (0..=4).rev().map(|left| left * saved).collect();
        Curves::new("two widths", vec![fall(wide), fall(narrow)]).unwrap()
    };
    let of = |curves, budget, slot_pad_bytes| {
        let (split, tail_pad) = (Split::Curve(curves), TailPad::Bytes(0));
        let constraints = Constraints { split, tail_pad, slot_pad_bytes, ..Constraints::new(budget) };
        Geometry::new(model.clone(), constraints)
            .unwrap()
            .pools()
            .iter()
            .map(|pool| pool.slot_count())
            .collect::<Vec<_>>()
    };
    // Both minima take 13 bytes. A wide slot that saves 4 misses saves 40 bytes with 10, three narrow ones 27 with 9.
    assert_eq!(of(curves(4, 3), Budget::Bytes(23), 0), [2, 1]);
    assert_eq!(of(curves(3, 4), Budget::Bytes(23), 0), [1, 4]);
    // Alike, they go round: the narrow pool is the smaller one after the first wide slot, and no other wide one fits.
    assert_eq!(of(curves(3, 3), Budget::Bytes(29), 0), [2, 3]);
    // A wide slot is out where it does not fit, and the narrow ones go on.
    assert_eq!(of(curves(4, 3), Budget::Bytes(22), 0), [1, 4]);
    // Pads take bytes and save none: 40 for 12 are less than 21 for 5, and more than 15 for 5.
    assert_eq!(of(curves(4, 7), Budget::Bytes(29), 2), [1, 3]);
    assert_eq!(of(curves(4, 5), Budget::Bytes(29), 2), [2, 1]);
    // By slots all take the same, and a wide row weighs 10 to 3.
    assert_eq!(of(curves(3, 9), Budget::Slots(5), 0), [4, 1]);
    assert_eq!(of(curves(3, 11), Budget::Slots(5), 0), [1, 4]);
}

/// Two layers of one key share a pool: its third slot is the first layer's second.
#[test]
fn a_pool_of_several_layers_shares_its_slots_out_equally() {
    let layers = vec![LayoutKey::tagged("a", [8]), LayoutKey::tagged("a", [8]), LayoutKey::tagged("b", [8])];
    let model = Model::new(3, 1, Quantisation::PerLayer, layers).unwrap();
    let of = |scope, slots| {
        let curves = vec![vec![90, 60, 40, 30], vec![50, 40, 35, 33], vec![90, 75, 60, 45]];
        let split = Split::Curve(Curves::new("three", curves).unwrap());
        let geometry =
            Geometry::new(model.clone(), Constraints { scope, split, ..Constraints::new(Budget::Slots(slots)) });
        geometry.unwrap().pools().iter().map(|pool| pool.slot_count()).collect::<Vec<_>>()
    };
    // From one slot on, the pool of both saves 10, 20, 5, 10, 2: a hull of 15, 15, 7.5, 7.5, 2. The other
    // saves 15 and 15.
    let found: Vec<_> = (2..=9).map(|slots| of(Scope::Unified, slots)).collect();
    assert_eq!(found, [[1, 1], [2, 1], [3, 1], [3, 2], [3, 3], [4, 3], [5, 3], [6, 3]]);
    assert_eq!(of(Scope::PerLayer, 6), [2, 1, 3]);
}

#[test]
fn sums_beyond_64_bits_are_refused_and_those_within_are_exact() {
    let most = u64::MAX / 2;
    let curves = Curves::new("large", vec![vec![most, most - 2, 0], vec![most, most - 1, 0]]).unwrap();
    let pools = [PoolBounds { layer_count: 1, min_slots: 1, max_slots: 2 }; 2];
    for row_bytes in [1, u64::MAX] {
        assert_eq!(split_curve(&pools, &groups(2), &curves, &[row_bytes; 2], 3), Ok(vec![1, 2]));
    }
    // The first saves a miss more, of rows that are two or three bytes narrower: one byte more in 128 bits, or fewer.
    let curves = Curves::new("large", vec![vec![most, most, 0], vec![most, most, 1]]).unwrap();
    let of = |narrower| split_curve(&pools, &groups(2), &curves, &[u64::MAX - narrower, u64::MAX], 3).unwrap();
    assert_eq!((of(2), of(3)), (vec![2, 1], vec![1, 2]));
    let error = Curves::new("large", vec![vec![most], vec![most], vec![2]]).unwrap_err();
    assert_eq!(error, CurvesError::TooLarge { layer: LayerId::new(2) });
}

#[test]
fn every_refusal_names_both_numbers() {
    let of = |misses: &[&[u64]]| Curves::new("any", misses.iter().map(|curve| curve.to_vec()).collect());
    let model = Model::new(3, 1, Quantisation::PerLayer, vec![LayoutKey::tagged("q", [8]); 2]).unwrap();
    let given = |curves: &Curves| {
        let split = Split::Curve(curves.clone());
        Geometry::new(model.clone(), Constraints { split, ..Constraints::new(Budget::Slots(4)) }).map(|_| ())
    };
    let refused = [
        of(&[]).unwrap_err().to_string(),
        of(&[&[3, 2], &[]]).unwrap_err().to_string(),
        of(&[&[3, 2], &[5, 4, 6]]).unwrap_err().to_string(),
        of(&[&[u64::MAX], &[1]]).unwrap_err().to_string(),
        given(&of(&[&[3, 2]]).unwrap()).unwrap_err().to_string(),
        given(&of(&[&[3, 2, 1, 0], &[4, 3, 2, 1, 0]]).unwrap()).unwrap_err().to_string(),
    ];
    let wanted = [
        "the curves have no layer",
        "the curves of 2 layers have 0 numbers for layer 1; at least 1 is needed",
        "the curve of layer 1 rises from 4 misses with 1 slots to 6 with 2",
        "the curves' misses without a slot are too many to be summed up to layer 1",
        "the curves have 1 layers; the model has 2",
        "the curve of layer 1 goes on to 4 slots; the model has 3 experts",
    ];
    assert_eq!(refused, wanted);
}

#[test]
fn curves_of_another_model_are_noted_or_refused() {
    let model = Model::new(3, 1, Quantisation::PerLayer, vec![LayoutKey::tagged("q", [8]); 2]).unwrap();
    let of = |name: Option<&str>, other_model| {
        let split = Split::Curve(Curves::new("counted", vec![vec![3, 2, 1, 0]; 2]).unwrap());
        let constraints = Constraints { split, ..Constraints::new(Budget::Slots(6)) };
        let settings = Settings { model_name: name.map(str::to_owned), other_model, ..Settings::new(constraints) };
        Configuration::new(model.clone(), settings)
    };
    let noted = |name| of(name, OtherModel::Note).unwrap().notes().to_vec();
    let note = Note::OtherCurves { curves: "counted".into(), model: "served".into() };
    assert!(noted(Some("served")).contains(&note) && !noted(Some("counted")).contains(&note));
    assert!(!noted(None).contains(&note));
    let text = "the curves were counted on \"counted\"; this model is \"served\"";
    assert_eq!(note.to_string(), text);
    assert_eq!(of(Some("served"), OtherModel::Refuse).unwrap_err().to_string(), text);
    let unknown = of(None, OtherModel::Refuse).unwrap_err().to_string();
    assert_eq!(unknown, "refusing another model's curves would have no effect: the model's name is not known");
    assert_eq!(of(Some("counted"), OtherModel::Refuse).unwrap().settings().constraints.split.to_string(), "curve");
}
