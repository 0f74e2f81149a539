//! The pools, splits, staging buffers and fetch counts of the reference system, case by case.

use std::collections::HashSet;

use ftcache_policy::{
    Budget, Carried, Constraints, Geometry, GeometryError, LayerId, LayoutKey, Model, PoolBounds, PoolId, PoolSlots,
    Profile, Quantisation, Scope, SlotRange, SlotRun, Split, Staging, group_layers, place_pools, split_equal,
    split_profile,
};
use ftcache_testkit::golden::{self, HybridCase, PolicyCase, StagingCase};

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

/// Every case with the split it was made for: 150 of each.
#[test]
fn splits_are_those_of_the_reference() {
    let mut checked = [0, 0];
    for (line, case) in golden::cases::<PolicyCase>("policy.jsonl").iter().enumerate() {
        let at = format!("line {}", line + 1);
        let profile = case.expert_counts.as_ref().map(|counts| Profile::new("golden", counts).expect("counts"));
        checked[usize::from(profile.is_some())] += 1;
        let (least, most) = case
            .pools
            .iter()
            .fold((0, 0), |(least, most), pool| (least + u64::from(pool.min), most + u64::from(pool.max)));
        let split = profile.clone().map_or(Split::Equal, Split::Profile);
        match Geometry::new(model(case), Constraints { split, ..constraints(case) }) {
            Ok(geometry) => {
                for (pool, wanted) in geometry.pools().iter().zip(&case.pools) {
                    assert_eq!((pool.bounds().min_slots, pool.bounds().max_slots), (wanted.min, wanted.max), "{at}");
                }
                let pool_of_layer: Vec<u32> = geometry
                    .model()
                    .layer_ids()
                    .map(|layer| geometry.pool_of_layer(layer).expect("every layer has slots").get())
                    .collect();
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
        let groups: Vec<Vec<LayerId>> =
            case.groups.iter().map(|layers| layers.iter().copied().map(LayerId::new).collect()).collect();
        let split = match &profile {
            None => split_equal(&bounds, case.total),
            Some(profile) => split_profile(&bounds, &groups, profile, case.total),
        };
        if least <= case.total && case.total <= most {
            assert_eq!(split.as_ref().ok(), case.sizes.as_ref(), "{at}");
        } else {
            assert!(split.is_err(), "{at}");
        }
    }
    assert_eq!(checked, [150, 150]);
}

#[test]
fn staging_is_that_of_the_reference() {
    let (mut staged, mut refused) = (0, 0);
    for (line, case) in golden::cases::<StagingCase>("staging.jsonl").iter().enumerate() {
        let at = format!("line {}", line + 1);
        let bank_count = case.row_bytes[0].len();
        // The reference's pools come in any order and of any size, so they are placed here without a geometry.
        let mut kinds = vec![0; case.pool_sizes.len()];
        for (&kind, &pool) in case.layer_kind.iter().zip(&case.pool_of_layer) {
            kinds[pool as usize] = kind;
        }
        let range = |&row_bytes: &u64| SlotRange { row_bytes, stride: row_bytes, offset: 0, tail_pad_bytes: 0 };
        let pool = |(&slot_count, &kind): (&u32, &usize)| PoolSlots {
            slot_count,
            ranges: case.row_bytes[kind].iter().map(range).collect(),
        };
        let mut pools: Vec<PoolSlots> = case.pool_sizes.iter().zip(&kinds).map(pool).collect();
        let arena_bytes = place_pools(&mut pools, bank_count);
        let one_key = kinds.iter().all(|&kind| kind == kinds[0]);

        let staging =
            match Staging::on_slots(case.num_experts, one_key, &pools.iter().collect::<Vec<_>>(), &arena_bytes) {
                Ok(staging) => staging,
                Err(error) => {
                    assert_eq!(case.error.as_deref(), Some("cannot_stage_one_layer"), "{at}");
                    assert!(
                        error.needed > error.given && error.given == arena_bytes[error.bank.index()],
                        "{at}: {error}"
                    );
                    refused += 1;
                    continue;
                }
            };
        staged += 1;
        assert_eq!(Some(&arena_bytes), case.bank_bytes.as_ref(), "{at}");
        let offsets: Vec<Vec<u64>> =
            (0..bank_count).map(|bank| pools.iter().map(|pool| pool.ranges[bank].offset).collect()).collect();
        assert_eq!(Some(&offsets), case.pool_offsets.as_ref(), "{at}");
        let stage_bytes: Vec<u64> = staging.ranges().iter().map(|range| range.stage_bytes).collect();
        assert_eq!(Some(&stage_bytes), case.stage_bytes.as_ref(), "{at}");
        assert_eq!(Some(staging.buffer_count() == 2), case.overlap_fits, "{at}");
        assert_eq!(staging.second_lacks().is_none(), staging.buffer_count() == 2, "{at}");
        // The vectors have the bounds of two buffers, also where the second does not fit.
        let stable_from: Vec<u32> =
            (0..pools.len()).map(|pool| staging.stable_from_with(PoolId::from_index(pool), 2)).collect();
        assert_eq!(Some(&stable_from), case.stable_from.as_ref(), "{at}");
        // Global slot numbers: the pools' slots in order.
        let first_of = |pool: PoolId| pools[..pool.index()].iter().map(|pool| u64::from(pool.slot_count)).sum::<u64>();
        let slots = |run: &SlotRun| {
            let first = first_of(run.pool) + u64::from(run.first.get());
            first..first + u64::from(run.count)
        };
        let invalidates: Vec<Vec<u64>> =
            (0..2).map(|buffer| staging.invalidates(buffer).iter().flat_map(slots).collect()).collect();
        assert_eq!(Some(&invalidates), case.invalidates.as_ref(), "{at}");
    }
    assert_eq!((staged, refused), (196, 4));
}

/// The number that is fetched in every step of the reference's hybrid kernel; which ones is residency's to decide.
#[test]
fn fetched_counts_are_those_of_the_reference() {
    let mut checked = 0;
    for (line, case) in golden::cases::<HybridCase>("hybrid.jsonl").iter().enumerate() {
        let mut resident = vec![HashSet::new(); case.pool_sizes.len()];
        let mut owner: Vec<Vec<Option<(u32, u32)>>> =
            case.pool_sizes.iter().map(|&size| vec![None; size as usize]).collect();
        for (index, step) in case.steps.iter().enumerate() {
            let at = format!("line {} step {index}", line + 1);
            let pool = case.pool_of_layer[step.layer as usize] as usize;
            let distinct: HashSet<u32> = step.experts.iter().copied().collect();
            let hits = distinct.iter().filter(|&&expert| resident[pool].contains(&(step.layer, expert))).count() as u32;
            let misses = distinct.len() as u32 - hits;
            assert_eq!(misses, step.missing, "{at}");
            let fetch = case.fetch(step);
            let unused = case.pool_sizes[pool] - hits;
            assert_eq!(fetch.fetched_count(misses, unused, &mut Carried::default()), step.fetched, "{at}");
            checked += 1;
            for &(slot, expert) in &step.copies {
                if let Some(old) = owner[pool][slot as usize].replace((step.layer, expert)) {
                    resident[pool].remove(&old);
                }
                resident[pool].insert((step.layer, expert));
            }
        }
    }
    assert_eq!(checked, 918);
}
