//! What came of an attempt, by what the probes that it can be want: a dial, a request, an answer in time.

use super::protocols::{WAITED_NS, is_no_refusal};
use super::targets::target_specs;
use super::{
    BEFORE_TIMEOUT_NS, expects_http, handlers_met, longest_timeout_ns, may_be_client, probes_met, timed_out_after_ns,
};
use crate::correlate::attempt::{Attempt, End};
use crate::correlate::node::Node;
use tracer_model::event::{Handler, ProbeOutput, TcpState};

/// It was connected only when every probe that it can be had given up, and then nothing came of it.
///
/// A kubelet built with Go 1.23 or newer (Kubernetes 1.32) goes on to dial after an httpGet probe has timed out, and closes
/// what it gets: `Transport.getConn` of net/http detaches the dial from its request.
pub fn is_too_late(attempt: &Attempt, node: &Node) -> bool {
    let Some(connected) = attempt.established.filter(|_| attempt.touched_only()) else { return false };
    longest_timeout_ns(attempt, node).is_some_and(|timeout| connected.saturating_sub(attempt.started) >= timeout)
}

/// It was connected, and all probes that it can be would have sent a request, which it did not: it was no probe of an open
/// port.
pub fn sent_no_request(attempt: &Attempt, node: &Node) -> bool {
    let probes = probes_met(attempt, node);
    attempt.touched_only() && !probes.is_empty() && probes.iter().all(|spec| spec.handler != Handler::Tcp)
}

/// All probes that it can be ask no more than whether the port is open, and nothing was sent: once it is connected, a reset is
/// no failure of theirs. The kubelet's `net.Dialer` has returned by then, unless the RST came before the socket was asked
/// for its error (`DoTCPProbe`, pkg/probe/tcp/tcp.go): then it says so itself.
pub fn only_connects(attempt: &Attempt, node: &Node) -> bool {
    let probes = probes_met(attempt, node);
    let silent = attempt.sent().is_none_or(|n| n == 0) && attempt.kubelet().is_none();
    let all_dial = !probes.is_empty() && probes.iter().all(|spec| spec.handler == Handler::Tcp);
    silent && all_dial && handlers_met(attempt, node).is_empty()
}

/// Reset after its dial was done, if it is a probe of an open port: neither a failure nor a success.
fn is_reset_after_connect(attempt: &Attempt, node: &Node) -> bool {
    matches!(attempt.ended, Some((_, End::Reset))) && only_connects(attempt, node)
}

/// Neither a failure nor a success: what was to send a request and did not has succeeded at nothing; of what was reset after its
/// dial it is not known, nor of what was closed when its probe had timed out.
pub fn is_unknown_end(attempt: &Attempt, node: &Node) -> bool {
    sent_no_request(attempt, node)
        || is_reset_after_connect(attempt, node)
        || timed_out_after_ns(attempt, node).is_some()
}

/// It failed: by itself, because every probe had timed out by then, or because the server closed before it was asked.
pub fn failed(attempt: &Attempt, node: &Node) -> bool {
    let closed = || matches!(attempt.ended, Some((_, End::ClosedByServer))) && sent_no_request(attempt, node);
    let by_itself = attempt.failed_by_itself() && !is_reset_after_connect(attempt, node);
    let answered = || is_cut_short(attempt, node) || is_no_answer(attempt, node) || is_redirect_loop(attempt, node);
    by_itself || is_too_late(attempt, node) || closed() || answered()
}

/// Reset in the middle of an answer: all that came had come in one segment, and the prober still waited for the rest. After a
/// whole answer it closes within a millisecond, so that a RST that follows at once harms nobody.
pub fn is_cut_short(attempt: &Attempt, node: &Node) -> bool {
    let Some((ended, End::Reset)) = attempt.ended else { return false };
    let Some((at, answer)) = attempt.answer() else { return false };
    let established = attempt.last.as_ref().is_some_and(|last| last.old == TcpState::Established);
    let in_one = answer.len.is_some() && answer.len.map(u64::from) == attempt.received();
    established && in_one && ended.saturating_sub(at) >= WAITED_NS && is_no_refusal(attempt, node)
}

/// No status line is shorter: `HTTP/1.1 200` and the end of its line.
const STATUS_LINE: u64 = 13;
/// No answer over HTTP/2 is shorter than the head of its first frame (RFC 9113 4.1), and none over TLS.
const FRAME: u64 = 9;

/// A request was sent, and what came back is shorter than any answer to it. Where no specs are known it may be in any protocol.
pub fn is_no_answer(attempt: &Attempt, node: &Node) -> bool {
    let Some((_, end)) = attempt.ended.filter(|(_, end)| *end != End::NotEstablished) else { return false };
    let received = attempt.received().filter(|n| (1..STATUS_LINE).contains(n));
    let asked = attempt.prober && attempt.sent().is_some_and(|n| n > 0) && received.is_some();
    if !asked || (end == End::ClosedByProber && has_timed_out(attempt, node)) {
        return false;
    }
    let least = match expects_http(attempt, node) {
        Some(true) if handlers_met(attempt, node).is_empty() => STATUS_LINE,
        None if !node.pods.have_specs() && end != End::ClosedByProber && !may_be_client(attempt, node) => FRAME,
        _ => return false,
    };
    received.is_some_and(|n| n < least)
}

/// It lasted as long as every probe that it can be waits.
fn has_timed_out(attempt: &Attempt, node: &Node) -> bool {
    let both = longest_timeout_ns(attempt, node).zip(attempt.lasted());
    both.is_some_and(|(timeout, lasted)| lasted.saturating_add(BEFORE_TIMEOUT_NS) >= timeout)
}

/// Go's client, and so the kubelet, follows no more redirects of one request.
const MOST_REDIRECTS: u32 = 10;

/// A probe was redirected until the kubelet followed no more: by its own word, or by so many answers in a row that were
/// redirects, where there are fewer probes than answers.
pub fn is_redirect_loop(attempt: &Attempt, node: &Node) -> bool {
    let Some(redirected) = attempt.redirected.filter(|_| attempt.redirect_status().is_some()) else { return false };
    if attempt.kubelet().is_some_and(|(_, reported)| reported.says == ProbeOutput::TooManyRedirects) {
        return true;
    }
    let many = redirected.answers + 1 >= MOST_REDIRECTS;
    let probes = target_specs(attempt, node).filter(|(.., spec)| spec.handler == Handler::Http).count();
    let to_node = || attempt.netns.is_some_and(|netns| node.owns(netns, attempt.flow.dst.ip()));
    many && probes < MOST_REDIRECTS as usize && (probes > 0 || !to_node())
}
