//! The target's processes cannot run: they are stopped or frozen, or wait for a processor.

use std::net::SocketAddr;
use std::process::Command;
use std::thread;

use anyhow::Result;
use tracer_model::record::Cause;

use super::inside::{PROXY, meshed};
use super::needs::TPROXY;
use super::queue::{fails_with_full_queue, fill_in_handshake};
use super::{Fixture, Need, Scenario};
use crate::cgroup::{Cgroup, Freezer};
use crate::node::hung::Hung;
use crate::pods::{HTTP, UNLISTED_TLS};
use crate::probe::{Ending, Kind};
use crate::proc::Proc;
use crate::server::HOLDER;

const FROZEN: Option<Cause> = Some(Cause::TargetFrozen);
const STARVED: Option<Cause> = Some(Cause::TargetStarved);

pub(super) const ALL: &[Scenario] = &[
    // The process is stopped by a signal, as a debugger, a script or job control do.
    Scenario::probed("target_frozen", FROZEN, "http", Ending::Timeout)
        .succeeds_first()
        .fault(halt)
        .names(&["is stopped by a signal", "of the request lie unread"])
        .on_every_kernel()
        .and_v6(),
    Scenario::new("target_frozen_host_network", FROZEN, stopped_on_node),
    Scenario::new("target_frozen_cgroup", FROZEN, |s| frozen(s, Freezer::V2, false)).needs(&[Need::Freezer]),
    Scenario::new("target_frozen_cgroup_v1", FROZEN, |s| frozen(s, Freezer::V1, false)).needs(&[Need::FreezerV1]),
    Scenario::new("target_frozen_cgroup_above", FROZEN, |s| frozen(s, Freezer::V2, true)).own().needs(&[Need::Freezer]),
    Scenario::new("target_frozen_cgroup_above_v1", FROZEN, |s| frozen(s, Freezer::V1, true))
        .own()
        .needs(&[Need::FreezerV1]),
    Scenario::new("target_frozen_meanwhile", FROZEN, |s| frozen_meanwhile(s, Freezer::V2))
        .own()
        .needs(&[Need::Freezer]),
    Scenario::new("target_frozen_meanwhile_v1", FROZEN, |s| frozen_meanwhile(s, Freezer::V1))
        .own()
        .needs(&[Need::FreezerV1]),
    Scenario::new("target_frozen_queue", FROZEN, full_queue).unfixable(),
    Scenario::new("target_frozen_queue_in_handshake", FROZEN, queue_in_handshake)
        .unfixable()
        .needs(&[Need::RealProcessor]),
    Scenario::probed("target_frozen_tls", FROZEN, "tls", Ending::Timeout)
        .https()
        .fault(halt)
        .names(&["is stopped by a signal"]),
    Scenario::new("target_frozen_tproxy", FROZEN, transparent_proxy).own().needs(&[Need::TransparentProxy]),
    Scenario::new("target_frozen_redirect", FROZEN, redirecting_proxy).own().needs(&[Need::NftNat]).and_v6(),
    // The worker that has accepted the connection is stopped, and another one runs.
    Scenario::probed("target_frozen_worker", FROZEN, "http", Ending::Timeout)
        .without_server()
        .fault(|s, pod| serve_with_workers(s, pod, HOLDER))
        .names(&["has accepted the connection, and is stopped by a signal", "of the request lie unread"])
        .unfixable()
        .and_v6(),
    // The worker that has accepted the connection is slow, and another one is stopped.
    Scenario::probed("target_frozen_other_worker", Some(Cause::SlowResponse), "http", Ending::Timeout)
        .without_server()
        .fault(|s, pod| serve_with_workers(s, pod, "other"))
        .names(&["had read it"]),
    // Another process of the pod is stopped, not the server.
    Scenario::probed("slow_response_another_is_stopped", Some(Cause::SlowResponse), "hang", Ending::Timeout)
        .fault(|s, pod| s.serve(pod, "http", &format!("[::]:{UNLISTED_TLS}")).and_then(|()| halt(s, pod)))
        .names(&["had read it"]),
    Scenario::new("target_starved", STARVED, starved).needs(&[Need::CpuQuota, Need::Pressure, Need::Shell]).and_v6(),
    Scenario::new("target_starved_file_system", STARVED, |s| blocked(s, "blocked", &[HUNG_DISK]))
        .needs(&[Need::Fuse, Need::Pressure])
        .and_v6(),
    Scenario::new("target_starved_queue", STARVED, |s| {
        blocked_with_full_queue(s, "blocked", &["the accept queue of", HUNG_DISK])
    })
    .needs(&[Need::Fuse, Need::Pressure]),
    Scenario::new("slow_response_vfork", Some(Cause::SlowResponse), |s| blocked(s, "spawns", &[VFORK]))
        .needs(&[Need::Fuse]),
    Scenario::new("accept_queue_overflow_vfork", Some(Cause::AcceptQueueOverflow), |s| {
        blocked_with_full_queue(s, "spawns", &[VFORK])
    })
    .needs(&[Need::Fuse]),
];

fn halt(fixture: &mut Fixture<'_>, pod: SocketAddr) -> Result<()> {
    fixture.pod_of(pod)?.halt()
}

/// A pod with hostNetwork. Its processes are among those of the node.
fn stopped_on_node(fixture: &mut Fixture<'_>) -> Result<()> {
    let target = fixture.serving_on_node("http")?;
    fixture.succeeds(Kind::Http, target)?;
    fixture.node.halt()?;
    fixture.mentions(&["is stopped by a signal", "of the request lie unread"]);
    fixture.fails(Kind::Http, target, Ending::Timeout)
}

/// The cgroup is frozen, as `docker pause`, `ctr tasks pause` and a checkpoint do. Or one above it is, as by
/// `systemctl freeze`: to thaw the container's own does nothing then.
fn frozen(fixture: &mut Fixture<'_>, by: Freezer, above: bool) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    let _frozen = fixture.pod_of(pod)?.freeze(by, above)?;
    let (place, end) =
        if above { ("is frozen by a cgroup above its own (", "-frozen)") } else { ("is frozen by its cgroup", "") };
    fixture.mentions(&[place, end, "of the request lie unread"]);
    fixture.fails(Kind::Http, pod, Ending::Timeout)
}

/// The cgroup is frozen for most of the time, as by a checkpoint. After that, the server has too little time.
fn frozen_meanwhile(fixture: &mut Fixture<'_>, by: Freezer) -> Result<()> {
    let timeout = fixture.options.probe_timeout * 2;
    let pod = fixture.serving(&format!("slow:{}", timeout.as_millis() * 2 / 5), HTTP)?;
    let frozen = fixture.pod_of(pod)?.freeze(by, false)?;
    fixture.mentions(&["was frozen by its cgroup for at least", "that the prober waited"]);
    fixture.fails_while(pod, timeout, &[Ending::Timeout], |_| {
        thread::sleep(timeout * 3 / 4);
        drop(frozen);
        Ok(())
    })
}

/// The process was stopped some time ago. Connections since then fill its accept queue.
fn full_queue(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("backlog:1", HTTP)?;
    fixture.pod_of(pod)?.halt()?;
    fails_with_full_queue(fixture, pod)
}

/// The queue has room for the prober's SYN, and fills up before the end of the handshake.
fn queue_in_handshake(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("backlog:2", HTTP)?;
    fixture.pod_of(pod)?.halt()?;
    fixture.mentions(&["is stopped by a signal"]);
    fill_in_handshake(fixture, pod, Ending::Timeout)
}

/// As Istio's TPROXY mode does it: the proxy on another port gets the connection, and is stopped. The server is not.
fn transparent_proxy(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    fixture.serve(pod, "transparent", "0.0.0.0:15006")?;
    fixture.inside(pod)?.run("iptables-nft", TPROXY, "")?;
    fixture.succeeds(Kind::Http, pod)?;
    fixture.pod_of(pod)?.halt()?;
    fixture.mentions(&["is stopped by a signal", "it listens on 0.0.0.0:15006 and not on port 8080"]);
    fixture.fails(Kind::Http, pod, Ending::Timeout)
}

/// As Istio's usual mode does it: the pod redirects the port to the proxy, which is stopped. The server is not.
fn redirecting_proxy(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = meshed(fixture, "http")?;
    fixture.succeeds(Kind::Http, pod)?;
    fixture.pod_of(pod)?.halt()?;
    let place = format!("it listens on {} and not on port 8080", SocketAddr::new(pod.ip(), PROXY));
    fixture.mentions(&["is stopped by a signal", "of the request lie unread", &place]);
    fixture.fails(Kind::Http, pod, Ending::Timeout)
}

fn serve_with_workers(fixture: &mut Fixture<'_>, pod: SocketAddr, stopped: &str) -> Result<()> {
    let options = fixture.options;
    fixture.pod_of(pod)?.serve(options, &["workers", stopped, &format!("[::]:{HTTP}")])
}

const HUNG_DISK: &str = "none of its tasks could run: they waited for the disk or a network file system";

/// The server waits in vfork() for a child, which has not called exec. That is state D, and no wait for a disk.
const VFORK: &str = "waits for a child process that has not called exec yet (vfork)";

/// Serves with a process that waits in state D for a file system that never answers. `blocked` opens its log there,
/// `spawns` runs a program of it.
fn blocked(fixture: &mut Fixture<'_>, mode: &str, words: &[&str]) -> Result<()> {
    let (pod, _hung) = serve_blocked(fixture, mode)?;
    fixture.mentions(words);
    fixture.fails(Kind::Http, pod, Ending::Timeout)
}

/// The same after some probes: their connections fill the accept queue.
fn blocked_with_full_queue(fixture: &mut Fixture<'_>, mode: &str, words: &[&str]) -> Result<()> {
    let (pod, _hung) = serve_blocked(fixture, mode)?;
    fixture.mentions(words);
    fails_with_full_queue(fixture, pod)
}

fn serve_blocked(fixture: &mut Fixture<'_>, mode: &str) -> Result<(SocketAddr, Hung)> {
    let (pod, options) = (fixture.pod(HTTP)?, fixture.options);
    let hung = Hung::new(&options.scratch.join("hung"))?;
    let path = hung.path("log").display().to_string();
    let server = fixture.pod_of(pod)?;
    server.serve(options, &[mode, &path, &format!("[::]:{HTTP}")])?;
    // There the kernel counts its pressure.
    server.join(Cgroup::create(mode)?)?;
    server.wait_until_blocked()?;
    Ok((pod, hung))
}

/// Another cgroup uses the processor.
fn starved(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    let hog = || {
        let mut command = Command::new("sh");
        command.args(["-c", "while :; do :; done"]);
        Proc::spawn(command)
    };
    let [own, neighbour] = [hog()?, hog()?];
    fixture.pod_of(pod)?.starve(&own, &neighbour)?;
    fixture.helpers.push(own);
    fixture.mentions(&["none of its tasks could run: they waited for a processor"]);
    fixture.fails(Kind::Http, pod, Ending::Timeout)
}
