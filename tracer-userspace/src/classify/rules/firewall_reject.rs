//! A netfilter rule answered for this flow with a RST or an ICMP error.

use super::super::evidence::{is_netfilter, netfilter_hook, of_drop, of_icmp, of_reset_received, of_state};
use super::{Case, Finding, Label, enter, in_handshake, in_namespace, outbound};
use crate::event::{Icmp, PacketDrop, TcpState};
use crate::record::Evidence;

/// The rule.
pub(in super::super) fn find(case: &Case<'_>) -> Option<Finding> {
    if !in_handshake(case) {
        return None;
    }
    let dropped = case.attempt.drops().find(|(_, d)| d.flags.is_syn() && outbound(case, d) && is_netfilter(d));
    by_icmp(case, dropped).or_else(|| by_reset(case, dropped?)).or_else(|| by_error(case, dropped?))
}

/// An ICMP error about the SYN. Port unreachable is never sent by the TCP stack itself; the others
/// are a rule's only if netfilter dropped the packet.
fn by_icmp(case: &Case<'_>, dropped: Option<(u64, &PacketDrop)>) -> Option<Finding> {
    let (time, icmp) = case
        .attempt
        .icmp()
        .find(|(_, i)| i.flags.is_syn() && is_unreachable(i) && (is_port_unreachable(i) || dropped.is_some()))?;
    let mut seen = vec![of_icmp(time, icmp)];
    seen.extend(dropped.map(|(time, drop)| of_drop(time, drop)));
    let netns = icmp.netns.or_else(|| dropped.and_then(|(_, d)| d.netns));
    Some(finding(
        case,
        seen,
        &format!("{} type {} code {}", if icmp.v6 { "ICMPv6" } else { "ICMP" }, icmp.icmp_type, icmp.code),
        netns,
        dropped.map(|d| d.1),
    ))
}

/// Netfilter dropped the SYN and yet a RST came for it.
fn by_reset(case: &Case<'_>, (time, drop): (u64, &PacketDrop)) -> Option<Finding> {
    let (at, reset) = case.attempt.reset_received().filter(|(_, r)| r.state == TcpState::SynSent)?;
    let seen = vec![of_drop(time, drop), of_reset_received(at, reset)];
    Some(finding(case, seen, "a RST", drop.netns, Some(drop)))
}

/// Netfilter dropped the SYN and the socket then failed with "connection refused" without a RST: an
/// ICMP error came, which this kernel has no hook for (ICMPv6 with tracepoints only).
fn by_error(case: &Case<'_>, (time, drop): (u64, &PacketDrop)) -> Option<Finding> {
    let (ended, _) = case.attempt.ended?;
    let refused = case.attempt.errno() == Some(libc::ECONNREFUSED) && case.attempt.reset_received().is_none();
    let state = case.attempt.last.as_ref().filter(|_| refused)?;
    let seen = vec![of_drop(time, drop), of_state(ended, state)];
    Some(finding(case, seen, "an ICMP error", drop.netns, Some(drop)))
}

fn finding(
    case: &Case<'_>,
    mut seen: Vec<Evidence>,
    answer: &str,
    netns: Option<crate::event::Netns>,
    drop: Option<&PacketDrop>,
) -> Finding {
    seen.sort_by_key(|e| e.time_boot_ns);
    let hook = drop.and_then(netfilter_hook).map(|h| format!(" at {h}")).unwrap_or_default();
    let summary = format!(
        "a netfilter rule{hook}{} rejected the SYN to {} with {answer}",
        in_namespace(case, netns),
        case.attempt.flow.dst
    );
    let remediation = format!(
        "{}find the reject rule for port {} (nft list ruleset; iptables-save) and allow {} in that chain",
        enter(case, netns),
        case.attempt.flow.dst.port(),
        case.attempt.flow.src.ip()
    );
    Finding::failure(Label::FirewallReject, seen, summary, remediation)
}

const fn is_unreachable(icmp: &Icmp) -> bool {
    icmp.icmp_type == if icmp.v6 { 1 } else { 3 }
}

const fn is_port_unreachable(icmp: &Icmp) -> bool {
    icmp.code == if icmp.v6 { 4 } else { 3 }
}

#[cfg(test)]
mod tests {
    use crate::event::TcpState;
    use crate::testing::{POD, SYN, Stream};

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
        assert_eq!(Stream::new().connect().icmp(3, 1).gives_up().labels(), ["unexplained"]);
    }
}
