//! The connection arrived in another network namespace than the pod's.

use std::net::SocketAddr;

use super::*;
use tracer_case::other_stack::own_address;
use tracer_case::phrases::run_in;
use tracer_case::refusal::listed;
use tracer_case::services::target_service;

/// The connection arrived in another namespace than the pod's: in the node's own, or in that of another pod. `earlier`:
/// the translation that was read is of an earlier connection. `own`: the finding's own fix.
pub(super) fn elsewhere(case: &Case<'_>, read: Option<&Acceptor>, earlier: bool, own: &Remediation) -> Option<Other> {
    let (addr, from) = (case.attempt.flow.dst.ip(), case.attempt.netns?);
    let on_node = case.matched.may_be_on_node();
    let pod = if on_node { on_its_network(case) } else { Some(listed(case)?) };
    let owns = || case.attempt.prober && case.node.is_to_itself(case.attempt);
    let netns = read.map(|it| it.netns).or_else(|| owns().then_some(from))?;
    let is_other = |pod: &Pod| !pod.host_network && pod.netns != Some(netns);
    let led_away = || read.is_some_and(|it| leads_away(case, pod, it));
    if !(if on_node { led_away() } else { case.node.pods.at(addr).all(is_other) }) {
        return None;
    }
    let holder = case.node.pods.in_netns(netns).and_then(Pod::full_name);
    let who = match read.map(|it| names(case, it)).filter(|names| !names.is_empty()) {
        Some(names) => names,
        None if netns == from => "a process of the node".to_owned(),
        None => match holder.as_deref() {
            Some(holder) => format!("a process of pod {holder}"),
            None if on_node => format!("a process in network namespace {}", netns.0),
            None => return None,
        },
    };
    let pod = pod.and_then(Pod::full_name);
    let instead = pod.as_ref().map(|pod| format!(", and not pod {pod}")).unwrap_or_default();
    let accepted = format!("{who} {}{instead}", done_by(case));
    let other = |scope, words, fix| Some(Other { cause: None, scope, words, place: Place::First, fix });
    if let Some(to) = read.and_then(|it| it.to) {
        let fix = fix_translation(case, pod.as_deref(), to, (!earlier).then_some("request"));
        let service = target_service(case).map(|name| format!(" (Service {name})")).unwrap_or_default();
        let led = format!("the node's own address translation{service} sent it to {to}");
        // If the probed pod is not known, the translation may lead to it.
        if earlier {
            let fix = fix.reword(|text| format!("If this connection went there, too: {text}"));
            let words = format!("{who} accepted an earlier connection{instead}: {led}");
            return Some(Other {
                place: Place::Last,
                ..other(Scope::Node, words, fix.then("Otherwise", own.clone()))?
            });
        }
        let fix = if pod.is_none() { fix.then("Otherwise", own.clone()) } else { fix };
        return other(Scope::Node, format!("{accepted}: {led}"), fix);
    }
    let pod = pod?;
    if netns == from {
        let (device, fix) = own_address(case, netns);
        let words = format!("{accepted}: the node itself has {addr}, too{device}, so no packet left it");
        return other(Scope::Node, words, fix);
    }
    let holder = holder?;
    let fix = Remediation::from(format!(
        "Delete pod {holder}, or take {addr} away from it. The process in pod {pod} did not get the request"
    ));
    let show = [run_in(case, Some(netns), format!("ip addr show to {addr}"))];
    other(Scope::Network, format!("{accepted}: pod {holder} has {addr}, too"), fix.run(show))
}

/// What to do about a rule of the node that sends what is meant for this pod to another address. `missed` did not get there.
pub(in super::super) fn fix_translation(
    case: &Case<'_>,
    pod: Option<&str>,
    to: SocketAddr,
    missed: Option<&str>,
) -> Remediation {
    let missed = pod.zip(missed).map(|(pod, what)| format!(". The process in pod {pod} did not get the {what}"));
    let missed = missed.unwrap_or_default();
    let probed = pod.map(|pod| format!("Give pod {pod}"));
    let probed = probed.unwrap_or_else(|| "If a pod on the node's network is probed: give it".to_owned());
    let fix = Remediation::from(match (case.matched.may_be_on_node(), target_service(case)) {
        (true, Some(service)) => format!("{probed} or Service {service} another port{missed}"),
        (true, None) => format!(
            "{probed} another port, or change the rule of the node that sends port {} of the node to {to}, such as that of a hostPort (chain OUTPUT of table nat){missed}",
            case.attempt.flow.dst.port()
        ),
        (false, _) => format!(
            "Find the rule of the node that translates the destination to {to} (chain OUTPUT), and exempt the kubelet's connections to pods from it{missed}"
        ),
    });
    fix.run(["iptables-save -t nat", "nft list ruleset"].map(|show| run_in(case, case.attempt.netns, show)))
}

/// The pod on the node's network that was probed, as far as it is known.
pub(in super::super) fn on_its_network<'a>(case: &Case<'a>) -> Option<&'a Pod> {
    case.matched.probed_pod().or_else(|| case.matched.reported_on_node())
}

/// The node's own address translation sent a connection to the node's address to another namespace, or to a process that
/// is not the pod's. A hostPort of another pod does that.
fn leads_away(case: &Case<'_>, pod: Option<&Pod>, read: &Acceptor) -> bool {
    let processes = &read.processes;
    let is_others = |pod| !processes.is_empty() && processes.iter().all(|it| is_foreign(case, pod, it));
    let is_led = read.to.is_some() && !is_reported(case, read);
    is_led && (case.attempt.netns != Some(read.netns) || pod.is_some_and(is_others))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{answered, host_network, process, reported};
    use tracer_core::testing::*;

    /// The CNI's hostPort of another pod has the port of a pod on the node's network.
    #[test]
    fn a_translation_of_the_node_takes_the_port_of_a_host_network_pod() {
        let to = Some("10.88.0.7:8080");
        let known = |stream: &mut Stream| {
            host_network(stream);
            stream.last_pods().pods.iter_mut().for_each(|pod| pod.netns = Some(NODE));
            let (name, uid) = (Some("hostport".into()), Some("u7".into()));
            let addrs = vec![address("10.88.0.7")];
            stream.last_pods().pods.push(Pod { name, uid, addrs, netns: Some(POD), ..Pod::default() });
        };
        for by in [&[process("nginx", Some("u7"), None)][..], &[]] {
            let record = reported(known, POD, to, by);
            assert_eq!((record.verdict.confidence, record.scope), (Confidence::Likely, Some(Scope::Node)));
            let words = "of pod hostport accepted an earlier connection, and not pod default/web: the node's own address translation sent it to 10.88.0.7:8080";
            assert_has(&record.verdict.summary, &[words]);
            let fix = "Give pod default/web another port, or change the rule of the node that sends port 8080";
            assert_has(&record.verdict.remediation, &[fix]);
        }
        let of_node = answered(host_network, NODE, Some("127.0.0.1:3128"), &[process("squid", None, None)]);
        assert_eq!((of_node.cause, of_node.confidence), (Cause::AppStatusFailure, Confidence::Likely));
        let own = answered(host_network, NODE, Some("127.0.0.1:3128"), &[process("app", Some("u1"), Some("c1"))]);
        assert_eq!((own.cause, own.confidence), (Cause::AppStatusFailure, Confidence::Proven), "it got to the pod");
    }

    /// No list of pods, and no kubelet log.
    #[test]
    fn without_pods_a_translation_of_the_nodes_own_address_is_named() {
        let mut stream = Stream::new();
        stream.links(true, &["10.88.0.2"]).connect().established().answers(404).wait_ms(5).tick();
        let acceptor = |processes| Acceptor { to: Some(address("10.88.0.7:8080")), netns: POD, processes };
        let mut by_nginx = stream.clone();
        let nginx = vec![process("nginx", Some("u7"), None)];
        by_nginx.pod_sockets(|reading| reading.acceptor = Some(acceptor(nginx)));
        let verdict = by_nginx.wait_ms(5).tick().verdict();
        assert_eq!((verdict.cause, verdict.confidence), (Cause::AppStatusFailure, Confidence::Likely));
        assert_has(
            &verdict.summary,
            &["nginx (pid 77) of pod u7 accepted", "address translation sent it to 10.88.0.7"],
        );
        assert_lacks(&verdict.summary, &["and not pod"]);
        let fix = ["If a pod on the node's network is probed: give it another port", ". Otherwise: The network"];
        assert_has(&verdict.remediation, &fix);
        stream.pod_sockets(|reading| reading.acceptor = Some(Acceptor { to: None, netns: NODE, processes: vec![] }));
        assert_eq!(stream.wait_ms(5).tick().verdict().confidence, Confidence::Proven, "no translation");
    }

    /// The `host` of the probe is an address of the node. The kubelet names the pod, by its uid or by the name of the pod
    /// that has the namespace.
    #[test]
    fn a_host_port_of_the_pod_that_the_kubelet_names_leads_to_it() {
        let decided = |named: &str, by: &[AcceptingProcess], is_found: bool| {
            let mut stream = Stream::new().links(true, &["10.88.0.2"]).clone();
            if is_found {
                stream.http_readiness();
                let (uid, addrs) = (Some("u7".into()), vec![address("10.88.0.7")]);
                let pod = &mut stream.last_pods().pods[0];
                *pod = Pod { uid, addrs, netns: Some(POD), ..Pod::default() };
            }
            stream.connect().established().answers(503).wait_ms(5).tick();
            let (to, processes) = (Some(address("10.88.0.7:8080")), by.to_vec());
            stream.pod_sockets(|reading| reading.acceptor = Some(Acceptor { to, netns: POD, processes }));
            let dst = is_found.then(|| address("10.88.0.2:8080"));
            stream.kubelet_with(ProbeOutput::Status(503), |probe| {
                (probe.pod.uid, probe.dst) = (Some(named.into()), dst);
            });
            let record = stream.wait_ms(600).tick().verdicts().pop().expect("a verdict");
            assert_eq!(record.verdict.cause, Cause::AppStatusFailure);
            (record.verdict.confidence, record.scope)
        };
        let nginx = [process("nginx", Some("u7"), None)];
        for (by, is_found) in [(&nginx[..], false), (&nginx, true), (&[], true)] {
            assert_eq!(decided("u7", by, is_found), (Confidence::Proven, Some(Scope::Application)), "{is_found}");
        }
        assert_eq!(decided("u1", &nginx, false), (Confidence::Likely, Some(Scope::Node)));
    }

    /// The translation of another connection says nothing about it.
    #[test]
    fn a_connection_between_processes_of_the_node_is_no_probe_of_a_pod() {
        let is_led_away = |by: fn(&mut Stream)| {
            let mut stream = Stream::new().links(true, &["10.88.0.2"]).unread().clone();
            let (to, processes) = (Some(address("10.88.0.7:8080")), vec![process("nginx", Some("u7"), None)]);
            stream.pod_sockets(|reading| reading.acceptor = Some(Acceptor { to, netns: POD, processes }));
            by(stream.wait_ms(5_000).connect());
            stream.established().reset_received(TcpState::Established, 0).reset_sent(TcpFlags(0), false, Some("app"));
            let verdict = stream.wait_ms(600).tick().verdict();
            assert_eq!(verdict.cause, Cause::MidStreamRst);
            verdict.summary.contains("the node's own address translation")
        };
        assert_eq!([is_led_away(|_| ()), is_led_away(|stream| _ = stream.by_other_process())], [true, false]);
    }

    #[test]
    fn a_process_of_the_node_that_has_the_pods_address_is_not_the_pod() {
        let on_lo = |stream: &mut Stream| _ = stream.links(true, &["10.88.0.2"]).http_readiness().pod_in(POD);
        for by in [&[process("nginx", None, None)][..], &[]] {
            let record = reported(on_lo, NODE, None, by);
            assert_eq!(record.scope, Some(Scope::Node));
            let verdict = record.verdict;
            assert_eq!((verdict.cause, verdict.confidence), (Cause::AppStatusFailure, Confidence::Likely));
            assert_has(&verdict.summary, &["of the node accepted the connection, and not pod default/web"]);
            assert_has(&verdict.remediation, &["ip addr del 10.88.0.2 dev lo"]);
            assert_lacks(&verdict.remediation, &["network from the kubelet to the pod works", "kubectl logs"]);
        }
    }

    /// Seen with IPv6: the source of a connection over a local route is another address of the node.
    #[test]
    fn a_local_route_to_the_pods_address_leads_to_a_process_of_the_node() {
        let routed = |stream: &mut Stream| _ = stream.links(true, &["10.88.0.1"]).http_readiness().pod_in(POD);
        let record = reported(routed, NODE, None, &[process("nginx", None, None)]);
        assert_eq!((record.verdict.confidence, record.scope), (Confidence::Likely, Some(Scope::Node)));
        let words = "nginx (pid 77) of the node accepted the connection, and not pod default/web: the node itself has 10.88.0.2, too (by a local route: no link has it)";
        assert_has(&record.verdict.summary, &[words]);
        assert_has(&record.verdict.remediation, &["ip route show table all type local"]);
    }

    /// Without a reading the addresses decide.
    #[test]
    fn a_connection_to_the_own_address_is_not_the_pods() {
        let mut stream = Stream::new();
        stream.http_readiness().pod_in(POD).connect();
        let own = stream.last_connect().flow.dst.ip();
        stream.last_connect().flow.src.set_ip(own);
        let verdict = stream.established().wait_ms(1_000).closes((100, 101, 0)).verdict();
        assert_eq!((verdict.cause, verdict.confidence), (Cause::SlowResponse, Confidence::Likely));
        assert_has(&verdict.summary, &["a process of the node accepted the connection, and not pod default/web"]);
    }

    /// A transparent proxy on the node, and a rule that leads to another pod. The rule may be gone since the earlier
    /// connection that went there.
    #[test]
    fn what_a_translation_of_the_node_leads_to_is_named() {
        let listed = |stream: &mut Stream| _ = stream.http_readiness().pod_in(POD);
        let squid = || process("squid", None, None);
        let record = reported(listed, NODE, Some("127.0.0.1:3128"), &[squid()]);
        assert_eq!((record.verdict.confidence, record.scope), (Confidence::Likely, Some(Scope::Node)));
        let words = "squid (pid 77) of the node accepted an earlier connection, and not pod default/web: the node's own address translation sent it to 127.0.0.1:3128";
        assert_has(&record.verdict.summary, &[words]);
        let both =
            ["exempt the kubelet's connections", ". Otherwise: The network", "iptables-save -t nat", "kubectl logs"];
        assert_has(&record.verdict.remediation, &both);
        assert_starts(&record.verdict.remediation, "If this connection went there, too: Find the rule");
        assert_lacks(&record.verdict.remediation, &["did not get the request"]);
        let same = answered(listed, POD, Some("10.88.0.2:8081"), &[process("app", None, None)]);
        assert_eq!(same.confidence, Confidence::Proven, "it got to the pod");
        // The reading comes with the answer's status, and the verdict at the end of the attempt.
        let of = |peer: &str| {
            let mut stream = Stream::new();
            listed(&mut stream);
            stream.connect().established().wait_ms(900).pod_sockets(|reading| {
                let processes = vec![squid()];
                reading.acceptor = Some(Acceptor { to: Some(address("127.0.0.1:3128")), netns: NODE, processes });
                reading.peer = Some(address(peer));
            });
            stream.wait_ms(100).closes((100, 101, 0)).wait_ms(5).tick().verdict()
        };
        let own = of("10.88.0.1:40000");
        assert_has(&own.summary, &["squid (pid 77) of the node accepted the connection, and not pod default/web: the"]);
        assert_lacks(&own.remediation, &["Otherwise"]);
        assert_has(&of("10.88.0.1:40001").summary, &["accepted an earlier connection"]);
    }
}
