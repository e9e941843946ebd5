//! A tcpSocket attempt that succeeded at a TLS listener: the EOF in the server's log is this probe.

use super::*;

pub(super) fn find(case: &Case<'_>) -> Option<Finding> {
    let attempt = case.attempt;
    let ended = touched(case)?;
    let (tls, confidence) = listener_speaks_tls(case)?;
    let dst = attempt.flow.dst;
    let summary = format!(
        "the attempt succeeded: it connected to {dst}, sent no byte and closed; the port most likely speaks TLS, so its log may show an EOF during the handshake"
    );
    let evidence = vec![of_state(ended, attempt.last.as_ref()?), tls];
    let fix = by_subject::<Remediation>(case, Cause::TlsEofNoise.fix(), |client| {
        format!(
            "Let {client} finish a TLS handshake when it only checks whether the port is open, or filter that line from the server's log"
        )
    });
    let found = Finding::failure(Cause::TlsEofNoise, evidence, summary, fix);
    Some(Finding { outcome: Outcome::Noise, decided_at: ended, confidence, ..found })
}

/// When the attempt ended, if it did what a tcpSocket probe does, and succeeded.
pub(super) fn touched(case: &Case<'_>) -> Option<u64> {
    let attempt = case.attempt;
    if !attempt.carried_no_data() || attempt.kubelet().is_some() || case.matched.is_too_late() {
        return None;
    }
    // An attempt that had to send a request and did not is no success.
    let (ended, _) = attempt.ended?;
    (!case.matched.sent_no_request()).then_some(ended)
}

/// The evidence that the listener speaks TLS: a ClientHello of another connection, an HTTPS probe that was answered, or
/// another HTTPS probe of the pod.
pub(super) fn listener_speaks_tls(case: &Case<'_>) -> Option<(Evidence, Confidence)> {
    let dst = case.attempt.flow.dst;
    if case.node.tls.spoken(dst).plain {
        return None;
    }
    let netns = case.node.netns_of_addr(case.attempt.netns?, dst.ip());
    if let Some(time) = case.node.tls.hello(netns, dst) {
        let text = format!("a TLS ClientHello of another connection arrived at port {}", dst.port());
        let fields = json!({ "port": dst.port(), "netns": netns });
        return Some((evidence_of(Hook::CgroupSkb.name(), time, text, fields), Confidence::Likely));
    }
    if let Some(time) = case.node.tls.spoken(dst).tls {
        let text = format!("an HTTPS probe was answered by port {} before", dst.port());
        let evidence = evidence_of(Hook::InetSockSetState.name(), time, text, json!({ "port": dst.port() }));
        return Some((evidence, Confidence::Likely));
    }
    let text = format!("another probe of this pod speaks HTTPS to port {}", dst.port());
    case.matched
        .https_spec_on_port()
        .then(|| (evidence_of("pods", case.attempt.started, text, json!({ "port": dst.port() })), Confidence::Possible))
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    /// The causes with the outcome noise, of a touch of this address after these observations.
    fn touch(dst: &str, before: Vec<ObservationKind>) -> Vec<String> {
        let mut stream = Stream::to(dst).links(true, &["10.88.0.1"]).clone();
        for kind in before {
            stream.push(kind);
        }
        stream.connect().established().closes((0, 1, 0));
        let noise = |v: &tracer_model::record::VerdictBody| v.verdict.outcome == Outcome::Noise;
        stream.verdicts().iter().filter(|v| noise(v)).map(|v| v.verdict.cause.name().to_owned()).collect()
    }

    #[test]
    fn a_touch_of_a_port_that_speaks_tls() {
        let (own, pod) = ("10.88.0.1:6443", "10.88.0.7:6443");
        assert_eq!(touch(own, vec![tls_hello(Some(NODE), own)]), ["tls_eof_noise"]);
        assert_eq!(touch(own, vec![tls_hello(Some(NODE), "127.0.0.1:6443")]), ["tls_eof_noise"]);
        assert_eq!(touch(pod, vec![tls_hello(Some(POD), pod)]), ["tls_eof_noise"], "its namespace is not known");
        assert_eq!(touch(own, vec![tls_hello(None, own)]), ["tls_eof_noise"]);
    }

    #[test]
    fn a_hello_at_another_listener_does_not_count() {
        let own = "10.88.0.1:6443";
        for other in [
            tls_hello(Some(POD), own),
            tls_hello(Some(NODE), "10.88.0.1:6444"),
            tls_hello(None, "10.88.0.2:6443"),
            tls_hello(None, "127.0.0.1:6443"),
        ] {
            assert!(touch(own, vec![other.clone()]).is_empty(), "{other:?}");
        }
        assert!(
            touch("127.0.0.1:6443", vec![tls_hello(None, "127.0.0.1:6443")]).is_empty(),
            "every namespace has that address"
        );
    }

    #[test]
    fn a_listener_that_ended_is_forgotten() {
        let own = "10.88.0.1:6443";
        let end = |netns| ObservationKind::Listen(Listen::new(netns, address(own), prober(), false));
        assert!(touch(own, vec![tls_hello(Some(NODE), own), end(NODE)]).is_empty());
        assert!(touch(own, vec![tls_hello(None, own), end(POD)]).is_empty());
        assert_eq!(touch(own, vec![tls_hello(Some(NODE), own), end(POD)]), ["tls_eof_noise"]);
    }

    #[test]
    fn a_touch_of_a_plain_port_is_nothing() {
        assert!(Stream::new().connect().established().closes((0, 1, 0)).causes().is_empty());
    }

    /// An HTTPS probe of a port that speaks plain HTTP: its ClientHello does not show that the port speaks TLS.
    #[test]
    fn a_port_that_answers_tls_in_plain_does_not_speak_it() {
        let touched = |kind: Option<AnswerKind>, reason: Option<ProbeOutput>| {
            let mut stream = Stream::new();
            stream.https_readiness().push(tls_hello(None, "10.88.0.2:8080")).connect().established();
            if let Some(kind) = kind {
                stream.answer(kind, None);
            }
            stream.closes((300, 301, 103));
            if let Some(reason) = reason {
                stream.kubelet(reason);
            }
            stream.wait_ms(300).tcp_readiness().again(9).connect().established().closes((0, 1, 0));
            stream.causes().contains(&"tls_eof_noise")
        };
        assert!(touched(Some(AnswerKind::Tls), None) && touched(None, None));
        assert!(!touched(Some(AnswerKind::Http), None) && !touched(Some(AnswerKind::Other), None));
        assert!(!touched(None, Some(ProbeOutput::NotHttp)), "the kubelet read a plain answer");
        assert!(touched(Some(AnswerKind::Tls), Some(ProbeOutput::NotHttp)), "the kubelet read that answer within TLS");
    }

    /// The attempt connected just before its timeout, and was closed unused.
    #[test]
    fn an_https_probe_that_sent_nothing_is_no_touch() {
        let touch = |probed: fn(&mut Stream) -> &mut Stream| {
            let mut stream = Stream::new();
            probed(&mut stream).push(tls_hello(None, "10.88.0.2:8080")).connect().wait_ms(990).established().wait_ms(5);
            stream.closes((0, 1, 0));
            stream
        };
        assert!(touch(Stream::https_readiness).causes().is_empty());
        assert_eq!(touch(Stream::https_readiness).kubelet(ProbeOutput::Timeout).causes(), ["unexplained"]);
        assert_eq!(touch(Stream::tcp_readiness).causes(), ["tls_eof_noise"]);
        let reported = touch(Stream::tcp_readiness).kubelet(ProbeOutput::Timeout).causes();
        assert_eq!(reported, ["tls_eof_noise", "unexplained"], "the kubelet outcome decides");
    }
}
