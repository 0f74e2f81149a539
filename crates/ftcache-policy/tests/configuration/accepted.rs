//! What every accepted configuration has in common.

use super::*;

/// Up to four kinds of layers in three banks, of which the last has rows of a few bytes or none.
fn random_model(rng: &mut Rng, most_kinds: u64) -> Model {
    let kinds = 1 + rng.below(most_kinds);
    let rows: Vec<[u64; 3]> = (0..kinds).map(|_| [1 + rng.below(900), 1 + rng.below(300), rng.below(3)]).collect();
    let key = |kind: usize| LayoutKey::tagged(kind.to_string(), rows[kind]);
    let layers = (0..1 + rng.below(9)).map(|_| key(rng.below(kinds) as usize)).collect();
    let expert_count = 2 + rng.below(14) as u32;
    let top_k = 1 + rng.below(u64::from(expert_count)) as u32;
    Model::new(expert_count, top_k, Quantisation::PerLayer, layers).unwrap()
}

fn random_budget(rng: &mut Rng, model: &Model) -> Budget {
    let some = Share::parse(&format!("0.{}", 1 + rng.below(9))).unwrap();
    match rng.below(4) {
        0 => Budget::Slots(rng.below(u64::from(model.expert_count()) * model.layer_count() as u64 + 1)),
        1 => Budget::Bytes(rng.below(model.model_bytes() * 5 / 4)),
        2 => Budget::Free(some),
        _ => Budget::Rest(if rng.chance(1, 2) { Share::WHOLE } else { some }),
    }
}

fn random_settings(rng: &mut Rng, model: &Model) -> Settings {
    let budget = random_budget(rng, model);
    let mut constraints = Constraints::new(budget);
    constraints.scope = if rng.chance(1, 2) { Scope::Unified } else { Scope::PerLayer };
    constraints.request_count = 1 + rng.below(5) as u32;
    constraints.alignment = 1 << rng.below(5);
    constraints.tail_pad = TailPad::RowUpTo(rng.below(40));
    constraints.slot_limit = rng.chance(1, 4).then(|| 1 + rng.below(40) as u32);
    let share_of_memory = matches!(budget, Budget::Free(_) | Budget::Rest(_));
    Settings {
        free_bytes: (share_of_memory || rng.chance(1, 2)).then(|| rng.below(model.model_bytes() * 3)),
        reserves: vec![Reserve { name: "kv".into(), bytes: rng.below(model.model_bytes() / 2 + 1) }],
        lower_requests: rng.chance(1, 2),
        batch_sizes: vec![1, 2, 4, 8],
        staging: [StagingPlace::Borrowed, StagingPlace::Dedicated, StagingPlace::Nowhere][rng.below(3) as usize],
        overlap: rng.chance(3, 4),
        admission: if rng.chance(1, 2) { Admission::Host } else { Admission::Device },
        cpu_layers: CpuLayers::Count(rng.below(2) as u32),
        resident_layers: model.layer_ids().skip(1).filter(|_| rng.chance(1, 8)).collect(),
        ..Settings::new(constraints)
    }
}

fn check(configuration: &Configuration, case: &str) {
    let (settings, geometry) = (configuration.settings(), configuration.geometry());
    let (model, aside) = (geometry.model(), configuration.set_aside());
    let sum = |bytes: &[u64]| bytes.iter().sum::<u64>();
    let arenas = sum(&aside.arenas);
    assert_eq!(aside.arenas, geometry.arena_bytes(), "{case}");
    assert_eq!(aside.total(), arenas + sum(&aside.staging) + aside.resident + aside.tables, "{case}");
    assert_eq!(
        aside.tables,
        table_bytes(geometry, configuration.staging(), settings.admission, settings.eviction),
        "{case}"
    );
    if let Some(free) = settings.free_bytes {
        let all = aside.total() + settings.reserved_bytes();
        assert_eq!(configuration.left_bytes(), free.checked_sub(all), "{case}: {all} of {free}");
        assert!(all <= free, "{case}: {all} of {free}");
    }

    // The budget, in its own unit.
    let most = match settings.constraints.budget {
        Budget::Slots(slots) => {
            assert_eq!(geometry.slot_count(), slots, "{case}");
            u64::MAX
        }
        Budget::Bytes(bytes) => bytes,
        Budget::Free(share) => share.of(settings.free_bytes.unwrap()),
        Budget::Rest(share) => {
            let taken = settings.reserved_bytes() + aside.tables + sum(&aside.staging);
            share.of(settings.free_bytes.unwrap() - taken)
        }
    };
    assert!(arenas + aside.resident <= most, "{case}: {arenas} and {} of {most}", aside.resident);

    // The requests.
    let (asked, requests) = (settings.constraints.request_count, configuration.request_count());
    assert!(geometry.request_limit().is_none_or(|limit| limit >= requests), "{case}");
    assert!(requests == asked || settings.lower_requests && (1..asked).contains(&requests), "{case}");
    assert_eq!(configuration.requests_lowered().is_some(), requests < asked, "{case}");

    // Staging: whole layers of the widest stride, in the arenas or beside them.
    let held = |&layer: &LayerId| geometry.pool_of_layer(layer).is_some();
    let cached: Vec<LayerId> = model.layer_ids().filter(held).collect();
    let count = u64::from(buffers(configuration));
    assert_eq!(count == 0, settings.staging == StagingPlace::Nowhere, "{case}");
    assert_eq!(configuration.overlap_off().is_some(), settings.overlap && count < 2, "{case}");
    assert!(settings.overlap || count < 2, "{case}");
    for bank in model.bank_ids() {
        let stride = |&layer: &LayerId| model.row_bytes(layer, bank).next_multiple_of(settings.constraints.alignment);
        let bytes = count * u64::from(model.expert_count()) * cached.iter().map(stride).max().unwrap();
        match settings.staging {
            StagingPlace::Borrowed => assert!(aside.arenas[bank.index()] >= bytes, "{case}: bank {bank}"),
            _ => assert!(aside.staging[bank.index()] >= bytes, "{case}: bank {bank}"),
        }
    }

    // Every layer either has a pool or a reason.
    let declined: Vec<LayerId> = configuration.declined().into_iter().map(|(layer, _)| layer).collect();
    let uncached: Vec<LayerId> = model.layer_ids().filter(|layer| !held(layer)).collect();
    assert_eq!(declined, uncached, "{case}");
    let bytes = |layers: &[LayerId]| layers.iter().map(|&layer| model.layer_bytes(layer)).sum::<u64>();
    assert_eq!(configuration.pinned_bytes(), bytes(&cached), "{case}");
    assert_eq!(configuration.droppable_bytes(), bytes(&settings.resident_layers), "{case}");
}

/// The settings with another amount of what a refusal said would do.
fn with_amount(settings: &Settings, enough: Enough, amount: u64) -> Settings {
    match enough {
        Enough::Slots(_) => on(settings.clone(), Budget::Slots(amount)),
        Enough::Bytes(_) => on(settings.clone(), Budget::Bytes(amount)),
        Enough::Free(_) => Settings { free_bytes: Some(amount), ..settings.clone() },
    }
}

#[test]
fn what_is_accepted_fits_and_what_is_said_to_do_does() {
    let (mut accepted, mut short, mut least) = (0, 0, 0);
    for seed in 0..6_000 {
        let mut rng = Rng::new(seed);
        let model = random_model(&mut rng, 1 + seed % 3);
        let settings = random_settings(&mut rng, &model);
        let case = format!("seed {seed}");
        match Configuration::new(model.clone(), settings.clone()) {
            Ok(configuration) => {
                accepted += 1;
                check(&configuration, &case);
            }
            Err(ConfigurationError::Short { error, enough }) => {
                short += 1;
                let (Enough::Slots(amount) | Enough::Bytes(amount) | Enough::Free(amount)) = enough;
                let with = |amount| Configuration::new(model.clone(), with_amount(&settings, enough, amount));
                match with(amount) {
                    Ok(configuration) => check(&configuration, &case),
                    Err(now) => panic!("{case}: {error}; {enough} were said to do, but {now}"),
                }
                // Fewer requests may need less than what was said.
                if !settings.lower_requests {
                    least += 1;
                    assert!(with(amount - 1).is_err(), "{case}: {error}; less than {enough} would do");
                }
            }
            Err(_) => {}
        }
    }
    assert!(accepted > 1_500 && short > 1_000 && least > 500, "{accepted} accepted, {short} short, {least} least");
}

#[test]
fn a_refusal_of_slots_that_names_no_other_number_has_none() {
    let mut none = 0;
    for seed in 0..2_000 {
        let mut rng = Rng::new(seed);
        let model = random_model(&mut rng, 1);
        let most = u64::from(model.expert_count()) * model.layer_count() as u64;
        let slots = rng.below(most);
        let settings = on(random_settings(&mut rng, &model), Budget::Slots(slots));
        let Err(error) = Configuration::new(model.clone(), settings.clone()) else { continue };
        if matches!(error, ConfigurationError::Short { .. }) {
            continue;
        }
        none += 1;
        let would_do =
            |&slots: &u64| Configuration::new(model.clone(), on(settings.clone(), Budget::Slots(slots))).is_ok();
        let found = (slots..=most).find(would_do);
        assert_eq!(found, None, "seed {seed}: {error}; and {slots} slots were given");
    }
    assert!(none > 100, "{none} without a number");
}

#[test]
fn no_more_requests_would_have_fitted() {
    // C5, B17. All layers are alike: among several widths, more requests may fit where fewer do not.
    let mut lowered = 0;
    for seed in 0..2_000 {
        let mut rng = Rng::new(seed);
        let model = random_model(&mut rng, 1);
        let mut settings = random_settings(&mut rng, &model);
        let asked = 1 + rng.below(8) as u32;
        let with = |settings: &mut Settings, request_count, lower_requests| {
            settings.constraints.request_count = request_count;
            settings.lower_requests = lower_requests;
            Configuration::new(model.clone(), settings.clone())
        };
        let fit = (1..=asked).rev().find_map(|requests| with(&mut settings, requests, false).ok());
        let got = with(&mut settings, asked, true).ok();
        let requests = |one: &Option<Configuration>| one.as_ref().map(Configuration::request_count);
        assert_eq!(requests(&got), requests(&fit), "seed {seed}: {asked} requests asked for");
        if let (Some(got), Some(fit)) = (got, fit) {
            assert_eq!((sizes(&got), buffers(&got)), (sizes(&fit), buffers(&fit)), "seed {seed}");
            assert_eq!(got.set_aside(), fit.set_aside(), "seed {seed}");
            let limit = got.geometry().request_limit().unwrap_or(u32::MAX);
            let batches: Vec<u32> = [1, 2, 4, 8].into_iter().filter(|&size| size <= limit).collect();
            assert_eq!(got.fitting_batches(), batches, "seed {seed}");
            lowered += u32::from(got.request_count() < asked);
        }
    }
    assert!(lowered > 100, "{lowered} lowered");
}
