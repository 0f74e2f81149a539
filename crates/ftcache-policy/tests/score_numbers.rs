//! Scores as plain numbers: out and in they are the same, what is wrong is refused with its words, and what is let in
//! never overflows afterwards.

use ftcache_policy::{Eviction, ExpertId, LayerId, ScoreNumbers, Scores, ScoresError};
use ftcache_testkit::Rng;

const SCORED: [Eviction; 3] = [Eviction::Lfu, Eviction::Cyclic, Eviction::Learned];
const HALVES: usize = ScoreNumbers::HALVES;
const COMPONENTS: usize = ScoreNumbers::COMPONENTS;
const WIDEST: usize = ScoreNumbers::WIDEST;
const RING_STEPS: usize = ScoreNumbers::RING_STEPS;
/// The least weight of a component that learns, and the most that all weights are together.
const WEIGHTS: [u32; 2] = [128, 3 << 19];

/// Scores and what they are of.
#[derive(Clone)]
struct Case {
    rng: Rng,
    scores: Scores,
    layers: usize,
    experts: usize,
}

impl Case {
    fn new(seed: u64, rule: Eviction) -> Self {
        let mut rng = Rng::new(seed);
        let (layers, experts) = (1 + rng.below(3) as usize, 1 + rng.below(24) as usize);
        Self { scores: Scores::new(rule, layers, experts as u32).unwrap(), rng, layers, experts }
    }

    /// Of routes that come in runs, so that there is something to learn; some steps go on, and some are too wide to be
    /// followed.
    fn step(&mut self) {
        let Self { rng, scores, layers, experts } = self;
        let first = rng.below(*experts as u64);
        let width = [1, 3, 8, 24][rng.below(4) as usize];
        let route = |rng: &mut Rng| ExpertId::new(((first + rng.below(width)) % *experts as u64) as u32);
        let routes: Vec<ExpertId> = (0..rng.below(width + 1)).map(|_| route(rng)).collect();
        scores.count(LayerId::new(rng.below(*layers as u64) as u32), &routes, rng.chance(1, 10));
    }

    fn steps(&mut self, count: u64) {
        (0..count).for_each(|_| self.step());
    }

    fn empty(&self) -> Scores {
        Scores::new(self.scores.rule(), self.layers, self.experts as u32).unwrap()
    }
}

/// What a digest is made of, in the order of places.
fn told(scores: &Scores) -> Vec<(u64, u64)> {
    let mut told = Vec::new();
    scores.each_number(|place, number| told.push((place, number)));
    told.sort_unstable();
    let twice = told.windows(2).find(|pair| pair[0].0 == pair[1].0);
    assert_eq!(twice, None, "a place is that of one number");
    told
}

/// Holds that no chance is above all of a layer's uses, as it would be once its sum does not fit.
#[track_caller]
fn check_chances(case: &Case, at: &str) {
    let numbers = case.scores.numbers();
    for layer in 0..case.layers {
        for expert in 0..case.experts {
            let flat = layer * case.experts + expert;
            let followed = numbers.followed.get(flat).copied().unwrap_or(0);
            let counts = numbers.counts[flat * HALVES..][..HALVES].iter().copied().chain([followed]);
            let gains = &numbers.gains[layer * COMPONENTS..][..COMPONENTS];
            let sum: u128 = counts.zip(gains).map(|(count, &gain)| u128::from(count) * u128::from(gain)).sum();
            assert!(sum < 1 << 61, "{at}: layer {layer} expert {expert} has {sum}");
            let chance = case.scores.chances(LayerId::from_index(layer)).of(ExpertId::from_index(expert));
            assert_eq!(u128::from(chance), sum >> 29, "{at}");
        }
    }
}

#[test]
fn scores_that_were_plain_numbers_go_on_as_those_that_never_were() {
    for seed in 0..45 {
        let rule = SCORED[seed as usize % 3];
        let mut case = Case::new(seed, rule);
        for round in 0..6 {
            let at = format!("{rule} seed {seed} round {round}");
            let count = case.rng.below(60);
            case.steps(count);
            let numbers = case.scores.numbers();
            // Into what has seen nothing, and what has seen something else.
            let mut other = case.empty();
            let mut stranger = Case { rng: Rng::new(seed + 1_000), scores: case.empty(), ..case.clone() };
            stranger.steps(30);
            for scores in [&mut other, &mut stranger.scores] {
                assert_eq!(scores.set_numbers(&numbers), Ok(()), "{at}");
                assert_eq!(scores.numbers(), numbers, "{at}");
                assert_eq!(told(scores), told(&case.scores), "{at}");
            }
            let mut moved = Case { scores: other, ..case.clone() };
            case.steps(20);
            moved.steps(20);
            assert_eq!(moved.scores.numbers(), case.scores.numbers(), "{at}");
        }
    }
}

/// The lengths are those of the docs, and arrays of what followed are empty where nothing is learned.
#[test]
fn numbers_have_their_places() {
    for rule in SCORED {
        let mut scores = Scores::new(rule, 2, 5).unwrap();
        for routes in [[1, 3], [2, 4]] {
            scores.count(LayerId::new(1), &routes.map(ExpertId::new), false);
        }
        let numbers = scores.numbers();
        assert_eq!((&numbers.turns, numbers.weights.len()), (&vec![0, 2], 7));
        assert_eq!((numbers.counts.len(), numbers.totals.len(), numbers.gains.len()), (60, 14, 14));
        let wanted = if rule.learns() { [2 * 16, 2, 10 * 8 * 16, 10 * 8, 10, 10] } else { [0; 6] };
        let lengths = [
            numbers.latest.len(),
            numbers.latest_widths.len(),
            numbers.ring_experts.len(),
            numbers.ring_widths.len(),
            numbers.ring_next.len(),
            numbers.followed.len(),
        ];
        assert_eq!(lengths, wanted, "{rule}");
        // Of layer 1 expert 3, at turn 1: of halves of 1, 16 and 64 steps 16,384, 8,704 and 8,320.
        let first = numbers.counts[(5 + 3) * HALVES];
        let shares = (numbers.totals[7], numbers.gains[7]);
        // Two uses at each of two turns, and all of the weight, or a seventh of it, over them.
        match rule {
            Eviction::Lfu => assert_eq!((first, shares), (8_320, (33_536, (1 << 60) / 33_536))),
            Eviction::Cyclic => assert_eq!((first, shares), (8_704, (35_840, (1 << 60) / 35_840))),
            _ => {
                assert_eq!((first, shares), (16_384, (98_304, (149_796 << 40) / 98_304)));
                assert_eq!((&numbers.latest[16..18], &numbers.latest_widths[..]), (&[2, 4][..], &[0, 2][..]));
                // 2 and 4 are what came after 3, and nothing has come after them.
                let ring = (5 + 3) * RING_STEPS;
                assert_eq!(numbers.ring_experts[ring * WIDEST..][..2], [2, 4]);
                assert_eq!((numbers.ring_widths[ring], numbers.ring_next[5 + 3]), (2, 1));
                assert_eq!(numbers.followed, [0; 10]);
            }
        }
    }
}

/// Two layers of four experts under `rule`, of which the second has used 1 and 3, then 2, then 1 and 3.
fn small(rule: Eviction) -> Scores {
    let mut scores = Scores::new(rule, 2, 4).unwrap();
    for routes in [&[1, 3][..], &[2], &[1, 3]] {
        let routes: Vec<ExpertId> = routes.iter().copied().map(ExpertId::new).collect();
        scores.count(LayerId::new(1), &routes, false);
    }
    scores
}

/// What changed numbers of [`small`] are refused for. Nothing else has changed then.
#[track_caller]
fn refused(rule: Eviction, change: impl FnOnce(&mut ScoreNumbers)) -> String {
    let mut scores = small(rule);
    let mut numbers = scores.numbers();
    change(&mut numbers);
    let error = scores.set_numbers(&numbers).unwrap_err();
    assert_eq!(scores.check_numbers(&numbers), Err(error));
    assert_eq!(scores.numbers(), small(rule).numbers(), "{error}");
    error.to_string()
}

#[test]
fn numbers_of_another_model_are_refused() {
    use Eviction::{Cyclic, Learned, Lfu};
    let texts = [
        refused(Lfu, |numbers| numbers.weights.truncate(6)),
        refused(Lfu, |numbers| numbers.turns.push(0)),
        refused(Cyclic, |numbers| numbers.counts.truncate(47)),
        refused(Lfu, |numbers| numbers.totals.push(0)),
        refused(Learned, |numbers| numbers.gains.clear()),
        refused(Learned, |numbers| numbers.latest.truncate(31)),
        refused(Learned, |numbers| numbers.latest_widths.push(0)),
        refused(Learned, |numbers| numbers.ring_experts.push(0)),
        refused(Learned, |numbers| numbers.ring_widths.truncate(63)),
        refused(Learned, |numbers| numbers.ring_next.push(0)),
        refused(Learned, |numbers| numbers.followed.truncate(7)),
        // Of another rule, whose numbers are as many or more.
        refused(Lfu, |numbers| *numbers = small(Cyclic).numbers()),
        refused(Lfu, |numbers| *numbers = small(Learned).numbers()),
        refused(Cyclic, |numbers| numbers.rule = Eviction::Lru),
        refused(Cyclic, |numbers| numbers.followed.push(0)),
    ];
    insta::assert_snapshot!(texts.join("\n"), @"
    weights: their number is 6 and should be 7
    turns: their number is 3 and should be 2
    counts: their number is 47 and should be 48
    totals: their number is 15 and should be 14
    gains: their number is 0 and should be 14
    latest: their number is 31 and should be 32
    latest_widths: their number is 3 and should be 2
    ring_experts: their number is 1025 and should be 1024
    ring_widths: their number is 63 and should be 64
    ring_next: their number is 9 and should be 8
    followed: their number is 7 and should be 8
    they are of cyclic and should be of lfu
    they are of learned and should be of lfu
    they are of lru and should be of cyclic
    followed: their number is 1 and should be 0
    ");
}

#[test]
fn numbers_that_contradict_each_other_are_refused() {
    use Eviction::{Cyclic, Learned, Lfu};
    let texts = [
        refused(Learned, |numbers| numbers.weights[6] = 127),
        refused(Learned, |numbers| numbers.weights[0] = WEIGHTS[1] + 1),
        refused(Learned, |numbers| numbers.weights = vec![128, 128, 128, 128, 128, 128, WEIGHTS[1] - 767]),
        refused(Lfu, |numbers| numbers.weights[0] -= 1),
        refused(Cyclic, |numbers| numbers.weights[1] = 1),
        // Less than the counts that it is of; more than any; of a layer, and of a component that there is not.
        refused(Learned, |numbers| numbers.totals[7 + 2] -= 1),
        refused(Learned, |numbers| numbers.counts[(4 + 3) * 6 + 5] += 1),
        refused(Learned, |numbers| numbers.totals[7] = 1 << 60),
        refused(Lfu, |numbers| numbers.totals[7 + 1] = 1),
        refused(Cyclic, |numbers| numbers.counts[(4 + 1) * 6 + 3] = 5),
        refused(Cyclic, |numbers| numbers.totals[6] = 3),
        refused(Learned, |numbers| numbers.totals[7 + 6] = 3),
        // Gains of nothing: before the first step, and of a component that there is not.
        refused(Cyclic, |numbers| numbers.gains[0] = 9),
        refused(Learned, |numbers| numbers.gains[6] = 1),
        refused(Lfu, |numbers| numbers.gains[7 + 1] = u64::MAX),
        refused(Lfu, |numbers| numbers.gains[7 + 6] = 1),
        refused(Lfu, |numbers| numbers.gains[7] *= 3),
        // A number at once too many for what it is.
        refused(Learned, |numbers| numbers.latest[5] = 4),
        refused(Learned, |numbers| numbers.latest_widths[0] = 17),
        refused(Learned, |numbers| numbers.ring_experts[8 * 8 * 16 - 1] = u16::MAX),
        refused(Learned, |numbers| numbers.ring_widths[63] = 255),
        refused(Learned, |numbers| numbers.ring_next[2] = 8),
        // Steps whose experts are there twice or go down.
        refused(Learned, |numbers| numbers.latest[16 + 1] = 1),
        refused(Learned, |numbers| numbers.ring_widths[4 * 8 + 7] = 3),
        refused(Learned, |numbers| numbers.latest[16] = 3),
        // What followed 1 and 3 was 2, of each once.
        refused(Learned, |numbers| numbers.followed[4 + 2] = 1),
        refused(Learned, |numbers| numbers.followed[0] = u32::MAX),
        refused(Learned, |numbers| numbers.ring_widths[(4 + 3) * 8] = 0),
        refused(Learned, |numbers| numbers.latest_widths[1] = 1),
    ];
    insta::assert_snapshot!(texts.join("\n"), @"
    component 6 has weight 127; weights here are 128 to 1572864
    component 0 has weight 1572865; weights here are 128 to 1572864
    the weights sum to 1572865; at most 1572864 there can be
    component 0 has weight 1048575; weights here are 1048576 to 1048576
    component 1 has weight 1; weights here are 0 to 0
    layer 1 component 2: the total is 46079; its counts sum to 46080; at most 1152921504606846975 it can be
    layer 1 component 5: the total is 41040; its counts sum to 41041; at most 1152921504606846975 it can be
    layer 1 component 0: the total is 1152921504606846976; its counts sum to 196608; at most 1152921504606846975 it can be
    layer 1 component 1: the total is 1; its counts sum to 0; at most 0 it can be
    layer 1 component 3: the total is 0; its counts sum to 5; at most 0 it can be
    layer 0 component 6: the total is 3; its counts sum to 0; at most 0 it can be
    layer 1 component 6: the total is 3; its counts sum to 2; at most 2 it can be
    layer 0 component 0: the gain is 9; the total is 0
    layer 0 component 6: the gain is 1; the total is 0
    layer 1 component 1: the gain is 18446744073709551615; the total is 0
    layer 1 component 6: the gain is 1; the total is 0
    layer 1: totals times gains come to 3458764513820436480; at most 2305843009213693951 there can be
    latest[5] is 4; at most 3 there can be
    latest_widths[0] is 17; at most 16 there can be
    ring_experts[1023] is 65535; at most 3 there can be
    ring_widths[63] is 255; at most 16 there can be
    ring_next[2] is 8; at most 7 there can be
    latest[17] is 1 after 1; the experts of a step ascend
    ring_experts[625] is 0 after 0; the experts of a step ascend
    latest[17] is 3 after 3; the experts of a step ascend
    layer 1 expert 2 is said to have followed 1 times; by the rings 2
    layer 0 expert 0 is said to have followed 4294967295 times; by the rings 0
    layer 1 expert 2 is said to have followed 2 times; by the rings 1
    layer 1 expert 2 is said to have followed 2 times; by the rings 1
    ");
}

#[test]
fn numbers_at_their_bounds_are_taken() {
    let taken = |rule: Eviction, change: &dyn Fn(&mut ScoreNumbers)| {
        let mut scores = small(rule);
        let mut numbers = scores.numbers();
        change(&mut numbers);
        assert_eq!(scores.set_numbers(&numbers), Ok(()), "{rule}");
        assert_eq!(scores.numbers(), numbers, "{rule}");
    };
    taken(Eviction::Learned, &|numbers| numbers.weights = vec![128, 128, 128, 128, 128, 128, WEIGHTS[1] - 768]);
    taken(Eviction::Learned, &|numbers| numbers.ring_next[2] = 7);
    taken(Eviction::Lfu, &|numbers| (numbers.totals[7], numbers.gains[7]) = ((1 << 60) - 1, 2));
    taken(Eviction::Lfu, &|numbers| numbers.gains[7] = ((1 << 61) - 1) / numbers.totals[7]);
    taken(Eviction::Cyclic, &|numbers| numbers.turns = vec![u32::MAX, 0]);
    for rule in SCORED {
        let mut scores = small(rule);
        let mut numbers = scores.numbers();
        // Alone, so that nothing else is a part of its chances.
        numbers.gains[7..].fill(0);
        numbers.gains[7] = (1_u64 << 61).div_ceil(numbers.totals[7]);
        let given = u128::from(numbers.totals[7]) * u128::from(numbers.gains[7]);
        let error = ScoresError::Chances { layer: LayerId::new(1), given, most: (1 << 61) - 1 };
        assert_eq!(scores.set_numbers(&numbers), Err(error), "{rule}");
        numbers.gains[7] -= 1;
        assert_eq!(scores.set_numbers(&numbers), Ok(()), "{rule}");
    }
}

/// All at once as high as they may be, then steps of every kind.
#[test]
fn nothing_overflows_behind_numbers_at_their_bounds() {
    for (seed, rule) in (0..60).zip(SCORED.into_iter().cycle()) {
        let mut case = Case::new(seed, rule);
        case.steps(seed * 3);
        let mut numbers = case.scores.numbers();
        let halves = rule.log_halves().len();
        if rule.learns() {
            // One component has all that the others leave, in turn.
            numbers.weights.fill(WEIGHTS[0]);
            numbers.weights[seed as usize % COMPONENTS] = WEIGHTS[1] - 6 * WEIGHTS[0];
        }
        numbers.turns.fill([u32::MAX, u32::MAX - 1, 8_191, 511, 127][seed as usize % 5]);
        for layer in 0..case.layers {
            for half in 0..halves {
                for expert in 0..case.experts {
                    numbers.counts[(layer * case.experts + expert) * HALVES + half] = u32::MAX - expert as u32;
                }
                numbers.totals[layer * COMPONENTS + half] =
                    if seed % 2 == 0 { (1 << 60) - 1 } else { case.experts as u64 * u64::from(u32::MAX) };
            }
            let shares = layer * COMPONENTS..(layer + 1) * COMPONENTS;
            let components = halves as u64 + u64::from(rule.learns());
            for share in shares {
                let most = ((1 << 61) - 1) / components;
                numbers.gains[share] = most.checked_div(numbers.totals[share]).unwrap_or(0);
            }
        }
        let at = format!("{rule} seed {seed}");
        case.scores.set_numbers(&numbers).unwrap_or_else(|error| panic!("{at}: {error}"));
        check_chances(&case, &at);
        for step in 0..60 {
            case.step();
            check_chances(&case, &format!("{at} step {step}"));
        }
    }
}

/// One number of an array, at random.
fn one<'a, T>(rng: &mut Rng, numbers: &'a mut [T]) -> Option<&'a mut T> {
    let index = rng.below(numbers.len().max(1) as u64) as usize;
    numbers.get_mut(index)
}

/// Changes one number of an array to one that is large, or near a bound, or near to what it was.
fn damage(rng: &mut Rng, array: usize, numbers: &mut ScoreNumbers) {
    let [least, most] = WEIGHTS;
    let bits = rng.bits() >> rng.below(64);
    let wide = |rng: &mut Rng, was: u64| {
        let near = was.wrapping_add(rng.below(5)).wrapping_sub(2);
        let (limit, chances) = (1 << 60, 1 << 61);
        [near, near, was << 1, was >> 1, 0, 1, limit - 1, limit, chances, u64::MAX, u64::MAX >> 1, bits]
            [rng.below(12) as usize]
    };
    let narrow = |rng: &mut Rng, was: u32| match rng.below(9) {
        0 => least,
        1 => most,
        2 => most - 6 * least,
        3 => u32::MAX,
        4 => u32::MAX - 1,
        5 => bits as u32,
        _ => was.wrapping_add(rng.below(5) as u32).wrapping_sub(2),
    };
    let id = |rng: &mut Rng, was: u16| [was.wrapping_add(1), was.wrapping_sub(1), 0, u16::MAX][rng.below(4) as usize];
    let byte = |rng: &mut Rng, was: u8| {
        [was.wrapping_add(1), was.wrapping_sub(1), 0, 7, 8, 16, 17, u8::MAX][rng.below(8) as usize]
    };
    macro_rules! change {
        ($array:expr, $how:expr) => {
            if let Some(number) = one(rng, $array) {
                *number = $how(rng, *number);
            }
        };
    }
    match array {
        0 => change!(&mut numbers.weights, narrow),
        1 => change!(&mut numbers.turns, narrow),
        2 => change!(&mut numbers.counts, narrow),
        3 => change!(&mut numbers.totals, wide),
        4 => change!(&mut numbers.gains, wide),
        5 => change!(&mut numbers.latest, id),
        6 => change!(&mut numbers.latest_widths, byte),
        7 => change!(&mut numbers.ring_experts, id),
        8 => change!(&mut numbers.ring_widths, byte),
        9 => change!(&mut numbers.ring_next, byte),
        _ => change!(&mut numbers.followed, narrow),
    }
}

/// Whether an array has a number that is looked at: one of a step's width, or of any other array.
fn looked_at(before: &ScoreNumbers, after: &ScoreNumbers) -> bool {
    let steps = |numbers: &ScoreNumbers| -> Vec<Vec<u16>> {
        let all = numbers.latest.chunks(WIDEST).zip(&numbers.latest_widths);
        let rings = numbers.ring_experts.chunks(WIDEST).zip(&numbers.ring_widths);
        all.chain(rings).map(|(experts, &width)| experts[..usize::from(width)].to_vec()).collect()
    };
    let bare = |numbers: &ScoreNumbers| {
        let (latest, ring_experts) = (Vec::new(), Vec::new());
        ScoreNumbers { latest, ring_experts, ..numbers.clone() }
    };
    steps(before) != steps(after) || bare(before) != bare(after)
}

#[test]
fn a_number_that_is_changed_is_refused_or_told_and_overflows_nothing() {
    let mut taken = [0; 11];
    for seed in 0..700 {
        let rule = if seed % 5 < 3 { Eviction::Learned } else { SCORED[seed as usize % 2] };
        let mut case = Case::new(seed, rule);
        let count = case.rng.below(80);
        case.steps(count);
        let array = case.rng.below(if rule.learns() { 11 } else { 5 }) as usize;
        let before = case.scores.numbers();
        let mut numbers = before.clone();
        damage(&mut case.rng, array, &mut numbers);
        let was = case.scores.clone();
        let at = format!("{rule} seed {seed}: array {array}");
        if let Err(error) = case.scores.set_numbers(&numbers) {
            assert_eq!(case.scores.numbers(), before, "{at}: {error}");
            continue;
        }
        assert_eq!(case.scores.numbers(), numbers, "{at}");
        if numbers != before {
            taken[array] += 1;
            // A ring that begins elsewhere has its steps in another order, which are told but where they are all alike.
            let is_told = array == 9 || looked_at(&before, &numbers);
            if array != 9 {
                assert_eq!(told(&case.scores) != told(&was), is_told, "{at}");
            }
        }
        for step in 0..12 {
            case.step();
            check_chances(&case, &format!("{at} step {step}"));
        }
        match case.scores.check_numbers(&case.scores.numbers()) {
            Ok(()) => {}
            // Uses were added to a total that was as high as it may be.
            Err(ScoresError::Total { given, .. }) if given >= 1 << 60 => {}
            Err(error) => panic!("{at}: {error}"),
        }
    }
    // What followed can be no other than it is by the rings. Neither, mostly, can what it is that they are asked of.
    assert_eq!(taken[10], 0, "{taken:?}");
    assert!([0, 1, 2, 3, 4, 5, 7, 8, 9].iter().all(|&array| taken[array] > 2), "{taken:?}");
}

/// Turns a ring: every step, and the place of the next, so many further on.
fn turned(numbers: &ScoreNumbers, ring: usize, by: usize) -> ScoreNumbers {
    let mut turned = numbers.clone();
    let first = ring * RING_STEPS;
    turned.ring_widths[first..first + RING_STEPS].rotate_right(by);
    turned.ring_experts[first * WIDEST..(first + RING_STEPS) * WIDEST].rotate_right(by * WIDEST);
    turned.ring_next[ring] = ((usize::from(turned.ring_next[ring]) + by) % RING_STEPS) as u8;
    turned
}

#[test]
fn where_a_ring_begins_decides_and_tells_nothing() {
    let mut told_apart = 0;
    for seed in 0..30 {
        let mut case = Case::new(seed, Eviction::Learned);
        case.steps(120);
        let numbers = case.scores.numbers();
        for _ in 0..4 {
            let ring = case.rng.below(numbers.ring_next.len() as u64) as usize;
            let by = 1 + case.rng.below(7) as usize;
            let mut other = case.clone();
            let whole = turned(&numbers, ring, by);
            assert_ne!(whole.ring_next, numbers.ring_next);
            other.scores.set_numbers(&whole).unwrap();
            assert_eq!(told(&other.scores), told(&case.scores), "seed {seed}: ring {ring} by {by}");
            // Only the beginning: the oldest is another, unless the steps are all alike.
            let mut half = other.clone();
            let next = ScoreNumbers { ring_next: whole.ring_next, ..numbers.clone() };
            half.scores.set_numbers(&next).unwrap();
            told_apart += u32::from(told(&half.scores) != told(&case.scores));
            let mut one = case.clone();
            for step in 0..40 {
                one.step();
                other.step();
                let (numbers, others) = (one.scores.numbers(), other.scores.numbers());
                assert_eq!(others.followed, numbers.followed, "seed {seed}: ring {ring} by {by}, step {step}");
            }
            assert_eq!(told(&other.scores), told(&one.scores), "seed {seed}: ring {ring} by {by}");
        }
    }
    assert!(told_apart > 75, "{told_apart}");
}
