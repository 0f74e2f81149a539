//! Routes and answers in an engine's own form: strided ids of any width, sentinels, maps. C15, B12, B53.

use super::*;

fn read(
    cache: &Cache,
    layer_number: u32,
    ids: impl IntoIterator<Item = i64>,
    absent: Option<i64>,
) -> Result<Vec<u32>, EnsureError> {
    let mut routes = ids_to_be_overwritten();
    cache.read_ids(layer(layer_number), ids, absent, &mut routes)?;
    Ok(routes.iter().map(|route| route.get()).collect())
}

fn ids_to_be_overwritten() -> Vec<ExpertId> {
    ids(&[1, 1, 1])
}

/// The expert ids of each of four tokens by descending score, all eight; top-3 is a view of it.
const SORTED: [[i32; 8]; 4] =
    [[5, 2, 7, 0, 1, 3, 4, 6], [2, 6, 5, 1, 0, 3, 4, 7], [0, 1, 2, 3, 4, 5, 6, 7], [7, 6, 5, 4, 3, 2, 1, 0]];

// Four tokens, top-3: rows of three ids, 4 E bytes apart.
#[test]
fn a_view_of_an_arg_sort_is_read_by_its_stride() {
    let cache = one_pool(1, 8, 8);
    let wanted = [5, 2, 7, 2, 6, 5, 0, 1, 2, 7, 6, 5];
    let narrow: Vec<i32> = SORTED.concat();
    let wide: Vec<i64> = narrow.iter().copied().map(i64::from).collect();
    assert_eq!(read(&cache, 0, strided(&narrow, 4, 3, 8).map(i64::from), None).unwrap(), wanted);
    assert_eq!(read(&cache, 0, strided(&wide, 4, 3, 8), None).unwrap(), wanted);
    // The view ends with its last id, not with the row that it lies in.
    assert_eq!(read(&cache, 0, strided(&wide[..27], 4, 3, 8), None).unwrap(), wanted);
    // Rows without gaps, one row, none.
    assert_eq!(strided(&wanted, 4, 3, 3).collect::<Vec<_>>(), wanted);
    assert_eq!(strided(&wanted, 1, 2, 99).collect::<Vec<_>>(), [5, 2]);
    assert_eq!(strided(&wanted, 0, 3, 3).count() + strided(&wanted[..0], 0, 3, 3).count(), 0);
}

#[test]
#[should_panic(expected = "4 rows of 3 ids, 8 apart, take 27; 26 given")]
fn a_view_that_ends_past_its_ids_is_a_fault() {
    let _ = strided(&[0_i32; 26], 4, 3, 8).count();
}

#[test]
#[should_panic(expected = "3 rows of 2 ids, 18446744073709551615 apart, take 18446744073709551615; 26 given")]
fn a_stride_beyond_all_numbers_is_a_fault_of_the_same_kind() {
    // In numbers that wrap, twice the stride and the two ids would be none at all.
    let _ = strided(&[0_i32; 26], 3, 2, usize::MAX).count();
}

#[test]
fn one_row_has_any_stride() {
    assert_eq!(strided(&[4, 5, 6], 1, 2, usize::MAX).collect::<Vec<_>>(), [4, 5]);
}

#[test]
fn the_value_of_an_absent_route_is_the_callers() {
    let cache = one_pool(1, 8, 8);
    for absent in [-1, -100, 8, 999, i64::from(u32::MAX), i64::MAX, i64::MIN] {
        assert_eq!(read(&cache, 0, [absent, 3, absent, 0], Some(absent)).unwrap(), [ABSENT, 3, ABSENT, 0]);
    }
    for id in [0, 7] {
        assert_eq!(read(&cache, 0, [1], Some(id)), Err(EnsureError::AbsentId { id, expert_count: 8 }));
    }
}

// B12: models of 256 and of 128 experts.
#[test]
fn an_id_that_is_no_expert_is_named_with_its_place() {
    for expert_count in [128, 256] {
        let mut cache = one_pool(3, expert_count, 8);
        decode(&mut cache, 2, &[5]);
        let before = format!("{cache:?}");
        let end = i64::from(expert_count);
        for id in [end, -1, -2, 1 << 32, (1 << 32) + 3, i64::MAX, i64::MIN] {
            let error = EnsureError::UnknownId { layer: layer(2), route: 2, id, expert_count };
            assert_eq!(read(&cache, 2, [end - 1, 0, id, end], None), Err(error));
            assert_eq!(read(&cache, 2, [-3, 0, id, end], Some(-3)), Err(error));
        }
        assert_eq!(format!("{cache:?}"), before);
    }
}

#[test]
fn ids_are_read_for_layers_with_slots_alone() {
    let cache = Cache::with_pools(8, &[Some(POOL), None], &[4]).unwrap();
    assert_eq!(read(&cache, 1, [0], None), Err(EnsureError::NoSlots { layer: layer(1) }));
    let unknown = EnsureError::UnknownLayer { layer: layer(2), layer_count: 2 };
    assert_eq!(read(&cache, 2, [0], None), Err(unknown));
}

#[test]
fn an_id_of_32_bits_of_ones_is_not_taken_for_an_absent_route() {
    let mut cache = one_pool(1, 8, 8);
    let id = i64::from(u32::MAX);
    let error = EnsureError::UnknownId { layer: layer(0), route: 0, id, expert_count: 8 };
    assert_eq!(read(&cache, 0, [id], None), Err(error));
    let stray = expert(u32::MAX - 1);
    let error = EnsureError::UnknownExpert { layer: layer(0), route: 0, expert: stray, expert_count: 8 };
    assert_eq!(refuse(&mut cache, layer(0), &[u32::MAX - 1]), error);
}

// B53: the same answer without ids below zero.
#[test]
fn the_answer_as_a_map_says_the_same() {
    let misses = Misses::Hybrid { fetch: Fetch { rule: FetchRule::UpTo(1), most: None }, order: FetchOrder::LowestId };
    let mut cache = one_pool(1, 8, 4);
    decode(&mut cache, 0, &[6, 3]);
    let plan = commit(&mut cache, Step { misses, ..Step::new(layer(0)) }, &[6, 1, ABSENT, 6, 4]);
    let mut places = [slot(77); 8];
    plan.write_map(&mut places);
    let mut wanted = [SlotId::ABSENT; 8];
    wanted[6] = slot(1);
    wanted[1] = slot(2);
    wanted[4] = SlotId::CPU;
    assert_eq!(places, wanted, "3 is resident, but this step does not route to it");
    let by_route: Vec<_> = plan.routes().iter().map(|&route| places.get(route.index()).copied()).collect();
    let answers: Vec<_> = plan.slots().iter().map(|&slot| (slot != SlotId::ABSENT).then_some(slot)).collect();
    assert_eq!(by_route, answers);
}

#[test]
fn the_answer_as_numbers_has_the_callers_values() {
    let misses = Misses::Hybrid { fetch: Fetch { rule: FetchRule::UpTo(1), most: None }, order: FetchOrder::LowestId };
    let mut cache = one_pool(1, 8, 4);
    decode(&mut cache, 0, &[6, 3]);
    let plan = commit(&mut cache, Step { misses, ..Step::new(layer(0)) }, &[6, 1, ABSENT, 6, 4]);
    assert_eq!(plan.slot_numbers(-1, -2).collect::<Vec<_>>(), [1, 2, -1, 1, -2]);
    assert_eq!(plan.slot_numbers(i64::MAX, 4).collect::<Vec<_>>(), [1, 2, i64::MAX, 1, 4]);
    assert_eq!(plan.slot_numbers(0, 0).len(), 5);
    assert_eq!(Plan::new().slot_numbers(-1, -2).len(), 0);
}

#[test]
fn the_map_of_a_step_without_routes_is_empty() {
    let plan = commit(&mut one_pool(1, 4, 4), layer(0), &[ABSENT, ABSENT]);
    let mut places = [slot(0); 4];
    plan.write_map(&mut places);
    assert_eq!(places, [SlotId::ABSENT; 4]);
    assert!([SlotId::ABSENT, SlotId::CPU].iter().all(|place| !place.is_slot()));
}

#[test]
fn bytes_of_the_copies_are_those_of_the_layers_rows() {
    let layers = vec![LayoutKey::tagged("wide", [100, 10]), LayoutKey::tagged("narrow", [50, 2])];
    let model = Model::new(8, 2, Quantisation::PerLayer, layers).unwrap();
    let mut cache = Cache::new(&Geometry::new(model.clone(), Constraints::new(Budget::Slots(8))).unwrap());
    let bytes = |plan: &Plan| plan.bank_bytes(&model).collect::<Vec<u64>>();
    assert_eq!(bytes(&commit(&mut cache, layer(0), &[1, 2, 1])), [200, 20]);
    assert_eq!(bytes(&commit(&mut cache, layer(1), &[1, 2])), [100, 4]);
    assert_eq!(bytes(&commit(&mut cache, layer(0), &[2, 1])), [0, 0]);
    assert_eq!(bytes(&commit(&mut cache, layer(0), &[2, 5])), [100, 10]);
}
