//! Contexts: the primary one of a device, others, and the stack of each thread.

use std::ffi::{c_int, c_uint};

use crate::codes::{INVALID_CONTEXT, INVALID_VALUE, NOT_INITIALIZED, SUCCESS};
use crate::session::{Session, current, in_context, on_device, put, with_context};
use crate::worlds::{self, THREAD};

impl Session<'_> {
    /// Waits for all work of a context and takes away everything that was made in it.
    fn end_context(&mut self, context: u64) {
        self.context = context;
        // Late failure has been seen by then, or nobody asks any more.
        let _ = self.wait_for_context();
        let mut damage = Vec::new();
        for base in self.memory.of_context(context) {
            let bytes = self.memory.holding(base).map_or(0, |live| live.bytes);
            self.memory.free(base, &mut damage);
            self.history.forget_range(base, bytes);
        }
        for (base, ours) in self.host.of_context(context) {
            if let Some(pinned) = self.host.remove(base, ours) {
                self.history.forget_range(base, pinned.bytes);
            }
        }
        damage.into_iter().for_each(|text| self.violation(text));
        let of_it: Vec<usize> = self.timelines_of(context).collect();
        for &timeline in &of_it {
            if let Some(capturing) = self.timelines[timeline].capture.take() {
                self.captures.remove(&capturing.capture);
            }
        }
        self.streams.retain(|_, stream| !of_it.contains(&stream.timeline));
        self.events.retain(|_, event| event.context != context);
        self.graphs.retain(|_, graph| graph.context != context);
        self.execs.retain(|_, exec| exec.context != context);
        self.modules.retain(|_, module| module.context != context);
        let state: &mut crate::state::State = self;
        state.functions.retain(|_, function| state.modules.contains_key(&function.module));
        self.contexts.remove(&context);
        self.ended_contexts.insert(context);
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRetain(context: *mut u64, device: c_int) -> c_int {
    on_device("cuDevicePrimaryCtxRetain", device, |session| {
        if session.primary_retains == 0 {
            // A new one each time: whoever kept the handle of the one before learns of it.
            session.primary = session.new_context();
        }
        put(context, session.primary)?;
        session.primary_retains += 1;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> c_int {
    on_device("cuDevicePrimaryCtxRelease_v2", device, |session| {
        if session.primary_retains == 0 {
            return Err(session.refuse(INVALID_CONTEXT, "the primary context was not retained"));
        }
        session.primary_retains -= 1;
        if session.primary_retains == 0 {
            let primary = std::mem::take(&mut session.primary);
            session.end_context(primary);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxGetState(device: c_int, flags: *mut c_uint, active: *mut c_int) -> c_int {
    on_device("cuDevicePrimaryCtxGetState", device, |session| {
        put(flags, 0)?;
        put(active, i32::from(session.primary_retains > 0))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxCreate_v2(context: *mut u64, _flags: c_uint, device: c_int) -> c_int {
    on_device("cuCtxCreate_v2", device, |session| {
        if context.is_null() {
            return Err(INVALID_VALUE);
        }
        let new = session.new_context();
        THREAD.with(|thread| thread.contexts.borrow_mut().push(new));
        put(context, new)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxDestroy_v2(context: u64) -> c_int {
    with_context("cuCtxDestroy_v2", context, |session| {
        if session.primary == context {
            return Err(session.refuse(INVALID_CONTEXT, "the primary context is released, not destroyed"));
        }
        session.end_context(context);
        // The manual: it is popped from the calling thread's stack if it is current there.
        THREAD.with(|thread| thread.contexts.borrow_mut().pop_if(|top| *top == context));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetCurrent(context: *mut u64) -> c_int {
    if !worlds::is_initialized() {
        return NOT_INITIALIZED;
    }
    put(context, current().unwrap_or(0)).err().unwrap_or(SUCCESS)
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(context: u64) -> c_int {
    if context == 0 {
        THREAD.with(|thread| thread.contexts.borrow_mut().pop());
        return SUCCESS;
    }
    with_context("cuCtxSetCurrent", context, |_| {
        THREAD.with(|thread| {
            let mut stack = thread.contexts.borrow_mut();
            stack.pop();
            stack.push(context);
        });
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPushCurrent_v2(context: u64) -> c_int {
    with_context("cuCtxPushCurrent_v2", context, |_| {
        THREAD.with(|thread| thread.contexts.borrow_mut().push(context));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPopCurrent_v2(context: *mut u64) -> c_int {
    let popped = THREAD.with(|thread| thread.contexts.borrow_mut().pop());
    let Some(popped) = popped else { return INVALID_CONTEXT };
    if context.is_null() { SUCCESS } else { put(context, popped).err().unwrap_or(SUCCESS) }
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetDevice(device: *mut c_int) -> c_int {
    in_context("cuCtxGetDevice", |session| put(device, session.ordinal))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSynchronize() -> c_int {
    in_context("cuCtxSynchronize", |session| {
        session.unsafe_in_capture()?;
        session.wait_for_context()
    })
}
