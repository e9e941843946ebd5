//! A bridge that does not know the port of an address floods the packet to all of its ports. What drops a copy at the
//! port of another pod has no part in the failure. Nor has what drops a packet in a namespace that is not on the way.

use crate::drop_reason::{netfilter_hook, place_of};
use tracer_attempts::correlate::attempt::Attempt;
use tracer_attempts::correlate::node::Node;
use tracer_model::event::{Inspection, LinkState, Netns, PacketDrop, ProgramPlace, StrayRoute};

/// The packet was dropped on the link of another pod, or in a namespace that is not on the way.
pub fn is_at_other_link(attempt: &Attempt, node: &Node, drop: &PacketDrop) -> bool {
    if is_dropped_astray(attempt, node, drop) {
        return true;
    }
    let Some(own) = is_copied(attempt, drop).then(|| own_link(attempt, node)).flatten() else { return false };
    let is_at_end = pod_link(attempt, node, drop).is_some_and(|link| link.ifindex != own.ifindex);
    is_at_end || is_in_other_pod(attempt, node, drop)
}

/// The packet was dropped on the link of a pod, or another namespace forwarded it, and it is not known whether that is
/// the way to the target. What answered a copy (`answered`) ended the attempt.
pub(crate) fn may_be_at_other_link(attempt: &Attempt, node: &Node, drop: &PacketDrop, answered: bool) -> bool {
    let by_bridge = || !answered && pod_link(attempt, node, drop).is_some() && own_link(attempt, node).is_none();
    is_copied(attempt, drop) && (by_bridge() || may_be_astray(attempt, node, drop))
}

/// A third namespace dropped the packet, and the prober's route leads to another link than the target's. A gateway that
/// leads to the target is on that link.
pub fn is_dropped_astray(attempt: &Attempt, node: &Node, drop: &PacketDrop) -> bool {
    let dst = attempt.flow.dst.ip();
    let has_address = |netns| node.pods.in_netns(netns).is_some_and(|pod| pod.addrs.contains(&dst));
    let is_forwarded = netfilter_hook(drop) != Some("INPUT") && drop.reason.as_deref() != Some("NO_SOCKET");
    let Some(netns) = third_namespace(attempt, node, drop).filter(|_| is_forwarded) else { return false };
    let last = readings(attempt, node).next().filter(|it| it.netns != Some(netns));
    let leads_astray =
        last.and_then(|it| it.stray_route.as_ref()).is_some_and(|stray| !way_has_worked(attempt, node, stray));
    is_copied(attempt, drop) && attempt.established.is_none() && leads_astray && !has_address(netns)
}

/// The namespace that dropped the packet, if it is neither the prober's nor a node's. A node forwards for its pods and for
/// other nodes.
fn third_namespace(attempt: &Attempt, node: &Node, drop: &PacketDrop) -> Option<Netns> {
    drop.netns.filter(|netns| Some(*netns) != attempt.netns && !node.is_a_node(*netns))
}

/// A probe has succeeded over that route.
pub fn way_has_worked(attempt: &Attempt, node: &Node, stray: &StrayRoute) -> bool {
    let dst = attempt.flow.dst;
    let mut all = node.targets.inspections(attempt);
    all.any(|(at, it)| it.stray_route.as_ref() == Some(stray) && node.has_succeeded_since(dst, at))
}

/// No reading shows yet where the prober's route leads.
fn may_be_astray(attempt: &Attempt, node: &Node, drop: &PacketDrop) -> bool {
    let is_target = || attempt.netns.and_then(|from| node.netns_of_addr(from, attempt.flow.dst.ip())) == drop.netns;
    let may_be_forwarded = match netfilter_hook(drop) {
        Some("FORWARD" | "POSTROUTING") => true,
        Some("PREROUTING") => !is_target(),
        _ => false,
    };
    may_be_forwarded
        && third_namespace(attempt, node, drop).is_some()
        && node.has_pod(attempt.flow.dst.ip())
        && readings(attempt, node).next().is_none()
}

/// The readings of the target's namespace while the attempt waited, latest first.
fn readings<'a>(attempt: &'a Attempt, node: &'a Node) -> impl Iterator<Item = &'a Inspection> {
    let all = node.targets.inspections(attempt);
    all.filter(|(time, it)| attempt.overlaps(*time) && it.netns.is_some()).map(|(_, it)| it)
}

/// A packet to the target as it was sent: an address translation may lead another one to another pod.
fn is_copied(attempt: &Attempt, drop: &PacketDrop) -> bool {
    attempt.leads_out(drop.flow) && drop.flow.dst == attempt.flow.dst
}

/// The node's end of the target's link.
fn own_link<'a>(attempt: &Attempt, node: &'a Node) -> Option<&'a LinkState> {
    let (from, dst) = (attempt.netns?, attempt.flow.dst);
    let mut readings = node.targets.inspections(attempt);
    let (_, reading) =
        readings.find(|(_, it)| it.netns.is_some_and(|netns| netns != from && !node.has_ended(netns)))?;
    // IPv6 addresses are lost with their link.
    let own = reading.link_with(dst.ip());
    let mut linked = reading.links.iter().filter(|link| link.peer_ifindex.is_some());
    let only = || linked.next().filter(|_| linked.next().is_none());
    let link = own.or_else(only)?;
    node.links.by_index(from, link.peer_ifindex?).filter(|end| end.peer_ifindex == Some(link.ifindex))
}

/// The link over which the packet was to leave for the namespace of a pod, if it was dropped below IP.
fn pod_link<'a>(attempt: &Attempt, node: &'a Node, drop: &PacketDrop) -> Option<&'a LinkState> {
    let from = attempt.netns.filter(|from| drop.netns == Some(*from))?;
    let by_bridge = || drop.stack.iter().any(|function| function.starts_with("br_nf_"));
    let is_below_ip = matches!(netfilter_hook(drop), Some("BRIDGE" | "EGRESS"))
        || place_of(drop) == Some(ProgramPlace::TcEgress)
        || by_bridge();
    let link = node.links.by_index(from, drop.device.as_ref()?.ifindex).filter(|_| is_below_ip)?;
    // Both ends of a pair that joins two bridges are in the node's namespace.
    let end = node.links.by_index(from, link.peer_ifindex?);
    end.is_none_or(|end| end.peer_ifindex != Some(link.ifindex)).then_some(link)
}

/// Another pod's namespace dropped the packet before its stack saw that the packet is for another host.
fn is_in_other_pod(attempt: &Attempt, node: &Node, drop: &PacketDrop) -> bool {
    let at_arrival = netfilter_hook(drop) == Some("INGRESS")
        || matches!(place_of(drop), Some(ProgramPlace::TcIngress | ProgramPlace::Xdp));
    let pod = drop.netns.filter(|_| at_arrival).and_then(|netns| node.pods.in_netns(netns));
    let dst = attempt.flow.dst.ip();
    let own = attempt.netns.and_then(|from| node.netns_of_addr(from, dst));
    own != drop.netns && pod.is_some_and(|pod| !pod.host_network && !pod.addrs.contains(&dst))
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    /// The pods' links on the node are v2, of the target, and v3.
    fn on_bridge(read: bool) -> Stream {
        let port = |ifindex, name| LinkState { peer_ifindex: Some(2), ..link(ifindex, name, &[]) };
        let mut stream = Stream::new();
        stream.node_links(vec![link(2, "cni0", &["10.88.0.1"]), port(4, "v2"), port(5, "v3")]);
        if read {
            inspect(&mut stream, None);
        }
        stream.connect();
        stream
    }

    /// The pod is behind v2.
    fn inspect(stream: &mut Stream, stray_route: Option<StrayRoute>) {
        let own = LinkState { peer_ifindex: Some(4), ..link(2, "eth0", &["10.88.0.2"]) };
        stream.inspection(|reading| (reading.links, reading.stray_route) = (vec![own], stray_route));
    }

    fn decided(read: bool, fill: impl FnOnce(&mut PacketDrop)) -> (&'static str, Confidence) {
        let mut stream = on_bridge(read);
        stream.drop_with(SYN, NODE, fill);
        let deny = FirewallRule { hooks: vec!["BRIDGE".into()], ..rule("ports", RuleVerdict::Drop) };
        stream.push(firewall(NODE, vec![deny])).gives_up().decided()
    }

    fn by_rule(drop: &mut PacketDrop, device: Device) {
        (drop.reason, drop.device) = (Some("NETFILTER_DROP".into()), Some(device));
        drop.stack = vec!["nf_hook_slow".into(), "__br_forward".into(), "br_flood".into()];
    }

    #[test]
    fn a_copy_that_a_rule_for_another_port_drops_decides_nothing() {
        let (own, other) = (|| device(4, "v2"), || device(5, "v3"));
        assert_eq!(decided(true, |drop| by_rule(drop, other())).0, "unexplained");
        assert_eq!(decided(true, |drop| by_rule(drop, own())), ("firewall_drop", Confidence::Proven));
        assert_eq!(decided(true, |drop| by_rule(drop, device(2, "cni0"))), ("firewall_drop", Confidence::Proven));
        for device in [own(), other()] {
            let unknown = decided(false, |drop| by_rule(drop, device));
            assert_eq!(unknown, ("firewall_drop", Confidence::Likely), "which link is the target's");
        }
    }

    /// The route to the pod is gone. The default route leads to a router, which is a namespace of this machine (kind).
    #[test]
    fn a_drop_in_a_namespace_that_is_not_on_the_way_decides_nothing() {
        let forward = || vec![FirewallRule { hooks: vec!["FORWARD".into()], ..rule("forward", RuleVerdict::Drop) }];
        let decided = |read: bool, netns: Netns, device: &str| {
            let mut stream = on_bridge(read);
            stream.http_readiness().filtered_at(SYN, netns, "ip_forward");
            stream.push(firewall(netns, forward())).wait_ms(200);
            inspect(&mut stream, (device != "v2").then(|| stray(device, "v2", 254)));
            stream.gives_up().all_decided()
        };
        for read in [true, false] {
            assert_eq!(decided(read, Netns(900), "eth0"), [("asymmetric_route", Confidence::Likely)], "{read}");
            assert_eq!(decided(read, NODE, "v2"), [("firewall_drop", Confidence::Proven)], "{read}");
        }
        // The router forwards to the pod, as earlier probes show.
        let mut worked = on_bridge(false);
        worked.http_readiness().established();
        inspect(&mut worked, Some(stray("eth0", "v2", 254)));
        worked.answers(200).wait_ms(5_000).again(8).connect().established().answers(200).wait_ms(5_000).again(9);
        worked.connect().filtered_at(SYN, Netns(900), "ip_forward").push(firewall(Netns(900), forward())).wait_ms(200);
        inspect(&mut worked, Some(stray("eth0", "v2", 254)));
        assert_eq!(worked.gives_up().last_decided(), ("firewall_drop", Confidence::Proven));
        // A node forwards what comes from other nodes.
        let links = vec![link(2, "eth0", &["10.99.0.1"])];
        let mut of_node = on_bridge(false);
        of_node.push(ObservationKind::Links(Links { netns: Netns(900), cookie: None, links })).http_readiness();
        of_node.filtered_at(SYN, Netns(900), "ip_forward").push(firewall(Netns(900), forward()));
        assert_eq!(of_node.gives_up().last_decided(), ("firewall_drop", Confidence::Proven));
        // The route leads over a gateway on the pod's own bridge.
        for read in [true, false] {
            assert_eq!(decided(read, Netns(900), "v2"), [("firewall_drop", Confidence::Proven)], "{read}");
        }
    }

    /// It drops before its own routing, so nothing shows whether it forwards. The pod's own namespace may be known.
    #[test]
    fn a_drop_on_arrival_in_a_namespace_that_may_be_a_router_is_only_likely() {
        let decided = |netns: Netns| {
            let mut stream = on_bridge(false);
            stream.http_readiness().pod_in(POD).filtered_at(SYN, netns, "ip_rcv");
            let arrival = FirewallRule { hooks: vec!["PREROUTING".into()], ..rule("pre", RuleVerdict::Drop) };
            stream.push(firewall(netns, vec![arrival])).gives_up().decided()
        };
        assert_eq!(decided(Netns(900)), ("firewall_drop", Confidence::Likely));
        assert_eq!(decided(POD), ("firewall_drop", Confidence::Proven));
    }

    /// No hook shows which stack sent the RST.
    #[test]
    fn a_rst_after_the_drop_of_a_copy_is_no_answer_of_the_rule() {
        let causes = |ifindex, name| {
            let mut stream = on_bridge(true);
            stream.drop_with(SYN, NODE, |drop| by_rule(drop, device(ifindex, name)));
            stream.reset_received(TcpState::SynSent, 0).push(firewall(NODE, Vec::new())).gives_up().causes()
        };
        assert_eq!((causes(4, "v2"), causes(5, "v3")), (vec!["firewall_reject"], vec!["handshake_rst"]));
    }

    /// The rule is read at once, and the target only after 200 ms.
    #[test]
    fn an_inspection_after_the_drop_of_a_copy_takes_the_verdict_back() {
        let mut stream = on_bridge(false);
        stream.drop_with(SYN, NODE, |drop| by_rule(drop, device(5, "v3")));
        let deny = FirewallRule { hooks: vec!["BRIDGE".into()], ..rule("ports", RuleVerdict::Drop) };
        stream.push(firewall(NODE, vec![deny])).wait_ms(200);
        inspect(&mut stream, None);
        assert_eq!(stream.gives_up().decided().0, "unexplained");
    }

    #[test]
    fn a_copy_that_a_program_at_another_port_drops_decides_nothing() {
        let at = |device| decided(true, |drop| (drop.reason, drop.device) = (Some("TC_EGRESS".into()), Some(device)));
        assert_eq!(at(device(5, "v3")).0, "unexplained");
        assert_eq!(at(device(4, "v2")).0, "network_policy_drop");
    }

    /// An address translation sends the SYN to another pod: that is its own link.
    #[test]
    fn a_translated_packet_is_no_copy() {
        let translated = decided(true, |drop| {
            by_rule(drop, device(5, "v3"));
            drop.flow.dst = address("10.88.0.3:8080");
        });
        assert_eq!(translated.0, "firewall_drop");
    }
}
