//! The application answered with a failure.

use super::*;
use tracer_attempts::enrich::{self, Protocol};
use tracer_case::answer::{
    BAD_REQUEST, BAD_REQUEST_OR_PROTOCOL, BAD_STATUS_LINE, NO_HTTP, NO_STATUS_LINE, REFUSAL, RPC_FAILED, TLS_REFUSED,
    got_no_tls, reported_answer, shows_certificate, status_text, with_fix,
};
use tracer_case::sidecar;
use tracer_case::wrong_field::{GRPC_IN_PLAIN, REMOVE_HOST, wrong_field};
use tracer_model::event::{Answer, AnswerKind, KubeletProbe, Pod, ProbeOutput};

const HTTP2_FRAME: &str = "a frame of HTTP/2, as gRPC servers send it: the port does not speak HTTP/1";
const MALFORMED: &str =
    "a status line that the kubelet's client rejects: it has no version of two digits, or no status of three digits";
const SPEAKS_FIRST: &str = "something that is not HTTP, before the probe had sent its request: the server speaks first, as SMTP, SSH, FTP, MySQL and many gRPC servers do";
const NOT_AN_HTTP_PORT: &str = "Correct the probe's port, or use tcpSocket, or grpc for a gRPC server: the server on this port does not speak HTTP/1";
const NEITHER_TLS_NOR_HTTP: &str =
    "The probe uses HTTPS, and the port speaks something else: correct the probe's port, or use tcpSocket or grpc";

pub(super) fn find(case: &Case<'_>) -> Option<Finding> {
    failed_answer(case).filter(|found| found.cause == Cause::AppStatusFailure && wrong_field(case).is_none())
}

/// The answer is a failure, by its first bytes, by the kubelet outcome or by its length. The cause is
/// `probe_misconfigured` if the answer shows that the port speaks another protocol than the probe.
pub(super) fn failed_answer(case: &Case<'_>) -> Option<Finding> {
    by_answer(case).or_else(|| by_outcome(case)).or_else(|| by_length(case)).or_else(|| by_late_alert(case))
}

const fn cause(misfit: bool) -> Cause {
    if misfit { Cause::ProbeMisconfigured } else { Cause::AppStatusFailure }
}

/// The target sent fewer bytes than any HTTP answer has. It does not matter whether a hook read them.
fn by_length(case: &Case<'_>) -> Option<Finding> {
    let attempt = case.attempt;
    let (ended, _) = attempt.ended.filter(|_| case.matched.is_no_answer() && case.settled)?;
    let (dst, received) = (attempt.flow.dst, attempt.received()?);
    let is_alert = may_be_alert(case);
    let (as_alert, fix) = match is_alert {
        true => (" as a TLS alert has them", Remediation::from(MAYBE_TLS).run([shows_certificate(dst)])),
        false => ("", with_fix(case, NO_STATUS_LINE)),
    };
    let summary = format!(
        "{dst} was reached, took the request and answered with {received} bytes{as_alert}: an HTTP status line is longer"
    );
    let evidence = vec![of_state(ended, attempt.last.as_ref()?)];
    Some(Finding::likely(cause(is_alert), evidence, summary, fix))
}

/// The TLS server sent an alert after its first flight, by the length: it is encrypted in TLS 1.3, and no hook reads a
/// later segment. A close_notify is as long, as where the handler fails, and the server sends no session tickets.
fn by_late_alert(case: &Case<'_>) -> Option<Finding> {
    let attempt = case.attempt;
    let (ended, _) = attempt.ended.filter(|_| case.matched.is_alert_after_flight() && case.settled)?;
    let dst = attempt.flow.dst;
    let summary = format!(
        "{dst} began the TLS handshake, and then refused it, or closed (close_notify) without an answer: after its first flight it sent as many bytes as an alert has, and no HTTP answer"
    );
    let evidence = vec![of_state(ended, attempt.last.as_ref()?)];
    let fix = with_fix(case, TLS_REFUSED)
        .reword(|text| text.replacen("Let the server", "If it refused the handshake, let the server", 1));
    Some(Finding::likely(Cause::AppStatusFailure, evidence, summary, fix))
}

/// By the length, the answer is a TLS alert. Not if the hook read something else: of a payload that is no shorter than
/// the header of a TLS record, it calls only the beginning of a status line short.
fn may_be_alert(case: &Case<'_>) -> bool {
    const ALERT: u64 = 7;
    let short = |answer: &Answer| answer.kind == AnswerKind::Short && answer.len.is_none_or(|len| len < RECORD_HEADER);
    let answer = case.attempt.answer().map(|(_, answer)| answer);
    let is_other = answer.is_some_and(|answer| !answer.kind.is_tls() && !short(answer));
    case.attempt.received() == Some(ALERT) && !is_other && case.matched.may_have_wrong_protocol()
}

/// The length of the header of a TLS record (RFC 8446 5.1).
const RECORD_HEADER: u16 = 5;

const MAYBE_TLS: &str = "Most likely the port speaks TLS and the probe uses plain HTTP: set the probe's scheme to HTTPS. Else correct its port, or use tcpSocket";

/// The kubelet outcome tells what no hook can read: answers over HTTPS and gRPC.
fn by_outcome(case: &Case<'_>) -> Option<Finding> {
    let (_, reported) = case.attempt.kubelet()?;
    if case.attempt.received().is_some_and(|n| n == 0) {
        return None;
    }
    let answer = reported_answer(reported, case.matched.scheme().as_deref());
    let (text, fix) = answer.or_else(|| rpc_failure(case, reported))?;
    let dst = case.attempt.flow.dst;
    let colon = if text.starts_with("that ") { "" } else { ":" };
    let summary = format!("{dst} was reached and answered{colon} {text}, as the kubelet read it");
    let short = || reported.reason == ProbeOutput::NotHttp && case.matched.is_no_answer() && may_be_alert(case);
    let misfit = got_no_tls(reported) && case.matched.may_have_wrong_protocol() || short();
    let found = Finding::failure(cause(misfit), vec![of_outcome(reported)], summary, with_fix(case, fix));
    Some(sidecar::add(case, reported.reason.status(), found.with_confidence(Confidence::Likely)))
}

/// The health rpc failed on a connection that worked until the prober itself closed it. After a lost connection the
/// kubelet's client makes such a status itself.
fn rpc_failure(case: &Case<'_>, reported: &KubeletProbe) -> Option<(String, &'static str)> {
    let (_, End::ClosedByProber) = case.attempt.ended? else { return None };
    case.attempt.received()?;
    if timed_out_in_server(case, reported) {
        let lasted = ms(case.attempt.lasted()?);
        let text = "the health rpc ended with gRPC status DeadlineExceeded";
        return Some((format!("{text} after {lasted}, long before the probe's timeout"), RPC_FAILED));
    }
    Some((format!("the health rpc ended with gRPC status {}", reported.rpc_status()?), RPC_FAILED))
}

/// The server itself answered DEADLINE_EXCEEDED, which the kubelet reports like a timeout of its own. With a longer
/// timeout this connection may be a later one of the probe (grpc-go connects again after a second).
fn timed_out_in_server(case: &Case<'_>, reported: &KubeletProbe) -> bool {
    let is_first = || case.matched.grpc_timeouts_ns().is_some_and(|(_, longest)| longest <= 1_000_000_000);
    reported.is_rpc_timeout() && gave_up_early(case) && is_first()
}

fn by_answer(case: &Case<'_>) -> Option<Finding> {
    let (time, answer) = case.attempt.answer()?;
    if !enrich::is_beginning(case.attempt, answer) {
        return None;
    }
    let (text, fix) = failure_of(case, answer)?;
    let dst = case.attempt.flow.dst;
    let took = ms(time.saturating_sub(case.attempt.started));
    let summary = format!("{dst} was reached and answered after {took}: {text}");
    let fields = json!({ "status": answer.status, "kind": answer.kind });
    let evidence = evidence_of(Hook::CgroupSkb.name(), time, text, fields);
    let cause = cause(is_misfit(case, answer));
    let found = Finding::failure(cause, vec![evidence], summary, with_fix(case, fix));
    let found = weaken_if_accepted(answer, found);
    let found = weaken_if_of_node(case, weaken_if_redirected(case, found));
    let found = if is_by_status(case, answer) { of_whole_answer(case, found) } else { found };
    Some(sidecar::add(case, answer.status.filter(|_| answer.kind == AnswerKind::Http), found))
}

/// The answer as text, and its fix, if the kubelet counts it as a failure (`pkg/probe/http`: 200 to 399 is success).
fn failure_of(case: &Case<'_>, answer: &Answer) -> Option<(String, &'static str)> {
    if case.matched.refused_tls() {
        return Some((REFUSAL.to_owned(), TLS_REFUSED));
    }
    if let Some(protocol) = case.matched.mismatched_protocol() {
        return Some(mismatch(protocol, answer));
    }
    // Without a spec only a status line shows that the probe asked in HTTP: gRPC answers in its own binary format.
    let asked = case.matched.expects_http();
    let is_foreign = || case.node.pods.have_specs() && !may_be_a_probe(case) || case.matched.may_be_client();
    if asked.is_none() && is_foreign() {
        return None;
    }
    if !case.attempt.prober || !asked.unwrap_or(answer.kind == AnswerKind::Http) {
        return None;
    }
    // Bytes that the server sends before any request are no answer, unless all probes are httpGet.
    let is_answer = had_request(case.attempt, answer, asked) || asked == Some(true) && ended_without_request(case);
    if !is_answer || awaits_length(case.attempt, answer) {
        return None;
    }
    match (answer.kind, answer.status) {
        (AnswerKind::Http, Some(status)) if !(200..400).contains(&status) && !answer.is_interim() => {
            // A lifecycle handler accepts any status (`runHTTPHandler`, pkg/kubelet/lifecycle/handlers.go).
            let handlers = case.matched.possible_handlers();
            // If the kubelet read a status, too, the probe asked in the protocol of the answer.
            let read = case.attempt.kubelet().is_some_and(|(_, it)| it.reason.status().is_some());
            handlers.is_empty().then(|| match status_text(status) {
                (text, BAD_REQUEST) if asked.is_none() && !read => (text, BAD_REQUEST_OR_PROTOCOL),
                known => known,
            })
        }
        (AnswerKind::Http, None) => Some((MALFORMED.to_owned(), BAD_STATUS_LINE)),
        (AnswerKind::Http2, _) => Some((HTTP2_FRAME.to_owned(), NOT_AN_HTTP_PORT)),
        (AnswerKind::Tls | AnswerKind::Alert, _) => Some((
            "a TLS record in answer to plain HTTP".to_owned(),
            "Set the probe's scheme to HTTPS: the port speaks TLS",
        )),
        (AnswerKind::Other, _) if speaks_first(answer) => Some((SPEAKS_FIRST.to_owned(), NOT_AN_HTTP_PORT)),
        (AnswerKind::Other, _) => Some(("something that is not HTTP".to_owned(), NO_HTTP)),
        _ => None,
    }
}

/// The status makes it a failure.
fn is_by_status(case: &Case<'_>, answer: &Answer) -> bool {
    answer.kind == AnswerKind::Http && answer.status.is_some() && case.matched.mismatched_protocol().is_none()
}

/// The kubelet judges by the status when it has read the answer to its end, or 10 KiB of its body. Otherwise it ignores
/// the attempt (`DoHTTPProbe`, pkg/probe/http).
fn of_whole_answer(case: &Case<'_>, found: Finding) -> Finding {
    let attempt = case.attempt;
    if attempt.kubelet().is_some() {
        return found;
    }
    let waits_for_rest = attempt.ended.is_none() || case.matched.is_cut_short() && !case.settled;
    if case.matched.timed_out_after_ns().is_none() {
        return Finding { waits_for_rest, ..found };
    }
    let summary =
        format!("{}; the prober closed at its timeout or later, and may not have got all of it", found.summary);
    Finding { summary, ..found.at_most(Confidence::Likely) }
}

/// The answer is of another protocol than every probe that the attempt can be. Something that is not HTTP, in answer to
/// plain HTTP, may be an application that fails; before the request, it is a server of another protocol.
fn is_misfit(case: &Case<'_>, answer: &Answer) -> bool {
    let matched = &case.matched;
    let in_tls = answer.kind.is_tls() && !matched.refused_tls();
    let in_http2 = answer.kind == AnswerKind::Http2;
    let differs = matched.mismatched_protocol().is_some() || in_tls || in_http2 || speaks_first(answer);
    differs && matched.may_have_wrong_protocol()
}

/// No server of HTTP/1 sends such bytes before a request.
fn speaks_first(answer: &Answer) -> bool {
    answer.kind == AnswerKind::Other && answer.asked == Some(false)
}

/// The prober has sent a request, before this answer or after it. Older recordings do not have `asked`: then the specs
/// decide while the connection is open.
fn had_request(attempt: &Attempt, answer: &Answer, by_specs: Option<bool>) -> bool {
    let before = answer.asked.unwrap_or(attempt.ended.is_none() && by_specs == Some(true));
    before || attempt.sent().is_none_or(|n| n > 0)
}

/// The kubelet's client takes bytes that come before its request for the answer, and closes. But a connection that was
/// established after the timeout is no longer used.
fn ended_without_request(case: &Case<'_>) -> bool {
    let (attempt, timeout) = (case.attempt, case.matched.longest_timeout_ns());
    let connected = attempt.established_at().map(|at| at.saturating_sub(attempt.started));
    attempt.ended.is_some() && connected.zip(timeout).is_none_or(|(connected, timeout)| connected < timeout)
}

/// The answer may come from a port that speaks TLS: only its length shows that. Older recordings do not have the
/// length. It is then known when the connection has ended.
fn awaits_length(attempt: &Attempt, answer: &Answer) -> bool {
    answer.status == Some(400) && answer.len.is_none() && attempt.ended.is_none()
}

/// Lowers the confidence of a mismatch if the status is a success or a redirect: another client may have asked in HTTP/1.
fn weaken_if_accepted(answer: &Answer, mut found: Finding) -> Finding {
    if answer.status.is_some_and(|status| (200..400).contains(&status)) {
        found.confidence = Confidence::Likely;
        found.summary += "; unless another client of the prober asked in HTTP/1";
    }
    found
}

/// Lowers the confidence if the port has answered in TLS as well. Then a redirect to `http://` on the same port, which
/// the kubelet follows, may have made the request plain HTTP.
fn weaken_if_redirected(case: &Case<'_>, mut found: Finding) -> Finding {
    let dst = case.attempt.flow.dst;
    let in_plain = case.matched.mismatched_protocol() == Some(Protocol::Tls);
    if in_plain && case.node.tls.spoken(dst).tls.is_some() {
        found.confidence = Confidence::Likely;
        found.summary += "; that port has answered in TLS, too: the probe may have been redirected to http:// on it";
    }
    found
}

/// Lowers the confidence if the probe's `host` is the node's loopback address, and not the pod's. A process of the node
/// answered then, unless a hostPort leads to the pod.
fn weaken_if_of_node(case: &Case<'_>, found: Finding) -> Finding {
    let Some(name) = case.matched.pod_of_loopback_host().and_then(Pod::full_name) else { return found };
    let summary = format!(
        "{}; the probe's host is the loopback address of the node: a process of the node answered, and not pod {name}, unless a hostPort leads there",
        found.summary
    );
    let show = format!("ss -ltnp 'sport = :{}'", case.attempt.flow.dst.port());
    let first = Remediation::from(REMOVE_HOST).run([Command::on_node(show)]);
    let remediation = first.then("With a hostPort", found.remediation.clone());
    Finding { summary, remediation, ..found.at_most(Confidence::Likely) }
}

/// The text and the fix if the port speaks another protocol than the probe.
fn mismatch(probe: Protocol, answer: &Answer) -> (String, &'static str) {
    let status = answer.status.map(|status| format!(" (status {status})")).unwrap_or_default();
    match (probe, answer.kind) {
        (Protocol::Tls, AnswerKind::Http) => (
            format!("plain HTTP{status} in answer to TLS"),
            "Set the probe's scheme to HTTP, or its port to one that speaks TLS",
        ),
        (Protocol::Tls, AnswerKind::Http2) => {
            ("a frame of HTTP/2 without TLS in answer to TLS".to_owned(), NEITHER_TLS_NOR_HTTP)
        }
        (Protocol::Tls, _) => {
            ("something that is neither TLS nor HTTP in answer to TLS".to_owned(), NEITHER_TLS_NOR_HTTP)
        }
        (Protocol::Grpc, AnswerKind::Http) => (
            format!("HTTP/1{status} in answer to gRPC (HTTP/2)"),
            "Use httpGet, or set the probe's port to one that speaks gRPC",
        ),
        (Protocol::Http2, AnswerKind::Http) => (
            format!("HTTP/1{status} in answer to HTTP/2"),
            "Remove protocol: HTTP2 from the probe's httpGet, or set its port to one that speaks HTTP/2 without TLS",
        ),
        (Protocol::Http2, AnswerKind::Other) => (
            "something that is no frame of HTTP/2".to_owned(),
            "Remove protocol: HTTP2 from the probe's httpGet, correct its port, or use tcpSocket",
        ),
        (Protocol::Grpc, AnswerKind::Other) => (
            "something that is no frame of HTTP/2 in answer to gRPC".to_owned(),
            "The probe uses gRPC, and the port speaks something else: correct the probe's port, or use tcpSocket or httpGet",
        ),
        (Protocol::Http2, _) => (
            "a TLS record in answer to HTTP/2 without TLS".to_owned(),
            "Set the probe's scheme to HTTPS: the port speaks TLS",
        ),
        (Protocol::Grpc, _) => ("a TLS record in answer to gRPC without TLS".to_owned(), GRPC_IN_PLAIN),
    }
}

/// The attempt matches no known probe, but can be one. A kubelet connects to a pod only for probes and handlers: the
/// spec may not have arrived yet, or a redirect led to another port. A 404 can be normal for other requests of the
/// kubelet (a cloud's metadata, a registry), and for requests of an API server.
fn may_be_a_probe(case: &Case<'_>) -> bool {
    let (pods, addr) = (&case.node.pods, case.attempt.flow.dst.ip());
    let unknown = pods.only_at(addr).is_some_and(|pod| !pod.has_specs());
    unknown || !enrich::has_api_server(case.attempt) && pods.at(addr).any(|pod| !pod.host_network)
}

#[cfg(test)]
mod tests;
