//! The pool geometry and the `equal` split of the reference system, case by case.

use ftcache_policy::{
    Budget, Constraints, Geometry, GeometryError, LayoutKey, Model, PoolBounds, Quantisation, Scope, group_layers,
    split_equal,
};
use ftcache_testkit::golden::{self, PolicyCase};

fn model(case: &PolicyCase) -> Model {
    let layer = |(layout, bytes): (&u32, &u64)| LayoutKey::tagged(layout.to_string(), [*bytes]);
    let layers = case.layouts.iter().zip(&case.slot_bytes).map(layer).collect();
    // The vectors give the least slots as a number; one request of that many routes asks for the same.
    Model::new(case.num_experts, case.min_slots, Quantisation::PerLayer, layers).expect("a model of the reference")
}

fn constraints(case: &PolicyCase) -> Constraints {
    let scope = match case.scope.as_str() {
        "unified" => Scope::Unified,
        "per-layer" => Scope::PerLayer,
        other => panic!("scope {other}"),
    };
    Constraints { scope, slot_limit: case.slot_limit, ..Constraints::new(Budget::Slots(case.total)) }
}

#[test]
fn layers_are_grouped_as_in_the_reference() {
    let cases = golden::cases::<PolicyCase>("policy.jsonl");
    assert_eq!(cases.len(), 300);
    for (line, case) in cases.iter().enumerate() {
        let model = model(case);
        let groups = group_layers(&model, constraints(case).scope);
        let groups: Vec<Vec<u32>> = groups.iter().map(|layers| layers.iter().map(|l| l.get()).collect()).collect();
        assert_eq!(groups, case.groups, "line {}", line + 1);
        let pool_layers: Vec<Vec<u32>> = case.pools.iter().map(|pool| pool.layers.clone()).collect();
        assert_eq!(groups, pool_layers, "line {}", line + 1);
    }
}

#[test]
fn equal_splits_are_those_of_the_reference() {
    let mut checked = 0;
    for (line, case) in golden::cases::<PolicyCase>("policy.jsonl").iter().enumerate() {
        if case.expert_counts.is_some() {
            continue;
        }
        checked += 1;
        let at = format!("line {}", line + 1);
        let (least, most) = case
            .pools
            .iter()
            .fold((0, 0), |(least, most), pool| (least + u64::from(pool.min), most + u64::from(pool.max)));
        match Geometry::new(model(case), constraints(case)) {
            Ok(geometry) => {
                for (pool, wanted) in geometry.pools().iter().zip(&case.pools) {
                    assert_eq!((pool.bounds().min_slots, pool.bounds().max_slots), (wanted.min, wanted.max), "{at}");
                }
                let pool_of_layer: Vec<u32> =
                    geometry.model().layer_ids().map(|layer| geometry.pool_of_layer(layer).get()).collect();
                assert_eq!(pool_of_layer, case.pool_of_layer, "{at}");
                let sizes: Vec<u32> = geometry.pools().iter().map(|pool| pool.slot_count()).collect();
                assert_eq!(Some(&sizes), case.sizes.as_ref(), "{at}");
            }
            // The reference gives a single pool any total; ours refuses what its bounds refuse.
            Err(GeometryError::SlotsBelowMinimum { needed, given }) => {
                assert_eq!((needed, given), (least, case.total), "{at}");
                assert!(case.error.as_deref() == Some("below_minimum") || case.pools.len() == 1, "{at}");
            }
            Err(GeometryError::SlotsAboveMaximum { most: ours, given }) => {
                assert_eq!((ours, given), (most, case.total), "{at}");
                assert!(case.error.as_deref() == Some("above_maximum") || case.pools.len() == 1, "{at}");
            }
            Err(other) => panic!("{at}: {other}"),
        }
        let bounds: Vec<PoolBounds> = case
            .pools
            .iter()
            .map(|p| PoolBounds { layer_count: p.layers.len() as u32, min_slots: p.min, max_slots: p.max })
            .collect();
        if least <= case.total && case.total <= most {
            assert_eq!(split_equal(&bounds, case.total).as_ref().ok(), case.sizes.as_ref(), "{at}");
        } else {
            assert!(split_equal(&bounds, case.total).is_err(), "{at}");
        }
    }
    assert_eq!(checked, 150);
}
