//! The Service that was dialled has no endpoint that is ready.

use std::net::SocketAddr;

use super::super::evidence::of_ipvs;
use super::super::stopped::stopped;
use super::{Case, Finding, Label, in_handshake, in_namespace, silent};
use crate::enrich;
use crate::event::{FirewallRule, IpvsOp, Service};
use crate::record::Confidence;

/// The rule.
pub(in super::super) fn find(case: &Case<'_>) -> Option<Finding> {
    if !in_handshake(case) {
        return None;
    }
    by_ipvs(case).or_else(|| by_rule(case)).or_else(|| by_list(case)).or_else(|| by_silence(case))
}

/// IPVS found a virtual service without a backend for this attempt's SYN.
fn by_ipvs(case: &Case<'_>) -> Option<Finding> {
    let dst = case.attempt.flow.dst;
    let (time, ipvs) =
        case.attempt.ipvs().find(|(_, i)| i.op == IpvsOp::NoBackend && i.flags.is_syn() && i.flow.dst == dst)?;
    let summary = format!("IPVS{} has no backend", in_namespace(case, ipvs.netns));
    Some(finding(case, None, &summary, |summary, remediation| {
        Finding::failure(Label::ServiceNoEndpoints, vec![of_ipvs(time, ipvs)], summary, remediation)
    }))
}

/// kube-proxy's rule for a Service without endpoints is the only one that can have stopped it.
fn by_rule(case: &Case<'_>) -> Option<Finding> {
    let stopped = stopped(case)?;
    let blame = stopped.blame.as_ref().filter(|blame| blame.all(is_no_endpoints))?;
    let named = blame.rules.first().and_then(|rule| service_of(rule));
    let confidence = if blame.certain().is_some() { Confidence::Proven } else { Confidence::Likely };
    let said = format!("kube-proxy's rule{}{}", stopped.did(case), stopped.words());
    let make = |summary, remediation| stopped.finding(case, Label::ServiceNoEndpoints, summary, remediation);
    Some(finding(case, named, &said, make).with_confidence(confidence))
}

/// The list of Services has no ready endpoint for the address, and netfilter stopped the SYN.
fn by_list(case: &Case<'_>) -> Option<Finding> {
    empty_service(case)?;
    let stopped = stopped(case)?;
    let said = format!("netfilter{}", stopped.did(case));
    let make = |summary, remediation| stopped.finding(case, Label::ServiceNoEndpoints, summary, remediation);
    Some(finding(case, None, &said, make).with_confidence(Confidence::Likely))
}

/// The same, and nothing at all was seen of the SYN.
fn by_silence(case: &Case<'_>) -> Option<Finding> {
    empty_service(case)?;
    let (ended, _) = case.attempt.ended.filter(|_| case.settled && case.attempt.failed())?;
    let silent = silent(case) && case.attempt.resets_sent().next().is_none() && case.attempt.connect_failed().is_none();
    let make = |summary, remediation| Finding {
        decided_at: ended,
        ..Finding::failure(Label::ServiceNoEndpoints, Vec::new(), summary, remediation).resting_on(&["kfree_skb"])
    };
    let found = silent.then(|| finding(case, None, "the SYN had no answer", make))?;
    Some(found.with_confidence(Confidence::Possible))
}

fn finding(case: &Case<'_>, named: Option<&str>, said: &str, make: impl FnOnce(String, String) -> Finding) -> Finding {
    let dst = case.attempt.flow.dst;
    let service = service_at(case, dst);
    let name = service.map(name_of).or_else(|| named.map(str::to_owned)).or_else(|| node_port_service(case, dst));
    let name = name.map_or_else(|| "the Service".to_owned(), |name| format!("Service {name}"));
    let circular = service.and_then(|service| circular(case, service));
    let summary = format!("{name} at {dst} has no ready endpoint: {said}{}", circular.as_deref().unwrap_or_default());
    let remediation = match circular {
        Some(_) => {
            "do not gate the pod's readiness on its own Service (probe the pod itself), or set publishNotReadyAddresses: true on that Service"
        }
        None => {
            "make an endpoint of it ready: kubectl get endpointslices,pods; the readiness of those pods is the cause to look for"
        }
    };
    make(summary, remediation.to_owned())
}

fn is_no_endpoints(rule: &FirewallRule) -> bool {
    service_of(rule).is_some()
}

/// `ns/name:port has no endpoints`, as kube-proxy comments it (pkg/proxy/iptables, `syncProxyRules`).
fn service_of(rule: &FirewallRule) -> Option<&str> {
    let comment = rule.comment.as_deref()?;
    comment.strip_suffix(" has no endpoints").or_else(|| comment.strip_suffix(" has no local endpoints"))
}

/// `namespace/name` of the Service that is dialled under this address, if it is known to be one.
pub(super) fn dialled(case: &Case<'_>) -> Option<String> {
    let dst = case.attempt.flow.dst;
    service_at(case, dst).map(name_of).or_else(|| node_port_service(case, dst))
}

fn name_of(service: &Service) -> String {
    format!("{}/{}", service.namespace, service.name)
}

fn service_at<'a>(case: &Case<'a>, dst: SocketAddr) -> Option<&'a Service> {
    let at_cluster_ip = |service: &&Service| {
        service.cluster_ips.contains(&dst.ip()) && service.ports.iter().any(|port| port.port == dst.port())
    };
    let at_node_port = |service: &&Service| {
        service.ports.iter().any(|port| port.node_port == Some(dst.port())) && is_of_node(case, dst)
    };
    let services = &case.node.services;
    services.iter().find(at_cluster_ip).or_else(|| services.iter().find(at_node_port))
}

fn is_of_node(case: &Case<'_>, dst: SocketAddr) -> bool {
    case.node.netns().is_some_and(|netns| case.node.owns(netns, dst.ip()))
}

fn empty_service<'a>(case: &Case<'a>) -> Option<&'a Service> {
    service_at(case, case.attempt.flow.dst)
        .filter(|service| service.ready_endpoints.as_ref().is_some_and(Vec::is_empty))
}

fn node_port_service(case: &Case<'_>, dst: SocketAddr) -> Option<String> {
    let mut ports = case.node.all_node_ports().filter(|(_, port)| port.port == dst.port() && is_of_node(case, dst));
    ports.find_map(|(_, port)| case.node.service_of(port))
}

/// The pod that dials, or whose probe it is, is an endpoint that is not ready.
fn circular(case: &Case<'_>, service: &Service) -> Option<String> {
    let waits = |addr: &std::net::IpAddr| service.not_ready_endpoints.contains(addr);
    let probed = enrich::probed_pod(case.attempt, case.node).filter(|pod| pod.addrs.iter().any(waits));
    let dialling = || case.node.pods.at(case.attempt.flow.src.ip()).next();
    let pod = probed.or_else(|| dialling().filter(|pod| pod.addrs.iter().any(waits)))?;
    let name = pod.name.as_deref().unwrap_or("the pod");
    Some(format!("; {name} is itself an endpoint of it that is not ready: the dependency is circular"))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use crate::event::{Fact, IpvsOp, RuleVerdict, Service, ServicePort, Services};
    use crate::record::Confidence;
    use crate::testing::{NODE, SYN, Stream, firewall, rule};

    fn services(ready: &[&str], not_ready: &[&str]) -> Fact {
        let addrs = |list: &[&str]| -> Vec<IpAddr> { list.iter().map(|it| it.parse().expect("address")).collect() };
        Fact::Services(Services {
            services: vec![Service {
                namespace: "shop".into(),
                name: "cart".into(),
                cluster_ips: addrs(&["10.96.0.9"]),
                ports: vec![ServicePort { name: None, port: 80, node_port: None }],
                ready_endpoints: Some(addrs(ready)),
                not_ready_endpoints: addrs(not_ready),
            }],
        })
    }

    fn kube_proxy(comment: &str) -> Fact {
        let mut reject = rule("KUBE-SERVICES", RuleVerdict::Reject);
        reject.comment = Some(comment.into());
        firewall(NODE, vec![reject])
    }

    #[test]
    fn kube_proxy_s_reject_names_the_service() {
        let mut stream = Stream::to("10.96.0.9:80");
        stream
            .connect()
            .icmp(3, 3)
            .drop(SYN, "NETFILTER_DROP", NODE)
            .push(kube_proxy("shop/cart:http has no endpoints"));
        let verdict = &stream.verdicts()[0].verdict;
        assert_eq!((verdict.label.name(), verdict.confidence), ("service_no_endpoints", Confidence::Proven));
        assert!(verdict.summary.contains("shop/cart:http"), "{}", verdict.summary);
    }

    #[test]
    fn another_rule_is_a_firewall_s() {
        let mut stream = Stream::to("10.96.0.9:80");
        stream.connect().icmp(3, 3).drop(SYN, "NETFILTER_DROP", NODE).push(kube_proxy("deny all"));
        assert_eq!(stream.labels(), ["firewall_reject"]);
    }

    #[test]
    fn ipvs_without_a_backend_decides_at_once() {
        let mut stream = Stream::to("10.96.0.9:80");
        assert_eq!(stream.connect().ipvs(SYN, IpvsOp::NoBackend).labels(), ["service_no_endpoints"]);
    }

    #[test]
    fn the_list_of_services_says_it_where_the_rules_do_not_and_finds_the_circle() {
        let mut stream = Stream::to("10.96.0.9:80");
        stream.push(services(&[], &["10.88.0.1"])).connect().gives_up();
        let verdict = &stream.verdicts()[0].verdict;
        assert_eq!((verdict.label.name(), verdict.confidence), ("service_no_endpoints", Confidence::Possible));
        let mut stream = Stream::to("10.96.0.9:80");
        stream.push(services(&["10.88.0.7"], &[])).connect().gives_up();
        assert_eq!(stream.labels(), ["unexplained"]);
    }
}
