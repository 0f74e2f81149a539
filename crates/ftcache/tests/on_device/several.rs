//! Two caches in device mode, on one device or on two: a model and its draft, two cards in one machine.

use std::sync::Arc;

use ftcache::{Keep, Step};
use ftcache_testkit::Rng;

use crate::graphs::{steps, tokens};
use crate::rig::{Rig, world};
use crate::shapes;
use crate::token::{Shape, Token};

/// Two rigs of other models, on one device or on two.
fn two(seed: u64, one_device: bool) -> [Rig; 2] {
    let mut rng = Rng::new(seed);
    let first = world(seed);
    let second = if one_device { Arc::clone(&first) } else { world(seed + 1) };
    [first, second].map(|world| Rig::on(world, shapes::geometry(&mut rng), rng.below(3)))
}

fn end(rigs: [Rig; 2]) {
    let worlds = rigs.map(Rig::close);
    worlds.iter().for_each(|world| world.check_gone());
}

fn interleaved(seed: u64, one_device: bool) {
    let mut rigs = two(seed, one_device);
    let mut rng = Rng::new(seed);
    for round in 0..8 {
        for index in [0, 1] {
            let at = format!("seed {seed} round {round} cache {index}");
            let rig = &mut rigs[index];
            // Each is in device mode for some of the time, and not for the same.
            match (rig.cache.is_in_device_mode(), rng.below(3)) {
                (false, 0 | 1) => rig.enter(),
                (true, 0) => rig.leave(&at),
                _ => {}
            }
            for step in steps(rig, &mut rng, true) {
                let ids = shapes::ids(&mut rng, rig.model().expert_count(), 4);
                match rig.cache.is_in_device_mode() {
                    true => rig.step(step, &ids, shapes::form(&mut rng), &at),
                    false => rig.host_step(step, &ids, &at),
                }
            }
            rig.check_bytes(&at);
        }
    }
    for rig in &mut rigs {
        if rig.cache.is_in_device_mode() {
            rig.leave(&format!("seed {seed}"));
        }
        rig.check_same(&format!("seed {seed}"));
    }
    end(rigs);
}

#[test]
fn two_caches_on_one_device_go_in_and_out_of_device_mode_in_turn() {
    for seed in 0..12 {
        interleaved(seed, true);
    }
}

#[test]
fn two_caches_on_two_devices_go_in_and_out_of_device_mode_in_turn() {
    for seed in 100..112 {
        interleaved(seed, false);
    }
}

fn graphs_of_both(seed: u64, one_device: bool) {
    let mut rigs = two(seed, one_device);
    let mut rng = Rng::new(seed);
    let mut captured: Vec<Token> = Vec::new();
    for rig in &mut rigs {
        rig.enter();
        let steps = steps(rig, &mut rng, true);
        captured.push(Token::capture(rig, &steps, Shape::of(2)));
    }
    for round in 0..4 {
        let routes = [0, 1].map(|index| {
            let token = &captured[index];
            tokens(&rigs[index], &mut rng, &token.steps, 2, 1).remove(0)
        });
        // Both are on their way before either is waited for.
        for (rig, (token, routes)) in rigs.iter().zip(captured.iter().zip(&routes)) {
            token.put(rig, routes);
            rig.engine.launch(token.exec, rig.stream);
        }
        for (rig, (token, routes)) in rigs.iter_mut().zip(captured.iter().zip(&routes)) {
            let answers = token.answers(rig);
            assert_eq!(answers, token.on_host(rig, routes), "seed {seed} round {round}");
            rig.check_bytes(&format!("seed {seed} round {round}"));
        }
    }
    // A rebuild of one is nothing to the other.
    let geometry = rigs[0].twin.geometry().clone();
    rigs[0].leave("left");
    rigs[0].cache.rebuild(geometry.clone(), Keep::WhatFits, u64::MAX).unwrap();
    rigs[0].twin.rebuild(geometry, Keep::WhatFits, u64::MAX).unwrap();
    rigs[0].enter();
    let routes = tokens(&rigs[1], &mut rng, &captured[1].steps, 2, 3);
    captured[1].replay(&mut rigs[1], &routes, "the other one");
    rigs[1].cache.check_device().unwrap();
    rigs.iter_mut().for_each(|rig| rig.leave(&format!("seed {seed}")));
    end(rigs);
}

#[test]
fn graphs_of_two_caches_are_launched_at_once() {
    for seed in 200..208 {
        graphs_of_both(seed, seed % 2 == 0);
    }
}

#[test]
fn two_caches_in_one_graph() {
    for seed in 300..308 {
        let [mut model, mut draft] = two(seed, true);
        let mut rng = Rng::new(seed);
        let of_draft = draft.stream;
        draft.stream = model.stream;
        let capture = |rig: &mut Rig, rng: &mut Rng| {
            rig.enter();
            let steps: Vec<Step> = steps(rig, rng, true);
            Token::room(rig, &steps, Shape::of(2))
        };
        let mut of_both = [capture(&mut model, &mut rng), capture(&mut draft, &mut rng)];
        model.engine.begin_capture(model.stream);
        of_both[0].enqueue(&mut model);
        of_both[1].enqueue(&mut draft);
        let exec = model.engine.end_capture(model.stream);
        of_both.iter_mut().for_each(|token| token.exec = exec);
        for round in 0..4 {
            let at = format!("seed {seed} round {round}");
            let routes = [(&model, 0), (&draft, 1)]
                .map(|(rig, index)| tokens(rig, &mut rng, &of_both[index].steps, 2, 1).remove(0));
            of_both[0].put(&model, &routes[0]);
            of_both[1].put(&draft, &routes[1]);
            model.engine.launch(exec, model.stream);
            for (rig, index) in [(&mut model, 0), (&mut draft, 1)] {
                let answers = of_both[index].answers(rig);
                assert_eq!(answers, of_both[index].on_host(rig, &routes[index]), "{at}");
                rig.check_reading(&at);
                rig.check_bytes(&at);
            }
        }
        model.leave("at the end");
        draft.leave("at the end");
        draft.stream = of_draft;
        end([model, draft]);
    }
}
