//! Prefill on the device: chunks whose layers are staged by kernels, with steps in them, beside a twin that stages on
//! the host.

use ftcache::{LayerId, Staging, Stream, Streams};
use ftcache_testkit::Rng;
use insta::assert_snapshot;

use crate::rig::{Form, Rig, layer, row};
use crate::shapes::{self, LAYOUTS, pick};

const ONE: Streams = Streams::one(Stream::DEFAULT);

fn layers(rig: &Rig) -> Vec<LayerId> {
    rig.model().layer_ids().filter(|&layer| rig.twin.residency().pool_of(layer).is_ok()).collect()
}

/// Buffers that a geometry has room for, or some of their own.
fn staging(rng: &mut Rng, rig: &Rig) -> Staging {
    match Staging::borrowed(rig.twin.geometry()) {
        Ok(staging) if rng.chance(1, 4) => staging.without_overlap(),
        Ok(staging) if rng.chance(3, 4) => staging,
        _ => Staging::dedicated(rig.twin.geometry(), 1 + rng.below(2) as u32),
    }
}

fn set_staging(rig: &mut Rig, staging: &Staging, small_row_bytes: u64) {
    rig.cache.set_staging(staging.clone(), small_row_bytes).unwrap();
    rig.twin.set_staging(staging.clone(), small_row_bytes).unwrap();
}

/// A staged layer in a bank as it is to lie there: rows, and zeros between them and behind them if bytes of another
/// layout could be there.
pub(crate) fn expected(rig: &Rig, layer: LayerId, bank: ftcache::BankId) -> Vec<u8> {
    let geometry = rig.twin.geometry();
    let range = geometry.pool(geometry.pool_of_layer(layer).unwrap()).ranges()[bank.index()];
    let experts = geometry.model().expert_count();
    let mut wanted = Vec::new();
    for expert in 0..experts {
        wanted.extend(row(layer.get(), expert, bank.get(), range.row_bytes));
        wanted.extend(vec![0; (range.stride - range.row_bytes) as usize]);
    }
    if has_several_layouts(rig) {
        wanted.extend(vec![0; range.tail_pad_bytes as usize]);
    } else {
        wanted.truncate(wanted.len() - (range.stride - range.row_bytes) as usize);
    }
    wanted
}

pub(crate) fn has_several_layouts(rig: &Rig) -> bool {
    let model = rig.model();
    let mut keys = layers(rig).into_iter().map(|layer| model.layer(layer).clone());
    let first = keys.next();
    keys.any(|key| Some(key) != first)
}

/// Every byte of a staged layer, in every bank.
#[track_caller]
pub(crate) fn check_staged(rig: &mut Rig, layer: LayerId, buffer: u32, at: &str) {
    rig.engine.sync(rig.stream);
    for bank in rig.model().clone().bank_ids() {
        let Some(span) = rig.cache.staged(layer, bank, buffer as usize).unwrap() else { continue };
        let wanted = expected(rig, layer, bank);
        let seen = rig.engine.read(span.address, wanted.len());
        let differs = seen.iter().zip(&wanted).position(|(seen, wanted)| seen != wanted);
        assert!(
            differs.is_none(),
            "{at}: layer {layer} bank {bank} buffer {buffer}: byte {differs:?} of rows of {} at {}",
            span.row_bytes,
            span.stride
        );
    }
}

/// A step on both sides in which no slot under a buffer is handed out.
#[track_caller]
fn step_in_chunk(rig: &mut Rig, rng: &mut Rng, staging: &Staging, at: &str) {
    let layers = layers(rig);
    let step = shapes::step(rng, &layers, true);
    let ids = shapes::ids(rng, rig.model().expert_count(), u64::from(rig.model().top_k()));
    let form = Form { in_place: true, ..shapes::form(rng) };
    rig.step(step, &ids, form, at);
    let stable_from = match staging.is_borrowed() {
        true => staging.stable_from(rig.twin.residency().pool_of(step.layer).unwrap()),
        false => 0,
    };
    let slots = rig.answer(ids.len(), form).0;
    assert!(slots.iter().all(|&slot| slot < 0 || slot >= i64::from(stable_from)), "{at}: {slots:?}, {stable_from}");
}

/// A chunk on the device and with the twin, with steps between the layers.
fn chunk(rig: &mut Rig, rng: &mut Rng, staging: &Staging, at: &str) {
    let mut order = layers(rig);
    let turn = rng.below(order.len() as u64) as usize;
    order.rotate_left(turn);
    let stays = rig.residents();
    rig.cache.begin_chunk_on_device(rig.stream).unwrap();
    rig.twin.begin_chunk(ONE).unwrap();
    rig.check_reading(at);
    let is_stable = |(pool, slot, ..): &&(_, ftcache::SlotId, _, _)| {
        !staging.is_borrowed() || slot.get() >= staging.stable_from(*pool)
    };
    assert_eq!(stays.iter().filter(is_stable).copied().collect::<Vec<_>>(), rig.residents(), "{at}: they stay");
    for (index, &layer) in (0..).zip(&order) {
        let at = format!("{at}, {} buffers, layer {layer}", staging.buffer_count());
        let buffer = index % staging.buffer_count();
        match rng.below(2) {
            0 => rig.cache.stage_on_device(rig.stream, layer, buffer).unwrap(),
            _ => rig.cache.materialize_on_device(rig.stream, layer, buffer).unwrap(),
        }
        check_staged(rig, layer, buffer, &at);
        let stage = if staging.buffer_count() == 2 { ftcache::Cache::prefetch } else { ftcache::Cache::materialize };
        stage(&mut rig.twin, layer).unwrap();
        rig.twin.wait(layer).unwrap();
        if rng.chance(1, 2) {
            step_in_chunk(rig, rng, staging, &at);
            // What is staged stays, and so do residents.
            check_staged(rig, layer, buffer, &at);
            rig.check_residents(&at);
        }
        rig.twin.release(layer).unwrap();
    }
    rig.cache.end_chunk_on_device(rig.stream).unwrap();
    rig.twin.end_chunk().unwrap();
    rig.check_reading(at);
    rig.check_bytes(&format!("{at}, {} buffers, borrowed {}", staging.buffer_count(), staging.is_borrowed()));
}

fn live(seed: u64) {
    let mut rng = Rng::new(seed);
    let geometry = shapes::geometry(&mut rng);
    let mut rig = Rig::ruled(seed, geometry);
    let staging = staging(&mut rng, &rig);
    let small_row_bytes = pick(&mut rng, &[0, 3, 18, 40, 1 << 20]);
    set_staging(&mut rig, &staging, small_row_bytes);
    let layers = layers(&rig);
    for round in 0..2 {
        let at = format!("seed {seed} round {round}");
        rig.enter();
        for _ in 0..3 {
            let step = shapes::step(&mut rng, &layers, false);
            let ids = shapes::ids(&mut rng, rig.model().expert_count(), 6);
            rig.step(step, &ids, shapes::form(&mut rng), &at);
        }
        for number in 0..1 + rng.below(2) {
            chunk(&mut rig, &mut rng, &staging, &format!("{at} chunk {number}"));
            let ids = shapes::ids(&mut rng, rig.model().expert_count(), 6);
            rig.step(pick(&mut rng, &layers), &ids, Form::default(), &at);
        }
        rig.leave(&at);
        // A chunk on the host between.
        rig.cache.begin_chunk(Streams::one(rig.stream)).unwrap();
        rig.twin.begin_chunk(ONE).unwrap();
        rig.host_step(pick(&mut rng, &layers), &[1], &at);
        rig.cache.end_chunk().unwrap();
        rig.twin.end_chunk().unwrap();
        rig.check_same(&at);
    }
    rig.end();
}

#[test]
fn chunks_on_the_device_stage_what_the_host_would_and_cost_the_decode_set_the_same() {
    for seed in 0..60 {
        live(seed);
    }
}

/// Two layouts, so that zeros matter, in slots for all of the two layers that buffers lie on and some more.
fn two_layouts() -> Rig {
    let model = shapes::model(5, 2, &[LAYOUTS[0], LAYOUTS[2], LAYOUTS[0]]);
    let mut rig = Rig::new(9, ftcache::Geometry::new(model, shapes::slots(15)).unwrap());
    let staging = Staging::borrowed(rig.twin.geometry()).unwrap();
    assert_eq!(staging.buffer_count(), 2);
    set_staging(&mut rig, &staging, 0);
    rig
}

#[test]
fn a_chunk_that_is_open_keeps_the_residency_on_the_device() {
    let mut rig = two_layouts();
    rig.enter();
    rig.cache.begin_chunk_on_device(rig.stream).unwrap();
    rig.twin.begin_chunk(ONE).unwrap();
    let told = rig.cache.leave_device_mode().unwrap_err();
    assert_snapshot!(told, @"a prefill chunk is open on the device");
    assert!(rig.cache.is_in_device_mode());
    // It is there still, and goes on.
    rig.cache.stage_on_device(rig.stream, layer(0), 1).unwrap();
    check_staged(&mut rig, layer(0), 1, "after the refusal");
    rig.step(layer(2), &[4], Form::default(), "after the refusal");
    rig.cache.end_chunk_on_device(rig.stream).unwrap();
    rig.twin.abandon_chunk().unwrap();
    rig.check_bytes("ended");
    rig.leave("ended");
    rig.end();
}

#[test]
fn a_layer_that_is_staged_without_a_chunk_is_refused_and_overwrites_nothing() {
    let mut rig = two_layouts();
    rig.enter();
    rig.step(layer(0), &[1, 3], Form::default(), "residents under the buffers");
    for materialize in [false, true] {
        let staged = match materialize {
            true => rig.cache.materialize_on_device(rig.stream, layer(1), 0),
            false => rig.cache.stage_on_device(rig.stream, layer(1), 0),
        };
        staged.unwrap();
        rig.engine.sync(rig.stream);
        let told = rig.cache.check_device().unwrap_err().to_string();
        assert!(told.starts_with("after step 1: layer 1: staged without a chunk; "), "{told}");
        assert!(told.contains(" slots lie under buffers, 0 are withheld"), "{told}");
        rig.check_bytes("without a chunk");
    }
    // With one it goes.
    rig.cache.begin_chunk_on_device(rig.stream).unwrap();
    rig.twin.begin_chunk(ONE).unwrap();
    rig.cache.stage_on_device(rig.stream, layer(1), 0).unwrap();
    check_staged(&mut rig, layer(1), 0, "in a chunk");
    rig.cache.end_chunk_on_device(rig.stream).unwrap();
    rig.twin.abandon_chunk().unwrap();
    rig.cache.check_device().unwrap();
    rig.leave("at the end");
    rig.end();
}

#[test]
fn hits_come_from_their_slots_and_misses_from_the_host() {
    for small_row_bytes in [0, 10, 1 << 20] {
        let mut rig = two_layouts();
        let staging = Staging::dedicated(rig.twin.geometry(), 2);
        set_staging(&mut rig, &staging, small_row_bytes);
        rig.enter();
        rig.step(layer(0), &[1, 3], Form::default(), "two hits");
        // What the slots hold is told from what the host has: the rows there are spoilt, but for the gaps.
        rig.engine.sync(rig.stream);
        rig.rows.spoil();
        rig.cache.stage_on_device(rig.stream, layer(0), 0).unwrap();
        rig.engine.sync(rig.stream);
        for bank in rig.model().clone().bank_ids() {
            let span = rig.cache.staged(layer(0), bank, 0).unwrap().unwrap();
            for expert in 0..5 {
                let seen = rig.engine.read(span.address + u64::from(expert) * span.stride, span.row_bytes as usize);
                let is_gathered = [1, 3].contains(&expert) && span.row_bytes >= small_row_bytes;
                let wanted = match is_gathered {
                    true => row(0, expert, bank.get(), span.row_bytes),
                    false => vec![0xEE; span.row_bytes as usize],
                };
                assert_eq!(seen, wanted, "{small_row_bytes}: expert {expert} bank {bank}");
            }
        }
        rig.leave("at the end");
        rig.end();
    }
}
