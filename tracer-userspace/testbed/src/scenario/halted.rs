//! The target's processes cannot run: frozen, stopped, or without a processor or a disk.

use std::net::TcpStream;
use std::process::Command;

use anyhow::{Context, Result};
use tracer_model::record::Cause;

use super::{Need, Scenario, Stage};
use crate::dial::{Ending, Kind};
use crate::net::PREFIX;
use crate::pods::{HTTP, TLS, UNSAID_TLS};
use crate::proc::Proc;
use crate::world::cgroup::Freezer;

const FROZEN: Option<Cause> = Some(Cause::TargetFrozen);
const STARVED: Option<Cause> = Some(Cause::TargetStarved);

pub(super) const ALL: &[Scenario] = &[
    Scenario::new("target_frozen", FROZEN, stopped).on_every_kernel(),
    Scenario::new("target_frozen_v6", FROZEN, stopped).v6(),
    Scenario::new("target_frozen_cgroup", FROZEN, |s| frozen(s, Freezer::V2)).needs(&[Need::Freezer]),
    Scenario::new("target_frozen_cgroup_v1", FROZEN, |s| frozen(s, Freezer::V1)).needs(&[Need::FreezerV1]),
    Scenario::new("target_frozen_queue", FROZEN, full_queue),
    Scenario::new("target_frozen_tls", FROZEN, tls),
    Scenario::new("slow_response_another_is_stopped", Some(Cause::SlowResponse), another_is_stopped),
    Scenario::new("target_starved", STARVED, starved).needs(&[Need::CpuQuota, Need::Pressure]),
    Scenario::new("target_starved_v6", STARVED, starved).v6().needs(&[Need::CpuQuota, Need::Pressure]),
];

/// As by a debugger, a script or job control.
fn stopped(stage: &mut Stage<'_>) -> Result<()> {
    let pod = stage.serving("http", HTTP)?;
    stage.succeeds(Kind::Http, pod)?;
    stage.pod_of(pod)?.halt()?;
    stage.mentions(&["is stopped by a signal", "of the request lie unread"]);
    stage.fails(Kind::Http, pod, Ending::Timeout)
}

fn tls(stage: &mut Stage<'_>) -> Result<()> {
    let pod = stage.serving("tls", TLS)?;
    stage.pod_of(pod)?.halt()?;
    stage.mentions(&["is stopped by a signal"]);
    stage.fails(Kind::Https, pod, Ending::Timeout)
}

/// As `docker pause`, `ctr tasks pause` and a checkpoint do.
fn frozen(stage: &mut Stage<'_>, by: Freezer) -> Result<()> {
    let pod = stage.serving("http", HTTP)?;
    let name = format!("{PREFIX}{}-frozen", std::process::id());
    let _frozen = stage.pod_of(pod)?.freeze(&name, by)?;
    stage.mentions(&["is frozen by its cgroup", "of the request lie unread"]);
    stage.fails(Kind::Http, pod, Ending::Timeout)
}

/// It was stopped some time ago: who came since then waits to be accepted.
fn full_queue(stage: &mut Stage<'_>) -> Result<()> {
    let pod = stage.serving("backlog:1", HTTP)?;
    stage.pod_of(pod)?.halt()?;
    let first = || TcpStream::connect(pod).context("a connection that waits to be accepted");
    let _waiting = stage.world.node.enter(|| Ok([first()?, first()?]))?;
    stage.fails(Kind::Http, pod, Ending::Timeout)
}

/// Another process of the pod is stopped: not the one that serves.
fn another_is_stopped(stage: &mut Stage<'_>) -> Result<()> {
    let pod = stage.serving("hang", HTTP)?;
    let options = stage.options;
    let inside = stage.pod_of(pod)?;
    inside.serve(options, &["http", &format!("[::]:{UNSAID_TLS}")])?;
    inside.halt()?;
    stage.mentions(&["had read it"]);
    stage.fails(Kind::Http, pod, Ending::Timeout)
}

/// What shares its CPU quota takes all of it.
fn starved(stage: &mut Stage<'_>) -> Result<()> {
    const HOGS: usize = 8;
    let pod = stage.serving("http", HTTP)?;
    let name = format!("{PREFIX}{}-starved", std::process::id());
    let hog = || {
        let mut command = Command::new("sh");
        command.args(["-c", "while :; do :; done"]);
        Proc::spawn(command)
    };
    let hogs = (0..HOGS).map(|_| hog()).collect::<Result<Vec<_>>>()?;
    let _quota = stage.pod_of(pod)?.starve(&name, &hogs)?;
    stage.helpers.extend(hogs);
    stage.mentions(&["none of its tasks could run, for want of a processor"]);
    stage.fails(Kind::Http, pod, Ending::Timeout)
}
