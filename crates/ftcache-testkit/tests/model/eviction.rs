//! The model's own scores, by hand: agreement with the cache alone would prove nothing.

use ftcache_policy::Eviction;
use ftcache_testkit::reference::Scores;

use super::*;

/// Chances of two experts of layer 0, in 2^-31.
fn chances(scores: &Scores) -> [u64; 2] {
    [0, 1].map(|expert| scores.chance(0, expert))
}

#[test]
fn a_chance_is_a_share_of_uses_that_count_double_after_a_half() {
    let mut scores = Scores::new(Eviction::Lfu, 1).unwrap();
    scores.count(0, &[0], false);
    scores.count(0, &[0, 1, 1, ABSENT], false);
    // 8192 and a 64th, and 8192 and two of them: 16,768 and 8,448 of 25,216.
    assert_eq!(chances(&scores), [1_428_022_121, 719_461_526]);
    let mut scores = Scores::new(Eviction::Cyclic, 1).unwrap();
    scores.count(0, &[0], false);
    (1..16).for_each(|_| scores.count(0, &[2], false));
    scores.count(0, &[1], false);
    let [early, late] = chances(&scores);
    assert!(late.abs_diff(2 * early) <= 1, "{early} {late}");
}

#[test]
fn a_score_is_the_chance_over_the_layers_in_between() {
    for (rule, wanted) in [(Eviction::Lfu, [1; 3]), (Eviction::Cyclic, [8_388_608, 5_592_405, 16_777_216])] {
        let mut scores = Scores::new(rule, 3).unwrap();
        (0..3).for_each(|layer| scores.count(layer, &[0], false));
        let all = scores.chance(0, 0);
        assert_eq!(all, 2_147_483_647);
        // From layer 1: layer 0 comes after the next, layer 1 itself is three away, layer 2 is next.
        assert_eq!([0, 1, 2].map(|layer| scores.score(layer, 0, 1)), wanted.map(|near| all * near), "{rule}");
    }
}

#[test]
fn weights_go_an_eighth_of_the_way_to_who_foresaw_the_use() {
    let mut scores = Scores::new(Eviction::Learned, 1).unwrap();
    scores.count(0, &[0], false);
    // Six halves with a seventh of the weight each give all to 0; nothing has followed it.
    assert_eq!(chances(&scores), [1_840_693_247, 0]);
    // Then each half is credited with a sixth: 152,916; followers, with nothing: 131,072. All of them foresee 0 now, with
    // 1,048,568 of 2^20.
    scores.count(0, &[0], false);
    assert_eq!(chances(&scores), [2_147_467_263, 0]);
    // A part follows nothing. Of the halves 1 has 32,768 of 81,920, 12,288 of 34,816, 9216 of 27,136 and nearer to a third
    // of the others, 2.0948 in all: 0.3055 of 2^31 at the weight of each.
    scores.count(0, &[1], true);
    assert_eq!(chances(&scores), [1_223_000_604, 656_031_203]);
}

/// 1 at turns 1, 2 and 3 in slot 0, then 0 in slot 1; 2, in slot 2, was only part of a prompt; 3 and 4 are free.
#[test]
fn victims_go_by_score_after_the_free_and_those_of_stamp_1() {
    for rule in Eviction::ALL {
        let mut model = one_pool(5);
        model.set_eviction(rule);
        assert_eq!(model.eviction(), rule);
        model.set_step_counter(10);
        [1, 1, 1, 0].iter().for_each(|&route| drop(commit(&mut model, &step(Phase::Decode, &[route]))));
        commit(&mut model, &step(Phase::Prefill, &[2]));
        assert_eq!(model.export(), [(0, 2), (0, 1), (0, 0)]);
        let answer = commit(&mut model, &step(Phase::Decode, &[4, 5, 6, 7]));
        let last = if rule == Eviction::Lru { 0 } else { 1 };
        assert_eq!(answer.copies, [(3, 4), (4, 5), (2, 6), (last, 7)], "{rule}");
    }
}

#[test]
fn another_rule_starts_with_nothing_counted() {
    let mut model = one_pool(2);
    model.set_eviction(Eviction::Lfu);
    model.set_step_counter(10);
    [0, 0, 0, 1].iter().for_each(|&route| drop(commit(&mut model, &step(Phase::Decode, &[route]))));
    let mut other = model.clone();
    other.set_eviction(Eviction::Lfu);
    // 1 was used once; or nobody was, and the lower slot goes.
    assert_eq!(commit(&mut model, &step(Phase::Decode, &[2])).copies, [(1, 2)]);
    assert_eq!(commit(&mut other, &step(Phase::Decode, &[2])).copies, [(0, 2)]);
}
