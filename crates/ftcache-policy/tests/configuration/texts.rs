//! Every text of what is refused.

use super::*;

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
        Rates::new("gpu", vec![good()]).unwrap().with_seconds_per_step(f64::NAN).unwrap_err(),
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
    the rates have NaN seconds a step besides its bytes
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
