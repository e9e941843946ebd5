//! The signals that a run handles: SIGINT and SIGTERM end it, SIGHUP reopens its file. SIGXFSZ must not end any command.

use nix::sys::signal::{SigSet, Signal as Name};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracer_terminal::error::{Error, os_message};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Drain the ring, decide the open attempts, end.
    End,
    /// Open `--output-file` again: it was rotated. Without such a file, the terminal is gone and the run ends, except a daemon.
    Reopen {
        /// Without a file, continue: the parent process ignored the signal (`nohup`).
        or_continue: bool,
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
    /// Installs handlers for the three signals. Must be called inside the runtime, before the first record.
    pub fn new() -> Result<Self, Error> {
        let signal =
            |kind| signal(kind).map_err(|error| Error::Kernel(format!("no signal handlers: {}", os_message(&error))));
        // Before the handlers: they replace the ignored state.
        let hangup_was_ignored = is_ignored(SignalKind::hangup());
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
            _ = self.hangup.recv() => Request::Reopen { or_continue: self.hangup_was_ignored },
        }
    }
}

/// Blocks SIGXFSZ, so that a file size limit (`ulimit -f`) acts like a full disk: the write fails, and the process does not lose
/// decided records. Must be called before any thread is started, because threads inherit the blocked signals.
pub fn outlive_file_size_limit() {
    let _ = SigSet::from(Name::SIGXFSZ).thread_block();
}

/// Whether this process was started with the signal ignored, by the mask in proc(5).
fn is_ignored(kind: SignalKind) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (kind.as_raw_value() - 1) & 1 == 1
}
