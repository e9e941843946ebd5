//! The kubelet itself was late. It did not read an answer that was in its socket in time, or it sent its request when
//! most of its time was over.

use super::*;
use tracer_attempts::enrich::LATE_NS;
use tracer_case::giving_up::{is_timeout, timeout_clause};
use tracer_model::event::{Answer, AnswerKind, ProbeOutput};

/// A kubelet that closes this soon after its timeout ran then: it would have read a complete answer.
const PROMPT_NS: u64 = 20_000_000;

pub(super) fn find(case: &Case<'_>) -> Option<Finding> {
    request_left_too_little_time(case).or_else(|| left_unread(case)).or_else(|| unread(case))
}

/// What the target had sent lay in the prober's socket until the prober closed that, and the prober still had time for it.
/// Whatever the protocol is, a client that waits for bytes and runs reads them.
fn left_unread(case: &Case<'_>) -> Option<Finding> {
    let attempt = case.attempt;
    let lay = attempt.closed_unread()?.filter(|lay| *lay >= LATE_NS)?;
    let ((ended, _), lasted) = (attempt.ended?, attempt.lasted()?);
    // A probe that sends nothing waits for no bytes.
    let timed_out = is_timeout(case) || attempt.sent().is_some_and(|n| n > 0) && case.matched.has_timed_out();
    let own = attempt.resets_sent().find(|(_, it)| it.flow.src == attempt.flow.src);
    // A socket with SO_LINGER 0 ends like that, too.
    let by_unread = own.and_then(|(_, it)| it.reason.as_deref()).is_none_or(|reason| reason == "TCP_ABORT_ON_CLOSE");
    (timed_out && by_unread).then_some(())?;
    let bytes = attempt.received()?;
    let summary = format!(
        "{} of {} lay in the prober's socket for {}; the kubelet closed after {}{} without reading them",
        counted(bytes, "byte"),
        attempt.flow.dst,
        ms(lay),
        ms(lasted),
        timeout_clause(case),
    );
    let state = attempt.last.as_ref().map(|state| of_state(ended, state));
    let own = own.map(|(time, reset)| of_reset_sent(time, reset));
    let outcome = attempt.kubelet().map(|(_, reported)| of_outcome(reported));
    let evidence = state.into_iter().chain(own).chain(outcome).collect();
    Some(Finding::likely(Cause::KubeletDelayed, evidence, summary, fix()))
}

/// The target acknowledged the request late: less than half of the time since the handshake was left for its answer.
fn request_left_too_little_time(case: &Case<'_>) -> Option<Finding> {
    let ended = taken_and_silent(case)?;
    // Without a spec or a kubelet outcome, it may have closed for another reason.
    let at_timeout = case.matched.longest_timeout_ns().is_some() || is_timeout(case);
    let asked = sent_request_late(case).filter(|_| at_timeout)?;
    let (attempt, established) = (case.attempt, case.attempt.established_at()?);
    let [reached, idle, left] = [(attempt.started, established), (established, asked), (asked, ended)]
        .map(|(from, to)| ms(to.saturating_sub(from)));
    let dst = attempt.flow.dst;
    let summary = format!(
        "the kubelet sent its request late: {dst} was reached in {reached}, and acknowledged the first bytes {idle} later; that was {left} before the kubelet closed at its timeout{}",
        timeout_clause(case)
    );
    let text = "the request was acknowledged".to_owned();
    let fields = json!({ "quiet_ms": ended.saturating_sub(asked) / 1_000_000 });
    let evidence = evidence_of(Hook::InetSockSetState.name(), asked, text, fields);
    let state = of_state(ended, attempt.last.as_ref()?);
    let fix = fix();
    Some(Finding::likely(Cause::KubeletDelayed, vec![evidence, state], summary, fix))
}

fn fix() -> Remediation {
    Cause::KubeletDelayed.fix().run([Command::on_node("cat /proc/pressure/cpu")])
}

/// The answer was in the prober's socket, and the kubelet did not read it. The kubelet asks for `Connection: close`: a
/// server that has closed had sent all of its answer. If it has not, the head may be incomplete, too.
fn unread(case: &Case<'_>) -> Option<Finding> {
    let (_, reported) = case.attempt.kubelet().filter(|(_, reported)| reported.reason == ProbeOutput::Timeout)?;
    // With TLS or HTTP/2 the first bytes belong to a handshake, and show nothing about the answer.
    case.matched.expects_http().filter(|plain| *plain)?;
    let ((closed, end), lasted) = (case.attempt.ended?, case.attempt.lasted()?);
    let is_complete = end == End::ClosedByServer;
    let timeout_s = case.matched.timeout_s();
    // No timeout of a probe is shorter than 1 s.
    let shortest_s = timeout_s.or(is_complete.then_some(1))?;
    let timeout = u64::from(shortest_s) * 1_000_000_000;
    let (when, confidence, arrived) = match case.attempt.answer() {
        Some((time, answer)) => {
            let took = time.saturating_sub(case.attempt.started);
            let text = format!("the first bytes of the answer arrived {} after the connect", ms(took));
            let evidence = evidence_of(Hook::CgroupSkb.name(), time, text, json!({ "kind": answer.kind }));
            let late = lasted > timeout.saturating_add(PROMPT_NS);
            let confidence = if is_complete { Confidence::Likely } else { Confidence::Possible };
            (took.saturating_add(LATE_NS) < timeout && late && is_final(answer)).then_some((
                format!("after {}", ms(took)),
                confidence,
                Some(evidence),
            ))?
        }
        None => {
            let unread = timeout_s.is_some() && case.attempt.closed_unread().is_some();
            let late = lasted > timeout.saturating_add(LATE_NS);
            (unread && late).then_some(("when it was closed".to_owned(), Confidence::Possible, None))?
        }
    };
    let summary = format!(
        "the answer of {} was in the prober's socket {when}; the kubelet timed out{} and closed after {} without reading it",
        case.attempt.flow.dst,
        timeout_clause(case),
        ms(lasted),
    );
    let state = case.attempt.last.as_ref().map(|state| of_state(closed, state));
    let evidence = arrived.into_iter().chain(state).chain([of_outcome(reported)]).collect();
    let found = Finding::failure(Cause::KubeletDelayed, evidence, summary, fix());
    Some(found.with_confidence(confidence))
}

/// The kubelet waits for another answer after a redirect, which it follows, and after a 1xx.
fn is_final(answer: &Answer) -> bool {
    answer.kind == AnswerKind::Http && answer.status.is_some_and(|status| (200..300).contains(&status) || status >= 400)
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    /// The pod is gone when the kubelet sends its FIN.
    #[test]
    fn a_retransmission_after_the_close_is_not_the_request() {
        let mut stream = Stream::new().http_readiness().connect().established().wait_ms(1001).clone();
        stream.closes_quiet((100, 101, 0), 100_000_000);
        stream.wait_ms(200).sent_again(0, false).wait_ms(10).tick();
        assert_eq!(stream.causes(), ["kubelet_delayed"]);
    }

    /// kubernetes#89898: the kubelet connected at once, and sent its request 100 ms before its timeout of 1 s.
    #[test]
    fn a_request_that_was_sent_late_is_not_a_slow_answer() {
        let decided = |https: bool, quiet_ms: u64| {
            let mut stream = Stream::new();
            stream.http_readiness_over_tls(https).connect().established().wait_ms(1001);
            stream.closes_quiet((100, 101, 0), quiet_ms * 1_000_000).decided()
        };
        assert_eq!(decided(false, 100), ("kubelet_delayed", Confidence::Likely));
        assert_eq!(decided(true, 100), ("kubelet_delayed", Confidence::Likely));
        assert_eq!(decided(false, 960), ("slow_response", Confidence::Proven), "a delayed acknowledgement");
        assert_eq!(decided(false, 600), ("slow_response", Confidence::Proven), "the target had most of the time");
    }

    #[test]
    fn a_retransmission_or_keepalive_is_not_the_request() {
        let decided = |again: bool, seconds: u64| {
            let mut stream = Stream::new().http_readiness().connect().established().wait_ms(800).clone();
            if again {
                stream.sent_again(100, false);
            }
            stream.wait_ms(seconds * 1000 - 800);
            stream.closes_quiet((100, 101, 0), 200_000_000).causes()
        };
        assert_eq!(decided(true, 1), ["slow_response"], "the request was sent at once, and again");
        assert_eq!(decided(false, 1), ["kubelet_delayed"]);
        assert_eq!(decided(false, 16), ["slow_response"], "a keepalive");
    }

    #[test]
    fn first_bytes_before_the_final_answer_do_not_count() {
        let decided = |https: bool, kind, status| {
            let mut stream = Stream::new();
            stream
                .http_readiness_over_tls(https)
                .connect()
                .established()
                .wait_ms(10)
                .answer(kind, status)
                .wait_ms(1990);
            stream.closes((100, 101, 200)).kubelet(ProbeOutput::Timeout).causes()
        };
        assert_eq!(decided(true, AnswerKind::Tls, None), ["slow_response"], "a ServerHello");
        assert_eq!(decided(false, AnswerKind::Http, Some(302)), ["unexplained"], "a redirect, which was followed");
        assert_eq!(decided(false, AnswerKind::Http, Some(200)), ["kubelet_delayed"]);
    }

    /// The kubelet had no CPU time after its ClientHello, or after its request. A socket with unread data ends at once.
    #[test]
    fn bytes_that_lay_in_the_socket_until_the_close_were_not_read_in_time() {
        let decided = |https: bool, new: TcpState, lay_ms: u64| {
            let mut stream = Stream::new().http_readiness_over_tls(https).connect().established().wait_ms(10).clone();
            let (kind, status) = if https { (AnswerKind::Tls, None) } else { (AnswerKind::Http, Some(200)) };
            stream.answer(kind, status).wait_ms(1_290).state(TcpState::Established, new, 0, (280, 281, 900));
            stream.last_state().quiet_ns = Some(lay_ms * 1_000_000);
            stream.kubelet(ProbeOutput::Timeout).settles().last_decided()
        };
        let delayed = ("kubelet_delayed", Confidence::Likely);
        for https in [true, false] {
            assert_eq!(decided(https, TcpState::Close, 1_290), delayed, "{https}");
            assert_ne!(decided(https, TcpState::Close, 5), delayed, "they came just then");
        }
        assert_eq!(decided(true, TcpState::FinWait1, 1_290).0, "slow_response", "it had read all that came");
    }

    /// SSH greets, and the kubelet had no CPU time before it closed. A tcpSocket probe reads nothing.
    #[test]
    fn a_greeting_that_a_tcp_probe_leaves_unread_is_no_failure() {
        let mut stream = Stream::new().tcp_readiness().connect().established().wait_ms(1_300).clone();
        stream.state(TcpState::Established, TcpState::Close, 0, (0, 1, 24));
        stream.last_state().quiet_ns = Some(1_290_000_000);
        assert_ne!(stream.settles().causes(), ["kubelet_delayed"]);
    }

    #[test]
    fn an_unread_answer_of_unknown_time_needs_a_late_close() {
        let closed_after = |ms: u64, new: TcpState| {
            let mut stream = Stream::new().http_readiness().connect().established().wait_ms(ms).clone();
            stream.state(TcpState::CloseWait, new, 0, (100, 101, 201)).kubelet(ProbeOutput::Timeout);
            stream.causes()
        };
        assert_eq!(closed_after(1700, TcpState::Close), ["kubelet_delayed"]);
        assert_eq!(closed_after(1700, TcpState::LastAck), ["unexplained"], "nothing was unread");
        assert_eq!(closed_after(1001, TcpState::Close), ["unexplained"], "closed in time: it may have come in parts");
    }

    /// The server sent its status line, and then waited for its database. Such a server has not closed.
    #[test]
    fn a_kubelet_that_is_late_may_have_read_all_that_there_was() {
        let closed_after = |ms: u64, by_server: bool| {
            let mut stream = Stream::new().http_readiness().connect().established().wait_ms(10).clone();
            stream.answer(AnswerKind::Http, Some(200));
            if by_server {
                stream.state(TcpState::Established, TcpState::CloseWait, 0, (100, 101, 18));
                stream.wait_ms(ms - 10).state(TcpState::CloseWait, TcpState::LastAck, 0, (100, 101, 17));
                stream.last_state().quiet_ns = Some((ms - 10) * 1_000_000);
            } else {
                stream.wait_ms(ms - 10).closes_quiet((100, 101, 17), (ms - 10) * 1_000_000);
            }
            stream.kubelet(ProbeOutput::Timeout).last_decided()
        };
        let slow = ("slow_response", Confidence::Likely);
        assert_eq!([1_001, 1_100].map(|ms| closed_after(ms, false)), [slow, slow]);
        assert_eq!(closed_after(1_100, true), ("kubelet_delayed", Confidence::Likely));
        assert_eq!(closed_after(1_001, true).0, "unexplained", "a kubelet that is late itself closes late");
    }

    /// No timeout is shorter than a second, so the answer came in time. Only a server that has closed sent all of it.
    #[test]
    fn without_specs_an_answer_in_the_first_second_was_not_read() {
        let decided = |answer_ms: u64, by_server: bool, scheme: &str| {
            let mut stream = Stream::new().without_specs().connect().established().wait_ms(answer_ms).clone();
            stream.answer(AnswerKind::Http, Some(200));
            let old = if by_server { TcpState::CloseWait } else { TcpState::Established };
            if by_server {
                stream.state(TcpState::Established, old, 0, (100, 101, 18));
            }
            let new = if by_server { TcpState::LastAck } else { TcpState::FinWait1 };
            stream.wait_ms(3_000).state(old, new, 0, (100, 101, 17)).last_state().quiet_ns = Some(3_000_000_000);
            stream.kubelet_request(ProbeOutput::Timeout, scheme, "context deadline exceeded").last_decided()
        };
        assert_eq!(decided(30, true, "http"), ("kubelet_delayed", Confidence::Likely));
        assert_eq!(decided(30, false, "http").0, "slow_response", "the timeout may be 3 s");
        assert_eq!(decided(900, true, "http").0, "unexplained", "the timeout may be 1 s");
        assert_ne!(decided(30, true, "https").0, "kubelet_delayed", "a ServerHello may come so");
    }

    /// Of a probe without a spec, or one of two with different timeouts.
    #[test]
    fn a_late_request_needs_no_known_timeout() {
        let mut stream = Stream::new().without_specs().connect().established().wait_ms(1001).clone();
        stream.closes_quiet((100, 101, 0), 100_000_000).settles();
        assert_eq!(stream.causes(), ["slow_response"], "it may have closed for another reason");
        stream.kubelet_request(ProbeOutput::Timeout, "http", "context deadline exceeded");
        assert_eq!(stream.last_decided(), ("kubelet_delayed", Confidence::Likely));
        let mut two = Stream::new().http_readiness().like_liveness_too(5).connect().established().wait_ms(1001).clone();
        assert_eq!(two.closes_quiet((100, 101, 0), 100_000_000).causes(), ["kubelet_delayed"]);
    }

    #[test]
    fn a_late_or_incomplete_answer_has_another_cause() {
        let causes = |answer_after_ms: u64, reason| {
            let mut stream = Stream::new().http_readiness().connect().established().wait_ms(answer_after_ms).clone();
            stream.answer(AnswerKind::Http, Some(200)).wait_ms(3000).closes((100, 101, 200)).kubelet(reason).causes()
        };
        assert_eq!(causes(1500, ProbeOutput::Timeout), ["unexplained"], "after the timeout");
        assert_eq!(causes(998, ProbeOutput::Timeout), ["unexplained"], "by the kubelet's timer it may be late");
        assert_eq!(causes(10, ProbeOutput::TimeoutInBody), ["slow_response"], "the answer was incomplete");
    }
}
