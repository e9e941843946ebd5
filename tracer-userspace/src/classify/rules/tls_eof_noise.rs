//! A tcpSocket attempt that succeeded at a TLS listener: the EOF in the server's log is this probe.

use serde_json::json;

use super::super::evidence::{evidence, of_state};
use super::{Case, Finding, Label};
use crate::enrich;
use crate::record::{Confidence, Evidence, Outcome};

/// The rule.
pub(in super::super) fn find(case: &Case<'_>) -> Option<Finding> {
    let attempt = case.attempt;
    if !attempt.touched_only() {
        return None;
    }
    let (ended, _) = attempt.ended?;
    let (tls, confidence) = listener_speaks_tls(case)?;
    let dst = attempt.flow.dst;
    let summary = format!(
        "the attempt succeeded: it connected to {dst}, sent no byte and closed; {dst} speaks TLS, so its log shows an EOF during the handshake"
    );
    let seen = vec![of_state(ended, attempt.last.as_ref()?), tls];
    let found = Finding::failure(Label::TlsEofNoise, seen, summary, Label::TlsEofNoise.page().mend.to_owned());
    Some(Finding { outcome: Outcome::Noise, decided_at: ended, confidence, ..found })
}

/// A ClientHello of somebody else arrived at the same listener; or another probe of the pod speaks HTTPS to it.
fn listener_speaks_tls(case: &Case<'_>) -> Option<(Evidence, Confidence)> {
    let dst = case.attempt.flow.dst;
    let netns = case.node.netns_of_addr(case.attempt.netns?, dst.ip());
    if let Some(time) = case.node.tls_hello(netns, dst) {
        let says = format!("a TLS ClientHello of another connection arrived at port {}", dst.port());
        return Some((
            evidence("tcp_probe", time, says, json!({ "port": dst.port(), "netns": netns })),
            Confidence::Likely,
        ));
    }
    if let Some(time) = case.node.https_answer(dst) {
        let says = format!("an HTTPS probe was answered by port {} before", dst.port());
        return Some((evidence("inet_sock_set_state", time, says, json!({ "port": dst.port() })), Confidence::Likely));
    }
    let says = format!("another probe of this pod speaks HTTPS to port {}", dst.port());
    enrich::https_spec_on_port(case.attempt, case.node)
        .then(|| (evidence("pods", case.attempt.started, says, json!({ "port": dst.port() })), Confidence::Possible))
}

#[cfg(test)]
mod tests {
    use crate::event::{Fact, TcpState, TlsHello};
    use crate::record::Outcome;
    use crate::testing::{NODE, Stream};

    fn hello() -> Fact {
        Fact::TlsHello(TlsHello { netns: NODE, addr: "10.88.0.1:6443".parse().expect("an address") })
    }

    #[test]
    fn a_touch_of_a_port_that_speaks_tls() {
        let mut stream = Stream::to("10.88.0.1:6443");
        stream.links(true, &["10.88.0.1"]).push(hello()).connect().established();
        stream.state(TcpState::Established, TcpState::FinWait1, 0, (0, 1, 0));
        let verdict = &stream.verdicts()[0].verdict;
        assert_eq!((verdict.label.name(), verdict.outcome), ("tls_eof_noise", Outcome::Noise));
    }

    #[test]
    fn a_touch_of_a_plain_port_is_nothing_and_has_the_port_watched() {
        let mut stream = Stream::new();
        stream.connect().established().state(TcpState::Established, TcpState::FinWait1, 0, (0, 1, 0));
        assert!(stream.labels().is_empty());
    }
}
