//! Source ports that are used up, and what looks like it.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use tracer_model::record::Cause;

use super::{Scenario, Stage};
use crate::dial::{Ending, Kind};
use crate::helper::Role;
use crate::ip::Route;
use crate::pods::HTTP;
use crate::proc::Proc;

const EXHAUSTED: Option<Cause> = Some(Cause::EphemeralPortsExhausted);
const ROUTE: Option<Cause> = Some(Cause::RouteUnreachable);

/// Two ports of each parity.
const RANGE: &str = "40000 40003";

pub(super) const ALL: &[Scenario] = &[
    Scenario::new("ephemeral_ports_exhausted", EXHAUSTED, churned).own().on_every_kernel(),
    Scenario::new("ephemeral_ports_exhausted_v6", EXHAUSTED, churned).own().v6(),
    Scenario::new("ephemeral_ports_held_by_listener", EXHAUSTED, listener).own(),
    Scenario::new("ephemeral_ports_no_source_address", ROUTE, no_address).own().v6(),
    Scenario::new("ephemeral_ports_other_destination", None, other_destination).own(),
];

/// A process of the node has closed so many connections to the pod that each port waits in TIME_WAIT.
fn churned(stage: &mut Stage<'_>) -> Result<()> {
    let pod = stage.serving("http", HTTP)?;
    (stage.watch)()?;
    stage.succeeds(Kind::Http, pod)?;
    churn(stage, pod)?;
    stage.mentions(&["churner"]).fails(Kind::Http, pod, Ending::Error)
}

/// The only port is a listener's: for connect() it is taken as well.
fn listener(stage: &mut Stage<'_>) -> Result<()> {
    let pod = stage.serving("http", HTTP)?;
    (stage.watch)()?;
    let _holds = stage.world.node.enter(|| TcpListener::bind("0.0.0.0:40000").context("listen on the only port"))?;
    stage.world.source_port(Some(40000))?;
    stage.fails(Kind::Http, pod, Ending::Error)
}

/// Ports there are, but no address to send from.
fn no_address(stage: &mut Stage<'_>) -> Result<()> {
    let pod = stage.serving("http", HTTP)?;
    (stage.watch)()?;
    stage.world.node.ip(|ip| {
        ip.no_ipv6_addresses()?;
        ip.replace(&Route::to([0xfd00, 0x10, 0x88, 0, 0, 0, 0, 0], 64).over("cni0"))
    })?;
    stage.fails(Kind::Http, pod, Ending::Error)
}

/// Used up for one destination, free for another.
fn other_destination(stage: &mut Stage<'_>) -> Result<()> {
    let (pod, other) = (stage.serving("http", HTTP)?, stage.serving("http", HTTP)?);
    (stage.watch)()?;
    churn(stage, pod)?;
    stage.succeeds(Kind::Http, other)
}

/// Leaves every port of a small range in TIME_WAIT for this destination.
fn churn(stage: &Stage<'_>, dst: SocketAddr) -> Result<()> {
    let node = &stage.world.node;
    node.sysctl(&[("ipv4/ip_local_port_range", RANGE), ("ipv4/tcp_tw_reuse", "0")])?;
    let since = Instant::now();
    while node.enter(|| Ok(TcpStream::connect(dst)))?.is_ok() {
        if since.elapsed() > stage.options.patience {
            bail!("source ports for {dst} are never used up");
        }
        let mut command = stage.options.helper(node, Role::Load)?;
        command.args(["--comm", "churner", "--seconds", "0.3", "--target", &dst.to_string()]);
        Proc::spawn(command)?.finish(stage.options.patience)?;
    }
    Ok(())
}
