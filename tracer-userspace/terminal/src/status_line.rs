//! The line of a live run that is drawn over and over: on stderr, where that is a terminal.
//!
//! It is drawn by a timer from counters that exist anyway, and erased before anything else is written, so that no record
//! and no warning ever stands behind it. A bar of a library (indicatif) would hide the cursor and draw from a thread.

use std::io::{self, IsTerminal as _, Write as _};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{getpgrp, tcgetpgrp};

use crate::screen::{columns, is_quiet};

/// How often it is drawn.
pub const PERIOD: Duration = Duration::from_millis(250);
/// Back to the first column, and nothing right of it.
const ERASE: &str = "\r\u{1b}[K";
/// Columns where the terminal does not say.
const COLUMNS: usize = 80;

/// It stands on the terminal now: stderr is one for the whole process.
static DRAWN: AtomicBool = AtomicBool::new(false);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Attempts that ended.
    pub attempts: u64,
    /// Those that failed.
    pub failed: u64,
    /// Verdicts that were printed and stand.
    pub verdicts: u64,
    /// Events that were lost.
    pub lost: u64,
}

/// The line. Dropping it erases it.
#[derive(Debug)]
pub struct StatusLine {
    /// As it was drawn last.
    text: String,
}

impl StatusLine {
    /// Where it may be drawn: stderr is a terminal that can erase, no NDJSON goes to one (`ndjson`), and it is not to be
    /// quiet.
    pub fn open(ndjson: bool) -> Option<Self> {
        let term = std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb");
        (io::stderr().is_terminal() && term && !ndjson && !is_quiet()).then(|| Self { text: String::new() })
    }

    /// Counts, as many as there is room for.
    pub fn draw(&mut self, elapsed: Duration, counts: &Counts) {
        self.show(|room| text(elapsed, counts, room));
    }

    /// Draws it again. Nothing is drawn by a process in the background, nor on a terminal that takes nothing now.
    pub fn show(&mut self, text: impl FnOnce(usize) -> String) {
        let stderr = io::stderr();
        let in_background = tcgetpgrp(&stderr).is_ok_and(|group| group != getpgrp());
        if in_background || !takes(&stderr) {
            return;
        }
        // In the last column some terminals begin the next line.
        let text = text(columns(&stderr).unwrap_or(COLUMNS).saturating_sub(1));
        if !DRAWN.swap(true, Ordering::Relaxed) || text != self.text {
            let _ = stderr.lock().write_all(format!("{ERASE}{text}").as_bytes());
            self.text = text;
        }
    }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        erase();
    }
}

/// It stands on the terminal now.
pub fn is_drawn() -> bool {
    DRAWN.load(Ordering::Relaxed)
}

/// Takes it off the terminal, if it is there: before anything is written to stderr.
pub fn erase() {
    if DRAWN.swap(false, Ordering::Relaxed) && takes(&io::stderr()) {
        let _ = io::stderr().lock().write_all(ERASE.as_bytes());
    }
}

/// A write would not block: nobody holds the terminal by Ctrl-S.
fn takes(stderr: &io::Stderr) -> bool {
    let mut fds = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
    poll(&mut fds, PollTimeout::ZERO).is_ok_and(|n| n > 0)
}

/// As much of it as there is room for, the most important first.
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
    fn it_never_needs_a_second_line() {
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

    #[test]
    fn nothing_is_erased_that_was_not_drawn() {
        erase();
        assert!(!is_drawn());
    }
}
