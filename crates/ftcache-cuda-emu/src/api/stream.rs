//! Streams, and host functions in them.

use std::ffi::{c_int, c_uint, c_void};

use crate::codes::{INVALID_HANDLE, INVALID_VALUE, NOT_READY};
use crate::operation::{HostFunction, Task, Work};
use crate::session::{Session, in_context, put};
use crate::state::{Kind, Stream};
use crate::worlds::HandleKind;

fn create(session: &mut Session<'_>, stream: *mut u64, flags: c_uint, priority: c_int) -> Result<(), i32> {
    // CU_STREAM_NON_BLOCKING is the only flag there is.
    if flags & !1 != 0 || stream.is_null() {
        return Err(session.refuse(INVALID_VALUE, &format!("flags {flags:#x}")));
    }
    let kind = if flags == 1 { Kind::NonBlocking } else { Kind::Blocking };
    let (handle, context) = (session.new_handle(HandleKind::Stream), session.context);
    let timeline = session.new_timeline(context, kind, format!("stream {handle:#x}"));
    session.streams.insert(handle, Stream { timeline, flags, priority });
    put(stream, handle)
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreate(stream: *mut u64, flags: c_uint) -> c_int {
    in_context("cuStreamCreate", |session| create(session, stream, flags, 0))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreateWithPriority(stream: *mut u64, flags: c_uint, priority: c_int) -> c_int {
    // The manual: priorities out of range are clamped to it. Order does not go by them here.
    in_context("cuStreamCreateWithPriority", |session| create(session, stream, flags, priority.clamp(-5, 0)))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(stream: u64) -> c_int {
    in_context("cuStreamDestroy_v2", |session| {
        if stream <= 2 {
            return Err(session.refuse(INVALID_HANDLE, "a default stream is not destroyed"));
        }
        let timeline = session.any_stream(stream)?;
        session.not_captured(timeline, "a stream was destroyed")?;
        // Its timeline stays, and with it what is queued there: the manual lets that go on.
        session.streams.remove(&stream);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(stream: u64) -> c_int {
    in_context("cuStreamSynchronize", |session| {
        let timeline = session.any_stream(stream)?;
        session.not_captured(timeline, "a stream was waited for")?;
        session.unsafe_in_capture()?;
        session.synchronize(timeline)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamQuery(stream: u64) -> c_int {
    in_context("cuStreamQuery", |session| {
        let timeline = session.any_stream(stream)?;
        session.not_captured(timeline, "a stream was queried")?;
        session.unsafe_in_capture()?;
        let clock = session.timelines[timeline].clock.clone();
        let mut goals = vec![(timeline, session.timelines[timeline].enqueued)];
        if session.timelines[timeline].kind == Kind::Legacy {
            session.not_implicit(timeline)?;
            let context = session.timelines[timeline].context;
            let lines = session.timelines.iter().enumerate();
            let blocking = lines.filter(|(_, line)| line.context == context && line.kind == Kind::Blocking);
            goals.extend(blocking.map(|(at, line)| (at, line.enqueued)));
        }
        if !session.query(&goals)? {
            return Err(NOT_READY);
        }
        let thread = session.thread;
        session.learn(thread, &clock);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetCtx(stream: u64, context: *mut u64) -> c_int {
    in_context("cuStreamGetCtx", |session| {
        let timeline = session.any_stream(stream)?;
        put(context, session.timelines[timeline].context)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetFlags(stream: u64, flags: *mut c_uint) -> c_int {
    in_context("cuStreamGetFlags", |session| {
        session.any_stream(stream)?;
        put(flags, session.streams.get(&stream).map_or(0, |stream| stream.flags))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetPriority(stream: u64, priority: *mut c_int) -> c_int {
    in_context("cuStreamGetPriority", |session| {
        session.any_stream(stream)?;
        put(priority, session.streams.get(&stream).map_or(0, |stream| stream.priority))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuLaunchHostFunc(stream: u64, function: Option<HostFunction>, data: *mut c_void) -> c_int {
    in_context("cuLaunchHostFunc", |session| {
        let Some(function) = function else { return Err(session.refuse(INVALID_VALUE, "no function")) };
        let timeline = session.stream(stream)?;
        let task = Task::new("cuLaunchHostFunc", Work::Host(function, data as u64), Vec::new());
        session.submit(timeline, task).map(|_| ())
    })
}
