//! The answer was in the prober's socket in time, and the kubelet says that it timed out.

use serde_json::json;

use super::super::evidence::evidence;
use super::super::kubelet::of_outcome;
use super::{Case, Finding, Label, ms};
use crate::enrich;
use crate::event::ProbeSays;
use crate::record::Confidence;

/// The rule.
pub(in super::super) fn find(case: &Case<'_>) -> Option<Finding> {
    let (_, said) = case.attempt.kubelet().filter(|(_, said)| said.says == ProbeSays::Timeout)?;
    let (answered, answer) = case.attempt.answer()?;
    let timeout_s = enrich::timeout_s(case.attempt, case.node)?;
    let took = answered.saturating_sub(case.attempt.started);
    if took >= u64::from(timeout_s) * 1_000_000_000 {
        return None;
    }
    let (ended, _) = case.attempt.ended?;
    let summary = format!(
        "the answer of {} was in the prober's socket after {}; the kubelet, which says that it timed out (timeoutSeconds {timeout_s}), closed after {} without having read it",
        case.attempt.flow.dst,
        ms(took),
        ms(case.attempt.elapsed(ended)),
    );
    let says = format!("the first bytes of the answer arrived {} after the connect", ms(took));
    let seen = vec![evidence("cgroup_skb", answered, says, json!({ "kind": answer.kind })), of_outcome(said)];
    let found = Finding::failure(Label::KubeletDelayed, seen, summary, Label::KubeletDelayed.page().mend.to_owned());
    Some(found.with_confidence(Confidence::Likely))
}

#[cfg(test)]
mod tests {
    use crate::event::{AnswerKind, ProbeSays, TcpState};
    use crate::testing::Stream;

    fn labels(answer_after_ms: u64, says: ProbeSays) -> Vec<&'static str> {
        let mut stream = Stream::new();
        stream.http_readiness().connect().established().wait_ms(answer_after_ms).answer(AnswerKind::Http, Some(200));
        stream.wait_ms(3000).state(TcpState::Established, TcpState::FinWait1, 0, (100, 101, 200)).kubelet(says);
        stream.labels()
    }

    #[test]
    fn an_answer_in_time_that_was_not_read() {
        assert_eq!(labels(10, ProbeSays::Timeout), ["kubelet_delayed"]);
    }

    #[test]
    fn an_answer_that_was_late_or_did_not_end() {
        assert_eq!(labels(1500, ProbeSays::Timeout), ["unexplained"], "after the timeout");
        assert_eq!(labels(10, ProbeSays::TimeoutInBody), ["unexplained"]);
    }
}
