//! One call of the driver: which device it is for, what every call checks, and the lock while it lasts.

use std::ops::{Deref, DerefMut};
use std::sync::MutexGuard;

use crate::codes::{
    Answer, CAPTURE_UNSUPPORTED, CONTEXT_IS_DESTROYED, INVALID_CONTEXT, INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE,
    NOT_INITIALIZED, NOT_PERMITTED, SUCCESS,
};
use crate::operation::release_kernels;
use crate::state::{Kind, State};
use crate::worlds::{self, Handle, THREAD, World};

/// The thread of all threads where they share what they know.
const SHARED_THREAD: u64 = 0;
const CAPTURE_MODE_GLOBAL: i32 = 0;
const CAPTURE_MODE_RELAXED: i32 = 2;

pub(crate) struct Session<'w> {
    pub(crate) world: &'w World,
    /// None only while something runs without the lock.
    pub(crate) state: Option<MutexGuard<'w, State>>,
    pub(crate) call: &'static str,
    pub(crate) thread: u64,
    pub(crate) context: u64,
    /// This call has had to wait for queued work.
    pub(crate) waited: bool,
}

impl Deref for Session<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        self.state.as_ref().expect("the lock is held except while work runs without it")
    }
}

impl DerefMut for Session<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.state.as_mut().expect("the lock is held except while work runs without it")
    }
}

/// A call that works in the calling thread's current context.
pub(crate) fn in_context(call: &'static str, body: impl FnOnce(&mut Session<'_>) -> Answer) -> i32 {
    if !worlds::is_initialized() {
        return NOT_INITIALIZED;
    }
    let Some(context) = current() else { return INVALID_CONTEXT };
    let Some(world) = Handle::ordinal_of(context).and_then(worlds::world) else { return INVALID_CONTEXT };
    run(Session::open(&world, call, context), |session| {
        session.check_context(context)?;
        session.not_lost()?;
        body(session)
    })
}

/// A call that names a device.
pub(crate) fn on_device(call: &'static str, ordinal: i32, body: impl FnOnce(&mut Session<'_>) -> Answer) -> i32 {
    if !worlds::is_initialized() {
        return NOT_INITIALIZED;
    }
    let Some(world) = worlds::world(ordinal) else { return INVALID_DEVICE };
    run(Session::open(&world, call, 0), body)
}

/// A call that names a context, current or not.
pub(crate) fn with_context(call: &'static str, context: u64, body: impl FnOnce(&mut Session<'_>) -> Answer) -> i32 {
    if !worlds::is_initialized() {
        return NOT_INITIALIZED;
    }
    let Some(world) = Handle::ordinal_of(context).and_then(worlds::world) else {
        // The calling thread's own world, if it has one, is where somebody will look.
        let mine = current().and_then(Handle::ordinal_of).and_then(worlds::world);
        if let Some(mine) = mine {
            mine.lock().violation(format!("{call}: {context:#x} is no context"));
        }
        return INVALID_CONTEXT;
    };
    run(Session::open(&world, call, context), |session| {
        session.check_context(context)?;
        body(session)
    })
}

fn run(mut session: Session<'_>, body: impl FnOnce(&mut Session<'_>) -> Answer) -> i32 {
    let answer = session.begin().and_then(|()| body(&mut session));
    drop(session);
    release_kernels();
    answer.err().unwrap_or(SUCCESS)
}

/// The current context of the calling thread.
pub(crate) fn current() -> Option<u64> {
    THREAD.with(|thread| thread.contexts.borrow().last().copied())
}

impl<'w> Session<'w> {
    pub(crate) fn open(world: &'w World, call: &'static str, context: u64) -> Self {
        let (id, alive) = THREAD.with(|thread| (thread.id, thread.alive.clone()));
        let mut state = world.lock();
        let shared = state.settings.threads_share_order;
        let thread = if shared { SHARED_THREAD } else { id };
        // What all threads share outlives each of them.
        let alive = if shared { std::sync::Arc::new(true.into()) } else { alive };
        state.enlist(thread, &alive);
        Self { world, state: Some(state), call, thread, context, waited: false }
    }

    /// Counts the call, and stops it where that was asked for or it is made from inside the device's own work.
    fn begin(&mut self) -> Answer {
        let call = self.call;
        *self.calls.entry(call).or_default() += 1;
        self.calls_total += 1;
        if THREAD.with(|thread| thread.inside.get()) {
            // The manual, cuLaunchHostFunc: a host function must not make any CUDA API call.
            return Err(self.refuse(NOT_PERMITTED, "called from a host function or kernel"));
        }
        let faults = &mut self.faults.calls;
        let mut code = None;
        for fault in faults.iter_mut().filter(|fault| fault.0 == call) {
            match fault.1.checked_sub(1) {
                Some(left) => fault.1 = left,
                None => code = code.or_else(|| Some(std::mem::replace(&mut fault.2, SUCCESS))),
            }
        }
        faults.retain(|fault| fault.2 != SUCCESS);
        code.map_or(Ok(()), Err)
    }

    fn check_context(&mut self, context: u64) -> Answer {
        if self.contexts.contains_key(&context) {
            return Ok(());
        }
        let known = self.ended_contexts.contains(&context);
        let code = if known { CONTEXT_IS_DESTROYED } else { INVALID_CONTEXT };
        let state = if known { "has ended" } else { "is no context" };
        Err(self.refuse(code, &format!("{context:#x} {state}")))
    }

    /// The code of late failure, if the context has seen one.
    pub(crate) fn not_lost(&self) -> Answer {
        if self.over {
            return Err(CONTEXT_IS_DESTROYED);
        }
        match self.contexts.get(&self.context).and_then(|context| context.lost) {
            Some(code) => Err(code),
            None => Ok(()),
        }
    }

    /// Reports a violation by this call, and gives the code back.
    pub(crate) fn refuse(&mut self, code: i32, what: &str) -> i32 {
        let call = self.call;
        self.violation(format!("{call}: {what}"));
        code
    }

    /// The timeline of a stream that work of the current context may be put in.
    pub(crate) fn stream(&mut self, handle: u64) -> Answer<usize> {
        let timeline = self.any_stream(handle)?;
        if self.timelines[timeline].context != self.context {
            return Err(self.refuse(INVALID_HANDLE, &format!("stream {handle:#x} is of another context")));
        }
        Ok(timeline)
    }

    /// The timeline of a stream of any context of the device.
    pub(crate) fn any_stream(&mut self, handle: u64) -> Answer<usize> {
        let context = self.context;
        match handle {
            // CU_STREAM_LEGACY is the null stream by a name of its own.
            0 | 1 => Ok(self.contexts[&context].legacy),
            2 => {
                let thread = THREAD.with(|thread| thread.id);
                if let Some(&timeline) = self.contexts[&context].per_thread.get(&thread) {
                    return Ok(timeline);
                }
                let name = format!("the stream of thread {thread}");
                let timeline = self.new_timeline(context, Kind::Blocking, name);
                self.contexts.get_mut(&context).expect("checked above").per_thread.insert(thread, timeline);
                Ok(timeline)
            }
            _ => match self.streams.get(&handle) {
                Some(stream) => Ok(stream.timeline),
                None => Err(self.refuse(INVALID_HANDLE, &format!("{handle:#x} is no stream of this device"))),
            },
        }
    }

    pub(crate) fn check_event(&mut self, handle: u64) -> Answer {
        match self.events.contains_key(&handle) {
            true => Ok(()),
            false => Err(self.refuse(INVALID_HANDLE, &format!("{handle:#x} is no event of this device"))),
        }
    }

    /// Refuses a call that could wait for, or be waited for by, a stream that is being captured; the capture is lost.
    ///
    /// The rule is that of cuThreadExchangeStreamCaptureMode in the manual.
    pub(crate) fn unsafe_in_capture(&mut self) -> Answer {
        let (id, mode) = THREAD.with(|thread| (thread.id, thread.capture_mode.get()));
        if mode == CAPTURE_MODE_RELAXED || self.captures.is_empty() {
            return Ok(());
        }
        let stands_in = |thread: u64, its_mode: i32| match thread == id {
            true => its_mode != CAPTURE_MODE_RELAXED,
            false => mode == CAPTURE_MODE_GLOBAL && its_mode == CAPTURE_MODE_GLOBAL,
        };
        let mut found = false;
        for capture in self.captures.values_mut().filter(|capture| stands_in(capture.thread, capture.mode)) {
            capture.invalid = true;
            found = true;
        }
        if !found {
            return Ok(());
        }
        Err(self.refuse(CAPTURE_UNSUPPORTED, "not permitted while a stream is captured; the capture is lost"))
    }
}

/// Writes what a call gives back.
pub(crate) fn put<T>(out: *mut T, value: T) -> Answer {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, and by the manual the caller's to be written with a value of this type.
    unsafe { out.write(value) };
    Ok(())
}
