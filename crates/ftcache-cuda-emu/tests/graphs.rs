//! Capture, replay, and what no capture permits.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use common::{Rig, ok};
use ftcache_cuda_emu::client::Config;

const GLOBAL: i32 = 0;
const THREAD_LOCAL: i32 = 1;
const RELAXED: i32 = 2;

impl Rig {
    #[track_caller]
    fn begin(&self, stream: u64, mode: i32) {
        ok((self.cu.cuStreamBeginCapture_v2)(stream, mode));
    }

    #[track_caller]
    fn end(&self, stream: u64) -> u64 {
        let mut graph = 0;
        ok((self.cu.cuStreamEndCapture)(stream, &mut graph));
        let mut exec = 0;
        ok((self.cu.cuGraphInstantiateWithFlags)(&mut exec, graph, 0));
        ok((self.cu.cuGraphDestroy)(graph));
        exec
    }

    #[track_caller]
    fn status(&self, stream: u64) -> i32 {
        let mut status = -1;
        ok((self.cu.cuStreamIsCapturing)(stream, &mut status));
        status
    }

    /// The capture is spoiled: it ends in this code and leaves nothing.
    #[track_caller]
    fn ends_in(&self, stream: u64, code: i32) {
        let mut graph = 5;
        assert_eq!(((self.cu.cuStreamEndCapture)(stream, &mut graph), graph), (code, 0));
        assert_eq!((self.status(stream), self.device.counts().graphs), (0, 0));
        self.fill(self.memory(1), 0, 1, stream);
        self.sync(stream);
    }
}

#[test]
fn a_capture_does_nothing_and_its_replay_all() {
    for seed in 0..50 {
        let rig = Rig::new(Config { seed, eager: seed == 0, ..Config::default() });
        let (main, side) = (rig.stream(), rig.stream());
        let (a, b, c, row) = (rig.memory(6000), rig.memory(6000), rig.memory(6000), rig.pinned(&[1; 6000]));
        let runs = Arc::new(AtomicU32::new(0));
        let counter = runs.clone();
        let (fork, join) = (rig.event(), rig.event());
        rig.begin(main, GLOBAL);
        assert_eq!((rig.status(main), rig.status(side)), (1, 0));
        rig.up(a, row, 6000, main);
        rig.record(fork, main);
        rig.wait(side, fork);
        assert_eq!(rig.status(side), 1);
        rig.across(b, a, 6000, side);
        ok(rig.device.launch_often(side, &[], &[], move || {
            counter.fetch_add(1, Ordering::SeqCst);
        }));
        rig.across(c, a, 6000, main);
        rig.record(join, side);
        rig.wait(main, join);
        rig.across(a, b, 3000, main);
        let mut nodes = (0, 0);
        let mut graph = 0;
        ok((rig.cu.cuStreamEndCapture)(main, &mut graph));
        assert_eq!((rig.status(main), rig.status(side), rig.device.counts().queued), (0, 0, 0));
        ok((rig.cu.cuGraphInstantiateWithFlags)(&mut nodes.0, graph, 0));
        let exec = nodes.0;
        assert_eq!((rig.device.counts().graphs, rig.device.counts().graph_execs), (1, 1));
        for round in 1..4_u8 {
            // SAFETY: pinned memory of this length, and what read it was waited for.
            unsafe { std::ptr::write_bytes(row.cast::<u8>(), round, 6000) };
            ok((rig.cu.cuGraphLaunch)(exec, main));
            rig.across(b, c, 1, main);
            rig.sync(main);
            let all = [a, b, c].map(|memory| rig.device.peek(memory, 6000) == [round; 6000]);
            assert_eq!(all, [true; 3], "seed {seed}, round {round}");
            assert_eq!(runs.load(Ordering::SeqCst), u32::from(round));
        }
        // Two launches in two streams: the graph waits for itself, and only the copy of the row races with what
        // follows.
        ok((rig.cu.cuGraphLaunch)(exec, main));
        ok((rig.cu.cuGraphLaunch)(exec, side));
        rig.device.check();
        ok((rig.cu.cuGraphExecDestroy)(exec));
        ok((rig.cu.cuGraphDestroy)(graph));
        ok((rig.cu.cuCtxSynchronize)());
        assert_eq!(runs.load(Ordering::SeqCst), 5);
        assert_eq!((rig.device.counts().graphs, rig.device.counts().graph_execs), (0, 0));
        assert_eq!((rig.cu.cuGraphLaunch)(exec, main), 1);
        rig.one_violation("no graph");
    }
}

#[test]
fn branches_of_a_graph_without_order_race_at_each_launch() {
    for seed in 0..30 {
        let rig = Rig::seeded(seed);
        let (main, side, other) = (rig.stream(), rig.stream(), rig.stream());
        let memory = rig.memory(64);
        rig.begin(main, GLOBAL);
        rig.order(main, side);
        rig.fill(memory, 1, 64, side);
        rig.fill(memory, 2, 64, main);
        rig.order(side, main);
        let exec = rig.end(main);
        assert!(rig.device.races().is_empty());
        for _ in 0..2 {
            ok((rig.cu.cuGraphLaunch)(exec, main));
            assert_eq!(rig.device.races().len(), 1);
        }
        // The whole of it against another stream: of the two fills both are unordered with this one.
        rig.fill(memory, 3, 64, other);
        assert_eq!(rig.device.races().len(), 2);
        rig.order(main, other);
        rig.fill(memory, 3, 64, other);
        assert!(rig.device.races().is_empty());
    }
}

#[test]
fn all_of_a_graph_comes_after_what_is_in_its_stream() {
    for seed in 0..40 {
        let rig = Rig::seeded(seed);
        let (main, side, memory) = (rig.stream(), rig.stream(), rig.memory(64));
        // Two branches that begin with nothing before them.
        rig.begin(main, GLOBAL);
        rig.order(main, side);
        rig.fill(memory, 2, 32, main);
        rig.fill(memory + 32, 2, 32, side);
        rig.order(side, main);
        let exec = rig.end(main);
        rig.fill(memory, 1, 64, main);
        ok((rig.cu.cuGraphLaunch)(exec, main));
        rig.sync(main);
        assert_eq!(rig.device.peek(memory, 64), [2; 64], "seed {seed}");
        rig.device.check();
    }
}

#[test]
fn a_relaxed_capture_has_rules_of_its_own_stream() {
    let rig = Rig::seeded(1);
    let main = rig.stream();
    for call in [rig.cu.cuStreamSynchronize, rig.cu.cuStreamQuery, rig.cu.cuStreamDestroy_v2] {
        rig.begin(main, RELAXED);
        assert_eq!(call(main), 900);
        assert_eq!(rig.device.violations().len(), 1);
        rig.ends_in(main, 901);
    }
}

#[test]
fn a_fork_must_be_joined() {
    let rig = Rig::seeded(1);
    let (main, side, memory) = (rig.stream(), rig.stream(), rig.memory(8));
    rig.begin(main, GLOBAL);
    rig.fill(memory, 1, 4, main);
    rig.order(main, side);
    rig.fill(memory + 4, 1, 4, side);
    rig.ends_in(main, 904);
    rig.one_violation("was not joined");
    assert_eq!(rig.status(side), 0);
    // A fork that did nothing need not be.
    rig.begin(main, GLOBAL);
    rig.fill(memory, 1, 4, main);
    rig.order(main, side);
    rig.end(main);
    rig.device.check();
}

#[test]
fn captures_do_not_depend_on_what_is_outside() {
    let rig = Rig::seeded(1);
    let (main, other, event) = (rig.stream(), rig.stream(), rig.event());
    rig.record(event, other);
    rig.begin(main, GLOBAL);
    assert_eq!((rig.cu.cuStreamWaitEvent)(main, event, 0), 905);
    assert_eq!(rig.status(main), 2);
    rig.one_violation("not recorded");
    rig.ends_in(main, 901);
    // Two captures do not merge.
    rig.begin(main, GLOBAL);
    rig.begin(other, GLOBAL);
    rig.record(event, main);
    assert_eq!((rig.cu.cuStreamWaitEvent)(other, event, 0), 902);
    rig.one_violation("different captures");
    let mut graph = 0;
    assert_eq!((rig.cu.cuStreamEndCapture)(main, &mut graph), 901);
    rig.ends_in(other, 901);
    // The event is of no use outside.
    assert_eq!((rig.cu.cuStreamWaitEvent)(main, event, 0), 907);
    assert_eq!((rig.cu.cuEventQuery)(event), 907);
    assert_eq!((rig.cu.cuEventSynchronize)(event), 907);
    assert_eq!(rig.device.violations().len(), 3);
    rig.record(event, main);
    ok((rig.cu.cuEventSynchronize)(event));
    rig.device.check();
}

#[test]
fn waits_and_pageable_memory_spoil_a_capture() {
    let rig = Rig::seeded(1);
    let (main, memory, event) = (rig.stream(), rig.memory(64), rig.event());
    let bytes = [0_u8; 64];
    type Call<'a> = (&'a dyn Fn() -> i32, i32);
    let calls: [Call<'_>; 12] = [
        (&|| (rig.cu.cuStreamSynchronize)(main), 900),
        (&|| (rig.cu.cuStreamQuery)(main), 900),
        (&|| (rig.cu.cuCtxSynchronize)(), 900),
        (&|| (rig.cu.cuMemAlloc_v2)(&mut 0, 8), 900),
        (&|| (rig.cu.cuMemFree_v2)(memory), 900),
        (&|| (rig.cu.cuMemHostRegister_v2)(bytes.as_ptr().cast_mut().cast(), 64, 0), 900),
        (&|| (rig.cu.cuMemcpyHtoD_v2)(memory, bytes.as_ptr().cast(), 64), 900),
        (&|| (rig.cu.cuMemcpyHtoDAsync_v2)(memory, bytes.as_ptr().cast(), 64, main), 900),
        (&|| (rig.cu.cuMemcpyDtoHAsync_v2)(bytes.as_ptr().cast_mut().cast(), memory, 64, main), 900),
        (&|| (rig.cu.cuEventSynchronize)(event), 900),
        (&|| rig.device.launch(main, &[], &[], || ()), 900),
        (&|| (rig.cu.cuStreamDestroy_v2)(main), 900),
    ];
    for (at, (call, code)) in calls.iter().enumerate() {
        rig.begin(main, GLOBAL);
        rig.fill(memory, 1, 64, main);
        assert_eq!(call(), *code, "call {at}");
        assert_eq!(rig.device.violations().len(), 1, "call {at}");
        assert_eq!(rig.status(main), 2, "call {at}");
        assert_eq!((rig.cu.cuMemsetD8Async)(memory, 1, 64, main), 901);
        rig.ends_in(main, 901);
    }
    rig.begin(main, GLOBAL);
    let mut graph = 0;
    assert_eq!((rig.cu.cuStreamBeginCapture_v2)(main, GLOBAL), 401);
    assert_eq!((rig.cu.cuStreamBeginCapture_v2)(0, GLOBAL), 900);
    ok((rig.cu.cuStreamEndCapture)(main, &mut graph));
    assert_eq!((rig.cu.cuStreamEndCapture)(main, &mut graph), 401);
    assert_eq!(rig.device.violations().len(), 3);
}

#[test]
fn modes_say_which_threads_a_capture_stops() {
    for (mode, own, others) in [(GLOBAL, 900, 900), (THREAD_LOCAL, 900, 0), (RELAXED, 0, 0)] {
        let rig = Rig::seeded(1);
        let (main, other) = (rig.stream(), rig.stream());
        let elsewhere = |exchange: i32| {
            std::thread::scope(|scope| {
                let call = || {
                    ok((rig.cu.cuCtxSetCurrent)(rig.context));
                    let mut mode = exchange;
                    ok((rig.cu.cuThreadExchangeStreamCaptureMode)(&mut mode));
                    assert_eq!(mode, GLOBAL);
                    (rig.cu.cuStreamSynchronize)(other)
                };
                scope.spawn(call).join().unwrap()
            })
        };
        rig.begin(main, mode);
        assert_eq!(elsewhere(RELAXED), 0);
        assert_eq!(elsewhere(THREAD_LOCAL), 0);
        assert_eq!(rig.status(main), 1);
        assert_eq!(elsewhere(GLOBAL), others, "mode {mode}");
        assert_eq!(rig.status(main), if others == 0 { 1 } else { 2 });
        let mut graph = 0;
        (rig.cu.cuStreamEndCapture)(main, &mut graph);
        rig.begin(main, mode);
        assert_eq!((rig.cu.cuStreamSynchronize)(other), own, "mode {mode}");
        // The end belongs to the thread that began, but for relaxed captures.
        let ended = std::thread::scope(|scope| {
            let end = || {
                ok((rig.cu.cuCtxSetCurrent)(rig.context));
                (rig.cu.cuStreamEndCapture)(main, &mut 0)
            };
            scope.spawn(end).join().unwrap()
        });
        assert_eq!(ended, if mode == RELAXED { 0 } else { 908 });
    }
}

#[test]
fn the_legacy_stream_stays_out_of_captures() {
    let rig = Rig::seeded(1);
    let (blocking, free, memory) = (rig.blocking_stream(), rig.stream(), rig.memory(8));
    rig.begin(free, RELAXED);
    rig.fill(memory, 1, 8, 0);
    rig.end(free);
    rig.begin(blocking, RELAXED);
    assert_eq!((rig.cu.cuStreamIsCapturing)(0, &mut 0), 906);
    assert_eq!(rig.status(blocking), 1);
    assert_eq!((rig.cu.cuMemsetD8Async)(memory, 1, 8, 0), 906);
    rig.one_violation("legacy stream");
    rig.ends_in(blocking, 901);
    rig.device.check();
}

#[test]
fn a_graph_outlives_no_memory() {
    let rig = Rig::seeded(1);
    let (main, memory) = (rig.stream(), rig.memory(64));
    rig.begin(main, GLOBAL);
    rig.fill(memory, 1, 64, main);
    let exec = rig.end(main);
    ok((rig.cu.cuGraphLaunch)(exec, main));
    ok((rig.cu.cuMemFree_v2)(memory));
    assert_eq!((rig.cu.cuGraphLaunch)(exec, main), 1);
    rig.one_violation("gone since");
    // A late fault in a graph is like any other.
    let memory = rig.memory(64);
    rig.begin(main, GLOBAL);
    rig.fill(memory, 2, 64, main);
    let exec = rig.end(main);
    rig.device.fail_late(0, 700);
    ok((rig.cu.cuGraphLaunch)(exec, main));
    assert_eq!((rig.cu.cuStreamSynchronize)(main), 700);
    rig.device.check();
}
