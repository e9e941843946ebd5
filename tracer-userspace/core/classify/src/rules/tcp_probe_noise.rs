//! A tcpSocket attempt that succeeded at a server that speaks first: the lost connection in the server's log is this
//! probe.

use super::*;
use tracer_model::event::{Handler, State, TcpState};

pub(super) fn find(case: &Case<'_>) -> Option<Finding> {
    let attempt = case.attempt;
    let (ended, _) = attempt.ended.filter(|(_, end)| *end == End::ClosedByProber)?;
    let probes = case.matched.possible_probes();
    let may_be_tcp = probes.is_empty() || probes.iter().any(|spec| spec.handler == Handler::Tcp);
    let is_touch = attempt.prober && attempt.sent() == Some(0) && attempt.kubelet().is_none() && may_be_tcp;
    let in_tls = attempt.answer().is_some_and(|(_, answer)| answer.kind.is_tls());
    if !is_touch || in_tls || case.matched.is_too_late() {
        return None;
    }
    let evidence = unread(case).or_else(|| answered_with_reset(case))?;
    let dst = attempt.flow.dst;
    let summary = format!(
        "the attempt succeeded: it connected to {dst}, sent no byte and closed; the server there sent bytes without being asked, so its log may show a client that was lost"
    );
    let found = Finding::failure(Cause::TcpProbeNoise, vec![evidence], summary, Cause::TcpProbeNoise.fix());
    Some(Finding { outcome: Outcome::Noise, decided_at: ended, ..found })
}

/// The server's bytes came before the close. The kernel then closes with a RST. In a later state the peer's FIN counts as
/// a byte.
fn unread(case: &Case<'_>) -> Option<Evidence> {
    let (ended, _) = case.attempt.ended?;
    let has_bytes = |state: &State| state.old == TcpState::Established && state.bytes_received.is_some_and(|n| n > 0);
    let state = case.attempt.last.as_ref().filter(|state| has_bytes(state))?;
    Some(of_state(ended, state))
}

/// They came after it. The kernel answers them with a RST (`tcp_rcv_state_process`: TCPABORTONDATA). If they met the socket
/// while it closed, they are dropped, and the next segment gets the RST.
fn answered_with_reset(case: &Case<'_>) -> Option<Evidence> {
    let own = case.attempt.flow.src;
    let came = case.attempt.answer().is_some_and(|(_, answer)| answer.asked == Some(false));
    let mut resets = case.attempt.resets_sent();
    let (time, reset) = resets.find(|(_, it)| it.flow.src == own && (it.answered.has_data() || came))?;
    Some(of_reset_sent(time, reset))
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    const BANNER: TcpFlags = TcpFlags(0x18);
    const ACK: TcpFlags = TcpFlags(0x10);
    const FIN: TcpFlags = TcpFlags(0x11);

    fn noise(stream: &Stream) -> Vec<(Cause, Outcome, Confidence)> {
        stream.verdicts().iter().map(|it| (it.verdict.cause, it.verdict.outcome, it.verdict.confidence)).collect()
    }

    fn touch(probed: fn(&mut Stream) -> &mut Stream) -> Stream {
        let mut stream = Stream::new();
        probed(&mut stream).connect().established();
        stream
    }

    fn own(stream: &Stream) -> (Flow, ConnId) {
        let connect = stream.observations.iter().find_map(|it| match &it.kind {
            ObservationKind::Connect(connect) => Some((connect.flow, connect.conn)),
            _ => None,
        });
        connect.expect("a connect")
    }

    #[test]
    fn a_server_that_speaks_first_loses_its_client() {
        let expected = [(Cause::TcpProbeNoise, Outcome::Noise, Confidence::Proven)];
        let mut before = touch(Stream::tcp_readiness);
        before.closes((0, 1, 24));
        assert_eq!(noise(&before), expected, "its bytes were not read");
        let mut after = touch(Stream::tcp_readiness);
        let (flow, _) = own(&after);
        after.closes((0, 1, 0)).reset_sent_on(flow, BANNER, false, None);
        assert_eq!(noise(&after), expected, "its bytes came after the close");
        let mut meanwhile = touch(Stream::tcp_readiness);
        let (flow, conn) = own(&meanwhile);
        let answer =
            Answer { conn, kind: AnswerKind::Other, status: None, asked: Some(false), len: Some(24), says_tls: false };
        meanwhile.push(ObservationKind::Answer(answer)).closes((0, 1, 0)).reset_sent_on(flow, FIN, false, None);
        assert_eq!(noise(&meanwhile), expected, "they met the socket while it closed");
    }

    #[test]
    fn other_ends_are_no_noise() {
        let mut silent = touch(Stream::tcp_readiness);
        assert_eq!(noise(silent.closes((0, 1, 0))), []);
        let mut acknowledged = touch(Stream::tcp_readiness);
        let (flow, _) = own(&acknowledged);
        assert_eq!(noise(acknowledged.closes((0, 1, 0)).reset_sent_on(flow, ACK, false, None)), [], "no bytes");
        let mut http = touch(Stream::http_readiness);
        assert_eq!(noise(http.closes((0, 1, 24))), [], "it had to send a request");
    }
}
