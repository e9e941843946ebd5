//! The Services that tracer knows: by the address that an attempt goes to.

use std::net::{IpAddr, SocketAddr};

use crate::case::{Case, IPVS_LINK, is_sent_elsewhere, runs_ipvs};
use crate::finding::Finding;
use crate::kubectl;
use crate::phrases::run_in;
use tracer_attempts::correlate::node_ports::LostNodePorts;
use tracer_model::event::{Flow, Ipvs, IpvsOp, Netns, NodePort, PacketDrop, ProxyMode, Service};
use tracer_model::record::{Cause, Command, Remediation};

/// Names the Service of which an endpoint got the connection. At an address of the node, a process may have got it.
pub fn add(case: &Case<'_>, finding: &mut Finding) {
    use Cause::{AppStatusFailure, ClosedWithoutAnswer, MidStreamRst, SlowResponse, TlsHandshakeSlow};
    let all = [AppStatusFailure, ClosedWithoutAnswer, MidStreamRst, SlowResponse, TlsHandshakeSlow];
    let by_endpoint = all.contains(&finding.cause);
    let dst = case.attempt.flow.dst;
    let service = service_at(case, dst).filter(|_| by_endpoint && !is_of_node(case, dst.ip()));
    if let Some(name) = service.map(name_of) {
        finding.summary += &format!("; {dst} is Service {name}: one of its endpoints got the connection");
        finding.remediation = std::mem::take(&mut finding.remediation).run(kubectl::endpoints(Some(&name)));
    }
}

/// `namespace/name` of the Service at the target's address, if there is one.
pub fn target_service(case: &Case<'_>) -> Option<String> {
    service_named(case, case.attempt.flow.dst)
}

/// `namespace/name` of the Service at this address, if there is one.
pub fn service_named(case: &Case<'_>, dst: SocketAddr) -> Option<String> {
    let by_rule = || node_port_service(case, dst).or_else(|| external_service(case, dst));
    service_at(case, dst).map(name_of).or_else(by_rule)
}

/// `namespace/name` of this Service.
pub fn name_of(service: &Service) -> String {
    format!("{}/{}", service.namespace, service.name)
}

/// The Service with this address and port: by an address of its own, else by a NodePort on an address of the node.
pub fn service_at<'a>(case: &Case<'a>, dst: SocketAddr) -> Option<&'a Service> {
    let at_own_address =
        |service: &&Service| service.has_addr(dst.ip()) && service.ports.iter().any(|port| port.port == dst.port());
    let at_node_port = |service: &&Service| {
        service.ports.iter().any(|port| port.node_port == Some(dst.port())) && is_of_node(case, dst.ip())
    };
    let services = &case.node.services;
    services.iter().find(at_own_address).or_else(|| services.iter().find(at_node_port))
}

/// The Service with an address of the node as an external one: in `externalIPs`, or of its load balancer (as in k3s).
fn service_with_node_address<'a>(case: &Case<'a>, dst: SocketAddr) -> Option<&'a Service> {
    let addr = dst.ip();
    service_at(case, dst).filter(|service| service.external_ips.contains(&addr) && own_link(case, addr).is_some())
}

/// The name of such a Service, by the rules of this node or the list of Services.
pub(crate) fn external_service(case: &Case<'_>, dst: SocketAddr) -> Option<String> {
    let by_rule = case.node.node_ports.external_at(dst).map(str::to_owned);
    by_rule.or_else(|| service_with_node_address(case, dst).map(name_of))
}

/// A packet to an address of its own namespace did not arrive there.
pub fn find_translation(case: &Case<'_>) -> Remediation {
    let text = format!(
        "Find the rule that translates {}: of a NodePort, of a Service with that address (externalIPs, a load balancer), or of a hostPort. Correct it, or what it leads to",
        case.attempt.flow.dst
    );
    Remediation::from(text)
        .run(["iptables-save -t nat", "nft list ruleset"].map(|show| run_in(case, case.attempt.netns, show)))
}

/// The node's link that has the address, other than the one to which kube-proxy gives those of Services.
pub fn own_link<'a>(case: &Case<'a>, addr: IpAddr) -> Option<&'a str> {
    let mut links = case.node.links.get(&case.node.netns()?)?.iter();
    links.find(|link| link.name != IPVS_LINK && link.addrs.contains(&addr)).map(|link| link.name.as_str())
}

/// The node's own namespace has this address.
pub fn is_of_node(case: &Case<'_>, addr: IpAddr) -> bool {
    case.node.netns().is_some_and(|netns| case.node.owns(netns, addr))
}

/// `namespace/name` of the Service with this NodePort, by the rules of the node.
pub fn node_port_service(case: &Case<'_>, dst: SocketAddr) -> Option<String> {
    node_ports_at(case, dst).find_map(|port| case.node.service_of(port))
}

/// The NodePorts that the rules of the node have for this address of the node.
pub fn node_ports_at<'a>(case: &Case<'a>, dst: SocketAddr) -> impl Iterator<Item = &'a NodePort> {
    let of_node = is_of_node(case, dst.ip());
    case.node.node_ports.all().map(|(_, port)| port).filter(move |port| of_node && port.port == dst.port())
}

/// The node's own stack got the SYN to a NodePort, or to a Service that has an address of the node. Either the Service
/// proxy has it in its rules, which do not hold at this address (kube-proxy's `--nodeport-addresses`), or only the list
/// of Services has it.
pub fn unserved_node_port(case: &Case<'_>, netns: Option<Netns>) -> Option<(String, Remediation)> {
    let dst = case.attempt.flow.dst;
    if netns.is_none() || netns != case.node.netns() {
        return None;
    }
    let (port, addr) = (dst.port(), dst.ip());
    if let Some(left_over) = on_ipvs_link(case, dst) {
        return Some(left_over);
    }
    if let Some((_, lost)) = lost_node_port(case) {
        let service = case.node.service_of(lost).map_or_else(String::new, |name| format!(" of Service {name}"));
        let family = case.node.node_ports.all().next().map(|_| if addr.is_ipv4() { " for IPv4" } else { " for IPv6" });
        let words = format!(
            "; {port} was a NodePort{service}, and the rules on this node have no NodePort{} any more",
            family.unwrap_or_default()
        );
        return Some((words, restart_proxy()));
    }
    let Some(name) = node_port_service(case, dst) else {
        let service = service_at(case, dst).filter(|_| case.node.node_ports.all().next().is_some())?;
        let is_node_port = || service.ports.iter().any(|it| it.node_port == Some(port));
        let what = match service_with_node_address(case, dst) {
            Some(_) if case.node.node_ports.external_at(dst).is_some() => return None,
            // An endpoint on the node itself: the rules lead there.
            Some(it) if it.ready_endpoints.iter().flatten().any(|addr| is_of_node(case, *addr)) => return None,
            Some(_) => format!("{dst} is an external address"),
            None if is_node_port() => format!("{port} is a NodePort"),
            None => return None,
        };
        let name = name_of(service);
        let words = format!("; {what} of Service {name}, and the rules on this node do not have it");
        return Some((words, proxy_is_behind()));
    };
    let words = format!("; {port} is a NodePort of Service {name}, which the Service proxy does not serve at {addr}");
    let fix = Remediation::from(
        "Connect to an address at which kube-proxy serves NodePorts (--nodeport-addresses), or to the Service's ClusterIP. In nftables mode these are the node's primary addresses by default, and never 127.0.0.1",
    );
    let table = case.node.node_ports.of(ProxyMode::Nftables).filter(|table| !table.ports.is_empty());
    let family = if addr.is_ipv4() { "ip" } else { "ip6" };
    let show = table.map(|_| Command::on_node(format!("nft list set {family} kube-proxy nodeport-ips")));
    Some((words, fix.run(show)))
}

/// The target is an address of the node and was a NodePort, and the node's rules have no NodePort of its family any more.
pub fn lost_node_port<'a>(case: &Case<'a>) -> Option<(&'a LostNodePorts, &'a NodePort)> {
    let dst = case.attempt.flow.dst;
    case.node.node_ports.lost_at(case.node.netns()?, dst).filter(|_| is_of_node(case, dst.ip()))
}

/// The node's own stack got the SYN to an address that no link has of those that are read. Of kube-proxy's link in IPVS
/// mode they are not. IPVS takes a SYN to its Services before that.
fn on_ipvs_link(case: &Case<'_>, dst: SocketAddr) -> Option<(String, Remediation)> {
    let (netns, addr) = (case.node.netns()?, dst.ip());
    let has_link = case.node.links.get(&netns)?.iter().any(|link| link.name == IPVS_LINK);
    if !has_link || addr.is_loopback() || is_of_node(case, addr) || case.node.has_pod(addr) {
        return None;
    }
    let name = target_service(case).map_or_else(String::new, |name| format!(" (Service {name})"));
    let words = format!(
        "; most likely {IPVS_LINK}, the link of kube-proxy's IPVS mode, has {addr}{name}, and IPVS has no Service at {dst}"
    );
    let fix = Remediation::from(format!(
        "If `ipvsadm -Ln` lists no Service, kube-proxy runs in another mode now, and {IPVS_LINK} is left over: remove this address (ip addr del), or all of them with kube-proxy --cleanup, and restart kube-proxy. Else correct the port, or find out why kube-proxy {BEHIND}"
    ));
    let show = [format!("ip addr show to {addr}"), "ipvsadm -Ln".to_owned()];
    Some((words, fix.run(show.map(|command| run_in(case, Some(netns), command)))))
}

const RESTART: &str = "restart kube-proxy on this node: at its start it writes all its rules";

/// In nftables mode kube-proxy checks once an hour whether its rules are there, and in its iptables mode a part of them.
fn restart_proxy() -> Remediation {
    Remediation::from(format!("If the Service still has that port, {RESTART}")).run(show_proxies())
}

fn show_proxies() -> [Command; 1] {
    [Command::in_cluster("kubectl get pods -n kube-system -l k8s-app=kube-proxy -o wide")]
}

/// Somebody removed the rules, and no packet shows whether those of this Service are back.
pub(crate) fn restart_proxy_first(case: &Case<'_>, fix: Remediation) -> Remediation {
    let dst = case.attempt.flow.dst.ip();
    fix.reword(|text| format!("If the rules for {dst} are still missing, {RESTART}. Else: {text}"))
        .run(show_rules_for(case, dst))
        .run(show_proxies())
}

fn show_rules_for(case: &Case<'_>, addr: IpAddr) -> impl Iterator<Item = Command> {
    let show = show_ipvs(case, addr).chain(show_rules(&addr.to_string()));
    show.map(|command| run_in(case, case.node.netns(), command))
}

/// In IPVS mode, and if kube-proxy has left that mode without `--cleanup`.
fn show_ipvs(case: &Case<'_>, addr: IpAddr) -> impl Iterator<Item = String> + use<> {
    let show = runs_ipvs(case).then(|| ["ipvsadm -Ln".to_owned(), format!("ip addr show to {addr}")]);
    show.into_iter().flatten()
}

/// Commands that show the rules of the Service proxy with this address or port.
pub fn show_rules(key: &str) -> [String; 2] {
    [format!("iptables-save -t nat | grep -F {key}"), format!("nft list ruleset | grep -F {key}")]
}

/// The Service proxy sent the attempt on to an address at which nobody is: words, and a fix that ends with `fix`.
pub fn stale_endpoint(case: &Case<'_>, to: IpAddr, fix: Remediation) -> Option<(String, Remediation)> {
    let dst = case.attempt.flow.dst;
    let name = target_service(case)?;
    let listed = service_at(case, dst).and_then(|it| Some((it.ready_endpoints.as_ref()?, &it.not_ready_endpoints)));
    let is_endpoint = listed.map(|(ready, not_ready)| ready.contains(&to) || not_ready.contains(&to));
    let (what, check) = match is_endpoint {
        Some(true) => (", an endpoint in its EndpointSlices", format!("Check the pod with {to}: {GONE}")),
        Some(false) => (", which its EndpointSlices do not have", format!("Find what still leads to {to}: {STALE}")),
        None => ("", format!("If the EndpointSlices of the Service have {to}, check its pod: {GONE}. Else: {STALE}")),
    };
    let words = format!("; {dst} is Service {name}, and the Service proxy sent it to {to}{what}");
    let show = show_rules(&to.to_string())
        .into_iter()
        .chain(["-L", "-D"].map(|act| format!("conntrack {act} -p tcp -r {to}")));
    let fix = fix
        .reword(|text| format!("{check}. Only if {to} is right: {text}"))
        .run(kubectl::endpoints(Some(&name)))
        .run(show.map(|command| run_in(case, case.node.netns(), command)));
    Some((words, fix))
}

const GONE: &str = "if it is gone, or its node is, delete it, and the endpoint goes with it";
const STALE: &str = "kube-proxy is behind, rules of an earlier mode of it are left over, or an old conntrack entry is (the last command deletes it)";

/// The packet came past the rules of the Service proxy: beyond the node, or, of a pod, to the routing of the node.
pub fn is_past_proxy(case: &Case<'_>, netns: Option<Netns>, is_routed: bool) -> bool {
    netns.is_some_and(|netns| case.attempt.netns != Some(netns) && (is_routed || !case.node.is_a_node(netns)))
}

/// A packet that came past the rules of the Service proxy still had the ClusterIP: words that come first, and the fix.
pub fn untranslated(case: &Case<'_>, packet: Flow) -> Option<(String, Remediation)> {
    let dst = case.attempt.flow.dst;
    let (service, ip) = (service_at(case, dst).filter(|_| packet.dst == dst)?, dst.ip());
    let name = service.cluster_ips.contains(&ip).then(|| name_of(service))?;
    let words = format!(
        "no rule of this node translated {dst}, Service {name}: those of kube-proxy are missing, or it is behind; "
    );
    Some((words, proxy_is_behind().run(show_rules_for(case, ip))))
}

/// The cluster API has a Service that the rules of this node do not have.
pub fn proxy_is_behind() -> Remediation {
    Remediation::from(format!(
        "Find out why kube-proxy on this node {BEHIND}, unless the list of Services is older than a change"
    ))
    .run(show_proxies())
}

/// Follows "find out why kube-proxy".
pub const BEHIND: &str = "is behind or stands still (its logs, and kubeproxy_sync_proxy_rules_last_timestamp_seconds)";

/// IPVS sent the SYN of this attempt to a backend.
pub fn sent_by_ipvs<'a>(case: &Case<'a>) -> Option<(u64, &'a Ipvs)> {
    let attempt = case.attempt;
    attempt.ipvs().find(|(_, it)| it.op == IpvsOp::Translate && it.flags.is_syn() && it.flow == attempt.flow)
}

/// The fix if it is not known which endpoint of a Service fails.
pub fn by_endpoint(case: &Case<'_>, service: &str) -> Remediation {
    let dst = case.attempt.flow.dst;
    let entries = format!("conntrack -L -p tcp -d {} --dport {}", dst.ip(), dst.port());
    if is_hairpin(case) {
        let text = "Let the bridge send the pod its own packets back (hairpinMode of the CNI's bridge plugin), and let kube-proxy masquerade them";
        return Remediation::from(text).run(["bridge -d link", &entries].map(Command::on_node));
    }
    // The rules of a NodePort have no address.
    let has_addr = service_at(case, dst).is_some_and(|service| service.has_addr(dst.ip()));
    let key = if has_addr { dst.ip().to_string() } else { dst.port().to_string() };
    let text = format!(
        "Connect to each endpoint of Service {service} by itself: the verdict on that connection names the cause. If all of them answer, see whether the rules of this node have {key}. If they do, the translation of the answers is lost: br_netfilter is off, or a rule sets notrack or a zone"
    );
    let show = [
        format!("nft list ruleset | grep -F {key}"),
        format!("iptables-save -t nat | grep -F {key}"),
        entries,
        "sysctl net.bridge.bridge-nf-call-iptables net.bridge.bridge-nf-call-ip6tables".to_owned(),
        "iptables-save -t raw".to_owned(),
    ];
    Remediation::from(text)
        .run(kubectl::endpoints(Some(service)))
        .run(show_ipvs(case, dst.ip()).chain(show).map(|command| run_in(case, case.node.netns(), command)))
}

/// The target's end was closed by a packet that the prober did not send. A translation took it for another connection.
pub fn find_taken_port(case: &Case<'_>) -> Remediation {
    let port = case.attempt.flow.src.port();
    let text = format!(
        "Check whether {port}, the source port of the connection, is a NodePort or a hostPort. If so, an answer that conntrack no longer knows is sent to that port's pod: reserve those ports (net.ipv4.ip_local_reserved_ports), and find what flushes conntrack"
    );
    let show = [
        "nft list ruleset".to_owned(),
        "iptables-save -t nat".to_owned(),
        format!("conntrack -L -p tcp --dport {port}"),
    ];
    Remediation::from(text).run(show.map(|command| run_in(case, case.attempt.netns, command)))
}

/// The client itself is the endpoint, or the only ready one: a pod with its own network.
pub fn is_hairpin(case: &Case<'_>) -> bool {
    if case.attempt.drops().any(|(_, drop)| is_sent_back(case, drop)) {
        return true;
    }
    let Flow { src, dst } = case.attempt.flow;
    let of_family = |addr: &&IpAddr| addr.is_ipv4() == dst.is_ipv4();
    let ready = service_at(case, dst).and_then(|service| service.ready_endpoints.as_ref());
    let mut ready = ready.into_iter().flatten().filter(of_family);
    ready.next() == Some(&src.ip()) && ready.next().is_none() && !is_from_node(case)
}

/// A translation had given the packet the address of the client, a pod, as its target, too.
pub fn is_sent_back(case: &Case<'_>, drop: &PacketDrop) -> bool {
    drop.flow.src.ip() == drop.flow.dst.ip() && is_sent_elsewhere(case, drop) && !is_from_node(case)
}

fn is_from_node(case: &Case<'_>) -> bool {
    case.attempt.netns.is_some_and(|netns| case.node.is_a_node(netns))
}
