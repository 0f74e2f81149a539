//! Launches that are refused: what is told of them, and that nothing else comes of them.

use ftcache_policy::{Eviction, FetchRule, LayerId, PoolId};
use ftcache_residency::{Cache, Phase, Step};
use ftcache_testkit::Rng;
use ftcache_transfer::{DeviceModeError, DeviceStep, Fault, FaultReport, IdWidth};
use insta::assert_snapshot;

use crate::rig::{ABSENT, Answer, Form, Rig};
use crate::states::{decode, hybrid, layer, one_pool, prefill, span, stamped};

const PLAIN: Form = Form::PLAIN;

/// Admits a step of which no route is absent, or as `change` says, on the device alone.
fn admit(rig: &mut Rig, step: Step, ids: &[i64], form: Form, change: impl Fn(&mut DeviceStep)) -> Answer {
    let layout = rig.layout(0, ids.len(), form);
    rig.room(layout.end());
    let image = layout.image(ids);
    rig.write(0, &image);
    let mut told = rig.told(step, &layout);
    told.ids.absent = None;
    change(&mut told);
    rig.tables.admit(&mut rig.device, rig.stream, &rig.twin, &told).unwrap();
    let after = rig.read(0, layout.end());
    layout.answer(step, &image, &after)
}

/// A refused launch has nobody compute anything.
#[track_caller]
fn nothing(answer: &Answer, at: &str) {
    assert!(answer.slots.iter().all(|&slot| slot == -1), "{at}: {answer:?}");
    assert!(answer.map.iter().all(|&slot| slot == -1), "{at}: {answer:?}");
    assert!(answer.cpu_ids.iter().all(|&id| id == -1), "{at}: {answer:?}");
    let weights = answer.device_weights.iter().chain(&answer.cpu_weights);
    assert!(weights.into_iter().all(|&weight| weight == 0), "{at}: {answer:?}");
}

// Routes astray.

#[test]
fn a_route_that_is_no_expert_is_told_with_its_value_and_position() {
    let four = [-1, -7, 16, 17, 1000, i64::from(i32::MIN), i64::from(i32::MAX)];
    let eight = [-1, 16, 1 << 32, (1 << 32) + 3, -(1 << 32), (1 << 31) + 5, i64::MIN, i64::MAX];
    for (width, strays) in [(IdWidth::Four, &four[..]), (IdWidth::Eight, &eight)] {
        for &stray in strays {
            for step in [decode(1), prefill(1), hybrid(1, FetchRule::UpTo(4))] {
                let mut rig = Rig::new(1, one_pool(2, 16, 6));
                rig.tables.set_threads(64).unwrap();
                rig.step(decode(1), &[1, 2, 3], PLAIN, "residents");
                let at = format!("{width:?}, {stray}");
                let form = Form { width, map: true, split: true, weight_bytes: 4, ..PLAIN };
                let answer = admit(&mut rig, step, &[1, 2, 9, stray, 4], form, |_| ());
                nothing(&answer, &at);
                let first = Fault::UnknownExpert { layer: layer(1), route: 3, id: stray, expert_count: 16 };
                assert_eq!(rig.tables.take_faults(), Some(FaultReport { first, step: 1, count: 1 }), "{at}");
                assert!(rig.tables.plan(&mut rig.device, layer(1)).unwrap().copies.is_empty(), "{at}");
                rig.compare(&at);
                // The next is counted as if nothing had been.
                rig.step(step, &[1, 2, 9, 4], PLAIN, &at);
                assert_eq!(rig.host.step(), 2);
                rig.end();
            }
        }
    }
}

#[test]
fn of_several_stray_routes_the_first_is_told_whoever_comes_first() {
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let mut rig = Rig::new(seed, one_pool(1, 20, 20));
        rig.tables.set_threads(32 * (1 + rng.below(8)) as u32).unwrap();
        let (rows, per_row) = (1 + rng.below(150), 1 + rng.below(5));
        let mut ids: Vec<i64> = (0..rows * per_row).map(|_| rng.below(20) as i64).collect();
        let places: Vec<usize> = (0..1 + rng.below(30)).map(|_| rng.below(rows * per_row) as usize).collect();
        // Each has a value of its own, so that it tells where it stood.
        places.iter().for_each(|&place| ids[place] = 1000 + place as i64);
        let first = *places.iter().min().unwrap();
        let form = Form { per_row: per_row as u32, gap: rng.below(3) as u32, in_place: rng.chance(2, 3), ..PLAIN };
        let answer = admit(&mut rig, decode(0), &ids, form, |_| ());
        nothing(&answer, &format!("seed {seed}"));
        let id = 1000 + first as i64;
        let first = Fault::UnknownExpert { layer: layer(0), route: first as u64, id, expert_count: 20 };
        assert_eq!(rig.tables.take_faults(), Some(FaultReport { first, step: 0, count: 1 }), "seed {seed}");
        rig.compare(&format!("seed {seed}"));
        rig.end();
    }
}

#[test]
fn the_absent_value_is_the_engines_and_other_values_stay_astray() {
    for (width, absent) in [
        (IdWidth::Four, -1),
        (IdWidth::Four, 20),
        (IdWidth::Four, i64::from(i32::MIN)),
        (IdWidth::Four, i64::from(i32::MAX)),
        (IdWidth::Eight, i64::MIN),
        (IdWidth::Eight, i64::MAX),
        (IdWidth::Eight, 1 << 32),
    ] {
        let mut rig = Rig::new(3, one_pool(1, 20, 20));
        let form = Form { width, ..PLAIN };
        // What stands for a slot's absence may be as far out.
        let answer = admit(&mut rig, decode(0), &[absent, 3, absent], form, |told| {
            told.ids.absent = Some(absent);
            told.answers.absent = absent;
        });
        assert_eq!(answer.slots, [absent, 0, absent], "{absent}");
        assert_eq!(rig.tables.take_faults(), None, "{absent}");
        let answer = admit(&mut rig, decode(0), &[absent, 3, -2], form, |told| told.ids.absent = Some(absent));
        nothing(&answer, "-2");
        let first = Fault::UnknownExpert { layer: layer(0), route: 2, id: -2, expert_count: 20 };
        assert_eq!(rig.tables.take_faults(), Some(FaultReport { first, step: 1, count: 1 }), "{absent}");
        rig.end();
    }
}

// What is told of several.

#[test]
fn the_first_refused_launch_is_told_in_full_and_the_others_are_counted() {
    let mut rig = Rig::new(4, one_pool(3, 8, 3));
    rig.step(decode(0), &[1], PLAIN, "a step");
    admit(&mut rig, decode(2), &span(0, 5), PLAIN, |_| ());
    admit(&mut rig, decode(1), &[3, -5], PLAIN, |_| ());
    admit(&mut rig, hybrid(1, FetchRule::UpTo(2)), &[8], PLAIN, |_| ());
    let wide = Fault::StepTooWide { layer: layer(2), needed: 5, given: 3 };
    assert_eq!(rig.tables.take_faults(), Some(FaultReport { first: wide, step: 1, count: 3 }));
    assert_eq!(rig.tables.take_faults(), None);
    // The next one is told in full again, with its own count.
    admit(&mut rig, decode(0), &[2], PLAIN, |_| ());
    for _ in 0..2 {
        admit(&mut rig, decode(1), &[7, 9], PLAIN, |_| ());
        let stray = Fault::UnknownExpert { layer: layer(1), route: 1, id: 9, expert_count: 8 };
        assert_eq!(rig.tables.take_faults(), Some(FaultReport { first: stray, step: 2, count: 1 }));
    }
    assert_eq!(rig.tables.take_faults(), None);
    rig.end();
}

#[test]
fn faults_are_told_when_the_residency_has_left_the_device() {
    let mut rig = Rig::new(5, one_pool(1, 8, 3));
    admit(&mut rig, decode(0), &span(0, 4), PLAIN, |_| ());
    rig.tables.disengage(&mut rig.device, &mut rig.twin).unwrap();
    let wide = Fault::StepTooWide { layer: layer(0), needed: 4, given: 3 };
    assert_eq!(rig.tables.take_faults(), Some(FaultReport { first: wide, step: 0, count: 1 }));
    assert_eq!(rig.twin.layer_stats(layer(0)).refused, 1);
    rig.tables.engage(&mut rig.device, &rig.twin).unwrap();
    assert_eq!(rig.tables.take_faults(), None);
    rig.end();
}

#[test]
fn a_step_that_is_wrong_in_several_ways_is_told_as_the_host_tells_it() {
    // At the last step: too wide, too. What is astray is found before either.
    let mut cache = one_pool(1, 8, 3);
    cache.skip_to(u64::MAX);
    let mut rig = Rig::new(6, cache);
    rig.step(decode(0), &span(0, 5), PLAIN, "too wide, after the last step");
    admit(&mut rig, decode(0), &[0, 1, 2, 3, 90], PLAIN, |_| ());
    let first = Fault::UnknownExpert { layer: layer(0), route: 4, id: 90, expert_count: 8 };
    assert_eq!(rig.tables.take_faults(), Some(FaultReport { first, step: u64::MAX - 1, count: 1 }));
    rig.compare("wrong in several ways");
    rig.end();
}

#[test]
fn a_wide_step_is_told_with_the_slots_that_it_could_have_had() {
    // Six slots: two pinned for others, one pinned that the step uses, then two withheld.
    let mut cache = stamped(one_pool(1, 16, 6), &[1, 2, 3, 4, 5, 6]);
    cache.pin(&crate::states::of_layer(0, [3, 4, 5]), 1).unwrap();
    let mut rig = Rig::new(7, cache);
    let wide = |needed, given| Some(Fault::StepTooWide { layer: layer(0), needed, given });
    let told = |rig: &mut Rig| rig.tables.take_faults().map(|report| report.first);
    admit(&mut rig, decode(0), &[3, 8, 9, 10, 11, 3], PLAIN, |_| ());
    assert_eq!(told(&mut rig), wide(5, 4));
    admit(&mut rig, prefill(0), &[3, 0, 9, 10, 11, 3], PLAIN, |_| ());
    assert_eq!(told(&mut rig), wide(5, 4));
    admit(&mut rig, decode(0), &[8, 9, 10, 11], PLAIN, |_| ());
    assert_eq!(told(&mut rig), wide(4, 3));
    rig.tables.withhold(&mut rig.device, rig.stream, PoolId::new(0), 2).unwrap();
    admit(&mut rig, decode(0), &[8, 9], PLAIN, |_| ());
    assert_eq!(told(&mut rig), wide(2, 1));
    // A hybrid step is never too wide: the CPU computes what has no slot.
    let answer = admit(&mut rig, hybrid(0, FetchRule::UpTo(9)), &[8, 9, 4, 10], PLAIN, |_| ());
    assert_eq!((answer.slots, told(&mut rig)), (vec![2, crate::rig::CPU, 4, crate::rig::CPU], None));
    rig.end();
}

// Texts.

#[test]
fn what_is_told_of_refused_launches_can_be_read() {
    let at = layer(7);
    let faults = [
        Fault::UnknownExpert { layer: at, route: 41, id: -3, expert_count: 256 },
        Fault::StepTooWide { layer: at, needed: 32, given: 21 },
        Fault::StaleGeneration { layer: at, captured: 3, current: 4 },
        Fault::WithHost { layer: at },
        Fault::LastStep { layer: at },
        Fault::WordTimeout { layer: at, wanted: 17, found: 16 },
        Fault::NoChunk { layer: at, needed: 10, given: 0 },
        Fault::Untold,
        Fault::Unknown { code: 99 },
    ];
    let text = |(count, first)| FaultReport { first, step: 1000, count }.to_string().replace("; ", ";\n  ");
    let texts: Vec<String> = (1..).zip(faults).map(text).collect();
    assert_snapshot!(texts.join("\n"), @"
    after step 1000: layer 7, route 41: -3 is none of its 256 experts
    after step 1000: layer 7: a step of 32 distinct experts;
      21 slots are there for it;
      1 more launch was refused
    after step 1000: layer 7: captured in generation 3;
      the slots are of generation 4;
      2 more launches were refused
    after step 1000: layer 7: the residency is with the host;
      3 more launches were refused
    after step 1000: layer 7: the last step has been counted;
      4 more launches were refused
    after step 1000: layer 7: waited for the host's word to be 17;
      it is 16;
      5 more launches were refused
    after step 1000: layer 7: staged without a chunk;
      10 slots lie under buffers, 0 are withheld;
      6 more launches were refused
    after step 1000: a launch that came while another was being told;
      7 more launches were refused
    after step 1000: fault 99;
      8 more launches were refused
    ");
}

#[test]
fn what_launches_are_refused_for_can_be_read() {
    let mut rig = Rig::new(8, one_pool(4, 8, 3));
    let mut texts = Vec::new();
    let mut tell = |rig: &mut Rig| texts.push(rig.tables.take_faults().expect("a launch was refused").to_string());
    admit(&mut rig, decode(1), &[3, 8, 4], PLAIN, |_| ());
    tell(&mut rig);
    admit(&mut rig, decode(3), &span(0, 5), PLAIN, |_| ());
    admit(&mut rig, decode(2), &[-1], PLAIN, |_| ());
    tell(&mut rig);
    let mut at_the_end = rig.twin.clone();
    at_the_end.skip_to(u64::MAX - 2);
    rig.tables.disengage(&mut rig.device, &mut rig.twin).unwrap();
    rig.tables.engage(&mut rig.device, &at_the_end).unwrap();
    for _ in 0..4 {
        admit(&mut rig, decode(0), &[1], PLAIN, |_| ());
    }
    tell(&mut rig);
    assert_snapshot!(texts.join("\n"), @"
    after step 0: layer 1, route 1: 8 is none of its 8 experts
    after step 0: layer 3: a step of 5 distinct experts; 3 slots are there for it; 1 more launch was refused
    after step 18446744073709551614: layer 0: the last step has been counted; 2 more launches were refused
    ");
    rig.end();
}

/// What a step is refused for before anything is enqueued.
#[test]
fn steps_that_kernels_cannot_have_are_refused_at_once() {
    use ftcache_transfer::{DeviceAnswers, DeviceIds, DeviceRows, DeviceSplit, DeviceWeights};
    // SAFETY: every one of these steps is refused, so nothing ever looks there.
    let rows = |address, stride| unsafe { DeviceRows::from_raw(address, stride) };
    let ids = DeviceIds { rows: rows(4096, 0), row_count: 3, per_row: 4, width: IdWidth::Four, absent: None };
    let wide = DeviceIds { width: IdWidth::Eight, ..ids };
    let step = |ids| DeviceStep::new(layer(1), ids);
    // Of a step that can write either value.
    let both = DeviceIds { absent: Some(-9), ..ids };
    let answers = |answers| DeviceStep { step: hybrid(1, FetchRule::UpTo(1)), answers, ..step(both) };
    let split = |split| DeviceStep { step: hybrid(1, FetchRule::UpTo(1)), split, ..step(ids) };
    let weights = |weights| split(DeviceSplit { weights: Some(weights), ..DeviceSplit::default() });
    let (none, some) = (DeviceAnswers::default(), DeviceSplit::default());
    let half = DeviceWeights { source: rows(4096, 0), device: None, cpu: None, bytes: 2 };
    let refused = [
        DeviceStep::new(layer(9), ids),
        DeviceStep::new(layer(2), ids),
        DeviceStep { step: Step { token: Some(5), ..decode(1) }, ..step(ids) },
        DeviceStep { step: Step { phase: Phase::Verify, ..decode(1) }, ..step(ids) },
        DeviceStep { step: Step { continues: true, ..decode(1) }, ..step(ids) },
        step(DeviceIds { row_count: 1 << 30, per_row: 3, ..ids }),
        step(DeviceIds { row_count: u64::MAX, per_row: u32::MAX, ..ids }),
        step(DeviceIds { absent: Some(0), ..ids }),
        step(DeviceIds { absent: Some(7), ..ids }),
        step(DeviceIds { rows: rows(0, 0), ..ids }),
        step(DeviceIds { rows: rows(4098, 0), ..ids }),
        step(DeviceIds { rows: rows(4100, 0), ..wide }),
        step(DeviceIds { rows: rows(4096, 18), ..ids }),
        step(DeviceIds { rows: rows(4096, 36), ..wide }),
        step(DeviceIds { rows: rows(4096, 12), ..ids }),
        answers(DeviceAnswers { slots: Some(rows(0, 0)), ..none }),
        answers(DeviceAnswers { slots: Some(rows(8195, 0)), ..none }),
        answers(DeviceAnswers { slots: Some(rows(8192, 8)), ..none }),
        answers(DeviceAnswers { map: Some(rows(0, 0)), ..none }),
        answers(DeviceAnswers { map: Some(rows(8194, 0)), ..none }),
        answers(DeviceAnswers { cpu: 0, ..none }),
        answers(DeviceAnswers { absent: 4, ..none }),
        answers(DeviceAnswers { cpu: 1 << 31, ..none }),
        answers(DeviceAnswers { absent: i64::MIN, ..none }),
        split(DeviceSplit { cpu_ids: Some(rows(8193, 0)), ..some }),
        split(DeviceSplit { cpu_ids: Some(rows(8192, 4)), ..some }),
        split(DeviceSplit { cpu_ids: Some(rows(8192, 0)), cpu_none: 7, ..some }),
        split(DeviceSplit { cpu_ids: Some(rows(8192, 0)), cpu_none: -(1 << 31) - 1, ..some }),
        weights(DeviceWeights { bytes: 8, ..half }),
        weights(DeviceWeights { source: rows(0, 0), ..half }),
        weights(DeviceWeights { source: rows(4097, 0), ..half }),
        weights(DeviceWeights { source: rows(4096, 6), ..half }),
        weights(DeviceWeights { bytes: 4, source: rows(4096, 18), ..half }),
        weights(DeviceWeights { device: Some(rows(8191, 0)), ..half }),
        weights(DeviceWeights { cpu: Some(rows(8190, 9)), ..half }),
        weights(DeviceWeights { device: Some(rows(4096, 0)), cpu: Some(rows(4096, 0)), ..half }),
        split(DeviceSplit { cpu_ids: Some(rows(4096, 0)), ..some }),
        DeviceStep {
            answers: DeviceAnswers { slots: Some(rows(8192, 0)), ..none },
            ..split(DeviceSplit { cpu_ids: Some(rows(8192, 0)), ..some })
        },
    ];
    let pools = [Some(0), Some(1), None].map(|pool| pool.map(PoolId::new));
    let mut rig = Rig::new(9, Cache::with_pools(8, &pools, &[9, 5]).unwrap());
    let calls = rig.world.emulated.as_ref().map(|emulated| emulated.calls_total());
    let texts = refused.map(|told| {
        let error = rig.tables.check(&rig.twin, &told).unwrap_err();
        let admitted = rig.tables.admit(&mut rig.device, rig.stream, &rig.twin, &told);
        assert_eq!(admitted.as_ref(), Err(&error));
        error.to_string()
    });
    assert_snapshot!(texts.join("\n"), @"
    no layer 9: the cache has 3 layers
    layer 2 holds no slots: it decodes elsewhere
    layer 1: a step token is for the host alone
    layer 1: a verify step is for the host alone
    layer 1: a step in parts is for the host alone
    3221225472 routes in one launch; 2147483648 is the most
    18446744073709551615 routes in one launch; 2147483648 is the most
    the id of an absent route is 0, an expert of 0..8
    the id of an absent route is 7, an expert of 0..8
    routes: no address
    routes: 0x1002 is no multiple of 4 bytes
    routes: 0x1004 is no multiple of 8 bytes
    routes: a stride of 18 bytes is no multiple of 4
    routes: a stride of 36 bytes is no multiple of 8
    routes: a stride of 12 bytes is less than the row's 16
    slots: no address
    slots: 0x2003 is no multiple of 4 bytes
    slots: a stride of 8 bytes is less than the row's 16
    the map: no address
    the map: 0x2002 is no multiple of 4 bytes
    the value for the CPU: 0 is one of the pool's 5 slots
    the value for absent routes: 4 is one of the pool's 5 slots
    the value for the CPU: 2147483648 does not fit into 4 bytes
    the value for absent routes: -9223372036854775808 does not fit into 4 bytes
    CPU experts: 0x2001 is no multiple of 4 bytes
    CPU experts: a stride of 4 bytes is less than the row's 16
    the value for no CPU expert: 7 is one of the layer's 8 experts
    the value for no CPU expert: -2147483649 does not fit into 4 bytes
    weights of 8 bytes; 2 and 4 are known
    weights: no address
    weights: 0x1001 is no multiple of 2 bytes
    weights: a stride of 6 bytes is less than the row's 8
    weights: a stride of 18 bytes is no multiple of 4
    the device's weights: 0x1fff is no multiple of 2 bytes
    the CPU's weights: a stride of 9 bytes is no multiple of 2
    the device's weights and the CPU's weights lie in the same place
    slots and CPU experts lie in the same place
    slots and CPU experts lie in the same place
    ");
    assert_eq!(rig.world.emulated.as_ref().map(|emulated| emulated.calls_total()), calls);
    rig.compare("nothing came of it");
    rig.end();
}

#[test]
fn values_and_shapes_up_to_their_bounds_are_taken() {
    let (low, high) = (i64::from(i32::MIN), i64::from(i32::MAX));
    for (cpu, absent) in [(-1, -2), (5, 6), (low, high)] {
        let mut rig = Rig::new(10, one_pool(1, 8, 5));
        // One row, whose stride says nothing.
        let one = rig.rows_at(0, 4);
        let form = Form { per_row: 4, ..PLAIN };
        let answer = admit(&mut rig, hybrid(0, FetchRule::UpTo(1)), &[1, 2, ABSENT, 3], form, |told| {
            (told.ids.rows, told.ids.absent) = (one, Some(ABSENT));
            (told.answers.cpu, told.answers.absent) = (cpu, absent);
        });
        assert_eq!(answer.slots, [0, cpu, absent, cpu]);
        // Rows of no routes.
        let answer = admit(&mut rig, decode(0), &[], PLAIN, |told| (told.ids.per_row, told.ids.row_count) = (0, 5));
        assert_eq!((answer, rig.tables.take_faults()), (Answer::default(), None));
        rig.end();
    }
}

#[test]
fn another_residency_than_the_one_on_the_device_is_refused() {
    let mut rig = Rig::new(12, one_pool(2, 8, 5));
    rig.step(decode(0), &[1, 2], PLAIN, "residents");
    let layout = rig.layout(0, 2, PLAIN);
    let told = rig.told(decode(0), &layout);
    let pools = [Some(PoolId::new(0)); 2];
    let (rebuilt, _) = rig.twin.rebuilt_with_pools(&pools, &[5], ftcache_residency::Keep::WhatFits).unwrap();
    let ruled = crate::states::ruled(Eviction::Lfu, rig.twin.clone());
    // More slots, more experts, more pools; rebuilt, though it looks the same; under another rule.
    let others = [one_pool(2, 8, 6), one_pool(2, 9, 5), crate::states::empty(8, &[0, 1], &[5, 5]), rebuilt, ruled];
    for (number, mut other) in others.into_iter().enumerate() {
        let before = other.state().unwrap();
        let refused = [
            rig.tables.check(&other, &told),
            rig.tables.admit(&mut rig.device, rig.stream, &other, &told),
            rig.tables.disengage(&mut rig.device, &mut other),
        ];
        for refused in refused {
            assert_eq!(refused, Err(DeviceModeError::OtherResidency), "other {number}");
        }
        assert_eq!(other.state().unwrap(), before, "other {number}");
        assert!(rig.tables.is_engaged());
    }
    assert_snapshot!(DeviceModeError::OtherResidency, @"another residency is on the device");
    rig.step(decode(1), &[1, 2], PLAIN, "goes on");
    rig.compare("after others");
    rig.end();
}

#[test]
fn shapes_that_no_block_has_and_calls_at_the_wrong_time_are_refused() {
    let mut rig = Rig::new(11, one_pool(1, 8, 5));
    let mut texts = Vec::new();
    let mut tell = |error: DeviceModeError| texts.push(error.to_string());
    for threads in [0, 1, 31, 33, 1000, 1025, 1056, 2048, u32::MAX] {
        tell(rig.tables.set_threads(threads).unwrap_err());
    }
    tell(rig.tables.engage(&mut rig.device, &rig.twin).unwrap_err());
    // What is withheld for a chunk is not the host's: the chunk is to end first.
    rig.tables.withhold(&mut rig.device, rig.stream, PoolId::new(0), 2).unwrap();
    tell(rig.tables.disengage(&mut rig.device, &mut rig.twin).unwrap_err());
    assert!(rig.tables.is_engaged());
    let answer = admit(&mut rig, decode(0), &[1, 2], PLAIN, |_| ());
    assert_eq!(answer.slots, [2, 3]);
    rig.tables.withhold(&mut rig.device, rig.stream, PoolId::new(0), 0).unwrap();
    rig.tables.disengage(&mut rig.device, &mut rig.twin).unwrap();
    let layout = rig.layout(0, 1, PLAIN);
    let told = rig.told(decode(0), &layout);
    tell(rig.tables.disengage(&mut rig.device, &mut rig.twin).unwrap_err());
    tell(rig.tables.check(&rig.twin, &told).unwrap_err());
    tell(rig.tables.admit(&mut rig.device, rig.stream, &rig.twin, &told).unwrap_err());
    tell(rig.tables.reset(&mut rig.device, rig.stream).unwrap_err());
    tell(rig.tables.withhold(&mut rig.device, rig.stream, PoolId::new(0), 0).unwrap_err());
    tell(rig.tables.request_reading(&mut rig.device, rig.stream).unwrap_err());
    tell(rig.tables.plan(&mut rig.device, LayerId::new(0)).unwrap_err());
    assert_snapshot!(texts.join("\n"), @"
    0 threads a block; a multiple of 32 up to 1024 is needed
    1 threads a block; a multiple of 32 up to 1024 is needed
    31 threads a block; a multiple of 32 up to 1024 is needed
    33 threads a block; a multiple of 32 up to 1024 is needed
    1000 threads a block; a multiple of 32 up to 1024 is needed
    1025 threads a block; a multiple of 32 up to 1024 is needed
    1056 threads a block; a multiple of 32 up to 1024 is needed
    2048 threads a block; a multiple of 32 up to 1024 is needed
    4294967295 threads a block; a multiple of 32 up to 1024 is needed
    the residency is on the device: leave device mode first
    a prefill chunk is open on the device
    the residency is with the host: enter device mode first
    the residency is with the host: enter device mode first
    the residency is with the host: enter device mode first
    the residency is with the host: enter device mode first
    the residency is with the host: enter device mode first
    the residency is with the host: enter device mode first
    the residency is with the host: enter device mode first
    ");
    rig.tables.engage(&mut rig.device, &rig.twin).unwrap();
    rig.end();
}
