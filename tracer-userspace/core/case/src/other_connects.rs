//! Notes about attempts that may not be a probe's, or that a redirect of a probe caused.

use crate::Case;
use crate::finding::Finding;
use tracer_model::record::{Cause, Confidence, Outcome};

/// Adds these notes. What was seen of the connection stays; only whether it was a probe is less sure.
pub fn add(case: &Case<'_>, finding: &mut Finding) {
    if finding.outcome != Outcome::Failure {
        return;
    }
    if let Some(why) = case.matched.other_reason() {
        finding.confidence = finding.confidence.min(Confidence::Likely);
        finding.summary += &format!("; it may have been no probe: {why}");
    }
    if case.matched.may_be_client() {
        finding.summary += &format!(
            "; no probes are known (--pods FILE names them): this was a probe, or {} as a client of the control plane or the container runtime",
            case.attempt.actor.comm
        );
    }
    let is_named = finding.cause == Cause::ProbeMisconfigured;
    let (redirect, fix) = match (case.matched.redirected_within_port(), case.matched.redirected_from()) {
        _ if is_named => return,
        (Some(status), _) => (
            format!("the probe was redirected (status {status}), which led here"),
            "set httpGet.path to a page that answers without a redirect (curl -sSI shows where it leads)".to_owned(),
        ),
        (None, Some(port)) => (
            format!("the probe asks port {port} and was redirected here"),
            format!("have the application answer the probe on port {port} without a redirect"),
        ),
        (None, None) => return,
    };
    finding.summary += &format!("; {redirect}");
    let text = finding.remediation.text.trim_end_matches('.');
    finding.remediation.text = format!("{text}; or {fix}");
}
