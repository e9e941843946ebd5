//! The target took the request and gave no byte of an answer before the prober closed.

use super::super::evidence::of_state;
use super::super::kubelet::of_outcome;
use super::{Case, Finding, Label, ms};
use crate::correlate::attempt::End;
use crate::enrich;
use crate::event::ProbeSays;
use crate::record::Confidence;

/// The rule.
pub(in super::super) fn find(case: &Case<'_>) -> Option<Finding> {
    silent(case).or_else(|| unfinished(case))
}

/// Bytes came, and the kubelet says that the answer did not, or not all of it: the handshake of TLS or HTTP/2 was
/// answered, or the answer's beginning.
fn unfinished(case: &Case<'_>) -> Option<Finding> {
    let attempt = case.attempt;
    let (_, said) = attempt.kubelet()?;
    let (ended, End::ClosedByProber) = attempt.ended? else { return None };
    let handshake = enrich::asks_http(attempt, case.node) == Some(false);
    let what = match said.says {
        ProbeSays::TimeoutInBody => "began to answer, and did not end in time",
        ProbeSays::Timeout if handshake => "answered the handshake, and not the request in time",
        _ => return None,
    };
    if attempt.received().is_none_or(|n| n == 0) || gave_up_early(case) {
        return None;
    }
    let summary = format!("{} {what}{}", attempt.flow.dst, budget(case));
    let state = attempt.last.as_ref().map(|state| of_state(ended, state));
    let seen = state.into_iter().chain([of_outcome(said)]).collect();
    let found = Finding::failure(Label::SlowResponse, seen, summary, Label::SlowResponse.page().mend.to_owned());
    Some(found.with_confidence(Confidence::Likely))
}

fn silent(case: &Case<'_>) -> Option<Finding> {
    let attempt = case.attempt;
    let ended = taken_and_silent(case)?;
    let (established, state) = (attempt.established?, attempt.last.as_ref()?);
    let summary = format!(
        "{} was reached in {} and acknowledged the request; not a byte of an answer in {}{}",
        attempt.flow.dst,
        ms(established.saturating_sub(attempt.started)),
        ms(ended.saturating_sub(established)),
        budget(case)
    );
    Some(Finding::failure(
        Label::SlowResponse,
        vec![of_state(ended, state)],
        summary,
        Label::SlowResponse.page().mend.to_owned(),
    ))
}

/// When the prober gave up on a target that had taken its request and sent nothing.
pub(super) fn taken_and_silent(case: &Case<'_>) -> Option<u64> {
    let attempt = case.attempt;
    let (ended, End::ClosedByProber) = attempt.ended? else { return None };
    let taken = attempt.request_acknowledged() && attempt.received() == Some(0) && attempt.errno().is_none();
    (taken && attempt.retransmits.1 == 0 && !gave_up_early(case)).then_some(ended)
}

/// The timeout of the probe in words, if it is known.
pub(super) fn budget(case: &Case<'_>) -> String {
    enrich::timeout_s(case.attempt, case.node).map(|s| format!(" (timeoutSeconds {s})")).unwrap_or_default()
}

/// The prober closed well before the probe's timeout: not for want of an answer (its pod was deleted, it stopped).
fn gave_up_early(case: &Case<'_>) -> bool {
    enrich::timeout_s(case.attempt, case.node)
        .is_some_and(|s| case.attempt.elapsed(u64::MAX) < u64::from(s) * 900_000_000)
}

#[cfg(test)]
mod tests {
    use crate::event::TcpState;
    use crate::testing::Stream;

    #[test]
    fn a_request_taken_and_not_answered() {
        let mut stream = Stream::new();
        stream.connect().established().wait_ms(1000).state(TcpState::Established, TcpState::FinWait1, 0, (100, 101, 0));
        assert_eq!(stream.labels(), ["slow_response"]);
    }

    #[test]
    fn an_unacknowledged_request_is_lost_on_the_way() {
        let mut stream = Stream::new();
        stream.connect().established().retransmit(TcpState::Established).wait_ms(1000);
        stream.state(TcpState::Established, TcpState::FinWait1, 0, (200, 1, 0));
        assert_eq!(stream.labels(), ["unexplained"]);
    }

    #[test]
    fn an_answer_of_one_byte_is_an_answer() {
        let mut stream = Stream::new();
        stream.connect().established().state(TcpState::Established, TcpState::FinWait1, 0, (100, 101, 1));
        assert!(stream.labels().is_empty());
    }
}
