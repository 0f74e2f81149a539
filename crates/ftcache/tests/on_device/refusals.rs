//! What is refused, in which words, and that nothing has changed after it.

use std::fs;
use std::ops::ControlFlow;

use ftcache::{
    ArenaOptions, BankId, BankSource, BounceSize, Cache, Constraints, CudaDevice, DeviceModeOptions, DeviceRows,
    DeviceSplit, DeviceStep, DeviceWeights, Error, ExpertId, Geometry, HostArena, HostRows, IdWidth, Keep, LayerId,
    Misses, Phase, PoolId, SlotId, Staging, Step, Streams,
};
use ftcache_policy::{Fetch, FetchOrder, FetchRule};
use insta::assert_snapshot;

use crate::rig::{Form, Rig, experts, few, layer, world};
use crate::shapes::{self, LAYOUTS};

/// Three layers of six experts, two of one layout, in pools of a few slots more than a layer has experts.
fn geometry() -> Geometry {
    Geometry::new(shapes::model(6, 2, &[LAYOUTS[0], LAYOUTS[2], LAYOUTS[0]]), shapes::slots(16)).unwrap()
}

/// Everything that a call may change, but for a count of what was refused.
fn state(rig: &Rig) -> impl PartialEq + std::fmt::Debug + use<> {
    let residency = rig.cache.residency();
    let stats = rig.model().layer_ids().map(|layer| {
        let mut stats = rig.cache.layer_stats(layer).unwrap();
        stats.residency.refused = 0;
        stats
    });
    let counts = rig.emulated().counts();
    let attached = |layer, bank| rig.cache.is_direct(layer, bank);
    let banks = || rig.model().bank_ids();
    let attached: Vec<_> =
        rig.model().layer_ids().flat_map(|layer| banks().map(move |bank| attached(layer, bank))).collect();
    (
        (
            residency.digest(),
            residency.step(),
            residency.generation(),
            stats.collect::<Vec<_>>(),
            residency.staging().cloned(),
        ),
        (rig.cache.is_in_device_mode(), residency.has_open_chunk(), rig.cache.plan().to_string(), attached),
        (
            counts.allocations,
            counts.allocated_bytes,
            counts.registrations,
            counts.modules,
            counts.events,
            counts.streams,
        ),
        rig.emulated().calls("cuLaunchKernel"),
    )
}

/// That a call is refused and changes nothing. Returns its words.
#[track_caller]
fn refused<T>(rig: &mut Rig, call: impl FnOnce(&mut Cache<CudaDevice>) -> Result<T, Error>) -> String {
    let before = state(rig);
    let Err(error) = call(&mut rig.cache) else { panic!("it is not refused") };
    let after = state(rig);
    assert!(before == after, "{error}:\n{before:?}\n{after:?}");
    error.to_string()
}

#[test]
fn entering_is_refused_while_something_is_wrong_and_goes_through_after() {
    let mut rig = Rig::unattached(world(1), geometry(), 0);
    let mut texts = vec![refused(&mut rig, |cache| cache.enter_device_mode(few()))];
    for number in [0, 2] {
        for bank in rig.model().clone().bank_ids() {
            rig.rows.attach_one(&mut rig.cache, layer(number), bank).unwrap();
        }
    }
    rig.rows.attach_one(&mut rig.cache, layer(1), BankId::new(0)).unwrap();
    rig.rows.attach_one(&mut rig.cache, layer(1), BankId::new(2)).unwrap();
    texts.push(refused(&mut rig, |cache| cache.enter_device_mode(few())));
    // Rows in memory that is not pinned.
    rig.cache.set_bounce(BounceSize { entry_bytes: 64, entry_count: 2, thread_count: 1 }).unwrap();
    let bytes = (0..6).flat_map(|expert| crate::rig::row(1, expert, 1, LAYOUTS[2].1[1])).collect::<Vec<u8>>();
    rig.cache.attach(layer(1), BankId::new(1), HostRows::owned(bytes.into(), 0)).unwrap();
    texts.push(refused(&mut rig, |cache| cache.enter_device_mode(few())));
    rig.rows.attach_one(&mut rig.cache, layer(1), BankId::new(1)).unwrap();
    // A chunk on the host.
    let staging = Staging::dedicated(rig.cache.geometry(), 1);
    rig.cache.set_staging(staging, 0).unwrap();
    rig.cache.begin_chunk(Streams::one(rig.stream)).unwrap();
    texts.push(refused(&mut rig, |cache| cache.enter_device_mode(few())));
    rig.cache.end_chunk().unwrap();
    assert_snapshot!(texts.join("\n"), @r"
    layer 0 bank 0 is not attached
    layer 1 bank 1 is not attached
    layer 1 bank 1: kernels read pinned rows alone, and these go through the bounce buffer
    a prefill chunk is open
    ");
    rig.enter();
    rig.step(layer(1), &[1, 5], Form::default(), "entered");
    rig.check_bytes("entered");
    rig.leave("at the end");
    rig.end();
}

#[test]
fn shapes_that_no_launch_has_are_refused() {
    let mut rig = Rig::new(2, geometry());
    let mut texts = Vec::new();
    for admission_threads in [0, 1, 31, 33, 1056, u32::MAX] {
        let options = DeviceModeOptions { admission_threads, ..few() };
        texts.push(refused(&mut rig, |cache| cache.enter_device_mode(options)));
    }
    texts.push(refused(&mut rig, |cache| cache.enter_device_mode(DeviceModeOptions { gather_blocks: 0, ..few() })));
    assert_snapshot!(texts.join("\n"), @r"
    0 threads a block; a multiple of 32 up to 1024 is needed
    1 threads a block; a multiple of 32 up to 1024 is needed
    31 threads a block; a multiple of 32 up to 1024 is needed
    33 threads a block; a multiple of 32 up to 1024 is needed
    1056 threads a block; a multiple of 32 up to 1024 is needed
    4294967295 threads a block; a multiple of 32 up to 1024 is needed
    a gather of 0 blocks; a launch has 1 to 2147483647
    ");
    for admission_threads in [32, 96, 1024] {
        rig.cache.enter_device_mode(DeviceModeOptions { admission_threads, gather_blocks: 1, ..few() }).unwrap();
        rig.step(layer(0), &[i64::from(admission_threads % 5), 5], Form::default(), "entered");
        rig.leave("left");
    }
    rig.end();
}

#[test]
fn a_layer_without_slots_needs_no_rows() {
    let constraints = Constraints { slotless_layers: vec![layer(1)], ..shapes::slots(9) };
    let geometry = Geometry::new(shapes::model(6, 2, &[LAYOUTS[0]; 3]), constraints).unwrap();
    let mut rig = Rig::unattached(world(3), geometry, 0);
    for number in [0, 2] {
        for bank in rig.model().clone().bank_ids() {
            rig.rows.attach_one(&mut rig.cache, layer(number), bank).unwrap();
        }
    }
    rig.enter();
    rig.step(layer(2), &[1, 5], Form::default(), "entered");
    rig.leave("at the end");
    rig.end();
}

#[test]
fn a_device_that_only_copies_has_no_device_mode() {
    let mut rig = Rig::new(4, geometry());
    let before = rig.twin.residency().digest();
    let told = rig.twin.enter_device_mode(few()).unwrap_err();
    assert_snapshot!(told, @"no kernels on host memory: it only copies");
    assert!(!rig.twin.is_in_device_mode());
    assert_eq!(rig.twin.residency().digest(), before);
    rig.on_host(Step::new(layer(0)), &[1, 2]).unwrap();
    rig.end();
}

type Call<'a> = (&'static str, Box<dyn Fn(&mut Cache<CudaDevice>) -> Result<(), Error> + 'a>);

/// A file of the rows of layer 0.
struct Rows(std::path::PathBuf);

impl Drop for Rows {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn in_device_mode_nothing_is_decided_on_the_host() {
    let mut rig = Rig::new(5, geometry());
    let staging = Staging::dedicated(rig.cache.geometry(), 1);
    rig.cache.set_staging(staging.clone(), 0).unwrap();
    rig.host_step(layer(0), &[1, 2], "before");
    rig.host_step(Step { phase: Phase::Verify, ..Step::new(layer(1)) }, &[3], "before");
    let residents = rig.cache.residents(7);
    let file = Rows(std::env::temp_dir().join(format!("ftcache-refusals-{}", std::process::id())));
    fs::write(&file.0, [0; 4096]).unwrap();
    rig.enter();
    rig.step(layer(0), &[4, 5], Form::default(), "on the device");
    let (one, other_rows) = (Streams::one(rig.stream), HostRows::owned(vec![0; 6 * 48].into(), 0));
    let expert = (layer(0), ExpertId::new(1));
    let calls: Vec<Call<'_>> = vec![
        ("enter_device_mode", Box::new(|cache| cache.enter_device_mode(few()))),
        ("load", Box::new(|cache| cache.load(layer(0), &experts(&[1])).map(|_| ()))),
        ("load_on", Box::new(|cache| cache.load_on(one, layer(0), &experts(&[1])).map(|_| ()))),
        ("load_ids", Box::new(|cache| cache.load_ids(one, layer(0), [1, 2], None).map(|_| ()))),
        ("accept", Box::new(|cache| cache.accept(layer(1), &experts(&[3])))),
        ("forget", Box::new(|cache| cache.forget(PoolId::new(0), SlotId::new(0)).map(|_| ()))),
        ("forget_layer", Box::new(|cache| cache.forget_layer(layer(0)).map(|_| ()))),
        ("reset", Box::new(|cache| cache.reset())),
        ("reset_stats", Box::new(|cache| cache.reset_stats())),
        ("set_eviction", Box::new(|cache| cache.set_eviction(ftcache::Eviction::Lfu))),
        ("pin", Box::new(|cache| cache.pin(&[expert]))),
        ("unpin", Box::new(|cache| cache.unpin(&[expert]))),
        ("begin_chunk", Box::new(|cache| cache.begin_chunk(one))),
        ("set_staging", Box::new(|cache| cache.set_staging(staging.clone(), 5))),
        ("rebuild", Box::new(|cache| cache.rebuild(geometry(), Keep::WhatFits, u64::MAX).map(|_| ()))),
        ("bring_back", Box::new(|cache| cache.bring_back(one, &residents, 7).map(|_| ()))),
        ("attach", Box::new(|cache| cache.attach(layer(0), BankId::new(0), other_rows.clone()))),
        (
            "load_arena",
            Box::new(|cache| {
                let source = BankSource::contiguous(layer(0), BankId::new(0), 48, 6, 0, 0);
                let reservation = HostArena::reserve(&[source], &[&file.0], ArenaOptions::default()).unwrap();
                cache.load_arena(reservation, |_| ControlFlow::Continue(())).map(|_| ())
            }),
        ),
    ];
    for (name, call) in &calls {
        let told = refused(&mut rig, call);
        assert_eq!(told, "the residency is on the device: leave device mode first", "{name}");
        rig.check_reading(name);
    }
    // Calls that need an open chunk say that there is none.
    let calls: [Call<'_>; 5] = [
        ("prefetch", Box::new(|cache| cache.prefetch(layer(0)))),
        ("materialize", Box::new(|cache| cache.materialize(layer(0)))),
        ("wait", Box::new(|cache| cache.wait(layer(0)).map(|_| ()))),
        ("release", Box::new(|cache| cache.release(layer(0)))),
        ("end_chunk", Box::new(|cache| cache.end_chunk().map(|_| ()))),
    ];
    for (name, call) in &calls {
        assert_eq!(refused(&mut rig, call), "no prefill chunk is open", "{name}");
    }
    rig.step(layer(0), &[1, 3], Form::default(), "nothing of it has changed anything");
    rig.check_bytes("at the end");
    rig.leave("at the end");
    assert_eq!(rig.cache.accept(layer(1), &experts(&[3])), rig.twin.accept(layer(1), &experts(&[3])));
    rig.check_same("accepted");
    drop(calls);
    rig.end();
}

#[test]
fn with_the_host_nothing_is_decided_on_the_device() {
    let mut rig = Rig::new(6, geometry());
    let word = rig.engine.pinned(4).word(1);
    // Once where there never was device mode, and once after it.
    for round in 0..2 {
        let stream = rig.stream;
        let told = rig.told(Step::new(layer(0)), 2, Form::default());
        let calls: Vec<Call<'_>> = vec![
            ("leave_device_mode", Box::new(|cache| cache.leave_device_mode())),
            ("admit_on_device", Box::new(|cache| cache.admit_on_device(stream, &told))),
            ("gather_on_device", Box::new(|cache| cache.gather_on_device(stream, layer(0)))),
            ("gather_on_device_after", Box::new(|cache| cache.gather_on_device_after(stream, layer(0), word))),
            ("reset_on_device", Box::new(|cache| cache.reset_on_device(stream))),
            ("begin_chunk_on_device", Box::new(|cache| cache.begin_chunk_on_device(stream))),
            ("stage_on_device", Box::new(|cache| cache.stage_on_device(stream, layer(0), 0))),
            ("materialize_on_device", Box::new(|cache| cache.materialize_on_device(stream, layer(0), 0))),
            ("end_chunk_on_device", Box::new(|cache| cache.end_chunk_on_device(stream))),
            ("request_reading", Box::new(|cache| cache.request_reading(stream))),
            ("plan_on_device", Box::new(|cache| cache.plan_on_device(layer(0)).map(|_| ()))),
        ];
        for (name, call) in &calls {
            let told = refused(&mut rig, call);
            assert_eq!(told, "the residency is with the host: enter device mode first", "round {round}: {name}");
        }
        if round == 0 {
            let told = refused(&mut rig, |cache| cache.reading());
            assert_snapshot!(told, @"the residency is with the host: enter device mode first");
        }
        drop(calls);
        rig.enter();
        rig.step(layer(0), &[1, 2], Form::default(), "on the device");
        rig.leave("left");
    }
    rig.end();
}

#[test]
fn steps_that_kernels_do_not_know_are_refused() {
    let mut rig = Rig::new(7, geometry());
    rig.enter();
    let plain = Step::new(layer(1));
    let fetch = Fetch { rule: FetchRule::UpTo(1), most: None };
    let hybrid = Step { misses: Misses::Hybrid { fetch, order: FetchOrder::Recency }, ..plain };
    let told = |rig: &Rig, step| rig.told(step, 4, Form { per_row: 2, ..Form::default() });
    // SAFETY: none of these is ever launched.
    let rows = |address, stride| unsafe { DeviceRows::from_raw(address, stride) };
    let good = told(&rig, plain);
    let at = rig.routes.address;
    let mut steps = vec![
        told(&rig, Step { token: Some(3), ..plain }),
        told(&rig, Step { phase: Phase::Verify, ..plain }),
        told(&rig, Step { continues: true, ..plain }),
        told(&rig, Step { layer: LayerId::new(3), ..plain }),
    ];
    let mut change = |change: &dyn Fn(&mut DeviceStep)| {
        let mut step = told(&rig, hybrid);
        change(&mut step);
        steps.push(step);
    };
    change(&|step| step.ids.row_count = (1 << 30) + 1);
    change(&|step| step.ids.row_count = u64::MAX);
    change(&|step| step.ids.absent = Some(5));
    change(&|step| step.ids.rows = rows(0, 0));
    change(&|step| step.ids.rows = rows(at + 2, 0));
    change(&|step| step.ids.rows = rows(at, 6));
    change(&|step| step.ids.rows = rows(at, 4));
    change(&|step| step.ids.width = IdWidth::Eight);
    change(&|step| step.answers.slots = Some(rows(at + 1, 0)));
    change(&|step| step.answers.map = Some(rows(at + 3, 0)));
    change(&|step| step.answers.cpu = 1);
    change(&|step| (step.ids.absent, step.answers.absent) = (Some(-9), 0));
    change(&|step| (step.ids.absent, step.answers.absent) = (Some(-9), 1 << 40));
    change(&|step| step.split = DeviceSplit { cpu_ids: Some(rows(at, 0)), cpu_none: 2, weights: None });
    change(&|step| {
        let weights = DeviceWeights { source: rows(at, 0), device: None, cpu: None, bytes: 8 };
        step.split.weights = Some(weights);
    });
    let stream = rig.stream;
    let mut texts = String::new();
    for step in &steps {
        texts += &refused(&mut rig, |cache| cache.admit_on_device(stream, step));
        texts += "\n";
    }
    // Where the engine's memory lies is another place each time.
    for past in 1..4 {
        let address = at + past;
        texts = texts.replace(&format!("{address:#x}"), &format!("address + {past}"));
        texts = texts.replace(&address.to_string(), &format!("address + {past}"));
    }
    assert_snapshot!(texts, @r"
    layer 1: a step token is for the host alone
    layer 1: a verify step is for the host alone
    layer 1: a step in parts is for the host alone
    no layer 3: the cache has 3 layers
    2147483650 routes in one launch; 2147483648 is the most
    18446744073709551615 routes in one launch; 2147483648 is the most
    the id of an absent route is 5, an expert of 0..6
    routes: no address
    routes: address + 2 is no multiple of 4 bytes
    routes: a stride of 6 bytes is no multiple of 4
    routes: a stride of 4 bytes is less than the row's 8
    routes: a stride of 8 bytes is less than the row's 16
    slots: address + 1 is no multiple of 4 bytes
    the map: address + 3 is no multiple of 4 bytes
    the value for the CPU: 1 is one of the pool's 5 slots
    the value for absent routes: 0 is one of the pool's 5 slots
    the value for absent routes: 1099511627776 does not fit into 4 bytes
    the value for no CPU expert: 2 is one of the layer's 6 experts
    weights of 8 bytes; 2 and 4 are known
    ");
    rig.check_reading("nothing has changed");
    rig.upload(&[1, 2, 3, 1], Form { per_row: 2, ..Form::default() });
    rig.cache.admit_on_device(stream, &good).unwrap();
    rig.on_host(plain, &[1, 2, 3, 1]).unwrap();
    rig.leave("at the end");
    rig.end();
}

#[test]
fn staging_on_the_device_wants_buffers_and_a_layer() {
    let mut rig = Rig::new(8, geometry());
    let stream = rig.stream;
    rig.enter();
    let mut texts = vec![
        refused(&mut rig, |cache| cache.begin_chunk_on_device(stream)),
        refused(&mut rig, |cache| cache.stage_on_device(stream, layer(0), 0)),
        refused(&mut rig, |cache| cache.materialize_on_device(stream, layer(0), 0)),
        refused(&mut rig, |cache| cache.end_chunk_on_device(stream)),
    ];
    rig.leave("left");
    let staging = Staging::dedicated(rig.cache.geometry(), 1);
    rig.cache.set_staging(staging, 0).unwrap();
    rig.enter();
    texts.extend([
        refused(&mut rig, |cache| cache.stage_on_device(stream, layer(0), 1)),
        refused(&mut rig, |cache| cache.materialize_on_device(stream, layer(0), 2)),
        refused(&mut rig, |cache| cache.stage_on_device(stream, layer(3), 0)),
        refused(&mut rig, |cache| cache.materialize_on_device(stream, layer(4), 0)),
    ]);
    assert_snapshot!(texts.join("\n"), @r"
    there are no staging buffers on the device
    there are no staging buffers on the device
    there are no staging buffers on the device
    there are no staging buffers on the device
    no staging buffer 1: there are 1
    no staging buffer 2: there are 1
    no layer 3: the cache has 3 layers
    no layer 4: the cache has 3 layers
    ");
    rig.leave("at the end");
    rig.end();
}
