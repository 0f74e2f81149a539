//! Launches in graphs: captured once, launched as often as there are tokens, and refused when they come too late.
//!
//! *Unsafe*, relying on one promise: routes on the host stay in place until the device has been waited for.

use ftcache_policy::{Eviction, FetchRule, PoolId};
use ftcache_residency::{Cache, Step};
use ftcache_testkit::Rng;
use ftcache_transfer::{Device, DeviceModeError, DeviceSpan, DeviceStep, Fault, FaultReport, RowCopy, Stream};

use crate::cuda_world::CudaWorld;
use crate::raw::{Engine, ok};
use crate::rig::{ABSENT, Form, Layout, Rig};
use crate::states::{SCORED, decode, empty, fraction, hybrid, layer, one_pool, prefill, ruled, span};
use crate::support::{Pages, copy_rows, line, register};

const PLAIN: Form = Form::PLAIN;

/// A graph that can be launched, until this is dropped.
pub(crate) struct Graph<'a> {
    engine: &'a Engine,
    graph: u64,
    exec: u64,
}

impl<'a> Graph<'a> {
    /// What is enqueued on the rig's stream while this runs.
    pub(crate) fn captured(engine: &'a Engine, rig: &mut Rig, enqueue: impl FnOnce(&mut Rig)) -> Self {
        let (stream, raw) = (rig.stream.raw(), engine.raw);
        ok((raw.cuStreamBeginCapture_v2)(stream, 0));
        enqueue(rig);
        let (mut graph, mut exec) = (0, 0);
        ok((raw.cuStreamEndCapture)(stream, &mut graph));
        ok((raw.cuGraphInstantiateWithFlags)(&mut exec, graph, 0));
        Self { engine, graph, exec }
    }

    /// Enqueues it.
    pub(crate) fn launch(&self, stream: Stream) {
        ok((self.engine.raw.cuGraphLaunch)(self.exec, stream.raw()));
    }
}

impl Drop for Graph<'_> {
    fn drop(&mut self) {
        let codes = [(self.engine.raw.cuGraphExecDestroy)(self.exec), (self.engine.raw.cuGraphDestroy)(self.graph)];
        if !std::thread::panicking() {
            assert_eq!(codes, [0, 0]);
        }
    }
}

/// A rig on whose stream can be captured, and the engine that does it.
pub(crate) fn start(seed: u64, cache: Cache) -> (Engine, Rig) {
    let world = CudaWorld::new(seed);
    let engine = Engine::new(&world);
    let mut rig = Rig::in_world(world, cache);
    rig.tables.set_threads(64).unwrap();
    (engine, rig)
}

pub(crate) fn end(engine: Engine, rig: Rig) {
    drop(engine);
    rig.end();
}

/// Admits what lies in a layout: one launch.
pub(crate) fn admit(rig: &mut Rig, step: Step, layout: &Layout) {
    let told = rig.told(step, layout);
    rig.tables.admit(&mut rig.device, rig.stream, &rig.twin, &told).unwrap();
}

fn routes(rng: &mut Rng, count: usize, experts: u64) -> Vec<i64> {
    (0..count).map(|_| if rng.chance(1, 20) { ABSENT } else { rng.below(experts) as i64 }).collect()
}

/// Writes routes, launches, reads the answer, all in the order of the stream, and waits for it. Returns the answer.
#[track_caller]
pub(crate) fn replay(rig: &mut Rig, graph: &Graph<'_>, layout: &Layout, step: Step, ids: &[i64]) -> crate::rig::Answer {
    let image = layout.image(ids);
    rig.write(layout.base, &image);
    graph.launch(rig.stream);
    let after = rig.read(layout.base, image.len() as u64);
    layout.answer(step, &image, &after)
}

/// A hundred tokens are enqueued, each with routes of its own in the same place, before anything is waited for.
fn many(rule: Eviction, seed: u64, step: Step, form: Form) {
    const TOKENS: usize = 100;
    let (engine, mut rig) = start(seed, ruled(rule, one_pool(2, 24, 20)));
    let mut rng = Rng::new(seed);
    let layout = rig.layout(0, 12, form);
    let bytes = layout.end() as usize;
    rig.room((TOKENS as u64 + 1) * bytes as u64);
    rig.step(decode(1), &span(0, 24)[..18], PLAIN, "residents of another layer");
    let graph = Graph::captured(&engine, &mut rig, |rig| admit(rig, step, &layout));
    let tokens: Vec<Vec<i64>> = (0..TOKENS).map(|_| routes(&mut rng, 12, 24)).collect();
    let mut host = Pages::new(TOKENS * bytes);
    let images: Vec<u8> = tokens.iter().flat_map(|ids| layout.image(ids)).collect();
    host[..images.len()].copy_from_slice(&images);
    register(&mut rig.device, &host).unwrap();
    for token in 0..TOKENS {
        let (row, memory) = (&host[token * bytes..][..bytes], rig.memory);
        copy_rows(&mut rig.device, rig.stream, &line(row, memory, 0)).unwrap();
        graph.launch(rig.stream);
        let source = DeviceSpan { memory, offset: 0, stride: bytes as u64 }.into();
        let target = DeviceSpan { memory, offset: (token as u64 + 1) * bytes as u64, stride: bytes as u64 };
        let copy = RowCopy { source, target, row_bytes: bytes as u64, row_count: 1 };
        copy_rows(&mut rig.device, rig.stream, &copy).unwrap();
    }
    let all = rig.read(bytes as u64, (TOKENS * bytes) as u64);
    for (token, ids) in tokens.iter().enumerate() {
        let after = &all[token * bytes..][..bytes];
        let answer = layout.answer(step, &images[token * bytes..][..bytes], after);
        let expected = rig.expected(step, ids, form).unwrap();
        assert_eq!(answer, expected, "{rule} seed {seed}, token {token}: {}", rig.plan);
    }
    assert_eq!(rig.tables.take_faults(), None);
    drop(graph);
    rig.compare(&format!("{rule} seed {seed}"));
    rig.device.unregister(host.as_ptr()).unwrap();
    end(engine, rig);
}

#[test]
fn an_admission_that_was_captured_once_admits_a_hundred_tokens() {
    for seed in 0..3 {
        many(Eviction::Lru, seed, decode(0), Form { per_row: 4, gap: 3, ..PLAIN });
        many(Eviction::Lru, 10 + seed, decode(0), Form { map: true, in_place: false, ..PLAIN });
        let form = Form { split: true, weight_bytes: 2, map: true, ..PLAIN };
        many(Eviction::Lru, 20 + seed, hybrid(0, FetchRule::Carry(fraction(0.4))), form);
        many(Eviction::Lru, 30 + seed, prefill(0), PLAIN);
    }
    for (seed, rule) in (40..).zip(SCORED) {
        let split = Form { split: true, weight_bytes: 2, map: true, ..PLAIN };
        many(rule, seed, decode(0), PLAIN);
        many(rule, seed, hybrid(0, FetchRule::Carry(fraction(0.4))), split);
    }
}

#[test]
fn layers_and_a_reading_stand_in_one_graph() {
    for seed in 0..8 {
        let rule = Eviction::ALL[seed as usize % 4];
        let (engine, mut rig) = start(seed, ruled(rule, empty(16, &[0, 1, 0], &[10, 6])));
        let mut rng = Rng::new(seed);
        let form = Form { split: true, weight_bytes: 4, ..PLAIN };
        let steps = [decode(0), hybrid(1, FetchRule::MinWait(fraction(0.5))), decode(2)];
        let mut base = 0;
        let layouts = steps.map(|_| {
            let layout = rig.layout(base, 5, form);
            base = layout.end().next_multiple_of(256);
            layout
        });
        let graph = Graph::captured(&engine, &mut rig, |rig| {
            for (step, layout) in steps.iter().zip(&layouts) {
                admit(rig, *step, layout);
            }
            rig.tables.request_reading(&mut rig.device, rig.stream).unwrap();
        });
        assert_eq!(rig.tables.reading(), None, "captured, and not done");
        for token in 0..20 {
            let ids = steps.map(|_| routes(&mut rng, 5, 16));
            let images: Vec<Vec<u8>> = layouts.iter().zip(&ids).map(|(layout, ids)| layout.image(ids)).collect();
            layouts.iter().zip(&images).for_each(|(layout, image)| rig.write(layout.base, image));
            graph.launch(rig.stream);
            rig.device.synchronize(rig.stream).unwrap();
            for (at, step) in steps.iter().enumerate() {
                let after = rig.read(layouts[at].base, images[at].len() as u64);
                let answer = layouts[at].answer(*step, &images[at], &after);
                let expected = rig.expected(*step, &ids[at], form).unwrap();
                assert_eq!(answer, expected, "seed {seed}, token {token}: {}", rig.plan);
                let plan = rig.tables.plan(&mut rig.device, step.layer).unwrap();
                assert_eq!(plan.copies, rig.plan.copies(), "seed {seed}, token {token}: {}", rig.plan);
            }
            let reading = rig.tables.reading().unwrap();
            assert_eq!((reading.step, reading.digest), (rig.host.step(), rig.host.digest()), "seed {seed}");
            assert_eq!(reading.generation, 1);
        }
        drop(graph);
        rig.compare(&format!("seed {seed}"));
        end(engine, rig);
    }
}

#[test]
fn launches_in_several_streams_of_a_graph_are_ordered_by_events_in_the_capture() {
    for seed in 0..10 {
        let (engine, mut rig) = start(seed, one_pool(2, 16, 8));
        let side = rig.device.create_stream().unwrap();
        let events = [(); 2].map(|()| rig.device.create_event().unwrap());
        let layouts = [rig.layout(0, 4, PLAIN), rig.layout(4096, 4, PLAIN)];
        let graph = Graph::captured(&engine, &mut rig, |rig| {
            // Layer 1 is admitted beside the first stream, and a reading behind both.
            admit(rig, decode(0), &layouts[0]);
            rig.device.record(events[0], rig.stream).unwrap();
            rig.device.wait(side, events[0]).unwrap();
            let told = rig.told(decode(1), &layouts[1]);
            rig.tables.admit(&mut rig.device, side, &rig.twin, &told).unwrap();
            // Memory that no launch has to do with.
            let apart = DeviceSpan { memory: rig.memory, offset: 8192, stride: 64 };
            rig.device.clear_rows(rig.stream, &apart, 64, 8).unwrap();
            rig.device.record(events[1], side).unwrap();
            rig.device.wait(rig.stream, events[1]).unwrap();
            rig.tables.request_reading(&mut rig.device, rig.stream).unwrap();
        });
        let mut rng = Rng::new(seed);
        for token in 0..10 {
            let ids = [routes(&mut rng, 4, 16), routes(&mut rng, 4, 16)];
            let images = [0, 1].map(|at| layouts[at].image(&ids[at]));
            (0..2).for_each(|at| rig.write(layouts[at].base, &images[at]));
            graph.launch(rig.stream);
            for at in 0..2 {
                let after = rig.read(layouts[at].base, images[at].len() as u64);
                let answer = layouts[at].answer(decode(at as u32), &images[at], &after);
                let expected = rig.expected(decode(at as u32), &ids[at], PLAIN).unwrap();
                assert_eq!(answer, expected, "seed {seed}, token {token}");
            }
            assert_eq!(rig.tables.reading().unwrap().digest, rig.host.digest(), "seed {seed}, token {token}");
        }
        drop(graph);
        events.into_iter().for_each(|event| rig.device.destroy_event(event));
        rig.device.destroy_stream(side);
        rig.compare(&format!("seed {seed}"));
        end(engine, rig);
    }
}

/// What the emulated driver is there for: launches over one cache that nobody has ordered.
#[test]
fn launches_in_two_streams_without_an_order_are_a_race() {
    for seed in 0..10 {
        let mut rig = Rig::in_world(CudaWorld::emulated(crate::support::seeded(seed)), one_pool(2, 16, 8));
        let side = rig.device.create_stream().unwrap();
        let layouts = [rig.layout(0, 4, PLAIN), rig.layout(4096, 4, PLAIN)];
        layouts.iter().for_each(|layout| rig.write(layout.base, &layout.image(&[1, 2, 3, 4])));
        admit(&mut rig, decode(0), &layouts[0]);
        let told = rig.told(decode(1), &layouts[1]);
        rig.tables.admit(&mut rig.device, side, &rig.twin, &told).unwrap();
        rig.device.synchronize_all().unwrap();
        let races = rig.world.emulated.as_ref().unwrap().races();
        assert!(!races.is_empty() && races[0].contains("ftcache_admit"), "seed {seed}: {races:?}");
        rig.device.destroy_stream(side);
        rig.end();
    }
}

// Too late.

/// Every launch over tables, of layer 0 where it has one.
fn everything(rig: &mut Rig, layouts: &[Layout; 2]) {
    admit(rig, decode(0), &layouts[0]);
    admit(rig, hybrid(0, FetchRule::UpTo(3)), &layouts[1]);
    rig.tables.withhold(&mut rig.device, rig.stream, PoolId::new(0), 3).unwrap();
    rig.tables.reset(&mut rig.device, rig.stream).unwrap();
    rig.tables.request_reading(&mut rig.device, rig.stream).unwrap();
}

const SPLIT: Form = Form { map: true, split: true, weight_bytes: 4, ..PLAIN };

/// Launches a graph of everything, which is refused, five times over.
#[track_caller]
fn refused(rig: &mut Rig, graph: &Graph<'_>, layouts: &[Layout; 2], wanted: Fault, at: &str) {
    let before = rig.tables.reading();
    let ids = [1, 2, 3, 9];
    let images = [0, 1].map(|at| layouts[at].image(&ids));
    (0..2).for_each(|at| rig.write(layouts[at].base, &images[at]));
    graph.launch(rig.stream);
    rig.device.synchronize(rig.stream).unwrap();
    let steps = [decode(0), hybrid(0, FetchRule::UpTo(3))];
    for which in 0..2 {
        let after = rig.read(layouts[which].base, images[which].len() as u64);
        let answer = layouts[which].answer(steps[which], &images[which], &after);
        assert_eq!((answer.slots, answer.map), (vec![-1; 4], vec![-1; 16]), "{at}");
        assert!(answer.cpu_ids.iter().all(|&id| id == -1), "{at}");
        let weights = answer.device_weights.iter().chain(&answer.cpu_weights);
        assert!(weights.into_iter().all(|&weight| weight == 0), "{at}");
    }
    let report = FaultReport { first: wanted, step: rig.host.step(), count: 5 };
    assert_eq!(rig.tables.take_faults(), Some(report), "{at}");
    assert_eq!(rig.tables.reading(), before, "{at}");
}

/// Other pools on both sides, while the residency is with the host.
fn rebuild(rig: &mut Rig, slots: u32) {
    let pools = vec![Some(PoolId::new(0)); rig.host.layer_count()];
    for cache in [&mut rig.twin, &mut rig.host] {
        let (rebuilt, _) = cache.rebuilt_with_pools(&pools, &[slots], ftcache_residency::Keep::WhatFits).unwrap();
        *cache = rebuilt;
    }
}

#[test]
fn a_graph_that_is_launched_after_a_rebuild_is_refused_and_touches_nothing() {
    for seed in 0..12 {
        let rule = Eviction::ALL[seed as usize % 4];
        let (engine, mut rig) = start(seed, ruled(rule, one_pool(2, 16, 8)));
        let layouts = [rig.layout(0, 4, SPLIT), rig.layout(4096, 4, SPLIT)];
        rig.step(decode(1), &[5, 6, 7], PLAIN, "residents");
        let graph = Graph::captured(&engine, &mut rig, |rig| everything(rig, &layouts));
        // Of the same size, so that only its generation tells; smaller; larger.
        for (number, slots) in (2..).zip([8, 5, 40]) {
            rig.tables.disengage(&mut rig.device, &mut rig.twin).unwrap();
            rebuild(&mut rig, slots);
            let with_host = Fault::WithHost { layer: layer(0) };
            refused(&mut rig, &graph, &layouts, with_host, &format!("seed {seed}: with the host"));
            rig.tables.engage(&mut rig.device, &rig.twin).unwrap();
            let stale = Fault::StaleGeneration { layer: layer(0), captured: 1, current: number };
            refused(&mut rig, &graph, &layouts, stale, &format!("seed {seed}: rebuilt with {slots} slots"));
            rig.compare(&format!("seed {seed}: {slots} slots"));
            rig.step(decode(0), &[5, 3, 4], PLAIN, &format!("seed {seed}: {slots} slots go on"));
        }
        drop(graph);
        // What is captured now is good.
        let graph = Graph::captured(&engine, &mut rig, |rig| admit(rig, decode(1), &layouts[0]));
        let answer = replay(&mut rig, &graph, &layouts[0], decode(1), &[8, 9, 8, ABSENT]);
        assert_eq!(answer, rig.expected(decode(1), &[8, 9, 8, ABSENT], SPLIT).unwrap());
        drop(graph);
        rig.compare(&format!("seed {seed}"));
        end(engine, rig);
    }
}

#[test]
fn a_graph_is_refused_while_the_residency_is_with_the_host_and_good_again_after() {
    for seed in 0..12 {
        let rule = Eviction::ALL[seed as usize % 4];
        let (engine, mut rig) = start(seed, ruled(rule, one_pool(2, 16, 8)));
        let (layout, all) = (rig.layout(0, 4, PLAIN), [rig.layout(4096, 4, SPLIT), rig.layout(8192, 4, SPLIT)]);
        let graph = Graph::captured(&engine, &mut rig, |rig| admit(rig, decode(0), &layout));
        let refuses = Graph::captured(&engine, &mut rig, |rig| everything(rig, &all));
        let mut rng = Rng::new(seed);
        for round in 0..3 {
            for token in 0..3 {
                let ids = routes(&mut rng, 4, 16);
                let answer = replay(&mut rig, &graph, &layout, decode(0), &ids);
                let expected = rig.expected(decode(0), &ids, PLAIN).unwrap();
                assert_eq!(answer, expected, "seed {seed}, round {round}, token {token}");
            }
            rig.tables.disengage(&mut rig.device, &mut rig.twin).unwrap();
            refused(&mut rig, &refuses, &all, Fault::WithHost { layer: layer(0) }, &format!("seed {seed}"));
            // The host decides meanwhile.
            let experts = [3, 12].map(ftcache_policy::ExpertId::new);
            for cache in [&mut rig.twin, &mut rig.host] {
                cache.ensure(layer(1), &experts, &mut rig.plan).unwrap().commit();
            }
            rig.tables.engage(&mut rig.device, &rig.twin).unwrap();
        }
        drop((graph, refuses));
        rig.compare(&format!("seed {seed}"));
        end(engine, rig);
    }
}

// What an admission asks of the driver.

#[test]
fn every_call_is_one_launch_and_nothing_else() {
    let mut rig = Rig::in_world(CudaWorld::emulated(crate::support::seeded(1)), one_pool(2, 16, 8));
    let layout = rig.layout(0, 4, SPLIT);
    rig.write(0, &layout.image(&[4, 7, 4, 9]));
    let asked = |rig: &Rig| {
        let emulated = rig.world.emulated.as_ref().unwrap();
        // What is of no device is not counted: that the context is given back, and the mode of captures.
        let calls = ["cuLaunchKernel", "cuCtxPushCurrent_v2"].map(|name| emulated.calls(name));
        let held = crate::support::held(emulated);
        (calls, emulated.calls_total(), emulated.blocking_calls(), held)
    };
    type Call = fn(&mut Rig, &[DeviceStep]) -> Result<(), DeviceModeError>;
    let told = [decode(0), hybrid(0, FetchRule::UpTo(3))].map(|step| rig.told(step, &layout));
    let calls: [(&str, Call); 5] = [
        ("admission", |rig, told| rig.tables.admit(&mut rig.device, rig.stream, &rig.twin, &told[0])),
        ("hybrid admission", |rig, told| rig.tables.admit(&mut rig.device, rig.stream, &rig.twin, &told[1])),
        ("withhold", |rig, _| rig.tables.withhold(&mut rig.device, rig.stream, PoolId::new(0), 2)),
        ("reset", |rig, _| rig.tables.reset(&mut rig.device, rig.stream)),
        ("reading", |rig, _| rig.tables.request_reading(&mut rig.device, rig.stream)),
    ];
    for _ in 0..3 {
        for (name, call) in calls {
            let before = asked(&rig);
            call(&mut rig, &told).unwrap();
            let after = asked(&rig);
            assert_eq!((after.0, after.1), (before.0.map(|calls| calls + 1), before.1 + 2), "{name}");
            assert_eq!((after.2, after.3), (before.2, before.3), "{name}: nothing is waited for or allocated");
        }
    }
    rig.device.synchronize(rig.stream).unwrap();
    rig.end();
}
