//! The probe asks in a way that the application does not serve. The fix is a field of the probe.

use std::net::SocketAddr;

use super::*;
use crate::rules::app_status_failure::failed_answer;
use crate::rules::tls_eof_noise::listener_speaks_tls;
use tracer_attempts::correlate::attempt::Redirected;
use tracer_case::ended::listener_ended;
use tracer_case::other_stack::{by_loopback_host, refused};
use tracer_case::refusal::{Refused, by_any_stack};
use tracer_case::reset::is_close;
use tracer_case::wrong_field::{GRPC_IN_PLAIN, SCHEME, wrong_field};
use tracer_model::event::ProbeOutput;

pub(super) fn find(case: &Case<'_>) -> Option<Finding> {
    let by_refusal = || by_any_stack(case).and_then(|refused| by_loopback_host(case, &refused, refused.netns?));
    redirect_loop(case)
        .or_else(by_refusal)
        .or_else(|| dead_redirect(case))
        .or_else(|| redirect_to_tls(case))
        .or_else(|| by_answer(case))
        .or_else(|| plain_to_tls(case).filter(|_| case.settled))
}

/// The fix of a probe that is redirected.
const PATH: &str = "Set httpGet.path to a page that answers 200 itself (curl -sSI shows where each leads)";

/// Shows where the answer of this port leads.
fn show_redirect(case: &Case<'_>, dst: SocketAddr) -> Command {
    let probes = case.matched.possible_probes();
    let path = probes.iter().find_map(|it| it.path.as_deref()).unwrap_or("/");
    let is_plain = path.starts_with('/') && path.chars().all(|it| it.is_ascii_graphic() && it != '\'');
    let path = if is_plain { path } else { "/PATH" };
    Command::on_node(format!("curl -sSI 'http://{dst}{path}'"))
}

/// The fix of an application that redirects plain HTTP unless a proxy reports https.
const FORWARDED: &str = "an application that redirects all plain HTTP to https:// may accept httpHeaders X-Forwarded-Proto: https from the probe";

/// Every answer was a redirect, until the kubelet stopped following. Without the kubelet's log line the last one may
/// have led to another host.
fn redirect_loop(case: &Case<'_>) -> Option<Finding> {
    let attempt = case.attempt;
    let redirected = attempt.redirected.filter(|_| case.matched.is_redirect_loop())?;
    let (time, status) = (attempt.answer()?.0, attempt.redirect_status()?);
    let outcome = attempt.kubelet().map(|(_, it)| it).filter(|it| it.reason == ProbeOutput::TooManyRedirects);
    let answers = redirected.answers + 1;
    let summary = format!(
        "the probe of {} was answered with {answers} redirects in a row within {} (the last by {}, with status {status}): most likely they lead in a circle",
        redirected.first,
        ms(time.saturating_sub(redirected.began)),
        attempt.flow.dst
    );
    let fix = Remediation::from(format!("{PATH}, or correct the redirect: {FORWARDED}"));
    let fix = fix.run([show_redirect(case, redirected.first)]);
    let text = format!("HTTP status {status}, answer {answers} in a row that is a redirect");
    let fields = json!({ "status": status, "answers": answers });
    let evidence =
        [evidence_of(Hook::CgroupSkb.name(), time, text, fields)].into_iter().chain(outcome.map(of_outcome)).collect();
    let confidence = if outcome.is_some() { Confidence::Proven } else { Confidence::Likely };
    Some(Finding::failure(Cause::ProbeMisconfigured, evidence, summary, fix).with_confidence(confidence))
}

/// The answer redirected the probe to a port of the pod on which nobody has listened, and which no probe asks. During
/// the start, a process may listen there a moment later.
fn dead_redirect(case: &Case<'_>) -> Option<Finding> {
    let attempt = case.attempt;
    let from = case.matched.redirected_from().or_else(|| case.matched.may_be_redirected_from())?;
    let Refused { evidence, netns, confidence } = refused(case)?;
    let dst = attempt.flow.dst;
    if netns.is_some_and(|netns| case.node.listeners.knows(netns, dst)) {
        return None;
    }
    let at = evidence.iter().map(|it| it.time_boot_ns).max()?;
    let may_listen_later = netns.is_some_and(|netns| not_listening_yet::is_starting(case, at, netns));
    let redirected = attempt.redirected.filter(|it| it.first.port() == from);
    let status = redirected.map(|it| format!(" (status {})", it.status)).unwrap_or_default();
    let summary = format!(
        "the probe asks port {from}; the answer{status} redirected it to port {}: nobody listens on {dst}",
        dst.port()
    );
    let fix = format!(
        "{PATH}, or have the application answer the probe on port {from} without a redirect; or correct where it redirects to: port {} of the same address has no listener",
        dst.port()
    );
    let answered = redirected.map(of_redirect);
    let named = case.matched.is_named_redirect();
    let outcome = attempt.kubelet().map(|(_, it)| of_outcome(it)).filter(|_| named);
    let is_sure = answered.is_some() && named && !may_listen_later;
    let evidence = answered.into_iter().chain(evidence).chain(outcome).collect();
    let fix = Remediation::from(fix).run([show_redirect(case, SocketAddr::new(dst.ip(), from))]);
    let found = Finding::failure(Cause::ProbeMisconfigured, evidence, summary, fix);
    Some(found.with_confidence(if is_sure { confidence } else { confidence.min(Confidence::Likely) }))
}

/// The answer redirected the probe to https:// on the port that had just answered in plain HTTP.
fn redirect_to_tls(case: &Case<'_>) -> Option<Finding> {
    let attempt = case.attempt;
    let ((ended, _), _) = (attempt.ended?, attempt.established?);
    let (_, outcome) = attempt.kubelet()?;
    // A server that speaks TLS there, too, and was late can also cause silence or a close.
    let is_not_http = outcome.reason == ProbeOutput::NotHttp;
    let asked = outcome.scheme() == Some("https") && outcome.dst == Some(attempt.flow.dst);
    let both = case.node.tls.spoken(attempt.flow.dst).tls.is_some();
    if !is_not_http || !asked || both || case.matched.expects_http() != Some(true) {
        return None;
    }
    let redirected = attempt.redirected.filter(|it| it.first == attempt.flow.dst);
    let status = redirected.map(|it| format!(" (status {})", it.status)).unwrap_or_default();
    let summary = format!(
        "the probe asks {} in plain HTTP; the answer{status} redirected it to https:// on the same port, which did not answer in TLS",
        attempt.flow.dst
    );
    let fix = format!("{PATH}, or correct the redirect, which must name a port that speaks TLS: {FORWARDED}");
    let fix = Remediation::from(fix).run([show_redirect(case, attempt.flow.dst)]);
    let reading =
        redirected.map(of_redirect).into_iter().chain([of_state(ended, attempt.last.as_ref()?), of_outcome(outcome)]);
    let found = Finding::failure(Cause::ProbeMisconfigured, reading.collect(), summary, fix);
    Some(if redirected.is_some() { found } else { found.with_confidence(Confidence::Likely) })
}

fn of_redirect(it: Redirected) -> Evidence {
    let port = it.first.port();
    let text = format!("HTTP status {} from port {port}, followed by this connection", it.status);
    evidence_of(Hook::CgroupSkb.name(), it.at, text, json!({ "status": it.status, "port": port }))
}

/// The server's answer names what is wrong with the request, or is of another protocol.
fn by_answer(case: &Case<'_>) -> Option<Finding> {
    let found = failed_answer(case)?;
    let Some(field) = wrong_field(case) else {
        return (found.cause == Cause::ProbeMisconfigured).then_some(found);
    };
    Some(Finding {
        cause: Cause::ProbeMisconfigured,
        summary: format!("{}; {}", found.summary, field.text),
        remediation: field.fix.into(),
        confidence: found.confidence.min(field.confidence),
        ..found
    })
}

/// The server closed the connection after a request without TLS, on a port that speaks TLS.
pub(super) fn plain_to_tls(case: &Case<'_>) -> Option<Finding> {
    let attempt = case.attempt;
    let (ended, end @ (End::ClosedByServer | End::Reset)) = attempt.ended? else { return None };
    let (how, fix) = match end {
        _ if is_unanswered_grpc(case) => ("gRPC without TLS", GRPC_IN_PLAIN),
        End::ClosedByServer if is_unanswered_http(case) && attempt.errno().is_none() => ("plain HTTP", SCHEME.fix),
        End::Reset if is_unanswered_http(case) && is_close(case) => ("plain HTTP", SCHEME.fix),
        _ => return None,
    };
    if listener_ended(case, ended).is_some() {
        return None;
    }
    let (tls, confidence) = listener_speaks_tls(case).filter(|(_, confidence)| *confidence > Confidence::Possible)?;
    let summary = format!(
        "{} speaks TLS, and the probe uses {how}: the server closed the connection without an answer",
        attempt.flow.dst
    );
    let evidence: Vec<Evidence> = vec![of_state(ended, attempt.last.as_ref()?), tls];
    let found = Finding::failure(Cause::ProbeMisconfigured, evidence, summary, fix);
    Some(Finding { decided_at: ended, waits_for_listener: true, ..found.with_confidence(confidence) })
}

/// The attempt can be a probe in plain HTTP only. It has sent the request, and got no byte. No such probe has succeeded
/// there yet.
fn is_unanswered_http(case: &Case<'_>) -> bool {
    let attempt = case.attempt;
    let asked = attempt.sent().is_some_and(|n| n > 0) && attempt.received() == Some(0);
    asked && case.matched.expects_http() == Some(true) && !case.node.tls.spoken(attempt.flow.dst).http
}

/// The attempt can be a gRPC probe only. It has sent the preface of HTTP/2, and got no byte. A server of HTTP/2 sends
/// its first frame at once (RFC 9113 3.4).
pub(super) fn is_unanswered_grpc(case: &Case<'_>) -> bool {
    let attempt = case.attempt;
    let asked = attempt.sent().is_some_and(|n| n > 0) && attempt.received() == Some(0);
    asked && case.matched.expects_grpc()
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    fn answered(stream: &mut Stream, status: u16) -> &mut Stream {
        stream.connect().established().answer(AnswerKind::Http, Some(status)).closes((100, 101, 76))
    }

    const SURE: (&str, Confidence) = ("probe_misconfigured", Confidence::Proven);
    const LIKELY: (&str, Confidence) = ("probe_misconfigured", Confidence::Likely);

    /// Answers so many attempts in a row with a redirect.
    fn redirects(stream: &mut Stream, count: u64) -> &mut Stream {
        for conn in 100..100 + count {
            answered(stream.again(conn), 302);
        }
        stream
    }

    #[test]
    fn ten_redirects_in_a_row_are_a_loop() {
        let mut stream = Stream::new();
        redirects(stream.http_readiness(), 10).wait_ms(5);
        assert_eq!(stream.all_decided(), [LIKELY]);
        let verdict = stream.last_verdict();
        assert_has(&verdict.summary, &["10 redirects in a row"]);
        assert_has(&verdict.remediation, &["httpGet.path"]);
        assert_eq!(stream.outcomes(), [Outcome::Failure]);
        stream.kubelet(ProbeOutput::TooManyRedirects);
        assert_eq!(stream.all_decided().last(), Some(&SURE));
    }

    #[test]
    fn fewer_redirects_or_those_of_several_probes_are_no_loop() {
        let causes = |fill: fn(&mut Stream)| {
            let mut stream = Stream::new();
            fill(&mut stream);
            stream.wait_ms(5).causes()
        };
        assert!(causes(|stream| _ = redirects(stream.http_readiness(), 9)).is_empty());
        assert!(causes(|stream| _ = answered(redirects(stream.http_readiness(), 9).again(9), 200)).is_empty());
        // Ten probes, and each is redirected to another host.
        let many = |stream: &mut Stream| {
            stream.http_readiness();
            (0..9).for_each(|_| _ = stream.readiness_too());
            redirects(stream, 10);
        };
        assert!(causes(many).is_empty());
        assert!(
            causes(|stream| {
                stream.http_readiness();
                (100..120).for_each(|conn| _ = answered(stream.again(conn), 302).wait_ms(3_000));
            })
            .is_empty()
        );
    }

    #[test]
    fn a_redirect_to_a_dead_port_is_named() {
        let mut stream = Stream::new();
        answered(stream.http_readiness(), 302).again_to(8, "10.88.0.2:9").connect().refused().wait_ms(5);
        assert_eq!(stream.all_decided(), [LIKELY]);
        let verdict = stream.verdicts().remove(0);
        assert_eq!(verdict.subject, Subject::Probe);
        assert_eq!(verdict.probe.as_ref().and_then(|it| it.port), Some(8080));
        let verdict = &verdict.verdict;
        assert_has(&verdict.summary, &["port 8080; the answer (status 302)"]);
        assert_eq!(verdict.summary.matches("redirected").count(), 1, "{}", verdict.summary);
        assert_lacks(&verdict.remediation, &["make the process listen"]);
        stream.kubelet_at_target(ProbeOutput::Network);
        assert_eq!(stream.all_decided().last(), Some(&SURE));
    }

    /// Spring, Keycloak and Vault open the port for HTTP seconds before the one for HTTPS.
    #[test]
    fn a_redirect_to_a_port_that_listens_later_is_likely_and_revised() {
        let dead = |old_ms: u64, before: fn(&mut Stream)| {
            let mut stream = Stream::new().http_readiness().netns_made(POD).listens(POD, 8080, true).clone();
            before(&mut stream);
            answered(stream.wait_ms(old_ms), 302).again_to(8, "10.88.0.2:8443").connect().refused().wait_ms(5);
            stream.kubelet_at_target(ProbeOutput::Network).clone()
        };
        let mut starting = dead(1_000, |_| ());
        assert_eq!(starting.all_decided().last(), Some(&LIKELY));
        starting.wait_ms(3_000).listens(POD, 8443, true);
        assert_eq!(starting.last_decided().0, "not_listening_yet");
        assert_has(&starting.last_verdict().summary, &["the probe asks port 8080 and was redirected here"]);
        assert_eq!(dead(180_000, |_| ()).all_decided().last(), Some(&SURE));
        let stopped = dead(180_000, |stream| _ = stream.listens(POD, 8443, true).wait_ms(9).listens(POD, 8443, false));
        assert!(stopped.causes().iter().all(|it| *it == "connection_refused"), "{:?}", stopped.causes());
    }

    #[test]
    fn a_redirect_to_a_dead_port_of_a_pod_without_specs_is_named() {
        let decided = |dst: &str, wait_ms: u64| {
            let mut stream = Stream::new();
            answered(stream.without_specs(), 302).wait_ms(wait_ms).again_to(8, dst).connect().refused().wait_ms(5);
            stream.all_decided()
        };
        assert_eq!(decided("10.88.0.2:9", 0), [LIKELY]);
        assert_eq!(decided("10.88.0.2:9", 500)[0].0, "connection_refused", "a probe of its own");
        assert_eq!(decided("10.88.0.2:8080", 0)[0].0, "connection_refused", "the listener ended");
    }

    /// Only the URL in the kubelet's line tells that the probe uses HTTPS.
    #[test]
    fn a_url_with_https_shows_that_the_port_answered_in_plain() {
        let decided = |reason, scheme: &str, why: &str| {
            let mut stream = Stream::new().without_specs().connect().established().clone();
            stream.answer(AnswerKind::Http, Some(400)).closes((239, 240, 60)).wait_ms(5).tick();
            stream.kubelet_request(reason, scheme, why).all_decided()
        };
        let before = ("app_status_failure", Confidence::Proven);
        let in_plain = "http: server gave HTTP response to HTTPS client";
        assert_eq!(decided(ProbeOutput::NotHttp, "https", in_plain), [before, SURE]);
        let other = decided(ProbeOutput::Network, "http", "EOF");
        assert!(other.iter().all(|it| *it == before), "{other:?}");
    }

    /// Only the URL in the kubelet's line tells that the probe uses plain HTTP.
    #[test]
    fn a_url_with_http_shows_that_the_port_speaks_tls() {
        let last = |hello: bool, scheme: &str| {
            let mut stream = Stream::new().without_specs().links(true, &["10.88.0.1"]).clone();
            if hello {
                stream.push(tls_hello(Some(POD), "10.88.0.2:8080"));
            }
            closed(&mut stream, false).kubelet_request(ProbeOutput::Network, scheme, "EOF");
            stream.last_verdict()
        };
        assert_eq!(last(true, "http").cause, Cause::ProbeMisconfigured);
        assert_eq!(last(true, "https").cause, Cause::ClosedWithoutAnswer);
        let unknown = last(false, "http");
        assert_eq!((unknown.cause, unknown.confidence), (Cause::ClosedWithoutAnswer, Confidence::Proven));
        assert_has(&unknown.remediation, &["set the probe's scheme to HTTPS"]);
    }

    #[test]
    fn a_dead_port_that_the_probe_names_is_refused() {
        let causes = |fill: fn(&mut Stream)| {
            let mut stream = Stream::new();
            fill(&mut stream);
            stream.causes()
        };
        assert_eq!(
            causes(|stream| _ = answered(stream.http_readiness(), 302).again(8).connect().refused()),
            ["connection_refused"]
        );
        let late = |stream: &mut Stream| {
            answered(stream.http_readiness(), 302).wait_ms(500);
            stream.again_to(8, "10.88.0.2:9").connect().refused();
        };
        assert_eq!(causes(late), ["connection_refused"]);
        let other = |stream: &mut Stream| {
            stream.http_readiness_on(9);
            answered(stream, 302).again_to(8, "10.88.0.2:9").connect().refused();
        };
        assert_eq!(causes(other), ["connection_refused"]);
    }

    /// The application redirects all plain HTTP to https:// on the same port (Django's `SECURE_SSL_REDIRECT`).
    #[test]
    fn a_redirect_to_https_on_the_same_port_is_named() {
        let decided = |scheme: &str, why: &str, reason: ProbeOutput, answer: Option<u16>| {
            let mut stream = Stream::new();
            answered(stream.http_readiness(), 302).again(8).connect().established();
            answer.into_iter().for_each(|status| _ = stream.answer(AnswerKind::Http, Some(status)));
            stream.wait_ms(990).closes((239, 240, answer.map_or(0, |_| 60))).wait_ms(5).tick();
            stream.kubelet_with(reason, |it| {
                it.output = Some(format!("Get \"{scheme}://10.88.0.2:8080\": {why}"));
                it.dst = "10.88.0.2:8080".parse().ok();
            });
            stream
        };
        let in_plain = "http: server gave HTTP response to HTTPS client";
        let bad = decided("https", in_plain, ProbeOutput::NotHttp, Some(400));
        assert_eq!(bad.all_decided().last(), Some(&SURE));
        let verdict = bad.last_verdict();
        assert_has(&verdict.summary, &["(status 302) redirected it to https:// on the same port"]);
        assert_has(&verdict.remediation, &["X-Forwarded-Proto"]);
        let silent = decided("https", "context deadline exceeded", ProbeOutput::Timeout, None);
        let slow = decided("http", "context deadline exceeded", ProbeOutput::Timeout, None);
        for late in [silent, slow] {
            assert_eq!(late.causes(), ["slow_response"]);
            assert_has(&late.last_verdict().summary, &["the probe was redirected (status 302)"]);
            assert_has(&late.last_verdict().remediation, &["set httpGet.path"]);
        }
    }

    #[test]
    fn a_421_is_the_host_header() {
        let mut stream = Stream::new();
        assert_eq!(answered(stream.http_readiness(), 421).all_decided(), [SURE]);
        assert_has(&stream.last_verdict().remediation, &["httpGet.httpHeaders"]);
        let mut tls = Stream::new().https_readiness().connect().established().clone();
        tls.closes((100, 101, 200)).kubelet(ProbeOutput::Status(421));
        assert_eq!(tls.all_decided(), [LIKELY]);
        assert_has(&tls.last_verdict().summary, &["no server name (SNI)"]);
        assert_starts(&tls.last_verdict().remediation, "Remove the Host header");
        assert_eq!(answered(Stream::new().http_readiness(), 404).causes(), ["app_status_failure"]);
    }

    #[test]
    fn a_400_that_asks_for_tls_is_a_port_that_speaks_tls() {
        let decided = |says_tls: bool, len: Option<u16>, received: u64| {
            let mut stream = Stream::new().http_readiness().connect().established().clone();
            stream.answer_with(AnswerKind::Http, Some(400), |it| (it.says_tls, it.len) = (says_tls, len));
            stream.closes((100, 101, received)).all_decided()
        };
        assert_eq!(decided(true, Some(400), 400), [LIKELY]);
        assert_eq!(decided(false, None, 76), [LIKELY], "an older recording");
        let no = [("app_status_failure", Confidence::Proven)];
        assert_eq!((decided(false, Some(76), 76), decided(false, None, 75)), (no.to_vec(), no.to_vec()));
    }

    /// The server closes by a FIN, or by a RST because it has unread data.
    fn closed(stream: &mut Stream, reset: bool) -> &mut Stream {
        stream.connect().established();
        if reset {
            stream.resets((33, 34, 0)).reset_sent(SYN, false, Some("app"));
        } else {
            stream.own(|it| _ = it.server_closes((33, 34, 1)));
        }
        stream.settles()
    }

    #[test]
    fn a_probe_without_tls_at_a_port_that_speaks_tls() {
        for reset in [false, true] {
            let hello = || tls_hello(Some(POD), "10.88.0.2:8080");
            let mut stream = Stream::new().grpc_readiness(1).links(true, &["10.88.0.1"]).push(hello()).clone();
            assert_eq!(closed(&mut stream, reset).all_decided().last(), Some(&LIKELY), "reset: {reset}");
            let mut without_hello = Stream::new();
            closed(without_hello.grpc_readiness(1), reset);
            assert_eq!(without_hello.causes(), ["closed_without_answer"], "reset: {reset}");
            let verdict = without_hello.last_verdict();
            assert_has(&verdict.summary, &["perhaps the port speaks TLS"]);
            assert_has(&verdict.remediation, &["If the port speaks TLS", "grpc.mode: TLS"]);
            let mut http = Stream::new().http_readiness().links(true, &["10.88.0.1"]).push(hello()).clone();
            assert_eq!(closed(&mut http, reset).all_decided().last(), Some(&LIKELY), "reset: {reset}");
            assert_has(&http.last_verdict().remediation, &["httpGet.scheme of the probe to HTTPS"]);
            let mut both = Stream::new().http_readiness().links(true, &["10.88.0.1"]).clone();
            answered(&mut both, 200).wait_ms(100).again(8).push(hello());
            assert!(closed(&mut both, reset).causes().iter().all(|it| *it != "probe_misconfigured"));
            let mut http = Stream::new().http_readiness().push(tls_hello(Some(NODE), "10.88.0.1:8080")).clone();
            assert!(closed(&mut http, reset).causes().iter().all(|it| *it != "probe_misconfigured"));
        }
    }

    /// A crash, a proxy without upstream or a limit of connections closes on the preface of HTTP/2, too.
    #[test]
    fn a_close_on_the_preface_is_no_wrong_probe() {
        let mentions_tls = |before: fn(&mut Stream)| {
            let mut stream = Stream::new().grpc_readiness(1).clone();
            before(&mut stream);
            let verdict = closed(&mut stream, false).last_verdict();
            assert_eq!(verdict.cause, Cause::ClosedWithoutAnswer);
            verdict.summary.contains("perhaps the port speaks TLS")
        };
        let answered = |stream: &mut Stream| {
            stream.connect().established().answer(AnswerKind::Other, None).closes((100, 101, 200));
            stream.wait_ms(300).again(8);
        };
        assert!(!mentions_tls(answered), "the server speaks gRPC");
        assert!(!mentions_tls(|stream| _ = stream.speaking(ProbeProtocol::Tls)), "grpc.mode: TLS");
        assert!(mentions_tls(|_| ()));
    }

    /// The probe has a loopback address as its `host`, and its pod is not on the node's network.
    fn with_loopback_host(fill: fn(&mut Stream)) -> Stream {
        let mut stream = Stream::to("127.0.0.1:8080").liveness(10, 3).pod_in(POD).clone();
        let pod = &mut stream.last_pods().pods[0];
        pod.addrs = vec![address("10.88.0.2")];
        pod.containers[0].probes[0].host = Some("127.0.0.1".into());
        fill(&mut stream);
        stream
    }

    fn refused_by(mut stream: Stream, netns: Netns) -> Vec<Verdict> {
        for conn in 100..103 {
            stream.again(conn).connect().reset_sent(SYN, true, None).last_reset_sent().netns = Some(netns);
            stream.reset_received(TcpState::SynSent, 0).wait_ms(10_000);
        }
        stream.verdicts().into_iter().map(|it| it.verdict).collect()
    }

    #[test]
    fn a_loopback_host_is_the_nodes_and_not_the_pods() {
        let restarted: fn(&mut Stream) = |stream| {
            let started_boot_ns = Some(stream.wait_ms(2_000).seconds_ago(1));
            stream.runs(Runs { restarts: 1, started_boot_ns, ..Runs::default() });
        };
        let listens: fn(&mut Stream) = |stream| _ = stream.listens(POD, 8080, true);
        for (fill, decided) in [(restarted, LIKELY), (listens, SURE)] {
            let reported = refused_by(with_loopback_host(fill), NODE);
            assert_eq!(reported.iter().map(|it| (it.cause.name(), it.confidence)).collect::<Vec<_>>(), [decided; 3]);
            let words = "the probe's host 127.0.0.1 is the loopback address of the node, and not of pod default/web: ";
            assert_starts(&reported[0].summary, words);
            assert_has(&reported[0].remediation, &["Remove `host`"]);
            assert_lacks(&reported[0].remediation, &["startupProbe"]);
        }
        let on_node = with_loopback_host(|stream| _ = stream.on_host_network());
        assert_eq!(refused_by(on_node, NODE)[0].cause.name(), "connection_refused");
        // A connect within the pod had the same ports.
        assert_ne!(refused_by(with_loopback_host(|_| ()), POD)[0].cause.name(), "connection_refused");
    }

    #[test]
    fn another_process_of_the_node_may_answer_a_loopback_host() {
        let verdict = answered(&mut with_loopback_host(|_| ()), 404).verdict();
        assert_eq!((verdict.cause.name(), verdict.confidence), ("app_status_failure", Confidence::Likely));
        assert_has(&verdict.summary, &["a process of the node answered, and not pod default/web, unless"]);
        assert_starts(&verdict.remediation, "Remove `host` from the probe");
    }
}
