//! The server took the request and closed without a byte of an answer.

use super::super::sidecar;
use super::app_status_failure::GRPC_IN_PLAIN;
use super::mid_stream_rst::is_close;
use super::probe_misconfigured::is_unanswered_grpc;
use super::*;
use tracer_model::event::{KubeletProbe, ProbeOutput, State};

/// How far from the close the end of the listener may lie to be the same event.
const TOGETHER_NS: u64 = 1_000_000_000;

pub(in super::super) fn find(case: &Case<'_>) -> Option<Finding> {
    let attempt = case.attempt;
    let (ended, End::ClosedByServer | End::Reset) = attempt.ended? else { return None };
    let (established, state) = (attempt.established_at()?, attempt.last.as_ref()?);
    let unavailable_source = case.matched.sent_no_request();
    let by_server = matches!(attempt.ended, Some((_, End::ClosedByServer)));
    let closed = by_server && attempt.errno().is_none();
    // Of gRPC a close and the RST that comes of it are one: what is unread by then is chance.
    let grpc = is_unanswered_grpc(case) && (closed || is_close(case));
    // What the prober sends after that (an alert of TLS) is answered with a RST.
    let outcome = cut_by_outcome(case).filter(|_| by_server);
    let without =
        attempt.received() == Some(0) && (attempt.failed_by_itself() || unavailable_source) && (closed || grpc);
    if !case.settled || !(without || outcome.is_some()) {
        return None;
    }
    if let Some(outcome) = outcome {
        return Some(in_the_middle(case, (ended, state), outcome));
    }
    let gone = listener_ended(case, ended);
    let how = if gone.is_some() {
        ", and its listener ended at the same time: it exited, crashed or was stopped"
    } else {
        ""
    };
    let after = ms(ended.saturating_sub(established));
    let what = match unavailable_source {
        true => format!("closed the connection {after} after it was established, before a request was sent"),
        false => format!("took the request and closed the connection after {after} without a byte of an answer"),
    };
    let hint = grpc && gone.is_none();
    let or = match (unavailable_source, hint) {
        (true, _) => REDIRECTED,
        (_, true) => NOT_GRPC,
        _ => "",
    };
    let summary = format!("{} {what}{how}{or}", attempt.flow.dst);
    let mut seen = vec![of_state(ended, state)];
    let process_ended = gone.is_some();
    seen.extend(gone);
    seen.extend(attempt.reset_received().filter(|_| grpc).map(|(at, reset)| of_reset_received(at, reset)));
    seen.extend(attempt.resets_sent().filter(|_| grpc).map(|(at, reset)| of_reset_sent(at, reset)));
    let fix = with_log(case, Cause::ClosedWithoutAnswer.fix());
    let fix: Remediation = if hint {
        let dst = attempt.flow.dst;
        let text = format!("If the port speaks TLS: {GRPC_IN_PLAIN}. If it does not: {}", fix.text);
        let check = Command::on_node(format!("openssl s_client -connect {dst} -alpn h2 </dev/null"));
        Remediation::from(text).run([check]).run(fix.commands)
    } else {
        fix
    };
    let found = Finding::failure(Cause::ClosedWithoutAnswer, seen, summary, fix);
    let found = if unavailable_source { found.with_confidence(Confidence::Likely) } else { found };
    // A listener that ended is the process's own.
    let found = if process_ended { found } else { sidecar::add_close(case, found) };
    Some(Finding { decided_at: ended, ..found })
}

/// A server of HTTP/2 sends its first frame as soon as a client is connected (RFC 9113 3.4).
const NOT_GRPC: &str = "; a gRPC server sends a frame at once: most likely the port speaks TLS";

/// Bytes came, and the kubelet says that the network failed: the answer was not whole.
fn cut_by_outcome<'a>(case: &Case<'a>) -> Option<&'a KubeletProbe> {
    let attempt = case.attempt;
    let began = attempt.received().is_some_and(|n| n > 0) && !case.matched.is_no_answer();
    let (_, outcome) = attempt.kubelet().filter(|_| began)?;
    (outcome.says == ProbeOutput::Network).then_some(outcome)
}

fn in_the_middle(case: &Case<'_>, (ended, state): (u64, &State), outcome: &KubeletProbe) -> Finding {
    let summary = format!(
        "{} closed the connection in the middle of its answer, after {} bytes of it",
        case.attempt.flow.dst,
        case.attempt.received().unwrap_or_default()
    );
    let fix = with_log(case, Cause::ClosedWithoutAnswer.fix());
    let seen = vec![of_state(ended, state), of_outcome(outcome)];
    let found = Finding::likely(Cause::ClosedWithoutAnswer, seen, summary, fix);
    sidecar::add_close(case, found)
}

/// A program of a sockmap has payload queued at the other socket (`tcp_bpf_sendmsg`, net/ipv4/tcp_bpf.c), past what counts it
/// in both: a healthy request and its answer leave no more than the FIN.
const REDIRECTED: &str = "; or payload is redirected between sockets on this node (a sockmap program: bpftool prog show), and what was asked and answered is not counted";

/// The listener of that port ended about when the connection was closed.
fn listener_ended(case: &Case<'_>, ended: u64) -> Option<Evidence> {
    let (at, end) = case.node.listener_end(case.attempt.netns?, case.attempt.flow.dst)?;
    let at = *at;
    (at.abs_diff(ended) < TOGETHER_NS).then(|| {
        let says = format!("{} ceased to listen on port {}", end.actor, end.addr.port());
        evidence(Hook::InetSockSetState.name(), at, says, json!({ "pid": end.actor.pid, "netns": end.netns }))
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::*;

    fn closed(received: u64) -> Vec<&'static str> {
        Stream::new().connect().established().server_closes((100, 101, received + 1)).causes()
    }

    #[test]
    fn a_fin_without_a_byte_and_not_after_one() {
        assert_eq!(closed(0), ["closed_without_answer"]);
        assert!(closed(10).is_empty());
    }

    /// `unexpected EOF`: a head or a part of a body came.
    #[test]
    fn a_close_in_the_middle_is_the_kubelets_word() {
        let decided = |says: Option<ProbeOutput>| {
            let mut stream = Stream::new();
            stream.http_readiness().connect().established().answer(AnswerKind::Http, Some(200));
            stream.state(TcpState::Established, TcpState::CloseWait, 0, (100, 101, 81));
            stream.own(|it| _ = it.state(TcpState::CloseWait, TcpState::LastAck, 0, (100, 101, 81))).wait_ms(1);
            says.into_iter().for_each(|says| _ = stream.kubelet(says));
            stream.settles().causes()
        };
        assert_eq!(decided(Some(ProbeOutput::Network)), ["closed_without_answer"]);
        assert!(decided(None).is_empty(), "a body may end with the connection");
    }

    /// Go's TLS sends an alert when it has read the end, and a socket that is gone answers it.
    #[test]
    fn what_answers_an_alert_after_the_close_is_no_reset() {
        let mut stream = Stream::new();
        stream.https_readiness().connect().established().answer(AnswerKind::Tls, None);
        stream.state(TcpState::Established, TcpState::CloseWait, 0, (300, 301, 1001));
        stream.reset_received(TcpState::CloseWait, 1001).reset_sent(TcpFlags(0x18), true, None);
        stream.state(TcpState::CloseWait, TcpState::Close, 32, (324, 301, 1001)).wait_ms(1);
        stream.kubelet_messages(ProbeType::Readiness, "Get \"https://10.88.0.2:8080\": EOF").wait_ms(5).tick();
        assert_eq!(stream.causes(), ["closed_without_answer"]);
    }

    /// The FIN is no byte of an answer.
    #[test]
    fn the_evidence_has_no_byte_either() {
        let stream = Stream::new().connect().established().server_closes((100, 101, 1)).clone();
        assert_eq!(stream.verdict().evidence[0].fields["bytes_received"], 0);
    }

    /// A proxy that has lost its upstream closes what it accepts, before the prober has written.
    #[test]
    fn who_would_have_asked_was_closed_before() {
        let touched = |probed: fn(&mut Stream) -> &mut Stream| {
            let mut stream = Stream::new();
            probed(&mut stream).connect().established().server_closes((0, 1, 1));
            let reported = |it: &VerdictBody| {
                let count = it.probe.as_ref().and_then(|it| it.consecutive_failures);
                let or = it.verdict.summary.contains("; or payload is redirected between sockets");
                (it.verdict.cause.name(), count, it.verdict.confidence, or)
            };
            stream.verdicts().iter().map(reported).collect::<Vec<_>>()
        };
        let unavailable_source = ("closed_without_answer", Some(1), Confidence::Likely, true);
        assert_eq!(touched(Stream::http_readiness), [unavailable_source]);
        assert_eq!(touched(Stream::https_readiness), [unavailable_source]);
        assert!(touched(Stream::tcp_readiness).is_empty(), "the port is open");
        assert!(touched(|stream| stream).is_empty(), "what it is is not known");
    }
}
