//! CPU layers, ranks, fetch rules, rates and parsers: worked cases, and models that are slow enough to be obvious.

use ftcache_policy::{
    BankId, Basis, Budget, Carried, Constraints, CpuLayers, CpuLayersError, Cut, ExpertId, Fetch, FetchRule, Fraction,
    Geometry, LayerId, LayoutKey, Model, Pair, Point, Quantisation, RankError, RankView, Rates, RatesError, Share,
    Strategy, TailPad, parse_budget, parse_bytes,
};
use ftcache_testkit::Rng;

fn ids(layers: impl IntoIterator<Item = u32>) -> Vec<LayerId> {
    layers.into_iter().map(LayerId::new).collect()
}

#[test]
fn cpu_layers_as_people_write_them() {
    let whole = || CpuLayers::parse("0.5").unwrap();
    assert_eq!(CpuLayers::parse("3,7,11"), Ok(CpuLayers::List(ids([3, 7, 11]))));
    assert_eq!(CpuLayers::parse(" 3, "), Ok(CpuLayers::List(ids([3]))));
    assert_eq!(
        (CpuLayers::parse("8"), whole()),
        (Ok(CpuLayers::Count(8)), CpuLayers::Share(Share::parse("0.5").unwrap()))
    );
    assert_eq!((CpuLayers::parse("Auto"), CpuLayers::parse("none")), (Ok(CpuLayers::Auto), Ok(CpuLayers::None)));
    for text in ["", ",", "3,,", ",3", "-1", "1.5", "3;7", "auto,", "4294967296"] {
        assert!(CpuLayers::parse(text).is_err(), "{text:?} was taken for {:?}", CpuLayers::parse(text));
    }
    // Case C7: 30 of 40 layers can be pinned; the others are five from each end.
    let model =
        Model::new(256, 8, Quantisation::PerLayer, vec![LayoutKey::tagged("Q6_K", [1_179_648, 860_160]); 40]).unwrap();
    assert_eq!(model.layer_bytes(LayerId::new(0)), 522_190_848);
    let of = |text: &str, pinnable| CpuLayers::parse(text).unwrap().resolve(&model, &[], |_| true, pinnable);
    assert_eq!(of("auto", Some(15 << 30)), Ok(ids((0..5).chain(35..40))));
    assert_eq!(of("auto", Some(30 * 522_190_848 - 1)), Ok(ids((0..6).chain(35..40))));
    assert_eq!(
        (of("auto", None), of("auto", Some(u64::MAX)), of("none", Some(0))),
        (Err(CpuLayersError::PinnableUnknown), Ok(vec![]), Ok(vec![]))
    );
    assert_eq!((of("0.5", None), of("3", None)), (Ok(ids((0..10).chain(30..40))), Ok(ids([0, 1, 39]))));
    assert_eq!((of("11,3,7", None), of("3,", None)), (Ok(ids([3, 7, 11])), Ok(ids([3]))));
    assert_eq!(of("41", None), Err(CpuLayersError::TooMany { wanted: 41, possible: 40 }));
    assert_eq!(of("3,40", None), Err(CpuLayersError::UnknownLayer { layer: LayerId::new(40), layer_count: 40 }));
    assert_eq!(of("3,7,3", None), Err(CpuLayersError::Twice { layer: LayerId::new(3) }));
}

/// One layer at a time from both ends, leaving out what the CPU has no code for and what is spared.
#[test]
fn the_cpu_is_given_layers_from_both_ends_that_it_can_compute() {
    for seed in 0..2_000 {
        let mut rng = Rng::new(seed);
        let count = 1 + rng.below(9) as usize;
        let layers = (0..count).map(|_| LayoutKey::tagged("q", [1 + rng.below(9)])).collect();
        let model = Model::new(2, 1, Quantisation::PerLayer, layers).unwrap();
        let (coded, spared): (Vec<bool>, Vec<bool>) = (0..count).map(|_| (rng.chance(3, 4), rng.chance(1, 5))).unzip();
        let spared = ids((0..count as u32).filter(|&layer| spared[layer as usize]));
        let (mut ends, mut low, mut high) = (Vec::new(), 0, count);
        while low < high {
            ends.push(LayerId::from_index(low));
            low += 1;
            if low < high {
                high -= 1;
                ends.push(LayerId::from_index(high));
            }
        }
        ends.retain(|layer| coded[layer.index()] && !spared.contains(layer));
        let sorted = |mut layers: Vec<LayerId>| {
            layers.sort();
            layers
        };
        let of = |choice: CpuLayers, pinnable| choice.resolve(&model, &spared, |layer| coded[layer.index()], pinnable);
        for wanted in 0..=count {
            let given = of(CpuLayers::Count(wanted as u32), None);
            let taken = ends.get(..wanted).map(|taken| sorted(taken.to_vec()));
            assert_eq!(given.ok(), taken, "seed {seed}, {wanted} layers");
            let listed = of(CpuLayers::List(vec![LayerId::from_index(wanted)]), None);
            assert_eq!(listed.is_ok(), ends.contains(&LayerId::from_index(wanted)), "seed {seed} layer {wanted}");
        }
        let mut left: u64 =
            model.layer_ids().filter(|layer| !spared.contains(layer)).map(|layer| model.layer_bytes(layer)).sum();
        let (pinnable, mut taken) = (rng.below(left + 2), Vec::new());
        for &layer in ends.iter() {
            if left > pinnable {
                left -= model.layer_bytes(layer);
                taken.push(layer);
            }
        }
        let error = CpuLayersError::Pinnable { needed: left, pinnable };
        let wanted = if left == 0 && !taken.is_empty() {
            let least = taken.iter().map(|&layer| model.layer_bytes(layer)).min().unwrap();
            Err(CpuLayersError::NothingPinned { least, pinnable })
        } else if left > pinnable {
            Err(error)
        } else {
            Ok(sorted(taken))
        };
        assert_eq!(of(CpuLayers::Auto, Some(pinnable)), wanted, "seed {seed}");
    }
}

/// Case C12: no expert is lost or doubled, whether or not the ranks divide them.
#[test]
fn every_expert_is_local_on_one_rank() {
    for (experts, rank_count) in (1..=20_u32).flat_map(|experts| (1..=experts).map(move |ranks| (experts, ranks))) {
        let model =
            Model::new(experts, experts.min(3), Quantisation::PerLayer, vec![LayoutKey::tagged("q", [8])]).unwrap();
        let view = |rank| RankView::new(&model, &Cut::Experts { rank, rank_count }, &ids([0])).unwrap();
        let views: Vec<RankView> = (0..rank_count).map(view).collect();
        let sizes: Vec<u32> = views.iter().map(|view| view.model().expert_count()).collect();
        let at = format!("{experts} experts on {rank_count} ranks: {sizes:?}");
        assert_eq!(sizes.iter().sum::<u32>(), experts, "{at}");
        assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1, "{at}");
        let mut locals = vec![Vec::new(); views.len()];
        for expert in (0..experts).map(ExpertId::new) {
            let before: usize = locals.iter().map(Vec::len).sum();
            for (view, local) in views.iter().zip(&mut locals) {
                local.extend(Some(view.local_expert(expert).unwrap().get()).filter(|&id| id != ExpertId::ABSENT.get()));
            }
            assert_eq!(locals.iter().map(Vec::len).sum::<usize>(), before + 1, "{at}, expert {expert}");
        }
        let wanted: Vec<Vec<u32>> = sizes.iter().map(|&size| (0..size).collect()).collect();
        assert_eq!(locals, wanted, "{at}");
        assert!(views.iter().all(|view| view.local_expert(ExpertId::new(experts)).is_err()), "{at}");
        assert!(
            views.iter().all(|view| view.model().top_k() == experts.min(3).min(view.model().expert_count())),
            "{at}"
        );
        assert_eq!((experts, rank_count) == (10, 4), sizes == [2, 3, 2, 3], "{at}");
    }
}

#[test]
fn rows_that_are_halved_give_twice_the_slots() {
    let model =
        Model::new(256, 8, Quantisation::PerLayer, vec![LayoutKey::tagged("q", [4_096, 2_049, 6]); 43]).unwrap();
    let layers = ids(0..43);
    let cut = |rank_count, whole: &[u32]| {
        let whole_banks = whole.iter().copied().map(BankId::new).collect();
        RankView::new(&model, &Cut::Rows { rank_count, whole_banks }, &layers)
    };
    let rows = |layer, bank, row_bytes, rank_count| RankError::Rows {
        layer: LayerId::new(layer),
        bank: BankId::new(bank),
        row_bytes,
        rank_count,
    };
    assert_eq!(cut(2, &[]), Err(rows(0, 1, 2_049, 2)));
    assert_eq!(cut(4, &[1]).unwrap_err().to_string(), "layer 0 bank 2: rows of 6 bytes cannot be cut into 4");
    assert_eq!(cut(2, &[3]), Err(RankError::UnknownBank { bank: BankId::new(3), bank_count: 3 }));
    assert_eq!(cut(2, &[1]).unwrap().model().layer(LayerId::new(42)).row_bytes(), [2_048, 2_049, 3]);
    let even = Model::new(256, 8, Quantisation::PerLayer, vec![LayoutKey::tagged("q", [4_096, 2_048]); 43]).unwrap();
    let half = RankView::new(&even, &Cut::Rows { rank_count: 2, whole_banks: vec![] }, &layers).unwrap();
    let slots = |model: &Model| {
        let constraints =
            Constraints { tail_pad: TailPad::Bytes(0), ..Constraints::new(Budget::Bytes(2_559 * 6_144 + 3_072)) };
        Geometry::new(model.clone(), constraints).unwrap().slot_count()
    };
    assert_eq!((slots(&even), slots(half.model())), (2_559, 2 * 2_559 + 1));
}

/// Case C4.
#[test]
fn fetched_misses_of_the_reference() {
    let table: [(f64, [u32; 11]); 6] = [
        (0.2189, [0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2]),
        (0.294, [0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 3]),
        (0.341, [0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]),
        (0.5, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5]),
        (0.75, [0, 1, 2, 2, 3, 4, 5, 5, 6, 7, 8]),
        (1.0, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
    ];
    for (ratio, wanted) in table {
        let rule = FetchRule::MinWait(Fraction::nearest(ratio).unwrap());
        let given = std::array::from_fn(|misses| rule.fetched_count(misses as u32, &mut Carried::default()));
        assert_eq!(given, wanted, "{ratio}");
    }
    // Hits take all slots, so nothing is fetched; a cap is a cap.
    let fetch =
        |most, unused| Fetch { rule: FetchRule::UpTo(8), most }.fetched_count(6, unused, &mut Carried::default());
    assert_eq!([fetch(None, 0), fetch(None, 4), fetch(Some(3), 4), fetch(Some(9), 9)], [0, 4, 3, 6]);
}

#[test]
fn fetch_rules_do_what_they_say() {
    for seed in 0..3_000 {
        let mut rng = Rng::new(seed);
        let q = if seed < 3 { [0, 1, 65_536][seed as usize] } else { rng.below(65_537) };
        let fraction = Fraction::from_q16(q as u32).unwrap();
        let (mut carried, mut all, mut fetched) = (Carried::default(), 0, 0);
        for _ in 0..30 {
            let misses = rng.below(12);
            let wait = |n: u64| (n * (65_536 - q)).max((misses - n) * q);
            let best = (0..=misses).min_by_key(|&n| (wait(n), n)).unwrap();
            let mut ask = |rule: FetchRule| u64::from(rule.fetched_count(misses as u32, &mut carried));
            assert_eq!(ask(FetchRule::MinWait(fraction)), best, "seed {seed}: {misses} misses at {q}");
            assert_eq!(
                ask(FetchRule::PreferFetch(fraction)),
                (misses * q).div_ceil(65_536),
                "seed {seed}: {misses} at {q}"
            );
            let now = ask(FetchRule::Carry(fraction));
            assert!(now <= misses, "seed {seed}: {now} of {misses} misses at {q}");
            (all, fetched) = (all + misses, fetched + now);
            assert_eq!(fetched, all * q / 65_536, "seed {seed}: {all} misses at {q}");
        }
    }
}

/// Case C4: two misses that recur in every step, until they are fetched and hit. Their steps are 2, when 2 * 2 * 0.294
/// passes one, and 5, when three more of one miss do.
#[test]
fn misses_that_recur_are_fetched_in_the_end_only_if_carried() {
    let steps = |rule: fn(Fraction) -> FetchRule| {
        let rule = rule(Fraction::nearest(0.294).unwrap());
        let (mut misses, mut carried) = (2, Carried::default());
        let fetches = |step| {
            let fetched = rule.fetched_count(misses, &mut carried);
            misses -= fetched;
            (fetched > 0).then_some(step)
        };
        (1..=100).filter_map(fetches).collect::<Vec<u32>>()
    };
    assert_eq!((steps(FetchRule::MinWait), steps(FetchRule::Carry)), (vec![], vec![2, 5]));
}

#[test]
fn rates_stand_for_experts_within_a_factor_of_two() {
    let point = |bytes, cpu, contended| Point { tag: b"q".to_vec(), expert_bytes: bytes, link: 12.3e9, cpu, contended };
    let rates = |bytes| Rates::new("card", vec![point(bytes, Some(56.2e9), None)]).unwrap();
    let found = |measured, served| rates(measured).point_of(&LayoutKey::tagged("q", [served])).is_some();
    // 7.605 MiB against 1.693 MiB.
    assert!(!found(7_974_420, 1_775_239) && !found(1_775_239, 7_974_420));
    assert_eq!([499, 500, 1_000, 2_000, 2_001].map(|served| found(1_000, served)), [false, true, true, true, false]);
    let key = LayoutKey::tagged("other", [1_000]);
    assert_eq!((rates(1_000).point_of(&key), rates(1_000).recommend(&key)), (None, None));
    let (measured, device) = ("card".to_owned(), "tray".to_owned());
    assert_eq!(rates(1).check_device("tray"), Err(RatesError::OtherDevice { measured, device }));
    assert_eq!(rates(1).check_device("card"), Ok(()));
    // Of two points the nearer in size.
    let both = Rates::new("card", vec![point(700, None, None), point(1_500, None, None)]).unwrap();
    assert_eq!(
        [1_000, 1_100].map(|bytes| both.point_of(&LayoutKey::tagged("q", [bytes])).unwrap().expert_bytes),
        [700, 1_500]
    );
}

#[test]
fn recommendations_follow_the_rates() {
    for seed in 0..3_000 {
        let mut rng = Rng::new(seed);
        let mut rate = || (1 + rng.below(100)) as f64;
        let (link, alone, pair) = (rate(), rate(), Pair { link: rate(), cpu: rate() });
        let contended = rng.chance(1, 2).then_some(pair);
        let cpu = rng.chance(3, 4).then_some(alone);
        let point = Point { tag: vec![], expert_bytes: 1, link, cpu, contended };
        let given = Rates::new("", vec![point]).unwrap().recommend(&LayoutKey::tagged("", [1])).unwrap();
        let both = pair.link + pair.cpu;
        let (strategy, ratio, basis) = match (cpu, contended) {
            (None, _) => (Strategy::Offload, 1.0, Basis::NoCpuCode),
            // The fastest of three: the link alone, the CPU alone, both together.
            (Some(cpu), Some(_)) if link >= both && link >= cpu => (Strategy::Offload, 1.0, Basis::LinkFaster),
            (Some(cpu), Some(_)) if cpu > both => (Strategy::Cpu, 0.0, Basis::CpuFaster),
            (Some(_), Some(_)) => (Strategy::Hybrid, pair.link / both, Basis::Contended),
            (Some(cpu), None) if link >= cpu => (Strategy::Offload, 1.0, Basis::LinkFaster),
            (Some(cpu), None) => (Strategy::Hybrid, link / cpu, Basis::Alone),
        };
        assert_eq!((given.strategy, given.basis), (strategy, basis), "seed {seed}: {link}, {cpu:?}, {contended:?}");
        let error = f64::from(given.fraction.q16()) / 65_536.0 - ratio;
        assert!(error.abs() <= 0.5 / 65_536.0, "seed {seed}: {} for {ratio}", given.fraction);
    }
    assert!([-0.1, f64::NAN].iter().all(|&ratio| Fraction::nearest(ratio).is_err()));
}

/// No text makes a parser panic, and what it takes is printed so that it reads the same.
#[test]
fn parsers_take_any_text() {
    let texts = [
        "480*18874368",
        "12.5 GiB",
        "0.9*free",
        "rest",
        "3,7,11",
        "3,",
        "8",
        "0.5",
        "1.0",
        "auto",
        "none",
        "1_0kB",
        "é",
    ];
    let letters: Vec<char> = "0123456789..,,**__- eGMkiBfréestauon\u{2003}\u{0}٣".chars().collect();
    let mut taken = [0; 4];
    for seed in 0..40_000 {
        let mut rng = Rng::new(seed);
        let mut text: Vec<char> = texts[rng.below(texts.len() as u64) as usize].chars().collect();
        for _ in 0..rng.below(4) {
            let (at, letter) =
                (rng.below(text.len() as u64 + 1) as usize, letters[rng.below(letters.len() as u64) as usize]);
            match rng.below(3) {
                0 => drop(text.splice(at..at, vec![letter; if rng.chance(1, 4) { 25 } else { 1 }])),
                1 => text.truncate(at),
                _ => text.iter_mut().skip(at).take(1).for_each(|old| *old = letter),
            }
        }
        let text: String = text.into_iter().collect();
        if let Ok(bytes) = parse_bytes(&text) {
            assert_eq!(parse_bytes(&bytes.to_string()), Ok(bytes), "seed {seed}: {text:?}");
            assert_eq!(parse_budget(&text), Ok(Budget::Bytes(bytes)), "seed {seed}: {text:?}");
            taken[0] += 1;
        }
        if let Ok(budget @ (Budget::Free(_) | Budget::Rest(_))) = parse_budget(&text) {
            assert_eq!(parse_budget(&budget.to_string()), Ok(budget), "seed {seed}: {text:?}");
            taken[1] += 1;
        }
        if let Ok(share) = Share::parse(&text) {
            assert_eq!(Share::parse(&share.to_string()), Ok(share), "seed {seed}: {text:?}");
            assert!(share.of(9) <= 9 && share.of(0) == 0, "seed {seed}: {text:?}");
            taken[2] += 1;
        }
        if let Ok(layers) = CpuLayers::parse(&text) {
            assert_eq!(CpuLayers::parse(&layers.to_string()), Ok(layers), "seed {seed}: {text:?}");
            taken[3] += 1;
        }
    }
    assert!(taken.iter().all(|&count| count > 1_000), "{taken:?}");
}

#[test]
fn bytes_and_shares_are_exact() {
    let units = [("", 1_u128), ("kB", 1_000), ("MiB", 1 << 20), ("GB", 1_000_000_000), ("TiB", 1 << 40)];
    for seed in 0..3_000 {
        let mut rng = Rng::new(seed);
        let (whole, digits) = (u128::from(rng.below(100_000)), 1 + rng.below(9) as usize);
        let (part, scale) = (u128::from(rng.below(10_u64.pow(digits as u32))), 10_u128.pow(digits as u32));
        let (unit, unit_bytes) = units[rng.below(5) as usize];
        let factor = 1 + rng.below(9);
        let text = format!("{factor} * {whole}.{part:0digits$} {unit}");
        // Cut off once, after the product.
        let wanted = (whole * scale + part) * unit_bytes * u128::from(factor) / scale;
        assert_eq!(parse_bytes(&text), Ok(wanted as u64), "seed {seed}: {text}");
        let (amount, text) = (rng.bits(), format!("0.{part:0digits$}"));
        let wanted = u128::from(amount) * part / scale;
        assert_eq!(u128::from(Share::parse(&text).unwrap().of(amount)), wanted, "seed {seed}: {text} of {amount}");
    }
    assert_eq!((Share::WHOLE.of(u64::MAX), Share::parse("1.00").unwrap().of(7)), (u64::MAX, 7));
}
