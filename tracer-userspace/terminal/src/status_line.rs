//! The line with the current counts of a live run, on stderr if that is a terminal.
//!
//! A timer draws it from counters that exist anyway. It is erased before anything else is written, so records and warnings
//! start on an empty line. A bar of a library (indicatif) would hide the cursor and draw from a thread.

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use nix::unistd::{getpgrp, tcgetpgrp};

use crate::screen::{columns, is_quiet};
use crate::stderr;

pub const PERIOD: Duration = Duration::from_millis(250);
/// Columns if the terminal does not report its size.
const COLUMNS: usize = 80;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub attempts: u64,
    pub failed: u64,
    /// Verdicts that were printed and not revised.
    pub verdicts: u64,
    pub lost: u64,
}

/// The status line. Dropping it erases it.
#[derive(Debug)]
pub struct StatusLine {
    text: String,
}

impl StatusLine {
    /// The line, if it may be drawn: stderr is a terminal that can erase, NDJSON does not go to a terminal (`ndjson`), and
    /// `--quiet` was not given.
    pub fn open(ndjson: bool) -> Option<Self> {
        let term = std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb");
        (io::stderr().is_terminal() && term && !ndjson && !is_quiet()).then(|| Self { text: String::new() })
    }

    /// Draws the counts, as many as there is room for.
    pub fn draw(&mut self, elapsed: Duration, counts: &Counts) {
        self.show(|room| text(elapsed, counts, room));
    }

    /// Draws a text. A process in the background draws nothing, and nothing is drawn if the write would block.
    pub fn show(&mut self, text: impl FnOnce(usize) -> String) {
        let terminal = io::stderr();
        let in_background = tcgetpgrp(&terminal).is_ok_and(|group| group != getpgrp());
        if in_background || !stderr::is_free() {
            return;
        }
        // After the last column some terminals begin the next line.
        let text = text(columns(&terminal).unwrap_or(COLUMNS).saturating_sub(1));
        if !stderr::is_drawn() || text != self.text {
            stderr::draw(&text);
            self.text = text;
        }
    }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        stderr::erase();
    }
}

/// The time and as many counts as there is room for, the most important first.
fn text(elapsed: Duration, counts: &Counts, room: usize) -> String {
    let s = elapsed.as_secs();
    let mut text = format!("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
    let Counts { attempts, failed, verdicts, lost } = counts;
    let parts = [
        format!("  attempts {attempts}"),
        format!("  failed {failed}"),
        format!("  verdicts {verdicts}"),
        format!("  lost {lost}"),
        "  (Ctrl-C ends it with a summary)".to_owned(),
    ];
    for part in parts {
        if text.len() + part.len() > room {
            break;
        }
        text.push_str(&part);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_fits_the_room() {
        let counts = Counts { attempts: 1234, failed: 12, verdicts: 11, lost: 0 };
        let text = |room| text(Duration::from_secs(3723), &counts, room);
        assert_eq!(text(79), "1:02:03  attempts 1234  failed 12  verdicts 11  lost 0");
        assert_eq!(
            text(100),
            "1:02:03  attempts 1234  failed 12  verdicts 11  lost 0  (Ctrl-C ends it with a summary)"
        );
        assert_eq!(text(39), "1:02:03  attempts 1234  failed 12");
        assert_eq!(text(0), "1:02:03");
    }
}
