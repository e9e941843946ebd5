//! The server took the request and closed without a byte of an answer.

use super::super::evidence::{evidence, of_state};
use super::super::kubectl::with_log;
use super::super::sidecar;
use super::{Case, Finding, Label, ms};
use crate::correlate::attempt::End;
use crate::enrich;
use crate::record::{Confidence, Evidence};
use serde_json::json;

/// How far from the close the end of the listener may lie to be the same event.
const TOGETHER_NS: u64 = 1_000_000_000;

/// The rule.
pub(in super::super) fn find(case: &Case<'_>) -> Option<Finding> {
    let attempt = case.attempt;
    let (ended, End::ClosedByServer) = attempt.ended? else { return None };
    let (established, state) = (attempt.established?, attempt.last.as_ref()?);
    let unasked = enrich::is_unasked(attempt, case.node);
    if !case.settled
        || !(attempt.failed_by_itself() || unasked)
        || attempt.received() != Some(0)
        || attempt.errno().is_some()
    {
        return None;
    }
    let gone = listener_ended(case, ended);
    let how = if gone.is_some() {
        ", and its listener ended at the same time: it exited, crashed or was stopped"
    } else {
        ""
    };
    let after = ms(ended.saturating_sub(established));
    let what = match unasked {
        true => format!("closed the connection {after} after it was established, before a request was sent"),
        false => format!(
            "took the request and closed the connection {after} after it was established without a byte of an answer"
        ),
    };
    let or = if unasked { REDIRECTED } else { "" };
    let summary = format!("{} {what}{how}{or}", attempt.flow.dst);
    let mut seen = vec![of_state(ended, state)];
    let process_ended = gone.is_some();
    seen.extend(gone);
    let mend = with_log(case, Label::ClosedWithoutAnswer.page().mend.to_owned());
    let found = Finding::failure(Label::ClosedWithoutAnswer, seen, summary, mend);
    let found = if unasked { found.with_confidence(Confidence::Likely) } else { found };
    // A listener that ended is the process's own.
    let found = if process_ended { found } else { sidecar::add_close(case, found) };
    Some(Finding { decided_at: ended, ..found })
}

/// A program of a sockmap has payload queued at the other socket (`tcp_bpf_sendmsg`, net/ipv4/tcp_bpf.c), past what counts it
/// in both: a healthy request and its answer leave no more than the FIN.
const REDIRECTED: &str = "; or payload is redirected between sockets on this node (a sockmap program: bpftool prog show), and what was asked and answered is not counted";

/// The listener of that port ended about when the connection was closed.
fn listener_ended(case: &Case<'_>, ended: u64) -> Option<Evidence> {
    let (at, end) = case.node.listener_end(case.attempt.netns?, case.attempt.flow.dst)?;
    let at = *at;
    (at.abs_diff(ended) < TOGETHER_NS).then(|| {
        let says = format!("{} (pid {}) ceased to listen on port {}", end.actor.comm, end.actor.pid, end.addr.port());
        evidence("inet_sock_set_state", at, says, json!({ "pid": end.actor.pid, "netns": end.netns }))
    })
}

#[cfg(test)]
mod tests {
    use crate::event::TcpState;
    use crate::record::{Confidence, VerdictBody};
    use crate::testing::Stream;

    fn closed(received: u64) -> Vec<&'static str> {
        let mut stream = Stream::new();
        stream.connect().established().state(TcpState::Established, TcpState::CloseWait, 0, (100, 101, received + 1));
        stream.state(TcpState::CloseWait, TcpState::LastAck, 0, (100, 101, received + 1)).labels()
    }

    #[test]
    fn a_fin_without_a_byte_and_not_after_one() {
        assert_eq!(closed(0), ["closed_without_answer"]);
        assert!(closed(10).is_empty());
    }

    /// The FIN is no byte of an answer.
    #[test]
    fn the_evidence_has_no_byte_either() {
        let mut stream = Stream::new();
        stream.connect().established().state(TcpState::Established, TcpState::CloseWait, 0, (100, 101, 1));
        stream.state(TcpState::CloseWait, TcpState::LastAck, 0, (100, 101, 1));
        assert_eq!(stream.verdicts()[0].verdict.evidence[0].fields["bytes_received"], 0);
    }

    /// A proxy whose upstream is gone closes what it accepts, before the prober has written.
    #[test]
    fn who_would_have_asked_was_closed_before() {
        let touched = |probed: fn(&mut Stream) -> &mut Stream| {
            let mut stream = Stream::new();
            probed(&mut stream).connect().established().state(TcpState::Established, TcpState::CloseWait, 0, (0, 1, 1));
            stream.state(TcpState::CloseWait, TcpState::LastAck, 0, (0, 1, 1));
            let said = |it: &VerdictBody| {
                let count = it.probe.as_ref().and_then(|it| it.consecutive_failures);
                let or = it.verdict.summary.contains("; or payload is redirected between sockets");
                (it.verdict.label.name(), count, it.verdict.confidence, or)
            };
            stream.verdicts().iter().map(said).collect::<Vec<_>>()
        };
        let unasked = ("closed_without_answer", Some(1), Confidence::Likely, true);
        assert_eq!(touched(Stream::http_readiness), [unasked]);
        assert_eq!(touched(Stream::https_readiness), [unasked]);
        assert!(touched(Stream::tcp_readiness).is_empty(), "the port is open");
        assert!(touched(|stream| stream).is_empty(), "what it is is not known");
    }
}
