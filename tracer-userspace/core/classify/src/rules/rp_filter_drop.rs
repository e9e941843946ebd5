//! The reverse-path filter dropped a packet of this attempt.

use std::net::IpAddr;

use super::*;
use tracer_case::drop_reason::{is_unresolved, may_be_rp_filter};
use tracer_case::links::way_back_has_worked;
use tracer_case::serving::INSPECTION_NS;
use tracer_model::event::{Inspection, LinkState, PacketDrop};

pub(super) fn find(case: &Case<'_>) -> Option<Finding> {
    by_drop(case).or_else(|| unanswered(case))
}

fn by_drop(case: &Case<'_>) -> Option<Finding> {
    let mut drops = case.attempt.drops().filter(|(time, drop)| is_of_handshake(case, *time, drop));
    let (time, drop, confidence) = drops.find_map(|(time, d)| Some((time, d, is_rp_filter(case, d)?)))?;
    if may_lack_route(case, drop) {
        return None;
    }
    let device = drop.device.as_ref().map_or("the device it came in on", |d| d.name.as_str());
    let (src, flow, place) = (drop.flow.src.ip(), drop.flow, in_namespace(case, drop.netns));
    let summary = format!(
        "the reverse-path filter{place} dropped the {} {flow} that came in on {device}: the route back to {src} does not lead there",
        drop.flags.name()
    );
    let (text, set) = match setting(case, drop) {
        Some((set, why)) => match way_back(case, drop) {
            Some(leads) => (fix_route(src, leads, device), None),
            None => (format!("Fix the route to {src}, or loosen the filter of {device}: {why}"), Some(set)),
        },
        None => (format!("Add a route to {src}: the filter of {device} is loose (2), and drops what has none"), None),
    };
    let show = way_back(case, drop).map(|_| format!("ip route show table all match {src}"));
    let commands = [format!("ip route get {src}")].into_iter().chain(show).chain(set);
    let remediation = Remediation::from(text).run(commands.map(|command| run_in(case, drop.netns, command)));
    let found = Finding::failure(Cause::RpFilterDrop, vec![of_drop(time, drop)], summary, remediation);
    // The attempt ended before it was read whether there is a route back.
    let most = if is_unread(case, drop) { Confidence::Likely } else { Confidence::Proven };
    Some(found.with_confidence(confidence.min(most)).rests_on_lost_packet())
}

fn fix_route(to: IpAddr, leads: &str, device: &str) -> String {
    format!(
        "Fix the route to {to}, which leads out of {leads}. Loosening the filter of {device} helps only if the answer can go back over {leads}"
    )
}

/// The strict filter of the pod's link keeps its kernel from answering ARP requests, too (`arp_process`, net/ipv4/arp.c,
/// asks for a route back to the sender). So no SYN leaves if the prober has no neighbour entry.
fn unanswered(case: &Case<'_>) -> Option<Finding> {
    let (time, reading) = inspected(case).filter(|_| case.settled && in_handshake(case))?;
    let (entry, stray) = reading.unresolved_target().zip(reading.stray_way_back.as_ref())?;
    let netns = reading.netns.filter(|netns| entry.addr.is_ipv4() && !case.node.is_a_node(*netns))?;
    let link = reading.link_with(entry.addr).filter(|link| link.up && link.name == stray.pod_device)?;
    let of_all = reading.values.get("all.rp_filter").copied();
    let is_local = reading.links.iter().any(|link| link.loopback && link.name == stray.device);
    let is_lost = case.attempt.reset_received().is_none() && drops(case).all(|(_, drop)| is_unresolved(drop));
    if link.rp_filter.map(u64::from).max(of_all) != Some(1) || is_local || !is_lost || way_back_has_worked(case, stray)
    {
        return None;
    }
    let (src, place, (device, leads)) =
        (case.attempt.flow.src.ip(), in_namespace(case, Some(netns)), (&link.name, &stray.device));
    let text = format!(
        "the reverse-path filter of {device}{place} is strict, and the route back to {src} leads out of {leads}"
    );
    let fields = json!({ "device": leads, "netns": netns, "pod_device": device, "rp_filter": 1, "to": src });
    let summary = format!(
        "nobody answers for the link-layer address of {}: {text}, so its kernel answers no ARP request",
        entry.addr
    );
    let show = [format!("ip route get {src}"), format!("ip route show table all match {src}")];
    let fix = Remediation::from(fix_route(src, leads, device)).run(show.map(|it| run_in(case, Some(netns), it)));
    let evidence = vec![evidence_of("inspection", time, text, fields)];
    Some(Finding::likely(Cause::RpFilterDrop, evidence, summary, fix).rests_on_lost_packet())
}

/// Without any route back, the filter drops the packet whatever its value (`__fib_validate_source`: `last_resort`), and
/// without the filter the kernel cannot answer. An inspection shows that; `route_unreachable` names it.
fn may_lack_route(case: &Case<'_>, drop: &PacketDrop) -> bool {
    let lacks = |reading: &Inspection| reading.netns == drop.netns && reading.no_way_back.is_some();
    let is_lacking = || drop.netns != case.attempt.netns && inspections(case).any(|(_, reading)| lacks(reading));
    case.attempt.ended.is_none() && is_unread(case, drop) || is_lacking()
}

/// The packet was dropped in another namespace, and no reading since the start shows whether there is a route back. A
/// reading that began before the start was asked for by another attempt, perhaps before the route was lost. One without
/// a namespace saw nothing of the pod.
fn is_unread(case: &Case<'_>, drop: &PacketDrop) -> bool {
    let began = case.attempt.started.saturating_add(INSPECTION_NS);
    let shows = |(time, reading): (u64, &Inspection)| reading.netns.is_some() && time > began;
    drop.netns != case.attempt.netns && !inspections(case).any(shows)
}

/// The command that lets the packet pass, and the reason for its value; `None` if the filter is loose already.
fn setting(case: &Case<'_>, drop: &PacketDrop) -> Option<(String, &'static str)> {
    let named = drop.device.as_ref().map_or_else(|| "DEVICE".to_owned(), |d| shell::link_setting(&d.name));
    let set = format!("sysctl -w net.ipv4.conf.{named}.rp_filter");
    Some(match has_address(case, drop) {
        Some(true) if value(case, drop) == Some(2) => return None,
        Some(true) => (format!("{set}=2"), "2 is loose; the higher of this value and that of net.ipv4.conf.all counts"),
        Some(false) => (
            format!("{set}=0 net.ipv4.conf.all.rp_filter=0"),
            "loose, 2, drops there too, because that device has no IPv4 address; the higher of the two settings counts. 0 for all switches the filter off on each device that has 0 itself. A new pod's device takes net.ipv4.conf.default, or what a file in sysctl.d sets for its name: set 0 there, too",
        ),
        None => (
            format!("{set}=2"),
            "2 is loose; the higher of this value and that of net.ipv4.conf.all counts. On a device without an IPv4 address of its own only 0 for both helps",
        ),
    })
}

/// Whether the device has an IPv4 address; absent if its links were not read. Without one, loose filtering drops as
/// strict does, unless the route back leads there (`no_addr`, `__fib_validate_source`). The node's end of a routed veth
/// (lxc*, cali*, eni*) is such a device.
fn has_address(case: &Case<'_>, drop: &PacketDrop) -> Option<bool> {
    link_of(case, drop).map(|link| link.addrs.iter().any(IpAddr::is_ipv4))
}

/// The device on which the packet came in, as it was read; absent if the links there were not read.
fn link_of<'a>(case: &Case<'a>, drop: &PacketDrop) -> Option<&'a LinkState> {
    let (netns, device) = (drop.netns?, drop.device.as_ref()?);
    let read = || reading_of(case, drop).map(|reading| reading.links.as_slice());
    let links = case.node.links.get(&netns).or_else(read)?;
    links.iter().find(|link| link.ifindex == device.ifindex && link.name == device.name)
}

/// The inspection of the target, if the packet was dropped in the target's namespace.
fn reading_of<'a>(case: &Case<'a>, drop: &PacketDrop) -> Option<&'a Inspection> {
    let netns = drop.netns?;
    inspected(case).map(|(_, reading)| reading).filter(|reading| reading.netns == Some(netns))
}

/// The other device over which the route back leads, as the target's inspection found it.
fn way_back<'a>(case: &Case<'a>, drop: &PacketDrop) -> Option<&'a str> {
    Some(reading_of(case, drop).filter(|_| outbound(case, drop))?.stray_way_back.as_ref()?.device.as_str())
}

/// Judges by the kernel's reason. The function drops for a few rarer reasons, too (martian addresses). So it counts only
/// where the filter drops packets of an asymmetric route.
fn is_rp_filter(case: &Case<'_>, drop: &PacketDrop) -> Option<Confidence> {
    if !may_be_rp_filter(drop) {
        return None;
    }
    match drop.reason {
        Some(_) => Some(Confidence::Proven),
        None => (is_strict(case, drop) && !has_source(case, drop)).then_some(Confidence::Likely),
    }
}

/// The namespace that dropped the packet has the address of its sender: `fib_validate_source` takes no packet from a
/// local address.
fn has_source(case: &Case<'_>, drop: &PacketDrop) -> bool {
    let Some(reading) = reading_of(case, drop).filter(|_| outbound(case, drop)) else { return false };
    let way_back = reading.stray_way_back.as_ref();
    way_back.is_some_and(|way| reading.links.iter().any(|link| link.loopback && link.name == way.device))
}

/// The filter of the device. The greater of its own setting and that of all counts (`IN_DEV_RPFILTER`,
/// include/linux/inetdevice.h).
fn value(case: &Case<'_>, drop: &PacketDrop) -> Option<u64> {
    let own = link_of(case, drop).and_then(|link| link.rp_filter).map(u64::from);
    own.max(filter_of_all(case, drop))
}

/// The device filters strictly, or loosely where that drops the same.
fn is_strict(case: &Case<'_>, drop: &PacketDrop) -> bool {
    match value(case, drop) {
        Some(1) => true,
        Some(2) => has_address(case, drop) == Some(false),
        _ => false,
    }
}

/// The setting of all devices of the namespace. A new namespace takes it over from the first one
/// (`net.core.devconf_inherit_init_net`), so if it was not read there, that of the node counts.
fn filter_of_all(case: &Case<'_>, drop: &PacketDrop) -> Option<u64> {
    let read = reading_of(case, drop).and_then(|reading| reading.values.get("all.rp_filter").copied());
    read.or_else(|| case.node.settings.sysctls.get("net.ipv4.conf.all.rp_filter")?.parse().ok())
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    /// A stream with the node's end of the pod's veth, which has these addresses.
    fn over_lxc(addrs: &[&str]) -> (Stream, Device) {
        let device = device(7, "lxc7");
        let mut stream = Stream::new();
        stream.node_links(vec![link(7, "lxc7", addrs)]);
        (stream, device)
    }

    /// systemd 245 sets 2 on Cilium's lxc*. Loose filtering drops on a device without an IPv4 address as strict does.
    #[test]
    fn loose_is_no_fix_for_a_device_without_an_address() {
        let fix = |addrs: &[&str]| {
            let (mut stream, device) = over_lxc(addrs);
            stream.connect().drop_on(SYN_ACK, "IP_RPFILTER", NODE, Some(device));
            stream.verdict().remediation
        };
        let off = "; sysctl -w net.ipv4.conf.lxc7.rp_filter=0 net.ipv4.conf.all.rp_filter=0";
        let none = fix(&["fe80::1"]);
        assert!(none.to_string().ends_with(off) && !none.to_string().contains("=2"), "{none}");
        assert_has(&none, &["net.ipv4.conf.default", "0 for all switches the filter off"]);
        let loose = fix(&["10.88.0.1"]);
        assert_ends(&loose, "; sysctl -w net.ipv4.conf.lxc7.rp_filter=2");
    }

    #[test]
    fn without_reasons_loose_filtering_counts_where_it_drops() {
        let reported = |value: &str, addrs: &[&str]| {
            let (mut stream, device) = over_lxc(addrs);
            stream.sysctl("net.ipv4.conf.all.rp_filter", value).connect().drop_with(SYN_ACK, NODE, |drop| {
                (drop.location, drop.device) = (Some("ip_rcv_finish_core.isra.0".into()), Some(device));
            });
            stream.causes() == ["rp_filter_drop"]
        };
        assert!(reported("1", &["10.88.0.1"]) && reported("2", &[]));
        assert!(!reported("2", &["10.88.0.1"]) && !reported("0", &[]));
    }

    fn filtering(link: LinkState, value: u32) -> Vec<LinkState> {
        vec![LinkState { rp_filter: Some(value), ..link }]
    }

    /// On 5.10, a drop in `ip_rcv_finish_core` of this namespace, on `veth7`.
    fn without_reason(stream: &mut Stream, flags: TcpFlags, netns: Netns) -> &mut Stream {
        stream.connect().drop_with(flags, netns, |drop| {
            (drop.location, drop.device) = (Some("ip_rcv_finish_core.isra.0".into()), Some(device(7, "veth7")));
        })
    }

    #[test]
    fn without_reasons_the_filter_of_the_device_counts() {
        let decided = |all: &str, own: u32, ifindex: u32| {
            let mut stream = Stream::new();
            stream.node_links(filtering(link(ifindex, "veth7", &["10.88.0.1"]), own));
            stream.sysctl("net.ipv4.conf.all.rp_filter", all);
            without_reason(&mut stream, SYN_ACK, NODE).gives_up().decided()
        };
        let (found, not) = (("rp_filter_drop", Confidence::Likely), ("unexplained", Confidence::Possible));
        assert_eq!((decided("0", 1, 7), decided("1", 0, 7)), (found, found));
        assert_eq!((decided("0", 0, 7), decided("1", 2, 7)), (not, not), "2, loose, is the greater one");
        assert_eq!(decided("0", 1, 8), not, "an older device of that name");
    }

    /// The kernel of a pod with two networks filters by the settings of the pod.
    #[test]
    fn without_reasons_the_filter_of_the_pod_counts() {
        let causes = |of_all: u64, own: u32, netns| {
            let mut stream = Stream::new().sysctl("net.ipv4.conf.all.rp_filter", "0").clone();
            without_reason(&mut stream, SYN, netns).wait_ms(200).inspection(|reading| {
                reading.links = filtering(link(7, "veth7", &["10.88.0.2"]), own);
                reading.values = [("all.rp_filter".to_owned(), of_all)].into();
            });
            stream.gives_up().causes()
        };
        assert_eq!((causes(1, 0, POD), causes(0, 1, POD)), (vec!["rp_filter_drop"], vec!["rp_filter_drop"]));
        assert_eq!((causes(0, 0, POD), causes(1, 1, NODE)), (vec!["unexplained"], vec!["unexplained"]));
    }

    /// The way back leads over `lo`. The filter is strict, and is not what drops the SYN.
    #[test]
    fn without_reasons_a_pod_with_the_probers_address_is_no_filter() {
        let causes = |device: &str| {
            let mut stream = Stream::new();
            without_reason(&mut stream, SYN, POD).wait_ms(200).inspection(|reading| {
                let lo = LinkState { loopback: true, ..link(1, "lo", &["127.0.0.1", "10.88.0.1"]) };
                reading.links = filtering(link(7, "veth7", &["10.88.0.2"]), 1);
                reading.links.push(lo);
                reading.stray_way_back = Some(stray(device, "veth7", 255));
            });
            stream.gives_up().causes()
        };
        assert_eq!((causes("lo"), causes("net1")), (vec!["unexplained"], vec!["rp_filter_drop"]));
    }

    /// Seen on 6.18: with the loose filter the pod answers over its second network, and the answer does not arrive.
    #[test]
    fn loosening_the_filter_helps_only_if_the_answer_can_take_the_other_way() {
        let fix = |leads: &str| {
            let mut stream = Stream::new();
            stream.connect().drop_on(SYN, "IP_RPFILTER", POD, Some(device(7, "veth7"))).wait_ms(200);
            stream.inspection(|reading| {
                reading.links = vec![link(7, "veth7", &["10.88.0.2"])];
                reading.stray_way_back = Some(stray(leads, "veth7", 255)).filter(|_| !leads.is_empty());
            });
            stream.gives_up().last_verdict().remediation
        };
        assert_has(
            &fix("net1"),
            &[
                "Fix the route to 10.88.0.1, which leads out of net1. Loosening the filter of veth7 helps only if",
                "table all match 10.88.0.1",
            ],
        );
        assert_lacks(&fix("net1"), &["sysctl"]);
        assert_has(&fix(""), &["Fix the route to 10.88.0.1, or loosen the filter of veth7", "rp_filter=2"]);
    }

    /// Seen on 6.18, after the node's neighbour entry had expired.
    #[test]
    fn a_strict_filter_answers_no_arp_request() {
        let decided = |leads: &str, filter: u32, state: &str| {
            let mut stream = Stream::new().http_readiness().connect().wait_ms(200).clone();
            stream.inspection(|reading| {
                let lo = LinkState { loopback: true, ..link(1, "lo", &["127.0.0.1"]) };
                reading.links = filtering(link(2, "eth0", &["10.88.0.2"]), filter);
                reading.links.push(lo);
                reading.stray_way_back = Some(stray(leads, "eth0", 254));
                reading.neighbour = Some(neighbour(state));
            });
            stream.gives_up().settles().last_verdict()
        };
        let found = decided("net1", 1, "failed");
        assert_eq!((found.cause.name(), found.confidence), ("rp_filter_drop", Confidence::Likely));
        assert_has(&found.summary, &["filter of eth0 in", "leads out of net1, so its kernel answers no ARP request"]);
        assert_has(&found.remediation, &["Fix the route to 10.88.0.1, which leads out of net1"]);
        let others = [("lo", 1, "failed"), ("net1", 2, "failed"), ("net1", 0, "failed"), ("net1", 1, "reachable")];
        for (leads, filter, state) in others {
            assert_ne!(decided(leads, filter, state).cause.name(), "rp_filter_drop", "{leads} {filter} {state}");
        }
    }

    /// Without any route back, the cause would be `route_unreachable`.
    #[test]
    fn an_attempt_that_ends_before_the_route_back_is_read_is_less_sure() {
        let decided = |waits_ms: u64, netns, read: bool| {
            let mut stream = Stream::new();
            stream.connect().drop_on(if netns == POD { SYN } else { SYN_ACK }, "IP_RPFILTER", netns, None);
            stream.wait_ms(waits_ms);
            if read {
                stream.inspection(|_| ());
            }
            stream.gives_up().last_decided()
        };
        let (proven, likely) = (("rp_filter_drop", Confidence::Proven), ("rp_filter_drop", Confidence::Likely));
        assert_eq!((decided(50, POD, false), decided(50, POD, true)), (likely, likely), "read for another attempt");
        assert_eq!((decided(200, POD, true), decided(50, NODE, false)), (proven, proven));
        let mut unsure = Stream::new().connect().drop_on(SYN, "IP_RPFILTER", POD, None).wait_ms(200).clone();
        unsure.inspection(|reading| reading.netns = None);
        assert_eq!(unsure.gives_up().last_decided(), likely, "it saw nothing of the pod");
    }

    #[test]
    fn a_loose_filter_is_not_to_be_loosened() {
        let (mut stream, device) = over_lxc(&["10.88.0.1"]);
        stream.sysctl("net.ipv4.conf.all.rp_filter", "2");
        let fix = stream.connect().drop_on(SYN_ACK, "IP_RPFILTER", NODE, Some(device)).verdict().remediation;
        assert_has(&fix, &["Add a route to 10.88.0.2", "is loose (2)"]);
        assert_lacks(&fix, &["sysctl"]);
    }

    #[test]
    fn a_vlans_setting_is_written_with_a_slash() {
        let fix = |name: Option<&str>| {
            let device = name.map(|name| device(2, name));
            Stream::new().connect().drop_on(SYN_ACK, "IP_RPFILTER", NODE, device).verdict().remediation
        };
        let vlan = fix(Some("eth0.100"));
        assert_has(&vlan, &["sysctl -w net.ipv4.conf.eth0/100.rp_filter=2"]);
        assert_has(&fix(None), &["sysctl -w net.ipv4.conf.DEVICE.rp_filter=2"]);
    }

    #[test]
    fn a_drop_of_a_connection_that_got_through_is_nothing() {
        let mut stream = Stream::new().connect().established().drop(SYN_ACK, "IP_RPFILTER", NODE).clone();
        stream.closes((100, 101, 200));
        assert!(stream.causes().is_empty());
    }
}
