//! Chunks in a graph, over one stream or over two: a layer is staged while the one before it computes.

use ftcache::{Cache, LayerId, Staging, Step, Stream, Streams};
use ftcache_testkit::Rng;

use crate::engine::{Buffer, ok};
use crate::graphs::tokens;
use crate::prefill::expected;
use crate::rig::{Rig, layer};
use crate::shapes::{self, LAYOUTS, pick};
use crate::token::{Shape, Token};

/// How fills and readers are ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    OneStream,
    /// A fill waits for the reader of the layer that was in its buffer, a reader for its fill.
    Overlapped,
    /// A fill does not wait for the reader.
    FillsEarly,
    /// A reader does not wait for its fill.
    ReadsEarly,
}

/// A chunk in a graph, and where the engine's copies of what was staged lie.
struct Chunk {
    exec: u64,
    /// Of each layer, bank by bank.
    outputs: Vec<Vec<Buffer>>,
}

/// The engine's kernel: a copy of a staged layer.
fn read_staged(rig: &Rig, stream: Stream, layer: LayerId, buffer: u32, outputs: &[Buffer]) {
    let _entered = rig.engine.enter();
    let spans = rig.model().bank_ids().filter_map(|bank| rig.cache.staged(layer, bank, buffer as usize).unwrap());
    for (span, output) in spans.zip(outputs) {
        ok((rig.engine.raw.cuMemcpyDtoDAsync_v2)(output.address, span.address, output.bytes, stream.raw()));
    }
}

fn capture(rig: &mut Rig, order: Order) -> Chunk {
    let layers: Vec<LayerId> = rig.model().layer_ids().collect();
    let banks = |rig: &Rig, layer| -> Vec<Buffer> {
        let banks = rig.model().bank_ids().filter(|&bank| rig.model().row_bytes(layer, bank) > 0);
        banks.map(|bank| rig.engine.memory(expected(rig, layer, bank).len())).collect()
    };
    let outputs: Vec<Vec<Buffer>> = layers.iter().map(|&layer| banks(rig, layer)).collect();
    let buffer_count = rig.twin.residency().staging().unwrap().buffer_count();
    let main = rig.stream;
    let fills = if order == Order::OneStream { main } else { rig.engine.stream() };
    rig.engine.begin_capture(main);
    rig.cache.begin_chunk_on_device(main).unwrap();
    let fill = |rig: &mut Rig, index: usize| {
        if order != Order::OneStream && (index == 0 || order != Order::FillsEarly) {
            rig.engine.order(main, fills);
        }
        rig.cache.stage_on_device(fills, layers[index], index as u32 % buffer_count).unwrap();
    };
    fill(rig, 0);
    for index in 0..layers.len() {
        if !matches!(order, Order::OneStream | Order::ReadsEarly) {
            rig.engine.order(fills, main);
        }
        // The next one is on its way while this one is read.
        let ahead = buffer_count == 2 && index + 1 < layers.len();
        if ahead {
            fill(rig, index + 1);
        }
        read_staged(rig, main, layers[index], index as u32 % buffer_count, &outputs[index]);
        if !ahead && index + 1 < layers.len() {
            fill(rig, index + 1);
        }
    }
    if order != Order::OneStream {
        rig.engine.order(fills, main);
    }
    rig.cache.end_chunk_on_device(main).unwrap();
    Chunk { exec: rig.engine.end_capture(main), outputs }
}

/// A chunk with the twin.
fn on_host(twin: &mut Cache<ftcache::HostDevice>) {
    twin.begin_chunk(Streams::one(Stream::DEFAULT)).unwrap();
    twin.abandon_chunk().unwrap();
}

#[track_caller]
fn check(rig: &Rig, chunk: &Chunk, at: &str) {
    for (layer, outputs) in (0..).map(LayerId::new).zip(&chunk.outputs) {
        let banks = rig.model().bank_ids().filter(|&bank| rig.model().row_bytes(layer, bank) > 0);
        for (bank, output) in banks.zip(outputs) {
            let seen = rig.engine.read(output.address, output.bytes);
            let wanted = expected(rig, layer, bank);
            let differs = seen.iter().zip(&wanted).position(|(seen, wanted)| seen != wanted);
            assert!(differs.is_none(), "{at}: layer {layer} bank {bank}: byte {differs:?} of {}", wanted.len());
        }
    }
}

/// Layers, of one layout or of several, with slots for more than two of them.
fn rig(rng: &mut Rng, seed: u64) -> Rig {
    let layouts = if rng.chance(1, 3) {
        vec![pick(rng, &LAYOUTS[..4]); 3]
    } else {
        vec![LAYOUTS[0], LAYOUTS[1], LAYOUTS[0], LAYOUTS[2]]
    };
    loop {
        let model = shapes::model(5, 2, &layouts);
        let geometry = shapes::geometry_of(rng, model);
        if !geometry.constraints().slotless_layers.is_empty() || Staging::borrowed(&geometry).is_err() {
            continue;
        }
        let mut rig = Rig::ruled(seed, geometry);
        let borrowed = Staging::borrowed(rig.twin.geometry()).unwrap();
        let staging = match rng.below(4) {
            0 => borrowed.without_overlap(),
            1 => Staging::dedicated(rig.twin.geometry(), 2),
            _ => borrowed,
        };
        let small_row_bytes = pick(rng, &[0, 0, 18, 1 << 20]);
        rig.cache.set_staging(staging.clone(), small_row_bytes).unwrap();
        rig.twin.set_staging(staging, small_row_bytes).unwrap();
        return rig;
    }
}

fn decode_and_prefill(seed: u64, order: Order) {
    let mut rng = Rng::new(seed);
    let mut rig = rig(&mut rng, seed);
    rig.enter();
    let chunk = capture(&mut rig, order);
    let steps: Vec<Step> = rig.model().layer_ids().map(Step::new).collect();
    let token = Token::capture(&mut rig, &steps, Shape::of(2));
    for round in 0..4 {
        let at = format!("seed {seed} {order:?} round {round}");
        let routes = tokens(&rig, &mut rng, &steps, 2, 3);
        token.replay(&mut rig, &routes, &at);
        rig.engine.launch(chunk.exec, rig.stream);
        rig.engine.sync(rig.stream);
        on_host(&mut rig.twin);
        check(&rig, &chunk, &at);
        rig.check_reading(&at);
        rig.check_bytes(&at);
        rig.cache.check_device().unwrap();
    }
    rig.leave(&format!("seed {seed}"));
    rig.end();
}

#[test]
fn a_chunk_in_a_graph_is_launched_between_tokens() {
    for seed in 0..15 {
        decode_and_prefill(seed, Order::OneStream);
    }
}

#[test]
fn a_chunk_in_a_graph_stages_a_layer_while_another_is_read() {
    for seed in 100..115 {
        decode_and_prefill(seed, Order::Overlapped);
    }
}

#[test]
fn fills_and_readers_without_order_are_races() {
    for (order, words) in [(Order::FillsEarly, "ftcache_"), (Order::ReadsEarly, "ftcache_")] {
        let model = shapes::model(5, 2, &[LAYOUTS[0]; 4]);
        let mut rig = Rig::new(3, ftcache::Geometry::new(model, shapes::slots(14)).unwrap());
        let staging = Staging::borrowed(rig.twin.geometry()).unwrap();
        assert_eq!(staging.buffer_count(), 2);
        rig.cache.set_staging(staging.clone(), 0).unwrap();
        rig.twin.set_staging(staging, 0).unwrap();
        rig.enter();
        let chunk = capture(&mut rig, order);
        rig.engine.launch(chunk.exec, rig.stream);
        rig.engine.sync(rig.stream);
        let races = rig.emulated().races();
        let seen = races.iter().any(|race| race.contains(words) && race.contains("cuMemcpyDtoDAsync"));
        assert!(seen, "{order:?}: {races:?}");
        rig.cache.leave_device_mode().unwrap();
        rig.end();
    }
}

/// A chunk that is not in a graph, between tokens that are.
#[test]
fn a_chunk_between_launches_of_a_graph_leaves_it_good() {
    let mut rng = Rng::new(4);
    let mut rig = rig(&mut rng, 4);
    rig.enter();
    let steps: Vec<Step> = rig.model().layer_ids().map(Step::new).collect();
    let token = Token::capture(&mut rig, &steps, Shape::of(2));
    for round in 0..3 {
        let at = format!("round {round}");
        let routes = tokens(&rig, &mut rng, &steps, 2, 3);
        token.replay(&mut rig, &routes, &at);
        let stream = rig.stream;
        rig.cache.begin_chunk_on_device(stream).unwrap();
        rig.cache.materialize_on_device(stream, layer(1), 0).unwrap();
        rig.cache.end_chunk_on_device(stream).unwrap();
        on_host(&mut rig.twin);
        rig.check_bytes(&at);
    }
    rig.leave("at the end");
    rig.end();
}
