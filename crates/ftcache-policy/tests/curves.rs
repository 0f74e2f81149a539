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

/// The least misses over all divisions of at most `total` slots.
fn least_misses(pools: &[PoolBounds], curves: &Curves, layer: u32, total: u64) -> Option<u64> {
    let Some(pool) = pools.get(layer as usize) else { return Some(0) };
    let sizes = (pool.min_slots..=pool.max_slots).filter(|&size| u64::from(size) <= total);
    let misses = |size: u32| {
        let others = least_misses(pools, curves, layer + 1, total - u64::from(size))?;
        Some(others + curves.misses(LayerId::new(layer), size))
    };
    sizes.filter_map(misses).min()
}

#[test]
fn no_division_of_convex_curves_misses_less() {
    let mut checked = 0;
    for seed in 0..400 {
        let mut rng = Rng::new(seed);
        let (layers, experts) = (1 + rng.below(4), 1 + rng.below(5));
        let curves = Curves::new("any", (0..layers).map(|_| convex(&mut rng, experts, 9)).collect()).unwrap();
        let pool = PoolBounds { layer_count: 1, min_slots: 1, max_slots: experts as u32 };
        let pools = vec![pool; layers as usize];
        for total in layers..=layers * experts {
            let sizes = split_curve(&pools, &groups(layers as u32), &curves, total).unwrap();
            assert_eq!(sizes.iter().map(|&size| u64::from(size)).sum::<u64>(), total, "seed {seed}");
            let misses: u64 = (0..).zip(&sizes).map(|(layer, &size)| curves.misses(LayerId::new(layer), size)).sum();
            assert_eq!(Some(misses), least_misses(&pools, &curves, 0, total), "seed {seed}: {total} slots, {sizes:?}");
            checked += 1;
        }
    }
    assert!(checked > 1_500, "{checked}");
}

/// The same pools, and curves that are alike: nothing tells them apart, whatever their form.
#[test]
fn equal_curves_give_the_equal_split() {
    for misses in [vec![9; 9], vec![9, 9, 9, 9, 9, 9, 9, 9, 0], vec![80, 70, 60, 50, 40, 30, 20, 10, 0], vec![3, 2, 0]]
    {
        let curves = Curves::new("alike", vec![misses.clone(); 3]).unwrap();
        let pools = [PoolBounds { layer_count: 1, min_slots: 2, max_slots: 8 }; 3];
        for total in 6..=24 {
            let found = split_curve(&pools, &groups(3), &curves, total);
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
        split_curve(&pools, &groups(2), &curves, total).unwrap()
    };
    // Four slots save 250 each.
    assert_eq!((of(249, 6), of(251, 6)), (vec![1, 5], vec![5, 1]));
    // Of equal savings the smaller pool has the next slot, and of equal pools the lower.
    assert_eq!((of(250, 3), of(250, 4)), (vec![2, 1], vec![2, 2]));
}

/// A slot of 10 bytes that saves 9 misses, and slots of 3 bytes that save 3 each.
#[test]
fn slots_weigh_their_bytes() {
    let layers = vec![LayoutKey::tagged("wide", [10]), LayoutKey::tagged("narrow", [3])];
    let model = Model::new(4, 1, Quantisation::PerLayer, layers).unwrap();
    let curves = |wide: u64, narrow: u64| {
        let fall = |saved: u64| (0..=4).rev().map(|left| left * saved).collect();
        Curves::new("two widths", vec![fall(wide), fall(narrow)]).unwrap()
    };
    let of = |curves, budget| {
        let (split, tail_pad) = (Split::Curve(curves), TailPad::Bytes(0));
        let geometry = Geometry::new(model.clone(), Constraints { split, tail_pad, ..Constraints::new(budget) });
        geometry.unwrap().pools().iter().map(|pool| pool.slot_count()).collect::<Vec<_>>()
    };
    // Both minima take 13 bytes. By bytes three narrow slots go before one wide one, unless it saves more than 10.
    assert_eq!(of(curves(9, 3), Budget::Bytes(23)), [1, 4]);
    assert_eq!(of(curves(11, 3), Budget::Bytes(23)), [2, 1]);
    // A wide slot is out where it does not fit, and the narrow ones go on.
    assert_eq!(of(curves(11, 3), Budget::Bytes(22)), [1, 4]);
    // By slots all weigh the same.
    assert_eq!(of(curves(9, 3), Budget::Slots(5)), [4, 1]);
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
    assert_eq!(split_curve(&pools, &groups(2), &curves, 3), Ok(vec![1, 2]));
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
