//! The target's stack found no socket for the SYN: nobody listens there.

use super::super::evidence::{of_drop, of_reset_sent};
use super::{Case, Finding, Label, in_namespace};
use crate::event::Netns;
use crate::record::Evidence;

/// The rule.
pub(in super::super) fn find(case: &Case<'_>) -> Option<Finding> {
    if case.attempt.established.is_some() {
        return None;
    }
    let (seen, netns) = by_reset(case).or_else(|| by_drop(case))?;
    let dst = case.attempt.flow.dst;
    let summary =
        format!("nobody listens on {dst}{}: its kernel answered the SYN with a RST", in_namespace(case, netns));
    let remediation = format!(
        "make the process listen on {} (on the pod's address, not only 127.0.0.1), correct the probe's port, or add a startupProbe if it only starts slowly",
        dst.port()
    );
    Some(Finding::failure(Label::ConnectionRefused, seen, summary, remediation))
}

/// A RST without a socket in answer to this attempt's SYN.
fn by_reset(case: &Case<'_>) -> Option<(Vec<Evidence>, Option<Netns>)> {
    let (time, reset) = case
        .attempt
        .resets_sent()
        .find(|(_, r)| r.no_socket && r.answered.is_syn() && r.flow.src == case.attempt.flow.dst)?;
    Some((vec![of_reset_sent(time, reset)], reset.netns))
}

/// The SYN freed for want of a socket, where the kernel says so (6.1 and later), and a RST that came back.
fn by_drop(case: &Case<'_>) -> Option<(Vec<Evidence>, Option<Netns>)> {
    let (time, drop) = case.attempt.drops().find(|(_, d)| {
        d.flags.is_syn() && d.flow.dst == case.attempt.flow.dst && d.reason.as_deref() == Some("NO_SOCKET")
    })?;
    case.attempt.reset_received()?;
    Some((vec![of_drop(time, drop)], drop.netns))
}
