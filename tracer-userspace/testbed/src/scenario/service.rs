//! Services without endpoints, in each mode of kube-proxy, and failures of connection tracking.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};

use anyhow::{Context, Result};
use tracer_model::record::{Body, Cause, Record};

use super::Rules::{Iptables, Nft};
use super::{Fixture, Knows, Need, Proxy, Scenario};
use crate::ip::Route;
use crate::node::{Family, NODE, ipvs};
use crate::pods::{CIRCULAR, EXPORTER, EXTERNAL, HOST, HTTP};
use crate::probe::{Ending, Kind};

const EMPTY: Option<Cause> = Some(Cause::ServiceNoEndpoints);
const INVALID: Option<Cause> = Some(Cause::ConntrackInvalid);
const DROP: Option<Cause> = Some(Cause::FirewallDrop);
const NODE_PORT: u16 = 30080;

pub(super) const ALL: &[Scenario] = &[
    Scenario::new("service_no_endpoints_iptables", EMPTY, |s| iptables(s, "iptables-nft-restore"))
        .own()
        .needs(&[Need::Iptables])
        .on_every_kernel(),
    Scenario::new("service_no_endpoints_legacy", EMPTY, |s| iptables(s, "iptables-legacy-restore"))
        .own()
        .needs(&[Need::LegacyIptables]),
    Scenario::new("service_no_endpoints_node_port", EMPTY, node_port).own().needs(&[Need::Iptables]),
    Scenario::new("service_no_endpoints_nftables", EMPTY, nftables).own().needs(&[Need::Nft]).and_v6(),
    Scenario::new("service_no_endpoints_nftables_1_36", EMPTY, nftables_1_36).own().needs(&[Need::Nft]),
    Scenario::new("service_no_local_endpoints_iptables", EMPTY, |s| no_local(s, "iptables-nft-restore"))
        .own()
        .needs(&[Need::Iptables]),
    Scenario::new("service_no_local_endpoints_legacy", EMPTY, |s| no_local(s, "iptables-legacy-restore"))
        .own()
        .needs(&[Need::LegacyIptables]),
    Scenario::new("service_no_local_endpoints_nftables", EMPTY, no_local_nftables).own().needs(&[Need::Nft]),
    Scenario::new("service_no_endpoints_ipvs", EMPTY, by_ipvs).own().needs(&[Need::Ipvs]).on_every_kernel(),
    Scenario::new("service_no_endpoints_circular", EMPTY, circular).own().needs(&[Need::Iptables]),
    Scenario::new("service_no_endpoints_asked", EMPTY, asked).knows(Knows::Api).needs(&[Need::Nft]),
    Scenario::new("service_unknown_port", EMPTY, unknown_port).own().needs(&[Need::Nft]),
    Scenario::new("service_unknown_address", EMPTY, unknown_address).own().needs(&[Need::Nft]),
    Scenario::new("connection_refused_left_over_ipvs", Some(Cause::ConnectionRefused), left_over_ipvs).own(),
    Scenario::new("service_address_of_node", EMPTY, address_of_node).own().needs(&[Need::Iptables]),
    by_nftables("app_status_failure_node_port", Cause::AppStatusFailure, |s| {
        port_is_node_port(s, "503", Ending::Status)
    }),
    by_nftables("app_status_failure_external_ip", Cause::AppStatusFailure, external_ip),
    by_nftables("app_status_failure_external_ip_by_rules", Cause::AppStatusFailure, external_ip_by_rules),
    by_nftables("closed_without_answer_node_port", Cause::ClosedWithoutAnswer, |s| {
        port_is_node_port(s, "eof", Ending::Eof)
    }),
    by_nftables("mid_stream_rst_node_port", Cause::MidStreamRst, |s| port_is_node_port(s, "rst", Ending::Reset)),
    Scenario::new("connection_refused_node_port", Some(Cause::ConnectionRefused), unserved_node_port)
        .own()
        .needs(&[Need::Nft]),
    Scenario::new("connection_refused_node_port_flushed", Some(Cause::ConnectionRefused), flushed_node_port)
        .own()
        .needs(&[Need::Nft]),
    Scenario::new("connection_refused_node_port_of_one_family", Some(Cause::ConnectionRefused), flushed_of_one_family)
        .own()
        .needs(&[Need::Nft]),
    Scenario::new("connection_refused_target_port", Some(Cause::ConnectionRefused), target_port)
        .own()
        .needs(&[Need::NftNat])
        .and_v6(),
    Scenario::new("firewall_drop_endpoint", DROP, endpoint_drops).own().needs(&[Need::NftNat]),
    Scenario::new("neighbour_failure_endpoint", Some(Cause::NeighbourFailure), endpoint_is_gone)
        .own()
        .needs(&[Need::NftNat]),
    // conntrack does not track the SYN, so the SYN-ACK is invalid.
    Scenario::probed("conntrack_invalid", INVALID, "http", Ending::Timeout)
        .on_node(Nft("table inet tracked {
           chain raw { type filter hook output priority -300; tcp dport 8080 notrack; };
           chain in { type filter hook input priority 0; ct state invalid drop; }; }"))
        .on_every_kernel()
        .and_v6(),
    Scenario::probed("conntrack_invalid_iptables", INVALID, "http", Ending::Timeout)
        .on_node(Iptables(
            "*raw\n-A OUTPUT -p tcp -m tcp --dport 8080 -j CT --notrack\nCOMMIT\n\
        *filter\n:KUBE-FORWARD - [0:0]\n-A INPUT -j KUBE-FORWARD\n\
        -A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP\nCOMMIT\n",
        ))
        .names(&["KUBE-FORWARD"]),
    Scenario::probed("conntrack_invalid_other_rule", DROP, "http", Ending::Timeout).on_node(Nft("table inet tracked {
           chain raw { type filter hook output priority -300; tcp dport 8080 notrack; };
           chain in { type filter hook input priority 0;
             tcp flags & (syn|ack) == syn|ack drop; ct state invalid drop; }; }")),
    // The packet belongs to a tracked connection. The rule for invalid packets cannot have dropped it.
    Scenario::probed("conntrack_valid_other_rule", DROP, "http", Ending::Timeout)
        .on_node(Nft("table inet tracked { chain in { type filter hook input priority 0; ct state invalid drop;
           tcp flags & (syn|ack) == syn|ack drop comment \"mine\"; }; }"))
        .names(&["\"mine\" in chain inet tracked in"]),
    // `ct state invalid` in a chain that comes before connection tracking fits every packet.
    Scenario::probed("firewall_drop_before_tracking", DROP, "http", Ending::Timeout)
        .in_pod(Nft(
            "table inet early { chain pre { type filter hook prerouting priority raw; ct state invalid drop; }; }",
        ))
        .names(&["in chain inet early pre"]),
    Scenario::new("conntrack_table_full", Some(Cause::ConntrackTableFull), full)
        .own()
        .needs(&[Need::OwnMachine, Need::Nft])
        .on_every_kernel(),
];

/// kube-proxy in nftables mode sends the probe on.
const fn by_nftables(name: &'static str, cause: Cause, play: fn(&mut Fixture<'_>) -> Result<()>) -> Scenario {
    Scenario::new(name, Some(cause), play).proxy(Proxy::Nftables).own().needs(&[Need::NftNat])
}

/// Adds a route to the ClusterIPs, and returns one of the address family, with its port.
pub(super) fn cluster_ip(fixture: &mut Fixture<'_>) -> Result<SocketAddr> {
    fixture.node.node.ip(|ip| {
        ip.add(&Route::to([10, 96, 0, 0], 16).over("eth0"))?;
        ip.add(&Route::to([0xfd00, 0x96, 0, 0, 0, 0, 0, 0], 64).over("eth0"))
    })?;
    let ip: IpAddr = match fixture.family {
        Family::V4 => [10, 96, 0, 30].into(),
        Family::V6 => Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 0x30).into(),
    };
    Ok(SocketAddr::new(ip, 80))
}

/// kube-proxy in iptables mode.
fn iptables(fixture: &mut Fixture<'_>, program: &str) -> Result<()> {
    let service = cluster_ip(fixture)?;
    rules(fixture, program, (CART, service), NONE)?;
    fixture.mentions(&["Service shop/cart:http at", "KUBE-SERVICES"]);
    fixture.fails_without_probe(Kind::Http, service, Ending::Refused)
}

/// Only other nodes have endpoints, and the Service's `internalTrafficPolicy` is `Local`.
fn no_local(fixture: &mut Fixture<'_>, program: &str) -> Result<()> {
    let service = cluster_ip(fixture)?;
    rules(fixture, program, (CART, service), ("has no local endpoints", "DROP"))?;
    fixture.mentions(&["Service shop/cart:http at", "no endpoint on this node (internalTrafficPolicy: Local)"]);
    fixture.fails_without_probe(Kind::Http, service, Ending::Timeout)
}

/// A Service and its port, as in kube-proxy's comments.
const CART: &str = "shop/cart:http";

/// kube-proxy's comment for a Service without endpoints, and the target of the rule.
const NONE: (&str, &str) = ("has no endpoints", "REJECT");

fn rules(
    fixture: &Fixture<'_>,
    program: &str,
    (name, service): (&str, SocketAddr),
    (what, verdict): (&str, &str),
) -> Result<()> {
    let rules = format!(
        "*filter\n:KUBE-SERVICES - [0:0]\n:KUBE-EXTERNAL-SERVICES - [0:0]\n:KUBE-FIREWALL - [0:0]\n\
        -A INPUT -m conntrack --ctstate NEW -m comment --comment \"kubernetes externally-visible service portals\" -j KUBE-EXTERNAL-SERVICES\n\
        -A OUTPUT -m conntrack --ctstate NEW -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
        -A OUTPUT -j KUBE-FIREWALL\n\
        -A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment \"block incoming localnet connections\" -j DROP\n\
        -A KUBE-SERVICES -d 10.96.0.31/32 -p tcp -m comment --comment \"shop/other:http has no endpoints\" -m tcp --dport 80 -j REJECT\n\
        -A KUBE-SERVICES -d {}/32 -p tcp -m comment --comment \"{name} {what}\" -m tcp --dport 80 -j {verdict}\n\
        -A KUBE-EXTERNAL-SERVICES -p tcp -m comment --comment \"{name} {what}\" -m addrtype --dst-type LOCAL -m tcp --dport {NODE_PORT} -j {verdict}\nCOMMIT\n",
        service.ip()
    );
    fixture.node.node.run(program, &[], &rules).map(drop)
}

fn node_port(fixture: &mut Fixture<'_>) -> Result<()> {
    let service = cluster_ip(fixture)?;
    rules(fixture, "iptables-nft-restore", (CART, service), NONE)?;
    fixture.mentions(&["Service shop/cart:http at", "KUBE-EXTERNAL-SERVICES"]);
    fixture.fails_without_probe(Kind::Http, (NODE, NODE_PORT).into(), Ending::Refused)
}

/// A readiness probe connects to the pod's own Service.
fn circular(fixture: &mut Fixture<'_>) -> Result<()> {
    cluster_ip(fixture)?;
    let service = SocketAddr::from(CIRCULAR);
    rules(fixture, "iptables-nft-restore", ("default/circle", service), NONE)?;
    fixture.mentions(&[
        "Service default/circle at",
        "\"default/circle has no endpoints\"",
        "the dependency is circular",
    ]);
    fixture.fails(Kind::Http, service, Ending::Refused)
}

/// The same in nftables mode, where tracer knows no Services and asks the cluster API for this one.
fn asked(fixture: &mut Fixture<'_>) -> Result<()> {
    cluster_ip(fixture)?;
    let service = SocketAddr::from(CIRCULAR);
    proxy_tables(fixture, ("default/circle", service), "goto reject-chain")?;
    fixture.mentions(&["Service default/circle at", "the dependency is circular"]);
    fixture.fails(Kind::Http, service, Ending::Refused)
}

/// kube-proxy in nftables mode.
fn nftables(fixture: &mut Fixture<'_>) -> Result<()> {
    let service = cluster_ip(fixture)?;
    proxy_tables(fixture, (CART, service), "goto reject-chain")?;
    fixture.mentions(&["Service shop/cart:http at", "kube-proxy"]);
    fixture.fails_without_probe(Kind::Http, service, Ending::Refused)
}

/// kube-proxy 1.36: one chain for each hook. Its rules jump to the chains that all hooks share.
fn nftables_1_36(fixture: &mut Fixture<'_>) -> Result<()> {
    let service = cluster_ip(fixture)?;
    proxy_tables_1_36(fixture, service.ip())?;
    fixture.mentions(&[
        "Service shop/cart:http at",
        "\"shop/cart:http has no endpoints\" in chain ip kube-proxy service-endpoints-check",
    ]);
    fixture.fails_without_probe(Kind::Http, service, Ending::Refused)
}

/// The client has the address of a Service that was deleted.
fn unknown_address(fixture: &mut Fixture<'_>) -> Result<()> {
    let service = cluster_ip(fixture)?;
    proxy_tables_1_36(fixture, service.ip())?;
    let gone = SocketAddr::from(([10, 96, 0, 99], service.port()));
    fixture.mentions(&["no Service has the ClusterIP 10.96.0.99 in the rules of this node: kube-proxy's rule"]);
    fixture.fails_without_probe(Kind::Http, gone, Ending::Timeout)
}

fn proxy_tables_1_36(fixture: &Fixture<'_>, ip: IpAddr) -> Result<()> {
    fixture.node.node.nft(&format!(
        "table ip kube-proxy {{
           set cluster-ips {{ type ipv4_addr; elements = {{ 10.96.0.1, {ip} }}; }};
           set nodeport-ips {{ type ipv4_addr; elements = {{ 10.89.0.1 }}; }};
           map no-endpoint-services {{ type ipv4_addr . inet_proto . inet_service : verdict; elements = {{
             {ip} . tcp . 80 comment \"shop/cart:http\" : goto reject-chain }}; }};
           map no-endpoint-nodeports {{ type inet_proto . inet_service : verdict; }};
           chain reject-chain {{ reject; }};
           chain nodeport-endpoints-check {{ ip daddr @nodeport-ips meta l4proto . th dport vmap @no-endpoint-nodeports; }};
           chain service-endpoints-check {{ ip daddr . meta l4proto . th dport vmap @no-endpoint-services; }};
           chain cluster-ips-check {{
             ip daddr @cluster-ips reject comment \"Reject traffic to invalid ports of ClusterIPs\";
             ip daddr 10.96.0.0/16 drop comment \"Drop traffic to unallocated ClusterIPs\"; }};
           chain filter-input {{ type filter hook input priority filter;
             ct state new jump nodeport-endpoints-check; ct state new jump service-endpoints-check; }};
           chain filter-forward {{ type filter hook forward priority filter;
             ct state new jump service-endpoints-check; ct state new jump cluster-ips-check; }};
           chain filter-output {{ type filter hook output priority filter;
             ct state new jump service-endpoints-check; ct state new jump cluster-ips-check; }}; }}\n"
    ))
}

/// As in [`no_local`], but the chain of the address does not show its policy.
fn no_local_nftables(fixture: &mut Fixture<'_>) -> Result<()> {
    let service = cluster_ip(fixture)?;
    proxy_tables(fixture, (CART, service), "drop")?;
    let policy = "no endpoint on this node (externalTrafficPolicy or internalTrafficPolicy: Local)";
    fixture.mentions(&["Service shop/cart:http at", policy]);
    fixture.fails_without_probe(Kind::Http, service, Ending::Timeout)
}

/// The Service does not have this port. kube-proxy rejects it with another rule.
fn unknown_port(fixture: &mut Fixture<'_>) -> Result<()> {
    let service = cluster_ip(fixture)?;
    proxy_tables(fixture, (CART, service), "goto reject-chain")?;
    fixture.mentions(&["no Service has port 81", "kube-proxy cluster-ips-check"]);
    fixture.fails_without_probe(Kind::Http, SocketAddr::new(service.ip(), 81), Ending::Refused)
}

/// A Service has the node's own address, and kube-proxy keeps Services in IPVS: it rejects the probe of a hostNetwork
/// pod (kubernetes#114815).
fn address_of_node(fixture: &mut Fixture<'_>) -> Result<()> {
    let target = fixture.serving_on_node("http")?;
    fixture.node.node.ip(|ip| {
        ip.bridge("kube-ipvs0", None)?;
        ip.address(NODE, 32, "kube-ipvs0")
    })?;
    let rules = format!(
        "*filter\n:KUBE-IPVS-FILTER - [0:0]\n-A INPUT -j KUBE-IPVS-FILTER\n\
        -A KUBE-IPVS-FILTER -d {NODE}/32 -m conntrack --ctstate NEW -j REJECT\nCOMMIT\n"
    );
    fixture.node.node.run("iptables-nft-restore", &[], &rules)?;
    fixture.mentions(&["is the node's own address (on eth0) and that of a Service without port 10256"]);
    fixture.fails(Kind::Http, target, Ending::Refused)
}

/// kube-proxy has left its IPVS mode, and its link with the ClusterIP of a Service has stayed.
fn left_over_ipvs(fixture: &mut Fixture<'_>) -> Result<()> {
    fixture.node.node.ip(|ip| {
        ip.bridge("kube-ipvs0", None)?;
        ip.address([10, 96, 0, 99], 32, "kube-ipvs0")
    })?;
    fixture.mentions(&["most likely kube-ipvs0, the link of kube-proxy's IPVS mode, has 10.96.0.99"]);
    fixture.fails_without_probe(Kind::Http, ([10, 96, 0, 99], 80).into(), Ending::Refused)
}

/// The port of a hostNetwork pod is also a NodePort. The pod is healthy, and an endpoint of the Service gets its probe.
fn port_is_node_port(fixture: &mut Fixture<'_>, mode: &str, how: Ending) -> Result<()> {
    let target = fixture.serving_on_node("http")?;
    let endpoint = fixture.serving(mode, HTTP)?;
    fixture.node.node.nft(&format!(
        "table ip kube-proxy {{
           chain external-ABCDEFGH-shop/web/tcp/http {{ meta l4proto tcp dnat to {endpoint}; }};
           map service-nodeports {{ type inet_proto . inet_service : verdict; elements = {{
             tcp . {HOST} : goto external-ABCDEFGH-shop/web/tcp/http }}; }};
           chain nat-output {{ type nat hook output priority -100;
             fib daddr type local meta l4proto . th dport vmap @service-nodeports; }}; }}\n"
    ))?;
    fixture.mentions(&["Service shop/web:http"]);
    fixture.fails(Kind::Http, target, how)
}

/// A Service has the node's address as an external one, and the port of a hostNetwork pod. The pod is healthy, and an
/// endpoint of the Service gets its probe.
fn external_ip(fixture: &mut Fixture<'_>) -> Result<()> {
    fixture.node.serve(fixture.options, &["http", &format!("[::]:{EXTERNAL}")])?;
    let endpoint = fixture.serving("503", HTTP)?;
    let service = SocketAddr::from((NODE, EXTERNAL));
    translate(fixture, service, endpoint)?;
    fixture.mentions(&["Service default/exporter"]);
    fixture.fails(Kind::Http, service, Ending::Status)
}

/// The same, and only kube-proxy's rules have the Service.
fn external_ip_by_rules(fixture: &mut Fixture<'_>) -> Result<()> {
    fixture.node.serve(fixture.options, &["http", &format!("[::]:{HOST}")])?;
    let endpoint = fixture.serving("503", HTTP)?;
    fixture.node.node.nft(&format!(
        "table ip kube-proxy {{
           map service-ips {{ type ipv4_addr . inet_proto . inet_service : verdict; }};
           chain service-ABCDEFGH-shop/web/tcp/http {{ meta l4proto tcp dnat to {endpoint}; }};
           chain external-ABCDEFGH-shop/web/tcp/http {{ goto service-ABCDEFGH-shop/web/tcp/http; }};
           chain services {{ ip daddr . meta l4proto . th dport vmap @service-ips; }};
           chain nat-output {{ type nat hook output priority -100; jump services; }}; }}
         add element ip kube-proxy service-ips {{ 10.96.0.35 . tcp . 80 : goto service-ABCDEFGH-shop/web/tcp/http,
           {NODE} . tcp . {HOST} : goto external-ABCDEFGH-shop/web/tcp/http }}\n"
    ))?;
    let service = SocketAddr::from((NODE, HOST));
    fixture.mentions(&["Service shop/web:http"]);
    fixture.fails(Kind::Http, service, Ending::Status)
}

/// Sends a Service on to an endpoint, as kube-proxy does.
fn send_on(fixture: &mut Fixture<'_>, endpoint: SocketAddr) -> Result<SocketAddr> {
    let service = cluster_ip(fixture)?;
    translate(fixture, service, endpoint)?;
    Ok(service)
}

fn translate(fixture: &Fixture<'_>, service: SocketAddr, endpoint: SocketAddr) -> Result<()> {
    let (family, ip) = (if service.is_ipv4() { "ip" } else { "ip6" }, service.ip());
    fixture.node.node.nft(&format!(
        "table {family} kube-proxy {{ chain nat-output {{ type nat hook output priority -100;
           {family} daddr {ip} tcp dport {} dnat to {endpoint}; }}; }}\n",
        service.port()
    ))
}

/// The Service's targetPort is not the port that its endpoint listens on.
fn target_port(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    let endpoint = SocketAddr::new(pod.ip(), HTTP + 1);
    let service = send_on(fixture, endpoint)?;
    fixture.mentions(&[&format!("nobody listens on {endpoint}"), &format!("sends {service}")]);
    fixture.fails_without_probe(Kind::Http, service, Ending::Refused)
}

fn endpoint_drops(fixture: &mut Fixture<'_>) -> Result<()> {
    let endpoint = fixture.serving("http", HTTP)?;
    fixture.input_rule(endpoint, &format!("tcp dport {HTTP} drop;"))?;
    let service = send_on(fixture, endpoint)?;
    fixture.mentions(&[&format!("-> {endpoint}"), &format!("its target had been {service}")]);
    fixture.fails_without_probe(Kind::Http, service, Ending::Timeout)
}

/// The rules still lead to an endpoint that is gone. kube-proxy masquerades what the node itself sends to a Service.
fn endpoint_is_gone(fixture: &mut Fixture<'_>) -> Result<()> {
    cluster_ip(fixture)?;
    let service = SocketAddr::from(EXPORTER);
    translate(fixture, service, ([10, 88, 0, 77], HTTP).into())?;
    let chain = "type nat hook postrouting priority 100; masquerade;";
    fixture.node.node.nft(&format!("table ip kube-proxy {{ chain nat-postrouting {{ {chain} }}; }}\n"))?;
    let words = "10.96.0.34:9100 is Service default/exporter, and the Service proxy sent it to 10.88.0.77, which its";
    fixture.mentions(&[words]);
    fixture.fails_without_probe(Kind::Http, service, Ending::Error)
}

/// kube-proxy in nftables mode serves NodePorts at the node's primary addresses only.
fn unserved_node_port(fixture: &mut Fixture<'_>) -> Result<()> {
    serve_node_port(fixture)?;
    fixture.mentions(&["30080 is a NodePort of Service shop/cart:http", "does not serve at 127.0.0.1"]);
    fixture.fails_without_probe(Kind::Http, (Ipv4Addr::LOCALHOST, NODE_PORT).into(), Ending::Refused)
}

/// Somebody deletes kube-proxy's table, with the NodePort in it.
fn flushed_node_port(fixture: &mut Fixture<'_>) -> Result<()> {
    delete_node_port(fixture)?;
    fixture.event("node_ports_changed", "1 (30080 of shop/cart:http) removed")?;
    fixture.mentions(&["30080 was a NodePort of Service shop/cart:http", "nft (pid ", REMOVED]);
    fixture.fails_without_probe(Kind::Http, (NODE, NODE_PORT).into(), Ending::Refused)
}

/// Only the table of IPv4 is deleted. That of IPv6 still has the NodePort.
fn flushed_of_one_family(fixture: &mut Fixture<'_>) -> Result<()> {
    fixture.node.node.nft(&format!(
        "table ip6 kube-proxy {{
           chain external-42NFTM6N-shop/cart/tcp/http {{ accept; }};
           map service-nodeports {{ type inet_proto . inet_service : verdict; elements = {{
             tcp . {NODE_PORT} : goto external-42NFTM6N-shop/cart/tcp/http }}; }}; }}\n"
    ))?;
    delete_node_port(fixture)?;
    fixture.mentions(&["was a NodePort of Service shop/cart:http", "no NodePort for IPv4 any more", REMOVED]);
    fixture.fails_without_probe(Kind::Http, (NODE, NODE_PORT).into(), Ending::Refused)
}

const REMOVED: &str = "removed 3 rules and the whole nftables table ip kube-proxy";

fn delete_node_port(fixture: &mut Fixture<'_>) -> Result<()> {
    serve_node_port(fixture)?;
    fixture.node.node.nft("delete table ip kube-proxy")?;
    fixture.event("rules_flushed", REMOVED).map(drop)
}

/// A Service with a NodePort, and an endpoint that answers there.
fn serve_node_port(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    fixture.node.node.nft(&format!(
        "table ip kube-proxy {{
           set nodeport-ips {{ type ipv4_addr; elements = {{ {NODE} }}; }};
           chain external-42NFTM6N-shop/cart/tcp/http {{ meta l4proto tcp dnat to {pod}; }};
           map service-nodeports {{ type inet_proto . inet_service : verdict; elements = {{
             tcp . {NODE_PORT} : goto external-42NFTM6N-shop/cart/tcp/http }}; }};
           chain services {{ ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports; }};
           chain nat-output {{ type nat hook output priority -100; jump services; }}; }}\n"
    ))?;
    fixture.succeeds(Kind::Http, (NODE, NODE_PORT).into())
}

fn proxy_tables(fixture: &Fixture<'_>, (name, service): (&str, SocketAddr), verdict: &str) -> Result<()> {
    let (family, other) = match fixture.family {
        Family::V4 => ("ip", "10.96.0.77"),
        Family::V6 => ("ip6", "fd00:96::77"),
    };
    let addr = if family == "ip" { "ipv4_addr" } else { "ipv6_addr" };
    let (ip, port) = (service.ip(), service.port());
    fixture.node.node.nft(&format!(
        "table {family} kube-proxy {{
           set cluster-ips {{ type {addr}; elements = {{ {ip} }}; }};
           map no-endpoint-services {{ type {addr} . inet_proto . inet_service : verdict; elements = {{
             {other} . tcp . 80 comment \"shop/other:http\" : goto reject-chain,
             {ip} . tcp . {port} comment \"{name}\" : {verdict} }}; }};
           chain reject-chain {{ reject; }};
           chain service-endpoints-check {{ {family} daddr . meta l4proto . th dport vmap @no-endpoint-services; }};
           chain cluster-ips-check {{ {family} daddr @cluster-ips reject; }};
           chain filter-output {{ type filter hook output priority -110; ct state new jump service-endpoints-check; }};
           chain filter-output-post-dnat {{ type filter hook output priority -90; ct state new jump cluster-ips-check; }}; }}\n"
    ))
}

fn by_ipvs(fixture: &mut Fixture<'_>) -> Result<()> {
    ipvs::node_port(&fixture.node.node, NODE_PORT, None)?;
    fixture.fails_without_probe(Kind::Http, ([10, 96, 0, 10], 443).into(), Ending::Refused)?;
    fixture.fails_without_probe(Kind::Http, (NODE, NODE_PORT).into(), Ending::Refused)
}

/// The limit is one for the whole machine. [`Need::OwnMachine`] allows to change it.
fn full(fixture: &mut Fixture<'_>) -> Result<()> {
    const LIMIT: &str = "/proc/sys/net/netfilter/nf_conntrack_max";
    let pod = fixture.serving("http", HTTP)?;
    fixture.node.node.input_rule("ct state new accept;")?;
    let usual = std::fs::read_to_string(LIMIT).context("nf_conntrack_max")?;
    fixture.succeeds(Kind::Http, pod)?;
    // Established connections: the kernel does not drop their entries early.
    let held: Vec<TcpStream> =
        fixture.node.node.enter(|| (0..4).map(|_| Ok(TcpStream::connect(pod)?)).collect::<Result<_>>())?;
    std::fs::write(LIMIT, "3").context("lower nf_conntrack_max")?;
    let ran = fixture.mentions(&["connection table is full"]).fails(Kind::Http, pod, Ending::Timeout);
    // The table must be full when tracer reads it, which takes seconds on an emulated processor.
    let is_full =
        |record: &Record| matches!(&record.body, Body::Verdict(it) if it.verdict.cause == Cause::ConntrackTableFull);
    (fixture.wait_for)(&mut |records| records.iter().any(is_full));
    std::fs::write(LIMIT, usual.trim()).context("restore nf_conntrack_max")?;
    drop(held);
    ran
}
