//! Strategies, notes and profiles.

use super::*;

#[test]
fn the_rates_choose_the_strategy() {
    let half = Fraction::nearest(0.5).unwrap();
    let alone = || point("q", 5e9, Some(1e10), None);
    let table = [
        (alone(), Strategy::Hybrid, Basis::Alone, half),
        (
            point("q", 12e9, Some(30e9), Some((12e9, 36e9))),
            Strategy::Hybrid,
            Basis::Contended,
            Fraction::from_q16(1 << 14).unwrap(),
        ),
        (point("q", 5e10, Some(2e10), None), Strategy::Offload, Basis::LinkFaster, Fraction::ALL),
        (point("q", 12e9, Some(60e9), Some((5e9, 40e9))), Strategy::Cpu, Basis::CpuFaster, Fraction::NONE),
        (point("q", 1e9, None, None), Strategy::Offload, Basis::NoCpuCode, Fraction::ALL),
    ];
    for (point, strategy, basis, fraction) in table {
        let configuration = new(toy(), measured(vec![point], CpuCode::Every));
        let one = configuration.recommendation(LayerId::new(3)).unwrap();
        assert_eq!((configuration.strategy(), one.strategy), (strategy, strategy), "{basis:?}");
        assert_eq!((one.basis, one.fraction), (basis, fraction));
        let fetch = if strategy == Strategy::Hybrid { carry(fraction) } else { None };
        assert_eq!(configuration.fetch(LayerId::new(3)), fetch, "{basis:?}");
        // Where the CPU computes every expert, slots only stage prefill.
        assert_eq!(configuration.geometry().constraints().staging_only, strategy == Strategy::Cpu, "{basis:?}");
    }
    // What the settings say comes before the rates.
    let most = Fetch { rule: FetchRule::UpTo(3), most: None };
    let said = Settings { fetch: Some(FetchChoice::Fixed(most)), ..measured(vec![alone()], CpuCode::Every) };
    assert_eq!(new(toy(), said).fetch(LayerId::new(0)), Some(most));
}

#[test]
fn a_layer_without_cpu_code_is_fetched_whole() {
    let model = || tagged(["a", "b", "a", "b"]);
    let only_a = || CpuCode::Tags(vec![b"a".to_vec()]);
    let fast_cpu = |tag| point(tag, 12e9, Some(60e9), Some((5e9, 40e9)));
    let hybrid = |tag| point(tag, 5e9, Some(1e10), None);
    let fast_link = |tag| point(tag, 5e10, Some(2e10), None);
    let of = |points, cpu_code| {
        let configuration = new(model(), measured(points, cpu_code));
        let fetch = [0, 1].map(|layer| configuration.fetch(LayerId::new(layer)));
        (configuration.strategy(), fetch)
    };
    let half = carry(Fraction::nearest(0.5).unwrap());
    let (all, none) = (carry(Fraction::ALL), carry(Fraction::NONE));
    // Measured or not, and whatever was measured.
    for b in [fast_cpu("b"), hybrid("b"), fast_link("b")] {
        assert_eq!(of(vec![hybrid("a"), b.clone()], only_a()), (Strategy::Hybrid, [half, all]));
        assert_eq!(of(vec![fast_cpu("a"), b.clone()], only_a()), (Strategy::Hybrid, [none, all]));
        assert_eq!(of(vec![fast_link("a"), b], only_a()), (Strategy::Offload, [None, None]));
    }
    assert_eq!(of(vec![hybrid("a")], only_a()), (Strategy::Hybrid, [half, all]));
    assert_eq!(of(vec![fast_cpu("a")], only_a()), (Strategy::Hybrid, [none, all]));
    // With code for both, each kind has its own fraction.
    assert_eq!(of(vec![fast_cpu("a"), fast_link("b")], CpuCode::Every), (Strategy::Hybrid, [none, all]));
    assert_eq!(of(vec![hybrid("a"), fast_cpu("b")], CpuCode::Every), (Strategy::Hybrid, [half, none]));

    let configuration = new(model(), measured(vec![hybrid("a"), fast_cpu("b")], only_a()));
    let one = configuration.recommendation(LayerId::new(1)).unwrap();
    assert_eq!((one.strategy, one.basis, one.fraction), (Strategy::Offload, Basis::NoCpuCode, Fraction::ALL));
    for strategy in [Strategy::Hybrid, Strategy::Cpu] {
        let fixed = Settings { strategy: StrategyChoice::Fixed(strategy), ..measured(vec![hybrid("a")], only_a()) };
        let no_code = ConfigurationError::NoCpuCode { strategy, layer: LayerId::new(1), tag: b"b".to_vec() };
        assert_eq!(refused(model(), fixed), no_code);
    }
}

#[test]
fn what_was_not_measured_is_not_guessed() {
    // B59.
    let not_measured = |layer| ConfigurationError::NotMeasured { layer: LayerId::new(layer) };
    let automatic = Settings { strategy: StrategyChoice::Measured, ..settings(Budget::Slots(16)) };
    assert_eq!(refused(toy(), automatic), ConfigurationError::NoRates);
    let hybrid = Settings { strategy: StrategyChoice::Fixed(Strategy::Hybrid), ..settings(Budget::Slots(16)) };
    assert_eq!(refused(toy(), hybrid.clone()), ConfigurationError::NoRates);
    let said = Settings { fetch: said_all(), ..hybrid };
    assert_eq!(new(toy(), said.clone()).fetch(LayerId::new(0)), carry(Fraction::ALL));
    // One kind of two, and an expert of more than twice the size.
    let point = || point("q", 5e9, Some(1e10), None);
    assert_eq!(refused(tagged(["q", "r"]), measured(vec![point()], CpuCode::Every)), not_measured(1));
    assert!(Configuration::new(layers(2, 8, 2, &[2_000]), measured(vec![point()], CpuCode::Every)).is_ok());
    assert_eq!(refused(layers(2, 8, 2, &[2_001]), measured(vec![point()], CpuCode::Every)), not_measured(0));
    // Another device's figures are not used, whatever the strategy.
    let other = RatesError::OtherDevice { measured: "gpu".into(), device: "other".into() };
    for strategy in [StrategyChoice::Measured, StrategyChoice::Fixed(Strategy::Offload)] {
        let elsewhere = Settings { device: Some("other".into()), strategy, ..measured(vec![point()], CpuCode::Every) };
        assert_eq!(refused(toy(), elsewhere.clone()), other.clone().into());
        let unknown = ConfigurationError::DeviceUnknown { measured: "gpu".into() };
        assert_eq!(refused(toy(), Settings { device: None, ..elsewhere }), unknown);
    }
    // Layers that hold no slots have no misses: nothing need be measured of them, nor is it asked.
    let mut some = Settings { resident_layers: ids([1]), ..measured(vec![point()], CpuCode::Every) };
    some.constraints.budget = Budget::Slots(8);
    let hybrid = new(tagged(["q", "r"]), some.clone());
    assert_eq!((hybrid.strategy(), hybrid.fetch(LayerId::new(1))), (Strategy::Hybrid, None));
    assert!(hybrid.fetch(LayerId::new(0)).is_some());
    let left_out = Settings { resident_layers: vec![], cpu_layers: CpuLayers::List(ids([1])), ..some.clone() };
    assert_eq!(new(tagged(["q", "r"]), left_out).strategy(), Strategy::Hybrid);
    // What was measured of the layer on the device says nothing of the other.
    some.rates = Some(Rates::new("gpu", vec![point(), self::point("r", 1e9, None, None)]).unwrap());
    let strategies = [[1], [0]].map(|resident| {
        new(tagged(["q", "r"]), Settings { resident_layers: ids(resident), ..some.clone() }).strategy()
    });
    assert_eq!(strategies, [Strategy::Hybrid, Strategy::Offload]);
}

#[test]
fn a_setting_without_effect_is_refused() {
    // C07.
    let fixed = |strategy, budget| Settings { strategy: StrategyChoice::Fixed(strategy), ..settings(budget) };
    let cpu = |budget| fixed(Strategy::Cpu, budget);
    assert_eq!(new(toy(), cpu(Budget::Slots(16))).geometry().slot_count(), 16);
    let above = GeometryError::SlotsAboveMaximum { most: 16, given: 17 };
    assert_eq!(refused(toy(), cpu(Budget::Slots(17))), above.into());
    let short = refused(toy(), cpu(Budget::Slots(7)));
    assert!(matches!(short, ConfigurationError::Short { enough: Enough::Slots(8), .. }), "{short}");
    // Bytes beyond two layers are noted. Notes of decode do not apply.
    assert_eq!(new(toy(), cpu(Budget::Bytes(20_000))).notes(), [Note::EveryPoolFull { unused: 4_000 }]);
    assert_eq!(new(toy(), cpu(Budget::Slots(8))).notes(), []);

    let ignored = |settings| match refused(toy(), settings) {
        ConfigurationError::Ignored { setting, .. } => setting,
        other => panic!("{other}"),
    };
    let slots = Budget::Slots(16);
    for strategy in [Strategy::Offload, Strategy::Cpu] {
        assert_eq!(ignored(Settings { fetch: said_all(), ..fixed(strategy, slots) }), "fetch");
        let fetch_order = Some(FetchOrder::Recency);
        assert_eq!(ignored(Settings { fetch_order, ..fixed(strategy, slots) }), "fetch order");
    }
    let nowhere = Settings { staging: StagingPlace::Nowhere, small_row_bytes: Some(1), ..settings(slots) };
    assert_eq!(ignored(nowhere), "small rows");
    let small = new(toy(), Settings { small_row_bytes: Some(1), ..settings(slots) });
    assert_eq!((small.small_row_bytes(), small.fetch_order()), (1, FetchOrder::Recency));
    assert_eq!(new(toy(), settings(slots)).small_row_bytes(), 256 << 10);
    assert_eq!(ignored(Settings { cpu_layers: CpuLayers::Count(1), ..cpu(slots) }), "cpu layers");
    let mut only_staging = settings(slots);
    only_staging.constraints.staging_only = true;
    assert_eq!(ignored(only_staging), "strategy");
    for staging in [StagingPlace::Dedicated, StagingPlace::Nowhere] {
        assert_eq!(refused(toy(), Settings { staging, ..cpu(slots) }), ConfigurationError::CpuWithoutSlots);
    }
}

// Notes.

#[test]
fn one_tokens_cycle_is_noted_where_a_pool_is_below_it() {
    // C19. A cycle of 4 layers, top-8 and rows of 64 KiB has 2 MiB.
    let notes = |bytes| new(layers(4, 16, 8, &[64 << 10]), settings(Budget::Bytes(bytes))).notes().to_vec();
    let below = |slots, cycle, hits| Note::BelowCycle { pool: PoolId::new(0), slots, cycle, hits };
    assert!(notes(MIB).contains(&below(16, 32, 0)));
    assert!(notes(2 * MIB - 1).contains(&below(31, 32, 28)));
    assert_eq!(notes(2 * MIB), [Note::NothingStable { slots: 32 }]);
    assert_eq!(notes(4 * MIB), []);
    // A slot for every expert of a layer does not protect.
    assert!(new(layers(3, 8, 4, &[1]), settings(Budget::Slots(8))).notes().contains(&below(8, 12, 0)));
    // Two requests may want all 16 experts of each layer, and no more. A layer with a pool of its own has no cycle.
    let mut two = settings(Budget::Slots(63));
    two.constraints.request_count = 3;
    assert_eq!(new(layers(4, 16, 8, &[1]), two.clone()).notes(), [below(63, 64, 60)]);
    two.constraints.scope = Scope::PerLayer;
    two.constraints.request_count = 1;
    assert_eq!(new(layers(4, 16, 8, &[1]), two).notes(), []);
}

#[test]
fn the_edge_of_the_cycle_is_one_layer_wide() {
    // C19. As `hits_at_the_edge_of_one_tokens_cycle` of the residency crate counts them.
    for (layer_count, top_k, slots, hits) in [
        (3, 2, 4, 0),
        (3, 2, 5, 3),
        (4, 3, 9, 0),
        (4, 3, 10, 4),
        (4, 3, 11, 8),
        (36, 4, 140, 0),
        (36, 4, 141, 36),
        (36, 4, 142, 72),
        (36, 4, 143, 108),
    ] {
        let few = Settings { overlap: false, ..settings(Budget::Slots(slots)) };
        let cycle = layer_count as u64 * u64::from(top_k);
        let below = Note::BelowCycle { pool: PoolId::new(0), slots: slots as u32, cycle, hits };
        let configuration = new(layers(layer_count, 4, top_k, &[1]), few.clone());
        assert!(configuration.notes().contains(&below), "{:?}", configuration.notes());
        let enough = configuration.with_budget(Budget::Slots(cycle)).unwrap();
        assert!(!enough.notes().iter().any(|note| matches!(note, Note::BelowCycle { .. })), "{:?}", enough.notes());
    }
    let note = Note::BelowCycle { pool: PoolId::new(0), slots: 141, cycle: 144, hits: 36 };
    assert_eq!(
        note.to_string(),
        "pool 0 has 141 slots; one decode of all its layers routes to 144: \
         with the same experts each time and every miss fetched, LRU hits 36 of them"
    );
}

#[test]
fn at_two_layers_of_slots_nothing_is_stable() {
    // C01.
    let nothing = Note::NothingStable { slots: 1_024 };
    let with = |slots, overlap| {
        let configuration = new(layers(48, 512, 10, &[512]), Settings { overlap, ..settings(Budget::Slots(slots)) });
        configuration.notes().iter().any(|note| matches!(note, Note::NothingStable { .. }))
    };
    let at_two = new(layers(48, 512, 10, &[512]), settings(Budget::Slots(1_024)));
    assert!(at_two.notes().contains(&nothing));
    assert_eq!(
        [with(1_024, true), with(1_025, true), with(1_024, false), with(512, false)],
        [true, false, false, true]
    );
    let beside = Settings { staging: StagingPlace::Dedicated, ..settings(Budget::Slots(1_024)) };
    assert!(!new(layers(48, 512, 10, &[512]), beside).notes().contains(&nothing));
}

// Profiles.

#[test]
fn a_profile_is_checked_before_anything_else() {
    let profile = |experts: usize| Split::Profile(Profile::new("counted", &vec![vec![1.0; experts]; 4]).unwrap());
    // Much else is wrong as well: rates, reserves, layers, budget.
    let mut wrong = Settings {
        strategy: StrategyChoice::Measured,
        rates: Some(Rates::new("gpu", vec![point("q", 1.0, None, None)]).unwrap()),
        free_bytes: Some(0),
        reserves: vec![Reserve { name: "kv".into(), bytes: 1 }],
        resident_layers: ids([9]),
        cpu_layers: CpuLayers::Count(9),
        ..settings(Budget::Slots(0))
    };
    wrong.constraints.request_count = 0;
    wrong.constraints.split = profile(9);
    let shape = ProfileError::Shape { layers: 4, experts: 9, model_layers: 4, model_experts: 8 };
    assert_eq!(refused(toy(), wrong.clone()), shape.into());
    wrong.constraints.split = profile(8);
    wrong.model_name = Some("served".into());
    wrong.other_model = OtherModel::Refuse;
    let other = ConfigurationError::OtherModel { profile: "counted".into(), model: "served".into() };
    assert_eq!(refused(toy(), wrong.clone()), other);
    wrong.model_name = Some("counted".into());
    assert_ne!(refused(toy(), wrong), other);

    // A name that differs is noted, unless it is to be refused; no name is not compared.
    let mut given = settings(Budget::Slots(17));
    given.constraints.split = profile(8);
    given.model_name = Some("served".into());
    let note = Note::OtherModel { profile: "counted".into(), model: "served".into() };
    assert_eq!(new(toy(), given.clone()).notes(), [note]);
    for name in [Some("counted".to_owned()), None] {
        assert_eq!(new(toy(), Settings { model_name: name, ..given.clone() }).notes(), []);
    }
}
