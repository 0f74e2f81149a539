//! Victims by score over many steps: both sides beside each other, the recorded trace, the residency here and there, and
//! graphs that outlive their rule.

use std::fs::File;

use ftcache_policy::{Eviction, ExpertId, FetchRule};
use ftcache_residency::{Cache, Phase, Step};
use ftcache_testkit::Rng;
use ftcache_trace::{Events, Trace};
use ftcache_transfer::{Device, Fault, FaultReport};

use crate::graphs::{Graph, admit, end, replay, start};
use crate::rig::{ABSENT, Form, Rig};
use crate::states::{SCORED, decode, empty, fraction, hybrid, layer, of_layer, one_pool, prefill, ruled, span};

const PLAIN: Form = Form::PLAIN;

/// Experts that come again: some of a layer's last, some near each other, and about as many as are followed.
struct Routes {
    rng: Rng,
    experts: u64,
    /// `last[layer]`.
    last: Vec<Vec<i64>>,
}

impl Routes {
    fn new(seed: u64, layers: usize, experts: u64) -> Self {
        Self { rng: Rng::new(seed), experts, last: vec![Vec::new(); layers] }
    }

    fn next(&mut self, layer: usize) -> Vec<i64> {
        let rng = &mut self.rng;
        let width = [0, 1, 2, 6, 6, 8, 15, 16, 17, 18, 30][rng.below(11) as usize];
        let first = rng.below(self.experts);
        let near = (0..width).map(|at| ((first + at * 3) % self.experts) as i64);
        let mut ids: Vec<i64> = self.last[layer].iter().copied().filter(|_| rng.chance(1, 2)).chain(near).collect();
        ids.truncate(width as usize);
        self.last[layer].clone_from(&ids);
        if rng.chance(1, 5) {
            ids.extend(ids.clone());
        }
        ids.extend((0..rng.below(3)).map(|_| ABSENT));
        ids
    }
}

/// Hundreds of steps of several layers over two pools: hybrid ones that fetch some or nothing, prompts, steps too wide,
/// and steps of absent routes alone among them.
fn long(seed: u64, rule: Eviction) {
    let (layers, experts) = (5, 48);
    let mut cache = ruled(rule, empty(experts, &[0, 1, 0, 0, 1], &[40, 26]));
    cache.pin(&of_layer(2, [5, 6]), 8).unwrap();
    let mut rig = Rig::new(seed, cache);
    let mut routes = Routes::new(seed, layers, experts.into());
    for number in 0..400_u32 {
        let at = format!("{rule} seed {seed} step {number}");
        if number % 97 == 0 {
            rig.tables.set_threads(32 << (number / 97 % 4)).unwrap();
        }
        let of = number % layers as u32;
        let ids = routes.next(of as usize);
        let step = match routes.rng.below(10) {
            0 => prefill(of),
            1 => hybrid(of, FetchRule::UpTo(0)),
            2 | 3 => hybrid(of, FetchRule::Carry(fraction(0.4))),
            _ => decode(of),
        };
        rig.step(step, &ids, PLAIN, &at);
        if number % 131 == 130 {
            rig.step(decode(of), &span(0, 42), PLAIN, &format!("{at}, too wide"));
        }
        if number == 260 {
            rig.tables.reset(&mut rig.device, rig.stream).unwrap();
            rig.host.reset();
        }
        if number % 50 == 49 {
            rig.compare(&at);
        }
    }
    let stats = rig.host.total_stats();
    assert!(stats.evictions > 250 && stats.refused >= 3 && stats.hit_routes > 250, "{rule} seed {seed}: {stats:?}");
    rig.end();
}

#[test]
fn long_runs_decide_alike_on_both_sides() {
    for (seed, rule) in (0..).zip(SCORED) {
        long(seed, rule);
    }
    long(10, Eviction::Learned);
}

/// The first tokens of what a model was recorded to route to, through all its layers over one pool.
#[test]
fn a_recorded_trace_misses_as_often_on_both_sides() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/traces/tinymoe-8l64e.ftr.zst");
    let events = Events::of(&Trace::read(File::open(path).unwrap()).unwrap());
    let misses = Eviction::ALL.map(|rule| {
        let mut rig = Rig::new(1, ruled(rule, one_pool(events.layers() as usize, events.experts(), 128)));
        rig.tables.set_threads(64).unwrap();
        for (number, event) in events.iter().take(8 * 60).enumerate() {
            let ids: Vec<i64> = event.experts.iter().map(|&expert| i64::from(expert)).collect();
            rig.step(decode(event.layer), &ids, PLAIN, &format!("{rule} event {number}"));
        }
        rig.compare(rule.name());
        let misses = rig.twin.total_stats().misses;
        rig.end();
        misses
    });
    assert_eq!(misses, [1468, 1286, 1262, 1226]);
}

/// What the host does to both: steps of its own kinds, drafts and what becomes of them.
fn host_steps(cache: &mut Cache, rng: &mut Rng) {
    let mut plan = ftcache_residency::Plan::new();
    for _ in 0..3 {
        let of = layer(rng.below(3) as u32);
        let routes: Vec<ExpertId> = (0..1 + rng.below(6)).map(|_| ExpertId::new(rng.below(20) as u32)).collect();
        let phase = [Phase::Decode, Phase::Verify, Phase::Prefill][rng.below(3) as usize];
        let step = Step { phase, continues: rng.chance(1, 4), ..Step::new(of) };
        cache.ensure(step, &routes, &mut plan).unwrap().commit();
        if phase == Phase::Verify {
            cache.accept(of, &routes[..1]).unwrap();
        }
    }
}

#[test]
fn scores_go_here_and_there() {
    for seed in 0..12 {
        let rule = SCORED[seed as usize % 3];
        let mut rig = Rig::new(seed, ruled(rule, one_pool(3, 20, 14)));
        rig.tables.set_threads(32).unwrap();
        let mut routes = Routes::new(seed, 3, 20);
        for round in 0..8_u32 {
            let at = format!("{rule} seed {seed} round {round}");
            for number in 0..4 {
                let of = (round + number) % 3;
                let mut ids = routes.next(of as usize);
                ids.truncate(12);
                rig.step(decode(of), &ids, PLAIN, &at);
            }
            rig.tables.disengage(&mut rig.device, &mut rig.twin).unwrap();
            assert_eq!((rig.twin.digest(), rig.twin.state()), (rig.host.digest(), rig.host.state()), "{at}");
            // Not the same steps, but of the same seed.
            let mut rng = Rng::new(seed * 100 + u64::from(round));
            host_steps(&mut rig.twin, &mut rng.clone());
            host_steps(&mut rig.host, &mut rng);
            rig.tables.engage(&mut rig.device, &rig.twin).unwrap();
        }
        rig.compare(&format!("{rule} seed {seed}"));
        rig.end();
    }
}

/// From every rule to every other. The same rule again starts counting anew in the same place, and what was captured is
/// good.
#[test]
fn a_graph_of_another_rule_is_refused() {
    for from in Eviction::ALL {
        for to in Eviction::ALL {
            let (engine, mut rig) = start(3, ruled(from, one_pool(2, 16, 8)));
            let layout = rig.layout(0, 3, PLAIN);
            let graph = Graph::captured(&engine, &mut rig, |rig| admit(rig, decode(0), &layout));
            let at = format!("{from} to {to}");
            for ids in [[1, 2, 3], [4, 5, 1], [6, 7, 8]] {
                let answer = replay(&mut rig, &graph, &layout, decode(0), &ids);
                assert_eq!(answer, rig.expected(decode(0), &ids, PLAIN).unwrap(), "{at}");
            }
            rig.change_rule(to);
            let answer = replay(&mut rig, &graph, &layout, decode(0), &[9, 10, 2]);
            if from == to {
                assert_eq!(answer, rig.expected(decode(0), &[9, 10, 2], PLAIN).unwrap(), "{at}");
            } else {
                assert_eq!(answer.slots, [-1; 3], "{at}");
                let first = Fault::StaleGeneration { layer: layer(0), captured: 1, current: 2 };
                assert_eq!(rig.tables.take_faults(), Some(FaultReport { first, step: 3, count: 1 }), "{at}");
                // Nor is it good under its own rule again: that has counted nothing.
                rig.change_rule(from);
                let answer = replay(&mut rig, &graph, &layout, decode(0), &[9, 10, 2]);
                assert_eq!(answer.slots, [-1; 3], "{at} and back");
                assert_eq!(rig.tables.take_faults().map(|faults| faults.count), Some(1), "{at} and back");
            }
            drop(graph);
            rig.step(decode(1), &[3, 4], PLAIN, &at);
            rig.compare(&at);
            end(engine, rig);
        }
    }
}

/// A reading beside hundreds of steps has each time the digest of the host.
#[test]
fn readings_tell_what_is_counted() {
    for rule in SCORED {
        let mut rig = Rig::new(4, ruled(rule, one_pool(2, 20, 20)));
        rig.tables.set_threads(32).unwrap();
        let mut routes = Routes::new(4, 2, 20);
        let mut digests = Vec::new();
        for number in 0..60_u32 {
            let mut ids = routes.next(number as usize % 2);
            ids.truncate(16);
            rig.step(decode(number % 2), &ids, PLAIN, rule.name());
            rig.tables.request_reading(&mut rig.device, rig.stream).unwrap();
            rig.device.synchronize(rig.stream).unwrap();
            let reading = rig.tables.reading().unwrap();
            assert_eq!((reading.step, reading.digest), (rig.host.step(), rig.host.digest()), "{rule} step {number}");
            digests.push(reading.digest);
        }
        digests.sort_unstable();
        digests.dedup();
        assert_eq!(digests.len(), 60, "{rule}");
        rig.end();
    }
}
