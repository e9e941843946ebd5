//! The application answered with a failure.

use std::net::SocketAddr;

use super::super::sidecar;
use super::super::wrong_field::wrong_field;
use super::*;
use tracer_attempts::enrich::{self, Protocol};
use tracer_model::event::{Answer, AnswerKind, ProbeOutput};

pub(in super::super) const HANDLER: &str = "The network from the kubelet to the pod works. Find what the health handler checks: it may depend on what the pod itself cannot reach. Read the application's log of that moment";
const PROTOCOL: &str = "The probe asks in HTTP and the port speaks something else: correct the probe's port or scheme, or use tcpSocket or grpc";
const SPEAKS_FIRST: &str = "something that is not HTTP, before the probe had asked: the server speaks first, as those of SMTP, SSH, FTP and MySQL do";
const NOT_A_PORT_OF_HTTP: &str =
    "Correct the probe's port, or use tcpSocket: the server of this port never answers in HTTP";
const PROTOCOL_TLS: &str = "The probe asks in HTTPS and the port speaks something else: set its scheme to HTTP if the port speaks plain HTTP, correct the port, or use tcpSocket or grpc";

const NEITHER: &str =
    "The probe asks in HTTPS and the port speaks something else: correct the probe's port, or use tcpSocket or grpc";

/// What a gRPC probe can do about a port that speaks TLS.
pub(super) const GRPC_IN_PLAIN: &str = "a gRPC probe speaks no TLS (grpc.mode: TLS is alpha in Kubernetes 1.37). Serve the health service on a port without TLS, or use tcpSocket, or exec with a client that speaks TLS (grpc_health_probe -tls)";

/// In the words of whoever reads an alert. What a kubelet offers is what its Go offers (crypto/tls), without a certificate.
const REFUSAL: &str = "a fatal alert, by which it refuses the TLS handshake";
const TLS_REFUSED: &str = "The server's log says why. Let it take what the kubelet offers: TLS 1.2 and 1.3, Go's secure ciphers, no server name for an address, no client certificate. Or probe a port that does, or use tcpSocket or exec";

const NO_HEALTH_SERVICE: &str =
    "Register the gRPC health service (grpc.health.v1.Health) in the server, or use tcpSocket";

const NOT_FOUND: &str = "Set the probe's grpc.service to a name that the server's health service knows (empty: the whole server), or register that name there";

const DENIED: &str = "Let the server answer grpc.health.v1.Health/Check without credentials: the kubelet's gRPC probes carry none. Or use tcpSocket, or exec with a client that has them";

const NOT_TAKEN: &str = "Correct the header of the answer that the kubelet's words name: Go's HTTP client, which the kubelet uses, does not take it, though others may";

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
    let (ended, _) = attempt.ended.filter(|_| case.matched.is_no_answer() && case.settled)?;
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
    let (says, fix) = answer_text(reported.says, case.matched.scheme().as_deref())?;
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
        ProbeOutput::RpcDenied => {
            Some(("that it refuses the health rpc to a caller without credentials".to_owned(), DENIED))
        }
        ProbeOutput::InvalidAnswer => Some(("HTTP that the kubelet's client does not take".to_owned(), NOT_TAKEN)),
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

/// What the answer says, if it is one that the kubelet takes for a failure (`pkg/probe/http`: 200 to 399 is success).
fn refusal(case: &Case<'_>, answer: &Answer) -> Option<(String, &'static str)> {
    if case.matched.refused_tls() {
        return Some((REFUSAL.to_owned(), TLS_REFUSED));
    }
    if let Some(protocol) = case.matched.misspoken() {
        return Some(mismatch(protocol, answer));
    }
    // Without a spec only a status line says that HTTP was spoken; gRPC answers in bytes of its own.
    let asked = case.matched.expects_http();
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
        (AnswerKind::Http, Some(status)) if !(200..400).contains(&status) && !answer.is_interim() => {
            // A lifecycle handler takes any (`runHTTPHandler`, pkg/kubelet/lifecycle/handlers.go).
            let handlers = case.matched.handlers_met();
            handlers.is_empty().then(|| (format!("HTTP status {status}"), HANDLER))
        }
        (AnswerKind::Tls | AnswerKind::Alert, _) => Some((
            "a TLS record in answer to plain HTTP".to_owned(),
            "Set the probe's scheme to HTTPS: the port speaks TLS",
        )),
        (AnswerKind::Other, _) if answer.asked == Some(false) => Some((SPEAKS_FIRST.to_owned(), NOT_A_PORT_OF_HTTP)),
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
    let in_plain = case.matched.misspoken() == Some(Protocol::Tls);
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

/// No known probe asks that. A kubelet dials a pod for a probe: its spec may not have come yet, or a redirect led to another
/// port. For other requests of the kubelet (a cloud's metadata, a registry) a 404 can be normal. So it can be for a client of
/// an API server.
fn may_be_a_probe(case: &Case<'_>) -> bool {
    let (pods, addr) = (&case.node.pods, case.attempt.flow.dst.ip());
    let unknown = pods.only_at(addr).is_some_and(|pod| !pod.has_specs());
    unknown || !enrich::has_api_server(case.attempt) && pods.at(addr).any(|pod| !pod.host_network)
}

#[cfg(test)]
mod tests;
