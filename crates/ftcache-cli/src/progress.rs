//! How far a command is: one line on a terminal's stderr, now and then, and nothing where stderr is no terminal.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Between two lines: a person reads no faster.
const PAUSE: Duration = Duration::from_millis(200);

/// The line.
pub(crate) struct ProgressLine {
    shown: Instant,
    /// Columns of the widest text so far; zero before the first.
    width: usize,
}

impl ProgressLine {
    pub(crate) fn new() -> Self {
        Self { shown: Instant::now(), width: 0 }
    }

    /// Shows a text in place of the one before, unless that has just been shown. Only what is shown is made.
    pub(crate) fn show(&mut self, text: impl FnOnce() -> String) {
        if self.shown.elapsed() < PAUSE || !std::io::stderr().is_terminal() {
            return;
        }
        let text = text();
        self.width = self.width.max(text.chars().count());
        // A shorter line leaves nothing of a longer one.
        eprint!("\r{text:<width$}", width = self.width);
        let _ = std::io::stderr().flush();
        self.shown = Instant::now();
    }
}

/// `[#####---------------] 5 of 20`.
pub(crate) fn bar(done: usize, count: usize) -> String {
    const COLUMNS: usize = 20;
    let full = (COLUMNS * done).checked_div(count).unwrap_or(COLUMNS);
    format!("[{}{}] {done} of {count}", "#".repeat(full), "-".repeat(COLUMNS - full))
}

impl Drop for ProgressLine {
    /// Whatever comes next, an error too, begins a line of its own.
    fn drop(&mut self) {
        if self.width > 0 {
            eprintln!();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_full_at_the_end() {
        let bars = [(0, 7), (3, 7), (7, 7), (0, 0)].map(|(done, count)| bar(done, count));
        assert_eq!(
            bars,
            [
                "[--------------------] 0 of 7",
                "[########------------] 3 of 7",
                "[####################] 7 of 7",
                "[####################] 0 of 0"
            ]
        );
    }
}
