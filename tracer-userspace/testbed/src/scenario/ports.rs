//! Source ports that are used up, and what looks like it.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use tracer_model::record::Cause;

use super::{Fixture, Scenario};
use crate::helper::Role;
use crate::ip::Route;
use crate::pods::HTTP;
use crate::probe::{Ending, Kind};
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
fn churned(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    (fixture.watch)()?;
    fixture.succeeds(Kind::Http, pod)?;
    churn(fixture, pod)?;
    fixture.mentions(&["churner"]).fails(Kind::Http, pod, Ending::Error)
}

/// The only port is a listener's: for connect() it is taken as well.
fn listener(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    (fixture.watch)()?;
    let _holds = fixture.node.node.enter(|| TcpListener::bind("0.0.0.0:40000").context("listen on the only port"))?;
    fixture.node.source_port(Some(40000))?;
    fixture.fails(Kind::Http, pod, Ending::Error)
}

/// Ports there are, but no address to send from.
fn no_address(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    (fixture.watch)()?;
    fixture.node.node.ip(|ip| {
        ip.no_ipv6_addresses()?;
        ip.replace(&Route::to([0xfd00, 0x10, 0x88, 0, 0, 0, 0, 0], 64).over("cni0"))
    })?;
    fixture.fails(Kind::Http, pod, Ending::Error)
}

/// Used up for one destination, free for another.
fn other_destination(fixture: &mut Fixture<'_>) -> Result<()> {
    let (pod, other) = (fixture.serving("http", HTTP)?, fixture.serving("http", HTTP)?);
    (fixture.watch)()?;
    churn(fixture, pod)?;
    fixture.succeeds(Kind::Http, other)
}

/// Leaves every port of a small range in TIME_WAIT for this destination.
fn churn(fixture: &Fixture<'_>, dst: SocketAddr) -> Result<()> {
    let node = &fixture.node.node;
    node.sysctl(&[("ipv4/ip_local_port_range", RANGE), ("ipv4/tcp_tw_reuse", "0")])?;
    let since = Instant::now();
    while node.enter(|| Ok(TcpStream::connect(dst)))?.is_ok() {
        if since.elapsed() > fixture.options.patience {
            bail!("source ports for {dst} are never used up");
        }
        let mut command = fixture.options.helper(node, Role::Load)?;
        command.args(["--comm", "churner", "--seconds", "0.3", "--target", &dst.to_string()]);
        Proc::spawn(command)?.finish(fixture.options.patience)?;
    }
    Ok(())
}
