//! What was captured and is launched too late: after the residency left the device, after a rebuild, with other staging
//! buffers. And what is good again.

use ftcache::{Budget, Constraints, Error, Geometry, Keep, Staging, Step, Stream, Streams};
use ftcache_testkit::Rng;
use insta::assert_snapshot;

use crate::graphs::tokens;
use crate::prefill::check_staged;
use crate::rig::{Form, Rig, Rows, layer};
use crate::shapes::{self, LAYOUTS};
use crate::token::{Shape, Token};

fn geometry(slots: u64) -> Geometry {
    let model = shapes::model(6, 2, &[LAYOUTS[0], LAYOUTS[2], LAYOUTS[0]]);
    Geometry::new(model, Constraints::new(Budget::Slots(slots))).unwrap()
}

fn steps(rig: &Rig) -> Vec<Step> {
    rig.model().layer_ids().map(Step::new).collect()
}

/// A rig in device mode with a graph of all layers, which has been launched. The engine reads nothing in it, as that
/// would be in memory that goes with the slots.
fn captured(seed: u64, slots: u64) -> (Rig, Token) {
    let mut rig = Rig::new(seed, geometry(slots));
    rig.enter();
    let steps = steps(&rig);
    let token = Token::capture(&mut rig, &steps, Shape { reads: false, ..Shape::of(2) });
    replay(&mut rig, &token, seed, "in time");
    (rig, token)
}

fn replay(rig: &mut Rig, token: &Token, seed: u64, at: &str) {
    let routes = tokens(rig, &mut Rng::new(seed), &token.steps, 2, 4);
    token.replay(rig, &routes, at);
    rig.cache.check_device().unwrap_or_else(|error| panic!("{at}: {error}"));
}

/// Launches a graph too late. Whatever it asks for, it is answered -1, and nothing is copied. Returns what is told.
#[track_caller]
fn launch_late(rig: &mut Rig, token: &Token, at: &str) -> Error {
    for ids in [[0, 1], [3, 5]] {
        let answers = token.launch(rig, &vec![ids.to_vec(); token.steps.len()]);
        assert!(answers.iter().flatten().all(|&slot| slot == -1), "{at}: {answers:?}");
    }
    rig.check_bytes(at);
    rig.cache.check_device().unwrap_err()
}

#[test]
fn a_launch_while_the_residency_is_with_the_host_is_refused_and_told_once() {
    let (mut rig, token) = captured(1, 7);
    rig.leave("left");
    let told = launch_late(&mut rig, &token, "left");
    assert_snapshot!(told, @"after step 12: layer 0: the residency is with the host; 11 more launches were refused");
    rig.cache.check_device().unwrap();
    rig.check_same("left");
    // The host goes on as if there had been no launch.
    rig.host_step(layer(1), &[4, 5], "on the host");
    rig.check_bytes("on the host");
    rig.end();
}

#[test]
fn a_graph_is_good_again_when_the_residency_is_back_and_there_was_no_rebuild() {
    let (mut rig, token) = captured(2, 7);
    for round in 0..4 {
        let at = format!("round {round}");
        rig.leave(&at);
        rig.host_step(layer(0), &[round, 5 - round], &at);
        if round == 1 {
            let told = launch_late(&mut rig, &token, &at);
            assert!(told.to_string().contains("with the host"), "{told}");
        }
        if round == 2 {
            rig.cache.reset().unwrap();
            rig.twin.reset().unwrap();
        }
        rig.enter();
        replay(&mut rig, &token, 10 + round as u64, &at);
    }
    rig.leave("at the end");
    rig.end();
}

/// What an admission decided is of no use any more once the residency was with the host.
#[test]
fn a_gather_before_any_admission_copies_nothing() {
    let (mut rig, token) = captured(12, 7);
    let decided = token.steps.iter().map(|step| rig.cache.plan_on_device(step.layer).unwrap().copies.len());
    assert!(decided.sum::<usize>() > 0, "there were copies");
    rig.leave("left");
    // Other experts in the slots of those.
    rig.cache.reset().unwrap();
    rig.twin.reset().unwrap();
    rig.host_step(layer(0), &[4, 5], "on the host");
    rig.host_step(layer(1), &[4, 5], "on the host");
    rig.enter();
    for step in &token.steps {
        rig.cache.gather_on_device(rig.stream, step.layer).unwrap();
        assert!(rig.cache.plan_on_device(step.layer).unwrap().copies.is_empty());
    }
    rig.check_bytes("gathers alone");
    rig.leave("at the end");
    rig.end();
}

/// Rebuilds both caches.
fn rebuild(rig: &mut Rig, slots: u64, keep: Keep) {
    let report = rig.cache.rebuild(geometry(slots), keep, u64::MAX).unwrap();
    assert_eq!(rig.twin.rebuild(geometry(slots), keep, u64::MAX).unwrap().kept, report.kept);
}

#[test]
fn a_graph_from_before_a_rebuild_is_refused_and_one_captured_anew_is_good() {
    for (seed, slots) in [(3, 9), (4, 7), (5, 5)] {
        for keep in [Keep::WhatFits, Keep::Nothing] {
            let at = format!("seed {seed}, {slots} slots, {keep:?}");
            let (mut rig, mut token) = captured(seed, 7);
            rig.leave(&at);
            rebuild(&mut rig, slots, keep);
            let told = launch_late(&mut rig, &token, &at);
            assert!(told.to_string().contains("with the host"), "{at}: {told}");
            rig.enter();
            rig.step(layer(0), &[2, 3], Form::default(), &at);
            let told = launch_late(&mut rig, &token, &at).to_string();
            let wanted =
                "layer 0: captured in generation 1; the slots are of generation 2; 11 more launches were refused";
            assert!(told.ends_with(wanted), "{at}: {told}");
            rig.check_reading(&at);
            // Between stale launches and after them, what is launched in time goes on.
            rig.step(layer(1), &[2, 3], Form::default(), &at);
            let stale = token.exec;
            token.capture_anew(&mut rig);
            replay(&mut rig, &token, seed, &at);
            let fresh = std::mem::replace(&mut token.exec, stale);
            launch_late(&mut rig, &token, &at);
            token.exec = fresh;
            replay(&mut rig, &token, seed + 1, &at);
            rig.leave(&at);
            rig.end();
        }
    }
}

#[test]
fn many_rebuilds_each_make_all_before_them_stale() {
    let (mut rig, mut token) = captured(6, 7);
    let mut graphs = vec![token.exec];
    for round in 0..4_u64 {
        rig.leave("left");
        rebuild(&mut rig, 5 + round, Keep::WhatFits);
        rig.enter();
        for (generation, &graph) in (1..).zip(&graphs) {
            token.exec = graph;
            let told = launch_late(&mut rig, &token, "stale").to_string();
            let wanted = format!("captured in generation {generation}; the slots are of generation {}", round + 2);
            assert!(told.contains(&wanted), "{told}");
        }
        token.capture_anew(&mut rig);
        replay(&mut rig, &token, round, "anew");
        graphs.push(token.exec);
    }
    rig.leave("at the end");
    rig.end();
}

#[test]
fn other_staging_buffers_make_graphs_stale_too() {
    let (mut rig, mut token) = captured(7, 18);
    for round in 0..3 {
        rig.leave("left");
        let staging = match round {
            0 => Staging::borrowed(rig.cache.geometry()).unwrap().without_overlap(),
            1 => Staging::dedicated(rig.cache.geometry(), 2),
            _ => Staging::dedicated(rig.cache.geometry(), 1),
        };
        rig.cache.set_staging(staging.clone(), 10).unwrap();
        rig.twin.set_staging(staging, 10).unwrap();
        rig.enter();
        let told = launch_late(&mut rig, &token, "stale").to_string();
        let wanted = format!("captured in generation {}; the slots are of generation {}", round + 1, round + 2);
        assert!(told.contains(&wanted), "{told}");
        // There is room for what these need.
        for buffer in 0..rig.cache.residency().staging().unwrap().buffer_count() {
            rig.cache.begin_chunk_on_device(rig.stream).unwrap();
            rig.cache.stage_on_device(rig.stream, layer(1), buffer).unwrap();
            check_staged(&mut rig, layer(1), buffer, &format!("round {round}"));
            rig.cache.end_chunk_on_device(rig.stream).unwrap();
            rig.twin.begin_chunk(Streams::one(Stream::DEFAULT)).unwrap();
            rig.twin.end_chunk().unwrap();
        }
        token.capture_anew(&mut rig);
        replay(&mut rig, &token, round, "anew");
    }
    // Entering again with the same buffers is nothing new.
    rig.leave("left");
    rig.enter();
    replay(&mut rig, &token, 9, "again");
    rig.leave("at the end");
    rig.end();
}

/// Rows that an engine has moved while the residency was with the host.
#[test]
fn a_graph_reads_rows_where_they_were_attached_last() {
    let (mut rig, token) = captured(8, 7);
    rig.leave("left");
    let moved = Rows::new(rig.model(), 2);
    let pinned = rig.engine.pinned(moved.bytes().len());
    rig.engine.put(pinned, 0, moved.bytes());
    moved.attach_at(&mut rig.cache, pinned);
    // What was there before is to be read by nobody.
    rig.twin.synchronize_all().unwrap();
    let mut twin_rows = Rows::new(rig.model(), 0);
    std::mem::swap(&mut twin_rows, &mut rig.rows);
    rig.rows.attach(&mut rig.twin);
    twin_rows.spoil();
    rig.enter();
    replay(&mut rig, &token, 3, "moved");
    rig.check_bytes("moved");
    rig.leave("at the end");
    // The spoilt rows are registered until the cache is gone.
    let world = rig.close();
    drop(twin_rows);
    world.check_gone();
}

#[test]
fn nothing_of_a_chunk_that_is_launched_too_late_touches_a_slot() {
    let mut rig = Rig::new(11, geometry(18));
    let staging = Staging::borrowed(rig.cache.geometry()).unwrap();
    rig.cache.set_staging(staging, 0).unwrap();
    rig.enter();
    rig.engine.begin_capture(rig.stream);
    rig.cache.begin_chunk_on_device(rig.stream).unwrap();
    for (number, buffer) in [(0, 0), (1, 1), (2, 0)] {
        rig.cache.stage_on_device(rig.stream, layer(number), buffer).unwrap();
    }
    rig.cache.end_chunk_on_device(rig.stream).unwrap();
    let exec = rig.engine.end_capture(rig.stream);
    rig.leave("left");
    for number in 0..3 {
        rig.host_step(layer(number), &[0, 1, 2, 3, 4, 5], "on the host");
    }
    rig.check_bytes("before the launch");
    rig.engine.launch(exec, rig.stream);
    rig.engine.sync(rig.stream);
    rig.check_bytes("after a launch while the residency is with the host");
    assert!(rig.cache.check_device().is_err());
    let keep = Keep::WhatFits;
    rig.cache.rebuild(geometry(17), keep, u64::MAX).unwrap();
    rig.twin.rebuild(geometry(17), keep, u64::MAX).unwrap();
    rig.enter();
    rig.check_bytes("before the launch");
    rig.engine.launch(exec, rig.stream);
    rig.engine.sync(rig.stream);
    rig.check_bytes("after a launch behind a rebuild");
    rig.leave("at the end");
    rig.end();
}
