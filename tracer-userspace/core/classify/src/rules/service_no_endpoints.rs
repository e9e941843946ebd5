//! The Service has no ready endpoint, or none on this node although its traffic policy allows no others.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::*;
use tracer_case::blocked::{Blame, Blocked};
use tracer_case::case::IPVS_LINK;
use tracer_case::netfilter::{self, is_port_unreachable};
use tracer_case::owner::{IPVS_FILTER, is_cluster_ips_check, is_of_kube_proxy, is_of_no_service};
use tracer_case::services::{
    BEHIND, is_of_node, name_of, node_port_service, node_ports_at, own_link, proxy_is_behind, service_at,
};
use tracer_case::{programs, startup_probe};
use tracer_model::event::{
    FirewallRule, IpvsOp, Netns, NodePort, NodePorts, PacketDrop, Pod, ProbeType, ProxyMode, Service, ServiceName,
};

pub(super) fn find(case: &Case<'_>) -> Option<Finding> {
    if !in_handshake(case) {
        return None;
    }
    let by_program = || by_program(case).or_else(|| by_connect(case));
    let by_list = || by_list(case).or_else(by_program).or_else(|| by_silence(case));
    let by_rule = || by_rule(case).or_else(|| by_cluster_ip(case)).or_else(|| by_proxy(case));
    by_ipvs(case).or_else(by_rule).or_else(|| by_table(case)).or_else(by_list)
}

/// IPVS had no backend to schedule for this attempt's SYN: none, or each has weight 0 or is at its upper threshold
/// (`IP_VS_DEST_F_OVERLOAD`). The table as it was read, or the list of Services, shows that there is none.
///
/// Under `internalTrafficPolicy: Local` kube-proxy gives it no endpoints of other nodes (pkg/proxy/ipvs, `syncEndpoint`): ready endpoints on other nodes
/// hint at that.
fn by_ipvs(case: &Case<'_>) -> Option<Finding> {
    let dst = case.attempt.flow.dst;
    let (time, ipvs) =
        case.attempt.ipvs().find(|(_, i)| i.op == IpvsOp::NoBackend && i.flags.is_syn() && i.flow.dst == dst)?;
    let observed = format!("IPVS{} has no backend that takes new connections", in_namespace(case, ipvs.netns));
    let make = |summary, remediation| {
        Finding::failure(Cause::ServiceNoEndpoints, vec![of_ipvs(time, ipvs)], summary, remediation)
            .rests_on_lost_packet()
    };
    if ready_elsewhere(case, service_at(case, dst)).is_none() {
        let has_none = is_without_backend(case, ipvs.netns) || empty_service(case).is_some();
        let (lacking, most) = match everywhere_or_not_yet(case, service_at(case, dst)) {
            it if has_none => (it, Confidence::Proven),
            Lacking::Everywhere => (Lacking::InIpvs, Confidence::Likely),
            it => (it, Confidence::Likely),
        };
        let observed = if has_none { observed } else { format!("{observed}: {OR_AT_ITS_LIMIT}") };
        return Some(finding(case, None, lacking, &observed, make).with_confidence(most));
    }
    let observed = format!("{observed}, because of that policy or because kube-proxy is behind");
    let found = finding(case, None, Lacking::Here(policy_at(case, dst)), &observed, make);
    Some(found.with_confidence(Confidence::Likely))
}

const OR_AT_ITS_LIMIT: &str =
    "it has none, or each has weight 0 or is at its upper threshold (ipvsadm -Ln, ipvsadm -Ln --thresholds)";

/// The table of IPVS in this namespace has no backend for the target that takes new connections.
fn is_without_backend(case: &Case<'_>, netns: Option<Netns>) -> bool {
    let dst = case.attempt.flow.dst;
    let here = |table: &&NodePorts| netns.is_none_or(|it| it == table.netns);
    let at = |port: &NodePort| port.port == dst.port() && port.is_at(dst.ip());
    case.node.node_ports.of(ProxyMode::Ipvs).filter(here).is_some_and(|table| {
        table.without_backend.contains(&dst) || table.ports.iter().any(|port| at(port) && port.backends.is_empty())
    })
}

/// Netfilter stopped a packet to the Service. An answer of the target that met a rule of kube-proxy went to a NodePort
/// (`nodeport_ephemeral_collision`).
fn blocked<'c, 'a>(case: &'c Case<'a>) -> Option<&'c Blocked<'a>> {
    netfilter::blocked(case).filter(|blocked| blocked.answer_dropped(case).is_none())
}

/// kube-proxy's rule for a Service without endpoints is the only one that can have stopped the packet.
fn by_rule(case: &Case<'_>) -> Option<Finding> {
    let blocked = blocked(case)?;
    let blame = blocked.blame.as_ref().filter(|blame| blame.all(is_no_endpoints))?;
    let first = blame.rules.first();
    let named = first.and_then(|rule| service_of(rule));
    let none_ready = || known(case, named).is_some_and(|known| is_empty(case, known.service));
    let here = blame.all(is_no_local_endpoints) && !none_ready();
    let lacking = match first.filter(|_| here) {
        Some(rule) => Lacking::Here(policy_of(rule).unwrap_or_else(|| policy_at(case, case.attempt.flow.dst))),
        None => Lacking::Everywhere,
    };
    let confidence = if blame.certain().is_some() { Confidence::Proven } else { Confidence::Likely };
    let observed = format!("kube-proxy's rule{}", blocked.action(case));
    Some(of_blocked(case, blocked, named, lacking, &observed).with_confidence(confidence))
}

/// The proxy's rule for Service addresses is the only one that can have stopped the packet: no Service has that port
/// there.
fn by_cluster_ip(case: &Case<'_>) -> Option<Finding> {
    let blocked = blocked(case)?;
    let blame = blocked.blame.as_ref().filter(|blame| blame.all(is_cluster_ips_check))?;
    // A list may be older than the end of its Service.
    let is_listed = service_at(case, case.attempt.flow.dst).is_some();
    let confidence = match blame.certain() {
        Some(_) if !is_listed => Confidence::Proven,
        _ => Confidence::Likely,
    };
    let (dst, proxy) = (case.attempt.flow.dst, blame.owner()?.name);
    let own_link = own_link(case, dst.ip()).filter(|_| blame.all(|rule| rule.chain == IPVS_FILTER));
    let with_services =
        |text: &str| Remediation::from(text).run([Command::in_cluster("kubectl get services -A -o wide")]);
    let (what, fix) = match (own_link, service_at(case, dst)) {
        (Some(link), _) => (
            format!(
                "{} is the node's own address (on {link}) and that of a Service without port {}",
                dst.ip(),
                dst.port()
            ),
            with_services(NODE_ADDRESS),
        ),
        (None, Some(service)) => {
            let name = name_of(service);
            (format!("Service {name} has {dst}, and the rules on this node do not have it"), proxy_is_behind())
        }
        (None, None) if blame.all(is_of_no_service) => {
            let words = format!("no Service has the ClusterIP {} in the rules of this node", dst.ip());
            (words, with_services(&format!("{NO_SERVICE}. If one has it, kube-proxy on this node {BEHIND}")))
        }
        (None, None) => (
            format!("no Service has port {} at {}", dst.port(), dst.ip()),
            with_services(&format!("{NO_PORT}. If the Service has it, check whether {proxy} on this node is behind")),
        ),
    };
    let summary = format!("{what}: {proxy}'s rule{}{}", blocked.action(case), blocked.words());
    Some(blocked.finding(case, Cause::ServiceNoEndpoints, summary, fix).with_confidence(confidence))
}

/// The only known rules that fit are those with which kube-proxy rejects traffic without endpoints. Whichever it was,
/// no firewall forbids the traffic. If some rules were not read, the address must be that of a Service: kube-proxy's
/// rule for ClusterIPs looks up a set, and without that set it fits any packet.
fn by_proxy(case: &Case<'_>) -> Option<Finding> {
    let blocked = blocked(case)?;
    let of_proxy = |rule: &FirewallRule| is_no_endpoints(rule) || is_cluster_ips_check(rule);
    let is_known = |blame: &Blame<'_>| blame.rules.iter().any(|it| names_target(it)) || is_service_address(case);
    let of_service = |blame: &Blame<'_>| blame.all(of_proxy) || blame.all_read(of_proxy) && is_known(blame);
    let blame = blocked.blame.as_ref().filter(|blame| of_service(blame))?;
    let named = blame.rules.iter().find_map(|rule| service_of(rule));
    let observed = format!("kube-proxy's rule{}", blocked.action(case));
    Some(of_blocked(case, blocked, named, Lacking::Everywhere, &observed).with_confidence(Confidence::Likely))
}

/// No hook shows what IPVS does, and its table has no backend for the Service or NodePort. The SYN was answered with
/// the error that IPVS sends then (`ip_vs_leave`), or no hook shows that either. No rule that was read can have stopped
/// the SYN.
fn by_table(case: &Case<'_>) -> Option<Finding> {
    const HOOK: &[Hook] = &[Hook::IpvsLeave];
    let dst = case.attempt.flow.dst;
    let answer = case.attempt.icmp().find(|(_, icmp)| icmp.flags.is_syn() && is_port_unreachable(icmp));
    let dropped =
        || blocked(case).and_then(|it| it.drop).filter(|(_, drop)| drop.flags.is_syn() && case.lacks(ICMP_HOOKS));
    let (time, netns) =
        answer.map(|(time, icmp)| (time, icmp.netns)).or_else(|| dropped().map(|(time, drop)| (time, drop.netns)))?;
    if !case.lacks(HOOK) || !is_without_backend(case, netns) {
        return None;
    }
    let blocked = blocked(case).filter(|it| it.blame.as_ref().is_none_or(|blame| blame.rules.is_empty()))?;
    let elsewhere = ready_elsewhere(case, service_at(case, dst));
    let lacking = elsewhere.map_or(Lacking::Everywhere, |_| Lacking::Here(policy_at(case, dst)));
    let observed =
        format!("IPVS has no backend for new connections to it in its table, and netfilter{}", blocked.action(case));
    let entry = evidence_of(
        "ip_vs",
        time,
        format!("/proc/net/ip_vs: {dst} has no backend for new connections"),
        json!({ "virtual_service": dst }),
    );
    let mut found = of_blocked(case, blocked, None, lacking, &observed);
    found.evidence.push(entry);
    // The missing hook lowers the confidence.
    Some(Finding { rests_on: HOOK, ..found })
}

/// The list of Services has no ready endpoint for the address, and netfilter stopped the SYN. If it is certain which
/// rule did, the rule is of kube-proxy: a firewall forbids the traffic whether there are endpoints or not.
fn by_list(case: &Case<'_>) -> Option<Finding> {
    empty_service(case)?;
    let foreign = |blame: &Blame<'_>| blame.certain().is_some_and(|rule| !is_of_kube_proxy(rule));
    let blocked = blocked(case).filter(|it| !it.blame.as_ref().is_some_and(foreign))?;
    let observed = format!("netfilter{}", blocked.action(case));
    Some(of_blocked(case, blocked, None, Lacking::Everywhere, &observed).with_confidence(Confidence::Likely))
}

/// The list has no ready endpoint, and a program at tc or XDP dropped the SYN on its way to the Service. Cilium in
/// place of kube-proxy does that for a Service without a backend (bpf/lib/lb.h, `DROP_NO_SERVICE`).
fn by_program(case: &Case<'_>) -> Option<Finding> {
    empty_service(case)?;
    let to_it = |drop: &PacketDrop| drop.flags.is_syn() && drop.flow.dst == case.attempt.flow.dst;
    let (time, drop, program) = programs::dropped(case).filter(|(_, drop, ..)| to_it(drop))?;
    let observed =
        format!("{}, because of that or of a policy", network_policy_drop::describe_drop(case, drop, program));
    let evidence = vec![of_drop(time, drop)];
    let make = |summary, remediation| Finding::failure(Cause::ServiceNoEndpoints, evidence, summary, remediation);
    let found = finding(case, None, Lacking::Everywhere, &observed, make);
    Some(found.with_confidence(Confidence::Likely).rests_on_lost_packet())
}

/// The list has no ready endpoint, and connect() failed before a SYN was sent. Cilium in place of kube-proxy refuses
/// with EHOSTUNREACH at cgroup/connect (bpf/bpf_sock.c, `cil_sock4_connect`), before 5.18 with EPERM
/// (`bpf_set_retval`).
fn by_connect(case: &Case<'_>) -> Option<Finding> {
    empty_service(case)?;
    let (time, failed) = case.attempt.connect_failed_at().filter(|(_, failed)| failed.conn.is_none())?;
    let errno = match failed.errno {
        libc::EHOSTUNREACH => "EHOSTUNREACH",
        libc::EPERM => "EPERM",
        _ => return None,
    };
    let evidence = evidence_of(
        Hook::SysConnect.name(),
        time,
        format!("connect() failed: {errno}"),
        json!({ "errno": failed.errno }),
    );
    let make = |summary, remediation| Finding::failure(Cause::ServiceNoEndpoints, vec![evidence], summary, remediation);
    let observed =
        format!("connect() was refused with {errno} before a SYN was sent, as a program at cgroup/connect does");
    Some(finding(case, None, Lacking::Everywhere, &observed, make).with_confidence(Confidence::Likely))
}

/// The list has no ready endpoint, and nothing was observed of the SYN.
fn by_silence(case: &Case<'_>) -> Option<Finding> {
    empty_service(case)?;
    let (ended, _) = case.attempt.ended.filter(|_| case.settled && case.attempt.failed_by_itself())?;
    let silent = silent(case) && case.attempt.resets_sent().next().is_none() && case.attempt.connect_failed().is_none();
    let make = |summary, remediation| Finding {
        decided_at: ended,
        ..Finding::failure(Cause::ServiceNoEndpoints, Vec::new(), summary, remediation).resting_on(&[Hook::KfreeSkb])
    };
    // ICMP port unreachable from a load balancer, or the answer of a data plane that no hook saw.
    let is_refused = case.attempt.errno() == Some(libc::ECONNREFUSED);
    let (observed, confidence) = match is_refused {
        true => ("the SYN was refused, and no hook saw a sender on this node", Confidence::Likely),
        false => ("the SYN had no answer", Confidence::Possible),
    };
    let found = silent.then(|| finding(case, None, Lacking::Everywhere, observed, make))?;
    Some(found.with_confidence(confidence))
}

const NO_PORT: &str = "Use a port that the Service has, or add the port to it";
const NO_SERVICE: &str = "Use the address that the Service has now. A Service that was made again has another one: the client may know the old one from its environment, its configuration or a DNS cache";
/// kube-proxy rejects whatever is not for a port of a Service (kubernetes#108460), also for the processes of the node.
const NODE_ADDRESS: &str = "Use a kube-proxy that leaves the node's own addresses out of this rule (kubernetes#115019), or give the Service another external address";

/// Where there is no endpoint.
#[derive(Clone, Copy, Debug)]
enum Lacking {
    /// None is ready.
    Everywhere,
    /// None is ready on this node, and this traffic policy allows no others.
    Here(&'static str),
    /// None is in the tables of this node, though so many are ready in the cluster.
    NotYet(usize),
    /// None of IPVS takes new connections.
    InIpvs,
    /// None of the target's address family is ready, though so many of the other one are.
    OfFamily(usize),
}

const INTERNAL: &str = "internalTrafficPolicy";
const EXTERNAL: &str = "externalTrafficPolicy";
const EITHER: &str = "externalTrafficPolicy or internalTrafficPolicy";

/// The finding, if netfilter stopped a packet.
fn of_blocked(
    case: &Case<'_>,
    blocked: &Blocked<'_>,
    named: Option<&str>,
    lacking: Lacking,
    observed: &str,
) -> Finding {
    let make = |summary, remediation| blocked.finding(case, Cause::ServiceNoEndpoints, summary, remediation);
    finding(case, named, lacking, observed, make)
}

fn finding(
    case: &Case<'_>,
    named: Option<&str>,
    lacking: Lacking,
    observed: &str,
    make: impl FnOnce(String, Remediation) -> Finding,
) -> Finding {
    let dst = case.attempt.flow.dst;
    let listed = service_at(case, dst).map(name_of);
    let name = listed.or_else(|| named.map(str::to_owned)).or_else(|| node_port_service(case, dst));
    let known = known(case, name.as_deref());
    let service = known.as_ref().map(|known| known.service);
    let called = name.as_ref().map_or_else(|| "the Service".to_owned(), |name| format!("Service {name}"));
    let circular = service.and_then(|service| circular(case, service));
    let start = circular.and_then(|pod| start_against_readiness(case, pod));
    let circle = circular.map(|pod| {
        let name = pod.name.as_deref().unwrap_or("the pod");
        let slow = start.as_ref().map(|(words, _)| words.as_str()).unwrap_or_default();
        format!("; {name} is itself an endpoint of that Service, and not ready: the dependency is circular{slow}")
    });
    let lacking = if matches!(lacking, Lacking::Everywhere) { everywhere_or_not_yet(case, service) } else { lacking };
    let lacks = describe_lack(lacking, ready_elsewhere(case, service));
    let summary = format!("{called} at {dst} has {lacks}; {observed}{}", circle.unwrap_or_default());
    let is_without =
        |it: &&Service| it.ready_endpoints.as_ref().is_some_and(Vec::is_empty) && it.not_ready_endpoints.is_empty();
    let fix = fix(case, lacking, circular.is_some(), service.filter(is_without).is_some(), name.as_deref());
    let fix = match start {
        Some((_, probe)) => fix.reword(|text| format!("{text}. And give the container time to start: {probe}")),
        None => fix,
    };
    let mut found = make(summary, fix);
    found.evidence.extend(known.as_ref().and_then(Known::evidence));
    // Any process can write such a comment into the rules of a namespace of its own.
    let by_node = || blocked(case).and_then(|it| it.netns).is_some_and(|netns| case.node.is_a_node(netns));
    found.lacks_endpoints = name.filter(|_| known.is_none() && by_node()).and_then(|name| ServiceName::of_port(&name));
    found
}

/// A Service with its endpoints.
struct Known<'a> {
    service: &'a Service,
    /// When the cluster API was asked for them; absent: they are in the list of Services.
    asked_at: Option<u64>,
}

impl Known<'_> {
    fn evidence(&self) -> Option<Evidence> {
        let count = |addrs: &[IpAddr]| addrs.len() as u64;
        let ready = count(self.service.ready_endpoints.as_deref()?);
        let not_ready = count(&self.service.not_ready_endpoints);
        let text = format!(
            "Service {} has {}, and {not_ready} not ready",
            name_of(self.service),
            counted(ready, "ready endpoint")
        );
        Some(evidence_of("cluster_api", self.asked_at?, text, json!({ "ready": ready, "not_ready": not_ready })))
    }
}

/// The Service at the target's address, if its endpoints are in the list of Services or were asked for by its name.
fn known<'a>(case: &Case<'a>, name: Option<&str>) -> Option<Known<'a>> {
    let listed = service_at(case, case.attempt.flow.dst).filter(|service| service.ready_endpoints.is_some());
    let asked = || {
        let (time, service) = case.node.endpoints.of(&ServiceName::of_port(name?)?, case.attempt.started)?;
        Some(Known { service, asked_at: Some(time) })
    };
    listed.map(|service| Known { service, asked_at: None }).or_else(asked)
}

fn describe_lack(lacking: Lacking, elsewhere: Option<usize>) -> String {
    match (lacking, elsewhere) {
        (Lacking::Everywhere, _) => "no ready endpoint".to_owned(),
        (Lacking::InIpvs, _) => "no endpoint for new connections".to_owned(),
        (Lacking::NotYet(count), _) => {
            format!("no endpoint in the tables of this node, though {count} are ready in the cluster")
        }
        (Lacking::OfFamily(count), _) => {
            format!(
                "no ready endpoint of this address family, though {count} of the other one are ready in the cluster"
            )
        }
        (Lacking::Here(policy), None) => format!("no endpoint on this node ({policy}: Local)"),
        (Lacking::Here(policy), Some(count)) => {
            format!("no endpoint on this node ({policy}: Local; {count} ready in the cluster)")
        }
    }
}

/// `has_none`: no pod is an endpoint of the Service, ready or not.
fn fix(case: &Case<'_>, lacking: Lacking, circular: bool, has_none: bool, name: Option<&str>) -> Remediation {
    let text = match lacking {
        _ if circular => "Do not gate the pod's readiness on its own Service (probe the pod itself), or set \
            publishNotReadyAddresses: true on that Service"
            .to_owned(),
        Lacking::Here(policy) => format!(
            "Run a ready pod of the Service on this node (a DaemonSet has one on each), or set its {policy} to Cluster"
        ),
        // A pod that lacks the named targetPort is in a slice of its own, without that port.
        Lacking::NotYet(_) => format!(
            "Compare the targetPort and address family of the Service with its EndpointSlices: kube-proxy uses only \
            endpoints that have both. If they fit, kube-proxy on this node {BEHIND}, or the endpoints have become \
            ready only now"
        ),
        Lacking::OfFamily(_) => "Use the Service's address of the other family. Or give its pods one of this family \
            (a dual-stack CNI). Otherwise remove this family from the Service's ipFamilies"
            .to_owned(),
        Lacking::Everywhere if has_none => "No pod is an endpoint, not even one that is not ready. See whether \
            its pods run at all. Compare their labels with the Service's selector, and the names of their ports with its \
            targetPort"
            .to_owned(),
        Lacking::Everywhere => "Make an endpoint of the Service ready: find out why its pods are not ready".to_owned(),
        Lacking::InIpvs => {
            "If IPVS has a backend with a weight above 0, raise its upper threshold (ipvsadm -e with -x; \
            repeat its -m and -w, which are reset otherwise), or add endpoints. Else make an endpoint of the Service ready"
                .to_owned()
        }
    };
    let show = matches!(lacking, Lacking::InIpvs).then_some(["ipvsadm -Ln", "ipvsadm -Ln --thresholds"]);
    let dst = case.attempt.flow.dst;
    let find = || match is_of_node(case, dst.ip()) {
        true => kubectl::services_with(dst.port()),
        false => kubectl::services_with(dst.ip()),
    };
    Remediation::from(text)
        .run(show.into_iter().flatten().map(|command| run_in(case, case.node.netns(), command)))
        .run(name.is_none().then(find))
        .run(kubectl::endpoints(name))
}

/// `ns/name:port has no endpoints`, as kube-proxy comments it (pkg/proxy/iptables, `syncProxyRules`).
const NO_ENDPOINTS: &str = " has no endpoints";
/// The same, where only other nodes have endpoints and a traffic policy allows those of this node only.
const NO_LOCAL_ENDPOINTS: &str = " has no local endpoints";

fn is_no_endpoints(rule: &FirewallRule) -> bool {
    service_of(rule).is_some()
}

fn is_no_local_endpoints(rule: &FirewallRule) -> bool {
    rule.comment.as_deref().is_some_and(|comment| comment.ends_with(NO_LOCAL_ENDPOINTS))
}

/// The Service without endpoints that a rule of kube-proxy is for.
pub(super) fn service_of(rule: &FirewallRule) -> Option<&str> {
    let comment = rule.comment.as_deref()?;
    comment.strip_suffix(NO_ENDPOINTS).or_else(|| comment.strip_suffix(NO_LOCAL_ENDPOINTS))
}

/// The rule is for the address or port of one Service only.
fn names_target(rule: &FirewallRule) -> bool {
    is_no_endpoints(rule) && (rule.when.dst.is_some() || rule.when.dport.is_some())
}

/// A Service is known to have the target's address. In IPVS mode kube-proxy gives each Service address to a link of its
/// own.
fn is_service_address(case: &Case<'_>) -> bool {
    let addr = case.attempt.flow.dst.ip();
    let links = || case.node.netns().and_then(|netns| case.node.links.get(&netns)).into_iter().flatten();
    let table = || case.node.node_ports.of(ProxyMode::Ipvs).into_iter().flat_map(|table| &table.without_backend);
    case.node.services.iter().any(|service| service.has_addr(addr))
        || table().any(|at| at.ip() == addr)
        || links().any(|link| link.name == IPVS_LINK && link.addrs.contains(&addr))
}

/// The traffic policy for the chain of a rule: that of ClusterIPs, or of addresses for clients from outside.
fn policy_of(rule: &FirewallRule) -> Option<&'static str> {
    match rule.chain.as_str() {
        "KUBE-SERVICES" => Some(INTERNAL),
        "KUBE-EXTERNAL-SERVICES" | "nodeport-endpoints-check" => Some(EXTERNAL),
        _ => None,
    }
}

/// The traffic policy of an address, as far as the Service is known.
fn policy_at(case: &Case<'_>, dst: SocketAddr) -> &'static str {
    match service_at(case, dst) {
        Some(service) if service.cluster_ips.contains(&dst.ip()) => INTERNAL,
        Some(_) => EXTERNAL,
        None if node_ports_at(case, dst).next().is_some() => EXTERNAL,
        None => EITHER,
    }
}

/// The cluster may have ready endpoints that are not in kube-proxy's tables yet.
fn everywhere_or_not_yet(case: &Case<'_>, service: Option<&Service>) -> Lacking {
    let all = service.and_then(|service| service.ready_endpoints.as_ref()).map_or(0, Vec::len);
    match service.map_or(0, |service| ready(case, service).count()) {
        0 if all > 0 => Lacking::OfFamily(all),
        0 => Lacking::Everywhere,
        count => Lacking::NotYet(count),
    }
}

/// The ready endpoints of the target's address family, as far as they are known: kube-proxy uses no others for it.
fn ready<'a>(case: &Case<'_>, service: &'a Service) -> impl Iterator<Item = &'a IpAddr> {
    let v4 = case.attempt.flow.dst.is_ipv4();
    service.ready_endpoints.iter().flatten().filter(move |addr| addr.is_ipv4() == v4)
}

/// How many endpoints are ready, if some are and none of them is a pod of this node.
fn ready_elsewhere(case: &Case<'_>, service: Option<&Service>) -> Option<usize> {
    let here = |addr: &IpAddr| case.node.pods.at(*addr).next().is_some() || is_of_node(case, *addr);
    let count = ready(case, service?).count();
    (count > 0 && !ready(case, service?).any(here)).then_some(count)
}

fn empty_service<'a>(case: &Case<'a>) -> Option<&'a Service> {
    service_at(case, case.attempt.flow.dst).filter(|service| is_empty(case, service))
}

/// It is known to have no ready endpoint of the target's address family.
fn is_empty(case: &Case<'_>, service: &Service) -> bool {
    service.ready_endpoints.is_some() && ready(case, service).next().is_none()
}

/// The client pod, or the probed pod, is itself an endpoint that is not ready. Pods on the node's network share its
/// address: the endpoint may be another one of them.
fn circular<'a>(case: &Case<'a>, service: &Service) -> Option<&'a Pod> {
    let is_not_ready =
        |pod: &&Pod| !pod.host_network && pod.addrs.iter().any(|addr| service.not_ready_endpoints.contains(addr));
    let client = || case.node.pods.at(case.attempt.flow.src.ip()).find(is_not_ready);
    case.matched.probed_pod().filter(is_not_ready).or_else(client)
}

/// How long a container of the pod took to listen, against its readiness probe, and the startupProbe that allows it. Only
/// of a container without other probes that took most of the time that this one allows.
fn start_against_readiness(case: &Case<'_>, pod: &Pod) -> Option<(String, String)> {
    let (netns, addr) = (pod.netns?, *pod.addrs.first()?);
    pod.containers.iter().find_map(|container| {
        let [spec] = container.probes.as_slice() else { return None };
        if spec.probe_type != ProbeType::Readiness || spec.host.is_some() || !container.exec.is_empty() {
            return None;
        }
        let began = container.runs.as_ref()?.started_boot_ns.filter(|began| *began >= case.node.since())?;
        let at = SocketAddr::new(addr, spec.port);
        let (listened, _) = case.node.listeners.first(netns, at).filter(|(_, listen)| listen.begins)?;
        // A lost event may have reported an earlier listener.
        if case.node.lost_between(began, listened) > 0 {
            return None;
        }
        let took = Duration::from_nanos(listened.checked_sub(began)?).as_secs_f64();
        if took * 2.0 < spec.budget_s() as f64 {
            return None;
        }
        let words = format!(
            "; container {} began to listen on port {} {took:.0} s after its start; its readiness probe allows {} s (initialDelaySeconds {} + periodSeconds {} x failureThreshold {})",
            container.name.as_deref()?,
            spec.port,
            spec.budget_s(),
            spec.initial_delay_s,
            spec.period_s,
            spec.failure_threshold
        );
        Some((words, startup_probe::that_allows(took * 3.0, spec)))
    })
}

#[cfg(test)]
mod tests;
