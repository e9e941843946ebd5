//! The pod's link, or the node's link to it, is down; or the pod's network namespace is gone.

mod bridge;
mod without_address;

use std::net::IpAddr;

use self::bridge::{between_bridges, detached, detached_meanwhile, no_port};
use self::without_address::without_address;
use super::*;
use tracer_attempts::correlate::links::{FLAG_LAG_NS, LostBy};
use tracer_case::culprit;
use tracer_case::drop_reason::{self, place_of};
use tracer_case::giving_up::was_down_for_long;
use tracer_case::held_answer::held_answer;
use tracer_case::links::{broken_link, is_behind_a_link, last_down_of_pod, node_link};
use tracer_case::netfilter::is_needed;
use tracer_case::router::by_router;
use tracer_model::event::{Inspection, LinkChange, LinkState, NeighbourState, Netns, PacketDrop, Pod, Prefix};

pub(super) fn find(case: &Case<'_>) -> Option<Finding> {
    if !in_handshake(case) {
        let down = dropped(case).or_else(|| by_inspection(case).filter(|_| is_cut_off(case)));
        return down.or_else(|| detached_meanwhile(case));
    }
    let down = dropped(case).or_else(|| by_inspection(case)).or_else(|| known_down(case)).or_else(|| no_route(case));
    let down = down.or_else(|| detached(case)).or_else(|| no_port(case)).or_else(|| between_bridges(case));
    down.or_else(|| without_address(case))
}

/// After the handshake, the request or its answer was lost, or no answer could come.
fn is_cut_off(case: &Case<'_>) -> bool {
    let attempt = case.attempt;
    let in_time = |time: u64| attempt.ended.is_some_and(|(ended, _)| time <= ended);
    let sent_again = || attempt.retransmitted().any(|(time, segment)| segment.by_target && in_time(time));
    let dropped = || drops(case).any(|(time, drop)| is_needed(case, time, drop));
    held_answer(case).is_some() || attempt.failed_by_itself() && sent_again() || dropped() || was_down_for_long(case)
}

/// A packet that this attempt needed was dropped on a device that is down. After the end, the kernel may still drop a
/// packet that waited for a link-layer address.
fn dropped(case: &Case<'_>) -> Option<Finding> {
    let in_time = |time: u64| case.attempt.ended.is_none_or(|(ended, _)| time <= ended);
    let (time, drop) = drops(case)
        .filter(|(time, d)| is_unanswered(case, *time) && in_time(*time) && is_needed(case, *time, d))
        .find(|(_, d)| d.netns.is_some() && d.device.as_ref().is_some_and(|dev| !dev.up && !dev.loopback))?;
    let (netns, device) = (drop.netns?, drop.device.as_ref()?);
    Some(finding(case, vec![of_drop(time, drop)], netns, (device.ifindex, &device.name), "is down"))
}

/// An inspection during the attempt found the target's link down, or no namespace that has its address.
fn by_inspection(case: &Case<'_>) -> Option<Finding> {
    if !case.settled || !is_lost_below_ip(case) {
        return None;
    }
    inspections(case).find_map(|(time, reading)| by_reading(case, time, reading))
}

/// No inspection came in time, and nobody answered for the target's link-layer address. An earlier inspection shows which
/// link the target has. It was set down and is not up again, or the node's end of it is down.
fn known_down(case: &Case<'_>) -> Option<Finding> {
    let dst = case.attempt.flow.dst;
    let is_read = inspected(case).is_some_and(|(_, reading)| reading.netns.is_some());
    let unresolved = |drop: &PacketDrop| drop_reason::is_unresolved(drop) && drop.flow.dst == dst;
    if is_read || !drops(case).all(|(_, drop)| unresolved(drop)) {
        return None;
    }
    let (time, drop) = drops(case).next()?;
    let lives = |reading: &Inspection| reading.netns.is_some_and(|netns| !case.node.has_ended(netns));
    let (_, reading) = case.node.targets.inspections(case.attempt).find(|(_, reading)| lives(reading))?;
    let link = reading.link_with(dst.ip()).filter(|_| is_behind_a_link(case, reading))?;
    let set_down = |of: &(Netns, &LinkState)| Some(case.node.links.down(of.0, of.1.ifindex)?.0);
    let is_later = |of: &_| set_down(of).is_some_and(|at| at > time);
    // Not every kernel shows that a link was set up again.
    let just_now = |of: &_| set_down(of).is_some_and(|at| time < at.saturating_add(FLAG_LAG_NS));
    let peer = peer_down(case, time, link).filter(|it| !is_later(it));
    let is_own = |it: &_| just_now(it) || set_down(it).is_some() && !has_carrier(case, link);
    let own = || reading.netns.zip(Some(link)).filter(|it| !is_later(it) && is_own(it));
    let (netns, down) = peer.or_else(own)?;
    let found = finding(case, vec![of_drop(time, drop)], netns, (down.ifindex, &down.name), "is down");
    Some(found.with_confidence(Confidence::Likely))
}

fn by_reading(case: &Case<'_>, time: u64, reading: &Inspection) -> Option<Finding> {
    if !is_behind_a_link(case, reading) {
        return None;
    }
    let is_last = || inspected(case).is_some_and(|(last, _)| last == time);
    // Without links they were not read.
    let has_it = || reading.links.is_empty() || reading.link_with(reading.target.ip()).is_some();
    let found = match reading.netns {
        Some(_) if is_last() && !has_it() && broken_link(reading, case).is_none() => lost_link(case, time, reading)?,
        Some(netns) => {
            let (link, state) = broken_link(reading, case)?;
            let text = format!("link {} of the target's namespace {state}", link.name);
            let fields = json!({ "ifindex": link.ifindex, "name": link.name, "up": link.up, "running": link.running });
            let evidence = vec![evidence_of("rtnetlink", time, text, fields)];
            match peer_down(case, time, link) {
                Some((node, peer)) => finding(case, evidence, node, (peer.ifindex, &peer.name), "is down"),
                None => {
                    let found = finding(case, evidence, netns, (link.ifindex, &link.name), state);
                    if link.up { restore_carrier(case, netns, link, found) } else { found }
                }
            }
        }
        None if reading.ambiguous || !is_last() => return None,
        None => lost_link(case, time, reading).or_else(|| gone(case, time, reading))?,
    };
    Some(found.with_confidence(Confidence::Likely))
}

/// The packets of the last SYN were lost below IP at most: neither netfilter nor a socket or a router refused one. A
/// device without carrier has a queue that drops all packets (`noop_enqueue`, net/sched/sch_generic.c).
fn is_lost_below_ip(case: &Case<'_>) -> bool {
    let may_be = |reason: &str| {
        matches!(reason, "NO_TX_TARGET" | "NEIGH_FAILED" | "NEIGH_DEAD" | "DEV_READY" | "QDISC_DROP" | "NOT_SPECIFIED")
    };
    // Before 5.17 only the place of a drop shows it.
    let is_elsewhere = |d: &PacketDrop| {
        let by_socket = d.flags.is_syn() && is_at_socket(d);
        drop_reason::may_be_rp_filter(d) || by_socket || drop_reason::is_routing(d) || place_of(d).is_some()
    };
    let is_below = |d: &PacketDrop| d.reason.as_deref().map_or_else(|| !is_elsewhere(d), may_be);
    let below = |d: &PacketDrop| is_below(d) && !is_netfilter(d);
    let attempt = case.attempt;
    drops(case).all(|(at, d)| below(d) || !in_time(case, at))
        && !attempt.icmp().any(|(at, _)| in_time(case, at))
        && attempt.reset_received().is_none()
}

/// The node's end of this link has a carrier: then this one is up.
fn has_carrier(case: &Case<'_>, link: &LinkState) -> bool {
    let other = node_link(case, link).and_then(|(node, index)| case.node.links.by_index(node, index));
    other.is_some_and(|it| it.peer_ifindex == Some(link.ifindex) && it.up && it.running == Some(true))
}

/// That link of the node, if it is down. tracer observes the change a moment before the flag is off, so a reading in
/// between has the old flag. Not every kernel shows that a link was set up again: a later reading does.
fn peer_down<'a>(case: &Case<'a>, time: u64, link: &LinkState) -> Option<(Netns, &'a LinkState)> {
    let (node, index) = node_link(case, link).filter(|_| link.up)?;
    let just_now = |at: u64| (at..at.saturating_add(FLAG_LAG_NS)).contains(&time);
    let is_down = |l: &&LinkState| !l.up || case.node.links.down(node, l.ifindex).is_some_and(|(at, _)| just_now(*at));
    // The other end may be in another namespace, where the index is that of another link.
    let is_pair = |l: &&LinkState| link.peer_ifindex.is_none() || l.peer_ifindex == Some(link.ifindex);
    let peer = case.node.links.by_index(node, index).filter(is_pair).filter(is_down)?;
    Some((node, peer))
}

/// The link itself is up already, and its other end is not known, or it has none.
fn restore_carrier(case: &Case<'_>, netns: Netns, link: &LinkState, found: Finding) -> Finding {
    let (device, quoted) = (&link.name, shell::link(&link.name));
    let (what, show) = match link.kind.as_deref() {
        Some("bridge" | "bond" | "team") => {
            (format!("Attach the link that belongs to {device} again, and set it up"), "ip link show master")
        }
        None if link.peer_ifindex.is_some() => (
            format!(
                "Set the other end of {device} up: its index is the number after `@if` in the name of {device}, in another namespace"
            ),
            "ip link show",
        ),
        _ => {
            (format!("Find why {device} has no carrier: the network card or the program behind it"), "ip -d link show")
        }
    };
    let text = format!("{what}. Or delete the pod, so that its sandbox is made again");
    let show = run_in(case, Some(netns), format!("{show} {quoted}"));
    Finding { remediation: Remediation::from(text).run([show]), ..found }
}

/// The link that held the address, or one of the pod's namespace, was set down or removed, and no namespace has the
/// address any more. The state of the neighbour entry shows only later that nobody answers. The entry itself goes with
/// the carrier of its bridge: if the link went after the handshake, none is needed.
fn lost_link(case: &Case<'_>, time: u64, reading: &Inspection) -> Option<Finding> {
    let target = reading.target.ip();
    let held = case.node.targets.holder(reading.from, target);
    let held = held.and_then(|(netns, ifindex)| case.node.links.down(netns, ifindex));
    let (at, change) = held.map(|(at, change)| (*at, change)).or_else(|| last_down_of_pod(case))?;
    let entry = reading.neighbour.as_ref().filter(|entry| entry.addr == target);
    let answers = |entry| confirmed_at(time, entry).is_some_and(|it| it > at.saturating_add(READING_NS));
    let went_later = || case.attempt.established_at().is_some_and(|established| established <= at);
    if entry.map_or_else(|| !went_later(), answers) {
        return None;
    }
    // The kernel removes the links of a namespace that ends.
    if case.node.has_ended(change.netns) {
        return gone_pod(case, time);
    }
    if culprit::is_removal(case.node, change) {
        return Some(removed(case, time, at, change));
    }
    let link = (change.ifindex, change.name.as_str());
    let found = finding(case, vec![no_address(case, time)], change.netns, link, "is gone or down");
    let by_kernel = || culprit::FIX_BY_KERNEL.to_owned();
    let after = found.culprit.as_ref().map_or_else(by_kernel, |culprit| culprit::fix(case.node, change, culprit));
    let remediation = Remediation::from(format!("Delete the pod, so that its sandbox is made again{after}"));
    Some(Finding { remediation: remediation.run(delete(case)), ..found }.resting_on(&[Hook::KfreeSkb]))
}

/// When somebody last answered for the address.
fn confirmed_at(time: u64, entry: &NeighbourState) -> Option<u64> {
    entry.confirmed_ms_ago.map(|ms| time.saturating_sub(ms.saturating_mul(1_000_000)))
}

/// How much later than the neighbour entry the reading with it may be.
const READING_NS: u64 = 1_000_000_000;

/// A pod of this node is listed with the address, but no namespace of this node has it, and no namespace of that pod is
/// known to exist. Nobody on the link answers for the address either: a pod with a network stack of its own (gVisor)
/// has removed its address from the device, and answers. Of a pod that is being deleted, an answer before the attempt
/// does not count.
fn gone(case: &Case<'_>, time: u64, reading: &Inspection) -> Option<Finding> {
    let target = reading.target.ip();
    let pods = || case.node.pods.at(target).filter(|pod| !pod.host_network);
    let lives = |pod: &Pod| pod.netns.is_some_and(|netns| !case.node.has_ended(netns));
    let entry = reading.neighbour.as_ref().filter(|entry| entry.addr == target)?;
    let before = || confirmed_at(time, entry).is_some_and(|confirmed| confirmed < case.attempt.started);
    let silent = entry.is_unresolved() || before() && pods().any(|pod| pod.deleting);
    if silent && !pods().any(lives) { gone_pod(case, time) } else { None }
}

fn gone_pod(case: &Case<'_>, time: u64) -> Option<Finding> {
    let target = case.attempt.flow.dst.ip();
    let pod = case.node.pods.at(target).find(|pod| !pod.host_network)?;
    let name = pod.full_name().map_or_else(|| "a pod".to_owned(), |name| format!("pod {name}"));
    let summary = format!(
        "the network namespace of {name} is gone, or has lost its address: nobody on this node has {target} any more"
    );
    let text = "Delete the pod, so that its sandbox is made again. The container runtime's log says why it is gone";
    let remediation = Remediation::from(text).run([runtime_log()]).run(delete(case));
    let evidence = vec![no_address(case, time)];
    Some(Finding::failure(Cause::PodLinkDown, evidence, summary, remediation).resting_on(&[Hook::KfreeSkb]))
}

/// The kernel removed the pod's namespace.
fn removed(case: &Case<'_>, time: u64, at: u64, change: &LinkChange) -> Finding {
    let (target, place) = (case.attempt.flow.dst.ip(), in_namespace(case, Some(change.netns)));
    let summary = format!(
        "the kernel removed the links{place}, as it does when the last process of a network namespace has ended: nobody on this node has {target} any more"
    );
    let evidence = vec![culprit::evidence(at, change), no_address(case, time)];
    Finding::failure(Cause::PodLinkDown, evidence, summary, find_end(case)).resting_on(&[Hook::KfreeSkb])
}

fn find_end(case: &Case<'_>) -> Remediation {
    let text = "Find why the pod ended, if it was not deleted: the logs of the container runtime and the kubelet say it. If the pod is to run, delete it, so that its sandbox is made again";
    Remediation::from(text).run([runtime_log()]).run(delete(case))
}

fn runtime_log() -> Command {
    Command::on_node("journalctl -u kubelet -u containerd -u crio --since=-10min")
}

/// The command that deletes the pod with the target's address, if its name is known.
fn delete(case: &Case<'_>) -> Option<Command> {
    let pod = case.node.pods.only_at(case.attempt.flow.dst.ip()).filter(|pod| !pod.host_network)?;
    let (namespace, name) = (shell::word(pod.namespace.as_deref())?, shell::word(pod.name.as_deref())?);
    Some(Command::in_cluster(format!("kubectl delete pod -n {namespace} {name}")))
}

fn no_address(case: &Case<'_>, time: u64) -> Evidence {
    let target = case.attempt.flow.dst.ip();
    let text = format!("no network namespace of this node has the address {target}");
    evidence_of("namespaces", time, text, json!({ "address": target }))
}

/// Why the packets of an attempt do not get to the link of the node behind which its target is.
struct LostRoute {
    time: u64,
    evidence: Vec<Evidence>,
    /// The index of that link; absent: the link with the target's subnet, the smallest one if there are several.
    link: Option<u32>,
}

/// The node's link to the target's subnet is down: the kernel removed the route with it. A wider route is left, or none.
fn no_route(case: &Case<'_>) -> Option<Finding> {
    let (netns, dst) = (case.attempt.netns?, case.attempt.flow.dst.ip());
    let links = case.node.links.get(&netns)?;
    let lost = failed_connect(case).or_else(|| astray(case)).or_else(|| refused_elsewhere(case))?;
    let just_before = |at: u64| (at..at.saturating_add(FLAG_LAG_NS)).contains(&lost.time);
    let set_down = |l: &LinkState| case.node.links.down(netns, l.ifindex).is_some_and(|(at, _)| just_before(*at));
    let is_down = |l: &&LinkState| !l.up || set_down(l);
    let prefix = |l: &LinkState| case.node.links.prefix_of(netns, l, dst);
    let link = match lost.link {
        Some(ifindex) => links.iter().find(|l| l.ifindex == ifindex),
        None => {
            let with_subnet = links.iter().filter(|l| !l.loopback && prefix(l).is_some());
            with_subnet.max_by_key(|l| (prefix(l), !is_down(l)))
        }
    };
    let link = link.filter(is_down)?;
    let mut evidence = lost.evidence;
    if !link.up {
        let role = if prefix(link).is_some() { ", which has its subnet," } else { "" };
        let text = format!("link {} of the node{role} is down", link.name);
        let fields = json!({ "ifindex": link.ifindex, "name": link.name, "up": link.up });
        evidence.push(evidence_of("rtnetlink", lost.time, text, fields));
    }
    let mut found = finding(case, evidence, netns, (link.ifindex, &link.name), "is down");
    if prefix(link).is_some() {
        found.summary += "; the route went with it";
    }
    Some(found.with_confidence(Confidence::Likely))
}

/// `connect` found no route.
fn failed_connect(case: &Case<'_>) -> Option<LostRoute> {
    let (time, failed) = case.attempt.connect_failed_at().filter(|(_, failed)| failed.errno == libc::ENETUNREACH)?;
    let text = format!("connect({}) failed at once: no route", failed.dst);
    let evidence = vec![evidence_of(Hook::SysConnect.name(), time, text, json!({ "errno": failed.errno }))];
    Some(LostRoute { time, evidence, link: None })
}

/// A wider route, such as the default route, leads past the bridge that the pod's link is a port of.
fn astray(case: &Case<'_>) -> Option<LostRoute> {
    let (time, stray) = asymmetric_route::stray_route(case).filter(|(_, stray)| !stray.is_by_rule())?;
    let (device, pod_device) = (&stray.device, &stray.pod_device);
    let text = format!(
        "the route to {} leads out of {device}, while the pod is behind {pod_device}",
        case.attempt.flow.dst.ip()
    );
    let fields = json!({ "device": device, "pod_device": pod_device, "table": stray.table });
    Some(LostRoute {
        time,
        evidence: vec![evidence_of("rtnetlink", time, text, fields)],
        link: Some(stray.pod_bridge?),
    })
}

/// A router to which a wider route leads refused the SYN to a pod of this node. Its answer ends the attempt before an
/// inspection can find that route.
fn refused_elsewhere(case: &Case<'_>) -> Option<LostRoute> {
    let found = by_router(case).filter(|_| case.node.has_pod(case.attempt.flow.dst.ip()))?;
    Some(LostRoute { time: found.decided_at, evidence: found.evidence, link: None })
}

/// About a period of a probe: later attempts have an inspection. A link that was set down long before may be another one
/// of the pod.
const SET_DOWN_NS: u64 = 10_000_000_000;

/// The link of the target's pod that was set down just before, if no inspection has its state.
fn set_down_unread<'a>(case: &Case<'a>, dropped: u64) -> Option<&'a LinkChange> {
    let is_read = inspected(case).is_some_and(|(_, reading)| reading.netns.is_some());
    let (at, change) = last_down_of_pod(case).filter(|_| !is_read)?;
    (at.saturating_add(SET_DOWN_NS) > dropped).then_some(change)
}

fn finding(
    case: &Case<'_>,
    mut evidence: Vec<Evidence>,
    netns: Netns,
    (ifindex, device): (u32, &str),
    state: &str,
) -> Finding {
    let decided_at = evidence.iter().map(|e| e.time_boot_ns).max().unwrap_or_default();
    let change = case.node.links.down(netns, ifindex);
    let is_removal = change.is_some_and(|(_, change)| culprit::is_removal(case.node, change));
    let culprit = change.and_then(|(time, change)| culprit::culprit_of(case.node, *time, change));
    if let Some((time, change)) = change {
        evidence.insert(0, culprit::evidence(*time, change));
    }
    let by = match change {
        Some(_) if is_removal => REMOVED.to_owned(),
        Some(_) => format!(", set down by {}", culprit::name(culprit.as_ref())),
        None => String::new(),
    };
    let (dst, place) = (case.attempt.flow.dst, in_namespace(case, Some(netns)));
    let summary = format!("{device}{place} {state}{by}: {dst} cannot be reached over it");
    let after = match (change, &culprit) {
        (Some((_, change)), Some(culprit)) => culprit::fix(case.node, change, culprit),
        (Some(_), None) => culprit::FIX_BY_KERNEL.to_owned(),
        (None, _) => String::new(),
    };
    let fix = if is_removal { find_end(case) } else { set_up(case, netns, (ifindex, device), &after) };
    let found = Finding::failure(Cause::PodLinkDown, evidence, summary, fix).with_culprit(culprit);
    Finding { decided_at, ..found }.rests_on_lost_packet()
}

/// What went with the link does not come back with it: routes over gateways and IPv6 addresses. Nothing but a new sandbox
/// gives all of that back to a pod.
fn set_up(case: &Case<'_>, netns: Netns, (ifindex, device): (u32, &str), after: &str) -> Remediation {
    let (dst, place) = (case.attempt.flow.dst.ip(), in_namespace(case, Some(netns)));
    let link = shell::link(device);
    let run = |command: String| run_in(case, Some(netns), command);
    let up = run(format!("ip link set {link} up"));
    if !case.node.is_a_node(netns) {
        let fix = format!("Delete the pod, so that its sandbox is made again{after}");
        if dst.is_ipv6() {
            let text = format!("{fix}. With {device} up again its IPv6 addresses and routes are still missing");
            return Remediation::from(text).run(delete(case));
        }
        let text = format!(
            "{fix}. Or set {device} up{place} (the last command), and restore its default route, which went with it (`ip route`)"
        );
        return Remediation::from(text).run(delete(case)).run([run("ip route".to_owned()), up]);
    }
    let add = |it: Prefix| run(format!("ip addr replace {}/{} dev {link}", it.addr, it.len));
    let addresses: Vec<Command> = case.node.links.lost_addresses(netns, ifindex).map(add).collect();
    let restore = if addresses.is_empty() { "" } else { ", and give it back its IPv6 addresses" };
    // The node's own address is no pod's.
    let or_delete = if case.node.has_pod(dst) { ", or delete the pod, so that its sandbox is made again" } else { "" };
    let own = has_own_route(case, netns, ifindex).then(|| run(format!("ip route replace {dst} dev {link}")));
    let of_pod = if own.is_some() { ", and restore the pod's own route (the last command)" } else { "" };
    let text = format!(
        "Set {device} up{place}{restore}{of_pod}{or_delete}{after}. Routes that the CNI or a person added do not come back with the link"
    );
    Remediation::from(text).run([up]).run(addresses).run(own)
}

/// Only a route of the pod's own leads to the node's end of its link, and it went with that end. That end is a port of no
/// bridge, and the pod's address has no subnet (Calico, AWS VPC CNI). Cilium and Open vSwitch need no such route. The AWS
/// VPC CNI has it in another table for the VLAN of a branch interface.
fn has_own_route(case: &Case<'_>, netns: Netns, ifindex: u32) -> bool {
    let dst = case.attempt.flow.dst.ip();
    let whole = if dst.is_ipv4() { 32 } else { 128 };
    let is_alone = |link: &LinkState| link.subnets().any(|own| own.addr == dst && own.len == whole);
    let link = inspected(case).and_then(|(_, reading)| reading.link_with(dst)).filter(|link| is_alone(link));
    let Some((link, links)) = link.zip(case.node.links.get(&netns)) else { return false };
    let is_end = |end: &LinkState| {
        let is_pair =
            end.ifindex == ifindex && (link.peer_ifindex, end.peer_ifindex) == (Some(ifindex), Some(link.ifindex));
        is_pair && end.master.is_none() && !end.name.starts_with("vlan")
    };
    let is_dataplane = |link: &LinkState| matches!(link.name.as_str(), "cilium_host" | "ovs-system");
    links.iter().any(is_end) && !links.iter().any(is_dataplane)
}

const REMOVED: &str = " (the kernel removed it, as the last process of a network namespace had ended)";

#[cfg(test)]
mod tests;
