//! Known answers, and the properties that every geometry has.

use ftcache_policy::{
    Budget, Constraints, Geometry, GeometryError, LayerId, LayoutKey, Model, PoolBounds, Quantisation, Scope, TailPad,
    parse_bytes, split_equal,
};
use ftcache_testkit::Rng;

fn equal_layers(layer_count: usize, expert_count: u32, top_k: u32) -> Model {
    let layers = vec![LayoutKey::tagged("q", [100, 28]); layer_count];
    Model::new(expert_count, top_k, Quantisation::PerLayer, layers).unwrap()
}

/// 39 layers of Q4_K and 8 of BF16 rows, 256 experts, top-10.
fn mixed_quants() -> Model {
    let layer = |index: usize| match index % 6 {
        0 => LayoutKey::tagged("BF16", [12_582_912, 6_291_456]),
        _ => LayoutKey::tagged("Q4_K", [3_538_944, 1_769_472]),
    };
    Model::new(256, 10, Quantisation::PerLayer, (0..47).map(layer).collect()).unwrap()
}

fn sizes(geometry: &Geometry) -> Vec<u32> {
    geometry.pools().iter().map(|pool| pool.slot_count()).collect()
}

#[test]
fn a_byte_budget_over_two_widths() {
    let budget = 480 * 18_874_368;
    let without_pads = Constraints { tail_pad: TailPad::Bytes(0), ..Constraints::new(Budget::Bytes(budget)) };
    let geometry = Geometry::new(mixed_quants(), without_pads).unwrap();
    assert_eq!(sizes(&geometry), [202, 988]);
    assert_eq!(geometry.total_bytes(), 202 * 18_874_368 + 988 * 5_308_416);
    assert_eq!(geometry.pad_bytes(), 0);
    // What is left over in each bank, by the sizes of an arena of 480 of the widest slots.
    assert_eq!(480 * 12_582_912 - geometry.arena_bytes()[0], 1_572_864);
    assert_eq!(480 * 6_291_456 - geometry.arena_bytes()[1], 786_432);

    let geometry = Geometry::new(mixed_quants(), Constraints::new(Budget::Bytes(budget))).unwrap();
    assert_eq!(sizes(&geometry), [202, 988]);
    assert_eq!(geometry.pad_bytes(), 2 * 2 * 512);
    assert_eq!(geometry.request_limit(), Some(20));
}

#[test]
fn equal_split_of_48_layers() {
    let constraints = Constraints { scope: Scope::PerLayer, ..Constraints::new(Budget::Slots(1_024)) };
    let geometry = Geometry::new(equal_layers(48, 128, 8), constraints).unwrap();
    assert_eq!(sizes(&geometry), [vec![22; 16], vec![21; 32]].concat());
    assert_eq!(geometry.request_limit(), Some(2));
}

#[test]
fn requests_need_slots_in_every_pool() {
    let with =
        |slots| Constraints { scope: Scope::PerLayer, request_count: 4, ..Constraints::new(Budget::Slots(slots)) };
    let error = Geometry::new(equal_layers(40, 256, 8), with(1_279)).unwrap_err();
    assert_eq!(error, GeometryError::SlotsBelowMinimum { needed: 1_280, given: 1_279 });
    let geometry = Geometry::new(equal_layers(40, 256, 8), with(1_280)).unwrap();
    assert_eq!((geometry.slot_count(), geometry.request_limit()), (1_280, Some(4)));
}

#[test]
fn a_slot_for_every_expert_bounds_no_request() {
    let geometry = Geometry::new(equal_layers(3, 8, 2), Constraints::new(Budget::Bytes(u64::MAX))).unwrap();
    assert_eq!((geometry.slot_count(), geometry.request_limit()), (24, None));
    // All layers share one pool; with a slot for each expert of a layer, no step can be too wide for it.
    let geometry = Geometry::new(equal_layers(3, 8, 2), Constraints::new(Budget::Slots(8))).unwrap();
    assert_eq!(geometry.request_limit(), None);
}

#[test]
fn layout_keys_decide_who_shares() {
    let pools = |layers: Vec<LayoutKey>, quantisation| -> Result<Vec<Vec<u32>>, GeometryError> {
        let geometry = Geometry::new(Model::new(4, 2, quantisation, layers)?, Constraints::new(Budget::Slots(8)))?;
        Ok(geometry.pools().iter().map(|pool| pool.layers().iter().map(|layer| layer.get()).collect()).collect())
    };
    let tagged = |tag: &str| LayoutKey::tagged(tag, [8, 4]);
    assert_eq!(
        pools(vec![tagged("a"), tagged("b"), tagged("a")], Quantisation::PerLayer),
        Ok(vec![vec![0, 2], vec![1]])
    );
    // A tag is any byte string, the empty one included; it is not the same as no tag.
    let untagged = LayoutKey::untagged([8, 4]);
    assert_eq!(pools(vec![tagged(""), untagged.clone()], Quantisation::PerLayer), Ok(vec![vec![0], vec![1]]));
    // Equal sums over differently cut rows are two keys; a missing bank reads as zero bytes.
    assert_eq!(
        pools(vec![LayoutKey::tagged("a", [8, 4]), LayoutKey::tagged("a", [4, 8])], Quantisation::PerLayer),
        Ok(vec![vec![0], vec![1]])
    );
    assert_eq!(
        pools(vec![LayoutKey::tagged("a", [8]), LayoutKey::tagged("a", [8, 0])], Quantisation::PerLayer),
        Ok(vec![vec![0, 1]])
    );
    let two = vec![untagged.clone(), LayoutKey::untagged([12, 4]), untagged];
    assert_eq!(pools(two.clone(), Quantisation::One), Ok(vec![vec![1], vec![0, 2]]));
    assert_eq!(
        pools(two, Quantisation::PerLayer),
        Err(GeometryError::UntaggedLayers { first: LayerId::new(0), second: LayerId::new(2), expert_bytes: 12 })
    );
}

#[test]
fn strides_offsets_and_pads() {
    let layers = vec![LayoutKey::tagged("a", [100, 3]), LayoutKey::tagged("b", [0, 70])];
    let model = Model::new(4, 1, Quantisation::PerLayer, layers).unwrap();
    let constraints = Constraints {
        alignment: 16,
        slot_pad_bytes: 1,
        tail_pad: TailPad::RowUpTo(32),
        ..Constraints::new(Budget::Slots(5))
    };
    let geometry = Geometry::new(model, constraints).unwrap();
    let ranges: Vec<_> = geometry.pools().iter().flat_map(|pool| pool.ranges()).collect();
    let seen: Vec<_> = ranges.iter().map(|r| (r.row_bytes, r.stride, r.offset, r.tail_pad_bytes)).collect();
    assert_eq!(sizes(&geometry), [3, 2]);
    assert_eq!(seen, [(100, 112, 0, 32), (3, 16, 0, 16), (0, 0, 368, 0), (70, 80, 64, 32)]);
    assert_eq!(geometry.arena_bytes(), [368, 256]);
    assert_eq!(geometry.pad_bytes(), 368 + 256 - 3 * 103 - 2 * 70);
}

/// The split as it is told: one slot at a time, each to the pool with the fewest slots per layer.
fn one_slot_at_a_time(pools: &[PoolBounds], total: u64) -> Vec<u32> {
    let mut sizes: Vec<u32> = pools.iter().map(|pool| pool.min_slots).collect();
    while sizes.iter().map(|&size| u64::from(size)).sum::<u64>() < total {
        let open = (0..pools.len()).filter(|&index| sizes[index] < pools[index].max_slots);
        // Whole numbers: all layer counts divide 27,720.
        let level = |&index: &usize| sizes[index] * (27_720 / pools[index].layer_count);
        let next = open.min_by_key(level).expect("a total that the pools can use");
        sizes[next] += 1;
    }
    sizes
}

#[test]
fn splits_are_those_of_one_slot_at_a_time() {
    for seed in 0..2_000 {
        let mut rng = Rng::new(seed);
        let pools: Vec<PoolBounds> = (0..1 + rng.below(7))
            .map(|_| {
                let min_slots = rng.below(9) as u32;
                let max_slots = min_slots + rng.below(60) as u32;
                PoolBounds { layer_count: 1 + rng.below(12) as u32, min_slots, max_slots }
            })
            .collect();
        let least: u64 = pools.iter().map(|pool| u64::from(pool.min_slots)).sum();
        let most: u64 = pools.iter().map(|pool| u64::from(pool.max_slots)).sum();
        let total = least + rng.below(most - least + 1);
        let wanted = one_slot_at_a_time(&pools, total);
        let given = split_equal(&pools, total).unwrap();
        assert_eq!(given, wanted, "seed {seed}: {pools:?}, {total} slots");
        assert_eq!(given.iter().map(|&size| u64::from(size)).sum::<u64>(), total, "seed {seed}");
    }
}

#[test]
fn a_million_slots_over_a_hundred_layers() {
    let pools = vec![PoolBounds { layer_count: 1, min_slots: 8, max_slots: 20_000 }; 100];
    let sizes = split_equal(&pools, 1_000_007).unwrap();
    assert_eq!(sizes, [vec![10_001; 7], vec![10_000; 93]].concat());
}

#[test]
fn slots_that_cannot_be_counted_are_refused() {
    let layers = vec![LayoutKey::tagged("q", [64]); 1];
    let model = Model::new(1 << 17, 1, Quantisation::PerLayer, layers).unwrap();
    for (alignment, slot_pad_bytes) in [(1 << 47, 0), (1 << 30, (1 << 47) - 64)] {
        let constraints = Constraints { alignment, slot_pad_bytes, ..Constraints::new(Budget::Slots(1 << 17)) };
        let error = Geometry::new(model.clone(), constraints).unwrap_err();
        assert!(matches!(error, GeometryError::TooManyBytes { bytes, .. } if bytes >= 1 << 64), "{error}");
    }
}

#[test]
fn byte_counts_as_people_write_them() {
    let check = |text: &str, bytes: u64| assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
    check("0", 0);
    check("9059696640", 9_059_696_640);
    check("480*18874368", 9_059_696_640);
    check("480 * 18 MiB", 9_059_696_640);
    check("12GiB", 12 << 30);
    check("12gb", 12_000_000_000);
    check("1.5 KiB", 1_536);
    check("0.1GB", 100_000_000);
    check("1_000kB", 1_000_000);
    // Only the product is cut off.
    check("0.9*24GiB", 23_192_823_398);
    check("0.5*0.5*7", 1);
    check("18446744073709551615", u64::MAX);
    for text in ["", "_", "GiB", "12 GiBs", "-1", "1e9", "1..5", ".5GB", "2*", "0x10", "1.5.5"] {
        assert!(parse_bytes(text).is_err(), "{text:?} was taken for {:?}", parse_bytes(text));
    }
    for text in ["18446744073709551616", "99_999_999_999_999_999_999.5", "16777216TiB", "4294967296*4294967296"] {
        assert!(parse_bytes(text).unwrap_err().to_string().contains("is over"), "{text:?}");
    }
}

#[test]
fn errors_name_the_thing_and_both_numbers() {
    let key = |bytes: u64| LayoutKey::tagged("q", [bytes]);
    let model = |experts, top_k, layers| Model::new(experts, top_k, Quantisation::PerLayer, layers).unwrap_err();
    let good = || equal_layers(3, 8, 4);
    let geometry = |change: fn(&mut Constraints)| {
        let mut constraints = Constraints::new(Budget::Slots(10));
        change(&mut constraints);
        Geometry::new(good(), constraints).unwrap_err()
    };
    let errors = [
        model(8, 2, vec![]),
        model(8, 9, vec![key(1)]),
        model(8, 0, vec![key(1)]),
        model(u32::MAX, 2, vec![key(1), key(1)]),
        model(8, 2, vec![key(1), key(u64::MAX)]),
        model(8, 2, vec![key(1), key(0)]),
        model(8, 2, vec![LayoutKey::untagged([4, 4]), LayoutKey::untagged([4, 4])]),
        geometry(|c| c.request_count = 0),
        geometry(|c| c.alignment = 24),
        geometry(|c| c.slot_pad_bytes = 1 << 50),
        geometry(|c| c.slot_limit = Some(3)),
        geometry(|c| c.budget = Budget::Slots(3)),
        geometry(|c| c.budget = Budget::Slots(25)),
        geometry(|c| c.budget = Budget::Bytes(639)),
    ];
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    insta::assert_snapshot!(texts.join("\n"), @"
    the model has no mixture-of-experts layer
    top-9 of 8 experts: top_k must be from 1 to the expert count
    top-0 of 8 experts: top_k must be from 1 to the expert count
    2 layers of 4294967295 experts: flat expert ids end at 4294967279
    experts or slots of 147573952589676412928 bytes; at most 4611686018427387903 can be counted
    layer 1 has no bytes in any bank
    layers 0 and 1 both have 8 bytes an expert and no quantisation tag; tag them, or declare one quantisation for all layers
    0 requests decoded at once; at least 1 is needed
    an alignment of 24 bytes is not a power of two
    layer 0: rows of 100 bytes, pads of 1125899906842624 after a slot and 100 after a pool, aligned to 1: each must stay below 281474976710656 bytes
    pool 0 needs at least 4 slots; at most 3 are allowed
    the pools need at least 4 slots; 3 are given
    the pools can use 24 slots; 25 are given
    the pools need at least 640 bytes; 639 are given
    ");
    let texts = ["12 parsecs", "480*1.5.5", "16777216TiB"].map(|text| parse_bytes(text).unwrap_err().to_string());
    insta::assert_snapshot!(texts.join("\n"), @r#"
    "12 parsecs" is not a byte count such as 12GiB, 12GB or 9059696640
    "480*1.5.5": "1.5.5" is not a byte count such as 12GiB, 12GB or 9059696640
    "16777216TiB" is over 18446744073709551615 bytes
    "#);
}
