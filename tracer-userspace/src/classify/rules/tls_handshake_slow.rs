//! Established, and TLS was not finished before the timeout.

use super::super::evidence::of_state;
use super::slow_response::{LATE, budget, prober_late, taken_and_silent};
use super::{Case, Finding, Label, by_subject, ms};
use crate::enrich;
use crate::record::Confidence;

/// The rule.
pub(in super::super) fn find(case: &Case<'_>) -> Option<Finding> {
    let attempt = case.attempt;
    let ended = taken_and_silent(case)?;
    if !speaks_tls(case) {
        return None;
    }
    let (established, state) = (attempt.established?, attempt.last.as_ref()?);
    let (reached, waited) = (established.saturating_sub(attempt.started), ended.saturating_sub(established));
    let late = format!("{}{}", if reached > waited { LATE } else { "" }, prober_late(case));
    let summary = format!(
        "{} was reached in {} and took the ClientHello; not a byte of the TLS handshake came back in {}{}{late}",
        attempt.flow.dst,
        ms(reached),
        ms(waited),
        budget(case)
    );
    let remediation = by_subject(case, Label::TlsHandshakeSlow.page().mend, |who| {
        format!(
            "raise the timeout of {who}, give the target CPU (TLS handshakes are its most expensive moment), look for an entropy, certificate or OCSP look-up in the handshake"
        )
    });
    let found = Finding::failure(Label::TlsHandshakeSlow, vec![of_state(ended, state)], summary, remediation);
    Some(if late.is_empty() { found } else { found.with_confidence(Confidence::Likely) })
}

/// All specs that this attempt can be speak HTTPS; or a ClientHello went to that listener meanwhile.
fn speaks_tls(case: &Case<'_>) -> bool {
    let attempt = case.attempt;
    match enrich::scheme(attempt, case.node) {
        Some(scheme) => scheme == "https",
        None => case.node.tls_hello(None, attempt.flow.dst).is_some_and(|at| at >= attempt.started),
    }
}
