//! Events: points in streams.

use std::ffi::{c_float, c_int, c_uint};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::codes::{Answer, CAPTURED_EVENT, INVALID_HANDLE, INVALID_VALUE, NOT_READY, NOT_SUPPORTED};
use crate::operation::{Task, Work};
use crate::session::{Session, in_context, put};
use crate::state::{Event, Record};
use crate::worlds::HandleKind;

/// `CU_EVENT_DISABLE_TIMING` and `CU_EVENT_INTERPROCESS`.
const DISABLE_TIMING: u32 = 2;
const INTERPROCESS: u32 = 4;

#[unsafe(no_mangle)]
extern "C" fn cuEventCreate(event: *mut u64, flags: c_uint) -> c_int {
    in_context("cuEventCreate", |session| {
        // CU_EVENT_BLOCKING_SYNC is the other flag.
        if flags & !(1 | DISABLE_TIMING | INTERPROCESS) != 0 || event.is_null() {
            return Err(session.refuse(INVALID_VALUE, &format!("flags {flags:#x}")));
        }
        if flags & INTERPROCESS != 0 {
            return Err(NOT_SUPPORTED);
        }
        let (handle, context) = (session.new_handle(HandleKind::Event), session.context);
        session.events.insert(handle, Event { context, flags, record: Record::Never });
        put(event, handle)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(event: u64) -> c_int {
    in_context("cuEventDestroy_v2", |session| {
        session.check_event(event)?;
        // Whoever waits for its record goes on waiting: the record is a point in a stream.
        session.events.remove(&event);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(event: u64, stream: u64) -> c_int {
    in_context("cuEventRecord", |session| {
        session.check_event(event)?;
        let timeline = session.stream(stream)?;
        if session.events[&event].context != session.context {
            // The manual: the event and the stream must be of the same context.
            return Err(session.refuse(INVALID_HANDLE, "the event is of another context than the stream"));
        }
        let record = match session.timelines[timeline].capture.clone() {
            Some(capturing) => {
                if session.captures.get(&capturing.capture).is_none_or(|capture| capture.invalid) {
                    return Err(crate::codes::CAPTURE_INVALIDATED);
                }
                Record::Captured { capture: capturing.capture, nodes: capturing.nodes }
            }
            None => {
                let time = Arc::new(AtomicU64::new(0));
                let task = Task::new("cuEventRecord", Work::Record(time.clone()), Vec::new());
                let number = session.submit(timeline, task)?;
                Record::Queued { timeline, number, clock: session.timelines[timeline].clock.clone(), time }
            }
        };
        if let Some(event) = session.events.get_mut(&event) {
            event.record = record;
        }
        Ok(())
    })
}

/// The last record of an event that may be asked for from outside of a capture.
fn record_of(session: &mut Session<'_>, event: u64) -> Answer<Record> {
    session.check_event(event)?;
    let record = session.events[&event].record.clone();
    if let Record::Captured { capture, .. } = record {
        session.invalidate(capture);
        return Err(session.refuse(CAPTURED_EVENT, "the event was recorded in a capture"));
    }
    Ok(record)
}

#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(event: u64) -> c_int {
    in_context("cuEventQuery", |session| {
        let record = record_of(session, event)?;
        session.unsafe_in_capture()?;
        let Record::Queued { timeline, number, clock, .. } = record else { return Ok(()) };
        if !session.query(&[(timeline, number)])? {
            return Err(NOT_READY);
        }
        let thread = session.thread;
        session.learn(thread, &clock);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventSynchronize(event: u64) -> c_int {
    in_context("cuEventSynchronize", |session| {
        let record = record_of(session, event)?;
        session.unsafe_in_capture()?;
        let Record::Queued { timeline, number, clock, .. } = record else { return Ok(()) };
        session.wait_for(&[(timeline, number)])?;
        let thread = session.thread;
        session.learn(thread, &clock);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(stream: u64, event: u64, flags: c_uint) -> c_int {
    in_context("cuStreamWaitEvent", |session| {
        let timeline = session.stream(stream)?;
        // An event of another context will do, by the manual.
        session.check_event(event)?;
        match flags {
            0 => {}
            // CU_EVENT_WAIT_EXTERNAL
            1 => return Err(NOT_SUPPORTED),
            _ => return Err(session.refuse(INVALID_VALUE, &format!("flags {flags:#x}"))),
        }
        let record = session.events[&event].record.clone();
        if session.capture_wait(timeline, &record)? {
            return Ok(());
        }
        // The point waited for is the last one recorded by now; without one there is nothing to wait for.
        let Record::Queued { timeline: other, number, clock, .. } = record else { return Ok(()) };
        session.not_implicit(timeline)?;
        let thread = session.thread;
        let task = Task::new("cuStreamWaitEvent", Work::Nothing, Vec::new());
        session.enqueue(thread, timeline, task, vec![(other, number)], Some(&clock));
        session.settle_if_eager()
    })
}

fn elapsed(session: &mut Session<'_>, milliseconds: *mut c_float, start: u64, end: u64) -> Answer {
    let mut times = [0; 2];
    for (time, event) in times.iter_mut().zip([start, end]) {
        let record = record_of(session, event)?;
        let Record::Queued { timeline, number, time: reached, .. } = record else {
            return Err(session.refuse(INVALID_HANDLE, "an event was never recorded"));
        };
        if session.events[&event].flags & DISABLE_TIMING != 0 {
            return Err(session.refuse(INVALID_HANDLE, "an event was made without timing"));
        }
        if !session.is_done((timeline, number)) {
            return Err(NOT_READY);
        }
        *time = reached.load(Ordering::Relaxed);
    }
    // A microsecond for each operation done: the order is right, and nothing else is.
    put(milliseconds, (times[1] as f32 - times[0] as f32) / 1000.0)
}

#[unsafe(no_mangle)]
extern "C" fn cuEventElapsedTime(milliseconds: *mut c_float, start: u64, end: u64) -> c_int {
    in_context("cuEventElapsedTime", |session| elapsed(session, milliseconds, start, end))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventElapsedTime_v2(milliseconds: *mut c_float, start: u64, end: u64) -> c_int {
    in_context("cuEventElapsedTime_v2", |session| elapsed(session, milliseconds, start, end))
}
