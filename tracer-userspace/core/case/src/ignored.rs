//! What the kubelet ignores: the result of an attempt that changes nothing.

use crate::case::Case;
use crate::finding::Finding;
use tracer_attempts::correlate::attempt::Attempt;
use tracer_attempts::enrich::Matched;
use tracer_model::event::ProbeType;
use tracer_model::record::Cause;

/// What the ignored result leaves unchanged.
pub const fn unchanged(probe_type: ProbeType) -> &'static str {
    match probe_type {
        ProbeType::Readiness => "the container's readiness stays as it was",
        ProbeType::Liveness => "the container is not restarted for it",
        ProbeType::Startup => "the container is neither started nor restarted by it",
    }
}

/// Notes that the kubelet ignored the result of the attempt. It changes neither cause nor confidence.
pub fn add_ignored(case: &Case<'_>, finding: &mut Finding) {
    if !may_be_ignored(case.attempt, &case.matched, finding.cause) {
        return;
    }
    finding.summary += "; the kubelet ignores this result";
    match case.attempt.kubelet() {
        Some((_, reported)) => {
            finding.summary += ": ";
            finding.summary += unchanged(reported.probe_type);
        }
        None => finding.summary += " if it had read the head of the answer",
    }
}

/// The kubelet ignored the result, or has not reported it and may have: an answer over HTTP began, and the kubelet calls
/// it an error if it cannot read the whole body (`DoHTTPProbe`, pkg/probe/http).
pub fn may_be_ignored(attempt: &Attempt, matched: &Matched<'_>, cause: Cause) -> bool {
    if let Some((_, reported)) = attempt.kubelet() {
        return !reported.is_counted();
    }
    let has_status = attempt.answer().is_some_and(|(_, answer)| answer.status.is_some());
    let is_unfinished =
        matches!(cause, Cause::SlowResponse | Cause::MidStreamRst) || matched.rest_lost_since().is_some();
    attempt.prober && is_unfinished && has_status && matched.expects_http() == Some(true)
}
