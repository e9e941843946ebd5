//! A time in which the API takes no writes: warned about once, with growing waits between the retries.

use std::time::Duration;

use tokio::time::Instant;

use tracer_sources::cluster::{Failure, Pace};

#[derive(Debug)]
pub(super) struct Outage {
    /// What cannot be written, for the log.
    what: &'static str,
    pace: Pace,
    /// The shortest wait if a permission is missing.
    refused: Duration,
    failures: u32,
    /// The next retry comes at this time or later.
    pub(super) until: Option<Instant>,
    /// The warning that was logged: `false` for an outage, `true` for a missing permission.
    reported: Option<bool>,
}

impl Outage {
    pub(super) const fn new(what: &'static str, pace: Pace, refused: Duration) -> Self {
        Self { what, pace, refused, failures: 0, until: None, reported: None }
    }

    pub(super) fn failed(&mut self, failure: &Failure, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        let is_refused = matches!(failure, Failure::Unauthenticated | Failure::Forbidden { .. });
        let wait = self.pace.after(self.failures, failure.after());
        self.until = Some(now + if is_refused { wait.max(self.refused) } else { wait });
        if self.reported.is_none() || is_refused && self.reported == Some(false) {
            let then = if is_refused { "tracer writes none until it is allowed" } else { "tracer writes them later" };
            tracing::warn!("{}: cluster API {failure}; {then}", self.what);
            self.reported = Some(is_refused);
        }
    }

    pub(super) fn end(&mut self) {
        if self.reported.take().is_some() {
            tracing::info!("{}: the cluster API accepts them again", self.what);
        }
        (self.failures, self.until) = (0, None);
    }
}
