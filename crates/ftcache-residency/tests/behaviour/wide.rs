//! A step of any width is one admission, or is refused and leaves everything as it was. C3, C14, B04, B05.

use super::*;

// C3: 150 rows of top-2, 160 distinct experts, 7 of them resident.
#[test]
fn three_hundred_routes_are_one_step_of_153_misses() {
    let mut cache = one_pool(1, 640, 200);
    decode(&mut cache, 0, &[0, 1, 2, 3, 4, 5, 6]);
    cache.reset_stats();
    cache.reset_routing();
    let routes: Vec<u32> = (0..300).map(|route| route % 160).collect();
    commit(&mut cache, layer(0), &routes);
    let stats = cache.layer_stats(layer(0));
    assert_eq!((stats.steps, stats.routes, stats.distinct, stats.misses), (1, 300, 160, 153));
    assert_eq!((0..640).map(|number| cache.routed(layer(0), expert(number))).sum::<u64>(), 300);
    assert_eq!((cache.routed(layer(0), expert(139)), cache.routed(layer(0), expert(140))), (2, 1));
}

// C3: 256 routes are one query of the reference and 257 two; here 1,030 are one too (B04: 103 requests, top-10).
#[test]
fn any_width_is_one_admission() {
    for width in [8, 128, 129, 256, 257, 300, 1_020, 1_030] {
        let mut cache = one_pool(1, 2_048, width);
        let routes: Vec<u32> = (0..width).rev().collect();
        let plan = commit(&mut cache, layer(0), &routes);
        assert_eq!(answer(&plan), (0..i64::from(width)).rev().collect::<Vec<_>>());
        let stats = cache.layer_stats(layer(0));
        assert_eq!((stats.steps, stats.misses), (1, u64::from(width)));

        let one_more: Vec<u32> = (0..=width).collect();
        let (needed, slot_count) = (width as usize + 1, width);
        let error = EnsureError::StepTooWide {
            layer: layer(0),
            pool: POOL,
            needed,
            given: slot_count,
            slot_count,
            pinned: 0,
            withheld: 0,
        };
        assert_eq!(refuse(&mut cache, layer(0), &one_more), error);
    }
}

#[test]
fn one_admission_never_misses_more_than_queries_of_128() {
    let mut fewer = 0;
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let mut whole = one_pool(1, 640, 320);
        let mut routes = |count| -> Vec<u32> { (0..count).map(|_| rng.below(640) as u32).collect() };
        for _ in 0..60 {
            commit(&mut whole, layer(0), &routes(8));
        }
        whole.reset_stats();
        let mut queries = whole.clone();
        let routes = routes(300);
        commit(&mut whole, layer(0), &routes);
        for query in routes.chunks(128) {
            commit(&mut queries, layer(0), query);
        }
        let [whole, queries] = [whole, queries].map(|cache| cache.layer_stats(layer(0)).misses);
        assert!(whole <= queries, "seed {seed}: {whole} and {queries}");
        fewer += u32::from(whole < queries);
    }
    assert!(fewer > 0, "no seed shows the difference");
}

// B05: a prompt of 512 tokens with every expert active would take the decode set's slots and leave nothing of use.
#[test]
fn a_step_that_does_not_fit_touches_no_resident_and_is_counted() {
    let mut cache = one_pool(1, 128, 16);
    let set: Vec<u32> = (40..56).collect();
    commit(&mut cache, layer(0), &set);
    let all: Vec<u32> = (0..512 * 2).map(|route| route % 128).collect();
    for _ in 0..3 {
        refuse(&mut cache, of_phase(Phase::Prefill, 0), &all);
    }
    assert_eq!(cache.phase_stats(layer(0), Phase::Prefill), Stats { refused: 3, ..Stats::default() });
    assert_eq!(cache.phase_stats(layer(0), Phase::Decode).refused, 0);
    assert_eq!(commit(&mut cache, layer(0), &set).miss_count(), 0);
}

// B52, C15: 10 routes over 64 slots, 4 of them absent.
#[test]
fn no_slot_stands_for_two_experts_and_none_for_an_absent_one() {
    let mut cache = one_pool(1, 512, 64);
    let routes = [7, ABSENT, 500, 3, ABSENT, 9, ABSENT, 44, 45, ABSENT];
    assert_eq!(answer(&commit(&mut cache, layer(0), &routes)), [1, -2, 5, 0, -2, 2, -2, 3, 4, -2]);
}
