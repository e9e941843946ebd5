//! A refusal by another stack than the target's: of the node, or of another namespace with its address.

use serde_json::json;

use crate::case::Case;
use crate::ended::last_listener;
use crate::evidence::{evidence_of, of_listener};
use crate::finding::Finding;
use crate::phrases::{in_namespace, run_in};
use crate::pod_sockets::accepting_beside;
use crate::refusal::{Refused, by_any_stack, listed, pod_elsewhere};
use crate::shared_address::FIX;
use crate::wrong_field::REMOVE_HOST;
use tracer_attempts::correlate::listeners::serves;
use tracer_model::event::{Netns, Pod};
use tracer_model::record::{Cause, Command, Confidence, Evidence, Remediation};
use tracer_model::shell;

/// Another stack has the pod's address, too, and refused. The pod did not get the SYN.
pub fn by_other_stack(case: &Case<'_>, refused: &Refused) -> Option<Finding> {
    let netns = refused.netns?;
    let by_namespace = || by_other_namespace(case, refused, netns).or_else(|| by_other_pod(case, refused, netns));
    let by_node = || by_the_node(case, refused, netns);
    by_loopback_host(case, refused, netns).or_else(by_node).or_else(by_namespace)
}

/// Another pod refused, which is listed with other addresses only. No namespace is known for the pod with this one: two
/// have its address.
fn by_other_pod(case: &Case<'_>, refused: &Refused, netns: Netns) -> Option<Finding> {
    let (addr, pod) = (case.attempt.flow.dst.ip(), listed(case).filter(|pod| !pod.host_network)?.full_name()?);
    let other = case.node.pods.in_netns(netns).filter(|other| other.has_specs() && !other.host_network)?;
    let name = other.full_name()?;
    if other.addrs.contains(&addr) || case.node.pods.at(addr).any(|pod| pod.netns == Some(netns)) {
        return None;
    }
    let summary = format!(
        "pod {name} has {addr}, the address of pod {pod}, too, and got the SYN: the kernel answered it with a RST, since nobody listens on port {} there",
        case.attempt.flow.dst.port()
    );
    let remediation = Remediation::from(format!(
        "Delete pod {name}, or take the address away from it, {FIX}. The process in pod {pod} did not get the SYN"
    ))
    .run([run_in(case, Some(netns), format!("ip addr show to {addr}"))])
    .run([run_in(case, case.attempt.netns, format!("ip neigh show {addr}"))]);
    Some(Finding::likely(Cause::ConnectionRefused, refused.evidence.clone(), summary, remediation))
}

/// The node refused: it owns the address, and no known pod with that address is on the node's network.
fn by_the_node(case: &Case<'_>, refused: &Refused, netns: Netns) -> Option<Finding> {
    let addr = case.attempt.flow.dst.ip();
    let pod = listed(case)?.full_name()?;
    let elsewhere = |pod: &Pod| !pod.host_network && pod.netns != Some(netns);
    // A packet to the node's own address has the same address as its source.
    let to_itself = case.attempt.prober && case.attempt.flow.src.ip() == addr;
    let owns = case.node.is_a_node(netns) && case.node.owns(netns, addr);
    let own = case.attempt.netns == Some(netns) && (owns || to_itself || case.node.is_a_node(netns));
    if !own || !case.node.pods.at(addr).all(elsewhere) {
        return None;
    }
    match case.node.links.get(&netns) {
        Some(links) if !links.iter().any(|link| link.addrs.contains(&addr)) => {
            return Some(by_local_route(case, refused, netns, &pod, to_itself));
        }
        None if !to_itself => return None,
        _ => {}
    }
    let (device, remediation) = own_address(case, netns);
    let summary = format!(
        "{addr}, the address of pod {pod}, is an address of the node itself, too{device}: the SYN never left it; the node's own kernel answered it with a RST, since nobody listens on port {} there",
        case.attempt.flow.dst.port()
    );
    Some(Finding::likely(Cause::ConnectionRefused, refused.evidence.clone(), summary, remediation))
}

/// The node has the address of a pod, too: " (on lo)", and what to do.
pub fn own_address(case: &Case<'_>, netns: Netns) -> (String, Remediation) {
    let addr = case.attempt.flow.dst.ip();
    let mut links = case.node.links.get(&netns).into_iter().flatten();
    let found = links.find_map(|link| Some((link, link.addrs.iter().position(|own| *own == addr)?)));
    if found.is_none() && case.node.links.get(&netns).is_some() {
        return (" (by a local route: no link has it)".to_owned(), find_local_route(case, netns));
    }
    let name = found.map(|(link, _)| link.name.as_str());
    let device = name.map_or("DEVICE", shell::link);
    // Without its length, `ip addr del` does not find an IPv6 address.
    let length = found.and_then(|(link, at)| link.prefixes.get(at)).map(|it| format!("/{it}")).unwrap_or_default();
    let commands = [
        format!("ip route get {addr}"),
        format!("ip addr show to {addr}"),
        format!("ip addr del {addr}{length} dev {device}"),
    ];
    let remediation = Remediation::from(
        "If the CNI left the address there, take it away (the last command) and restart the CNI's agent. If it is the node's own, leave it, delete the pod and take the address out of the CNI's range. The process in the pod did not get the SYN",
    )
    .run(commands.map(|command| run_in(case, Some(netns), command)));
    (name.map(|name| format!(" (on {name})")).unwrap_or_default(), remediation)
}

/// No link of the node has the address. A route of type local takes the SYN, or a mark leads it to a table with such a
/// route, as those of transparent proxies (TPROXY) are.
fn by_local_route(case: &Case<'_>, refused: &Refused, netns: Netns, pod: &str, to_itself: bool) -> Finding {
    let (addr, port) = (case.attempt.flow.dst.ip(), case.attempt.flow.dst.port());
    let state = match to_itself {
        true => "is no address of the node's links, and a local route has it: the SYN never left the node",
        false => "is no address of the node, and yet the SYN never left it: a local route or a mark kept it there",
    };
    let summary = format!(
        "{addr}, the address of pod {pod}, {state}; the node's own kernel refused it, since nobody listens on port {port} there"
    );
    let fix = find_local_route(case, netns);
    Finding::likely(Cause::ConnectionRefused, refused.evidence.clone(), summary, fix)
}

fn find_local_route(case: &Case<'_>, netns: Netns) -> Remediation {
    let route = format!("ip route get {}", case.attempt.flow.dst.ip());
    let local = "ip route show table all type local";
    let show = [&route, local, "ip rule", "nft list ruleset", "iptables-save -t mangle"];
    Remediation::from(
        "Find the local route that takes the pod's packets, and the rule that sets a mark for its table (TPROXY, MARK), and remove what is left over. The process in the pod did not get the SYN",
    )
    .run(show.map(|command| run_in(case, Some(netns), command.to_owned())))
}

/// Another network namespace refused, for example one left over from a pod that was deleted by force. A process already
/// listened in the pod's own namespace, and would have answered.
fn by_other_namespace(case: &Case<'_>, refused: &Refused, netns: Netns) -> Option<Finding> {
    let dst = case.attempt.flow.dst;
    let (addr, port) = (dst.ip(), dst.port());
    let (pod, own) = pod_elsewhere(case, netns)?;
    let at = refused.evidence.iter().map(|e| e.time_boot_ns).max()?;
    let (who, listens) = case
        .node
        .listeners
        .open_at(own, dst)
        .filter(|(began, _)| *began < at)
        .map(|(began, listen)| (listen.actor.to_string(), of_listener(*began, listen)))
        .or_else(|| older_listener(case, own, netns, at))?;
    let summary = format!(
        "nobody listens on port {port}{}, which also has {addr}, the address of pod {pod}: the kernel answered the SYN with a RST; {who} listens there in the pod's own network namespace {}, and did not get the SYN",
        in_namespace(case, Some(netns)),
        own.0
    );
    let way = [format!("ip route get {addr}"), format!("ip neigh show {addr}")];
    let remediation = Remediation::from(format!(
        "One of the network namespaces {} and {} is left over: remove it (crictl stopp and crictl rmp its sandbox, or end its processes), {FIX}",
        netns.0, own.0
    ))
    .run(way.map(|command| run_in(case, case.attempt.netns, command)))
    .run(["lsns -t net", "crictl pods"].map(Command::on_node));
    let evidence = [&[listens], refused.evidence.as_slice()].concat();
    Some(Finding::likely(Cause::ConnectionRefused, evidence, summary, remediation))
}

/// A process that has listened in the pod's namespace since before tracer began, as a reading found it.
fn older_listener(case: &Case<'_>, own: Netns, other: Netns, at: u64) -> Option<(String, Evidence)> {
    let (time, addr) = accepting_beside(case, own, other, at)?;
    let text = format!(
        "a process listens on {addr} in network namespace {}, which has {} too",
        own.0,
        case.attempt.flow.dst.ip()
    );
    Some(("a process".to_owned(), evidence_of("sock_diag", time, text, json!({ "netns": own }))))
}

/// The refusal, if the target itself refused and not another stack with its address.
pub fn refused(case: &Case<'_>) -> Option<Refused> {
    by_any_stack(case).filter(|it| by_other_stack(case, it).is_none())
}

/// The node's own loopback address refused, which the probe's `host` names: the pod did not get the SYN. A hostPort
/// that leads to the pod would have let the pod refuse.
pub fn by_loopback_host(case: &Case<'_>, refused: &Refused, netns: Netns) -> Option<Finding> {
    let pod = case.matched.pod_of_loopback_host().filter(|_| case.attempt.netns == Some(netns))?;
    let dst = case.attempt.flow.dst;
    let last = pod.netns.and_then(|own| last_listener(case, own));
    let at = refused.evidence.iter().map(|e| e.time_boot_ns).max()?;
    let own =
        last.filter(|(began, listen)| *began < at && listen.begins && pod.addrs.iter().any(|it| serves(listen, *it)));
    let listens = own.map(|(_, listen)| format!("; {} listens on port {} in the pod", listen.actor, dst.port()));
    let summary = format!(
        "the probe's host {} is the loopback address of the node, and not of pod {}: nobody listens on {dst}{}{}",
        dst.ip(),
        pod.full_name()?,
        in_namespace(case, Some(netns)),
        listens.unwrap_or_default()
    );
    let evidence = own.map(|(began, listen)| of_listener(*began, listen)).into_iter().chain(refused.evidence.clone());
    let fix = format!(
        "{REMOVE_HOST}. If the probe is to ask a process of the node, let that one listen on port {}",
        dst.port()
    );
    let found = Finding::failure(Cause::ProbeMisconfigured, evidence.collect(), summary, fix);
    Some(found.with_confidence(if own.is_some() { refused.confidence } else { Confidence::Likely }))
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    /// The RST waits in the pod for the prober's link-layer address. The kernel drops it after three seconds.
    #[test]
    fn a_refusal_with_an_answer_that_waits_for_an_address_is_described() {
        let summary = |fill: fn(&mut Stream)| {
            let mut stream = Stream::new().connect().drop(SYN, "NO_SOCKET", POD).reset_sent(SYN, true, None).clone();
            stream.settles().wait_ms(200);
            fill(&mut stream);
            let verdict = stream.settles().gives_up().verdict();
            assert_eq!((verdict.cause.name(), verdict.confidence), ("connection_refused", Confidence::Proven));
            verdict.summary
        };
        fn back(stream: &mut Stream, state: &str) {
            let entry = NeighbourState { addr: address("10.88.0.1"), ..neighbour(state) };
            stream.inspection(|reading| reading.neighbour_back = Some(entry));
        }
        let dropped = |stream: &mut Stream| _ = stream.wait_ms(2_800).drop_back(TcpFlags(0x14), "NEIGH_FAILED");
        assert_ends(&summary(dropped), " drops the RST of the refusal: the prober gets no answer");
        let waits = "waits for the link-layer address of 10.88.0.1: the prober gets no answer";
        assert_ends(&summary(|stream| back(stream, "incomplete")), waits);
        assert_lacks(&summary(|stream| back(stream, "stale")), &["no answer"]);
    }

    /// cozystack#3615: the route to the pod was `local`. The pod's healthy process was killed again and again.
    #[test]
    fn a_refusal_by_the_node_itself_is_not_the_pods() {
        let reported = |addrs: &[&str], fill: fn(&mut Stream)| {
            let mut stream = Stream::new();
            fill(stream.links(true, addrs).http_readiness());
            stream.connect().reset_sent(SYN, true, None);
            stream.last_reset_sent().netns = Some(NODE);
            let reported = stream.verdict();
            assert_eq!(reported.cause.name(), "connection_refused");
            reported
        };
        // With a local route no link has the address, and the address is also the source.
        let mut local = Stream::new();
        local.http_readiness().pod_in(POD).connect();
        let own = local.last_connect().flow.dst.ip();
        local.last_connect().flow.src.set_ip(own);
        local.reset_sent(SYN, true, None).last_reset_sent().netns = Some(NODE);
        assert_has(&local.verdict().summary, &["is an address of the node itself, too: the SYN never left"]);
        // A mark leads the SYN to a table of a transparent proxy that is gone.
        let marked = reported(&["10.88.0.1"], |_| {});
        assert_eq!(marked.confidence, Confidence::Likely);
        assert_has(&marked.summary, &["and yet the SYN never left it: a local route or a mark kept it there"]);
        assert_has(&marked.remediation, &["ip route show table all type local", "iptables-save -t mangle"]);
        let own = reported(&["10.88.0.1", "10.88.0.2"], |_| {});
        assert_eq!(own.confidence, Confidence::Likely);
        let words = "10.88.0.2, the address of pod default/web, is an address of the node itself, too (on lo): the SYN never left";
        assert_starts(&own.summary, words);
        assert_has(&own.remediation, &[": ip route get 10.88.0.2; "]);
        assert_lacks(&own.remediation, &["Let the process listen"]);
        assert_has(&own.remediation, &["If it is the node's own, leave it, delete the pod"]);
        let mut long = Stream::new();
        let bridge = LinkState { prefixes: vec![16, 24], ..link(3, "cni0", &["10.77.0.1", "10.88.0.2"]) };
        long.node_links(vec![bridge]).http_readiness().connect().reset_sent(SYN, true, None);
        long.last_reset_sent().netns = Some(NODE);
        assert_ends(&long.verdict().remediation, "; ip addr del 10.88.0.2/24 dev cni0");
        let other = reported(&["10.88.0.2"], |stream| _ = stream.on_host_network());
        assert_starts(&other.summary, "nobody listens on 10.88.0.2:8080");
        assert_eq!(other.confidence, Confidence::Proven);
    }

    /// Any process may make a namespace with the node's address, and send RSTs there.
    #[test]
    fn a_refusal_of_an_address_by_itself_counts_only_in_the_same_namespace() {
        let causes = |netns: Netns| {
            let mut stream = Stream::new().connect().clone();
            let own = stream.last_connect().flow.dst.ip();
            stream.last_connect().flow.src.set_ip(own);
            let flow = stream.last_connect().flow.reversed();
            stream.reset_sent_on(flow, SYN, true, None).last_reset_sent().netns = Some(netns);
            stream.wait_ms(1_000).gives_up().causes()
        };
        assert_eq!(causes(NODE), ["connection_refused"]);
        assert_eq!(causes(POD), ["unexplained"]);
    }

    const LEFT_OVER: Netns = Netns(7);

    /// Refused in a namespace that no pod of the list is in, `count` times in a row.
    fn refused_elsewhere(fill: fn(&mut Stream), count: u64) -> Vec<Verdict> {
        let mut stream = Stream::new();
        fill(&mut stream);
        for conn in 100..100 + count {
            stream.again(conn).connect().reset_sent(SYN, true, None);
            stream.last_reset_sent().netns = Some(LEFT_OVER);
            stream.wait_ms(1000);
        }
        stream.verdicts().into_iter().map(|it| it.verdict).collect()
    }

    /// cilium#29571, calico#13858: the sandbox of a pod deleted by force remained, and the next pod got its address.
    #[test]
    fn a_refusal_by_a_leftover_namespace_is_not_the_pods() {
        let reported = refused_elsewhere(|stream| _ = stream.http_readiness().pod_in(POD).listens(POD, 8080, true), 1);
        let reported = &reported[0];
        assert_eq!((reported.cause.name(), reported.confidence), ("connection_refused", Confidence::Likely));
        let words = "nobody listens on port 8080 in network namespace 7, which also has 10.88.0.2, the address of pod default/web: ";
        assert_starts(&reported.summary, words);
        let own = "; app (pid 99) listens there in the pod's own network namespace 2, and did not get the SYN";
        assert_has(&reported.summary, &[own]);
        assert_lacks(&reported.summary, &["namespace of pod"]);
        assert_has(&reported.remediation, &[": ip route get 10.88.0.2; ip neigh"]);
        assert_lacks(&reported.remediation, &["Let the process listen"]);
        assert_eq!(reported.evidence[0].text, "app (pid 99) began to listen on port 8080");
        let ends: [fn(&mut Stream); 2] = [|stream| one_of_two_ends(stream, 99), |stream| one_of_two_ends(stream, 98)];
        for ends in ends {
            assert_has(&refused_elsewhere(ends, 1)[0].summary, &[own]);
        }
    }

    /// Process 99 listens, and process `pid` too (SO_REUSEPORT), which stops.
    fn one_of_two_ends(stream: &mut Stream, pid: u32) {
        stream.http_readiness().pod_in(POD).listens(POD, 8080, true).wait_ms(1);
        for begins in [true, false] {
            stream.process_listens_on(pid, POD, address("0.0.0.0:8080"), begins).wait_ms(1);
        }
    }

    #[test]
    fn a_refusal_by_a_leftover_namespace_is_not_the_pods_start() {
        let budget = |stream: &mut Stream| _ = stream.liveness(1, 3).netns_made(LEFT_OVER).pod_in(POD);
        let causes = |reported: Vec<Verdict>| reported.iter().map(|it| it.cause.name()).collect::<Vec<_>>();
        assert_eq!(causes(refused_elsewhere(budget, 3))[2], "startup_budget_exceeded");
        let listens: fn(&mut Stream) =
            |stream| _ = stream.liveness(1, 3).netns_made(LEFT_OVER).pod_in(POD).listens(POD, 8080, true);
        assert_eq!(causes(refused_elsewhere(listens, 3)), ["connection_refused"; 3]);
        let again: fn(&mut Stream) = |stream| {
            let started_boot_ns = Some(stream.listens(POD, 8080, true).wait_ms(2000).seconds_ago(1));
            stream.liveness(1, 3).runs(Runs { restarts: 1, started_boot_ns, ..Runs::default() }).pod_in(POD);
        };
        assert_eq!(causes(refused_elsewhere(again, 3)), ["connection_refused"; 3]);
    }

    /// Seen on a node: no namespace is known for the pod, since two have its address.
    #[test]
    fn a_refusal_by_another_listed_pod_is_that_pods() {
        let other = |addr: &str| {
            let mut stream = Stream::new().netns_made(LEFT_OVER).http_readiness().clone();
            let pods = &mut stream.last_pods().pods;
            let (addrs, netns) = (vec![address(addr)], Some(LEFT_OVER));
            pods.push(Pod { addrs, netns, name: Some("other".into()), uid: Some("2".into()), ..pods[0].clone() });
            stream.connect().reset_sent(SYN, true, None).last_reset_sent().netns = Some(LEFT_OVER);
            stream.wait_ms(1_000).verdict()
        };
        let verdict = other("10.88.0.3");
        assert_eq!((verdict.cause.name(), verdict.confidence), ("connection_refused", Confidence::Likely));
        assert_starts(
            &verdict.summary,
            "pod default/other has 10.88.0.2, the address of pod default/web, too, and got",
        );
        assert_has(&verdict.remediation, &["Delete pod default/other", "ip neigh show 10.88.0.2"]);
        assert_lacks(&other("10.88.0.2").summary, &["and got the SYN"]);
    }

    /// It is not known that the pod would have answered. Or the pod itself refused, before its sandbox was recreated.
    #[test]
    fn without_a_listener_in_the_pods_namespace_a_refusal_is_only_likely() {
        let unknown = refused_elsewhere(|stream| _ = stream.http_readiness().pod_in(POD), 1).remove(0);
        let words =
            "in network namespace 7: the kernel answered the SYN with a RST; pod default/web is in network namespace 2";
        assert_ends(&unknown.summary, words);
        let ceased = |stream: &mut Stream| _ = stream.http_readiness().pod_in(POD).listens(POD, 8080, false);
        let local = |stream: &mut Stream| {
            let addr = address("127.0.0.1:8080");
            stream.http_readiness().pod_in(POD).listens_on(POD, addr, true);
        };
        let left_over = |stream: &mut Stream| _ = stream.http_readiness().pod_in(POD).listens(LEFT_OVER, 8080, false);
        let others = [ceased, local, left_over].map(|begin| refused_elsewhere(begin, 1));
        for reported in others.into_iter().chain([vec![unknown]]) {
            assert_eq!((reported[0].cause.name(), reported[0].confidence), ("connection_refused", Confidence::Likely));
            let both = ["Check which network namespace has 10.88.0.2", "Otherwise: Let the process listen on 8080"];
            assert_has(&reported[0].remediation, &both);
        }
    }

    #[test]
    fn a_refusal_is_the_pods_if_its_namespace_is_unknown_or_ended() {
        let unknown = |stream: &mut Stream| _ = stream.http_readiness().listens(POD, 8080, true);
        let ended = |stream: &mut Stream| {
            stream.http_readiness().pod_in(POD).listens(POD, 8080, true).netns_ends(POD);
        };
        let own = |stream: &mut Stream| _ = stream.http_readiness().pod_in(LEFT_OVER).listens(POD, 8080, true);
        for reported in [refused_elsewhere(unknown, 1), refused_elsewhere(ended, 1), refused_elsewhere(own, 1)] {
            assert_eq!(reported[0].confidence, Confidence::Proven);
            assert_has(&reported[0].summary, &[" in pod default/web: "]);
        }
    }

    /// The pod's sandbox was made again, and another pod's namespace has the number of its earlier one. The list of pods
    /// does not know that yet.
    #[test]
    fn a_listener_in_the_next_namespace_of_that_number_is_another_pods() {
        let next = |stream: &mut Stream| {
            stream.http_readiness().pod_in(POD).netns_ends(POD).netns_entered(POD).listens(POD, 8080, true);
        };
        let reported = refused_elsewhere(next, 1).remove(0);
        assert_eq!((reported.cause.name(), reported.confidence), ("connection_refused", Confidence::Proven));
        assert_lacks(&reported.summary, &["did not get the SYN"]);
    }

    /// The sandbox was recreated, and the process listens there now. The earlier refusal was the pod's own.
    #[test]
    fn a_listener_that_began_after_the_refusal_does_not_count() {
        let mut stream = Stream::new();
        stream.http_readiness().pod_in(LEFT_OVER).connect().reset_sent(SYN, true, None);
        stream.last_reset_sent().netns = Some(LEFT_OVER);
        stream.wait_ms(500).pod_in(POD).listens(POD, 8080, true).gives_up();
        let reported = stream.verdicts();
        assert!(reported.iter().all(|it| !it.verdict.summary.contains("did not get the SYN")), "{reported:?}");
        assert_eq!(reported[0].verdict.confidence, Confidence::Proven);
    }
}
