//! The server acknowledged the request and closed the connection without a byte of an answer.

use super::*;
use crate::rules::probe_misconfigured::is_unanswered_grpc;
use crate::rules::tls_handshake_slow::{doubt_of_https, or_plain_http};
use tracer_case::answer::{shows_certificate, tls_client};
use tracer_case::ended::{listener_ended, process_ended_text};
use tracer_case::reset::{culprit, is_close, is_own_close, sender, with_unread};
use tracer_case::wrong_field::GRPC_IN_PLAIN;
use tracer_case::{killed, sidecar};
use tracer_model::event::{KubeletProbe, ProbeOutput, ResetSent, State, TcpState};

pub(super) fn find(case: &Case<'_>) -> Option<Finding> {
    let attempt = case.attempt;
    let (ended, end @ (End::ClosedByServer | End::Reset)) = attempt.ended? else { return None };
    let (established, state) = (attempt.established_at()?, attempt.last.as_ref()?);
    let before_request = case.matched.sent_no_request();
    let by_unread = end == End::Reset && closed_unread(case).is_some();
    if !case.settled && !by_unread {
        return None;
    }
    let by_server = end == End::ClosedByServer;
    // A RST may follow, which answers what the prober sent after the close (a TLS alert).
    if let Some(outcome) = cut_by_outcome(case).filter(|_| by_server) {
        return Some(cut_answer(case, (ended, state), outcome));
    }
    // What the prober sent after the server's FIN was answered with a RST (`tcp_reset`: EPIPE in CLOSE_WAIT).
    let reset_after = by_server && attempt.errno() == Some(libc::EPIPE);
    let closed = by_server && (attempt.errno().is_none() || reset_after) || by_unread;
    // A gRPC server that closes sends a RST if it has unread data, else a FIN. Both count: the difference is chance.
    let grpc = is_unanswered_grpc(case) && (closed || is_close(case));
    let failed = attempt.failed_by_itself() || before_request;
    if attempt.received() != Some(0) || !failed || !(closed || grpc) {
        return None;
    }
    let listener_end = listener_ended(case, ended);
    let process_ended = listener_end.is_some();
    let how = listener_end.map(|end| process_ended_text(case, end)).unwrap_or_default();
    let after = ms(ended.saturating_sub(established));
    // The server's FIN acknowledges all that had come before it; the SYN counts one in bytes_acked.
    let took_none = !before_request && by_server && state.bytes_acked.is_some_and(|acked| acked <= 1);
    let unread = with_unread(case).filter(|_| !by_server);
    let what = match (before_request, took_none, unread) {
        (true, ..) => format!("closed the connection {after} after it was established, before a request was sent"),
        (_, true, _) => "closed the connection before it took the request".to_owned(),
        (.., Some((_, reset))) => unread_text(case, &after, reset),
        _ => format!("took the request and closed the connection after {after} without a byte of an answer"),
    };
    // Whoever closes before it has read anything does so whatever the protocol is.
    let may_depend = !process_ended && !before_request && !took_none;
    let may_be_tls = grpc && may_depend && case.matched.may_have_wrong_protocol();
    let not_tls = doubt_of_https(case).filter(|_| may_depend);
    let or = match (before_request, may_be_tls) {
        (true, _) => REDIRECTED,
        (_, true) => NOT_GRPC,
        _ => not_tls.unwrap_or_default(),
    };
    let summary = format!("{} {what}{how}{or}", attempt.flow.dst);
    let mut evidence = vec![of_state(ended, state)];
    evidence.extend(listener_end.map(|(at, end)| of_listener(*at, end)));
    let by_rst = grpc || reset_after || by_unread;
    evidence.extend(attempt.reset_received().filter(|_| by_rst).map(|(at, reset)| of_reset_received(at, reset)));
    evidence.extend(attempt.resets_sent().filter(|_| by_rst).map(|(at, reset)| of_reset_sent(at, reset)));
    let fix = match (may_be_tls, not_tls) {
        (true, _) => or_in_tls(case),
        (_, Some(_)) => or_plain_http(case, fix(case, process_ended)),
        _ if case.matched.may_find_no_http() && may_depend => {
            let more = |text: &str| format!("{}{OR_SPEAKS_TLS}{ON_PURPOSE}", text.trim_end_matches('.'));
            fix(case, process_ended).reword(more).run([shows_certificate(attempt.flow.dst)])
        }
        _ => fix(case, process_ended),
    };
    let found = Finding::failure(Cause::ClosedWithoutAnswer, evidence, summary, fix);
    let found = if before_request { found.with_confidence(Confidence::Likely) } else { found };
    let found = found.with_culprit(unread.and_then(|(time, reset)| culprit(case, time, reset)));
    // If the listener ended, the process that listens closed the connection, and not a sidecar.
    let found = if process_ended { found } else { sidecar::add_close(case, found) };
    Some(Finding { decided_at: ended, waits_for_listener: !process_ended, ..found })
}

fn unread_text(case: &Case<'_>, after: &str, reset: &ResetSent) -> String {
    format!("closed the connection after {after} without a byte of an answer; {}", sender(case, reset, None))
}

/// The log of a process that ended is that of the run before.
fn fix(case: &Case<'_>, process_ended: bool) -> Remediation {
    let fix = Cause::ClosedWithoutAnswer.fix();
    if process_ended { with_logs(case, fix) } else { with_log(case, fix) }
}

/// The fix if a gRPC probe may have met a port that speaks TLS.
fn or_in_tls(case: &Case<'_>) -> Remediation {
    let fix = fix(case, false);
    let or = |text: &str| format!("{}. If the port speaks TLS: {GRPC_IN_PLAIN}", text.trim_end_matches('.'));
    fix.reword(or).run([tls_client(case.attempt.flow.dst, " -alpn h2")])
}

/// OpenSSL stops reading a request as soon as its first bytes show that it is no ClientHello. A server that has read all
/// of it closes with a FIN.
const OR_SPEAKS_TLS: &str =
    ". Or the port speaks TLS, and its server closes connections with plain HTTP. Then set the probe's scheme to HTTPS";

/// What a healthy server does with a request that it does not want.
const ON_PURPOSE: &str = ". Some servers close on purpose: one that does not know the Host of the probe (nginx: return 444), or one that expects the PROXY protocol. Then change the probe";

/// A server sends GOAWAY before it ends a connection in order, or after an error of its client (RFC 9113 6.8).
const GOES_AWAY: &str = "The server, or a proxy in front of it, ended the connection by itself: it shuts down, or limits the age of connections or what they carry. LastStreamID 0 in the kubelet's message: it did not take the request. An ErrCode other than NO_ERROR: it rejects what its client sent. Read its log of that moment";

/// An HTTP/2 server sends its first frame as soon as a client is connected (RFC 9113 3.4).
const NOT_GRPC: &str = "; a gRPC server sends a frame at once, unless it fails: perhaps the port speaks TLS";

/// Bytes came, and the kubelet outcome is a network error: the answer was incomplete.
fn cut_by_outcome<'a>(case: &Case<'a>) -> Option<&'a KubeletProbe> {
    let attempt = case.attempt;
    let began = attempt.received().is_some_and(|n| n > 0) && !case.matched.is_no_answer();
    let (_, outcome) = attempt.kubelet().filter(|_| began)?;
    (outcome.reason == ProbeOutput::Network).then_some(outcome)
}

fn cut_answer(case: &Case<'_>, (ended, state): (u64, &State), outcome: &KubeletProbe) -> Finding {
    let bytes = case.attempt.received().unwrap_or_default();
    let when = match has_handshake(case) {
        true => format!(
            "after the handshake and before its answer was complete, after {bytes} bytes of handshake and answer together"
        ),
        false => format!("in the middle of its answer, after {bytes} bytes of it"),
    };
    let listener_end = listener_ended(case, ended);
    let process_ended = listener_end.is_some();
    let how = listener_end.map(|end| process_ended_text(case, end)).unwrap_or_default();
    let announced = if outcome.is_goaway() { "sent GOAWAY (HTTP/2) and " } else { "" };
    let summary = format!("{} {announced}closed the connection {when}{how}", case.attempt.flow.dst);
    let listener = listener_end.map(|(at, end)| of_listener(*at, end));
    let evidence = [of_state(ended, state), of_outcome(outcome)].into_iter().chain(listener).collect();
    let remediation = if outcome.is_goaway() { with_log(case, GOES_AWAY) } else { fix(case, process_ended) };
    let found = Finding::likely(Cause::ClosedWithoutAnswer, evidence, summary, remediation);
    if process_ended { found } else { Finding { waits_for_listener: true, ..sidecar::add_close(case, found) } }
}

/// A sockmap program puts the payload into the queue of the other socket (`tcp_bpf_sendmsg`, net/ipv4/tcp_bpf.c). The
/// byte counters of both sockets do not see it: after a healthy request and answer they have counted only the FIN.
const REDIRECTED: &str = "; or payload is redirected between sockets on this node (a sockmap program: bpftool prog show), and the byte counters do not see requests and answers";

/// A process closed the connection with unread data and without a byte of an answer, and still runs. It is chance
/// whether it had read all that had come: then its kernel sends a FIN.
pub(super) fn closed_unread<'a>(case: &Case<'a>) -> Option<(u64, &'a ResetSent)> {
    let attempt = case.attempt;
    let (at, received) = attempt.reset_received().filter(|(_, it)| it.state == TcpState::Established)?;
    let (time, reset) = with_unread(case)?;
    // An answer was lost before the close: the prober acknowledged less (RFC 5961 3.2), and its ACK was answered, too.
    let is_challenged = |(time, it): (u64, &ResetSent)| time <= at && it.actor.is_none() && it.flow == reset.flow;
    let is_silent = received.bytes_received == Some(0) && !attempt.resets_sent().any(is_challenged);
    let is_own = || is_own_close(case, time, reset) && killed::closer(case, at).is_none();
    let is_request = attempt.established_at().is_some() && !case.matched.may_only_connect();
    (is_silent && is_request && is_own()).then_some((time, reset))
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    #[test]
    fn a_fin_is_a_failure_only_without_a_byte_of_an_answer() {
        let closed = |bytes| Stream::new().connect().established().server_closes((100, 101, bytes)).clone();
        assert_eq!(closed(1).causes(), ["closed_without_answer"]);
        let received = &closed(1).verdict().evidence[0].fields["bytes_received"];
        assert_eq!(*received, 0, "the kernel's counter includes the FIN");
        assert!(closed(11).causes().is_empty());
    }

    /// `unexpected EOF`: the header or a part of the body came.
    #[test]
    fn a_close_in_the_middle_of_an_answer_needs_the_kubelet_outcome() {
        let decided = |reason: Option<ProbeOutput>| {
            let mut stream = Stream::new();
            stream.http_readiness().connect().established().answer(AnswerKind::Http, Some(200));
            stream.own(|it| _ = it.server_closes((100, 101, 81))).wait_ms(1);
            reason.into_iter().for_each(|reason| _ = stream.kubelet(reason));
            stream.settles().causes()
        };
        assert_eq!(decided(Some(ProbeOutput::Network)), ["closed_without_answer"]);
        assert!(decided(None).is_empty(), "a body may end with the connection");
    }

    /// Go's TLS client sends an alert when it reads the end. The server's socket is gone, and its kernel sends a RST.
    #[test]
    fn a_rst_that_answers_an_alert_after_the_close_is_not_mid_stream_rst() {
        let mut stream = Stream::new();
        stream.https_readiness().connect().established().answer(AnswerKind::Tls, None);
        stream.state(TcpState::Established, TcpState::CloseWait, 0, (300, 301, 1001));
        stream.reset_received(TcpState::CloseWait, 1001).reset_sent(TcpFlags(0x18), true, None);
        stream.state(TcpState::CloseWait, TcpState::Close, 32, (324, 301, 1001)).wait_ms(1);
        stream.kubelet_messages(ProbeType::Readiness, "Get \"https://10.88.0.2:8080\": EOF").wait_ms(5).tick();
        assert_eq!(stream.causes(), ["closed_without_answer"]);
    }

    /// A server that speaks plain HTTP may close when it reads a ClientHello.
    #[test]
    fn a_port_that_closes_on_a_client_hello_may_not_speak_tls() {
        let closed = |probed: fn(&mut Stream) -> &mut Stream| {
            let mut stream = Stream::new();
            probed(&mut stream).connect().established().server_closes((300, 301, 1)).verdict()
        };
        let https = closed(Stream::https_readiness);
        assert_eq!((https.cause.name(), https.confidence), ("closed_without_answer", Confidence::Proven));
        assert_ends(&https.summary, "; perhaps the port does not speak TLS: no HTTPS probe was answered there");
        assert_has(&https.remediation, &["set the probe's scheme to HTTP", "openssl s_client"]);
        let in_plain = closed(Stream::http_readiness);
        assert_lacks(&in_plain.summary, &["TLS"]);
        assert_has(&in_plain.remediation, &[". Or the port speaks TLS", "openssl s_client"]);
        assert_has(&in_plain.remediation, &["return 444", "PROXY protocol"]);
        assert_lacks(&https.remediation, &["scheme to HTTPS"]);
        let mut before = Stream::new().http_readiness().connect().established().answers(200).wait_ms(9_000).clone();
        let after = before.again(8).connect().established().server_closes((100, 101, 1)).verdict();
        assert_lacks(&after.remediation, &["return 444", "TLS"]);
    }

    /// A proxy without its upstream closes each connection before the prober has sent a request.
    #[test]
    fn a_close_before_the_request_fails_an_http_probe() {
        let decided = |probed: fn(&mut Stream) -> &mut Stream| {
            let mut stream = Stream::new();
            probed(&mut stream).connect().established().server_closes((0, 1, 1));
            let reported = |it: &VerdictBody| {
                let count = it.probe.as_ref().and_then(|it| it.consecutive_failures);
                let or = it.verdict.summary.contains("; or payload is redirected between sockets");
                (it.verdict.cause.name(), count, it.verdict.confidence, or)
            };
            stream.verdicts().iter().map(reported).collect::<Vec<_>>()
        };
        let expected = ("closed_without_answer", Some(1), Confidence::Likely, true);
        assert_eq!(decided(Stream::http_readiness), [expected]);
        assert_eq!(decided(Stream::https_readiness), [expected]);
        assert!(decided(Stream::tcp_readiness).is_empty(), "the port is open");
        assert!(decided(|stream| stream).is_empty(), "the kind of probe is not known");
    }

    /// The API server in the same process dials twice for two requests, and one connection stays unused.
    #[test]
    fn a_spare_dial_that_the_server_closes_is_no_failure() {
        let decided = |comm: &str| {
            let mut stream = Stream::new().http_readiness().connect().prober_named(comm).established().clone();
            stream.wait_ms(300).server_closes((0, 1, 1)).wait_ms(50).tick().causes()
        };
        assert_eq!(decided("kubelet"), ["closed_without_answer"]);
        assert_eq!(decided("k3s-server"), [""; 0]);
    }

    /// The FIN comes before the request. Then it is chance whether the RST for the request or the prober's own close is
    /// next.
    #[test]
    fn a_close_at_accept_is_no_reset() {
        let decided = |probed: fn(&mut Stream) -> &mut Stream, (sent, acked): (u64, u64), by_rst: bool| {
            let mut stream = Stream::new();
            probed(&mut stream).connect().established().state(TcpState::Established, TcpState::CloseWait, 0, (0, 1, 1));
            if by_rst {
                stream.reset_sent(TcpFlags(0x18), true, None).reset_received(TcpState::CloseWait, 1);
                stream.state(TcpState::CloseWait, TcpState::Close, libc::EPIPE, (sent, acked, 1));
            } else {
                stream.own(|it| _ = it.state(TcpState::CloseWait, TcpState::LastAck, 0, (sent, acked, 1)));
            }
            let verdict = stream.settles().verdict();
            (verdict.cause.name(), verdict.confidence, verdict.summary)
        };
        let probes: [fn(&mut Stream) -> &mut Stream; 3] =
            [Stream::http_readiness, Stream::https_readiness, |stream| stream.grpc_readiness(1)];
        for probed in probes {
            for by_rst in [true, false] {
                let (cause, confidence, summary) = decided(probed, (100, 1), by_rst);
                assert_eq!((cause, confidence), ("closed_without_answer", Confidence::Proven), "{by_rst} {summary}");
                assert_ends(&summary, " closed the connection before it took the request");
            }
        }
        // The RST answers an alert of the client.
        let (cause, _, summary) = decided(Stream::https_readiness, (307, 301), true);
        assert_eq!(cause, "closed_without_answer");
        assert_has(&summary, &["took the request and closed"]);
    }

    /// A close: the process had not read all of the request.
    fn closes_unread(stream: &mut Stream, fill: impl FnOnce(&mut ResetSent)) -> Option<VerdictBody> {
        stream.connect().established().wait_ms(5).reset_sent(TcpFlags(0), false, Some("app"));
        let sent = stream.last_reset_sent();
        sent.reason = Some("TCP_ABORT_ON_CLOSE".to_owned());
        fill(sent);
        stream.resets((100, 101, 0)).wait_ms(60).tick().verdicts().pop()
    }

    /// Whether the request lay unread when the process closed is chance.
    #[test]
    fn a_close_with_unread_data_is_a_close() {
        let decided = |fill: fn(&mut ResetSent)| {
            let mut stream = Stream::new().http_readiness().clone();
            let found = closes_unread(&mut stream, fill).expect("a verdict");
            assert_eq!(stream.all_decided().len(), 1, "no other verdict before");
            (found.verdict.cause.name(), found.verdict.confidence, found.culprit.is_some(), found.verdict)
        };
        let (cause, confidence, is_named, verdict) = decided(|_| ());
        assert_eq!((cause, confidence, is_named), ("closed_without_answer", Confidence::Proven, true));
        assert_has(&verdict.summary, &[" closed the connection after 5"]);
        assert_ends(&verdict.summary, " without a byte of an answer; app (pid 99) closed it with unread data");
        assert_has(&verdict.remediation, &["Or the port speaks TLS", "PROXY protocol", "openssl s_client"]);
        let counters: fn(&mut ResetSent) = |it| (it.reason, it.unread) = (None, Some(true));
        assert_eq!(decided(counters).0, "closed_without_answer", "before Linux 6.12");
        let others: [fn(&mut ResetSent); 5] = [
            |it| it.reason = Some("TCP_STATE".to_owned()),
            |it| it.reason = None,
            |it| (it.reason, it.unread) = (None, Some(false)),
            |it| (it.reason, it.unread, it.state) = (None, Some(true), Some(TcpState::Established)),
            |it| (it.reason, it.unread) = (Some("TCP_STATE".to_owned()), Some(true)),
        ];
        assert_eq!(others.map(|fill| decided(fill).0), ["mid_stream_rst"; 5]);
        // The prober's ACK was answered first: it had lost an answer.
        let mut lost = Stream::new().http_readiness().connect().established().wait_ms(5).clone();
        lost.reset_sent(TcpFlags(0), false, Some("app")).last_reset_sent().reason = Some("TCP_ABORT_ON_CLOSE".into());
        lost.reset_sent(TcpFlags(0x10), false, None).resets((100, 101, 0));
        assert_eq!(lost.wait_ms(60).tick().causes(), ["mid_stream_rst"]);
        // The kernel does not give the error of the socket.
        let mut unclear = Stream::new().http_readiness().connect().established().wait_ms(5).clone();
        unclear.reset_sent(TcpFlags(0), false, Some("app")).last_reset_sent().reason =
            Some("TCP_ABORT_ON_CLOSE".into());
        unclear.reset_received(TcpState::Established, 0).state(
            TcpState::Established,
            TcpState::Close,
            0,
            (100, 101, 0),
        );
        assert_eq!(unclear.wait_ms(60).tick().causes(), ["mid_stream_rst"]);
    }

    /// The kernel's worker that delivers the RST may be faster than the hook, and slower than the listener's end.
    #[test]
    fn a_process_that_ended_with_unread_data_is_not_one_that_closes() {
        for order in [[0, 1, 2], [2, 0, 1], [1, 0, 2], [1, 2, 0]] {
            let mut stream = Stream::new().http_readiness().pod_in(POD).listens(POD, 8080, true).wait_ms(500).clone();
            stream.connect().established().wait_ms(5);
            for step in order {
                match step {
                    0 => _ = stream.listens(POD, 8080, false),
                    1 => {
                        stream.reset_sent(TcpFlags(0), false, Some("app"));
                        stream.last_reset_sent().reason = Some("TCP_ABORT_ON_CLOSE".to_owned());
                    }
                    _ => _ = stream.resets((100, 101, 0)),
                }
            }
            assert_eq!(stream.wait_ms(600).tick().causes(), ["mid_stream_rst"], "{order:?}");
        }
    }

    #[test]
    fn a_probe_that_only_connects_needs_no_answer() {
        let mut stream = Stream::new().tcp_readiness().connect().established().wait_ms(5).clone();
        stream.reset_sent(TcpFlags(0), false, Some("app")).last_reset_sent().reason = Some("TCP_ABORT_ON_CLOSE".into());
        assert!(stream.resets((0, 1, 0)).wait_ms(600).tick().causes().is_empty());
    }

    /// OpenSSL closes after a few bytes of a plain HTTP request, and a server without TLS after those of a ClientHello.
    #[test]
    fn a_server_that_does_not_read_the_request_may_speak_the_other_protocol() {
        let decided = |probed: fn(&mut Stream) -> &mut Stream| {
            let mut stream = Stream::new();
            closes_unread(probed(&mut stream), |_| ()).expect("a verdict").verdict
        };
        let https = decided(Stream::https_readiness);
        assert_ends(&https.summary, "; perhaps the port does not speak TLS: no HTTPS probe was answered there");
        assert_has(&https.remediation, &["scheme to HTTP", "openssl s_client"]);
        assert_lacks(&decided(|stream| stream).remediation, &["TLS"]);
        let answered = decided(|it| it.http_readiness().connect().established().answers(200).wait_ms(9_000).again(8));
        assert_lacks(&answered.remediation, &["TLS"]);
    }

    /// Two pods listen on the same port. One of them ends.
    #[test]
    fn what_a_port_speaks_is_known_until_its_own_listener_ends() {
        let decided = |netns: Netns, at: &str| {
            let mut stream = Stream::new().grpc_readiness(1).pod_in(POD).links(true, &["10.88.0.1"]).clone();
            stream.connect().established().answer(AnswerKind::Other, None).closes((100, 101, 60)).wait_ms(3_000);
            stream.listens_on(netns, address(at), false).wait_ms(3_000);
            stream.again(8).connect().established().server_closes((100, 101, 1)).settles();
            stream.last_verdict().summary.contains("perhaps the port speaks TLS")
        };
        assert!(decided(POD, "[::]:8080"));
        assert!(!decided(Netns(9), "[::]:8080"), "another pod's");
        assert!(!decided(POD, "127.0.0.1:8080"), "at another address");
    }

    /// A process that ends closes its sockets one after another.
    #[test]
    fn a_listener_that_ends_after_the_close_is_named() {
        let decided = |probed: fn(&mut Stream) -> &mut Stream, after_ms: u64| {
            let mut stream = Stream::new();
            probed(&mut stream).pod_in(POD).connect().established().server_closes((100, 101, 1)).wait_ms(after_ms);
            stream.listens_on(POD, address("[::]:8080"), false).wait_ms(60).tick();
            let verdicts = stream.verdicts();
            assert_eq!(verdicts.len(), 1);
            verdicts[0].verdict.summary.contains(", and its listener ended at the same time")
        };
        let grpc: fn(&mut Stream) -> &mut Stream = |stream| stream.grpc_readiness(1);
        for probed in [Stream::http_readiness, grpc] {
            assert_eq!([1, 10, 45, 55].map(|ms| decided(probed, ms)), [true, true, true, false]);
        }
    }

    /// A supervisor starts a crashed server again at once. What the new one closes, it closes by itself.
    #[test]
    fn an_end_is_named_although_a_listener_comes_back() {
        let decided = |ends_before: bool| {
            let mut stream = Stream::new().http_readiness().pod_in(POD).clone();
            let ends = |stream: &mut Stream| {
                [false, true].map(|it| _ = stream.listens_on(POD, address("[::]:8080"), it).wait_ms(1))
            };
            if ends_before {
                ends(&mut stream);
            }
            stream.connect().established().server_closes((100, 101, 1));
            if !ends_before {
                ends(&mut stream);
            }
            let verdict = stream.wait_ms(60).tick().verdict();
            (verdict.summary.contains("its listener ended"), verdict.remediation.to_string().contains("TLS"))
        };
        assert_eq!([false, true].map(decided), [(true, false), (false, true)]);
    }

    #[test]
    fn an_announced_close_has_its_own_words() {
        let mut stream = Stream::new().https_readiness().connect().established().clone();
        stream.answer(AnswerKind::Tls, None).server_closes((300, 301, 1826));
        let words = "http2: server sent GOAWAY and closed the connection; LastStreamID=0, ErrCode=NO_ERROR";
        let verdict = stream.kubelet_request(ProbeOutput::Network, "https", words).wait_ms(60).tick().last_verdict();
        assert_eq!((verdict.cause.name(), verdict.confidence), ("closed_without_answer", Confidence::Likely));
        assert_has(&verdict.summary, &["sent GOAWAY (HTTP/2) and closed the connection after the handshake"]);
        assert_has(&verdict.remediation, &["LastStreamID 0", "kubectl logs"]);
    }

    /// The bytes that came are those of the handshake, or of the answer, too.
    #[test]
    fn a_close_after_the_handshake_is_not_in_the_middle_of_an_answer() {
        let mut stream = Stream::new().https_readiness().pod_in(POD).connect().established().clone();
        stream.answer(AnswerKind::Tls, None).server_closes((300, 301, 1826)).listens_on(
            POD,
            address("[::]:8080"),
            false,
        );
        stream.kubelet(ProbeOutput::Network).wait_ms(60).tick();
        let verdict = stream.last_verdict();
        assert_has(
            &verdict.summary,
            &[
                "after the handshake and before its answer was complete, after 1825 bytes of handshake and answer together",
            ],
        );
        assert_ends(&verdict.summary, "its listener ended at the same time: it exited, crashed or was stopped");
    }

    /// The next process listens on the port before the old one stops (SO_REUSEPORT).
    #[test]
    fn a_listener_that_ends_at_a_reload_does_not_show_the_end_of_its_process() {
        let mut stream = Stream::new().http_readiness().pod_in(POD).listens(POD, 8080, true).wait_ms(500).clone();
        stream.process_listens_on(98, POD, address("0.0.0.0:8080"), true).wait_ms(200).connect().established();
        stream.listens(POD, 8080, false).server_closes((100, 101, 1)).settles();
        assert_has(&stream.verdict().summary, &["or handed the port over to app (pid 98), which began to listen"]);
    }

    #[test]
    fn a_listener_at_another_address_ended_for_itself() {
        let ended = |at: &str| {
            let mut stream = Stream::new().http_readiness().pod_in(POD).connect().established().clone();
            stream.listens_on(POD, address(at), false).server_closes((100, 101, 1)).settles();
            stream.verdict().summary.contains("its listener ended")
        };
        assert_eq!(["[::]:8080", "10.88.0.2:8080", "127.0.0.1:8080"].map(ended), [true, true, false]);
    }
}
