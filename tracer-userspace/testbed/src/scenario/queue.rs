//! A listener with a full queue: the kernel drops the SYN silently, or sends a RST at the end of the handshake.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;

use anyhow::{Context, Result};
use tracer_model::record::Cause;

use super::inside::{PROXY, meshed, send_syn};
use super::{Fixture, Need, Scenario};
use crate::node::{BRIDGE, BRIDGE_MAC};
use crate::pods::HTTP;
use crate::probe::{Ending, Kind};
use crate::wait::until;

const ACCEPT: Option<Cause> = Some(Cause::AcceptQueueOverflow);
const HALF_OPEN: Option<Cause> = Some(Cause::SynBacklogOverflow);

pub(super) const ALL: &[Scenario] = &[
    Scenario::new("accept_queue_overflow", ACCEPT, accept_queue).smoke().and_v6_on_every_kernel(),
    Scenario::new("accept_queue_overflow_after_lo_was_down", ACCEPT, after_lo_was_down).own(),
    Scenario::new("accept_queue_overflow_in_handshake", ACCEPT, fills_in_handshake).needs(&[Need::RealProcessor]),
    Scenario::new("accept_queue_overflow_redirected", ACCEPT, behind_redirect).own().needs(&[Need::NftNat]),
    Scenario::new("accept_queue_aborts", Some(Cause::MidStreamRst), aborts).needs(&[Need::RealProcessor]),
    Scenario::new("syn_backlog_overflow", HALF_OPEN, syn_backlog)
        .needs(&[Need::Nft])
        .on_every_kernel()
        .and_v6_on_every_kernel(),
    Scenario::new("syn_backlog_with_cookies", None, cookies).needs(&[Need::Nft]),
];

/// The process never accepts, and other connections fill its queue.
fn accept_queue(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("backlog:1", HTTP)?;
    fails_with_full_queue(fixture, pod)
}

/// Fills an accept queue of two connections, and makes an attempt fail.
pub(super) fn fails_with_full_queue(fixture: &mut Fixture<'_>, target: SocketAddr) -> Result<()> {
    let _waiting = fill(fixture, target)?;
    fixture.fails(Kind::Http, target, Ending::Timeout)
}

/// Makes two connections that wait to be accepted.
fn fill(fixture: &Fixture<'_>, target: SocketAddr) -> Result<[TcpStream; 2]> {
    let connect = || TcpStream::connect(target).context("a connection that waits to be accepted");
    fixture.node.node.enter(|| Ok([connect()?, connect()?]))
}

/// The target is a server of the node. `lo` was down for a moment before, but is not the cause.
fn after_lo_was_down(fixture: &mut Fixture<'_>) -> Result<()> {
    let target = fixture.serving_on_node("backlog:1")?;
    (fixture.watch)()?;
    fixture.node.node.ip(|ip| ip.down("lo").and_then(|()| ip.up("lo")))?;
    fails_with_full_queue(fixture, target)
}

/// As Istio's usual mode does it: the pod redirects the port to a proxy, which never accepts. The application would.
fn behind_redirect(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = meshed(fixture, "backlog:1")?;
    let proxy = SocketAddr::new(pod.ip(), PROXY);
    fixture.mentions(&[&format!("an address translation sends {pod} to {proxy}")]);
    fails_with_full_queue(fixture, pod)
}

/// The listener drops the last segment of the handshake, and then the request.
fn fills_in_handshake(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("backlog:2", HTTP)?;
    fixture.mentions(&["its accept queue filled up after the SYN"]);
    fill_in_handshake(fixture, pod, Ending::Timeout)
}

/// `tcp_abort_on_overflow` makes the kernel send a RST.
fn aborts(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("backlog:2", HTTP)?;
    fixture.inside(pod)?.sysctl(&[("ipv4/tcp_abort_on_overflow", "1")])?;
    fixture.mentions(&["its listener refused", "net.ipv4.tcp_abort_on_overflow is 1"]);
    fill_in_handshake(fixture, pod, Ending::Reset)
}

/// The accept queue of a pod with a backlog of 2 fills up during the prober's handshake. The SYN-ACK waits for the node's
/// link-layer address meanwhile, because `app_solicit` leaves that to a daemon.
pub(super) fn fill_in_handshake(fixture: &mut Fixture<'_>, pod: SocketAddr, how: Ending) -> Result<()> {
    let _waiting = fill(fixture, pod)?;
    let inside = fixture.inside(pod)?;
    inside.sysctl(&[("ipv4/neigh/eth0/app_solicit", "30")])?;
    inside.ip(|ip| ip.forget_neighbours("eth0"))?;
    let options = fixture.options;
    let timeout = if how == Ending::Timeout { options.probe_timeout } else { options.patience };
    let mut held = Vec::new();
    fixture.fails_while(pod, timeout, &[how], |fixture| {
        wait_for_half_open(fixture, pod)?;
        held.push(fixture.inside(pod)?.enter(|| TcpStream::connect(pod).context("the last connection of the queue"))?);
        fixture.inside(pod)?.ip(|ip| ip.neighbour(BRIDGE, BRIDGE_MAC, "eth0"))
    })
}

/// Waits until a socket of the pod is in SYN_RECV.
fn wait_for_half_open(fixture: &mut Fixture<'_>, pod: SocketAddr) -> Result<()> {
    const SYN_RECV: &str = "03";
    // The listener is a dual-stack IPv6 socket.
    let sockets = || Ok(fs::read_to_string("/proc/thread-self/net/tcp6")?);
    let is = |line: &str| line.split_whitespace().nth(3) == Some(SYN_RECV);
    let inside = fixture.inside(pod)?;
    until("a handshake has begun", || Ok(inside.enter(sockets)?.lines().any(is)))
}

/// A client that drops each SYN-ACK fills the queue of half-open connections. SYN cookies are off.
fn syn_backlog(fixture: &mut Fixture<'_>) -> Result<()> {
    let (pod, _half_open) = half_open(fixture, "0")?;
    fixture.fails(Kind::Http, pod, Ending::Timeout)
}

/// As [`syn_backlog`], with SYN cookies. That works.
fn cookies(fixture: &mut Fixture<'_>) -> Result<()> {
    let (pod, _half_open) = half_open(fixture, "1")?;
    fixture.succeeds(Kind::Http, pod)
}

fn half_open(fixture: &mut Fixture<'_>, cookies: &str) -> Result<(SocketAddr, Vec<OwnedFd>)> {
    let pod = fixture.serving("http", HTTP)?;
    fixture.inside(pod)?.sysctl(&[("ipv4/tcp_syncookies", cookies), ("ipv4/tcp_max_syn_backlog", "8")])?;
    let client = fixture.node.pod()?;
    client.ns.input_rule("tcp flags & (syn|ack) == syn|ack drop;")?;
    let sockets = client.ns.enter(|| (0..16).map(|_| send_syn(pod)).collect::<Result<Vec<_>>>())?;
    Ok((pod, sockets))
}
