//! What came of an attempt, by what the probes that it can be want: a dial, a request, an answer in time.

use super::{hooks_met, longest_timeout_ns, probes_met, timed_out_after_ns};
use crate::correlate::attempt::{Attempt, End};
use crate::correlate::node::Node;
use crate::event::Handler;

/// It was connected only when every probe that it can be had given up, and then nothing came of it.
///
/// A kubelet built with Go 1.23 or newer (Kubernetes 1.32) goes on to dial after an httpGet probe has timed out, and closes
/// what it gets: `Transport.getConn` of net/http detaches the dial from its request.
#[must_use]
pub fn is_too_late(attempt: &Attempt, node: &Node) -> bool {
    let Some(connected) = attempt.established.filter(|_| attempt.touched_only()) else { return false };
    longest_timeout_ns(attempt, node).is_some_and(|timeout| connected.saturating_sub(attempt.started) >= timeout)
}

/// It was connected, and all probes that it can be would have sent a request, which it did not: it was no probe of an open
/// port.
#[must_use]
pub fn is_unasked(attempt: &Attempt, node: &Node) -> bool {
    let probes = probes_met(attempt, node);
    attempt.touched_only() && !probes.is_empty() && probes.iter().all(|spec| spec.handler != Handler::Tcp)
}

/// All probes that it can be ask no more than whether the port is open, and nothing was sent: once it is connected, a reset is
/// no failure of theirs. The kubelet's `net.Dialer` has returned by then, unless the RST came before the socket was asked
/// for its error (`DoTCPProbe`, pkg/probe/tcp/tcp.go): then it says so itself.
#[must_use]
pub fn only_dials(attempt: &Attempt, node: &Node) -> bool {
    let probes = probes_met(attempt, node);
    let silent = attempt.sent().is_none_or(|n| n == 0) && attempt.kubelet().is_none();
    let all_dial = !probes.is_empty() && probes.iter().all(|spec| spec.handler == Handler::Tcp);
    silent && all_dial && hooks_met(attempt, node).is_empty()
}

/// Reset after its dial was done, if it is a probe of an open port: neither a failure nor a success.
fn is_reset_after_dial(attempt: &Attempt, node: &Node) -> bool {
    matches!(attempt.ended, Some((_, End::Reset))) && only_dials(attempt, node)
}

/// Neither a failure nor a success: what was to send a request and did not has succeeded at nothing; of what was reset after its
/// dial it is not known, nor of what was closed when its probe had timed out.
#[must_use]
pub fn is_unknown_end(attempt: &Attempt, node: &Node) -> bool {
    is_unasked(attempt, node) || is_reset_after_dial(attempt, node) || timed_out_after_ns(attempt, node).is_some()
}

/// It failed: by itself, because every probe had timed out by then, or because the server closed before it was asked.
#[must_use]
pub fn failed(attempt: &Attempt, node: &Node) -> bool {
    let closed = || matches!(attempt.ended, Some((_, End::ClosedByServer))) && is_unasked(attempt, node);
    let by_itself = attempt.failed_by_itself() && !is_reset_after_dial(attempt, node);
    by_itself || is_too_late(attempt, node) || closed()
}
