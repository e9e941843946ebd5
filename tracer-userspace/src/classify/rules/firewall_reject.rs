//! A netfilter rule answered for this flow with a RST or an ICMP error.

use super::super::stopped::rejected;
use super::{Case, Finding, Label};

/// The rule.
pub(in super::super) fn find(case: &Case<'_>) -> Option<Finding> {
    let stopped = rejected(case)?;
    let summary = format!("a netfilter rule{}{}", stopped.did(case), stopped.words());
    let remediation = format!(
        "allow {} -> port {} before the rule that rejects it: {}",
        case.attempt.flow.src.ip(),
        case.attempt.flow.dst.port(),
        stopped.look(case)
    );
    Some(stopped.finding(case, Label::FirewallReject, summary, remediation))
}

#[cfg(test)]
mod tests {
    use crate::event::{TcpFlags, TcpState};
    use crate::testing::{POD, SYN, Stream, firewall};

    #[test]
    fn a_rst_for_a_syn_that_netfilter_dropped_is_a_reject_in_either_order() {
        let mut first = Stream::new();
        first.connect().drop(SYN, "NETFILTER_DROP", POD).reset_received(TcpState::SynSent, 0);
        assert_eq!(first.labels(), ["firewall_reject"]);
        let mut second = Stream::new();
        second.connect().reset_received(TcpState::SynSent, 0).drop(SYN, "NETFILTER_DROP", POD);
        assert_eq!(second.labels(), ["firewall_reject"]);
    }

    #[test]
    fn port_unreachable_decides_alone_and_host_unreachable_does_not() {
        assert_eq!(Stream::new().connect().icmp(3, 3).labels(), ["firewall_reject"]);
        assert_eq!(Stream::new().connect().icmp(3, 1).gives_up().labels(), ["route_unreachable"]);
    }

    #[test]
    fn a_request_is_rejected_like_a_syn() {
        let mut reset = Stream::new();
        reset.connect().established().drop(TcpFlags(0x18), "NETFILTER_DROP", POD);
        reset.reset_received(TcpState::Established, 0).state(TcpState::Established, TcpState::Close, 104, (100, 1, 0));
        assert_eq!(reset.labels(), ["firewall_reject"]);
        let mut by_app = Stream::new();
        by_app.connect().established().drop(TcpFlags(0x18), "NETFILTER_DROP", POD).wait_ms(200);
        by_app.reset_received(TcpState::Established, 0).reset_sent(TcpFlags(0), false, Some("app"));
        by_app.state(TcpState::Established, TcpState::Close, 104, (200, 101, 0));
        assert_eq!(by_app.labels(), ["mid_stream_rst"]);
    }

    /// The rules have been read by then, so that nothing holds the verdict back.
    #[test]
    fn the_sender_s_own_event_comes_after_the_receiver_s() {
        let mut stream = Stream::new();
        stream.connect().established().drop(TcpFlags(0x18), "NETFILTER_DROP", POD);
        stream.push(firewall(POD, Vec::new())).wait_ms(20);
        stream.reset_received(TcpState::Established, 0).reset_sent(TcpFlags(0), false, Some("app"));
        stream.state(TcpState::Established, TcpState::Close, 104, (200, 101, 0));
        assert_eq!(stream.labels(), ["mid_stream_rst"]);
    }
}
