//! Pools and budgets; what is free, what is reserved and what is left.

use super::*;

#[test]
fn two_widths_share_a_byte_budget() {
    // C2. 39 layers of 5.0625 MiB and 8 of 18 MiB an expert.
    let key = |index: usize| match index % 6 {
        0 => LayoutKey::tagged("BF16", [12_582_912, 6_291_456]),
        _ => LayoutKey::tagged("Q4_K", [3_538_944, 1_769_472]),
    };
    let model = Model::new(256, 10, Quantisation::PerLayer, (0..47).map(key).collect()).unwrap();
    assert_eq!(model.model_bytes(), 85 * GIB + GIB * 23 / 64);
    assert_eq!(model.token_bytes(), 3_414 * MIB + MIB * 3 / 8);
    let given = settings(Budget::Bytes(480 * 18_874_368));
    let configuration = new(model.clone(), given.clone());
    assert_eq!(sizes(&configuration), [202, 988]);
    assert_eq!(configuration.set_aside().total(), 8_637 * MIB + MIB * 3 / 4);
    assert_eq!(configuration.set_aside().arenas, [480 * 12_582_912 - 1_572_864, 480 * 6_291_456 - 786_432]);
    // One whole wide layer can be staged, two cannot.
    assert_eq!(buffers(&configuration), 1);
    assert!(matches!(configuration.overlap_off(), Some(OverlapOff::Borrowed(lacks)) if lacks.buffer_count == 2));
    assert_eq!(configuration.notes(), []);

    // 298 slots are fewer than the 470 that one token routes to.
    let few = Settings { staging: StagingPlace::Nowhere, ..settings(Budget::Slots(298)) };
    let cycles = |note: &Note| match note {
        Note::BelowCycle { slots, cycle, .. } => (*slots, *cycle),
        other => panic!("{other:?}"),
    };
    let configuration = new(model, few);
    let notes: Vec<(u32, u64)> = configuration.notes().iter().map(cycles).collect();
    assert_eq!(notes.iter().map(|(slots, _)| slots).sum::<u32>(), 298);
    assert_eq!(notes.iter().map(|(_, cycle)| *cycle).collect::<Vec<_>>(), [80, 390]);
}

#[test]
fn slots_a_pool_bound_the_requests_which_are_lowered_only_if_asked() {
    // C5, B17.
    let of = |model: Model, slots, request_count, lower_requests| {
        let mut settings = settings(Budget::Slots(slots));
        settings.constraints.scope = Scope::PerLayer;
        settings.constraints.request_count = request_count;
        Configuration::new(model, Settings { lower_requests, batch_sizes: vec![1, 2, 3, 4, 8], ..settings })
    };
    let wide = || layers(48, 128, 8, &[100]);
    let two = of(wide(), 1_024, 2, false).unwrap();
    assert_eq!(sizes(&two), [vec![22; 16], vec![21; 32]].concat());
    assert_eq!((two.geometry().request_limit(), two.fitting_batches()), (Some(2), vec![1, 2]));
    assert!(of(wide(), 1_024, 3, false).is_err());
    let lowered = of(wide(), 1_024, 3, true).unwrap();
    assert_eq!((lowered.request_count(), lowered.settings().constraints.request_count), (2, 3));
    let short = GeometryError::SlotsBelowMinimum { needed: 1_152, given: 1_024 };
    assert_eq!(lowered.requests_lowered(), Some(&short));

    let model = || layers(40, 256, 8, &[100]);
    let error = GeometryError::SlotsBelowMinimum { needed: 1_280, given: 1_279 };
    let short = ConfigurationError::Short { error: Box::new(error.clone().into()), enough: Enough::Slots(1_280) };
    assert_eq!(of(model(), 1_279, 4, false), Err(short));
    let four = of(model(), 1_280, 4, false).unwrap();
    assert_eq!((four.request_count(), four.requests_lowered(), four.fitting_batches()), (4, None, vec![1, 2, 3, 4]));
    let three = of(model(), 1_279, 4, true).unwrap();
    assert_eq!((three.request_count(), three.requests_lowered()), (3, Some(&error)));
    assert_eq!(three.fitting_batches(), [1, 2, 3]);
}

#[test]
fn a_profile_may_leave_a_pool_at_top_k() {
    // C5, B17. Eight experts have all uses of layer 0, so no ninth ever gets a slot before those of the other layers.
    let few: Vec<f64> = (0..128).map(|expert| if expert < 8 { 1.0 } else { 0.0 }).collect();
    let profile = Profile::new("m", &[vec![few], vec![vec![1.0; 128]; 47]].concat()).unwrap();
    let mut settings = settings(Budget::Slots(1_024));
    settings.constraints.scope = Scope::PerLayer;
    settings.constraints.split = Split::Profile(profile);
    let one = new(layers(48, 128, 8, &[100]), settings.clone());
    assert_eq!((sizes(&one)[0], one.geometry().request_limit()), (8, Some(1)));
    // Two requests are honoured in every pool, or not at all.
    settings.constraints.request_count = 2;
    let two = new(layers(48, 128, 8, &[100]), settings);
    assert_eq!((sizes(&two)[0], two.geometry().request_limit()), (16, Some(2)));
}

#[test]
fn overlap_is_on_from_two_layers_on_and_the_least_is_one() {
    // C6. The reserve is 10 pages of 100 bytes; what is left makes further pages.
    let short = ConfigurationError::Short {
        error: Box::new(StagingError { bank: BankId::new(0), buffer_count: 1, needed: 8_000, given: 7_000 }.into()),
        enough: Enough::Free(9_000),
    };
    assert_eq!(refused(toy(), rest_of(8_999, 1_000)), short);
    let table = [
        (9_000, 8, 10, false),
        (12_999, 11, 19, false),
        (16_999, 15, 19, false),
        (17_000, 16, 10, true),
        (17_999, 16, 19, true),
        (20_000, 19, 10, true),
        (40_000, 32, 80, true),
    ];
    for (free, slots, pages, overlap) in table {
        for wanted in [true, false] {
            let configuration = new(toy(), Settings { overlap: wanted, ..rest_of(free, 1_000) });
            assert_eq!(configuration.geometry().slot_count(), slots, "{free} bytes");
            assert_eq!(configuration.left_bytes().map(|left| (left + 1_000) / 100), Some(pages), "{free} bytes");
            assert_eq!(buffers(&configuration), if overlap && wanted { 2 } else { 1 }, "{free} bytes");
            let lacks = StagingError { bank: BankId::new(0), buffer_count: 2, needed: 16_000, given: slots * 1_000 };
            let off = (wanted && !overlap).then_some(OverlapOff::Borrowed(lacks));
            assert_eq!(configuration.overlap_off(), off.as_ref(), "{free} bytes");
        }
    }
    // The page that the pool adds to the 10 asked for is a reserve like any other: 18 slots and 20 pages.
    let configuration = new(toy(), rest_of(20_000, 1_100));
    assert_eq!((configuration.geometry().slot_count(), configuration.left_bytes()), (18, Some(900)));
}

#[test]
fn a_kernels_slot_limit_decides_on_overlap() {
    // C6. Reached by bytes; the limit itself, and not a slot more, by number.
    let with = |expert_count, budget| {
        let mut settings = settings(budget);
        settings.constraints.slot_limit = Some(992);
        Configuration::new(layers(10, expert_count, 8, &[64]), settings)
    };
    for (expert_count, buffer_count) in [(512, 1), (497, 1), (496, 2)] {
        for budget in [Budget::Bytes(1 << 30), Budget::Slots(992)] {
            let configuration = with(expert_count, budget).unwrap();
            assert_eq!(configuration.geometry().slot_count(), 992, "{expert_count} experts");
            assert_eq!(buffers(&configuration), buffer_count, "{expert_count} experts");
            assert_eq!(configuration.overlap_off().is_none(), buffer_count == 2, "{expert_count} experts");
        }
    }
    let above = GeometryError::SlotsAboveMaximum { most: 992, given: 993 };
    assert_eq!(with(512, Budget::Slots(993)), Err(above.into()));
}

#[test]
fn overlap_falls_however_the_budget_is_given() {
    // B18. 12 slots are between one layer and two.
    let free = |free_bytes, budget| Settings { free_bytes: Some(free_bytes), ..settings(budget) };
    for given in [
        settings(Budget::Bytes(12_000)),
        settings(Budget::Slots(12)),
        free(12_000, Budget::Free(Share::WHOLE)),
        free(24_000, Budget::Free(share("0.5"))),
        rest_of(13_000, 1_000),
    ] {
        let budget = given.constraints.budget;
        let configuration = new(toy(), given);
        assert_eq!((configuration.geometry().slot_count(), buffers(&configuration)), (12, 1), "{budget}");
        let lacks = StagingError { bank: BankId::new(0), buffer_count: 2, needed: 16_000, given: 12_000 };
        assert_eq!(configuration.overlap_off(), Some(&OverlapOff::Borrowed(lacks)), "{budget}");
    }
}

#[test]
fn what_was_lowered_comes_back_with_a_larger_budget() {
    // C11. A pool a layer: three requests need 24 slots, and two layers are 16.
    let mut given = Settings { lower_requests: true, ..settings(Budget::Bytes(12_000)) };
    given.constraints.request_count = 3;
    given.constraints.scope = Scope::PerLayer;
    let small = new(toy(), given);
    assert_eq!((small.request_count(), buffers(&small)), (1, 1));
    let large = small.with_budget(Budget::Bytes(24_000)).unwrap();
    assert_eq!((large.request_count(), large.requests_lowered()), (3, None));
    assert_eq!((buffers(&large), large.overlap_off()), (2, None));
    // There and back, and on a budget given in another way. What is refused changes nothing.
    assert_eq!(large.with_budget(Budget::Bytes(12_000)).unwrap(), small);
    assert_eq!(large.with_budget(Budget::Slots(17)).unwrap().request_count(), 2);
    assert!(small.with_budget(Budget::Bytes(7_999)).is_err());
    assert_eq!(small.with_budget(Budget::Bytes(24_000)).unwrap(), large);
}

#[test]
fn bytes_are_counted_and_not_slots() {
    // C17, B14. What an entry has in bytes decides how many there are.
    let free = parse_bytes("81.57GiB").unwrap();
    for (row_bytes, slots) in [(27 * MIB / 2, 4_973), (27 * MIB / 4, 9_947)] {
        let configuration = new(layers(43, 256, 6, &[row_bytes]), rest_of(free, 16 * GIB));
        assert_eq!(configuration.geometry().slot_count(), slots);
        assert!(configuration.left_bytes().unwrap() < row_bytes);
    }
    // 37 layers of one width and 6 of twice that: 100 times the narrow one is not 100 slots.
    let key = |index: usize| match index {
        0..37 => LayoutKey::tagged("a", [27 * MIB / 4]),
        _ => LayoutKey::tagged("b", [27 * MIB / 2]),
    };
    let model = Model::new(256, 6, Quantisation::PerLayer, (0..43).map(key).collect()).unwrap();
    let budget = 675 * MIB;
    for tail_pad in [TailPad::Bytes(0), TailPad::RowUpTo(512)] {
        let mut given = Settings { staging: StagingPlace::Nowhere, ..settings(Budget::Bytes(budget)) };
        given.constraints.tail_pad = tail_pad;
        let configuration = new(model.clone(), given.clone());
        let total = configuration.set_aside().total();
        assert!(total <= budget && total + 27 * MIB / 4 > budget, "{total} of {budget}");
        given.free_bytes = Some(budget);
        let by_count = refused(model.clone(), on(given.clone(), Budget::Slots(100)));
        assert!(matches!(by_count, ConfigurationError::PastFree { needed, .. } if needed > budget), "{by_count}");
    }
}

// What is free, what is reserved and what is left.

#[test]
fn reserves_are_given_and_what_is_left_is_told() {
    // B22, C02, C05. Fewer slots leave more for what else the engine may want.
    let reserves = ["weights", "kv", "transients"].map(|name| Reserve { name: name.into(), bytes: 1_000 }).to_vec();
    let given = Settings { free_bytes: Some(40_000), reserves, ..settings(Budget::Slots(24)) };
    let left = |slots| new(toy(), on(given.clone(), Budget::Slots(slots))).left_bytes();
    assert_eq!([left(24), left(16), left(8)], [Some(13_000), Some(21_000), Some(29_000)]);
    assert_eq!(new(toy(), on(given, Budget::Rest(share("0.5")))).left_bytes(), Some(37_000 - 18_000));
    assert_eq!(new(toy(), settings(Budget::Slots(24))).left_bytes(), None);

    // B23, C6. Weights that alone have 965,292,852 bytes more than is free are not "1 expert".
    let free = 8_000_000_000;
    let error = refused(toy(), rest_of(free, free + 965_292_852));
    let ConfigurationError::Reserves { reserves, reserved, free: named } = &error else { panic!("{error}") };
    assert_eq!((reserves.len(), *reserved, *named), (1, 8_965_292_852, free));
    assert_eq!(error.to_string(), "the reserves alone need 8965292852 bytes (kv 8965292852); 8000000000 are free");
    // Reserves that cannot be counted do not wrap.
    let mut endless = rest_of(free, u64::MAX);
    endless.reserves.push(Reserve { name: "more".into(), bytes: 2 });
    assert!(matches!(refused(toy(), endless), ConfigurationError::Reserves { reserved: u64::MAX, .. }));
    // All reserved: refused with what would do.
    let none = refused(toy(), rest_of(5_000, 5_000));
    assert!(matches!(none, ConfigurationError::Short { enough: Enough::Free(13_000), .. }), "{none}");
}

#[test]
fn nothing_past_free_less_reserves_however_the_budget_is_given() {
    // B26. 20,000 of 30,000 bytes are not reserved.
    let with = |budget, reserved| Configuration::new(toy(), on(rest_of(30_000, reserved), budget));
    for budget in [Budget::Bytes(20_000), Budget::Slots(20), Budget::Free(share("0.667"))] {
        assert_eq!(with(budget, 10_000).unwrap().left_bytes(), Some(0), "{budget}");
        let past = ConfigurationError::PastFree { needed: 20_000, reserved: 10_001, free: 30_000 };
        let refused = match with(budget, 10_001).unwrap_err() {
            // Of a share of free memory, more would do.
            ConfigurationError::Short { error, enough } => {
                assert_eq!((budget, enough), (Budget::Free(share("0.667")), Enough::Free(30_001)));
                *error
            }
            other => other,
        };
        assert_eq!(refused, past, "{budget}");
    }
    let rest = with(Budget::Rest(Share::WHOLE), 10_001).unwrap();
    assert_eq!((rest.geometry().slot_count(), rest.left_bytes()), (19, Some(999)));
    // What a byte budget does not use need not be free.
    let all = on(rest_of(32_000, 0), Budget::Bytes(u64::MAX));
    assert_eq!(new(toy(), all).left_bytes(), Some(0));
    // Where nothing says what is free, no share of it can be had.
    for budget in [Budget::Free(Share::WHOLE), Budget::Rest(Share::WHOLE)] {
        assert_eq!(refused(toy(), settings(budget)), ConfigurationError::FreeUnknown { budget });
    }
}

#[test]
fn numbers_that_were_given_are_not_lowered() {
    // C6. Slots and reserves are refused together, not made to fit.
    let with = |free| Configuration::new(toy(), on(rest_of(free, 1_024), Budget::Slots(19)));
    assert_eq!(with(20_024).unwrap().geometry().slot_count(), 19);
    assert_eq!(with(20_023), Err(ConfigurationError::PastFree { needed: 19_000, reserved: 1_024, free: 20_023 }));
    let above = GeometryError::SlotsAboveMaximum { most: 32, given: 33 };
    assert_eq!(refused(toy(), settings(Budget::Slots(33))), above.into());
}

#[test]
fn the_budget_in_effect_can_be_read() {
    // B44. Two budgets that come to the same slots say so.
    for (budget, effective) in
        [(Budget::Bytes(40_000), 40_000), (Budget::Bytes(100_000), 100_000), (Budget::Free(share("0.5")), 50_000)]
    {
        let configuration = new(toy(), Settings { free_bytes: Some(100_000), ..settings(budget) });
        assert_eq!(configuration.settings().constraints.budget, budget);
        assert_eq!(configuration.geometry().constraints().budget, Budget::Bytes(effective));
        assert_eq!(configuration.geometry().total_bytes(), 32_000);
        assert_eq!(configuration.notes(), [Note::EveryPoolFull { unused: effective - 32_000 }]);
    }
    // Also where a limit of the kernels is what clamps.
    let mut limited = settings(Budget::Bytes(20_000));
    limited.constraints.slot_limit = Some(17);
    assert_eq!(new(toy(), limited.clone()).notes(), [Note::EveryPoolFull { unused: 3_000 }]);
    limited.constraints.slot_limit = Some(20);
    assert_eq!(new(toy(), limited).notes(), []);
}

#[test]
fn a_refusal_names_what_would_do() {
    // C06. One layer to be staged, or the requests' slots; each in the budget's own unit.
    let with = |budget| refused(toy(), Settings { free_bytes: Some(7_000), ..settings(budget) });
    let enough = |error| match error {
        ConfigurationError::Short { enough, .. } => enough,
        other => panic!("{other}"),
    };
    assert_eq!(enough(refused(toy(), settings(Budget::Bytes(1)))), Enough::Bytes(8_000));
    assert_eq!(enough(refused(toy(), settings(Budget::Bytes(0)))), Enough::Bytes(8_000));
    assert_eq!(enough(refused(toy(), settings(Budget::Slots(7)))), Enough::Slots(8));
    assert_eq!(enough(with(Budget::Free(Share::WHOLE))), Enough::Free(8_000));
    assert_eq!(enough(with(Budget::Rest(share("0.5")))), Enough::Free(16_000));
    // All 32 slots, and not one more than there are experts.
    let mut all = settings(Budget::Slots(17));
    all.constraints.scope = Scope::PerLayer;
    all.constraints.request_count = 4;
    assert_eq!(enough(refused(toy(), all)), Enough::Slots(32));
    // More bytes do not help where the kernels cannot index a whole layer.
    let mut limited = settings(Budget::Bytes(100_000));
    limited.constraints.slot_limit = Some(7);
    let needed = StagingError { bank: BankId::new(0), buffer_count: 1, needed: 8_000, given: 7_000 };
    assert_eq!(refused(toy(), limited), needed.into());
}

#[test]
fn what_would_do_is_within_what_the_layers_with_slots_can_use() {
    // C06. Three pools need 21 slots and can use 24; the fourth layer decodes on the CPU.
    let mut three = settings(Budget::Slots(5));
    three.constraints.scope = Scope::PerLayer;
    three.constraints.slotless_layers = vec![LayerId::new(0)];
    let needed = GeometryError::SlotsBelowMinimum { needed: 21, given: 5 };
    let short = ConfigurationError::Short { error: Box::new(needed.into()), enough: Enough::Slots(21) };
    assert_eq!(refused(layers(4, 8, 7, &[1_000]), three), short);
}

#[test]
fn what_would_do_is_found_where_twice_as_much_is_too_much() {
    // C06, B26. 8,000 bytes are enough, and 10,000 are past what is free.
    let short = refused(toy(), on(rest_of(12_000, 3_000), Budget::Bytes(7_999)));
    assert!(matches!(short, ConfigurationError::Short { enough: Enough::Bytes(8_000), .. }), "{short}");
    let short = refused(toy(), on(rest_of(12_000, 3_000), Budget::Slots(5)));
    assert!(matches!(short, ConfigurationError::Short { enough: Enough::Slots(8), .. }), "{short}");
}

#[test]
fn dedicated_staging_has_a_price() {
    let dedicated = |settings| Settings { staging: StagingPlace::Dedicated, ..settings };
    // Of the same free memory, two whole layers fewer for slots.
    let borrowed = new(toy(), rest_of(31_000, 1_000));
    let beside = new(toy(), dedicated(rest_of(31_000, 1_000)));
    assert_eq!([borrowed.geometry().slot_count(), beside.geometry().slot_count()], [30, 14]);
    assert_eq!((&borrowed.set_aside().staging[..], &beside.set_aside().staging[..]), (&[0][..], &[16_000][..]));
    assert_eq!((buffers(&beside), beside.staging().unwrap().stable_slots(beside.geometry())), (2, 14));
    assert_eq!((beside.set_aside().total(), beside.left_bytes()), (30_000, Some(0)));

    // One buffer where two leave no room for the cache.
    let one = new(toy(), dedicated(rest_of(17_999, 0)));
    let lacks = GeometryError::BudgetBelowMinimum { needed: 2_000, given: 1_999 };
    assert_eq!(one.overlap_off(), Some(&OverlapOff::Dedicated(Box::new(lacks.into()))));
    assert_eq!((buffers(&one), one.geometry().slot_count(), &one.set_aside().staging[..]), (1, 9, &[8_000][..]));
    let two = new(toy(), dedicated(rest_of(18_000, 0)));
    assert_eq!((buffers(&two), two.geometry().slot_count(), two.overlap_off()), (2, 2, None));

    // A budget in bytes is for the arenas; staging comes on top, and is refused or falls to one past what is free.
    let bytes = |free| Configuration::new(toy(), on(dedicated(rest_of(free, 0)), Budget::Bytes(14_000)));
    let on_top = bytes(30_000).unwrap();
    assert_eq!((on_top.geometry().slot_count(), on_top.set_aside().total()), (14, 30_000));
    let past = ConfigurationError::PastFree { needed: 30_000, reserved: 0, free: 29_999 };
    let one = bytes(29_999).unwrap();
    assert_eq!(one.overlap_off(), Some(&OverlapOff::Dedicated(Box::new(past))));
    assert_eq!((one.geometry().slot_count(), one.set_aside().total()), (14, 22_000));
    assert_eq!(bytes(21_999), Err(ConfigurationError::PastFree { needed: 22_000, reserved: 0, free: 21_999 }));
    // Nowhere: no buffer at all, and why there are not two.
    let nowhere = new(toy(), Settings { staging: StagingPlace::Nowhere, ..settings(Budget::Slots(3)) });
    assert_eq!((buffers(&nowhere), nowhere.overlap_off()), (0, Some(&OverlapOff::NoStaging)));
}

#[test]
fn tables_of_admission_on_the_device_are_set_aside() {
    let device = |settings| Settings { admission: Admission::Device, ..settings };
    let host = new(toy(), rest_of(24_000, 1_000));
    let tables = new(toy(), device(rest_of(24_000, 1_000)));
    assert_eq!((host.set_aside().tables, host.geometry().slot_count()), (0, 23));
    assert_eq!(
        tables.set_aside().tables,
        table_bytes(tables.geometry(), tables.staging(), Admission::Device, Eviction::Lru)
    );
    // Of 4 layers of 8 experts in one pool eight arrays are short of 256 bytes, counters of 312 bytes a layer take
    // 1,280, and a slot has a stamp, an owner and a pin. Beside them a header; and what a bank of a layer is told as,
    // once for its slots and four times for each of two buffers, with 8 bytes and two lists of 8 copies.
    let of_rows = 4 * 48 + 2 * (4 * 2 * (48 + 64) + 8 + 2 * 8 * 8);
    let fixed = 8 * 256 + 1_280 + 32 + of_rows;
    assert_eq!((fixed, tables.set_aside().tables), (5_616, fixed + 17 * 13));
    assert_eq!((tables.geometry().slot_count(), tables.left_bytes()), (17, Some(23_000 - 17 * 1_013 - fixed)));
    // On a budget in bytes they come on top.
    let with = |free| Configuration::new(toy(), on(device(rest_of(free, 0)), Budget::Bytes(22_000)));
    assert_eq!(with(27_902).unwrap().left_bytes(), Some(0));
    assert_eq!(with(27_901), Err(ConfigurationError::PastFree { needed: 27_902, reserved: 0, free: 27_901 }));
    // Rules by score count 6 numbers of each expert and keep weights, turns, totals and gains, and a key for each
    // slot; one that learns remembers 8 steps of up to 16 experts after each.
    let by = |eviction| {
        let settings = Settings { eviction, ..device(on(rest_of(40_000, 0), Budget::Slots(22))) };
        new(toy(), settings).set_aside().tables - 5_902
    };
    let scored = 2 * 256 + 32 * 6 * 4 + 2 * 256 + 22 * 8;
    assert_eq!([by(Eviction::Lfu), by(Eviction::Cyclic)], [scored; 2]);
    assert_eq!(by(Eviction::Learned), scored + 2 * 256 + 32 * (8 * 16 * 2 + 8) + 2 * 256);
}
