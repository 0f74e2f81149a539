//! Scores worked out by hand: layers of a few experts, counts and weights as they are kept, and chances in 2^-31.

use ftcache_testkit::Rng;

use super::*;

/// All of a layer's uses.
const ALL: u32 = u32::MAX >> 1;

fn scores(rule: Eviction, layer_count: usize, expert_count: u32) -> Scores {
    Scores::new(rule, layer_count, expert_count).expect("the rule has scores")
}

fn one_layer(rule: Eviction, expert_count: u32) -> Scores {
    scores(rule, 1, expert_count)
}

fn ids(routes: &[u32]) -> Vec<ExpertId> {
    routes.iter().copied().map(ExpertId::new).collect()
}

impl Scores {
    fn step(&mut self, layer: u32, routes: &[u32]) {
        self.count(LayerId::new(layer), &ids(routes), false);
    }

    /// A further part of a step.
    fn part(&mut self, layer: u32, routes: &[u32]) {
        self.count(LayerId::new(layer), &ids(routes), true);
    }

    fn all_chances(&self, layer: u32) -> Vec<u32> {
        let chances = self.chances(LayerId::new(layer));
        (0..self.expert_count as u32).map(|expert| chances.of(ExpertId::new(expert))).collect()
    }

    /// Of the only layer.
    fn half(&self, half: usize) -> Vec<u32> {
        assert_eq!(self.turns.len(), 1);
        self.counts.iter().map(|counts| counts[half]).collect()
    }

    fn followed(&self, layer: usize) -> Vec<u16> {
        let followers = self.followers.as_ref().expect("the rule has them");
        followers.counts(layer).to_vec()
    }
}

#[test]
fn a_use_counts_double_after_a_half_and_starts_over_after_eight() {
    let uses = |log_half: u32, turns: &[u32]| turns.iter().map(|&turn| use_at(turn, log_half)).collect::<Vec<_>>();
    assert_eq!(uses(0, &[0, 1, 2, 7, 8, 9, 15]), [8_192, 16_384, 32_768, 1_048_576, 8_192, 16_384, 1_048_576]);
    // A sixteenth of the octave's first use more with each step.
    assert_eq!(uses(4, &[0, 1, 8, 15, 16, 17, 24]), [8_192, 8_704, 12_288, 15_872, 16_384, 17_408, 24_576]);
    assert_eq!(uses(4, &[127, 128, 129, 256]), [2_031_616, 8_192, 8_704, 8_192]);
    assert_eq!(uses(10, &[1, 1_023, 1_024, 8_191, 8_192]), [8_200, 16_376, 16_384, 2_096_128, 8_192]);
    // The highest: 255/256 of twice the eighth octave's first use, and the turn after the last.
    assert_eq!(uses(10, &[u32::MAX]), [2_096_128]);
    let down = |log_half: u32, turns: &[u32]| turns.iter().map(|&turn| is_brought_down(turn, log_half)).collect();
    let (at_4, at_0): (Vec<bool>, Vec<bool>) = (down(4, &[16, 127, 128, 129, 256]), down(0, &[7, 8, 9, 16]));
    assert_eq!((at_4, at_0), (vec![false, false, true, false, true], vec![false, true, false, true]));
}

#[test]
fn the_chance_is_the_share_of_the_counts() {
    let mut scores = one_layer(Eviction::Lfu, 4);
    assert_eq!(scores.all_chances(0), [0; 4]);
    scores.step(0, &[0]);
    assert_eq!(scores.all_chances(0), [ALL, 0, 0, 0]);
    // 8192 and two 64ths of it.
    scores.step(0, &[0, 1]);
    assert_eq!((scores.half(0), scores.shares[0][0].total), (vec![16_768, 8_448, 0, 0], 25_216));
    // 16,768 / 25,216 and 8,448 / 25,216 of 2^31, rounded down.
    assert_eq!(scores.all_chances(0), [1_428_022_121, 719_461_526, 0, 0]);
}

#[test]
fn a_use_is_worth_half_of_one_that_is_a_half_later() {
    for (rule, half, early, late) in [(Eviction::Lfu, 64, 8_320, 16_640), (Eviction::Cyclic, 16, 8_704, 17_408)] {
        let mut scores = one_layer(rule, 4);
        scores.step(0, &[0]);
        (1..half).for_each(|_| scores.step(0, &[2]));
        scores.step(0, &[1]);
        assert_eq!((scores.turns[0], scores.half(0)[0], scores.half(0)[1]), (half + 1, early, late), "{rule}");
        let chances = scores.all_chances(0);
        assert!(chances[1].abs_diff(2 * chances[0]) <= 1, "{rule}: {chances:?}");
    }
}

#[test]
fn bringing_down_leaves_the_order_and_nearly_the_chances() {
    let mut scores = one_layer(Eviction::Lfu, 4);
    let expert_at = |turn: u32| [0, 0, 1, 1, 2, 2, 2].get(turn as usize).copied().unwrap_or(3);
    (1..512).for_each(|turn| scores.step(0, &[expert_at(turn)]));
    // 8192 + 128 t for each of the turns 1; 2 and 3; 4, 5 and 6.
    assert_eq!(scores.half(0), [8_320, 17_024, 26_496, 199_435_648]);
    assert_eq!(scores.shares[0][0].total, 199_487_488);
    assert_eq!(scores.all_chances(0), [89_564, 183_263, 285_229, 2_146_925_590]);
    // After eight halves a 256th of each, rounded down, before a use counts 8192 again.
    scores.step(0, &[3]);
    assert_eq!(scores.half(0), [32, 66, 103, 779_045 + 8_192]);
    assert_eq!(scores.shares[0][0].total, 779_248 + 8_192);
    assert_eq!(scores.all_chances(0), [87_269, 179_993, 280_898, 2_146_930_032]);
}

#[test]
fn what_is_not_used_for_long_has_no_chance() {
    let mut scores = one_layer(Eviction::Cyclic, 2);
    scores.step(0, &[0]);
    // 8704, a 256th of it at turn 128, and nothing at turn 256.
    let mut counts = Vec::new();
    for turn in 2..=256 {
        scores.step(0, &[1]);
        if [127, 128, 255, 256].contains(&turn) {
            counts.push(scores.half(0)[0]);
        }
    }
    assert_eq!((counts, scores.all_chances(0)[0]), (vec![8_704, 34, 34, 0], 0));
}

#[test]
fn a_chance_stands_still_until_its_layer_comes_again() {
    for rule in [Eviction::Lfu, Eviction::Cyclic, Eviction::Learned] {
        let mut scores = scores(rule, 3, 4);
        for _ in 0..5 {
            (0..3).for_each(|layer| scores.step(layer, &[layer, 3]));
        }
        let before = scores.all_chances(1);
        scores.step(0, &[0, 1]);
        // The weights are all layers', but a layer's chances are of its last step.
        scores.step(2, &[0, 1, 2, 3]);
        assert_eq!(scores.all_chances(1), before, "{rule}");
        scores.step(1, &[0]);
        assert_ne!(scores.all_chances(1), before, "{rule}");
    }
}

#[test]
fn an_expert_is_counted_once_a_step_and_absent_routes_not_at_all() {
    let absent = ExpertId::ABSENT.get();
    for rule in [Eviction::Lfu, Eviction::Cyclic, Eviction::Learned] {
        let (mut plain, mut doubled) = (scores(rule, 2, 8), scores(rule, 2, 8));
        for step in 0..40 {
            plain.step(step % 2, &[step % 3, 4]);
            doubled.step(step % 2, &[absent, 4, step % 3, 4, absent, 4]);
            doubled.step(step % 2, &[absent, absent]);
            doubled.part(step % 2, &[]);
            assert_eq!(plain.numbers(), doubled.numbers(), "{rule} step {step}");
        }
    }
}

#[test]
fn parts_are_counted_at_the_turn_of_their_step() {
    let mut scores = one_layer(Eviction::Cyclic, 4);
    (0..3).for_each(|_| scores.step(0, &[0]));
    // Turn 4: 8192 and four 16ths.
    scores.step(0, &[1]);
    scores.part(0, &[2]);
    scores.part(0, &[3]);
    assert_eq!((scores.turns[0], scores.half(0)), (4, vec![8_704 + 9_216 + 9_728, 10_240, 10_240, 10_240]));
    // Nor are counts brought down again by a part of the step that brought them down.
    (4..128).for_each(|_| scores.step(0, &[0]));
    let brought_down = scores.half(0).to_vec();
    assert_eq!(brought_down[1..], [40, 40, 40]);
    scores.part(0, &[1]);
    assert_eq!((scores.turns[0], &scores.half(0)[1..]), (128, &[8_232, 40, 40][..]));
}

#[test]
fn weights_start_equal_and_stay_until_a_use_was_foreseen() {
    let mut scores = one_layer(Eviction::Learned, 4);
    // A seventh of 2^20, rounded down.
    assert_eq!(scores.weights, [149_796; COMPONENTS]);
    scores.step(0, &[0, 1]);
    assert_eq!(scores.weights, [149_796; COMPONENTS], "nothing was said before the first step");
    scores.step(0, &[2]);
    assert_eq!(scores.weights, [149_796; COMPONENTS], "and nothing of an expert that was never used");
}

#[test]
fn credits_go_to_the_components_that_foresaw_the_use() {
    let mut scores = one_layer(Eviction::Learned, 2);
    scores.step(0, &[0]);
    // Every half gives all to 0, and the followers nothing: six of seven parts of the chance were given.
    assert_eq!(scores.all_chances(0), [1_840_693_247, 0]);
    scores.step(0, &[0]);
    // Each half is credited with a sixth of 2^20, 174,759 with what rounding takes, and goes an eighth of the way;
    // the followers lose an eighth.
    assert_eq!(scores.weights, [152_916, 152_916, 152_916, 152_916, 152_916, 152_916, 131_072]);
    // Now 0 has followed 0, all of them say so, and each gets what it gave.
    scores.step(0, &[0]);
    assert_eq!(scores.weights, [152_916, 152_916, 152_916, 152_916, 152_916, 152_916, 131_072]);
    assert_eq!(scores.followed(0), [2, 0]);
}

#[test]
fn half_of_what_a_step_says_is_an_eighth_of_the_way_of_half_of_its_uses() {
    let mut scores = one_layer(Eviction::Learned, 2);
    scores.step(0, &[0]);
    // 0 was foreseen as above, 1 was not: half of 3120 and of 18,724.
    scores.step(0, &[0, 1]);
    assert_eq!(scores.weights, [151_356, 151_356, 151_356, 151_356, 151_356, 151_356, 140_434]);
}

#[test]
fn of_two_experts_in_turn_the_followers_come_to_know_all() {
    let mut scores = one_layer(Eviction::Learned, 2);
    (0..3).for_each(|turn| scores.step(0, &[turn % 2]));
    // At turn 3, of 1 after 0: a half of one step gave a third to 0, longer ones nearer to a half, the followers
    // nothing yet.
    assert_eq!(scores.weights, [146_853, 152_591, 154_066, 154_562, 154_697, 154_731, 131_072]);
    (3..400).for_each(|turn| scores.step(0, &[turn % 2]));
    // None goes below 128, from where it could not come back; so the sum is a little above 2^20.
    assert_eq!(scores.weights, [128, 128, 128, 128, 128, 128, 1_048_207]);
    assert_eq!(scores.all_chances(0), [2_147_456_966, 843_832], "0 comes next");
}

#[test]
fn the_weights_sum_to_the_same_and_none_is_nothing() {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let mut scores = scores(Eviction::Learned, 3, 24);
        let widest = 1 + rng.below(24);
        for step in 0..600 {
            let width = 1 + rng.below(widest);
            let at = rng.below(24);
            let routes: Vec<u32> = (0..width).map(|_| ((at + rng.below(1 + width)) % 24) as u32).collect();
            scores.count(LayerId::new(step % 3), &ids(&routes), rng.chance(1, 9));
            let sum: u32 = scores.weights.iter().sum();
            // A step that raises six to the least adds up to 16 for each, and takes back an eighth of what is too
            // much; rounding makes up to one of each, and loses up to 23 of 2^20 at each use.
            let (most, least) = (WEIGHTS + 6 * LEAST_WEIGHT + 7 * 8, WEIGHTS - 23 * 8);
            assert!((least..=most).contains(&sum), "seed {seed} step {step}: {sum} of {:?}", scores.weights);
            assert!(scores.weights.iter().all(|&weight| weight >= LEAST_WEIGHT), "seed {seed}: {:?}", scores.weights);
        }
    }
}

#[test]
fn only_the_mixture_learns() {
    for (rule, count) in [(Eviction::Lfu, 1), (Eviction::Cyclic, 1)] {
        let mut scores = one_layer(rule, 4);
        (0..100).for_each(|turn| scores.step(0, &[turn % 3]));
        assert_eq!(scores.weights[..count], [WEIGHTS], "{rule}");
        assert_eq!(scores.weights[count..], [0; COMPONENTS - 1], "{rule}");
    }
}

#[test]
fn followers_are_counted_for_each_expert_of_the_last_step() {
    let mut scores = one_layer(Eviction::Learned, 4);
    for routes in [vec![0], vec![1, 2], vec![0], vec![1, 3], vec![0]] {
        scores.step(0, &routes);
    }
    // After 0 there were 1 and 2, and 1 and 3.
    assert_eq!((scores.followed(0), scores.shares[0][HALVES].total), (vec![0, 2, 1, 1], 4));
    scores.step(0, &[1, 3]);
    // After 1 there was 0, twice; after 3, once.
    assert_eq!((scores.followed(0), scores.shares[0][HALVES].total), (vec![3, 0, 0, 0], 3));
    scores.step(0, &[2]);
    assert_eq!((scores.followed(0), scores.shares[0][HALVES].total), (vec![1, 0, 0, 0], 1));
}

#[test]
fn an_expert_remembers_eight_steps_after_it() {
    let mut scores = one_layer(Eviction::Learned, 4);
    let mut after_0 = Vec::new();
    for follower in [1, 1, 2, 2, 2, 2, 2, 2, 2, 3] {
        scores.step(0, &[0]);
        after_0.push(scores.followed(0));
        scores.step(0, &[follower]);
    }
    scores.step(0, &[0]);
    assert_eq!(after_0[..3], [[0, 0, 0, 0], [0, 1, 0, 0], [0, 2, 0, 0]]);
    // Nine and ten steps: of the two 1s, one and both are forgotten.
    assert_eq!((&after_0[8], &after_0[9]), (&vec![0, 2, 6, 0], &vec![0, 1, 7, 0]));
    assert_eq!(scores.followed(0), [0, 0, 7, 1]);
}

#[test]
fn steps_of_over_sixteen_experts_follow_nothing_and_have_no_followers() {
    let all: Vec<u32> = (0..17).collect();
    for (width, followed) in [(16, 1), (17, 0)] {
        let mut scores = one_layer(Eviction::Learned, 20);
        scores.step(0, &[19]);
        scores.step(0, &all[..width]);
        scores.step(0, &[19]);
        // 19 and what came after it.
        assert_eq!(scores.followed(0)[..16], [followed; 16], "{width}");
        assert_eq!(scores.shares[0][HALVES].total, 16 * u64::from(followed), "{width}");
        scores.step(0, &[0]);
        // And what came after 0, which was 19.
        assert_eq!(scores.followed(0)[19], followed, "{width}");
    }
}

#[test]
fn further_parts_follow_nothing_and_have_no_followers() {
    let mut scores = one_layer(Eviction::Learned, 4);
    [vec![0], vec![1], vec![0]].iter().for_each(|routes| scores.step(0, routes));
    assert_eq!(scores.followed(0), [0, 1, 0, 0]);
    scores.part(0, &[2]);
    assert_eq!((scores.followed(0), scores.shares[0][HALVES]), (vec![0; 4], Share::default()));
    scores.step(0, &[3]);
    scores.step(0, &[0]);
    assert_eq!(scores.followed(0), [0, 1, 0, 0], "nothing followed 0 since, and 3 followed nobody");
    scores.step(0, &[2]);
    assert_eq!(scores.followed(0), [0; 4], "nothing followed 2, which was in a part");
}

#[test]
fn layers_have_counts_and_followers_of_their_own() {
    let mut scores = scores(Eviction::Learned, 2, 4);
    for _ in 0..3 {
        scores.step(0, &[0]);
        scores.step(1, &[1]);
    }
    assert_eq!([scores.followed(0), scores.followed(1)], [vec![2, 0, 0, 0], vec![0, 2, 0, 0]]);
    assert_eq!([scores.all_chances(0)[1], scores.all_chances(1)[0]], [0, 0]);
    assert_eq!(scores.turns, [3, 3]);
}

#[test]
fn a_score_is_the_chance_over_the_layers_until_the_next_step() {
    let score = |rule, layer, now| scores(rule, 4, 2).score(6, LayerId::new(layer), LayerId::new(now));
    for rule in [Eviction::Cyclic, Eviction::Learned] {
        // In 2^-24: the layer after this one is one away, this one all four.
        assert_eq!([2, 3, 0, 1].map(|layer| score(rule, layer, 1)), [100_663_296, 50_331_648, 33_554_430, 25_165_824]);
        assert_eq!([0, 1, 2, 3].map(|layer| score(rule, layer, 3)), [100_663_296, 50_331_648, 33_554_430, 25_165_824]);
    }
    assert_eq!([2, 3, 0, 1].map(|layer| score(Eviction::Lfu, layer, 1)), [6; 4]);
}

#[test]
fn counts_stop_at_their_highest_and_the_total_does_not() {
    let mut scores = one_layer(Eviction::Learned, 2);
    (0..7).for_each(|_| scores.step(0, &[0]));
    // 2^14 to 2^20 of the shortest half; then parts of 2^20 each.
    assert_eq!(scores.half(0), [2_080_768, 0]);
    (0..5_000).for_each(|_| scores.part(0, &[0]));
    assert_eq!((scores.half(0), scores.shares[0][0].total), (vec![u32::MAX, 0], 2_080_768 + (5_000 << 20)));
    assert_eq!(scores.half(1), [71_680 + 55_296 + 5_000 * 28_672, 0]);
    assert!(scores.all_chances(0)[0] <= ALL);
    scores.step(0, &[1]);
    assert_eq!((scores.half(0), scores.shares[0][0].total), (vec![16_777_215, 8_192], 20_488_128 + 8_192));
}

#[test]
fn turns_go_on_at_the_end_of_their_numbers() {
    for rule in [Eviction::Lfu, Eviction::Cyclic, Eviction::Learned] {
        let mut scores = one_layer(rule, 2);
        scores.turns[0] = u32::MAX - 1;
        let halves = rule.log_halves().len();
        let counts = [1, 1, 0].map(|_| {
            scores.step(0, &[0]);
            (0..halves).map(|half| scores.half(half)[0]).collect::<Vec<_>>()
        });
        // At turn 0 all are brought down; and there a use counts what it does at first.
        let after: Vec<u32> = counts[0].iter().map(|count| (count >> 8) + 8_192).collect();
        assert_eq!(counts[1], after, "{rule}");
        assert_eq!(scores.turns[0], 1, "{rule}");
    }
}

/// Checks that no chance is above all, and that nothing overflows on the way, where the same experts come at every step.
fn check_long(rule: Eviction, expert_count: u32, routes: &[u32], steps: u32) -> Scores {
    let mut scores = one_layer(rule, expert_count);
    for step in 0..steps {
        scores.step(0, routes);
        let chance = scores.chances(LayerId::new(0)).of(ExpertId::new(routes[0]));
        assert!((1..=ALL).contains(&chance), "{rule} step {step}: {chance}");
        for (half, share) in scores.shares[0][..rule.log_halves().len()].iter().enumerate() {
            let sum: u64 = scores.half(half).iter().map(|&count| u64::from(count)).sum();
            assert!(sum <= share.total, "{rule} step {step} half {half}: {sum} of {}", share.total);
        }
    }
    scores
}

#[test]
fn one_expert_at_every_step_overflows_nothing() {
    for rule in [Eviction::Lfu, Eviction::Cyclic, Eviction::Learned] {
        let scores = check_long(rule, 2, &[1], 24_600);
        // The weights sum to 8 less than 2^20, and that much is missing.
        let least = if rule == Eviction::Learned { ALL - (8 << 11) } else { ALL };
        assert_eq!(scores.all_chances(0), [0, least], "{rule}");
    }
    // The longest half at its fullest: 1.5 x 8192 x 255 x 1024 in eight halves, and a 256th of those before.
    let scores = check_long(Eviction::Learned, 2, &[1], 3 * 8_192 - 1);
    assert!((3_207_000_000..3_225_000_000).contains(&scores.half(5)[1]), "{}", scores.half(5)[1]);
}

#[test]
fn all_of_512_experts_at_every_step_overflow_nothing() {
    let all: Vec<u32> = (0..512).collect();
    for rule in [Eviction::Lfu, Eviction::Cyclic, Eviction::Learned] {
        let mut scores = one_layer(rule, 512);
        for _ in 0..20_500 {
            scores.step(0, &all);
        }
        let chances = scores.all_chances(0);
        // 2^31 / 512, but for what rounding takes of it.
        assert!(chances.iter().all(|&chance| chance == chances[0]), "{rule}");
        assert!(chances[0].abs_diff(1 << 22) < 256, "{rule}: {}", chances[0]);
    }
}

#[test]
fn recency_of_stamps_has_no_scores() {
    assert!(Scores::new(Eviction::Lru, 2, 4).is_none());
    for rule in [Eviction::Lfu, Eviction::Cyclic, Eviction::Learned] {
        assert_eq!(scores(rule, 2, 4).rule(), rule);
    }
}

#[test]
#[should_panic(expected = "the len is 4 but the index is 4")]
fn a_chance_is_asked_of_experts_there_are() {
    one_layer(Eviction::Learned, 4).chances(LayerId::new(0)).of(ExpertId::new(4));
}

/// Of what came after 0, which was the last, 1 is all: its chance has the whole weight of the followers beside its counts.
#[test]
fn counts_alone_are_a_chance_but_for_what_followed() {
    for rule in [Eviction::Lfu, Eviction::Cyclic, Eviction::Learned] {
        let mut scores = one_layer(rule, 5);
        [0, 1, 2, 3, 0].iter().for_each(|&route| scores.step(0, &[route]));
        let chances = scores.chances(LayerId::new(0));
        let followed = [0, 1, 2, 3, 4].map(ExpertId::new).map(|expert| chances.of(expert) - chances.at_least(expert));
        // From 2^-20 to 2^-31; under the other rules there is none.
        assert_eq!(followed, [0, scores.weights[HALVES] << 11, 0, 0, 0], "{rule}");
        assert_eq!(scores.weights[HALVES] > 0, rule.learns());
    }
}
