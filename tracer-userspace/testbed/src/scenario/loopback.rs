//! `lo` is down: on the node, where probes of its own addresses go over it, and in a pod, where
//! the kubelet's probes do not.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result};
use tracer_model::record::Cause;

use super::{Fixture, Scenario};
use crate::check::Suspect;
use crate::node::{Family, NODE, NODE6};
use crate::plugin::{reused_pid, run_by_runtime};
use crate::pods::{HOST, HTTP};
use crate::probe::{Ending, Kind};

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

/// The runtime cleans up a sandbox. Its namespace path now names a process of the node.
fn incident(fixture: &mut Fixture<'_>, way: &str) -> Result<()> {
    let targets = host_server(fixture)?;
    (fixture.watch)()?;
    fixture.succeeds(Kind::Http, targets[0])?;
    let reused = reused_pid(&fixture.node.node, fixture.options)?;
    let path = format!("/proc/{}/ns/net", reused.pid());
    fixture.helpers.push(reused);
    fixture.helpers.push(run_by_runtime(&fixture.node.node, fixture.options, &path, way)?);
    fixture.suspect =
        Some(Suspect { comm: "loopback".to_owned(), ancestor: "crio".to_owned(), netns_path: path.clone() });
    for target in targets {
        fixture.fails(Kind::Http, target, Ending::Timeout)?;
    }
    Ok(())
}

/// It was down, and is up again before anybody probes.
fn down_and_up(fixture: &mut Fixture<'_>) -> Result<()> {
    let targets = host_server(fixture)?;
    (fixture.watch)()?;
    fixture.node.node.ip(|ip| ip.down("lo").and_then(|()| ip.up("lo")))?;
    for target in targets {
        fixture.succeeds(Kind::Http, target)?;
    }
    Ok(())
}

/// The tracer comes late: the state is read from the node, nobody can be blamed.
fn before_start(fixture: &mut Fixture<'_>) -> Result<()> {
    let targets = host_server(fixture)?;
    fixture.node.node.ip(|ip| ip.down("lo"))?;
    (fixture.watch)()?;
    fixture.fails(Kind::Http, targets[0], Ending::Timeout)
}

/// The plugin does its work where it should: probes of that pod go over its veth.
fn in_pod(fixture: &mut Fixture<'_>, way: &str) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    let path = fixture.inside(pod)?.path();
    let path = path.to_str().context("path of the pod's namespace")?;
    fixture.helpers.push(run_by_runtime(&fixture.node.node, fixture.options, path, way)?);
    fixture.succeeds(Kind::Http, pod)?;
    fixture.succeeds(Kind::Tcp, pod)
}

/// What executes in a container, as runc does for each exec probe, enters its other namespaces first: until then it is
/// in the node's network, and has opened the path of another.
fn by_exec(fixture: &mut Fixture<'_>) -> Result<()> {
    (fixture.watch)()?;
    fixture.done.forbids_entry = true;
    in_pod(fixture, "exec")
}

/// A hostNetwork server; its addresses as the kubelet dials them.
///
/// Without `lo` there is no route to `::1` at all: `connect` itself fails, which is another failure.
fn host_server(fixture: &mut Fixture<'_>) -> Result<Vec<SocketAddr>> {
    fixture.node.serve(fixture.options, &["http", &format!("[::]:{HOST}")])?;
    Ok(match fixture.family {
        Family::V4 => vec![(NODE, HOST).into(), (Ipv4Addr::LOCALHOST, HOST).into()],
        Family::V6 => vec![(NODE6, HOST).into()],
    })
}
