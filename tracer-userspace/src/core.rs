//! The pure core: observations in, decisions out. No clock, no I/O, no locks.

use crate::event::{ConnId, Observation};
use crate::record::Body;

/// What the core decided; the sink side adds `seq`, `time` and `node_name` and makes it a record.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// CLOCK_BOOTTIME of the observation that decided it, nanoseconds.
    pub time_boot_ns: u64,
    /// The attempt it is about. A second verdict on the same attempt revises the first: whoever
    /// numbers the records fills `revises`.
    pub attempt: Option<ConnId>,
    /// The body of the record. `timing` and `revises` are left to whoever prints it.
    pub body: Body,
}

/// Options of the core.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Also decide about attempts that succeeded (`--attempts`).
    pub attempts: bool,
}

/// Observations in, decisions out.
#[derive(Debug, Default)]
pub struct Core {
    options: Options,
}

impl Core {
    /// An empty core.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self { options }
    }

    /// Takes one observation; appends what it decides. Deadlines that lie before it fire first.
    pub fn push(&mut self, observation: &Observation, out: &mut Vec<Decision>) {
        let _ = (observation, out, self.options);
    }

    /// When the core wants to be woken by a [`crate::event::Fact::Tick`] if nothing else comes, CLOCK_BOOTTIME nanoseconds.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        None
    }

    /// The stream ends: decides what was only waiting, and reports open attempts with `attempts`.
    pub fn finish(&mut self, time_boot_ns: u64, out: &mut Vec<Decision>) {
        let _ = (time_boot_ns, out);
    }
}
