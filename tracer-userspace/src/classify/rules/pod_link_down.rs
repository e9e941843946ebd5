//! The pod's link, or the one that leads to it, is down, or its namespace is gone.

use serde_json::json;

use super::super::culprit_of;
use super::super::evidence::{evidence, is_netfilter, of_drop};
use super::{Case, Finding, Label, in_handshake, in_namespace, is_unanswered, outbound};
use crate::event::{Inspection, LinkState, ListenQueue, Netns, PacketDrop, Pod};
use crate::record::{Confidence, Evidence};
use crate::shell;

/// The rule.
pub(in super::super) fn find(case: &Case<'_>) -> Option<Finding> {
    if !in_handshake(case) {
        return None;
    }
    dropped(case).or_else(|| looked_at(case)).or_else(|| no_route(case)).or_else(|| no_port(case))
}

/// A packet of this attempt was dropped on a device that is down.
fn dropped(case: &Case<'_>) -> Option<Finding> {
    let (time, drop) = case
        .attempt
        .drops()
        .filter(|(time, _)| is_unanswered(case, *time))
        .find(|(_, d)| d.netns.is_some() && d.device.as_ref().is_some_and(|dev| !dev.up && !dev.loopback))?;
    let (netns, device) = (drop.netns?, drop.device.as_ref()?);
    Some(finding(case, vec![of_drop(time, drop)], netns, &device.name, "is down"))
}

/// The target's namespace, read while the attempt waited, has its link down, or there is no such namespace.
fn looked_at(case: &Case<'_>) -> Option<Finding> {
    let (time, seen) = super::inspected(case)?;
    if !case.settled || !only_lost(case) || !is_beyond_a_link(case, seen) {
        return None;
    }
    let found = match seen.netns {
        Some(netns) => {
            let (link, state) = broken(seen, case)?;
            let says = format!("link {} of the target's namespace {state}", link.name);
            let fields = json!({ "ifindex": link.ifindex, "name": link.name, "up": link.up, "running": link.running });
            let (netns, name, state) = match peer_down(case, link) {
                Some((node, peer)) => (node, peer, "is down"),
                None => (netns, link.name.clone(), state),
            };
            finding(case, vec![evidence("rtnetlink", time, says, fields)], netns, &name, state)
        }
        None if !seen.ambiguous && nobody_answers(seen) => gone(case, time)?,
        None => return None,
    };
    Some(found.with_confidence(Confidence::Likely))
}

/// The target is behind a link. To an address of its own, of a node or of a pod, a packet goes over `lo`, whatever the state of
/// the link that holds it (the local table goes first, and keeps the address of a link that is down); what IPVS took went
/// elsewhere, and what met a listener was there.
fn is_beyond_a_link(case: &Case<'_>, seen: &Inspection) -> bool {
    let own = |netns: Netns| netns == seen.from || case.node.is_a_node(netns);
    let met = |queue| case.attempt.queue_full(queue).is_some();
    let arrived = case.attempt.ipvs().next().is_some() || met(ListenQueue::Accept) || met(ListenQueue::HalfOpen);
    !arrived && !seen.netns.is_some_and(own)
}

/// Packets were lost below IP at most: nobody above (netfilter, a socket, a router) had a say. A device without carrier has no
/// queue but one that drops all (`noop_enqueue`, net/sched/sch_generic.c).
fn only_lost(case: &Case<'_>) -> bool {
    let below = |d: &PacketDrop| match d.reason.as_deref() {
        Some("NO_TX_TARGET" | "NEIGH_FAILED" | "NEIGH_DEAD" | "DEV_READY" | "QDISC_DROP" | "NOT_SPECIFIED") => {
            !is_netfilter(d)
        }
        Some(_) => false,
        None => !is_netfilter(d),
    };
    let attempt = case.attempt;
    attempt.drops().all(|(_, d)| below(d)) && attempt.icmp().next().is_none() && attempt.reset_received().is_none()
}

/// The link that holds the target's address, if it is down or has no carrier.
fn broken<'a>(seen: &'a Inspection, case: &Case<'_>) -> Option<(&'a LinkState, &'static str)> {
    let target = case.attempt.flow.dst.ip();
    let holds = |l: &&LinkState| l.addrs.contains(&target);
    let mut links = seen.links.iter().filter(|l| !l.loopback);
    let link = links.clone().find(holds).or_else(|| links.find(|link| went_with(link, seen, case)))?;
    match (link.up, link.running) {
        (false, _) => Some((link, "is down")),
        (true, Some(false)) => Some((link, "has no carrier: its other end is down")),
        _ => None,
    }
}

/// IPv6 addresses go with their link: this one is down, and had the address when it was last read. Where that is not known, it
/// was set down, or is the only one: there may be others that never were up (tunl0, ip6tnl0 and their like are made in every
/// namespace).
fn went_with(link: &LinkState, seen: &Inspection, case: &Case<'_>) -> bool {
    let (Some(netns), target) = (seen.netns, case.attempt.flow.dst.ip()) else { return false };
    let held = match case.node.holder(seen.from, target).filter(|(place, _)| *place == netns) {
        Some((_, ifindex)) => ifindex == link.ifindex,
        None => {
            case.node.link_down(netns, &link.name).is_some() || seen.links.iter().filter(|l| !l.loopback).count() == 1
        }
    };
    target.is_ipv6() && !link.up && held
}

/// The node's end of that link, if that is what is down. It was seen being set down a moment before its flag is off, and may
/// have been read in between.
fn peer_down(case: &Case<'_>, link: &LinkState) -> Option<(Netns, String)> {
    let node = case.node.netns()?;
    let index = link.peer_ifindex.filter(|_| link.up)?;
    let is_down = |l: &&LinkState| !l.up || case.node.link_down(node, &l.name).is_some();
    let peer = case.node.links.get(&node)?.iter().find(|l| l.ifindex == index).filter(is_down)?;
    Some((node, peer.name.clone()))
}

/// Nobody answers for the address on the link either. A pod with a network stack of its own (gVisor) has taken
/// its address off the device, and answers.
fn nobody_answers(seen: &Inspection) -> bool {
    seen.neighbour.as_ref().is_some_and(|entry| matches!(entry.state.as_str(), "incomplete" | "failed"))
}

/// A pod of this node is said to have the address, no namespace of this node has it, and none is known to be that pod's still.
fn gone(case: &Case<'_>, time: u64) -> Option<Finding> {
    let target = case.attempt.flow.dst.ip();
    let pods = || case.node.pods.at(target).filter(|p| !p.host_network);
    let lives = |pod: &Pod| pod.netns.is_some_and(|netns| !case.node.has_ended(netns));
    let pod = pods().next().filter(|_| !pods().any(lives))?;
    let name = pod.name.as_deref().unwrap_or("a pod");
    let says = format!("no network namespace of this node has the address {target}");
    let seen = evidence("namespaces", time, says, json!({ "address": target }));
    let summary = format!("the network namespace of {name} is gone: nobody on this node has {target} any more");
    let remediation =
        "delete the pod, so that its sandbox is made anew; the container runtime's log says why it is gone".to_owned();
    Some(Finding::failure(Label::PodLinkDown, vec![seen], summary, remediation).resting_on(&["kfree_skb"]))
}

/// `connect` found no route, and a link of the node whose subnet holds the target is down: the route went with it.
fn no_route(case: &Case<'_>) -> Option<Finding> {
    let (time, failed) = case.attempt.connect_failed_at()?;
    let netns = case.attempt.netns?;
    if failed.errno != libc::ENETUNREACH {
        return None;
    }
    let link = case.node.links.get(&netns)?.iter().find(|l| !l.up && !l.loopback && l.covers(failed.dst.ip()))?;
    let says = format!("connect({}) failed at once: no route", failed.dst);
    let first = evidence("sys_exit_connect", time, says, json!({ "errno": failed.errno }));
    let says = format!("link {} of the node, whose subnet holds it, is down", link.name);
    let second =
        evidence("rtnetlink", time, says, json!({ "ifindex": link.ifindex, "name": link.name, "up": link.up }));
    let found = finding(case, vec![first, second], netns, &link.name, "is down, and the route went with it");
    Some(found.with_confidence(Confidence::Likely))
}

/// The bridge had no port that is up to send it to (`br_dev_xmit`, 6.12 and later): it floods what it does not
/// know, so no link behind it is. Said at the end only: a look at the target names the link. An answer that finds no port
/// was sent to a link-layer address that nobody has.
fn no_port(case: &Case<'_>) -> Option<Finding> {
    case.attempt.ended?;
    let no_port = |d: &PacketDrop| d.reason.as_deref() == Some("NO_TX_TARGET") && outbound(case, d);
    let (time, drop) = case.attempt.drops().find(|(_, d)| no_port(d))?;
    if !case.settled || !only_lost(case) {
        return None;
    }
    let (netns, device) = (drop.netns?, drop.device.as_ref()?);
    let found = finding(case, vec![of_drop(time, drop)], netns, &device.name, "has no port that is up");
    Some(found.with_confidence(Confidence::Likely))
}

fn finding(case: &Case<'_>, mut seen: Vec<Evidence>, netns: Netns, device: &str, state: &str) -> Finding {
    let decided_at = seen.iter().map(|e| e.time_boot_ns).max().unwrap_or_default();
    let change = case.node.link_down(netns, device);
    let culprit = change.map(|(time, change)| culprit_of(case.node, *time, change));
    if let Some((time, change)) = change {
        let says = format!("{} set down by {} (pid {})", change.name, change.actor.comm, change.actor.pid);
        seen.insert(0, evidence(&change.hook, *time, says, json!({ "pid": change.actor.pid, "netns": change.netns })));
    }
    let by = culprit.as_ref().map(|c| format!(" (set down by pid {} `{}`)", c.pid, c.comm)).unwrap_or_default();
    let summary = format!(
        "{device}{} {state}{by}: {} cannot be reached over it",
        in_namespace(case, Some(netns)),
        case.attempt.flow.dst
    );
    let remediation = format!(
        "{}ip link set {} up; or delete the pod, so that its sandbox is made anew",
        super::enter(case, Some(netns)),
        shell::link(device)
    );
    let found = Finding::failure(Label::PodLinkDown, seen, summary, remediation).with_culprit(culprit);
    Finding { decided_at, ..found }.until_answered()
}

#[cfg(test)]
mod tests {
    use crate::event::{Device, Fact, IpvsOp, LinkState, Links, ListenQueue, Netns, Pod, Pods};
    use crate::testing::{NODE, POD, SYN, SYN_ACK, Stream};

    fn eth0(up: bool, running: bool) -> LinkState {
        LinkState {
            ifindex: 2,
            name: "eth0".into(),
            up,
            addrs: vec!["10.88.0.2".parse().expect("an address")],
            running: Some(running),
            ..LinkState::default()
        }
    }

    fn looked_at(link: LinkState) -> Vec<&'static str> {
        let mut stream = Stream::new();
        stream.connect().wait_ms(200).inspection(|seen| {
            seen.netns = Some(POD);
            seen.links = vec![link];
        });
        stream.gives_up().labels()
    }

    #[test]
    fn a_drop_on_a_device_that_is_down_is_proof() {
        let down = Device { ifindex: 7, name: "veth7".into(), up: false, loopback: false };
        let mut stream = Stream::new();
        stream.connect().drop_on(SYN, "NOT_SPECIFIED", NODE, Some(down));
        assert_eq!(stream.labels(), ["pod_link_down"]);
    }

    #[test]
    fn a_bridge_without_a_port_is_said_when_nothing_nearer_is() {
        let mut stream = Stream::new();
        stream.connect().drop(SYN, "NO_TX_TARGET", NODE);
        assert!(stream.labels().is_empty(), "a look at the target may name the link");
        let bridge = Device { ifindex: 3, name: "cni0".into(), up: true, loopback: false };
        let mut stream = Stream::new();
        stream.connect().drop_on(SYN, "NO_TX_TARGET", NODE, Some(bridge));
        assert_eq!(stream.gives_up().labels(), ["pod_link_down"]);
    }

    /// Seen: the pod's neighbour entry for the node was wrong.
    #[test]
    fn an_answer_to_nobody_s_link_layer_address_is_no_link_that_is_down() {
        let port = Device { ifindex: 3, name: "v3".into(), up: true, loopback: false };
        let mut stream = Stream::new();
        stream.connect().drop_on(SYN_ACK, "NO_TX_TARGET", NODE, Some(port));
        assert_eq!(stream.gives_up().labels(), ["unexplained"]);
    }

    #[test]
    fn what_was_read_for_a_later_attempt_says_nothing_of_this_one() {
        let mut stream = Stream::new();
        stream.connect().gives_up().wait_ms(500).inspection(|seen| {
            seen.netns = Some(POD);
            seen.links = vec![eth0(false, false)];
        });
        assert_eq!(stream.labels(), ["unexplained"]);
    }

    #[test]
    fn an_address_that_no_kernel_has_and_somebody_answers_for_is_no_gone_pod() {
        let gone = |state: &str, ambiguous: bool| {
            let mut stream = Stream::new();
            stream.http_readiness().connect().wait_ms(200).inspection(|seen| {
                seen.netns = None;
                seen.ambiguous = ambiguous;
                seen.neighbour = Some(crate::testing::neighbour(state));
            });
            stream.gives_up().labels()
        };
        assert_eq!(gone("failed", false), ["pod_link_down"]);
        assert_eq!(gone("reachable", false), ["unexplained"]);
        assert_eq!(gone("failed", true), ["neighbour_failure"], "two have it");
    }

    #[test]
    fn the_copies_that_a_bridge_floods_say_nothing_but_the_port() {
        let mut stream = Stream::new();
        stream.connect().drop(SYN, "OTHERHOST", POD).wait_ms(200).inspection(|seen| {
            seen.netns = Some(POD);
            seen.links = vec![eth0(false, false)];
        });
        assert_eq!(stream.gives_up().labels(), ["pod_link_down"]);
    }

    /// Seen with a permanent neighbour entry: without one the packet waits for an answer, and never comes to the queue.
    #[test]
    fn a_packet_that_a_queue_without_carrier_dropped_was_lost_at_the_link() {
        let at = |running| {
            let port = Device { ifindex: 7, name: "veth7".into(), up: true, loopback: false };
            let mut stream = Stream::new();
            stream.connect().drop_on(SYN, "QDISC_DROP", NODE, Some(port)).wait_ms(200).inspection(|seen| {
                seen.netns = Some(POD);
                seen.links = vec![eth0(running, running)];
            });
            stream.gives_up().labels()
        };
        assert_eq!((at(false), at(true)), (vec!["pod_link_down"], vec!["unexplained"]));
    }

    #[test]
    fn the_state_of_the_target_s_link_decides_and_a_good_link_does_not() {
        assert_eq!(looked_at(eth0(false, false)), ["pod_link_down"]);
        assert_eq!(looked_at(eth0(true, false)), ["pod_link_down"]);
        assert_eq!(looked_at(eth0(true, true)), ["unexplained"]);
    }

    /// Its other end in the pod is up and has no carrier for it.
    #[test]
    fn the_node_s_end_that_is_down_is_said_to_be_down() {
        let told = |set_down: bool, up: bool| {
            let veth = LinkState { ifindex: 7, name: "veth7".into(), up, ..LinkState::default() };
            let mut stream = Stream::new();
            stream.links(true, &["10.88.0.1"]).connect();
            if set_down {
                stream.link_set(NODE, 7, "veth7", false);
            }
            stream.push(Fact::Links(Links { netns: NODE, cookie: None, links: vec![veth] })).wait_ms(200);
            stream.inspection(|seen| {
                seen.netns = Some(POD);
                seen.links = vec![LinkState { peer_ifindex: Some(7), ..eth0(true, false) }];
            });
            stream.gives_up().verdicts().remove(0).verdict
        };
        let set = told(true, true);
        assert!(
            set.summary.starts_with("veth7 in the node's network namespace is down (set down by"),
            "{}",
            set.summary
        );
        assert!(told(false, true).summary.starts_with("eth0 in "), "what is up is not named");
        let verdict = told(false, false);
        assert!(verdict.summary.starts_with("veth7 in the node's network namespace is down: "), "{}", verdict.summary);
        assert!(verdict.remediation.starts_with("ip link set veth7 up"), "{}", verdict.remediation);
        assert!(verdict.evidence[0].says.ends_with("no carrier: its other end is down"), "{:?}", verdict.evidence);
    }

    /// Found by the properties: its handshake and its end were lost, and the target was looked at for another attempt.
    #[test]
    fn an_attempt_that_may_be_over_is_not_judged_by_a_look_at_its_target() {
        let mut stream = Stream::new();
        stream.connect().lost(2).wait_ms(200).inspection(|seen| {
            seen.netns = Some(POD);
            seen.links = vec![eth0(false, false)];
        });
        assert!(stream.labels().is_empty());
        assert_eq!(stream.gives_up().labels(), ["pod_link_down"], "its end is seen: it did wait");
    }

    /// What is seen of the SYN, then a look at the target whose namespace is this, in which its link is down.
    fn met(begin: impl FnOnce(&mut Stream), netns: Netns) -> Vec<&'static str> {
        let mut stream = Stream::new();
        stream.links(true, &["10.88.0.1"]).connect();
        begin(&mut stream);
        stream.wait_ms(200).inspection(|seen| {
            seen.netns = Some(netns);
            seen.links = vec![eth0(false, false)];
        });
        stream.gives_up().labels()
    }

    /// nodelocaldns and a node's own address on a device that is down: both are reached over `lo`.
    #[test]
    fn an_address_of_a_node_or_of_the_own_namespace_is_not_behind_its_link() {
        assert_eq!(met(|_| {}, POD), ["pod_link_down"]);
        assert_eq!(met(|_| {}, NODE), ["unexplained"]);
    }

    #[test]
    fn what_ipvs_took_or_a_listener_met_was_not_lost_at_the_link() {
        assert_eq!(met(|stream| _ = stream.ipvs(SYN, IpvsOp::Translate), POD), ["unexplained"]);
        let full = |queue| met(|stream| _ = stream.queue_full(queue), POD);
        assert_eq!(full(ListenQueue::Accept), ["accept_queue_overflow"]);
        assert_eq!(full(ListenQueue::HalfOpen), ["syn_backlog_overflow"]);
    }

    const SIX: &str = "fd00::2";

    /// A pod with fallback devices, as every pod of a node has that uses IPIP; its eth0 has lost its IPv6 address.
    fn six(begin: impl FnOnce(&mut Stream), up: bool) -> Vec<String> {
        let down = |ifindex, name: &str| LinkState { ifindex, name: name.into(), ..LinkState::default() };
        let mut stream = Stream::to(&format!("[{SIX}]:8080"));
        begin(&mut stream);
        stream.connect().wait_ms(200).inspection(|seen| {
            seen.links = vec![down(2, "tunl0"), down(3, "ip6tnl0"), LinkState { up, ..down(4, "eth0") }];
        });
        stream.gives_up();
        let told = stream.verdicts().into_iter().map(|it| it.verdict);
        told.map(|it| it.summary.split(' ').next().filter(|_| it.label.name() == "pod_link_down").unwrap_or("-").into())
            .collect()
    }

    #[test]
    fn an_ipv6_address_went_with_the_link_that_held_it() {
        let held = |stream: &mut Stream| {
            stream.inspection(|seen| {
                let addrs = vec![SIX.parse().expect("an address")];
                seen.links = vec![LinkState { ifindex: 4, up: true, addrs, ..LinkState::default() }];
            });
        };
        assert_eq!(six(held, false), ["eth0"]);
        assert_eq!(six(held, true), ["-"], "it was taken off");
    }

    /// The tracer came when it was down already.
    #[test]
    fn an_ipv6_address_went_with_the_only_link() {
        let mut stream = Stream::to(&format!("[{SIX}]:8080"));
        stream.connect().wait_ms(200).inspection(|seen| seen.links = vec![eth0(false, false)]);
        assert_eq!(stream.gives_up().labels(), ["pod_link_down"]);
    }

    #[test]
    fn an_ipv6_address_went_with_the_link_that_was_set_down() {
        assert_eq!(six(|_| {}, false), ["-"], "any of three");
        assert_eq!(six(|stream| _ = stream.link_set(POD, 4, "eth0", false), false), ["eth0"]);
        let both = |stream: &mut Stream| _ = stream.link_set(POD, 4, "eth0", false).link_set(POD, 4, "eth0", true);
        assert_eq!(six(both, false), ["-"]);
    }

    #[test]
    fn a_pod_whose_namespace_is_known_is_not_gone() {
        let said = |begin: &dyn Fn(&mut Stream)| {
            let mut stream = Stream::new();
            let addrs = vec!["10.88.0.2".parse().expect("an address")];
            let pod = Pod { name: Some("web".into()), addrs, netns: Some(POD), ..Pod::default() };
            stream.push(Fact::Pods(Pods { pods: vec![pod] }));
            begin(&mut stream);
            stream.connect().wait_ms(200).inspection(|seen| {
                seen.netns = None;
                seen.neighbour = Some(crate::testing::neighbour("incomplete"));
            });
            stream.gives_up().labels()
        };
        assert_eq!(said(&|_| {}), ["neighbour_failure"]);
        assert_eq!(said(&|stream| _ = stream.netns_ends(POD)), ["pod_link_down"]);
        assert_eq!(said(&|stream| _ = stream.netns_ends(POD).netns_made(POD)), ["neighbour_failure"]);
    }
}
