//! The links and routes between the prober and the pod.

use std::net::IpAddr;

use crate::case::{Case, inspected};
use crate::drop_reason::dropped_in;
use crate::phrases::run_in;
use tracer_model::event::{Inspection, LinkChange, LinkState, ListenQueue, Netns, PacketDrop, ParentLink, StrayRoute};
use tracer_model::record::Command;

/// The link of the target's pod that was set down last, if only one pod has the address. If a reading found that
/// address, or another one of the pod, on one of its links, no other link counts.
pub fn last_down_of_pod<'a>(case: &Case<'a>) -> Option<(u64, &'a LinkChange)> {
    let target = case.attempt.flow.dst.ip();
    let mut pods = case.node.pods.at(target).filter(|pod| !pod.host_network);
    let pod = pods.next()?;
    let (netns, is_only) = (case.node.pods.last_netns(pod)?, pods.next().is_none());
    let held = |addr: &IpAddr| case.node.targets.holder(case.attempt.netns?, *addr).filter(|(of, _)| *of == netns);
    let is_up = |link: &&LinkState| link.up && link.addrs.iter().any(|addr| pod.addrs.contains(addr));
    let read = || inspected(case).filter(|(_, it)| it.netns == Some(netns))?.1.links.iter().find(is_up);
    let link = [target].iter().chain(&pod.addrs).find_map(held).map(|(_, ifindex)| ifindex);
    let down = match link.or_else(|| Some(read()?.ifindex)) {
        Some(ifindex) => case.node.links.down(netns, ifindex),
        None => case.node.links.last_down(netns),
    };
    down.filter(|_| is_only).map(|(at, change)| (*at, change))
}

/// The bridge has other addresses than the packet is for: a route or a mark led the SYN there.
pub fn is_wrong_bridge(case: &Case<'_>, drop: &PacketDrop) -> bool {
    let place = drop.netns.zip(drop.device.as_ref());
    let link = place.and_then(|(netns, device)| case.node.links.by_index(netns, device.ifindex));
    link.is_some_and(|link| !link.prefixes.is_empty() && !link.covers(drop.flow.dst.ip()))
}

/// The receiving end of a veth did not take the packet. A macvlan or ipvlan hands its packets to its parent so, too.
pub fn is_at_other_end(case: &Case<'_>, drop: &PacketDrop) -> bool {
    let place = dropped_in(drop);
    let is_unspecified = drop.reason.as_deref().is_none_or(|reason| reason == "NOT_SPECIFIED");
    let is_refused = matches!(place, Some("__dev_forward_skb2" | "__dev_forward_skb" | "____dev_forward_skb"));
    is_unspecified && is_refused && !has_parent(case, drop)
}

fn has_parent(case: &Case<'_>, drop: &PacketDrop) -> bool {
    let is_its = |link: &LinkState| drop.device.as_ref().is_some_and(|device| device.ifindex == link.ifindex);
    let mut of_netns =
        case.node.targets.inspections(case.attempt).filter(|(_, it)| it.netns.is_some() && it.netns == drop.netns);
    of_netns.any(|(_, it)| it.links.iter().any(|link| is_its(link) && link.parent.is_some()))
}

/// The two ends of a veth are in different namespaces: the links of the one that did not drop the packet.
pub fn show_other_end(case: &Case<'_>, drop: &PacketDrop) -> Option<Command> {
    let pod = inspected(case).and_then(|(_, reading)| reading.netns);
    let other = [case.attempt.netns, pod].into_iter().flatten().find(|netns| Some(*netns) != drop.netns)?;
    Some(run_in(case, Some(other), "ip link"))
}

/// The target is behind a link. A packet to an address of the prober's own or a node's namespace goes over `lo`,
/// whatever the state of the link that holds it: the local table goes first, and keeps the address of a link that is
/// down. A packet that IPVS took went elsewhere, and a packet that met a listener arrived.
pub fn is_behind_a_link(case: &Case<'_>, reading: &Inspection) -> bool {
    let own = |netns: Netns| netns == reading.from || case.node.is_a_node(netns);
    let met = |queue| case.attempt.queue_full(queue).is_some();
    let arrived = case.attempt.ipvs().next().is_some() || met(ListenQueue::Accept) || met(ListenQueue::HalfOpen);
    !arrived && !reading.netns.is_some_and(own)
}

/// The link that holds the target's address, if it is down or has no carrier.
pub fn broken_link<'a>(reading: &'a Inspection, case: &Case<'_>) -> Option<(&'a LinkState, &'static str)> {
    let target = case.attempt.flow.dst.ip();
    let holds = |l: &&LinkState| l.addrs.contains(&target);
    let mut links = reading.links.iter().filter(|l| !l.loopback);
    let link = links.clone().find(holds).or_else(|| links.find(|link| has_lost_target(link, reading, case)))?;
    match (link.up, link.running) {
        (false, _) => Some((link, "is down")),
        (true, Some(false)) => Some((link, without_carrier(link))),
        _ => None,
    }
}

/// When the target's link, or its other end on the node, was set down.
pub(crate) fn went_down(case: &Case<'_>, reading: &Inspection) -> Option<u64> {
    let (link, _) = broken_link(reading, case)?;
    let own = reading.netns.map(|netns| (netns, link.ifindex));
    own.into_iter()
        .chain(node_link(case, link))
        .find_map(|(netns, ifindex)| Some(case.node.links.down(netns, ifindex)?.0))
}

/// The kernel removes IPv6 addresses when their link goes down. This link is down, and held the address when it was
/// last read. If that is not known, the link was set down, or is the only one. Others may never have been up: tunl0,
/// ip6tnl0 and the like are made in every namespace.
fn has_lost_target(link: &LinkState, reading: &Inspection, case: &Case<'_>) -> bool {
    let (Some(netns), target) = (reading.netns, case.attempt.flow.dst.ip()) else { return false };
    let held = match case.node.targets.holder(reading.from, target).filter(|(place, _)| *place == netns) {
        Some((_, ifindex)) => ifindex == link.ifindex,
        None => {
            case.node.links.down(netns, link.ifindex).is_some()
                || reading.links.iter().filter(|l| !l.loopback).count() == 1
        }
    };
    target.is_ipv6() && !link.up && held
}

/// Why a link has no carrier. Only a veth has another end.
fn without_carrier(link: &LinkState) -> &'static str {
    match link.kind.as_deref() {
        Some("bridge") => "has no carrier: it is a bridge, and none of its ports is up",
        Some("bond" | "team") => "has no carrier: it is a bond, and none of its links is up",
        None if link.peer_ifindex.is_some() => "has no carrier: its other end is down",
        _ => "has no carrier",
    }
}

/// The link of the node that gives this one its carrier: its other end, or the parent of a macvlan or ipvlan.
pub fn node_link(case: &Case<'_>, link: &LinkState) -> Option<(Netns, u32)> {
    let node = case.node.netns()?;
    let is_of_node = |parent: &&ParentLink| parent.is_of_prober && case.attempt.netns == Some(node);
    let parent = || Some(link.parent.as_ref().filter(is_of_node)?.ifindex);
    Some((node, link.peer_ifindex.or_else(parent)?))
}

/// The node's end of the link behind which the pod is, as the last inspection found it.
pub fn node_end(case: &Case<'_>) -> Option<u32> {
    let mut readings = case.node.targets.inspections(case.attempt);
    readings.find_map(|(_, reading)| reading.link_with(case.attempt.flow.dst.ip())?.peer_ifindex)
}

/// An attempt began after that route was read, and succeeded: the gateway there can lead back to the prober.
pub fn way_back_has_worked(case: &Case<'_>, stray: &StrayRoute) -> bool {
    let dst = case.attempt.flow.dst;
    let mut readings = case.node.targets.inspections(case.attempt);
    readings.any(|(at, it)| it.stray_way_back.as_ref() == Some(stray) && case.node.has_succeeded_since(dst, at))
}

/// No link of the attempt's namespace has a loopback address of the target's family, and `lo` is up.
pub fn lacks_loopback(case: &Case<'_>) -> bool {
    let dst = case.attempt.flow.dst.ip();
    let Some(links) = case.attempt.netns.and_then(|netns| case.node.links.get(&netns)) else { return false };
    let is_own = |addr: &IpAddr| addr.is_loopback() && addr.is_ipv4() == dst.is_ipv4();
    dst.is_loopback()
        && links.iter().any(|link| link.loopback && link.up)
        && !links.iter().any(|link| link.addrs.iter().any(is_own))
}
