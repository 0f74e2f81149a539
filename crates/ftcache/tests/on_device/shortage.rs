//! A device that has too little: memory, registrations, kernels, slots; and one that is lost.

use std::collections::BTreeSet;
use std::sync::Arc;

use ftcache::policy::{Admission, table_bytes};
use ftcache::{
    Budget, Cache, Constraints, DeviceError, DeviceModeError, Error, Eviction, Geometry, Keep, RebuildError, Staging,
    Step,
};
use ftcache_cuda_emu::client::Config;
use ftcache_testkit::Rng;
use insta::assert_snapshot;

use crate::cuda_world::CudaWorld;
use crate::engine::ok;
use crate::graphs::tokens;
use crate::probe::Probe;
use crate::rig::{Form, Rig, Rows, few, layer, world};
use crate::shapes::{self, LAYOUTS};
use crate::token::{Shape, Token};

fn geometry(slots: u64) -> Geometry {
    let model = shapes::model(5, 2, &[LAYOUTS[0], LAYOUTS[2], LAYOUTS[0]]);
    Geometry::new(model, Constraints::new(Budget::Slots(slots))).unwrap()
}

/// A step on the host, and then some in device mode.
#[track_caller]
fn goes_on(rig: &mut Rig, at: &str) {
    rig.host_step(layer(0), &[1, 2], at);
    rig.check_bytes(at);
    rig.enter();
    rig.step(layer(1), &[3, 4], Form::default(), at);
    rig.step(layer(0), &[3, 1], Form::default(), at);
    rig.check_bytes(at);
    rig.leave(at);
}

#[test]
fn device_memory_that_is_too_small_for_the_tables_leaves_the_residency_with_the_host() {
    let mut rig = Rig::new(1, geometry(15));
    let staging = Staging::dedicated(rig.twin.geometry(), 2);
    rig.cache.set_staging(staging.clone(), 0).unwrap();
    rig.twin.set_staging(staging, 0).unwrap();
    let whole = 1 << 24;
    let before = rig.emulated().counts();
    // Room for some of what there is to be, and not for all of it.
    let (mut wanted, mut text) = (BTreeSet::new(), String::new());
    for room in [0, 64, 500, 4000, 5000] {
        rig.emulated().set_memory_bytes(before.allocated_bytes + room);
        let error = rig.cache.enter_device_mode(few()).unwrap_err();
        let Error::DeviceMode(DeviceModeError::Device(DeviceError::OutOfMemory { wanted_bytes, free_bytes })) = error
        else {
            panic!("{room} bytes: {error}");
        };
        assert!(wanted_bytes > free_bytes, "{room} bytes: {error}");
        wanted.insert(wanted_bytes);
        text = error.to_string().replace(&wanted_bytes.to_string(), "N").replace(&free_bytes.to_string(), "M");
        assert!(!rig.cache.is_in_device_mode());
        rig.host_step(layer(0), &[0, (room % 5) as i64], "while there is no memory");
    }
    assert_snapshot!(text, @"N bytes of device memory wanted; M are free");
    assert!(wanted.len() >= 4, "header, banks, staging and tables in turn: {wanted:?}");
    rig.emulated().set_memory_bytes(whole);
    goes_on(&mut rig, "with memory again");
    rig.end();
}

#[test]
fn device_mode_takes_what_a_plan_sets_aside_for_it() {
    for seed in 0..80 {
        let mut rng = Rng::new(seed);
        let mut rig = Rig::new(seed, shapes::geometry(&mut rng));
        let geometry = rig.twin.geometry().clone();
        let staging = match rng.below(3) {
            0 => None,
            1 => Some(Staging::dedicated(&geometry, 1 + rng.below(2) as u32)),
            _ => Staging::borrowed(&geometry).ok(),
        };
        if let Some(staging) = &staging {
            rig.cache.set_staging(staging.clone(), 0).unwrap();
        }
        let rule = shapes::pick(&mut rng, &Eviction::ALL);
        rig.cache.set_eviction(rule).unwrap();
        let before = rig.emulated().counts().allocated_bytes;
        rig.enter();
        let taken = rig.emulated().counts().allocated_bytes - before;
        let planned = table_bytes(&geometry, staging.as_ref(), Admission::Device, rule);
        assert_eq!(taken, planned, "seed {seed}: {rule}, {staging:?}");
        assert_eq!(table_bytes(&geometry, staging.as_ref(), Admission::Host, rule), 0);
        rig.cache.leave_device_mode().unwrap();
        rig.end();
    }
}

#[test]
fn a_cache_that_could_not_enter_leaves_nothing_behind_when_it_goes() {
    for room in [0, 500, 1000, 3000] {
        let mut rig = Rig::new(room, geometry(15));
        rig.emulated().set_memory_bytes(rig.emulated().counts().allocated_bytes + room);
        rig.cache.enter_device_mode(few()).unwrap_err();
        rig.end();
    }
    for (name, count) in
        [("cuMemHostRegister_v2", 1), ("cuMemAlloc_v2", 3), ("cuMemcpyHtoD_v2", 12), ("cuModuleLoadData", 1)]
    {
        for after in 0..count {
            let mut rig = Rig::new(after, geometry(15));
            rig.emulated().fail_call(name, after, 999);
            rig.cache.enter_device_mode(few()).unwrap_err();
            rig.end();
        }
    }
}

/// The device goes on when the cache goes: what device mode took is given back by the cache itself.
#[test]
fn a_cache_that_goes_gives_back_what_device_mode_took() {
    for fails in [false, true] {
        let world = world(6);
        let rows = Rows::new(geometry(15).model(), 0);
        let mut device = world.device();
        rows.pin(&mut device);
        let probe = Probe::new(Box::new(device));
        let emulated = world.emulated.as_ref().expect("it is emulated");
        let held = || (emulated.counts().allocations, emulated.counts().registrations);
        let before = held();
        let mut cache = Cache::new(geometry(15), probe.clone()).unwrap();
        rows.attach(&mut cache);
        let staging = Staging::dedicated(cache.geometry(), 2);
        cache.set_staging(staging, 0).unwrap();
        let with_slots = held();
        if fails {
            emulated.set_memory_bytes(emulated.counts().allocated_bytes + 5000);
            cache.enter_device_mode(few()).unwrap_err();
        } else {
            cache.enter_device_mode(few()).unwrap();
            // Header, banks, staging, tables; and the pages.
            assert_eq!(held(), (with_slots.0 + 4, with_slots.1 + 1));
        }
        drop(cache);
        assert_eq!(held(), before);
        drop(probe);
        drop(rows);
        world.check_gone();
    }
}

#[test]
fn tables_that_find_no_room_behind_a_rebuild_leave_old_graphs_stale() {
    let mut rig = Rig::new(2, geometry(9));
    rig.enter();
    let steps: Vec<Step> = rig.model().layer_ids().map(Step::new).collect();
    let mut token = Token::capture(&mut rig, &steps, Shape { reads: false, ..Shape::of(2) });
    rig.leave("left");
    rig.cache.rebuild(geometry(15), Keep::WhatFits, u64::MAX).unwrap();
    rig.twin.rebuild(geometry(15), Keep::WhatFits, u64::MAX).unwrap();
    rig.emulated().set_memory_bytes(rig.emulated().counts().allocated_bytes - 1);
    rig.cache.enter_device_mode(few()).unwrap_err();
    let answers = token.launch(&mut rig, &vec![vec![1, 2]; 3]);
    assert!(answers.iter().flatten().all(|&slot| slot == -1), "{answers:?}");
    assert!(rig.cache.check_device().unwrap_err().to_string().contains("with the host"));
    rig.emulated().set_memory_bytes(1 << 24);
    rig.enter();
    let answers = token.launch(&mut rig, &vec![vec![1, 2]; 3]);
    assert!(answers.iter().flatten().all(|&slot| slot == -1), "{answers:?}");
    assert!(rig.cache.check_device().unwrap_err().to_string().contains("captured in generation 1"));
    token.capture_anew(&mut rig);
    let routes = tokens(&rig, &mut Rng::new(2), &steps, 2, 4);
    token.replay(&mut rig, &routes, "anew");
    rig.leave("at the end");
    rig.end();
}

#[test]
fn registrations_that_are_used_up_are_told_of() {
    // The rows take all that may be registered.
    let bytes = Rig::new(0, geometry(9)).emulated().counts().registered_bytes;
    let config = Config { seed: 3, memory_bytes: 1 << 24, register_limit_bytes: Some(bytes), ..Config::default() };
    let mut rig = Rig::on(Arc::new(CudaWorld::emulated(config)), geometry(9), 0);
    let told = rig.cache.enter_device_mode(few()).unwrap_err();
    assert_snapshot!(told, @"register of 4096 bytes: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory");
    rig.host_step(layer(0), &[1, 2], "on the host");
    let counts = rig.emulated().counts();
    assert_eq!((counts.registered_bytes, counts.registrations), (bytes, 1));
    rig.end();
}

#[test]
fn a_driver_that_has_no_kernels_for_the_device_says_why() {
    // Compute capability 7.5.
    let attributes = vec![(75, 7), (76, 5)];
    let config = Config { seed: 4, memory_bytes: 1 << 24, attributes, ..Config::default() };
    let mut rig = Rig::on(Arc::new(CudaWorld::emulated(config)), geometry(9), 0);
    let told = rig.cache.enter_device_mode(few()).unwrap_err();
    let told = told.to_string().replace(&format!("device {}", rig.emulated().ordinal()), "device N");
    assert_snapshot!(told, @"no kernels on ftcache emulated device N (compute capability 7.5): 8.0 is needed");
    rig.host_step(layer(0), &[1, 2], "on the host");
    rig.end();
}

#[test]
fn a_cache_without_slots_has_no_device_mode_until_it_has_some() {
    let mut rig = Rig::new(5, geometry(9));
    rig.enter();
    let steps: Vec<Step> = rig.model().layer_ids().map(Step::new).collect();
    let token = Token::capture(&mut rig, &steps, Shape { reads: false, ..Shape::of(2) });
    rig.leave("left");
    rig.emulated().set_memory_bytes(1);
    let told = rig.cache.rebuild(geometry(15), Keep::Nothing, 0).unwrap_err();
    assert!(matches!(told, Error::Rebuild(RebuildError::Emptied(_))), "{told}");
    let told = rig.cache.enter_device_mode(few()).unwrap_err();
    assert!(matches!(told, Error::Unavailable(_)), "{told}");
    rig.emulated().set_memory_bytes(1 << 24);
    rig.cache.rebuild(geometry(9), Keep::Nothing, 0).unwrap();
    rig.twin.rebuild(geometry(9), Keep::Nothing, 0).unwrap();
    rig.enter();
    let answers = token.launch(&mut rig, &vec![vec![1, 2]; 3]);
    assert!(answers.iter().flatten().all(|&slot| slot == -1), "{answers:?}");
    rig.cache.check_device().unwrap_err();
    rig.step(layer(1), &[3, 4], Form::default(), "with slots");
    rig.check_bytes("with slots");
    rig.leave("at the end");
    rig.end();
}

/// A copy of the engine's fails when it is its turn, and with it the context.
#[test]
fn a_device_that_is_lost_ends_every_call_in_an_error() {
    for seed in 0..12 {
        let mut rig = Rig::new(seed, geometry(9));
        rig.enter();
        rig.step(layer(0), &[1, 2], Form::default(), "before");
        let told = rig.told(Step::new(layer(0)), 2, Form::default());
        rig.emulated().fail_late(seed % 2, 700);
        rig.upload(&[3, 4], Form::default());
        let stream = rig.stream;
        let mut told_of = Vec::new();
        let mut call = |outcome: Result<(), Error>| told_of.extend(outcome.err().map(|error| error.to_string()));
        call(rig.cache.admit_on_device(stream, &told));
        call(rig.cache.gather_on_device(stream, layer(0)));
        {
            let _entered = rig.engine.enter();
            let (target, source) = (rig.routes.address + 512, rig.routes.address);
            // Without a wait this may be known or not.
            let _ = (rig.engine.raw.cuMemcpyDtoDAsync_v2)(target, source, 8, stream.raw());
            assert_eq!((rig.engine.raw.cuStreamSynchronize)(stream.raw()), 700, "seed {seed}");
        }
        let before = told_of.len();
        let mut call = |outcome: Result<(), Error>| told_of.extend(outcome.err().map(|error| error.to_string()));
        call(rig.cache.admit_on_device(stream, &told));
        call(rig.cache.gather_on_device(stream, layer(0)));
        call(rig.cache.reset_on_device(stream));
        call(rig.cache.request_reading(stream));
        call(rig.cache.plan_on_device(layer(0)).map(|_| ()));
        call(rig.cache.check_device());
        call(rig.cache.leave_device_mode());
        call(rig.cache.synchronize_all());
        assert_eq!(told_of.len() - before, 8, "seed {seed}: {told_of:?}");
        assert!(
            told_of.iter().all(|told| told.contains("CUDA_ERROR_ILLEGAL_ADDRESS (700)")),
            "seed {seed}: {told_of:?}"
        );
        // What is told of the past can be read still.
        rig.cache.reading().unwrap();
        assert!(rig.cache.is_in_device_mode());
        rig.engine.is_lost();
        rig.end();
    }
}

#[test]
fn a_device_that_is_lost_on_the_way_into_device_mode_or_out_of_it() {
    let mut lost = 0;
    for after in 0..24 {
        let world = world(after);
        let mut rig = Rig::on(world, geometry(9), 0);
        rig.emulated().fail_late(after, 700);
        let mut outcome = rig.cache.enter_device_mode(few());
        if outcome.is_ok() {
            outcome = rig.cache.leave_device_mode();
        }
        if outcome.is_ok() {
            outcome = rig.cache.enter_device_mode(few());
        }
        if let Err(error) = outcome {
            assert!(error.to_string().contains("(700)"), "after {after}: {error}");
            lost += 1;
            rig.cache.enter_device_mode(few()).unwrap_err();
            rig.cache.leave_device_mode().unwrap_err();
            rig.engine.is_lost();
        }
        rig.end();
    }
    assert!(lost >= 6, "{lost} of 24 were lost");
}

/// The engine's graph fails in the middle.
#[test]
fn a_graph_that_fails_loses_the_device_and_nothing_hangs() {
    let mut rig = Rig::new(9, geometry(9));
    rig.enter();
    let steps: Vec<Step> = rig.model().layer_ids().map(Step::new).collect();
    let token = Token::room(&rig, &steps, Shape { reads: false, ..Shape::of(2) });
    rig.engine.begin_capture(rig.stream);
    token.enqueue(&mut rig);
    {
        let _entered = rig.engine.enter();
        ok((rig.engine.raw.cuMemsetD8Async)(token.answers.address, 0, 4, rig.stream.raw()));
    }
    let exec = rig.engine.end_capture(rig.stream);
    rig.emulated().fail_late(0, 719);
    rig.engine.launch(exec, rig.stream);
    let told = rig.cache.synchronize(rig.stream).unwrap_err();
    assert!(told.to_string().contains("(719)"), "{told}");
    rig.cache.leave_device_mode().unwrap_err();
    rig.engine.is_lost();
    rig.end();
}
