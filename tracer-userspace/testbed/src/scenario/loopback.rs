//! `lo` is down: on the node, where probes of its own addresses go over it, and in a pod, where
//! the kubelet's probes do not.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result};
use tracer_model::record::Cause;

use super::{Scenario, Stage};
use crate::check::Suspect;
use crate::dial::{Ending, Kind};
use crate::plugin::{reused_pid, run_by_runtime};
use crate::pods::{HOST, HTTP};
use crate::world::{Family, NODE, NODE6};

const DOWN: Option<Cause> = Some(Cause::LoopbackDown);

pub(super) const ALL: &[Scenario] = &[
    Scenario::new("loopback_down", DOWN, |s| incident(s, "netlink")).own().smoke(),
    Scenario::new("loopback_down_v6", DOWN, |s| incident(s, "netlink")).own().v6().on_every_kernel(),
    Scenario::new("loopback_down_ioctl", DOWN, |s| incident(s, "ioctl")).own().on_every_kernel(),
    Scenario::new("loopback_down_before_start", DOWN, before_start).own(),
    Scenario::new("loopback_down_and_up", None, down_and_up).own(),
    Scenario::new("loopback_down_in_pod", None, |s| in_pod(s, "netlink")),
    Scenario::new("loopback_down_in_pod_by_exec", None, by_exec).own().on_every_kernel(),
];

/// The runtime cleans up a sandbox whose namespace path now names a process of the node.
fn incident(stage: &mut Stage<'_>, way: &str) -> Result<()> {
    let targets = host_server(stage)?;
    (stage.watch)()?;
    stage.succeeds(Kind::Http, targets[0])?;
    let reused = reused_pid(&stage.world.node, stage.options)?;
    let path = format!("/proc/{}/ns/net", reused.pid());
    stage.helpers.push(reused);
    stage.helpers.push(run_by_runtime(&stage.world.node, stage.options, &path, way)?);
    stage.suspect =
        Some(Suspect { comm: "loopback".to_owned(), ancestor: "crio".to_owned(), netns_path: path.clone() });
    for target in targets {
        stage.fails(Kind::Http, target, Ending::Timeout)?;
    }
    Ok(())
}

/// It was down, and is up again before anybody probes.
fn down_and_up(stage: &mut Stage<'_>) -> Result<()> {
    let targets = host_server(stage)?;
    (stage.watch)()?;
    stage.world.node.ip(|ip| ip.down("lo").and_then(|()| ip.up("lo")))?;
    for target in targets {
        stage.succeeds(Kind::Http, target)?;
    }
    Ok(())
}

/// The tracer comes late: the state is read from the node, nobody can be blamed.
fn before_start(stage: &mut Stage<'_>) -> Result<()> {
    let targets = host_server(stage)?;
    stage.world.node.ip(|ip| ip.down("lo"))?;
    (stage.watch)()?;
    stage.fails(Kind::Http, targets[0], Ending::Timeout)
}

/// The plugin does its work where it should: probes of that pod go over its veth.
fn in_pod(stage: &mut Stage<'_>, way: &str) -> Result<()> {
    let pod = stage.serving("http", HTTP)?;
    let path = stage.inside(pod)?.path();
    let path = path.to_str().context("path of the pod's namespace")?;
    stage.helpers.push(run_by_runtime(&stage.world.node, stage.options, path, way)?);
    stage.succeeds(Kind::Http, pod)?;
    stage.succeeds(Kind::Tcp, pod)
}

/// What executes in a container, as runc does for each exec probe, enters its other namespaces first: until then it is in the
/// node's network, and has opened the path of another.
fn by_exec(stage: &mut Stage<'_>) -> Result<()> {
    (stage.watch)()?;
    stage.nobody_enters = true;
    in_pod(stage, "exec")
}

/// A hostNetwork server; its addresses as the kubelet dials them.
///
/// Without `lo` there is no route to `::1` at all: `connect` itself fails, which is another story.
fn host_server(stage: &mut Stage<'_>) -> Result<Vec<SocketAddr>> {
    stage.world.serve(stage.options, &["http", &format!("[::]:{HOST}")])?;
    Ok(match stage.family {
        Family::V4 => vec![(NODE, HOST).into(), (Ipv4Addr::LOCALHOST, HOST).into()],
        Family::V6 => vec![(NODE6, HOST).into()],
    })
}
