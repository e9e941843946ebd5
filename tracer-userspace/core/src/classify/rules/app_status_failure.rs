//! The application answered with a failure.

use super::super::evidence::{evidence, of_outcome, of_state};
use super::super::kubectl::with_log;
use super::super::sidecar;
use super::super::wrong_field::wrong_field;
use super::{Case, Cause, Command, Finding, Remediation, ms};
use serde_json::json;
use std::net::SocketAddr;
use tracer_attempts::correlate::attempt::Attempt;
use tracer_attempts::enrich::{self, Protocol};
use tracer_common::names::Hook;
use tracer_model::event::{Answer, AnswerKind, ProbeOutput};
use tracer_model::record::Confidence;

pub(in super::super) const HANDLER: &str = "The network from the kubelet to the pod works. Find what the health handler checks: it may depend on what the pod itself cannot reach. Read the application's log of that moment";
const PROTOCOL: &str = "The probe asks in HTTP and the port speaks something else: correct the probe's port or scheme, or use tcpSocket or grpc";
const PROTOCOL_TLS: &str = "The probe asks in HTTPS and the port speaks something else: set its scheme to HTTP if the port speaks plain HTTP, correct the port, or use tcpSocket or grpc";

const NEITHER: &str =
    "The probe asks in HTTPS and the port speaks something else: correct the probe's port, or use tcpSocket or grpc";

/// What a gRPC probe can do about a port that speaks TLS.
pub(super) const GRPC_IN_PLAIN: &str = "the kubelet's gRPC probes speak no TLS unless the probe has grpc.mode: TLS (Kubernetes 1.37): serve the health service on a port without it, or use tcpSocket, or exec with a client that speaks TLS (grpc_health_probe -tls)";

/// In the words of whoever reads an alert. What a kubelet offers is what its Go offers (crypto/tls), without a certificate.
const REFUSAL: &str = "a fatal alert, by which it refuses the TLS handshake";
const TLS_REFUSED: &str = "The server's log says why. The kubelet offers TLS 1.2 and 1.3 with the ciphers that Go takes for secure, no server name where it dials an address, and no client certificate: let the server take that on the probe's port, or probe a port that needs no client certificate, or use tcpSocket or exec";

const NO_HEALTH_SERVICE: &str =
    "Register the gRPC health service (grpc.health.v1.Health) in the server, or use tcpSocket";

const NOT_FOUND: &str = "Set the probe's grpc.service to a name that the server's health service knows (empty: the whole server), or register that name there";

pub(in super::super) fn find(case: &Case<'_>) -> Option<Finding> {
    match answered_no(case) {
        Some(found) => wrong_field(case).is_none().then_some(found),
        None => too_short(case),
    }
}

/// A no by what was read of the answer, or by the kubelet's word.
pub(super) fn answered_no(case: &Case<'_>) -> Option<Finding> {
    by_answer(case).or_else(|| by_outcome(case))
}

/// What came back is shorter than any answer, whether or not it was read.
fn too_short(case: &Case<'_>) -> Option<Finding> {
    let attempt = case.attempt;
    let (ended, _) = attempt.ended.filter(|_| enrich::is_no_answer(attempt, case.node) && case.settled)?;
    let (dst, received) = (attempt.flow.dst, attempt.received()?);
    let summary = format!(
        "{dst} was reached, took the request and answered with {received} bytes: no status line of HTTP is so short, and a TLS alert has 7"
    );
    let fix = Remediation::from(SHORT).run([shows_certificate(dst)]);
    let seen = vec![of_state(ended, attempt.last.as_ref()?)];
    Some(Finding::likely(Cause::AppStatusFailure, seen, summary, fix))
}

const SHORT: &str = "Most likely the port speaks TLS and the probe asks in plain: set the probe's scheme to HTTPS; else correct its port, or use tcpSocket";

/// The kubelet read what no hook can: HTTPS, gRPC.
fn by_outcome(case: &Case<'_>) -> Option<Finding> {
    let (_, reported) = case.attempt.kubelet()?;
    if case.attempt.received().is_some_and(|n| n == 0) {
        return None;
    }
    let (says, fix) = answer_text(reported.says, enrich::scheme(case.attempt, case.node).as_deref())?;
    let dst = case.attempt.flow.dst;
    let summary = format!("{dst} was reached and answered: {says}, as the kubelet read it");
    let found = Finding::failure(Cause::AppStatusFailure, vec![of_outcome(reported)], summary, with_fix(case, fix));
    let status = if let ProbeOutput::Status(status) = reported.says { Some(status) } else { None };
    Some(sidecar::add(case, status, found.with_confidence(Confidence::Likely)))
}

/// What the application refuses stands in its log, not that it speaks another protocol.
fn with_fix(case: &Case<'_>, fix: &str) -> Remediation {
    match fix {
        HANDLER => with_log(case, fix),
        TLS_REFUSED => with_log(case, fix).run([shows_certificate(case.attempt.flow.dst)]),
        _ => fix.into(),
    }
}

/// Shows a certificate if the port speaks TLS.
pub(super) fn shows_certificate(dst: SocketAddr) -> Command {
    Command::on_node(format!("openssl s_client -connect {dst} </dev/null"))
}

/// What the kubelet read, in words, and what fixes it; `None` if it says nothing of an answer. Over TLS it is not HTTP, or no TLS.
pub(in super::super) fn answer_text(says: ProbeOutput, scheme: Option<&str>) -> Option<(String, &'static str)> {
    match says {
        ProbeOutput::Status(status) => Some((format!("HTTP status {status}"), HANDLER)),
        ProbeOutput::NotServing => Some(("a health status other than SERVING".to_owned(), HANDLER)),
        ProbeOutput::NoHealthService => Some(("that it has no gRPC health service".to_owned(), NO_HEALTH_SERVICE)),
        ProbeOutput::HealthNotFound => Some(("that it does not know the service asked about".to_owned(), NOT_FOUND)),
        ProbeOutput::TlsRefused => Some((REFUSAL.to_owned(), TLS_REFUSED)),
        ProbeOutput::NotHttp if scheme == Some("https") => {
            Some(("something that is not HTTP over TLS".to_owned(), PROTOCOL_TLS))
        }
        ProbeOutput::NotHttp => Some(("something that is not HTTP".to_owned(), PROTOCOL)),
        _ => None,
    }
}

fn by_answer(case: &Case<'_>) -> Option<Finding> {
    let (time, answer) = case.attempt.answer()?;
    if !enrich::is_beginning(case.attempt, answer) {
        return None;
    }
    let (says, fix) = refusal(case, answer)?;
    let dst = case.attempt.flow.dst;
    let took = ms(time.saturating_sub(case.attempt.started));
    let summary = format!("{dst} was reached and answered after {took}: {says}");
    let fields = json!({ "status": answer.status, "kind": answer.kind });
    let seen = evidence(Hook::CgroupSkb.name(), time, says, fields);
    let found = Finding::failure(Cause::AppStatusFailure, vec![seen], summary, with_fix(case, fix));
    let found = unless_redirected(case, found);
    Some(sidecar::add(case, answer.status.filter(|_| answer.kind == AnswerKind::Http), found))
}

/// An interim answer (`100 Continue`, `103 Early Hints`): the next one counts (RFC 9110 15.2). Go's client reads on after each
/// but `101 Switching Protocols`, which is final.
const fn is_interim(status: u16) -> bool {
    status >= 100 && status < 200 && status != 101
}

/// What the answer says, if it is one that the kubelet takes for a failure (`pkg/probe/http`: 200 to 399 is success).
fn refusal(case: &Case<'_>, answer: &Answer) -> Option<(String, &'static str)> {
    if enrich::refused_tls(case.attempt, case.node) {
        return Some((REFUSAL.to_owned(), TLS_REFUSED));
    }
    if let Some(protocol) = enrich::misspoken(case.attempt, case.node) {
        return Some(mismatch(protocol, answer));
    }
    // Without a spec only a status line says that HTTP was spoken; gRPC answers in bytes of its own.
    let asked = enrich::expects_http(case.attempt, case.node);
    if asked.is_none() && case.node.pods.have_specs() && !may_be_a_probe(case) {
        return None;
    }
    if !case.attempt.prober || !asked.unwrap_or(answer.kind == AnswerKind::Http) {
        return None;
    }
    // What was sent decides: a server that speaks first has answered nobody.
    if !had_request(case.attempt, answer, asked) || is_to_be_counted(case.attempt, answer) {
        return None;
    }
    match (answer.kind, answer.status) {
        (AnswerKind::Http, Some(status)) if !(200..400).contains(&status) && !is_interim(status) => {
            // A lifecycle hook takes any (`runHTTPHandler`, pkg/kubelet/lifecycle/handlers.go).
            let hooks = enrich::hooks_met(case.attempt, case.node);
            hooks.is_empty().then(|| (format!("HTTP status {status}"), HANDLER))
        }
        (AnswerKind::Tls | AnswerKind::Alert, _) => Some((
            "a TLS record in answer to plain HTTP".to_owned(),
            "Set the probe's scheme to HTTPS: the port speaks TLS",
        )),
        (AnswerKind::Other, _) => Some(("something that is not HTTP".to_owned(), PROTOCOL)),
        _ => None,
    }
}

/// The prober had sent a request. While it is open, and a recording of before does not tell, its specs do.
fn had_request(attempt: &Attempt, answer: &Answer, by_specs: Option<bool>) -> bool {
    let before = answer.asked.unwrap_or(attempt.ended.is_none() && by_specs == Some(true));
    before || attempt.sent().is_none_or(|n| n > 0)
}

/// In a recording of before the length of such an answer tells that the port speaks TLS, and is known at its end.
fn is_to_be_counted(attempt: &Attempt, answer: &Answer) -> bool {
    answer.status == Some(400) && answer.len.is_none() && attempt.ended.is_none()
}

/// Where the port has answered in TLS, too, what answers in plain may have been asked in plain: a redirect to `http://` on the
/// same port, which the kubelet follows.
fn unless_redirected(case: &Case<'_>, mut found: Finding) -> Finding {
    let dst = case.attempt.flow.dst;
    let in_plain = enrich::misspoken(case.attempt, case.node) == Some(Protocol::Tls);
    if in_plain && case.node.tls.answer(dst).is_some() {
        found.confidence = Confidence::Likely;
        found.summary += "; that port has answered in TLS, too: the probe may have been redirected to http:// on it";
    }
    found
}

/// The port speaks another protocol than the probe.
fn mismatch(probe: Protocol, answer: &Answer) -> (String, &'static str) {
    let status = answer.status.map(|status| format!(" (status {status})")).unwrap_or_default();
    match (probe, answer.kind) {
        (Protocol::Tls, AnswerKind::Http) => (
            format!("plain HTTP{status} in answer to TLS"),
            "Set the probe's scheme to HTTP, or its port to one that speaks TLS",
        ),
        (Protocol::Tls, _) => ("something that is neither TLS nor HTTP in answer to TLS".to_owned(), NEITHER),
        (Protocol::Grpc, AnswerKind::Http) => (
            format!("HTTP/1{status} in answer to gRPC (HTTP/2)"),
            "use httpGet, or set the probe's port to one that speaks gRPC",
        ),
        (Protocol::Http2, AnswerKind::Http) => (
            format!("HTTP/1{status} in answer to HTTP/2"),
            "take protocol: HTTP2 out of the probe's httpGet, or set its port to one that speaks HTTP/2 without TLS",
        ),
        (Protocol::Http2, _) => (
            "a TLS record in answer to HTTP/2 without TLS".to_owned(),
            "Set the probe's scheme to HTTPS: the port speaks TLS",
        ),
        (Protocol::Grpc, _) => ("a TLS record in answer to gRPC without TLS".to_owned(), GRPC_IN_PLAIN),
    }
}

/// No probe that is known asks that. A kubelet dials a pod for a probe, whose spec may not have come yet or which was redirected
/// to another port; what else it asks (a cloud's metadata, a registry) takes a 404 as it likes, and so may an API server's client.
fn may_be_a_probe(case: &Case<'_>) -> bool {
    let (pods, addr) = (&case.node.pods, case.attempt.flow.dst.ip());
    let unknown = pods.only_at(addr).is_some_and(|pod| !pod.has_specs());
    unknown || !enrich::has_api_server(case.attempt) && pods.at(addr).any(|pod| !pod.host_network)
}

#[cfg(test)]
mod tests {
    use crate::testing::{Stream, assert_has};
    use tracer_model::event::{AnswerKind, HookType, ProbeOutput, ProbeProtocol, TcpState};
    use tracer_model::record::Confidence;

    fn answered(kind: AnswerKind, status: Option<u16>) -> Vec<&'static str> {
        let mut stream = Stream::new();
        stream.http_readiness().connect().established().answer(kind, status);
        stream.closes((100, 101, 200)).causes()
    }

    #[test]
    fn what_the_kubelet_takes_for_a_failure() {
        assert_eq!(answered(AnswerKind::Http, Some(503)), ["app_status_failure"]);
        assert_eq!(answered(AnswerKind::Http, Some(404)), ["app_status_failure"]);
        assert_eq!(answered(AnswerKind::Tls, None), ["app_status_failure"]);
        assert_eq!(answered(AnswerKind::Alert, None), ["app_status_failure"], "an alert to plain HTTP");
        for status in [100, 103, 200, 204, 302, 399] {
            assert!(answered(AnswerKind::Http, Some(status)).is_empty(), "{status}");
        }
        assert_eq!(answered(AnswerKind::Http, Some(101)), ["app_status_failure"], "the kubelet wants 200 to 399");
    }

    /// The segment with the status line was lost, and the body came before it was sent again.
    #[test]
    fn a_body_that_overtakes_its_status_line_is_no_other_protocol() {
        let mut stream = Stream::new();
        stream.http_readiness().connect().established().answer(AnswerKind::Other, None).wait_ms(200);
        stream.answer(AnswerKind::Http, Some(200));
        assert!(stream.closes((100, 101, 200)).causes().is_empty());
    }

    /// A tcpSocket probe of a server that says `503` to whoever connects.
    #[test]
    fn who_sent_nothing_was_answered_nothing() {
        let decided = |specs: fn(&mut Stream) -> &mut Stream, sent: u64, asked: Option<bool>| {
            let mut stream = Stream::new();
            specs(&mut stream).connect().established();
            stream.answer_with(AnswerKind::Http, Some(503), |it| it.asked = asked);
            stream.closes((sent, sent + 1, 60)).causes()
        };
        let unknown: fn(&mut Stream) -> &mut Stream = |stream| stream;
        for specs in [unknown, Stream::tcp_readiness, |stream| stream.tcp_readiness().readiness_too()] {
            for asked in [None, Some(false)] {
                assert!(decided(specs, 0, asked).is_empty(), "{asked:?}");
            }
        }
        for asked in [None, Some(true)] {
            assert_eq!(decided(unknown, 100, asked), ["app_status_failure"]);
            assert_eq!(decided(Stream::http_readiness, 100, asked), ["app_status_failure"]);
        }
        // It spoke first, and the prober then asked in HTTP.
        assert_eq!(decided(Stream::http_readiness, 100, Some(false)), ["app_status_failure"]);
    }

    /// A TLS server answers plain HTTP with an alert, closes, and nothing was read of it.
    #[test]
    fn what_is_shorter_than_a_status_line_is_no_answer() {
        let decided = |specs: fn(&mut Stream) -> &mut Stream, received: u64, by_rst: bool| {
            let mut stream = Stream::new();
            specs(&mut stream).connect().established();
            if by_rst {
                stream.reset_received(TcpState::Established, received);
                stream.state(TcpState::Established, TcpState::Close, 104, (100, 101, received));
            } else {
                stream.state(TcpState::Established, TcpState::CloseWait, 0, (100, 101, received + 1));
                stream.state(TcpState::CloseWait, TcpState::LastAck, 0, (100, 101, received + 1));
            }
            stream.wait_ms(5).tick().causes()
        };
        let unknown: fn(&mut Stream) -> &mut Stream = |stream| stream;
        for by_rst in [false, true] {
            for (specs, received) in [(unknown, 7), (Stream::http_readiness as _, 7), (Stream::http_readiness as _, 12)]
            {
                assert_eq!(decided(specs, received, by_rst), ["app_status_failure"], "{received} {by_rst}");
            }
            for (specs, received) in
                [(unknown, 9), (Stream::http_readiness as _, 13), (Stream::https_readiness as _, 7)]
            {
                assert!(decided(specs, received, by_rst).is_empty(), "{received} {by_rst}");
            }
        }
    }

    /// A cloud's metadata, a credential provider: what a 404 means there is theirs to say.
    #[test]
    fn what_no_probe_asks_is_no_failed_probe() {
        let asked = |specs: bool| {
            let mut stream = Stream::new();
            if specs {
                stream.http_readiness();
            }
            stream.again_to(8, "169.254.169.254:80").connect().established().answer(AnswerKind::Http, Some(404));
            stream.closes((100, 101, 200)).causes()
        };
        assert!(asked(true).is_empty());
        assert_eq!(asked(false), ["app_status_failure"], "what is probed is not known");
    }

    /// Its spec has not come yet, or its probe was redirected there.
    #[test]
    fn what_a_kubelet_asks_a_pod_is_a_probe() {
        let asked = |comm: &str, target: &str| {
            let mut stream = Stream::new();
            stream.http_readiness().pod_without_specs("10.88.0.9");
            stream.again_to(8, target).connect().prober_named(comm).established().answer(AnswerKind::Http, Some(404));
            stream.closes((100, 101, 200)).causes()
        };
        for target in ["10.88.0.9:8080", "10.88.0.2:9090"] {
            assert_eq!(asked("kubelet", target), ["app_status_failure"], "{target}");
        }
        assert_eq!(asked("k3s-server", "10.88.0.9:8080"), ["app_status_failure"]);
        assert!(asked("k3s-server", "10.88.0.2:9090").is_empty(), "its API server may ask any port");
    }

    fn asked_and_answered(stream: &mut Stream, kind: AnswerKind, status: Option<u16>) -> &mut Stream {
        stream.connect().established().answer(kind, status);
        stream.closes((300, 301, 103))
    }

    /// Whatever the status: it is no answer to that question.
    #[test]
    fn an_answer_in_another_protocol_is_a_failure() {
        let noted = |https: bool, kind, status| {
            let mut stream = Stream::new();
            if https {
                stream.https_readiness()
            } else {
                stream.grpc_readiness(1)
            };
            let verdicts = asked_and_answered(&mut stream, kind, status).verdicts();
            verdicts.first().map(|it| (it.verdict.cause.name(), it.verdict.confidence, it.verdict.remediation.clone()))
        };
        let fix = |https, kind, status| {
            let (cause, confidence, fix) = noted(https, kind, status).expect("a verdict");
            assert_eq!((cause, confidence), ("app_status_failure", Confidence::Proven));
            fix
        };
        assert!(fix(true, AnswerKind::Http, Some(400)).to_string().starts_with("Set the probe's scheme to HTTP"));
        assert!(fix(true, AnswerKind::Other, None).to_string().contains("correct the probe's port"));
        assert!(fix(false, AnswerKind::Http, Some(505)).to_string().starts_with("use httpGet"));
        for kind in [AnswerKind::Tls, AnswerKind::Alert] {
            assert!(
                fix(false, kind, None)
                    .to_string()
                    .contains("gRPC probes speak no TLS unless the probe has grpc.mode: TLS")
            );
        }
        for (https, kind) in [(true, AnswerKind::Tls), (true, AnswerKind::Short), (false, AnswerKind::Other)] {
            assert_eq!(noted(https, kind, None), None, "{https} {kind:?}");
        }
        for (https, status) in [(true, 200), (true, 301), (false, 200)] {
            assert_eq!(noted(https, AnswerKind::Http, Some(status)), None, "who says yes was asked in HTTP");
        }
    }

    /// Kubernetes 1.37 has `grpc.mode: TLS` and `httpGet.protocol: HTTP2`; a later one has others.
    #[test]
    fn what_a_field_of_a_later_kubernetes_asks_for_is_no_other_protocol() {
        use ProbeProtocol::{Http2, Tls, Unknown};
        let decided = |grpc: bool, speaks, kind, status| {
            let mut stream = Stream::new();
            if grpc {
                stream.grpc_readiness(1)
            } else {
                stream.http_readiness()
            };
            asked_and_answered(stream.speaking(speaks), kind, status).causes()
        };
        for kind in [AnswerKind::Tls, AnswerKind::Other, AnswerKind::Alert] {
            assert!(decided(true, Unknown, kind, None).is_empty() && decided(false, Unknown, kind, None).is_empty());
        }
        assert!(decided(true, Tls, AnswerKind::Tls, None).is_empty(), "the server's part of the handshake");
        assert!(decided(false, Http2, AnswerKind::Other, None).is_empty(), "a frame of HTTP/2");
        for (grpc, speaks) in [(true, Tls), (false, Http2)] {
            assert_eq!(decided(grpc, speaks, AnswerKind::Http, Some(400)), ["app_status_failure"]);
        }
        assert_eq!(decided(true, Tls, AnswerKind::Other, None), ["app_status_failure"], "no TLS");
        assert_eq!(decided(false, Http2, AnswerKind::Tls, None), ["app_status_failure"]);
    }

    /// kubernetes/kubernetes#38144, #92647: it wants another cipher, or a client's certificate.
    #[test]
    fn a_server_that_refuses_tls_says_no() {
        let mut stream = Stream::new();
        let alert = asked_and_answered(stream.https_readiness(), AnswerKind::Alert, None).verdict();
        assert_eq!((alert.cause.name(), alert.confidence), ("app_status_failure", Confidence::Proven));
        assert!(alert.summary.ends_with("a fatal alert, by which it refuses the TLS handshake"), "{}", alert.summary);
        assert_has(&alert.remediation, &["no client certificate", "kubectl logs"]);
        let mut noted = Stream::new();
        noted.https_readiness().connect().established();
        noted.closes((300, 301, 2000)).kubelet(ProbeOutput::TlsRefused);
        let reported = noted.verdict();
        assert_eq!((reported.cause.name(), reported.confidence), ("app_status_failure", Confidence::Likely));
        assert_eq!(reported.remediation, alert.remediation);
    }

    /// Liveness and readiness on one port: the status that the kubelet read came by the other connection.
    #[test]
    fn a_status_is_not_of_who_was_refused_tls() {
        let mut stream = Stream::new();
        asked_and_answered(stream.https_readiness().https_liveness_too(), AnswerKind::Alert, None).again(8);
        asked_and_answered(&mut stream, AnswerKind::Tls, None).wait_ms(5).kubelet(ProbeOutput::Status(503));
        let noted = stream.verdicts();
        let quoted: Vec<_> =
            noted.iter().filter(|it| it.kubelet.is_some()).map(|it| it.verdict.summary.as_str()).collect();
        assert!(noted.len() == 2 && quoted.len() == 1 && quoted[0].contains("HTTP status 503"), "{quoted:?}");
    }

    /// A probe of an open port is over by then; a client of its own may take a certificate that another one does not.
    #[test]
    fn an_alert_to_who_may_not_have_spoken_tls_refuses_nobody() {
        for probed in [Stream::tcp_readiness as fn(&mut Stream) -> &mut Stream, |stream| stream] {
            let mut stream = Stream::new();
            probed(&mut stream).connect().established().answer(AnswerKind::Alert, None);
            stream.closes((0, 1, 7));
            assert!(stream.causes().is_empty(), "{:?}", stream.causes());
        }
        let mut overtaken = Stream::new();
        overtaken.https_readiness().connect().established().answer(AnswerKind::Alert, None);
        overtaken.answer(AnswerKind::Tls, None);
        assert!(overtaken.closes((300, 301, 900)).causes().is_empty());
    }

    /// An HTTPS probe follows a redirect to `http://` on the port that it asks in TLS.
    #[test]
    fn a_port_that_speaks_tls_may_have_been_asked_in_plain() {
        let mut stream = Stream::new();
        asked_and_answered(stream.https_readiness(), AnswerKind::Tls, None).again(8);
        asked_and_answered(&mut stream, AnswerKind::Http, Some(400));
        let verdict = stream.verdict();
        assert_eq!((verdict.cause.name(), verdict.confidence), ("app_status_failure", Confidence::Likely));
        assert!(verdict.summary.ends_with("redirected to http:// on it"), "{}", verdict.summary);
        assert_eq!(stream.wait_ms(3).kubelet(ProbeOutput::Status(400)).causes().len(), 1, "the same cause");
    }

    /// The first segment of a TLS server's flight was lost: nothing was received in order.
    #[test]
    fn what_has_no_beginning_is_no_answer() {
        for probed in [Stream::https_readiness, Stream::http_readiness] {
            let mut stream = Stream::new();
            probed(&mut stream).connect().established().answer(AnswerKind::Other, None).wait_ms(300);
            stream.closes((300, 301, 0));
            assert_eq!(stream.causes(), ["unexplained"]);
        }
    }

    /// A certificate's second segment may come before its first.
    #[test]
    fn what_overtakes_a_tls_record_is_no_other_protocol() {
        let mut stream = Stream::new();
        stream.https_readiness().connect().established().answer(AnswerKind::Other, None).wait_ms(200);
        stream.answer(AnswerKind::Tls, None);
        assert!(stream.closes((300, 301, 2200)).causes().is_empty());
    }

    /// It may be the one that asks in plain, of a tcpSocket probe whose server speaks first, of a lifecycle hook, or of a user.
    #[test]
    fn an_answer_to_who_may_not_have_asked_so_is_none() {
        let noted = |probed: fn(&mut Stream) -> &mut Stream, comm: &str| {
            let mut stream = Stream::new();
            probed(&mut stream).connect().prober_named(comm).established().answer(AnswerKind::Http, Some(400));
            stream.closes((100, 101, 200)).causes()
        };
        assert!(noted(|it| it.https_readiness().lifecycle(HookType::PreStop, 8080), "kubelet").is_empty());
        assert!(noted(Stream::https_readiness, "k3s-server").is_empty());
        assert_eq!(noted(Stream::https_readiness, "kubelet"), ["app_status_failure"]);
        let mut banner = Stream::new();
        banner.tcp_readiness().https_liveness_too().connect().established().answer(AnswerKind::Other, None);
        assert!(banner.closes((0, 1, 41)).causes().is_empty());
    }

    #[test]
    fn what_the_kubelet_could_not_read_over_tls_is_reported_of_tls() {
        let mut stream = Stream::new();
        stream.https_readiness().connect().established();
        stream.closes((300, 301, 103)).kubelet(ProbeOutput::NotHttp);
        let verdict = stream.verdict();
        assert_eq!((verdict.cause.name(), verdict.confidence), ("app_status_failure", Confidence::Likely));
        assert!(verdict.remediation.to_string().starts_with("The probe asks in HTTPS"), "{}", verdict.remediation);
    }

    #[test]
    fn a_grpc_server_without_the_health_service_says_no() {
        let mut stream = Stream::new();
        stream.grpc_readiness(1).connect().established();
        stream.closes((200, 201, 150)).kubelet(ProbeOutput::NoHealthService);
        let verdict = stream.verdict();
        assert_eq!((verdict.cause.name(), verdict.confidence), ("app_status_failure", Confidence::Likely));
        assert!(
            verdict.remediation.to_string().starts_with("Register the gRPC health service"),
            "{}",
            verdict.remediation
        );
    }
}
