//! The signals that a run answers: end (SIGINT, SIGTERM) and reopen (SIGHUP).

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Drain, say what was open, end.
    End,
    /// Open `--output-file` anew: it was rotated.
    Reopen,
}

/// The signals of this process, from the moment it is made.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    /// Takes over the three signals. To be called inside the runtime, before the first record.
    ///
    /// # Errors
    /// The system refuses the handler.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
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
            _ = self.hangup.recv() => Request::Reopen,
        }
    }
}
