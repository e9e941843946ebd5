//! `lo` is down. On the node, probes of its own addresses go over `lo` and fail. In a pod, the kubelet's probes do not
//! use `lo`.

use std::net::{Ipv4Addr, SocketAddr};
use std::thread;

use anyhow::{Context, Result};
use tracer_model::record::Cause;

use super::{Fixture, Scenario};
use crate::node::NODE;
use crate::plugin::{reused_pid, run_by_runtime};
use crate::pods::{HOST, HTTP};
use crate::probe::{Ending, Kind};

const DOWN: Option<Cause> = Some(Cause::LoopbackDown);

pub(super) const ALL: &[Scenario] = &[
    Scenario::new("loopback_down", DOWN, |s| incident(s, "netlink")).own().smoke().and_v6_on_every_kernel(),
    Scenario::new("loopback_down_ioctl", DOWN, |s| incident(s, "ioctl")).own().on_every_kernel(),
    Scenario::new("loopback_down_before_start", DOWN, before_start).own(),
    Scenario::new("loopback_down_before_answer", DOWN, before_answer).own(),
    Scenario::new("loopback_down_and_up", None, down_and_up).own(),
    Scenario::new("loopback_down_in_pod", None, |s| in_pod(s, "netlink")),
    Scenario::new("loopback_down_in_pod_by_exec", None, by_exec).own().on_every_kernel(),
];

/// The runtime removes a sandbox, but the namespace path now belongs to a process of the node (reused pid).
fn incident(fixture: &mut Fixture<'_>, way: &str) -> Result<()> {
    let targets = host_server(fixture)?;
    fixture.succeeds(Kind::Http, targets[0])?;
    let reused = reused_pid(&fixture.node.node, fixture.options)?;
    let path = format!("/proc/{}/ns/net", reused.pid());
    fixture.helpers.push(reused);
    fixture.helpers.push(run_by_runtime(&fixture.node.node, fixture.options, &path, way)?);
    fixture.culprit = Some(path);
    targets.into_iter().try_for_each(|target| fixture.fails(Kind::Http, target, Ending::Timeout))
}

/// As [`incident`], while a probe waits for its answer.
fn before_answer(fixture: &mut Fixture<'_>) -> Result<()> {
    let target = SocketAddr::from((NODE, HOST));
    let options = fixture.options;
    let timeout = options.probe_timeout;
    // An emulated processor needs seconds to run the plugin.
    let slow = format!("slow:{}", (timeout * 9 / 10).as_millis());
    fixture.node.serve(options, &[&slow, &target.to_string()])?;
    (fixture.watch)()?;
    let reused = reused_pid(&fixture.node.node, options)?;
    let path = format!("/proc/{}/ns/net", reused.pid());
    fixture.helpers.push(reused);
    fixture.culprit = Some(path.clone());
    fixture.fails_while(target, timeout, &[Ending::Timeout], |fixture| {
        // The request has arrived by then.
        thread::sleep(timeout / 16);
        fixture.helpers.push(run_by_runtime(&fixture.node.node, options, &path, "netlink")?);
        Ok(())
    })
}

/// `lo` was down for a moment before the first probe.
fn down_and_up(fixture: &mut Fixture<'_>) -> Result<()> {
    let targets = host_server(fixture)?;
    (fixture.watch)()?;
    fixture.node.node.ip(|ip| ip.down("lo").and_then(|()| ip.up("lo")))?;
    targets.into_iter().try_for_each(|target| fixture.succeeds(Kind::Http, target))
}

/// `lo` is down before the tracer starts. tracer reads its state from the node, but cannot name the culprit.
fn before_start(fixture: &mut Fixture<'_>) -> Result<()> {
    let targets = host_server(fixture)?;
    fixture.node.node.ip(|ip| ip.down("lo"))?;
    fixture.fails(Kind::Http, targets[0], Ending::Timeout)
}

/// The plugin sets `lo` down in the right namespace. Probes of that pod go over its veth.
fn in_pod(fixture: &mut Fixture<'_>, way: &str) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    let path = fixture.inside(pod)?.path();
    let path = path.to_str().context("path of the pod's namespace")?;
    fixture.helpers.push(run_by_runtime(&fixture.node.node, fixture.options, path, way)?);
    fixture.succeeds(Kind::Http, pod)?;
    fixture.succeeds(Kind::Tcp, pod)
}

/// A process that runs a command in a container enters the network namespace last, as runc does for each exec probe.
/// Until then it is in the node's network, and has opened the path of another namespace.
fn by_exec(fixture: &mut Fixture<'_>) -> Result<()> {
    (fixture.watch)()?;
    fixture.done.forbids_entry = true;
    in_pod(fixture, "exec")
}

/// Starts a hostNetwork server, and returns the addresses that the kubelet connects to.
///
/// `::1` is not among them: without `lo` there is no route to it, and `connect` fails at once.
fn host_server(fixture: &mut Fixture<'_>) -> Result<Vec<SocketAddr>> {
    let target = fixture.serving_on_node("http")?;
    let localhost = target.is_ipv4().then(|| SocketAddr::from((Ipv4Addr::LOCALHOST, HOST)));
    Ok([target].into_iter().chain(localhost).collect())
}
