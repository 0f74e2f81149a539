//! Whole lives: steps on the device and on the host in turn, and whatever an engine does between.

use ftcache::policy::{Fetch, FetchRule};
use ftcache::{Eviction, ExpertId, FetchOrder, Keep, LaterLimits, LayerId, Misses, Phase, SlotId, Step};
use ftcache_testkit::Rng;

use crate::rig::{Form, Rig};
use crate::shapes::{self, pick};

fn layers(rig: &Rig) -> Vec<LayerId> {
    rig.model().layer_ids().filter(|&layer| rig.twin.residency().pool_of(layer).is_ok()).collect()
}

fn width_most(rig: &Rig) -> u64 {
    u64::from(rig.model().top_k()) * 3
}

/// Steps on the device, and now and then all that can be seen of them.
fn on_device(rig: &mut Rig, rng: &mut Rng, hybrids: bool, at: &str) {
    let layers = layers(rig);
    for number in 0..3 + rng.below(6) {
        let at = format!("{at}, on the device {number}");
        if rng.chance(1, 25) {
            rig.cache.reset_on_device(rig.stream).unwrap();
            rig.twin.reset().unwrap();
        }
        let step = shapes::step(rng, &layers, hybrids);
        let ids = shapes::ids(rng, rig.model().expert_count(), width_most(rig));
        rig.step(step, &ids, shapes::form(rng), &at);
        if rng.chance(1, 3) {
            rig.check_reading(&at);
            rig.check_bytes(&at);
        }
    }
}

/// What only the host does: pins, freed slots, drafts, other pools.
fn on_host(rig: &mut Rig, rng: &mut Rng, hybrids: bool, at: &str) {
    let layers = layers(rig);
    let expert_count = rig.model().expert_count();
    let expert = |rng: &mut Rng| ExpertId::new(rng.below(u64::from(expert_count)) as u32);
    for number in 0..rng.below(4) {
        let at = format!("{at}, on the host {number}");
        let layer = pick(rng, &layers);
        match rng.below(10) {
            0 => {
                let experts = [(layer, expert(rng)), (layer, expert(rng))];
                assert_eq!(rig.cache.pin(&experts), rig.twin.pin(&experts), "{at}");
            }
            1 => {
                let experts = [(layer, expert(rng))];
                assert_eq!(rig.cache.unpin(&experts), rig.twin.unpin(&experts), "{at}");
            }
            2 => {
                let pool = rig.twin.residency().pool_of(layer).unwrap();
                let slot = SlotId::new(rng.below(u64::from(rig.twin.residency().slot_count(pool))) as u32);
                assert_eq!(rig.cache.forget(pool, slot), rig.twin.forget(pool, slot), "{at}");
            }
            3 if rng.chance(1, 2) => {
                assert_eq!(rig.cache.forget_layer(layer), rig.twin.forget_layer(layer), "{at}");
            }
            4 if rng.chance(1, 2) => {
                rig.cache.reset_stats().unwrap();
                rig.twin.reset_stats().unwrap();
            }
            5 if rng.chance(1, 2) => {
                let geometry = shapes::geometry_of(rng, rig.model().clone());
                if geometry.constraints().slotless_layers != rig.twin.geometry().constraints().slotless_layers {
                    continue;
                }
                let keep = pick(rng, &[Keep::WhatFits, Keep::Nothing]);
                let kept = rig.twin.rebuild(geometry.clone(), keep, u64::MAX).map(|report| report.kept);
                assert_eq!(rig.cache.rebuild(geometry, keep, u64::MAX).map(|report| report.kept), kept, "{at}");
            }
            6 => {
                let step = Step { phase: Phase::Verify, ..Step::new(layer) };
                rig.host_step(step, &shapes::ids(rng, expert_count, width_most(rig)), &at);
            }
            7 => {
                let accepted = [expert(rng)];
                assert_eq!(rig.cache.accept(layer, &accepted), rig.twin.accept(layer, &accepted), "{at}");
            }
            8 if rng.chance(1, 2) => rig.set_eviction(pick(rng, &Eviction::ALL)),
            _ => {
                let step = shapes::step(rng, &layers, hybrids);
                rig.host_step(step, &shapes::ids(rng, expert_count, width_most(rig)), &at);
            }
        }
        rig.check_same(&at);
    }
    rig.check_bytes(at);
}

fn live(seed: u64, hybrids: bool) {
    let mut rng = Rng::new(seed);
    let geometry = shapes::geometry(&mut rng);
    let mut rig = Rig::ruled(seed, geometry);
    for round in 0..3 {
        let at = format!("seed {seed} round {round}");
        on_host(&mut rig, &mut rng, hybrids, &at);
        rig.enter();
        assert!(rig.cache.is_in_device_mode());
        on_device(&mut rig, &mut rng, hybrids, &at);
        rig.check_reading(&at);
        rig.check_bytes(&at);
        rig.leave(&at);
        assert!(!rig.cache.is_in_device_mode());
    }
    on_host(&mut rig, &mut rng, hybrids, &format!("seed {seed}, at the end"));
    rig.end();
}

#[test]
fn lives_on_the_device_and_the_host_in_turn_are_those_of_a_twin_that_never_left_the_host() {
    for seed in 0..60 {
        live(seed, false);
    }
}

#[test]
fn hybrid_lives_too() {
    for seed in 1000..1060 {
        live(seed, true);
    }
}

#[test]
fn every_row_of_a_slot_is_read_back_by_its_bank() {
    let mut rig = Rig::new(3, shapes::geometry_of(&mut Rng::new(3), shapes::model(9, 2, &shapes::LAYOUTS[..3])));
    rig.enter();
    for (number, &layer) in layers(&rig).clone().iter().enumerate() {
        rig.step(layer, &[number as i64, 8], Form::default(), "each layer");
    }
    assert!(rig.residents().len() >= 2);
    rig.check_residents("on the device");
    rig.leave("at the end");
    rig.check_residents("on the host");
    rig.end();
}

/// What a step left to the CPU and fetches behind it.
#[test]
fn rows_on_their_way_behind_steps_land_before_the_residency_goes() {
    for seed in 0..20 {
        let mut rig =
            Rig::new(seed, shapes::geometry_of(&mut Rng::new(seed), shapes::model(9, 2, &shapes::LAYOUTS[..3])));
        let limits = LaterLimits { step_bytes: 400, flight_count: 4 };
        rig.cache.set_later(limits).unwrap();
        rig.twin.set_later(limits).unwrap();
        let fetch = Fetch { rule: FetchRule::UpTo(0), most: None };
        let misses = Misses::Hybrid { fetch, order: FetchOrder::LowestId };
        for round in 0..3 {
            let at = format!("seed {seed} round {round}");
            let layer = layers(&rig)[0];
            rig.host_step(Step { misses, ..Step::new(layer) }, &[round, round + 4], &at);
            rig.enter();
            rig.twin.synchronize_all().unwrap();
            rig.twin.land().unwrap();
            assert!(rig.twin.later_report().residency.landed > 0, "{at}");
            assert_eq!(rig.cache.later_report().residency, rig.twin.later_report().residency, "{at}");
            rig.check_reading(&at);
            rig.check_bytes(&at);
            rig.step(layer, &[round, 8], Form::default(), &at);
            rig.check_bytes(&at);
            rig.leave(&at);
        }
        rig.end();
    }
}

/// Entering waits for everything, so that a stream of before need live no longer.
#[test]
fn streams_of_steps_on_the_host_may_go_once_the_residency_is_on_the_device() {
    for seed in 0..10 {
        let mut rng = Rng::new(seed);
        let mut rig = Rig::ruled(seed, shapes::geometry(&mut rng));
        let (layer, kept) = (layers(&rig)[0], rig.stream);
        rig.stream = rig.engine.stream();
        rig.host_step(layer, &[0, 1], "over a stream that goes");
        rig.enter();
        rig.engine.destroy(rig.stream);
        rig.stream = kept;
        rig.step(layer, &[2, 3], Form::default(), &format!("seed {seed}"));
        rig.leave(&format!("seed {seed}"));
        rig.host_step(layer, &[1, 3], &format!("seed {seed}, over another"));
        rig.check_bytes(&format!("seed {seed}"));
        rig.end();
    }
}

/// A step behind the return comes behind what the device was given before it.
#[test]
fn steps_on_the_host_are_ordered_behind_those_on_the_device() {
    for seed in 0..10 {
        let mut rng = Rng::new(seed);
        let mut rig = Rig::ruled(seed, shapes::geometry(&mut rng));
        let layer = layers(&rig)[0];
        let (on_device, on_host) = (rig.stream, rig.engine.stream());
        for round in 0..3 {
            let at = format!("seed {seed} round {round}");
            rig.enter();
            // Enqueued, and not waited for.
            rig.stream = on_device;
            rig.upload(&[round, 3], Form::default());
            let told = rig.told(Step::new(layer), 2, Form::default());
            rig.cache.admit_on_device(on_device, &told).unwrap();
            rig.cache.gather_on_device(on_device, layer).unwrap();
            rig.on_host(Step::new(layer), &[round, 3]).unwrap();
            rig.leave(&at);
            rig.stream = on_host;
            rig.host_step(layer, &[1, 2], &at);
        }
        rig.check_bytes(&format!("seed {seed}"));
        rig.end();
    }
}
