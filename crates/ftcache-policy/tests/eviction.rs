//! The rules for victims: their names, what they refuse, and their scores against the slow model.

use ftcache_policy::{Eviction, EvictionError, ExpertId, LayerId, Scores};
use ftcache_testkit::{Rng, reference};

#[test]
fn names_go_both_ways() {
    assert_eq!(Eviction::ALL.map(Eviction::name), ["lru", "lfu", "cyclic", "learned"]);
    for rule in Eviction::ALL {
        assert_eq!((rule.name().parse(), rule.to_string()), (Ok(rule), rule.name().to_owned()));
    }
    assert_eq!(Eviction::default(), Eviction::Lru);
}

#[test]
fn errors_name_the_rule_and_both_numbers() {
    for name in ["mru", "LRU", "lru ", ""] {
        let error = name.parse::<Eviction>().unwrap_err();
        assert_eq!(error, EvictionError::UnknownName { name: name.to_owned() });
        let text = format!("\"{name}\" is no rule for victims: there are lru, lfu, cyclic, learned");
        assert_eq!(error.to_string(), text);
    }
    let error = Eviction::Learned.check(65_537).unwrap_err();
    let wanted = EvictionError::TooManyExperts { rule: Eviction::Learned, expert_count: 65_537, most: 65_536 };
    assert_eq!(error, wanted);
    assert_eq!(error.to_string(), "layers of 65537 experts are too wide for eviction by learned: at most 65536");
}

#[test]
fn only_the_mixture_bounds_the_experts() {
    assert_eq!(Eviction::Learned.check(65_536), Ok(()));
    for rule in [Eviction::Lru, Eviction::Lfu, Eviction::Cyclic] {
        assert_eq!(rule.check(u32::MAX), Ok(()), "{rule}");
    }
}

#[test]
#[should_panic(expected = "it was to be checked: TooManyExperts")]
fn scores_of_more_experts_are_not_made() {
    drop(Scores::new(Eviction::Learned, 1, 65_537));
}

/// Random steps of random layers, some in parts, with routes that come in runs, so that there is something to learn.
fn random_step(rng: &mut Rng, layers: u64, experts: u64) -> (u32, Vec<u32>, bool) {
    let layer = rng.below(layers) as u32;
    let first = rng.below(experts);
    let widest = [2, 5, 20][rng.below(3) as usize];
    let width = rng.below(widest);
    let mut routes: Vec<u32> = (0..width).map(|_| ((first + rng.below(1 + width)) % experts) as u32).collect();
    if rng.chance(1, 8) {
        routes.push(reference::ABSENT);
    }
    (layer, routes, rng.chance(1, 10))
}

#[test]
fn scores_are_those_of_the_slow_model() {
    for seed in 0..120 {
        let mut rng = Rng::new(seed);
        let rule = Eviction::ALL[1 + seed as usize % 3];
        let (layers, experts) = (1 + rng.below(4), 1 + rng.below(40));
        let mut scores = Scores::new(rule, layers as usize, experts as u32).unwrap();
        let mut model = reference::Scores::new(rule, layers as usize).unwrap();
        assert_eq!(model.rule(), rule);
        for step in 0..600 {
            let (layer, routes, continues) = random_step(&mut rng, layers, experts);
            let ids: Vec<ExpertId> = routes.iter().copied().map(ExpertId::new).collect();
            scores.count(LayerId::new(layer), &ids, continues);
            model.count(layer, &routes, continues);
            let (of, now) = (rng.below(layers) as u32, rng.below(layers) as u32);
            for expert in 0..experts as u32 {
                let chance = scores.chances(LayerId::new(of)).of(ExpertId::new(expert));
                let ours = (u64::from(chance), scores.score(chance, LayerId::new(of), LayerId::new(now)));
                let wanted = (model.chance(of, expert), model.score(of, expert, now));
                assert_eq!(ours, wanted, "seed {seed} step {step}: layer {of} expert {expert} from layer {now}");
            }
        }
    }
}
