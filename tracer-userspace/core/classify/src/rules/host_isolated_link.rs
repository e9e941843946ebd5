//! The pod's link is a macvlan or ipvlan of the device on which the node resolves the pod's address. A host does not
//! reach a macvlan or ipvlan over the device under it.

use std::net::IpAddr;

use super::*;
use tracer_case::drop_reason::is_unresolved;
use tracer_model::event::{Inspection, LinkState, ParentLink};

pub(super) fn find(case: &Case<'_>) -> Option<Finding> {
    let (time, reading) = inspected(case).filter(|_| in_handshake(case))?;
    let (link, parent) = link_and_parent(reading, case)?;
    let (ifindex, unresolved) = unresolved(case, time, reading)?;
    if parent.ifindex != ifindex {
        return None;
    }
    let target = case.attempt.flow.dst.ip();
    let known = case.node.links.by_index(reading.from, ifindex).map(|link| link.name.as_str());
    let kind = &parent.kind;
    let name = known.map_or_else(|| format!("device {ifindex}"), str::to_owned);
    let parent = known.map_or("DEVICE", shell::link);
    let text = format!("{} of the pod is a {kind} of {name}", link.name);
    let fields = json!({ "kind": kind, "parent_ifindex": ifindex, "netns": reading.netns });
    let summary = format!(
        "{target} is on {}, a {kind} of {name}, and the node resolves this address on {name} itself; a host does not reach a {kind} over the device under it",
        link.name
    );
    let otherwise = format!(
        "Or let the pod's first network be a bridge or veth, with the {kind} as a second one. Or use an exec probe"
    );
    let fix = if kind.starts_with("ip") {
        Remediation::from(format!("{IPVLAN} {otherwise}"))
    } else {
        let link =
            [format!("ip link add shim0 link {parent} type macvlan mode bridge"), "ip link set shim0 up".to_owned()];
        let (address, route) = match target {
            IpAddr::V4(_) => (None, format!("ip route replace {target} dev shim0")),
            IpAddr::V6(_) => (
                Some("ip addr add FREE-ADDRESS/128 dev shim0 nodad".to_owned()),
                format!("ip -6 route replace {target} dev shim0 src FREE-ADDRESS"),
            ),
        };
        let why = if target.is_ipv6() { FREE_ADDRESS } else { "" };
        let commands = link.into_iter().chain(address).chain([route]);
        Remediation::from(format!("{MACVLAN}{why} {otherwise}"))
            .run(commands.map(|command| run_in(case, case.attempt.netns, command)))
    };
    let evidence = vec![evidence_of("rtnetlink", time, text, fields), unresolved];
    Some(Finding::likely(Cause::HostIsolatedLink, evidence, summary, fix).rests_on_lost_packet())
}

const MACVLAN: &str = "Give the node a macvlan of its own beside the pods', and a route over it. If it has one already (`ip -d link show type macvlan`), set that link up and restore its route instead. The pods' links must have the mode bridge: `ip -d link` in the pod shows it.";

/// A device answers ARP requests for each local address, but neighbour solicitations only for its own.
const FREE_ADDRESS: &str = " FREE-ADDRESS is an address of the pods' subnet that nobody has.";

/// No commands: the mode belongs to the device, so a link with another mode changes that of all pods (`ipvlan_link_new`).
/// The device finds an ipvlan by its address, so a link without one gets no answers.
const IPVLAN: &str = "Give the node an ipvlan of its own, with a free address, and a route over it to the pods with that address as its source (src). It must have the mode of the pods' links (`ip -d link` in the pod shows it), or it changes theirs.";

/// The link that has the target's address, and its parent device, which is in the prober's namespace.
fn link_and_parent<'a>(reading: &'a Inspection, case: &Case<'_>) -> Option<(&'a LinkState, &'a ParentLink)> {
    let target = case.attempt.flow.dst.ip();
    let link = reading.link_with(target).filter(|_| reading.netns.is_some())?;
    Some((link, link.parent.as_ref().filter(|parent| parent.is_of_prober)?))
}

/// The device on which the node tried to resolve the address and got no answer.
fn unresolved(case: &Case<'_>, time: u64, reading: &Inspection) -> Option<(u32, Evidence)> {
    let target = case.attempt.flow.dst;
    let mut drops =
        case.attempt.drops().filter(|(at, drop)| is_of_handshake(case, *at, drop) && drop.flow.dst == target);
    let dropped =
        drops.find_map(|(at, drop)| Some((drop.device.as_ref().filter(|_| is_unresolved(drop))?, of_drop(at, drop))));
    if let Some((device, dropped)) = dropped {
        return Some((device.ifindex, dropped));
    }
    let entry = reading.unresolved_target()?;
    let text = format!("the neighbour entry of {} is {}", entry.addr, entry.state);
    let read = evidence_of("neighbour", time, text, json!({ "state": entry.state, "ifindex": entry.ifindex }));
    (case.settled && silent(case)).then_some((entry.ifindex, read))
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    /// A pod with a link of this kind. The node resolves its address on device 2, and gets no answer.
    fn with_link(kind: &str, ifindex: u32, is_of_prober: bool, dropped: bool) -> Stream {
        let mut stream = Stream::new();
        stream.connect().wait_ms(200).inspection(|reading| {
            let parent = Some(ParentLink { kind: kind.into(), ifindex, is_of_prober });
            let addrs = vec![reading.target.ip()];
            reading.links = vec![LinkState { addrs, parent, ..link(5, "eth0", &[]) }];
            reading.neighbour = Some(NeighbourState { addr: reading.target.ip(), ..neighbour("incomplete") });
        });
        if dropped {
            stream.wait_ms(700).drop_on(SYN, "NEIGH_FAILED", NODE, Some(device(2, "ens3")));
        }
        stream.gives_up();
        stream
    }

    #[test]
    fn a_host_does_not_reach_its_own_macvlan() {
        for (kind, dropped) in [("macvlan", false), ("macvlan", true), ("ipvlan", true)] {
            let stream = with_link(kind, 2, true, dropped);
            assert_eq!(stream.causes(), ["host_isolated_link"], "{kind} {dropped}");
            let verdict = stream.verdict();
            assert_eq!(verdict.confidence, Confidence::Likely);
            let commands = verdict.remediation.commands;
            if kind == "ipvlan" {
                assert!(commands.is_empty(), "another mode would break the pods: {commands:?}");
            } else {
                assert_eq!(commands[0].run, "ip link add shim0 link DEVICE type macvlan mode bridge");
                assert_eq!(commands[2].run, "ip route replace 10.88.0.2 dev shim0");
            }
        }
    }

    /// Seen on 6.18: the pod gets no answer for an address that shim0 does not have itself.
    #[test]
    fn the_nodes_macvlan_needs_an_ipv6_address_of_its_own() {
        let mut stream = Stream::to("[fd00::2]:8080");
        stream.connect().wait_ms(200).inspection(|reading| {
            let parent = Some(ParentLink { kind: "macvlan".into(), ifindex: 2, is_of_prober: true });
            reading.links = vec![LinkState { parent, ..link(5, "eth0", &["fd00::2"]) }];
            reading.neighbour = Some(NeighbourState { addr: reading.target.ip(), ..neighbour("incomplete") });
        });
        let fix = stream.gives_up().verdict().remediation;
        let last =
            "ip addr add FREE-ADDRESS/128 dev shim0 nodad; ip -6 route replace fd00::2 dev shim0 src FREE-ADDRESS";
        assert_ends(&fix, last);
    }

    /// The kernel accepts nearly any bytes in the name of a device.
    #[test]
    fn a_device_name_with_shell_characters_is_not_pasted() {
        let fix = |name: &str| {
            let links = Links { netns: NODE, cookie: None, links: vec![link(2, name, &[])] };
            let mut stream = with_link("macvlan", 2, true, true);
            stream
                .observations
                .insert(1, Observation { time_boot_ns: 1_000_001_500, kind: ObservationKind::Links(links) });
            stream.verdict().remediation.to_string()
        };
        assert_has(&fix("ens3"), &["shim0 link ens3 type macvlan"]);
        assert_has(&fix("e$(reboot)"), &["shim0 link DEVICE type macvlan"]);
    }

    /// The host has its own macvlan, or the pod's parent device is another node's.
    #[test]
    fn a_pod_is_not_isolated_if_the_node_uses_another_device() {
        for (ifindex, is_of_prober) in [(3, true), (2, false)] {
            for dropped in [false, true] {
                assert_eq!(with_link("macvlan", ifindex, is_of_prober, dropped).causes(), ["neighbour_failure"]);
            }
        }
    }
}
