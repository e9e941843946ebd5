//! A probe's source port is a NodePort: fatal where IPVS proxies, harmless elsewhere.

use std::net::SocketAddr;

use anyhow::Result;
use tracer_model::record::Cause;

use super::{Need, Proxy, Scenario, Stage};
use crate::dial::{Ending, Kind};
use crate::pods::{HOST, HTTP};
use crate::world::{NODE, ipvs};

const COLLISION: Option<Cause> = Some(Cause::NodeportEphemeralCollision);
const NODE_PORT: u16 = 36704;

/// What stands behind the Service.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Backend {
    Listening,
    Idle,
    None,
}

pub(super) const ALL: &[Scenario] = &[
    collision("nodeport_collision", |s| to_pod(s, Backend::Listening)).smoke(),
    collision("nodeport_collision_v6", |s| to_pod(s, Backend::Listening)).v6().on_every_kernel(),
    collision("nodeport_collision_backend_idle", |s| to_pod(s, Backend::Idle)).needs(&[Need::Ipvs, Need::IpvsHook]),
    collision("nodeport_collision_no_backend", |s| to_pod(s, Backend::None)),
    collision("nodeport_collision_backend_gone", backend_gone),
    collision("nodeport_collision_host_network", over_lo),
    collision("nodeport_collision_new_service", new_service),
    harmless("nodeport_other_source_port", Proxy::Ipvs, other_port).needs(&[Need::Ipvs]),
    harmless("nodeport_other_source_port_v6", Proxy::Ipvs, other_port).needs(&[Need::Ipvs]).v6(),
    harmless("nodeport_dnat_same_port", Proxy::Nftables, dnat).needs(&[Need::NftNat]),
    harmless("nodeport_dnat_same_port_v6", Proxy::Nftables, dnat).needs(&[Need::NftNat]).v6(),
    harmless("nodeport_iptables_same_port", Proxy::Iptables, iptables).needs(&[Need::IptablesNat]),
    harmless("nodeport_iptables_same_port_v6", Proxy::Iptables, iptables).needs(&[Need::IptablesNat]).v6(),
];

const fn harmless(name: &'static str, proxy: Proxy, play: fn(&mut Stage<'_>) -> Result<()>) -> Scenario {
    Scenario::new(name, None, play).proxy(proxy).own()
}

const fn collision(name: &'static str, play: fn(&mut Stage<'_>) -> Result<()>) -> Scenario {
    Scenario::new(name, COLLISION, play).proxy(Proxy::Ipvs).needs(&[Need::Ipvs]).own()
}

fn to_pod(stage: &mut Stage<'_>, backend: Backend) -> Result<()> {
    let pod = stage.serving("http", HTTP)?;
    service(stage, backend)?;
    stage.world.source_port(Some(NODE_PORT))?;
    (stage.watch)()?;
    stage.fails(Kind::Http, pod, Ending::Timeout)
}

/// The Service loses its backend after a collision: IPVS drops what belongs to the connection that it made of that one, and no hook
/// of its own tells so.
fn backend_gone(stage: &mut Stage<'_>) -> Result<()> {
    let pod = stage.serving("http", HTTP)?;
    let backend = stage.serving("http", HTTP)?;
    ipvs::node_port(&stage.world.node, NODE_PORT, Some(backend))?;
    stage.world.source_port(Some(NODE_PORT))?;
    (stage.watch)()?;
    stage.fails(Kind::Http, pod, Ending::Timeout)?;
    ipvs::take_backend(&stage.world.node, NODE_PORT, backend)?;
    stage.fails(Kind::Http, pod, Ending::Timeout)
}

/// A probe of a hostNetwork pod: the SYN-ACK goes over `lo` and is taken there.
fn over_lo(stage: &mut Stage<'_>) -> Result<()> {
    stage.world.serve(stage.options, &["http", &format!("[::]:{HOST}")])?;
    service(stage, Backend::Listening)?;
    stage.world.source_port(Some(NODE_PORT))?;
    (stage.watch)()?;
    stage.fails(Kind::Http, (NODE, HOST).into(), Ending::Timeout)
}

/// The Service comes while the tracer watches.
fn new_service(stage: &mut Stage<'_>) -> Result<()> {
    let pod = stage.serving("http", HTTP)?;
    stage.world.source_port(Some(NODE_PORT))?;
    (stage.watch)()?;
    stage.succeeds(Kind::Http, pod)?;
    service(stage, Backend::Listening)?;
    let other = stage.serving("http", HTTP)?;
    stage.fails(Kind::Http, other, Ending::Timeout)
}

fn other_port(stage: &mut Stage<'_>) -> Result<()> {
    let pod = stage.serving("http", HTTP)?;
    service(stage, Backend::Listening)?;
    stage.world.source_port(Some(NODE_PORT + 2))?;
    (stage.watch)()?;
    stage.succeeds(Kind::Http, pod)
}

/// The same coincidence where a NodePort is a DNAT rule: the SYN-ACK belongs to a known connection.
fn dnat(stage: &mut Stage<'_>) -> Result<()> {
    let pod = stage.serving("http", HTTP)?;
    let backend = stage.serving("http", HTTP)?;
    let rule = format!("fib daddr type local tcp dport {NODE_PORT} dnat to {backend}");
    let family = if backend.is_ipv4() { "ip" } else { "ip6" };
    stage.world.node.nft(&format!(
        "table {family} kube {{ chain nodeports {{ type nat hook prerouting priority -100; {rule}; }}; \
         chain nodeports-out {{ type nat hook output priority -100; {rule}; }}; }}\n"
    ))?;
    stage.world.source_port(Some(NODE_PORT))?;
    (stage.watch)()?;
    stage.succeeds(Kind::Http, pod)
}

/// The same with the chains of kube-proxy's iptables mode.
fn iptables(stage: &mut Stage<'_>) -> Result<()> {
    let pod = stage.serving("http", HTTP)?;
    let backend = stage.serving("http", HTTP)?.to_string();
    let (program, port) = (if pod.is_ipv4() { "iptables-nft" } else { "ip6tables-nft" }, NODE_PORT.to_string());
    let local = ["-m", "addrtype", "--dst-type", "LOCAL", "-j", "KUBE-NODEPORTS"];
    let to_backend = ["-p", "tcp", "-m", "comment", "--comment", "default/web", "--dport", &port, "-j", "DNAT"];
    let rules: [&[&str]; 4] = [
        &["-N", "KUBE-NODEPORTS"],
        &[&["-A", "PREROUTING"], &local[..]].concat(),
        &[&["-A", "OUTPUT"], &local[..]].concat(),
        &[&["-A", "KUBE-NODEPORTS"], &to_backend[..], &["--to-destination", &backend]].concat(),
    ];
    for rule in rules {
        stage.world.node.run(program, &[&["-t", "nat"], rule].concat(), "")?;
    }
    stage.world.source_port(Some(NODE_PORT))?;
    (stage.watch)()?;
    stage.succeeds(Kind::Http, pod)
}

fn service(stage: &mut Stage<'_>, backend: Backend) -> Result<()> {
    let target = behind(stage, backend)?;
    ipvs::node_port(&stage.world.node, NODE_PORT, target)
}

fn behind(stage: &mut Stage<'_>, backend: Backend) -> Result<Option<SocketAddr>> {
    let family = stage.family;
    Ok(match backend {
        Backend::Listening => Some(stage.serving("http", HTTP)?),
        Backend::Idle => Some(stage.idle()?.addr(family, HTTP)),
        Backend::None => None,
    })
}
