//! The residency on its way to the device and back while calls of the driver fail: it is always on one side, whole.

use ftcache_policy::{Eviction, PoolId};
use ftcache_residency::Keep;
use ftcache_transfer::{Device, DeviceModeError, DeviceTables, Fault, FaultReport};

use crate::cuda_world::CudaWorld;
use crate::graphs::Graph;
use crate::raw::Engine;
use crate::rig::{Form, Rig};
use crate::states::{decode, empty, layer, one_pool, ruled, span};
use crate::support::{code, held, seeded};

const PLAIN: Form = Form::PLAIN;
const UNKNOWN: i32 = 999;

/// Rules of which one has no scores, and one has all arrays that there are.
const RULES: [Eviction; 2] = [Eviction::Lru, Eviction::Learned];

fn rig(seed: u64, rule: Eviction) -> Rig {
    let cache = ruled(rule, empty(16, &[0, 1, 0], &[12, 5]));
    let mut rig = Rig::in_world(CudaWorld::emulated(seeded(seed)), cache);
    rig.tables.set_threads(64).unwrap();
    for of in 0..3 {
        rig.step(decode(of), &span(of, 4), PLAIN, "residents");
    }
    rig
}

fn calls(rig: &Rig, name: &str) -> u64 {
    rig.world.emulated.as_ref().unwrap().calls(name)
}

fn fail(rig: &Rig, name: &str, after: u64) {
    rig.world.emulated.as_ref().unwrap().fail_call(name, after, UNKNOWN);
}

#[track_caller]
fn failed(error: DeviceModeError, at: &str) {
    let DeviceModeError::Device(error) = error else { panic!("{at}: {error}") };
    assert_eq!(code(&error), UNKNOWN, "{at}");
}

#[test]
fn a_residency_that_does_not_reach_the_device_is_with_the_host() {
    let names = ["cuMemcpyHtoD_v2", "cuCtxSynchronize", "cuStreamSynchronize"];
    for (rule, name) in RULES.into_iter().flat_map(|rule| names.map(|name| (rule, name))) {
        // As many calls as one that works makes.
        let mut whole = rig(1, rule);
        whole.tables.disengage(&mut whole.device, &mut whole.twin).unwrap();
        let before = calls(&whole, name);
        whole.tables.engage(&mut whole.device, &whole.twin).unwrap();
        let count = calls(&whole, name) - before;
        assert!(count > 0, "{name}");
        whole.end();
        for after in 0..count {
            let (mut rig, at) = (rig(after, rule), format!("{rule}: {name}, {after}"));
            rig.tables.disengage(&mut rig.device, &mut rig.twin).unwrap();
            fail(&rig, name, after);
            failed(rig.tables.engage(&mut rig.device, &rig.twin).unwrap_err(), &at);
            assert!(!rig.tables.is_engaged(), "{at}");
            // The host goes on, and then it works.
            for cache in [&mut rig.twin, &mut rig.host] {
                let experts = [9, 10].map(ftcache_policy::ExpertId::new);
                cache.ensure(layer(1), &experts, &mut rig.plan).unwrap().commit();
            }
            rig.tables.engage(&mut rig.device, &rig.twin).unwrap();
            rig.step(decode(0), &[14, 15, 3], PLAIN, &at);
            rig.compare(&at);
            rig.end();
        }
    }
}

#[test]
fn a_graph_is_refused_over_tables_that_are_not_all_there() {
    let name = "cuMemcpyHtoD_v2";
    let mut count = 1;
    let mut after = 0;
    while after < count {
        let mut rig = rig(after, Eviction::Learned);
        let engine = Engine::new(&rig.world);
        let layout = rig.layout(0, 3, PLAIN);
        let told = rig.told(decode(1), &layout);
        let graph = Graph::captured(&engine, &mut rig, |rig| {
            rig.tables.admit(&mut rig.device, rig.stream, &rig.twin, &told).unwrap();
        });
        rig.tables.disengage(&mut rig.device, &mut rig.twin).unwrap();
        fail(&rig, name, after);
        rig.tables.engage(&mut rig.device, &rig.twin).unwrap_err();
        let image = layout.image(&[1, 2, 3]);
        rig.write(0, &image);
        graph.launch(rig.stream);
        let found = rig.read(0, image.len() as u64);
        assert_eq!(layout.answer(decode(1), &image, &found).slots, [-1; 3], "after {after} writes");
        let first = Fault::WithHost { layer: layer(1) };
        assert_eq!(rig.tables.take_faults(), Some(FaultReport { first, step: 3, count: 1 }), "after {after} writes");
        // As many writes as there are when none fails.
        let before = calls(&rig, name);
        rig.tables.engage(&mut rig.device, &rig.twin).unwrap();
        count = calls(&rig, name) - before;
        drop(graph);
        rig.compare(&format!("after {after} writes"));
        drop(engine);
        rig.end();
        after += 1;
    }
    assert!(count > 20, "{count} writes");
}

#[test]
fn a_residency_that_does_not_come_back_is_on_the_device_still() {
    let names = ["cuMemcpyDtoH_v2", "cuMemcpyHtoD_v2", "cuCtxSynchronize"];
    for (rule, name) in RULES.into_iter().flat_map(|rule| names.map(|name| (rule, name))) {
        let mut whole = rig(2, rule);
        let before = calls(&whole, name);
        whole.tables.disengage(&mut whole.device, &mut whole.twin).unwrap();
        let count = calls(&whole, name) - before;
        assert!(count > 0, "{name}");
        whole.end();
        for after in 0..count {
            let (mut rig, at) = (rig(after, rule), format!("{rule}: {name}, {after}"));
            fail(&rig, name, after);
            let twin = rig.twin.state().unwrap();
            failed(rig.tables.disengage(&mut rig.device, &mut rig.twin).unwrap_err(), &at);
            assert!(rig.tables.is_engaged(), "{at}");
            assert_eq!(rig.twin.state().unwrap(), twin, "{at}: the cache is as it was");
            // Launches are good as before, and then it works.
            rig.step(decode(2), &[14, 15, 3], PLAIN, &at);
            rig.compare(&at);
            rig.end();
        }
    }
}

#[test]
fn tables_that_do_not_fit_leave_the_residency_with_the_host() {
    let mut rig = Rig::in_world(CudaWorld::emulated(seeded(3)), one_pool(2, 16, 8));
    rig.step(decode(0), &[1, 2, 3], PLAIN, "residents");
    rig.tables.disengage(&mut rig.device, &mut rig.twin).unwrap();
    let pools = [Some(PoolId::new(0)); 2];
    for cache in [&mut rig.twin, &mut rig.host] {
        *cache = cache.rebuilt_with_pools(&pools, &[20], Keep::WhatFits).unwrap().0;
    }
    for _ in 0..3 {
        rig.world.emulated.as_ref().unwrap().fail_call("cuMemAlloc_v2", 0, 2);
        let refused = rig.tables.engage(&mut rig.device, &rig.twin).unwrap_err();
        assert!(refused.to_string().contains("device memory wanted"), "{refused}");
        assert!(!rig.tables.is_engaged());
    }
    rig.tables.engage(&mut rig.device, &rig.twin).unwrap();
    rig.step(decode(1), &span(0, 16), PLAIN, "goes on");
    rig.compare("after a lack of memory");
    rig.end();
}

#[test]
fn tables_that_cannot_be_made_leave_nothing() {
    let names = ["cuMemHostRegister_v2", "cuMemHostGetDevicePointer_v2", "cuMemAlloc_v2", "cuMemcpyHtoD_v2"];
    for name in names {
        let world = CudaWorld::emulated(seeded(4));
        let mut device = world.device();
        device.prepare_kernels().unwrap();
        let emulated = world.emulated.as_ref().unwrap();
        let before = held(emulated);
        emulated.fail_call(name, 0, UNKNOWN);
        let refused = DeviceTables::new(&mut device, 3).unwrap_err();
        assert_eq!(code(&refused), UNKNOWN, "{name}");
        assert_eq!(held(emulated), before, "{name}");
        let mut tables = DeviceTables::new(&mut device, 3).unwrap();
        tables.free(&mut device).unwrap();
        assert_eq!(held(emulated), before, "{name}");
        drop(device);
        world.check_gone();
    }
}

#[test]
fn tables_take_as_much_memory_as_they_say() {
    let shapes = [(1, 1), (16, 9), (300, 70), (1024, 5), (1025, 5), (3000, 2000)];
    for (rule, (experts, slots)) in Eviction::ALL.into_iter().flat_map(|rule| shapes.map(|shape| (rule, shape))) {
        let world = CudaWorld::emulated(seeded(5));
        let mut cache = ruled(rule, one_pool(2, experts, slots));
        let mut device = world.device();
        device.prepare_kernels().unwrap();
        let emulated = world.emulated.as_ref().unwrap();
        let before = emulated.counts().allocated_bytes;
        let mut tables = DeviceTables::new(&mut device, 2).unwrap();
        tables.engage(&mut device, &cache).unwrap();
        let taken = emulated.counts().allocated_bytes - before;
        assert_eq!(taken, DeviceTables::table_bytes(&cache), "{rule}: {experts} experts, {slots} slots");
        // Again and again it is the same memory.
        for _ in 0..3 {
            tables.disengage(&mut device, &mut cache).unwrap();
            tables.engage(&mut device, &cache).unwrap();
        }
        assert_eq!(emulated.counts().allocated_bytes - before, taken);
        tables.free(&mut device).unwrap();
        drop(device);
        world.check_gone();
    }
}
