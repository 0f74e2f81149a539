//! Faults that were reported of other caches in graphs (`B45` and so on), each as a test that such a cache would fail.

use ftcache::policy::{Fetch, FetchRule};
use ftcache::{
    DeviceError, DeviceModeError, Error, FetchOrder, LayerId, Misses, Phase, PoolId, SlotSpan, Step, Stream, Streams,
};
use ftcache_testkit::Rng;
use insta::assert_snapshot;

use crate::graphs::tokens;
use crate::rig::{ABSENT, CPU, Form, Rig, experts, layer};
use crate::shapes::{self, LAYOUTS};
use crate::token::{Shape, Token};

/// Three layers of nine experts in one pool of seven slots.
fn rig(seed: u64) -> Rig {
    let model = shapes::model(9, 2, &[LAYOUTS[0]; 3]);
    Rig::new(seed, ftcache::Geometry::new(model, shapes::slots(7)).unwrap())
}

const HYBRID: Misses =
    Misses::Hybrid { fetch: Fetch { rule: FetchRule::UpTo(1), most: None }, order: FetchOrder::Recency };

/// B45: what the host decides in a capture would be frozen in the graph.
#[test]
fn the_host_form_refuses_a_stream_that_is_captured_and_the_capture_goes_on() {
    let mut rig = rig(1);
    let (compute, other) = (rig.stream, rig.engine.stream());
    rig.host_step(layer(0), &[1, 2], "before");
    rig.engine.begin_capture(compute);
    let before = (rig.cache.residency().digest(), rig.cache.stats());
    let two = [Streams::one(compute), Streams { compute, copy: other }, Streams { compute: other, copy: compute }];
    for streams in two {
        for ids in [[1, 2], [3, 4]] {
            let calls = [
                rig.cache.load_on(streams, layer(0), &experts(&ids)).map(|_| ()),
                rig.cache.load_ids(streams, layer(0), ids, None).map(|_| ()),
                rig.cache.begin_chunk(streams),
            ];
            for told in calls {
                let refused = Error::Device(DeviceError::Capturing { stream: compute.raw() });
                assert_eq!(told, Err(refused), "{streams:?} {ids:?}");
            }
        }
    }
    assert_eq!((rig.cache.residency().digest(), rig.cache.stats()), before);
    assert_eq!(rig.engine.capture_status(compute), 1, "the capture goes on");
    rig.engine.end_capture(compute);
    // The device's form is for such streams.
    rig.enter();
    let token = Token::capture(&mut rig, &[Step::new(layer(0))], Shape::of(2));
    for ids in [[1, 2], [3, 4], [4, 8]] {
        token.replay(&mut rig, &[vec![ids.to_vec()]], "each token has its own copies");
    }
    rig.leave("at the end");
    rig.end();
}

fn spans(rig: &Rig) -> Vec<Option<SlotSpan>> {
    let banks = rig.model().bank_ids();
    banks.map(|bank| rig.cache.slots(PoolId::new(0), bank).unwrap()).collect()
}

/// B47: results lie where they lay when the graph was captured, however wide a step is.
#[test]
fn nothing_moves_and_nothing_grows_however_wide_a_step_is() {
    let mut rig = rig(2);
    rig.enter();
    let steps: Vec<Step> = (0..3).map(|index| Step::new(layer(index))).collect();
    let token = Token::capture(&mut rig, &steps, Shape { in_place: false, ..Shape::of(2) });
    let before = (spans(&rig), rig.emulated().counts());
    let mut rng = Rng::new(2);
    for round in 0..6 {
        let routes = tokens(&rig, &mut rng, &steps, 2, 4);
        token.replay(&mut rig, &routes, &format!("round {round}"));
        // Wider from round to round, up to what the launch has room for.
        let wide: Vec<i64> = (0..200 << round).map(|at| at % 7).collect();
        let form = Form { per_row: 8, ..Form::default() };
        let wide = &wide[..wide.len().min(1600)];
        rig.step(layer(round % 3), wide, form, &format!("{} routes", wide.len()));
    }
    let after = rig.emulated().counts();
    assert_eq!(spans(&rig), before.0);
    let held = |counts: ftcache_cuda_emu::client::Counts| (counts.allocations, counts.allocated_bytes, counts.modules);
    assert_eq!(held(after), held(before.1));
    rig.leave("at the end");
    rig.end();
}

/// B48: one residency frozen for all replays, since the host has it while the graph is captured.
#[test]
fn modes_do_not_mix() {
    let mut rig = rig(3);
    let ids = experts(&[1, 2]);
    rig.upload(&[1, 2], Form::default());
    let step = rig.told(Step::new(layer(0)), 2, Form::default());
    // With the host, nothing can be captured.
    rig.engine.begin_capture(rig.stream);
    let stream = rig.stream;
    for told in [rig.cache.admit_on_device(stream, &step), rig.cache.gather_on_device(stream, layer(0))] {
        assert_eq!(told, Err(DeviceModeError::OnHost.into()));
    }
    assert_eq!(rig.engine.capture_status(stream), 1);
    rig.engine.end_capture(stream);
    // On the device, nothing is decided here, not even a hit.
    rig.enter();
    rig.step(layer(0), &[1, 2], Form::default(), "on the device");
    let plan = rig.cache.plan().to_string();
    let told = rig.cache.load_on(Streams::one(Stream::DEFAULT), layer(0), &ids).unwrap_err();
    assert_eq!(told, DeviceModeError::OnDevice.into());
    assert_snapshot!(told, @"the residency is on the device: leave device mode first");
    assert_eq!(rig.cache.plan().to_string(), plan);
    rig.check_reading("a refused load");
    rig.leave("at the end");
    rig.host_step(layer(0), &[1, 2], "back on the host");
    rig.end();
}

/// B50: graphs of other shapes for other phases, so that an allocator sized for one was grown for the other.
#[test]
fn a_step_is_the_same_launches_whatever_it_is_for_and_whatever_it_finds() {
    let mut rig = rig(4);
    rig.enter();
    let mut seen = Vec::new();
    for (phase, misses) in
        [(Phase::Decode, Misses::Fetched), (Phase::Prefill, Misses::Fetched), (Phase::Decode, HYBRID)]
    {
        for ids in [&[1, 2][..], &[1, 2], &[], &[3; 40], &[0, 1, 2, 3, 4, 5], &[ABSENT; 3]] {
            let step = Step { phase, misses, ..Step::new(layer(1)) };
            rig.upload(ids, Form::default());
            let told = rig.told(step, ids.len(), Form::default());
            let before = ["cuLaunchKernel", "cuMemAlloc_v2"].map(|name| rig.emulated().calls(name));
            let total = rig.emulated().calls_total();
            rig.cache.admit_on_device(rig.stream, &told).unwrap();
            rig.cache.gather_on_device(rig.stream, layer(1)).unwrap();
            let total = rig.emulated().calls_total() - total;
            let after = ["cuLaunchKernel", "cuMemAlloc_v2"].map(|name| rig.emulated().calls(name));
            seen.push((after[0] - before[0], after[1] - before[1], total));
            let expected = rig.on_host(step, ids).unwrap();
            assert_eq!(rig.answer(ids.len(), Form::default()).0, expected);
        }
    }
    assert!(seen.iter().all(|calls| *calls == seen[0]), "{seen:?}");
    assert_eq!((seen[0].0, seen[0].1), (2, 0));
    rig.leave("at the end");
    rig.end();
}

/// B51: decode that was taken for prefill by its shape.
#[test]
fn the_phase_is_what_the_engine_says_and_not_what_a_step_looks_like() {
    let mut rig = rig(5);
    rig.enter();
    // One route that is prefill, and as many as a prompt has that are decode.
    let prefill = Step { phase: Phase::Prefill, ..Step::new(layer(0)) };
    rig.step(prefill, &[1], Form::default(), "narrow");
    let wide: Vec<i64> = (0..300).map(|at| at % 4).collect();
    let form = Form { per_row: 8, ..Form::default() };
    rig.step(layer(0), &wide, form, "wide");
    rig.leave("at the end");
    let steps = |phase| rig.cache.residency().phase_stats(layer(0), phase).steps;
    assert_eq!([steps(Phase::Decode), steps(Phase::Prefill)], [1, 1]);
    let stamp = |expert: i64| {
        let residency = rig.cache.residency();
        residency.stamp(PoolId::new(0), residency.slot_of(layer(0), experts(&[expert])[0]).unwrap())
    };
    assert_eq!([stamp(1), stamp(3)], [2, 2], "decode stamps hits and misses");
    rig.end();
}

/// B54: absent routes that were priced as work.
#[test]
fn absent_routes_cost_no_slot_no_copy_and_no_count() {
    let mut rig = rig(6);
    rig.enter();
    for (ids, distinct) in [(&[ABSENT; 40][..], 0), (&[ABSENT, 3, ABSENT, 3, ABSENT][..], 1)] {
        let form = Form { in_place: false, ..Form::default() };
        rig.step(layer(2), ids, form, "absent routes");
        let plan = rig.cache.plan_on_device(layer(2)).unwrap();
        assert_eq!((plan.distinct, plan.misses, plan.copies.len()), (distinct, distinct, distinct as usize));
    }
    assert_eq!(rig.residents().len(), 1);
    rig.check_bytes("one row");
    rig.leave("at the end");
    let stats = rig.cache.layer_stats(layer(2)).unwrap();
    assert_eq!((stats.residency.routes, stats.residency.misses, stats.bytes), (2, 1, 48 + 17 + 2));
    rig.end();
}

/// B52: one dummy slot for all routes of the CPU, which batched kernels do not bear.
#[test]
fn no_slot_is_that_of_two_experts_and_other_routes_have_the_values_of_the_caller() {
    let mut rig = rig(7);
    let mut rng = Rng::new(7);
    rig.enter();
    let (mut on_cpu, mut absent) = (0, 0);
    for number in 0..60 {
        let step = Step { misses: HYBRID, ..Step::new(layer(number % 3)) };
        let ids = shapes::ids(&mut rng, 9, 6);
        let form = shapes::form(&mut rng);
        let answer = rig.admit(step, &ids, form).unwrap();
        assert_eq!(answer, rig.on_host(step, &ids).unwrap(), "step {number}");
        let slots = || ids.iter().zip(&answer).filter(|(_, slot)| **slot >= 0);
        for (id, slot) in slots() {
            assert!(slots().all(|(other, its)| (other == id) == (its == slot)), "step {number}: {ids:?} {answer:?}");
        }
        for (id, slot) in ids.iter().zip(&answer).filter(|(_, slot)| **slot < 0) {
            assert_eq!(*slot, if *id == ABSENT { ABSENT } else { CPU }, "step {number}: {ids:?} {answer:?}");
            on_cpu += u32::from(*slot == CPU);
            absent += u32::from(*slot == ABSENT);
        }
    }
    assert!(on_cpu > 20 && absent > 5, "{on_cpu} routes to the CPU, {absent} absent");
    // Any value but a slot of the pool.
    let mut told = rig.told(Step::new(layer(0)), 2, Form::default());
    for (value, is_slot) in [(-1, false), (0, true), (6, true), (7, false), (i64::from(i32::MIN), false)] {
        told.answers.cpu = value;
        told.answers.absent = value;
        rig.upload(&[ABSENT, ABSENT], Form::default());
        let admitted = rig.cache.admit_on_device(rig.stream, &told);
        match is_slot {
            true => {
                let what = "the value for absent routes";
                assert_eq!(admitted, Err(DeviceModeError::ValueIsSlot { what, value, slot_count: 7 }.into()));
            }
            false => {
                admitted.unwrap();
                rig.on_host(Step::new(layer(0)), &[ABSENT, ABSENT]).unwrap();
                assert_eq!(rig.answer(2, Form::default()).0, [value; 2]);
            }
        }
    }
    rig.leave("at the end");
    rig.end();
}

/// B53: kernels that take no -1 are given the map.
#[test]
fn the_map_says_what_the_slots_say() {
    let mut rig = rig(8);
    let mut rng = Rng::new(8);
    rig.enter();
    for number in 0..40 {
        let step =
            Step { misses: if number % 2 == 0 { HYBRID } else { Misses::Fetched }, ..Step::new(layer(number % 3)) };
        let ids = shapes::ids(&mut rng, 9, 6);
        let form = Form { map: true, ..shapes::form(&mut rng) };
        let answer = rig.admit(step, &ids, form).unwrap();
        let map = rig.answer(ids.len(), form).1;
        assert_eq!(map.len(), 9);
        for (&id, &slot) in ids.iter().zip(&answer).filter(|(id, _)| **id != ABSENT) {
            let in_map = i64::from(map[id as usize]);
            assert_eq!(in_map, if slot == CPU { -1 } else { slot }, "step {number}: {ids:?} {answer:?} {map:?}");
        }
        assert_eq!(answer, rig.on_host(step, &ids).unwrap(), "step {number}");
    }
    rig.leave("at the end");
    rig.end();
}

#[test]
fn a_layer_without_slots_is_named() {
    let constraints = ftcache::Constraints { slotless_layers: vec![layer(1)], ..shapes::slots(7) };
    let geometry = ftcache::Geometry::new(shapes::model(9, 2, &[LAYOUTS[0]; 3]), constraints).unwrap();
    let mut rig = Rig::new(9, geometry);
    rig.enter();
    let told = rig.told(Step::new(layer(1)), 2, Form::default());
    let calls = [
        rig.cache.admit_on_device(rig.stream, &told).unwrap_err(),
        rig.cache.gather_on_device(rig.stream, layer(1)).unwrap_err(),
        rig.cache.gather_on_device(rig.stream, layer(3)).unwrap_err(),
        rig.cache.plan_on_device(layer(1)).unwrap_err(),
        rig.cache.plan_on_device(LayerId::new(3)).unwrap_err(),
    ];
    assert_snapshot!(calls.map(|error| error.to_string()).join("\n"), @r"
    layer 1 holds no slots: it decodes elsewhere
    layer 1 holds no slots: it decodes elsewhere
    no layer 3: the cache has 3 layers
    layer 1 holds no slots: it decodes elsewhere
    no layer 3: the cache has 3 layers
    ");
    rig.leave("nothing has changed");
    rig.end();
}
