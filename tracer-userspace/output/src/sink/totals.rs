//! Counts attempts, printed or not.

use tracer_model::decision::Decision;
use tracer_model::event::ConnId;
use tracer_model::recent::Recent;
use tracer_model::record::{Body, Outcome};

#[derive(Debug, Default)]
pub(super) struct Totals {
    pub(super) attempts: u64,
    pub(super) open_attempts: u64,
    pub(super) failed: u64,
    /// Verdicts that are not revised and that no filter let through.
    pub(super) filtered: u64,
    filtered_attempts: Recent<ConnId, (), 4096>,
    /// Failed attempts that a revision may still change to noise.
    failures: Recent<ConnId, (), 4096>,
}

impl Totals {
    pub(super) fn count(&mut self, decision: &Decision) {
        match &decision.body {
            Body::Attempt(attempt) => self.count_attempt(decision.attempt, attempt.outcome),
            // A revision can change a failed attempt to noise after its end.
            Body::Verdict(body) if body.verdict.outcome != Outcome::Failure => {
                let was_failure = decision.attempt.and_then(|conn| self.failures.remove(&conn)).is_some();
                self.failed -= u64::from(was_failure);
            }
            _ => {}
        }
    }

    /// Takes a verdict. A revision replaces a filtered one.
    pub(super) fn count_filtered(&mut self, attempt: Option<ConnId>, is_filtered: bool) {
        let was_filtered = attempt.and_then(|conn| self.filtered_attempts.remove(&conn)).is_some();
        self.filtered -= u64::from(was_filtered);
        if is_filtered {
            self.filtered += 1;
            attempt.into_iter().for_each(|conn| self.filtered_attempts.insert(conn, ()));
        }
    }

    fn count_attempt(&mut self, attempt: Option<ConnId>, outcome: Option<Outcome>) {
        let count = if outcome == Some(Outcome::Open) { &mut self.open_attempts } else { &mut self.attempts };
        *count += 1;
        if outcome == Some(Outcome::Failure) {
            self.failed += 1;
            attempt.into_iter().for_each(|conn| self.failures.insert(conn, ()));
        }
    }
}
