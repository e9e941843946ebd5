//! The link-layer address of the target, or of the gateway, could not be resolved.

mod fix;
mod wrong_link_address;

use std::net::{IpAddr, SocketAddr};

use self::fix::{fix, restore_own_address};
use super::*;
use crate::rules::asymmetric_route::is_queue_full;
use tracer_case::drop_reason::{MissingEntry, is_unresolved, missing_entry};
use tracer_case::hints::{missing_address, note, unusual_qdisc};
use tracer_case::links::{lacks_loopback, node_end};
use tracer_case::neighbour::{describe_state, entry_back, of_entry_back};
use tracer_case::services::{sent_by_ipvs, stale_endpoint};
use tracer_model::event::{Inspection, LinkState, NeighbourState, Netns, PacketDrop};

pub(super) fn find(case: &Case<'_>) -> Option<Finding> {
    // Without its loopback address, the node sends the packet to the default gateway.
    if !in_handshake(case) || lacks_loopback(case) {
        return None;
    }
    let note = |found| note_address(case, found);
    let found = dropped(case).map(note).or_else(|| unresolved_elsewhere(case));
    let found = found.or_else(|| unresolved(case).map(note));
    found.or_else(|| unresolved_back(case)).or_else(|| wrong_link_address::find(case))
}

/// The target's own kernel does not answer for the address, and no other host need do so.
fn note_address(case: &Case<'_>, found: Finding) -> Finding {
    let nearer = missing_address(case).or_else(|| undetected(case)).or_else(|| asymmetric_route::hint(case, true));
    match nearer.or_else(|| rerouted(case)) {
        None => note_qdisc(case, found),
        nearer => note(found, nearer),
    }
}

/// A filter or a queue on the way may keep the request for the target's link-layer address, or the answer.
fn note_qdisc(case: &Case<'_>, found: Finding) -> Finding {
    let is_of_target = match unresolved_drop(case) {
        Some((_, drop, why)) => why == MissingEntry::NoAnswer && drop.flow.dst.ip() == case.attempt.flow.dst.ip(),
        None => !inspected(case).is_some_and(|(_, reading)| is_full(reading)),
    };
    let Some((words, fix)) = unusual_qdisc(case).filter(|_| is_of_target) else { return found };
    Finding { summary: found.summary + &words, remediation: found.remediation.run(fix.commands), ..found }
}

/// The SYN waited at a link that has only other subnets, while another link of the node has the pod's, and no reading
/// shows that the node's route leads astray. A mark is what a reading of the route does not have.
fn rerouted(case: &Case<'_>) -> Option<(String, Remediation)> {
    let (src, dst, netns) = (case.attempt.flow.src.ip(), case.attempt.flow.dst.ip(), case.attempt.netns?);
    let mut drops = case.attempt.drops().filter(|(_, drop)| drop.netns == Some(netns) && drop.flow.dst.ip() == dst);
    let device = drops.find(|(_, drop)| is_unresolved(drop)).and_then(|(_, drop)| drop.device.as_ref())?;
    let pod = inspected(case)?.1.netns.filter(|pod| *pod != netns && !case.node.is_a_node(*pod))?;
    let links =
        case.node.links.get(&netns).filter(|_| case.node.netns_of_addr(netns, dst).is_none_or(|at| at == pod))?;
    let has_subnet = |link: &&LinkState| link.up && !link.loopback && link.covers(dst);
    // The address of a pod can be of the node's own subnet (AWS VPC CNI): the pod's route leads to its own link, which has
    // no address there.
    let is_for_others = |addr: &IpAddr| match addr {
        IpAddr::V4(_) => dst.is_ipv4(),
        IpAddr::V6(addr) => dst.is_ipv6() && !addr.is_unicast_link_local(),
    };
    let has_others = |link: &LinkState| link.addrs.iter().any(is_for_others) && !link.covers(dst);
    case.node.links.by_index(netns, device.ifindex).filter(|link| has_others(link))?;
    let own = links.iter().find(has_subnet).filter(|_| node_end(case) != Some(device.ifindex))?;
    let words = format!(
        "; a pod of this node has that address, and {} has its subnet: most likely a mark (ip rule, fwmark) led the SYN out of {}",
        own.name, device.name
    );
    let fix = Remediation::from(
        "Find the rule that sets a mark for this packet (meta mark set, MARK), and the routing table that `ip rule` gives packets with that mark. Put the mark into the second command: it shows the route that the packet met",
    );
    let show = [
        "ip rule".to_owned(),
        format!("ip route get {dst} from {src} mark MARK"),
        "nft list ruleset".to_owned(),
        "iptables-save -t mangle".to_owned(),
    ];
    Some((words, fix.run(show.map(|command| run_in(case, Some(netns), command)))))
}

/// The pod's kernel does not answer for its IPv6 address: duplicate address detection was not over, or found another host
/// with it when the pod got it (RFC 4862 5.4). A bridge that sends the pod its own packets back looks like one.
fn undetected(case: &Case<'_>) -> Option<(String, Remediation)> {
    let target = case.attempt.flow.dst.ip();
    let (_, reading) = inspected(case).filter(|(_, reading)| reading.duplicate || reading.tentative)?;
    let netns = reading.netns?;
    let place = in_namespace(case, Some(netns));
    if !reading.duplicate {
        let words =
            format!("; the kernel{place} does not answer for {target} until duplicate address detection is over");
        let fix = Remediation::from(
            "Wait: duplicate address detection of a new address takes up to two seconds. Or let the CNI plugin wait for it, or add the address without it (`nodad`, or accept_dad 0). If the address stays tentative, its link has no carrier, or dad_transmits is large",
        );
        let own = reading.link_with(target).map(|link| {
            let name = shell::link_setting(&link.name);
            format!("sysctl net.ipv6.conf.{name}.accept_dad net.ipv6.conf.{name}.dad_transmits")
        });
        let show = ["ip -6 addr show tentative".to_owned()].into_iter().chain(own);
        return Some((words, fix.run(show.map(|command| run_in(case, Some(netns), command)))));
    }
    let words = format!(
        "; the kernel{place} does not use {target}: duplicate address detection found another host that has it"
    );
    let fix = Remediation::from(
        "Find who else answered for the address when the pod got it: a pod that is left over, or the bridge itself. A promiscuous bridge in hairpin mode sends the pod its own packets back. Then delete the pod, so that it gets the address again",
    )
    .run([run_in(case, Some(netns), "ip -6 addr show dadfailed".to_owned()), Command::on_node("bridge -d link")]);
    Some((words, fix))
}

/// The first packet of this attempt that the kernel dropped because it could not resolve the link-layer address.
fn unresolved_drop<'a>(case: &Case<'a>) -> Option<(u64, &'a PacketDrop, MissingEntry)> {
    let mut drops = case.attempt.drops().filter(|(time, drop)| is_of_handshake(case, *time, drop));
    drops.find_map(|(time, drop)| Some((time, drop, missing_entry(drop)?)))
}

fn dropped(case: &Case<'_>) -> Option<Finding> {
    let (time, drop, why) = unresolved_drop(case)?;
    let (next, place) = (drop.flow.dst.ip(), in_namespace(case, drop.netns));
    let summary = match why {
        MissingEntry::NoAnswer => {
            let next_hop = gateway(case, next)
                .map_or_else(|| format!("{next} (or of the gateway to it)"), |gateway| describe_gateway(gateway, next));
            format!("nobody answered for the link-layer address of {next_hop}{}{place}", on_device(drop))
        }
        MissingEntry::TableFull => {
            format!("the neighbour table is full: no entry could be made for {next}{}{place}", on_device(drop))
        }
    };
    let over =
        drop.device.as_ref().zip(drop.netns).map(|(device, netns)| describe_overlap(case, netns, device.ifindex, next));
    let remediation = fix(case, drop.netns, next, why, !outbound(case, drop));
    let (translated, remediation) = match is_sent_elsewhere(case, drop) {
        true => translation(case, drop.netns, drop.flow.dst, remediation),
        false => (String::new(), remediation),
    };
    let summary = summary + &over.unwrap_or_default() + &translated;
    let found = Finding::failure(Cause::NeighbourFailure, vec![of_drop(time, drop)], summary, remediation);
    Some(if may_have_link_down(case, drop, why) { note_unread_link(found) } else { found }.rests_on_lost_packet())
}

/// A Service, a NAT rule, or an entry of conntrack that is left over, sent the SYN to another address than the prober
/// connected to. What translated it comes first: `place` is the namespace in which the translated SYN was.
fn translation(case: &Case<'_>, place: Option<Netns>, at: SocketAddr, fix: Remediation) -> (String, Remediation) {
    let (src, dst, to) = (case.attempt.flow.src, case.attempt.flow.dst, at.ip());
    if let Some(by_service) = stale_endpoint(case, to, fix.clone()) {
        return by_service;
    }
    if sent_by_ipvs(case).is_some() {
        let words = format!("; IPVS sent {dst} on to its backend {}", at);
        let fix = fix.reword(|text| {
            format!("Find why virtual service {dst} of IPVS still has the backend {to} (kube-proxy is behind, or the service is left over), and remove it. Only if {to} is right: {text}")
        });
        let show = [format!("ipvsadm -Ln -t {dst}"), "ipvsadm -Lnc".to_owned()];
        return (words, fix.run(show.map(|command| run_in(case, case.node.netns(), command))));
    }
    let words = format!("; a NAT rule, or an old conntrack entry, translated {dst} to {}", at);
    let entry = |act: &str| {
        format!("conntrack {act} -p tcp -s {} --sport {} -d {} --dport {}", src.ip(), src.port(), dst.ip(), dst.port())
    };
    let show = [entry("-L"), entry("-D"), "nft list ruleset".to_owned(), "iptables-save -t nat".to_owned()];
    let fix = fix.reword(|text| {
        format!("Correct the NAT rule that has {to}. If no rule has it, delete the old conntrack entry (conntrack -D, as below). Only if {to} is right: {text}")
    });
    (words, fix.run(show.map(|command| run_in(case, place, command))))
}

/// A pod of this node with its link down does not answer either. Only an inspection shows that, and none came in time.
fn may_have_link_down(case: &Case<'_>, drop: &PacketDrop, why: MissingEntry) -> bool {
    let is_read = inspected(case).is_some_and(|(_, reading)| reading.netns.is_some());
    why == MissingEntry::NoAnswer
        && !is_read
        && drop.flow.dst == case.attempt.flow.dst
        && case.node.has_pod(drop.flow.dst.ip())
}

fn note_unread_link(found: Finding) -> Finding {
    let summary = found.summary.clone() + "; tracer has not read the pod's own link, which may be down";
    Finding { summary, ..found.with_confidence(Confidence::Likely) }
}

fn on_device(drop: &PacketDrop) -> String {
    drop.device.as_ref().map(|d| format!(" on {}", d.name)).unwrap_or_default()
}

/// The gateway that the prober's packets to this address need, or the target's packets to the prober, if an inspection
/// read its neighbour entry.
fn gateway(case: &Case<'_>, to: IpAddr) -> Option<IpAddr> {
    if to == case.attempt.flow.src.ip() {
        return entry_back(case).map(|(_, _, entry)| entry.addr).filter(|next| *next != to);
    }
    inspections(case).filter(|(_, reading)| reading.target.ip() == to).find_map(|(_, reading)| reading.gateway())
}

fn describe_gateway(gateway: IpAddr, target: IpAddr) -> String {
    format!("{gateway} (the gateway to {target})")
}

/// The neighbour entry of the target, or of its gateway, was unresolved while the attempt waited.
fn unresolved(case: &Case<'_>) -> Option<Finding> {
    // The kernel sends the packets that wait for an entry as soon as it is resolved: only the last entry counts.
    let mut entries =
        inspections(case).filter_map(|(time, reading)| Some((time, reading, reading.neighbour.as_ref()?)));
    let (time, reading, entry) = entries.next()?;
    if !entry.is_unresolved() || !case.settled || !silent(case) {
        return None;
    }
    let target = reading.target.ip();
    let text = format!("the neighbour entry of {} is {}", entry.addr, entry.state);
    let fields = json!({ "state": entry.state, "ifindex": entry.ifindex });
    let why = if is_full(reading) { MissingEntry::TableFull } else { MissingEntry::NoAnswer };
    let link = case.node.links.by_index(reading.from, entry.ifindex);
    let on = link.map(|link| format!(" on {}", link.name)).unwrap_or_default();
    let summary = format!(
        "the node cannot resolve the link-layer address of {}{on}: {}{}",
        reading.gateway().map_or_else(|| entry.addr.to_string(), |gateway| describe_gateway(gateway, target)),
        describe_state(entry),
        describe_overlap(case, reading.from, entry.ifindex, entry.addr)
    );
    let (summary, fix) = match case.node.owns(reading.from, entry.addr) {
        true => (summary + NODE_OWNS_ADDRESS, restore_own_address(case, reading.from, entry.addr)),
        false => (summary, fix(case, None, target, why, false)),
    };
    Some(
        Finding::likely(Cause::NeighbourFailure, vec![evidence_of("rtnetlink", time, text, fields)], summary, fix)
            .resting_on(&[Hook::KfreeSkb]),
    )
}

/// The same of the address to which an address translation sent the SYN, such as a rule for a pod that is gone.
fn unresolved_elsewhere(case: &Case<'_>) -> Option<Finding> {
    let (time, reading) = inspected(case).filter(|_| case.settled && silent(case))?;
    let (to, entry) = reading.translated.as_ref().map(|it| (it.to, &it.neighbour))?;
    let text =
        format!("{} is sent on to {to}, and the neighbour entry of {} is {}", reading.target, entry.addr, entry.state);
    let fields = json!({ "state": entry.state, "ifindex": entry.ifindex, "to": to });
    let link = case.node.links.by_index(reading.from, entry.ifindex);
    let on = link.map(|link| format!(" on {}", link.name)).unwrap_or_default();
    let next = if entry.addr == to.ip() { entry.addr.to_string() } else { describe_gateway(entry.addr, to.ip()) };
    let (words, fix) =
        translation(case, Some(reading.from), to, fix(case, None, to.ip(), MissingEntry::NoAnswer, false));
    let unread =
        if case.node.has_pod(to.ip()) { "; the link of the pod there was not read, and may be down" } else { "" };
    let summary = format!(
        "the node cannot resolve the link-layer address of {next}{on}: {}{words}{unread}",
        describe_state(entry)
    );
    let evidence = vec![evidence_of("conntrack", time, text, fields)];
    Some(Finding::likely(Cause::NeighbourFailure, evidence, summary, fix).resting_on(&[Hook::KfreeSkb]))
}

/// The target's answer waits for the link-layer address of the prober, or of the gateway to it. The kernel asks for three
/// seconds before it drops the answer, which is longer than the usual timeout.
fn unresolved_back(case: &Case<'_>) -> Option<Finding> {
    let (time, netns, entry) = entry_back(case).filter(|_| case.settled && silent(case) && may_answer(case))?;
    // In any other state no packet waits: the entry may be an old one.
    if entry.state != "incomplete" {
        return None;
    }
    let (to, place) = (case.attempt.flow.src.ip(), in_namespace(case, Some(netns)));
    let translated = is_translated_source(case, entry);
    let next = match gateway(case, to) {
        Some(source) if translated => {
            format!("{source}, most likely the source that an address translation gave the SYN")
        }
        Some(gateway) => describe_gateway(gateway, to),
        None => to.to_string(),
    };
    let summary = format!(
        "the kernel{place} cannot resolve the link-layer address of {next}: {}, and the answer to the SYN waits for it",
        describe_state(entry)
    );
    let evidence = vec![of_entry_back(case, time, netns, entry)];
    let fix = match translated {
        true => correct_source(case, entry.addr),
        false => fix(case, Some(netns), to, MissingEntry::NoAnswer, true),
    };
    Some(Finding::likely(Cause::NeighbourFailure, evidence, summary, fix).resting_on(&[Hook::KfreeSkb]))
}

/// The target looks for another address than the prober's, and both are in the subnet of its link: it needs no gateway.
/// Most likely conntrack has that source.
fn is_translated_source(case: &Case<'_>, entry: &NeighbourState) -> bool {
    let (own, target) = (case.attempt.flow.src.ip(), case.attempt.flow.dst.ip());
    let link = inspected(case).and_then(|(_, reading)| reading.link_with(target));
    let is_link_local = matches!(entry.addr, IpAddr::V6(addr) if addr.is_unicast_link_local());
    let is_beside = |link: &LinkState| link.covers(own) && link.covers(entry.addr);
    entry.addr != own && !is_link_local && link.is_some_and(is_beside)
}

fn correct_source(case: &Case<'_>, source: IpAddr) -> Remediation {
    Remediation::from(format!(
        "Correct the rule that gives connections to the pod the source {source} (SNAT, MASQUERADE): nobody answers for that address"
    ))
    .run(["iptables-save -t nat", "nft list ruleset"].map(|show| run_in(case, case.attempt.netns, show)))
}

/// Nothing else that was read keeps the target from sending an answer.
pub(super) fn may_answer(case: &Case<'_>) -> bool {
    inspected(case).is_some_and(|(_, reading)| reading.no_way_back.is_none()) && !is_queue_full(case)
}

const NODE_OWNS_ADDRESS: &str =
    ". It is the node's own address, but packets to it leave the node: its rule or route in table local is gone";

/// The neighbour table holds as many entries as gc_thresh3 allows.
fn is_full(reading: &Inspection) -> bool {
    let value = |name: &str| reading.node_values.get(name).copied();
    matches!((value("neighbours"), value("gc_thresh3")), (Some(now), Some(max)) if now >= max)
}

/// A pod of this node has the address, but the node asks for it on another link, because the subnets overlap. Example:
/// docker0's /24 lies within the pods' /16, and the more specific route wins.
fn describe_overlap(case: &Case<'_>, netns: Netns, ifindex: u32, target: IpAddr) -> String {
    let is_here = || {
        let holder = case.node.netns_of_addr(netns, target).or_else(|| inspected(case)?.1.netns);
        target == case.attempt.flow.dst.ip() && holder.is_some_and(|holder| !case.node.is_a_node(holder))
    };
    let other = |link: &&LinkState| link.ifindex != ifindex && !link.loopback && link.covers(target);
    let found = case.node.links.by_index(netns, ifindex).filter(|link| link.covers(target)).zip({
        let mut links = case.node.links.get(&netns).into_iter().flatten();
        links.find(other)
    });
    let Some((asked, other)) = found.filter(|_| is_here()) else { return String::new() };
    let (asked, other) = (&asked.name, &other.name);
    format!(
        "; a pod of this node has that address. The subnets of {asked} and {other} overlap, and the route leads to {asked}"
    )
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    /// Seen on 6.18: a rule at OUTPUT sends the pod's address to that of a pod that is gone.
    #[test]
    fn an_address_behind_a_translation_that_nobody_has_is_named() {
        let verdict = |is_silent: bool| {
            let mut stream = Stream::new().http_readiness().connect().wait_ms(200).clone();
            let failed = neighbour("failed");
            stream.inspection(|reading| {
                let neighbour = NeighbourState { addr: address("10.88.0.99"), ..neighbour("incomplete") };
                reading.translated = Some(TranslatedTarget { to: address("10.88.0.99:8080"), neighbour }.into());
                reading.neighbour = Some(NeighbourState { addr: address("10.88.0.2"), ..failed });
            });
            if !is_silent {
                stream.wait_ms(100).filtered(SYN, POD);
            }
            stream.gives_up().last_verdict()
        };
        let dead = verdict(true);
        assert_eq!((dead.cause, dead.confidence), (Cause::NeighbourFailure, Confidence::Likely));
        assert_starts(&dead.summary, "the node cannot resolve the link-layer address of 10.88.0.99: it sent requests");
        assert_has(
            &dead.summary,
            &["; a NAT rule, or an old conntrack entry, translated 10.88.0.2:8080 to 10.88.0.99:8080"],
        );
        assert_has(&dead.remediation, &["Correct the NAT rule that has 10.88.0.99", "iptables-save -t nat"]);
        assert_eq!(verdict(false).cause, Cause::FirewallDrop);
    }

    /// It had waited for the link-layer address, and the prober had given up.
    #[test]
    fn what_a_late_syn_meets_is_no_cause() {
        let reported = |is_read: bool, meets: fn(&mut Stream)| {
            // Without a spec: after the timeout of a known probe, nothing counts anyway.
            let mut stream = Stream::new().connect().wait_ms(200).clone();
            if is_read {
                stream.inspection(|reading| reading.neighbour = Some(neighbour("incomplete")));
            }
            meets(stream.wait_ms(880).gives_up().wait_ms(900));
            stream.settles().wait_ms(50).tick().causes()
        };
        let rejected = |stream: &mut Stream| _ = stream.filtered(SYN, POD).icmp_in(POD, 3, 3);
        let full = |stream: &mut Stream| _ = stream.queue_full(ListenQueue::Accept);
        let filtered = |stream: &mut Stream| {
            stream.filtered(SYN, POD).push(firewall(POD, vec![rule("INPUT", RuleVerdict::Drop)]));
        };
        let refused = |stream: &mut Stream| _ = stream.reset_sent(SYN, true, None);
        for meets in [filtered as fn(&mut Stream), rejected, refused, full] {
            assert_eq!(reported(true, meets), ["neighbour_failure"]);
            assert_eq!(reported(false, meets), ["unexplained"]);
        }
    }

    /// A rule sets a mark, and the route for that mark leads to a VPN.
    #[test]
    fn a_syn_at_a_link_without_the_pods_subnet_may_have_a_mark() {
        let noted = |device_of_drop| {
            let mut stream = Stream::new();
            let with_subnet = |ifindex, name, addr| LinkState { prefixes: vec![24], ..link(ifindex, name, &[addr]) };
            stream.node_links(vec![with_subnet(3, "cni0", "10.88.0.1"), with_subnet(5, "wg0", "10.9.9.1")]);
            stream.connect().wait_ms(200).inspection(|_| ()).wait_ms(700);
            stream.drop_on(SYN, "NEIGH_FAILED", NODE, Some(device_of_drop)).gives_up().verdict()
        };
        let marked = noted(device(5, "wg0"));
        assert_ends(
            &marked.summary,
            "cni0 has its subnet: most likely a mark (ip rule, fwmark) led the SYN out of wg0",
        );
        assert_has(&marked.remediation, &["ip route get 10.88.0.2 from 10.88.0.1 mark MARK"]);
        assert_lacks(&noted(device(3, "cni0")).summary, &["mark"]);
    }

    /// The route to a pod without a bridge leads to the link of another pod.
    #[test]
    fn a_route_to_another_link_is_named_while_its_entry_is_incomplete() {
        let mut stream = Stream::new();
        stream.node_links(vec![link(7, "cali2", &[]), link(8, "cali3", &[])]).connect().wait_ms(200);
        stream.inspection(|reading| {
            reading.neighbour = Some(NeighbourState { ifindex: 8, ..neighbour("incomplete") });
            reading.stray_route = Some(stray("cali3", "cali2", 254));
        });
        let verdict = stream.gives_up().verdict();
        assert_eq!((verdict.cause.name(), verdict.confidence), ("neighbour_failure", Confidence::Likely));
        assert_has(&verdict.summary, &["leads out of cali3, while the pod is behind cali2"]);
        assert_starts(&verdict.remediation, "On the node, the pod's own route is missing");
    }

    /// Flows of a switch may lead from that device to the pod.
    #[test]
    fn a_route_to_another_link_is_not_named_if_it_has_worked() {
        let noted = |worked: bool| {
            let mut stream = Stream::new();
            let astray = |it: &mut Inspection| it.stray_route = Some(stray("gw0", "veth7", 254));
            if worked {
                stream.connect().established().inspection(astray).answers(200).wait_ms(5_000).again(8);
                stream.connect().established().answers(200).wait_ms(5_000).again(9);
            }
            stream.connect().wait_ms(200).inspection(|it| {
                it.neighbour = Some(neighbour("incomplete"));
                astray(it);
            });
            let verdict = stream.gives_up().last_verdict();
            assert_eq!(verdict.cause.name(), "neighbour_failure");
            verdict.remediation.to_string()
        };
        assert_starts(&noted(false), "On the node, the pod's own route is missing");
        assert_lacks(&noted(true), &["the pod's own route is missing"]);
    }

    /// The pod's link has a queue of its own.
    #[test]
    fn a_queue_of_the_target_is_named_only_if_the_target_did_not_answer() {
        let noted = |reason: &str, dst: &str, duplicate: bool| {
            let mut stream = Stream::new().links(true, &["10.88.0.1"]).connect().clone();
            stream.wait_ms(200).inspection(|reading| {
                reading.links = vec![link(2, "eth0", &["10.88.0.2"])];
                reading.qdiscs = vec![LinkQdisc { netns: POD, device: "eth0".into(), kind: "netem".into() }];
                reading.duplicate = duplicate;
            });
            stream.drop_with(SYN, NODE, |drop| {
                drop.reason = Some(reason.to_owned());
                drop.flow.dst = address(dst);
            });
            let verdict = stream.gives_up().verdict();
            assert_eq!(verdict.cause.name(), "neighbour_failure");
            verdict.summary
        };
        let own = "10.88.0.2:8080";
        assert_has(&noted("NEIGH_FAILED", own, false), &["has netem (tc)"]);
        let others = [
            noted("NEIGH_CREATEFAIL", own, false),
            noted("NEIGH_FAILED", "10.88.0.9:8080", false),
            noted("NEIGH_FAILED", own, true),
        ];
        others.iter().for_each(|summary| assert_lacks(summary, &["(tc)"]));
    }

    /// The AWS VPC CNI gives pods addresses of the node's subnet, and each pod's link has a route of its own.
    #[test]
    fn a_syn_at_the_pods_own_link_has_no_mark() {
        let noted = |addrs: &[&str], peer_ifindex| {
            let mut stream = Stream::new();
            let subnet = LinkState { prefixes: vec![20], ..link(2, "eth0", &["10.88.0.1"]) };
            let end = LinkState { prefixes: vec![32; addrs.len()], ..link(7, "eni7", addrs) };
            stream.node_links(vec![subnet, end]).connect().wait_ms(200);
            stream.inspection(|reading| {
                reading.links = vec![LinkState { peer_ifindex, ..link(3, "eth0", &["10.88.0.2"]) }];
            });
            stream.wait_ms(700).drop_on(SYN, "NEIGH_FAILED", NODE, Some(device(7, "eni7"))).gives_up().verdict()
        };
        assert_has(&noted(&["10.9.9.1"], Some(8)).summary, &["mark"]);
        for (addrs, end) in [(&["10.9.9.1"] as &[_], Some(7)), (&[], None), (&["fe80::1"], None)] {
            let verdict = noted(addrs, end);
            assert_eq!(verdict.cause.name(), "neighbour_failure");
            assert_lacks(&verdict.summary, &["mark"]);
        }
    }

    /// `ip rule del` has deleted the rule that looks up table local.
    #[test]
    fn the_nodes_own_address_has_no_neighbour() {
        let noted = |addrs: &[&str]| {
            let mut stream = Stream::new();
            stream.links(true, addrs).connect().wait_ms(200);
            stream.inspection(|reading| (reading.netns, reading.neighbour) = (None, Some(neighbour("incomplete"))));
            let noted = stream.gives_up().verdict();
            assert_eq!(noted.cause.name(), "neighbour_failure");
            noted.summary.contains("the node's own address") && noted.remediation.to_string().contains("ip rule")
        };
        assert!(noted(&["10.88.0.2"]) && !noted(&["10.88.0.1"]));
        let mut six = Stream::to("[fd00::2]:8080");
        six.links(true, &["fd00::2"]).connect().wait_ms(200).inspection(|reading| {
            let entry = NeighbourState { addr: reading.target.ip(), ..neighbour("incomplete") };
            (reading.netns, reading.neighbour) = (None, Some(entry));
        });
        assert_has(
            &six.gives_up().verdict().remediation,
            &["(ip -6 rule add lookup local priority 0)", ": ip -6 rule; "],
        );
    }

    /// Found on a node where another pod had many probes. Inspections came late, and tracer called a pod with its link
    /// down stale, proven.
    #[test]
    fn without_an_inspection_of_the_pod_it_is_likely_at_most() {
        let reported = |pod: bool, inspected: bool| {
            let mut stream = Stream::new();
            if pod {
                stream.http_readiness();
            }
            stream.connect().wait_ms(200);
            if inspected {
                stream.inspection(|reading| reading.links = vec![link(2, "eth0", &["10.88.0.2"])]);
            }
            let verdict = stream.drop(SYN, "NEIGH_FAILED", NODE).verdict();
            assert_eq!(verdict.cause.name(), "neighbour_failure");
            (verdict.confidence, verdict.summary.contains("has not read the pod's own link"))
        };
        assert_eq!(reported(true, false), (Confidence::Likely, true));
        assert_eq!(reported(true, true), (Confidence::Proven, false));
        assert_eq!(
            reported(false, false),
            (Confidence::Proven, false),
            "no pod of this node: there is nothing to inspect"
        );
    }

    #[test]
    fn an_address_that_the_pod_does_not_use_is_reported() {
        let noted = |duplicate: bool, tentative: bool| {
            let mut stream = Stream::new();
            stream.connect().wait_ms(200);
            stream.inspection(|reading| {
                (reading.neighbour, reading.links) =
                    (Some(neighbour("incomplete")), vec![link(2, "eth0", &["10.88.0.2"])]);
                (reading.duplicate, reading.tentative) = (duplicate, tentative);
            });
            stream.gives_up().verdict()
        };
        let verdict = noted(true, false);
        assert_eq!((verdict.cause.name(), verdict.confidence), ("neighbour_failure", Confidence::Likely));
        assert_has(&verdict.summary, &["duplicate address detection found another host"]);
        assert_has(&verdict.remediation, &["hairpin", "ip -6 addr show dadfailed"]);
        assert!(!noted(false, false).summary.contains("duplicate"));
        let early = noted(false, true);
        assert_ends(&early.summary, "does not answer for 10.88.0.2 until duplicate address detection is over");
        assert_has(&early.remediation, &["takes up to two seconds", "`nodad`", "net.ipv6.conf.eth0.dad_transmits"]);
        assert_lacks(&early.remediation, &["firewall"]);
    }

    #[test]
    fn no_answer_and_a_full_table_are_distinguished() {
        let stream = Stream::new().connect().drop(SYN, "NEIGH_FAILED", NODE).clone();
        assert_eq!(stream.causes(), ["neighbour_failure"]);
        assert_has(&stream.verdict().summary, &["nobody answered"]);
        let fix = &Stream::new().connect().drop(SYN_ACK, "NEIGH_CREATEFAIL", POD).verdict().remediation;
        assert_starts(&fix, "Raise net.ipv4.neigh.default.gc_thresh1, gc_thresh2 and gc_thresh3");
    }

    /// The socket ends with EHOSTUNREACH just before, which a router returns, too.
    #[test]
    fn an_ipv6_drop_without_a_reason_is_known_by_its_function() {
        let decided = |place: &str| {
            let mut stream = Stream::new();
            stream.connect().wait_ms(3).state(TcpState::SynSent, TcpState::Close, libc::EHOSTUNREACH, (0, 0, 0));
            stream.drop_in(SYN, "NOT_SPECIFIED", NODE, place);
            stream.decided()
        };
        assert_eq!(decided("neigh_invalidate"), ("neighbour_failure", Confidence::Proven));
        assert_eq!(decided("ip6_forward"), ("route_unreachable", Confidence::Possible));
    }

    /// openshift/origin#6939, with a new address of the same subnet.
    #[test]
    fn an_address_that_the_node_has_lost_is_reported() {
        let reported = |addr: &str| {
            let mut stream = Stream::new();
            stream.links(true, &[addr]).http_readiness().on_host_network();
            let verdict = stream.connect().drop(SYN, "NEIGH_FAILED", NODE).verdict();
            format!("{} {}", verdict.summary, verdict.remediation)
        };
        let lost = reported("10.88.0.1");
        assert_has(&lost, &["no link of the node has its address 10.88.0.2", "--node-ip"]);
        assert!(!lost.contains("stale pod") && !reported("10.88.0.2").contains("--node-ip"));
    }

    /// Seen on 6.12: a virtual service has a backend that is gone.
    #[test]
    fn a_backend_of_ipvs_that_is_gone_is_no_nat_rule() {
        let mut stream = Stream::to("10.96.0.9:80");
        stream.connect().ipvs(SYN, IpvsOp::Translate).drop_with(SYN, NODE, |drop| {
            drop.reason = Some("NEIGH_FAILED".into());
            drop.flow.dst = address("10.88.0.77:8081");
        });
        let verdict = stream.verdict();
        assert_eq!(verdict.cause.name(), "neighbour_failure");
        assert_ends(&verdict.summary, "; IPVS sent 10.96.0.9:80 on to its backend 10.88.0.77:8081");
        assert_starts(&verdict.remediation, "Find why virtual service 10.96.0.9:80 of IPVS still has the backend");
        assert_has(&verdict.remediation, &["ipvsadm -Ln -t 10.96.0.9:80", "ipvsadm -Lnc"]);
        assert_lacks(&verdict.remediation, &["NAT rule", "iptables"]);
    }

    /// The client is a pod: the node translates what it sends.
    #[test]
    fn the_commands_about_a_translation_run_where_the_packet_was_dropped() {
        let mut stream = Stream::new();
        stream.connect().last_connect().netns = Netns(7);
        stream.drop_with(SYN, NODE, |drop| {
            drop.reason = Some("NEIGH_FAILED".into());
            drop.flow.dst = address("10.88.0.77:8081");
        });
        let fix = stream.verdict().remediation;
        assert!(fix.commands.iter().any(|it| it.run.starts_with("conntrack -L -p tcp -s 10.88.0.1")), "{fix:?}");
    }

    /// The backend of a Service or a hostPort is gone.
    #[test]
    fn a_translated_target_is_named() {
        let mut stream = Stream::new();
        stream.connect().drop_with(SYN, NODE, |drop| {
            drop.reason = Some("NEIGH_FAILED".into());
            drop.flow.dst = address("10.88.0.77:8081");
        });
        assert_ends(
            &stream.verdict().summary,
            "; a NAT rule, or an old conntrack entry, translated 10.88.0.2:8080 to 10.88.0.77:8081",
        );
    }

    /// kube-proxy masquerades the node's own connects, so that both addresses are others.
    #[test]
    fn an_endpoint_that_is_gone_leads_to_its_service() {
        let decided = |ready: Option<&str>| {
            let mut stream = Stream::to("10.96.0.9:80");
            stream.service(80, |it| {
                it.cluster_ips = vec![address("10.96.0.9")];
                it.ready_endpoints = ready.map(|addr| vec![address(addr)]);
            });
            stream.connect().drop_with(SYN, NODE, |drop| {
                (drop.reason, drop.via) = (Some("NEIGH_FAILED".into()), Via::Socket);
                drop.flow = Flow { src: address("10.88.0.1:37833"), dst: address("10.88.0.77:8080") };
            });
            let verdict = stream.verdict();
            assert_has(
                &verdict.summary,
                &["; 10.96.0.9:80 is Service shop/cart, and the Service proxy sent it to 10.88.0.77"],
            );
            assert_has(&verdict.remediation, &["kubernetes.io/service-name=cart", "conntrack -L -p tcp -r 10.88.0.77"]);
            assert_lacks(&verdict.remediation, &["gateway"]);
            verdict
        };
        let listed = decided(Some("10.88.0.77"));
        assert_ends(&listed.summary, ", an endpoint in its EndpointSlices");
        assert_starts(&listed.remediation, "Check the pod with 10.88.0.77: if it is gone");
        let stale = decided(Some("10.88.0.2"));
        assert_ends(&stale.summary, ", which its EndpointSlices do not have");
        assert_starts(&stale.remediation, "Find what still leads to 10.88.0.77: kube-proxy is behind");
        assert_ends(&decided(None).summary, "sent it to 10.88.0.77");
    }

    /// The pod has no entry for the node, so the command shows the pod's table.
    #[test]
    fn a_dropped_answer_is_reported_in_the_namespace_that_dropped_it() {
        let verdict = Stream::new().connect().drop(SYN_ACK, "NEIGH_FAILED", POD).verdict();
        assert_has(&verdict.summary, &["10.88.0.1 ", "network namespace"]);
        assert_ends(&verdict.remediation, "-print -quit) ip neigh show 10.88.0.1");
        assert_has(&verdict.remediation, &["the gateway does not answer"]);
        assert_lacks(&verdict.remediation, &["stale pod"]);
    }

    /// The usual timeout is over before the kernel drops the answer.
    #[test]
    fn an_answer_that_waits_for_the_gateway_is_a_neighbour_failure() {
        let waiting = |addr: &str| {
            let mut stream = Stream::new();
            stream.connect().wait_ms(200).inspection(|reading| {
                reading.neighbour = Some(neighbour("reachable"));
                reading.neighbour_back = Some(NeighbourState { addr: address(addr), ..neighbour("incomplete") });
            });
            stream
        };
        let verdict = waiting("169.254.1.1").gives_up().verdict();
        assert_eq!((verdict.cause.name(), verdict.confidence), ("neighbour_failure", Confidence::Likely));
        assert_has(
            &verdict.summary,
            &["cannot resolve the link-layer address of 169.254.1.1 (the gateway to 10.88.0.1)"],
        );
        assert_has(
            &verdict.remediation,
            &["the gateway does not answer", "proxy_arp", "-quit) ip neigh show 169.254.1.1"],
        );
        let on_subnet = |addr: &str| {
            let mut stream = Stream::new();
            stream.connect().wait_ms(200).inspection(|reading| {
                reading.links = vec![LinkState { prefixes: vec![16], ..link(2, "eth0", &["10.88.0.2"]) }];
                reading.neighbour_back = Some(NeighbourState { addr: address(addr), ..neighbour("incomplete") });
            });
            stream.gives_up().verdict()
        };
        assert_has(&on_subnet("169.254.1.1").summary, &["169.254.1.1 (the gateway to 10.88.0.1)"]);
        let verdict = on_subnet("10.88.99.98");
        assert_has(&verdict.summary, &["10.88.99.98, most likely the source that an address translation gave"]);
        assert_starts(
            &verdict.remediation,
            "Correct the rule that gives connections to the pod the source 10.88.99.98",
        );
        let on_link = waiting("10.88.0.1").gives_up().verdict();
        assert_has(&on_link.summary, &["the link-layer address of 10.88.0.1: it sent requests"]);
        assert_has(&on_link.remediation, &["10.88.0.1 does not answer: ARP does not get through"]);
        assert_lacks(&on_link.remediation, &["gateway"]);
        assert_eq!(waiting("169.254.1.1").filtered(SYN, POD).gives_up().causes(), ["firewall_drop"]);
        let read = |state: &str, no_way_back: Option<NoWayBack>| {
            let mut stream = Stream::new();
            stream.connect().wait_ms(200).inspection(|reading| {
                (reading.neighbour_back, reading.no_way_back) = (Some(neighbour(state)), no_way_back);
            });
            stream.gives_up().causes()
        };
        assert_eq!(read("failed", None), ["unexplained"], "no packet waits for it");
        let no_way = NoWayBack { to: address("10.88.0.1"), errno: libc::ENETUNREACH };
        assert_eq!(read("incomplete", Some(no_way)), ["route_unreachable"]);
        let mut late = waiting("169.254.1.1");
        let late = late.wait_ms(100).established().answers(200).verdict();
        assert_eq!(late.outcome, Outcome::Noise, "the gateway answered late");
        let words = "succeeded after all: it was connected 300.0 ms after the first SYN; before that, the kernel";
        assert_has(&late.summary, &[words]);
    }

    /// kontena/pharos-cluster#439: docker0's /24 lies in the pods' /16.
    #[test]
    fn overlapping_subnets_are_reported_with_both_links() {
        let reported = |docker: &str| {
            let bridge = |ifindex, name, addr, len| LinkState { prefixes: vec![len], ..link(ifindex, name, &[addr]) };
            let links = vec![bridge(2, "docker0", docker, 24), bridge(3, "cni0", "10.88.3.1", 16)];
            let mut stream = Stream::new();
            stream.node_links(links).connect().wait_ms(200);
            stream.inspection(|reading| reading.neighbour = Some(neighbour("incomplete"))).verdict()
        };
        let words = "the node cannot resolve the link-layer address of 10.88.0.2 on docker0: it sent requests, and nobody answered";
        let both = reported("10.88.0.1");
        assert_ends(&both.remediation, ": ip route get 10.88.0.2; ip neigh show 10.88.0.2");
        let overlap = "; a pod of this node has that address. The subnets of docker0 and cni0 overlap, and the route leads to docker0";
        assert_eq!(both.summary, format!("{words}{overlap}"));
        assert_eq!(reported("10.77.0.1").summary, words, "no subnets overlap");
    }

    #[test]
    fn an_incomplete_entry_decides_while_the_attempt_waits() {
        let waiting = |state: &str| {
            let entry = Some(neighbour(state));
            Stream::new().connect().wait_ms(200).inspection(|reading| reading.neighbour = entry).clone()
        };
        assert_eq!(waiting("incomplete").causes(), ["neighbour_failure"]);
        assert_eq!(waiting("reachable").gives_up().causes(), ["unexplained"]);
    }
}
