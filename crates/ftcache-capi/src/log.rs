//! The log: what the library has to say besides its answers, to a callback of one handle's.

use std::ffi::{CString, c_char, c_void};
use std::fmt::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};

use crate::failure::Failure;

/// How much a message matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ftcache_log_level {
    /// Nothing is told.
    Off = 0,
    /// What went wrong where no call could return it.
    Error = 1,
    /// What is not as it was asked for, and works all the same: a fallback, with its reason, once.
    Warning = 2,
    /// What was found and chosen, when a cache is made or rebuilt.
    Info = 3,
}

/// Takes a message: one line, ended by a zero, valid during the call. level is an ftcache_log_level.
///
/// It is called by the thread that is inside a call on the handle, once that call has done its work and before it
/// returns, and by no other. It may call into other handles; its own says FTCACHE_STATUS_BUSY, and is not to be called
/// into from ftcache_free. It must return.
pub type ftcache_log = Option<unsafe extern "C" fn(user: *mut c_void, level: u32, message: *const c_char)>;

/// The callback of one handle.
pub(crate) struct Log {
    dispatch: Dispatch,
    callback: unsafe extern "C" fn(*mut c_void, u32, *const c_char),
    user: *mut c_void,
    told: Arc<Told>,
}

// SAFETY: the callback is reached by the one thread that is inside its handle; by the header, that may be any.
unsafe impl Send for Log {}
// SAFETY: as above.
unsafe impl Sync for Log {}

/// What was said and has not been passed on.
type Told = Mutex<Vec<(ftcache_log_level, CString)>>;

impl Log {
    /// The callback, or `None` if nothing is to be told.
    ///
    /// # Safety
    ///
    /// By the header's words on `ftcache_log`, it may be called with `user` as long as the handle lives.
    pub(crate) unsafe fn new(callback: ftcache_log, user: *mut c_void, level: u32) -> Result<Option<Self>, Failure> {
        let most = match level {
            level if level == ftcache_log_level::Off as u32 => return Ok(None),
            level if level == ftcache_log_level::Error as u32 => Level::ERROR,
            level if level == ftcache_log_level::Warning as u32 => Level::WARN,
            level if level == ftcache_log_level::Info as u32 => Level::INFO,
            other => return Err(Failure::argument(format!("config->log_level is {other}, not an ftcache_log_level"))),
        };
        let Some(callback) = callback else {
            return Err(Failure::argument(format!("config->log is NULL, with a log_level of {level}")));
        };
        let told = Arc::new(Told::default());
        let dispatch = Dispatch::new(Sink { most, told: Arc::clone(&told) });
        Ok(Some(Self { dispatch, callback, user, told }))
    }

    /// Runs a body, then passes on what it said. Nothing of this is left in the process, or on the thread, after it.
    ///
    /// The callback is called behind the body: while an event is told, `tracing` takes no other subscriber on the
    /// thread, so a callback that called into another handle would bring the process down.
    pub(crate) fn within<T>(&self, body: impl FnOnce() -> T) -> T {
        let value = tracing::dispatcher::with_default(&self.dispatch, body);
        for (level, text) in std::mem::take(&mut *lock(&self.told)) {
            // SAFETY: by the header's words on `ftcache_log`, the callback may be called until its handle is freed.
            unsafe { (self.callback)(self.user, level as u32, text.as_ptr()) };
        }
        value
    }
}

fn lock(told: &Told) -> MutexGuard<'_, Vec<(ftcache_log_level, CString)>> {
    told.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Sink {
    most: Level,
    told: Arc<Told>,
}

impl Subscriber for Sink {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= self.most
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let level = match *event.metadata().level() {
            Level::ERROR => ftcache_log_level::Error,
            Level::WARN => ftcache_log_level::Warning,
            _ => ftcache_log_level::Info,
        };
        let mut line = Line::default();
        event.record(&mut line);
        let text = CString::new(format!("{}{}", line.message, line.fields).replace('\0', "")).unwrap_or_default();
        lock(&self.told).push((level, text));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// An event in one line: what it says, then what it says it of.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, "; {name}: {value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    unsafe extern "C" fn keep(user: *mut c_void, level: u32, message: *const c_char) {
        // SAFETY: the test below gives a list as `user`.
        let list = unsafe { &mut *user.cast::<Vec<(u32, String)>>() };
        // SAFETY: the library gives a text.
        let text = unsafe { CStr::from_ptr(message) };
        list.push((level, text.to_str().unwrap().to_owned()));
    }

    #[test]
    fn what_matters_enough_is_told_and_only_within() {
        let mut told: Vec<(u32, String)> = Vec::new();
        // SAFETY: `keep` takes such a list, and the log is gone before it.
        let log = unsafe { Log::new(Some(keep), (&raw mut told).cast(), ftcache_log_level::Warning as u32) };
        let log = log.unwrap().unwrap();
        log.within(|| {
            tracing::info!("too little");
            tracing::warn!(reason = %"missing symbol", "copies go one by one");
            tracing::error!("lost");
        });
        tracing::error!("outside");
        drop(log);
        let wanted = [(2, "copies go one by one; reason: missing symbol"), (1, "lost")];
        assert_eq!(told, wanted.map(|(level, text)| (level, text.to_owned())));
    }
}
