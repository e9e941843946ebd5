//! A netfilter rule dropped a packet that this attempt needs.

use super::super::evidence::netfilter_hook;
use super::super::stopped::dropped;
use super::{Case, Finding, Label};

/// The rule.
pub(in super::super) fn find(case: &Case<'_>) -> Option<Finding> {
    let stopped = dropped(case)?;
    let hook = stopped.drop.and_then(|(_, drop)| netfilter_hook(drop)).unwrap_or("filter");
    let summary = format!("a netfilter rule{}{}", stopped.did(case), stopped.words());
    let remediation = format!(
        "allow {} -> port {} in the {hook} chain that drops it: {}",
        case.attempt.flow.src.ip(),
        case.attempt.flow.dst.port(),
        stopped.look(case)
    );
    Some(stopped.finding(case, Label::FirewallDrop, summary, remediation))
}

#[cfg(test)]
mod tests {
    use crate::event::{Fact, TcpFlags, TcpState};
    use crate::record::Outcome;
    use crate::testing::{POD, SYN, Stream};

    #[test]
    fn a_dropped_syn_decides_without_waiting_for_the_timeout() {
        let labels = Stream::new().connect().drop(SYN, "NETFILTER_DROP", POD).wait_ms(5).push(Fact::Tick).labels();
        assert_eq!(labels, ["firewall_drop"]);
    }

    #[test]
    fn a_drop_for_another_reason_is_not_a_firewall_s() {
        assert_eq!(Stream::new().connect().drop(SYN, "IP_RPFILTER", POD).gives_up().labels(), ["rp_filter_drop"]);
    }

    #[test]
    fn a_dropped_fin_of_an_answered_attempt_is_nothing() {
        let mut stream = Stream::new();
        stream.connect().established().state(TcpState::Established, TcpState::FinWait1, 0, (100, 101, 200));
        assert!(stream.drop(TcpFlags(0x11), "NETFILTER_DROP", POD).labels().is_empty());
    }

    #[test]
    fn an_answer_that_may_have_been_lost_is_no_silence() {
        let mut stream = Stream::new();
        stream.connect().drop(SYN, "NETFILTER_DROP", POD).wait_ms(2).lost(2).wait_ms(5).push(Fact::Tick);
        assert_eq!(stream.labels(), ["unexplained"]);
    }

    #[test]
    fn a_late_rst_turns_the_drop_into_a_reject() {
        let mut stream = Stream::new();
        stream.connect().drop(SYN, "NETFILTER_DROP", POD).wait_ms(5).push(Fact::Tick);
        stream.wait_ms(1100).push(Fact::Tick).reset_received(TcpState::SynSent, 0);
        assert_eq!(stream.labels(), ["firewall_drop", "firewall_reject"]);
    }

    #[test]
    fn an_attempt_that_gets_through_on_a_later_syn_is_taken_back() {
        let mut stream = Stream::new();
        stream.connect().drop(SYN, "NETFILTER_DROP", POD).wait_ms(5).push(Fact::Tick);
        stream.wait_ms(1100).retransmit(TcpState::SynSent).established();
        stream.state(TcpState::Established, TcpState::FinWait1, 0, (100, 101, 200));
        let outcomes: Vec<_> = stream.verdicts().iter().map(|v| v.verdict.outcome).collect();
        assert_eq!(outcomes, [Outcome::Failure, Outcome::Noise]);
    }
}
