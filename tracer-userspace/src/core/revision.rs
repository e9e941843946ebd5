//! When what was decided of an attempt is decided anew: a nearer cause, another outcome, or one that does not hold any more.

use super::{Core, Decided};
use crate::classify::finding::Finding;
use crate::classify::label::Label;
use crate::correlate::attempt::Attempt;
use crate::enrich;
use crate::event::ConnId;
use crate::record::{Confidence, Outcome};

impl Core {
    /// The handshake that had been judged a failure went through on a later SYN, and in time, as far as anybody says.
    pub(super) fn recovered(&self, attempt: &Attempt, before: Decided) -> bool {
        before.outcome == Outcome::Failure
            && before.in_handshake
            && attempt.ended.is_some()
            && attempt.established.is_some()
            && !self.failed(attempt)
            && !is_counted(attempt)
            && !enrich::is_reset_after_dial(attempt, &self.node)
    }

    /// What was decided twice is decided once more: it succeeded after all, or, where that was said, the kubelet says that it
    /// did not.
    pub(super) fn is_open_again(&self, conn: ConnId) -> bool {
        let both = self.correlator.get(conn).zip(self.decided.get(&conn));
        both.is_some_and(|(attempt, before)| {
            self.recovered(attempt, *before) || before.outcome == Outcome::Noise && is_counted(attempt)
        })
    }
}

/// The kubelet says of it what it counts as a failure.
fn is_counted(attempt: &Attempt) -> bool {
    attempt.kubelet().is_some_and(|(_, said)| said.is_counted())
}

/// A later finding replaces an earlier one if it names a nearer cause, or another outcome, or if the earlier one does not hold
/// any more.
pub(super) fn changes(before: Decided, finding: &Finding, also: &[Label]) -> bool {
    finding.outcome != before.outcome || is_nearer(before, finding) || is_answered(before, finding, also)
}

/// It comes first in the order of decision. Where it is proven that the target was reached, what lies on the way there is no
/// cause unless that is proven, too.
fn is_nearer(before: Decided, finding: &Finding) -> bool {
    let reached = matches!(
        before.label,
        Label::AcceptQueueOverflow
            | Label::SynBacklogOverflow
            | Label::MidStreamRst
            | Label::TlsHandshakeSlow
            | Label::SlowResponse
            | Label::ClosedWithoutAnswer
            | Label::AppStatusFailure
    );
    let less_sure = before.confidence == Confidence::Proven && finding.confidence < before.confidence;
    finding.label < before.label && !(reached && less_sure)
}

/// A packet was dropped and nothing answered; then one that was sent again got through, and was answered with a no, or taken
/// and not answered for most of the time.
fn is_answered(before: Decided, finding: &Finding, also: &[Label]) -> bool {
    let is_no = matches!(
        finding.label,
        Label::NotListeningYet
            | Label::StartupBudgetExceeded
            | Label::ConnectionRefused
            | Label::HandshakeRst
            | Label::MidStreamRst
            | Label::ClosedWithoutAnswer
            | Label::AppStatusFailure
    );
    let got_through = is_no || finding.in_silence && finding.lost_events == 0;
    let stands = finding.label == before.label || also.contains(&before.label);
    before.until_answered && before.outcome == Outcome::Failure && got_through && !stands
}
