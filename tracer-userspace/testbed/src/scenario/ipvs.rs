//! A probe's source port is a NodePort. It fails with IPVS, and is harmless with other proxies.

use std::net::SocketAddr;

use anyhow::Result;
use tracer_model::record::Cause;

use super::Rules::Iptables;
use super::{Fault, Fixture, Need, Proxy, Scenario};
use crate::node::ipvs;
use crate::pods::HTTP;
use crate::probe::{Ending, Kind};

const COLLISION: Option<Cause> = Some(Cause::NodeportEphemeralCollision);
const NODE_PORT: u16 = 36704;

/// The endpoint of the Service.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Backend {
    Listening,
    Idle,
    None,
}

pub(super) const ALL: &[Scenario] = &[
    collision("nodeport_collision", |s, _| collide(s, Backend::Listening)).smoke().and_v6_on_every_kernel(),
    collision("nodeport_collision_backend_idle", |s, _| collide(s, Backend::Idle)).needs(&[Need::Ipvs, Need::IpvsHook]),
    collision("nodeport_collision_no_backend", |s, _| collide(s, Backend::None)),
    Scenario::new("nodeport_collision_host_network", COLLISION, over_lo).proxy(Proxy::Ipvs).needs(&[Need::Ipvs]).own(),
    Scenario::new("nodeport_collision_new_service", COLLISION, new_service)
        .proxy(Proxy::Ipvs)
        .needs(&[Need::Ipvs])
        .own(),
    // The own source port is a NodePort, and the pod sees another one.
    collision("nodeport_collision_masqueraded", |s, pod| {
        masquerade(s, pod, NODE_PORT + 2)?;
        collide(s, Backend::Listening)
    })
    .needs(&[Need::Ipvs, Need::NftNat]),
    // A NodePort without endpoints. The rule for it also matches answers, because it has no `--ctstate NEW`.
    collision("nodeport_collision_rule_for_all", |s, _| s.node.set_source_port(NODE_PORT))
        .on_node(Iptables(
            "*filter\n:KUBE-EXTERNAL-SERVICES - [0:0]\n-A INPUT -j KUBE-EXTERNAL-SERVICES\n\
        -A KUBE-EXTERNAL-SERVICES -p tcp -m comment --comment \"kube-system/dashboard:https has no endpoints\" \
        -m tcp --dport 36704 -j REJECT\nCOMMIT\n",
        ))
        .names(&["NodePort of Service kube-system/dashboard:https", "the SYN-ACK"])
        .proxy(Proxy::Iptables),
    harmless("nodeport_other_source_port", Proxy::Ipvs, |s, _| {
        collide(s, Backend::Listening)?;
        s.node.set_source_port(NODE_PORT + 2)
    })
    .needs(&[Need::Ipvs])
    .and_v6(),
    // A masquerade picks a NodePort as the translated source port (kubernetes#139276). conntrack puts the own port back
    // (hook PREROUTING) before IPVS looks at the SYN-ACK (hook INPUT).
    harmless("nodeport_masquerade_same_port", Proxy::Ipvs, |s, pod| {
        service(s, Backend::Listening)?;
        masquerade(s, pod, NODE_PORT)
    })
    .needs(&[Need::Ipvs, Need::NftNat]),
    harmless("nodeport_dnat_same_port", Proxy::Nftables, dnat).needs(&[Need::NftNat]).and_v6(),
    harmless("nodeport_iptables_same_port", Proxy::Iptables, iptables).needs(&[Need::IptablesNat]).and_v6(),
];

const fn harmless(name: &'static str, proxy: Proxy, setup: Fault) -> Scenario {
    Scenario::probed(name, None, "http", Ending::Ok).fault(setup).proxy(proxy).own()
}

const fn collision(name: &'static str, fault: Fault) -> Scenario {
    Scenario::probed(name, COLLISION, "http", Ending::Timeout)
        .fault(fault)
        .proxy(Proxy::Ipvs)
        .needs(&[Need::Ipvs])
        .own()
}

/// The source port is the NodePort of a Service.
fn collide(fixture: &mut Fixture<'_>, backend: Backend) -> Result<()> {
    service(fixture, backend)?;
    fixture.node.set_source_port(NODE_PORT)
}

/// A probe of a hostNetwork pod. IPVS takes the SYN-ACK from `lo`.
fn over_lo(fixture: &mut Fixture<'_>) -> Result<()> {
    let target = fixture.serving_on_node("http")?;
    collide(fixture, Backend::Listening)?;
    fixture.fails(Kind::Http, target, Ending::Timeout)
}

/// The Service is created while the tracer watches.
fn new_service(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    fixture.node.set_source_port(NODE_PORT)?;
    fixture.succeeds(Kind::Http, pod)?;
    service(fixture, Backend::Listening)?;
    let other = fixture.serving("http", HTTP)?;
    fixture.fails(Kind::Http, other, Ending::Timeout)
}

/// Gives connections to this pod another source port.
fn masquerade(fixture: &Fixture<'_>, pod: SocketAddr, port: u16) -> Result<()> {
    let rule = format!("ip daddr {} tcp dport {} masquerade to :{port}", pod.ip(), pod.port());
    let chain = format!("chain out {{ type nat hook postrouting priority srcnat; {rule}; }}");
    fixture.node.node.nft(&format!("table ip translated {{ {chain}; }}\n"))
}

/// The source port equals a NodePort that is a DNAT rule. conntrack knows the connection of the SYN-ACK, so no rule
/// applies.
fn dnat(fixture: &mut Fixture<'_>, _: SocketAddr) -> Result<()> {
    let backend = fixture.serving("http", HTTP)?;
    let rule = format!("fib daddr type local tcp dport {NODE_PORT} dnat to {backend}");
    let family = if backend.is_ipv4() { "ip" } else { "ip6" };
    fixture.node.node.nft(&format!(
        "table {family} kube {{ chain nodeports {{ type nat hook prerouting priority -100; {rule}; }}; \
         chain nodeports-out {{ type nat hook output priority -100; {rule}; }}; }}\n"
    ))?;
    fixture.node.set_source_port(NODE_PORT)
}

/// As [`dnat`], with the chains of kube-proxy's iptables mode.
fn iptables(fixture: &mut Fixture<'_>, pod: SocketAddr) -> Result<()> {
    let backend = fixture.serving("http", HTTP)?;
    let program = if pod.is_ipv4() { "iptables-nft-restore" } else { "ip6tables-nft-restore" };
    let rules = format!(
        "*nat\n:KUBE-NODEPORTS - [0:0]\n\
        -A PREROUTING -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS\n\
        -A OUTPUT -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS\n\
        -A KUBE-NODEPORTS -p tcp -m comment --comment default/web -m tcp --dport {NODE_PORT} -j DNAT --to-destination {backend}\nCOMMIT\n"
    );
    fixture.node.node.run(program, &[], &rules)?;
    fixture.node.set_source_port(NODE_PORT)
}

fn service(fixture: &mut Fixture<'_>, backend: Backend) -> Result<()> {
    let target = match backend {
        Backend::Listening => Some(fixture.serving("http", HTTP)?),
        Backend::Idle => Some(fixture.pod(HTTP)?),
        Backend::None => None,
    };
    ipvs::node_port(&fixture.node.node, NODE_PORT, target)
}
