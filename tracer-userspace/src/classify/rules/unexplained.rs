//! The attempt failed and nothing decides why.

use serde_json::json;

use super::super::evidence::{
    errno_words, evidence, of_drop, of_icmp, of_inspection, of_reset_received, of_reset_sent, of_state,
};
use super::super::kubelet::of_outcome;
use super::{Case, Finding, Label, ms};
use crate::correlate::attempt::{Attempt, End};
use crate::event::{Fact, Observation};
use crate::record::{Confidence, Evidence};

/// The rule.
pub(in super::super) fn find(case: &Case<'_>) -> Option<Finding> {
    let attempt = case.attempt;
    let (ended, end) = attempt.ended?;
    let said = attempt.kubelet();
    if !case.settled || !(attempt.failed() || said.is_some()) {
        return None;
    }
    let mut seen: Vec<Evidence> = attempt.sightings.iter().filter_map(says).collect();
    seen.extend(super::inspected(case).map(|(time, state)| of_inspection(time, state)));
    seen.extend(attempt.last.as_ref().map(|state| of_state(ended, state)));
    seen.extend(said.map(|(_, said)| of_outcome(said)));
    let summary = format!(
        "the attempt to {} failed after {} ({}) and nothing that was seen decides why",
        attempt.flow.dst,
        ms(attempt.elapsed(ended)),
        if attempt.failed() { how(attempt, end) } else { DISAGREES.to_owned() }
    );
    let found = Finding::failure(Label::Unexplained, seen, summary, Label::Unexplained.page().mend.to_owned());
    Some(Finding { decided_at: ended, confidence: Confidence::Possible, rests_on: &ALL, ..found })
}

/// What the kernel saw of an attempt that only the kubelet calls failed.
const DISAGREES: &str = "so the kubelet says; the kernel saw a connection on which nothing went wrong";

/// Every hook whose absence can be the reason that nothing was seen.
const ALL: [&str; 9] = [
    "tcp_send_reset",
    "tcp_v4_send_reset",
    "tcp_v6_send_reset",
    "tcp_receive_reset",
    "kfree_skb",
    "icmp_send",
    "ip_vs_nat_xmit",
    "ip_vs_leave",
    "tcp_retransmit_skb",
];

fn how(attempt: &Attempt, end: End) -> String {
    let errno = attempt.errno().map(|e| format!(", {}", errno_words(e))).unwrap_or_default();
    let where_ = match end {
        End::NotEstablished if attempt.retransmits.0 > 0 => {
            format!("no answer to the SYN, sent again {} time(s)", attempt.retransmits.0)
        }
        End::NotEstablished => "before the connection was established".to_owned(),
        End::Reset => "reset after it was established".to_owned(),
        End::ClosedByProber if attempt.retransmits.1 > 0 => {
            format!("established, then {} segment(s) sent again without an acknowledgement", attempt.retransmits.1)
        }
        End::ClosedByProber => "established, and the prober closed it without an answer".to_owned(),
        End::ClosedByServer => "established, and the target closed it without an answer".to_owned(),
    };
    format!("{where_}{errno}")
}

/// An observation in words, if it says anything about a failure.
fn says(observation: &Observation) -> Option<Evidence> {
    let time = observation.time_boot_ns;
    match &observation.fact {
        Fact::Drop(drop) => Some(of_drop(time, drop)),
        Fact::Icmp(icmp) => Some(of_icmp(time, icmp)),
        Fact::ResetSent(reset) => Some(of_reset_sent(time, reset)),
        Fact::ResetReceived(reset) => Some(of_reset_received(time, reset)),
        Fact::ConnectFailed(failed) => {
            let error = errno_words(failed.errno);
            Some(evidence(
                "sys_exit_connect",
                time,
                format!("connect() failed: {error}"),
                json!({ "errno": failed.errno }),
            ))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::event::{Fact, TcpState};
    use crate::testing::Stream;

    /// Seen on sid: the program's run at CLOSE was skipped, and the next connection on the same memory was refused.
    #[test]
    fn another_connection_on_the_socket_s_memory_is_not_this_attempt() {
        let mut stream = Stream::new();
        stream.connect().state(TcpState::SynSent, TcpState::Close, 111, (0, 0, 0));
        if let Some(Fact::State(state)) = stream.observations.last_mut().map(|o| &mut o.fact) {
            state.flow.src.set_port(50_000);
        }
        assert!(stream.labels().is_empty());
    }

    #[test]
    fn silence_is_said_to_be_silence() {
        let mut stream = Stream::new();
        stream.connect().wait_ms(1000).retransmit(TcpState::SynSent).gives_up();
        let verdict = &stream.verdicts()[0].verdict;
        assert_eq!(verdict.label.name(), "unexplained");
        assert!(verdict.summary.contains("sent again 1 time(s)"), "{}", verdict.summary);
    }
}
