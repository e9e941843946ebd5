//! The pod's link is up, and its bridge does not lead to it.

use super::*;
use crate::rules::asymmetric_route;
use tracer_case::links::{self, is_wrong_bridge};

/// The node's route leads to a bridge with an address of the pod's subnet, and the node's end of the pod's link is a port
/// of no bridge, or was a port of that one and is one of another. An end with an address of its own is none of a bridge:
/// the pod has a route of its own.
pub(super) fn detached(case: &Case<'_>) -> Option<Finding> {
    let (time, stray) = asymmetric_route::stray_route(case)?;
    let (netns, dst) = (case.attempt.netns?, case.attempt.flow.dst.ip());
    let links = case.node.links.get(&netns)?;
    let named = |name: &str| links.iter().find(|link| link.name == name);
    let (bridge, end) = (named(&stray.device)?, named(&stray.pod_device)?);
    let left = left_bridge(case, netns, end.ifindex, Some(bridge.ifindex));
    let left = left.or_else(|| left_bridge(case, netns, end.ifindex, None).filter(|_| stray.detached));
    let pod = inspected(case)?.1.links.iter().find_map(|link| link.subnets().find(|own| own.addr == dst))?;
    let is_in_subnet = bridge.addrs.iter().any(|addr| *addr != dst && pod.holds(*addr));
    let is_link_local = |addr: &IpAddr| matches!(addr, IpAddr::V6(addr) if addr.is_unicast_link_local());
    let has_moved = left.is_some() && stray.pod_bridge.is_some();
    // A veth may join that one with the bridge of the route.
    let from = left.and_then(|(_, from)| case.node.links.by_index(netns, from)).unwrap_or(bridge);
    if !(stray.detached || has_moved) || !is_in_subnet || !end.addrs.iter().all(is_link_local) {
        return None;
    }
    let (device, to) = (&stray.pod_device, &from.name);
    let fields = json!({ "device": to, "pod_device": device });
    let text = match from.ifindex == bridge.ifindex {
        true => format!("{device} is not attached to {to}, to which the route to {dst} leads"),
        false => format!("{device} is not attached to {to}, and the route to {dst} leads to {}", bridge.name),
    };
    let mut evidence = vec![evidence_of("rtnetlink", time, text, fields.clone())];
    let words = left.map(|(at, _)| {
        evidence.insert(0, evidence_of("rtnetlink", at, format!("{device} has left {to}"), fields));
        let now = stray.pod_bridge.and_then(|other| case.node.links.by_index(netns, other));
        let now = now.map_or_else(String::new, |other| format!(", and is a port of {} now", other.name));
        let ago = match case.attempt.started.saturating_sub(at) / SECOND_NS {
            0 if at < case.attempt.started => "just before the attempt".to_owned(),
            0 => "during the attempt".to_owned(),
            seconds => format!("{seconds} s before the attempt"),
        };
        format!("; it left {to} {ago}{now}")
    });
    let summary = format!(
        "{device}{}, behind which the pod is, is not attached to {to}: {} cannot be reached over that bridge{}",
        in_namespace(case, Some(netns)),
        case.attempt.flow.dst,
        words.unwrap_or_default()
    );
    let fix = attach(case, netns, device, to);
    Some(Finding::likely(Cause::PodLinkDown, evidence, summary, fix).rests_on_lost_packet())
}

fn attach(case: &Case<'_>, netns: Netns, device: &str, to: &str) -> Remediation {
    let (bridge, link) = (shell::link(to), shell::link(device));
    Remediation::from(format!(
        "Attach {device} to {to} again (the last command), or delete the pod, so that its sandbox is made again. If that repeats, keep NetworkManager or systemd-networkd from managing the CNI's links"
    ))
    .run([format!("ip link show master {bridge}"), format!("ip link set {link} master {bridge} up")]
        .map(|command| run_in(case, Some(netns), command)))
}

/// The node's end of the pod's link left its bridge while the prober waited, and the answer is lost.
pub(super) fn detached_meanwhile(case: &Case<'_>) -> Option<Finding> {
    let (attempt, netns) = (case.attempt, case.attempt.netns?);
    let (waits, (ended, _)) = (attempt.established_at()?, attempt.ended?);
    held_answer(case).filter(|_| case.settled && is_lost_below_ip(case))?;
    let end = case.node.links.by_index(netns, links::node_end(case)?)?;
    let mut lost = case.node.links.lost_routes(netns, ended, (attempt.flow.dst.ip(), attempt.until()));
    let (at, from) = lost.find_map(|it| match it.why {
        LostBy::Bridge(from) if it.ifindex == end.ifindex && it.time >= waits => Some((it.time, from)),
        _ => None,
    })?;
    // The target had sent an answer again by then: something else had lost it.
    if attempt.retransmitted().any(|(time, segment)| segment.by_target && time < at) {
        return None;
    }
    let bridge = case.node.links.by_index(netns, from).filter(|_| end.master != Some(from))?;
    let (device, to) = (&end.name, &bridge.name);
    let evidence =
        evidence_of("rtnetlink", at, format!("{device} has left {to}"), json!({ "device": to, "pod_device": device }));
    let summary = format!(
        "{device}{}, behind which the pod is, left {to} while {} waited: the answer of {} cannot come over that bridge",
        in_namespace(case, Some(netns)),
        client_name(attempt),
        attempt.flow.dst
    );
    let fix = attach(case, netns, device, to);
    Some(Finding::likely(Cause::PodLinkDown, vec![evidence], summary, fix).rests_on_lost_packet())
}

const SECOND_NS: u64 = 1_000_000_000;

/// When the links were read for the first time after that end had left that bridge, or any, and which one, if no
/// connection to the target was established since.
fn left_bridge(case: &Case<'_>, netns: Netns, end: u32, bridge: Option<u32>) -> Option<(u64, u32)> {
    let mut lost = case.node.links.lost_routes(netns, u64::MAX, (case.attempt.flow.dst.ip(), case.attempt.until()));
    lost.find_map(|it| match it.why {
        LostBy::Bridge(from) if it.ifindex == end && bridge.is_none_or(|it| it == from) => Some((it.time, from)),
        _ => None,
    })
}

/// The bridge had no port that is up to send the packet to (`br_dev_xmit`, 6.12 and later). It floods packets to
/// unknown addresses, so no link behind it is up. Reported at the end only, because an inspection of the target names
/// the link. Answers do not count: they were sent to a link-layer address that nobody has.
pub(super) fn no_port(case: &Case<'_>) -> Option<Finding> {
    case.attempt.ended?;
    let no_port = |d: &PacketDrop| d.reason.as_deref() == Some("NO_TX_TARGET") && outbound(case, d);
    let (time, drop) = drops(case).find(|(_, d)| no_port(d))?;
    if !case.settled || !is_lost_below_ip(case) {
        return None;
    }
    let (netns, device) = (drop.netns?, drop.device.as_ref()?);
    if is_wrong_bridge(case, drop) {
        return None;
    }
    if let Some(change) = set_down_unread(case, time) {
        let link = (change.ifindex, change.name.as_str());
        let found = finding(case, vec![of_drop(time, drop)], change.netns, link, "is down");
        return Some(found.with_confidence(Confidence::Likely));
    }
    if let Some(port) = port_down(case, netns, device.ifindex) {
        let found = finding(case, vec![of_drop(time, drop)], netns, (port.ifindex, &port.name), "is down");
        return Some(found.with_confidence(Confidence::Likely));
    }
    let state = if pod_link_is_up(case) { "has no port that takes it" } else { "has no port that is up" };
    let found = finding(case, vec![of_drop(time, drop)], netns, (device.ifindex, &device.name), state);
    let bridge = shell::link(&device.name);
    let mut attach = Remediation::from(format!(
        "Attach the pod's link to {bridge} again, and set it up (ip link set LINK master {bridge} up). Or delete the pod, so that its sandbox is made again"
    ))
    .run([run_in(case, Some(netns), format!("ip link show master {bridge}"))]);
    if pod_link_is_up(case) {
        attach.text +=
            ". If it is attached, let its port learn and flood (bridge link set dev LINK learning on flood on)";
        attach = attach.run([run_in(case, Some(netns), "bridge -d link show".to_owned())]);
    }
    let remediation = if device.up { attach } else { found.remediation.clone() };
    Some(Finding { remediation, ..found.with_confidence(Confidence::Likely) })
}

/// The end of a veth between this bridge and the pod's own bridge that is down, unless another one joins them.
fn port_down<'a>(case: &Case<'a>, netns: Netns, bridge: u32) -> Option<&'a LinkState> {
    let link = |ifindex| case.node.links.by_index(netns, ifindex);
    let own = link(links::node_end(case)?)?.master.filter(|own| *own != bridge)?;
    let mut found = None;
    for port in case.node.links.get(&netns)?.iter().filter(|port| port.master == Some(bridge)) {
        let is_pair = |peer: &&LinkState| peer.master == Some(own) && peer.peer_ifindex == Some(port.ifindex);
        let Some(peer) = port.peer_ifindex.and_then(link).filter(is_pair) else { continue };
        found = Some([port, peer].into_iter().find(|end| !end.up)?);
    }
    found
}

/// Nobody answers for the target's address on a bridge, and the link to the pod's own bridge is down.
pub(super) fn between_bridges(case: &Case<'_>) -> Option<Finding> {
    let (time, reading) = inspected(case).filter(|_| case.settled && is_lost_below_ip(case))?;
    let entry = reading.unresolved_target()?;
    let port = port_down(case, reading.from, entry.ifindex)?;
    let text = format!("the neighbour entry of {} is {}", entry.addr, entry.state);
    let fields = json!({ "state": entry.state, "ifindex": entry.ifindex });
    let down = json!({ "ifindex": port.ifindex, "up": false });
    let down = evidence_of("rtnetlink", time, format!("{} is down", port.name), down);
    let evidence = vec![evidence_of("rtnetlink", time, text, fields), down];
    let found = finding(case, evidence, reading.from, (port.ifindex, &port.name), "is down");
    Some(found.with_confidence(Confidence::Likely))
}

/// Both ends of the pod's link were up. It is not attached to the bridge, or its port neither learns nor floods
/// (`br_flood`, net/bridge/br_forward.c).
fn pod_link_is_up(case: &Case<'_>) -> bool {
    let Some((_, reading)) = inspected(case) else { return false };
    let target = case.attempt.flow.dst.ip();
    let link = reading.link_with(target);
    reading.netns.is_some() && link.is_some_and(|link| link.up && link.running == Some(true))
}

#[cfg(test)]
mod tests;
