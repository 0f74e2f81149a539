//! Names of the rules for victims, and what they refuse.

use ftcache_policy::{Eviction, EvictionError, Scores};

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
