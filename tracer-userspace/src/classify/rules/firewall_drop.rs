//! A netfilter rule dropped a packet that this attempt needs.

use super::super::evidence::{is_netfilter, netfilter_hook, of_drop};
use super::{Case, Finding, Label, enter, in_namespace};
use crate::event::PacketDrop;

/// The rule.
pub(in super::super) fn find(case: &Case<'_>) -> Option<Finding> {
    let (time, drop) = case.attempt.drops().find(|(_, d)| is_netfilter(d) && is_needed(case, d))?;
    // A rule that rejects drops the packet, too: its answer must have had the time to arrive.
    if !case.settled || answered(case) {
        return None;
    }
    let hook = netfilter_hook(drop).map(|h| format!(" at {h}")).unwrap_or_default();
    let summary = format!(
        "a netfilter rule{hook}{} drops the {} {} -> {}",
        in_namespace(case, drop.netns),
        drop.flags.name(),
        drop.flow.src,
        drop.flow.dst
    );
    let remediation = format!(
        "{}allow {} -> port {} in the {} chain that drops it (nft list ruleset; iptables-save -c: the counter that rises)",
        enter(case, drop.netns),
        case.attempt.flow.src.ip(),
        case.attempt.flow.dst.port(),
        netfilter_hook(drop).unwrap_or("filter")
    );
    // That netfilter made no answer is a conclusion from silence.
    Some(
        Finding::failure(Label::FirewallDrop, vec![of_drop(time, drop)], summary, remediation)
            .resting_on(answer_hooks(case)),
    )
}

/// The handshake, or, once the attempt has failed for want of an answer, its data. What is dropped
/// of a connection that had its answer hurts nobody.
fn is_needed(case: &Case<'_>, drop: &PacketDrop) -> bool {
    let handshake = (drop.flags.is_syn() || drop.flags.is_syn_ack()) && case.attempt.established.is_none();
    let before_end = case
        .attempt
        .ended
        .is_none_or(|(end, _)| case.attempt.drops().any(|(at, d)| std::ptr::eq(d, drop) && at <= end));
    handshake || (case.attempt.failed() && before_end && case.attempt.established.is_some())
}

/// Hooks that would have shown the answer of a rule that rejects.
fn answer_hooks(case: &Case<'_>) -> &'static [&'static str] {
    if case.attempt.flow.dst.is_ipv6() {
        &["tcp_receive_reset", "icmp6_send"]
    } else {
        &["tcp_receive_reset", "icmp_send"]
    }
}

fn answered(case: &Case<'_>) -> bool {
    case.attempt.reset_received().is_some() || case.attempt.icmp().next().is_some()
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
        assert_eq!(Stream::new().connect().drop(SYN, "IP_RPFILTER", POD).gives_up().labels(), ["unexplained"]);
    }

    #[test]
    fn a_dropped_fin_of_an_answered_attempt_is_nothing() {
        let mut stream = Stream::new();
        stream.connect().established().state(TcpState::Established, TcpState::FinWait1, 0, (100, 101, 200));
        assert!(stream.drop(TcpFlags(0x11), "NETFILTER_DROP", POD).labels().is_empty());
    }

    #[test]
    fn a_late_rst_turns_the_drop_into_a_reject() {
        let mut stream = Stream::new();
        stream.connect().drop(SYN, "NETFILTER_DROP", POD).wait_ms(50).reset_received(TcpState::SynSent, 0);
        assert_eq!(stream.labels(), ["firewall_drop", "firewall_reject"]);
    }

    #[test]
    fn an_attempt_that_gets_through_on_a_later_syn_is_taken_back() {
        let mut stream = Stream::new();
        stream.connect().drop(SYN, "NETFILTER_DROP", POD).wait_ms(1000).retransmit(TcpState::SynSent).established();
        stream.state(TcpState::Established, TcpState::FinWait1, 0, (100, 101, 200));
        let outcomes: Vec<_> = stream.verdicts().iter().map(|v| v.verdict.outcome).collect();
        assert_eq!(outcomes, [Outcome::Failure, Outcome::Noise]);
    }
}
