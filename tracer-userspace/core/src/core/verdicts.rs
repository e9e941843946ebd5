//! What was decided about attempts.

use std::collections::{BTreeMap, BTreeSet};

use super::Core;
use crate::classify::finding::Finding;
use tracer_attempts::enrich;
use tracer_model::event::{ConnId, ProbeType};
use tracer_model::record::{Cause, Confidence, Outcome};

/// Attempts remembered, so that none is decided twice.
const MAX: usize = 8192;

/// What was decided about the latest attempts.
#[derive(Debug, Default)]
pub(super) struct Verdicts {
    decided: BTreeMap<ConnId, Decided>,
    /// Those that are over.
    finished: BTreeSet<ConnId>,
}

/// What was decided about an attempt.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decided {
    pub(super) cause: Cause,
    pub(super) outcome: Outcome,
    pub(super) confidence: Confidence,
    /// The connection was not established when it was decided.
    pub(super) in_handshake: bool,
    /// It holds until an answer comes.
    pub(super) until_answered: bool,
    pub(super) revised: bool,
    /// An attempt of its probe had been dialled for before.
    pub(super) is_retry: bool,
    /// The kind of probe among whose failures it is counted.
    counted: Option<ProbeType>,
}

impl Verdicts {
    /// What was decided about an attempt.
    pub(super) fn of(&self, conn: ConnId) -> Option<Decided> {
        self.decided.get(&conn).copied()
    }

    /// The same, where that was a failure.
    pub(super) fn failure(&self, conn: ConnId) -> Option<Decided> {
        self.of(conn).filter(|it| it.outcome == Outcome::Failure)
    }

    /// Keeps what was decided; a new attempt takes the place of the oldest one.
    fn insert(&mut self, conn: ConnId, decided: Decided) {
        if self.decided.len() >= MAX && !self.decided.contains_key(&conn) {
            self.decided.pop_first();
        }
        self.decided.insert(conn, decided);
    }

    /// It is counted among the failures of this kind of probe. Says whether it was not before.
    pub(super) fn count_as(&mut self, conn: ConnId, kind: ProbeType) -> bool {
        self.decided.get_mut(&conn).and_then(|it| it.counted.replace(kind)) != Some(kind)
    }

    /// It is over.
    pub(super) fn is_finished(&self, conn: ConnId) -> bool {
        self.finished.contains(&conn)
    }

    /// It is over. Says whether it was not before.
    pub(super) fn finish(&mut self, conn: ConnId) -> bool {
        let is_new = self.finished.insert(conn);
        if self.finished.len() > MAX {
            self.finished.pop_first();
        }
        is_new
    }
}

impl Core {
    /// Takes note of a verdict, and of what follows from it for later ones.
    pub(super) fn remember(&mut self, conn: ConnId, finding: &Finding, revised: bool) {
        let attempt = self.correlator.get(conn);
        let in_handshake = attempt.is_some_and(|it| it.established.is_none());
        let is_retry = attempt.is_some_and(|it| self.is_grpc_retry(it));
        let without_tls = attempt.filter(|it| enrich::is_without_tls(it, &self.node)).map(|it| it.flow.dst);
        let before = self.verdicts.of(conn);
        let is_failure = finding.outcome == Outcome::Failure;
        if before.is_none() && is_failure {
            self.note_connect(conn);
        }
        if let Some(dst) = without_tls {
            self.node.answered_without_tls(dst);
        }
        let Finding { cause, outcome, confidence, until_answered, .. } = *finding;
        let counted = before.and_then(|it| it.counted);
        let decided = Decided { cause, outcome, confidence, in_handshake, until_answered, revised, is_retry, counted };
        self.verdicts.insert(conn, decided);
    }
}

#[cfg(test)]
impl Core {
    /// How long the decided attempts and what was emitted of them are in text. No more than [`MAX`] are remembered.
    pub(crate) fn decided_in_text(&self) -> usize {
        let decided = &self.verdicts.decided;
        assert!(decided.len() <= MAX, "{} decided attempts", decided.len());
        format!("{decided:?}").len() + self.emitted_in_text()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revision_takes_no_other_attempt_s_place() {
        let decided = Decided {
            cause: Cause::ConnectionRefused,
            outcome: Outcome::Failure,
            confidence: Confidence::Proven,
            in_handshake: true,
            until_answered: false,
            revised: false,
            is_retry: false,
            counted: None,
        };
        let mut verdicts = Verdicts::default();
        (0..MAX as u64).for_each(|conn| verdicts.insert(ConnId(conn), decided));
        verdicts.insert(ConnId(5), Decided { revised: true, ..decided });
        assert!(verdicts.of(ConnId(0)).is_some() && verdicts.of(ConnId(5)).is_some_and(|it| it.revised));
        verdicts.insert(ConnId(MAX as u64), decided);
        assert!(verdicts.of(ConnId(0)).is_none() && verdicts.of(ConnId(1)).is_some());
    }
}
