//! What to do about a link-layer address that nobody answers for, or that finds no room in the table.

use std::net::IpAddr;

use super::super::*;
use super::gateway;
use tracer_case::drop_reason::MissingEntry;
use tracer_case::neighbour::entry_back;
use tracer_case::phrases::of_family;
use tracer_model::event::{LinkState, Netns};

pub(super) fn restore_own_address(case: &Case<'_>, netns: Netns, addr: IpAddr) -> Remediation {
    let show = ["ip rule".to_owned(), format!("ip route show table local {addr}")];
    let add = of_family(case, "ip rule add lookup local priority 0".to_owned());
    Remediation::from(format!(
        "Restore the node's rule of priority 0 ({add}). Or remove the address and add it again: that restores its route"
    ))
    .run(show.map(|command| run_in(case, Some(netns), command)))
}

const LOST_ARP: &str = "ARP does not get through. Check that the link is attached to the bridge, and that ARP is on. Check that nothing drops ARP: nftables (families arp, bridge and netdev), ebtables-legacy, arptables-legacy, tc or XDP. In the pod, arp_ignore drops it, too, and so does rp_filter 1 if the pod's route back leads over another link";
const LOST_DISCOVERY: &str = "neighbour discovery does not get through. Check that the link is attached to the bridge. Check that nothing drops ICMPv6 (types 135 and 136): a firewall of the node or the pod, tc or XDP";

/// The pod asks for its gateway: to delete a pod at the prober's address leads nowhere.
const GATEWAY: &str = "Give its address to the node's end of the link, or let that end answer for it (Calico's 169.254.1.1: proxy_arp is 1 there, and the node has a route to the gateway). Or delete the pod, so that its routes are made again";

/// The link of a pod that has this address, if it was up while the attempt waited.
fn link_of_pod<'a>(case: &Case<'a>, target: IpAddr) -> Option<(Netns, &'a LinkState)> {
    let (_, reading) = inspected(case)?;
    let pod = reading.netns.filter(|netns| *netns != reading.from && !case.node.is_a_node(*netns))?;
    let link = reading.link_with(target)?;
    (link.up && link.running != Some(false)).then_some((pod, link))
}

/// The pod's namespace is there, and no longer has the address: to delete an entry helps nothing.
fn restore_lost_address(case: &Case<'_>, target: IpAddr) -> Option<Remediation> {
    let (_, reading) = inspected(case).filter(|(_, reading)| reading.netns.is_none() && !reading.ambiguous)?;
    let pod = case.node.pods.at(target).find(|pod| !pod.host_network)?;
    let held = |addr: &IpAddr| Some(case.node.targets.holder(reading.from, *addr)?.0);
    // Where a sandbox keeps the addresses to itself, as gVisor does, the namespace never had it.
    let netns = held(&target).filter(|netns| pod.netns.is_none_or(|it| it == *netns))?;
    let lives = !case.node.has_ended(netns) && !case.node.is_a_node(netns);
    let name = pod.full_name().filter(|_| lives)?;
    let why = match target {
        IpAddr::V4(_) => "",
        IpAddr::V6(_) => ". An MTU below 1280 or disable_ipv6 of its link takes IPv6 addresses away",
    };
    let text = format!(
        "Pod {name} lives in network namespace {}, and no longer has {target}. Find what took it, and restore it, or delete the pod, so that its sandbox is made again{why}",
        netns.0
    );
    let mut show = vec!["ip addr".to_owned()];
    show.extend(target.is_ipv6().then(|| "sysctl -a -r net.ipv6.conf.*.disable_ipv6".to_owned()));
    Some(Remediation::from(text).run(show.into_iter().map(|command| run_in(case, Some(netns), command))))
}

/// Checks the route first: the target may be behind another link. `is_back`: the packet that needs the link-layer address
/// goes back to the prober.
pub(super) fn fix(
    case: &Case<'_>,
    netns: Option<Netns>,
    target: IpAddr,
    why: MissingEntry,
    is_back: bool,
) -> Remediation {
    let family = if target.is_ipv4() { "ipv4" } else { "ipv6" };
    match why {
        MissingEntry::NoAnswer => {
            let gateway = gateway(case, target);
            let next = gateway.unwrap_or(target);
            let mut show = [format!("ip route get {target}"), format!("ip neigh show {next}")]
                .map(|command| run_in(case, netns, command))
                .to_vec();
            if let Some(gateway) = gateway.filter(|_| !is_back) {
                // `fib_validate_source` checks ARP requests, too (`arp_process`, net/ipv4/arp.c).
                let filtered = match gateway {
                    IpAddr::V4(_) => ", or its rp_filter drops ARP",
                    IpAddr::V6(_) => "",
                };
                let wrong_gateway = format!(
                    "Check whether {gateway} is the right gateway to {target}. If not, correct the route, or restart the CNI agent that made it. If it is, the gateway is down, or not on the link that the route leads over{filtered}"
                );
                return Remediation::from(wrong_gateway).run(show);
            }
            let lost = if target.is_ipv4() { LOST_ARP } else { LOST_DISCOVERY };
            if let Some(fix) = restore_lost_address(case, target).filter(|_| !is_back) {
                return fix.run(show);
            }
            let otherwise = match link_of_pod(case, target) {
                Some((pod, link)) => {
                    show.push(run_in(case, Some(pod), format!("ip link show {}", shell::link(&link.name))));
                    let save = target.is_ipv6().then_some("ip6tables-save");
                    for command in ["nft list ruleset"].into_iter().chain(save) {
                        show.extend([netns, Some(pod)].map(|netns| run_in(case, netns, command)));
                    }
                    format!("the pod has the address and its link {} is up: {lost}", link.name)
                }
                None if is_back && gateway.is_none() && entry_back(case).is_some() => {
                    format!("{target} does not answer: {lost}")
                }
                None if is_back => format!("the gateway does not answer. {GATEWAY}"),
                None => "the pod with this address or its link is gone: delete the stale pod or entry".to_owned(),
            };
            Remediation::from(format!(
                "Check whether the route leads over the link that the address is behind. If not, fix the route or the overlapping subnets. If it does, {otherwise}"
            ))
            .run(show)
        }
        MissingEntry::TableFull => Remediation::from(format!(
            "Raise net.{family}.neigh.default.gc_thresh1, gc_thresh2 and gc_thresh3 above the number of pods and peers that this node talks to. All network namespaces share the table, and only the node's own has these settings"
        ))
        .run([Command::on_node("ip neigh | wc -l"), Command::on_node(format!("sysctl -a -r net.{family}.neigh.default.gc_thresh"))]),
    }
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    /// The pod has no route back either. The SYN never left the node.
    #[test]
    fn an_unresolved_gateway_is_the_cause_and_not_the_pod() {
        let mut stream = Stream::new();
        stream.connect().wait_ms(200).inspection(|reading| {
            let gateway = address("10.98.0.9");
            reading.neighbour = Some(NeighbourState { addr: gateway, ..neighbour("incomplete") });
            reading.no_way_back = Some(NoWayBack { to: address("10.88.0.1"), errno: 101 });
        });
        let verdict = stream.gives_up().verdict();
        assert_eq!(verdict.cause.name(), "neighbour_failure");
        assert_has(&verdict.summary, &["link-layer address of 10.98.0.9 (the gateway to 10.88.0.2)"]);
        let fix = verdict.remediation.to_string();
        assert_has(&fix, &["10.98.0.9 is the right gateway", "ip route get 10.88.0.2", "ip neigh show 10.98.0.9"]);
        assert_has(&fix, &["or its rp_filter drops ARP"]);
        assert!(!fix.contains("stale pod"));
    }

    /// `ip addr del` in the pod, or an MTU below 1280 for IPv6.
    #[test]
    fn a_living_pod_without_its_address_is_no_stale_pod() {
        let fix = |had: bool| {
            let mut stream = Stream::new();
            stream.http_readiness().pod_in(POD);
            if had {
                stream.inspection(|reading| reading.links = vec![link(2, "eth0", &["10.88.0.2"])]).wait_ms(5_000);
            }
            stream.connect().wait_ms(200);
            stream.inspection(|reading| (reading.netns, reading.neighbour) = (None, Some(neighbour("incomplete"))));
            stream.gives_up().verdict().remediation.to_string()
        };
        assert!(!fix(false).contains("no longer has"), "it may never have had the address, as in gVisor");
        assert_has(&fix(true), &["default/web lives in network namespace 2, and no longer has 10.88.0.2", "ip addr"]);
    }

    /// A firewall of the pod drops ICMPv6, or one of the node drops ARP. To delete the pod does not help.
    #[test]
    fn a_pod_that_is_there_is_not_called_gone() {
        let fix = |up: bool| {
            let link = LinkState { up, ..link(2, "eth0", &["10.88.0.2"]) };
            let mut stream = Stream::new();
            stream.connect().wait_ms(200).inspection(|reading| reading.links = vec![link]);
            stream.drop(SYN, "NEIGH_FAILED", NODE).verdict().remediation.to_string()
        };
        assert_has(&fix(true), &["ARP does not get through", "ip link show eth0"]);
        assert!(!fix(true).contains("delete the stale pod") && !fix(false).contains("ARP does not get through"));
    }

    /// Behind a masquerade the answer goes to another address than the prober's.
    #[test]
    fn an_answer_to_a_translated_address_needs_the_gateway_too() {
        let mut stream = Stream::new().connect().clone();
        stream.drop_with(SYN_ACK, POD, |drop| {
            (drop.reason, drop.via) = (Some("NEIGH_FAILED".into()), Via::Translated);
            drop.flow.dst = address("169.254.7.127:40000");
        });
        let fix = stream.verdict().remediation;
        assert_has(&fix, &["the gateway does not answer", "Calico's 169.254.1.1"]);
        assert_lacks(&fix, &["stale pod"]);
    }
}
