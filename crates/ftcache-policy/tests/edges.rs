//! Edges that random settings meet too rarely: one layer, numbers near the end of 64 bits, pools that lost their first
//! layer, slots that are never filled.

use ftcache_policy::{
    Admission, Budget, Carried, Configuration, ConfigurationError, Constraints, CpuCode, Fetch, FetchChoice, FetchRule,
    Fraction, Geometry, GeometryError, LayerId, LayoutKey, Model, Note, OverlapOff, PoolId, Profile, ProfileError,
    Quantisation, Reserve, Settings, Share, StagingPlace, Strategy, StrategyChoice, TailPad,
};

fn model(expert_count: u32, top_k: u32, layers: &[(&str, u64)]) -> Model {
    let layers = layers.iter().map(|&(tag, bytes)| LayoutKey::tagged(tag, [bytes])).collect();
    Model::new(expert_count, top_k, Quantisation::PerLayer, layers).unwrap()
}

fn settings(budget: Budget) -> Settings {
    Settings::new(Constraints { tail_pad: TailPad::Bytes(0), ..Constraints::new(budget) })
}

#[test]
fn the_tables_of_a_slot_are_paid_with_it() {
    // 100 layers of 512 experts of 600 bytes; a slot costs 13 bytes of tables besides.
    let hundred = || model(512, 8, &[("q", 600); 100]);
    let places = [(StagingPlace::Nowhere, true), (StagingPlace::Borrowed, true), (StagingPlace::Borrowed, false)];
    for (staging, overlap) in places {
        for free in 2_600_000..2_600_700 {
            let settings = Settings {
                free_bytes: Some(free),
                admission: Admission::Device,
                staging,
                overlap,
                ..settings(Budget::Rest(Share::WHOLE))
            };
            let left = Configuration::new(hundred(), settings).unwrap().left_bytes().unwrap();
            assert!(left < 613, "{staging:?}, overlap {overlap}, {free} free: {left} left");
        }
    }
}

#[test]
fn tables_on_the_device_have_room_for_hybrid_steps_whatever_the_strategy() {
    let tables = |strategy, fetch| {
        let settings = Settings {
            admission: Admission::Device,
            strategy: StrategyChoice::Fixed(strategy),
            fetch,
            ..settings(Budget::Slots(32))
        };
        Configuration::new(model(8, 2, &[("q", 1_000); 4]), settings).unwrap().set_aside().tables
    };
    let half = Fetch { rule: FetchRule::Carry(Fraction::from_q16(1 << 15).unwrap()), most: None };
    let (plain, hybrid) = (tables(Strategy::Offload, None), tables(Strategy::Hybrid, Some(FetchChoice::Fixed(half))));
    assert_eq!(hybrid, plain);
}

#[test]
fn sums_past_64_bits_are_refused_and_do_not_wrap() {
    let four = || model(8, 2, &[("q", 1_000); 4]);
    let reserved = Settings {
        free_bytes: Some(u64::MAX),
        reserves: vec![Reserve { name: "kv".into(), bytes: u64::MAX }],
        ..settings(Budget::Slots(16))
    };
    let past = ConfigurationError::PastFree { needed: 16_000, reserved: u64::MAX, free: u64::MAX };
    assert_eq!(Configuration::new(four(), reserved), Err(past));
    // A layer staged at a stride of 2^47 bytes in each of two banks.
    let wide = Model::new(1 << 20, 1, Quantisation::PerLayer, vec![LayoutKey::tagged("q", [1, 1]); 2]).unwrap();
    let constraints = Constraints { slot_pad_bytes: 1 << 47, ..Constraints::new(Budget::Slots(1)) };
    for free_bytes in [None, Some(u64::MAX)] {
        let staged = Settings { free_bytes, staging: StagingPlace::Dedicated, ..Settings::new(constraints.clone()) };
        let error = Configuration::new(wide.clone(), staged).unwrap_err();
        let ConfigurationError::Geometry(GeometryError::TooManyBytes { bytes, .. }) = error else { panic!("{error}") };
        assert!(bytes > u128::from(u64::MAX), "{bytes}");
    }
    // So many banks that a slot's bytes could not be added up.
    let banks = vec![LayoutKey::tagged("q", vec![1; 70_000])];
    let error = Model::new(4, 1, Quantisation::PerLayer, banks).unwrap_err();
    assert_eq!(error, GeometryError::TooManyBanks { banks: 70_000, most: 16_384 });
}

#[test]
fn pools_of_equal_width_stand_by_their_first_layer_with_slots() {
    let layers = [("a", 64), ("b", 64), ("b", 64), ("a", 64)];
    let slotless_layers = vec![LayerId::new(0)];
    let constraints = Constraints { slotless_layers, ..Constraints::new(Budget::Slots(8)) };
    let geometry = Geometry::new(model(4, 1, &layers), constraints).unwrap();
    let layers: Vec<Vec<u32>> =
        geometry.pools().iter().map(|pool| pool.layers().iter().map(|layer| layer.get()).collect()).collect();
    assert_eq!(layers, [vec![1, 2], vec![3]]);
}

#[test]
fn one_layer_has_none_to_overlap_with() {
    for (staging, added) in [(StagingPlace::Borrowed, 0), (StagingPlace::Dedicated, 8_000)] {
        let settings = Settings { staging, ..settings(Budget::Slots(8)) };
        let one = Configuration::new(model(8, 2, &[("q", 1_000)]), settings).unwrap();
        assert_eq!(one.overlap_off(), Some(&OverlapOff::OneLayer));
        assert_eq!(one.staging().map(|staging| staging.buffer_count()), Some(1));
        assert_eq!(one.set_aside().staging, [added]);
    }
}

#[test]
fn one_expert_a_layer_and_every_expert_of_a_token() {
    let one = Configuration::new(model(1, 1, &[("q", 7); 3]), settings(Budget::Bytes(14))).unwrap();
    assert_eq!((one.geometry().slot_count(), one.geometry().request_limit()), (2, None));
    assert_eq!(one.staging().map(|staging| staging.buffer_count()), Some(2));
    assert_eq!(one.geometry().on_demand_tokens(), 0);
    let all = Configuration::new(model(8, 8, &[("q", 10); 2]), settings(Budget::Slots(8))).unwrap();
    assert_eq!((all.geometry().request_limit(), all.geometry().on_demand_tokens()), (None, 0));
}

#[test]
fn slots_that_no_step_fills_are_refused_or_noted() {
    let never = [
        Fetch { rule: FetchRule::UpTo(0), most: None },
        Fetch { rule: FetchRule::Carry(Fraction::NONE), most: None },
        Fetch { rule: FetchRule::MinWait(Fraction::ALL), most: Some(0) },
    ];
    let hybrid = |fetch, cpu_code| Settings {
        strategy: StrategyChoice::Fixed(Strategy::Hybrid),
        fetch: Some(FetchChoice::Fixed(fetch)),
        cpu_code,
        ..settings(Budget::Slots(16))
    };
    let four = || model(8, 2, &[("q", 1_000); 4]);
    for fetch in never {
        assert!(fetch.is_never());
        assert_eq!((0..9).map(|m| fetch.fetched_count(m, 9, &mut Carried::default())).max(), Some(0), "{fetch}");
        assert_eq!(Configuration::new(four(), hybrid(fetch, CpuCode::Every)), Err(ConfigurationError::NothingFetched));
    }
    let least = Fetch { rule: FetchRule::Carry(Fraction::from_q16(1).unwrap()), most: None };
    assert!(Configuration::new(four(), hybrid(least, CpuCode::Every)).is_ok());
    // By rates, one kind may be the CPU's alone: its pool is noted.
    let point = |tag: &str, pair| ftcache_policy::Point {
        tag: tag.into(),
        expert_bytes: 1_000,
        link: 1.0,
        cpu: Some(9.0),
        contended: Some(pair),
    };
    let faster_alone = ftcache_policy::Pair { link: 0.5, cpu: 1.0 };
    let faster_together = ftcache_policy::Pair { link: 1.0, cpu: 9.0 };
    let rates = ftcache_policy::Rates::new("gpu", vec![point("a", faster_alone), point("b", faster_together)]).unwrap();
    let measured = Settings {
        strategy: StrategyChoice::Measured,
        rates: Some(rates),
        device: Some("gpu".into()),
        ..settings(Budget::Slots(16))
    };
    let mixed = Configuration::new(model(8, 2, &[("a", 1_000), ("b", 1_000)]), measured).unwrap();
    assert_eq!(mixed.strategy(), Strategy::Hybrid);
    assert!(mixed.notes().contains(&Note::NeverFilled { pool: PoolId::new(0), slots: 8 }), "{:?}", mixed.notes());
}

#[test]
fn a_rank_whose_experts_were_never_used_says_so() {
    let whole = model(8, 2, &[("q", 64); 2]);
    let view = |rank| {
        let cut = ftcache_policy::Cut::Experts { rank, rank_count: 2 };
        ftcache_policy::RankView::new(&whole, &cut, &[LayerId::new(1)]).unwrap()
    };
    let counts = [vec![1.0; 8], vec![5.0, 4.0, 3.0, 2.0, 0.0, 0.0, 0.0, 0.0]];
    let profile = Profile::new("m", &counts).unwrap();
    assert_eq!(
        view(0).profile(&profile).unwrap().shares(LayerId::new(0)),
        [5.0 / 14.0, 4.0 / 14.0, 3.0 / 14.0, 2.0 / 14.0]
    );
    assert_eq!(view(1).profile(&profile), Err(ProfileError::NoneOwned { layer: LayerId::new(1), experts: 4..8 }));
}
