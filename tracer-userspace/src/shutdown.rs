//! The signals that a run answers: end (SIGINT, SIGTERM) and reopen (SIGHUP); and the one that no command is ended by.

use nix::sys::signal::{SigSet, Signal as Name};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracer_terminal::error::{Error, os_message};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Drain, say what was open, end.
    End,
    /// Open `--output-file` again: it was rotated. Without one the terminal has gone, unless this is a daemon.
    Reopen {
        /// Without a file to open, go on: the parent asked for that (`nohup`).
        or_go_on: bool,
    },
}

/// The signals of this process, from the moment it is made.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    hangup_was_ignored: bool,
}

impl Signals {
    /// Takes over the three signals. To be called inside the runtime, before the first record.
    pub fn new() -> Result<Self, Error> {
        let signal =
            |kind| signal(kind).map_err(|error| Error::Kernel(format!("no signal handlers: {}", os_message(&error))));
        // Asked first: a handler takes its place.
        let hangup_was_ignored = ignored(SignalKind::hangup());
        Ok(Self {
            hangup_was_ignored,
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// The next request. Safe to drop while it waits.
    pub async fn next(&mut self) -> Request {
        tokio::select! {
            _ = self.interrupt.recv() => Request::End,
            _ = self.terminate.recv() => Request::End,
            _ = self.hangup.recv() => Request::Reopen { or_go_on: self.hangup_was_ignored },
        }
    }
}

/// A file that may not grow (`ulimit -f`) is met like a full disk: the write fails, and SIGXFSZ does not end the process
/// with records that were decided. To be called before any thread is started, which takes over what is blocked.
pub fn outlive_file_size_limit() {
    let _ = SigSet::from(Name::SIGXFSZ).thread_block();
}

/// Whether this process was started with the signal ignored, by the mask in proc(5).
fn ignored(kind: SignalKind) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (kind.as_raw_value() - 1) & 1 == 1
}
