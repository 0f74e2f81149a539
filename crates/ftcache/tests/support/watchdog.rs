//! An end for tests that would otherwise hang.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Ends the process if it is not dropped within five minutes: the slowest of them takes twenty seconds.
pub(crate) struct Watchdog {
    _alive: Sender<()>,
}

impl Watchdog {
    pub(crate) fn new(test: &'static str) -> Self {
        let (alive, dropped) = channel::<()>();
        std::thread::spawn(move || {
            if dropped.recv_timeout(Duration::from_secs(300)) == Err(RecvTimeoutError::Timeout) {
                eprintln!("{test} hangs");
                std::process::abort();
            }
        });
        Self { _alive: alive }
    }
}
