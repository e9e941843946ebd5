//! Nobody listens where an address translation had sent the SYN: a sidecar's redirect without the sidecar, or a Service
//! with a wrong targetPort.

use std::net::SocketAddr;

use super::*;
use crate::acceptor::{fix_translation, on_its_network};
use tracer_case::refusal::pod_elsewhere;
use tracer_case::services::{sent_by_ipvs, show_rules, target_service};
use tracer_model::event::{Flow, Netns, PacketDrop};
use tracer_model::record::Scope;

/// A stack without a socket refused the SYN at another port or address than the target's. Only addresses and the client's
/// port tie such a packet to this attempt: likely at most.
pub(super) fn find(case: &Case<'_>) -> Option<Finding> {
    let (evidence, netns, target) = by_reset(case).or_else(|| by_drop(case))?;
    let dst = case.attempt.flow.dst;
    let service = target_service(case);
    let sender = match &service {
        Some(name) => format!("Service {name}"),
        None if sent_by_ipvs(case).is_some() => "IPVS".to_owned(),
        None => "an address translation".to_owned(),
    };
    let summary = format!(
        "nobody listens on {target}{}, where {sender} sends {dst}: the kernel answered the SYN with a RST",
        in_namespace(case, netns)
    );
    let missed = netns.and_then(|netns| pod_that_missed_it(case, netns));
    let fix = match (service, &missed) {
        (Some(name), _) => fix_service(&name, target),
        (None, Some(pod)) => fix_translation(case, Some(pod), target, Some("SYN")),
        (None, None) if sent_by_ipvs(case).is_some() => fix_backend(case, target),
        (None, None) if target.ip() == dst.ip() => fix_rule(case, netns, target),
        (None, None) if case.matched.probed_pod().is_some() => fix_translation(case, None, target, None),
        (None, None) => fix_target_port(case, target),
    };
    let is_redirect = missed.is_none() && target.ip() == dst.ip();
    let fix = if is_redirect { with_log(case, fix) } else { fix };
    let found = Finding::likely(Cause::ConnectionRefused, evidence, summary, fix);
    Some(Finding { scope: missed.map(|_| Scope::Node), ..found })
}

/// The probed pod, if the SYN was led away from it to this namespace: by the hostPort of another pod, for example.
fn pod_that_missed_it(case: &Case<'_>, netns: Netns) -> Option<String> {
    let on_node = || on_its_network(case).filter(|_| case.attempt.netns != Some(netns))?.full_name();
    if case.matched.may_be_on_node() { on_node() } else { pod_elsewhere(case, netns).map(|(pod, _)| pod) }
}

fn fix_rule(case: &Case<'_>, netns: Option<Netns>, target: SocketAddr) -> Remediation {
    let text = format!(
        "Let the process behind that rule listen on {} (a sidecar's proxy that has not started yet, or has ended), or remove the rule that sends {} there",
        target.port(),
        case.attempt.flow.dst
    );
    // The rule is in the pod (a sidecar's), where the client is (chain OUTPUT), or where the node forwards the packet.
    let mut places = vec![netns];
    for place in [case.attempt.netns, case.node.netns()] {
        if place.is_some() && !places.contains(&place) {
            places.push(place);
        }
    }
    let rules = ["iptables-save -t nat", "nft list ruleset"];
    Remediation::from(text).run(places.into_iter().flat_map(|place| rules.map(|command| run_in(case, place, command))))
}

/// A rule of the node changed the address: the lists of Services lack it, or are not known.
fn fix_target_port(case: &Case<'_>, target: SocketAddr) -> Remediation {
    let ip = case.attempt.flow.dst.ip();
    let text = format!(
        "If {ip} is a Service, correct its targetPort, or let its pod listen on {}. Else correct the rule that sends it there",
        target.port()
    );
    let on_node = case.attempt.netns.filter(|from| case.node.is_a_node(*from)).or_else(|| case.node.netns());
    let rules = show_rules(&ip.to_string()).map(|show| run_in(case, on_node, show));
    Remediation::from(text).run([kubectl::services_with(ip)]).run(rules)
}

fn fix_backend(case: &Case<'_>, target: SocketAddr) -> Remediation {
    let dst = case.attempt.flow.dst;
    let text = format!("Let a process listen on {target}, or remove that backend of virtual service {dst} from IPVS");
    Remediation::from(text).run([run_in(case, case.node.netns(), format!("ipvsadm -Ln -t {dst}"))])
}

fn fix_service(service: &str, target: SocketAddr) -> Remediation {
    let text = format!(
        "Correct targetPort of Service {service}, or let the process at its endpoint listen on {}",
        target.port()
    );
    Remediation::from(text).run(kubectl::endpoints(Some(service)))
}

type Redirected = (Vec<Evidence>, Option<Netns>, SocketAddr);

fn by_reset(case: &Case<'_>) -> Option<Redirected> {
    let mut resets = case.attempt.resets_sent();
    let (time, reset) =
        resets.find(|(_, it)| it.no_socket && it.answered.is_syn() && is_redirected(case, it.flow.reversed()))?;
    Some((vec![of_reset_sent(time, reset)], reset.netns, reset.flow.src))
}

/// The kernel freed the SYN with the reason NO_SOCKET (6.1 and later), and a RST came back.
fn by_drop(case: &Case<'_>) -> Option<Redirected> {
    let no_socket = |drop: &PacketDrop| drop.reason.as_deref() == Some("NO_SOCKET") && drop.flags.is_syn();
    let (time, drop) = case.attempt.drops().find(|(_, it)| no_socket(it) && is_redirected(case, it.flow))?;
    let (at, reset) = case.attempt.reset_received()?;
    Some((vec![of_drop(time, drop), of_reset_received(at, reset)], drop.netns, drop.flow.dst))
}

/// The packet went from the prober to another port or address than the target's.
fn is_redirected(case: &Case<'_>, packet: Flow) -> bool {
    let own = case.attempt.flow;
    case.attempt.established.is_none() && packet.src.ip() == own.src.ip() && packet.dst != own.dst
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    fn redirected() -> Flow {
        Flow { src: address("10.88.0.1:40000"), dst: address("10.88.0.2:15006") }
    }

    #[test]
    fn a_refusal_at_the_port_of_a_redirect_is_one_of_that_port() {
        let mut stream = Stream::new();
        stream.http_readiness().listens(POD, 8080, true).wait_ms(5).connect();
        stream.last_connect().flow.src.set_port(0);
        let record = stream.reset_sent_on(redirected().reversed(), SYN, true, None).verdicts().remove(0);
        assert_eq!(record.src.and_then(|it| it.port), Some(40_000));
        let verdict = record.verdict;
        assert_eq!((verdict.cause, verdict.confidence), (Cause::ConnectionRefused, Confidence::Likely));
        assert_has(&verdict.summary, &["nobody listens on 10.88.0.2:15006", "sends 10.88.0.2:8080"]);
        assert_has(&verdict.remediation, &["listen on 15006"]);
        let nsenter = verdict.remediation.commands.iter().map(|it| it.run.starts_with("nsenter"));
        assert_eq!(nsenter.take(4).collect::<Vec<_>>(), [true, true, false, false], "the pod's and the node's rules");
    }

    /// kube-proxy sends a ClusterIP on to an endpoint, where nobody listens on the Service's targetPort.
    #[test]
    fn a_refusal_at_the_endpoint_of_a_service_is_one_of_its_target_port() {
        let mut stream = Stream::to("10.96.0.9:80");
        stream.service(80, |it| it.cluster_ips = vec![address("10.96.0.9")]).connect();
        stream.last_connect().flow.src.set_port(0);
        let endpoint = Flow { dst: address("10.88.0.2:8081"), ..redirected() };
        stream.reset_sent_on(endpoint.reversed(), SYN, true, None).last_reset_sent().via = Via::Translated;
        let record = stream.verdicts().remove(0);
        assert_eq!(record.src.and_then(|it| it.port), Some(40_000));
        let verdict = record.verdict;
        assert_eq!((verdict.cause, verdict.confidence), (Cause::ConnectionRefused, Confidence::Likely));
        assert_has(
            &verdict.summary,
            &["nobody listens on 10.88.0.2:8081", "where Service shop/cart sends 10.96.0.9:80"],
        );
        assert_has(&verdict.remediation, &["Correct targetPort of Service shop/cart", "listen on 8081"]);
    }

    /// The same without a list of Services.
    #[test]
    fn the_fix_of_a_changed_address_begins_with_the_service() {
        let mut stream = Stream::to("10.96.0.9:80").connect().clone();
        let endpoint = Flow { dst: address("10.88.0.2:8081"), ..redirected() };
        stream.reset_sent_on(endpoint.reversed(), SYN, true, None).last_reset_sent().via = Via::Translated;
        let fix = stream.verdict().remediation;
        assert_starts(&fix, "If 10.96.0.9 is a Service, correct its targetPort, or let its pod listen on 8081");
        assert_eq!(fix.commands[0].run, "kubectl get services -A -o wide | grep -wF 10.96.0.9");
        assert_lacks(&fix, &["sidecar", "nsenter"]);
    }

    /// kube-proxy translates in the node's namespace what a pod sends.
    #[test]
    fn the_rules_that_changed_the_packet_of_a_pod_are_the_nodes() {
        let shown = |to: &str| {
            let mut stream = Stream::to("10.96.0.9:80");
            stream.connect().last_connect().netns = Netns(7);
            let endpoint = Flow { dst: address(to), ..redirected() };
            stream.reset_sent_on(endpoint.reversed(), SYN, true, None).last_reset_sent().via = Via::Translated;
            stream.verdict().remediation.commands.into_iter().map(|it| it.run).collect::<Vec<_>>()
        };
        let other = shown("10.88.0.2:8081");
        assert!(other.iter().all(|it| !it.starts_with("nsenter")), "{other:?}");
        let same = shown("10.96.0.9:8081");
        assert!(same.iter().any(|it| it == "iptables-save -t nat"), "{same:?}");
    }

    /// Seen on 6.12: nobody listens at the backend of a virtual service, which is no rule.
    #[test]
    fn a_refusal_at_a_backend_of_ipvs_names_the_virtual_service() {
        let mut stream = Stream::to("10.96.0.9:80");
        let backend = Flow { dst: address("10.88.0.2:8081"), ..redirected() };
        stream.connect().ipvs(SYN, IpvsOp::Translate);
        stream.reset_sent_on(backend.reversed(), SYN, true, None).last_reset_sent().via = Via::Translated;
        let verdict = stream.verdict();
        assert_eq!((verdict.cause, verdict.confidence), (Cause::ConnectionRefused, Confidence::Likely));
        assert_has(&verdict.summary, &["nobody listens on 10.88.0.2:8081", "where IPVS sends 10.96.0.9:80"]);
        assert_has(
            &verdict.remediation,
            &["that backend of virtual service 10.96.0.9:80", "ipvsadm -Ln -t 10.96.0.9:80"],
        );
        assert_lacks(&verdict.remediation, &["sidecar", "iptables"]);
    }

    /// The hostPort of a pod leads the SYN there, or a rule of the node that is for all pods.
    #[test]
    fn a_refusal_in_another_pod_is_not_for_the_probed_one() {
        let refused = |fill: fn(&mut Stream)| {
            let mut stream = Stream::new().links(true, &["10.88.0.1"]).http_readiness().clone();
            fill(&mut stream);
            stream.connect();
            let flow = Flow { dst: address("10.88.0.7:80"), ..stream.last_connect().flow };
            stream.reset_sent_on(flow.reversed(), SYN, true, None).last_reset_sent().netns = Some(Netns(7));
            stream.reset_received(TcpState::SynSent, 0).verdicts().remove(0)
        };
        let led_away = refused(|stream| {
            let own = stream.on_host_network().last_pods().pods[0].addrs[0];
            stream.links(true, &[&own.to_string()]);
        });
        assert_eq!(led_away.scope, Some(Scope::Node));
        let words = "Give pod default/web another port, or change the rule of the node that sends port 8080 of the node to 10.88.0.7:80, such as that of a hostPort";
        assert_starts(&led_away.verdict.remediation, words);
        assert_has(&led_away.verdict.remediation, &["The process in pod default/web did not get the SYN: ipt"]);
        assert_lacks(&led_away.verdict.remediation, &["kubectl logs"]);
        let of_all = refused(|stream| _ = stream.pod_in(POD)).verdict.remediation;
        assert_starts(&of_all, "Find the rule of the node that translates the destination to 10.88.0.7:80");
        assert_lacks(&of_all, &["kubectl logs"]);
    }

    /// Kernels without the hook for a RST without a socket.
    #[test]
    fn the_freed_syn_and_a_rst_show_it_too() {
        let freed = |answered: bool| {
            let mut stream = Stream::new();
            stream.connect().drop_with(SYN, POD, |drop| {
                (drop.reason, drop.flow, drop.via) = (Some("NO_SOCKET".into()), redirected(), Via::Translated);
            });
            if answered {
                stream.reset_received(TcpState::SynSent, 0);
            }
            stream.gives_up().decided()
        };
        assert_eq!(freed(true), ("connection_refused", Confidence::Likely));
        assert_eq!(freed(false).0, "unexplained");
    }

    #[test]
    fn the_own_port_decides_before_a_redirect() {
        let mut stream = Stream::new();
        stream.connect().reset_sent(SYN, true, None);
        assert_eq!(stream.reset_sent_on(redirected().reversed(), SYN, true, None).decided().1, Confidence::Proven);
    }
}
