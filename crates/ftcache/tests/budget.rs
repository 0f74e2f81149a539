//! What a plan promises is what a cache does: more bytes move less, each device has its own budget, and a layer that
//! was left out is refused while the others run.

use ftcache::policy::{Configuration, Cut, Declined, RankView, Reserve, Settings, Share, StagingPlace};
use ftcache::{
    BankId, Budget, Cache, Constraints, EnsureError, Error, ExpertId, Geometry, HostDevice, HostRows, LayerId,
    LayoutKey, Model, Quantisation,
};
use ftcache_testkit::generators::Decode;

const LAYERS: usize = 6;
const EXPERTS: u32 = 64;

fn model() -> Model {
    let layer = |index: usize| match index % 3 {
        0 => LayoutKey::tagged("wide", [96, 4]),
        _ => LayoutKey::tagged("narrow", [32, 4]),
    };
    Model::new(EXPERTS, 4, Quantisation::PerLayer, (0..LAYERS).map(layer).collect()).unwrap()
}

/// A cache of a plan's pools, on a device of exactly the memory that the plan sets aside; every layer's rows attached.
fn cache(configuration: &Configuration) -> Cache<HostDevice> {
    let device = HostDevice::new().with_limit(configuration.set_aside().total());
    let geometry: Geometry = configuration.geometry().clone();
    let model = geometry.model().clone();
    let mut cache = Cache::new(geometry, device).unwrap();
    for layer in model.layer_ids() {
        for bank in model.bank_ids() {
            let bytes = model.row_bytes(layer, bank) * u64::from(model.expert_count());
            cache.attach(layer, bank, HostRows::owned(vec![1; bytes as usize].into(), 0)).unwrap();
        }
    }
    cache
}

fn settings(budget: Budget) -> Settings {
    Settings { staging: StagingPlace::Nowhere, ..Settings::new(Constraints::new(budget)) }
}

// B16: a budget that is printed and not used.
#[test]
fn a_larger_budget_moves_fewer_bytes() {
    let mut moved = Vec::new();
    for eighths in [1, 2, 8] {
        let budget = model().model_bytes() * eighths / 8 + 4_096;
        let configuration = Configuration::new(model(), settings(Budget::Bytes(budget))).unwrap();
        let mut cache = cache(&configuration);
        let mut decode = Decode::new(16, LAYERS, EXPERTS, 4, 1);
        for _ in 0..300 {
            for (layer, routes) in decode.next_token().to_vec().iter().enumerate() {
                cache.load(LayerId::from_index(layer), routes).unwrap();
            }
        }
        moved.push(cache.stats().bytes);
    }
    assert!(moved.is_sorted_by(|less, more| less > more), "{moved:?}");
    // With a slot for every expert, each row moves at most once.
    assert!(moved[2] <= model().model_bytes(), "{moved:?}");
}

// B57: one device is full while the one beside it is idle.
#[test]
fn each_device_holds_its_own_part_within_its_own_budget() {
    let all: Vec<LayerId> = model().layer_ids().collect();
    let free = [12_000, 9_000];
    let mut served = 0;
    for (part, free_bytes) in all.chunks(3).zip(free) {
        let view = RankView::new(&model(), &Cut::Whole, part).unwrap();
        let reserves = vec![Reserve { name: "kv".into(), bytes: 1_000 }];
        let settings = Settings { free_bytes: Some(free_bytes), reserves, ..settings(Budget::Rest(Share::WHOLE)) };
        let configuration = Configuration::new(view.model().clone(), settings).unwrap();
        assert!(configuration.set_aside().total() + 1_000 <= free_bytes);
        let mut cache = cache(&configuration);
        for &layer in part {
            let local = view.local_layer(layer).unwrap();
            let mut routes = [3, 60].map(ExpertId::new);
            view.localise(&mut routes).unwrap();
            served += cache.load(local, &routes).unwrap().len();
        }
        assert!(all.iter().filter(|layer| !part.contains(layer)).all(|&layer| view.local_layer(layer).is_none()));
    }
    assert_eq!(served, 2 * LAYERS);
}

#[test]
fn a_layer_that_decodes_elsewhere_is_refused_and_the_others_run() {
    let settings = Settings { cpu_layers: ftcache::policy::CpuLayers::Count(1), ..settings(Budget::Bytes(8_000)) };
    let configuration = Configuration::new(model(), settings).unwrap();
    assert_eq!(configuration.declined(), [(LayerId::new(0), Declined::Cpu)]);
    let mut cache = cache(&configuration);
    let error = cache.load(LayerId::new(0), &[ExpertId::new(1)]).unwrap_err();
    assert_eq!(error, Error::Ensure(EnsureError::NoSlots { layer: LayerId::new(0) }));
    let error = cache.check_attached(LayerId::new(0)).unwrap_err();
    assert_eq!(error, Error::Ensure(EnsureError::NoSlots { layer: LayerId::new(0) }));
    for layer in (1..LAYERS).map(LayerId::from_index) {
        let slot = cache.load(layer, &[ExpertId::new(1)]).unwrap()[0];
        let mut row = vec![0; cache.geometry().model().row_bytes(layer, BankId::new(0)) as usize];
        cache.read_row(layer, BankId::new(0), slot, &mut row).unwrap();
        assert!(row.iter().all(|&byte| byte == 1), "layer {layer}");
    }
}
