//! What the node's addresses and routes hint at: words that come last, and a fix. Other causes have these hints, too.

use std::net::IpAddr;

use crate::case::{Case, inspections};
use crate::finding::Finding;
use crate::phrases::{in_namespace, run_in};
use crate::services::target_service;
use tracer_model::event::{Inspection, LinkQdisc, Netns, Pod};
use tracer_model::record::{Command, Remediation};
use tracer_model::shell;

/// A pod on this node's network is listed with the address, or its probe names it, and no link of the node has it.
pub fn missing_address(case: &Case<'_>) -> Option<(String, Remediation)> {
    let (addr, netns) = (case.attempt.flow.dst.ip(), case.node.netns()?);
    let known = case.attempt.netns == Some(netns) && case.node.links.get(&netns).is_some();
    if !known || case.node.owns(netns, addr) || !case.node.pods.at(addr).all(|pod| pod.host_network) {
        return None;
    }
    match case.node.pods.at(addr).next() {
        Some(pod) => Some(by_list(pod, addr)),
        None => by_probe(case, addr),
    }
}

fn by_list(pod: &Pod, addr: IpAddr) -> (String, Remediation) {
    let words = format!("; {} is on this node's network, and no link of the node has its address {addr}", name(pod));
    let fix = Remediation::from(
        "If the node's address has changed, correct the kubelet's --node-ip (or restore the node's address) and restart the kubelet",
    );
    let show = [Command::on_node(format!("ip addr show to {addr}")), Command::in_cluster("kubectl get nodes -o wide")];
    (words, fix.run(show))
}

fn by_probe(case: &Case<'_>, addr: IpAddr) -> Option<(String, Remediation)> {
    let pod = case.matched.probed_pod().filter(|pod| pod.host_network && target_service(case).is_none())?;
    let words = format!(
        "; the probe of {} names host {addr}: that pod is on this node's network, and no link of the node has that address",
        name(pod)
    );
    let fix = Remediation::from(
        "If this node should have that address (a virtual IP may be on another one), restore it, and find what removed its link (NodeLocal DNSCache removes its own when it ends). Else correct `host` of the probe",
    );
    let show = [format!("ip addr show to {addr}"), format!("ip route get {addr}")];
    Some((words, fix.run(show.map(Command::on_node))))
}

fn name(pod: &Pod) -> String {
    pod.full_name().unwrap_or_else(|| "a pod".to_owned())
}

/// A link on the way to the pod has filters or a queue of its own, and what these do with a packet leaves no trace.
pub fn unusual_qdisc(case: &Case<'_>) -> Option<(String, Remediation)> {
    let target = case.attempt.flow.dst.ip();
    let has_link = |it: &Inspection| it.link_with(target).is_some();
    let (_, reading) = inspections(case).find(|(_, reading)| has_link(reading))?;
    let others: Vec<_> = of_other_pods(case, reading).collect();
    if reading.qdiscs.iter().all(|it| is_usual(it, reading, &others)) {
        return None;
    }
    let is_compared = !others.is_empty() || !reading.qdiscs.iter().all(holds_filters);
    let mut devices: Vec<_> = reading.qdiscs.iter().map(|it| (it.netns, &it.device)).collect();
    devices.dedup();
    let describe = |(netns, device): &(Netns, &String)| {
        let own = reading.qdiscs.iter().filter(|it| it.netns == *netns && it.device == **device);
        let kinds: Vec<&str> = own.map(|it| it.kind.as_str()).collect();
        format!("{device}{} has {}", in_namespace(case, Some(*netns)), kinds.join(" and "))
    };
    let described: Vec<String> = devices.iter().map(describe).collect();
    let words = format!(
        "; {} (tc): a filter there can redirect or take a packet, and a queue can hold it, without a trace{}",
        described.join(", "),
        if is_compared { "" } else { NOT_COMPARED }
    );
    let show = devices.iter().flat_map(|(netns, device)| {
        let device = shell::link(device);
        ["qdisc show dev DEVICE", "filter show dev DEVICE ingress", "filter show dev DEVICE egress"]
            .map(|what| run_in(case, Some(*netns), format!("tc -s {}", what.replace("DEVICE", device))))
    });
    let fix = Remediation::from(
        "Compare the counters of these filters and queues before and after an attempt. Find the one that redirects (mirred), takes (stolen) or delays its packets, and what made it: a network emulation, a rate limit or a CNI's agent",
    );
    let fix = if is_compared { fix } else { fix.reword(|text| format!("{COMPARE}. If they lack them: {text}")) };
    Some((words, fix.run(show)))
}

const NOT_COMPARED: &str =
    "; a CNI such as Cilium gives filters to the link of each pod, and tracer has read no other pod to compare";
const COMPARE: &str = "See whether the links of other pods of this node have such filters: then they are the CNI's, and most likely not the cause";

/// The last readings of other pods for which an attempt waited: those of queueing disciplines, too.
fn of_other_pods<'a>(case: &Case<'a>, reading: &Inspection) -> impl Iterator<Item = &'a Inspection> {
    let netns = reading.netns;
    let is_other = move |it: &&Inspection| it.serving.is_some() && it.netns.is_some() && it.netns != netns;
    case.node.targets.all_inspections().map(|(_, it)| it).filter(is_other)
}

/// A CNI (Cilium, Calico, the AWS network policy agent) gives filters to the same end of each pod's link.
fn is_usual(qdisc: &LinkQdisc, of: &Inspection, others: &[&Inspection]) -> bool {
    let in_pod = |it: &LinkQdisc, of: &Inspection| Some(it.netns) == of.netns;
    let is_same = |it: &LinkQdisc, other: &Inspection| it.kind == qdisc.kind && in_pod(it, other) == in_pod(qdisc, of);
    holds_filters(qdisc) && others.iter().any(|other| other.qdiscs.iter().any(|it| is_same(it, other)))
}

/// All other kinds are queues.
fn holds_filters(qdisc: &LinkQdisc) -> bool {
    matches!(qdisc.kind.as_str(), "filters" | "clsact" | "ingress")
}

/// Adds the words, and replaces the fix.
pub fn note(found: Finding, nearer: Option<(String, Remediation)>) -> Finding {
    match nearer {
        Some((words, remediation)) => Finding { summary: found.summary + &words, remediation, ..found },
        None => found,
    }
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    #[test]
    fn filters_and_queues_on_the_way_are_named_if_no_drop_was_seen() {
        let noted = |kinds: &[(Netns, &str, &str)], dropped: bool| {
            let mut stream = Stream::new().links(true, &["10.88.0.1"]).connect().clone();
            if dropped {
                stream.drop_on(SYN, "QDISC_DROP", NODE, Some(device(7, "v7")));
            }
            stream.wait_ms(200).inspection(|reading| {
                let qdisc = |(netns, device, kind): &(Netns, &str, &str)| LinkQdisc {
                    netns: *netns,
                    device: (*device).to_owned(),
                    kind: (*kind).to_owned(),
                };
                reading.links = vec![link(2, "eth0", &["10.88.0.2"])];
                reading.qdiscs = kinds.iter().map(qdisc).collect();
            });
            stream.gives_up().verdict()
        };
        let kinds = [(POD, "eth0", "netem"), (NODE, "v7", "filters"), (NODE, "v7", "tbf")];
        let named = noted(&kinds, false);
        assert_eq!(named.cause.name(), "unexplained");
        assert_has(
            &named.summary,
            &["eth0 in ", " has netem, v7 on the node has filters and tbf (tc): a filter there"],
        );
        assert_lacks(&named.summary, &["to compare"]);
        assert_has(
            &named.remediation,
            &["redirects (mirred)", "tc -s filter show dev v7 ingress", "tc -s qdisc show dev eth0"],
        );
        for other in [noted(&[], false), noted(&kinds, true)] {
            assert_lacks(&other.summary, &["(tc)"]);
        }
    }

    /// A CNI's filters are on the links of all pods. A queue is nobody's usual one, and a pod that answered is reached.
    #[test]
    fn filters_that_other_pods_have_too_are_not_named() {
        let noted = |kind: &str, others: &str, answered: bool| {
            let fill = |reading: &mut Inspection, netns, kind: &str| {
                (reading.netns, reading.serving) = (Some(netns), Some(Box::default()));
                reading.links = vec![link(2, "eth0", &[&reading.target.ip().to_string()])];
                reading.qdiscs = vec![LinkQdisc { netns, device: "eth0".to_owned(), kind: kind.to_owned() }];
                // No attempt waited for that pod, so that this was not read of it.
                if kind.is_empty() {
                    (reading.qdiscs, reading.serving) = (Vec::new(), None);
                }
            };
            let mut stream = Stream::to("10.88.0.3:8080");
            stream.links(true, &["10.88.0.1"]).connect().inspection(|reading| fill(reading, Netns(903), others));
            stream.established().answers(200).wait_ms(1_000).again_to(8, "10.88.0.2:8080").connect().wait_ms(200);
            stream.inspection(|reading| fill(reading, POD, kind));
            match answered {
                true => stream.established().wait_ms(1_000).closes((100, 101, 0)).settles(),
                false => stream.gives_up(),
            };
            stream.last_verdict()
        };
        for (kind, others) in [("filters", "netem"), ("netem", "netem"), ("netem", "")] {
            let named = noted(kind, others, false);
            assert_has(&named.summary, &["has ", " (tc): a filter there"]);
            assert_lacks(&named.summary, &["to compare"]);
            assert_starts(&named.remediation.text, "If the timeout is one second");
        }
        for (kind, others, answered) in [("filters", "filters", false), ("netem", "filters", true)] {
            assert_lacks(&noted(kind, others, answered).summary, &["(tc)"]);
        }
        let alone = noted("filters", "", false);
        assert_ends(&alone.summary, "and tracer has read no other pod to compare");
        assert_has(&alone.remediation, &["links of other pods", "If they lack them: Compare the counters"]);
    }

    /// Behind an older reading with a queue.
    #[test]
    fn the_last_reading_of_the_pods_link_counts() {
        let mut stream = Stream::new().links(true, &["10.88.0.1"]).connect().clone();
        for kind in [Some("netem"), None] {
            stream.wait_ms(200).inspection(|reading| {
                let qdisc = |kind: &str| LinkQdisc { netns: POD, device: "eth0".to_owned(), kind: kind.to_owned() };
                reading.links = vec![link(2, "eth0", &["10.88.0.2"])];
                reading.qdiscs = kind.map(qdisc).into_iter().collect();
            });
        }
        assert_lacks(&stream.gives_up().verdict().summary, &["(tc)"]);
    }

    /// openshift/origin#6939: the node had got another address, and its pods were listed with the old one.
    #[test]
    fn a_host_network_pods_address_that_the_node_does_not_have_is_reported() {
        let noted = |addrs: &[&str], host: bool| {
            let mut stream = Stream::new().links(true, addrs).http_readiness().clone();
            if host {
                stream.on_host_network();
            }
            stream.connect().gives_up().verdict()
        };
        let moved = noted(&["10.88.0.1"], true);
        let words =
            "default/web is on this node's network, and no link of the node has its address 10.88.0.2; the attempt";
        assert!(moved.cause.name() == "unexplained" && moved.summary.starts_with(words), "{}", moved.summary);
        assert_has(&moved.remediation, &["--node-ip"]);
        for other in [noted(&["10.88.0.1"], false), noted(&["10.88.0.1", "10.88.0.2"], true)] {
            assert_lacks(&other.summary, &["no link of the node"]);
        }
    }

    /// A probe of a pod on the node's network names the address of a link that is gone, as NodeLocal DNSCache removes it.
    #[test]
    fn the_host_of_a_probe_that_no_link_has_is_reported() {
        let noted = |addrs: &[&str], host: bool, refused: bool| {
            let mut stream = Stream::new().links(true, addrs).http_readiness().clone();
            let pod = &mut stream.last_pods().pods[0];
            pod.addrs = vec![address("10.88.0.1")];
            pod.containers[0].probes[0].host = Some("10.88.0.2".into());
            if host {
                stream.on_host_network();
            }
            stream.connect();
            if refused {
                stream.state(TcpState::SynSent, TcpState::Close, libc::EHOSTUNREACH, (0, 0, 0));
            }
            stream.gives_up().verdict()
        };
        let words = "the probe of default/web names host 10.88.0.2: that pod is on this node's network, and no link of";
        for (refused, cause) in [(false, "unexplained"), (true, "route_unreachable")] {
            let gone = noted(&["10.88.0.1"], true, refused);
            assert_eq!(gone.cause.name(), cause);
            assert_has(&gone.summary, &[words]);
            assert_has(&gone.remediation, &["restore it", "ip addr show to 10.88.0.2"]);
        }
        for other in [noted(&["10.88.0.1"], false, false), noted(&["10.88.0.1", "10.88.0.2"], true, false)] {
            assert_lacks(&other.summary, &["no link of the node"]);
        }
    }
}
