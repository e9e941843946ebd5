//! A failure that need not be a probe's: something else in the prober's process may have dialled. And one of a probe where its spec
//! does not say that it dials.

use super::Case;
use super::finding::Finding;
use tracer_model::record::{Cause, Confidence, Outcome};

/// What was seen of the connection stays as it is; whether it was a probe is not sure.
pub(super) fn add(case: &Case<'_>, finding: &mut Finding) {
    if finding.outcome != Outcome::Failure {
        return;
    }
    if let Some(why) = case.matched.other_reason() {
        finding.confidence = finding.confidence.min(Confidence::Likely);
        finding.summary += &format!("; it may have been no probe: {why}");
    }
    if case.matched.may_be_client() {
        finding.summary += &format!(
            "; no probes are known (--pods FILE names them): this was one, or {} as a client of the control plane",
            case.attempt.actor.comm
        );
    }
    let is_named = finding.cause == Cause::ProbeMisconfigured;
    if let Some(status) = case.matched.redirected_within_port().filter(|_| !is_named) {
        finding.summary += &format!("; the probe was redirected (status {status}), and this is where that led");
        finding.remediation.text +=
            "; or set httpGet.path to a page that answers without a redirect (curl -sSI shows where it leads)";
    }
    if let Some(port) = case.matched.redirected_from().filter(|_| !is_named) {
        finding.summary += &format!("; the probe asks port {port} and was redirected here");
        finding.remediation.text +=
            &format!("; or have the application answer the probe on port {port} without a redirect");
    }
}
