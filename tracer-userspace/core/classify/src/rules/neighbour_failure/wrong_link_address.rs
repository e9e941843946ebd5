//! A frame of the handshake was sent to a link-layer address that is not the receiver's. The sender's neighbour entry is
//! wrong.

use std::net::IpAddr;

use super::super::*;
use super::may_answer;
use tracer_model::event::{Netns, PacketDrop, WrongNeighbour};

pub(super) fn find(case: &Case<'_>) -> Option<Finding> {
    let attempt = case.attempt;
    let has_waited = attempt.retransmits.0 > 0 || attempt.ended.is_some();
    if !case.settled || !has_waited || !in_handshake(case) {
        return None;
    }
    by_frame(case).or_else(|| by_entry(case))
}

/// The frame reached the right host. The kernel drops such a frame as one for another host (`ip_rcv_core`,
/// net/ipv4/ip_input.c, OTHERHOST). It also drops the copies that a bridge floods, but not in the namespace that has the
/// packet's address.
fn by_frame(case: &Case<'_>) -> Option<Finding> {
    let attempt = case.attempt;
    // An answer after the end is late.
    let in_time = |time: u64| attempt.ended.is_none_or(|(ended, _)| time <= ended);
    // The target's socket has taken the first SYN, and drops the next one.
    let is_silent = !is_answered(case) && drops(case).all(|(_, drop)| is_second_syn(case, drop));
    let mut frames = attempt.for_other_hosts.iter().filter(|(time, _)| is_silent && in_time(*time));
    let (time, drop) = frames.find(|(_, drop)| is_at_destination(case, drop) && !may_be_copy(case, drop))?;
    let (place, device) = (in_namespace(case, drop.netns), device(drop));
    let (to, of) = next_hop(case, drop);
    let summary = format!(
        "the {} {} arrived{place} in a frame for another link-layer address than that of {device}: the sender's neighbour entry of {of} is wrong",
        drop.flags.name(),
        drop.flow
    );
    let show = drop.device.as_ref().map_or_else(String::new, |_| format!(" {}", shell::link(&device)));
    let fix = Remediation::from(format!(
        "Compare the link's address with that of {of} in the sender's `ip neigh`. Correct the entry, {CORRECT}"
    ))
    .run([run_in(case, drop.netns, format!("ip link show{show}"))])
    .run(sender(case, drop).into_iter().flat_map(|sender| match to {
        Some(to) => vec![show_entry(case, sender, to), correct_entry(case, sender, to)],
        None => vec![run_in(case, Some(sender), "ip neigh".to_owned())],
    }));
    Some(Finding::likely(Cause::NeighbourFailure, vec![of_drop(*time, drop)], summary, fix).rests_on_lost_packet())
}

/// The address that the sender needed the link-layer address of, if it is known, and its description. The answer may go
/// to a gateway, as with Calico, the AWS VPC CNI and Azure CNI.
fn next_hop(case: &Case<'_>, drop: &PacketDrop) -> (Option<IpAddr>, String) {
    let to = drop.flow.dst.ip();
    let reading = inspected(case).filter(|_| drop.flow.src == case.attempt.flow.dst).map(|(_, reading)| reading);
    if let Some(entry) = reading.and_then(|reading| reading.wrong_neighbour_back.as_ref()) {
        return (Some(entry.addr), entry.addr.to_string());
    }
    let link = reading.and_then(|reading| reading.link_with(case.attempt.flow.dst.ip()));
    match link.is_some_and(|link| !link.covers(to)) {
        true => (None, format!("{to}, or of the gateway to it,")),
        false => (Some(to), to.to_string()),
    }
}

/// The namespace that sent the packet, if it is known.
fn sender(case: &Case<'_>, drop: &PacketDrop) -> Option<Netns> {
    let (from, target) = (case.attempt.netns?, case.attempt.flow.dst);
    if drop.flow.src == target { case.node.netns_of_addr(from, target.ip()) } else { Some(from) }
}

/// The command that shows the neighbour entry of an address in this namespace.
fn show_entry(case: &Case<'_>, netns: Netns, addr: IpAddr) -> Command {
    run_in(case, Some(netns), format!("ip neigh show {addr}"))
}

/// The command that corrects it. Its device is in the output of the other command if what was read does not decide it.
fn correct_entry(case: &Case<'_>, netns: Netns, addr: IpAddr) -> Command {
    let target = case.attempt.flow.dst.ip();
    let link = inspected(case).and_then(|(_, reading)| {
        if reading.netns == Some(netns) {
            return reading.link_with(target);
        }
        let entry = reading.neighbour.as_ref().filter(|_| reading.from == netns)?;
        case.node.links.by_index(netns, entry.ifindex)
    });
    let link = link.map_or("DEVICE", |link| shell::link(&link.name));
    // Nothing may answer for a gateway (169.254.1.1 of the AWS VPC CNI): the CNI writes that entry once.
    let gateway = inspected(case).and_then(|(_, it)| it.wrong_neighbour_back.as_ref());
    let gateway = gateway.filter(|entry| entry.addr == addr && addr != case.attempt.flow.src.ip());
    run_in(
        case,
        Some(netns),
        match gateway {
            Some(entry) => format!("ip neigh replace {addr} lladdr {} dev {link}", entry.link_lladdr),
            None => format!("ip neigh del {addr} dev {link}"),
        },
    )
}

const CORRECT: &str = "or restart the CNI's agent that wrote it. Where systemd gives veths another address after the CNI (MACAddressPolicy=persistent), set MACAddressPolicy=none for them in a .link file of /etc/systemd/network";

/// The entry was read. The frame went to another host, which drops it, or to nobody. An entry on another link than the
/// pod's belongs to a route that leads there: the route is wrong.
fn by_entry(case: &Case<'_>) -> Option<Finding> {
    let (time, reading) = inspected(case)?;
    let (from, pod) = (reading.from, reading.netns?);
    let there = reading.wrong_neighbour.as_ref().filter(|_| reading.stray_route.is_none());
    let there = there.map(|entry| (entry, from, pod, "the SYN"));
    // Some dataplanes answer for a gateway with an address that no link has (a virtual router).
    let is_met =
        |entry: &&WrongNeighbour| entry.addr == case.attempt.flow.src.ip() || !case.attempt.for_other_hosts.is_empty();
    let back = || reading.wrong_neighbour_back.as_ref().filter(is_met);
    let back = || back().map(|entry| (entry, pod, from, "the answer to the SYN"));
    let (entry, sender, receiver, packet) = there.or_else(back)?;
    if is_answered(case) || !may_answer(case) || !drops(case).all(|(_, drop)| is_of_stray_frame(case, drop, from, pod))
    {
        return None;
    }
    let (addr, lladdr, link, own) = (entry.addr, &entry.lladdr, &entry.link, &entry.link_lladdr);
    let (at, place) = (in_namespace(case, Some(sender)), in_namespace(case, Some(receiver)));
    let text = format!("the neighbour entry of {addr}{at} has {lladdr}, and {link}{place} has {own}");
    let fields = json!({ "addr": addr, "lladdr": lladdr, "link": link, "link_lladdr": own, "netns": sender });
    let summary = format!("{text}: {packet} goes to another host, or to none");
    let fix = Remediation::from(format!("Correct the entry of {addr}{at} (the last command), {CORRECT}")).run([
        show_entry(case, sender, addr),
        run_in(case, Some(receiver), format!("ip link show {}", shell::link(link))),
        correct_entry(case, sender, addr),
    ]);
    let evidence = vec![evidence_of("rtnetlink", time, text, fields)];
    Some(Finding::likely(Cause::NeighbourFailure, evidence, summary, fix).resting_on(&[Hook::KfreeSkb]))
}

fn is_answered(case: &Case<'_>) -> bool {
    case.attempt.icmp().next().is_some() || case.attempt.reset_received().is_some()
}

/// The host that got the frame dropped the packet, or the bridge had no port for it. Or the pod's answer was lost like
/// that, and its kernel drops the next SYN.
fn is_of_stray_frame(case: &Case<'_>, drop: &PacketDrop, from: Netns, pod: Netns) -> bool {
    let elsewhere = drop.netns.is_some_and(|netns| netns != from && netns != pod);
    // Before 6.12 the kernel gives no reason there.
    let in_bridge = || matches!(dropped_in(drop), Some("br_handle_frame_finish" | "br_flood"));
    let no_port = match drop.reason.as_deref() {
        None | Some("NOT_SPECIFIED") => in_bridge(),
        Some(reason) => reason == "NO_TX_TARGET",
    } && !outbound(case, drop);
    elsewhere || no_port || is_second_syn(case, drop) && drop.netns == Some(pod)
}

/// The namespace has the address that the packet was sent to.
fn is_at_destination(case: &Case<'_>, drop: &PacketDrop) -> bool {
    let (Some(from), target) = (case.attempt.netns, case.attempt.flow.dst) else { return false };
    let to = match drop.flow {
        back if back.src == target => Some(from),
        there if there.dst == target => case.node.netns_of_addr(from, target.ip()),
        _ => None,
    };
    drop.netns.is_some() && drop.netns == to
}

/// The packet arrived on another device than the one that it was sent to. For an answer that is the device of the node's
/// route to the target, and an unknown one counts as another. For a SYN it is the link with the target's address. A
/// process that forwards frames itself (AF_PACKET) reads them there, and the kernel gets a copy. A bridge floods a copy
/// to a pod's second link. A rule that redirects (nftables `fwd`, mirred) leads the frame to any link, such as `lo`.
fn may_be_copy(case: &Case<'_>, drop: &PacketDrop) -> bool {
    let device = drop.device.as_ref().map(|device| device.ifindex);
    if drop.netns != case.attempt.netns {
        let read = inspected(case).filter(|(_, reading)| reading.netns == drop.netns);
        let own = read.and_then(|(_, reading)| reading.link_with(case.attempt.flow.dst.ip()));
        let is_elsewhere = own.is_some_and(|link| !link.loopback && device.is_some_and(|at| at != link.ifindex));
        return is_elsewhere || drop.device.as_ref().is_some_and(|at| at.loopback);
    }
    let mut routes = inspections(case).filter_map(|(_, reading)| Some(reading.neighbour.as_ref()?.ifindex));
    !routes.any(|route| device == Some(route))
}

fn device(drop: &PacketDrop) -> String {
    drop.device.as_ref().map_or_else(|| "its link".to_owned(), |device| device.name.clone())
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    /// A forwarder in userspace reads the frames of the pod's link and delays them.
    #[test]
    fn a_copy_that_may_be_of_another_device_than_that_of_the_route_proves_nothing() {
        let verdict = |ifindex: Option<u32>, entry: Option<NeighbourState>| {
            let device = |ifindex| device(ifindex, "veth1");
            let mut stream = Stream::new();
            stream.connect().wait_ms(200).inspection(|reading| reading.neighbour = entry);
            stream.drop_on(SYN_ACK, "OTHERHOST", NODE, ifindex.map(device)).syn_again().gives_up().verdict()
        };
        let route = Some(neighbour("reachable"));
        let wrong = verdict(Some(2), route.clone());
        assert_eq!(wrong.cause, Cause::NeighbourFailure);
        assert_has(&wrong.summary, &["another link-layer address than that of veth1"]);
        assert_has(&wrong.remediation, &["ip link show veth1; nsenter", "ip neigh show 10.88.0.1; nsenter"]);
        assert_ends(&wrong.remediation, "ip neigh del 10.88.0.1 dev DEVICE");
        for (ifindex, route) in [(Some(3), route.clone()), (None, route), (Some(2), None)] {
            assert_eq!(verdict(ifindex, route).cause, Cause::Unexplained);
        }
    }

    /// Seen with `fwd to "lo"` of nftables at ingress.
    #[test]
    fn a_frame_on_another_link_of_the_pod_than_that_with_the_address_proves_nothing() {
        let verdict = |ifindex| {
            let mut stream = read(|reading| reading.links = vec![link(2, "eth0", &["10.88.0.2"])]);
            stream.drop_on(SYN, "OTHERHOST", POD, Some(device(ifindex, "any"))).syn_again().gives_up().verdict()
        };
        assert_eq!([2, 1].map(|at| verdict(at).cause), [Cause::NeighbourFailure, Cause::Unexplained]);
    }

    #[test]
    fn the_route_is_known_from_an_earlier_inspection() {
        let mut stream = Stream::new().connect().wait_ms(200).clone();
        stream.inspection(|reading| reading.neighbour = Some(neighbour("reachable"))).syn_again().wait_ms(200);
        stream.inspection(|_| ()).drop_on(SYN_ACK, "OTHERHOST", NODE, Some(device(2, "veth1"))).gives_up();
        assert_eq!(stream.causes(), ["neighbour_failure"]);
    }

    #[test]
    fn a_frame_that_the_handshake_did_not_miss_does_not_count() {
        let mut after = Stream::new();
        after.connect().syn_again().gives_up().wait_ms(10).drop(SYN_ACK, "OTHERHOST", NODE).settles();
        assert!(!after.causes().contains(&"neighbour_failure"), "after the end");
        let flooded = Stream::new().connect().drop(SYN_ACK, "OTHERHOST", POD).syn_again().gives_up().clone();
        assert_eq!(flooded.causes(), ["unexplained"], "a copy in another pod");
        let established = Stream::new().connect().drop(SYN_ACK, "OTHERHOST", NODE).established().clone();
        assert!(established.causes().is_empty());
    }

    fn read(fill: impl FnOnce(&mut Inspection)) -> Stream {
        let mut stream = Stream::new();
        stream.links(true, &["10.88.0.1"]).connect().wait_ms(200).inspection(fill);
        stream
    }

    fn wrong(addr: &str, link: &str) -> Option<WrongNeighbour> {
        let [lladdr, link_lladdr] = ["02:00:00:00:00:99", "0a:58:0a:58:00:01"].map(str::to_owned);
        Some(WrongNeighbour { addr: address(addr), lladdr, link: link.into(), link_lladdr })
    }

    /// Seen on 6.18, as Calico and the AWS VPC CNI route: the pod's entry of its gateway was wrong, and its kernel
    /// dropped the second SYN.
    #[test]
    fn the_entry_of_the_pods_gateway_is_named() {
        let verdict = |entry: Option<&str>, prefix: u8, dropped_in: &str| {
            let own = LinkState { prefixes: vec![prefix], peer_ifindex: Some(3), ..link(2, "eth0", &["10.88.0.2"]) };
            let mut stream = read(|reading| {
                reading.links = vec![own];
                reading.neighbour = Some(NeighbourState { ifindex: 3, ..neighbour("reachable") });
                reading.wrong_neighbour_back = entry.and_then(|addr| wrong(addr, "cali7"));
            });
            stream.drop_on(SYN_ACK, "OTHERHOST", NODE, Some(device(3, "cali7"))).wait_ms(800).syn_again();
            stream.drop_with(SYN, POD, |drop| {
                (drop.reason, drop.location) = (Some("NOT_SPECIFIED".into()), Some(dropped_in.into()));
            });
            stream.gives_up().verdict()
        };
        let read = verdict(Some("169.254.1.1"), 32, "tcp_v4_rcv");
        assert_eq!((read.cause, read.confidence), (Cause::NeighbourFailure, Confidence::Likely));
        assert_ends(&read.summary, "than that of cali7: the sender's neighbour entry of 169.254.1.1 is wrong");
        assert_ends(&read.remediation, "ip neigh replace 169.254.1.1 lladdr 0a:58:0a:58:00:01 dev eth0");
        let unread = verdict(None, 32, "tcp_v4_rcv");
        assert_ends(&unread.summary, "the sender's neighbour entry of 10.88.0.1, or of the gateway to it, is wrong");
        assert_ends(&unread.remediation, " ip neigh");
        assert_ends(&verdict(None, 24, "tcp_v4_rcv").summary, "the sender's neighbour entry of 10.88.0.1 is wrong");
        assert_ne!(verdict(None, 32, "ip_rcv_finish").cause, Cause::NeighbourFailure, "something else lost the SYN");
    }

    /// Another pod has that link-layer address, or nobody.
    #[test]
    fn a_wrong_entry_is_read() {
        let there = || read(|reading| reading.wrong_neighbour = wrong("10.88.0.2", "eth0"));
        let verdict = there().gives_up().verdict();
        assert_eq!((verdict.cause, verdict.confidence), (Cause::NeighbourFailure, Confidence::Likely));
        assert_starts(
            &verdict.summary,
            "the neighbour entry of 10.88.0.2 on the node has 02:00:00:00:00:99, and eth0 in",
        );
        assert_has(&verdict.remediation, &[": ip neigh show 10.88.0.2; ", "ip link show eth0; ip neigh del"]);
        let mut taken = there();
        assert_eq!(taken.drop(SYN, "IP_INADDRERRORS", Netns(9)).gives_up().causes(), ["neighbour_failure"]);
        assert_eq!(there().gives_up().causes(), there().syn_again().gives_up().causes());
        let mut arrived = there();
        assert_eq!(arrived.drop(SYN, "SOCKET_FILTER", POD).gives_up().last_decided().0, "network_policy_drop");
        let mut astray = there();
        astray.wait_ms(10).inspection(|reading| {
            reading.wrong_neighbour = wrong("10.88.0.2", "eth0");
            reading.stray_route = Some(stray("veth3", "veth2", 254));
        });
        let verdict = astray.gives_up().verdict();
        assert_eq!(verdict.cause, Cause::Unexplained);
        assert_has(&verdict.summary, &["leads out of veth3, while the pod is behind veth2"]);
        let mut corrected = there();
        corrected.wait_ms(800).syn_again().wait_ms(200).inspection(|_| ()).gives_up();
        assert_eq!(corrected.causes(), ["unexplained"]);
    }

    #[test]
    fn a_wrong_entry_of_the_pod_is_read() {
        let back = || read(|reading| reading.wrong_neighbour_back = wrong("10.88.0.1", "cni0"));
        let verdict = back().gives_up().verdict();
        assert_eq!(verdict.cause, Cause::NeighbourFailure);
        assert_has(&verdict.summary, &["and cni0 on the node has", "the answer to the SYN goes to another host"]);
        let mut virtual_router = read(|reading| reading.wrong_neighbour_back = wrong("169.254.1.1", "tap3"));
        assert_eq!(virtual_router.gives_up().causes(), ["unexplained"], "no frame shows it");
        let mut unsent = back();
        assert_eq!(unsent.drop(SYN_ACK, "NO_TX_TARGET", NODE).gives_up().causes(), ["neighbour_failure"]);
        let mut older = back();
        older.drop_with(SYN_ACK, NODE, |drop| {
            (drop.reason, drop.location) = (None, Some("br_handle_frame_finish".into()));
        });
        assert_eq!(older.gives_up().causes(), ["neighbour_failure"], "before 6.12");
        let mut again = back();
        again.wait_ms(800).syn_again().drop_with(SYN, POD, |drop| {
            (drop.reason, drop.location) = (Some("NOT_SPECIFIED".into()), Some("tcp_v4_rcv".into()));
        });
        assert_eq!(again.gives_up().causes(), ["neighbour_failure"]);
    }
}
