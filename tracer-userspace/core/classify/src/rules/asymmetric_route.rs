//! A routing rule of the node sends the SYN out of another device than the pod's, or a route of the pod its answer.

use std::net::IpAddr;

use super::*;
use tracer_attempts::correlate::links::{LostBy, LostRoutes};
use tracer_case::flushed::removed_own_route;
use tracer_case::links::{node_end, way_back_has_worked};
use tracer_case::router::by_router;
use tracer_case::{culprit, drop_reason, flooded};
use tracer_model::event::{
    Icmp, Inspection, LinkState, NeighbourState, Netns, PacketDrop, Prefix, RoutingRule, StrayRoute,
};

/// At the end of an attempt, the last reading of [`stray_route_so_far`].
pub(in super::super) fn stray_route<'a>(case: &Case<'a>) -> Option<(u64, &'a StrayRoute)> {
    stray_route_so_far(case).filter(|_| case.attempt.ended.is_some())
}

/// A route of the node leads to another device than the pod's, and nothing shows that the SYN reached the pod.
fn stray_route_so_far<'a>(case: &Case<'a>) -> Option<(u64, &'a StrayRoute)> {
    let connects = case.attempt.established.is_none() && in_handshake(case);
    let astray = |(time, reading): (u64, &'a Inspection)| {
        let stray = reading.stray_route.as_ref().filter(|_| reading.netns.is_some() && !has_arrived(case, reading))?;
        (case.settled || is_stuck(case, stray, case.attempt.netns)).then_some((time, stray))
    };
    inspections(case).filter(|_| connects).find_map(astray)
}

/// Nobody answered at the device that the route leads to: a consequence of that route. The kernel drops the packet after
/// three seconds, which is after the end of most attempts.
fn is_stuck(case: &Case<'_>, stray: &StrayRoute, netns: Option<Netns>) -> bool {
    drops(case).any(|(_, drop)| is_stuck_there(drop, stray, netns))
}

fn is_stuck_there(drop: &PacketDrop, stray: &StrayRoute, netns: Option<Netns>) -> bool {
    let is_there = drop.device.as_ref().is_some_and(|device| device.name == stray.device) && drop.netns == netns;
    is_there && drop_reason::is_unresolved(drop)
}

pub(super) fn find(case: &Case<'_>) -> Option<Finding> {
    of_syn(case).or_else(|| of_removed(case)).or_else(|| of_answer(case))
}

/// The pod's own route was removed, and a wider one now leads to another device.
fn of_removed(case: &Case<'_>) -> Option<Finding> {
    let read = stray_route(case).filter(|(_, stray)| !stray.is_by_rule());
    // If no kernel that tracer hooks sent the refusal, nothing shows that the SYN left the node.
    let refused = || refused_astray(case).filter(|router| router.confidence > Confidence::Possible);
    let (leads, evidence) = match read {
        Some((time, stray)) => {
            let fields = json!({ "device": stray.device, "pod_device": stray.pod_device, "table": stray.table });
            let leads = leads(case, stray);
            (leads.clone(), vec![evidence_of("rtnetlink", time, leads, fields)])
        }
        None => {
            let leads = format!("the SYN to {} left the node, and a router refused it", dst(case));
            (leads, refused()?.evidence)
        }
    };
    let show = show_routes(case);
    if read.is_some() && removed_own_route(case).is_some() {
        let fix = Remediation::from(RESTART_AGENT).run(show);
        let summary = format!("{leads}: its own route was removed");
        return Some(Finding::likely(Cause::AsymmetricRoute, evidence, summary, fix).rests_on_lost_packet());
    }
    let bridge = read.and_then(|(_, stray)| stray.pod_bridge);
    let Some(lost) = lost_route(case, read, bridge) else {
        // Without a router that refused or dropped it, the CNI may take the packets at that device.
        let dropped = case.attempt.drops().find(|(_, drop)| flooded::is_dropped_astray(case.attempt, case.node, drop));
        let dropped = dropped.map(|(time, drop)| of_drop(time, drop));
        (refused().is_some() || dropped.is_some()).then_some(())?;
        let evidence = dropped.into_iter().chain(evidence).collect();
        let fix = Remediation::from(
            "The pod's own route is missing, or something else took the pods' subnet, such as a VPN or docker0: correct that route of the node",
        )
        .run(show);
        let summary = format!("{leads}, though the pod is on this node");
        return Some(Finding::likely(Cause::AsymmetricRoute, evidence, summary, fix).rests_on_lost_packet());
    };
    let found = match &lost.why {
        LostBy::SetDown(change) => {
            let by = culprit::culprit_of(case.node, lost.time, change);
            let who = culprit::name(by.as_ref());
            let summary = format!("{leads}: its own route went with {}, which {who} set down", change.name);
            let fix = Remediation::from(RESTART_AGENT).run(show);
            let evidence = [vec![culprit::evidence(lost.time, change)], evidence].concat();
            Finding::likely(Cause::AsymmetricRoute, evidence, summary, fix).with_culprit(by)
        }
        LostBy::Addresses(subnets) => {
            let link = case.node.links.by_index(lost.netns, lost.ifindex)?;
            let Prefix { addr, len } = subnets.iter().find(|subnet| subnet.holds(dst(case)))?;
            let summary =
                format!("{leads}: {} has lost its address {addr}/{len}, and the route went with it", link.name);
            let fields = json!({ "address": addr, "name": link.name });
            let gone = evidence_of("rtnetlink", lost.time, format!("{} has lost {addr}/{len}", link.name), fields);
            let fix = restore(case, link, *addr, *len).run(show);
            Finding::likely(Cause::AsymmetricRoute, [vec![gone], evidence].concat(), summary, fix)
        }
        LostBy::Bridge(_) => return None,
    };
    Some(found.rests_on_lost_packet())
}

/// The plugins bridge and ptp have no agent.
const RESTART_AGENT: &str = "Restart the CNI's agent on this node: it makes the routes of the node's pods again. Or delete the pod, so that its sandbox is made again";

/// What took the route to the pod with it: the node's end of the pod's link, the bridge that it is a port of, or the
/// bridge's address.
fn lost_route<'a>(case: &Case<'a>, read: Option<(u64, &StrayRoute)>, bridge: Option<u32>) -> Option<&'a LostRoutes> {
    let (netns, dst, stray) = (case.attempt.netns?, dst(case), read.map(|(_, stray)| stray));
    // tracer learns of a lost address a moment later. It was lost before the route was read.
    let until = read.map_or(case.attempt.started, |(time, _)| time.max(case.attempt.started));
    let links = case.node.links.get(&netns)?;
    let end = match stray {
        Some(stray) => links.iter().find(|link| link.name == stray.pod_device).map(|link| link.ifindex),
        None => node_end(case),
    };
    let is_lost = |lost: &&LostRoutes| match &lost.why {
        // A route leads to the bridge and not to its port.
        LostBy::SetDown(_) => Some(lost.ifindex) == bridge.or(end),
        LostBy::Addresses(subnets) => {
            (stray.is_none() || Some(lost.ifindex) == bridge) && subnets.iter().any(|subnet| subnet.holds(dst))
        }
        // The route to the bridge is still there.
        LostBy::Bridge(_) => false,
    };
    let mut lost = case.node.links.lost_routes(netns, until, (dst, case.attempt.until()));
    // Without a reading of the route, another link may have the subnet.
    lost.find(is_lost).filter(|_| stray.is_some() || !links.iter().any(|link| link.up && link.covers(dst)))
}

/// A router refused the SYN at once, before an inspection, though the target is a pod of this node behind a link of its
/// own.
fn refused_astray(case: &Case<'_>) -> Option<Finding> {
    let netns = case.attempt.netns?;
    let own = [Some(netns), case.node.netns_of_addr(netns, dst(case))];
    let by_own = || case.attempt.icmp().any(|(_, icmp)| own.contains(&icmp.netns));
    let router = by_router(case).filter(|_| !by_own() && case.node.has_pod(dst(case)))?;
    // The pod is behind a gateway, and that may be the router: another network namespace of this node.
    let mut readings = case.node.targets.inspections(case.attempt);
    let is_by_gateway = |it: &Inspection| it.netns.is_some() && it.stray_route.is_none() && it.gateway().is_some();
    if readings.any(|(_, reading)| is_by_gateway(reading)) {
        return None;
    }
    // A pod with AWS security groups is reached through the VPC, and its link is named so by the VPC CNI.
    let is_way = |end: &&LinkState| end.up && !end.name.starts_with("vlan");
    case.node.links.by_index(netns, node_end(case)?).filter(is_way).map(|_| router)
}

/// The SYN went to a router though the pod is on this node: what the router does with it is no cause.
pub(super) fn is_astray(case: &Case<'_>) -> bool {
    stray_route(case).is_some_and(|(_, stray)| !stray.is_by_rule()) || refused_astray(case).is_some()
}

fn dst(case: &Case<'_>) -> IpAddr {
    case.attempt.flow.dst.ip()
}

fn leads(case: &Case<'_>, stray: &StrayRoute) -> String {
    format!("the route to {} leads out of {}, while the pod is behind {}", dst(case), stray.device, stray.pod_device)
}

fn show_routes(case: &Case<'_>) -> [Command; 2] {
    let (src, dst) = (case.attempt.flow.src.ip(), dst(case));
    [format!("ip route get {dst} from {src}"), format!("ip route show to match {dst}")]
        .map(|command| run_in(case, case.attempt.netns, command))
}

/// How to give the link its address back. IPv6 goes with a small MTU (`addrconf_notify`, net/ipv6/addrconf.c).
fn restore(case: &Case<'_>, link: &LinkState, addr: IpAddr, len: u8) -> Remediation {
    let name = shell::link(&link.name);
    let text = format!("Restore the address of {} (the second command), and find what removed it", link.name);
    let text = match addr {
        IpAddr::V4(_) => text,
        IpAddr::V6(_) => format!("{text}: an MTU below 1280 or disable_ipv6 of that link does it"),
    };
    let show = [format!("ip addr show dev {name}"), format!("ip addr add {addr}/{len} dev {name}")];
    Remediation::from(text).run(show.map(|command| run_in(case, case.attempt.netns, command)))
}

/// The pod's route to the prober leads out of another link: a second network, or a VPN in the pod, took it.
fn of_answer(case: &Case<'_>) -> Option<Finding> {
    let over = case.attempt.ended.is_some() && case.attempt.established.is_none() && in_handshake(case);
    let (time, reading) = inspections(case).find(|(_, reading)| reading.netns.is_some() && over)?;
    // Each pod reaches the node's own address over the node's other links.
    let netns = reading.netns.filter(|netns| !case.node.is_a_node(*netns))?;
    let stray = reading.stray_way_back.as_ref()?;
    let is_stuck = is_stuck(case, stray, Some(netns));
    if !case.settled && !is_stuck || way_back_has_worked(case, stray) {
        return None;
    }
    let is_unresolved = reading.neighbour.as_ref().is_some_and(NeighbourState::is_unresolved);
    // The target's socket has taken the first SYN, and drops the next one.
    let is_unspecified = |drop: &PacketDrop| drop.reason.as_deref().is_none_or(|reason| reason == "NOT_SPECIFIED");
    let is_taken = |drop: &PacketDrop| is_second_syn(case, drop) && is_unspecified(drop) && drop.netns == Some(netns);
    let is_harmless = |drop: &PacketDrop| is_taken(drop) || is_stuck_there(drop, stray, Some(netns));
    // The kernel reports what it drops after that to the sender, which is its own namespace.
    let is_own_report = |icmp: &Icmp| is_stuck && icmp.netns == Some(netns) && !case.attempt.leads_out(icmp.flow);
    let is_stopped =
        !case.attempt.icmp().all(|(_, icmp)| is_own_report(icmp)) || case.attempt.reset_received().is_some();
    if is_stopped || is_unresolved || is_queue_full(case) || !drops(case).all(|(_, drop)| is_harmless(drop)) {
        return None;
    }
    let (own, to) = (case.attempt.flow.dst.ip(), case.attempt.flow.src.ip());
    let (device, link) = (&stray.device, &stray.pod_device);
    let place = in_namespace(case, Some(netns));
    let leads = format!("the route back to {to}{place} leads out of {device}, while {own} is on {link}");
    let fields = json!({ "device": device, "netns": netns, "pod_device": link, "table": stray.table, "to": to });
    let evidence = vec![evidence_of("inspection", time, leads.clone(), fields)];
    let text = format!(
        "Correct what made that route in the pod: a second network that is its default route (Multus), or a VPN. The node's address needs a route over {link}. If that route has worked before, see whether its gateway still answers"
    );
    let show = [format!("ip route get {to} from {own}"), "ip rule".to_owned(), "ip route show table all".to_owned()];
    let fix = Remediation::from(text).run(show.map(|command| run_in(case, Some(netns), command)));
    let lost = if is_stuck { "nobody answers there for its next hop" } else { "the answer to the SYN may not arrive" };
    let summary = format!("{leads}: {lost}");
    Some(Finding::likely(Cause::AsymmetricRoute, evidence, summary, fix).rests_on_lost_packet())
}

fn of_syn(case: &Case<'_>) -> Option<Finding> {
    let has_worked = |stray| flooded::way_has_worked(case.attempt, case.node, stray);
    let (time, stray) = stray_route(case).filter(|(_, stray)| stray.is_by_rule() && !has_worked(stray))?;
    let flow = case.attempt.flow;
    let (rule, leads) = (rule(stray), format!("out of {}, while the pod is behind {}", stray.device, stray.pod_device));
    let summary = format!("{rule} sends packets from {} to {} {leads}", flow.src.ip(), flow.dst.ip());
    let fields = json!({
        "table": stray.table, "priority": stray.rule.as_ref().map(|it| it.priority), "device": stray.device,
        "pod_device": stray.pod_device,
    });
    let read = evidence_of("rtnetlink", time, format!("{rule} applies, and leads {leads}"), fields);
    let (dst, src, table) = (flow.dst.ip(), flow.src.ip(), stray.table);
    let (before, priority) = before(stray);
    let fix = Remediation::from(format!(
        "Correct what made the rule: the setup of a second uplink, the CNI or a VPN. Or add a rule before {before} that sends the pods' addresses to the main table (the last command)"
    ))
    .run(
        [
            "ip rule".to_owned(),
            format!("ip route show table {table}"),
            format!("ip route get {dst} from {src} ipproto tcp dport {}", flow.dst.port()),
            format!("ip rule add to PODS-SUBNET lookup main priority {priority}"),
        ]
        .map(|command| run_in(case, case.attempt.netns, command)),
    );
    Some(Finding::likely(Cause::AsymmetricRoute, vec![read], summary, fix).rests_on_lost_packet())
}

/// The place of the new rule as text, and its priority. Priority 0 is the local table's rule, which must stay first.
fn before(stray: &StrayRoute) -> (String, String) {
    match stray.rule.as_ref().map(|it| it.priority.saturating_sub(1)).filter(|it| *it > 0) {
        Some(priority) => ("that rule".to_owned(), priority.to_string()),
        None => (format!("the rule that has table {}", stray.table), "LOWER-PRIORITY".to_owned()),
    }
}

/// Something shows that the SYN reached the pod in spite of that rule.
fn has_arrived(case: &Case<'_>, reading: &Inspection) -> bool {
    let attempt = case.attempt;
    let is_answered = attempt.reset_received().is_some() || attempt.resets_sent().any(|(at, _)| in_time(case, at));
    let arrives = |drop: &PacketDrop| drop.flags.is_syn_ack() || drop.netns == reading.netns;
    is_answered
        || drops(case).any(|(at, drop)| in_time(case, at) && arrives(drop))
        || attempt.icmp().any(|(at, icmp)| in_time(case, at) && icmp.netns == reading.netns)
        || is_queue_full(case)
}

/// For other causes: the node's route to the pod leads out of another device than the pod's. That is right where a CNI
/// takes the packet there, unless the kernel asks there for the pod's link-layer address. It is right, too, if it has
/// worked.
pub(super) fn hint(case: &Case<'_>, is_asked: bool) -> Option<(String, Remediation)> {
    let has_worked = |stray| flooded::way_has_worked(case.attempt, case.node, stray);
    let (_, stray) = stray_route_so_far(case).filter(|(_, stray)| !has_worked(stray))?;
    let (flow, device) = (case.attempt.flow, &stray.device);
    let (src, dst) = (flow.src.ip(), flow.dst.ip());
    let words =
        format!("; the node's route to {dst} leads out of {device}, while the pod is behind {}", stray.pod_device);
    // The VPC CNI of AWS names the links of such pods so. The node's routes do not lead to them.
    let through_vpc = match stray.pod_device.starts_with("vlan") {
        true => {
            "If the pod has AWS security groups of its own, its probes go through the VPC: the groups must admit the node on that port. "
        }
        false => "",
    };
    let wrong = "the pod's own route is missing, or something else took the pods' subnet, such as a VPN or docker0: correct that route";
    let fix = Remediation::from(if is_asked {
        format!("{through_vpc}On the node, {wrong}. Or restart the CNI's agent that should have made it")
    } else {
        format!(
            "{through_vpc}If the CNI takes packets to its pods at {device} (as Cilium does at cilium_host), the route is right. If not, {wrong}"
        )
    })
    .run([format!("ip route get {dst} from {src}"), format!("ip route show to match {dst}")]
        .map(|command| run_in(case, case.attempt.netns, command)));
    Some((words, fix))
}

pub(super) fn is_queue_full(case: &Case<'_>) -> bool {
    accept_queue_overflow::find(case).is_some() || syn_backlog_overflow::find(case).is_some()
}

/// "ip rule 32762 (from 10.0.1.5 lookup 101)"
fn rule(stray: &StrayRoute) -> String {
    let Some(rule) = &stray.rule else { return format!("routing table {}", stray.table) };
    let RoutingRule { priority, from, to, ports } = rule;
    let from = from.as_deref().unwrap_or("all");
    let to = to.as_ref().map(|to| format!(" to {to}")).unwrap_or_default();
    let ports = ports.as_ref().map(|ports| format!(" {ports}")).unwrap_or_default();
    format!("ip rule {priority} (from {from}{to}{ports} lookup {})", stray.table)
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    fn by_rule() -> StrayRoute {
        let rule = Some(RoutingRule { priority: 32_762, from: Some("10.88.0.1".into()), to: None, ports: None });
        StrayRoute { rule, ..stray("eth1", "veth7", 101) }
    }

    /// The node's links: the bridge of the pods with these addresses, and the node's end of the pod's link.
    fn node_links(addrs: &[&str]) -> Vec<LinkState> {
        let bridge = LinkState { prefixes: vec![24; addrs.len()], ..link(3, "cni0", addrs) };
        vec![bridge, link(7, "veth7", &[])]
    }

    fn by_default_route(pod_bridge: Option<u32>) -> StrayRoute {
        StrayRoute { pod_bridge, ..stray("eth0", "veth7", 254) }
    }

    #[test]
    fn a_bridge_that_lost_its_address_took_the_route() {
        let reported = |later: &[&str], reached: bool, bridge: Option<u32>| {
            let mut stream = Stream::new();
            stream.node_links(node_links(&["10.88.0.1"])).wait_ms(5).node_links(node_links(later)).wait_ms(1_000);
            if reached {
                stream.connect().established().answers(200).wait_ms(5_000).again(8);
            }
            stream.connect().drop(SYN, "IP_LOCAL_SOURCE", NODE).wait_ms(200);
            stream.inspection(|reading| reading.stray_route = Some(by_default_route(bridge))).gives_up().verdict()
        };
        let verdict = reported(&[], false, Some(3));
        assert_eq!((verdict.cause.name(), verdict.confidence), ("asymmetric_route", Confidence::Likely));
        assert_has(
            &verdict.summary,
            &["behind veth7: cni0 has lost its address 10.88.0.1/24, and the route went with"],
        );
        assert_has(&verdict.remediation, &["ip addr add 10.88.0.1/24 dev cni0"]);
        for (later, reached, bridge) in
            [(&["10.88.0.1"] as &[_], false, Some(3)), (&[], true, Some(3)), (&[], false, Some(4))]
        {
            let verdict = reported(later, reached, bridge);
            assert_eq!(verdict.cause.name(), "unexplained", "{later:?} {reached} {bridge:?}");
            assert_lacks(&verdict.remediation, &["Correct the next hop's route"]);
            assert_has(&verdict.remediation, &["the pod's own route is missing"]);
        }
    }

    #[test]
    fn a_link_that_was_down_took_its_route() {
        let reported = |ifindex: u32, bridge: Option<u32>| {
            let mut stream = Stream::new();
            stream.node_links(node_links(&[])).link_set(NODE, ifindex, "veth7", false);
            stream.link_set(NODE, ifindex, "veth7", true).wait_ms(1_000).connect().wait_ms(200);
            stream.inspection(|reading| reading.stray_route = Some(by_default_route(bridge)));
            let record = stream.gives_up().verdicts().remove(0);
            (record.verdict.cause.name(), record.culprit.is_some())
        };
        assert_eq!(reported(7, None), ("asymmetric_route", true));
        assert_eq!(reported(9, None), ("unexplained", false), "another link");
        assert_eq!(reported(7, Some(3)), ("unexplained", false), "the route leads to the bridge");
    }

    /// Its answer ends the attempt before an inspection of its own.
    #[test]
    fn a_router_that_refuses_is_not_the_cause() {
        let reported = |icmp_from: Netns, later: &[&str], end: &str, gateway: Option<&str>| {
            let mut stream = Stream::new();
            let links = |addrs: &[&str]| vec![node_links(addrs).swap_remove(0), link(7, end, &[])];
            stream.http_readiness().node_links(links(&["10.88.0.1"])).connect().established();
            stream.inspection(|reading| {
                reading.links = vec![LinkState { peer_ifindex: Some(7), ..link(2, "eth0", &["10.88.0.2"]) }];
                reading.neighbour = gateway.map(|it| NeighbourState { addr: address(it), ..neighbour("reachable") });
            });
            stream.answers(200).wait_ms(5).node_links(links(later)).wait_ms(1_000).again(8).connect();
            stream.icmp_in(icmp_from, 3, 0).state(TcpState::SynSent, TcpState::Close, libc::ENETUNREACH, (0, 0, 0));
            stream.settles().last_verdict()
        };
        let likely =
            |verdict: Verdict| (verdict.cause.name(), verdict.confidence) == ("asymmetric_route", Confidence::Likely);
        let lost = reported(Netns(900), &[], "veth7", None);
        assert_has(&lost.summary, &["a router refused it: cni0 has lost its address"]);
        // Nothing shows what became of the route: a narrower one may lead there.
        let unknown = reported(Netns(900), &["10.88.0.1"], "veth7", None);
        assert_has(&unknown.summary, &["left the node, and a router refused it, though the pod is on this node"]);
        assert_has(&unknown.remediation, &["The pod's own route is missing", "ip route show to match 10.88.0.2"]);
        assert!(likely(lost) && likely(unknown));
        for (from, end) in [(NODE, "veth7"), (Netns(900), "vlan7")] {
            assert_eq!(reported(from, &["10.88.0.1"], end, None).cause.name(), "route_unreachable", "{end}");
        }
        let behind = reported(Netns(900), &["10.88.0.1"], "veth7", Some("10.88.0.200"));
        assert_eq!(behind.cause.name(), "route_unreachable", "the pod is behind a router on this node");
        assert_starts(&behind.summary, "no route in network namespace 900 to 10.88.0.2");
    }

    #[test]
    fn the_commands_are_for_the_family_of_the_attempt() {
        let mut stream = Stream::to("[fd00:10:88::2]:8080");
        stream.connect().wait_ms(200).inspection(|reading| reading.stray_route = Some(by_rule())).gives_up();
        let commands = ["ip -6 rule; ", "ip -6 route show table 101", "ip -6 rule add to PODS-SUBNET lookup main"];
        assert_has(&stream.verdict().remediation, &commands);
    }

    /// A VPN client in the pod took the default route.
    #[test]
    fn a_way_back_over_another_link_of_the_pod_is_named() {
        let inspected = || {
            let mut stream = Stream::new();
            stream.connect().wait_ms(200);
            stream.inspection(|reading| reading.stray_way_back = Some(stray("tun0", "eth0", 254)));
            stream
        };
        let verdict = inspected().gives_up().verdict();
        assert_eq!((verdict.cause.name(), verdict.confidence), ("asymmetric_route", Confidence::Likely));
        assert_has(&verdict.summary, &["the route back to 10.88.0.1", "out of tun0, while 10.88.0.2 is on eth0"]);
        let mut again = inspected();
        again.wait_ms(800).syn_again().drop_in(SYN, "NOT_SPECIFIED", POD, "tcp_v4_rcv");
        assert_eq!(again.gives_up().causes(), ["asymmetric_route"], "the pod had taken the first SYN");
        let mut dropped = inspected();
        assert_ne!(dropped.filtered(SYN, POD).gives_up().causes().last(), Some(&"asymmetric_route"));
        let mut answered = inspected();
        answered.established().wait_ms(1_000).closes((100, 101, 0));
        assert_eq!(answered.causes(), ["slow_response"]);
        let mut of_node = inspected();
        of_node.inspection(|reading| {
            reading.stray_way_back = Some(stray("cni0", "eth0", 254));
            reading.netns = Some(NODE);
        });
        assert_eq!(of_node.gives_up().causes(), ["unexplained"], "each pod reaches the node that way");
        let mut corrected = inspected();
        corrected.wait_ms(700).syn_again().wait_ms(300).inspection(|_| ()).gives_up();
        assert_eq!(corrected.causes(), ["unexplained"], "the route is right again");
    }

    /// The kernel drops a packet three seconds after it began to ask for the next hop of the wrong way.
    #[test]
    fn a_silent_next_hop_of_the_wrong_way_is_a_consequence() {
        const LIKELY: (&str, Confidence) = ("asymmetric_route", Confidence::Likely);
        let to_pod = |name| {
            let mut stream = Stream::new();
            stream
                .node_links(node_links(&["10.88.0.1"]))
                .connect()
                .wait_ms(20)
                .node_links(node_links(&[]))
                .wait_ms(180);
            stream
                .inspection(|reading| reading.stray_route = Some(by_default_route(Some(3))))
                .gives_up()
                .wait_ms(1_500);
            stream.drop_on(SYN, "NEIGH_FAILED", NODE, Some(device(2, name))).settles().all_decided()
        };
        assert_eq!(to_pod("eth0"), [LIKELY]);
        assert_eq!(to_pod("eth9").pop(), Some(("neighbour_failure", Confidence::Proven)), "of another link");
        let to_prober = |name| {
            let mut stream = Stream::new();
            stream.connect().wait_ms(200).inspection(|it| it.stray_way_back = Some(stray("tun0", "eth0", 254)));
            stream.gives_up().wait_ms(1_500).drop_on(SYN_ACK, "NEIGH_FAILED", POD, Some(device(4, name)));
            stream.settles().all_decided()
        };
        assert_eq!(to_prober("tun0"), [LIKELY]);
        assert_eq!(to_prober("eth0").pop(), Some(("neighbour_failure", Confidence::Proven)), "of another link");
    }

    /// Multus made net1 the pod's default route. It worked until its gateway died.
    #[test]
    fn a_way_back_that_has_worked_is_right() {
        let decided = |worked: bool| {
            let mut stream = Stream::new();
            let by_net1 = |it: &mut Inspection| it.stray_way_back = Some(stray("net1", "eth0", 254));
            if worked {
                stream.connect().established().inspection(by_net1).answers(200).wait_ms(5_000).again(8);
                stream.connect().established().answers(200).wait_ms(5_000).again(9);
            }
            stream.connect().wait_ms(200).inspection(by_net1).gives_up().wait_ms(1_500);
            stream.drop_on(SYN_ACK, "NEIGH_FAILED", POD, Some(device(4, "net1"))).settles();
            (stream.last_decided(), stream.last_verdict().remediation.to_string())
        };
        assert_eq!(decided(true).0, ("neighbour_failure", Confidence::Proven));
        let (unknown, fix) = decided(false);
        assert_eq!(unknown, ("asymmetric_route", Confidence::Likely));
        assert_has(&fix, &["needs a route over eth0. If that route has worked before, see whether its gateway"]);
    }

    /// A silent SYN shows no fault of a way that has always led to the pod, and back.
    #[test]
    fn a_stray_route_that_has_worked_is_no_cause_of_silence() {
        let ways: [fn(&mut Inspection); 2] =
            [|it| it.stray_route = Some(by_rule()), |it| it.stray_way_back = Some(stray("net1", "eth0", 254))];
        for way in ways {
            let decided = |worked: bool| {
                let mut stream = Stream::new();
                if worked {
                    stream.connect().established().inspection(way).answers(200).wait_ms(5_000).again(8);
                    stream.connect().established().answers(200).wait_ms(5_000).again(9);
                }
                stream.connect().wait_ms(200).inspection(way).gives_up().settles().last_decided()
            };
            assert_eq!(decided(false), ("asymmetric_route", Confidence::Likely));
            assert_eq!(decided(true).0, "unexplained");
        }
    }

    /// Cilium's routes lead to cilium_host, where a program redirects the packet: such a route decides nothing.
    #[test]
    fn a_stray_route_of_the_main_table_is_only_noted() {
        let mut stream = Stream::new();
        let main = stray("eth1", "veth7", 254);
        stream.connect().wait_ms(200).inspection(|reading| reading.stray_route = Some(main)).gives_up();
        let verdict = stream.verdict();
        assert_eq!(verdict.cause.name(), "unexplained");
        assert_has(
            &verdict.summary,
            &["the node's route to 10.88.0.2 leads out of eth1, while the pod is behind veth7"],
        );
        assert_has(&verdict.remediation, &["took the pods' subnet", "ip route get 10.88.0.2 from 10.88.0.1"]);
    }

    #[test]
    fn a_rule_for_a_port_is_named_with_it() {
        let ports = Some("ipproto tcp dport 8080".to_owned());
        let stray = StrayRoute { rule: by_rule().rule.map(|it| RoutingRule { ports, ..it }), ..by_rule() };
        let mut stream = Stream::new();
        stream.connect().wait_ms(200).inspection(|reading| reading.stray_route = Some(stray)).gives_up();
        let words = "ip rule 32762 (from 10.88.0.1 ipproto tcp dport 8080 lookup 101) sends";
        assert_starts(&stream.verdict().summary, words);
    }

    /// With two rules of priority 0, `ip rule del` can delete the wrong one.
    #[test]
    fn without_a_free_lower_priority_the_fix_has_a_placeholder() {
        let fix = |rule: Option<RoutingRule>| {
            let mut stream = Stream::new();
            let inspection = StrayRoute { rule, ..by_rule() };
            stream.connect().wait_ms(200).inspection(|reading| reading.stray_route = Some(inspection)).gives_up();
            stream.verdict().remediation.to_string()
        };
        let first = RoutingRule { priority: 1, from: None, to: None, ports: None };
        for fix in [fix(None), fix(Some(first))] {
            assert!(fix.contains("before the rule that has table 101") && !fix.contains("priority 0"), "{fix}");
        }
        assert_ends(&fix(by_rule().rule), "lookup main priority 32761");
    }

    /// The stray route is no cause where the handshake succeeded, nor without such a route.
    #[test]
    fn an_established_attempt_has_another_cause() {
        let mut slow = Stream::new();
        slow.connect()
            .wait_ms(200)
            .inspection(|reading| reading.stray_route = Some(by_rule()))
            .established()
            .wait_ms(1_000);
        slow.closes((100, 101, 0));
        assert_eq!(slow.causes(), ["slow_response"]);
        assert_eq!(Stream::new().connect().wait_ms(200).inspection(|_| ()).gives_up().causes(), ["unexplained"]);
    }

    fn inspected(fill: impl FnOnce(&mut Inspection)) -> Stream {
        let mut stream = Stream::new();
        stream.connect().wait_ms(200).inspection(|reading| {
            reading.stray_route = Some(by_rule());
            fill(reading);
        });
        stream
    }

    /// The gateway of that table can lead back to the pod.
    #[test]
    fn a_syn_that_reached_the_pod_has_another_cause() {
        let mut refused = inspected(|_| ());
        refused.wait_ms(800).syn_again().refused();
        assert_eq!(refused.causes(), ["connection_refused"]);
        let mut full = inspected(|reading| reading.listeners = Some(vec![listener(2, 1)]));
        assert_eq!(full.gives_up().causes(), ["accept_queue_overflow"]);
        let mut answered = inspected(|_| ());
        assert_eq!(answered.drop(SYN_ACK, "NEIGH_FAILED", NODE).gives_up().causes().last(), Some(&"neighbour_failure"));
    }

    #[test]
    fn a_syn_that_was_dropped_on_the_node_did_not_reach_the_pod() {
        let mut stream = inspected(|reading| reading.listeners = Some(vec![listener(2, 1)]));
        stream.wait_ms(700).drop(SYN, "NEIGH_FAILED", NODE).gives_up();
        assert_eq!(stream.causes().last(), Some(&"asymmetric_route"), "{:?}", stream.causes());
    }
}
