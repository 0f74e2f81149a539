//! Layers, strategies, notes and profiles around the pools, and every text of what is refused.

use ftcache_policy::{
    Admission, BankId, Basis, Budget, Configuration, ConfigurationError, Constraints, CpuCode, CpuLayers,
    CpuLayersError, Cut, Declined, Enough, ExpertId, Fetch, FetchChoice, FetchRule, Fraction, Geometry, GeometryError,
    LayerId, LayoutKey, Model, Note, OtherModel, Pair, Point, PoolId, Profile, ProfileError, Quantisation, RankView,
    Rates, RatesError, Reserve, Scope, Settings, Share, Split, Staging, StagingPlace, Strategy, StrategyChoice,
    TagLimit, TailPad,
};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn layers(layer_count: usize, expert_count: u32, top_k: u32, row_bytes: &[u64]) -> Model {
    let layers = vec![LayoutKey::tagged("q", row_bytes); layer_count];
    Model::new(expert_count, top_k, Quantisation::PerLayer, layers).unwrap()
}

/// 32 experts of 1,000 bytes in 4 layers of 8, with a quantisation each.
fn tagged<const N: usize>(tags: [&str; N]) -> Model {
    let layers = tags.map(|tag| LayoutKey::tagged(tag, [1_000])).to_vec();
    Model::new(8, 2, Quantisation::PerLayer, layers).unwrap()
}

fn toy() -> Model {
    tagged(["q"; 4])
}

/// No pads, so that a slot has the bytes of its rows.
fn settings(budget: Budget) -> Settings {
    Settings::new(Constraints { tail_pad: TailPad::Bytes(0), ..Constraints::new(budget) })
}

fn ids(layers: impl IntoIterator<Item = u32>) -> Vec<LayerId> {
    layers.into_iter().map(LayerId::new).collect()
}

fn new(model: Model, settings: Settings) -> Configuration {
    Configuration::new(model, settings).unwrap()
}

fn refused(model: Model, settings: Settings) -> ConfigurationError {
    Configuration::new(model, settings).unwrap_err()
}

// Layers without slots.

#[test]
fn layers_go_to_the_cpu_until_the_others_can_be_pinned() {
    // C7, C03. 15 GiB hold the rows of 30 layers of 40.
    let model = || layers(40, 256, 8, &[1_179_648, 860_160]);
    let of =
        |pinnable| Settings { cpu_layers: CpuLayers::Auto, pinnable_bytes: pinnable, ..settings(Budget::Slots(2_560)) };
    assert_eq!((model().layer_bytes(LayerId::new(0)), model().model_bytes()), (522_190_848, 20_887_633_920));
    let capped = new(model(), of(Some(15 * GIB)));
    assert_eq!((capped.pinned_bytes(), capped.pinned_ranges()), (15_665_725_440, 60));
    let declined: Vec<LayerId> = capped.declined().into_iter().map(|(layer, _)| layer).collect();
    assert_eq!(declined, ids((0..5).chain(35..40)));
    assert_eq!(capped.notes(), []);
    // One byte less than the rows of 30 layers, and exactly these.
    assert_eq!(new(model(), of(Some(15_665_725_439))).pinned_ranges(), 58);
    assert_eq!(new(model(), of(Some(15_665_725_440))).pinned_ranges(), 60);
    let unknown = ConfigurationError::CpuLayers(CpuLayersError::PinnableUnknown);
    assert_eq!(refused(model(), of(None)), unknown);
    let free = new(model(), of(Some(u64::MAX)));
    assert_eq!((free.pinned_bytes(), free.pinned_ranges(), free.declined()), (20_887_633_920, 80, vec![]));
    // A list is taken as it is, with a note where the others are still too many.
    let listed = new(model(), Settings { cpu_layers: CpuLayers::List(ids([3])), ..of(Some(15 * GIB)) });
    assert_eq!(listed.notes(), [Note::Pinnable { needed: 39 * 522_190_848, given: 15 * GIB }]);
    // A bank that a layer does not read needs no registration.
    let two = vec![LayoutKey::tagged("a", [64, 8]), LayoutKey::tagged("b", [64])];
    let two = new(Model::new(8, 2, Quantisation::PerLayer, two).unwrap(), settings(Budget::Slots(16)));
    assert_eq!((two.pinned_ranges(), two.pinned_bytes()), (3, 8 * 136));
}

#[test]
fn resident_layers_or_more_slots() {
    // B27. 13 of 48 layers on the device as a whole, and 30 slots in each of the others; or all slots.
    let model = || layers(48, 128, 10, &[MIB]);
    let with = |experts: u64, resident: u32| {
        let mut settings = settings(Budget::Bytes(experts * MIB));
        settings.constraints.scope = Scope::PerLayer;
        settings.constraints.request_count = 3;
        Configuration::new(model(), Settings { resident_layers: ids(0..resident), ..settings })
    };
    let memory = 13 * 128 + 35 * 30;
    let (some, none) = (with(memory, 13).unwrap(), with(memory, 0).unwrap());
    let least = |one: &Configuration| one.geometry().pools().iter().map(|pool| pool.slot_count()).min();
    assert_eq!((some.geometry().pools().len(), least(&some)), (35, Some(30)));
    assert_eq!((none.geometry().pools().len(), least(&none)), (48, Some(56)));
    assert_eq!([some.set_aside().total(), none.set_aside().total()], [memory * MIB; 2]);
    assert_eq!([some.set_aside().resident, none.set_aside().resident], [13 * 128 * MIB, 0]);
    // Nothing left for slots: refused with both numbers and what would do. Without resident layers it runs.
    let needed = GeometryError::BudgetBelowMinimum { needed: u128::from(35 * 30 * MIB), given: 0 };
    let short = |error: ConfigurationError| ConfigurationError::Short {
        error: Box::new(error),
        enough: Enough::Bytes(memory * MIB),
    };
    assert_eq!(with(13 * 128, 13), Err(short(needed.into())));
    let needed = ConfigurationError::Resident { needed: 13 * 128 * MIB, given: (13 * 128 - 1) * MIB };
    assert_eq!(with(13 * 128 - 1, 13), Err(short(needed)));
    assert_eq!(with(13 * 128, 0).map(|one| least(&one)), Ok(Some(34)));
}

#[test]
fn only_rows_that_lie_on_the_device_for_good_may_be_dropped() {
    // B29.
    let with = |resident: &[u32], cpu: u32| {
        let settings = Settings { cpu_layers: CpuLayers::Count(cpu), ..settings(Budget::Slots(8)) };
        new(toy(), Settings { resident_layers: ids(resident.iter().copied()), ..settings })
    };
    assert_eq!(with(&[], 2).droppable_bytes(), 0);
    assert_eq!(with(&[1], 2).droppable_bytes(), 8_000);
    assert_eq!(with(&[1, 2], 0).droppable_bytes(), 16_000);
    // A slot for every expert is still a slot.
    assert_eq!(new(toy(), settings(Budget::Slots(32))).droppable_bytes(), 0);
    // A resident layer has a pad after each bank, as it will be read past its end like a pool.
    let mut padded = Settings { resident_layers: ids([1]), ..settings(Budget::Bytes(16_016)) };
    padded.constraints.tail_pad = TailPad::Bytes(8);
    let one = new(toy(), padded);
    assert_eq!((one.set_aside().resident, one.geometry().slot_count()), (8_008, 8));
}

#[test]
fn every_layer_without_slots_is_listed_with_its_reason() {
    // B60, C03.
    let mut given = settings(Budget::Slots(8));
    given.constraints.slotless_layers = ids([1]);
    given.cpu_layers = CpuLayers::Count(2);
    given.resident_layers = ids([0]);
    let why = |configuration: Configuration| -> Vec<(u32, Declined)> {
        configuration.declined().into_iter().map(|(layer, why)| (layer.get(), why)).collect()
    };
    let six = new(tagged(["q"; 6]), given.clone());
    assert_eq!((six.pinned_bytes(), six.pinned_ranges()), (2 * 8_000, 2));
    let reasons = [(0, Declined::Resident), (1, Declined::Slotless), (4, Declined::Cpu), (5, Declined::Cpu)];
    assert_eq!(why(six), reasons);
    assert_eq!(why(new(toy(), settings(Budget::Slots(8)))), []);
    // The CPU is spared what it has no code for.
    given = Settings {
        cpu_code: CpuCode::Tags(vec![b"q".to_vec()]),
        cpu_layers: CpuLayers::Count(1),
        ..settings(Budget::Slots(8))
    };
    assert_eq!(why(new(tagged(["x", "x", "q", "x"]), given.clone())), [(2, Declined::Cpu)]);
    given.cpu_layers = CpuLayers::Count(2);
    let too_many = CpuLayersError::TooMany { wanted: 2, possible: 1 };
    assert_eq!(refused(tagged(["x", "x", "q", "x"]), given), too_many.into());
    // A plan that caches nothing is an error.
    let all = Settings { cpu_layers: CpuLayers::Count(4), ..settings(Budget::Slots(8)) };
    assert_eq!(refused(toy(), all), GeometryError::NothingCached { layers: 4 }.into());
}

// Strategies.

fn point(tag: &str, link: f64, cpu: Option<f64>, contended: Option<(f64, f64)>) -> Point {
    let contended = contended.map(|(link, cpu)| Pair { link, cpu });
    Point { tag: tag.into(), expert_bytes: 1_000, link, cpu, contended }
}

/// By these points, on a machine that computes these tags.
fn measured(points: Vec<Point>, cpu_code: CpuCode) -> Settings {
    Settings {
        strategy: StrategyChoice::Measured,
        rates: Some(Rates::new("gpu", points).unwrap()),
        device: Some("gpu".into()),
        cpu_code,
        ..settings(Budget::Slots(16))
    }
}

fn carry(fraction: Fraction) -> Option<Fetch> {
    Some(Fetch { rule: FetchRule::Carry(fraction), most: None })
}

/// All, as the caller says.
fn said_none() -> Option<FetchChoice> {
    Some(FetchChoice::Fixed(Fetch { rule: FetchRule::UpTo(0), most: None }))
}

fn said_all() -> Option<FetchChoice> {
    carry(Fraction::ALL).map(FetchChoice::Fixed)
}

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
    }
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
    let below = |slots, cycle| Note::BelowCycle { pool: PoolId::new(0), slots, cycle };
    assert!(notes(MIB).contains(&below(16, 32)));
    assert!(notes(2 * MIB - 1).contains(&below(31, 32)));
    assert_eq!(notes(2 * MIB), [Note::NothingStable { slots: 32 }]);
    assert_eq!(notes(4 * MIB), []);
    // A slot for every expert of a layer does not protect.
    assert!(new(layers(3, 8, 4, &[1]), settings(Budget::Slots(8))).notes().contains(&below(8, 12)));
    // Two requests may want all 16 experts of each layer, and no more. A layer with a pool of its own has no cycle.
    let mut two = settings(Budget::Slots(63));
    two.constraints.request_count = 3;
    assert_eq!(new(layers(4, 16, 8, &[1]), two.clone()).notes(), [below(63, 64)]);
    two.constraints.scope = Scope::PerLayer;
    two.constraints.request_count = 1;
    assert_eq!(new(layers(4, 16, 8, &[1]), two).notes(), []);
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

// Texts.

fn texts<E: ToString>(errors: impl IntoIterator<Item = E>) -> String {
    errors.into_iter().map(|error| error.to_string()).collect::<Vec<_>>().join("\n")
}

#[test]
fn every_refusal_of_a_configuration_names_both_numbers() {
    let with = |change: fn(&mut Settings)| {
        let mut settings = settings(Budget::Slots(16));
        change(&mut settings);
        refused(tagged(["q", "q", "r", "q"]), settings)
    };
    fn profile(s: &mut Settings, counts: &[Vec<f64>]) {
        s.constraints.split = Split::Profile(Profile::new("counted", counts).unwrap());
    }
    let errors = [
        with(|s| s.constraints.budget = Budget::Slots(3)),
        with(|s| s.constraints.budget = Budget::Slots(33)),
        with(|s| s.constraints.budget = Budget::Bytes(3_999)),
        with(|s| s.constraints.slotless_layers = ids([4])),
        with(|s| s.resident_layers = ids([4])),
        with(|s| s.constraints.slotless_layers = ids(0..4)),
        with(|s| s.constraints.tag_limits = vec![TagLimit { tag: b"x\0".to_vec(), slots: 8 }]),
        with(|s| s.strategy = StrategyChoice::Fixed(Strategy::Cpu)),
        with(|s| profile(s, &[vec![1.0; 8]])),
        with(|s| {
            profile(s, &vec![vec![1.0; 8]; 4]);
            (s.model_name, s.other_model) = (Some("served".into()), OtherModel::Refuse);
        }),
        with(|s| s.cpu_layers = CpuLayers::Count(5)),
        with(|s| {
            s.rates = Some(Rates::new("gpu", vec![point("q", 1.0, None, None)]).unwrap());
            s.device = Some("other".into());
        }),
        with(|s| s.rates = Some(Rates::new("gpu", vec![point("q", 1.0, None, None)]).unwrap())),
        with(|s| s.constraints.slot_limit = Some(1)),
        with(|s| s.constraints.budget = Budget::Slots(7)),
        with(|s| s.constraints.budget = Budget::Free(Share::parse("0.9").unwrap())),
        with(|s| s.free_bytes = Some(99)),
        with(|s| {
            (s.free_bytes, s.constraints.budget) = (Some(8_100), Budget::Rest(Share::WHOLE));
            s.staging = StagingPlace::Dedicated;
        }),
        with(|s| {
            (s.free_bytes, s.constraints.budget) = (Some(7_999), Budget::Rest(Share::WHOLE));
            s.staging = StagingPlace::Dedicated;
        }),
        with(|s| {
            s.free_bytes = Some(99);
            s.reserves =
                [("kv", 70), ("transients", 30)].map(|(name, bytes)| Reserve { name: name.into(), bytes }).to_vec();
        }),
        with(|s| (s.resident_layers, s.constraints.budget) = (ids([0]), Budget::Bytes(7_999))),
        with(|s| s.free_bytes = Some(15_999)),
        with(|s| s.resident_layers = ids([1, 0, 1])),
        with(|s| s.batch_sizes = vec![4, 0]),
        with(|s| s.device = Some("gpu".into())),
        with(|s| s.cpu_code = CpuCode::Tags(vec![b"q".to_vec(), b"Q5".to_vec()])),
        with(|s| s.cpu_layers = CpuLayers::Auto),
        with(|s| (s.cpu_layers, s.pinnable_bytes) = (CpuLayers::Auto, Some(7_999))),
        with(|s| (s.strategy, s.fetch) = (StrategyChoice::Fixed(Strategy::Hybrid), said_none())),
        with(|s| (s.strategy, s.admission) = (StrategyChoice::Fixed(Strategy::Cpu), Admission::Device)),
        with(|s| {
            let rates =
                vec![point("q", 1.0, Some(9.0), Some((1.0, 1.0))), point("r", 1.0, Some(9.0), Some((1.0, 1.0)))];
            (s.rates, s.device) = (Some(Rates::new("gpu", rates).unwrap()), Some("gpu".into()));
            s.strategy = StrategyChoice::Measured;
        }),
        with(|s| {
            (s.free_bytes, s.constraints.budget) = (Some(u64::MAX), Budget::Slots(16));
            s.reserves = vec![Reserve { name: "kv".into(), bytes: u64::MAX }];
        }),
        with(|s| s.reserves = vec![Reserve { name: "kv".into(), bytes: 1 }]),
        with(|s| {
            profile(s, &vec![vec![1.0; 8]; 4]);
            (s.model_name, s.other_model) = (None, OtherModel::Refuse);
        }),
        with(|s| s.fetch = said_all()),
        with(|s| (s.strategy, s.fetch) = (StrategyChoice::Fixed(Strategy::Cpu), said_all())),
        with(|s| (s.strategy, s.cpu_layers) = (StrategyChoice::Fixed(Strategy::Cpu), CpuLayers::Count(1))),
        with(|s| s.constraints.staging_only = true),
        with(|s| {
            s.strategy = StrategyChoice::Fixed(Strategy::Cpu);
            s.cpu_code = CpuCode::Tags(vec![b"q".to_vec()]);
        }),
        with(|s| s.strategy = StrategyChoice::Measured),
        with(|s| (s.strategy, s.staging) = (StrategyChoice::Fixed(Strategy::Cpu), StagingPlace::Nowhere)),
        ConfigurationError::from(GeometryError::UnknownMemory { budget: Budget::Free(Share::parse("0.9").unwrap()) }),
    ];
    insta::assert_snapshot!(texts(errors), @r#"
    the pools need at least 4 slots; 3 are given; 8 slots would do
    the pools can use 32 slots; 33 are given
    the pools need at least 4000 bytes; 3999 are given; 8000 bytes would do
    no layer 4: the model has 4 layers
    no layer 4: the model has 4 layers
    none of 4 layers holds slots: there is nothing to cache
    a slot limit for x\x00, which no layer has
    slots that only stage prefill make 1 pool; scope and quantisations make 2
    the profile has 1 layers of 8 experts; the model has 4 of 8
    the profile was counted on "counted"; this model is "served"
    5 layers are to be left to the CPU; it can take 4
    the rates were measured on "gpu"; this device is "other"
    the rates were measured on "gpu", and the name of this device is not known
    pool 0 needs at least 2 slots; at most 1 are allowed
    one whole layer needs 8000 bytes of bank 0 to be staged; its arena has 7000; 8 slots would do
    a budget of 0.9*free: how much memory is free is not known
    16000 bytes are to be set aside beside reserves of 0; 99 are free
    the pools need at least 4000 bytes; 100 are given; 12000 bytes of free memory would do
    reserves, tables and staging need 8000 bytes; 7999 are free; 12000 bytes of free memory would do
    the reserves alone need 100 bytes (kv 70, transients 30); 99 are free
    the layers on the device need 8000 bytes; the budget is 7999; 16000 bytes would do
    16000 bytes are to be set aside beside reserves of 0; 15999 are free
    layer 1 is to lie on the device twice
    a batch size of 0 requests; at least 1 is needed
    device would have no effect: there are no rates
    CPU code for Q5, which no layer has
    auto goes by what can be pinned, which is not known
    auto leaves every layer to the CPU: 7999 bytes can be pinned, the smallest layer has 8000
    hybrid steps that fetch no miss fill no slot: there is nothing to cache
    admission on the device would have no effect: nothing is admitted where the CPU computes every expert
    the rates recommend cpu: slots that only stage prefill make 1 pool; scope and quantisations make 2
    16000 bytes are to be set aside beside reserves of 18446744073709551615; 18446744073709551615 are free
    reserves would have no effect: how much memory is free is not known
    refusing another model's profile would have no effect: the model's name is not known
    fetch would have no effect: offload fetches every miss
    fetch would have no effect: nothing is fetched where the CPU computes every expert
    cpu layers would have no effect: every layer decodes on the CPU
    strategy would have no effect: slots only stage prefill
    strategy cpu: the CPU has no code for r of layer 2
    hybrid and measured strategies need rates, or hybrid a fraction or a cap of its own
    strategy cpu uses slots only for borrowed staging, which is off: there is nothing to cache
    a budget of 0.9*free, where free memory is not known
    "#);
}

#[test]
fn every_refusal_of_cpu_layers_rates_and_profiles_names_the_thing() {
    let cpu = |layers: CpuLayers, pinnable| {
        let has_code = |layer: LayerId| layer.get() != 2;
        layers.resolve(&tagged(["q", "q", "r", "q"]), &ids([0]), has_code, pinnable).unwrap_err()
    };
    let list = |layers: &[u32]| cpu(CpuLayers::List(ids(layers.iter().copied())), None);
    let errors = [
        CpuLayers::parse("some").unwrap_err(),
        CpuLayers::parse("3, x,7").unwrap_err(),
        list(&[4]),
        list(&[1, 1]),
        list(&[0]),
        list(&[2]),
        cpu(CpuLayers::Count(3), None),
        cpu(CpuLayers::Auto, Some(7_999)),
    ];
    insta::assert_snapshot!(texts(errors), @r#"
    "some" is not CPU layers such as 3,7,11 or 3, (these), 8 (so many), 0.5 (a share), auto or none
    "3, x,7": "x" is not CPU layers such as 3,7,11 or 3, (these), 8 (so many), 0.5 (a share), auto or none
    no layer 4 to leave to the CPU: the model has 4 layers
    layer 1 is left to the CPU twice
    layer 0 is left to the CPU, but holds no slots anyway
    layer 2 cannot be left to the CPU, which has no code for r
    3 layers are to be left to the CPU; it can take 2
    layers that cannot be left to the CPU have 8000 bytes; 7999 can be pinned
    "#);

    let rates = |points: Vec<Point>| Rates::new("gpu", points).unwrap_err();
    let good = || point("q", 1.0, Some(1.0), Some((1.0, 1.0)));
    let errors = [
        rates(vec![]),
        rates(vec![good(), Point { expert_bytes: 0, ..good() }]),
        rates(vec![Point { link: 0.0, ..good() }]),
        rates(vec![Point { cpu: Some(f64::NAN), ..good() }]),
        rates(vec![point("q", 1.0, None, Some((-1.0, 1.0)))]),
        rates(vec![point("q", 1.0, None, Some((1.0, f64::INFINITY)))]),
        Fraction::nearest(-0.5).unwrap_err(),
        Rates::new("gpu", vec![good()]).unwrap().check_device("other").unwrap_err(),
    ];
    insta::assert_snapshot!(texts(errors), @r#"
    the rates have no measured point
    the rates' point 1 is of experts of 0 bytes
    the rates' point 0 has a link rate of 0 bytes a second
    the rates' point 0 has a cpu rate of NaN bytes a second
    the rates' point 0 has a contended link rate of -1 bytes a second
    the rates' point 0 has a contended cpu rate of inf bytes a second
    a fraction of -0.5 of the misses; it is from 0 to 1
    the rates were measured on "gpu"; this device is "other"
    "#);

    let profile = |counts: &[Vec<f64>]| Profile::new("m", counts).unwrap_err();
    let errors = [
        profile(&[]),
        profile(&[vec![]]),
        profile(&[vec![1.0, 1.0], vec![1.0]]),
        profile(&[vec![1.0, 1.0], vec![1.0, -2.5]]),
        profile(&[vec![1.0, f64::NAN]]),
        profile(&[vec![1.0, 1.0], vec![0.0, 0.0]]),
        profile(&[vec![f64::MAX, f64::MAX]]),
        Profile::new("m", &[vec![1.0; 9]]).unwrap().check(&toy()).unwrap_err(),
    ];
    insta::assert_snapshot!(texts(errors), @"
    the profile counts no expert
    the profile counts no expert
    the profile counts 1 experts in layer 1 and 2 in layer 0
    the profile's layer 1 expert 1 has a count of -2.5
    the profile's layer 0 expert 1 has a count of NaN
    the profile's layer 1 was never used: all counts are 0
    the profile's layer 0 has counts too large to be summed
    the profile has 1 layers of 9 experts; the model has 4 of 8
    ");
}

#[test]
fn every_refusal_of_a_rank_or_of_staging_names_the_thing() {
    let view =
        |cut: Cut, layers: &[u32]| RankView::new(&tagged(["q"; 4]), &cut, &ids(layers.iter().copied())).unwrap_err();
    let rows = |rank_count, bank| Cut::Rows { rank_count, whole_banks: vec![BankId::new(bank)] };
    let uncut = Cut::Rows { rank_count: 3, whole_banks: vec![] };
    let errors = [
        view(Cut::Whole, &[]),
        view(Cut::Whole, &[4]),
        view(Cut::Whole, &[1, 1]),
        view(Cut::Experts { rank: 2, rank_count: 2 }, &[0]),
        view(Cut::Experts { rank: 0, rank_count: 0 }, &[0]),
        view(Cut::Experts { rank: 0, rank_count: 9 }, &[0]),
        view(rows(2, 1), &[0]),
        view(uncut, &[1]),
        RankView::new(&toy(), &Cut::Whole, &ids([0])).unwrap().local_expert(ExpertId::new(8)).unwrap_err(),
    ];
    insta::assert_snapshot!(texts(errors), @"
    the rank runs no layer
    the rank runs layer 4: the model has 4 layers
    the rank's layers do not ascend: 1 before 1
    no rank 2 of 2; they count from 0
    no rank 0 of 0; they count from 0
    9 ranks for 8 experts: each must own one
    no bank 1: the model has 1 banks
    layer 1 bank 0: rows of 1000 bytes cannot be cut into 3
    expert 8 is no expert of 0..8
    ");

    let staged = |slots| Geometry::new(toy(), settings(Budget::Slots(slots)).constraints).unwrap();
    let one = Staging::borrowed(&staged(7)).unwrap_err();
    let two = Staging::borrowed(&staged(15)).unwrap().second_lacks().unwrap().clone();
    insta::assert_snapshot!(texts([one, two]), @"
    one whole layer needs 8000 bytes of bank 0 to be staged; its arena has 7000
    two whole layers need 16000 bytes of bank 0 to be staged; its arena has 15000
    ");
}
