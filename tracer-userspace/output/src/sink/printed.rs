//! Remembers the printed verdicts, for `revises` and for the totals.

use std::collections::BTreeMap;

use tracer_model::event::ConnId;
use tracer_model::recent::Recent;
use tracer_model::record::Cause;

/// Attempts remembered. A refusal is revised if a process begins to listen within five minutes: a hundred a second.
const REMEMBERED: usize = 32_768;

/// The last printed verdict of each attempt, and how many verdicts stand by cause.
#[derive(Debug, Default)]
pub(super) struct Printed {
    last: Recent<ConnId, (u64, Cause), REMEMBERED>,
    counts: BTreeMap<Cause, u64>,
}

impl Printed {
    /// `seq` and cause of the last printed verdict of this attempt.
    pub(super) fn get(&self, attempt: Option<ConnId>) -> Option<(u64, Cause)> {
        self.last.get(&attempt?).copied()
    }

    /// Remembers a record that stands for `count` verdicts. Gives the `seq` of the record that it revises.
    pub(super) fn put(&mut self, attempt: Option<ConnId>, seq: u64, cause: Cause, count: u64) -> Option<u64> {
        *self.counts.entry(cause).or_default() += count;
        let attempt = attempt?;
        let before = self.get(Some(attempt));
        self.last.insert(attempt, (seq, cause));
        let (seq, cause) = before?;
        self.counts.entry(cause).and_modify(|n| *n -= 1);
        Some(seq)
    }

    /// The last record of `attempt` stands for these attempts, too.
    pub(super) fn join(&mut self, others: impl IntoIterator<Item = ConnId>, attempt: Option<ConnId>) {
        if let Some(record) = self.get(attempt) {
            others.into_iter().for_each(|other| self.last.insert(other, record));
        }
    }

    /// Verdicts that are not revised, by cause.
    pub(super) fn counts(&self) -> impl Iterator<Item = (Cause, u64)> {
        self.counts.iter().map(|(&cause, &n)| (cause, n)).filter(|&(_, n)| n > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revision_names_the_verdict_before_it() {
        let mut printed = Printed::default();
        assert_eq!(printed.put(Some(ConnId(1)), 0, Cause::Unexplained, 1), None);
        assert_eq!(printed.put(Some(ConnId(2)), 1, Cause::LoopbackDown, 1), None);
        assert_eq!(printed.put(Some(ConnId(1)), 2, Cause::FirewallDrop, 1), Some(0));
        assert_eq!(printed.put(Some(ConnId(1)), 3, Cause::FirewallDrop, 1), Some(2));
        let counts: Vec<_> = printed.counts().collect();
        assert_eq!(counts, [(Cause::LoopbackDown, 1), (Cause::FirewallDrop, 1)]);
    }

    #[test]
    fn the_oldest_attempt_is_forgotten_at_the_limit() {
        let mut printed = Printed::default();
        for i in 0..=REMEMBERED as u64 {
            printed.put(Some(ConnId(i)), i, Cause::Unexplained, 1);
        }
        assert_eq!((printed.get(Some(ConnId(0))), printed.get(Some(ConnId(1)))), (None, Some((1, Cause::Unexplained))));
    }
}
