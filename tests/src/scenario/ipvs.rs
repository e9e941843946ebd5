//! A probe's source port is a NodePort: fatal where IPVS proxies, harmless elsewhere.

use std::net::SocketAddr;

use anyhow::Result;
use tracer::classify::label::Label;

use super::{Need, Scenario, Stage};
use crate::dial::{Ending, Kind};
use crate::pods::{HOST, HTTP};
use crate::world::{NODE, ipvs};

const COLLISION: Option<Label> = Some(Label::NodeportEphemeralCollision);
const NODE_PORT: u16 = 36704;

/// What stands behind the Service.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Backend {
    Listening,
    Idle,
    None,
}

pub(super) const ALL: &[Scenario] = &[
    collision("nodeport_collision", |s| to_pod(s, Backend::Listening)),
    collision("nodeport_collision_backend_idle", |s| to_pod(s, Backend::Idle)),
    collision("nodeport_collision_no_backend", |s| to_pod(s, Backend::None)),
    collision("nodeport_collision_host_network", over_lo),
    collision("nodeport_collision_new_service", new_service),
    Scenario::new("nodeport_other_source_port", None, other_port).needs(&[Need::Ipvs]).own(),
    Scenario::new("nodeport_dnat_same_port", None, dnat).needs(&[Need::NftNat]).own(),
];

const fn collision(name: &'static str, play: fn(&mut Stage<'_>) -> Result<()>) -> Scenario {
    Scenario::new(name, COLLISION, play).needs(&[Need::Ipvs]).own()
}

fn to_pod(stage: &mut Stage<'_>, backend: Backend) -> Result<()> {
    let pod = stage.serving("http", HTTP)?;
    service(stage, backend)?;
    stage.world.source_port(Some(NODE_PORT))?;
    (stage.watch)()?;
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
    stage.world.node.nft(&format!(
        "table ip kube {{ chain nodeports {{ type nat hook prerouting priority -100; {rule}; }}; \
         chain nodeports-out {{ type nat hook output priority -100; {rule}; }}; }}\n"
    ))?;
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
