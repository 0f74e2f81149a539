//! Layers without slots.

use super::*;

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
