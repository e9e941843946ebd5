//! Established, and TLS was not finished before the timeout.

use super::*;
use crate::rules::slow_response::{Wait, may_be_lost_elsewhere, measure_wait};
use tracer_case::answer::shows_certificate;
use tracer_case::giving_up::timeout_clause;
use tracer_case::{serving, slow_server};

pub(super) fn find(case: &Case<'_>) -> Option<Finding> {
    let Wait { reached, waited, late, is_late, evidence } =
        measure_wait(case).filter(|_| speaks_tls(case) && !is_untaken(case))?;
    let doubt = doubt(case);
    let summary = format!(
        "{} was reached in {reached} and took the ClientHello; no byte came back in {waited}{}{late}{doubt}",
        case.attempt.flow.dst,
        timeout_clause(case)
    );
    let remediation: Remediation = by_subject(case, Cause::TlsHandshakeSlow.fix(), |client| {
        format!(
            "Raise the timeout of {client}, give the target CPU (a TLS handshake is expensive), or look for an entropy, certificate or OCSP look-up in the handshake"
        )
    });
    let remediation = if doubt.is_empty() { remediation } else { or_plain_http(case, remediation) };
    let mut found = Finding::failure(Cause::TlsHandshakeSlow, vec![evidence], summary, remediation);
    slow_server::add(case, &mut found, is_late);
    let is_sure = late.is_empty() && doubt.is_empty();
    let found = may_be_lost_elsewhere(case, found);
    Some(if is_sure { found } else { found.at_most(Confidence::Likely) })
}

/// The kernel acknowledged the ClientHello, and no process took it.
fn is_untaken(case: &Case<'_>) -> bool {
    serving::connection(case).is_some_and(|it| !it.accepted || it.unread > 0)
}

/// No client has got an answer in TLS at that port. A plain server that reads lines waits for the end of one.
const MAY_NOT_SPEAK_TLS: &str = "; perhaps the port does not speak TLS: no HTTPS probe was answered there";

/// A clause if it is not known that the port speaks TLS; else empty.
fn doubt(case: &Case<'_>) -> &'static str {
    if case.node.tls.spoken(case.attempt.flow.dst).tls.is_some() { "" } else { MAY_NOT_SPEAK_TLS }
}

/// The same clause for an attempt that is surely an HTTPS probe.
pub(super) fn doubt_of_https(case: &Case<'_>) -> Option<&'static str> {
    let is_https = case.matched.scheme().as_deref() == Some("https");
    Some(doubt(case)).filter(|doubt| is_https && !doubt.is_empty())
}

pub(super) fn or_plain_http(case: &Case<'_>, fix: Remediation) -> Remediation {
    let or_plain = |text: &str| {
        let text = text.trim_end_matches('.');
        format!(
            "{text}. If the command ends with an error such as `wrong version number`, the port speaks no TLS: set the probe's scheme to HTTP. If it prints only `CONNECTED` and ends after 5 s, that decides nothing."
        )
    };
    fix.reword(or_plain).run([shows_certificate(case.attempt.flow.dst)])
}

/// All probes that this attempt can be speak HTTPS; or a ClientHello arrived at the listener meanwhile.
fn speaks_tls(case: &Case<'_>) -> bool {
    let attempt = case.attempt;
    match case.matched.scheme() {
        Some(scheme) => scheme == "https",
        None => case.node.tls.hello(None, attempt.flow.dst).is_some_and(|at| at >= attempt.started),
    }
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    #[test]
    fn a_port_that_never_answered_in_tls_may_not_speak_it() {
        let silent = |stream: &mut Stream| {
            stream.again(8).connect().established().wait_ms(1001).closes((280, 281, 0));
            let verdict = stream.last_verdict();
            assert_eq!(verdict.cause.name(), "tls_handshake_slow");
            verdict
        };
        let never = silent(Stream::new().https_readiness());
        assert_eq!(never.confidence, Confidence::Likely);
        assert_ends(&never.summary, "no HTTPS probe was answered there");
        assert_has(
            &never.remediation,
            &["such as `wrong version number`", "timeout 5 openssl s_client -connect 10.88.0.2:8080"],
        );
        let mut before = Stream::new().https_readiness().connect().established().answer(AnswerKind::Tls, None).clone();
        let answered = silent(before.closes((280, 281, 900)));
        assert_eq!(answered.confidence, Confidence::Proven);
        assert_lacks(&answered.summary, &["does not speak"]);
        assert_lacks(&answered.remediation, &["openssl"]);
    }

    /// A probe with a `host`, or a Service with endpoints on other nodes.
    #[test]
    fn an_answer_that_is_lost_beyond_the_node_looks_the_same() {
        let silent = |dst: &str, https: bool| {
            let mut stream = Stream::to(dst).links(true, &["10.88.0.1"]).clone();
            let probed = if https { stream.https_readiness() } else { stream.http_readiness() };
            let pod = &mut probed.last_pods().pods[0];
            pod.addrs = vec![address("10.88.0.2")];
            let probe = &mut pod.containers[0].probes[0];
            (probe.port, probe.host) = (8443, dst.strip_suffix(":8443").map(Into::into));
            stream.service(8443, |it| it.cluster_ips = vec![address("10.96.0.9")]);
            if https {
                stream.connect().established().answer(AnswerKind::Tls, None).closes((280, 281, 900)).wait_ms(100);
            }
            stream.again(8).connect().established().wait_ms(1_001).closes((280, 281, 0)).settles();
            let verdict = stream.last_verdict();
            (verdict.cause.name(), verdict.confidence, verdict.summary)
        };
        let lost = "; or its answer is lost beyond this node";
        for (https, cause) in [(true, "tls_handshake_slow"), (false, "slow_response")] {
            let elsewhere = silent("10.96.0.9:8443", https);
            assert_eq!((elsewhere.0, elsewhere.1), (cause, Confidence::Likely));
            assert_has(&elsewhere.2, &[lost, "; 10.96.0.9:8443 is Service shop/cart"]);
            let own = silent("10.88.0.2:8443", https);
            assert_eq!((own.0, own.1), (cause, Confidence::Proven));
            assert_lacks(&own.2, &[lost]);
        }
    }

    /// The kernel acknowledges what lies in the queue of a listener.
    #[test]
    fn a_client_hello_that_no_process_took_is_no_slow_handshake() {
        let decided = |accepted: bool, unread: u32| {
            let mut stream =
                Stream::new().links(true, &["10.88.0.1"]).https_readiness().connect().established().clone();
            let connection = Some(served(unread, accepted));
            stream.wait_ms(500).serving(Serving { connection, ..Serving::default() });
            stream.wait_ms(501).closes((280, 281, 0)).verdict().cause.name()
        };
        assert_eq!(decided(false, 280), "slow_response");
        assert_eq!(decided(true, 280), "slow_response");
        assert_eq!(decided(true, 0), "tls_handshake_slow");
    }

    /// Only the URL in the kubelet's line tells that the probe uses HTTPS.
    #[test]
    fn the_scheme_in_the_outcome_tells_a_handshake_from_a_request() {
        let causes = |scheme: &str, why: &str| {
            let mut stream = Stream::new().without_specs().connect().established().wait_ms(1001).clone();
            stream.closes((280, 281, 0)).settles().kubelet_request(ProbeOutput::Timeout, scheme, why).causes()
        };
        assert_eq!(causes("https", "net/http: TLS handshake timeout"), ["slow_response", "tls_handshake_slow"]);
        let late = causes("http", "context deadline exceeded");
        assert!(late.iter().all(|it| *it == "slow_response"), "{late:?}");
    }

    /// The cause is less sure than the drop, but the attempt did not fail because of the drop.
    #[test]
    fn a_drop_before_the_connection_was_established_is_not_the_cause() {
        let mut stream = Stream::new().https_readiness().connect().filtered(SYN, POD).clone();
        stream.push(firewall(POD, vec![rule("INPUT", RuleVerdict::Drop)])).wait_ms(5);
        stream.syn_again().established().wait_ms(990).closes((280, 281, 0));
        assert_eq!(stream.causes(), ["tls_handshake_slow"]);
    }
}
