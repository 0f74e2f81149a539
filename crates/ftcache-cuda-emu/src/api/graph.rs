//! Capture and graphs.

use std::ffi::{c_int, c_ulonglong};

use crate::codes::{CAPTURE_IMPLICIT, INVALID_VALUE, SUCCESS};
use crate::session::{in_context, put};
use crate::state::Kind;
use crate::worlds::THREAD;

#[unsafe(no_mangle)]
extern "C" fn cuStreamBeginCapture_v2(stream: u64, mode: c_int) -> c_int {
    in_context("cuStreamBeginCapture_v2", |session| {
        let timeline = session.stream(stream)?;
        if !(0..=2).contains(&mode) {
            return Err(session.refuse(INVALID_VALUE, &format!("mode {mode}")));
        }
        session.begin_capture(timeline, mode)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamEndCapture(stream: u64, graph: *mut u64) -> c_int {
    in_context("cuStreamEndCapture", |session| {
        put(graph, 0)?;
        let timeline = session.stream(stream)?;
        let made = session.end_capture(timeline)?;
        put(graph, made)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamIsCapturing(stream: u64, status: *mut c_int) -> c_int {
    in_context("cuStreamIsCapturing", |session| {
        let timeline = session.stream(stream)?;
        let line = &session.timelines[timeline];
        if line.kind == Kind::Legacy {
            // The manual: this call too fails on the legacy stream while a blocking stream is captured, and harms
            // nothing.
            let context = line.context;
            let blocking = |line: &&crate::state::Timeline| line.context == context && line.kind == Kind::Blocking;
            if session.timelines.iter().filter(blocking).any(|line| line.capture.is_some()) {
                return Err(CAPTURE_IMPLICIT);
            }
        }
        let capture = line.capture.as_ref().map(|capturing| session.captures.get(&capturing.capture));
        let answer = match capture {
            None => 0,
            Some(Some(capture)) if !capture.invalid => 1,
            Some(_) => 2,
        };
        put(status, answer)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut c_int) -> c_int {
    if mode.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: not null, and by the manual the caller's mode.
    let new = unsafe { mode.read() };
    if !(0..=2).contains(&new) {
        return INVALID_VALUE;
    }
    let old = THREAD.with(|thread| thread.capture_mode.replace(new));
    put(mode, old).err().unwrap_or(SUCCESS)
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphInstantiateWithFlags(exec: *mut u64, graph: u64, flags: c_ulonglong) -> c_int {
    in_context("cuGraphInstantiateWithFlags", |session| {
        // CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH and _USE_NODE_PRIORITY mean nothing for these nodes.
        if flags & !(1 | 8) != 0 {
            return Err(session.refuse(INVALID_VALUE, &format!("flags {flags:#x}")));
        }
        let made = session.instantiate(graph)?;
        put(exec, made)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphLaunch(exec: u64, stream: u64) -> c_int {
    in_context("cuGraphLaunch", |session| {
        let timeline = session.stream(stream)?;
        session.not_captured(timeline, "a launch of a graph")?;
        session.not_implicit(timeline)?;
        session.launch_graph(exec, timeline)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphExecDestroy(exec: u64) -> c_int {
    in_context("cuGraphExecDestroy", |session| match session.execs.remove(&exec) {
        // What it has enqueued goes on.
        Some(_) => Ok(()),
        None => Err(session.refuse(INVALID_VALUE, &format!("{exec:#x} is no graph that can be launched"))),
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphDestroy(graph: u64) -> c_int {
    in_context("cuGraphDestroy", |session| match session.graphs.remove(&graph) {
        Some(_) => Ok(()),
        None => Err(session.refuse(INVALID_VALUE, &format!("{graph:#x} is no graph"))),
    })
}
